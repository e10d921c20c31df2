"""Ways of getting exact noise wrong, each planted in this package and seen by a check."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from faults.cases import ExactCase
from mutant_cases import LawsOfDomain, against_own_loss, buffered, gaussian_sum, record
from mutation import Edit, InspectionCase, Mutant
from table_building import proved_error

from privlearn.errors import NoiseSamplerError
from privlearn.mechanisms.exact_choices import NoisyScores
from privlearn.mechanisms.vertices import SimplexVertices
from privlearn.noise.exact import fast, pool
from privlearn.noise.exact.pool import Keystream, NoisePool, SeededWords
from privlearn.rows.domains import Ball

# What is looked at --------------------------------------------------------------------------------


def paths_differ() -> str | None:
    """Whether the table and integer arithmetic give different floors, on a few words."""
    try:
        pool.check_sampler()
    except NoiseSamplerError as error:
        return str(error)
    return None


_CELL = 3_217


def bound_is_unproved() -> str | None:
    """Whether the error of a cell is larger than its table says."""
    table = vars(pool)["shipped_tables"]()[0]
    numbers = [float(x) for x in table.coefficients[:, _CELL]]
    proved = proved_error(table.family, _CELL, int(table.base[_CELL]), numbers)
    said = float(table.error[_CELL])
    return f"an error of {proved:.3g} is proved, {said:.3g} stated" if proved > said else None


def words_come_again() -> str | None:
    """Whether the bits of slow draws are those of other draws, or come twice."""
    source = Keystream()
    words, more = source.words(64).tolist(), [source.more() for _ in range(8)]
    if set(words) & set(more):
        return "bits of a slow draw are the word of another draw"
    return "two slow draws have the same bits" if len(set(more)) < len(more) else None


class _Small:
    """Words so small that 63 bits do not tell the floor, and further bits from a seed."""

    def __init__(self) -> None:
        self._seeded = SeededWords(5)

    def words(self, n: int) -> Any:
        return np.arange(2, 2 * n + 2, 2).astype(np.uint64)

    def more(self) -> int:
        return self._seeded.more()


def draws_contradict() -> str | None:
    """Whether a variate that is refined is another one than was drawn."""
    drawn = pool.variates("normal", _Small(), 20)
    again = [drawn.refined(i, 40) for i in range(len(drawn))]
    differ = sum(x != y for x, y in zip(again, drawn.floors.tolist(), strict=True))
    return (
        f"{differ} of {len(drawn)} slow draws are others when they are refined" if differ else None
    )


@dataclass(frozen=True)
class _Far:
    """Two variates beyond 2^22, where floors end; the second one is 16 times as large."""

    floors: Any

    def refined(self, i: int, bits: int) -> int:
        return 1 << (24 if i == 0 else 28) + bits


def saturated_noise_decides() -> str | None:
    """Whether a choice is made by floors that ended, instead of the noise itself."""
    noise = _Far(np.full(2, 2**62))
    scores = NoisyScores(SimplexVertices(2), np.array([[2**40, 0]]), np.array([2.0**39]), noise)
    found = int(scores.largest(1)[0, 0])
    return None if found == 1 else "the smaller noise wins, by a score that it is far above"


class _Interrupted:
    """A table; another thread draws when its rows are looked up, in the middle of a draw."""

    def __init__(self, table: Any) -> None:
        self.family, self.rows, self._rows, self._left = table.family, self, table.rows, 1

    def take(self, *where: Any) -> Any:
        if self._left:
            self._left = 0
            _elsewhere(lambda: pool.variates("normal", SeededWords(2), 1000))
        return self._rows.take(*where)


def _elsewhere(call: Callable[[], Any], seconds: float | None = None) -> bool:
    """Whether a call in another thread ends, in so many seconds."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def threads_overwrite() -> str | None:
    """Whether a draw changes when another thread draws in the middle of it."""
    table, source = vars(pool)["shipped_tables"]()[0], SeededWords(1)
    words = source.words(1000)
    alone, _ = fast.floors(table, words, source.more)
    table_between: Any = _Interrupted(table)
    found: list[Any] = []
    _elsewhere(lambda: found.append(fast.floors(table_between, words, source.more)[0]))
    differ = int(np.count_nonzero(alone != found[0]))
    return f"{differ} of 1000 draws are other ones beside another thread" if differ else None


class _Waiting:
    """Words; while the first ones are made another thread asks the pool that they are for."""

    def __init__(self) -> None:
        self._seeded, self.pool, self.entered = SeededWords(3), NoisePool(self), False
        self._asked = False

    def words(self, n: int) -> Any:
        if not self._asked:
            self._asked = True
            self.entered = _elsewhere(lambda: self.pool.floors("normal", 1), 0.05)
        return self._seeded.words(n)

    def more(self) -> int:
        return self._seeded.more()


def threads_share_a_pool() -> str | None:
    """Whether a second thread gets noise while the first one's is being drawn."""
    source = _Waiting()
    source.pool.floors("normal", 1)
    return "two threads draw from one pool at once" if source.entered else None


# What is planted ----------------------------------------------------------------------------------

