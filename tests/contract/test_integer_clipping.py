"""Clipping to integers: sensitivities in exact arithmetic, whatever scaling and rounding did."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mutation import Edit, InspectionCase, Mutant
from numpy.typing import NDArray

from privlearn.rows.domains import (
    Ball,
    Box,
    Categories,
    Counted,
    Domain,
    GradientHessian,
    IntegerDomain,
    Norm,
    OneOf,
    PSDTrace,
    balls,
    fitting_grid,
    has_integers,
    largest_number,
    matrices,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
NORMS: dict[Norm, int] = {"l1": 1, "l2": 2, "linf": 1, 3.0: 3}
"""And the power of the norm that is compared."""

DOMAINS: tuple[IntegerDomain[Any], ...] = (
    *(Ball(1.0, d, norm) for norm in ("l1", "l2", "linf", 1.5, 3.0) for d in (1, 3, 15)),
    Ball(0.1, 7),
    Ball(3e-100, 2),
    Ball(1.0, 1275),
    Ball(1.0, 1275, "l1"),
    Box(0, 1, 3),
    Box(-1, 1, 4),
    Box(0.3, 1.1, 2),
    Box(-7.7, -0.1, 3),
    PSDTrace(1.0, 1),
    PSDTrace(0.7, 3),
    PSDTrace(0.7, 3, "triangle"),
    Counted(Ball(1.0, 3)),
    Counted(Box(-1, 2, 2), 0.3),
    OneOf(Ball(1.0, 3), 2),
    OneOf(Box(0.3, 1.1, 2), 3),
    OneOf(Categories(3), 2),
    OneOf(PSDTrace(1.0, 2), 2),
    GradientHessian(1),
    GradientHessian(2, 2.0),
    OneOf(GradientHessian(2), 2),
    Categories(2),
    Categories(7),
)


def extent(domain: IntegerDomain[Any]) -> float:
    return largest_number(domain)


def grids(domain: IntegerDomain[Any]) -> list[Grid]:
    """Coarse ones of some dozens of steps, an ordinary one, and one of almost 2^61 steps."""
    size = extent(domain)
    coarse = [Grid(size * 2.0**30 / steps, 30) for steps in (40.0, 60.5, 97.3)]
    return [*coarse, fitting_grid(domain, 1.3 * size), fitting_grid(domain, size / 2.0**20.9)]


def vectors(size: int, radius: float, rng: np.random.Generator) -> Array:
    """Rows just inside and outside, far off, subnormal, of signs that alternate, and no numbers."""
    flat, alternating = np.ones(size), (-1.0) ** np.arange(size)
    axis, random = np.eye(size)[size // 2], rng.normal(size=(3, size))
    few = np.where(np.arange(size) < 2, 0.8, 0.01)
    made = [flat, -flat, alternating, -alternating, axis, -axis, few, *random, *(random * few)]
    near = (1 - 2.0**-50, 1.0, 1 + 2.0**-50, 1 - 1e-12, 0.5, 2.0)
    rows = []
    for row in made:
        for p in (1, 2, math.inf):
            rows += [row / np.linalg.norm(row, ord=p) * radius * factor for factor in near]
    with np.errstate(all="ignore"):
        rows += [flat * f for f in (1e100, 1e155, 1e200, 1.7e308, 5e-324, 1e-310, -0.0)]
        rows += [few * -1e308, axis * 1e308, flat * math.nan, axis * math.inf, axis * -math.inf]
    return np.array(rows)


def records(domain: Domain[Any], rng: np.random.Generator) -> Any:
    match domain:
        case Ball() | Box():
            return vectors(domain.size, largest_number(domain), rng)
        case Counted():
            return records(domain.inner, rng)
        case PSDTrace():
            one = vectors(domain.dim, math.sqrt(domain.trace), rng)
            two = np.stack([one, 0.6 * one[rng.permutation(len(one))]], axis=1)
            pad = np.stack([one, np.zeros_like(one)], axis=1)
            angles = np.linspace(0, math.pi, 40)[:, None, None] * np.ones((1, 2, domain.dim))
            turned = np.zeros_like(angles)
            turned[:, 0, 0] = np.cos(angles[:, 0, 0])
            turned[:, 0, -1] = np.sin(angles[:, 0, 0])
            return np.concatenate([pad, two, 9 * turned])
        case GradientHessian():
            one = vectors(domain.dim, 1.0, rng)
            ends = rng.permutation(list(itertools.product((-7.0, 1.0, 0.3, 0.0), (1.0, 0.4, -2.0))))
            lines = np.hstack([one, np.resize(ends, (len(one), 2))])
            some = lines[rng.permutation(len(lines))] * 0.3
            return np.stack([lines, np.where(rng.random((len(one), 1)) < 0.5, some, 0)], axis=1)
        case Categories():
            odd = [-1, 0.5, domain.size, math.nan, math.inf, 1e300, -0.0]
            return np.array([*range(domain.size), *odd])
        case OneOf():
            inner = records(domain.inner, rng)
            arms = np.concatenate(
                [np.arange(len(inner) - 3) % domain.arms, [-1, math.nan, domain.arms]]
            )
            return inner, arms
    raise AssertionError(domain)


def exceeds(change: list[int], norm: Norm, most: int) -> bool:
    """Whether the p-th power of the norm of integers is above a whole number."""
    match norm:
        case "l1":
            return sum(map(abs, change)) > most
        case "l2":
            return sum(x * x for x in change) > most
        case "linf":
            return max(change) > most or min(change) < -most
    return sum(abs(x) ** 3 for x in change) > most


def neighbours(
    domain: IntegerDomain[Any], grid: Grid, rows: Integers, adjacency: Adjacency
) -> Iterator[list[int]]:
    distinct = [[int(x) for x in row] for row in np.unique(rows, axis=0)]
    if adjacency is Adjacency.REPLACE_ONE:
        # the longest ones, and some that lie in between
        distinct.sort(key=lambda row: -sum(x * x for x in row))
        chosen = distinct[:40] + distinct[40::7]
        pairs = itertools.combinations(chosen[: 8 if domain.size > 100 else 40], 2)
        for one, other in pairs:
            yield [a - b for a, b in zip(one, other, strict=True)]
        return
    null = [int(x) for x in domain.null_integers(grid)]
    base = null if adjacency is Adjacency.ZERO_OUT else [0] * domain.size
    for row in distinct:
        yield [a - b for a, b in zip(row, base, strict=True)]


def too_far(domain: IntegerDomain[Any], grid: Grid, rows: Integers) -> str | None:
    """Neighbours among these rows further apart than `sensitivity` says, in any relation."""
    if domain.size > 100:
        rows = rows[:: len(rows) // 40]
    step = Fraction(grid.step)
    everything = np.concatenate([rows, domain.null_integers(grid)[None]])
    for adjacency in Adjacency:
        limits = [
            (norm, math.floor((Fraction(domain.sensitivity(adjacency, norm)) / step) ** power))
            for norm, power in NORMS.items()
        ]
        for change in neighbours(domain, grid, everything, adjacency):
            for norm, limit in limits:
                if exceeds(change, norm, limit):
                    return f"{adjacency} {norm} on {grid}"
    return None


def clipped(domain: IntegerDomain[Any], block: Any, grid: Grid) -> Integers:
    with np.errstate(all="raise"):  # and nothing is said about rows
        rows = domain.integers(block, grid)
    assert rows.dtype == np.int64
    assert rows.shape[1:] == (domain.size,)
    return rows


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_no_two_integer_contributions_are_further_apart_than_the_domain_says(
    domain: IntegerDomain[Any],
) -> None:
    block = records(domain, np.random.default_rng(0))
    for grid in grids(domain):
        rows = clipped(domain, block, grid)
        assert too_far(domain, grid, rows) is None
        bound = domain.integer_bound(grid)
        assert json.loads(json.dumps(bound)) == bound
        assert rows.min() >= -bound["largest"]
        assert rows.max() <= bound["largest"] < 2**61
        assert np.abs(domain.null_integers(grid)).max() <= bound["largest"]


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_integers_are_within_a_step_of_what_is_clipped_in_doubles(
    domain: IntegerDomain[Any],
) -> None:
    block = records(domain, np.random.default_rng(1))
    if isinstance(domain, Ball):  # in doubles, what is too long by far becomes null
        block = block[~(np.isfinite(block) & (np.abs(block) > 1e150)).any(axis=1)]
    with np.errstate(all="ignore"):
        near = domain.clip(block)
    for grid in grids(domain)[3:]:
        rows = clipped(domain, block, grid)
        lost = np.abs(rows * grid.step - near).max()
        allowed = grid.step * max(domain.size, 2) + 1e-11 * extent(domain)
        assert lost <= allowed, "no row that was usable became null"


@pytest.mark.parametrize(
    "domain",
    [Ball(1.0, d, norm) for d in (1, 15, 100) for norm in ("l1", "l2", "linf", 3.0, 1.3, 1e12)],
    ids=repr,
)
def test_no_row_of_numbers_is_lost(domain: Ball) -> None:
    rng = np.random.default_rng(2)
    block = rng.normal(size=(500, domain.size)) * 10 ** rng.uniform(-1, 20, size=(500, 1))
    block[::2] = np.sign(block[::2]) * 7  # flat ones
    for grid in grids(domain)[3:]:
        assert domain.integers(block, grid).any(axis=1).all()


def test_only_the_check_of_the_integers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled beyond the set, rows are null, and none is outside."""
    for module in (balls, matrices):
        monkeypatch.setattr(module, "shrunk", lambda terms: 1 + 1e-3)
    monkeypatch.setattr(balls, "_bounds", balls._bounds.__wrapped__)
    for domain in DOMAINS:
        if isinstance(domain, Ball | PSDTrace) and domain.size < 100:
            block = records(domain, np.random.default_rng(0))
            for grid in grids(domain)[::2]:
                rows = clipped(domain, block, grid)
                assert too_far(domain, grid, rows) is None
            far = vectors(domain.size, 1e6, np.random.default_rng(0))[:6]
            assert isinstance(domain, PSDTrace) or not domain.integers(far, grid).any()


