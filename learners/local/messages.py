"""Messages of a local bandit: fixed-point integers in a fixed binary layout.

A message is what a device's mechanism released, cut to ±limit and rounded to a grid of step
limit/2²³: post-processing, which costs nothing.  Integers add up exactly, in any order.  The layout
(version 1, little-endian, ``docs/local.md``):

====== ===== =========================================================================
offset bytes what
====== ===== =========================================================================
0      3     ``PLM``
3      1     version, 1
4      4     public batch, unsigned
8      8     first bytes of the configuration's fingerprint
16     8     user: the public arrival index, unsigned
24     4·n   n numbers in steps of the grid, signed, each in −2²³..2²³; part by part
====== ===== =========================================================================

n is the report's size: of one part in the warm-up, of all parts afterwards.  Reading never raises:
what cannot be a message is rejected for one of `REJECTION_REASONS`, which are counted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, Any, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from privlearn.errors import DataError
from privlearn.learners.local.form import FIRST, GRID, MAGIC, VERSION, MessageForm
from privlearn.rows.domains import Array

RejectionReason = Literal[
    "malformed",
    "other configuration",
    "late",
    "early",
    "other user",
    "out of range",
    "implausible",
    "duplicate",
]
REJECTION_REASONS: tuple[RejectionReason, ...] = (
    "malformed",  # not a message by its length, first letters or version
    "other configuration",  # the fingerprint of another deployment
    "late",  # of a batch that is closed
    "early",  # of a batch that is not open yet
    "other user",  # who does not belong to the batch, or not to this machine
    "out of range",  # a number beyond the limit
    "implausible",  # numbers that the mechanism cannot put out
    "duplicate",  # a message of this user was counted before
)
Index = NDArray[np.int64]
Bytes = bytes | bytearray | memoryview
_HEAD = struct.Struct("<3sBI8sQ")


@final
class Message(BaseModel):
    """What one user sends.

    Args:
        batch: the public batch of the user.
        fingerprint: the first 8 bytes of the configuration's, in hexadecimal digits.
        user: the public arrival index.
        values: the report in steps of the grid.

    Raises:
        ValueError: a field that the binary form cannot hold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    batch: Annotated[int, Field(ge=0, lt=2**32)]
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    user: Annotated[int, Field(ge=0, lt=2**64)]
    values: tuple[Annotated[int, Field(ge=-GRID, le=GRID)], ...]

    def to_bytes(self) -> bytes:
        key, values = bytes.fromhex(self.fingerprint), self.values
        head = _HEAD.pack(MAGIC, self.version, self.batch, key, self.user)
        return head + struct.pack(f"<{len(values)}i", *values)

    @classmethod
    def from_bytes(cls, data: Bytes) -> Message:
        """Reads the binary form, to look at it; a server's `update` takes bytes as they are.

        Raises:
            DataError: not a message of this version, or with a number out of range.
        """
        data = bytes(data)
        if len(data) < _HEAD.size or len(data) % 4:
            raise DataError(f"a message of {len(data)} bytes: must have 24 + 4·n of them")
        magic, version, batch, key, user = _HEAD.unpack_from(data)
        values = struct.unpack_from(f"<{len(data) // 4 - 6}i", data, _HEAD.size)
        if (magic, version) != (MAGIC, VERSION):
            raise DataError(f"begins with {data[:4]!r}: must be {MAGIC!r}, version 1")
        if any(abs(value) > GRID for value in values):
            raise DataError(f"a number beyond the grid: all must lie in ±{GRID}")
        return cls(batch=batch, fingerprint=key.hex(), user=user, values=values)


