"""The search for the best small encoder: its plan, its corpus, its results and its page."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    record,
    record_comparison,
    record_corpus,
    record_jobs,
    record_plan,
    record_plots,
    record_tables,
)
from benchmarks.record_comparison import Difference
from benchmarks.record_jobs import Commands, Failed, Stopped
from benchmarks.record_plan import Plan, load_plan, schedule_flags, speed_key, steps_in
from benchmarks.record_results import Record
from electra import atomic
from electra.cli.describe import describe_recipe
from electra.config import UserError
from tests.test_benchmarks import write_sst_2

# ---- the plan ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_plan()


def test_every_arm_has_settings_that_a_recipe_takes_and_a_scale_wins_over_them() -> None:
    plan = load_plan(scale="tiny")
    words = shlex.split(plan.scale.flags)
    smaller = set(zip(words[::2], words[1::2], strict=True))
    for arm in plan.arms:
        flags = plan.flags_of(arm)
        assert smaller <= set(zip(flags[::2], flags[1::2], strict=True))
        stage = plan.stage(next(iter(arm.stages)))
        schedule = schedule_flags(plan, arm, stage, plan.limit_steps(60), plan.recipe_of(arm))
        assert plan.recipe_of(arm, *schedule).training.max_steps == plan.scale.max_steps == 6


def test_a_plan_with_a_wrong_flag_is_refused_before_any_run(plan: Plan, tmp_path: Path) -> None:
    wrong = replace(plan, arms=(replace(plan.arms[0], flags="--encoder.layer 3"),))
    with pytest.raises(UserError, match=r"encoder\.layer"):
        record.print_plan(wrong, wrong.stage("screen"), Record(tmp_path / "record.json"))


def test_the_papers_small_is_part_of_every_stage(plan: Plan) -> None:
    for name in plan.stages:
        assert any(arm.recipe == "small" for arm, _ in plan.runs(plan.stage(name)))


def test_the_model_of_the_goal_has_no_more_parameters_than_allowed(plan: Plan) -> None:
    for arm, _ in plan.runs(plan.stage("final")):
        size = describe_recipe(plan.recipe_of(arm), name=arm.name).parameters.encoder
        assert size <= plan.max_parameters


def test_a_run_gets_the_steps_that_fit_in_its_minutes_also_while_its_batch_grows(
    plan: Plan,
) -> None:
    stage = plan.stage("screen")
    for arm, _ in plan.runs(stage, ["base", "batch 128 to 512"]):
        recipe = plan.recipe_of(arm)
        steps = steps_in(2.0, arm, recipe, 10_000)
        flags = schedule_flags(plan, arm, stage, steps, recipe)
        training = plan.recipe_of(arm, *flags).training
        assert training.rows == pytest.approx(2 * 60 * 10_000, rel=0.01)


@pytest.mark.parametrize(("steps", "warmup_steps"), [(5_660, "943"), (179_842, "10000")])
def test_the_papers_small_warms_up_as_with_a_budget(
    plan: Plan, steps: int, warmup_steps: str
) -> None:
    for arm, _ in plan.runs(plan.stage("final"), ["paper", "paper, 1 % of warm-up"]):
        flags = schedule_flags(plan, arm, plan.stage("final"), steps, plan.recipe_of(arm))
        value = flags[flags.index("--optimizer.warmup-steps") + 1]
        assert value == (warmup_steps if arm.name == "paper" else str(round(0.01 * steps)))


def test_settings_that_cost_no_time_share_a_measured_speed(plan: Plan) -> None:
    arms = {arm.name: speed_key(plan.recipe_of(arm)) for arm in plan.arms}
    assert arms["base"] == arms["linear"] == arms["Muon 6e-3"]
    assert len({arms[name] for name in ("base", "paper", "AdamW 1e-3", "generator 2x256")}) == 4


def test_an_arm_changes_its_reference_and_keeps_its_text(plan: Plan) -> None:
    arms = {arm.name: arm for arm in plan.arms}
    changed, reference = (
        plan.recipe_of(arms[name]) for name in ("Muon 1e-3 + 8x384", "18x256, a fifth of the text")
    )
    assert reference.optimizer == replace(changed.optimizer, muon_learning_rate=3e-3)
    assert reference.encoder.layers == 18
    assert changed.encoder.layers == 8
    assert arms["8x384, vocabulary 16k"].data == arms["18x256, vocabulary 16k"].data == "128-16384"
    assert arms["a thirtieth, dropout 0.1"].data == "128-thirtieth"
    assert arms["base"].data == arms["paper"].data == "128"
    assert plan.flags_of(arms["paper"]) == []


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('reference = "a fifth of the text"', 'reference = "lost"', "no arm lost before it"),
        ('name = "AdamW 2e-3"', 'name = "AdamW 1e-3"', "two arms are named AdamW 1e-3"),
        ('stage = "confirm"', 'stage = "lost"', "arm Muon 1e-3 .*: no stage lost"),
        ('stage = "confirm"', 'stage = "quarter"', "is not run in stage quarter"),
        ('"Muon 1e-3" = "', '# "', "factorial.factors.* must be at least 4"),
    ],
)
def test_a_plan_with_an_arm_or_a_factor_out_of_place_is_refused(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    text = record_plan.PLAN.read_text(encoding="utf8")
    assert before in text
    (tmp_path / "plan.toml").write_text(text.replace(before, after), encoding="utf8")
    with pytest.raises(UserError, match=message):
        load_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize("setting", ['recipe = "small"', "ramp_ratio = 0.5", "warmup_ratio = 0.1"])
def test_an_arm_takes_over_no_recipe_ramp_or_warm_up(tmp_path: Path, setting: str) -> None:
    text = record_plan.PLAN.read_text(encoding="utf8")
    text = text.replace('name = "a fifth of the text"', f'name = "a fifth of the text"\n{setting}')
    (tmp_path / "plan.toml").write_text(text, encoding="utf8")
    with pytest.raises(UserError, match=r"arm rows of 64: its reference, a fifth of the text, has"):
        load_plan(tmp_path / "plan.toml")


def test_a_begun_run_keeps_its_steps_and_is_refused_for_other_minutes(tmp_path: Path) -> None:
    place = ["--folder", str(tmp_path), "--glue", "glue", "--output", str(tmp_path / "r.json")]
    options = record.parse_options(["--stage", "screen", *place])
    search = record.Search(options, load_plan(), Record(options.output))
    stage, (arm, *_) = search.plan.stage("screen"), search.plan.arms
    search.recipe_of = lambda arm: search.plan.recipe_of(arm)  # type: ignore[method-assign]
    search.rows_per_second = lambda arm: 1000.0  # type: ignore[method-assign]
    first = search.length_of(stage, arm, 0)
    assert (first.minutes, first.steps) == (0.625, round(0.625 * 60 * 1000 / 256))
    folder = search.run_folder(stage, arm, 0)
    folder.mkdir()
    atomic.write_json(record_plan.length_file(folder), first._asdict())
    search.rows_per_second = lambda arm: 1100.0  # type: ignore[method-assign]
    assert search.length_of(stage, arm, 0) == first
    assert search.length_of(stage, arm, 1).steps > first.steps
    with pytest.raises(UserError, match=r"was begun for 0.625 minutes, and the stage has 1.25"):
        search.length_of(replace(stage, share=2 * stage.share), arm, 0)


def test_an_arm_that_the_stage_lacks_is_refused_with_those_it_has(plan: Plan) -> None:
    with pytest.raises(UserError, match="candidate"):
        list(plan.runs(plan.stage("final"), ["no such arm"]))


# ---- commands ------------------------------------------------------------------------------------


@pytest.fixture
def python_as_electra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run Python instead of electra."""
    monkeypatch.setattr(record_jobs, "ELECTRA", (sys.executable, "-c"))


