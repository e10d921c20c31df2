"""Partial sums of one public batch, which add up exactly whoever computed them.

Within a batch the model is frozen and messages are integers, so that any partition of the messages
over machines, merged in any order, gives the same integers as one pass.  They know which users
they hold, as a bitmap: merging two that share a user is refused.  Send all messages that claim one
user to one machine (``within``), or somebody who sends one message twice spoils both sums.

Binary form, version 1, little-endian: ``PLT`` and the version; the batch, 4 bytes; 8 bytes of the
configuration's fingerprint; rejected messages in the order of `REJECTION_REASONS`, 8 bytes each;
the sums, part by part, in steps of the grid, 8 bytes each, signed; the bitmap of the batch's users,
first user in the highest bit of the first byte; and the first 16 bytes of the SHA-256 of all
before.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import DataError, UsersError
from privlearn.learners.local.form import GRID
from privlearn.learners.local.messages import (
    REJECTION_REASONS,
    Bytes,
    MessageFilter,
    RejectionReason,
)
from privlearn.learners.local.protocol import LocalBanditConfig
from privlearn.rows.domains import Array

_HEAD = struct.Struct(f"<3sBI8s{len(REJECTION_REASONS)}Q")
_MAGIC, _VERSION, _DIGEST = b"PLT", 1, 16
_MOST = 2**53  # Rejected messages that are counted


@final
class BatchSums:
    """The sum of some of a batch's messages.

    Each message moves each number of the sums by at most ``bound``, and each count by at most one;
    of each user at most one counts.

    Args:
        config: the public configuration.
        batch: the public batch; ``config.n_batches``, behind the last, takes nothing.

    Raises:
        ValueError: no such batch, or a method that applies messages one by one.
    """

    def __init__(self, config: LocalBanditConfig, batch: int) -> None:
        if config.method.per_message:
            raise ValueError(
                f"method = {config.method.kind!r}: it applies every message as it arrives, so that "
                "there is nothing to merge"
            )
        self.config, self.batch = config, batch
        over = batch == config.n_batches
        end = range(config.method.horizon, config.method.horizon)
        users = end if over else config.users_of(batch)
        self._warming = not over and config.warming(batch)
        self._filter = MessageFilter(config.forms[self._warming], users, batch)
        self._form = self._filter.form
        size = self._form.part.domain.size
        self._sums = np.zeros((config.method.parts, size), dtype=np.int64)

    @property
    def users(self) -> range:
        return self._filter.users

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Whose messages are in it, shape (len(users),)."""
        return self._filter.seen.copy()

    @property
    def rejected(self) -> dict[RejectionReason, int]:
        """How many messages were not counted, by reason."""
        return dict(self._filter.rejected)

    @property
    def bound(self) -> float:
        """The most that one message adds to, or takes from, any number of the sums."""
        return self._form.part.estimate_limit

    @property
    def unit(self) -> float:
        """The step of the grid that estimates are added up on."""
        return self._form.estimate_step

    @property
    def steps(self) -> NDArray[np.int64]:
        """Sums of the estimates in whole units, shape (parts, size)."""
        return self._sums.copy()

    @property
    def sums(self) -> Array:
        """Sums of the estimates, shape (parts, size)."""
        return np.asarray(self._sums * self.unit)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Messages in each part's sum, shape (parts,)."""
        arms = self.config.method.parts
        if not self._warming:
            return np.full(arms, np.count_nonzero(self._filter.seen))
        pulled = (self.users.start + np.flatnonzero(self._filter.seen)) % arms
        return np.bincount(pulled, minlength=arms)

    def update_many(self, messages: Bytes | Iterable[Bytes], *, within: range | None = None) -> int:
        """Adds what can be added, counts the rest, and raises nothing, whatever the bytes are.

        Args:
            messages: back to back in one string of bytes, where one torn message garbles those
                behind it; or a string for each, where it does not.
            within: the users of this machine; messages of others are rejected.

        Returns:
            How many were added.
        """
        added = 0
        for users, estimates in self._filter.accept(messages, within):
            added += len(users)
            # whole numbers far below 2⁵³, so that floats add up exactly
            if self._warming:
                arms = np.arange(len(self._sums))[:, None] == users % len(self._sums)
                sums = arms.astype(np.float64) @ estimates[:, 0]
            else:
                sums = estimates.sum(axis=0)
            self._sums += sums.astype(np.int64)
        return added

    def merge(self, other: BatchSums) -> BatchSums:
        """The sum of both; neither is changed.

        Raises:
            UsersError: they share a user.
            ValueError: another configuration or batch.
        """
        if other.config.fingerprint != self.config.fingerprint:
            raise ValueError("other: sums of another configuration")
        if other.batch != self.batch:
            raise ValueError(f"other: sums of batch {other.batch}, these are of {self.batch}")
        both = self._filter.seen & other._filter.seen
        if both.any():
            first = self.users[int(np.argmax(both))]
            raise UsersError(
                f"{np.count_nonzero(both)} users are in both sums, user {first} the first: send "
                "all messages of one user to one machine"
            )
        merged = BatchSums(self.config, self.batch)
        merged._sums = self._sums + other._sums
        merged._filter.seen = self._filter.seen | other._filter.seen
        for reason in REJECTION_REASONS:
            merged._filter.rejected[reason] = (
                self._filter.rejected[reason] + other._filter.rejected[reason]
            )
        return merged

    def to_bytes(self) -> bytes:
        rejected = [min(n, _MOST) for n in self._filter.rejected.values()]
        key = self.config.fingerprint[:8]
        head = _HEAD.pack(_MAGIC, _VERSION, self.batch, key, *rejected)
        body = head + self._sums.astype("<i8").tobytes() + np.packbits(self._filter.seen).tobytes()
        return body + hashlib.sha256(body).digest()[:_DIGEST]

    @classmethod
    def from_bytes(cls, config: LocalBanditConfig, data: Bytes) -> BatchSums:
        """Reads the binary form.

        Raises:
            DataError: not whole sums, or not of this configuration.
        """
        data = bytes(data)
        body, digest = data[:-_DIGEST], data[-_DIGEST:]
        if len(body) < _HEAD.size or hashlib.sha256(body).digest()[:_DIGEST] != digest:
            raise DataError(f"batch sums of {len(data)} bytes: torn or changed, its digest differs")
        magic, version, batch, key, *rejected = _HEAD.unpack_from(body)
        if (magic, version) != (_MAGIC, _VERSION):
            raise DataError(f"begins with {data[:4]!r}: must be {_MAGIC!r}, version {_VERSION}")
        if key != config.fingerprint[:8]:
            raise DataError(f"fingerprint {key.hex()}: sums of another configuration")
        if batch > config.n_batches:
            raise DataError(f"batch = {batch}: must lie in 0..{config.n_batches}")
        if max(rejected) > _MOST:
            raise DataError(f"rejected = {max(rejected)}: must be at most {_MOST}")
        read = cls(config, batch)
        n, size = len(read.users), read._sums.nbytes
        bits = np.frombuffer(body[_HEAD.size + size :], dtype=np.uint8)
        if len(body) != _HEAD.size + size + (n + 7) // 8:
            raise DataError(f"batch sums of {len(data)} bytes: not the length of batch {batch}")
        sums = np.frombuffer(body, dtype="<i8", offset=_HEAD.size, count=read._sums.size)
        read._sums = sums.reshape(read._sums.shape).astype(np.int64)
        read._filter.seen = np.unpackbits(bits, count=n).astype(np.bool_)
        read._filter.rejected.update(zip(REJECTION_REASONS, rejected, strict=True))
        most = GRID * read.counts[:, None]
        if ((read._sums > most) | (read._sums < -most)).any():
            raise DataError("sums: larger than so many messages can make them")
        return read
