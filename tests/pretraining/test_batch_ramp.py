"""A run whose batch grows: it resumes bit for bit, counts what it reads, and refuses what cannot
be.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from safetensors.torch import load_file

from electra.cli.describe import describe_recipe
from electra.config import SettingError, UserError
from electra.data.shards import Shards
from electra.experiments.budget import stage_at_scale
from electra.experiments.plan import Stage, load_scale
from electra.pretraining.budget import scale_recipe
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import Recipe, load_recipe
from electra.runs.journal import Journal, read_metrics
from electra.settings import as_toml
from tests.conftest import TOY_FLAGS

RAMP = ("--batch-size", "12", "--initial-batch-size", "4", "--batch-ramp-steps", "4")


def toy(*flags: str) -> Recipe:
    return load_recipe("tiny", flags=[*TOY_FLAGS, *RAMP, "--micro-batch-size", "4", *flags])


def test_a_growing_batch_resumes_bit_for_bit_and_counts_its_rows(
    toy_shards: Path, tmp_path: Path
) -> None:
    flags = ["--schedule", "constant", "--logging-steps", "1", "--save-total-limit", "9"]
    for run, starts in (("once", ("6",)), ("twice", ("3", "6"))):
        for steps in starts:
            recipe = toy(*flags, "--max-steps", steps)
            pretrain(recipe, data=toy_shards, output_dir=tmp_path / run, quiet=True)
    ours, theirs = (
        load_file(tmp_path / run / "checkpoint-6" / "weights.safetensors")
        for run in ("once", "twice")
    )
    assert [key for key in ours if not ours[key].equal(theirs[key])] == []
    entries = [entry for entry in read_metrics(tmp_path / "once/metrics.jsonl") if "epoch" in entry]
    rows = len(Shards.open(toy_shards).train)
    seen = [round(entry["epoch"] * rows) for entry in entries]
    assert seen == [4, 8, 16, 24, 36, 48]
    card = (tmp_path / "once/discriminator/README.md").read_text(encoding="utf8")
    assert "4 to 12 (in the first 4 steps) rows" in card


def test_tokens_and_flops_count_the_smaller_batches() -> None:
    recipe = toy("--max-steps", "6")
    assert recipe.training.rows == 2 * 4 + 2 * 8 + 2 * 12
    description = describe_recipe(recipe, name="toy")
    assert description.tokens == recipe.training.rows * recipe.data.length
    assert description.micro_batch == 4


def test_a_budget_shortens_the_ramp_with_the_steps() -> None:
    recipe = toy("--max-steps", "100", "--batch-ramp-steps", "40")
    assert scale_recipe(recipe, Fraction(1, 10)).training.batch_ramp_steps == 4
    assert scale_recipe(recipe, Fraction(1, 50)).training.batch_ramp_steps == 2


def test_the_time_left_counts_that_later_steps_have_more_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = Journal(None, max_steps=6)
    journal.work_after = toy("--max-steps", "6").training.batch_schedule.rows_after
    monkeypatch.setattr("time.monotonic", lambda: journal.start_time + 8)
    assert journal.seconds_left(2) == 40  # 8 of 48 rows in 8 seconds


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--initial-batch-size", "5"], "initial_batch_size"),
        (["--initial-batch-size", "12"], "initial_batch_size"),
        (["--batch-ramp-steps", "1"], "batch_ramp_steps"),
        (["--micro-batch-size", "6"], "initial_batch_size"),
        (["--parallel", "fsdp"], "initial_batch_size"),
    ],
)
def test_a_ramp_that_cannot_be_is_refused_by_its_setting(flags: list[str], key: str) -> None:
    with pytest.raises(SettingError, match=f"training.{key}="):
        toy(*flags)


@pytest.mark.parametrize("ramp", [{"initial_batch_size": 4}, {"batch_ramp_steps": 9}])
def test_half_a_ramp_is_refused(ramp: dict[str, int], tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("[training]\n" + "".join(f"{key} = {ramp[key]}\n" for key in ramp), "utf8")
    with pytest.raises(SettingError):
        load_recipe(str(own))


def test_trials_refuse_a_ramp_since_they_count_equal_steps() -> None:
    ramp = {"training.initial_batch_size": 8, "training.batch_ramp_steps": 9}
    stage = Stage(recipe="tiny", size="small", settings=ramp)
    with pytest.raises(UserError, match="initial_batch_size"):
        stage_at_scale(stage, load_scale("smoke"), "own.toml", {})


def test_settings_without_a_ramp_are_written_as_before() -> None:
    assert "initial_batch_size" not in as_toml(load_recipe("tiny"))
