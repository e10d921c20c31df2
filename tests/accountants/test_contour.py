"""Random mixtures against contour integrals: never below the truth, and close to it."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from contour import delta_by_contour, mixture

from privlearn.accountants import loss_grid
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.accountants.tight_composition import QUICK
from privlearn.losses import GaussianLoss, LaplaceLoss, Loss
from privlearn.losses.conversion import gaussian_delta


def test_the_oracle_knows_the_gaussian() -> None:
    for mass in (0.04, 1.0, 9.0):
        for epsilon in (0.5, 2.0, 6.0):
            exact = gaussian_delta(mass, epsilon).value
            if exact > 1e-12:
                found = delta_by_contour([(GaussianLoss(Fraction(mass)), 1)], epsilon)
                assert found == pytest.approx(exact, rel=1e-9)


def test_no_answer_is_below_the_truth_and_quick_ones_are_close() -> None:
    rng = np.random.default_rng(35)
    gaps = []
    for number in range(40):
        parts, delta = mixture(rng), float(10.0 ** rng.uniform(-9, -3))
        answer = evaluate(parts, effort=QUICK).epsilon(delta)
        low = answer.value - answer.error_bound
        assert answer.method == "dominating pairs", (number, parts)
        assert delta_by_contour(parts, answer.value) <= delta * (1 + 1e-8), (number, parts)
        assert low == 0 or delta_by_contour(parts, low) >= delta * (1 - 1e-8), (number, parts)
        gaps.append(math.log(delta / delta_by_contour(parts, answer.value)))
    assert statistics.median(gaps) < 1e-3  # of δ, log: about 1e-4 of ε and less


def test_a_law_that_is_moved_down_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[tuple[Loss, int]] = [(GaussianLoss("0.2"), 1), (LaplaceLoss("0.1"), 50)]
    split = loss_grid._split
    monkeypatch.setattr(
        loss_grid,
        "_split",
        lambda points, step: split(points._replace(loss=points.loss * (1 - 1e-4)), step),
    )
    answer = evaluate(parts).epsilon(1.234e-6)
    assert delta_by_contour(parts, answer.value) > 1.234e-6 * (1 + 1e-8)
