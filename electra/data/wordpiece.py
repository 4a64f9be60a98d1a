"""A vocabulary and the rules that cut text into it: one tokenizer folder carries both through every
stage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra import atomic
from electra.config import UserError
from electra.files import (
    parse_json,
    read_bounded_bytes,
    read_bounded_text,
    read_json_object,
)
from electra.settings import fingerprint

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
SPECIAL_TOKENS = list(ROLES.values())  # the trainer numbers them in this order
ENCODE_BATCH_LINES = 8_192  # lines
# What else a transformers tokenizer folder may hold; tokenizer.json and tokenizer_config.json we
# write ourselves.
COMPANIONS = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)


class WordPiece:
    """Text ⇄ ids, with the five special tokens a masked language model needs."""

    def __init__(
        self,
        definition: str,
        *,
        config: dict[str, Any] | None = None,
        companions: dict[str, bytes] | None = None,
        display_name: str = "tokenizer",
    ) -> None:
        self.definition = definition  # the text of tokenizer.json
        self.config = config or {}
        self.companions = companions or {}
        self.display_name = display_name
        self.pad, self.unk, self.cls, self.sep, self.mask = special_ids(
            self.backend_tokenizer, self.config, display_name=display_name
        )

    @classmethod
    def load(cls, folder: str | Path) -> WordPiece:
        """Any transformers tokenizer folder. One with a vocab.txt alone is converted, which needs a
        longer import.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(
                f"{folder}: no such tokenizer folder; make one with `electra vocab CORPUS "
                "--output-dir "
                f"{folder}`"
            )
        companions = {
            name: read_companion(folder / name) for name in COMPANIONS if (folder / name).is_file()
        }
        if (folder / "tokenizer.json").is_file():
            definition = read_definition(folder)
            return cls(
                definition,
                config=read_config(folder),
                companions=companions,
                display_name=str(folder),
            )
        if "vocab.txt" in companions:
            definition = convert_vocab_txt(folder)
            return cls(
                definition,
                config=read_config(folder) or default_config(definition),
                companions=companions,
                display_name=str(folder),
            )
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        raise UserError(
            f"{folder}: holds no tokenizer: tokenizer.json or vocab.txt expected, found {found}; "
            "name the "
            "folder that `electra vocab` or `save_pretrained` wrote"
        )

    @cached_property
    def backend_tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(self.definition)
        except Exception as error:  # the library raises plain Exception
            raise UserError(
                f"{self.display_name}: tokenizer.json cannot be read: {error}; make the folder again"
            ) from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # A document that talks about [MASK] must not become a document with a hole in it.
        tokenizer.encode_special_tokens = True
        return tokenizer

    @cached_property
    def size(self) -> int:
        """The number of ids a table needs: the largest one and zero."""
        return max(self.backend_tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give every text the same ids."""
        parts = parse_json(self.definition)
        return fingerprint(
            {
                key: parts.get(key)
                for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")
            }
            | {"special": [self.pad, self.unk, self.cls, self.sep, self.mask]}
        )

    def encode(self, lines: list[str]) -> list[list[int]]:
        """The ids of each line, without special tokens around them."""
        # In parts, since what the library hands back weighs many times as much as the ids that are
        # kept of it.
        return [
            found.ids
            for start in range(0, len(lines), ENCODE_BATCH_LINES)
            for found in self.backend_tokenizer.encode_batch_fast(
                lines[start : start + ENCODE_BATCH_LINES], add_special_tokens=False
            )
        ]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """How each id is spelled; one beyond the vocabulary shows as its number."""
        return [self.backend_tokenizer.id_to_token(int(i)) or f"<{int(i)}>" for i in ids]

    def copy_to(self, folder: str | Path, *, model_max_length: int | None = None) -> None:
        """The files with which transformers loads this tokenizer, beside a model or a corpus."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        limit = {"model_max_length": model_max_length} if model_max_length else {}
        for name, content in self.companions.items():
            atomic.write(folder / name, content)
        atomic.write_json(folder / "tokenizer_config.json", self.config | limit)
        atomic.write(
            folder / "tokenizer.json", self.definition
        )  # last: with it the folder is whole


def special_ids(tokenizer: Tokenizer, config: dict[str, Any], *, display_name: str) -> list[int]:
    ids = []
    for role, stock in ROLES.items():
        named = config.get(f"{role}_token") or stock
        token = named.get("content") if isinstance(named, dict) else named
        if not isinstance(token, str):
            raise UserError(
                f"{display_name}: {role}_token in tokenizer_config.json is {str(named)[:60]!r}, which is "
                "no text; "
                f"write its spelling, {stock!r} for one"
            )
        found = tokenizer.token_to_id(token)
        if found is None:
            special = [
                t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special
            ]
            raise UserError(
                f"{display_name}: no {token} token, which pre-training needs; its special tokens are "
                f"{', '.join(special) or 'none'}; add it and name it {role}_token in "
                "tokenizer_config.json, or make a vocabulary of your own with `electra vocab`"
            )
        ids.append(found)
    return ids


def read_definition(folder: Path) -> str:
    """The text of tokenizer.json."""
    try:
        definition = read_bounded_text(folder / "tokenizer.json")
        parse_json(definition)  # the library's own parser goes as deep as it is led
        return definition
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: tokenizer.json cannot be read: {error}; make the folder again"
        ) from None


def read_companion(path: Path) -> bytes:
    try:
        return read_bounded_bytes(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; make the folder again") from None


def read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, over the special tokens that older folders keep in a file of their
    own.
    """
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= read_json_object(folder / name, remedy="make the folder again")
    return config


def default_config(definition: str) -> dict[str, Any]:
    """What transformers must read in tokenizer_config.json to rebuild a BERT-like tokenizer with
    its segment ids.
    """
    normalizer = json.loads(definition).get("normalizer") or {}
    return {
        # a plain fast tokenizer class would leave out token_type_ids
        "tokenizer_class": "ElectraTokenizer",
        "do_lower_case": normalizer.get("lowercase", True),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
        "model_max_length": 512,
        **{f"{role}_token": token for role, token in ROLES.items()},
    }


def convert_vocab_txt(folder: Path) -> str:
    from transformers import AutoTokenizer, BertTokenizer

    loader = AutoTokenizer if (folder / "tokenizer_config.json").is_file() else BertTokenizer
    try:
        # Never code of the folder's own: left open, transformers asks at the terminal whether to
        # run it.
        found = loader.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        return str(found.backend_tokenizer.to_str())
    except Exception as error:  # whatever transformers found wrong with it
        raise UserError(f"{folder}: transformers cannot load this tokenizer: {error}") from None
