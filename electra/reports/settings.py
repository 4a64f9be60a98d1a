"""The sections of a report on how its numbers were made: settings, versions and hardware."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from electra.config import flatten
from electra.experiments.findings import Finding, Findings
from electra.reports.blocks import Block, Fold, Grid, Heading
from electra.reports.samples import findings_of

RECIPES = ("recipe", "earlier_recipes")
MAX_VALUES = 4  # of a fact in which runs differ; of more, the first and the last are shown


def settings_section(findings: Findings) -> Iterator[Block]:
    """Yield the settings that all runs share, then those of each arm."""
    recipes = {
        (finding.arm, finding.seed): flatten_stages(recipes_of(finding))
        for finding in findings.results
    }
    shared = shared_settings([recipe for recipe in recipes.values() if recipe])
    if shared is None:
        return
    yield Heading(3, "Settings")
    yield Fold(f"Shared by every run: {len(shared)} settings", as_lines(shared))
    for arm in findings.trial.arms:
        own = findings_of(findings, arm)
        by_seed = [recipes[finding.arm, finding.seed] for finding in own]
        settings = own_settings(by_seed, shared)
        if settings:
            names = ", ".join(run.name for finding in own for run in finding.runs)
            yield Fold(f"{arm.label}: what is its own", f"# {names}\n{as_lines(settings)}")


def recipes_of(finding: Finding) -> list[Any]:
    """Return the recipes of a finding's stages."""
    recipe = finding.provenance.get("recipe")
    if not recipe:
        return []
    return [*(finding.provenance.get("earlier_recipes") or ()), recipe]


def shared_settings(recipes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the settings that are equal in all recipes; None where there is no recipe."""
    if not recipes:
        return None
    shared = dict(recipes[0])
    for recipe in recipes:
        shared = {key: value for key, value in shared.items() if recipe.get(key) == value}
    return shared


def own_settings(recipes: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an arm that not all runs share, once where its seeds agree."""
    settings: dict[str, Any] = {}
    for key in dict.fromkeys(key for recipe in recipes for key in recipe):
        if key in shared:
            continue
        values = [recipe.get(key) for recipe in recipes]
        settings[key] = values[0]
        if any(value != values[0] for value in values):
            settings[key] = BySeed(values)
    return settings


class BySeed(list[Any]):
    """The values of a setting that differs between the seeds of an arm."""


def flatten_stages(recipes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last stage's settings with dotted keys, and what earlier stages had otherwise."""
    if not recipes:
        return {}
    *earlier, last = [dict(flatten(recipe)) for recipe in recipes]
    settings = dict(last)
    for number, recipe in enumerate(earlier, start=1):
        for key in {**recipe, **last}:
            if recipe.get(key) != last.get(key):
                settings[f"stage {number}: {key}"] = recipe.get(key)
    return settings


def as_lines(settings: Mapping[str, Any]) -> str:
    return "\n".join(f"{key} = {as_text(value)}" for key, value in settings.items())


def as_text(value: Any) -> str:
    if isinstance(value, BySeed):
        return f"{', '.join(map(as_text, value))}  # by seed"
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False, default=str)


def environment_section(findings: Findings) -> Iterator[Block]:
    """Yield a table of versions, hardware, commit and date, each value once."""
    facts: dict[str, dict[str, None]] = {}
    for finding in findings.results:
        made = {key: value for key, value in finding.provenance.items() if key not in RECIPES}
        for key, value in flatten(made):
            if value not in (None, "", []):
                facts.setdefault(key, {})[fact_text(value)] = None
    if facts:
        yield Heading(3, "Versions and hardware")
        rows = [(key, summarize(list(values))) for key, values in facts.items()]
        yield Grid(("what", "value"), rows, is_text=True)


def fact_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def summarize(values: list[str]) -> str:
    if len(values) <= MAX_VALUES:
        return "; ".join(values)
    values = sorted(values)
    return f"{len(values)} values, from {values[0]} to {values[-1]}"
