"""How long the first experience takes, and what it shows at its end.

python -m benchmarks.quickstart [--output benchmarks/results/quickstart.json]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import build_parser, run_main, write_result


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "electra", "quickstart", "--output-dir", folder], check=True
        )
        minutes = (time.perf_counter() - began) / 60
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf8").splitlines()
        tuned = {
            name: json.loads(
                (Path(folder) / "finetuned" / name / "results.json").read_text(encoding="utf8")
            )
            for name in ("pretrained", "random")
        }
    scores = {
        name.removeprefix("eval_"): value
        for name, value in json.loads(lines[-1]).items()
        if "eval_" in name
    }
    print(f"{minutes:.1f} minutes")
    if options.output:
        finetuned = {
            name: {key: found[key] for key in ("metric", "median", "sd", "baseline", "runs")}
            for name, found in tuned.items()
        }
        write_result(options.output, {"minutes": minutes, "scores": scores, "finetuned": finetuned})


if __name__ == "__main__":
    run_main(main)
