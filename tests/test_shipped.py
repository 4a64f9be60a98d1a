"""Models that come with the package: known by name wherever a model is taken."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer

import electra
from benchmarks import generate_pairs, minimal_pairs, record_corpus, ship
from benchmarks.markdown import ROOT, read_result
from benchmarks.shipped_tables import RECIPE, find_run
from electra import shipped
from electra.__main__ import main
from electra.config import UserError
from electra.data.wordpiece import WordPiece
from electra.model import huggingface
from electra.model.card_content import describe_origin
from electra.pretraining.options import PretrainOptions
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.settings import as_dict
from electra.tasks.models import load_pretrained, model_folder
from tests.conftest import TOY_FLAGS

NAME, LICENSE = "toy-en", "cc-by-sa-4.0"


@pytest.fixture(scope="module")
def run(toy_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "run"
    recipe = load_recipe("tiny", flags=[*TOY_FLAGS, "--max-steps", "2"])
    pretrain(recipe, data=toy_shards, output_dir=folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def record_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    entry = {
        "stage": "final",
        "arm": "candidate",
        "seed": 0,
        "minutes": 20.0,
        "settings": "modern-small",
        "made": {"hardware": "a GPU"},
        "tuned": {"glue/rte": {"scores": [0.6, 0.7, 0.65], "flags": "--epochs 5"}},
    }
    path = tmp_path_factory.mktemp("record") / "record.json"
    path.write_text(json.dumps({"runs": {"final: candidate, seed 0": entry}}), encoding="utf8")
    return path


@pytest.fixture(scope="module")
def models(run: Path, record_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shipped models with one stand-in."""
    folder = tmp_path_factory.mktemp("models")
    flags = ["--models", str(folder), "--record", str(record_file), "--license", LICENSE]
    ship.main([str(run), NAME, *flags, "--arm", "candidate", "--shard-bytes", "6000"])
    return folder


@pytest.fixture
def with_toy(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "MODELS", models)


@pytest.mark.usefixtures("with_toy")
def test_a_shipped_model_is_in_bf16_and_as_good_as_the_run_to_transformers(run: Path) -> None:
    folder = electra.model_path(NAME)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 1  # split, under one index
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            dtypes = {tensors.get_tensor(name).dtype for name in tensors.keys()}  # noqa: SIM118
            assert dtypes == {torch.bfloat16}
    stock, original = (
        AutoModel.from_pretrained(path).eval() for path in (folder, run / "discriminator")
    )
    rows = torch.tensor([[2, 7, 8, 3]])
    assert next(stock.parameters()).dtype == torch.float32
    torch.testing.assert_close(
        stock(rows).last_hidden_state, original(rows).last_hidden_state, rtol=0.05, atol=0.05
    )


def check_expected_scores(folder: Path) -> None:
    stored = json.loads((folder / ship.EXPECTED).read_text(encoding="utf8"))
    assert ship.score_fixture(folder) == pytest.approx(stored, abs=1e-2)


@pytest.mark.usefixtures("with_toy")
def test_a_shipped_model_scores_its_fixture_as_it_did_when_it_was_made() -> None:
    check_expected_scores(electra.model_path(NAME))


def test_every_model_of_the_package_scores_its_fixture_as_it_did() -> None:
    for name in shipped.shipped_models():
        check_expected_scores(electra.model_path(name))


