"""Kernels run on a GPU where there is one, and elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


class Untested(pytest.Module):
    def collect(self) -> list[pytest.Item | pytest.Collector]:
        pytest.skip("triton is not installed")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if importlib.util.find_spec("triton") is None:
        return Untested.from_parent(parent, path=module_path)
    return None
