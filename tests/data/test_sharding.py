from __future__ import annotations

import hashlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from electra import atomic
from electra.config import UserError
from electra.data import sharding
from electra.data.manifest import Manifest
from electra.data.options import ShardOptions
from electra.data.shard_writer import ShardWriter
from electra.data.sharding import shard
from electra.data.shards import Shards
from electra.data.sources import resolve
from electra.data.vocabulary import train_wordpiece
from electra.data.wordpiece import WordPiece
from tests.wording import wording_of

wording = wording_of(__file__)

SMALL = 20_000  # bytes of rows in a shard, so that a small corpus makes several


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "BLOCK_CHARACTERS", 5_000)


def pack(text: Path, tokenizer: WordPiece, folder: Path, **options: object) -> Manifest:
    report = options.pop("report", lambda _: None)
    options = {"length": 32, "held_out": 0.05, "workers": 1} | options
    return shard(
        [text],
        tokenizer=tokenizer,
        output_dir=folder,
        options=ShardOptions(**options),  # type: ignore[arg-type]
        shard_bytes=SMALL,
        report=report,  # type: ignore[arg-type]
    )


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def examples(folder: Path) -> tuple[list[bytes], list[bytes]]:
    shards = Shards.open(folder)
    train, held_out = (
        sorted(row.tobytes() for row in np.concatenate(rows.take(np.arange(len(rows))), axis=1))
        for rows in (shards.train, shards.held_out)
    )
    return train, held_out


