"""Export networks as transformers folders, and initialise networks from such folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import torch

from electra import __version__
from electra.checksums import hash_file, read_checksums
from electra.config import UserError
from electra.data.shards import Shards
from electra.data.stock_tokenizer import warn_of_other_rows
from electra.data.wordpiece import WordPiece
from electra.files import read_bounded_text
from electra.model import huggingface, model_config
from electra.model.card import front_matter, model_card
from electra.model.disentangled import DisentangledEmbedding
from electra.model.families import family_of
from electra.model.family import ExportedNetwork, Role
from electra.model.flops import encoder_parameters
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape
from electra.model.verify import verify
from electra.model.weight_files import CARD, read_json
from electra.model.weight_files import CONFIG as MODEL_CONFIG
from electra.objectives.objective import Objective
from electra.pretraining.recipe import Recipe, TrainingConfig
from electra.pretraining.verdict import judge
from electra.settings import as_dict

if TYPE_CHECKING:
    from electra.pretraining.run import Run

SECTIONS = {"generator": "objective.generator"}  # of a network's sizes, where not encoder


def export(run: Run, objective: Objective, *, verified: bool) -> list[Path]:
    """Write a model folder for each network and return the folders.

    `verified` also loads each with stock transformers and compares the logits.
    """
    folders = []
    for role, network in objective.networks().items():
        folder = run.output_dir / role
        if not is_exported(run, folder):
            save(run, network, role=role)  # type: ignore[arg-type]
        if verified:
            verify(network, folder)
            names = family_of(network.encoder.shape).model_input_names
            warn_of_other_rows(run.shards.tokenizer, folder, names)
        folders.append(folder)
    return folders


def is_exported(run: Run, folder: Path) -> bool:
    """Return whether a model folder stays as it is, with what its owner has written in the card.

    It does where it is the whole model of a run that had finished before, unless its card is to
    state another language or licence.
    """
    if not run.was_finished:
        return False
    asked = front_matter(run.card, None, ())[1:-1]  # without what every card has
    try:
        card = read_bounded_text(folder / CARD).splitlines()
        is_whole = all(
            hash_file(folder / name) == stated for name, stated in read_checksums(folder).items()
        )
        step = read_json(folder, MODEL_CONFIG).get("electra_step")
    except (OSError, ValueError):
        return False
    return is_whole and step == run.step and set(asked) <= set(card)


def save(run: Run, network: ExportedNetwork, *, role: Role) -> None:
    """Write the model folder of a network, with the settings and a card of its run."""
    tokenizer, encoder = run.shards.tokenizer, network.encoder
    facts = {**run.card.facts, **network_facts(network), **training_facts(run)}
    huggingface.save(
        network,
        run.output_dir / role,
        role=role,
        tokenizer_files=lambda path: tokenizer.copy_to(
            path,
            model_max_length=run.recipe.encoder.positions,
            model_input_names=family_of(encoder.shape).model_input_names,
        ),
        config_extra={
            **family_of(encoder.shape).special_tokens(
                pad=tokenizer.pad, cls=tokenizer.cls, sep=tokenizer.sep
            ),
            "electra_version": __version__,
            "electra_step": run.step,
            "electra_recipe": as_dict(run.recipe),
        },
        card=model_card(
            f"{run.output_dir.name}-{role}",
            replace(run.card, facts=facts),
            role=role,
            causal=encoder.shape.causal,
        ),
    )


def network_facts(network: ExportedNetwork) -> dict[str, object]:
    """Return what a model card says of a network beside its run."""
    shape, vocabulary = network.encoder.shape, network.encoder.vocabulary
    family = family_of(shape)
    written = shape
    if family.embedding_factors(network):  # they are folded
        written = replace(shape, embedding=shape.width)
    return {
        "Encoder": f"{family.title}, {shape.layers} layers of width {shape.width}",
        "Parameters of the encoder": f"{encoder_parameters(written, vocabulary):,}",
        "Vocabulary": f"{vocabulary:,}",
        "Class in transformers": network.architecture or family.model_class,
    }


def training_facts(run: Run) -> dict[str, object]:
    """Return the settings and scores of a run for its model card."""
    settings = run.recipe.training
    facts: dict[str, object] = {
        "Objective": run.recipe.objective.name,
        "Steps": f"{run.step:,} of {settings.max_steps:,}",
        "Batch": f"{describe_batch(settings)} rows of {run.recipe.data.length} tokens",
        "Tokens seen": f"{run.tokens_seen:,}",
        "Tokens in the corpus": f"{run.shards.manifest.tokens:,}",
        "Seed": settings.seed,
        "Precision": settings.precision,
        "electra": __version__,
    }
    if run.recipe.mask_schedule:
        facts["Mask rate"] = run.recipe.mask_schedule
    if settings.ema_decay:
        facts["Weights"] = f"exponential moving average, decay {settings.ema_decay:g}"
    verdict = judge(run.scores, run.recipe)
    facts["Verdict"] = " ".join(f"{sentence}." for sentence in (verdict.text, *verdict.networks))
    for name, value in run.scores.items():
        facts[f"Held-out {name.replace('_', ' ')}"] = f"{value:.4f}"
    return facts


def describe_batch(training: TrainingConfig) -> str:
    """Return the rows of a step, and how they grew."""
    if training.initial_batch_size is None:
        return str(training.batch_size)
    return (
        f"{training.initial_batch_size} to {training.batch_size} (in the first "
        f"{training.batch_ramp_steps:,} steps)"
    )


class Fillable(NamedTuple):
    """A network that a model folder may initialise, built or not yet."""

    shape: EncoderShape
    is_masked_lm: bool
    is_trained: bool


def initialise_from(objective: Objective, init_from: Path, shards: Shards) -> list[str]:
    """Load weights from model folders and return messages about what was loaded and what was not.

    `init_from` is a run folder with a folder for each network, or one model folder: a
    discriminator fills the discriminator and what the generator shares with it, a masked LM fills
    the generator or the encoder (where there are both, the one whose role it had). Beside a frozen
    generator it fills both networks: two-stage training.
    """
    networks = objective.networks()
    fillable = {
        name: Fillable(network.encoder.shape, isinstance(network, Generator), is_trainable(network))
        for name, network in networks.items()
    }
    folders = find_folders(init_from, fillable)
    may_cut = {folder: has_tokenizer_of(folder, shards) for folder in folders.values()}
    loaded = {}
    # The generator first: where shared embeddings differ between the folders, those of the other
    # network are kept.
    for name in sorted(folders, key=lambda name: name != "generator"):
        section, folder = SECTIONS.get(name, "encoder"), folders[name]
        loaded[name] = huggingface.load(
            networks[name], folder, section=section, may_cut=may_cut[folder]
        )
    if "generator" in networks.keys() - loaded.keys():
        share_loaded_tables(networks[name] for name in loaded)
    for name, network in fillable.items():
        if not network.is_trained and (name not in loaded or loaded[name].missing):
            raise UserError(
                f"--init-from {init_from}: no whole masked LM for the {name} there, which does not "
                "learn; name the run of the first stage, whose encoder/ has an MLM head"
            )
    messages = [f"{name} from {folders[name]}: {report}" for name, report in loaded.items()]
    return messages + [
        f"{name}: no model in {init_from}, freshly initialised except for what it shares"
        for name in sorted(networks.keys() - loaded.keys())
    ]


@torch.no_grad()
def share_loaded_tables(networks: Iterable[Discriminator | Generator]) -> None:
    """Give a fresh generator the loaded word embeddings, where a network has its own by a delta."""
    for network in networks:
        embeddings: Any = network.encoder.embeddings
        if isinstance(embeddings.word_embeddings, DisentangledEmbedding):
            embeddings.word_embeddings.move_to_shared()


def check_fits_recipe(init_from: Path, recipe: Recipe) -> None:
    """Raise UserError for models that are no start for a recipe's networks, before any text is
    read.
    """
    networks = {
        network.name: Fillable(network.shape, network.lm_head is not None, network.is_trained)
        for network in recipe.workload(recipe.data.vocab_size).networks()
    }
    folders = find_folders(init_from, networks)
    model_config.check_one_family(*folders.values())
    for name, folder in folders.items():
        section = SECTIONS.get(name, "encoder")
        model_config.check_fits(networks[name].shape, folder, section=section)
        if networks[name].is_masked_lm:
            huggingface.check_tied(folder)


def find_folders(init_from: Path, networks: Mapping[str, Fillable]) -> dict[str, Path]:
    """Return the model folder for each network that has one, by the network's name."""
    found = {}
    generator, only = networks.get("generator"), find_only_masked_lm(init_from)
    if generator is not None and not generator.is_trained and only is not None:
        of_its_shape = (name for name in networks if networks[name].shape == generator.shape)
        found = dict.fromkeys(of_its_shape, only)
    elif (init_from / MODEL_CONFIG).is_file():
        if name := find_network_for(model_config.role_of(init_from), networks):
            found = {name: init_from}
    else:
        found = {name: init_from / name for name in networks}
        found = {name: path for name, path in found.items() if (path / MODEL_CONFIG).is_file()}
    if not found:
        model_config.check_is_exported(init_from)
        raise UserError(
            f"--init-from {init_from}: no model for {' or '.join(networks)} there; name a run "
            "folder, or a folder with config.json and model.safetensors"
        )
    return found


