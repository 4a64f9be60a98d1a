"""Describe a recipe or a model in numbers: parameters, FLOPs in both conventions, tokens, memory.

No torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from electra.cli import is_main_rank
from electra.config import UserError, build, convert
from electra.console import Terminal, print_data, to_stdout
from electra.data.prepare import DataConfig
from electra.engine.settings import Parallel
from electra.files import read_toml
from electra.model import flops, model_config
from electra.model.memory import KERNEL_HEAD_WIDTH, LOW, reserved_bytes, training_bytes
from electra.model.shape import EncoderShape
from electra.model.weight_files import CONFIG as MODEL_CONFIG
from electra.model.weight_files import read_json
from electra.model.workload import FLOAT, Terms, Workload
from electra.objectives.settings import (
    REGISTERED,
    LeftToRightConfig,
    MaskedLMConfig,
    ObjectiveConfig,
    ReplacedTokenDetectionConfig,
)
from electra.pretraining.options import PretrainOptions
from electra.pretraining.recipe import Recipe
from electra.setting_docs import as_commented_toml

# Tokens in one forward pass, where the recipe leaves the micro-batch size to the machine.
USUAL_TOKENS = 16_384
ON_CPU = "fp32 (a CPU)"
SHAPE_FIELDS = {
    "layers": "layers",
    "width": "width",
    "heads": "heads",
    "feedforward": "feed-forward",
    "embedding": "embedding",
    "positions": "positions",
}


@dataclass(frozen=True)
class Description:
    """Everything `electra describe` prints; `--json` prints it unchanged."""

    name: str
    networks: dict[str, EncoderShape]
    vocabulary: int
    length: int
    parameters: flops.Parameters
    standard: flops.Cost
    official: flops.Cost
    tokens: int
    batch_tokens: int
    micro_batch: int
    world_size: int
    parallel: Parallel
    activation_checkpointing: bool
    memory: dict[str, Terms]  # of one process, by precision and kernels


def describe_recipe(
    recipe: Recipe, *, name: str, vocabulary: int | None = None, world_size: int = 1
) -> Description:
    """Return the description of a recipe for a vocabulary size and a number of processes."""
    vocabulary = vocabulary or recipe.data.vocab_size
    workload, training = recipe.workload(vocabulary), recipe.training
    check_world_size(recipe, world_size)
    rows = training.micro_batch_size or usual_micro_batch(recipe, world_size)
    return Description(
        name=name,
        networks={network.name: network.shape for network in workload.networks()},
        vocabulary=vocabulary,
        length=recipe.data.length,
        parameters=flops.parameters(workload),
        standard=flops.standard(workload),
        official=flops.official(workload),
        tokens=training.rows * recipe.data.length,
        batch_tokens=training.batch_size * recipe.data.length,
        micro_batch=rows,
        world_size=world_size,
        parallel=training.parallel,
        activation_checkpointing=training.activation_checkpointing,
        memory=estimate_memory(recipe, workload, rows=rows, world_size=world_size),
    )


def check_world_size(recipe: Recipe, world_size: int) -> None:
    """Raise UserError where a step has too few rows or micro-batches for this many processes."""
    training = recipe.training
    key, rows = "batch_size", training.batch_size
    if training.initial_batch_size is not None:
        key, rows = "initial_batch_size", training.initial_batch_size
    if not 1 <= world_size <= rows:
        raise UserError(
            f"--world-size {world_size}: must be from 1 to training.{key}={rows}, so that every "
            "process has a row"
        )
    micro_batches = rows // (training.micro_batch_size or 1)
    if micro_batches < world_size:
        raise UserError(
            f"--world-size {world_size}: a step has {micro_batches} micro-batches, too few for so "
            "many processes; choose a smaller --micro-batch-size"
        )


def usual_micro_batch(recipe: Recipe, world_size: int) -> int:
    """Return the largest micro-batch size of a run that has no more than the usual tokens, or the
    smallest there is.
    """
    fewest = recipe.objective.min_micro_batch_size
    sizes = recipe.training.batch_schedule.micro_batch_sizes(world_size, fewest=fewest)
    most = USUAL_TOKENS // recipe.data.length
    return next((size for size in sizes if size <= most), sizes[-1])


def estimate_memory(
    recipe: Recipe, workload: Workload, *, rows: int, world_size: int
) -> dict[str, Terms]:
    """Return the bytes of one process by term, for each way in which steps may be computed."""
    memory = {}
    modes = possible_step_modes(recipe)
    if recipe.training.parallel == "zero1" and world_size > 1:
        modes = modes_with_kernels(modes)
    for name, (activation_bytes, kernels) in modes.items():
        terms = training_bytes(
            workload,
            rows=rows,
            activation_bytes=activation_bytes,
            kernels=kernels,
            activation_checkpointing=recipe.training.activation_checkpointing,
            layout=recipe.state_layout(world_size),
            on_cpu=name == ON_CPU,
        )
        if kernels and recipe.training.cuda_graph != "off":
            scored_rows = min(rows, recipe.training.eval_rows)
            terms |= reserved_bytes(workload, terms, scored_rows=scored_rows)
        memory[name] = terms
    return memory


def possible_step_modes(recipe: Recipe) -> dict[str, tuple[int, bool]]:
    """Return the ways in which this recipe's steps may be computed: the bytes of an activation and
    whether the kernels are used, which a GPU does wherever it can.
    """
    training = recipe.training
    networks = recipe.workload(recipe.data.vocab_size).networks()
    with_kernels = (
        training.kernels != "off"
        and training.compile != "on"
        and training.parallel != "fsdp"
        and not training.activation_checkpointing
        and not recipe.encoder.causal
        and all(network.shape.head_width <= KERNEL_HEAD_WIDTH for network in networks)
    )
    bf16 = "bf16"
    if with_kernels:
        bf16 = "bf16, kernels"
    return {
        "auto": {ON_CPU: (FLOAT, False), f"{bf16} (a GPU)": (LOW, with_kernels)},
        "fp32": {"fp32": (FLOAT, False)},
        "fp16": {"fp16": (LOW, False)},
        "bf16": {bf16: (LOW, with_kernels)},
    }[training.precision]


def modes_with_kernels(modes: Mapping[str, tuple[int, bool]]) -> dict[str, tuple[int, bool]]:
    """Return the ways that use the kernels, which alone shard the optimizer state with zero1.

    Raise UserError where there is none: such a run is refused.
    """
    kept = {name: mode for name, mode in modes.items() if mode[1]}
    if not kept:
        raise UserError(
            "--parallel zero1 shards the optimizer state that the kernels update, and with these "
            "settings they are off; choose --parallel ddp or fsdp"
        )
    return kept


def describe_folder(folder: Path, *, world_size: int = 1) -> Description:
    """Return the description of a run folder or a model folder by the recipe in it, or of any other
    ELECTRA or ModernBERT model by its shape alone.
    """
    generator = folder / "generator"
    for role in ("discriminator", "encoder"):
        if (folder / role / MODEL_CONFIG).is_file():
            folder = folder / role
    if not (folder / MODEL_CONFIG).is_file() and (folder / "config.toml").is_file():
        toml = folder / "config.toml"
        recipe = build(Recipe, read_toml(toml), source=str(toml))
        return describe_recipe(recipe, name=f"{folder} (no model yet)", world_size=world_size)

    if (generator / MODEL_CONFIG).is_file() and (folder / MODEL_CONFIG).is_file():
        model_config.check_one_family(folder, generator)
    shape, vocabulary, role = model_config.load_shape(folder)
    values = read_json(folder, MODEL_CONFIG).get("electra_recipe")
    reason = "no recipe recorded"
    if objective := unregistered_objective(values):
        reason, values = f"its objective {objective!r} is not registered here", None
    if values is None:
        recipe = recipe_for_shape(shape, role)
        name = f"{folder} ({reason}; rows of {recipe.data.length}, steps as for small)"
    else:
        name = str(folder)
        recipe = convert(values, Recipe, source=str(folder / MODEL_CONFIG), key="electra_recipe")
        check_recorded_family(recipe, shape, folder)
    return describe_recipe(recipe, name=name, vocabulary=vocabulary, world_size=world_size)


def unregistered_objective(values: object) -> str | None:
    """Return the name of a recorded recipe's objective if only its author's file registers it."""
    objective = values.get("objective") if isinstance(values, Mapping) else None
    name = objective.get("name") if isinstance(objective, Mapping) else None
    if isinstance(name, str) and name not in REGISTERED:
        return name
    return None


def check_recorded_family(recipe: Recipe, shape: EncoderShape, folder: Path) -> None:
    """Raise UserError where a model's own recipe trains networks of the other family."""
    if recipe.encoder.family != shape.family:
        raise UserError(
            f"{folder / MODEL_CONFIG}: model_type is {shape.family}, but electra_recipe has "
            f"encoder.family={recipe.encoder.family}, which trained another model; copy or "
            "download the folder again, or remove electra_recipe"
        )


