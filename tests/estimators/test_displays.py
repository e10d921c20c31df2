"""Pictures of a fit: public ones can be saved, private ones say that they are private."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from privlearn import ApproxDP
from privlearn.estimators import (
    CalibrationDisplay,
    CoefficientsDisplay,
    GuaranteeDisplay,
    HeldOutDisplay,
    PrivateLinearRegression,
    PrivateLogisticRegression,
)

BUDGET: Final = ApproxDP(1, "1e-5")
RNG: Final = np.random.default_rng(0)
X: Final = RNG.uniform(0, 1, (300, 3))


def _line(**parameters: Any) -> PrivateLinearRegression:
    model = PrivateLinearRegression(BUDGET, bounds=(0, 1), target_bounds=(0, 10), **parameters)
    return model.fit(X, 10 * X[:, 0])


def test_public_pictures_show_intervals_and_the_curve_of_the_guarantee(tmp_path: Path) -> None:
    model = _line()
    table = model.coef_table_
    assert [row.name for row in table] == ["x0", "x1", "x2", "(intercept)"]
    assert all(row.low < row.value < row.high for row in table[:3])
    shown = CoefficientsDisplay.from_estimator(model, most=2).plot()
    assert [text.get_text() for text in shown.ax_.get_yticklabels()][-1] == "x0"
    assert "2 smaller ones left out" in shown.ax_.get_title()
    guarantee = GuaranteeDisplay.from_estimator(model)
    guarantee.save(tmp_path / "guarantee.svg")
    assert (tmp_path / "guarantee.svg").stat().st_size > 1000
    assert float(guarantee.curve.power(0.1)) < 0.2  # at μ = 0.27
    with pytest.raises(ValueError, match="noise is that of a simulation"):
        GuaranteeDisplay.from_estimator(_line(simulate_noise=0))


def test_private_pictures_are_marked_and_neither_shown_nor_saved_by_themselves() -> None:
    line = HeldOutDisplay.from_estimator(_line(), X, 10 * X[:, 0])
    y = (X[:, 0] > 0.5).astype(int)
    model = PrivateLogisticRegression(BUDGET, bounds=(0, 1), classes=(0, 1)).fit(X, y)
    for display in (line, CalibrationDisplay.from_estimator(model, X, y)):
        assert display.plot().ax_.get_title().startswith("PRIVATE")
        assert "PRIVATE" in repr(display)
        assert not any(char.isdigit() for char in repr(display))
        assert not hasattr(display, "save")
        assert not hasattr(display, "_repr_png_")
    with pytest.raises(ValueError, match="has a CalibrationDisplay"):
        HeldOutDisplay.from_estimator(model, X, y)
