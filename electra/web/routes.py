"""The endpoints, and the files of the page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from electra import __version__
from electra.config import UserError
from electra.console import to_stderr
from electra.tasks.choose import Choice
from electra.tasks.task import Example
from electra.web.guard import Guard, RateLimit, error_response
from electra.web.models import Served
from electra.web.requests import (
    Limits,
    RequestError,
    as_request_error,
    check_keys,
    read_body,
    read_json,
    take_integer,
    take_number,
    take_text,
)
from electra.web.tokens import TokensRequest
from electra.web.uploads import (
    CHUNK_EXAMPLES,
    read_upload,
    upload_suffix,
    with_columns,
    write_csv,
)

PAGE = Path(__file__).parent / "page"
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
MAX_SEED = 2**53 - 1  # a whole number in JavaScript
Result = TypeVar("Result")
Handler = Callable[[Request], Awaitable[Response]]


class Endpoints:
    """The functions behind the addresses of one server."""

    def __init__(self, models: Sequence[Served], limits: Limits) -> None:
        self.models, self.limits = models, limits
        self.tables = 0  # that are being answered

    def routes(self) -> list[Route]:
        model = "/api/models/{model}"
        return [
            Route("/", answering(self.page)),
            Route("/page/{name}", answering(self.page)),
            Route("/api/health", answering(self.health)),
            Route("/api/models", answering(self.list_models)),
            Route(f"{model}/tokens", answering(self.tokens), methods=["POST"]),
            Route(f"{model}/predict", answering(self.predict), methods=["POST"]),
            Route(f"{model}/table", answering(self.table), methods=["POST"]),
            Route(f"{model}/curves", answering(self.curves)),
        ]

    def served(self, request: Request) -> Served:
        numbers = {str(number): model for number, model in enumerate(self.models)}
        if request.path_params["model"] not in numbers:
            last = len(self.models) - 1
            raise RequestError(404, f"There is no such model; they are numbered from 0 to {last}.")
        return numbers[request.path_params["model"]]

    # ---- the page --------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        files = {path.name: path for path in PAGE.iterdir() if path.suffix in MEDIA_TYPES}
        if name not in files:
            raise RequestError(404, "There is no such file; open the page at /.")
        path = files[name]
        content = await asyncio.to_thread(path.read_bytes)
        return Response(
            content,
            media_type=MEDIA_TYPES[path.suffix],
            headers={"Cache-Control": "no-cache"},
        )

    # ---- what is served --------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        queued = sum(model.worker.queued for model in self.models)
        return JSONResponse({"status": "ok", "queued": queued})

    async def list_models(self, request: Request) -> Response:
        models = []
        for number, model in enumerate(self.models):
            models.append({"model": number, **model.describe()})
        return JSONResponse(
            {"models": models, "limits": self.limits.public(), "version": __version__}
        )

    async def curves(self, request: Request) -> Response:
        journal = self.served(request).journal()
        after = request.query_params.get("after", "-1")
        if not after.removeprefix("-").isdecimal() or len(after) > 16:
            raise RequestError(400, "'after' must be a whole number, the last step that you have.")
        return JSONResponse(await asyncio.to_thread(journal.read, after=int(after)))

    # ---- what the models say ---------------------------------------------------------------------

    async def tokens(self, request: Request) -> Response:
        model = self.served(request)
        model.networks_for_tokens()
        asked = parse_tokens(await read_json(request, self.limits), self.limits)
        work = model.worker.submit("tokens", [asked], len(asked.text))
        return json_response((await while_connected(request, work))[0])

    async def predict(self, request: Request) -> Response:
        model = self.served(request)
        answerer = model.answerer_for_inputs()
        inputs = answerer.parse(await read_json(request, self.limits), self.limits)
        examples = [each.example for each in inputs]
        size = sum(map(characters_of, examples))
        work = model.worker.submit(answerer.batch_key(examples), examples, size)
        answered = await while_connected(request, work)
        answers = []
        for each, (answer, notes) in zip(inputs, answered, strict=True):
            answers.append(answerer.describe(each, answer, notes))
        return json_response({"answers": answers})

    async def table(self, request: Request) -> Response:
        model = self.served(request)
        answerer = model.answerer_for_inputs()
        suffix = upload_suffix(request.headers.get("content-type", ""))
        task = with_columns(answerer.task, request.query_params)
        if self.tables >= self.limits.tables:
            raise RequestError(
                503, "Other tables are being answered; send yours again in 5 s.", retry_after=5
            )
        self.tables += 1
        try:
            limits = self.limits
            body = await read_body(
                request, limit=limits.table_bytes, seconds=2 * limits.read_seconds
            )
            examples = await asyncio.to_thread(
                read_upload, task, body, suffix=suffix, limits=limits
            )
            work = self.answer_table(model, examples)
            answered = await while_connected(request, work)
            content = await asyncio.to_thread(write_csv, task, answered)
        finally:
            self.tables -= 1
        return Response(
            content,
            media_type="text/csv",
            headers={"Content-Disposition": 'attachment; filename="answers.csv"'},
        )

    async def answer_table(
        self, model: Served, examples: Sequence[Example]
    ) -> list[tuple[Example, Any]]:
        """Return the examples with their answers, a chunk after the other."""
        answered = []
        answerer = model.answerer_for_inputs()
        for start in range(0, len(examples), CHUNK_EXAMPLES):
            chunk = examples[start : start + CHUNK_EXAMPLES]
            size = sum(map(characters_of, chunk))
            answers = await model.worker.submit(answerer.batch_key(chunk), chunk, size)
            for example, (answer, _) in zip(chunk, answers, strict=True):
                answered.append((example, answer))
        return answered


def characters_of(example: Example) -> int:
    """Return about how much a model has to read of an example."""
    if isinstance(example, Choice):  # the context is read once with each option
        return len(example.context) * len(example.options) + sum(map(len, example.options))
    return len(repr(example))


def parse_tokens(body: Mapping[str, Any], limits: Limits) -> TokensRequest:
    check_keys(body, ("text", "hidden", "seed", "temperature"), where="The body")
    hidden = body.get("hidden", [])
    if not isinstance(hidden, list) or not all(type(word) is int and word >= 0 for word in hidden):
        raise RequestError(400, "'hidden' must be an array of word numbers, counted from 0.")
    return TokensRequest(
        text=take_text(body, "text", where="The body", limits=limits),
        hidden=tuple(hidden[: limits.characters]),
        seed=take_integer(body, "seed", default=0, low=0, high=MAX_SEED),
        temperature=take_number(body, "temperature", default=1.0, low=0.01, high=100.0),
    )


# ---- requests and answers ------------------------------------------------------------------------


def answering(handler: Handler) -> Handler:
    """Return the handler with its errors as JSON: a sentence each, and nothing of the server."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestError as error:
            return error_response(error)
        except UserError as error:
            return error_response(as_request_error(error))
        except Exception as error:
            to_stderr(f"a request failed: {type(error).__name__}: {error}")
            message = "The server failed on this request; its terminal says why."
            return error_response(RequestError(500, message))

    return answer


def json_response(content: Any) -> Response:
    try:
        return JSONResponse(content)
    except ValueError:  # JSON knows neither nan nor infinity
        raise RequestError(
            422,
            "This model computes numbers that are not finite; its weights are damaged or its "
            "training diverged. Serve another one.",
        ) from None


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await some work; cancel it when the client closes the connection."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RequestError(400, "The connection was closed before the answer.")
    finally:
        for each in (task, gone):
            each.cancel()


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def refuse(request: Request, error: Exception) -> Response:
    """Return the answer to an address or a method that does not exist."""
    assert isinstance(error, HTTPException)
    message = f"There is no {request.method} at this address; GET /api/models lists the models."
    return error_response(RequestError(error.status_code, message))


def build_app(
    models: Sequence[Served],
    *,
    limits: Limits,
    token: str | None = None,
    rate: float = 0.0,
) -> Starlette:
    """Build the application that answers for these models, whose workers run already."""
    guard = Middleware(Guard, token=token, rate_limit=RateLimit(rate))
    return Starlette(
        routes=Endpoints(models, limits).routes(),
        middleware=[guard],
        exception_handlers={HTTPException: refuse},
    )
