"""Sweeps at smoke scale, and their jobs."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from electra.data.shards import Shards
from electra.experiments import plan
from electra.experiments.jobs import Job, build_jobs
from electra.experiments.plan import Trial, load_scale, load_trial
from electra.experiments.sweep import Sweep


def sweep_of(folder: Path, *chosen: str, **more: object) -> Sweep:
    return Sweep(
        **{
            "trials": [load_trial(name) for name in chosen],
            "scale": load_scale("smoke"),
            "budget": Fraction(1),
            "output_dir": folder,
            **more,
        }
    )


def jobs_of(options: Sweep, data: Path) -> list[Job]:
    return build_jobs(options, {32: Shards.open(data)}, {})


def command(*words: object) -> list[str]:
    return ["trials", "run", *map(str, words), "--quiet"]


def chained(first: dict[str, object] | None = None) -> Trial:
    """Two stages, the first of which may have other settings."""
    stages = [
        {"recipe": "bert-base", "size": "base", "share": 0.5, "settings": first or {}},
        {"recipe": "bert-base", "size": "base", "share": 0.5},
    ]
    return plan.build_trial(
        {
            "name": "chain",
            "title": "x",
            "source": "x",
            "question": "?",
            "reference": "two",
            "arms": [{"name": "two", "label": "two", "stages": stages}],
        },
        source="test",
    )
