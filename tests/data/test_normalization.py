from __future__ import annotations

import json
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from electra.data.normalization import Normalization, ScriptSurvey
from electra.data.options import ShardOptions, VocabularyOptions
from electra.data.sharding import shard
from electra.data.vocabulary import train_wordpiece
from electra.data.wordpiece import WordPiece
from tests.wording import wording_of

wording = wording_of(__file__)

ENGLISH = "The old dog sees the house. A naïve reader walks home, and the rain falls on the road."
SENTENCES = {
    "Vietnamese": "Hôm nay trời mưa rất to. Người Việt Nam uống cà phê sữa đá vào buổi sáng.",
    "Cyrillic": "Этот файл лежит на столе. Ёлка стоит зимой в большом зале, и её видит мой Сергей.",
    "Greek": "Η γάτα κοιμάται στο σπίτι. Ο Γιώργος πηγαίνει αύριο στην Αθήνα με τη μητέρα του.",
    "Arabic": "القطة نائمة في البيت. أين المدرسة؟ إنَّ العِلمَ نورٌ والقراءة مفيدة.",
    "Hebrew": "הכלב רואה את הבית. שָׁלוֹם לכולם, היום יורד גשם בירושלים.",
    "Devanagari": "यह हिन्दी की किताब है। लड़की घर में पानी पीती है और बाज़ार जाती है।",
    "Thai": "วันนี้ฝนตกหนักมากและฉันอยู่ที่บ้าน แมวตัวใหญ่นอนอยู่ใต้โต๊ะในห้องนั่งเล่น",
    "Lao": "ມື້ນີ້ຝົນຕົກແຮງແລະຂ້ອຍຢູ່ເຮືອນ ແມວໂຕໃຫຍ່ນອນຢູ່ໃຕ້ໂຕະໃນຫ້ອງ",
    "Khmer": "ថ្ងៃនេះមានភ្លៀងធ្លាក់ខ្លាំងហើយខ្ញុំនៅផ្ទះ ឆ្មាធំដេកនៅក្រោមតុក្នុងបន្ទប់",
    "Burmese": "ဒီနေ့မိုးသည်းထန်စွာရွာနေပြီးကျွန်တော်အိမ်မှာရှိသည်။ ကြောင်ကြီးသည်စားပွဲအောက်တွင်အိပ်နေသည်။",
    "Hangul": "오늘은 비가 많이 옵니다. 고양이가 책상 밑에서 잠을 자고 있습니다.",
    "Japanese": "今日は雨がひどく降っています。猫が机の下で寝ているので、私はデータを見ました。",
    "Kana": "きょうはあめがふっているのでわたしはうちでほんをよんでいます。ねこもいっしょです。",
    "Chinese": "今天下大雨，我在家里看书。那只大猫睡在桌子下面。",
    "Georgian": "დღეს წვიმს და მე სახლში ვარ. დიდი კატა მაგიდის ქვეშ სძინავს.",
    "Armenian": "Այսօր անձրև է գալիս, և ես տանն եմ։ Մեծ կատուն քնած է սեղանի տակ։",
    "Tamil": "இன்று மழை பெய்கிறது. பெரிய பூனை மேசையின் கீழ் தூங்குகிறது.",
    "Bengali": "আজ খুব বৃষ্টি হচ্ছে। বড় বিড়ালটি টেবিলের নিচে ঘুমাচ্ছে।",
}
UNSPACED = {"Thai", "Lao", "Khmer", "Burmese", "Kana"}


