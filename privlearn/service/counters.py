"""What workers count: refusals by their reason, and the time to an offer.

Nothing is counted about answers: how many there were, against how many offers, says how many never
answered.  Offers are counted by their arrival indices, which are public.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, final

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds; upper ends of the classes that times are counted in."""


@final
class Counters:
    """Counts since they were last taken."""

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter()
        self._times: Counter[int] = Counter()
        self._sum = 0.0

    def refused(self, code: str) -> None:
        self._refused[code] += 1

    @contextmanager
    def timed(self, step: float) -> Iterator[None]:
        """Counts the time that an offer took, in whole steps; of those that were made, only."""
        start = time.monotonic()
        yield
        passed = round((time.monotonic() - start) / step) * step
        self._times[sum(passed > bound for bound in BOUNDS)] += 1
        self._sum += passed

    def taken(self) -> dict[str, Any] | None:
        """All counts as JSON, which are then 0 again; None if there are none."""
        if not self._refused and not self._times:
            return None
        told = {
            "refused": dict(self._refused),
            "times": {str(place): n for place, n in self._times.items()},
            "sum": self._sum,
        }
        self._refused, self._times, self._sum = Counter(), Counter(), 0.0
        return told

    def add(self, counted: Mapping[str, Any]) -> None:
        """Adds what somebody else counted, or what could not be handed on."""
        self._refused.update({str(code): int(n) for code, n in counted["refused"].items()})
        self._times.update({int(place): int(n) for place, n in counted["times"].items()})
        self._sum += float(counted["sum"])

    @property
    def refusals(self) -> Mapping[str, int]:
        return self._refused

    def histogram(self) -> tuple[list[tuple[str, int]], float]:
        """Times up to each bound, and their sum, as Prometheus has them."""
        total, found = 0, []
        for place, bound in enumerate((*BOUNDS, float("inf"))):
            total += self._times[place]
            found.append(("+Inf" if bound == float("inf") else str(bound), total))
        return found, self._sum
