from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra import files
from electra.config import UserError
from electra.data import sharding
from electra.data.dataset import MemmapDataset
from electra.data.options import ShardOptions
from electra.data.records import checksum_file, read_record, write_record
from electra.data.sharding import shard
from electra.data.shards import Shards
from electra.data.wordpiece import WordPiece
from tests.wording import wording_of

wording = wording_of(__file__)


@pytest.fixture
def folder(
    text: Path, tokenizer: WordPiece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setattr(sharding, "BLOCK_CHARACTERS", 20_000)
    for part in (1, 2):
        shard(
            [text],
            tokenizer=tokenizer,
            output_dir=tmp_path / "shards",
            options=ShardOptions(length=32, part=f"{part}/2", workers=1),
            shard_bytes=20_000,
            report=lambda _: None,
        )
    return tmp_path / "shards"


def test_rows_are_numbered_through_files_and_come_in_the_order_asked_for(tmp_path: Path) -> None:
    files = []
    for number, rows in enumerate((3, 1, 4)):
        path = tmp_path / f"train-{number:05}.ids.npy"
        np.save(path, np.arange(rows * 2, dtype=np.uint16).reshape(rows, 2) + 100 * number)
        np.save(
            tmp_path / f"train-{number:05}.ends.npy", np.full((rows, 2), number, dtype=np.uint16)
        )
        files.append((path, rows))
    rows = MemmapDataset(files)
    ids, ends = rows.take(np.array([7, 0, 3, 0, 4]))
    assert len(rows) == 8
    assert ids.tolist() == [[206, 207], [0, 1], [100, 101], [0, 1], [200, 201]]
    assert (
        ends[:, 0].tolist()
        == rows.ends(np.array([7, 0, 3, 0, 4]))[:, 0].tolist()
        == [2, 0, 1, 0, 2]
    )
    with pytest.raises(
        IndexError, match=wording("rows_are_numbered_through_files_and_come_in_the_order_asked_for")
    ):
        rows.take(np.array([0, 8]))


def test_shards_carry_the_tokenizer_that_cut_them(folder: Path, tokenizer: WordPiece) -> None:
    shards = Shards.open(folder)
    assert shards.tokenizer.fingerprint == tokenizer.fingerprint == shards.manifest.tokenizer
    assert shards.length == 32
    shards.verify()


def test_a_missing_part_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "part-00002-of-00002")
    with pytest.raises(
        UserError,
        match=wording("a_missing_part_is_named"),
    ):
        Shards.open(folder)


def test_parts_cut_with_other_settings_are_refused(folder: Path) -> None:
    path = folder / "part-00002-of-00002" / "manifest.json"
    manifest = read_record(path, remedy="")
    manifest["settings"]["seed"] = 1
    write_record(path, manifest)
    with pytest.raises(
        UserError,
        match=wording("parts_cut_with_other_settings_are_refused"),
    ):
        Shards.open(folder)


def test_a_file_cut_short_is_found_on_opening_and_a_changed_byte_by_verifying(folder: Path) -> None:
    path = folder / "part-00001-of-00002" / "train-00000.ids.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        UserError,
        match=wording("a_file_cut_short_is_found_on_opening_and_a_changed_byte_by_verifying"),
    ):
        Shards.open(folder).verify()
    path.write_bytes(content[:-1])
    with pytest.raises(
        UserError,
        match=wording("a_file_cut_short_is_found_on_opening_and_a_changed_byte_by_verifying_2"),
    ):
        Shards.open(folder)
    path.unlink()
    with pytest.raises(
        UserError,
        match=wording("a_file_cut_short_is_found_on_opening_and_a_changed_byte_by_verifying_3"),
    ):
        Shards.open(folder)


def test_a_tokenizer_that_was_changed_or_is_gone_is_found_by_verifying(folder: Path) -> None:
    tokenizer_folder = folder / "part-00002-of-00002" / "tokenizer"
    text = (tokenizer_folder / "tokenizer.json").read_text(encoding="utf8")
    (tokenizer_folder / "tokenizer.json").write_text(
        text.replace('"lowercase":true', '"lowercase":false').replace(
            '"lowercase": true', '"lowercase": false'
        ),
        encoding="utf8",
    )
    with pytest.raises(
        UserError, match=wording("a_tokenizer_that_was_changed_or_is_gone_is_found_by_verifying")
    ):
        Shards.open(folder).verify()
    shutil.rmtree(tokenizer_folder)
    with pytest.raises(
        UserError, match=wording("a_tokenizer_that_was_changed_or_is_gone_is_found_by_verifying_2")
    ):
        Shards.open(folder).verify()


def test_processes_that_share_the_checking_check_every_file(folder: Path) -> None:
    shards = Shards.open(folder)
    for path in sorted(folder.rglob("*.npy")):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        damaged = []
        for rank in range(3):
            try:
                shards.verify(first=rank, every=3)
            except UserError as error:
                damaged.append(str(error).partition(":")[0])
        assert damaged == [str(path)]
        path.write_bytes(content)


def test_a_folder_without_shards_says_what_to_run(tmp_path: Path) -> None:
    for folder, found in ((tmp_path / "nowhere", "no such folder"), (tmp_path, "no shards")):
        with pytest.raises(UserError, match=f"{found}; run `electra shard CORPUS"):
            Shards.open(folder)
    (tmp_path / "progress.json").touch()
    with pytest.raises(UserError, match=wording("a_folder_without_shards_says_what_to_run")):
        Shards.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=wording("a_folder_without_shards_says_what_to_run_2")):
        Shards.open(tmp_path)


