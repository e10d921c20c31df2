"""JSON forms of entries, read once: most spends of an account look alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from privlearn.losses import Loss, loss_from_dict
from privlearn.losses.budgets import Budget, budget_from_dict
from privlearn.noise import Noise, noise_from_dict
from privlearn.rows.domains import Domain, domain_from_dict

T = TypeVar("T")


class Reader(Generic[T]):
    """Reads JSON forms, and remembers the flat ones: most spends of an account look alike."""

    def __init__(self, read: Callable[[dict[str, Any]], T]) -> None:
        self._read = read
        self._known: dict[tuple[object, ...], T] = {}
        self._last: tuple[dict[str, Any], T] | None = None

    def __call__(self, data: dict[str, Any]) -> T:
        last = self._last
        if last is not None and last[0] is data:  # what was checked is recorded
            return last[1]
        try:
            key = flat(data)
            found = self._known.get(key)
        except TypeError:  # it holds lists or objects
            found = self._read(data)
            self._last = data, found
            return found
        if found is None:
            found = self._read(data)
            if len(self._known) >= 4096:
                self._known.clear()
            self._known[key] = found
        self._last = data, found
        return found


def flat(data: dict[str, Any]) -> tuple[object, ...]:
    """A key for a form without lists and objects, which raise TypeError when it is hashed."""
    # types too: True, 1 and 1.0 are equal, but not all of them are accepted
    return (*data.items(), *map(type, data.values()))


read_loss: Reader[Loss] = Reader(loss_from_dict)
read_budget: Reader[Budget] = Reader(budget_from_dict)
read_domain: Reader[Domain[Any] | None] = Reader(domain_from_dict)
read_noise: Reader[Noise | None] = Reader(noise_from_dict)
