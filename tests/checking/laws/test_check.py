"""`check_mechanism`: sound mechanisms keep every law, and every law has one that breaks it."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claims_alone import assert_private
from grids import thinned
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant
from privlearn.checking import check_row_local
from privlearn.checking.exact import search
from privlearn.checking.exact.loss_curves import why_wrong
from privlearn.checking.laws.check import check_mechanism
from privlearn.checking.laws.domains import check_domain
from privlearn.checking.laws.mechanisms import MECHANISM_CHECKS
from privlearn.checking.reports import CheckReport, Evidence
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import (
    CheckError,
    InterferenceError,
    LossExceedsTokenError,
    PrivacyViolation,
    TokenError,
)
from privlearn.losses import GaussianLoss, Loss, PureLoss
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import (
    BallReport,
    CategoryReport,
    LinearObjective,
    NoisySum,
    ObjectivePerturbation,
    PrefixSum,
    mechanism,
)
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Box, Norm, PSDTrace
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid

GUIDE = Path(__file__).parents[3] / "CONTRIBUTING.md"
LOOKS = ["exact", "samples"]
NOISE, BALL = GaussianNoise(1.0), Ball(1.0, 2)
NAMES = [*(law.__name__ for law in MECHANISM_CHECKS), *LOOKS]


def printed_in_the_guide() -> Any:
    block = re.search(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(block.group(1), str(GUIDE), "exec", dont_inherit=True), names)
    return names["laplace_sum"]


# Sound mechanisms ------------------------------------------------------------------------------

SOUND: list[tuple[str, Callable[[], Any]]] = [
    ("the guide's", printed_in_the_guide),
    ("Gaussian sum", lambda: NoisySum.calibrated(Ball(1.0, 3), ZCDP("0.5"))),
    ("Gram matrix", lambda: NoisySum.calibrated(PSDTrace(1.0, 2), ZCDP("0.5"))),
    (
        "add-remove",
        lambda: NoisySum.calibrated(Box(0, 1, 2), ZCDP("0.5"), adjacency=Adjacency.ADD_REMOVE),
    ),
    (
        "zero-out",
        lambda: NoisySum.calibrated(Box(1, 2, 2), ZCDP("0.5"), adjacency=Adjacency.ZERO_OUT),
    ),
    ("prefix sums", lambda: PrefixSum.calibrated(Ball(1.0, 2), ZCDP("0.5"), horizon=8)),
    (
        "objective perturbation",
        lambda: ObjectivePerturbation.calibrated(
            LinearObjective.logistic(1), ZCDP("0.5"), max_rows=10
        ),
    ),
    ("a domain of one's own", lambda: Sum(Upper(3), LaplaceNoise(6.0))),
    ("arithmetic of one's own", lambda: Own(BALL)),
    ("a loss of one's own", lambda: Stating(BALL, stated=GaussianLoss(4))),
    ("a plain class", lambda: Plain()),
    ("reports", lambda: BallReport.best(2, 1.0, 1)),
    ("reports of few answers", lambda: CategoryReport.calibrated(3, 3)),
]


@pytest.mark.parametrize(("name", "make"), thinned(SOUND), ids=[name for name, _ in SOUND])
def test_a_sound_mechanism_passes(name: str, make: Callable[[], Any]) -> None:
    report = check_mechanism(make(), samples=600)
    assert report.passed
    assert [law.check for law in report] == NAMES
    evidence = report["samples"].evidence
    assert isinstance(evidence, Evidence)
    assert evidence.samples <= 600
    skipped = {law.check for law in report if law.verdict == "not applicable"}
    assert skipped <= {
        "check_stream_takes_users_in_order",
        "check_report_has_noise_of_its_own",
        "exact",
        "check_partial_sums",
    }
    made_apart = hasattr(make(), "release_partial") and make().spend().grid is not None
    assert (report["check_partial_sums"].verdict == "holds") is made_apart


# Mechanisms that break one law -----------------------------------------------------------------


@dataclass(frozen=True)
class Sum:
    """Ten lines of a third party; the broken ones below differ by one fault."""

    domain: Any
    noise: Any = NOISE

    def loss(self) -> Loss:
        return self._spend().loss(Adjacency.REPLACE_ONE)

    def _spend(self) -> Spend:
        return Spend("a-sum", self.domain, self.noise, arithmetic="sum")

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            return receipt.release_sum(rows)


@dataclass(frozen=True)
class Own(Sum):
    """The same with arithmetic of its own."""

    def _spend(self) -> Spend:
        return Spend("own-sum", self.domain, self.noise)

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            return receipt.release(total + receipt.draw(total.shape))


@dataclass(frozen=True)
class Centred(Own):
    """Says that every output is of one user, and takes the mean of all off."""

    def _spend(self) -> Spend:
        return Spend("centred", self.domain, self.noise, arithmetic="each")

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            values = receipt.open(rows)
            return receipt.release(values - values.mean(axis=0) + receipt.draw(values.shape))


def test_a_report_that_holds_something_of_others_is_caught() -> None:
    report = check_mechanism(Centred(Ball(1.0, 2)), samples=1000, raise_error=False)
    assert report["exact"].verdict == "violated"
    assert report["check_report_has_noise_of_its_own"].verdict == "holds"


@dataclass(frozen=True)
class SharedNoise(Centred):
    """Draws noise for everybody, and adds that of the first user to all."""

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            values = receipt.open(rows)
            return receipt.release(values + receipt.draw(values.shape)[:1])


@dataclass(frozen=True)
class StaleNoise(Own):
    """A sound release, and a stream that uses the noise of every tenth user again."""

    def _spend(self) -> Spend:
        return Spend("stale", self.domain, self.noise, arithmetic="each", interactive=True)

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            values = receipt.open(rows)
            return receipt.release(values + receipt.draw(values.shape))

    def open(self, token: Token[Any]) -> Any:
        return _Stale(token.spend(self._spend()))


class _Stale:
    def __init__(self, receipt: Receipt) -> None:
        self._receipt, self._noise = receipt, np.zeros((0, 0))

    def __enter__(self) -> _Stale:
        return self

    def __exit__(self, *details: Any) -> None:
        self._receipt.__exit__(*details)

    def append(self, rows: Rows[Any]) -> Any:
        with self._receipt.round():
            values = self._receipt.open(rows)
            noise = self._receipt.draw(values.shape)
            if rows.users.start % 10 == 0:
                self._noise = noise
            if rows.users.start % 10 == 9:
                noise = self._noise
            return self._receipt.publish(values + noise)


@pytest.mark.parametrize(("broken", "way"), [(SharedNoise, "at once"), (StaleNoise, "one by one")])
def test_noise_that_is_used_again_is_caught(broken: type[Own], way: str) -> None:
    report = check_mechanism(broken(Ball(1.0, 2)), samples=1000, raise_error=False)
    result = report["check_report_has_noise_of_its_own"]
    assert result.verdict == "violated"
    assert way in result.detail


@dataclass(frozen=True)
class Upper:
    """Entries in [0, 1]; a domain that only its author knows."""

    size: int
    kind: str = "upper"

    def clip(self, block: Array) -> Array:
        values = np.asarray(block, dtype=float)
        if values.ndim != 2 or values.shape[1] != self.size:
            raise ValueError(values.shape)
        good = np.isfinite(values).all(axis=1, keepdims=True)
        return np.asarray(np.clip(np.where(good, values, 0.0), 0.0, 1.0))

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return {"l2": float(np.sqrt(self.size)), "l1": float(self.size)}.get(str(norm), 1.0)

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size}


class HalfSensitivity(Upper):
    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        return super().sensitivity(adjacency, norm) / 2


class LetsNaNThrough(Upper):
    def clip(self, block: Array) -> Array:
        return np.asarray(np.clip(np.asarray(block, dtype=float), 0.0, 1.0))


class NaNIsOne(Upper):
    def clip(self, block: Array) -> Array:
        return super().clip(np.nan_to_num(np.asarray(block, dtype=float), nan=1.0))


class BoundsFromData(Upper):
    def clip(self, block: Array) -> Array:
        values = np.asarray(block, dtype=float)
        return super().clip(values / max(np.nanmax(np.abs(values), initial=0.0), 1e-300))


class WritesToRecords(Upper):
    def clip(self, block: Array) -> Array:
        block[:] = super().clip(block)
        return block


class WrongSize(Upper):
    def clip(self, block: Array) -> Array:
        return np.asarray(super().clip(block)[:, :1])


class NoJSON(Upper):
    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": {1: self.size}}


class OddDecode(Upper):
    def decode(self, total: Array) -> Array:
        return total.reshape(-1)


class RandomNull(Upper):
    def null(self) -> Array:
        return np.random.default_rng().random(self.size)


class WholeUpper(Upper):
    """Clips to integers, too."""

    def integers(self, block: Array, grid: Grid) -> NDArray[np.int64]:
        return np.asarray(self.clip(block) / grid.step).astype(np.int64)

    def null_integers(self, grid: Grid) -> NDArray[np.int64]:
        return np.zeros(self.size, dtype=np.int64)

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        return {"largest": int(1 / Fraction(grid.step))}


class AStepTooFar(WholeUpper):
    def integers(self, block: Array, grid: Grid) -> NDArray[np.int64]:
        rows = super().integers(block, grid)
        return rows + rows // 2**40  # one step where an entry is 1

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        return {"largest": 2**60}


class LargestIsMore(WholeUpper):
    def integer_bound(self, grid: Grid) -> dict[str, int]:
        return {"largest": int(1 / Fraction(grid.step)) - 1}


class DoublesOfSteps(WholeUpper):
    def integers(self, block: Array, grid: Grid) -> Any:
        return super().integers(block, grid).astype(float)


class IntegersFromTheBlock(WholeUpper):
    def integers(self, block: Array, grid: Grid) -> NDArray[np.int64]:
        rows = super().integers(block, grid)
        return rows // max(len(rows) - 1, 1)


class IntegersByLayout(WholeUpper):
    def integers(self, block: Array, grid: Grid) -> NDArray[np.int64]:
        return super().integers(block, grid) // (1 if block.flags.c_contiguous else 2)


class NullIntegersAreOne(WholeUpper):
    def null_integers(self, grid: Grid) -> NDArray[np.int64]:
        return np.ones(self.size, dtype=np.int64)


DOMAINS: list[tuple[type[Upper], str]] = [
    (AStepTooFar, "check_integers"),
    (LargestIsMore, "check_integers"),
    (DoublesOfSteps, "check_integers"),
    (IntegersFromTheBlock, "check_integers"),
    (IntegersByLayout, "check_integers"),
    (NullIntegersAreOne, "check_integers"),
    (HalfSensitivity, "check_sensitivity"),
    (LetsNaNThrough, "check_clip"),
    (NaNIsOne, "check_clip"),
    (BoundsFromData, "check_clip"),
    (WritesToRecords, "check_clip"),
    (WrongSize, "check_clip"),
    (NoJSON, "check_clip"),
    (OddDecode, "check_clip"),
    (RandomNull, "check_clip"),
]


def test_a_sound_domain_passes() -> None:
    assert check_domain(Upper(2)).passed
    assert check_domain(Box(0, 1, 3), adjacency=Adjacency.ADD_REMOVE, norms=("linf",)).passed
    report = check_domain(Ball(1.0, 2))
    assert "l2: 2 of 2 (attained)" in report["check_sensitivity"].detail
    assert check_domain(WholeUpper(2)).passed
    assert check_domain(WholeUpper(2))["check_integers"].verdict == "holds"
    assert check_domain(Upper(2))["check_integers"].verdict == "not applicable"


@pytest.mark.parametrize(("broken", "law"), DOMAINS)
def test_a_broken_domain_is_named(broken: type[Upper], law: str) -> None:
    with pytest.raises(PrivacyViolation, match=law):
        check_domain(broken(2))
    report = check_domain(broken(2), raise_error=False)
    assert law in [law.check for law in report.violated]


def test_records_of_an_unknown_form_have_to_be_given() -> None:
    class Texts(Upper):
        def clip(self, block: Any) -> Array:
            return np.array([[len(text) % 2, 0.0] for text in block.tolist()])

    with pytest.raises(CheckError, match="records"):
        check_mechanism(Sum(Opaque(2)))
    with pytest.raises(CheckError, match="at least two"):
        check_mechanism(Sum(Upper(2)), records=np.zeros((1, 2)))
    with pytest.raises(CheckError, match="common leading axis"):
        check_mechanism(Sum(Upper(2)), records=(np.zeros((3, 2)), np.zeros(4)))
    assert (
        check_domain(Texts(2), np.array(["a", "bb", "ccc"]), raise_error=False)[
            "check_sensitivity"
        ].verdict
        == "holds"
    )


class Opaque(Upper):
    def clip(self, block: Any) -> Array:
        return super().clip(block["x"])


class Plain:
    """A class of no special making; whatever its noise is changed to is priced at the spend."""

    def __init__(self) -> None:
        self.std = 4.0

    def _spend(self) -> Spend:
        return Spend("mutable", Ball(1.0, 2), GaussianNoise(self.std), arithmetic="sum")

    def loss(self) -> Loss:
        return self._spend().loss(Adjacency.REPLACE_ONE)

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            return receipt.release_sum(rows)


class Comparable(Plain):
    """Its noise can be changed after it became a key."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Comparable) and self.std == other.std

    def __hash__(self) -> int:
        return hash(self.std)


