"""Sums that are made apart, and then show themselves, miss rows, or are released unpaid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from faults.cases import Fault, LawCase
from faults.third_party import ExactSum
from privlearn.checking.laws.mechanisms import check_partial_sums
from privlearn.contract.partial_sums import partial_sum
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Array
from privlearn.values.grid import sum_of_rows


class MadeApart(ExactSum):
    """A noisy sum whose rows may be added up apart, which is right; the others override a step."""

    def partial(self, rows: Rows[Array]) -> Any:
        """The sealed sum over some rows."""
        return partial_sum(self.spend(), rows)

    def release_partial(self, total: PartialSum, token: Token[Any]) -> Any:
        """Releases what `release` would on all rows."""
        token.check_total(total, self.spend())
        with token.spend(self.spend()) as receipt:
            return self._let_out(receipt, total)

    def _let_out(self, receipt: Receipt, total: PartialSum) -> Released[Array]:
        steps = receipt.open_total(total) + receipt.draw_integers((self.domain.size,))
        return receipt.release(self.grid_of(self.spend()).values(steps))

    def grid_of(self, spend: Spend) -> Any:
        """The public grid."""
        return spend.grid


@dataclass
class Shown:
    """A sum that anybody can look at."""

    users: range
    total: Array


class ShowsItsPartials(MadeApart):
    """What a machine adds up comes back as plain numbers, for whoever collects it."""

    def partial(self, rows: Rows[Array]) -> Any:
        added: list[Array] = []

        def add(block: Array) -> Array:
            steps = self.domain.integers(np.nan_to_num(block), self.grid_of(self.spend()))
            added.append(sum_of_rows(steps))
            return block

        rows.map_rows(add)
        return Shown(rows.users, np.sum(added, axis=0))


class NamesItsLargest(MadeApart):
    """A sealed sum says beside it, in its public terms, how large its largest row was."""

    def partial(self, rows: Rows[Array]) -> Any:
        seen: list[float] = []

        def peek(block: Array) -> Array:
            seen.append(float(np.nan_to_num(np.abs(block), posinf=0.0).max(initial=0.0)))
            return block

        rows.map_rows(peek)
        made = partial_sum(self.spend(), rows)
        terms = {**made.terms, "largest": max(seen, default=0.0)}
        total = PartialSum._opened(made)
        return PartialSum(made.users, total, terms, made.functions, None, None)


class LeavesOutTheFirst(MadeApart):
    """Each machine's first row, taken for a header, is in no sum that it makes."""

    def partial(self, rows: Rows[Array]) -> Any:
        first: Rows[Array] = Rows.null(rows.users[:1])
        rest = [rows.slice(rows.users[1:])] if len(rows) > 1 else []
        return partial_sum(self.spend(), Rows.concat([first, *rest]))


class ReleasesUnpaid(MadeApart):
    """The total is taken for released already: noise is added, and no token spent."""

    def release_partial(self, total: PartialSum, token: Token[Any]) -> Any:
        steps = PartialSum._opened(total)
        noise = np.random.default_rng(0).normal(scale=self.std, size=self.domain.size)
        return self.grid_of(self.spend()).values(steps) + noise


_SOURCE = "sums of several machines as they are usually collected; docs/how-to/partitions.md"
_RECORDS = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, -0.5], [9.0, 0.1], [-1.0, 0.0], [0.2, 0.3]])


def _fault(kind: type[MadeApart]) -> Fault:
    return Fault(
        f"partial sums: {kind.__name__}",
        kind.__doc__ or "",
        _SOURCE,
        LawCase(kind, _RECORDS, only=check_partial_sums),
        LawCase(MadeApart, _RECORDS, only=check_partial_sums),
    )


FAULTS = tuple(map(_fault, (ShowsItsPartials, NamesItsLargest, LeavesOutTheFirst, ReleasesUnpaid)))
