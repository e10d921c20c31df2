"""What clients attest of their messages, and what a server made of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from privlearn.errors import AdjacencyError, BudgetError, LedgerError, UsersError
from privlearn.ledger.entries import AttestEntry, OpenEntry, SumsEntry


@dataclass(slots=True)
class Summed:
    """How far a server came with the messages of one label."""

    entries: int = 0
    upto: int = 0
    heard: int = 0


@final
class Claims:
    """The attestations of one account, and the sums of what was attested.

    Attributes:
        attested: all of them, in order.
        summed: what a server made of messages, by their label.
    """

    def __init__(self) -> None:
        self.attested: list[AttestEntry] = []
        self.summed: dict[str, Summed] = {}

    @staticmethod
    def check_attest(opened: OpenEntry, entry: AttestEntry) -> None:
        """Raises unless the account takes attestations, of this relation."""
        if not opened.attested:
            raise BudgetError(
                "an attestation is no spend: it needs a local accountant with attested=True"
            )
        if entry.adjacency is not opened.adjacency:
            raise AdjacencyError(
                f"attestation for {entry.adjacency.value}: the accountant counts "
                f"{opened.adjacency.value}"
            )

    def check_sums(self, entry: SumsEntry) -> None:
        """Raises unless what stands in the ledger goes on with these sums."""
        claims = [claim for claim in self.attested if claim.label == entry.label]
        if not claims:
            raise BudgetError(f"sums of {entry.label!r}: no such messages were attested")
        done = self.summed.get(entry.label, Summed())
        if entry.number != done.entries:
            raise LedgerError(
                f"sums {entry.number} of {entry.label!r}: {done.entries} stand in the ledger; a "
                "batch counts once, and another server took this one (or this server stopped half "
                "way): resume it"
            )
        start, stop = min(c.users[0] for c in claims), max(c.users[1] for c in claims)
        if not max(done.upto, start) <= entry.upto <= stop:
            raise UsersError(
                f"sums of {entry.label!r} up to user {entry.upto}: must lie in "
                f"{max(done.upto, start)}..{stop}"
            )
        most = sum(claim.count for claim in claims)
        if done.heard + entry.heard > most:
            raise BudgetError(
                f"sums of {entry.label!r}: {done.heard + entry.heard} messages, where {most} were "
                "attested"
            )

    def record_sums(self, entry: SumsEntry) -> None:
        """Takes sums into account."""
        done = self.summed.get(entry.label, Summed())
        self.summed[entry.label] = Summed(
            done.entries + 1, max(done.upto, entry.upto), done.heard + entry.heard
        )