def train(
    folder: Path, text: str, messages: list[str] | None = None, **options: object
) -> WordPiece:
    """Train a vocabulary on a text, which is repeated, and write it to `folder`/vocabulary."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n\n".join([text] * 10), encoding="utf8")
    heard: list[str] = []
    if messages is not None:
        heard = messages
    return train_wordpiece(
        [corpus],
        folder / "vocabulary",
        options=VocabularyOptions(**{"vocab_size": 400} | options),  # type: ignore[arg-type]
        report=heard.append,
    )


def letters(text: str) -> str:
    """Return a text in NFC without spaces, in lower case."""
    return "".join(unicodedata.normalize("NFC", text).lower().split())


def choose(text: str, *, cased: bool = False, keep_accents: bool = False) -> Normalization:
    return Normalization.choose(
        ScriptSurvey.of_texts([text]), cased=cased, keep_accents=keep_accents
    )


@pytest.mark.parametrize("language", SENTENCES)
def test_every_script_comes_back_from_its_tokens_with_its_marks(
    tmp_path: Path, language: str
) -> None:
    text = SENTENCES[language]
    tokenizer = train(tmp_path, text)
    for form in ("NFC", "NFD"):
        ids = tokenizer.encode([unicodedata.normalize(form, text)])[0]
        assert tokenizer.unk not in ids
        assert letters(tokenizer.backend_tokenizer.decode(ids)) == letters(text)


@pytest.mark.parametrize("language", ["Cyrillic", "Thai", "Hangul", "Japanese", "Devanagari"])
def test_transformers_gives_the_same_ids_from_an_exported_folder(
    tmp_path: Path, language: str
) -> None:
    from transformers import AutoTokenizer

    text = SENTENCES[language]
    tokenizer = train(tmp_path, text)
    tokenizer.copy_to(tmp_path / "model", model_max_length=128)
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "electra"}))
    stock = AutoTokenizer.from_pretrained(str(tmp_path / "model"))
    stock.save_pretrained(str(tmp_path / "again"))
    for folder in ("model", "again"):
        stock = AutoTokenizer.from_pretrained(str(tmp_path / folder))
        for form in ("NFC", "NFD"):
            written = unicodedata.normalize(form, text)
            ids = tokenizer.encode([written])[0]
            paired = stock(written, written)
            assert paired["input_ids"] == [2, *ids, 3, *ids, 3]
            assert paired["token_type_ids"] == [0] * (len(ids) + 2) + [1] * (len(ids) + 1)
        assert (stock.model_max_length, stock.mask_token) == (128, "[MASK]")
    assert WordPiece.load(tmp_path / "model").fingerprint == tokenizer.fingerprint


def test_the_config_of_a_tokenizer_says_what_was_chosen(tmp_path: Path) -> None:
    config = train(tmp_path, SENTENCES["Cyrillic"]).stock_config()
    chosen = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    assert [config[key] for key in chosen] == [True, False, True]


# ---- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [ENGLISH, SENTENCES["Chinese"], ENGLISH * 20 + "файл", "123"])
def test_latin_and_chinese_text_is_normalized_as_in_bert_uncased(text: str) -> None:
    assert choose(text) == Normalization()


def test_the_default_tokenizer_is_that_of_bert_uncased(tmp_path: Path) -> None:
    messages: list[str] = []
    tokenizer = train(tmp_path, ENGLISH.replace("ï", "i"), messages)
    definition = json.loads(tokenizer.definition)
    assert definition["normalizer"] == {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": True,
        "lowercase": True,
    }
    assert definition["pre_tokenizer"] == {"type": "BertPreTokenizer"}
    assert tokenizer.stock_config()["tokenizer_class"] == "ElectraTokenizer"
    assert [message for message in messages if "entries instead of" not in message] == []


@pytest.mark.parametrize("language", sorted(SENTENCES.keys() - {"Chinese"}))
def test_other_scripts_are_lower_cased_and_keep_their_marks(language: str) -> None:
    expected = Normalization(strip_accents=False, split_characters=language in UNSPACED)
    assert choose(SENTENCES[language]) == expected


def test_a_mixed_corpus_keeps_its_marks() -> None:
    assert not choose(ENGLISH + SENTENCES["Cyrillic"]).strip_accents


def test_the_options_decide_over_the_script() -> None:
    assert choose(ENGLISH, keep_accents=True) == Normalization(strip_accents=False)
    cased = Normalization(lowercase=False, strip_accents=False)
    assert choose(ENGLISH, cased=True) == choose(SENTENCES["Greek"], cased=True) == cased


def test_text_that_is_segmented_already_is_not_split_into_characters(tmp_path: Path) -> None:
    words = "วันนี้ ฝน ตก หนัก มาก และ ฉัน อยู่ ที่ บ้าน"
    assert not choose(words).split_characters
    assert not choose(words.replace(" ", "\u200b")).split_characters
    tokenizer = train(tmp_path, words)
    ids = tokenizer.encode([words])[0]
    assert "วันนี้" in tokenizer.tokens(ids)
    assert tokenizer.encode([words.replace(" ", "\u200b")])[0] == ids


def test_japanese_words_of_kana_stay_whole_between_chinese_characters(tmp_path: Path) -> None:
    tokenizer = train(tmp_path, SENTENCES["Japanese"])
    assert tokenizer.tokens(tokenizer.encode(["降っています"])[0]) == ["降", "っています"]


def test_every_file_of_a_corpus_is_surveyed_and_empty_ones_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(ENGLISH, encoding="utf8")
    (tmp_path / "b.txt").write_text("", encoding="utf8")
    (tmp_path / "c.txt").write_text(SENTENCES["Cyrillic"] * 2, encoding="utf8")
    tokenizer = train_wordpiece(
        [tmp_path],
        tmp_path / "vocabulary",
        options=VocabularyOptions(vocab_size=150),
        report=lambda _: None,
    )
    assert "й" in tokenizer.backend_tokenizer.get_vocab()


# ---- what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (SENTENCES["Cyrillic"], "the_script"),
        (SENTENCES["Vietnamese"], "many_accents"),
        ("Das Café möchte ÉTÉ. " + ENGLISH, "stripped_accents"),
        (ENGLISH * 2 + "Мой.", "stripped_marks"),
    ],
    ids=["script", "many accents", "accents stripped", "marks of quotations stripped"],
)
def test_the_choice_is_said_in_one_line_with_its_reason(
    tmp_path: Path, text: str, key: str
) -> None:
    messages: list[str] = []
    train(tmp_path, text, messages)
    assert messages[0] == wording(f"the_choice_is_said_{key}")
    assert Counter("accents" in message for message in messages)[True] == 1


def test_what_the_user_decided_is_not_explained(tmp_path: Path) -> None:
    messages: list[str] = []
    train(tmp_path, SENTENCES["Cyrillic"], messages, keep_accents=True)
    assert not any("accents" in message for message in messages)


def test_text_without_spaces_is_announced_and_trains_without_unknown_tokens(
    tmp_path: Path,
) -> None:
    messages: list[str] = []
    text = SENTENCES["Thai"].replace(" ", "") * 5
    tokenizer = train(tmp_path, text, messages)
    assert messages[1] == wording("text_without_spaces_is_announced")
    messages.clear()
    shard(
        [tmp_path / "corpus.txt"],
        tokenizer=tokenizer,
        output_dir=tmp_path / "shards",
        options=ShardOptions(length=32, held_out=0.1, workers=1),
        report=messages.append,
    )
    assert not any("[UNK]" in message for message in messages)


def test_a_vocabulary_too_small_for_a_script_is_announced_with_the_size_that_it_needs(
    tmp_path: Path,
) -> None:
    messages: list[str] = []
    syllables = "".join(chr(ord("가") + 28 * n) for n in range(40))
    train(tmp_path, syllables, messages, vocab_size=100)
    assert wording("a_vocabulary_too_small_for_a_script") in messages
    messages.clear()
    train(tmp_path, syllables, messages, vocab_size=120, overwrite=True)
    assert not any("[UNK]" in message for message in messages)
