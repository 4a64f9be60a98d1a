from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from electra.config import UserError
from electra.data.shards import Shards
from electra.data.tables import find_table, table_of_rows
from electra.data.wordpiece import WordPiece
from electra.model.electra_encoder import ElectraEncoder
from electra.model.shape import EncoderShape
from electra.tasks import restore_task, split_options
from electra.tasks.classification_heads import ElectraClassificationHead, LinearHead
from electra.tasks.classify import Classify
from electra.tasks.features import Array, split_windows
from electra.tasks.task import Network
from electra.tasks.texts import Text
from tests.conftest import NOUNS, VERBS
from tests.tasks.toys import written
from tests.wording import wording_of

wording = wording_of(__file__)

WIDTH = 32


@pytest.fixture(scope="module")
def tokenizer(toy_shards: Path) -> WordPiece:
    return Shards.open(toy_shards).tokenizer


def labelled(*labels: object, pairs: bool = False) -> list[Text]:
    return [
        Text(f"train.csv:{n}", f"dog {n}", f"cat {n}" if pairs else None, str(label))
        for n, label in enumerate(labels, start=2)
    ]


def learnt(*labels: object, **options: Any) -> Classify:
    return Classify.from_name("classify", **options).fit_labels(labelled(*labels))


def read(path: Path, content: str, *, with_labels: bool = True, **options: Any) -> list[Text]:
    path.write_text(content, encoding="utf8")
    return list(
        Classify.from_name("classify", **options).read([find_table(path)], labelled=with_labels)
    )


def network(task: Classify, tokenizer: WordPiece) -> Network:
    torch.manual_seed(0)
    shape = EncoderShape(
        layers=2,
        width=WIDTH,
        heads=2,
        feedforward=64,
        embedding=WIDTH,
        positions=32,
        dropout=0.0,
        attention_dropout=0.0,
    )
    return Network(ElectraEncoder(shape, vocabulary=tokenizer.size), task.head(WIDTH, dropout=0.0))


def answers(
    task: Classify, examples: Sequence[Text], tokenizer: WordPiece, model: Network
) -> list[Array]:
    features = task.features(examples, tokenizer, length=32, training=False)
    with torch.no_grad():
        outputs = model.outputs(features.collate(np.arange(len(features))))
    return task.decode(examples, features, [{"logits": row.numpy()} for row in outputs["logits"]])


