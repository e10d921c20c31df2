"""What all served learners share: one user at a time or in blocks, with equal results.

A learner shows each user an action chosen from public state and that user's own row, and takes in
the answer; users' data are sealed on entry.  `Served` is about rounds and bad records, whatever is
shown; `ServedMNL` shows items.  What is learned, and when the public state changes, is for the
subclasses: `_policy`, `_next_change`, `_learn`.

On a timetable (`Participation.clock`) ``clock_`` is the present slot, which takes any number of
visits, and time passes by `skip` only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privlearn.contract.billboard import Shown
from privlearn.contract.protocols import Accountant
from privlearn.errors import HorizonError, LedgerClosedError, ProvenanceError, UsersError
from privlearn.learners.base import Learner
from privlearn.learners.inputs import block_of, places_of, rows_of
from privlearn.learners.participation import NOT_GIVEN, PersonId, check_given, given, rule_of
from privlearn.learners.serving import Arrival, Respond, answered, default_items, finite
from privlearn.mechanisms.choice_model import NO_ITEM, Answer, Items
from privlearn.people.identities import hashes, id_list
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.rows.functions import Calls, RowFunction
from privlearn.rows.sealed import Slots, slots_within
from privlearn.rows.tabular import row_from
from privlearn.values.adjacency import Trust
from privlearn.values.records import copied
from privlearn.values.validate import check_function, count, positive

if TYPE_CHECKING:
    from privlearn.learners.open_users import OpenUsers

Own = TypeVar("Own")
"""Blocks of users' own data."""
Act = TypeVar("Act")
"""Blocks of what users are shown."""
Heard = TypeVar("Heard")
"""Blocks of rows to learn from."""

Mask = NDArray[np.bool_]
Visit = tuple[Arrival, Items]
"""Arrivals, and their places in the block counted from 1: for messages to users, nothing else."""

_COINS = 4_096  # Users whose unused coins are drawn at once; bounds memory, changes no result


_RECOVERY = (
    "resume its ledger, if that is a file: JointAccountant.resume(path), and then resume of the "
    "learner; what was released stands there, and the rows that were on their way are null"
)
"""What to do after a round that failed half-way."""