def test_shards_of_another_text_are_found_also_where_only_some_are_cut(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    options, sources = ShardOptions(length=32, held_out=0.05), resolve([text])
    sharding.check_earlier(tmp_path, sources, tokenizer, options)
    settings = sharding.shard_settings(
        options, sharding.SHARD_BYTES, tokenizer, sources, dict(enumerate(sources))
    )
    ShardWriter.open(tmp_path, settings, tokenizer)
    assert (tmp_path / "progress.json").is_file()
    sharding.check_earlier(tmp_path, sources, tokenizer, options)
    (tmp_path / "other.txt").write_text("another text\n", encoding="utf8")
    other = resolve([tmp_path / "other.txt"])
    with pytest.raises(UserError, match="other settings: the text is another"):
        sharding.check_earlier(tmp_path, other, tokenizer, options)


def test_one_and_two_workers_write_the_same_bytes(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    pack(text, tokenizer, tmp_path / "one")
    pack(text, tokenizer, tmp_path / "two", workers=2)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert len(list((tmp_path / "one").glob("train-*.ids.npy"))) > 3


def test_the_parts_together_hold_what_one_run_holds(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    whole = pack(text, tokenizer, tmp_path / "whole")
    for part in (1, 2, 3):
        pack(text, tokenizer, tmp_path / "parts", part=f"{part}/3")
    assert examples(tmp_path / "parts") == examples(tmp_path / "whole")
    parts = Shards.open(tmp_path / "parts")
    np.testing.assert_array_equal(parts.counts, Shards.open(tmp_path / "whole").counts)
    for name in ("documents", "held_out_documents", "rows", "held_out_rows", "tokens", "fill"):
        assert getattr(parts.manifest, name) == getattr(whole, name)


def test_a_killed_run_goes_on_and_writes_the_same_bytes(
    text: Path, tokenizer: WordPiece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(text, tokenizer, tmp_path / "unbroken")
    for files in (1, 6, 5):
        remaining = files

        def write(path: Path, content: bytes, write=atomic.write) -> None:
            nonlocal remaining
            remaining -= path.suffix == ".npy"
            if remaining < 0:
                raise KeyboardInterrupt
            write(path, content)

        with monkeypatch.context() as patched:
            patched.setattr(atomic, "write", write)
            with pytest.raises(KeyboardInterrupt):
                pack(text, tokenizer, tmp_path / "broken")
    written = {
        path.name: path.stat().st_mtime_ns
        for path in (tmp_path / "broken").glob("train-0000[01].ids.npy")
    }
    pack(text, tokenizer, tmp_path / "broken")
    assert digests(tmp_path / "broken") == digests(tmp_path / "unbroken")
    assert written
    assert all(
        (tmp_path / "broken" / name).stat().st_mtime_ns == time for name, time in written.items()
    )


def test_shards_killed_after_their_manifest_are_finished_by_the_same_call(
    text: Path, tokenizer: WordPiece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def fail(path: Path, missing_ok: bool = False) -> None:
        if path.name == "progress.json":
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    pack(text, tokenizer, tmp_path / "unbroken")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail)
        with pytest.raises(KeyboardInterrupt):
            pack(text, tokenizer, tmp_path / "broken")
    pack(text, tokenizer, tmp_path / "broken")
    assert digests(tmp_path / "broken") == digests(tmp_path / "unbroken")


def test_a_run_killed_outright_leaves_no_worker_behind_and_goes_on(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    tokenizer.copy_to(tmp_path / "vocabulary")
    program = f"""
import os, signal
from concurrent.futures import ProcessPoolExecutor
from electra import atomic
from electra.data import sharding, wordpiece
from electra.data.options import ShardOptions
sharding.BLOCK_CHARACTERS = 5_000
def kill(path, content, write=atomic.write):
    write(path, content)
    if path.name == "train-00002.ids.npy":
        print(*(child.pid for child in sharding.multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
atomic.write = kill
sharding.shard([{str(text)!r}],
               tokenizer=wordpiece.WordPiece.load({str(tmp_path / "vocabulary")!r}),
               options=ShardOptions(length=32, held_out=0.05, workers=2),
               output_dir={str(tmp_path / "killed")!r}, shard_bytes={SMALL})
"""
    killed = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=240
    )
    assert killed.returncode == -signal.SIGKILL
    # Reading to the end of the output waited for the workers too: they hold it open as long as they
    # live.
    assert len(killed.stdout.split()) == 2
    assert (tmp_path / "killed" / "progress.json").is_file()
    pack(text, tokenizer, tmp_path / "killed")
    pack(text, tokenizer, tmp_path / "unbroken")
    assert digests(tmp_path / "killed") == digests(tmp_path / "unbroken")


def test_a_finished_run_is_not_done_again(
    text: Path, tokenizer: WordPiece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pack(text, tokenizer, tmp_path)
    monkeypatch.setattr(sharding, "build_in_order", None)
    assert pack(text, tokenizer, tmp_path) == first


def test_other_settings_are_refused_with_what_differs_unless_overwritten(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    pack(text, tokenizer, tmp_path)
    with pytest.raises(
        UserError, match=wording("other_settings_are_refused_with_what_differs_unless_overwritten")
    ):
        pack(text, tokenizer, tmp_path, length=64, seed=7)
    assert pack(text, tokenizer, tmp_path, length=64, overwrite=True).length == 64
    pack(text, tokenizer, tmp_path / "fresh", length=64)
    assert digests(tmp_path / "fresh") == {
        k: v for k, v in digests(tmp_path).items() if not k.startswith("fresh")
    }


def test_a_full_disk_leaves_nothing_torn_and_the_next_run_goes_on(
    text: Path, tokenizer: WordPiece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 12  # files

    def flush(handle: int) -> None:
        nonlocal free
        free -= 1
        if free < 0:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(atomic.os, "fsync", flush)
        with pytest.raises(
            OSError,
            match=wording("a_full_disk_leaves_nothing_torn_and_the_next_run_goes_on"),
        ):
            pack(text, tokenizer, tmp_path / "full")
    assert not list((tmp_path / "full").glob("*.partial"))
    pack(text, tokenizer, tmp_path / "full")
    pack(text, tokenizer, tmp_path / "roomy")
    assert digests(tmp_path / "full") == digests(tmp_path / "roomy")


def test_the_manifest_counts_what_the_rows_hold(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    manifest = pack(text, tokenizer, tmp_path)
    shards = Shards.open(tmp_path)
    ids, ends = shards.train.take(np.arange(len(shards.train)))
    assert manifest.documents == 300
    assert 1 <= manifest.held_out_documents < 40
    assert manifest.rows == len(ids)
    assert manifest.held_out_rows == len(shards.held_out)
    assert manifest.tokens == int(ends[:, 1].sum()) == int((ids != tokenizer.pad).sum())
    assert manifest.fill == round(manifest.tokens / ids.size, 4)
    text_ids = ids[~np.isin(ids, [tokenizer.pad, tokenizer.cls, tokenizer.sep])]
    np.testing.assert_array_equal(shards.counts, np.bincount(text_ids, minlength=tokenizer.size))


def test_a_corpus_of_two_documents_holds_one_out_and_of_one_none(
    tokenizer: WordPiece, tmp_path: Path
) -> None:
    messages: list[str] = []
    for name, content in (("one", "the old bridge"), ("two", "the old bridge\n\nthe new water")):
        path = tmp_path / f"{name}.txt"
        path.write_text(content, encoding="utf8")
        manifest = pack(path, tokenizer, tmp_path / name, held_out=0.001, report=messages.append)
        assert (manifest.rows, manifest.held_out_rows) == ((1, 0) if name == "one" else (1, 1))
    assert messages[0].startswith("nothing is held out, because there is only one document")
    assert messages[1].startswith(
        "50% of the rows are held out, because there are only 2 documents"
    )


def test_an_unknown_script_is_warned_about(tokenizer: WordPiece, tmp_path: Path) -> None:
    path = tmp_path / "greek.txt"
    path.write_text("the ποταμός of γέφυρα\n\n" * 20, encoding="utf8")
    manifest = pack(path, tokenizer, tmp_path / "shards")
    assert manifest.unknown == 0.5
    assert "50.0% of the text is [UNK]" in manifest.warnings[0]


def test_short_documents_are_warned_about_and_joined_by_file(
    tokenizer: WordPiece, tmp_path: Path
) -> None:
    path = tmp_path / "paragraphs.txt"
    path.write_text("the old bridge\n\n" * 200, encoding="utf8")
    short = pack(path, tokenizer, tmp_path / "shards")
    expected = wording("short_documents_are_warned_about")
    assert [warning for warning in short.warnings if re.search(expected, warning)]
    with pytest.raises(UserError, match=wording("short_documents_are_warned_about_2")):
        pack(path, tokenizer, tmp_path / "shards", document="file")
    whole = pack(path, tokenizer, tmp_path / "shards", document="file", overwrite=True)
    assert (short.documents, whole.documents) == (200, 1)
    assert short.fill < 0.5 < whole.fill
    assert not [warning for warning in whole.warnings if "full" in warning]


def test_paragraphs_of_several_files_are_joined_by_document_file_alone(
    tokenizer: WordPiece, tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a.txt", "b.txt"):
        (texts / name).write_text("the old bridge\n\n" * 100, encoding="utf8")
    warnings = pack(texts, tokenizer, tmp_path / "shards").warnings
    assert [warning for warning in warnings if warning.endswith("with --document file")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document": "page"}, "--document page must be blank-line or file"),
        ({"length": 4}, "--length 4 must be between 8"),
        ({"held_out": 1.0}, "--held-out 1.0 is a share"),
        ({"part": "3/2"}, "part 3/2 does not exist"),
        ({"part": "0/2"}, "part 0/2 does not exist"),
        ({"workers": 0}, "--workers 0 must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(
    text: Path, tokenizer: WordPiece, tmp_path: Path, options, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        pack(text, tokenizer, tmp_path, **options)


def test_parts_and_a_whole_run_do_not_share_a_folder(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    pack(text, tokenizer, tmp_path / "whole")
    with pytest.raises(UserError, match=wording("parts_and_a_whole_run_do_not_share_a_folder")):
        pack(text, tokenizer, tmp_path / "whole", part="1/2")
    pack(text, tokenizer, tmp_path / "parts", part="1/2")
    for part in ("1/1", "1/3"):
        with pytest.raises(
            UserError, match=wording("parts_and_a_whole_run_do_not_share_a_folder_2")
        ):
            pack(text, tokenizer, tmp_path / "parts", part=part)


def test_a_part_with_other_settings_than_a_finished_one_is_refused(
    text: Path, tokenizer: WordPiece, tmp_path: Path
) -> None:
    pack(text, tokenizer, tmp_path, part="1/2")
    with pytest.raises(UserError, match=r"part-00001-of-00002: was cut .* length was 32, now 64"):
        pack(text, tokenizer, tmp_path, part="2/2", length=64)
    assert not (tmp_path / "part-00002-of-00002").exists()
    pack(text, tokenizer, tmp_path, part="2/2")


def test_text_of_which_no_token_remains_makes_no_shards(
    tokenizer: WordPiece, tmp_path: Path
) -> None:
    blank = tmp_path / "blank.txt"
    blank.write_text("\u200b\n\n\u200b \u3000\u200b\n", encoding="utf8")
    with pytest.raises(UserError, match=r"the corpus holds no text: .*blank.txt"):
        pack(blank, tokenizer, tmp_path / "shards")
    assert not [path for path in (tmp_path / "shards").glob("*.*")]


def test_text_without_characters_makes_no_vocabulary(tmp_path: Path) -> None:
    blank = tmp_path / "blank.txt"
    blank.write_text("\u200b\n\n\u200b \u3000\u200b\n", encoding="utf8")
    with pytest.raises(UserError, match=r"the corpus holds no text: .*blank.txt"):
        train_wordpiece([blank], tmp_path / "vocabulary", report=lambda message: None)
    assert not (tmp_path / "vocabulary" / "tokenizer.json").exists()


def test_warnings_name_flags_and_state_each_limit_truly(
    tokenizer: WordPiece, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text(f"the {'x' * 250} river\n\nthe old bridge\n", encoding="utf8")
    warnings = "; ".join(pack(words, tokenizer, tmp_path / "shards").warnings)
    assert "or set --held-out 0" in warnings
    assert (
        "runs of more than 200 characters without white space hold words that became [UNK], 1 in"
        in warnings
    )
    assert "words of more than 100 characters, which become [UNK]" in warnings
