"""What a model card states: the language, the licence and the facts of the run. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from electra.config import UserError

# ISO 639, with subtags for a script or a region; the hub also has a word for many languages.
LANGUAGE = re.compile(r"([a-z]{2,3}(-[A-Za-z0-9]{2,8})*|multilingual)")
CARD = "README.md"
STATED_LICENSE = re.compile(r'^license: *"?([^"\n]*)"? *$', re.MULTILINE)
LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")


@dataclass(frozen=True)
class CardContent:
    """What a card states; None stands for what was not recorded."""

    language: str | None = None  # a code, or several with commas between
    license: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("language", self.language), ("license", self.license)):
            if value is not None and not isinstance(value, str):
                raise UserError(f"--{name} {value!r}: must be text, found {type(value).__name__}")
        for code in self.languages:
            if not LANGUAGE.fullmatch(code):
                raise UserError(
                    f"--language {self.language!r}: {code!r} is not an ISO 639 code such as en, de "
                    "or swh; several have commas between (de,en), and many are multilingual"
                )
        if self.license is not None and not LICENSE.fullmatch(self.license):
            raise UserError(
                f"--license {self.license!r}: an identifier such as apache-2.0, mit or "
                "cc-by-sa-4.0 is expected; for terms of your own say other"
            )

    @property
    def languages(self) -> list[str]:
        """The codes of the languages."""
        if self.language is None:
            return []
        return [code.strip() for code in self.language.split(",")]


NOTHING_RECORDED = CardContent()


def describe_origin(model: Path) -> str:
    """Return the name of a model or run folder, with the licence that its card states: terms such
    as share-alike may hold for what is made from it.
    """
    name = model.absolute().name  # of "." too
    for card in (model / CARD, model / "discriminator" / CARD, model / "encoder" / CARD):
        if card.is_file():
            front_matter = card.read_text(encoding="utf8", errors="replace").split("\n---", 1)[0]
            stated = STATED_LICENSE.search(front_matter)
            if stated and LICENSE.fullmatch(stated[1]):
                return f"{name} ({stated[1]})"
            break
    return name
