"""The tables of `benchmarks.encoders`: what each arm learnt, over its seeds."""

from __future__ import annotations

from statistics import mean, median, stdev

from benchmarks.harness import Result
from benchmarks.markdown import machines_with_commits, result_or_file, table_header, table_row

POOLINGS = ("mean", "[CLS]")  # tunings that differ from the defaults in their pooling alone
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
                *(format_spread(tuned_scores(runs, task)) for task in TASKS),
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


def tuned_scores(runs: list[Result], task: str) -> list[float]:
    """Return the scores of all runs on a task; none where they were not fine-tuned on it."""
    pooling = pooling_of(runs)
    tuned = [run.get("tuned", {}).get(pooling, {}).get(task, {}) for run in runs]
    return [100 * score for results in tuned for score in results.get("scores", [])]


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
