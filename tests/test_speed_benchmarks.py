"""Benchmarks of speed on a GPU: their peers, their runs and ceilings, and what is profiled."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks import (
    ceiling,
    finetuning_tables,
    inference_gpu,
    inference_tables,
    peer,
    pretrain_gpu,
    pretrain_sides,
    pretraining_tables,
)
from benchmarks.step_profile import GraphCount, StepClock, profile_steps
from electra.config import UserError
from electra.pretraining import loop, verdict
from electra.pretraining.recipe import load_recipe
from tests.conftest import TOY_FLAGS, ToyVocabulary, toy_batch
from tests.test_benchmarks import entry, rate

CPU = torch.device("cpu")


# ---- peers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "flags"),
    [("tiny", ""), ("modern-tiny", ""), ("modern-small", "--objective.generator.layers 1")],
)
def test_the_peer_that_gathers_first_has_the_loss_and_the_updates_of_the_plain_one(size, flags):
    recipe = load_recipe(size, flags=f"--data.length 16 --encoder.layers 1 {flags}".split())
    losses = []
    for gather_first in (False, True):
        torch.manual_seed(0)
        step = peer.pretraining_step(
            recipe, peer.SpecialIds.of(ToyVocabulary()), device=CPU, gather_first=gather_first
        )
        losses.append([step(toy_batch([16, 8])) for _ in range(2)])
    torch.testing.assert_close(losses[0], losses[1])


def test_the_peer_that_gathers_first_multiplies_the_vocabulary_with_masked_positions_alone():
    recipe = load_recipe("tiny", flags="--data.length 16 --encoder.layers 1".split())
    vocabulary = peer.SpecialIds.of(ToyVocabulary())
    shapes = {}
    for gather_first in (False, True):
        networks = peer.build_networks(recipe, vocabulary, CPU)
        networks[0].generator_lm_head.register_forward_hook(
            lambda _, __, logits, key=gather_first: shapes.update({key: logits.shape})
        )
        loss = peer.PeerLoss(*networks, recipe, vocabulary, gather_first=gather_first)
        loss.compute(toy_batch([16, 8]))
    assert shapes[False][1] == 16
    assert shapes[True][1] < 5


# ---- runs and their ceiling ----------------------------------------------------------------------


def test_commands_that_follow_one_another_are_one_run(monkeypatch):
    monkeypatch.setattr(ceiling, "provenance", lambda: {"commit": "a"})
    first = ceiling.continue_or_begin_run(None, CPU)
    assert ceiling.continue_or_begin_run(first, CPU) is first
    old = {**first, "started": first["started"] - ceiling.MAX_RUN_SECONDS}
    assert ceiling.continue_or_begin_run(old, CPU) is not old
    monkeypatch.setattr(ceiling, "provenance", lambda: {"commit": "b"})
    assert ceiling.continue_or_begin_run(first, CPU) is not first


@pytest.fixture
def quick(toy_shards, tmp_path, monkeypatch):
    """A function that measures sides of `paper`, which take no time, and returns the entry."""
    for name in pretrain_sides.SIDES:
        monkeypatch.setitem(
            pretrain_sides.SIDES, name, lambda bench, setting: {"windows": [1.0, 4.0, 2.0]}
        )
    output = tmp_path / "kept.json"

    def measure(*sides):
        data = ["--data", str(toy_shards), "--output", str(output), "--only", "paper", "--quick"]
        pretrain_gpu.main([*data, "--sides", *sides])
        return json.loads(output.read_text(encoding="utf8"))["paper"]["tiny 4 × 32"]

    return measure


def test_sides_of_one_run_are_kept_beside_each_other_and_those_of_another_are_not(
    quick, monkeypatch
):
    quick("peer_eager")
    measured = quick("ours_fast")
    assert list(measured["sides"]) == ["peer_eager", "ours_fast"]
    monkeypatch.setattr(ceiling, "provenance", lambda: {"commit": "another"})
    assert list(quick("ours_plain")["sides"]) == ["ours_plain"]


def test_a_side_is_kept_with_the_spread_of_its_windows(quick):
    side = quick("ours_fast")["sides"]["ours_fast"]
    assert (side["lowest"], side["tokens_per_second"], side["highest"]) == (1.0, 2.0, 4.0)
    assert pretraining_tables.format_rate({"tokens_per_second": 2e3, "windows": [1e3, 4e3]}) == (
        "2k (1k to 4k)"
    )


def test_a_side_that_fails_is_kept_as_such_and_named_by_exit_code_1(quick, monkeypatch, capsys):
    def fail(bench, setting):
        raise RuntimeError

    monkeypatch.setitem(pretrain_sides.SIDES, "peer_eager", fail)
    with pytest.raises(SystemExit) as end:
        quick("peer_eager", "ours_fast")
    assert end.value.code == 1
    assert capsys.readouterr().out.endswith("failed: tiny 4 × 32, peer_eager\n")
    assert list(quick("ours_fast")["sides"]) == ["peer_eager", "ours_fast"]


def test_a_row_of_another_run_is_marked_and_all_rows_have_one_ceiling():
    new = {**entry(ours_fast=rate(4e6)), "run": 2.0, "matmul_flops": 2e9}
    old = entry(ours_fast=rate(4e6))
    head, _, first, second, *_, note = pretraining_tables.speed(
        {"paper": {"new": new, "old": old}}
    ).splitlines()
    assert head.endswith("| ours, MFU of 0 TFLOP/s |")
    assert first.startswith("| new (0123456-dirty) |")
    assert second.startswith("| old (0123456-dirty) † |")
    assert [line.split(" | ")[-1] for line in (first, second)] == ["20.0% |", "20.0% |"]
    assert note.startswith("† Measured at another time")
    assert "†" not in pretraining_tables.speed({"paper": {"new": new}})


def test_a_result_without_a_run_is_marked_however_many_there_are():
    old = {name: value for name, value in entry(ours_fast=rate(4e6)).items() if name != "run"}
    assert "| old (0123456-dirty) † |" in pretraining_tables.speed({"paper": {"old": old}})


def test_reserved_memory_stands_beside_allocated_memory():
    sides = {"ours_fast": {**rate(1e6), "peak_reserved_bytes": 3e9}, "ours_plain": rate(1e6)}
    row = pretraining_tables.memory({"paper": {"small 128 × 128": entry(**sides)}}).splitlines()[-1]
    assert "| 2.00 (not measured) | 2.00 (3.00) |" in row


def test_ours_is_compared_with_the_fastest_of_the_peers():
    sides = {"peer_compiled": rate(2e6), "peer_gather_compiled": rate(4e6), "ours_fast": rate(8e6)}
    table = pretraining_tables.speed({"paper": {"small 128 × 128": entry(**sides)}})
    assert "| – | 4.00 | 2.00 |" in table


def test_modern_networks_of_all_parts_stand_in_a_table_of_their_own():
    modern = {**entry(ours_fast=rate(1e6), ours_muon=rate(2e6)), "size": "modern-base"}
    result = {"base": {"base 64 × 512": entry(ours_fast=rate(1e6)), "modern-base 64 × 512": modern}}
    paper, modern = (
        table(result) for table in (pretraining_tables.speed, pretraining_tables.modern_speed)
    )
    assert "modern-base" not in paper
    assert "Muon" not in paper
    assert "| base 64" not in modern
    assert "| ours, Muon |" in modern


def test_muon_is_a_side_where_the_recipe_has_it():
    bench = pretrain_sides.Bench({}, SimpleNamespace(sides=None))
    small, modern = (pretrain_sides.Setting(size, 1, 1) for size in ("small", "modern-small"))
    assert "ours_muon" not in pretrain_sides.sides_of(bench, small)
    assert pretrain_sides.sides_of(bench, modern) == list(pretrain_sides.SIDES)


def test_ours_has_the_optimizer_of_the_peer_unless_it_is_asked_for_another():
    options = SimpleNamespace(window_tokens=1, windows=2)
    bench, setting = pretrain_sides.Bench({}, options), pretrain_sides.Setting("modern-small", 4, 8)
    assert bench.recipe(setting).optimizer.name == "adamw"
    assert bench.recipe(setting, "--optimizer.name", "muon").optimizer.name == "muon"


def test_a_warm_up_takes_every_side_that_compiles_in_a_process_of_its_own(
    toy_shards, monkeypatch, capsys
):
    commands = []

    def run(command, env):
        assert int(env["TORCHINDUCTOR_COMPILE_THREADS"]) >= 1
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(pretrain_gpu.subprocess, "run", run)
    data = ["--data", str(toy_shards), "--only", "paper", "modern", "--quick", "--warm-up"]
    pretrain_gpu.main([*data, "--sides", "peer_eager", "peer_compiled", "ours_fast"])
    named = [(each[each.index("--only") + 1], each[each.index("--sides") + 1]) for each in commands]
    assert sorted(named) == [
        ("modern", "ours_fast"),
        ("modern", "peer_compiled"),
        ("paper", "ours_fast"),
        ("paper", "peer_compiled"),
    ]
    for command in commands:
        pretrain_gpu.parse_options(command[3:])
    assert "warmed up 4 sides" in capsys.readouterr().out


# ---- where the time goes -------------------------------------------------------------------------


def test_steps_in_which_a_graph_was_captured_are_not_profiled():
    counts = [GraphCount(2, 1), GraphCount(2, 2), GraphCount(2, 2), GraphCount(3, 2)]
    counts += [GraphCount(3, 3)] * 3
    counted = iter(counts)
    clock = StepClock(2, CPU, lambda: next(counted))
    answers = []
    while not (answers and answers[-1]):
        answers.append(clock())
        torch.ones(2) + 1
    # Two phases met new graphs, the third warmed up; the fourth and the fifth met a new shape, the
    # sixth was timed and the seventh traced.
    assert len(answers) == 2 * 7
    assert clock.steps_before == 2 * 5
    assert clock.graphs == GraphCount(3, 3)
    assert [kernel.launches for kernel in clock.kernels() if "add" in kernel.name] == [2]


def test_held_out_rows_are_not_scored_in_a_profile(toy_shards, monkeypatch):
    monkeypatch.setattr(verdict, "MIN_DIAGNOSED_STEPS", 50)  # so that the fifth step has its scores
    scored = []
    monkeypatch.setattr(loop, "evaluate", lambda run, *_: scored.append(run.step) or True)
    flags = [*TOY_FLAGS, "--max-steps", "50", "--eval-steps", "50", "--save-steps", "50"]
    recipe = load_recipe("tiny", flags=flags)
    assert verdict.diagnosis_step(recipe) == 5
    profile = profile_steps(recipe, toy_shards, steps=2)
    assert (profile["steps"], profile["steps_before"]) == (2, 2)  # six steps in all
    assert scored == []


def test_a_profile_that_never_settles_is_refused():
    clock = StepClock(1, CPU, iter(GraphCount(n, 0) for n in range(1, 9)).__next__)
    for _ in range(8):
        assert not clock()
    with pytest.raises(UserError, match="8 steps were too few"):
        clock.kernels()


# ---- fine-tuning ---------------------------------------------------------------------------------


def test_a_rate_of_finetuning_is_shown_with_the_range_of_its_windows():
    rounds = [{"examples_per_second": 10.0, "windows": [8.0, 12.0]}, {"examples_per_second": 14.0}]
    shown = finetuning_tables.format_rates({"rounds": {"ours": rounds}}, "ours")
    assert shown == "12 (8 to 12)"
    assert finetuning_tables.format_rates({"rounds": {"ours": rounds[1:]}}, "ours") == "14"


# ---- inference -----------------------------------------------------------------------------------


def test_inference_is_measured_beside_transformers_and_computes_the_same(tmp_path, capsys):
    output = tmp_path / "kept.json"
    sides = ["ours", "pipeline_32_fp32", "ours_fp32", "loop_256_fp32"]
    inference_gpu.main(["--quick", "--rounds", "1", "--sides", *sides, "--output", str(output)])
    result = json.loads(output.read_text(encoding="utf8"))
    measured = {**result["predict"]["sides"], **result["embed"]["sides"]}
    assert list(measured) == sides
    for side in measured.values():
        assert side["examples_per_second"] > 0
        assert side["largest_difference"] < 1e-5
    assert "hardware" in result["embed"]["made"]
    assert "| `electra predict`, bf16, 24 texts |" in capsys.readouterr().out


def test_a_package_that_is_not_installed_is_left_out_aloud(monkeypatch, capsys):
    monkeypatch.setattr(inference_gpu.importlib.util, "find_spec", lambda _: None)
    options = SimpleNamespace(sides=["st_32_fp32"], rounds=1)
    texts = inference_gpu.Texts([], None)
    sides = inference_gpu.PARTS["embed"]
    assert not list(inference_gpu.measure_part(options, sides, None, (texts, texts)))
    assert (
        "st_32_fp32 is left out: sentence-transformers is not installed" in capsys.readouterr().out
    )


def test_vectors_are_compared_in_the_same_precision():
    ours = {"ours_fp32": 80.0, "ours_bf16": 90.0}
    sides = {name: {"examples_per_second": each} for name, each in ours.items()}
    for name, each in {"loop_256_bf16": 30.0, "loop_256_fp32": 20.0}.items():
        sides[name] = {"examples_per_second": each, "beside": ours}
    # of another run, in which one of ours was slower and the other not measured
    for name in ("st_256_fp32", "st_256_bf16"):
        sides[name] = {"examples_per_second": 20.0, "beside": {"ours_fp32": 70.0}}
    ratios = [inference_tables.ratio_to_ours({"sides": sides}, name) for name in sides]
    assert ratios == ["–", "–", "3.0", "4.0", "3.5", "–"]


def test_inference_that_was_not_measured_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(inference_tables, "RESULTS", tmp_path)
    assert inference_tables.inference_speed() == "Inference on a GPU: not measured yet."
