"""An ONNX graph with weights of 8 bits, and the measured loss: outputs, decisions, scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra import atomic
from electra.config import UserError
from electra.data.tables import find_table
from electra.exports.onnx_model import OnnxSession, sample_inputs
from electra.model.encoder import Encoder
from electra.model.family import ExportedNetwork
from electra.tasks.features import TaskBatch
from electra.tasks.inference import evaluate
from electra.tasks.model_task import has_task
from electra.tasks.models import FinetunedModel, load_tuned

MODEL_INT8 = "model.int8.onnx"
MEASURED = ((32, 64),)  # rows and tokens


@dataclass(frozen=True)
class Int8Loss:
    """What weights of 8 bits change, on rows of random tokens."""

    difference: float  # the largest of an output
    largest: float  # output without them
    # Of the decisions that stay the same; of vectors their mean cosine, of scores the correlation.
    share: float
    what: str

    def __str__(self) -> str:
        return (
            f"outputs of up to {self.largest:.3g} differ by up to {self.difference:.3g}; "
            f"{self.what} {self.share:.4f}"
        )


def write_int8(source: Path, path: Path) -> None:
    """Write a graph whose weights have 8 bits; activations are quantised as it runs."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(source)
    # The exporter also states the shapes of weights, and the quantiser transposes some of these.
    del graph.graph.value_info[:]
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)  # it recommends a preprocessing that changes nothing here
    try:
        with atomic.default_mode(path):
            quantize_dynamic(graph, path, weight_type=QuantType.QInt8)
    finally:
        root.setLevel(level)


def measure_loss(
    network: ExportedNetwork, graphs: Mapping[str, OnnxSession], problem_type: str | None
) -> Int8Loss:
    """Compare the outputs and the decisions of two graphs on rows of random tokens.

    `problem_type` is that of config.json.
    """
    (inputs,) = sample_inputs(network, MEASURED)
    ours, theirs = graphs["onnx"].logits(inputs), graphs["int8"].logits(inputs)
    mask = inputs["attention_mask"].bool()
    difference = (ours - theirs).abs()
    if difference.shape[:2] == mask.shape:
        difference = difference[mask]
    found = float(difference.max()), float(ours.abs().max())
    if network.architecture is None:
        cosine = torch.cosine_similarity(ours, theirs, dim=-1)[mask]
        return Int8Loss(*found, float(cosine.mean()), "mean cosine of the vectors")
    if problem_type == "regression":
        correlation = torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1]
        return Int8Loss(*found, float(correlation), "correlation of the scores")
    if problem_type == "multi_label_classification":
        same = (ours > 0) == (theirs > 0)  # of each label, whether a text has it
    else:
        same = decisions(network, ours, mask) == decisions(network, theirs, mask)
    return Int8Loss(*found, float(same.float().mean()), "share of decisions that stay the same")


def decisions(network: ExportedNetwork, logits: Tensor, mask: Tensor) -> Tensor:
    """Return what a model decides by its logits: a label, a token, a start and an end."""
    if str(network.architecture).endswith("ForQuestionAnswering"):
        return logits.masked_fill(~mask[..., None], -torch.inf).argmax(dim=1)
    if logits.shape[:2] == mask.shape:
        logits = logits[mask]
    if logits.ndim > 1 and logits.shape[-1] > 1:
        return logits.argmax(dim=-1)
    return logits > 0


# ---- scores --------------------------------------------------------------------------------------


class OnnxNetwork(nn.Module):
    """A graph in the place of a fine-tuned network, for `compute_outputs`."""

    def __init__(self, session: OnnxSession, encoder: Encoder) -> None:
        super().__init__()
        self.session, self.encoder = session, encoder

    def outputs(self, batch: TaskBatch) -> dict[str, Tensor]:
        inputs = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "token_type_ids": batch.token_type_ids,
        }
        if self.session.has_choices and batch.labels:
            choices = int(batch.labels["options"][0])
            inputs = {name: t.reshape(-1, choices, t.shape[1]) for name, t in inputs.items()}
        return self.session.run(inputs)


def load_scored(folder: Path) -> FinetunedModel:
    """Load the model that --dev scores; raise UserError for one without a task."""
    if not has_task(folder):
        raise UserError(f"--dev: {folder} has no task to score; leave it out")
    return load_tuned(folder)


def score_graphs(
    tuned: FinetunedModel, dev: Sequence[Any], graphs: dict[str, OnnxSession]
) -> dict[str, dict[str, float]]:
    """Return the scores of a model's graphs on labelled files, by their names."""
    scores = {}
    for name, session in graphs.items():
        network: Any = OnnxNetwork(session, tuned.network.encoder)
        scores[name] = score(replace(tuned, network=network), dev)
    return scores


def score(tuned: FinetunedModel, dev: Sequence[Any]) -> dict[str, float]:
    """Return the scores of a model on labelled files."""
    tables = {"dev": [find_table(path) for path in dev]}
    return evaluate([tuned], tables)["dev"].scores
