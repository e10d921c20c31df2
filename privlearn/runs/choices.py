"""Whole runs on choices: from a survey or logged choices and a budget to two folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.errors import DataError
from privlearn.learners import OnePassNewtonMNL
from privlearn.mechanisms.choice_model import NO_ITEM, Items, clip_items, fit_mle, log_likelihoods
from privlearn.people import People
from privlearn.reporting.figures import plot_regret
from privlearn.rows.domains import Array
from privlearn.runs import simulated_choices as experiments
from privlearn.runs.cars import (
    CAR_MARKET_SIDE_INFORMATION,
    FEATURE_NAMES,
    SCALE,
    car_features,
    car_market,
    load_car_choices,
    returning_car_market,
    split,
)
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
from privlearn.storage.foreign_files import open_regular
from privlearn.tables.lines import cells_of, header_of, numbers, physical_lines, some_lines
from privlearn.values.participation import Participation
from privlearn.values.user_code import from_outside

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
    if first < horizon:
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
    users = len(survey.features) + survey.absent
    accountant: CentralAccountant[Any] = accountant_of(
        CentralAccountant,
        config,
        folders,
        users=users,
        people=people,
        side_information=(*survey.side_information, *config.side_information),
    )
    cut_off = CutOff(accountant)
    learner = OnePassNewtonMNL(
        n_items=survey.features.shape[1],
        dim=survey.features.shape[2],
        outside_option=config.outside,
        feature_scale=survey.scale,
        random_state=config.seed,
    ).start(accountant, store=store)
    cut_off.goes_on(learner)
    messages = messages_of(learner)
    advance = progress("private", users)
    first = learner.clock_
    ids = None if survey.people is None else survey.people[first:]
    if first < len(survey.features):
        learner.partial_fit(survey.features[first:], survey.choices[first:], people=ids)
    if learner.clock_ < users:
        learner.skip(users - learner.clock_)
    advance(users)
    cut_off.check_learned(learner)
    _write_public(folders, learner, survey.names)
    own = [*messages, *cut_off.messages()]
    nulls = NullRecords.of(users, survey.messages, own, absent=survey.absent)
    nulls.write(folders.private)
    lines = nulls.lines(rule=survey.people is not None)
    if survey.held_out is not None:
        lines += _score(survey, learner.theta_, folders.private)
    released = [*cut_off.lines(), *told(config), _strongest(survey.names, learner)]
    return Outcome(finish(folders, accountant, store), released, lines, folders)


def logged(config: ChoiceConfig) -> Log:
    """The choices that a run with these settings learns from."""
    return _car_log() if config.data == "cars" else _csv_log(config)


@dataclass(frozen=True, slots=True)
class Log:
    """Logged choices; features unscaled and unclipped, NaN for records that cannot be used.

    Messages say why; ``absent`` users more are in the horizon, but not in the file.  ``people``
    says whose each record is, None for nobody's; it is None where each record is a person.
    """

    names: Sequence[str]
    features: Array
    choices: Items
    scale: float
    side_information: tuple[str, ...]
    messages: list[tuple[int, str]]
    held_out: tuple[Array, Items] | None = None
    absent: int = 0
    people: list[str | None] | None = None


def _car_log() -> Log:
    survey = load_car_choices()
    features = car_features(survey, scale=1.0)
    train, test = split(len(features))
    return Log(
        FEATURE_NAMES,
        features[train],
        survey.choices[train],
        SCALE,
        (
            "the feature scale 2 of the shipped survey was chosen with these data in view",
            "the learner's defaults (batch rule, Hessian shrinkage, prior, budget share of the "
            "Hessian sums) were tuned in part on this survey's choices and on simulations of "
            "car_market, which is drawn from it (docs/benchmarks.md, 'What was tuned on what')",
        ),
        [],
        (features[test], survey.choices[test]),
    )


def _score(log: Log, theta: Array, private: Path) -> list[str]:
    """Held-out log-likelihood against the non-private MLE and the uniform choice; private."""
    assert log.held_out is not None
    features, choices = log.held_out
    mle = fit_mle(experiments.logged_answers(log.features, log.choices), outside=False)
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


def _csv_log(config: ChoiceConfig) -> Log:
    """Reads a CSV in long form: ``user``, ``chosen`` (0 or 1) and one column per feature.

    Exactly ``items`` lines per user, in order of arrival: after the header, line k (from 0, blank
    ones included) belongs to user k // items, whatever it says, so that nobody's lines decide which
    lines are another user's.  The ``user`` cell is only checked to be equal within the group.

    A line ends at a newline, whether quoted or not, and quotes protect commas within it.  A user
    whose lines cannot be used (too few, a wrong number of cells, text, NaN, a line over
    `LONGEST_LINE`, not exactly one choice, two ids) becomes the null record, and no other, with a
    private message.  Lines beyond the horizon are not read.  With ``people`` that column, which may
    be ``user``, says whose record it is; where the lines of a group differ in it, or have none, the
    record is null and nobody's.
    """
    assert config.items is not None
    assert config.horizon is not None
    try:
        with open_regular(config.data) as file:
            physical = physical_lines(file)
            header = _header(next(physical, b""), config)
            lines = list(islice(physical, config.horizon * config.items))
    except OSError as error:
        raise DataError(f"{config.data} cannot be read: {error.strerror}") from None
    users = -(-len(some_lines(lines, config.data)) // config.items)
    names = [name for name in header if name not in (*_NO_FEATURES, config.people)]
    features = np.full((users, config.items, len(names)), np.nan)
    choices = np.full(users, NO_ITEM)
    messages: list[tuple[int, str]] = []
    people: list[str | None] = [None] * users
    for user in range(users):
        group = lines[user * config.items : (user + 1) * config.items]
        try:
            rows = _cells(group, header, config)
            if config.people is not None:
                people[user] = _person(rows, header.index(config.people))
            features[user], choices[user] = _one_user(rows, header, config)
        except BaseException as error:  # whatever is wrong concerns this user only
            if from_outside(error):
                raise
            messages.append((user, " ".join(str(error).split())[:200]))
    return Log(
        names,
        features,
        choices,
        config.scale,
        (),
        messages,
        absent=config.horizon - users,
        people=None if config.people is None else people,
    )


_NO_FEATURES = ("user", "chosen")


def _header(line: bytes, config: ChoiceConfig) -> list[str]:
    """Column names; no message names a cell, which is a user's where the header is missing."""
    path = config.data
    header = header_of(line, path)
    if len(set(header)) < len(header):
        raise DataError(f"{path}: the header must name each column once")
    missing = [name for name in _NO_FEATURES if name not in header]
    if missing or not set(header) - {*_NO_FEATURES, config.people}:
        raise DataError(
            f"{path}: the header lacks {', '.join(missing) or 'features'}; its first line must "
            "name 'user', 'chosen' and one numeric column per feature, separated by commas"
        )
    if config.people is not None and config.people not in header:
        raise DataError(f"people = {config.people!r}: no column of {path}")
    return header


