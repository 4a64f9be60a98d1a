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

KEYS = ("metric", "median", "sd", "baseline", "runs")  # of a fine-tuning's results


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run([*ELECTRA, "quickstart", "--output-dir", folder], check=True)
        minutes = (time.perf_counter() - start) / 60
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf8").splitlines()
        finetuned = {name: read_scores(Path(folder), name) for name in ("pretrained", "random")}
    scores = {
        name.removeprefix("eval_"): value
        for name, value in json.loads(lines[-1]).items()
        if "eval_" in name
    }
    print(f"{minutes:.1f} minutes")
    if options.output:
        write_result(options.output, {"minutes": minutes, "scores": scores, "finetuned": finetuned})


def read_scores(folder: Path, name: str) -> Result:
    """Return the scores of one fine-tuning of the quickstart."""
    path = folder / "finetuned" / name / "results.json"
    results = json.loads(path.read_text(encoding="utf8"))
    return {key: results[key] for key in KEYS}


if __name__ == "__main__":
    run_main(main)
