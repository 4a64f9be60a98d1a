"""The manifest of a folder of shards: what the folder holds and how it was made."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra.config import SettingError, UserError, build
from electra.files import parse_json, read_bounded_text

FORMAT = 1
LAYOUT = "one example per row"
MANIFEST, PROGRESS, COUNTS, TOKENIZER = "manifest.json", "progress.json", "counts.npy", "tokenizer"
PART = re.compile(r"part-(\d+)-of-(\d+)")
BELOW = re.compile(
    r"(part-\d+-of-\d+/)?[\w.-]+\.npy"
)  # names of a manifest's files: none leaves the folder


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile:
    """One file of rows' ids or ends, as it must be found."""

    name: str  # below the manifest's folder; after a merger with its part's in front
    rows: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if not BELOW.fullmatch(self.name) or self.rows < 0:
            raise SettingError("name", "with {rows} is not a file of this folder with rows", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSettings:
    """Everything that decides which bytes are written."""

    length: int
    seed: int
    held_out: float
    part: int
    parts: int
    shard_bytes: int
    text_field: str
    tokenizer: str  # its fingerprint
    inputs: list[
        dict[str, Any]
    ]  # name, size and fingerprint of each file; by file, the last of those it read alone
    by_file: bool = False  # documents are numbered within their file, not through the corpus
    layout: str = LAYOUT
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a folder of shards holds and how it was made."""

    settings: ShardSettings
    vocab_size: int
    documents: int
    held_out_documents: int
    rows: int
    held_out_rows: int
    tokens: int  # in the rows to train on, [CLS] and [SEP] included, padding not
    fill: float  # share of those rows that is not padding
    unknown: float  # share of their text that is [UNK]
    long_words: int
    files: list[ShardFile] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.settings.length

    @property
    def tokenizer(self) -> str:
        return self.settings.tokenizer

    @property
    def is_merged(self) -> bool:
        """Whether it stands for parts, in folders of their own."""
        return any("/" in file.name for file in self.files)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        try:
            values = parse_json(read_bounded_text(path))
            if values["settings"]["format"] != FORMAT or values["settings"]["layout"] != LAYOUT:
                raise UserError(
                    f"{path}: format {values['settings']['format']} "
                    f"({values['settings']['layout']}), but "
                    f"this version reads format {FORMAT} ({LAYOUT}); run `electra shard` again"
                )
            return build(cls, values, source=str(path))
        except UserError:
            raise
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{path}: not a manifest of shards ({error}); run `electra shard` again with "
                "--overwrite"
            ) from None


def part_name(part: int, parts: int) -> str:
    return f"part-{part:05}-of-{parts:05}"


def shard_command(file: Path) -> str:
    """The command that makes a file anew: in a part's folder, that part alone."""
    if part := PART.fullmatch(file.parent.name):
        return f"`electra shard … --part {int(part[1])}/{int(part[2])} --overwrite`"
    return "`electra shard` again with --overwrite"


def merge_manifests(manifests: list[Manifest]) -> Manifest:
    """One manifest for all parts: counts added up, shares weighed by the rows they are shares of."""
    if len(manifests) == 1:
        return manifests[0]
    added = {
        name: sum(getattr(m, name) for m in manifests)
        for name in (
            "documents",
            "held_out_documents",
            "rows",
            "held_out_rows",
            "tokens",
            "long_words",
        )
    }
    unknown = sum(m.unknown * m.tokens for m in manifests) / max(1, added["tokens"])
    fill = added["tokens"] / max(1, added["rows"] * manifests[0].length)
    # By file, the part that read a file knows most of it.
    inputs = [
        max(told, key=len) for told in zip(*(m.settings.inputs for m in manifests), strict=True)
    ]
    settings = dataclasses.replace(manifests[0].settings, part=1, parts=1, inputs=inputs)
    return dataclasses.replace(
        manifests[0],
        **added,
        unknown=round(unknown, 6),
        fill=round(fill, 4),
        files=[],
        settings=settings,
        warnings=list(dict.fromkeys(w for m in manifests for w in m.warnings)),
    )
