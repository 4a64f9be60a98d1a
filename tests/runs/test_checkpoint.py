"""A checkpoint is whole or it is not one."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest
import torch
from torch import nn

from electra.checksums import CHECKSUMS
from electra.config import UserError
from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.training_state import (
    PinnedStaging,
    capture,
    data_pointers,
    restore,
    weights_of,
    with_tied_weights,
)
from electra.runs import checkpoint
from tests.wording import wording_of

wording = wording_of(__file__)


@pytest.fixture
def trained():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].weight = nn.Parameter(torch.randn(2, 4))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return module, optimizer


def save(run, step, trained):
    return checkpoint.write(run, capture(trained[0], trained[1]), step=step, state={"scores": {}})


def test_weights_and_optimizer_state_come_back_bit_for_bit(tmp_path, trained):
    save(tmp_path, 3, trained)
    fresh = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.1, fused=True)
    opened = checkpoint.latest(tmp_path)
    restore(opened.tensors(), module=fresh, optimizer=optimizer, updates=3)
    for (name, before), after in zip(
        trained[0].named_parameters(), fresh.parameters(), strict=True
    ):
        assert before.equal(after), name
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert trained[1].state[before][key].equal(optimizer.state[after][key]), (name, key)


def test_shared_weights_are_stored_once_and_shared_again(tmp_path):
    module = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    module["b"].weight = module["a"].weight
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    assert list(weights_of(module)) == ["a.weight"]
    save(tmp_path, 1, (module, optimizer))
    with torch.no_grad():
        module["a"].weight.zero_()
    weights = with_tied_weights(
        checkpoint.load_file(tmp_path / "checkpoint-1" / "weights.safetensors"), module
    )
    module.load_state_dict(weights)
    assert module["a"].weight.any()
    assert module["a"].weight is module["b"].weight


@pytest.mark.parametrize(
    "damage", ["truncate", "flip", "remove", "state", "no state", "checksums", "no checksums"]
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning_that_names_it(
    tmp_path, trained, damage
):
    save(tmp_path, 1, trained)
    newer = save(tmp_path, 2, trained)
    weights, state = newer / "weights.safetensors", newer / "state.json"
    content = bytearray(weights.read_bytes())
    if damage == "truncate":
        weights.write_bytes(content[:-10])
    elif damage == "flip":
        content[-3] ^= 1
        weights.write_bytes(content)
    elif damage == "remove":
        weights.unlink()
    elif damage == "state":
        state.write_text(state.read_text()[:40])
    elif damage == "no state":
        state.unlink()
    elif damage == "checksums":
        (newer / CHECKSUMS).write_bytes((newer / CHECKSUMS).read_bytes()[:-1])
    else:
        (newer / CHECKSUMS).unlink()
    with pytest.warns(
        UserWarning,
        match=wording("a_damaged_checkpoint_is_passed_over_with_a_warning_that_names_it"),
    ):
        opened = checkpoint.latest(tmp_path)
    assert opened.step == 1


@pytest.mark.parametrize("file", ["state.json", CHECKSUMS])
def test_every_bit_of_the_small_files_is_verified(tmp_path, trained, file):
    path = save(tmp_path, 30, trained) / file
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=str(path.parent)):
            checkpoint.open_checkpoint(path.parent)


def test_a_checkpoint_under_the_name_of_another_step_is_refused_and_never_passed_over(
    tmp_path, trained
):
    save(tmp_path, 20, trained)
    save(tmp_path, 30, trained).rename(tmp_path / "checkpoint-99")
    for refuse in (checkpoint.latest, checkpoint.check_formats):
        with pytest.raises(checkpoint.RenamedError, match=r"checkpoint-99 .* of step 30; rename"):
            refuse(tmp_path)


def test_others_may_read_what_the_umask_lets_them_read(tmp_path, trained):
    before = os.umask(0o027)
    try:
        folder = save(tmp_path, 1, trained)
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o640"}


def test_a_checkpoint_of_an_earlier_version_is_refused_and_never_passed_over(tmp_path, trained):
    save(tmp_path, 1, trained)
    newer = save(tmp_path, 2, trained) / "state.json"
    (newer.parent / CHECKSUMS).unlink()
    newer.write_text(newer.read_text().replace('"format": 3', '"format": 2'))
    for refuse in (checkpoint.latest, checkpoint.check_formats):
        with pytest.raises(
            checkpoint.FormatError,
            match=wording("a_checkpoint_of_an_earlier_version_is_refused_and_never_passed_over"),
        ):
            refuse(tmp_path)
    with pytest.raises(UserError, match=rf"--init-from {tmp_path}"):
        checkpoint.open_checkpoint(newer.parent)
    newer.write_text(newer.read_text().replace('"format": 2', '"format": 4'))
    with pytest.raises(
        checkpoint.FormatError,
        match=wording("a_checkpoint_of_an_earlier_version_is_refused_and_never_passed_over_2"),
    ):
        checkpoint.latest(tmp_path)


def test_a_damaged_checkpoint_has_no_format_to_refuse(tmp_path, trained):
    (save(tmp_path, 2, trained) / "state.json").unlink()
    checkpoint.check_formats(tmp_path)


def test_a_write_that_fails_half_way_leaves_nothing_behind_and_the_last_good_one_alone(
    tmp_path, trained, monkeypatch
):
    save(tmp_path, 1, trained)
    save_file, calls = checkpoint.save_file, []

    def full_disk(tensors, path):
        calls.append(path)
        save_file(tensors, path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    with pytest.raises(
        OSError,
        match=wording(
            "a_write_that_fails_half_way_leaves_nothing_behind_and_the_last_good_one_alone"
        ),
    ):
        save(tmp_path, 2, trained)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert checkpoint.latest(tmp_path).step == 1


def test_what_is_copied_for_a_write_stays_when_the_weights_move_on(tmp_path, trained):
    module, optimizer = trained
    with AsyncCheckpointer() as checkpointer:
        before, contents = (
            module[0].weight.detach().clone(),
            checkpointer.copy_state(module, optimizer),
        )
    exp_avg = optimizer.state[module[0].weight]["exp_avg"].clone()
    module(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    folder = checkpoint.write(tmp_path, contents, step=3, state={})
    assert not module[0].weight.equal(before)
    assert checkpoint.load_file(folder / "weights.safetensors")["0.weight"].equal(before)
    assert checkpoint.load_file(folder / "optimizer.safetensors")["0.weight.exp_avg"].equal(exp_avg)


def test_tensors_that_share_a_storage_are_copied_as_one_and_can_be_again(tmp_path):
    storage, alone = torch.randn(40), torch.randn(3)
    tensors = {"first": storage[:12].view(3, 4).T, "last": storage[15:], "alone": alone}
    wanted = {name: tensor.clone() for name, tensor in tensors.items()}
    staging = PinnedStaging([], (tensors, {}))
    assert len(staging.buffers) == 2
    staging.fill()
    storage.zero_()
    folder = checkpoint.write(tmp_path, staging.state, step=3, state={})
    written = checkpoint.load_file(folder / "weights.safetensors")
    assert written.keys() == wanted.keys()
    assert all(written[name].equal(tensor) for name, tensor in wanted.items())
    staging.fill()
    assert not staging.state[0]["first"].any()
    assert staging.state[0]["alone"].equal(alone)


def test_data_pointers_change_with_the_memory_of_any_tensor(trained):
    module, optimizer = trained
    pointers = data_pointers(optimizer)
    module(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert data_pointers(optimizer) == pointers
    state = optimizer.state[module[0].weight]
    before = state["exp_avg"]  # held, so that its place is not given to the next
    state["exp_avg"] = before.clone()
    assert data_pointers(optimizer) != pointers
    state["exp_avg"] = before
    module[0].weight.data = module[0].weight.data.clone()
    assert data_pointers(optimizer) != pointers


def fail() -> None:
    raise OSError(28, "No space left on device")


def test_what_goes_wrong_in_the_background_is_raised_when_next_asked():
    with AsyncCheckpointer() as checkpointer:
        checkpointer.submit(fail)
        with pytest.raises(
            OSError, match=wording("what_goes_wrong_in_the_background_is_raised_when_next_asked")
        ):
            checkpointer.wait()
        checkpointer.work = checkpointer.pool.submit(lambda: None)
        checkpointer.submit(fail)
        while not checkpointer.work.done():
            time.sleep(0.001)
        with pytest.raises(
            OSError, match=wording("what_goes_wrong_in_the_background_is_raised_when_next_asked_2")
        ):
            checkpointer.poll()
        checkpointer.work = checkpointer.pool.submit(lambda: None)


def test_what_goes_wrong_last_is_raised_at_the_end_unless_something_else_did_before():
    def ends(error: Exception | None) -> None:
        with AsyncCheckpointer() as checkpointer:
            checkpointer.submit(fail)
            if error is not None:
                raise error

    with pytest.raises(
        OSError,
        match=wording("what_goes_wrong_last_is_raised_at_the_end_unless_something_else_did_before"),
    ):
        ends(None)
    with pytest.raises(
        ValueError,
        match=wording(
            "what_goes_wrong_last_is_raised_at_the_end_unless_something_else_did_before_2"
        ),
    ):
        ends(ValueError("first"))


def test_work_in_the_background_is_done_before_the_end_and_one_at_a_time():
    done, free = [], threading.Event()
    with AsyncCheckpointer() as checkpointer:
        checkpointer.submit(lambda: (free.wait(30), done.append("first")))
        checkpointer.poll()
        assert done == []
        free.set()
        checkpointer.submit(lambda: (time.sleep(0.05), done.append("second")))
        assert done[0] == "first"
    assert done == ["first", "second"]


def test_rotation_keeps_the_newest(tmp_path, trained):
    for step in (5, 10, 100):
        save(tmp_path, step, trained)
    checkpoint.rotate(tmp_path, keep=2)
    assert sorted(step for step, _ in checkpoint.list_checkpoints(tmp_path)) == [10, 100]


def test_rotation_cannot_prefer_a_damaged_newer_checkpoint_to_the_one_a_run_goes_on_from(
    tmp_path, trained
):
    for step in (4, 8):
        save(tmp_path, step, trained)
    checkpoint.remove_after(tmp_path, 4)
    save(tmp_path, 6, trained)
    checkpoint.rotate(tmp_path, keep=1)
    assert [step for step, _ in checkpoint.list_checkpoints(tmp_path)] == [6]


def test_the_metrics_of_a_checkpoint_are_on_the_disk_before_it(tmp_path, trained, monkeypatch):
    (tmp_path / "metrics.jsonl").touch()
    flushed, fsync = [], os.fsync

    def record(descriptor: int) -> None:
        flushed.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    save(tmp_path, 4, trained)
    assert flushed[0] == "metrics.jsonl"


def test_a_checkpoint_that_a_killed_process_was_removing_is_removed(tmp_path, trained):
    for step in (4, 6):
        save(tmp_path, step, trained)
    (tmp_path / "checkpoint-4" / "state.json").unlink()
    checkpoint.remove_after(tmp_path, 6)
    assert [step for step, _ in checkpoint.list_checkpoints(tmp_path)] == [6]


def test_a_checkpoint_holds_tensors_and_json_and_nothing_that_could_run(tmp_path, trained):
    folder = save(tmp_path, 1, trained)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [CHECKSUMS, "optimizer.safetensors", "state.json", "weights.safetensors"]
    assert json.loads((folder / "state.json").read_text())["step"] == 1


def test_a_run_that_has_left_out_every_update_so_far_comes_back(tmp_path):
    module = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    save(tmp_path, 4, (module, optimizer))
    fresh = nn.Linear(2, 2)
    again = torch.optim.AdamW(fresh.parameters(), fused=True)
    restore(checkpoint.latest(tmp_path).tensors(), module=fresh, optimizer=again, updates=0)
    assert fresh.weight.equal(module.weight)
    assert not again.state
    with pytest.raises(LookupError):
        restore(checkpoint.latest(tmp_path).tensors(), module=fresh, optimizer=again, updates=1)


def test_a_checkpoint_that_was_put_elsewhere_and_linked_is_read_and_never_removed(
    tmp_path, trained
):
    run, archive = tmp_path / "run", tmp_path / "archive"
    save(run, 4, trained).rename(archive)
    (run / "checkpoint-4").symlink_to(archive)
    assert checkpoint.latest(run).step == 4
    save(run, 8, trained)
    checkpoint.rotate(run, keep=1)
    assert [path.name for path in run.iterdir()] == ["checkpoint-8"]
    assert checkpoint.open_checkpoint(archive).step == 4


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path, trained):
    save(tmp_path, 4, trained)
    (tmp_path / ".checkpoint-6.partial").mkdir()
    checkpoint.remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


def test_a_folder_that_only_looks_like_a_checkpoint_is_ignored(tmp_path, trained):
    save(tmp_path, 7, trained)
    (tmp_path / "checkpoint-99").write_text("a file")
    (tmp_path / "checkpoint-final").mkdir()
    (tmp_path / ".checkpoint-9.partial").mkdir()
    assert checkpoint.latest(tmp_path).step == 7
