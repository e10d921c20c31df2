"""How many requests an access token may make: a bucket of permits that fills by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable


class Rates:
    """One bucket for each name.

    Args:
        per_second: permits that come back.
        burst: permits of a full bucket.
        clock: seconds that never go back.
    """

    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second, self._burst, self._clock = per_second, float(burst), clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, name: str) -> float:
        """Takes a permit and returns 0; if there is none, the seconds until there will be one."""
        now = self._clock()
        left, at = self._buckets.get(name, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        if left < 1.0:
            self._buckets[name] = left, now
            return (1.0 - left) / self._per_second
        self._buckets[name] = left - 1.0, now
        return 0.0
