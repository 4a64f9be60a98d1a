"""Answers to GLUE's test sets, in the files that its server takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from electra import atomic
from electra.tasks.classify import Text
from electra.tasks.features import Array
from electra.tasks.glue import LAYOUTS, Glue

MNLI_FILES = {"matched": "MNLI-m.tsv", "mismatched": "MNLI-mm.tsv", "diagnostic": "AX.tsv"}
LOWEST, HIGHEST = 0.0, 5.0  # STS-B's scale; the server refuses anything beyond


def server_file(name: str, part: str) -> str:
    """What the file for one part of a task's test data must be called: the server goes by it."""
    return MNLI_FILES[part] if name == "glue/mnli" else f"{LAYOUTS[name].folder}.tsv"


def write_glue(path: Path, task: Glue, examples: Sequence[Text], answers: Sequence[Array]) -> None:
    lines = ["index\tprediction"]
    for n, (example, answer) in enumerate(zip(examples, answers, strict=True)):
        lines.append(f"{n if example.id is None else example.id}\t{prediction(task, answer)}")
    atomic.write(path, "\n".join(lines) + "\n")


def prediction(task: Glue, answer: Array) -> str:
    if task.regression:
        return f"{np.clip(answer[0], LOWEST, HIGHEST):.3f}"
    return task.labels[int(answer.argmax())]
