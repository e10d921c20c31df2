"""Scores that tell two data sets apart, learned from outputs; larger speaks for the first data set.

Several simple learners compete; which of them is used is decided on outputs that it was not fitted
to, and what is then concluded rests on outputs that took part in neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.checking.sampling.encoding import OutputTable
from privlearn.rows.domains import Array

Keyed = NDArray[np.int64]
Scorer = Callable[[OutputTable], Array]
Fitted = tuple[str, Scorer]  # What a distinguisher looks at, and its scores
RIDGES = (1e-8, 0.1, 10.0)
"""Shrinkage of correlations towards none; the first sees noise that is used twice."""

MAX_FEATURES = 1500
MAX_FLAGS = 256
LOOK = 1500  # Outputs per data set that suffice to choose among features


@dataclass(frozen=True)
class Score:
    """A learned distinguisher."""

    text: str
    of: Scorer
    first: Array
    second: Array


Cells = tuple[Array, Array]  # Numbers that stand in the data of either data set
ScoreFamily = Callable[[OutputTable, OutputTable], list[Score]]
"""Fits to training outputs of either data set."""

Fit = Callable[[OutputTable, OutputTable], list[Fitted]]


def families(first: OutputTable, second: OutputTable, *, bits: bool = False) -> list[ScoreFamily]:
    """Learners that can say something about such outputs, cheap ones first. ``bits``: whether to
    look at the last bits of numbers, which give away nearly all noise sampled in floating point
    (Mironov 2012)."""
    varied = _varied(first, second)
    fits: list[ScoreFamily] = []
    if first.symbols.shape[1] or (varied and _repeats(first) and _repeats(second)):
        fits.append(partial(_crossed, _fit_symbols))
    if varied or len(_flags(first, second)):
        fits.append(partial(_crossed, _fit_linear))
    if varied:
        fits.append(partial(_crossed, partial(_fit_single, bits=bits)))
    return fits


def last_bits_tell(first: OutputTable, second: OutputTable) -> bool:
    """Whether the grids that the numbers lie on differ between the data sets, far beyond chance."""
    x, y = lowest_bit(first.numbers), lowest_bit(second.numbers)
    if not x.shape[1]:
        return False
    gap, noise = np.abs(x.mean(axis=0) - y.mean(axis=0)), np.sqrt(x.var(axis=0) + y.var(axis=0))
    return bool((gap > 6 * noise / np.sqrt(min(len(x), len(y))) + 1e-9).any())


def _repeats(table: OutputTable) -> bool:
    some = table.numbers[:LOOK]
    return len({row.tobytes() for row in some}) < len(some) / 2


def _varied(first: OutputTable, second: OutputTable) -> list[int]:
    if not first.numbers.shape[1]:
        return []
    low = np.minimum(first.numbers.min(axis=0), second.numbers.min(axis=0))
    high = np.maximum(first.numbers.max(axis=0), second.numbers.max(axis=0))
    return [int(i) for i in np.flatnonzero(high > low)]


def _crossed(fit: Fit, first: OutputTable, second: OutputTable) -> list[Score]:
    """Fits on everything, with scores of each part by a fit on the other parts."""
    folds = 4 if min(len(first), len(second)) < 2000 else 2
    parts_p, parts_q = np.arange(len(first)) % folds, np.arange(len(second)) % folds
    outside: list[tuple[Array, Array]] = []
    for k in range(folds):
        inside = first.take(parts_p == k), second.take(parts_q == k)
        for i, (_, scorer) in enumerate(fit(first.take(parts_p != k), second.take(parts_q != k))):
            if i == len(outside):
                outside.append((np.zeros(len(first)), np.zeros(len(second))))
            outside[i][0][parts_p == k], outside[i][1][parts_q == k] = map(scorer, inside)
    whole = fit(first, second)
    return [Score(*whole[min(i, len(whole) - 1)], *scores) for i, scores in enumerate(outside)]


def _fit_symbols(first: OutputTable, second: OutputTable) -> list[Fitted]:
    """Log odds of the whole row of symbols and numbers that repeat."""
    p, q = Counter(_whole(first)), Counter(_whole(second))
    n, m = len(first), len(second)
    table = {
        key: float(np.log((p[key] + 0.5) / (n + 1)) - np.log((q[key] + 0.5) / (m + 1)))
        for key in set(p) | set(q)
    }
    scorer: Scorer = lambda other: np.array([table.get(key, 0.0) for key in _whole(other)])  # noqa: E731
    return [("the output as a whole", scorer)]


def _whole(table: OutputTable) -> list[bytes]:
    return [row.tobytes() for row in np.hstack([table.symbols, table.numbers.view(np.int64)])]


Flags = Sequence[tuple[int, int]]
"""Columns of symbols, and codes in them, each of which becomes an indicator."""


def _design(table: OutputTable, flags: Flags) -> Array:
    shown = [table.symbols[:, j] == code for j, code in flags]
    return (
        np.hstack([table.numbers, np.array(shown, dtype=np.float64).T]) if shown else table.numbers
    )


def _flags(first: OutputTable, second: OutputTable) -> Flags:
    """Of codes that some outputs have and others have not."""
    room = max(MAX_FEATURES - first.numbers.shape[1], 0)
    result: list[tuple[int, int]] = []
    for j, column in enumerate(np.vstack([first.symbols, second.symbols]).T):
        counts = np.bincount(column + 1)
        codes = np.flatnonzero((counts > 1) & (counts < len(column))) - 1
        result += [(j, int(code)) for code in codes[:MAX_FLAGS]]
        if len(result) >= room:
            break
    return result[:room]


def _fit_linear(first: OutputTable, second: OutputTable) -> list[Fitted]:
    """Fisher's discriminant at several ridges."""
    flags = _flags(first, second)
    x, y = _design(first, flags), _design(second, flags)
    centre, gap = (x.mean(axis=0) + y.mean(axis=0)) / 2, x.mean(axis=0) - y.mean(axis=0)
    inner = np.vstack([x - x.mean(axis=0), y - y.mean(axis=0)])
    scale = np.sqrt((inner**2).mean(axis=0))
    # A column without noise of its own counts only by its gap.
    scale = np.maximum(scale, 1e-9 * np.maximum(np.abs(gap), scale.max(initial=0.0)))
    live = scale > 0
    scale[~live] = 1.0
    if np.count_nonzero(live) > MAX_FEATURES:
        return [_linear(gap / scale**2, centre, flags, first)]
    unit = (inner / scale)[:, live]
    values, vectors = np.linalg.eigh(unit.T @ unit / len(unit))
    along = vectors.T @ (gap / scale)[live]
    fitted = []
    for ridge in RIDGES:
        weights = np.zeros(len(scale))
        weights[live] = vectors @ (along / (np.maximum(values, 0.0) + ridge)) / scale[live]
        fitted.append(_linear(weights, centre, flags, first))
    return fitted


