"""Dev data is a share of the training data, or other data, and never the same."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from electra.config import SettingError, UserError
from electra.finetuning.dev_data import split_off_dev
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.recipe import FinetuneConfig
from electra.finetuning.setup import find_files, prepare_finetuning
from electra.tasks import find_task
from electra.tasks.classify import Classify
from electra.tasks.conll import Sentence
from electra.tasks.texts import Text
from tests.tasks.toys import keyword_rows, written


def examples(**counts: int) -> list[Text]:
    labels = [label for label, count in counts.items() for _ in range(count)]
    return [Text(f"a:{n}", f"text {n}", None, label) for n, label in enumerate(labels)]


def test_every_label_has_its_share_of_the_dev_data() -> None:
    given = examples(a=500, b=100, c=10, d=1)
    train, dev = split_off_dev(Classify.from_name(regression=False), given, 0.1)
    assert Counter(example.label for example in dev) == {"a": 50, "b": 10, "c": 1}
    assert sorted([*train, *dev], key=lambda example: int(example.where[2:])) == given
    assert dev == sorted(dev, key=lambda example: int(example.where[2:]))
    again = split_off_dev(Classify.from_name(regression=False), given, 0.1)
    assert again == (train, dev)
    assert [example.where for example in dev] != [f"a:{n}" for n in range(61)]


def test_no_label_is_lost_to_the_dev_data_and_scores_are_drawn_as_one() -> None:
    pairs = examples(a=2, b=2, c=2)
    train, _ = split_off_dev(Classify.from_name(regression=False), pairs, 0.5)
    assert {example.label for example in train} == {"a", "b", "c"}
    scores = [Text(f"a:{n}", "text", None, str(n / 7)) for n in range(40)]
    _, dev = split_off_dev(Classify.from_name(regression=True), scores, 0.25)
    assert len(dev) == 10


def test_a_share_of_too_few_examples_is_refused() -> None:
    with pytest.raises(UserError, match=r"--dev-share 0\.1: no dev example in 3"):
        split_off_dev(Classify.from_name(regression=False), examples(a=2, b=1), 0.1)
    with pytest.raises(UserError, match=r"each of the 2 training examples has a label of its own"):
        split_off_dev(Classify.from_name(regression=False), examples(a=1, b=1), 0.1)
    with pytest.raises(SettingError, match=r"dev_share.*\(0, 0\.5\]"):
        FinetuneConfig(dev_share=0.9)


def test_a_share_of_one_example_is_refused_without_the_advice_to_raise_it() -> None:
    message = r"--dev-share 0\.1: the training data is one example, which cannot be divided; add"
    with pytest.raises(UserError, match=message):
        split_off_dev(Classify.from_name(regression=False), examples(a=1), 0.1)
    only = Sentence("a.conll:1", ("Anna", "sat"), ("B-PER", "O"))
    message = r"is one sentence of 2 words \(a\.conll:1\).*a blank line ends a sentence"
    with pytest.raises(UserError, match=message):
        split_off_dev(find_task("ner"), [only], 0.1)


def test_a_fine_tuning_records_its_dev_share_and_the_numbers_of_examples(
    tiny: Path, tmp_path: Path
) -> None:
    data = written(tmp_path / "rows.csv", keyword_rows(40))
    flags = ["--length", "16", "--dev-share", "0.25", "--max-dev-examples", "6"]
    options = FinetuneOptions(train=[data], flags=flags)
    setup = prepare_finetuning(tiny, find_task("classify"), options, say=lambda text: None)
    identity = setup.identity()
    assert (identity["config"]["dev_share"], identity["config"]["max_dev_examples"]) == (0.25, 6)
    assert identity["data"]["train"]["examples"] == len(setup.train) == 30
    assert identity["data"]["dev"]["dev"]["examples"] == len(setup.dev["dev"].examples) == 6


def test_the_same_data_to_train_and_to_score_on_is_refused_with_the_remedy(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.csv", keyword_rows(4))
    copy = shutil.copy(data, tmp_path / "copy.csv")
    for dev in (data, copy):
        with pytest.raises(UserError, match=r"is the same data as .*rows\.csv.*--dev-share 0\.1"):
            find_files(find_task("classify"), FinetuneOptions(train=[data], dev=[dev]))
    other = written(tmp_path / "other.csv", keyword_rows(4, seed=1))
    assert find_files(find_task("classify"), FinetuneOptions(train=[data], dev=[other])).dev


def test_a_dev_file_and_a_dev_share_exclude_each_other(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.csv", keyword_rows(4))
    options = FinetuneOptions(train=[data], dev=[data])
    with pytest.raises(UserError, match="leave out --dev"):
        find_files(find_task("classify"), options, config=FinetuneConfig(dev_share=0.1))


def said_of(train: Path, dev: list[Path], model: Path, *flags: str) -> str:
    said: list[str] = []
    options = FinetuneOptions(train=[train], dev=dev, flags=["--length", "16", *flags])
    prepare_finetuning(model, find_task("classify"), options, say=said.append)
    return "\n".join(said)


def test_dev_examples_that_are_also_trained_on_are_counted(tiny: Path, tmp_path: Path) -> None:
    head, *rows = [f"{line},{n}" for n, line in enumerate(keyword_rows(40).splitlines())]
    head = head.replace(",0", ",id")
    train = written(tmp_path / "train.csv", "\n".join([head, *rows]))
    new = [f"new {n} {row}" for n, row in enumerate(rows)]
    other = [row.rpartition(",")[0] + ",other-id" for row in rows]
    for known, unknown, warned in ((12, 0, True), (2, 18, True), (1, 19, False)):
        dev = written(tmp_path / "dev.csv", "\n".join([head, *other[:known], *new[:unknown]]))
        message = f"{known} of {known + unknown} dev examples are also trained on: their score"
        assert (message in said_of(train, [dev], tiny)) == warned


def test_so_few_dev_examples_are_warned_of_once(tiny: Path, tmp_path: Path) -> None:
    train = written(tmp_path / "train.csv", keyword_rows(40))
    few = said_of(train, [], tiny, "--dev-share", "0.1")
    assert few.count("so few dev examples (4) hardly rank anything; add some") == 1
    assert "hardly rank" not in said_of(train, [], tiny, "--dev-share", "0.25")
