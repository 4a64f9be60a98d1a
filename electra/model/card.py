"""README.md of a model folder: what it is for, and the facts of the run that made it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from electra.model.huggingface import Role

USES: dict[Role, tuple[str, str]] = {
    "discriminator": ("feature-extraction", "The discriminator: **fine-tune this one**. It does not fill masks; the "
                                            "generator beside it does."),
    "generator": ("fill-mask", "The generator: it **fills masks** and proposed the replacements in pre-training. To "
                               "fine-tune, take the discriminator beside it."),
    "encoder": ("fill-mask", "A masked language model: it fills masks, and is the one to fine-tune."),
}


def model_card(name: str, *, role: Role, facts: Mapping[str, object], language: str | None = None,
               license: str | None = None) -> str:
    """README.md of a model folder. Facts come from the run; what nobody recorded is said to be unknown, not guessed."""
    pipeline, use = USES[role]
    stated = [f"{key}: {json.dumps(value)}" for key, value in (("language", language), ("license", license)) if value]
    header = [*stated, "library_name: transformers", f"pipeline_tag: {pipeline}", "tags:", "- electra", f"- {role}"]
    known = {"Language": language, "Licence": license, **facts}
    table = [f"| {key} | {'not recorded' if value is None else value} |" for key, value in known.items()]
    return "\n".join(["---", *header, "---", f"# {name}", "", use, "", "| | |", "|---|---|", *table, ""])
