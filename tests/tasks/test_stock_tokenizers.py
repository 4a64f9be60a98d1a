"""A model and its tokenizer: transformers and we compute the same answers for the same texts."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, processors

from electra.config import UserError
from electra.data.stock_tokenizer import warn_of_other_rows
from electra.model.verify import stock_logits
from electra.tasks import find_task
from electra.tasks.features import Features, encode_pair
from electra.tasks.models import (
    FinetunedModel,
    build_network,
    load_pretrained,
    load_tuned,
    save_tuned,
)
from tests.tasks.toys import toy_tokenizer
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = pytest.mark.usefixtures("few_threads")

PAIR = ("anna lives", "<e1> rome </e1> ran")
MARKS = ("<e1>", "</e1>")
CLASSIFIER = "ForSequenceClassification"
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
CLS, SEP = ("[CLS]", 2), ("[SEP]", 3)
PROCESSORS = {
    "whole": processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[CLS, SEP],
    ),
    "texts alone": processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="$A $B:1", special_tokens=[CLS, SEP]
    ),
    "nothing": processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[]),
}


def stock_model(
    folder: Path,
    head: str = CLASSIFIER,
    *,
    family: str = "Electra",
    processor: str = "whole",
    special: dict[str, str] | None = None,
    added: tuple[str, ...] = MARKS,
) -> Path:
    """A model that transformers made, with a tokenizer of the usual class for an own one."""
    backend = Tokenizer.from_str(toy_tokenizer().definition)
    backend.post_processor = PROCESSORS[processor]
    if special is None:
        special = {"mask_token": "[MASK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        **special,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    ids: dict[str, Any] = {"embedding_size": 16}
    if family == "ModernBert":
        ids = {"bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    sizes = SIZES | ids | {"vocab_size": len(tokenizer)}
    tokenizer.add_tokens(list(added))
    if head == CLASSIFIER:
        sizes["num_labels"] = 3
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes)
    getattr(transformers, f"{family}{head}")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def both_logits(model: FinetunedModel, *texts: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ours of our row, and those of transformers of the row of its own tokenizer."""
    row = encode_pair(0, model.tokenizer, *model.tokenizer.encode(list(texts)), length=64)
    batch = Features.from_rows([row]).collate(np.array([0]))
    architecture = json.loads((model.folder / "config.json").read_text())["architectures"][0]
    stock = getattr(transformers, architecture).from_pretrained(model.folder).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(model.folder)(*texts, return_tensors="pt")
    if not architecture.endswith("ForMultipleChoice"):
        stock(**inputs)  # takes each of them
    with torch.no_grad():
        ours = model.network.logits(*batch[:3])
        return ours.flatten(), stock_logits(stock, dict(inputs)).flatten()


@pytest.mark.parametrize("head", [CLASSIFIER, "ForQuestionAnswering", "ForMultipleChoice"])
def test_a_stock_model_reads_pairs_as_its_tokenizer_makes_them(head: str, tmp_path: Path) -> None:
    model = load_tuned(stock_model(tmp_path / "stock", head))
    for texts in (PAIR, PAIR[1:]):
        ours, theirs = both_logits(model, *texts)
        assert ours.sub(theirs).abs().max() < 1e-5


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("family", ["Electra", "ModernBert"])
def test_our_folder_has_the_same_answers_in_transformers_whatever_tokenizer_it_began_with(
    family: str, processor: str, tmp_path: Path
) -> None:
    start = load_pretrained(stock_model(tmp_path / "stock", family=family, processor=processor))
    task = find_task("classify", labels=("a", "b", "c"), regression=False)
    network = build_network(start, task, dropout=0.0).eval()
    save_tuned(network, task, start.tokenizer, tmp_path / "ours", length=64, extra={})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = network.family.model_input_names
        warn_of_other_rows(start.tokenizer, tmp_path / "ours", names)
    model = load_tuned(tmp_path / "ours")
    for texts in (PAIR, PAIR[1:]):
        ours, theirs = both_logits(model, *texts)
        assert ours.sub(theirs).abs().max() < 1e-5


def test_a_stock_model_whose_tokenizer_adds_no_special_tokens_is_refused(tmp_path: Path) -> None:
    folder = stock_model(tmp_path / "stock", processor="nothing")
    with pytest.raises(UserError, match=wording("a_tokenizer_without_special_tokens")):
        load_tuned(folder)
    assert load_pretrained(folder).tokenizer.cls == 2


def test_pairs_that_transformers_makes_otherwise_are_refused_where_there_are_no_others(
    tmp_path: Path,
) -> None:
    folder = stock_model(tmp_path / "one", processor="texts alone")
    with pytest.warns(UserWarning, match=wording("pairs_without_separators")):
        model = load_tuned(folder)
    ours, theirs = both_logits(model, PAIR[1])
    assert ours.sub(theirs).abs().max() < 1e-5
    folder = stock_model(tmp_path / "two", "ForQuestionAnswering", processor="texts alone")
    with pytest.raises(UserError, match=wording("questions_without_separators")):
        load_tuned(folder)


def test_a_classifier_needs_no_mask(tmp_path: Path) -> None:
    folder = stock_model(tmp_path / "stock", special={})
    path = folder / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf8").replace("[MASK]", "[HOLE]"), encoding="utf8")
    model = load_tuned(folder)
    with pytest.raises(UserError, match=r"no \[MASK\] token, which pre-training needs"):
        _ = model.tokenizer.mask
    ours, theirs = both_logits(model, *PAIR)
    assert ours.sub(theirs).abs().max() < 1e-5
    model.tokenizer.copy_to(tmp_path / "copy")
    assert "mask_token" not in json.loads((tmp_path / "copy/tokenizer_config.json").read_text())


def test_tokens_beyond_the_table_are_refused_with_what_adds_their_rows(tmp_path: Path) -> None:
    folder = stock_model(tmp_path / "stock", added=(*MARKS, "<brand>"))
    with pytest.raises(UserError, match=wording("a_larger_tokenizer")):
        load_tuned(folder)
