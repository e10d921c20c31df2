"""The best of a secret, random number of fits, as one mechanism with one spend in the ledger.

After its spend is durable it opens the rows, and draws tries until a coin of probability γ falls:
each fits a candidate drawn from the grid, and scores it on the held-out rows.  A try runs on an
account of its own, in memory, which refuses more than the try's share for any person and draws
exact noise; what it writes there is thrown away.  Only the best try leaves, by its noisy score: its
candidate and its model.  How many there were, and which, does not.  A crash loses the whole charge.

Each try is dominated by N(μ, 1) against N(0, 1): for whom it learns from by the fit's account, for
whom is held out by the score, clipped to [0, 1] for each row, plus N(0, 1/μ²); the other part of
the output is the same under both neighbours, or computed from what left.  The price of the whole is
`RepeatAndSelect`.

What it does not cover: how long it takes tells about the number of tries, to whoever can watch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant, Delegated
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import TokenError
from privlearn.estimators.search_plan import Stopping
from privlearn.ledger import Ledger
from privlearn.losses import Loss
from privlearn.losses.budgets import B, GaussianDP
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.noise.exact.pool import below
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball
from privlearn.values.user_code import from_outside

SCORE_BITS: Final = 10
"""Scores of rows are whole numbers of 2^−10, in 0..2^10."""
_ROOM: Final = 1 + 1e-9  # For the rounding of a norm that is not above the bound

F = TypeVar("F")
RowScores = NDArray[np.int64]


class Opened(NamedTuple):
    """Inputs and targets; rows that cannot be used are NaN."""

    x: Array
    y: Array

    def __repr__(self) -> str:
        return f"<Opened: {len(self.y)} rows>"

    def part(self, users: range) -> Opened:
        """Of some of the users."""
        return Opened(self.x[users.start : users.stop], self.y[users.start : users.stop])


def sealed(x: Array, y: Array) -> Rows[Array]:
    """Inputs (n, d) and targets (n,), with a last column that tells null rows from zeros."""
    block = np.column_stack([x, y, np.ones(len(y))])
    return Rows.seal(block, users=range(len(y)))


@final
@dataclass(frozen=True)
class RandomStopping(Generic[F]):
    """The best of a random number of fits.

    Args:
        tries: law and price.
        candidates: k; a try is of one of them, each with the same probability.
        fit: learns candidate i of the rows of a part, and spends from it.
        numbers: of a fit, as the ledger keeps them.
        score: whole numbers of 2^−10 in 0..2^10 for rows, by a fit, shape (n,).
        inputs: of a row, each in [−1, 1].
        largest_target: bound on the absolute value of a target.
        learn: whom to learn from, the first users; all others are held out.
        told: what the ledger says of the grid.
    """

    tries: Stopping
    candidates: int
    fit: Callable[[int, Delegated[GaussianDP], Opened], F]
    numbers: Callable[[F], Array]
    score: Callable[[F, Opened], RowScores]
    inputs: int
    largest_target: float
    learn: range
    told: Sequence[Any] = ()

    def loss(self) -> Loss:
        return self.tries.loss

    def spend(self) -> Spend:
        longest = math.sqrt(self.inputs + self.largest_target**2 + 1) * _ROOM
        return Spend(
            "random-stopping",
            Ball(longest, self.inputs + 2),
            GaussianNoise(1 / self.tries.mu),
            own_loss=self.loss(),
            parameters={
                "law": "geometric",
                "mean_tries": self.tries.bound,
                "candidates": self.candidates,
                "learned_from": [self.learn.start, self.learn.stop],
                "grid": list(self.told),
            },
            exact=True,
        )

    def release(
        self, rows: Rows[Array], token: Token[B], noise: NoiseSource
    ) -> tuple[int, F, Released[Array]]:
        """Spends the token, and returns the best candidate with its fit, which are paid for.

        Args:
            rows: of `sealed`, those to learn from first.
            token: for all of them.
            noise: of the accountant.

        Returns:
            Index, fit, and both as numbers.

        Raises:
            TokenError: a fit failed; the charge stays, and why is not told.
        """
        spend = self.spend()
        token.check(rows, spend)
        with token.spend(spend) as receipt:
            opened = self._opened(receipt.open(rows))
            try:
                # a warning, or an error where the caller asked for one, would tell of a row
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    best, fitted = self._best(receipt, opened, noise)
            except BaseException as error:  # its message may tell of rows
                if from_outside(error):
                    raise
                raise TokenError(
                    "the search failed inside its spend; it stays charged, and why may depend on "
                    "rows and is not told here: fit a candidate on made-up rows"
                ) from None
            return best, fitted, receipt.release(np.r_[float(best), self.numbers(fitted)])

    def _opened(self, rows: Array) -> Opened:
        rows[rows[:, -1] == 0] = np.nan
        return Opened(rows[:, :-2], rows[:, -2])

    def _best(self, receipt: Receipt, rows: Opened, noise: NoiseSource) -> tuple[int, F]:
        coins = noise.pool()
        users = range(len(rows.y))
        held = rows.part(range(self.learn.stop, users.stop))
        best: tuple[int, int, F] | None = None
        while True:
            which = int(below(coins, self.candidates, 1)[0])
            fitted = self._try(which, rows, users, noise)
            noisy = self._noisy(int(self.score(fitted, held).sum()), receipt)
            # Tries that tie are exchangeable: whichever is kept, what leaves has the same law.
            if best is None or noisy > best[0]:
                best = noisy, which, fitted
            if below(coins, self.tries.bound, 1)[0] == 0:
                return best[1], best[2]

    def _noisy(self, total: int, receipt: Receipt) -> int:
        """⌊2^40·(μ·rows + Z)⌋, of a total in 2^−10 rows, exactly: 2^40·μ·rows is whole."""
        return total * self.tries.steps + int(receipt.draw_variates(1).floors[0])

    def _try(self, which: int, rows: Opened, users: range, noise: NoiseSource) -> F:
        cap = GaussianDP.from_mu_squared(self.tries.loss.mu_squared)
        account: CentralAccountant[GaussianDP] = CentralAccountant(
            cap, users=users, ledger=Ledger.memory(), noise=noise
        )
        part = account.delegate(cap, users=self.learn, label="try")
        return self.fit(which, part, rows.part(self.learn))
