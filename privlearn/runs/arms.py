"""Whole runs on arms: from a log or simulated visitors and a budget to two folders.

Which arm a visitor is shown follows from releases and public coins, so that it is known before who
comes: a log is played again, see `privlearn.runs.arm_logs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from privlearn.accountants import JointAccountant
from privlearn.learners.phases import PhaseLearner, RespondToArms
from privlearn.learners.private_arms import PrivateArms
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.runs.arm_configs import SIMULATED, ArmConfig, LogConfig
from privlearn.runs.arm_logs import RANDOMISED, ArmLog, SimulatedVisitors, source_of
from privlearn.runs.common import (
    CutOff,
    Folders,
    Outcome,
    Progress,
    accountant_of,
    finish,
    kept_rows,
    write_csv,
    write_json,
    write_public,
)
from privlearn.runs.null_records import NullRecords, messages_of
from privlearn.runs.persons import check_registry, registry_of, told

_PUBLISHED: Final = "ledger, billboard, certificate, results"

Source = ArmLog | SimulatedVisitors


@dataclass(frozen=True, slots=True)
class Found:
    """What was learned: lines for people, and values for a file; public."""

    lines: list[str]
    values: dict[str, Any]


def run_arms(config: ArmConfig, out: Path, progress: Progress, *, resume: bool = False) -> Outcome:
    """Looks for the best arm within a budget; leaves a public and a private folder.

    With ``resume`` a run with the same settings that was cut off goes on.
    """

    def make() -> PrivateArms:
        return PrivateArms(
            len(config.names()),
            memory=config.memory,
            missing=config.missing,
            reward_range=config.range(),
        )

    return run_on_log(config, out, progress, make, _best, resume=resume)


def _best(learner: Any, source: Source) -> Found:
    names, means = source.names, learner.means_
    best = names[learner.best_arm_] if learner.pulls_.any() else None
    order = np.argsort(np.where(np.isnan(means), np.inf, -means), kind="stable").tolist()
    width = max(map(len, names))
    rows = [f"  {names[arm]:{width}}  {_mean_of(learner, arm)}" for arm in order]
    values = {
        "best": best,
        "arms": [
            {
                "arm": names[arm],
                "mean": finite(means[arm]),
                "std": finite(learner.stds_[arm]),
                "visitors": int(learner.pulls_[arm]),
            }
            for arm in range(len(names))
        ],
    }
    if best is None:
        return Found(["nothing is known: no phase has ended"], values)
    low, high = learner.reward_range
    null = low + (high - low) * learner.missing
    head = (
        f"best arm: {best} (± is two standard errors, noise included; who gave no usable reward "
        f"counts as {null:g})"
    )
    return Found([head, *rows], values)


def _mean_of(learner: Any, arm: int) -> str:
    if not learner.pulls_[arm]:
        return "nothing is known"
    around = 2 * learner.stds_[arm]
    digits = max(1 - math.floor(math.log10(around)), 0)
    rounded = round(float(learner.means_[arm]), digits) + 0.0  # no -0.00
    mean = f"mean {rounded:.{digits}f} ± {around:.{digits}f}"
    return f"{mean}, from {learner.pulls_[arm]:,} visitors"


def run_on_log(
    config: LogConfig,
    out: Path,
    progress: Progress,
    make: Callable[[], PhaseLearner],
    found_of: Callable[[Any, Source], Found],
    *,
    grouped: bool = False,
    resume: bool,
) -> Outcome:
    """Serves the visitors of a log, or simulated ones, by a learner in phases.

    Args:
        config, out, progress, resume: of the run.
        make: the learner, not started.
        found_of: what it has learned, and from whom.
        grouped: whether it compares arms, and shows all alike often.
    """
    source = source_of(config)
    if grouped:
        source.group()
    users = config.horizon or source.visitors
    check_registry(config, out, resume=resume)
    _rehearse(config, users, make())
    folders = Folders.create(out, config, resume=resume)
    store = kept_rows(folders)
    accountant = accountant_of(
        JointAccountant,
        config,
        folders,
        users=users,
        people=registry_of(config, begun=folders.begun),
        side_information=_side_information(config, folders),
    )
    learner, cut_off = make(), CutOff(accountant)
    messages = messages_of(learner)
    learner.start(accountant, store=store)
    cut_off.goes_on(learner)
    source.begin(learner.shown_)
    served = _serve(learner, source, users, progress("private", users))
    cut_off.check_learned(learner)
    found = found_of(learner, source)
    results = {"learner": type(learner).__name__, **found.values, "state": learner.public_state()}
    write_public(folders, {"billboard.json": learner.billboard_.history(), "results.json": results})
    nulls = NullRecords.of(learner.clock_, served.messages, messages, cut_off.messages())
    nulls.write(folders.private)
    lines = [*nulls.lines(rule=config.people is not None), *_scored(folders, source, served)]
    released = [*cut_off.lines(), *_about(config), *told(config), *found.lines, *served.ended]
    return Outcome(finish(folders, accountant, store), released, lines, folders, _PUBLISHED)


def _rehearse(config: LogConfig, users: int, learner: PhaseLearner) -> None:
    """Begins the run in memory, which refuses what the real one would, before files are made."""
    budget, currency = config.cap()
    rule = config.rule()
    accountant: JointAccountant[Any] = JointAccountant(
        budget,
        users=range(users),
        noise=NoiseSource.simulation(0),
        currency=currency,
        people=None if rule is None else People.memory(rule),
    )
    learner.start(accountant)


def _side_information(config: LogConfig, folders: Folders) -> list[str]:
    log = [] if config.data == SIMULATED else [RANDOMISED]
    return [*config.side_information, *log, *folders.looked]


def _about(config: LogConfig) -> list[str]:
    if config.data != SIMULATED:
        return []
    chances = zip(config.names(), config.simulated_means(), strict=True)
    told = ", ".join(f"{name} {mean:g}" for name, mean in chances)
    return [f"SIMULATED VISITORS, whose reward is 1 with the chance: {told}"]


@dataclass(slots=True)
class _Served:
    """Who was served by this process."""

    visitors: list[tuple[int, int, int]] = field(default_factory=list)
    """Each one's place, arm, and row of the log."""
    rewards: list[Array] = field(default_factory=list)
    messages: list[tuple[int, str]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Why it was not everybody; public."""


def _serve(
    learner: PhaseLearner, source: Source, users: int, advance: Callable[[int], None]
) -> _Served:
    served = _Served()
    advance(learner.clock_)
    while learner.clock_ < users:
        first, arms = learner.clock_, learner.coming_
        short = source.runs_out_of(arms)
        if short is not None:
            served.ended.append(
                f"the log has too few lines of {short!r} left for the next phase: the run ends "
                f"after {first:,} of {users:,} visitors, and what was learned until then stands"
            )
            break
        visitors = source.take(arms)
        learner.play(len(arms), _answering(visitors.rewards), people=visitors.people)
        each = zip(range(first, learner.clock_), arms.tolist(), visitors.rows.tolist(), strict=True)
        served.visitors += each
        served.rewards.append(visitors.rewards)
        served.messages += [(first + place, text) for place, text in visitors.messages]
        advance(len(arms))
    return served


def _answering(rewards: Array) -> RespondToArms:
    return lambda shown: rewards


def _scored(folders: Folders, source: Source, served: _Served) -> list[str]:
    """What visitors were worth beside what others would have been; for the operator."""
    write_csv(folders.private / "visitors.csv", ["visitor", "arm", "row"], served.visitors)
    got, means = _mean(np.concatenate([*served.rewards, np.zeros(0)])), source.means()
    table = {"mean reward": finite(got), "arms": [finite(mean) for mean in means]}
    write_json(folders.private / "rewards.json", table)
    if not np.isfinite([got, *means]).all():
        return []
    return [
        f"mean reward of the visitors served: {got:.4g}; of all arms alike {means.mean():.4g}, of "
        f"the best in hindsight {means.max():.4g}"
    ]


def _mean(values: Array) -> float:
    there = values[np.isfinite(values)]
    return float(there.mean()) if len(there) else np.nan


def finite(value: float) -> float | None:
    """As JSON has it."""
    return float(value) if np.isfinite(value) else None
