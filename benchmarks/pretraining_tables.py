"""Tables of `benchmarks.pretrain_gpu`: speed, memory, scaling, start-up, profile and curves."""

from __future__ import annotations

from benchmarks.harness import Result
from benchmarks.markdown import (
    at_commit,
    format_entry,
    format_gigabytes,
    format_thousands,
    machines,
    machines_with_commits,
    result_or_file,
    table_header,
    table_row,
)
from electra.cli.describe import describe_recipe
from electra.pretraining.recipe import load_recipe

SIDES = {
    "peer_eager": "transformers",
    "peer_compiled": "transformers, compiled",
    "ours_plain": "ours, plain",
    "ours_fast": "ours",
}
MODERN_SIDES = {
    "peer_eager": "transformers",
    "peer_compiled": "transformers, compiled",
    "peer_reduce_overhead": "… with mode reduce-overhead",
    "ours_plain": "ours, plain",
    "ours_fast": "ours",
}


def speed(result: Result | None = None) -> str:
    """Return tokens a second of all sides, their ratios, and the utilisation (MFU) of ours."""
    entries = compared_entries(result_or_file(result, "pretrain_gpu"))
    lines = table_header(
        f"tokens/s, {machines(entries.values())}",
        *SIDES.values(),
        "÷ eager",
        "÷ compiled",
        "ours, MFU",
        "matrix product",
    )
    window_counts = []
    for name, entry in entries.items():
        sides = {side: entry["sides"].get(side, {}) for side in SIDES}
        rates = [
            format_entry(side, "tokens_per_second", format_thousands) for side in sides.values()
        ]
        ratios = [
            format_ratio(sides["ours_fast"], sides[side])
            for side in ("peer_eager", "peer_compiled")
        ]
        ceiling = format_entry(entry, "matmul_flops", lambda rate: f"{rate / 1e12:.0f} TFLOP/s")
        lines.append(table_row(at_commit(name, entry), *rates, *ratios, mfu(entry), ceiling))
        if windows := count_windows(entry):
            window_counts.append(f"{name}, {windows} of {entry['window_steps']} steps")
    if window_counts:
        counts = "; ".join(window_counts)
        lines += ["", f"Medians of windows, not counting the first: {counts}."]
    return "\n".join(lines)


def count_windows(entry: Result) -> str:
    """Return the number of windows behind each median; a range where sides differ."""
    counts = sorted({len(side["windows"]) for side in entry["sides"].values() if "windows" in side})
    return " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))


def memory(result: Result | None = None) -> str:
    """Return the peak memory of all sides, beside what `electra describe` computes."""
    entries = compared_entries(result_or_file(result, "pretrain_gpu"))
    lines = table_header(
        f"peak memory, GB, {machines(entries.values())}",
        *SIDES.values(),
        "`electra describe` predicts",
        "ours, waiting for data",
    )
    for name, entry in entries.items():
        sides = {side: entry["sides"].get(side, {}) for side in SIDES}
        peaks = [format_entry(side, "peak_bytes", format_gigabytes) for side in sides.values()]
        data_wait = format_entry(sides["ours_fast"], "data_wait", "{:.2%}".format)
        lines.append(table_row(at_commit(name, entry), *peaks, predicted_memory(entry), data_wait))
    return "\n".join(lines)


def predicted_memory(entry: Result) -> str:
    """Return the peak memory of the kernels as `electra describe` computes it, for full rows."""
    recipe = load_recipe(
        entry["size"],
        flags=f"--data.length {entry['length']} --encoder.positions 512 --batch-size "
        f"{entry['rows']} --micro-batch-size {entry['rows']} --precision bf16".split(),
    )
    vocabulary = load_recipe("small").data.vocab_size  # all sizes were measured on the same rows
    description = describe_recipe(recipe, name="", vocabulary=vocabulary)
    return format_gigabytes(sum(description.memory["bf16, kernels"].values()))


def scaling(result: Result | None = None) -> str:
    """Return the speed and memory of ours by batch, length and size."""
    entries = result_or_file(result, "pretrain_gpu").get("scaling", {})
    lines = table_header(
        f"ours, {machines(entries.values())}",
        "tokens/s",
        "MFU",
        "peak memory, GB",
        "`electra describe` predicts",
    )
    for name, entry in entries.items():
        side = entry["sides"]["ours_fast"]
        lines.append(
            table_row(
                at_commit(name, entry),
                format_entry(side, "tokens_per_second", format_thousands),
                mfu(entry),
                format_entry(side, "peak_bytes", format_gigabytes),
                predicted_memory(entry),
            )
        )
    return "\n".join(lines)


