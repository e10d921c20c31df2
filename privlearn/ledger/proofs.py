"""Proofs over the Merkle tree of a ledger's entry hashes (RFC 6962, section 2.1).

A proof is made in one pass over the entries, in memory of the logarithm of their number, and
verified without any entry.  Leaves are the hashes of entries, 32 bytes each, as `MerkleTree` has
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from privlearn.ledger.chain import Chain, MerkleTree
from privlearn.ledger.reader import iterate_records

MOST_HASHES = 64
"""Of a proof: more stand in none, as sizes are below 2^63."""


@dataclass(frozen=True, slots=True)
class TreeHead:
    """What the first ``size`` entries of a ledger are: the last hash and the root, in hexadecimal.

    ``first`` is the hash of the first entry; empty if there is none.
    """

    size: int
    head: str
    root: str
    first: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A ledger as its chain says, and how it stood after some number of entries."""

    whole: TreeHead
    earlier: TreeHead | None
    """None where it has fewer entries."""
    problems: list[str]
    """The first hundred of what is wrong with the chain."""


def measure(path: str | os.PathLike[str], at: int | None = None) -> Measured:
    """Follows the chain of a ledger file or export once.

    Args:
        at: how it stood after so many entries is told, too, for a caller who compares the head;
            else a file whose log is missing is refused.

    Raises:
        LedgerUnreadableError, LedgerSchemaError, LedgerFeatureError: as `iterate_records`.
    """
    chain, first, problems = Chain(), "", list[str]()
    earlier = _tree_head(chain, "") if at == 0 else None
    for record in iterate_records(path, vouched=at is not None):
        problems += chain.add(record)
        del problems[100:]
        first = first or chain.head
        if chain.tree.size == at:
            earlier = _tree_head(chain, first)
    return Measured(_tree_head(chain, first), earlier, problems)


def _tree_head(chain: Chain, first: str) -> TreeHead:
    return TreeHead(chain.tree.size, chain.head, chain.root, first)


def entry_hashes(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The leaves of a ledger whose chain is whole.

    Raises:
        LedgerUnreadableError, LedgerSchemaError, LedgerFeatureError: as `iterate_records`.
    """
    for record in iterate_records(path, vouched=True):
        yield bytes.fromhex(record.hash)


def consistency_proof(leaves: Iterable[bytes], old: int, new: int) -> list[bytes]:
    """Proof that a tree of ``new`` leaves continues that of its first ``old`` (section 2.1.2).

    It is empty for ``old`` 0 and for equal sizes.

    Raises:
        ValueError: ``old`` is above ``new``, or there are fewer leaves.
    """
    if not 0 <= old <= new:
        raise ValueError(f"old = {old!r}: must lie in 0..{new}, the size of the newer tree")
    return _roots(leaves, _consistency_ranges(old, new) if old else [])


def inclusion_proof(leaves: Iterable[bytes], index: int, size: int) -> list[bytes]:
    """Proof that a leaf stands at ``index`` in a tree of ``size`` leaves (section 2.1.1).

    Raises:
        ValueError: ``index`` is not below ``size``, or there are fewer leaves.
    """
    if not 0 <= index < size:
        raise ValueError(f"index = {index!r}: must lie in 0..{size - 1}")
    return _roots(leaves, _inclusion_ranges(index, size))


def _consistency_ranges(old: int, new: int) -> list[range]:
    """Of which leaves the roots stand in a proof, in its order; they do not overlap."""
    start, stop, left, shown = 0, new, old, list[range]()
    while left != stop - start:
        middle = start + _left(stop - start)
        if left <= middle - start:
            shown.append(range(middle, stop))
            stop = middle
        else:
            shown.append(range(start, middle))
            left -= middle - start
            start = middle
    if start:  # else the root over them is the old one, which the verifier has
        shown.append(range(start, stop))
    return shown[::-1]


def _inclusion_ranges(index: int, size: int) -> list[range]:
    start, stop, shown = 0, size, list[range]()
    while stop - start > 1:
        middle = start + _left(stop - start)
        if index < middle:
            shown.append(range(middle, stop))
            stop = middle
        else:
            shown.append(range(start, middle))
            start = middle
    return shown[::-1]


def _left(size: int) -> int:
    """How many leaves are left of the root: the largest power of two below ``size``."""
    return 1 << (size - 1).bit_length() - 1


def _roots(leaves: Iterable[bytes], ranges: Sequence[range]) -> list[bytes]:
    trees = {part: MerkleTree() for part in ranges}
    wanted = sorted(ranges, key=lambda part: part.start)
    for number, leaf in enumerate(leaves if wanted else ()):
        if number >= wanted[0].stop:
            del wanted[0]
            if not wanted:
                break
        if number >= wanted[0].start:
            trees[wanted[0]].add(leaf)
    if any(tree.size != len(part) for part, tree in trees.items()):
        raise ValueError("there are fewer leaves than the proof is about")
    return [bytes.fromhex(trees[part].root) for part in ranges]


def consistent(
    old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether a proof shows that one tree continues the other (RFC 9162, section 2.1.4.2).

    Any tree continues the empty one, of which nothing but its size is looked at.
    """
    if not 0 <= old <= new or any(len(one) != 32 for one in (old_root, new_root, *proof)):
        return False
    if old == new:
        return not proof and old_root == new_root
    if old == 0:
        return not proof
    path = list(proof) if old & (old - 1) else [old_root, *proof]
    if not path:
        return False
    low, high = old - 1, new - 1
    while low & 1:
        low, high = low >> 1, high >> 1
    before = after = path[0]
    for node in path[1:]:
        if high == 0:
            return False
        if low & 1 or low == high:
            before, after = _node(node, before), _node(node, after)
            while not low & 1 and low:
                low, high = low >> 1, high >> 1
        else:
            after = _node(after, node)
        low, high = low >> 1, high >> 1
    return high == 0 and before == old_root and after == new_root


def included(leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether a proof shows a leaf at its place (RFC 9162, section 2.1.3.2)."""
    if not 0 <= index < size or any(len(one) != 32 for one in (root, *proof)):
        return False
    low, high = index, size - 1
    found = sha256(b"\0" + leaf).digest()
    for node in proof:
        if high == 0:
            return False
        if low & 1 or low == high:
            found = _node(node, found)
            while not low & 1 and low:
                low, high = low >> 1, high >> 1
        else:
            found = _node(found, node)
        low, high = low >> 1, high >> 1
    return high == 0 and found == root


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()
