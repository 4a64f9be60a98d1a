"""Draw the held-out curves of `benchmarks.encoders`, a line for each seed.

    python -m benchmarks.encoder_plots [--result benchmarks/results/encoders.json]
                                       [--output docs/images/encoders.svg]

The same results give the same bytes. Needs matplotlib: pip install -e '.[benchmarks]'
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from benchmarks.encoder_tables import runs_by_arm
from benchmarks.harness import Result, build_parser, run_main
from benchmarks.plots import RC_PARAMS, import_pyplot, open_result, save_figure

COLORS = ("#1b5e9b", "#b3541e", "#2e7d32", "#4d4d4d", "#7b1fa2", "#00838f", "#9e9d24", "#ad1457")
LINE_STYLES = ("-", "--")


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--result", type=Path, default=Path("benchmarks/results/encoders.json"))
    parser.add_argument("--output", type=Path, default=Path("docs/images/encoders.svg"))
    options = parser.parse_args(arguments)
    draw(open_result(options.result, "runs", "arm", "held_out", made_by="encoders"), options.output)
    print(options.output)


def draw(result: Result, output: Path) -> None:
    """Draw the accuracy of the generators and the AUC of the discriminators by tokens read."""
    pyplot = import_pyplot()
    arms = runs_by_arm(result)
    with pyplot.rc_context(RC_PARAMS):
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        styles = itertools.product(LINE_STYLES, COLORS)
        for (line, color), (arm, runs) in zip(styles, arms.items(), strict=False):
            for number, run in enumerate(runs):
                label = f"{arm} ({len(runs)})" if number == 0 else None
                plot_run(axes, run, color=color, linestyle=line, label=label)
        baseline = next(iter(result["runs"].values()))["held_out"][-1]["baseline_mlm_accuracy"]
        axes[0].axhline(100 * baseline, color="#999999", linestyle=":", linewidth=1)
        axes[0].set_ylabel("masked LM, accuracy, %")
        axes[1].axhline(0.5, color="#999999", linestyle=":", linewidth=1)
        axes[1].set_ylabel("replaced token detection, AUC")
        for axis in axes:
            axis.set_xlabel("million tokens read")
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=7)
        save_figure(figure, output)


def plot_run(axes: Any, run: Result, **style: Any) -> None:
    last = run["held_out"][-1]["step"]
    tokens = [run["tokens_seen"] * scores["step"] / last / 1e6 for scores in run["held_out"]]
    accuracies = [100 * scores["mlm_accuracy"] for scores in run["held_out"]]
    axes[0].plot(tokens, accuracies, linewidth=1.2, marker=".", **style)
    axes[1].plot(
        tokens,
        [scores["auc"] for scores in run["held_out"]],
        **{**style, "label": None},
        linewidth=1.2,
        marker=".",
    )


if __name__ == "__main__":
    run_main(main)
