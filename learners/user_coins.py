"""Public coins of each user, which follow from a public seed and the arrival number alone.

Nothing has to be kept, or drawn for users who never come: after a restart they are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array

_TOGETHER = 1_024  # Users whose coins are drawn at once


@final
class UserCoins:
    """Uniform numbers of users.

    Args:
        seed: public, with a number for each use of coins.
        each: numbers of one user.
        made: what is made of them, number by number.
    """

    def __init__(
        self, seed: tuple[int, ...], each: int, made: Callable[[Array], Array] = np.asarray
    ) -> None:
        self._seed, self._each, self._made = seed, each, made
        self._drawn: tuple[int, Array] = -1, np.zeros((0, each))

    def of(self, users: NDArray[np.int64]) -> Array:
        """Of users with these arrival numbers, made of uniform numbers in [0, 1), (n, each)."""
        if len(users) == 1:
            chunk, place = divmod(int(users[0]), _TOGETHER)
            return self._chunk(chunk)[place : place + 1]
        chunks = users // _TOGETHER
        found = np.empty((len(users), self._each))
        for chunk in np.unique(chunks):
            some = chunks == chunk
            found[some] = self._chunk(int(chunk))[users[some] % _TOGETHER]
        return found

    def _chunk(self, chunk: int) -> Array:
        at, drawn = self._drawn
        if at != chunk:
            coins = np.random.default_rng([*self._seed, chunk]).random((_TOGETHER, self._each))
            drawn = self._made(coins)
            self._drawn = chunk, drawn
        return drawn
