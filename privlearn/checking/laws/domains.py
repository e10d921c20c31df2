"""The laws of a domain: what comes out of `clip` is as close together as `sensitivity` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.checking.full_messages import told_in_full
from privlearn.checking.laws.report import Broken, LawFinding, NotApplicable, perform_all
from privlearn.checking.neighbours import each_float, extreme_records
from privlearn.checking.reports import CheckReport
from privlearn.checking.session import note
from privlearn.errors import CheckError
from privlearn.rows.domains import (
    Array,
    Domain,
    IntegerDomain,
    Norm,
    domain_from_dict,
    exponent_of,
    fitting_grid,
    has_integers,
    is_shipped,
    largest_number,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid
from privlearn.values.records import join, leaves, length, record_at

__tracebackhide__ = told_in_full

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
    report = domain_report(
        DomainCase(domain, tried_records(domain, records, seed), adjacency, norms)
    )
    note(report.summary())
    if raise_error:
        report.raise_if_bad()
    return report


def domain_report(case: DomainCase) -> CheckReport:
    """Only the results."""
    return perform_all(type(case.domain).__name__, DOMAIN_CHECKS, case)


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
            raise CheckError(
                f"records: give a block of example records for {type(domain).__name__}, which does "
                "not take plain vectors of its size"
            ) from None
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


def _copied(block: Any) -> Any:
    return record_at(block, np.arange(length(block)))


def contributions(domain: Domain[Any], block: Any) -> Array:
    """What `clip` makes of a block; raises `Broken` for another form than promised."""
    n = length(block)
    with np.errstate(all="ignore"):
        clipped = np.asarray(domain.clip(_copied(block)), dtype=np.float64)
    if clipped.shape != (n, domain.size):
        raise Broken(f"clip returns shape {clipped.shape} for {n} records of size {domain.size}")
    return clipped


def apart(clipped: Array, null: Array, adjacency: Adjacency, norm: Norm) -> float:
    """The largest distance of neighbours among contributions."""
    order, most = exponent_of(norm), 0.0
    clipped = np.clip(clipped, -_HUGE, _HUGE)  # far enough, without overflow
    if adjacency is Adjacency.ADD_REMOVE:
        return float(np.linalg.norm(clipped, ord=order, axis=1).max())
    if adjacency is Adjacency.ZERO_OUT:
        return float(np.linalg.norm(clipped - null, ord=order, axis=1).max())
    for row in clipped:
        most = max(most, float(np.linalg.norm(clipped - row, ord=order, axis=1).max()))
    return most


def check_clip_is_finite(case: DomainCase) -> LawFinding:
    """Whatever comes in, the contribution is finite and of the stated size."""
    clipped = contributions(case.domain, case.block)
    bad = np.flatnonzero(~np.isfinite(clipped).all(axis=1))
    if bad.size:
        raise Broken(f"clip lets NaN or infinity through, at record {bad[0]} of those tried")
    return f"{len(clipped)} records"


def check_sensitivity_holds(case: DomainCase) -> LawFinding:
    """No two contributions are further apart than `sensitivity` says."""
    clipped, null = contributions(case.domain, case.block), np.asarray(case.domain.null())
    distinct = np.unique(np.concatenate([clipped, null[None]]), axis=0)
    said = []
    for norm in case.norms:
        limit = float(case.domain.sensitivity(case.adjacency, norm))
        far = apart(distinct, null, case.adjacency, norm)
        if not far <= limit * (1 + _ROUNDING):
            raise Broken(
                f"two contributions are {far:.9g} apart in {norm}; sensitivity says {limit:.9g}"
            )
        close = "attained" if far >= limit * (1 - 1e-6) else "loose, or not attained here"
        said.append(f"{norm}: {far:.6g} of {limit:.6g} ({close})")
    return "; ".join(said)


def check_null_is_a_member(case: DomainCase) -> LawFinding:
    """The null contribution is fixed, finite, and what an unusable record becomes."""
    null = np.asarray(case.domain.null(), dtype=np.float64)
    if null.shape != (case.domain.size,) or not np.isfinite(null).all():
        raise Broken(f"null() must be finite and of shape ({case.domain.size},)")
    if not np.array_equal(null, case.domain.null()):
        raise Broken("null() is not the same every time")
    if not any(leaf.dtype.kind == "f" for leaf in leaves(case.block)):
        raise NotApplicable("records hold no floating-point numbers")
    lost = each_float(record_at(case.block, slice(0, 2)), lambda leaf: leaf * np.nan)
    if not np.array_equal(contributions(case.domain, lost), np.stack([null, null])):
        raise Broken("a record of only NaN does not become null()")
    return "a record of NaN becomes null()"


def check_clip_is_row_local(case: DomainCase) -> LawFinding:
    """A contribution follows only from its own record."""
    whole = contributions(case.domain, case.block)
    for i in _some(len(whole)):
        alone = contributions(case.domain, record_at(case.block, slice(i, i + 1)))[0]
        if not np.allclose(alone, whole[i], rtol=1e-9, atol=1e-12 * (1 + np.abs(alone).max())):
            raise Broken(f"the contribution of record {i} depends on the records beside it")
    return f"{len(whole)} records alone and together"


def check_clip_changes_nothing(case: DomainCase) -> LawFinding:
    """Clipping twice gives the same, and the records stay as they are."""
    first, second = contributions(case.domain, case.block), contributions(case.domain, case.block)
    if not np.array_equal(first, second):
        raise Broken("clip gives another result the second time")
    block = _copied(case.block)
    with np.errstate(all="ignore"):
        case.domain.clip(block)
    before, after = list(leaves(case.block)), list(leaves(block))
    if not all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
        for x, y in zip(before, after, strict=True)
    ):
        raise Broken("clip writes to the records it is given")
    return "deterministic"


def _grids(case: DomainCase) -> tuple[IntegerDomain[Any], list[Grid]]:
    if not has_integers(case.domain):
        raise NotApplicable("the domain does not clip to integers")
    domain, size = case.domain, largest_number(case.domain) or 1.0
    return domain, [fitting_grid(domain, size * scale) for scale in (1.0, _SMALL)]


def _integers(domain: IntegerDomain[Any], block: Any, grid: Grid) -> NDArray[np.int64]:
    with np.errstate(all="ignore"):
        steps = domain.integers(_copied(block), grid)
    if steps.dtype != np.int64 or steps.shape != (length(block), domain.size):
        raise Broken(f"integers returns {steps.dtype} of shape {steps.shape}")
    return steps


def check_integers_are_members(case: DomainCase) -> LawFinding:
    """Contributions in steps are as close together as `sensitivity` says, exactly."""
    domain, grids = _grids(case)
    found = [_members_on(case, domain, grid) for grid in grids]
    return "; ".join(f"{n} different ones on {grid}" for n, grid in zip(found, grids, strict=True))


def _members_on(case: DomainCase, domain: IntegerDomain[Any], grid: Grid) -> int:
    null = domain.null_integers(grid)
    steps = np.unique(np.concatenate([_integers(domain, case.block, grid), null[None]]), axis=0)
    largest = domain.integer_bound(grid)["largest"]
    if steps.min() < -largest or steps.max() > largest:
        raise Broken(f"an integer beyond {largest}, which integer_bound() calls the largest")
    others = {
        Adjacency.REPLACE_ONE: steps,
        Adjacency.ZERO_OUT: null[None],
        Adjacency.ADD_REMOVE: 0 * null[None],
    }[case.adjacency]
    for norm in case.norms:
        limit = float(domain.sensitivity(case.adjacency, norm))
        for other in others:
            far = np.linalg.norm((steps - other).astype(float), ord=exponent_of(norm), axis=1)
            change = [int(x) for x in steps[far.argmax()] - other]
            if _longer(change, exponent_of(norm), Fraction(limit) / Fraction(grid.step)):
                raise Broken(f"two integer contributions are more than {limit:.9g} apart in {norm}")
    return len(steps)


def _longer(change: list[int], p: float, limit: Fraction) -> bool:
    """Whether the ℓp norm of integers is above a limit; exact for ℓ1, ℓ2, ℓ∞ and whole p."""
    sizes = [abs(x) for x in change]
    if p == np.inf:
        return max(sizes) > limit
    if p == int(p):
        return bool(sum(x ** int(p) for x in sizes) > limit ** int(p))
    return float(np.linalg.norm(np.array(sizes, dtype=float), ord=p)) > limit * (1 + _ROUNDING)


def check_integers_are_row_local(case: DomainCase) -> LawFinding:
    """Integers follow from the record alone, bit for bit, and from no layout in memory."""
    domain, (grid, _) = _grids(case)
    whole = _integers(domain, case.block, grid)
    for i in _some(len(whole)):
        if not np.array_equal(
            _integers(domain, record_at(case.block, slice(i, i + 1)), grid)[0], whole[i]
        ):
            raise Broken(f"the integers of record {i} depend on the records beside it")
    turned = each_float(case.block, np.asfortranarray)
    with np.errstate(all="ignore"):
        if not np.array_equal(domain.integers(turned, grid), whole):
            raise Broken("integers depend on how the block lies in memory")
    lost = each_float(record_at(case.block, slice(0, 1)), lambda leaf: leaf * np.nan)
    floats = any(leaf.dtype.kind == "f" for leaf in leaves(case.block))
    if floats and not np.array_equal(_integers(domain, lost, grid)[0], domain.null_integers(grid)):
        raise Broken("a record of only NaN does not become null_integers()")
    return f"{len(whole)} records alone, together and in another layout"


def check_decode_keeps_size(case: DomainCase) -> LawFinding:
    """`decode` gives one and many sums their shape."""
    size = case.domain.size
    one, many = np.shape(case.domain.decode(np.zeros(size))), np.zeros((3, size))
    if np.shape(case.domain.decode(many)) != (3, *one):
        raise Broken(f"decode gives shape {one} to one sum and not (3, ...) to three")
    return f"shape {one}"


def check_domain_is_written_down(case: DomainCase) -> LawFinding:
    """Its JSON form names it fully."""
    form = case.domain.to_dict()
    if json.loads(json.dumps(form, allow_nan=False)) != form:
        raise Broken(f"to_dict() = {form!r} does not survive JSON")
    rebuilt = domain_from_dict(form)
    if rebuilt is None:
        return "its kind is not of this package, so an audit lists it as trusted code"
    if not is_shipped(case.domain):
        raise Broken(f"to_dict() says {form!r}, which is another domain")
    return "an audit can rebuild it"


def _some(n: int) -> Iterator[int]:
    yield from sorted({*range(min(n, 16)), *range(0, n, max(n // 64, 1))})


DOMAIN_CHECKS = (
    check_clip_is_finite,
    check_sensitivity_holds,
    check_null_is_a_member,
    check_clip_is_row_local,
    check_clip_changes_nothing,
    check_integers_are_members,
    check_integers_are_row_local,
    check_decode_keeps_size,
    check_domain_is_written_down,
)
