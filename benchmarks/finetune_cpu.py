"""Fine-tuning on a CPU, and asking the result: examples a second, against transformers' `Trainer`.

    python -m benchmarks.finetune_cpu [--examples 512] [--repeats 3] [--quick] [--output FILE]

Both sides load the same folder (`small`, random weights), read the same texts of mixed length,
already encoded, and train one epoch in batches of 32 with fused AdamW, float32, dropout 0.1,
clipping at 1.0. The Trainer pads each batch to its longest text; it runs with its default sampler
and with the one that groups by length (within a quarter of the data here, in pools of 50 batches
where there is more). Asking is in batches of the same size there, and of `BATCH_TOKENS` tokens
here: what each does when left alone.
"""

from __future__ import annotations

import csv
import importlib.util
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.harness import build_parser, run_main, write_result
from benchmarks.peer import build_trainer
from electra.config import UserError
from electra.console import ignore
from electra.data.vocabulary import bert_tokenizer, build_wordpiece
from electra.data.wordpiece import SPECIAL_TOKENS
from electra.engine.distributed import process_group
from electra.finetuning.loop import train
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.setup import prepare_finetuning
from electra.finetuning.state import attach_train_step, build_state
from electra.model import huggingface
from electra.model.encoder import Encoder
from electra.model.networks import Discriminator
from electra.pretraining.recipe import load_recipe
from electra.runs.journal import Journal
from electra.tasks import find_task
from electra.tasks.inference import compute_outputs, inference_batches

BATCH, VOCABULARY = 32, 30_522
Round = dict[str, float]  # seconds and tokens, padding included, of training and of asking


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--examples", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="a network of two layers: does it run?"
    )
    parser.add_argument("--output")
    options = parser.parse_args()
    if importlib.util.find_spec("accelerate") is None:
        raise UserError("transformers' Trainer needs accelerate: pip install -e '.[benchmarks]'")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_model(folder / "model", quick=options.quick)
        write_texts(folder / "texts.csv", options.examples)
        write_texts(folder / "few.csv", BATCH)
        sides = {
            name: prepare(folder / "model", folder / "texts.csv")
            for name, prepare in PREPARED.items()
        }
        for prepare in PREPARED.values():
            prepare(folder / "model", folder / "few.csv")(0)  # warms up
        rounds: dict[str, list[Round]] = {name: [] for name in sides}
        for seed in range(options.repeats):
            for (
                name,
                side,
            ) in sides.items():  # in turn, so that a slow moment of the machine hits all
                rounds[name].append(side(seed))
                print(name, rounds[name][-1], flush=True)
    found = summary(rounds, options.examples)
    if options.output:
        write_result(options.output, found)


# ---- the same model and texts for all ------------------------------------------------------------


def save_model(folder: Path, *, quick: bool) -> None:
    shape = load_recipe("small").encoder
    shape = replace(shape, layers=2) if quick else shape
    entries = [*SPECIAL_TOKENS, *(f"word{n}" for n in range(VOCABULARY - len(SPECIAL_TOKENS)))]
    words = build_wordpiece(bert_tokenizer(), {entry: n for n, entry in enumerate(entries)})
    torch.manual_seed(0)
    huggingface.save(
        Discriminator(Encoder(shape, vocabulary=words.size)),
        folder,
        role="discriminator",
        tokenizer_files=lambda path: words.copy_to(path, model_max_length=shape.positions),
    )


def write_texts(path: Path, count: int) -> None:
    """A third each as long as CoLA's sentences, SST-2's, and RTE's pairs: 5 to 120 words. Which
    words does not matter.
    """
    rng = random.Random(0)
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for n in range(count):
            words = round(rng.choice((8, 18, 55)) * rng.lognormvariate(0, 0.5))
            text = " ".join(f"word{rng.randrange(20_000)}" for _ in range(min(120, max(5, words))))
            writer.writerow((text, "yes" if n % 2 else "no"))


# ---- ours ----------------------------------------------------------------------------------------


