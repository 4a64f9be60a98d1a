from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from electra.config import UserError
from electra.data.options import VocabularyOptions
from electra.data.vocabulary import SAMPLE_BYTES, Sample, train_wordpiece
from electra.data.wordpiece import SPECIAL_TOKENS, WordPiece
from tests.wording import wording_of

wording = wording_of(__file__)

PROSE = "Das Café möchte ÉTÉ. The quick brown foxes jumped over the lazy dogs, and 东京 too! "
SAMPLES = ["Café MÖCHTE the foxes", "jumping 东京!", "a literal [MASK] here", "ÉTÉ"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join([PROSE] * 20), encoding="utf8")
    return path


def train(corpus: Path, folder: str = "vocab", **options: object) -> WordPiece:
    report = options.pop("report", lambda _: None)
    sample_bytes = options.pop("sample_bytes", SAMPLE_BYTES)
    return train_wordpiece(
        [corpus],
        corpus.parent / folder,
        options=VocabularyOptions(**{"vocab_size": 200} | options),  # type: ignore[arg-type]
        sample_bytes=sample_bytes,  # type: ignore[arg-type]
        report=report,  # type: ignore[arg-type]
    )


def test_special_tokens_come_first_and_size_counts_every_id(corpus: Path) -> None:
    tokenizer = train(corpus)
    assert tokenizer.tokens(range(5)) == SPECIAL_TOKENS
    assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert tokenizer.size == len(
        (corpus.parent / "vocab" / "vocab.txt").read_text(encoding="utf8").splitlines()
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["das", "cafe", "mochte", "ete"]),
        ({"keep_accents": True}, ["das", "café", "möchte", "été"]),
        ({"cased": True}, ["Das", "Café", "möchte", "ÉTÉ"]),
    ],
)
def test_case_and_accents_are_settled_by_the_vocabulary(
    corpus: Path, options: dict[str, bool], expected: list[str]
) -> None:
    tokenizer = train(corpus, **options)
    assert tokenizer.tokens(tokenizer.encode(["Das Café möchte ÉTÉ"])[0]) == expected


@pytest.mark.parametrize("options", [{}, {"keep_accents": True}, {"cased": True}])
def test_transformers_loads_the_folder_and_gives_the_same_ids_and_segments(
    corpus: Path, options
) -> None:
    from transformers import AutoTokenizer

    tokenizer = train(corpus, **options)
    stock = AutoTokenizer.from_pretrained(str(corpus.parent / "vocab"))
    assert (stock.is_fast, stock.model_max_length, len(stock)) == (True, 512, tokenizer.size)
    for text in SAMPLES[:2] + SAMPLES[3:]:
        ids = tokenizer.encode([text])[0]
        paired = stock(text, "the dogs")
        second = tokenizer.encode(["the dogs"])[0]
        assert paired["input_ids"] == [2, *ids, 3, *second, 3]
        assert paired["token_type_ids"] == [0] * (len(ids) + 2) + [1] * (len(second) + 1)


def test_a_mask_written_in_the_text_is_not_a_mask(corpus: Path) -> None:
    for options in ({}, {"cased": True}):
        tokenizer = train(corpus, folder=f"vocab{len(options)}", **options)
        assert not set(tokenizer.encode(["a [MASK] and [CLS] [PAD]"])[0]) & {0, 2, 3, 4}


def test_the_same_text_gives_the_same_vocabulary_in_another_process(corpus: Path) -> None:
    train(corpus, "here")
    program = (
        "import sys; from electra.data.options import VocabularyOptions; "
        "from electra.data.vocabulary import train_wordpiece; "
        "options = VocabularyOptions(vocab_size=200); "
        "train_wordpiece([sys.argv[1]], sys.argv[2], options=options, report=lambda _: None)"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(corpus), str(corpus.parent / "there")], check=True
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocabulary.json"):
        assert (corpus.parent / "here" / name).read_bytes() == (
            corpus.parent / "there" / name
        ).read_bytes()


def test_training_and_loading_import_neither_torch_nor_transformers(corpus: Path) -> None:
    train(corpus)
    program = (
        "import sys; from electra.data.options import VocabularyOptions; "
        "from electra.data.vocabulary import train_wordpiece; "
        "from electra.data.sharding import shard; "
        "options = VocabularyOptions(vocab_size=200); "
        "w = train_wordpiece([sys.argv[1]], sys.argv[2], options=options); "
        "shard([sys.argv[1]], tokenizer=w, output_dir=sys.argv[3]); "
        "assert not {'torch', 'transformers', 'datasets', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            str(corpus),
            str(corpus.parent / "vocab"),
            str(corpus.parent / "shards"),
        ],
        check=True,
    )


def test_a_corpus_too_small_for_the_size_gives_fewer_entries_and_says_so(corpus: Path) -> None:
    messages: list[str] = []
    tokenizer = train(corpus, vocab_size=5000, report=messages.append)
    assert tokenizer.size < 200
    assert f"{tokenizer.size} entries instead of 5000" in messages[-1]


def test_a_sample_is_even_and_within_its_bound() -> None:
    sample = Sample.draw((b"x" * 936 for _ in range(1000)), max_bytes=100_000)
    assert (sample.seen, len(sample.documents), sample.share) == (1000, 63, 0.063)
    numbered = Sample.draw((b"%03d" % n * 100 for n in range(1000)), max_bytes=100_000)
    indices = [int(document[:3]) for document in numbered.documents]
    assert indices == list(range(0, 1000, 4))


def test_the_share_of_text_that_was_sampled_is_recorded(corpus: Path) -> None:
    train(corpus, sample_bytes=2000)
    record = json.loads((corpus.parent / "vocab" / "vocabulary.json").read_text(encoding="utf8"))
    assert 0.2 < record["sampled_share"] <= 0.6
    assert record["documents"] == 20


