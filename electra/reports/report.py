"""Our results beside the paper's, with seeds and spread: a folder with a Markdown page, an HTML
page, figures, and the data.

Whoever reads a number must see at what scale and budget it was made. So a banner comes first,
published values are labelled wherever they stand, and contradictions are said in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from electra import atomic
from electra.config import UserError
from electra.escape import file_name
from electra.experiments import findings_file
from electra.experiments.findings import Findings
from electra.objectives.metrics import MLM_PLATEAU_RATIO, PLATEAU_RATIO
from electra.reports import figures
from electra.reports.banner import banner
from electra.reports.blocks import Block, Bullets, Contents, Grid, Heading, Paragraph, Picture
from electra.reports.html import render_html
from electra.reports.markdown import render_markdown
from electra.reports.missing import missing_section
from electra.reports.order import order_section
from electra.reports.plateau import HEAD, plateau_rows
from electra.reports.settings import environment_section, settings_section
from electra.reports.tables import cost_table, describe_scoring, score_table

INSTALL = "pip install matplotlib"
SCORES = (
    "Scores are in points: for each pre-trained network the median over its fine-tuning seeds, "
    "then mean ± standard deviation over n pre-training seeds."
)
PUBLISHED = "What is labelled published is the paper's, or of the source that it names."
PLATEAU = (
    "Each network's own loss on held-out rows at the end: mean ± standard deviation over seeds. "
    "100 % is the plateau, where a network knows how frequent things are and no more; it has left "
    f"where its loss stays below {100 * PLATEAU_RATIO:.0f} % (of a masked LM, below "
    f"{100 * MLM_PLATEAU_RATIO:.0f} %). Losses of different tasks do not compare, nor do those of "
    "discriminators with different generators."
)


def write_report(several: Sequence[Findings], folder: Path) -> list[Path]:
    """Write the report of several trials and return its files.

    The pages come last, so that what they refer to is there.
    """
    if not several:
        raise UserError("there are no findings to report; `electra trials run` makes some")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--to {folder} is a file; name a folder")
    several = [findings_file.condense(findings) for findings in several]
    blocks = list(page(several))
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [block for block in blocks if isinstance(block, Picture)]
    files = {folder / f"{picture.name}.svg": picture.svg for picture in pictures}
    files[folder / "index.md"] = render_markdown(blocks)
    files[folder / "index.html"] = render_html(blocks, title=title(several))
    findings_file.save(several, folder / findings_file.FILE)
    for path, text in files.items():
        atomic.write(path, text)
    return [folder / findings_file.FILE, *files]


def page(several: Sequence[Findings]) -> Iterator[Block]:
    """Yield the blocks of the whole page."""
    yield Heading(1, title(several))
    yield Paragraph(introduction(several))
    if not figures.is_available():
        yield Paragraph(
            f"Without figures: matplotlib is not installed ({INSTALL}). The numbers are all here."
        )
    yield Contents([(heading(findings), slug(findings)) for findings in several])
    for findings in several:
        yield from chapter(findings)


def title(several: Sequence[Findings]) -> str:
    if any(findings.trial.has_published for findings in several):
        return "Trials: ours beside the paper's"
    return "Trials"


def introduction(several: Sequence[Findings]) -> str:
    """Return whose experiments these are, and how to read a score."""
    sources = {findings.trial.is_built_in for findings in several}
    experiments = "Experiments of our own"
    if sources == {True}:
        experiments = "Experiments of the ELECTRA paper"
    elif True in sources:
        experiments = "Experiments of the ELECTRA paper and of our own"
    text = f"{experiments}, run by electra trials run. {SCORES}"
    if any(findings.trial.has_published for findings in several):
        text += f" {PUBLISHED}"
    return text


def chapter(findings: Findings) -> Iterator[Block]:
    """Yield the blocks on one trial."""
    yield Heading(2, heading(findings), anchor=slug(findings))
    yield Paragraph(f"{findings.trial.question} (Source: {findings.trial.source}.)")
    yield banner(findings)
    yield Heading(3, "Scores")
    yield score_table(findings)
    if findings.tasks:
        yield Paragraph(describe_scoring(findings))
    yield from plateau_section(findings)
    yield Heading(3, "The order of the arms")
    yield from order_section(findings)
    yield from cost_section(findings)
    notes = [(f"{arm.label}:", arm.note) for arm in findings.trial.arms if arm.note]
    if notes:
        yield Bullets(notes)
    if figures.is_available():
        yield from figure_section(findings)
    yield from missing_section(findings)
    yield from settings_section(findings)
    yield from environment_section(findings)


def heading(findings: Findings) -> str:
    return f"{findings.trial.title} ({findings.scale.name} scale, budget {findings.budget})"


def slug(findings: Findings) -> str:
    """Return the anchor of a chapter, which also begins file names."""
    parts = (findings.trial.name, findings.scale.name, findings.budget.replace("/", "of"))
    return file_name("-".join(parts))


def plateau_section(findings: Findings) -> Iterator[Block]:
    """Yield a table of the losses that pre-training reached."""
    rows = plateau_rows(findings)
    if rows:
        yield Heading(3, "What pre-training came to")
        yield Grid(HEAD, rows)
        yield Paragraph(PLATEAU)


def cost_section(findings: Findings) -> Iterator[Block]:
    """Yield a table of FLOPs and minutes, with a warning where runs shared the machine."""
    yield Heading(3, "Cost")
    yield cost_table(findings)
    shared = [finding.provenance.get("concurrency") or 1 for finding in findings.results]
    most = max(shared, default=1)
    if most > 1:
        yield Paragraph(
            f"Minutes are by the clock, while up to {most} runs shared the machine: they say more "
            "of its load than of an arm."
        )


def figure_section(findings: Findings) -> Iterator[Block]:
    """Yield every figure that the findings have numbers for."""
    pictures = list(figures.draw(findings, slug(findings)))
    if pictures:
        yield Heading(3, "Figures")
        yield from pictures
