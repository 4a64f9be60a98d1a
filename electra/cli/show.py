"""What a run learned, for people at a terminal: a worked sentence in colour, scores beside trivial
ones, its curves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from electra.finetuning.results import Summary, shown
from electra.objectives.trace import Pair, TracedToken
from electra.runs import journal, run_dir

SENTENCE = "The function returns a new list with the elements of the array in the same order."
DOUBTFUL = 0.5


def worked_sentence(run: Path, text: str | None, *, seed: int, console: Console) -> None:
    """One sentence on its way through both networks."""
    tokens = Pair(run).trace(SENTENCE if text is None else text, seed=seed)[1:-1]
    highest = max(token.doubt for token in tokens)
    console.print(row("original", [(token.original, "") for token in tokens]))
    console.print(
        row("masked", [(token.read, "bold cyan" if token.guess else "dim") for token in tokens])
    )
    console.print(row("generator", [(token.spliced, spliced_style(token)) for token in tokens]))
    console.print(
        row(
            "discriminator",
            [(token.spliced, doubt_style(token.doubt, highest)) for token in tokens],
        )
    )
    console.print(
        row(
            "",
            [
                (
                    "red: replaced, green: guessed right; the redder a word, the more it is "
                    "doubted",
                    "dim",
                )
            ],
        )
    )
    guesses = Table(
        "hidden", "the generator's best guesses", "sampled", "doubted", box=None, pad_edge=False
    )
    for token in tokens:
        if token.guess is not None:
            best = "  ".join(f"{word} {chance:.0%}" for word, chance in token.guess.best)
            guesses.add_row(
                Text(token.original), Text(best), Text(token.guess.sampled), f"{token.doubt:.0%}"
            )
    console.print(guesses)


def row(label: str, words: Sequence[tuple[str, str]]) -> Text:
    """A labelled line; pieces of one word stand together again."""
    line = Text(f"{label:<14}", style="bold")
    for number, (word, style) in enumerate(words):
        glued = word.startswith("##") or number == 0
        line.append("" if glued else " ", style="not bold")
        line.append(word.removeprefix("##"), style=f"not bold {style}".strip())
    return line


def spliced_style(token: TracedToken) -> str:
    return "dim" if token.guess is None else "bold red" if token.replaced else "bold green"


def doubt_style(doubt: float, highest: float) -> str:
    """White to red, by how strong a doubt is among those of the sentence: a young discriminator is
    sure of nothing.
    """
    share = doubt / highest if highest else 0.0
    calm = round(255 * (1 - share**2))
    return f"rgb(255,{calm},{calm})" + (" underline" if doubt > DOUBTFUL else "")


def learned(scores: Mapping[str, float], console: Console) -> None:
    """Held-out scores, each beside what an answer that ignores the context would score."""
    table = Table(
        "held-out", "this model", "without looking", title="what it learned", title_justify="left"
    )
    rows = [
        ("generator: loss", "mlm_loss", scores.get("baseline_mlm_loss"), "{:.3f}"),
        ("generator: accuracy", "mlm_accuracy", scores.get("baseline_mlm_accuracy"), "{:.1%}"),
        ("encoder: next word, loss", "lm_loss", scores.get("baseline_lm_loss"), "{:.3f}"),
        (
            "encoder: next word, accuracy",
            "lm_accuracy",
            scores.get("baseline_lm_accuracy"),
            "{:.1%}",
        ),
        (
            "encoder: next sentence, accuracy",
            "nsp_accuracy",
            scores.get("baseline_nsp_accuracy"),
            "{:.1%}",
        ),
        ("encoder: loss", "restore_loss", scores.get("baseline_restore_loss"), "{:.3f}"),
        (
            "encoder: accuracy",
            "restore_accuracy",
            scores.get("baseline_restore_accuracy"),
            "{:.1%}",
        ),
        ("discriminator: loss", "rtd_loss", scores.get("baseline_rtd_loss"), "{:.4f}"),
        ("discriminator: AUC", "auc", 0.5, "{:.3f}"),
        (
            "discriminator: average precision",
            "average_precision",
            scores.get("replaced_fraction"),
            "{:.3f}",
        ),
        ("discriminator: accuracy", "rtd_accuracy", scores.get("baseline_accuracy"), "{:.1%}"),
        ("discriminator: precision at ½", "precision", scores.get("replaced_fraction"), "{:.1%}"),
        ("discriminator: recall at ½", "recall", 0.0, "{:.1%}"),
    ]
    for label, name, baseline, form in rows:
        if name in scores and baseline is not None:
            table.add_row(label, form.format(scores[name]), form.format(baseline))
    console.print(table)


def curves(run: Path, console: Console) -> None:
    """The losses of a run, as they fell."""
    entries: list[dict[str, Any]] = journal.read(run / run_dir.METRICS)
    for name, title in (
        ("mlm", "generator loss"),
        ("rtd", "discriminator loss"),
        ("restore", "encoder loss"),
        ("lm", "next-word loss"),
        ("nsp", "next-sentence loss"),
    ):
        values = [entry[name] for entry in entries if entry.get(name) is not None]
        if len(values) > 1:
            console.print(Text(f"{title}, step 1 to {entries[-1]['step']:,}", style="bold"))
            console.print(Text(journal.chart(values)))


def compared(pretrained: Summary, random: Summary, console: Console) -> None:
    """Fine-tuned with and without pre-training, and in words whether that is a gain, a loss, or
    neither.
    """
    metric = pretrained.metric
    table = Table("weights before fine-tuning", f"{metric}, {pretrained.protocol}", "every seed")
    for name, summary in (("pre-trained", pretrained), ("random", random)):
        scores = ", ".join(shown(run["score"], metric) for run in summary.runs)
        table.add_row(name, shown(summary.median, metric), scores)
    table.add_row("(always the same answer)", shown(pretrained.baseline, metric), "")
    console.print(table)
    gain = pretrained.median - random.median
    ours, theirs = ([run["score"] for run in summary.runs] for summary in (pretrained, random))
    if min(ours) > max(theirs):
        verdict = f"Pre-training brought {shown(gain, metric)} points here."
    elif max(ours) < min(theirs):
        verdict = (
            f"Pre-training cost {shown(-gain, metric)} points here. What these minutes teach, how "
            "frequent "
            "words are and to copy them, is no start for telling libraries apart."
        )
    else:
        verdict = "Pre-training made no clear difference here: some seeds without it are better than some with it."
    console.print(verdict, soft_wrap=True)
