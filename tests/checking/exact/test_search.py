"""What differs off the probes is found: sizes, places, values, and noise far out; twins are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from grids import thinned

from privlearn import Adjacency, Released, Rows, Spend, Token
from privlearn.checking.exact.check import white_box
from privlearn.checking.exact.one_number import piecewise_pair
from privlearn.checking.exact.probe import Affine, UnpredictedError
from privlearn.contract.receipts import Receipt
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Discrete
from privlearn.mechanisms import CategoryReport, ReceiptStream, mechanism
from privlearn.noise import GaussianNoise, LaplaceNoise
from privlearn.rows.domains import Array, Ball, Box

Draw = Callable[[tuple[int, ...]], Array]
Computes = Callable[[Array, Draw], Any]
STD, LARGEST = 2_000.0, 1_000.0


def _of(function: Computes, noise: Any = None) -> Any:
    return mechanism(domain=Box(0, 1_000, 1), noise=noise or GaussianNoise(STD))(function)


def _noise(change: Callable[[Array, Array], Any]) -> Computes:
    return lambda rows, draw: rows.sum(axis=0) + change(draw((1,)), rows)


def _weighted(weights: Callable[[Array], Any]) -> Computes:
    return lambda rows, draw: (rows * weights(rows)).sum(axis=0) + draw((1,))


def _heavy(rows: Array) -> Array:
    weights = np.ones((len(rows), 1))
    weights[150:151] = 1.5
    return weights


def _fails_on(rows: Array, draw: Draw) -> Any:
    if (rows == 999.0).any():
        raise ValueError
    return rows.sum(axis=0) + draw((1,))


def _spread(rows: Array, draw: Draw) -> Any:
    """Of two rows it moves by more than the range."""
    far = np.abs(rows - np.median(rows, axis=0))
    return 2.5 * np.median(far, axis=0) + draw((1,))


def _about_the_mean(times: float) -> Computes:
    """Moves by ``times`` the range, but for one part in n, among n rows that are else alike."""
    return lambda rows, draw: times * len(rows) * rows.var(axis=0) / 1_000 + draw((1,))


def _computed(rows: Array) -> Array:
    return np.where(abs(rows - LARGEST * 3 / 7) < 1e-3, 3, 1)


FAULTS: dict[str, Computes] = {
    "noise cut off": _noise(lambda z, rows: np.clip(z, -4 * STD, 4 * STD)),
    "noise left out far away": _noise(lambda z, rows: np.where(abs(z) > 7.6 * STD, 0, z)),
    "less noise for many": _noise(lambda z, rows: z / 2 if len(rows) > 100 else z),
    "less noise beside a value": _noise(lambda z, rows: z / 2 if (rows == 999.0).any() else z),
    "less noise on a large sum": _noise(lambda z, rows: z * 0.9 if rows.sum() > 50_000 else z),
    "a heavy row": _weighted(_heavy),
    "every 37th row": _weighted(lambda rows: 1.0 + (np.arange(len(rows))[:, None] % 37 == 36)),
    "a heavy value": _weighted(lambda rows: np.where(rows == 999.0, 3, 1)),
    "a heavy value that is computed": _weighted(_computed),
    "an error on a value": _fails_on,
    "a spread about the median": _spread,
    "squares about the mean": _about_the_mean(1.4),
}


@pytest.mark.parametrize("name", thinned(FAULTS))
def test_what_differs_off_the_probes_is_refuted(name: str) -> None:
    found = white_box(_of(FAULTS[name]), orders=(2.0,))
    assert found.violated, found


def _shuffled(rows: Array, draw: Draw) -> Any:
    return rows[np.random.permutation(len(rows))].sum(axis=0) + draw((1,))


TWINS: dict[str, tuple[Computes, bool]] = {
    "sum": (_noise(lambda z, rows: z), True),
    "mean": (lambda rows, draw: (rows.sum(axis=0) + draw((1,))) / len(rows), True),
    "shuffled": (_shuffled, True),
    "median": (lambda rows, draw: np.median(rows, axis=0) + draw((1,)), True),
    "squares about the mean": (_about_the_mean(1.0), False),
    "cut off afterwards": (lambda rows, draw: np.maximum(rows.sum(axis=0) + draw((1,)), 0), False),
}


@pytest.mark.parametrize("name", TWINS)
def test_correct_twins_are_tight_with_all_that_was_tried(name: str) -> None:
    function, tight = TWINS[name]
    found = white_box(_of(function), orders=(2.0,))
    assert not found.violated, found
    assert found.whole
    assert found.tight is tight
    assert {axis.name for axis in found.coverage.axes} >= {"values", "sizes", "places", "noise"}
    assert "1 to 1,000 rows" in str(found.coverage)


def test_hashes_are_said_to_be_out_of_reach() -> None:
    hashed = white_box(_of(_weighted(lambda rows: 1 + (hash(rows.tobytes()) % 997 == 0))))
    assert "values" in hashed.coverage.missing


@dataclass(frozen=True)
class Late:
    """A sum or a stream of sums, with less noise or a public weight for users from 5,000 on."""

    noise: float
    weight: float
    stream: bool

    def spend(self) -> Spend:
        return Spend("late", Box(0, 1_000, 1), GaussianNoise(STD), interactive=self.stream)

    def loss(self) -> Loss:
        return self.spend().loss(Adjacency.REPLACE_ONE)

    def __getattr__(self, name: str) -> Any:
        if name == ("open" if self.stream else "release"):
            return partial(_LateStream, self) if self.stream else partial(_late, self)
        raise AttributeError(name)


def _late(late: Late, rows: Rows[Any], token: Token[Any]) -> Any:
    with token.spend(late.spend()) as receipt:
        return receipt.release(_late_sum(late, receipt, rows))


def _late_sum(late: Late, receipt: Receipt, rows: Rows[Any]) -> Array:
    after = rows.users.start >= 5_000
    total = receipt.open(rows).sum(axis=0) * (late.weight if after else 1)
    return np.asarray(total + receipt.draw((1,)) * (late.noise if after else 1))


class _LateStream(ReceiptStream[Any]):
    def __init__(self, late: Late, token: Token[Any]) -> None:
        super().__init__(late.spend(), token, Adjacency.REPLACE_ONE)
        self._late = late

    def append(self, rows: Rows[Any]) -> Released[Array]:
        with self._lock, self._receipt.round():
            parts = [rows.slice(range(user, user + 1)) for user in rows.users]
            return self._receipt.publish(
                np.array([_late_sum(self._late, self._receipt, part) for part in parts])
            )


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.calibration)])
def test_users_who_come_late_are_tried(stream: bool) -> None:
    assert white_box(Late(0.5, 1.0, stream), orders=(2.0,)).violated
    assert not white_box(Late(1.0, 0.5, stream), orders=(2.0,)).violated


@pytest.mark.parametrize("name", thinned(["rounded", "cubed"]))
def test_what_is_made_otherwise_is_not_accused(name: str) -> None:
    changes: dict[str, Callable[[Any], Any]] = {"rounded": np.round, "cubed": lambda x: x**3}
    change = changes[name]
    with pytest.raises(CheckError, match="not data plus noise"):
        white_box(_of(lambda rows, draw: change(rows.sum(axis=0) + draw((1,)))))


def test_data_sets_on_which_noise_acts_otherwise_are_handed_on() -> None:
    bent = _of(_noise(lambda z, rows: STD * np.sin(9 * z / STD) if len(rows) == 64 else z))
    with pytest.raises(UnpredictedError) as caught:
        white_box(bent)
    assert {len(block) for pair in caught.value.pairs for block in pair} == {64}


@pytest.mark.calibration
def test_one_coordinate_of_many_is_looked_at() -> None:
    @mechanism(domain=Ball(1.0, 4), noise=GaussianNoise(2.0))
    def faulty(rows: Array, draw: Draw) -> Any:
        noise = draw((4,))
        noise[2] = np.minimum(noise[2], 18.0)
        return rows.sum(axis=0) + noise

    assert white_box(faulty, orders=(2.0,)).violated


def test_laws_in_bins_are_those_of_their_pieces() -> None:
    """Noise cut off at ±2: the ends have P(|z| > 2) each, and beyond them there is nothing."""

    def run(block: float, z: Array) -> Array:
        return block + np.clip(np.resize(z, 1), -2.0, 2.0)

    pair = piecewise_pair(run, (0.0, 0.5), Affine("normal", np.eye(1)), np.array([9.0]))
    assert pair is not None
    assert isinstance(pair.p, Discrete)
    assert isinstance(pair.q, Discrete)
    alone = np.exp(pair.p.log_mass[np.isneginf(pair.q.log_mass)]).sum()
    assert alone == pytest.approx(0.0668, abs=1e-3)  # z below −1.5: what 0.5 + z cannot give
    turning = piecewise_pair(
        lambda block, z: block + np.sin(9 * z), (0.0, 0.5), Affine("normal", np.eye(1)), np.ones(1)
    )
    assert turning is None
    squares = piecewise_pair(
        lambda block, z: (block + z) ** 2, (0.3, 0.5), Affine("normal", np.eye(1)), np.ones(1)
    )
    assert squares is None


def test_a_report_that_differs_at_one_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CategoryReport.release

    def release(self: Any, rows: Any, token: Any) -> Any:
        released = plain(self, rows, token)
        if 150 < len(released.value) <= 1_000:
            changed = np.array(released.value)
            changed[150] = 0
            object.__setattr__(released, "value", changed)
        return released

    assert white_box(CategoryReport.calibrated(4, 2), orders=(2.0,)).tight
    monkeypatch.setattr(CategoryReport, "release", release)
    with pytest.raises(UnpredictedError, match="user 150"):
        white_box(CategoryReport.calibrated(4, 2), orders=(2.0,))


@pytest.mark.calibration
def test_laplace_noise_too() -> None:
    cut = _of(_noise(lambda z, rows: np.where(abs(z) > 7.6 * STD, 0, z)), LaplaceNoise(STD))
    assert white_box(cut, orders=(2.0,)).violated
    assert white_box(_of(_noise(lambda z, rows: z), LaplaceNoise(STD)), orders=(2.0,)).tight
