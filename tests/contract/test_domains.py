"""Domains: what comes out lies inside whatever comes in; sensitivities are true and reached."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from privlearn.mechanisms.linear_models import Labelled
from privlearn.rows.domains import (
    Ball,
    Box,
    Categories,
    Counted,
    Domain,
    Norm,
    PSDTrace,
    domain_from_dict,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid

Array = NDArray[np.float64]
NORMS: tuple[Norm, ...] = ("l1", "l2", "linf")
ORDER: dict[str, float] = {"l1": 1, "l2": 2, "linf": np.inf}
WILD = st.one_of(
    st.floats(),  # NaN, infinities, subnormals, up to 1.8e308
    st.sampled_from([1e308, -1.7e308, 5e-324, 1e-310, 0.0, -0.0, np.nan, np.inf, -np.inf, 1.0]),
)
RADII = st.one_of(st.floats(1e-100, 1e100), st.sampled_from([1.0, 1e-4, 1e-12, 1e-30, 3.0]))


def blocks(*tail: int | st.SearchStrategy[int]) -> st.SearchStrategy[Array]:
    shape = st.tuples(
        st.integers(1, 5), *(t if not isinstance(t, int) else st.just(t) for t in tail)
    )
    return shape.flatmap(lambda s: hnp.arrays(np.float64, s, elements=WILD))


def exact_norm(row: Array, norm: Norm) -> float:
    """The norm without overflow or underflow."""
    top = float(np.abs(row).max())
    if top == 0:
        return 0.0
    scaled = row / top
    return (
        top
        * {
            "l1": math.fsum(np.abs(scaled)),
            "l2": math.sqrt(math.fsum(scaled**2)),
            "linf": 1.0,
        }[str(norm)]
    )


@pytest.mark.parametrize("norm", NORMS)
def test_what_a_row_becomes_in_a_ball_does_not_depend_on_the_others(norm: Norm) -> None:
    """Rows by themselves and in a block: inside, near the bound on both sides, far out, no use."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 5))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    rows *= np.repeat([0.1, 0.9994, 0.9995, 0.9996, 1 - 1e-13, 1.0, 1 + 1e-13, 2, 1e200, 1e300], 6)[
        :, None
    ]
    rows[0], rows[1, 2], rows[2, 2], rows[3, 2] = 0.0, np.nan, np.inf, 1e-310
    ball = Ball(1.0, 5, norm)
    with np.errstate(all="raise"):  # and nothing is said about them
        block = ball.clip(rows)
        single = np.concatenate([ball.clip(row[None]) for row in rows])
    assert block.tobytes() == single.tobytes()


@pytest.mark.parametrize(
    "domain",
    [Ball(1.0, 2), Ball(1.0, 2, 3), Box(-1, 1, 2), PSDTrace(1.0, 2), Categories(3)],
    ids=repr,
)
def test_shipped_domains_say_nothing_about_odd_numbers(domain: Domain[Any]) -> None:
    odd = [np.nan, np.inf, -np.inf, 1e308, 1e-308, 5e-324, -0.0, 1e200, 1e-200, 0.5]
    numbers = np.array(list(itertools.product(odd, odd)))
    block = numbers[:, 0] if isinstance(domain, Categories) else numbers
    if isinstance(domain, PSDTrace):
        block = block[:, None]
    with np.errstate(all="raise"):
        assert np.isfinite(domain.clip(block)).all()


@given(blocks(3), RADII, st.sampled_from(NORMS))
def test_a_ball_holds_everything_that_was_clipped_into_it(
    block: Array, radius: float, norm: Norm
) -> None:
    ball = Ball(radius, 3, norm)
    clipped = ball.clip(block)
    assert clipped.shape == block.shape
    assert np.isfinite(clipped).all()
    for row, raw in zip(clipped, block, strict=True):
        assert exact_norm(row, norm) <= radius
        if not np.isfinite(raw).all():
            assert np.array_equal(row, ball.null())
        elif exact_norm(raw, norm) <= radius * 0.999:
            assert np.array_equal(row, raw)
        else:
            assert exact_norm(row, norm) >= radius * (1 - 1e-11)
    again = ball.clip(clipped)
    np.testing.assert_allclose(again, clipped, rtol=1e-11, atol=0)


