"""Spends that pay for several runs of a mechanism, which are used without further entries."""

from __future__ import annotations

from privlearn.contract.spends import LEASE
from privlearn.errors import BudgetError
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import Loss, compose

MOST_RUNS = 2**53 - 1


def runs_of(entry: SpendEntry) -> int:
    """How many runs a spend pays for: 1, but for a lease.

    Raises:
        BudgetError: the parameter that says so has another form.
    """
    said = entry.parameters.get(LEASE)
    if said is None:
        return 1
    runs = said.get("runs") if isinstance(said, dict) else None
    if type(runs) is not int or not 1 <= runs <= MOST_RUNS or len(said) != 1:
        raise BudgetError(
            f"{entry.mechanism}: {LEASE} = {said!r:.80}: must be an object with a number of runs"
        )
    if entry.interactive:
        raise BudgetError(f"{entry.mechanism}: a lease is of runs that release once, no stream")
    return runs


def is_lease(entry: SpendEntry) -> bool:
    """Whether a spend is a lease, of whatever form."""
    return LEASE in entry.parameters


def of_all_runs(loss: Loss, runs: int) -> Loss:
    """The loss of all runs of a lease."""
    return loss if runs == 1 else compose([(loss, runs)])
