"""Limits on how much one line, one function and one file may hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import electra

PACKAGE = Path(electra.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

each_file = pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf8"))))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether Triton compiles it: its signature takes one line for each pointer and stride."""
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def code_lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf8").splitlines() if line.strip()]


@each_file
def test_a_file_has_at_most_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf8").splitlines()) <= 400


@each_file
def test_a_function_has_at_most_40_lines(path: Path) -> None:
    for function in functions(path):
        first = function.body[0].lineno if is_kernel(function) else function.lineno
        assert function.end_lineno is not None
        assert function.end_lineno - first + 1 <= 40, function.name


@each_file
def test_a_function_has_at_most_7_parameters(path: Path) -> None:
    for function in functions(path):
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        counted = [name for name in names if name not in ("self", "cls")]
        assert is_kernel(function) or len(counted) <= 7, function.name


@each_file
def test_a_comprehension_of_several_lines_has_one_loop(path: Path) -> None:
    for node in nodes(path):
        if isinstance(node, COMPREHENSIONS) and node.end_lineno != node.lineno:
            inner = [n for n in ast.walk(node) if isinstance(n, COMPREHENSIONS) and n is not node]
            assert len(node.generators) == 1, f"line {node.lineno}: two loops"
            assert not inner, f"line {node.lineno}: a comprehension in a comprehension"


def test_few_lines_are_longer_than_100_characters() -> None:
    lines = [line for path in SOURCES for line in code_lines(path)]
    assert sum(len(line) > 100 for line in lines) <= 0.03 * len(lines)


def test_conditional_expressions_are_few() -> None:
    checked = [path for path in SOURCES if path.is_relative_to(PACKAGE)]
    lines = sum(len(code_lines(path)) for path in checked)
    conditional = sum(isinstance(node, ast.IfExp) for path in checked for node in nodes(path))
    assert conditional <= 0.013 * lines, f"{1000 * conditional / lines:.1f} in 1000 lines"


def test_fine_tuning_says_what_it_takes_of_a_task() -> None:
    for path in (PACKAGE / "finetuning").glob("*.py"):
        for function in functions(path):
            arguments = function.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                is_any = (
                    argument.annotation is not None and ast.unparse(argument.annotation) == "Any"
                )
                assert not is_any, f"{path.name}: {function.name}({argument.arg}: Any)"
