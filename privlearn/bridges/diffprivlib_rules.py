"""What the calls of diffprivlib 0.6.6 cost, from the arguments that they were made with.

Every rule was read off the code.  Let n be the number of records, which the library's noise takes
as public wherever it divides by it, truncates at it or splits by it: such calls have a price for
replacing a record, and none for adding or removing one.

==================================== =============== ==============
call                                 replace a record add or remove
==================================== =============== ==============
mean, sum, var, std, count_nonzero   ε               none: n is public
nansum, where 0 is within the bounds ε               none: n is public
quantile, percentile, median         ε               ε
histogram, histogramdd, histogram2d  2 ε             ε
StandardScaler                       ε               none: n is public
RandomForestClassifier               2 ε             none: n is public
==================================== =============== ==============

A histogram has noise for a record that joins one bin; a record that is replaced leaves one bin and
joins another.  So does a record in the leaves of a forest, whose labels are drawn for a record that
joins.  A quantile's rank moves by at most 1 under both relations.  With k records of one person all
of it is k times as much (group privacy).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privlearn.errors import AdjacencyError, BudgetError, DataError
from privlearn.values.adjacency import Adjacency


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the library's user, as its arguments were when it asked for its budget."""

    name: str
    given: Mapping[str, Any]
    of_values: list[str] = field(default_factory=list)
    """What is wrong with the values of the data: told behind the spend, as it tells of them."""

    @property
    def model(self) -> Any:
        return self.given["self"]

    @property
    def epsilon(self) -> Any:
        """What the call was asked to keep, all its parts together."""
        return self.model.epsilon if "self" in self.given else self.given["epsilon"]

    @property
    def noise(self) -> str:
        """How it is drawn, for those who read a certificate."""
        holder = self.model if "self" in self.given else None
        seed = self.given.get("random_state") if holder is None else holder.random_state
        seeded = seed is not None and seed is not np.random.mtrand._rand
        return "in doubles, from a seed" if seeded else "in doubles"

    def refused(self, why: str) -> str:
        return f"diffprivlib {self.name}: {why}; nothing was spent"


@dataclass(frozen=True, slots=True)
class Rule:
    """Checks a call, and says how many records it takes.

    ``replaced`` and ``added`` are what a record costs in units of the call's ε; None: no price.
    """

    records: Callable[[Call], int]
    replaced: int
    added: int | None = None

    def times(self, call: Call, adjacency: Adjacency) -> int:
        """By how much the call's ε is multiplied for one record.

        Raises:
            AdjacencyError: it has no price for that relation.
        """
        if adjacency is not Adjacency.ADD_REMOVE:  # the null record is a row like another
            return self.replaced
        if self.added is None:
            raise AdjacencyError(
                call.refused(
                    "its noise is for a public number of records, so it has no price for "
                    "add-remove: open the account with adjacency=Adjacency.REPLACE_ONE"
                )
            )
        return self.added


def _bounds(call: Call, bounds: Any) -> tuple[float, float]:
    """The smallest and the largest bound.

    Raises:
        BudgetError: they were not given.
        ValueError: they are no finite numbers.
    """
    if bounds is None:
        raise BudgetError(
            call.refused(
                "bounds were not given, so that they would be taken from the data, beyond any "
                "price: give bounds that are known without the data"
            )
        )
    low, high = (np.asarray(bound, dtype=float) for bound in bounds)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(call.refused(f"bounds = {bounds!r}: must be finite, and lower < upper"))
    return float(low.min()), float(high.max())


def _plain(call: Call, data: Any) -> Any:
    """As an array; a masked one is of fewer records than it says."""
    if isinstance(data, np.ndarray) and type(data) is not np.ndarray:
        raise DataError(
            call.refused(f"data in a {type(data).__name__}: hand over a plain array, filled")
        )
    return np.asarray(data)


def _numbers(call: Call, data: Any) -> Any:
    found = _plain(call, data)
    if found.dtype.kind not in "bui" and found.dtype != np.float64:
        raise DataError(
            call.refused(
                f"data of type {found.dtype}, whose sums are rounded, or none: convert them, "
                "data.astype(float)"
            )
        )
    if found.dtype.kind == "f" and np.isnan(found).any():
        call.of_values.append(
            "a NaN is among the data, which comes out as NaN whatever the noise "
            "(diffprivlib issue 80): fill missing values, data-independently, or leave them out"
        )
    return found


