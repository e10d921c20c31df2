"""Where a ledger's chain ends, and what an entry that continues it looks like."""

from __future__ import annotations

import secrets
from typing import Any, Self, final

from privlearn.ledger.canonical_json import canonical, canonical_in_order
from privlearn.ledger.chain import GENESIS, Chain, MerkleTree, Record, minute_of
from privlearn.ledger.entries import CloseEntry, Entry, IssueEntry, RetireEntry, SpendEntry
from privlearn.ledger.nonces import IssueNonces
from privlearn.ledger.spend_forms import form_of


def stored(
    entry: Entry,
) -> tuple[dict[str, Any], dict[str, Any], tuple[bytes, bytes] | None]:
    """Body and data of extensions of an entry, and their canonical JSON if it is known."""
    if isinstance(entry, SpendEntry) and (form := form_of(entry)) is not None:
        return form.body(entry), entry.ext(), form.text(entry)
    body, ext = entry.body(), entry.ext()
    if entry.__class__ not in (IssueEntry, RetireEntry):
        return body, ext, None
    return body, ext, (canonical_in_order(body), canonical(ext) if ext else b"")


@final
class Tip:
    """The end of a chain, and who continues it.

    Args:
        tree: of the hashes of all entries.
        nonces: under which tokens were issued.
        writer: who continues the chain, 16 hexadecimal digits.
        epoch: which opening of the ledger this is, from 1.

    Attributes:
        head: the last hash.
        minute: of the last entry, since 1970.
    """

    def __init__(self, tree: MerkleTree, nonces: IssueNonces, writer: str, epoch: int) -> None:
        self.tree, self.nonces, self.writer, self.epoch = tree, nonces, writer, epoch
        self.head, self.minute = GENESIS, 0

    @classmethod
    def new(cls) -> Self:
        return cls(MerkleTree(), IssueNonces(), secrets.token_hex(8), 1)

    @classmethod
    def behind(cls, chain: Chain) -> Self:
        """That of a chain which a new writer continues, in the next epoch."""
        tip = cls(chain.tree, chain.nonces, secrets.token_hex(8), chain.epoch + 1)
        tip.head, tip.minute = chain.head, minute_of(chain.minute)
        return tip

    @property
    def size(self) -> int:
        return self.tree.size

    @property
    def last(self) -> tuple[int, str] | None:
        """Position and hash of the last entry; None for none."""
        return (self.tree.size - 1, self.head) if self.tree.size else None

    def make(self, entry: Entry, minute: int, nonce: str | None) -> Record:
        """The record of the next entry."""
        # the clock may be set back, and what entries tell of time is not to contradict their order
        self.minute = max(self.minute, minute)
        body, ext, text = stored(entry)
        return Record.make(
            self.head,
            self.tree.size,
            body,
            ext=ext,
            text=text,
            writer=self.writer,
            epoch=self.epoch,
            minute=self.minute,
            root=self.tree.root if isinstance(entry, CloseEntry) else None,
            nonce=nonce,
        )

    def add(self, record: Record) -> None:
        """Continues the chain with a record of its own."""
        assert record.envelope is not None
        if record.body["entry"] == "issue":
            self.nonces.note(record.seq, record.envelope["nonce"])
        self.tree.add(bytes.fromhex(record.hash))
        self.head = record.hash
