"""Inject faults into real runs, and compare each result with an uninterrupted run's.

    python -m benchmarks.soak --minutes 5 [--output benchmarks/results/reliability/soak.json]
                              [--seed 0] [--only NAME …]

The faults are signals, write errors, NaN gradients, flipped bits, other versions and clock jumps.
Weights, optimizer state, models and losses must be bit-identical to the uninterrupted run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file

from benchmarks.harness import Result, build_parser, run_main, write_result
from benchmarks.soak_runs import (
    STEPS,
    pretrain_command,
    run_to_end,
    start_process,
    wait_for_end,
    wait_for_step,
    worker_pids,
    write_toy_shards,
)
from electra.config import RunFailed
from electra.runs.journal import read_metrics

FILL_DISK = """
{target}
original, calls = getattr(owner, name), []
def full(*arguments, **options):
    calls.append(1)
    if len(calls) > {calls}:
        raise OSError(28, 'No space left on device')
    return original(*arguments, **options)
setattr(owner, name, full)
"""
SPOIL_GRADIENT = """
from electra.engine.train_step import PlainTrainStep
original, calls = PlainTrainStep.forward_backward, []
def spoil(steps, *arguments, **options):
    calls.append(1)
    losses = original(steps, *arguments, **options)
    if len(calls) >= {step}:
        steps.module.discriminator.output.bias.grad.fill_(float('nan'))
    return losses
PlainTrainStep.forward_backward = spoil
"""
TURN_CLOCK = """
import random, time
original = time.time
time.time = lambda: original() + random.uniform(-1e9, 1e9)
"""


@dataclass
class Soak:
    """The folder of the runs, and the random numbers that choose the moments of faults."""

    root: Path
    data: Path
    rng: random.Random
    runs: int = 0
    output: str = ""  # of the run that a fault struck
    uninterrupted: dict[tuple[int, int], Path] = field(
        default_factory=dict
    )  # by processes and steps

    def new_run(self) -> Path:
        self.runs += 1
        return self.root / f"run-{self.runs}"

    def uninterrupted_run(self, processes: int, steps: int) -> Path:
        """Return a run without faults; make it when it is first needed."""
        if (processes, steps) not in self.uninterrupted:
            run = self.root / f"whole-{processes}-{steps}"
            self.finish(run, processes=processes, steps=steps)
            self.uninterrupted[processes, steps] = run
        return self.uninterrupted[processes, steps]

    def finish(self, run: Path, *, processes: int = 1, steps: int = STEPS) -> str:
        """Run, or continue, to the end, and return the output."""
        flags = ("--max-steps", str(steps))
        code, output = run_to_end(self.data, run, *flags, processes=processes)
        if code:
            raise RunFailed(f"{run.name} did not finish: {output[-2000:]}")
        return output

    def is_identical(self, run: Path, *, processes: int = 1, steps: int = STEPS) -> bool:
        """Return whether weights, optimizer, models and losses match an uninterrupted run's."""
        whole = self.uninterrupted_run(processes, steps)
        files = [
            *whole.glob(f"checkpoint-{steps}/*.safetensors"),
            *whole.glob("*/model.safetensors"),
        ]
        same_tensors = [have_same_tensors(file, run / file.relative_to(whole)) for file in files]
        return losses_of(run) == losses_of(whole) and all(same_tensors)


def losses_of(run: Path) -> list[tuple[int, float]]:
    entries = read_metrics(run / "metrics.jsonl")
    return [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]


def have_same_tensors(first: Path, second: Path) -> bool:
    expected, actual = load_file(first), load_file(second)
    return all(tensor.equal(actual[name]) for name, tensor in expected.items())


# ---- faults --------------------------------------------------------------------------------------