# ---- one canonical clip


def layouts(block: Array) -> list[Array]:
    """The same numbers, laid out in other ways."""
    wide = np.repeat(block, 2, axis=-1)
    tall = np.repeat(block, 3, axis=0)
    return [
        np.asfortranarray(block),
        wide[..., ::2],
        tall[::3],
        np.array(block[::-1])[::-1],
        np.array(block[..., ::-1])[..., ::-1],
    ]


def layout_matters(domain: IntegerDomain[Any], block: Array) -> str | None:
    grid = fitting_grid(domain, extent(domain) / 2.0**20)  # 2^60 steps: no rounding is hidden
    rows = domain.integers(block, grid)
    for n, other in enumerate(layouts(block)):
        assert np.array_equal(other, block)
        if not np.array_equal(domain.integers(other, grid), rows):
            return f"layout {n}"
    for i in (0, 1, len(block) // 2, len(block) - 1):
        if not np.array_equal(domain.integers(block[i : i + 1], grid)[0], rows[i]):
            return f"row {i} by itself"
    order = np.random.default_rng(0).permutation(len(block))
    if not np.array_equal(domain.integers(block[order], grid), rows[order]):
        return "order"
    return None


@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 15, 129, 1275])
@pytest.mark.parametrize("norm", ["l1", "l2", "linf", 3.0])
def test_layout_and_company_of_a_row_do_not_matter(norm: Norm, d: int) -> None:
    block = np.random.default_rng(d).normal(size=(90 if d > 100 else 300, d))
    assert layout_matters(Ball(1.0, d, norm), block) is None


