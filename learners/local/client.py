"""The client of a local bandit: it sees its own users' rows, and lets out only messages.

Actions, contexts, rewards and diagnostics stay on the device.  A message is the release of a local
mechanism, which is paid for by the user's own token, put on a grid; nothing else that a client
returns may leave the device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, Self, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.protocols import Accountant
from privlearn.errors import AdjacencyError, TokenSpentError, UsersError
from privlearn.learners.local.form import MessageForm
from privlearn.learners.local.messages import Message
from privlearn.learners.local.paid_reports import PaidReports
from privlearn.learners.local.protocol import LocalBanditConfig, Model
from privlearn.losses.budgets import B
from privlearn.people import Admission
from privlearn.people.argument import not_as_ruled
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.rows.functions import Calls
from privlearn.rows.inputs import block_of, entries_of
from privlearn.storage.exclusive import Exclusive
from privlearn.values.adjacency import Trust
from privlearn.values.participation import Participation
from privlearn.values.user_code import FAILED, attempted
from privlearn.values.validate import user_range

Bools = NDArray[np.bool_]
_ROUNDING = 1e-12
"""By so much a context may exceed its bound, relative: unit vectors do, by rounding."""
_WHOLE, _REAL = (int, np.integer), (float, int)


@final
class Diagnostics:
    """What a client had to mend in its users' rows.  It tells of data: it stays on the device.

    Attributes:
        counts: rows by what was mended.
        messages: the last hundred, with the users' indices.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.messages: deque[str] = deque(maxlen=100)

    def note(self, what: str, users: range, where: Bools) -> None:
        """Counts the rows ``where``."""
        n = int(np.count_nonzero(where))
        if n:
            self.counts[what] = self.counts.get(what, 0) + n
            first = users[int(np.argmax(where))]
            more = "" if n == 1 else f" and {n - 1} more"
            self.messages.append(f"user {first}{more}: {what}")


