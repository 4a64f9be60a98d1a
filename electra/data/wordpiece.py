"""The WordPiece tokenizer, and the transformers tokenizer folder that it is loaded from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra import atomic
from electra.checksums import verify_if_listed
from electra.config import UserError
from electra.data.records import checksum_file
from electra.data.tokenizer_files import check_is_folder, row_processor, stock_config
from electra.files import (
    parse_json,
    read_bounded_bytes,
    read_bounded_text,
    read_json_object,
)
from electra.settings import fingerprint
from electra.shipped import resolve_shipped

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Row = tuple[list[int], list[int]]  # input_ids and token_type_ids
ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
REQUIRED_ROLES = ("pad", "unk", "cls", "sep")  # a fine-tuned model needs no [MASK]
SPECIAL_TOKENS = list(ROLES.values())  # the trainer numbers them in this order
DEFAULT_CONFIG = {"model_max_length": 512}  # of a folder with a vocabulary alone
ENCODE_BATCH_LINES = 8_192
# WordPiece's max_input_chars_per_word: a longer word becomes [UNK].
MAX_WORD_CHARACTERS = 100
# An embedding table has a row for every id up to the largest. Ids may have gaps, but not be mostly
# gaps: one id of 2^28 would take gigabytes.
MAX_IDS_PER_TOKEN = 2
MAX_UNUSED_IDS = 1000
# Files of a transformers tokenizer folder that are copied; tokenizer.json and tokenizer_config.json
# are written.
COMPANIONS = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)


class WordPiece:
    """A tokenizer with the five special tokens that a masked language model needs."""

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
        roles = name_roles(self.config, display_name=display_name)
        ids = self.find_special_ids(roles)
        self.special = {role: token for role, token in roles.items() if role in ids}
        self.pad, self.unk, self.cls, self.sep = (ids[role] for role in REQUIRED_ROLES)
        self.mask_if_any = ids.get("mask")

    @classmethod
    def load(cls, folder: str | Path, *, needs_mask: bool = True) -> WordPiece:
        """Load any transformers tokenizer folder, or that of a model that comes with the package.

        One with only a vocab.txt is converted, which imports transformers. A fine-tuned model needs
        no [MASK].
        """
        folder = resolve_shipped(folder)
        check_is_folder(folder)
        for name in (*COMPANIONS, "tokenizer.json", "tokenizer_config.json"):
            verify_if_listed(folder / name)
        present = [name for name in COMPANIONS if (folder / name).is_file()]
        companions = {name: read_companion(folder / name) for name in present}
        if (folder / "tokenizer.json").is_file():
            definition = read_definition(folder)
            config = read_config(folder)
        elif "vocab.txt" in companions:
            definition = convert_vocab_txt(folder)
            config = read_config(folder) or dict(DEFAULT_CONFIG)
        else:
            names = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            raise UserError(
                f"{folder}: holds no tokenizer: tokenizer.json or vocab.txt expected, found "
                f"{names}; name the folder that `electra vocab` or `save_pretrained` wrote"
            )
        tokenizer = cls(definition, config=config, companions=companions, display_name=str(folder))
        if needs_mask and tokenizer.mask_if_any is None:
            raise tokenizer.without_mask()
        return tokenizer

    @cached_property
    def backend_tokenizer(self) -> Tokenizer:
        """The tokenizer of the tokenizers library, without truncation and padding."""
        from tokenizers import Tokenizer

        try:
            with refuse_panics(self.display_name):
                backend = Tokenizer.from_str(self.definition_of_roles())
        except UserError:
            raise
        except Exception as error:  # the library raises plain Exception
            raise unreadable_definition(self.display_name, error) from None
        backend.no_truncation()
        backend.no_padding()
        # Otherwise "[MASK]" in the text of a document would become a mask token.
        backend.encode_special_tokens = True
        return backend

    def definition_of_roles(self) -> str:
        """Return the definition in which the tokens with a role, and no others, are special: a text
        cannot contain them. Others, such as entity markers, stay whole.
        """
        definition = parse_json(self.definition)
        roles = name_roles(self.config, display_name=self.display_name).values()
        changed = False
        for token in definition.get("added_tokens") or []:
            has_role = token["content"] in roles
            changed = changed or token["special"] != has_role
            token["special"] = has_role
        return json.dumps(definition) if changed else self.definition

    @property
    def mask(self) -> int:
        """The id of [MASK]; raise UserError where there is none."""
        if self.mask_if_any is None:
            raise self.without_mask()
        return self.mask_if_any

    def without_mask(self) -> UserError:
        """Return the error for pre-training with a tokenizer that has no [MASK]."""
        mask = name_roles(self.config, display_name=self.display_name)["mask"]
        return missing_roles(self.definition, {"mask": mask}, display_name=self.display_name)

    def find_special_ids(self, roles: dict[str, str]) -> dict[str, int]:
        """Return the ids of the tokens of all roles; that of [MASK] may be missing."""
        found = {role: self.backend_tokenizer.token_to_id(roles[role]) for role in roles}
        ids = {role: token_id for role, token_id in found.items() if token_id is not None}
        if not ids.keys() >= set(REQUIRED_ROLES):
            missing = {role: token for role, token in roles.items() if role not in ids}
            raise missing_roles(self.definition, missing, display_name=self.display_name)
        return ids

    @cached_property
    def size(self) -> int:
        """The number of rows of an embedding table: one more than the largest id."""
        vocab = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        token, largest = max(vocab.items(), key=lambda item: item[1])
        if largest > MAX_IDS_PER_TOKEN * len(vocab) + MAX_UNUSED_IDS:
            raise UserError(
                f"{self.display_name}: tokenizer.json gives {token!r} the id {largest:,} among "
                f"{len(vocab):,} tokens; number the tokens without large gaps"
            )
        return largest + 1

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for tokenizers that give every text the same ids."""
        definition = parse_json(self.definition)
        parts = {
            key: definition.get(key)
            for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")
        }
        special = [self.pad, self.unk, self.cls, self.sep, self.mask_if_any]
        return fingerprint(parts | {"special": special})

    def normalize(self, text: str) -> str:
        """Return a text as WordPiece sees it, for example in lower case and without accents."""
        normalizer = self.backend_tokenizer.normalizer
        if normalizer is None:
            return text
        return str(normalizer.normalize_str(text))

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Return the ids of each line, without special tokens around them."""
        ids: list[list[int]] = []
        # In batches, since an encoding of the library is many times as large as its ids.
        for start in range(0, len(lines), ENCODE_BATCH_LINES):
            batch = lines[start : start + ENCODE_BATCH_LINES]
            with refuse_panics(self.display_name):
                encodings = self.backend_tokenizer.encode_batch_fast(
                    batch, add_special_tokens=False
                )
            ids += [self.without_roles(encoding.ids) for encoding in encodings]
        return ids

    def without_roles(self, ids: list[int]) -> list[int]:
        """Return the ids of a text, unknown where it spells a token that structures rows."""
        if not self.spelled_roles:
            return ids
        return [self.unk if each in self.spelled_roles else each for each in ids]

    @cached_property
    def spelled_roles(self) -> frozenset[int]:
        """The ids of tokens with a role that a text can spell: some models find them in their
        vocabulary.
        """
        backend = self.backend_tokenizer
        tokens = [token for role, token in self.special.items() if role != "unk"]
        texts = [text for token in tokens for text in (token, f"a {token}")]
        with refuse_panics(self.display_name):
            encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        found = {each for encoding in encodings for each in encoding.ids}
        return frozenset(found & {backend.token_to_id(token) for token in tokens})

    def row(self, texts: Sequence[str]) -> Row:
        """Return `[CLS] A [SEP]` of a text, or `[CLS] A [SEP] B [SEP]` of a pair."""
        input_ids, token_type_ids = [self.cls], [0]
        for segment, ids in enumerate(self.encode(list(texts))):
            input_ids += [*ids, self.sep]
            token_type_ids += [segment] * (len(ids) + 1)
        return input_ids, token_type_ids

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id; an id beyond the vocabulary becomes its number."""
        return [self.backend_tokenizer.id_to_token(int(i)) or f"<{int(i)}>" for i in ids]

    def copy_to(
        self,
        folder: str | Path,
        *,
        model_max_length: int | None = None,
        model_input_names: Sequence[str] | None = None,
    ) -> None:
        """Write the files with which transformers loads this tokenizer and makes our rows.

        A model's folder says by `model_input_names` which inputs its network has.
        """
        folder = Path(folder)
        atomic.make_folder(folder)
        config = self.stock_config(model_input_names)
        if model_max_length:
            config["model_max_length"] = model_max_length
        for name, content in self.companions.items():
            atomic.write(folder / name, content)
        atomic.write_json(folder / "tokenizer_config.json", config)
        # Last: its presence means that the folder is complete.
        atomic.write(folder / "tokenizer.json", self.definition_with_rows)

    def stock_config(self, model_input_names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the tokenizer_config.json with which transformers reads texts as we do."""
        return stock_config(
            self.config,
            parse_json(self.definition),
            special=self.special,
            model_input_names=model_input_names,
        )

    @cached_property
    def definition_with_rows(self) -> str:
        """The text of tokenizer.json, whose post-processor makes the rows that tasks make."""
        texts, found = ("a", "b"), []
        with suppress(UserError), refuse_panics(self.display_name):  # which is replaced then
            row = self.backend_tokenizer.encode(*texts)
            single = self.backend_tokenizer.encode(texts[0])
            found = [(single.ids, single.type_ids), (row.ids, row.type_ids)]
        if found == [self.row(texts[:1]), self.row(texts)]:
            return self.definition
        definition = parse_json(self.definition)
        definition["post_processor"] = row_processor(
            definition.get("post_processor"),
            cls=(self.special["cls"], self.cls),
            sep=(self.special["sep"], self.sep),
        )
        return json.dumps(definition, ensure_ascii=False, indent=2)

    def checksums(self, folder: Path) -> dict[str, str]:
        """Return the checksum of every file that `copy_to` wrote into a folder."""
        names = [*self.companions, "tokenizer_config.json", "tokenizer.json"]
        return {name: checksum_file(folder / name) for name in names}


@contextmanager
def refuse_panics(display_name: str) -> Iterator[None]:
    """Raise UserError where the tokenizers library panics. Its PanicException cannot be imported,
    and is a BaseException, which `except Exception` lets through.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            f"{display_name}: the tokenizers library fails on tokenizer.json: {error}; make the "
            "folder again"
        ) from None


