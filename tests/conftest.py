"""Small real things to test with: a corpus, a vocabulary and shards made by the package itself, and
no network.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = (
        "1"  # kernels run in Triton's interpreter; it reads this when it is imported
    )

from electra.data.batches import Batch
from electra.data.options import ShardOptions, VocabularyOptions
from electra.data.sharding import shard
from electra.data.vocabulary import train_wordpiece
from electra.model.shape import EncoderShape
from electra.objectives.objective import Objective
from electra.objectives.settings import ObjectiveConfig

NOUNS = (
    "dog cat house river stone garden window letter teacher village winter song bridge market "
    "forest"
).split()
VERBS = "sees builds follows carries paints remembers crosses opens finds leaves".split()
ADJECTIVES = "old small quiet green heavy strange bright distant narrow early".split()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this machine may be reached."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        assert host in ("", "localhost", "127.0.0.1", "::1"), f"a test reached for {host}"
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def cache_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No test reads or fills the cache of whoever runs it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@dataclass(frozen=True)
class ToyVocabulary:
    """Five special tokens and a few words, by number."""

    size: int = 50
    pad: int = 0
    unk: int = 1
    cls: int = 2
    sep: int = 3
    mask: int = 4


@pytest.fixture
def vocabulary() -> ToyVocabulary:
    return ToyVocabulary()


def toy_batch(
    lengths: list[int], *, length: int = 16, vocabulary: ToyVocabulary | None = None, seed: int = 0
) -> Batch:
    """[CLS] words [SEP] words [SEP], padded; words are random but never special."""
    vocabulary = vocabulary or ToyVocabulary()
    rng = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), length), vocabulary.pad)
    token_type_ids = torch.zeros_like(ids)
    for row, attention_mask in enumerate(lengths):
        ids[row, :attention_mask] = torch.randint(
            5, vocabulary.size, (attention_mask,), generator=rng
        )
        ids[row, 0], ids[row, attention_mask - 1] = vocabulary.cls, vocabulary.sep
        if attention_mask >= 5:
            ids[row, attention_mask // 2] = vocabulary.sep
            token_type_ids[row, attention_mask // 2 + 1 : attention_mask] = 1
    real_tokens = torch.tensor(lengths)
    return Batch(
        input_ids=ids, token_type_ids=token_type_ids, lengths=real_tokens, step_lengths=real_tokens
    )


def toy_objective(config: ObjectiveConfig, encoder: EncoderShape) -> Objective:
    """The same network each time, over a toy vocabulary whose words are all as frequent."""
    torch.manual_seed(0)
    return config.build(
        encoder=encoder, vocabulary=ToyVocabulary(), unigrams=torch.full((50,), 1 / 50)
    )


def toy_text(documents: int, *, seed: int = 0) -> str:
    """Sentences with some grammar to learn, blank lines between documents."""
    rng = random.Random(seed)
    lines = []
    for _ in range(documents):
        for _ in range(rng.randint(2, 6)):
            lines.append(
                f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} {rng.choice(VERBS)} the "
                f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} ."
            )
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="session")
def toy_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "toy.txt"
    path.write_text(toy_text(400), encoding="utf8")
    return path


@pytest.fixture(scope="session")
def toy_shards(toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 32 tokens, a tenth of the documents held out."""
    folder = tmp_path_factory.mktemp("shards")
    tokenizer = train_wordpiece(
        [toy_corpus],
        folder / "tokenizer",
        options=VocabularyOptions(vocab_size=200),
        report=lambda message: None,
    )
    options = ShardOptions(length=32, held_out=0.1, workers=1)
    shard([toy_corpus], tokenizer=tokenizer, output_dir=folder / "rows", options=options)
    return folder / "rows"


TOY_FLAGS = (
    "--data.length 32 --encoder.layers 2 --encoder.width 32 --encoder.heads 2 "
    "--encoder.feedforward 64 "
    "--encoder.embedding 16 --encoder.positions 32 --encoder.dropout 0.1 "
    "--encoder.attention-dropout 0.1 "
    "--batch-size 12 --micro-batch-size 4 --max-steps 20 --warmup-steps 4 --logging-steps 1 "
    "--eval-steps 10 "
    "--eval-rows 24 --save-steps 4"
).split()


def toy_flags(changed: Mapping[str, str]) -> list[str]:
    """TOY_FLAGS with other values for some: a command takes no flag twice."""
    flags = dict(zip(TOY_FLAGS[::2], TOY_FLAGS[1::2], strict=True)) | changed
    return [word for pair in flags.items() for word in pair]


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of every file, by its path in the folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def few_threads() -> Iterator[None]:
    """One thread, and matrix products by the library that a fresh process takes: on processors
    without bf16 torch leaves it for good, float32 and all, once a product in bf16 has failed.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = True
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained folder of 2 layers × 32."""
    from tests.tasks.toys import tiny_model

    return tiny_model(tmp_path_factory.mktemp("pretrained") / "tiny")


@pytest.fixture(scope="session")
def by_heart(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return folders of fine-tunings on eight examples, each made when it is first asked for."""
    from tests.tasks.toys import TOYS

    root = tmp_path_factory.mktemp("by-heart")

    @cache
    def made(name: str) -> Path:
        TOYS[name].learnt(tiny, root / name)
        return root / name

    return made