def test_layout_of_factors_and_boxes_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    for m, dim in ((1, 5), (10, 5), (7, 16), (3, 1)):
        factors = rng.normal(size=(100, m, dim))
        assert layout_matters(PSDTrace(1.0, dim), factors) is None
    for m, dim in ((1, 5), (10, 5), (7, 16), (3, 1)):
        lines = rng.normal(size=(100, m, dim + 2))
        assert layout_matters(GradientHessian(dim), lines) is None
    assert layout_matters(Box(-1, 1, 15), rng.normal(size=(300, 15))) is None


def test_numbers_of_other_types_are_the_same_numbers() -> None:
    rng = np.random.default_rng(0)
    whole = rng.integers(-9, 9, size=(40, 15))
    single = rng.normal(size=(40, 15)).astype(np.float32)
    some: list[IntegerDomain[Any]] = [Ball(1.0, 15), Ball(20.0, 15, "l1"), Box(-1, 3, 15)]
    for domain in some:
        grid = fitting_grid(domain, 1.0)
        for block in (whole, whole.astype(np.int8), single, single.astype(">f4")):
            same = block.astype(np.float64)
            assert np.array_equal(domain.integers(block, grid), domain.integers(same, grid))


# ---- sets small enough to be listed


@pytest.mark.parametrize("norm", ["l1", "l2", "linf", 1.5, 3.0])
@pytest.mark.parametrize("steps", [1.0, 2.4, 5.5])
def test_whole_balls_of_integers_are_as_wide_as_the_domain_says(norm: Norm, steps: float) -> None:
    for d in (1, 2):
        domain, grid = Ball(0.7, d, norm), Grid(0.7 * 2.0**30 / steps, 30)
        most = domain.integer_bound(grid)["largest"]
        assert most == math.floor(steps * (1 - 2.0**-42))
        listed = np.array(list(itertools.product(range(-most - 1, most + 2), repeat=d)))
        everything = domain.integers(listed * grid.step, grid)
        assert too_far(domain, grid, everything) is None
        mesh = np.array(list(itertools.product(np.linspace(-9, 9, 31), repeat=d))) * grid.step
        rows = {tuple(row) for row in domain.integers(mesh, grid).tolist()}
        inside = {tuple(row) for row in everything.tolist()}
        reached = {row for row in inside if sum(x != 0 for x in row) <= 1}
        assert reached <= rows | {(0,) * d}
        assert max(abs(x) for row in rows for x in row) <= most


