from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from electra.config import UserError
from electra.data.tables import Table, find_table
from electra.data.wordpiece import WordPiece
from electra.tasks.conll import Sentence
from electra.tasks.features import IGNORE_INDEX, Features, TaskBatch
from electra.tasks.input_rows import input_row
from electra.tasks.tag import Tag
from electra.tasks.tag_heads import BiLSTMHead, TagHead
from electra.tasks.tag_windows import windows
from electra.tasks.task import Network
from tests.tasks.toys import answers, overfit, toy_encoder, toy_tokenizer, written
from tests.wording import wording_of

wording = wording_of(__file__)


def sentence(text: str, tags: str | None = None, where: str = "train.txt:1") -> Sentence:
    return Sentence(where, tuple(text.split()), None if tags is None else tuple(tags.split()))


EIGHT = [
    sentence("anna berg lives in paris .", "B-PER I-PER O O B-LOC O"),
    sentence("carla visits rome .", "B-PER O B-LOC O"),
    sentence("acme corp sells the dog .", "B-ORG I-ORG O O O O"),
    sentence("the cat sat .", "O O O O"),
    sentence(
        "zoe visits acme corp .", "B-PER O B-ORG I-ORG O"
    ),  # zoe is three letters to the toy vocabulary
    sentence("rome paris", "B-LOC B-LOC"),
    sentence("carla berg ran home", "B-PER I-PER O O"),
    sentence("the dog lives in rome", "O O O O B-LOC"),
]


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    return toy_tokenizer()


@pytest.fixture(scope="module")
def ner() -> Tag:
    return Tag.from_name("ner").fit_labels(EIGHT)


# ---- learning what there is ----------------------------------------------------------------------


def test_labels_are_iob2_whatever_the_scheme_of_the_data() -> None:
    for tags in ("I-PER I-PER B-PER", "B-PER I-PER B-PER", "B-PER E-PER S-PER"):
        assert Tag.from_name("ner").fit_labels([sentence("anna berg carla", tags)]).labels == (
            "O",
            "B-PER",
            "I-PER",
        )


def test_officially_labels_are_bioes_and_answers_in_the_scheme_of_the_data() -> None:
    task = Tag.from_name("ner", conventions="official")
    task = task.fit_labels([sentence("anna berg carla", "I-PER I-PER B-PER")])
    assert task.labels == ("O", "B-PER", "I-PER", "E-PER", "S-PER")
    said = sentence("anna berg carla", "I-PER I-PER B-PER")
    assert task.targets(said) == ["B-PER", "E-PER", "S-PER"]
    record = task.record(said, answer(task, "B-PER E-PER S-PER"))
    assert record["tags"] == ["I-PER", "I-PER", "B-PER"]


def test_a_longer_entity_than_any_in_training_can_be_named() -> None:
    task = Tag.from_name("ner").fit_labels([sentence("anna sat", "B-PER O")])
    task.check([sentence("anna berg", "B-PER I-PER", where="dev.txt:1")])


def test_what_was_found_is_announced(ner: Tag) -> None:
    assert ner.description == "entities of 3 types in IOB2, scored by F1: LOC, ORG, PER"
    plain = Tag.from_name("tag").fit_labels([sentence("the dog sat", "DET NOUN VERB")])
    assert plain.description == "3 tags without entities, scored by accuracy: DET, NOUN, VERB"
    assert plain.metric == "accuracy"


def test_a_task_survives_its_settings(ner: Tag) -> None:
    assert Tag.from_settings(json.loads(json.dumps(ner.settings()))) == ner


def test_a_stray_tag_does_not_turn_entities_into_plain_tags() -> None:
    data = [*EIGHT, sentence("the dog", "O PERSON", where="train.txt:77")]
    for name in ("ner", "tag"):
        with pytest.raises(
            UserError, match=wording("a_stray_tag_does_not_turn_entities_into_plain_tags")
        ):
            Tag.from_name(name).fit_labels(data)
    assert Tag.from_name("tag", scheme="plain").fit_labels(data).metric == "accuracy"


@pytest.mark.parametrize("tags", ["o b-per i-per", "O PER-B PER-I", "O B_PER I_PER"])
def test_tags_that_look_like_entities_are_plain_tags_and_are_warned_of(tags: str) -> None:
    data = [sentence("the dog sat", tags)]
    with pytest.warns(UserWarning, match=wording("tags_that_look_like_entities_are_warned_of")):
        assert Tag.from_name("tag").fit_labels(data).scheme == "plain"


@pytest.mark.parametrize(
    ("tags", "scheme"), [("o b-per i-per", "plain"), ("X-S b-per DET", "auto"), ("O DET X", "auto")]
)
@pytest.mark.filterwarnings("error")
def test_tags_that_are_meant_to_be_plain_are_not_warned_of(tags: str, scheme: str) -> None:
    data = [sentence("the dog sat", tags)]
    assert Tag.from_name("tag", scheme=scheme).fit_labels(data).scheme == "plain"


