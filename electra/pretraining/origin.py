"""What a run began from, which is part of what it is: the models of --init-from, or nothing."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from electra.checksums import hash_file
from electra.config import UserError, build
from electra.files import read_json_object_or_empty
from electra.model.card_content import CardContent, describe_origin
from electra.model.family import Role
from electra.model.weight_files import CONFIG as MODEL_CONFIG
from electra.model.weight_files import find_tensors
from electra.pretraining.options import PretrainOptions
from electra.runs.checkpoint import Checkpoint
from electra.runs.run_dir import CONFIG, ENVIRONMENT

KEY = "init_from"  # in environment.json


@dataclass(frozen=True)
class Origin:
    """The first weights of a run: those of models, by name and hash, or random ones."""

    name: str | None = None
    weights: str | None = None

    def __str__(self) -> str:
        return self.name or "random weights"

    def as_json(self) -> dict[str, Any]:
        return {KEY: asdict(self)}


def origin_of(init_from: Path | None) -> Origin:
    """Return what a start with this --init-from begins from."""
    if init_from is None:
        return Origin()
    digest = hashlib.sha256()
    for folder in (init_from, *(init_from / role for role in get_args(Role))):
        if (folder / MODEL_CONFIG).is_file():
            for path in sorted(set(find_tensors(folder).values())):
                digest.update(f"{hash_file(path)}\n".encode())
    return Origin(describe_origin(init_from), digest.hexdigest())


def read_origin(run: Path) -> Origin | None:
    """Return what the run in a folder began from, or None where an earlier version has not kept
    that.
    """
    stored = read_json_object_or_empty(run / ENVIRONMENT).get(KEY)
    if not isinstance(stored, dict):
        return None
    return build(Origin, stored, source=f"{run / ENVIRONMENT}, {KEY}")


def find_origin(options: PretrainOptions, run: Path, resumed: Checkpoint | None) -> Origin | None:
    """Return what a run began from: at its first start what that names, else what was kept then.

    Raise UserError where a start names something else than an earlier one.
    """
    if resumed is not None:
        return continued_origin(options.init_from, resumed.folder)
    asked = origin_of(options.init_from)
    if options.resume != "never" and (run / CONFIG).exists():
        earlier = read_origin(run)
        if earlier is not None and asked.weights != earlier.weights:
            raise other_origin(run, earlier, asked, is_kept=False)
    return asked


def continued_origin(init_from: Path | None, checkpoint: Path) -> Origin | None:
    """Return what the run of a checkpoint began from; another --init-from is refused."""
    earlier = read_origin(checkpoint.parent)
    if earlier is not None and init_from is not None:
        asked = origin_of(init_from)
        if asked.weights != earlier.weights:
            raise other_origin(checkpoint, earlier, asked, is_kept=True)
    return earlier


def other_origin(folder: Path, earlier: Origin, asked: Origin, *, is_kept: bool) -> UserError:
    """Return the error about a start that names other first weights than an earlier one.

    `is_kept` says that a checkpoint holds what has become of the first ones.
    """
    found = str(asked)
    if asked.name == earlier.name:
        found = f"other weights than {asked} had then"
    remedy = f"name the folder of {earlier} with --init-from"
    if is_kept or earlier.name is None:
        remedy = "leave out --init-from"
    return UserError(
        f"{folder} holds another run: it began from {earlier}, and this start names {found}; "
        f"{remedy} to continue it, or use another --output-dir, or --resume never --overwrite to "
        "start over in this one"
    )


def card_content(options: PretrainOptions, origin: Origin | None) -> CardContent:
    """Return what the model cards of a run state besides the facts of its training."""
    if origin is None:
        origin = origin_of(options.init_from)
    facts: dict[str, object] = {}
    if origin.name is not None:
        facts["Continued from"] = origin.name
    return CardContent(options.language, options.license, facts)
