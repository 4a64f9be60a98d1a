"""The plan on paper: its formulas are the code's formats and the collectives' arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import scale, tables
from benchmarks.scale import Step
from electra.data.shards import Shards
from electra.engine.training_state import capture
from electra.runs import checkpoint


def test_ddp_sends_twice_all_but_ones_own_share_and_fsdp_three_times() -> None:
    for gpus in scale.GPUS[1:]:
        step = Step(gpus)
        assert step.micro_batches(fixed=scale.WEIGHTS) == 1
        assert step.ddp() == pytest.approx(2 * (gpus - 1) / gpus * scale.WEIGHTS)
        assert step.fsdp() == pytest.approx(1.5 * step.ddp())
        assert step.fsdp(scale.HALF) == pytest.approx(step.ddp())
        assert 0.75 * step.ddp() < step.zero1() < step.ddp(), "weights go in bf16, but not all"


def test_fsdp_gathers_for_every_pass_and_ddp_sums_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Step(64).fsdp()
    kept = scale.activations(Step(64).rows)
    monkeypatch.setattr(scale, "SITE", replace(scale.SITE, gpu_bytes=0.75 * kept / 0.8))
    assert Step(64).micro_batches(fixed=0) == 2
    assert Step(64).fsdp() == pytest.approx(2 * once)


def test_one_node_is_as_fast_as_its_own_links_and_several_as_the_network() -> None:
    assert Step(8).seconds(450e9) == pytest.approx(1 / 0.7)
    assert Step(16).seconds(50e9) == pytest.approx(1 / 0.7)


def test_large_is_taken_as_measured_where_it_was_and_else_by_its_operations() -> None:
    base = {
        "size": "base",
        "length": 512,
        "flops_per_token": 1e9,
        "made": {"hardware": "a GPU"},
        "sides": {"ours_fast": {"tokens_per_second": 1000.0}},
    }
    large = base | {"size": "large", "sides": {"ours_fast": {"tokens_per_second": 7.0}}}
    by_operations, origin = scale.one_gpu({"base": {"base 64 × 512": base}})
    assert by_operations == pytest.approx(1e12 / scale.standard(scale.WORK).training)
    assert origin == "not measured; 1 TFLOP/s, as measured at base 64 × 512 on a GPU"
    assert scale.one_gpu({"base": {"base": base}, "scaling": {"large 32 × 512": large}}) == (
        7.0,
        "measured, large 32 × 512, a GPU",
    )


def test_a_row_on_disk_is_its_ids_and_two_ends(toy_shards: Path) -> None:
    manifest = Shards.open(toy_shards).manifest
    sizes = {file.name: file.bytes - 128 for file in manifest.files}  # after numpy's header
    assert sizes["train-00000.ids.npy"] + sizes["train-00000.ends.npy"] == manifest.rows * (
        2 * manifest.length + 4
    )


def test_a_checkpoint_is_three_floats_a_parameter(tmp_path: Path) -> None:
    module = torch.nn.Linear(300, 1000, bias=False)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    folder = checkpoint.write(tmp_path, capture(module, optimizer), step=1, state={})
    written = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert written == pytest.approx(3 * 4 * 300_000, rel=1e-3)


def test_every_table_of_the_plan_is_written_into_the_document() -> None:
    document = (Path(__file__).parent.parent / "docs" / "scale.md").read_text(encoding="utf8")
    for table in scale.TABLES:
        assert f"<!-- {table.__name__}: " in document
        assert tables.TABLES[table.__name__] is table
