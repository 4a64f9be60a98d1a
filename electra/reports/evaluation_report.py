"""The page about an evaluation of fine-tuned models. It quotes texts of the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from electra import atomic
from electra.config import RunFailed, UserError
from electra.finetuning.results import format_score
from electra.reports.analysis import analysis_blocks
from electra.reports.blocks import Block, Grid, Heading, Paragraph
from electra.reports.html import render_html
from electra.tasks.inference import PartScores


def check_report_path(path: Path) -> None:
    """Raise UserError where a page cannot be written, before the work."""
    if path.suffix != ".html":
        raise UserError(f"--report {path}: name a file that ends with .html")
    if path.is_dir():
        raise UserError(f"--report {path} is a folder; name a file that ends with .html")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--report {path}: there is no folder {path.parent}; make it first")


def write_evaluation_report(
    path: Path, task: str, models: Sequence[str], parts: Mapping[str, PartScores]
) -> None:
    """Write the page about an evaluation."""
    page = render_html(evaluation_page(task, models, parts), title=f"{task}: evaluation")
    try:
        atomic.write(path, page)
    except OSError as error:
        raise RunFailed(f"{path}: cannot be written: {error.strerror}") from error


def evaluation_page(
    task: str, models: Sequence[str], parts: Mapping[str, PartScores]
) -> Iterator[Block]:
    """Yield the blocks of the page about an evaluation."""
    yield Heading(1, f"{task}: evaluation")
    yield Paragraph(f"Scored: {', '.join(models)}.")
    for part, result in parts.items():
        yield Heading(2, f"Scores on {part}")
        rows = [(name, format_score(value, name)) for name, value in result.scores.items()]
        yield Grid(("metric", "score"), rows)
        yield from analysis_blocks(result.analysis, of=f", {part}")
