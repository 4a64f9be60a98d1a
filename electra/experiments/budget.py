"""How long each arm trains: the recipes of its stages at a scale and budget. No torch.

A budget means here what it means to `electra pretrain` (pretraining/budget.py), but for the warm-up
where a scale has a `warmup_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from electra.config import Layer, UserError, build, flatten
from electra.experiments.plan import Arm, Scale, Stage, Trial
from electra.files import read_toml
from electra.model.flops import official, standard
from electra.model.shape import EncoderShape
from electra.pretraining.budget import schedule_settings
from electra.pretraining.recipe import MAY_CHANGE, Recipe
from electra.settings import as_dict, build_layers, find_recipe, merge, set_key

WIDTH_MULTIPLE = 16  # widths are multiples of what a GPU multiplies well
# A collapsed arm is scored like the others, which shows where it stands.
TRIAL_DEFAULTS: Layer = {"training": {"stop_on_collapse": False}}
Vocabularies = Mapping[int, int]  # length of a shard's rows → size of its vocabulary


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One pre-training run with all settings but the folder of its shards."""

    name: str  # of the recipe it began with, without a folder; run folders begin with it
    recipe: Recipe

    @property
    def steps(self) -> int:
        return self.recipe.training.max_steps

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.training.batch_size * self.recipe.data.length

    @property
    def flops_per_step(self) -> float:
        workload = self.recipe.workload(self.recipe.data.vocab_size)
        return self.tokens_per_step * standard(workload).training

    @property
    def official_flops_per_step(self) -> float:
        """FLOPs of a step as the official script counts them."""
        workload = self.recipe.workload(self.recipe.data.vocab_size)
        return self.tokens_per_step * official(workload).training

    @property
    def flops(self) -> float:
        return self.steps * self.flops_per_step

    def identity(self) -> Layer:
        """Return the settings that decide the weights, beside the data.

        How often a run logs, evaluates or saves is left out.
        """
        ignored = MAY_CHANGE - {"training.max_steps"}
        settings = flatten(as_dict(self.recipe))
        return {key: value for key, value in settings if key not in ignored}


def plan_stages(
    trial: Trial,
    arm: Arm,
    scale: Scale,
    *,
    budget: Fraction,
    seed: int,
    vocabularies: Vocabularies | None = None,
) -> list[PlannedStage]:
    """Plan the stages of an arm at a scale and budget.

    `vocabularies` are the sizes that the shards turned out to have, by the length of their rows.
    """
    sizes = vocabularies or {}
    source = trial.source_of(arm)
    stages = [stage_at_scale(stage, scale, source, sizes) for stage in arm.stages]
    if arm.compute == "reference":
        reference = trial.arm(arm.reference or trial.reference)
        planned = plan_stages(
            trial, reference, scale, budget=budget, seed=seed, vocabularies=vocabularies
        )
        steps = steps_for_flops(arm, stages, sum(stage.flops for stage in planned))
    else:
        reference_steps = scale.steps or stages[0].steps
        steps = [float(reference_steps * budget) * arm.share * stage.share for stage in arm.stages]
    if min(steps) < 0.5:
        raise UserError(
            f"--budget {budget}: leaves no step for {trial.name}/{arm.name} at scale "
            f"{scale.name}; ask for {smallest_budget(budget, min(steps))} or more"
        )
    # An arm with several times the steps warms up no longer than the usual one (paper, table 6).
    longer = max(1.0, arm.share)
    return [
        with_schedule(stage, max(1, round(count)), scale, seed=seed, longer=longer)
        for stage, count in zip(stages, steps, strict=True)
    ]


def steps_for_flops(arm: Arm, stages: Sequence[PlannedStage], flops: float) -> list[float]:
    """Return the steps of each stage that give an arm its share of these FLOPs.

    Stages share steps, not FLOPs: of two that cost differently, the paper gives both as many steps.
    """
    per_step = sum(
        stage.share * planned.flops_per_step
        for stage, planned in zip(arm.stages, stages, strict=True)
    )
    return [flops * arm.share / per_step * stage.share for stage in arm.stages]


