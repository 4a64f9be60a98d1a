"""The options of `electra embed`, shared by the command line and Python. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Options for the embeddings of texts.

    Parameters
    ----------
    layer
        last, sum-last-4, concat-last-4, or the number of a layer; 0 is the embeddings.
    pool
        mean over the tokens ([CLS] and [SEP] included), cls (the first vector), or tokens (all of
        them; .parquet). The default is what a sentence-transformers folder states, else mean.
    normalize
        Scale each vector to length 1, or do not. The default is what a sentence-transformers folder
        states, else not.
    length
        Tokens at most; a longer text is cut. The default is the number of the model's positions, or
        what a sentence-transformers folder states.
    precision
        fp32, or bf16 for the matrix products: faster on a GPU, with two to three exact digits.
    batch_tokens
        Tokens in one batch; by default as many as suit the device.
    """

    layer: str = "last"
    pool: Literal["mean", "cls", "tokens"] | None = None
    normalize: Annotated[bool | None, Parameter(negative="--no-normalize")] = None
    length: int | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    batch_tokens: Annotated[int | None, Parameter(parse=False)] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer", str(self.layer))  # layer=1 from Python


DEFAULTS = EmbedOptions()