# ---- re-use --------------------------------------------------------------------------------------


def test_a_vocabulary_made_from_the_same_text_and_settings_is_reused(corpus: Path) -> None:
    first = train(corpus)
    written = (corpus.parent / "vocab" / "tokenizer.json").stat().st_mtime_ns
    assert train(corpus).fingerprint == first.fingerprint
    assert (corpus.parent / "vocab" / "tokenizer.json").stat().st_mtime_ns == written


def test_a_vocabulary_made_otherwise_is_refused_with_what_differs_unless_overwritten(
    corpus: Path,
) -> None:
    train(corpus)
    with pytest.raises(
        UserError,
        match=wording(
            "a_vocabulary_made_otherwise_is_refused_with_what_differs_unless_overwritten"
        ),
    ):
        train(corpus, vocab_size=150, cased=True)
    train(corpus, vocab_size=150, overwrite=True)
    corpus.write_text("other text", encoding="utf8")
    with pytest.raises(
        UserError,
        match=wording(
            "a_vocabulary_made_otherwise_is_refused_with_what_differs_unless_overwritten_2"
        ),
    ):
        train(corpus, vocab_size=150)


def test_a_folder_left_half_written_is_made_again(corpus: Path) -> None:
    train(corpus)
    (corpus.parent / "vocab" / "tokenizer.json").unlink()
    assert train(corpus).size > 5
    assert (corpus.parent / "vocab" / "tokenizer.json").is_file()


def test_a_tokenizer_of_someone_else_is_not_overwritten(corpus: Path) -> None:
    train(corpus)
    (corpus.parent / "vocab" / "vocabulary.json").unlink()
    with pytest.raises(UserError, match=wording("a_tokenizer_of_someone_else_is_not_overwritten")):
        train(corpus)


# ---- other tokenizers ----------------------------------------------------------------------------


def test_a_copy_gives_the_same_ids_and_carries_its_own_length(corpus: Path, tmp_path: Path) -> None:
    original = train(corpus)
    original.copy_to(tmp_path / "model", model_max_length=128)
    copied = WordPiece.load(tmp_path / "model")
    assert (copied.fingerprint, copied.encode(SAMPLES)) == (
        original.fingerprint,
        original.encode(SAMPLES),
    )
    assert copied.config["model_max_length"] == 128
    assert original.config["model_max_length"] == 512


def test_a_vocab_txt_alone_is_converted(corpus: Path, tmp_path: Path) -> None:
    original = train(corpus)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "vocab.txt").write_bytes((tmp_path / "vocab" / "vocab.txt").read_bytes())
    assert WordPiece.load(tmp_path / "old").encode(SAMPLES) == original.encode(SAMPLES)


def test_a_fingerprint_tells_apart_tokenizers_that_give_other_ids(corpus: Path) -> None:
    variants = [{}, {"keep_accents": True}, {"cased": True}, {"vocab_size": 100}]
    fingerprints = {
        train(corpus, f"v{n}", **options).fingerprint for n, options in enumerate(variants)
    }
    assert len(fingerprints) == 4


def test_special_tokens_of_other_names_are_found_through_the_config(
    corpus: Path, tmp_path: Path
) -> None:
    train(corpus)
    folder = tmp_path / "vocab"
    definition = (folder / "tokenizer.json").read_text(encoding="utf8").replace("[MASK]", "<mask>")
    (folder / "tokenizer.json").write_text(definition, encoding="utf8")
    with pytest.raises(
        UserError, match=wording("special_tokens_of_other_names_are_found_through_the_config")
    ):
        WordPiece.load(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf8"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"mask_token": {"content": "<mask>"}})
    )
    assert WordPiece.load(folder).mask == 4


def test_a_folder_without_a_tokenizer_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=wording("a_folder_without_a_tokenizer_says_what_is_there")):
        WordPiece.load(tmp_path / "missing")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(
        UserError, match=wording("a_folder_without_a_tokenizer_says_what_is_there_2")
    ):
        WordPiece.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(
        UserError, match=wording("a_folder_without_a_tokenizer_says_what_is_there_3")
    ):
        WordPiece.load(tmp_path)


def test_words_too_long_for_a_vocabulary_are_left_out_and_counted(corpus: Path) -> None:
    long_words = ["x" * 101, "y" * 50_000 + ",the", "东" * 500 + "z" * 200]
    corpus.write_text(PROSE * 20 + " ".join(long_words), encoding="utf8")
    messages: list[str] = []
    tokenizer = train(corpus, report=messages.append)
    assert messages[0].startswith("3 words of more than 100 characters are left out")
    assert not {"yy", "zz", "##yy", "##zz"} & set(tokenizer.backend_tokenizer.get_vocab())


def test_an_id_far_beyond_the_number_of_tokens_is_refused(corpus: Path) -> None:
    definition = json.loads(train(corpus).definition)
    definition["model"]["vocab"]["the"] = 2**28
    tokenizer = WordPiece(json.dumps(definition), display_name="mine")
    with pytest.raises(UserError, match=wording("an_id_far_beyond_the_number_of_tokens")):
        _ = tokenizer.size


@pytest.mark.parametrize("charsmap", ["AAAA", "BAAAAAAAAAA="], ids=["loading", "encoding"])
def test_a_panic_of_the_tokenizers_library_is_an_error_in_words(
    corpus: Path, charsmap: str
) -> None:
    definition = json.loads(train(corpus).definition)
    definition["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    with pytest.raises(UserError, match=wording("a_panic_of_the_tokenizers_library")):
        WordPiece(json.dumps(definition), display_name="mine").encode(["hello"])
