"""What all learners share: parameters, one accountant, a public clock and private messages."""

from __future__ import annotations

import inspect
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar, cast

from privlearn.contract.billboard import Billboard
from privlearn.contract.protocols import Accountant, Plan
from privlearn.errors import HorizonError, LedgerError, PackageError, ProvenanceError
from privlearn.learners.inputs import absent
from privlearn.learners.kept_rows import KeptRows, Recovered
from privlearn.learners.messages import PrivateCounts, PrivateMessages
from privlearn.learners.participation import declare_batches
from privlearn.learners.stored import FORMER_NAMES, go_on_with, restored, stored
from privlearn.ledger.entries import LearnerEntry
from privlearn.rows import RowStore
from privlearn.values.packages import LEARNERS, look_up
from privlearn.values.user_code import from_outside
from privlearn.values.validate import count

T = TypeVar("T")

_PLAIN = (bool, int, float, str, tuple)


class Learner(ABC):
    """Is started once, with one accountant, and learns from its users in order of arrival.

    After `start`, ``clock_`` is the next arrival index and ``private_messages_`` holds messages
    about single users' data, for the operator only: the last 10,000 of them.  All of them go to
    ``on_private_message``, if it is set: a function of the user's index and the text, which must
    write them where nobody else reads.  What it raises is not passed on, as it would tell of data.
    ``private_counts_`` says how many rows came, and how many of them are null, by reason.
    """

    clock_: int
    private_messages_: PrivateMessages
    private_counts_: PrivateCounts
    on_private_message: Callable[[int, str], object] | None = None
    operator_only: ClassVar[frozenset[str]] = frozenset(
        {"private_messages_", "private_counts_", "recovered_", "on_private_message"}
    )
    """Attributes that tell of single users' data, and are never published."""
    _takes_timetables: ClassVar[bool] = False
    """Whether a slot may hold any number of visits (`Participation` with clock = 'timetable')."""
    _row_kinds: ClassVar[tuple[type[Any], ...]] = ()
    """The classes of named tuples that its rows are made of."""
    _unbounded: ClassVar[frozenset[str]] = frozenset()
    """Labels of tokens that name all users, whoever has come."""
    _before_added: ClassVar[Mapping[str, Any]] = {}
    """Parameters that were added since ledgers hold learners: with which value a learner does what
    it did before.  It goes on with that, whatever the default is."""
    _removed: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Values of parameters that ledgers hold, and this version does not have."""

    # Parameters, as scikit-learn expects them ----------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments by name.

        Raises:
            AttributeError: the class keeps one under another name, or not at all.
        """
        names = inspect.signature(type(self)).parameters
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {missing[0]!r}, which its constructor "
                "takes: a learner keeps its parameters under their names, as the ledger holds them"
            )
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        """As it was made: the arguments that are not their defaults."""
        names = inspect.signature(type(self)).parameters
        told = [
            f"{name}={reprlib.repr(getattr(self, name))}"
            for name, argument in names.items()
            if hasattr(self, name) and not _alike(getattr(self, name), argument.default)
        ]
        return f"{type(self).__name__}({', '.join(told)})"

    def set_params(self, **params: Any) -> Self:
        """Changes constructor arguments; only before `start`.

        Raises:
            ValueError: unknown name.
            RuntimeError: started.
        """
        if self._started:
            raise RuntimeError("the learner has started: its parameters are public history")
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"{name}: not a parameter; known: {', '.join(known)}")
            setattr(self, name, value)
        return self

    @property
    def _started(self) -> bool:
        return hasattr(self, "_accountant")

    def _check_started(self) -> None:
        if not hasattr(self, "_accountant"):
            raise RuntimeError("the learner has no accountant: call start(accountant) first")

    def start(self, accountant: Accountant[Any], *, store: RowStore | None = None) -> Self:
        """Calibrates the noise to the accountant's cap, and commits the plan of all releases.

        Under an accountant that was resumed the learner goes on where the process before ended: its
        public state is made again from what was released, which stands in the ledger, with the
        numbers that were worked out then.  ``clock_`` is the next arrival index: whoever came later
        was in no release, and can be sent again or is lost.

        Args:
            accountant: with nothing in its ledger, or resumed.
            store: where rows are written as they arrive, and taken from again after a restart, so
                that ``clock_`` is then behind the last of them; ``recovered_`` says which rows came
                back.  Without one, rows that are needed after a restart are null.

        Raises:
            ValueError, TypeError: a parameter is out of range, or the learner has no price under
                the accountant's rule of participation.
            CurrencyError: the cap's currency has no price for the noise.
            BudgetError: the accountant has begun with something else, or its cap does not hold the
                plan.
            ProvenanceError: an accountant of another trust.
            LedgerError: the ledger holds another learner, or one with other parameters.
            RowStoreError: the store is of another accountant, or older than the ledger.
            RuntimeError: started before.
        """
        if self._started:
            raise RuntimeError("the learner has started: make a new one for another accountant")
        _check_is_accountant(accountant)
        self._check_accountant(accountant)
        self._kept = KeptRows(store, accountant, self._row_kinds)
        begun = self._begun_under(accountant)
        mine = {name: stored_parameter(value) for name, value in self.get_params().items()}
        if begun is not None:
            self._check_same(begun, mine)
        self._made_before = None if begun is None else begun.made
        self._made: dict[str, Any] = {}
        self._prepare(accountant)
        if not hasattr(self, "_board"):
            raise TypeError(
                f"{type(self).__name__}._prepare: must call self._open_board(accountant), or "
                "self._prepare_serving(accountant) if it serves users"
            )
        if begun is None:
            accountant.record_learner(type(self).__name__, mine, self._made)
        declare_batches(accountant, self._rule_batches)
        accountant.commit(self._plan())
        self._kept.begin()
        self._begin(accountant)
        if accountant.resumed:
            self._replay()
        return self

    @property
    def recovered_(self) -> Recovered:
        """Which rows came back at the last `start`, for the operator only."""
        self._check_started()
        return self._kept.recovered

    @classmethod
    def _begun_under(cls, accountant: Accountant[Any]) -> LearnerEntry | None:
        _check_is_accountant(accountant)
        if accountant.learner is None and accountant.resumed and accountant.begun:
            raise LedgerError(
                f"{cls.__name__}: the ledger was begun without a learner, or by a version "
                "that kept none, so that nothing of it can be gone on with; it can be audited. "
                "Start the learner with a new ledger"
            )
        return accountant.learner

    @classmethod
    def resume(
        cls, accountant: Accountant[Any], *, store: RowStore | None = None, **given: Any
    ) -> Self:
        """The learner that was begun under a resumed accountant, as `start` goes on with it.

        ``Learner.resume`` finds its class by its name: of this package, or one that an installed
        package announces.

        Args:
            accountant: resumed.
            store: see `start`.
            given: parameters that are objects of your own, which no ledger holds; handed in again.

        Raises:
            LedgerError: no learner of this class was begun, or by a version that kept none, or with
                parameters that this version does not know.
            PackageError: its class is announced by two packages, or cannot be loaded.
            TypeError: an object of your own is missing, or something else is given.
        """
        begun = cls._begun_under(accountant)
        if begun is not None and cls is cast(type[Any], Learner):
            named = cast(type[Self], class_of(_name_of(begun)))
            return named.resume(accountant, store=store, **given)
        return cls._made_again(accountant, given).start(accountant, store=store)

    @classmethod
    def _made_again(cls, accountant: Accountant[Any], given: Mapping[str, Any]) -> Self:
        begun = cls._begun_under(accountant)
        if begun is None or _name_of(begun) != cls.__name__:
            had = "no learner: start one"
            if begun is not None:
                name = _name_of(begun)
                had = f"a {name}: {name}.resume(accountant) goes on with it"
            raise LedgerError(f"{cls.__name__}: the ledger holds {had}")
        begun_with = cls._begun_with(begun)
        own = {name for name, data in begun_with.items() if _is_own(data)}
        if own != set(given):
            wanted = " and ".join(sorted(own)) or "no parameters, which the ledger holds"
            raise TypeError(f"resume: must be given {wanted}, not {sorted(given)}")
        kept = {n: restored(data) for n, data in begun_with.items() if n not in own}
        return cls(**kept, **given)

    @classmethod
    def _begun_with(cls, begun: LearnerEntry) -> dict[str, Any]:
        known, before = inspect.signature(cls).parameters, dict(begun.parameters)
        for name, values in cls._removed.items():
            if before.get(name) in values:
                said = f"{cls.__name__}({name}={before[name]!r})"
                raise LedgerError(f"{said} {go_on_with('141b1425')}")
        for name in sorted({*known, *before}):
            if name not in known:
                raise LedgerError(
                    f"{cls.__name__}: the learner was begun with {name} = {_told(before, name)}, "
                    "which is no parameter in this version; go on with the version that began it"
                )
            if name not in before:
                if name not in cls._before_added:
                    raise LedgerError(
                        f"{cls.__name__}: the learner was begun by a version without {name}, and "
                        "this one does not say what it did; go on with the version that began it"
                    )
                before[name] = stored_parameter(cls._before_added[name])
        return before

    def _check_same(self, begun: LearnerEntry, now: dict[str, Any]) -> None:
        name = type(self).__name__
        if _name_of(begun) != name:
            other = _name_of(begun)
            raise LedgerError(
                f"{name}: the ledger holds a {other}: {other}.resume(accountant) goes on with it"
            )
        before = self._begun_with(begun)
        for n in sorted(now):
            if before[n] != now[n]:
                way = f"{name}.resume(accountant) takes the parameters from the ledger"
                if _is_own(before[n]):
                    way = "hand in one of a class of that name"
                raise LedgerError(
                    f"{n} = {_told(now, n)}: the learner was begun with {_told(before, n)}; {way}"
                )

    def _fixed(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` works out at the first start; later what stands in the ledger."""
        if self._made_before is None:
            found = make()
        elif name in self._made_before:
            found = cast(T, restored(self._made_before[name]))
        else:
            raise LedgerError(
                f"{type(self).__name__}: the ledger holds no {name!r}, which this version needs; "
                "go on with the version that began it"
            )
        try:
            self._made[name] = stored(found)
        except TypeError as error:
            raise TypeError(
                f"{type(self).__name__}._fixed({name!r}): {error}; keep numbers, text, arrays, and "
                "mechanisms of privlearn"
            ) from None
        return found

    def _check_accountant(self, accountant: Accountant[Any]) -> None:
        """Raises what is wrong with an accountant, whatever the parameters are."""
        self._check_clock(accountant)

    @abstractmethod
    def _prepare(self, accountant: Accountant[Any]) -> None:
        """Everything that follows from the parameters and the accountant."""

    @abstractmethod
    def _plan(self) -> list[Plan]:
        """Everything that will be spent; after `_prepare`."""

    @property
    @abstractmethod
    def _rule_batches(self) -> Sequence[int]:
        """After `_prepare`, where the public batches begin that a rule counts within."""

    @abstractmethod
    def _pass_again(self, users: range) -> None:
        """Lets the next users pass as null records, in a replay; silent."""

    @abstractmethod
    def _needed_from(self) -> int:
        """The first user whose row may be opened later, of those that were taken in."""

    def _replay(self) -> None:
        """Makes the public state again from what was released before a restart."""
        self._failed = True  # until it is whole: it must take nobody with another state
        with self._kept.again(self):
            with self._accountant.replaying(goes_on=self._kept.has_rows) as past:
                self._kept.check(past.taken(self._unbounded))
                for point in past.points(self._unbounded):
                    if point > self.clock_:
                        self._pass_again(range(self.clock_, point))
            self._go_on()
        self._failed = False

    def _go_on(self) -> None:
        """Lets those pass who came after the last release: with rows that were kept, or null."""
        people = self._accountant.people
        stop = max(self._kept.clock, (people.clock or 0) if people is not None else 0)
        if stop > self.clock_:
            self._kept.closing(stop)  # before a release, behind which it would be an older store
            self._pass_again(range(self.clock_, stop))

    def _check_clock(self, accountant: Accountant[Any]) -> None:
        """Raises ProvenanceError for a timetable, if it takes one row for each slot."""
        rule = None if accountant.people is None else accountant.people.rule
        if rule is not None and rule.clock == "timetable" and not self._takes_timetables:
            raise ProvenanceError(
                f"{type(self).__name__} takes one row for each slot, and {rule} any number of "
                "them: use clock = 'arrivals', OnePassNewtonMNL, or a Billboard and NoisySum"
            )

    def _open_board(self, accountant: Accountant[Any]) -> None:
        self._check_clock(accountant)
        self._board = Billboard(accountant, accountant.users)
        self._failed = False
        self.clock_ = accountant.users.start
        self.private_messages_ = PrivateMessages()
        self.private_counts_ = PrivateCounts()

    def _begin(self, accountant: Accountant[Any]) -> None:
        self._accountant = accountant

    @property
    def billboard_(self) -> Billboard:
        """Everything that was released, with the tokens that paid for it."""
        return self._board

    def forget(self, person: Any) -> None:
        """Learns nothing more of a person, whose rows that were not opened yet are null.

        What was released stays; see docs/people.md for what that promises.

        Raises:
            ProvenanceError: there is no rule of participation, and nobody is known by an id.
            ValueError, TypeError: no id, or one of another kind.
        """
        self._check_started()
        if self._accountant.people is None:
            raise ProvenanceError(
                "person: the accountant has no rule of participation (people=...), and knows nobody"
            )
        self._accountant.people.forget(person)
        self._kept.forget()

    def skip(self, n: int) -> Self:
        """Counts the next n users, who never came, as null records.

        Raises:
            ValueError, TypeError: n is no count.
            HorizonError: more users than are left.
            RuntimeError: not started.
        """
        self._check_started()
        self._pass_again(self._absent_users(n))
        return self

    def _next_users(self, n: int) -> range:
        users = range(self.clock_, self.clock_ + n)
        if users.stop > self._accountant.users.stop:
            raise HorizonError(
                f"{n} users after {self.clock_}: the horizon is {self._accountant.users}"
            )
        return users

    def _absent_users(self, n: int) -> range:
        users = self._next_users(count(n=n))
        self._tell_absent(users)
        return users

    def _tell_absent(self, users: range) -> None:
        self.private_counts_.rows += len(users)
        self.private_counts_.add("never came", len(users))
        self._leave_message(users.start, absent(users))

    def _notify(self, user: int, complaint: str) -> None:
        """A message to a user whose row is null, for the operator's private records only."""
        self.private_counts_.add(complaint)
        self._leave_message(user, f"{complaint}; your record does not count")

    def _leave_message(self, user: int, text: str) -> None:
        self.private_messages_.append((user, text))
        if self.on_private_message is None:
            return
        try:
            self.on_private_message(user, text)
        except BaseException as error:
            if from_outside(error):
                raise
            failed = f"on_private_message failed: {type(error).__name__}"
            self.private_messages_.append((user, failed))


def _name_of(begun: LearnerEntry) -> str:
    return FORMER_NAMES.get(begun.name, begun.name)


def class_of(name: str) -> type[Learner]:
    """The class of learners with a name, which one of this package has before all others.

    Raises:
        LedgerError: nobody has one.
        PackageError: two packages announce it, or one that cannot be loaded.
    """
    from privlearn import learners

    found = getattr(learners, name) if name in learners.__all__ else None
    if isinstance(found, type) and issubclass(found, Learner):
        return found
    announced = look_up(LEARNERS, name)
    if announced is None:
        raise LedgerError(
            f"{name!r:.80}: no learner of this package, nor of an installed one that announces it "
            f"in {LEARNERS!r}; call resume of its class"
        )
    loaded = announced.load()
    if not (isinstance(loaded, type) and issubclass(loaded, Learner) and loaded.__name__ == name):
        raise PackageError(f"{name!r} of {announced}: is no class of learners of that name")
    return loaded


def stored_parameter(value: Any) -> Any:
    """As `stored`; of an object of the user's own its name."""
    try:
        return stored(value)
    except TypeError:
        return {"own": f"{type(value).__module__}.{type(value).__qualname__}"}


def _check_is_accountant(value: object) -> None:
    """Raises TypeError for what is none."""
    if not hasattr(value, "issue"):
        raise TypeError(
            f"accountant = {value!r:.80}: must be an accountant, such as "
            "JointAccountant(PureDP(1), users=range(10_000), ledger='new.db')"
        )


def _alike(value: object, default: object) -> bool:
    return value is default or (isinstance(value, _PLAIN) and value == default)


def _told(parameters: dict[str, Any], name: str) -> str:
    data = parameters[name]
    return f"{data['own'] if _is_own(data) else restored(data)!r:.120}"


def _is_own(data: Any) -> bool:
    return isinstance(data, dict) and set(data) == {"own"}
