"""The entry that opens an account, from what its accountant was asked to keep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from privlearn import __version__
from privlearn.accountants.beginnings import (
    ON_DEVICES,
    check_registry,
    in_currency,
    new_id,
    participation_form,
)
from privlearn.errors import BudgetError, LedgerError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import EXACT, PARTICIPATION, RESUME, OpenEntry
from privlearn.losses import Loss
from privlearn.losses.budgets import ApproxDP, Currency
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import Exact, exact, exact_text
from privlearn.values.validate import text, user_range


def opening_entry(
    budget: Currency | ApproxDP,
    *,
    trust: Trust,
    users: range,
    ledger: Ledger | None,
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
            "ledger: secure noise needs one that outlives the process, Ledger.create(path); "
            "Ledger.memory(), which forgets what was spent, has to be asked for"
        )
    check_registry(people)
    before = () if ledger is None else ledger.opened
    if before and not shared:
        raise LedgerError(
            "the ledger has entries: use resume(...) to go on with it, or shared=True for a "
            "further accountant with a cap of its own"
        )
    if adjacency is None:
        private = people is not None and people.rule.pattern == "private"
        adjacency = Adjacency.ZERO_OUT if private else Adjacency.REPLACE_ONE
    durable = ledger is not None and ledger.durable
    features: dict[str, Literal["critical", "optional"]] = {EXACT: "optional"}
    if people is not None:
        features[PARTICIPATION] = "critical"
    if durable:
        features[RESUME] = "critical"
    elsewhere = ledger is not None and ledger.keeps_heads_elsewhere
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
