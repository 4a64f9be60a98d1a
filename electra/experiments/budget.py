"""How long each arm trains: recipes at a scale and budget, some with as many operations as another
arm. No torch.

A budget scales steps, and with them the warm-up: every run has a fresh schedule that decays to its
end. It is never the beginning of a longer one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from electra.config import Layer, UserError, build, flatten
from electra.experiments.plan import Arm, Scale, Stage, Trial
from electra.files import read_toml
from electra.model.flops import official, standard
from electra.pretraining.recipe import MAY_CHANGE, Recipe
from electra.settings import as_dict, build_layers, find_recipe, merge, set_key

LEAST, MOST = Fraction(1, 10**9), 1000
BOUNDS = (
    f"no share of a scale's steps that anybody could run; ask for one between {LEAST} and {MOST}"
)
SMOKE = "smoke"  # as a budget: this scale, whole
MULTIPLE = 16  # of which widths are made: what a GPU multiplies well
CURVE = 20  # points of a held-out curve
SAVES = 4  # checkpoints of a run that is shorter than a recipe's interval


def parsed(budget: str) -> Fraction:
    """1/256, 0.01 or 1."""
    if re.search(
        r"e[+-]?\d{3,}", budget, re.IGNORECASE
    ):  # a fraction of that many digits may never be done
        raise UserError(f"--budget {budget}: {BOUNDS}")
    try:
        found = Fraction(budget)
    except (ValueError, ZeroDivisionError):
        raise UserError(
            f"--budget {budget}: neither a number nor a fraction; write 1/256, 0.01, or smoke"
        ) from None
    if found <= 0:
        raise UserError(f"--budget {budget}: must be above 0")
    if not LEAST <= found <= MOST:
        raise UserError(f"--budget {budget}: {BOUNDS}")
    return found


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One pre-training with everything decided but where its shards lie."""

    name: str  # of the recipe it began with
    recipe: Recipe

    @property
    def steps(self) -> int:
        return self.recipe.training.max_steps

    @property
    def tokens_of_step(self) -> int:
        return self.recipe.training.batch_size * self.recipe.data.length

    @property
    def operations_of_step(self) -> float:
        return (
            self.tokens_of_step
            * standard(self.recipe.workload(self.recipe.data.vocab_size)).training
        )

    @property
    def official_of_step(self) -> float:
        return (
            self.tokens_of_step
            * official(self.recipe.workload(self.recipe.data.vocab_size)).training
        )

    @property
    def operations(self) -> float:
        return self.steps * self.operations_of_step

    def identity(self) -> Layer:
        """What decides its weights, beside the data: settings that only say how often to speak or
        save are no part.
        """
        leaves = dict(flatten(as_dict(self.recipe)))
        return {
            key: value
            for key, value in leaves.items()
            if key not in MAY_CHANGE - {"training.max_steps"}
        }


def planned(
    trial: Trial,
    arm: Arm,
    scale: Scale,
    *,
    budget: Fraction,
    seed: int,
    vocabularies: Mapping[int, int] | None = None,
) -> list[Planned]:
    """The stages of an arm. `vocabularies` are the sizes that shards turned out to have, by the
    length of their rows.
    """
    own = [
        sized(stage, scale, trial=trial, vocabularies=vocabularies or {}) for stage in arm.stages
    ]
    if arm.compute == "reference":
        model = trial.arm(arm.reference or trial.reference)
        given = sum(
            each.operations
            for each in planned(
                trial, model, scale, budget=budget, seed=seed, vocabularies=vocabularies
            )
        )
        # Stages share steps, not operations: of two that cost differently, the paper gives both as
        # many steps.
        of_step = sum(
            stage.share * each.operations_of_step
            for stage, each in zip(arm.stages, own, strict=True)
        )
        wanted = [given * arm.share / of_step * stage.share for stage in arm.stages]
    else:
        whole = scale.steps or own[0].steps
        wanted = [float(whole * budget) * arm.share * stage.share for stage in arm.stages]
    if min(wanted) < 0.5:
        raise UserError(
            f"--budget {budget}: leaves no step for {trial.name}/{arm.name} at scale "
            f"{scale.name}; ask for "
            f"{smallest(budget, min(wanted))} or more"
        )
    # An arm of several times the steps warms up no longer than one of the usual length (paper,
    # table 6).
    longer = max(1.0, arm.share)
    taken = [max(1, round(steps)) for steps in wanted]
    return [
        scheduled(each, steps, scale, seed=seed, warmed=steps / longer)
        for each, steps in zip(own, taken, strict=True)
    ]


