from .describing import count, describe, histogram, mean, quantile, quantiles, sum, variance
from .displays import IntervalDisplay
from .results import Estimate, Several, Summary

__all__ = [
    "Estimate",
    "IntervalDisplay",
    "Several",
    "Summary",
    "count",
    "describe",
    "histogram",
    "mean",
    "quantile",
    "quantiles",
    "sum",
    "variance",
]