def recipe_for_shape(shape: EncoderShape, role: str) -> Recipe:
    """Return a recipe that trains a network of this shape and role."""
    objective: ObjectiveConfig = MaskedLMConfig()
    if shape.causal:
        objective = LeftToRightConfig()
    elif role == "discriminator":
        objective = ReplacedTokenDetectionConfig()
    data = DataConfig(length=min(128, shape.positions))
    return Recipe(encoder=shape, objective=objective, data=data)


# ---- printing ------------------------------------------------------------------------------------


def print_description(description: Description, console: Console) -> None:
    """Print the tables of a description."""
    console.print(shape_table(f"{description.name}: networks", description.networks))
    console.print(size_table(description))
    console.print(cost_table(description))
    console.print(memory_table(description))


def print_dry_run(
    name: str, recipe: Recipe, output_dir: Path | None, options: PretrainOptions
) -> None:
    """Print the settings of a recipe, its costs, and what a run of it would find here.

    What would stop the run is refused before anything is printed that looks like success. Of
    several processes all look, and the main one prints.
    """
    from electra.pretraining.dry_run import inspect_run

    found = inspect_run(recipe, options, output_dir)
    description = describe_recipe(
        recipe, name=name, vocabulary=found.vocabulary, world_size=found.processes
    )
    if not is_main_rank():
        return
    print_data(as_commented_toml(recipe))
    print_description(description, Terminal())
    for title, fact in found.facts.items():
        to_stdout(f"{title}: {fact}")


