"""How spends, and the losses of other packages, stand in a ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from privlearn.accountants.read_forms import read_loss
from privlearn.accountants.state import AccountState
from privlearn.contract.spends import LEASE, Spend
from privlearn.errors import BudgetError
from privlearn.ledger.entries import AttestEntry, Entry, PlanEntry, SpendEntry
from privlearn.losses import DeclaredLoss, Loss, declared_in, foreign_kinds, recorded

_Forms = tuple[dict[str, Any], dict[str, Any], dict[str, Any], bool]
"""Domain, noise and loss of a spend as they are written, and whether the loss follows from them."""


def parameters_of(spend: Spend, runs: int | None) -> dict[str, Any]:
    """Of a spend, as they are written."""
    if LEASE in spend.parameters:
        raise BudgetError(f"{spend.mechanism}: a parameter {LEASE!r} is only that of a lease")
    return {**spend.parameters, **({} if runs is None else {LEASE: {"runs": runs}})}


_FORMS: dict[int, tuple[Spend, Loss, _Forms]] = {}
"""By identity of the spend: a mechanism keeps it, and its domain, noise and loss never change."""


def forms_of(spend: Spend, loss: Loss) -> _Forms:
    """Domain, noise and loss of a spend in their forms, and whether the loss follows from them."""
    found = _FORMS.get(id(spend))
    if found is not None and found[0] is spend and found[1] is loss:
        return found[2]
    forms = spend.domain.to_dict(), spend.noise.to_dict(), loss.to_dict(), spend.derived
    if spend.derived:  # all of it is ours
        if len(_FORMS) >= 1024:
            _FORMS.clear()
        _FORMS[id(spend)] = spend, loss, forms
    return forms


@final
@dataclass(slots=True)
class OtherLosses:
    """What stood in a ledger of losses of other packages when it was resumed."""

    declared: dict[str, DeclaredLoss] = field(default_factory=dict)
    """By the text of their forms."""
    bare: bool = False
    """Whether some stand there as they are: so it was done by older versions."""

    def as_recorded(self, loss: Loss, users: range) -> Loss:
        """A loss as it stands, or will stand, in the ledger.

        Raises:
            UnknownKindError, PackageError: of another package, and cannot be recorded.
        """
        return loss if self.bare else recorded(loss, users, self.declared)

    def note(self, state: AccountState, entry: Entry) -> None:
        """Looks at an entry that ``state`` has recorded."""
        match entry:
            case PlanEntry():
                for item in state.plan or []:
                    self._note(item.loss, item.users)
            case SpendEntry() | AttestEntry():
                self._note(read_loss(entry.loss), range(*entry.users))

    def _note(self, loss: Loss, users: range) -> None:
        self.bare = self.bare or any(foreign_kinds(loss))
        for one, _ in declared_in(loss, users):
            self.declared.setdefault(one.text, one)
