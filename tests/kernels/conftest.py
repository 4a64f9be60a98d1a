"""Kernels run on a GPU where there is one, and elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # triton reads it when it is imported


class Untested(pytest.Module):
    def collect(self) -> list[pytest.Item | pytest.Collector]:
        pytest.skip("triton is not installed")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if importlib.util.find_spec("triton") is None:
        return Untested.from_parent(parent, path=module_path)
    return None
