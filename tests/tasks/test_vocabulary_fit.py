"""Text that a vocabulary was made for is not warned of; text in another language is."""

from __future__ import annotations

import argparse
import inspect

import pytest

from electra.data.wordpiece import WordPiece
from electra.tasks import vocabulary_fit
from electra.tasks.embed import encode_texts
from electra.tasks.vocabulary_fit import VocabularyFit, words_in_pieces
from tests.tasks.toys import toy_tokenizer

ENGLISH = """
The ferry leaves the harbour every morning at seven, when the fog still lies over the water and the
gulls have only just begun to quarrel. Most of the passengers are children on their way to school;
they know the captain by his first name and he knows which of them has forgotten a book again. In
winter the crossing takes almost an hour, because the ice has to be broken, and nobody complains.
"""
GERMAN = """
Die Fähre verlässt den Hafen jeden Morgen um sieben, wenn der Nebel noch über dem Wasser liegt und
die Möwen gerade erst zu streiten begonnen haben. Die meisten Fahrgäste sind Kinder auf dem Weg zur
Schule; sie nennen den Kapitän beim Vornamen, und er weiß, wer von ihnen wieder ein Buch vergessen
hat. Im Winter dauert die Überfahrt fast eine Stunde, weil das Eis gebrochen werden muss.
"""
FRENCH = """
Le bac quitte le port chaque matin à sept heures, quand le brouillard couvre encore l'eau et que les
mouettes commencent à peine à se disputer. La plupart des passagers sont des enfants qui vont à
l'école ; ils appellent le capitaine par son prénom, et lui sait lequel d'entre eux a encore oublié
un livre. En hiver la traversée dure presque une heure, parce qu'il faut briser la glace.
"""
CHINESE = "渡轮每天早上七点离开港口，这时雾还笼罩着水面，海鸥刚刚开始争吵。"
JAPANESE = "フェリーは毎朝七時に港を出ます。そのころ、水面にはまだ霧がかかっています。"
THAI = "เรือข้ามฟากออกจากท่าเรือทุกเช้าตอนเจ็ดโมง เมื่อหมอกยังปกคลุมผิวน้ำ"
RUSSIAN = "Паром отходит от пристани каждое утро в семь часов, когда над водой ещё лежит туман."


@pytest.fixture(scope="module")
def english_tokenizer() -> WordPiece:
    return WordPiece.load("small-en")


def fit_of(tokenizer: WordPiece, *texts: str) -> VocabularyFit:
    fit = VocabularyFit(tokenizer)
    for text in texts:  # in chunks
        fit.add(encode_texts([text], tokenizer, length=512))
    return fit


@pytest.mark.parametrize(("text", "pieces"), [(GERMAN, "2.1"), (FRENCH, "1.8")])
def test_another_language_in_the_same_script_is_warned_of(
    english_tokenizer: WordPiece, text: str, pieces: str
) -> None:
    fit = fit_of(english_tokenizer, *[text] * 20)
    message = f"^a word of the text falls into {pieces} pieces on average; the model's vocabulary"
    with pytest.warns(UserWarning, match=message) as warned:
        fit.warn()
    assert len(warned) == 1


@pytest.mark.parametrize(
    "texts",
    [
        [ENGLISH] * 20,
        [ENGLISH] * 15 + [GERMAN] * 5,
        [GERMAN] * 3,
        [CHINESE] * 100,
        [JAPANESE] * 100,
        [THAI] * 100,
        [RUSSIAN] * 100,
        inspect.getsource(argparse).splitlines(),
        [f"{number * 7919} {number / 7:.5f} 0x{number:x}" for number in range(1000)],
        [],
    ],
    ids=str.split("English quarter short Chinese Japanese Thai Russian code numbers nothing"),
)
def test_what_is_no_text_of_another_language_is_not(
    english_tokenizer: WordPiece, texts: list[str]
) -> None:
    assert fit_of(english_tokenizer, *texts).split_warning == ""


def test_a_small_vocabulary_may_split_the_words_of_its_own_language(
    english_tokenizer: WordPiece, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [GERMAN] * 20
    assert fit_of(toy_tokenizer(), *texts).split_warning == ""
    monkeypatch.setattr(vocabulary_fit, "MIN_VOCABULARY", english_tokenizer.size + 1)
    assert fit_of(english_tokenizer, *texts).split_warning == ""


def test_no_more_than_the_beginning_of_the_data_is_split_into_words(
    english_tokenizer: WordPiece, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_fit, "SAMPLE_TOKENS", 300)
    fit = fit_of(english_tokenizer, *[GERMAN] * 20)
    assert fit.sampled == 300
    assert fit.texts == 20


def test_words_are_cased_letters_with_the_pieces_that_follow() -> None:
    tokens = "[CLS] fah ##re l ' on , 7 ##th [UNK] 港 ##の a ##n [SEP] ##x".split()
    assert list(words_in_pieces(tokens)) == [("fah", "##re"), ("on",), ("a", "##n")]
