"""A model at rest: our weights ⇄ a transformers folder. Transformers itself is not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from electra import atomic
from electra.checksums import write_checksums
from electra.config import UserError
from electra.model import families
from electra.model.encoder import INITIAL_DEVIATION, Encoder, ZerosForRandomValues
from electra.model.families import family_of
from electra.model.family import ExportedNetwork, Role
from electra.model.model_config import TABLE, check_fits, load_shape, role_of
from electra.model.networks import Discriminator, Generator
from electra.model.weight_files import (
    CARD,
    CONFIG,
    FACTORS,
    WEIGHTS,
    find_tensors,
    read_json,
    read_tensor,
    tensor_shape,
    write_safetensors,
    write_tensors,
)

SHARD_BYTES = 5_000_000_000  # what the hub recommends for one file
N = TypeVar("N", bound=ExportedNetwork)
PER_TOKEN = (TABLE, "bias")  # what has a row for each entry of the vocabulary


class EncoderOnly(nn.Module):
    """An encoder, and its family's prediction head, to be filled from a folder with any head."""

    architecture = None

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        shape = encoder.shape
        self.prediction_head = family_of(shape).build_prediction_head(shape.width)

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(input_ids, token_type_ids, attention_mask)
        return hidden


# ---- writing -------------------------------------------------------------------------------------


def check_holds_model(folder: Path) -> None:
    """Raise UserError where a folder that a model would replace holds something else."""
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG).exists():
        raise UserError(
            f"{folder} holds something else than a model and would be replaced; name another folder"
        )


