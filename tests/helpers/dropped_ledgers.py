"""Processes that end without a word, in this one: a ledger's file is let go as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource

_APPEND = Ledger.append


class Died(BaseException):
    """What a process never sees of its own end."""


def begun(path: Path, budget: Any, users: int, seed: int = 0, **more: Any) -> Any:
    """A central accountant with a ledger on disk and simulated noise."""
    return CentralAccountant(
        budget,
        users=range(users),
        ledger=Ledger.create(path),
        noise=NoiseSource.simulation(seed),
        **more,
    )


def resumed(path: Path, seed: int = 1, **more: Any) -> Any:
    """The same after a restart, with other noise."""
    return CentralAccountant.resume(path, noise=NoiseSource.simulation(seed), **more)


def die(accountant: Any) -> None:
    """Ends the process, as far as its ledger is concerned."""
    accountant.ledger._disk._end()


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, entry: int, *, written: bool) -> Iterator[None]:
    """The process ends at its n-th entry, just before or after it is on disk.

    Nothing that it tries afterwards reaches the disk, and nothing that it raises is seen.
    """
    count = 0

    def append(self: Ledger, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count > entry or (count == entry and not written):
            raise Died
        found = _APPEND(self, *args, **kwargs)
        if count == entry:
            raise Died
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", append)
        try:
            yield
        except BaseException:
            if count < entry:
                raise
