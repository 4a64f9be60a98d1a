"""The scores of a model that comes with the package: in its card, and in a row of the README."""

from __future__ import annotations

from statistics import fmean, median

from benchmarks.harness import Result
from benchmarks.markdown import format_flags, result_or_file, table_header, table_row
from benchmarks.record_tables import PUBLISHED

STAGE, ARM = "final", "18x256, dropout 0.1"  # the run that is shipped
RECIPE = "modern-small-deep"  # its settings


def shipped_scores(result: Result | None = None, *, stage: str = STAGE, arm: str = ARM) -> str:
    """Return the scores of a model, with all seeds, beside published ones."""
    run = find_shipped(result_or_file(result, "record"), stage, arm)
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
        scores = [100 * score for score in entry["scores"]]
        medians.append(median(scores))
        beside = published.get(task.removeprefix("glue/"))
        every = ", ".join(f"{score:.1f}" for score in scores)
        flags = format_flags(entry.get("flags"))
        lines.append(table_row(task, f"{medians[-1]:.1f}", every, flags, str(beside or "–")))
    if {task.removeprefix("glue/") for task in run["tuned"]} == set(published):
        mean = f"{fmean(published.values()):.1f}"
        lines.append(table_row("mean", f"{fmean(medians):.1f}", "", "", mean))
    return "\n".join(lines)


def find_shipped(record: Result, stage: str = STAGE, arm: str = ARM) -> Result | None:
    """Return the first run of an arm that has scores."""
    for run in record["runs"].values():
        if (run["stage"], run["arm"]) == (stage, arm) and "tuned" in run:
            return run
    return None


TABLES = (shipped_scores,)