@pytest.mark.usefixtures("python_as_electra")
def test_a_command_that_fails_says_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="exit code 2: no such recipe"):
        Commands(None).run(tmp_path / "log", "print('no such recipe'); raise SystemExit(2)")


@pytest.mark.usefixtures("python_as_electra")
def test_a_command_is_stopped_at_the_deadline_and_none_is_started_after_it(tmp_path: Path) -> None:
    commands = Commands(0.5)
    with pytest.raises(Stopped):
        commands.run(tmp_path / "log", "import time; time.sleep(60)")
    with pytest.raises(Stopped):
        commands.run(tmp_path / "other", "raise SystemExit(1)")
    assert not (tmp_path / "other").exists()


@pytest.mark.usefixtures("python_as_electra")
def test_a_sigterm_stops_the_commands_too(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    commands = Commands(None)
    alarm = threading.Timer(0.5, signal.raise_signal, [signal.SIGTERM])
    with commands.stopped_by(signal.SIGTERM):
        alarm.start()
        with pytest.raises(Stopped):
            commands.run(tmp_path / "log", "import time; time.sleep(60)")
    assert commands.is_over
    assert signal.getsignal(signal.SIGTERM) == before


def test_tasks_of_a_stage_that_pre_trains_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        record.main("--stage screen --folder f --glue g --tasks glue/cola".split())
    assert "--tasks is of --stage finetuning" in capsys.readouterr().err


def test_the_plan_of_the_finetuning_stage_is_refused_and_not_run(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        record.main(["--stage", "finetuning", "--model", "run", "--plan"])
    assert "--plan is of the stages that pre-train" in capsys.readouterr().err


def search_finetuning(
    output: Path,
    *flags: str,
    model: str = "run",
    scores: list[float],
    expected_exit: int | None = None,
) -> dict[str, Any]:
    """Run the stage with commands that score at once, and return what the file then holds."""
    place = ["--folder", str(output.parent), "--glue", "glue", "--output", str(output)]
    argv = ["--stage", "finetuning", "--model", model, "--arms", "default", *place]
    options = record.parse_options([*argv, "--tasks", "glue/rte", *flags])
    search = record.Search(options, load_plan(), Record(output))

    def score(*_: object, **__: object) -> dict[str, object]:
        if not scores:
            raise Failed("exit code 1")
        return {"scores": scores}

    search.score = score  # type: ignore[method-assign]
    search.check_tasks = lambda _: None  # type: ignore[method-assign]
    exit_code = nullcontext() if expected_exit is None else pytest.raises(SystemExit, match="1")
    with exit_code:
        search.search_finetuning(Path(model))
    entry: dict[str, Any] = Record(output).entry("finetuning", "default", 0)["tuned"]["glue/rte"]
    return entry


def test_failed_settings_of_fine_tuning_are_tried_again_when_asked(tmp_path: Path) -> None:
    output = tmp_path / "a.json"
    assert "failed" in search_finetuning(output, scores=[], expected_exit=1)
    assert "failed" in search_finetuning(output, scores=[0.6], expected_exit=1)
    assert search_finetuning(output, "--retry", scores=[0.6]) == {"scores": [0.6]}
    assert search_finetuning(output, "--retry", scores=[0.7]) == {"scores": [0.6]}


def test_settings_of_fine_tuning_are_not_taken_for_others_or_those_of_another_model(
    tmp_path: Path,
) -> None:
    output = tmp_path / "a.json"
    search_finetuning(output, scores=[0.6])
    with pytest.raises(UserError, match="default was tuned from run"):
        search_finetuning(output, model="another", scores=[0.7])
    Record(output).update("finetuning", "default", 0, settings="--epochs 99")
    with pytest.raises(UserError, match="default was tuned from run with --epochs 99"):
        search_finetuning(output, scores=[0.7])


def test_a_stage_with_a_failed_run_ends_with_exit_code_1_also_where_nothing_is_left_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "a.json"
    failed = Record(output)
    failed.update("quarter", "paper", 0, question="q", failed="exit code 1: out of memory")
    place = ["--folder", str(tmp_path), "--glue", "glue", "--output", str(output)]
    options = record.parse_options(["--stage", "quarter", "--arms", "paper", *place])
    plan = load_plan()
    for _ in range(2):
        with pytest.raises(SystemExit, match="1"):
            record.Search(options, plan, Record(output)).run_stage(plan.stage("quarter"))
    assert "quarter: 0 of 1 runs done" in capsys.readouterr().out


# ---- the result file -----------------------------------------------------------------------------


def test_a_result_file_keeps_its_note(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"note": "shared GPU", "runs": {}}', encoding="utf8")
    for path in (tmp_path / "a.json", tmp_path / "b.json"):
        Record(path, earlier=tmp_path / "a.json").add_speed("key", "base", 1.0)
        assert json.loads(path.read_text(encoding="utf8"))["note"] == "shared GPU"


def test_a_record_goes_on_from_the_earlier_file_and_writes_its_own(tmp_path: Path) -> None:
    first = Record(tmp_path / "a.json")
    first.update("screen", "base", 0, question="q", failed="exit code 1: out of memory")
    second = Record(tmp_path / "b.json", earlier=tmp_path / "a.json")
    assert "out of memory" in second.entry("screen", "base", 0)["failed"]
    second.update("screen", "base", 0, question="q", held_out=[{"auc": 0.5}])
    second.add_scores("screen", "base", 0, task="glue/rte", scores={"scores": [0.6]})
    kept = json.loads((tmp_path / "b.json").read_text(encoding="utf8"))["runs"]
    entry = kept["screen: base, seed 0"]
    assert "failed" not in entry
    assert entry["tuned"]["glue/rte"]["scores"] == [0.6]


@pytest.mark.parametrize("changed", ["hardware", "device", "torch", "code"])
def test_a_speed_is_taken_from_the_same_code_on_the_same_device_alone(
    changed: str, tmp_path: Path
) -> None:
    record = Record(tmp_path / "a.json")
    record.add_speed("key", "base", 1234.5)
    assert Record(tmp_path / "a.json").speed("key") == 1234.5
    record.made = {**record.made, changed: "another"}
    assert record.speed("key") is None


def scored_run(arm: str, seed: int, score: float) -> dict[str, Any]:
    tasks = load_plan().stage("quarter").task_names
    return {
        "stage": "quarter",
        "arm": arm,
        "seed": seed,
        "question": "why",
        "parameters": 14e6,
        "tokens_seen": 3e8,
        "epochs": 3.5,
        "flops": {"standard": 1e17, "official": 2e17},
        "tuned": {task: {"median": score, "scores": [score]} for task in tasks},
        "made": {"hardware": "GPU", "torch": "2", "commit": "abc"},
    }


COMPARED = {
    "a": scored_run("base", 0, 0.70),
    "b": scored_run("base", 1, 0.72),
    "c": {**scored_run("linear", 0, 0.75), "question": "schedule"},
    "d": {**scored_run("WSD, decay 20 %", 0, 0.0), "failed": "exit code 1: not finite"},
    "e": scored_run("rows of 64", 0, 0.74),
    "f": scored_run("a fifth of the text", 0, 0.73),
}


def test_the_page_shows_each_arm_against_its_reference_with_its_spread_and_failures() -> None:
    table = record_tables.record_stage({"runs": COMPARED}, stage="quarter").splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in table[2:9]}
    assert rows["linear"].startswith(
        "| linear | schedule | 1 | 14.0M | 300M (3.5) | 1.00e+17; 2.00e+17 | 75.0"
    )
    assert rows["linear"].endswith("| 75.0 | +4.0 (base) |")
    assert rows["rows of 64"].endswith("| +1.0 (a fifth of the text) |")
    assert "71.0 ± 1.4" in rows["base"]
    assert rows["WSD, decay 20 %"].startswith("| WSD, decay 20 % | why | 0 | – |")
    assert "79.3" in rows["ELECTRA-Small, open twin (published)"]
    assert "- WSD, decay 20 %, seed 0: exit code 1: not finite" in table
    assert "standard deviation of 1.41, pooled over base (2)" in table[-1]
    # 12.71 is Student's t of one degree of freedom; 22.0 is for two seeds against one.
    assert "at most 22.0 or 25.4 points from its reference" in table[-1]
    assert "in bold: 0 of 3; of 3 arms that change nothing 0.2 would be" in table[-1]
    assert "quarter: 5 (runs: 6)" in record_tables.record_tried({"runs": COMPARED})


def test_a_run_whose_scores_are_not_complete_shows_those_that_there_are() -> None:
    partly = scored_run("linear", 0, 0.75)
    del partly["tuned"]["glue/cola"]
    table = record_tables.record_stage({"runs": {"a": partly}}, stage="quarter").splitlines()
    assert table[2].startswith("| linear | why | 1 | 14.0M | 300M (3.5) |")
    assert table[2].endswith("| 75.0 | 75.0 | not measured | 75.0 | 75.0 | 75.0 | – | – |")


def test_arms_of_one_question_stand_together_and_the_best_of_them_first() -> None:
    runs = {
        name: {**scored_run(name, 0, score), "question": question}
        for name, score, question in (
            ("AdamW 1e-3", 0.7, "Muon or AdamW"),
            ("linear", 0.9, "schedule"),
            ("Muon 1e-3", 0.8, "Muon or AdamW"),
            ("base", 0.1, "reference"),
        )
    }
    table = record_tables.record_stage({"runs": runs}, stage="quarter").splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in table[2:6]]
    assert names == ["base", "Muon 1e-3", "AdamW 1e-3", "linear"]


