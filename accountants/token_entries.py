"""What tokens and receipts talk to: it writes their spends, reaches, values and ends."""

from __future__ import annotations

from typing import Any, final

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.replay import Replay
from privlearn.accountants.retries import FirstTry
from privlearn.contract.issuing import Outcome, RecordedToken, ReleasedValue, ReleaseObserver
from privlearn.contract.metering import is_metered
from privlearn.contract.spends import LEASE, METERED, Spend
from privlearn.contract.tokens import Token
from privlearn.errors import BudgetError
from privlearn.ledger.entries import (
    EXACT,
    FunctionsEntry,
    PhaseEntry,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    SpendEntry,
    made,
)
from privlearn.ledger.spend_forms import SpendForm
from privlearn.losses import Loss
from privlearn.losses.base import is_foreign
from privlearn.noise import NoiseSource
from privlearn.people import People

_MOST_KNOWN = 1024
_Forms = tuple[dict[str, Any], dict[str, Any], dict[str, Any], bool, dict[str, Any] | None]
"""Domain, noise and loss of a spend as they are written, whether the loss follows from them, and
what is said of exact noise."""
_FORMS: dict[int, tuple[Spend, Loss, _Forms]] = {}
"""By identity of the spend: a mechanism keeps it, and its domain, noise and loss never change."""


def _forms_of(spend: Spend, loss: Loss) -> _Forms:
    found = _FORMS.get(id(spend))
    if found is not None and found[0] is spend and found[1] is loss:
        return found[2]
    forms = spend.domain.to_dict(), spend.noise.to_dict(), loss.to_dict()
    known = *forms, spend.derived, spend.exact_form()
    if spend.derived or is_metered(spend):  # all of it is ours
        if len(_FORMS) >= _MOST_KNOWN:
            _FORMS.clear()
        _FORMS[id(spend)] = spend, loss, known
    return known


_Known = tuple[Spend, Loss, SpendForm | None]


def _parameters_of(spend: Spend, runs: int | None) -> dict[str, Any]:
    if LEASE in spend.parameters:
        raise BudgetError(f"{spend.mechanism}: a parameter {LEASE!r} is only that of a lease")
    if METERED in spend.parameters and not is_metered(spend):
        raise BudgetError(f"{spend.mechanism}: a parameter {METERED!r} is only that of a meter")
    return {**spend.parameters, **({} if runs is None else {LEASE: {"runs": runs}})}


