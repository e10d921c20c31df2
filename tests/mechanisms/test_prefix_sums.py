"""Private prefix sums: against explicit matrices, and private for adaptively chosen inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from streams_and_matrices import banded, matrix_c, open_stream

from privlearn.accountants import CentralAccountant
from privlearn.contract import receipts
from privlearn.errors import AdjacencyError, HorizonError, TokenSpentError, UsersError
from privlearn.ledger.entries import RetireEntry, SpendEntry
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.mechanisms import (
    AnytimeBLT,
    BinaryTree,
    BufferedToeplitz,
    PrefixSum,
    PrefixSumStream,
    running_sums,
)
from privlearn.mechanisms.factorization import Factorization
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, Domain, PSDTrace
from privlearn.values.adjacency import Adjacency

Array = NDArray[np.float64]
T = 40
SAMPLE_SIZE = 3000
STD_TOLERANCE = 0.03
"""At least four standard errors with three coordinates; less than the planted defect."""
FACTORIZATIONS: list[Factorization] = [
    BinaryTree(T),
    BufferedToeplitz.fitted(T),
    AnytimeBLT(),
    banded(T),
]
by_kind = pytest.mark.parametrize("factorization", FACTORIZATIONS, ids=lambda f: f.kind)


@by_kind
def test_a_stream_is_the_explicit_matrix_mechanism(factorization: Factorization) -> None:
    rng = np.random.default_rng(1)
    data, z = rng.normal(size=(T, 3)) * 2, rng.normal(size=(T, 3))
    domain = Ball(1.0, 3)
    stream, _ = open_stream(PrefixSum(domain, factorization, 0.7), range(T), z)
    parts = [
        stream.append(Rows.seal(data[a:b], users=range(a, b))).value
        for a, b in ((0, 1), (1, 17), (17, 18), (18, T))
    ]
    c = matrix_c(factorization, T)
    sums = np.tril(np.ones((T, T)))
    b = sums @ np.linalg.inv(c)
    expected = sums @ domain.clip(data) + 0.7 * b @ z
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-9)
    assert factorization.column_norm() >= np.linalg.norm(c, axis=0).max() * (1 - 1e-15)


@by_kind
def test_matrix_streams_return_symmetric_prefix_sums(factorization: Factorization) -> None:
    data = np.random.default_rng(0).normal(size=(T, 2, 3))
    domain = PSDTrace(1.0, 3)
    stream, _ = open_stream(PrefixSum(domain, factorization, 1.0), range(T), np.zeros((T, 6)))
    found = stream.append(Rows.seal(data, users=range(T))).value
    scale = np.minimum(1.0, 1 / np.linalg.norm(data, axis=(1, 2)))[:, None, None]
    scaled = data * scale
    expected = np.cumsum(scaled.transpose(0, 2, 1) @ scaled, axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-9)


Chooser = Callable[[int, Array, float], Array]


def choose(t: int, shown: Array, secret: float) -> Array:
    """An adversary: the next row jumps with all outputs so far, and depends on the user's secret.

    It jumps, instead of amplifying, so that rounding does not grow from step to step.
    """
    memory = np.sign([math.sin(3.0 * float(shown.sum()) + t), math.cos(7.0 * float(shown[-1, 0]))])
    return np.asarray(memory * secret + np.array([secret, -1.0]))


def transcript(mechanism: PrefixSum[Any], secrets: Array, z: Array) -> tuple[Array, Array]:
    """Runs the real stream on rows chosen after each output; the outputs and the clipped rows."""
    stream, _ = open_stream(mechanism, range(len(secrets)), z)
    shown, rows = [np.zeros(2)], []
    for t, secret in enumerate(secrets):
        row = choose(t, np.array(shown), float(secret))
        rows.append(mechanism.domain.clip(row[None])[0])
        shown.append(stream.append(Rows.seal(row[None], users=range(t, t + 1))).value[0])
    return np.array(shown[1:]), np.array(rows)


@dataclass(frozen=True)
class Shift:
    """How far the noise of one data set must move to give the other's transcript."""

    squared: float  # |C(x - x')|^2 / sigma^2, x and x' chosen from the same transcript
    conditional: float  # sum over t of (shift of the conditional mean)^2 / its variance
    replayed: bool  # whether the moved noise, in the real stream, gives the same transcript


