"""Draw how far the arms of a stage of `benchmarks.record` are from their references; of the
factorial experiment, what each factor changes.

    python -m benchmarks.record_plots [--stage screen] [--result benchmarks/results/record.json]
                                      [--output docs/images/screen.svg]

A bar shows what chance alone explains in 19 of 20 cases. An arm that is much further away stands at
the edge, with its number. The same results give the same bytes.
Needs matplotlib: pip install -e '.[benchmarks]'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import copysign
from pathlib import Path
from typing import Any

from benchmarks.harness import Result, build_parser, run_main
from benchmarks.plots import RC_PARAMS, import_pyplot, open_result, save_figure
from benchmarks.record_comparison import (
    CASES,
    Difference,
    compare_arms,
    estimate_effects,
    scores_by_arm,
)
from benchmarks.record_plan import Factorial, load_plan
from benchmarks.record_tables import stage_runs
from electra.config import UserError

CLEAR, UNCLEAR, CHANCE = "#1b5e9b", "#7a7a7a", "#e3e3e3"
INCHES_AN_ARM = 0.21
FAR = 3.0  # times what chance explains
NUMBER_AT = 0.85  # of the way to the edge, where an arrow begins


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--stage", choices=tuple(load_plan().stages), default="screen")
    parser.add_argument("--result", type=Path, default=Path("benchmarks/results/record.json"))
    parser.add_argument("--output", type=Path, help="by default docs/images/STAGE.svg")
    options = parser.parse_args(arguments)
    result = open_result(
        options.result, "runs", "arm", "stage", made_by=f"record --stage {options.stage} …"
    )
    output = options.output or Path("docs/images") / f"{options.stage}.svg"
    draw(result, options.stage, output)
    print(output)


def draw(result: Result, stage: str, output: Path) -> None:
    """Draw the differences of a stage as SVG, the largest on top."""
    plan = load_plan()
    scores = scores_by_arm(stage_runs(result, stage), plan.stage(stage).task_names)
    if stage == plan.factorial.stage:
        meaning, differences = "effect, in points", effects_of(scores, plan.factorial)
    else:
        found = compare_arms(scores, plan.arms, plan.stage(stage))
        meaning, differences = "points against the reference", list(found.values())
    differences.sort(key=lambda each: each.points)
    usual = plan.stage(stage).reference
    if not differences:
        raise UserError(
            f"no two arms of stage {stage} to compare; `python -m benchmarks.record --stage "
            f"{stage} …` runs them"
        )
    pyplot = import_pyplot()
    with pyplot.rc_context({**RC_PARAMS, "axes.grid.axis": "x"}):
        height = 1.0 + INCHES_AN_ARM * len(differences)
        figure, axis = pyplot.subplots(figsize=(7, height), layout="constrained")
        edge = find_edge(differences)
        for row, difference in enumerate(differences):
            plot_difference(axis, row, difference, edge=edge)
        axis.set_xlim(-edge, edge)
        axis.axvline(0, color="#4d4d4d", linewidth=1)
        labels = [label(each, usual=usual) for each in differences]
        axis.set_yticks(range(len(differences)), labels, fontsize=8)
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(-0.7, len(differences) - 0.3)
        tasks = ", ".join(task.removeprefix("glue/") for task in plan.stage(stage).task_names)
        axis.set_xlabel(
            f"{meaning}\nmean of {tasks}\nbar: chance, in {CASES}; blue: beyond it",
            fontsize=8,
        )
        save_figure(figure, output)


def effects_of(scores: Mapping[str, Sequence[float]], factorial: Factorial) -> list[Difference]:
    """Return the effects of a factorial experiment as differences with a factor and without it."""
    effects = estimate_effects(scores, factorial)
    if effects is None:
        return []
    return [
        Difference(factor, factorial.reference, points, effects.by_chance)
        for factor, points in effects.points.items()
    ]


def find_edge(differences: Sequence[Difference]) -> float:
    """Return how many points the picture shows to each side. Arms that failed to learn are far
    outside, and would leave the others no room.
    """
    chance = max(each.by_chance or 0.0 for each in differences)
    near = [abs(each.points) for each in differences]
    if chance:
        near = [points for points in near if points <= FAR * chance]
    return 1.1 * max(chance, *near, 0.1)


def plot_difference(axis: Any, row: int, difference: Difference, *, edge: float) -> None:
    if difference.by_chance is not None:
        axis.barh(
            row, 2 * difference.by_chance, left=-difference.by_chance, height=0.8, color=CHANCE
        )
    color = CLEAR if difference.is_clear else UNCLEAR
    if abs(difference.points) <= edge:
        axis.plot(difference.points, row, marker="o", markersize=5, linestyle="none", color=color)
        return
    side = copysign(1, difference.points)
    axis.annotate(
        f"{difference.points:+.1f}",
        (side * edge, row),
        (side * NUMBER_AT * edge, row),
        arrowprops={"arrowstyle": "->", "color": color},
        color=color,
        fontsize=8,
        ha="center",
        va="center",
    )


def label(difference: Difference, *, usual: str) -> str:
    """Return an arm, with its reference where that is not the usual one."""
    if difference.reference == usual:
        return difference.arm
    return f"{difference.arm} (against {difference.reference})"


if __name__ == "__main__":
    run_main(main)
