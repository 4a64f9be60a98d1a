"""Inject the faults of a cluster again and again, and compare each run with an uninterrupted one.

    python -m benchmarks.soak --minutes 5 [--output benchmarks/results/reliability.json] [--seed 0]
                              [--only NAME …]

The faults are signals, write errors, NaN gradients, flipped bits, other versions and clock jumps.
Weights, optimizer state, models and losses must be bit-identical to the uninterrupted run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import build_parser, run_main, write_result
from electra.config import RunFailed
from electra.runs.journal import read_metrics

ROOT = Path(__file__).parent.parent
STEPS = 24
FLAGS = (
    "--data.length 32 --encoder.layers 2 --encoder.width 32 --encoder.heads 2 "
    "--encoder.feedforward 64 "
    "--encoder.embedding 16 --encoder.positions 32 --encoder.dropout 0.1 "
    "--encoder.attention-dropout 0.1 "
    "--batch-size 12 --micro-batch-size 4 --warmup-steps 4 --logging-steps 1 --eval-steps 12 "
    "--eval-rows 24 "
    f"--save-steps 3 --max-steps {STEPS}"
).split()
WORDS = (
    "the a old small quiet green dog cat house river stone garden sees builds follows carries "
    "paints window "
    "letter teacher village winter song bridge"
).split()


# ---- processes -----------------------------------------------------------------------------------


def command(
    data: Path, run: Path, *more: str, processes: int = 1, restarts: int = 0, before: str = ""
) -> list[str]:
    """Return the command of a small run; each process first runs the code `before`, with `rank`."""
    program = ["-m", "electra"]
    if before:
        script = run.with_suffix(".py")
        script.write_text(
            f"import os, sys\nrank = int(os.environ.get('RANK', 0))\n{before}\n"
            "from electra.__main__ import main\nsys.exit(main())\n",
            encoding="utf8",
        )
        program = [str(script)]
    launcher = (
        []
        if processes == 1
        else [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(processes),
            "--max-restarts",
            str(restarts),
            "--monitor-interval",
            "0.2",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "localhost:0",
        ]
    )
    settings = dict(zip(FLAGS[::2], FLAGS[1::2], strict=True)) | dict(
        zip(more[::2], more[1::2], strict=True)
    )
    return [
        sys.executable,
        *launcher,
        *program,
        "pretrain",
        "tiny",
        "--data",
        str(data),
        "--output-dir",
        str(run),
        *(word for pair in settings.items() for word in pair),
    ]


def started(words: list[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    # A pipe would fill up before it is read.
    output = tempfile.TemporaryFile("w+", encoding="utf8")  # noqa: SIM115
    process = subprocess.Popen(
        words,
        env=environment,
        start_new_session=True,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )
    process.stdout = output
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        process.wait(timeout=300)
    except (
        subprocess.TimeoutExpired
    ):  # torchrun starts its processes in new sessions; on SIGTERM it ends them
        process.terminate()
        process.wait(timeout=60)
    assert process.stdout is not None
    with process.stdout as output:
        output.seek(0)
        return process.returncode, output.read()


def reach(process: subprocess.Popen[str], run: Path, step: int, *, since: float = 0.0) -> None:
    """Wait until the journal has an entry of this step or a later one, written after `since`."""
    deadline = time.monotonic() + 120
    while not any(
        entry["step"] >= step and entry["time"] > since
        for entry in read_metrics(run / "metrics.jsonl")
    ):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RunFailed(f"step {step} of {run.name} was not reached")
        time.sleep(0.01)


def ranks(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """Return the ids of the processes that a torchrun has started, by rank."""
    found = {}
    for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_text().split("\0")
        found |= {
            int(text.removeprefix("RANK=")): int(child)
            for text in variables
            if text.startswith("RANK=")
        }
    return found


# ---- faults --------------------------------------------------------------------------------------


@dataclass
class Soak:
    """The folders of the runs, and the random numbers that decide when a fault occurs."""

    root: Path
    data: Path
    chance: random.Random
    tried: int = 0
    said: str = ""  # the output of the last run with a fault
    whole: dict[tuple[int, int], Path] = field(
        default_factory=dict
    )  # uninterrupted runs by processes and steps

    def fresh(self) -> Path:
        self.tried += 1
        return self.root / f"run-{self.tried}"

    def unbroken(self, processes: int, steps: int) -> Path:
        if (processes, steps) not in self.whole:
            run = self.root / f"whole-{processes}-{steps}"
            self.finish(run, processes=processes, steps=steps)
            self.whole[processes, steps] = run
        return self.whole[processes, steps]

    def finish(self, run: Path, *, processes: int = 1, steps: int = STEPS) -> str:
        code, output = ended(
            started(command(self.data, run, "--max-steps", str(steps), processes=processes))
        )
        if code:
            raise RunFailed(f"{run.name} did not finish: {output[-2000:]}")
        return output

    def same(self, run: Path, *, processes: int = 1, steps: int = STEPS) -> bool:
        """Return whether weights, optimizer state, models and losses match an uninterrupted run."""
        from safetensors.torch import load_file

        whole = self.unbroken(processes, steps)
        files = [
            path.relative_to(whole)
            for path in (
                *whole.glob(f"checkpoint-{steps}/*.safetensors"),
                *whole.glob("*/model.safetensors"),
            )
        ]
        ours, theirs = (
            [
                (entry["step"], entry["loss"])
                for entry in read_metrics(place / "metrics.jsonl")
                if "loss" in entry
            ]
            for place in (run, whole)
        )
        return ours == theirs and all(
            tensor.equal(after[name])
            for file in files
            for before, after in [(load_file(whole / file), load_file(run / file))]
            for name, tensor in before.items()
        )


def kill_a_rank(soak: Soak, *, times: int = 1, steps: int = STEPS) -> bool:
    """SIGKILL to one of three ranks at a random step; torchrun restarts them"""
    run, killed, since = soak.fresh(), set[int](), 0.0
    process = started(
        command(soak.data, run, "--max-steps", str(steps), processes=3, restarts=times)
    )
    for step in sorted(soak.chance.choices(range(1, steps * 5 // 6), k=times)):
        reach(process, run, step, since=since)
        while killed & set((alive := ranks(process)).values()) or len(alive) < 3:
            time.sleep(0.01)
        since, victim = time.time(), soak.chance.choice(list(alive.values()))
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
    code, soak.said = ended(process)
    return code == 0 and soak.same(run, processes=3, steps=steps)


def kill_ranks(soak: Soak) -> bool:
    """SIGKILL to a random one of three ranks, twenty times in one run; torchrun restarts them"""
    return kill_a_rank(soak, times=20, steps=300)


def kill_all(soak: Soak) -> bool:
    """SIGKILL to the run at a random moment; the same command again"""
    run = soak.fresh()
    process = started(command(soak.data, run, "--save-steps", "1"))
    reach(process, run, soak.chance.randint(1, STEPS - 4))
    time.sleep(soak.chance.random() * 0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    soak.finish(run)
    return soak.same(run)


def terminate(soak: Soak) -> bool:
    """SIGTERM: writes a checkpoint, exit status 75; the same command again"""
    run = soak.fresh()
    process = started(command(soak.data, run))
    reach(process, run, soak.chance.randint(1, STEPS - 8))
    process.send_signal(signal.SIGTERM)
    code, soak.said = ended(process)
    status = json.loads((run / "status.json").read_text(encoding="utf8"))
    kept = (run / f"checkpoint-{status['step']}").is_dir()
    soak.finish(run)
    return code == 75 and status["status"] == "stopped" and kept and soak.same(run)


def fill_the_disk(soak: Soak) -> bool:
    """a full disk while a checkpoint or the journal is written; the same command again"""
    run = soak.fresh()
    strike = soak.chance.choice(
        [
            "from electra.runs import checkpoint as place; name = 'save_file'",
            "from electra.runs.journal import Journal as place; name = 'record'",
        ]
    )
    code, soak.said = ended(
        started(
            command(
                soak.data,
                run,
                before=(
                    f"{strike}\nreal, calls = getattr(place, name), []\n"
                    "def full(*arguments, **options):\n"
                    f"    calls.append(1)\n    if len(calls) > {soak.chance.randint(2, 10)}:\n"
                    "        raise OSError(28, 'No space left on device')\n    return "
                    "real(*arguments, **options)\n"
                    "setattr(place, name, full)"
                ),
            )
        )
    )
    soak.finish(run)
    return code == 1 and "No space left on device" in soak.said and soak.same(run)


def spoil_a_gradient(soak: Soak) -> bool:
    """NaN in a gradient at a random step: stops and names the tensor; the same command again"""
    run = soak.fresh()
    step = soak.chance.randint(2, STEPS - 1)
    code, soak.said = ended(
        started(
            command(
                soak.data,
                run,
                before=(
                    "from electra.engine.train_step import PlainTrainStep\nreal, calls = "
                    "PlainTrainStep.forward_backward, []\n"
                    "def spoilt(steps, *arguments, **options):\n"
                    "    calls.append(1)\n    losses = real(steps, *arguments, **options)\n"
                    f"    if len(calls) >= {step}:\n        "
                    "steps.module.discriminator.output.bias.grad.fill_(float('nan'))\n"
                    "    return losses\nPlainTrainStep.forward_backward = spoilt"
                ),
            )
        )
    )
    soak.finish(run)
    said = f"the gradient of discriminator.output.bias is not finite in step {step}" in soak.said
    return code == 1 and said and soak.same(run)


def spoil_a_checkpoint(soak: Soak) -> bool:
    """a bit flipped in the newest checkpoint: skipped with a warning, the previous one is used"""
    run = soak.fresh()
    process = started(command(soak.data, run))
    reach(process, run, 10)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    newest = max(run.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    flip(newest / soak.chance.choice(["weights.safetensors", "optimizer.safetensors"]), soak.chance)
    return "is damaged" in soak.finish(run) and soak.same(run)


def spoil_a_shard(soak: Soak) -> bool:
    """a bit flipped in a shard: refused before step 1, the message names the file"""
    run = soak.fresh()
    data = run.with_suffix(".data")
    shutil.copytree(soak.data, data)
    file = soak.chance.choice(sorted(data.glob("*.ids.npy")))
    flip(file, soak.chance)
    code, soak.said = ended(started(command(data, run)))
    return code == 2 and file.name in soak.said and not (run / "metrics.jsonl").exists()


def stop_a_rank(soak: Soak) -> bool:
    """SIGSTOP to one of three ranks: named after the timeout; the same command again"""
    run = soak.fresh()
    process = started(command(soak.data, run, "--timeout-minutes", "0.15", processes=3))
    reach(process, run, soak.chance.randint(1, STEPS - 8))
    hung, pid = soak.chance.choice([pair for pair in ranks(process).items() if pair[0]])
    os.kill(pid, signal.SIGSTOP)
    time.sleep(16)
    os.kill(pid, signal.SIGKILL)  # torchrun would wait 30 seconds for it
    code, soak.said = ended(process)
    soak.finish(run, processes=3)
    return code != 0 and f"rank {hung} fell silent" in soak.said and soak.same(run, processes=3)


def start_twice(soak: Soak) -> bool:
    """a second run in the same folder: refused, exit status 2; the first one continues"""
    run = soak.fresh()
    process = started(command(soak.data, run))
    reach(process, run, 1)
    code, soak.said = ended(started(command(soak.data, run)))
    first, _ = ended(process)
    return (code, first) == (2, 0) and f"process {process.pid} on " in soak.said and soak.same(run)


def mix_versions(soak: Soak) -> bool:
    """a rank with another version: refused, the message names both versions"""
    run = soak.fresh()
    code, soak.said = ended(
        started(
            command(
                soak.data,
                run,
                processes=2,
                before=("import electra\nelectra.__version__ += '.other' * (rank == 1)"),
            )
        )
    )
    return code != 0 and "are not alike" in soak.said and ".other' in rank 1" in soak.said


def turn_the_clock(soak: Soak) -> bool:
    """the system clock jumps by years, back and ahead, at every reading"""
    run = soak.fresh()
    code, soak.said = ended(
        started(
            command(
                soak.data,
                run,
                before=(
                    "import random, time\nreal = time.time\ntime.time = lambda: real() + "
                    "random.uniform(-1e9, 1e9)"
                ),
            )
        )
    )
    sane = all(
        0 < entry["tokens_per_second"] < 1e9
        for entry in read_metrics(run / "metrics.jsonl")
        if "loss" in entry
    )
    return code == 0 and sane and soak.same(run)


FAULTS: tuple[Callable[[Soak], bool], ...] = (
    kill_a_rank,
    kill_all,
    terminate,
    fill_the_disk,
    spoil_a_gradient,
    spoil_a_checkpoint,
    spoil_a_shard,
    stop_a_rank,
    start_twice,
    mix_versions,
    turn_the_clock,
    kill_ranks,
)


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content) // 2, len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def toy_data(root: Path) -> Path:
    """Write a few hundred documents of random words and make shards of them."""
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


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=5.0,
        help="start no fault after this time; each fault is injected at least once",
    )
    parser.add_argument("--output")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[fault.__name__ for fault in FAULTS])
    options = parser.parse_args()
    began, faults = time.monotonic(), [fault for fault in FAULTS if fault.__name__ in options.only]
    kept = {
        fault.__name__: {"fault": str(fault.__doc__), "tried": 0, "survived": 0} for fault in faults
    }
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), toy_data(Path(folder)), random.Random(options.seed))
        rounds = 0
        while not rounds or time.monotonic() - began < 60 * options.minutes:
            for fault in faults:
                if rounds and time.monotonic() - began > 60 * options.minutes:
                    break
                entry = kept[fault.__name__]
                entry["tried"] = int(entry["tried"]) + 1
                survived = fault(soak)
                entry["survived"] = int(entry["survived"]) + survived
                print(
                    f"{(time.monotonic() - began) / 60:5.1f} min  "
                    f"{'ok    ' if survived else 'FAILED'}  "
                    f"{fault.__doc__}",
                    flush=True,
                )
                if not survived:
                    print(soak.said[-4000:], file=sys.stderr)
                if options.output:  # an interrupted soak keeps its results
                    minutes = round((time.monotonic() - began) / 60, 1)
                    write_result(
                        options.output,
                        {
                            "minutes": minutes,
                            "seed": options.seed,
                            "faults": {name: each for name, each in kept.items() if each["tried"]},
                        },
                    )
            rounds += 1


if __name__ == "__main__":
    run_main(main)
