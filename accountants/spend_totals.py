"""What a certificate says of all spends of one accountant, added up one entry at a time."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, chain
from typing import final

from privlearn.accountants.charged import pieces_of
from privlearn.accountants.declarations import Declarations
from privlearn.accountants.foreign_spends import ForeignSpends
from privlearn.accountants.loss_structure import has_minimizer
from privlearn.accountants.person_totals import person_cost
from privlearn.accountants.prices import read_loss
from privlearn.accountants.spend_checks import is_lease, runs_of
from privlearn.accountants.state import AccountState
from privlearn.accountants.streams import Stream
from privlearn.contract.spends import METERED, PHASES
from privlearn.errors import BudgetError
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.entries import (
    EXACT,
    AttestEntry,
    Entry,
    FunctionsEntry,
    PhaseEntry,
    PlanEntry,
    RetireEntry,
    SpendEntry,
)
from privlearn.losses import Loss, foreign_kinds
from privlearn.rows.functions import NOT_NAMED
from privlearn.values.adjacency import Calibration

_MOST_CODES = 100  # Of metered code with its parameters, that a certificate lists
Group = tuple[str, str]
"""Mechanism and label."""


@final
@dataclass(slots=True)
class SpendTotals:
    """Sums over an accountant's entries.  No spend is kept, so that an audit needs no room for it.

    Who pays is kept as the indices where the number of runs of a loss changes, so a spend costs the
    same however many others there are, and whoever they are for.
    """

    spends: dict[Group, int] = field(default_factory=dict)
    streams: set[Group] = field(default_factory=set)
    leases: dict[Group, tuple[int, int]] = field(default_factory=dict)
    """Spends that are leases, and the runs that they paid for."""
    solver_error: float | None = None
    """The largest that is stated for a minimiser; None if there is none."""
    all_derived: bool = True
    published: bool = False
    exact: bool = False
    """Whether some spend says how its noise is exact."""
    rounded: dict[str, None] = field(default_factory=dict)
    """Mechanisms of spends that do not."""
    sampled: dict[str, None] = field(default_factory=dict)
    """Mechanisms that state a sampling rate."""
    lost: int = 0
    """Spends that ended without a value that was recorded."""
    uncovered: list[tuple[str, str]] = field(default_factory=list)
    """Tokens, with their labels, that stopped in a way that may depend on rows."""
    ended_early: int = 0
    """Streams that are charged to some of their users only, as they did not come further."""
    freed: int = 0
    """Of those streams, added up: users whose charge was taken off."""
    phases: int = 0
    """Phases that began."""
    phased_to: int = 0
    """One past the last user of any of them."""
    trusted_code: dict[str, None] = field(default_factory=dict)
    declarations: Declarations = field(default_factory=Declarations)
    """Losses of other packages, which are counted as they were declared."""
    foreign: ForeignSpends = field(default_factory=ForeignSpends)
    """Spends of domains and noise of other packages."""
    metered: dict[str, None] = field(default_factory=dict)
    """Code of others that was paid for, in words."""
    metered_others: int = 0
    """Spends of such code with other parameters, which are not listed."""
    restated: dict[str, None] = field(default_factory=dict)
    """Mechanisms whose gain for all visits of a person was worked out again."""
    as_recorded: dict[str, None] = field(default_factory=dict)
    """Mechanisms for which it was not."""
    open_prices: dict[str, None] = field(default_factory=dict)
    """Under a rule of participation: what stays open at a price that is its code's word."""
    _of_persons: dict[Group, Counter[tuple[int, int, Loss]]] = field(default_factory=dict)
    """Under a rule of participation, in place of `_runs`."""
    _runs: dict[Group, dict[Loss, dict[int, int]]] = field(default_factory=dict)
    _last: tuple[Group, Loss, dict[int, int]] | None = None
    _known: set[tuple[object, ...]] = field(default_factory=set)

    def add(self, state: AccountState, entry: Entry) -> None:
        match entry:
            case SpendEntry():
                self._spend(state, entry)
            case RetireEntry():
                account = state.accounts.get(entry.token)
                if account is not None and account.stream is not None and account.stream.freed:
                    self._end_early(
                        state, (account.stream.mechanism, account.label), account.stream
                    )
            case PhaseEntry():
                self.phases += 1
                self.phased_to = max(self.phased_to, entry.stop)
            case PlanEntry():
                for item in state.plan or []:
                    self._kinds(item.loss, item.users, f"plan {item.label!r}")
            case FunctionsEntry():
                self.trusted_code.update(dict.fromkeys(map(_function_note, entry.names)))
            case AttestEntry():
                note = f"{entry.mechanism}: attested by {entry.by}, not verified"
                self.trusted_code[note] = None
                self._kinds(read_loss(entry.loss), range(*entry.users), entry.mechanism)

    def _kinds(self, loss: Loss, users: range, mechanism: str) -> None:
        self.trusted_code.update((_kind_note(kind), None) for kind in foreign_kinds(loss))
        self.declarations.add(loss, users, mechanism)

    def _spend(self, state: AccountState, entry: SpendEntry) -> None:
        account = state.accounts.get(entry.token)
        label, loss = "", None
        if account is not None:
            label = account.label
            loss = account.loss if account.spend is entry else None
        if loss is None:
            loss = read_loss(entry.loss)
        group = entry.mechanism, label
        self.spends[group] = self.spends.get(group, 0) + 1
        if entry.interactive:
            self.streams.add(group)
        metered = METERED in entry.parameters
        if metered:
            self._metered(entry, label)
        elif not entry.derived:
            self.foreign.add(entry, loss)
        pieces = pieces_of(loss, range(*entry.users))
        if pieces[0][1] is not loss:  # a kind may say by itself who pays what
            self._kinds(loss, range(*entry.users), entry.mechanism)
        if state.visits is not None and entry.interactive and not entry.derived:
            self.open_prices[entry.mechanism] = None
        for users, part in pieces:
            if state.visits is not None:
                self._kinds(part, users, entry.mechanism)
                runs = self._of_persons.setdefault(group, Counter())
                runs[users.start, users.stop, part] += 1
                continue
            edges = self._edges(group, part, users)
            _change(edges, users.start, 1)
            _change(edges, users.stop, -1)
        shape = (
            entry.mechanism,
            entry.derived,
            entry.arithmetic,
            entry.gain,
            entry.calibration,
            None if entry.exact is None else "grid" in entry.exact,
            entry.noise.get("family") in ("cap", "category"),
        )
        if metered:
            self.all_derived = False
        elif shape not in self._known:
            self._known.add(shape)
            self.trusted_code.update(dict.fromkeys(_spend_notes(entry)))
            if EXACT in state.opened.features:
                self._exactness(entry)
            self.all_derived = self.all_derived and entry.derived
            self.published = self.published or entry.calibration is Calibration.PUBLISHED
        if entry.parameters:
            if PHASES in entry.parameters and not state.resumable:
                self.trusted_code[
                    f"{entry.mechanism}: that each user is in one of its phases, and so in one "
                    "release, is its code's word: a ledger in memory holds no phases"
                ] = None
            if is_lease(entry):
                with suppress(BudgetError):  # of a wrong form, which is a problem of its own
                    more, (leases, before) = runs_of(entry), self.leases.get(group, (0, 0))
                    self.leases[group] = leases + 1, before + more
            if "sample_rate" in entry.parameters:
                self.sampled[entry.mechanism] = None
            if has_minimizer(loss):
                error = float(entry.parameters["solver_error"])
                self.solver_error = max(self.solver_error or 0.0, error)

    def _end_early(self, state: AccountState, group: Group, stream: Stream) -> None:
        """Takes off what `_spend` counted for users whose rows the stream never took."""
        self.ended_early += 1
        self.freed += sum(len(users) - len(kept) for users, kept, _ in stream.freed)
        if not stream.derived:
            self.trusted_code[
                f"{stream.mechanism}: that its loss holds for whoever comes later, whatever left "
                "before, is its code's word; a stream of it ended early"
            ] = None
        for users, kept, part in stream.freed:
            if state.visits is not None:
                runs = self._of_persons[group]
                runs[users.start, users.stop, part] -= 1
                if kept:
                    runs[kept.start, kept.stop, part] += 1
                self._of_persons[group] = +runs  # without what is counted no more
                continue
            edges = self._edges(group, part, users)
            _change(edges, kept.stop, -1)
            _change(edges, users.stop, 1)

    def _metered(self, entry: SpendEntry, label: str) -> None:
        word = _code_words(entry, label)
        if word in self.metered or len(self.metered) < _MOST_CODES:
            self.metered[word] = None
        else:
            self.metered_others += 1

    def words(self) -> list[str]:
        """Whose code, or word, is trusted."""
        others = self.metered_others
        more = [f"metered code with other parameters, of {others:,} spends"] * (others > 0)
        return [
            *self.trusted_code,
            *self.metered,
            *more,
            *self.declarations.words(),
            *self.foreign.words(),
        ]

    def _exactness(self, entry: SpendEntry) -> None:
        if entry.exact is None:
            self.rounded[entry.mechanism] = None
            self.trusted_code[
                f"{entry.mechanism}: computes in floating point; the rounding of its noise, and "
                "of what that is added to, is not priced"
            ] = None
            return
        self.exact = True
        # of reports that noise makes as a whole, it is said anyway that they are code's word
        if "grid" not in entry.exact and entry.noise.get("family") not in ("cap", "category"):
            self.trusted_code[
                f"{entry.mechanism}: that it draws exactly from the law that is priced, without a "
                "grid, is its code's word"
            ] = None

    def _edges(self, group: Group, loss: Loss, users: range) -> dict[int, int]:
        last = self._last
        if last is not None and last[0] == group and last[1] is loss:  # its hash takes time
            return last[2]
        runs = self._runs.setdefault(group, {})
        if loss not in runs:
            self._kinds(loss, users, group[0])
        edges = runs.setdefault(loss, {})
        self._last = group, loss, edges
        return edges

    def shares(self, state: AccountState) -> list[tuple[Group, float]]:
        """Each group's part of what the most charged user paid, in the accountant's currency.

        Under a rule of participation it is the most that the group costs any one person, as a part
        of the most that all cost one, so that the parts may add up to more than the whole.

        Raises:
            CurrencyError: a loss without a price.
            BudgetError: none for several visits.
        """
        if state.visits is not None:
            costs = {
                group: person_cost(state, runs).amounts[0]
                for group, runs in self._of_persons.items()
            }
            every: Counter[tuple[int, int, Loss]] = Counter()
            for runs in self._of_persons.values():
                every.update(runs)
            total = person_cost(state, every).amounts[0] or Fraction(1)
            return [(group, float(cost / total)) for group, cost in costs.items()]
        priced = {
            group: [
                (state.prices.of(loss).budget.amounts[0], edges) for loss, edges in runs.items()
            ]
            for group, runs in self._runs.items()
        }
        steps: dict[int, Fraction] = {}
        for price, edges in chain.from_iterable(priced.values()):
            for edge, change in edges.items():
                steps[edge] = steps.get(edge, Fraction(0)) + price * change
        order = sorted(steps)
        paid = list(accumulate(steps[edge] for edge in order))
        most = max(range(len(order)), key=paid.__getitem__, default=None)
        if most is None:
            return []
        user, whole = order[most], paid[most] or Fraction(1)
        return [
            (group, float(sum((p * _at(edges, user) for p, edges in items), Fraction(0)) / whole))
            for group, items in priced.items()
        ]


