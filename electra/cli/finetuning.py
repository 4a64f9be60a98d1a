"""The command that fine-tunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from electra.cli import DONE, STOPPED_EARLY, Integer, Settings, app, check_flags
from electra.config import UserError

Paths = Annotated[list[Path], Parameter(consume_multiple=True)]
Names = Annotated[list[str], Parameter(consume_multiple=True)]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What may be asked of a fine-tuning besides the settings of its recipe.

    Parameters
    ----------
    data
        Folder with the official files in their official layout, or with train.* and dev.*; or a
        name on the hub.
    train
        Training files, instead of those in --data: .csv .tsv .jsonl .parquet, or the task's own
        form.
    dev
        Files to score on.
    seeds
        Runs; their median is reported, and every one of them.
    seed
        The first seed.
    recipe
        paper, official, bert, or a TOML file.
    config
        TOML files that change settings.
    random_weights
        Only the shape and the tokenizer of the model: what the task gives without pre-training.
    keep
        Models of all seeds, or of the best.
    resume
        auto (go on with this fine-tuning if it is there) or never.
    overwrite
        With --resume never: start over in a folder that holds a fine-tuning.
    quiet
        No progress.
    verbose
        Also the learning rate of each layer.
    """

    data: str | None = None
    train: Names = field(default_factory=list)
    dev: Names = field(default_factory=list)
    seeds: Integer = 1
    seed: Integer = 0
    recipe: str = "paper"
    config: Paths = field(default_factory=list)
    random_weights: bool = False
    keep: Literal["all", "best"] = "all"
    resume: Literal["auto", "never"] = "auto"
    overwrite: bool = False
    quiet: bool = False
    verbose: bool = False


NOTHING_MORE = Wishes()


@app.command
def finetune(
    model: str,
    *settings: Settings,
    task: str,
    output_dir: Path,
    frozen: bool = False,
    layer: str | None = None,
    wishes: Annotated[Wishes, Parameter(name="*")] = NOTHING_MORE,
    print_config: bool = False,
    json: bool = False,
) -> int:
    """Fine-tune a model on a task, once or with several seeds, and score it.

    Settings of the recipe may follow (--learning-rate 1e-4 --epochs 5 --batch-size 16 --length 256;
    --print-config lists them), and options of the task:

    classify: --text COLUMN --text-pair COLUMN --label COLUMN --regression true|false.

    span, squad-1.1, squad-2.0: --head joint|simple --question COLUMN --context COLUMN --answers
    COLUMN --unanswerable.

    tag, ner, chunk: --words COLUMN --tags COLUMN --column N --scheme iob1|iob2|bioes|plain.

    choose, swag, race: --context COLUMN --question COLUMN --options COLUMN,COLUMN --label COLUMN.

    Parameters
    ----------
    model
        A discriminator: run folder, transformers folder, or owner/name on the hub; a fine-tuned one
        gets a fresh head.
    task
        glue/cola sst-2 mrpc sts-b qqp mnli qnli rte wnli, or glue for all of them; squad-1.1,
        squad-2.0, mrqa; ner, chunk; swag, race; for data of your own: classify, span, tag, choose.
    output_dir
        Results, and for each seed the model and its predictions. The same command goes on where it
        was stopped.
    frozen
        Do not train the encoder: its vectors are features for a small network (for tags a two-layer
        BiLSTM).
    layer
        With --frozen: last, sum-last-4, concat-last-4 (the default), mix, or a number.
    print_config
        Print the settings as TOML and do nothing.
    json
        Results for machines, on standard output.
    """
    from electra import tasks
    from electra.finetuning.recipe import FinetuneConfig

    is_glue = task.lower() == "glue"
    one = "glue/rte" if is_glue else task
    options, flags = tasks.split_options(tasks.task_class(one), settings)
    check_flags(flags, "finetune", FinetuneConfig)
    if layer and not frozen:
        raise UserError(
            f"--layer {layer} goes with --frozen: an encoder that is trained is read at its last "
            "layer"
        )
    options |= {"frozen": layer or "concat-last-4"} if frozen else {}
    if print_config:
        return print_settings(model, task, wishes, flags=flags, frozen=frozen)
    from electra.finetuning import finetune as seeds

    asked: dict[str, Any] = {"output_dir": output_dir, "flags": flags, **asdict(wishes)}
    missing: Sequence[str] = ()
    if is_glue:
        if options:
            raise UserError(
                f"--{next(iter(options)).replace('_', '-')} does not go with --task glue; name "
                "one task"
            )
        summaries, missing, is_whole = seeds.finetune_glue(model, **asked)
    else:
        summary = seeds.finetune(model, tasks.find_task(task, **options), **asked)
        summaries, is_whole = [summary] if summary else [], summary is not None
    show(summaries, missing, as_json=json)
    return DONE if is_whole else STOPPED_EARLY


def print_settings(
    model: str, task: str, wishes: Wishes, *, flags: Sequence[str], frozen: bool
) -> int:
    from electra import tasks
    from electra.finetuning.recipe import load_finetune_config
    from electra.model.huggingface import load_shape
    from electra.settings import as_toml
    from electra.tasks.models import model_folder

    if task.lower() == "glue":
        raise UserError(
            "--print-config shows the settings of one task: --task glue/rte, for example"
        )
    shape, _, _ = load_shape(model_folder(model))
    asked = tasks.find_task(task)
    print(
        as_toml(
            load_finetune_config(
                wishes.recipe,
                shape=shape,
                kind=asked.kind,
                task=asked.name,
                frozen=frozen,
                files=wishes.config,
                flags=flags,
            )
        ),
        end="",
    )
    return DONE


def show(summaries: Sequence[Any], missing: Sequence[str], *, as_json: bool) -> None:
    import json
    import os

    from rich.console import Console

    from electra.finetuning.results import table

    if int(os.environ.get("RANK", 0)) != 0 or not summaries:
        return
    if as_json:
        found = [{"protocol": summary.protocol, **asdict(summary)} for summary in summaries]
        print(
            json.dumps(
                {"tasks": found, "missing": list(missing)}
                if len(found) > 1 or missing
                else found[0],
                indent=1,
                ensure_ascii=False,
            )
        )
        return
    console = Console()
    if not console.is_terminal:  # a log may be as wide as it needs to be
        console = Console(width=160)
    console.print(table(summaries, missing=missing))
    console.print(
        f"{summaries[0].protocol}; every run is in results.json"
        + (f"; no data for {', '.join(missing)}" if missing else ""),
        highlight=False,
    )
