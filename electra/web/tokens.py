"""Pre-trained networks on one text: hide words, let the generator fill them, judge every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from electra import atomic
from electra.config import UserError
from electra.data.wordpiece import WordPiece, refuse_panics
from electra.model import huggingface, model_config
from electra.model.families import build_encoder, family_of
from electra.model.networks import Discriminator, Generator
from electra.model.sampling import sample
from electra.model.weight_files import CONFIG, read_json
from electra.tasks.features import group_by_length
from electra.tasks.inference import BATCH_TOKENS
from electra.tasks.models import load_tokenizer
from electra.web.requests import RequestError

CANDIDATES = 5
NO_GENERATOR = (
    "This model has no generator, so no word can be hidden; serve the run folder that holds "
    "generator/ and discriminator/."
)


@dataclass(frozen=True)
class TokensRequest:
    """A text, and the words of it that the generator fills."""

    text: str
    hidden: tuple[int, ...]
    seed: int
    temperature: float


@dataclass(frozen=True)
class EncodedText:
    """The tokens of a text that fit into the networks, and the words they belong to."""

    ids: list[int]
    spans: list[tuple[int, int]]  # characters of each token
    words: list[int]  # the word of each token
    word_spans: list[tuple[int, int]]
    was_cut: bool


@dataclass(frozen=True)
class Filled:
    """What the generator says of one hidden token."""

    sampled: int
    probability: float
    candidates: list[tuple[int, float]]


# ---- loading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenNetworks:
    """A generator, a discriminator, or both."""

    tokenizer: WordPiece
    generator: Generator | None
    discriminator: Discriminator | None
    device: torch.device

    @property
    def networks(self) -> dict[str, Generator | Discriminator]:
        named = {"generator": self.generator, "discriminator": self.discriminator}
        return {name: network for name, network in named.items() if network is not None}

    @property
    def length(self) -> int:
        """The tokens of a row, [CLS] and [SEP] included."""
        return min(network.encoder.shape.positions for network in self.networks.values())

    @property
    def family(self) -> str:
        return next(iter(self.networks.values())).encoder.shape.family

    @property
    def parameters(self) -> int:
        tensors = nn.ModuleList(self.networks.values()).parameters()
        return sum(tensor.numel() for tensor in tensors)

    @torch.inference_mode()
    def read(self, requests: Sequence[TokensRequest]) -> list[dict[str, Any] | RequestError]:
        """Return the answer to each request, or why it is refused."""
        texts = encode_texts(self.tokenizer, [r.text for r in requests], length=self.length)
        refusals = [self.refusal(*pair) for pair in zip(requests, texts, strict=True)]
        accepted = [index for index, refusal in enumerate(refusals) if refusal is None]
        answers: list[Any] = list(refusals)
        lengths = np.array([len(texts[index].ids) + 2 for index in accepted])
        tokens = BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"])
        for group in group_by_length(lengths, tokens=tokens):
            rows = [accepted[int(unit)] for unit in group]
            read = self.read_batch([requests[i] for i in rows], [texts[i] for i in rows])
            for index, answer in zip(rows, read, strict=True):
                answers[index] = answer
        return answers

    def refusal(self, request: TokensRequest, text: EncodedText) -> RequestError | None:
        if not text.ids:
            return RequestError(400, "The text has no words; type a sentence.")
        if request.hidden and self.generator is None:
            return RequestError(422, NO_GENERATOR)
        for word in request.hidden:
            if word >= len(text.word_spans):
                return RequestError(
                    400,
                    f"'hidden' names word {word}, and this text has {len(text.word_spans)} that "
                    "the model reads; count from 0.",
                )
        return None

    def read_batch(
        self, requests: Sequence[TokensRequest], texts: Sequence[EncodedText]
    ) -> list[dict[str, Any]]:
        """Run the networks on texts of about equal length."""
        filled: list[dict[int, Filled]] = [{} for _ in texts]
        if any(request.hidden for request in requests):
            filled = self.fill(requests, texts)
        replaced: list[list[float] | None] = [None] * len(texts)
        if self.discriminator is not None:
            rows = []
            for text, fills in zip(texts, filled, strict=True):
                sampled = {position: fill.sampled for position, fill in fills.items()}
                rows.append([sampled.get(i, token) for i, token in enumerate(text.ids)])
            logits = self.discriminator(*self.collate(rows))
            for index, row in enumerate(rows):
                replaced[index] = logits[index, 1 : len(row) + 1].float().sigmoid().tolist()
        return [
            describe(self.tokenizer, request.text, text, fills, p)
            for request, text, fills, p in zip(requests, texts, filled, replaced, strict=True)
        ]

    def fill(
        self, requests: Sequence[TokensRequest], texts: Sequence[EncodedText]
    ) -> list[dict[int, Filled]]:
        """Return what the generator says of the hidden tokens of each text, by position."""
        assert self.generator is not None
        hidden = []
        for request, text in zip(requests, texts, strict=True):
            chosen = set(request.hidden)
            hidden.append([i for i, word in enumerate(text.words) if word in chosen])
        rows = []
        for text, positions in zip(texts, hidden, strict=True):
            masked = dict.fromkeys(positions, self.tokenizer.mask)
            rows.append([masked.get(i, token) for i, token in enumerate(text.ids)])
        states = self.generator.encoder(*self.collate(rows))
        # Text by text: only so does a seed give the same sample in every batch, and the logits of
        # a whole batch may not fit into memory.
        filled = []
        for row, (request, positions) in enumerate(zip(requests, hidden, strict=True)):
            at_masks = states[row, [position + 1 for position in positions]]
            filled.append(dict(zip(positions, self.sample(at_masks, request), strict=True)))
        return filled

    def sample(self, states: Tensor, request: TokensRequest) -> list[Filled]:
        """Sample a token from each hidden state [P, D]."""
        assert self.generator is not None
        if not len(states):
            return []
        logits = self.generator.lm_logits(self.generator.transform(states)).float().cpu()
        rng = torch.Generator().manual_seed(request.seed)
        sampled = sample(logits, temperature=request.temperature, rng=rng)
        probs = (logits / request.temperature).softmax(-1)
        best, ids = probs.topk(min(CANDIDATES, probs.shape[-1]))
        chosen = probs.gather(-1, sampled[:, None])[:, 0]
        filled = []
        for i, token in enumerate(sampled.tolist()):
            candidates = list(zip(ids[i].tolist(), best[i].tolist(), strict=True))
            filled.append(Filled(token, float(chosen[i]), candidates))
        return filled

    def collate(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return input_ids, token_type_ids and attention_mask [B, T] of rows without specials."""
        longest = max(map(len, rows)) + 2
        input_ids = torch.full((len(rows), longest), self.tokenizer.pad)
        mask = torch.zeros((len(rows), longest), dtype=torch.bool)
        for index, row in enumerate(rows):
            ids = [self.tokenizer.cls, *row, self.tokenizer.sep]
            input_ids[index, : len(ids)] = torch.tensor(ids)
            mask[index, : len(ids)] = True
        input_ids, mask = input_ids.to(self.device), mask.to(self.device)
        return input_ids, torch.zeros_like(input_ids), mask


