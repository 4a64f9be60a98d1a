"""What "auto" means on a device, and what it cannot do."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch

from electra.config import SettingError
from electra.engine import hardware
from electra.engine.hardware import free_bytes, peak_flops, resolve_precision

CPU = torch.device("cpu")


def warn_with_frames(*matrices: object) -> None:
    torch.backends.mkldnn.enabled = False  # as torch leaves it
    warnings.warn("mkldnn_bf16_gemm failed, switching to BLAS gemm:\nframe #0: ...", stacklevel=1)


def fail(*matrices: object) -> NoReturn:
    raise RuntimeError('"addmm_impl_cpu_" not implemented for BFloat16\nframe #0: ...')


@pytest.mark.parametrize("product", [warn_with_frames, fail])
def test_bf16_on_a_cpu_that_cannot_multiply_in_it_is_refused_in_one_line(
    product: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "mm", product)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SettingError) as caught:
            resolve_precision("bf16", CPU)
    assert caught.value.key == "precision"
    assert "\n" not in str(caught.value)
    assert torch.backends.mkldnn.enabled


def test_bf16_on_a_cpu_that_can_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", lambda *matrices: None)
    assert resolve_precision("bf16", CPU) == "bf16"
    assert resolve_precision("auto", CPU) == "fp32"


def test_fp16_on_a_cpu_is_refused_by_its_key() -> None:
    with pytest.raises(SettingError) as caught:
        resolve_precision("fp16", CPU)
    assert caught.value.key == "precision"


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H20", None),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-40C", None),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L20", None),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
    ],
)
def test_a_card_has_the_peak_of_its_whole_name(name, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = peak_flops(SimpleNamespace(device=torch.device("cuda"), size=2))
    assert found == (peak and 2 * peak)


MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("limits", "bytes_"),
    [
        ({}, MACHINE_BYTES),
        ({"v2": "max\n"}, MACHINE_BYTES),
        ({"v1": "9223372036854771712\n"}, MACHINE_BYTES),
        ({"v2": "8000\n"}, 8000),
        ({"v1": "8000\n"}, 8000),
    ],
)
def test_a_process_on_a_cpu_plans_with_its_part_of_half_of_what_its_container_may_take(
    limits: dict[str, str], bytes_: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        (tmp_path / name).write_text(limit, encoding="ascii")
    monkeypatch.setattr(hardware, "CONTAINER_LIMITS", (tmp_path / "v2", tmp_path / "v1"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert free_bytes(CPU) == bytes_ // 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_bytes(CPU) == bytes_ // 2 // 4
