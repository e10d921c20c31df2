"""Factorisations against explicit matrices, and their streams."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from streams_and_matrices import banded, banded_c

from privlearn.errors import HorizonError
from privlearn.mechanisms.binary_tree import BinaryTree
from privlearn.mechanisms.buffered_toeplitz import AnytimeBLT, BufferedToeplitz
from privlearn.mechanisms.factorization import Factorization

Array = NDArray[np.float64]
Make = Callable[[int], Factorization]

BOUNDED: list[Make] = [
    BinaryTree,
    BufferedToeplitz.fitted,
    banded,
]
ALL: list[Make] = [*BOUNDED, lambda _: AnytimeBLT()]
HORIZONS = (1, 2, 3, 5, 8, 31, 32, 33, 64, 100, 129, 200)
NAMES = (
    "binary_tree",
    "buffered_toeplitz",
    "banded_blt",
    "anytime_blt",
)


def rows_of(z: Array) -> Callable[[int], Array]:
    """draw(n) that returns the rows of z in order, then zeros (drawn ahead, without a horizon)."""
    rows: Iterator[Array] = itertools.chain(z, itertools.repeat(np.zeros(z.shape[1])))
    return lambda n: np.array([next(rows) for _ in range(n)])


def generator(seed: int, dim: int) -> Callable[[int], Array]:
    """draw(n) from numpy."""
    random = np.random.default_rng(seed)
    return lambda n: random.standard_normal((n, dim))


def matrix_b(factorization: Factorization, n: int) -> Array:
    """B, from the stream of unit vectors: column s of the rows is B e_s."""
    return factorization.stream(rows_of(np.eye(n))).next(n)


def blt_c(decay: tuple[float, ...], output_decay: tuple[float, ...], n: int) -> Array:
    """C of a BLT by long division of its two polynomials, independent of any closed form."""
    above = np.poly(1.0 - np.array(output_decay))
    below = np.poly(1.0 - np.array(decay))
    c = np.zeros(n)
    for k in range(n):
        c[k] = above[k] if k < len(above) else 0.0
        c[k] -= sum(below[i] * c[k - i] for i in range(1, min(k, len(decay)) + 1))
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    return np.where(lag >= 0, c[np.abs(lag)], 0.0)


def check_matrices(factorization: Factorization, n: int, c: Array) -> None:
    """B C = A, and the stated norms and errors are those of C and B."""
    b = matrix_b(factorization, n)
    assert np.array_equal(b, np.tril(b))
    np.testing.assert_allclose(b @ c, np.tril(np.ones((n, n))), atol=1e-10)
    norms = np.linalg.norm(c, axis=0)
    stated = [factorization.column_norm_at(j) for j in range(1, n + 1)]
    np.testing.assert_allclose(stated, norms, rtol=1e-10)
    assert factorization.column_norm() >= max(stated)
    errors = [factorization.error_std(t) for t in range(1, n + 1)]
    np.testing.assert_allclose(errors, np.linalg.norm(b, axis=1), rtol=1e-11)
    assert factorization.max_error_std() == pytest.approx(max(errors), rel=1e-14)
    mean = np.mean(np.square(errors))
    assert factorization.rms_error_std() == pytest.approx(math.sqrt(mean), rel=1e-9)


@pytest.mark.parametrize("n", HORIZONS)
def test_tree_is_the_fenwick_factorization(n: int) -> None:
    c = np.zeros((n, n))
    for t in range(1, n + 1):
        c[t - (t & -t) : t, t - 1 : t] = 1.0
    c = c.T.copy()
    tree = BinaryTree(n)
    check_matrices(tree, n, c)
    assert tree.column_norm() ** 2 == pytest.approx(math.floor(math.log2(n)) + 1)
    assert tree.column_norm_at(1) ** 2 >= np.sum(c[:, 0] ** 2)


@pytest.mark.parametrize("n", HORIZONS)
def test_toeplitz_factors_the_prefix_sums(n: int) -> None:
    blt = BufferedToeplitz.fitted(n)
    check_matrices(blt, n, blt_c(blt.decay, blt.output_decay, n))


@pytest.mark.parametrize("n", HORIZONS)
def test_banded_columns_have_norm_one(n: int) -> None:
    for band in (9, 40, n):
        made = banded(n, band)
        check_matrices(made, n, banded_c(made))
        assert made.column_norm() == made.column_norm_at(n) == 1.0


def test_anytime_columns_are_infinite() -> None:
    n, blt = 100, AnytimeBLT()
    b, c = matrix_b(blt, n), blt_c(blt.decay, blt.output_decay, n)
    np.testing.assert_allclose(b @ c, np.tril(np.ones((n, n))), atol=1e-10)
    np.testing.assert_allclose(
        [blt.error_std(t) for t in range(1, n + 1)], np.linalg.norm(b, axis=1), rtol=1e-11
    )
    assert blt.horizon == 2**24
    assert blt.max_error_std() == blt.error_std(2**24)
    short = AnytimeBLT(horizon=n)
    mean = np.mean([short.error_std(t) ** 2 for t in range(1, n + 1)])
    assert short.rms_error_std() == pytest.approx(math.sqrt(mean), rel=1e-9)
    assert blt.column_norm_at(2**24) == blt.column_norm()
    finite = [
        BufferedToeplitz(n, blt.decay, blt.output_decay).column_norm() for n in (1, 99, 10**9)
    ]
    assert finite[0] < finite[1] < finite[2] <= blt.column_norm()
    assert finite[2] == pytest.approx(blt.column_norm())


@st.composite
def decays(draw: st.DrawFn) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Interlacing parameters of 1 to 4 buffers, smallest about 1e-8."""
    ratios = draw(
        st.lists(st.floats(0.1, 0.9), min_size=2, max_size=8).filter(lambda x: len(x) % 2 == 0)
    )
    chain = [float(p) for p in np.cumprod(ratios)]
    return tuple(chain[1::2]), tuple(chain[::2])