def load_networks(folders: Sequence[Path], *, device: torch.device) -> TokenNetworks:
    """Load the networks of model folders; raise UserError for one that reads no tokens."""
    generator: Generator | None = None
    discriminator: Discriminator | None = None
    tokenizers = []
    model_config.check_one_family(*folders)
    for folder in folders:
        network = load_network(folder).to(device).eval()
        tokenizers.append(load_tokenizer(folder))
        if isinstance(network, Discriminator):
            discriminator = network
        else:
            generator = network
    if len({tokenizer.fingerprint for tokenizer in tokenizers}) > 1:
        raise UserError(
            f"{folders[0]} and {folders[1]} have different vocabularies; serve networks of one run"
        )
    return TokenNetworks(tokenizers[0], generator, discriminator, device)


def load_network(folder: Path) -> Generator | Discriminator:
    """Load a discriminator, or a generator: a masked LM that stands alone is one too."""
    folder = atomic.resolve_folder(folder)
    shape, vocabulary, role = model_config.load_shape(folder)
    architecture = model_config.architecture_of(read_json(folder, CONFIG))
    network_class: type[Generator] | type[Discriminator]
    if role == "discriminator":
        network_class = family_of(shape).discriminator_class
    elif not shape.causal and (role == "generator" or architecture.endswith("ForMaskedLM")):
        network_class = family_of(shape).generator_class
    else:
        raise UserError(
            f"{folder}: {architecture or 'an encoder'} fills no masks and judges no tokens; serve "
            "a generator, a discriminator or a masked LM, or fine-tune it: electra finetune"
        )
    network, report = huggingface.build_and_load(
        lambda: network_class(build_encoder(shape, vocabulary=vocabulary)), folder
    )
    if report.missing:
        raise UserError(
            f"{folder}: {report.missing[0]} is missing, so it is no {role}; export it again"
        )
    return network


# ---- text ----------------------------------------------------------------------------------------


