"""The tables of a trial: scores beside the published ones, and costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from electra.config import build
from electra.experiments.findings import Finding, Findings
from electra.experiments.plan import Arm
from electra.model.flops import encoder_parameters
from electra.model.shape import EncoderShape
from electra.reports.blocks import Grid
from electra.reports.missing import is_started
from electra.reports.numbers import NOTHING, as_count, as_power, as_range
from electra.reports.samples import (
    Sample,
    averages,
    baseline,
    findings_of,
    shared_tasks,
    task_sample,
)

# Metrics of a generator, and their heading. A metric in points is multiplied by 100.
GENERATOR = {
    "eval_mlm_accuracy": "generator accuracy, points",
    "eval_generator_entropy": "generator entropy, nats",
}
FACTORS = {"eval_mlm_accuracy": 100}
BASELINE = "an answer that ignores the text"
COST_HEAD = (
    "arm",
    "parameters",
    "seeds done",
    "FLOPs, standard",
    "FLOPs, official script's",
    "minutes",
    "steps",
    "tokens",
    "epochs",
)


# ---- scores --------------------------------------------------------------------------------------


def score_table(findings: Findings) -> Grid:
    """Return our scores by task and on average, then the published ones in labelled columns."""
    trial = findings.trial
    with_values = {column for arm in trial.arms for column in arm.published}
    published = [column for column in trial.columns if column in with_values]
    columns = [*score_columns(findings), *generator_columns(findings)]
    head = ["arm", *(name for name, _ in columns)]
    head += [f"published: {column}" for column in published]
    rows = []
    for arm in trial.arms:
        label = arm.label
        if not arm.stages:
            label = f"{arm.label} (published only)"
        ours = [cells.get(arm.name, NOTHING) for _, cells in columns]
        rows.append([label, *ours, *(published_cell(arm, column) for column in published)])
    if any(baseline(findings, task) is not None for task in findings.tasks):
        level = [cells[BASELINE] for _, cells in columns]
        rows.append([BASELINE, *level, *[""] * len(published)])
    return Grid(head, rows)


# A column of our scores: its heading, and its cells by arm's name and for `BASELINE`.
Column = tuple[str, dict[str, str]]


def score_columns(findings: Findings) -> list[Column]:
    """Return a column for each task, and for each average."""
    metrics: dict[str, str] = {}
    for finding in findings.results:
        metrics |= {score.task: score.metric for score in finding.scores}
    columns = []
    for task in findings.tasks:
        samples = {}
        for arm in findings.trial.arms:
            samples[arm.name] = task_sample(findings_of(findings, arm), task)
        cells = score_cells(samples, baseline(findings, task))
        columns.append((f"{task} {metrics.get(task, '')}".strip(), cells))
    for tasks in averaged_tasks(findings):
        cells = score_cells(averages(findings, tasks), baseline(findings, *tasks))
        columns.append((f"average of {len(tasks)}", cells))
    return columns


def score_cells(samples: Mapping[str, Sample | None], level: float | None) -> dict[str, str]:
    cells = {name: str(sample) for name, sample in samples.items() if sample}
    cells[BASELINE] = NOTHING
    if level is not None:
        cells[BASELINE] = f"{level:.1f}"
    return cells


def averaged_tasks(findings: Findings) -> list[Sequence[str]]:
    """Return the lists of tasks to average over: those that all arms have, then all of them."""
    shared, every_task = shared_tasks(findings), list(findings.tasks)
    lists = [shared]
    if every_task != shared:
        lists.append(every_task)
    return [tasks for tasks in lists if len(tasks) > 1]


def published_cell(arm: Arm, column: str) -> str:
    value = arm.published.get(column)
    if value is None:
        return NOTHING
    if isinstance(value, float) and value >= 1e6:
        return f"{value:g}".replace("e+", "e")
    return str(value)


def generator_columns(findings: Findings) -> list[Column]:
    """Return the generators' metrics on our held-out rows, where the paper has such a column."""
    if "generator accuracy" not in findings.trial.columns:
        return []
    columns = []
    for metric, heading in GENERATOR.items():
        cells = generator_cells(findings, metric)
        if cells:
            cells[BASELINE] = ""
            if metric == "eval_mlm_accuracy":
                cells[BASELINE] = baseline_accuracy(findings)
            columns.append((f"held-out rows of ours: {heading}", cells))
    return columns


