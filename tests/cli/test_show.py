"""Tracing one sentence through a pre-trained pair, and printing or drawing it."""

from __future__ import annotations

import html
import io
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from electra.__main__ import main
from electra.cli.show import (
    aligned_row,
    draw_picture,
    print_curves,
    print_scores,
    print_trace,
    probability_cell,
    split_columns,
    trace_sentence,
)
from electra.config import UserError
from electra.console import Terminal
from electra.objectives.trace import Pair
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from tests.conftest import TOY_FLAGS
from tests.wording import wording_of

wording = wording_of(__file__)

TEXT = "the old dog sees the green house . the small cat follows the river ."
pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.fixture(scope="module")
def finished(toy_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    quick = ["--batch-size", "4", "--max-steps", "2", "--eval-rows", "4", "--warmup-steps", "1"]
    pretrain(
        load_recipe("tiny", flags=[*TOY_FLAGS, *quick]),
        data=toy_shards,
        output_dir=folder,
        quiet=True,
    )
    return folder


@pytest.fixture(scope="module")
def pair(finished: Path) -> Pair:
    return Pair(finished)


@pytest.fixture
def console() -> Terminal:
    return Terminal(width=100, record=True, file=io.StringIO())


def test_a_hostile_vocabulary_controls_neither_the_terminal_nor_a_picture(
    pair: Pair, console: Terminal, tmp_path: Path
) -> None:
    word = "[red]\x1b[2J<script>\u202e"
    tokens = [replace(token, original=word, corrupted=word) for token in pair.trace(TEXT, seed=0)]
    print_trace(tokens, console)
    assert r"[red]\x1b[2J<script>\u202e" in console.export_text()
    for name in ("a.svg", "a.html"):
        draw_picture(tokens, tmp_path / name)
        picture = (tmp_path / name).read_text(encoding="utf8")
        assert "\x1b" not in picture
        assert "\u202e" not in picture
        assert "<script" not in picture
    xml.etree.ElementTree.parse(tmp_path / "a.svg")


# ---- the trace -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_only_a_masked_token_can_be_replaced_and_only_by_what_was_sampled(
    pair: Pair, seed: int
) -> None:
    for token in pair.trace(TEXT, seed=seed):
        if token.prediction is None:
            assert token.original == token.masked == token.corrupted
        else:
            assert token.masked == "[MASK]"
            assert token.corrupted == token.prediction.sampled
        assert token.replaced == (token.corrupted != token.original)
        assert 0 <= token.p_replaced <= 1


def test_the_text_comes_back_between_its_special_tokens(pair: Pair) -> None:
    words = [token.original for token in pair.trace(TEXT)]
    assert (words[0], words[-1]) == ("[CLS]", "[SEP]")
    assert " ".join(words[1:-1]).replace(" ##", "") == TEXT


def test_special_tokens_are_never_masked(pair: Pair) -> None:
    for seed in range(20):
        tokens = pair.trace(TEXT, seed=seed)
        assert tokens[0].prediction is tokens[-1].prediction is None


def test_the_same_seed_gives_the_same_trace_and_another_seed_another(pair: Pair) -> None:
    assert pair.trace(TEXT, seed=3) == pair.trace(TEXT, seed=3)
    assert (
        len({tuple(token.masked for token in pair.trace(TEXT, seed=seed)) for seed in range(5)}) > 1
    )


def test_the_top_predictions_come_in_order_and_as_many_as_asked(pair: Pair) -> None:
    predictions = [token.prediction for token in pair.trace(TEXT, top=4) if token.prediction]
    assert predictions
    for prediction in predictions:
        chances = [chance for _, chance in prediction.top_k]
        assert len(chances) == 4
        assert chances == sorted(chances, reverse=True)


def test_a_long_text_is_cut_to_the_positions_the_model_has(pair: Pair) -> None:
    read = pair.positions - 2
    with pytest.warns(UserWarning, match=f"300 tokens, and the model reads the first {read}$"):
        assert len(pair.trace("dog " * 300)) == pair.positions


def test_a_text_with_unknown_signs_is_warned_of(pair: Pair) -> None:
    with pytest.warns(UserWarning, match=r"^2 of 3 tokens are \[UNK\]"):
        pair.trace("dog \N{GRINNING FACE} \N{GRINNING FACE}")


def test_a_text_of_one_word_goes_through(pair: Pair) -> None:
    assert len(pair.trace("dog")) >= 3


@pytest.mark.parametrize("text", ["", "  \n"])
def test_a_text_without_words_is_refused(pair: Pair, text: str) -> None:
    with pytest.raises(UserError, match=wording("a_text_without_words_is_refused")):
        pair.trace(text)


def test_a_text_that_is_not_utf8_is_refused(pair: Pair) -> None:
    with pytest.raises(UserError, match=r"^the text: byte 0xff is not UTF-8"):
        pair.trace("caf\udcff")


def test_a_folder_without_both_models_is_refused_with_the_one_that_is_missing(
    finished: Path,
) -> None:
    with pytest.raises(
        UserError,
        match=wording("a_folder_without_both_models_is_refused_with_the_one_that_is_missing"),
    ):
        Pair(finished / "discriminator")


# ---- the terminal --------------------------------------------------------------------------------


ROWS = ["original", "masked", "generator's sample", "P(replaced)"]


