"""The result file of `benchmarks.record`: what each run read, took and scored."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import electra
from benchmarks.ceiling import device_digest
from benchmarks.harness import Result, provenance
from benchmarks.plateau import held_out_scores
from electra import atomic
from electra.cli.describe import describe_folder
from electra.data.shards import Shards
from electra.runs.journal import read_metrics
from electra.runs.run_dir import METRICS
from electra.tasks.inference import default_device

# What a measured speed depends on besides the settings.
MEASURED_BY = ("hardware", "device", "torch", "code")


def read_record(path: Path | None) -> Result:
    """Return a result file, with its note; empty runs and speeds where there is no file."""
    if path is None or not path.is_file():
        return {"runs": {}, "speeds": {}}
    content: Result = json.loads(path.read_text(encoding="utf8"))
    return {"runs": {}, "speeds": {}, **content}


class Record:
    """The result file, written whole after every change; several threads may change it."""

    def __init__(self, path: Path, *, earlier: Path | None = None) -> None:
        self.path = path
        self.made = {
            **provenance(),
            "device": device_digest(default_device()),
            "code": code_digest(),
        }
        before, own = read_record(earlier), read_record(path)
        merged = {part: before[part] | own[part] for part in ("runs", "speeds")}
        self.result: Result = {**before, **own, **merged}
        self.lock = threading.Lock()

    def entry(self, stage: str, arm: str, seed: int) -> Result:
        """Return what is known of a run, which may be nothing."""
        entry: Result = self.result["runs"].get(run_key(stage, arm, seed), {})
        return entry

    def update(self, stage: str, arm: str, seed: int, **facts: Any) -> None:
        """Add facts to a run, which loses an earlier failure."""
        with self.lock:
            entry = self.result["runs"].setdefault(run_key(stage, arm, seed), {})
            entry.pop("failed", None)
            entry |= {"stage": stage, "arm": arm, "seed": seed, **facts, "made": self.made}
            self.write()
        shown = facts.get("failed") or facts.get("held_out", [""])[-1:]
        print(f"{run_key(stage, arm, seed)}: {shown}", flush=True)

    def forget_failure(self, stage: str, arm: str, seed: int) -> None:
        """Drop an earlier failure of a run before what failed is tried again."""
        with self.lock:
            if self.entry(stage, arm, seed).pop("failed", None) is not None:
                self.write()

    def forget_network(self, stage: str, arm: str, seed: int) -> None:
        """Drop a run whose network is gone: its scores are not those of the next one."""
        with self.lock:
            if "steps" in self.entry(stage, arm, seed):
                del self.result["runs"][run_key(stage, arm, seed)]
                self.write()

    def add_scores(self, stage: str, arm: str, seed: int, *, task: str, scores: Result) -> None:
        with self.lock:
            entry = self.result["runs"][run_key(stage, arm, seed)]
            entry.setdefault("tuned", {})[task] = scores
            self.write()
        print(f"{run_key(stage, arm, seed)}, {task}: {scores['scores']}", flush=True)

    def speed(self, key: str) -> float | None:
        """Return the rows a second of settings, if this code measured them on this very device."""
        known = self.result["speeds"].get(key)
        if known is None or any(known["made"].get(name) != self.made[name] for name in MEASURED_BY):
            return None
        return float(known["rows_per_second"])

    def add_speed(self, key: str, arm: str, rate: float) -> None:
        with self.lock:
            speed = {"arm": arm, "rows_per_second": round(rate, 1), "made": self.made}
            self.result["speeds"][key] = speed
            self.write()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(self.path, self.result)


def code_digest() -> str:
    """Return a short hash of the code that a speed depends on, also where it is not committed."""
    digest = hashlib.sha256()
    for path in (
        *sorted(Path(electra.__file__).parent.rglob("*.py")),
        Path(__file__).with_name("record_speed.py"),
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def run_key(stage: str, arm: str, seed: int) -> str:
    return f"{stage}: {arm}, seed {seed}"


def pretrained_facts(folder: Path, shards: Shards) -> Result:
    """Return what a finished pre-training read, what that cost and how it scored."""
    entries = read_metrics(folder / METRICS)
    logged = [entry for entry in entries if "tokens_per_second" in entry]
    description = describe_folder(folder)
    tokens = logged[-1]["tokens_seen"]
    rates = sorted(entry["tokens_per_second"] for entry in logged)
    return {
        "steps": logged[-1]["step"],
        "tokens_seen": tokens,
        "epochs": round(logged[-1]["epoch"], 2),
        "corpus_tokens": shards.manifest.tokens,
        "parameters": description.parameters.encoder,
        "flops": {
            "standard": description.standard.training * description.tokens,
            "official": description.official.training * description.tokens,
        },
        "tokens_per_second": round(rates[len(rates) // 2]),
        "held_out": [scores for entry in entries if (scores := held_out_scores(entry))],
    }


def finetuned_scores(folder: Path, flags: Sequence[str]) -> Result:
    """Return the scores of all seeds of a fine-tuning."""
    results = json.loads((folder / "results.json").read_text(encoding="utf8"))
    return {
        "flags": " ".join(flags),
        "metric": results["metric"],
        "baseline": results["baseline"],
        "median": results["median"],
        "scores": [run["score"] for run in results["runs"]],
        "seconds": [round(run["seconds"], 1) for run in results["runs"]],
    }
