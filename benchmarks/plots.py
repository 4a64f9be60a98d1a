"""Draw tokens a second and peak memory of pre-training on a GPU by batch, length and size.

    python -m benchmarks.plots [--result benchmarks/results/pretrain_gpu.json]
                               [--output docs/images/speed.svg]

The same results give the same bytes. Needs matplotlib: pip install -e '.[benchmarks]'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import Result, build_parser, run_main
from benchmarks.markdown import machines_with_commits
from benchmarks.pretraining_tables import compared_entries
from electra.config import UserError
from electra.files import read_json_object

# Dark enough for print and for a white card on a dark page; distinct without colour, too.
STYLES: dict[str, dict[str, Any]] = {
    "ours_fast": {"color": "#1b5e9b", "marker": "o"},
    "ours_plain": {"color": "#7a7a7a", "marker": "^"},
    "peer_compiled": {"color": "#b3541e", "marker": "s"},
    "peer_gather_reduce_overhead": {"color": "#7b3294", "marker": "D"},
    "peer_eager": {"color": "#4d4d4d", "marker": "x"},
}
LABELS = {
    "peer_eager": "transformers",
    "peer_compiled": "… compiled",
    "peer_gather_reduce_overhead": "… gathered first, CUDA graphs",
    "ours_plain": "ours, plain",
    "ours_fast": "ours",
}
RC_PARAMS = {
    "svg.hashsalt": "electra",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
}
MEASURES = {"tokens_per_second": ("million tokens/s", 1e6), "peak_bytes": ("peak memory, GB", 1e9)}


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--result", type=Path, default=Path("benchmarks/results/pretrain_gpu.json"))
    parser.add_argument("--output", type=Path, default=Path("docs/images/speed.svg"))
    options = parser.parse_args(arguments)
    draw(open_result(options.result, "scaling", "sides", made_by="pretrain_gpu"), options.output)
    print(options.output)


def open_result(path: Path, key: str, *fields: str, made_by: str) -> Result:
    """Return a result file; raise UserError with the benchmark that makes it if it is missing, or
    if it is another benchmark's, without entries of these fields under this key.
    """
    remedy = f"`python -m benchmarks.{made_by} --output {path}` makes it"
    if not path.is_file():
        raise UserError(f"--result {path}: no such file; {remedy}")
    result = read_json_object(path)
    entries = result.get(key)
    if not isinstance(entries, dict) or any(set(fields) - set(each) for each in entries.values()):
        named = ", ".join(fields)
        raise UserError(f"--result {path}: it has no {key!r} with {named}; {remedy}")
    return result


def draw(result: Result, output: Path) -> None:
    """Draw a result of `benchmarks.pretrain_gpu` as SVG."""
    pyplot = import_pyplot()
    entries, others = list(result.get("scaling", {}).values()), compared_entries(result)
    with pyplot.rc_context(RC_PARAMS):
        figure, axes = pyplot.subplots(2, 3, figsize=(9, 4.8), layout="constrained")
        for column, panel in enumerate((by_batch, by_length, by_size)):
            for line, measure in enumerate(MEASURES):
                panel(axes[line][column], entries, measure, others)
            axes[1][column].set_title("")
        for line, (label, _) in enumerate(MEASURES.values()):
            axes[line][0].set_ylabel(label)
        figure.legend(
            *axes[0][0].get_legend_handles_labels(),
            loc="outside upper center",
            ncols=len(LABELS),
            frameon=False,
        )
        figure.supxlabel(
            f"{caption(result)}, bf16; whole training steps on packed text",
            fontsize=8,
        )
        save_figure(figure, output)


def caption(result: Result) -> str:
    """Return the machines and the commits of what is drawn."""
    return machines_with_commits(
        [*result.get("scaling", {}).values(), *compared_entries(result).values()]
    )


def save_figure(figure: Any, output: Path) -> None:
    """Write a figure without the date, so that the same results give the same bytes."""
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, metadata={"Date": None})
    import_pyplot().close(figure)


def import_pyplot() -> Any:
    """Return matplotlib's pyplot for SVG; raise UserError where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("matplotlib is not installed: pip install -e '.[benchmarks]'") from None
    matplotlib.use("svg")
    from matplotlib import pyplot

    return pyplot


