"""The curves of a run, live while it trains."""

from __future__ import annotations

import json
from pathlib import Path

from starlette.testclient import TestClient

from electra.web.curves import MAX_POINTS, Curves, thin
from tests.web.conftest import write_journal


def test_every_loss_has_its_baseline(client: TestClient, api: dict[str, str]) -> None:
    answer = client.get(f"{api['pair']}/curves").json()
    series = {each["name"]: each for each in answer["series"]}
    assert answer["status"] == "running"
    assert (answer["step"], answer["max_steps"]) == (4, 100)
    assert {each["group"] for each in series.values()} == {"loss", "auc", "rate", "speed"}
    assert series["discriminator: AUC, held-out"]["baseline"] == [[2, 0.5], [4, 0.5]]
    assert series["discriminator loss, training"]["baseline"] == [[2, 0.42], [4, 0.42]]
    assert series["generator: masked words, loss, held-out"]["points"] == [[2, 4.0], [4, 4.0]]
    assert series["learning rate"]["baseline"] is None


def test_losses_and_metrics_of_an_objective_of_ones_own_are_series_too(tmp_path: Path) -> None:
    write_journal(tmp_path)
    own = {"eval_clm_loss": 6.0, "eval_baseline_clm_loss": 6.5, "eval_perplexity": 400.0}
    lines = [{"step": 5, "clm": 6.2, "grad_norm": 1.0, "loss": 7.0}, {"step": 5, **own}]
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    write_journal(tmp_path / "known")
    known = [each["name"] for each in Curves(tmp_path / "known").read(after=-1)["series"]]
    series = {each["name"]: each for each in Curves(tmp_path).read(after=-1)["series"]}
    assert series.keys() - set(known) == {
        "clm, training",
        "objective: clm loss, held-out",
        "objective: perplexity, held-out",
    }
    assert series["objective: clm loss, held-out"]["baseline"] == [[5, 6.5]]
    assert series["clm, training"]["baseline"] == [[5, 6.5]]
    assert series["objective: perplexity, held-out"]["group"] == "objective: perplexity"


def test_a_page_asks_for_what_is_new_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_journal(run, 4)
    curves = Curves(run)
    assert curves.read(after=4)["series"] == []
    write_journal(run, 6)
    found = {each["name"]: each for each in curves.read(after=4)["series"]}
    assert found["tokens a second"]["points"] == [[5, 100.0], [6, 100.0]]


def test_a_long_series_is_thinned_and_keeps_its_newest_point() -> None:
    thinned = thin([[step, 0.0] for step in range(3 * MAX_POINTS + 1)])
    steps = [step for step, _ in thinned]
    assert len(steps) == MAX_POINTS
    assert steps[-1] == 3 * MAX_POINTS
    assert steps == sorted(set(steps))


def test_a_run_without_a_journal_yet_has_no_points(tmp_path: Path) -> None:
    answer = Curves(tmp_path).read(after=-1)
    assert answer == {
        "status": "stopped",
        "step": 0,
        "max_steps": None,
        "verdict": None,
        "series": [],
    }


def test_a_damaged_status_or_journal_leaves_the_curves_readable(tmp_path: Path) -> None:
    write_journal(tmp_path, 2)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf8") as file:
        file.write('{"step": 3, "rtd": NaN}\n{"step": 4, "rt')
    status = {"status": ["?"], "step": "x", "max_steps": -1, "verdict": 3}
    (tmp_path / "status.json").write_text(json.dumps(status), encoding="utf8")
    answer = Curves(tmp_path).read(after=-1)
    json.dumps(answer, allow_nan=False)
    assert (answer["status"], answer["max_steps"], answer["verdict"]) == ("running", None, None)


def test_a_run_that_was_killed_is_stopped(tmp_path: Path) -> None:
    write_journal(tmp_path)
    assert Curves(tmp_path).read(after=-1)["status"] == "running"
    (tmp_path / ".lock").unlink()
    assert Curves(tmp_path).read(after=-1)["status"] == "stopped"


def test_the_verdict_of_a_finished_run_is_its_sentence(tmp_path: Path) -> None:
    write_journal(tmp_path, 2)
    status = {"status": "finished", "step": 2, "max_steps": 2, "verdict": {"text": "likely"}}
    (tmp_path / "status.json").write_text(json.dumps(status), encoding="utf8")
    answer = Curves(tmp_path).read(after=-1)
    assert (answer["status"], answer["verdict"]) == ("finished", "likely")


def test_steps_that_are_no_numbers_are_refused(client: TestClient, api: dict[str, str]) -> None:
    for after in ("x", "1.5", "9" * 30, "--1", ""):
        assert client.get(f"{api['pair']}/curves", params={"after": after}).status_code == 400


def test_a_model_without_a_journal_has_no_curves(client: TestClient, api: dict[str, str]) -> None:
    answer = client.get(f"{api['classes']}/curves")
    assert answer.status_code == 422
    assert "run folder" in answer.json()["error"]