def test_a_format_of_another_version_is_refused(folder: Path) -> None:
    path = folder / "part-00001-of-00002" / "manifest.json"
    manifest = read_record(path, remedy="")
    manifest["settings"]["layout"] = "several examples per row"
    write_record(path, manifest)
    with pytest.raises(UserError, match=wording("a_format_of_another_version_is_refused")):
        Shards.open(folder)


def test_missing_token_counts_are_found_on_opening(folder: Path) -> None:
    (folder / "part-00001-of-00002" / "counts.npy").unlink()
    with pytest.raises(UserError, match=wording("missing_token_counts_are_found_on_opening")):
        Shards.open(folder)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("rows", -1000),
        ("rows", 100_000),
        ("held_out_rows", 1),
        ("tokens", 1),
        ("tokens", -(10**9)),
        ("vocab_size", 1),
        ("files.0.rows", -1),
        ("files.0.rows", 100_000),
        ("files.1.rows", -1),
        ("files.0.bytes", 2),
        ("settings.length", 1),
    ],
)
def test_a_number_of_the_manifest_that_its_files_contradict_is_refused(
    text: Path, tokenizer: WordPiece, tmp_path: Path, key: str, change: int
) -> None:
    shard([text], tokenizer=tokenizer, output_dir=tmp_path, report=lambda _: None)
    manifest = read_record(tmp_path / "manifest.json", remedy="")
    section: Any = manifest
    *path, name = (int(part) if part.isdecimal() else part for part in key.split("."))
    for part in path:
        section = section[part]
    section[name] += change
    write_record(tmp_path / "manifest.json", manifest)
    with pytest.raises(UserError):
        Shards.open(tmp_path).verify()
    if key != "tokens":
        with pytest.raises(UserError):
            _ = Shards.open(tmp_path).tokenizer


def test_numbers_beyond_the_vocabulary_or_the_row_are_found_by_verifying(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    shard([text], tokenizer=tokenizer, output_dir=tmp_path, report=lambda _: None)
    for name, value in (("train-00000.ids.npy", tokenizer.size), ("train-00000.ends.npy", 500)):
        content = (tmp_path / name).read_bytes()
        array = np.load(tmp_path / name)
        array[3, 1] = value
        np.save(tmp_path / name, array)
        manifest = read_record(tmp_path / "manifest.json", remedy="")
        for file in manifest["files"]:
            file["sha256"] = checksum_file(tmp_path / file["name"])
        write_record(tmp_path / "manifest.json", manifest)
        with pytest.raises(UserError, match=wording("numbers_beyond_the_vocabulary_or_the_row")):
            Shards.open(tmp_path).verify()
        (tmp_path / name).write_bytes(content)


def read_batches(folder: Path) -> list[bytes]:
    """The tokenizer and all rows of a folder, as pre-training reads them."""
    shards = Shards.open(folder)
    shards.verify()
    rows = [shards.tokenizer.definition.encode(), shards.counts.tobytes()]
    for dataset in (shards.train, shards.held_out):
        rows += [array.tobytes() for array in dataset.take(np.arange(len(dataset)))]
    return rows


@pytest.mark.parametrize("stride", [131, pytest.param(13, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_any_file_is_found_or_without_effect(
    tokenizer: WordPiece, tmp_path: Path, stride: int
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the old bridge\n\nthe new water\n\nof stone\n", encoding="utf8")
    folder = tmp_path / "shards"
    options = ShardOptions(length=8, held_out=0.3)
    shard([corpus], tokenizer=tokenizer, output_dir=folder, options=options, report=lambda _: None)
    expected = read_batches(folder)
    found = 0
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        content = path.read_bytes()
        for offset in range(0, len(content), stride):
            damaged = bytearray(content)
            damaged[offset] ^= 1 << offset % 8
            path.write_bytes(damaged)
            try:
                assert read_batches(folder) == expected, (path.name, offset)
            except UserError:
                found += 1
        path.write_bytes(content)
    assert found > 50
    assert read_batches(folder) == expected


def test_a_list_of_files_longer_than_a_json_file_may_be_is_read_back(
    text: Path, tokenizer: WordPiece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(500):
        (corpus / f"{number:03}.txt").write_text("the old bridge\n", encoding="utf8")
    shard([corpus], tokenizer=tokenizer, output_dir=tmp_path / "rows", report=lambda _: None)
    monkeypatch.setattr(files, "MAX_BYTES", 20_000)
    manifest = Shards.open(tmp_path / "rows").manifest
    assert [file["name"] for file in manifest.settings.inputs][::499] == ["000.txt", "499.txt"]
    assert (tmp_path / "rows" / "inputs.jsonl").stat().st_size > files.MAX_BYTES


def test_a_manifest_of_an_earlier_version_is_read(folder: Path) -> None:
    expected = Shards.open(folder)
    for path in folder.glob("*/manifest.json"):
        manifest = read_record(path, remedy="")
        lines = (path.parent / "inputs.jsonl").read_text(encoding="utf8").splitlines()
        manifest["settings"]["inputs"] = [json.loads(line) for line in lines]
        del manifest["settings"]["document"], manifest["tokenizer_files"]
        path.write_text(json.dumps(manifest), encoding="utf8")
        (path.parent / "inputs.jsonl").unlink()
    shards = Shards.open(folder)
    shards.verify()
    assert shards.manifest.settings == expected.manifest.settings
    assert shards.fingerprint == expected.fingerprint
