"""Train a WordPiece vocabulary: the same text and settings give the same one on any machine."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from electra import atomic
from electra.config import UserError
from electra.data.corpus import Progress, ignore_progress, no_text_error, read_sources
from electra.data.corpus_check import check_at_start
from electra.data.normalization import choose_normalization
from electra.data.options import OtherSettingsError, VocabularyOptions, describe_changes
from electra.data.sources import Report, Source, resolve, warn
from electra.data.wordpiece import (
    DEFAULT_CONFIG,
    MAX_WORD_CHARACTERS,
    ROLES,
    SPECIAL_TOKENS,
    WordPiece,
)
from electra.file_lock import folder_lock
from electra.files import read_json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# More text changes no frequent word, and would have to be held in memory.
SAMPLE_BYTES = 256 * 1024 * 1024
# Share of the characters that get an entry; the others, rare scripts and noise, become [UNK].
CHARACTER_COVERAGE = 0.9999
CHARACTERS_DIVISOR = 3  # at most a third of the entries are characters
MAX_LEFT_OUT = 0.001  # share of the text in characters without an entry, without a warning
RECORD = "vocabulary.json"
OBJECT_BYTES = 64  # what Python adds to every document held in memory
READING_SHARE = 0.4  # of the time, for the progress bar
DEFAULTS = VocabularyOptions()
# The trainer takes time by the square of a word's length.
LONG_RUN = re.compile(rf"(?<!\S)\S{{{MAX_WORD_CHARACTERS + 1},}}")


def train_wordpiece(
    corpus: Sequence[str | Path],
    output_dir: str | Path,
    *,
    options: VocabularyOptions = DEFAULTS,
    sample_bytes: int = SAMPLE_BYTES,
    progress: Progress = ignore_progress,
    report: Report = warn,
) -> WordPiece:
    """Train a WordPiece vocabulary on a corpus, write it as a tokenizer folder and return it.

    The vocabulary of the same corpus and options is not trained again; another tokenizer in the
    folder raises UserError. `electra.data.options` documents the options.

        train_wordpiece(["texts/"], "vocabulary", options=VocabularyOptions(vocab_size=8192))
    """
    folder = Path(output_dir)
    sources = resolve(corpus, report=report)
    if options.overwrite or not (folder / RECORD).is_file():
        check_at_start(sources, text_field=options.text_field)
    settings = vocabulary_settings(options, sample_bytes, sources)
    if not options.overwrite and (existing := read_existing(folder, settings)):
        return existing
    with folder_lock(folder):
        return train_and_write(
            sources, folder, options, settings=settings, progress=progress, report=report
        )


def find_vocabulary(
    sources: Sequence[Source], folder: Path, options: VocabularyOptions
) -> WordPiece | None:
    """Return the vocabulary in a folder, None if there is none.

    Raise UserError for that of another corpus or of other options.
    """
    return read_existing(folder, vocabulary_settings(options, SAMPLE_BYTES, sources))


def train_and_write(
    sources: Sequence[Source],
    folder: Path,
    options: VocabularyOptions,
    *,
    settings: dict[str, Any],
    progress: Progress,
    report: Report,
) -> WordPiece:
    """Train a vocabulary on a sample of the text, and write it."""
    normalization = choose_normalization(
        sources,
        text_field=options.text_field,
        cased=options.cased,
        keep_accents=options.keep_accents,
        report=report,
    )
    backend = normalization.build_tokenizer()
    long_words = LongWordFilter(backend)
    texts = read_texts(sources, options.text_field, long_words, progress=progress, report=report)
    sample = Sample.draw(texts, max_bytes=settings["sample_bytes"])
    long_words.report(report)
    alphabet = choose_alphabet(
        join_texts(sample.documents),
        backend,
        max_size=options.vocab_size // CHARACTERS_DIVISOR,
        report=report,
    )
    if not alphabet:
        raise no_text_error(sources)
    vocab = train_vocab(backend, sample, alphabet, vocab_size=options.vocab_size, progress=progress)
    if len(vocab) < options.vocab_size:
        report(
            f"{folder}: {len(vocab)} entries instead of {options.vocab_size}: the text repeats no "
            "more pieces; give more text, or keep the smaller vocabulary"
        )
    tokenizer = build_wordpiece(backend, vocab)
    write_vocabulary(folder, tokenizer, sample, settings=settings, characters=len(alphabet))
    progress(1.0)
    return tokenizer


class LongWordFilter:
    """Removes and counts the words that are too long for any vocabulary."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.removed = 0

    def apply(self, text: str) -> str:
        """Return a text without its long words."""
        return LONG_RUN.sub(self.split_run, text)

    def split_run(self, run: re.Match[str]) -> str:
        """Return the words of a run without white space, of which punctuation and Chinese
        characters may make many.
        """
        normalized = self.backend.normalizer.normalize_str(run[0])
        words = [word for word, _ in self.backend.pre_tokenizer.pre_tokenize_str(normalized)]
        short = [word for word in words if len(word) <= MAX_WORD_CHARACTERS]
        if len(short) == len(words):
            return run[0]
        self.removed += len(words) - len(short)
        return " ".join(short)

    def report(self, report: Report) -> None:
        """Report how many words were removed, if any were."""
        if self.removed:
            report(
                f"{self.removed} words of more than {MAX_WORD_CHARACTERS} characters are left out "
                "of the vocabulary: WordPiece makes them [UNK]; text without white space must be "
                "segmented first"
            )


