"""Tables of `benchmarks.pretrain_gpu`: speed, memory, scaling, start-up, profile and curves."""

from __future__ import annotations

from statistics import fmean

from benchmarks.harness import Result
from benchmarks.markdown import (
    at_commit,
    format_entry,
    format_gigabytes,
    format_thousands,
    machines,
    machines_with_commits,
    read_result,
    result_or_file,
    table_header,
    table_row,
)
from electra.cli.describe import describe_recipe
from electra.model.memory import CUDA_GRAPHS, SCORES
from electra.pretraining.recipe import load_recipe

SIDES = {
    "peer_eager": "transformers",
    "peer_compiled": "… compiled",
    "peer_reduce_overhead": "… compiled, reduce-overhead",
    "peer_gather_compiled": "… gathered first, compiled",
    "peer_gather_reduce_overhead": "… gathered first, reduce-overhead",
    "ours_plain": "ours, plain",
    "ours_fast": "ours",
    "ours_muon": "ours, Muon",
}
PEERS = [side for side in SIDES if side.startswith("peer")]
OTHER_RUN = " †"


def speed(result: Result | None = None) -> str:
    """Return tokens a second of the paper's networks on all sides."""
    return speed_of(compared_entries(result_or_file(result, "pretrain_gpu")))


def modern_speed(result: Result | None = None) -> str:
    """Return the speed of the ModernBERT family beside transformers' two ModernBERT models."""
    return speed_of(modern_entries(result_or_file(result, "pretrain_gpu")))


def speed_of(entries: Result) -> str:
    """Return the sides' tokens a second, their ratios, and the utilisation (MFU) of ours."""
    labels = shown_sides(entries)
    ceiling = fastest_product(entries)
    lines = table_header(
        f"tokens/s, {machines(entries.values())}",
        *labels.values(),
        "÷ eager",
        "÷ compiled",
        "÷ fastest transformers",
        mfu_label(ceiling),
    )
    for name, entry in entries.items():
        sides = {side: entry["sides"].get(side, {}) for side in SIDES}
        rates = [format_rate(sides[side]) for side in labels]
        compared = (sides["peer_eager"], sides["peer_compiled"], fastest_peer(entry))
        ratios = [format_ratio(sides["ours_fast"], side) for side in compared]
        lines.append(
            table_row(row_name(name, entry, entries), *rates, *ratios, mfu(entry, ceiling))
        )
    return "\n".join([*lines, *note_on_windows(entries), *note_on_runs(entries)])


def shown_sides(entries: Result) -> dict[str, str]:
    """Return the labels of the sides; Muon's only where it was measured."""
    has_muon = any("ours_muon" in entry["sides"] for entry in entries.values())
    return {side: label for side, label in SIDES.items() if has_muon or side != "ours_muon"}


def format_rate(side: Result) -> str:
    """Return the median of the windows, and their range where there are several."""
    rate = format_entry(side, "tokens_per_second", format_thousands)
    windows = side.get("windows", [])
    if len(windows) < 2:
        return rate
    return f"{rate} ({format_thousands(min(windows))} to {format_thousands(max(windows))})"


def fastest_peer(entry: Result) -> Result:
    """Return the fastest of transformers' sides that was measured."""
    rates = {side: entry["sides"].get(side, {}).get("tokens_per_second", 0.0) for side in PEERS}
    fastest = max(PEERS, key=lambda side: rates[side])
    found: Result = entry["sides"].get(fastest, {})
    return found


def count_windows(entry: Result) -> str:
    """Return the number of windows behind each median; a range where sides differ."""
    counts = sorted({len(side["windows"]) for side in entry["sides"].values() if "windows" in side})
    return " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))


def note_on_windows(entries: Result) -> list[str]:
    """Return lines on the number and the length of the windows of each row."""
    counts = [
        f"{name}, {windows} of {entry['window_steps']} steps"
        for name, entry in entries.items()
        if (windows := count_windows(entry))
    ]
    if not counts:
        return []
    note = "Medians of windows (lowest to highest), not counting the first window: "
    return ["", note + "; ".join(counts) + "."]


# ---- runs and their ceiling ----------------------------------------------------------------------


def newest_run(entries: Result) -> float | None:
    runs = [entry["run"] for entry in entries.values() if "run" in entry]
    return max(runs, default=None)


