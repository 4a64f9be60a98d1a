"""Tables of `benchmarks.finetune_gpu` and `benchmarks.small_gpu`: speed, GLUE, held-out losses."""

from __future__ import annotations

from statistics import median

from benchmarks.harness import Result
from benchmarks.markdown import (
    RESULTS,
    machines_with_commits,
    result_or_file,
    table_header,
    table_row,
)
from benchmarks.record_comparison import is_scored
from benchmarks.record_results import read_record
from benchmarks.shipped_tables import ARM, RECIPE, STAGE, find_run

# Published dev scores: the official ELECTRA-Small trained on OpenWebText for a million steps,
# median over seeds.
PUBLISHED = {"cola": 56.8, "sst-2": 88.3, "mrpc": 87.4, "sts-b": 86.8, "qnli": 87.9, "rte": 68.5}
PUBLISHED_AT_62_500_STEPS = 74.1  # paper: mean of eight tasks, dev


def tuning_speed(result: Result | None = None) -> str:
    """Return the speed of fine-tuning against transformers' Trainer."""
    entries = result_or_file(result, "finetune_gpu").get("compare", {})
    lines = table_header(
        f"examples/s, {machines_with_commits(entries.values())}",
        "`Trainer`",
        "… by length",
        "ours",
        "÷ `Trainer`",
        "÷ by length",
    )
    for task, entry in entries.items():
        rounds = len(entry["rounds"]["ours"])
        plural = "s" * (rounds > 1)
        rates = [format_rates(entry, side) for side in ("trainer", "trainer_grouped", "ours")]
        ratios = [median(ratios_of(entry, side)) for side in ("trainer", "trainer_grouped")]
        lines.append(
            table_row(
                f"{task}, {rounds} round{plural} of {entry['steps']} steps",
                *rates,
                *(f"{ratio:.1f}" for ratio in ratios),
            )
        )
    return "\n".join(lines)


def format_rates(entry: Result, side: str) -> str:
    """Return the median of the rounds, and the range of their windows where it was kept."""
    rate = f"{median(rates_of(entry, side)):,.0f}"
    windows: list[float] = []
    for measured in entry["rounds"][side]:
        windows += measured.get("windows", [])
    if not windows:
        return rate
    return f"{rate} ({min(windows):,.0f} to {max(windows):,.0f})"


def rates_of(entry: Result, side: str) -> list[float]:
    return [measured["examples_per_second"] for measured in entry["rounds"][side]]


def ratios_of(entry: Result, side: str) -> list[float]:
    """Return how many times as fast ours was as a side, in each round."""
    pairs = zip(rates_of(entry, "ours"), rates_of(entry, side), strict=True)
    return [ours / theirs for ours, theirs in pairs]


def glue_time(result: Result | None = None) -> str:
    """Return the scores and the training time of six GLUE tasks."""
    glue = result_or_file(result, "finetune_gpu").get("glue", {})
    lines = table_header(
        f"{glue.get('seeds', '–')} seeds, {machines_with_commits([glue])}",
        "score, median",
        "steps a seed",
        "training, seconds a seed",
    )
    for task, entry in glue.get("tasks", {}).items():
        lines.append(
            table_row(
                task,
                f"{100 * entry['median']:.1f} ({entry['metric']})",
                f"{entry['steps']:,}",
                f"{median(entry['seconds']):.1f}",
            )
        )
    total = "not measured"
    if glue:
        total = f"{glue['minutes']:.1f} minutes, {glue['at_once']} at once"
    notes = "; ".join(filter(None, (total, glue.get("note"))))
    return "\n".join([*lines, table_row("all, start to end", notes, "", "")])


