"""Trials and scales are data: whole, consistent, and with the numbers that were published."""

from __future__ import annotations

import copy

import pytest

from electra.config import SettingError, UserError
from electra.experiments import plan
from electra.experiments.plan import load_scale, load_trial, trial_names
from tests.wording import wording_of

wording = wording_of(__file__)

NAMES = [
    "small-models",
    "weight-tying",
    "generator-size",
    "training-algorithms",
    "efficiency",
    "width",
    "bert-ablations",
    "squad",
    "large",
]


def published(trial: str, column: str) -> dict[str, object]:
    return {
        arm.name: arm.published[column] for arm in load_trial(trial).arms if column in arm.published
    }


def test_every_table_and_figure_of_the_paper_has_a_trial():
    assert trial_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_trial_says_what_it_asks_where_it_comes_from_and_no_arm_twice(name):
    trial = load_trial(name)
    assert trial.title
    assert trial.question.endswith("?")
    assert "et al." in trial.source
    names = [arm.name for arm in trial.arms]
    assert len(set(names)) == len(names)
    assert sum(stage.share for stage in trial.arm(trial.reference).stages) == 1


@pytest.mark.parametrize("name", NAMES)
def test_arms_are_expected_in_the_order_of_their_published_scores(name):
    trial = load_trial(name)
    scores = published(name, "GLUE")
    known = [scores[arm] for arm in trial.expected if arm in scores]
    assert known == sorted(known, reverse=True)


def test_published_scores_are_the_papers():
    assert published("efficiency", "GLUE") == {
        "electra": 85.0,
        "all-tokens-mlm": 84.3,
        "replace-mlm": 82.4,
        "electra-15": 82.4,
        "bert": 82.2,
    }
    assert published("weight-tying", "GLUE") == {"none": 83.6, "embeddings": 84.3, "all": 84.4}
    assert published("small-models", "GLUE") == {
        "elmo": 71.2,
        "gpt": 78.8,
        "bert-small": 75.1,
        "bert-base": 82.2,
        "electra-small": 79.9,
        "electra-small-50": 79.0,
        "electra-small-25": 77.7,
        "electra-small-12.5": 76.0,
        "electra-small-6.25": 74.1,
        "electra-base": 85.1,
    }
    assert published("squad", "SQuAD 2.0 dev EM/F1")["electra-1.75m"] == "88.0/90.6"
    assert published("large", "RTE") == {"bert": 79.5, "electra-400k": 86.8, "electra-1.75m": 88.0}
    assert published("bert-ablations", "QNLI")["bert"] == 84.9


def test_rows_that_nobody_can_run_here_are_published_only():
    assert [arm.name for arm in load_trial("small-models").arms if not arm.stages] == [
        "elmo",
        "gpt",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_ours_never_means_the_papers_authors(name):
    assert not [arm.label for arm in load_trial(name).arms if "ours" in arm.label]


def test_the_paper_scale_changes_no_setting_of_a_recipe():
    scale = load_scale("paper")
    assert (scale.steps, scale.settings, scale.sizes, scale.objectives) == (None, {}, {}, {})


def test_settings_of_a_scale_have_dotted_keys():
    assert load_scale("smoke").sizes["base"]["encoder.width"] == 32


def test_a_scale_may_be_a_file_of_ones_own(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'title = "mine"\nsteps = 7\nevaluation.tasks = []\n', encoding="utf8"
    )
    scale = load_scale(str(tmp_path / "mine.toml"))
    assert (scale.name, scale.steps) == ("mine", 7)


@pytest.mark.parametrize(
    ("load", "kind", "name"), [(load_scale, "scale", "paper"), (load_trial, "trial", "width")]
)
def test_a_file_of_ones_own_may_not_pass_for_a_built_in(load, kind, name, tmp_path):
    (tmp_path / f"{name}.toml").write_text(
        'title = "mine"\nevaluation.tasks = []\n', encoding="utf8"
    )
    with pytest.raises(
        UserError, match=f"{name} is a built-in {kind}, and your results would look like its"
    ):
        load(str(tmp_path / f"{name}.toml"))


@pytest.mark.parametrize("name", ["My scale", "a_b", "..x", "-x"])
def test_a_file_whose_name_cannot_become_part_of_others_is_refused(name, tmp_path):
    (tmp_path / f"{name}.toml").write_text(
        'title = "mine"\nevaluation.tasks = []\n', encoding="utf8"
    )
    with pytest.raises(
        UserError, match=wording("a_file_whose_name_cannot_become_part_of_others_is_refused")
    ):
        load_scale(str(tmp_path / f"{name}.toml"))


def test_a_trial_in_another_folder_is_called_by_its_file_and_not_by_its_path_or_what_it_says(
    tmp_path,
):
    text = (plan.PAPER / "width.toml").read_text(encoding="utf8")
    (tmp_path / "mine.toml").write_text('name = "../../elsewhere"\n' + text, encoding="utf8")
    assert load_trial(str(tmp_path / "mine.toml")).name == "mine"


def test_an_unknown_trial_is_refused_with_the_one_that_was_meant():
    with pytest.raises(
        UserError, match=wording("an_unknown_trial_is_refused_with_the_one_that_was_meant")
    ):
        load_trial("eficiency")


ARM = {"name": "a", "label": "a", "stages": [{"recipe": "base", "size": "base"}]}


def trial_of(**values):
    """A trial with one arm, and with these values."""
    texts = dict.fromkeys(("name", "title", "source", "question"), "x")
    values = {**texts, "reference": "a", "arms": [ARM], **values}
    return plan.build_trial(copy.deepcopy(values), source="x.toml")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"reference": "gone"}, "reference"),
        ({"expected": ["a", "gone"]}, "expected[1]"),
        ({"arms": [{**ARM, "reference": "gone"}]}, "arms[0].reference"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_trial_that_names_an_arm_it_does_not_have_is_refused_with_the_key(values, key):
    with pytest.raises(SettingError) as caught:
        trial_of(**values)
    assert caught.value.key == key
    expected = wording("a_trial_that_names_an_arm_it_does_not_have_is_refused_with_the_key")
    assert str(caught.value) == expected.format(key=key)


def test_two_arms_of_one_name_are_refused():
    with pytest.raises(SettingError, match=wording("two_arms_of_one_name_are_refused")) as caught:
        trial_of(arms=[ARM, {**ARM, "label": "b"}])
    assert caught.value.key == "arms[1].name"


@pytest.mark.parametrize("name", ["", "CLM Arm", "../../../esc", "-x"])
def test_an_arm_whose_name_cannot_become_part_of_others_is_refused(name):
    with pytest.raises(SettingError) as caught:
        trial_of(arms=[ARM, {**ARM, "name": name}])
    assert caught.value.key == "arms[1].name"


def test_a_recipe_file_is_relative_to_the_trials_file_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "plans").mkdir()
    text = (plan.PAPER / "weight-tying.toml").read_text(encoding="utf8")
    (tmp_path / "plans/mine.toml").write_text(
        text.replace('recipe = "base"', 'recipe = "../rec/own.toml"'), encoding="utf8"
    )
    monkeypatch.chdir(tmp_path)
    trial = load_trial("plans/mine.toml")
    assert trial.arms[0].stages[0].recipe == str(tmp_path / "rec/own.toml")
    monkeypatch.chdir("plans")
    assert load_trial("mine.toml") == trial