def shape_table(title: str, networks: Mapping[str, EncoderShape]) -> Table:
    """Return the shape of each network."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in networks:
        table.add_column(name, justify="right")
    table.add_row("family", *(shape.family for shape in networks.values()))
    for field, label in SHAPE_FIELDS.items():
        table.add_row(label, *(f"{getattr(shape, field):,}" for shape in networks.values()))
    return table


def size_table(description: Description) -> Table:
    """Return the numbers of entries, parameters and tokens."""
    counts = description.parameters
    rows = {
        "vocabulary, row length": f"{description.vocabulary:,}, {description.length}",
        "parameters: encoder + its head": f"{counts.encoder:,} + {counts.head:,}",
        "parameters: generator's own, shared": f"{counts.generator:,}, {counts.shared:,}",
        "tokens in a step, in the run": f"{description.batch_tokens:,}, {description.tokens:.3g}",
    }
    table = Table(show_header=False, title="size", title_justify="left")
    for key, value in rows.items():
        table.add_row(key, value)
    return table


def memory_table(description: Description) -> Table:
    """Return the estimated memory of one process by term, for each way to compute a step."""
    where, recomputation = "", ""
    if description.world_size > 1:
        where = f" on each of {description.world_size} GPUs, {description.parallel}"
    if description.activation_checkpointing:
        recomputation = ", blocks computed again"
    title = (
        f"memory of a step{where}, estimated ({description.micro_batch} rows at a "
        f"time{recomputation})"
    )
    table = Table(title_justify="left", title=title)
    table.add_column("GB")
    keys: dict[str, None] = {}
    for name, terms in description.memory.items():
        table.add_column(name, justify="right")
        keys |= dict.fromkeys(terms)
    columns = [{**terms, "all": sum(terms.values())} for terms in description.memory.values()]
    for key in (*keys, "all"):
        table.add_row(key, *(format_term(terms, key, "{:.2f}", 1e9) for terms in columns))
    return table


def cost_table(description: Description) -> Table:
    """Return the FLOPs of a token by term and those of the whole run, in both conventions."""
    table = Table(title="operations", title_justify="left")
    table.add_column("forward, per token")
    for column in ("standard", "official script"):
        table.add_column(column, justify="right")
    costs = (description.standard, description.official)
    for network in description.networks:
        ours, theirs = (cost.networks[network] for cost in costs)
        for term in theirs | ours:
            numbers = (format_term(terms, term, "{:,.0f}") for terms in (ours, theirs))
            table.add_row(f"{network}: {term}", *numbers)
    table.add_section()
    for network in description.networks:
        passes = (str(cost.passes[network]) for cost in costs)
        table.add_row(f"{network}: passes in a training step", *passes)
    table.add_row("training, per token", *(f"{cost.training:,.0f}" for cost in costs))
    whole_run = (f"{cost.training * description.tokens:.3g}" for cost in costs)
    table.add_row("training, whole run", *whole_run)
    return table


def format_term(terms: Terms, key: str, form: str, unit: float = 1.0) -> str:
    """Return a term in a unit, or a dash where the convention has no such term."""
    if key not in terms:
        return "–"
    return form.format(terms[key] / unit)


def as_json(description: Description) -> str:
    """Return a description as JSON, with the FLOPs of training in it."""
    values: dict[str, Any] = asdict(description)
    for name, cost in (("standard", description.standard), ("official", description.official)):
        values[name]["training_per_token"] = cost.training
        values[name]["training_total"] = cost.training * description.tokens
    return json.dumps(values, indent=1)
