"""What clusters do to a run of several processes: each fault is survived, or named and refused."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from benchmarks import soak
from benchmarks.soak_runs import (
    pretrain_command,
    run_to_end,
    start_process,
    wait_for_end,
    wait_for_step,
    worker_pids,
)
from electra import __version__
from electra.runs.journal import read_metrics

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (
            "import electra; electra.__version__ += '.post1' * (rank == 1)",
            f"electra: '{__version__}' in rank 0 (process ",
        ),
        (
            "sys.argv += ['--learning-rate', '0.25'] * (rank == 1)",
            "optimizer.learning_rate: 0.004 in rank 0 (process ",
        ),
    ],
)
def test_a_process_with_another_version_or_recipe_is_refused_with_both_values(
    toy_shards, tmp_path, odd, said
):
    code, output = run_to_end(toy_shards, tmp_path / "run", processes=2, before=odd)
    assert code != 0
    assert "error: the processes of this run are not alike:" in output
    assert said in output
    assert "in rank 1 (process " in output
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("hung", [2, 0])
def test_a_stopped_process_is_named_when_the_others_give_up(toy_shards, tmp_path, hung):
    run = tmp_path / "run"
    process = start_process(
        pretrain_command(
            toy_shards, run, "--max-steps", "100000", "--timeout-minutes", "0.15", processes=3
        )
    )
    wait_for_step(process, run, 3)
    pids = worker_pids(process)
    os.kill(pids[hung], signal.SIGSTOP)
    time.sleep(30)
    os.kill(pids[hung], signal.SIGKILL)  # torchrun would wait 30 seconds for it
    code, output = wait_for_end(process)
    assert code != 0
    assert (
        f"a process did not come within 9 s: rank {hung} fell silent, last seen in step " in output
    )
    assert f"(process {pids[hung]} on " in output
    status = json.loads((run / "status.json").read_text())
    if hung:  # a main rank that is stopped writes nothing
        assert status["status"] == "failed"
        assert "rank 2 fell silent" in status["message"]


@pytest.mark.parametrize("slowest", [0, 1])
def test_a_process_may_take_longer_over_data_and_models_than_any_collective(
    toy_shards, tmp_path, slowest
):
    slow = (
        "import time\nfrom electra.data.shards import Shards\nverify = Shards.verify\n"
        f"Shards.verify = lambda self, *a, **k: (time.sleep(12 * (rank == {slowest})), "
        "verify(self, *a, **k))[1]\n"
        "from electra.pretraining import pretrain\nexport = pretrain.export\n"
        "pretrain.export = lambda *a, **k: (time.sleep(12), export(*a, **k))[1]"
    )
    code, output = run_to_end(
        toy_shards,
        tmp_path / "run",
        "--max-steps",
        "2",
        "--timeout-minutes",
        "0.15",
        processes=2,
        before=slow,
    )
    assert code == 0, output


@pytest.mark.timeout(1200)
def test_twenty_times_one_process_of_three_is_killed_and_the_run_equals_the_unbroken_one(
    toy_shards, tmp_path
):
    soaked = soak.Soak(tmp_path, toy_shards, random.Random())
    assert soak.kill_ranks(soaked), soaked.output


def test_a_number_that_the_second_of_two_finds_not_finite_is_named_by_the_first_and_in_the_status(
    toy_shards, tmp_path
):
    spoilt = (
        "from electra.model.encoder import Block\nfrom electra.engine.train_step import "
        "PlainTrainStep\n"
        "calls, forward = [], Block.forward\n"
        "forward_backward = PlainTrainStep.forward_backward\n"
        "def spoilt(self, *a, **k):\n"
        "    return forward(self, *a, **k) * (float('nan') if len(calls) > 4 and rank else 1)\n"
        "def counted(self, *a, **k): calls.append(1); return forward_backward(self, *a, **k)\n"
        "Block.forward, PlainTrainStep.forward_backward = spoilt, counted"
    )
    code, output = run_to_end(
        toy_shards, tmp_path / "run", "--parallel", "fsdp", processes=2, before=spoilt
    )
    said = "the output of generator.encoder.blocks.0 (micro-batch 1) is not finite in step 5"
    assert code != 0
    assert output.count(f"\nerror: after step 4: {said}") == 1, output
    assert f": error: after step 4: {said}" in output.splitlines()[-2], output  # torchrun's summary
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["message"], status["checkpoint"]) == (
        "failed",
        said,
        "checkpoint-3",
    )


def test_a_write_that_fails_at_the_last_step_is_told_to_the_others(toy_shards, tmp_path):
    full = (
        "from electra.runs import checkpoint\nsave_file = checkpoint.save_file\n"
        "def full(tensors, path):\n"
        "    if 'checkpoint-6' in str(path): raise OSError(28, 'No space left on device')\n"
        "    save_file(tensors, path)\n"
        "checkpoint.save_file = full"
    )
    code, output = run_to_end(
        toy_shards, tmp_path / "run", "--max-steps", "6", processes=2, before=full
    )
    assert code != 0
    assert (
        "after step 6: the checkpoint of step 6 could not be written: [Errno 28] No space left on "
        "device" in output
    )
    assert "after step 6: rank 0 failed, and says why" in output


def test_a_signal_to_torchrun_leaves_a_checkpoint_of_all_processes(toy_shards, tmp_path):
    run = tmp_path / "run"
    process = start_process(
        pretrain_command(
            toy_shards, run, "--save-steps", "100000", "--max-steps", "100000", processes=2
        )
    )
    wait_for_step(process, run, 3)
    process.send_signal(signal.SIGTERM)
    _, output = wait_for_end(process)
    status = json.loads((run / "status.json").read_text())
    assert status["status"] == "stopped", output
    assert (run / status["checkpoint"] / "state.json").exists()
    assert max(entry["step"] for entry in read_metrics(run / "metrics.jsonl")) == status["step"]
