"""A small vocabulary and network, and toy tasks that are learnt by heart."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra.data.normalization import Normalization
from electra.data.vocabulary import build_wordpiece
from electra.data.wordpiece import SPECIAL_TOKENS, WordPiece
from electra.finetuning.finetune import finetune
from electra.finetuning.results import Summary
from electra.model.electra_encoder import ElectraEncoder
from electra.model.encoder import Encoder
from electra.model.huggingface import Role, save
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape
from electra.tasks import find_task
from electra.tasks.features import Features, group_by_length
from electra.tasks.task import Network, Task

WORDS = (
    "anna berg carla lives in paris visits rome acme corp sells the to dog cat sat ran on a mat "
    "home why who did "
    "is he what"
).split()
LETTERS = [form for letter in "abcdefghijklmnopqrstuvwxyz" for form in (letter, f"##{letter}")]


def toy_tokenizer() -> WordPiece:
    """Whole words, and letters for every other word of a to z."""
    entries = [*SPECIAL_TOKENS, ".", "_", *dict.fromkeys([*LETTERS, *WORDS])]
    return build_wordpiece(
        Normalization().build_tokenizer(),
        {token: number for number, token in enumerate(entries)},
    )


def toy_encoder(
    tokenizer: WordPiece, *, layers: int = 2, positions: int = 64, causal: bool = False
) -> Encoder:
    torch.manual_seed(0)
    shape = EncoderShape(
        layers=layers,
        width=32,
        heads=2,
        feedforward=64,
        embedding=16,
        positions=positions,
        dropout=0.0,
        attention_dropout=0.0,
        causal=causal,
    )
    return ElectraEncoder(shape, vocabulary=tokenizer.size)


def overfit(
    network: Network, task: Task[Any, Any], features: Features, *, steps: int, rate: float
) -> float:
    """The mean loss after training on all rows at once, so many times."""
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=rate)
    batch, scored = features.collate(np.arange(len(features))), task.weight(features).sum()
    network.train()
    for _ in range(steps):
        loss = network(batch) / scored
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def answers(
    network: Network,
    task: Task[Any, Any],
    examples: Sequence[Any],
    features: Features,
    *,
    tokens: int = 128,
) -> list[Any]:
    """What the network says of each example, by batches of about so many tokens."""
    outputs: list[Any] = [None] * len(features)
    network.eval()
    for units in group_by_length(features.lengths, tokens=tokens):
        with torch.no_grad():
            found = {
                name: tensor.numpy()
                for name, tensor in network.outputs(features.collate(units)).items()
            }
        for place, unit in enumerate(units):
            outputs[unit] = {name: array[place] for name, array in found.items()}
    return task.decode(examples, features, outputs)


def written(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf8")
    return path


# ---- eight examples of each kind, and a model to fine-tune ---------------------------------------

NAMES, CITIES = ("anna", "berg", "carla", "acme"), ("paris", "rome")


def tiny_model(
    folder: Path,
    *,
    positions: int = 64,
    network: type[Discriminator] | type[Generator] = Discriminator,
    role: Role = "discriminator",
    causal: bool = False,
) -> Path:
    """A pre-trained folder of 2 layers × 32, whose weights are random."""
    tokenizer = toy_tokenizer()
    encoder = toy_encoder(tokenizer, positions=positions, causal=causal)
    save(network(encoder), folder, role=role, tokenizer_files=tokenizer.copy_to)
    return folder


def keyword_rows(count: int, *, seed: int = 0, header: str = "text,label") -> str:
    """Sentences of random words: those with `dog` are about dogs, those with `cat` about cats."""
    rng = random.Random(seed)
    lines = []
    for number in range(count):
        animal = ("dog", "cat")[number % 2]
        said = [
            *rng.choices(
                "anna berg lives in paris visits rome the to sat ran on a mat home".split(), k=6
            ),
            animal,
        ]
        lines.append(f"{' '.join(rng.sample(said, len(said)))},{animal}s")
    return "\n".join([header, *lines]) + "\n"


def number_rows() -> str:
    return "text,label\n" + "".join(
        f"{name} lives in {city},{number / 4}\n"
        for number, (name, city) in enumerate((name, city) for name in NAMES for city in CITIES)
    )


def question_rows() -> str:
    """Who lives in a city, where half of the paragraphs name another; two have no answer."""
    rows = [
        {
            "id": f"q{number}",
            "question": f"who lives in {city}",
            "context": f"the dog ran home . {name} lives in {city} . {other} visits acme corp",
            "answers": {"text": [name], "answer_start": [19]},
        }
        for number, (name, other, city) in enumerate(
            (name, other, city)
            for name, other in zip(NAMES, reversed(NAMES), strict=True)
            for city in CITIES
        )
    ]
    for row in rows[-2:]:
        row["answers"] = {"text": [], "answer_start": []}
    return "".join(json.dumps(row) + "\n" for row in rows)


def tagged_words() -> str:
    return "".join(
        f"{name} B-PER\nlives O\nin O\n{city} B-LOC\n\n" for name in NAMES for city in CITIES
    )


def option_rows() -> str:
    lines = []
    for place, name in enumerate(NAMES):
        for city in CITIES:
            options = ["the dog", "a cat", "a mat"]
            options.insert(place, city)
            lines.append(f"{name} lives in,{','.join(options)},{place}")
    return "\n".join(["context,a,b,c,d,label", *lines]) + "\n"


def as_flags(settings: Mapping[str, object]) -> list[str]:
    """Settings of a recipe as the command line has them."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


@dataclass(frozen=True)
class Toy:
    """A task, its options, and a file that is both its training and its dev data."""

    task: str
    file: str
    content: str
    options: dict[str, Any] = field(default_factory=dict)

    def learnt(self, model: Path, output_dir: Path, **options: Any) -> Summary:
        """The outcome of fine-tuning on it, by default until it is known by heart."""
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        data = written(output_dir.parent / self.file, self.content)
        summary = finetune(
            model,
            find_task(self.task, **self.options),
            output_dir=output_dir,
            **{
                "train": [data],
                "dev": [data],
                "dev_on_train": True,
                "flags": BY_HEART,
                "quiet": True,
            }
            | options,
        )
        assert summary is not None
        return summary


BY_HEART = (
    "--learning-rate 3e-3 --layer-decay 1 --bias-correction true --schedule constant --max-steps "
    "80 "
    "--batch-size 8 --dropout 0 --length 32 --logging-steps 10"
).split()
TOYS = {
    "classes": Toy("classify", "classes.csv", keyword_rows(8)),
    "scores": Toy("classify", "scores.csv", number_rows()),
    "joint": Toy("span", "joint.jsonl", question_rows(), {"unanswerable": True}),
    "simple": Toy(
        "span", "simple.jsonl", question_rows(), {"unanswerable": True, "head_kind": "simple"}
    ),
    "tags": Toy("ner", "tags.txt", tagged_words()),
    "frozen": Toy(
        "ner", "frozen.txt", tagged_words(), {"frozen": "concat-last-2", "lstm_width": 64}
    ),
    "choices": Toy("choose", "choices.csv", option_rows(), {"options": tuple("abcd")}),
}
