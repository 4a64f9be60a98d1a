"""How fast text becomes rows, beside the bare tokenizer on the same text and cores; with --memory,
at what peak memory.

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
    parser.add_argument(
        "--stage", nargs=3, help=argparse.SUPPRESS
    )  # a child process measures itself
    arguments = parser.parse_args()
    if arguments.stage:
        run_stage(*arguments.stage)
        return
    with tempfile.TemporaryDirectory() as folder:
        if arguments.memory:
            found = {
                str(megabytes): report_memory(Path(folder), megabytes)
                for megabytes in arguments.sizes
            }
        else:
            found = report_speed(
                Path(folder), arguments.megabytes, arguments.workers, arguments.repeats
            )
    if arguments.output:
        write_result(arguments.output, found)


# ---- speed ---------------------------------------------------------------------------------------


def report_speed(folder: Path, megabytes: int, workers: int | None, repeats: int) -> dict[str, Any]:
    corpus = write_docstring_corpus(folder, max_bytes=min(megabytes, 8) * 1_000_000)
    wordpiece = train_wordpiece([corpus], folder / "vocabulary", report=print)
    corpus.write_bytes(corpus.read_bytes() * max(1, round(megabytes / 8)))
    lines = [line for document in read_corpus([corpus]) for line in document.lines]
    size = sum(len(line.encode()) for line in lines) / 1e6
    bare, ours = [], []
    for repeat in range(repeats):  # in turn, so that a busy machine slows both
        begin = time.perf_counter()
        for start in range(
            0, len(lines), 10_000
        ):  # results are thrown away; all cores, by the library's own threads
            wordpiece.backend_tokenizer.encode_batch(
                lines[start : start + 10_000], add_special_tokens=False
            )
        bare.append(size / (time.perf_counter() - begin))
        begin = time.perf_counter()
        shard(
            [corpus],
            tokenizer=wordpiece,
            output_dir=folder / f"shards-{repeat}",
            options=ShardOptions(workers=workers),
            report=print,
        )
        ours.append(size / (time.perf_counter() - begin))
    print(
        f"{size:.1f} MB, {workers or 'default'} workers, median of {repeats}: encode_batch alone "
        f"{median(bare):.2f} "
        f"MB/s, text to shards {median(ours):.2f} MB/s, ratio {median(ours) / median(bare):.2f}"
    )
    return {
        "megabytes": size,
        "workers": workers,
        "encode_batch": bare,
        "shard": ours,
        "ratio": median(ours) / median(bare),
    }


# ---- memory --------------------------------------------------------------------------------------


def report_memory(folder: Path, megabytes: int) -> dict[str, Any]:
    corpus = folder / f"{megabytes}.txt"
    generate(corpus, megabytes)
    found = {}
    for stage in ("vocab", "shard"):
        ran = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.shard",
                "--stage",
                stage,
                str(corpus),
                str(folder / str(megabytes)),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        found[stage] = json.loads(ran.stdout.splitlines()[-1])
        print(f"{megabytes} MB, {stage}: {found[stage]}", flush=True)
    corpus.unlink()
    return found


def generate(path: Path, megabytes: int) -> None:
    """Words by Zipf's law over a million spellings: as many different words as a corpus of the web
    has.
    """
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    weights = 1 / np.arange(1, 27)
    drawn = rng.choice(letters, p=weights / weights.sum(), size=(1_000_000, 12))
    lengths = rng.integers(2, 13, size=1_000_000)
    words = ["".join(row[:length]) for row, length in zip(drawn, lengths, strict=True)]
    written = 0
    with path.open("w", encoding="utf8") as stream:
        while written < megabytes * 1_000_000:
            chosen = np.minimum(rng.zipf(1.2, size=200_000), 1_000_000) - 1
            text = "\n".join(
                " ".join(words[i] for i in chosen[start : start + 20]) + "\n" * (start % 400 == 0)
                for start in range(0, len(chosen), 20)
            )
            written += stream.write(text + "\n")


def run_stage(stage: str, corpus: str, folder: str) -> None:
    begin = time.perf_counter()
    wordpiece = train_wordpiece([corpus], f"{folder}-vocabulary", report=lambda _: None)
    if stage == "shard":
        shard([corpus], tokenizer=wordpiece, output_dir=f"{folder}-shards", report=lambda _: None)
    # In kilobytes on Linux. The workers' peak is that of the largest one; they are counted as if
    # all peaked together.
    own, child = (
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    workers = len(os.sched_getaffinity(0)) if stage == "shard" else 0
    print(
        json.dumps(
            {
                "peak_megabytes": round(own + workers * child),
                "seconds": round(time.perf_counter() - begin),
            }
        )
    )


if __name__ == "__main__":
    run_main(main)