def fit(
    task: Classify, examples: Sequence[Text], tokenizer: WordPiece, *, steps: int
) -> tuple[Network, float]:
    """A network trained on all examples at once, and its last mean loss."""
    model = network(task, tokenizer)
    features = task.features(examples, tokenizer, length=32, training=True)
    batch = features.collate(np.arange(len(features)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(batch) / task.weight(features).sum()
        loss.backward()
        optimizer.step()
    return model, loss.item()


# ---- reading -------------------------------------------------------------------------------------


def test_columns_are_read_by_their_names(tmp_path: Path) -> None:
    (found,) = read(
        tmp_path / "a.csv",
        "id,question,passage,kind\n7,who?,me,yes\n",
        text="question",
        text_pair="passage",
        label="kind",
    )
    assert found == Text(f"{tmp_path}/a.csv:2", "who?", "me", "yes", "7")


def test_columns_are_read_by_their_numbers_from_a_file_without_a_header(tmp_path: Path) -> None:
    numbers = {"text": "1", "label": "0"}
    rows = "1,good film\n0,bad film\n"
    expected = [("good film", "1"), ("bad film", "0")]
    for found in (
        read(tmp_path / "a.csv", rows, **numbers),
        read(tmp_path / "a.txt", rows.replace(",", "\t"), **numbers),
        read(tmp_path / "a.txt", rows.replace(",", "\t"), with_labels=False, **numbers),
        read(
            tmp_path / "a.txt", rows.replace(",", " "), delimiter="space", header=False, **numbers
        ),
    ):
        assert [(text.first, text.label) for text in found] == expected


def test_a_label_before_the_text_may_be_coarse_or_fine(tmp_path: Path) -> None:
    lines = "DESC:manner How did it go ?\nENTY:cremat What film ?\n"
    for part, label in (("fine", "DESC:manner"), ("coarse", "DESC")):
        first, _ = read(tmp_path / "train.label", lines, label_part=part)
        assert (first.first, first.label) == ("How did it go ?", label)


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.conll"])
@pytest.mark.parametrize("with_labels", [True, False])
def test_conll_columns_are_refused_by_a_classifier(
    tmp_path: Path, name: str, with_labels: bool
) -> None:
    with pytest.raises(UserError, match=r"looks like CoNLL columns.*--task tag"):
        read(tmp_path / name, "EU\tB-ORG\nrejects\tO\n\nGerman\tO\n", with_labels=with_labels)


def test_labels_of_json_are_spelled_as_csv_would_spell_them(tmp_path: Path) -> None:
    found = read(
        tmp_path / "a.jsonl",
        "".join(
            f'{{"text": "a", "label": {label}}}\n' for label in ("1", "1.0", '" 1 "', "2.5", "true")
        ),
    )
    assert [example.label for example in found] == ["1", "1", "1", "2.5", "true"]


def test_a_missing_column_is_refused_with_those_there_are_and_the_flag(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=wording("a_missing_column_is_refused_with_those_there_are_and_the_flag"),
    ):
        read(tmp_path / "a.csv", "body,label\na,1\n")
    with pytest.raises(
        UserError, match=wording("a_missing_column_is_refused_with_those_there_are_and_the_flag_2")
    ):
        read(tmp_path / "a.csv", "text,kind\na,1\n")
    with pytest.raises(
        UserError, match=wording("a_missing_column_is_refused_with_those_there_are_and_the_flag_3")
    ):
        read(tmp_path / "a.csv", "text,label\na,1\n", text_pair="other")


@pytest.mark.parametrize("options", [{}, {"multi_label": True}, {"regression": True}], ids=str)
def test_a_training_column_text_pair_is_read_and_remembered(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rows = "text,text_pair,label\na dog,a cat,1\na mat,a hat,2\n"
    table = find_table(written(tmp_path / "a.csv", rows))
    task = Classify.from_name("classify", **options)
    examples = list(task.read([table], labelled=True))
    assert [example.second for example in examples] == ["a cat", "a hat"]
    fitted = restore_task(task.fit_labels(examples).settings(), source="model")
    assert isinstance(fitted, Classify)
    assert fitted.description.endswith("; pairs: text, text_pair")
    assert [each.second for each in fitted.read([table], labelled=False)] == ["a cat", "a hat"]
    with pytest.raises(UserError, match="no column 'text_pair'"):
        list(fitted.read([find_table(written(tmp_path / "b.csv", "text\na\n"))], labelled=False))


@pytest.mark.parametrize("options", [{"text_pair": ""}, {"text": "text_pair"}], ids=str)
def test_a_column_text_pair_is_not_read_where_the_user_says_otherwise(
    tmp_path: Path, options: dict[str, str]
) -> None:
    examples = read(tmp_path / "a.csv", "text,text_pair,label\na,b,1\nc,d,2\n", **options)
    assert [example.second for example in examples] == [None, None]
    task = Classify.from_name("classify", **options).fit_labels(examples)
    assert task.text_pair == ""
    assert "pairs" not in task.description


def test_a_column_text_pair_says_nothing_to_a_model_of_single_texts(tmp_path: Path) -> None:
    task = learnt("1", "2")
    table = find_table(written(tmp_path / "a.csv", "text,text_pair,label\na,b,1\n"))
    assert next(task.read([table], labelled=True)).second is None


def test_an_empty_name_on_the_command_line_leaves_the_pair_out() -> None:
    for flags in (["--text-pair", ""], ["--text-pair="]):
        assert split_options(Classify, flags) == ({"text_pair": ""}, [])


def test_an_empty_first_row_is_refused_by_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.jsonl:1: no column 'text'; columns here are none"):
        read(tmp_path / "a.jsonl", '{}\n{"text": "a dog"}\n', with_labels=False)


@pytest.mark.parametrize("label", ["", " ", "nan", "NaN", "-inf"])
def test_a_row_without_a_label_is_refused_by_file_and_line(tmp_path: Path, label: str) -> None:
    with pytest.raises(
        UserError, match=wording("a_row_without_a_label_is_refused_by_file_and_line")
    ):
        read(tmp_path / "a.csv", f"text,label\na,1\nb,{label}\n")


@pytest.mark.parametrize("label", ["null", "NaN", "Infinity"])
def test_a_json_label_that_is_none_or_nan_is_refused_by_file_and_line(
    tmp_path: Path, label: str
) -> None:
    with pytest.raises(
        UserError, match=wording("a_json_label_that_is_none_or_nan_is_refused_by_file_and_line")
    ):
        read(tmp_path / "a.jsonl", f'{{"text": "a", "label": {label}}}\n')


def test_plus_and_minus_are_labels(tmp_path: Path) -> None:
    assert [example.label for example in read(tmp_path / "a.csv", "text,label\na,+\nb,-\n")] == [
        "+",
        "-",
    ]


@pytest.mark.parametrize(
    "options", [{"text": "label"}, {"text_pair": "text"}, {"text_pair": "label"}], ids=str
)
def test_one_column_for_two_purposes_is_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(UserError, match=wording("one_column_for_two_purposes_is_refused")):
        read(tmp_path / "a.csv", "text,label\na,1\n", **options)


def test_an_empty_text_of_a_pair_is_counted_too(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"a\.csv: rows without one of their texts: 2; they are"):
        read(tmp_path / "a.csv", "text,text_pair,label\na,,1\n,b,2\na,b,1\n")


def test_a_column_counted_backwards_is_refused_with_the_number_of_the_last(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no column '-1'.*from 0, so the last one here is 1$"):
        read(tmp_path / "a.csv", "text,label\na,1\n", label="-1")


@pytest.mark.parametrize("lacking", ["label", "text_pair"])
def test_a_column_that_one_row_alone_lacks_is_not_called_missing(
    tmp_path: Path, lacking: str
) -> None:
    row = {"text": "a", "text_pair": "b", "label": "x"}
    rows = [row, {name: value for name, value in row.items() if name != lacking}]
    with pytest.raises(UserError, match=rf"a\.jsonl:2: this row has no '{lacking}', as the rows"):
        read(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(
    ("value", "remedy"),
    [({"en": "a"}, "dict"), (["good", "bad"], "list"), (b"a", "bytes")],
    ids=["dict", "list", "bytes"],
)
def test_a_value_that_is_no_text_is_refused_with_what_to_do(value: object, remedy: str) -> None:
    table = table_of_rows([("train, row 1", {"text": value, "label": ["x", "y"]})], name="train")
    with pytest.raises(UserError, match=wording(f"a_value_that_is_no_text_{remedy}")):
        list(Classify.from_name("classify").read([table], labelled=True))


def test_a_label_that_is_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=wording("a_label_that_is_a_list_is_refused")):
        read(tmp_path / "a.jsonl", '{"text": "a", "label": ["x"]}\n')


def test_a_label_that_no_file_can_hold_is_refused_by_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.jsonl:1: half a surrogate pair"):
        read(tmp_path / "a.jsonl", '{"text": "a", "label": "c\\ud83d"}\n')


def test_text_to_predict_needs_no_labels_and_keeps_those_it_has(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", "text\na\n", with_labels=False)[0].label is None
    assert [
        e.label for e in read(tmp_path / "b.csv", "text,label\na,1\nb,\n", with_labels=False)
    ] == ["1", None]


def test_rows_without_text_are_kept_and_counted(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=wording("rows_without_text_are_kept_and_counted")):
        assert len(read(tmp_path / "a.csv", "text,label\n,1\nb,0\n ,1\n")) == 3


def test_a_file_with_names_and_nothing_else_has_no_examples(tmp_path: Path) -> None:
    assert read(tmp_path / "dev.csv", "text,label\n") == []


def test_a_folder_gives_its_train_dev_and_test_files(tmp_path: Path) -> None:
    for name in ("train.jsonl", "validation.csv"):
        (tmp_path / name).touch()
    files = Classify.from_name("classify").locate(str(tmp_path))
    assert [each.source.name for each in (*files.train, *files.dev["dev"])] == [
        "train.jsonl",
        "validation.csv",
    ]
    assert files.test == {}


# ---- classes or numbers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["b", "a", "b"], ("a", "b")),
        (["10", "9", "2"], ("2", "9", "10")),
        (["10", "9", "none"], ("10", "9", "none")),
        (["false", "true"], ("false", "true")),
        ([*range(20)], tuple(map(str, range(20)))),
    ],
    ids=str,
)
def test_few_whole_numbers_and_words_are_classes_in_order(
    labels: list[object], expected: tuple[str, ...]
) -> None:
    task = learnt(*labels)
    assert (task.regression, task.labels) == (False, expected)


@pytest.mark.parametrize("labels", [["0.5", "1", "2"], [*range(21)], ["-1e-3", "4"]], ids=str)
def test_fractions_and_many_whole_numbers_are_a_regression(labels: list[object]) -> None:
    task = learnt(*labels)
    assert (task.regression, task.labels, task.metric) == (True, (), "spearmanr")


def test_a_word_among_many_numbers_makes_classes_of_them_and_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"21 labels are numbers and 1 are not \(unknown\), so"):
        assert learnt(*range(21), "unknown").regression is False


def test_labels_that_may_mean_a_missing_one_are_classes_and_are_warned_of_once() -> None:
    message = r"3 rows have the label 'NA' or 'None', for example train\.csv:3: it is read as a"
    with pytest.warns(UserWarning, match=message) as warnings:
        assert learnt("a", "NA", "b", "None", "NA").labels == ("NA", "None", "a", "b")
    assert len(warnings) == 1


def test_labels_that_differ_only_in_case_are_classes_and_are_warned_of() -> None:
    message = r"labels 'Spam' \(1 rows\) and 'spam' \(2 rows\) differ only in upper and lower case"
    with pytest.warns(UserWarning, match=message) as warnings:
        assert learnt("spam", "Spam", "ham", "spam").labels == ("Spam", "ham", "spam")
    assert len(warnings) == 1


@pytest.mark.parametrize("labels", [("0,5", "1,5", "2"), ("10%", "20 %"), ("1.000,5", "2.000,5")])
def test_classes_that_look_like_scores_are_warned_of(labels: tuple[str, ...]) -> None:
    with pytest.warns(UserWarning, match=r"labels such as '.*' are read as classes; if they are"):
        assert learnt(*labels).regression is False


def test_scores_that_float32_cannot_hold_are_refused() -> None:
    with pytest.raises(UserError, match=wording("a_score_too_large_is_refused")):
        learnt("0.5", "-1e301")


def test_a_column_without_a_name_is_no_id(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",text,label\n0,a dog,a\n1,a cat,b\n", encoding="utf8")
    examples = Classify.from_name("classify").read([find_table(path)], labelled=True)
    assert [example.id for example in examples] == [None, None]


def test_a_whole_number_is_one_class_however_a_table_spells_it(tmp_path: Path) -> None:
    examples = labelled("1.0", "0", "1", "0.0", "1.0")
    task = Classify.from_name("classify", class_weights="balanced").fit_labels(examples)
    assert task.labels == ("0", "1")
    assert [task.target(example) for example in examples] == [1, 0, 1, 0, 1]
    assert [task.stratum(example) for example in examples] == ["1", "0", "1", "0", "1"]
    weights = task.fit_weights(examples).label_weights
    assert weights == pytest.approx((5 / 4, 5 / 6))
    assert task.record(examples[0], np.array([0.2, 0.8]))["gold"] == "1"
    table = find_table(written(tmp_path / "dev.csv", "text,label\na,1.0\nb,0\n"))
    dev = list(task.read([table], labelled=True))
    task.check(dev)
    assert [example.label for example in dev] == ["1", "0"]


def test_labels_that_are_not_all_whole_numbers_are_classes_as_they_are_spelled() -> None:
    assert learnt("1.0", "1.1", "1", regression=False).labels == ("1", "1.0", "1.1")
    assert learnt("1.0", "2.0-rc1").labels == ("1.0", "2.0-rc1")


def test_the_user_may_disagree_with_what_was_detected() -> None:
    assert learnt("1", "2", "3", regression=True).regression
    assert learnt("0.5", "1.5", regression=False).labels == ("0.5", "1.5")


def test_what_was_found_is_announced() -> None:
    assert learnt("b", "a", "c").description == "classification, 3 classes: a, b, c"
    assert (
        learnt("ham", "spam").description
        == "classification, 2 classes: ham, spam; f1 is that of spam"
    )
    assert learnt("1", "3", "2").description == (
        "classification, 3 classes: 1, 2, 3 (--regression true makes them scores)"
    )
    assert learnt("0", "2.5", "5").description == (
        "regression, labels from 0.0 to 5.0 (--regression false makes them classes)"
    )
    assert learnt(*(f"c{n:02}" for n in range(30))).description.endswith("c19 and 10 more")


def test_one_class_only_is_refused() -> None:
    with pytest.raises(UserError, match=wording("one_class_only_is_refused")):
        learnt("a", "a", "a")


def test_a_label_never_seen_in_training_is_refused_with_those_that_were() -> None:
    with pytest.raises(
        UserError, match=wording("a_label_never_seen_in_training_is_refused_with_those_that_were")
    ):
        learnt("a", "b").check(labelled("a", "c"))


def test_a_word_among_the_numbers_of_a_regression_is_refused() -> None:
    with pytest.raises(
        UserError, match=wording("a_word_among_the_numbers_of_a_regression_is_refused")
    ):
        learnt("0.5", "high", regression=True)
    with pytest.raises(
        UserError, match=wording("a_word_among_the_numbers_of_a_regression_is_refused_2")
    ):
        learnt("0.5", "1").check(labelled("high"))


def test_a_metric_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match=wording("a_metric_that_does_not_fit_is_refused")):
        learnt("a", "b", metric="pearson")
    with pytest.raises(UserError, match=wording("a_metric_that_does_not_fit_is_refused_2")):
        learnt("a", "b", "c", metric="f1")


def test_what_was_learnt_survives_a_model_folder() -> None:
    for task in (learnt("a", "b"), learnt("0", "2.5")):
        assert Classify.from_settings(json.loads(json.dumps(task.settings()))) == task


# ---- rows ----------------------------------------------------------------------------------------


def test_a_pair_is_trained_both_ways_round_and_read_once(tokenizer: WordPiece) -> None:
    examples = labelled("0.5", "2", pairs=True)
    task = Classify.from_name("classify", swapped=True).fit_labels(examples)
    trained = task.features(examples, tokenizer, length=32, training=True)
    a, b = tokenizer.encode(["dog 2", "cat 2"])
    assert trained.examples.tolist() == [0, 0, 1, 1]
    assert trained.input_ids[: trained.offsets[2]].tolist() == [
        tokenizer.cls,
        *a,
        tokenizer.sep,
        *b,
        tokenizer.sep,
        tokenizer.cls,
        *b,
        tokenizer.sep,
        *a,
        tokenizer.sep,
    ]
    assert trained.row_labels["target"].tolist() == [0.5, 0.5, 2.0, 2.0]
    assert trained.row_labels["target"].dtype == np.float32
    assert task.features(examples, tokenizer, length=32, training=False).examples.tolist() == [0, 1]


def test_text_that_does_not_fit_is_cut_and_marked(tokenizer: WordPiece) -> None:
    task = learnt("a", "b")
    examples = [Text("x:1", "dog " * 50, label="b"), Text("x:2", "dog")]
    features = task.features(examples, tokenizer, length=16, training=False)
    assert (features.lengths.max(), features.truncated.tolist()) == (16, [True, False])
    assert features.row_labels["target"].tolist() == [1, 0]


def test_a_long_text_is_read_in_windows_whose_probabilities_are_averaged(
    tokenizer: WordPiece,
) -> None:
    task = Classify.from_name(labels=("0", "1"), regression=False).with_windows()
    words = " ".join(["dog", "cat", "mat", "home"] * 5)
    examples = [Text("a:1", words, None, "1"), Text("a:2", "dog", None, "0")]
    for training in (True, False):
        features = task.features(examples, tokenizer, length=10, training=training)
        *windows, short = features.examples.tolist()
        assert len(windows) > 1
        assert (set(windows), short, features.truncated.any()) == ({0}, 1, False)
        assert features.row_labels["target"].tolist() == [1] * len(windows) + [0]
    sure, unsure = np.array([-9.0, 9.0]), np.array([0.0, 0.0])
    outputs = [{"logits": sure}] + [{"logits": unsure}] * len(windows)
    first, second = task.decode(examples, features, outputs)
    assert first[1] == pytest.approx((1 + 0.5 * (len(windows) - 1)) / len(windows), abs=1e-6)
    assert second.tolist() == [0.5, 0.5]


def test_windows_hold_every_token_and_the_shorter_text_of_a_pair() -> None:
    for first, second in ((range(30), None), (range(30), [98, 99]), ([98, 99], range(30))):
        windows = split_windows(list(first), second and list(second), length=12)
        seen = {token for a, b in windows for token in [*a, *(b or [])]}
        assert seen >= set(range(30))
        for a, b in windows:
            assert len(a) + len(b or []) <= 12 - 2 - (b is not None)
            assert second is None or {98, 99} <= {*a, *(b or [])}
    assert split_windows([1, 2], [3], length=12) == [([1, 2], [3])]


def test_both_ways_round_are_one_answer(tokenizer: WordPiece) -> None:
    examples = labelled("a", "b", pairs=True)
    task = Classify.from_name("classify", swapped=True).fit_labels(examples)
    features = task.features(examples, tokenizer, length=32, training=True)
    logits = np.log(np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8], [0.2, 0.8]]))
    found = task.decode(examples, features, [{"logits": row} for row in logits])
    np.testing.assert_allclose(found, [[0.7, 0.3], [0.2, 0.8]])


