"""The quickstart: pre-train a tiny encoder on the docstrings of installed libraries."""

from __future__ import annotations

from pathlib import Path

from electra import atomic
from electra.cli.show import (
    draw_picture,
    print_comparison,
    print_curves,
    print_scores,
    print_trace,
    trace_sentence,
)
from electra.console import Terminal
from electra.data.docstring_corpus import write_docstring_corpus
from electra.data.missing_articles import split_corpus, write_missing_articles
from electra.finetuning.finetune import finetune
from electra.finetuning.results import Summary
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs.run_dir import create_output_dir

SEEDS = 3
# The settings of both fine-tunings were found by trial (docs/log.md): the paper's are for deeper,
# wider networks and more steps.
FINETUNE_FLAGS = (
    "--learning-rate 4e-3 --layer-decay 1.0 --bias-correction true --dropout 0 --length 48 "
    "--epochs 4"
).split()


def quickstart(output_dir: Path, *, max_steps: int | None = None) -> bool:
    """Collect text, pre-train, fine-tune and print the results; return False when stopped early."""
    console, step_flags = Terminal(), []
    if max_steps is not None:
        step_flags = ["--max-steps", str(max_steps)]
    recipe = load_recipe("modern-tiny", flags=step_flags)
    create_output_dir(output_dir)
    for name in ("corpus", "articles", "finetuned/pretrained", "finetuned/random"):
        atomic.check_links(output_dir / name, inside=output_dir)
    console.rule("text: what Python and its installed libraries say about themselves")
    corpus = write_docstring_corpus(output_dir / "corpus")
    console.print(f"{corpus}: {corpus.stat().st_size / 1e6:.1f} MB of English prose")
    console.rule("vocabulary, shards, pre-training")
    text = split_corpus(corpus, output_dir / "corpus")
    outcome = pretrain(recipe, corpus=[text], output_dir=output_dir)
    if outcome.status != "finished":
        console.print("stopped early; the same command goes on from the checkpoint")
        return False
    console.rule("results of pre-training")
    print_curves(output_dir, console)
    print_scores(outcome.scores, recipe.objective.metrics(), console)
    tokens = trace_sentence(output_dir, None, seed=1)
    print_trace(tokens, console)
    console.rule("fine-tuning: where did the articles stand?")
    summaries = finetune_both(output_dir, corpus, console, step_flags)
    if summaries is None:
        return False
    print_comparison(*summaries, console)
    picture = output_dir / "quickstart.svg"
    draw_picture(tokens, picture, run=output_dir)
    console.print(f"The curves and the sentence as a picture: {picture}", soft_wrap=True)
    print_next_commands(output_dir, console)
    return True


def finetune_both(
    output_dir: Path, corpus: Path, console: Terminal, step_flags: list[str]
) -> tuple[Summary, Summary] | None:
    """Fine-tune the pre-trained discriminator, and the same network from random weights.

    Return None when stopped early.
    """
    train, dev = write_missing_articles(corpus, output_dir / "articles")
    console.print(
        f"{train} and {dev.name}: sentences of modules that pre-training has not read, without "
        "their articles. The tag of a word says which one stood before it.",
        soft_wrap=True,
    )
    summaries = []
    for name in ("pretrained", "random"):
        summary = finetune(
            output_dir,
            "tag",
            output_dir=output_dir / "finetuned" / name,
            train=[train],
            dev=[dev],
            seeds=SEEDS,
            flags=[*FINETUNE_FLAGS, *step_flags],
            random_weights=name == "random",
        )
        if summary is None:
            return None
        summaries.append(summary)
    return summaries[0], summaries[1]


def print_next_commands(output_dir: Path, console: Terminal) -> None:
    console.rule("what next")
    console.print(
        f"Each model is a folder that transformers loads: {output_dir}/discriminator (fine-tune "
        f"this one), {output_dir}/generator (predicts masked tokens), "
        f"{output_dir}/finetuned/…/seed-0/model (puts articles back).",
        soft_wrap=True,
    )
    for command in (
        f'electra show {output_dir} "A sentence of your own about a Python library."',
        f"electra predict {output_dir}/finetuned/pretrained {output_dir}/articles/dev.conll",
        f"electra finetune {output_dir} --task classify --train my-train.csv --dev my-dev.csv "
        f"--output-dir runs/my-task {' '.join(FINETUNE_FLAGS)}",
        "electra pretrain modern-small --corpus my-texts/ --output-dir runs/mine",
    ):
        console.print(f"  {command}", style="bold", soft_wrap=True)