def matrices_too_far() -> str | None:
    """All 2 × 2 matrices of rank 1 and of the largest trace, on grids of a few dozen steps."""
    angles = np.linspace(0, math.pi, 400, endpoint=False)
    block = 5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None]
    for layout, steps in itertools.product(("svec", "triangle"), (12.0, 30.3, 60.0)):
        domain = PSDTrace(1.0, 2, layout)  # type: ignore[arg-type]
        grid = Grid(2.0**30 / steps, 30)
        rows = domain.integers(block, grid)
        squares = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
        limit = Fraction(domain.sensitivity(Adjacency.REPLACE_ONE)) / Fraction(grid.step)
        if int(squares.max()) > limit**2:
            return f"{layout} on {grid}"
    return None


def test_truncated_matrices_are_no_further_apart_than_the_diameter() -> None:
    assert matrices_too_far() is None


@pytest.mark.parametrize("layout", ["svec", "triangle"])
def test_integer_matrices_are_as_close_to_the_product_as_their_proof_says(layout: Any) -> None:
    """Against the exact product of factors that need no scaling, on the finest grid."""
    rng = np.random.default_rng(0)
    for m, dim in ((1, 1), (1, 6), (40, 6), (300, 3)):
        domain = PSDTrace(1.0, dim, layout)
        factors = rng.normal(size=(4, m, dim))
        factors *= 0.999 / np.linalg.norm(factors, axis=(1, 2), keepdims=True)
        grid = fitting_grid(domain, 2.0**-20)
        for factor, row in zip(factors, domain.integers(factors, grid), strict=True):
            exact = [[Fraction(float(x)) for x in line] for line in factor]
            off = Fraction(0)
            for (i, j), steps in zip(zip(*np.triu_indices(dim), strict=True), row, strict=True):
                entry = sum((line[i] * line[j] for line in exact), start=Fraction(0))
                weight = Fraction(math.isqrt(2 * 10**60), 10**30) if i != j else Fraction(1)
                weight = weight if layout == "svec" else Fraction(1)
                off += (entry * weight / Fraction(grid.step) - int(steps)) ** 2
            rounding = (max(m, 4096) + domain.size + 8) * Fraction(1, 2**52)
            error = math.isqrt(domain.size) + 2 + rounding / Fraction(grid.step)
            assert off <= error**2


def test_no_answer_is_exactly_the_mean_of_all_answers() -> None:
    for k, scale in itertools.product((2, 3, 7, 1000), (0.1, 1.0, 3.7)):
        domain, grid = Categories(k), Grid(scale, 40)
        rows = domain.integers(np.arange(k), grid)
        assert np.array_equal(rows.sum(axis=0), k * domain.null_integers(grid))
        assert np.array_equal(rows, np.eye(k, dtype=np.int64) * rows[0, 0])
        assert 0 <= 1 - rows[0, 0] * Fraction(grid.step) <= Fraction(1, 2**41) + k * grid.step