def _rows(call: Call, found: Any) -> int:
    """The number of records, one in each place of the first axis."""
    axis = call.given.get("axis")
    over = range(found.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if not found.ndim or {one % found.ndim for one in over} != {0}:
        raise DataError(
            call.refused(
                f"axis = {axis!r} of data with shape {found.shape}: a record is a place of the "
                "first axis, and all its numbers would be in one result: use axis=0"
            )
        )
    return int(found.shape[0])


def _coarse(call: Call, bounds: tuple[float, float], rows: int) -> None:
    low, high = bounds
    if rows * max(abs(low), abs(high)) > _FINEST * (high - low):
        raise DataError(
            call.refused(
                f"bounds = {bounds!r} with {rows} records: their sums in doubles are too coarse "
                "for the noise: subtract the lower bound first"
            )
        )


_FINEST = 2.0**32
"""What a sum may be in units of the sensitivity: 2^−53 of it, often added, is then small."""
_APART = 1.1e-5
"""Bounds that are nearer to each other are moved apart by it, almost."""
_FLOATS = (None, float, np.float64)
_INTEGERS = (int, np.intp)
"""Types of sums that do not overflow, as of ``np.int8``; a mean would be cut to an integer."""


def _statistic(call: Call) -> int:
    found = _numbers(call, call.given["array"])
    rows = _rows(call, found)
    fine = (*_FLOATS, *_INTEGERS) if call.name in ("sum", "nansum") else _FLOATS
    if not any(call.given["dtype"] is one for one in fine):
        raise DataError(
            call.refused(
                f"dtype = {call.given['dtype']!r}: what is rounded or overflows in it moves by "
                "more than the noise is for: leave dtype out"
            )
        )
    _coarse(call, _bounds(call, call.given["bounds"]), rows)
    return rows


def _nansum(call: Call) -> int:
    low, high = _bounds(call, call.given["bounds"])
    if not low <= 0 <= high:
        raise BudgetError(
            call.refused(
                "a missing value counts as 0, which is outside of the bounds, so that it moves the "
                "sum by more than the noise is for: fill missing values and use sum"
            )
        )
    filled = np.nan_to_num(_plain(call, call.given["array"]).astype(float), nan=0.0)
    return _statistic(Call(call.name, {**call.given, "array": filled}, call.of_values))


def _count(call: Call) -> int:
    return _rows(call, _plain(call, call.given["array"]))


def _quantile(call: Call) -> int:
    found = _numbers(call, call.given["array"])
    low, high = _bounds(call, call.given["bounds"])
    taken = (low, high) == (found.min(initial=high), found.max(initial=low))
    if call.name == "quantile" and (taken or high - low <= _APART):
        # it puts bounds of the data in place of none before it asks for its budget
        call.of_values.append(
            "bounds are the smallest and the largest number of the data: give wider ones, known "
            "without the data, or use percentile or median, which tell bounds of yours from those"
        )
    return _rows(call, found)


def _binned(call: Call) -> None:
    """Refuses bins whose edges come from the data, and weights."""
    bins, ranges = call.given["bins"], call.given["range"]
    if call.given["weights"] is not None:
        raise BudgetError(
            call.refused("weights: its noise is for records that count 1: leave weights out")
        )
    one = call.name == "histogram" or not isinstance(bins, list | tuple | np.ndarray)
    each = [bins] if one else list(bins)
    if any(isinstance(part, str) for part in each):
        raise BudgetError(
            call.refused(
                f"bins = {bins!r}: the number of bins would be taken from the data: give a number"
            )
        )
    for place, part in enumerate(each):  # edges need no range
        sides = [ranges] if ranges is None or one else [ranges[place]]
        if one and ranges is not None:
            sides = list(ranges)
        if np.ndim(part) == 0 and any(side is None for side in sides):
            raise BudgetError(
                call.refused(
                    "range was not given, so that it would be taken from the data, beyond any "
                    "price: give a range that is known without the data, or the edges of the bins"
                )
            )


def _histogram(call: Call) -> int:
    _binned(call)
    return _rows(call, _plain(call, call.given["sample"]))


def _histogramdd(call: Call) -> int:
    _binned(call)
    sample = call.given["sample"]
    shape: tuple[int, ...] = getattr(sample, "shape", ())
    return int(shape[0] if len(shape) == 2 else np.atleast_2d(sample).shape[1])


def _histogram2d(call: Call) -> int:
    _binned(call)
    return len(call.given["array_x"])


def _scaler(call: Call) -> int:
    rows = int(_numbers(call, _plain(call, call.given["X"]).astype(float)).shape[0])
    _coarse(call, _bounds(call, call.model.bounds), rows)
    return rows


def _forest(call: Call) -> int:
    if call.model.classes is None:
        raise BudgetError(
            call.refused("classes were not given, so that the data would tell them: give classes")
        )
    if call.model.n_jobs not in (None, 1):
        raise BudgetError(call.refused(f"n_jobs = {call.model.n_jobs}: must be 1"))
    _bounds(call, call.model.bounds)
    return int(_numbers(call, _plain(call, call.given["X"]).astype(float)).shape[0])


_UTILS, _HISTOGRAMS = "diffprivlib.tools.utils", "diffprivlib.tools.histograms"
_QUANTILES = "diffprivlib.tools.quantiles"
RULES: dict[tuple[str, str], Rule] = {
    **{(_UTILS, name): Rule(_statistic, 1) for name in ("mean", "sum", "var", "std")},
    (_UTILS, "nansum"): Rule(_nansum, 1),
    (_UTILS, "count_nonzero"): Rule(_count, 1),
    **{(_QUANTILES, name): Rule(_quantile, 1, 1) for name in ("quantile", "percentile", "median")},
    (_HISTOGRAMS, "histogram"): Rule(_histogram, 2, 1),
    (_HISTOGRAMS, "histogramdd"): Rule(_histogramdd, 2, 1),
    (_HISTOGRAMS, "histogram2d"): Rule(_histogram2d, 2, 1),
    ("diffprivlib.models.standard_scaler", "StandardScaler.partial_fit"): Rule(_scaler, 1),
    ("diffprivlib.models.forest", "RandomForestClassifier.fit"): Rule(_forest, 2),
}
_NAN = "it divides by all records, the missing ones too, so that its noise is too small"
REFUSED: dict[tuple[str, str], str] = {
    **{(_UTILS, name): f"{_NAN}: fill missing values" for name in ("nanmean", "nanvar", "nanstd")},
    ("diffprivlib.models.linear_regression", "LinearRegression.fit"): (
        "its sensitivities take one bound twice, and two means share one budget (diffprivlib "
        "issues 104, 105): use privlearn.estimators.PrivateLinearRegression"
    ),
    ("diffprivlib.models.k_means", "KMeans.fit"): (
        "its shares of the budget are swapped, and a cluster without records is skipped "
        "(diffprivlib issue 104): its ε is too small"
    ),
    ("diffprivlib.models.logistic_regression", "LogisticRegression.fit"): (
        "its vector mechanism is for norms of at most 1, which the intercept exceeds (diffprivlib "
        "issue 104), and its classes are the data's: use "
        "privlearn.estimators.PrivateLogisticRegression"
    ),
    ("diffprivlib.models.naive_bayes", "GaussianNB._partial_fit"): (
        "its classes are those of the data, and a record that joins a class moves its sum by more "
        "than the noise is for: its ε is too small"
    ),
    ("diffprivlib.models.pca", "PCA._fit_full"): (
        "the ε of its eigenvalues together is not proved here: every one has noise for a move of "
        "all"
    ),
    ("diffprivlib.models.forest", "DecisionTreeClassifier.fit"): (
        "a tree of its own is not meant to be used: RandomForestClassifier(n_estimators=1)"
    ),
}


def epsilon_of_call(call: Call) -> float:
    """ε as a number.

    Raises:
        ValueError: it is not finite and > 0.
    """
    try:
        value = float(call.epsilon)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(call.refused(f"epsilon = {call.epsilon!r}: must be finite and > 0"))
    return value