def read_texts(
    sources: Sequence[Source],
    text_field: str,
    long_words: LongWordFilter,
    *,
    progress: Progress,
    report: Report,
) -> Iterator[bytes]:
    """Yield the text of every document without its long words, and report the progress of
    reading.
    """
    documents = read_sources(
        sources,
        text_field=text_field,
        progress=lambda fraction: progress(READING_SHARE * fraction),
        report=report,
    )
    for document in documents:
        yield long_words.apply("\n".join(document.lines)).encode()


def vocabulary_settings(
    options: VocabularyOptions, sample_bytes: int, sources: Sequence[Source]
) -> dict[str, Any]:
    """Return the settings that decide the vocabulary, with a fingerprint of the text."""
    return {
        "vocab_size": options.vocab_size,
        "lowercase": not options.cased,
        "keep_accents": options.keep_accents,
        "sample_bytes": sample_bytes,
        "text_field": options.text_field,
        "inputs": [source.fingerprint() for source in sources],
    }


def write_vocabulary(
    folder: Path,
    tokenizer: WordPiece,
    sample: Sample,
    *,
    settings: dict[str, Any],
    characters: int,
) -> None:
    """Write the tokenizer folder. The record comes first, so that a run killed between these files
    is done again and not refused as a tokenizer of unknown origin.
    """
    record = {
        "settings": settings,
        "tokenizer": tokenizer.fingerprint,
        "entries": tokenizer.size,
        "characters": characters,
        "documents": sample.seen,
        "sampled_share": sample.share,
    }
    atomic.write_json(folder / RECORD, record)
    tokenizer.copy_to(folder)


def read_existing(folder: Path, settings: dict[str, Any]) -> WordPiece | None:
    """Return the vocabulary in a folder if these settings made it, None if there is none."""
    if not (folder / RECORD).is_file():
        if not (folder / "tokenizer.json").is_file():
            return None
        raise UserError(
            f"{folder}: holds a tokenizer that `electra vocab` did not make; choose another "
            "folder, use it as it is with --tokenizer, or replace it with --overwrite"
        )
    remedy = "choose another folder or replace it with --overwrite"
    record = read_json_object(folder / RECORD, remedy=remedy)
    try:
        saved, fingerprint = dict(record["settings"]), record["tokenizer"]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder / RECORD}: damaged ({error}); {remedy}") from None
    if changes := describe_changes(settings, saved):
        problem = f"{folder}: holds a vocabulary with other settings: {changes}"
        raise OtherSettingsError(problem, remedy)
    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer = WordPiece.load(folder)
    if tokenizer.fingerprint != fingerprint:
        return None
    return tokenizer


@dataclass
class Sample:
    """An even sample of a stream of unknown length: whenever it grows too large, every second
    document is dropped.
    """

    documents: list[bytes] = field(default_factory=list)
    seen: int = 0
    share: float = 1.0

    @classmethod
    def draw(cls, stream: Iterable[bytes], *, max_bytes: int) -> Sample:
        """Draw a sample of at most `max_bytes` in memory."""
        sample, stride, held, read = cls(), 1, 0, 0
        for content in stream:
            read += len(content)
            if sample.seen % stride == 0:
                sample.documents.append(content)
                held += len(content) + OBJECT_BYTES
            sample.seen += 1
            while held > max_bytes and len(sample.documents) > 1:
                stride *= 2
                del sample.documents[1::2]
                held = sum(len(document) + OBJECT_BYTES for document in sample.documents)
        if read:
            sample.share = round(sum(map(len, sample.documents)) / read, 6)
        return sample


