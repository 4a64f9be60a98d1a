"""What we write of a tokenizer makes in transformers the rows that tasks make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from electra.config import UserError
from electra.data.stock_tokenizer import StockTokenizer, compare_rows, warn_of_other_rows
from electra.data.wordpiece import SPECIAL_TOKENS, WordPiece
from tests.wording import wording_of

wording = wording_of(__file__)

PROSE = ["The quick brown fox jumps over the lazy dog, and a cat sat on it."]
NAMES = ("input_ids", "token_type_ids", "attention_mask")
TEXTS = ("the Quick <e1> fox </e1> jumps", " a Lazy dog")
WORD_PIECE, BYTE_LEVEL = "word_piece", "byte_level"


def build(kind: str, *, special: list[str] = SPECIAL_TOKENS) -> Tokenizer:
    """A tokenizer without a post-processor."""
    if kind == WORD_PIECE:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=alphabet
        )
    tokenizer.train_from_iterator(PROSE, trainer)
    return tokenizer


def write(folder: Path, tokenizer: Tokenizer, config: dict[str, object] | None) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


ROBERTA = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2), add_prefix_space=False)
CONFIGS = {
    "none": None,
    "plain": {"tokenizer_class": "TokenizersBackend"},
    "of another model": {"tokenizer_class": "RobertaTokenizer"},
    "contradicts": {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("processor", [None, ROBERTA], ids=["no processor", "Roberta's"])
@pytest.mark.parametrize("kind", [WORD_PIECE, BYTE_LEVEL])
def test_transformers_makes_our_rows_from_the_folder_that_we_write(
    kind: str, processor: object, config: str, tmp_path: Path
) -> None:
    backend = build(kind)
    backend.add_special_tokens(["<e1>", "</e1>"])
    if processor is not None:
        backend.post_processor = processor
    tokenizer = WordPiece.load(write(tmp_path / "theirs", backend, CONFIGS[config]))
    tokenizer.copy_to(tmp_path / "ours", model_input_names=NAMES)
    (tmp_path / "ours" / "config.json").write_text('{"model_type": "electra"}')
    stock = StockTokenizer(tmp_path / "ours")
    for texts in (TEXTS, TEXTS[:1], TEXTS[1:]):
        assert stock.row(texts) == tokenizer.row(texts)
    assert {stock.tokenizer.convert_tokens_to_ids(mark) for mark in ("<e1>", "</e1>")} <= set(
        tokenizer.row(TEXTS)[0]
    )
    copied = WordPiece.load(tmp_path / "ours")
    assert copied.row(TEXTS) == tokenizer.row(TEXTS)
    assert copied.fingerprint == tokenizer.fingerprint


def test_a_byte_level_tokenizer_keeps_what_trims_the_spaces_of_its_offsets(tmp_path: Path) -> None:
    backend = build(BYTE_LEVEL)
    backend.post_processor = ROBERTA
    tokenizer = WordPiece.load(write(tmp_path / "theirs", backend, None))
    tokenizer.copy_to(tmp_path / "ours")
    stock = StockTokenizer(tmp_path / "ours").tokenizer("a fox", return_offsets_mapping=True)
    expected = tokenizer.backend_tokenizer.encode("a fox", add_special_tokens=False).offsets
    assert stock["offset_mapping"][1:-1] == expected
    assert (2, 4) in expected  # not (1, 4), with the space


@pytest.mark.parametrize("kind", [WORD_PIECE, BYTE_LEVEL])
def test_the_inputs_of_a_networks_family_are_those_that_its_tokenizer_gives(
    kind: str, tmp_path: Path
) -> None:
    tokenizer = WordPiece.load(write(tmp_path / "theirs", build(kind), None))
    for names in (NAMES, ("input_ids", "attention_mask")):
        folder = tmp_path / str(len(names))
        tokenizer.copy_to(folder, model_input_names=names)
        assert set(StockTokenizer(folder).tokenizer("a")) == set(names)


def test_a_text_cannot_contain_a_token_with_a_role_but_other_special_tokens(
    tmp_path: Path,
) -> None:
    backend = build(BYTE_LEVEL)
    backend.add_special_tokens(["<e1>"])
    backend.add_tokens(["<brand>"])
    tokenizer = WordPiece.load(write(tmp_path / "theirs", backend, None))
    (ids,) = tokenizer.encode(["[SEP] <e1>[MASK] <brand>[PAD][CLS][UNK]"])
    marks = [backend.token_to_id("<e1>"), backend.token_to_id("<brand>")]
    assert [token_id for token_id in ids if token_id in marks] == marks
    assert not set(ids) & set(range(5))


def test_a_model_of_words_that_knows_the_tokens_with_a_role_reads_them_as_unknown(
    tmp_path: Path,
) -> None:
    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, "a", "dog"))}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(SPECIAL_TOKENS)
    tokenizer = WordPiece(backend.to_str())
    (ids,) = tokenizer.encode(["a [SEP] dog [MASK]"])
    assert tokenizer.tokens(ids) == ["a", "[UNK]", "dog", "[UNK]"]


def test_the_tokens_that_are_missing_are_named_all_at_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "few", build(BYTE_LEVEL, special=["[UNK]", "<s>"]), None)
    with pytest.raises(UserError, match=wording("the_tokens_that_are_missing")):
        WordPiece.load(folder)
    with pytest.raises(UserError, match=wording("a_file_is_no_folder")):
        WordPiece.load(folder / "tokenizer.json")


def test_rows_that_transformers_makes_otherwise_are_described(tmp_path: Path) -> None:
    folder = write(tmp_path / "theirs", build(WORD_PIECE), {"tokenizer_class": "TokenizersBackend"})
    tokenizer = WordPiece.load(folder)
    found = compare_rows(tokenizer, folder, with_segments=True)
    assert found.single.endswith("[SEP]")
    assert not any(found.stock_segments or [1])
    with pytest.warns(UserWarning, match=wording("rows_that_transformers_makes_otherwise")):
        warn_of_other_rows(tokenizer, folder, NAMES)
