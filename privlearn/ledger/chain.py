"""What a ledger hashes, and how: canonical bytes, the chain of entries and its Merkle root.

Format 2 has one SHA-256 for each entry, over the hash before and the stored bytes.  Format 1, which
is read for ever and never written, has a digest for each field; see docs/ledger.md for both.
"""

from __future__ import annotations

import calendar
import json
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, final

from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.entries import EXACT, PARTICIPATION, RESUME
from privlearn.ledger.nonces import IssueNonces

SCHEMA = 2
GENESIS = "0" * 64
MOST_BYTES = 8 * 2**20
"""Of one entry as it is stored; also of one line of an export, less its frame."""
KNOWN_FEATURES = frozenset({EXACT, PARTICIPATION, RESUME})
"""Extensions of the format that this version understands."""
TIMELESS = ("retire", "publish")
"""Entries without a minute: what leaves is computed from rows just before, for as long as they
make it take."""

_FORM_OF_MINUTE = "%Y-%m-%dT%H:%MZ"
LAST_MINUTE = calendar.timegm((2262, 1, 1, 0, 0, 0)) // 60
_NO_TIME = object()
_WRITER = re.compile(r"[0-9a-f]{16}")
_NONCE = re.compile(r"[0-9a-f]{32}")
_MINUTE = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]Z")
_HASH = re.compile(r"[0-9a-f]{64}")


@lru_cache(8)
def text_of_minute(minute: int) -> str:
    """Minutes since 1970, as entries tell them."""
    return time.strftime(_FORM_OF_MINUTE, time.gmtime(minute * 60))


@lru_cache(8)
def minute_of(text: str) -> int:
    """The inverse of `text_of_minute`; 0 for what is no minute, such as the 31st of February."""
    try:
        return calendar.timegm(time.strptime(text, _FORM_OF_MINUTE)) // 60
    except ValueError:
        return 0


@lru_cache(8)
def _texts_around(at: str | None, epoch: int, writer: str) -> tuple[tuple[bytes, bytes], bytes]:
    """Of an envelope, what stands before and behind its body, and at its end."""
    begin = b"{" if at is None else b'{"at":%b,' % canonical(at)
    return (begin + b'"body":', b',"epoch":' + canonical(epoch)), b',"writer":%b}' % canonical(
        writer
    )


