"""Whole runs on arms: from a log or simulated visitors and a budget to two folders.

``arms`` looks for the arm with the largest mean reward while it serves; ``test`` compares arms with
a control, and may be looked at as often as somebody likes.  Which arm a visitor is shown follows
from releases and public coins, so that it is known before who comes: a log is played again, see
`privlearn.runs.arm_logs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from privlearn.accountants import JointAccountant
from privlearn.learners.phases import PhaseLearner
from privlearn.learners.private_arms import PrivateArms
from privlearn.learners.private_test import PrivateTest
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.runs.arm_configs import SIMULATED, ABTestConfig, ArmConfig, LogConfig
from privlearn.runs.arm_logs import (
    RANDOMISED,
    ArmLog,
    SimulatedVisitors,
    source_of,
)
from privlearn.runs.common import (
    LOOK,
    CutOff,
    Folders,
    Outcome,
    Progress,
    accountant_of,
    finish,
    kept_rows,
    write_json,
    write_public,
)
from privlearn.runs.null_records import NullRecords, messages_of
from privlearn.runs.persons import check_registry, registry_of, told

_PUBLISHED: Final = "ledger, billboard, certificate, results"


def run_arms(config: ArmConfig, out: Path, progress: Progress, *, resume: bool = False) -> Outcome:
    """Looks for the best arm within a budget; leaves a public and a private folder.

    With ``resume`` a run with the same settings that was cut off goes on.
    """
    return _run(config, out, progress, _arms(config), _found_of_arms, resume=resume)


def run_test(
    config: ABTestConfig, out: Path, progress: Progress, *, resume: bool = False
) -> Outcome:
    """Compares arms with a control within a budget; leaves a public and a private folder.

    With ``resume`` a run with the same settings that was cut off goes on.
    """
    return _run(config, out, progress, _test(config), _found_of_test, resume=resume)


def _arms(config: ArmConfig) -> Callable[[], PhaseLearner]:
    return lambda: PrivateArms(
        len(config.names()), memory=config.memory, reward_range=config.range()
    )


def _test(config: ABTestConfig) -> Callable[[], PhaseLearner]:
    return lambda: PrivateTest(
        len(config.names()),
        alpha=config.alpha,
        rate_at_most=config.rate_at_most,
        min_effect=config.min_effect,
        assume=config.assume,
        reward_range=config.range(),
        random_state=config.seed if config.data == SIMULATED else None,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What was learned: lines for people, and values for a file; public."""

    lines: list[str]
    values: dict[str, Any]


def _run(
    config: LogConfig,
    out: Path,
    progress: Progress,
    make: Callable[[], Any],
    found_of: Callable[[Any, LogConfig], _Found],
    *,
    resume: bool,
) -> Outcome:
    source = source_of(config)
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
    learner.start(accountant, store=store)
    cut_off.goes_on(learner)
    messages = messages_of(learner)
    source.begin(learner.shown_)
    served = _serve(learner, source, users, progress("private", users))
    cut_off.check_learned(learner)
    found = found_of(learner, config)
    _write_public(folders, learner, config, found)
    told_of_lines = [*messages, *served.messages, *cut_off.messages()]
    nulls = NullRecords.of(learner.clock_, told_of_lines)
    nulls.write(folders.private)
    lines = [*nulls.lines(rule=config.people is not None), *_scored(folders, source, served)]
    released = [*cut_off.lines(), *_about(config), *told(config), *found.lines]
    if served.ended is not None:
        released.append(served.ended)
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
    side = [*config.side_information]
    if config.data != SIMULATED:
        side.append(RANDOMISED)
    if (folders.private / LOOK).exists():
        side.append("the operator looked at the records (--look) before this run")
    return side


def _about(config: LogConfig) -> list[str]:
    if config.data != SIMULATED:
        return []
    means = ", ".join(
        f"{name} {mean:g}"
        for name, mean in zip(config.names(), config.simulated_means(), strict=True)
    )
    return [f"SIMULATED VISITORS, who have the reward 1 with the chances {means}"]


@dataclass(frozen=True, slots=True)
class _Served:
    """Who was served from this process on."""

    rewards: Array
    messages: list[tuple[int, str]]
    ended: str | None
    """Why it was not everybody; public."""


def _serve(
    learner: PhaseLearner,
    source: ArmLog | SimulatedVisitors,
    users: int,
    advance: Callable[[int], None],
) -> _Served:
    rewards, messages, ended = [np.zeros(0)], list[tuple[int, str]](), None
    advance(learner.clock_)
    while learner.clock_ < users:
        first, arms = learner.clock_, learner.coming_
        short = source.runs_out_of(arms)
        if short is not None:
            ended = (
                f"the log has too few lines of {short!r} left for the next phase: the run ends "
                f"after {first:,} of {users:,} visitors, and what was learned until then stands"
            )
            break
        visitors = source.take(arms)
        left = iter(visitors.rewards)
        learner.play(
            len(arms),
            lambda shown, left=left: np.array([next(left) for _ in shown]),
            people=visitors.people,
        )
        rewards.append(visitors.rewards)
        messages += [(first + place, text) for place, text in visitors.messages]
        advance(len(arms))
    return _Served(np.concatenate(rewards), messages, ended)