class Served(Learner, Generic[Own, Act, Heard]):
    """Serves users under a joint guarantee, and takes in their answers."""

    _pending_state: ClassVar[str]  # What the last user was served, while no answer has come
    _public_actions: bool = False
    """Whether what users are shown follows from releases and arrival numbers alone: `_to_show` of
    None is it, and a central guarantee holds for it as a joint one does."""
    _serves_ahead: ClassVar[bool] = True
    """Whether users may be served from the public state of before the end of a batch."""

    @abstractmethod
    def _policy(self, visit: tuple[Own, Items]) -> Act:
        """What a block of users is shown, row by row, from public state."""

    @property
    def _shows(self) -> Callable[[tuple[Own, Items]], Act]:
        """`_policy`, with the user code that it calls."""
        return self._policy

    @abstractmethod
    def _next_change(self) -> int:
        """The arrival index before which the public state cannot change."""

    @abstractmethod
    def _learn(self, rows: Rows[Heard]) -> None:
        """Learns from all answers since the last change of the public state, up to the next."""

    @abstractmethod
    def _usable_answers(self, answer: Heard) -> Mask:
        """Which rows to learn from hold something, shape (n,)."""

    @abstractmethod
    def _complaint(self, *, data: bool) -> str:
        """What a user's data, or answers, must be; says nothing of what they were."""

    @abstractmethod
    def _sent(self, *data: Any) -> Any:
        """What a user sent, as `select` takes it, before anything is looked at."""

    @abstractmethod
    def _arriving(self, sent: Sequence[Any], ids: Sequence[Any] | None) -> tuple[Own, Mask]:
        """The next users' own data as a block in arrays of our own, and whose are unusable."""

    @abstractmethod
    def _heard(self, answer: Any) -> float | Array:
        """An answer as a number, or numbers; an unusable one as numbers that stand for that."""

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """Of what one user answers."""
        return ()

    @abstractmethod
    def _replying(self, heard: Array) -> Callable[[Own, Act], Heard]:
        """The users' side: rows to learn from, of answers that `_heard` read, shape (n, ...)."""

    @abstractmethod
    def _to_show(self, action: Any, user: int) -> Any:
        """What one user is told of an action; of None, which a null record has, too."""

    @abstractmethod
    def public_state(self) -> dict[str, Any]:
        """Everything the learner goes on from, as JSON: a function of releases and the clock."""

    def _check_accountant(self, accountant: Accountant[Any]) -> None:
        super()._check_accountant(accountant)
        if accountant.trust is Trust.LOCAL:
            raise ProvenanceError(
                f"{type(self).__name__}: learns from answers as they are, under a JointAccountant "
                "or a CentralAccountant; from reports that devices made random LDPArms, LDPSGD and "
                "LDPOLS learn"
            )

    def _prepare_serving(self, accountant: Accountant[Any]) -> None:
        self._open_board(accountant)
        self._asked: Shown[tuple[Own, Items], Act] | None = None
        self._null_answers: Mask = np.zeros(1, dtype=bool)  # of the user who is asked
        self._pending: list[Rows[Heard]] = []
        rule = rule_of(accountant)
        self._timed = rule is not None and rule.clock == "timetable"
        self._skipped_to = accountant.users.start  # by `skip`: public also on a timetable
        self._open_users: OpenUsers[Own, Act, Heard] | None = None

    def _select(self, data: Sequence[Any], person: Any) -> Any:
        sent = self._sent(*data)
        self._check_serving()
        ids, nobody = self._who("person", [person], person, 1)
        user = self.clock_
        self._asked, self._null_answers = self._served(
            [sent], ids, nobody, np.ones(1, dtype=np.int64)
        )
        return self._to_show(self._revealed(self._asked)[0], user)

    def _revealed(self, shown: Shown[tuple[Own, Items], Act]) -> Sequence[Act | None]:
        return [None] * len(shown.users) if self._public_actions else shown.reveal_each()

    def _served(
        self, sent: Sequence[Any], ids: list[Any] | None, nobody: Mask, numbers: Items
    ) -> tuple[Shown[tuple[Own, Items], Act], Mask]:
        """Serves the next users from the present public state.

        Returns:
            what they are shown, and whose rows are null whatever they answer, shape (n,).
        """
        n, first = len(sent), self.clock_
        self._failed = True  # an interrupt from here on would lose these users' places
        own, unusable = self._arriving(sent, ids)
        self.private_counts_.rows += n
        users = range(first, first + (1 if self._timed else n))
        self._tell(users, unusable, np.zeros(n, dtype=bool), nobody)
        rows = self._sealed_next((own, numbers), n)
        shown = self._board.serve(rows, self._shows, people=ids)
        self._pass_by(n)
        self._failed = False
        return shown, unusable | nobody

    def _observe(self, answer: Any) -> None:
        asked = getattr(self, "_asked", None)
        if asked is None:
            self._check_started()
            raise UsersError("no user is waiting to answer: call select first")
        heard = np.array([self._heard(answer)])
        self._failed = True  # as in _served
        self._asked = None
        rows, unanswered = self._deliver(asked, self._replying(heard), 1)
        told = np.zeros(1, dtype=bool)
        self._tell(asked.users, told, unanswered & ~self._null_answers, told)
        self._take(rows)
        self._failed = False

    def _play(
        self,
        arrive: Callable[[slice], Own],
        void: Mask,
        answer: Callable[[Own, Act], Heard],
        who: tuple[list[Any] | None, Mask],
        slots: Slots | None = None,
    ) -> None:
        """From one change of the public state to the next; ``void``: whose data are unusable."""
        ids, nobody = who
        for part in self._parts(len(void), slots):
            self._failed = True  # as in _served
            n = part.stop - part.start
            served = self._sealed_next((arrive(part), np.arange(1, n + 1)), n)
            people = None if ids is None else ids[part]
            shown = self._board.serve(served, self._shows, people=people)
            at = [self.clock_] * n if self._timed else served.users
            self._pass_by(n)
            self.private_counts_.rows += n
            rows, unanswered = self._deliver(shown, answer, n)
            self._tell(at, void[part], unanswered, nobody[part])
            self._take(rows)
            self._failed = False

    def _slots_of_next(self, slots: ArrayLike | None, n: int) -> Slots | None:
        """The slots of the next n visits, on a timetable; default the present one."""
        if not self._timed:
            if slots is not None:
                raise ProvenanceError(
                    "slots: the accountant has no rule with clock = 'timetable': users come one "
                    "after the other"
                )
            return None
        if slots is None:
            return np.full(n, self.clock_)
        left = range(self.clock_, self._accountant.users.stop)
        found = slots_within(slots, left)
        if len(found) != n:
            raise UsersError(f"slots within {left!r}: there must be one for each visit")
        return found

    def _parts(self, n: int, slots: Slots | None) -> Iterator[slice]:
        """Parts of the next n visits that are served from one public state, each when it is due."""
        at = 0
        while at < n:
            if slots is None:
                stop = min(self._next_change() - self.clock_, n - at) + at
            else:
                self._let_pass(range(self.clock_, int(slots[at])))
                stop = int(np.searchsorted(slots, slots[at], side="right"))
            yield slice(at, stop)
            at = stop

    def _sealed_next(self, block: Any, n: int) -> Rows[Any]:
        """The next n users; on a timetable n visits in the present slot."""
        if self._timed:
            now = range(self.clock_, self.clock_ + 1)
            return Rows._of_own(block, now, np.full(n, self.clock_))
        return Rows._of_own(block, range(self.clock_, self.clock_ + n))

    def _pass_by(self, n: int) -> None:
        if not self._timed:
            self.clock_ += n

    def skip(self, n: int) -> Self:
        """Counts the next n users, who never came, as null records; cheap for many.

        On a timetable: lets n slots pass, the present one among them.

        Raises:
            ValueError, TypeError: n is no count.
            HorizonError: more users than are left.
            UsersError: the last user's answer is missing.
            RuntimeError: a release failed before.
        """
        self._check_idle()
        users = self._next_users(count(n=n)) if self._timed else self._absent_users(n)
        self._let_pass(users)
        self._skipped_to = users.stop
        return self

    def _let_pass(self, users: range) -> None:
        while self.clock_ < users.stop:
            part = range(self.clock_, min(self._next_change(), users.stop))
            self._failed = True  # as in _served
            if not self._timed:  # there, coins are everybody's own
                self._pass(len(part))
            rows = self._absent(part)
            self.clock_ = part.stop
            self._take(rows)
            self._failed = False

    def _pass_again(self, users: range) -> None:
        self._let_pass(users)
        self._skipped_to = users.stop

    def _go_on(self) -> None:
        if not self._timed:
            super()._go_on()
            return
        people = self._accountant.people
        # the slot in which somebody came last goes on
        ahead = (0 if people is None else people.clock or 0) - 1 - self.clock_
        if ahead > 0:  # no `skip`, after which the clock is public
            self._kept.closing(self.clock_ + ahead)
            self._let_pass(range(self.clock_, self.clock_ + ahead))
        if self.clock_ < self._accountant.users.stop:
            null: Rows[Any] = Rows.null(range(self.clock_, self.clock_ + 1))
            if self._accountant.trust is Trust.JOINT:
                null = Rows._served_by(null, self._board)
            came = self._kept.arrived(null, self._needed_from)
            if came is not null:
                self._pending.append(came)

    def _absent(self, users: range) -> Rows[Any]:
        """Null records with the source that the accountant's other rows have.

        On a timetable the first slot may have its visits already, which this adds none to.
        """
        rows = self._board.skip(users)
        return Rows._named(rows, self._own_names) if self._kept.fills else rows

    @property
    def _own_names(self) -> tuple[str, ...]:
        """Names of user code that the rows of whoever is served by it pass through.

        Rows that are kept have them, and null ones in place of those whose user never answered must
        not do without: the ledger would tell whether somebody did.
        """
        return (
            *RowFunction(self._shows, "serve").names,
            *RowFunction(copied, "deliver", code=self).names,
        )

    def forget(self, person: Any) -> None:
        if self._started and self._open_users is not None and not self._open_users.forgetting:
            raise RuntimeError(f"{self._by_offers}: ask them to forget")
        super().forget(person)
        self._pending = [rows.without_forgotten() for rows in self._pending]

    def _pass(self, n: int) -> None:
        """Draws the public coins of n users who are not served."""

    def _who(
        self, name: str, ids: Sequence[Any] | None, given: object, n: int
    ) -> tuple[list[Any] | None, Mask]:
        people = self._accountant.people
        check_given(people, given, name)
        if people is None:
            return None, np.zeros(n, dtype=bool)
        listed = id_list(cast("Sequence[Any]", ids))
        if len(listed) != n:
            raise ValueError(f"{name} of {len(listed)} ids: must be {n}, one for every user")
        return listed, people.nobody(listed)

    def _block_of_next(self, name: str, values: Any, shape: tuple[int, ...]) -> Array:
        block = block_of(name, values, shape)
        if not self._timed:
            self._next_users(len(block))
        return block

    @staticmethod
    def _private(private: Array | None, n: int) -> Array:
        if private is None:
            return np.zeros((n, 0))
        if not isinstance(private, np.ndarray) or private.dtype.hasobject:
            raise TypeError("private: must be a plain array of shape (n, m), not of objects")
        if private.shape[:1] != (n,):
            raise ValueError(f"private of shape {private.shape}: must have {n} rows")
        return copied(private)

    def _deliver(
        self, shown: Shown[tuple[Own, Items], Act], answer: Callable[[Own, Act], Heard], n: int
    ) -> tuple[Rows[Heard], Mask]:
        usable = np.zeros(n + 1, dtype=bool)

        def environment(visit: tuple[Own, Items], action: Act) -> Heard:
            own, numbers = visit
            reply = answer(own, action)
            usable[numbers[self._usable_answers(reply)]] = True
            return reply

        return shown.deliver(Calls(environment, (answer, self))), ~usable[1:]

    def _take(self, rows: Rows[Heard]) -> None:
        """Adds answers up to the clock and, where the public state may change, learns from them."""
        self._pending.append(self._kept.arrived(rows, self._needed_from))
        if self.clock_ < self._next_change():
            return
        rows, self._pending = Rows.concat(self._pending), []
        self._learn(rows)
        self._kept.over(self.clock_)

    def _needed_from(self) -> int:
        if self._pending:
            return self._pending[0].users.start
        return self.clock_ if self._open_users is None else self._open_users.first

    def _tell(self, users: Sequence[int], unusable: Mask, unanswered: Mask, nobody: Mask) -> None:
        some = unusable | unanswered | nobody
        if not np.count_nonzero(some):
            return
        for i in np.flatnonzero(some):
            if nobody[i] and not unusable[i]:
                self._notify(users[int(i)], "no id says who came")
            else:
                self._notify(users[int(i)], self._complaint(data=bool(unusable[i])))

    def _check_serving(self) -> None:
        self._check_idle()
        self._check_joint()

    def _check_joint(self) -> None:
        trust = self._accountant.trust
        if trust is not Trust.JOINT and not (trust is Trust.CENTRAL and self._public_actions):
            raise ProvenanceError(
                "serving users needs a JointAccountant; this one takes logged rows"
            )

    @property
    def _by_offers(self) -> str:
        return f"this {type(self).__name__} serves its users through Offers, and in no other way"

    def _check_idle(self) -> None:
        self._check_running()
        self._check_nobody_waits()

    def _check_nobody_waits(self) -> None:
        if self._open_users is not None:
            raise RuntimeError(f"{self._by_offers}: call their select and observe")
        if self._asked is not None:
            user = self._asked.users.start
            raise UsersError(f"user {user} {self._pending_state} but has not answered")

    def _check_running(self) -> None:
        self._check_started()
        self._check_not_failed()
        if self._accountant.closed:
            raise LedgerClosedError("the accountant was closed: nobody is served any more")
        if self.clock_ >= self._accountant.users.stop:
            raise HorizonError(f"all users of {self._accountant.users} were served")

    def _check_not_failed(self) -> None:
        if self._failed:
            raise RuntimeError(f"a round or release failed half-way: {_RECOVERY}")


