"""How a model is fine-tuned, as data: a recipe of `electra/recipes/finetuning/`, resolved for one
model and task.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from electra.config import RECIPES, Layer, SettingError, UserError, suggest_or_list
from electra.engine.settings import OptimizerConfig, Precision, Switch
from electra.files import read_toml
from electra.model.shape import EncoderShape
from electra.settings import build_layers, find_recipe, merge, parse_environment, parse_flags
from electra.tasks import KINDS

SIZES = ("small", "base", "large")  # of the paper
FINETUNING = RECIPES / "finetuning"
PREFIX = "ELECTRA_FINETUNE_"  # of environment variables


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneConfig:
    """Everything about a fine-tuning but the model, the task and the seed. Defaults are the paper's
    for Small.
    """

    learning_rate: float = 3e-4
    layer_decay: float = 0.8
    layer_counting: Literal["per-layer", "official"] = "per-layer"
    warmup_ratio: float = 0.1
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    bias_correction: bool = False
    max_grad_norm: float = 1.0
    loss: Literal["mean", "sum"] = (
        "mean"  # over a step's examples (or labelled words), before clipping
    )
    epochs: float = 3.0
    max_steps: int | None = None  # instead of epochs
    batch_size: int = 32  # examples in a step, over all processes
    micro_batch_size: int | None = None  # examples in one pass; from memory when not said
    length: int = 128  # tokens in a row
    too_long: Literal["cut", "refuse"] = (
        "cut"  # text that does not fit; spans and tags take further windows instead
    )
    dropout: float = 0.1
    max_train_examples: int | None = (
        None  # a random part of the training data, the same for every seed
    )
    precision: Precision = "auto"  # auto: bf16 on a GPU that has it
    kernels: Switch = "auto"  # hand-written GPU kernels; auto: on a GPU that has bf16
    cuda_graph: Switch = "auto"  # auto: with the kernels
    compile: Switch = (
        "auto"  # torch.compile; auto: off, since rows of many widths compile many times
    )
    eval_steps: int | None = None  # score on dev meanwhile; nothing is chosen by it
    logging_steps: int = 50
    save_steps: int = 1_000

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "logging_steps",
            "save_steps",
            "max_steps",
            "max_train_examples",
            "micro_batch_size",
            "eval_steps",
        ):
            if (value := getattr(self, name)) is not None and value < 1:
                raise SettingError(name, "must be at least 1", self)
        if self.length < 8:
            raise SettingError("length", "leaves no room for text; use 8 or more", self)
        if not 0 < self.layer_decay <= 1:
            raise SettingError("layer_decay", "must be in (0, 1]", self)
        if not 0 <= self.dropout < 1:
            raise SettingError("dropout", "must be in [0, 1)", self)
        if not 0 <= self.warmup_ratio <= 1:
            raise SettingError("warmup_ratio", "must be in [0, 1]", self)
        if self.epochs <= 0:
            raise SettingError("epochs", "must be above 0", self)
        self.optimizer(steps=1)  # what is wrong with its numbers is said here

    def steps(self, examples: int) -> int:
        per_epoch = -(-examples // self.batch_size)
        return self.max_steps or max(1, round(self.epochs * per_epoch))

    def optimizer(self, *, steps: int) -> OptimizerConfig:
        return OptimizerConfig(
            learning_rate=self.learning_rate,
            warmup_steps=round(self.warmup_ratio * steps),
            schedule=self.schedule,
            weight_decay=self.weight_decay,
            betas=self.betas,
            epsilon=self.epsilon,
            bias_correction=self.bias_correction,
            max_grad_norm=self.max_grad_norm,
        )


def size_of(shape: EncoderShape) -> str:
    """Which of the paper's sizes a model is nearest to, by its width: the paper has 256, 768 and
    1024.
    """
    return "small" if shape.width < 512 else "base" if shape.width < 1024 else "large"


def load_finetune_config(
    name: str,
    *,
    shape: EncoderShape,
    kind: str,
    task: str,
    frozen: bool = False,
    files: Sequence[str | Path] = (),
    flags: Sequence[str] = (),
) -> FinetuneConfig:
    """A recipe for one model and task: its general part, then its parts for this size, kind, task
    and use; further files, the environment and flags win over all of it.
    """
    recipe = parts(
        find_recipe(name, FINETUNING, kind="fine-tuning recipe"),
        size=size_of(shape),
        kind=kind,
        task=task,
        frozen=frozen,
    )
    if isinstance(
        recipe.get("length"), int
    ):  # what it says for all models gives way to a model with fewer positions
        recipe["length"] = min(recipe["length"], shape.positions)
    layers = {f"recipe {name}": recipe}
    layers |= {str(file): read_toml(Path(file)) for file in files}
    layers |= {
        "environment": parse_environment(os.environ, FinetuneConfig, prefix=PREFIX),
        "command line": parse_flags(flags, FinetuneConfig),
    }
    return build_layers(FinetuneConfig, layers)


def parts(path: Path, *, size: str, kind: str, task: str, frozen: bool) -> Layer:
    whole = read_toml(path)
    for_frozen = section(whole, "frozen", path)
    chosen = []
    for name, wanted, known in (
        ("size", size, SIZES),
        ("kind", kind, (*KINDS, kind)),
        ("task", task, None),
    ):
        found = section(whole, name, path)
        for part in found:
            section(dict(found), part, path)
            if known is not None and part not in known:
                raise UserError(
                    f"{path}: unknown section [{name}.{part}]{suggest_or_list(part, known)}"
                )
        chosen.append(found.get(wanted, {}))
    return merge(whole, *chosen, for_frozen if frozen else {})


def section(layer: Layer, name: str, path: Path) -> Layer:
    """A section of a recipe, taken out of it; empty if it is not there."""
    found = layer.pop(name, {})
    if not isinstance(found, dict):
        raise UserError(f"{path}: {name} = {found!r} should be a section of settings")
    return found
