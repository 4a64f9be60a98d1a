"""Measure fine-tuning and prediction on a CPU: examples a second, against transformers' `Trainer`.

    python -m benchmarks.finetune_cpu [--examples 512] [--repeats 3] [--quick] [--output FILE]

Both sides load the same folder (`small`, random weights), read the same texts of mixed length,
already encoded, and train one epoch in batches of 32 with fused AdamW, float32, dropout 0.1,
clipping at 1.0. The Trainer pads each batch to its longest text; it runs with its default sampler
and with the one that groups by length (within a quarter of the data here, in pools of 50 batches
where there is more). The Trainer predicts in batches of the same size, ours in batches of
`BATCH_TOKENS` tokens: the defaults of both.
"""

from __future__ import annotations

import csv
import importlib.util
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.harness import build_parser, run_main, write_result
from benchmarks.peer import TrainerOptions, build_trainer
from electra.config import UserError
from electra.console import ignore
from electra.data.normalization import Normalization
from electra.data.vocabulary import build_wordpiece
from electra.data.wordpiece import SPECIAL_TOKENS
from electra.engine.distributed import process_group
from electra.finetuning.loop import train
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.setup import prepare_finetuning
from electra.finetuning.state import attach_train_step, build_state
from electra.model import huggingface
from electra.model.electra_encoder import ElectraEncoder
from electra.model.networks import Discriminator
from electra.pretraining.recipe import load_recipe
from electra.runs.journal import Journal
from electra.tasks import find_task
from electra.tasks.inference import compute_outputs, inference_batches

BATCH, VOCABULARY = 32, 30_522
Round = dict[str, float]  # seconds and tokens, padding included, of training and of prediction
Side = Callable[[int], Round]  # a seed → one round


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--examples", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="a network of two layers, to see that it runs"
    )
    parser.add_argument("--output")
    options = parser.parse_args()
    if importlib.util.find_spec("accelerate") is None:
        raise UserError("transformers' Trainer needs accelerate: pip install -e '.[benchmarks]'")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_model(folder / "model", quick=options.quick)
        write_texts(folder / "texts.csv", options.examples)
        write_texts(folder / "few.csv", BATCH)
        rounds = measure(folder, repeats=options.repeats)
    result = summarize(rounds, options.examples)
    if options.output:
        write_result(options.output, result)


def measure(folder: Path, *, repeats: int) -> dict[str, list[Round]]:
    """Return the rounds of all sides."""
    model = folder / "model"
    sides = {name: prepare(model, folder / "texts.csv") for name, prepare in SIDES.items()}
    for prepare in SIDES.values():
        prepare(model, folder / "few.csv")(0)  # warms up
    rounds: dict[str, list[Round]] = {name: [] for name in sides}
    for seed in range(repeats):
        # In turn, so that a slow moment of the machine hits all.
        for name, side in sides.items():
            rounds[name].append(side(seed))
            print(name, rounds[name][-1], flush=True)
    return rounds


# ---- the model and the texts of all sides --------------------------------------------------------


def save_model(folder: Path, *, quick: bool) -> None:
    """Save a discriminator with random weights."""
    shape = load_recipe("small").encoder
    if quick:
        shape = replace(shape, layers=2)
    entries = [*SPECIAL_TOKENS, *(f"word{n}" for n in range(VOCABULARY - len(SPECIAL_TOKENS)))]
    tokenizer = build_wordpiece(
        Normalization().build_tokenizer(), {entry: n for n, entry in enumerate(entries)}
    )
    torch.manual_seed(0)
    huggingface.save(
        Discriminator(ElectraEncoder(shape, vocabulary=tokenizer.size)),
        folder,
        role="discriminator",
        tokenizer_files=lambda path: tokenizer.copy_to(path, model_max_length=shape.positions),
    )


def write_texts(path: Path, count: int) -> None:
    """Write texts of 5 to 120 random words.

    A third each is as long as CoLA's sentences, SST-2's, and RTE's pairs.
    """
    rng = random.Random(0)
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for n in range(count):
            words = round(rng.choice((8, 18, 55)) * rng.lognormvariate(0, 0.5))
            text = " ".join(f"word{rng.randrange(20_000)}" for _ in range(min(120, max(5, words))))
            writer.writerow((text, ("no", "yes")[n % 2]))


# ---- ours ----------------------------------------------------------------------------------------


