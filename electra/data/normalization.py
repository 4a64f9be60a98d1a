"""Choose by the script of a corpus how a tokenizer normalizes text and splits it into words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from electra.data.corpus import ignore_progress, read_indexed_sources
from electra.data.sources import Report, Source

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SURVEY_BYTES = 8 * 1024 * 1024  # of text, from the beginnings of files
SURVEY_FILES = 64
# BERT's normalizer removes every combining mark. Accents of Latin letters are all that it was made
# for; Chinese characters have neither case nor marks. An English corpus quotes other scripts in
# about one letter of a hundred.
MIN_LATIN_SHARE = 0.95
# Vietnamese has an accent on about every fourth letter, which tells most of its words apart.
MAX_STRIPPED_SHARE = 0.2
NOTABLE_ACCENTS = 0.005  # English has fewer
NOTABLE_OTHERS = 0.01  # letters of other scripts, which lose their marks beside Latin
# Thai, Lao, Myanmar, Khmer, Hiragana, Katakana, half-width Katakana
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\uaa60-\uaa7f\uff66-\uff9f"
UNSPACED_RUN = re.compile(f"[{UNSPACED}]+")
# A character that is no mark, with its marks.
CHARACTER = rf"(?=\P{{M}})[{UNSPACED}]\p{{M}}*"
MIN_UNSPACED_SHARE = 0.01
# Segmented words of these scripts average three to five characters, phrases between spaces fifteen
# and more. Kana between Chinese characters, which are words of their own, average two or three.
MAX_MEAN_WORD = 8
ZERO_WIDTH_SPACE = "\u200b"  # separates words in Khmer, Thai, Lao and Burmese


@dataclass
class ScriptSurvey:
    """Counts of the letters of a text by script, and of the words of scripts without spaces."""

    letters: Counter[str] = field(default_factory=Counter)  # without Chinese characters
    accented: int = 0  # Latin letters with an accent
    unspaced_words: int = 0
    unspaced_characters: int = 0

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> ScriptSurvey:
        """Count the letters of texts."""
        survey = cls()
        characters: Counter[str] = Counter()
        for text in texts:
            composed = unicodedata.normalize("NFC", text)
            characters.update(composed)
            for run in UNSPACED_RUN.findall(composed):
                survey.unspaced_words += 1
                survey.unspaced_characters += len(run)
        for character, count in characters.items():
            survey.add(character, count)
        return survey

    def add(self, character: str, count: int) -> None:
        """Count a character if it is a letter of a script with marks."""
        if not unicodedata.category(character).startswith("L"):
            return
        name = unicodedata.name(character, "").removeprefix("HALFWIDTH ").removeprefix("FULLWIDTH ")
        script = re.split(r"[ -]", name)[0].capitalize()
        if script == "Cjk":
            return
        self.letters[script] += count
        if script == "Latin" and len(unicodedata.normalize("NFD", character)) > 1:
            self.accented += count

    @property
    def latin_share(self) -> float:
        """The share of Latin among the letters, 1 where there are none."""
        if not self.letters:
            return 1.0
        return self.letters["Latin"] / self.letters.total()

    @property
    def accented_share(self) -> float:
        """The share of the Latin letters that have an accent."""
        return self.accented / max(1, self.letters["Latin"])

    @property
    def mean_word(self) -> float:
        """The mean length of a word in scripts without spaces."""
        return self.unspaced_characters / max(1, self.unspaced_words)

    @property
    def is_unsegmented(self) -> bool:
        """Whether scripts without spaces are a part of the text, not split into words."""
        share = self.unspaced_characters / max(1, self.letters.total())
        return share >= MIN_UNSPACED_SHARE and self.mean_word > MAX_MEAN_WORD

    def describe_main_script(self) -> str:
        """Return the most frequent script with its share of the letters."""
        script, count = self.letters.most_common(1)[0]
        return f"{count / self.letters.total():.0%} of the letters are {script}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalization:
    """What a tokenizer does to text before WordPiece; the default is BERT's, uncased."""

    lowercase: bool = True
    strip_accents: bool = True
    split_characters: bool = False  # of scripts without spaces

    @classmethod
    def choose(cls, survey: ScriptSurvey, *, cased: bool, keep_accents: bool) -> Normalization:
        """Return the normalization that suits a text, within what the options decide.

        Where marks are kept, letters are still lower-cased, as in multilingual BERT: case carries
        little, but й, ё, ά and が are other letters than и, е, α and か.
        """
        is_latin = survey.latin_share >= MIN_LATIN_SHARE
        has_few_accents = survey.accented_share <= MAX_STRIPPED_SHARE
        return cls(
            lowercase=not cased,
            strip_accents=is_latin and has_few_accents and not cased and not keep_accents,
            split_characters=survey.is_unsegmented and not is_latin,
        )

    def explain_accents(self, survey: ScriptSurvey) -> Iterator[str]:
        """Yield why accents are kept, or that they are stripped where there are many."""
        accented = f"{survey.accented_share:.1%} of the Latin letters have an accent"
        if self.strip_accents and 1 - survey.latin_share > NOTABLE_OTHERS:
            yield (
                "accents and marks are stripped, as in BERT uncased, also from the "
                f"{1 - survey.latin_share:.1%} of the letters that are not Latin; keep them: "
                "--keep-accents"
            )
        elif self.strip_accents and survey.accented_share > NOTABLE_ACCENTS:
            yield f"accents are stripped, as in BERT uncased: {accented}; keep them: --keep-accents"
        if not self.strip_accents:
            reason = survey.describe_main_script()
            if survey.latin_share >= MIN_LATIN_SHARE:
                reason = accented
            yield f"text is lower-cased and keeps its accents and marks: {reason}"

    def explain_split(self, survey: ScriptSurvey) -> Iterator[str]:
        """Yield why characters become words, if they do."""
        if self.split_characters:
            yield (
                "the text has few spaces: words of scripts without spaces average "
                f"{survey.mean_word:.0f} characters; each of these characters becomes a word, as "
                "Chinese characters do; for longer tokens segment the text first, Thai for example "
                "with PyThaiNLP"
            )

    def build_tokenizer(self) -> Tokenizer:
        """Return a tokenizer without a vocabulary that normalizes and splits text like this."""
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        bert = normalizers.BertNormalizer(
            lowercase=self.lowercase, strip_accents=self.strip_accents
        )
        backend.normalizer, backend.pre_tokenizer = bert, pre_tokenizers.BertPreTokenizer()
        if not self.strip_accents:
            # BERT's normalizer would remove the zero-width space, and join the words.
            spaces = normalizers.Replace(ZERO_WIDTH_SPACE, " ")
            backend.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, bert])
        if self.split_characters:
            split = pre_tokenizers.Split(Regex(CHARACTER), "isolated")
            backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, split])
        return backend


