"""What everybody may see, and how each user is served from it (the billboard lemma).

A user receives a function of the billboard and of that user's own row.  If the billboard is
differentially private in each user's row and response, then the outputs of all *other* users
together are as well (Hsu et al. 2016, Lemma 1; for adaptive users docs/proofs.md), which is joint
differential privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.protocols import Accountant
from privlearn.contract.receipts import Released
from privlearn.errors import ForeignTokenError, ProvenanceError, UsersError
from privlearn.people import Admission
from privlearn.people.argument import not_as_ruled
from privlearn.rows import Rows, Sealed
from privlearn.rows.functions import RowFunction
from privlearn.storage.exclusive import Exclusive
from privlearn.values.adjacency import Trust
from privlearn.values.records import copied, record_at
from privlearn.values.validate import user_range

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")


@final
class Shown(Sealed, Generic[T, A]):
    """Users' own rows with what each of them was shown; sealed to those users."""

    __slots__ = ("__admission", "__board", "__both", "__users")

    def __init__(
        self,
        both: Rows[tuple[T, A]],
        users: range,
        board: Billboard,
        admission: Admission | None = None,
    ) -> None:
        self.__both, self.__users, self.__board = both, users, board
        self.__admission = admission

    @property
    def users(self) -> range:
        """The public arrival indices."""
        return self.__users

    def __repr__(self) -> str:
        return f"Shown(users={self.users.start}..{self.users.stop - 1}, sealed)"

    def reveal(self) -> A | None:
        """The action, to be shown to the one user it was made for; None for a null record.

        Raises:
            ProvenanceError: the accountant is not joint: a central guarantee is about all that is
                shown to anybody, and this was not paid for.
            UsersError: more than one user.
        """
        self.__check_joint()
        chunks = Rows._unseal(self.__both)
        if sum(len(chunk.valid) for chunk in chunks) != 1:
            raise UsersError(f"users {self.users!r}: an action is revealed to one user at a time")
        return self.__actions(chunks)[0]

    def __check_joint(self) -> None:
        if self.__board.accountant.trust is not Trust.JOINT:
            raise ProvenanceError(
                f"trust = {self.__board.accountant.trust.value}: an action shows the user's own "
                "row, and only a joint guarantee leaves out what the user receives; serve with a "
                "JointAccountant, or release a value through a mechanism that spends a token"
            )

    def reveal_each(self) -> list[A | None]:
        """The actions of all these users, each to be shown to the one user it was made for.

        Raises:
            ProvenanceError: as in `reveal`.
        """
        self.__check_joint()
        return self.__actions(Rows._unseal(self.__both))

    @staticmethod
    def __actions(chunks: Sequence[Any]) -> list[A | None]:
        shown: list[A | None] = []
        for chunk in chunks:
            actions = None if chunk.block is None else copied(chunk.block[1])
            shown += [
                record_at(actions, i) if actions is not None and real else None
                for i, real in enumerate(chunk.valid)
            ]
        return shown

    def part(self, users: range) -> Shown[T, A]:
        """Of some of the users, consecutive ones; not on a timetable.

        Raises:
            UsersError: an index is not among them.
        """
        rows = self.__both.slice(users)
        found = self.__admission
        if found is not None:
            found = found.part(users.start - self.users.start, users.stop - self.users.start)
        return Shown(rows, users, self.__board, found)

    @staticmethod
    def together(parts: Sequence[Shown[T, A]]) -> Shown[T, A]:
        """Of consecutive users, who were served in several calls; not on a timetable.

        Raises:
            ValueError: no parts.
            UsersError: the users are not consecutive.
        """
        if len(parts) == 1:
            return parts[0]
        rows = Rows.concat([part.__both for part in parts])
        first = parts[0]
        found = [part.__admission for part in parts if part.__admission is not None]
        return Shown(rows, rows.users, first.__board, Admission.joined(found) if found else None)

    def only(self, some: NDArray[np.bool_]) -> Shown[T, A]:
        """The same users with null records for the others, who then answer nothing; shape (n,)."""
        return Shown(Rows._only(self.__both, some), self.users, self.__board, self.__admission)

    def without_forgotten(self) -> Shown[T, A]:
        """The same with null records for persons who were forgotten since they were served."""
        found, people = self.__admission, self.__board.people
        if found is None or people is None:
            return self
        return self.only(~people.forgotten(found.persons))

    def deliver(self, environment: Callable[[T, A], R]) -> Rows[R]:
        """Lets the users answer: ``environment`` maps own rows and actions to rows to learn from.

        It acts row by row, as in `Rows.map_rows`, and is the users' side: what it sees is theirs.
        It is named in the ledger like any user code, but called once only, as users answer once.
        It gets copies, and what it returns is copied.  Under a rule of participation everybody
        answers, and rows of visits that are not learned are null afterwards.
        """

        def answer(both: tuple[T, A]) -> R:
            return environment(both[0], both[1])

        function = RowFunction(answer, "deliver", code=environment, repeatable=False)
        rows = Rows._delivered(self.__both, function, self.__board)
        admission, people = self.__admission, self.__board.people
        if admission is None or people is None:
            return rows
        return Rows._admitted(rows, people, admission)


