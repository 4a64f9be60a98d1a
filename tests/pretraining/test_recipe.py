"""Recipes: the published settings, as data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from torch import nn

from electra.config import RECIPES, SettingError, UserError
from electra.engine.settings import OptimizerConfig
from electra.engine.training_state import capture
from electra.model.shape import EncoderShape
from electra.pretraining.recipe import Recipe, TrainingConfig, load_recipe
from electra.pretraining.resume import find_resume_point
from electra.runs import checkpoint
from electra.runs.run_dir import CONFIG
from electra.settings import as_dict, differing_keys, recipe_names
from tests.wording import wording_of

wording = wording_of(__file__)

BUILT_IN = [
    "adversarial-base",
    "all-tokens-mlm-base",
    "base",
    "bert-base",
    "bert-large",
    "bert-nsp-base",
    "bert-small",
    "bert-small-official",
    "electra-15-base",
    "large",
    "left-to-right-base",
    "modern-base",
    "modern-large",
    "modern-small",
    "modern-small-deep",
    "modern-tiny",
    "random-replacement-base",
    "replace-mlm-base",
    "small",
    "small-official",
    "tiny",
    "two-stage-base",
    "two-stage-generator-base",
    "unigram-base",
]


def test_the_built_in_recipes_are_those_that_the_help_names() -> None:
    assert recipe_names() == BUILT_IN


@pytest.mark.parametrize(
    ("name", "shape", "generator"),
    [
        # layers, width, heads, feed-forward, embedding; the generator's width, feed-forward, heads
        # (paper, table 6)
        ("small", (12, 256, 4, 1024, 128), (64, 256, 1)),
        ("base", (12, 768, 12, 3072, 768), (256, 1024, 4)),
        ("large", (24, 1024, 16, 4096, 1024), (256, 1024, 4)),
    ],
)
def test_a_size_is_shaped_as_published(
    name: str, shape: tuple[int, ...], generator: tuple[int, ...]
) -> None:
    recipe = load_recipe(name)
    beside = recipe.workload(recipe.data.vocab_size).generator
    assert beside is not None
    assert outline(recipe.encoder) == shape
    assert (beside.width, beside.feedforward, beside.heads) == generator
    assert (beside.layers, beside.embedding) == (recipe.encoder.layers, recipe.encoder.embedding)


@pytest.mark.parametrize(
    ("name", "length", "batch", "rate", "learning_rate", "steps"),
    [
        ("small", 128, 128, 0.15, 5e-4, 1_000_000),
        ("base", 512, 256, 0.15, 2e-4, 766_000),
        ("large", 512, 2048, 0.25, 2e-4, 400_000),
        ("bert-small", 128, 128, 0.15, 5e-4, 1_450_000),
        ("bert-base", 512, 256, 0.15, 2e-4, 1_000_000),
        ("bert-large", 512, 2048, 0.15, 2e-4, 464_000),
    ],
)
def test_a_size_is_trained_as_published(
    name: str, length: int, batch: int, rate: float, learning_rate: float, steps: int
) -> None:
    recipe = load_recipe(name)
    optimizer, training = recipe.optimizer, recipe.training
    assert (
        recipe.data.length,
        recipe.data.vocab_size,
        training.batch_size,
        training.max_steps,
    ) == (length, 30522, batch, steps)
    assert recipe.objective.masking.rate == rate
    assert optimizer == OptimizerConfig(
        learning_rate=learning_rate,
        warmup_steps=10_000,
        schedule="linear",
        weight_decay=0.01,
        betas=(0.9, 0.999),
        epsilon=1e-6,
        bias_correction=False,
        max_grad_norm=1.0,
    )


@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_a_twin_has_the_same_encoder_and_differs_only_where_it_must(size: str) -> None:
    ours, twin = (as_dict(load_recipe(name)) for name in (size, f"bert-{size}"))
    changed = differing_keys(ours, twin)
    assert "training.max_steps" in changed
    assert not [
        key for key in changed if not key.startswith("objective.") and key != "training.max_steps"
    ]


def test_the_official_recipe_differs_from_ours_only_in_how_positions_are_drawn() -> None:
    ours, official = (as_dict(load_recipe(name)) for name in ("small", "small-official"))
    assert differing_keys(ours, official) == ["objective.masking.draws"]


def test_the_official_twin_is_masked_as_the_official_recipe() -> None:
    twin, official, ours = (
        load_recipe(name) for name in ("bert-small-official", "small-official", "bert-small")
    )
    assert twin.objective.masking == official.objective.masking
    assert differing_keys(as_dict(twin), as_dict(ours)) == [
        "objective.masking.draws",
        "objective.masking.keep",
        "objective.masking.random",
    ]


def test_the_ablations_of_bert_differ_from_bert_in_their_task_alone() -> None:
    bert, nsp, forward = (
        as_dict(load_recipe(name)) for name in ("bert-base", "bert-nsp-base", "left-to-right-base")
    )
    assert differing_keys(bert, nsp) == ["objective.next_sentence"]
    assert {key.partition(".masking")[0] for key in differing_keys(bert, forward)} == {
        "encoder.causal",
        "objective",
        "objective.name",
        "objective.next_sentence",
    }


@pytest.mark.parametrize(
    ("recipe", "flags", "message"),
    [
        (
            "left-to-right-base",
            ["--encoder.causal", "false"],
            "command line and recipe left-to-right-base: encoder.causal=false does not go with "
            "objective.name='left-to-right'; set encoder.causal to true",
        ),
        (
            "left-to-right-base",
            ["--encoder.family", "modernbert", "--encoder.causal", "false"],
            "command line and recipe left-to-right-base: encoder.causal=false does not go with "
            "objective.name='left-to-right'; set encoder.causal to true, and encoder.family to "
            "'electra'",
        ),
        (
            "modern-small",
            ["--objective.generator.tie", "all", "--objective.generator.fraction", "1.0"],
            "command line: objective.generator.tie='all' makes one encoder of both networks, but "
            "the generator is 4×128 and the discriminator 12×256; set "
            "objective.generator.fraction=1.0, and leave out the generator's own sizes, or set "
            "them to none",
        ),
        (
            "modern-small",
            ["--encoder.family", "electra"],
            "recipe modern-small and command line: encoder.rope_theta=10000.0 belongs to "
            "encoder.family='modernbert', and here is encoder.family='electra'; leave it out, or "
            "set it to none",
        ),
        (
            "modern-small",
            ["--encoder.causal", "true"],
            "command line and recipe modern-small: encoder.causal=true belongs to "
            "encoder.family='electra', and here is encoder.family='modernbert'; leave it out",
        ),
        (
            "modern-small",
            ["--objective.generator.family", "electra"],
            "command line: unknown setting --objective.generator.family; did you mean "
            "--encoder.family?",
        ),
        *(
            (
                recipe,
                ["--encoder.causal", "true"],
                f"command line and recipe {recipe}: encoder.causal=true does not go with "
                f"objective.name={name!r}; set encoder.causal to false",
            )
            for recipe, name in (
                ("small", "rtd"),
                ("bert-small", "mlm"),
                ("replace-mlm-base", "replace-mlm"),
            )
        ),
        (
            "bert-nsp-base",
            ["--micro-batch-size", "1"],
            "recipe bert-nsp-base: objective.name='mlm' needs other rows in a micro-batch with "
            "these settings; set training.micro_batch_size to 2 or more",
        ),
    ],
)
def test_a_task_that_its_encoder_or_batch_cannot_do_is_refused_with_the_remedy(
    recipe: str, flags: list[str], message: str
) -> None:
    with pytest.raises(UserError) as refusal:
        load_recipe(recipe, flags=flags)
    assert str(refusal.value) == message


def test_a_file_that_names_the_family_of_the_generator_is_refused_with_the_key_of_both(
    tmp_path: Path,
) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[objective.generator]\nfamily = "electra"\n')
    with pytest.raises(UserError) as refusal:
        load_recipe("modern-small", files=[file])
    assert str(refusal.value) == (
        f"{file}: unknown key objective.generator.family; did you mean encoder.family?"
    )


def test_the_steps_between_bert_and_electra_differ_from_base_in_their_objective_alone() -> None:
    """The rows of one table: same encoder, same generator, same masks, same tokens."""
    base = as_dict(load_recipe("base"))
    changed = {
        name: differing_keys(base, as_dict(load_recipe(f"{name}-base")))
        for name in ("electra-15", "replace-mlm", "all-tokens-mlm")
    }
    assert changed["electra-15"] == ["objective.scored"]
    restoring = [
        "objective.discriminator_weight",
        "objective.encoder_weight",
        "objective.generator_training",
        "objective.name",
        "objective.scored",
    ]
    assert changed["replace-mlm"] == changed["all-tokens-mlm"] == restoring


def test_other_ways_to_train_the_pair_differ_from_base_in_the_generator_alone() -> None:
    base, adversarial, second = (
        as_dict(load_recipe(name)) for name in ("base", "adversarial-base", "two-stage-base")
    )
    assert differing_keys(base, adversarial) == ["objective.generator_training"]
    assert differing_keys(base, second) == [
        "objective.generator.fraction",
        "objective.generator.tie",
        "objective.generator_training",
        "training.max_steps",
    ]


def test_both_stages_have_one_encoder_one_masking_and_as_many_steps() -> None:
    first, second = load_recipe("two-stage-generator-base"), load_recipe("two-stage-base")
    assert (first.encoder, first.optimizer, first.training) == (
        second.encoder,
        second.optimizer,
        second.training,
    )
    assert first.objective.masking == second.objective.masking
    assert second.workload(30522).generator == first.encoder


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_recipe_opens_with_the_command_that_uses_it(name: str) -> None:
    first = (RECIPES / f"{name}.toml").read_text(encoding="utf8").splitlines()[0]
    assert first.startswith(f"# electra pretrain {name} ")


def test_a_recipe_file_needs_only_the_settings_that_differ_from_the_defaults(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nmax_steps = 7\n")
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert (recipe.training, recipe.encoder) == (TrainingConfig(max_steps=7), EncoderShape())


def test_a_built_in_name_wins_over_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_recipe("small").encoder.width == 256


def test_a_recipe_cannot_be_reached_through_a_path_without_its_ending() -> None:
    with pytest.raises(
        UserError, match=wording("a_recipe_cannot_be_reached_through_a_path_without_its_ending")
    ):
        load_recipe("../recipes/small")


@pytest.mark.parametrize(
    "name",
    [
        "max_steps",
        "batch_size",
        "logging_steps",
        "eval_steps",
        "eval_rows",
        "save_steps",
        "save_total_limit",
    ],
)
def test_a_setting_that_counts_something_is_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}=0 must be at least 1"):
        TrainingConfig(**{name: 0})


def test_an_average_that_never_moves_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ema_decay=1\.0 must be in \[0, 1\)"):
        TrainingConfig(ema_decay=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"epsilon": -1e-6}, "epsilon=-1e-06 must be above 0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0 must be above 0"),
        ({"warmup_steps": -1}, "warmup_steps=-1 must not be negative"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 must not be negative"),
        ({"betas": (0.9, 1.0)}, "betas=[0.9, 1.0] must be two numbers in [0, 1)"),
        ({"decay_ratio": 0.0}, "decay_ratio=0.0 must be in (0, 1]"),
        ({"muon_learning_rate": 0.0}, "muon_learning_rate=0.0 must be above 0"),
        ({"muon_momentum": 1.0}, "muon_momentum=1.0 must be in [0, 1)"),
        ({"muon_weight_decay": -0.1}, "muon_weight_decay=-0.1 must not be negative"),
    ],
)
def test_optimizer_settings_that_cannot_work_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 (compared below)
        OptimizerConfig(**settings)  # type: ignore[arg-type]
    assert str(refusal.value) == message


def outline(shape: EncoderShape) -> tuple[int, ...]:
    return shape.layers, shape.width, shape.heads, shape.feedforward, shape.embedding


# ---- former names --------------------------------------------------------------------------------

FORMER_VALUES = {"likelihood": "mlm", "adversarially": "adversarial", "nothing": "frozen"}


@pytest.mark.parametrize(("former", "present"), FORMER_VALUES.items())
def test_a_recipe_file_with_a_former_setting_is_refused_with_its_present_name_and_value(
    tmp_path: Path, former: str, present: str
) -> None:
    path = tmp_path / "old.toml"
    path.write_text(f'[objective]\nname = "rtd"\ngenerator_learns = "{former}"\n')
    with pytest.raises(SettingError) as refusal:
        load_recipe(str(path))
    assert refusal.value.key == "objective.generator_learns"
    assert str(path) in str(refusal.value)
    assert f'objective.generator_training = "{present}"' in str(refusal.value)


@pytest.mark.parametrize(("former", "present"), FORMER_VALUES.items())
def test_a_flag_with_a_former_name_is_refused_with_its_present_name_and_value(
    former: str, present: str
) -> None:
    for flag in ("--objective.generator-learns", "--generator-learns"):
        with pytest.raises(UserError, match=rf"write --objective\.generator-training {present}$"):
            load_recipe("small", flags=[flag, former])


def test_a_former_value_under_the_present_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        UserError,
        match=wording("a_former_value_under_the_present_name_is_refused_with_those_that_are_known"),
    ):
        load_recipe("small", flags=["--objective.generator-training", "likelihood"])


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.toml")), ids=lambda path: path.stem)
def test_every_value_of_a_recipe_has_a_source(path: Path) -> None:
    numbers = {"value": 1, "two values": 2, "three values": 3, "four values": 4, "five values": 5}
    covered, without = 0, []
    for line in path.read_text(encoding="utf8").splitlines():
        setting, _, source = line.partition("#")
        if "=" not in setting or setting.split()[0] in ("name", "family", "kind"):
            continue  # the header of the file says what these stand for
        if not source and not covered:
            without.append(setting)
        covered = max(0, covered - 1)
        if match := re.search(r"like the next ((\w+ )?values?)", source):
            covered = numbers[match[1]]
    assert not without


def former_layer(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe as an earlier version of the package wrote them."""
    layer = as_dict(recipe)
    layer["objective"]["generator_learns"] = "likelihood"
    del layer["objective"]["generator_training"]
    return layer