def startup(result: Result | None = None) -> str:
    """Return the seconds until the first step, with an empty compilation cache and a full one."""
    entry = result_or_file(result, "pretrain_gpu").get("startup", {})
    lines = table_header(
        f"seconds from process start to the first step, {machines_with_commits([entry])}",
        "empty compilation cache",
        "full cache",
    )
    seconds = entry.get("seconds", {})
    cells = [format_entry(seconds, name, "{:.1f}".format) for name in ("cold", "warm")]
    return "\n".join([*lines, table_row(entry.get("setting", "–"), *cells)])


def profile(result: Result | None = None) -> str:
    """Return the milliseconds of a step by kind of kernel, a column for each batch."""
    entries = result_or_file(result, "pretrain_gpu").get("profile", {})
    if not entries:
        return "Where the milliseconds of a step go: not measured."
    lines = table_header(
        f"milliseconds of a step, ours, {machines(entries.values())}",
        *(at_commit(name, entry) for name, entry in entries.items()),
    )
    kinds: dict[str, None] = {}
    for entry in entries.values():
        kinds |= dict.fromkeys(kind for kind in entry["kinds_ms"] if kind not in ("other", "idle"))
    for kind in (*kinds, "other", "idle"):
        cells = [f"{entry['kinds_ms'].get(kind, 0.0):.2f}" for entry in entries.values()]
        lines.append(table_row(kind, *cells))
    totals = [f"{entry['wall_ms']:.2f}" for entry in entries.values()]
    return "\n".join([*lines, table_row("all", *totals)])


def curves(result: Result | None = None) -> str:
    """Return how far the losses of the plain and the fast path lie apart."""
    entry = result_or_file(result, "pretrain_gpu").get("curves")
    if entry is None:
        return "Loss curves of the plain and the fast path: not measured."
    steps = entry["every"] * len(entry["losses"]["plain"][0])
    return (
        f"Plain and fast path, {entry['setting']}, {steps} steps, {len(entry['losses']['plain'])} "
        f"seeds each, {machines_with_commits([entry])}: the mean losses differ most at step "
        f"{entry['step']}, by {entry['largest_difference']:.3f} of {entry['mean_loss']:.2f}; there "
        f"the seeds of one path span {entry['seed_range']:.3f}."
    )


def modern_speed(result: Result | None = None) -> str:
    """Return the speed of the ModernBERT family beside transformers' two ModernBERT models."""
    entries = result_or_file(result, "pretrain_gpu").get("modern", {})
    lines = table_header(
        f"tokens/s, {machines(entries.values())}",
        *MODERN_SIDES.values(),
        "÷ compiled",
        "÷ reduce-overhead",
        "ours, MFU",
    )
    for name, entry in entries.items():
        sides = [entry["sides"].get(side, {}) for side in MODERN_SIDES]
        rates = [format_entry(side, "tokens_per_second", format_thousands) for side in sides]
        _, compiled, reduced, _, ours = sides
        ratios = [format_ratio(ours, side) for side in (compiled, reduced)]
        lines.append(table_row(at_commit(name, entry), *rates, *ratios, mfu(entry)))
    return "\n".join(lines)


def compared_entries(result: Result) -> Result:
    """Return the settings in which all sides were measured, of all parts."""
    entries: Result = {}
    for part in ("paper", "best", "base"):
        entries |= result.get(part, {})
    return entries


def mfu(entry: Result) -> str:
    """Return the operations of ours as a fraction of a matrix product's in the same run."""
    side = entry["sides"].get("ours_fast", {})
    if "matmul_flops" not in entry or "tokens_per_second" not in side:
        return format_entry(side, "", str)
    ceiling = side.get("matmul_flops", entry["matmul_flops"])  # of its own run, where it had one
    return f"{entry['flops_per_token'] * side['tokens_per_second'] / ceiling:.1%}"


def format_ratio(ours: Result, theirs: Result) -> str:
    if not ("tokens_per_second" in ours and "tokens_per_second" in theirs):
        return "–"
    return f"{ours['tokens_per_second'] / theirs['tokens_per_second']:.2f}"


TABLES = (speed, memory, modern_speed, scaling, startup, profile, curves)
