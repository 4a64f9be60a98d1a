"""The data of a recipe: make the vocabulary and the shards of a corpus in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from electra import atomic
from electra.config import SettingError, UserError
from electra.data.corpus import Progress
from electra.data.corpus_check import checked_once
from electra.data.options import (
    OtherSettingsError,
    PrepareOptions,
    ShardOptions,
    VocabularyOptions,
)
from electra.data.sharding import check_earlier, shard
from electra.data.sources import Report, Source, warn
from electra.data.vocabulary import find_vocabulary, train_wordpiece
from electra.data.wordpiece import WordPiece


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The [data] section of a recipe. All but `length` matter only when the vocabulary and the
    shards are made from a corpus; asked for beside shards that were made otherwise, they are
    refused.
    """

    length: int = 128  # tokens in a row
    vocab_size: int = 30_522  # entries of the vocabulary
    cased: bool = False  # keep upper case
    keep_accents: bool = False  # false strips them from Latin text only
    held_out: float = 0.005  # share of the documents to measure progress on

    def __post_init__(self) -> None:
        if self.length < 8:
            raise SettingError("length", "is too short for a sentence; use at least 8", self)
        if not 0 < self.held_out < 1:
            raise SettingError(
                "held_out", "is a share of the documents; use a number like 0.005", self
            )


DEFAULTS = PrepareOptions()


def prepare_data(
    corpus: Sequence[str | Path],
    folder: Path,
    config: DataConfig,
    *,
    options: PrepareOptions = DEFAULTS,
    stage: Callable[[str], Progress],
    report: Report = warn,
) -> Path:
    """Make the vocabulary and the shards of a corpus under `folder`, unless they are there, and
    return the folder of the shards.

    `stage` is called with the name of each stage of the work and returns its progress callback.
    """
    for name in ("tokenizer", "shards"):
        atomic.check_links(folder / name, inside=folder.parent)
    with explain_earlier_data(folder), checked_once():
        shard(
            corpus,
            tokenizer=load_or_train_tokenizer(corpus, folder, config, options, stage, report),
            output_dir=folder / "shards",
            options=shard_options(config, options),
            progress=stage("shards"),
            report=report,
        )
    return folder / "shards"


def check_prepared(
    sources: Sequence[Source],
    folder: Path,
    config: DataConfig,
    *,
    options: PrepareOptions = DEFAULTS,
) -> None:
    """Raise OtherSettingsError where `prepare_data` would, and write nothing."""
    with explain_earlier_data(folder):
        if options.tokenizer is not None:
            tokenizer: WordPiece | None = WordPiece.load(options.tokenizer)
        else:
            tokenizer = find_vocabulary(
                sources, folder / "tokenizer", vocabulary_options(config, options)
            )
        if tokenizer is not None:
            check_earlier(folder / "shards", sources, tokenizer, shard_options(config, options))


@contextmanager
def explain_earlier_data(folder: Path) -> Iterator[None]:
    """Give the remedy of a run, in which no --overwrite replaces its data alone."""
    remedy = (
        f"this folder belongs to an earlier start: remove {folder}, or choose another --output-dir"
    )
    try:
        yield
    except OtherSettingsError as error:
        raise OtherSettingsError(error.problem, remedy) from None
    except UserError as error:
        if "--overwrite" not in str(error):
            raise
        raise UserError(f"{error} ({remedy})") from None


def load_or_train_tokenizer(
    corpus: Sequence[str | Path],
    folder: Path,
    config: DataConfig,
    options: PrepareOptions,
    stage: Callable[[str], Progress],
    report: Report,
) -> WordPiece:
    """Load the tokenizer that the options name, or else train a vocabulary on the corpus."""
    if options.tokenizer is not None:
        return WordPiece.load(options.tokenizer)
    return train_wordpiece(
        corpus,
        folder / "tokenizer",
        options=vocabulary_options(config, options),
        progress=stage("vocabulary"),
        report=report,
    )


def vocabulary_options(config: DataConfig, options: PrepareOptions) -> VocabularyOptions:
    return VocabularyOptions(
        vocab_size=config.vocab_size,
        cased=config.cased,
        keep_accents=config.keep_accents,
        text_field=options.text_field,
    )


def shard_options(config: DataConfig, options: PrepareOptions) -> ShardOptions:
    return ShardOptions(
        length=config.length,
        held_out=config.held_out,
        seed=options.seed,
        text_field=options.text_field,
        document=options.document,
    )
