from .describing import (
    above_threshold,
    correlation,
    count,
    covariance,
    describe,
    histogram,
    mean,
    quantile,
    quantiles,
    sum,
    top_k,
    variance,
)
from .displays import IntervalDisplay
from .results import Choice, Estimate, Matrix, Several, Summary

__all__ = [
    "Choice",
    "Estimate",
    "IntervalDisplay",
    "Matrix",
    "Several",
    "Summary",
    "above_threshold",
    "correlation",
    "count",
    "covariance",
    "describe",
    "histogram",
    "mean",
    "quantile",
    "quantiles",
    "sum",
    "top_k",
    "variance",
]
