"""An encoder as a sentence-transformers folder, compared with `electra embed` as it is written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from electra.config import RunFailed, UserError
from electra.data.wordpiece import WordPiece
from electra.exports.folder import read_card, update_card
from electra.exports.options import ExportOptions
from electra.model import huggingface
from electra.model.encoder import Encoder
from electra.model.families import family_of
from electra.model.weight_files import CONFIG, read_json
from electra.tasks.embed import check_options, embed
from electra.tasks.embed_options import EmbedOptions
from electra.tasks.models import Pretrained
from electra.tasks.sentence_transformer import Pooling, read_pooling, write_pooling

PACKAGES = ("sentence_transformers",)
KEPT = ("electra_version", "electra_step", "electra_recipe")  # of config.json
TEXTS, MAX_WORDS = 16, 24
TOLERANCE = 1e-4


def choose_pooling(options: ExportOptions, source: Pretrained) -> Pooling:
    """Return the pooling that was asked for, or the one that the model states, or the mean."""
    stated = read_pooling(source.folder) or Pooling()
    normalize = options.normalize
    if normalize is None:
        normalize = stated.normalize
    pool = options.pool or stated.pool
    positions = source.encoder.shape.positions
    length = options.length or min(stated.length or positions, positions)
    check_options(EmbedOptions(pool=pool, length=length), source.encoder)
    if source.encoder.shape.causal:
        raise UserError(
            f"{source.folder}: a causal encoder, which sentence-transformers reads in both "
            "directions; use `electra embed`"
        )
    return Pooling(pool=pool, normalize=normalize, length=length)


def export_embedder(source: Pretrained, output_dir: Path, pooling: Pooling) -> float:
    """Write the folder; return the largest difference of a vector from `electra embed`."""
    config = read_json(source.folder, CONFIG)
    found = write_embedder(
        source.encoder,
        source.tokenizer,
        output_dir,
        pooling=pooling,
        config_extra={key: config[key] for key in KEPT if key in config},
        card=embedder_card(read_card(source.folder), pooling),
    )
    return found


def write_embedder(
    encoder: Encoder,
    tokenizer: WordPiece,
    folder: Path,
    *,
    pooling: Pooling,
    config_extra: dict[str, object],
    card: str,
) -> float:
    """Write an encoder as a sentence-transformers folder; raise RunFailed, and write nothing, where
    the library computes other vectors from it.
    """
    network, differences = huggingface.EncoderOnly(encoder), []
    network.prediction_head = None  # of no use without an output layer

    def add_files(fresh: Path) -> None:
        names = family_of(encoder.shape).model_input_names
        tokenizer.copy_to(fresh, model_max_length=pooling.length, model_input_names=names)
        write_pooling(fresh, pooling, width=encoder.shape.width)
        differences.append(compare_vectors(fresh, encoder, tokenizer, pooling))

    special = dict(pad=tokenizer.pad, cls=tokenizer.cls, sep=tokenizer.sep)
    config = family_of(encoder.shape).special_tokens(**special) | config_extra
    huggingface.save(
        network,
        folder,
        role="encoder",
        tokenizer_files=add_files,
        config_extra=config,
        card=card,
    )
    return differences[0]


def compare_vectors(
    folder: Path, encoder: Encoder, tokenizer: WordPiece, pooling: Pooling
) -> float:
    """Return the largest difference between the vectors of sentence-transformers and ours."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    texts = sample_texts(tokenizer)
    stock = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    theirs = stock.encode(texts, show_progress_bar=False)
    options = EmbedOptions(pool=pooling.pool, normalize=pooling.normalize, length=pooling.length)
    ours = np.stack([each.vectors for each in embed(encoder, tokenizer, texts, options)])
    difference = float(np.abs(ours - theirs).max())
    allowed = TOLERANCE * max(1.0, float(np.abs(ours).max()))
    if not difference <= allowed:
        raise RunFailed(
            f"sentence-transformers computes other vectors than electra embed, by up to "
            f"{difference:.1e} (up to {allowed:.1e} would be rounding); nothing was written"
        )
    return difference


def sample_texts(tokenizer: WordPiece) -> Sequence[str]:
    """Return an empty text, and texts of random words of the vocabulary."""
    vocabulary = sorted(tokenizer.backend_tokenizer.get_vocab())
    words = [word for word in vocabulary if word.isalnum()]
    rng = random.Random(0)
    texts = [""]
    for _ in range(TEXTS):
        texts.append(" ".join(rng.choices(words or ["a"], k=rng.randint(1, MAX_WORDS))))
    return texts


def embedder_card(card: str, pooling: Pooling) -> str:
    """Return the card of a model for an embedder made of it."""
    keys = {"library_name": "sentence-transformers", "pipeline_tag": '"sentence-similarity"'}
    facts = f"{pooling.pool} pooling, at most {pooling.length} tokens"
    if pooling.normalize:
        facts += ", vectors of length 1"
    section = [
        "## sentence-transformers",
        "",
        f"An embedder: {facts}. `SentenceTransformer(FOLDER).encode(texts)` gives the vectors of "
        "`electra embed FOLDER`.",
    ]
    return update_card(card, keys, section)
