"""The laws of a domain: what comes out of `clip` is as close together as `sensitivity` says."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privlearn.checking.isolation import own_copy
from privlearn.checking.mined import mined
from privlearn.checking.neighbours import each_float, extreme_records, rows_about
from privlearn.checking.reports import Broken, CheckReport, LawFinding, NotApplicable, perform_all
from privlearn.checking.session import note
from privlearn.errors import CheckError, InterferenceError
from privlearn.rows.domains import (
    Array,
    Domain,
    IntegerDomain,
    Norm,
    exponent_of,
    fitting_grid,
    has_integers,
    largest_number,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid
from privlearn.values.records import join, leaves, length, record_at

_SCALES = (0.0, 1e-310, 1e-160, 1e-3, 1.0, 1e3, 1e150, 1e300)
_ROUNDING = 1e-9
_HUGE = 1e150
_SMALL = 2.0**-20
"""Noise so many times smaller than a contribution that integers have more digits than doubles."""


@dataclass(frozen=True, slots=True)
class DomainCase:
    """A domain with records to try on it."""

    domain: Domain[Any]
    block: Any
    adjacency: Adjacency
    norms: tuple[Norm, ...]


def check_domain(
    domain: Domain[Any],
    records: Any = None,
    *,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    norms: tuple[Norm, ...] = ("l2", "l1"),
    seed: int = 0,
    raise_error: bool = True,
) -> CheckReport:
    """Checks the laws that mechanisms and accountants rely on in a domain.

    Args:
        domain: shipped or of your own.
        records: a block of examples (leading axis: users); default its extreme records, or for a
            domain of your own random vectors of its size.
        adjacency: the neighbour relation whose sensitivity is checked.
        norms: in which sensitivity is asked for.
        seed: of the random records.
        raise_error: whether to raise, or only report.

    Raises:
        PrivacyViolation: a law does not hold.
        CheckError: no records are known for this domain.
    """
    case = DomainCase(domain, tried_records(domain, records, seed), adjacency, norms)
    report = perform_all(type(domain).__name__, DOMAIN_CHECKS, case)
    note(report.summary())
    if raise_error:
        report.raise_if_bad()
    return report


def example_records(domain: Domain[Any], records: Any, seed: int) -> Any:
    """A block of records for a domain: those given, or extreme ones, or random vectors."""
    if records is not None:
        try:
            count = length(records)
        except ValueError as error:
            raise CheckError(f"records: {error}") from None
        if count < 2:
            raise CheckError(f"records: {count} record; at least two different ones are needed")
        return records
    try:
        return extreme_records(domain, seed=seed)
    except CheckError:
        # A domain of somebody else's, most often one of vectors.
        size = getattr(domain, "size", 0)
        block = np.random.default_rng(seed).standard_normal((12, size)) * 1e3
        try:
            domain.clip(np.array(block))
        except Exception:
            raise CheckError(f"records: give some of a {type(domain).__name__}") from None
        return block


def tried_records(domain: Domain[Any], records: Any, seed: int) -> Any:
    """The examples at many scales, one entry at a time too, with the odd NaN and infinity."""
    base = example_records(domain, records, seed)
    rng = np.random.default_rng(seed)
    parts = [base]
    with np.errstate(all="ignore"):
        for scale in _SCALES:
            parts.append(each_float(base, lambda leaf, s=scale: leaf * s))
            parts.append(each_float(base, lambda leaf, s=scale: -leaf * s))
        for _ in range(8):
            parts.append(each_float(base, lambda leaf: leaf * _spread(leaf, rng)))
        for special in (np.nan, np.inf, -np.inf, np.finfo(float).max, 5e-324):
            parts.append(each_float(base, lambda leaf, x=special: _with_one(leaf, x, rng)))
    return join(parts)


def _spread(leaf: Array, rng: np.random.Generator) -> Array:
    """Factors of very different size, so that norms are lost to rounding."""
    return np.asarray(
        rng.choice([-1.0, 1.0], leaf.shape) * 10.0 ** rng.uniform(-20, 20, leaf.shape)
    )


def _with_one(leaf: Array, special: float, rng: np.random.Generator) -> Array:
    changed = np.array(leaf)
    flat = changed.reshape(len(changed), -1)
    if flat.shape[1]:
        flat[np.arange(len(flat)), rng.integers(flat.shape[1], size=len(flat))] = special
    return flat.reshape(leaf.shape)


def _lost(block: Any) -> Any:
    """One record of only NaN; None where records hold no floating-point numbers."""
    if not any(leaf.dtype.kind == "f" for leaf in leaves(block)):
        return None
    return each_float(record_at(block, slice(0, 1)), lambda leaf: leaf * np.nan)


def _contributions(domain: Domain[Any], block: Any) -> Array:
    """What `clip` makes of a block; raises `Broken` for another form, and if it writes to it."""
    n = length(block)
    copy = record_at(block, np.arange(n))
    with np.errstate(all="ignore"):
        clipped = np.asarray(domain.clip(copy), dtype=np.float64)
    if clipped.shape != (n, domain.size):
        raise Broken(f"clip returns shape {clipped.shape} for {n} records of size {domain.size}")
    for before, after in zip(leaves(block), leaves(copy), strict=True):
        if not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
            raise Broken("clip writes to the records it is given")
    return clipped


def _check_rows(case: DomainCase, made: Callable[[Any], Any], null: Any, what: str) -> Any:
    """What is made of all records, each of which is the same alone, and null if it is lost."""
    whole = made(case.block)
    n, exact = len(whole), whole.dtype == np.int64
    for i in sorted({*range(min(n, 16)), *range(0, n, max(n // 64, 1))}):
        alone = made(record_at(case.block, slice(i, i + 1)))[0]
        near = 0.0 if exact else 1e-12 * (1 + np.abs(alone).max())
        if not np.allclose(alone, whole[i], rtol=0 if exact else _ROUNDING, atol=near):
            raise Broken(f"the {what} of record {i} depends on the records beside it")
    lost = _lost(case.block)
    if lost is not None and not np.array_equal(made(lost)[0], null):
        raise Broken(f"a record of only NaN does not become the null {what}")
    return whole


def check_clip(case: DomainCase) -> LawFinding:
    """A contribution is finite and follows from its record alone; null, sums, JSON have form."""
    domain, clipped = case.domain, _contributions(case.domain, case.block)
    bad = np.flatnonzero(~np.isfinite(clipped).all(axis=1))
    if bad.size:
        raise Broken(f"clip lets NaN or infinity through, at record {bad[0]} of those tried")
    null = np.asarray(domain.null(), dtype=np.float64)
    if null.shape != (domain.size,) or not np.isfinite(null).all():
        raise Broken(f"null() must be finite and of shape ({domain.size},)")
    if not np.array_equal(null, domain.null()):
        raise Broken("null() is not the same every time")
    again = _check_rows(case, partial(_contributions, domain), null, "contribution")
    if not np.array_equal(clipped, again):
        raise Broken("clip gives another result the second time")
    many, form = np.zeros((3, domain.size)), domain.to_dict()
    if np.shape(domain.decode(many)) != (3, *np.shape(domain.decode(many[0]))):
        raise Broken("decode gives three sums another shape than one")
    if json.loads(json.dumps(form, allow_nan=False)) != form:
        raise Broken(f"to_dict() = {form!r} does not survive JSON")
    return f"{len(clipped)} records, alone and together"


def _others(case: DomainCase, rows: NDArray[Any], null: NDArray[Any]) -> NDArray[Any]:
    """What may stand in the place of one of these contributions."""
    null = null[None]
    others = {Adjacency.ZERO_OUT: null, Adjacency.ADD_REMOVE: 0 * null}
    return others.get(case.adjacency, rows)


def check_sensitivity(case: DomainCase) -> LawFinding:
    """No two contributions are further apart than `sensitivity` says."""
    domain, said = case.domain, []
    null = np.asarray(domain.null(), dtype=np.float64)
    clipped = np.concatenate([_contributions(domain, case.block), null[None]])
    clipped = np.unique(np.clip(clipped, -_HUGE, _HUGE), axis=0)  # far enough, without overflow
    for norm in case.norms:
        limit, order = float(domain.sensitivity(case.adjacency, norm)), exponent_of(norm)
        others = _others(case, clipped, null)
        far = max(np.linalg.norm(clipped - one, ord=order, axis=1).max() for one in others)
        if not far <= limit * (1 + _ROUNDING):
            raise Broken(f"two contributions are {far:.9g} apart in {norm}, said is {limit:.9g}")
        close = "attained" if far >= limit * (1 - 1e-6) else "loose, or not attained here"
        said.append(f"{norm}: {far:.6g} of {limit:.6g} ({close})")
    return "; ".join(said)


def check_integers(case: DomainCase) -> LawFinding:
    """Integers follow from the record alone, and keep the same sensitivity to the last step."""
    domain = case.domain
    if not has_integers(domain):
        raise NotApplicable("the domain does not clip to integers")
    size, found = largest_number(domain) or 1.0, []
    for grid in (fitting_grid(domain, size * scale) for scale in (1.0, _SMALL)):
        null = domain.null_integers(grid)
        steps = _check_rows(case, partial(_integers, domain, grid), null, "integers")
        turned = each_float(case.block, np.asfortranarray)
        if not np.array_equal(_integers(domain, grid, turned), steps):
            raise Broken("integers depend on how the block lies in memory")
        steps = np.unique(np.concatenate([steps, null[None]]), axis=0)
        largest = domain.integer_bound(grid)["largest"]
        if steps.min() < -largest or steps.max() > largest:
            raise Broken(f"an integer beyond {largest}, which integer_bound() calls the largest")
        for norm in case.norms:
            limit, order = float(domain.sensitivity(case.adjacency, norm)), exponent_of(norm)
            for other in _others(case, steps, null):
                far = np.linalg.norm((steps - other).astype(float), ord=order, axis=1)
                change = [int(x) for x in steps[far.argmax()] - other]
                if _longer(change, order, Fraction(limit) / Fraction(grid.step)):
                    raise Broken(f"two integer contributions are more than {limit:.9g} apart")
        found.append(f"{len(steps)} different ones on {grid}")
    return "; ".join(found)


def _integers(domain: IntegerDomain[Any], grid: Grid, block: Any) -> NDArray[np.int64]:
    with np.errstate(all="ignore"):
        steps = domain.integers(block, grid)
    if steps.dtype != np.int64 or steps.shape != (length(block), domain.size):
        raise Broken(f"integers returns {steps.dtype} of shape {steps.shape}")
    return steps


def _longer(change: list[int], p: float, limit: Fraction) -> bool:
    """Whether the ℓp norm of integers is above a limit; exact for ℓ1, ℓ2, ℓ∞ and whole p."""
    sizes = [abs(x) for x in change]
    if p == np.inf:
        return max(sizes) > limit
    if p == int(p):
        return bool(sum(x ** int(p) for x in sizes) > limit ** int(p))
    return float(np.linalg.norm(np.array(sizes, dtype=float), ord=p)) > limit * (1 + _ROUNDING)


DOMAIN_CHECKS = (check_clip, check_sensitivity, check_integers)
T = TypeVar("T")
_CLOSE = 1e-9  # Of a number that may be rounded otherwise at another place of a matrix product
_MOST_CONSTANTS = 16
_SIZES = (2, 3)  # Blocks that small are tried too
_LARGE = (33, 100, 257, 1_000)  # And that large


def check_row_local(function: Callable[[T], Any], block: T, other: T) -> None:
    """Checks that a function for `Rows.map_rows` acts on each row by itself.

    Args:
        function: takes a block (leading axis: users).
        block: at least two rows to try.
        other: one more row, as a block of one, to replace each row with.

    Raises:
        InterferenceError: permuting rows does not permute the results; replacing rows, also by
            copies of others, by extreme, tiny or missing numbers and by numbers that the function's
            code mentions, changes another row's result, and so does replacing a row beside such
            rows; a block fails though none of its rows does by itself; a second call gives
            something else; or the function writes to its input.
    """
    if length(block) < 2 or length(other) != 1:
        raise ValueError("block needs at least two rows, other exactly one")
    block, other = own_copy((block, other))
    _check_twice(function, block, other)
    n = length(block)
    for size in sorted({n, *(size for size in _SIZES if size < n)}):
        part = record_at(block, np.arange(size))
        trial = _Trial(function, part)
        trial.check_order()
        trial.check_size(_result(function, block))
        for i in range(size):
            alone = np.arange(size) == i
            trial.check(other, alone, "by another row")
            trial.check(record_at(part, np.array([(i + 1) % size])), alone, "by a copy of another")
            trial.check(record_at(part, np.array([i])), ~alone, "by copies of one")
    trial = _Trial(function, block)
    for size in (*_LARGE, *mined(function, most=_MOST_CONSTANTS).sizes(_LARGE[-1])):
        if size > n:
            trial.check_size(_result(function, record_at(block, np.arange(size) % n)))
    for number, (what, row) in enumerate(odd_rows(function, block)):
        trial.check(row, np.arange(n) == number % n, f"by one of {what}")
    for size in (*_LARGE, *mined(function, most=_MOST_CONSTANTS).sizes(_LARGE[-1])):
        if size > n:
            trial.check_size(_result(function, record_at(block, np.arange(size) % n)))
    for what, row in odd_rows(None, block):
        trial.check(row, np.arange(n) != 0, f"by rows of {what}")
        _check_beside(function, block, other, what, row)


def _check_beside(
    function: Callable[[Any], Any], block: Any, other: Any, what: str, row: Any
) -> None:
    n = length(block)
    for first in {0, n // 2}:
        changed = np.isin(np.arange(n), (first, first + 1) if n > 3 else (first,))
        mixed = record_at(join([block, row]), np.where(changed, n, np.arange(n)))
        trial, beside = _Trial(function, mixed), f"beside rows of {what}"
        for at in {(first - 1) % n, (int(changed.nonzero()[0][-1]) + 1) % n}:
            trial.check(other, np.arange(n) == at, f"by another row, {beside},")
        trial.check(other, ~changed, f"by another row, {beside},")


def untouched(before: Any, after: Any, rows: NDArray[np.bool_]) -> bool:
    """Whether two results agree to the last bit in the rows ``rows``."""
    first, second = list(leaves(before)), list(leaves(after))
    return len(first) == len(second) and all(
        _same_bits(x, y, rows) for x, y in zip(first, second, strict=True)
    )


def _same_bits(x: NDArray[Any], y: NDArray[Any], rows: NDArray[np.bool_]) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    x, y = x[rows], y[rows]
    if x.dtype.kind in "fc":  # what else a NaN holds is nobody's
        x, y = (np.where(np.isnan(z), np.nan, z) for z in (x, y))
    return bool(np.array_equal(x, y)) if x.dtype.hasobject else x.tobytes() == y.tobytes()


class _Trial:
    def __init__(self, function: Callable[[Any], Any], block: Any) -> None:
        self._function, self._block, self._n = function, block, length(block)
        self._before = _result(function, block)

    def check(self, row: Any, where: NDArray[np.bool_], how: str) -> None:
        new = record_at(join([self._block, row]), np.where(where, self._n, np.arange(self._n)))
        after = _result(self._function, new)
        if self._before is None or after is None:  # a row fails by itself, and is null by itself
            return
        if not untouched(self._before, after, ~where):
            rows = ", ".join(map(str, np.flatnonzero(where)[:3]))
            raise InterferenceError(
                f"replacing row {rows}{', …' if where.sum() > 3 else ''} of {self._n} {how} "
                "changes other rows' results"
            )

    def check_order(self) -> None:
        n, before = self._n, self._before
        for order in (np.roll(np.arange(n), 1), np.arange(n)[::-1], *_sorted_orders(self._block)):
            after = _result(self._function, record_at(self._block, order))
            if before is not None and not _all_close([x[order] for x in before], after):
                raise InterferenceError("permuting the rows does not permute the results")

    def check_size(self, whole: Any) -> None:
        if whole is None or self._before is None:
            return
        if not _all_close([x[: self._n] for x in whole], self._before):
            raise InterferenceError(f"a row's result depends on how many there are: {self._n}")


def _sorted_orders(block: Any) -> Iterator[NDArray[np.intp]]:
    for leaf in leaves(block):
        if leaf.dtype.kind in "fiu" and leaf.size:
            up = np.argsort(leaf.reshape(len(leaf), -1)[:, 0], kind="stable")
            yield from (up, up[::-1])
            return


def _all_close(first: Any, second: Any) -> bool:
    return second is not None and len(first) == len(second) and all(map(_close, first, second))


def _close(x: NDArray[Any], y: NDArray[Any]) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind not in "fc":
        return bool(np.array_equal(x, y))
    size = np.abs(np.where(np.isfinite(x), x, 0.0)).max(axis=tuple(range(1, x.ndim)), initial=0.0)
    near = _CLOSE * size.reshape(-1, *(1,) * (x.ndim - 1))
    with np.errstate(all="ignore"):
        return bool(np.isclose(x, y, rtol=_CLOSE, atol=near, equal_nan=True).all())


def _check_twice(function: Callable[[T], Any], block: T, other: T) -> None:
    n, before = length(block), [np.array(leaf) for leaf in leaves(block)]
    everywhere = np.ones(n, dtype=bool)
    first = _result(function, block)
    if not untouched(tuple(before), tuple(leaves(block)), everywhere):
        raise InterferenceError("the function writes to the rows it is given")
    _result(function, record_at(join([block, other]), np.full(n, n)))
    again = _result(function, block)
    known = first is not None and again is not None
    if first is not again and not (known and untouched(first, again, everywhere)):
        raise InterferenceError("the same rows give another result after a call with other rows")


def _result(function: Callable[[T], Any], block: T) -> Any:
    """What the function makes of a block; None where a row of it fails also by itself."""
    n = length(block)
    problem = _attempt(function, block, n)
    if problem is not None:
        return problem
    if all(_attempt(function, record_at(block, slice(i, i + 1)), 1) is not None for i in range(n)):
        raise InterferenceError("the function fails on a block of rows and on none by itself")
    return None


def _attempt(function: Callable[[T], Any], block: T, n: int) -> Any:
    """A copy of the result, which a function may overwrite later; None for a failure."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = function(block)
        arrays = tuple(np.array(leaf) for leaf in leaves(result))
        return arrays if length(arrays) == n else None
    except Exception:
        return None


_NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 10.0, 100.0, -1e3, 1e6, -1e6, 1e12, 1e100, -1e300,
            1e-12, 1e-300, 5e-324)  # fmt: skip
_FEW = (0.0, 1.0, 1e6, -1e6, 1e-12)


def odd_rows(function: Callable[..., Any] | None, block: Any) -> Iterator[tuple[str, Any]]:
    """Rows, as blocks of one, on which a function may do something special, and what they hold.
    Without a function the few that most of them would do something special on."""
    row = record_at(block, slice(0, 1))
    if function is None:
        return rows_about(row, _FEW, each=False)
    mentioned = mined(function, most=_MOST_CONSTANTS).values()
    return rows_about(row, (*_NUMBERS, *mentioned))