def name_roles(config: dict[str, Any], *, display_name: str) -> dict[str, str]:
    """Return the tokens of the five roles, by the names in the config."""
    tokens = {}
    for role, default in ROLES.items():
        configured = config.get(f"{role}_token") or default
        token = configured
        if isinstance(configured, dict):
            token = configured.get("content")
        if not isinstance(token, str):
            raise UserError(
                f"{display_name}: {role}_token in tokenizer_config.json is "
                f"{str(configured)[:60]!r}, which is no text; write its spelling, {default!r} for "
                "one"
            )
        tokens[role] = token
    return tokens


def missing_roles(definition: str, missing: dict[str, str], *, display_name: str) -> UserError:
    """Return the error for a tokenizer without tokens of some roles, which it needs."""
    added = parse_json(definition).get("added_tokens") or []
    special = ", ".join(token["content"] for token in added if token["special"])
    names, them = f"{enumerate_words(missing.values())} tokens", "them and name them"
    if len(missing) == 1:
        names, them = names.removesuffix("s"), "it and name it"
    keys = enumerate_words(f"{role}_token" for role in missing)
    return UserError(
        f"{display_name}: no {names}, which pre-training needs; its special tokens are "
        f"{special or 'none'}; add {them} {keys} in tokenizer_config.json, or make a vocabulary of "
        "your own with `electra vocab`"
    )


