from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from electra.config import UserError
from electra.data import sharding
from electra.data.dataset import MemmapDataset
from electra.data.options import ShardOptions
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
    manifest = json.loads(path.read_text(encoding="utf8"))
    manifest["settings"]["seed"] = 1
    path.write_text(json.dumps(manifest), encoding="utf8")
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
    path.write_text(
        path.read_text(encoding="utf8").replace("one example per row", "several examples per row")
    )
    with pytest.raises(UserError, match=wording("a_format_of_another_version_is_refused")):
        Shards.open(folder)


def test_missing_token_counts_are_found_on_opening(folder: Path) -> None:
    (folder / "part-00001-of-00002" / "counts.npy").unlink()
    with pytest.raises(UserError, match=wording("missing_token_counts_are_found_on_opening")):
        Shards.open(folder)
