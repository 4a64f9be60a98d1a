"""Start small pre-training runs in processes of their own, and wait for what they do."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from electra.config import RunFailed
from electra.runs.journal import read_metrics

ROOT = Path(__file__).parent.parent
STEPS = 24
FLAGS = (
    "--data.length 32 --encoder.layers 2 --encoder.width 32 --encoder.heads 2 "
    "--encoder.feedforward 64 --encoder.embedding 16 --encoder.positions 32 --encoder.dropout 0.1 "
    "--encoder.attention-dropout 0.1 --batch-size 12 --micro-batch-size 4 --warmup-steps 4 "
    f"--logging-steps 1 --eval-steps 12 --eval-rows 24 --save-steps 3 --max-steps {STEPS}"
).split()
WORDS = (
    "the a old small quiet green dog cat house river stone garden sees builds follows carries "
    "paints window letter teacher village winter song bridge"
).split()
TORCHRUN = (
    *("-m", "torch.distributed.run", "--monitor-interval", "0.2"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
)


def pretrain_command(
    data: Path, run: Path, *flags: str, processes: int = 1, restarts: int = 0, before: str = ""
) -> list[str]:
    """Return the command of a small run.

    `before` is Python that each of its processes executes first, knowing its `rank`.
    """
    program = ["-m", "electra"]
    if before:
        program = [str(write_script(run.with_suffix(".py"), before))]
    launcher: list[str] = []
    if processes > 1:
        counts = ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
        launcher = [*TORCHRUN, *counts]
    settings = as_settings(FLAGS) | as_settings(flags)
    folders = ["--data", str(data), "--output-dir", str(run)]
    command = [sys.executable, *launcher, *program, "pretrain", "tiny", *folders]
    for name, value in settings.items():
        command += [name, value]
    return command


def as_settings(flags: list[str] | tuple[str, ...]) -> dict[str, str]:
    return dict(zip(flags[::2], flags[1::2], strict=True))


def write_script(path: Path, before: str) -> Path:
    """Write a script that executes `before` and then the command line."""
    path.write_text(
        f"import os, sys\nrank = int(os.environ.get('RANK', 0))\n{before}\n"
        "from electra.__main__ import main\nsys.exit(main())\n",
        encoding="utf8",
    )
    return path


def start_process(command: list[str]) -> subprocess.Popen[str]:
    """Start a command in a session of its own, with its output in a file."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    # A pipe would fill up before it is read.
    output = tempfile.TemporaryFile("w+", encoding="utf8")  # noqa: SIM115
    process = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )
    process.stdout = output
    return process


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and the output of a process."""
    try:
        process.wait(timeout=300)
    except subprocess.TimeoutExpired:
        # torchrun gives its processes sessions of their own; on SIGTERM it ends them.
        process.terminate()
        process.wait(timeout=60)
    assert process.stdout is not None
    with process.stdout as output:
        output.seek(0)
        return process.returncode, output.read()


def run_to_end(*arguments: Path | str, processes: int = 1, before: str = "") -> tuple[int, str]:
    """Run `pretrain_command` and return its exit code and its output."""
    data, run, *flags = arguments
    command = pretrain_command(
        Path(data), Path(run), *map(str, flags), processes=processes, before=before
    )
    return wait_for_end(start_process(command))


def wait_for_step(
    process: subprocess.Popen[str], run: Path, step: int, *, since: float = 0.0
) -> None:
    """Wait until the journal of the run holds this step, written after `since`."""
    deadline = time.monotonic() + 120
    while not has_step(run, step, since):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RunFailed(f"step {step} of {run.name} was not reached")
        time.sleep(0.01)


def has_step(run: Path, step: int, since: float) -> bool:
    entries = read_metrics(run / "metrics.jsonl")
    return any(entry["step"] >= step and entry["time"] > since for entry in entries)


def worker_pids(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """Return the ids of the processes that a torchrun has at this moment, by rank."""
    pids = {}
    for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        for variable in Path(f"/proc/{child}/environ").read_text().split("\0"):
            if variable.startswith("RANK="):
                pids[int(variable.removeprefix("RANK="))] = int(child)
    return pids


def write_toy_shards(root: Path) -> Path:
    """Write shards of a few hundred documents of random words."""
    from electra.data.options import ShardOptions, VocabularyOptions
    from electra.data.sharding import shard
    from electra.data.vocabulary import train_wordpiece

    chance, text = random.Random(0), root / "text.txt"
    text.write_text(
        "\n\n".join(" ".join(chance.choices(WORDS, k=chance.randint(20, 60))) for _ in range(400))
    )
    tokenizer = train_wordpiece(
        [text],
        root / "tokenizer",
        options=VocabularyOptions(vocab_size=100),
        report=lambda message: None,
    )
    options = ShardOptions(length=32, held_out=0.1, workers=1)
    shard([text], tokenizer=tokenizer, output_dir=root / "rows", options=options)
    return root / "rows"
