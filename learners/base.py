"""What all learners share: parameters, one accountant, a public clock and private messages."""

from __future__ import annotations

import inspect
from abc import ABC
from typing import Any, ClassVar, Self

from privlearn._validate import count
from privlearn.billboard import Billboard
from privlearn.errors import HorizonError, ProvenanceError
from privlearn.learners.inputs import absent
from privlearn.protocols import Accountant


class Learner(ABC):
    """Is started once, with one accountant, and learns from its users in order of arrival.

    After `start`, ``clock_`` is the next arrival index and ``private_messages_`` holds messages
    about single users' data, for the operator only.
    """

    clock_: int
    private_messages_: list[tuple[int, str]]
    _takes_timetables: ClassVar[bool] = False
    """Whether a slot may hold any number of visits (`Participation` with clock = 'timetable')."""

    # Parameters, as scikit-learn expects them ----------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Changes constructor arguments; only before `start`.

        Raises:
            ValueError: unknown name.  RuntimeError: started.
        """
        if self._started:
            raise RuntimeError("the learner has started: its parameters are public history")
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"{name}: not a parameter; known: {', '.join(known)}")
            setattr(self, name, value)
        return self

    # Life ----------------------------------------------------------------------------------------

    @property
    def _started(self) -> bool:
        return hasattr(self, "_accountant")

    def _check_fresh(self) -> None:
        if self._started:
            raise RuntimeError("the learner has started: make a new one for another accountant")

    def _check_started(self) -> None:
        if not hasattr(self, "_accountant"):
            raise RuntimeError("the learner has no accountant: call start(accountant) first")

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
        self.private_messages_ = []

    def _begin(self, accountant: Accountant[Any]) -> None:
        """From here on the learner takes users."""
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

    # Users ---------------------------------------------------------------------------------------

    def _next_users(self, n: int) -> range:
        users = range(self.clock_, self.clock_ + n)
        if users.stop > self._accountant.users.stop:
            raise HorizonError(
                f"{n} users after {self.clock_}: the horizon is {self._accountant.users}"
            )
        return users

    def _absent_users(self, n: int) -> range:
        """The next n users, who never came, after the message that says so."""
        users = self._next_users(count(n=n))
        self.private_messages_.append((users.start, absent(users)))
        return users

    def _notify(self, user: int, complaint: str) -> None:
        """A message to a single user, for the operator's private records only."""
        self.private_messages_.append((user, f"{complaint}; your record does not count"))
