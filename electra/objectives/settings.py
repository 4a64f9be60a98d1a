"""What a recipe may say about its objective: which one by `name`, and its settings. No torch.

An objective's settings class says everything about it that is known before a network exists: its
metrics with their baselines, what a token costs, and which module computes the loss.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar, get_args, get_type_hints

from electra.config import SettingError, in_section
from electra.model.shape import EncoderShape, GeneratorShape
from electra.model.workload import Head, LinearHead, LMHead, RTDHead, Workload
from electra.objectives.masking import Masking
from electra.objectives.metrics import (
    LEFT_TO_RIGHT_METRICS,
    NEXT_SENTENCE_METRICS,
    RESTORE_METRICS,
    RTD_METRICS,
    Metric,
    mlm_metrics,
)

if TYPE_CHECKING:
    from torch import Tensor

    from electra.objectives.objective import Objective
    from electra.objectives.vocabulary import Vocabulary

NEXT_SENTENCE_CLASSES = 2  # the second segment follows the first, or comes from elsewhere


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    """The settings of one objective; a recipe chooses a registered subclass by `name`."""

    # No field: it has no annotation.
    unknown_name_remedy = (
        "; an objective of your own is registered by its file: python your_file.py pretrain …"
    )

    @staticmethod
    def variants() -> tuple[type[ObjectiveConfig], ...]:
        """Return every registered settings class, for the decoder of recipes."""
        return tuple(REGISTERED.values())

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def needs_causal_encoder(self) -> bool:
        """Whether a token must not see those after it."""
        return False

    @property
    def min_micro_batch_size(self) -> int:
        """The fewest rows that a micro-batch needs."""
        return 1

    def metrics(self) -> tuple[Metric, ...]:
        """Return the held-out metrics, the fine-tuned network's own loss among them."""
        raise NotImplementedError

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        """Return what a token goes through, from which FLOPs and memory follow."""
        raise NotImplementedError

    @property
    def implementation(self) -> str:
        """The module and class that compute the loss, as "package.module:Class".

        Named and not imported, so that settings need no torch.
        """
        raise NotImplementedError

    def build(
        self, *, encoder: EncoderShape, vocabulary: Vocabulary, unigrams: Tensor
    ) -> Objective:
        """Return the module that computes the loss, with freshly initialised networks."""
        module, _, name = self.implementation.partition(":")
        objective_class = getattr(importlib.import_module(module), name)
        objective: Objective = objective_class(
            self, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams
        )
        return objective


REGISTERED: dict[str, type[ObjectiveConfig]] = {}  # by name
Settings = TypeVar("Settings", bound=type[ObjectiveConfig])