def adaptive_shift(mechanism: PrefixSum[Any], secrets: Array, index: int, other: float) -> Shift:
    n, sigma = len(secrets), mechanism.noise_std
    z = np.random.default_rng(index).normal(size=(n, 2))
    outputs, rows = transcript(mechanism, secrets, z)
    changed = secrets.copy()
    changed[index] = other
    # What the neighbour's rows are when the outputs are these.
    before = np.vstack([np.zeros(2), outputs])
    theirs = np.array(
        [
            mechanism.domain.clip(choose(t, before[: t + 1], float(changed[t]))[None])[0]
            for t in range(n)
        ]
    )
    difference = rows - theirs
    assert np.flatnonzero(np.abs(difference).sum(axis=1)).tolist() == [index]
    c = matrix_c(mechanism.factorization, n)
    moved = z + c @ difference / sigma
    replay, _ = transcript(mechanism, changed, moved)
    b = np.tril(np.ones((n, n))) @ np.linalg.inv(c)
    # o_t given o_<t is normal: mean (A x)_t + sum_{s<t} B_ts z_s(o), std sigma B_tt per coordinate.
    means = []
    for x in (rows, theirs):
        implied = np.linalg.solve(b, outputs - np.cumsum(x, axis=0)) / sigma
        means.append(np.cumsum(x, axis=0) + sigma * (b - np.diag(np.diag(b))) @ implied)
    step = (means[0] - means[1]) / (sigma * np.diag(b))[:, None]
    return Shift(
        squared=float(((c @ difference / sigma) ** 2).sum()),
        conditional=float((step**2).sum()),
        replayed=bool(np.allclose(replay, outputs, atol=1e-6)),
    )


@by_kind
def test_adaptively_chosen_streams_cost_no_more_than_stated(factorization: Factorization) -> None:
    """Exact Gaussian shifts, no sampling: Denisov et al. 2022 on the shipped code."""
    mechanism = PrefixSum.calibrated(Ball(1.0, 2), GaussianDP(1), factorization=factorization)
    mass = mechanism.loss().gaussian()
    assert mass is not None
    assert mass <= 1
    secrets = np.random.default_rng(2).normal(size=T) * 2
    largest = 0.0
    for index in range(0, T, 3):
        shift = adaptive_shift(mechanism, secrets, index, -float(secrets[index]))
        assert shift.replayed
        assert shift.conditional == pytest.approx(shift.squared, rel=1e-6)
        assert shift.conditional <= float(mass) * (1 + 1e-9)
        largest = max(largest, shift.conditional)
    assert largest > 0.1  # the adversary is not idle


@by_kind
def test_the_stated_mass_is_reached_by_opposite_rows_in_the_costliest_column(
    factorization: Factorization,
) -> None:
    mechanism = PrefixSum.calibrated(Ball(1.0, 1), ZCDP("0.5"), factorization=factorization)
    c = matrix_c(factorization, min(factorization.horizon, 400))
    shift = 2 * np.linalg.norm(c, axis=0).max() / mechanism.noise_std
    assert shift**2 <= 1 + 1e-12
    # An anytime column is infinite: 400 of its rows hold most of its norm.
    assert shift**2 >= (0.75 if factorization == AnytimeBLT() else 1 - 1e-9)


def test_a_factorization_that_understates_its_norm_would_be_seen() -> None:
    """The planted defect: five percent too small a column norm fails the test above it."""

    class Understated:
        kind, true = "understated", BufferedToeplitz.fitted(T)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.true, name)

        def column_norm(self) -> float:
            return 0.95 * self.true.column_norm()

    lying = PrefixSum.calibrated(
        Ball(1.0, 1), ZCDP("0.5"), factorization=cast(Factorization, Understated())
    )
    c = matrix_c(BufferedToeplitz.fitted(T), T)
    assert (2 * np.linalg.norm(c, axis=0).max() / lying.noise_std) ** 2 > 1