class StatesItsLoss(Plain):
    """Its noise can be changed after the price was asked, and the price stays."""

    def _spend(self) -> Spend:
        return Spend("own", Ball(1.0, 2), GaussianNoise(self.std), own_loss=GaussianLoss("0.25"))

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            return receipt.release(receipt.open(rows).sum(axis=0) + receipt.draw((2,)))


@dataclass(frozen=True)
class Listed(Sum):
    history: Any = ()

    def __hash__(self) -> int:
        return 1


class Unwritten(Loss):
    """A loss that no ledger can rebuild."""

    kind = "unwritten"
    adjacency = Adjacency.REPLACE_ONE

    def renyi(self, order: float) -> float:
        return order * 0.25

    def zcdp(self) -> Fraction:
        return Fraction(1, 4)

    def numbers(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {}


class Contradicts(Unwritten):
    """Its ρ is below its own curve."""

    def zcdp(self) -> Fraction:
        return Fraction(1, 8)


@dataclass(frozen=True)
class Stating(Own):
    stated: Any = None

    def _spend(self) -> Spend:
        return Spend("stating", self.domain, self.noise, own_loss=self.stated)


@dataclass(frozen=True)
class RawBesideNoisy(Own):
    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            total[1:] += receipt.draw(total[1:].shape)
            return receipt.release(total)


@dataclass(frozen=True)
class OwnRandomness(Own):
    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            receipt.draw(total.shape)
            return receipt.release(total + np.random.default_rng().normal(0, 4, total.shape))


@dataclass(frozen=True)
class GlobalRandomness(Own):
    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            receipt.draw(total.shape)
            return receipt.release(total + np.random.normal(0, 4, total.shape))


@dataclass(frozen=True)
class ReturnsPlain(Own):
    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            return receipt.release(total + receipt.draw(total.shape)).value * 1.0


@dataclass(frozen=True)
class GoesOnWhenRefused(Own):
    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        try:
            return super().release(rows, token)
        except TokenError:
            return Released


@dataclass(frozen=True)
class ShapeTellsTheCount(Own):
    """A bad record is skipped, not nulled, and the shape says so."""

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            opened = receipt.open(rows)
            kept = np.concatenate([np.zeros((1, 2)), opened[np.abs(opened).sum(axis=1) > 0]])
            return receipt.release(kept + receipt.draw(kept.shape))


@dataclass(frozen=True)
class KeepsTheTotal(Own):
    """What it released is noisy; what it keeps for later is not."""

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            object.__setattr__(self, "last", total)
            return receipt.release(total + receipt.draw(total.shape))


class Fitted(Plain):
    """Clips to bounds that it takes from the first rows that it sees."""

    bound: float | None = None

    def _spend(self) -> Spend:
        return Spend("fitted", Ball(1.0, 2), GaussianNoise(self.std))

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            if self.bound is None:
                self.bound = float(abs(total).max())
            return receipt.release(np.clip(total, -1, self.bound) + receipt.draw(total.shape))


@dataclass(frozen=True)
class Talks(Own):
    """Prints, warns or logs how much there was."""

    how: Callable[[str], object] = print

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            self.how(f"total {total}")
            return receipt.release(total + receipt.draw(total.shape))


@dataclass(frozen=True)
class NeverSpends(Sum):
    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        return np.zeros(2)


@dataclass(frozen=True)
class FailsOnNull(Sum):
    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        raise ZeroDivisionError("no rows")


BROKEN: list[tuple[Any, list[str]]] = [
    (Comparable(), ["specification_is_fixed"]),
    (StatesItsLoss(), ["specification_is_fixed"]),
    (Listed(BALL, history=[]), ["specification_is_fixed"]),
    (Listed(BALL, history=np.zeros(2)), ["specification_is_fixed"]),
    (Stating(BALL, stated=Unwritten()), ["price"]),
    (Stating(BALL, stated=Contradicts()), ["price"]),
    (Stating(BALL, stated=GaussianLoss("3.95")), ["exact"]),
    (Stating(BALL, stated=GaussianLoss("0.25")), ["exact", "samples"]),
    (RawBesideNoisy(BALL), ["exact", "samples"]),
    (GlobalRandomness(BALL), ["spends_once_and_first"]),
    (ReturnsPlain(BALL), ["spends_once_and_first"]),
    (GoesOnWhenRefused(BALL), ["spends_once_and_first"]),
    (ShapeTellsTheCount(BALL), ["only_values_depend_on_data"]),
    (KeepsTheTotal(BALL), ["specification_is_fixed"]),
    (Fitted(), ["specification_is_fixed"]),
    (Talks(BALL), ["only_values_depend_on_data"]),
    (Talks(BALL, how=warnings.warn), ["only_values_depend_on_data"]),
    (Talks(BALL, how=logging.getLogger("talks").info), ["only_values_depend_on_data"]),
    (Sum(BoundsFromData(2)), ["domain_laws"]),
    (Sum(NaNIsOne(2)), ["bad_record_counts_as_null", "domain_laws"]),
    (Sum(LetsNaNThrough(2)), ["bad_record_counts_as_null", "domain_laws"]),
    (NeverSpends(BALL), ["runs_on_null_records"]),
    (FailsOnNull(BALL), ["runs_on_null_records"]),
]


@pytest.mark.parametrize(
    ("broken", "laws"),
    thinned(BROKEN, 2),
    ids=[f"{type(m).__name__}-{laws[0]}" for m, laws in BROKEN],
)
def test_a_broken_mechanism_is_named(broken: Any, laws: list[str]) -> None:
    samples = 800 if "samples" in laws else 200  # which no other law draws
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of them warns
        report = check_mechanism(broken, samples=samples, raise_error=False)
    failed = {law.check for law in report.violated}
    assert failed >= {law if law in LOOKS else f"check_{law}" for law in laws}, str(report)
    with pytest.raises(PrivacyViolation, match=laws[0]) as caught:
        report.raise_if_bad()
    assert caught.value.evidence is not None


def test_own_randomness_is_not_accused_and_not_called_fine() -> None:
    report = check_mechanism(OwnRandomness(BALL), samples=400)
    assert report.verdict == "weak", str(report)


@dataclass
class Foreign:
    """Laplace noise of somebody else's, of which a share is drawn."""

    share: float = 1.0
    norm: str = "l1"

    def draw(self, pool: Any, shape: tuple[int, ...]) -> Array:
        return np.asarray(LaplaceNoise(4.0).draw(pool, shape)) * self.share


def test_noise_of_another_package_is_compared_with_its_price() -> None:
    price = LaplaceNoise(4.0).loss(1.0, Adjacency.REPLACE_ONE)
    assert not why_wrong(Foreign(), price, 1.0, 2)
    assert "another law" in why_wrong(Foreign(0.9), price, 1.0, 2)
    assert "along 2 sums" in why_wrong(Foreign(norm="l2"), price, 1.0, 2)
    with pytest.raises(CheckError, match="names no law"):
        why_wrong(Foreign(), PureLoss("0.5"), 1.0, 2)


def test_less_noise_than_was_paid_for_is_refused_whatever_class_asks() -> None:
    noise = NoiseSource.simulation(0)
    plain, book = Plain(), CentralAccountant(ZCDP(9), users=range(3), noise=noise)
    token = book.issue(plain.loss(), users=range(3), label="sum")
    plain.std = 1.0
    with pytest.raises(LossExceedsTokenError):
        plain.release(Rows.seal(np.zeros((3, 2)), users=range(3)), token)


def test_the_callers_arrays_stay_as_they_are_and_nothing_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also for a function that changes what it is given: each run gets data of its own."""

    def doubles(data: Array, rng: np.random.Generator) -> float:
        data *= 2
        print("once more")
        return float(data.sum() + rng.laplace(scale=8.0))

    def doubles_rows(block: Array) -> Array:
        block *= 2
        return block

    one, other, records = np.array([[1.0], [2.0]]), np.array([[3.0], [2.0]]), np.ones((4, 1))
    given = [array.copy() for array in (one, other, records)]
    found = assert_private(doubles, PureDP("0.5"), neighbours=(one, other), samples=2000)
    assert 0 < found.bound < 0.5
    for data in ([1.0, 2.0], {"x": [1.0]}):
        assert_private(
            lambda data, rng: data.clear() or rng.laplace(),
            PureDP(1),
            neighbours=(data, type(data)()),
            samples=200,
        )
        assert len(data) in (1, 2)
    records[0] = given[2][0] = 9.0
    talks = Talks(WritesToRecords(1), how=lambda text: print(text))
    check_mechanism(talks, records=records, neighbours=(one, other), samples=200, raise_error=False)
    with pytest.raises(InterferenceError, match="writes to the rows"):
        check_row_local(doubles_rows, one, other[:1])
    for now, before in zip((one, other, records), given, strict=True):
        assert np.array_equal(now, before)
    assert capsys.readouterr().out == ""


class BackwardStream:
    """A stream that takes users in any order, and as often as they come."""

    def __init__(self, inner: PrefixSum[Array]) -> None:
        object.__setattr__(self, "inner", inner)

    def loss(self) -> Loss:
        inner: Any = self.__dict__["inner"]
        loss: Loss = inner.loss()
        return loss

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)

    def open(self, token: Token[Any]) -> Any:
        return _Backward(self.__dict__["inner"], token)


class _Backward:
    def __init__(self, inner: PrefixSum[Array], token: Token[Any]) -> None:
        self._receipt = token.spend(replace(inner.spend(), grid=None))  # in doubles
        self._noise = inner.factorization.stream(lambda n: self._receipt.draw((n, 2)))

    def __enter__(self) -> _Backward:
        return self

    def __exit__(self, *details: Any) -> None:
        self._receipt.__exit__(*details)

    def append(self, rows: Rows[Any]) -> Any:
        n = len(rows)
        with self._receipt.round():
            try:
                values = self._receipt.open(rows)
            except ValueError:
                values = np.zeros((n, 2))
            total = values.sum(axis=0) if n > 2 else values.cumsum(axis=0)
            return self._receipt.publish(total + self._noise.next(n))


def test_a_stream_that_is_not_one_is_named() -> None:
    broken = BackwardStream(PrefixSum.calibrated(Ball(1.0, 2), ZCDP("0.5"), horizon=6))
    report = check_mechanism(broken, samples=800, raise_error=False)
    result = report["check_stream_takes_users_in_order"]
    assert result.verdict == "violated"
    assert "user 1" in result.detail


def test_a_claim_of_ones_own_is_checked() -> None:
    mechanism = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.5"))
    report = check_mechanism(mechanism, ZCDP("0.45"), samples=800, raise_error=False)
    assert [law.check for law in report.violated] == ["exact"]
    with pytest.raises(PrivacyViolation, match="samples"):
        check_mechanism(mechanism, PureDP("0.2"), samples=2000)


def test_neighbours_of_ones_own_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SECONDS", 60.0)  # it ends by itself, on a slow machine too
    mechanism = Sum(Upper(2), LaplaceNoise(4.0))
    pair = (np.array([[0.0, 0.0]]), np.array([[0.0, 0.5]]))
    report = check_mechanism(mechanism, mechanism.loss(), neighbours=pair, samples=800)
    assert "exact 0.125" in report["exact"].detail
    report = check_mechanism(mechanism, neighbours=pair, samples=800)
    assert "exact 0.5" in report["exact"].detail  # its own claim is about all there are
    with pytest.raises(CheckError, match="neighbours"):
        check_mechanism(mechanism, neighbours=(np.zeros((2, 2)), np.ones((2, 2))), samples=800)


def test_a_check_that_cannot_be_done_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def impossible(*args: Any, **options: Any) -> Any:
        raise CheckError("it is no use")

    monkeypatch.setattr("privlearn.checking.laws.check.black_box", impossible)
    mechanism = Sum(Upper(2), LaplaceNoise(4.0))
    report = check_mechanism(mechanism, raise_error=False)
    assert report["samples"].verdict == "not done"
    assert not report.passed
    assert "samples: NOT DONE" in report.summary()
    with pytest.raises(CheckError, match="samples"):
        report.raise_if_bad()


@pytest.mark.parametrize("nothing", [3, None, object()])
def test_what_is_no_mechanism_is_refused(nothing: Any) -> None:
    with pytest.raises(CheckError, match=r"must be f\(data, rng\), or have loss\(\) and release"):
        check_mechanism(nothing)


def test_a_loss_that_is_none_is_refused() -> None:
    class Priced(Sum):
        def loss(self) -> Any:
            return 0.5

    with pytest.raises(CheckError, match="must be a Loss"):
        check_mechanism(Priced(BALL))


def test_the_report_reads_well() -> None:
    report = check_mechanism(Sum(BALL), samples=800)
    assert isinstance(report, CheckReport)
    assert len(report.findings) == len(NAMES)
    assert str(report).count("\n") >= len(NAMES)
    assert re.fullmatch(
        r"Sum: 8 of 8 checks passed; exact: tight; samples: not refuted, mu >= [\d.]+ of 2 at "
        r"confidence 0.99 \(800 samples\)",
        report.summary(),
    )


def test_a_function_is_called_by_its_name() -> None:
    @mechanism(domain=Box(0, 10, 1), noise=LaplaceNoise(20.0))
    def middle_total(rows: Array, draw: Callable[[tuple[int, ...]], Array]) -> Array:
        return np.asarray(np.sort(rows, axis=0)[5:-5].sum(axis=0) + draw((1,)))

    report = check_mechanism(middle_total, samples=400)
    assert str(report).startswith("middle-total:")
    assert report["exact"].verdict == "tight"  # though of few records it returns noise only
    crowd = np.repeat([[0.0], [10.0]], 20, axis=0)
    less = np.concatenate([crowd[:-1], [[0.0]]])
    found = check_mechanism(middle_total, neighbours=(crowd, less), samples=400)
    assert "tight" in found["exact"].detail
