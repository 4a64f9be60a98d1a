"""The command line, as a user in a hurry meets it: what is promised, and one clear message for every mistake."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from electra import __version__
from electra.__main__ import main
from electra.data.wordpiece import WordPiece
from electra.training import checkpoint, journal
from tests.conftest import TOY_FLAGS

pytestmark = pytest.mark.usefixtures("few_threads")

QUICK = {"--batch-size": "4", "--max-steps": "4", "--warmup-steps": "2", "--eval-steps": "4", "--eval-rows": "8",
         "--save-steps": "2"}


def settings(**changed: object) -> list[str]:
    """Flags of a run that takes a second; a double underscore stands for a dot."""
    flags = dict(zip(TOY_FLAGS[::2], TOY_FLAGS[1::2], strict=True)) | QUICK
    flags |= {"--" + name.replace("__", ".").replace("_", "-"): str(value) for name, value in changed.items()}
    return [word for pair in flags.items() for word in pair]


def run_words(folder: Path, *more: object, recipe: str = "tiny", data: Path | None = None,
              **changed: object) -> list[str]:
    source = [] if data is None else ["--data", data]
    return ["pretrain", recipe, *settings(**changed), "--quiet", *map(str, [*source, "--output-dir", folder, *more])]


@pytest.fixture(scope="module")
def finished(toy_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps. Tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main(run_words(folder, data=toy_shards)) == 0
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail, and return its one message."""
    def of(*words: object, code: int = 2) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        said = capsys.readouterr().err
        assert said.count("error: ") == 1, said
        assert "Traceback" not in said
        return said[said.index("error: ") + len("error: "):].strip()

    return of


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- good input ------------------------------------------------------------------------------------------------------

def test_a_run_leaves_the_promised_files_and_no_others(finished: Path) -> None:
    model = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    state = ["optimizer.safetensors", "state.json", "weights.safetensors"]
    expected = ["config.toml", "environment.json", "metrics.jsonl", "status.json"]
    expected += [f"{folder}/{name}" for folder in ("discriminator", "generator") for name in model]
    expected += [f"checkpoint-{step}/{name}" for step in (2, 4) for name in state]
    assert sorted(content(finished)) == sorted(expected)
    assert json.loads((finished / "status.json").read_text())["status"] == "finished"


def test_the_same_command_again_finds_nothing_to_do(copied: Path, toy_shards: Path) -> None:
    before = content(copied)
    assert main(run_words(copied, data=toy_shards)) == 0
    after = content(copied)
    assert after["metrics.jsonl"] == before["metrics.jsonl"]
    assert after["checkpoint-4/weights.safetensors"] == before["checkpoint-4/weights.safetensors"]


def test_more_steps_continue_the_run(copied: Path, toy_shards: Path) -> None:
    assert main(run_words(copied, data=toy_shards, max_steps=6)) == 0
    assert [entry["step"] for entry in journal.read(copied / "metrics.jsonl") if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    assert json.loads((copied / "status.json").read_text())["step"] == 6


def test_a_torn_journal_does_not_keep_a_run_from_going_on(copied: Path, toy_shards: Path) -> None:
    with (copied / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "lo\xff\x00')
    assert main(run_words(copied, data=toy_shards, max_steps=5)) == 0
    lines = (copied / "metrics.jsonl").read_text(encoding="utf8").splitlines()
    assert [json.loads(line)["step"] for line in lines if "loss" in json.loads(line)] == [1, 2, 3, 4, 5]


def test_overwriting_starts_over(copied: Path, toy_shards: Path) -> None:
    assert main(run_words(copied, "--resume", "never", "--overwrite", data=toy_shards, seed=7, max_steps=2)) == 0
    assert json.loads((copied / "status.json").read_text())["step"] == 2
    assert tomllib.loads((copied / "config.toml").read_text())["training"]["seed"] == 7
    assert [path.name for path in copied.glob("checkpoint-*")] == ["checkpoint-2"]


def test_one_command_goes_from_text_to_models(toy_corpus: Path, tmp_path: Path) -> None:
    words = run_words(tmp_path / "run", "--corpus", toy_corpus, data__vocab_size=200, data__held_out=0.1)
    assert main(words) == 0
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "run" / "data").iterdir()} == {"shards", "tokenizer"}
    assert (tmp_path / "run" / "generator" / "model.safetensors").is_file()


