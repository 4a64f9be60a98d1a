"""The functions `electra.export` and `electra.push`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from electra.api.keywords import field_values, python_messages, takes_keywords
from electra.api.rows import PathName
from electra.exports.export import ExportResult, export_model
from electra.exports.options import ExportOptions, Format
from electra.exports.push import Push, push_model


@dataclass(frozen=True, kw_only=True)
class ExportArguments(ExportOptions):
    """The arguments of `export`.

    Parameters
    ----------
    model
        What `pretrain`, `finetune` or `load` returned, a model folder or a run folder, ours or
        transformers', or owner/name on the hub.
    to
        onnx: a graph for ONNX Runtime, with any head. sentence-transformers: an embedder.
    output_dir
        Folder to write, complete or not at all.
    """

    model: PathName = field(kw_only=False)
    to: Format
    output_dir: PathName


@takes_keywords(ExportArguments)
def export(arguments: ExportArguments) -> ExportResult:
    """Write a model for other programs, and check it against what electra computes.

    electra.export("runs/stars", to="onnx", output_dir="stars-onnx", int8=True).int8
    """
    options = ExportOptions(**field_values(ExportOptions, arguments))
    return export_model(Path(arguments.model), arguments.to, Path(arguments.output_dir), options)


def push(
    model: PathName,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
) -> Push:
    """Send a model to the hub.

    Parameters
    ----------
    model
        A model folder, an exported folder, a run folder, or what `finetune` or `export` returned.
    repository
        owner/name. It is created if it does not exist.
    private
        Make a new repository private.
    revision
        Branch to push to, created if it does not exist. The default is main.
    dry_run
        Return the files that would be pushed, and send nothing.
    """
    with python_messages({"model": model, "private": private, "revision": revision}):
        return push_model(
            Path(model), repository, private=private, revision=revision, dry_run=dry_run
        )
