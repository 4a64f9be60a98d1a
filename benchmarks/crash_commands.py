"""The commands that `benchmarks.crash` and `benchmarks.power_loss` interrupt, with tiny inputs."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak_runs import WORDS
from electra.config import RunFailed

OUTPUT = "out"  # the folder that a command writes, below its working folder
ENCODER = (
    "--data.length 32 --encoder.layers 1 --encoder.width 16 --encoder.heads 1 "
    "--encoder.feedforward 16 --encoder.embedding 16 --encoder.positions 32"
)
PRETRAIN = (
    f"pretrain tiny --data ../inputs/rows --output-dir {OUTPUT} {ENCODER} --batch-size 4 "
    "--micro-batch-size 2 --warmup-steps 1 --logging-steps 1 --eval-steps 3 --eval-rows 4 "
    "--save-steps 2 --max-steps 5 --save-total-limit 1"
)
FINETUNE = (
    f"finetune ../inputs/model --task classify --train ../inputs/rows.csv --dev ../inputs/rows.csv "
    f"--dev-on-train --output-dir {OUTPUT} --seeds 2 --max-steps 3 --save-steps 1 --batch-size 4 "
    "--length 32 --logging-steps 1"
)
SHARD = (
    f"shard ../inputs/text.txt ../inputs/more.txt --tokenizer ../inputs/tokenizer "
    f"--output-dir {OUTPUT} --length 32 --held-out 0.1 --workers 1"
)
PART = f"{SHARD} --by-file --part"  # each part reads one of the two files
SWEEP = (
    f"trials run efficiency --arms electra --scale ../inputs/scale.toml --data ../inputs/rows "
    f"--glue ../inputs/glue --tasks glue/rte --output-dir {OUTPUT} --quiet"
)
SCALE = """title = "a few steps of a toy network"
steps = 3
warmup_ratio = 0.25
[settings]
data = {length = 32, vocab_size = 100, held_out = 0.1}
encoder.positions = 32
training = {batch_size = 4, micro_batch_size = 4, eval_rows = 4, save_steps = 2, logging_steps = 1}
[sizes.base]
encoder = {layers = 1, width = 16, heads = 1, feedforward = 16, embedding = 16}
[evaluation]
tasks = ["glue/rte"]
[evaluation.settings]
max_train_examples = 4
max_steps = 2
batch_size = 4
length = 32
save_steps = 1
logging_steps = 1
"""


@dataclass(frozen=True)
class Command:
    """Command lines that are run in a row, in one process or in several."""

    what: str
    lines: Sequence[str]
    inputs: Sequence[Callable[[Path], None]]  # functions that write what it reads
    processes: int = 1

    def run(self, at_end: Callable[[], None] = lambda: None) -> int:
        """Run in this process, or in forked ones; return the first exit code that is not 0.

        The main process calls `at_end`.
        """
        if self.processes > 1:
            return run_ranks(self.lines, self.processes, at_end)
        code = run_lines(self.lines)
        at_end()
        return code


def run_lines(lines: Sequence[str]) -> int:
    from electra.__main__ import main
    from electra.data.sharding import shard

    assert shard.__kwdefaults__ is not None
    shard.__kwdefaults__["shard_bytes"] = 8192  # several shards of a tiny corpus
    for line in lines:
        if code := main(line.split()):
            return code
    return 0


def run_ranks(lines: Sequence[str], processes: int, at_end: Callable[[], None]) -> int:
    """Fork the ranks of a process group and wait for all; keep their store here, as torchrun does.

    The store starts threads, so it comes after the forks.
    """
    from torch.distributed import TCPStore

    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    os.environ |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            code = run_lines(lines)
            if rank == 0:
                at_end()
            os._exit(code)
        children.append(child)
    store = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    del store
    return max(map(os.waitstatus_to_exitcode, statuses))


# ---- inputs, each as small as it may be ----------------------------------------------------------


def write_texts(folder: Path) -> None:
    chance = random.Random(0)
    for name in ("text.txt", "more.txt"):
        documents = [" ".join(chance.choices(WORDS, k=chance.randint(20, 60))) for _ in range(60)]
        (folder / name).write_text("\n\n".join(documents), encoding="utf8")


def write_tokenizer(folder: Path) -> None:
    from electra.data.options import VocabularyOptions
    from electra.data.vocabulary import train_wordpiece

    train_wordpiece(
        [folder / "text.txt"],
        folder / "tokenizer",
        options=VocabularyOptions(vocab_size=100),
        report=lambda message: None,
    )


def write_shards(folder: Path) -> None:
    line = f"shard {folder}/text.txt --tokenizer {folder}/tokenizer --output-dir {folder}/rows"
    check_done(f"{line} --length 32 --held-out 0.1 --workers 1")


def write_task_data(folder: Path) -> None:
    """Write a table of labelled texts, and the files of RTE as GLUE names them."""
    chance = random.Random(0)
    rows = [f"{' '.join(chance.choices(WORDS, k=6))},{'ab'[row % 2]}" for row in range(8)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf8")
    (folder / "scale.toml").write_text(SCALE, encoding="utf8")
    (folder / "glue" / "RTE").mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        lines = ["index\tsentence1\tsentence2\tlabel"]
        for row in range(6):
            first, second = (" ".join(chance.choices(WORDS, k=5)) for _ in range(2))
            label = ("entailment", "not_entailment")[row % 2]
            lines.append(f"{row}\t{first}\t{second}\t{label}")
        (folder / "glue" / "RTE" / name).write_text("\n".join(lines) + "\n", encoding="utf8")


def write_model(folder: Path) -> None:
    """Pre-train the model that is fine-tuned, for one step."""
    flags = "--batch-size 2 --micro-batch-size 2 --warmup-steps 1 --eval-rows 2 --max-steps 1"
    run = folder / "run"
    check_done(f"pretrain tiny --data {folder}/rows --output-dir {run} {ENCODER} {flags}")
    (run / "discriminator").rename(folder / "model")


def check_done(line: str) -> None:
    if code := run_lines([line]):
        raise RunFailed(f"`electra {line}`: exit code {code}")


TEXTS = (write_texts,)
TOKENIZER = (*TEXTS, write_tokenizer)
SHARDS = (*TOKENIZER, write_shards)
MODEL = (*SHARDS, write_task_data, write_model)
COMMANDS = {
    "vocab": Command(
        "`electra vocab`",
        [f"vocab ../inputs/text.txt --output-dir {OUTPUT} --vocab-size 100"],
        TEXTS,
    ),
    "shard": Command("`electra shard`", [SHARD], TOKENIZER),
    "parts": Command(
        "`electra shard --part` twice, then `--merge`",
        [f"{PART} 1/2", f"{PART} 2/2", f"shard --merge --output-dir {OUTPUT}"],
        TOKENIZER,
    ),
    "pretrain": Command("`electra pretrain`", [PRETRAIN], SHARDS),
    "finetune": Command("`electra finetune`, two seeds", [FINETUNE], MODEL),
    "sweep": Command("`electra trials run`, one arm and one task", [SWEEP], MODEL),
    "fsdp": Command(
        "`electra pretrain --parallel fsdp`, two processes",
        [f"{PRETRAIN} --parallel fsdp --timeout-minutes 5"],
        SHARDS,
        processes=2,
    ),
}
