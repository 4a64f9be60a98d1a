"""The documents' tables, from recipes and from kept results: nobody types a number that a file can tell.

    python -m benchmarks.tables        # writes them; tests/test_story.py checks that they are current
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from electra.training.describe import describe_recipe
from electra.training.recipe import load_recipe

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "finetuning.md")
SHOWN = ("tiny", "small", "base", "large", "bert-small", "bert-base", "bert-large")


def recipes() -> str:
    lines = ["| recipe | encoder | generator | parameters | rows × tokens | steps | FLOPs, standard | official |",
             "|---|---|---|---|---|---|---|---|"]
    for name in SHOWN:
        recipe = load_recipe(name)
        made = describe_recipe(recipe, name=name)
        shapes = [f"{shape.layers} × {shape.width}" for shape in made.networks.values()]
        costs = (f"{cost.training * made.tokens:.2e}" for cost in (made.standard, made.official))
        lines.append(f"| `{name}` | {shapes[0]} | {shapes[1] if len(shapes) > 1 else '–'} "
                     f"| {made.parameters.encoder / 1e6:.1f}M | {recipe.training.batch_size} × {recipe.data.length} "
                     f"| {recipe.training.max_steps:,} | {' | '.join(costs)} |")
    return "\n".join(lines)


def measured() -> str:
    cpu, tuning, sharding, memory, usage, first = (result(name) for name in (
        "pretrain_cpu", "finetune_cpu", "shard", "memory", "help", "quickstart"))
    slowest = max(median(times) for times in usage["seconds"].values())
    peaks = ", ".join(f"{stage} of {int(size) / 1000:g} GB {found[stage]['peak_megabytes']} MB"
                      for size, found in memory.items() if size != "made" for stage in ("vocab", "shard"))
    scores, tuned = first["scores"], first["finetuned"]
    rows = [
        ("a training step of `small`, 16 × 128, on a CPU, against transformers' two ELECTRA models",
         f"{cpu['ratio']:.2f} times as fast ({cpu['threads']} threads, {cpu['made']['processor']}, median of "
         f"{len(cpu['seconds']['ours'])})"),
        ("fine-tuning `small` on texts of 5 to 120 words, batches of 32, on a CPU, against transformers' `Trainer`",
         against_trainer(tuning, "train")),
        ("… and asking it", against_trainer(tuning, "ask")),
        ("text to shards, against the bare tokenizer (`encode_batch`)",
         f"{sharding['ratio']:.2f} times as fast (median of {len(sharding['shard'])})"),
        ("peak memory", peaks),
        ("`--help`, any command", f"{slowest:.2f} s"),
        (f"`make quickstart` after the install, {first['made']['threads']} threads", f"{first['minutes']:.1f} minutes"),
        ("… its generator, held out: accuracy (always the commonest word)",
         f"{scores['mlm_accuracy']:.1%} ({scores['trivial_mlm_accuracy']:.1%})"),
        ("… its discriminator, held out: AUC (coin), average precision (coin)",
         f"{scores['auc']:.3f} (0.500), {scores['average_precision']:.3f} ({scores['replaced_fraction']:.3f})"),
        ("… fine-tuned to name the library of a paragraph, dev accuracy (from random weights; always the same)",
         f"{tuned['pretrained']['median']:.1%} ({tuned['random']['median']:.1%}; {tuned['random']['trivial']:.1%}), "
         f"median of {len(tuned['random']['runs'])} seeds"),
    ]
    return "\n".join(["| | ours |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])


def sanity() -> str:
    """Medians, with the lowest and highest seed."""
    kept = result("sanity")
    tasks = list(next(iter(kept["arms"].values())))
    examples = f", at most {kept['max_train_examples']:,} training examples" if kept["max_train_examples"] else ""
    lines = [f"| {kept['seeds']} seeds{examples} | " + " | ".join(f"{task} ({arm['metric']})" for task, arm in next(
        iter(kept["arms"].values())).items()) + " |", "|---|" + "---|" * len(tasks)]
    for arm, found in kept["arms"].items():
        cells = (f"{100 * each['median']:.1f} ({100 * min(each['scores']):.1f} to {100 * max(each['scores']):.1f})"
                 for each in found.values())
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    trivial = (f"{100 * found['trivial']:.1f}" for found in next(iter(kept["arms"].values())).values())
    return "\n".join([*lines, f"| an answer that ignores the text | {' | '.join(trivial)} |"])


def against_trainer(tuning: dict[str, Any], work: str) -> str:
    plain, grouped = (median(tuning["ratios"][work][name]) for name in ("trainer", "trainer_grouped"))
    return (f"{plain:.2f} times as fast, {grouped:.2f} where it groups by length ({tuning['threads']} threads, "
            f"{tuning['made']['processor']}, median of {len(tuning['ratios'][work]['trainer'])})")


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf8"))
    return found


def filled(text: str) -> str:
    """A document with its tables as they should be."""
    for name, table in (("recipes", recipes), ("measured", measured), ("sanity", sanity)):
        if f"<!-- {name}:" not in text:
            continue
        block = rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- /{name} -->)"
        text = re.sub(block, rf"\g<1>{table()}\n\g<2>", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(encoding="utf8")), encoding="utf8")