@by_kind
def test_the_difference_of_two_runs_is_b_times_the_change(factorization: Factorization) -> None:
    """With the same noise and fixed rows, outputs differ by A(x - x'), and no noise is re-used."""
    rng = np.random.default_rng(3)
    data, z = rng.uniform(-0.5, 0.5, size=(T, 2)), rng.normal(size=(T, 2))
    other = data.copy()
    other[11] = [0.6, -0.6]
    runs = []
    for rows in (data, other):
        stream, _ = open_stream(PrefixSum(Ball(1.0, 2), factorization, 2.0), range(T), z)
        runs.append(stream.append(Rows.seal(rows, users=range(T))).value)
    expected = np.cumsum(data - other, axis=0)
    np.testing.assert_allclose(runs[0] - runs[1], expected, atol=1e-9)


@pytest.mark.parametrize("t", [1, 7, T])
@by_kind
def test_the_error_std_is_that_of_the_outputs(factorization: Factorization, t: int) -> None:
    """Many coordinates of one stream are independent copies."""
    mechanism = PrefixSum(Ball(1.0, SAMPLE_SIZE), factorization, 1.5)
    stream, _ = open_stream(mechanism, range(T), seed=t)
    sums = stream.append(Rows.seal(np.zeros((T, SAMPLE_SIZE)), users=range(T))).value
    found = sums[t - 1].std() / mechanism.error_std(t)
    assert abs(found - 1) < 2 * STD_TOLERANCE
    assert abs(0.9 * found - 1) > STD_TOLERANCE


def _fresh() -> tuple[PrefixSumStream[Any], CentralAccountant[ZCDP]]:
    return open_stream(PrefixSum(Ball(1.0, 1), BinaryTree(10), 50.0), range(10))


def rows(*users: int) -> Rows[Any]:
    return Rows.seal(np.ones((len(users), 1)), users=range(users[0], users[-1] + 1))


def test_one_token_pays_for_the_whole_stream_and_is_retired_once() -> None:
    stream, accountant = _fresh()
    with stream:
        for t in range(10):
            stream.append(rows(t))
    kinds = [type(entry) for entry in accountant.ledger.entries]
    assert (kinds.count(SpendEntry), kinds.count(RetireEntry)) == (1, 1)
    last = accountant.ledger.entries[-1]
    assert isinstance(last, RetireEntry)
    assert last.outcome == "released"
    for late in (lambda: stream.append(rows(9)), stream.close):
        with pytest.raises((TokenSpentError, UsersError), match=r"closed|the stream is at"):
            late()


def test_rows_come_in_order_each_once_and_a_refusal_changes_nothing() -> None:
    stream, _ = _fresh()
    whole, _ = _fresh()
    stream.append(rows(0, 1))
    for wrong in (rows(0), rows(1, 2), rows(3), rows(5, 6)):
        with pytest.raises(UsersError, match="the stream is at user 2"):
            stream.append(wrong)
    with pytest.raises(UsersError, match="cannot be opened"):
        stream.append(Rows.seal(np.ones((9, 1)), users=range(2, 11)))
    rest = stream.append(rows(*range(2, 10)))
    expected = whole.append(rows(*range(10))).value[2:]
    assert np.array_equal(rest.value, expected)


