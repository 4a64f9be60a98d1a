"""How figures look: colours, dashes, markers, legends and labels.

Figures are read on white, on dark and in grey print: they have no background, axes in a middle
grey, and what has a colour also has a dash and a marker of its own. The same findings give the same
bytes, whatever the user's settings of matplotlib.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from electra.escape import printable
from electra.experiments.findings import Finding, Findings
from electra.reports.blocks import INK, Picture

# Told apart by the colour-blind (after Okabe and Ito), none too light for white nor too dark for
# black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c0609a", "#a87900", "#3d9be0", "#7a5cc0", "#8a8a8a")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)))
# 8 colours, 5 dashes and 7 markers have no common divisor, so that 280 lines look different.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE = {
    "svg.hashsalt": "electra",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.color": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    "axes.formatter.use_mathtext": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}
WIDTH = 8.6  # inches
BASELINE = {"color": INK, "linestyle": (0, (1, 3)), "linewidth": 1.0}
COSTS: dict[str, tuple[str, Callable[[Finding], float]]] = {
    "flops": ("FLOPs, standard", lambda finding: finding.flops),
    "minutes": ("minutes of training", lambda finding: finding.minutes),
}
Looks = Mapping[str, dict[str, Any]]  # by arm


def arm_looks(findings: Findings) -> Looks:
    """Return the look of every arm that is run."""
    return {arm.name: look(index) for index, arm in enumerate(findings.trial.runnable_arms())}


def look(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def draw_picture(name: str, title: str, draw: Callable[[Any], None], origin: str) -> Picture:
    """Draw one figure as SVG, with its origin in it: it may be shown without its page."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with style.context(["default", STYLE]):
        # In some fonts words are wider than in the one that is measured here.
        layout = ConstrainedLayoutEngine(w_pad=0.1)
        figure = Figure(figsize=(WIDTH, 3.6), layout=layout)
        draw(figure)
        figure.suptitle(origin, fontsize="small")
        svg = io.StringIO()
        no_date = {"Date": None, "Creator": None}
        with warnings.catch_warnings():
            # Text stays text, and a reader has other fonts than the one that is measured with.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(svg, format="svg", transparent=True, metadata=no_date)
    # XML, too, cannot hold control characters.
    return Picture(name, title, printable(svg.getvalue()))


def wrap(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))


def add_legend(figure: Any, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Add a legend below the axes; the figure grows by as many rows as it needs."""
    from matplotlib.lines import Line2D

    labels = [wrap(label, 34) for label, _ in entries]
    longest, row_height = max(map(len, labels), default=0), 0.22
    columns = max(1, min(len(entries), 3))
    if longest <= 22:
        columns = max(1, min(len(entries), 4))
    if any("\n" in label for label in labels):
        row_height *= 2
    rows = -(-len(entries) // columns)
    figure.set_size_inches(WIDTH, 3.3 + row_height * rows)
    figure.legend(
        handles=[Line2D([], [], **looks) for _, looks in entries],
        labels=labels,
        ncols=columns,
        loc="outside lower center",
        handlelength=3.2,
    )
