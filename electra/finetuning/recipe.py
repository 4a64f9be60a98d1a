"""The settings of a fine-tuning: recipes of `electra/recipes/finetuning/` for a model and task."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from electra.config import RECIPES, Layer, SettingError, UserError, suggest_or_list
from electra.engine.settings import OptimizerConfig, Precision, Switch
from electra.files import read_toml
from electra.model.shape import EncoderShape
from electra.settings import build_layers, find_recipe, merge, parse_environment, parse_flags
from electra.tasks import KINDS

SIZES = ("small", "base", "large")  # of the paper
FAMILIES = ("electra", "modernbert")
DEPTHS = ("usual", "deep")
USUAL_LAYERS = 12  # of the paper's Small and Base; deep encoders have more
FINETUNING = RECIPES / "finetuning"
PREFIX = "ELECTRA_FINETUNE_"  # of environment variables
MOST_EPOCHS = 10.0  # that `min_steps` asks for: what the paper gives its small tasks
AT_LEAST_ONE = (
    "batch_size",
    "logging_steps",
    "save_steps",
    "max_steps",
    "max_train_examples",
    "max_dev_examples",
    "micro_batch_size",
    "eval_steps",
    "early_stopping",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneConfig:
    """The settings of a fine-tuning. Defaults are those of the paper for Small."""

    learning_rate: float = 3e-4  # of the head, at the end of warm-up
    # each layer learns at this ratio of the rate of the layer above it; recipes set it by depth
    layer_decay: float = 0.8
    # official: counts one layer too many below the head, as the released code does
    layer_counting: Literal["per-layer", "official"] = "per-layer"
    warmup_ratio: float = 0.1  # share of the steps in which the rate rises from zero
    # how the rate falls after warm-up; wsd: constant, then linear decay
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    decay_ratio: float = 0.4  # share of the steps, at the end, in which "wsd" decays
    weight_decay: float = 0.0  # of weight matrices; biases and norms have none
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    epsilon: float = 1e-6  # of Adam
    bias_correction: bool = False  # of Adam; official code: none
    max_grad_norm: float = 1.0  # larger gradients are clipped to this norm
    # over a step's examples (or labelled words), before clipping
    loss: Literal["mean", "sum"] = "mean"
    epochs: float = 3.0  # passes over the training data
    # few examples are read more often, up to 10 epochs, until there are this many steps; 0 where
    # epochs are given
    min_steps: int = 0
    max_steps: int | None = None  # instead of epochs
    batch_size: int = 32  # examples in a step, over all processes
    # by-length: rows of about equal length share a batch, so that little is padding
    batches: Literal["by-length", "random"] = "by-length"
    micro_batch_size: int | None = None  # examples in one pass; by default what fits in memory
    length: int = 128  # tokens in a row
    # what happens to text that does not fit in a row; spans and tags always use windows
    too_long: Literal["cut", "window", "refuse"] = "cut"
    dropout: float = 0.1  # of the encoder and the head
    # of a fresh head: Glorot's uniform distribution, or the encoder's normal one of deviation 0.02
    head_init: Literal["glorot", "normal"] = "glorot"
    # the vector of a whole row: that of [CLS], or the mean of its tokens; auto: the mean for
    # ModernBERT, and [CLS] for ELECTRA, whose classes read nothing else
    pooling: Literal["auto", "cls", "mean"] = "auto"
    # official: spans and tags as in the official code (docs/finetuning.md lists the differences)
    conventions: Literal["default", "official"] = "default"
    # a random part of the training data, the same for every seed
    max_train_examples: int | None = None
    max_dev_examples: int | None = None  # a random part of the dev data, the same for every seed
    # share of the training data to score on instead of dev data, equal for every label and the
    # same for every seed
    dev_share: float | None = None
    # k-fold cross-validation instead of dev data, then a last training on all data
    folds: int | None = None
    precision: Precision = "auto"  # auto: bf16 on a GPU that has it
    kernels: Switch = "auto"  # hand-written GPU kernels; auto: on a GPU that has bf16
    # replay forward and backward passes as CUDA graphs; auto: with the kernels
    cuda_graph: Switch = "auto"
    compile: Switch = "auto"  # torch.compile; auto: off, since it compiles once for each width
    eval_steps: int | None = None  # steps between two scorings on dev during training
    # stop after this many evaluations without a better one and keep the weights of the best;
    # evaluations are every `eval_steps`, or at the end of each epoch
    early_stopping: int | None = None
    logging_steps: int = 50  # steps between two entries of metrics.jsonl
    save_steps: int = 1_000  # steps between two checkpoints

    def __post_init__(self) -> None:
        for name in AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(name, "must be at least 1", self)
        if self.length < 8:
            raise SettingError("length", "leaves no room for text; use 8 or more", self)
        if not 0 < self.layer_decay <= 1:
            raise SettingError("layer_decay", "must be in (0, 1]", self)
        if not 0 <= self.dropout < 1:
            raise SettingError("dropout", "must be in [0, 1)", self)
        if not 0 <= self.warmup_ratio <= 1:
            raise SettingError("warmup_ratio", "must be in [0, 1]", self)
        if self.dev_share is not None and not 0 < self.dev_share <= 0.5:
            raise SettingError("dev_share", "must be in (0, 0.5]", self)
        if self.folds is not None and self.folds < 2:
            raise SettingError("folds", "must be at least 2", self)
        if self.folds is not None and self.dev_share is not None:
            raise SettingError("folds", "goes without dev_share: each fold is dev data once", self)
        if self.epochs <= 0:
            raise SettingError("epochs", "must be above 0", self)
        if self.min_steps < 0:
            raise SettingError("min_steps", "must be at least 0", self)
        self.optimizer(steps=1)  # checks the settings of the optimizer

    def for_examples(self, examples: int) -> FinetuneConfig:
        """Return the settings with the number of epochs for so many training examples."""
        enough = round(self.min_steps / self.steps_per_epoch(examples), 1)
        epochs = max(self.epochs, min(MOST_EPOCHS, enough))
        return replace(self, epochs=epochs, min_steps=0)

    def steps(self, examples: int) -> int:
        """Return the number of steps for so many training examples."""
        return self.max_steps or max(1, round(self.epochs * self.steps_per_epoch(examples)))

    def steps_per_epoch(self, examples: int) -> int:
        """Return the number of batches of an epoch; the last one may be smaller."""
        return -(-examples // self.batch_size)

    def eval_interval(self, examples: int) -> int | None:
        """Return the number of steps between evaluations during training, if there are any."""
        if self.early_stopping and self.eval_steps is None:
            return self.steps_per_epoch(examples)
        return self.eval_steps

    def optimizer(self, *, steps: int) -> OptimizerConfig:
        """Return the settings of the optimizer for a run of so many steps."""
        return OptimizerConfig(
            learning_rate=self.learning_rate,
            warmup_steps=round(self.warmup_ratio * steps),
            schedule=self.schedule,
            decay_ratio=self.decay_ratio,
            weight_decay=self.weight_decay,
            betas=self.betas,
            epsilon=self.epsilon,
            bias_correction=self.bias_correction,
            max_grad_norm=self.max_grad_norm,
        )


def nearest_size(shape: EncoderShape) -> str:
    """Return the paper's size that a model is nearest to. Their widths are 256, 768 and 1024."""
    if shape.width < 512:
        return "small"
    if shape.width < 1024:
        return "base"
    return "large"


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
    """Load a recipe for one model and task.

    Later parts win: the general part of the recipe, its sections for the model's depth, its size,
    its family, the kind of task, the task and frozen encoders, further files, the environment,
    flags.
    """
    path = find_recipe(name, FINETUNING, kind="fine-tuning recipe")
    selected = {
        "depth": "deep" if shape.layers > USUAL_LAYERS else "usual",
        "size": nearest_size(shape),
        "family": shape.family,
        "kind": kind,
        "task": task,
    }
    recipe = read_recipe(path, selected, frozen=frozen)
    # A recipe's length is for all models: one with fewer positions takes fewer tokens.
    if isinstance(recipe.get("length"), int):
        recipe["length"] = min(recipe["length"], shape.positions)
    given = given_settings(files, flags)
    if any("epochs" in layer for layer in given.values()):
        recipe["min_steps"] = 0
    layers = {f"recipe {name}": recipe} | given
    return build_layers(FinetuneConfig, layers)