def test_the_spread_is_pooled_and_clear_differences_are_those_beyond_chance(plan: Plan) -> None:
    scores = {"base": [70.0, 70.2, 70.4], "linear": [71.0, 71.2], "Muon 1e-3": [70.5]}
    spread = record_comparison.pool_spread(scores)
    assert spread is not None
    assert spread.degrees == 3
    assert spread.deviation == pytest.approx(((0.08 + 0.02) / 3) ** 0.5)
    # Student's t of three degrees of freedom is 3.182.
    assert spread.largest_by_chance(1, 3) == pytest.approx(
        3.182 * spread.deviation * (4 / 3) ** 0.5, rel=1e-3
    )
    differences = record_comparison.compare_arms(scores, plan.arms, plan.stage("screen"))
    assert {name: each.is_clear for name, each in differences.items()} == {
        "linear": True,
        "Muon 1e-3": False,
    }
    assert record_comparison.pool_spread({"base": [70.0]}) is None


def test_an_arm_whose_reference_is_not_run_is_compared_with_that_of_the_stage(plan: Plan) -> None:
    scores = {"paper": [60.0], "18x256, vocabulary 16k": [70.0], "8x384, vocabulary 16k": [71.0]}
    found = record_comparison.compare_arms(scores, plan.arms, plan.stage("final"))
    assert {arm: (each.reference, each.points) for arm, each in found.items()} == {
        "paper": ("18x256, vocabulary 16k", -10.0),
        "8x384, vocabulary 16k": ("18x256, vocabulary 16k", 1.0),
    }


