"""What only a GPU can show: low precision, kernels, graphs, compilation, and exact resume there.
`pytest -m gpu`
"""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.cuda_graph import CapturedGraph
from electra.engine.training_state import PinnedStaging
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs.checkpoint import TENSORS
from electra.runs.journal import read_metrics
from tests.conftest import TOY_FLAGS
from tests.tasks.toys import TOYS
from tests.test_resume import assert_identical, finish, start, wait_for_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
# Muon, an average, clipping apart and a rate that a captured pass reads anew.
OPTIONS = (
    "--optimizer.name muon --optimizer.clip each --ema-decay 0.9 "
    "--objective.masking.rate 0.3 --objective.masking.final-rate 0.1"
).split()
NO_DROPOUT = ("--encoder.dropout", "0", "--encoder.attention-dropout", "0")


def losses(data, run, *flags, key="loss"):
    pretrain(
        load_recipe("tiny", flags=[*TOY_FLAGS, *NO_DROPOUT, *flags]),
        data=data,
        output_dir=run,
        quiet=True,
    )
    return [entry[key] for entry in read_metrics(run / "metrics.jsonl") if key in entry]


@pytest.mark.parametrize(
    ("precision", "kernels", "compiled"),
    [
        ("bf16", "on", "off"),
        ("bf16", "off", "off"),
        ("bf16", "off", "on"),
        ("fp16", "off", "off"),
        ("fp16", "off", "on"),
    ],
)
def test_every_way_to_take_a_step_follows_the_plain_one(
    toy_shards, tmp_path, precision, kernels, compiled
):
    """Compiled code and kernels draw other random numbers, and fp16 leaves out its first updates
    until its scaler has found its scale: such runs agree as seeds do, not to the digit.
    """

    def end(name, *flags):
        return sum(losses(toy_shards, tmp_path / name, "--max-steps", "60", *flags)[-5:])

    plain = [
        end(
            f"plain-{seed}",
            "--precision",
            "fp32",
            "--compile",
            "off",
            "--kernels",
            "off",
            "--seed",
            seed,
        )
        for seed in "0123"
    ]
    fast = end(
        "fast", "--precision", precision, "--training.kernels", kernels, "--compile", compiled
    )
    if (precision, kernels, compiled) == ("bf16", "off", "off"):
        assert fast == pytest.approx(plain[0], rel=0.02)
    assert 0.9 * min(plain) < fast < 1.1 * max(plain)


MODERN = ("--encoder.family", "modernbert")


def test_200_steps_of_the_modern_family_by_kernels_follow_plain_modules(toy_shards, tmp_path):
    """Replacements drawn from unigrams are the same ones in both, so only rounding differs. On a
    CPU, means of 20 steps in bf16 and in fp32, six seeds, differ by up to 0.24 % in the first 100
    steps and by up to 2.7 % in the next, when the network begins to learn.
    """

    def curve(name, *flags):
        every = ("--max-steps", "200", "--eval-steps", "200", "--save-steps", "200")
        noise = ("--objective.generator.kind", "unigram")
        found = losses(toy_shards, tmp_path / name, *MODERN, *every, *noise, *flags)
        return torch.tensor(found).view(10, -1).mean(dim=1)

    fused, plain = curve("fused", "--training.kernels", "on"), curve("plain", *PLAIN)
    difference = (fused / plain - 1).abs()
    assert difference[:5].max() < 0.005, difference
    assert difference.max() < 0.05, difference


def test_a_generator_of_the_modern_family_learns_alike_by_kernels_and_without(toy_shards, tmp_path):
    """Its samples differ, and reach it through the shared embeddings alone: by 0.1 % in 20 steps.
    After 200 the losses differ as those of two seeds do.
    """
    fused, plain = (
        losses(toy_shards, tmp_path / str(len(flags)), *MODERN, *flags, key="mlm")
        for flags in (("--training.kernels", "on"), PLAIN)
    )
    assert sum(fused) == pytest.approx(sum(plain), rel=0.01)


@pytest.mark.parametrize("rate", ["0", "0.1"])
def test_a_replayed_pass_of_the_modern_family_gives_the_digits_of_one_that_is_not(
    toy_shards, tmp_path, rate
):
    replayed, taken = (
        losses(
            toy_shards,
            tmp_path / graph,
            *MODERN,
            "--training.cuda-graph",
            graph,
            "--encoder.dropout",
            rate,
            "--encoder.attention-dropout",
            rate,
        )
        for graph in ("on", "off")
    )
    assert replayed == taken