def encode_texts(tokenizer: WordPiece, texts: Sequence[str], *, length: int) -> list[EncodedText]:
    """Encode texts with the characters of each token; cut what is longer than a row."""
    with refuse_panics("the tokenizer"):
        encodings = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [as_encoded(text, e, room=length - 2) for text, e in zip(texts, encodings, strict=True)]


def as_encoded(text: str, encoding: Any, *, room: int) -> EncodedText:
    """Number the words of an encoding, and find the characters of each."""
    words: list[int] = []
    word_spans: list[tuple[int, int]] = []
    spans = [tuple(span) for span in encoding.offsets[:room]]
    previous: int | None = None
    for number, (start, end) in zip(encoding.word_ids, spans, strict=False):
        if not word_spans or number is None or number != previous:
            word_spans.append((start, end))
        else:
            word_spans[-1] = (word_spans[-1][0], end)
        previous = number
        words.append(len(word_spans) - 1)
    # Tokens of byte-level vocabularies begin with the blank before them.
    trimmed = [trim(text, span) for span in word_spans]
    was_cut = len(encoding.ids) > room
    return EncodedText(encoding.ids[:room], [trim(text, s) for s in spans], words, trimmed, was_cut)


def trim(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return the span without the white space at its ends."""
    start, end = span
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def utf16_offsets(text: str) -> Sequence[int]:
    """Return where each character, and the end, is in JavaScript's string: in UTF-16 units."""
    if text.isascii() or max(text) < "\U00010000":
        return range(len(text) + 1)
    return [0, *accumulate(1 + (character > "\uffff") for character in text)]


# ---- answers -------------------------------------------------------------------------------------


def describe(
    tokenizer: WordPiece,
    text: str,
    encoded: EncodedText,
    filled: dict[int, Filled],
    replaced: list[float] | None,
) -> dict[str, Any]:
    """Return the answer to a request as JSON."""
    offsets, names = utf16_offsets(text), tokenizer.tokens(encoded.ids)
    tokens = []
    for position, (start, end) in enumerate(encoded.spans):
        token: dict[str, Any] = {
            "text": names[position],
            "word": encoded.words[position],
            "start": offsets[start],
            "end": offsets[end],
            "hidden": position in filled,
            "sampled": None,
            "candidates": None,
            "replaced": None,
        }
        if replaced is not None:
            token["replaced"] = replaced[position]
        if position in filled:
            token |= describe_fill(tokenizer, filled[position], encoded.ids[position])
        tokens.append(token)
    words = []
    for start, end in encoded.word_spans:
        words.append({"text": text[start:end], "start": offsets[start], "end": offsets[end]})
    return {
        "words": words,
        "tokens": tokens,
        "filled": fill_text(tokenizer, text, encoded, filled),
        "cut": encoded.was_cut,
    }


def describe_fill(tokenizer: WordPiece, fill: Filled, original: int) -> dict[str, Any]:
    names = tokenizer.tokens([fill.sampled, *(token for token, _ in fill.candidates)])
    candidates = []
    for name, (_, probability) in zip(names[1:], fill.candidates, strict=True):
        candidates.append({"text": name, "probability": probability})
    sampled = {
        "text": names[0],
        "probability": fill.probability,
        "is_original": fill.sampled == original,
    }
    return {"sampled": sampled, "candidates": candidates}


def fill_text(
    tokenizer: WordPiece, text: str, encoded: EncodedText, filled: dict[int, Filled]
) -> str:
    """Return the text with the sampled words in it. A word whose samples are all original stays as
    it was written.
    """
    sampled: dict[int, list[int]] = {}
    changed = set()
    for position, fill in filled.items():
        word = encoded.words[position]
        sampled.setdefault(word, []).append(fill.sampled)
        if fill.sampled != encoded.ids[position]:
            changed.add(word)
    parts, end = [], 0
    for word in sorted(changed):
        start = encoded.word_spans[word][0]
        parts += [text[end:start], join_tokens(tokenizer, sampled[word])]
        end = encoded.word_spans[word][1]
    return "".join([*parts, text[end:]])


def join_tokens(tokenizer: WordPiece, ids: Sequence[int]) -> str:
    """Return tokens as text: pieces of words are joined to what is before them."""
    backend = tokenizer.backend_tokenizer
    if backend.decoder is not None and not any("##" in name for name in tokenizer.tokens(ids)):
        return str(backend.decode(list(ids), skip_special_tokens=False)).strip()
    joined = ""
    for name in tokenizer.tokens(ids):
        if joined and not name.startswith("##"):
            joined += " "
        joined += name.removeprefix("##")
    return joined
