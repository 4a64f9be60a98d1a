"""Which settings leave the plateau, and after how many steps? Several pre-trainings side by side,
their held-out scores kept as curves; and what they are worth on tasks, if some are named.

    python -m benchmarks.plateau --data SHARDS --run "mlm, 1e-3: bert-small --learning-rate 1e-3
    --max-steps 20000" …
                                 [--together 2] [--glue GLUE --tasks glue/sst-2 … --tuning
                                 "--learning-rate 3e-4"] [--output benchmarks/results/plateau.json]

On the plateau a masked LM knows how frequent words are and a discriminator how often they are
replaced, and no more: `trivial_…` beside every score says what that is worth.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import build_parser, provenance, run_main, write_result
from electra.config import UserError
from electra.data.shards import Shards
from electra.runs.journal import read

PREFIX = "eval_"


def electra(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "electra", *words, "--quiet"],
        check=True,
        capture_output=True,
        text=True,
        env={"OMP_NUM_THREADS": "1", **os.environ},
    )


def curve(data: str, settings: str, place: Path) -> dict[str, Any]:
    """One run, and what it scored on held-out rows."""
    recipe, *flags = shlex.split(settings)
    electra(
        "pretrain",
        recipe,
        "--data",
        data,
        "--output-dir",
        str(place),
        "--save-total-limit",
        "1",
        *flags,
    )
    entries = read(place / "metrics.jsonl")
    scores = [
        {
            "step": entry["step"],
            **{
                name.removeprefix(PREFIX): round(value, 4)
                for name, value in entry.items()
                if name.startswith(PREFIX)
            },
        }
        for entry in entries
        if any(name.startswith(PREFIX) for name in entry)
    ]
    rates = [entry["tokens_per_second"] for entry in entries if "tokens_per_second" in entry]
    return {
        "settings": settings,
        "held_out": scores,
        "tokens_seen": max(entry.get("tokens_seen", 0) for entry in entries),
        "tokens_per_second": round(sum(rates) / len(rates)),
    }


def tuned(model: Path, options: Any) -> dict[str, Any]:
    """The median of each task's main score, on dev."""
    found: dict[str, Any] = {"tuning": options.tuning}
    for task in options.tasks:
        place = model.parent / f"{model.name}-{task.replace('/', '-')}"
        electra(
            "finetune",
            str(model),
            "--task",
            task,
            "--data",
            options.glue,
            "--output-dir",
            str(place),
            *shlex.split(options.tuning),
        )
        found[task] = json.loads((place / "results.json").read_text(encoding="utf8"))["median"]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--run", action="append", required=True, metavar="NAME: RECIPE FLAGS")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--glue", help="folder with the tasks")
    parser.add_argument("--tasks", nargs="+", default=[])
    parser.add_argument("--tuning", default="", metavar="FLAGS", help="of electra finetune")
    parser.add_argument("--output", help="what is there already of other runs stays")
    options = parser.parse_args(arguments)
    if options.tasks and not options.glue:
        parser.error("--tasks needs --glue, the folder they lie in")
    if broken := [run for run in options.run if ": " not in run]:
        raise UserError(
            f"--run {broken[0]!r}: give a name, a colon and a blank, then a recipe and flags"
        )
    shards, kept = Shards.open(options.data), Path(options.output) if options.output else None
    found = json.loads(kept.read_text(encoding="utf8")) if kept and kept.exists() else {"runs": {}}
    one_at_a_time = threading.Lock()
    about = {
        "rows": f"{len(shards.train):,} of {shards.length} tokens, {shards.tokenizer.size:,} words",
        "made": provenance(),
    }

    def run(number: int, asked: str) -> None:
        name, settings = asked.split(": ", 1)
        result = curve(options.data, settings, Path(place) / str(number))
        if options.tasks:
            result["tuned"] = tuned(Path(place) / str(number), options)
        print(f"{name}: {result['held_out'][-1]} {result.get('tuned', '')}", flush=True)
        with one_at_a_time:
            found["runs"][name] = {**about, **result}
            if kept:
                write_result(
                    kept, {part: values for part, values in found.items() if part != "made"}
                )

    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.together) as pool:
        list(pool.map(run, range(len(options.run)), options.run))


if __name__ == "__main__":
    run_main(main)
