"""The files with which transformers loads a tokenizer and makes the rows that tasks make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra.config import UserError
from electra.shipped import suggest_shipped

INPUT_NAMES = ("input_ids", "token_type_ids", "attention_mask")
# The classes that read tokenizer.json as it is, and those that build BERT's tokenizer from its
# vocabulary. Every other one builds that of its own model.
PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
BERT_CLASSES = ("ElectraTokenizer", "ElectraTokenizerFast", "BertTokenizer", "BertTokenizerFast")


def check_is_folder(folder: Path) -> None:
    """Raise UserError for a tokenizer that is not there, or is a file."""
    if folder.is_file():
        raise UserError(
            f"{folder}: a file, and a tokenizer is a folder; move the file to a folder of its "
            "own as tokenizer.json, and name that folder"
        )
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such tokenizer folder; make one with `electra vocab CORPUS "
            f"--output-dir {folder}`{suggest_shipped(folder)}"
        )


def stock_config(
    config: Mapping[str, Any],
    definition: Mapping[str, Any],
    *,
    special: Mapping[str, str],
    model_input_names: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the tokenizer_config.json with which transformers reads tokenizer.json as we do."""
    written = dict(config)
    stated, bert = config.get("tokenizer_class"), is_berts(definition)
    if stated not in PLAIN_CLASSES:
        written |= normalizer_settings(definition)
        written["tokenizer_class"] = PLAIN_CLASSES[0]
        if bert:
            written["tokenizer_class"] = stated if stated in BERT_CLASSES else BERT_CLASSES[0]
    for role, token in special.items():
        written[f"{role}_token"] = written.get(f"{role}_token") or token
    if model_input_names or (not stated and not bert):
        written["model_input_names"] = list(model_input_names or INPUT_NAMES)
    return written


def is_berts(definition: Mapping[str, Any]) -> bool:
    """Return whether BERT's tokenizer class builds this tokenizer from its vocabulary."""
    normalizer, model = definition.get("normalizer") or {}, definition["model"]
    parts = (normalizer, definition.get("pre_tokenizer") or {}, model)
    kinds = [part.get("type") for part in parts]
    return (
        kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]
        and normalizer["clean_text"]
        and (model["continuing_subword_prefix"], model["max_input_chars_per_word"]) == ("##", 100)
    )


def normalizer_settings(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return what BERT's normalizer does in a tokenizer.json, if it is there."""
    normalizer = definition.get("normalizer") or {}
    for step in normalizer.get("normalizers") or [normalizer]:
        if step.get("type") == "BertNormalizer":
            return {
                "do_lower_case": step["lowercase"],
                "strip_accents": step.get("strip_accents"),
                "tokenize_chinese_chars": step["handle_chinese_chars"],
            }
    return {}


def row_processor(
    found: Mapping[str, Any] | None, *, cls: tuple[str, int], sep: tuple[str, int]
) -> dict[str, Any]:
    """Return the post-processor that makes our rows, [CLS] A [SEP] B [SEP] with segments 0 and 1.

    Of the one that was found, it keeps what trims the offsets of byte-level tokens.
    """
    steps = (found or {}).get("processors") or [found or {}]
    trimming = [
        {
            "type": "ByteLevel",
            "add_prefix_space": step["add_prefix_space"],
            "trim_offsets": step["trim_offsets"],
            "use_regex": step.get("use_regex", True),
        }
        for step in steps
        if step.get("type") in ("ByteLevel", "RobertaProcessing")
    ]
    first = [special(cls, 0), sequence("A", 0), special(sep, 0)]
    template = {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, sequence("B", 1), special(sep, 1)],
        "special_tokens": {
            token: {"id": token, "ids": [number], "tokens": [token]} for token, number in (cls, sep)
        },
    }
    if not trimming:
        return template
    return {"type": "Sequence", "processors": [*trimming, template]}


def special(token: tuple[str, int], segment: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": token[0], "type_id": segment}}


def sequence(name: str, segment: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": segment}}
