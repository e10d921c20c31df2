"""diffprivlib's models and tools under an account of ours, in place of its `BudgetAccountant`.

::

    budget = diffprivlib_accountant(accountant)  # was BudgetAccountant(epsilon=1)
    tools.mean(ages, epsilon=0.5, bounds=(0, 120), accountant=budget)
    models.StandardScaler(epsilon=0.5, bounds=(0, 120), accountant=budget).fit(people)

diffprivlib asks its accountant for ε before it computes, and tells it afterwards.  At the first
question of a call this one finds the call on the stack, refuses it or prices it by its arguments
(`privlearn.bridges.diffprivlib_rules`), and pays; only then does the library see the data.  The
calls' pure ε are composed by the account; the library's own composition, by (ε, δ) with a slack, is
not used.  Its sampling in doubles, from a seed where one is given, is trusted code.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from types import FrameType
from typing import Any, Never, Protocol

from privlearn.bridges.diffprivlib_rules import REFUSED, RULES, Call, epsilon_of_call
from privlearn.bridges.installed import installed
from privlearn.bridges.meters import Meters
from privlearn.contract.metering import Meter, MeteredBlock, TrustedCode
from privlearn.errors import BudgetError, DataError, TokenCopyError, TokenError, UsersError
from privlearn.losses import PureLoss
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import exact
from privlearn.values.validate import count, text

KNOWN = ("0.6.6",)
"""The versions whose code `privlearn.bridges.diffprivlib_rules` was read off."""
LABEL = "diffprivlib"


class Population(Meters, Protocol):
    """An account that says whom it protects."""

    @property
    def users(self) -> range: ...


def diffprivlib_accountant(
    accountant: Population, *, users: range | None = None, rows_each: int = 1, label: str = LABEL
) -> Any:
    """A `BudgetAccountant` for ``accountant=`` of diffprivlib's tools and models.

    Each call pays once, for all its parts, before the library computes; `set_default` and ``with``
    work as theirs.

    Args:
        accountant: pays.
        users: whose records the data hold; default, all of the account's.
        rows_each: the most rows of one person, by which every price is multiplied.
        label: of every call.

    Raises:
        PackageError: diffprivlib is not installed, does not import, or is of another version.
        ValueError: ``rows_each`` or ``label`` is none.
    """
    installed("diffprivlib", "diffprivlib", KNOWN, "diffprivlib==0.6.6 'scikit-learn<1.9'")
    whom = accountant.users if users is None else users
    payer = _Payer(accountant, whom, count(rows_each=rows_each), text(label=label))
    return _budget_accountant()(payer)


@dataclass(slots=True)
class _Paid:
    """A call that is paid for, and what of it is to come."""

    frame: FrameType
    meter: Meter
    block: MeteredBlock
    parts: int


class _Payer:
    """Prices calls, pays for them, and keeps those that have not ended."""

    def __init__(self, accountant: Population, users: range, rows_each: int, label: str) -> None:
        self._accountant, self._users = accountant, users
        self._rows_each, self._label = rows_each, label
        self._running = threading.local()
        self.spent: list[Fraction] = []

    def _paid(self) -> list[_Paid]:
        """Of this thread, the innermost last."""
        if not hasattr(self._running, "calls"):
            self._running.calls = []
        found: list[_Paid] = self._running.calls
        return found

    def ask(self, frame: FrameType, epsilon: float, delta: float) -> None:
        """Pays for the call on the stack, unless it is paid for.

        Raises:
            BudgetError, DataError, UsersError, ValueError: the call has no price, or not this one.
            InsufficientBudgetError: the account cannot hold it; nothing was charged.
        """
        called, key = _called(frame)
        self._forget_failed(frame)
        if any(one.frame is called for one in self._paid()):
            return  # a later part of it
        call = Call(key[1].split(".")[0], called.f_locals)
        if key in REFUSED:
            raise BudgetError(call.refused(REFUSED[key]))
        if delta:
            raise BudgetError(call.refused(f"delta = {delta!r}: only pure ε is known"))
        whole = epsilon_of_call(call)
        rule, relation = RULES[key], self._accountant.adjacency
        times = rule.times(call, relation) * self._rows_each
        rows = rule.records(call)
        if rows > len(self._users) * self._rows_each:
            raise UsersError(
                call.refused(
                    f"more rows than {len(self._users)} users with rows_each = {self._rows_each} "
                    "have: state rows_each, or whose rows they are in users"
                )
            )
        public = None if relation is Adjacency.ADD_REMOVE else rows
        loss, code = _priced(key[1], whole, times, public, call.noise, relation)
        meter = self._accountant.meter(loss, label=self._label, users=self._users, code=code)
        block = meter.__enter__()
        self.spent.append(loss.epsilon)
        if call.of_values:
            error = DataError(
                f"diffprivlib {call.name}: {'; '.join(call.of_values)}; it stays charged, as that "
                "it is refused tells of the data"
            )
            meter.__exit__(DataError, error, None)
            raise error
        parts = max(1, round(whole / epsilon))
        self._paid().append(_Paid(called, meter, block, parts))

    def told(self, frame: FrameType) -> None:
        """Ends a call after its last part.

        Raises:
            TokenError: it did not ask before.
        """
        called, key = _called(frame)
        calls = self._paid()
        found = next((one for one in calls if one.frame is called), None)
        if found is None:
            raise TokenError(f"diffprivlib {key[1]}: it computed without asking for its budget")
        if frame is not called and key[1] == "RandomForestClassifier.fit":
            return  # a tree, which is paid for with its forest
        found.parts -= 1
        if found.parts == 0:
            calls.remove(found)
            found.block.release(None)  # what leaves is still in the library's hands
            found.meter.__exit__(None, None, None)

    def _forget_failed(self, frame: FrameType) -> None:
        """Ends calls that an exception left."""
        running = list(_stack(frame))
        calls = self._paid()
        for one in [one for one in calls if one.frame not in running]:
            calls.remove(one)
            one.meter.__exit__(RuntimeError, RuntimeError("the call failed"), None)


@lru_cache
def _priced(
    name: str, epsilon: float, times: int, rows: int | None, noise: str, relation: Adjacency
) -> tuple[PureLoss, TrustedCode]:
    """What calls with these arguments cost, and what the certificate says of them.

    ``rows``: where their number is public; who joins or leaves changes it.
    """
    price = exact("epsilon", epsilon) * times  # of a float, the shortest decimal
    told = {"call": name, "epsilon": epsilon, "times": times, "noise": noise}
    told |= {} if rows is None else {"rows": rows}
    return PureLoss(price, adjacency=relation), TrustedCode("diffprivlib", KNOWN[0], told)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _called(frame: FrameType) -> tuple[FrameType, tuple[str, str]]:
    """The outermost call of the library that is known.

    Raises:
        BudgetError: there is none.
    """
    found = None
    for one in _stack(frame):
        key = str(one.f_globals.get("__name__")), one.f_code.co_qualname
        if key in RULES or key in REFUSED:
            found = one, key
    if found is None:
        raise BudgetError(
            f"diffprivlib: {frame.f_code.co_qualname} has no price here, nothing was spent"
        )
    return found


@cache
def _budget_accountant() -> type[Any]:
    from diffprivlib.accountant import BudgetAccountant

    class MeteredBudgetAccountant(BudgetAccountant):  # type: ignore[misc, unused-ignore]
        """Asks an account of ours."""

        def __init__(self, payer: _Payer) -> None:
            super().__init__()
            self._payer = payer

        def check(self, epsilon: float, delta: float) -> bool:
            self._payer.ask(sys._getframe(1), epsilon, delta)
            return True

        def spend(self, epsilon: float, delta: float) -> Any:
            self._payer.told(sys._getframe(1))
            return self

        @property
        def spent_budget(self) -> list[tuple[float, float]]:
            payer = getattr(self, "_payer", None)  # none yet while it is made
            return [] if payer is None else [(float(one), 0.0) for one in payer.spent]

        @property
        def slack(self) -> float:
            return 0.0

        @slack.setter
        def slack(self, slack: float) -> None:
            if slack:
                raise BudgetError(f"slack = {slack!r}: the account composes what calls cost")

        def remaining(self, k: int = 1) -> Never:
            raise BudgetError(
                "remaining: what is left is the account's to say: accountant.remaining"
            )

        def __repr__(self, n_budget_max: int = 5) -> str:
            return f"MeteredBudgetAccountant({len(self)} calls)"

        def __deepcopy__(self, memo: object) -> Any:
            return self  # scikit-learn's clone copies parameters, and a copy has no budget

        __copy__ = __deepcopy__

        def __reduce__(self) -> Never:
            raise TokenCopyError(
                "a metered accountant stays in its process: use n_jobs=1, or threads"
            )

    return MeteredBudgetAccountant
