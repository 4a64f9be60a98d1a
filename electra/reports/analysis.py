"""The blocks that show an analysis: scores by class, a confusion matrix, examples to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from electra.reports import figures
from electra.reports.blocks import Block, Examples, Grid, Heading, Heatmap, Paragraph
from electra.reports.finetune_figures import draw_scatter
from electra.reports.report import INSTALL
from electra.tasks.analysis import Analysis
from electra.tasks.class_scores import MEASURES

NO_FIGURES = f"Without figures: matplotlib is not installed ({INSTALL}, or the extra plots)."


def analysis_blocks(analysis: Analysis | None, *, of: str = "") -> Iterator[Block]:
    """Yield the tables, figures and examples of an analysis; `of` names its model or data."""
    if analysis is None:
        return
    if analysis.classes:
        yield Heading(2, "Classes", anchor="classes")
        yield Paragraph(f"Precision, recall and F1 in points{of}.")
        yield class_grid(analysis.classes)
    if analysis.matrix is not None:
        yield Heading(2, "Confusion matrix", anchor="confusion")
        yield Paragraph(
            f"How often each true label (row) got each answer (column){of}: count, and share of "
            f"the row. {analysis.matrix.note}"
        )
        yield Heatmap(analysis.matrix.labels, analysis.matrix.counts)
    if analysis.points is not None and analysis.points.true:
        yield Heading(2, "Scores and truth", anchor="scatter")
        if figures.is_available():
            yield draw_scatter(analysis.points, origin=f"{analysis.examples:,} examples{of}")
        else:
            yield Paragraph(NO_FIGURES)
    for number, examples in enumerate(analysis.lists):
        yield Heading(2, examples.title, anchor=f"examples-{number}")
        yield Paragraph(examples.note)
        if examples.rows:
            yield Examples(examples.head, examples.rows)


def class_grid(classes: Sequence[Mapping[str, Any]]) -> Grid:
    rows = []
    for scores in classes:
        values = [f"{100 * scores[name]:.1f}" for name in MEASURES]
        rows.append([str(scores["label"]), *values, f"{scores['support']:,}"])
    return Grid(("class", "precision", "recall", "F1", "examples"), rows)
