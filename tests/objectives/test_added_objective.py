"""An objective that the package does not know: a settings class, a module and a recipe, no more."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ElectraForMaskedLM

from electra.cli.describe import describe_recipe
from electra.config import UserError
from electra.data.batches import Batch
from electra.model.electra_encoder import ElectraEncoder
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape
from electra.model.workload import LinearHead, Workload
from electra.objectives.measures import Loss, MetricSums, sum_and_count
from electra.objectives.metrics import Metric
from electra.objectives.objective import Objective
from electra.objectives.settings import REGISTERED, ObjectiveConfig, register
from electra.objectives.vocabulary import Vocabulary
from electra.pretraining.dry_run import inspect_run
from electra.pretraining.options import PretrainOptions
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs import journal, run_dir
from tests.conftest import TOY_FLAGS
from tests.wording import wording_of

wording = wording_of(__file__)

RECIPE = """
[objective]
name = "segments"
weight = 2.0
"""


class Segments(Objective):
    """Does a token belong to the first segment or to the second? Read without token types."""

    def __init__(
        self,
        config: SegmentsConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        super().__init__(vocabulary=vocabulary, unigrams=unigrams)
        self.config = config
        self.encoder = Generator(ElectraEncoder(encoder, vocabulary=vocabulary.size))
        self.head = nn.Linear(encoder.width, 1)

    def logits(self, batch: Batch) -> Tensor:
        hidden = self.encoder.encoder(
            batch.input_ids, torch.zeros_like(batch.input_ids), batch.attention_mask, batch.packing
        )
        logits: Tensor = self.head(hidden).squeeze(-1).float()
        return logits

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        labels = batch.token_type_ids.float()
        losses = F.binary_cross_entropy_with_logits(self.logits(batch), labels, reduction="none")
        loss = (losses * batch.attention_mask).sum() / batch.step_lengths.sum()
        return Loss(self.config.weight * loss, {"segments": loss.detach()})

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> MetricSums:
        correct = (self.logits(batch) > 0) == (batch.token_type_ids == 1)
        return MetricSums({"segment_accuracy": sum_and_count(correct, batch.attention_mask)})

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"encoder": self.encoder}


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentsConfig(ObjectiveConfig):
    """The settings of Segments."""

    name: Literal["segments"] = "segments"
    weight: float = 1.0

    def metrics(self) -> tuple[Metric, ...]:
        accuracy = Metric(
            name="segment_accuracy", title="segments, accuracy", network="encoder", baseline=0.5
        )
        return (accuracy,)

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        heads = (LinearHead("segment head"),)
        return Workload(
            encoder=encoder, heads=heads, network="encoder", vocabulary=vocabulary, length=length
        )

    def build(
        self, *, encoder: EncoderShape, vocabulary: Vocabulary, unigrams: Tensor
    ) -> Objective:
        return Segments(self, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Iterator[str]:
    """A recipe of the objective, which is registered for the length of one test."""
    register(SegmentsConfig)
    path = tmp_path / "segments.toml"
    path.write_text(RECIPE, encoding="utf8")
    yield str(path)
    del REGISTERED["segments"]


def test_it_is_trained_measured_exported_and_resumed(
    recipe_file: str, toy_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    short = load_recipe(recipe_file, flags=[*TOY_FLAGS, "--max-steps", "8"])
    pretrain(short, data=toy_shards, output_dir=run, quiet=True)
    whole = load_recipe(recipe_file, flags=TOY_FLAGS)
    outcome = pretrain(whole, data=toy_shards, output_dir=run, resume_schedule="stretch")
    assert (outcome.status, outcome.step) == ("finished", 20)
    losses = [
        entry["segments"]
        for entry in journal.read_metrics(run / "metrics.jsonl")
        if "segments" in entry
    ]
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    printed = capsys.readouterr().err
    assert f"step 20/20  segments {losses[-1]:.4f}  " in printed
    score = outcome.scores["segment_accuracy"]
    assert f"step 20/20  held-out (baseline): segment_accuracy {score:.3f} (0.500)" in printed
    assert 0.5 < outcome.scores["segment_accuracy"] <= 1
    assert ElectraForMaskedLM.from_pretrained(run / "encoder").config.num_hidden_layers == 2


@pytest.mark.parametrize("method", ["forward", "measure", "networks"])
def test_a_mistake_in_it_ends_the_run_as_failed_with_its_own_error_and_the_last_checkpoint(
    recipe_file: str,
    toy_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    calls = {"forward": 3 * 5 + 1, "measure": 1, "networks": 2}[method]  # the one that fails
    answer, done = getattr(Segments, method), itertools.count(1)

    def fail(*arguments: object) -> object:
        if next(done) == calls:
            raise ValueError("my own mistake")
        return answer(*arguments)

    monkeypatch.setattr(Segments, method, fail)
    run = tmp_path / "run"
    recipe = load_recipe(recipe_file, flags=[*TOY_FLAGS, "--max-steps", "10"])
    with pytest.raises(ValueError, match="my own mistake") as failed:
        pretrain(recipe, data=toy_shards, output_dir=run, quiet=True)
    step, last = {"forward": (5, 4), "measure": (10, 8), "networks": (10, 10)}[method]
    status = json.loads((run / "status.json").read_text())
    assert (status["status"], status["step"]) == ("failed", step)
    assert (status["message"], status["checkpoint"]) == (
        "ValueError: my own mistake",
        f"checkpoint-{last}",
    )
    (note,) = failed.value.__notes__
    assert note.startswith(f"after step {step}: the last good checkpoint is {run}")
    assert note.endswith("the same command continues from there.")


@pytest.mark.parametrize(
    ("method", "answer", "status"),
    [
        ("networks", {}, None),
        ("networks", {"mynet": None}, None),
        ("networks", {"discriminator": nn.Linear(1, 1)}, None),
        ("forward", torch.ones(()), "failed"),
        ("forward", Loss(torch.ones(()), {"step": torch.ones(())}), "failed"),
        ("forward", Loss(torch.ones(()), {"x": 1.0}), "failed"),  # type: ignore[dict-item]
    ],
    ids=["no_network", "another_name", "no_model", "no_loss", "reserved_part", "no_tensor"],
)
def test_what_it_returns_is_checked_before_the_end_of_the_first_step(
    recipe_file: str,
    toy_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    method: str,
    answer: object,
    status: str | None,
) -> None:
    monkeypatch.setattr(Segments, method, lambda *_: answer)
    recipe, run = load_recipe(recipe_file, flags=TOY_FLAGS), tmp_path / "run"
    message = wording(f"what_it_returns_is_checked_{request.node.callspec.id}")
    with pytest.raises(UserError, match=message):
        pretrain(recipe, data=toy_shards, output_dir=run, quiet=True)
    assert run_dir.get_status(run).get("status") == status
    with pytest.raises(UserError, match=message):
        inspect_run(recipe, PretrainOptions(data=toy_shards), None)


def test_a_metric_that_is_declared_and_not_measured_is_warned_of_once(
    recipe_file: str,
    toy_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    declared = Metric(name="lost_loss", title="loss", network="encoder", baseline="baseline_lost")
    monkeypatch.setattr(SegmentsConfig, "metrics", lambda _: (declared,))
    flags = [*TOY_FLAGS, "--max-steps", "2", "--eval-steps", "1"]
    recipe = load_recipe(recipe_file, flags=flags)
    pretrain(recipe, data=toy_shards, output_dir=tmp_path / "run", quiet=True)
    warning = wording("a_metric_that_is_declared_and_not_measured_is_warned_of_once")
    assert capsys.readouterr().err.count(warning) == 1


def test_its_settings_its_costs_and_its_metrics_are_known(recipe_file: str) -> None:
    recipe = load_recipe(recipe_file, flags=["--objective.weight", "3"])
    assert (recipe.objective.name, recipe.objective.weight) == ("segments", 3.0)
    described = describe_recipe(recipe, name="segments")
    assert described.standard.networks["encoder"]["segment head"] == 2 * recipe.encoder.width
    assert [metric.name for metric in recipe.objective.metrics()] == ["segment_accuracy"]


def test_a_setting_of_another_objective_is_refused(recipe_file: str) -> None:
    with pytest.raises(UserError) as refused:
        load_recipe(recipe_file, flags=["--objective.masking.rate", "0.2"])
    assert refused.value.key == "objective.masking"  # type: ignore[attr-defined]


def test_without_its_file_a_recipe_of_it_is_refused_with_the_way_to_register_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "segments.toml"
    path.write_text(RECIPE, encoding="utf8")
    match = wording("without_its_file_a_recipe_of_it_is_refused_with_the_way_to_register_it")
    with pytest.raises(UserError, match=match):
        load_recipe(str(path))


def test_a_class_that_declares_too_little_or_a_name_that_is_taken_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Nameless(SegmentsConfig):
        name: str = "nameless"  # type: ignore[assignment]

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Silent(ObjectiveConfig):
        name: Literal["silent"] = "silent"

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Taken(SegmentsConfig):
        name: Literal["rtd"] = "rtd"  # type: ignore[assignment]

    for settings, error in ((Nameless, TypeError), (Silent, TypeError), (Taken, ValueError)):
        with pytest.raises(error):
            register(settings)
    assert "silent" not in REGISTERED
    assert REGISTERED["rtd"] is not Taken
