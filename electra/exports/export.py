"""Export a model folder to ONNX or to sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from electra import atomic
from electra.config import UserError
from electra.exports import embedder, folder, onnx_int8, onnx_model
from electra.exports.onnx_int8 import MODEL_INT8, Int8Loss
from electra.exports.onnx_model import MODEL, OnnxSession, StockNetwork
from electra.exports.options import ExportOptions, Format
from electra.model.weight_files import CONFIG, read_json
from electra.tasks.models import load_pretrained, model_folder
from electra.tasks.sentence_transformer import MODULES

FORMATS = get_args(Format)


@dataclass(frozen=True)
class ExportResult:
    """An export that is written and checked. Wherever a model is asked for, it stands for its
    folder.
    """

    output_dir: Path
    to: str
    difference: float  # the largest of an output from what electra computes
    int8: Int8Loss | None = None
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # electra, onnx, int8

    def __fspath__(self) -> str:
        return str(self.output_dir)

    def facts(self) -> list[str]:
        """Return what was measured, in sentences for the terminal and the card."""
        judge = {"onnx": "ONNX Runtime", "sentence-transformers": "sentence-transformers"}[self.to]
        facts = [f"{judge} computes what electra does: differences up to {self.difference:.1e}"]
        if self.int8 is not None:
            facts.append(f"8-bit weights, on 32 rows of random tokens: {self.int8}")
        for name, scores in self.scores.items():
            values = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
            facts.append(f"dev scores, {name}: {values}")
        return facts


def export_model(
    model: str | Path, to: str, output_dir: Path, options: ExportOptions
) -> ExportResult:
    """Write a model for other programs into a folder, and check it against what electra computes.

    The folder is whole or absent.
    """
    if to not in FORMATS:
        raise UserError(f"--to {to}: unknown; choose {' or '.join(FORMATS)}")
    options.check(to)
    if output_dir.is_symlink():
        output_dir = output_dir.resolve()  # the link stays, and the folder that it names is written
    if to == "onnx":
        return export_onnx(model, output_dir, options)
    folder.require_packages(
        embedder.PACKAGES, extra="sentence-transformers", purpose="--to sentence-transformers"
    )
    source = load_pretrained(model)
    folder.check_output_dir(output_dir, source.folder, mark=MODULES, overwrite=options.overwrite)
    pooling = embedder.choose_pooling(options, source)
    difference = embedder.export_embedder(source, output_dir, pooling)
    return ExportResult(output_dir, to, difference)


def export_onnx(model: str | Path, output_dir: Path, options: ExportOptions) -> ExportResult:
    """Write model.onnx, model.int8.onnx if it is asked for, config.json, tokenizer and card."""
    folder.require_packages(onnx_model.PACKAGES, extra="onnx", purpose="--to onnx")
    source = model_folder(model)
    folder.check_output_dir(output_dir, source, mark=MODEL, overwrite=options.overwrite)
    network = onnx_model.load_network(source)
    problem_type = read_json(source, CONFIG).get("problem_type")
    tuned, loss, scores = None, None, {}
    if options.dev:
        tuned = onnx_int8.load_scored(source)
        scores["electra"] = onnx_int8.score(tuned, options.dev)
    has_choices = onnx_model.class_name(network).endswith("ForMultipleChoice")
    with atomic.replace_folder(output_dir) as fresh:
        stock = StockNetwork(source, network)
        onnx_model.write_onnx(stock, fresh / MODEL, has_choices=has_choices)
        graphs = {"onnx": OnnxSession(fresh / MODEL, has_choices=has_choices)}
        difference = onnx_model.largest_difference(network, graphs["onnx"], fresh / MODEL)
        if options.int8:
            onnx_int8.write_int8(fresh / MODEL, fresh / MODEL_INT8)
            graphs["int8"] = OnnxSession(fresh / MODEL_INT8, has_choices=has_choices)
            loss = onnx_int8.measure_loss(network, graphs, problem_type)
        if tuned is not None:
            scores |= onnx_int8.score_graphs(tuned, options.dev, graphs)
        result = ExportResult(output_dir, "onnx", difference, loss, scores)
        folder.copy_files(source, fresh)
        folder.write_listing(fresh, onnx_card(source, result, stock))
    return result


def onnx_card(source: Path, result: ExportResult, stock: StockNetwork) -> str:
    """Return the card of a model for its ONNX folder."""
    section = [
        "## ONNX",
        "",
        f"`{MODEL}` takes {', '.join(stock.inputs)} (int64, any number of rows and tokens) and "
        f"returns {', '.join(stock.outputs)}.",
        "",
        *(f"- {fact}" for fact in result.facts()),
    ]
    return folder.update_card(folder.read_card(source), {"library_name": '"onnx"'}, section)
