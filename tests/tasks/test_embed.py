from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from electra.config import UserError
from electra.data.tables import find_table
from electra.data.wordpiece import WordPiece
from electra.model import huggingface
from electra.model.encoder import Encoder
from electra.tasks import embed as embedding
from electra.tasks.embed import Embedding, embed, read_texts, write_embeddings
from electra.tasks.embed_options import EmbedOptions
from tests.tasks.toys import toy_encoder, toy_tokenizer, written
from tests.wording import wording_of

wording = wording_of(__file__)

TEXTS = ["the dog sat on a mat", "anna", "carla visits rome", "", "he ran home", "zoe"]


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    return toy_tokenizer()


@pytest.fixture(scope="module")
def encoder(tokenizer: WordPiece) -> Encoder:
    return toy_encoder(tokenizer, layers=4).eval()


def found(
    encoder: Encoder, tokenizer: WordPiece, texts: list[str] = TEXTS, **options: str
) -> list[Embedding]:
    return list(embed(encoder, tokenizer, texts, EmbedOptions(length=16, **options)))  # type: ignore[arg-type]


# ---- vectors -------------------------------------------------------------------------------------


def test_layers_are_those_of_stock_transformers(
    encoder: Encoder, tokenizer: WordPiece, tmp_path: Path
) -> None:
    from transformers import ElectraModel

    huggingface.save(huggingface.EncoderOnly(encoder), tmp_path / "model", role="encoder")
    stock = ElectraModel.from_pretrained(tmp_path / "model").eval()
    for text in TEXTS[:2]:
        ids = torch.tensor([[tokenizer.cls, *tokenizer.encode([text])[0], tokenizer.sep]])
        with torch.no_grad():
            layers = [layer[0] for layer in stock(ids, output_hidden_states=True).hidden_states]
        expected = {
            "last": layers[-1],
            "0": layers[0],
            "2": layers[2],
            "sum-last-4": sum(layers[-4:]),
            "concat-last-4": torch.cat(layers[-4:], dim=-1),
        }
        for layer, vectors in expected.items():
            ours = found(encoder, tokenizer, [text], layer=layer, pool="tokens")[0].vectors
            np.testing.assert_allclose(ours, vectors, atol=1e-4, err_msg=layer)


def test_the_first_vector_of_a_causal_encoder_is_refused(tokenizer: WordPiece) -> None:
    with pytest.raises(UserError, match=wording("the_first_vector_of_a_causal_encoder_is_refused")):
        found(toy_encoder(tokenizer, causal=True), tokenizer, pool="cls")


@pytest.mark.parametrize("pool", ["mean", "cls", "tokens"])
def test_a_text_has_the_same_vectors_alone_and_padded_among_longer_ones(
    encoder: Encoder, tokenizer: WordPiece, pool: str
) -> None:
    for text, among in zip(TEXTS, found(encoder, tokenizer, pool=pool), strict=True):
        (alone,) = found(encoder, tokenizer, [text], pool=pool)
        assert among.text == text
        np.testing.assert_allclose(among.vectors, alone.vectors, atol=1e-5)


def test_the_mean_is_over_all_tokens_of_a_text(encoder: Encoder, tokenizer: WordPiece) -> None:
    for mean, first, tokens in zip(
        *(found(encoder, tokenizer, pool=pool) for pool in ("mean", "cls", "tokens")), strict=True
    ):
        np.testing.assert_allclose(mean.vectors, tokens.vectors.mean(0), atol=1e-6)
        np.testing.assert_allclose(first.vectors, tokens.vectors[0], atol=1e-6)
        assert len(tokens.vectors) == len(tokens.ids)


def test_order_is_kept_over_chunks_that_are_sorted_by_length(
    encoder: Encoder, tokenizer: WordPiece, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = found(encoder, tokenizer)
    monkeypatch.setattr(embedding, "CHUNK_TEXTS", 4)
    for one, other in zip(
        whole,
        embed(encoder, tokenizer, TEXTS, EmbedOptions(length=16, batch_tokens=8)),
        strict=True,
    ):
        assert one.text == other.text
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)


def test_bf16_vectors_are_near_those_of_fp32_and_not_the_same(
    encoder: Encoder, tokenizer: WordPiece
) -> None:
    exact, rounded = (
        found(encoder, tokenizer, precision=precision) for precision in ("fp32", "bf16")
    )
    for one, other in zip(exact, rounded, strict=True):
        assert other.vectors.dtype == np.float32
        np.testing.assert_allclose(one.vectors, other.vectors, atol=0.05)
    assert any(
        (one.vectors != other.vectors).any() for one, other in zip(exact, rounded, strict=True)
    )
    with pytest.raises(UserError, match="--precision fp16: unknown; choose fp32, bf16"):
        found(encoder, tokenizer, precision="fp16")


def test_no_more_text_is_read_than_a_chunk_holds_and_on_a_cpu_in_no_thread(
    encoder: Encoder, tokenizer: WordPiece, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "CHUNK_TEXTS", 2)
    taken: list[int] = []

    def endless() -> Iterator[str]:
        while True:
            taken.append(threading.get_ident())
            yield "anna"

    next(embed(encoder, tokenizer, endless(), EmbedOptions(length=16)))
    assert taken == 2 * [threading.get_ident()]