# ---- panels --------------------------------------------------------------------------------------


def by_batch(axis: Any, entries: list[Result], measure: str, others: dict[str, Result]) -> None:
    """Draw ours and the other sides by batch."""
    for side, label in LABELS.items():
        measured = list(others.values())
        if side == "ours_fast":
            measured = entries
        small = [entry for entry in measured if (entry["size"], entry["length"]) == ("small", 128)]
        plot_curve(axis, small, measure, side, lambda entry: entry["rows"], label=label)
    axis.set_ylim(bottom=0)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set_title("small, rows of 128 tokens", fontsize=9)
    axis.set_xlabel("rows in a step")


def by_length(axis: Any, entries: list[Result], measure: str, others: dict[str, Result]) -> None:
    """Draw ours by the length of rows."""
    selected = [
        entry
        for entry in entries
        if entry["size"] == "small" and entry["rows"] * entry["length"] == 16_384
    ]
    plot_curve(axis, selected, measure, "ours_fast", lambda entry: entry["length"])
    axis.set_title("small, 16,384 tokens in a step", fontsize=9)
    axis.set_xticks(sorted(entry["length"] for entry in selected))
    axis.set_ylim(0, 1.15 * axis.get_ylim()[1])
    axis.set_xlabel("tokens in a row")


def by_size(axis: Any, entries: list[Result], measure: str, others: dict[str, Result]) -> None:
    """Draw ours by the size of the network, and the other sides where they were measured."""
    values = by_recipe(entries, measure, "ours_fast")
    axis.set_xticks(range(len(values)), [size.replace("-", "-\n") for size in values])
    places = {size: place for place, size in enumerate(values)}
    for side in LABELS:
        measured = by_recipe(entries if side == "ours_fast" else others.values(), measure, side)
        shown = {places[size]: value for size, value in measured.items() if size in places}
        axis.plot(list(shown), list(shown.values()), linestyle="none", markersize=5, **STYLES[side])
    side_of_number = {"tokens_per_second": 1, "peak_bytes": -1}[measure]  # where no other side is
    for size, value in values.items():
        axis.annotate(
            f"{value:.2g}",
            (places[size], value),
            xytext=(0, side_of_number * 6),
            textcoords="offset points",
            ha="center",
            va="baseline" if side_of_number > 0 else "top",
            fontsize=8,
        )
    axis.set_yscale("log")  # from tiny to large is a factor of a hundred
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    axis.margins(0.2)
    axis.set_title("64 rows of 512 tokens", fontsize=9)
    axis.set_xlabel("recipe")


def by_recipe(entries: Iterable[Result], measure: str, side: str) -> dict[str, float]:
    """Return what a side has in 64 rows of 512 tokens, by recipe."""
    return {
        entry["size"]: value
        for entry in entries
        if (entry["rows"], entry["length"]) == (64, 512)
        and (value := scaled(entry, measure, side)) is not None
    }


def plot_curve(
    axis: Any,
    entries: list[Result],
    measure: str,
    side: str,
    x: Callable[[Result], int],
    *,
    label: str | None = None,
) -> None:
    points = sorted(
        (x(entry), value)
        for entry in entries
        if (value := scaled(entry, measure, side)) is not None
    )
    if points:
        axis.plot(
            *zip(*points, strict=True), label=label, linewidth=1.5, markersize=4, **STYLES[side]
        )


def scaled(entry: Result, measure: str, side: str) -> float | None:
    """Return a value in the unit of the axis; None where it was not measured."""
    value = entry["sides"].get(side, {}).get(measure)
    if value is None:
        return None
    return float(value) / MEASURES[measure][1]


if __name__ == "__main__":
    run_main(main)