@final
class TokenEntries:
    """The issuer of an account's tokens: it writes their entries.

    But for those that do again what stands in the ledger.

    Args:
        log: of the account.
        noise: its own.
        observer: that checks see by.
        people: its registry of persons.

    Attributes:
        past: while a learner runs again over what was released before a restart.
        retried: releases that are handed out again, by identity of their tokens.
        values: what left under nonces of a ledger in memory, which keeps none; by token.
    """

    def __init__(
        self,
        log: AccountLog,
        noise: NoiseSource,
        observer: ReleaseObserver | None,
        people: People | None,
    ) -> None:
        self._log, self.noise, self.observer, self.people = log, noise, observer, people
        opened = log.state.opened
        self.id, self.trust, self.adjacency = opened.accountant, opened.trust, opened.adjacency
        self.past: Replay | None = None
        self.retried: dict[int, FirstTry] = {}
        self.values: dict[str, list[ReleasedValue]] = {}
        self._known: dict[int, _Known] = {}
        """By identity of the spend, of which nothing changes."""

    def of_person(self, loss: Loss, users: range) -> Loss:
        """The loss, as it is recorded, of one person with all visits in a range."""
        log = self._log
        stands = log.others.as_recorded(loss, users)
        if self.people is None:
            return stands
        with log.lock:
            return log.state.prices.loss_of_person(stands, users)

    def check_ledger(self) -> None:
        """Raises LedgerError if nothing can be recorded any more; writes nothing."""
        self._log.check_writable()

    def record_spend(
        self, token: Token[Any], spend: Spend, loss: Loss, runs: int | None = None
    ) -> RecordedToken:
        """The token's account, once its spend is durable."""
        log, people = self._log, self.people
        stands = log.others.as_recorded(loss, token.users) if is_foreign(loss) else loss
        users, form = (token.users.start, token.users.stop), None
        known = self._known.get(id(spend))
        if known is not None and known[0] is spend and known[1] is stands and runs is None:
            form = known[2]
        ahead = log.goes_ahead and id(token) not in self.retried and self.past is None
        with log.own_lock if ahead else log.lock:
            admitted = None if people is None else self._admitted(people, token.users.stop)
            if form is not None:
                entry = form.entry(token.id, users, admitted)
            else:
                entry = self._first(spend, stands, runs, token.id, users, admitted)
            if id(token) in self.retried:
                return self.retried[id(token)].spent(entry)
            if self.past is not None and self._again(token):
                return self.past.spent(entry)
            log.append(entry, ahead=ahead)
            account = log.state.accounts[entry.token]
        if form is None and runs is None and (entry.derived or is_metered(spend)):  # all is ours
            self._keep(spend, stands, entry)
        if self.observer is not None:
            self.observer.spent(token, spend)
        return account

    def _first(
        self,
        spend: Spend,
        loss: Loss,
        runs: int | None,
        token: str,
        users: tuple[int, int],
        admitted: dict[str, Any] | None,
    ) -> SpendEntry:
        opened = self._log.state.opened
        domain, noise, loss_form, derived, exact = _forms_of(spend, loss)
        return SpendEntry(
            accountant=self.id,
            token=token,
            mechanism=spend.mechanism,
            users=users,
            trust=self.trust,
            adjacency=self.adjacency,
            domain=domain,
            noise=noise,
            simulated=self.noise.simulated,
            gain=spend.gain,
            loss=loss_form,
            arithmetic=spend.arithmetic,
            derived=derived,
            calibration=spend.calibration,
            parameters=_parameters_of(spend, runs),
            interactive=spend.interactive,
            profile=spend.profile,
            exact=exact if EXACT in opened.features else None,
            admitted=admitted,
        )

    def _keep(self, spend: Spend, loss: Loss, entry: SpendEntry) -> None:
        """Makes further entries of a spend of its second one: a mechanism keeps its spend."""
        before = self._known.get(id(spend))
        again = before is not None and before[0] is spend and before[1] is loss
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(spend)] = spend, loss, SpendForm.of(entry) if again else None

    def record_functions(self, token: Token[Any], names: tuple[str, ...]) -> None:
        """User code that rows passed through."""
        log = self._log
        if self._again(token):
            return
        with log.lock:
            known = log.state.accounts[token.id].functions or {}
            if new := tuple(name for name in names if name not in known):
                log.append(FunctionsEntry(accountant=self.id, token=token.id, names=new))
            else:
                log.ledger.keep_head_again()

    def record_phase(self, token: Token[Any], stop: int) -> None:
        """Where the next phase of a spend in phases ends."""
        log = self._log
        if self.past is not None and self.past.holds(token.id):
            self.past.begun_again(token.id, stop)
            return
        if not log.state.resumable:
            log.ledger.check_own()
            return
        with log.lock:
            stream = log.state.accounts[token.id].stream
            if stream is not None and stream.phase == stop:  # it stands, without its head
                log.ledger.keep_head_again()
            else:
                log.append(PhaseEntry(accountant=self.id, token=token.id, stop=stop))

    def record_reach(self, token: Token[Any], stop: int) -> int:
        """How far a stream comes, at least ``stop``."""
        log = self._log
        if self._again(token):
            return token.users.stop
        with log.lock:
            account = log.state.accounts[token.id]
            if account.stream is None:
                return token.users.stop
            if stop <= account.stream.reach:  # it stands, and its head could not be kept
                log.ledger.keep_head_again()
                return account.stream.reach
            reach = min(account.stream.ahead(stop), token.users.stop)
            log.append(ReachEntry(accountant=self.id, token=token.id, stop=reach))
            return reach

    def record_publish(self, token: Token[Any], value: ReleasedValue) -> None:
        """A value that is about to leave a spend which stays open.

        What was begun before there were such entries only looks whether the ledger is still its.
        """
        log = self._log
        if not log.state.resumable:
            log.ledger.check_own()
            if token.id in self.values:
                self.values[token.id].append(value)
            return
        with log.lock:
            entry = PublishEntry(
                accountant=self.id, token=token.id, digest=value.digest, upto=value.upto
            )
            log.append(entry, value)

    def record_retire(
        self,
        token: Token[Any],
        outcome: Outcome,
        digest: str | None,
        value: ReleasedValue | None = None,
    ) -> None:
        """How a token ended, with the value that leaves then."""
        log, people = self._log, self.people
        if self._again(token):
            return
        ahead = log.goes_ahead
        with log.own_lock if ahead else log.lock:
            kept = value if log.state.resumable else None
            fields: dict[str, Any] = {
                "accountant": self.id,
                "entry": "retire",
                "token": token.id,
                "outcome": outcome,
                "digest": digest,
                "admitted": None if people is None else self._admitted(people, None),
                "value": None if kept is None else {"digest": kept.digest, "upto": kept.upto},
            }
            entry = made(RetireEntry, fields)
            log.append(entry, kept, ahead=ahead)
            if value is not None and kept is None and token.id in self.values:
                self.values[token.id].append(value)

    def _again(self, token: Token[Any]) -> bool:
        """Whether a token was issued before, so that all about it stands in the ledger.

        Others can be out at that time, and what they do is written as always.
        """
        if id(token) in self.retried:
            return True
        return self.past is not None and self.past.holds(token.id)

    def _admitted(self, people: People, stop: int | None) -> dict[str, Any] | None:
        """Up to where the registry must know of visits at least, which `resume` asks of it.

        ``stop``: behind the slots of a token that is being spent, which on a timetable are over;
        where the registry's clock is then may follow from who came last.
        """
        if people.rule.clock == "arrivals":
            return {"clock": people.clock}
        return None if stop is None else {"clock": max(stop, self._log.state.admitted)}
