"""The server of a local bandit: it sees messages, and nothing else of any user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import BudgetError, LedgerError
from privlearn.learners.local.batch_sums import BatchSums
from privlearn.learners.local.form import GRID
from privlearn.learners.local.messages import (
    REJECTION_REASONS,
    Bytes,
    Message,
    MessageFilter,
    RejectionReason,
)
from privlearn.learners.local.protocol import Arrays, LocalBanditConfig, Model
from privlearn.ledger.entries import AttestEntry, SumsEntry
from privlearn.losses import Loss
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency, Trust

UNSEEN = (
    "the contexts",
    "the action, where the server set the price or made the offer itself",
    "the answer to it",
)
"""What a local guarantee supposes that a server does not look at."""


class Attesting(Protocol):
    """A server's accountant: it holds what clients attest (``LocalAccountant(attested=True)``)."""

    @property
    def id(self) -> str: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def trust(self) -> Trust: ...
    @property
    def attested(self) -> bool: ...
    @property
    def claims(self) -> Sequence[AttestEntry]: ...

    def attest(
        self,
        loss: Loss,
        *,
        users: range,
        most_messages: int,
        count: int,
        by: str,
        mechanism: str,
        label: str,
        unseen: Iterable[str],
    ) -> None: ...

    @property
    def resumable(self) -> bool:
        """Whether what a server makes of messages is kept."""

    def record_sums(
        self,
        label: str,
        *,
        number: int,
        upto: int,
        heard: int,
        rejected: Mapping[str, int],
        step: float,
        value: Array,
        waits: bool,
    ) -> None:
        """Writes what a server made of messages."""

    def sums(self, label: str) -> Iterator[tuple[SumsEntry, Array]]:
        """What was written, oldest first."""


_MOST = 2**53 - 1  # Rejected messages that are counted