def _change(edges: dict[int, int], at: int, by: int) -> None:
    after = edges.get(at, 0) + by
    if after:
        edges[at] = after
    else:
        del edges[at]


def _at(edges: dict[int, int], user: int) -> int:
    return sum(change for edge, change in edges.items() if edge <= user)


def _kind_note(kind: type[Loss]) -> str:
    return (
        f"loss kind {kind.kind!r} ({kind.__module__}.{kind.__qualname__}): that its prices are not "
        "too low is its code's word"
    )


def _code_words(entry: SpendEntry, label: str) -> str:
    said, code = entry.parameters[METERED], f"named by its label {label!r} only"
    if isinstance(said, dict) and said:
        parameters = canonical(said.get("parameters")).decode()
        code = f"package {said.get('package')}, version {said.get('version')}, {parameters}"
    return f"metered code, {code}: that its output has the loss it was priced by is its own word"


def _function_note(name: str) -> str:
    if name == NOT_NAMED:
        return (
            "rows on a timetable: user code that they passed through is not named, as this would "
            "tell whether somebody came; that it acts on each row by itself is its word, "
            "spot-checked"
        )
    if name.startswith("deliver("):
        return (
            f"{name}: user code for the users' answers; that each user answers by itself is its "
            "word"
        )
    if name.startswith("pool("):
        return f"{name}: user code on all of one person's rows in a batch; it sees nobody else's"
    if name.startswith("arithmetic("):
        return (
            f"{name}: user code on all rows together; that one user moves its result by no more "
            "than the stated sensitivity is its author's word"
        )
    return f"{name}: user code; that it acts on each row by itself is its word, spot-checked"


def _spend_notes(entry: SpendEntry) -> list[str]:
    notes = []
    if not entry.derived:
        notes = [f"{entry.mechanism}: its loss, or its domain's or noise's, is its code's word"]
        if entry.arithmetic != "each":
            return notes
    if entry.arithmetic == "sum" and entry.gain == 1:
        return []
    gain = "" if entry.gain == 1 else f" and its gain of {entry.gain!r}"
    if entry.arithmetic == "each":
        return [
            *notes,
            f"{entry.mechanism}: that every output depends on its user's row and own noise "
            f"alone{gain} is its code's word",
        ]
    return [f"{entry.mechanism}: what it computes from opened rows{gain} is its code's word"]