def register(settings: Settings) -> Settings:
    """Let recipes name this objective. Its class has a field `name: Literal["…"] = "…"`."""
    names = get_args(get_type_hints(settings).get("name"))
    if len(names) != 1:
        raise TypeError(f'{settings.__name__} needs a field `name: Literal["…"] = "…"`')
    for method in ("metrics", "workload"):
        if getattr(settings, method) is getattr(ObjectiveConfig, method):
            raise TypeError(f"{settings.__name__} must define {method}()")
    if names[0] in REGISTERED and REGISTERED[names[0]] is not settings:
        raise ValueError(
            f"{settings.__name__}: an objective named {names[0]!r} is registered already; choose "
            "another name"
        )
    REGISTERED[names[0]] = settings
    return settings


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class ReplacedTokenDetectionConfig(ObjectiveConfig):
    """ELECTRA: a generator proposes replacements, the discriminator classifies every token."""

    name: Literal["rtd"] = "rtd"  # replaced token detection
    masking: Masking = field(default_factory=Masking)
    generator: GeneratorShape = field(default_factory=GeneratorShape)
    generator_weight: float = 1.0  # of the generator's loss
    discriminator_weight: float = 50.0  # of the discriminator's loss (paper, appendix A)
    temperature: float = 1.0  # of the generator's samples
    # never sample the original token (a negative result of the paper)
    disallow_correct: bool = False
    # tokens in the discriminator's loss; masked: ELECTRA 15 % (paper, section 3.5)
    scored: Literal["all", "masked"] = "all"
    # mlm: as a masked LM; adversarial: to raise the discriminator's loss; frozen: not at all, the
    # second of two stages (paper, section 3.2)
    generator_training: Literal["mlm", "adversarial", "frozen"] = "mlm"

    def __post_init__(self) -> None:
        check_weights(self, "generator_weight", "discriminator_weight")
        check_sampling(self)
        if self.generator_training != "mlm" and self.generator.kind != "network":
            raise SettingError(
                "generator_training",
                "is about a network, but {generator.kind} draws by chance and never learns; "
                "leave one of the two out",
                self,
            )
        if self.generator_training == "frozen" and self.generator.tie != "none":
            raise SettingError(
                "generator_training",
                "freezes the generator, but the discriminator would change what {generator.tie} "
                "shares; set {generator.tie:name} to 'none'",
                self,
            )
        self.check_adversary()
        if self.disallow_correct and self.scored == "masked":
            raise SettingError(
                "scored",
                "with {disallow_correct}: every scored token would be a replacement, so there is "
                "nothing to learn; leave one of them out",
                self,
            )

    def check_adversary(self) -> None:
        """Refuse samples from another distribution than the one that REINFORCE improves."""
        if self.generator_training != "adversarial":
            return
        for key, is_changed in (
            ("disallow_correct", self.disallow_correct),
            ("temperature", self.temperature != 1),
        ):
            if is_changed:
                raise SettingError(
                    key,
                    "samples from another distribution than the one that {generator_training} "
                    "improves; leave it out",
                    self,
                )

    def generator_settings(self, encoder: EncoderShape) -> GeneratorShape:
        """Return the generator's settings; a frozen one was an encoder like this in its stage."""
        if self.generator_training == "frozen" and self.generator.embedding is None:
            return replace(self.generator, embedding=encoder.embedding)
        return self.generator

    def metrics(self) -> tuple[Metric, ...]:
        if self.generator.kind != "network":
            return RTD_METRICS
        is_mlm = self.generator_training == "mlm"
        return (*RTD_METRICS, *mlm_metrics("generator", is_trained_by_it=is_mlm))

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        """Return what a token goes through.

        An adversary's reward baseline, one number for each masked position, is not counted.
        """
        return Workload(
            encoder=encoder,
            heads=(RTDHead(),),
            network="discriminator",
            generator=generator_shape(self.generator_settings(encoder), encoder),
            generator_is_trained=self.generator_training != "frozen",
            tie=self.generator.tie,
            vocabulary=vocabulary,
            length=length,
            mask_rate=self.masking.max_rate,
        )

    @property
    def implementation(self) -> str:
        if self.generator_training == "adversarial":
            return "electra.objectives.adversarial:AdversarialDetection"
        return "electra.objectives.rtd:ReplacedTokenDetection"


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedLMConfig(ObjectiveConfig):
    """BERT: one encoder predicts what was masked."""

    name: Literal["mlm"] = "mlm"  # masked LM
    masking: Masking = field(default_factory=lambda: Masking(keep=0.1, random=0.1))
    # also predict whether the second segment follows the first (BERT paper, section 3.1)
    next_sentence: bool = False

    @property
    def min_micro_batch_size(self) -> int:
        return 1 + self.next_sentence  # a second segment may come from another row

    def metrics(self) -> tuple[Metric, ...]:
        if self.next_sentence:
            return (*mlm_metrics("encoder"), *NEXT_SENTENCE_METRICS)
        return mlm_metrics("encoder")

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        heads: tuple[Head, ...] = (LMHead(),)
        if self.next_sentence:
            heads += (LinearHead("next-sentence head", NEXT_SENTENCE_CLASSES, per_row=True),)
        return Workload(
            encoder=encoder,
            heads=heads,
            network="encoder",
            vocabulary=vocabulary,
            length=length,
            mask_rate=self.masking.max_rate,
        )

    @property
    def implementation(self) -> str:
        if self.next_sentence:
            return "electra.objectives.next_sentence:NextSentence"
        return "electra.objectives.mlm:MaskedLM"


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class LeftToRightConfig(ObjectiveConfig):
    """GPT's loss on BERT's network: a causal encoder predicts the next token."""

    name: Literal["left-to-right"] = "left-to-right"  # causal LM

    @property
    def needs_causal_encoder(self) -> bool:
        return True

    def metrics(self) -> tuple[Metric, ...]:
        return LEFT_TO_RIGHT_METRICS

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        return Workload(
            encoder=encoder,
            heads=(LMHead("next"),),
            network="encoder",
            vocabulary=vocabulary,
            length=length,
        )

    @property
    def implementation(self) -> str:
        return "electra.objectives.left_to_right:LeftToRight"