def test_counts_between_0_and_1_reach_both_ends() -> None:
    grid = Grid(1.0, 40)
    assert Box(0, 1, 1).integers(np.array([[0.0], [1.0], [9.0]]), grid).tolist() == [
        [0],
        [2**40],
        [2**40],
    ]


# ---- broken twins

BALLS = (Ball(1.0, 3, "l1"), Ball(1.0, 15), Ball(1.0, 3, "linf"), Ball(1.0, 4, 3.0))


def balls_too_far(some: tuple[IntegerDomain[Any], ...] = BALLS) -> str | None:
    for domain in some:
        block = records(domain, np.random.default_rng(0))
        for grid in grids(domain):
            with np.errstate(all="ignore"):
                found = too_far(domain, grid, domain.integers(block, grid))
            if found is not None:
                return found
    return None


def _edit(target: str, old: str, new: str) -> Edit:
    return Edit(f"privlearn.rows.domains.{target}", old, new)


_BOXES = (Box(0.3, 1.1, 2), Box(-7.7, -0.1, 3))


@pytest.mark.parametrize(
    ("edits", "look"),
    [
        pytest.param(
            (
                _edit(
                    "balls:Ball.integers",
                    """part * factors[:, None]  # toward zero
            drop(steps[tile], inside(steps[tile], radius, exponent))""",
                    """np.rint(part * factors[:, None])
            drop(steps[tile], with_norms(part * factors[:, None], exponent)[1] <= radius)""",
                ),
            ),
            balls_too_far,
            id="checked in doubles, then rounded to even",
        ),
        pytest.param(
            (_edit("clipping:shaped", "np.ascontiguousarray(values)", "values"),),
            lambda: layout_matters(
                Ball(1.0, 129), np.random.default_rng(0).normal(size=(300, 129))
            ),
            id="sums in the order of the memory",
        ),
        pytest.param(
            (_edit("matrices:_trace_in_steps", "max(math.floor(trace), 0)", "radius"),),
            matrices_too_far,
            id="truncation of matrices unpaid",
        ),
        pytest.param(
            (
                _edit(
                    "boxes:_ends_in_steps",
                    "-floor_in_steps(-Fraction(box.low)",
                    "floor_in_steps(Fraction(box.low)",
                ),
            ),
            lambda: balls_too_far(_BOXES),
            id="the lower end of a box rounded down",
        ),
        pytest.param(
            (
                _edit(
                    "boxes:Box.integers", "np.clip(steps[tile], low, high, out=steps[tile])", "pass"
                ),
            ),
            lambda: balls_too_far(_BOXES),
            id="boxes clamped in doubles only",
        ),
        pytest.param(
            (
                _edit(
                    "categories:_share_in_steps",
                    "WITHIN / domain.size",
                    "(1 + 1/domain.size)*WITHIN",
                ),
            ),
            lambda: balls_too_far((Categories(7),)),
            id="answers above 1",
        ),
        pytest.param(
            (
                _edit(
                    "clipping:radius_in_steps", "Fraction(radius) * WITHIN", "Fraction(radius) + 1"
                ),
            ),
            balls_too_far,
            id="a radius rounded up",
        ),
    ],
)
def test_broken_clipping_is_caught(edits: tuple[Edit, ...], look: Callable[[], str | None]) -> None:
    assert look() is None
    assert Mutant("broken", "Clipping.", edits, InspectionCase(look)).check().caught


def test_rounding_to_even_is_harmless_where_the_integers_are_checked() -> None:
    edit = _edit(
        "balls:Ball.integers", "= part * factors[:, None]", "= np.rint(part * factors[:, None])"
    )
    assert not Mutant("rounds", "To even.", (edit,), InspectionCase(balls_too_far)).check().caught


# ---- what is refused, and what has no integers


class Halved:
    """A domain of somebody else's."""

    size = 2

    def clip(self, block: Array) -> Array:
        return np.clip(block, -1, 1) / 2

    def null(self) -> Array:
        return np.zeros(2)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return 2.0

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "halved"}


