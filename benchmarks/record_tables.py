"""The tables of `benchmarks.record`, for docs/record.md."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean

from benchmarks.encoder_tables import format_spread
from benchmarks.harness import Result
from benchmarks.markdown import (
    RESULTS,
    format_flags,
    machines_with_commits,
    table_header,
    table_row,
)
from benchmarks.record_comparison import (
    CASES,
    CONFIDENCE,
    Arms,
    Difference,
    Effects,
    compare_arms,
    estimate_effects,
    is_scored,
    mean_score,
    pool_spread,
    scores_by_arm,
)
from benchmarks.record_plan import Plan, load_plan
from benchmarks.record_results import read_record

PUBLISHED = (
    "ELECTRA-Small, open twin (published)",
    {"cola": 56.8, "sst-2": 88.3, "mrpc": 87.4, "sts-b": 86.8, "qnli": 87.9, "rte": 68.5},
)


def stage_runs(result: Result | None, stage: str) -> dict[str, list[Result]]:
    """Return the runs of a stage by arm; failed ones too."""
    if result is None:
        result = read_record(RESULTS / "record.json")
    arms: dict[str, list[Result]] = {}
    for run in result["runs"].values():
        if run["stage"] == stage:
            arms.setdefault(run["arm"], []).append(run)
    return arms


def record_stage(result: Result | None = None, *, stage: str) -> str:
    """Return what each arm of a stage read and scored, and how far from its reference it is."""
    plan, arms = load_plan(), stage_runs(result, stage)
    if not arms:
        return f"*Not run yet:* `python -m benchmarks.record --stage {stage}`."
    tasks = plan.stage(stage).task_names
    everything = [run for runs in arms.values() for run in runs]
    lines = table_header(
        f"{minutes_of(everything)}; {machines_with_commits(everything)}",
        "question",
        "seeds",
        "parameters",
        "tokens (epochs)",
        "FLOPs, standard; official",
        *(task.removeprefix("glue/") for task in tasks),
        "mean",
        "against its reference",
    )
    scores = scores_by_arm(arms, tasks)
    differences = compare_arms(scores, plan.arms, plan.stage(stage))
    for arm in by_question(arms, scores, plan):
        shown = format_difference(differences.get(arm), usual=plan.stage(stage).reference)
        lines.append(arm_row(arm, arms[arm], tasks, shown))
    if tasks == list(plan.stage(stage).tasks):  # on all of their training data, by the defaults
        name, published = PUBLISHED
        cells = [f"{published[task.removeprefix('glue/')]:.1f}" for task in tasks]
        lines.append(table_row(name, *["–"] * 5, *cells, f"{fmean(published.values()):.1f}", "–"))
    notes = [
        *failures(everything),
        *tuning_notes(arms, tasks),
        describe_spread(scores, differences),
    ]
    return "\n".join([*lines, *notes])


def by_question(arms: Arms, scores: Mapping[str, Sequence[float]], plan: Plan) -> list[str]:
    """Return the arms with those of one question together, as record.toml orders the questions, and
    of them the best first.
    """
    questions = list(dict.fromkeys(arm.question for arm in plan.arms))

    def order(arm: str) -> tuple[int, float]:
        question = arms[arm][0]["question"]
        place = questions.index(question) if question in questions else len(questions)
        return place, -fmean(scores.get(arm, [-1.0]))

    return sorted(arms, key=order)


def format_difference(difference: Difference | None, *, usual: str) -> str:
    """Return a difference with the reference where that is not the usual one; bold where it is
    clear.
    """
    if difference is None:
        return "–"
    text = format_points(difference.points, bold=difference.is_clear)
    if difference.reference != usual:
        text += f" ({difference.reference})"
    return text


def format_points(points: float, *, bold: bool) -> str:
    text = f"{points:+.1f}"
    if bold:
        text = f"**{text}**"
    return text


def minutes_of(runs: Sequence[Result]) -> str:
    """Return the minutes of pre-training of runs; a failed one may have none."""
    minutes = sorted({run["minutes"] for run in runs if "minutes" in run})
    return f"{' or '.join(f'{each:.3g}' for each in minutes) or 'no'} minutes of pre-training each"


def arm_row(arm: str, runs: Sequence[Result], tasks: Sequence[str], difference: str) -> str:
    """Return the row of one arm; one that has failed, or is not scored yet, says so."""
    pretrained = [run for run in runs if "parameters" in run and "failed" not in run]
    question = runs[0]["question"]
    if not pretrained:
        return table_row(arm, question, "0", *["–"] * (3 + len(tasks)), "–", "–")
    shown = [run for run in pretrained if is_scored(run, tasks)] or pretrained
    first, cells = shown[0], []
    for task in tasks:
        tuned = [run["tuned"][task] for run in shown if task in run.get("tuned", {})]
        medians = [100 * each["median"] for each in tuned]
        cells.append(format_spread(medians) if medians else "not measured")
    means = [mean_score(run, tasks) for run in shown if is_scored(run, tasks)]
    return table_row(
        arm,
        question,
        str(len(shown)),
        f"{first['parameters'] / 1e6:.1f}M",
        f"{first['tokens_seen'] / 1e6:,.0f}M ({first['epochs']:.1f})",
        f"{first['flops']['standard']:.2e}; {first['flops']['official']:.2e}",
        *cells,
        format_spread(means) if means else "–",
        difference,
    )


def failures(runs: Sequence[Result]) -> list[str]:
    """Return a line for each run that failed."""
    failed = [run for run in runs if "failed" in run]
    lines = [f"- {run['arm']}, seed {run['seed']}: {run['failed']}" for run in failed]
    if lines:
        lines = ["", "Failed:", "", *lines]
    return lines


def tuning_notes(arms: Arms, tasks: Sequence[str]) -> list[str]:
    """Return the settings of fine-tuning, by arm where they differ; nothing where all are the
    defaults.
    """
    shown = {}
    for arm, runs in arms.items():
        if scored := [run["tuned"] for run in runs if is_scored(run, tasks)]:
            shown[arm] = format_task_flags({task: scored[0][task] for task in tasks})
    match list(dict.fromkeys(shown.values())):
        case [] | ["default"]:
            return []
        case [same]:
            return ["", f"Fine-tuning: {same}."]
    return ["", f"Fine-tuning: {'; '.join(f'{arm}: {flags}' for arm, flags in shown.items())}."]


def format_task_flags(tuned: Mapping[str, Result]) -> str:
    """Return the flags of all tasks, or of each where they differ."""
    flags = {task: format_flags(entry.get("flags")) for task, entry in tuned.items()}
    if len(set(flags.values())) == 1:
        return next(iter(flags.values()))
    return ", ".join(f"{task.removeprefix('glue/')} {each}" for task, each in flags.items())


def describe_spread(
    scores: Mapping[str, Sequence[float]], differences: Mapping[str, Difference]
) -> str:
    """Return how far apart seeds are, which a difference must exceed."""
    spread = pool_spread(scores)
    if spread is None:
        return "\nThe spread is unknown: no arm has two seeds here."
    repeated = [f"{arm} ({len(values)})" for arm, values in scores.items() if len(values) > 1]
    text = (
        f"\nSeeds of one arm have a standard deviation of {spread.deviation:.2f}, pooled over "
        f"{', '.join(repeated)} and taken to be the same for every arm."
    )
    limits = sorted({each.by_chance for each in differences.values() if each.by_chance is not None})
    if not limits:
        return text
    largest = " or ".join(dict.fromkeys(f"{limit:.1f}" for limit in limits))
    count, clear = len(differences), sum(each.is_clear for each in differences.values())
    return text + (
        f" By chance alone, in {CASES}, an arm is at most {largest} points from its reference "
        f"(Student's t; by the number of seeds). Differences larger than that, in bold: {clear} of "
        f"{count}; of {count} arms that change nothing {count * (1 - CONFIDENCE):.1f} would be, on "
        "average."
    )


def record_effects(result: Result | None = None) -> str:
    """Return what each factor of the factorial experiment changes, on each task and on average."""
    plan = load_plan()
    factorial, stage = plan.factorial, plan.stage(plan.factorial.stage)
    runs = stage_runs(result, stage.name)
    scored = {arm: [run for run in runs[arm] if is_scored(run, stage.task_names)] for arm in runs}
    columns = {task.removeprefix("glue/"): [task] for task in stage.task_names}
    columns["mean"] = stage.task_names
    effects = {}
    for column, tasks in columns.items():
        found = estimate_effects(scores_by_arm(scored, tasks), factorial)
        if found is None:
            return f"*Too few runs yet:* `python -m benchmarks.record --stage {stage.name}`."
        effects[column] = found
    lines = table_header("effect, in points", *columns)
    for factor in factorial.factors:
        cells = [
            format_points(each.points[factor], bold=each.is_clear(factor))
            for each in effects.values()
        ]
        lines.append(table_row(factor, *cells))
    if effects["mean"].by_chance is not None:
        limits = [f"{each.by_chance:.1f}" for each in effects.values()]
        lines.append(table_row(f"chance, in {CASES}", *limits))
    planned = sum(arm.name in factorial.combinations() for arm, _ in plan.runs(stage))
    return "\n".join([*lines, describe_effects(effects, planned=planned)])


def describe_effects(effects: Mapping[str, Effects], *, planned: int) -> str:
    """Return how the effects were estimated, and how many chance alone makes look clear."""
    text = (
        f"\nLeast-squares estimates from {effects['mean'].runs} of {planned} runs, averages over "
        "the other changes. What changes do together is counted as chance, but what all others do "
        "together cannot be told apart from the effect of one."
    )
    if effects["mean"].by_chance is None:
        return text
    tasks = [each for column, each in effects.items() if column != "mean"]
    count = sum(len(each.points) for each in tasks)
    clear = sum(each.is_clear(factor) for each in tasks for factor in each.points)
    return text + (
        f" Larger than chance explains (Student's t), in bold: {clear} of {count} effects on one "
        f"task; of {count} changes that do nothing {count * (1 - CONFIDENCE):.1f} would be, on "
        "average."
    )


def record_finetuning(result: Result | None = None) -> str:
    """Return the scores of each setting of fine-tuning, with the model that it was tried on."""
    searched, settings = load_plan().finetuning, stage_runs(result, "finetuning")
    if not settings:
        return "*Not run yet:* `python -m benchmarks.record --stage finetuning --model RUN`."
    tasks = [task.split()[0] for task in searched.tasks]
    everything = [run for runs in settings.values() for run in runs]
    lines = table_header(
        machines_with_commits(everything),
        "model",
        "flags",
        "seeds",
        *(task.removeprefix("glue/") for task in tasks),
        "mean of medians",
    )
    for name, (run,) in settings.items():
        tuned = [run.get("tuned", {}).get(task, {}) for task in tasks]
        cells = [format_tuned(entry, run["settings"]) for entry in tuned]
        seeds = max(len(entry.get("scores", [])) for entry in tuned)
        mean = "–"
        if all("median" in entry for entry in tuned):
            mean = f"{mean_score(run, tasks):.1f}"
        flags = format_flags(run["settings"])
        lines.append(table_row(name, run.get("model", "–"), flags, str(seeds), *cells, mean))
    return "\n".join(lines)


def format_tuned(entry: Result, settings: str) -> str:
    """Return the scores of a task, with the flags that the task had besides the settings."""
    cell = format_spread([100 * score for score in entry.get("scores", [])])
    own = entry.get("flags", "").removesuffix(settings).strip()
    if own:
        cell += f" (`{own}`)"
    return cell


def record_tried(result: Result | None = None) -> str:
    """Return how many settings were tried, since dev sets chose among them."""
    counts = {}
    for stage in load_plan().stages:
        arms = stage_runs(result, stage)
        counts[stage] = (len(arms), sum(len(runs) for runs in arms.values()))
    tunings = [run for runs in stage_runs(result, "finetuning").values() for run in runs]
    tried = {without_defaults(run["settings"]) for run in tunings}
    counts["finetuning"] = (len(tried), len(tunings))
    if not any(runs for _, runs in counts.values()):
        return "Nothing has been tried yet."
    parts = [f"{stage}: {tried} (runs: {runs})" for stage, (tried, runs) in counts.items() if runs]
    return (
        f"Settings that were tried, by stage: {', '.join(parts)}. Runs of 2,000 steps tried about "
        "a dozen of pre-training before, and a screen whose result file is lost thirty. Dev sets "
        "chose among them, so the best of them is a little lucky on dev."
    )


def without_defaults(settings: str) -> frozenset[tuple[str, str]]:
    """Return flags without those that were asked for by name before they were the default."""
    words = shlex.split(settings)
    pairs = zip(words[::2], words[1::2], strict=True)
    return frozenset(pairs) - {("--pooling", "mean")}


def named(stage: str) -> partial[str]:
    """Return the table of a stage under a name of its own."""
    table = partial(record_stage, stage=stage)
    table.__name__ = f"record_{stage}"  # type: ignore[attr-defined]
    return table


STAGE_TABLES = tuple(named(stage) for stage in ("screen", "confirm", "quarter", "final"))
TABLES = (*STAGE_TABLES, record_effects, record_finetuning, record_tried)
