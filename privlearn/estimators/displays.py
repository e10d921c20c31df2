"""Pictures of a fit in scikit-learn's manner: ``from_estimator``, then ``plot``.

Public ones are made of what was released, and can be saved and shown.  Private ones are made of
rows that were not paid for: they say so in their title, show nothing of themselves until somebody
asks for ``plot``, and have no ``save``.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Self, final

import numpy as np

from privlearn.accountants import Certificate
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.estimators.coefficients import CoefficientTable
from privlearn.losses import gaussian_loss
from privlearn.reporting.figures import COLORS, draw_tradeoff, new_figure, save, tidy
from privlearn.reporting.privacy_curves import PrivacyCurve, curve_of
from privlearn.reporting.visible import in_plot
from privlearn.rows.domains import Array
from privlearn.values.validate import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from privlearn.estimators.base import PrivateEstimator

PRIVATE: Final = "PRIVATE, for the operator only: of rows that were not paid for"
_MOST_BARS: Final = 40
_BINS: Final = 10


class _Display(ABC):
    """A picture: ``ax_`` and ``figure_`` are there after `plot`."""

    ax_: Axes
    figure_: Figure
    _size = (6.0, 4.4)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draws on ``ax``, or on a new figure."""
        self.ax_ = new_figure(*self._size).subplots() if ax is None else ax
        figure: Any = self.ax_.figure
        self.figure_ = figure
        self._draw(self.ax_)
        tidy(self.ax_)
        return self

    @abstractmethod
    def _draw(self, axes: Axes) -> None: ...