def is_named_recipe(trial: Trial, arm: Arm, scale: Scale, *, budget: Fraction) -> bool:
    """Return whether every stage equals the recipe it names, steps and warm-up included."""
    try:
        stages = plan_stages(trial, arm, scale, budget=budget, seed=0)
        recipes = [
            build_layers(Recipe, {stage.recipe: read_toml(find_recipe(stage.recipe))})
            for stage in arm.stages
        ]
    except UserError:  # a recipe of the user's own that is not on this machine
        return False
    return all(
        replace(stage, recipe=recipe).identity() == stage.identity()
        for stage, recipe in zip(stages, recipes, strict=True)
    )


def smallest_budget(budget: Fraction, steps: float) -> str:
    """Return the budget that would give one step, rounded up."""
    steps_at_one = steps / float(budget)
    if steps_at_one >= 1:
        return f"1/{math.floor(steps_at_one)}"
    return str(math.ceil(1 / steps_at_one))


def stage_at_scale(
    stage: Stage, scale: Scale, source: str, vocabularies: Vocabularies
) -> PlannedStage:
    """Return a stage's recipe at a scale, with the recipe's own number of steps.

    `source` is what an error says of the stage's own settings.
    """
    file = find_recipe(stage.recipe)
    named = read_toml(file)
    objective = named.get("objective", {}).get("name", "")
    scaled = nest(
        scale.settings, scale.sizes.get(stage.size, {}), scale.objectives.get(objective, {})
    )
    layers = {
        "trials": TRIAL_DEFAULTS,
        f"recipe {stage.recipe}": named,
        f"scale {scale.name}": scaled,
    }
    if stage.width != 1:
        layers["width"] = resize(build_layers(Recipe, layers).encoder, stage.width)
    layers[source] = nest(stage.settings)
    recipe = build_layers(Recipe, layers)
    if recipe.training.initial_batch_size is not None:
        raise UserError(
            f"{source}: training.initial_batch_size="
            f"{recipe.training.initial_batch_size}: trials compare arms by steps that all cost "
            "the same; leave the batch ramp out"
        )
    if vocab_size := vocabularies.get(recipe.data.length):
        layers["shards"] = {"data": {"vocab_size": vocab_size}}
    return PlannedStage(name=file.stem, recipe=build_layers(Recipe, layers))


def resize(encoder: EncoderShape, share: float) -> Layer:
    """Return the settings of an encoder of a share of this one's width."""
    width = max(1, round(encoder.width * share / WIDTH_MULTIPLE)) * WIDTH_MULTIPLE
    # No head wider than before: kernels are made for those.
    fewest_heads = -(-width // encoder.head_width)
    heads = next(heads for heads in range(fewest_heads, width + 1) if width % heads == 0)
    return {
        "encoder": {
            "width": width,
            "heads": heads,
            "embedding": min(encoder.embedding, width),
            "feedforward": width * encoder.feedforward // encoder.width,
        }
    }


def with_schedule(
    stage: PlannedStage, steps: int, scale: Scale, *, seed: int, longer: float
) -> PlannedStage:
    """Return the stage with a schedule for these steps; it warms up as for `steps / longer`."""
    changes = schedule_settings(
        stage.recipe, steps, warmup_ratio=scale.warmup_ratio, warmup_for=steps / longer
    )
    changes["training"]["seed"] = seed
    layer = merge(as_dict(stage.recipe), changes)
    source = f"{stage.name}, {steps} steps"
    return PlannedStage(name=stage.name, recipe=build(Recipe, layer, source=source))


def nest(*settings: Mapping[str, object]) -> Layer:
    """Return dotted keys as a nested layer; later settings win."""
    layer: Layer = {}
    for keys in settings:
        for key, value in keys.items():
            set_key(layer, key, value)
    return layer