def ours(model: Path, texts: Path) -> Callable[[int], Round]:
    task = find_task("classify")
    options = FinetuneOptions(train=[texts], dev=[texts], flags=["--epochs", "1"])
    setup = prepare_finetuning(model, task, options, say=ignore)
    rows = setup.train

    def round_of(seed: int) -> Round:
        with process_group() as world, Journal(None, max_steps=1, quiet=True) as journal:
            state = build_state(setup, seed, texts.parent / "unused", world)
            attach_train_step(state)
            began = time.perf_counter()
            assert train(state, journal, lambda: False)
            trained = time.perf_counter()
            answered = compute_outputs(state.network, rows, device=world.device)
            asked = time.perf_counter()
        assert (
            len(answered)
            == len(rows)
            == sum(len(state.units(step + 1)) for step in range(state.max_steps))
        )
        batches = [state.units(step + 1) for step in range(state.max_steps)]
        return {
            "train_seconds": trained - began,
            "train_tokens": padded(rows.lengths, batches),
            "ask_seconds": asked - trained,
            "ask_tokens": padded(rows.lengths, inference_batches(rows, world.device)),
            "real_tokens": int(rows.lengths.sum()),
        }

    return round_of


def padded(lengths: Any, batches: list[Any]) -> int:
    return sum(len(units) * int(lengths[units].max()) for units in batches)


# ---- theirs --------------------------------------------------------------------------------------


def trainer(sampling: str) -> Callable[[Path, Path], Callable[[int], Round]]:
    def prepare(model: Path, texts: Path) -> Callable[[int], Round]:
        from transformers import AutoTokenizer, DataCollatorWithPadding

        words = AutoTokenizer.from_pretrained(model)
        with texts.open(encoding="utf8", newline="") as file:
            rows = [
                {
                    **words(row["text"], truncation=True, max_length=128),
                    "labels": int(row["label"] == "yes"),
                }
                for row in csv.DictReader(file)
            ]
        collate = DataCollatorWithPadding(words)
        passed: list[tuple[int, int]] = []  # examples and tokens of each batch

        def counted(batch: list[Any]) -> Any:
            found = collate(batch)
            passed.append((len(found["labels"]), found["input_ids"].numel()))
            return found

        def round_of(seed: int) -> Round:
            loop = build_trainer(
                model,
                rows,
                words,
                place=texts.parent / "unused",
                batch_size=BATCH,
                sampling=sampling,
                seed=seed,
                collate=counted,
                num_train_epochs=1,
                use_cpu=True,
            )
            times, counts = [time.perf_counter()], []
            for work in (loop.train, lambda: loop.predict(rows)):
                passed.clear()
                work()
                times.append(time.perf_counter())
                counts.append([sum(part) for part in zip(*passed, strict=True)])
            assert all(examples == len(rows) for examples, _ in counts), counts
            return {
                "train_seconds": times[1] - times[0],
                "train_tokens": counts[0][1],
                "ask_seconds": times[2] - times[1],
                "ask_tokens": counts[1][1],
                "real_tokens": sum(len(row["input_ids"]) for row in rows),
            }

        return round_of

    return prepare


PREPARED = {
    "ours": ours,
    "trainer": trainer("random"),
    "trainer_grouped": trainer("group_by_length"),
}


# ---- what came of it -----------------------------------------------------------------------------


def summary(rounds: dict[str, list[Round]], examples: int) -> dict[str, Any]:
    """Ratios are taken within a repeat, where the machine was equally busy; their median counts."""
    assert len({each["real_tokens"] for found in rounds.values() for each in found}) == 1, (
        "not the same tokens"
    )
    ratios: dict[str, dict[str, list[float]]] = {}
    for work in ("train", "ask"):
        ratios[work] = {}
        for name, found in rounds.items():
            seconds = [each[f"{work}_seconds"] for each in found]
            times = ratios[work][name] = [
                their / our[f"{work}_seconds"]
                for their, our in zip(seconds, rounds["ours"], strict=True)
            ]
            print(
                f"{work:<6} {name:<16} {examples / median(seconds):7.1f} examples/s; ours is "
                f"{median(times):.2f} "
                f"times as fast ({min(times):.2f} to {max(times):.2f}); "
                f"{1 - found[0]['real_tokens'] / found[0][f'{work}_tokens']:.0%} padding"
            )
    return {
        "examples": examples,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "ratios": ratios,
    }


if __name__ == "__main__":
    run_main(main)
