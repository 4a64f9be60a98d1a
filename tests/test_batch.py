"""A batch of commands: their order, their limits, and what is left of them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks import batch
from benchmarks.harness import run_main
from electra import atomic
from electra.config import UserError

SECOND = 1 / 60  # in minutes
SLEEP = "import time; time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); {SLEEP}"
SECONDS = "import time; print(time.time()); time.sleep(0.1); print(time.time())"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "ENDING_SECONDS", 0.3)
    monkeypatch.setattr(batch, "POLL_SECONDS", 0.01)


def step(name: str, code: str = "", *, minutes: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": f'python -c "{code}"', "minutes": minutes, **more}


def run(folder: Path, *steps: dict[str, Any], at_once: int = 1, flags: str = "") -> int:
    """Run a plan in a folder and return the exit code."""
    lines = [f"at_once = {at_once}"]
    for each in steps:
        lines += ["[[steps]]", *(f"{key} = {json.dumps(value)}" for key, value in each.items())]
    plan = folder / "plan.toml"
    plan.write_text("\n".join(lines), encoding="utf8")
    arguments = [str(plan), "--folder", str(folder / "out"), "--minutes", "1", *flags.split()]
    try:
        run_main(lambda: batch.main(arguments))
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def entries(folder: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((folder / "out" / "batch.json").read_text(encoding="utf8"))
    return kept["steps"]  # type: ignore[no-any-return]


def outcomes(folder: Path) -> dict[str, str]:
    return {name: entry["outcome"] for name, entry in entries(folder).items()}


def log(folder: Path, name: str) -> str:
    return (folder / "out" / f"{name}.log").read_text(encoding="utf8")


def span(folder: Path, name: str) -> tuple[float, float]:
    """When a step that prints SECONDS began and ended."""
    first, last = map(float, log(folder, name).split())
    return first, last


def meet(own: str, other: str) -> str:
    """Return code that ends when a step with `other` runs beside it, and prints its SECONDS."""
    return (
        "import pathlib, time; print(time.time()); folder = pathlib.Path('{folder}')\n"
        f"(folder / '{own}').touch()\n"
        f"while not (folder / '{other}').exists(): time.sleep(0.01)\n"
        "print(time.time())"
    )


# ---- order ---------------------------------------------------------------------------------------


def test_steps_run_one_after_another_and_leave_their_output_command_and_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, step("one", SECONDS), step("two", SECONDS)) == 0
    assert span(tmp_path, "one")[1] < span(tmp_path, "two")[0]
    kept = entries(tmp_path)["one"]
    assert (kept["outcome"], kept["exit_code"]) == ("done", 0)
    assert kept["command"].startswith("python -c 'import time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", kept["start"])
    assert 0.1 <= kept["seconds"] < 30
    assert re.search(r"^two +\d\.\d of 1 min +done$", capsys.readouterr().out, re.MULTILINE)


def test_steps_run_beside_each_other_but_nothing_beside_one_that_is_alone(tmp_path: Path) -> None:
    pair = [step("one", meet("one", "two")), step("two", meet("two", "one"))]
    alone = step("alone", SECONDS, alone=True)
    assert run(tmp_path, *pair, alone, step("three", SECONDS), at_once=2) == 0
    one, two, timed, three = (span(tmp_path, name) for name in ("one", "two", "alone", "three"))
    assert max(one[1], two[1]) < timed[0]
    assert timed[1] < three[0]


def test_a_step_that_comes_after_another_waits_and_holds_back_no_other(tmp_path: Path) -> None:
    pair = [step("first", meet("first", "free")), step("free", meet("free", "first"))]
    assert run(tmp_path, pair[0], step("late", SECONDS, after=["first"]), pair[1], at_once=2) == 0
    assert span(tmp_path, "first")[1] < span(tmp_path, "late")[0]


def test_a_failed_step_ends_no_other_but_those_that_come_after_it(tmp_path: Path) -> None:
    missing = {"name": "missing", "command": "no-such-command", "minutes": 1.0}
    steps = [step("bad", "raise SystemExit(3)"), step("next", after=["bad"]), missing, step("good")]
    assert run(tmp_path, *steps, step("last", after=["next"])) == 1
    assert outcomes(tmp_path) == {
        "bad": "failed: exit code 3",
        "next": "not run: bad did not succeed",
        "missing": "failed: [Errno 2] No such file or directory: 'no-such-command'",
        "good": "done",
        "last": "not run: next did not succeed",
    }


# ---- limits --------------------------------------------------------------------------------------


def test_a_limit_ends_all_processes_of_a_step_also_those_that_ignore_sigterm(
    tmp_path: Path,
) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '''{DEAF}'''])"
    started = time.monotonic()
    steps = [step("deaf", DEAF, minutes=4 * SECOND), step("child", child, minutes=4 * SECOND)]
    assert run(tmp_path, *steps, step("next"), at_once=2) == 1
    assert time.monotonic() - started < 60
    kept = entries(tmp_path)
    assert kept["deaf"]["exit_code"] == -signal.SIGKILL
    assert kept["child"]["exit_code"] == -signal.SIGTERM
    assert kept["child"]["outcome"] == "stopped: its minutes were over"
    assert kept["next"]["outcome"] == "done"
    assert not processes_with(DEAF)


def test_a_step_that_takes_sigterm_as_its_end_and_returns_0_has_not_succeeded(
    tmp_path: Path,
) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); {SLEEP}"
    assert run(tmp_path, step("record", code, minutes=4 * SECOND)) == 1
    assert entries(tmp_path)["record"]["exit_code"] == 0
    assert outcomes(tmp_path) == {"record": "stopped: its minutes were over"}


def test_what_a_step_leaves_running_is_ended_before_the_next(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '''{SLEEP}#left'''])"
    assert run(tmp_path, step("parent", code), step("next")) == 0
    assert not processes_with(f"{SLEEP}#left")


def test_a_step_is_cut_to_the_minutes_left_and_left_out_with_less_than_a_tenth(
    tmp_path: Path,
) -> None:
    flags = f"--minutes {2 * SECOND}"
    steps = [step("long", minutes=0.8), step("cut", SLEEP, minutes=0.1), step("out")]
    assert run(tmp_path, *steps, flags=flags) == 1
    assert outcomes(tmp_path) == {
        "long": "not run: 0.0 of its 0.8 minutes were left",
        "cut": "stopped: the batch ended",
        "out": "not run: 0.0 of its 1 minutes were left",
    }


def test_an_error_of_the_batch_itself_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(atomic, "write_json", fail)
    assert run(tmp_path, step("long", f"{SLEEP}#disk"), step("short"), at_once=2) == 2
    time.sleep(0.1)
    assert not processes_with(f"{SLEEP}#disk")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_to_the_batch_ends_its_steps_and_the_table_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    code = f"import os, signal; os.kill(os.getppid(), signal.{number}); {SLEEP}"
    handler = signal.getsignal(signal.Signals[number])
    assert run(tmp_path, step("one", code), step("two")) == 1
    assert signal.getsignal(signal.Signals[number]) == handler
    assert outcomes(tmp_path)["one"] == "stopped: the batch ended"
    assert re.search(r"^two .*not run", capsys.readouterr().out, re.MULTILINE)


def processes_with(code: str) -> list[Path]:
    """Return the processes that run this code."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[:3] == [
                sys.executable.encode(),
                b"-c",
                code.encode(),
            ]:
                found.append(path)
        except OSError:  # it has ended
            continue
    return found


