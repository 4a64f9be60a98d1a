"""What an analysis shows of each kind of task, from answers that are written here."""

from __future__ import annotations

import numpy as np

from electra.tasks import find_task
from electra.tasks.analysis import (
    MAX_EXAMPLES,
    MAX_TEXT,
    Cell,
    ExampleList,
    around,
    confusion_matrix,
    scatter,
    shorten,
)
from electra.tasks.choose import Choice
from electra.tasks.classify import Classify
from electra.tasks.conll import Sentence
from electra.tasks.mistakes import analyse
from electra.tasks.multi_label import MultiLabel
from electra.tasks.span import Candidate, SpanAnswer
from electra.tasks.span_files import Question
from electra.tasks.tag import Tag
from electra.tasks.texts import Text


def text_of(cell: Cell) -> str:
    return "".join(text for text, _ in cell)


def column(examples: ExampleList, name: str) -> list[str]:
    index = examples.head.index(name)
    return [text_of(row[index]) for row in examples.rows]


def cats_and_dogs(*probabilities: float, labels: str) -> tuple[Classify, list[Text], list[object]]:
    """Texts t0, t1, … whose label is c or d, and the probability of d that each is given."""
    task = Classify(
        name="classify", metric="accuracy", metrics=("accuracy",), labels=("c", "d"),
        regression=False,
    )  # fmt: skip
    examples = [
        Text(f"folder/a.csv, line {i}", f"t{i}", label=label) for i, label in enumerate(labels)
    ]
    return task, examples, [np.array([1 - p, p]) for p in probabilities]


def test_the_worst_mistakes_are_the_surest_ones() -> None:
    task, examples, answers = cats_and_dogs(0.9, 0.6, 0.2, 0.99, labels="ccdd")
    mistakes, uncertain = analyse(task, examples, answers).lists
    assert column(mistakes, "text") == ["t0", "t2", "t1"]
    assert column(mistakes, "truth") == ["c", "d", "c"]
    assert column(mistakes, "answer") == ["d", "c", "d"]
    assert column(mistakes, "probability") == ["90.0 %", "80.0 %", "60.0 %"]
    assert column(mistakes, "where")[0] == "a.csv, line 0"
    assert column(uncertain, "text") == ["t1", "t2", "t0", "t3"]


def test_a_list_is_short_however_many_and_long_the_texts_are() -> None:
    task, examples, answers = cats_and_dogs(*[0.9] * 200, labels="c" * 200)
    examples = [Text(e.where, "x " * 100_000, label=e.label) for e in examples]
    analysis = analyse(task, examples, answers)
    assert [len(each.rows) for each in analysis.lists] == [MAX_EXAMPLES, MAX_EXAMPLES]
    assert max(map(len, column(analysis.lists[0], "text"))) <= MAX_TEXT + 2


def test_rare_labels_are_joined_in_a_confusion_matrix() -> None:
    labels = [f"l{i:02}" for i in range(25)]
    true = [label for i, label in enumerate(labels) for _ in range(25 - i)]
    matrix = confusion_matrix(true, ["l00"] * len(true))
    assert matrix.labels == (*labels[:20], "others")
    assert matrix.note == ("The 20 most frequent of 25 labels; others stands for the other 5.")
    assert [row[0] for row in matrix.counts] == [*range(25, 5, -1), 5 + 4 + 3 + 2 + 1]
    assert sum(map(sum, matrix.counts)) == len(true)


def test_the_largest_errors_of_scores_come_first() -> None:
    task = Classify(name="classify", metric="spearmanr", metrics=("spearmanr",), regression=True)
    examples = [Text(f"line {i}", f"t{i}", label=str(float(i))) for i in range(3)]
    analysis = analyse(task, examples, [np.array([p]) for p in (0.5, 3.0, 2.0)])
    assert analysis.points is not None
    assert (analysis.points.true, analysis.points.predicted) == ((0, 1, 2), (0.5, 3.0, 2.0))
    assert column(analysis.lists[0], "text") == ["t1", "t0", "t2"]
    assert column(analysis.lists[0], "error") == ["+2", "+0.5", "+0"]


def test_points_that_are_not_finite_are_left_out() -> None:
    points = scatter([0.0, 1.0], [float("nan"), 2.0])
    assert (points.true, points.predicted) == ((1.0,), (2.0,))


