"""docs/finetuning.md lists what `--recipe official` does otherwise than the official code.

Each row of that table has a check here, which fails as soon as the row is no longer true of us.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from electra.config import UserError
from electra.engine.optimizer import learning_rate_factor
from electra.finetuning.recipe import FinetuneConfig
from electra.tasks import find_task
from electra.tasks.conll import Sentence
from electra.tasks.entities import get_entities
from electra.tasks.features import Features, Row, encode_pair, epoch_batches
from electra.tasks.glue import Glue
from electra.tasks.models import load_tuned
from electra.tasks.span import Candidate, Span, SpanAnswer
from electra.tasks.span_files import Question
from electra.tasks.span_heads import SimpleHead
from electra.tasks.span_windows import encode_questions
from electra.tasks.tag import Tag
from electra.tasks.texts import Text
from tests.finetuning.test_recipe import load_config
from tests.tasks.toys import BY_HEART, TOYS, toy_tokenizer

DOCUMENT = Path(__file__).parents[2] / "docs" / "finetuning.md"
BEGIN, END = "<!-- official: each row is checked by tests/finetuning/test_official.py -->", "<!--"
CHECKS: dict[str, Callable[[], None]] = {}
OFFICIAL = load_config("official")


def checks(row: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the check of a row of the table by its first column."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        CHECKS[row] = check
        return check

    return register


def rows_of_the_table() -> list[str]:
    content = DOCUMENT.read_text(encoding="utf8").split(BEGIN)[1].split(END)[0]
    rows = [line for line in content.splitlines() if line.startswith("|")]
    return [row.split("|")[1].strip() for row in rows[2:]]


def test_every_row_of_the_table_has_a_check_and_every_check_a_row() -> None:
    assert sorted(rows_of_the_table()) == sorted(CHECKS)


# ---- training ------------------------------------------------------------------------------------


@checks("first update")
def warm_up_counts_from_1() -> None:
    optimizer = OFFICIAL.optimizer(steps=100)
    assert learning_rate_factor(optimizer, step=1, max_steps=100) == pytest.approx(1 / 10)
    # The official code multiplies by 0 / 10. From then on, it is one step of warm-up behind.


@checks("warm-up")
def warm_up_is_a_whole_number_of_steps() -> None:
    assert OFFICIAL.optimizer(steps=117).warmup_steps == 12


@checks("part of an epoch")
def steps_are_rounded() -> None:
    assert FinetuneConfig(epochs=1.5).steps(5 * 32) == 8  # of 7.5


@checks("order of examples")
def every_epoch_of_every_seed_has_an_order_of_its_own() -> None:
    orders = set()
    for seed in range(2):
        for epoch in range(2):
            batches = epoch_batches(
                np.full(50, 7), batch_size=8, seed=seed, epoch=epoch, by_length=False
            )
            order = tuple(np.concatenate(batches).tolist())
            assert sorted(order) == list(range(50))
            orders.add(order)
    assert len(orders) == 4


@checks("last batch of an epoch")
def one_batch_is_smaller() -> None:
    batches = epoch_batches(np.full(10, 7), batch_size=4, seed=0, epoch=0, by_length=False)
    assert sorted(map(len, batches)) == [2, 4, 4]


@checks("padding")
def rows_are_padded_to_the_longest_of_their_batch() -> None:
    features = Features.from_rows([Row(0, range(9)), Row(1, range(5))])
    assert features.collate(np.array([0, 1])).input_ids.shape == (2, 9)


@checks("precision")
def precision_follows_the_device() -> None:
    assert OFFICIAL.precision == "auto"


@checks("several tasks in one model")
def one_task_is_learnt_at_a_time() -> None:
    with pytest.raises(UserError, match="unknown"):
        find_task("ner,chunk")


@checks("tasks of ours alone")
def tasks_that_it_lacks_have_its_general_settings() -> None:
    for kind, task in (("glue", "glue/wnli"), ("tag", "ner"), ("classify", "classify")):
        assert load_config("official", kind=kind, task=task) == OFFICIAL
    assert load_config("official", kind="choose", task="swag") == OFFICIAL
    assert load_config("official", kind="tag", task="ner", frozen=True) != OFFICIAL


# ---- texts and pairs -----------------------------------------------------------------------------


@checks("pair that is cut to an odd number of tokens")
def the_second_of_two_equally_long_texts_keeps_one_more() -> None:
    row = encode_pair(0, toy_tokenizer(), [7] * 9, [8] * 9, length=12)
    assert list(row.input_ids).count(7) == 4
    assert list(row.input_ids).count(8) == 5


@checks("empty second text")
def an_empty_second_text_is_a_segment() -> None:
    task, tokenizer = Glue.from_name("glue/rte"), toy_tokenizer()
    features = task.features([Text("x", "dog", "")], tokenizer, length=8, training=False)
    assert features.input_ids.tolist().count(tokenizer.sep) == 2


@checks("scores of STS-B")
def scores_are_in_the_unit_of_the_labels() -> None:
    task = Glue.from_name("glue/sts-b")
    features = task.features([Text("x", "dog", "cat")], toy_tokenizer(), length=8, training=False)
    head = task.head(8, dropout=0.0)
    torch.nn.init.constant_(head.output.bias, 1.0)
    scores = head(torch.zeros(1, 5, 8), features.collate(np.array([0])))["logits"]
    assert scores.tolist() == [[5.0]]


@checks("MNLI's dev data")
def both_dev_sets_are_scored() -> None:
    assert list(Glue.from_name("glue/mnli").layout.dev) == ["matched", "mismatched"]


# ---- questions -----------------------------------------------------------------------------------


def question(context: str, answer: str) -> Question:
    start = context.index(answer)
    return Question("x", "1", "who", context, (answer,), (start, start + len(answer)))


@checks("tokens of an answer")
def an_answer_is_the_tokens_that_share_a_character_with_it() -> None:
    asked = question("zoe.dog.cat", "og.c")  # in the official code the whole word
    ((_, _, paragraph),) = encode_questions([asked], toy_tokenizer())
    dog, cat = toy_tokenizer().encode(["dog", "cat"])
    first, last = paragraph.token_span(asked.span) or (0, 0)
    assert [*paragraph.ids[first : last + 1]] == [*dog, paragraph.ids[first + 1], *cat]


@checks("answer that is not at its offset")
def an_answer_elsewhere_than_at_its_offset_is_refused() -> None:
    from electra.tasks.span_files import locate_answer

    with pytest.raises(UserError, match="should stand at character 3"):
        locate_answer("dog", 3, Question("x", "1", "who", "dog and cat"))


@checks("text of an answer")
def an_answer_is_the_text_from_its_first_to_its_last_character() -> None:
    answer = SpanAnswer((Candidate(4, 7, 1.0),))
    assert Span.from_name("span").text(question("the DOG's mat", "DOG"), answer) == "DOG"


@checks("question without a candidate")
def no_candidate_is_no_answer() -> None:
    assert Span.from_name("span").text(question("the dog", "dog"), SpanAnswer(())) == ""


@checks("threshold for SQuAD 2.0's test set")
def the_threshold_is_that_of_the_dev_data() -> None:
    asked = [question("the dog", "dog"), Question("x", "2", "who", "the dog")]
    said = [SpanAnswer((Candidate(4, 7, 1.0),), odds) for odds in (3.0, 5.0)]
    assert 3 <= Span.from_name("squad-2.0").fit_threshold(asked, said).null_threshold < 5


@checks("`--head simple`")
def the_simple_head_is_berts() -> None:
    task = Span.from_name("squad-2.0", head_kind="simple", conventions="official")
    head = task.head(8, dropout=0.0)
    assert isinstance(head, SimpleHead)
    assert [name for name, _ in head.named_parameters()] == ["output.weight", "output.bias"]


# ---- tags ----------------------------------------------------------------------------------------


def official_tagger(words: str, tags: str) -> Tag:
    task = Tag.from_name("chunk", conventions="official")
    return task.fit_labels([Sentence("x", tuple(words.split()), tuple(tags.split()))])


@checks("labels of tags")
def labels_are_those_of_every_type_in_the_training_data() -> None:
    assert official_tagger("a dog", "O B-NP").labels == ("O", "B-NP", "I-NP", "E-NP", "S-NP")


@checks("sentence longer than a row")
def a_long_sentence_is_read_in_windows() -> None:
    task, said = official_tagger("a dog", "O B-NP"), Sentence("x", ("dog",) * 30, ("O",) * 30)
    features = task.features([said], toy_tokenizer(), length=16, training=True)
    assert len(features) > 1
    assert task.weight(features).sum() == 30


@checks("word without a token")
def a_word_without_a_token_is_unknown() -> None:
    task, tokenizer = official_tagger("a dog", "O B-NP"), toy_tokenizer()
    features = task.features(
        [Sentence("x", ("\u200b", "dog"), None)], tokenizer, length=16, training=False
    )
    assert features.input_ids.tolist()[1] == tokenizer.unk


@checks("tags that break the scheme")
def entities_are_those_of_the_conll_evaluation() -> None:
    assert get_entities(["B-PER", "I-LOC"]) == [("PER", 0, 1), ("LOC", 1, 2)]


@pytest.mark.parametrize("row", CHECKS)
def test_what_the_table_says_of_us_is_true(row: str) -> None:
    CHECKS[row]()


# ---- the rest is as there ------------------------------------------------------------------------


@pytest.mark.usefixtures("few_threads")
def test_a_tagger_of_the_official_recipe_is_saved_and_read_with_its_conventions(
    tiny: Path, tmp_path: Path
) -> None:
    """The fine-tuning itself compares the folder's logits with those of stock transformers."""
    flags = [*BY_HEART, "--max-steps", "3"]
    TOYS["tags"].learnt(tiny, tmp_path / "run", recipe="official", flags=flags)
    config = json.loads((tmp_path / "run/seed-0/model/config.json").read_text())
    assert config["architectures"] == ["ElectraForTokenClassification"]
    assert [*config["label2id"]][:5] == ["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"]
    assert load_tuned(tmp_path / "run").task.conventions == "official"
