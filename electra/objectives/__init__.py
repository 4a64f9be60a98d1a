"""Vectors become a pre-training loss. `objective.py` says what an objective is; each of the others
is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from electra.model.shape import EncoderShape
from electra.objectives.settings import (
    AllTokensMLMConfig,
    LeftToRightConfig,
    MaskedLMConfig,
    ObjectiveConfig,
    ReplaceMLMConfig,
)

if TYPE_CHECKING:
    from torch import Tensor

    from electra.objectives.corruption import Vocabulary
    from electra.objectives.objective import Objective


def build_objective(
    config: ObjectiveConfig, *, encoder: EncoderShape, vocabulary: Vocabulary, unigrams: Tensor
) -> Objective:
    """The objective that a recipe names."""
    if isinstance(config, LeftToRightConfig):
        from electra.objectives.left_to_right import LeftToRight

        return LeftToRight(encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
    if isinstance(config, MaskedLMConfig) and config.next_sentence:
        from electra.objectives.next_sentence import NextSentence

        return NextSentence(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
    if isinstance(config, MaskedLMConfig):
        from electra.objectives.mlm import MaskedLM

        return MaskedLM(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
    if isinstance(config, ReplaceMLMConfig):
        from electra.objectives.restore import ReplaceMLM

        return ReplaceMLM(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
    if isinstance(config, AllTokensMLMConfig):
        from electra.objectives.restore import AllTokensMLM

        return AllTokensMLM(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
    if config.generator_training == "adversarial":
        from electra.objectives.adversarial import AdversarialDetection

        return AdversarialDetection(
            config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams
        )
    from electra.objectives.rtd import ReplacedTokenDetection

    return ReplacedTokenDetection(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
