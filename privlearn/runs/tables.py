"""Whole runs on tables: from rows and a budget to a folder with a public and a private half.

``tofw`` and ``pofw`` learn a linear model from logged rows under a central guarantee, ``hdb``
serves the rows as users of a bandit under a joint one: an arm per class, and a user tells only
whether the arm that was pulled is the right one.  One pass, in the order of arrival; the horizon is
public.

The defaults are `DPTOFW` in whitened coordinates and, for bandits, `PrivateLeastSquares`; `DPHDB`
is for tables of which few columns matter (``sparse``).  How they were chosen:
``docs/benchmarks.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.errors import DataError
from privlearn.learners.contextual import RespondToArms
from privlearn.learners.hdb import DPHDB
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.learners.pofw import DPPOFW
from privlearn.learners.streaming import StreamLearner
from privlearn.learners.tofw import DPTOFW
from privlearn.mechanisms.constraint_sets import LpBall, dual_exponent
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.reporting.figures import can_draw, plot_running_averages
from privlearn.rows.domains import Array
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
from privlearn.runs.configs import TableConfig
from privlearn.runs.null_records import Messages, NullRecords, messages_of
from privlearn.runs.persons import check_registry, registry_of, told
from privlearn.runs.records import CONSTANT, Records, records_of, split_seed, write_split
from privlearn.runs.references import LassoBandit, RandomArms
from privlearn.runs.simulated_arms import ArmMarket

BLOCKS = 200  # A stream is handed over in about so many blocks, which changes no result

_SQUARED_RADIUS, _LOGISTIC_RADIUS = 2.0, 5.0

_NOT_BETTER = (
    "the private {} does NOT beat the best constant {}; it takes more rows, a larger budget, "
    "tighter bounds or fewer columns"
)

Bandit = DPHDB | PrivateLeastSquares


def run_table(
    config: TableConfig, out: Path, progress: Progress, *, resume: bool = False
) -> Outcome:
    """Learns from a table within a budget; leaves a public and a private folder.

    With ``resume`` a run with the same settings that was cut off goes on.
    """
    seed = split_seed(config, out, resume=resume)
    table, test = split(config, seed)
    check_registry(config, out, resume=resume)
    _rehearse(config, table)
    work = _serve if config.learner == "hdb" else _learn
    folders = Folders.create(out, config, resume=resume)
    if not folders.begun:
        write_split(config, seed, folders.public)
    return work(config, table, test, folders, progress)


def split(config: TableConfig, seed: int | None) -> tuple[Records, Records]:
    """Rows to learn from, and rows that score the fit."""
    records, test = records_of(config, seed)
    if config.learner == "hdb" and records.classes is None:
        raise DataError(f"{config.data!r} is a regression: hdb needs classes, which are its arms")
    return records, test


def _rehearse(config: TableConfig, table: Records) -> None:
    budget, currency = config.cap()
    kind = JointAccountant if config.learner == "hdb" else CentralAccountant
    rule = config.rule()
    accountant: Any = kind(
        budget,
        users=range(len(table)),
        noise=NoiseSource.simulation(0),
        currency=currency,
        people=None if rule is None else People.memory(rule),
    )
    _learner(config, table).start(accountant)


def _learner(config: TableConfig, table: Records) -> Bandit | StreamLearner:
    if config.learner == "hdb":
        return _bandit(config, table)
    radius = config.radius
    if radius is None:
        radius = _SQUARED_RADIUS if table.classes is None else _LOGISTIC_RADIUS
    options: dict[str, Any] = {"loss": "squared" if table.classes is None else "logistic"}
    if config.learner == "pofw":
        options["method"] = config.method or "auto"
        return DPPOFW(LpBall(table.dim, 1, radius), **options)
    p = 2.0 if config.p is None else config.p
    method: Any = config.method or "whitened"
    if method == "whitened":
        options["constant"] = CONSTANT
    q = dual_exponent(p)
    bound = config.row_bound or largest_row(table, q)
    usual = min(table.dim ** (1 / q) / 2, bound)
    return DPTOFW(
        table.dim,
        p=p,
        radius=radius,
        feature_bound=bound,
        usual_norm=usual,
        method=method,
        **options,
    )


def _bandit(config: TableConfig, table: Records) -> Bandit:
    assert table.classes is not None
    method, arms = config.bandit(), len(table.classes)
    if method == "least-squares":
        return PrivateLeastSquares(n_arms=arms, dim=table.dim, random_state=config.seed)
    options: dict[str, Any] = {} if config.radius is None else {"radius": config.radius}
    return DPHDB(n_arms=arms, dim=table.dim, random_state=config.seed, **options)


def largest_row(table: Records, q: float) -> float:
    """A bound on ‖x‖_q of the scaled rows that the declared bounds allow: each column adds 1."""
    columns = len(table.schema.features)
    if q == math.inf:
        return max(1.0, CONSTANT)
    return float((columns + CONSTANT**q) ** (1 / q))


def _warnings(config: TableConfig, table: Records) -> list[str]:
    if config.row_bound is None:
        return []
    p = 2.0 if config.p is None else config.p
    largest = largest_row(table, dual_exponent(p))
    if config.row_bound >= largest * (1 - 1e-12):
        return []
    return [
        f"row_bound = {config.row_bound:g}: the declared bounds allow scaled rows of norm up to "
        f"{largest:.4g}. Longer rows are shrunk onto the bound, in learning and in forecasts, and "
        "their labels are not, which can ruin the fit; without row_bound no row is shrunk"
    ]


def _accountant(config: TableConfig, table: Records, folders: Folders) -> Any:
    kind = JointAccountant if config.learner == "hdb" else CentralAccountant
    side = [*table.side_information, *config.side_information, *folders.looked]
    if config.learner == "hdb":
        side.append(
            "a table of classes is played as a bandit: a user's response is +1 for the arm of the "
            "user's own class and -1 for all others"
        )
    people = registry_of(config, begun=folders.begun)
    return accountant_of(
        kind, config, folders, users=len(table), people=people, side_information=side
    )


def _learn(
    config: TableConfig, table: Records, test: Records, folders: Folders, progress: Progress
) -> Outcome:
    # a registry admits a row once; others are in the file
    store = None if table.people is None else kept_rows(folders)
    accountant = _accountant(config, table, folders)
    learner = _learner(config, table)
    messages, cut_off = messages_of(learner), CutOff(accountant)
    assert isinstance(learner, StreamLearner)
    inputs, targets, people = table.inputs(), table.targets(), table.people
    again = (inputs, targets) if people is None else None
    learner.start(accountant, store=store, again=again)
    cut_off.goes_on(learner)
    first = learner.clock_
    rows = len(targets)
    foreseen = np.full(rows, np.nan)
    advance, size = progress("private", len(table)), max(rows // BLOCKS, 1)
    advance(first)
    for start in range(first, rows, size):
        part = slice(start, min(start + size, rows))
        with np.errstate(all="ignore"):  # a warning would tell of sealed data
            foreseen[part] = learner.predict(inputs[part])
        whose = None if people is None else people[part]
        learner.partial_fit(inputs[part], targets[part], people=whose)
        advance(part.stop - part.start)
    _skip_absent(learner, table, advance)
    cut_off.check_learned(learner)
    warnings = _warnings(config, table)
    _write_public(folders, learner, table, [*warnings, *cut_off.lacks()])
    lines = _null_lines(folders.private, [*messages, *cut_off.messages()], table)
    score = _Score(table)
    with np.errstate(all="ignore"):
        curve = score.curve(foreseen, learner.predict(inputs), targets, first)
    _write_totals(folders.private, curve, score.curve_name)
    if can_draw():
        picture = folders.private / "progress.png"
        plot_running_averages(picture, curve, "rows learned from", score.curve_name, bottom=0)
    lines += score.lines(test, learner, folders.private)
    released = [*cut_off.lines(), *(f"warning: {line}" for line in warnings)]
    released += told(config)
    released.append(_strongest(table, learner.coef_))
    return Outcome(finish(folders, accountant, store), released, lines, folders)


@dataclass(frozen=True, slots=True)
class _Score:
    """How good a fit is, computed from the rows themselves: for the operator only."""

    table: Records

    @property
    def name(self) -> str:
        return "R²" if self.table.classes is None else "accuracy"

    @property
    def curve_name(self) -> str:
        if self.table.classes is None:
            return "mean squared error of the forecasts, scaled labels"
        return "share of wrong forecasts"

    def errors(self, scores: Array, targets: Array) -> Array:
        """Of every row, shape (n,)."""
        if self.table.classes is None:
            return np.asarray((scores - targets) ** 2)
        return np.asarray(((scores > 0) != (targets > 0)).astype(np.float64))

    def curve(
        self, foreseen: Array, hindsight: Array, targets: Array, first: int
    ) -> dict[str, Array]:
        """Errors of forecasts made before a row was learned from, and of the final model's.

        On usable rows from ``first`` on only.  A learner that moves at the end of the stream shows
        only in the final model.
        """
        kept = self.table.usable & (np.arange(len(targets)) >= first)
        constant = np.full(int(kept.sum()), self.constant())
        return {
            "private, while it learned": self.errors(foreseen[kept], targets[kept]),
            "best constant": self.errors(constant, targets[kept]),
            "private, final model on the same rows": self.errors(hindsight[kept], targets[kept]),
        }

    def constant(self) -> float:
        mine = self.table.targets()[self.table.usable]
        if self.table.classes is None:
            return float(mine.mean()) if len(mine) else 0.0
        return 1.0 if len(mine) and mine.mean() > 0.5 else -1.0

    def reference(self) -> Array:
        """A fit without privacy on the same rows, shape (d,)."""
        kept = self.table.usable
        inputs, targets = self.table.inputs()[kept], self.table.targets()[kept]
        if self.table.classes is None:
            return np.asarray(np.linalg.lstsq(inputs, targets, rcond=None)[0])
        if len(set(targets)) < 2:
            return np.append(np.zeros(self.table.dim - 1), self.constant())
        from sklearn.linear_model import LogisticRegression  # slow to import

        fit = LogisticRegression(C=10.0, fit_intercept=False, max_iter=10_000)
        return np.asarray(fit.fit(inputs, targets).coef_[0], dtype=np.float64)

    def of(self, scores: Array, targets: Array, constant: float) -> float:
        """R² against the best constant, or accuracy."""
        mean = float(self.errors(scores, targets).mean())
        if self.table.classes is not None:
            return 1.0 - mean
        return 1.0 - mean / float(self.errors(np.full(len(targets), constant), targets).mean())

    def lines(self, test: Records, learner: StreamLearner, private: Path) -> list[str]:
        """The fit beside both references, on held-out rows or, without any, on those it is from."""
        scored = test if len(test) else self.table
        kept = scored.usable
        inputs, targets = scored.inputs()[kept], scored.targets()[kept]
        if len(targets) < 2 or (self.table.classes is None and np.ptp(targets) == 0):
            return []
        constant = self.constant()
        found = {
            "constant": self.of(np.full(len(targets), constant), targets, constant),
            "private": self.of(learner.predict(inputs), targets, constant),
            "non-private": self.of(inputs @ self.reference(), targets, constant),
        }
        file, what = "held_out.json", "held-out rows"
        if scored is self.table:
            file, what = "fitted.json", "rows learned from, as none is held out"
        told = {"measure": self.name, "rows": len(targets), **found}
        write_json(private / file, told)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
        lines = [f"{self.name} on {len(targets)} {what}: {shown}"]
        if found["private"] <= found["constant"]:
            lines.append(_NOT_BETTER.format("model", "answer"))
        return lines


def _strongest(table: Records, coef: Array) -> str:
    names = [*table.encoding.names, "constant"]
    order = np.argsort(-np.abs(coef), kind="stable")[:5]
    shown = ", ".join(f"{names[i]} {coef[i]:+.3f}" for i in order)
    return f"largest coefficients for scaled columns: {shown}"


def _serve(
    config: TableConfig, table: Records, test: Records, folders: Folders, progress: Progress
) -> Outcome:
    store = kept_rows(folders)
    accountant = _accountant(config, table, folders)
    learner = _learner(config, table)
    messages, cut_off = messages_of(learner), CutOff(accountant)
    assert isinstance(learner, DPHDB | PrivateLeastSquares)
    assert table.classes is not None
    learner.start(accountant, store=store)
    cut_off.goes_on(learner)
    first = learner.clock_
    inputs, targets = table.inputs()[first:], table.targets()[first:]
    kept, arms = table.usable[first:], len(table.classes)
    advance = progress("private", len(table))
    advance(first)
    market = _market(inputs, targets, arms)
    private = f"private ({config.budget})"
    people = table.people
    player = learner if people is None else _OfPersons(learner, people)
    regrets = {private: market.serve(player, advance)[kept] if len(targets) else np.zeros(0)}
    pulled = market.pulled
    _skip_absent(learner, table, advance)
    cut_off.check_learned(learner)
    _write_public(folders, learner, table, cut_off.lacks())
    lines = _null_lines(folders.private, [*messages, *cut_off.messages()], table)
    names = [*table.classes, ""]  # the arm of a null user is -1
    pulls = ((user, names[arm]) for user, arm in enumerate(pulled, first))
    write_csv(folders.private / "pulls.csv", ["user", "arm"], pulls)
    if kept.any():
        usable = _market(inputs[kept], targets[kept], arms)
        lasso = LassoBandit(n_arms=arms, dim=table.dim)
        regrets["non-private Lasso bandit"] = usable.serve(lasso)
        regrets["random"] = usable.serve(RandomArms(n_arms=arms, random_state=config.seed))
        commonest = usable.means.sum(axis=0).argmax()
        regrets["best constant arm"] = usable.means.max(axis=1) - usable.means[:, commonest]
    _write_totals(folders.private, regrets, "regret")
    if can_draw():
        picture = folders.private / "regret.png"
        plot_running_averages(picture, regrets, "users served", "share of wrong arms", bottom=0)
    tail = max(int(kept.sum()) // 4, 1)
    lines += [
        f"{name}: {regret.sum():.0f} wrong arms of {len(regret)}; share {regret.mean():.3f}, "
        f"{regret[-tail:].mean():.3f} in the last quarter"
        for name, regret in regrets.items()
        if len(regret)
    ]
    ours, constant = regrets[private].sum(), regrets.get("best constant arm", np.zeros(0)).sum()
    if kept.any() and ours >= constant:
        lines.append(_NOT_BETTER.format("bandit", "arm"))
    released = [f"{arms} arms, {_updates(learner)}; an estimate per arm after each"]
    released = [*cut_off.lines(), *told(config), *released]
    return Outcome(finish(folders, accountant, store), released, lines, folders)


def _updates(learner: Bandit) -> str:
    if isinstance(learner, DPHDB):
        return f"DP-HDB in {len(learner.public_state()['epochs'])} public epochs"
    return f"private least squares in {learner.public_state()['block']} public blocks"


class _OfPersons:
    def __init__(self, learner: Bandit, people: Sequence[str | None]) -> None:
        self._learner, self._people = learner, people

    def play(
        self, contexts: Array, respond: RespondToArms, private: Array | None = None, /
    ) -> None:
        first = self._learner.clock_
        whose = self._people[first : first + len(contexts)]
        self._learner.play(contexts, respond, private, people=whose)


def _market(contexts: Array, classes: Array, arms: int) -> ArmMarket:
    hits = (classes[:, None] == np.arange(arms)).astype(np.float64)
    rewards = np.where(np.isfinite(classes)[:, None], 2 * hits - 1, np.nan)
    return ArmMarket(contexts, rewards, hits)


def _skip_absent(learner: Bandit | StreamLearner, table: Records, advance: Any) -> None:
    left = len(table) - learner.clock_
    if left:
        learner.skip(left)
        advance(left)


def _null_lines(private: Path, messages: Messages, table: Records) -> list[str]:
    nulls = NullRecords.of(len(table), table.messages, messages, absent=table.absent)
    nulls.write(private)
    return nulls.lines(rule=table.people is not None)


def _write_public(
    folders: Folders, learner: Bandit | StreamLearner, table: Records, warnings: list[str]
) -> None:
    model = {
        "table": table.describe(),
        "warnings": warnings,
        "coef": learner.coef_.tolist(),
        "learner": type(learner).__name__,
        "state": learner.public_state(),
    }
    files = {"billboard.json": learner.billboard_.history(), "model.json": model}
    write_public(folders, files)


def _write_totals(private: Path, curves: Mapping[str, Array], what: str) -> None:
    totals = {f"{name}: total {what}": np.cumsum(values) for name, values in curves.items()}
    write_curves(private / "progress.csv", "users", totals)
