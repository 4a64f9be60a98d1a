"""Extractive question answering, from a question to its score."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from electra.config import UserError
from electra.data.wordpiece import ROLES, WordPiece
from electra.model.electra_encoder import ElectraEncoder
from electra.model.shape import EncoderShape
from electra.tasks.features import Features
from electra.tasks.span import Candidate, Span, SpanAnswer
from electra.tasks.span_files import Question
from electra.tasks.span_heads import JointHead
from electra.tasks.submissions import write_squad
from electra.tasks.task import Network
from tests.wording import wording_of

wording = wording_of(__file__)

LETTERS = "a b c d e f g h i j k l m n o p q r s t u v w x y z".split()
CLS, SEP = 2, 3


def tokenizer_of_words(*words: str) -> WordPiece:
    """A vocabulary of these words after the five special tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece as Model
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    tokenizer = Tokenizer(
        Model({word: i for i, word in enumerate([*ROLES.values(), *words])}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        BertNormalizer(lowercase=True),
        BertPreTokenizer(),
    )
    return WordPiece(tokenizer.to_str())


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    return tokenizer_of_words(*LETTERS)


def about(
    context: str, answer: str | None = None, *, question: str = "q", identity: str = "1"
) -> Question:
    if answer is None:
        return Question(f"x.json, question {identity}", identity, question, context)
    start = context.index(answer)
    span = (start, start + len(answer))
    return Question(f"x.json, question {identity}", identity, question, context, (answer,), span)


def ids(text: str) -> list[int]:
    return [5 + LETTERS.index(letter) for letter in text.split()]


def rows_of(features: Features) -> list[list[int]]:
    return [features.input_ids[a:b].tolist() for a, b in itertools.pairwise(features.offsets)]


# ---- windows -------------------------------------------------------------------------------------


def test_a_long_paragraph_becomes_windows_with_the_question_before_each(
    tokenizer: WordPiece,
) -> None:
    task = Span.from_name("span", stride=2)
    found = task.features([about("a b c d e f", "d e")], tokenizer, length=8, training=True)
    assert rows_of(found) == [
        [CLS, *ids("q"), SEP, *ids(window), SEP] for window in ("a b c d", "c d e f")
    ]
    assert found.second_starts.tolist() == [3, 3]
    assert {name: values.tolist() for name, values in found.row_labels.items()} == {
        "start": [0, 4],
        "end": [0, 5],
        "impossible": [1, 0],
    }  # the first window ends within the answer


def test_a_window_without_the_answer_and_a_question_without_one_point_at_cls(
    tokenizer: WordPiece,
) -> None:
    task = Span.from_name("squad-2.0", stride=3)
    found = task.features(
        [about("a b c d e", "a"), about("a b", None)], tokenizer, length=8, training=True
    )
    assert found.examples.tolist() == [0, 0, 1]
    assert found.row_labels["start"].tolist() == [3, 0, 0]
    assert found.row_labels["impossible"].tolist() == [0, 1, 1]


def test_training_leaves_out_a_question_whose_answer_no_window_holds_and_says_so(
    tokenizer: WordPiece,
) -> None:
    task = Span.from_name("span", stride=2)
    examples = [
        about("a b c d e f", "a b c d e", identity="7"),
        about("a b", "b"),
        Question("x.jsonl:3", "8", "q", "a b", ("elsewhere",)),
    ]
    with pytest.warns(
        UserWarning,
        match=wording("training_leaves_out_a_question_whose_answer_no_window_holds_and_says_so"),
    ):
        assert task.features(examples, tokenizer, length=8, training=True).examples.tolist() == [1]
    assert set(task.features(examples, tokenizer, length=8, training=False).examples.tolist()) == {
        0,
        1,
        2,
    }


def test_officially_a_window_is_unanswerable_only_if_its_question_is(tokenizer: WordPiece) -> None:
    task = Span.from_name("squad-2.0", stride=3, conventions="official")
    found = task.features(
        [about("a b c d e", "a"), about("a b", None)], tokenizer, length=8, training=True
    )
    assert found.row_labels["start"].tolist() == [3, 0, 0]
    assert found.row_labels["impossible"].tolist() == [0, 0, 1]


def test_officially_an_answer_that_no_window_holds_is_learnt_at_cls(tokenizer: WordPiece) -> None:
    task = Span.from_name("span", stride=2, conventions="official")
    examples = [
        about("a b c d e f", "a b c d e"),
        Question("x.jsonl:3", "8", "q", "a b", ("elsewhere",)),
    ]
    with pytest.warns(UserWarning, match="x.jsonl:3"):
        found = task.features(examples, tokenizer, length=8, training=True)
    assert found.examples.tolist() == [0, 0]
    assert {name: values.tolist() for name, values in found.row_labels.items()} == {
        "start": [0, 0],
        "end": [0, 0],
        "impossible": [0, 0],
    }


def test_squad_1_1_has_answerability_in_the_official_code_alone() -> None:
    for conventions, layers in (("default", 0), ("official", 2)):
        head = Span.from_name("squad-1.1", conventions=conventions).head(8, dropout=0.0)
        assert isinstance(head, JointHead)
        assert len(head.answerable) == layers


def test_a_long_question_is_cut_and_counted_and_leaves_half_the_row_to_the_paragraph(
    tokenizer: WordPiece,
) -> None:
    examples = [about("a b c", "b", question="q r s t u v"), about("a b c", "b", question="q r")]
    found = Span.from_name("span", question_length=3).features(
        examples, tokenizer, length=32, training=True
    )
    assert rows_of(found)[0] == [CLS, *ids("q r s"), SEP, *ids("a b c"), SEP]
    assert found.truncated.tolist() == [True, False]
    narrow = Span.from_name("span").features(examples[:1], tokenizer, length=9, training=False)
    assert rows_of(narrow) == [[CLS, *ids("q r s"), SEP, *ids("a b c"), SEP]]


def test_tokens_carry_their_characters_only_where_answers_are_decoded(tokenizer: WordPiece) -> None:
    task = Span.from_name("span")
    found = task.features(
        [about("a  b", "b")], tokenizer, length=16, training=False
    )  # [CLS] q [SEP] a b [SEP]
    assert found.token_labels["starts"].tolist() == [-100, -100, -100, 0, 3, -100]
    assert found.token_labels["ends"].tolist() == [-100, -100, -100, 1, 4, -100]
    assert found.token_labels["is_max_context"].tolist() == [0, 0, 0, 1, 1, 0]
    assert (
        task.features([about("a  b", "b")], tokenizer, length=16, training=True).token_labels == {}
    )


# ---- decoding ------------------------------------------------------------------------------------


def logits_for(features: Features, *, seed: int, padded_to: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    widths = [max(padded_to, int(width)) for width in np.diff(features.offsets)]
    return [
        {name: rng.normal(size=width).astype(np.float32) for name in ("start_logits", "end_logits")}
        for width in widths
    ]


@pytest.mark.parametrize("seed", range(5))
def test_decoding_two_sums_of_logits_equals_brute_force(tokenizer: WordPiece, seed: int) -> None:
    task = Span.from_name("span", head_kind="simple", answer_length=3, beam=50)
    example = about("a b c d e f g", "b")
    features = task.features([example], tokenizer, length=32, training=False)
    (output,) = logits_for(features, seed=seed, padded_to=14)
    (answer,) = task.decode([example], features, [output])
    scores = {
        (2 * i, 2 * j + 1): float(output["start_logits"][3 + i] + output["end_logits"][3 + j])
        for i in range(7)
        for j in range(i, min(i + 3, 7))
    }
    assert [(c.start, c.end) for c in answer.candidates] == sorted(
        scores, key=lambda span: -scores[span]
    )[:20]
    assert math.fsum(c.probability for c in answer.candidates) == pytest.approx(1)
    best, second = (scores[c.start, c.end] for c in answer.candidates[:2])
    assert math.log(
        answer.candidates[0].probability / answer.candidates[1].probability
    ) == pytest.approx(best - second, abs=1e-4)


@pytest.mark.parametrize("conventions", ["default", "official"])
@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_joint_decoding_equals_brute_force_over_all_pairs(
    tokenizer: WordPiece, seed: int, conventions: str
) -> None:
    task = Span.from_name("squad-2.0", answer_length=4, beam=64, conventions=conventions)
    examples = [about("a b c d e f g h", "b"), about("a b c")]
    features = task.features(examples, tokenizer, length=32, training=False)
    batch = features.collate(np.array([0, 1]))
    torch.manual_seed(seed)
    hidden, head = torch.randn(2, batch.input_ids.shape[1], 16), task.head(16, dropout=0.0)
    outputs = {name: value.numpy() for name, value in head(hidden, batch).items()}
    answers = task.decode(
        examples,
        features,
        [
            {name: value[row].astype(np.float32) for name, value in outputs.items()}
            for row in range(2)
        ],
    )
    for row, count in enumerate([8, 3]):
        pairs = []
        for i, j in itertools.combinations_with_replacement(range(count), 2):
            batch.labels["start"][row], batch.labels["end"][row] = 3 + i, 3 + j
            one = type(batch)(
                *(part[row : row + 1] for part in batch[:3]),
                {name: values[row : row + 1] for name, values in batch.labels.items()},
            )
            without = Span.from_name("span", conventions=conventions).head(16, dropout=0.0)
            without.load_state_dict(head.state_dict(), strict=False)
            if j - i < 4:
                pairs.append(
                    (float(without.loss(hidden[row : row + 1], one)), 2 * i, 2 * j + 1)
                )  # −log p / 2
        assert [(c.start, c.end) for c in answers[row].candidates] == [
            pair[1:] for pair in sorted(pairs)
        ][:20]
        assert answers[row].null_odds == pytest.approx(-float(outputs["answerable"][row]))


def test_the_best_span_of_all_windows_wins_and_counts_once(tokenizer: WordPiece) -> None:
    task = Span.from_name("squad-2.0", head_kind="simple", stride=2)
    example = about("a b c d e f", "e f")
    features = task.features([example], tokenizer, length=8, training=False)  # a b c d | c d e f
    outputs = [
        {"start_logits": np.zeros(8, np.float32), "end_logits": np.zeros(8, np.float32)}
        for _ in range(2)
    ]
    outputs[0]["start_logits"][0], outputs[1]["start_logits"][0] = 9, 2  # [CLS]
    outputs[1]["start_logits"][5] = outputs[1]["end_logits"][6] = 3
    (answer,) = task.decode([example], features, outputs)
    assert task.text(example, answer) == "e f"
    assert (
        answer.null_odds == 2 - 6
    )  # the window that is least sure of no answer, against the best span
    assert len({(c.start, c.end) for c in answer.candidates}) == len(answer.candidates)


def test_a_paragraph_without_a_token_has_no_answer(tokenizer: WordPiece) -> None:
    for kind in ("joint", "simple"):
        task = Span.from_name("squad-2.0", head_kind=kind)
        features = task.features([about("")], tokenizer, length=8, training=False)
        batch = features.collate(np.array([0]))
        outputs = task.head(8, dropout=0.0)(torch.zeros(1, batch.input_ids.shape[1], 8), batch)
        (answer,) = task.decode(
            [about("")], features, [{k: v[0].detach().numpy() for k, v in outputs.items()}]
        )
        assert answer.candidates == ()
        assert task.record(about(""), answer)["answer"] == ""


def test_an_answer_keeps_the_accent_that_is_a_character_of_its_own(tokenizer: WordPiece) -> None:
    task, example = Span.from_name("span", head_kind="simple"), about("a e\u0301 b", "e\u0301")
    features = task.features([example], tokenizer, length=16, training=False)
    outputs = [{name: np.eye(7, dtype=np.float32)[4] for name in ("start_logits", "end_logits")}]
    (answer,) = task.decode([example], features, outputs)
    assert task.text(example, answer) == "e\u0301"


def test_several_models_are_combined_by_the_mean_of_their_probabilities() -> None:
    one = SpanAnswer((Candidate(0, 1, 0.6), Candidate(2, 3, 0.4)), null_odds=1.0)
    other = SpanAnswer((Candidate(2, 3, 0.9), Candidate(4, 5, 0.1)), null_odds=-2.0)
    combined = Span.from_name("squad-2.0").combine([one, other])
    assert combined.null_odds == -0.5
    assert [(c.start, c.end, round(c.probability, 9)) for c in combined.candidates] == [
        (2, 3, 0.65),
        (0, 1, 0.3),
        (4, 5, 0.05),
    ]


# ---- scores and files ----------------------------------------------------------------------------

FOUR = [
    about("a b c", "b c", identity="1"),
    about("a b c", "c", identity="2"),
    about("a b", identity="3"),
    about("a b", identity="4"),
]
ANSWERS = [
    SpanAnswer((Candidate(2, 3, 1.0),), -3.0),  # "b": F1 2/3
    SpanAnswer((Candidate(4, 5, 1.0),), 1.0),  # "c", right, but thought unanswerable
    SpanAnswer((Candidate(2, 3, 1.0),), 2.0),  # rightly so
    SpanAnswer((Candidate(2, 3, 1.0),), -1.0),
]  # wrongly answered


def test_scores_of_squad_2_are_those_worked_by_hand() -> None:
    found = Span.from_name("squad-2.0").score(FOUR, ANSWERS)
    assert found == pytest.approx(
        {
            "f1": (2 / 3 + 0 + 1 + 0) / 4,
            "exact_match": 1 / 4,
            "has_answer_f1": 1 / 3,
            "has_answer_exact_match": 0,
            "no_answer_f1": 1 / 2,
            "no_answer_exact_match": 1 / 2,
            "best_f1": (2 / 3 + 0 + 1 + 1) / 4,
            "best_f1_threshold": -3.0,  # answer the first alone
            "best_exact_match": 2 / 4,
            "best_exact_match_threshold": pytest.approx(-3.0),
        }
    )  # or just below: answer none


def test_a_tuned_task_scores_its_best_on_the_same_examples_and_remembers_it() -> None:
    task = Span.from_name("squad-2.0")
    tuned = task.fit_threshold(FOUR, ANSWERS)
    assert tuned.score(FOUR, ANSWERS)["f1"] == pytest.approx(task.score(FOUR, ANSWERS)["best_f1"])
    assert Span.from_settings(json.loads(json.dumps(tuned.settings()))) == tuned
    assert Span.from_name("squad-1.1").fit_threshold(FOUR[:2], ANSWERS[:2]) == Span.from_name(
        "squad-1.1"
    )


def test_scores_of_squad_1_ask_for_an_answer_whatever_the_odds() -> None:
    assert Span.from_name("squad-1.1").score(FOUR[:2], ANSWERS[:2]) == pytest.approx(
        {"f1": (2 / 3 + 1) / 2, "exact_match": 1 / 2}
    )


def test_saying_nothing_scores_the_share_of_questions_without_answer() -> None:
    assert Span.from_name("squad-2.0").baseline(FOUR) == 0.5
    assert Span.from_name("squad-1.1").baseline(FOUR[:2]) == 0.0


def test_a_record_holds_the_answer_its_probability_and_the_alternatives() -> None:
    answer = SpanAnswer((Candidate(2, 5, 0.75), Candidate(2, 3, 0.25)), 0.0)
    assert Span.from_name("squad-1.1").record(FOUR[0], answer) == {
        "id": "1",
        "answer": "b c",
        "probability": 0.75,
        "start": 2,
        "alternatives": [{"answer": "b", "probability": 0.25, "start": 2}],
    }
    silent = Span.from_name("squad-2.0", null_threshold=-1.0).record(FOUR[0], answer)
    assert (silent["answer"], silent["probability"], silent["null_odds"]) == ("", 0.5, 0.0)
    assert [other["answer"] for other in silent["alternatives"]] == ["b c", "b"]


def test_the_files_for_the_official_evaluation_hold_texts_and_probabilities_by_id(
    tmp_path: Path,
) -> None:
    write_squad(tmp_path / "predictions.json", Span.from_name("squad-2.0"), FOUR, ANSWERS)
    assert json.loads((tmp_path / "predictions.json").read_text()) == {
        "1": "b",
        "2": "",
        "3": "",
        "4": "b",
    }
    null = json.loads((tmp_path / "predictions.na_prob.json").read_text())
    assert null == pytest.approx(
        {str(n): 1 / (1 + math.exp(-odds)) for n, odds in enumerate([-3, 1, 2, -1], start=1)}
    )
    write_squad(tmp_path / "answers.json", Span.from_name("squad-1.1"), FOUR[:2], ANSWERS[:2])
    assert not (tmp_path / "answers.na_prob.json").exists()


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "train", "dev"),
    [
        ("squad-1.1", "train-v1.1.json", "dev-v1.1.json"),
        ("squad-2.0", "train-v2.0.json", "dev-v2.0.json"),
        ("mrqa", "train.jsonl.gz", "dev.jsonl"),
        ("triviaqa", "train/TriviaQA-web.jsonl.gz", "dev/TriviaQA-web.jsonl.gz"),
        ("span", "train.csv", "dev.parquet"),
    ],
)
def test_a_folder_in_the_official_layout_is_enough(
    tmp_path: Path, name: str, train: str, dev: str
) -> None:
    for part in (train, dev):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).touch()
    found = Span.from_name(name).locate(str(tmp_path))
    assert [str(t) for t in found.train] == [str(tmp_path / train)]
    assert {part: [str(t) for t in tables] for part, tables in found.dev.items()} == {
        "dev": [str(tmp_path / dev)]
    }
    (tmp_path / train).unlink()
    assert Span.from_name(name).locate(str(tmp_path)).train == ()


