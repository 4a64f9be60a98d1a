"""Whatever a file holds, a reader returns its content or raises one error that names a remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from electra.config import RunFailed, UserError
from tests.fuzz.mutations import mutate
from tests.fuzz.specimens import NAMES, Specimen, specimens

SLOW_CASES = 10_000


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Specimen]:
    makers = specimens(tmp_path_factory.mktemp("fuzz"))
    return cache(lambda name: makers[name]())


@pytest.mark.parametrize("name", NAMES)
def test_a_good_specimen_is_read(specimen: Callable[[str], Specimen], name: str) -> None:
    specimen(name).read()


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_file_is_read_or_refused_in_words(
    specimen: Callable[[str], Specimen], name: str
) -> None:
    fuzz(specimen(name), cases=12)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_changed_files_are_read_or_refused_in_words(
    specimen: Callable[[str], Specimen], name: str
) -> None:
    fuzz(specimen(name), cases=-(-SLOW_CASES // len(NAMES)))


def fuzz(specimen: Specimen, *, cases: int) -> None:
    good = {file: (specimen.root / file).read_bytes() for file in specimen.files}

    @settings(
        max_examples=cases,
        deadline=timedelta(seconds=5),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def case(data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(specimen.files))
        try:
            (specimen.root / file).write_bytes(
                data.draw(mutate(good[file], suffix=Path(file).suffix))
            )
            check(specimen)
        finally:
            (specimen.root / file).write_bytes(good[file])

    case()


def check(specimen: Specimen) -> None:
    """Check that a reader succeeds, or raises an error of ours that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            specimen.read()
    except (UserError, RunFailed) as error:
        if specimen.names_its_file:
            assert specimen.root.name in str(error)  # noqa: PT017