def is_as_named(trial: Trial, arm: Arm, scale: Scale, *, budget: Fraction) -> bool:
    """Whether every stage is the recipe that it names, steps and warm-up included."""
    try:
        found = planned(trial, arm, scale, budget=budget, seed=0)
        written = [
            build_layers(Recipe, {stage.name: read_toml(find_recipe(stage.name))})
            for stage in found
        ]
    except UserError:  # a recipe of somebody's own that is not on this machine
        return False
    return all(
        replace(stage, recipe=recipe).identity() == stage.identity()
        for stage, recipe in zip(found, written, strict=True)
    )


def smallest(budget: Fraction, steps: float) -> str:
    """The budget that would give one step, rounded up."""
    wanted = steps / float(budget)
    return f"1/{math.floor(wanted)}" if wanted >= 1 else str(math.ceil(1 / wanted))


def sized(stage: Stage, scale: Scale, *, trial: Trial, vocabularies: Mapping[int, int]) -> Planned:
    """The recipe at a scale, for as long as the recipe says."""
    written = read_toml(find_recipe(stage.recipe))
    objective = written.get("objective", {}).get("name", "")
    layers = {
        f"recipe {stage.recipe}": written,
        f"scale {scale.name}": nested(
            scale.settings, scale.sizes.get(stage.size, {}), scale.objectives.get(objective, {})
        ),
    }
    if stage.width != 1:
        encoder = build_layers(Recipe, layers).encoder
        width = max(1, round(encoder.width * stage.width / MULTIPLE)) * MULTIPLE
        narrowest = -(
            -width // encoder.head_width
        )  # no head wider than before: kernels are made for those
        heads = next(heads for heads in range(narrowest, width + 1) if width % heads == 0)
        layers["width"] = {
            "encoder": {
                "width": width,
                "heads": heads,
                "embedding": min(encoder.embedding, width),
                "feedforward": width * encoder.feedforward // encoder.width,
            }
        }
    layers[f"trial {trial.name}"] = nested(stage.settings)
    recipe = build_layers(Recipe, layers)
    if found := vocabularies.get(recipe.data.length):
        layers["shards"] = {"data": {"vocab_size": found}}
    return Planned(name=stage.recipe, recipe=build_layers(Recipe, layers))


def scheduled(run: Planned, steps: int, scale: Scale, *, seed: int, warmed: float) -> Planned:
    """Fresh and fully decayed within so many steps, warmed up as for `warmed` of them; measured
    often enough for a curve, and saved for a resume.
    """
    training = run.recipe.training
    share = scale.warmup_share
    if share is None:
        share = run.recipe.optimizer.warmup_steps / training.max_steps
    logging = min(training.logging_steps, math.ceil(steps / (5 * CURVE)))
    measured = min(training.eval_steps, math.ceil(steps / CURVE))
    often = {
        "max_steps": steps,
        "seed": seed,
        "logging_steps": logging,
        "eval_steps": -(-measured // logging) * logging,
        "save_steps": min(training.save_steps, math.ceil(steps / SAVES)),
    }
    changed = {"training": often, "optimizer": {"warmup_steps": round(share * warmed)}}
    layer = merge(as_dict(run.recipe), changed)
    return Planned(name=run.name, recipe=build(Recipe, layer, source=f"{run.name}, {steps} steps"))


def nested(*settings: Mapping[str, object]) -> Layer:
    """Dotted keys as a layer; later ones win."""
    layer: Layer = {}
    for each in settings:
        for key, value in each.items():
            set_key(layer, key, value)
    return layer
