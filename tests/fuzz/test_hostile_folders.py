"""Every command takes a folder that someone else changed, or refuses it, and does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import hostile_folders
from benchmarks.hostile_folders import count_outcomes, judge, try_cases, try_unchanged
from benchmarks.hostile_inputs import CASES, Case, make_inputs, usable_cases

SEED = 1  # not the seed of the cases on record


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "good"
    make_inputs(folder, with_models=False)
    try_unchanged(folder, folder.parent / "work")
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in ("input", "output", "canary"):
        (tmp_path / "work" / name).mkdir(parents=True)
    return tmp_path / "work"


def check_cases(count: int, good: Path, work: Path) -> None:
    result = count_outcomes(enumerate(try_cases(range(count), SEED, good, work)))
    assert sum(row["tried"] for row in result["rows"]) == count
    assert not result["failures"]


def test_changed_text_tokenizers_shards_and_recipes_are_taken_or_refused(
    good: Path, tmp_path: Path
) -> None:
    check_cases(30, good, tmp_path / "work")


@pytest.mark.slow
def test_every_command_takes_the_examples_and_refuses_or_takes_changed_ones(tmp_path: Path) -> None:
    make_inputs(tmp_path / "good")
    assert len(usable_cases(tmp_path / "good")) == len(CASES)
    try_unchanged(tmp_path / "good", tmp_path / "work")
    check_cases(300, tmp_path / "good", tmp_path / "work")


# ---- the judge -----------------------------------------------------------------------------------


def judge_command(behaviour: object, monkeypatch: pytest.MonkeyPatch, work: Path) -> set[str]:
    """Return what the judge says of a command that behaves in this way."""
    monkeypatch.setattr(hostile_folders, "electra", behaviour)
    return set(judge(Case("a command", "input", "vocab"), work, work, "nothing").problems)


def behaviours(work: Path) -> Iterator[tuple[str, object]]:
    def fail(_: object) -> int:
        raise SystemExit(3)

    def print_an_unexpected_error(_: object) -> int:
        print("error: KeyError: 'a' (--debug shows where)")
        return 1

    def wait(_: object) -> int:
        while True:
            pass

    def print_control_characters(_: object) -> int:
        print("\x1b[2J")
        return 2

    def write_beside_its_folder(_: object) -> int:
        (work / "canary" / "a").touch()
        return 0

    def take_much_memory(_: object) -> int:
        return len(b"1" * (100 * 1024**2)) * 0

    yield "traceback", fail
    yield "traceback", print_an_unexpected_error
    yield "hang", wait
    yield "control_characters", print_control_characters
    yield "written_outside", write_beside_its_folder
    yield "over_memory", take_much_memory


def test_the_judge_finds_what_a_command_must_not_do(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile_folders, "SECONDS", 0.1)
    monkeypatch.setattr(hostile_folders, "MEMORY", 10 * 1024**2)
    for problem, behaviour in behaviours(work):
        assert judge_command(behaviour, monkeypatch, work) == {problem}


def test_the_judge_has_nothing_against_a_refusal_and_files_in_the_output_folder(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_refuse(_: object) -> int:
        (work / "output" / "a").touch()
        return 2

    assert not judge_command(write_and_refuse, monkeypatch, work)