def test_who_clips_to_integers_can_be_asked() -> None:
    theirs: Domain[Array] = Halved()
    assert not has_integers(theirs)
    assert all(has_integers(domain) for domain in DOMAINS)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (Box(0.3, 0.4, 1), r"Box\(low=0.3, .*: holds no multiple of the step 1.0 .* too large"),
        (Categories(3), r"Categories\(size=3\): 1/3 is less than the step 1.0"),
        (PSDTrace(2.0, 3), r"PSDTrace\(trace=2.0.*: the trace is 1 steps .* too large for it"),
        (OneOf(Categories(3), 2), r"Categories\(size=3\): 1/3 is less"),
        (OneOf(Box(0.3, 0.4, 1), 2), r"Box\(low=0.3, .*: holds no multiple"),
    ],
    ids=repr,
)
def test_sets_without_room_on_their_grid_are_refused_when_it_is_made(
    domain: IntegerDomain[Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        domain.integer_bound(Grid(2.0**30, 30))
    with pytest.raises(ValueError, match=message[:8]):
        fitting_grid(domain, 2.0**40)


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        (Ball(1e9, 2), "radius = 1000000000.0"),
        (Box(-1e9, 1, 2), "low = -1000000000.0"),
        (Box(0, 1e9, 2), "high = 1000000000.0"),
        (PSDTrace(1e9, 2), "radius = 1000000000.0"),
        (OneOf(Ball(1e9, 2), 2), "radius = 1000000000.0"),
        (Categories(2), "answer = 1.0"),
    ],
    ids=repr,
)
def test_grids_too_fine_for_64_bits_are_refused(domain: IntegerDomain[Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: more than 2.62 steps of Grid"):
        domain.integer_bound(Grid(1e-8, 40))


def test_blocks_of_another_shape_are_refused_and_empty_ones_are_fine() -> None:
    grid = Grid(1.0, 40)
    for domain in (Ball(1.0, 3), Box(0, 1, 3), PSDTrace(1.0, 3)):
        with pytest.raises(ValueError, match="is required"):
            domain.integers(np.zeros((2, 5)), grid)
        empty = np.zeros((0, 4, 3) if isinstance(domain, PSDTrace) else (0, 3))
        assert domain.integers(empty, grid).shape == (0, domain.size)
    assert not PSDTrace(1.0, 3).integers(np.zeros((2, 0, 3)), grid).any()


def test_numbers_far_below_a_step_vanish_without_a_warning() -> None:
    """It would tell that they are there, where the caller asked for all warnings of floats."""
    domain = Ball(2.0**60, 1)
    grid = fitting_grid(domain, 2.0**60)
    with np.errstate(all="raise"):
        assert not domain.integers(np.array([[5e-324], [1e-310]]), grid).any()


def test_rows_are_not_written_to() -> None:
    rng = np.random.default_rng(0)
    for domain in DOMAINS:
        block = records(domain, rng)
        leaves = block if isinstance(block, tuple) else (block,)
        for leaf in leaves:
            leaf.setflags(write=False)
        domain.integers(block, fitting_grid(domain, extent(domain)))


def test_at_two_places_a_distance_is_rounded_up() -> None:
    rng = np.random.default_rng(0)
    for high in rng.uniform(0.1, 9, size=200):
        domain = OneOf(Box(0, float(high), 1), 2)
        stated = domain.sensitivity(Adjacency.REPLACE_ONE)
        assert Fraction(stated) ** 2 >= 2 * Fraction(float(high)) ** 2
        shifted = OneOf(replace(Box(0.05, 1, 1), high=float(high)), 3)
        stated = shifted.sensitivity(Adjacency.ADD_REMOVE)
        assert Fraction(stated) ** 2 >= 3 * Fraction(float(high)) ** 2


@pytest.mark.parametrize("norm", ["l1", "l2", "linf", 1.5, 3.0, 100.3])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 17, 64, 129])
def test_a_row_becomes_the_same_among_any_others(norm: Norm, size: int) -> None:
    """To the bit: under add-remove, and for partial sums, the number of rows differs."""
    rng = np.random.default_rng(size)
    rows = rng.normal(size=(41, size)) * 10.0 ** rng.uniform(-3, 3, size=(41, 1))
    domain = Ball(1.0, size, norm)
    grid = fitting_grid(domain, 0.7)
    whole = domain.integers(rows, grid)
    for start, stop in ((0, 1), (3, 5), (7, 41), (11, 24), (40, 41)):
        assert (domain.integers(rows[start:stop].copy(), grid) == whole[start:stop]).all()
    rows[20] = np.nan
    assert (np.delete(domain.integers(rows, grid) == whole, 20, axis=0)).all()
