"""The laws of a domain: what comes out of `clip` is as close together as `sensitivity` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.checking.neighbours import each_float, extreme_records
from privlearn.checking.reports import Broken, CheckReport, LawFinding, NotApplicable, perform_all
from privlearn.checking.session import note
from privlearn.errors import CheckError
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
