"""A call that does not fit is told which argument is meant, and what would be right."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import privlearn
from privlearn.accountants import CentralAccountant
from privlearn.estimators import PrivateLinearRegression
from privlearn.learners import DPTOFW
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise

Box: Any = privlearn.Box
ROWS = privlearn.Rows.seal(np.ones((3, 1)), users=range(3))
SUM: Any = NoisySum(privlearn.Ball(1.0, 1), GaussianNoise(4.0))


@pytest.mark.parametrize(
    ("call", "says", "right"),
    [
        (lambda: Box(0, 100), "Box: size is missing", "Box(0, 100, size=3)"),
        (
            lambda: privlearn.ZCDP(epsilon=1),  # type: ignore[call-arg]
            "epsilon= is no argument; an epsilon is that of a budget, PureDP(epsilon) or",
            "ZCDP(rho='1')",
        ),
        (
            lambda: CentralAccountant(epsilon=1),  # type: ignore[call-arg]
            "CentralAccountant: epsilon= is no argument",
            "CentralAccountant(budget=ZCDP('1'), users=range(1000))",
        ),
        (
            lambda: PrivateLinearRegression(epsilon=1),  # type: ignore[call-arg]
            "PrivateLinearRegression: epsilon= is no argument",
            "PrivateLinearRegression(ApproxDP(1, 1e-5))",
        ),
        (
            lambda: DPTOFW(13, "whitened"),  # type: ignore[call-arg, arg-type]
            "'whitened' must be given by name, as method=",
            "DPTOFW(13, method='whitened')",
        ),
        (
            lambda: SUM.release(ROWS),
            "NoisySum.release: token is missing",
            "mechanism.release(rows, token=accountant.issue(mechanism.loss(), users=rows.users,",
        ),
        (
            lambda: privlearn.Rows.seal(np.full(3, 0.123)),  # type: ignore[call-arg]
            "Rows.seal: users is missing",
            "Rows.seal(block, users=range(1000))",
        ),
    ],
)
def test_the_message_names_the_argument_and_shows_a_right_call(
    call: Callable[[], Any], says: str, right: str
) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    message = str(caught.value)
    assert says in message
    assert f"right is, for example, {right}" in message
    assert "It takes (" in message
    assert "0.123" not in message  # somebody's data


def test_what_is_raised_within_a_call_is_left_alone_and_signatures_stay() -> None:
    with pytest.raises(TypeError, match=r"^budget = 1: must be a budget such as ZCDP\('1'\)$"):
        CentralAccountant(1, users=range(3))  # type: ignore[arg-type]
    assert list(inspect.signature(Box).parameters) == ["low", "high", "size"]
    assert "method" in inspect.signature(DPTOFW).parameters


@pytest.mark.parametrize(
    "value", [np.int64(1), np.uint8(1), np.float16(0.1), np.float32(0.1), np.float64(0.1)]
)
def test_numbers_of_numpy_count_as_their_shortest_decimal(value: Any) -> None:
    assert privlearn.ZCDP(value).rho == Fraction(str(value))


@pytest.mark.parametrize("value", [np.bool_(True), np.array(1.0), np.complex128(1)])
def test_what_is_no_number_of_numpy_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="must be a number"):
        privlearn.ZCDP(value)
