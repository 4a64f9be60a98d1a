"""A run folder decides what may start in it and what continues; nothing is lost unless it is asked
for.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from electra.config import UserError
from electra.engine.training_state import capture
from electra.pretraining.options import PretrainOptions
from electra.pretraining.recipe import MAY_CHANGE, Recipe, load_recipe
from electra.pretraining.resume import find_resume_point, schedule_messages, write_run_files
from electra.pretraining.setup import record_start, resume_messages
from electra.runs import checkpoint, run_dir
from electra.settings import as_dict
from tests.wording import wording_of

wording = wording_of(__file__)

CHANGES = {
    "training.max_steps": 50,
    "training.logging_steps": 3,
    "training.eval_steps": 3,
    "training.eval_rows": 3,
    "training.save_steps": 3,
    "training.save_total_limit": 3,
    "training.report_to": "tensorboard",
    "training.micro_batch_size": 8,
    "training.timeout_minutes": 3.0,
    "training.skip_not_finite": 3,
    "training.stop_on_collapse": "false",
    "training.kernels": "off",
    "training.cuda_graph": "off",
    "training.compile": "on",
    "training.parallel": "fsdp",
    "training.activation_checkpointing": "true",
}


def recipe(**flags: object) -> Recipe:
    words = [
        word
        for name, value in flags.items()
        for word in ("--" + name.replace("__", "."), str(value))
    ]
    return load_recipe("tiny", flags=words)


def make_run(run: Path, settings: Recipe, *steps: int) -> Path:
    """Make the folder of a run that has checkpoints of these steps."""
    write_run_files(run, settings, is_fresh=True)
    module = nn.Linear(2, 2)
    for step in steps:
        checkpoint.write(
            run,
            capture(module, torch.optim.AdamW(module.parameters())),
            step=step,
            state={"recipe": as_dict(settings)},
        )
    return run


def test_an_empty_folder_starts_fresh(tmp_path: Path) -> None:
    for resume in ("auto", "never"):
        assert find_resume_point(recipe(), tmp_path / "new", resume=resume, overwrite=False) == (
            recipe(),
            None,
        )
    assert not (tmp_path / "new").exists()


def test_auto_continues_from_the_newest_checkpoint(tmp_path: Path) -> None:
    _, resumed = find_resume_point(
        recipe(), make_run(tmp_path, recipe(), 4, 12), resume="auto", overwrite=False
    )
    assert resumed is not None
    assert resumed.step == 12


def test_a_resume_removes_the_checkpoint_that_a_killed_process_left_beyond_the_limit(
    tmp_path: Path,
) -> None:
    settings = recipe(training__save_total_limit=1)
    make_run(tmp_path, settings, 4, 12)
    _, resumed = find_resume_point(settings, tmp_path, resume="auto", overwrite=False)
    run = SimpleNamespace(
        output_dir=tmp_path, recipe=settings, origin=None, set_status=lambda status: None
    )
    record_start(run, resumed)  # type: ignore[arg-type]
    assert [step for step, _ in checkpoint.list_checkpoints(tmp_path)] == [12]


def test_auto_starts_over_where_a_run_ended_before_its_first_checkpoint(tmp_path: Path) -> None:
    assert (
        find_resume_point(recipe(), make_run(tmp_path, recipe()), resume="auto", overwrite=False)[1]
        is None
    )


def test_never_refuses_a_run_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    make_run(tmp_path, recipe(), 4)
    with pytest.raises(
        UserError, match=wording("never_refuses_a_run_unless_it_may_be_overwritten")
    ):
        find_resume_point(recipe(), tmp_path, resume="never", overwrite=False)
    assert find_resume_point(recipe(seed=3), tmp_path, resume="never", overwrite=True) == (
        recipe(seed=3),
        None,
    )


def test_a_path_may_be_a_checkpoint_or_the_run_that_holds_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe(), 4, 12)
    for path, step in ((run, 12), (run / "checkpoint-4", 4)):
        _, resumed = find_resume_point(
            recipe(), tmp_path / "new", resume=str(path), overwrite=False
        )
        assert resumed is not None
        assert resumed.step == step


def test_a_checkpoint_of_another_run_is_refused_even_without_the_config_beside_it(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", recipe(), 4)
    (run / run_dir.CONFIG).unlink()
    for resume, into in (("auto", run), (str(run / "checkpoint-4"), tmp_path / "new")):
        with pytest.raises(
            UserError,
            match=wording(
                "a_checkpoint_of_another_run_is_refused_even_without_the_config_beside_it"
            ),
        ):
            find_resume_point(recipe(seed=5), into, resume=resume, overwrite=False)


def test_a_checkpoint_does_not_continue_in_the_folder_of_another_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe(), 4)
    with pytest.raises(
        UserError, match=wording("a_checkpoint_does_not_continue_in_the_folder_of_another_run")
    ):
        find_resume_point(
            recipe(), make_run(tmp_path / "other", recipe(seed=5)), resume=str(run), overwrite=False
        )


@pytest.mark.parametrize("key", sorted(MAY_CHANGE))
def test_its_length_and_how_steps_are_computed_may_change_when_a_run_continues(
    tmp_path: Path, key: str
) -> None:
    changed = recipe(**{key.replace(".", "__"): CHANGES[key]})
    same, resumed = find_resume_point(
        changed, make_run(tmp_path, recipe(), 4), resume="auto", overwrite=False
    )
    assert resumed is not None
    assert same == changed != recipe()


@pytest.mark.parametrize(
    ("schedule", "step", "is_refused"),
    [
        ("linear", 1_400, True),
        ("cosine", 1_400, True),
        ("linear", 700, True),
        ("constant", 1_400, False),
        ("wsd", 800, False),  # of 1,400 steps the last 560 decay
        ("wsd", 1_000, True),
        ("wsd", 1_400, True),
    ],
)
def test_a_run_is_extended_only_where_its_learning_rate_does_not_rise(
    tmp_path: Path, schedule: str, step: int, is_refused: bool
) -> None:
    make_run(tmp_path, recipe(schedule=schedule), step)
    longer = recipe(schedule=schedule, training__max_steps=2_800)
    if is_refused:
        with pytest.raises(UserError, match="--resume-schedule stretch"):
            find_resume_point(longer, tmp_path, resume="auto", overwrite=False)
    else:
        find_resume_point(longer, tmp_path, resume="auto", overwrite=False)
    _, resumed = find_resume_point(
        longer, tmp_path, resume="auto", overwrite=False, resume_schedule="stretch"
    )
    assert resumed is not None
    assert len(schedule_messages(longer, resumed)) == is_refused


def test_a_mask_rate_that_jumps_because_a_run_is_extended_is_announced(tmp_path: Path) -> None:
    settings = {"schedule": "constant", "objective__masking__final_rate": 0.05}
    make_run(tmp_path, recipe(**settings), 1_400)
    longer = recipe(**settings, training__max_steps=2_801)
    _, resumed = find_resume_point(longer, tmp_path, resume="auto", overwrite=False)
    assert resumed is not None
    (message,) = schedule_messages(longer, resumed)
    assert "the mask rate goes from 0.05 to 0.1 at step 1,401" in message


def test_a_run_does_not_end_before_the_step_it_has_reached(tmp_path: Path) -> None:
    make_run(tmp_path, recipe(), 4)
    assert (
        find_resume_point(recipe(training__max_steps=4), tmp_path, resume="auto", overwrite=False)[
            1
        ]
        is not None
    )
    with pytest.raises(
        UserError, match=wording("a_run_does_not_end_before_the_step_it_has_reached")
    ):
        find_resume_point(recipe(training__max_steps=3), tmp_path, resume="auto", overwrite=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.batch_size", 32),
        ("encoder.layers", 3),
        ("data.cased", "true"),
        ("training.precision", "bf16"),
        ("objective.masking.rate", 0.2),
    ],
)
def test_a_setting_that_makes_it_another_run_may_not_change(
    tmp_path: Path, key: str, value: object
) -> None:
    with pytest.raises(UserError, match=rf"holds another run:\n  {key}: here .*, asked "):
        find_resume_point(
            recipe(**{key.replace(".", "__"): value}),
            make_run(tmp_path, recipe(training__precision="fp32")),
            resume="auto",
            overwrite=False,
        )


def test_settings_left_open_stay_as_the_earlier_start_resolved_them(tmp_path: Path) -> None:
    earlier = recipe(
        training__micro_batch_size=8, training__precision="bf16", training__compile="off"
    )
    left_open = recipe(training__micro_batch_size="none")
    same, _ = find_resume_point(
        left_open, make_run(tmp_path, earlier), resume="auto", overwrite=False
    )
    assert same == earlier


@pytest.mark.parametrize(
    "change", [{"training__parallel": "fsdp"}, {"training__activation_checkpointing": "true"}]
)
def test_another_parallelism_resolves_kernels_graphs_and_compile_again_but_not_the_precision(
    tmp_path: Path, change: dict[str, object]
) -> None:
    earlier = recipe(
        training__precision="bf16",
        training__kernels="on",
        training__cuda_graph="on",
        training__compile="off",
    )
    same, _ = find_resume_point(
        recipe(**change), make_run(tmp_path, earlier), resume="auto", overwrite=False
    )
    assert same == recipe(training__precision="bf16", **change)


def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_only_damaged_ones_are_refused(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, recipe(), 4, 12)
    (run / "checkpoint-12" / "state.json").unlink()
    with pytest.warns(
        UserWarning,
        match=wording(
            "a_damaged_checkpoint_is_skipped_with_a_warning_and_only_damaged_ones_are_refused"
        ),
    ):
        _, resumed = find_resume_point(recipe(), run, resume="auto", overwrite=False)
    assert resumed is not None
    assert resumed.step == 4
    (run / "checkpoint-4" / "weights.safetensors").write_bytes(b"")
    with (
        pytest.raises(
            UserError,
            match=wording(
                "a_damaged_checkpoint_is_skipped_with_a_warning_and_only_damaged_ones_are_refused_2"
            ),
        ),
        pytest.warns(
            UserWarning,
            match=wording(
                "a_damaged_checkpoint_is_skipped_with_a_warning_and_only_damaged_ones_are_refused_3"
            ),
        ),
    ):
        find_resume_point(recipe(), run, resume="auto", overwrite=False)
    assert sorted(path.name for path in run.glob("checkpoint-*")) == [
        "checkpoint-12",
        "checkpoint-4",
    ]


def test_a_fresh_start_removes_the_metrics_and_checkpoints_of_an_earlier_run(
    tmp_path: Path,
) -> None:
    make_run(tmp_path, recipe(), 4)
    (tmp_path / run_dir.METRICS).write_text("{}\n")
    write_run_files(tmp_path, recipe(seed=3), is_fresh=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "environment.json"]
    assert load_recipe(str(tmp_path / run_dir.CONFIG)) == recipe(seed=3)


def test_the_status_is_read_back_and_a_torn_file_reads_as_empty(tmp_path: Path) -> None:
    run_dir.set_status(tmp_path, "stopped", step=9, checkpoint="checkpoint-9")
    assert run_dir.get_status(tmp_path) | {"time": 0} == {
        "status": "stopped",
        "step": 9,
        "time": 0,
        "checkpoint": "checkpoint-9",
    }
    for torn in ('{"status": "fin', "[]", ""):
        (tmp_path / run_dir.STATUS).write_text(torn)
        assert run_dir.get_status(tmp_path) == {}


def test_the_environment_names_versions_commit_and_hardware(tmp_path: Path) -> None:
    write_run_files(tmp_path, recipe(), is_fresh=True)
    written = json.loads((tmp_path / run_dir.ENVIRONMENT).read_text())
    assert written["packages"]["torch"] == torch.__version__
    assert {"electra", "commit", "command", "python", "processes", "gpus"} <= written.keys()


def test_a_resume_says_in_one_line_what_may_change_the_last_bits(tmp_path: Path) -> None:
    make_run(tmp_path, recipe(), 4)
    path = tmp_path / run_dir.ENVIRONMENT
    resumed = checkpoint.latest(tmp_path)
    assert resumed is not None
    assert len(resume_messages(resumed, PretrainOptions())) == 1
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": 99, "gpus": ["A100"]}))
    _, message = resume_messages(resumed, PretrainOptions())
    assert "threads 99 → " in message
    assert "gpus ['A100'] → " in message
    path.write_text("{")
    assert len(resume_messages(resumed, PretrainOptions())) == 1


def test_a_renamed_checkpoint_is_refused_and_nothing_is_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe(), 4, 12)
    (run / "checkpoint-4").rename(run / "checkpoint-99")
    before = sorted(tmp_path.rglob("*"))
    for resume in ("auto", str(run), str(run / "checkpoint-99")):
        with pytest.raises(UserError, match=r"checkpoint-99 holds the checkpoint of step 4; "):
            find_resume_point(recipe(), run, resume=resume, overwrite=False)
    assert sorted(tmp_path.rglob("*")) == before
