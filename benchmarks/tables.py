"""The documents' tables, from recipes and from kept results: nobody types a number that a file can
tell.

python -m benchmarks.tables        # writes them; tests/test_story.py checks that they are current
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from electra.cli.describe import describe_recipe
from electra.pretraining.recipe import load_recipe

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
SHOWN = ("tiny", "small", "base", "large", "bert-small", "bert-base", "bert-large")


def recipes() -> str:
    lines = [
        "| recipe | encoder | generator | parameters | rows × tokens | steps | FLOPs, standard | "
        "official |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in SHOWN:
        recipe = load_recipe(name)
        made = describe_recipe(recipe, name=name)
        shapes = [f"{shape.layers} × {shape.width}" for shape in made.networks.values()]
        costs = (f"{cost.training * made.tokens:.2e}" for cost in (made.standard, made.official))
        lines.append(
            f"| `{name}` | {shapes[0]} | {shapes[1] if len(shapes) > 1 else '–'} "
            f"| {made.parameters.encoder / 1e6:.1f}M | {recipe.training.batch_size} × "
            f"{recipe.data.length} "
            f"| {recipe.training.max_steps:,} | {' | '.join(costs)} |"
        )
    return "\n".join(lines)


def measured() -> str:
    cpu, tuning, sharding, memory, usage, first = (
        result(name)
        for name in ("pretrain_cpu", "finetune_cpu", "shard", "memory", "help", "quickstart")
    )
    slowest = max(median(times) for times in usage["seconds"].values())
    peaks = ", ".join(
        f"{stage} of {int(size) / 1000:g} GB {found[stage]['peak_megabytes']} MB"
        for size, found in memory.items()
        if size != "made"
        for stage in ("vocab", "shard")
    )
    scores, tuned = first["scores"], first["finetuned"]
    gpu, proven = result("pretrain_gpu"), result("small_gpu")
    paper = gpu["paper"]["small 128 × 128"]
    mean = sum(each["median"] for each in proven["glue"]["tasks"].values()) / len(
        proven["glue"]["tasks"]
    )
    rows = [
        (
            f"a training step of `small`, 128 × 128, on one {paper['made']['hardware']}, against "
            "transformers' two "
            "ELECTRA models: eager, compiled",
            f"{ratio(paper, 'peer_eager')} and {ratio(paper, 'peer_compiled')} times as fast "
            f"({thousands(paper['sides']['ours_fast']['tokens_per_second'])} tokens/s)",
        ),
        (
            f"`small` with the paper's recipe for {proven['pretraining']['steps']:,} steps on it, "
            "minutes from process "
            "start to exported models; then six GLUE tasks, mean of medians, dev",
            f"{proven['pretraining']['minutes_in_all']:.1f}; {100 * mean:.1f} "
            "([details](docs/speed.md))",
        ),
        (
            "a training step of `small`, 16 × 128, on a CPU, against transformers' two ELECTRA "
            "models",
            f"{cpu['ratio']:.2f} times as fast ({cpu['threads']} threads, "
            f"{cpu['made']['processor']}, median of "
            f"{len(cpu['seconds']['ours'])})",
        ),
        (
            "fine-tuning `small` on texts of 5 to 120 words, batches of 32, on a CPU, against "
            "transformers' `Trainer`",
            against_trainer(tuning, "train"),
        ),
        ("… and asking it", against_trainer(tuning, "ask")),
        (
            "text to shards, against the bare tokenizer (`encode_batch`)",
            f"{sharding['ratio']:.2f} times as fast (median of {len(sharding['shard'])})",
        ),
        ("peak memory", peaks),
        ("`--help`, any command", f"{slowest:.2f} s"),
        (
            f"`make quickstart` after the install, {first['made']['threads']} threads",
            f"{first['minutes']:.1f} minutes",
        ),
        (
            "… its generator, held out: accuracy (always the commonest word)",
            f"{scores['mlm_accuracy']:.1%} ({scores['baseline_mlm_accuracy']:.1%})",
        ),
        (
            "… its discriminator, held out: AUC (coin), average precision (coin)",
            f"{scores['auc']:.3f} (0.500), {scores['average_precision']:.3f} "
            f"({scores['replaced_fraction']:.3f})",
        ),
        (
            "… fine-tuned to name the library of a paragraph, dev accuracy (from random weights; "
            "always the same)",
            f"{tuned['pretrained']['median']:.1%} ({tuned['random']['median']:.1%}; "
            f"{tuned['random']['trivial']:.1%}), "
            f"median of {len(tuned['random']['runs'])} seeds",
        ),
    ]
    return "\n".join(
        ["| | ours |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]
    )


def sanity() -> str:
    """Medians, with the lowest and highest seed."""
    kept = result("sanity")
    tasks = list(next(iter(kept["arms"].values())))
    examples = (
        f", at most {kept['max_train_examples']:,} training examples"
        if kept["max_train_examples"]
        else ""
    )
    lines = [
        f"| {kept['seeds']} seeds{examples} | "
        + " | ".join(
            f"{task} ({arm['metric']})" for task, arm in next(iter(kept["arms"].values())).items()
        )
        + " |",
        "|---|" + "---|" * len(tasks),
    ]
    for arm, found in kept["arms"].items():
        cells = (
            f"{100 * each['median']:.1f} ({100 * min(each['scores']):.1f} to "
            f"{100 * max(each['scores']):.1f})"
            for each in found.values()
        )
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    baseline = (
        f"{100 * found['trivial']:.1f}" for found in next(iter(kept["arms"].values())).values()
    )
    return "\n".join([*lines, f"| an answer that ignores the text | {' | '.join(baseline)} |"])


def against_trainer(tuning: dict[str, Any], work: str) -> str:
    plain, grouped = (
        median(tuning["ratios"][work][name]) for name in ("trainer", "trainer_grouped")
    )
    return (
        f"{plain:.2f} times as fast, {grouped:.2f} where it groups by length ({tuning['threads']} "
        "threads, "
        f"{tuning['made']['processor']}, median of {len(tuning['ratios'][work]['trainer'])})"
    )


# ---- on a GPU ------------------------------------------------------------------------------------

SIDES = {
    "peer_eager": "transformers",
    "peer_compiled": "transformers, compiled",
    "ours_plain": "ours, plain",
    "ours_fast": "ours",
}
NO_MACHINE = "no machine yet"
Kept = dict[str, Any]


def speed(kept: Kept | None = None) -> str:
    """Tokens a second of all sides, how much faster ours is, and its share of what matrix products
    reach alone.
    """
    entries = compared(the(kept, "pretrain_gpu"))
    lines = header(
        f"tokens/s, {machines(entries.values())}",
        *SIDES.values(),
        "÷ eager",
        "÷ compiled",
        "ours, MFU",
        "matrix products alone",
    )
    for name, entry in entries.items():
        sides = {side: entry["sides"].get(side, {}) for side in SIDES}
        rates = (shown(each, "tokens_per_second", thousands) for each in sides.values())
        times = (
            shown_ratio(sides["ours_fast"], sides[side]) for side in ("peer_eager", "peer_compiled")
        )
        ceiling = shown(entry, "matmul_flops", lambda rate: f"{rate / 1e12:.0f} TFLOP/s")
        lines.append(row(at_commit(name, entry), *rates, *times, mfu(entry), ceiling))
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


def windows(entry: Kept) -> str:
    """How many are behind a median; a range where sides differ."""
    counts = sorted({len(side["windows"]) for side in entry["sides"].values() if "windows" in side})
    return " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))


def memory(kept: Kept | None = None) -> str:
    entries = compared(the(kept, "pretrain_gpu"))
    lines = header(
        f"peak memory, GB, {machines(entries.values())}",
        *SIDES.values(),
        "`electra describe` foretells",
        "ours waits for data",
    )
    for name, entry in entries.items():
        sides = {side: entry["sides"].get(side, {}) for side in SIDES}
        peaks = (shown(each, "peak_bytes", gigabytes) for each in sides.values())
        lines.append(
            row(
                at_commit(name, entry),
                *peaks,
                foretold(entry),
                shown(sides["ours_fast"], "data_wait", "{:.2%}".format),
            )
        )
    return "\n".join(lines)


def foretold(entry: Kept) -> str:
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


def scaling(kept: Kept | None = None) -> str:
    entries = the(kept, "pretrain_gpu").get("scaling", {})
    lines = header(
        f"ours, {machines(entries.values())}",
        "tokens/s",
        "MFU",
        "peak memory, GB",
        "`electra describe` foretells",
    )
    for name, entry in entries.items():
        side = entry["sides"]["ours_fast"]
        lines.append(
            row(
                at_commit(name, entry),
                shown(side, "tokens_per_second", thousands),
                mfu(entry),
                shown(side, "peak_bytes", gigabytes),
                foretold(entry),
            )
        )
    return "\n".join(lines)


def startup(kept: Kept | None = None) -> str:
    found = the(kept, "pretrain_gpu").get("startup", {})
    lines = header(
        f"seconds from process start to the first step, {hardware([found])}",
        "nothing compiled yet",
        "again",
    )
    seconds = found.get("seconds", {})
    return "\n".join(
        [
            *lines,
            row(
                found.get("setting", "–"),
                *(shown(seconds, name, "{:.1f}".format) for name in ("cold", "warm")),
            ),
        ]
    )


def profile(kept: Kept | None = None) -> str:
    """Milliseconds of a step by kind of kernel; a column for each batch."""
    found = the(kept, "pretrain_gpu").get("profile", {})
    if not found:
        return "Where the milliseconds of a step go: not measured."
    lines = header(
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
            row(kind, *(f"{each['kinds_ms'].get(kind, 0.0):.2f}" for each in found.values()))
        )
    return "\n".join([*lines, row("all", *(f"{each['wall_ms']:.2f}" for each in found.values()))])


def curves(kept: Kept | None = None) -> str:
    found = the(kept, "pretrain_gpu").get("curves")
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


PRETRAINING = (speed, memory, scaling, startup, profile, curves)


def tuning_speed(kept: Kept | None = None) -> str:
    """Fine-tuning against transformers' Trainer, each task's training texts in batches of one size."""
    found = the(kept, "finetune_gpu").get("compare", {})
    lines = header(
        f"examples/s, {hardware(found.values())}",
        "`Trainer`",
        "… by length",
        "ours",
        "÷ `Trainer`",
        "÷ by length",
    )
    for task, entry in found.items():
        rates = {
            side: median(each["examples_per_second"] for each in rounds)
            for side, rounds in entry["rounds"].items()
        }
        times = (
            median(
                our["examples_per_second"] / their["examples_per_second"]
                for our, their in zip(entry["rounds"]["ours"], entry["rounds"][side], strict=True)
            )
            for side in ("trainer", "trainer_grouped")
        )
        count = len(entry["rounds"]["ours"])
        label = f"{task}, {count} round{'s' if count > 1 else ''} of {entry['steps']} steps"
        lines.append(
            row(
                label,
                *(f"{rates[side]:,.0f}" for side in ("trainer", "trainer_grouped", "ours")),
                *(f"{each:.1f}" for each in times),
            )
        )
    return "\n".join(lines)


def glue_time(kept: Kept | None = None) -> str:
    found = the(kept, "finetune_gpu").get("glue", {})
    lines = header(
        f"{found.get('seeds', '–')} seeds, {hardware([found])}",
        "score, median",
        "steps a seed",
        "training, seconds a seed",
    )
    for task, each in found.get("tasks", {}).items():
        lines.append(
            row(
                task,
                f"{100 * each['median']:.1f} ({each['metric']})",
                f"{each['steps']:,}",
                f"{median(each['seconds']):.1f}",
            )
        )
    done = (
        f"{found['minutes']:.1f} minutes, {found['at_once']} at once" if found else "not measured"
    )
    return "\n".join(
        [
            *lines,
            row("all, start to end", "; ".join(filter(None, (done, found.get("note")))), "", ""),
        ]
    )


FINETUNING = (tuning_speed, glue_time)

# Published dev scores: the official ELECTRA-Small trained on OpenWebText for a million steps,
# median over seeds.
TWIN = {"cola": 56.8, "sst-2": 88.3, "mrpc": 87.4, "sts-b": 86.8, "qnli": 87.9, "rte": 68.5}
PAPER_AT_A_SIXTEENTH = 74.1  # mean of eight tasks, dev


def proof(kept: Kept | None = None) -> str:
    """The model of `benchmarks.small_gpu` beside published ones of more steps or other tasks, and
    labelled so.
    """
    found = the(kept, "small_gpu")
    training, tasks = found["pretraining"], found["glue"]["tasks"]
    lines = header("GLUE, dev", *(name.upper() for name in TWIN), "mean")
    scores = {name: [100 * score for score in tasks[name]["scores"]] for name in TWIN}
    medians = [median(each) for each in scores.values()]
    label = (
        f"ours, {training['steps']:,} steps, {training['tokens_seen'] / 1e6:,.0f}M tokens "
        f"({training['epochs']:.1f} epochs of {training['corpus_tokens'] / 1e6:.0f}M), median of "
        f"{found['glue']['seeds']} seeds"
    )
    return "\n".join(
        [
            *lines,
            row(label, *(f"{each:.1f}" for each in medians), f"{sum(medians) / len(medians):.1f}"),
            row(
                "… lowest and highest seed",
                *(f"{min(each):.1f} to {max(each):.1f}" for each in scores.values()),
                "",
            ),
            row(
                "the official code on OpenWebText, 1,000,000 steps (published)",
                *(f"{each:.1f}" for each in TWIN.values()),
                f"{sum(TWIN.values()) / len(TWIN):.1f}",
            ),
            row(
                "the paper, 62,500 steps (published; mean of eight tasks, not comparable)",
                *[""] * len(TWIN),
                f"{PAPER_AT_A_SIXTEENTH}",
            ),
            "",
            f"Pre-training took {training['minutes']:.1f} minutes "
            f"({training['minutes_in_all']:.1f} from process start "
            f"to exported models, {training['tokens_per_second'] / 1e6:.2f}M tokens/s), "
            "fine-tuning "
            f"{found['glue']['minutes']:.1f} minutes for six tasks and {found['glue']['seeds']} "
            "seeds, "
            f"{found['glue']['at_once']} tasks at once ({hardware([found['glue']])}).",
            *(
                f"{work}: {part['note']}."
                for work, part in (("Pre-training", training), ("Fine-tuning", found["glue"]))
                if "note" in part
            ),
        ]
    )


def held_out(kept: Kept | None = None) -> str:
    """How that model fared on rows it never trained on."""
    training = the(kept, "small_gpu")["pretraining"]
    lines = header(
        "step",
        "generator: accuracy (without looking)",
        "loss",
        "discriminator: AUC",
        "average precision",
    )
    for each in training["held_out"]:
        lines.append(
            row(
                f"{each['step']:,}",
                f"{each['mlm_accuracy']:.1%} ({each['baseline_mlm_accuracy']:.1%})",
                f"{each['mlm_loss']:.3f}",
                f"{each['auc']:.3f}",
                f"{each['average_precision']:.3f}",
            )
        )
    return "\n".join(lines)


def the(kept: Kept | None, name: str) -> Kept:
    """What a benchmark hands over at its end, or what was kept of it."""
    return result(name) if kept is None else kept


def compared(kept: Kept) -> Kept:
    """The settings in which all sides were measured, of all parts."""
    return {
        name: entry
        for part in ("paper", "best", "base")
        for name, entry in kept.get(part, {}).items()
    }


def hardware(entries: Iterable[Kept]) -> str:
    """Where figures come from; from several places when parts were measured on several."""
    commits: dict[str, set[str]] = {}
    for made in (entry["made"] for entry in entries if "made" in entry):
        commits.setdefault(machine(made), set()).add(short(made["commit"]))
    return (
        " and ".join(
            f"{where}, {' / '.join(sorted(found))}" for where, found in sorted(commits.items())
        )
        or NO_MACHINE
    )


def machines(entries: Iterable[Kept]) -> str:
    """The same without commits, for tables that say them with each name."""
    return (
        " and ".join(sorted({machine(entry["made"]) for entry in entries if "made" in entry}))
        or NO_MACHINE
    )


def machine(made: Kept) -> str:
    return f"{made['hardware']}, torch {made['torch']}"


def at_commit(name: str, entry: Kept) -> str:
    """A name with the commit that its figures were measured at."""
    return f"{name} ({short(entry['made']['commit'])})"


def short(commit: str | None) -> str:
    """Seven letters, and `-dirty` where files had been changed since."""
    return re.sub(r"^(\w{7})\w*", r"\1", commit) if commit else "no commit"


def mfu(entry: Kept) -> str:
    """Against the matrix product measured in the same run."""
    side = entry["sides"].get("ours_fast", {})
    if "matmul_flops" not in entry or "tokens_per_second" not in side:
        return shown(side, "", str)
    return f"{entry['flops_per_token'] * side['tokens_per_second'] / entry['matmul_flops']:.1%}"


def shown(values: Kept, name: str, form: Callable[[float], str]) -> str:
    if "failed" in values:
        return f"failed ({values['failed']})"
    return form(values[name]) if name in values else "not measured"


def thousands(rate: float) -> str:
    return f"{rate / 1000:,.0f}k"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f}"


def shown_ratio(ours: Kept, theirs: Kept) -> str:
    if not ("tokens_per_second" in ours and "tokens_per_second" in theirs):
        return "–"
    return f"{ours['tokens_per_second'] / theirs['tokens_per_second']:.2f}"


def ratio(entry: Kept, side: str) -> str:
    return shown_ratio(entry["sides"]["ours_fast"], entry["sides"][side])


def header(*cells: str) -> list[str]:
    return [row(*cells), "|" + "---|" * len(cells)]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def reliability(kept: Kept | None = None) -> str:
    """What `benchmarks.soak` did to runs, and what became of them."""
    found = the(kept, "reliability")
    lines = header("fault, made for real", "times tried", "as it should be", "data lost")
    lines += [
        row(
            each["fault"],
            str(each["tried"]),
            str(each["survived"]),
            "none" if each["survived"] == each["tried"] else "see the log",
        )
        for each in found["faults"].values()
    ]
    made = found["made"]
    return "\n".join(
        [
            *lines,
            "",
            f"{found['minutes']:g} minutes, seed {found['seed']} ({made['processor']}, torch "
            f"{made['packages']['torch']}, {short(made['commit'])}).",
        ]
    )


# ---- into the documents --------------------------------------------------------------------------


def processes(kept: Kept | None = None) -> str:
    """One process under torchrun by DDP and FSDP2, and what a checkpoint costs the steps of one or
    several.
    """
    entries = {name: entry for name, entry in the(kept, "processes").items() if name != "made"}
    lines = header(
        "run",
        "alone",
        "torchrun, DDP",
        "DDP, plain modules",
        "FSDP2, plain modules",
        "a step",
        "stands still for a checkpoint",
        "its write, beside the steps",
    )
    for name, entry in entries.items():
        ways = (
            shown(
                entry.get("ways", {}).get(way, {}), "tokens_per_second", "{:,.0f} tokens/s".format
            )
            for way in ("alone", "ddp", "ddp_plain", "fsdp_plain")
        )
        times = (
            shown(entry.get("stall", {}), each, lambda seconds: f"{1000 * seconds:,.1f} ms")
            for each in ("step", "stall", "write")
        )
        commits = dict.fromkeys(short(part["made"]["commit"]) for part in entry.values())
        lines.append(row(f"{name} ({' and '.join(commits)})", *ways, *times))
    return "\n".join(lines)


def planned(name: str) -> Callable[[], str]:
    """A table of `benchmarks.scale`, which borrows from here and so comes late."""

    def table() -> str:
        from benchmarks import scale

        return str(getattr(scale, name)())

    return table


PLANNED = (
    "scale_corpus",
    "scale_memory",
    "scale_wire",
    "scale_time",
    "scale_checkpoint",
    "scale_assumed",
)
TABLES: dict[str, Callable[[], str]] = {
    table.__name__: table
    for table in (
        recipes,
        measured,
        sanity,
        *PRETRAINING,
        *FINETUNING,
        proof,
        held_out,
        reliability,
        processes,
    )
} | {name: planned(name) for name in PLANNED}


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf8"))
    return found


def filled(text: str) -> str:
    """A document with its tables as they should be."""
    for name, table in TABLES.items():
        if f"<!-- {name}:" not in text:
            continue
        block = rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- /{name} -->)"
        text = re.sub(block, rf"\g<1>{table()}\n\g<2>", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(encoding="utf8")), encoding="utf8")
