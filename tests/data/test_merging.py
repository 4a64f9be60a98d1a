from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.data import corpus, sharding
from electra.data.manifest import Manifest
from electra.data.merging import merge
from electra.data.options import ShardOptions
from electra.data.parts import assign_files
from electra.data.records import read_record, write_record
from electra.data.sharding import shard
from electra.data.shards import Shards
from electra.data.sources import Source, resolve
from electra.data.wordpiece import WordPiece
from tests.data.conftest import prose
from tests.data.test_sharding import examples
from tests.wording import wording_of

wording = wording_of(__file__)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "BLOCK_CHARACTERS", 5_000)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven files of very different sizes."""
    folder = tmp_path_factory.mktemp("texts")
    for number, documents in enumerate((1, 60, 2, 30, 15, 4, 40)):
        (folder / f"{number}.txt").write_text(prose(documents, seed=number), encoding="utf8")
    return folder


def pack(
    texts: Path, tokenizer: WordPiece, folder: Path, *parts: int, of: int = 1, **options: object
) -> None:
    options = {"length": 32, "held_out": 0.05, "workers": 1} | options
    for part in parts or range(1, of + 1):
        shard(
            [texts],
            tokenizer=tokenizer,
            output_dir=folder,
            options=ShardOptions(part=f"{part}/{of}", **options),  # type: ignore[arg-type]
            shard_bytes=20_000,
            report=lambda _: None,
        )


# ---- merging -------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_file", [False, True])
def test_merged_parts_hold_what_the_parts_hold_in_the_same_order(
    texts: Path, tokenizer: WordPiece, tmp_path: Path, by_file: bool
) -> None:
    pack(texts, tokenizer, tmp_path, of=3, by_file=by_file)
    before = Shards.open(tmp_path)
    manifest = merge(tmp_path, report=lambda _: None)
    after = Shards.open(tmp_path)
    assert list(after.parts) == [tmp_path]
    assert after.manifest == manifest == Manifest.read(tmp_path / "manifest.json")
    assert after.fingerprint == before.fingerprint  # a run that has begun continues
    for ours, theirs in ((after.train, before.train), (after.held_out, before.held_out)):
        every = np.arange(len(theirs))
        assert len(ours) == len(theirs) > 0
        np.testing.assert_array_equal(ours.take(every)[0], theirs.take(every)[0])
    np.testing.assert_array_equal(after.counts, before.counts)
    assert after.tokenizer.fingerprint == tokenizer.fingerprint
    assert (manifest.documents, len(manifest.settings.inputs)) == (152, 7)
    assert all("sha256_of_blocks" in file for file in manifest.settings.inputs)


def test_a_merger_may_be_asked_for_again_and_of_undivided_shards(
    texts: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    pack(texts, tokenizer, tmp_path / "parts", of=2)
    assert merge(tmp_path / "parts") == merge(tmp_path / "parts")
    pack(texts, tokenizer, tmp_path / "whole")
    assert merge(tmp_path / "whole") == Manifest.read(tmp_path / "whole" / "manifest.json")


def test_a_damaged_missing_or_strange_part_is_named_and_nothing_vouches_for_it(
    texts: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    pack(texts, tokenizer, tmp_path, of=3)
    merge(tmp_path)
    second = tmp_path / "part-00002-of-00003"
    rows = second / "train-00000.ids.npy"
    content = rows.read_bytes()
    rows.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(
        UserError,
        match=wording("a_damaged_missing_or_strange_part_is_named_and_nothing_vouches_for_it"),
    ):
        merge(tmp_path)
    assert not (tmp_path / "manifest.json").exists()
    shutil.rmtree(second)
    with pytest.raises(
        UserError,
        match=wording("a_damaged_missing_or_strange_part_is_named_and_nothing_vouches_for_it_2"),
    ):
        merge(tmp_path)
    pack(texts, tokenizer, tmp_path, 2, of=3, seed=7, length=64, overwrite=True)
    with pytest.raises(
        UserError,
        match=wording("a_damaged_missing_or_strange_part_is_named_and_nothing_vouches_for_it_3"),
    ):
        merge(tmp_path)
    pack(texts, tokenizer, tmp_path, 2, of=3, overwrite=True)
    merge(tmp_path)


def test_parts_of_another_corpus_or_tokenizer_are_refused(
    texts: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    changed = Path(shutil.copytree(texts, tmp_path / "changed"))
    (changed / "3.txt").write_text(prose(29, seed=3), encoding="utf8")
    pack(texts, tokenizer, tmp_path / "parts", 1, of=2, by_file=True)
    pack(changed, tokenizer, tmp_path / "parts", 2, of=2, by_file=True)
    with pytest.raises(
        UserError, match=wording("parts_of_another_corpus_or_tokenizer_are_refused")
    ):
        merge(tmp_path / "parts")
    pack(texts, tokenizer, tmp_path / "parts", 2, of=2, by_file=True, overwrite=True)
    path = tmp_path / "parts" / "part-00002-of-00002" / "manifest.json"
    manifest = read_record(path, remedy="")
    manifest["settings"]["tokenizer"] = "another"
    write_record(path, manifest)
    with pytest.raises(
        UserError, match=wording("parts_of_another_corpus_or_tokenizer_are_refused_2")
    ):
        merge(tmp_path / "parts")


def test_a_part_made_anew_withdraws_the_merger_and_a_finished_one_leaves_it(
    texts: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    pack(texts, tokenizer, tmp_path, of=2)
    merge(tmp_path)
    pack(texts, tokenizer, tmp_path, 1, of=2)
    assert (tmp_path / "manifest.json").is_file()
    pack(texts, tokenizer, tmp_path, 1, of=2, overwrite=True)
    assert not (tmp_path / "manifest.json").exists()


def test_a_manifest_cannot_name_files_outside_its_folder(
    texts: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    pack(texts, tokenizer, tmp_path)
    manifest = read_record(tmp_path / "manifest.json", remedy="")
    for name in ("../train-00000.ids.npy", "/etc/passwd", "part-1-of-2/../../x"):
        manifest["files"][0]["name"] = name
        write_record(tmp_path / "manifest.json", manifest)
        with pytest.raises(
            UserError, match=wording("a_manifest_cannot_name_files_outside_its_folder")
        ):
            Shards.open(tmp_path)


def test_the_command_line_cuts_by_file_merges_and_verifies(
    texts: Path, tokenizer: WordPiece, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer.copy_to(tmp_path / "vocabulary")
    argv = [
        "shard",
        str(texts),
        "--tokenizer",
        str(tmp_path / "vocabulary"),
        "--by-file",
        "--length",
        "32",
    ]
    for part in ("1/2", "2/2"):
        assert main([*argv, "--output-dir", str(tmp_path / "shards"), "--part", part]) == 0
    assert main(["shard", "--merge", "--output-dir", str(tmp_path / "shards")]) == 0
    assert "every file as it was written; one manifest" in capsys.readouterr().out
    assert main(["shard", "--verify", "--output-dir", str(tmp_path / "shards")]) == 0
    assert main(["shard", "--merge", "--output-dir", str(tmp_path / "nowhere")]) == 2
    assert main(["shard", "--merge", "--verify", "--output-dir", str(tmp_path / "shards")]) == 2


# ---- by file -------------------------------------------------------------------------------------


def test_by_file_any_number_of_parts_gives_the_same_rows(
    texts: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    for parts in (1, 2, 7):
        pack(texts, tokenizer, tmp_path / str(parts), of=parts, by_file=True)
    whole = examples(tmp_path / "1")
    assert whole[0]
    assert whole[1]
    assert examples(tmp_path / "2") == examples(tmp_path / "7") == whole


def test_by_file_a_part_opens_its_assign_files_alone(
    texts: Path, tokenizer: WordPiece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read = corpus.read_source

    def watched(source: Source, **options: object) -> object:
        opened.append(source.name)
        return read(source, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus, "read_source", watched)
    pack(texts, tokenizer, tmp_path, of=3, by_file=True)
    assert sorted(opened) == sorted(path.name for path in texts.iterdir())


def test_files_are_dealt_by_size_and_each_to_one_part(texts: Path) -> None:
    sources = resolve([texts])
    dealt = [assign_files(sources, (part, 2)) for part in (1, 2)]
    assert sorted(index for own in dealt for index in own) == list(range(7))
    one, two = (sum(source.size for source in own.values()) for own in dealt)
    assert max(one, two) < 1.2 * min(one, two)


def test_one_file_by_file_gives_the_rows_it_gives_without(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    for by_file in (False, True):
        pack(text, tokenizer, tmp_path / str(by_file), by_file=by_file)
    assert examples(tmp_path / "True") == examples(tmp_path / "False")


def test_by_file_an_empty_file_is_an_empty_part_and_too_few_files_are_refused(
    tokenizer: WordPiece, tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text(prose(40), encoding="utf8")
    (texts / "b.txt").write_text("\n", encoding="utf8")
    pack(texts, tokenizer, tmp_path / "shards", of=2, by_file=True)
    assert merge(tmp_path / "shards").documents == 40
    with pytest.raises(
        UserError,
        match=wording("by_file_an_empty_file_is_an_empty_part_and_too_few_files_are_refused"),
    ):
        pack(texts, tokenizer, tmp_path / "more", of=3, by_file=True)


def test_a_part_interrupted_by_an_earlier_version_goes_on(
    texts: Path, tokenizer: WordPiece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sharding.ShardWriter, "finish", None)
        with pytest.raises(TypeError):
            pack(texts, tokenizer, tmp_path / "begun")
    progress = tmp_path / "begun" / "progress.json"
    saved = read_record(progress, remedy="")
    del saved["settings"]["by_file"], saved["settings"]["document"]
    progress.write_text(json.dumps(saved), encoding="utf8")
    pack(texts, tokenizer, tmp_path / "begun")
    assert Shards.open(tmp_path / "begun").manifest.documents == 152
