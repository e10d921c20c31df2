"""The exact check of streams: over the whole declared horizon, or loud about what it left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from claims_alone import assert_private
from grids import thinned
from numpy.typing import NDArray
from streams_and_matrices import FALLING, banded

from privlearn import ZCDP, Adjacency, Ball, PSDTrace, Rows, Spend, Token
from privlearn.checking import check_mechanism
from privlearn.checking.exact.additive import additive_distributions
from privlearn.checking.exact.check import compare, white_box
from privlearn.checking.exact.probe import UnpredictedError, solved
from privlearn.checking.exact.streams import tried_places
from privlearn.checking.laws.check import exactly
from privlearn.checking.stream_runs import accepted_users, declared_users
from privlearn.cli.check_table import numbers
from privlearn.errors import CheckError, PrivacyViolation
from privlearn.losses import GaussianLoss, Loss
from privlearn.mechanisms import (
    AnytimeBLT,
    BandedBLT,
    BatchedPrefixSum,
    BinaryTree,
    BufferedToeplitz,
    PrefixSum,
    banded_scales,
)
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.noise_stream import NoiseStream
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Array, OneOf

RHO = ZCDP("0.5")
ORDERS = (2.0,)
HORIZON = 256


def columns_of(made: Factorization, n: int) -> Array:
    """C = L⁻¹·A by dense linear algebra: an oracle for `solved`."""
    rows = iter(np.eye(n + 64)[:, :n])
    noise = made.stream(lambda k: np.array([next(rows) for _ in range(k)])).next(n)
    return np.asarray(np.linalg.solve(noise, np.tri(n)))


@pytest.mark.parametrize(
    "made",
    [
        BinaryTree(75),
        BufferedToeplitz.fitted(75),
        AnytimeBLT(),
        banded(75, 20),
        banded(75, 20, FALLING),
    ],
    ids=lambda made: made.kind,
)
def test_noise_is_solved_for_block_by_block(made: Factorization) -> None:
    n, places = 75, np.array([0, 1, 40, 64, 74])
    expected = columns_of(made, n)[:, places]
    masses, found = solved(
        made, n, lambda part: (np.array(part)[:, None] >= places).astype(np.float64), keep=True
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(masses, (expected**2).sum(axis=0), rtol=1e-9)


def test_noise_that_cannot_be_solved_for_is_refused() -> None:
    class Upside(_Fixed):
        matrix = np.array([[1.0, 1.0], [0.0, 1.0]])

    class Silent(_Fixed):
        matrix = np.array([[1.0, 0.0], [1.0, 0.0]])

    made: Any
    for made in (Upside(), Silent()):
        with pytest.raises(CheckError, match="depends on later rows, or a row has none"):
            solved(made, 2, lambda part: np.ones((len(part), 1)))


class _Fixed:
    """A factorisation of two arrivals, given by its matrix of noise."""

    kind, horizon = "fixed", 2
    matrix: Array

    def column_norm(self) -> float:
        return 1.0

    def column_norm_at(self, j: int, /) -> float:
        return 1.0

    def error_std(self, t: int, /) -> float:
        return 1.0

    def max_error_std(self) -> float:
        return 1.0

    def parameters(self) -> dict[str, Any]:
        return {}

    def stream(self, draw: Any, /) -> NoiseStream:
        return NoiseStream(draw, lambda dim: _Product(self.matrix), 2)


class _Product:
    def __init__(self, matrix: Array) -> None:
        self._matrix = matrix

    def __call__(self, z: NDArray[Any], /) -> Array:
        return np.asarray(self._matrix @ z)


def late_columns_are_too_long(monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    """From that one on."""
    right = banded_scales._chunk

    def wrong(terms: Any, first: int) -> tuple[Array, Array]:
        rows, columns = right(terms, first)
        j = first + np.arange(len(columns))[:, None]
        return rows, np.where(j < late, columns, columns / 2.809**0.5)

    monkeypatch.setattr(banded_scales, "_chunk", wrong)


def test_a_price_that_is_too_low_late_in_a_stream_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Column 18 costs 2.8 times the price; the first 16 rows alone hide it."""
    mechanism = PrefixSum.calibrated(Ball(1.0, 1), RHO, factorization=BandedBLT.fitted(HORIZON))
    assert not white_box(mechanism, orders=ORDERS).violated
    late_columns_are_too_long(monkeypatch, 18)
    cost = (columns_of(mechanism.factorization, HORIZON) ** 2).sum(axis=0)
    assert cost.max() == pytest.approx(2.809, rel=1e-3)
    whole = white_box(mechanism, orders=ORDERS)
    assert whole.violated
    assert whole.whole
    assert whole.curve[0].exact == pytest.approx(cost.max(), rel=1e-6)
    window = additive_distributions(mechanism, None, None, 16)
    assert not compare(window.parts[0][0], window.parts[0][1], orders=ORDERS).violated
    assert window.coverage.missing == ("arrivals",)
    report = check_mechanism(mechanism, samples=400, raise_error=False)
    assert [law.check for law in report.violated] == ["exact"]
    pair = np.array([[1.0]]), np.array([[-1.0]])
    rest = np.zeros((HORIZON - 1, 1))
    with pytest.raises(PrivacyViolation, match=r"VIOLATED.*, all 256 arrivals"):
        assert_private(
            mechanism,
            neighbours=(np.r_[rest[:17], pair[0], rest[17:]], np.r_[rest[:17], pair[1], rest[17:]]),
            samples=40,
        )


