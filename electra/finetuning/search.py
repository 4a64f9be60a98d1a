"""Search over settings: train each for a trial, and choose by the score on dev.

A trial leaves its losses and its result in search/trial-N/seed-M, and no model. A search that was
stopped continues with the same command.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from electra import atomic
from electra.finetuning.loop import finetune_seed
from electra.finetuning.output_dir import SEARCH
from electra.finetuning.results import SeedResult, format_score
from electra.finetuning.scoring import remove_checkpoints
from electra.finetuning.search_plan import (
    FIRST_SEED,
    SearchPlan,
    Settings,
    apply_settings,
    as_flags,
)
from electra.finetuning.session import Session, examples_per_seed
from electra.finetuning.setup import FinetuneSetup
from electra.finetuning.state import SeedProgress
from electra.tasks.metrics import direction

OPTIMISTIC = (
    "these are the best of several settings on the dev data itself, so their score there is "
    "optimistic: compare with data that the search has not seen"
)


@dataclass
class SettingsTrial:
    """One combination of settings, and its results, one for each seed that it was trained with."""

    number: int  # counted from 1
    settings: Settings
    scores: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)


class Search:
    """Runs the trials of a search, or reads the results of those that are finished."""

    def __init__(
        self,
        setup: FinetuneSetup,
        plan: SearchPlan,
        output_dir: Path,
        session: Session,
        *,
        quiet: bool,
    ) -> None:
        self.setup, self.plan, self.session, self.quiet = setup, plan, session, quiet
        self.folder = output_dir / SEARCH
        self.trials: list[SettingsTrial] = []
        self.trainings = 0  # finished so far

    def run(self, say: Callable[[str], None]) -> list[SettingsTrial] | None:
        """Run both rounds and return all trials, the best first; None when stopped early."""
        while self.has_budget_for_another_setting():
            settings = self.plan.candidates[len(self.trials)]
            trial = SettingsTrial(len(self.trials) + 1, settings)
            if not self.train(trial, FIRST_SEED, say):
                return None
            self.trials.append(trial)
        ranked = self.rank(self.trials)
        for place, trial in enumerate(ranked[: self.places_in_second_round()]):
            if self.plan.minutes is not None and place > 1 and not self.has_time(share=1.0):
                break
            if not self.train(trial, FIRST_SEED + 1, say):
                return None
        return self.rank(ranked)

    def has_budget_for_another_setting(self) -> bool:
        if len(self.trials) >= self.plan.first_round:
            return False
        return self.plan.minutes is None or len(self.trials) < 2 or self.has_time(share=2 / 3)

    def has_time(self, *, share: float) -> bool:
        """Return whether a training of the mean duration still fits in a share of the minutes."""
        used = sum(trial.seconds for trial in self.trials)
        expected = used / max(1, self.trainings)
        return used + expected <= share * 60 * (self.plan.minutes or 0.0)

    def places_in_second_round(self) -> int:
        if self.plan.minutes is None:
            return self.plan.second_round
        return len(self.trials) // 2 * (len(self.trials) >= 4)

    def rank(self, trials: Sequence[SettingsTrial]) -> list[SettingsTrial]:
        """Return trials of both rounds first, then by their mean score; equal ones by number.

        The score of a training that diverged may be no number. Such a trial is the last.
        """
        sign = direction(self.setup.task.metric)
        return sorted(
            trials,
            key=lambda trial: (
                math.isnan(trial.mean),
                -len(trial.scores),
                -sign * trial.mean,
                trial.number,
            ),
        )

    def train(self, trial: SettingsTrial, seed: int, say: Callable[[str], None]) -> bool:
        """Train one trial with one seed, unless that is done. Return False when stopped early."""
        setup = replace(
            self.setup, config=apply_settings(self.setup.config, trial.settings), report=False
        )
        folder = self.folder / f"trial-{trial.number}" / f"seed-{seed}"
        overall, planned = self.session.overall, setup.config.steps(len(setup.train))
        self.session.begin(setup, f"trial {self.trainings + 1}/{self.plan.trainings or '?'}")
        result = SeedResult.load(folder)
        was_done = result is not None
        if result is None:
            result = finetune_seed(
                setup,
                seed,
                folder,
                self.session.world,
                interrupted=self.session.interrupted,
                progress=SeedProgress(overall=overall, quiet=self.quiet),
            )
        if result is None:
            return False
        overall.end(planned=planned, steps=result.steps, was_done=was_done)
        if self.session.world.is_main:
            remove_model(folder)
        self.trainings += 1
        trial.scores.append(result.score)
        trial.steps.append(result.steps)
        trial.seconds += result.seconds
        metric = setup.task.metric
        say(
            f"trial {trial.number}: {as_flags(trial.settings)}: {metric} "
            f"{format_score(result.score, metric)}"
        )
        return True


def remove_model(folder: Path) -> None:
    """Remove what only a training that is kept needs: its model and its predictions."""
    remove_checkpoints(folder)
    atomic.remove_folder(folder / "model", ignore_errors=True)
    for path in folder.glob("predictions-*.jsonl"):
        path.unlink(missing_ok=True)


def search_settings(
    setup: FinetuneSetup,
    plan: SearchPlan,
    output_dir: Path,
    session: Session,
    say: Callable[[str], None],
    *,
    quiet: bool = False,
) -> FinetuneSetup | None:
    """Return the set-up with the best settings and all trials; None when stopped early."""
    say(plan.describe())
    count = plan.trainings or plan.first_round
    session.overall.plan(SEARCH, count * examples_per_seed(setup))
    trials = Search(setup, plan, output_dir, session, quiet=quiet).run(say)
    if trials is None:
        return None
    best = trials[0]
    say(f"best of {len(trials)} settings: {as_flags(best.settings)}; {OPTIMISTIC}")
    table = [asdict(trial) | {"mean": trial.mean} for trial in trials]
    found = {**plan.identity(), "flags": as_flags(best.settings), "trials": table}
    return replace(setup, config=apply_settings(setup.config, best.settings), found=found)