def test_each_factor_is_in_half_of_the_runs_and_beside_each_other_in_a_quarter(plan: Plan) -> None:
    factors, arms = plan.factorial.factors, plan.factorial.combinations()
    runs = {arm.name: arm for arm, _ in plan.runs(plan.stage("confirm")) if not arm.recipe}
    assert set(runs) == set(arms)
    assert len(runs) == 2 ** (len(factors) - 1)
    assert arms[plan.factorial.reference] == ()
    for one, other in combinations(factors, 2):
        assert sum(one in each for each in arms.values()) == len(runs) / 2
        assert sum({one, other} <= set(each) for each in arms.values()) == len(runs) / 4
    both = runs["Muon 1e-3 + 8x384"]
    recipe = plan.recipe_of(both)
    assert (recipe.optimizer.muon_learning_rate, recipe.encoder.layers) == (1e-3, 8)
    assert both.data == "128-16384-fifth"


def test_effects_of_factors_are_those_of_all_runs_with_what_chance_explains(plan: Plan) -> None:
    true = dict(zip(plan.factorial.factors, (1.0, -2.0, 0.0, 4.0), strict=True))
    scores = {}
    for arm, factors in plan.factorial.combinations().items():
        scores[arm] = [70 + sum(true[factor] for factor in factors)]
    exact = record_comparison.estimate_effects(scores, plan.factorial)
    assert exact is not None
    assert exact.points == pytest.approx(true, abs=1e-9)
    assert exact.by_chance == pytest.approx(0, abs=1e-9)
    # One of the four runs without a factor is 0.8 better: the factor loses a quarter of that.
    scores[plan.factorial.reference][0] += 0.8
    found = record_comparison.estimate_effects(scores, plan.factorial)
    assert found is not None
    assert found.points["8x384"] == pytest.approx(4.0 - 0.2)
    # 3.182 is Student's t of three degrees of freedom: eight runs, five numbers fitted.
    left_over = (0.8**2 * (1 - 5 / 8) / 3) ** 0.5
    assert found.by_chance == pytest.approx(3.182 * left_over * (1 / 2) ** 0.5, rel=1e-3)
    clear = ["Muon 1e-3", "weight decay 0.1 and 0.3", "8x384"]
    assert [factor for factor in found.points if found.is_clear(factor)] == clear