def test_a_text_that_does_not_fit_is_cut_and_says_so(
    encoder: Encoder, tokenizer: WordPiece
) -> None:
    options = EmbedOptions(length=5)
    long, short = embed(encoder, tokenizer, ["the dog sat on a mat", "anna"], options)
    assert tokenizer.tokens(long.ids.tolist()) == ["[CLS]", "the", "dog", "sat", "[SEP]"]
    assert (long.truncated, short.truncated) == (True, False)


def test_texts_that_are_mostly_unknown_are_warned_of(
    encoder: Encoder, tokenizer: WordPiece
) -> None:
    texts = ["the dog \N{CLOUD}", "\N{CLOUD} \N{CLOUD}", ""]
    with pytest.warns(UserWarning, match=r"^1 of 3 texts are mostly \[UNK\]"):
        found = list(embed(encoder, tokenizer, texts))
    assert [each.text for each in found] == texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "sum-last-5"}, "--layer sum-last-5: this encoder has only 4 layers"),
        ({"layer": "mix"}, "--layer mix: its weights are learnt with a task"),
        ({"pool": "max"}, "--pool max: unknown; choose mean, cls, tokens"),
        ({"length": 65}, "--length 65: this encoder has 64 positions"),
    ],
)
def test_what_an_encoder_cannot_give_is_refused_before_any_text_is_read(
    encoder: Encoder, tokenizer: WordPiece, options: dict[str, str], message: str
) -> None:
    refused = EmbedOptions(**{"length": 16} | options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        embed(encoder, tokenizer, iter([]), refused)


# ---- files ---------------------------------------------------------------------------------------


def test_texts_are_lines_or_a_column(tmp_path: Path) -> None:
    lines = written(tmp_path / "a.txt", "anna\n\nthe dog\n")
    rows = written(tmp_path / "a.csv", "text,n\nanna,1\n")
    with pytest.warns(UserWarning, match=r"a\.txt: rows without text: 1; they are kept"):
        assert list(read_texts(find_table(lines))) == ["anna", "", "the dog"]
    assert list(read_texts(find_table(rows))) == ["anna"]
    with pytest.raises(UserError, match=wording("texts_are_lines_or_a_column")):
        list(read_texts(find_table(rows), "body"))


def test_an_array_holds_a_row_for_each_text(
    encoder: Encoder, tokenizer: WordPiece, tmp_path: Path
) -> None:
    vectors = found(encoder, tokenizer)
    assert write_embeddings(tmp_path / "a.npy", vectors, tokenizer, pool="mean") == (6, 0)
    array = np.load(tmp_path / "a.npy", allow_pickle=False)
    assert array.dtype == np.float32
    assert np.array_equal(array, np.stack([one.vectors for one in vectors]))


def test_a_parquet_file_holds_texts_and_vectors(
    encoder: Encoder, tokenizer: WordPiece, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "ROW_GROUP_BYTES", 300)  # three vectors
    vectors = found(encoder, tokenizer)
    write_embeddings(tmp_path / "a.parquet", vectors, tokenizer, pool="mean")
    file = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet")
    assert file.num_row_groups == 2
    assert str(file.schema_arrow.field("vector").type) == "fixed_size_list<element: float>[32]"
    rows = file.read().to_pylist()
    assert [row["text"] for row in rows] == TEXTS
    assert np.array_equal([row["vector"] for row in rows], [one.vectors for one in vectors])


def test_a_parquet_file_holds_tokens_and_their_vectors(
    encoder: Encoder, tokenizer: WordPiece, tmp_path: Path
) -> None:
    vectors = found(encoder, tokenizer, pool="tokens")
    write_embeddings(tmp_path / "a.parquet", vectors, tokenizer, pool="tokens")
    rows = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert rows[1]["tokens"] == ["[CLS]", "anna", "[SEP]"]
    for row, one in zip(rows, vectors, strict=True):
        assert np.array_equal(row["vectors"], one.vectors)


@pytest.mark.parametrize("name", ["a.npy", "a.parquet"])
def test_a_crash_leaves_what_was_there_before(
    encoder: Encoder, tokenizer: WordPiece, tmp_path: Path, name: str
) -> None:
    path = written(tmp_path / name, "before")

    def crashing() -> Iterator[Embedding]:
        yield from found(encoder, tokenizer)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_embeddings(path, crashing(), tokenizer, pool="mean")
    assert path.read_text(encoding="utf8") == "before"
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "pool", "message"),
    [
        (
            "a.npy",
            "tokens",
            "different numbers of tokens, which one array cannot hold; write --pool tokens to a "
            ".parquet",
        ),
        ("a.csv", "mean", "vectors are written as .parquet or .npy; found .csv"),
        ("nowhere/a.npy", "mean", "no folder .*nowhere; make it first"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    tokenizer: WordPiece, tmp_path: Path, name: str, pool: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        write_embeddings(tmp_path / name, iter(()), tokenizer, pool=pool)


@pytest.mark.parametrize("name", ["a.npy", "a.parquet"])
def test_no_text_gives_no_file(tokenizer: WordPiece, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=wording("no_text_gives_no_file")):
        write_embeddings(tmp_path / name, iter(()), tokenizer, pool="mean")
    assert not list(tmp_path.iterdir())
