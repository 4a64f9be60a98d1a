"""The function `electra.load_recipe`, and the recipe of a pre-training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from electra.api.keywords import as_flags, takes_keywords
from electra.api.rows import PATHS, PathName, as_items
from electra.config import Layer
from electra.pretraining.budget import apply_budget
from electra.pretraining.options import RecipeOverrides
from electra.pretraining.recipe import Recipe, override_layers
from electra.pretraining.recipe import load_recipe as read_recipe
from electra.settings import as_dict, build_layers


@dataclass(frozen=True, kw_only=True)
class RecipeArguments(RecipeOverrides):
    """The arguments of `load_recipe`.

    Parameters
    ----------
    recipe
        tiny, small, base, large or another built-in recipe, a TOML file, or a Recipe.
    config
        TOML files that change settings of the recipe; later ones win, and `settings` win over all.
    settings
        Further settings of the recipe: {"learning_rate": 2e-4, "encoder.layers": 6}. The fields of
        `electra.Recipe` are all that there are.
    """

    # Wider types than on the command line, which knows only paths.
    recipe: str | Path | Recipe = field(kw_only=False)
    max_steps: int | None = None
    seed: int | None = None
    settings: Mapping[str, object] | None = None
    config: PathName | Sequence[PathName] | None = None  # type: ignore[assignment]


@takes_keywords(RecipeArguments)
def load_recipe(arguments: RecipeArguments) -> Recipe:
    """Return the settings of a recipe; files, the environment, then keywords override it.

    recipe = electra.load_recipe("small", settings={"encoder.layers": 6})
    """
    recipe, _ = build_recipe(arguments)
    return recipe


def build_recipe(arguments: RecipeArguments) -> tuple[Recipe, dict[str, Layer]]:
    """Return the recipe with the settings that the arguments change, and the layers that do."""
    flags = [*as_flags(arguments.settings), *arguments.flags()]
    files = []
    if arguments.config is not None:
        files = [Path(file) for file in as_items(arguments.config, name="config", accepted=PATHS)]
    if not isinstance(arguments.recipe, Recipe):
        recipe = read_recipe(str(arguments.recipe), files=files, flags=flags)
        return apply_budget(recipe, arguments.budget, flags), override_layers(files, flags)
    asked = override_layers(files, flags, variables={})
    recipe = build_layers(Recipe, {"recipe": as_dict(arguments.recipe)} | asked)
    return apply_budget(recipe, arguments.budget, flags), asked