def test_the_lines_for_transformers_trainer_give_small_en_a_fresh_head_over_the_mean() -> None:
    page = (ROOT / "docs" / "finetuning.md").read_text(encoding="utf8")
    (lines,) = re.findall(r"```python\n(import electra\nfrom transformers .*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(lines, names)
    model, folder = names["model"], electra.model_path("small-en")
    assert model.config.classifier_pooling == "mean"
    assert model.classifier.weight.shape == (3, 256)
    assert model.config.id2label == {0: "negative", 1: "neutral", 2: "positive"}
    encoder = AutoModel.from_pretrained(folder).state_dict()
    for name, tensor in model.base_model.state_dict().items():
        assert tensor.equal(encoder[name]), name
    stored = AutoModelForTokenClassification.from_pretrained(folder)
    assert not model.head.dense.weight.equal(stored.head.dense.weight)


def test_small_en_finds_as_many_minimal_pairs_as_its_card_says(tmp_path: Path) -> None:
    (stated,) = (
        run["score"]
        for run in read_result("beyond_glue")["runs"].values()
        if (run["model"], run["task"]) == ("small-en", "minimal pairs")
    )
    pairs = generate_pairs.write_pairs(tmp_path, count=40)  # of 500 in each paradigm
    accuracies = minimal_pairs.score_files("small-en", pairs)
    assert fmean(accuracies.values()) == pytest.approx(stated, abs=0.03)


def test_the_recipe_of_small_en_has_the_settings_that_it_was_trained_with() -> None:
    config = json.loads((electra.model_path("small-en") / "config.json").read_text("utf8"))
    trained, recipe = config["electra_recipe"], as_dict(load_recipe(RECIPE))
    assert recipe["encoder"] == trained["encoder"]
    assert recipe["objective"] == trained["objective"]
    unused = {"decay_ratio": trained["optimizer"]["decay_ratio"]}  # by a linear schedule
    assert recipe["optimizer"] | unused == trained["optimizer"]
    for section, key in (
        ("data", "length"),
        ("data", "vocab_size"),
        ("training", "max_steps"),
        ("training", "batch_size"),
        ("training", "ema_decay"),
    ):
        assert recipe[section][key] == trained[section][key]


def test_small_en_finds_the_mistakes_that_the_page_offers_as_examples() -> None:
    script = (Path(electra.__file__).parent / "web/page/examples.js").read_text("utf8")
    mistakes = re.findall(r'text: "(.+)"', script.partition("MISTAKES = ")[2].partition("];")[0])
    assert mistakes
    folder = electra.model_path("small-en")
    network = AutoModelForTokenClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for mistake in mistakes:
        logits = network(**tokenizer(mistake, return_tensors="pt")).logits[0]
        assert (logits.argmax(-1) == network.config.label2id["replaced"]).any(), mistake


@pytest.mark.usefixtures("with_toy")
def test_a_shipped_models_card_has_scores_with_seeds_and_limits() -> None:
    card = (electra.model_path(NAME) / "README.md").read_text(encoding="utf8")
    assert "| glue/rte | 65.0 | 60.0, 70.0, 65.0 | `--epochs 5` | 68.5 |" in card
    assert "| Licence | cc-by-sa-4.0 |" in card
    assert card.startswith("---\nlanguage: en\nlicense: cc-by-sa-4.0\n")
    assert "It does not fill masks.\n" in card
    assert "the generator beside it" not in card
    assert "share what you make from it under the same licence" in card
    assert "limits" in card


@pytest.mark.parametrize(("source", "expected"), [("wiki", False), ("openstax", True)])
def test_a_card_speaks_of_textbooks_where_the_text_had_some(
    source: str, expected: bool, tmp_path: Path
) -> None:
    counts = {source: {"kept": 1_000, "removed": 10}, "news": {"left_out": 5}}
    (tmp_path / record_corpus.FACTS).write_text(json.dumps({"sources": counts}), encoding="utf8")
    sources = ship.read_sources(tmp_path)
    assert list(sources) == [source]
    text = "\n".join([*ship.describe_text(sources), *ship.describe_license(LICENSE, sources)])
    assert "| 1,000 | 10 |" in text
    assert ("without the source `openstax`" in text) == expected


def test_a_card_states_language_and_licence_once_and_scores_of_a_named_arm_alone(
    record_file: Path,
) -> None:
    flags = ["run", NAME, "--record", str(record_file), "--license", LICENSE]
    card = "---\nlanguage: de\nlibrary_name: transformers\n---\n# run-discriminator\n---\n"
    text = ship.complete_card(card, ship.parse_options(flags))
    front = f"---\nlanguage: en\nlicense: {LICENSE}\nlibrary_name: transformers\n---\n# {NAME}\n---"
    assert text.startswith(front)
    assert "not measured" in text
    text = ship.complete_card(card, ship.parse_options([*flags, "--arm", "candidate"]))
    assert "| glue/rte | 65.0 |" in text
    assert "The tasks were scored with the weights before that." in text


def test_an_arm_has_its_own_scores(record_file: Path) -> None:
    (run,) = json.loads(record_file.read_text(encoding="utf8"))["runs"].values()
    other = run | {"arm": "other", "tuned": {"glue/rte": {"scores": [0.8]}}}
    unscored = {key: value for key, value in run.items() if key != "tuned"} | {"arm": "unscored"}
    record = {"runs": {"a": run, "b": other, "c": unscored}}
    assert find_run(record, run["stage"], run["arm"]) == run
    assert find_run(record, run["stage"], "other") == other
    assert find_run(record, run["stage"], "unscored") is None


@pytest.mark.usefixtures("with_toy")
def test_a_shipped_model_is_taken_by_its_name(models: Path, capsys: Any) -> None:
    assert model_folder(NAME) == models / NAME
    assert load_pretrained(NAME).loaded is not None
    assert WordPiece.load(NAME).definition == load_pretrained(NAME).tokenizer.definition
    assert PretrainOptions(init_from=NAME).init_from == models / NAME  # type: ignore[arg-type]
    for argv in (["describe", NAME], ["show", NAME, "the old dog sees"], ["models"]):
        assert main(argv) == 0
    printed = capsys.readouterr().out
    assert "P(replaced)" in printed
    assert "generator's sample" not in printed
    assert f"{NAME}\t{models / NAME}" in printed


@pytest.mark.usefixtures("with_toy")
def test_a_folder_in_the_working_directory_is_taken_before_a_shipped_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).mkdir()
    monkeypatch.chdir(tmp_path)
    assert shipped.resolve_shipped(NAME) == Path(NAME)