def test_a_run_folder_of_an_earlier_version_is_refused_with_the_present_name(
    tmp_path: Path,
) -> None:
    recipe = load_recipe("tiny")
    (tmp_path / CONFIG).write_text(tomli_w.dumps(former_layer(recipe)))
    with pytest.raises(SettingError) as refusal:
        find_resume_point(recipe, tmp_path, resume="auto", overwrite=False)
    assert str(tmp_path / CONFIG) in str(refusal.value)
    assert 'write objective.generator_training = "mlm" instead' in str(refusal.value)


def test_a_checkpoint_of_an_earlier_version_is_refused_with_the_present_name(
    tmp_path: Path,
) -> None:
    recipe, module = load_recipe("tiny"), nn.Linear(2, 2)
    tensors = capture(module, torch.optim.AdamW(module.parameters()))
    checkpoint.write(tmp_path, tensors, step=4, state={"recipe": former_layer(recipe)})
    with pytest.raises(SettingError) as refusal:
        find_resume_point(recipe, tmp_path, resume="auto", overwrite=False)
    assert str(tmp_path / "checkpoint-4") in str(refusal.value)
    assert 'objective.generator_training = "mlm" instead' in str(refusal.value)


def test_an_earlier_run_may_still_be_started_over(tmp_path: Path) -> None:
    recipe = load_recipe("tiny")
    (tmp_path / CONFIG).write_text(tomli_w.dumps(former_layer(recipe)))
    resumed = find_resume_point(recipe, tmp_path, resume="never", overwrite=True)
    assert resumed == (recipe, None)