def test_a_window_says_so_and_is_not_called_exact() -> None:
    endless = PrefixSum.calibrated(Ball(1.0, 1), RHO, factorization=AnytimeBLT())
    found = white_box(endless, users=1024, orders=ORDERS)
    assert not found.whole
    assert "NOT LOOKED AT AS A WHOLE" in str(found)
    assert "the first 1024 of 16777216 arrivals" in str(found)
    assert " exact " not in str(found)
    line = exactly(endless, None, None, 60.0)
    assert line.verdict == "window"
    assert "exact" not in numbers(line)
    assert numbers(line)["bound"] == pytest.approx(found.worst.exact, rel=1e-3)
    few = white_box(
        PrefixSum.calibrated(Ball(1.0, 1), RHO, horizon=40),
        neighbours=[(np.zeros((8, 1)), np.eye(8)[:, :1])],
        orders=ORDERS,
    )
    assert not few.whole
    assert "the first 8 of 40 arrivals" in str(few)


@pytest.mark.parametrize(
    ("mechanism", "looked"),
    [
        (PrefixSum.calibrated(PSDTrace(2.0, 2), RHO, horizon=60), "all 60 arrivals"),
        (
            PrefixSum.calibrated(Ball(1.0, 1), RHO, factorization=BandedBLT.fitted(2100)),
            "all 2100 arrivals, the record at ",
        ),
        (
            PrefixSum.calibrated(Ball(1.0, 1), RHO, factorization=banded(2100, 300)),
            "all 2100 arrivals, the record at ",
        ),
        (BatchedPrefixSum.calibrated(Ball(1.0, 2), RHO, sizes=(5,) * 40), "all 200 arrivals"),
        (BatchedPrefixSum.calibrated(Ball(1.0, 2), RHO, sizes=(3, 1, 2)), "all 6 arrivals"),
        (PrefixSum.calibrated(OneOf(Ball(1.0, 2), 3), RHO, horizon=300), "all 300 arrivals"),
    ],
    ids=str,
)
def test_streams_are_tight_over_their_whole_horizon(mechanism: Any, looked: str) -> None:
    found = white_box(mechanism, orders=ORDERS)
    assert found.whole, found
    assert found.tight, found
    assert found.looked.startswith(looked)


