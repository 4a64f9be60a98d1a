"""The tables of `benchmarks.beyond_glue`, for docs/record.md."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from benchmarks.beyond_glue import OUTPUT, PAIRS
from benchmarks.harness import Result, read_earlier
from benchmarks.markdown import format_flags, machines_with_commits, table_header, table_row

NOT_RUN = '*Not run yet:* `python -m benchmarks.beyond_glue "MODEL=NAME" …`.'
ROWS = {
    "ner": "CoNLL-2003 entities, F1, dev",
    "chunk": "CoNLL-2000 chunks, F1, test",
    "squad-1.1": "SQuAD 1.1, F1, dev",
    "race": "RACE, accuracy, dev",
    PAIRS: "minimal pairs, accuracy",
}


def beyond_glue(result: Result | None = None) -> str:
    """Return the scores of each model on each task, and where the first model is not ahead."""
    result = result or read_earlier(OUTPUT)
    if not result:
        return NOT_RUN
    names, runs = result["models"], list(result["runs"].values())
    seeds = "one seed"
    if any(run.get("seed") for run in runs):
        seeds = "median (every seed)"
    title = f"{seeds}; {machines_with_commits(runs)}"
    lines = table_header(title, *names, "baseline", "settings")
    for task, row in ROWS.items():
        scored = [run for run in runs if run["task"] == task and "failed" not in run]
        if scored:
            cells = [format_scores(scores_of(scored, name)) for name in names]
            baseline = f"{100 * scored[0]['baseline']:.1f}"
            lines.append(table_row(row, *cells, baseline, format_settings(scored)))
    failed = [run for run in runs if "failed" in run]
    failures = [f"- {run['model']}, {run['task']}: {run['failed']}" for run in failed]
    if failures:
        failures = ["", "Failed:", "", *failures]
    return "\n".join([*lines, *failures, "", *compare(names, runs)])


def scores_of(runs: Sequence[Result], name: str) -> list[float]:
    """Return the scores of a model by seed, in points."""
    own = sorted((run for run in runs if run["model"] == name), key=lambda run: run.get("seed", 0))
    return [100 * run["score"] for run in own]


def format_scores(scores: Sequence[float]) -> str:
    if not scores:
        return "–"
    text = f"{median(scores):.1f}"
    if len(scores) > 1:
        text += f" ({', '.join(f'{score:.1f}' for score in scores)})"
    return text


def format_settings(runs: Sequence[Result]) -> str:
    """Return the flags of the fine-tunings of a task; those of each model where they differ."""
    if runs[0]["task"] == PAIRS:
        return f"{runs[0]['settings']} pairs a paradigm"
    settings = {run["model"]: run["settings"] for run in runs}
    if len(set(settings.values())) > 1:
        return "; ".join(f"{name}: {format_flags(flags)}" for name, flags in settings.items())
    return format_flags(next(iter(settings.values())))


def compare(names: Sequence[str], runs: Sequence[Result]) -> list[str]:
    """Return, for each other model, on how many tasks the first is ahead and where it is not."""
    first, *others = names
    lines = []
    for other in others:
        ahead, behind = [], []
        for task in ROWS:
            scored = [run for run in runs if run["task"] == task and "failed" not in run]
            ours, theirs = scores_of(scored, first), scores_of(scored, other)
            if ours and theirs:
                (behind, ahead)[median(ours) > median(theirs)].append(task)
        text = f"{first} is ahead of {other} on {len(ahead)} of {len(ahead) + len(behind)}"
        if behind:
            text += f", and not on {', '.join(behind)}"
        both = [*ahead, *behind]
        if flags_of(runs, first, both) != flags_of(runs, other, both):
            text = f"With different settings of fine-tuning, {text}"
        lines.append(f"{text}.")
    return lines


def flags_of(runs: Sequence[Result], name: str, tasks: Sequence[str]) -> set[tuple[str, str]]:
    """Return the flags of a model's fine-tunings on some tasks."""
    own = [run for run in runs if run["model"] == name and "failed" not in run]
    return {(run["task"], run["settings"]) for run in own if run["task"] in tasks}


def below_chance(runs: Sequence[Result]) -> str:
    """Return the paradigms of minimal pairs on which a model prefers the wrong sentences."""
    found = []
    for run in runs:
        for paradigm, accuracy in run.get("accuracies", {}).items():
            if accuracy < run["baseline"]:
                found.append(f"{paradigm.replace('_', ' ')} ({100 * accuracy:.1f})")
    if not found:
        return ""
    return f"Minimal pairs of which it prefers the wrong sentence more often: {', '.join(found)}."


def beyond_glue_pairs(result: Result | None = None) -> str:
    """Return the accuracy of each model on each paradigm of minimal pairs."""
    result = result or read_earlier(OUTPUT)
    scored = {}
    for run in result.get("runs", {}).values():
        if run["task"] == PAIRS:
            scored[run["model"]] = run["accuracies"]
    if not scored:
        return NOT_RUN
    lines = table_header("accuracy; chance is 50.0", *scored)
    for paradigm in next(iter(scored.values())):
        cells = [f"{100 * accuracies[paradigm]:.1f}" for accuracies in scored.values()]
        lines.append(table_row(paradigm.replace("_", " "), *cells))
    means = [f"{100 * fmean(accuracies.values()):.1f}" for accuracies in scored.values()]
    return "\n".join([*lines, table_row("mean", *means)])


TABLES = (beyond_glue, beyond_glue_pairs)