def _linear(weights: Array, centre: Array, flags: Flags, like: OutputTable) -> Fitted:
    names = [f"output{name}" for name in like.names]
    names += [f"(output{like.paths[j]} is {_value(like, j, code)})" for j, code in flags]
    size = np.abs(weights)
    top = np.argsort(-size)[:3]
    text = " ".join(f"{weights[i]:+.3g}·{names[i]}" for i in top if size[i] > 0)
    more = len(weights) - len(top)
    text += f" and {more} more terms" if more > 0 else ""
    return text, lambda table: np.asarray((_design(table, flags) - centre) @ weights)


def _value(table: OutputTable, column: int, code: int) -> str:
    return repr(table.values[column][code]) if code >= 0 else "new"


def lowest_bit(values: Array) -> Array:
    """Exponent of the lowest set bit of each float: noise on a coarser grid has a higher one."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return np.where(values == 0, 1100.0, exponent - 53.0 + trailing)


FLOAT_DIGITS = 40
"""Binary digits; a number sampled in floating point has 52 and seldom gets by with these."""

OF_ALL = ("arg-max", "arg-min", "maximum", "minimum", "sum", "square", "largest jump", "least gap")
"""Features of a vector as a whole, in the order in which they are computed."""


@dataclass(frozen=True)
class _Features:
    middle: Array
    fine: NDArray[np.bool_]

    @classmethod
    def fitted(cls, first: OutputTable, second: OutputTable, bits: bool) -> _Features:
        both = np.vstack([first.numbers[:LOOK], second.numbers[:LOOK]])
        # numbers with few binary digits, such as whole ones: their parity is theirs
        digits = np.where(both == 0, 0, np.frexp(both)[1] - lowest_bit(both))
        fine = np.asarray(bits | (digits.max(axis=0, initial=0) <= FLOAT_DIGITS))
        return cls(np.median(second.numbers, axis=0), fine)

    def of(self, table: OutputTable) -> tuple[list[str], Array]:
        """Their names, and their values, shape (n, features)."""
        x = table.numbers
        names, columns = [f"output{name}" for name in table.names], [x]
        if x.shape[1] <= 64:
            plain = tuple(names)
            names += [f"|{name} − {m:.4g}|" for name, m in zip(plain, self.middle, strict=True)]
            names += [f"lowest set bit of {name}" for name in compress(plain, self.fine)]
            columns += [np.abs(x - self.middle), lowest_bit(x[:, self.fine])]
        if x.shape[1] > 1:
            names += [f"{what} of the output" for what in OF_ALL]
            jumps, gaps = np.abs(np.diff(x, axis=1)), np.diff(np.sort(x, axis=1), axis=1)
            of_all = [x.argmax(axis=1), x.argmin(axis=1), x.max(axis=1), x.min(axis=1)]
            of_all += [x.sum(axis=1), (x**2).sum(axis=1), jumps.max(axis=1), gaps.min(axis=1)]
            columns.append(np.stack(of_all, axis=1).astype(np.float64))
        return names, np.hstack(columns)


def _fit_single(first: OutputTable, second: OutputTable, bits: bool) -> list[Fitted]:
    """The two features with the largest difference of ranks, either way round."""
    features = _Features.fitted(first, second, bits)
    names, x = features.of(first.take(slice(0, LOOK)))
    y = features.of(second.take(slice(0, LOOK)))[1]
    both = np.vstack([x, y])
    order = np.argsort(both, axis=0, kind="stable")
    ahead = np.where(order < len(x), 1 / len(x), -1 / len(y)).cumsum(axis=0)
    ranked = np.take_along_axis(both, order, axis=0)
    last = np.vstack([ranked[1:] > ranked[:-1], np.ones((1, both.shape[1]), dtype=bool)])
    gaps = np.abs(np.where(last, ahead, 0.0)).max(axis=0)
    best = [int(i) for i in np.argsort(-gaps)[:2]]
    return [_one(i, sign, names[i], features) for i in best for sign in (1.0, -1.0)]


def _one(i: int, sign: float, name: str, features: _Features) -> Fitted:
    return name if sign > 0 else f"−({name})", lambda table: sign * features.of(table)[1][:, i]


DIGITS = 53  # Binary digits of a float
SAME_DIGITS = 40
"""Binary digits in which two numbers must agree to be the same one: noise never does by chance."""
MAX_ENTRIES = 2**17  # Numbers that are looked up at most, in the outputs that are learned from
LEAST_REPEATS = 3  # So many more for one data set than for the other are worth a test of their own


def repeats(first: OutputTable, second: OutputTable, cells: Cells | None) -> Score | None:
    """A distinguisher for exact values that come again on one data set; None where there are none.
    Learned apart from the others, because a raw value now and then is a rare event, of which few
    outputs promise nothing. ``cells`` are the numbers in the data of either data set."""
    many = _many_valued(first, second)
    if not many.any():
        return None
    score = _crossed(partial(_fit_repeats, cells=cells or ((), ()), many=many), first, second)[0]
    gap = score.first.sum() - score.second.sum()
    return score if abs(gap) >= LEAST_REPEATS else None


def _many_valued(first: OutputTable, second: OutputTable) -> NDArray[np.bool_]:
    many = np.ones(first.numbers.shape[1], dtype=bool)
    for table in (first, second):
        ranked = np.sort(_same(table.numbers[:LOOK]), axis=0)
        many &= np.count_nonzero(np.diff(ranked, axis=0), axis=0) >= len(ranked) / 2
    most = MAX_ENTRIES // max(len(first) + len(second), 1)
    return np.asarray(many & (np.cumsum(many) <= most))


def _same(values: Any) -> Keyed:
    """Numbers as integers, without the digits in which the order of a sum shows."""
    bits = np.ascontiguousarray(np.add(values, 0.0), dtype=np.float64).view(np.int64)  # −0 is 0
    dropped = DIGITS - SAME_DIGITS
    return np.asarray((bits + (1 << dropped - 1)) >> dropped)


def _fit_repeats(
    first: OutputTable, second: OutputTable, cells: Any, many: NDArray[np.bool_]
) -> list[Fitted]:
    """1 where a number was seen on the first data set, or is part of it; −1 for the second."""
    sides = [
        np.concatenate([_same(table.numbers[:, many]).ravel(), np.unique(_same(numbers))])
        for table, numbers in zip((first, second), cells, strict=True)
    ]
    known = np.unique(np.concatenate(sides))
    seen = [np.bincount(np.searchsorted(known, x), minlength=len(known)) for x in sides]
    # what both data sets give must differ by more than chance
    gap = seen[0] - seen[1]
    differs = (np.minimum(*seen) == 0) | (np.abs(gap) > 3 * np.sqrt(np.add(*seen)))
    signs = np.where(differs, np.sign(gap), 0)

    def score(table: OutputTable) -> Array:
        numbers = _same(table.numbers[:, many])
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        result = np.where(known[places] == numbers, signs[places], 0.0)
        return np.asarray(np.sign(result.sum(axis=1)))

    return [("a number that was seen before, or stands in the data", score)]
