"""The files of a sentence-transformers folder: what is written is read again, the rest refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra.config import UserError
from electra.tasks.embed_options import EmbedOptions
from electra.tasks.models import load_tuned
from electra.tasks.sentence_transformer import (
    MODULES,
    Pooling,
    complete_options,
    read_pooling,
    write_pooling,
)
from tests.tasks.toys import tiny_model


@pytest.mark.parametrize(
    "pooling",
    [Pooling(length=32), Pooling(pool="cls", normalize=True, length=16)],
    ids=["mean", "cls"],
)
def test_pooling_that_was_written_is_read_again(pooling: Pooling, tmp_path: Path) -> None:
    write_pooling(tmp_path, pooling, width=8)
    assert read_pooling(tmp_path) == pooling


def test_the_newest_version_of_the_library_writes_other_keys(tmp_path: Path) -> None:
    write_pooling(tmp_path, Pooling(), width=8)
    config = {"embedding_dimension": 8, "pooling_mode": "cls", "include_prompt": True}
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(config), encoding="utf8")
    (tmp_path / "sentence_bert_config.json").write_text("{}", encoding="utf8")
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 24}', encoding="utf8")
    assert read_pooling(tmp_path) == Pooling(pool="cls", length=24)


def test_another_folder_states_no_pooling(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
    options = complete_options(EmbedOptions(), tmp_path, positions=64)
    assert options == EmbedOptions(pool="mean", normalize=False, length=64)


def test_options_that_are_given_win_over_what_the_folder_states(tmp_path: Path) -> None:
    write_pooling(tmp_path, Pooling(normalize=True, length=32), width=8)
    stated = complete_options(EmbedOptions(), tmp_path, positions=64)
    assert (stated.pool, stated.normalize, stated.length) == ("mean", True, 32)
    given = EmbedOptions(pool="cls", normalize=False, length=8)
    assert complete_options(given, tmp_path, positions=64) == given
    none = complete_options(EmbedOptions(length=0), tmp_path, positions=64)
    assert none.length == 0  # and not what the folder states: `embed` refuses it
    tokens = complete_options(EmbedOptions(pool="tokens"), tmp_path, positions=64)
    assert not tokens.normalize


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (MODULES, [{"type": "sentence_transformers.models.Dense", "path": "3"}], "module Dense"),
        (MODULES, {"a": 1}, "a list of modules"),
        (MODULES, [{"type": "x.Pooling", "path": "../elsewhere"}], "inside of"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pools by max"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "prompt"),
    ],
)
def test_what_electra_does_not_compute_is_refused(
    file: str, content: Any, message: str, tmp_path: Path
) -> None:
    write_pooling(tmp_path, Pooling(), width=8)
    (tmp_path / file).write_text(json.dumps(content), encoding="utf8")
    with pytest.raises(UserError, match=message):
        read_pooling(tmp_path)


def test_an_embedder_answers_nothing_and_says_so(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny")
    write_pooling(model, Pooling(), width=32)
    with pytest.raises(UserError, match="an embedder, which has vectors alone"):
        load_tuned(model)


def test_embed_does_as_the_folder_states(tmp_path: Path) -> None:
    import electra

    model = tiny_model(tmp_path / "tiny")
    plain = np.asarray(electra.embed(model, ["anna sat on the mat", "why"]))
    (model / "checksums.sha256").unlink()
    write_pooling(model, Pooling(normalize=True, length=32), width=32)
    scaled = np.asarray(electra.embed(model, ["anna sat on the mat", "why"]))
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert scaled == pytest.approx(plain / lengths, abs=1e-6)
