"""Local differential privacy: every user's messages are private by their own randomisation.

Nobody but the user's own device sees the row.  A message depends on the user's row and on what was
sent before, so replacing one user changes the laws of only that user's own messages: the messages
of one user compose, and those of others cost that user nothing (docs/proofs.md#local).

There are two ledgers.  On the device, tokens are spent as everywhere else, for one user, or for one
output of each of the users that share it.  A server cannot know what devices draw; it records what
clients *attest*, and the certificate says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, cast, final

from privlearn.accountants.accountant import _Accountant
from privlearn.accountants.recorded_values import recorded_value, recorded_values
from privlearn.accountants.streams import SEGMENT
from privlearn.contract.issuing import ReleasedValue, ReleaseObserver
from privlearn.errors import LedgerError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import AttestEntry, SumsEntry
from privlearn.ledger.values import digest_of
from privlearn.losses import Loss
from privlearn.losses.budgets import ApproxDP, B, Currency, GaussianDP, PureDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import Exact
from privlearn.values.validate import count as valid_count
from privlearn.values.validate import text, user_range


class LocalConfiguration(Protocol):
    """What an account needs to know of a configuration, such as `privlearn.learners.local`'s."""

    @property
    def users(self) -> range:
        """All users, whose messages a server takes."""

    @property
    def adjacency(self) -> Adjacency:
        """The neighbour relation of the loss."""

    @property
    def most_messages(self) -> int:
        """The most messages of one person."""

    def loss(self) -> Loss:
        """What a message costs its user."""


def _exact_cap(loss: Loss, messages: int) -> Currency:
    """The cap that holds so many losses and nothing more: in Gaussian mass, or else in pure ε."""
    if loss.gaussian() is not None:
        return GaussianDP(0).price(loss) * messages
    return PureDP(0).price(loss) * messages