@final
class MessageFilter:
    """Lets through what can be a message, once per user, and counts the rest by reason.

    Args:
        form: of the messages.
        users: who may send one.
        batch: the one that is open; None if every user is a batch (`LocalLearner.per_message`).

    Attributes:
        seen: whether a message of each of ``users`` was let through.
        rejected: how many were not, by reason.
        clock: with every user a batch, the first whose batch is open.
    """

    def __init__(self, form: MessageForm, users: range, batch: int | None) -> None:
        self.form, self.users, self.batch = form, users, batch
        self.seen = np.zeros(len(users), dtype=np.bool_)
        self.rejected: dict[RejectionReason, int] = dict.fromkeys(REJECTION_REASONS, 0)
        self.clock = users.start

    def accept(
        self, messages: Bytes | Iterable[Bytes], within: range | None = None
    ) -> Iterable[tuple[Index, Array]]:
        """Users and estimates of what is let through, block by block.

        Args:
            messages: back to back in one string of bytes, where one torn message garbles those
                behind it; or a string for each.
            within: only users of this range.

        Yields:
            Users, shape (n,), and estimates in whole steps of their grid, (n, parts, size).
        """
        records = self._records(messages)
        for start in range(0, len(records), _BLOCK):
            yield self._accepted(records[start : start + _BLOCK], within)

    def _records(self, messages: Bytes | Iterable[Bytes]) -> NDArray[np.void]:
        size = self.form.dtype.itemsize
        if isinstance(messages, Bytes):
            data = memoryview(bytes(messages))  # in one piece, and as it is now
            if len(data) % size:
                self.rejected["malformed"] += 1
            data = data[: len(data) - len(data) % size]
        else:
            whole = []
            for message in map(bytes, messages):
                if len(message) == size:
                    whole.append(message)
                else:
                    self.rejected[self._why_not(message)] += 1
            data = memoryview(b"".join(whole))
        return np.frombuffer(data, dtype=self.form.dtype) if data else np.empty(0, self.form.dtype)

    def _why_not(self, message: Bytes) -> RejectionReason:
        """Messages of the warm-up and later ones differ in length; they may be late or early."""
        if len(message) < _HEAD.size or self.batch is None:
            return "malformed"
        magic, version, batch, key, _ = _HEAD.unpack_from(message)
        if (magic, version) != (MAGIC, VERSION) or batch == self.batch:
            return "malformed"
        if int.from_bytes(key, "little") != self.form.key:
            return "other configuration"
        return "late" if batch < self.batch else "early"

    def _accepted(self, records: NDArray[np.void], within: range | None) -> tuple[Index, Array]:
        form = self.form

        def keep(right: Any, reason: RejectionReason) -> None:
            nonlocal records
            wrong = len(right) - np.count_nonzero(right)
            if wrong:
                self.rejected[reason] += int(wrong)
                records = records[right]

        keep(records["first"] == FIRST, "malformed")
        keep(records["key"] == form.key, "other configuration")
        if self.batch is None:
            keep(records["user"] == records["batch"], "other user")
            keep(records["user"] >= np.uint64(self.clock), "late")
        else:
            keep(records["batch"] >= self.batch, "late")
            keep(records["batch"] == self.batch, "early")
        for mine in (self.users,) if within is None else (self.users, within):
            named = records["user"]
            right = (named >= np.uint64(mine.start)) & (named < np.uint64(mine.stop))
            keep(right, "other user")
        values = records["values"].astype(np.float64)
        fits = (np.abs(values) <= GRID).all(axis=1)
        keep(fits, "out of range")
        reports = (values[fits] * form.step).reshape(len(records), form.parts, form.part.size)
        flat = reports.reshape(-1, form.part.size)
        likely = form.part.plausible(flat, form.step).reshape(-1, form.parts).all(axis=1)
        keep(likely, "implausible")
        users = records["user"].astype(np.int64)
        new = self._first_of_each(users - self.users.start)
        keep(new, "duplicate")
        n, size = len(records), form.estimate_size
        if not n:
            return users[new], np.empty((0, form.parts, size))
        if not (likely.all() and new.all()):
            reports = reports[likely][new]
        estimates = form.part.estimate(reports.reshape(-1, form.part.size))
        steps = np.rint(estimates / form.estimate_step).clip(-GRID, GRID)
        return users[new], steps.reshape(n, form.parts, size)

    def _first_of_each(self, places: Index) -> NDArray[np.bool_]:
        new = ~self.seen[places]
        if len(places) > 1 and not (places[1:] > places[:-1]).all():
            first = np.zeros(len(places), dtype=np.bool_)
            first[np.unique(places, return_index=True)[1]] = True
            new &= first
        self.seen[places] = True
        return new


_BLOCK = 4096  # Messages at once: as many as stay in the cache
