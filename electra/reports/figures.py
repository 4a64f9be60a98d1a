"""The figures of a trial: scores by arm or along an axis, scores by cost, and held-out curves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from electra.escape import file_name
from electra.experiments.findings import Findings
from electra.reports.blocks import Picture
from electra.reports.curves import SHARE, caveat, draw_curves, measures, title_of
from electra.reports.figure_style import arm_looks, draw_picture
from electra.reports.plateau import loss_shares
from electra.reports.samples import averages, ranking_column
from electra.reports.score_figures import draw_along_axis, draw_bars, draw_scores_by_cost


def is_available() -> bool:
    """Return whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw(findings: Findings, name: str) -> Iterator[Picture]:
    """Draw every figure that the findings have numbers for; file names begin with `name`."""
    yield from draw_scores(findings, name)
    yield from draw_held_out(findings, name)


def origin(findings: Findings) -> str:
    scale, budget = findings.scale.name, findings.budget
    return f"{scale} scale, budget {budget}: ours, not the paper's numbers"


def draw_scores(findings: Findings, name: str) -> Iterator[Picture]:
    """Draw the scores of arms, and what they cost."""
    samples = averages(findings)
    if not samples:
        return
    looks, source = arm_looks(findings), origin(findings)
    if any(arm.x is not None for arm in findings.trial.arms if arm.name in samples):
        title = f"Score over {findings.trial.x_label or 'x'}"
        draw_lines = partial(draw_along_axis, findings=findings, samples=samples)
        yield draw_picture(f"{name}-figure", title, draw_lines, source)
    else:
        title = "Scores: ours"
        if ranking_column(findings.trial):
            title = "Scores: ours, and in a panel of their own the published ones"
        bars = partial(draw_bars, findings=findings, samples=samples, looks=looks)
        yield draw_picture(f"{name}-scores", title, bars, source)
    title = "Average score against FLOPs and against minutes of training"
    costs = partial(draw_scores_by_cost, findings=findings, samples=samples, looks=looks)
    yield draw_picture(f"{name}-costs", title, costs, source)


def draw_held_out(findings: Findings, name: str) -> Iterator[Picture]:
    """Draw a curve for every metric that was measured on held-out rows."""
    looks, source = arm_looks(findings), origin(findings)
    if any(loss_shares(finding) for finding in findings.results):
        title = (
            "On held-out rows, each network's own loss as a share of that of an answer that "
            "ignores the text: at 1 nothing is learned yet"
        )
        curves = partial(draw_curves, findings=findings, measure=SHARE, looks=looks)
        yield draw_picture(f"{name}-plateau", title, curves, source)
    for measure in measures(findings):
        title = f"On held-out rows, {title_of(measure)}{caveat(measure)}"
        curves = partial(draw_curves, findings=findings, measure=measure, looks=looks)
        yield draw_picture(f"{name}-{file_name(measure)}", title, curves, source)