@given(blocks(3), st.floats(-1e6, 1e6), st.floats(1e4, 1e6))
def test_a_box_holds_everything_that_was_clipped_into_it(
    block: Array, low: float, width: float
) -> None:
    box = Box(low, low + width, 3)
    clipped = box.clip(block)
    assert ((clipped >= box.low) & (clipped <= box.high)).all()
    assert np.array_equal(box.clip(clipped), clipped)
    bad = ~np.isfinite(block).all(axis=1)
    assert np.array_equal(clipped[bad], np.broadcast_to(box.null(), clipped[bad].shape))
    inside = ((block >= low) & (block <= box.high)).all(axis=1)
    assert np.array_equal(clipped[inside], block[inside])


@given(blocks(st.integers(1, 5), 3), st.one_of(st.floats(1e-50, 1e50), st.just(1.0)))
def test_psd_trace_lets_out_only_psd_matrices_of_that_trace(block: Array, trace: float) -> None:
    domain = PSDTrace(trace, 3)
    matrices = domain.decode(domain.clip(block))
    assert np.isfinite(matrices).all()
    for matrix in matrices:
        assert np.array_equal(matrix, matrix.T)
        assert math.fsum(np.diag(matrix)) <= trace
        assert np.linalg.eigvalsh(matrix / trace).min() >= -1e-15


@pytest.mark.parametrize("domain", [Ball(1.0, 3), Box(-1, 1, 3), PSDTrace(1.0, 3)])
@pytest.mark.parametrize(
    "block",
    [np.zeros((4, 2)), np.zeros(3), np.zeros((4, 3, 3, 3)), np.zeros((4, 3), "M8[s]"), 5.0],
)
def test_blocks_of_a_wrong_shape_or_type_are_refused(domain: Domain[Any], block: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"is required|must be numbers"):
        domain.clip(block)


def _signs(n: int) -> list[Array]:
    return [np.array(s) for s in itertools.product((-1.0, 1.0), repeat=n)]


def extreme_points(domain: Domain[Any]) -> list[Array]:
    """Points whose convex hull is (about) the domain."""
    rng = np.random.default_rng(0)
    match domain:
        case Ball(norm="l1"):
            return [s * domain.radius * e for e in np.eye(domain.size) for s in (1.0, -1.0)]
        case Ball(norm="linf"):
            return [domain.radius * s for s in _signs(domain.size)]
        case Ball():
            random = [v / np.linalg.norm(v) for v in rng.normal(size=(60, domain.size))]
            flat = [s / math.sqrt(domain.size) for s in _signs(domain.size)]
            axes = [*np.eye(domain.size), *-np.eye(domain.size)]
            return [domain.radius * v for v in [*random, *flat, *axes]]
        case Box():
            middle, half = (domain.low + domain.high) / 2, (domain.high - domain.low) / 2
            return [middle + half * s for s in _signs(domain.size)]
        case Counted(unit=unit):
            there = [np.append(point, cast(float, unit)) for point in extreme_points(domain.inner)]
            return [*there, domain.null()]
        case PSDTrace():
            vectors = [
                *np.eye(domain.dim),
                *(s / math.sqrt(domain.dim) for s in _signs(domain.dim)),
            ]
            vectors += [v / np.linalg.norm(v) for v in rng.normal(size=(60, domain.dim))]
            if domain.dim > 1:
                half = math.sqrt(0.5)
                pairs = ((0.6, 0.8), (half, half), (half, -half))
                vectors += [np.array([a, b] + [0.0] * (domain.dim - 2)) for a, b in pairs]
            rows, columns = np.triu_indices(domain.dim)
            weight = np.where(rows == columns, 1.0, math.sqrt(2))
            return [domain.trace * np.outer(v, v)[rows, columns] * weight for v in vectors]
    raise AssertionError(domain)


