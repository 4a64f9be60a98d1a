"""Train a WordPiece vocabulary: same text and settings, same vocabulary, on any machine."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from electra import atomic
from electra.config import UserError
from electra.data.corpus import Progress, ignore_progress, read_sources
from electra.data.sources import Report, resolve, warn
from electra.data.wordpiece import ROLES, SPECIAL_TOKENS, WordPiece, stock_config
from electra.files import parse_json, read_bounded_text
from electra.settings import differing_keys

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLE_BYTES = (
    256 * 1024 * 1024
)  # more text moves no frequent word, and would have to be held in memory
# share of the characters read that get an entry; the rest, rare scripts and noise, become [UNK]
COVERED = 0.9999
RECORD = "vocabulary.json"
OBJECT_BYTES = 64  # what Python adds to every document held
READING = 0.4  # share of the time that goes into reading, for the progress bar


def train_wordpiece(
    inputs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    vocab_size: int = 30522,
    lowercase: bool = True,
    keep_accents: bool = False,
    sample_bytes: int = SAMPLE_BYTES,
    text_field: str = "text",
    overwrite: bool = False,
    progress: Progress = ignore_progress,
    report: Report = warn,
) -> WordPiece:
    """A tokenizer folder for this corpus, re-used if it is already there, refused if another one
    is.
    """
    if not 100 <= vocab_size < 2**31:
        raise UserError(
            f"vocab_size={vocab_size} must be at least 100; letters alone need about that many "
            "entries"
        )
    folder = Path(output_dir)
    sources = resolve(inputs, report=report)
    settings = {
        "vocab_size": vocab_size,
        "lowercase": lowercase,
        "keep_accents": keep_accents,
        "sample_bytes": sample_bytes,
        "text_field": text_field,
        "inputs": [s.fingerprint() for s in sources],
    }
    if not overwrite and (made := already_made(folder, settings)):
        return made
    text = read_sources(
        sources, text_field=text_field, progress=lambda f: progress(READING * f), report=report
    )
    sample = Sample.of(("\n".join(document.lines).encode() for document in text), most=sample_bytes)
    tokenizer = rules(lowercase=lowercase, keep_accents=keep_accents)
    alphabet = alphabet_of(joined(sample.documents), tokenizer, most=vocab_size // 3)
    vocabulary = merged(
        tokenizer, sample, alphabet=alphabet, vocab_size=vocab_size, progress=progress
    )
    if len(vocabulary) < vocab_size:
        report(
            f"{folder}: {len(vocabulary)} entries instead of {vocab_size}: the text repeats no "
            "more pieces; "
            "give more text, or keep the smaller vocabulary"
        )
    wordpiece = finished(tokenizer, vocabulary)
    # First, so that a run killed between these files is known for ours and done again, not refused
    # as a stranger's.
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "settings": settings,
        "tokenizer": wordpiece.fingerprint,
        "entries": len(vocabulary),
        "characters": len(alphabet),
        "documents": sample.seen,
        "sampled_share": sample.share,
    }
    atomic.write_json(folder / RECORD, record)
    wordpiece.copy_to(folder)
    progress(1.0)
    return wordpiece


def already_made(folder: Path, settings: dict[str, Any]) -> WordPiece | None:
    if not (folder / RECORD).is_file():
        if not (folder / "tokenizer.json").is_file():
            return None
        raise UserError(
            f"{folder}: holds a tokenizer that `electra vocab` did not make; choose another "
            "folder, use it "
            "as it is with --tokenizer, or replace it with --overwrite"
        )
    try:
        record = parse_json(read_bounded_text(folder / RECORD))
        made_with, fingerprint = dict(record["settings"]), record["tokenizer"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{folder / RECORD}: damaged ({error}); choose another folder or replace it with "
            "--overwrite"
        ) from None
    if keys := differing_keys(settings, made_with):
        shown = "; ".join(
            f"{key} was {made_with.get(key)!r}, now {settings.get(key)!r}"
            if key != "inputs"
            else "the text is another"
            for key in keys
        )
        raise UserError(
            f"{folder}: holds a vocabulary made otherwise: {shown}; choose another folder or "
            "replace it "
            "with --overwrite"
        )
    made = WordPiece.load(folder) if (folder / "tokenizer.json").is_file() else None
    return made if made and made.fingerprint == fingerprint else None


@dataclass
class Sample:
    """An even share of a stream of unknown length: whenever it grows too large, every second
    document goes.
    """

    documents: list[bytes] = field(default_factory=list)
    seen: int = 0
    share: float = 1.0

    @classmethod
    def of(cls, stream: Iterable[bytes], *, most: int) -> Sample:
        sample, stride, held, read = cls(), 1, 0, 0
        for content in stream:
            read += len(content)
            if sample.seen % stride == 0:
                sample.documents.append(content)
                held += len(content) + OBJECT_BYTES
            sample.seen += 1
            while held > most and len(sample.documents) > 1:
                stride *= 2
                del sample.documents[1::2]
                held = sum(len(d) + OBJECT_BYTES for d in sample.documents)
        sample.share = round(sum(map(len, sample.documents)) / read, 6) if read else 1.0
        return sample


def rules(*, lowercase: bool, keep_accents: bool) -> Tokenizer:
    """BERT's normalisation and word boundaries. A cased vocabulary keeps its accents, as BERT's
    does.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(unk_token=ROLES["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=lowercase and not keep_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def alphabet_of(texts: Iterable[bytes], tokenizer: Tokenizer, *, most: int) -> list[str]:
    """The characters that make up nearly all of the text once normalised, in code point order."""
    occurrences = np.zeros(0x110000, dtype=np.int64)
    for text in texts:
        points = np.frombuffer(text.decode().encode("utf-32-le"), dtype=np.uint32)
        occurrences += np.bincount(points, minlength=len(occurrences))
    normalised: Counter[str] = Counter()
    for point in np.flatnonzero(occurrences):
        for character in tokenizer.normalizer.normalize_str(chr(point)):
            if not character.isspace():
                normalised[character] += int(occurrences[point])
    wanted, covered = COVERED * normalised.total(), 0
    kept: list[str] = []
    for character, count in sorted(normalised.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted or len(kept) == most:
            break
        kept.append(character)
        covered += count
    return sorted(kept)


def joined(texts: list[bytes]) -> Iterator[bytes]:
    """Texts by the megabyte: counting costs a pass over all code points, however short the text."""
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= 1_000_000:
            yield b"\n".join(batch)
            batch, size = [], 0
    yield b"\n".join(batch)


def merged(
    tokenizer: Tokenizer,
    sample: Sample,
    *,
    alphabet: list[str],
    vocab_size: int,
    progress: Progress,
) -> dict[str, int]:
    """The trainer's vocabulary, special tokens first.

    Left to itself the trainer numbers `##x` pieces in the order of a randomly seeded hash table,
    and breaks ties between equally frequent merges by those numbers. Handing it every
    single-character piece up front, as tokens it must have, with no alphabet of its own to add,
    fixes the numbers and with them the whole vocabulary.
    """
    from tokenizers import trainers

    inner = [f"##{c}" for c in alphabet if continues_a_word(c, tokenizer)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        limit_alphabet=0,
        show_progress=False,
        special_tokens=SPECIAL_TOKENS + alphabet + inner,
    )
    tokenizer.train_from_iterator(fed(sample.documents, progress), trainer)
    return dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))


def continues_a_word(character: str, tokenizer: Tokenizer) -> bool:
    """False for punctuation and for scripts in which every character is a word."""
    if unicodedata.combining(character):
        return True
    return (
        len(
            tokenizer.pre_tokenizer.pre_tokenize_str(
                tokenizer.normalizer.normalize_str("a" + character)
            )
        )
        == 1
    )


def fed(texts: list[bytes], progress: Progress) -> Iterator[str]:
    every = max(1, len(texts) // 200)
    for number, text in enumerate(texts):
        if number % every == 0:
            progress(READING + (0.9 - READING) * number / len(texts))  # merging comes after
        yield text.decode()


def finished(tokenizer: Tokenizer, vocabulary: dict[str, int]) -> WordPiece:
    """The trained rules as transformers expects them: [CLS] A [SEP] B [SEP], segments 0 and 1."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    whole = Tokenizer(models.WordPiece(vocabulary, unk_token=ROLES["unk"]))
    whole.normalizer, whole.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    whole.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    cls, sep = ROLES["cls"], ROLES["sep"]
    whole.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    whole.decoder = decoders.WordPiece(prefix="##")
    definition = whole.to_str(pretty=True)
    spelled = "".join(f"{token}\n" for token in vocabulary).encode()
    return WordPiece(definition, config=stock_config(definition), companions={"vocab.txt": spelled})
