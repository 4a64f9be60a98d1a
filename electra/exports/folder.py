"""What every export does: the packages it needs, its folder, its card, its checksums."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from electra import atomic
from electra.checksums import CHECKSUMS, verify_if_listed, write_checksums
from electra.config import UserError
from electra.files import read_bounded_text
from electra.model.families import family_of
from electra.model.model_config import load_shape
from electra.model.weight_files import CARD, CONFIG
from electra.tasks.models import load_tokenizer

FRONT_MATTER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)


def require_packages(names: Sequence[str], *, extra: str, purpose: str) -> None:
    """Raise UserError where a package of an extra is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        packages = " ".join(name.replace("_", "-") for name in names)
        raise UserError(
            f"{purpose} needs the extra {extra} ({missing[0].replace('_', '-')} is not installed): "
            f"pip install {packages}"
        )


def check_output_dir(output_dir: Path, source: Path, *, mark: str, overwrite: bool) -> None:
    """Raise UserError where the folder to write holds anything but an earlier export.

    `mark` is the file that such an export holds.
    """
    if output_dir.is_file():
        raise UserError(f"--output-dir {output_dir} is a file; name a folder")
    if output_dir.resolve() == Path.cwd():  # it is renamed, and a shell would stay in the old one
        raise UserError(f"--output-dir {output_dir} is the folder you are in; name another one")
    if output_dir.resolve() == source.resolve():
        raise UserError(f"--output-dir {output_dir} is the model itself; name another folder")
    check_writable(output_dir)
    if not output_dir.exists() or not any(output_dir.iterdir()):
        return
    if not (output_dir / mark).is_file() or not (output_dir / CHECKSUMS).is_file():
        raise UserError(
            f"{output_dir} holds something else than such an export; choose another --output-dir"
        )
    if not overwrite:
        raise UserError(
            f"{output_dir} already holds an export; choose another --output-dir, or add --overwrite"
        )


def check_writable(output_dir: Path) -> None:
    """Raise UserError, before any work, where no folder can be made beside this one."""
    probe = atomic.sibling(output_dir.resolve(), "check")
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        atomic.probe_write(probe)
    except OSError as error:
        raise UserError(
            f"--output-dir {output_dir}: cannot be written: {error.strerror}; name another folder"
        ) from None


def copy_files(source: Path, folder: Path) -> None:
    """Copy what describes a model into an export: config.json and the files of its tokenizer."""
    verify_if_listed(source / CONFIG)
    atomic.write(folder / CONFIG, (source / CONFIG).read_bytes())
    names = family_of(load_shape(source)[0]).model_input_names
    load_tokenizer(source).copy_to(folder, model_input_names=names)


def write_listing(folder: Path, card: str) -> None:
    """Write the checksums of all files, then the card, which its owner completes by hand."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    write_checksums(folder, [path.relative_to(folder).as_posix() for path in files])
    atomic.write(folder / CARD, card)


def read_card(source: Path) -> str:
    """Return the card of a model; a folder without one has a title alone."""
    try:
        return read_bounded_text(source / CARD)
    except (OSError, ValueError):
        return f"---\nlibrary_name: transformers\n---\n# {source.name}\n"


def update_card(card: str, keys: Mapping[str, str], section: Sequence[str]) -> str:
    """Return a card with other keys in its front matter and a section at its end."""
    match = FRONT_MATTER.match(card)
    header: list[str] = []
    if match:
        header = match[1].split("\n")
        card = card[match.end() :]
    kept = [line for line in header if line.partition(":")[0] not in keys]
    lines = ["---", *(f"{key}: {value}" for key, value in keys.items()), *kept, "---"]
    return "\n".join([*lines, card.strip("\n"), "", *section, ""])
