"""Settings of runs: what stands in a TOML file, and the options of ``privlearn run``.

All of it is public.  The text below a setting is its help on the command line.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from privlearn.losses.budget_texts import (
    LARGEST,
    LEAST,
    MOST_SIMULATED,
    Centre,
    Exponent,
    HeldOut,
    Horizon,
    ItemCount,
    PublicBound,
    parse_budget,
)
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP
from privlearn.runs.persons import PersonConfig
from privlearn.runs.persons import RunConfig as RunConfig
from privlearn.runs.shipped_tables import SHIPPED

_METHODS: Mapping[str, tuple[str, ...]] = {
    "tofw": ("whitened", "plain", "buffered"),
    "pofw": ("auto", "thresholds", "choices", "vertices"),
    "hdb": ("least-squares", "gaussian"),
}
NO_GAUSSIAN = ("choices", "vertices")  # Methods whose choices have no price in `GaussianDP`
LowHigh = tuple[float, float]


def parts(value: Any) -> Any:
    """Parts of a text with commas between them."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in next(csv.reader([value], skipinitialspace=True), [""])]


def _bounds(value: Any) -> Any:
    """Bounds from a text such as ``age=0:120,income=0:1e5``."""
    if not isinstance(value, str):
        return value
    found: dict[str, LowHigh] = {}
    for part in parts(value):
        name, _, interval = part.rpartition("=")
        try:
            low, high = (float(end) for end in interval.split(":"))
        except ValueError:
            raise ValueError(f"{part!r} must be name=low:high") from None
        if not name.strip() or name.strip() in found:
            raise ValueError(f"{part!r} must name a column, each once")
        found[name.strip()] = (low, high)
    return found


def check_interval(name: str, interval: LowHigh) -> None:
    """Raises ValueError unless both ends are finite, and the interval neither empty nor huge."""
    low, high = interval
    if not (max(abs(low), abs(high)) <= LARGEST and high - low >= LEAST):  # NaN is not
        raise ValueError(
            f"{name} = {low:g}:{high:g}: must be finite, low < high, within ±{LARGEST:g} and at "
            f"least {LEAST:g} apart"
        )


Names = Annotated[tuple[str, ...], BeforeValidator(parts)]
"""Names, or a text with commas between them."""
Bounds = Annotated[dict[str, LowHigh], BeforeValidator(_bounds)]
"""Intervals by the name of a column, or a text."""


VISITS = 5  # Of each simulated person who comes back