@pytest.mark.parametrize("tag", ["B-MISC", "PERSON"])
def test_a_tag_that_training_never_saw_is_refused_with_those_it_saw(ner: Tag, tag: str) -> None:
    dev = [sentence("the cat", f"O {tag}", where="dev.txt:9")]
    with pytest.raises(
        UserError,
        match=f"dev.txt:9: 'cat' in this sentence is tagged '{tag}', which training never "
        "saw; it saw O, B-LOC, I-LOC",
    ):
        ner.check(dev)


def test_a_text_that_is_only_to_be_tagged_may_carry_tags_of_another_kind(
    ner: Tag, tokenizer: WordPiece
) -> None:
    found = ner.features([sentence("the cat", "O B-MISC")], tokenizer, length=16, training=False)
    assert found.token_labels["word"].tolist() == [IGNORE_INDEX, 0, 1, IGNORE_INDEX]


def test_training_data_with_one_tag_is_refused() -> None:
    with pytest.raises(UserError, match=wording("training_data_with_one_tag_is_refused")):
        Tag.from_name("ner").fit_labels([sentence("the cat", "O O")])


def test_an_unknown_scheme_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        UserError, match=wording("an_unknown_scheme_is_refused_with_those_there_are")
    ):
        Tag.from_name("ner", scheme="bio")