def scored_factorial(plan: Plan) -> dict[str, Any]:
    runs = {}
    for number, (arm, factors) in enumerate(plan.factorial.combinations().items()):
        score = 0.7 + 0.04 * ("8x384" in factors) + 0.001 * (number % 3)
        runs[arm] = {**scored_run(arm, 0, score), "stage": "confirm"}
        runs[arm]["tuned"]["glue/cola"]["median"] = 0.5 + 0.01 * (number % 3)
    return runs


def test_effects_are_shown_for_each_task_with_what_chance_explains(plan: Plan) -> None:
    runs = scored_factorial(plan)
    unscored = {**runs["Muon 1e-3 + 8x384"], "seed": 1, "tuned": {}}
    table = record_tables.record_effects({"runs": {**runs, "unscored": unscored}}).splitlines()
    assert table[0] == "| effect, in points | qnli | sst-2 | cola | mrpc | sts-b | rte | mean |"
    row = next(line for line in table if line.startswith("| 8x384"))
    assert row.count("**+4.") == 5
    assert "**" not in row.split(" | ")[3]  # CoLA
    assert "**+3." in row.split(" | ")[-1]  # five sixths of it
    assert table[6].startswith("| chance, in 19 of 20 cases | 0.")
    assert table[-1].startswith("Least-squares estimates from 8 of 8 runs")
    assert table[-1].endswith(
        "in bold: 5 of 24 effects on one task; of 24 changes that do nothing "
        "1.2 would be, on average."
    )


