"""A vocabulary and a network small enough to look through, and a few lines that train and ask one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra.data.vocabulary import finished, rules
from electra.data.wordpiece import SPECIAL_TOKENS, WordPiece
from electra.model.encoder import Encoder
from electra.model.shape import EncoderShape
from electra.tasks.features import Features, by_length
from electra.tasks.task import Network, Task

WORDS = ("anna berg carla lives in paris visits rome acme corp sells the to dog cat sat ran on a mat home why who did "
         "is he what").split()
LETTERS = [form for letter in "abcdefghijklmnopqrstuvwxyz" for form in (letter, f"##{letter}")]


def toy_words() -> WordPiece:
    """Whole words, and letters for every other word of a to z."""
    entries = [*SPECIAL_TOKENS, ".", "_", *dict.fromkeys([*LETTERS, *WORDS])]
    return finished(rules(lowercase=True, keep_accents=False), {token: number for number, token in enumerate(entries)})


def toy_encoder(words: WordPiece, *, layers: int = 2, positions: int = 64) -> Encoder:
    torch.manual_seed(0)
    shape = EncoderShape(layers=layers, width=32, heads=2, feedforward=64, embedding=16, positions=positions,
                         dropout=0.0, attention_dropout=0.0)
    return Encoder(shape, vocabulary=words.size)


def overfit(network: Network, task: Task[Any, Any], features: Features, *, steps: int, rate: float) -> float:
    """The mean loss after training on all rows at once, so many times."""
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=rate)
    batch, scored = features.take(np.arange(len(features))), task.weight(features).sum()
    network.train()
    for _ in range(steps):
        loss = network(batch) / scored
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def answers(network: Network, task: Task[Any, Any], examples: Sequence[Any], features: Features, *,
            tokens: int = 128) -> list[Any]:
    """What the network says of each example, by batches of about so many tokens."""
    outputs: list[Any] = [None] * len(features)
    network.eval()
    for units in by_length(features.lengths, tokens=tokens):
        with torch.no_grad():
            found = {name: tensor.numpy() for name, tensor in network.answer(features.take(units)).items()}
        for place, unit in enumerate(units):
            outputs[unit] = {name: array[place] for name, array in found.items()}
    return task.decode(examples, features, outputs)


def written(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf8")
    return path
