"""What produced a number is recorded, and a change of it is told."""

from __future__ import annotations

from electra.provenance import environment, environment_differences


def test_threads_versions_and_hardware_differ_by_name_and_both_values() -> None:
    now = environment()
    earlier = now | {
        "threads": 7,
        "gpus": ["NVIDIA A100"],
        "packages": now["packages"] | {"torch": "1.0"},
    }
    assert environment_differences(earlier, now) == [
        f"gpus ['NVIDIA A100'] → {now['gpus']}",
        f"threads 7 → {now['threads']}",
        f"torch 1.0 → {now['packages']['torch']}",
    ]


def test_the_command_the_kernel_and_what_was_not_recorded_are_no_difference() -> None:
    now = environment()
    assert environment_differences(now | {"command": ["other"], "platform": "other"}, now) == []
    for damaged in ({}, {"packages": 3}, {"packages": []}):
        assert environment_differences(damaged, now) == []
