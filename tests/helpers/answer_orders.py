"""One data set in many orders of its answers, after which everything must be the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from privlearn.accountants import JointAccountant
from privlearn.checking.isolation import TimeLimit
from privlearn.checking.replay.check import Setup, lives
from privlearn.checking.replay.protocols import Tardy, offered
from privlearn.checking.replay.recording import Recorder, compare
from privlearn.checking.replay.side_effects import Globals
from privlearn.errors import CheckError, InterferenceError
from privlearn.losses.budgets import ZCDP, Currency
from privlearn.values.participation import Participation
from privlearn.values.validate import count


def assert_answers_in_any_order(
    learner_factory: Callable[[Any], Any],
    users: Sequence[Tardy],
    *,
    wait: int,
    orders: int = 4,
    budget: Currency | None = None,
    seed: int = 0,
    rule: Participation | None = None,
    seconds: float = 60.0,
    **served: Any,
) -> None:
    """Serves users in several orders of their answers; raises if anything else is not the same.

    In every order each answer comes before its batch is closed, at a time drawn for it.  Compared
    are tokens, ledger, billboard, public state, opened rows and released values, everything printed
    or logged, and what each user receives, messages included.

    Args:
        learner_factory: starts a fresh learner with the accountant it is given.
        users: in order of arrival; of the times only "never" is used.
        wait: as `Offers` takes it, which is how late answers may be.
        orders: how many.
        budget: the cap; default ``ZCDP(1)``.
        seed: of the noise, which is the same in all of them, and of the orders.
        rule: of participation; users then have an ``id``.
        seconds: for everything together.
        served: further arguments of `offered`.

    Raises:
        InterferenceError: something follows from the order of the answers.
        CheckError: nothing was checked, as the learner fails or spends nothing.
    """
    n, who, cap = len(users), "the learner", ZCDP(1) if budget is None else budget

    def run(order: int, limit: TimeLimit) -> Any:
        protocol = offered(wait, order=order, people=rule is not None, **served)
        body = lives(learner_factory, protocol, (), n)
        setup = Setup(body, JointAccountant, cap, n, seed, Globals(), rule)
        return setup.run(users, Recorder(limit))[0]

    with TimeLimit(seconds, who) as limit:
        first = run(seed, limit)
        if first.error or not any(event.what == "spend" for event in first.events):
            raise CheckError(
                f"{who} {first.error or 'spends nothing'}: little was checked; take other users"
            )
        for order in range(seed + 1, seed + count(orders=orders, at_least=2)):
            try:
                compare(first, run(order, limit), ())
            except InterferenceError as difference:
                raise InterferenceError(
                    f"with the answers in another order: {difference}\n  orders {seed} and {order}"
                ) from None
