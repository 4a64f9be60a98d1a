"""README.md of a model folder: what it is for, and the facts of the run that made it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from electra.escape import escape_markdown
from electra.model.card_content import CardContent
from electra.model.family import Role

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


PIPELINES = {  # of transformers' task classes, by what follows the prefix of a family
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
    "MultipleChoice": "multiple-choice",
}


def model_card(name: str, content: CardContent, *, role: Role, causal: bool = False) -> str:
    """Return README.md of a pre-trained model. What was not recorded is said to be unknown."""
    pipeline, use = USES[role]
    if causal:
        pipeline, use = CAUSAL
    tags = ["electra", role]
    return render_card(name, use, content, pipeline=pipeline, tags=tags)


def task_card(name: str, content: CardContent, *, architecture: str | None) -> str:
    """Return README.md of a fine-tuned model."""
    use = (
        "**Stock transformers has no class for this head** and would load the encoder alone; run "
        "it with `electra predict`."
    )
    if architecture is not None:
        use = f"Load it with transformers' `{architecture}`, or run it with `electra predict`."
    pipeline = PIPELINES.get((architecture or "").partition("For")[2])
    return render_card(name, use, content, pipeline=pipeline, tags=["electra"])


def render_card(
    name: str, use: str, content: CardContent, *, pipeline: str | None, tags: Sequence[str]
) -> str:
    facts = {"Language": content.language, "Licence": content.license, **content.facts}
    rows = []
    for key, value in facts.items():
        shown = value
        if value is None:
            shown = "not recorded"
        rows.append(f"| {escape_markdown(key)} | {escape_markdown(str(shown))} |")
    header = front_matter(content, pipeline, tags)
    title = f"# {escape_markdown(name)}"
    lines = ["---", *header, "---", title, "", use, "", "| | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def front_matter(content: CardContent, pipeline: str | None, tags: Sequence[str]) -> list[str]:
    """Return the lines of YAML that the hub reads: one language or a list, identifiers quoted."""
    values: dict[str, object] = {"language": content.languages}
    if len(content.languages) == 1:
        values["language"] = content.languages[0]
    if content.license is not None:
        values["license"] = content.license.lower()  # as the hub writes them
    values["pipeline_tag"] = pipeline
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items() if value]
    return ["library_name: transformers", *lines, "tags:", *(f"- {tag}" for tag in tags)]