def canonical_1(value: Any) -> bytes:
    """What format 1 hashes: sorted keys, no spaces, numbers as Python writes them."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def _sha256(data: bytes) -> str:
    return sha256(data).hexdigest()


def chain_hash(previous: str, data: bytes) -> str:
    """SHA-256 over the previous hash (32 bytes) and the stored bytes of an entry."""
    return _sha256(bytes.fromhex(previous) + data)


def chain_hash_1(previous: str, seq: int, digests: dict[str, str]) -> str:
    """Format 1: over the previous hash, the position and the digests of all fields."""
    return _sha256(canonical_1({"previous": previous, "seq": seq, "digests": digests}))


@dataclass(slots=True)
class Record:
    """One stored entry: its body, its envelope, the stored bytes, and the hash that chains it.

    A record of format 1 has digests of its fields and no envelope.
    """  # not frozen, which takes three times as long to make

    seq: int
    body: dict[str, Any]
    hash: str
    data: bytes = b""
    envelope: dict[str, Any] | None = None
    digests: dict[str, str] | None = None

    @property
    def format(self) -> int:
        return SCHEMA if self.digests is None else 1

    @property
    def ext(self) -> Mapping[str, Any]:
        """Data of extensions, by their names; none where they are no object, which is a problem."""
        found = None if self.envelope is None else self.envelope.get("ext")
        return found if isinstance(found, dict) else {}

    @classmethod
    def make(
        cls,
        previous: str,
        seq: int,
        body: dict[str, Any],
        *,
        ext: Mapping[str, Any] | None = None,
        writer: str = "0" * 16,
        epoch: int = 1,
        minute: int | None = None,
        root: str | None = None,
        nonce: str | None = None,
        text: tuple[bytes, bytes] | None = None,
    ) -> Record:
        """Seals ``body`` as entry number ``seq`` after the entry with hash ``previous``.

        Args:
            ext: data of extensions, by their names, if there are any.
            writer: who writes, 16 hexadecimal digits, new for every opening of the ledger.
            epoch: which opening of the ledger this is, from 1.
            minute: minutes since 1970, default now; `TIMELESS` entries tell none.
            root: of all entries before, which a ``close`` states.
            nonce: 32 lower-case hexadecimal digits that no other entry has; default, random ones.
            text: the canonical JSON of ``body`` and ``ext``, if it is known.

        Raises:
            ValueError: ``body`` is no JSON, or larger than an entry may be.
        """
        envelope: dict[str, Any] = {
            "epoch": epoch,
            "nonce": secrets.token_hex(16) if nonce is None else nonce,
            "writer": writer,
        }
        if body.get("entry") not in TIMELESS:
            envelope["at"] = text_of_minute(int(time.time() // 60) if minute is None else minute)
        if root is not None:
            envelope["root"] = root
        said, more = text or (canonical(body), canonical(ext) if ext else b"")
        before, after = _texts_around(envelope.get("at"), epoch, writer)
        data = b"".join(  # names in their order
            (
                before[0],
                said,
                before[1],
                b',"ext":%b' % more if more else b"",
                b',"nonce":' + canonical(envelope["nonce"]),
                b"" if root is None else b',"root":' + canonical(root),
                after,
            )
        )
        if ext:
            envelope["ext"] = ext
        if len(data) > MOST_BYTES:
            raise ValueError(f"an entry of {len(data)} bytes: at most {MOST_BYTES} can be stored")
        return cls(seq, body, chain_hash(previous, data), data, envelope)

    def line(self) -> bytes:
        """One line of an export, without its end: JSON that holds the stored bytes as they are."""
        if self.digests is not None:
            return canonical_1(
                {"seq": self.seq, "body": self.body, "digests": self.digests, "hash": self.hash}
            )
        return b'{"entry":' + self.data + b',"hash":"' + self.hash.encode() + b'"}'


@final
class MerkleTree:
    """The root of RFC 6962 over a growing list, in memory of the logarithm of its length."""

    def __init__(self) -> None:
        self._folded = 0
        self._peaks: list[bytes] = []
        self._leaves: list[bytes] = []
        """The last ones, fewer than `_AT_ONCE`, which are hashed together."""

    def add(self, leaf: bytes) -> None:
        """Adds a leaf: the hash of an entry, 32 bytes."""
        self._leaves.append(leaf)
        if len(self._leaves) == _AT_ONCE:
            self._add_peak(_subtree(self._leaves), self._folded // _AT_ONCE)
            self._folded += _AT_ONCE
            self._leaves = []

    @property
    def size(self) -> int:
        return self._folded + len(self._leaves)

    def _add_peak(self, node: bytes, left: int) -> None:
        while left & 1:
            node = sha256(b"\1" + self._peaks.pop() + node).digest()
            left >>= 1
        self._peaks.append(node)

    @property
    def root(self) -> str:
        """Of all leaves so far; SHA-256 of nothing for none."""
        nodes = [*self._peaks, *_peaks(self._leaves)]
        if not nodes:
            return _sha256(b"")
        node = nodes.pop()
        while nodes:
            node = sha256(b"\1" + nodes.pop() + node).digest()
        return node.hex()


_AT_ONCE = 16
"""Leaves of a subtree; a power of two.  A root, which each ``close`` asks for, hashes fewer."""


def _subtree(leaves: list[bytes]) -> bytes:
    """The root over a number of leaves that is a power of two."""
    nodes = [sha256(b"\0" + leaf).digest() for leaf in leaves]
    while len(nodes) > 1:
        pairs = iter(nodes)
        nodes = [sha256(b"\1" + a + b).digest() for a, b in zip(pairs, pairs, strict=True)]
    return nodes[0]


def _peaks(leaves: list[bytes]) -> Iterator[bytes]:
    at = 0
    while at < len(leaves):
        size = 1 << (len(leaves) - at).bit_length() - 1
        yield _subtree(leaves[at : at + size])
        at += size


@final
class Chain:
    """Follows a chain entry by entry, and says what is wrong with each.

    It goes on from what an entry says of itself, so one fault is one problem.

    Args:
        sought: a hash that is looked for.

    Attributes:
        sought_at: after how many entries the chain had that hash, the last time; None for never.
        cut: whether entries are missing, or were moved.
    """

    def __init__(self, sought: str | None = None) -> None:
        self._sought = sought
        self.sought_at = 0 if sought == GENESIS else None
        self.cut = False
        self.head, self._leaf = GENESIS, bytes.fromhex(GENESIS)
        self.size = 0
        self.tree = MerkleTree()
        self.epoch, self.writer, self.minute = 0, "", ""
        self.nonces = IssueNonces()
        self._declared: dict[str, frozenset[str]] = {}
        self._whole = True

    @property
    def root(self) -> str:
        """The Merkle root of the hashes of all entries so far."""
        return self.tree.root

    def add(self, record: Record) -> list[str]:
        """What is wrong with the next record, in one line; empty if it continues the chain."""
        problems: list[str] = []
        leaf = None
        cut = record.seq != self.size
        if cut:
            self.cut, self._whole = True, False
            problems.append(f"stands at position {self.size}; entries were cut or moved")
        if record.digests is None:
            leaf = sha256(self._leaf + record.data).digest()
            if leaf.hex() != record.hash:
                leaf = None
                if not cut:
                    problems.append(
                        "its hash does not fit; it was changed, or entries before it were "
                        "changed, cut or moved"
                    )
                    self._whole = False
            self._check_envelope(record, problems)
        else:
            problems += _format_1(record)
            if chain_hash_1(self.head, record.seq, record.digests) != record.hash and not cut:
                problems.append("its hash does not fit; it or the entry before was changed")
        self.head = record.hash
        if leaf is None:
            # in format 1 a hash may have any form, which is then a problem
            self.head = record.hash if _HASH.fullmatch(record.hash) else GENESIS
            leaf = bytes.fromhex(self.head)
        self._leaf = leaf
        self.tree.add(leaf)
        self.size = record.seq + 1
        if self.head == self._sought:
            self.sought_at = self.tree.size
        if problems:
            self._whole = False
            return [f"entry {record.seq}: {'; '.join(problems)}"]  # one fault is one problem
        return problems

    def end(self, head: str | None = None) -> list[str]:
        """What is wrong with all entries together, and the end, if its hash was kept elsewhere."""
        problems = [
            f"entry {seq}: its nonce issued a token before, in entry {before}; a retry would not "
            "know which of the two it is of"
            for before, seq in self.nonces.repeated()
        ]
        if head is not None and self.head != head:
            problems.append(f"head is {self.head}, not {head}: the ledger was cut or rewritten")
        return problems

    def _check_envelope(self, record: Record, problems: list[str]) -> None:
        envelope, body = record.envelope or {}, record.body
        epoch, writer = envelope.get("epoch"), envelope.get("writer")
        if self.epoch and epoch == self.epoch and writer == self.writer:
            # as before, and of the right form unless it is 1.0 or true
            if epoch.__class__ is not int:
                problems.append("its writer or epoch is of a wrong form")
        elif (
            not isinstance(epoch, int)
            or isinstance(epoch, bool)
            or epoch < 1
            or not isinstance(writer, str)
            or not _WRITER.fullmatch(writer)
        ):
            problems.append("its writer or epoch is of a wrong form")
        elif epoch < self.epoch or (epoch == self.epoch) is not (writer == self.writer):
            problems.append(
                f"writer {writer} in epoch {epoch} after writer {self.writer} in epoch "
                f"{self.epoch}: every opening of a ledger is a new writer in a later epoch"
            )
        else:
            self.epoch, self.writer = epoch, writer
        kind, nonce = body.get("entry"), envelope.get("nonce")
        if isinstance(nonce, str) and _NONCE.fullmatch(nonce):
            if kind == "issue":
                self.nonces.note(record.seq, nonce)
        else:
            problems.append("its nonce is not one of 32 hexadecimal digits")
        minute = envelope.get("at", _NO_TIME)
        if kind in TIMELESS:
            if minute is not _NO_TIME:
                problems.append("it must not tell its time")
        elif self.minute != minute or not minute:
            if _matches(_MINUTE, minute):
                self.minute = minute
            else:
                problems.append("it must tell its minute")
        if ("root" in envelope) is not (kind == "close"):
            problems.append("a close states the Merkle root of what stands before it, others none")
        elif kind == "close" and self._whole and envelope["root"] != self.root:
            problems.append("its Merkle root is not that of the entries before it")
        if kind == "open":
            features = body.get("features")
            names = features if isinstance(features, dict) else {}
            self._declared.setdefault(str(body.get("accountant")), frozenset(names))
        if "ext" in envelope:
            ext = envelope["ext"]
            # of an accountant that was not opened, which is a problem by itself, nothing is known
            declared = self._declared.get(str(body.get("accountant")))
            if not isinstance(ext, dict) or not (declared is None or declared.issuperset(ext)):
                problems.append("it holds data of extensions that its accountant did not declare")


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _format_1(record: Record) -> list[str]:
    assert record.digests is not None
    found = {name: _sha256(canonical_1(value)) for name, value in record.body.items()}
    problems = [
        f"field {name!r} was changed"
        for name in sorted(found.keys() | record.digests.keys())
        if found.get(name) != record.digests.get(name)
    ]
    if record.body.get("entry") == "functions" or "features" in record.body:
        problems.append("format 1 has no functions and no features; they came with format 2")
    return problems


def chain_problems(records: Iterable[Record], head: str | None = None) -> list[str]:
    """What is wrong with the chain, in words; empty if it is whole and ends at ``head``."""
    chain = Chain()
    problems = [problem for record in records for problem in chain.add(record)]
    return problems + chain.end(head)


def chained(
    bodies: Iterable[dict[str, Any]], extensions: Mapping[int, Mapping[str, Any]] | None = None
) -> list[Record]:
    """The chain that one writer leaves who writes these bodies, right or wrong.

    ``extensions``: data of extensions, by the position of their entry.
    """
    records: list[Record] = []
    tree, head = MerkleTree(), GENESIS
    for seq, body in enumerate(bodies):
        root = tree.root if body.get("entry") == "close" else None
        records.append(Record.make(head, seq, body, ext=(extensions or {}).get(seq), root=root))
        head = records[-1].hash
        tree.add(bytes.fromhex(head))
    return records