def test_a_traced_sentence_is_printed_in_four_labelled_rows(finished: Path) -> None:
    console = Terminal(width=400, record=True, file=io.StringIO())
    tokens = trace_sentence(finished, TEXT, seed=0)
    print_trace(tokens, console)
    lines = console.export_text().splitlines()
    rows = dict(zip(ROWS, lines, strict=False))
    for label, line in rows.items():
        assert line.startswith(label)
    values = {label: line.removeprefix(label).split() for label, line in rows.items()}
    assert values["original"] == [token.original for token in tokens]
    assert " ".join(values["original"]).replace(" ##", "") == TEXT
    assert values["masked"] == [token.masked for token in tokens]
    assert "[MASK]" in values["masked"]
    assert values["generator's sample"] == [token.corrupted for token in tokens]
    assert values["P(replaced)"] == [f"{token.p_replaced:.2f}" for token in tokens]


def test_the_rows_of_a_token_are_aligned_and_a_long_sentence_wraps_into_blocks(
    finished: Path,
) -> None:
    console = Terminal(width=60, record=True, file=io.StringIO())
    tokens = trace_sentence(finished, TEXT, seed=0)
    print_trace(tokens, console)
    lines = console.export_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("original")]
    assert len(starts) > 1
    words = []
    for start in starts:
        rows = lines[start : start + len(ROWS)]
        assert [row.startswith(label) for row, label in zip(rows, ROWS, strict=True)]
        assert max(map(len, rows)) <= 60
        words += rows[0].removeprefix("original").split()
        first_column = len("generator's sample") + 2
        assert all(row[first_column - 1] == " " and row[first_column] != " " for row in rows)
    assert words == [token.original for token in tokens]


def test_a_column_wider_than_the_terminal_still_gets_a_block_of_its_own() -> None:
    wide, narrow = [("x" * 30, "")], [("y", "")]
    assert list(split_columns([narrow, wide, narrow], width=10)) == [[narrow], [wide], [narrow]]


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_a_traced_sentence_is_drawn_to_a_file_and_still_printed(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    picture = tmp_path / f"trace{suffix}"
    assert main(["show", str(finished), TEXT, "--output", str(picture)]) == 0
    assert "original" in capsys.readouterr().out
    drawn = html.unescape(picture.read_text(encoding="utf8")).replace("\xa0", " ")
    for label in ROWS:
        assert label in drawn
    for token in trace_sentence(finished, TEXT, seed=0):
        assert token.original in drawn
        assert f"{token.p_replaced:.2f}" in drawn
    assert [path.name for path in tmp_path.iterdir()] == [picture.name]


def test_markup_in_a_sentence_is_escaped_in_the_picture(finished: Path, tmp_path: Path) -> None:
    picture = tmp_path / "trace.svg"
    assert main(["show", str(finished), "<dog> & the [red] house", "--output", str(picture)]) == 0
    xml.etree.ElementTree.parse(picture)


@pytest.mark.parametrize("name", ["trace.png", "trace"])
def test_a_picture_of_another_format_is_refused_before_the_models_are_read(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["show", str(finished), TEXT, "--output", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert (
        wording("a_picture_of_another_format_is_refused_before_the_models_are_read") in printed.err
    )
    assert printed.out == ""
    assert not (tmp_path / name).exists()


def test_a_picture_in_a_missing_folder_is_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(finished), TEXT, "--output", str(tmp_path / "no" / "x.svg")]) == 2
    assert f"no folder {tmp_path / 'no'}; make it first" in capsys.readouterr().err


def test_without_a_text_there_is_one_to_show(finished: Path, console: Terminal) -> None:
    print_trace(trace_sentence(finished, None, seed=0), console)
    assert "original" in console.export_text()


def test_a_row_keeps_word_pieces_and_brackets_are_no_markup() -> None:
    block = [[("play", "")], [("##ing", "")], [("[red]", "bold")]]
    assert aligned_row("x", block, 0).plain == "x                   play  ##ing  [red]"


def test_the_highest_probability_is_the_reddest() -> None:
    assert probability_cell(0.0, 0.4) == ("0.00", "rgb(255,255,255)")
    assert probability_cell(0.4, 0.4) == ("0.40", "rgb(255,0,0)")
    assert probability_cell(0.9, 0.9)[1].endswith("underline")
    assert probability_cell(0.0, 0.0) == ("0.00", "rgb(255,255,255)")


def test_scores_are_printed_beside_their_baselines(console: Terminal) -> None:
    scores = {"mlm_loss": 4.5, "baseline_mlm_loss": 6.25, "auc": 0.75}
    print_scores(scores, load_recipe("tiny").objective.metrics(), console)
    printed = console.export_text()
    for expected in ("4.500", "6.250", "0.750", "0.500"):
        assert expected in printed
    assert "recall" not in printed


def test_the_curves_of_both_losses_are_drawn(finished: Path, console: Terminal) -> None:
    print_curves(finished, console)
    shown = console.export_text()
    assert "generator loss, step 1 to 2" in shown
    assert "discriminator loss, step 1 to 2" in shown


def test_a_run_without_metrics_has_no_curves(tmp_path: Path, console: Terminal) -> None:
    print_curves(tmp_path, console)
    assert console.export_text() == ""