@final
class LocalServer:
    """Learns from messages: it adds up a batch, and takes a step when the batch is closed.

    What clients claim, at most ``config.most_messages`` of a person at the configuration's loss, is
    recorded once, at the start, for all users.  Where this very claim stands in the ledger it is
    not made again: what several servers make of the same messages costs nothing.  Public clock: the
    server closes batches by `advance`, whether or not everybody was heard; a message that comes
    later is rejected and counted.  With `LocalLearner.per_message` every message is a step at once,
    in the order of arrival, and `advance` closes users one by one.

    If the accountant's ledger is a file, a server that died goes on from it.  The integers of a
    batch stand in it before its step is taken, and with ``per_message`` all messages before `model`
    shows what they did; a server on the resumed ledger takes these steps again.  Messages of the
    open batch are not in it, and count once more when they are sent again (`unheard`).  One server
    at a time closes the batches of a ledger.

    A well-formed message adds at most the sums' ``bound`` to each number of the sums, and no
    bytes can raise an exception or make a number that is not finite: a step that does leaves the
    state as it was, and is counted in ``kept``; a model that does leaves the last one published.

    Args:
        config: the public configuration.
        accountant: a `LocalAccountant` with ``attested=True`` for at least the users 0..horizon−1.
        by: who attests what clients send: their software and its version.
        unseen: what this server is assumed not to see of a user; stands on the certificate.

    Raises:
        TypeError: an accountant that takes no attestations.
        AdjacencyError, BudgetError: it counts another relation, its cap cannot hold the loss, or
            the same messages were claimed with other words.
        LedgerError: what stands in the ledger is of other batches.
    """

    def __init__(
        self,
        config: LocalBanditConfig,
        accountant: Attesting,
        *,
        by: str,
        unseen: Sequence[str] = UNSEEN,
    ) -> None:
        _check_attesting(accountant)
        method = config.method
        self._begin(config, accountant)
        # behind it, so that nothing is claimed by a server that cannot be
        claim = _claim(config, accountant)
        if claim is None:
            accountant.attest(
                config.loss(),
                users=range(method.horizon),
                most_messages=config.most_messages,
                count=method.horizon,
                by=by,
                mechanism=_mechanism(config),
                label=config.label,
                unseen=unseen,
            )
        elif not _is_of(claim, config) or (claim.by, claim.unseen) != (by, tuple(unseen)):
            raise BudgetError(
                f"{config.label}: stands in the ledger by {claim.by!r}, mechanism "
                f"{claim.mechanism!r}, count {claim.count}, loss {claim.loss}, unseen "
                f"{claim.unseen!r}; a second claim about the same messages must be the same"
            )
        for entry, value in accountant.sums(config.label):
            self._take_again(entry, value)

    @classmethod
    def resume(cls, config: LocalBanditConfig, accountant: Attesting) -> LocalServer:
        """Goes on where the ledger of a server ends, after its accountant was resumed.

        The state is that at the last batch that was closed, bit by bit with the same numerical
        libraries, as its steps are taken again.  What was sent of the open batch is lost unless it
        is sent again: `unheard` are the users.  `LocalClient.recorded` has the bytes.

        Raises:
            LedgerError: no messages of this configuration are claimed there, batches of another
                are, or the ledger keeps none.
            LedgerUnreadableError: sums are missing, or were changed.
        """
        _check_attesting(accountant)
        if not accountant.resumable:
            raise LedgerError(
                f"accountant {accountant.id}: its ledger keeps no sums, as it is in memory or was "
                "begun by an older version; LocalServer(config, accountant, by=...) begins anew"
            )
        claim = _claim(config, accountant)
        if claim is None:
            raise LedgerError(
                f"no {config.label} are claimed in the ledger of accountant {accountant.id}: begin "
                "with LocalServer(config, accountant, by=...), or resume with the configuration "
                "that it was begun with"
            )
        return cls(config, accountant, by=claim.by, unseen=claim.unseen)

    def _begin(self, config: LocalBanditConfig, accountant: Attesting) -> None:
        self.config, self.batch, self._accountant = config, 0, accountant
        self._state = _frozen(config.method.start())
        self._arrays = _frozen(config.method.model(self._state))
        self._key = config.fingerprint.hex()
        self.heard = self.kept = 0
        self._closed: dict[RejectionReason, int] = dict.fromkeys(REJECTION_REASONS, 0)
        """What closed batches rejected."""
        self._recorded = 0
        """Entries of the ledger that are in the state."""
        if config.method.per_message:
            self._filter = MessageFilter(config.forms[False], range(config.method.horizon), None)
            self._pending: list[NDArray[np.int32]] = []
            """Messages that are in the state, and not in the ledger."""
            self._shown = 0
            """Where the clock was when the ledger was last written to."""
        else:
            self._sums = BatchSums(config, 0)

    @property
    def users(self) -> range:
        """The users of the open batch; empty at the end."""
        over = self.batch == self.config.n_batches
        end = self.config.method.horizon
        return range(end, end) if over else self.config.users_of(self.batch)

    @property
    def unheard(self) -> NDArray[np.int64]:
        """Users of the open batch of whom no message counts yet, ascending.

        With `LocalLearner.per_message`, of all users whose turn is not over.
        """
        if not self.config.method.per_message:
            return self.users.start + np.flatnonzero(~self._sums.seen)
        return self.batch + np.flatnonzero(~self._filter.seen[self.batch :])

    @property
    def state(self) -> Arrays:
        """What all messages so far made of the start; arrays that cannot be written to."""
        return self._state

    @property
    def rejected(self) -> dict[RejectionReason, int]:
        now = self._filter.rejected if self.config.method.per_message else self._sums.rejected
        return {reason: self._closed[reason] + now[reason] for reason in REJECTION_REASONS}

    def model(self) -> Model:
        """What is published for the open batch; on disk is what it is made of.

        Raises:
            LedgerError: the ledger cannot be written, or another server wrote to it.
        """
        if self.config.method.per_message:
            self._record_messages()
            self._show()
        return Model(fingerprint=self._key, batch=self.batch, arrays=self._arrays)

    def update(self, message: Message | Bytes) -> bool:
        """Takes one message; whether it counts.  Raises nothing, whatever the bytes are."""
        data = message.to_bytes() if isinstance(message, Message) else message
        return self.update_many([data]) == 1

    def update_many(self, messages: Bytes | Iterable[Bytes], *, within: range | None = None) -> int:
        """Takes many messages, as `BatchSums.update_many`; returns how many count."""
        if not self.config.method.per_message:
            added = self._sums.update_many(messages, within=within)
            self.heard += added
            return added
        before = self.heard
        for users, estimates in self._filter.accept(messages, within):
            if self._accountant.resumable and len(users):
                flat = estimates.reshape(len(users), -1)
                self._pending.append(np.column_stack([users, flat]).astype("<i4"))
            self._take_each(users, estimates, self._filter.form.estimate_step)
        return self.heard - before

    def _take_each(self, users: NDArray[Any], estimates: Array, unit: float) -> None:
        one = np.ones(1, dtype=np.int64)
        for user, estimate in zip(users.tolist(), estimates, strict=True):
            self.heard += 1
            self._step(user, estimate * unit, np.repeat(one, self.config.method.parts))

    def absorb(self, sums: BatchSums | Bytes) -> None:
        """Adds a partial sum of the open batch that another machine made.

        Raises:
            UsersError: it holds a user who was counted.
            ValueError: of another configuration or batch, or with `LocalLearner.per_message`.
            DataError: torn bytes.
        """
        if self.config.method.per_message:
            raise ValueError("sums: with per_message there are no partial sums")
        other = sums if isinstance(sums, BatchSums) else BatchSums.from_bytes(self.config, sums)
        self._sums = self._sums.merge(other)
        self.heard += int(np.count_nonzero(other.seen))

    def advance(self, arrived: int | None = None) -> None:
        """Closes batches by the public clock.

        Args:
            arrived: users 0..arrived−1 had their turn: every batch of only such users is closed;
                by default, the open batch is.

        Raises:
            LedgerError: the ledger cannot be written, or another server has closed the batch in it;
                the batch is still open then.
        """
        if arrived is None:
            arrived = self.users.stop
        if self.config.method.per_message:  # all steps were taken as the messages came
            self.batch = max(self.batch, min(arrived, self.config.n_batches))
            self._filter.clock = self.batch
            return
        while self.batch < self.config.n_batches and self.users.stop <= arrived:
            closed = self._sums
            self._record_batch(closed)  # first, so that no model shows what is not in the ledger
            self._close(closed.sums, closed.counts, closed.rejected)

    def _close(self, sums: Array, counts: NDArray[Any], rejected: Mapping[Any, int]) -> None:
        self._step(self.batch, sums, counts)
        self._show()
        self._add_rejected(rejected)
        self.batch += 1
        self._sums = BatchSums(self.config, self.batch)

    def _add_rejected(self, rejected: Mapping[Any, int]) -> None:
        for reason, n in rejected.items():
            self._closed[reason] = min(self._closed[reason] + n, _MOST)

    # What stands in the ledger --------------------------------------------------------------------

    def _record_batch(self, closed: BatchSums) -> None:
        if not self._accountant.resumable:
            return
        heard = int(np.count_nonzero(closed.seen))
        value = np.column_stack([closed.counts, closed.steps]).astype("<i8")
        self._record(heard, closed.users.stop, closed.rejected, closed.unit, value, waits=False)

    def _record_messages(self) -> None:
        pending = self._pending
        if not self._accountant.resumable or not (pending or self.batch > self._shown):
            return
        form = self._filter.form
        none = np.empty((0, 1 + self.config.method.parts * form.estimate_size), dtype="<i4")
        value = np.concatenate([none, *pending])
        rejected = self._filter.rejected
        self._record(len(value), self.batch, rejected, form.estimate_step, value, waits=True)
        self._add_rejected(rejected)
        self._filter.rejected = dict.fromkeys(REJECTION_REASONS, 0)
        self._pending, self._shown = [], self.batch

    def _record(
        self,
        heard: int,
        upto: int,
        rejected: Mapping[RejectionReason, int],
        step: float,
        value: NDArray[Any],
        *,
        waits: bool,
    ) -> None:
        self._accountant.record_sums(
            self.config.label,
            number=self._recorded,
            upto=upto,
            heard=heard,
            rejected={reason: min(n, _MOST) for reason, n in rejected.items()},
            step=step,
            value=value,
            waits=waits,
        )
        self._recorded += 1

    def _take_again(self, entry: SumsEntry, value: Array) -> None:
        try:
            if self.config.method.per_message:
                self._take_messages(entry, value)
            else:
                self._take_batch(entry, value)
            self._recorded += 1
        except ValueError as error:
            raise LedgerError(f"sums {entry.number} of {entry.label}: {error}") from None

    def _take_batch(self, entry: SumsEntry, value: Array) -> None:
        open_batch, users = self._sums, self.users
        if not users or (entry.upto, entry.number) != (users.stop, self.batch):
            raise ValueError(f"up to user {entry.upto}, where batch {self.batch} is {users!r}")
        shape = (self.config.method.parts, 1 + open_batch.steps.shape[1])
        if value.shape != shape or value.dtype != np.dtype("<i8"):
            raise ValueError(f"a value of shape {value.shape}, {value.dtype}: must be {shape}, int")
        counts, steps = value[:, 0].astype(np.int64), value[:, 1:]
        in_turn = self.config.warming(self.batch)
        counted = int(counts.sum()) if in_turn else int(counts[0])
        alike = in_turn or bool((counts == counts[0]).all())
        if not alike or counts.min() < 0 or counted != entry.heard or counted > len(users):
            raise ValueError(f"counts {counts.tolist()}, where {entry.heard} messages were heard")
        most = GRID * counts[:, None]
        if ((steps > most) | (steps < -most)).any():
            raise ValueError("larger than so many messages can make them")
        self.heard += entry.heard
        self._close(steps * entry.step, counts, self._reasons(entry))

    def _take_messages(self, entry: SumsEntry, value: Array) -> None:
        method = self.config.method
        size = self._filter.form.estimate_size
        shape = (entry.heard, 1 + method.parts * size)
        if value.shape != shape or value.dtype != np.dtype("<i4"):
            raise ValueError(f"a value of shape {value.shape}, {value.dtype}: must be {shape}, int")
        users = value[:, 0].astype(np.int64)
        if not ((users >= self.batch) & (users < method.horizon)).all():
            raise ValueError(f"a message of a user whose turn is over before {self.batch}, or none")
        if len(np.unique(users)) < len(users) or self._filter.seen[users].any():
            raise ValueError("two messages of one user")
        if (np.abs(value[:, 1:]) > GRID).any():
            raise ValueError("numbers beyond the grid")
        self._filter.seen[users] = True
        estimates = value[:, 1:].astype(np.float64).reshape(len(users), method.parts, size)
        self._take_each(users, estimates, entry.step)
        self._show()
        self._add_rejected(self._reasons(entry))
        self.batch = self._filter.clock = self._shown = max(self.batch, entry.upto)

    @staticmethod
    def _reasons(entry: SumsEntry) -> dict[str, int]:
        unknown = entry.rejected.keys() - set(REJECTION_REASONS)
        if unknown:
            raise ValueError(f"messages rejected for {sorted(unknown)}: unknown reasons")
        return entry.rejected

    def _show(self) -> None:
        self._arrays = self._finite(self.config.method.model, self._state) or self._arrays

    def _step(self, batch: int, sums: Array, counts: Any) -> None:
        result = self._finite(self.config.method.step, self._state, batch, sums, counts)
        if result is None:
            self.kept += 1
        else:
            self._state = result

    @staticmethod
    def _finite(function: Callable[..., Arrays], *arguments: Any) -> Arrays | None:
        try:
            with np.errstate(all="ignore"):
                result = _frozen(function(*arguments))
        except (ArithmeticError, np.linalg.LinAlgError):
            return None
        return result if all(np.isfinite(array).all() for array in result.values()) else None


def _claim(config: LocalBanditConfig, accountant: Attesting) -> AttestEntry | None:
    for claim in accountant.claims:
        everybody = claim.users == (0, config.method.horizon)
        if claim.label == config.label and everybody:
            return claim
    return None


def _mechanism(config: LocalBanditConfig) -> str:
    return f"{config.method.kind}/{config.name}"


def _is_of(claim: AttestEntry, config: LocalBanditConfig) -> bool:
    said = claim.loss, claim.most_messages, claim.count, claim.mechanism
    loss, most = config.loss().to_dict(), config.most_messages
    return said == (loss, most, config.method.horizon, _mechanism(config))


def _check_attesting(accountant: Attesting) -> None:
    if not getattr(accountant, "attested", False):
        raise TypeError(
            f"accountant = {accountant!r}: a server records what clients attest; it needs "
            "LocalAccountant(..., attested=True)"
        )


def _frozen(arrays: Arrays) -> Arrays:
    copies = {name: np.array(array, dtype=np.float64) for name, array in arrays.items()}
    for copy in copies.values():
        copy.setflags(write=False)
    return copies