def test_a_replayed_pass_reads_the_mask_rate_of_its_step(toy_shards, tmp_path):
    replayed, taken = (
        losses(toy_shards, tmp_path / graph, *OPTIONS, "--training.cuda-graph", graph)
        for graph in ("on", "off")
    )
    assert replayed == taken


@pytest.mark.parametrize("training", ["mlm", "adversarial"])
@pytest.mark.parametrize("micro_batch_size", ["4", "12"])
def test_a_pass_that_is_replayed_gives_the_digits_of_one_that_is_not(
    toy_shards, tmp_path, micro_batch_size, training
):
    """A step of one micro-batch, of all 12 rows, overwrites the gradient and adds nothing to it."""
    replayed, taken = (
        losses(
            toy_shards,
            tmp_path / graph,
            "--training.cuda-graph",
            graph,
            "--training.micro-batch-size",
            micro_batch_size,
            "--encoder.dropout",
            "0.1",
            "--objective.generator-training",
            training,
        )
        for graph in ("on", "off")
    )
    assert replayed == taken


def test_a_frozen_generator_keeps_every_bit_by_kernels_and_graphs(toy_shards, tmp_path):
    first, second = (
        load_recipe(name, flags=TOY_FLAGS)
        for name in ("two-stage-generator-base", "two-stage-base")
    )
    pretrain(first, data=toy_shards, output_dir=tmp_path / "first", quiet=True)
    pretrain(
        second,
        data=toy_shards,
        output_dir=tmp_path / "second",
        init_from=tmp_path / "first",
        quiet=True,
    )
    before, after, discriminator = (
        load_file(tmp_path / folder / "model.safetensors")
        for folder in ("first/encoder", "second/generator", "second/discriminator")
    )
    assert [name for name in before if not before[name].equal(after[name])] == []
    shared = [name for name in before if name in discriminator]
    assert not any(before[name].equal(discriminator[name]) for name in shared)


def test_a_dead_graph_of_an_earlier_model_does_not_end_a_capture():
    def doubled(row):
        containers = [[] for _ in range(100_000)]  # enough for the garbage collector to begin
        return {"loss": 2 * row[0] * bool(containers)}

    cycle = [CapturedGraph(doubled, (torch.ones(2, device="cuda"),), None)]
    cycle.append(cycle)
    del cycle
    captured = CapturedGraph(doubled, (torch.ones(2, device="cuda"),), None)
    assert captured((torch.full((2,), 3.0, device="cuda"),))["loss"].tolist() == [6.0, 6.0]


@pytest.mark.parametrize("name", [name for name in TOYS if name != "frozen"])
def test_every_kind_of_head_learns_the_same_weights_by_graphs_and_without(tiny, tmp_path, name):
    for graph in ("on", "off"):
        TOYS[name].learnt(
            tiny,
            tmp_path / graph,
            flags=[
                "--max-steps",
                "30",
                "--batch-size",
                "4",
                "--length",
                "32",
                "--cuda-graph",
                graph,
            ],
        )
    ours, theirs = (
        load_file(tmp_path / graph / "seed-0" / "model" / "model.safetensors")
        for graph in ("on", "off")
    )
    assert [name for name in ours if not ours[name].equal(theirs[name])] == []


PLAIN = ("--training.kernels", "off", "--training.compile", "off")
COMPILED = ("--training.compile", "on", "--training.deterministic", "true")
WAYS = pytest.mark.parametrize("more", [(), PLAIN, COMPILED], ids=["fused", "plain", "compiled"])


@pytest.mark.parametrize(
    "more",
    [(), MODERN, PLAIN, COMPILED, (*MODERN, *OPTIONS), (*PLAIN, *OPTIONS)],
    ids=["fused", "fused modern", "plain", "compiled", "fused options", "plain options"],
)
def test_a_killed_run_goes_on_bit_for_bit(toy_shards, tmp_path, more):
    finish(toy_shards, tmp_path / "unbroken", *more)
    process = start(toy_shards, tmp_path / "killed", *more)
    wait_for_step(process, tmp_path / "killed", 12)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finish(toy_shards, tmp_path / "killed", *more)
    assert_identical(tmp_path / "unbroken", tmp_path / "killed")