def row_name(name: str, entry: Result, entries: Result) -> str:
    """Return a setting with its commit, and a mark where it is not of the newest run."""
    mark = OTHER_RUN
    if "run" in entry and entry["run"] == newest_run(entries):
        mark = ""
    return at_commit(name, entry) + mark


def note_on_runs(entries: Result, *, has_mfu: bool = True) -> list[str]:
    """Return lines on the rows of other runs, if there are any."""
    newest = newest_run(entries)
    if all(entry.get("run", -1.0) == newest for entry in entries.values()):
        return []
    note = f"{OTHER_RUN.strip()} Measured at another time than what has no such mark."
    if has_mfu and fastest_product(entries) is not None:
        note += " MFU is relative to the fastest matrix product of all these runs."
    return ["", note]


def fastest_product(entries: Result) -> float | None:
    """Return the one speed of matrix products that a table's MFU is relative to."""
    speeds = []
    for entry in entries.values():
        measured = (entry, *entry.get("sides", {}).values())
        speeds += [values["matmul_flops"] for values in measured if "matmul_flops" in values]
    return max(speeds, default=None)


def mfu_label(ceiling: float | None) -> str:
    if ceiling is None:
        return "ours, MFU"
    return f"ours, MFU of {ceiling / 1e12:.0f} TFLOP/s"


def mfu(entry: Result, ceiling: float | None) -> str:
    """Return the operations of ours as a fraction of a matrix product's."""
    side = entry["sides"].get("ours_fast", {})
    if ceiling is None or "tokens_per_second" not in side:
        return format_entry(side, "", str)
    return f"{entry['flops_per_token'] * side['tokens_per_second'] / ceiling:.1%}"


# ---- memory --------------------------------------------------------------------------------------


def memory(result: Result | None = None) -> str:
    """Return the peak memory of all sides, beside what `electra describe` computes."""
    result = result_or_file(result, "pretrain_gpu")
    entries = {**compared_entries(result), **modern_entries(result)}
    labels = shown_sides(entries)
    lines = table_header(
        f"peak memory, GB: allocated (reserved), {machines(entries.values())}",
        *labels.values(),
        "`electra describe` predicts",
        "ours, waiting for data",
    )
    for name, entry in entries.items():
        sides = {side: entry["sides"].get(side, {}) for side in SIDES}
        peaks = [format_peaks(sides[side]) for side in labels]
        data_wait = format_entry(sides["ours_fast"], "data_wait", "{:.2%}".format)
        predicted = predicted_memory(entry)
        if load_recipe(entry["size"]).optimizer.name == "muon":
            predicted += f"; Muon: {predicted_memory(entry, optimizer='muon')}"
        lines.append(table_row(row_name(name, entry, entries), *peaks, predicted, data_wait))
    return "\n".join([*lines, *note_on_runs(entries, has_mfu=False)])


def format_peaks(side: Result) -> str:
    """Return the peaks of allocated and of reserved memory."""
    allocated = format_entry(side, "peak_bytes", format_gigabytes)
    if "peak_bytes" not in side:
        return allocated
    return f"{allocated} ({format_entry(side, 'peak_reserved_bytes', format_gigabytes)})"


def predicted_memory(entry: Result, *, optimizer: str = "adamw") -> str:
    """Return the peaks of allocated and of reserved memory of the kernels as `electra describe`
    computes them, for full rows.
    """
    recipe = load_recipe(
        entry["size"],
        flags=f"--data.length {entry['length']} --encoder.positions 512 --batch-size "
        f"{entry['rows']} --micro-batch-size {entry['rows']} --eval-rows {min(64, entry['rows'])} "
        f"--precision bf16 --optimizer.name {optimizer}".split(),
    )
    vocabulary = load_recipe("small").data.vocab_size  # all sizes were measured on the same rows
    description = describe_recipe(recipe, name="", vocabulary=vocabulary)
    terms = description.memory["bf16, kernels"]
    reserved = sum(terms.values())
    allocated = reserved - terms[CUDA_GRAPHS] - terms[SCORES]
    return f"{format_gigabytes(allocated)} ({format_gigabytes(reserved)})"


