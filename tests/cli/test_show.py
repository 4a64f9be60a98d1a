"""One sentence through a pair, and what people at a terminal see of it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from electra.cli.show import compared, curves, doubt_style, learned, row, worked_sentence
from electra.config import UserError
from electra.finetuning.results import Summary
from electra.objectives.trace import Pair
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from tests.conftest import TOY_FLAGS

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
def console() -> Console:
    return Console(width=100, record=True, file=io.StringIO())


# ---- the trace -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_only_a_hidden_token_can_be_replaced_and_only_by_what_was_sampled(
    pair: Pair, seed: int
) -> None:
    for token in pair.trace(TEXT, seed=seed):
        if token.guess is None:
            assert token.original == token.read == token.spliced
        else:
            assert token.read == "[MASK]"
            assert token.spliced == token.guess.sampled
        assert token.replaced == (token.spliced != token.original)
        assert 0 <= token.doubt <= 1


def test_the_text_comes_back_between_its_special_tokens(pair: Pair) -> None:
    words = [token.original for token in pair.trace(TEXT)]
    assert (words[0], words[-1]) == ("[CLS]", "[SEP]")
    assert " ".join(words[1:-1]).replace(" ##", "") == TEXT


def test_special_tokens_are_never_hidden(pair: Pair) -> None:
    for seed in range(20):
        tokens = pair.trace(TEXT, seed=seed)
        assert tokens[0].guess is tokens[-1].guess is None


def test_the_same_seed_gives_the_same_trace_and_another_seed_another(pair: Pair) -> None:
    assert pair.trace(TEXT, seed=3) == pair.trace(TEXT, seed=3)
    assert (
        len({tuple(token.read for token in pair.trace(TEXT, seed=seed)) for seed in range(5)}) > 1
    )


def test_the_best_guesses_come_in_order_and_as_many_as_asked(pair: Pair) -> None:
    guesses = [token.guess for token in pair.trace(TEXT, best=4) if token.guess]
    assert guesses
    for guess in guesses:
        chances = [chance for _, chance in guess.best]
        assert len(chances) == 4
        assert chances == sorted(chances, reverse=True)


def test_a_long_text_is_cut_to_the_positions_the_model_has(pair: Pair) -> None:
    assert len(pair.trace(TEXT * 20)) == pair.positions


def test_a_text_of_one_word_goes_through(pair: Pair) -> None:
    assert len(pair.trace("dog")) >= 3


@pytest.mark.parametrize("text", ["", "  \n"])
def test_a_text_without_words_is_refused(pair: Pair, text: str) -> None:
    with pytest.raises(UserError, match="the text is empty"):
        pair.trace(text)


def test_a_folder_without_both_models_is_refused_with_the_one_that_is_missing(
    finished: Path,
) -> None:
    with pytest.raises(
        UserError, match=r"no model in .*discriminator/discriminator or .*discriminator/generator"
    ):
        Pair(finished / "discriminator")


# ---- the terminal --------------------------------------------------------------------------------


def test_a_worked_sentence_shows_every_move(finished: Path, console: Console) -> None:
    worked_sentence(finished, TEXT, seed=0, console=console)
    shown = console.export_text()
    assert [line.split()[0] for line in shown.splitlines()[:4]] == [
        "original",
        "masked",
        "generator",
        "discriminator",
    ]
    assert TEXT in shown
    assert "[MASK]" in shown


def test_without_a_text_there_is_one_to_show(finished: Path, console: Console) -> None:
    worked_sentence(finished, None, seed=0, console=console)
    assert "original" in console.export_text()


def test_pieces_of_a_word_stand_together_and_brackets_are_no_markup() -> None:
    assert (
        row("x", [("play", ""), ("##ing", ""), ("[red]", "")]).plain
        == "x             playing [red]"
    )


def test_the_strongest_doubt_is_the_reddest() -> None:
    assert doubt_style(0.0, 0.4) == "rgb(255,255,255)"
    assert doubt_style(0.4, 0.4) == "rgb(255,0,0)"
    assert doubt_style(0.9, 0.9).endswith("underline")
    assert doubt_style(0.0, 0.0) == "rgb(255,255,255)"


def test_scores_stand_beside_what_not_looking_would_score(console: Console) -> None:
    learned({"mlm_loss": 4.5, "baseline_mlm_loss": 6.25, "auc": 0.75}, console)
    shown = console.export_text()
    for expected in ("4.500", "6.250", "0.750", "0.500"):
        assert expected in shown
    assert "recall" not in shown


def test_the_curves_of_both_losses_are_drawn(finished: Path, console: Console) -> None:
    curves(finished, console)
    shown = console.export_text()
    assert "generator loss, step 1 to 2" in shown
    assert "discriminator loss, step 1 to 2" in shown


def test_a_run_that_said_nothing_has_no_curves(tmp_path: Path, console: Console) -> None:
    curves(tmp_path, console)
    assert console.export_text() == ""


def summary(*scores: float) -> Summary:
    ordered, runs = sorted(scores), [{"score": score} for score in scores]
    return Summary(
        task="classify",
        metric="accuracy",
        split="dev",
        baseline=0.25,
        median=ordered[1],
        mean=ordered[1],
        sd=0.02,
        best=ordered[2],
        runs=runs,
    )


@pytest.mark.parametrize(
    ("pretrained", "words"),
    [
        ((0.60, 0.58, 0.62), "brought 10.0 points"),
        ((0.51, 0.49, 0.53), "made no clear difference"),
        ((0.44, 0.46, 0.20), "cost 6.0 points"),
        ((0.40, 0.38, 0.42), "cost 10.0 points"),
    ],
)
def test_the_comparison_says_whether_pretraining_gained_lost_or_neither(pretrained, words, console):
    compared(summary(*pretrained), summary(0.50, 0.48, 0.52), console)
    said = console.export_text()
    assert words in said
    assert "50.0, 48.0, 52.0" in said