@final
class Billboard(Mapping[str, Any]):
    """Released values by name, and the clock of who has been served.

    Args:
        accountant: whose tokens pay for what is posted; that of an account, for a part of it.
        users: the arrival indices that may be served, each once, in order.
    """

    __slots__ = (
        "_history",
        "_lock",
        "_next",
        "_passed",
        "_timed",
        "_tokens",
        "_values",
        "accountant",
        "people",
        "users",
    )

    def __init__(self, accountant: Accountant[Any], users: range) -> None:
        self.accountant, self.users = accountant, user_range(users=users)
        self.people = people = accountant.people
        self._timed = people is not None and people.rule.clock == "timetable"
        self._tokens = f"{accountant.issuer.id}/"  # which the ids of all its tokens begin with
        self._next, self._lock = users.start, Exclusive("a billboard")
        self._passed = users.start  # up to where slots were skipped
        self._values: dict[str, Any] = {}
        self._history: list[dict[str, Any]] = []

    @property
    def clock(self) -> int:
        """The next arrival index to be served.

        On a timetable it is behind the slot of the last visit, and follows from who came, until
        time has passed (`skip`).
        """
        return self._next

    def post(self, name: str, released: Released[R]) -> R:
        """Puts a paid value up under ``name`` and returns it.

        Raises:
            TypeError: not a released value.
            ForeignTokenError: another accountant paid.
        """
        if not isinstance(released, Released):
            raise TypeError(f"{name}: only released values can be posted, got {type(released)}")
        if not released.paid_by.startswith(self._tokens):
            raise ForeignTokenError(f"{name}: paid by {released.paid_by!r}, another accountant")
        self._values[name] = released.value
        self._history.append(
            {
                "name": name,
                "at": self._passed if self._timed else self._next,
                "paid_by": released.paid_by,
                "digest": released.digest,
                "value": released.value,
            }
        )
        return released.value

    def serve(
        self, rows: Rows[T], policy: Callable[[T], A], *, people: Sequence[Any] | None = None
    ) -> Shown[T, A]:
        """Shows each user an action computed from public state and that user's own row.

        Args:
            rows: of the next users.
            policy: sees blocks of rows and must be row-local; it may close over this billboard.
            people: under a rule of participation, and only then, who each of them is: an id for
                every row, as `People.admit_visits` takes them.  Visits are debited, on disk, before
                the policy is called; nobody is told whether theirs is learned.

        On a timetable the rows say their slots (`Rows.seal`), any number of visits for each, and
        the last slot of a call may go on in the next.

        Raises:
            UsersError: out of order, served before, or beyond ``users``, or not one id for each.
            ProvenanceError: ids without a rule, or a rule without ids; rows with slots without a
                timetable, or without them on one.
        """
        users, slots = rows.users, Rows._slots_of(rows)
        registry = self.people
        if (registry is None) is not (people is None):
            raise not_as_ruled(None if registry is None else registry.rule, "people")
        timed = self._timed
        if timed is not (slots is not None):
            raise ProvenanceError(
                "slots: on a timetable rows say the slot of each visit: Rows.seal(..., slots=)"
                if timed
                else "slots: rows on a timetable need an accountant with a registry of people "
                "whose rule has clock = 'timetable'"
            )
        self._check_next(users, going_on=timed)
        admission = None
        if registry is not None and people is not None:
            admission = registry.admit_visits(people, users, slots)
        self._advance(users, going_on=timed)

        def show(own: T) -> tuple[T, A]:
            return own, policy(own)

        both = Rows._shown(rows, RowFunction(show, "serve", code=policy))
        return Shown(both, users, self, admission)

    def skip(self, users: range) -> Rows[Any]:
        """Null records for the next users, whose data were lost before they could be used.

        On a timetable: lets time pass, whether somebody came or not, so that whoever lets it pass
        need not know; visits of these slots stay, and rows of both can be joined.

        Raises:
            UsersError: as for `serve`; on a timetable, slots that were passed before, or not all up
                to ``users``.
        """
        lost: Rows[Any] = Rows.null(users)
        timed = self._timed
        self._check_next(users, passing=timed)
        if self.people is not None:  # it may have passed them in a process that ended
            self.people.skip_to(users.stop)
        self._advance(users, passing=timed)
        self._passed = users.stop
        return Rows._served_by(lost, self)

    def _advance(self, users: range, *, going_on: bool = False, passing: bool = False) -> None:
        with self._lock:
            self._check_next(users, going_on=going_on, passing=passing)
            self._next = max(self._next, users.stop)

    def _check_next(self, users: range, *, going_on: bool = False, passing: bool = False) -> None:
        """``going_on``: the last slot may be the first again; ``passing``: any that is not over."""
        again = going_on and users.start == self._next - 1 >= self.users.start
        again = again or (passing and self._passed <= users.start < self._next)
        if not (users.start == self._next or again) or users.stop > self.users.stop:
            raise UsersError(
                f"users {users!r} cannot be served: the next is {self._next} of {self.users!r}"
            )

    def history(self) -> list[dict[str, Any]]:
        """What was posted when (clock) and paid by which token, oldest first; plain JSON.

        On a timetable the clock is the end of the slots that were skipped last.
        """
        return [{**item, "value": np.asarray(item["value"]).tolist()} for item in self._history]

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Billboard({', '.join(self._values) or 'empty'}; next user {self._next})"
