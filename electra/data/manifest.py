"""The manifest of a folder of shards: what the folder holds and how it was made."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra.config import SettingError, UserError, build
from electra.data.records import read_inputs, read_record, write_inputs, write_record
from electra.data.sources import DocumentUnit

FORMAT = 1
LAYOUT = "one example per row"
SHARD_AGAIN = "run `electra shard` again with --overwrite"
MANIFEST, PROGRESS, COUNTS, TOKENIZER = "manifest.json", "progress.json", "counts.npy", "tokenizer"
# The fields of a manifest that are added up over parts.
COUNT_FIELDS = (
    "documents",
    "held_out_documents",
    "rows",
    "held_out_rows",
    "tokens",
    "long_words",
)
PART = re.compile(r"part-(\d+)-of-(\d+)")
# Names of a manifest's files: none leaves the folder.
FILE_NAME = re.compile(r"(part-\d+-of-\d+/)?[\w.-]+\.npy")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile:
    """One file of ids or ends, with its size and checksum."""

    name: str  # relative to the manifest's folder; after a merge it starts with the part's folder
    rows: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if not FILE_NAME.fullmatch(self.name) or self.rows < 0:
            raise SettingError("name", "with {rows} is not a file of this folder with rows", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSettings:
    """The settings that decide which bytes are written."""

    length: int
    seed: int
    held_out: float
    part: int
    parts: int
    shard_bytes: int
    text_field: str
    tokenizer: str  # its fingerprint
    # Name, size and content hash of each file; with by_file, the hash only of files that were read.
    inputs: list[dict[str, Any]]
    by_file: bool = False  # documents are numbered within their file, not through the corpus
    document: DocumentUnit = "blank-line"
    layout: str = LAYOUT
    format: int = FORMAT

    @property
    def reads_some_files(self) -> bool:
        """Whether this part reads its own files alone, which may hold no text."""
        return self.by_file and self.parts > 1

    def to_values(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the settings as plain data, with a reference to the list of their inputs."""
        return dataclasses.asdict(dataclasses.replace(self, inputs=[])) | {"inputs": inputs}


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
    # Checksum of each file in the tokenizer folder; none in shards of earlier versions.
    tokenizer_files: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("vocab_size", *COUNT_FIELDS):
            if getattr(self, name) < 0:
                raise SettingError(name, "must not be negative", self)
        if not self.unknown <= 1 or not self.tokens <= self.rows * self.length:
            raise SettingError(
                "tokens", "with {rows} and {unknown} is more than the rows hold", self
            )

    @property
    def length(self) -> int:
        return self.settings.length

    @property
    def tokenizer(self) -> str:
        return self.settings.tokenizer

    @property
    def is_merged(self) -> bool:
        """Return whether the manifest covers parts in folders of their own."""
        return any("/" in file.name for file in self.files)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read and check a manifest file."""
        values = read_record(path, remedy=SHARD_AGAIN)
        try:
            form, layout = values["settings"]["format"], values["settings"]["layout"]
            if (form, layout) != (FORMAT, LAYOUT):
                raise UserError(
                    f"{path}: format {form} ({layout}), but this version reads format {FORMAT} "
                    f"({LAYOUT}); run `electra shard` again"
                )
            inputs = values["settings"]["inputs"]
            if not isinstance(inputs, dict):  # as earlier versions wrote them
                return build(cls, values, source=str(path))
            values["settings"]["inputs"] = []
            manifest = build(cls, values, source=str(path))
            files = read_inputs(path.parent, inputs, remedy=SHARD_AGAIN)
            settings = dataclasses.replace(manifest.settings, inputs=files)
            return dataclasses.replace(manifest, settings=settings)
        except UserError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: not a manifest of shards ({error}); {SHARD_AGAIN}") from None

    def write(self, folder: Path) -> None:
        """Write the manifest of a folder, and first the list of its inputs."""
        settings = self.settings.to_values(write_inputs(folder, self.settings.inputs))
        bare = dataclasses.replace(self, settings=dataclasses.replace(self.settings, inputs=[]))
        write_record(folder / MANIFEST, dataclasses.asdict(bare) | {"settings": settings})


def part_name(part: int, parts: int) -> str:
    """Return the name of a part's folder."""
    return f"part-{part:05}-of-{parts:05}"


def shard_command(file: Path) -> str:
    """Return the command that writes a file again: in a part's folder, for that part alone."""
    if part := PART.fullmatch(file.parent.name):
        return f"`electra shard … --part {int(part[1])}/{int(part[2])} --overwrite`"
    return "`electra shard` again with --overwrite"


def merge_manifests(manifests: list[Manifest]) -> Manifest:
    """Return one manifest for all parts: counts are added, shares are averaged over the rows."""
    if len(manifests) == 1:
        return manifests[0]
    sums = {name: sum(getattr(manifest, name) for manifest in manifests) for name in COUNT_FIELDS}
    unknown_tokens = sum(manifest.unknown * manifest.tokens for manifest in manifests)
    unknown = unknown_tokens / max(1, sums["tokens"])
    fill = sums["tokens"] / max(1, sums["rows"] * manifests[0].length)
    warnings: dict[str, None] = {}
    for manifest in manifests:
        warnings |= dict.fromkeys(manifest.warnings)
    # With by_file, the part that read a file has the most keys for it.
    inputs_by_file = zip(*(manifest.settings.inputs for manifest in manifests), strict=True)
    inputs = [max(identities, key=len) for identities in inputs_by_file]
    settings = dataclasses.replace(manifests[0].settings, part=1, parts=1, inputs=inputs)
    return dataclasses.replace(
        manifests[0],
        **sums,
        unknown=round(unknown, 6),
        fill=round(fill, 4),
        files=[],
        settings=settings,
        warnings=list(warnings),
    )
