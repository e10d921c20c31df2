"""Auto loans from your own copy of Columbia's CPRM-12-001: personalised prices, as Han et al. did.

The file (``CPRM_AutoLOan_OnlineAutoLoanData.csv``, Center for Pricing and Revenue Management) may
not be passed on and does not ship.  The recipe is Appendix F of Han, Liang, Wang and Zhang,
"Generalized linear bandits with local differential privacy" (2021): impute the price of every loan,
fit a logit demand model with features (x, p·x), take it for the truth, and let a bandit quote one
of 25 prices to customers drawn from the file.

Where the appendix is silent the choice is that of its authors' public code, or ours and a named
constant here.  **One thing does not fit together:** the code discounts a loan's *monthly* payments
at the one-month rate as if that were a rate per month, which makes many prices negative, and its
prices run from 0 to −25,000; the paper's run from 0 to 25,000.  `load_cprm` takes any monthly rate,
and `CprmLoans.inside` tells how many of the imputed prices lie among those that are quoted.

Everything `load_cprm` and `cprm_market` compute is computed from people's loans without noise.  A
run on a market is private towards the *simulated* customers; the file is its public side
information and gets no guarantee.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import expit

from privlearn.errors import DataError
from privlearn.rows.domains import Array
from privlearn.storage.foreign_files import open_regular
from privlearn.values.validate import count, positive
from privlearn_studies.data.csv_tables import (
    LONGEST_LINE,
    BytesRead,
    CsvColumn,
    flag,
    label,
    number,
    open_table,
    require_declared,
)
from privlearn_studies.simulated.pricing import PricingMarket, pricing_market

CAR_TYPES: Final = ("N", "R", "U")
"""New, refinanced, used."""

COLUMNS: Final = (
    number("Primary_FICO", 0, 1000),
    number("Term", 1, 360, whole=True),
    number("Amount_Approved", 1),
    label("CarType", CAR_TYPES),
    number("Competition_rate", 0, 100),
    number("onemonth", 0, 100),
    number("mp", 0),
    flag("apply"),
)
"""The columns that are read, with what a cell may hold; they may stand anywhere in the file.