def find_network_for(role: str, networks: Mapping[str, Fillable]) -> str | None:
    """Return the name of the network that a model of this role initialises, if there is one."""
    if role in networks:
        return role
    masked_lm = role == "generator" or "encoder" in networks
    return next((name for name in networks if networks[name].is_masked_lm == masked_lm), None)


def is_trainable(network: Discriminator | Generator) -> bool:
    return any(parameter.requires_grad for parameter in network.parameters())


def find_only_masked_lm(init_from: Path) -> Path | None:
    """Return the folder of a masked LM that is the only model there.

    A run with a generator has one, and its encoder does not stand in for it.
    """
    if (init_from / MODEL_CONFIG).is_file():
        folder, is_only = init_from, model_config.role_of(init_from) != "discriminator"
    else:
        folder = init_from / "encoder"
        has_generator = (init_from / "generator" / MODEL_CONFIG).is_file()
        is_only = (folder / MODEL_CONFIG).is_file() and not has_generator
    if is_only:
        return folder
    return None


def find_tokenizer_folder(init_from: Path | None) -> Path | None:
    """Return the folder with the tokenizer of the models to start from: text must be cut by it."""
    if init_from is None:
        return None
    folders = [init_from, *(init_from / role for role in get_args(Role))]
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def has_tokenizer_of(folder: Path, shards: Shards) -> bool:
    """Return whether a model folder has a tokenizer, which must be that of the shards.

    Raises UserError where the ids of the shards are other tokens to the model.
    """
    if not (folder / "tokenizer.json").is_file() and not (folder / "vocab.txt").is_file():
        return False
    if WordPiece.load(folder).fingerprint != shards.tokenizer.fingerprint:
        raise UserError(
            f"--init-from {folder}: its tokenizer is not the one that {shards.folder} was cut "
            f"with; cut shards with `electra shard … --tokenizer {folder}`"
        )
    return True
