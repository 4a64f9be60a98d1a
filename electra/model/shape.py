"""The shape of a network as data. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from electra.config import SettingError

# Deeper than any. Building a million narrow layers would take hours and hardly any memory.
MAX_LAYERS = 1000
DROPOUTS = ("dropout", "attention_dropout")  # the fields of a shape that no weight depends on
Tie = Literal["none", "embeddings", "gradient-disentangled", "all"]
MODERNBERT_DEFAULTS = {
    "rope_theta": 10_000.0,
    "global_every": 1,
    "local_attention": 128,
    "local_rope_theta": 10_000.0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderShape:
    """Shape of one transformer encoder. Defaults are ELECTRA-Small (paper, table 6)."""

    # electra: the paper's, LayerNorm after each residual connection and learned positions;
    # modernbert: LayerNorm before, rotary positions, GeGLU, no biases.
    family: Literal["electra", "modernbert"] = "electra"
    layers: int = 12  # transformer blocks
    width: int = 256  # size of the hidden states
    heads: int = 4  # attention heads, a divisor of `width`
    feedforward: int = 1024  # inner width of the feed-forward layers
    embedding: int = 128  # width of the embeddings, projected to `width` if it differs
    positions: int = 512  # tokens in the longest row that the encoder reads
    dropout: float = 0.1  # dropout rate of the embeddings and of each layer's outputs
    attention_dropout: float = 0.1  # dropout rate of the attention probabilities
    causal: bool = False  # a token attends only to itself and earlier tokens: a left-to-right LM
    # modernbert: base of the rotary positions in layers with global attention; by default 10,000
    rope_theta: float | None = None
    # modernbert: every n-th layer has global attention, beginning with the first; by default 1,
    # which means all layers
    global_every: int | None = None
    # modernbert: tokens in the attention window of the other layers; by default 128
    local_attention: int | None = None
    # modernbert: base of the rotary positions in layers with a window; by default 10,000
    local_rope_theta: float | None = None

    def __post_init__(self) -> None:
        self.resolve_modernbert()
        for name in ("layers", "width", "heads", "feedforward", "embedding", "positions"):
            if getattr(self, name) < 1:
                raise SettingError(name, "must be at least 1", self)
        if self.layers > MAX_LAYERS:
            raise SettingError("layers", f"must be at most {MAX_LAYERS}", self)
        for name in DROPOUTS:
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(name, "must be in [0, 1)", self)
        if self.width % self.heads:
            raise SettingError(
                "width",
                f"does not split into {{heads}} equal heads; {self.next_width}",
                self,
            )
        if self.family == "modernbert" and self.head_width % 2:
            raise SettingError(
                "width",
                "does not split into {heads} heads of an even width, which rotary positions need; "
                f"{self.next_width}",
                self,
            )

    def resolve_modernbert(self) -> None:
        """Give ModernBERT's own settings their defaults; refuse those of the other family."""
        if self.family == "electra":
            for name in MODERNBERT_DEFAULTS:
                if getattr(self, name) is not None:
                    raise SettingError(
                        name,
                        "belongs to {family:name}='modernbert', and here is {family}; leave it "
                        "out, or set it to none",
                        self,
                    )
            return
        if self.causal:
            raise SettingError(
                "causal",
                "belongs to {family:name}='electra', and here is {family}; leave it out",
                self,
            )
        for name, default in MODERNBERT_DEFAULTS.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
            if getattr(self, name) <= 0:
                raise SettingError(name, "must be above 0", self)

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def next_width(self) -> str:
        """The next width that so many heads can have, in words."""
        step = self.heads
        if self.family == "modernbert":
            step *= 2
        return f"the next width that does is {self.width + -self.width % step}"

    @property
    def has_projection(self) -> bool:
        """Embeddings of another width than the blocks are projected."""
        return self.embedding != self.width


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratorShape:
    """Where replacements come from: a network, or chance.

    The network is a fraction of the discriminator, or sized by hand.
    """

    # network: a masked LM; unigram: words drawn by their frequency; uniform: any word
    kind: Literal["network", "unigram", "uniform"] = "network"
    # what both networks share; gradient-disentangled: the discriminator adds a difference to the
    # generator's embeddings and does not update them (DeBERTaV3)
    tie: Tie = "embeddings"
    fraction: float = 0.25  # of the discriminator's width, heads and feed-forward width
    layers: int | None = None  # by default those of the discriminator
    width: int | None = None  # overrides `fraction`
    heads: int | None = None  # by default heads about as wide as the discriminator's
    feedforward: int | None = None  # by default in proportion to the width
    embedding: int | None = None  # the discriminator's where it is shared, else as wide as `width`

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise SettingError("fraction", "must be in (0, 1]", self)
        for name in ("layers", "width", "heads", "feedforward", "embedding"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise SettingError(name, "must be at least 1", self)

    def beside(self, discriminator: EncoderShape) -> EncoderShape:
        """Return the generator's encoder shape next to this discriminator.

        It has the same depth, and heads as wide or nearly so, unless the settings say otherwise.
        Embeddings that it shares are as wide as the discriminator's. Its own are as wide as its
        blocks, without a projection (official code).
        """
        width = self.width or round(discriminator.width * self.fraction)
        feedforward = round(discriminator.feedforward * self.fraction)
        if self.width:
            feedforward = 4 * width
            if discriminator.family == "modernbert":
                feedforward = round(discriminator.feedforward * width / discriminator.width)
        most_heads = max(1, width // discriminator.head_width)
        heads = next(count for count in range(most_heads, 0, -1) if width % count == 0)
        shape = replace(
            discriminator,
            layers=self.layers or discriminator.layers,
            width=width,
            heads=self.heads or heads,
            feedforward=self.feedforward or feedforward,
            embedding=self.embedding_beside(discriminator, width),
        )
        if self.tie == "all" and shape != discriminator:
            raise SettingError(
                "tie",
                f"makes one encoder of both networks, but the generator is {shape.layers}×"
                f"{shape.width} and the discriminator {discriminator.layers}×"
                f"{discriminator.width}; set {{fraction:name}}=1.0, and leave out the "
                "generator's own sizes, or set them to none",
                self,
            )
        return shape

    def embedding_beside(self, discriminator: EncoderShape, width: int) -> int:
        if self.tie == "none":
            return self.embedding or width
        if self.embedding not in (None, discriminator.embedding):
            raise SettingError(
                "embedding",
                "differs from that of the discriminator, with which the generator shares it; "
                "leave it out, or set {tie:name}='none'",
                self,
            )
        return discriminator.embedding
