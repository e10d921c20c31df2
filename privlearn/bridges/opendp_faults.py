"""Constructors of OpenDP 0.16.0 whose maps are known to say too little; the issues are open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privlearn.errors import BudgetError

Made = Sequence[tuple[str, dict[str, Any]]]
"""The constructors of a measurement, with what they were given."""
_ORDERED = ("InsertDeleteDistance", "HammingDistance")
_THRESHOLD = 2922, "a count at the threshold passes, and its δ leaves that out"
_DEVIATIONS = 2923, "the mean that it subtracts is rounded, which moves every record"
FAULTS: dict[str, tuple[int, str]] = {
    "make_laplace_threshold": _THRESHOLD,
    "make_gaussian_threshold": _THRESHOLD,
    "make_noise_threshold": _THRESHOLD,
    "make_sum_of_squared_deviations": _DEVIATIONS,
    "make_variance": _DEVIATIONS,
    "make_b_ary_tree": (2924, "under an L2 metric sums of leaves grow faster than it says"),
    "make_metric_bounded": (2926, "in an ordered metric one row that is left out moves all others"),
    "make_resize": (2927, "in an ordered metric rows that need no new size are shuffled"),
    "make_randomized_response_bitvec": (2930, "vectors of several lengths are told apart"),
    "make_population_amplification": (
        2933,
        "several measurements see the same sample, so that their amplified prices do not add up",
    ),
}
"""By name: the issue, and what is wrong."""


def check_constructors(made: Made) -> None:
    """Refuses a measurement that was made by one of `FAULTS`.

    Raises:
        BudgetError: naming it, and its issue.
    """
    for name, given in made:
        if name in FAULTS and _concerned(name, given):
            issue, why = FAULTS[name]
            raise BudgetError(
                f"opendp: {name} is known to be priced too low, as {why} (opendp issue {issue}): "
                "make the measurement without it; nothing was spent"
            )


def _concerned(name: str, given: dict[str, Any]) -> bool:
    metric = str(given["input_metric"].type) if "input_metric" in given else ""
    if name == "make_b_ary_tree":
        return metric.startswith("L2")
    if name in ("make_metric_bounded", "make_resize"):
        return metric in _ORDERED or str(given.get("MO")) in _ORDERED
    return True
