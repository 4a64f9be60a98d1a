"""What a model card states: the language, the licence and the facts of the run. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from electra.config import UserError, suggest

# ISO 639, with subtags for a script or a region; the hub also has a word for many languages.
LANGUAGE = re.compile(r"([a-z]{2,3}(-[A-Za-z0-9]{2,8})*|multilingual)")
CARD = "README.md"
STATED_LICENSE = re.compile(r'^license: *"?([^"\n]*)"? *$', re.MULTILINE)
LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
# The identifiers that the documentation of the hub lists.
HUB_LICENSES = frozenset(
    """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m
    bigscience-bloom-rail-1.0 bigcode-openrail-m openrail++ afl-3.0 artistic-2.0 bsl-1.0 bsd
    bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0
    cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0
    cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0
    cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0
    etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0
    lgpl-lr isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl osl-3.0 postgresql ofl-1.1 ncsa unlicense
    zlib pddl deepfloyd-if-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 gemma
    h-research intel-research apple-ascl apple-amlr openmdw-1.0
    fair-noncommercial-research-license grok2-community unknown other
    """.split()
)


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
        if self.license is not None and self.license.lower() not in HUB_LICENSES:
            raise UserError(
                f"--license {self.license!r}: not an identifier that the hub knows, such as "
                "apache-2.0, mit, cc-by-4.0, cc-by-sa-4.0 or gpl-3.0; for other terms say other"
                f"{suggest(self.license.lower(), sorted(HUB_LICENSES))}"
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
