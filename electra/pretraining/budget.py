"""A budget: a share of a recipe's steps, with a whole schedule of its own. No torch.

A budget scales steps, and every run has a fresh schedule that decays to its end: no run is the
beginning of a longer one. The warm-up of fewer steps is as long as the recipe's, or a sixth of
them: with one scaled like the steps the paper's `small` collapsed twice (docs/log.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from fractions import Fraction

from electra.config import Layer, UserError, build, flatten
from electra.pretraining.recipe import Recipe
from electra.settings import as_dict, merge, parse_flags, set_key

MIN_BUDGET, MAX_BUDGET = Fraction(1, 10**9), 1000
OUT_OF_BOUNDS = f"must be between {MIN_BUDGET} and {MAX_BUDGET} of the steps"
EVAL_POINTS = 20  # of a held-out curve
MAX_WARMUP_SHARE = 1 / 6  # of the steps, where the recipe's own share is smaller
CHECKPOINTS = 4  # of a run that is shorter than its recipe's interval


def parse_budget(text: str) -> Fraction:
    """Parse a share of the steps: 1/16, 0.01 or 1."""
    # A fraction with an exponent of three digits may take forever to compute.
    if re.search(r"e[+-]?\d{3,}", text, re.IGNORECASE):
        raise UserError(f"--budget {text}: {OUT_OF_BOUNDS}")
    try:
        budget = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise UserError(
            f"--budget {text}: neither a number nor a fraction; write 1/16 or 0.01"
        ) from None
    if budget <= 0:
        raise UserError(f"--budget {text}: must be above 0")
    if not MIN_BUDGET <= budget <= MAX_BUDGET:
        raise UserError(f"--budget {text}: {OUT_OF_BOUNDS}")
    return budget


def apply_budget(recipe: Recipe, budget: str | None, flags: Sequence[str]) -> Recipe:
    """Return the recipe at a budget, if one is given; flags of the command line win over it."""
    if budget is None:
        return recipe
    given = dict(flatten(parse_flags(flags, Recipe)))
    return scale_recipe(recipe, parse_budget(budget), keep=given)


def scale_recipe(recipe: Recipe, budget: Fraction, *, keep: Collection[str] = ()) -> Recipe:
    """Return the recipe at a budget; settings in `keep`, dotted keys, stay as they are."""
    if "training.max_steps" in keep:
        raise UserError("--budget and --max-steps both say how long to train; leave one out")
    if budget == 1:
        return recipe
    steps = max(1, round(recipe.training.max_steps * budget))
    changes: Layer = {}
    for key, value in flatten(schedule_settings(recipe, steps)):
        if key not in keep:
            set_key(changes, key, value)
    return build(Recipe, merge(as_dict(recipe), changes), source=f"--budget {budget}")


def schedule_settings(
    recipe: Recipe,
    steps: int,
    *,
    warmup_ratio: float | None = None,
    warmup_for: float | None = None,
) -> Layer:
    """Return the settings of a schedule that decays within these steps.

    The warm-up is that of a run of `warmup_for` steps, by default of `steps`, or the share
    `warmup_ratio` of them. The run grows its batch for the recipe's share of steps, is evaluated
    often enough for a curve, and is saved often enough for a resume.
    """
    training = recipe.training
    if warmup_for is None:
        warmup_for = steps
    if warmup_ratio is None:
        warmup_steps = warmup_in(recipe, warmup_for)
    else:
        warmup_steps = round(warmup_ratio * warmup_for)
    logging_steps = min(training.logging_steps, math.ceil(steps / (5 * EVAL_POINTS)))
    eval_steps = min(training.eval_steps, math.ceil(steps / EVAL_POINTS))
    schedule = {
        "max_steps": steps,
        "logging_steps": logging_steps,
        "eval_steps": -(-eval_steps // logging_steps) * logging_steps,
        "save_steps": min(training.save_steps, math.ceil(steps / CHECKPOINTS)),
    }
    if training.batch_ramp_steps is not None:
        stages = training.batch_schedule.stages
        scaled = round(training.batch_ramp_steps * steps / training.max_steps)
        schedule["batch_ramp_steps"] = max(stages - 1, scaled)
    return {"training": schedule, "optimizer": {"warmup_steps": warmup_steps}}


def warmup_in(recipe: Recipe, steps: float) -> int:
    """Return the warm-up of a run of so many steps: the recipe's share of more steps; of fewer its
    own length, or a sixth of them where that is less.
    """
    own = recipe.optimizer.warmup_steps
    share = own / recipe.training.max_steps
    return round(max(share * steps, min(own, MAX_WARMUP_SHARE * steps)))
