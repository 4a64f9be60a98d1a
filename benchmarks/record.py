"""Search for the best small encoder of some minutes on one GPU, in stages.

    python -m benchmarks.record --stage screen|confirm|quarter|final --folder DIR --glue GLUE
                                [--arms NAME …] [--at-once 2] [--finetune-at-once 3]
                                [--stop-after SECONDS] [--retry] [--plan] [--scale tiny]
                                [--output benchmarks/results/record.json]
    python -m benchmarks.record --stage finetuning --model RUN [--tasks glue/cola …] …

record.toml holds the arms, and what each stage pre-trains and scores. DIR holds the shards that
`python -m benchmarks.record_corpus` makes, and the runs. First the speed of each setting is
measured alone; the steps of a run are its minutes at that speed. Then pre-trainings run --at-once,
and beside them fine-tunings --finetune-at-once; neither changes a number of another. Every run
lands in the result file when it is done, failures too, and the same command continues: it skips
what the file holds, and of failures those without --retry. A second command that writes the same
file is refused while this one, or what it started, is at work. After --stop-after seconds running
commands are asked to stop; on the same machine they continue from their checkpoints. While
something is not done or has failed, the exit code is 1. `--stage finetuning` tries settings of
fine-tuning on one model. --plan prints what a stage would do, and its minutes.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from benchmarks.harness import (
    build_parser,
    check_counts,
    folder_name,
    lock_result,
    result_path,
    run_main,
)
from benchmarks.markdown import RESULTS
from benchmarks.record_jobs import Commands, Failed, Stopped
from benchmarks.record_plan import (
    Arm,
    Plan,
    RunLength,
    Stage,
    length_file,
    load_plan,
    print_plan,
    schedule_flags,
    speed_key,
    steps_in,
)
from benchmarks.record_results import Record, finetuned_scores, pretrained_facts
from electra import atomic
from electra.config import UserError
from electra.data.shards import Shards
from electra.files import read_json_object
from electra.pretraining.recipe import Recipe
from electra.runs.run_dir import METRICS, get_status
from electra.tasks.glue import available_tasks
from electra.tasks.models import model_folder

OUTPUT = RESULTS / "record.json"


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    plan = load_plan(scale=options.scale)
    earlier = None if options.scale else OUTPUT
    if options.plan:
        record = Record(options.output, earlier=earlier)
        stage = plan.stage(options.stage)
        print_plan(plan, stage, record, only=options.arms, retry=options.retry)
        return
    if options.model:
        model_folder(options.model)  # raises where there is none
    with lock_result(options.output) as lock:  # before the file is read
        search = Search(options, plan, Record(options.output, earlier=earlier), held=[lock])
        with search.commands.stopped_by(signal.SIGTERM):
            if options.stage == "finetuning":
                search.search_finetuning(options.model)
            else:
                search.run_stage(plan.stage(options.stage))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    stages = ("screen", "confirm", "quarter", "final", "finetuning")
    parser.add_argument("--stage", choices=stages, required=True)
    parser.add_argument("--folder", type=Path, help="with the shards; runs are added")
    parser.add_argument("--glue", help="folder with the tasks")
    parser.add_argument("--arms", nargs="+", help="of the stage; by default all")
    parser.add_argument("--model", type=Path, help="for --stage finetuning")
    parser.add_argument("--tasks", nargs="+", help="of --stage finetuning; by default all")
    parser.add_argument("--at-once", type=int, default=2, help="pre-trainings")
    parser.add_argument("--finetune-at-once", type=int, default=3)
    parser.add_argument("--stop-after", type=float, metavar="SECONDS")
    parser.add_argument("--retry", action="store_true", help="what failed before")
    parser.add_argument("--plan", action="store_true", help="print it and end")
    parser.add_argument("--scale", help="a smaller plan, for a test")
    parser.add_argument("--output", type=result_path, default=OUTPUT)
    options = parser.parse_args(arguments)
    check_counts(parser, options, "at_once", "finetune_at_once")
    if options.scale and options.output == OUTPUT:
        parser.error("--scale needs an --output of its own: its numbers are no results")
    if options.plan and options.stage == "finetuning":
        parser.error("--plan is of the stages that pre-train; record.toml lists the finetuning")
    if not options.plan and not (options.folder and options.glue):
        parser.error("--folder and --glue are needed")
    if options.tasks and options.stage != "finetuning":
        parser.error("--tasks is of --stage finetuning; record.toml lists those of the others")
    if options.stage == "finetuning" and not options.model:
        parser.error("--stage finetuning needs --model, a pre-trained run")
    return options


class Search:
    """The runs of a stage, in their folder."""

    def __init__(
        self, options: argparse.Namespace, plan: Plan, record: Record, *, held: Sequence[int] = ()
    ) -> None:
        self.options = options
        self.plan = plan
        self.record = record
        self.commands = Commands(options.stop_after, held=held)
        self.folder = options.folder / "runs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shards: dict[str, Shards] = {}
        self.lengths: dict[tuple[str, int], RunLength] = {}

    def run_stage(self, stage: Stage) -> None:
        """Measure speeds, pre-train and fine-tune what a stage has left."""
        asked = list(self.plan.runs(stage, self.options.arms))
        runs = [run for run in asked if self.is_left(stage, run)]
        print(f"{stage.name}: {len(runs)} runs left", flush=True)
        if runs:
            self.check_tasks(stage.task_names)  # before minutes of pre-training
        for arm, _ in runs:
            self.open_shards(arm)
        # All before the first begins: a begun run that has to be removed stops no other midway.
        self.lengths = {(arm.name, seed): self.length_of(stage, arm, seed) for arm, seed in runs}
        tunings: list[Future[None]] = []
        with (
            ThreadPoolExecutor(self.options.at_once) as pretrainings,
            ThreadPoolExecutor(self.options.finetune_at_once) as finetunings,
        ):

            def work(run: tuple[Arm, int]) -> None:
                if self.is_pretrained(stage, run):
                    self.record.forget_failure(stage.name, run[0].name, run[1])
                elif not self.attempt(stage, run, lambda: self.pretrain(stage, *run)):
                    return
                entry = self.record.entry(stage.name, run[0].name, run[1])
                for task in stage.tasks_left(entry):
                    tunings.append(finetunings.submit(self.finetune, stage, run, task))

            list(pretrainings.map(work, runs))
        for future in tunings:
            future.result()
        done = sum(self.is_done(stage, run) for run in asked)
        print(f"{stage.name}: {done} of {len(asked)} runs done", flush=True)
        if done < len(asked):
            sys.exit(1)

    def check_tasks(self, names: Sequence[str]) -> None:
        """Raise UserError where a task has no data."""
        available, _ = available_tasks(self.options.glue)
        if missing := [name for name in names if name not in available]:
            raise UserError(
                f"--glue {self.options.glue}: no training and dev data of {', '.join(missing)}"
            )

    def is_left(self, stage: Stage, run: tuple[Arm, int]) -> bool:
        """Return whether a run has something left to do; raise where its settings have changed."""
        arm, seed = run
        entry = self.record.entry(stage.name, arm.name, seed)
        if "failed" in entry and (not self.options.retry or "steps" not in entry):
            return bool(self.options.retry)  # with no network yet, its flags may have changed
        is_same = not entry or entry["settings"] == self.settings_of(arm)
        if not is_same or entry.get("data", arm.data) != arm.data:
            raise UserError(
                f"{self.options.output}: {arm.name} was run with other settings "
                f"({entry['settings']}; text: {entry.get('data', arm.data)}); give the changed arm "
                "another name in record.toml"
            )
        return "failed" in entry or not self.is_done(stage, run)

    def is_done(self, stage: Stage, run: tuple[Arm, int]) -> bool:
        """Return whether a run has the scores of all tasks."""
        return not stage.tasks_left(self.record.entry(stage.name, run[0].name, run[1]))

    def is_pretrained(self, stage: Stage, run: tuple[Arm, int]) -> bool:
        """Return whether the facts of a run are kept, and its models are in their folder."""
        arm, seed = run
        entry = self.record.entry(stage.name, arm.name, seed)
        status = get_status(self.run_folder(stage, arm, seed)).get("status")
        is_same = entry.get("settings") == self.settings_of(arm)
        return is_same and "steps" in entry and status == "finished"

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks of fine-tuning that were asked for."""
        known = [task.split()[0] for task in self.plan.finetuning.tasks]
        if unknown := set(self.options.tasks or ()) - set(known):
            raise UserError(
                f"--tasks {', '.join(sorted(unknown))}: there are {', '.join(known)} in record.toml"
            )
        return self.options.tasks or known

    def settings_of(self, arm: Arm) -> str:
        return shlex.join([arm.recipe or self.plan.recipe, *self.plan.flags_of(arm)])

    def open_shards(self, arm: Arm) -> Shards:
        if arm.data not in self.shards:
            self.shards[arm.data] = Shards.open(self.options.folder / arm.data)
        return self.shards[arm.data]

    def recipe_of(self, arm: Arm) -> Recipe:
        """Return the recipe of an arm with the vocabulary that its shards have."""
        vocab_size = str(self.open_shards(arm).tokenizer.size)
        return self.plan.recipe_of(arm, "--data.vocab-size", vocab_size)

    def rows_per_second(self, arm: Arm) -> float:
        """Return the speed of an arm's settings, measured on this hardware now or before."""
        recipe = self.recipe_of(arm)
        key = speed_key(recipe)
        if (known := self.record.speed(key)) is None:
            from benchmarks.record_speed import measure_rows_per_second

            known = measure_rows_per_second(recipe, self.open_shards(arm))
            self.record.add_speed(key, arm.name, known)
            print(f"{arm.name}: {known:,.0f} rows/s alone", flush=True)
        return known

    def length_of(self, stage: Stage, arm: Arm, seed: int) -> RunLength:
        """Return how long a run is. A begun one keeps its length: a speed that is measured again is
        a little higher or lower.
        """
        folder, minutes = self.run_folder(stage, arm, seed), self.plan.minutes_of(stage)
        if folder.exists() and length_file(folder).exists():
            begun = RunLength(**read_json_object(length_file(folder)))
            if begun.minutes != minutes:
                raise UserError(
                    f"{folder}: was begun for {begun.minutes:g} minutes, and the stage has "
                    f"{minutes:g}; remove it and {folder.name}-glue-*, or name another --folder"
                )
            return begun
        rate = self.rows_per_second(arm)
        steps = self.plan.limit_steps(steps_in(minutes, arm, self.recipe_of(arm), rate))
        return RunLength(minutes, rate, steps)

    def attempt(self, stage: Stage, run: tuple[Arm, int], work: Callable[[], None]) -> bool:
        """Do a part of a run; write down that it failed, and return whether it is done."""
        arm, seed = run
        try:
            work()
        except Stopped:
            print(f"{stage.name}, {arm.name}, seed {seed}: stopped", flush=True)
            return False
        except Failed as failure:
            facts = {"question": arm.question, "settings": self.settings_of(arm)}
            self.record.update(stage.name, arm.name, seed, failed=str(failure), **facts)
            return False
        return True

    def run_folder(self, stage: Stage, arm: Arm, seed: int) -> Path:
        return Path(self.folder / f"{stage.name}-{folder_name(arm.name)}-{seed}")

    def pretrain(self, stage: Stage, arm: Arm, seed: int) -> None:
        """Pre-train an arm for the minutes of a stage and keep what it read and scored."""
        recipe, folder = self.recipe_of(arm), self.run_folder(stage, arm, seed)
        length = self.lengths[arm.name, seed]
        atomic.write_json(length_file(folder), length._asdict())
        flags = [*self.plan.flags_of(arm), "--training.seed", str(seed)]
        flags += schedule_flags(self.plan, arm, stage, length.steps, recipe)
        command = ["pretrain", arm.recipe or self.plan.recipe, *flags]
        data = str(self.options.folder / arm.data)
        place = ["--data", data, "--output-dir", str(folder)]
        log = Path(f"{folder}.log.txt")
        is_continued = (folder / METRICS).exists()
        self.record.forget_network(stage.name, arm.name, seed)
        seconds = self.commands.run(log, *command, *place)
        facts = pretrained_facts(folder, self.open_shards(arm))
        if not is_continued:
            facts["seconds"] = round(seconds, 1)  # with its start, evaluations and export
        self.record.update(
            stage.name,
            arm.name,
            seed,
            question=arm.question,
            settings=self.settings_of(arm),
            command=shlex.join(["electra", *command, "--data", arm.data]),
            data=arm.data,
            minutes=length.minutes,
            rows_per_second=round(length.rows_per_second, 1),
            at_once=self.options.at_once,
            **facts,
        )

    def finetune(self, stage: Stage, run: tuple[Arm, int], task: str) -> None:
        """Fine-tune a run on one task and keep the score of every seed."""
        arm, seed = run
        model = self.run_folder(stage, arm, seed)
        more = []
        if not arm.recipe:
            more.append(self.plan.finetune_flags)
        name, flags = self.plan.task_flags(task, *more)

        def work() -> None:
            scores = self.score(model, name, flags, seeds=stage.finetune_seeds)
            self.record.add_scores(stage.name, arm.name, seed, task=name, scores=scores)

        self.attempt(stage, run, work)

    def score(
        self, model: Path, task: str, flags: Sequence[str], *, seeds: int, name: str = ""
    ) -> dict[str, object]:
        """Fine-tune a model on a task with several seeds and return their scores."""
        folder = self.folder / f"{model.name}{name}-{task.replace('/', '-')}"
        command = ["finetune", str(model), "--task", task, "--data", self.options.glue]
        command += ["--output-dir", str(folder), "--seeds", str(seeds), "--keep", "best"]
        self.commands.run(Path(f"{folder}.log.txt"), *command, *flags)
        return finetuned_scores(folder, flags)

    def search_finetuning(self, model: Path) -> None:
        """Try settings of fine-tuning on one model; each lands in the result as a run."""
        searched = self.plan.finetuning
        tasks = [task for task in searched.tasks if task.split()[0] in self.tasks]
        jobs = [(name, task) for name in self.tunings_of(model) for task in tasks]
        self.check_tasks([task.split()[0] for task in tasks])
        start = time.monotonic()

        def work(job: tuple[str, str]) -> None:
            name, task_with_flags = job
            task, flags = self.plan.task_flags(task_with_flags, searched.tunings[name])
            done = self.record.entry("finetuning", name, 0).get("tuned", {}).get(task)
            if done and not (self.options.retry and "failed" in done):
                return
            own = f"-{folder_name(name)}"
            try:
                scores = self.score(model, task, flags, seeds=searched.seeds, name=own)
            except Stopped:
                return
            except Failed as failure:
                scores = {"failed": str(failure), "scores": []}
            facts = {"question": "fine-tuning", "settings": searched.tunings[name]}
            self.record.update("finetuning", name, 0, model=model.name, **facts)
            self.record.add_scores("finetuning", name, 0, task=task, scores=scores)

        with ThreadPoolExecutor(self.options.finetune_at_once) as threads:
            list(threads.map(work, jobs))
        print(f"finetuning: {time.monotonic() - start:.0f} s", flush=True)
        if not all(self.is_tuned(name, self.plan.task_flags(task)[0]) for name, task in jobs):
            sys.exit(1)

    def tunings_of(self, model: Path) -> Sequence[str]:
        """Return the names of the settings that were asked for, which are of this model alone."""
        known = self.plan.finetuning.tunings
        names = self.options.arms or list(known)
        if unknown := set(names) - set(known):
            raise UserError(
                f"--arms {', '.join(sorted(unknown))}: no settings of fine-tuning; there are "
                f"{', '.join(known)}"
            )
        for name in names:
            entry = {"model": model.name, "settings": known[name]}
            entry |= self.record.entry("finetuning", name, 0)
            if (entry["model"], entry["settings"]) != (model.name, known[name]):
                raise UserError(
                    f"{self.options.output}: {name} was tuned from {entry['model']} with "
                    f"{entry['settings'] or 'no flags'}; give these settings another name in "
                    "record.toml, or the results another --output"
                )
        return names

    def is_tuned(self, name: str, task: str) -> bool:
        tuned = self.record.entry("finetuning", name, 0).get("tuned", {})
        return bool(tuned.get(task, {}).get("scores"))


if __name__ == "__main__":
    run_main(main)
