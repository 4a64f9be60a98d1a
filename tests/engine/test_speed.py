"""Kernels, CUDA graphs and compilation are decided, or refused by their flag, before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from electra.__main__ import main
from electra.checksums import write_checksums
from electra.config import RunFailed, UserError
from electra.engine.distributed import World
from electra.engine.hardware import KernelDemands, Speed, resolve_speed
from electra.engine.train_step import FusedTrainStep
from electra.finetuning.recipe import FinetuneConfig
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import TrainingConfig, load_recipe
from electra.pretraining.resolve import resolve_recipe_speed
from electra.runs import checkpoint
from tests.conftest import TOY_FLAGS
from tests.engine.steps import needs_triton
from tests.tasks.toys import keyword_rows, written
from tests.wording import wording_of

wording = wording_of(__file__)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CAUSAL = KernelDemands(head_width=64, causal=True)


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("electra.engine.hardware.is_supported", lambda device, *, head_width: True)


def resolve(device: torch.device = GPU, precision: str = "bf16", **switches: str) -> Speed:
    return resolve_speed(
        TrainingConfig(**switches), precision, device, KernelDemands(head_width=64)
    )


@pytest.mark.usefixtures("with_kernels")
def test_auto_means_kernels_and_graphs_where_they_run() -> None:
    assert resolve() == Speed(kernels=True, cuda_graph=True, compiled=False)
    assert resolve(cuda_graph="off") == Speed(kernels=True, cuda_graph=False, compiled=False)
    assert resolve(compile="on") == Speed(kernels=False, cuda_graph=False, compiled=True)
    assert resolve(precision="fp16") == Speed(kernels=False, cuda_graph=False, compiled=True)
    tuning = resolve_speed(
        FinetuneConfig(), "fp16", GPU, KernelDemands(head_width=64), compile_on_gpu=False
    )
    assert tuning == Speed(kernels=False, cuda_graph=False, compiled=False)
    with pytest.raises(UserError, match=wording("auto_means_kernels_and_graphs_where_they_run")):
        resolve(kernels="on", compile="on")


@pytest.mark.usefixtures("with_kernels")
def test_no_kernel_runs_a_causal_encoder() -> None:
    assert resolve_speed(TrainingConfig(), "bf16", GPU, CAUSAL) == Speed(
        kernels=False, cuda_graph=False, compiled=True
    )
    tuning = resolve_speed(FinetuneConfig(), "bf16", GPU, CAUSAL, compile_on_gpu=False)
    assert tuning == Speed(kernels=False, cuda_graph=False, compiled=False)
    with pytest.raises(UserError, match=wording("no_kernel_runs_a_causal_encoder")):
        resolve_speed(TrainingConfig(kernels="on"), "bf16", GPU, CAUSAL)


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            ["--parallel", "fsdp"],
            "need whole weights, and with --parallel fsdp a process holds",
        ),
        (
            ["--activation-checkpointing", "true"],
            "--activation-checkpointing true computes it again",
        ),
    ],
)
def test_no_kernel_runs_where_weights_are_in_parts_or_blocks_are_computed_again(
    flags: list[str], reason: str
) -> None:
    world, bf16 = World(rank=0, size=1, device=CPU), ["--training.precision", "bf16"]
    assert resolve_recipe_speed(load_recipe("small", flags=bf16), world).kernels
    assert not resolve_recipe_speed(load_recipe("small", flags=[*bf16, *flags]), world).kernels
    with pytest.raises(UserError, match=f"--training.kernels on: .*{reason}.* at auto"):
        resolve_recipe_speed(
            load_recipe("small", flags=[*bf16, *flags, "--training.kernels", "on"]), world
        )


@pytest.mark.usefixtures("with_kernels")
def test_a_left_to_right_recipe_goes_without_kernels() -> None:
    world = World(rank=0, size=1, device=CPU)
    flags = ["--training.precision", "bf16"]
    assert not resolve_recipe_speed(load_recipe("left-to-right-base", flags=flags), world).kernels
    assert resolve_recipe_speed(load_recipe("bert-base", flags=flags), world).kernels


@pytest.mark.usefixtures("with_kernels")
def test_both_families_run_by_kernels() -> None:
    world = World(rank=0, size=1, device=CPU)
    flags = ["--training.precision", "bf16"]
    windows = ["--encoder.global-every", "3"]
    assert resolve_recipe_speed(load_recipe("modern-small", flags=flags), world).kernels
    assert resolve_recipe_speed(
        load_recipe("modern-small", flags=[*flags, *windows]), world
    ).kernels


def test_a_cpu_takes_plain_steps() -> None:
    assert resolve(CPU, "fp32") == Speed(kernels=False, cuda_graph=False, compiled=False)
    with pytest.raises(UserError, match=wording("a_cpu_takes_plain_steps")):
        resolve(CPU, "fp32", cuda_graph="on")


def test_kernels_that_cannot_run_are_refused_before_a_corpus_is_cut(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a line\n\n" * 100)
    with pytest.raises(
        UserError, match=wording("kernels_that_cannot_run_are_refused_before_a_corpus_is_cut")
    ):
        pretrain(
            load_recipe("tiny", flags=["--training.kernels", "on"]),
            corpus=[tmp_path / "text.txt"],
            output_dir=tmp_path / "run",
            quiet=True,
        )
    assert not (tmp_path / "run").exists()


def test_a_refused_finetuning_leaves_no_folder_behind(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = written(tmp_path / "rows.csv", keyword_rows(8))
    words = [
        "finetune",
        str(tiny),
        "--task",
        "classify",
        "--train",
        str(data),
        "--dev",
        str(data),
        "--dev-on-train",
        "--output-dir",
        str(tmp_path / "run"),
        "--max-steps",
        "1",
        "--length",
        "16",
    ]
    assert main([*words, "--kernels", "on"]) == 2
    assert "pass --kernels off to go without them" in capsys.readouterr().err
    assert main(words) == 0


def test_a_run_begun_with_kernels_goes_on_without_them_when_told(
    toy_shards: Path, tmp_path: Path
) -> None:
    def go(*more: str) -> None:
        pretrain(
            load_recipe("tiny", flags=[*TOY_FLAGS, *more]),
            data=toy_shards,
            output_dir=tmp_path,
            quiet=True,
            resume_schedule="stretch",
        )

    go("--max-steps", "4")
    for path in (tmp_path / "config.toml", *tmp_path.glob("checkpoint-*/state.json")):
        path.write_text(
            path.read_text()
            .replace('kernels = "off"', 'kernels = "on"')
            .replace('"kernels": "off"', '"kernels": "on"')
        )
        if path.name == "state.json":
            write_checksums(path.parent, [*checkpoint.TENSORS, checkpoint.STATE])
    with pytest.raises(
        UserError, match=wording("a_run_begun_with_kernels_goes_on_without_them_when_told")
    ):
        go("--max-steps", "6")
    go("--max-steps", "6", "--training.kernels", "off", "--training.cuda-graph", "off")
    assert json.loads((tmp_path / "status.json").read_text())["step"] == 6


@needs_triton
def test_a_gradient_that_broke_steps_ago_is_still_named(
    toy_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused path looks when it logs; the gradients of the broken step are gone by then and
    computed again.
    """
    for module in ("setup", "resolve"):
        monkeypatch.setattr(
            f"electra.pretraining.{module}.resolve_recipe_speed",
            lambda recipe, world: Speed(True, False, False),
        )
    accumulate, calls = FusedTrainStep.accumulate, []

    def spoilt(
        steps: FusedTrainStep, batch: object, *, overwrites: bool
    ) -> dict[str, torch.Tensor]:
        losses = accumulate(steps, batch, overwrites=overwrites)
        calls.append(batch)
        # The first micro-batch of step 3, and the same when it is taken again.
        if len(calls) in (7, 31):
            steps.optimizer.gradients[4].fill_(float("nan"))
        return losses

    monkeypatch.setattr(FusedTrainStep, "accumulate", spoilt)
    flags = [*TOY_FLAGS, "--logging-steps", "10", "--save-steps", "50"]
    with pytest.raises(RunFailed, match=wording("a_gradient_that_broke_steps_ago_is_still_named")):
        pretrain(
            load_recipe("tiny", flags=flags),
            data=toy_shards,
            output_dir=tmp_path / "run",
            quiet=True,
        )
