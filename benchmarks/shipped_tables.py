"""What the card of a model that comes with the package says of its scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from statistics import fmean, median

from benchmarks.harness import Result
from benchmarks.markdown import format_flags, result_or_file, table_header, table_row
from benchmarks.record_comparison import is_scored, mean_score
from benchmarks.record_tables import PUBLISHED
from electra.cli.quickstart import SHIPPED

STAGE, ARM = "final", "18x256, dropout 0.1"  # the run that is shipped
RECIPE = "modern-small-deep"  # its settings


def shipped_scores(result: Result | None = None, *, stage: str = STAGE, arm: str = ARM) -> str:
    """Return the scores of a model, with all seeds, beside published ones."""
    run = find_run(result_or_file(result, "record"), stage, arm)
    if run is None:
        return "not measured"
    name, published = PUBLISHED
    settings = f"`{run['settings']}`"
    if (stage, arm) == (STAGE, ARM):
        settings = f"recipe `{RECIPE}`"
    lines = [
        f"{run['minutes']:g} minutes of pre-training on one {run['made']['hardware']}, "
        f"{settings}. Dev sets, in points, medians of the seeds of fine-tuning; QNLI has a rebuilt "
        "training set. The published model read OpenWebText for 1,000,000 steps.",
        "",
        *table_header("task", "median", "every seed", "settings", name),
    ]
    medians = []
    for task, entry in sorted(run["tuned"].items()):
        medians.append(100 * median(entry["scores"]))
        beside = published.get(task.removeprefix("glue/"))
        every = format_points(entry["scores"])
        flags = format_flags(entry.get("flags"))
        lines.append(table_row(task, f"{medians[-1]:.1f}", every, flags, str(beside or "–")))
    if {task.removeprefix("glue/") for task in run["tuned"]} == set(published):
        mean = f"{fmean(published.values()):.1f}"
        lines.append(table_row("mean", f"{fmean(medians):.1f}", "", "", mean))
    return "\n".join(lines)


def find_run(record: Result, stage: str = STAGE, arm: str = ARM) -> Result | None:
    """Return the first run of an arm that has scores."""
    for run in record["runs"].values():
        if (run["stage"], run["arm"]) == (stage, arm) and run.get("tuned"):
            return run
    return None


# ---- what the scores do not say ------------------------------------------------------------------


def shipped_limits(
    result: Result | None = None, *, name: str = SHIPPED, stage: str = STAGE, arm: str = ARM
) -> str:
    """Return how much the scores depend on the seed of pre-training, what rounding costs, and what
    other settings of fine-tuning have.
    """
    record = result_or_file(result, "record")
    run = find_run(record, stage, arm)
    seeds = rounding = ""
    tunings: list[str] = []
    if run is not None:
        seeds = "".join(describe_other_seeds(record, run))
        rounding = "".join(describe_rounding(record, run, name))
        tunings = list(describe_other_tunings(record, run, name))
    lines = [
        f"- One seed of pre-training.{seeds or ' How much the scores depend on it is not known.'}",
        "- Weights are rounded to bf16; computation is in float32 unless another dtype is asked "
        f"for. The tasks were scored with the weights before that.{rounding}",
        *tunings,
    ]
    return "\n".join(lines)


def describe_other_seeds(record: Result, shipped: Result) -> Iterator[str]:
    """Yield, for each number of minutes, what other seeds of the same settings have scored."""
    tasks = sorted(shipped["tuned"])
    others: dict[float, list[Result]] = {}
    for run in record["runs"].values():
        is_same = (run["arm"], run["settings"]) == (shipped["arm"], shipped["settings"])
        if is_same and run["seed"] != shipped["seed"] and is_scored(run, tasks):
            others.setdefault(run["minutes"], []).append(run)
    for minutes, runs in sorted(others.items()):
        means = [f"{mean_score(run, tasks):.1f}" for run in runs]
        if len(means) == 1:
            yield f" Another, of {minutes:g} minutes, has a mean of {means[0]} on the same tasks."
            continue
        spans = {task: span([run["tuned"][task]["median"] for run in runs]) for task in tasks}
        widest = max(tasks, key=spans.__getitem__)
        yield (
            f" Others, of {minutes:g} minutes, have means of {', '.join(means[:-1])} and "
            f"{means[-1]} on the same tasks; single tasks differ by up to {spans[widest]:.1f} "
            f"points ({widest})."
        )


def span(scores: list[float]) -> float:
    """Return how far apart the best and the worst score are, in points."""
    return 100 * (max(scores) - min(scores))


def describe_rounding(record: Result, shipped: Result, name: str) -> Iterator[str]:
    """Yield scores of the rounded weights beside those of the same seeds and settings before."""
    for run in tunings_of(record, shipped, name):
        for task, entry in run.get("tuned", {}).items():
            if pairs := compare_seeds(entry, shipped["tuned"].get(task)):
                hardware = run["made"]["hardware"]
                yield f" As shipped, {task} has {', '.join(pairs)} on {hardware}."


def describe_other_tunings(record: Result, shipped: Result, name: str) -> Iterator[str]:
    """Yield a line for each other setting of fine-tuning that this model has on the same GPU."""
    known = {entry.get("flags", "") for entry in shipped["tuned"].values()}
    for run in tunings_of(record, shipped, name):
        is_same_gpu = run["made"]["hardware"] == shipped["made"]["hardware"]
        if not is_same_gpu or run["settings"] in known:
            continue
        scores = [
            f"{task} {100 * median(entry['scores']):.1f} ({format_points(entry['scores'])})"
            for task, entry in sorted(run.get("tuned", {}).items())
            if entry["scores"] and entry.get("flags", "") == run["settings"]
        ]
        if scores:
            flags = format_flags(run["settings"]) if run["settings"] else "the default settings"
            yield f"- As shipped, with {flags}: {'; '.join(scores)}."


def tunings_of(record: Result, shipped: Result, name: str) -> Iterator[Result]:
    """Yield the fine-tunings of a shipped model. What was fine-tuned before it was made was another
    one of its name.
    """
    for run in record["runs"].values():
        if run.get("model") == name and run["made"]["date"] >= shipped["made"]["date"]:
            yield run


def format_points(scores: list[float]) -> str:
    return ", ".join(f"{100 * score:.1f}" for score in scores)


def compare_seeds(entry: Result, before: Result | None) -> list[str]:
    """Return each score of rounded weights beside that of the same seed before."""
    if before is None or before.get("flags", "") != entry.get("flags", ""):
        return []
    scores = scores_by_seed(before)
    return [
        f"{100 * score:.1f} ({100 * scores[seed]:.1f} before; seed {seed})"
        for seed, score in scores_by_seed(entry).items()
        if seed in scores
    ]


def scores_by_seed(entry: Result) -> dict[int, float]:
    return dict(zip(entry.get("seeds", count()), entry["scores"], strict=False))


TABLES: tuple[Callable[[], str], ...] = (shipped_scores, shipped_limits)
