"""The ledger: a hash chain of typed entries, in memory or in a file; see docs/ledger.md."""

from privlearn.ledger.backups import backup
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import (
    GENESIS,
    KNOWN_FEATURES,
    MOST_BYTES,
    SCHEMA,
    Chain,
    MerkleTree,
    Record,
    chain_hash,
    chain_problems,
)
from privlearn.ledger.exports import write_export
from privlearn.ledger.proofs import consistency_proof, consistent, included, inclusion_proof
from privlearn.ledger.reader import iterate_records, read_records
from privlearn.ledger.store import Ledger

__all__ = [
    "GENESIS",
    "KNOWN_FEATURES",
    "MOST_BYTES",
    "SCHEMA",
    "Chain",
    "Ledger",
    "MerkleTree",
    "Record",
    "backup",
    "canonical",
    "chain_hash",
    "chain_problems",
    "consistency_proof",
    "consistent",
    "included",
    "inclusion_proof",
    "iterate_records",
    "read_records",
    "write_export",
]
