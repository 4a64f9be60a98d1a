"""Tables of `benchmarks.pretrain_gpu`: speed, memory, scaling, start-up, profile and curves."""

from __future__ import annotations

from benchmarks.markdown import (
    Result,
    at_commit,
    format_entry,
    gigabytes,
    hardware,
    machines,
    results_of,
    table_header,
    table_row,
    thousands,
)
from electra.cli.describe import describe_recipe
from electra.pretraining.recipe import load_recipe

SIDES = {
    "peer_eager": "transformers",
    "peer_compiled": "transformers, compiled",
    "ours_plain": "ours, plain",
    "ours_fast": "ours",
}


def speed(kept: Result | None = None) -> str:
    """Tokens a second of all sides, how much faster ours is, and its share of what matrix products
    reach alone.
    """
    entries = compared(results_of(kept, "pretrain_gpu"))
    lines = table_header(
        f"tokens/s, {machines(entries.values())}",
        *SIDES.values(),
        "÷ eager",
        "÷ compiled",
        "ours, MFU",
        "matrix products alone",
    )
    for name, entry in entries.items():
        sides = {side: entry["sides"].get(side, {}) for side in SIDES}
        rates = (format_entry(each, "tokens_per_second", thousands) for each in sides.values())
        times = (
            format_ratio(sides["ours_fast"], sides[side])
            for side in ("peer_eager", "peer_compiled")
        )
        ceiling = format_entry(entry, "matmul_flops", lambda rate: f"{rate / 1e12:.0f} TFLOP/s")
        lines.append(table_row(at_commit(name, entry), *rates, *times, mfu(entry), ceiling))
    counts = "; ".join(
        f"{name}, {windows(entry)} of {entry['window_steps']} steps"
        for name, entry in entries.items()
        if windows(entry)
    )
    return "\n".join(
        [
            *lines,
            *(["", f"Medians of windows, not counting the first: {counts}."] if counts else []),
        ]
    )


def windows(entry: Result) -> str:
    """How many are behind a median; a range where sides differ."""
    counts = sorted({len(side["windows"]) for side in entry["sides"].values() if "windows" in side})
    return " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))


def memory(kept: Result | None = None) -> str:
    entries = compared(results_of(kept, "pretrain_gpu"))
    lines = table_header(
        f"peak memory, GB, {machines(entries.values())}",
        *SIDES.values(),
        "`electra describe` foretells",
        "ours waits for data",
    )
    for name, entry in entries.items():
        sides = {side: entry["sides"].get(side, {}) for side in SIDES}
        peaks = (format_entry(each, "peak_bytes", gigabytes) for each in sides.values())
        lines.append(
            table_row(
                at_commit(name, entry),
                *peaks,
                foretold(entry),
                format_entry(sides["ours_fast"], "data_wait", "{:.2%}".format),
            )
        )
    return "\n".join(lines)


def foretold(entry: Result) -> str:
    """The peak of our kernels in closed form, as `electra describe` gives it, for rows that are
    full.
    """
    recipe = load_recipe(
        entry["size"],
        flags=f"--data.length {entry['length']} --encoder.positions 512 --batch-size "
        f"{entry['rows']} --micro-batch-size {entry['rows']} --precision bf16".split(),
    )
    words = load_recipe("small").data.vocab_size  # all sizes were measured on the same rows
    return gigabytes(
        sum(describe_recipe(recipe, name="", vocabulary=words).memory["bf16, kernels"].values())
    )


def scaling(kept: Result | None = None) -> str:
    entries = results_of(kept, "pretrain_gpu").get("scaling", {})
    lines = table_header(
        f"ours, {machines(entries.values())}",
        "tokens/s",
        "MFU",
        "peak memory, GB",
        "`electra describe` foretells",
    )
    for name, entry in entries.items():
        side = entry["sides"]["ours_fast"]
        lines.append(
            table_row(
                at_commit(name, entry),
                format_entry(side, "tokens_per_second", thousands),
                mfu(entry),
                format_entry(side, "peak_bytes", gigabytes),
                foretold(entry),
            )
        )
    return "\n".join(lines)


def startup(kept: Result | None = None) -> str:
    found = results_of(kept, "pretrain_gpu").get("startup", {})
    lines = table_header(
        f"seconds from process start to the first step, {hardware([found])}",
        "nothing compiled yet",
        "again",
    )
    seconds = found.get("seconds", {})
    return "\n".join(
        [
            *lines,
            table_row(
                found.get("setting", "–"),
                *(format_entry(seconds, name, "{:.1f}".format) for name in ("cold", "warm")),
            ),
        ]
    )


def profile(kept: Result | None = None) -> str:
    """Milliseconds of a step by kind of kernel; a column for each batch."""
    found = results_of(kept, "pretrain_gpu").get("profile", {})
    if not found:
        return "Where the milliseconds of a step go: not measured."
    lines = table_header(
        f"milliseconds of a step, ours, {machines(found.values())}",
        *(at_commit(name, each) for name, each in found.items()),
    )
    kinds = dict.fromkeys(
        kind
        for each in found.values()
        for kind in each["kinds_ms"]
        if kind not in ("other", "idle")
    )
    for kind in (*kinds, "other", "idle"):
        lines.append(
            table_row(kind, *(f"{each['kinds_ms'].get(kind, 0.0):.2f}" for each in found.values()))
        )
    return "\n".join(
        [*lines, table_row("all", *(f"{each['wall_ms']:.2f}" for each in found.values()))]
    )


def curves(kept: Result | None = None) -> str:
    found = results_of(kept, "pretrain_gpu").get("curves")
    if found is None:
        return "Loss curves of the plain and the fast path: not measured."
    steps = found["every"] * len(found["losses"]["plain"][0])
    return (
        f"Plain and fast path, {found['setting']}, {steps} steps, {len(found['losses']['plain'])} "
        "seeds each, "
        f"{hardware([found])}: the mean losses differ most at step {found['step']}, by "
        f"{found['largest_difference']:.3f} of {found['mean_loss']:.2f}; there the seeds of one "
        "path span "
        f"{found['seed_range']:.3f}."
    )


def compared(kept: Result) -> Result:
    """The settings in which all sides were measured, of all parts."""
    return {
        name: entry
        for part in ("paper", "best", "base")
        for name, entry in kept.get(part, {}).items()
    }


def mfu(entry: Result) -> str:
    """Against the matrix product measured in the same run."""
    side = entry["sides"].get("ours_fast", {})
    if "matmul_flops" not in entry or "tokens_per_second" not in side:
        return format_entry(side, "", str)
    return f"{entry['flops_per_token'] * side['tokens_per_second'] / entry['matmul_flops']:.1%}"


def format_ratio(ours: Result, theirs: Result) -> str:
    if not ("tokens_per_second" in ours and "tokens_per_second" in theirs):
        return "–"
    return f"{ours['tokens_per_second'] / theirs['tokens_per_second']:.2f}"


def ratio(entry: Result, side: str) -> str:
    return format_ratio(entry["sides"]["ours_fast"], entry["sides"][side])


TABLES = (speed, memory, scaling, startup, profile, curves)
