"""A fine-tuning is read, checked and encoded before training, and its features are cached."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra.checksums import CHECKSUMS
from electra.config import UserError
from electra.finetuning import feature_cache
from electra.finetuning.feature_cache import cache_folder, write_cached
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.setup import (
    FinetuneSetup,
    prepare_finetuning,
    resolve_config,
    select_examples,
)
from electra.model.shape import EncoderShape
from electra.tasks import find_task
from electra.tasks.classify import Classify
from electra.tasks.features import Features
from tests.tasks.toys import as_flags, keyword_rows, tiny_model, written
from tests.wording import wording_of

wording = wording_of(__file__)

Prepare = Callable[..., FinetuneSetup]


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def prepare(tiny: Path, tmp_path: Path, messages: list[str]) -> Prepare:
    """Prepare a fine-tuning on twelve sentences, with some settings changed."""
    data = written(tmp_path / "rows.csv", keyword_rows(12))

    def prepared(
        model: Path = tiny,
        *,
        train: Path = data,
        dev: Path = data,
        task: Any = None,
        **settings: Any,
    ) -> FinetuneSetup:
        flags = as_flags({"length": 32} | settings)
        options = FinetuneOptions(train=[train], dev=[dev], dev_on_train=True, flags=flags)
        return prepare_finetuning(
            model, task or find_task("classify"), options, say=messages.append
        )

    return prepared


# ---- what is said and refused --------------------------------------------------------------------


def test_what_was_found_in_the_labels_and_what_was_cut_is_said(
    prepare: Prepare, messages: list[str]
) -> None:
    prepare(length=8)
    assert messages[0] == "classify: classification, 2 classes: cats, dogs; f1 is that of dogs"
    assert messages[1].startswith("12 training examples are few: 10 epochs instead of 3")
    assert "12 of 12 texts are longer than 8 tokens and were cut, for example " in messages[2]
    assert "rows.csv:2; --too-long window reads all of a text" in messages[2]


def test_texts_that_are_too_long_are_refused_when_asked(prepare: Prepare) -> None:
    with pytest.raises(UserError, match=wording("texts_that_are_too_long_are_refused_when_asked")):
        prepare(length=8, too_long="refuse")


@pytest.mark.parametrize(
    ("family", "task", "pooling"),
    [
        ("modernbert", "classify", "mean"),
        ("modernbert", "race", "mean"),
        ("modernbert", "tag", "cls"),  # a head that reads every token
        ("electra", "classify", "cls"),  # whose classes in transformers read [CLS]
    ],
)
def test_a_mean_over_tokens_stands_for_a_row_where_it_can(
    family: Any, task: str, pooling: str
) -> None:
    shape = EncoderShape(family=family)
    assert resolve_config(find_task(task), FinetuneOptions(), shape).pooling == pooling
    given = FinetuneOptions(flags=["--pooling", "cls"])
    assert resolve_config(find_task(task), given, shape).pooling == "cls"


@pytest.mark.parametrize("name", ["tag", "squad-2.0"])
def test_a_mean_over_tokens_is_refused_where_every_token_is_read(
    prepare: Prepare, name: str
) -> None:
    with pytest.raises(UserError, match=f"--pooling mean: {name} reads the vector of every token"):
        prepare(task=find_task(name), pooling="mean")


def test_a_mean_over_tokens_is_refused_for_the_electra_family(prepare: Prepare) -> None:
    with pytest.raises(UserError, match=r"--pooling mean: .* a model of the modernbert family"):
        prepare(pooling="mean")


def test_texts_that_are_too_long_are_read_in_windows_when_asked(
    prepare: Prepare, messages: list[str]
) -> None:
    setup = prepare(length=8, too_long="window")
    assert len(setup.train) > 12
    assert setup.identity()["task"]["windows"] is True
    assert not any("were cut" in message for message in messages)
    with pytest.raises(UserError, match=r"--too-long window: choose reads a context in one row"):
        prepare(task=find_task("choose"), too_long="window")


def test_a_length_beyond_the_models_positions_is_refused(prepare: Prepare) -> None:
    with pytest.raises(UserError, match=wording("a_length_beyond_the_models_positions_is_refused")):
        prepare(length=65)


def test_training_data_of_which_no_row_is_left_is_refused_and_said_as_a_warning(
    prepare: Prepare, tmp_path: Path, messages: list[str]
) -> None:
    """No window of eight tokens holds an answer of six."""
    data = written(
        tmp_path / "long.jsonl",
        '{"question": "who", "context": "the dog ran to the mat home", "answers": '
        '"dog ran to the mat home"}\n',
    )
    with pytest.raises(
        UserError,
        match=wording("training_data_of_which_no_row_is_left_is_refused_and_said_as_a_warning"),
    ):
        prepare(train=data, dev=data, task=find_task("span"), length=8)
    assert any(text.startswith("warning: ") and "left out of training" in text for text in messages)


def test_a_part_of_the_training_data_is_the_same_for_all_and_in_the_order_of_the_file(
    prepare: Prepare,
) -> None:
    part = select_examples(list(range(100)), 10)
    assert part == select_examples(list(range(100)), 10) == sorted(part)
    assert len(set(part)) == 10
    assert len(prepare(max_train_examples=5).train) == 5


def test_named_files_win_over_those_of_a_folder(tiny: Path, tmp_path: Path) -> None:
    for name, count in (("train.csv", 4), ("dev.csv", 6), ("other.csv", 8)):
        written(tmp_path / name, keyword_rows(count))
    options = FinetuneOptions(
        data=str(tmp_path), dev=[tmp_path / "other.csv"], flags=["--length", "32"]
    )
    setup = prepare_finetuning(tiny, find_task("classify"), options, say=lambda text: None)
    assert (len(setup.train), len(setup.dev["dev"].examples)) == (4, 8)


# ---- which fine-tuning it is ---------------------------------------------------------------------


def test_a_fine_tuning_is_known_by_content_and_not_by_place(
    prepare: Prepare, tiny: Path, tmp_path: Path
) -> None:
    moved = tiny_model(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    data = written(tmp_path / "elsewhere" / "rows.csv", keyword_rows(12))
    assert prepare(moved, train=data).identity() == prepare().identity()


@pytest.mark.parametrize("random_weights", [False, True])
def test_another_shape_is_another_fine_tuning(
    tiny: Path, tmp_path: Path, random_weights: bool
) -> None:
    data = written(tmp_path / "rows.csv", keyword_rows(12))
    options = FinetuneOptions(
        train=[data],
        dev=[data],
        dev_on_train=True,
        flags=["--length", "16"],
        random_weights=random_weights,
    )
    first, second = (
        prepare_finetuning(model, find_task("classify"), options, say=lambda text: None).identity()
        for model in (tiny, tiny_model(tmp_path / "longer", positions=32))
    )
    assert first["model"] != second["model"]


# ---- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def encoded_lengths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The lengths at which texts were encoded anew; the cache is empty and takes everything."""
    lengths: list[int] = []
    encode = Classify.features

    def features(self: Classify, *given: Any, length: int, training: bool) -> Any:
        lengths.append(length)
        return encode(self, *given, length=length, training=training)

    monkeypatch.setattr(Classify, "features", features)
    monkeypatch.setattr(feature_cache, "CACHED_FROM", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lengths


def test_a_second_start_reads_what_the_first_one_encoded(
    prepare: Prepare, encoded_lengths: list[int]
) -> None:
    first, second = prepare(), prepare()
    assert encoded_lengths == [32, 32], "dev and train, once each"
    for name in ("input_ids", "offsets", "second_starts", "examples"):
        assert np.array_equal(getattr(first.train, name), getattr(second.train, name))
    assert first.train.row_labels["target"].tolist() == second.train.row_labels["target"].tolist()


def test_another_length_tokenizer_or_file_is_encoded_anew(
    prepare: Prepare, encoded_lengths: list[int], tiny: Path, tmp_path: Path
) -> None:
    prepare()
    prepare(length=16)
    assert encoded_lengths == [32, 32, 16, 16]
    other = tiny_model(tmp_path / "other")
    tokenizer = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(
        tokenizer.replace('"lowercase": true', '"lowercase": false').replace(
            '"lowercase":true', '"lowercase":false'
        )
    )
    (other / CHECKSUMS).unlink()
    prepare(other)
    assert len(encoded_lengths) == 6
    prepare(train=written(tmp_path / "more.csv", keyword_rows(14)))
    assert len(encoded_lengths) == 7, "dev was known"


def test_a_damaged_file_in_the_cache_is_passed_over_and_replaced(
    prepare: Prepare, encoded_lengths: list[int]
) -> None:
    prepare()
    cached = sorted(cache_folder().glob("*.safetensors"))
    assert len(cached) == 2
    for path in cached:
        path.write_bytes(path.read_bytes()[:40])
    prepare()
    assert len(encoded_lengths) == 4
    prepare()
    assert len(encoded_lengths) == 4


def test_a_flipped_bit_in_the_cache_is_reported_in_one_line_and_the_texts_are_encoded_again(
    prepare: Prepare, encoded_lengths: list[int], messages: list[str]
) -> None:
    expected = prepare().train.input_ids
    for path in cache_folder().glob("*.safetensors"):
        whole = path.read_bytes()
        for place in (20, len(whole) - 1):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            encoded_lengths.clear()
            messages.clear()
            assert np.array_equal(prepare().train.input_ids, expected)
            assert encoded_lengths == [32], place
            (report,) = [text for text in messages if "encoded again" in text]
            assert str(path) in report
        assert path.read_bytes() == whole


def test_the_cache_of_another_user_is_read(
    prepare: Prepare, encoded_lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("Operation not permitted")

    prepare()
    monkeypatch.setattr("os.utime", refuse)
    prepare()
    assert encoded_lengths == [32, 32]


def test_a_killed_or_failed_write_leaves_nothing_in_the_cache_for_good(
    prepare: Prepare, encoded_lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    features, folder = prepare().train, cache_folder()
    killed = written(folder / ".0.safetensors.123", "half")
    os.utime(killed, (0, 0))

    def half(self: Features, path: Path) -> None:
        written(path, "half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Features, "save", half)
        write_cached(features, folder / "1.safetensors")
    write_cached(features, folder / "2.safetensors")
    assert not list(folder.glob(".*"))


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(
    prepare: Prepare, encoded_lengths: list[int], tmp_path: Path
) -> None:
    written(tmp_path / "cache", "a file where a folder should be")
    assert len(prepare().train) == 12


def test_a_task_whose_source_cannot_be_read_is_encoded_without_the_cache(
    prepare: Prepare, encoded_lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(module: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(feature_cache.inspect, "getfile", unreadable)
    assert len(prepare().train) == 12
    assert not cache_folder().exists()


def test_the_cache_keeps_to_its_bound_and_drops_what_was_not_used_for_longest(
    prepare: Prepare, encoded_lengths: list[int]
) -> None:
    features = prepare().train
    folder = cache_folder()
    for number in range(3):
        write_cached(features, folder / f"{number}.safetensors")
        os.utime(folder / f"{number}.safetensors", (number, number))
    size = (folder / "0.safetensors").stat().st_size
    for path in folder.glob("*.safetensors"):
        if not path.stem.isdecimal():
            path.unlink()
    write_cached(features, folder / "3.safetensors", max_bytes=2 * size)
    assert sorted(path.stem for path in folder.glob("*.safetensors")) == ["2", "3"]


def test_more_labels_than_transformers_holds_are_warned_of_before_training(
    prepare: Prepare, tmp_path: Path, messages: list[str]
) -> None:
    for count in (16, 17):  # of width 32
        rows = "".join(f"the dog sat on {number},{number}th\n" for number in range(count))
        data = written(tmp_path / f"{count}.csv", f"text,label\n{rows}")
        messages.clear()
        prepare(train=data, dev=data)
        expected = "17 labels are more than the 16 that transformers' class holds at width 32"
        assert any(expected in message for message in messages) == (count == 17)