@pytest.mark.parametrize(
    ("labels", "scheme", "metric"),
    [
        (("O", "B-LOC", "I-LOC"), "iob2", "f1"),
        (("O", "S-LOC", "B-LOC", "I-LOC", "E-LOC"), "bioes", "f1"),
        (("DET", "NOUN"), "plain", "accuracy"),
    ],
)
def test_the_labels_of_a_model_that_others_trained_say_how_it_is_scored(
    labels: tuple[str, ...], scheme: str, metric: str
) -> None:
    task = Tag.from_name("tag", labels=labels)
    assert (task.scheme, task.metric) == (scheme, metric)
    if scheme != "plain":
        task.check([sentence("paris rome", "B-LOC I-LOC")])  # in whichever scheme the file is


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("train.txt", "dev.txt", "test.txt"),
        ("eng.train", "eng.testa", "eng.testb"),
        ("train.jsonl", "dev.jsonl", "test.jsonl"),
    ],
)
def test_a_folder_is_found_in_its_official_layout(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        written(tmp_path / name, "a O\n")
    files = Tag.from_name("ner").locate(str(tmp_path))

    def called(tables: tuple[Table, ...]) -> list[str]:
        return [found.source.name for found in tables]

    assert [called(files.train), called(files.dev["dev"]), called(files.test["test"])] == [
        [name] for name in names
    ]


def test_chunks_without_a_dev_set_are_scored_on_a_part_called_test(tmp_path: Path) -> None:
    for name in ("train.txt", "test.txt"):
        written(tmp_path / name, "a O\n")
    assert list(Tag.from_name("chunk").locate(str(tmp_path)).dev) == ["test"]


def test_files_that_could_both_be_meant_are_refused(tmp_path: Path) -> None:
    for name in ("train.txt", "train.jsonl"):
        written(tmp_path / name, "a O\n")
    with pytest.raises(UserError, match=wording("files_that_could_both_be_meant_are_refused")):
        Tag.from_name("ner").locate(str(tmp_path))


def test_a_folder_without_data_says_what_it_holds(tmp_path: Path) -> None:
    written(tmp_path / "README", "")
    with pytest.raises(UserError, match=wording("a_folder_without_data_says_what_it_holds")):
        Tag.from_name("ner").locate(str(tmp_path))


def test_the_name_of_a_column_of_words_says_nothing_of_conll_columns(tmp_path: Path) -> None:
    task = Tag.from_name("ner", words="said")
    columns = written(tmp_path / "a.conll", "anna B-PER\nsat O\n")
    rows = written(tmp_path / "a.jsonl", '{"said": ["anna", "sat"], "tags": ["B-PER", "O"]}\n')
    for path in (columns, rows):
        (said,) = task.read([find_table(path)], labelled=True)
        assert (said.words, said.tags) == (("anna", "sat"), ("B-PER", "O"))


def test_the_number_of_a_column_of_words_says_nothing_of_rows(tmp_path: Path) -> None:
    task = Tag.from_name("ner", words="1", column=2)
    columns = written(tmp_path / "a.conll", "1 anna B-PER\n2 sat O\n")
    rows = written(tmp_path / "a.jsonl", '{"tokens": ["anna", "sat"], "tags": ["B-PER", "O"]}\n')
    for path in (columns, rows):
        (said,) = task.read([find_table(path)], labelled=True)
        assert (said.words, said.tags) == (("anna", "sat"), ("B-PER", "O"))
    assert input_row(task, "anna sat", "row 1") == {"tokens": ["anna", "sat"]}


# ---- features ------------------------------------------------------------------------------------


def test_the_first_token_of_a_word_carries_its_label_and_the_others_none(
    ner: Tag, tokenizer: WordPiece
) -> None:
    found = ner.features([sentence("zoe sat", "B-PER O")], tokenizer, length=16, training=True)
    assert tokenizer.tokens(found.input_ids.tolist()) == [
        "[CLS]",
        "z",
        "##o",
        "##e",
        "sat",
        "[SEP]",
    ]
    assert found.token_labels["word"].tolist() == [
        IGNORE_INDEX,
        0,
        IGNORE_INDEX,
        IGNORE_INDEX,
        1,
        IGNORE_INDEX,
    ]
    assert found.token_labels["target"].tolist() == [
        IGNORE_INDEX,
        ner.labels.index("B-PER"),
        IGNORE_INDEX,
        IGNORE_INDEX,
        0,
        IGNORE_INDEX,
    ]
    assert ner.weight(found).tolist() == [2.0]


def test_a_word_without_tokens_becomes_unknown(ner: Tag, tokenizer: WordPiece) -> None:
    found = ner.features([sentence("the \u200b sat")], tokenizer, length=16, training=False)
    assert tokenizer.tokens(found.input_ids.tolist()) == ["[CLS]", "the", "[UNK]", "sat", "[SEP]"]


@given(st.lists(st.integers(1, 6), max_size=60), st.integers(6, 20))
def test_windows_decide_every_word_once_and_read_no_more_than_fits(
    sizes: list[int], room: int
) -> None:
    found = windows(sizes, room=room)
    assert [word for window in found for word in range(window.first, window.last)] == list(
        range(len(sizes))
    )
    for window in found:
        assert sum(sizes[window.start : window.end]) <= room
        assert window.start <= window.first <= window.last <= window.end
    assert all(
        before.start < after.start and before.end < after.end for before, after in pairwise(found)
    )


def test_a_word_of_a_long_sentence_is_decided_with_text_to_either_side() -> None:
    for window in windows([1] * 1000, room=100)[1:-1]:
        assert window.first - window.start == window.end - window.last == 25


def test_a_word_longer_than_a_row_keeps_its_first_tokens_and_is_counted_as_cut(
    ner: Tag, tokenizer: WordPiece
) -> None:
    found = ner.features(
        [sentence(f"the {'z' * 30} sat", "O O O")], tokenizer, length=10, training=True
    )
    assert found.lengths.max() <= 10
    assert sorted(word for word in found.token_labels["word"] if word != IGNORE_INDEX) == [0, 1, 2]
    assert found.truncated.sum() == 1


def said_by_targets(task: Tag, examples: list[Sentence], features: Features) -> list[np.ndarray]:
    """The answers of a network that is sure of every target."""
    outputs = []
    for begin, end in pairwise(features.offsets):
        target = features.token_labels["target"][begin:end]
        logits = 20.0 * (target[:, None] == np.arange(len(task.labels)))
        outputs.append({"logits": np.pad(logits, ((0, 3), (0, 0)))})  # rows arrive padded
    return task.decode(examples, features, outputs)


@pytest.mark.parametrize("length", [8, 12, 64])
def test_tags_come_back_to_their_words_however_the_sentence_was_cut(
    ner: Tag, tokenizer: WordPiece, length: int
) -> None:
    long = sentence(
        " ".join(" ".join(s.words) for s in EIGHT), " ".join(" ".join(s.tags or ()) for s in EIGHT)
    )
    examples = [*EIGHT, long, sentence("", "")]
    features = ner.features(examples, tokenizer, length=length, training=True)
    found = said_by_targets(ner, examples, features)
    assert [ner.predicted_tags(answer) for answer in found] == [
        list(example.tags or ()) for example in examples
    ]
    assert ner.score(examples, found) == {
        "precision": 1.0,
        "recall": 1.0,
        "f1": 1.0,
        "accuracy": 1.0,
    }
    assert not features.truncated.any()


# ---- answers -------------------------------------------------------------------------------------


def answer(task: Tag, tags: str, sure: float = 1.0) -> np.ndarray:
    chosen = np.array([task.labels.index(tag) for tag in tags.split()])
    rest = (1 - sure) / (len(task.labels) - 1)
    return np.where(chosen[:, None] == np.arange(len(task.labels)), sure, rest)


def test_a_record_names_entities_in_the_scheme_of_the_training_data() -> None:
    task = Tag.from_name("ner").fit_labels([sentence("anna berg rome", "I-PER I-PER I-LOC")])
    record = task.record(
        sentence("carla berg visits paris"), answer(task, "B-PER I-PER O B-LOC", sure=0.9)
    )
    assert record == {
        "words": ["carla", "berg", "visits", "paris"],
        "tags": ["I-PER", "I-PER", "O", "I-LOC"],
        "probabilities": [0.9] * 4,
        "entities": [
            {"type": "PER", "start": 0, "end": 2, "text": "carla berg", "probability": 0.81},
            {"type": "LOC", "start": 3, "end": 4, "text": "paris", "probability": 0.9},
        ],
    }


def test_accuracy_counts_words_and_f1_counts_entities(ner: Tag) -> None:
    gold = [sentence("anna berg sat", "B-PER I-PER O")]
    assert ner.score(gold, [answer(ner, "B-PER O O")]) == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "accuracy": 2 / 3,
    }