# ---- heads ---------------------------------------------------------------------------------------


def random_head(outputs: int, *, width: int = WIDTH) -> LinearHead:
    torch.manual_seed(0)
    head = LinearHead(width, outputs, dropout=0.1, regression=False).eval()
    torch.nn.init.normal_(head.output.weight, std=0.3)
    torch.nn.init.normal_(head.output.bias)
    return head


@pytest.mark.parametrize("outputs", [1, 2, 3, WIDTH // 2])
def test_the_stock_head_holds_the_papers_exactly(outputs: int) -> None:
    head, vectors = random_head(outputs), torch.randn(64, WIDTH) * 3
    stock = head.to_transformers("electra")
    assert isinstance(stock, ElectraClassificationHead)
    torch.testing.assert_close(
        stock.eval().logits(vectors), head.logits(vectors), rtol=0, atol=1e-5
    )


def test_the_stock_head_is_the_one_of_transformers() -> None:
    from transformers import ElectraConfig
    from transformers.models.electra import modeling_electra

    ours = random_head(3).to_transformers("electra")
    assert isinstance(ours, ElectraClassificationHead)
    config = ElectraConfig(hidden_size=WIDTH, num_labels=3)
    theirs = modeling_electra.ElectraClassificationHead(config).eval()
    names = {"dense": "dense", "output": "out_proj"}
    theirs.load_state_dict(
        {
            names[key.split(".")[0]] + "." + key.split(".")[1]: tensor
            for key, tensor in ours.state_dict().items()
        }
    )
    hidden = torch.randn(8, 5, WIDTH) * 3
    with torch.no_grad():
        torch.testing.assert_close(
            theirs(hidden), ours.eval().logits(hidden[:, 0]), rtol=0, atol=1e-4
        )
        torch.testing.assert_close(
            theirs(hidden), random_head(3).logits(hidden[:, 0]), rtol=0, atol=1e-4
        )


def test_a_head_too_wide_for_the_stock_one_says_that_transformers_cannot_hold_it() -> None:
    head = random_head(WIDTH // 2 + 1)
    assert (head.class_in("electra"), head.to_transformers("electra")) == (None, head)
    assert random_head(WIDTH // 2).class_in("electra") == "SequenceClassification"


def test_a_stored_model_gets_the_head_that_its_class_has() -> None:
    task = learnt("a", "b")
    assert isinstance(
        task.stored_head(WIDTH, architecture="ElectraForSequenceClassification"),
        ElectraClassificationHead,
    )
    assert isinstance(task.stored_head(WIDTH, architecture="Electra"), LinearHead)


def test_a_fresh_head_has_the_initial_weights_of_the_official_code() -> None:
    torch.manual_seed(0)
    head = learnt("a", "b").head(256, dropout=0.1)
    assert isinstance(head, LinearHead)
    assert head.dropout.rate == 0.1
    assert head.output.weight.std().item() == pytest.approx(0.088, abs=0.005)
    assert not head.output.bias.any()


def test_losses_are_summed_cross_entropy_and_squared_error(tokenizer: WordPiece) -> None:
    for task, expected in (
        (learnt("a", "b"), 3 * np.log(2)),
        (learnt("0.5", "3"), 0 + 1 + 0.6**2),  # 0.5 to 3 is learnt as 0 to 1
    ):
        examples = [
            Text("x", "dog", label=label)
            for label in (("a", "b", "a") if task.labels else ("0.5", "3", "-1"))
        ]
        batch = task.features(examples, tokenizer, length=32, training=True).collate(np.arange(3))
        hidden = torch.zeros(3, 4, WIDTH, dtype=torch.bfloat16)
        head = task.head(WIDTH, dropout=0.0).bfloat16()
        assert head.loss(hidden, batch).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_scores_have_the_unit_of_the_labels_also_where_transformers_computes_them(
    family: str, tokenizer: WordPiece
) -> None:
    torch.manual_seed(0)
    task = learnt("1.5", "9")
    head = task.head(WIDTH, dropout=0.0)
    assert isinstance(head, LinearHead)
    torch.nn.init.constant_(head.output.bias, 0.5)
    hidden = torch.randn(3, 4, WIDTH)
    hidden[0] = 0
    examples = [Text("x", "dog")] * 3
    batch = task.features(examples, tokenizer, length=8, training=False).collate(np.arange(3))
    scores = head(hidden, batch)["logits"]
    assert scores[0].item() == pytest.approx(1.5 + 0.5 * 7.5)
    for stored in (head.fold(), head.to_transformers(family)):
        torch.testing.assert_close(stored.logits(hidden[:, 0]), scores)
        torch.testing.assert_close(stored(hidden, batch)["logits"], scores)


def test_one_score_twice_has_no_range_and_is_learnt_as_it_is() -> None:
    head = learnt("2", "2.0", regression=True).head(WIDTH, dropout=0.0)
    assert (head.low, head.scale) == (2.0, 1.0)


# ---- answers -------------------------------------------------------------------------------------


def test_scores_compare_the_likeliest_class_with_the_label() -> None:
    task = learnt("no", "yes")
    given = [np.array([0.1, 0.9]), np.array([0.4, 0.6]), np.array([0.8, 0.2])]
    assert task.score(labelled("yes", "no", "no"), given) == {
        "accuracy": pytest.approx(2 / 3),
        "f1": pytest.approx(2 / 3),
        "roc_auc": 1.0,  # 0.9 is above both 0.6 and 0.2
        "average_precision": 1.0,
    }


def test_each_class_has_its_precision_recall_and_f1() -> None:
    task = learnt("a", "b", "c")
    given = [np.eye(3)[index] for index in (0, 0, 1, 0)]
    assert task.class_scores(labelled("a", "b", "b", "c"), given) == [
        {"label": "a", "precision": 1 / 3, "recall": 1.0, "f1": 0.5, "support": 1},
        {"label": "b", "precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2},
        {"label": "c", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1},
    ]
    assert learnt("0.5", "1", "2").class_scores(labelled("1"), [np.array([1.0])]) == []


def test_the_baseline_of_an_error_is_the_smallest_one() -> None:
    labels = labelled("0.5", "1", "9")
    task = learnt("0.5", "1", "9", metric="mae")
    assert task.baseline(labels) == pytest.approx((0.5 + 0 + 8) / 3)  # the median
    assert learnt("0.5", "1", "9", metric="r2").baseline(labels) == pytest.approx(0.0)  # the mean


def test_scores_of_a_regression_are_correlations_and_errors() -> None:
    found = learnt("0.5", "1", "2").score(
        labelled("0.5", "1", "2"), [np.array([v]) for v in (0.0, 0.1, 9.0)]
    )
    assert list(found) == ["spearmanr", "pearson", "mae", "rmse", "r2"]
    assert found["mae"] == pytest.approx((0.5 + 0.9 + 7) / 3)
    assert found["spearmanr"] == pytest.approx(1.0)


def test_the_trivial_answer_is_the_best_constant() -> None:
    assert learnt("a", "b").baseline(labelled("a", "b", "b")) == pytest.approx(2 / 3)
    assert learnt("a", "b", metric="f1").baseline(labelled("a", "b", "b", "a")) == pytest.approx(
        2 / 3
    )
    assert learnt("a", "b", metric="matthews_correlation").baseline(labelled("a", "b", "b")) == 0.0
    assert learnt("0.5", "3").baseline(labelled("0.5", "3", "2")) == 0.0


def test_records_are_plain_json_and_name_the_true_answer_where_it_is_known() -> None:
    task = learnt("no", "yes")
    record = task.record(Text("x:1", "dog", None, "no", "7"), np.array([0.25, 0.75]))
    assert json.loads(json.dumps(record)) == {
        "id": "7",
        "label": "yes",
        "probability": 0.75,
        "probabilities": {"no": 0.25, "yes": 0.75},
        "gold": "no",
    }
    assert learnt("0.5", "1").record(Text("x:1", "dog"), np.array([2.5])) == {"score": 2.5}


def test_several_models_answer_with_the_mean_of_their_probabilities() -> None:
    combined = learnt("a", "b").combine([np.array([0.9, 0.1]), np.array([0.2, 0.8])])
    assert combined.tolist() == pytest.approx([0.55, 0.45])


def test_transformers_is_told_the_names_of_the_classes() -> None:
    assert learnt("b", "a").config() == {
        "id2label": {"0": "a", "1": "b"},
        "label2id": {"a": 0, "b": 1},
        "problem_type": "single_label_classification",
    }
    assert learnt("0.5", "1").config()["problem_type"] == "regression"
    assert learnt("0.5", "1").config()["id2label"] == {"0": "score"}


# ---- learning ------------------------------------------------------------------------------------


def test_eight_examples_are_learnt_by_heart(tokenizer: WordPiece) -> None:
    for labels in ("abcabcab", ("0.5", "1", "2", "3.5", "0", "1", "2", "4")):
        examples = [
            Text(f"x:{n}", f"the {noun}", label=label)
            for n, (noun, label) in enumerate(zip(NOUNS, labels, strict=False))
        ]
        task = Classify.from_name("classify").fit_labels(examples)
        _, loss = fit(task, examples, tokenizer, steps=120)
        assert loss < 0.02


def test_a_planted_word_is_found_in_texts_never_seen(tokenizer: WordPiece) -> None:
    rng = random.Random(0)
    examples = []
    for n in range(300):
        label = rng.choice(["animal", "place"])
        planted = rng.choice(NOUNS[:2] if label == "animal" else NOUNS[2:4])
        text = [*rng.choices(VERBS, k=rng.randint(2, 6)), planted]
        rng.shuffle(text)
        examples.append(Text(f"x:{n}", " ".join(text), label=label))
    task = Classify.from_name("classify").fit_labels(examples[:200])
    model, _ = fit(task, examples[:200], tokenizer, steps=60)
    assert (
        task.score(examples[200:], answers(task, examples[200:], tokenizer, model))["accuracy"]
        >= 0.95
    )
