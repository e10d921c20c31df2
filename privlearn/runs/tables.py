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

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from privlearn.accountants import CentralAccountant, Certificate, JointAccountant
from privlearn.baselines.linear_bandits import LassoBandit, PrivateLeastSquares, RandomArms
from privlearn.budgets import ZCDP, ApproxDP, Currency, GaussianDP
from privlearn.datasets.user_tables import CONSTANT, SHIPPED, Table, Wanted, read_table
from privlearn.domains import Array
from privlearn.errors import DataError
from privlearn.learners.hdb import DPHDB
from privlearn.learners.hdb_epochs import GaussianEpochs
from privlearn.learners.pofw import DPPOFW
from privlearn.learners.streaming import StreamLearner
from privlearn.learners.tofw import DPTOFW
from privlearn.ledger import Ledger
from privlearn.mechanisms.constraint_sets import LpBall, dual_exponent
from privlearn.noise import NoiseSource
from privlearn.reporting import certificates as report
from privlearn.runs.choices import Folders, Progress
from privlearn.runs.null_records import NullRecords
from privlearn.runs.settings import (
    LARGEST,
    LEAST,
    Bound,
    Centre,
    Exponent,
    HeldOut,
    Horizon,
    parse_budget,
)
from privlearn.simulation.linear_bandit import ArmMarket

BLOCKS = 200
"""A stream is handed over in about so many blocks, which changes no result."""

_METHODS: Mapping[str, tuple[str, ...]] = {
    "tofw": ("whitened", "restarts", "plain", "buffered"),
    "pofw": ("auto", "thresholds", "choices", "vertices"),
    "hdb": ("least-squares", "gaussian", "noisy_max"),
}
_NO_GAUSSIAN = ("choices", "vertices", "noisy_max")
"""Methods whose choices have no price in `GaussianDP`."""
_SQUARED_RADIUS, _LOGISTIC_RADIUS = 2.0, 5.0
_MOMENTS = 0.15
"""Share of DP-HDB's budget for second moments."""

_NOT_BETTER = (
    "the private {} does NOT beat the best constant {}; it takes more rows, a larger budget, "
    "tighter bounds or fewer columns"
)

Pair = tuple[float, float]
Bandit = DPHDB | PrivateLeastSquares


