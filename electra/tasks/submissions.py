"""Write the files that the GLUE server and SQuAD's official evaluation take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from electra import atomic
from electra.escape import one_line
from electra.tasks.features import Array
from electra.tasks.glue import LAYOUTS, Glue
from electra.tasks.span import Span, SpanAnswer, no_answer_probability
from electra.tasks.span_files import Question
from electra.tasks.texts import Text

MNLI_FILES = {"matched": "MNLI-m.tsv", "mismatched": "MNLI-mm.tsv", "diagnostic": "AX.tsv"}
STSB_SCALE = 0.0, 5.0  # the server refuses anything beyond


def server_file(name: str, part: str) -> str:
    """Return the name that the server expects of the file for one part of a task's test data."""
    if name == "glue/mnli":
        return MNLI_FILES[part]
    return f"{LAYOUTS[name].folder}.tsv"


def write_glue(path: Path, task: Glue, examples: Sequence[Text], answers: Sequence[Array]) -> None:
    """Write the answers to a GLUE test set."""
    lines = ["index\tprediction"]
    for index, (example, answer) in enumerate(zip(examples, answers, strict=True)):
        id = index if example.id is None else example.id
        lines.append(f"{one_line(str(id))}\t{one_line(glue_prediction(task, answer))}")
    atomic.write(path, "\n".join(lines) + "\n")


def glue_prediction(task: Glue, answer: Array) -> str:
    if task.regression:
        return f"{np.clip(answer[0], *STSB_SCALE):.3f}"
    return task.labels[int(answer.argmax())]


def write_squad(
    path: Path, task: Span, examples: Sequence[Question], answers: Sequence[SpanAnswer]
) -> None:
    """Write {id: text} and, beside it, NAME.na_prob.json for the evaluation's --na-prob-file."""
    pairs = list(zip(examples, answers, strict=True))
    atomic.write_json(path, {example.id: task.text(example, answer) for example, answer in pairs})
    if task.unanswerable:
        atomic.write_json(
            path.with_name(f"{path.stem}.na_prob.json"),
            {example.id: no_answer_probability(answer) for example, answer in pairs},
        )
