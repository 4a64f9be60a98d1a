"""Compute what a terabyte of text and ELECTRA-Large on many GPUs would take; measure nothing.

    python -m benchmarks.scale        # prints the tables of docs/scale.md

Parameters, FLOPs, memory and the formats of shards and checkpoints come from the package. The
speed of one GPU and of sharding, and the filled fraction of rows, come from benchmarks/results.
`benchmarks.site` holds all assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import median

import numpy as np

from benchmarks.harness import Result
from benchmarks.markdown import (
    format_bandwidth,
    format_bytes,
    format_duration,
    read_result,
    result_or_file,
    table_header,
    table_row,
    two_column_table,
)
from benchmarks.site import GPUS, HALF, LARGE, SITE, STEPS, WEIGHTS, WORK, filled_fraction
from electra.data.examples import token_dtype
from electra.data.sharding import SHARD_BYTES
from electra.model.flops import parameters, standard
from electra.model.memory import hidden_matrix_values, training_bytes
from electra.model.workload import FLOAT

# ---- the corpus ----------------------------------------------------------------------------------


def scale_corpus() -> str:
    """Return what it costs to make shards of the corpus and to verify them."""
    length = LARGE.data.length
    tokens = SITE.text_bytes / SITE.bytes_per_token
    ids, ends = token_dtype(LARGE.data.vocab_size).itemsize, 2 * np.dtype(np.uint16).itemsize
    row_bytes = length * ids + ends
    rows = tokens / (length * filled_fraction())
    shards = rows * row_bytes
    epochs = {
        f"epochs in {steps:,} steps": (
            f"{steps * LARGE.training.batch_size / rows:.2f}",
            f"{LARGE.training.batch_size:,} rows a step",
        )
        for steps in STEPS
    }
    return two_column_table(
        f"{format_bytes(SITE.text_bytes)} of text, rows of {length}",
        {
            "as `.jsonl.gz`": (
                format_bytes(SITE.text_bytes / SITE.gzip_ratio),
                f"{SITE.gzip_ratio} to 1",
            ),
            "tokens": (f"{tokens / 1e9:,.0f} billion", f"{SITE.bytes_per_token} bytes each"),
            "rows": (
                f"{rows / 1e6:,.0f} million",
                f"{filled_fraction():.0%} full, as the rows of `benchmarks.pretrain_gpu` were",
            ),
            "shards": (
                format_bytes(shards),
                f"{row_bytes:,} bytes a row; {shards / SHARD_BYTES:,.0f} of {SHARD_BYTES >> 20} MB",
            ),
            **sharding_rows(),
            **checking_rows(shards),
            **epochs,
        },
    )


def sharding_rows() -> dict[str, tuple[str, str]]:
    """Return how long `electra shard` takes on one machine and on several."""
    result = read_result("shard")
    core = median(result["shard"]) * 1e6 / result["made"]["threads"]
    seconds = SITE.text_bytes / (core * SITE.cores)
    read_bytes = SITE.machines * (SITE.text_bytes / SITE.gzip_ratio)
    reading = read_bytes / SITE.disk_bytes_per_second
    return {
        f"sharding, one machine of {SITE.cores} cores": (
            format_duration(seconds),
            f"{core / 1e6:.2f} MB/s a core, as measured on {result['made']['processor']}",
        ),
        f"… {SITE.machines} machines, `--by-file`": (
            format_duration(seconds / SITE.machines),
            "each part reads only its own files",
        ),
        "… without `--by-file`, at least": (
            format_duration(max(reading, seconds / SITE.machines)),
            f"each part reads all files, {format_bytes(read_bytes)} in total, "
            f"{format_bandwidth(SITE.disk_bytes_per_second)}",
        ),
    }


def checking_rows(shards: float) -> dict[str, tuple[str, str]]:
    """Return how long it takes to read all shards: when merging, and at every start of a run."""
    together = min(SITE.disk_bytes_per_second, GPUS[-1] * SITE.process_bytes_per_second)
    return {
        "`electra shard --merge`": (
            format_duration(shards / SITE.process_bytes_per_second),
            f"one process reads every byte, {format_bandwidth(SITE.process_bytes_per_second)}",
        ),
        f"verified at every start of a run on {GPUS[-1]} GPUs": (
            format_duration(shards / together),
            f"each rank reads its part, {format_bandwidth(SITE.disk_bytes_per_second)} in total",
        ),
    }


# ---- one step ------------------------------------------------------------------------------------


def one_gpu(result: Result | None = None) -> tuple[float, str]:
    """Return the tokens a second of Large on one GPU, and where that number comes from.

    Where Large was not measured, it is assumed to run at the FLOP/s of the largest network that was
    measured at the same length.
    """
    entries: Result = {}
    for part in ("scaling", "base"):
        for name, entry in result_or_file(result, "pretrain_gpu").get(part, {}).items():
            has_speed = "tokens_per_second" in entry["sides"].get("ours_fast", {})
            if entry["length"] == LARGE.data.length and has_speed:
                entries[name] = entry
    for name, entry in entries.items():
        if entry["size"] == "large":
            speed: float = entry["sides"]["ours_fast"]["tokens_per_second"]
            return speed, f"measured, {name}, {entry['made']['hardware']}"
    name, entry = max(entries.items(), key=lambda item: item[1]["flops_per_token"])
    flops = entry["flops_per_token"] * entry["sides"]["ours_fast"]["tokens_per_second"]
    return flops / standard(WORK).training, (
        f"not measured; {flops / 1e12:.0f} TFLOP/s, as measured at {name} on "
        f"{entry['made']['hardware']}"
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One step on several GPUs: the bytes that each of them sends, and the seconds it takes."""

    gpus: int

    @property
    def rows(self) -> int:
        return LARGE.training.batch_size // self.gpus

    @property
    def computing(self) -> float:
        return self.rows * LARGE.data.length * filled_fraction() / one_gpu()[0]

    def micro_batches(self, fixed: float) -> int:
        """Return the micro-batches of one GPU's rows, beside `fixed` bytes of its memory."""
        for count in range(1, self.rows + 1):
            used = fixed + activations(self.rows // count)
            if self.rows % count == 0 and used < 0.8 * SITE.gpu_bytes:
                return count
        raise ValueError(f"not one row of Large fits in {SITE.gpu_bytes / 1e9:.0f} GB")

    def ddp(self) -> float:
        """Return the bytes that one GPU sends by DDP.

        Float32 gradients are all-reduced once a step: each GPU sends 2 (N − 1) / N of them.
        """
        return 2 * self.share * WEIGHTS

    def zero1(self) -> float:
        """Return the bytes that one GPU sends by ZeRO-1, (N − 1) / N of each buffer.

        Float32 gradients are summed for the GPU that updates them. Weights are gathered in bf16;
        what kernels read in float32 is all-reduced.
        """
        return self.share * (WEIGHTS + WEIGHTS * HALF / FLOAT + 2 * float32_bytes())

    def fsdp(self, weight_bytes: int = FLOAT) -> float:
        """Return the bytes that one GPU sends by FSDP.

        Weights are gathered before the forward and again before the backward pass of each
        micro-batch, then float32 gradients are reduce-scattered, each (N − 1) / N of all.
        """
        micro_batches = self.micro_batches(fixed=4 * WEIGHTS / self.gpus)
        return micro_batches * (
            2 * self.share * WEIGHTS * weight_bytes / FLOAT + self.share * WEIGHTS
        )

    @property
    def share(self) -> float:
        return (self.gpus - 1) / self.gpus

    def seconds(self, sent: float) -> float:
        """Return the seconds to send so many bytes in a ring, by its slowest link."""
        link = SITE.node_bytes_per_second
        if self.gpus > SITE.gpus_per_node:
            link = SITE.network_bytes_per_second
        return sent / (link * SITE.link_efficiency)


def float32_bytes() -> float:
    """Return the bytes of the weights that kernels read in float32: all but blocks' matrices."""
    return WEIGHTS - FLOAT * hidden_matrix_values(WORK)


def activations(rows: int, *, kernels: bool = False) -> float:
    terms = training_bytes(WORK, rows=rows, activation_bytes=HALF, kernels=kernels)
    return sum(value for name, value in terms.items() if name.endswith("activations"))


def scale_wire() -> str:
    """Return what each GPU sends in a step and how long that takes, beside the time it computes."""
    lines = table_header(
        "GPUs",
        "rows a GPU",
        "compute time",
        "DDP sends",
        "transfer time",
        "ZeRO-1 sends",
        "transfer time",
        "FSDP sends, fp32",
        "transfer time",
        "FSDP sends, bf16 weights",
        "transfer time",
    )
    for gpus in GPUS:
        step = Step(gpus)
        sent = (step.ddp(), step.zero1(), step.fsdp(), step.fsdp(HALF))
        cells: list[str] = []
        for count in sent:
            cells += [format_bytes(count), f"{1000 * step.seconds(count):.0f} ms"]
        lines.append(
            table_row(str(gpus), str(step.rows), f"{1000 * step.computing:.0f} ms", *cells)
        )
    return "\n".join(lines)


def scale_memory() -> str:
    """Return the memory of one GPU by what it holds, all rows of a step in one micro-batch."""
    step = Step(GPUS[-1])
    kept, kept_plainly = (activations(step.rows, kernels=kernels) for kernels in (True, False))
    copy = WEIGHTS * HALF / FLOAT
    return two_column_table(
        f"{step.rows} rows of {LARGE.data.length} on each of {step.gpus} GPUs",
        {
            "weights, gradients, optimizer state, float32": (
                format_bytes(4 * WEIGHTS),
                f"{parameters(WORK).total / 1e6:.0f}M parameters, `electra describe large`",
            ),
            "… optimizer state sharded by ZeRO-1": (
                format_bytes((2 + 2 / step.gpus) * WEIGHTS),
                "weights and gradients are whole",
            ),
            "… sharded by FSDP": (format_bytes(4 * WEIGHTS / step.gpus), f"÷ {step.gpus}"),
            "weights in bf16": (format_bytes(copy), "FSDP: one block at a time"),
            "activations, DDP": (format_bytes(kept), "with the kernels"),
            "… reserved for CUDA graphs": (format_bytes(kept), "as much again"),
            "activations, FSDP": (
                format_bytes(kept_plainly),
                "with plain modules, without activation checkpointing",
            ),
            "DDP, total": (
                format_bytes(4 * WEIGHTS + copy + 2 * kept),
                f"{(4 * WEIGHTS + copy + 2 * kept) / SITE.gpu_bytes:.0%} of a GPU",
            ),
            "FSDP, total, at least": (
                format_bytes(4 * WEIGHTS / step.gpus + kept_plainly),
                f"{(4 * WEIGHTS / step.gpus + kept_plainly) / SITE.gpu_bytes:.0%} of a GPU",
            ),
        },
    )


# ---- the run -------------------------------------------------------------------------------------


def scale_time() -> str:
    """Return the time of a run, with all communication hidden behind computing and with none."""
    speed, origin = one_gpu()
    lines = table_header(
        "GPUs, DDP",
        "tokens/s, communication hidden",
        "… not hidden",
        "scaling",
        *(f"{steps:,} steps, days" for steps in STEPS),
    )
    for gpus in GPUS:
        step = Step(gpus)
        wire = step.seconds(step.ddp())
        fast, slow = max(step.computing, wire), step.computing + wire
        tokens = LARGE.training.batch_size * LARGE.data.length * filled_fraction()
        days = (f"{steps * fast / 86400:.1f} to {steps * slow / 86400:.1f}" for steps in STEPS)
        lines.append(
            table_row(
                str(gpus),
                f"{tokens / fast / 1e6:.1f}M",
                f"{tokens / slow / 1e6:.1f}M",
                f"{step.computing / slow:.0%} to {step.computing / fast:.0%}",
                *days,
            )
        )
    return "\n".join([*lines, "", f"One GPU: {speed / 1000:.0f}k tokens/s ({origin})."])


def scale_checkpoint() -> str:
    """Return how large, how long and how frequent checkpoints are.

    Young's rule weighs the time that copying may take from the steps against the work that a fault
    undoes.
    """
    step = Step(GPUS[-1])
    whole = 3 * WEIGHTS
    writing, copying = whole / SITE.process_bytes_per_second, whole / SITE.host_bytes_per_second
    gathering = step.seconds(step.share * whole)
    return two_column_table(
        f"checkpoints on {step.gpus} GPUs",
        {
            "one checkpoint": (
                format_bytes(whole),
                "weights and two moments of Adam, float32, full tensors",
            ),
            "kept on disk": (
                format_bytes(LARGE.training.save_total_limit * whole),
                f"`save_total_limit = {LARGE.training.save_total_limit}`",
            ),
            "gathering to the main rank, FSDP": (f"{gathering:.2f} s", "over one link"),
            "copying to the host": (
                f"{1000 * copying:.0f} ms",
                f"into pinned memory, {format_bandwidth(SITE.host_bytes_per_second)}; DDP "
                "overlaps it with the next forward and backward pass, FSDP blocks training",
            ),
            "writing, in the background": (
                f"{writing:.1f} s",
                f"one process, {format_bandwidth(SITE.process_bytes_per_second)}",
            ),
            **cadence_rows(step, copying=copying, gathering=gathering, writing=writing),
        },
    )


def cadence_rows(
    step: Step, *, copying: float, gathering: float, writing: float
) -> dict[str, tuple[str, str]]:
    """Return what checkpoints cost at the recipe's interval, and the best interval."""
    every = LARGE.training.save_steps
    seconds = step.computing + step.seconds(step.ddp())
    between_faults = 3600 / (SITE.faults_per_gpu_hour * step.gpus)
    best = max(math.sqrt(2 * copying * between_faults), writing)
    return {
        f"time between checkpoints, `save_steps = {every:,}`": (
            format_duration(every * seconds),
            f"{1000 * seconds:.0f} ms a step",
        ),
        "… lost to copying, at most": (
            f"{copying / (every * seconds):.3%}",
            f"{copying / seconds:.1f} steps with DDP; "
            f"{(copying + gathering) / seconds:.1f} with FSDP, which gathers first",
        ),
        "time between faults": (
            format_duration(between_faults),
            "419 in 54 days on 16,384 GPUs, as published for Llama 3",
        ),
        "… lost to one fault, on average": (
            format_duration(every * seconds / 2),
            "half the time between two checkpoints",
        ),
        "best checkpoint interval": (
            f"every {round(best / seconds, -2):,.0f} steps, {format_duration(best)}",
            "√(2 · copying · time between faults), or the time of a write if that is longer",
        ),
        "Slurm's warning signal, `--signal=USR1@300`": (
            f"{300 / (writing + seconds):.0f} times the time needed",
            "for the current step and a checkpoint",
        ),
    }


def scale_assumed() -> str:
    """Return the assumptions: the fields of `Site`."""
    lines = [table_row(f"`{f.name}`", f"{getattr(SITE, f.name):.3g}") for f in fields(SITE)]
    return "\n".join([*table_header("assumed", ""), *lines])


TABLES = (scale_corpus, scale_memory, scale_wire, scale_time, scale_checkpoint, scale_assumed)


if __name__ == "__main__":
    print("\n\n".join(table() for table in TABLES))