class TableConfig(BaseModel):
    """Settings of one run on a table; everything here is public."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    learner: Literal["tofw", "pofw", "hdb"]
    data: str
    """``diabetes``, ``breast_cancer``, ``digits``, or a CSV or Parquet file."""
    target: str | None = None
    """The column to predict."""
    columns: tuple[str, ...] | None = None
    """Features; default: all columns but the target."""
    classes: tuple[str, ...] | None = None
    """Labels of a classification (two for tofw and pofw, the second counts as 1), or arms."""
    bounds: dict[str, Pair] = Field(default_factory=dict)
    """Public (low, high) of columns; values beyond are moved onto them."""
    feature_bound: Bound | None = None
    """Columns without ``bounds`` lie in ±feature_bound."""
    row_bound: Bound | None = None
    """tofw: longer scaled rows are shrunk onto this dual norm, in learning and in forecasts;
    default: the largest that the declared bounds allow, so that no row is."""
    label_bound: Bound | None = None
    """Regression: |label − label_centre| is at most this."""
    label_centre: Centre | None = None
    scale: str = "declared"
    """There is no other scaling than by declared bounds."""
    p: Exponent | None = None
    """tofw: θ lives in an ℓp ball; default 2."""
    radius: Bound | None = None
    """Of the set that θ is kept in, for scaled rows and labels."""
    method: str | None = None
    """Default: tofw whitened, pofw auto, hdb least-squares (gaussian if ``sparse``)."""
    sparse: bool = False
    """hdb: few columns are thought to matter, so that DP-HDB learns and not least squares."""
    budget: str = "rho=1"
    horizon: Horizon | None = None
    """Number of users, a public count."""
    held_out: HeldOut | None = None
    """Rows after the horizon that score the fit, for the operator; default for shipped tables: a
    fifth of the rows."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the order of a shipped table's rows and of references, never of secure noise."""
    simulate_noise: Annotated[int, Field(ge=0)] | None = None
    """Seed of reproducible noise; the ledger is then a simulation and is never certified."""
    side_information: tuple[str, ...] = ()
    """What was computed from these data and is declared public."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.scale != "declared":
            raise ValueError(
                f"scale = {self.scale!r}: refused. Scaling by minima, means or deviations of the "
                "rows would release them unpaid; declare public bounds instead (bounds, "
                "feature_bound, label_bound), from units or from what is known without these data"
            )
        for name, (low, high) in self.bounds.items():
            inside = max(abs(low), abs(high)) <= LARGEST and high - low >= LEAST
            if not inside:  # NaN is not
                raise ValueError(
                    f"bounds: {name} = {low:g}:{high:g} must be finite, low < high, within "
                    f"±{LARGEST:g} and at least {LEAST:g} apart"
                )
        if self.data not in SHIPPED:
            if self.target is None:
                raise ValueError("target: name the column of your file that is to be predicted")
            if self.horizon is None:
                raise ValueError("horizon: the number of users is a public count; state it")
        self._fits_learner()
        budget = parse_budget(self.budget)
        if isinstance(budget, GaussianDP) and self.method in _NO_GAUSSIAN:
            raise ValueError(
                f"budget = {self.budget!r}: choices have no price in mu; with method = "
                f"{self.method!r} give rho=... or epsilon=...,delta=..."
            )
        return self

    def _fits_learner(self) -> None:
        if self.method is not None and self.method not in _METHODS[self.learner]:
            known = ", ".join(_METHODS[self.learner])
            raise ValueError(f"method = {self.method!r}: {self.learner} has {known}")
        for name in ("p", "row_bound"):
            if getattr(self, name) is not None and self.learner != "tofw":
                raise ValueError(f"{name}: for tofw only")
        if self.sparse and self.learner != "hdb":
            raise ValueError("sparse: for hdb only; pofw is the sparse learner of streams")
        if self.sparse and self.method == "least-squares":
            raise ValueError("sparse: least squares assumes none; take gaussian or noisy_max")
        if self.radius is not None and self.learner == "hdb" and self._bandit() == "least-squares":
            raise ValueError("radius: least squares has no set of parameters")
        if self.classes is not None:
            if len(set(self.classes)) < len(self.classes) or "" in self.classes:
                raise ValueError("classes: each once, and none blank")
            if len(self.classes) < 2 or (len(self.classes) > 2 and self.learner != "hdb"):
                most = "at least two (the arms)" if self.learner == "hdb" else "two"
                raise ValueError(f"classes: {self.learner} needs {most}, not {len(self.classes)}")
            if self.label_bound is not None or self.label_centre is not None:
                raise ValueError("label_bound, label_centre: for regressions, without classes")
        if self.learner == "hdb":
            if self.data not in SHIPPED and self.classes is None:
                raise ValueError("classes: name the classes of the target, which are the arms")
            if self.held_out:
                raise ValueError("held_out: a bandit is scored on the users it serves")

    def _bandit(self) -> str:
        """The way of hdb."""
        return self.method or ("gaussian" if self.sparse else "least-squares")

    def noise(self) -> NoiseSource:
        """The noise source that the accountant will own."""
        if self.simulate_noise is None:
            return NoiseSource.secure()
        return NoiseSource.simulation(self.simulate_noise)

    def cap(self) -> tuple[Currency | ApproxDP, type[Currency] | None]:
        """The budget, and the currency to count an (ε, δ) promise in."""
        budget = parse_budget(self.budget)
        if not isinstance(budget, ApproxDP):
            return budget, None
        return budget, ZCDP if self.method in _NO_GAUSSIAN else GaussianDP

    def wanted(self) -> Wanted:
        """What to read, and all that is declared about it."""
        classes = self.classes
        if classes is None and self.learner != "hdb" and self.data == "digits":
            classes = ("0", "1")
        return Wanted(
            self.data,
            self.target,
            self.columns,
            tuple(self.bounds.items()),
            self.feature_bound,
            classes,
            self.label_bound,
            self.label_centre,
            self.seed,
        )


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """What a run leaves behind.

    Attributes:
        certificate: of the ledger.
        released: lines about what is public.
        lines: for the operator only.
        folders: where the files are.
    """

    certificate: Certificate
    released: list[str]
    lines: list[str]
    folders: Folders


def run_table(config: TableConfig, out: Path, progress: Progress) -> TableOutcome:
    """Learns from a table within a budget; leaves a public and a private folder.

    Raises:
        DataError: the table cannot be used, or the folder not written.  PrivlearnError, ValueError:
        learner and budget do not go together; nothing is written then.
    """
    table, test = _split(config)
    if config.learner == "hdb" and table.classes is None:
        raise DataError(f"{config.data!r} is a regression: hdb needs classes, which are its arms")
    _rehearse(config, table)
    work = _serve if config.learner == "hdb" else _learn
    return work(config, table, test, Folders.create(out), progress)


def _split(config: TableConfig) -> tuple[Table, Table]:
    """Rows to learn from, and rows that score the fit."""
    wanted = config.wanted()
    if not wanted.shipped:
        assert config.horizon is not None
        table = read_table(wanted, config.horizon + (config.held_out or 0))
        users = config.horizon
    else:
        table = read_table(wanted)
        default = 0 if config.learner == "hdb" else len(table) // 5
        held = default if config.held_out is None else config.held_out
        users = len(table) - held if config.horizon is None else config.horizon
        if not 0 < users <= len(table) - held:
            raise DataError(
                f"horizon = {config.horizon}, held_out = {held}: {config.data!r} has {len(table)} "
                "rows"
            )
        table = table.take(slice(0, users + held))
    return table.take(slice(0, users)), table.take(slice(users, len(table)))


def _rehearse(config: TableConfig, table: Table) -> None:
    """Lets settings that do not fit fail before anything is written; opens no row."""
    budget, currency = config.cap()
    kind = JointAccountant if config.learner == "hdb" else CentralAccountant
    accountant: Any = kind(
        budget,
        users=range(len(table)),
        noise=NoiseSource.simulation(0),
        currency=currency,
    )
    _learner(config, table).start(accountant)


def _learner(config: TableConfig, table: Table) -> Bandit | StreamLearner:
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


def _bandit(config: TableConfig, table: Table) -> Bandit:
    assert table.classes is not None
    method, arms = config._bandit(), len(table.classes)
    if method == "least-squares":
        return PrivateLeastSquares(n_arms=arms, dim=table.dim, random_state=config.seed)
    options: dict[str, Any] = {} if config.radius is None else {"radius": config.radius}
    if method == "gaussian":  # columns of a table are seldom uncorrelated
        options["method"] = GaussianEpochs(moments=_MOMENTS)
    else:
        options["method"] = method
    return DPHDB(n_arms=arms, dim=table.dim, random_state=config.seed, **options)


def largest_row(table: Table, q: float) -> float:
    """The largest ‖x‖_q of a scaled row that the declared bounds allow."""
    columns = len(table.columns)
    if q == math.inf:
        return max(1.0, CONSTANT)
    return float((columns + CONSTANT**q) ** (1 / q))


def _warnings(config: TableConfig, table: Table) -> list[str]:
    """What the declared bounds alone say against the settings; public."""
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


def _accountant(config: TableConfig, table: Table, folders: Folders) -> Any:
    budget, currency = config.cap()
    kind = JointAccountant if config.learner == "hdb" else CentralAccountant
    side = [*table.side_information, *config.side_information]
    if config.learner == "hdb":
        side.append(
            "a table of classes is played as a bandit: a user's response is +1 for the arm of the "
            "user's own class and -1 for all others"
        )
    return kind(
        budget,
        users=range(len(table)),
        ledger=Ledger.create(folders.public / "ledger.db"),
        noise=config.noise(),
        currency=currency,
        side_information=side,
    )


# Streams ------------------------------------------------------------------------------------------


def _learn(
    config: TableConfig, table: Table, test: Table, folders: Folders, progress: Progress
) -> TableOutcome:
    accountant = _accountant(config, table, folders)
    learner = _learner(config, table)
    assert isinstance(learner, StreamLearner)
    learner.start(accountant)
    inputs, targets = table.inputs(), table.targets()
    rows = len(targets)
    foreseen = np.full(rows, np.nan)
    advance, size = progress("private", len(table)), _block(rows)
    for start in range(0, rows, size):
        part = slice(start, min(start + size, rows))
        with np.errstate(all="ignore"):  # a warning would tell of sealed data
            foreseen[part] = learner.predict(inputs[part])
        learner.partial_fit(inputs[part], targets[part])
        advance(part.stop - part.start)
    _skip_absent(learner, table, advance)
    accountant.close()
    warnings = _warnings(config, table)
    certificate = _write_public(folders, accountant, learner, table, warnings)
    lines = _null_lines(folders.private, learner, table)
    score = _Score(table)
    with np.errstate(all="ignore"):
        curve = score.curve(foreseen, learner.predict(inputs), targets)
    _write_curve(folders.private, curve, score.curve_name)
    _plot(folders.private / "progress.png", curve, "rows learned from", score.curve_name)
    lines += score.lines(test, learner, folders.private)
    released = [*(f"warning: {line}" for line in warnings), _strongest(table, learner.coef_)]
    return TableOutcome(certificate, released, lines, folders)


@dataclass(frozen=True, slots=True)
class _Score:
    """How good a fit is, computed from the rows themselves: for the operator alone."""

    table: Table

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

    def curve(self, foreseen: Array, hindsight: Array, targets: Array) -> dict[str, Array]:
        """Errors of forecasts made before a row was learned from, and of the final model's.

        On usable rows only.  A learner that moves at the end of the stream shows in the final
        model alone.
        """
        kept = self.table.usable
        constant = np.full(int(kept.sum()), self.constant())
        return {
            "private, while it learned": self.errors(foreseen[kept], targets[kept]),
            "best constant": self.errors(constant, targets[kept]),
            "private, final model on the same rows": self.errors(hindsight[kept], targets[kept]),
        }

    def constant(self) -> float:
        """The best constant answer on the rows that were learned from."""
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
            return np.append(np.zeros(len(self.table.columns)), self.constant())
        from sklearn.linear_model import LogisticRegression  # slow to import

        fit = LogisticRegression(C=10.0, fit_intercept=False, max_iter=10_000)
        return np.asarray(fit.fit(inputs, targets).coef_[0], dtype=np.float64)

    def of(self, scores: Array, targets: Array, constant: float) -> float:
        """R² against the best constant, or accuracy."""
        mean = float(self.errors(scores, targets).mean())
        if self.table.classes is not None:
            return 1.0 - mean
        return 1.0 - mean / float(self.errors(np.full(len(targets), constant), targets).mean())

    def lines(self, test: Table, learner: StreamLearner, private: Path) -> list[str]:
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
        (private / file).write_text(json.dumps(told, indent=1), encoding="utf-8")
        shown = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
        lines = [f"{self.name} on {len(targets)} {what}: {shown}"]
        if found["private"] <= found["constant"]:
            lines.append(_NOT_BETTER.format("model", "answer"))
        return lines


def _strongest(table: Table, coef: Array) -> str:
    names = [*(column.name for column in table.columns), "constant"]
    order = np.argsort(-np.abs(coef), kind="stable")[:5]
    shown = ", ".join(f"{names[i]} {coef[i]:+.3f}" for i in order)
    return f"largest coefficients for scaled columns: {shown}"


# Bandits ------------------------------------------------------------------------------------------


def _serve(
    config: TableConfig, table: Table, test: Table, folders: Folders, progress: Progress
) -> TableOutcome:
    accountant = _accountant(config, table, folders)
    learner = _learner(config, table)
    assert isinstance(learner, DPHDB | PrivateLeastSquares)
    assert table.classes is not None
    learner.start(accountant)
    kept, arms = table.usable, len(table.classes)
    advance = progress("private", len(table))
    market = _market(table.inputs(), table.targets(), arms)
    private = f"private ({config.budget})"
    regrets = {private: market.serve(learner, advance)[kept]}
    pulled = market.pulled
    _skip_absent(learner, table, advance)
    accountant.close()
    certificate = _write_public(folders, accountant, learner, table, [])
    lines = _null_lines(folders.private, learner, table)
    _write_pulls(folders.private / "pulls.csv", pulled, table.classes)
    if kept.any():
        usable = _market(table.inputs()[kept], table.targets()[kept], arms)
        lasso = LassoBandit(n_arms=arms, dim=table.dim)
        regrets["non-private Lasso bandit"] = usable.serve(lasso)
        regrets["random"] = usable.serve(RandomArms(n_arms=arms, random_state=config.seed))
        regrets["best constant arm"] = (
            usable.means.max(axis=1) - usable.means[:, _commonest(usable)]
        )
    _write_curve(folders.private, regrets, "regret")
    _plot(folders.private / "regret.png", regrets, "users served", "share of wrong arms")
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
    return TableOutcome(certificate, released, lines, folders)


def _commonest(market: ArmMarket) -> int:
    return int(market.means.sum(axis=0).argmax())


def _updates(learner: Bandit) -> str:
    if isinstance(learner, DPHDB):
        return f"DP-HDB in {len(learner.public_state()['epochs'])} public epochs"
    return f"private least squares in {learner.public_state()['block']} public blocks"


def _market(contexts: Array, classes: Array, arms: int) -> ArmMarket:
    """Right arms pay 1 and wrong ones −1; regret counts wrong arms.  Null users pay NaN."""
    hits = (classes[:, None] == np.arange(arms)).astype(np.float64)
    rewards = np.where(np.isfinite(classes)[:, None], 2 * hits - 1, np.nan)
    return ArmMarket(contexts, rewards, hits)


# Files --------------------------------------------------------------------------------------------


def _block(users: int) -> int:
    return max(users // BLOCKS, 1)


def _skip_absent(learner: Bandit | StreamLearner, table: Table, advance: Any) -> None:
    if table.absent:
        learner.skip(table.absent)
        advance(table.absent)


def _null_lines(private: Path, learner: Bandit | StreamLearner, table: Table) -> list[str]:
    """Writes which records were null; what the operator should see of it."""
    nulls = NullRecords.of(
        len(table), table.messages, learner.private_messages_, absent=table.absent
    )
    nulls.write(private)
    return nulls.lines()


def _write_public(
    folders: Folders,
    accountant: Any,
    learner: Bandit | StreamLearner,
    table: Table,
    warnings: list[str],
) -> Certificate:
    certificate: Certificate = accountant.certificate()
    public = folders.public
    accountant.ledger.export(public / "ledger.jsonl")
    _write_json(public / "billboard.json", learner.billboard_.history())
    _write_json(
        public / "model.json",
        {
            "table": table.describe(),
            "warnings": warnings,
            "coef": learner.coef_.tolist(),
            "learner": type(learner).__name__,
            "state": learner.public_state(),
        },
    )
    (public / "certificate.json").write_text(certificate.model_dump_json(indent=1), "utf-8")
    (public / "certificate.md").write_text(report.certificate_markdown(certificate), "utf-8")
    return certificate


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False), "utf-8")


def _write_curve(private: Path, curves: Mapping[str, Array], what: str) -> None:
    """Cumulative sums of every curve at 200 places or fewer."""
    totals = {name: np.cumsum(values) for name, values in curves.items()}
    length = min((len(total) for total in totals.values()), default=0)
    with open(private / "progress.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["users", *(f"{name}: total {what}" for name in totals)])
        if length:
            for users in np.unique(np.linspace(1, length, min(length, 200)).astype(int)):
                row = [f"{total[users - 1]:.6g}" for total in totals.values()]
                writer.writerow([users, *row])


def _write_pulls(path: Path, pulled: Any, classes: tuple[str, ...]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "arm"])
        writer.writerows(
            (user, classes[arm] if arm >= 0 else "") for user, arm in enumerate(pulled)
        )


def _plot(path: Path, curves: Mapping[str, Array], x: str, y: str) -> None:
    """Running averages over a tenth of the users, one curve per learner."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colors, styles = ["#1b6ca8", "#4a4a4a", "#c0392b", "#7f8c8d"], ["-", "--", "-", "-"]
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (name, values), color, style in zip(curves.items(), colors, styles, strict=False):
        window = max(len(values) // 10, 1)
        if len(values):
            smooth = np.convolve(values, np.ones(window) / window, mode="valid")
            x_values = np.arange(window, len(values) + 1)
            axes.plot(x_values, smooth, color=color, linestyle=style, linewidth=2, label=name)
    axes.set(xlabel=x, ylabel=y, title="running average over a tenth of the users", ylim=(0, None))
    if axes.lines:
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=130)
