"""The GPU benchmarks run at toy size on a CPU, and their tables say what was measured and what was
not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import (
    encoder_plots,
    encoder_tables,
    encoders,
    finetune_cpu,
    finetune_gpu,
    finetuning_tables,
    harness,
    peer,
    plateau,
    plots,
    pretrain_gpu,
    pretrain_sides,
    pretraining_tables,
    processes,
    record_plots,
    small_gpu,
    tables,
)
from benchmarks.markdown import RESULTS, ROOT, read_result
from benchmarks.step_profile import Kernel, by_kind, kind_of
from electra.config import UserError
from electra.pretraining.recipe import load_recipe
from electra.tasks.features import Features, Row
from tests.conftest import TOY_FLAGS, ToyVocabulary, toy_batch
from tests.wording import wording_of

wording = wording_of(__file__)

QUICK = (
    "--quick --window-tokens 256 --windows 2 --curve-steps 2 --curve-seeds 2 --profile-steps 1"
).split()


def entry(**sides):
    """What is kept of one setting, measured on a machine of round numbers."""
    return {
        "size": "small",
        "rows": 128,
        "length": 128,
        "flops_per_token": 100.0,
        "matmul_flops": 1e9,
        "run": 1.0,
        "window_steps": 15,
        "made": {"hardware": "a GPU", "torch": "2.11", "commit": "0123456789ab-dirty"},
        "sides": sides,
    }


def rate(tokens_per_second):
    return {
        "tokens_per_second": tokens_per_second,
        "windows": [tokens_per_second] * 3,
        "peak_bytes": 2e9,
    }


# ---- pre-training --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_pretraining_benchmark_keeps_each_part_beside_those_of_earlier_runs(
    toy_shards, tmp_path, capsys
):
    output = tmp_path / "kept.json"
    sides = ["--sides", "peer_eager", "ours_plain", "ours_fast"]
    for parts in (["paper", "profile"], ["scaling", "curves"]):
        pretrain_gpu.main(
            [
                "--data",
                f"32={toy_shards}",
                "--output",
                str(output),
                "--only",
                *parts,
                *sides,
                *QUICK,
            ]
        )
    result = json.loads(output.read_text(encoding="utf8"))
    assert set(result) == {"run", "paper", "profile", "scaling", "curves", "made"}
    assert result["paper"]["tiny 4 × 32"]["run"] == result["scaling"]["tiny 4 × 32"]["run"]
    measured = result["paper"]["tiny 4 × 32"]["sides"]
    assert list(measured) == ["peer_eager", "ours_plain", "ours_fast"]
    assert all(
        len(side["windows"]) == 1 and side["tokens_per_second"] > 0 for side in measured.values()
    )
    assert len(result["curves"]["losses"]["fast"]) == 2
    assert result["curves"]["largest_difference"] == 0  # on a CPU both are the plain path
    printed = capsys.readouterr().out
    assert (
        wording("the_pretraining_benchmark_keeps_each_part_beside_those_of_earlier_runs") in printed
    )
    assert (
        wording("the_pretraining_benchmark_keeps_each_part_beside_those_of_earlier_runs_2")
        in printed
    )


def test_the_modern_family_is_measured_beside_transformers_modernbert(toy_shards, tmp_path):
    output = tmp_path / "kept.json"
    data = ["--data", str(toy_shards), "--output", str(output), "--only", "modern"]
    pretrain_gpu.main([*data, "--sides", "peer_eager", "ours_fast", *QUICK])
    entry = json.loads(output.read_text(encoding="utf8"))["modern"]["modern-tiny 4 × 32"]
    assert all(side["tokens_per_second"] > 0 for side in entry["sides"].values())
    assert list(entry["sides"]) == ["peer_eager", "ours_fast"]


@pytest.mark.slow
def test_the_start_is_timed_with_an_empty_cache_and_again_with_a_full_one(toy_shards, tmp_path):
    output = tmp_path / "kept.json"
    pretrain_gpu.main(
        ["--data", str(toy_shards), "--output", str(output), "--only", "startup", *QUICK]
    )
    assert list(json.loads(output.read_text(encoding="utf8"))["startup"]["seconds"]) == [
        "cold",
        "warm",
    ]


TOY_PROCESSES = "--sizes tiny --windows 2 --window-steps 2".split()


def test_what_a_checkpoint_costs_is_measured_and_kept_beside_other_settings(toy_shards, tmp_path):
    output = tmp_path / "kept.json"
    for rows in ("4", "6"):
        processes.main(
            [
                "--data",
                str(toy_shards),
                "--rows",
                rows,
                *TOY_PROCESSES,
                "--only",
                "stall",
                "--output",
                str(output),
            ]
        )
    result = {
        name: each
        for name, each in json.loads(output.read_text(encoding="utf8")).items()
        if name != "made"
    }
    assert [name.split(",")[0] for name in result] == ["tiny 4 × 32", "tiny 6 × 32"]
    for entry in result.values():
        cost = entry["stall"]
        assert (len(cost["windows"]), len(cost["hosts"]), len(cost["writes"])) == (12, 6, 6)
        assert cost["stall"] == cost["host"] + max(0, cost["excess"]) > 0
        assert cost["step"] > 0


@pytest.mark.slow
def test_the_cost_of_a_checkpoint_is_measured_with_several_processes(toy_shards, tmp_path):
    output = tmp_path / "kept.json"
    processes.main(
        [
            "--data",
            str(toy_shards),
            "--rows",
            "4",
            *TOY_PROCESSES,
            "--only",
            "stall",
            "--processes",
            "2",
            "--parallel",
            "fsdp",
            "--output",
            str(output),
        ]
    )
    ((name, entry),) = (
        (name, each)
        for name, each in json.loads(output.read_text(encoding="utf8")).items()
        if name != "made"
    )
    assert name.endswith(", 2 processes by FSDP")
    assert (
        len(entry["stall"]["windows"]),
        len(entry["stall"]["hosts"]),
        len(entry["stall"]["writes"]),
    ) == (12, 6, 6)
    assert "FSDP" in tables.processes(json.loads(output.read_text(encoding="utf8")))


def test_a_checkpoint_costs_the_hosts_time_and_what_the_window_after_it_lasts_longer():
    hosts = [9.0, 0.1, 0.1, 0.3]
    result = processes.compute_cost([99.0, 2.0, 2.5, 2.0, 2.75, 2.0, 2.5, 2.25], hosts, steps=4)
    assert result == pytest.approx({"step": 0.5, "stall": 0.6, "host": 0.1, "excess": 0.5})
    assert processes.compute_cost([99.0, 2.0, 1.5, 2.0], hosts, steps=4) == pytest.approx(
        {"step": 0.5, "stall": 0.1, "host": 0.1, "excess": -0.5}
    )


@pytest.mark.slow
def test_curves_of_several_settings_are_kept_with_their_baselines(toy_shards, tmp_path):
    output, flags = tmp_path / "kept.json", " ".join(TOY_FLAGS)
    output.write_text(json.dumps({"runs": {"earlier": {"held_out": []}}}))
    plateau.main(
        [
            "--data",
            str(toy_shards),
            "--together",
            "2",
            "--output",
            str(output),
            "--run",
            f"low: tiny {flags} --learning-rate 1e-4",
            "--run",
            f"high: tiny {flags}",
        ]
    )
    runs = json.loads(output.read_text(encoding="utf8"))["runs"]
    assert set(runs) == {"earlier", "low", "high"}
    assert [entry["step"] for entry in runs["low"]["held_out"]] == [10, 20]
    assert runs["low"]["held_out"][-1].keys() >= {"mlm_loss", "baseline_mlm_loss", "auc"}
    assert runs["low"]["held_out"] != runs["high"]["held_out"]


@pytest.mark.slow
def test_a_curve_ends_after_its_minutes_in_the_middle_of_its_schedule(toy_shards, tmp_path):
    output, flags = tmp_path / "kept.json", " ".join(TOY_FLAGS)
    run = f"long: tiny {flags.replace('--max-steps 20', '--max-steps 1000000')}"
    command = ["--data", str(toy_shards), "--run", run, "--minutes", "0.3"]
    plateau.main([*command, "--output", str(output)])
    held_out = json.loads(output.read_text(encoding="utf8"))["runs"]["long"]["held_out"]
    assert 10 <= held_out[-1]["step"] < 1_000_000


def write_sst_2(folder: Path) -> None:
    (folder / "SST-2").mkdir()
    for part, animal in (("train", "dog"), ("dev", "horse")):
        rows = [f"the old {animal} {'sees' if n % 2 else 'runs'}\t{n % 2}" for n in range(8)]
        (folder / "SST-2" / f"{part}.tsv").write_text(
            "\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf8"
        )


@pytest.mark.slow
def test_a_setting_is_also_worth_what_its_network_scores_on_tasks(toy_shards, tmp_path):
    write_sst_2(tmp_path)
    output = tmp_path / "kept.json"
    plateau.main(
        [
            "--data",
            str(toy_shards),
            "--output",
            str(output),
            "--glue",
            str(tmp_path),
            "--tasks",
            "glue/sst-2",
            "--tuning",
            "--epochs 1",
            "--run",
            f"one: tiny {' '.join(TOY_FLAGS)}",
        ]
    )
    result = json.loads(output.read_text(encoding="utf8"))["runs"]["one"]["tuned"]
    assert result.keys() == {"tuning", "glue/sst-2"}
    assert 0 <= result["glue/sst-2"] <= 1


@pytest.mark.slow
def test_what_a_process_under_torchrun_costs_is_measured_every_way(toy_shards, capsys):
    processes.main(["--data", str(toy_shards), "--rows", "4", *TOY_PROCESSES, "--only", "ways"])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == [
        "tiny, alone",
        "tiny, ddp",
        "tiny, ddp_plain",
        "tiny, fsdp_plain",
    ]


def test_a_setting_without_rows_of_its_length_is_left_out_aloud(toy_shards, capsys):
    pretrain_gpu.main(["--data", str(toy_shards), "--only", "base"])
    assert "base 64 × 512 is left out: no --data has rows of 512 tokens" in capsys.readouterr().out


def test_a_number_before_an_equals_sign_is_the_length_and_any_other_equals_sign_part_of_the_path(
    toy_shards, tmp_path
):
    named = tmp_path / "seed=1"
    named.symlink_to(toy_shards)
    assert (
        pretrain_gpu.find_shards([str(named)])
        == pretrain_gpu.find_shards([f"32={named}"])
        == {32: named}
    )
    with pytest.raises(
        UserError,
        match=wording(
            "a_number_before_an_equals_sign_is_the_length_and_any_other_equals_sign_part_of_the_path"
        ),
    ):
        pretrain_gpu.find_shards(["abc=shards"])
    with pytest.raises(
        UserError,
        match=wording(
            "a_number_before_an_equals_sign_is_the_length_and_any_other_equals_sign_part_of_the_path_2"
        ),
    ):
        pretrain_gpu.find_shards([f"128={named}"])


def test_a_side_that_fails_is_kept_as_failed(capsys):
    def fails():
        raise torch.OutOfMemoryError("too much")

    result = pretrain_sides.measure_side(fails, torch.device("cpu"), "small 1 × 1, ours_fast")
    assert result == {"failed": "OutOfMemoryError"}
    assert "failed (OutOfMemoryError)" in pretraining_tables.speed(
        {"best": {"small 128 × 128": entry(ours_fast=result)}}
    )


def test_curves_are_compared_where_their_means_differ_most():
    losses = {"plain": [[9.0, 5.0], [9.0, 6.0]], "fast": [[9.1, 5.0], [9.3, 6.25]]}
    result = pretrain_gpu.largest_difference(losses, every=10)
    assert result["step"] == 10
    assert result["largest_difference"] == pytest.approx(0.2)
    assert result["seed_range"] == pytest.approx(0.2)


@pytest.mark.parametrize("size", ["tiny", "modern-tiny"])
def test_the_peer_learns_nothing_from_padding(size):
    recipe = load_recipe(size, flags="--data.length 16 --encoder.layers 1".split())
    batch = toy_batch([16, 8])
    other = batch._replace(input_ids=torch.where(batch.attention_mask, batch.input_ids, 7))
    losses = []
    for each in (batch, other):
        torch.manual_seed(0)
        step = peer.pretraining_step(
            recipe, peer.SpecialIds.of(ToyVocabulary()), device=torch.device("cpu")
        )
        losses.append(step(each))
    torch.testing.assert_close(losses[0], losses[1])


# ---- where the time goes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "matrix products"),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>(T1::Params)",
            "matrix products",
        ),
        (
            "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
            "attention",
        ),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void at::native::vectorized_gather_kernel<16, long>", "masking and other indexing"),
        ("void at::native::embedding_backward_kernel<float>", "embeddings"),
        ("Memcpy HtoD (Pinned -> Device)", "copies and fills"),
        ("Memcpy DtoD (Device -> Device)", "copies and fills"),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
            "at::TensorIteratorBase&)::{lambda()#3}>",
            "copies and fills",
        ),
        (
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u>>",
            "copies and fills",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, "
            "at::native::NormTwoOps<c10::BFloat16, float, float, false>>>",
            "optimizer",
        ),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
            "at::native::BinaryFunctor<float, float, float, "
            "at::native::binary_internal::DivFunctor<float>>>>",
            "element-wise arithmetic",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
            "element-wise arithmetic",
        ),
        ("void at::native::reduce_kernel<512, 1>", "other"),
    ],
)
def test_a_kernel_is_known_by_its_name(name, kind):
    assert kind_of(name) == kind


def test_the_kernels_of_adamw_and_muon_are_the_optimizers():
    kernels = [
        Kernel("adamw_kernel", 1, 4.0),
        Kernel("momentum_kernel", 1, 2.0),
        Kernel("weight_kernel", 1, 1.0),
    ]
    assert by_kind(kernels) == {"optimizer": 7.0}


def test_kernels_of_one_kind_add_up_and_unknown_ones_come_last():
    result = [
        Kernel("mystery", 1, 90.0),
        Kernel("gemm_a", 2, 5.0),
        Kernel("gemm_b", 1, 6.0),
        Kernel("Memset", 1, 20.0),
    ]
    assert by_kind(result) == {"copies and fills": 20.0, "matrix products": 11.0, "other": 90.0}
    assert list(by_kind(result)) == ["copies and fills", "matrix products", "other"]


# ---- fine-tuning ---------------------------------------------------------------------------------


def test_the_trainer_reads_the_rows_that_ours_encodes():
    rows = Features.from_rows(
        [
            Row(0, [2, 9, 3, 8, 3], second_start=3, row_labels={"target": 1}),
            Row(1, [2, 7, 3], row_labels={"target": 0}),
        ]
    )
    assert finetune_gpu.as_dicts(rows) == [
        {
            "input_ids": [2, 9, 3, 8, 3],
            "token_type_ids": [0, 0, 0, 1, 1],
            "attention_mask": [1] * 5,
            "labels": 1,
        },
        {
            "input_ids": [2, 7, 3],
            "token_type_ids": [0, 0, 0],
            "attention_mask": [1] * 3,
            "labels": 0,
        },
    ]


def test_the_clock_runs_from_the_first_logged_step_to_the_last():
    assert finetune_gpu.compute_rate([(50, 110.0), (100, 111.0), (150, 111.5)]) == {
        "examples_per_second": 32 * 100 / 1.5,
        "windows": [32 * 50, 32 * 100],
    }


def test_a_round_on_a_cpu_trains_on_every_example_and_asks_for_it(tiny, tmp_path):
    finetune_cpu.write_texts(tmp_path / "texts.csv", 40)
    result = finetune_cpu.ours(tiny, tmp_path / "texts.csv")(0)
    assert result["train_tokens"] >= result["real_tokens"] > 40 * 5
    assert result["train_seconds"] > 0


@pytest.mark.slow
def test_the_finetuning_benchmark_compares_three_sides_on_made_up_texts(tiny, tmp_path, capsys):
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    output = tmp_path / "kept.json"
    finetune_gpu.main(["--model", str(tiny), "--output", str(output), "--quick", "--repeats", "1"])
    (result,) = json.loads(output.read_text(encoding="utf8"))["compare"].values()
    assert {side: len(rounds) for side, rounds in result["rounds"].items()} == {
        "trainer": 1,
        "trainer_grouped": 1,
        "ours": 1,
    }
    assert "glue is left out: name GLUE's folder with --data" in capsys.readouterr().out


def test_tasks_that_go_on_in_their_folder_are_noted_beside_the_minutes(tmp_path, monkeypatch):
    def finishes(command, **_):
        place = Path(command[command.index("--output-dir") + 1])
        (place / "seed-0").mkdir(parents=True, exist_ok=True)
        runs = [{"score": 0.5, "steps": 4, "seconds": 1.0}]
        (place / "results.json").write_text(
            json.dumps(
                {
                    "metric": "accuracy",
                    "median": 0.5,
                    "runs": runs,
                    "made": {"data": {"train": {"examples": 8}}, "settings_hash": "0"},
                }
            ),
            encoding="utf8",
        )

    monkeypatch.setattr(finetune_gpu, "subprocess", SimpleNamespace(run=finishes, DEVNULL=None))
    options = SimpleNamespace(
        model="model", data="glue", seeds=2, at_once=2, place=tmp_path / "glue", quick=True
    )
    (first,) = finetune_gpu.glue(options, {})
    assert "note" not in first
    (second,) = finetune_gpu.glue(options, {})
    assert (
        second["note"] == "6 of 12 runs had been begun earlier; the minutes count this start alone"
    )


def test_a_folder_without_all_six_tasks_is_refused_before_any_work(tmp_path):
    (tmp_path / "RTE").mkdir()
    for split in ("train", "dev"):
        (tmp_path / f"RTE/{split}.tsv").write_text(
            "index\tsentence1\tsentence2\tlabel\n", encoding="utf8"
        )
    with pytest.raises(
        UserError, match=wording("a_folder_without_all_six_tasks_is_refused_before_any_work")
    ):
        small_gpu.main(
            ["--data", "shards", "--run", str(tmp_path / "run"), "--glue", str(tmp_path)]
        )
    assert not (tmp_path / "run").exists()


# ---- what is shown -------------------------------------------------------------------------------


def test_the_table_of_speed_says_ratios_utilisation_and_what_is_missing():
    table = pretraining_tables.speed(
        {"paper": {"small 128 × 128": entry(peer_eager=rate(1e6), ours_fast=rate(5e6))}}
    )
    assert table.splitlines()[0].startswith("| tokens/s, a GPU, torch 2.11 |")
    assert table.splitlines()[-1] == (
        "Medians of windows (lowest to highest), not counting the first window: small 128 × 128, "
        "3 of 15 steps."
    )
    missing = " | ".join(["not measured"] * 5)
    assert table.splitlines()[-3] == (
        f"| small 128 × 128 (0123456-dirty) | 1,000k (1,000k to 1,000k) | {missing} "
        "| 5,000k (5,000k to 5,000k) | 5.00 | – | 5.00 | 50.0% |"
    )


def test_every_setting_names_the_commit_it_was_measured_at():
    made = [
        {"hardware": "a GPU", "torch": "2.11", "commit": commit}
        for commit in ("aaaaaaaaaa", "bbbbbbbbbb")
    ]
    entries = {
        name: {**entry(ours_fast=rate(5e6)), "made": each}
        for name, each in zip("AB", made, strict=True)
    }
    profile = {
        name: {"made": each, "run": 1.0, "kinds_ms": {}, "wall_ms": 1.0}
        for name, each in zip("AB", made, strict=True)
    }
    for table in (pretraining_tables.speed, pretraining_tables.memory, pretraining_tables.scaling):
        head, _, *rows = table({"best": entries, "scaling": entries}).splitlines()
        assert " a GPU, torch 2.11 |" in head
        assert [line.split(" |")[0] for line in rows[:2]] == ["| A (aaaaaaa)", "| B (bbbbbbb)"]
    head = pretraining_tables.profile({"profile": profile}).splitlines()[0]
    assert head == "| milliseconds of a step, ours, a GPU, torch 2.11 | A (aaaaaaa) | B (bbbbbbb) |"


@pytest.mark.parametrize(
    "table",
    [*pretraining_tables.TABLES, *finetuning_tables.TABLES],
    ids=lambda table: table.__name__,
)
def test_a_table_of_nothing_says_so(table):
    assert "no machine yet" in table({}) or "not measured" in table({})


def test_a_run_that_has_only_some_scores_is_not_put_beside_published_ones(monkeypatch):
    tuned = {
        f"glue/{name}": {"flags": "--epochs 1", "scores": [0.5], "median": 0.5}
        for name in finetuning_tables.PUBLISHED
    }
    run = {"stage": "final", "minutes": 1.0, "steps": 9, "epochs": 1.0}
    run |= {"tokens_seen": 2e6, "corpus_tokens": 2e6}
    whole = run | {"arm": finetuning_tables.ARM, "tuned": tuned}
    part = run | {"arm": "paper", "tuned": {"glue/rte": tuned["glue/rte"]}}
    record = {"runs": {"whole": whole, "part": part}}
    monkeypatch.setattr(finetuning_tables, "read_record", lambda path: record)
    (row,) = finetuning_tables.record_rows()
    assert row.startswith("| `small-en`")
    assert row.endswith("fine-tuned with `--epochs 1` |" + 7 * " 50.0 |")


def test_a_row_of_finetuning_says_how_long_it_was_measured():
    rounds = {
        side: [{"examples_per_second": 100.0}] for side in ("trainer", "trainer_grouped", "ours")
    }
    printed = finetuning_tables.tuning_speed(
        {"compare": {"glue/sst-2": {"rounds": rounds, "steps": 150}}}
    )
    assert wording("a_row_of_finetuning_says_how_long_it_was_measured") in printed


def test_a_kept_command_names_no_place_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["/my/bench.py", "--data", "128=/my/own/shards", "/my/other", "--quick"]
    )
    harness.write_result(tmp_path / "kept.json", {})
    made = json.loads((tmp_path / "kept.json").read_text(encoding="utf8"))["made"]
    assert made["command"] == ["bench.py", "--data", "128=shards", "other", "--quick"]


def test_the_same_results_give_the_same_figure(tmp_path):
    pytest.importorskip("matplotlib")
    output = {"scaling": {"small 128 × 128": entry(ours_fast=rate(5e6))}}
    for name in ("one.svg", "two.svg"):
        plots.draw(output, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_figure_on_the_page_is_drawn_from_the_kept_results():
    picture = (ROOT / "docs" / "images" / "speed.svg").read_text(encoding="utf8")
    assert plots.caption(read_result("pretrain_gpu")) in picture


# ---- a model as proof ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proof(toy_shards, tmp_path_factory):
    """The command of a small proof that has run once, and where its result is kept."""
    folder = tmp_path_factory.mktemp("proof")
    output, flags = folder / "kept.json", dict(zip(TOY_FLAGS[::2], TOY_FLAGS[1::2], strict=True))
    del flags["--max-steps"]
    command = [
        "--data",
        str(toy_shards),
        "--run",
        str(folder / "run"),
        "--recipe",
        "tiny",
        "--max-steps",
        "4",
        "--output",
        str(output),
        "--flags",
        *(word for pair in flags.items() for word in pair),
        "--quiet",
    ]
    small_gpu.main(command)
    return command, output


@pytest.mark.slow
def test_a_small_proof_says_what_was_read_and_how_the_model_fared(proof):
    result = json.loads(proof[1].read_text(encoding="utf8"))
    training = result["pretraining"]
    assert (training["steps"], training["rows"], len(training["losses"])) == (4, "12 × 32", 4)
    assert [each["step"] for each in training["held_out"]] == [4]
    result["glue"] = {
        "seeds": 3,
        "minutes": 2.0,
        "at_once": 1,
        "note": "continued once",
        "tasks": {name: {"scores": [0.5, 0.7, 0.6]} for name in finetuning_tables.PUBLISHED},
    }
    printed = finetuning_tables.proof(result)
    assert wording("a_small_proof_says_what_was_read_and_how_the_model_fared") in printed
    assert wording("a_small_proof_says_what_was_read_and_how_the_model_fared_2") in printed
    assert printed.endswith("Fine-tuning: continued once.")
    assert f"{training['held_out'][0]['auc']:.3f}" in finetuning_tables.held_out(result)


@pytest.mark.slow
def test_a_start_that_finds_the_model_finished_tells_how_long_it_took_to_make(proof):
    command, output = proof
    before = json.loads(output.read_text(encoding="utf8"))["pretraining"]
    (Path(command[command.index("--run") + 1]) / "glue" / "rte").mkdir(
        parents=True
    )  # as if cut off while fine-tuning
    small_gpu.main(command)
    assert json.loads(output.read_text(encoding="utf8"))["pretraining"] == before


@pytest.mark.slow
def test_a_run_that_was_logged_but_once_is_told_all_the_same(proof, tmp_path):
    run = Path(proof[0][proof[0].index("--run") + 1])
    shutil.copy(run / "config.toml", tmp_path)
    last = harness.read_windows(run)[-1]
    (tmp_path / "metrics.jsonl").write_text(json.dumps(last) + "\n", encoding="utf8")
    shards = SimpleNamespace(manifest=SimpleNamespace(tokens=1, documents=1, vocab_size=1))
    summary = small_gpu.summarize(
        tmp_path, shards, SimpleNamespace(recipe="tiny", flags=["--quiet"])
    )
    assert (summary["rows"], summary["tokens_per_second"]) == ("12 × 32", last["tokens_per_second"])


def test_a_proof_of_one_window_is_refused_before_any_work(toy_shards, tmp_path):
    with pytest.raises(
        UserError, match=wording("a_proof_of_one_window_is_refused_before_any_work")
    ):
        small_gpu.main(
            [
                "--data",
                str(toy_shards),
                "--run",
                str(tmp_path / "run"),
                "--recipe",
                "tiny",
                "--max-steps",
                "4",
                "--flags",
                "--quiet",
            ]
        )
    assert not (tmp_path / "run").exists()


# ---- wrong use -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("main", "argv", "answer"),
    [
        (pretrain_gpu.main, ["--data", "/nowhere"], "/nowhere: no such folder; run `electra shard"),
        (finetune_gpu.main, ["--model", "/nowhere"], "/nowhere: no such model folder"),
        (
            plots.main,
            ["--result", "/nowhere"],
            "--result /nowhere: no such file; `python -m benchmarks.pretrain_gpu",
        ),
    ],
)
def test_a_wrong_path_is_answered_in_one_line(main, argv, answer, capsys):
    with pytest.raises(SystemExit) as exit:
        harness.run_main(lambda: main(argv))
    assert exit.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {answer}")
    assert printed.count("\n") == 1


FIGURES = {"pretrain_gpu": plots, "encoders": encoder_plots, "record": record_plots}


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("result", [*FIGURES, "beyond_glue", "plateau", "help"])
def test_a_figure_of_another_benchmarks_result_is_refused(figure, result, tmp_path):
    argv = ["--result", str(RESULTS / f"{result}.json"), "--output", str(tmp_path / "figure.svg")]
    if result == figure:
        FIGURES[figure].main(argv)
        return
    with pytest.raises(UserError, match=rf"{result}\.json: it has no '(scaling|runs)' with"):
        FIGURES[figure].main(argv)


@pytest.mark.parametrize(
    ("main", "argv", "answer"),
    [
        (
            processes.main,
            "--data /nowhere --windows 1",
            "--windows 1: the first is not counted, so at least 2 are needed",
        ),
        (
            processes.main,
            "--data /nowhere --window-steps 0",
            "--window-steps 0: at least 1 is needed",
        ),
        (processes.main, "--data /nowhere --processes 2", "--processes is for --only stall"),
        (
            processes.main,
            "--data /nowhere --rows 3 --processes 2",
            "--rows 3: 2 processes need equal shares",
        ),
        (
            processes.main,
            "--data /nowhere --save-steps 3",
            "--save-steps 3: two equal windows lie between two checkpoints",
        ),
        (
            pretrain_gpu.main,
            "--data /nowhere --profile-steps 0",
            "--profile-steps 0: at least 1 is needed",
        ),
        (
            pretrain_gpu.main,
            "--data /nowhere --curve-seeds 0",
            "--curve-seeds 0: at least 1 is needed",
        ),
        (
            finetune_gpu.main,
            "--model /nowhere --steps 99",
            "every 50th is logged, so at least 100 are needed",
        ),
        (finetune_gpu.main, "--model /nowhere --at-once 0", "--at-once 0: at least 1 is needed"),
        (small_gpu.main, "--data /nowhere --run run --seeds 0", "--seeds 0: at least 1 is needed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_size_that_cannot_be_measured_is_refused_before_any_work(main, argv, answer, capsys):
    with pytest.raises(SystemExit) as exit:
        main(argv.split())
    assert exit.value.code == 2
    assert answer in capsys.readouterr().err


def test_a_command_that_fails_inside_a_benchmark_is_named(capsys):
    with pytest.raises(SystemExit) as exit:
        harness.run_main(lambda: subprocess.run(["false"], check=True))
    assert exit.value.code == 2
    assert capsys.readouterr().err == "error: `false` ended with exit code 1: its output is above\n"


def test_a_figure_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        UserError, match=wording("a_figure_without_matplotlib_says_what_to_install")
    ):
        plots.draw({}, tmp_path / "figure.svg")


def test_the_proof_needs_texts_or_shards_and_not_both(capsys):
    for argv in ([], ["--corpus", "texts", "--data", "shards"]):
        with pytest.raises(SystemExit) as exit:
            small_gpu.main([*argv, "--run", "run"])
        assert exit.value.code == 2
    assert "one of the arguments --corpus --data is required" in capsys.readouterr().err


@pytest.mark.slow
def test_encoders_are_compared_by_seeds_and_one_that_fails_stops_no_other(
    toy_shards, tmp_path, capsys
):
    write_sst_2(tmp_path)
    output, flags = tmp_path / "kept.json", " ".join(TOY_FLAGS)
    tasks = ["glue/sst-2 --max-steps 2 --batch-size 4"]
    arguments = [
        *("--data", str(toy_shards), "--folder", str(tmp_path / "runs")),
        *("--arm", f"toy: tiny {flags}", "--arm", "wrong: no-such-recipe"),
        *("--seed", "1", "--seeds", "2", "--together", "2"),
        *("--glue", str(tmp_path), "--tasks", *tasks),
        *("--tuning", "low: --learning-rate 1e-4", "--output", str(output)),
    ]
    with pytest.raises(SystemExit, match="1"):
        encoders.main(arguments)
    runs = json.loads(output.read_text(encoding="utf8"))["runs"]
    assert set(runs) == {"toy, seed 1", "toy, seed 2"}
    assert runs["toy, seed 1"]["held_out"] != runs["toy, seed 2"]["held_out"]
    tuned = runs["toy, seed 2"]["tuned"]["low"]["glue/sst-2"]
    assert tuned["flags"] == f"{tasks[0].removeprefix('glue/sst-2 ')} --learning-rate 1e-4"
    assert len(tuned["scores"]) == 1
    assert "wrong-1 failed" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_of_encoders_that_was_finished_before_keeps_where_it_was_made(
    toy_shards, tmp_path, monkeypatch
):
    output = tmp_path / "kept.json"
    arguments = [
        *("--data", str(toy_shards), "--folder", str(tmp_path / "runs")),
        *("--arm", f"toy: tiny {' '.join(TOY_FLAGS)}", "--output", str(output)),
    ]
    for seeds, commit in (("1", "first"), ("2", "second")):
        monkeypatch.setattr(encoders, "provenance", lambda commit=commit: {"commit": commit})
        encoders.main([*arguments, "--seeds", seeds])
    runs = json.loads(output.read_text(encoding="utf8"))["runs"]
    assert runs["toy, seed 0"]["made"] == {"commit": "first"}
    assert runs["toy, seed 1"]["made"] == {"commit": "second"}


def encoder_run(
    arm: str, accuracy: float, score: float, tasks: Sequence[str] = encoder_tables.TASKS
) -> dict[str, Any]:
    scores = {"mlm_accuracy": accuracy, "baseline_mlm_accuracy": 0.2, "auc": 0.75}
    tuned = {"[CLS]": {task: {"scores": [score], "baseline": 0.5} for task in tasks}}
    made = {"hardware": "GPU", "torch": "2", "commit": "abc"}
    kept = {"arm": arm, "settings": "small --seed 1", "held_out": [scores]}
    return {**kept, "tuned": tuned, "made": made}


def test_an_arm_of_encoders_that_was_not_fine_tuned_says_so():
    run = encoder_run("one", 0.3, 0.5, tasks=())
    *_, one = encoder_tables.encoders({"runs": {"a": run}}).splitlines()
    cells = "30.0 % (20.0 %) | 0.750 | [CLS] | not measured | not measured"
    assert one == f"| one: `small` | 1 | {cells} | – and – |"


def test_an_arm_of_encoders_shows_its_epochs_and_how_many_scores_are_not_one_a_run():
    run = encoder_run("one", 0.3, 0.5)
    run["tuned"]["[CLS]"]["glue/qnli"] |= {
        "scores": [0.5, 0.5],
        "flags": "--epochs 2 --kernels off",
    }
    *_, one = encoder_tables.encoders({"runs": {"a": run}}).splitlines()
    assert one.endswith("| [CLS] | 50.0 ± 0.0 (2 scores) | 50.0 | 2 and default |")


def test_encoders_fine_tuned_on_all_tasks_are_shown_by_their_worst_and_best_seed():
    scores = {"a": 0.5, "b": 0.6, "c": 0.9}
    runs = {
        name: encoder_run("all", 0.3, score, tasks=encoder_tables.ALL_TASKS)
        for name, score in scores.items()
    }
    runs["d"] = encoder_run("two tasks", 0.3, 0.5)
    *_, every, baseline = encoder_tables.encoder_tasks({"runs": runs}).splitlines()
    assert every == f"| all | [CLS] | 3 | {' | '.join(['60.0 (50.0 to 90.0)'] * 6)} |"
    assert baseline.endswith(f"| {' | '.join(['50.0'] * 6)} |")


def test_an_arm_of_encoders_is_shown_by_the_mean_where_it_was_fine_tuned_so():
    run = encoder_run("one", 0.3, 0.5)
    by_mean = {task: {"scores": [0.7], "baseline": 0.5} for task in encoder_tables.TASKS}
    run["tuned"]["mean"] = by_mean
    *_, one = encoder_tables.encoders({"runs": {"a": run}}).splitlines()
    assert one == (
        "| one: `small` | 1 | 30.0 % (20.0 %) | 0.750 | mean | 70.0 | 70.0 | default and default |"
    )


def test_an_arm_of_encoders_is_shown_with_the_spread_of_its_seeds():
    run = encoder_run
    runs = {"a": run("one", 0.3, 0.5), "b": run("two", 0.4, 0.6), "c": run("two", 0.42, 0.62)}
    *_, two, one = encoder_tables.encoders({"runs": runs}).splitlines()
    cells = "41.0 ± 1.4 % (20.0 %) | 0.750 ± 0.000 | [CLS] | 61.0 ± 1.4 | 61.0 ± 1.4"
    assert two == f"| two: `small` | 2 | {cells} | default and default |"
    cells = "30.0 % (20.0 %) | 0.750 | [CLS] | 50.0 | 50.0 | default and default"
    assert one == f"| one: `small` | 1 | {cells} |"