def test_an_interrupted_stream_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next sums would get the noise of earlier ones, and later users pay less by arrival."""
    users = range(64)
    mechanism = PrefixSum(Ball(1.0, 1), BinaryTree(len(users)), noise_std=20.0, by_arrival=True)
    accountant = CentralAccountant(ZCDP(1), users=users, noise=NoiseSource.simulation(0))
    stream = mechanism.open(accountant.issue(mechanism.loss(), users=users, label="s"))

    def interrupted(self: object, n: int) -> Array:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(running_sums._Ahead, "next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.append(Rows.seal(np.zeros((60, 1)), users=range(60)))
    with pytest.raises(TokenSpentError, match="is closed"):
        stream.append(Rows.seal(np.zeros((4, 1)), users=range(60, 64)))
    last = accountant.ledger.entries[-1]
    assert isinstance(last, RetireEntry)
    assert last.outcome == "lost"


@by_kind
def test_a_second_signal_while_the_first_one_ends_a_stream(
    factorization: Factorization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a block of rows whose sum was not yet marked as done would be counted once more."""
    mechanism = PrefixSum(Ball(1.0, 1), factorization, noise_std=0.01)
    stream, accountant = open_stream(mechanism, range(T))
    leave = receipts._Round.__exit__

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(running_sums._Ahead, "next", interrupted)
        patched.setattr(receipts._Round, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.append(Rows.seal(np.ones((32, 1)), users=range(32)))
    assert receipts._Round.__exit__ is leave
    assert not stream.closed
    with pytest.raises(TokenSpentError, match="cut off while it added up"):
        stream.append(Rows.seal(np.ones((4, 1)), users=range(32, 36)))
    last = accountant.ledger.entries[-1]
    assert isinstance(last, RetireEntry)
    assert last.outcome == "lost"


def test_rows_that_are_refused_cut_nothing_off() -> None:
    stream, _ = open_stream(PrefixSum(Ball(1.0, 1), BinaryTree(T), noise_std=1.0), range(T))
    for users in (range(3, 5), range(0, T + 1)):
        with pytest.raises(UsersError):
            stream.append(Rows.seal(np.ones((len(users), 1)), users=users))
    assert len(stream.append(Rows.seal(np.ones((T, 1)), users=range(T))).value) == T


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_inside_the_block_may_be_about_a_row(error: type[BaseException]) -> None:
    """Such as one in the code that prepares the next row."""
    stream, accountant = _fresh()
    stream.append(rows(0))
    with pytest.raises(error), stream:
        raise error
    last = accountant.ledger.entries[-1]
    assert isinstance(last, RetireEntry)
    assert last.outcome == ("lost" if error is KeyboardInterrupt else "uncovered")
    assert accountant.spent().rho > 0
    with pytest.raises(TokenSpentError, match="is closed"):
        stream.append(rows(1))


def test_more_users_than_the_horizon_are_refused_before_the_spend() -> None:
    mechanism = PrefixSum.calibrated(Ball(1.0, 1), ZCDP(1), horizon=9)
    accountant = CentralAccountant(ZCDP(1), users=range(10), noise=NoiseSource.simulation(0))
    token = accountant.issue(mechanism.loss(), users=range(10), label="stream")
    with pytest.raises(HorizonError, match=r"users = range\(0, 10\) exceed horizon = 9"):
        mechanism.open(token)
    token.retire()
    assert accountant.spent().is_zero


def test_streams_have_no_add_remove_price() -> None:
    """Removing one user would shift everybody behind, which costs far more than one row."""
    with pytest.raises(AdjacencyError, match="every later row would shift"):
        PrefixSum.calibrated(Ball(1.0, 1), ZCDP(1), horizon=4, adjacency=Adjacency.ADD_REMOVE)
    accountant = CentralAccountant(
        ZCDP(1), users=range(4), noise=NoiseSource.simulation(0), adjacency=Adjacency.ADD_REMOVE
    )
    token = accountant.issue(ZCDP(1), users=range(4), label="stream")
    for own in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
        mechanism = PrefixSum.calibrated(Ball(1.0, 1), ZCDP(1), horizon=4, adjacency=own)
        with pytest.raises(AdjacencyError, match="a token for add-remove"):
            mechanism.open(token)
    assert len(accountant.ledger.entries) == 2


def test_a_stream_needs_a_horizon_or_a_factorization_and_not_both() -> None:
    for arguments in ({}, {"horizon": 4, "factorization": BinaryTree(4)}):
        with pytest.raises(TypeError, match="give either horizon or factorization"):
            PrefixSum.calibrated(Ball(1.0, 1), ZCDP(1), **cast(Any, arguments))


@pytest.mark.parametrize("domain", [Ball(1.0, 5), PSDTrace(2.0, 3)])
@by_kind
def test_calibrated_streams_fit_their_budget_and_waste_none(
    factorization: Factorization, domain: Domain[Any]
) -> None:
    for rho in ("0.1", "1", "1/3"):
        mechanism = PrefixSum.calibrated(domain, ZCDP(rho), factorization=factorization)
        price = mechanism.loss().zcdp()
        assert price is not None
        assert ZCDP(rho).rho * (1 - 1e-9) <= price <= ZCDP(rho).rho


def test_the_noise_rows_of_a_stream_are_drawn_once() -> None:
    """Appending one by one or all at once gives the same outputs from the same source."""
    data = np.random.default_rng(0).uniform(-0.3, 0.3, size=(T, 2))
    mechanism = PrefixSum.calibrated(Ball(1.0, 2), ZCDP(1), horizon=T)
    one_by_one, _ = open_stream(mechanism, range(T), seed=9)
    at_once, _ = open_stream(mechanism, range(T), seed=9)
    singles = [
        one_by_one.append(Rows.seal(data[t : t + 1], users=range(t, t + 1))).value[0]
        for t in range(T)
    ]
    together = at_once.append(Rows.seal(data, users=range(T))).value
    np.testing.assert_allclose(np.array(singles), together, rtol=0, atol=1e-12)


@by_kind
def test_advancing_releases_the_last_sums_of_appending(factorization: Factorization) -> None:
    """Unreleased sums have their noise row all the same, so that later ones do not move."""
    data = np.random.default_rng(2).uniform(-0.3, 0.3, size=(T, 2))
    mechanism = PrefixSum(Ball(1.0, 2), factorization, 1.5)
    appended, _ = open_stream(mechanism, range(T), seed=4)
    advanced, _ = open_stream(mechanism, range(T), seed=4)
    mixed, _ = open_stream(mechanism, range(T), seed=4)
    everything = appended.append(Rows.seal(data, users=range(T))).value
    for number, (a, b) in enumerate(((0, 1), (1, 17), (17, 18), (18, T))):
        part = Rows.seal(data[a:b], users=range(a, b))
        found = advanced.advance(part).value
        assert found.shape == (1, 2)
        np.testing.assert_allclose(found[0], everything[b - 1], rtol=0, atol=1e-12)
        either = mixed.append(part) if number % 2 else mixed.advance(part)
        np.testing.assert_allclose(either.value[-1], everything[b - 1], rtol=0, atol=1e-12)


def test_advancing_matrices_gives_one_symmetric_matrix() -> None:
    data = np.random.default_rng(3).normal(size=(10, 2, 3))
    mechanism = PrefixSum(PSDTrace(1.0, 3), BinaryTree(10), 1.0)
    stream, accountant = open_stream(mechanism, range(10), np.zeros((10, 6)))
    with stream:
        first = stream.advance(Rows.seal(data[:4], users=range(4))).value
        second = stream.advance(Rows.seal(data[4:], users=range(4, 10))).value
    scaled = data * np.minimum(1.0, 1 / np.linalg.norm(data, axis=(1, 2)))[:, None, None]
    squares = scaled.transpose(0, 2, 1) @ scaled
    for found, end in ((first, 4), (second, 10)):
        assert found.shape == (1, 3, 3)
        np.testing.assert_allclose(found[0], squares[:end].sum(axis=0), atol=1e-12)
    kinds = [type(entry) for entry in accountant.ledger.entries]
    assert (kinds.count(SpendEntry), kinds.count(RetireEntry)) == (1, 1)


def test_advancing_takes_rows_in_order_and_a_refusal_changes_nothing() -> None:
    stream, _ = _fresh()
    whole, _ = _fresh()
    stream.advance(rows(0, 1))
    for wrong in (rows(0), rows(1, 2), rows(3), rows(5, 6)):
        with pytest.raises(UsersError, match="the stream is at user 2"):
            stream.advance(wrong)
    rest = stream.advance(rows(*range(2, 10)))
    expected = whole.append(rows(*range(10))).value[-1:]
    assert np.array_equal(rest.value, expected)
    stream.close()
    with pytest.raises((TokenSpentError, UsersError), match=r"closed|the stream is at"):
        stream.advance(rows(9))