def test_effects_of_few_runs_say_so(plan: Plan) -> None:
    runs = scored_factorial(plan)
    five = dict(list(runs.items())[:5])
    table = record_tables.record_effects({"runs": five})
    assert "from 5 of 8 runs" in table
    assert "chance, in" not in table
    assert "**" not in table
    del five["Muon 1e-3 + 8x384"]
    assert record_tables.record_effects({"runs": five}).startswith("*Too few runs yet:*")


def test_effects_of_factors_are_drawn(plan: Plan, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = scored_factorial(plan)
    record_plots.draw({"runs": runs}, "confirm", tmp_path / "a.svg")
    picture = (tmp_path / "a.svg").read_text(encoding="utf8")
    assert all(factor in picture for factor in plan.factorial.factors)
    assert "effect, in points" in picture
    assert "Muon 1e-3 + 8x384" not in picture
    few = dict(list(runs.items())[:3])
    with pytest.raises(UserError, match="no two arms of stage confirm to compare"):
        record_plots.draw({"runs": few}, "confirm", tmp_path / "b.svg")


def test_the_differences_of_a_stage_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "record.json").write_text(json.dumps({"runs": COMPARED}), encoding="utf8")
    command = ["--stage", "quarter", "--result", str(tmp_path / "record.json")]
    pictures = []
    for name in ("a.svg", "b.svg"):
        record_plots.main([*command, "--output", str(tmp_path / name)])
        pictures.append((tmp_path / name).read_text(encoding="utf8"))
    assert pictures[0] == pictures[1]
    for words in ("linear", "rows of 64 (against a fifth of the text)"):
        assert words in pictures[0]
    with pytest.raises(UserError, match="no two arms of stage final to compare"):
        record_plots.main([*command, "--stage", "final"])