def choose_alphabet(
    texts: Iterable[bytes], backend: Tokenizer, *, max_size: int, report: Report
) -> list[str]:
    """Return the characters that make up nearly all of the normalized text, in code point order."""
    frequency = count_characters(texts, backend)
    target, covered = CHARACTER_COVERAGE * frequency.total(), 0
    wanted: list[str] = []
    for character, count in sorted(frequency.items(), key=lambda item: (-item[1], item[0])):
        if covered >= target:
            break
        wanted.append(character)
        covered += count
    left_out = sum(frequency[character] for character in wanted[max_size:])
    if left_out > MAX_LEFT_OUT * frequency.total():
        report(
            f"the text has {len(wanted):,} characters, of which {max_size:,} get an entry; the "
            f"others, {left_out / frequency.total():.1%} of the text, become [UNK]; choose "
            f"--vocab-size {CHARACTERS_DIVISOR * len(wanted)} or larger"
        )
    return sorted(wanted[:max_size])


def count_characters(texts: Iterable[bytes], backend: Tokenizer) -> Counter[str]:
    """Count the characters of the normalized text, white space left out."""
    occurrences = np.zeros(0x110000, dtype=np.int64)
    for text in texts:
        # Else a letter and its accent, apart in the text, would not count as the letter é.
        composed = unicodedata.normalize("NFC", text.decode())
        points = np.frombuffer(composed.encode("utf-32-le"), dtype=np.uint32)
        occurrences += np.bincount(points, minlength=len(occurrences))
    frequency: Counter[str] = Counter()
    for point in np.flatnonzero(occurrences):
        for character in backend.normalizer.normalize_str(chr(point)):
            if not character.isspace():
                frequency[character] += int(occurrences[point])
    return frequency


def join_texts(texts: list[bytes]) -> Iterator[bytes]:
    """Join texts to a megabyte each: counting costs a pass over all code points for every text."""
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= 1_000_000:
            yield b"\n".join(batch)
            batch, size = [], 0
    yield b"\n".join(batch)


def train_vocab(
    backend: Tokenizer,
    sample: Sample,
    alphabet: list[str],
    *,
    vocab_size: int,
    progress: Progress,
) -> dict[str, int]:
    """Train the entries and return them with their ids, special tokens first.

    Left to itself the trainer numbers `##x` pieces in the order of a randomly seeded hash table,
    and breaks ties between equally frequent merges by those numbers. Handing it every
    single-character piece up front, as special tokens, with no alphabet of its own to add, fixes
    the numbers and with them the whole vocabulary.
    """
    from tokenizers import trainers

    continuations = [f"##{char}" for char in alphabet if continues_a_word(char, backend)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        limit_alphabet=0,
        show_progress=False,
        special_tokens=SPECIAL_TOKENS + alphabet + continuations,
    )
    backend.train_from_iterator(decode_texts(sample.documents, progress), trainer)
    return dict(sorted(backend.get_vocab().items(), key=lambda item: item[1]))


def continues_a_word(character: str, backend: Tokenizer) -> bool:
    """Return False for punctuation and for scripts in which every character is a word."""
    if unicodedata.combining(character):
        return True
    normalized = backend.normalizer.normalize_str("a" + character)
    return len(backend.pre_tokenizer.pre_tokenize_str(normalized)) == 1


def decode_texts(texts: list[bytes], progress: Progress) -> Iterator[str]:
    """Decode texts one by one and report the progress of the trainer that reads them."""
    every = max(1, len(texts) // 200)
    for number, text in enumerate(texts):
        if number % every == 0:
            # Merging, after the last text, takes the last tenth of the time.
            progress(READING_SHARE + (0.9 - READING_SHARE) * number / len(texts))
        yield text.decode()


def build_wordpiece(backend: Tokenizer, vocab: dict[str, int]) -> WordPiece:
    """Return the tokenizer as transformers expects it: [CLS] A [SEP] B [SEP], segments 0 and 1."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    complete = Tokenizer(models.WordPiece(vocab, unk_token=ROLES["unk"]))
    complete.normalizer, complete.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    complete.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    cls, sep = ROLES["cls"], ROLES["sep"]
    complete.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
    )
    complete.decoder = decoders.WordPiece(prefix="##")
    definition = complete.to_str(pretty=True)
    vocab_txt = "".join(f"{token}\n" for token in vocab).encode()
    return WordPiece(definition, config=dict(DEFAULT_CONFIG), companions={"vocab.txt": vocab_txt})
