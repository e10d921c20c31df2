"""What tokens and receipts have written of themselves: spends, reaches, values and ends."""

from __future__ import annotations

from typing import Any, final

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.replay import Replay
from privlearn.accountants.retries import FirstTry, ValuesInMemory
from privlearn.accountants.spend_forms import forms_of, parameters_of
from privlearn.contract.tokens import Outcome, RecordedToken, ReleasedValue, Spend, Token
from privlearn.ledger.entries import (
    EXACT,
    FunctionsEntry,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    SpendEntry,
)
from privlearn.losses import Loss
from privlearn.people import People


@final
class TokenEntries:
    """Writes entries of tokens, but for those that do again what stands in the ledger.

    Args:
        log: of the account.
        simulated: whether its noise is a simulation's.
        people: its registry of persons.

    Attributes:
        past: while a learner runs again over what was released before a restart.
        retried: releases that are handed out again, by identity of their tokens.
        values: what left under nonces of a ledger that keeps no values.
    """

    def __init__(self, log: AccountLog, *, simulated: bool, people: People | None) -> None:
        self._log, self._simulated, self._people = log, simulated, people
        self.past: Replay | None = None
        self.retried: dict[int, FirstTry] = {}
        self.values = ValuesInMemory()

    def spend(
        self, token: Token[Any], spend: Spend, loss: Loss, runs: int | None
    ) -> tuple[RecordedToken, bool]:
        """The token's account, with its spend on disk; and whether that was written now."""
        log = self._log
        opened = log.state.opened
        stands = log.others.as_recorded(loss, token.users)
        domain, noise, loss_form, derived = forms_of(spend, stands)
        with log.lock:
            entry = SpendEntry(
                accountant=opened.accountant,
                token=token.id,
                mechanism=spend.mechanism,
                users=(token.users.start, token.users.stop),
                trust=opened.trust,
                adjacency=opened.adjacency,
                domain=domain,
                noise=noise,
                simulated=self._simulated,
                gain=spend.gain,
                loss=loss_form,
                arithmetic=spend.arithmetic,
                derived=derived,
                calibration=spend.calibration,
                parameters=parameters_of(spend, runs),
                interactive=spend.interactive,
                profile=spend.profile,
                exact=spend.exact_form() if EXACT in opened.features else None,
                admitted=self._admitted(token.users.stop),
            )
            if id(token) in self.retried:
                return self.retried[id(token)].spent(entry), False
            if self.past is not None and self._again(token):
                return self.past.spent(entry), False
            log.append(entry)
        return log.state.accounts[entry.token], True

    def functions(self, token: Token[Any], names: tuple[str, ...]) -> None:
        """User code that rows passed through."""
        log = self._log
        with log.lock:
            if self._again(token):
                return
            known = log.state.accounts[token.id].functions or {}
            if new := tuple(name for name in names if name not in known):
                log.append(FunctionsEntry(accountant=log.id, token=token.id, names=new))
            else:
                log.ledger.keep_head_again()

    def reach(self, token: Token[Any], stop: int) -> int:
        """How far a stream comes, at least ``stop``."""
        log = self._log
        with log.lock:
            account = log.state.accounts[token.id]
            if self._again(token) or account.stream is None:
                return token.users.stop
            if stop <= account.stream.reach:  # it stands, and its head could not be kept
                log.ledger.keep_head_again()
                return account.stream.reach
            reach = min(account.stream.ahead(stop), token.users.stop)
            log.append(ReachEntry(accountant=log.id, token=token.id, stop=reach))
            return reach

    def publish(self, token: Token[Any], value: ReleasedValue) -> None:
        """A value that is about to leave a spend which stays open.

        What was begun before there were such entries only looks whether the ledger is still its.
        """
        log = self._log
        if not log.state.resumable:
            log.ledger.check_own()
            self.values.note(token.id, value)
            return
        with log.lock:
            entry = PublishEntry(
                accountant=log.id, token=token.id, digest=value.digest, upto=value.upto
            )
            log.append(entry, value)

    def retire(
        self,
        token: Token[Any],
        outcome: Outcome,
        digest: str | None,
        value: ReleasedValue | None,
    ) -> None:
        """How a token ended, with the value that leaves then."""
        log = self._log
        with log.lock:
            if self._again(token):
                return
            kept = value if log.state.resumable else None
            entry = RetireEntry(
                accountant=log.id,
                token=token.id,
                outcome=outcome,
                digest=digest,
                admitted=self._admitted(None),
                value=None if kept is None else {"digest": kept.digest, "upto": kept.upto},
            )
            log.append(entry, kept)
            if value is not None and kept is None:
                self.values.note(token.id, value)

    def _again(self, token: Token[Any]) -> bool:
        """Whether a token was issued before, so that all about it stands in the ledger.

        Others can be out at that time, and what they do is written as always.
        """
        if id(token) in self.retried:
            return True
        return self.past is not None and self.past.holds(token.id)

    def _admitted(self, stop: int | None) -> dict[str, Any] | None:
        """Up to where the registry must know of visits at least, which `resume` asks of it.

        Args:
            stop: behind the slots of a token that is being spent, which on a timetable are over.
                Where the registry's clock is then may follow from who came last.
        """
        if self._people is None:
            return None
        if self._people.rule.clock == "arrivals":
            return {"clock": self._people.clock}
        return None if stop is None else {"clock": max(stop, self._log.state.admitted)}
