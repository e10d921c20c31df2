"""One account for all that is asked: its currency, its plan, and its releases."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, final

from privlearn.accountants import CentralAccountant, Certificate, in_gaussian, in_zcdp
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.accountants.shown_numbers import up
from privlearn.accountants.tight_composition import QUICK
from privlearn.errors import BudgetError, LedgerError, PrivlearnError
from privlearn.ledger import Ledger
from privlearn.ledger.reader import iterate_records
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.rows import Rows, merge
from privlearn.rows.domains import Array
from privlearn.statistics.queries import InGroup, Query, Records
from privlearn.tables import Schema, Table
from privlearn.values.exact import float_down

_SPARE: Final = 1.002  # Of ε, for what a numerical composition adds
_AT_ONCE: Final = 2**22  # Numbers of contributions that are opened together
_LOOKED: Final = (
    "whoever wrote the schema had seen private values of these data: what the schema tells of them "
    "is not covered"
)


@final
@dataclass(frozen=True)
class Terms:
    """What is paid from.

    Args:
        budget: for all that is asked; None for what an accountant has left.
        ledger: a path, "auto", an open `Ledger`, or None for memory.
        accountant: instead of one of its own.
        simulate_noise: a seed, which certifies nothing.
        name: of the call, for a dated file.
    """

    budget: Any
    ledger: Any = None
    accountant: Any = None
    simulate_noise: int | None = None
    name: str = "describe"

    def check(self, schema: Schema) -> None:
        """All that can be wrong before a row is read.

        Raises:
            BudgetError: no budget.  TypeError, ValueError: not one, or two places to pay from.
            LedgerError: the file is there already.
        """
        if schema.person is not None:
            raise ValueError(
                f"schema.person = {schema.person!r}: statistics take one row for one person; make "
                "one row of each person's, or leave person= out, and the guarantee is for a row"
            )
        if self.accountant is not None:
            for name in ("ledger", "simulate_noise"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: is the accountant's; leave it out with accountant=")
            if self.budget is not None and type(self.budget) is not type(self.accountant.budget):
                raise BudgetError(
                    f"budget = {self.budget}: must be a part of the accountant's, such as "
                    "accountant.budget.share('1/4')"
                )
            return
        if self.budget is None:
            raise BudgetError("budget: state it, as ApproxDP(1, 1e-6) or PureDP(1)")
        if not isinstance(self.budget, ApproxDP | PureDP | ZCDP | GaussianDP):
            raise TypeError(
                f"budget = {self.budget!r}: must be ApproxDP(epsilon, delta), PureDP, ZCDP or "
                "GaussianDP"
            )
        if isinstance(self.ledger, str | os.PathLike) and self.ledger != "auto":
            _check_new(Path(self.ledger))

    def currencies(self) -> list[Currency]:
        """Caps that keep the promise, one of which is taken."""
        if self.accountant is not None:
            return [self.accountant.remaining() if self.budget is None else self.budget]
        if not isinstance(self.budget, ApproxDP):
            return [self.budget]
        if not self.budget.epsilon:
            raise BudgetError(f"budget = {self.budget}: noise needs a budget > 0")
        return [PureDP(self.budget.epsilon), in_gaussian(self.budget), in_zcdp(self.budget)]


@final
@dataclass(frozen=True)
class Planned:
    """Mechanisms at equal parts of a cap."""

    cap: Currency
    mechanisms: dict[str, Any]
    badness: float
    """Mean logarithm of the errors."""


def plan_for(queries: Sequence[Query], terms: Terms) -> Planned:
    """The plan whose errors are least, on a logarithmic mean; public in all that it looks at.

    Every query has an equal part of the budget: pure ε with Laplace noise, or Gaussian noise
    counted in Gaussian DP or zCDP.

    Raises:
        BudgetError: no currency has a price for what is asked, or a budget of 0.
    """
    made: list[Planned] = []
    refused: Exception | None = None
    for cap in terms.currencies():
        try:
            planned = _at(cap, queries)
        except (BudgetError, ValueError) as error:
            refused = error
            continue
        if isinstance(cap, ZCDP) and isinstance(terms.budget, ApproxDP):
            planned = _up_to(terms.budget, planned, queries)
        made.append(planned)
    if not made:
        assert refused is not None
        raise refused
    return min(made, key=lambda planned: planned.badness)


def _at(cap: Currency, queries: Sequence[Query]) -> Planned:
    part = cap.share(Fraction(1, len(queries)))
    each = [query.mechanisms(part) for query in queries]
    errors = [query.error(found) for query, found in zip(queries, each, strict=True)]
    badness = math.fsum(map(math.log, errors)) / len(errors)
    joined = {label: mechanism for found in each for label, mechanism in found.items()}
    return Planned(cap, joined, badness)


def _up_to(promise: ApproxDP, planned: Planned, queries: Sequence[Query]) -> Planned:
    """The same with less noise, where its own composition is below what ρ promises.

    ε falls about as noise grows, which finds the factor; that it holds is then computed.
    """
    target, delta = float_down(promise.epsilon), float_down(promise.delta)
    factor = _epsilon(planned, delta) / target * _SPARE
    for _ in range(3):
        if not 0 < factor < 1:
            break
        rho = Fraction(planned.cap.amounts[0]) / Fraction(factor) ** 2
        better = _at(ZCDP(rho.limit_denominator(10**12)), queries)
        reached = _epsilon(better, delta)
        if reached <= target:
            return better
        factor *= reached / target * _SPARE
    return planned


def _epsilon(planned: Planned, delta: float) -> float:
    losses = Counter(mechanism.loss() for mechanism in planned.mechanisms.values())
    return evaluate(list(losses.items()), effort=QUICK).epsilon(delta).value


@final
@dataclass(frozen=True)
class Answers:
    """What was found, and what it cost."""

    summaries: list[Sequence[Any]]
    """By query, and in each by group."""
    guarantee: str
    certificate: Certificate | None


def answers(queries: Sequence[Query], table: Table, terms: Terms) -> Answers:
    """Commits one plan for all queries, and asks them.

    Raises:
        BudgetError, LedgerError, OSError: the account cannot be opened, or has too little left.
    """
    n = len(table)
    if terms.accountant is not None and len(terms.accountant.users) != n:
        raise BudgetError(
            f"accountant: it is for {len(terms.accountant.users):,} users, and there are {n:,} "
            f"rows: make it with users=range({n})"
        )
    shared = terms.accountant
    if shared is not None and terms.budget is not None:
        left = shared.remaining()
        if not left.covers(terms.budget):
            raise BudgetError(f"budget = {terms.budget}: the accountant has {left} left")
    planned = plan_for(queries, terms)
    if terms.accountant is not None:
        within = _Releasing(terms.accountant, planned, committed=False)
        found = [query.ask(table, planned.mechanisms, within) for query in queries]
        return Answers(found, "part of an account, whose certificate states the guarantee", None)
    seed = terms.simulate_noise
    noise = NoiseSource.secure() if seed is None else NoiseSource.simulation(seed)
    told = ["bounds and values of the columns are declared public"]
    told += [_LOOKED] * table.schema.looked_at_data
    book, path = _book(terms)
    accountant: CentralAccountant[Any] = CentralAccountant(
        planned.cap,
        users=range(n),
        ledger=book,
        noise=noise,
        side_information=told,
    )
    with accountant:
        accountant.commit(**planned.mechanisms)
        releasing = _Releasing(accountant, planned, committed=True)
        found = [query.ask(table, planned.mechanisms, releasing) for query in queries]
    delta = float(terms.budget.delta) if isinstance(terms.budget, ApproxDP) else None
    certificate = accountant.certificate(delta)
    return Answers(found, _told(certificate, terms, path), certificate)


class _Releasing:
    """Seals records in blocks, and releases by the mechanism of a label."""

    def __init__(self, accountant: Any, planned: Planned, *, committed: bool) -> None:
        self._accountant, self._planned, self._committed = accountant, planned, committed
        self._n = len(accountant.users)

    def __call__(self, label: str, records: Records) -> Array:
        mechanism, users = self._planned.mechanisms[label], self._accountant.users
        size = max(_AT_ONCE // mechanism.domain.size, 1)
        given: Any
        if self._n <= size or not hasattr(mechanism, "partial"):
            given = _sealed(records, users, slice(None))
        else:
            parts = [slice(i, min(i + size, self._n)) for i in range(0, self._n, size)]
            given = merge(*(mechanism.partial(_sealed(records, users, part)) for part in parts))
        if self._committed:
            found: Array = self._accountant.release(label, given).value
            return found
        token = self._accountant.issue(mechanism.loss(), users=users, label=label)
        release = mechanism.release if isinstance(given, Rows) else mechanism.release_partial
        value: Array = release(given, token).value
        return value


def _sealed(records: Records, users: range, part: slice) -> Rows[Any]:
    own = users[part]
    if isinstance(records, InGroup):
        block: Any = InGroup(records.record[part], records.group[part])
    else:
        block = records[part]
    return Rows.seal(block, users=own)


def _book(terms: Terms) -> tuple[Ledger, Path | None]:
    if isinstance(terms.ledger, Ledger):
        return terms.ledger, None
    if terms.ledger is None:
        return Ledger.memory(), None
    path = Path(terms.ledger)
    if terms.ledger == "auto":
        stem = f"privlearn-{terms.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        path, number = Path(f"{stem}.db"), 2
        while path.exists():
            path, number = Path(f"{stem}-{number}.db"), number + 1
    return Ledger.create(path), path


def _check_new(path: Path) -> None:
    if not path.exists():
        return
    found = "there is a file, which is no ledger; choose another path"
    with suppress(PrivlearnError, OSError):
        kinds = [record.body.get("entry") for record in iterate_records(path, vouched=True)]
        found = (
            "it holds finished statistics"
            if "close" in kinds
            else ("it holds statistics that were cut off, which count with their whole budget")
        )
        found += (
            f"; `privlearn audit {path}` shows their guarantee. Others are paid for once more, and "
            "need another path, or ledger='auto'"
        )
    raise LedgerError(f"ledger = {str(path)!r}: {found}")


def _told(certificate: Certificate, terms: Terms, path: Path | None) -> str:
    """The guarantee in one line."""
    if certificate.simulation:
        return "simulated noise: nothing is guaranteed"
    if certificate.problems or math.isinf(certificate.epsilon):
        return f"nothing is certified: {'; '.join(certificate.problems)}"
    found = f"ε = {up(certificate.epsilon)}"
    if isinstance(terms.budget, ApproxDP):
        found += f" at δ = {up(float(terms.budget.delta))}"
    elif certificate.delta:
        found += f" at δ = {up(certificate.delta)}"
    where = "no file of the ledger was kept" if path is None else f"ledger {path}"
    return f"{found} for changing the record of one person; {where}"