def test_long_streams_are_tried_at_the_ends_and_at_random() -> None:
    n = 10_000
    places = tried_places(n, [777])
    assert {0, 1, 777, n // 2, n - 1, 4095, 4096, n - 4096} <= set(places)
    assert len(places) > 500
    assert places == sorted(set(places))
    assert max(np.diff(places)) < n / 20
    assert tried_places(300, []) == list(range(300))


def test_a_long_stream_charged_by_arrival() -> None:
    made = PrefixSum(Ball(1.0, 1), BufferedToeplitz.fitted(400), 2.0, by_arrival=True)
    assert white_box(made, orders=ORDERS).tight
    half = made.loss().over(range(400))
    assert len(half) > 3
    # a pair of one's own is charged to whom it changes, not to the first user
    first, second = np.zeros((400, 1)), np.zeros((400, 1))
    first[399], second[399] = 1.0, -1.0
    late = white_box(made, neighbours=[(first, second)], orders=ORDERS)
    assert late.curve[0].claimed == pytest.approx(half[-1][1].renyi(2.0))
    assert late.curve[0].exact == pytest.approx(late.curve[0].claimed)
    assert not late.tight  # one pair


def test_neighbours_of_ones_own_in_a_long_stream() -> None:
    made = PrefixSum.calibrated(Ball(1.0, 2), RHO, factorization=BandedBLT.fitted(300))
    first = np.random.default_rng(0).normal(size=(300, 2))
    second = first.copy()
    second[123] = -first[123]
    found = white_box(made, neighbours=[(first, second)], orders=ORDERS)
    clip = made.domain.clip
    moved = float(((clip(first[123:124]) - clip(second[123:124])) ** 2).sum())
    assert found.curve[0].exact == pytest.approx(moved / made.noise_std**2, rel=1e-6)


@dataclass(frozen=True)
class Wrong:
    """A prefix sum of a third party with its own idea of how to add noise."""

    factorization: Factorization
    factor: float = 0.5
    weight: float = 1.0
    domain: Ball = field(default_factory=lambda: Ball(1.0, 1))

    def loss(self) -> Loss:
        return self._spend().loss(Adjacency.REPLACE_ONE)

    def _spend(self) -> Spend:
        return Spend("wrong", self.domain, GaussianNoise(2.0), interactive=True)

    def open(self, token: Token[Any]) -> WrongStream:
        return WrongStream(self, token.spend(self._spend()))


class WrongStream:
    def __init__(self, made: Wrong, receipt: Any) -> None:
        self._made, self._receipt = made, receipt
        self._noise = made.factorization.stream(lambda n: receipt.draw((n, 1)))
        self._total = 0.0

    def append(self, rows: Rows[Any]) -> Any:
        with self._receipt.round():
            sums = self._total + self._made.weight * np.cumsum(self._receipt.open(rows), axis=0)
            self._total = sums[-1]
            return self._receipt.publish(sums + self._made.factor * self._noise.next(len(sums)))

    def __enter__(self) -> WrongStream:
        return self

    def __exit__(self, *details: object) -> None:
        self._receipt.__exit__(*details)


def test_a_stream_that_uses_its_factorisation_wrongly_is_probed_number_by_number() -> None:
    """Half of the noise: what was solved for does not come out, and probing tells."""
    found = white_box(Wrong(BandedBLT.fitted(200)), orders=ORDERS)
    assert found.violated
    assert found.whole
    assert "its noise is not that of its factorisation" in found.looked
    assert found.curve[0].exact == pytest.approx(4 * found.curve[0].claimed, rel=1e-6)
    assert white_box(Wrong(BandedBLT.fitted(200), 1.0), orders=ORDERS).tight


@dataclass(frozen=True)
class Walk:
    """Running sums of noisy rows: an own stream, which says nothing of a horizon."""

    rows: int
    priced_for: int
    domain: Ball = field(default_factory=lambda: Ball(1.0, 1))

    def loss(self) -> Loss:
        return GaussianLoss(min(self.priced_for, self.rows))

    def _spend(self) -> Spend:
        return Spend(
            "walk", self.domain, GaussianNoise(2.0), own_loss=self.loss(), interactive=True
        )

    def open(self, token: Token[Any]) -> WalkStream:
        if len(token.users) > self.rows:
            raise RuntimeError("too many")
        return WalkStream(token.spend(self._spend()))


class WalkStream:
    def __init__(self, receipt: Any) -> None:
        self._receipt, self._total = receipt, 0.0

    def append(self, rows: Rows[Any]) -> Any:
        with self._receipt.round():
            sums = self._total + np.cumsum(self._receipt.open(rows), axis=0)
            self._total = sums[-1]
            return self._receipt.publish(sums + self._receipt.draw(sums.shape))

    def __enter__(self) -> WalkStream:
        return self

    def __exit__(self, *details: object) -> None:
        self._receipt.__exit__(*details)


def test_a_stream_that_declares_no_horizon_is_asked_how_many_rows_it_takes() -> None:
    """Every running sum has noise of its own, so that n rows cost n times one."""
    assert accepted_users(Walk(100, 16), Adjacency.REPLACE_ONE, 256) == 100
    assert declared_users(Walk(100, 16)) is None
    wrong = white_box(Walk(100, 16), orders=ORDERS)
    assert wrong.violated
    assert wrong.curve[0].exact == pytest.approx(100)
    right = additive_distributions(Walk(100, 100), None, None, None)
    assert not right.coverage.missing
    assert compare(right.parts[0][0], right.parts[0][1], orders=ORDERS).tight


@dataclass(frozen=True)
class Late(Walk):
    """Noisy steps, right but for what it does late; what it spends has the domain."""

    rows: int = 128
    priced_for: int = 1
    fault: str = ""

    @property
    def horizon(self) -> int:
        return self.rows

    def open(self, token: Token[Any]) -> Any:
        return LateStream(token.spend(self._spend()), self.fault)


class LateStream(WalkStream):
    def __init__(self, receipt: Any, fault: str) -> None:
        super().__init__(receipt)
        self._fault, self._at, self._third = fault, 0, list[Array]()

    def append(self, rows: Rows[Any]) -> Any:
        with self._receipt.round():
            sums = [self._step(value) for value in self._receipt.open(rows)]
            return self._receipt.publish(np.array(sums))

    def _step(self, value: Array) -> Array:
        fault, noise, t = self._fault, self._receipt.draw(value.shape), self._at
        self._at += 1
        if 12 <= t < 16:
            self._third.append(noise)
        if fault == "noise of block 3 in block 28" and 112 <= t < 116:
            noise = self._third[t - 112]
        if fault == "a tenth of the noise" and t >= 100:
            noise = noise / 10
        weight = 2.0 if fault == "counted twice" and t >= 72 else 1.0
        weight = 1.5 if fault == "more weight" and t == 120 else weight
        weight = 3.0 if fault == "gate" and t >= 96 and value[0] == 0.75 else weight
        self._total = self._total + weight * value + noise
        return np.asarray(self._total)


LATE = ("a tenth of the noise", "noise of block 3 in block 28", "counted twice", "more weight")


@pytest.mark.parametrize("fault", thinned(["", *LATE, "gate"], 2))
def test_faults_late_in_a_stream_of_another_make(fault: str) -> None:
    """Its domain is known from what it spends; the number of a gate from its code."""
    found = additive_distributions(Late(fault=fault), None, None, None)
    (result,) = (compare(loss, pairs, orders=ORDERS) for loss, pairs in found.parts)
    assert result.violated == bool(fault)
    assert result.tight == (not fault)
    assert found.coverage.missing == (("records",) if fault == "gate" else ())


@dataclass(frozen=True)
class InCalls(Late):
    """As `Late`, but what it does depends on which rows come at once."""

    def open(self, token: Token[Any]) -> Any:
        return CallStream(token.spend(self._spend()), self.fault)


class CallStream(LateStream):
    def append(self, rows: Rows[Any]) -> Any:
        with self._receipt.round():
            values = self._receipt.open(rows)
            return self._receipt.publish(self._of_call(values, self._receipt.draw(values.shape)))

    def _of_call(self, values: Array, noise: Array) -> Array:
        n, before, self._at = len(values), self._at or len(values), len(values)
        if self._fault == "noise again in calls of two" and n == 2:
            noise[1] = noise[0]
        if self._fault == "the last of three counts twice" and n == 3:
            values = values * np.array([[1.0], [1.0], [2.0]])
        if self._fault == "less noise in calls of twelve" and n == 12:
            noise = noise / 4
        if self._fault == "more weight after another length" and n != before:
            values = 3 * values
        return np.asarray(values + noise)


IN_CALLS = (
    "noise again in calls of two",
    "the last of three counts twice",
    "less noise in calls of twelve",
    "more weight after another length",
)


@pytest.mark.parametrize("fault", thinned(["", *IN_CALLS]))
def test_which_rows_come_at_once_does_not_matter(fault: str) -> None:
    found = white_box(InCalls(fault=fault, rows=48), orders=ORDERS)
    assert found.violated == bool(fault)
    assert found.tight == (not fault)
    assert "calls of 1, 2, 3, 5, 8, 13 in turn" in str(found.coverage)


def test_of_a_long_stream_of_another_make_a_window_is_looked_at() -> None:
    """Every output has noise of its own, so that each row costs as much as all are looked at."""
    found = additive_distributions(Walk(700, 700), None, None, 700)
    looked = int(found.coverage.axes[0].tried.split()[2])
    assert compare(GaussianLoss(looked), found.parts[0][1]).tight
    assert found.coverage.missing == ("arrivals",)


def test_rows_that_a_long_stream_counts_twice_are_not_taken_for_its_running_sums() -> None:
    found = white_box(Wrong(BandedBLT.fitted(200), 1.0, weight=2.0), orders=ORDERS)
    assert found.curve[0].exact == pytest.approx(4 * found.curve[0].claimed, rel=1e-6)


@dataclass(frozen=True)
class Blocks(Walk):
    """Sums of ten rows, each with noise of its own; some rows alone let nothing out."""

    rows: int = 600
    priced_for: int = 1
    by_data: bool = False

    @property
    def horizon(self) -> int:
        return self.rows

    def open(self, token: Token[Any]) -> Any:
        return BlockStream(token.spend(self._spend()), self.by_data)


class BlockStream(WalkStream):
    def __init__(self, receipt: Any, by_data: bool) -> None:
        super().__init__(receipt)
        self._block, self._by_data = list[Array](), by_data

    def append(self, rows: Rows[Any]) -> Any:
        with self._receipt.round():
            out = []
            for row in self._receipt.open(rows):
                self._block.append(row)
                full = self._by_data and abs(float(np.sum(self._block))) > 3
                if len(self._block) == 10 or full:
                    out.append(np.sum(self._block, axis=0) + self._receipt.draw((1,)))
                    self._block = []
            return self._receipt.publish(np.array(out)) if out else None


def test_blocks_are_looked_at_as_far_as_their_noise_can_be_probed() -> None:
    assert white_box(Blocks(rows=520), orders=ORDERS).tight
    with pytest.raises(UnpredictedError, match="outputs depends on data"):
        white_box(Blocks(rows=40, by_data=True), orders=ORDERS)