class _PublicDisplay(_Display):
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture; the ending says the form.

        Raises:
            DataError: the ending is not a form that can be drawn.
        """
        save(self.plot().figure_, path)

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.plot().figure_.savefig(drawn, format="png", dpi=100)
        return drawn.getvalue()


class _PrivateDisplay(_Display):
    def _draw(self, axes: Axes) -> None:
        axes.set_title(PRIVATE, fontsize=9, color=COLORS[1])
        self._draw_rows(axes)

    @abstractmethod
    def _draw_rows(self, axes: Axes) -> None: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {PRIVATE}>"


@final
class CoefficientsDisplay(_PublicDisplay):
    """The largest coefficients of a fit, with the least intervals that its noise leaves; public.

    Args:
        table: all of them.
        most: how many are drawn.
    """

    def __init__(self, table: CoefficientTable, most: int = _MOST_BARS) -> None:
        self.table, self._most = table, count(most=most)
        self._size = (6.5, 1.2 + 0.24 * min(len(table), most))

    @classmethod
    def from_estimator(cls, estimator: PrivateEstimator, *, most: int = _MOST_BARS) -> Self:
        """Of a fitted estimator.

        Raises:
            NotFittedError: it is not.
        """
        return cls(estimator.coef_table_, most)

    def _draw(self, axes: Axes) -> None:
        rows = sorted(self.table, key=lambda row: -abs(row.value))[: self._most][::-1]
        values = np.array([row.value for row in rows])
        half = np.nan_to_num(np.array([row.high - row.value for row in rows]))
        names = [f"{row.name} ({row.label})" if row.label else row.name for row in rows]
        places = np.arange(len(rows))
        axes.axvline(0.0, color="#999999", linewidth=1)
        axes.errorbar(values, places, xerr=half, fmt="o", color=COLORS[0], ecolor=COLORS[2])
        axes.set_yticks(places, [in_plot(name) for name in names], fontsize=8)
        left = len(self.table) - len(rows)
        title = f"coefficients; {self.table.level:.0%}, noise of the steps only"
        axes.set_title(f"{title}; {left} smaller ones left out" if left else title, fontsize=10)
        axes.set_xlabel("per unit of the encoded input")


@final
class GuaranteeDisplay(_PublicDisplay):
    """The trade-off curve of a fit: the errors that no attack on one person can avoid; public.

    Args:
        certificate: of the fit.

    Raises:
        ValueError: it certifies nothing.
    """

    def __init__(self, certificate: Certificate | None) -> None:
        if certificate is None or certificate.not_certified or certificate.delta is None:
            why = "there is none" if certificate is None else certificate.not_certified
            raise ValueError(f"certificate: {why}; there is no guarantee to draw")
        self.certificate = certificate

    @classmethod
    def from_estimator(cls, estimator: PrivateEstimator) -> Self:
        """Of a fitted estimator.

        Raises:
            ValueError: nothing is certified.
        """
        estimator._fitted()
        return cls(estimator.certificate_)

    @property
    def curve(self) -> PrivacyCurve:
        """By μ where all noise is Gaussian, else by the one stated (ε, δ)."""
        told = self.certificate
        if told.mu is not None and told.composition is not None:
            loss = gaussian_loss(told.mu, 1.0, told.composition.adjacency)
            return curve_of(evaluate([(loss, 1)]))
        return PrivacyCurve(np.array([told.epsilon]), np.array([told.delta]))

    def _draw(self, axes: Axes) -> None:
        draw_tradeoff(axes, self.curve)


@final
class HeldOutDisplay(_PrivateDisplay):
    """Predictions of a regression against targets of rows that were held out; private.

    Args:
        targets, predictions: in the target's own units, shape (n,).
    """

    def __init__(self, targets: Array, predictions: Array) -> None:
        self._targets, self._predictions = targets, predictions

    @classmethod
    def from_estimator(cls, estimator: PrivateEstimator, X: Any, y: Any = None) -> Self:
        """Of a fitted regression and rows as at ``score``.

        Raises:
            ValueError: a classification.
        """
        model = estimator._fitted()
        if model.loss != "squared":
            raise ValueError("estimator: a classification has a CalibrationDisplay")
        rows = estimator._held_out(X, y)
        return cls(model.encoding.from_target(rows.targets), model.answers(rows.scores))

    def _draw_rows(self, axes: Axes) -> None:
        both = np.concatenate([self._targets, self._predictions])
        ends = [both.min(), both.max()] if len(both) else [0.0, 1.0]
        axes.plot(ends, ends, color="#999999", linestyle="--", linewidth=1)
        axes.plot(self._targets, self._predictions, ".", color=COLORS[0], alpha=0.4)
        axes.set(xlabel="held out", ylabel="predicted")


@final
class CalibrationDisplay(_PrivateDisplay):
    """How often the more likely class was right, by its predicted probability; private.

    Args:
        confidence: predicted probability of the predicted class, shape (n,).
        right: whether it was the class, shape (n,).
    """

    def __init__(self, confidence: Array, right: Array) -> None:
        self._confidence, self._right = confidence, right

    @classmethod
    def from_estimator(cls, estimator: PrivateEstimator, X: Any, y: Any = None) -> Self:
        """Of a fitted classification and rows as at ``score``.

        Raises:
            ValueError: a regression.
        """
        model = estimator._fitted()
        if model.loss == "squared":
            raise ValueError("estimator: a regression has a HeldOutDisplay")
        rows = estimator._held_out(X, y)
        probabilities = model.probabilities(rows.scores)
        return cls(probabilities.max(axis=1), probabilities.argmax(axis=1) == rows.targets)

    def _draw_rows(self, axes: Axes) -> None:
        bins = np.minimum((self._confidence * _BINS).astype(int), _BINS - 1)
        points = [
            (self._confidence[bins == k].mean(), self._right[bins == k].mean())
            for k in np.unique(bins)
        ]
        axes.plot([0, 1], [0, 1], color="#999999", linestyle="--", linewidth=1)
        axes.plot(*zip(*points, strict=True), "o-", color=COLORS[0])
        axes.set(xlabel="predicted probability", ylabel="share that was right", xlim=(0, 1))
