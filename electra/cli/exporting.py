"""Commands that hand a model on: export, push."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from electra.cli import DONE, app
from electra.console import redirect_warnings, to_stderr, to_stdout
from electra.exports.options import DEFAULTS, ExportOptions, Format


@app.command
def export(
    model: str,
    *,
    to: Format,
    output_dir: Path,
    options: Annotated[ExportOptions, Parameter(name="*")] = DEFAULTS,
) -> int:
    """Write a model for other programs, and check it against what electra computes.

    Parameters
    ----------
    model
        A model folder of ours or of transformers, a run folder (its discriminator or encoder; its
        best model), or owner/name on the hub.
    to
        onnx: a graph for ONNX Runtime, with any head. sentence-transformers: an embedder.
    output_dir
        Folder to write, complete or not at all.
    """
    from electra.exports.export import export_model

    to_stderr(f"exporting {model} to {to}; a large model takes minutes")
    with redirect_warnings(to_stderr):
        result = export_model(model, to, output_dir, options)
    for fact in result.facts():
        to_stdout(fact)
    for path in sorted(output_dir.iterdir()):
        if path.suffix in (".onnx", ".data", ".safetensors"):
            to_stdout(f"{path}: {path.stat().st_size / 1e6:,.1f} MB")
    return DONE


@app.command
def push(
    model: str,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
) -> int:
    """Send a model to the hub; its files are listed first.

    Weights, config.json, tokenizer and card are sent; checkpoints, optimizer states, logs,
    predictions and what describes this machine are not.

    Parameters
    ----------
    model
        A model folder, an exported folder, or a run folder (its discriminator or encoder; its best
        model).
    repository
        owner/name. It is created if it does not exist.
    private
        Make a new repository private.
    revision
        Branch to push to, created if it does not exist. The default is main.
    dry_run
        List the files, and send nothing.
    """
    from electra.exports.push import push_model

    done = push_model(
        model, repository, private=private, revision=revision, dry_run=dry_run, say=to_stderr
    )
    to_stdout(done.url or f"dry run: nothing was sent to {repository}")
    return DONE
