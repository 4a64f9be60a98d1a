"""The documents' tables, from recipes and from kept results: nobody types a number that a file can
tell.

python -m benchmarks.tables        # writes them; tests/test_story.py checks that they are current
"""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import median

from benchmarks import finetuning_tables, pretraining_tables, scale
from benchmarks.finetuning_tables import against_trainer, held_out, proof
from benchmarks.markdown import (
    ROOT,
    Result,
    format_entry,
    read_result,
    results_of,
    short_commit,
    table_header,
    table_row,
    thousands,
)
from benchmarks.pretraining_tables import ratio
from electra.cli.describe import describe_recipe
from electra.pretraining.recipe import load_recipe

DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
RECIPES = ("tiny", "small", "base", "large", "bert-small", "bert-base", "bert-large")


def recipes() -> str:
    lines = [
        "| recipe | encoder | generator | parameters | rows × tokens | steps | FLOPs, standard | "
        "official |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in RECIPES:
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
        read_result(name)
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
    gpu, proven = read_result("pretrain_gpu"), read_result("small_gpu")
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
            f"{tuned['random']['baseline']:.1%}), "
            f"median of {len(tuned['random']['runs'])} seeds",
        ),
    ]
    return "\n".join(
        ["| | ours |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]
    )


def sanity() -> str:
    """Medians, with the lowest and highest seed."""
    kept = read_result("sanity")
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
        f"{100 * found['baseline']:.1f}" for found in next(iter(kept["arms"].values())).values()
    )
    return "\n".join([*lines, f"| an answer that ignores the text | {' | '.join(baseline)} |"])


# ---- on a GPU ------------------------------------------------------------------------------------


def reliability(kept: Result | None = None) -> str:
    """What `benchmarks.soak` did to runs, and what became of them."""
    found = results_of(kept, "reliability")
    lines = table_header("fault, made for real", "times tried", "as it should be", "data lost")
    lines += [
        table_row(
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
            f"{made['packages']['torch']}, {short_commit(made['commit'])}).",
        ]
    )


# ---- into the documents --------------------------------------------------------------------------


def processes(kept: Result | None = None) -> str:
    """One process under torchrun by DDP and FSDP2, and what a checkpoint costs the steps of one or
    several.
    """
    entries = {
        name: entry for name, entry in results_of(kept, "processes").items() if name != "made"
    }
    lines = table_header(
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
            format_entry(
                entry.get("ways", {}).get(way, {}), "tokens_per_second", "{:,.0f} tokens/s".format
            )
            for way in ("alone", "ddp", "ddp_plain", "fsdp_plain")
        )
        times = (
            format_entry(entry.get("stall", {}), each, lambda seconds: f"{1000 * seconds:,.1f} ms")
            for each in ("step", "stall", "write")
        )
        commits = dict.fromkeys(short_commit(part["made"]["commit"]) for part in entry.values())
        lines.append(table_row(f"{name} ({' and '.join(commits)})", *ways, *times))
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    table.__name__: table
    for table in (
        recipes,
        measured,
        sanity,
        *pretraining_tables.TABLES,
        *finetuning_tables.TABLES,
        proof,
        held_out,
        reliability,
        processes,
        *scale.TABLES,
    )
}


def fill_tables(text: str) -> str:
    """A document with its tables as they should be."""
    for name, table in TABLES.items():
        if f"<!-- {name}:" not in text:
            continue
        block = rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- /{name} -->)"
        text = re.sub(block, rf"\g<1>{table()}\n\g<2>", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(fill_tables(document.read_text(encoding="utf8")), encoding="utf8")
