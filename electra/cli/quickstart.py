"""The quickstart: pre-train a tiny encoder on the docstrings of installed libraries, and fine-tune
it, random weights and the shipped model on the same task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import atomic
from electra.cli.comparison import Finetuned, describe_gain, describe_shipped, print_bars
from electra.cli.show import (
    draw_picture,
    print_curves,
    print_scores,
    print_trace,
    trace_sentence,
)
from electra.console import Terminal
from electra.data.docstring_corpus import write_docstring_corpus
from electra.data.missing_articles import split_corpus, write_missing_articles
from electra.finetuning.finetune import finetune
from electra.model.model_config import load_shape
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs.run_dir import create_output_dir
from electra.shipped import model_path, shipped_models
from electra.tasks.models import model_folder

SEEDS = 3
# The settings of all fine-tunings were found by trial (docs/log.md): the paper's are for more
# steps, and for networks deeper and wider than the tiny one.
FINETUNE_FLAGS = (
    "--learning-rate 4e-3 --layer-decay 1.0 --bias-correction true --dropout 0 --length 48 "
    "--epochs 3"
).split()
# A step of the shipped model takes more than ten times as long, so it gets one seed, one epoch and
# a part of the sentences: a minute or two.
SHIPPED = "small-en"
SHIPPED_FLAGS = (
    "--learning-rate 1e-3 --bias-correction true --dropout 0 --length 48 --epochs 1 "
    "--max-train-examples 1600"
).split()


@dataclass(frozen=True)
class Start:
    """Weights that a fine-tuning of the quickstart begins with, and its settings."""

    name: str  # of its folder
    label: str
    model: Path
    seeds: int
    flags: Sequence[str]


def quickstart(output_dir: Path, *, max_steps: int | None = None) -> bool:
    """Collect text, pre-train, fine-tune and print the results; return False when stopped early."""
    console, step_flags = Terminal(), []
    if max_steps is not None:
        step_flags = ["--max-steps", str(max_steps)]
    recipe = load_recipe("modern-tiny", flags=step_flags)
    create_output_dir(output_dir)
    starts = list_starts(output_dir)
    for name in ("corpus", "articles", *(f"finetuned/{start.name}" for start in starts)):
        atomic.check_links(output_dir / name, inside=output_dir)
    console.rule("text: what Python and its installed libraries say about themselves")
    corpus = write_docstring_corpus(output_dir / "corpus")
    console.print(f"{corpus}: {corpus.stat().st_size / 1e6:.1f} MB of English prose")
    console.rule("vocabulary, shards, pre-training")
    text = split_corpus(corpus, output_dir / "corpus")
    outcome = pretrain(recipe, corpus=[text], output_dir=output_dir)
    if outcome.status != "finished":
        console.print("stopped early; the same command continues from the checkpoint")
        return False
    console.rule("results of pre-training")
    print_curves(output_dir, console)
    print_scores(outcome.scores, recipe.objective.metrics(), console)
    tokens = trace_sentence(output_dir, None, seed=1)
    print_trace(tokens, console)
    console.rule("fine-tuning: where did the articles stand?")
    compared = finetune_all(starts, output_dir, corpus, console, step_flags)
    if compared is None:
        return False
    print_comparison(compared, console)
    picture = output_dir / "quickstart.svg"
    draw_picture(tokens, picture, run=output_dir, compared=compared)
    console.print(f"The curves, the sentence and the bars as a picture: {picture}", soft_wrap=True)
    print_next_commands(output_dir, console)
    return True


def list_starts(output_dir: Path) -> list[Start]:
    """Return the weights that are compared; the shipped model only where one is shipped."""
    starts = [
        Start("random", "random weights", output_dir, SEEDS, FINETUNE_FLAGS),
        Start("pretrained", "pre-trained here", output_dir, SEEDS, FINETUNE_FLAGS),
    ]
    if SHIPPED in shipped_models():
        folder = model_path(SHIPPED)
        starts.append(Start(SHIPPED, f"{SHIPPED}, shipped", folder, 1, SHIPPED_FLAGS))
    return starts


def finetune_all(
    starts: Sequence[Start],
    output_dir: Path,
    corpus: Path,
    console: Terminal,
    step_flags: Sequence[str],
) -> list[Finetuned] | None:
    """Fine-tune a network from each of the weights on the same task; None when stopped early."""
    train, dev = write_missing_articles(corpus, output_dir / "articles")
    console.print(
        f"{train} and {dev.name}: sentences of modules that pre-training has not read, without "
        "their articles. The tag of a word says which one stood before it.",
        soft_wrap=True,
    )
    compared = []
    for start in starts:
        summary = finetune(
            start.model,
            "tag",
            output_dir=output_dir / "finetuned" / start.name,
            train=[train],
            dev=[dev],
            seeds=start.seeds,
            flags=[*start.flags, *step_flags],
            random_weights=start.name == "random",
        )
        if summary is None:
            return None
        shape, _, _ = load_shape(model_folder(start.model))
        compared.append(Finetuned(start.label, shape.layers, shape.width, summary))
    return compared


def print_comparison(compared: Sequence[Finetuned], console: Terminal) -> None:
    """Print the scores as bars, what pre-training brought, and how the shipped model compares."""
    random, pretrained, *shipped = compared
    print_bars(compared, console)
    console.print(describe_gain(pretrained.summary, random.summary), soft_wrap=True)
    for one in shipped:
        console.print(describe_shipped(one, pretrained), soft_wrap=True)


def print_next_commands(output_dir: Path, console: Terminal) -> None:
    console.rule("what next")
    console.print(
        f"Each model is a folder that transformers loads: {output_dir}/discriminator (fine-tune "
        f"this one), {output_dir}/generator (predicts masked tokens), "
        f"{output_dir}/finetuned/…/seed-0/model (puts articles back).",
        soft_wrap=True,
    )
    own_data = "--task classify --train my-train.csv --dev my-dev.csv --output-dir runs/my-task"
    commands = [
        f'electra show {output_dir} "A sentence of your own about a Python library."',
        f"electra predict {output_dir}/finetuned/pretrained {output_dir}/articles/dev.conll",
        f"electra finetune {output_dir} {own_data} {' '.join(FINETUNE_FLAGS)}",
        "electra pretrain modern-small --corpus my-texts/ --output-dir runs/mine",
    ]
    if SHIPPED in shipped_models():
        commands.insert(3, f"electra finetune {SHIPPED} {own_data}-{SHIPPED}")
    for command in commands:
        console.print(f"  {command}", style="bold", soft_wrap=True)