def given_settings(
    files: Sequence[str | Path], flags: Sequence[str], cls: type = FinetuneConfig
) -> dict[str, Layer]:
    """Return the settings of a class that the user gives, by source: later ones win."""
    layers = {str(file): read_toml(Path(file)) for file in files}
    layers["environment"] = parse_environment(os.environ, cls, prefix=PREFIX)
    layers["command line"] = parse_flags(flags, cls)
    return layers


def read_recipe(path: Path, selected: Mapping[str, str], *, frozen: bool) -> Layer:
    """Read the general part of a recipe and merge its sections for this model, kind and task."""
    general = read_toml(path)
    for_frozen = pop_section(general, "frozen", path)
    kinds = (*KINDS, selected["kind"])
    known = {"depth": DEPTHS, "size": SIZES, "family": FAMILIES, "kind": kinds}
    sections = []
    for name, choice in selected.items():
        choices = pop_section(general, name, path)
        check_sections(name, choices, known.get(name), path)
        sections.append(choices.get(choice, {}))
    if frozen:
        sections.append(for_frozen)
    return merge(general, *sections)


def check_sections(name: str, choices: Layer, known: Sequence[str] | None, path: Path) -> None:
    """Raise UserError for a section that is unknown, or that is a single value."""
    for choice in choices:
        pop_section(dict(choices), choice, path)
        if known is not None and choice not in known:
            hint = suggest_or_list(choice, known)
            raise UserError(f"{path}: unknown section [{name}.{choice}]{hint}")


def pop_section(layer: Layer, name: str, path: Path) -> Layer:
    """Remove a section from a layer and return it; empty if it is not there."""
    section = layer.pop(name, {})
    if not isinstance(section, dict):
        raise UserError(f"{path}: {name} = {section!r} should be a section of settings")
    return section