@final
class LocalClient(Generic[B]):
    """Chooses for its users and randomises what they answer, once for each.

    A device has one user.  A gateway, or a simulation, has several, in order of arrival: one token
    then pays for all of them (for those of the warm-up another), each with noise drawn for this
    user, and whoever runs it sees the rows of all.

    Rows that cannot be used give the message of the null record, and no error: wrong shapes, NaN,
    an action that does not exist.  The form of blocks of several users is public, and a wrong one
    raises before anything is spent.  Contexts and rewards beyond their bounds are cut to them for
    the message.  `diagnostics` counts them.

    With a registry of people a user is one visit of a person, whose id comes with the row.  Each
    message has noise of its own, so that k messages cost a person k times the loss of one, on
    whichever device or gateway the registry is.  A visit that the rule has no room for sends the
    message of the null record: the server cannot tell.  When a message comes it does see, so that a
    pattern is private only apart from what the turns tell: that they are the public turns of all.

    Args:
        config: the public configuration.
        accountant: a `LocalAccountant` of the device.
        users: whom this client serves; by default all of the accountant's.

    Raises:
        ValueError: users beyond the horizon or the accountant's, or a rule of participation that
            counts within batches, on a timetable, or more messages than the configuration.
        TypeError: an accountant that is not local, or takes attestations.
        AdjacencyError: it counts another relation.
    """

    def __init__(
        self, config: LocalBanditConfig, accountant: Accountant[B], *, users: range | None = None
    ) -> None:
        if accountant.trust is not Trust.LOCAL or getattr(accountant, "attested", False):
            raise TypeError(f"accountant = {accountant!r}: must be the LocalAccountant of a device")
        if not hasattr(accountant, "held"):
            raise TypeError(f"accountant = {accountant!r}: cannot tell who was paid for (`held`)")
        report = config.part_report
        if report.adjacency is not accountant.adjacency:
            raise AdjacencyError(
                f"{config.method.kind} reports for {report.adjacency.value}, the accountant counts "
                f"{accountant.adjacency.value}"
            )
        people = accountant.people
        if people is not None:
            _check_rule(people.rule, config.most_messages)
        self._people = people
        self.users = accountant.users if users is None else user_range(users=users)
        if self.users.stop > config.method.horizon:
            raise UsersError(f"users = {self.users!r}: the horizon is {config.method.horizon}")
        self.config, self.diagnostics = config, Diagnostics()
        self._accountant = accountant
        self._key = config.fingerprint.hex()
        self._reports = PaidReports(config, accountant, self.users)
        self._next = self.users.start
        self._warm = config.warm_up
        self._known = (0, 0, -1)
        """First user and one past the last of the batch that was last looked up, and the batch."""
        self._model: Model | None = None
        self._lock = Exclusive("a client")

    def choose(self, contexts: Any, model: Model, *, user: int | None = None) -> int:
        """The arm to pull for one user; it is the user's secret.

        Args:
            contexts: (n_arms, dim) if theta is shared, else (dim,); None if ``dim`` is 0.
            model: what the server published for the user's batch.
            user: the arrival index; may be left out on a device of one user.

        Raises:
            ValueError: another configuration's model or, unless messages are applied singly,
                another batch's; no such user.
        """
        method, index = self.config.method, self._one(user)
        contexts = self._shown(contexts, *self._offered)
        if type(contexts) is np.ndarray and index.start >= self._warm:
            # what needs no mending, without what blocks need
            shape = (*self._offered, method.dim)
            plain = contexts.shape == shape and contexts.dtype == np.float64
            if plain and math.isfinite(np.vdot(contexts, contexts)):
                self._take(model, self._batch(index))
                with np.errstate(all="ignore"):
                    return int(method.scores(model.arrays, contexts[None])[0].argmax())
        return int(self.choose_many([contexts], model, users=index)[0])

    def choose_many(self, contexts: Any, model: Model, *, users: range) -> NDArray[np.int64]:
        """The arms to pull for consecutive users of one batch, shape (n,); see `choose`.

        Raises:
            TypeError, ValueError: contexts of a wrong form, as for `randomize_many`.
        """
        method, batch = self.config.method, self._batch(users)
        contexts = self._shown(contexts, len(users), *self._offered)
        values = block_of("contexts", contexts, (*self._offered, method.dim), len(users))
        self._take(model, batch)
        if users.start < self._warm:
            return np.arange(users.start, users.stop) % method.n_arms
        bad = ~np.asarray(np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if bad.any():
            self.diagnostics.note("contexts that cannot be used", users, bad)
            values[bad] = 0.0
        with np.errstate(all="ignore"):  # contexts may be of any length here
            scores = method.scores(model.arrays, values)
        return np.asarray(np.argmax(scores, axis=1))

    def randomize(
        self,
        context: Any,
        action: int,
        reward: float,
        *,
        user: int | None = None,
        model: Model | None = None,
        person: Any = None,
    ) -> Message:
        """Spends the user's token and returns the one message of this user.

        Args:
            context: of the pulled arm, (dim,); None if ``dim`` is 0.
            action: the pulled arm.
            reward: what the user answered.
            user: the arrival index; may be left out on a device of one user.
            model: by default the one that was last chosen with.
            person: under a rule of participation, who this user is; an empty id is nobody's,
                for a null report.

        Raises:
            ProvenanceError: an id without a registry, or a registry without an id.
            TokenSpentError: the user has answered, to this client or, by what stands in the
                device's account, to another one of this configuration, before a restart or since.
            InsufficientBudgetError: the account cannot pay.
            ValueError: no such user or model.
        """
        index, context = self._one(user), self._shown(context)
        people = None if person is None else [person]
        form, batch, reports = self._release(
            context, action, reward, index, model, people, single=True
        )
        return Message(
            batch=batch,
            fingerprint=self._key[:16],
            user=index.start,
            values=form.to_grid(reports)[0].tolist(),
        )

    def randomize_many(
        self,
        contexts: Any,
        actions: Any,
        rewards: Any,
        *,
        users: range,
        model: Model | None = None,
        people: Any = None,
    ) -> bytes:
        """The messages of consecutive users of one batch, back to back; see `randomize`.

        Args:
            contexts: of the pulled arms, (n, dim); arrays, data frames, or lists of rows; None if
                ``dim`` is 0.
            actions: (n,).
            rewards: (n,).
            people: under a rule of participation, and only then, an id for each user.

        Raises:
            TypeError: no table (a dict, a generator, a sparse matrix), or an array or a column of
                another type than numbers.
            ValueError: an array of the wrong shape, another number of rows than users, a list of
                which no entry could be a row.
            UsersError: not an id for each user.
        """
        n = len(users)
        contexts = self._shown(contexts, n)
        contexts = entries_of("contexts", contexts, (self.config.method.dim,), n)
        actions = entries_of("actions", actions, (), n)
        rewards = entries_of("rewards", rewards, (), n)
        form, batch, reports = self._release(contexts, actions, rewards, users, model, people)
        return form.encode(users, batch, reports)

    @property
    def _offered(self) -> tuple[int, ...]:
        """The axis of arms in the contexts to choose by, if there is one."""
        return (self.config.method.n_arms,) if self.config.method.shared else ()

    def _shown(self, contexts: Any, *shape: int) -> Any:
        """Contexts, or where a learner has none, arrays without numbers in their place."""
        none = contexts is None and not self.config.method.dim
        return np.empty((*shape, 0)) if none else contexts

    def _release(
        self,
        contexts: Any,
        actions: Any,
        rewards: Any,
        users: range,
        model: Model | None,
        people: Any,
        *,
        single: bool = False,
    ) -> tuple[MessageForm, int, Array]:
        with self._lock:  # one message of each user, whatever threads do
            return self._released(contexts, actions, rewards, users, model, people, single)

    def _released(
        self,
        contexts: Any,
        actions: Any,
        rewards: Any,
        users: range,
        model: Model | None,
        people: Any,
        single: bool,
    ) -> tuple[MessageForm, int, Array]:
        batch = self._batch(users)
        if model is not None:
            self._take(model, batch)
        elif self._model is None or not self._fits(self._model, batch):
            raise ValueError(f"model: none was chosen with for batch {batch}; hand it over")
        if users.start < self._next:
            raise TokenSpentError(f"user {users.start} has answered: one message for each user")
        warming = users.start < self._warm
        admission = self._admission(users, people)
        self._reports.pay(users, warming=warming)
        self._next = users.stop
        rows: Rows[Any] | None = None
        if single:
            # that it failed would tell of data
            found = attempted(
                self._good_row, contexts, actions, rewards, users, batch, warming=warming
            )
            rows = None if found is FAILED else found
            contexts, actions, rewards = [contexts], [actions], [rewards]
        if rows is None:
            rows = self._rows(contexts, actions, rewards, users, batch, warming)
        if admission is not None and self._people is not None:
            rows = Rows._admitted(rows, self._people, admission)
        released = self._reports.append(rows, users, warming=warming)
        return self.config.forms[warming], batch, released

    def _admission(self, users: range, people: Any) -> Admission | None:
        registry = self._people
        if (registry is None) is not (people is None):
            raise not_as_ruled(None if registry is None else registry.rule, "people")
        if registry is None:
            return None
        clock = registry.clock
        if clock is not None and clock < users.start:
            registry.skip(range(clock, users.start))
        return registry.admit_visits(people, users)

    def _good_row(
        self, context: Any, action: Any, reward: Any, users: range, batch: int, *, warming: bool
    ) -> Rows[Any] | None:
        """The record of one user if nothing has to be mended, or else None: `_rows` does it."""
        method = self.config.method
        arms = method.n_arms
        if self.config.user_code:  # `_rows` names and checks it
            return None
        # not a subclass, such as a masked array
        if not (type(context) is np.ndarray and isinstance(action, _WHOLE)):
            return None
        if not isinstance(reward, _REAL) or context.dtype != np.float64:
            return None
        if not (context.shape == (method.dim,) and 0 <= action < arms):
            return None
        values = np.array(context[None])  # which is what is looked at, and then reported
        assert self._model is not None
        public = users.start % arms if warming else method.public_arm(self._model.arrays)
        if public is not None and action != public:
            return None
        if not method.reward_low <= reward <= method.reward_high:
            return None
        # half of what `_rows` leaves as it is, so that it does the same; NaN is not below
        if not math.hypot(*values[0].tolist()) <= method.context_bound * (1 + _ROUNDING / 2):
            return None
        places = np.array([action], dtype=np.int64)
        answers = np.array([reward], dtype=np.float64)
        with np.errstate(all="ignore"):
            record = method.record(self._model.arrays, batch, values, places, answers)
        if not (type(record) is np.ndarray and record.dtype == np.float64):
            return None
        apart = method.parts > 1 and not warming
        return Rows._of_own((record, places) if apart else record, users)

    def _rows(
        self, contexts: Any, actions: Any, rewards: Any, users: range, batch: int, warming: bool
    ) -> Rows[Any]:
        method, n = self.config.method, len(users)
        assert self._model is not None
        arrays = self._model.arrays
        values = block_of("contexts", contexts, (method.dim,), n)
        arms, answers = block_of("actions", actions, (), n), block_of("rewards", rewards, (), n)
        norms = _norms(values)
        good = np.isfinite(norms) & np.isfinite(answers)
        good &= (arms >= 0) & (arms < method.n_arms) & (arms == np.floor(arms))
        public: Any = method.public_arm(arrays)
        if warming:
            public = np.arange(users.start, users.stop) % method.n_arms
        if public is not None:
            good &= arms == public
        if not good.all():
            self.diagnostics.note("a row that cannot be used", users, ~good)
            values[~good], arms[~good], answers[~good] = 0.0, 0.0, method.reward_low
            norms[~good] = 0.0
        long = norms > method.context_bound * (1 + _ROUNDING)
        if long.any():
            self.diagnostics.note("a context longer than its bound", users, long)
            values[long] *= (method.context_bound / norms[long])[:, None]
        cut = np.clip(answers, method.reward_low, method.reward_high)
        if (cut != answers).any():
            self.diagnostics.note("a reward beyond its bounds", users, cut != answers)

        def recorded(block: tuple[Array, NDArray[np.int64], Array, Bools]) -> Any:
            shown, places, answered, usable = block
            computed = np.asarray(method.record(arrays, batch, shown, places, answered))
            record = computed.astype(np.float64, casting="same_kind")  # complex ones raise
            record[~usable] = np.nan
            if warming or method.parts == 1:
                return record
            return record, np.where(usable, places, -1)

        # a record that cannot be computed is null, and raises nothing: that would tell of data
        block = (values, arms.astype(np.int64), cut, good)
        return Rows._of_own(block, users).map_rows(Calls(recorded, (method,)))

    # Who was paid for -----------------------------------------------------------------------------

    @property
    def left(self) -> range:
        """Users who can still answer.

        After a restart these are the ones behind those whose rows the process that died may have
        taken, 256 or more at a time (behind all of its users if it was to end them at once).
        """
        return self._reports.left(self._next)

    def recorded(self, users: range | None = None) -> Iterator[bytes]:
        """Messages that stand in the device's ledger, to be sent again: the same bytes.

        Args:
            users: whose; by default of all that this client serves.

        Yields:
            Messages of consecutive users of a batch, back to back, in their order.

        Raises:
            LedgerError: it is in memory, and keeps none.
            LedgerUnreadableError: one was changed.
        """
        wanted = self.users if users is None else users
        for of, reports in self._reports.recorded():
            start, stop = max(of.start, wanted.start), min(of.stop, wanted.stop)
            if start < stop:
                form, batch = self.config.forms[start < self._warm], self.config.batch_of(start)
                part = reports[start - of.start : stop - of.start]
                yield form.encode(range(start, stop), batch, part)

    @property
    def lost(self) -> NDArray[np.int64]:
        """Users who cannot answer any more, and of whom no message stands in the ledger; ascending.

        They stayed away, or their process died before it had their report: nobody can tell.

        Raises:
            LedgerError, LedgerUnreadableError: as `recorded`.
        """
        silent = np.zeros(len(self.users), dtype=np.bool_)
        silent[: self.left.start - self.users.start] = True
        for of, _ in self._reports.recorded():
            silent[of.start - self.users.start : of.stop - self.users.start] = False
        return self.users.start + np.flatnonzero(silent)

    def close(self) -> None:
        """Ends the client: users who have not answered cannot any more."""
        self._reports.close()
        self._next = self.users.stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _one(self, user: int | None) -> range:
        if user is None:
            if len(self.users) != 1:
                raise ValueError(f"user: must be said, this client serves {self.users!r}")
            return self.users
        return range(user, user + 1)

    def _batch(self, users: range) -> int:
        start, stop, batch = self._known
        if start <= users.start < users.stop <= stop and users.step == 1:
            return batch
        first, last = users.start, users.stop - 1
        if user_range(users=users) and (first not in self.users or last not in self.users):
            raise UsersError(f"users = {users!r}: this client serves {self.users!r}")
        batch = self.config.batch_of(first)
        if last not in self.config.users_of(batch):
            raise UsersError(f"users = {users!r}: of more than one batch")
        inside = self.config.users_of(batch)
        start, stop = max(inside.start, self.users.start), min(inside.stop, self.users.stop)
        self._known = start, stop, batch
        return batch

    def _fits(self, model: Model, batch: int) -> bool:
        if model.batch == batch:
            return True
        return self.config.method.per_message and model.batch < batch

    def _take(self, model: Model, batch: int) -> None:
        if model is not self._model and model.fingerprint != self._key:
            raise ValueError(f"model: of the configuration {model.fingerprint}, not of this one")
        if not self._fits(model, batch):
            raise ValueError(f"model: for batch {model.batch}, where batch {batch} is served")
        self._model = model


def _check_rule(rule: Participation, most_messages: int) -> None:
    if rule.batched or rule.clock == "timetable":
        raise ValueError(
            f"{rule}: each message has noise of its own, and when it comes is seen; messages are "
            "counted by most and apart, with clock = 'arrivals'"
        )
    if rule.most > most_messages:
        raise ValueError(
            f"most = {rule.most} of the rule of participation: the configuration says "
            f"most_messages = {most_messages}"
        )


def _norms(values: Array) -> Array:
    """ℓ2 norms of rows, also of very long ones; NaN or inf where an entry is."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", values, values))
        overflowed = ~np.isfinite(norms)  # a row's norm has the same digits whatever others are
        if overflowed.any():
            largest = np.abs(values[overflowed]).max(axis=1, keepdims=True)
            scaled = values[overflowed] / np.where(largest > 0, largest, 1.0)
            norms[overflowed] = largest[:, 0] * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return np.asarray(norms)
