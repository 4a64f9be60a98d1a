"""The walls between the folders, read from the imports themselves; and what it costs to ask for
help.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

import electra
from tests.wording import wording_of

wording = wording_of(__file__)

PACKAGE = Path(electra.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# what every folder may import
TOP = {
    "config",
    "renamed",
    "files",
    "settings",
    "setting_docs",
    "atomic",
    "checksums",
    "escape",
    "console",
    "file_lock",
    "provenance",
    "shipped",
    "__init__",
}

MAY_IMPORT = {
    "renamed": set(),
    "config": {"renamed"},
    "files": {"config"},
    "settings": {"config", "renamed"},
    "setting_docs": {"config"},
    "atomic": {"config"},
    "checksums": {"atomic", "config", "files"},
    "escape": set(),
    "console": {"escape"},
    "file_lock": {"atomic", "config", "console"},
    "provenance": set(),
    "shipped": {"config"},
    "data": set(),
    "model": set(),
    "objectives": {"data", "model"},
    "tasks": {"data", "model"},
    "exports": {"data", "model", "tasks"},
    "kernels": {"data", "model", "objectives"},
    "engine": {"data", "kernels", "model", "objectives", "tasks"},
    "runs": set(),
    "pretraining": {"data", "engine", "kernels", "model", "objectives", "runs"},
    "finetuning": {"data", "engine", "exports", "kernels", "model", "runs", "tasks"},
    "experiments": {
        "data",
        "engine",
        "finetuning",
        "model",
        "objectives",
        "pretraining",
        "runs",
        "tasks",
    },
    "reports": {"data", "experiments", "finetuning", "model", "objectives", "runs", "tasks"},
    "web": {"data", "model", "objectives", "runs", "tasks"},
    "api": {
        "data",
        "engine",
        "exports",
        "finetuning",
        "model",
        "objectives",
        "pretraining",
        "reports",
        "runs",
        "tasks",
    },
    "cli": {
        "data",
        "engine",
        "experiments",
        "exports",
        "finetuning",
        "model",
        "objectives",
        "pretraining",
        "reports",
        "runs",
        "tasks",
        "web",
    },
}


def line_of(path: Path) -> str:
    """The folder of a module, or the module itself where it stands at the top."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_lines(path: Path) -> Iterator[str]:
    """What a module imports of ours, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which line they cross to"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "electra":
                first = rest.partition(".")[0]
                yield (
                    first
                    if (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").is_file()
                    else "__init__"
                )


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if line_of(p) not in ("__init__", "__main__")],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_a_module_imports_only_from_its_own_line_or_from_those_it_may(path: Path) -> None:
    line = line_of(path)
    allowed = MAY_IMPORT[line] | {line} | (TOP if line not in TOP else {"__init__"})
    assert set(imported_lines(path)) <= allowed


def test_nothing_imports_the_command_line() -> None:
    assert not [path for path in MODULES if "__main__" in imported_lines(path)]


def test_nothing_prints_but_the_console() -> None:
    """It makes control characters visible that a file of others may hold."""
    printing = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "Console"):
                printing.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert {place.partition(":")[0] for place in printing} == {"console.py"}, printing


def test_recipes_are_data_and_nothing_else() -> None:
    assert {path.suffix for path in (PACKAGE / "recipes").rglob("*") if path.is_file()} == {".toml"}


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "core", "base", "manager"}
    assert not [path for path in MODULES if {path.stem, path.parent.name} & empty]


def test_folders_are_one_deep() -> None:
    for path in MODULES:
        assert len(path.relative_to(PACKAGE).parts) <= 2, path


def test_the_modules_beside_the_folders_are_those_that_every_folder_may_import() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*TOP, "__main__"}


def test_the_docstring_of_each_folder_names_all_of_its_modules() -> None:
    for package in (path for path in MODULES if path.name == "__init__.py"):
        text = ast.get_docstring(ast.parse(package.read_text(encoding="utf8"))) or ""
        modules = {path.stem for path in package.parent.glob("*.py")} - {"__init__", "__main__"}
        unnamed = modules - set(re.findall(r"\w+", text))
        assert not unnamed, f"say in {package} what these modules are for: {sorted(unnamed)}"


def test_tests_have_the_folders_of_the_package() -> None:
    folders = {path.parent.name for path in MODULES if path.parent != PACKAGE}
    tested = {path.parent.name for path in TESTS.rglob("*.py") if path.parent != TESTS}
    assert tested - {"fuzz", "page"} == folders  # electra/web/page holds no Python


# ---- circles -------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported_modules(path: Path, known: Collection[str]) -> set[str]:
    """The modules that a module imports of those known, wherever in the file it does so."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & set(known)
            modules |= submodules or {node.module}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules & set(known)


def test_no_module_imports_itself_by_way_of_others() -> None:
    paths = [*MODULES, *(PACKAGE.parent / "benchmarks").glob("*.py")]
    names = {module_name(path): path for path in paths}
    del names["electra"]  # the map: every name in it is imported when it is first used
    imports = {name: imported_modules(path, names) for name, path in names.items()}
    while outside := {*importing_none(imports), *imported_by_none(imports)}:
        for name in outside:
            del imports[name]
    assert not imports, f"a circle is among {sorted(imports)}"


def importing_none(imports: Mapping[str, set[str]]) -> list[str]:
    return [name for name, others in imports.items() if not others & imports.keys()]


def imported_by_none(imports: Mapping[str, set[str]]) -> list[str]:
    return [name for name in imports if not any(name in others for others in imports.values())]


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf8"))
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not calls & {
            "torch.load",
            "torch.save",
            "pickle.load",
            "pickle.loads",
            "pickle.dump",
            "pickle.dumps",
        }
        # Torch's collectives of objects unpickle what arrives.
        objects = {call for call in calls if re.search(r"\.\w+_object(_list)?$", call)}
        assert not objects, path


# ---- the surface ---------------------------------------------------------------------------------


def test_every_public_name_is_there_and_is_listed() -> None:
    for name in electra.__all__:
        assert getattr(electra, name) is not None
    assert set(electra.__all__) == {*electra.PUBLIC, "__version__"}
    assert len(electra.PUBLIC) <= 15


def test_a_name_that_is_not_public_is_refused_as_python_does() -> None:
    with pytest.raises(
        AttributeError, match=wording("a_name_that_is_not_public_is_refused_as_python_does")
    ):
        _ = electra.trainer


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


HEAVY = ["torch", "transformers", "tokenizers", "datasets", "pyarrow", "safetensors", "starlette"]


@pytest.mark.parametrize(
    "argv",
    [
        ["import"],
        ["--help"],
        ["--version"],
        ["vocab", "--help"],
        ["shard", "--help"],
        ["pretrain", "--help"],
        ["describe", "--help"],
        ["show", "--help"],
        ["quickstart", "--help"],
        ["serve", "--help"],
        ["pretrain", "tiny", "--print-config"],
        ["pretrain", "tiny", "--budget", "1/16", "--print-config"],
        ["settings"],
        ["pretrain", "tinny", "--output-dir", "x"],
        ["trials", "list"],
        ["trials", "run", "--help"],
        ["export", "--help"],
        ["push", "--help"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_to_answer_a_question(argv: list[str]) -> None:
    ask = "" if argv == ["import"] else f"from electra.__main__ import main; main({argv!r})"
    report = f"sys.exit(', '.join(m for m in {HEAVY!r} if m in sys.modules) or None)"
    script = f"import sys, electra\n{ask}\n{report}"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240
    )
    assert answer.returncode == 0, answer.stderr