def test_entities_are_marked_as_right_wrong_or_missed() -> None:
    task = Tag(name="ner", scheme="iob2", labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
    sentence = Sentence("line 1", ("Anna", "saw", "Paris", "."), ("B-PER", "O", "B-LOC", "O"))
    answer = np.zeros((4, 5))
    for word, label in enumerate((1, 3, 0, 0)):  # saw is taken for a place, Paris for none
        answer[word, label] = 1.0
    analysis = analyse(task, [sentence], [answer])
    truth, given, count, _ = analysis.lists[0].rows[0]
    assert truth == (("Anna", "right"), (" PER ", "note"), ("saw ", ""), ("Paris", "missed"),
                     (" LOC ", "note"), (".", ""))  # fmt: skip
    assert given == (("Anna", "right"), (" PER ", "note"), ("saw", "wrong"), (" LOC ", "note"),
                     ("Paris .", ""))  # fmt: skip
    assert text_of(count) == "2"
    scores = {each["label"]: (each["f1"], each["support"]) for each in analysis.classes}
    assert scores == {"LOC": (0.0, 1), "PER": (1.0, 1)}


def test_a_sentence_without_an_error_is_not_among_the_worst() -> None:
    task = Tag(name="tag", scheme="plain", metric="accuracy", labels=("A", "B"))
    sentences = [
        Sentence("1", ("x",), ("A",)),
        Sentence("2", ("y",), ("B",)),
        Sentence("3", (), ()),
    ]
    answers = [np.array([[0.9, 0.1]]), np.array([[0.8, 0.2]]), np.zeros((0, 2))]
    assert column(analyse(task, sentences, answers).lists[0], "where") == ["2"]


def test_answers_that_share_no_word_with_the_truth_are_listed_by_their_probability() -> None:
    task = find_task("span")
    context = "x " * 500 + "Ada wrote it in London."
    start = context.index("Ada")
    place = (context.index("London"), len(context) - 1)
    question = Question("1", "q1", "Who wrote it?", context, ("Ada",), (start, start + 3))
    answers = [
        SpanAnswer((Candidate(*place, 0.7),)),
        SpanAnswer((Candidate(start, start + 9, 0.9),)),
    ]
    listed = analyse(task, [question, question], answers).lists[0]
    assert column(listed, "answer") == ["London"]
    passage = listed.rows[0][listed.head.index("passage")]
    assert ("Ada", "missed") in passage
    assert ("London", "wrong") in passage
    assert len(text_of(passage)) <= MAX_TEXT + 10


def test_options_are_ranked_and_the_true_one_is_marked() -> None:
    task = find_task("choose")
    choice = Choice("1", "She opened it.", ("a", "b", "c"), ("one", "two", "three"), answer=0)
    listed = analyse(task, [choice], [np.array([0.2, 0.5, 0.3])]).lists[0]
    assert listed.rows[0][1] == (
        ("50.0 % ", "note"), ("two", "wrong"), ("\n", ""), ("30.0 % ", "note"), ("three", ""),
        ("\n", ""), ("20.0 % ", "note"), ("one", "missed"),
    )  # fmt: skip


def test_a_long_text_is_cut_around_what_matters() -> None:
    assert around("x" * 1000, 500, 510, limit=100) == (455, 555)
    assert around("x" * 1000, 0, 5, limit=100) == (0, 100)
    assert around("x" * 1000, 995, 1000, limit=100) == (900, 1000)
    assert around("short", 0, 5, limit=100) == (0, 5)
    assert shorten("a\n  b") == "a b"


def test_the_worst_labels_of_a_set_are_the_surest_ones() -> None:
    task = MultiLabel(name="classify", labels=("a", "b", "c"), metric="f1_micro")
    examples = [Text("1", "t1", labels=("a",)), Text("2", "t2", labels=())]
    answers = [np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.8, 0.1])]
    listed = analyse(task, examples, answers).lists[0]
    assert column(listed, "text") == ["t1", "t2"]
    assert [row[1] for row in listed.rows] == [(("a", "missed"),), (("b", "wrong"),)]
    assert column(listed, "truth") == ["a", "none"]