DOMAINS: list[Domain[Any]] = [
    *(Ball(r, n, norm) for norm in NORMS for r, n in ((1.0, 1), (2.5, 3), (0.1, 4))),
    Box(-1, 1, 3),
    Box(0.5, 2, 3),
    Box(-3, -1, 2),
    Box(-0.2, 5, 1),
    PSDTrace(1.0, 2),
    PSDTrace(4.0, 3),
    PSDTrace(0.3, 1),
    Counted(Ball(2.5, 3)),
    Counted(Box(-1, 2, 2), 0.3),
]


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_sensitivity_bounds_every_change_and_is_reached(
    domain: Domain[Any], norm: Norm, adjacency: Adjacency
) -> None:
    points = extreme_points(domain)
    start = [domain.null()]
    if adjacency is Adjacency.REPLACE_ONE:
        start = points
    elif adjacency is Adjacency.ADD_REMOVE:
        start = [np.zeros(domain.size)]  # the record was not there at all
    largest = max(float(np.linalg.norm(a - b, ord=ORDER[str(norm)])) for a in start for b in points)
    stated = domain.sensitivity(adjacency, norm)
    assert largest <= stated * (1 + 1e-12)
    one_dim = domain.size == 1
    loose = isinstance(domain, PSDTrace) and (norm == "l1" or one_dim)
    if not loose:
        assert largest >= stated * (1 - 1e-9)


def test_gram_sensitivity_is_sqrt_two_k_and_the_published_sqrt_of_two_k_is_refuted() -> None:
    for k in (1.0, 3.0, 10.0):
        domain = PSDTrace(k, 2)
        first, second = domain.clip(np.array([[[math.sqrt(k), 0.0]], [[0.0, math.sqrt(k)]]]))
        distance = float(np.linalg.norm(first - second))
        stated = domain.sensitivity(Adjacency.REPLACE_ONE)
        assert stated == pytest.approx(math.sqrt(2) * k, rel=1e-15)
        assert stated * (1 - 1e-11) <= distance <= stated
        if k > 1:
            assert distance > 1.2 * math.sqrt(2 * k)


@given(hnp.arrays(np.float64, (2, 4, 3), elements=st.floats(-10, 10)), st.floats(0.1, 10))
def test_no_two_factors_are_further_apart_than_the_diameter(pair: Array, trace: float) -> None:
    domain = PSDTrace(trace, 3)
    first, second = domain.clip(pair)
    assert np.linalg.norm(first - second) <= domain.sensitivity(Adjacency.REPLACE_ONE)


def test_clipping_the_gradient_of_a_clipped_point_is_not_what_domains_do() -> None:
    """Each row is clipped by itself: permuting rows permutes results, bitwise."""
    block = np.random.default_rng(0).normal(size=(50, 3)) * 3
    order = np.random.default_rng(1).permutation(50)
    clips: list[Callable[[Array], Array]] = [Ball(1.0, 3, n).clip for n in NORMS]
    for clip in [*clips, Box(-1, 1, 3).clip]:
        assert np.array_equal(clip(block[order]), clip(block)[order])
    factors = np.random.default_rng(0).normal(size=(50, 4, 3))
    psd = PSDTrace(1.0, 3).clip
    assert np.array_equal(psd(factors[order]), psd(factors)[order])
    assert np.array_equal(psd(factors[7:8])[0], psd(factors)[7])


def test_svec_keeps_the_frobenius_norm_and_halves_the_variance_off_the_diagonal() -> None:
    domain = PSDTrace(9.0, 4)
    vector = np.random.default_rng(0).normal(size=domain.size)
    matrix = domain.decode(vector)
    assert np.linalg.norm(matrix) == pytest.approx(float(np.linalg.norm(vector)), rel=1e-14)
    noise = domain.decode(np.random.default_rng(1).normal(size=(40_000, domain.size)))
    assert noise[:, 0, 0].var() == pytest.approx(1.0, rel=0.05)
    assert noise[:, 0, 1].var() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_domains_are_rebuilt_from_json(domain: Domain[Any]) -> None:
    assert domain_from_dict(json.loads(json.dumps(domain.to_dict()))) == domain
    assert domain_from_dict({"kind": "my own"}) is None
    with pytest.raises(ValueError, match="ball domain lacks 'size'"):
        domain_from_dict({"kind": "ball", "radius": 1.0})


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf])
def test_radii_and_traces_are_positive_and_finite(bad: float) -> None:
    with pytest.raises(ValueError, match=r"radius = .*must be"):
        Ball(bad, 3)
    with pytest.raises(ValueError, match=r"trace = .*must be"):
        PSDTrace(bad, 3)
    with pytest.raises(ValueError, match=r"low must be below high|must be finite"):
        Box(1.0, min(bad, 1.0), 3)
    with pytest.raises(ValueError, match="size = 0"):
        Ball(1.0, 0)
    with pytest.raises(ValueError, match="norm = 'l3'"):
        Ball(1.0, 2, "l3")  # type: ignore[arg-type]


