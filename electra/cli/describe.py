"""What a recipe or a model is, in numbers: parameters, operations in both conventions, tokens,
memory. No torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from electra.config import UserError, build
from electra.data.prepare import DataConfig
from electra.engine.settings import Parallel
from electra.files import read_toml
from electra.model import flops
from electra.model.memory import FLOAT, LOW, training_bytes
from electra.model.shape import EncoderShape
from electra.objectives.settings import (
    LeftToRightConfig,
    MaskedLMConfig,
    ObjectiveConfig,
    ReplacedTokenDetectionConfig,
)
from electra.pretraining.recipe import Recipe

USUAL_TOKENS = 16_384  # in one pass, where the recipe leaves the micro-batch to the machine


@dataclass(frozen=True)
class Description:
    """Everything `electra describe` prints; `--json` gives it as it is."""

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
    memory: dict[str, flops.Terms]  # of one process, by how its steps are taken


def describe_recipe(
    recipe: Recipe, *, name: str, vocabulary: int | None = None, world_size: int = 1
) -> Description:
    vocabulary = vocabulary or recipe.data.vocab_size
    work, training = recipe.workload(vocabulary), recipe.training
    if not 1 <= world_size <= training.batch_size:
        raise UserError(
            f"--world-size {world_size}: must be from 1 to "
            f"training.batch_size={training.batch_size}, so "
            f"that every process has a row"
        )
    if (passes := training.batch_size // (training.micro_batch_size or 1)) < world_size:
        raise UserError(
            f"--world-size {world_size}: a step has {passes} micro-batches, too few for so many "
            "processes; "
            f"choose a smaller --micro-batch-size"
        )
    rows = training.micro_batch_size or max(
        1, min(training.batch_size // world_size, USUAL_TOKENS // recipe.data.length)
    )
    return Description(
        name=name,
        networks={network: shape for network, shape, _ in work.networks()},
        vocabulary=vocabulary,
        length=recipe.data.length,
        parameters=flops.parameters(work),
        standard=flops.standard(work),
        official=flops.official(work),
        tokens=training.max_steps * training.batch_size * recipe.data.length,
        batch_tokens=training.batch_size * recipe.data.length,
        micro_batch=rows,
        world_size=world_size,
        parallel=training.parallel,
        activation_checkpointing=training.activation_checkpointing,
        memory={
            way: training_bytes(
                work,
                rows=rows,
                activation_bytes=number,
                kernels=kernels,
                recomputed=training.activation_checkpointing,
                spread_over=training.spread_over(world_size),
            )
            for way, (number, kernels) in ways(recipe).items()
        },
    )


def ways(recipe: Recipe) -> dict[str, tuple[int, bool]]:
    """How steps may be taken, as far as the recipe leaves that to the machine: bytes of an
    activation, and whether by our own kernels, which a GPU takes wherever it can.
    """
    training = recipe.training
    able = (
        training.kernels != "off"
        and training.compile != "on"
        and training.parallel == "ddp"
        and not training.activation_checkpointing
        and not recipe.encoder.causal
    )
    half = "bf16, kernels" if able else "bf16"
    return {
        "auto": {"fp32 (a CPU)": (FLOAT, False), f"{half} (a GPU)": (LOW, able)},
        "fp32": {"fp32": (FLOAT, False)},
        "fp16": {"fp16": (LOW, False)},
        "bf16": {half: (LOW, able)},
    }[training.precision]


def describe_folder(folder: Path, *, world_size: int = 1) -> Description:
    """A run folder or one of its models, by the recipe it carries; any other ELECTRA model by its
    shape alone.
    """
    for inner in ("discriminator", "encoder"):
        if (folder / inner / "config.json").is_file():
            folder = folder / inner
    if not (folder / "config.json").is_file() and (folder / "config.toml").is_file():
        return describe_recipe(
            build(Recipe, read_toml(folder / "config.toml"), source=str(folder / "config.toml")),
            name=f"{folder} (no model yet)",
            world_size=world_size,
        )
    from electra.model import huggingface

    shape, vocabulary, role = huggingface.load_shape(folder)
    carried = huggingface.read_json(folder, huggingface.CONFIG).get("electra_recipe")
    if carried is not None:
        recipe = build(Recipe, carried, source=str(folder / huggingface.CONFIG))
        return describe_recipe(
            recipe, name=str(folder), vocabulary=vocabulary, world_size=world_size
        )
    objective: ObjectiveConfig = (
        ReplacedTokenDetectionConfig() if role == "discriminator" else MaskedLMConfig()
    )
    if shape.causal:
        objective = LeftToRightConfig()
    recipe = Recipe(
        encoder=shape, objective=objective, data=DataConfig(length=min(128, shape.positions))
    )
    return describe_recipe(
        recipe,
        name=f"{folder} (no recipe recorded; length and steps as for small)",
        vocabulary=vocabulary,
        world_size=world_size,
    )


def show(description: Description, console: Console) -> None:
    """Tables for people."""
    networks = Table(title=f"{description.name}: networks", title_justify="left")
    for column in ("", "layers", "width", "heads", "feed-forward", "embedding", "positions"):
        networks.add_column(column, justify="left" if not column else "right")
    for name, shape in description.networks.items():
        networks.add_row(
            name,
            *(
                f"{value:,}"
                for value in (
                    shape.layers,
                    shape.width,
                    shape.heads,
                    shape.feedforward,
                    shape.embedding,
                    shape.positions,
                )
            ),
        )
    console.print(networks)
    counts = description.parameters
    lines = {
        "vocabulary, row length": f"{description.vocabulary:,}, {description.length}",
        "parameters: encoder + its head": f"{counts.encoder:,} + {counts.head:,}",
        "parameters: generator's own, shared": f"{counts.generator:,}, {counts.shared:,}",
        "tokens in a step, in the run": f"{description.batch_tokens:,}, {description.tokens:.3g}",
    }
    facts = Table(show_header=False, title="size", title_justify="left")
    for key, value in lines.items():
        facts.add_row(key, value)
    console.print(facts)
    console.print(cost_table(description))
    console.print(memory_table(description))


def memory_table(description: Description) -> Table:
    each = (
        f" on each of {description.world_size} GPUs, {description.parallel}"
        if description.world_size > 1
        else ""
    )
    again = ", blocks computed again" if description.activation_checkpointing else ""
    memory = Table(
        title_justify="left",
        title=f"memory of a step{each}, estimated ({description.micro_batch} rows at a "
        f"time{again})",
    )
    memory.add_column("GB")
    for way in description.memory:
        memory.add_column(way, justify="right")
    columns = [{**terms, "all": sum(terms.values())} for terms in description.memory.values()]
    for key in (
        *dict.fromkeys(key for terms in description.memory.values() for key in terms),
        "all",
    ):
        memory.add_row(
            key, *(f"{terms[key] / 1e9:.2f}" if key in terms else "–" for terms in columns)
        )
    return memory


def cost_table(description: Description) -> Table:
    """Operations per token by term, and what the whole run costs."""
    table = Table(title="operations", title_justify="left")
    table.add_column("forward, per token")
    for column in ("standard", "official script"):
        table.add_column(column, justify="right")
    for network in description.networks:
        ours, theirs = (
            description.standard.networks[network],
            description.official.networks[network],
        )
        for term in theirs | ours:
            counted = (f"{terms[term]:,.0f}" if term in terms else "–" for terms in (ours, theirs))
            table.add_row(f"{network}: {term}", *counted)
    pairs = (description.standard, description.official)
    table.add_section()
    for network in description.networks:
        table.add_row(
            f"{network}: passes in a training step", *(str(cost.passes[network]) for cost in pairs)
        )
    table.add_row("training, per token", *(f"{cost.training:,.0f}" for cost in pairs))
    table.add_row(
        "training, whole run", *(f"{cost.training * description.tokens:.3g}" for cost in pairs)
    )
    return table


def as_json(description: Description) -> str:
    values: dict[str, Any] = asdict(description)
    for name, cost in (("standard", description.standard), ("official", description.official)):
        values[name]["training_per_token"] = cost.training
        values[name]["training_total"] = cost.training * description.tokens
    return json.dumps(values, indent=1)
