"""Find the train, dev and test files in a folder, or the splits of a data set on the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from electra.config import UserError
from electra.data.tables import Table, find_table, is_hub_name
from electra.tasks.task import Files

Splits = dict[str, tuple[Table, ...]]

STEMS = {"train": ("train",), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}
HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
MAX_LISTED = 8


def locate_files(data: str) -> Files:
    """Return the files of `--data` by their usual names."""
    return files_of(find_splits(data))


def files_of(splits: Splits) -> Files:
    """Return splits as files; dev and test are of one part, if they exist."""
    train = splits.get("train", ())
    return Files(train=train, dev=one_part(splits, "dev"), test=one_part(splits, "test"))


def one_part(splits: Splits, name: str) -> Splits:
    if name not in splits:
        return {}
    return {name: splits[name]}


def find_splits(
    data: str,
    *,
    stems: Mapping[str, Sequence[str]] = STEMS,
    hub_splits: Mapping[str, str] = HUB_SPLITS,
) -> Splits:
    """Return the tables of each split that exists; `stems` are the names its files may have."""
    if is_hub_name(data):
        dataset = find_table(data)
        return {name: (replace(dataset, split=split),) for name, split in hub_splits.items()}
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"{data}: no such folder, nor a data set on the hub; single files are named with "
            "--train and --dev"
        )
    splits = {name: files for name in stems if (files := split_files(folder, stems[name]))}
    if not splits:
        expected = "; ".join(f"{name}: {' or '.join(stems[name])}" for name in stems)
        raise UserError(
            f"{folder}: no file has the name of a split ({expected}; then .txt, .jsonl, …); "
            f"it holds {list_folder(folder)}"
        )
    return splits


def split_files(folder: Path, stems: Sequence[str]) -> tuple[Table, ...]:
    """Return the files of the first stem that has some.

    They are train.txt, or all of train-00000-of-00002.parquet and its like.
    """
    for stem in stems:
        pattern = re.compile(re.escape(stem) + r"(?P<part>-\d+-of-\d+)?(\.\w+){0,2}")
        matches: dict[Path, re.Match[str]] = {}
        for path in sorted(folder.iterdir()):
            match = pattern.fullmatch(path.name)
            if match and path.is_file():
                matches[path] = match
        if len(matches) > 1 and not all(match["part"] for match in matches.values()):
            first, second, *_ = matches
            raise UserError(
                f"{folder}: {first.name} and {second.name} could both be its {stem} data; move "
                "one away, or name files with --train and --dev"
            )
        if matches:
            return tuple(find_table(path) for path in matches)
    return ()


def list_folder(folder: Path) -> str:
    """Format the names of the first files in a folder, for a message."""
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:MAX_LISTED]) or "nothing"