EVERY_STEP = ("--max-steps", "6", "--save-steps", "1", "--save-total-limit", "9")


@WAYS
@pytest.mark.parametrize("delayed", ["first", "every"])
def test_delayed_copies_write_the_checkpoints_of_a_run_that_waits_for_each(
    toy_shards, tmp_path, monkeypatch, more, delayed
):
    """The copy begins long after the host has issued the updates that follow it."""
    for name in ("none", delayed):
        monkeypatch.setenv("DELAYED_COPY", name)
        finish(toy_shards, tmp_path / name, *more, *EVERY_STEP, module="tests.delayed_copy")
    for step in range(1, 7):
        for file in TENSORS:
            name = f"checkpoint-{step}/{file}"
            waited, beside = (tmp_path / run / name for run in ("none", delayed))
            assert beside.read_bytes() == waited.read_bytes(), name


def test_a_copy_of_the_first_step_that_nothing_waits_for_changes_no_checkpoint():
    """Two copies without an update between them: the first is late, the second is written."""
    module = torch.nn.Linear(4096, 4096, device="cuda")
    optimizer = torch.optim.AdamW(module.parameters())
    before, written = module.weight.detach().cpu(), []
    torch.cuda.synchronize()
    with AsyncCheckpointer() as checkpointer:
        checkpointer.allocate_staging(module, optimizer)
        with delay_one_fill():
            checkpointer.copy_state(module, optimizer)
        weights, _ = checkpointer.copy_state(module, optimizer)
        checkpointer.submit(lambda: written.append(weights["weight"].clone()))
        checkpointer.wait_for_copy()
        with torch.no_grad():
            module.weight.add_(1)
        torch.cuda.synchronize()
        checkpointer.wait()
    assert written[0].equal(before)
    assert weights["weight"].equal(before)


@contextlib.contextmanager
def delay_one_fill():
    fill = PinnedStaging.fill

    def fill_late(staging):
        torch.cuda._sleep(600_000_000)
        fill(staging)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PinnedStaging, "fill", fill_late)
        yield


def test_the_sanitizer_finds_no_unsynchronized_access_where_every_step_is_saved(
    toy_shards, tmp_path, monkeypatch
):
    """It sees operators of torch alone, so kernels and graphs of our own are not for it."""
    monkeypatch.setenv("TORCH_CUDA_SANITIZER", "1")
    finish(toy_shards, tmp_path, *PLAIN, *EVERY_STEP)


@WAYS
def test_a_run_that_is_killed_during_a_delayed_copy_goes_on_bit_for_bit(
    toy_shards, tmp_path, monkeypatch, more
):
    more = (*more, "--save-steps", "1")
    monkeypatch.setenv("DELAYED_COPY", "every")
    finish(toy_shards, tmp_path / "unbroken", *more)
    process = start(toy_shards, tmp_path / "killed", *more, module="tests.delayed_copy")
    # A step is logged before it is saved, and its copy then takes a third of a second.
    wait_for_step(process, tmp_path / "killed", 7)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finish(toy_shards, tmp_path / "killed", *more)
    assert_identical(tmp_path / "unbroken", tmp_path / "killed")


def test_a_copy_beside_the_next_pass_has_the_weights_of_its_step():
    module = torch.nn.Linear(8192, 8192, device="cuda")
    optimizer = torch.optim.AdamW(module.parameters())
    with AsyncCheckpointer() as writer:
        for _ in range(5):
            before = module.weight.detach().clone()
            contents = writer.copy_state(module, optimizer)
            writer.submit(lambda: None)
            writer.wait_for_copy()
            with torch.no_grad():
                module.weight.add_(1)
            writer.wait()
            assert contents[0]["weight"].equal(before.cpu())
        module.weight.data = torch.zeros_like(module.weight)
        moved = writer.copy_state(module, optimizer)
        writer.submit(lambda: None)
        writer.wait()
        assert not moved[0]["weight"].any()


def test_the_export_of_a_gpu_run_is_float32_and_was_verified_with_transformers(
    toy_shards, tmp_path
):
    losses(toy_shards, tmp_path)
    weights = load_file(tmp_path / "discriminator" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