def generator_cells(findings: Findings, metric: str) -> dict[str, str]:
    """Return a generator's metric by arm, at the end of the runs that have ended.

    A masked LM measures its own words, and is no generator.
    """
    cells = {}
    for arm in findings.trial.arms:
        ended = [f for f in findings_of(findings, arm) if f.steps == f.max_steps]
        last = [entries[-1] for finding in ended if (entries := generator_entries(finding))]
        values = [entry[metric] for entry in last if entry.get(metric) is not None]
        if values:
            factor = FACTORS.get(metric, 1)
            cells[arm.name] = str(Sample(tuple(factor * value for value in values)))
    return cells


def generator_entries(finding: Finding) -> list[dict[str, Any]]:
    """Return the entries of a journal that measure a generator."""
    return [entry for entry in finding.journal if entry.get("eval_generator_entropy") is not None]


def baseline_accuracy(findings: Findings) -> str:
    """Return what the most frequent word gets where a generator is measured, in points."""
    entries = [entry for finding in findings.results for entry in generator_entries(finding)]
    accuracies = [entry.get("eval_baseline_mlm_accuracy") for entry in entries]
    known = [100 * accuracy for accuracy in accuracies if accuracy is not None]
    if not known:
        return ""
    return f"{statistics.fmean(known):.1f}"


def describe_scoring(findings: Findings) -> str:
    """Return how networks were fine-tuned, how often each, and how far its seeds lie apart."""
    evaluation = findings.scale.evaluation
    settings = dict(evaluation.settings)
    for task, own in evaluation.settings_of.items():
        settings |= {f"{task}: {key}": value for key, value in own.items()}
    text = f"Fine-tuned by recipe {evaluation.recipe}"
    if settings:
        pairs = ", ".join(f"{key} = {value}" for key, value in settings.items())
        text += f" with {pairs}"
    text += f"; {describe_seeds(findings)} for each pre-trained network; scored on dev sets."
    spreads = ", ".join(f"{sd:.1f} on {task}" for task, sd in seed_spreads(findings).items())
    if spreads:
        text += (
            " Between the fine-tuning seeds of one network the standard deviation is, in points "
            f"and on average, {spreads}."
        )
    return text


def describe_seeds(findings: Findings) -> str:
    counts = {len(score.values) for finding in findings.results for score in finding.scores}
    if not counts:
        return "no fine-tuning seeds"
    if counts == {1}:
        return "1 fine-tuning seed"
    return f"{as_range(str(min(counts)), str(max(counts)))} fine-tuning seeds"


def seed_spreads(findings: Findings) -> dict[str, float]:
    """Return by task the mean standard deviation between fine-tuning seeds, in points."""
    scores = [score for finding in findings.results for score in finding.scores]
    several = [score for score in scores if len(score.values) > 1]
    spreads = {}
    for task in findings.tasks:
        own = [100 * statistics.stdev(score.values) for score in several if score.task == task]
        if own:
            spreads[task] = statistics.fmean(own)
    return spreads


# ---- costs ---------------------------------------------------------------------------------------


def cost_table(findings: Findings) -> Grid:
    """Return the costs of each arm: means over the seeds that are done, or else started."""
    rows = []
    for arm in findings.trial.arms:
        started = [f for f in findings_of(findings, arm) if is_started(f)]
        if started:
            rows.append(cost_row(arm, started, findings))
    return Grid(COST_HEAD, rows)


def cost_row(arm: Arm, started: Sequence[Finding], findings: Findings) -> list[str]:
    done = [finding for finding in started if finding.done]
    seeds = {finding.seed for finding in findings.results}
    counted = done or started
    tokens = statistics.fmean(finding.tokens for finding in counted)
    epochs = NOTHING
    if findings.corpus.get("tokens"):
        epochs = f"{tokens / findings.corpus['tokens']:.2g}"
    return [
        arm.label,
        describe_parameters(counted, findings),
        f"{len(done)} of {len(seeds)}",
        as_power(statistics.fmean(finding.flops for finding in counted)),
        as_power(statistics.fmean(finding.official_flops for finding in counted)),
        f"{statistics.fmean(finding.minutes for finding in counted):.3g}",
        f"{statistics.fmean(finding.steps for finding in counted):,.0f}",
        as_count(tokens),
        epochs,
    ]


def describe_parameters(results: Sequence[Finding], findings: Findings) -> str:
    """Return the number of parameters of the network that is fine-tuned, without heads."""
    vocab_size = findings.corpus.get("vocabulary")
    if not isinstance(vocab_size, int):
        return NOTHING
    counts = []
    for finding in results:
        recipe = finding.provenance.get("recipe")
        if isinstance(recipe, dict) and isinstance(recipe.get("encoder"), dict):
            shape = build(EncoderShape, recipe["encoder"], source="recipe")
            counts.append(as_count(encoder_parameters(shape, vocab_size)))
    return " to ".join(dict.fromkeys(counts)) or NOTHING
