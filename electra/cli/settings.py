"""The command that lists the settings of recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from electra.cli import DONE, app
from electra.config import UserError
from electra.console import print_data

if TYPE_CHECKING:
    from electra.setting_docs import Section

INTRODUCTION = """\
# Settings

This page is what `electra settings` prints. A setting stands in a recipe's TOML file under its
section, or on the command line as `--section.key VALUE` (`--key VALUE` where that is clear), or in
the environment (`ELECTRA_SECTION_KEY`; `ELECTRA_FINETUNE_KEY` for fine-tuning). Defaults are those
of a file that does not name the setting; recipes name most. `electra pretrain RECIPE
--print-config` prints the values of a recipe.\
"""
HEAD = ["| setting | default | choices | meaning |", "|---|---|---|---|"]


@app.command
def settings(word: str | None = None) -> int:
    """List every setting of pre-training and fine-tuning with its default, choices and meaning.

    Parameters
    ----------
    word
        Only settings with this word in their name.
    """
    if word is None:
        print_data(settings_page())
        return DONE
    found = []
    for _, section in named_sections():
        found += table(section, word.replace("-", "_").lower())
    if not found:
        raise UserError(f"no setting has {word!r} in its name; `electra settings` lists them all")
    print_data("\n".join(HEAD + found))
    return DONE


def settings_page() -> str:
    """Return the page of all settings in Markdown."""
    parts = [INTRODUCTION]
    for title, section in named_sections():
        parts.append("\n".join([f"## {title}", "", section.meaning, "", *HEAD, *table(section)]))
    return "\n\n".join(parts)


def table(section: Section, word: str = "") -> list[str]:
    """Return the rows of the settings with a word in their dotted key."""
    rows = []
    for setting in section.settings:
        key = f"{section.key}.{setting.name}".lstrip(".")
        if word in key:
            meaning = setting.meaning.replace("|", "\\|")
            rows.append(f"| `{key}` | {setting.default} | {setting.choices} | {meaning} |")
    return rows


def named_sections() -> Iterator[tuple[str, Section]]:
    """Yield every section once, with a title; an objective has one for each name."""
    from electra.finetuning.recipe import FinetuneConfig
    from electra.pretraining.recipe import Recipe
    from electra.setting_docs import list_sections

    seen: list[Section] = []
    for section in list_sections(Recipe):
        if section in seen:  # several objectives have the same masking
            continue
        seen.append(section)
        title = f"Pre-training: [{section.key}]"
        for setting in section.settings:
            # The name of an objective has one choice. That of the optimizer is a plain setting.
            if setting.name == "name" and "," not in setting.choices:
                title += f", name = {setting.default}"
        yield title, section
    for section in list_sections(FinetuneConfig):
        yield "Fine-tuning", section
