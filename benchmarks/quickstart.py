"""Measure how long the quickstart takes, and what its models score.

python -m benchmarks.quickstart [--output benchmarks/results/quickstart.json]
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.harness import ELECTRA, Result, build_parser, run_main, write_result

# of a fine-tuning's results
KEYS = ("metric", "protocol", "median", "sd", "baseline", "runs")


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run([*ELECTRA, "quickstart", "--output-dir", folder], check=True)
        minutes = (time.perf_counter() - start) / 60
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf8").splitlines()
        finetuned = {
            path.parent.name: read_scores(path)
            for path in sorted(Path(folder).glob("finetuned/*/results.json"))
        }
    scores = {
        name.removeprefix("eval_"): value
        for name, value in json.loads(lines[-1]).items()
        if "eval_" in name
    }
    print(f"{minutes:.1f} minutes")
    if options.output:
        write_result(options.output, {"minutes": minutes, "scores": scores, "finetuned": finetuned})


def read_scores(path: Path) -> Result:
    """Return the scores of one fine-tuning, and how many sentences it was trained on."""
    results = json.loads(path.read_text(encoding="utf8"))
    scores = {key: results[key] for key in KEYS}
    return scores | {"examples": results["made"]["data"]["train"]["examples"]}


if __name__ == "__main__":
    run_main(main)