def ours(model: Path, texts: Path) -> Side:
    """Return a function that trains ours once and predicts every example."""
    task = find_task("classify")
    options = FinetuneOptions(
        train=[texts], dev=[texts], dev_on_train=True, flags=["--epochs", "1"]
    )
    setup = prepare_finetuning(model, task, options, say=ignore)
    rows = setup.train

    def run_round(seed: int) -> Round:
        with process_group() as world, Journal(None, max_steps=1, quiet=True) as journal:
            state = build_state(setup, seed, texts.parent / "unused", world)
            attach_train_step(state)
            start = time.perf_counter()
            assert train(state, journal, lambda: False)
            trained = time.perf_counter()
            answers = compute_outputs(state.network, rows, device=world.device)
            answered = time.perf_counter()
        batches = [state.units(step + 1) for step in range(state.max_steps)]
        assert len(answers) == len(rows) == sum(map(len, batches))
        return {
            "train_seconds": trained - start,
            "train_tokens": count_padded(rows.lengths, batches),
            "ask_seconds": answered - trained,
            "ask_tokens": count_padded(rows.lengths, inference_batches(rows, world.device)),
            "real_tokens": int(rows.lengths.sum()),
        }

    return run_round


def count_padded(lengths: Any, batches: list[Any]) -> int:
    """Return the tokens of all batches, padding included."""
    return sum(len(units) * int(lengths[units].max()) for units in batches)


# ---- transformers --------------------------------------------------------------------------------


def trainer(model: Path, texts: Path, *, sampling: str) -> Side:
    """Return a function that trains with transformers' Trainer once and predicts every example."""
    from transformers import AutoTokenizer, DataCollatorWithPadding

    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = encode_texts(texts, tokenizer)
    collator = DataCollatorWithPadding(tokenizer)
    batches: list[tuple[int, int]] = []  # examples and tokens of each batch

    def collate(examples: list[Any]) -> Any:
        batch = collator(examples)
        batches.append((len(batch["labels"]), batch["input_ids"].numel()))
        return batch

    def run_round(seed: int) -> Round:
        options = TrainerOptions(
            output_dir=texts.parent / "unused",
            batch_size=BATCH,
            sampling=sampling,
            seed=seed,
            settings={"num_train_epochs": 1, "use_cpu": True},
        )
        loop = build_trainer(model, rows, tokenizer, options, collate=collate)
        times, counts = [time.perf_counter()], []
        for work in (loop.train, lambda: loop.predict(rows)):
            batches.clear()
            work()
            times.append(time.perf_counter())
            counts.append([sum(column) for column in zip(*batches, strict=True)])
        assert all(examples == len(rows) for examples, _ in counts), counts
        return {
            "train_seconds": times[1] - times[0],
            "train_tokens": counts[0][1],
            "ask_seconds": times[2] - times[1],
            "ask_tokens": counts[1][1],
            "real_tokens": sum(len(row["input_ids"]) for row in rows),
        }

    return run_round


def encode_texts(texts: Path, tokenizer: Any) -> list[dict[str, Any]]:
    """Return the texts as the Trainer's collator takes them."""
    rows = []
    with texts.open(encoding="utf8", newline="") as file:
        for row in csv.DictReader(file):
            encoding = tokenizer(row["text"], truncation=True, max_length=128)
            rows.append({**encoding, "labels": int(row["label"] == "yes")})
    return rows


SIDES: dict[str, Callable[[Path, Path], Side]] = {
    "ours": ours,
    "trainer": partial(trainer, sampling="random"),
    "trainer_grouped": partial(trainer, sampling="group_by_length"),
}


# ---- ratios --------------------------------------------------------------------------------------


def summarize(rounds: dict[str, list[Round]], examples: int) -> dict[str, Any]:
    """Return and print ratios, taken within a repeat, where the machine was equally busy."""
    tokens = [{one["real_tokens"] for one in side} for side in rounds.values()]
    assert len(set.union(*tokens)) == 1, "not the same tokens"
    ratios: dict[str, dict[str, list[float]]] = {}
    for work in ("train", "ask"):
        key = f"{work}_seconds"
        ratios[work] = {}
        for name, side in rounds.items():
            pairs = zip(side, rounds["ours"], strict=True)
            times = ratios[work][name] = [theirs[key] / our[key] for theirs, our in pairs]
            seconds = median(one[key] for one in side)
            padding = 1 - side[0]["real_tokens"] / side[0][f"{work}_tokens"]
            print(
                f"{work:<6} {name:<16} {examples / seconds:7.1f} examples/s; ours is "
                f"{median(times):.2f} times as fast ({min(times):.2f} to {max(times):.2f}); "
                f"{padding:.0%} padding"
            )
    return {
        "examples": examples,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "ratios": ratios,
    }


if __name__ == "__main__":
    run_main(main)