@settings(max_examples=30, deadline=None)
@given(decays(), st.integers(1, 70))
def test_any_interlacing_parameters_are_a_factorization(
    parameters: tuple[tuple[float, ...], tuple[float, ...]], n: int
) -> None:
    c = blt_c(*parameters, n)
    check_matrices(BufferedToeplitz(n, *parameters), n, c)


def test_norms_are_upper_bounds_in_exact_arithmetic() -> None:
    mpmath = pytest.importorskip("mpmath")
    for n in (2, 1000):
        blt = BufferedToeplitz.fitted(n)
        with mpmath.workdps(60):
            below = [[mpmath.mpf(1), -(1 - mpmath.mpf(a))] for a in blt.decay]
            above = [[mpmath.mpf(1), -(1 - mpmath.mpf(b))] for b in blt.output_decay]
            energy = _energy(above, below, n, mpmath.mpf)
            bound = mpmath.mpf(blt.column_norm()) ** 2
            assert energy <= bound <= energy * (1 + mpmath.mpf(2) ** -38)


def _energy(
    above: list[list[object]], below: list[list[object]], n: int, zero: Callable[[int], object]
) -> object:
    series = [zero(1)] + [zero(0)] * (n - 1)
    for (_, p), (_, q) in zip(above, below, strict=True):
        for k in range(n - 1, 0, -1):
            series[k] += p * series[k - 1]  # type: ignore[operator]
        for k in range(1, n):
            series[k] -= q * series[k - 1]  # type: ignore[operator]
    return sum(c * c for c in series)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("k", "plain", "tree"), [(10, 3.273, 10.49), (14, 4.156, 14.49), (16, 4.600, 16.49)]
)
def test_errors_reach_the_known_values(k: int, plain: float, tree: float) -> None:
    for factorization, value in (
        (BufferedToeplitz.fitted(2**k), plain),
        (BinaryTree(2**k), tree),
    ):
        error = factorization.column_norm() * factorization.max_error_std()
        assert error == pytest.approx(value, rel=0.001)


def test_table_entry_of_the_next_power_of_two_is_enough() -> None:
    for n in (3, 17, 1025, 70_000):
        here = BufferedToeplitz.fitted(n)
        at = here.column_norm() * here.max_error_std()
        for k in range(1, 31):
            there = BufferedToeplitz.fitted(2**k)
            other = BufferedToeplitz(n, there.decay, there.output_decay)
            assert at <= 1.001 * other.column_norm() * other.max_error_std()


def test_anytime_error_is_within_1_235_of_the_known_horizon() -> None:
    blt = AnytimeBLT()
    assert blt.column_norm() ** 2 == pytest.approx(3.05153889, rel=1e-7)
    for t in np.unique(np.round(2.0 ** np.arange(4, 20.01, 0.125)).astype(int)):
        known = BufferedToeplitz.fitted(int(t))
        ratio = blt.column_norm() * blt.error_std(int(t)) / known.column_norm()
        assert ratio <= 1.235 * known.max_error_std()


@pytest.mark.parametrize("make", ALL, ids=NAMES)
@settings(max_examples=15, deadline=None)
@given(splits=st.lists(st.integers(0, 90), max_size=8), dim=st.sampled_from([1, 3, 200]))
def test_rows_do_not_depend_on_the_split_of_calls(make: Make, splits: list[int], dim: int) -> None:
    n = max(sum(splits), 1)
    splits = [*splits, n - sum(splits)]
    whole = make(n).stream(generator(1, dim)).next(n)
    stream = make(n).stream(generator(1, dim))
    assert np.array_equal(whole, np.concatenate([stream.next(k) for k in splits]))


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_one_by_one_is_bitwise_the_same(make: Make) -> None:
    whole = make(150).stream(generator(2, 7)).next(150)
    stream = make(150).stream(generator(2, 7))
    assert np.array_equal(whole, np.concatenate([stream.next(1) for _ in range(150)]))


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_long_stream_is_b_times_z(make: Make) -> None:
    n = 1000
    z = np.random.default_rng(3).standard_normal((n, 2))
    factorization = make(n)
    rows = factorization.stream(rows_of(z)).next(n)
    np.testing.assert_allclose(rows, matrix_b(factorization, n) @ z, atol=1e-11)