def test_printed_settings_are_a_recipe_for_the_same_run(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "small", "--batch-size", "64", "--print-config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "mine.toml").write_text(printed)
    assert main(["pretrain", str(tmp_path / "mine.toml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    assert tomllib.loads(printed)["training"]["batch_size"] == 64


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(
        tmp_path: Path, toy_shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(run_words(tmp_path / "run", "--dry-run", data=toy_shards)) == 0
    said = capsys.readouterr().out
    assert "training, whole run" in said
    assert "max_steps = 4" in said
    assert not (tmp_path / "run").exists()


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_a_recipe_a_run_a_model_and_an_unfinished_run_can_be_described(
        finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(finished / "config.toml", tmp_path)
    for what in ("small", finished, finished / "generator", tmp_path):
        assert main(["describe", str(what), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["parameters"]["encoder"] > 0


def test_a_sentence_is_shown_on_its_way(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(finished), "the old dog sees the green house ."]) == 0
    said = capsys.readouterr().out
    assert "[MASK]" in said
    assert "the generator's best guesses" in said


# ---- recipes, settings and flags -----------------------------------------------------------------------------------

@pytest.mark.parametrize(("words", "message"), [
    (["tinny"], "unknown recipe 'tinny'; did you mean tiny? A file of your own ends in .toml."),
    (["nowhere.toml"], "nowhere.toml: no such file"),
    (["tiny", "--learnin-rate", "3"], "command line: unknown setting --learnin-rate; did you mean --learning-rate?"),
    (["tiny", "--encoder.headz", "3"], "command line: unknown setting --encoder.headz; did you mean --encoder.heads?"),
    (["tiny", "--overwrit"], "command line: unknown setting --overwrit; did you mean --overwrite?"),
    (["tiny", "--batch-size"], "--batch-size needs a value"),
    (["tiny", "--batch-size", "many"], "command line: training.batch_size must be a whole number, found 'many'"),
    (["tiny", "--max-steps", "0"], "command line: training.max_steps=0 must be at least 1"),
    (["tiny", "--max-steps", "2.7"], "Invalid value for --max-steps: '2.7' is not a whole number"),
    (["tiny", "--seed", "1.5"], "Invalid value for --seed: '1.5' is not a whole number"),
    (["tiny", "--learning-rate", "-1"], "command line: optimizer.learning_rate=-1.0 must be above 0"),
    (["tiny", "--learning-rate", "nan"], "command line: optimizer.learning_rate must be a finite number, found 'nan'"),
    (["tiny", "--weight-decay", "-0.1"], "command line: optimizer.weight_decay=-0.1 must not be negative"),
    (["tiny", "--epsilon", "0"], "command line: optimizer.epsilon=0.0 must be above 0"),
    (["tiny", "--deterministic", "yes"], "command line: training.deterministic must be true or false, found 'yes'"),
    (["tiny", "--encoder.heads", "3"], "recipe tiny and command line: encoder.width=64 does not split into "
     "encoder.heads=3 equal heads; the next width that does is 66"),
    (["tiny", "--micro-batch-size", "5"], "recipe tiny and command line: training.batch_size=64 is not made of whole "
     "micro-batches of training.micro_batch_size=5; choose a divisor"),
    (["tiny", "--data.length", "129"], "command line and recipe tiny: data.length=129 is more than "
     "encoder.positions=64"),
    (["tiny", "stray"], "unexpected argument 'stray'; settings are written --section.key value"),
    (["tiny", "--report-to", "wandb"], "command line: training.report_to must be one of 'none', 'tensorboard', found "
     "'wandb'"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_wrong_recipe_or_setting_is_refused_before_anything_happens(
        tmp_path: Path, complaint: Callable[..., str], words: list[str], message: str) -> None:
    folder = tmp_path / "run"
    assert complaint("pretrain", *words, "--data", "rows", "--output-dir", folder) == message
    assert not folder.exists()


@pytest.mark.parametrize(("toml", "message"), [
    ("[encoder]\nlayers = 2.0\n", "encoder.layers must be a whole number, found float 2.0"),
    ("[encoder]\nlayer = 2\n", "unknown key encoder.layer; did you mean encoder.layers?"),
    ("[training]\ndeterministic = \"False\"\n", "training.deterministic must be true or false, found str 'False'"),
    ("[objective]\nname = \"rdt\"\n", "objective.name must be one of 'rtd', 'mlm', 'replace-mlm', "
     "'all-tokens-mlm', 'left-to-right', found 'rdt'; did you mean rtd?"),
    ("encoder = 3\n", "encoder is a section, found 3; write encoder.NAME = …"),
    ("[optimizer]\nbetas = [0.9]\n", "optimizer.betas must be a list of 2 numbers, found list [0.9]"),
    ("[optimizer]\nlearning_rate = inf\n", "optimizer.learning_rate must be a finite number, found float inf"),
])
def test_a_mistake_in_a_recipe_file_is_named_with_the_file_and_the_key(
        tmp_path: Path, complaint: Callable[..., str], toml: str, message: str) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(toml)
    assert complaint("pretrain", recipe, "--data", "rows", "--output-dir", tmp_path / "run") == f"{recipe}: {message}"
    assert not (tmp_path / "run").exists()


def test_half_precision_without_a_gpu_is_refused(tmp_path: Path, toy_shards: Path,
                                                 complaint: Callable[..., str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    said = complaint(*run_words(tmp_path / "run", data=toy_shards, precision="fp16"))
    assert said == "--precision fp16 needs a GPU; use bf16 or fp32 on a CPU"
    assert not (tmp_path / "run").exists()


# ---- text, tokenizers and shards -----------------------------------------------------------------------------------

def test_text_and_shards_together_or_neither_are_refused(tmp_path: Path, toy_corpus: Path, toy_shards: Path,
                                                         complaint: Callable[..., str]) -> None:
    wanted = "give either --corpus (text files) or --data (shards from `electra shard`)"
    assert complaint(*run_words(tmp_path / "run")) == wanted
    assert complaint(*run_words(tmp_path / "run", "--corpus", toy_corpus, data=toy_shards)) == wanted
    assert complaint(*run_words(tmp_path / "run", "--corpus")) == "name at least one file, folder or glob of text"
    assert complaint("pretrain", "tiny", "--data", toy_shards).startswith("--output-dir is missing")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "bytes_", "message"), [
    ("missing.txt", None, "missing.txt: no such file or folder"),
    ("empty.txt", b"", "the corpus holds no text: "),
    ("blank.txt", b" \n\n \n", "the corpus holds no text: "),
    ("junk.txt", bytes(range(256)), "junk.txt:1: a NUL byte; this is not UTF-8 text"),
    ("latin.txt", b"fine\ncaf\xe9\n", "latin.txt:2: byte 0xe9 at column 4 is not UTF-8"),
    ("picture.png", b"\x89PNG", "picture.png: cannot tell what this file holds from its name"),
    ("rows.jsonl", b'{"body": "x"}\n', "rows.jsonl:1: no field 'text'; fields here are body"),
])
def test_text_that_cannot_be_read_is_refused_with_its_file_and_line(
        tmp_path: Path, complaint: Callable[..., str], name: str, bytes_: bytes | None, message: str) -> None:
    if bytes_ is not None:
        (tmp_path / name).write_bytes(bytes_)
    assert message in complaint(*run_words(tmp_path / "run", "--corpus", tmp_path / name))
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()]


def test_too_little_text_for_a_batch_is_refused_with_the_numbers(tmp_path: Path, toy_shards: Path,
                                                                 complaint: Callable[..., str]) -> None:
    said = complaint(*run_words(tmp_path / "run", data=toy_shards, batch_size=4000))
    assert "fewer than one batch of 4000; add text, or pass a smaller --batch-size" in said
    assert str(toy_shards) in said
    assert not (tmp_path / "run").exists()


def test_shards_of_another_length_are_refused_with_both_ways_out(tmp_path: Path, toy_shards: Path,
                                                                 complaint: Callable[..., str]) -> None:
    said = complaint(*run_words(tmp_path / "run", data=toy_shards, data__length=16))
    assert "holds rows of 32 tokens, but the recipe's data.length is 16" in said
    assert "--length 16" in said
    assert "--data.length 32" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["missing", "toy.txt"])
def test_data_that_is_no_folder_of_shards_is_refused_with_the_command_that_makes_one(
        tmp_path: Path, toy_corpus: Path, complaint: Callable[..., str], name: str) -> None:
    said = complaint(*run_words(tmp_path / "run", data=toy_corpus.parent / name))
    assert name in said
    assert "electra shard" in said
    assert not (tmp_path / "run").exists()


def test_damaged_shards_are_refused(tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]) -> None:
    rows = Path(shutil.copytree(toy_shards, tmp_path / "rows"))
    damaged = rows / "train-00000.ids.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    said = complaint(*run_words(tmp_path / "run", data=rows))
    assert said.startswith(f"{damaged}: damaged")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_without_a_mask_is_refused(tmp_path: Path, toy_corpus: Path, toy_shards: Path,
                                               complaint: Callable[..., str]) -> None:
    tokenizer = Path(shutil.copytree(toy_shards / "tokenizer", tmp_path / "tokenizer"))
    for path in tokenizer.iterdir():
        path.write_text(path.read_text(encoding="utf8").replace("[MASK]", "[HOLE]"), encoding="utf8")
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({**config, "mask_token": None}))
    for words in (["shard", toy_corpus, "--output-dir", tmp_path / "run"],
                  run_words(tmp_path / "run", "--corpus", toy_corpus)):
        said = complaint(*words, "--tokenizer", tokenizer)
        assert f"{tokenizer}: no [MASK] token, which pre-training needs" in said
        assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()]


@pytest.mark.parametrize(("part", "message"), [
    ("3/2", "part 3/2 does not exist; parts are counted from 1, as in 1/2"),
    ("x", "--part x: write it as i/N, for example 1/8"),
    ("0/2", "part 0/2 does not exist; parts are counted from 1, as in 1/2"),
])
def test_a_part_that_does_not_exist_is_refused(tmp_path: Path, toy_corpus: Path, toy_shards: Path,
                                               complaint: Callable[..., str], part: str, message: str) -> None:
    said = complaint("shard", toy_corpus, "--tokenizer", toy_shards / "tokenizer", "--output-dir", tmp_path / "rows",
                     "--part", part)
    assert said == message
    assert not (tmp_path / "rows").exists()


def test_vocab_and_shard_say_what_they_miss(tmp_path: Path, toy_corpus: Path, complaint: Callable[..., str]) -> None:
    folder = tmp_path / "made"
    assert complaint("vocab", "--output-dir", folder) == "name at least one file, folder or glob of text"
    assert complaint("shard", toy_corpus, "--output-dir", folder).startswith("--tokenizer is missing")
    assert "no such tokenizer folder" in complaint("shard", toy_corpus, "--tokenizer", tmp_path / "no",
                                                   "--output-dir", folder)
    assert "vocab_size=3" in complaint("vocab", toy_corpus, "--output-dir", folder, "--vocab-size", "3")
    assert "--output-dir" in complaint("vocab", toy_corpus)
    assert "Did you mean --output-dir?" in complaint("vocab", toy_corpus, "--output-dirr", folder)
    assert not folder.exists()


# ---- run folders -----------------------------------------------------------------------------------------------------

def test_a_folder_that_holds_another_run_is_refused_with_the_keys_that_differ(
        finished: Path, toy_shards: Path, complaint: Callable[..., str]) -> None:
    before = content(finished)
    said = complaint(*run_words(finished, data=toy_shards, seed=9, optimizer__learning_rate=0.001))
    assert said.splitlines() == [
        f"{finished} holds another run:",
        "  optimizer.learning_rate: here 0.004, asked 0.001",
        "  training.seed: here 0, asked 9",
        "Use another --output-dir, or --resume never --overwrite to start over in this one."]
    assert content(finished) == before


def test_starting_over_must_be_asked_for_twice(finished: Path, toy_shards: Path, complaint: Callable[..., str]) -> None:
    before = content(finished)
    assert "already holds a run" in complaint(*run_words(finished, "--resume", "never", data=toy_shards))
    assert "needs --resume never" in complaint(*run_words(finished, "--overwrite", data=toy_shards))
    assert content(finished) == before


def test_a_run_is_never_started_over_because_its_checkpoints_are_damaged(
        copied: Path, toy_shards: Path, complaint: Callable[..., str]) -> None:
    for state in copied.glob("checkpoint-*/state.json"):
        state.write_text("{")
    before = content(copied)
    said = complaint(*run_words(copied, data=toy_shards, max_steps=6))
    assert "none of its 2 checkpoints is whole" in said
    assert "checkpoint-4/state.json is damaged" in said
    assert content(copied) == before


def test_checkpoints_of_another_program_are_left_alone(tmp_path: Path, toy_shards: Path,
                                                       complaint: Callable[..., str]) -> None:
    theirs = tmp_path / "run" / "checkpoint-500" / "trainer_state.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    for resume in ("auto", "never"):
        complaint(*run_words(tmp_path / "run", "--resume", resume, data=toy_shards))
        assert theirs.is_file()


@pytest.mark.parametrize("where", ["file", "file/run"])
def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path, toy_shards: Path, complaint: Callable[..., str],
                                                    where: str) -> None:
    (tmp_path / "file").write_text("precious")
    said = complaint(*run_words(tmp_path / where, data=toy_shards))
    assert said == f"--output-dir {tmp_path / where}: {tmp_path / 'file'} is a file; name a folder"
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_that_cannot_be_written_is_refused(tmp_path: Path, toy_shards: Path,
                                                            complaint: Callable[..., str]) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "no permission to write" in complaint(*run_words(tmp_path / "locked" / "run", data=toy_shards))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to, as Linux has")
def test_an_output_folder_that_not_even_root_can_write_is_refused(toy_shards: Path,
                                                                  complaint: Callable[..., str]) -> None:
    said = complaint(*run_words(Path("/proc/run"), data=toy_shards))
    assert said.startswith("--output-dir /proc/run: ")
    assert said.endswith("; name another folder")


def test_a_checkpoint_to_resume_must_be_one(tmp_path: Path, finished: Path, toy_shards: Path,
                                            complaint: Callable[..., str]) -> None:
    words = (*run_words(tmp_path / "run", data=toy_shards), "--resume")
    assert complaint(*words, tmp_path / "no") == (f"--resume {tmp_path / 'no'}: no such folder; use auto, never, or a "
                                                  f"checkpoint-STEP folder")
    assert "state.json is missing" in complaint(*words, finished / "generator")
    assert "no such folder" in complaint(*words, finished / "config.toml")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_may_continue_in_another_folder_but_not_behind_the_back_of_its_own(
        tmp_path: Path, copied: Path, toy_shards: Path, complaint: Callable[..., str]) -> None:
    early = copied / "checkpoint-2"
    assert "already went on to step 4" in complaint(*run_words(copied, "--resume", early, data=toy_shards))
    assert main(run_words(tmp_path / "branch", "--resume", early, data=toy_shards, max_steps=3)) == 0
    assert json.loads((tmp_path / "branch" / "status.json").read_text())["step"] == 3


def test_a_model_to_start_from_must_fit(tmp_path: Path, finished: Path, toy_shards: Path,
                                        complaint: Callable[..., str]) -> None:
    folder, model = tmp_path / "run", finished / "discriminator"
    for nothing in (tmp_path / "no", toy_shards, finished / "config.toml"):
        said = complaint(*run_words(folder, "--init-from", nothing, data=toy_shards))
        assert said.startswith(f"--init-from {nothing}: no model for discriminator or generator there")
    said = complaint(*run_words(folder, "--init-from", model, data=toy_shards, encoder__layers=3))
    assert "num_hidden_layers is 2, but the network to fill has encoder.layers=3" in said
    said = complaint(*run_words(folder, "--init-from", finished / "generator", data=toy_shards, recipe="bert-small"))
    assert "hidden_size is 16" in said
    assert not folder.exists()


def test_a_model_of_another_vocabulary_is_refused_with_the_command_that_helps(
        tmp_path: Path, copied: Path, toy_shards: Path, complaint: Callable[..., str]) -> None:
    model = copied / "discriminator"
    definition = json.loads((model / "tokenizer.json").read_text(encoding="utf8"))
    definition["normalizer"]["lowercase"] = False
    (model / "tokenizer.json").write_text(json.dumps(definition), encoding="utf8")
    assert WordPiece.load(model).size == WordPiece.load(toy_shards / "tokenizer").size
    said = complaint(*run_words(tmp_path / "new", "--init-from", model, data=toy_shards))
    assert f"its tokenizer is not the one that {toy_shards} was cut with" in said
    assert f"--tokenizer {model}" in said


@pytest.mark.parametrize("words", [["show"], ["describe"]])
def test_a_folder_without_a_model_is_refused(toy_shards: Path, complaint: Callable[..., str],
                                             words: list[str]) -> None:
    assert str(toy_shards) in complaint(*words, toy_shards)


def test_an_empty_sentence_is_refused(finished: Path, complaint: Callable[..., str]) -> None:
    assert complaint("show", finished, " ") == "the text is empty; give a sentence"
    assert complaint("show", finished, "") == "the text is empty; give a sentence"


# ---- what goes wrong while it runs -----------------------------------------------------------------------------------

def test_a_full_disk_ends_the_run_and_leaves_the_last_good_checkpoint(
        tmp_path: Path, toy_shards: Path, complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, save_file = tmp_path / "run", checkpoint.save_file

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if "checkpoint-4" in str(path):
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    said = complaint(*run_words(folder, data=toy_shards), code=1)
    assert "the checkpoint of step 4 could not be written: [Errno 28] No space left on device" in said
    assert f"the last good checkpoint is {folder / 'checkpoint-2'}" in said
    status = json.loads((folder / "status.json").read_text())
    assert (status["status"], status["checkpoint"]) == ("failed", "checkpoint-2")
    assert checkpoint.opened(folder / "checkpoint-2").step == 2
    assert [path.name for path in folder.iterdir() if "checkpoint" in path.name] == ["checkpoint-2"]
    monkeypatch.undo()
    assert main(run_words(folder, data=toy_shards)) == 0


@pytest.mark.parametrize("fault", ["electra.model.huggingface.save_file", "electra.training.journal.Journal.record"])
def test_a_full_disk_at_any_other_write_is_said_as_plainly(
        tmp_path: Path, toy_shards: Path, complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch,
        fault: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fault, full)
    said = complaint(*run_words(tmp_path / "run", data=toy_shards), code=1)
    assert "No space left on device" in said
    assert "checkpoint" in said
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "failed"


def test_a_loss_that_is_not_finite_ends_the_run_with_the_tensor_and_the_last_checkpoint(
        tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]) -> None:
    said = complaint(*run_words(tmp_path / "run", data=toy_shards, learning_rate=1e30, save_steps=1, warmup_steps=0),
                     code=1)
    assert "the output of generator.encoder.embeddings.norm (micro-batch 0) is not finite in step 2" in said
    assert f"the last good checkpoint is {tmp_path / 'run' / 'checkpoint-1'}" in said
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "failed"


def test_a_fault_of_ours_is_said_without_a_traceback_and_with_a_way_to_see_one(
        complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("we did not think of this")

    monkeypatch.setattr("electra.training.recipe.load_recipe", broken)
    assert complaint("describe", "tiny", code=1) == "RuntimeError: we did not think of this (--debug shows where)"
    with pytest.raises(RuntimeError):
        main(["describe", "tiny", "--debug"])


def test_a_misspelt_command_is_refused_with_the_nearest(complaint: Callable[..., str]) -> None:
    assert 'Did you mean "pretrain"?' in complaint("pretrian", "tiny")


@pytest.mark.parametrize("command", ["vocab", "shard"])
def test_an_output_folder_that_is_a_file_is_refused_before_the_work(
        tmp_path: Path, toy_corpus: Path, toy_shards: Path, complaint: Callable[..., str], command: str) -> None:
    (tmp_path / "file").write_text("mine")
    more = ["--tokenizer", toy_shards / "tokenizer"] if command == "shard" else []
    assert complaint(command, toy_corpus, "--output-dir", tmp_path / "file", *more) == (
        f"--output-dir {tmp_path / 'file'} is a file; name a folder")
