"""Models in and out of a run: transformers folders, one for each network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from electra import __version__
from electra.config import UserError
from electra.data.shards import Shards
from electra.data.wordpiece import WordPiece
from electra.model import huggingface
from electra.model.card import model_card
from electra.model.pair import Discriminator, Generator
from electra.objectives.objective import Objective
from electra.settings import as_dict

if TYPE_CHECKING:
    from electra.pretraining.run import Run


def export(run: Run, objective: Objective, *, verified: bool) -> list[Path]:
    """Write each network's folder; verified means that stock transformers loads it and computes the
    same logits.
    """
    folders, tokenizer = [], run.shards.tokenizer
    for role, network in objective.networks().items():
        folder = run.output_dir / role
        huggingface.save(
            network,
            folder,
            role=role,  # type: ignore[arg-type]
            tokenizer_files=lambda path: tokenizer.copy_to(
                path, model_max_length=run.recipe.encoder.positions
            ),
            config_extra={
                "pad_token_id": tokenizer.pad,
                "electra_version": __version__,
                "electra_step": run.step,
                "electra_recipe": as_dict(run.recipe),
            },
            card=model_card(
                f"{run.output_dir.name}-{role}",
                role=role,  # type: ignore[arg-type]
                facts=facts(run),
                causal=network.encoder.shape.causal,
            ),
        )
        if verified:
            huggingface.verify(network, folder)
        folders.append(folder)
    return folders


def facts(run: Run) -> dict[str, object]:
    """What the run itself recorded, for the card."""
    settings, scores = run.recipe.training, run.scores
    found: dict[str, object] = {
        "Objective": run.recipe.objective.name,
        "Steps": f"{run.step:,} of {settings.max_steps:,}",
        "Batch": f"{settings.batch_size} rows of {run.recipe.data.length} tokens",
        "Tokens seen": f"{run.tokens_seen:,}",
        "Tokens in the corpus": f"{run.shards.manifest.tokens:,}",
        "Seed": settings.seed,
        "Precision": settings.precision,
        "electra": __version__,
    }
    found |= {
        f"Held-out {name.replace('_', ' ')}": f"{value:.4f}" for name, value in scores.items()
    }
    return found


def initialise_from(objective: Objective, source: Path, shards: Shards) -> list[str]:
    """Weights from model folders, everything else fresh; says what was loaded and what was not.

    `source` is a run folder with a folder for each network, or one model folder: a discriminator
    fills the discriminator and whatever the generator shares with it, a masked LM fills the
    generator or the encoder (where there are both, the one whose part it had). Beside a frozen
    generator it fills both networks: two-stage training.
    """
    pairs = list(matches(objective, source))
    if not pairs:
        raise UserError(
            f"--init-from {source}: no model for {' or '.join(objective.networks())} there; name "
            "a run "
            f"folder, or a folder with config.json and model.safetensors"
        )
    for _, _, folder in pairs:
        check_vocabulary(folder, shards)
    # The generator first: where embeddings are shared but the folders disagree, the other's are the
    # ones to keep.
    pairs.sort(key=lambda pair: pair[0] != "generator")
    sections, networks = {"generator": "objective.generator"}, objective.networks()
    loaded = {
        name: huggingface.load(network, folder, section=sections.get(name, "encoder"))
        for name, network, folder in pairs
    }
    for name, network in networks.items():
        if is_frozen(network) and (name not in loaded or loaded[name].missing):
            raise UserError(
                f"--init-from {source}: no whole masked LM for the {name} there, which does not "
                "learn; "
                f"name the run of the first stage, whose encoder/ has an MLM head"
            )
    news = [f"{name} from {folder}: {loaded[name]}" for name, _, folder in pairs]
    left = networks.keys() - loaded.keys()
    return news + [
        f"{name}: no model in {source}, freshly initialised but for what it shares"
        for name in sorted(left)
    ]


def matches(
    objective: Objective, source: Path
) -> list[tuple[str, Discriminator | Generator, Path]]:
    """(name, network, folder) for each network of the objective that `source` can fill."""
    networks = objective.networks()
    generator = networks.get("generator")
    if (
        generator is not None
        and is_frozen(generator)
        and (folder := lone_masked_lm(source)) is not None
    ):
        alike = [
            name
            for name, network in networks.items()
            if network.encoder.shape == generator.encoder.shape
        ]
        return [(name, networks[name], folder) for name in alike]
    if (source / huggingface.CONFIG).is_file():
        role = huggingface.role_of(source)
        kind = Generator if role == "generator" or "encoder" in networks else Discriminator
        like = [name for name, network in networks.items() if isinstance(network, kind)]
        name = role if role in networks else next(iter(like), None)
        return [(name, networks[name], source)] if name else []
    return [
        (name, network, source / name)
        for name, network in networks.items()
        if (source / name / huggingface.CONFIG).is_file()
    ]


def is_frozen(network: Discriminator | Generator) -> bool:
    return not any(parameter.requires_grad for parameter in network.parameters())


def lone_masked_lm(source: Path) -> Path | None:
    """The model folder of a masked LM that is all there is; a run with a generator has its own to
    offer.
    """
    if (source / huggingface.CONFIG).is_file():
        return source if huggingface.role_of(source) != "discriminator" else None
    there = [
        name for name in ("encoder", "generator") if (source / name / huggingface.CONFIG).is_file()
    ]
    return source / "encoder" if there == ["encoder"] else None


def tokenizer_beside(source: Path | None) -> Path | None:
    """The tokenizer that the models to start from were trained with: text must be cut by it."""
    folders = (
        [] if source is None else [source, *(source / role for role in get_args(huggingface.Role))]
    )
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def check_vocabulary(folder: Path, shards: Shards) -> None:
    """The ids of the shards must mean the same words to the model."""
    if not (folder / "tokenizer.json").is_file() and not (folder / "vocab.txt").is_file():
        return
    found = WordPiece.load(folder)
    if found.fingerprint != shards.tokenizer.fingerprint:
        raise UserError(
            f"--init-from {folder}: its tokenizer is not the one that {shards.folder} was cut "
            "with; cut "
            f"shards with `electra shard … --tokenizer {folder}`"
        )