# ---- the same folder again, and parts of a plan --------------------------------------------------


def test_the_same_command_runs_only_what_has_not_succeeded_or_has_changed(tmp_path: Path) -> None:
    good, bad = step("good", "print(1)"), step("bad", "import sys; sys.exit('{word}' != 'right')")
    changed = step("changed", "print('{word}')")
    assert run(tmp_path, good, bad, changed, flags="--set word=wrong") == 1
    assert run(tmp_path, good, bad, changed, flags="--set word=right") == 0
    assert log(tmp_path, "good") == "1\n"
    assert log(tmp_path, "changed") == "wrong\nright\n"


def test_only_some_steps_run_whatever_they_come_after(tmp_path: Path) -> None:
    steps = [step("first"), step("second", after=["first"])]
    assert run(tmp_path, *steps, flags="--only second") == 0
    assert outcomes(tmp_path) == {"second": "done"}


def test_a_dry_run_prints_commands_and_minutes_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [step("one", "print('{folder}')"), step("two", minutes=2.5)]
    assert run(tmp_path, *steps, flags="--dry-run") == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path}/out" in printed
    assert "3.5 minutes" in printed
    assert not (tmp_path / "out").exists()


# ---- the plan of the GPU evidence ----------------------------------------------------------------

EVIDENCE = Path(batch.__file__).with_name("gpu_evidence.toml")
ROOT = EVIDENCE.parents[1]


