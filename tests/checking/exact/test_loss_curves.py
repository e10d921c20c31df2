"""Everything that a loss says, against its laws: wrong ones are refuted, odd ones are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from privlearn.checking.exact.check import compare
from privlearn.checking.exact.distributions import (
    DistributionPair,
    Value,
    dense_orders,
    knots,
    scan,
)
from privlearn.checking.exact.loss_curves import check_loss, moved, ways
from privlearn.errors import CheckError
from privlearn.losses import (
    GaussianLoss,
    LaplaceLoss,
    Loss,
    PureLoss,
    RandomizedResponse,
    RenyiCurve,
    compose,
    register,
)
from privlearn.losses.numerics import valid_epsilon
from privlearn.losses.output_laws import Density, Discrete, LawPair, laplace, normal
from privlearn.losses.pure import response_pair
from privlearn.losses.steps import PureStep, Step
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, float_up

ANY = Adjacency.REPLACE_ONE


@register
@dataclass(frozen=True, slots=True, init=False)
class Coin(Loss):
    """Randomized response of another package, with places for mistakes."""

    kind = "checked-coin"
    wrong: ClassVar[dict[str, Callable[..., Any]]] = {}
    epsilon: Fraction
    adjacency: Adjacency

    def __init__(self, epsilon: Exact, *, adjacency: Adjacency = ANY):
        self._set(epsilon=valid_epsilon(epsilon), adjacency=adjacency)

    def _or(self, name: str, right: Any, *given: Any) -> Any:
        return self.wrong[name](self, *given) if name in self.wrong else right

    def renyi(self, order: float) -> float:
        right = PureLoss(self.epsilon).renyi(order)
        return float(self._or("renyi", right, order, right))

    def zcdp(self) -> Fraction | None:
        found: Fraction | None = self._or("zcdp", PureLoss(self.epsilon).zcdp())
        return found

    def pure(self) -> Fraction | None:
        found: Fraction | None = self._or("pure", self.epsilon)
        return found

    def gaussian(self) -> Fraction | None:
        found: Fraction | None = self._or("gaussian", None)
        return found

    def step(self) -> Step:
        found: Step = self._or("step", PureStep(float_up(self.epsilon)))
        return found

    def doubled(self) -> Loss:
        found: Loss = self._or("doubled", PureLoss(2 * self.epsilon))
        return found

    def several(self, visits: int, apart: int) -> Loss:
        group = PureLoss(visits * self.epsilon, adjacency=self.adjacency)
        found: Loss = self._or("several", group, visits, apart)
        return found

    def unless_failed(self) -> Loss:
        found: Loss = self._or("unless_failed", self)
        return found

    def over(self, users: range) -> list[tuple[range, Loss]]:
        found: list[tuple[range, Loss]] = self._or("over", [(users, self)], users)
        return found

    def numbers(self) -> dict[str, Any]:
        found: dict[str, Any] = self._or("numbers", {"epsilon": str(self.epsilon)})
        return found

    def __mul__(self, count: int) -> Loss:
        found: Loss = self._or("*", compose([(self, count)]), count)
        return found

    def __add__(self, other: Loss) -> Loss:
        found: Loss = self._or("+", compose([(self, 1), (other, 1)]), other)
        return found

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair] | None:
        found: list[LawPair] | None = self._or("laws", [response_pair(float(self.epsilon), 2)])
        return found


@pytest.fixture
def coin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Coin]:
    def made(**wrong: Callable[..., Any]) -> Coin:
        monkeypatch.setattr(Coin, "wrong", wrong)
        return Coin("0.5")

    return made


def _dip(low: float, high: float, share: float = 0.97) -> Callable[[float], float]:
    exact = RandomizedResponse("0.5", 2).renyi
    return lambda order: exact(order) * (share if low <= order <= high else 1)


def _exact(order: float) -> tuple[Value, str]:
    return Value(RandomizedResponse("0.5", 2).renyi(order), 1e-12), "itself"


DIPS = [(5.5, 6.5), (17, 31), (200, math.inf), (1, 1.005), (1, 1.0000001), (1e5, math.inf), (7, 7)]


@pytest.mark.parametrize(("low", "high"), DIPS)
def test_a_curve_that_is_wrong_at_some_orders_only_is_caught(low: float, high: float) -> None:
    found = scan(_dip(low, high), _exact, knots(8), dense_orders(200))
    assert any(low <= p.order <= high and p.claimed < 0.99 * p.exact.value for p in found.points)


def test_a_narrow_dip_is_caught_where_the_code_mentions_it() -> None:
    low, high = 7.3, 7.3

    def bound(order: float) -> float:
        return _exact(order)[0].value * (0.97 if low <= order <= high else 1)

    plain, mentioned = (
        scan(bound, _exact, knots(8), dense_orders(200, *x)) for x in ((), (bound,))
    )
    below = [[p for p in s.points if p.claimed < 0.99 * p.exact.value] for s in (plain, mentioned)]
    assert [len(points) for points in below] == [0, 1]


def test_what_an_exact_curve_is_at_least_never_exceeds_it() -> None:
    """Few knots, and exact values off by their error: else bounds that hold would be refuted."""
    for loss in (GaussianLoss("0.7"), LaplaceLoss("3"), RandomizedResponse("2", 40)):

        def rough(order: float, loss: Loss = loss) -> tuple[Value, str]:
            value = loss.renyi(order)
            return Value(value * (1 + 1e-6 * math.sin(1e6 * order)), 1e-6 * value), ""

        found = scan(loss.renyi, rough, knots(1), dense_orders(50))
        assert all(p.claimed >= p.exact.value - p.exact.error for p in found.points)


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        ("renyi", {"renyi": lambda s, a, r: r * (0.97 if 17 <= a <= 31 else 1)}),
        ("renyi", {"renyi": lambda s, a, r: r * (0.97 if isinstance(a, int) else 1)}),
        ("renyi", {"renyi": lambda s, a, r: -1.0 if a > 100 else r}),
        ("zcdp, gaussian, pure", {"zcdp": lambda s: s.epsilon**2 / 8}),
        ("zcdp, gaussian, pure", {"pure": lambda s: s.epsilon * Fraction(999, 1000)}),
        ("zcdp, gaussian, pure", {"gaussian": lambda s: s.epsilon**2}),
        ("step, failure", {"step": lambda s: PureStep(0.4)}),
        ("doubled", {"doubled": lambda s: PureLoss(s.epsilon / 2)}),
        ("several", {"several": lambda s, v, a: PureLoss(s.epsilon / v)}),
        ("+ and *", {"*": lambda s, n: s}),
        ("+ and *", {"+": lambda s, o: s}),
        ("to_dict", {"numbers": lambda s: {"epsilon": "0.4"}}),
        ("to_dict", {"numbers": lambda s: {"epsilon": f"{float(s.epsilon):.4f}"}}),
        ("over, unless_failed", {"over": lambda s, u: [(u, PureLoss(s.epsilon / 2))]}),
        ("over, unless_failed", {"unless_failed": lambda s: PureLoss(s.epsilon / 2)}),
        ("other numbers", {"renyi": lambda s, a, r: min(r, 1.0)}),
    ],
    ids=lambda item: item if isinstance(item, str) else next(iter(item)),
)
def test_each_method_is_looked_at(
    coin: Callable[..., Coin], check: str, wrong: dict[str, Callable[..., Any]]
) -> None:
    found = ways(coin(**wrong))[check]()
    assert found.verdict == "violated", found


def test_a_right_loss_is_not_accused_and_not_called_tight_by_its_own_word(
    coin: Callable[..., Coin],
) -> None:
    found = check_loss(coin())
    assert {finding.verdict for finding in found} == {"holds", "not applicable"}
    assert "from 1e-09 above 1 to 1e+07" in str(found["renyi"].coverage)
    assert "by its own word" in str(found["renyi"].coverage)
    assert ways(coin(), [response_pair(0.5, 2)])["renyi"]().verdict == "tight"
    assert ways(coin(), [response_pair(0.51, 2)])["renyi"]().verdict == "violated"
    bumps = coin(renyi=lambda s, a, r: r * (1.2 if int(a) % 2 else 1))
    assert ways(bumps)["renyi"]().verdict == "holds"


def test_a_number_far_out_in_a_tail_is_no_fault() -> None:
    assert check_loss(GaussianLoss("9e-4")).passed


def test_a_curve_above_its_other_numbers_is_no_fault(coin: Callable[..., Coin]) -> None:
    """Nor is one number of a loss the truth about another, where no laws are known."""
    loose = {"renyi": lambda s, a, r: 3 * r, "laws": lambda s: None}
    assert not check_loss(coin(**loose)).violated
    cheaper = coin(**loose, numbers=lambda s: {"epsilon": f"{float(s.epsilon):.4f}"})
    assert ways(cheaper)["to_dict"]().verdict == "violated"
    nearly = coin(numbers=lambda s: {"epsilon": repr(float(s.epsilon))})
    with pytest.raises(CheckError, match="costs less once it was read"):
        ways(nearly)["to_dict"]()


def test_another_package_is_compared_at_as_many_orders(
    coin: Callable[..., Coin],
) -> None:
    wrong = coin(renyi=lambda s, a, r: r * (0.97 if 17 <= a <= 31 else 1))
    assert compare(wrong, [DistributionPair(*response_pair(0.5, 2))]).violated


def test_a_price_for_visits_that_nothing_proves_is_named(coin: Callable[..., Coin]) -> None:
    cheap = coin(several=lambda s, v, a: s, laws=lambda s: None)

    def laws(rows: int) -> list[LawPair]:
        return [(laplace(0.5 * rows, 1.0), laplace(0.0, 1.0))]

    assert ways(cheap, laws(1))["several"]().verdict == "weak"
    assert ways(cheap, laws)["several"]().verdict == "violated"


def test_without_laws_nothing_is_known_unless_an_oracle_is_given(coin: Callable[..., Coin]) -> None:
    loss = coin(laws=lambda s: None)
    found = check_loss(loss)
    assert (found["renyi"].verdict, found["to_dict"].verdict) == ("weak", "holds")
    for share, verdict in ((1.0, "tight"), (1.001, "violated")):

        def oracle(order: float, share: float = share) -> float:
            return share * _exact(order)[0].value

        exact = ways(loss, oracle=oracle)
        assert exact["renyi"]().verdict == verdict
    assert ways(RenyiCurve({2: "0.5", 3: "0.1"}))["renyi"]().verdict == "weak"


def test_what_is_no_loss_is_not_done(coin: Callable[..., Coin]) -> None:
    nan = coin(renyi=lambda s, a, r: math.nan if a > 100 else r)
    with pytest.raises(CheckError, match="could not be put to"):
        check_loss(nan)
    found = check_loss(nan, raise_error=False)["renyi"]
    assert (found.verdict, "it is nan" in found.detail) == ("not done", True), found
    bad = coin(laws=lambda s: [(Discrete(np.zeros(1)), normal(0, 1))])
    found = check_loss(bad, raise_error=False)["renyi"]
    assert (found.verdict, "cannot compare" in found.detail) == ("not done", True), found
    other = coin(doubled=lambda s: PureLoss(1, adjacency=Adjacency.ZERO_OUT))
    with pytest.raises(CheckError, match="not for replace-one"):
        ways(other)["doubled"]()
    half = Density(lambda x: laplace(0.0, 1.0).log_density(x) - 0.1, (0.0,), 1.0)
    with pytest.raises(CheckError, match="a law of mass"):
        ways(coin(), [(half, half)])["renyi"]()


def test_laws_are_moved() -> None:
    p, _ = moved((laplace(0.5, 2.0), laplace(0.0, 2.0)), 3.0) or (None, None)
    x = np.linspace(-5, 5, 11)[:, None]
    assert p is not None
    assert np.allclose(p.log_density(x), laplace(1.5, 2.0).log_density(x))  # type: ignore[union-attr]
    assert moved((normal(0.5, 1.0), normal(0.0, 1.1)), 2.0) is None
    assert moved(response_pair(0.5, 2), 2.0) is None
    weights = -0.5 * np.abs(np.arange(-200, 201))
    steps = weights - np.log(np.exp(weights).sum())
    one, two = moved((Discrete(np.roll(steps, 1)), Discrete(steps)), 2.0) or (None, None)
    assert isinstance(one, Discrete)
    assert isinstance(two, Discrete)
    assert np.allclose(one.log_mass[2:], two.log_mass[:-2])