def enumerate_words(words: Iterable[str]) -> str:
    """Return `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def read_definition(folder: Path) -> str:
    """Return the text of tokenizer.json."""
    try:
        definition = read_bounded_text(folder / "tokenizer.json")
        # Checked here for its depth, which the parser of the tokenizers library does not bound.
        parse_json(definition)
        return definition
    except (OSError, ValueError) as error:
        raise unreadable_definition(str(folder), error) from None


def unreadable_definition(display_name: str, error: Exception) -> UserError:
    """Return the error for a tokenizer.json that cannot be parsed."""
    return UserError(
        f"{display_name}: tokenizer.json cannot be read: {error}; make the folder again"
    )


def read_companion(path: Path) -> bytes:
    """Return the bytes of another file of a tokenizer folder."""
    try:
        return read_bounded_bytes(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; make the folder again") from None


def read_config(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, over the special_tokens_map.json of older folders."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= read_json_object(folder / name, remedy="make the folder again")
    return config


def convert_vocab_txt(folder: Path) -> str:
    """Return the tokenizer.json of a folder that has only a vocab.txt."""
    from transformers import AutoTokenizer, BertTokenizer

    loader = BertTokenizer
    if (folder / "tokenizer_config.json").is_file():
        loader = AutoTokenizer
    try:
        # Never run code from the folder: without a value transformers asks at the terminal.
        with refuse_panics(str(folder)):
            tokenizer = loader.from_pretrained(
                str(folder), trust_remote_code=False, local_files_only=True
            )
        return str(tokenizer.backend_tokenizer.to_str())
    except UserError:
        raise
    except Exception as error:  # transformers raises many types
        raise UserError(f"{folder}: transformers cannot load this tokenizer: {error}") from None
