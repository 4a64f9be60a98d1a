"""Score a discriminator on minimal pairs: does it find the acceptable sentence more original?

    python -m benchmarks.minimal_pairs MODEL PAIRS.jsonl … [--batch-size 256] [--output FILE.json]

A line of a file is a JSON object with `sentence_good` and `sentence_bad`, as in BLiMP. A sentence
scores the sum of log P(original) over its tokens, [CLS] and [SEP] left out; the higher score wins,
and a tie counts half. Prints the accuracy of each file and their mean. Nothing is trained.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from benchmarks.harness import build_parser, check_counts, provenance, run_main, write_result
from electra.config import UserError
from electra.data.wordpiece import WordPiece
from electra.model import huggingface
from electra.model.networks import Discriminator
from electra.tasks.inference import default_device
from electra.tasks.models import load_tokenizer, model_folder

KEYS = ("sentence_good", "sentence_bad")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    accuracies = score_files(options.model, options.pairs, batch_size=options.batch_size)
    mean = fmean(accuracies.values())
    print(f"mean of {len(accuracies)} files: {mean:.4f}")
    if options.output:
        result = {"model": options.model, "accuracies": accuracies, "mean": mean}
        write_result(options.output, {**result, "measured": provenance()})


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("pairs", nargs="+", type=Path)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--output")
    options = parser.parse_args(arguments)
    check_counts(parser, options, "batch_size")
    return options


def score_files(
    model: str | Path, paths: Sequence[Path], *, batch_size: int = 256
) -> dict[str, float]:
    """Return the accuracy of a model on each file, by its name, and print it."""
    pairs = {path: read_pairs(path) for path in paths}
    folder = model_folder(model)
    network = huggingface.load_discriminator(folder).to(default_device())
    tokenizer = load_tokenizer(folder)
    accuracies = {}
    for path, sentences in pairs.items():
        scores = torch.tensor(list(score_sentences(sentences, network, tokenizer, batch_size)))
        accuracies[path.stem] = accuracy(scores[0::2], scores[1::2])
        print(f"{path.stem}: {accuracies[path.stem]:.4f} of {len(sentences) // 2} pairs")
    return accuracies


def read_pairs(path: Path) -> list[str]:
    """Return the sentences of a file: good, bad, good, bad."""
    sentences = []
    for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), start=1):
        try:
            row = json.loads(line)
            sentences += [str(row[key]) for key in KEYS]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}:{number}: no JSON object with {' and '.join(KEYS)}") from None
    if not sentences:
        raise UserError(f"{path}: empty; give a file with a pair on each line")
    return sentences


@torch.no_grad()
def score_sentences(
    sentences: Sequence[str], network: Discriminator, tokenizer: WordPiece, batch_size: int
) -> Iterator[float]:
    """Yield the sum of log P(original) over the tokens of each sentence, in their order."""
    device = next(network.parameters()).device
    longest = network.encoder.shape.positions - 2
    for first in range(0, len(sentences), batch_size):
        rows = tokenizer.encode(list(sentences[first : first + batch_size]))
        rows = [[tokenizer.cls, *row[:longest], tokenizer.sep] for row in rows]
        width = max(map(len, rows))
        padded = [row + [tokenizer.pad] * (width - len(row)) for row in rows]
        input_ids = torch.tensor(padded, device=device)
        lengths = torch.tensor([len(row) for row in rows], device=device)[:, None]
        positions = torch.arange(width, device=device)
        attention_mask = positions < lengths
        logits = network.logits(input_ids, torch.zeros_like(input_ids), attention_mask)
        is_word = (positions > 0) & (positions < lengths - 1)
        yield from (logsigmoid(-logits.float()) * is_word).sum(1).tolist()


def accuracy(good: Tensor, bad: Tensor) -> float:
    """Return the share of pairs whose good sentence scores higher; a tie counts half."""
    return float(((good > bad).double() + 0.5 * (good == bad)).mean())


if __name__ == "__main__":
    run_main(main)
