"""Figures of a trial: curves over operations and minutes, scores by cost, scores by arm or along a
figure's axis.

To be read on white, on dark and in grey print: no background, axes in a middle grey, and what has a
colour also has a dash and a marker of its own. The same findings give the same bytes, whatever the
user's settings of matplotlib.
"""

from __future__ import annotations

import io
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from electra.experiments.findings import Finding, Findings
from electra.reports import plateau
from electra.reports.ordering import (
    Sample,
    averages,
    baseline,
    headline,
    lines,
    of_arm,
    shared_tasks,
)
from electra.reports.page import INK, Picture

# Told apart by the colour-blind (after Okabe and Ito), none too light for white nor too dark for
# black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c0609a", "#a87900", "#3d9be0", "#7a5cc0", "#8a8a8a")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)))
MARKERS = (
    "o",
    "s",
    "^",
    "D",
    "v",
    "P",
    "X",
)  # as many as lines differ in shape: 8, 5 and 7 have no common divisor
STYLE = {
    "svg.hashsalt": "electra",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.color": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    "axes.formatter.use_mathtext": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}
MEASURES = {
    "mlm_loss": "masked words: loss (the generator's where there is one)",
    "mlm_accuracy": "masked words: accuracy (the generator's where there is one)",
    "restore_loss": "words restored from a splice: loss",
    "restore_accuracy": "words restored from a splice: accuracy",
    "rtd_loss": "replaced or original: loss",
    "auc": "replaced or original: AUC",
}
SHARE = (
    "loss, as a share of that without the text"  # no measure of one entry: of each network's own
)
LEVELS = {"auc": 0.5, SHARE: 1.0}  # of an answer that ignores the text, whoever is measured
CAVEATS = {
    (
        "rtd_",
        "auc",
    ): "Each discriminator judges its own generator's words, some of them at masked places alone: "
    "between arms these are different tasks, and a better generator makes a harder one",
    (
        "mlm_",
    ): "How many of the words to be predicted are left to be read differs between objectives",
}
SKIPPED = (
    "baseline_",
    "rtd_accuracy",
)  # nearly the share of words left alone, whatever the network learnt
COSTS: dict[str, tuple[str, Callable[[Finding], float]]] = {
    "flops": ("operations (FLOPs, standard)", lambda finding: finding.flops),
    "minutes": ("minutes of training", lambda finding: finding.minutes),
}
WIDTH = 8.6  # inches
Looks = Mapping[str, dict[str, Any]]  # by arm


def is_available() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw(findings: Findings, name: str) -> Iterator[Picture]:
    """Every figure that the findings have numbers for; the names of the files begin with `name`."""
    looks = {
        arm.name: look(i) for i, arm in enumerate(arm for arm in findings.trial.arms if arm.stages)
    }
    origin = f"{findings.scale.name} scale, budget {findings.budget}: ours, not the paper's numbers"
    if samples := averages(findings):
        if any(arm.x is not None for arm in findings.trial.arms if arm.name in samples):
            yield picture(
                f"{name}-figure",
                f"Score over {findings.trial.x_label or 'x'}",
                lambda figure: along(figure, findings, samples),
                origin,
            )
        else:
            yield picture(
                f"{name}-scores",
                "Scores: ours"
                + (
                    ", and in a panel of their own the published ones"
                    if headline(findings.trial)
                    else ""
                ),
                lambda figure: beside(figure, findings, samples, looks),
                origin,
            )
        yield picture(
            f"{name}-costs",
            "Average score against operations and against minutes of training",
            lambda figure: by_cost(figure, findings, samples, looks),
            origin,
        )
    if any(plateau.shares(finding) for finding in findings.results):
        yield picture(
            f"{name}-plateau",
            "On held-out rows, each network's own loss as a share of that of an answer "
            "that ignores the text: at 1 nothing is learned yet",
            partial(curves, findings=findings, measure=SHARE, looks=looks),
            origin,
        )
    for measure in measures(findings):
        caveat = next(
            (f". {text}" for beginnings, text in CAVEATS.items() if measure.startswith(beginnings)),
            "",
        )
        yield picture(
            f"{name}-{measure.replace('_', '-')}",
            f"On held-out rows, {titled(measure)}{caveat}",
            partial(curves, findings=findings, measure=measure, looks=looks),
            origin,
        )


def look(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def picture(name: str, title: str, fill: Callable[[Any], None], origin: str) -> Picture:
    """`origin` stands in the figure itself: it may be shown without its page."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with style.context(["default", STYLE]):
        room = ConstrainedLayoutEngine(
            w_pad=0.1
        )  # in some fonts words are wider than in the one that is measured here
        figure = Figure(figsize=(WIDTH, 3.6), layout=room)
        fill(figure)
        figure.suptitle(origin, fontsize="small")
        written = io.StringIO()
        figure.savefig(
            written, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    return Picture(name, title, written.getvalue())


# ---- curves --------------------------------------------------------------------------------------


def measures(findings: Findings) -> list[str]:
    """What was measured on held-out rows: `MEASURES` in their order, then what else an objective
    says of itself.
    """
    found = {
        key.removeprefix("eval_")
        for finding in findings.results
        for entry in finding.journal
        for key in entry
        if key.startswith("eval_")
    }
    others = sorted(
        key
        for key in found - MEASURES.keys()
        if key.endswith(("_loss", "_accuracy", "_entropy", "entropy"))
        and not key.startswith(SKIPPED)
    )
    return [key for key in MEASURES if key in found] + others


def curves(figure: Any, findings: Findings, measure: str, looks: Looks) -> None:
    """A thick line for the mean of an arm's seeds, a thin one for each of them."""
    axes = figure.subplots(1, len(COSTS), sharey=True)
    shown = []
    for arm in findings.trial.arms:
        seeds = [points for finding in of_arm(findings, arm) if (points := curve(finding, measure))]
        if not seeds:
            continue
        shown.append(arm)
        plain = {key: value for key, value in looks[arm.name].items() if key != "marker"}
        for axis, cost in zip(axes, COSTS, strict=True):
            for line in seeds if len(seeds) > 1 else []:
                axis.plot(
                    [entry[cost] for entry in line],
                    [entry["value"] for entry in line],
                    **{**plain, "linewidth": 0.6, "alpha": 0.6},
                )
            middle = mean_curve(seeds)
            axis.plot(
                [entry[cost] for entry in middle],
                [entry["value"] for entry in middle],
                **looks[arm.name],
                markevery=max(1, len(middle) // 6),
            )
    level = baseline_level(findings, measure)
    for axis, (label, _) in zip(axes, COSTS.values(), strict=True):
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.locator_params(axis="x", nbins=6)
        if level is not None:
            axis.axhline(level, color=INK, linewidth=1.0, linestyle=(0, (1, 3)), zorder=0)
    axes[0].set_ylabel("\n".join(textwrap.wrap(titled(measure), 34)))
    entries = [(arm.label, looks[arm.name]) for arm in shown]
    if level is not None:
        entries.append(("text ignored", {"color": INK, "linestyle": (0, (1, 3)), "linewidth": 1.0}))
    legend(figure, entries)


def titled(measure: str) -> str:
    return MEASURES.get(measure, measure.replace("_", " "))


def curve(finding: Finding, measure: str) -> list[dict[str, float]]:
    """Points with all they need; a loss that was not finite is written as nothing."""
    key = f"eval_{measure}"
    values = (
        plateau.shares(finding)
        if measure == SHARE
        else {entry["step"]: entry[key] for entry in finding.journal if entry.get(key) is not None}
    )
    return [
        {
            "step": entry["step"],
            "value": values[entry["step"]],
            **{cost: entry[cost] for cost in COSTS},
        }
        for entry in finding.journal
        if entry.get("step") in values and all(entry.get(cost) is not None for cost in COSTS)
    ]


def mean_curve(seeds: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """As far as all seeds have come: a mean over fewer of them would jump where one ends."""
    by_step = [{point["step"]: point for point in line} for line in seeds]
    shared = sorted(set.intersection(*(set(points) for points in by_step)))
    return [
        {
            key: statistics.fmean(points[step][key] for points in by_step)
            for key in ("value", *COSTS)
        }
        for step in shared
    ]


def baseline_level(findings: Findings, measure: str) -> float | None:
    """What an answer that ignores the text gets, where that is one number and not one for each arm
    and step.
    """
    if measure in LEVELS:
        return LEVELS[measure]
    known = [
        entry[f"eval_baseline_{measure}"]
        for finding in findings.results
        for entry in finding.journal
        if entry.get(f"eval_baseline_{measure}") is not None
    ]
    if not known or max(known) - min(known) > 0.03 * abs(max(known)):
        return None
    return statistics.fmean(known)


# ---- scores --------------------------------------------------------------------------------------


def by_cost(figure: Any, findings: Findings, samples: Mapping[str, Sample], looks: Looks) -> None:
    axes = figure.subplots(1, len(COSTS), sharey=True)
    shown = [arm for arm in findings.trial.arms if arm.name in samples]
    for axis, (label, cost) in zip(axes, COSTS.values(), strict=True):
        spent = {
            arm.name: statistics.fmean(
                cost(finding) for finding in of_arm(findings, arm) if finding.done
            )
            for arm in shown
        }
        for arm in shown:
            point(axis, spent[arm.name], samples[arm.name], looks[arm.name])
        axis.set_xlabel(label)
        axis.set_xlim(0, 1.08 * max(spent.values()) or None)
        axis.margins(y=0.1)
        axis.locator_params(axis="x", nbins=6)
    axes[0].set_ylabel(scale_label(findings))
    legend(figure, [(arm.label, {**looks[arm.name], "linestyle": "none"}) for arm in shown])


def along(figure: Any, findings: Findings, samples: Mapping[str, Sample]) -> None:
    """A figure of the paper: a line for each series."""
    axis = figure.subplots()
    entries: list[tuple[str, dict[str, Any]]] = []
    for series, line in lines(findings).items():
        entries.append((series or "ours", look(len(entries))))
        axis.plot(
            [arm.x for arm in line], [samples[arm.name].mean for arm in line], **entries[-1][1]
        )
        for arm in line:
            point(axis, arm.x or 0.0, samples[arm.name], entries[-1][1])
    for arm in findings.trial.arms:
        if (
            arm.x is None and arm.name in samples
        ):  # beside the lines: a unigram generator has no size
            entries.append((arm.label, {**look(len(entries)), "marker": ""}))
            axis.axhline(samples[arm.name].mean, **entries[-1][1])
    axis.set_xlabel(findings.trial.x_label)
    axis.set_ylabel(scale_label(findings))
    legend(figure, entries)


def point(axis: Any, x: float, sample: Sample, looks: Mapping[str, Any]) -> None:
    axis.errorbar(
        [x],
        [sample.mean],
        yerr=None if sample.sd is None else [sample.sd],
        capsize=3,
        **{**looks, "linestyle": "none"},
    )


def beside(figure: Any, findings: Findings, samples: Mapping[str, Sample], looks: Looks) -> None:
    """A bar begins at what ignoring the text gets: from zero on, bars of one length would hide what
    was found. The published values have a panel and an axis of their own, so that nobody reads them
    off against ours.
    """
    shown = [arm for arm in findings.trial.arms if arm.name in samples][::-1]
    column = headline(findings.trial)
    figure.set_size_inches(WIDTH, 1.4 + 0.36 * len(shown))
    ours, theirs = (
        figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        if column
        else (figure.subplots(), None)
    )
    start = baseline(findings, *shared_tasks(findings)) or 0.0
    for y, arm in enumerate(shown):
        sample = samples[arm.name]
        ours.barh(
            y,
            sample.mean - start,
            left=start,
            height=0.6,
            color=looks[arm.name]["color"],
            alpha=0.75,
        )
        if sample.sd is not None:
            ours.errorbar([sample.mean], [y], xerr=[sample.sd], color=INK, capsize=3)
        label(ours, max(sample.mean + (sample.sd or 0.0), start), y, f"{sample.mean:.1f}")
        value = arm.published.get(column) if column else None
        if theirs is not None and isinstance(value, (int, float)):
            theirs.plot([value], [y], **{**looks[arm.name], "linestyle": "none"})
            label(theirs, value, y, str(value))
    ours.set_yticks(range(len(shown)), ["\n".join(textwrap.wrap(arm.label, 30)) for arm in shown])
    ours.set_xlabel(
        f"ours: {scale_label(findings)} ± sd;\nbars begin at an answer that ignores the text"
    )
    ours.margins(x=0.12)
    ours.grid(visible=False, axis="y")
    ours.axvline(start, color=INK, linewidth=0.8)
    if theirs is not None:
        theirs.margins(x=0.25)
        theirs.set_xlabel(f"published: {column}\nat the paper's size and budget")


def scale_label(findings: Findings) -> str:
    tasks = shared_tasks(findings)
    return f"{tasks[0]}, points" if len(tasks) == 1 else f"average of {len(tasks)} tasks, points"


def label(axis: Any, x: float, y: float, text: str) -> None:
    axis.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center")


def legend(figure: Any, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Outside of the axes, where it covers nothing; the figure grows by as many rows as it needs."""
    from matplotlib.lines import Line2D

    labels = ["\n".join(textwrap.wrap(label, 34)) for label, _ in entries]
    columns = max(1, min(len(entries), 4 if max(map(len, labels), default=0) <= 22 else 3))
    rows = -(-len(entries) // columns)
    figure.set_size_inches(
        WIDTH, 3.3 + 0.22 * rows * (2 if any("\n" in label for label in labels) else 1)
    )
    figure.legend(
        handles=[Line2D([], [], **looks) for _, looks in entries],
        labels=labels,
        ncols=columns,
        loc="outside lower center",
        handlelength=3.2,
    )
