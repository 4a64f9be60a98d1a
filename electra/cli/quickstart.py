"""The whole of it in minutes, with nothing but what is installed: the libraries' own prose to a
tiny ELECTRA, and that to a classifier.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from electra.cli.show import compared, curves, learned, worked_sentence
from electra.data.docstring_corpus import write_docstring_corpus
from electra.data.library_paragraphs import write_library_paragraphs
from electra.finetuning.finetune import finetune
from electra.finetuning.results import Summary
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe

SEEDS = 3
# One setting for both, found by trying (docs/log.md): the paper's are for deeper, wider networks
# and more steps.
TUNING = [
    "--learning-rate",
    "3e-3",
    "--layer-decay",
    "1.0",
    "--bias-correction",
    "true",
    "--dropout",
    "0",
    "--length",
    "32",
    "--epochs",
    "6",
]


def quickstart(output_dir: Path, *, max_steps: int | None = None) -> bool:
    """Harvest, vocabulary, shards, pre-training, fine-tuning, and what came of it; False when it
    was stopped early.
    """
    recipe = load_recipe("tiny", flags=[] if max_steps is None else ["--max-steps", str(max_steps)])
    console = Console()
    console.rule("text: what Python and its installed libraries say about themselves")
    corpus = write_docstring_corpus(output_dir / "corpus")
    console.print(f"{corpus}: {corpus.stat().st_size / 1e6:.1f} MB of English prose")
    console.rule("vocabulary, shards, pre-training")
    outcome = pretrain(recipe, corpus=[corpus], output_dir=output_dir)
    if outcome.status != "finished":
        console.print("stopped early; the same command goes on from the checkpoint")
        return False
    console.rule("what came of it")
    curves(output_dir, console)
    learned(outcome.scores, console)
    worked_sentence(output_dir, None, seed=1, console=console)
    console.print(
        "These minutes teach a network how frequent words are, to copy what it sees, and a first "
        "sense of "
        "what does not belong. Context comes with tens of millions of tokens: with a longer run, "
        "or a GPU."
    )
    console.rule("fine-tuning: which library does a paragraph come from?")
    tuned = finetune_both(output_dir, corpus, console, max_steps=max_steps)
    if tuned is None:
        return False
    compared(*tuned, console)
    say_what_next(output_dir, console)
    return True


def finetune_both(
    output_dir: Path, corpus: Path, console: Console, *, max_steps: int | None
) -> tuple[Summary, Summary] | None:
    """The pre-trained discriminator, and the same network from random weights."""
    train, dev = write_library_paragraphs(corpus, output_dir / "libraries")
    console.print(
        f"{train} and {dev.name}: paragraphs and their library, none of whose modules is in both. "
        "(Pre-training has read all of them, without labels.)",
        soft_wrap=True,
    )
    flags = TUNING if max_steps is None else [*TUNING, "--max-steps", str(max_steps)]
    found = []
    for name in ("pretrained", "random"):
        summary = finetune(
            output_dir,
            "classify",
            output_dir=output_dir / "finetuned" / name,
            train=[train],
            dev=[dev],
            seeds=SEEDS,
            flags=flags,
            random_weights=name == "random",
        )
        if summary is None:
            return None
        found.append(summary)
    return found[0], found[1]


def say_what_next(output_dir: Path, console: Console) -> None:
    console.rule("what next")
    console.print(
        f"The models, each a folder that transformers loads: {output_dir}/discriminator "
        "(fine-tune this), "
        f"{output_dir}/generator (fills masks), {output_dir}/finetuned/…/seed-0/model (names "
        "libraries).",
        soft_wrap=True,
    )
    for command in (
        f'electra show {output_dir} "A sentence of your own about a Python library."',
        f"electra predict {output_dir}/finetuned/pretrained {output_dir}/libraries/dev.csv",
        f"electra finetune {output_dir} --task classify --train my-train.csv --dev my-dev.csv "
        f"--output-dir runs/my-task {' '.join(TUNING)}",
        "electra pretrain small --corpus my-texts/ --output-dir runs/mine",
    ):
        console.print(f"  {command}", style="bold", soft_wrap=True)
