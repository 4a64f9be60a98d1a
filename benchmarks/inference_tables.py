"""The table of `benchmarks.inference_gpu`: texts a second of ours and of its peers."""

from __future__ import annotations

from benchmarks.harness import Result
from benchmarks.markdown import (
    RESULTS,
    format_entry,
    machines_with_commits,
    read_result,
    table_header,
    table_row,
)

PIPELINE = '`pipeline("text-classification")`'
LABELS = {
    "predict": {
        "ours": "`electra predict`, bf16",
        "pipeline_256_bf16": f"{PIPELINE}, batches of 256, bf16",
        "pipeline_32_bf16": "… batches of 32, bf16",
        "pipeline_256_fp32": "… batches of 256, fp32",
        "pipeline_32_fp32": "… batches of 32, fp32",
    },
    "embed": {
        "ours_fp32": "`electra embed`, fp32",
        "ours_bf16": "… `--precision bf16`",
        "loop_256_fp32": "transformers in a plain loop, batches of 256 by length, fp32",
        "loop_256_bf16": "… bf16",
        "st_32_fp32": "sentence-transformers' `encode`, batches of 32, fp32",
        "st_256_fp32": "… batches of 256, fp32",
        "st_256_bf16": "… batches of 256, bf16",
    },
}


def inference_speed(result: Result | None = None) -> str:
    """Return the speed of each side, and how many times as fast ours is in the same precision."""
    if result is None and not (RESULTS / "inference_gpu.json").is_file():
        return "Inference on a GPU: not measured yet."
    if result is None:
        result = read_result("inference_gpu")
    entries = {part: result[part] for part in LABELS if part in result}
    lines = table_header(
        f"{machines_with_commits(entries.values())}",
        "texts/s (lowest to highest round)",
        "ours ÷ it",
        "largest difference from ours",
    )
    for part, entry in entries.items():
        for name, label in LABELS[part].items():
            side = entry["sides"].get(name, {})
            difference = format_entry(side, "largest_difference", "{:.1e}".format)
            cells = [format_texts(side), ratio_to_ours(entry, name), difference]
            lines.append(table_row(f"{label}, {entry['texts']:,} texts", *cells))
    return "\n".join(lines)


def format_texts(side: Result) -> str:
    rate = format_entry(side, "examples_per_second", "{:,.0f}".format)
    if "rounds" not in side:
        return rate
    return f"{rate} ({min(side['rounds']):,.0f} to {max(side['rounds']):,.0f})"


def ratio_to_ours(entry: Result, name: str) -> str:
    """Return how many times as fast ours was beside it, vectors in the same precision."""
    ours = "ours"
    if ours not in entry["sides"]:
        ours = f"ours_{name.rpartition('_')[2]}"
    side = entry["sides"].get(name, {})
    if ours not in side.get("beside", {}):
        return "–"
    return f"{side['beside'][ours] / side['examples_per_second']:.1f}"


TABLES = (inference_speed,)
