"""The shards of the search are made once, from the text that was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import record_corpus
from benchmarks.harness import run_main
from electra.config import UserError


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands of electra that are run, which write nothing."""
    run: list[str] = []
    monkeypatch.setattr(record_corpus, "electra", lambda *words: run.append(str(words[0])))
    return run


@pytest.fixture
def part(tmp_path: Path) -> Path:
    path = tmp_path / "part.jsonl"
    rows = [{"text": f"{source} text", "source": source} for source in ("wiki", "news")] * 3
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    return path


def make(part: Path, *flags: str) -> None:
    place = ["--folder", str(part.parent / "work"), "--workers", "1"]
    record_corpus.main([str(part), *place, *flags])


@pytest.mark.parametrize("sources", [[], ["--sources", "wiki"]], ids=["all", "one"])
def test_the_same_command_goes_on_with_the_text_that_is_there(
    part: Path, commands: list[str], sources: list[str]
) -> None:
    make(part, *sources)
    facts = part.parent / "work" / record_corpus.FACTS
    written = facts.stat().st_mtime_ns
    make(part, *sources)
    assert facts.stat().st_mtime_ns == written
    assert commands == ["vocab", "shard", "shard", "shard"] * 2


@pytest.mark.usefixtures("commands")
def test_text_of_other_sources_or_parts_is_not_taken_for_what_was_asked(part: Path) -> None:
    make(part, "--sources", "wiki")
    with pytest.raises(UserError, match=r"work: holds the text of wiki of part\.jsonl"):
        make(part)
    with pytest.raises(UserError, match="holds the text of wiki"):
        make(part, "--sources", "wiki", "news")
    other = part.rename(part.with_name("other.jsonl"))
    with pytest.raises(UserError, match="another --folder"):
        make(other, "--sources", "wiki")


@pytest.mark.usefixtures("commands")
def test_text_that_keeps_out_no_dev_set_is_not_taken_for_one_that_does(part: Path) -> None:
    make(part)
    kept_out = part.parent / "dev"
    kept_out.mkdir()
    (kept_out / "dev.txt").write_text("a sentence of thirteen words or more: " + "so " * 13)
    with pytest.raises(UserError, match="another --folder"):
        make(part, "--keep-out", str(kept_out))


@pytest.mark.usefixtures("commands")
def test_text_that_an_interrupted_command_left_is_not_cut_into_shards(part: Path) -> None:
    text = part.parent / "work" / "text"
    text.mkdir(parents=True)
    (text / "1-0.jsonl").write_text('{"text": "of a part that is not asked for now"}\n')
    make(part)
    assert not (text / "1-0.jsonl").exists()
    assert (text / "0-0.jsonl").exists()


def test_what_electra_refuses_is_told_once(
    part: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        record_corpus, "ELECTRA", (sys.executable, "-c", "import sys; sys.exit('told')")
    )
    with pytest.raises(subprocess.CalledProcessError):  # exit code 1: a fault, not a refusal
        make(part)
    refusal = "import sys; print('error: told', file=sys.stderr); sys.exit(2)"
    monkeypatch.setattr(record_corpus, "ELECTRA", (sys.executable, "-c", refusal))
    capfd.readouterr()
    with pytest.raises(SystemExit, match="2"):
        run_main(lambda: make(part))
    assert capfd.readouterr().err == "error: told\n"