def test_numpy_numbers_make_the_same_domains() -> None:
    """Third parties take sizes from arrays; the ledger holds plain JSON numbers."""
    pairs: list[tuple[Domain[Any], Domain[Any]]] = [
        (Ball(np.float32(1.5), np.int64(3)), Ball(1.5, 3)),  # type: ignore[arg-type]
        (Box(np.int64(-1), np.float64(1), np.int32(2)), Box(-1.0, 1.0, 2)),  # type: ignore[arg-type]
        (PSDTrace(np.float64(2), np.int64(2)), PSDTrace(2.0, 2)),  # type: ignore[arg-type]
    ]
    for made, plain in pairs:
        assert made == plain
        assert json.dumps(made.to_dict()) == json.dumps(plain.to_dict())


@pytest.mark.parametrize("radius", [1e-101, 1e101])
def test_radii_whose_squares_are_lost_are_refused(radius: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[1e-100, 1e100\]"):
        Ball(radius, 3)
    with pytest.raises(ValueError, match=r"must lie in \[1e-100, 1e100\]"):
        PSDTrace(radius, 3)


def test_a_box_far_from_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="subtract a public constant first"):
        Box(1.7e9, 1.7e9 + 1e-3, 1)
    Box(-1.0, 999.0, 1)


@pytest.mark.parametrize(
    "domain",
    [Ball(1.0, 3), Ball(1.0, 3, "l1"), Ball(1.0, 3, 3), PSDTrace(1.0, 3), Labelled(3, 1.0, 0, 1)],
)
def test_a_row_of_any_length_is_shortened(domain: Any) -> None:
    """Also where its norm, or the square of a number, is beyond what doubles hold."""
    row = np.array([[1.0, -0.5, 0.25]])

    def block(size: float) -> Any:
        if isinstance(domain, Labelled):
            return row * size, np.zeros(1)
        return (row * size)[:, None] if isinstance(domain, PSDTrace) else row * size

    for size in (1e153, 1e155, 1e200, 1.7e308):
        np.testing.assert_allclose(domain.clip(block(size)), domain.clip(block(10.0)), rtol=1e-11)
        if not isinstance(domain, Labelled):
            grid = Grid(1024.0, 30)
            far, near = (domain.integers(block(s), grid) for s in (size, 10.0))
            assert np.abs(far - near).max() <= 1


def test_a_tuple_of_arrays_is_no_block_of_vectors() -> None:
    with pytest.raises(TypeError, match="map them to one array first"):
        Ball(1.0, 2).clip((np.ones(2), np.ones(2)))  # type: ignore[arg-type]


