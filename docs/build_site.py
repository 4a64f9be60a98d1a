"""Build the documentation site from docs/: `make docs` runs this file.

Documents link to files of the repository, which a viewer of repositories shows. A site has no such
viewer, so docs/ is copied to build/docs, and there a link to a source file leads to a page with
its text.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
STAGE = ROOT / "build" / "docs"
TOOLS = ("*.py", "__pycache__")
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# The extensions of files that a browser downloads instead of showing.
LANGUAGES = {".py": "python", ".toml": "toml", ".sbatch": "sh", ".sh": "sh", ".cff": "yaml"}
FENCE = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
NO_SEARCH = "---\nsearch:\n  exclude: true\n---\n\n"


def main() -> int:
    """Stage the documents and build the site; return the exit code of the generator."""
    stage_documents()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    paths = f"{DOCS}{os.pathsep}{ROOT}"  # of the extension in zensical.toml and of the package
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}).returncode


def stage_documents() -> None:
    """Copy docs/ to build/docs, with links that lead to pages of the site."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(DOCS, STAGE, ignore=shutil.ignore_patterns(*TOOLS))
    for document in sorted(DOCS.rglob("*.md")):
        (STAGE / document.relative_to(DOCS)).unlink()
        stage_page(document)
    for name in ROOT_PAGES:
        stage_page(ROOT / name)
    for notebook in sorted(DOCS.rglob("*.ipynb")):
        page = STAGE / notebook.relative_to(DOCS)
        page.with_suffix(".md").write_text(notebook_text(notebook), encoding="utf8")


def stage_page(document: Path) -> None:
    """Write a document as a page of the site."""
    page = page_of(document)

    def rewrite(match: re.Match[str]) -> str:
        if not match["path"] or ":" in match["path"]:
            return match[0]
        target = page_of((document.parent / match["path"]).resolve())
        path = os.path.relpath(target, page.parent)
        return f"]({path}{match['anchor'] or ''})"

    text = document.read_text(encoding="utf8")
    page.write_text(outside_fences(text, lambda part: LINK.sub(rewrite, part)), encoding="utf8")


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Change the parts of a document that are not blocks of code."""
    parts, position = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[position : fence.start()]), fence[0]]
        position = fence.end()
    return "".join([*parts, change(text[position:])])


def page_of(target: Path) -> Path:
    """Return the staged file that shows a file or folder of the repository."""
    inside_docs = target.is_relative_to(DOCS)
    page = STAGE / target.relative_to(DOCS if inside_docs else ROOT)
    if target.name == "README.md":
        return page.with_name("index.md")
    if target.suffix in (".md", ".ipynb"):
        return page.with_suffix(".md")
    if target.is_dir():
        return folder_page(target)
    if inside_docs and target.suffix not in LANGUAGES:
        return page
    return source_page(target)


def source_page(source: Path) -> Path:
    """Write a page with the text of a file; return it."""
    inside = source.relative_to(ROOT)
    page = STAGE / "source" / f"{inside}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    language = LANGUAGES.get(source.suffix, "text")
    code = source.read_text(encoding="utf8")
    text = f"{NO_SEARCH}# {inside}\n\n````{language}\n{code}````\n"
    page.write_text(text, encoding="utf8")
    return page


def folder_page(folder: Path) -> Path:
    """Write a page that lists the files of a folder; return it."""
    inside = folder.relative_to(ROOT)
    page = STAGE / "source" / inside / "index.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{NO_SEARCH}# {inside}/", ""]
    for path in sorted(folder.iterdir()):
        if path.is_file():
            lines.append(f"- [{path.name}]({os.path.relpath(page_of(path), page.parent)})")
    page.write_text("\n".join([*lines, ""]), encoding="utf8")
    return page


def notebook_text(notebook: Path) -> str:
    """Return the cells of a notebook as a document."""
    cells = []
    for cell in json.loads(notebook.read_text(encoding="utf8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            text = f"```python\n{text}\n```"
        cells.append(text)
    note = f"This page is the notebook [{notebook.name}]({notebook.name})."
    title, _, rest = cells[0].partition("\n")
    return "\n\n".join([title, note, rest.strip(), *cells[1:], ""])


if __name__ == "__main__":
    sys.exit(main())