Credit score; months; US dollars; new, refinanced or used car; the main rival's rate and the
one-month prime-rate proxy, in percent; monthly payment, US dollars; whether the offer was taken.
"""

BOUNDS: Final = {
    "Primary_FICO": (500.0, 850.0),
    "Term": (0.0, 84.0),
    "Amount_Approved": (0.0, 60_000.0),
    "onemonth": (0.0, 6.0),
    "Competition_rate": (0.0, 12.0),
}
"""Public bounds of the numbers, which are cut to them and scaled to [0, 1]; ours, from the units
and general knowledge of the market, without the file."""

FEATURES: Final = (*BOUNDS, *(f"CarType:{kind}" for kind in CAR_TYPES), "constant")
"""The nine features x of a customer, each in [0, 1]."""

HIGHEST_PRICE: Final = 25_000.0
N_PRICES: Final = 25
"""Prices are this many, even from 0 to the highest one, US dollars (Appendix F)."""

SIDE_INFORMATION: Final = (
    "auto loans: the simulated customers' true demand, a logit fitted to which offers were taken "
    "at which imputed price",
    "auto loans: the features that simulated customers are drawn from; the guarantee is about the "
    "simulated customers and not about the people of the file",
    "auto loans: the number of loans, the share that was taken, and the share with an imputed "
    "price among those that are quoted",
)
"""What a certificate of the auto-loan market has to declare."""


@dataclass(frozen=True, eq=False)
class CprmLoans:
    """The n loans of the file; the arrays are read-only."""

    features: Array
    """Features in [0, 1], in the order of `FEATURES`, shape (n, 9)."""
    price: Array
    """Imputed price: present value of all payments minus the amount, US dollars, shape (n,)."""
    applied: Array
    """Whether the offer was taken, 0 or 1, shape (n,)."""
    side_information: tuple[str, ...] = SIDE_INFORMATION
    """What the accountant has to be told."""

    @property
    def inside(self) -> float:
        """The share of loans whose imputed price lies between 0 and `HIGHEST_PRICE`.

        Prices that are quoted beyond those of the file rest on extrapolation.
        """
        return float(((self.price >= 0) & (self.price <= HIGHEST_PRICE)).mean())


def load_cprm(
    path: str | os.PathLike[str],
    *,
    declare_public: bool = False,
    monthly_rate: float | None = None,
    progress: BytesRead = lambda n: None,
) -> CprmLoans:
    """The loans of ``CPRM_AutoLOan_OnlineAutoLoanData.csv``.

    Price = mp · Σ_{τ=1..Term} (1 + rate)^{−τ} − Amount_Approved.

    Args:
        path: the file, plain CSV with a header; columns that are not in `COLUMNS` are not looked
            at.
        declare_public: must be True; says that the statistics in `SIDE_INFORMATION` are public.
        monthly_rate: the rate of the formula, per month, as a fraction; by default every loan's
            onemonth/100, as in the authors' code.  Ban and Keskin's 0.12% is 0.0012.
        progress: is told the bytes read since its last call.

    Raises:
        ValueError: ``declare_public`` is not True, or a rate that is not a finite number > 0.
        DataError: the file cannot be read, or not as described (file, line and column are named).
    """
    if monthly_rate is not None:
        monthly_rate = positive(monthly_rate=monthly_rate)
    require_declared(declare_public, "auto loans", SIDE_INFORMATION)
    read = _read(path, progress)
    term, amount = read["Term"], read["Amount_Approved"]
    rate = read["onemonth"] / 100 if monthly_rate is None else np.full(len(term), monthly_rate)
    price = read["mp"] * _present_value(rate, term) - amount
    numbers = [
        np.clip((read[name] - low) / (high - low), 0, 1) for name, (low, high) in BOUNDS.items()
    ]
    kinds = [(read["CarType"] == place).astype(np.float64) for place in range(len(CAR_TYPES))]
    features = np.stack([*numbers, *kinds, np.ones(len(term))], axis=1)
    if read["apply"].min() == read["apply"].max():
        raise DataError(
            f"{path}: column apply: found only {read['apply'][0]:g}, accepted is a file with both "
            "answers, from which demand can be fitted"
        )
    for values in (features, price, read["apply"]):
        values.flags.writeable = False
    return CprmLoans(features, price, read["apply"])


def check_declared(declare_public: bool) -> None:
    """For commands: refuses in one line, before a file is opened.

    Raises:
        ValueError: ``declare_public`` is not True.
    """
    if not declare_public:
        raise ValueError(
            "declare_public: add --declare-public if these statistics of the people in the file, "
            f"which are used without noise, may be public: {'; '.join(SIDE_INFORMATION)}"
        )


def _present_value(rate: Array, term: Array) -> Array:
    """Σ_{τ=1..term} (1 + rate)^{−τ}, which is the term for rate 0."""
    safe = np.where(rate > 0, rate, 1.0)
    return np.asarray(np.where(rate > 0, -np.expm1(-term * np.log1p(safe)) / safe, term))


def _read(path: str | os.PathLike[str], progress: BytesRead) -> dict[str, Array]:
    """The columns of `COLUMNS`, each of shape (n,)."""
    with open_table(path, _in_file_order(path)) as table:
        table.check_header()
        places = [table.place[column.name] for column in COLUMNS]
        rows = [
            [table.value(at, cells, place) for place in places]
            for at, cells in table.rows(progress, final_newline=False)
        ]
    if not rows:
        raise DataError(f"{path} has a header and no loans")
    values = np.array(rows, dtype=np.float64)
    return {column.name: values[:, place].copy() for place, column in enumerate(COLUMNS)}


def _in_file_order(path: str | os.PathLike[str]) -> list[CsvColumn]:
    """The columns of the file, of which those that are not needed accept everything.

    Raises:
        DataError: the file cannot be opened, or lacks columns.
    """
    try:
        with open_regular(path) as file:
            first = file.readline(LONGEST_LINE)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    cells = first.decode("utf-8-sig", errors="replace").rstrip("\r\n").split(",")
    names = [cell[1:-1] if cell[:1] == cell[-1:] == '"' else cell for cell in cells]
    needed = {column.name: column for column in COLUMNS}
    missing = [name for name in needed if name not in names]
    if missing and first[:2] not in (b"PK", b"\x1f\x8b"):
        raise DataError(
            f"{path}, line 1: the header lacks {', '.join(missing)}. Needed, in any order: "
            f"{', '.join(needed)}"
        )
    return [
        needed.get(name) or CsvColumn(name, "anything", lambda cell: math.nan) for name in names
    ]


def fitted_demand(loans: CprmLoans) -> Array:
    """θ of the logit demand with features (x, p·x), shape (18,), p in units of `HIGHEST_PRICE`.

    scikit-learn's `LogisticRegression` without intercept, as in the authors' code, with its default
    penalty; they scale columns by their least and largest value, here public bounds do.  **Not
    private.**
    """
    from sklearn.linear_model import LogisticRegression  # slow to import

    price = (loans.price / HIGHEST_PRICE)[:, None]
    design = np.concatenate([loans.features, price * loans.features], axis=1)
    fit = LogisticRegression(fit_intercept=False, max_iter=10_000).fit(design, loans.applied)
    return np.asarray(fit.coef_[0], dtype=np.float64)


def cprm_market(
    loans: CprmLoans,
    *,
    seed: int,
    horizon: int = 20_000,
) -> PricingMarket:
    """Simulated customers, drawn with replacement from the file, who are quoted one of 25 prices.

    Contexts are (x, p·x)/√14 with p in units of `HIGHEST_PRICE`: d = 18, norm <= 1.  As in the
    paper the reward is the answer, so that the best price is the one that is most likely taken,
    whatever it earns; `PricingMarket.revenue` tells what that is.

    Contexts take 72 MB for the default horizon, 360 MB for the paper's 100,000.

    Args:
        loans: from `load_cprm`; give its ``side_information`` to the accountant.
        seed: of the customers and their random choices.
        horizon: number of customers.

    Raises:
        ValueError: seed < 0 or horizon < 1.
    """
    rng = np.random.default_rng([count(seed=seed, at_least=0), 707])
    drawn = rng.integers(len(loans.features), size=count(horizon=horizon))
    theta, own = fitted_demand(loans), loans.features[drawn]
    d = len(FEATURES)
    shares = np.linspace(0.0, 1.0, N_PRICES)
    acceptance = expit((own @ theta[:d])[:, None] + (own @ theta[d:])[:, None] * shares)
    return pricing_market(
        _contexts(own, shares),
        HIGHEST_PRICE * shares,
        acceptance,
        rng,
        unit="US dollars",
        objective="acceptance",
        feature_names=[*FEATURES, *(f"price·{name}" for name in FEATURES)],
        side_information=SIDE_INFORMATION,
        examples={
            f"FICO {score}": _contexts(_customer(score), shares)[0] for score in (600, 700, 800)
        },
    )


def _contexts(own: Array, shares: Array) -> Array:
    """(x, p·x) of all customers and prices, (n, K, 18), of norm <= 1."""
    d = len(FEATURES)
    contexts = np.empty((len(own), len(shares), 2 * d))
    # Five numbers, one car type and the constant, each at most 1, and the same times the price.
    norm = math.sqrt(2 * (len(BOUNDS) + 2))
    contexts[..., :d] = own[:, None] / norm
    contexts[..., d:] = shares[:, None] * own[:, None] / norm
    return contexts


def _customer(score: float) -> Array:
    """Features, (1, 9), of a made-up customer: a new car, other numbers in mid-range."""
    low, high = BOUNDS["Primary_FICO"]
    middle = [0.5] * (len(BOUNDS) - 1)
    kinds = [float(kind == "N") for kind in CAR_TYPES]
    return np.array([[(score - low) / (high - low), *middle, *kinds, 1.0]])
