"""The whole of it in minutes, with nothing but what is installed: the libraries' own prose to a tiny ELECTRA."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from electra.data.harvest import harvest
from electra.training.pretrain import pretrain
from electra.training.recipe import load_recipe
from electra.training.show import curves, learned, worked_sentence


def quickstart(output_dir: Path, *, max_steps: int | None = None) -> bool:
    """Harvest, vocabulary, shards, pre-training, and what came of it; False when it was stopped early."""
    recipe = load_recipe("tiny", flags=[] if max_steps is None else ["--max-steps", str(max_steps)])
    console = Console()
    console.rule("text: what Python and its installed libraries say about themselves")
    corpus = harvest(output_dir / "corpus")
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
    console.print("These minutes teach a network how frequent words are, to copy what it sees, and a first sense of "
                  "what does not belong. Context comes with tens of millions of tokens: with a longer run, or a GPU.")
    console.rule("what next")
    console.print(f"The models, each a folder that transformers loads: {output_dir}/discriminator (fine-tune this), "
                  f"{output_dir}/generator (fills masks).", soft_wrap=True)
    for command in (f'electra show {output_dir} "A sentence of your own about a Python library."',
                    f"electra describe {output_dir}",
                    "electra pretrain small --corpus my-texts/ --output-dir runs/mine"):
        console.print(f"  {command}", style="bold", soft_wrap=True)
    return True
