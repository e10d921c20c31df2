"""The server of a local bandit: it sees messages, and nothing else of any user."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Protocol, final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from privlearn.adjacency import Adjacency, Trust
from privlearn.domains import Array
from privlearn.entries import AttestEntry
from privlearn.errors import BudgetError, DataError
from privlearn.local.batch_sums import BatchSums
from privlearn.local.messages import (
    REJECTION_REASONS,
    Bytes,
    Message,
    MessageFilter,
    RejectionReason,
)
from privlearn.local.protocol import ArrayField, Arrays, LocalBanditConfig, Model
from privlearn.losses import Loss

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


_Count = Annotated[int, Field(ge=0, le=2**53)]


class _Saved(BaseModel):
    """The JSON form of a server; bytes in base64."""

    model_config = ConfigDict(extra="forbid")
    fingerprint: str
    accountant: str
    batch: _Count
    heard: _Count
    kept: _Count
    state: dict[str, ArrayField]
    rejected: dict[RejectionReason, _Count]
    tally: str
    """The open batch's; with messages applied singly, the bitmap of all users seen."""


@final
class LocalServer:
    """Learns from messages: it adds up a batch, and takes a step when the batch is closed.

    What clients claim, at most ``config.most_messages`` of a person at the configuration's loss, is
    recorded once, at the start, for all users: the ledger does not grow with them.  Where this very
    claim stands in it, from a server that died before it was saved or from one beside this one, it
    is not made again: what several make of the same messages costs nothing.  Public clock: the
    server closes batches by `advance`, whether or not everybody was heard; a message that comes
    later is rejected and counted.  With `LocalLearner.per_message` every message is a step at once,
    in the order of arrival, and `advance` closes users one by one.

    A well-formed message adds at most the sums' ``bound`` to each number of the sums, and no
    bytes can raise an exception or make a number that is not finite: a step that does leaves the
    state as it was, and is counted in ``kept``; a model that does leaves the last one published.

    Args:
        config: the public configuration.
        accountant: a `LocalAccountant` with ``attested=True`` for at least the users 0..horizon−1.
        by: who attests what clients send: their software and its version.
        unseen: what this server is assumed not to see of a user; stands on the certificate.

    Raises:
        TypeError: an accountant that takes no attestations.  AdjacencyError, BudgetError: it counts
        another relation, its cap cannot hold the loss, or the same messages were claimed with
        other words.
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
        # last, so that nothing is claimed by a server that cannot be
        self._begin(config, accountant.id, 0, _frozen(method.start()))
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

    def _begin(self, config: LocalBanditConfig, accountant: str, batch: int, state: Arrays) -> None:
        self.config, self.batch, self._state = config, batch, state
        self._accountant = accountant
        self._arrays = _frozen(config.method.model(_frozen(config.method.start())))
        self._key = config.fingerprint.hex()
        self.heard = self.kept = 0
        self._closed: dict[RejectionReason, int] = dict.fromkeys(REJECTION_REASONS, 0)
        """What closed batches rejected."""
        if config.method.per_message:
            self._filter = MessageFilter(config.forms[False], range(config.method.horizon), None)
            self._filter.clock = batch
        else:
            self._sums = BatchSums(config, batch)

    @property
    def users(self) -> range:
        """The users of the open batch; empty at the end."""
        over = self.batch == self.config.n_batches
        end = self.config.method.horizon
        return range(end, end) if over else self.config.users_of(self.batch)

    @property
    def state(self) -> Arrays:
        """What all messages so far made of the start; arrays that cannot be written to."""
        return self._state

    @property
    def rejected(self) -> dict[RejectionReason, int]:
        """How many messages were not counted, by reason."""
        now = self._filter.rejected if self.config.method.per_message else self._sums.rejected
        return {reason: self._closed[reason] + now[reason] for reason in REJECTION_REASONS}

    def model(self) -> Model:
        """What is published for the open batch."""
        self._arrays = self._finite(self.config.method.model, self._state) or self._arrays
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
        before, one = self.heard, np.ones(1, dtype=np.int64)
        for users, estimates in self._filter.accept(messages, within):
            for user, estimate in zip(users.tolist(), estimates, strict=True):
                self.heard += 1
                counts = np.repeat(one, self.config.method.parts)
                self._step(user, estimate * self._filter.form.estimate_step, counts)
        return self.heard - before

    def absorb(self, sums: BatchSums | Bytes) -> None:
        """Adds a partial sum of the open batch that another machine made.

        Raises:
            UsersError: it holds a user who was counted.  ValueError: of another configuration or
            batch, or with `LocalLearner.per_message`.  DataError: torn bytes.
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
        """
        if arrived is None:
            arrived = self.users.stop
        if self.config.method.per_message:  # all steps were taken as the messages came
            self.batch = max(self.batch, min(arrived, self.config.n_batches))
            self._filter.clock = self.batch
            return
        while self.batch < self.config.n_batches and self.users.stop <= arrived:
            closed = self._sums
            self._step(self.batch, closed.sums, closed.counts)
            for reason, n in closed.rejected.items():
                self._closed[reason] += n
            self.batch += 1
            self._sums = BatchSums(self.config, self.batch)

    def _step(self, batch: int, sums: Array, counts: Any) -> None:
        """One step; what is not finite leaves everything as it was."""
        result = self._finite(self.config.method.step, self._state, batch, sums, counts)
        if result is None:
            self.kept += 1
        else:
            self._state = result

    @staticmethod
    def _finite(function: Callable[..., Arrays], *arguments: Any) -> Arrays | None:
        """What a method computes from messages, if it is all finite numbers."""
        try:
            with np.errstate(all="ignore"):
                result = _frozen(function(*arguments))
        except (ArithmeticError, np.linalg.LinAlgError):
            return None
        return result if all(np.isfinite(array).all() for array in result.values()) else None

    def save(self) -> str:
        """Everything, as JSON, for `load` to go on after a restart."""
        if self.config.method.per_message:
            left, rejected = np.packbits(self._filter.seen).tobytes(), self.rejected
        else:
            left, rejected = self._sums.to_bytes(), self._closed
        return _Saved(
            fingerprint=self._key,
            accountant=self._accountant,
            batch=self.batch,
            heard=self.heard,
            kept=self.kept,
            state=self._state,
            rejected=rejected,
            tally=base64.b64encode(left).decode(),
        ).model_dump_json()

    @classmethod
    def load(cls, config: LocalBanditConfig, accountant: Attesting, saved: str) -> LocalServer:
        """Goes on where a server was saved, with its ledger resumed; attests nothing anew.

        Nothing shows whether somebody else wrote it: numbers of the right form are believed.

        Raises:
            DataError: not what `save` wrote, or of another configuration or accountant, or of one
            in whose ledger the claim does not stand.
        """
        _check_attesting(accountant)
        try:
            read = _Saved.model_validate_json(saved)
            left = base64.b64decode(read.tally, validate=True)
        except ValueError as error:
            raise DataError(f"saved: not a server's state: {error}") from None
        if read.fingerprint != config.fingerprint.hex():
            raise DataError(f"saved: of the configuration {read.fingerprint}, not of this one")
        if read.accountant != accountant.id:
            raise DataError(f"saved: its claims stand with accountant {read.accountant}")
        claim = _claim(config, accountant)
        if claim is None or not _is_of(claim, config):
            raise DataError(
                f"saved: no {config.label} of this loss are claimed in the accountant's ledger"
            )
        if read.batch > config.n_batches:
            raise DataError(f"saved: batch = {read.batch}, of {config.n_batches}")
        start = {name: np.shape(array) for name, array in config.method.start().items()}
        if start != {name: array.shape for name, array in read.state.items()}:
            raise DataError(f"saved: the state must have the arrays {start}")
        server = cls.__new__(cls)
        server._begin(config, read.accountant, read.batch, _frozen(read.state))
        server.heard, server.kept = read.heard, read.kept
        server._closed.update(read.rejected)
        if config.method.per_message:
            users = config.method.horizon
            if len(left) != (users + 7) // 8:
                raise DataError(f"saved: a bitmap of {len(left)} bytes for {users} users")
            bits = np.unpackbits(np.frombuffer(left, dtype=np.uint8), count=users)
            server._filter.seen = bits.astype(np.bool_)
            least = most = int(np.count_nonzero(bits))
        else:
            server._sums = BatchSums.from_bytes(config, left)
            if server._sums.batch != read.batch:
                raise DataError("saved: its sums are of another batch")
            least = int(np.count_nonzero(server._sums.seen))
            most = least + server._sums.users.start
        if not least <= read.heard <= most:
            raise DataError(f"saved: heard = {read.heard}, must lie in {least}..{most}")
        return server


def _claim(config: LocalBanditConfig, accountant: Attesting) -> AttestEntry | None:
    """The claim about this configuration's messages: its label has the fingerprint."""
    for claim in accountant.claims:
        everybody = claim.users == (0, config.method.horizon)
        if claim.label == config.label and everybody:
            return claim
    return None


def _mechanism(config: LocalBanditConfig) -> str:
    return f"{config.method.kind}/{config.name}"


def _is_of(claim: AttestEntry, config: LocalBanditConfig) -> bool:
    """Whether a claim is about the messages that clients of this configuration send."""
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