def test_a_folder_without_the_files_is_refused_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=wording("a_folder_without_the_files_is_refused_with_their_names")
    ):
        Span.from_name("squad-2.0").locate(str(tmp_path))


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match=wording("settings_that_cannot_be_are_refused")):
        Span.from_name("squad-2")
    with pytest.raises(UserError, match=wording("settings_that_cannot_be_are_refused_2")):
        Span.from_name("squad-1.1", head_kind="double")
    with pytest.raises(UserError, match=wording("settings_that_cannot_be_are_refused_3")):
        Span.from_name("squad-1.1", answer_length=0)


# ---- the whole way -------------------------------------------------------------------------------


@pytest.mark.parametrize("head_kind", ["joint", "simple"])
@pytest.mark.usefixtures("few_threads")
def test_eight_questions_are_learnt_by_heart(tokenizer: WordPiece, head_kind: str) -> None:
    task = Span.from_name("squad-2.0", head_kind=head_kind, stride=4)
    answers = {
        "k": "b",
        "l": "b c",
        "m": "d e f",
        "n": "j",
        "o": "h i",
        "p": "f",
        "q": None,
        "r": None,
    }
    examples = [
        about("a b c d e f g h i j", answer, question=question, identity=question)
        for question, answer in answers.items()
    ]
    torch.manual_seed(0)
    shape = EncoderShape(
        layers=2,
        width=32,
        heads=2,
        feedforward=64,
        embedding=32,
        positions=16,
        dropout=0.0,
        attention_dropout=0.0,
    )
    network = Network(ElectraEncoder(shape, vocabulary=tokenizer.size), task.head(32, dropout=0.0))
    training = task.features(examples, tokenizer, length=12, training=True)
    batch = training.collate(np.arange(len(training)))
    optimizer, loss = torch.optim.Adam(network.parameters(), lr=3e-3), torch.tensor(torch.inf)
    for _ in range(800):  # how many it takes depends on the processor's last digits
        optimizer.zero_grad()
        loss = network(batch) / len(training)
        loss.backward()
        optimizer.step()
        if loss < 0.01:
            break
    assert loss < 0.02

    features = task.features(examples, tokenizer, length=12, training=False)
    with torch.no_grad():
        outputs = network.eval().outputs(features.collate(np.arange(len(features))))
    units = [
        {name: value[row].numpy() for name, value in outputs.items()}
        for row in range(len(features))
    ]
    scores = task.score(examples, task.decode(examples, features, units))
    assert (scores["exact_match"], scores["f1"], scores["no_answer_f1"]) == (1.0, 1.0, 1.0)