def test_an_arm_that_did_not_learn_stands_at_the_edge_with_its_number(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = {str(seed): scored_run("base", seed, 0.7 + seed / 500) for seed in range(3)}
    runs |= {"near": scored_run("linear", 0, 0.71), "far": scored_run("EMA 0.999", 0, 0.3)}
    for names, numbers in ((("near",), 0), (("near", "far"), 1)):
        kept = {name: run for name, run in runs.items() if name.isdigit() or name in names}
        record_plots.draw({"runs": kept}, "quarter", tmp_path / "a.svg")
        assert (tmp_path / "a.svg").read_text(encoding="utf8").count("-40.2") == numbers


def test_an_arm_that_did_not_learn_leaves_the_others_room_in_the_picture() -> None:
    near = [Difference("a", "base", 1.2, 2.0), Difference("b", "base", -2.4, 2.0)]
    far = Difference("c", "base", -43.2, 2.0)
    assert record_plots.find_edge([*near, far]) == record_plots.find_edge(near)
    assert record_plots.find_edge(near) == pytest.approx(1.1 * 2.4)
    unknown = [Difference("a", "base", 1.2, None), Difference("c", "base", -43.2, None)]
    assert record_plots.find_edge(unknown) == pytest.approx(1.1 * 43.2)


def test_a_task_with_flags_of_its_own_has_them_beside_its_score() -> None:
    tuned = {
        "glue/qnli": {"flags": "--epochs 1 --learning-rate 1e-4", "scores": [0.82]},
        "glue/rte": {"flags": "--learning-rate 1e-4", "scores": [0.59]},
    }
    run = {
        "stage": "finetuning",
        "arm": "1e-4",
        "settings": "--learning-rate 1e-4",
        "made": {"hardware": "GPU", "torch": "2", "commit": "abc"},
        "tuned": tuned,
    }
    row = record_tables.record_finetuning({"runs": {"finetuning: 1e-4": run}}).splitlines()[-1]
    assert "| 82.0 (`--epochs 1`) |" in row
    assert row.endswith("| 59.0 | – |")


def test_settings_of_fine_tuning_that_scored_every_task_have_a_mean_of_medians() -> None:
    tasks = (task.split()[0] for task in record.load_plan().finetuning.tasks)
    tuned = {task: {"flags": "", "scores": [0.4, 0.5], "median": 0.45} for task in tasks}
    made = {"hardware": "GPU", "torch": "2", "commit": "abc"}
    run = {"stage": "finetuning", "arm": "a", "settings": "", "made": made, "tuned": tuned}
    row = record_tables.record_finetuning({"runs": {"a": run}}).splitlines()[-1]
    assert row.endswith("| 45.0 ± 7.1 | 45.0 |")


def test_the_same_settings_of_fine_tuning_on_another_machine_count_once() -> None:
    run = {"stage": "finetuning", "settings": "--epochs 6"}
    runs = {"a": {**run, "arm": "GPU"}, "b": {**run, "arm": "CPU"}}
    assert "finetuning: 1 (runs: 2)" in record_tables.record_tried({"runs": runs})


def test_settings_of_fine_tuning_that_differ_between_arms_stand_below_the_table() -> None:
    runs = {"a": scored_run("base", 0, 0.7), "b": scored_run("other", 0, 0.7)}
    table = record_tables.record_stage({"runs": runs}, stage="quarter")
    assert "Fine-tuning:" not in table
    for tuned in runs["b"]["tuned"].values():
        tuned["flags"] = "--epochs 6"
    table = record_tables.record_stage({"runs": runs}, stage="quarter")
    assert "\nFine-tuning: base: default; other: `--epochs 6`." in table


def test_an_unfinished_arm_has_no_note_about_its_fine_tuning() -> None:
    runs = {"a": scored_run("base", 0, 0.7), "b": scored_run("other", 0, 0.7)}
    runs["b"]["tuned"] = {"glue/qnli": {**runs["b"]["tuned"]["glue/qnli"], "flags": "--epochs 2"}}
    assert "Fine-tuning:" not in record_tables.record_stage({"runs": runs}, stage="quarter")


def test_flags_that_all_arms_have_on_a_task_stand_below_the_table_once() -> None:
    runs = {"a": scored_run("base", 0, 0.7), "b": scored_run("other", 0, 0.7)}
    for run in runs.values():
        run["tuned"]["glue/qnli"]["flags"] = "--epochs 2"
    runs["b"]["tuned"] = dict(reversed(runs["b"]["tuned"].items()))
    table = record_tables.record_stage({"runs": runs}, stage="quarter")
    assert "\nFine-tuning: qnli `--epochs 2`, sst-2 default, cola default, " in table
    assert table.count("--epochs 2") == 1


def test_a_stage_without_results_says_that_it_was_not_run() -> None:
    nothing: dict[str, Any] = {"runs": {}, "speeds": {}}
    assert record_tables.record_effects(nothing).startswith("*Too few runs yet:*")
    for table in record_tables.STAGE_TABLES:
        assert table(nothing).startswith("*Not run yet:*")
    assert record_tables.record_finetuning(nothing).startswith("*Not run yet:*")
    assert record_tables.record_tried(nothing) == "Nothing has been tried yet."


# ---- the corpus ----------------------------------------------------------------------------------

DEV = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def test_paragraphs_that_share_13_words_with_a_dev_set_are_removed_and_counted(
    tmp_path: Path,
) -> None:
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "dev.tsv").write_text(f"index\tsentence\n0\t{DEV}\n", encoding="utf8")
    (tmp_path / "RTE" / "train.tsv").write_text("0\tclean\n", encoding="utf8")
    kept_out = record_corpus.ngrams_of(record_corpus.dev_texts([tmp_path]))
    assert len(kept_out) == 2
    documents = [
        {"text": f"a clean line\nAs in: {DEV.upper()}!", "source": "wiki"},
        {"text": "not asked for", "source": "news"},
        {"text": "of another worker", "source": "wiki"},
    ]
    part = tmp_path / "part.jsonl"
    part.write_text("".join(json.dumps(row) + "\n" for row in [*documents, *documents]), "utf8")
    counts = [
        record_corpus.filter_part(
            record_corpus.Job(part, 0, remainder),
            text=tmp_path,
            sources=["wiki"],
            kept_out=kept_out,
        )
        for remainder in range(3)
    ]
    assert counts[0]["wiki"] == {
        "kept": 2 * len("a clean line"),
        "removed": 2 * (len(documents[0]["text"]) - len("a clean line")),
        "documents": 2,
    }
    assert counts[1] == {"news": {"left_out": 2 * len("not asked for")}}
    first, second = (
        [json.loads(line)["text"] for line in path.read_text(encoding="utf8").splitlines()]
        for path in (tmp_path / "fifth-thirtieth-0-0.jsonl", tmp_path / "0-0.jsonl")
    )
    assert first == second == ["a clean line"]


