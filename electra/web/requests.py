"""What a client sends: a body of bounded size, strict JSON, and errors with their status code."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from electra.config import UserError, suggest_or_list
from electra.files import check_bounds, check_surrogates

RECEIVED_LIMITS = 4  # of a body that is too long
MAX_QUOTED = 60  # characters of a client's text in a message
MAX_DIGITS = 1_000  # of a whole number


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What the server takes at most."""

    characters: int = 20_000  # of one text
    inputs: int = 64  # of one request
    body_bytes: int = 4_000_000
    table_bytes: int = 5_000_000
    table_rows: int = 10_000
    tables: int = 4  # that are answered at a time
    queued_requests: int = 1_000  # of one model
    queued_characters: int = 20_000_000
    read_seconds: float = 30.0  # for a body to arrive
    stop_seconds: float = 10.0  # to finish what is queued

    def public(self) -> dict[str, int]:
        """Return the limits that a page shows."""
        return {
            "characters": self.characters,
            "inputs": self.inputs,
            "table_bytes": self.table_bytes,
            "table_rows": self.table_rows,
        }


class RequestError(Exception):
    """A request that is refused: a status code, and a sentence with the remedy."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


async def read_body(request: Request, *, limit: int, seconds: float) -> bytes:
    """Return the body; refuse one that is longer than `limit`, no more of which is kept.

    The rest of it is received, within bounds, since a client that cannot send it would never read
    the refusal.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > RECEIVED_LIMITS * limit:
        refuse_long_body(limit)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > RECEIVED_LIMITS * limit:
                    refuse_long_body(limit)
                if size <= limit:
                    chunks.append(chunk)
    except TimeoutError:
        raise RequestError(
            408, f"The body did not arrive in {seconds:.0f} s; send it again."
        ) from None
    except ClientDisconnect:
        raise RequestError(400, "The connection was closed before the body was complete.") from None
    if size > limit:
        refuse_long_body(limit)
    return b"".join(chunks)


def refuse_long_body(limit: int) -> NoReturn:
    raise RequestError(
        413, f"The body is longer than {limit:,} bytes; send it in several requests."
    )


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """Return the JSON object that a body holds."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestError(415, "Send JSON, with the header Content-Type: application/json.")
    body = await read_body(request, limit=limits.body_bytes, seconds=limits.read_seconds)
    return parse_object(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object, bounded in depth and numbers; raise RequestError otherwise."""
    try:
        text = body.decode("utf-8-sig")
        value = json.loads(
            text,
            parse_int=parse_integer,
            parse_constant=refuse_constant,
            object_pairs_hook=refuse_repeated_keys,
        )
        check_bounds(value)
        if "\\ud" in text.lower():
            check_surrogates(value)
    except UnicodeDecodeError:
        raise RequestError(400, "The body is not UTF-8; encode the JSON as UTF-8.") from None
    except RecursionError:
        raise RequestError(400, "The JSON is nested too deeply; send a plain object.") from None
    except ValueError as error:
        raise RequestError(400, f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise RequestError(400, f"Send a JSON object, {{…}}; this is {json_type(value)}.")
    return value


def parse_integer(digits: str) -> int:
    """Parse a whole number that is short enough for Python to print."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits, where {MAX_DIGITS:,} are enough")
    return int(digits)


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def refuse_repeated_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise ValueError where a key is there twice, as one would be lost."""
    value = dict(pairs)
    if len(value) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {quote(counts.most_common(1)[0][0])} is there more than once")
    return value


def json_type(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
    names |= {int: "a number", float: "a number", type(None): "null"}
    return names[type(value)]


# ---- values --------------------------------------------------------------------------------------


def check_keys(value: Mapping[str, Any], known: Sequence[str], *, where: str) -> None:
    """Refuse a key that nobody reads: it is misspelt, or meant for something else."""
    for key in value:
        if key not in known:
            hint = suggest_or_list(key, known)
            raise RequestError(400, f"{where}: unknown key {quote(key)}{hint}.")


def quote(text: str) -> str:
    """Return a client's text as a message quotes it."""
    if len(text) > MAX_QUOTED:
        text = text[:MAX_QUOTED] + "…"
    return repr(text)


def take_text(value: Mapping[str, Any], key: str, *, where: str, limits: Limits) -> str:
    """Return the text under a key."""
    if key not in value:
        raise RequestError(400, f"{where}: {key!r} is missing; give it as a string.")
    return check_text(value[key], where=f"{where}: {key!r}", limits=limits)


def check_text(value: object, *, where: str, limits: Limits) -> str:
    if not isinstance(value, str):
        raise RequestError(400, f"{where} is {json_type(value)}; give it as a string.")
    if len(value) > limits.characters:
        raise RequestError(
            413,
            f"{where} has {len(value):,} characters, where at most {limits.characters:,} are "
            "taken; shorten it.",
        )
    return value


def take_texts(value: Mapping[str, Any], key: str, *, where: str, limits: Limits) -> list[str]:
    """Return the list of texts under a key; together they are no longer than one text may be."""
    items = value.get(key)
    if not isinstance(items, list):
        raise RequestError(400, f"{where}: {key!r} must be an array of strings.")
    texts = [
        check_text(item, where=f"{where}: {key!r}[{i}]", limits=limits)
        for i, item in enumerate(items)
    ]
    check_text("".join(texts), where=f"{where}: {key!r}", limits=limits)
    return texts


def take_integer(value: Mapping[str, Any], key: str, *, default: int, low: int, high: int) -> int:
    number = value.get(key, default)
    if type(number) is not int or not low <= number <= high:
        raise RequestError(400, f"{key!r} must be a whole number from {low} to {high}.")
    return number


def take_number(
    value: Mapping[str, Any], key: str, *, default: float, low: float, high: float
) -> float:
    number = value.get(key, default)
    is_number = type(number) in (int, float) and abs(number) < 1e300 and math.isfinite(number)
    if not is_number or not low <= number <= high:
        raise RequestError(400, f"{key!r} must be a number from {low} to {high}.")
    return float(number)


def as_request_error(error: UserError) -> RequestError:
    """Return the answer to input that a reader of the package refuses."""
    text = str(error).strip()
    if text.partition(" ")[0].isalpha():  # not the name of a file
        text = text[:1].upper() + text[1:]
    return RequestError(400, f"{text}.")