def proof(result: Result | None = None) -> str:
    """Return the GLUE scores of `benchmarks.small_gpu` beside published ones, labelled as such."""
    result = result_or_file(result, "small_gpu")
    training, tasks = result["pretraining"], result["glue"]["tasks"]
    scores = [[100 * score for score in tasks[name]["scores"]] for name in PUBLISHED]
    label = (
        f"`small` with the paper's recipe, {training['steps']:,} steps, "
        f"{training['tokens_seen'] / 1e6:,.0f}M tokens "
        f"({training['epochs']:.1f} epochs of {training['corpus_tokens'] / 1e6:.0f}M), median of "
        f"{result['glue']['seeds']} seeds"
    )
    ranges = [f"{min(values):.1f} to {max(values):.1f}" for values in scores]
    return "\n".join(
        [
            *table_header("GLUE, dev", *(name.upper() for name in PUBLISHED), "mean"),
            scores_row(label, [median(values) for values in scores]),
            table_row("… lowest and highest seed", *ranges, ""),
            *record_rows(),
            scores_row(
                "the official code on OpenWebText, 1,000,000 steps (published)",
                list(PUBLISHED.values()),
            ),
            table_row(
                "the paper, 62,500 steps (published; mean of eight tasks, not comparable)",
                *[""] * len(PUBLISHED),
                f"{PUBLISHED_AT_62_500_STEPS}",
            ),
            "",
            *proof_notes(training, result["glue"]),
        ]
    )


def record_rows() -> list[str]:
    """Return the scores of the model that comes with the package and of the paper's `small` after
    the same minutes, from `benchmarks.record`.
    """
    record = read_record(RESULTS / "record.json")
    names = {
        ARM: f"`small-en`: `{RECIPE}`",
        "paper": "`small` with the paper's recipe, the same text",
    }
    rows = []
    for arm, name in names.items():
        run = find_run(record, STAGE, arm)
        if run and is_scored(run, [f"glue/{task}" for task in PUBLISHED]):
            medians = [100 * run["tuned"][f"glue/{task}"]["median"] for task in PUBLISHED]
            rows.append(scores_row(f"{name}, {describe_run(run)}", medians))
    return rows


def describe_run(run: Result) -> str:
    """Return how long a run was, what it read, and with which flags all its tasks were tuned."""
    flags = {entry["flags"] for entry in run["tuned"].values()}
    tuned = f", fine-tuned with `{flags.pop()}`" if len(flags) == 1 and all(flags) else ""
    return (
        f"{run['minutes']:g} minutes, {run['steps']:,} steps, {run['tokens_seen'] / 1e6:,.0f}M "
        f"tokens ({run['epochs']:.1f} epochs of {run['corpus_tokens'] / 1e6:.0f}M), median of "
        f"{len(run['tuned']['glue/rte']['scores'])} seeds{tuned}"
    )


def scores_row(label: str, scores: list[float]) -> str:
    cells = [f"{score:.1f}" for score in scores]
    return table_row(label, *cells, f"{sum(scores) / len(scores):.1f}")


def proof_notes(training: Result, glue: Result) -> list[str]:
    """Return how long pre-training and fine-tuning took, and their notes."""
    notes = [
        f"Pre-training of `small` took {training['minutes']:.1f} minutes "
        f"({training['minutes_in_all']:.1f} from process start to exported models, "
        f"{training['tokens_per_second'] / 1e6:.2f}M tokens/s), fine-tuning {glue['minutes']:.1f} "
        f"minutes for six tasks and {glue['seeds']} seeds, {glue['at_once']} tasks at once "
        f"({machines_with_commits([glue])})."
    ]
    for stage, part in (("Pre-training", training), ("Fine-tuning", glue)):
        if "note" in part:
            notes.append(f"{stage}: {part['note']}.")
    return notes


def held_out(result: Result | None = None) -> str:
    """Return the held-out scores of that model while it trained."""
    training = result_or_file(result, "small_gpu")["pretraining"]
    lines = table_header(
        "step",
        "generator: accuracy (baseline)",
        "loss",
        "discriminator: AUC",
        "average precision",
    )
    for scores in training["held_out"]:
        lines.append(
            table_row(
                f"{scores['step']:,}",
                f"{scores['mlm_accuracy']:.1%} ({scores['baseline_mlm_accuracy']:.1%})",
                f"{scores['mlm_loss']:.3f}",
                f"{scores['auc']:.3f}",
                f"{scores['average_precision']:.3f}",
            )
        )
    return "\n".join(lines)


TABLES = (tuning_speed, glue_time)