def save(
    network: ExportedNetwork,
    folder: Path,
    *,
    role: Role,
    tokenizer_files: Callable[[Path], None] | None = None,
    config_extra: Mapping[str, Any] | None = None,
    card: str = "",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder that stock transformers loads.

    A crash at any moment leaves the old folder or the new one.
    """
    check_holds_model(folder)
    with atomic.replace_folder(folder) as fresh:
        atomic.write_json(fresh / CONFIG, config_of(network, role=role) | dict(config_extra or {}))
        write_tensors(named_tensors(network), fresh, shard_bytes=shard_bytes)
        if factors := family_of(network.encoder.shape).embedding_factors(network):
            write_safetensors(to_cpu(factors), fresh / FACTORS)
        if tokenizer_files is not None:
            tokenizer_files(fresh)
        # All but the card, which its owner completes by hand.
        files = [path for path in fresh.rglob("*") if path.is_file()]
        write_checksums(fresh, [path.relative_to(fresh).as_posix() for path in files])
        if card:
            (fresh / CARD).write_text(card, encoding="utf8")


def config_of(network: ExportedNetwork, *, role: Role) -> dict[str, Any]:
    shape = network.encoder.shape
    family = family_of(shape)
    return {
        "architectures": [network.architecture or family.model_class],
        "electra_role": role,
        "model_type": family.name,
        **family.fixed_keys,
        **family.head_keys,
        **family.output_keys,
        **family.shape_config(shape),
        **family.head_config(network),
        "vocab_size": network.encoder.vocabulary,
        "initializer_range": INITIAL_DEVIATION,
        **family.special_tokens(pad=0, cls=None, sep=None),
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def named_tensors(network: ExportedNetwork) -> dict[str, Tensor]:
    """Return float32 copies of all tensors on the CPU, under transformers' names."""
    family = family_of(network.encoder.shape)
    table = family.name_table(network)
    tensors: dict[str, Tensor] = {}
    for key, ours in family.stored_tensors(network).items():
        chunks = ours.detach().to("cpu", torch.float32).chunk(len(table[key]))
        for name, chunk in zip(table[key], chunks, strict=True):
            tensors[name] = chunk.clone()  # views may not be saved
    return tensors


def to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in float32 on the CPU."""
    return {name: t.detach().to("cpu", torch.float32, copy=True) for name, t in tensors.items()}


# ---- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """Tensors of ours that a folder filled, tensors that it lacks, by transformers' names, and
    tensors of its own left unused.

    `cut_rows` of its word embeddings were left out, which lie beyond the tokenizer's entries.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    cut_rows: int = 0

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        if self.missing:
            parts.append(f"freshly initialised: {', '.join(self.missing)}")
        if self.unexpected:
            parts.append(f"left unused: {', '.join(self.unexpected)}")
        if self.cut_rows:
            parts.append(
                f"{self.cut_rows:,} rows of word embeddings left out, which the tokenizer has no "
                "entries for"
            )
        return "; ".join(parts)


def load_encoder(folder: Path) -> tuple[EncoderOnly, LoadReport]:
    """Load the encoder of any model folder, whatever its head."""
    return build_and_load(lambda: EncoderOnly(build_encoder(folder)), folder)


def load_discriminator(folder: Path) -> Discriminator:
    """Load a discriminator with the head that tells replaced tokens."""
    discriminator_class = family_of(load_shape(folder)[0]).discriminator_class
    network, report = build_and_load(lambda: discriminator_class(build_encoder(folder)), folder)
    if report.missing:
        raise UserError(
            f"{folder}: no discriminator: {report.missing[0]} is missing; name a model that was "
            "pre-trained by replaced token detection and not fine-tuned"
        )
    return network.eval()


def build_encoder(folder: Path) -> Encoder:
    """Build the encoder that a folder describes, with random weights."""
    shape, vocabulary, _ = load_shape(folder)
    return families.build_encoder(shape, vocabulary=vocabulary)


def build_and_load(build: Callable[[], N], folder: Path) -> tuple[N, LoadReport]:
    """Build a network and copy a folder's weights into it; what the folder lacks is random."""
    with ZerosForRandomValues():
        network = build()
    report = load(network, folder)
    if report.missing:
        network = build()
        report = load(network, folder)
    return network, report


def load(
    network: ExportedNetwork, folder: Path, *, section: str = "encoder", may_cut: bool = False
) -> LoadReport:
    """Copy a folder's weights into `network`; a head that the folder lacks stays as it is.

    `section` is where the settings of this network stand, for a message that says what to change.
    `may_cut` says that both have one tokenizer: further rows of word embeddings are padding.
    """
    folder = atomic.resolve_folder(folder)
    check_fits(network.encoder.shape, folder, section=section)
    check_head(network, folder)
    cut_rows = count_extra_rows(network, folder, may_cut=may_cut)
    family = family_of(network.encoder.shape)
    files, stored = find_tensors(folder), family.stored_tensors(network)
    loaded: dict[str, Tensor] = {}
    used = set(family.redundant)
    for key, full_names in names_to_read(network, folder).items():
        names = [strip_prefix(name, family.base_prefix, files) for name in full_names]
        if all(name in files for name in names):
            rows, *rest = stored_shape(key, stored[key], cut_rows)
            shape = [rows // len(names), *rest]
            tensors = [read_tensor(files[name], name, shape=shape) for name in names]
            loaded[key] = torch.cat(tensors)[: len(stored[key])]
            used.update(names)
        elif key.startswith("encoder."):
            raise UserError(
                f"{folder}: {full_names[0]} is missing; the folder is damaged, or holds no "
                f"{family.title} model"
            )
    if factors := family.embedding_factors(network):
        loaded |= read_factors(folder, factors, folded=loaded[TABLE], cut_rows=cut_rows)
    family.load_tensors(network, loaded)
    return LoadReport(
        loaded=tuple(loaded),
        missing=names_of_the_rest(network, loaded),
        unexpected=tuple(sorted(set(files) - used)),
        cut_rows=cut_rows,
    )


def check_head(network: ExportedNetwork, folder: Path) -> None:
    """Refuse a folder with a head that the network to fill cannot have; an encoder has none."""
    if isinstance(network, EncoderOnly):
        return
    family = family_of(network.encoder.shape)
    family.check_head(network, read_json(folder, CONFIG), str(folder / CONFIG))
    if isinstance(network, Generator):
        check_tied(folder)


def check_tied(folder: Path) -> None:
    """Refuse a masked LM that predicts with other embeddings than it reads with.

    A config may be silent about it, and its weights show it.
    """
    family, files = family_of(load_shape(folder)[0]), find_tensors(folder)
    output = family.output_table
    table = strip_prefix(family.word_embeddings, family.base_prefix, files)
    reason = ""
    if read_json(folder, CONFIG).get("tie_word_embeddings", True) is False:
        reason = f"{folder / CONFIG}: tie_word_embeddings is false"
    elif output in files and table in files:
        shape = tensor_shape(files[table], table, remedy="copy the folder again")
        tables = [read_tensor(files[name], name, shape=shape) for name in (table, output)]
        if not torch.equal(*tables):
            reason = f"{files[output]}: {output} differs from {table}"
    if reason:
        raise UserError(
            f"{reason}; a generator here predicts with the word embeddings it reads with, so such "
            "a model can only fill a discriminator"
        )


def names_to_read(network: ExportedNetwork, folder: Path) -> Mapping[str, Sequence[str]]:
    """Return transformers' names of our tensors, without heads that mean something else."""
    family = family_of(network.encoder.shape)
    table = family.name_table(network)
    if not family.has_our_head(read_json(folder, CONFIG)):  # refused where it is more than a start
        return {key: names for key, names in table.items() if key.startswith("encoder.")}
    if isinstance(network, Discriminator) and role_of(folder) != "discriminator":
        return {key: names for key, names in table.items() if key not in family.rtd_output}
    return table


def names_of_the_rest(network: ExportedNetwork, loaded: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return transformers' names of the tensors that were not loaded."""
    table = family_of(network.encoder.shape).name_table(network)
    return tuple(chain.from_iterable(names for key, names in table.items() if key not in loaded))


def stored_shape(key: str, ours: Tensor, cut_rows: int) -> list[int]:
    """Return the shape that a tensor of ours has in a folder whose table has `cut_rows` more."""
    rows, *rest = ours.shape
    if key in PER_TOKEN:
        rows += cut_rows
    return [rows, *rest]


def read_factors(
    folder: Path, factors: Mapping[str, Tensor], *, folded: Tensor, cut_rows: int
) -> dict[str, Tensor]:
    """Return the factors of a folded table; raise UserError where it is not their product."""
    path = folder / FACTORS
    found = {}
    for name, ours in factors.items():
        shape = stored_shape(name, ours, cut_rows)
        found[name] = read_tensor(path, name, shape=shape)[: len(ours)]
    table, projection = found.values()
    if not torch.allclose(table @ projection.T, folded, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"{path}: does not belong to the {WEIGHTS} beside it; remove it, and the model is read "
            "without a factorised embedding"
        )
    return found


def strip_prefix(name: str, prefix: str, files: Mapping[str, Path]) -> str:
    """Return the name that a folder knows a tensor by: a model's without a head have no prefix."""
    if name in files:
        return name
    return name.removeprefix(prefix)


def count_extra_rows(network: ExportedNetwork, folder: Path, *, may_cut: bool) -> int:
    """Return how many rows a folder's word embeddings have more than the network's.

    Raises UserError where they have fewer, or more and are not known to be padding.
    """
    _, vocabulary, _ = load_shape(folder)
    extra_rows = vocabulary - network.encoder.vocabulary
    if extra_rows == 0 or (extra_rows > 0 and may_cut):
        return extra_rows
    remedy = "name a model with a row for each"
    if extra_rows > 0:
        remedy += ", or put the tokenizer.json of this one into its folder if it is the same"
    raise UserError(
        f"{folder / CONFIG}: vocab_size is {vocabulary}, but the network to fill has "
        f"vocabulary={network.encoder.vocabulary}, the entries of its tokenizer; {remedy}"
    )
