"""What a recipe may say about its objective: which one by `name`, and how tokens are chosen and
corrupted. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from electra.config import SettingError, in_section
from electra.model.flops import Head, Workload
from electra.model.shape import EncoderShape, GeneratorShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Masking:
    """Which positions are predicted, and what the network reads there. Defaults follow the official
    code.
    """

    rate: float = 0.15
    # share of the chosen positions that keep their token; the rest become [MASK] or random
    keep: float = 0.15
    random: float = 0.0  # share that becomes a random token (BERT: keep = random = 0.1)
    draws: Literal["distinct", "official"] = (
        "distinct"  # official: with replacement, as published numbers were made
    )
    prefer: Literal["uniform", "rare"] = (
        "uniform"  # rare: rarer words more often (a negative result of the paper)
    )

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise SettingError("rate", "must be between 0 and 1", self)
        if self.keep < 0 or self.random < 0 or self.keep + self.random > 1:
            raise SettingError(
                "keep",
                "and {random} are shares of the chosen positions; they must add up to at most 1",
                self,
            )

    def most(self, length: int) -> int:
        """The most positions predicted in a row of this length (reference code: 19 of 128, 79 of
        512).
        """
        return max(1, int((self.rate + 0.005) * length))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplacedTokenDetectionConfig:
    """ELECTRA: a generator proposes, the discriminator judges every token."""

    name: Literal["rtd"] = "rtd"
    masking: Masking = field(default_factory=Masking)
    generator: GeneratorShape = field(default_factory=GeneratorShape)
    generator_weight: float = 1.0
    discriminator_weight: float = 50.0  # paper, appendix A
    temperature: float = 1.0
    disallow_correct: bool = False  # no sample is the original (among the paper's negative results)
    scored: Literal["all", "masked"] = (
        "all"  # tokens that are judged; masked: ELECTRA 15 % (paper, section 3.5)
    )
    # Adversarially: to raise the discriminator's loss. Nothing: it stays as it was (two-stage).
    # Paper, section 3.2.
    generator_training: Literal["mlm", "adversarial", "frozen"] = "mlm"

    def __post_init__(self) -> None:
        for name in ("generator_weight", "discriminator_weight"):
            if getattr(self, name) < 0:
                raise SettingError(name, "must not be negative", self)
        if self.temperature <= 0:
            raise SettingError("temperature", "must be above 0", self)
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
        if self.generator_training == "adversarial" and (
            self.temperature != 1 or self.disallow_correct
        ):
            key = "disallow_correct" if self.disallow_correct else "temperature"
            raise SettingError(
                key,
                "samples from another distribution than the one that {generator_training} "
                "improves; leave it out",
                self,
            )
        check_disallowing(self)
        if self.disallow_correct and self.scored == "masked":
            raise SettingError(
                "scored",
                "with {disallow_correct}: every judged token would be a replacement, so there is "
                "nothing to learn; leave one of them out",
                self,
            )

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        """What a token goes through, for counting what it costs. An adversary's baseline, one
        number for each masked position, is not counted.
        """
        return Workload(
            objective="rtd",
            encoder=encoder,
            tie=self.generator.tie,
            vocabulary=vocabulary,
            length=length,
            generator=generator_shape(self.generator, encoder),
            generator_is_trained=self.generator_training != "frozen",
            mask_rate=self.masking.rate,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedLMConfig:
    """BERT: one encoder predicts what was masked."""

    name: Literal["mlm"] = "mlm"
    masking: Masking = field(default_factory=lambda: Masking(keep=0.1, random=0.1))
    next_sentence: bool = (
        False  # also: does the second segment follow the first? (BERT paper, section 3.1)
    )

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        return Workload(
            objective="mlm",
            encoder=encoder,
            vocabulary=vocabulary,
            length=length,
            mask_rate=self.masking.rate,
            next_sentence=self.next_sentence,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftToRightConfig:
    """GPT's loss on BERT's network: an encoder that sees no later token predicts the next one."""

    name: Literal["left-to-right"] = "left-to-right"

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        return Workload(
            objective="left-to-right", encoder=encoder, vocabulary=vocabulary, length=length
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RestorationConfig:
    """What Replace MLM and All-Tokens MLM have in common: a generator proposes, the encoder
    restores the originals.
    """

    masking: Masking = field(default_factory=Masking)
    generator: GeneratorShape = field(default_factory=GeneratorShape)
    generator_weight: float = 1.0
    encoder_weight: float = 1.0
    temperature: float = 1.0
    disallow_correct: bool = False  # no sample is the original (among the paper's negative results)

    def __post_init__(self) -> None:
        for name in ("generator_weight", "encoder_weight"):
            if getattr(self, name) < 0:
                raise SettingError(name, "must not be negative", self)
        if self.temperature <= 0:
            raise SettingError("temperature", "must be above 0", self)
        check_disallowing(self)

    def work(self, head: Head, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        return Workload(
            objective=head,
            encoder=encoder,
            tie=self.generator.tie,
            vocabulary=vocabulary,
            length=length,
            generator=generator_shape(self.generator, encoder),
            mask_rate=self.masking.rate,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaceMLMConfig(RestorationConfig):
    """BERT's task on ELECTRA's text: replacements stand where [MASK] would (paper, section 3.5)."""

    name: Literal["replace-mlm"] = "replace-mlm"

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        return self.work("mlm", encoder, vocabulary=vocabulary, length=length)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllTokensMLMConfig(RestorationConfig):
    """The same, but every token is predicted, through a gate that may copy the one it reads (paper,
    section 3.5).
    """

    name: Literal["all-tokens-mlm"] = "all-tokens-mlm"

    def workload(self, encoder: EncoderShape, *, vocabulary: int, length: int) -> Workload:
        return self.work("all-tokens", encoder, vocabulary=vocabulary, length=length)


def generator_shape(generator: GeneratorShape, encoder: EncoderShape) -> EncoderShape | None:
    """Return the shape of the generator's network beside this encoder; None where it has none."""
    if generator.kind != "network":
        return None
    with in_section("generator"):
        return generator.beside(encoder)


def check_disallowing(config: ReplacedTokenDetectionConfig | RestorationConfig) -> None:
    if config.disallow_correct and config.masking.draws == "official":
        raise SettingError(
            "disallow_correct",
            "goes with {masking.draws:name}='distinct': the official code leaves the mean of two "
            "samples' ids where it drew twice, which may be the original",
            config,
        )


SplicingConfig = ReplacedTokenDetectionConfig | ReplaceMLMConfig | AllTokensMLMConfig
ObjectiveConfig = (
    ReplacedTokenDetectionConfig
    | MaskedLMConfig
    | ReplaceMLMConfig
    | AllTokensMLMConfig
    | LeftToRightConfig
)