def scaling(result: Result | None = None) -> str:
    """Return the speed and memory of ours by batch, length and size."""
    entries = result_or_file(result, "pretrain_gpu").get("scaling", {})
    ceiling = fastest_product(entries)
    lines = table_header(
        f"ours, {machines(entries.values())}",
        "tokens/s",
        mfu_label(ceiling),
        "peak memory, GB: allocated (reserved)",
        "`electra describe` predicts",
    )
    for name, entry in entries.items():
        side = entry["sides"]["ours_fast"]
        lines.append(
            table_row(
                row_name(name, entry, entries),
                format_rate(side),
                mfu(entry, ceiling),
                format_peaks(side),
                predicted_memory(entry),
            )
        )
    return "\n".join([*lines, *note_on_windows(entries), *note_on_runs(entries)])


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
        *(row_name(name, entry, entries) for name, entry in entries.items()),
    )
    kinds: dict[str, None] = {}
    for entry in entries.values():
        kinds |= dict.fromkeys(kind for kind in entry["kinds_ms"] if kind not in ("other", "idle"))
    for kind in (*kinds, "other", "idle"):
        cells = [f"{entry['kinds_ms'].get(kind, 0.0):.2f}" for entry in entries.values()]
        lines.append(table_row(kind, *cells))
    totals = [f"{entry['wall_ms']:.2f}" for entry in entries.values()]
    before = [format_entry(entry, "steps_before", "{:,.0f}".format) for entry in entries.values()]
    lines += [table_row("all", *totals), table_row("steps before these, with captures", *before)]
    return "\n".join([*lines, *note_on_runs(entries)])


def curves(result: Result | None = None) -> str:
    """Return how far the losses of the plain and the fast path lie apart."""
    entry = result_or_file(result, "pretrain_gpu").get("curves")
    if entry is None:
        return "Loss curves of the plain and the fast path: not measured."
    plain, fast = (entry["losses"][path] for path in ("plain", "fast"))
    means = zip(
        map(fmean, zip(*plain, strict=True)), map(fmean, zip(*fast, strict=True)), strict=True
    )
    differences = [of_fast - of_plain for of_plain, of_fast in means]
    seeds, steps = len(plain), entry["every"] * len(differences)
    return (
        f"Plain path ({entry.get('plain', 'eager')}) and fast path, {entry['setting']}, {steps:,} "
        f"steps, {seeds} seeds each, {machines_with_commits([entry])}: the mean losses differ "
        f"most at step {entry['step']}, by {entry['largest_difference']:.3f} of "
        f"{entry['mean_loss']:.2f}; there the seeds of one path span {entry['seed_range']:.3f}. "
        f"The fast path has the higher mean at {sum(each > 0 for each in differences)} of "
        f"{len(differences)} points: {fmean(differences):+.3f} on average and "
        f"{differences[-1]:+.3f} at the last."
    )


def changed_steps() -> str:
    """Return tokens a second of steps before and after changes, and of changes not kept."""
    result = read_result("changed_steps_h200")
    steps: dict[str, dict[str, list[float]]] = result["steps"]
    lines = table_header(f"tokens/s, {machines_with_commits([result])}", *steps)
    for setting in steps["after"]:
        cells = [format_range(rates.get(setting)) for rates in steps.values()]
        lines.append(table_row(setting, *cells))
    return "\n".join(lines)


def format_range(rates: list[float] | None) -> str:
    """Return a median, and the lowest and the highest."""
    if rates is None:
        return "not measured"
    median, lowest, highest = map(format_thousands, rates)
    return f"{median} ({lowest} to {highest})"


def compared_entries(result: Result) -> Result:
    """Return the settings of the paper's family in which all sides were measured."""
    return {name: entry for name, entry in all_compared(result).items() if not is_modern(entry)}


def modern_entries(result: Result) -> Result:
    """Return the settings of the ModernBERT family in which all sides were measured."""
    return {name: entry for name, entry in all_compared(result).items() if is_modern(entry)}


def all_compared(result: Result) -> Result:
    entries: Result = {}
    for part in ("paper", "best", "base", "modern"):
        entries |= result.get(part, {})
    return entries


def is_modern(entry: Result) -> bool:
    return str(entry["size"]).startswith("modern")


def format_ratio(ours: Result, theirs: Result) -> str:
    if not ("tokens_per_second" in ours and "tokens_per_second" in theirs):
        return "–"
    return f"{ours['tokens_per_second'] / theirs['tokens_per_second']:.2f}"


TABLES = (speed, memory, modern_speed, scaling, startup, profile, curves)
