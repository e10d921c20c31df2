"""Scores that tell two data sets apart, learned from outputs; larger speaks for the first data set.

Several simple learners compete; which of them is used is decided on outputs that it was not fitted
to, and what is then concluded rests on outputs that took part in neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
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
FEW_VALUES = 32  # Numbers that take no more values than this may be names
LOOK = 1500  # Outputs per data set that suffice to choose among features


@dataclass(frozen=True)
class Score:
    """A learned distinguisher."""

    fitted: Callable[[], Fitted]
    first: Array
    second: Array

    @property
    def text(self) -> str:
        return self.fitted()[0]

    @property
    def of(self) -> Scorer:
        return self.fitted()[1]


Cells = tuple[Array, Array]  # Numbers that stand in the data of either data set

ScoreFamily = Callable[[OutputTable, OutputTable], list[Score]]
"""Fits to training outputs of either data set."""

Fit = Callable[[OutputTable, OutputTable], list[Fitted]]


def families(
    first: OutputTable, second: OutputTable, *, bits: bool = False, cells: Cells | None = None
) -> list[ScoreFamily]:
    """Learners that can say something about such outputs, cheap ones first.

    ``cells`` are the numbers in the data of either data set.  ``bits``: whether to look at the last
    bits of numbers, which give away nearly all noise sampled in floating point (Mironov 2012).
    """
    varied = _varied(first, second)
    fits: list[ScoreFamily] = []
    if first.symbols.shape[1] or (varied and _repeats(first) and _repeats(second)):
        fits.append(partial(_crossed, _fit_symbols))
    if varied or len(_flags(first, second)):
        fits.append(partial(_crossed, _fit_linear))
    if varied:
        if len(varied) <= 24:
            fits.append(partial(_crossed, partial(_fit_quadratic, varied=varied)))
        fits.append(partial(_crossed, partial(_fit_single, bits=bits)))
        if (many := _many_valued(first, second)).any():
            fits.append(partial(_of_repeats, cells=cells, many=many))
        if len(varied) <= 64 and min(len(first), len(second)) >= 200:
            fits.append(partial(_fit_trees, bits=bits))
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
    whole = cache(partial(fit, first, second))
    return [Score(partial(_nth, whole, i), *scores) for i, scores in enumerate(outside)]


def _nth(whole: Callable[[], list[Fitted]], i: int) -> Fitted:
    with np.errstate(all="ignore"):  # of malformed outputs
        fitted = whole()
    return fitted[min(i, len(fitted) - 1)]


def _of_last_tables(function: Scorer) -> Scorer:
    """The same function, with its last two values: several scores look at one pair of tables."""
    kept: list[tuple[OutputTable, Array]] = []

    def of(table: OutputTable) -> Array:
        for seen, value in kept:
            if seen is table:
                return value
        value = function(table)
        kept[:] = [*kept[-1:], (table, value)]
        return value

    return of


def _fit_symbols(first: OutputTable, second: OutputTable) -> list[Fitted]:
    """Log odds of the whole row of symbols and numbers that repeat, and of the best column."""
    fitted: list[Fitted] = [("the output as a whole", _odds(first, second, _whole))]
    columns = first.symbols.shape[1]
    if columns > 1:
        gaps = [_column_gap(first.symbols[:, j], second.symbols[:, j]) for j in range(columns)]
        j = int(np.argmax(gaps))
        fitted.append((f"output{first.paths[j]}", _odds(first, second, _column(j))))
    return fitted


Keys = Callable[[OutputTable], list[Any]]


def _whole(table: OutputTable) -> list[Any]:
    return [row.tobytes() for row in np.hstack([table.symbols, table.numbers.view(np.int64)])]


def _column(j: int) -> Keys:
    return lambda table: table.symbols[:, j].tolist()


def _column_gap(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    top = int(max(first.max(), second.max())) + 2
    p = np.bincount(first + 1, minlength=top) / len(first)
    q = np.bincount(second + 1, minlength=top) / len(second)
    return float(np.abs(p - q).sum())


def _odds(first: OutputTable, second: OutputTable, keys: Keys) -> Scorer:
    p, q = Counter(keys(first)), Counter(keys(second))
    n, m = len(first), len(second)
    table = {
        key: float(np.log((p[key] + 0.5) / (n + 1)) - np.log((q[key] + 0.5) / (m + 1)))
        for key in set(p) | set(q)
    }
    return lambda other: np.array([table.get(key, 0.0) for key in keys(other)])


@dataclass(frozen=True)
class _Flags:
    """Indicators: of codes of symbol columns, and of values of number columns that take few.

    The index of a choice is no size, so that a straight line through it says little.
    """

    codes: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, float], ...]

    def __len__(self) -> int:
        return len(self.codes) + len(self.values)

    def of(self, table: OutputTable) -> Array:
        flags = [table.symbols[:, j] == code for j, code in self.codes]
        flags += [table.numbers[:, j] == value for j, value in self.values]
        return np.stack(flags, axis=1).astype(np.float64)

    def names(self, table: OutputTable) -> list[str]:
        return [
            *(f"(output{table.paths[j]} is {_value(table, j, code)})" for j, code in self.codes),
            *(f"(output{table.names[j]} is {value:g})" for j, value in self.values),
        ]


def _design(table: OutputTable, flags: _Flags) -> Array:
    return np.hstack([table.numbers, flags.of(table)]) if len(flags) else table.numbers


def _flags(first: OutputTable, second: OutputTable) -> _Flags:
    room = max(MAX_FEATURES - first.numbers.shape[1], 0)
    codes = _indicators(np.vstack([first.symbols, second.symbols]), room)
    values: list[tuple[int, float]] = []
    if first.numbers.shape[1] <= MAX_FLAGS:
        both = np.vstack([first.numbers[:LOOK], second.numbers[:LOOK]])
        # a column that varies in its first rows already takes too many values
        begun = np.sort(both[: 2 * FEW_VALUES], axis=0)
        many = np.count_nonzero(begun[1:] != begun[:-1], axis=0) >= FEW_VALUES
        for j in map(int, np.flatnonzero(~many)):
            known, counts = np.unique(both[:, j], return_counts=True)
            if 2 < len(known) <= FEW_VALUES and len(codes) + len(values) + len(known) <= room:
                values += [(j, float(v)) for v in known[counts > 1]]
    return _Flags(tuple(codes), tuple(values))


def _indicators(both: NDArray[np.int64], room: int) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for j in range(both.shape[1]):
        counts = np.bincount(both[:, j] + 1)
        codes = np.flatnonzero((counts > 1) & (counts < len(both))) - 1
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
        return [_linear(gap / scale**2, centre, flags, first, partial(_design, flags=flags))]
    unit = (inner / scale)[:, live]
    values, vectors = np.linalg.eigh(unit.T @ unit / len(unit))
    along = vectors.T @ (gap / scale)[live]
    fitted, design = [], _of_last_tables(partial(_design, flags=flags))
    for ridge in RIDGES:
        weights = np.zeros(len(scale))
        weights[live] = vectors @ (along / (np.maximum(values, 0.0) + ridge)) / scale[live]
        fitted.append(_linear(weights, centre, flags, first, design))
    return fitted


def _linear(
    weights: Array, centre: Array, flags: _Flags, like: OutputTable, design: Scorer
) -> Fitted:
    names = [*(f"output{n}" for n in like.names), *flags.names(like)]
    size = np.abs(weights)
    top = np.argsort(-size)[:3]
    text = " ".join(f"{weights[i]:+.3g}·{names[i]}" for i in top if size[i] > 0)
    more = len(weights) - len(top)
    text += f" and {more} more terms" if more > 0 else ""
    return text, lambda table: np.asarray((design(table) - centre) @ weights)


def _value(table: OutputTable, column: int, code: int) -> str:
    return repr(table.values[column][code]) if code >= 0 else "new"


def _fit_quadratic(first: OutputTable, second: OutputTable, varied: list[int]) -> list[Fitted]:
    """Log ratio of two normal densities, each with its own covariance."""
    x, y = first.numbers[:, varied], second.numbers[:, varied]
    middle = np.median(np.vstack([x, y]), axis=0)
    spread = np.median(np.abs(np.vstack([x, y]) - middle), axis=0)
    spread = np.where(spread > 0, spread, np.maximum(np.vstack([x, y]).std(axis=0), 1e-300))

    def unit(values: Array) -> Array:
        return np.asarray(np.clip((values - middle) / spread, -50, 50))

    forms = []
    for values in (unit(x), unit(y)):
        covariance = np.atleast_2d(np.cov(values.T)) + 1e-9 * np.eye(values.shape[1])
        forms.append(
            (values.mean(axis=0), np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1])
        )

    def score(table: OutputTable) -> Array:
        logs = []
        for mean, precision, log_det in forms:
            away = unit(table.numbers[:, varied]) - mean
            logs.append(-0.5 * np.einsum("ij,jk,ik->i", away, precision, away) - 0.5 * log_det)
        return np.asarray(logs[0] - logs[1])

    return [("means and covariances of the numbers", score)]


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
        return cls(np.median(second.numbers, axis=0), bits | _on_a_grid(both))

    def names(self, table: OutputTable) -> list[str]:
        names = [f"output{n}" for n in table.names]
        if len(table.names) <= 64:
            middles = zip(table.names, self.middle, strict=True)
            names += [f"|output{n} − {m:.4g}|" for n, m in middles]
            fine = zip(table.names, self.fine, strict=True)
            names += [f"lowest set bit of output{n}" for n, look in fine if look]
        if len(table.names) > 1:
            names += [f"{what} of the output" for what in OF_ALL]
        return names

    def of(self, table: OutputTable) -> Array:
        """Shape (n, features)."""
        x = table.numbers
        columns = [x]
        if x.shape[1] <= 64:
            columns += [np.abs(x - self.middle), lowest_bit(x[:, self.fine])]
        if x.shape[1] > 1:
            jumps, gaps = np.abs(np.diff(x, axis=1)), np.diff(np.sort(x, axis=1), axis=1)
            of_all = [x.argmax(axis=1), x.argmin(axis=1), x.max(axis=1), x.min(axis=1)]
            of_all += [x.sum(axis=1), (x**2).sum(axis=1), jumps.max(axis=1), gaps.min(axis=1)]
            columns.append(np.stack(of_all, axis=1).astype(np.float64))
        return np.hstack(columns)


def _on_a_grid(values: Array) -> NDArray[np.bool_]:
    """Columns of numbers with few binary digits, such as whole numbers: their parity is theirs."""
    exponents = np.frexp(values)[1]
    digits = np.where(values == 0, 0, exponents - lowest_bit(values))
    return np.asarray(digits.max(axis=0, initial=0) <= FLOAT_DIGITS)


def _fit_single(first: OutputTable, second: OutputTable, bits: bool) -> list[Fitted]:
    """The two features with the largest difference of ranks, either way round."""
    features = _Features.fitted(first, second, bits)
    x = features.of(first.take(slice(0, LOOK)))
    y = features.of(second.take(slice(0, LOOK)))
    both = np.vstack([x, y])
    order = np.argsort(both, axis=0, kind="stable")
    ahead = np.where(order < len(x), 1 / len(x), -1 / len(y)).cumsum(axis=0)
    ranked = np.take_along_axis(both, order, axis=0)
    last = np.vstack([ranked[1:] > ranked[:-1], np.ones((1, both.shape[1]), dtype=bool)])
    gaps = np.abs(np.where(last, ahead, 0.0)).max(axis=0)
    names = features.names(first)
    best = [int(i) for i in np.argsort(-gaps)[:2]]
    of = _of_last_tables(features.of)
    return [_one(i, sign, names[i], of) for i in best for sign in (1.0, -1.0)]


def _one(i: int, sign: float, name: str, features: Scorer) -> Fitted:
    return name if sign > 0 else f"−({name})", lambda table: sign * features(table)[:, i]


DIGITS = 53  # Binary digits of a float
SAME_DIGITS = 40
"""Binary digits in which two numbers must agree to be the same one: noise never does by chance."""
MAX_ENTRIES = 2**19  # Numbers that are looked up at most, in the outputs that are learned from
LEAST_REPEATS = 3  # So many more for one data set than for the other are worth a test of their own


def repeats(first: OutputTable, second: OutputTable, cells: Cells | None) -> Score | None:
    """A distinguisher for exact values that come again on one data set; None where there are none.

    Learned apart from the others, because a raw value now and then is a rare event, of which few
    outputs promise nothing.
    """
    many = _many_valued(first, second)
    if not many.any():
        return None
    score = _of_repeats(first, second, cells, many)[0]
    gap = score.first.sum() - score.second.sum()
    return score if abs(gap) >= LEAST_REPEATS else None


def _many_valued(first: OutputTable, second: OutputTable) -> NDArray[np.bool_]:
    many = np.ones(first.numbers.shape[1], dtype=bool)
    for table in (first, second):
        ranked = np.sort(_same(table.numbers[:LOOK].T))
        new = np.count_nonzero(ranked[:, 1:] != ranked[:, :-1], axis=1) + 1
        many &= new > ranked.shape[1] / 2
    most = MAX_ENTRIES // max(len(first) + len(second), 1)
    return np.asarray(many & (np.cumsum(many) <= most))


def _same(values: Array) -> Keyed:
    """Numbers as integers, without the digits in which the order of a sum shows."""
    bits = np.ascontiguousarray(values + 0.0, dtype=np.float64).view(np.int64)  # −0 is 0
    dropped = DIGITS - SAME_DIGITS
    return np.asarray((bits + (1 << dropped - 1)) >> dropped)


def _of_repeats(
    first: OutputTable, second: OutputTable, cells: Cells | None, many: NDArray[np.bool_]
) -> list[Score]:
    """The same scores as of `_crossed`, which would sort numbers by the hundred thousand again."""
    stated = [_distinct(_same(numbers)) for numbers in cells or ()]
    keys = [_same(table.numbers[:, many]) for table in (first, second)]
    values, counts = np.unique(np.concatenate([*map(np.ravel, keys), *stated]), return_counts=True)
    # a number that is there once tells nothing about any other output
    again = many.copy()
    again[many] = np.any([np.isin(k, values[counts > 1]).any(axis=0) for k in keys], axis=0)
    outside = _crossed(partial(_fit_repeats, cells=cells, many=again), first, second)[0]
    whole = partial(_fit_repeats, first, second, cells, many)
    return [replace(outside, fitted=partial(_nth, cache(whole), 0))]


def _fit_repeats(
    first: OutputTable, second: OutputTable, cells: Cells | None, many: NDArray[np.bool_]
) -> list[Fitted]:
    """1 where a number was seen on the first data set, or is part of it; −1 for the second."""
    p, q = (
        _counted(_same(table.numbers[:, many]), _same(np.asarray(numbers, dtype=np.float64)))
        for table, numbers in zip((first, second), cells or ((), ()), strict=True)
    )
    known = _distinct(p[0], q[0])
    seen = np.zeros((2, len(known)))
    for counts, (values, result) in zip(seen, (p, q), strict=True):
        counts[np.searchsorted(known, values)] = result
    # what both data sets give must differ by more than chance
    gap = seen[0] - seen[1]
    differs = (seen.min(axis=0) == 0) | (np.abs(gap) > 3 * np.sqrt(seen.sum(axis=0)))
    signs = np.where(differs, np.sign(gap), 0)

    def score(table: OutputTable) -> Array:
        numbers = _same(table.numbers[:, many])
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        result = np.where(known[places] == numbers, signs[places], 0.0)
        return np.asarray(np.sign(result.sum(axis=1)))

    return [("a number that was seen before, or stands in the data", score)]


def _distinct(*parts: Keyed) -> Keyed:
    """In ascending order; `np.unique` hashes first, which takes longer for so few."""
    ranked = np.sort(np.concatenate([part.ravel() for part in parts]))
    new = np.ones(len(ranked), dtype=bool)
    new[1:] = ranked[1:] != ranked[:-1]
    return np.asarray(ranked[new])


def _counted(seen: Keyed, stated: Keyed) -> tuple[Keyed, Keyed]:
    """Numbers in ascending order, and how often each was seen; once more if it was stated."""
    values, counts = np.unique(seen, return_counts=True)
    stated = _distinct(stated)
    known = _distinct(values, stated)
    total = np.zeros(len(known), dtype=np.int64)
    total[np.searchsorted(known, values)] = counts
    total[np.searchsorted(known, stated)] += 1
    return known, total


def _fit_trees(first: OutputTable, second: OutputTable, bits: bool) -> list[Score]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    features = _Features.fitted(first, second, bits)
    x, y = (features.of(table.take(slice(0, LOOK))) for table in (first, second))
    cut_p, cut_q = len(x) * 3 // 5, len(y) * 3 // 5
    model = HistGradientBoostingClassifier(
        max_iter=15, max_leaf_nodes=8, learning_rate=0.4, early_stopping=False, random_state=0
    )
    model.fit(np.vstack([x[:cut_p], y[:cut_q]]), np.repeat([1, 0], [cut_p, cut_q]))

    def score(table: OutputTable) -> Array:
        return np.asarray(model.decision_function(features.of(table)), dtype=np.float64)

    outside_p = np.asarray(model.decision_function(x[cut_p:]), dtype=np.float64)
    outside_q = np.asarray(model.decision_function(y[cut_q:]), dtype=np.float64)
    text = "boosted trees over the output's features"
    return [Score(lambda: (text, score), outside_p, outside_q)]
