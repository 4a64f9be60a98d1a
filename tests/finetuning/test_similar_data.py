"""Pairs and triplets of texts: how they are read, and what their vectors score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.data.tables import find_table
from electra.finetuning.similar_data import Pairs, read_pairs
from electra.finetuning.similar_settings import SimilarConfig
from electra.finetuning.similar_setup import read_splits
from electra.tasks.features import Array
from electra.tasks.task import Files
from tests.tasks.toys import written

CONFIG = SimilarConfig()


def read(path: Path, content: str, config: SimilarConfig = CONFIG) -> Pairs:
    return read_pairs([find_table(written(path, content))], config)


def angles(degrees: Sequence[str]) -> Array:
    """Vectors in a plane, each a text that is its angle."""
    radians = np.deg2rad(np.array([float(text) for text in degrees]))
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


def test_the_columns_say_what_a_file_holds(tmp_path: Path) -> None:
    pairs = read(tmp_path / "a.csv", "text,text_pair\n0,1\n90,88\n")
    assert pairs.columns() == {"anchor": ["0", "90"], "positive": ["1", "88"]}
    triplets = read(tmp_path / "b.csv", "text,positive,negative\n0,1,90\n")
    assert list(triplets.columns()) == ["anchor", "positive", "negative"]
    scored = read(tmp_path / "c.csv", "text,text_pair,score\n0,1,0.5\n")
    assert scored.columns()["score"] == [0.5]
    named = SimilarConfig(text="a", text_pair="b", score="c")
    assert read(tmp_path / "d.csv", "a,b,c\n0,1,1\n", named).form == "scores"


def test_vectors_are_scored_by_their_cosines(tmp_path: Path) -> None:
    pairs = read(tmp_path / "a.csv", "text,text_pair\n0,1\n90,88\n45,1.5\n")
    scores = pairs.evaluate(angles)
    assert scores["retrieval_accuracy"] == pytest.approx(2 / 3)
    assert scores["mrr"] == pytest.approx((1 + 1 + 1 / 2) / 3)
    assert pairs.baseline() == pytest.approx(1 / 3)
    triplets = read(tmp_path / "b.csv", "text,positive,negative\n0,1,90\n0,80,10\n")
    assert triplets.evaluate(angles) == {"triplet_accuracy": 0.5}
    scored = read(tmp_path / "c.csv", "text,text_pair,score\n0,1,1\n0,30,0.6\n0,90,0\n")
    assert scored.evaluate(angles)["spearmanr"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,text_pair,score\na,b,5\n", "a score is a number from 0"),
        ("text,other\na,b\n", "text_pair"),
        ("text,text_pair\na,  \n", "text_pair is empty"),
        ("text,text_pair\n", "no examples"),
    ],
)
def test_a_file_that_cannot_be_learnt_from_is_refused_with_its_place(
    content: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.csv", content)


@pytest.mark.parametrize("field", ["score", "negative"])
def test_a_column_that_is_named_and_not_there_is_refused(field: str, tmp_path: Path) -> None:
    message = rf"a\.csv:2: no column 'Mark'.*are text, text_pair, mark; .* --{field}$"
    named = replace(CONFIG, **{field: "Mark"})
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.csv", "text,text_pair,mark\na,b,0\n", named)


def test_one_column_for_both_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.csv:2: --text and --text-pair are both the column"):
        read(tmp_path / "a.csv", "text,mark\na,0\n", replace(CONFIG, text_pair="text"))


def test_labelled_pairs_are_not_taken_for_similar_texts(tmp_path: Path) -> None:
    content = "text,text_pair,label\na,b,0\n"
    with pytest.raises(UserError, match=r"a\.csv:2: a column 'label' is not .*--score label reads"):
        read(tmp_path / "a.csv", content)
    scored = read(tmp_path / "a.csv", content, replace(CONFIG, score="label"))
    assert (scored.form, scored.scores) == ("scores", [0.0])


def test_dev_data_may_hold_another_form_than_the_training_data(tmp_path: Path) -> None:
    triplets = written(tmp_path / "train.csv", "text,text_pair,neg\na,b,c\nd,e,f\n")
    scored = written(tmp_path / "dev.csv", "text,text_pair,score\na,b,1\nd,e,0\n")
    config = replace(CONFIG, negative="neg")
    files = Files((find_table(triplets),), {"dev": (find_table(scored),)}, {})
    assert [pairs.form for pairs in read_splits(files, config)] == ["triplets", "scores"]
    files = Files((find_table(scored),), {"dev": (find_table(triplets),)}, {})
    assert [pairs.form for pairs in read_splits(files, CONFIG)] == ["scores", "pairs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--frozen"], "--frozen does not go with --task similar"),
        (["--learnin-rate", "1"], "did you mean --learning-rate"),
        (["--batch-size", "1"], "batch_size"),
        (["--folds", "3"], "--folds does not go with --task similar"),
        (["--label=label"], "--label does not go with --task similar; --score COLUMN"),
        (["--flag", "3"], "unknown setting --flag; --print-config lists them all"),
        (["--dev-share", "0.1", "--data", "folder"], "no --data"),
        (["--dev-share", "0.1", "--search-minutes", "1"], "no --search-minutes"),
        (["--dev-share", "0.1", "--report-to", "tensorboard"], "no --report-to"),
        ([], "name dev data to score on"),
    ],
)
def test_wrong_use_is_refused_before_any_work(
    words: list[str],
    message: str,
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train = written(tmp_path / "train.csv", "text,text_pair\na,b\nc,d\n")
    argv = ["finetune", tiny, "--task", "similar", "--train", train, "--output-dir", tmp_path / "x"]
    assert main([*map(str, argv), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_the_settings_are_printed(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", str(tiny), "--task", "similar", "--epochs", "7", "--print-config"]
    assert main(words) == 0
    assert "epochs = 7.0" in capsys.readouterr().out
