"""What a terabyte of text and ELECTRA-Large on many GPUs would take, derived: nothing here is
measured anew.

    python -m benchmarks.scale        # prints the tables of docs/scale.md; `python -m benchmarks.tables` writes them

Counted by the code itself: parameters, operations, memory, the formats of shards and checkpoints.
Measured elsewhere and kept in benchmarks/results: the speed of one GPU and of cutting text, how
full rows are. Assumed: `Site`, no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from statistics import median

import numpy as np

from benchmarks.markdown import (
    Result,
    read_result,
    table_header,
    table_row,
)
from electra.data.examples import token_dtype
from electra.data.sharding import SHARD_BYTES
from electra.model.flops import parameters, standard
from electra.model.memory import FLOAT, training_bytes
from electra.pretraining.recipe import load_recipe

HALF = 2  # bytes of bf16
GPUS = (8, 16, 32, 64)
STEPS = (400_000, 1_750_000)  # paper: ELECTRA-400K and ELECTRA-1.75M
LARGE = load_recipe("large")
WORK = LARGE.workload(LARGE.data.vocab_size)
WEIGHTS = parameters(WORK).total * FLOAT  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What nobody can derive: the corpus and the cluster. Change it here, and every table follows."""

    text_bytes: float = 1e12  # as UTF-8
    bytes_per_token: float = 4.5  # of English in a vocabulary of 30,522
    gzip_ratio: float = 2.7  # text to its .jsonl.gz
    machines: int = 64  # that cut the corpus
    cores: int = 16  # of each
    disk_bytes_per_second: float = 5e9  # the shared file system, for all readers together
    process_bytes_per_second: float = 1e9  # reading or writing it in one process, checksum included
    host_bytes_per_second: float = (
        50e9  # from a GPU into pinned memory (PCIe 5, sixteen lanes, four fifths of it)
    )
    gpus_per_node: int = 8
    gpu_bytes: float = 141e9  # memory of a GPU (H200, as the vendor states it)
    node_bytes_per_second: float = (
        450e9  # within a node, a GPU, each way (NVLink 4, as the vendor states it)
    )
    network_bytes_per_second: float = (
        50e9  # between nodes, a GPU, each way (an adapter of 400 Gbit/s for each)
    )
    link_efficiency: float = 0.7  # the share of those speeds that large collectives reach
    faults_per_gpu_hour: float = 419 / (
        54 * 24 * 16384
    )  # published for Llama 3: interruptions nobody had planned


SITE = Site()


# ---- the corpus ----------------------------------------------------------------------------------


def scale_corpus() -> str:
    site, length = SITE, LARGE.data.length
    tokens = site.text_bytes / site.bytes_per_token
    row_bytes = (
        length * token_dtype(LARGE.data.vocab_size).itemsize + 2 * np.dtype(np.uint16).itemsize
    )  # ids; two ends
    rows = tokens / (length * fill())
    shards, compressed = rows * row_bytes, site.text_bytes / site.gzip_ratio
    kept = read_result("shard")
    core = median(kept["shard"]) * 1e6 / kept["made"]["threads"]
    cutting = site.text_bytes / (core * site.cores)
    read, disk = (
        site.machines * compressed / site.disk_bytes_per_second,
        rate(site.disk_bytes_per_second),
    )
    return table(
        f"{size(site.text_bytes)} of text, rows of {length}",
        {
            "as `.jsonl.gz`": (size(compressed), f"{site.gzip_ratio} to 1"),
            "tokens": (f"{tokens / 1e9:,.0f} billion", f"{site.bytes_per_token} bytes each"),
            "rows": (
                f"{rows / 1e6:,.0f} million",
                f"{fill():.0%} full, as the rows of `benchmarks.small_gpu` were",
            ),
            "shards": (
                size(shards),
                f"{row_bytes:,} bytes a row; {shards / SHARD_BYTES:,.0f} of {SHARD_BYTES >> 20} MB",
            ),
            f"cutting, one machine of {site.cores} cores": (
                span(cutting),
                f"{core / 1e6:.2f} MB/s a core, as measured on {kept['made']['processor']}",
            ),
            f"… {site.machines} machines, `--by-file`": (
                span(cutting / site.machines),
                "a part reads its own files alone",
            ),
            "… without `--by-file`, at least": (
                span(max(read, cutting / site.machines)),
                f"every part reads everything, {size(site.machines * compressed)} in all, {disk}",
            ),
            "`electra shard --merge`": (
                span(shards / site.process_bytes_per_second),
                f"one process reads every byte, {rate(site.process_bytes_per_second)}",
            ),
            f"checked at every start of a run on {GPUS[-1]} GPUs": (
                span(
                    shards
                    / min(site.disk_bytes_per_second, GPUS[-1] * site.process_bytes_per_second)
                ),
                f"every process reads its share, {disk} in all",
            ),
            **{
                f"epochs in {steps:,} steps": (
                    f"{steps * LARGE.training.batch_size / rows:.2f}",
                    f"{LARGE.training.batch_size:,} rows a step",
                )
                for steps in STEPS
            },
        },
    )


