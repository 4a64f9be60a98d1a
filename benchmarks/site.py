"""The run, the corpus and the cluster that `benchmarks.scale` computes for."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.markdown import read_result
from electra.model.flops import parameters
from electra.model.workload import FLOAT
from electra.pretraining.recipe import load_recipe

HALF = 2  # bytes of bf16
GPUS = (8, 16, 32, 64)
STEPS = (400_000, 1_750_000)  # paper: ELECTRA-400K and ELECTRA-1.75M
LARGE = load_recipe("large")
WORK = LARGE.workload(LARGE.data.vocab_size)
WEIGHTS = parameters(WORK).total * FLOAT  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """The assumptions about the corpus and the cluster, from which every table follows."""

    text_bytes: float = 1e12  # as UTF-8
    bytes_per_token: float = 4.5  # of English in a vocabulary of 30,522
    gzip_ratio: float = 2.7  # text to its .jsonl.gz
    machines: int = 64  # that cut the corpus
    cores: int = 16  # of each
    disk_bytes_per_second: float = 5e9  # the shared file system, for all readers together
    process_bytes_per_second: float = 1e9  # reading or writing it in one process, checksum included
    # from a GPU into pinned memory (PCIe 5, sixteen lanes, four fifths of it)
    host_bytes_per_second: float = 50e9
    gpus_per_node: int = 8
    gpu_bytes: float = 141e9  # memory of a GPU (H200, as the vendor states it)
    # within a node, a GPU, each way (NVLink 4, as the vendor states it)
    node_bytes_per_second: float = 450e9
    # between nodes, a GPU, each way (an adapter of 400 Gbit/s for each)
    network_bytes_per_second: float = 50e9
    link_efficiency: float = 0.7  # the share of those speeds that large collectives reach
    # published for Llama 3: interruptions that were not planned
    faults_per_gpu_hour: float = 419 / (54 * 24 * 16384)


SITE = Site()


def filled_fraction() -> float:
    """Return the fraction of a row of 512 that is text and not padding, in measured steps."""
    return float(read_result("pretrain_gpu")["base"]["base 64 × 512"]["fill"])
