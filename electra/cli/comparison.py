"""Compare the quickstart's fine-tunings, which begin with different weights: bars and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.style import Style
from rich.text import Text

from electra.finetuning.results import Summary, format_score
from electra.reports.figure_style import COLOURS

LABEL_WIDTH, VALUE_WIDTH = 28, 20  # columns of the terminal beside the bars
EIGHTHS = ("", *"▏▎▍▌▋▊▉")
DOT = "●"
TASK = "Fine-tuned to put missing articles back"
BASELINE = "always the same answer"
Part = tuple[str, str | Style]  # of a row: text and style


@dataclass(frozen=True)
class Finetuned:
    """A fine-tuning: the weights that it began with, and its results."""

    weights: str
    layers: int
    width: int
    summary: Summary

    @property
    def scores(self) -> list[float]:
        """The score of each seed."""
        return [run.score for run in self.summary.runs]

    @property
    def network(self) -> str:
        return f"{self.layers} layers, width {self.width}"

    @property
    def training(self) -> str:
        """How many training sentences there were, and how many steps were taken."""
        examples = self.summary.made["data"]["train"]["examples"]
        return f"{examples:,} sentences, {self.summary.runs[0].steps:,} steps"


def print_bars(compared: Sequence[Finetuned], console: Console) -> None:
    """Print the median of each fine-tuning as a bar from 0, and each seed as a dot below it."""
    first = compared[0].summary
    sentences = first.made["data"]["dev"][first.split]["examples"]
    title = f"{TASK}: {first.metric.upper()} on the same {sentences:,} sentences"
    console.print(Text(f"{title}; bar: median, {DOT} one seed", style="bold"), soft_wrap=True)
    highest = max([first.baseline, *(max(one.scores) for one in compared)])
    columns = max(10, console.width - LABEL_WIDTH - VALUE_WIDTH)
    scale = columns / (highest or 1.0)
    for number, one in enumerate(compared):
        style = Style(color=COLOURS[number])
        bar = draw_bar(one.summary.median * scale, style)
        value = (f" {format_score(one.summary.median, first.metric)}", "bold")
        print_row(console, (one.weights, "bold"), *bar, value)
        print_row(console, (one.network, "dim"), *bar)
        print_row(console, (one.training, "dim"), *draw_dots(one, scale, style))
        print_row(console, ("", ""))
    bar = draw_bar(first.baseline * scale, Style(color=COLOURS[-1]))
    value = (f" {format_score(first.baseline, first.metric)}", "bold")
    print_row(console, (BASELINE, "bold"), *bar, value)


def print_row(console: Console, label: Part, *parts: Part) -> None:
    """Print a label, the axis, and a row of the bars."""
    text, style = label
    row = Text.assemble((text.ljust(LABEL_WIDTH - 1), style), "│", *parts)
    row.rstrip()
    console.print(row, no_wrap=True, overflow="ellipsis")


def draw_bar(length: float, style: Style) -> tuple[Part, Part]:
    """Return a bar of so many columns, to an eighth of a column."""
    eighths = round(8 * length)
    # With a background of the same colour, pictures show no seams between characters and lines.
    filled = style + Style(bgcolor=style.color)
    return ("█" * (eighths // 8), filled), (EIGHTHS[eighths % 8], style)


def draw_dots(one: Finetuned, scale: float, style: Style) -> tuple[Part, Part]:
    """Return a dot at the score of each seed, and then the scores."""
    dots = ""
    for column in sorted({max(1, math.ceil(score * scale)) for score in one.scores}):
        dots += DOT.rjust(column - len(dots))
    listed = ", ".join(format_score(score, one.summary.metric) for score in one.scores)
    if len(one.scores) == 1:
        listed = "one seed"
    return (dots, style), (f" {listed}", "dim")


def describe_gain(pretrained: Summary, random: Summary) -> str:
    """Return a sentence on the gain: clear only where the seeds' scores do not overlap."""
    metric, gain = pretrained.metric, pretrained.median - random.median
    if is_clearly_better(pretrained, random):
        return f"Pre-training brought {format_score(gain, metric)} points here."
    if is_clearly_better(random, pretrained):
        return (
            f"Pre-training cost {format_score(-gain, metric)} points here: the discriminator knows "
            "too little yet. More steps or a higher learning rate may help."
        )
    return (
        "Pre-training made no clear difference here: some seeds without it are better than some "
        "with it."
    )


def describe_shipped(shipped: Finetuned, own: Finetuned) -> str:
    """Return how a shipped model compares with the one pre-trained here, and how they differ."""
    metric, gain = own.summary.metric, shipped.summary.median - own.summary.median
    if is_clearly_better(shipped.summary, own.summary):
        result = f"{format_score(gain, metric)} points more than the model pre-trained here."
    elif is_clearly_better(own.summary, shipped.summary):
        result = f"{format_score(-gain, metric)} points less than the model pre-trained here."
    else:
        result = "no clear difference from the model pre-trained here: their scores overlap."
    return (
        f"{shipped.weights}: {result} The two differ in more than pre-training: "
        f"{shipped.network}, fine-tuned on {shipped.training}, against {own.network}, fine-tuned "
        f"on {own.training}."
    )


def is_clearly_better(one: Summary, other: Summary) -> bool:
    """Return whether every seed of one is better than every seed of the other."""
    return min(run.score for run in one.runs) > max(run.score for run in other.runs)