def evidence() -> dict[str, list[str]]:
    """Return the words of each step of the plan behind `python -m`."""
    steps = tomllib.loads(EVIDENCE.read_text(encoding="utf8"))["steps"]
    return {each["name"]: shlex.split(each["command"])[2:] for each in steps}


@pytest.mark.parametrize("name", evidence())
def test_commands_of_the_gpu_evidence_have_options_that_their_module_takes(name: str) -> None:
    module, *words = evidence()[name]
    if module.startswith("benchmarks."):
        # Read, because to import all modules and what they import takes ten seconds.
        source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf8")
        # A word with a space holds the flags of another command.
        for flag in (word for word in words if word.startswith("--") and " " not in word):
            assert f'"{flag}"' in source, flag
    for path in (word for word in words if word.startswith("tests/")):
        assert (ROOT / path).exists(), path


def test_the_gpu_evidence_holds_every_test_that_needs_a_gpu() -> None:
    tests = {path.name for path in Path(__file__).parent.glob("test_gpu*.py")}
    words = [word for step in evidence().values() for word in step]
    assert {word.removeprefix("tests/") for word in words if "test_gpu" in word} == tests


def test_the_gpu_evidence_runs_by_three_placeholders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ["--set", *(f"{name}={tmp_path / name}" for name in ("rows", "tasks", "results"))]
    arguments = [str(EVIDENCE), "--minutes", "60", "--folder", str(tmp_path), "--dry-run", *values]
    with pytest.raises(UserError, match=r"rows/128/manifest.json \(warm-up\)"):
        batch.main(arguments)
    assert "\nspeed, 7 min: python -m benchmarks.pretrain_gpu" in capsys.readouterr().out


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "flags", "answer"),
    [
        (
            {"needs": ["{data}/rows"]},
            "--set data=there",
            "no such file or folder: there/rows (two)",
        ),
        ({"needs": ["{data}/rows"]}, "", "{data} has no value; add --set data=VALUE"),
        ({"minute": 3}, "", "plan.toml: unknown key steps[1].minute"),
        ({"minutes": "three"}, "", "plan.toml: steps[1].minutes"),
        ({"minutes": 0}, "", "plan.toml: steps[1].minutes=0.0 must be above 0"),
        ({"name": "a/b"}, "", "plan.toml: steps[1].name="),
        ({"name": "one"}, "", "plan.toml: steps[1].name: one is there twice"),
        ({"after": ["no-such"]}, "", "plan.toml: steps[1].after: no-such is no earlier step"),
        ({"command": "python 'x"}, "", "plan.toml: steps[1].command="),
        ({}, "--only three", "--only three: "),
        ({}, "--set word", "--set word: write KEY=VALUE"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: Any, flags: str, answer: str
) -> None:
    assert run(tmp_path, step("one"), {**step("two"), **more}, flags=flags) == 2
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