MUTANTS = (
    Mutant(
        "B applied to the exact sum",
        "Exact prefix sums and the correlated noise are added in doubles, which is no function of "
        "noisy integers.",
        (
            Edit(
                "privlearn.mechanisms.running_sums:_IntegerSums.__init__",
                "self._encoder = terms.factorization.encoder(size)",
                "self._encoder = lambda x, seen=[0]: (\n"
                "        seen.append(seen[-1] + x.sum(axis=0)) or np.cumsum(x, axis=0) + seen[-2]\n"
                "    )",
            ),
            Edit(
                "privlearn.mechanisms.running_sums:_IntegerSums.after",
                "released += self._ahead.next(len(values))\n    sums = self._decoder(released)",
                "sums = released + self._decoder(self._ahead.next(len(values)))",
            ),
        ),
        ExactCase(buffered),
    ),
    Mutant(
        "noise rounded to even in doubles",
        "N is a product of doubles, rounded half to even, and so its last bit is always 0.",
        (
            Edit(
                "privlearn.noise:GaussianNoise.integers",
                'integers_of(pool, "normal", shape, bits)',
                "(self.draw(pool, shape) / self.std * 2.0**bits).round().astype('int64')",
            ),
        ),
        against_own_loss(gaussian_sum, record(0.7), record(-0.3)),
    ),
    Mutant(
        "noise rounded to even, seen exactly",
        "The same, seen without a sample.",
        (
            Edit(
                "privlearn.noise:GaussianNoise.integers",
                'integers_of(pool, "normal", shape, bits)',
                "(self.draw(pool, shape) / self.std * 2.0**bits).round().astype('int64')",
            ),
        ),
        ExactCase(gaussian_sum),
    ),
    Mutant(
        "rounding for the floor of a table",
        "The fast path rounds where the floor is certain.",
        (
            Edit(
                "privlearn.noise.exact.fast:_tile",
                "np.floor(y, out=t)\n    y -= t\n    w[:] = t\n",
                "np.floor(y, out=t)\n    w[:] = np.rint(y)\n    y -= t\n",
            ),
        ),
        InspectionCase(paths_differ),
    ),
    Mutant(
        "a coefficient of a table changed, and its hash with it",
        "One of 36,864 coefficients is off by one part in 2^30.",
        (
            Edit(
                "privlearn.noise.exact.pool:shipped_tables",
                'return read_tables(np.frombuffer(raw, dtype="<i8").astype(np.int64, copy=False))',
                "tables = read_tables(np.frombuffer(raw, dtype=np.int64).copy())\n"
                f"    tables[0].coefficients[1, {_CELL}] *= 1 + 2.0**-30\n"
                "    return tables",
            ),
        ),
        InspectionCase(bound_is_unproved),
    ),
    Mutant(
        "saturation before a comparison",
        "Noisy scores are compared by floors that ended at 2^62.",
        (
            Edit(
                "privlearn.mechanisms.exact_choices:NoisyScores.largest",
                "max(int(floors.max()), -int(floors.min())) >= _UNUSUAL",
                "False",
            ),
        ),
        InspectionCase(saturated_noise_decides),
    ),
    Mutant(
        "bits reused after a slow draw",
        "Further bits come from the stream that the words come from.",
        (Edit("privlearn.noise.exact.pool:Keystream.more", "_SECOND_STREAM", "0"),),
        InspectionCase(words_come_again),
    ),
    Mutant(
        "the same bits for every slow draw",
        "The stream of further bits begins anew each time.",
        (
            Edit(
                "privlearn.noise.exact.pool:Keystream.more",
                "self._second.get(None) or",
                "_encryptor(self._key, _SECOND_STREAM) or",
            ),
        ),
        InspectionCase(words_come_again),
    ),
    Mutant(
        "bits dropped after a slow draw",
        "What a slow draw appended to its word is forgotten, so that refining draws other bits.",
        (Edit("privlearn.noise.exact.fast:_decided", "extended[at] = bits", "pass"),),
        InspectionCase(draws_contradict),
    ),
    Mutant(
        "clipping trusted in doubles",
        "Integers are kept without a check that they are in the ball.",
        (
            Edit(
                "privlearn.rows.domains:Ball.integers",
                "drop(steps[tile], inside(steps[tile], radius, exponent))",
                "pass",
            ),
            Edit("privlearn.rows.domains.clipping:shrunk", "return", "return 1.0 or"),
        ),
        LawsOfDomain(Ball(1.0, 4)),
    ),
    Mutant(
        "scratch of all threads",
        "Two threads that draw at once write to the same arrays.",
        (
            Edit(
                "privlearn.noise.exact.fast:_Scratch.__init__",
                "self) -> None:\n    self.integers = np.empty((2, _TILE), np.int64)\n",
                "self, shared=np.empty((2, _TILE), np.int64)) -> None:\n"
                "    self.integers = shared\n",
            ),
        ),
        InspectionCase(threads_overwrite),
    ),
    Mutant(
        "a pool without a lock",
        "Two threads that draw at once from one pool may get the same noise.",
        (
            Edit(
                "privlearn.noise.exact.pool:NoisePool.floors",
                "with self._lock:",
                "if True:",
            ),
        ),
        InspectionCase(threads_share_a_pool),
    ),
)
"""Those of integer sets (a sum that wraps, roundings forgotten) stand with the tests of these."""