def fill() -> float:
    """The share of a row that is text and not padding, as training on packed text found it."""
    found = read_result("small_gpu")["pretraining"]
    rows, length = map(int, found["rows"].split(" × "))
    return float(found["tokens_seen"] / (found["steps"] * rows * length))


# ---- one step ------------------------------------------------------------------------------------


def one_gpu(kept: Result | None = None) -> tuple[float, str]:
    """Tokens a second of Large, and where that comes from: measured, or as many operations a second
    as the largest network that was measured at rows as long.
    """
    found = read_result("pretrain_gpu") if kept is None else kept
    measured = {
        name: entry
        for part in ("scaling", "base")
        for name, entry in found.get(part, {}).items()
        if entry["length"] == LARGE.data.length
        and "tokens_per_second" in entry["sides"].get("ours_fast", {})
    }
    for name, entry in measured.items():
        if entry["size"] == "large":
            return entry["sides"]["ours_fast"][
                "tokens_per_second"
            ], f"measured, {name}, {entry['made']['hardware']}"
    name, entry = max(measured.items(), key=lambda each: each[1]["flops_per_token"])
    flops = entry["flops_per_token"] * entry["sides"]["ours_fast"]["tokens_per_second"]
    return flops / standard(WORK).training, (
        f"not measured; {flops / 1e12:.0f} TFLOP/s, as measured at {name} on "
        f"{entry['made']['hardware']}"
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One step on so many GPUs: bytes that each of them sends, and seconds."""

    gpus: int

    @property
    def rows(self) -> int:
        return LARGE.training.batch_size // self.gpus

    @property
    def computing(self) -> float:
        return self.rows * LARGE.data.length * fill() / one_gpu()[0]

    def micro_batches(self, fixed: float) -> int:
        """Micro-batches that one GPU takes them in, `fixed` bytes of its memory being taken before
        any.
        """
        for count in range(1, self.rows + 1):
            if (
                self.rows % count == 0
                and fixed + activations(self.rows // count) < 0.8 * SITE.gpu_bytes
            ):
                return count
        raise ValueError(f"not one row of Large fits in {SITE.gpu_bytes / 1e9:.0f} GB")

    def ddp(self) -> float:
        """All-reduce of float32 gradients, once a step: each GPU sends 2 (N − 1) / N of them."""
        return 2 * self.share * WEIGHTS

    def fsdp(self, weight_bytes: int = FLOAT) -> float:
        """All-gather of the weights before the forward and again before the backward of each pass,
        then reduce-scatter of float32 gradients, each (N − 1) / N of all.
        """
        micro_batches = self.micro_batches(fixed=4 * WEIGHTS / self.gpus)
        return micro_batches * (
            2 * self.share * WEIGHTS * weight_bytes / FLOAT + self.share * WEIGHTS
        )

    @property
    def share(self) -> float:
        return (self.gpus - 1) / self.gpus

    def seconds(self, sent: float) -> float:
        """The slowest link on the way sets the pace of a ring."""
        link = (
            SITE.network_bytes_per_second
            if self.gpus > SITE.gpus_per_node
            else SITE.node_bytes_per_second
        )
        return sent / (link * SITE.link_efficiency)


def activations(rows: int, *, kernels: bool = False) -> float:
    terms = training_bytes(WORK, rows=rows, activation_bytes=HALF, kernels=kernels)
    return sum(value for name, value in terms.items() if name.endswith("activations"))


def scale_wire() -> str:
    """What each GPU sends in a step, how long that takes, and beside it how long the step computes."""
    lines = table_header(
        "GPUs",
        "rows a GPU",
        "computing",
        "DDP sends",
        "on the wire",
        "FSDP sends, fp32",
        "on the wire",
        "FSDP sends, bf16 weights",
        "on the wire",
    )
    for gpus in GPUS:
        step = Step(gpus)
        sent = (step.ddp(), step.fsdp(), step.fsdp(HALF))
        cells = (
            cell for each in sent for cell in (size(each), f"{1000 * step.seconds(each):.0f} ms")
        )
        lines.append(
            table_row(str(gpus), str(step.rows), f"{1000 * step.computing:.0f} ms", *cells)
        )
    return "\n".join(lines)


def scale_memory() -> str:
    """A GPU's share by what it holds, rows of a whole step in one pass."""
    step = Step(GPUS[-1])
    kept, kept_plainly = (activations(step.rows, kernels=kernels) for kernels in (True, False))
    copy = WEIGHTS * HALF / FLOAT
    return table(
        f"{step.rows} rows of {LARGE.data.length} on each of {step.gpus} GPUs",
        {
            "weights, gradients, Adam's slots, float32": (
                size(4 * WEIGHTS),
                f"{parameters(WORK).total / 1e6:.0f}M parameters, `electra describe large`",
            ),
            "… sharded by FSDP": (size(4 * WEIGHTS / step.gpus), f"÷ {step.gpus}"),
            "weights in bf16": (size(copy), "FSDP: a block at a time"),
            "activations, DDP": (size(kept), "by the kernels"),
            "activations, FSDP": (size(kept_plainly), "by plain modules, nothing recomputed"),
            "DDP in all": (
                size(4 * WEIGHTS + copy + kept),
                f"{(4 * WEIGHTS + copy + kept) / SITE.gpu_bytes:.0%} of a GPU",
            ),
            "FSDP in all, at least": (
                size(4 * WEIGHTS / step.gpus + kept_plainly),
                f"{(4 * WEIGHTS / step.gpus + kept_plainly) / SITE.gpu_bytes:.0%} of a GPU",
            ),
        },
    )


# ---- the run -------------------------------------------------------------------------------------


def scale_time() -> str:
    """From all of the communication hidden behind computing to none of it."""
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
        tokens = LARGE.training.batch_size * LARGE.data.length * fill()
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
    """How large, how long, how often: Young's rule weighs the time that copying may take from the
    steps against the work that a fault undoes.
    """
    step, every = Step(GPUS[-1]), LARGE.training.save_steps
    taken = step.computing + step.seconds(step.ddp())
    whole = 3 * WEIGHTS
    writing, copying = whole / SITE.process_bytes_per_second, whole / SITE.host_bytes_per_second
    gathering = step.seconds(step.share * whole)
    between_faults = 3600 / (SITE.faults_per_gpu_hour * step.gpus)
    best = max(math.sqrt(2 * copying * between_faults), writing)
    return table(
        f"checkpoints on {step.gpus} GPUs",
        {
            "one checkpoint": (size(whole), "weights and Adam's two slots, float32, whole tensors"),
            "kept at once": (
                size(LARGE.training.save_total_limit * whole),
                f"`save_total_limit = {LARGE.training.save_total_limit}`",
            ),
            "gathered by FSDP to the leading process": (f"{gathering:.2f} s", "over its one link"),
            "copying": (
                f"{1000 * copying:.0f} ms",
                f"into pinned memory, {rate(SITE.host_bytes_per_second)}; beside the "
                "next pass by DDP, while steps stand still by FSDP",
            ),
            "writing, beside them": (
                f"{writing:.1f} s",
                f"one process, {rate(SITE.process_bytes_per_second)}",
            ),
            f"between two, `save_steps = {every:,}`": (
                span(every * taken),
                f"{1000 * taken:.0f} ms a step",
            ),
            "… lost to copying, at most": (
                f"{copying / (every * taken):.3%}",
                f"{copying / taken:.1f} steps by DDP; "
                f"{(copying + gathering) / taken:.1f} by FSDP, which gathers first",
            ),
            "between two faults": (
                span(between_faults),
                "419 in 54 days on 16,384 GPUs, as published for Llama 3",
            ),
            "… lost to one, on average": (
                span(every * taken / 2),
                "half the time between two checkpoints",
            ),
            "best cadence": (
                f"every {round(best / taken, -2):,.0f} steps, {span(best)}",
                "√(2 · copying · between faults), if that is longer than writing",
            ),
            "Slurm's warning, `--signal=USR1@300`": (
                f"{300 / (writing + taken):.0f} times enough",
                "for the step at hand and a checkpoint",
            ),
        },
    )


def scale_assumed() -> str:
    """What was not derived, as it stands in `Site`."""
    return table(
        "assumed",
        {f"`{field.name}`": (f"{getattr(SITE, field.name):.3g}", "") for field in fields(SITE)},
        columns=1,
    )


TABLES = (scale_corpus, scale_memory, scale_wire, scale_time, scale_checkpoint, scale_assumed)


# ---- how numbers are shown -----------------------------------------------------------------------


def table(title: str, rows: dict[str, tuple[str, str]], *, columns: int = 2) -> str:
    lines: Iterator[str] = (table_row(what, *cells[:columns]) for what, cells in rows.items())
    return "\n".join([*table_header(title, *("", "from")[:columns]), *lines])


def size(count: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"


def rate(bytes_per_second: float) -> str:
    return f"{size(bytes_per_second)}/s"


def span(seconds: float) -> str:
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} seconds"


if __name__ == "__main__":
    print("\n\n".join(each() for each in TABLES))