@pytest.mark.parametrize("make", BOUNDED, ids=NAMES[:3])
@pytest.mark.parametrize("n", [1, 32, 64, 70])
def test_nothing_is_drawn_or_handed_out_past_the_horizon(make: Make, n: int) -> None:
    drawn = []

    def draw(k: int) -> Array:
        drawn.append(k)
        return np.ones((k, 2))

    stream = make(n).stream(draw)
    with pytest.raises(HorizonError, match=f"exceed horizon = {n}"):
        stream.next(n + 1)
    assert drawn == []
    assert stream.next(0).shape == (0, 2)
    assert stream.next(n).shape == (n, 2)
    assert stream.next(0).shape == (0, 2)
    with pytest.raises(HorizonError, match=f"1 more rows after {n} exceed"):
        stream.next(1)
    assert sum(drawn) == n


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_failed_draw_loses_no_row(make: Make) -> None:
    inner, calls = generator(4, 3), itertools.count()

    def draw(n: int) -> Array:
        if next(calls) % 3 == 1:
            raise OSError("no entropy")
        return inner(n)

    expected = make(500).stream(generator(4, 3)).next(500)
    stream = make(500).stream(draw)
    rows: list[Array] = []
    while sum(len(block) for block in rows) < 500:
        try:
            rows.append(stream.next(100))
        except OSError:
            continue
    assert np.array_equal(np.concatenate(rows), expected)


def test_rows_belong_to_the_caller() -> None:
    stream, again = (AnytimeBLT().stream(generator(5, 3)) for _ in range(2))
    first = stream.next(10)
    assert first.base is None
    first[:] = np.nan
    again.next(10)
    assert np.array_equal(stream.next(100), again.next(100))


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_stream_memory_does_not_grow(make: Make) -> None:
    dim = 500
    stream = make(2**40).stream(lambda n: np.ones((n, dim)))
    tracemalloc.start()
    try:
        for _ in range(60):
            stream.next(50)
        used, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 300 * dim * 8
    assert peak < 400 * dim * 8


def test_wrong_draws_are_refused() -> None:
    stream = AnytimeBLT().stream(lambda n: np.zeros(n))
    with pytest.raises(ValueError, match=r"draw\(32\) has shape \(32,\): must be \(32, dim\)"):
        stream.next(1)
    dims = iter([2, 3])
    stream = AnytimeBLT().stream(lambda n: np.zeros((n, next(dims))))
    with pytest.raises(ValueError, match=r"must be \(32, 2\)"):
        stream.next(33)
    with pytest.raises(ValueError, match="n = -1"):
        stream.next(-1)


@pytest.mark.parametrize("make", BOUNDED, ids=NAMES[:3])
def test_arrivals_outside_the_horizon_are_refused(make: Make) -> None:
    factorization = make(5)
    for call in (factorization.column_norm_at, factorization.error_std):
        with pytest.raises(ValueError, match="arrival = 0"):
            call(0)
        with pytest.raises(HorizonError, match="arrival = 6: must be <= horizon = 5"):
            call(6)
    with pytest.raises(ValueError, match="horizon = 0"):
        make(0)


@pytest.mark.parametrize(
    ("decay", "output_decay", "message"),
    [
        ((), (), "the same number"),
        ((0.1,), (0.5, 0.05), "the same number"),
        ((0.5,), (0.1,), "must interlace"),
        ((0.5,), (1.0,), "must interlace"),
        ((0.0,), (0.5,), "must interlace"),
        ((math.nan,), (0.5,), "must interlace"),
        ((0.1, 0.2), (0.5, 0.3), "must interlace"),
        ((0.5 - 1e-12,), (0.5,), "relative gaps"),
    ],
)
def test_parameters_must_interlace(
    decay: tuple[float, ...], output_decay: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BufferedToeplitz(4, decay, output_decay)
    with pytest.raises(ValueError, match=message):
        AnytimeBLT(decay, output_decay)


@pytest.mark.parametrize("make", ALL, ids=NAMES)
def test_parameters_rebuild_the_factorization(make: Make) -> None:
    factorization = make(77)
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(json.dumps(factorization.parameters())).items()
    }
    assert dataclasses.replace(factorization, **fields) == factorization  # type: ignore[type-var]
    assert type(factorization)(**fields) == factorization
    assert factorization.kind in NAMES