@dataclass(frozen=True, kw_only=True, slots=True)
class RestorationConfig(ObjectiveConfig):
    """What Replace MLM and All-Tokens MLM have in common.

    A generator proposes replacements; the encoder restores the originals.
    """

    masking: Masking = field(default_factory=Masking)
    generator: GeneratorShape = field(default_factory=GeneratorShape)
    generator_weight: float = 1.0  # of the generator's loss
    encoder_weight: float = 1.0  # of the encoder's loss
    temperature: float = 1.0  # of the generator's samples
    # never sample the original token (a negative result of the paper)
    disallow_correct: bool = False

    def __post_init__(self) -> None:
        check_weights(self, "generator_weight", "encoder_weight")
        check_sampling(self)

    @property
    def heads(self) -> tuple[Head, ...]:
        raise NotImplementedError

    def metrics(self) -> tuple[Metric, ...]:
        if self.generator.kind != "network":
            return RESTORE_METRICS
        return (*RESTORE_METRICS, *mlm_metrics("generator"))

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        return Workload(
            encoder=encoder,
            heads=self.heads,
            network="encoder",
            generator=generator_shape(self.generator, encoder),
            tie=self.generator.tie,
            vocabulary=vocabulary,
            length=length,
            mask_rate=self.masking.max_rate,
        )


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaceMLMConfig(RestorationConfig):
    """BERT's task on ELECTRA's text: replacements stand where [MASK] would (paper, section 3.5)."""

    name: Literal["replace-mlm"] = "replace-mlm"  # Replace MLM

    @property
    def heads(self) -> tuple[Head, ...]:
        return (LMHead(),)

    @property
    def implementation(self) -> str:
        return "electra.objectives.restore:ReplaceMLM"


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class AllTokensMLMConfig(RestorationConfig):
    """Every token is predicted, through a gate that may copy the one it reads (section 3.5)."""

    name: Literal["all-tokens-mlm"] = "all-tokens-mlm"  # All-Tokens MLM

    @property
    def heads(self) -> tuple[Head, ...]:
        return (LMHead("all"), LinearHead("copy gate"))

    @property
    def implementation(self) -> str:
        return "electra.objectives.restore:AllTokensMLM"


GeneratingConfig = ReplacedTokenDetectionConfig | ReplaceMLMConfig | AllTokensMLMConfig


def check_weights(config: ObjectiveConfig, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 0:
            raise SettingError(name, "must not be negative", config)


def check_sampling(config: ReplacedTokenDetectionConfig | RestorationConfig) -> None:
    if config.temperature <= 0:
        raise SettingError("temperature", "must be above 0", config)
    if config.disallow_correct and config.masking.draws == "official":
        raise SettingError(
            "disallow_correct",
            "goes with {masking.draws:name}='distinct': the official code leaves the mean of two "
            "samples' ids where it drew twice, which may be the original",
            config,
        )


def generator_shape(generator: GeneratorShape, encoder: EncoderShape) -> EncoderShape | None:
    """Return the generator's shape; None where replacements are drawn by chance."""
    if generator.kind != "network":
        return None
    with in_section("generator"):
        return generator.beside(encoder)