def kill_a_rank(soak: Soak, *, times: int = 1, steps: int = STEPS) -> bool:
    """Kill one process of three at a random step; torchrun restarts them."""
    run, killed, since = soak.new_run(), set[int](), 0.0
    process = start_process(
        pretrain_command(soak.data, run, "--max-steps", str(steps), processes=3, restarts=times)
    )
    for step in sorted(soak.rng.choices(range(1, steps * 5 // 6), k=times)):
        wait_for_step(process, run, step, since=since)
        while killed & set((alive := worker_pids(process)).values()) or len(alive) < 3:
            time.sleep(0.01)
        since, victim = time.time(), soak.rng.choice(list(alive.values()))
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
    code, soak.output = wait_for_end(process)
    return code == 0 and soak.is_identical(run, processes=3, steps=steps)


def kill_ranks(soak: Soak) -> bool:
    """Kill any process of three, twenty times in one run; torchrun restarts them."""
    return kill_a_rank(soak, times=20, steps=300)


def kill_all(soak: Soak) -> bool:
    """Kill the run at a random moment and start the same command again."""
    run = soak.new_run()
    process = start_process(pretrain_command(soak.data, run, "--save-steps", "1"))
    wait_for_step(process, run, soak.rng.randint(1, STEPS - 4))
    time.sleep(soak.rng.random() * 0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    soak.finish(run)
    return soak.is_identical(run)


def terminate(soak: Soak) -> bool:
    """Send SIGTERM, expect a checkpoint, and start the same command again."""
    run = soak.new_run()
    process = start_process(pretrain_command(soak.data, run))
    wait_for_step(process, run, soak.rng.randint(1, STEPS - 8))
    process.send_signal(signal.SIGTERM)
    code, soak.output = wait_for_end(process)
    status = json.loads((run / "status.json").read_text(encoding="utf8"))
    has_checkpoint = (run / f"checkpoint-{status['step']}").is_dir()
    soak.finish(run)
    stopped = code == 75 and status["status"] == "stopped" and has_checkpoint
    return stopped and soak.is_identical(run)


def fill_the_disk(soak: Soak) -> bool:
    """Fail a write of a checkpoint or of the journal, and start the same command again."""
    run = soak.new_run()
    target = soak.rng.choice(
        [
            "from electra.runs import checkpoint as owner; name = 'save_file'",
            "from electra.runs.journal import Journal as owner; name = 'record'",
        ]
    )
    before = FILL_DISK.format(target=target, calls=soak.rng.randint(2, 10))
    code, soak.output = run_to_end(soak.data, run, before=before)
    soak.finish(run)
    is_named = "No space left on device" in soak.output
    return code == 1 and is_named and soak.is_identical(run)


def spoil_a_gradient(soak: Soak) -> bool:
    """Put NaN into a gradient at a random step, and start the same command again."""
    run = soak.new_run()
    step = soak.rng.randint(2, STEPS - 1)
    code, soak.output = run_to_end(soak.data, run, before=SPOIL_GRADIENT.format(step=step))
    soak.finish(run)
    message = f"the gradient of discriminator.output.bias is not finite in step {step}"
    return code == 1 and message in soak.output and soak.is_identical(run)


def spoil_a_checkpoint(soak: Soak) -> bool:
    """Flip a bit of the newest checkpoint; expect a warning and the one before it."""
    run = soak.new_run()
    process = start_process(pretrain_command(soak.data, run))
    wait_for_step(process, run, 10)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    newest = max(run.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    file = soak.rng.choice(["weights.safetensors", "optimizer.safetensors"])
    flip_a_bit(newest / file, soak.rng)
    return "is damaged" in soak.finish(run) and soak.is_identical(run)


def spoil_a_shard(soak: Soak) -> bool:
    """Flip a bit of a shard; expect a refusal before step 1."""
    run = soak.new_run()
    data = run.with_suffix(".data")
    shutil.copytree(soak.data, data)
    file = soak.rng.choice(sorted(data.glob("*.ids.npy")))
    flip_a_bit(file, soak.rng)
    code, soak.output = run_to_end(data, run)
    return code == 2 and file.name in soak.output and not (run / "metrics.jsonl").exists()


def stop_a_rank(soak: Soak) -> bool:
    """Stop one process of three; expect its name after the time limit."""
    run = soak.new_run()
    process = start_process(
        pretrain_command(soak.data, run, "--timeout-minutes", "0.15", processes=3)
    )
    wait_for_step(process, run, soak.rng.randint(1, STEPS - 8))
    rank, pid = soak.rng.choice([pair for pair in worker_pids(process).items() if pair[0]])
    os.kill(pid, signal.SIGSTOP)
    time.sleep(16)
    os.kill(pid, signal.SIGKILL)  # torchrun would wait 30 seconds for it
    code, soak.output = wait_for_end(process)
    soak.finish(run, processes=3)
    is_named = f"rank {rank} fell silent" in soak.output
    return code != 0 and is_named and soak.is_identical(run, processes=3)


def start_twice(soak: Soak) -> bool:
    """Start a second run in the same folder; expect a refusal, and the first one to continue."""
    run = soak.new_run()
    process = start_process(pretrain_command(soak.data, run))
    wait_for_step(process, run, 1)
    second, soak.output = run_to_end(soak.data, run)
    first, _ = wait_for_end(process)
    is_named = f"process {process.pid} on " in soak.output
    return (second, first) == (2, 0) and is_named and soak.is_identical(run)


def mix_versions(soak: Soak) -> bool:
    """Start two processes of different versions; expect a refusal that names both."""
    before = "import electra\nelectra.__version__ += '.other' * (rank == 1)"
    code, soak.output = run_to_end(soak.data, soak.new_run(), processes=2, before=before)
    return code != 0 and "are not alike" in soak.output and ".other' in rank 1" in soak.output


def turn_the_clock(soak: Soak) -> bool:
    """Let the clock jump by years, back and ahead, whenever it is read."""
    run = soak.new_run()
    code, soak.output = run_to_end(soak.data, run, before=TURN_CLOCK)
    entries = [entry for entry in read_metrics(run / "metrics.jsonl") if "loss" in entry]
    is_plausible = all(0 < entry["tokens_per_second"] < 1e9 for entry in entries)
    return code == 0 and is_plausible and soak.is_identical(run)


def flip_a_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content) // 2, len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


# A function that causes a fault and returns whether it was survived → the fault, as the table
# shows it.
FAULTS: dict[Callable[[Soak], bool], str] = {
    kill_a_rank: "SIGKILL to one of three ranks at a random step; torchrun restarts them",
    kill_all: "SIGKILL to the run at a random moment; the same command again",
    terminate: "SIGTERM: writes a checkpoint, exit status 75; the same command again",
    fill_the_disk: (
        "a full disk while a checkpoint or the journal is written; the same command again"
    ),
    spoil_a_gradient: (
        "NaN in a gradient at a random step: stops and names the tensor; the same command again"
    ),
    spoil_a_checkpoint: (
        "a bit flipped in the newest checkpoint: skipped with a warning, the previous one is used"
    ),
    spoil_a_shard: "a bit flipped in a shard: refused before step 1, the message names the file",
    stop_a_rank: "SIGSTOP to one of three ranks: named after the timeout; the same command again",
    start_twice: "a second run in the same folder: refused, exit status 2; the first one continues",
    mix_versions: "a rank with another version: refused, the message names both versions",
    turn_the_clock: "the system clock jumps by years, back and ahead, at every reading",
    kill_ranks: (
        "SIGKILL to a random one of three ranks, twenty times in one run; torchrun restarts them"
    ),
}


# ---- the command ---------------------------------------------------------------------------------


def main() -> None:
    options = parse_options()
    start = time.monotonic()
    faults = {fault: text for fault, text in FAULTS.items() if fault.__name__ in options.only}
    counts: Result = {
        fault.__name__: {"fault": text, "tried": 0, "survived": 0} for fault, text in faults.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), write_toy_shards(Path(folder)), random.Random(options.seed))
        is_first_round = True
        while is_first_round or time.monotonic() - start < 60 * options.minutes:
            for fault in faults:
                if not is_first_round and time.monotonic() - start > 60 * options.minutes:
                    break
                try_fault(soak, fault, counts[fault.__name__], start)
                if options.output:  # after each, so that a soak that is stopped loses nothing
                    write_counts(options, counts, start)
            is_first_round = False


def parse_options() -> argparse.Namespace:
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
    return parser.parse_args()


def try_fault(soak: Soak, fault: Callable[[Soak], bool], counts: Result, start: float) -> None:
    """Cause a fault once, count it, and print whether it was survived."""
    counts["tried"] += 1
    survived = fault(soak)
    counts["survived"] += survived
    outcome = {True: "ok    ", False: "FAILED"}[survived]
    minutes = (time.monotonic() - start) / 60
    print(f"{minutes:5.1f} min  {outcome}  {counts['fault']}", flush=True)
    if not survived:
        print(soak.output[-4000:], file=sys.stderr)


def write_counts(options: argparse.Namespace, counts: Result, start: float) -> None:
    tried = {name: entry for name, entry in counts.items() if entry["tried"]}
    minutes = round((time.monotonic() - start) / 60, 1)
    write_result(options.output, {"minutes": minutes, "seed": options.seed, "faults": tried})


if __name__ == "__main__":
    run_main(main)
