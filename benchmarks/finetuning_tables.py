"""Tables of `benchmarks.finetune_gpu` and `benchmarks.small_gpu`: speed, GLUE and held-out losses."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.markdown import Result, hardware, results_of, table_header, table_row

# Published dev scores: the official ELECTRA-Small trained on OpenWebText for a million steps,
# median over seeds.
TWIN = {"cola": 56.8, "sst-2": 88.3, "mrpc": 87.4, "sts-b": 86.8, "qnli": 87.9, "rte": 68.5}
PAPER_AT_A_SIXTEENTH = 74.1  # mean of eight tasks, dev


def tuning_speed(kept: Result | None = None) -> str:
    """Fine-tuning against transformers' Trainer, each task's training texts in batches of one size."""
    found = results_of(kept, "finetune_gpu").get("compare", {})
    lines = table_header(
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
            table_row(
                label,
                *(f"{rates[side]:,.0f}" for side in ("trainer", "trainer_grouped", "ours")),
                *(f"{each:.1f}" for each in times),
            )
        )
    return "\n".join(lines)


def glue_time(kept: Result | None = None) -> str:
    found = results_of(kept, "finetune_gpu").get("glue", {})
    lines = table_header(
        f"{found.get('seeds', '–')} seeds, {hardware([found])}",
        "score, median",
        "steps a seed",
        "training, seconds a seed",
    )
    for task, each in found.get("tasks", {}).items():
        lines.append(
            table_row(
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
            table_row(
                "all, start to end", "; ".join(filter(None, (done, found.get("note")))), "", ""
            ),
        ]
    )


def proof(kept: Result | None = None) -> str:
    """The model of `benchmarks.small_gpu` beside published ones of more steps or other tasks, and
    labelled so.
    """
    found = results_of(kept, "small_gpu")
    training, tasks = found["pretraining"], found["glue"]["tasks"]
    lines = table_header("GLUE, dev", *(name.upper() for name in TWIN), "mean")
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
            table_row(
                label, *(f"{each:.1f}" for each in medians), f"{sum(medians) / len(medians):.1f}"
            ),
            table_row(
                "… lowest and highest seed",
                *(f"{min(each):.1f} to {max(each):.1f}" for each in scores.values()),
                "",
            ),
            table_row(
                "the official code on OpenWebText, 1,000,000 steps (published)",
                *(f"{each:.1f}" for each in TWIN.values()),
                f"{sum(TWIN.values()) / len(TWIN):.1f}",
            ),
            table_row(
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


def held_out(kept: Result | None = None) -> str:
    """How that model fared on rows it never trained on."""
    training = results_of(kept, "small_gpu")["pretraining"]
    lines = table_header(
        "step",
        "generator: accuracy (without looking)",
        "loss",
        "discriminator: AUC",
        "average precision",
    )
    for each in training["held_out"]:
        lines.append(
            table_row(
                f"{each['step']:,}",
                f"{each['mlm_accuracy']:.1%} ({each['baseline_mlm_accuracy']:.1%})",
                f"{each['mlm_loss']:.3f}",
                f"{each['auc']:.3f}",
                f"{each['average_precision']:.3f}",
            )
        )
    return "\n".join(lines)


def against_trainer(tuning: dict[str, Any], work: str) -> str:
    plain, grouped = (
        median(tuning["ratios"][work][name]) for name in ("trainer", "trainer_grouped")
    )
    return (
        f"{plain:.2f} times as fast, {grouped:.2f} where it groups by length ({tuning['threads']} "
        "threads, "
        f"{tuning['made']['processor']}, median of {len(tuning['ratios'][work]['trainer'])})"
    )


TABLES = (tuning_speed, glue_time)