class ChoiceConfig(PersonConfig):
    """Settings of one run on choices."""

    data: str = "cars"
    """'cars' (the shipped survey), or a CSV file in long form."""
    task: Literal["market", "returning", "logged"] = "logged"
    """'market' serves simulated people (cars only), 'returning' people who come five times each,
    and 'logged' learns from logged choices."""
    budget: str = "rho=1"
    """rho=…, mu=… or epsilon=…,delta=…"""
    horizon: Horizon | None = None
    """Number of users (of rows or visits, where people come back), public."""
    items: ItemCount | None = None
    """Items per user, or the most of a situation (your own file)."""
    situation: str | None = None
    """Column with the id of each line's choice situation, whose lines may stand anywhere and be
    fewer than items (your own file); default: every so many lines as items are one user's."""
    scale: PublicBound = 1.0
    """Public divisor of the features (CSV)."""
    outside: bool = False
    """May users choose nothing (CSV)?"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.people is not None and self.data == "cars":
            raise ValueError("people: a column of your own file; each row of the cars is a person")
        if self.situation is not None and (self.people is not None or self.data == "cars"):
            raise ValueError(
                "situation: a column of your own file; each situation is then one record, whose "
                "lines can be no other person's: leave people out"
            )
        if "chosen" in (self.people, self.situation):
            raise ValueError("people, situation: the column 'chosen' says what was chosen")
        if self.data != "cars":
            if self.task != "logged":
                raise ValueError(f"task = {self.task!r} simulates people for the shipped cars only")
            if self.items is None or self.horizon is None:
                raise ValueError(
                    "items and horizon are public counts: state both for your own data"
                )
        elif self.horizon is not None and self.horizon > MOST_SIMULATED:
            raise ValueError(
                f"horizon = {self.horizon}: must be at most {MOST_SIMULATED:,} simulated people"
            )
        if self.task == "returning" and (self.horizon or 0) % VISITS:
            raise ValueError(
                f"horizon = {self.horizon}: is the number of visits, of which everybody makes "
                f"{VISITS}; must be a multiple of {VISITS}"
            )
        parse_budget(self.budget)
        return self

    def cap(self) -> tuple[Currency | ApproxDP, type[Currency] | None]:
        """The budget, and the currency to count an (ε, δ) promise in (all losses are Gaussian)."""
        budget = parse_budget(self.budget)
        return budget, GaussianDP if isinstance(budget, ApproxDP) else None


class TableConfig(PersonConfig):
    """Settings of one run on a table."""

    learner: Literal["tofw", "pofw", "hdb"]
    data: str
    """diabetes, breast_cancer, digits, or your CSV or Parquet file."""
    schema_file: str | None = None
    """TOML or JSON file that says what the columns are, as privlearn schema drafts it; in place of
    target, columns, classes and bounds."""
    target: str | None = None
    """Column to predict."""
    columns: Names | None = None
    """Features, a,b,…; default: all others."""
    classes: Names | None = None
    """Labels of a classification, no,yes (the second counts as 1); or arms (hdb)."""
    bounds: Bounds = Field(default_factory=dict)
    """Public bounds of columns, a=0:120,b=-1:1,…; values beyond are moved onto them."""
    feature_bound: PublicBound | None = None
    """All other columns lie in ± this; public."""
    row_bound: PublicBound | None = None
    """Shrink longer scaled rows onto this dual norm, in learning and in forecasts; public (tofw).
    Default: the largest that the declared bounds allow, so that no row is shrunk."""
    label_bound: PublicBound | None = None
    """Largest |label − centre|, public (regression)."""
    label_centre: Centre | None = None
    """Public centre of the labels; default 0."""
    scale: str = "declared"
    """'declared'; scaling by the data is refused."""
    p: Exponent | None = None
    """Of the ℓp ball (tofw); default 2."""
    radius: PublicBound | None = None
    """Of the set of parameters, for scaled rows and labels."""
    method: str | None = None
    """tofw: whitened, plain, buffered; pofw: auto, thresholds, choices, vertices; hdb:
    least-squares, gaussian.  The first is the default."""
    sparse: bool = False
    """Few columns matter: DP-HDB, not least squares (hdb)."""
    budget: str = "rho=1"
    """rho=…, mu=… or epsilon=…,delta=…"""
    horizon: Horizon | None = None
    """Number of users (of rows or visits, where people come back), public."""
    held_out: HeldOut | None = None
    """Further rows that score the fit, for the operator, drawn by the seed from horizon + held_out
    rows; default for shipped tables: a fifth of the rows."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.scale != "declared":
            raise ValueError(
                f"scale = {self.scale!r}: refused. Scaling by minima, means or deviations of the "
                "rows would release them unpaid; declare public bounds instead (bounds, "
                "feature_bound, label_bound), from units or from what is known without these data"
            )
        for name, interval in self.bounds.items():
            check_interval(f"bounds: {name}", interval)
        if self.data not in SHIPPED:
            if self.target is None and self.schema_file is None:
                raise ValueError(
                    "target: name the column of your file that is to be predicted (data = "
                    f"{self.data!r} is none of the shipped {', '.join(SHIPPED)})"
                )
            if self.horizon is None:
                raise ValueError("horizon: the number of users is a public count; state it")
        elif self.people is not None:
            raise ValueError("people: a column of your own file; each shipped row is a person")
        self._fits_learner()
        budget = parse_budget(self.budget)
        if isinstance(budget, GaussianDP) and self.method in NO_GAUSSIAN:
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
            raise ValueError("sparse: least squares assumes none; take gaussian")
        if self.pooled and self.learner == "hdb" and self.bandit() == "least-squares":
            raise ValueError(
                "pooled: least squares learns from rows of one arm each, and several of a person "
                "make none; take per_batch = 1, or sparse"
            )
        if self.radius is not None and self.learner == "hdb" and self.bandit() == "least-squares":
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
            if self.data not in SHIPPED and self.classes is None and self.schema_file is None:
                raise ValueError("classes: name the classes of the target, which are the arms")
            if self.held_out:
                raise ValueError("held_out: a bandit is scored on the users it serves")

    def bandit(self) -> str:
        return self.method or ("gaussian" if self.sparse else "least-squares")

    def cap(self) -> tuple[Currency | ApproxDP, type[Currency] | None]:
        budget = parse_budget(self.budget)
        if not isinstance(budget, ApproxDP):
            return budget, None
        return budget, ZCDP if self.method in NO_GAUSSIAN else GaussianDP
