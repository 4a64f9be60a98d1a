"""Tokenizers of other makers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from electra.config import UserError
from electra.data.wordpiece import SPECIAL_TOKENS, WordPiece
from tests.wording import wording_of

wording = wording_of(__file__)

PROSE = ["The quick brown fox jumps over the lazy dog, and a cat sat on it."]
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


def test_the_tokens_that_are_missing_are_named_all_at_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "few", build(BYTE_LEVEL, special=["[UNK]", "<s>"]), None)
    with pytest.raises(UserError, match=wording("the_tokens_that_are_missing")):
        WordPiece.load(folder)
    with pytest.raises(UserError, match=wording("a_file_is_no_folder")):
        WordPiece.load(folder / "tokenizer.json")
