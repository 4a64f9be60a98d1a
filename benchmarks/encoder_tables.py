"""The tables of `benchmarks.encoders`: what each arm learnt, over its seeds."""

from __future__ import annotations

from statistics import mean, median, stdev

from benchmarks.harness import Result
from benchmarks.markdown import machines_with_commits, result_or_file, table_header, table_row

POOLINGS = ("mean", "[CLS]")  # the tunings that are shown, one for an arm
TASKS = ("glue/qnli", "glue/sts-b")
ALL_TASKS = ("glue/cola", "glue/sst-2", "glue/mrpc", "glue/sts-b", "glue/qnli", "glue/rte")


def encoders(result: Result | None = None) -> str:
    """Return the held-out scores and the fine-tuned scores of each arm: mean ± deviation."""
    arms = runs_by_arm(result_or_file(result, "encoders"))
    every_run = [run for runs in arms.values() for run in runs]
    lines = table_header(
        f"mean ± standard deviation of seeds, {machines_with_commits(every_run)}",
        "seeds",
        "masked LM, accuracy (baseline)",
        "AUC",
        "pooling",
        *TASKS,
        "epochs",
    )
    for arm, runs in arms.items():
        last = [run["held_out"][-1] for run in runs]
        accuracy = format_spread([100 * scores["mlm_accuracy"] for scores in last])
        baseline = mean(100 * scores["baseline_mlm_accuracy"] for scores in last)
        lines.append(
            table_row(
                f"{arm}: `{runs[0]['settings'].split(' --')[0]}`",
                str(len(runs)),
                f"{accuracy} % ({baseline:.1f} %)",
                format_spread([scores["auc"] for scores in last], digits=3),
                pooling_of(runs),
                *(tuned_cell(runs, task) for task in TASKS),
                " and ".join(epochs_of(runs, task) for task in TASKS),
            )
        )
    return "\n".join(lines)


def encoder_tasks(result: Result | None = None) -> str:
    """Return median, least and greatest score of the arms that were fine-tuned on all tasks."""
    arms = {}
    for arm, runs in runs_by_arm(result_or_file(result, "encoders")).items():
        if all(tuned_scores(runs, task) for task in ALL_TASKS):
            arms[arm] = runs
    every_run = [run for runs in arms.values() for run in runs]
    machines = machines_with_commits(every_run)
    lines = table_header(f"median (least to greatest), {machines}", "pooling", "runs", *ALL_TASKS)
    for arm, runs in arms.items():
        scores = [tuned_scores(runs, task) for task in ALL_TASKS]
        cells = [f"{median(found):.1f} ({min(found):.1f} to {max(found):.1f})" for found in scores]
        lines.append(table_row(arm, pooling_of(runs), str(len(scores[0])), *cells))
    baselines = [f"{100 * baseline_of(every_run, task):.1f}" for task in ALL_TASKS if every_run]
    lines.append(table_row("baseline: the best constant answer", "", "", *baselines))
    return "\n".join(lines)


def runs_by_arm(result: Result) -> dict[str, list[Result]]:
    """Return the runs of each arm, those with most seeds first."""
    arms: dict[str, list[Result]] = {}
    for run in result["runs"].values():
        arms.setdefault(run["arm"], []).append(run)
    return dict(sorted(arms.items(), key=lambda item: -len(item[1])))


def pooling_of(runs: list[Result]) -> str:
    """Return the pooling by which an arm was fine-tuned."""
    tunings = {name for run in runs for name in run.get("tuned", {})}
    return next((pooling for pooling in POOLINGS if pooling in tunings), "–")


def tuned_cell(runs: list[Result], task: str) -> str:
    """Return the scores of a task, and how many there are if not one for each run."""
    scores = tuned_scores(runs, task)
    text = format_spread(scores)
    if scores and len(scores) != len(runs):
        text += f" ({len(scores)} scores)"
    return text


def epochs_of(runs: list[Result], task: str) -> str:
    """Return the epochs of an arm's fine-tunings on a task, which are the same in all its runs."""
    found = {find_epochs(entry.get("flags", "")) for entry in tuned_entries(runs, task)}
    return "/".join(sorted(found)) or "–"


def find_epochs(flags: str) -> str:
    words = flags.split()
    if "--epochs" not in words:
        return "default"
    return words[words.index("--epochs") + 1]


def tuned_scores(runs: list[Result], task: str) -> list[float]:
    """Return the scores of all runs on a task; none where they were not fine-tuned on it."""
    return [100 * score for entry in tuned_entries(runs, task) for score in entry["scores"]]


def tuned_entries(runs: list[Result], task: str) -> list[Result]:
    """Return what is known of the fine-tunings of an arm's runs on a task."""
    pooling = pooling_of(runs)
    tuned = [run.get("tuned", {}).get(pooling, {}).get(task, {}) for run in runs]
    return [entry for entry in tuned if entry.get("scores")]


def baseline_of(runs: list[Result], task: str) -> float:
    """Return the score on a task of the best answer that ignores the text."""
    return float(runs[0]["tuned"][pooling_of(runs[:1])][task]["baseline"])


def format_spread(values: list[float], digits: int = 1) -> str:
    """Return the mean of values and their standard deviation, where there are several."""
    if not values:
        return "not measured"
    text = f"{mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {stdev(values):.{digits}f}"
    return text


TABLES = (encoders, encoder_tasks)
