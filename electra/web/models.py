"""The models of the command line: what each folder is, and the worker that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from electra import atomic
from electra.config import UserError
from electra.console import to_stderr
from electra.escape import one_line
from electra.model.weight_files import CONFIG
from electra.runs import run_dir
from electra.shipped import resolve_shipped, suggest_shipped
from electra.tasks.inference import default_device
from electra.tasks.model_task import has_task
from electra.tasks.models import RESULTS, best_model, load_tuned
from electra.web.answers import KEYS, Answerer
from electra.web.batching import Worker
from electra.web.curves import Curves
from electra.web.requests import Limits, RequestError
from electra.web.tokens import TokenNetworks, load_networks

# Folder names that say nothing without the name of the folder they are in.
PARTS = ("model", "generator", "discriminator", "encoder")
REFRESH = "refresh"
Signature = tuple[tuple[str, int, int], ...]


class Served:
    """One model, its worker, and the endpoints that it has."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.name, self.limits = display_name(path), limits
        self.worker = Worker(self.name, self.compute, limits)

    def compute(self, key: Hashable, items: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """A line for the terminal."""
        raise NotImplementedError

    def networks_for_tokens(self) -> None:
        """Refuse a request for tokens of a model that has none to show."""
        raise RequestError(
            422,
            "This model is fine-tuned and shows no tokens; send its inputs to predict, or serve "
            "the run folder of a pre-training.",
        )

    def answerer_for_inputs(self) -> Answerer:
        raise RequestError(
            422,
            "This model is pre-trained, but without a task; fine-tune it with electra finetune and "
            "serve the result, or send its text to tokens.",
        )

    def journal(self) -> Curves:
        raise RequestError(
            422, "This model has no training curves; serve the run folder of a pre-training."
        )


class ServedTask(Served):
    """A fine-tuned model."""

    def __init__(self, path: Path, folder: Path, limits: Limits) -> None:
        super().__init__(path, limits)
        model = load_tuned(folder)
        if model.task.kind not in KEYS:
            raise UserError(
                f"{folder}: tasks of kind {model.task.kind!r} cannot be served; use `electra "
                "predict`"
            )
        takes_any = getattr(model.task, "text_pair", "") is None
        self.answerer = Answerer(model, takes_any, default_device())

    def compute(self, key: Hashable, items: Sequence[Any]) -> Sequence[Any]:
        return self.answerer.answer(items)

    def answerer_for_inputs(self) -> Answerer:
        return self.answerer

    def describe(self) -> dict[str, Any]:
        answerer = self.answerer
        model, task = answerer.model, answerer.task
        description = {
            "name": self.name,
            "kind": answerer.kind,
            "task": task.name,
            "takes": answerer.takes,
            "labels": list(getattr(task, "labels", ())),
            "networks": [],
            "max_length": model.length,
            "has_curves": False,
            "parameters": sum(tensor.numel() for tensor in model.network.parameters()),
            "family": model.network.family.name,
        }
        extent = getattr(task, "extent", ())
        if answerer.kind == "score" and len(extent) == 2:
            description["range"] = list(extent)
        if answerer.kind == "choose":
            description["takes_question"] = bool(getattr(task, "question", ""))
            description["options"] = getattr(task, "count", 0)
        return description

    @property
    def summary(self) -> str:
        return f"{self.answerer.task.name}, reads at most {self.answerer.model.length} tokens"


class ServedRun(Served):
    """A pre-training run, or the folder of one network. A run may not have exported any yet."""

    def __init__(self, path: Path, limits: Limits, *, is_run: bool) -> None:
        super().__init__(path, limits)
        self.path, self.is_run, self.device = path, is_run, default_device()
        self.curves = None
        if is_run and (path / run_dir.CONFIG).is_file():
            self.curves = Curves(path)
        self.networks: TokenNetworks | None = None
        self.note = NOT_EXPORTED
        self.signature = self.read_signature()
        if self.folders():
            self.load(at_start=True)

    def folders(self) -> list[Path]:
        """Return the folders of the networks that exist by now."""
        if not self.is_run:
            return [self.path]
        found = [path for path in map(self.role_folder, PARTS[1:]) if (path / CONFIG).is_file()]
        pair = [path for path in found if path.name.startswith(("generator", "discriminator"))]
        # Beside a generator, an encoder reads what that has sampled: it fills no masks.
        return pair or found

    def role_folder(self, role: str) -> Path:
        return atomic.resolve_folder(self.path / role)

    def read_signature(self) -> Signature:
        """Return what changes when a network is exported again."""
        signature = []
        for folder in self.folders():
            try:
                found = (folder / CONFIG).stat()
            except OSError:  # it is being replaced
                continue
            signature.append((folder.name, found.st_mtime_ns, found.st_ino))
        return tuple(signature)

    def load(self, *, at_start: bool = False) -> None:
        try:
            self.networks = load_networks(self.folders(), device=self.device)
        except UserError as error:
            if at_start and not self.curves:
                raise
            to_stderr(f"warning: {error}")
            if self.networks is None:
                self.note = (
                    "The exported networks of this run cannot be used; the server's terminal says "
                    "why. Its curves are shown."
                )

    def compute(self, key: Hashable, items: Sequence[Any]) -> Sequence[Any]:
        signature = self.read_signature()
        if signature and signature != self.signature:
            self.signature = signature
            self.load()
        if key == REFRESH:
            return [None] * len(items)
        if self.networks is None:
            raise RequestError(422, self.note)
        return self.networks.read(items)

    def networks_for_tokens(self) -> None:
        if self.networks is None and not self.read_signature():
            raise RequestError(422, self.note)

    def journal(self) -> Curves:
        if self.curves is None:
            return super().journal()
        return self.curves

    def refresh(self) -> None:
        """Load networks that have appeared, without anybody waiting for it."""
        if self.is_run and self.read_signature() != self.signature:
            submitted = self.worker.submit(REFRESH, [None], 0)
            task = asyncio.get_running_loop().create_task(submitted)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def describe(self) -> dict[str, Any]:
        self.refresh()
        networks = self.networks
        description: dict[str, Any] = {
            "name": self.name,
            "kind": "pretraining",
            "task": "pretraining",
            "takes": "text",
            "labels": [],
            "networks": [],
            "max_length": None,
            "has_curves": self.curves is not None,
            "parameters": 0,
            "family": None,
        }
        if networks is None:
            return description | {"note": self.note}
        return description | {
            "networks": list(networks.networks),
            "max_length": networks.length,
            "parameters": networks.parameters,
            "family": networks.family,
        }

    @property
    def summary(self) -> str:
        if self.networks is None:
            return "curves; its networks are shown once they are exported"
        return " and ".join(self.networks.networks)


NOT_EXPORTED = (
    "This run has not exported its networks yet; it does so when it finishes or is stopped. Until "
    "then its curves are shown."
)


def display_name(path: Path) -> str:
    """Return a name for people, which tells nothing of where the folder is."""
    path = path.absolute()
    name = path.name
    if name in PARTS or name.startswith(("seed-", "checkpoint-")):
        name = f"{path.parent.name}/{name}"
    return one_line(name) or "model"


def load_model(given: str, limits: Limits) -> Served:
    """Load what a folder of the command line holds; raise UserError where nothing can be served."""
    path = resolve_shipped(given).expanduser()
    if not path.is_dir():
        refuse_missing(given)
    if (path / RESULTS).is_file():
        return ServedTask(path, best_model(path), limits)
    if (path / CONFIG).is_file():
        if has_task(path):
            return ServedTask(path, path, limits)
        return ServedRun(path, limits, is_run=False)
    has_networks = any((atomic.resolve_folder(path / role) / CONFIG).is_file() for role in PARTS)
    if has_networks or (path / run_dir.CONFIG).is_file():
        return ServedRun(path, limits, is_run=True)
    raise UserError(
        f"{path}: neither a model nor a run; name a folder with {CONFIG} and model.safetensors, a "
        "run folder of `electra pretrain`, or the output folder of `electra finetune`"
    )


def refuse_missing(given: str) -> NoReturn:
    raise UserError(
        f"{given}: no such folder; `electra serve` reads folders of this machine alone, so "
        f"download a model of the hub first{suggest_shipped(given)}"
    )


def load_models(given: Sequence[str], limits: Limits) -> list[Served]:
    """Load the models of the command line, in their order."""
    return [load_model(each, limits) for each in given]
