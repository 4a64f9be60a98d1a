"""Flip single bits in every file of a run folder, a shard folder and a model folder.

    python -m benchmarks.bit_flips [--flips 8] [--seed 0]
                                   [--output benchmarks/results/reliability/bit_flips.json]

After each flip a small run continues for two steps, or starts from the model. A flip is detected if
the run refuses the file, or warns and still ends with the bytes of an unharmed run. It is without
effect if the run ends with those bytes and no warning. Otherwise it is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.harness import Result, build_parser, check_counts, run_main
from benchmarks.soak_runs import FLAGS, as_settings, write_toy_shards
from electra.checksums import hash_file
from electra.config import RunFailed, UserError
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.provenance import environment

Outcome = Literal["detected", "without_effect", "lost"]
SMALL = {
    "--encoder.width": "16",
    "--encoder.feedforward": "32",
    "--encoder.embedding": "8",
    "--save-steps": "2",
    "--eval-steps": "2",
    "--save-total-limit": "3",
}
WARNINGS = ("is damaged", "is not whole", "cannot be read")


@dataclass(frozen=True)
class Target:
    """A folder whose bits are flipped, and the run that reads it."""

    name: str
    folder: Path
    run: Callable[[Path, Path], None]  # of the folder and a place for other output
    result: Callable[[Path, Path], Path]  # the run folder with the weights at the end


def train(run: Path, data: Path, *, steps: int, **options: Any) -> None:
    settings = as_settings(FLAGS) | SMALL | {"--max-steps": str(steps)}
    flags = [word for pair in settings.items() for word in pair]
    pretrain(load_recipe("tiny", flags=flags), data=data, output_dir=run, quiet=True, **options)


def build_targets(root: Path) -> list[Target]:
    """Return a run that stopped at step 4 of 6, its shards, and a model that it exported."""
    shards, run = write_toy_shards(root), root / "run"
    train(run, shards, steps=6)
    shutil.rmtree(run / "checkpoint-6")

    def first(folder: Path, _: Path) -> Path:
        return folder

    def second(_: Path, other: Path) -> Path:
        return other

    def read_shards(folder: Path, other: Path) -> None:
        shutil.copytree(run, other)
        train(other, folder, steps=6)

    return [
        Target("run", run, lambda folder, _: train(folder, shards, steps=6), first),
        Target("shards", shards, read_shards, second),
        Target(
            "model",
            run / "discriminator",
            lambda folder, other: train(other, shards, steps=2, init_from=folder),
            second,
        ),
    ]


def final_weights(run: Path) -> dict[str, str]:
    """Return the hashes of the weights, the optimizer state and the models of a finished run."""
    files = [*run.glob("checkpoint-*/*.safetensors"), *run.glob("*/model.safetensors")]
    return {str(path.relative_to(run)): hash_file(path) for path in files}


def flip_bit(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0] ^ 1 << bit % 8
        file.seek(bit // 8)
        file.write(bytes([byte]))


def try_flip(target: Target, file: str, bit: int | None, whole: dict[str, str]) -> Outcome:
    """Flip a bit in a copy of a target's folder, and return what the run made of it."""
    with tempfile.TemporaryDirectory() as root:
        folder, other = Path(root) / target.folder.name, Path(root) / "other"
        shutil.copytree(target.folder, folder)
        if bit is not None:
            flip_bit(folder / file, bit)
        output = io.StringIO()
        try:
            with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
                target.run(folder, other)
        except (UserError, RunFailed):
            return "detected"
        except Exception as error:
            print(f"{target.name}/{file} bit {bit}: {error!r}", file=sys.stderr)
            return "lost"
        weights = final_weights(target.result(folder, other))
    if bit is None:
        whole |= weights
    if {name: weights.get(name) for name in newest(whole)} != newest(whole):
        print(f"{target.name}/{file} bit {bit}: other weights", file=sys.stderr)
        return "lost"
    if any(text in output.getvalue() for text in WARNINGS):
        return "detected"
    return "without_effect"


def newest(weights: dict[str, str]) -> dict[str, str]:
    """Return the hashes of what a run ends with: a damaged older checkpoint may stay as it is."""
    steps = [int(name.split("/")[0].partition("-")[2]) for name in weights if "checkpoint" in name]
    last = f"checkpoint-{max(steps)}"
    return {name: digest for name, digest in weights.items() if last in name or "model" in name}


def flip_target(target: Target, rng: random.Random, *, flips: int) -> Iterable[Result]:
    """Flip bits of each file of a folder, and yield a row of counts for each."""
    whole: dict[str, str] = {}
    if try_flip(target, "", None, whole) != "without_effect":
        raise RunFailed(f"{target.name}: the unharmed run already warns")
    for path in sorted(target.folder.rglob("*")):
        size = 8 * path.stat().st_size
        if not path.is_file() or not size:
            continue
        file = path.relative_to(target.folder).as_posix()
        bits = rng.sample(range(size), min(flips, size))
        counts = Counter(try_flip(target, file, bit, whole) for bit in bits)
        row = {"what": f"{target.name}/{file}", "tried": len(bits)}
        yield row | {name: counts[name] for name in ("detected", "without_effect", "lost")}


def flip_everything(*, flips: int, seed: int) -> list[Result]:
    rng, rows = random.Random(seed), []
    torch.set_num_threads(1)  # sums of several threads may differ in their last bits
    with tempfile.TemporaryDirectory() as root:
        for target in build_targets(Path(root)):
            for row in flip_target(target, rng, flips=flips):
                print(json.dumps(row), flush=True)
                rows.append(row)
    return rows


def main() -> None:
    options = parse_options()
    rows = flip_everything(flips=options.flips, seed=options.seed)
    made = environment()
    result = {
        "command": f"python -m benchmarks.bit_flips --flips {options.flips} --seed {options.seed}",
        "commit": made["commit"],
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"python": made["python"], **made["packages"]},
        "rows": rows,
    }
    if options.output:
        path = Path(options.output)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf8")
    if lost := sum(row["lost"] for row in rows):
        raise RunFailed(f"{lost} flips changed the result and were not detected")


def parse_options() -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--flips", type=int, default=8, help="in each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output")
    options = parser.parse_args()
    check_counts(parser, options, "flips")
    return options


if __name__ == "__main__":
    run_main(main)