def test_the_triangle_layout_has_the_same_matrices_and_plain_entries() -> None:
    rng = np.random.default_rng(0)
    block = rng.normal(size=(20, 4, 3))
    svec, plain = PSDTrace(2.0, 3), PSDTrace(2.0, 3, "triangle")
    np.testing.assert_allclose(plain.decode(plain.clip(block)), svec.decode(svec.clip(block)))
    rows, columns = np.triu_indices(3)
    matrices = svec.decode(svec.clip(block))
    np.testing.assert_allclose(plain.clip(block), matrices[:, rows, columns])
    vectors = rng.normal(size=(2, 5, plain.size))
    decoded = plain.decode(vectors)
    assert np.array_equal(decoded[..., rows, columns], vectors)
    assert np.array_equal(decoded, np.swapaxes(decoded, -1, -2))
    noise = plain.decode(rng.normal(size=(40_000, plain.size)))
    assert noise[:, 0, 0].var() == pytest.approx(1.0, rel=0.05)
    assert noise[:, 0, 1].var() == pytest.approx(1.0, rel=0.05), "not halved, as published"


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("trace", [0.5, 1.0, 7.0])
def test_the_sensitivity_of_the_triangle_is_true_and_reached_in_l2(
    trace: float, norm: Norm, adjacency: Adjacency
) -> None:
    domain, rng = PSDTrace(trace, 3, "triangle"), np.random.default_rng(1)
    units = np.eye(3)[:, None] * math.sqrt(trace)
    signs = np.array([[[1.0, 1, 1]], [[1, -1, 1]], [[1, 1, -1]], [[1, -1, 0]], [[1, 1, 0]]])
    factors = [*units, *(10 * signs), *rng.normal(size=(200, 1, 3)) * 9]
    points = domain.clip(np.array(factors))
    start = points if adjacency is Adjacency.REPLACE_ONE else np.zeros((1, domain.size))
    distances = np.linalg.norm(start[:, None] - points[None], ord=ORDER[str(norm)], axis=2)
    stated = domain.sensitivity(adjacency, norm)
    assert distances.max() <= stated
    if norm == "l2":
        assert distances.max() >= stated * (1 - 1e-9)
        assert stated == PSDTrace(trace, 3).sensitivity(adjacency, norm)


def test_the_layout_stands_in_the_json_form_only_where_it_is_not_the_usual_one() -> None:
    plain = PSDTrace(2.0, 3, "triangle")
    assert plain.to_dict() == {
        "kind": "psd-trace",
        "trace": 2.0,
        "dim": 3,
        "layout": "triangle",
    }
    assert domain_from_dict(json.loads(json.dumps(plain.to_dict()))) == plain
    assert plain != PSDTrace(2.0, 3)
    assert "layout" not in PSDTrace(2.0, 3).to_dict(), "ledgers written before keep their digests"
    with pytest.raises(ValueError, match="layout = 'lower': must be 'svec' or 'triangle'"):
        PSDTrace(2.0, 3, "lower")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layout = 3"):
        domain_from_dict({"kind": "psd-trace", "trace": 1.0, "dim": 2, "layout": 3})


def test_a_count_beside_a_sum_is_free_where_the_ball_around_the_pairs_charges_for_it() -> None:
    """The worst pair of pairs is that of two opposite vectors; the ball's would hold (−x, −1)."""
    pairs = Counted(Ball(2.0, 3))
    replaced = pairs.sensitivity(Adjacency.REPLACE_ONE)
    assert replaced == Ball(2.0, 3).sensitivity(Adjacency.REPLACE_ONE) == 4.0
    around = Ball(math.hypot(2.0, cast(float, pairs.unit)), 4)
    assert around.sensitivity(Adjacency.REPLACE_ONE) == pytest.approx(2 * replaced)
    larger = Counted(Ball(2.0, 3), cast(float, pairs.unit) * (1 + 1e-9))
    assert larger.sensitivity(Adjacency.REPLACE_ONE) > replaced


def test_the_mean_of_what_is_there_has_an_answer_whatever_the_count_is() -> None:
    pairs, rng = Counted(Box(-50, 50, 2)), np.random.default_rng(0)
    records = rng.uniform(-20, 40, size=(1000, 2))
    records[rng.random(1000) < 0.25, 1] = np.nan
    there = records[~np.isnan(records[:, 1])]
    released = pairs.decode(pairs.clip(records).sum(axis=0))
    assert released[-1] == pytest.approx(len(there))
    np.testing.assert_allclose(pairs.mean(released), there.mean(axis=0), rtol=1e-9)
    odd = np.array([[900.0, -900.0, 0.0], [1.0, 1.0, -3.0], [900.0, -9.0, 1.0]])
    assert pairs.mean(odd).tolist() == [[0, 0], [0, 0], [50, -9]]
    with pytest.raises(ValueError, match=r"released of shape \(2,\): must end in 3"):
        pairs.mean(released[:2])
    with pytest.raises(ValueError, match="subtract the middle"):
        Counted(Box(18, 100, 1))
    with pytest.raises(ValueError, match="subtract the middle"):
        Counted(Box(0, 100, 1))