def _cells(lines: Sequence[bytes], header: list[str], config: ChoiceConfig) -> list[list[str]]:
    if len(lines) != config.items:
        raise ValueError(f"{len(lines)} lines instead of {config.items}")
    rows = [cells_of(line) for line in lines]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a line of {len(row)} cells, where the header has {len(header)}")
    return rows


def _person(rows: Sequence[list[str]], place: int) -> str | None:
    found = {row[place] for row in rows}
    if len(found) > 1:
        raise ValueError("different persons in the lines of one user")
    return found.pop() or None


def _one_user(
    rows: Sequence[list[str]], header: list[str], config: ChoiceConfig
) -> tuple[Array, int]:
    """Features (items, d) and choice of one user; what is raised tells of no cell."""
    if len({row[header.index("user")] for row in rows}) > 1:
        raise ValueError(
            f"different users in the {config.items} lines that --items gives to each user"
        )
    marks = [row[header.index("chosen")] for row in rows]
    if any(mark not in ("0", "1") for mark in marks):
        raise ValueError("chosen must be 0 or 1")
    no_features = (*_NO_FEATURES, config.people)
    places = [i for i, name in enumerate(header) if name not in no_features]
    names = [header[i] for i in places]
    values = np.array([numbers(row, places, names) for row in rows])
    chosen = marks.count("1")
    if chosen == 1:
        return values, marks.index("1")
    if not chosen and config.outside:
        return values, NO_ITEM
    raise ValueError(f"{chosen} items chosen")


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
