"""Proofs of consistency and inclusion against the recursive definitions of RFC 6962."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import pytest

from privlearn.ledger import proofs, read_records
from privlearn.ledger.chain import MerkleTree
from privlearn.ledger.proofs import (
    consistency_proof,
    consistent,
    entry_hashes,
    included,
    inclusion_proof,
    measure,
)

MOST = 40
LEAVES = [sha256(bytes([number])).digest() for number in range(MOST)]
Verifier = Callable[[int, int, bytes, bytes, Sequence[bytes]], bool]


# Section 2.1, as it stands there ------------------------------------------------------------------


def split(size: int) -> int:
    return max(1 << power for power in range(size.bit_length()) if 1 << power < size)


@lru_cache(None)
def root(start: int, stop: int) -> bytes:
    if start == stop:
        return sha256(b"").digest()
    if stop - start == 1:
        return sha256(b"\0" + LEAVES[start]).digest()
    middle = start + split(stop - start)
    return sha256(b"\1" + root(start, middle) + root(middle, stop)).digest()


def path(index: int, start: int, stop: int) -> list[bytes]:
    if stop - start == 1:
        return []
    middle = start + split(stop - start)
    if index < middle:
        return [*path(index, start, middle), root(middle, stop)]
    return [*path(index, middle, stop), root(start, middle)]


def subproof(old: int, start: int, stop: int, whole: bool) -> list[bytes]:
    if old == stop - start:
        return [] if whole else [root(start, stop)]
    middle = start + split(stop - start)
    if start + old <= middle:
        return [*subproof(old, start, middle, whole), root(middle, stop)]
    return [*subproof(start + old - middle, middle, stop, False), root(start, middle)]


SIZES = [(old, new) for new in range(1, MOST + 1) for old in range(1, new + 1)]


def test_proofs_of_consistency_are_those_of_the_definition_and_verify() -> None:
    for old, new in SIZES:
        proof = consistency_proof(LEAVES, old, new)
        assert proof == subproof(old, 0, new, True)
        assert consistent(old, new, root(0, old), root(0, new), proof)


def test_proofs_of_inclusion_are_those_of_the_definition_and_verify() -> None:
    for size in range(1, MOST + 1):
        for index in range(size):
            proof = inclusion_proof(LEAVES, index, size)
            assert proof == path(index, 0, size)
            assert included(LEAVES[index], index, size, root(0, size), proof)
            wrong = LEAVES[(index + 1) % MOST]
            assert not included(wrong, index, size, root(0, size), proof)
            assert not included(LEAVES[index], index, size * 2, root(0, size), proof)
            assert not included(LEAVES[index], index, size, root(0, size), [*proof, wrong])


def forgeries() -> Iterator[tuple[int, int, bytes, bytes, Sequence[bytes]]]:
    """What a verifier must not take, for all pairs of sizes up to 20."""
    other = sha256(b"other").digest()
    for old, new in SIZES:
        if new > 20:
            return
        proof, before, after = consistency_proof(LEAVES, old, new), root(0, old), root(0, new)
        yield old, new, other, after, proof
        yield old, new, before, other, proof
        yield old, 2 * new, before, after, proof
        yield old, new, before, after, [*proof, other]
        yield old, new, before, after, [other, *proof]
        if old < new:
            yield new, old, after, before, proof
            yield old, new, after, before, proof
            yield old, new, before, after, proof[:-1]
            yield 0, new, before, after, proof
        for at, node in enumerate(proof):
            changed = bytes([node[0] ^ 1]) + node[1:]
            yield old, new, before, after, [*proof[:at], changed, *proof[at + 1 :]]
            yield old, new, before, after, [*proof[:at], node[:31], *proof[at + 1 :]]


def taken(verifier: Verifier) -> int:
    return sum(verifier(*forgery) for forgery in forgeries())


def test_no_forged_proof_is_taken() -> None:
    assert taken(consistent) == 0


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        ("high == 0 and before == old_root and", "high == 0 and"),
        ("before == old_root and after == new_root", "before == old_root"),
        ("return high == 0 and before", "return before"),
        ("if low & 1 or low == high:", "if low & 1:"),
    ],
)
def test_a_verifier_without_one_of_its_checks_would_be_seen(check: str, broken: str) -> None:
    source = inspect.getsource(consistent)
    assert check in source
    found = dict(vars(proofs))
    exec(source.replace(check, broken), found)
    verifier: Verifier = found["consistent"]
    right = all(
        verifier(old, new, root(0, old), root(0, new), consistency_proof(LEAVES, old, new))
        for old, new in SIZES
        if new <= 20
    )
    assert taken(verifier) > 0 or not right


# The tree of eight leaves that implementations of Certificate Transparency are tested with.
PUBLISHED = [
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
]  # fmt: skip
CONSISTENCY = {
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}


def test_published_roots_and_proofs() -> None:
    leaves = [bytes.fromhex(leaf) for leaf in PUBLISHED]
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf)
    assert tree.root == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    for (old, new), said in CONSISTENCY.items():
        assert [node.hex() for node in consistency_proof(leaves, old, new)] == said
    assert [node.hex() for node in inclusion_proof(leaves, 2, 3)] == [
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"
    ]


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"old = 3: must lie in 0\.\.2"):
        consistency_proof(LEAVES, 3, 2)
    with pytest.raises(ValueError, match=r"index = 2: must lie in 0\.\.1"):
        inclusion_proof(LEAVES, 2, 2)
    with pytest.raises(ValueError, match="fewer leaves"):
        consistency_proof(LEAVES, 3, MOST + 1)
    assert consistency_proof(LEAVES, 0, 5) == consistency_proof(LEAVES, 5, 5) == []
    assert consistent(0, 5, root(0, 0), root(0, 5), [])
    assert not consistent(0, 5, root(0, 0), root(0, 5), [root(0, 5)])
    assert not consistent(5, 5, root(0, 5), root(0, 4), [])


@pytest.mark.parametrize("name", ["format1/tofw-central.db", "format2/double-precision-closed.db"])
def test_a_ledger_is_measured_at_any_length(name: str) -> None:
    ledger = Path(__file__).parent / name
    records = read_records(ledger)
    found = measure(ledger, at=5)
    assert found.earlier is not None
    assert (found.earlier.size, found.earlier.head) == (5, records[4].hash)
    assert found.earlier.first == found.whole.first == records[0].hash
    assert found.whole.head == records[-1].hash
    assert found.problems == []
    assert measure(ledger, at=len(records) + 1).earlier is None
    empty = measure(ledger, at=0).earlier
    assert empty is not None
    assert empty.root == sha256(b"").hexdigest()
    proof = consistency_proof(entry_hashes(ledger), 5, len(records))
    roots = bytes.fromhex(found.earlier.root), bytes.fromhex(found.whole.root)
    assert consistent(5, len(records), *roots, proof)
