"""Print what a run learned: a traced sentence, scores beside their baselines, loss curves."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from electra import atomic
from electra.cli.comparison import Finetuned, print_bars
from electra.config import UserError
from electra.console import Terminal
from electra.escape import printable
from electra.objectives.metrics import LOSS_TITLES, Metric
from electra.objectives.trace import Pair, TracedToken, has_model, trace_original
from electra.runs import journal, run_dir
from electra.shipped import resolve_shipped

SENTENCE = "The function returns a new list with the elements of the array in the same order."
THRESHOLD = 0.5  # a probability above it says that the token was replaced
LABEL_WIDTH, GAP = 18, 2  # columns of the terminal
PICTURE_WIDTH = 100
PICTURE_SUFFIXES = (".svg", ".html")
LEGEND = (
    "red: replaced; green: the sample is the original token; underlined: P(replaced) above "
    f"{THRESHOLD}"
)

Cell = tuple[str, str]  # text and style


# ---- one sentence --------------------------------------------------------------------------------


def trace_sentence(run: Path, text: str | None, *, seed: int) -> list[TracedToken]:
    """Return the tokens of a sentence as both networks of a run read them, without [CLS], [SEP].

    A discriminator alone reads the sentence as it is.
    """
    if text is None:
        text = SENTENCE
    folder = resolve_shipped(run)
    if has_model(folder) and not has_model(folder / "generator"):
        return trace_original(folder, text)[1:-1]
    return Pair(folder).trace(text, seed=seed)[1:-1]


def print_trace(tokens: Sequence[TracedToken], console: Console) -> None:
    """Print tokens, masks, samples and P(replaced) in aligned rows, and the generator's
    predictions.
    """
    highest = max(token.p_replaced for token in tokens)
    rows: dict[str, Callable[[TracedToken], Cell]] = {
        "original": lambda token: (token.original, ""),
        "masked": lambda token: (token.masked, masked_style(token)),
        "generator's sample": lambda token: (token.corrupted, sample_style(token)),
        "P(replaced)": lambda token: probability_cell(token.p_replaced, highest),
    }
    is_masked = any(token.prediction is not None for token in tokens)
    if not is_masked:  # by a discriminator without a generator
        rows = {label: rows[label] for label in ("original", "P(replaced)")}
    columns = [[printable_cell(cell(token)) for cell in rows.values()] for token in tokens]
    for block in split_columns(columns, width=console.width - LABEL_WIDTH - GAP):
        for number, label in enumerate(rows):
            console.print(aligned_row(label, block, number), no_wrap=True, overflow="ellipsis")
        console.print()
    if is_masked:
        console.print(Text(LEGEND, style="dim"))
        console.print(prediction_table(tokens))


def printable_cell(cell: Cell) -> Cell:
    text, style = cell
    return printable(text), style


def split_columns(columns: Sequence[list[Cell]], *, width: int) -> Iterator[list[list[Cell]]]:
    """Yield the columns in blocks, each as many as fit beside each other and at least one."""
    block: list[list[Cell]] = []
    used = 0
    for column in columns:
        needed = column_width(column) + GAP
        if block and used + needed > width:
            yield block
            block, used = [], 0
        block.append(column)
        used += needed
    yield block


def column_width(column: Sequence[Cell]) -> int:
    return max(cell_len(text) for text, _ in column)


def aligned_row(label: str, block: Sequence[Sequence[Cell]], number: int) -> Text:
    """Return one labelled row of a block, every cell padded to the width of its column."""
    row = Text(f"{label:<{LABEL_WIDTH}}", style="bold")
    for column in block:
        text, style = column[number]
        row.append(" " * GAP, style="not bold")
        row.append(text, style=f"not bold {style}".strip())
        row.append(" " * (column_width(column) - cell_len(text)), style="not bold")
    row.rstrip()
    return row


def masked_style(token: TracedToken) -> str:
    if token.prediction is None:
        return "dim"
    return "bold cyan"


def sample_style(token: TracedToken) -> str:
    if token.prediction is None:
        return "dim"
    if token.replaced:
        return "bold red"
    return "bold green"


def probability_cell(p_replaced: float, highest: float) -> Cell:
    """Return a probability as text, white to red by its ratio to the highest of the sentence.

    By the ratio, since after few steps all probabilities are small.
    """
    ratio = 0.0
    if highest:
        ratio = p_replaced / highest
    whiteness = round(255 * (1 - ratio**2))
    style = f"rgb(255,{whiteness},{whiteness})"
    if p_replaced > THRESHOLD:
        style += " underline"
    return f"{p_replaced:.2f}", style


def prediction_table(tokens: Sequence[TracedToken]) -> Table:
    """Return a table of the masked tokens with the generator's most probable predictions."""
    table = Table("masked", "most probable", "sampled", "P(replaced)", box=None, pad_edge=False)
    for token in tokens:
        if token.prediction is not None:
            top_k = "  ".join(f"{word} {p:.0%}" for word, p in token.prediction.top_k)
            words = (token.original, top_k, token.prediction.sampled)
            cells = (Text(printable(word)) for word in words)
            table.add_row(*cells, f"{token.p_replaced:.0%}")
    return table


def check_picture(path: Path) -> None:
    """Raise UserError for a picture file of an unknown format or that cannot be written."""
    if path.suffix not in PICTURE_SUFFIXES:
        raise UserError(
            f"--output {path}: ends in {path.suffix or 'nothing'!r}; a picture ends in "
            f"{' or '.join(PICTURE_SUFFIXES)}"
        )
    atomic.check_output_file(path)


def draw_picture(
    tokens: Sequence[TracedToken],
    path: Path,
    *,
    run: Path | None = None,
    compared: Sequence[Finetuned] = (),
) -> None:
    """Write what `print_trace` prints to an .svg or .html file.

    The curves of a run stand above it, and the bars of fine-tunings below it.
    """
    console = Terminal(record=True, width=PICTURE_WIDTH, file=io.StringIO(), highlight=False)
    if run is not None:
        print_curves(run, console)
        console.print()
    print_trace(tokens, console)
    if compared:
        console.print()
        print_bars(compared, console)
    if path.suffix == ".svg":
        picture = without_web_fonts(console.export_svg(title="Replaced token detection"))
    else:
        picture = console.export_html()
    atomic.write(path, picture)


def without_web_fonts(svg: str) -> str:
    """Drop the fonts that rich would fetch from a server; a reader has a monospaced font."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


# ---- a run ---------------------------------------------------------------------------------------


def print_scores(scores: Mapping[str, float], metrics: Sequence[Metric], console: Console) -> None:
    """Print held-out scores, each beside its baseline."""
    table = Table(
        "held-out", "this model", "baseline", title="held-out scores", title_justify="left"
    )
    for metric in metrics:
        baseline = metric.baseline_in(scores)
        if metric.name in scores and baseline is not None:
            table.add_row(
                f"{metric.network}: {metric.title}",
                metric.form.format(scores[metric.name]),
                metric.form.format(baseline),
            )
    console.print(table)


def print_curves(run: Path, console: Console) -> None:
    """Print a chart of each loss that the journal of a run holds."""
    entries: list[dict[str, Any]] = journal.read_metrics(run / run_dir.METRICS)
    for name, title in LOSS_TITLES.items():
        values = [entry[name] for entry in entries if entry.get(name) is not None]
        if len(values) > 1:
            console.print(Text(f"{title}, step 1 to {entries[-1]['step']:,}", style="bold"))
            console.print(Text(journal.draw_chart(values)))
