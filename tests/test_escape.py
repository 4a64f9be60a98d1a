"""Text of others stays text, wherever it is shown."""

from __future__ import annotations

import pytest

from electra.escape import escape_html, escape_markdown, file_name, printable

HOSTILE = ["eval_/../../x", "..", "/etc/passwd", "a\0b", 'x"><img src=x>', "\ud800", "", "é" * 300]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\r\b\x07\x7f", r"\r\x08\x07\x7f"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("\udcff", r"\udcff"),
        ("one\ttwo\nthree 日本語 é 👩‍💻", "one\ttwo\nthree 日本語 é 👩‍💻"),
    ],
)
def test_control_characters_are_shown_and_all_others_are_kept(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("text", HOSTILE)
def test_a_file_name_is_the_name_of_a_file_in_its_folder(text: str) -> None:
    assert set(file_name(text)) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    assert file_name(text).strip(".")
    assert len(file_name(text)) < 100


def test_plain_names_are_kept_and_odd_ones_do_not_meet() -> None:
    assert file_name("mlm_loss") == "mlm-loss"
    assert file_name("efficiency-smoke-1of4") == "efficiency-smoke-1of4"
    assert len({file_name(text) for text in ("a/b", "a b", "a\\b", "A/b", "a-b")}) == 5


def test_html_and_markdown_show_control_characters() -> None:
    assert escape_html('"<\x1b') == r"&quot;&lt;\x1b"
    assert escape_markdown("\x1b a\n\n\u202e|") == r"\\x1b a \\u202e\|"
