"""Measure how long each command takes to print its help.

python -m benchmarks.help [--repeats 9] [--output benchmarks/results/help.json]
"""

from __future__ import annotations

import statistics
import subprocess
import time

from benchmarks.harness import ELECTRA, build_parser, run_main, write_result

COMMANDS = ([], ["vocab"], ["shard"], ["pretrain"], ["describe"], ["show"], ["quickstart"])


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    for command in COMMANDS:
        name = " ".join(["electra", *command, "--help"])
        for _ in range(options.repeats):
            start = time.perf_counter()
            subprocess.run(
                [*ELECTRA, *command, "--help"], check=True, capture_output=True, text=True
            )
            seconds.setdefault(name, []).append(time.perf_counter() - start)
        print(
            f"{name:<26} median {statistics.median(seconds[name]):.2f} s, worst "
            f"{max(seconds[name]):.2f} s"
        )
    if options.output:
        write_result(options.output, {"seconds": seconds})


if __name__ == "__main__":
    run_main(main)
