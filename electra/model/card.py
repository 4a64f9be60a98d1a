"""README.md of a model folder: what it is for, and the facts of the run that made it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from electra.model.huggingface import Role

USES: dict[Role, tuple[str, str]] = {
    "discriminator": (
        "feature-extraction",
        "The discriminator: **fine-tune this one**. It does not fill masks; the "
        "generator beside it does.",
    ),
    "generator": (
        "fill-mask",
        "The generator: it **fills masks** and proposed the replacements in pre-training. To "
        "fine-tune, take the discriminator or the encoder beside it.",
    ),
    "encoder": (
        "fill-mask",
        "A masked language model: **fine-tune this one**. It fills masks if its objective (below) "
        "is mlm. Under replace-mlm and all-tokens-mlm it learns to restore replaced words and "
        "never reads a mask. The copy gate of all-tokens-mlm and the next-sentence layer of mlm "
        "stay in the run's checkpoints.",
    ),
}
CAUSAL = (
    "text-generation",
    "A left-to-right language model: each token predicts the next one and sees none after it. "
    "Fine-tune this one, or let transformers' `ElectraForCausalLM` continue texts.",
)


PIPELINES = {  # of transformers' task classes
    "ElectraForSequenceClassification": "text-classification",
    "ElectraForTokenClassification": "token-classification",
    "ElectraForQuestionAnswering": "question-answering",
    "ElectraForMultipleChoice": "multiple-choice",
}


def model_card(
    name: str,
    *,
    role: Role,
    facts: Mapping[str, object],
    causal: bool = False,
    language: str | None = None,
    license: str | None = None,
) -> str:
    """README.md of a pre-trained model. What nobody recorded is said to be unknown, not guessed."""
    pipeline, use = CAUSAL if causal else USES[role]
    stated = {"language": language, "license": license, "pipeline_tag": pipeline}
    known = {"Language": language, "Licence": license, **facts}
    return card(name, use, stated=stated, tags=["electra", role], facts=known)


def task_card(name: str, *, architecture: str | None, facts: Mapping[str, object]) -> str:
    """README.md of a fine-tuned model."""
    use = (
        f"Load it with transformers' `{architecture}`, or ask it with `electra predict`."
        if architecture
        else "**Stock transformers has no class for this head** and would load the encoder alone; "
        "ask it with `electra "
        "predict`."
    )
    return card(
        name,
        use,
        stated={"pipeline_tag": PIPELINES.get(architecture or "")},
        tags=["electra"],
        facts=facts,
    )


def card(
    name: str,
    use: str,
    *,
    stated: Mapping[str, str | None],
    tags: Sequence[str],
    facts: Mapping[str, object],
) -> str:
    header = [
        "library_name: transformers",
        *(f"{key}: {json.dumps(value)}" for key, value in stated.items() if value),
        "tags:",
        *(f"- {tag}" for tag in tags),
    ]
    table = [
        f"| {key} | {'not recorded' if value is None else value} |" for key, value in facts.items()
    ]
    return "\n".join(
        ["---", *header, "---", f"# {name}", "", use, "", "| | |", "|---|---|", *table, ""]
    )