class ServedMNL(Served[Arrival, Items, Answer]):
    """Serves items to users, who choose one of them or nothing."""

    n_items: int
    dim: int
    max_items: int
    outside_option: bool
    feature_scale: float
    random_state: int
    _pending_state = "was shown items"
    _row_kinds = (Answer,)

    @property
    def data_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what one user sends, by the names that `select` has for it.

        Raises:
            ValueError, TypeError: a size is no count.
        """
        items, dim = count(n_items=self.n_items), count(dim=self.dim)
        return {"features": (items, dim), "revenues": (items,)}

    def _prepare_serving(self, accountant: Accountant[Any]) -> None:
        super()._prepare_serving(accountant)
        self._coins = np.random.default_rng(self.random_state)

    @abstractmethod
    def _ties(self, n: int) -> Array:
        """Public coins for the next n users, shape (n, N)."""

    def _ties_of(self, ids: Sequence[Any] | None, n: int) -> Array:
        """As `_ties`; on a timetable each visit's follow from its slot and its id.

        Coins in the order of visits would tell, and change with, how many came before.
        """
        if not self._timed or ids is None:
            return self._ties(n)
        key, common = self.random_state.to_bytes(32, "little", signed=False), self._coins
        made = []
        for hashed in hashes(key, ids):
            seed = [self.clock_, *(hashed or b"")]
            self._coins = np.random.default_rng(seed)
            made.append(self._ties(1))
        self._coins = common
        return np.concatenate(made)

    def _pass(self, n: int) -> None:
        if self._accountant.trust is Trust.JOINT:  # logged users need no coins
            for start in range(0, n, _COINS):
                self._ties(min(_COINS, n - start))

    def _check_market(self) -> None:
        count(n_items=self.n_items)
        count(dim=self.dim)
        if count(max_items=self.max_items) > self.n_items:
            raise ValueError(f"max_items = {self.max_items}: must be at most {self.n_items}")
        positive(feature_scale=self.feature_scale)
        count(random_state=self.random_state, at_least=0)

    def select(
        self,
        features: ArrayLike,
        revenues: ArrayLike | None = None,
        *,
        person: PersonId = NOT_GIVEN,
    ) -> Items:
        """Returns the items to show the next user; at most K indices, ascending.

        Unusable data (NaN, wrong shape) make this user's record null: the user is shown the first
        K items (or, in a random phase, random ones), the clock goes on, and only
        ``private_messages_`` says so.

        Args:
            features: the user's item features, shape (N, d).
            revenues: shape (N,); default: all sales count alike.
            person: under a rule of participation, and only then, who it is; None, an empty one or
                nan: nobody who can be told apart, whose visit is served and counts as null.

        On a timetable the visit is in the present slot, ``clock_``, which goes on until `skip`.

        Raises:
            HorizonError: all users were served.
            UsersError: the last user's answer is missing.
            ProvenanceError: the accountant is not joint; a person without a rule, or none with one.
            RuntimeError: a release failed before.
            TypeError: nothing that a user can have sent, and no array; an id of another kind.
        """
        return cast(Items, self._select((features, revenues), person))

    def observe(self, choice: int | None) -> None:
        """Takes the answer of the user who was shown items last; None is "no purchase".

        A choice that was not on offer makes the record null.

        Raises:
            UsersError: nobody was shown items.
        """
        self._observe(choice)

    def _sent(self, features: Any, revenues: Any = None) -> tuple[Any, Any]:
        sent = row_from("features", features)
        return sent, None if revenues is None else row_from("revenues", revenues)

    def _arriving(self, sent: Sequence[Any], ids: Sequence[Any] | None) -> tuple[Arrival, Mask]:
        n, wide = len(sent), self.n_items
        values = rows_of([features for features, _ in sent], (wide, self.dim))
        if not any([revenues is not None for _, revenues in sent]):
            earned = np.ones((n, wide))
        else:
            alike = np.ones(wide)
            prices = [alike if revenues is None else revenues for _, revenues in sent]
            earned = rows_of(prices, (wide,))
        own = Arrival(values, earned, self._ties_of(ids, n), np.zeros((n, 0)))
        return own, self._unusable(values, earned)

    def _to_show(self, action: Items | None, user: int) -> Items:
        shown = default_items(1, self.max_items)[0] if action is None else action
        return cast(Items, shown[shown != NO_ITEM])

    def _heard(self, answer: Any) -> float:
        if answer is None:
            return NO_ITEM
        if type(answer) is int:
            return answer if -1 <= answer < self.n_items else self.n_items
        return float(places_of([answer], self.n_items, 1)[0])

    def _replying(self, heard: Array) -> Callable[[Arrival, Items], Answer]:
        def answer(own: Arrival, shown: Items) -> Answer:
            return self._answered(own, shown, heard.astype(np.int64))

        return answer

    def play(
        self,
        features: ArrayLike,
        respond: Respond,
        revenues: ArrayLike | None = None,
        private: Array | None = None,
        *,
        people: Sequence[Any] | None = None,
        slots: ArrayLike | None = None,
    ) -> None:
        """Serves many users at once; the same as `select` and `observe` one after the other.

        Args:
            features: shape (n, N, d), the next n users; an array, or a list of rows.
            respond: the users' choice, row by row.
            revenues: shape (n, N); default: all sales count alike.
            private: array of shape (n, m), handed through to ``respond`` and read by nobody else.
            people: under a rule of participation, and only then, n ids, as `select` takes them.
            slots: on a timetable when each of them comes, shape (n,), ascending from ``clock_`` on;
                default: all in the present slot.  ``clock_`` is then the last of them, which is
                not public: let time pass until now, `skip`.

        Rows that are no numbers of the right shape count as null, each by itself, as in `select`.

        Raises:
            HorizonError: more users than are left.
            ValueError: an array of the wrong shape, blocks of different lengths, a list of which no
                entry could be a row.
            TypeError: ``private`` is no plain array, ids of another kind, or another argument no
                table of numbers.
            ProvenanceError: people without a rule, or none with one.
        """
        self._check_serving()
        check_function(respond=respond)
        values = self._checked_block(features)
        if revenues is None:
            earned = np.ones(values.shape[:2])
        else:
            earned = block_of("revenues", revenues, (self.n_items,), len(values))
        own = self._private(private, len(values))
        who = self._who("people", people, given(people), len(values))
        at = self._slots_of_next(slots, len(values))
        void = self._unusable(values, earned)

        def arrive(part: slice) -> Arrival:
            ids = None if who[0] is None else who[0][part]
            ties = self._ties_of(ids, part.stop - part.start)
            return Arrival(values[part], earned[part], ties, own[part])

        # copies, as what is learned from is made after the users have answered
        self._play(
            arrive,
            void,
            self._answering(Calls(lambda own, shown: respond(*copied((own, shown))), (respond,))),
            who,
            at,
        )

    def _checked_block(self, features: Any) -> Array:
        return self._block_of_next("features", features, (self.n_items, self.dim))

    @np.errstate(all="ignore")  # a warning would tell of sealed data
    def _unusable(self, features: Array, revenues: Array) -> Mask:
        """Rows that will count as null whatever the answer, shape (n,)."""
        scale = self.feature_scale
        return ~finite(features if scale == 1 else features / scale, revenues)

    def _usable_answers(self, answer: Answer) -> Mask:
        return cast(Mask, np.isfinite(answer.features).all(axis=(1, 2)))

    def _complaint(self, *, data: bool) -> str:
        if data:
            return (
                f"features and revenues must be ({self.n_items}, {self.dim}) and "
                f"({self.n_items},) finite numbers"
            )
        return "the answer must be an item that was on offer" + (
            " or nothing" if self.outside_option else ""
        )

    def _answering(self, respond: Respond) -> Callable[[Arrival, Items], Answer]:
        def answer(own: Arrival, shown: Items) -> Answer:
            places = places_of(respond(own, shown), self.n_items, len(shown))
            return self._answered(own, shown, places)

        return Calls(answer, (respond,))

    def _answered(self, own: Arrival, shown: Items, places: Items) -> Answer:
        return answered(own, shown, places, outside=self.outside_option, scale=self.feature_scale)