def test_slices_are_parts_of_each_other(tmp_path: Path) -> None:
    for name in ("0-0", "fifth-0-0", "fifth-thirtieth-0-0"):
        (tmp_path / f"{name}.jsonl").touch()
    sizes = [len(record_corpus.slice_files(tmp_path, every)) for every in (1, 5, 30)]
    assert sizes == [3, 2, 1]


# ---- all of it -----------------------------------------------------------------------------------


def stop(*_: object) -> float:
    raise Stopped


@pytest.mark.slow
def test_a_stage_runs_whole_goes_on_and_refuses_changed_settings(
    toy_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    flags = (
        "--data.length 32 --encoder.layers 1 --encoder.width 16 --encoder.heads 2 "
        "--encoder.feedforward 16 --encoder.embedding 16 --objective.generator.layers 1 "
        "--objective.generator.width 16 --objective.generator.heads 2 --training.batch-size 8 "
        "--training.eval-rows 8"
    )
    text = record_plan.PLAN.read_text(encoding="utf8").partition("[scales.tiny]")[0]
    text += f'[scales.toy]\nmax_steps = 6\nflags = "{flags}"\n'
    text += 'finetune_flags = "--max-steps 2 --batch-size 4"\n'
    text = text.replace('"glue/qnli --max-train-examples 25000 --epochs 2",', "")
    text = text.replace('"glue/sts-b --epochs 5",', "")
    own = tmp_path / "plan.toml"
    own.write_text(text, encoding="utf8")
    monkeypatch.setattr(record, "load_plan", lambda scale: load_plan(own, scale))
    write_sst_2(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "128").symlink_to(toy_shards)
    output = tmp_path / "record.json"
    command = [
        *("--stage", "screen", "--scale", "toy", "--arms", "batch 128 to 512"),
        *("--folder", str(tmp_path / "work"), "--glue", str(tmp_path), "--output", str(output)),
    ]
    with monkeypatch.context() as stopped:
        stopped.setattr(Commands, "run", stop)
        with pytest.raises(SystemExit, match="1"):
            record.main(command)
    record.main(command)
    (entry,) = json.loads(output.read_text(encoding="utf8"))["runs"].values()
    assert "--training.initial-batch-size 2" in entry["command"]
    assert entry["steps"] == 6
    assert len(entry["tuned"]["glue/sst-2"]["scores"]) == 1
    capsys.readouterr()
    record.main(command)
    assert "screen: 0 runs left" in capsys.readouterr().out
    own.write_text(text.replace("--training.batch-size 8", "--training.batch-size 16"), "utf8")
    with pytest.raises(UserError, match="other settings"):
        record.main(command)
