"""With interface.patch applied: δ of black boxes is taken off the δ that is asked for."""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants.guarantee import delta_of, epsilon_of
from privlearn.losses import ApproxLoss, GaussianLoss, LaplaceLoss, Loss, PureLoss


def fails(loss: Loss) -> Fraction:
    return loss.failure()  # type: ignore[attr-defined,no-any-return,unused-ignore]


def test_a_single_box_is_what_it_says() -> None:
    box = ApproxLoss("0.3", "1e-6")
    assert epsilon_of(box, 1e-6).value == pytest.approx(0.3, rel=1e-15)
    assert epsilon_of(box, 0.999e-6).value == math.inf
    assert epsilon_of(box, 1e-3).value <= 0.3
    assert delta_of(box, math.nextafter(0.3, 1)).value == pytest.approx(1e-6, rel=1e-12)
    assert delta_of(box, 0.2).value > 1e-6
    assert fails(box * 3 + GaussianLoss(1)) == Fraction(3, 10**6)


def test_boxes_add_their_failures_and_compose_as_pure() -> None:
    boxes, pure = ApproxLoss("0.1", "1e-8") * 20, PureLoss("0.1") * 20
    assert boxes.unless_failed() == pure  # type: ignore[attr-defined,unused-ignore]
    rest = (1e-6 - 2e-7) / (1 - 2e-7)
    assert epsilon_of(boxes, 1e-6).value == pytest.approx(epsilon_of(pure, rest).value, rel=1e-9)
    both = boxes + GaussianLoss("0.25")
    assert epsilon_of(both, 1e-6).value > epsilon_of(pure + GaussianLoss("0.25"), 1e-6).value
    assert epsilon_of(both, 2e-7).value == math.inf  # nothing left for the Gaussian
    assert delta_of(ApproxLoss(1, "0.6") * 2, 1.0).value == 1.0


@given(st.floats(0.01, 2), st.floats(1e-9, 1e-3), st.integers(1, 50), st.floats(0, 20))
def test_delta_and_epsilon_invert_each_other(
    epsilon: float, delta: float, count: int, level: float
) -> None:
    loss = ApproxLoss(epsilon, delta) * count + GaussianLoss("0.1")
    total = delta_of(loss, level).value
    if total * (1 + 1e-9) < 1:
        assert epsilon_of(loss, total * (1 + 1e-9)).value <= level + 1e-4


def test_the_laplace_constant_does_not_depend_on_the_ambient_context() -> None:
    with decimal.localcontext(decimal.Context(prec=4)):
        coarse = LaplaceLoss("1/30").zcdp()
    assert coarse == LaplaceLoss("1/30").zcdp()
    # below the truth by 40% before: -eps was rounded to the ambient 28 digits
    tiny = Fraction(1, 7 * 10**26)
    assert LaplaceLoss(tiny).zcdp() >= tiny**2 / 2 - tiny**3 / 6
