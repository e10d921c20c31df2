"""What must hold where an account is begun, or gone on with: cap, noise, name and registry."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from fractions import Fraction
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from privlearn import __version__
from privlearn.accountants.account_log import AccountLog, OtherLosses
from privlearn.accountants.guarantee import in_gaussian, in_renyi, in_zcdp, unless_failed
from privlearn.accountants.replay import Replay
from privlearn.accountants.state import AccountState
from privlearn.accountants.turn_lock import News
from privlearn.errors import BudgetError, LedgerError, LedgerHeadError, PeopleError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import EXACT, PARTICIPATION, RESUME, OpenEntry
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, Renyi
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import Exact, exact, exact_text
from privlearn.values.participation import Participation
from privlearn.values.validate import text, user_range

ON_DEVICES: Final = "drawn on the users' devices, as attested"


def in_currency(
    budget: Currency | ApproxDP,
    currency: type[Currency] | None,
    order_for: Loss | None,
    failure: Fraction,
) -> tuple[Currency, ApproxDP | None]:
    """The cap in the currency that is counted in, and the (ε, δ) promise that it was given as.

    Raises:
        BudgetError: a currency that does not fit the budget, or a loss that is for another one.
        TypeError: no budget.
    """
    if order_for is not None and not (currency is Renyi and isinstance(budget, ApproxDP)):
        raise BudgetError("order_for: is for an (ε, δ) budget with currency=Renyi")
    if isinstance(budget, ApproxDP):
        apart = unless_failed(budget, failure)
        if currency is None or currency is ZCDP:
            return in_zcdp(apart), budget
        if currency is GaussianDP:
            return in_gaussian(apart), budget
        if currency is Renyi:
            return in_renyi(apart, order_for), budget
        raise BudgetError(
            f"currency = {currency}: an (ε, δ) budget counts in ZCDP, GaussianDP or Renyi"
        )
    if not isinstance(budget, Currency):
        raise TypeError(f"budget = {budget!r}: must be a budget such as ZCDP('1')")
    if currency is not None and currency is not type(budget):
        raise BudgetError(f"currency = {currency}: the budget {budget} has its own")
    return budget, None


def participation_form(people: People) -> dict[str, Any]:
    """What an ``open`` entry says of a rule of participation and its registry."""
    return {"rule": people.rule.to_dict(), "registry": people.id}


def check_registry(people: object) -> None:
    """Raises TypeError unless it is a registry, or there is none; says nothing of what it is."""
    if people is not None and not isinstance(people, People):
        raise TypeError(
            f"people: a {type(people).__name__}: must be the registry that keeps the rule, "
            "People.create(path, rule), People.open(path) or People.memory(rule)"
        )


def check_people(people: People | None, state: AccountState) -> None:
    """Raises PeopleError unless it is the registry that the accountant was begun with."""
    begun = state.opened.participation
    if people is None or begun is None or begun != participation_form(people):
        had = "no registry"
        if begun is not None:
            rule = Participation.from_dict(begun["rule"])
            had = f"registry {begun['registry']} and {rule}, which was at slot {state.admitted} or "
            had += (
                "later (if it is lost: People.replace_lost, or 'replace_lost' of People.postgres)"
            )
        given = "none" if people is None else f"registry {people.id} and {people.rule}"
        raise PeopleError(f"people: the accountant was begun with {had}; given was {given}")
    people.bind(state.opened.accountant, state.users)
    if state.visits is not None and state.visits.starts:
        people.divide(state.visits.starts)
    if state.admitted > state.users.start:
        people.check_not_older(state.admitted - 1)


def new_id(taken: set[str]) -> str:
    """A public name for an accountant: 8 hexadecimal digits."""
    while (name := secrets.token_hex(4)) in taken:
        pass
    return name


def opened_as(book: Ledger, trust: Trust, accountant: str | None) -> OpenEntry:
    """The one accountant of the ledger that can be meant."""
    of_trust = [e for e in book.opened if e.trust is trust]
    found = [e for e in of_trust if accountant in (None, e.accountant)]
    if not found:
        named = "" if accountant is None else f" {accountant!r}"
        had = ", ".join(f"{e.accountant} ({e.trust.value})" for e in book.opened) or "none"
        raise LedgerError(f"{book.name} holds no {trust.value} accountant{named}; it has {had}")
    still_open = [entry for entry in found if entry.accountant in book.open_accountants]
    if len(still_open) > 1:
        ids = ", ".join(entry.accountant for entry in still_open)
        raise LedgerError(f"accountant: {len(still_open)} {trust.value} ones are open, {ids}")
    return (still_open or found)[0]


def noise_like(opened: OpenEntry) -> NoiseSource:
    """Secure noise, for an account that was begun with it.

    Raises:
        LedgerError: it was begun with that of a simulation, which needs a seed.
    """
    if opened.simulated:
        raise LedgerError("noise: a simulation ledger is resumed with NoiseSource.simulation(seed)")
    return NoiseSource.secure()


class Standing(NamedTuple):
    """What an account that stands in a ledger goes on with."""

    log: AccountLog
    noise: NoiseSource
    before: Replay
    """What it released before, for a learner that runs again over it."""


def read_account(
    book: Ledger,
    trust: Trust,
    noise: NoiseSource | None,
    accountant: str | None,
    people: People | None,
) -> Standing:
    """An accountant that the ledger holds, and what it released before.

    Args:
        book: where it stands.
        trust: of the accountant.
        noise: default, secure, if it was begun so.
        accountant: its id; default, the only one of this trust that is open.
        people: the registry that it was begun with.

    Raises:
        LedgerError, LedgerHeadError, PeopleError: as `Accountant.resume`.
    """
    with book.turn():  # it may have been opened since this process connected
        pass
    first = opened_as(book, trust, accountant)
    source = noise if noise is not None else noise_like(first)
    if source.simulated is not first.simulated:
        raise LedgerError(f"noise = {source.name}: the ledger was begun with {first.noise}")
    state, seen, before = AccountState(first), 0, Replay(book)
    others, news = OtherLosses(), News(first.accountant, book)
    stands = book.listen(news) if book.shared else None  # from here on others may write
    for entry in islice(book.entries, stands):
        if entry.accountant == first.accountant:
            if seen:
                state.record(state.check(entry))
                others.note(state, entry)
                if state.learner is not None:  # which stands before the first token
                    before.add(entry)
            seen += 1
    if state.closed:
        raise LedgerError(
            f"{book.name}: its accountant was closed, and takes no further entries; it can be "
            "audited"
        )
    if book.unknown_head and not state.resumable:
        raise LedgerHeadError(
            "unknown_head = True: the account was begun by a version whose ledgers cannot say "
            "so; give head=, the last hash, which `privlearn audit` prints"
        )
    if people is not None or first.participation is not None:
        check_people(people, state)
    return Standing(AccountLog(state, seen, book, news, others), source, before)


def opening_entry(
    budget: Currency | ApproxDP,
    *,
    trust: Trust,
    users: range,
    ledger: Ledger | str | os.PathLike[str] | None,
    noise: NoiseSource,
    currency: type[Currency] | None,
    order_for: Loss | None,
    adjacency: Adjacency | None,
    side_information: Iterable[str],
    shared: bool,
    population: str | None,
    failure: Exact,
    odometer: Exact | None,
    people: People | None,
    attested: bool,
) -> OpenEntry:
    """How an account says, once and for all, what it promises to whom.

    Args: as of `CentralAccountant`; ``attested``: as of `LocalAccountant`.

    Raises:
        BudgetError: the budget is zero, or none that can be counted so.
        LedgerError: the ledger has entries, and is not said to be shared.
        ValueError, TypeError: something is of bad form.
    """
    cap, promise = in_currency(budget, currency, order_for, exact("failure", failure))
    if cap.is_zero:
        raise BudgetError(f"budget = {budget}: must be above zero")
    index = user_range(users=users)
    if ledger is None and not noise.simulated:
        raise ValueError(
            "ledger: secure noise needs one that outlives the process, such as the path of a new "
            "file; Ledger.memory(), which forgets what was spent, has to be asked for"
        )
    check_registry(people)
    new_file = isinstance(ledger, str | os.PathLike)
    book = ledger if isinstance(ledger, Ledger) else None
    if book is None and ledger is not None and not new_file:
        raise TypeError(
            f"ledger = {ledger!r:.80}: must be the path of a new file, Ledger.create(path), "
            "Ledger.memory() or another Ledger"
        )
    before = () if book is None else book.opened
    if before and not shared:
        raise LedgerError(
            "the ledger has entries: use resume(...) to go on with it, or shared=True for a "
            "further accountant with a cap of its own"
        )
    if adjacency is None:
        private = people is not None and people.rule.pattern == "private"
        adjacency = Adjacency.ZERO_OUT if private else Adjacency.REPLACE_ONE
    durable = new_file or (book is not None and book.durable)
    features: dict[str, Literal["critical", "optional"]] = {EXACT: "optional"}
    if people is not None:
        features[PARTICIPATION] = "critical"
    if durable:
        features[RESUME] = "critical"
    elsewhere = book is not None and book.keeps_heads_elsewhere
    return OpenEntry(
        accountant=new_id({entry.accountant for entry in before}),
        software=f"privlearn {__version__}",
        trust=trust,
        adjacency=adjacency,
        users=(index.start, index.stop),
        cap=cap.to_dict(),
        promise=None if promise is None else promise.to_dict(),
        noise=noise.name if not attested or noise.simulated else ON_DEVICES,
        simulated=noise.simulated,
        side_information=tuple(side_information),
        durable=durable,
        population=None if population is None else text(population=population),
        attested=attested,
        failure=exact_text(exact("failure", failure)),
        odometer=None if odometer is None else exact_text(exact("odometer", odometer)),
        features=features,
        participation=None if people is None else participation_form(people),
        heads={"heads": "elsewhere"} if elsewhere else None,
    )
