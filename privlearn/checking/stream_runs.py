"""How a mechanism is run on all of its users at once, whatever shape its streams have."""

from __future__ import annotations

from typing import Any

import numpy as np

from privlearn.checking.stub_accountant import StubAccountant
from privlearn.contract.tokens import Token
from privlearn.errors import CheckError
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency


def is_stream(mechanism: Any) -> bool:
    """Whether it can only be opened: rows come one after the other, and one token pays for all."""
    return hasattr(mechanism, "open") and not hasattr(mechanism, "release")


def declared_users(mechanism: Any) -> int | None:
    """The most users of a stream that says so: by ``sizes`` of batches, or a ``horizon``.

    Either its own or that of its ``factorization``; None if it says nothing or has no horizon.
    """
    if not is_stream(mechanism):
        return None
    if (fixed := fixed_users(mechanism)) is not None:
        return fixed
    for holder in (mechanism, getattr(mechanism, "factorization", None)):
        horizon = getattr(holder, "horizon", None)
        if isinstance(horizon, int | np.integer):
            return int(horizon)
    return None


def fixed_users(mechanism: Any) -> int | None:
    """The number of users of a stream of public batches, which takes neither more nor fewer."""
    sizes = getattr(mechanism, "sizes", None)
    if is_stream(mechanism) and isinstance(sizes, tuple):
        return int(sum(sizes))
    return None


def released_by(mechanism: Any, rows: Rows[Any], token: Token[Any]) -> tuple[Any, Any]:
    """What leaves last for a token, and the values of all that leaves for it, in one array."""
    if not is_stream(mechanism):
        released = mechanism.release(rows, token)
        return released, getattr(released, "value", released)
    with mechanism.open(token) as stream:
        return appended_to(stream, rows)


def appended_to(stream: Any, rows: Rows[Any]) -> tuple[Any, Any]:
    """The same for a stream that is open; one with public batches takes one after the other."""
    if not hasattr(stream, "next_end"):
        released = stream.append(rows)
        return released, getattr(released, "value", released)
    at, stop, parts = rows.users.start, rows.users.stop, []
    while at < stop:
        end = min(stream.next_end, stop)
        released = stream.append(rows.slice(range(at, end)))
        parts += [] if released is None else [released]
        at = end
    if not parts:
        raise CheckError(f"{len(rows)} rows do not complete the first batch: nothing is let out")
    return parts[-1], np.stack([part.value for part in parts])


def accepted_users(mechanism: Any, adjacency: Adjacency, most: int) -> int:
    """How many null records a stream takes, at most ``most``; 0 if it takes not even one."""
    if _takes(mechanism, adjacency, most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _takes(mechanism, adjacency, middle) else (low, middle)
    return low


def _takes(mechanism: Any, adjacency: Adjacency, users: int) -> bool:
    stub = StubAccountant(0, adjacency)
    try:
        released_by(mechanism, Rows.null(range(users)), stub.issue(range(users)))
    except Exception:
        return False
    return True
