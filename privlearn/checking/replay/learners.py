"""`check_learner`: one learner on many neighbours, in every way of running it that its kind has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.checking.full_messages import told_in_full
from privlearn.checking.replay.interleavings import late_pairs, offered
from privlearn.checking.replay.populations import generated_pairs
from privlearn.checking.replay.protocols import (
    InteractionProtocol,
    examples,
    played,
    pulled,
    serve,
)
from privlearn.checking.replay.shipped_learners import LearnerCase, Replays, replayed
from privlearn.errors import CheckError
from privlearn.learners.base import Learner
from privlearn.learners.contextual import ServedBandit
from privlearn.learners.phases import PhaseLearner
from privlearn.learners.private_experts import PrivateExperts
from privlearn.learners.served import ServedMNL
from privlearn.learners.streaming import StreamLearner
from privlearn.losses.budgets import ZCDP, Currency
from privlearn.values.validate import count

__tracebackhide__ = told_in_full

_BLOCK, _WAIT = 3, 2
_LATE = "with late answers"


@dataclass(frozen=True, slots=True)
class LearnerReport:
    """What a passed check of a learner has looked at; it says nothing beyond these runs.

    Attributes:
        learner: its class.
        users: of each run.
        ways: how it was run, and what was gone through.
    """

    learner: str
    users: int
    ways: dict[str, Replays]

    @property
    def pairs(self) -> int:
        """Pairs of neighbours, in all ways together."""
        return sum(replays.pairs for replays in self.ways.values())

    @property
    def moved(self) -> int:
        """Pairs of which something that was paid for was found to differ."""
        return sum(replays.moved for replays in self.ways.values())

    def __str__(self) -> str:
        hidden = set[str]().union(*(replays.operator_only for replays in self.ways.values()))
        ways = ", ".join(f"{way} ({replays.pairs})" for way, replays in self.ways.items())
        return (
            f"{self.learner}: nothing of one user's record was found but what was paid for, on "
            f"{self.pairs} pairs of neighbours of {self.users} users, of which {self.moved} moved "
            f"something that was paid for; run {ways}; not compared, as only the operator sees "
            f"them: {', '.join(sorted(hidden)) or 'nothing'}"
        )


def check_learner(
    learner: Learner,
    *,
    pairs: int = 40,
    users: int = 12,
    budget: Currency | None = None,
    seed: int = 0,
) -> LearnerReport:
    """Runs a learner on generated pairs of neighbours, and raises if it breaks the billboard lemma.

    Users are well-formed and malformed; one of them is another one in each pair, or never comes.
    A learner that serves users is run one user at a time, in blocks, with answers that come late or
    never, and with a restart from its ledger; one of logged rows singly and in blocks.
    `assert_noninterference` says what is compared, and takes users and ways of running of your own.

    Args:
        learner: not started; every run has a copy of it.
        pairs: of neighbours, in all ways together.
        users: of each run; enough for the learner to learn something.
        budget: the cap; default ``ZCDP(1)``.
        seed: of users and noise.

    Raises:
        InterferenceError: something changed that must not, or by more than was paid for.
        CheckError: nothing can be concluded: the learner fails, spends nothing, or nothing that was
            paid for moved; or it is of a kind of its own (give `assert_noninterference` a
            protocol).
        TypeError: no learner.
    """
    if not isinstance(learner, Learner):
        raise TypeError(f"learner = {learner!r:.80}: must be a learner that was not started")
    count(pairs=pairs)
    ways = _ways(learner, ZCDP(1) if budget is None else budget, count(users=users, at_least=2))
    share = -(-pairs // len(ways))
    found = {
        way.how: replayed(way, _people(way, share, users, seed + number), seed + number)
        for number, way in enumerate(ways)
    }
    report = LearnerReport(type(learner).__name__, users, found)
    if not report.moved:
        raise CheckError(f"{report}: little was checked; take more users, or more pairs")
    return report


def _people(way: LearnerCase, pairs: int, users: int, seed: int) -> Iterable[Any]:
    make: Callable[..., Iterable[Any]] = late_pairs if way.how == _LATE else generated_pairs
    return make(pairs, seed, n_items=way.n_items, dim=way.dim, users=users)


def _ways(learner: Learner, budget: Currency, users: int) -> list[LearnerCase]:
    kind = _kind(learner)

    def started(accountant: Any) -> Any:
        return type(learner)(**learner.get_params()).start(accountant)

    def case(how: str, protocol: InteractionProtocol, **options: Any) -> LearnerCase:
        options = {"budget": budget, "accountant": kind.accountant, **options}
        name, (n_items, dim) = type(learner).__name__, kind.sizes
        return LearnerCase(name, how, started, protocol, options, n_items=n_items, dim=dim)

    ways = [case("one by one", kind.one), case(f"in blocks of {_BLOCK}", kind.block)]
    if kind.late is not None:
        ways.append(case(_LATE, kind.late))
    return [*ways, case("with a restart", kind.one, restarts=(users // 2,))]


class _Kind(NamedTuple):
    one: InteractionProtocol
    block: InteractionProtocol
    late: InteractionProtocol | None
    sizes: tuple[int, int]
    """Of the arrays that users send: rows, of which each is an item or an arm, and columns."""
    accountant: Callable[..., Any] = JointAccountant


def _kind(learner: Learner) -> _Kind:
    match learner:
        case ServedMNL():
            sizes = learner.n_items, learner.dim
            return _Kind(serve, played(_BLOCK), offered(_WAIT), sizes)
        case ServedBandit():
            late = offered(_WAIT, arms=True)
            return _Kind(pulled(), pulled(_BLOCK), late, (learner.dim, 1))
        case PhaseLearner():
            one, block = pulled(contexts=False), pulled(_BLOCK, contexts=False)
            return _Kind(one, block, offered(arms=True, contexts=False), (learner.n_arms, 1))
        case PrivateExperts():
            wide = learner.n_experts if learner.n_actions is None else learner.n_actions
            how: dict[str, Any] = {"contexts": learner.dim is not None, "losses": wide}
            one, block = pulled(**how), pulled(_BLOCK, **how)
            return _Kind(one, block, offered(_WAIT, arms=True, **how), (learner.dim or wide, 1))
        case StreamLearner():
            sizes = learner._dim, 1
            return _Kind(examples(), examples(_BLOCK), None, sizes, CentralAccountant)
    raise CheckError(
        f"{type(learner).__name__}: is of a kind of its own; give assert_noninterference users and "
        "a protocol for it"
    )
