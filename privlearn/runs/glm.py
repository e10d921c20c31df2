"""Whole runs of `OnePassNewtonGLM`: from a log, or simulated visitors, and a budget to two folders.

A log is learned from under a central guarantee; simulated visitors are served under a joint one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.estimators.reward_models import RewardFile
from privlearn.learners.one_pass_newton_glm import OnePassNewtonGLM
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.reporting.figures import can_draw, plot_regret
from privlearn.rows.domains import Array
from privlearn.runs.arm_configs import SIMULATED
from privlearn.runs.common import (
    CutOff,
    Folders,
    Outcome,
    Progress,
    accountant_of,
    finish,
    kept_rows,
    write_curves,
    write_json,
    write_public,
)
from privlearn.runs.glm_configs import GLMConfig
from privlearn.runs.glm_logs import GLMLog, Shown, glm_log
from privlearn.runs.null_records import NullRecords, messages_of
from privlearn.runs.persons import check_registry, registry_of, told
from privlearn.runs.records import CONSTANT
from privlearn.runs.simulated_actions import ActionMarket, Respond

_NO_NOISE: Final = 10**8  # ρ times users: a hundredth of what chance moves a sum by
# Cuts move estimates, and standard errors would not hold.  Beyond two largest standard deviations
# there are few counts; linear residuals within the whole range are not cut.
_CLIPS: Final = {"linear": 1.0, "poisson": 2.0}
_LARGEST: Final = 5  # So many coefficients are printed
_ALIKE: Final = 1e-18  # Variance of rewards, of their squared range, of which nothing is explained


def run_glm(config: GLMConfig, out: Path, progress: Progress, *, resume: bool = False) -> Outcome:
    """Learns what features of actions are worth; leaves a public and a private folder.

    With ``resume`` a run with the same settings that was cut off goes on.
    """
    work = _serve if config.data == SIMULATED else _learn
    return work(config, out, progress, resume)


# A log --------------------------------------------------------------------------------------------


def _learn(config: GLMConfig, out: Path, progress: Progress, resume: bool) -> Outcome:
    log = glm_log(config)
    users = log.visits
    check_registry(config, out, resume=resume)
    _rehearse(CentralAccountant, config, users, log_learner(config, log))
    folders = Folders.create(out, config, resume=resume)
    store = kept_rows(folders)
    people = registry_of(config, begun=folders.begun)
    accountant = accountant_of(
        CentralAccountant,
        config,
        folders,
        users=users,
        people=people,
        side_information=[*log.said, *config.side_information, *folders.looked],
    )
    learner, cut_off = log_learner(config, log), CutOff(accountant)
    messages = messages_of(learner)
    learner.start(accountant, store=store)
    cut_off.goes_on(learner)
    advance, found = progress("private", users), log.gather(learner.batches_)
    _fit(learner, log, found, log.people)
    advance(users)
    cut_off.check_learned(learner)
    lines = _write_model(folders, config, log, learner)
    own = [*messages, *cut_off.messages()]
    nulls = NullRecords.of(users, found.messages, own, absent=users - log.came)
    nulls.write(folders.private)
    private = nulls.lines(rule=log.people is not None)
    private += [f"  and {number:,} {what}" for number, what in found.left_out]
    private += _scored(folders, config, log, found, learner)
    released = [*cut_off.lines(), *told(config), *lines]
    return Outcome(finish(folders, accountant, store), released, private, folders)


def row_bound(config: GLMConfig, log: GLMLog) -> float:
    """What scaled rows, with the constant, are shrunk to."""
    return config.row_bound or float(np.hypot(log.records.encoding.row_norm, CONSTANT))


def log_learner(config: GLMConfig, log: GLMLog) -> OnePassNewtonGLM:
    """The learner of a log, not started."""
    return OnePassNewtonGLM(
        n_actions=1 if log.arms is None else len(log.arms),
        dim=len(log.names),
        link=config.link,
        per_action=log.arms is not None,
        reward_range=log.rewards_in,
        max_rate=config.max_rate,
        feature_scale=row_bound(config, log),
        gradient_clip=_CLIPS.get(config.link),
        random_state=config.seed,
    )


def _fit(
    learner: OnePassNewtonGLM, log: GLMLog, found: Shown, people: Sequence[Any] | None
) -> None:
    first = learner.clock_  # further after a restart
    if first < log.came:
        learner.partial_fit(
            found.features[first:],
            found.rewards[first:],
            actions=None if found.arms is None else found.arms[first:],
            people=None if people is None else people[first:],
        )
    if learner.clock_ < log.visits:
        learner.skip(log.visits - learner.clock_)


def _scored(
    folders: Folders, config: GLMConfig, log: GLMLog, found: Shown, learner: OnePassNewtonGLM
) -> list[str]:
    """Forecasts of the rewards beside those without noise; for the operator only."""
    kept = np.isfinite(found.features).all(axis=1) & np.isfinite(found.rewards)
    if found.arms is not None:
        kept &= found.arms >= 0
    rewards, (low, high) = found.rewards[kept], log.rewards_in
    spread = float(((rewards - rewards.mean()) ** 2).mean()) if len(rewards) else 0.0
    if spread <= _ALIKE * (high - low) ** 2:  # an error would tell of one reward
        return []
    without = log_learner(config, log).start(_simulation(CentralAccountant, log.visits))
    _fit(without, log, found, None)
    explained = {
        name: 1 - float(((_forecast(one, found, kept) - rewards) ** 2).mean()) / spread
        for name, one in (("private", learner), ("without noise", without))
    }
    write_json(folders.private / "fitted.json", {"visits": len(rewards), **explained})
    shown = ", ".join(f"{name} {value:.3f}" for name, value in explained.items())
    return [f"share of the rewards' variance explained, on {len(rewards):,} visits: {shown}"]


def _forecast(learner: OnePassNewtonGLM, found: Shown, kept: Any) -> Array:
    means = learner.predict(found.features[kept])
    if found.arms is None:
        return means
    return np.take_along_axis(means, found.arms[kept][:, None], axis=1)[:, 0]


# Simulated visitors -------------------------------------------------------------------------------


def _serve(config: GLMConfig, out: Path, progress: Progress, resume: bool) -> Outcome:
    users, market = config.horizon or 10_000, market_of(config)
    _rehearse(JointAccountant, config, users, _server(config))
    folders = Folders.create(out, config, resume=resume)
    store = kept_rows(folders)
    accountant = accountant_of(
        JointAccountant,
        config,
        folders,
        users=users,
        people=None,
        side_information=config.side_information,
    )
    learner, cut_off = _server(config), CutOff(accountant)
    messages = messages_of(learner)
    learner.start(accountant, store=store)
    cut_off.goes_on(learner)
    first = learner.clock_

    def served(by: OnePassNewtonGLM, name: str, first: int) -> Array:
        def play(features: Array, respond: Respond, private: Array) -> None:
            by.play(features, respond, private=private)

        return market.serve(play, progress(name, users - first), first=first)

    own, at_random = served(learner, "private", first).T
    cut_off.check_learned(learner)
    names = [*(f"feature {n}" for n in range(1, market.dim + 1)), "constant"]
    coef, _ = _coefficients(learner, 1.0)
    model = {"link": config.link, "inputs": names, "coef": coef.tolist()}
    state = {"learner": type(learner).__name__, **model, "state": learner.public_state()}
    files = {"billboard.json": learner.billboard_.history(), "model.json": state}
    write_public(folders, files)
    without = _server(config).start(_simulation(JointAccountant, users))
    regrets = {
        f"private ({config.budget})": own,
        "without noise": served(without, "without noise", 0)[first:, 0],
        "random": at_random,
    }
    totals = {name: np.cumsum(regret) for name, regret in regrets.items()}
    write_curves(folders.private / "regret.csv", "users", totals, ".4f")
    if len(own) and can_draw():
        title = f"one of {market.actions} actions for each visitor"
        plot_regret(folders.private / "regret.png", regrets, title, "visitor", "rewards")
    nulls = NullRecords.of(users, messages, cut_off.messages())
    nulls.write(folders.private)
    tenth = len(own) // 10 or 1
    private = nulls.lines() if nulls.count else []
    private += [
        f"{name}: total regret {regret.sum():.0f}; per visitor {regret[:tenth].mean():.4f} in the "
        f"first tenth, {regret[-tenth:].mean():.4f} in the last"
        for name, regret in regrets.items()
        if len(regret)
    ]
    about = f"SIMULATED VISITORS, with {market.actions} actions of {market.dim} features each"
    lines = [about, f"largest coefficients: {_largest(names, coef[0])}"]
    released = [*cut_off.lines(), *lines]
    return Outcome(finish(folders, accountant, store), released, private, folders)


def market_of(config: GLMConfig) -> ActionMarket:
    """The visitors of a run without a log."""
    return ActionMarket(
        config.seed,
        config.horizon or 10_000,
        config.actions or 10,
        config.dim or 5,
        config.link,
        config.range()[1],
    )


def _server(config: GLMConfig) -> OnePassNewtonGLM:
    return OnePassNewtonGLM(
        n_actions=config.actions or 10,
        dim=(config.dim or 5) + 1,
        link=config.link,
        policy=config.policy or "ucb",
        reward_range=config.range(),
        max_rate=config.max_rate,
        random_state=config.seed,
    )


# Both ---------------------------------------------------------------------------------------------


def _simulation(kind: Any, users: int, people: People | None = None, **cap: Any) -> Any:
    """An accountant in memory, which protects nobody; by default with next to no noise."""
    budget = cap.pop("budget", ZCDP(_NO_NOISE // users))
    noise = NoiseSource.simulation(0)
    return kind(budget, users=range(users), noise=noise, people=people, **cap)


def _rehearse(kind: Any, config: GLMConfig, users: int, learner: OnePassNewtonGLM) -> None:
    """Begins the run in memory, which refuses what the real one would, before files are made."""
    (budget, currency), rule = config.cap(), config.rule()
    people = None if rule is None else People.memory(rule)
    learner.start(_simulation(kind, users, people, budget=budget, currency=currency))


def _coefficients(learner: OnePassNewtonGLM, row_bound: float) -> tuple[Array, Array]:
    """Of scaled inputs, and their standard errors, a row for each parameter vector."""
    spread = np.diagonal(np.linalg.inv(learner.precision_), axis1=-2, axis2=-1)
    stds = np.atleast_2d(np.sqrt(spread)) / row_bound
    return np.atleast_2d(learner.theta_) / row_bound, stds


def _largest(inputs: Sequence[str], coef: Array, stds: Array | None = None) -> str:
    places = np.argsort(-np.abs(coef), kind="stable")[:_LARGEST]
    around = ["" if stds is None else f" ± {2 * stds[i]:.2f}" for i in places]
    each = zip(places, around, strict=True)
    return ", ".join(f"{inputs[i]} {coef[i]:+.2f}{error}" for i, error in each)


def _write_model(
    folders: Folders, config: GLMConfig, log: GLMLog, learner: OnePassNewtonGLM
) -> list[str]:
    """Writes what was learned of a log; what to print of it."""
    bound = row_bound(config, log)
    coef, stds = _coefficients(learner, bound)
    RewardFile(
        learner=type(learner).__name__,
        link=config.link,
        reward=log.reward,
        reward_range=list(log.rewards_in),
        max_rate=config.max_rate,
        actions=None if log.arms is None else list(log.arms),
        encoding=log.records.describe(),
        inputs=list(log.names),
        coef=coef.tolist(),
        standard_errors=stds.tolist(),
        row_bound=bound,
        state=learner.public_state(),
    ).save(folders.public / "model.json")
    write_public(folders, {"billboard.json": learner.billboard_.history()})
    lines = [
        f"largest coefficients, for scaled rows of length {bound:.3g} at most (± is two standard "
        "errors, noise included):"
    ]
    if log.arms is None:
        return [*lines, f"  {_largest(log.names, coef[0], stds[0])}"]
    for name, own, errors in zip(log.arms, coef, stds, strict=True):
        lines.append(f"  {name}: {_largest(log.names, own, errors)}")
    return [*lines, _in_the_middle(learner, log)]


def _in_the_middle(learner: OnePassNewtonGLM, log: GLMLog) -> str:
    """What is expected of each action where all columns are in the middle of their bounds."""
    assert log.arms is not None
    middle = np.append(np.zeros(len(log.names) - 1), CONSTANT)
    means = learner.predict(middle)
    order = np.argsort(-means, kind="stable")
    shown = ", ".join(f"{log.arms[arm]} {means[arm]:.3g}" for arm in order)
    return f"expected reward where each column is in the middle of its bounds: {shown}"