def test_the_best_answer_that_ignores_the_text_is_no_entity_or_the_commonest_tag(ner: Tag) -> None:
    assert ner.baseline(EIGHT) == 0.0
    plain = [sentence("the dog sat on", "DET NOUN NOUN VERB")]
    assert Tag.from_name("tag").fit_labels(plain).baseline(plain) == 0.5


def test_several_models_answer_with_the_mean_of_their_probabilities(ner: Tag) -> None:
    sure, unsure = answer(ner, "B-PER", sure=0.9), answer(ner, "B-LOC", sure=0.6)
    assert ner.predicted_tags(ner.combine([sure, unsure])) == ["B-PER"]
    assert ner.combine([sure, unsure]).sum() == pytest.approx(1.0)


# ---- heads ---------------------------------------------------------------------------------------


def test_the_head_is_what_transformers_has(ner: Tag) -> None:
    from transformers import ElectraConfig, ElectraForTokenClassification

    head = ner.head(32, dropout=0.1)
    stock = ElectraForTokenClassification(
        ElectraConfig(
            vocab_size=50,
            embedding_size=16,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            **ner.config(),
        )
    ).eval()
    assert type(head) is TagHead
    assert type(stock).__name__ == f"ElectraFor{head.architecture}"
    assert {name: p.shape for name, p in stock.classifier.named_parameters()} == {
        name: p.shape for name, p in head.output.named_parameters()
    }
    assert stock.config.id2label[1] == "B-LOC"


def test_officially_a_tagger_has_no_dropout_before_its_output() -> None:
    for conventions, rate in (("default", 0.1), ("official", 0.0)):
        task = Tag.from_name("ner", conventions=conventions).fit_labels(EIGHT)
        assert task.head(32, dropout=0.1).dropout.rate == rate


def test_the_loss_is_summed_over_labelled_tokens_alone() -> None:
    head = TagHead(4, labels=3, dropout=0.0)
    nn.init.zeros_(head.output.weight)
    target = torch.tensor([[IGNORE_INDEX, 2, IGNORE_INDEX, 0, IGNORE_INDEX]])
    batch = TaskBatch(target, target, target > -1000, {"target": target})
    assert head.loss(torch.randn(1, 5, 4), batch).item() == pytest.approx(2 * np.log(3))


def test_padding_does_not_reach_the_tokens_that_a_bilstm_reads(
    ner: Tag, tokenizer: WordPiece
) -> None:
    torch.manual_seed(0)
    head = BiLSTMHead(8, labels=3, lstm_width=6, dropout=0.0).eval()
    features = ner.features([EIGHT[0], EIGHT[5]], tokenizer, length=16, training=True)
    batch = features.collate(np.array([0, 1]))
    hidden = torch.randn(*batch.input_ids.shape, 8)
    short = int(batch.attention_mask[1].sum())
    alone = features.collate(np.array([1]))
    expected = head(hidden[1:, :short], alone)["logits"][0]
    torch.testing.assert_close(head(hidden, batch)["logits"][1, :short], expected)


@pytest.mark.parametrize("frozen", ["", "concat-last-2"])
def test_a_tagger_learns_eight_sentences_by_heart(
    tokenizer: WordPiece, frozen: str, few_threads: None
) -> None:
    task = Tag.from_name("ner", frozen=frozen, lstm_width=16).fit_labels(EIGHT)
    features = task.features(EIGHT, tokenizer, length=32, training=True)
    torch.manual_seed(0)
    network = Network(
        toy_encoder(tokenizer), task.head(64 if frozen else 32, dropout=0.0), frozen=frozen
    )
    assert (network.architecture is None) == bool(frozen)
    assert overfit(network, task, features, steps=80, rate=1e-2 if frozen else 3e-3) < 0.05
    assert task.score(EIGHT, answers(network, task, EIGHT, features))["f1"] == 1.0
