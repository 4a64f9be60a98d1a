"""Send a model folder to the hub: the files that others need, and none that names this machine.

The functions of huggingface_hub that are called are those that its versions 1 and 2 have.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from electra import atomic
from electra.checksums import verify_if_listed, write_checksums
from electra.config import RunFailed, UserError
from electra.console import ignore
from electra.data.wordpiece import COMPANIONS
from electra.escape import first_line
from electra.files import parse_json
from electra.model.weight_files import CARD, CONFIG
from electra.tasks.models import model_folder
from electra.tasks.sentence_transformer import FILES as SENTENCE_TRANSFORMER_FILES

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
# What is pushed. Checkpoints, optimizer states, logs, predictions and environment.json are not.
PUSHED = (
    CONFIG,
    CARD,
    "*.safetensors",
    "*.safetensors.index.json",
    "model*.onnx",
    "model*.onnx.data",
    "tokenizer.json",
    "tokenizer_config.json",
    *COMPANIONS,
    *SENTENCE_TRANSFORMER_FILES,
)
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}")
TEXT = (".json", ".md", ".txt")  # files that are searched for paths of this machine
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


@dataclass(frozen=True)
class Push:
    """The files of a model that go to the hub, those that stay, and the address of the commit."""

    repository: str
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    url: str | None  # None where nothing was sent


def push_model(
    model: str | Path,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
    say: Callable[[str], None] = ignore,
) -> Push:
    """Send a model to a repository of the hub, which is made if it is not there.

    The files are passed to `say` before any is sent.
    """
    check_repository(repository)
    folder = model_folder(model)
    files = find_pushed(folder)
    every = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    left_out = tuple(sorted(name for name in every if name not in files))
    for name in files:
        check_file(folder, name)
        say(f"{folder / name}: {(folder / name).stat().st_size:,} bytes")
    if left_out:
        say(f"not pushed: {', '.join(left_out)}")
    if dry_run:
        return Push(repository, files, left_out, None)
    with staged(folder, files) as stage:
        url = upload(stage, repository, private=private, revision=revision)
    return Push(repository, files, left_out, url)


def check_repository(repository: str) -> None:
    """Raise UserError for a name that the hub does not take."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if not REPOSITORY.fullmatch(repository):
        raise UserError(f"{repository}: a repository of the hub is written owner/name")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError(f"{repository}: the hub takes no such name: {error}") from None


def find_pushed(folder: Path) -> tuple[str, ...]:
    """Return the files of a model folder that are pushed, by their names in it."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and any(matches(name, pattern) for pattern in PUSHED):
            found.append(name)
    if not any(name.endswith((".safetensors", ".onnx")) for name in found):
        raise UserError(f"{folder}: no model.safetensors and no model.onnx there to push")
    return tuple(found)


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern is of this name; a star is no folder."""
    return name.count("/") == pattern.count("/") and fnmatch(name, pattern)


def check_file(folder: Path, name: str) -> None:
    """Raise UserError for a file that is damaged, or that holds what is of this machine alone."""
    path = folder / name
    check_link(path, folder)
    verify_if_listed(path)
    if path.suffix not in TEXT or name == "tokenizer.json" or name in COMPANIONS:
        return
    home = str(Path.home())
    text = path.read_text(encoding="utf8", errors="replace")
    if name == CONFIG:
        text = json.dumps(without_paths(parse_json(text)))
    if len(home) > 1 and home in text:
        raise UserError(f"{path}: names {home}, a folder of this machine; remove that first")
    if TOKEN.search(text):
        raise UserError(f"{path}: holds a token of the hub; remove it, and make a new one")


def check_link(path: Path, folder: Path) -> None:
    """Raise UserError for a link to a file elsewhere: a push would make that file public."""
    place, root = path.resolve(), folder.resolve()
    # A folder of the hub's cache, snapshots/REVISION, links to the files in blobs beside snapshots.
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    if not any(place.is_relative_to(each) for each in roots):
        raise UserError(
            f"{path}: a link to {place}, which is not of this model; put a copy in its place"
        )


def without_paths(config: Any) -> Any:
    """Return config.json without the paths of this machine that a library may have written."""
    if not isinstance(config, dict):
        return config
    return {key: value for key, value in config.items() if key != "_name_or_path"}


@contextmanager
def staged(folder: Path, files: tuple[str, ...]) -> Iterator[Path]:
    """Yield a folder of links to what is pushed, with a config.json and checksums of its own."""
    with tempfile.TemporaryDirectory(prefix="electra-push-") as temporary:
        stage = Path(temporary)
        for name in files:
            (stage / name).parent.mkdir(exist_ok=True)
            if name == CONFIG:
                config = parse_json((folder / name).read_text(encoding="utf8"))
                atomic.write_json(stage / name, without_paths(config))
            else:
                (stage / name).symlink_to((folder / name).resolve())
        write_checksums(stage, [name for name in files if name != CARD])
        yield stage


def upload(stage: Path, repository: str, *, private: bool, revision: str | None) -> str:
    """Make the repository and the branch where they are missing, commit, and return the address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        api.create_repo(repository, private=private or None, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=stage,
            revision=revision,
            commit_message="Upload a model with electra",
        )
    except HfHubHTTPError as error:
        raise refused(repository, error) from None
    except Exception as error:  # each of the hub's clients raises its own kinds without a network
        reason = first_line(f"{type(error).__name__}: {error}")
        raise RunFailed(
            f"{repository}: the hub cannot be reached ({reason}); nothing, or not all, was pushed. "
            "The same command tries again"
        ) from None
    return str(commit.commit_url)


def refused(repository: str, error: Any) -> UserError | RunFailed:
    """Return the error for an answer of the hub that is not yes. It never quotes the token."""
    status = getattr(error.response, "status_code", None)
    if status == 401:
        return UserError(f"{repository}: the hub does not know who pushes (401); {LOG_IN}")
    if status == 403:
        return UserError(f"{repository}: your token may not write there (403); {LOG_IN}")
    if status == 404:
        return UserError(f"{repository}: not found (404); check the owner's name, and {LOG_IN}")
    reason = first_line(getattr(error, "server_message", None) or error)
    return RunFailed(f"{repository}: the hub refuses ({status}): {reason}")