@final
class LocalAccountant(_Accountant[B]):
    """Promises local differential privacy: the device's own account, or a server's of claims.

    Removing a user cannot be hidden from who receives the messages, so ``adjacency`` is replace-one
    or zero-out; under zero-out a device sends as many messages in either case, for its own record
    or for the null record.

    Args:
        attested: for a server: it issues no tokens, and `attest` records what clients claim.

    The other arguments are those of `CentralAccountant`.
    """

    trust = Trust.LOCAL

    def __init__(
        self,
        budget: B | ApproxDP,
        *,
        users: range,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        noise: NoiseSource | None = None,
        currency: type[B] | None = None,
        adjacency: Adjacency | None = None,
        side_information: Iterable[str] = (),
        observer: ReleaseObserver | None = None,
        shared: bool = False,
        population: str | None = None,
        failure: Exact = 0,
        odometer: Exact | None = None,
        people: People | None = None,
        attested: bool = False,
    ) -> None:
        super().__init__(
            budget,
            users=users,
            ledger=ledger,
            noise=noise,
            currency=currency,
            adjacency=adjacency,
            side_information=side_information,
            observer=observer,
            shared=shared,
            population=population,
            failure=failure,
            odometer=odometer,
            people=people,
            _attested=attested,
        )

    @classmethod
    def for_server(
        cls,
        config: LocalConfiguration,
        ledger: Ledger | str | os.PathLike[str],
        *,
        noise: NoiseSource | None = None,
    ) -> LocalAccountant[Any]:
        """The account of the claims about all messages of a person, at their exact cost.

        Args:
            ledger: a new one, or the path where to create it (`resume` goes on with an old one).
            noise: what devices draw from, if it is simulated; a server draws none.

        Raises:
            LedgerError: something stands there already.
        """
        return cls._of(config, config.users, ledger, noise, config.most_messages, attested=True)

    @classmethod
    def for_device(
        cls,
        config: LocalConfiguration,
        ledger: Ledger | str | os.PathLike[str],
        *,
        user: int | range,
        noise: NoiseSource | None = None,
        people: People | None = None,
    ) -> LocalAccountant[Any]:
        """The account of a device, which pays for its user's one message at its exact cost.

        With a registry of people it pays for the messages of a person, each of whose visits is a
        user of its own; a device of one person has a registry with one id.

        Args:
            ledger: a new one, or the path where to create it (`resume` goes on with an old one).
            user: the arrival index; the range of all that a gateway serves.
            noise: what the device draws from; by default secure.
            people: a registry, whose rule allows at most ``config.most_messages`` visits.

        Raises:
            LedgerError: something stands there already.
            ValueError: no such user, or a rule that allows more messages than the server was told.
        """
        users = user if isinstance(user, range) else range(user, user + 1)
        if user_range(user=users).start < 0 or users.stop > config.users.stop:
            raise ValueError(f"user = {user!r}: must lie in 0..{config.users.stop - 1}")
        messages = 1 if people is None else people.rule.most
        if messages > config.most_messages:
            raise ValueError(
                f"most = {messages} of the rule of participation: the configuration says "
                f"most_messages = {config.most_messages}, and so does the server's ledger"
            )
        return cls._of(config, users, ledger, noise, messages, people=people, attested=False)

    @classmethod
    def _of(
        cls,
        config: LocalConfiguration,
        users: range,
        ledger: Ledger | str | os.PathLike[str],
        noise: NoiseSource | None,
        messages: int,
        *,
        people: People | None = None,
        attested: bool,
    ) -> LocalAccountant[Any]:
        return LocalAccountant(
            _exact_cap(config.loss(), messages),
            users=users,
            ledger=ledger if isinstance(ledger, Ledger) else Ledger.create(ledger),
            noise=noise,
            adjacency=config.adjacency,
            people=people,
            attested=attested,
        )

    @property
    def attested(self) -> bool:
        """Whether this account holds claims of clients instead of spends."""
        return self._state.opened.attested

    @property
    def claims(self) -> tuple[AttestEntry, ...]:
        """What was attested so far."""
        with self._lock:
            return tuple(self._state.attested)

    def attest(
        self,
        loss: Loss,
        *,
        users: range,
        most_messages: int,
        count: int,
        by: str,
        mechanism: str,
        label: str = "messages",
        unseen: Iterable[str] = (),
    ) -> None:
        """Records what clients claim of their messages, and charges it to each of the users.

        Call it before messages are asked for, with the most that can come: what has been sent
        cannot be refused any more.  Every user is charged ``most_messages`` times ``loss``, also
        users who send fewer.

        Args:
            loss: of one message, for this accountant's neighbour relation.
            users: whose messages they are.
            most_messages: the most that any one of them sends.
            count: the most that all of them send together.
            by: who attests, such as the client software and its version.
            mechanism: what the clients run.
            label: the plan's, if a plan was committed.
            unseen: what this server is assumed not to see of a user besides the messages, though it
                may be near at hand; every certificate says it.

        Raises:
            InsufficientBudgetError: some user's cap cannot hold it (nothing is charged).
            BudgetError: more messages than users can send, not in the committed plan, or no
                accountant of attestations.  AdjacencyError: a loss for another relation.
        """
        index = user_range(users=users)
        with self._lock:
            most = valid_count(most_messages=most_messages)
            items = [] if self._state.plan is None else self._state.plan
            fitting = (
                position
                for position, item in enumerate(items)
                if (item.label, item.users) == (label, index) and item.left >= most
            )
            self._log.append(
                AttestEntry(
                    accountant=self.id,
                    by=text(by=by),
                    mechanism=text(mechanism=mechanism),
                    label=label,
                    users=(index.start, index.stop),
                    adjacency=self.adjacency,
                    loss=self._log.others.as_recorded(loss, index).to_dict(),
                    most_messages=most,
                    count=valid_count(count=count),
                    planned=next(fitting, None),
                    unseen=tuple(text(unseen=item) for item in unseen),
                )
            )

    # What another process needs to go on ---------------------------------------------------------

    @property
    def resumable(self) -> bool:
        """Whether what messages were, or became, is kept: the ledger is a file."""
        return self._state.resumable

    @property
    def segment(self) -> int | None:
        """How many users a token of a device should be for; None where it may be for all.

        Of persons who come back a stream is charged whole however it ends, so that a crash would
        cost all users of its token.
        """
        state = self._state
        whole = state.visits is not None and state.visits.rule.most > 1
        return SEGMENT if whole and state.resumable and state.plan is None else None

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
        """For servers: writes what they made of messages; returns when it may be published.

        Args:
            label: of the messages, as they were attested.
            number: how many such records stand before it.
            upto: one past the last user whose turn is over.
            heard: messages in the value.
            rejected: messages that did not count since the record before, by reason.
            step: of the whole numbers in the value.
            value: see `privlearn.ledger.entries.SumsEntry`.
            waits: whether a cut of the power may take it away.

        Raises:
            LedgerError: this record stands there already.
            BudgetError: no such messages were attested, or fewer.
            UsersError: the clock would go back.
        """
        digest = digest_of(value)
        with self._lock:
            entry = SumsEntry(
                accountant=self.id,
                label=label,
                number=number,
                upto=upto,
                heard=heard,
                rejected={reason: n for reason, n in rejected.items() if n},
                step=step,
                digest=digest,
            )
            self._log.append(entry, ReleasedValue(value, digest, upto))
            if not waits:
                _ = self.ledger.head  # on disk before it is told

    def sums(self, label: str) -> Iterator[tuple[SumsEntry, Array]]:
        """For servers: what `record_sums` wrote under a label, oldest first.

        Raises:
            LedgerUnreadableError: a value is missing, or was changed.
        """
        for entry in self.ledger.entries:
            mine = isinstance(entry, SumsEntry) and entry.accountant == self.id
            if mine and cast(SumsEntry, entry).label == label:
                found = cast(SumsEntry, entry)
                of = f"sums {found.number} of {label!r}"
                yield found, recorded_value(self.ledger, found.digest, of)

    def reports(self, label: str) -> Iterator[tuple[range, Array]]:
        """For devices: whose reports left under a label, also before a restart, and what they are.

        Raises:
            LedgerError: the ledger is in memory, and keeps none.
            LedgerUnreadableError: a value is missing, or was changed.
        """
        if not self._state.resumable:
            raise LedgerError(
                "the account's ledger keeps no reports: only one in a file that was begun by this "
                "version, or a later one, does"
            )
        own = (entry for entry in self.ledger.entries if entry.accountant == self.id)
        for value, users, _ in recorded_values(self.ledger, own, label):
            yield range(users.stop - len(value), users.stop), value