def choose_normalization(
    sources: Sequence[Source],
    *,
    text_field: str,
    cased: bool,
    keep_accents: bool,
    report: Report,
) -> Normalization:
    """Choose the normalization of a corpus by the beginnings of its files. Report what the user did
    not decide and may want otherwise.
    """
    survey = ScriptSurvey.of_texts(read_beginnings(sources, text_field))
    normalization = Normalization.choose(survey, cased=cased, keep_accents=keep_accents)
    if not cased and not keep_accents:
        for message in normalization.explain_accents(survey):
            report(message)
    for message in normalization.explain_split(survey):
        report(message)
    return normalization


def read_beginnings(sources: Sequence[Source], text_field: str) -> Iterator[str]:
    """Yield lines from the beginnings of files that are spread evenly over a corpus."""
    chosen = sources[:: -(-len(sources) // SURVEY_FILES) or 1]
    for source in chosen:
        remaining = SURVEY_BYTES // len(chosen)
        for line in read_lines(source, text_field):
            yield line
            remaining -= len(line.encode())
            if remaining <= 0:
                break


def read_lines(source: Source, text_field: str) -> Iterator[str]:
    """Yield the lines of a file. What there is to report is reported when the corpus is read."""
    documents = read_indexed_sources(
        {0: source},
        text_field=text_field,
        progress=ignore_progress,
        report=lambda _: None,
        may_be_empty=True,
    )
    for _, document in documents:
        yield from document.lines
