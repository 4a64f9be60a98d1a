"""Write the tables of the documents from recipes and result files.

python -m benchmarks.tables        # tests/test_story.py checks that they are current
"""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import fmean, median

from benchmarks import (
    beyond_tables,
    encoder_tables,
    finetuning_tables,
    inference_tables,
    pretraining_tables,
    record_tables,
    reliability_tables,
    scale,
    shipped_tables,
)
from benchmarks.encoder_tables import TASKS, runs_by_arm, tuned_scores
from benchmarks.finetuning_tables import held_out, proof
from benchmarks.harness import Result, run_main
from benchmarks.markdown import (
    RESULTS,
    ROOT,
    format_entry,
    format_thousands,
    read_result,
    result_or_file,
    short_commit,
    table_header,
    table_row,
)
from benchmarks.pretraining_tables import fastest_peer, format_ratio
from electra.cli.describe import describe_recipe
from electra.cli.quickstart import SHIPPED
from electra.pretraining.recipe import load_recipe

DOCUMENTS = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "electra" / "models").glob("*/README.md")),
)
RECIPES = (
    "modern-tiny",
    "modern-small",
    "modern-small-deep",
    "modern-base",
    "modern-large",
    "small",
    "base",
    "large",
    "bert-small",
)


def recipes() -> str:
    """Return the sizes and the cost of the recipes."""
    lines = table_header(
        "recipe",
        "encoder",
        "generator",
        "parameters",
        "rows × tokens",
        "steps",
        "FLOPs, standard",
        "official",
    )
    for name in RECIPES:
        recipe = load_recipe(name)
        description = describe_recipe(recipe, name=name)
        networks = description.networks.values()
        shapes = [*(f"{shape.layers} × {shape.width}" for shape in networks), "–"]
        costs = (description.standard, description.official)
        lines.append(
            table_row(
                f"`{name}`",
                *shapes[:2],
                f"{description.parameters.encoder / 1e6:.1f}M",
                f"{recipe.training.batch_size} × {recipe.data.length}",
                f"{recipe.training.max_steps:,}",
                *(f"{cost.training * description.tokens:.2e}" for cost in costs),
            )
        )
    return "\n".join(lines)


# ---- the README's overview -----------------------------------------------------------------------


def measured() -> str:
    """Return one line for each thing that was measured."""
    rows = [*gpu_rows(), *cpu_rows(), *quickstart_rows()]
    return "\n".join(["| | ours |", "|---|---|", *(table_row(*cells) for cells in rows)])


def gpu_rows() -> list[tuple[str, str]]:
    speeds = read_result("pretrain_gpu")
    paper, base = speeds["paper"]["small 128 × 128"], speeds["base"]["base 64 × 512"]
    result = read_result("small_gpu")
    modern = runs_by_arm(read_result("encoders"))
    tasks = result["glue"]["tasks"]
    mean = sum(entry["median"] for entry in tasks.values()) / len(tasks)
    return [
        (
            "a training step of `small`, 128 × 128, and of `base`, 64 × 512, on one "
            f"{paper['made']['hardware']}, against transformers' two ELECTRA models: eager, and "
            "the fastest of four ways to compile them",
            f"{compare_with_peers(paper)}; {compare_with_peers(base)}",
        ),
        (
            f"`small` with the paper's recipe for {result['pretraining']['steps']:,} steps on it, "
            "minutes from process start to exported models; then six GLUE tasks, mean of medians, "
            "dev",
            f"{result['pretraining']['minutes_in_all']:.1f}; {100 * mean:.1f} "
            "([details](docs/speed.md))",
        ),
        (
            "`modern-small`, 2,000 steps (62M tokens) on it: masked LM, QNLI, STS-B, means of "
            f"{len(modern['modern-small'])} seeds; `small` after as many tokens, STS-B with fewer "
            "epochs",
            f"{describe_arm(modern['modern-small'])}; {describe_arm(modern['small'])} "
            "([details](docs/troubleshooting.md#which-family-of-encoders))",
        ),
    ]


def compare_with_peers(entry: Result) -> str:
    """Return how much faster ours is than the eager peer and the fastest one."""
    ours = entry["sides"]["ours_fast"]
    eager, fastest = entry["sides"]["peer_eager"], fastest_peer(entry)
    return (
        f"{format_ratio(ours, eager)} and {format_ratio(ours, fastest)} times as fast "
        f"({format_thousands(ours['tokens_per_second'])} tokens/s)"
    )


def describe_arm(runs: list[Result]) -> str:
    """Return the held-out accuracy of an arm and its scores on two tasks."""
    accuracy = fmean(run["held_out"][-1]["mlm_accuracy"] for run in runs)
    scores = [f"{fmean(tuned_scores(runs, task)):.1f}" for task in TASKS]
    return f"{100 * accuracy:.1f} %, {', '.join(scores)}"


def cpu_rows() -> list[tuple[str, str]]:
    pretraining, sharding = read_result("pretrain_cpu"), read_result("shard")
    finetuning, help_times = read_result("finetune_cpu"), read_result("help")
    slowest = max(median(times) for times in help_times["seconds"].values())
    return [
        (
            "a training step of `small`, 16 × 128, on a CPU, against transformers' two ELECTRA "
            "models",
            f"{pretraining['ratio']:.2f} times as fast ({pretraining['threads']} threads, "
            f"{pretraining['made']['processor']}, median of {len(pretraining['seconds']['ours'])})",
        ),
        (
            "fine-tuning `small` on texts of 5 to 120 words, batches of 32, on a CPU, against "
            "transformers' `Trainer`",
            compare_with_trainer(finetuning, "train"),
        ),
        ("… and inference", compare_with_trainer(finetuning, "ask")),
        (
            "text to shards, against the bare tokenizer (`encode_batch`)",
            f"{sharding['ratio']:.2f} times as fast (median of {len(sharding['shard'])})",
        ),
        ("peak memory", peak_memory()),
        ("`--help`, any command", f"{slowest:.2f} s"),
    ]