@pytest.mark.usefixtures("with_toy")
def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UserError, match=f"no model 'toy-de' comes with electra; there are {NAME}"):
        electra.model_path("toy-de")
    with pytest.raises(UserError, match=f"no such model folder; there are {NAME}"):
        model_folder("nowhere")


@pytest.mark.usefixtures("with_toy")
@pytest.mark.parametrize(
    "argv",
    [
        ["show", "toy_en", "a dog"],
        ["serve", "toy_en", "--port", "0"],
        ["shard", "text.txt", "--tokenizer", "toy_en", "--output-dir", "shards"],
        ["pretrain", "tiny", "--init-from", "toy_en", "--corpus", "text.txt"],
    ],
    ids=lambda argv: argv[0],
)
def test_a_misspelt_name_is_answered_with_the_right_one(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the old dog sees\n", encoding="utf8")
    if argv[0] == "pretrain":
        argv = [*argv, "--output-dir", "run"]
    assert main(argv) == 2
    assert f"did you mean {NAME}?" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("with_toy")
def test_a_model_made_from_a_shipped_one_names_its_licence(
    models: Path, toy_shards: Path, tmp_path: Path
) -> None:
    assert describe_origin(models / NAME) == f"{NAME} (cc-by-sa-4.0)"
    recipe = load_recipe("tiny", flags=[*TOY_FLAGS, "--max-steps", "1"])
    pretrain(recipe, data=toy_shards, output_dir=tmp_path / "run", init_from=NAME, quiet=True)
    card = (tmp_path / "run" / "discriminator" / "README.md").read_text(encoding="utf8")
    assert f"| Continued from | {NAME} (cc-by-sa-4.0) |" in card
    assert describe_origin(tmp_path / "run") == "run"  # its card states none


def test_without_shipped_models_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(shipped, "MODELS", tmp_path)
    with pytest.raises(UserError, match="this version ships none"):
        electra.model_path("small-en")
    assert main(["models"]) == 0
    assert capsys.readouterr().out == ""


def test_a_model_with_a_generator_shows_both_networks_and_too_large_a_one_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    ship.main([str(run), NAME, "--models", str(tmp_path), "--generator"])
    monkeypatch.setattr(shipped, "MODELS", tmp_path)
    assert main(["show", NAME, "the old dog sees"]) == 0
    assert "generator's sample" in capsys.readouterr().out
    monkeypatch.setattr(ship, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match="more than 1,000"):
        ship.main([str(run), "large", "--models", str(tmp_path)])
    assert not (tmp_path / "large").exists()


# ---- minimal pairs -------------------------------------------------------------------------------


def write_pairs(path: Path, *pairs: tuple[str, str]) -> Path:
    lines = [json.dumps(dict(zip(minimal_pairs.KEYS, pair, strict=True))) for pair in pairs]
    path.write_text("\n".join(lines) + "\n", encoding="utf8")
    return path


def test_a_sentence_scores_the_sum_of_log_p_original_whatever_its_batch(run: Path) -> None:
    network = huggingface.load_discriminator(run / "discriminator")
    tokenizer = load_pretrained(run).tokenizer
    sentences = ["the old dog sees", "a dog"]
    together = list(minimal_pairs.score_sentences(sentences, network, tokenizer, 2))
    for sentence, score in zip(sentences, together, strict=True):
        row = torch.tensor([[tokenizer.cls, *tokenizer.encode([sentence])[0], tokenizer.sep]])
        with torch.no_grad():
            logits = network.logits(row, torch.zeros_like(row), torch.ones_like(row).bool())
        expected = (1 - logits[0, 1:-1].sigmoid()).log().sum()
        assert score == pytest.approx(float(expected), abs=1e-4)


def test_the_accuracy_of_pairs_counts_a_tie_half_and_is_written(run: Path, tmp_path: Path) -> None:
    good, bad = torch.tensor([-1.0, -3.0, -2.0, -2.0]), torch.tensor([-2.0, -2.0, -2.0, -4.0])
    assert minimal_pairs.accuracy(good, bad) == 2.5 / 4
    same = write_pairs(tmp_path / "same.jsonl", ("the dog sees", "the dog sees"))
    output = tmp_path / "out.json"
    minimal_pairs.main([str(run), str(same), "--output", str(output)])
    assert json.loads(output.read_text(encoding="utf8"))["accuracies"] == {"same": 0.5}
    (tmp_path / "wrong.jsonl").write_text('{"sentence": 1}\n', encoding="utf8")
    with pytest.raises(UserError, match=r"wrong.jsonl:1"):
        minimal_pairs.main([str(run), str(tmp_path / "wrong.jsonl")])
