"""The loop, in one process and at toy size."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from electra.checksums import write_checksums
from electra.config import RunFailed, UserError
from electra.data.shards import Shards
from electra.engine import async_checkpoint
from electra.engine.distributed import World
from electra.engine.train_step import PlainTrainStep
from electra.engine.training_state import PinnedStaging
from electra.model.flops import standard
from electra.pretraining import loop, setup, verdict
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.pretraining.resolve import check_micro_batches
from electra.runs import checkpoint
from electra.runs.journal import Journal, read_metrics
from tests.conftest import TOY_FLAGS
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = pytest.mark.usefixtures("few_threads")


def toy(*flags: str):
    return load_recipe("tiny", flags=[*TOY_FLAGS, *flags])


def test_warnings_about_shards_that_a_run_makes_are_printed_once(tmp_path, capsys):
    (tmp_path / "short.txt").write_text("one two three four\n\n" * 300, encoding="utf8")
    recipe = toy("--max-steps", "1", "--vocab-size", "100")
    pretrain(recipe, corpus=[tmp_path / "short.txt"], output_dir=tmp_path / "run")
    assert capsys.readouterr().err.count("documents are short") == 1


def test_a_run_writes_models_checkpoints_metrics_and_status(toy_shards, tmp_path):
    outcome = pretrain(toy(), data=toy_shards, output_dir=tmp_path / "run", quiet=True)
    assert (outcome.status, outcome.step) == ("finished", 20)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "discriminator",
        "generator",
        "checkpoint-16",
        "checkpoint-20",
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "status.json",
    }
    assert {path.name for path in (tmp_path / "run" / "discriminator").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "README.md",
    }
    config = json.loads((tmp_path / "run" / "generator" / "config.json").read_text())
    assert config["electra_role"] == "generator"
    assert config["architectures"] == ["ElectraForMaskedLM"]


def test_a_masked_lm_run_writes_an_encoder(toy_shards, tmp_path):
    recipe = tmp_path / "mlm.toml"
    recipe.write_text('[objective]\nname = "mlm"\n')
    outcome = pretrain(
        load_recipe(str(recipe), flags=TOY_FLAGS),
        data=toy_shards,
        output_dir=tmp_path / "run",
        quiet=True,
    )
    assert outcome.scores["mlm_loss"] > 0
    assert (
        json.loads((tmp_path / "run" / "encoder" / "config.json").read_text())["electra_role"]
        == "encoder"
    )
    assert not (tmp_path / "run" / "discriminator").exists()


@pytest.mark.parametrize(
    ("name", "architecture", "scores"),
    [
        (
            "bert-nsp",
            "ElectraForMaskedLM",
            {"mlm_loss", "nsp_loss", "nsp_accuracy", "baseline_nsp_accuracy"},
        ),
        ("left-to-right", "ElectraForCausalLM", {"lm_loss", "lm_accuracy", "baseline_lm_loss"}),
    ],
)
def test_an_ablation_of_bert_exports_an_encoder_with_the_same_logits_in_transformers(
    toy_shards, tmp_path, name, architecture, scores
):
    recipe = load_recipe(f"{name}-base", flags=[*TOY_FLAGS, "--max-steps", "2"])
    outcome = pretrain(
        recipe, data=toy_shards, output_dir=tmp_path / "run", quiet=True
    )  # verified when finished
    assert outcome.scores.keys() >= scores
    config = json.loads((tmp_path / "run" / "encoder" / "config.json").read_text())
    assert (config["electra_role"], config["architectures"]) == ("encoder", [architecture])
    assert config["is_decoder"] == (name == "left-to-right")
    assert (
        "text-generation" in (tmp_path / "run" / "encoder" / "README.md").read_text()
    ) == config["is_decoder"]


def test_a_micro_batch_of_one_row_is_refused_where_rows_need_each_other(
    toy_shards, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "electra.pretraining.resolve.fit_micro_batch", lambda recipe, vocabulary, world: 1
    )
    flags = [
        word
        for pair in zip(TOY_FLAGS[::2], TOY_FLAGS[1::2], strict=True)
        if pair[0] != "--micro-batch-size"
        for word in pair
    ]
    with pytest.raises(
        UserError, match=wording("a_micro_batch_of_one_row_is_refused_where_rows_need_each_other")
    ):
        pretrain(
            load_recipe("bert-nsp-base", flags=flags),
            data=toy_shards,
            output_dir=tmp_path / "run",
            quiet=True,
        )


def test_a_run_resumes_with_smaller_micro_batches_on_more_processes_than_micro_batches():
    world = World(rank=0, size=3, device=torch.device("cpu"))
    changed, warnings = check_micro_batches(toy("--micro-batch-size", "12"), world, may_change=True)
    assert changed.training.micro_batch_size is None
    assert warnings == [
        "this run has micro-batches of 12 rows, too large to give each of 3 processes one; it "
        "continues with smaller ones. The data and their order stay the same; masks and dropout, "
        "which are drawn for each micro-batch, change"
    ]
    assert check_micro_batches(toy("--micro-batch-size", "4"), world, may_change=True) == (
        toy("--micro-batch-size", "4"),
        [],
    )
    with pytest.raises(
        UserError,
        match=wording(
            "a_run_resumes_with_smaller_micro_batches_on_more_processes_than_micro_batches"
        ),
    ):
        check_micro_batches(toy("--micro-batch-size", "12"), world, may_change=False)


@pytest.mark.parametrize("how", [{"resume": "never", "overwrite": True}, {"resume": "elsewhere"}])
def test_a_run_that_torchrun_restarts_resumes_from_its_own_checkpoints_however_it_was_started(
    eight_steps, toy_shards, tmp_path, monkeypatch, how
):
    how = how | (
        {"resume": str(eight_steps / "checkpoint-4")} if how["resume"] == "elsewhere" else {}
    )
    run = tmp_path / "run"
    monkeypatch.setenv(
        "TORCHELASTIC_RESTART_COUNT", "1"
    )  # before its first checkpoint it is begun as asked
    pretrain(
        toy("--max-steps", "6", "--save-steps", "3"),
        data=toy_shards,
        output_dir=run,
        quiet=True,
        **how,
    )
    first = [entry["step"] for entry in read_metrics(run / "metrics.jsonl")]
    assert min(first) == (1 if how["resume"] == "never" else 5)
    written = (run / "checkpoint-6").stat().st_mtime_ns
    pretrain(
        toy("--max-steps", "8", "--save-steps", "3"),
        data=toy_shards,
        output_dir=run,
        quiet=True,
        resume_schedule="stretch",
        **how,
    )
    assert (run / "checkpoint-6").stat().st_mtime_ns == written
    assert [entry["step"] for entry in read_metrics(run / "metrics.jsonl")][: len(first)] == first


def test_a_restart_before_an_earlier_run_is_replaced_replaces_it(
    eight_steps, toy_shards, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    shutil.copytree(eight_steps, run)

    def start():
        recipe = toy("--max-steps", "3", "--save-steps", "3")
        pretrain(
            recipe, data=toy_shards, output_dir=run, quiet=True, resume="never", overwrite=True
        )

    with monkeypatch.context() as patch:
        patch.setattr(setup, "place_on_device", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            start()
    assert (run / "checkpoint-8").is_dir()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    start()
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-3"]
    steps = [entry["step"] for entry in read_metrics(run / "metrics.jsonl")]
    assert (min(steps), max(steps)) == (1, 3)
    written = (run / "checkpoint-3").stat().st_mtime_ns
    start()  # another restart finds the run that replaced it
    assert (run / "checkpoint-3").stat().st_mtime_ns == written


LONG_ENOUGH = (
    "--max-steps 200 --learning-rate 3e-3 --eval-rows 100 --logging-steps 50 --eval-steps 200 "
    "--save-steps 200 --encoder.dropout 0 --encoder.attention-dropout 0 --encoder.width 64 "
    "--batch-size 24 "
    "--encoder.embedding 64 --objective.generator.fraction 1.0 --objective.generator.tie none "
    "--warmup-steps 20"
).split()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replace-mlm", "all-tokens-mlm"])
def test_an_encoder_learns_to_restore_what_was_replaced(toy_shards, tmp_path, name):
    recipe = load_recipe(f"{name}-base", flags=[*TOY_FLAGS, *LONG_ENOUGH])
    outcome = pretrain(recipe, data=toy_shards, output_dir=tmp_path / "run", quiet=True)
    scores = outcome.scores
    assert scores["restore_loss"] < 0.9 * scores["baseline_restore_loss"]
    for role in ("encoder", "generator"):
        config = json.loads((tmp_path / "run" / role / "config.json").read_text())
        assert (config["electra_role"], config["architectures"]) == (role, ["ElectraForMaskedLM"])


def test_both_networks_learn_the_grammar_of_the_toy_corpus(toy_shards, tmp_path):
    """In 200 steps the generator learns more than word frequencies, the discriminator more than
    nothing.
    """
    outcome = pretrain(toy(*LONG_ENOUGH), data=toy_shards, output_dir=tmp_path / "run", quiet=True)
    assert outcome.scores["mlm_loss"] < 0.8 * outcome.scores["baseline_mlm_loss"]
    assert outcome.scores["auc"] > 0.65
    assert outcome.scores["rtd_loss"] < 0.95 * outcome.scores["baseline_rtd_loss"]


def losses_of(data, run, *flags):
    pretrain(
        toy(
            "--encoder.dropout", "0", "--encoder.attention-dropout", "0", "--max-steps", "5", *flags
        ),
        data=data,
        output_dir=run,
        quiet=True,
    )
    return [entry["loss"] for entry in read_metrics(run / "metrics.jsonl") if "loss" in entry]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(toy_shards, tmp_path):
    first, second, other = (
        losses_of(toy_shards, tmp_path / name, "--seed", seed)
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    )
    assert first == second
    assert first != other


def test_bf16_stays_close_to_fp32(toy_shards, tmp_path):
    fp32, bf16 = (losses_of(toy_shards, tmp_path / p, "--precision", p) for p in ("fp32", "bf16"))
    assert bf16 == pytest.approx(fp32, rel=0.02)
    assert bf16 != fp32


def test_steps_continue_while_a_checkpoint_is_written_and_it_holds_its_own_step(
    toy_shards, tmp_path, monkeypatch
):
    """The disk is held up until three more steps are taken."""
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    write, waited = checkpoint.write, []

    def slow(
        run: Path, contents: checkpoint.TrainingState, *, step: int, state: dict[str, object]
    ) -> Path:
        deadline = time.monotonic() + 240
        while (
            step == 4
            and read_metrics(run / "metrics.jsonl")[-1]["step"] < 7
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        waited.append(read_metrics(run / "metrics.jsonl")[-1]["step"])
        return write(run, contents, step=step, state=state)

    monkeypatch.setattr(checkpoint, "write", slow)
    pretrain(
        toy("--max-steps", "8", "--save-total-limit", "9"),
        data=toy_shards,
        output_dir=broken,
        quiet=True,
    )
    assert waited[0] >= 7
    monkeypatch.undo()
    shutil.rmtree(broken / "checkpoint-8")
    for folder in (broken, whole):
        pretrain(
            toy("--max-steps", "8", "--save-total-limit", "9"),
            data=toy_shards,
            output_dir=folder,
            quiet=True,
        )
    again, never = (
        load_file(folder / "checkpoint-8" / "weights.safetensors") for folder in (broken, whole)
    )
    assert all(again[name].equal(never[name]) for name in never)


def tamper_with(folder, name="weights.safetensors", change=None, **state):
    """Change tensors or values of a checkpoint and write matching checksums."""
    if change is not None:
        tensors = load_file(folder / name)
        change(tensors)
        checkpoint.save_file(tensors, folder / name)
    before = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(before | state))
    write_checksums(folder, [*checkpoint.TENSORS, "state.json"])


@pytest.fixture(scope="module")
def eight_steps(toy_shards, tmp_path_factory):
    run = tmp_path_factory.mktemp("eight") / "run"
    pretrain(toy("--max-steps", "8"), data=toy_shards, output_dir=run, quiet=True)
    return run


TENSOR = "discriminator.encoder.blocks.1.expand.weight"


def remove_averages(tensors):
    for name in [name for name in tensors if name.endswith(".ema")]:
        del tensors[name]


@pytest.mark.parametrize(
    "change", [remove_averages, lambda tensors: tensors.pop(f"{TENSOR}.ema")], ids=["all", "one"]
)
def test_a_checkpoint_without_averages_is_refused_by_a_run_that_averages(
    toy_shards, tmp_path, change
):
    def run(steps):
        flags = ["--max-steps", steps, "--ema-decay", "0.9", "--schedule", "constant"]
        pretrain(toy(*flags), data=toy_shards, output_dir=tmp_path / "run", quiet=True)

    run("2")
    tamper_with(tmp_path / "run" / "checkpoint-2", "optimizer.safetensors", change)
    with pytest.raises(
        UserError,
        match=wording("a_checkpoint_without_averages_is_refused_by_a_run_that_averages"),
    ):
        run("3")


@pytest.mark.parametrize(
    "how",
    [
        {"change": lambda tensors: tensors.pop(TENSOR)},
        {"change": lambda tensors: tensors.update({TENSOR: torch.zeros(3)})},
        {
            "name": "optimizer.safetensors",
            "change": lambda tensors: tensors.pop(f"{TENSOR}.exp_avg"),
        },
        {
            "name": "optimizer.safetensors",
            "change": lambda tensors: tensors.update({f"{TENSOR}.exp_avg": torch.zeros(3)}),
        },
        {"skipped": "many"},
        {"tokens_seen": None},
        {"scores": 3},
    ],
)
def test_a_whole_checkpoint_with_tensors_or_values_of_another_run_is_refused(
    eight_steps, toy_shards, tmp_path, how
):
    run = tmp_path / "run"
    shutil.copytree(eight_steps, run)
    tamper_with(run / "checkpoint-8", **how)
    with pytest.raises(
        UserError,
        match=wording("a_whole_checkpoint_with_tensors_or_values_of_another_run_is_refused"),
    ):
        pretrain(
            toy("--max-steps", "12"),
            data=toy_shards,
            output_dir=run,
            quiet=True,
            resume_schedule="stretch",
        )
    assert checkpoint.open_checkpoint(run / "checkpoint-8").step == 8


def test_a_number_that_is_not_finite_stops_the_run_and_is_named(eight_steps, toy_shards, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(eight_steps, run)
    tamper_with(
        run / "checkpoint-8",
        change=lambda tensors: tensors[TENSOR].view(-1)[:1].fill_(float("nan")),
    )
    message = (
        r"weight discriminator\.encoder\.blocks\.1\.expand\.weight is not finite in step 9; "
        r".* is .*checkpoint-8"
    )
    with pytest.raises(RunFailed, match=message):
        pretrain(
            toy("--max-steps", "12"),
            data=toy_shards,
            output_dir=run,
            quiet=True,
            resume_schedule="stretch",
        )
    assert json.loads((run / "status.json").read_text())["status"] == "failed"


def test_a_collapse_in_two_evaluations_stops_the_run_and_the_remedy_is_named(
    toy_shards, tmp_path, monkeypatch
):
    """Evaluations of steps 3 and later find one answer for all tokens."""
    held_out_scores = loop.held_out_scores

    def collapsed_scores(run, *arguments):
        scores = held_out_scores(run, *arguments)
        return scores | {"logit_std": 0.0, "auc": 0.5} if run.step >= 3 else scores

    monkeypatch.setattr(loop, "held_out_scores", collapsed_scores)
    monkeypatch.setattr(verdict, "MIN_DIAGNOSED_STEPS", 1)
    schedule = ("--max-steps", "8", "--warmup-steps", "2", "--eval-steps", "1", "--save-steps", "3")

    def train(*more):
        return pretrain(toy(*schedule, *more), data=toy_shards, output_dir=tmp_path, quiet=True)

    stopped = wording("a_collapse_in_two_evaluations_stops_the_run_and_the_remedy_is_named")
    for _ in range(2):  # the checkpoint remembers the evaluation before
        with pytest.raises(RunFailed, match=stopped):
            train()
        assert json.loads((tmp_path / "status.json").read_text())["status"] == "failed"
        assert evaluated_steps(tmp_path) == [1, 2, 3, 4]
    assert train("--stop-on-collapse", "false").status == "finished"
    assert evaluated_steps(tmp_path) == list(range(1, 9))


def evaluated_steps(run):
    entries = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [entry["step"] for entry in entries if "eval_rtd_loss" in entry]


def test_embeddings_shared_in_training_are_equal_in_both_exports(toy_shards, tmp_path):
    pretrain(toy("--max-steps", "3"), data=toy_shards, output_dir=tmp_path, quiet=True)
    tables = [
        load_file(tmp_path / name / "model.safetensors")[
            "electra.embeddings.word_embeddings.weight"
        ]
        for name in ("discriminator", "generator")
    ]
    assert torch.equal(*tables)


def test_a_gradient_that_is_not_finite_is_named_not_what_clipping_made_of_it(
    toy_shards, tmp_path, monkeypatch
):
    forward_backward = PlainTrainStep.forward_backward

    def with_nan(steps, *arguments, **options):
        losses = forward_backward(steps, *arguments, **options)
        steps.module.discriminator.output.bias.grad.fill_(float("nan"))
        return losses

    monkeypatch.setattr(PlainTrainStep, "forward_backward", with_nan)
    with pytest.raises(
        RunFailed,
        match=wording("a_gradient_that_is_not_finite_is_named_not_what_clipping_made_of_it"),
    ):
        pretrain(toy(), data=toy_shards, output_dir=tmp_path / "run", quiet=True)


def put_nan_into_gradients(monkeypatch, *bad_steps):
    """Put NaN into the gradient of these steps."""
    update = PlainTrainStep.optimizer_step

    def with_nan(steps, step):
        if step in bad_steps:
            steps.module.discriminator.output.bias.grad.fill_(float("nan"))
        return update(steps, step)

    monkeypatch.setattr(PlainTrainStep, "optimizer_step", with_nan)


def test_as_many_non_finite_steps_as_allowed_are_skipped_also_across_a_resume_and_one_more_stops(
    toy_shards, tmp_path, monkeypatch, capsys
):
    put_nan_into_gradients(monkeypatch, 3, 7, 11)
    patient = toy("--skip-not-finite", "2", "--optimizer.schedule", "constant")
    with pytest.raises(
        RunFailed,
        match=wording(
            "as_many_non_finite_steps_as_allowed_are_skipped_also_across_a_resume_and_one_more_stops"
        ),
    ):
        pretrain(patient, data=toy_shards, output_dir=tmp_path / "whole")
    assert (
        "step 7: the gradient is not finite; the update is left out, 2 of at most 2"
        in capsys.readouterr().err
    )
    counts = {
        entry["step"]: entry["not_finite"]
        for entry in read_metrics(tmp_path / "whole" / "metrics.jsonl")
        if "not_finite" in entry
    }
    assert [counts[step] for step in (2, 3, 6, 7, 10)] == [0, 1, 1, 2, 2]
    for steps in ("4", "8"):  # in two pieces: the count is part of what a checkpoint holds
        pretrain(
            toy("--skip-not-finite", "2", "--optimizer.schedule", "constant", "--max-steps", steps),
            data=toy_shards,
            output_dir=tmp_path / "pieces",
            quiet=True,
        )
    ours, theirs = (
        load_file(tmp_path / run / "checkpoint-8" / "weights.safetensors")
        for run in ("whole", "pieces")
    )
    assert all(tensor.equal(theirs[name]) for name, tensor in ours.items())


def test_a_full_disk_stops_the_run_with_its_reason_and_the_same_command_finishes_it(
    toy_shards, tmp_path, monkeypatch
):
    record = Journal.record

    def disk_full(journal, step, values, **options):
        if step == 6:
            journal.file.close()
            journal.file = open("/dev/full", "a")  # noqa: SIM115
        record(journal, step, values, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "record", disk_full)
        with pytest.raises(
            RunFailed,
            match=wording(
                "a_full_disk_stops_the_run_with_its_reason_and_the_same_command_finishes_it"
            ),
        ):
            pretrain(toy("--max-steps", "8"), data=toy_shards, output_dir=tmp_path, quiet=True)
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "failed"
    assert (
        pretrain(toy("--max-steps", "8"), data=toy_shards, output_dir=tmp_path, quiet=True).status
        == "finished"
    )
    assert [
        entry["step"] for entry in read_metrics(tmp_path / "metrics.jsonl") if "loss" in entry
    ] == list(range(1, 9))


def test_a_clock_that_jumps_changes_no_rate_and_no_weight(toy_shards, tmp_path, monkeypatch):
    few = toy("--max-steps", "4")
    pretrain(few, data=toy_shards, output_dir=tmp_path / "steady", quiet=True)
    jumps = itertools.cycle([0.0, 4e9, -1e9])
    monkeypatch.setattr("time.time", lambda: next(jumps))
    pretrain(few, data=toy_shards, output_dir=tmp_path / "jumping", quiet=True)
    entries = [
        entry for entry in read_metrics(tmp_path / "jumping" / "metrics.jsonl") if "loss" in entry
    ]
    assert all(
        0 < entry["tokens_per_second"] < 1e7 and 0 <= entry["data_wait"] <= 1 for entry in entries
    )
    ours, theirs = (
        load_file(tmp_path / run / "checkpoint-4" / "weights.safetensors")
        for run in ("steady", "jumping")
    )
    assert all(tensor.equal(theirs[name]) for name, tensor in ours.items())


def test_what_a_user_keeps_in_the_folder_of_a_run_is_not_touched(toy_shards, tmp_path):
    pretrain(toy("--max-steps", "1"), data=toy_shards, output_dir=tmp_path / "run", quiet=True)
    (tmp_path / "run" / "checkpoint-best").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint-notes.txt").write_text("mine")
    pretrain(
        toy("--max-steps", "2"),
        data=toy_shards,
        output_dir=tmp_path / "run",
        quiet=True,
        resume_schedule="stretch",
    )
    assert (tmp_path / "run" / "checkpoint-best").is_dir()
    assert (tmp_path / "run" / "checkpoint-notes.txt").read_text() == "mine"


def test_an_export_that_could_not_be_written_is_refused_before_training(toy_shards, tmp_path):
    (tmp_path / "run" / "discriminator").mkdir(parents=True)
    (tmp_path / "run" / "discriminator" / "diary.txt").write_text("mine")
    with pytest.raises(
        UserError, match=wording("an_export_that_could_not_be_written_is_refused_before_training")
    ):
        pretrain(toy(), data=toy_shards, output_dir=tmp_path / "run", quiet=True)


def test_an_output_folder_inside_the_corpus_is_refused(toy_corpus, tmp_path):
    with pytest.raises(UserError, match=wording("an_output_folder_inside_the_corpus_is_refused")):
        pretrain(
            toy(), corpus=[toy_corpus.parent], output_dir=toy_corpus.parent / "run", quiet=True
        )


def test_text_for_a_model_to_start_from_is_cut_by_its_tokenizer(toy_shards, toy_corpus, tmp_path):
    pretrain(toy("--max-steps", "2"), data=toy_shards, output_dir=tmp_path / "first", quiet=True)
    pretrain(
        toy("--max-steps", "2", "--data.held-out", "0.1"),
        corpus=[toy_corpus],
        init_from=tmp_path / "first",
        output_dir=tmp_path / "second",
        quiet=True,
    )
    tokenizers = [
        (tmp_path / run / "discriminator" / "tokenizer.json").read_text()
        for run in ("first", "second")
    ]
    assert tokenizers[0] == tokenizers[1]


def test_the_mfu_is_logged_where_the_peak_flops_are_known(toy_shards, tmp_path, monkeypatch):
    monkeypatch.setattr("electra.pretraining.loop.peak_flops", lambda world: 1e12)
    recipe = toy("--max-steps", "2")
    pretrain(recipe, data=toy_shards, output_dir=tmp_path, quiet=True)
    flops = standard(recipe.workload(Shards.open(toy_shards).tokenizer.size)).training
    entries = [entry for entry in read_metrics(tmp_path / "metrics.jsonl") if "mfu" in entry]
    assert len(entries) == 2
    for entry in entries:
        assert entry["mfu"] == pytest.approx(entry["tokens_per_second"] * flops / 1e12)


class SideStream:
    """Imitate the second stream of a GPU: a copy is made in a thread, after a delay."""

    def __init__(self, monkeypatch, delay):
        self.copies = []

        class Event:
            def __init__(self, copy):
                self.synchronize = copy.join

        def fill(room, fill=PinnedStaging.fill):
            def fill_later():
                time.sleep(delay)
                fill(room)

            self.copies.append(threading.Thread(target=fill_later))
            self.copies[-1].start()

        stream = SimpleNamespace(
            wait_stream=lambda other: None,
            record_event=lambda: Event(self.copies[-1]),
            wait_event=lambda event: event.synchronize(),
        )
        cuda = SimpleNamespace(
            is_available=lambda: True,
            Stream=lambda: stream,
            current_stream=lambda: stream,
            stream=lambda which: contextlib.nullcontext(),
        )
        monkeypatch.setattr(PinnedStaging, "fill", fill)
        monkeypatch.setattr(
            async_checkpoint, "torch", SimpleNamespace(**{**vars(torch), "cuda": cuda})
        )


def test_a_copy_that_is_made_beside_the_next_step_holds_its_own_step(
    toy_shards, tmp_path, monkeypatch
):
    """Every checkpoint but the last, since nothing moves after that."""
    recipe = toy("--max-steps", "4", "--save-steps", "1", "--save-total-limit", "9")
    pretrain(recipe, data=toy_shards, output_dir=tmp_path / "plain", quiet=True)
    side_stream = SideStream(monkeypatch, 0.3)
    pretrain(recipe, data=toy_shards, output_dir=tmp_path / "beside", quiet=True)
    assert len(side_stream.copies) == 4
    for name in (
        f"checkpoint-{step}/{file}" for step in (1, 2, 3, 4) for file in checkpoint.TENSORS
    ):
        assert (tmp_path / "beside" / name).read_bytes() == (
            tmp_path / "plain" / name
        ).read_bytes(), name
