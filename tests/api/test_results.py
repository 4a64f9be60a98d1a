"""Results in a notebook: what others wrote is shown as text."""

from __future__ import annotations

from electra.api.results import MAX_ROWS, Evaluation, Predictions, html_table


def test_what_is_shown_is_escaped() -> None:
    shown = Predictions(({"label": "<script>alert(1)</script>\x1b"},))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "\x1b" not in shown


def test_a_long_table_is_cut_and_says_so() -> None:
    shown = html_table([(number, "x" * 1000) for number in range(MAX_ROWS + 7)])
    assert shown.count("<tr>") == MAX_ROWS
    assert "7 more rows" in shown
    assert "x" * 201 not in shown


def test_an_evaluation_shows_the_scores_of_each_class() -> None:
    classes = [{"label": "<b>", "precision": 0.5, "recall": 0.25, "f1": 1 / 3, "support": 4}]
    shown = Evaluation("classify", "accuracy", {"dev": {"accuracy": 0.5}}, {"dev": classes})
    cells = "<td>&lt;b&gt;</td><td>0.5000</td><td>0.2500</td><td>0.3333</td><td>4</td>"
    assert cells in shown._repr_html_()
