"""Measure the speed of `shard` beside the bare tokenizer on the same text and cores; with --memory,
the peak memory of `vocab` and `shard`.

python -m benchmarks.shard [--megabytes 8] [--workers N] [--repeats 3] [--output FILE]
python -m benchmarks.shard --memory [--sizes 100 1000] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import build_parser, run_main, write_result
from electra.data.corpus import read_corpus
from electra.data.docstring_corpus import write_docstring_corpus
from electra.data.options import ShardOptions
from electra.data.sharding import shard
from electra.data.vocabulary import train_wordpiece
from electra.data.wordpiece import WordPiece


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=8)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[100, 1000], help="megabytes of corpus for --memory"
    )
    parser.add_argument("--output", help="where to keep the result, as JSON")
    # For the child process that measures itself.
    parser.add_argument("--stage", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        run_stage(*arguments.stage)
        return
    with tempfile.TemporaryDirectory() as folder:
        if arguments.memory:
            result = {
                str(megabytes): measure_memory(Path(folder), megabytes)
                for megabytes in arguments.sizes
            }
        else:
            result = measure_speed(
                Path(folder), arguments.megabytes, arguments.workers, arguments.repeats
            )
    if arguments.output:
        write_result(arguments.output, result)


# ---- speed ---------------------------------------------------------------------------------------


def measure_speed(
    folder: Path, megabytes: int, workers: int | None, repeats: int
) -> dict[str, Any]:
    """Measure the megabytes per second of the bare tokenizer and of `shard`."""
    corpus = write_docstring_corpus(folder, max_bytes=min(megabytes, 8) * 1_000_000)
    tokenizer = train_wordpiece([corpus], folder / "vocabulary", report=print)
    corpus.write_bytes(corpus.read_bytes() * max(1, round(megabytes / 8)))
    lines = [line for document in read_corpus([corpus]) for line in document.lines]
    size = sum(len(line.encode()) for line in lines) / 1e6
    encode_speeds, shard_speeds = [], []
    for repeat in range(repeats):  # in turn, so that a busy machine slows both
        begin = time.perf_counter()
        encode_all(tokenizer, lines)
        encode_speeds.append(size / (time.perf_counter() - begin))
        begin = time.perf_counter()
        shard(
            [corpus],
            tokenizer=tokenizer,
            output_dir=folder / f"shards-{repeat}",
            options=ShardOptions(workers=workers),
            report=print,
        )
        shard_speeds.append(size / (time.perf_counter() - begin))
    ratio = median(shard_speeds) / median(encode_speeds)
    print(
        f"{size:.1f} MB, {workers or 'default'} workers, median of {repeats}: encode_batch alone "
        f"{median(encode_speeds):.2f} MB/s, text to shards {median(shard_speeds):.2f} MB/s, "
        f"ratio {ratio:.2f}"
    )
    return {
        "megabytes": size,
        "workers": workers,
        "encode_batch": encode_speeds,
        "shard": shard_speeds,
        "ratio": ratio,
    }


def encode_all(tokenizer: WordPiece, lines: list[str]) -> None:
    """Tokenize all lines and drop the results; the library's own threads use all cores."""
    for start in range(0, len(lines), 10_000):
        batch = lines[start : start + 10_000]
        tokenizer.backend_tokenizer.encode_batch(batch, add_special_tokens=False)


# ---- memory --------------------------------------------------------------------------------------


def measure_memory(folder: Path, megabytes: int) -> dict[str, Any]:
    """Measure the peak memory of `vocab` and `shard` on a generated corpus of this size."""
    corpus = folder / f"{megabytes}.txt"
    generate(corpus, megabytes)
    result = {}
    for stage in ("vocab", "shard"):
        arguments = [stage, str(corpus), str(folder / str(megabytes))]
        child = subprocess.run(
            [sys.executable, "-m", "benchmarks.shard", "--stage", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        result[stage] = json.loads(child.stdout.splitlines()[-1])
        print(f"{megabytes} MB, {stage}: {result[stage]}", flush=True)
    corpus.unlink()
    return result


def generate(path: Path, megabytes: int) -> None:
    """Write words drawn by Zipf's law from a million spellings, as many as a web corpus has."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    weights = 1 / np.arange(1, 27)
    drawn = rng.choice(letters, p=weights / weights.sum(), size=(1_000_000, 12))
    lengths = rng.integers(2, 13, size=1_000_000)
    words = ["".join(row[:length]) for row, length in zip(drawn, lengths, strict=True)]
    written = 0
    with path.open("w", encoding="utf8") as stream:
        while written < megabytes * 1_000_000:
            indices = np.minimum(rng.zipf(1.2, size=200_000), 1_000_000) - 1
            for start in range(0, len(indices), 20):
                line = " ".join(words[index] for index in indices[start : start + 20])
                written += stream.write(line + "\n")
                if start % 400 == 0:
                    written += stream.write("\n")


def run_stage(stage: str, corpus: str, folder: str) -> None:
    """Run one stage in this process and print its time and peak memory."""
    begin = time.perf_counter()
    tokenizer = train_wordpiece([corpus], f"{folder}-vocabulary", report=lambda _: None)
    if stage == "shard":
        shard([corpus], tokenizer=tokenizer, output_dir=f"{folder}-shards", report=lambda _: None)
    # Of the workers only the largest peak is known; they are counted as if all had that peak.
    peak = peak_megabytes(resource.RUSAGE_SELF)
    if stage == "shard":
        peak += len(os.sched_getaffinity(0)) * peak_megabytes(resource.RUSAGE_CHILDREN)
    seconds = round(time.perf_counter() - begin)
    print(json.dumps({"peak_megabytes": round(peak), "seconds": seconds}))


def peak_megabytes(who: int) -> float:
    """Return the peak memory of this process or its largest child; Linux counts kilobytes."""
    return resource.getrusage(who).ru_maxrss / 1024


if __name__ == "__main__":
    run_main(main)
