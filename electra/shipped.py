"""Models that come with the package: folders in electra/models, known by their names. No torch."""

from __future__ import annotations

from pathlib import Path

from electra.config import UserError, suggest

MODELS = Path(__file__).parent / "models"


def shipped_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(path.parent.name for path in MODELS.glob("*/config.json"))


def model_path(name: str) -> Path:
    """Return the folder of a model that comes with the package.

        AutoModel.from_pretrained(electra.model_path("small-en"))

    It holds the discriminator and its tokenizer, and may hold generator/.
    """
    if name in shipped_models():
        return MODELS / name
    raise UserError(f"no model {name!r} comes with electra{describe_shipped(name)}")


def resolve_shipped(model: str | Path) -> Path:
    """Return the folder of a shipped model where one is named, and else the path as it is.

    A folder of the same name in the working directory is taken first.
    """
    path = Path(model)
    if not path.exists() and str(model) in shipped_models():
        return MODELS / str(model)
    return path


def suggest_shipped(name: str | Path) -> str:
    """Return the shipped model that was probably meant, to end a message about a missing folder."""
    return suggest(str(name), shipped_models())


def describe_shipped(name: str) -> str:
    """Return which models come with the package, to end a message about an unknown one."""
    names = shipped_models()
    if not names:
        return "; this version ships none"
    return f"; there are {', '.join(names)}{suggest(name, names)}"