def compare_with_trainer(result: Result, work: str) -> str:
    ratios = result["ratios"][work]
    return (
        f"{median(ratios['trainer']):.2f} times as fast, {median(ratios['trainer_grouped']):.2f} "
        f"where it groups by length ({result['threads']} threads, {result['made']['processor']}, "
        f"median of {len(ratios['trainer'])})"
    )


def peak_memory() -> str:
    cells = []
    for size, stages in read_result("memory").items():
        if size == "made":
            continue
        for stage in ("vocab", "shard"):
            peak = stages[stage]["peak_megabytes"]
            cells.append(f"{stage} of {int(size) / 1000:g} GB {peak} MB")
    return ", ".join(cells)


def quickstart_rows() -> list[tuple[str, str]]:
    """Return what `python -m benchmarks.quickstart` measured; nothing before it has run."""
    if not (RESULTS / "quickstart.json").is_file():
        return []
    result = read_result("quickstart")
    scores, made = result["scores"], result["made"]
    return [
        (
            "`make quickstart` after the install",
            f"{result['minutes']:.1f} minutes ({made['threads']} threads, {made['processor']})",
        ),
        (
            "… its generator, held out: accuracy (baseline); its discriminator: AUC (baseline)",
            f"{scores['mlm_accuracy']:.1%} ({scores['baseline_mlm_accuracy']:.1%}); "
            f"{scores['auc']:.3f} (0.500)",
        ),
        articles_row(result["finetuned"]),
    ]


def articles_row(finetuned: Result) -> tuple[str, str]:
    """Return the scores of the quickstart's fine-tunings; of the shipped model if it has one."""
    own, random, shipped = map(finetuned.get, ("pretrained", "random", SHIPPED))
    title = "… fine-tuned to put missing articles back, dev F1 (from random weights; baseline)"
    cell = (
        f"{own['median']:.1%} ({random['median']:.1%}; {random['baseline']:.1%}), "
        f"median of {len(random['runs'])} seeds"
    )
    if shipped is None:
        return title, cell
    return f"{title}; from `{SHIPPED}`, as shipped", (
        f"{cell}; {shipped['median']:.1%} after {shipped['runs'][0]['steps']:,} steps on "
        f"{shipped['examples']:,} of the {own['examples']:,} sentences, {shipped['protocol']}"
    )


# ---- further tables ------------------------------------------------------------------------------


def sanity() -> str:
    """Return medians over seeds, with the lowest and the highest."""
    result = read_result("sanity")
    tasks = next(iter(result["arms"].values()))
    title = f"{result['seeds']} seeds"
    if result["max_train_examples"]:
        title += f", at most {result['max_train_examples']:,} training examples"
    lines = table_header(title, *(f"{task} ({entry['metric']})" for task, entry in tasks.items()))
    for arm, entries in result["arms"].items():
        lines.append(table_row(arm, *map(median_and_range, entries.values())))
    baselines = [f"{100 * entry['baseline']:.1f}" for entry in tasks.values()]
    return "\n".join([*lines, table_row("an answer that ignores the text", *baselines)])


def median_and_range(entry: Result) -> str:
    lowest, highest = 100 * min(entry["scores"]), 100 * max(entry["scores"])
    return f"{100 * entry['median']:.1f} ({lowest:.1f} to {highest:.1f})"


def processes(result: Result | None = None) -> str:
    """Return the speed of one process by DDP and FSDP2, and what a checkpoint costs."""
    lines = table_header(
        "run",
        "without torchrun",
        "torchrun, DDP",
        "DDP, plain modules",
        "FSDP2, plain modules",
        "a step",
        "training blocked by a checkpoint",
        "its write, in the background",
    )
    for name, entry in result_or_file(result, "processes").items():
        if name == "made":
            continue
        ways, stall = entry.get("ways", {}), entry.get("stall", {})
        rates = [
            format_entry(ways.get(way, {}), "tokens_per_second", "{:,.0f} tokens/s".format)
            for way in ("alone", "ddp", "ddp_plain", "fsdp_plain")
        ]
        times = [
            format_entry(stall, part, lambda seconds: f"{1000 * seconds:,.1f} ms")
            for part in ("step", "stall", "write")
        ]
        commits = dict.fromkeys(short_commit(part["made"]["commit"]) for part in entry.values())
        lines.append(table_row(f"{name} ({' and '.join(commits)})", *rates, *times))
    return "\n".join(lines)


# ---- into the documents --------------------------------------------------------------------------


TABLES: dict[str, Callable[[], str]] = {
    table.__name__: table
    for table in (
        recipes,
        measured,
        sanity,
        *pretraining_tables.TABLES,
        pretraining_tables.changed_steps,
        *finetuning_tables.TABLES,
        *inference_tables.TABLES,
        *encoder_tables.TABLES,
        proof,
        held_out,
        *reliability_tables.TABLES,
        *record_tables.TABLES,
        *beyond_tables.TABLES,
        *shipped_tables.TABLES,
        processes,
        *scale.TABLES,
    )
}


def fill_tables(text: str) -> str:
    """Return a document with its tables made again."""
    for name, table in TABLES.items():
        if f"<!-- {name}:" not in text:
            continue
        block = rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- /{name} -->)"
        text = re.sub(block, rf"\g<1>{table()}\n\g<2>", text, flags=re.DOTALL)
    return text


def main() -> None:
    for document in DOCUMENTS:
        document.write_text(fill_tables(document.read_text(encoding="utf8")), encoding="utf8")


if __name__ == "__main__":
    run_main(main)
