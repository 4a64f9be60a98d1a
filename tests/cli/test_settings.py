"""One clear message for every mistake in recipes, settings and flags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import pretrain_argv

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tinny"], "unknown recipe 'tinny'; did you mean tiny? A file of your own ends in .toml."),
        (["nowhere.toml"], "nowhere.toml: no such file"),
        (
            ["tiny", "--learnin-rate", "3"],
            "command line: unknown setting --learnin-rate; did you mean --learning-rate?",
        ),
        (
            ["tiny", "--encoder.headz", "3"],
            "command line: unknown setting --encoder.headz; did you mean --encoder.heads?",
        ),
        (
            ["tiny", "--overwrit"],
            "command line: unknown setting --overwrit; did you mean --overwrite?",
        ),
        (["tiny", "--batch-size"], "--batch-size needs a value"),
        (
            ["tiny", "--batch-size", "many"],
            "command line: training.batch_size must be a whole number, found 'many'",
        ),
        (["tiny", "--max-steps", "0"], "command line: training.max_steps=0 must be at least 1"),
        (
            ["tiny", "--max-steps", "2.7"],
            "Invalid value for --max-steps: '2.7' is not a whole number",
        ),
        (["tiny", "--seed", "1.5"], "Invalid value for --seed: '1.5' is not a whole number"),
        (
            ["tiny", "--learning-rate", "-1"],
            "command line: optimizer.learning_rate=-1.0 must be above 0",
        ),
        (
            ["tiny", "--learning-rate", "nan"],
            "command line: optimizer.learning_rate must be a finite number, found 'nan'",
        ),
        (
            ["tiny", "--weight-decay", "-0.1"],
            "command line: optimizer.weight_decay=-0.1 must not be negative",
        ),
        (["tiny", "--epsilon", "0"], "command line: optimizer.epsilon=0.0 must be above 0"),
        (
            ["tiny", "--deterministic", "yes"],
            "command line: training.deterministic must be true or false, found 'yes'",
        ),
        (
            ["tiny", "--encoder.heads", "3"],
            "recipe tiny and command line: encoder.width=64 does not split into "
            "encoder.heads=3 equal heads; the next width that does is 66",
        ),
        (
            ["tiny", "--micro-batch-size", "5"],
            "recipe tiny and command line: training.batch_size=64 is not made of whole "
            "micro-batches of training.micro_batch_size=5; choose a divisor with "
            "--micro-batch-size 4, or none for as many rows as fit in memory",
        ),
        (
            ["modern-tiny", "--batch-size", "4"],
            "command line and recipe modern-tiny: training.batch_size=4 is not made of whole "
            "micro-batches of training.micro_batch_size=32; choose a divisor with "
            "--micro-batch-size 4, or none for as many rows as fit in memory",
        ),
        (
            ["tiny", "--data.length", "129"],
            "command line and recipe tiny: data.length=129 is more than encoder.positions=64",
        ),
        (
            ["tiny", "stray"],
            "unexpected argument 'stray'; settings are written --section.key value",
        ),
        (
            ["tiny", "--report-to", "tensorboard,wandbb"],
            "command line: training.report_to='tensorboard,wandbb' must be none, or tensorboard, "
            "wandb, trackio or several of them with commas between; did you mean wandb?",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_recipe_or_setting_is_refused_before_anything_happens(
    tmp_path: Path, complaint: Callable[..., str], words: list[str], message: str
) -> None:
    folder = tmp_path / "run"
    assert complaint("pretrain", *words, "--data", "rows", "--output-dir", folder) == message
    assert not folder.exists()


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[encoder]\nlayers = 2.0\n", "encoder.layers must be a whole number, found float 2.0"),
        ("[training]\nzzz = 2\n", "unknown key training.zzz; --print-config lists them all"),
        ("[encoder]\nlayer = 2\n", "unknown key encoder.layer; did you mean encoder.layers?"),
        (
            '[training]\ndeterministic = "False"\n',
            "training.deterministic must be true or false, found str 'False'",
        ),
        (
            '[objective]\nname = "rdt"\n',
            "objective.name must be one of 'rtd', 'mlm', 'left-to-right', 'replace-mlm', "
            "'all-tokens-mlm', found 'rdt'; an objective of your own is registered by its file: "
            "python your_file.py pretrain …; did you mean rtd?",
        ),
        ("encoder = 3\n", "encoder is a section, found 3; write encoder.NAME = …"),
        (
            "[optimizer]\nbetas = [0.9]\n",
            "optimizer.betas must be a list of 2 numbers, found list [0.9]",
        ),
        (
            "[optimizer]\nlearning_rate = inf\n",
            "optimizer.learning_rate must be a finite number, found float inf",
        ),
    ],
)
def test_a_mistake_in_a_recipe_file_is_named_with_the_file_and_the_key(
    tmp_path: Path, complaint: Callable[..., str], toml: str, message: str
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(toml)
    assert (
        complaint("pretrain", recipe, "--data", "rows", "--output-dir", tmp_path / "run")
        == f"{recipe}: {message}"
    )
    assert not (tmp_path / "run").exists()


def test_half_precision_without_a_gpu_is_refused(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    message = complaint(*pretrain_argv(tmp_path / "run", data=toy_shards, precision="fp16"))
    assert message == "--precision fp16 needs a GPU; use bf16 or fp32 on a CPU"
    assert not (tmp_path / "run").exists()


def test_a_run_folder_in_place_of_a_recipe_is_refused_with_its_file(
    tmp_path: Path, complaint: Callable[..., str]
) -> None:
    (tmp_path / "config.toml").write_text("", encoding="utf8")
    expected = f"{tmp_path} is a folder, not a recipe; did you mean {tmp_path}/config.toml?"
    assert complaint("pretrain", tmp_path, "--print-config") == expected
