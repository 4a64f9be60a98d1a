"""Fine-tuning recipes hold the paper's and the official code's settings; a user's settings win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from electra.config import UserError
from electra.engine.optimizer import learning_rate_factor
from electra.finetuning.recipe import FINETUNING, FinetuneConfig, load_finetune_config, nearest_size
from electra.model.shape import EncoderShape
from electra.settings import find_recipe, recipe_names
from tests.tasks.toys import written
from tests.wording import wording_of

wording = wording_of(__file__)

SHAPES = {
    "small": EncoderShape(),
    "base": EncoderShape(width=768, heads=12, feedforward=3072, embedding=768),
    "deep": EncoderShape(layers=18),
    "large": EncoderShape(layers=24, width=1024, heads=16, feedforward=4096, embedding=1024),
}


def load_config(
    recipe: str = "paper",
    *,
    size: str = "small",
    kind: str = "glue",
    task: str = "glue/sst-2",
    **more: Any,
) -> FinetuneConfig:
    return load_finetune_config(recipe, shape=SHAPES[size], kind=kind, task=task, **more)


# ---- what the recipes say ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "size", "learning_rate", "layer_decay", "weight_decay", "counting", "loss"),
    [
        ("paper", "small", 3e-4, 0.8, 0.0, "per-layer", "mean"),
        ("paper", "base", 1e-4, 0.8, 0.0, "per-layer", "mean"),
        ("paper", "large", 5e-5, 0.9, 0.0, "per-layer", "mean"),
        ("paper", "deep", 3e-4, 0.87, 0.0, "per-layer", "mean"),  # ours
        ("official", "small", 1e-4, 0.8, 0.01, "official", "sum"),
        ("official", "deep", 1e-4, 0.8, 0.01, "official", "sum"),
        ("official", "base", 1e-4, 0.8, 0.01, "official", "sum"),
        ("official", "large", 5e-5, 0.9, 0.01, "official", "sum"),
    ],
)
def test_rates_are_those_of_the_paper_and_of_the_official_code(
    recipe: str,
    size: str,
    learning_rate: float,
    layer_decay: float,
    weight_decay: float,
    counting: str,
    loss: str,
) -> None:
    config = load_config(recipe, size=size)
    assert (
        config.learning_rate,
        config.layer_decay,
        config.weight_decay,
        config.layer_counting,
        config.loss,
    ) == (learning_rate, layer_decay, weight_decay, counting, loss)
    assert (config.batch_size, config.warmup_ratio, config.schedule, config.dropout) == (
        32,
        0.1,
        "linear",
        0.1,
    )
    assert (config.betas, config.epsilon, config.bias_correction, config.max_grad_norm) == (
        (0.9, 0.999),
        1e-6,
        False,
        1.0,
    )


@pytest.mark.parametrize("recipe", ["paper", "official"])
@pytest.mark.parametrize(
    ("kind", "task", "epochs", "length"),
    [
        *(
            ("glue", f"glue/{name}", 3.0, 128)
            for name in ("cola", "sst-2", "mrpc", "qqp", "mnli", "qnli", "wnli")
        ),
        ("glue", "glue/rte", 10.0, 128),
        ("glue", "glue/sts-b", 10.0, 128),
        ("span", "squad-1.1", 2.0, 512),
        ("span", "squad-2.0", 2.0, 512),
        ("tag", "ner", 3.0, 128),
        ("classify", "classify", 3.0, 128),
    ],
)
def test_epochs_and_lengths_are_those_of_the_task(
    recipe: str, kind: str, task: str, epochs: float, length: int
) -> None:
    config = load_config(recipe, kind=kind, task=task)
    assert (config.epochs, config.length) == (epochs, length)


@pytest.mark.parametrize(
    ("kind", "task", "epochs", "length"),
    [("tag", "chunk", 3.0, 256), ("span", "naturalquestions", 3.0, 128)],
)
def test_the_official_code_has_epochs_and_lengths_of_its_own_for_some_tasks(
    kind: str, task: str, epochs: float, length: int
) -> None:
    config = load_config("official", kind=kind, task=task)
    assert (config.epochs, config.length) == (epochs, length)


@pytest.mark.parametrize(
    ("kind", "examples", "epochs", "steps"),
    [
        ("classify", 1, 10.0, 10),
        ("classify", 100, 10.0, 40),
        ("tag", 1_600, 6.0, 300),
        ("tag", 3_201, 3.0, 303),
        ("choose", 100_000, 3.0, 18_750),  # of 16 examples
        ("span", 3_200, 3.0, 300),
        ("span", 87_599, 2.0, 5_476),
    ],
)
def test_few_examples_are_read_more_often_for_three_hundred_steps_but_not_more_than_ten_times(
    kind: str, examples: int, epochs: float, steps: int
) -> None:
    config = load_config(kind=kind, task=kind).for_examples(examples)
    assert (config.epochs, config.min_steps) == (epochs, 0)
    assert config.steps(examples) == steps


def test_epochs_that_are_given_are_taken_also_over_few_examples(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.toml", "epochs = 2.0\n")
    for given in ({"flags": ["--epochs", "2"]}, {"files": [file]}):
        config = load_config(kind="classify", task="classify", **given)
        assert config.for_examples(100).epochs == 2.0
    both = ["--epochs", "2", "--min-steps", "20"]
    config = load_config(kind="classify", task="classify", flags=both)
    assert config.for_examples(100).steps(100) == 20


@pytest.mark.parametrize("recipe", ["official", "bert"])
def test_other_recipes_have_their_epochs_over_few_examples_too(recipe: str) -> None:
    config = load_config(recipe, kind="classify", task="classify")
    assert config.for_examples(100) == config


def test_batches_are_random_and_conventions_official_in_the_official_recipe_alone() -> None:
    found = {
        recipe: (load_config(recipe).batches, load_config(recipe).conventions)
        for recipe in ("paper", "official", "bert")
    }
    assert found == {
        "paper": ("by-length", "default"),
        "official": ("random", "official"),
        "bert": ("by-length", "default"),
    }


def test_depth_and_size_and_task_set_the_layer_wise_decay() -> None:
    shapes = {
        "12 layers": EncoderShape(layers=12),
        "13 layers": EncoderShape(layers=13),
        "24 layers of base": EncoderShape(layers=24, width=768, heads=12),
    }
    paper = {"kind": "glue", "task": "glue/sst-2"}
    found = {
        name: load_finetune_config("paper", shape=shape, **paper).layer_decay
        for name, shape in shapes.items()
    }

    assert found == {"12 layers": 0.8, "13 layers": 0.87, "24 layers of base": 0.87}
    assert load_config(size="deep", kind="choose", task="swag").layer_decay == 1.0
    assert load_config(size="deep", flags=["--layer-decay", "0.8"]).layer_decay == 0.8


def test_the_lowest_of_eighteen_layers_learns_about_as_fast_as_that_of_twelve() -> None:
    lowest = {
        size: load_config(size=size).layer_decay ** SHAPES[size].layers
        for size in ("small", "deep", "large")
    }

    assert lowest == pytest.approx(dict.fromkeys(lowest, 0.075), rel=0.1)


def test_swag_by_the_recipe_of_bert_is_as_in_the_bert_paper() -> None:
    config = load_config("bert", size="base", kind="choose", task="swag")
    assert (config.epochs, config.learning_rate, config.batch_size, config.layer_decay) == (
        3.0,
        2e-5,
        16,
        1.0,
    )


def test_a_fresh_head_is_initialised_as_in_the_code_that_a_recipe_follows() -> None:
    inits = [load_config(recipe).head_init for recipe in ("paper", "official", "bert")]
    assert inits == ["glorot", "glorot", "normal"]


def test_the_default_settings_are_the_paper_recipe_for_small() -> None:
    assert load_config() == FinetuneConfig()


def test_every_recipe_begins_with_the_command_that_uses_it() -> None:
    names = recipe_names(FINETUNING)
    assert names == ["bert", "official", "paper"]
    for name in names:
        content = find_recipe(name, FINETUNING).read_text()
        assert content.startswith("# electra finetune MODEL --task ")
        assert f"--recipe {name}\n" in content


def test_a_size_is_told_by_the_width() -> None:
    assert [
        nearest_size(EncoderShape(width=width, heads=width // 64))
        for width in (128, 256, 512, 768, 1024)
    ] == ["small", "small", "base", "base", "large"]


# ---- layers of settings --------------------------------------------------------------------------


def test_flags_win_over_the_environment_and_that_over_files_and_those_over_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "mine.toml", "epochs = 7.0\nbatch_size = 7\nlength = 70\n")
    monkeypatch.setenv("ELECTRA_FINETUNE_BATCH_SIZE", "6")
    monkeypatch.setenv("ELECTRA_FINETUNE_LENGTH", "60")
    config = load_config(files=[file], flags=["--length", "50"])
    assert (config.learning_rate, config.epochs, config.batch_size, config.length) == (
        3e-4,
        7.0,
        6,
        50,
    )


def test_a_variable_of_no_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELECTRA_FINETUNE_LEARNING_RAT", "1")
    with pytest.raises(UserError, match=wording("a_variable_of_no_setting_is_refused")):
        load_config()


def test_the_recipes_length_gives_way_to_a_model_with_fewer_positions_and_the_users_does_not() -> (
    None
):
    shape = EncoderShape(positions=96)
    assert load_finetune_config("paper", shape=shape, kind="glue", task="glue/rte").length == 96
    config = load_finetune_config(
        "paper", shape=shape, kind="glue", task="glue/rte", flags=["--length", "128"]
    )
    assert config.length == 128  # refused where the model is known: see test_setup


def test_a_frozen_encoder_has_settings_of_its_own() -> None:
    assert load_config(kind="tag", task="ner", frozen=True).learning_rate == 1e-3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch = 3\n", r"unknown key epoch; did you mean epochs\?"),
        (
            "warmup_share = 0.2\n",
            r"warmup_share is now called warmup_ratio; write warmup_ratio = 0.2 instead",
        ),
        ("epochs = -1.0\n", r"epochs=-1.0 must be above 0"),
        (
            "[kind.clasify]\nepochs = 1.0\n",
            r"unknown section \[kind.clasify\]; did you mean classify\?",
        ),
        (
            "[size.huge]\nepochs = 1.0\n",
            r"unknown section \[size.huge\]; known are small, base, large",
        ),
        ("[depth.low]\nepochs = 1.0\n", r"unknown section \[depth.low\]; known are usual, deep"),
        ("size = 3\n", "size = 3 should be a section of settings"),
        ("[task]\nner = 2\n", "ner = 2 should be a section of settings"),
        ("epochs = [\n", "not valid TOML"),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_its_file(
    tmp_path: Path, content: str, message: str
) -> None:
    recipe = written(tmp_path / "mine.toml", content)
    with pytest.raises(UserError, match=message) as error:
        load_config(str(recipe))
    assert "mine.toml" in str(error.value)


def test_a_flag_with_a_former_name_is_refused_with_the_present_one() -> None:
    with pytest.raises(
        UserError, match=wording("a_flag_with_a_former_name_is_refused_with_the_present_one")
    ):
        load_config(flags=["--warmup-share", "0.2"])


def test_an_unknown_recipe_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        UserError, match=wording("an_unknown_recipe_is_refused_with_the_one_that_was_meant")
    ):
        load_config("offical")


# ---- what settings mean --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "examples", "steps"),
    [
        ({}, 64, 6),
        ({}, 65, 9),
        ({"epochs": 0.5}, 64, 1),
        ({"epochs": 0.01}, 64, 1),
        ({"max_steps": 5}, 64, 5),
    ],
)
def test_steps_are_epochs_of_batches_the_last_one_smaller(
    settings: dict[str, Any], examples: int, steps: int
) -> None:
    assert FinetuneConfig(**settings).steps(examples) == steps


def test_a_tenth_of_the_steps_is_warm_up() -> None:
    assert FinetuneConfig().optimizer(steps=200).warmup_steps == 20


def test_the_rate_of_wsd_decays_in_the_last_steps_that_decay_ratio_names() -> None:
    config = FinetuneConfig(schedule="wsd", decay_ratio=0.2, warmup_ratio=0.0)
    optimizer = config.optimizer(steps=10)
    factors = [learning_rate_factor(optimizer, step=step, max_steps=10) for step in (8, 9, 10)]
    assert factors == pytest.approx([1.0, 1.0, 0.5])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("length", 7),
        ("layer_decay", 0.0),
        ("layer_decay", 1.1),
        ("dropout", 1.0),
        ("warmup_ratio", 1.5),
        ("decay_ratio", 0.0),
        ("epochs", 0.0),
        ("max_steps", 0),
        ("learning_rate", -1.0),
        ("eval_steps", 0),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}={value}"):
        FinetuneConfig(**{name: value})
