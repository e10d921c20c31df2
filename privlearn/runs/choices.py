"""Whole runs on choices: from a survey or logged choices and a budget to two folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.estimators.situations import Situations
from privlearn.learners import OnePassNewtonMNL
from privlearn.mechanisms.choice_model import clip_items, fit_mle, log_likelihoods
from privlearn.people import People
from privlearn.reporting.figures import can_draw, plot_regret
from privlearn.rows.domains import Array
from privlearn.runs import simulated_choices as experiments
from privlearn.runs.cars import (
    CAR_MARKET_SIDE_INFORMATION,
    FEATURE_NAMES,
    car_market,
    returning_car_market,
)
from privlearn.runs.choice_logs import Log, logged
from privlearn.runs.common import (
    CutOff,
    Folders,
    Outcome,
    Progress,
    accountant_of,
    finish,
    kept_rows,
    write_csv,
    write_curves,
    write_json,
    write_public,
)
from privlearn.runs.configs import VISITS, ChoiceConfig
from privlearn.runs.null_records import NullRecords, messages_of
from privlearn.runs.persons import check_registry, registry_of, told
from privlearn.runs.references import NonPrivateMNL, RandomAssortments
from privlearn.values.participation import Participation

SHELF = 10  # K, the cars shown to each simulated person

_ONE_BATCH = Participation(most=1, pooled=True)
"""Of simulated people who come back: all visits in one public batch count, as one record."""

_MARKET_TUNING = (
    "the learner's defaults were tuned in part on car_market with seeds 0 to 5 "
    "(docs/benchmarks.md, 'What was tuned on what')"
)


def run_choices(
    config: ChoiceConfig, out: Path, progress: Progress, *, resume: bool = False
) -> Outcome:
    """Serves simulated people, or learns from logged choices; leaves a public and a private folder.

    With ``resume`` a run with the same settings that was cut off goes on.
    """
    work = _run_logged if config.task == "logged" else _run_market
    return work(config, out, progress, resume)


def _run_market(config: ChoiceConfig, out: Path, progress: Progress, resume: bool) -> Outcome:
    horizon = config.horizon or 10_000
    folders = Folders.create(out, config, resume=resume)
    begun, registry, store = folders.begun, folders.private / "people.db", kept_rows(folders)
    people: People | None = None
    if config.task == "returning":
        market = returning_car_market(config.seed, persons=horizon // VISITS)
        if not begun:
            registry.unlink(missing_ok=True)  # of a process that ended before its first entry
        people = People.open(registry) if begun else People.create(registry, _ONE_BATCH)
    else:
        market = car_market(config.seed, horizon=horizon)
    dim = len(market.theta)
    accountant: JointAccountant[Any] = accountant_of(
        JointAccountant,
        config,
        folders,
        users=horizon,
        people=people,
        side_information=(*CAR_MARKET_SIDE_INFORMATION, _MARKET_TUNING, *config.side_information),
    )
    cut_off = CutOff(accountant)
    learner = OnePassNewtonMNL(
        n_items=100, dim=dim, max_items=SHELF, random_state=config.seed
    ).start(accountant, store=store)
    cut_off.goes_on(learner)
    messages = messages_of(learner)
    serve = market.serve if people is None else market.serve_people
    first = learner.clock_
    regrets = {
        f"private ({config.budget})": serve(
            learner, progress("private", horizon - first), start=first
        )
    }
    shown, sold = dict(market.shown), dict(market.sold)
    cut_off.check_learned(learner)
    names = [*FEATURE_NAMES, "constant"]
    _write_public(folders, learner, names)
    nonprivate = NonPrivateMNL(horizon=horizon, dim=dim, max_items=SHELF, random_state=config.seed)
    random = RandomAssortments(max_items=SHELF, random_state=config.seed)
    everybody = progress("non-private reference", horizon)
    regrets["non-private"] = market.serve(nonprivate, everybody)[first:]
    regrets["random"] = market.serve(random, progress("random reference", horizon))[first:]
    totals = {name: np.cumsum(regret) for name, regret in regrets.items()}
    unit = "user" if people is None else "visit"
    write_curves(folders.private / "regret.csv", f"{unit}s", totals, ".4f")
    chosen = ([user, " ".join(map(str, items)), sold[user]] for user, items in shown.items())
    write_csv(folders.private / "choices.csv", [unit, "shown", "choice"], chosen)
    title = "10 of 100 real cars shown to each person"
    title += "" if people is None else f", at each of {VISITS} visits"
    if first < horizon and can_draw():
        plot_regret(folders.private / "regret.png", regrets, title, unit)
    nulls = NullRecords.of(horizon, messages, cut_off.messages())
    nulls.write(folders.private)
    tenth = (horizon - first) // 10 or 1
    lines = nulls.lines() if nulls.count else []
    lines += [
        f"{name}: total regret {regret.sum():.0f}; per {unit} {regret[:tenth].mean():.4f} in the "
        f"first tenth, {regret[-tenth:].mean():.4f} in the last"
        for name, regret in regrets.items()
        if len(regret)
    ]
    released = [*cut_off.lines(), _strongest(names, learner)]
    return Outcome(finish(folders, accountant, store), released, lines, folders)


def _run_logged(config: ChoiceConfig, out: Path, progress: Progress, resume: bool) -> Outcome:
    survey = logged(config)
    check_registry(config, out, resume=resume)
    folders = Folders.create(out, config, resume=resume)
    begun, store = folders.begun, kept_rows(folders)
    people = registry_of(config, begun=begun)
    users = survey.users + survey.absent
    accountant: CentralAccountant[Any] = accountant_of(
        CentralAccountant,
        config,
        folders,
        users=users,
        people=people,
        side_information=(
            *survey.side_information,
            *config.side_information,
            *folders.looked,
        ),
    )
    cut_off = CutOff(accountant)
    learner = OnePassNewtonMNL(
        n_items=survey.items,
        dim=survey.dim,
        outside_option=config.outside,
        feature_scale=survey.scale,
        random_state=config.seed,
    ).start(accountant, store=store)
    cut_off.goes_on(learner)
    messages = messages_of(learner)
    advance = progress("private", users)
    first = learner.clock_
    found = survey.gather(learner.batches_)
    if first < survey.users:
        learner.partial_fit(
            found.features[first:],
            found.choices[first:],
            offered=found.offered[first:],
            people=None if survey.people is None else survey.people[first:],
        )
    if learner.clock_ < users:
        learner.skip(users - learner.clock_)
    advance(users)
    cut_off.check_learned(learner)
    _write_public(folders, learner, survey.names)
    own = [*messages, *cut_off.messages()]
    nulls = NullRecords.of(users, found.messages, own, absent=survey.absent)
    nulls.write(folders.private)
    lines = nulls.lines(rule=survey.people is not None)
    lines += [f"  and {number:,} {what}" for number, what in found.left_out]
    if survey.held_out is not None:
        lines += _score(survey, found, learner.theta_, folders.private)
    released = [*cut_off.lines(), *told(config), _strongest(survey.names, learner)]
    return Outcome(finish(folders, accountant, store), released, lines, folders)


def _score(log: Log, learned: Situations, theta: Array, private: Path) -> list[str]:
    """Held-out log-likelihood against the non-private MLE and the uniform choice; private."""
    assert log.held_out is not None
    features, choices = log.held_out
    mle = fit_mle(experiments.logged_answers(learned.features, learned.choices), outside=False)
    truth = experiments.logged_answers(features, choices)
    reference = float(log_likelihoods(truth, mle, outside=False).mean())
    seen = experiments.logged_answers(clip_items(features, log.scale), choices)
    score = float(log_likelihoods(seen, theta, outside=False).mean())
    null = -float(np.log(features.shape[1]))
    gain = (score - null) / (reference - null)
    table = {"null": null, "private": score, "non-private MLE": reference, "gain": gain}
    write_json(private / "held_out.json", table)
    return [
        f"held-out log-likelihood of {len(choices)} other people, per person: uniform {null:.4f}, "
        f"private {score:.4f}, non-private {reference:.4f}",
        f"the private fit keeps {gain:.1%} of the non-private gain",
    ]


def _write_public(folders: Folders, learner: OnePassNewtonMNL, names: Sequence[str]) -> None:
    model = {
        "learner": type(learner).__name__,
        "features": list(names),
        "coef": learner.theta_.tolist(),
        "state": learner.public_state(),
    }
    files = {"billboard.json": learner.billboard_.history(), "model.json": model}
    write_public(folders, files)


def _strongest(names: Sequence[str], learner: OnePassNewtonMNL) -> str:
    spread = np.sqrt(np.diag(np.linalg.inv(learner.precision_)))
    order = np.argsort(-np.abs(learner.theta_))[:5]
    shown = (f"{names[i]} {learner.theta_[i]:+.2f} ± {spread[i]:.2f}" for i in order)
    return f"largest coefficients learned: {', '.join(shown)}"
