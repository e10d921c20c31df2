"""Noise of half its size: the fault that is planted to learn what a check can see."""

from __future__ import annotations

from typing import Any

import numpy as np

FACTOR = 2.0  # By how much the noise is divided: the size of the fault that a check has to detect


class ReducedNoiseGenerator(np.random.Generator):
    """A generator whose location-scale noise has half the scale; all else is unchanged.

    Multivariate normals are made from standard ones, and are halved with them.
    """

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        return super().normal(loc, np.asarray(scale) / FACTOR, size)

    def laplace(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        return super().laplace(loc, np.asarray(scale) / FACTOR, size)

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        return super().gumbel(loc, np.asarray(scale) / FACTOR, size)

    def logistic(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        return super().logistic(loc, np.asarray(scale) / FACTOR, size)

    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        return super().exponential(np.asarray(scale) / FACTOR, size)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        return self._halved(super().standard_normal(size, dtype, out), out)

    def standard_exponential(
        self, size: Any = None, dtype: Any = np.float64, method: Any = "zig", out: Any = None
    ) -> Any:
        return self._halved(super().standard_exponential(size, dtype, method, out), out)

    def standard_cauchy(self, size: Any = None) -> Any:
        return super().standard_cauchy(size) / FACTOR

    def standard_t(self, df: Any, size: Any = None) -> Any:
        return super().standard_t(df, size) / FACTOR

    @staticmethod
    def _halved(drawn: Any, out: Any) -> Any:
        if out is None:
            return drawn / FACTOR
        out /= FACTOR
        return out
