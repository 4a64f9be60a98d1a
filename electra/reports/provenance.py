"""How the numbers of a trial were made: settings, versions, hardware; and what was not run, or only
in part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from electra.config import flatten
from electra.experiments.findings import Finding, Findings
from electra.experiments.plan import Arm
from electra.reports.ordering import of_arm
from electra.reports.page import Block, Bullets, Fold, Grid, Heading, Paragraph

RECIPES = ("recipe", "earlier_recipes")
SHOWN_VALUES = 4  # of a fact in which runs differ; of more, the first and the last


def settings(findings: Findings) -> Iterator[Block]:
    """What all runs share once, and for each arm what is its own."""
    recipes = {(finding.arm, finding.seed): flat(stages(finding)) for finding in findings.results}
    known = [recipe for recipe in recipes.values() if recipe]
    if not known:
        return
    shared = {
        key: value
        for key, value in known[0].items()
        if all(recipe.get(key) == value for recipe in known)
    }
    yield Heading(3, "Settings")
    yield Fold(f"Shared by every run: {len(shared)} settings", as_lines(shared))
    for arm in findings.trial.arms:
        own = [recipes[finding.arm, finding.seed] for finding in of_arm(findings, arm)]
        keys = dict.fromkeys(key for recipe in own for key in recipe if key not in shared)
        differing = {key: [recipe.get(key) for recipe in own] for key in keys}
        if differing:
            names = ", ".join(run.name for finding in of_arm(findings, arm) for run in finding.runs)
            yield Fold(
                f"{arm.label}: what is its own",
                f"# {names}\n"
                + as_lines(
                    {
                        key: values[0]
                        if all(value == values[0] for value in values)
                        else Seeds(values)
                        for key, values in differing.items()
                    }
                ),
            )


def stages(finding: Finding) -> list[Any]:
    recipe = finding.provenance.get("recipe")
    return [*(finding.provenance.get("earlier_recipes") or ()), recipe] if recipe else []


class Seeds(list[Any]):
    """A setting that differs between the seeds of an arm."""


def flat(recipes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Dotted keys. The last stage is what other arms are compared with; of earlier ones, what they
    had otherwise.
    """
    if not recipes:
        return {}
    *earlier, last = [dict(flatten(recipe)) for recipe in recipes]
    own = {
        f"stage {number}: {key}": recipe.get(key)
        for number, recipe in enumerate(earlier, 1)
        for key in {**recipe, **last}
        if recipe.get(key) != last.get(key)
    }
    return {**last, **own}


def as_lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{key} = {spelt(value)}" for key, value in values.items())


def spelt(value: Any) -> str:
    if isinstance(value, Seeds):
        return f"{', '.join(map(spelt, value))}  # by seed"
    return "none" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def environment(findings: Findings) -> Iterator[Block]:
    """Versions, hardware, commit, date: a value once where all runs share it."""
    facts: dict[str, dict[str, None]] = {}
    for finding in findings.results:
        for key, value in flatten(
            {key: value for key, value in finding.provenance.items() if key not in RECIPES}
        ):
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            if value not in (None, "", []):
                facts.setdefault(key, {})[text] = None
    if facts:
        yield Heading(3, "Versions and hardware")
        yield Grid(
            ("what", "value"),
            [(key, some(list(values))) for key, values in facts.items()],
            is_text=True,
        )


def some(values: list[str]) -> str:
    if len(values) <= SHOWN_VALUES:
        return "; ".join(values)
    values = sorted(values)
    return f"{len(values)} values, from {values[0]} to {values[-1]}"


# ---- what is missing -----------------------------------------------------------------------------


def missing(findings: Findings) -> Iterator[Block]:
    """Arms, seeds and tasks that were not run, runs that have not ended, and rows that are only
    published.
    """
    seeds = sorted({finding.seed for finding in findings.results})
    items: list[tuple[str, str]] = []
    for arm in findings.trial.arms:
        if arm.stages:
            items += [("Not run.", text) for text in not_run(arm, of_arm(findings, arm), seeds)]
            items += [
                ("In part.", text) for text in in_part(arm, of_arm(findings, arm), findings.tasks)
            ]
    if not findings.tasks:
        items.append(
            ("Not run.", "Every task: without data for one, arms are judged on held-out rows only")
        )
    if only := [arm.label for arm in findings.trial.arms if not arm.stages]:
        items.append(("Published only.", "Not ours to run: " + ", ".join(only)))
    yield Heading(3, "What was not run")
    yield (
        Bullets(items)
        if items
        else Paragraph("Nothing: every arm ran to its end with every seed, on every task.")
    )


def not_run(arm: Arm, found: Sequence[Finding], seeds: Sequence[int]) -> list[str]:
    begun = {finding.seed for finding in found if started(finding)}
    if not begun:
        return [f"{arm.label}: no seed"]
    absent = [str(seed) for seed in seeds if seed not in begun]
    return [f"{arm.label}: seed {', '.join(absent)}"] if absent else []


def in_part(arm: Arm, found: Sequence[Finding], tasks: Sequence[str]) -> list[str]:
    """Seeds that miss the same are named together."""
    by_lack: dict[str, list[str]] = {}
    for finding in found:
        if started(finding) and (lack := unfinished(finding, tasks)):
            by_lack.setdefault(lack, []).append(str(finding.seed))
    return [f"{arm.label}, seed {', '.join(seeds)}: {lack}" for lack, seeds in by_lack.items()]


def started(finding: Finding) -> bool:
    return finding.steps > 0 or bool(finding.scores)


def unfinished(finding: Finding, tasks: Sequence[str]) -> str:
    scored = {score.task for score in finding.scores}
    parts = []
    if finding.steps < finding.max_steps:
        parts.append(f"{finding.steps:,} of {finding.max_steps:,} steps")
    if unscored := [task for task in tasks if task not in scored]:
        parts.append(f"not scored on {', '.join(unscored)}")
    return "; ".join(parts) or ("" if finding.done else "not marked as done")
