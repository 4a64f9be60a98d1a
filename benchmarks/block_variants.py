"""Run a command of electra with the parts of ModernBERT's blocks exchanged, one by one.

    python -m benchmarks.block_variants learned,post-norm,gelu pretrain modern-small --kernels off …

learned     learned positions, added to the embeddings, instead of rotary ones
post-norm   LayerNorm after each residual connection, instead of before it
gelu        a feed-forward layer without a gate, and as many parameters

No class of transformers holds such networks: their folders are not verified, and only this module,
given the same parts, reads them. Kernels have to be off. FLOPs and memory are those of ModernBERT.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import Tensor, nn

import electra.finetuning.scoring
import electra.pretraining.export
from electra.__main__ import main as run_electra
from electra.model import modernbert_encoder
from electra.model.encoder import initialise
from electra.model.gelu import gelu
from electra.model.modernbert_encoder import (
    ModernBertBlock,
    ModernBertEmbeddings,
    RotaryAttention,
    layer_norm,
)
from electra.model.shape import EncoderShape

PARTS = ("learned", "post-norm", "gelu")


class LearnedPositions(ModernBertEmbeddings):
    """Embeddings of words and of positions; their sum is normalised."""

    def __init__(self, shape: EncoderShape, *, vocabulary: int) -> None:
        super().__init__(shape, vocabulary=vocabulary)
        self.position_embeddings = nn.Embedding(shape.positions, shape.width)
        initialise(self.position_embeddings)

    def forward(self, input_ids: Tensor) -> Tensor:
        words = self.word_embeddings(input_ids)
        if self.projection is not None:
            words = self.projection(words)
        positions = self.position_embeddings.weight[: input_ids.shape[1]]
        return self.dropout(self.norm(words + positions))


def attend_without_angles(
    attention: RotaryAttention, hidden: Tensor, visible: Tensor, *angles: Tensor
) -> Tensor:
    return attention.attend(*attention.project(hidden), visible)


class GeluBlock(ModernBertBlock):
    """A feed-forward layer half as wide again, without a gate: as many parameters as GeGLU's."""

    stacked_in_expand = 1

    def __init__(self, shape: EncoderShape, number: int) -> None:
        super().__init__(shape, number)
        inner = shape.feedforward * 3 // 2
        self.expand = nn.Linear(shape.width, inner, bias=False)
        self.contract = nn.Linear(inner, shape.width, bias=False)
        self.initialise(shape)

    def transform(self, hidden: Tensor) -> Tensor:
        return self.contract(self.dropout(gelu(self.expand(hidden))))

    def attend_and_transform(self, hidden: Tensor, *context: Tensor) -> Tensor:
        attended = self.attention(self.attention_norm(hidden), *context)
        hidden = hidden + self.attention_output_dropout(attended)
        return hidden + self.transform(self.feedforward_norm(hidden))


class PostNormBlock(ModernBertBlock):
    """Attention and GeGLU; each is added to its input, and the sum is normalised."""

    def __init__(self, shape: EncoderShape, number: int) -> None:
        super().__init__(shape, number)
        self.attention_norm = layer_norm(shape.width)

    def transform(self, hidden: Tensor) -> Tensor:
        activated, gate = self.expand(hidden).chunk(2, dim=-1)
        return self.contract(self.dropout(gelu(activated) * gate))

    def attend_and_transform(self, hidden: Tensor, *context: Tensor) -> Tensor:
        attended = self.attention_output_dropout(self.attention(hidden, *context))
        hidden = self.attention_norm(hidden + attended)
        return self.feedforward_norm(hidden + self.transform(hidden))


class PostNormGeluBlock(PostNormBlock, GeluBlock):
    """LayerNorm after each residual connection, and no gate."""

    transform = GeluBlock.transform


BLOCKS = {  # by whether LayerNorm stands behind, and whether the gate is left out
    (False, False): ModernBertBlock,
    (False, True): GeluBlock,
    (True, False): PostNormBlock,
    (True, True): PostNormGeluBlock,
}


def exchange(parts: Sequence[str]) -> None:
    """Let ModernBERT's encoders of this process have other parts."""
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"{sorted(unknown)[0]!r} is no part; choose from {', '.join(PARTS)}")
    if "learned" in parts:
        modernbert_encoder.ModernBertEmbeddings = LearnedPositions
        RotaryAttention.forward = attend_without_angles
    if "post-norm" in parts:
        build = modernbert_encoder.ModernBertEncoder.__init__

        def build_without_final_norm(encoder, shape, *, vocabulary):
            build(encoder, shape, vocabulary=vocabulary)
            encoder.final_norm = nn.Identity()

        modernbert_encoder.ModernBertEncoder.__init__ = build_without_final_norm
    modernbert_encoder.ModernBertBlock = BLOCKS["post-norm" in parts, "gelu" in parts]
    if parts:
        for module in (electra.pretraining.export, electra.finetuning.scoring):
            module.verify = lambda network, folder: 0.0


def main(argv: Sequence[str]) -> int:
    parts, *command = argv
    exchange([part for part in parts.split(",") if part])
    return run_electra(command)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
