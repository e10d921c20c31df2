"""Whether the verifier of docs/verify_ledger.py and ours agree, on random ledgers and mutations.

    python benchmarks/ledger_agreement.py [--ledgers 10000] [--seed 0]

Ledgers are written by a central accountant; some are changed as somebody changes a file (bytes,
lines), some as somebody who rewrites the whole chain.  Both must say the same of each: unreadable,
an unknown extension, problems or none; and the same head and root.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import certify
from privlearn.budgets import ZCDP
from privlearn.domains import Ball
from privlearn.errors import InsufficientBudgetError, LedgerError, LedgerFeatureError
from privlearn.ledger import Ledger, Record, read_records, write_export
from privlearn.ledger.chain import chained
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource

Body = dict[str, Any]
Rng = np.random.Generator
USERS = range(12)


def verifier() -> ModuleType:
    """docs/verify_ledger.py, which no package holds."""
    path = Path(__file__).resolve().parents[1] / "docs" / "verify_ledger.py"
    spec = importlib.util.spec_from_file_location("verify_ledger", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def honest(rng: Rng) -> list[Record]:
    """What an accountant leaves that did a few things."""
    book: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP("0.2"), users=USERS, ledger=Ledger.memory(), noise=NoiseSource.simulation(0)
    )
    for _ in range(rng.integers(0, 9)):
        first, stop = sorted(rng.choice(len(USERS) + 1, 2, replace=False).tolist())
        mechanism = NoisySum(
            Ball(float(rng.choice([0.5, 1.0])), 2), GaussianNoise(float(rng.choice([8, 20])))
        )
        price = mechanism.loss() if rng.random() < 0.6 else ZCDP("0.04")
        try:
            token = book.issue(price, users=range(first, stop), label=f"sum {rng.integers(3)}")
        except InsufficientBudgetError:
            continue
        if (fate := rng.random()) < 0.2:
            token.retire()
        elif fate < 0.9:
            with token.spend(mechanism.spend()):
                pass
    if rng.random() < 0.7:
        book.close()
    return book.ledger.records


def _set(kind: str, change: Callable[[Body], object]) -> Callable[[list[Body], Rng], object]:
    def apply(bodies: list[Body], rng: Rng) -> None:
        found = [body for body in bodies if body["entry"] == kind]
        if found:
            change(found[rng.integers(len(found))])

    return apply


def _repeat(bodies: list[Body], rng: Rng) -> None:
    at = rng.integers(len(bodies))
    bodies.insert(rng.integers(at, len(bodies)) + 1, copy.deepcopy(bodies[at]))


def _swap(bodies: list[Body], rng: Rng) -> None:
    i, j = rng.integers(len(bodies), size=2)
    bodies[i], bodies[j] = bodies[j], bodies[i]


def _forget_field(bodies: list[Body], rng: Rng) -> None:
    body = bodies[rng.integers(len(bodies))]
    body.pop(list(body)[rng.integers(len(body))])


def _add_field(bodies: list[Body], rng: Rng) -> None:
    bodies[rng.integers(len(bodies))]["extra"] = 1


LIES: tuple[Callable[[list[Body], Rng], object], ...] = (
    _repeat,
    _swap,
    _forget_field,
    _add_field,
    lambda bodies, rng: bodies.pop(rng.integers(len(bodies))),
    _set("open", lambda b: b["cap"].update(rho="0.01")),
    _set("open", lambda b: b["cap"].update(rho="1e99999999")),
    _set("open", lambda b: b["cap"].update(rho="0")),
    _set("open", lambda b: b.update(users=[0, 3])),
    _set("open", lambda b: b.update(features={"values/1": "optional"})),
    _set("open", lambda b: b.update(features={"values/1": "critical"})),
    _set("open", lambda b: b.update(features={"values": "optional"})),
    _set("open", lambda b: b.update(features={"values/1": "maybe"})),
    _set("open", lambda b: b.update(adjacency="zero-out")),
    _set("issue", lambda b: b["budget"].update(rho="0.5")),
    _set("issue", lambda b: b["budget"].update(rho="0.0001")),
    _set("issue", lambda b: b["budget"].update(kind="pure")),
    _set("issue", lambda b: b.update(users=[3, 3])),
    _set("issue", lambda b: b.update(users=[0, 12])),
    _set("issue", lambda b: b.update(token="another")),
    _set("spend", lambda b: b["loss"].update(mu_squared="0.0001")),
    _set("spend", lambda b: b["loss"].update(mu_squared="9")),
    _set("spend", lambda b: b["noise"].update(std=1)),
    _set("spend", lambda b: b["noise"].update(std=500)),
    _set("spend", lambda b: b["domain"].update(radius=40)),
    _set("spend", lambda b: b.update(gain=3)),
    _set("spend", lambda b: b.update(trust="joint")),
    _set("spend", lambda b: b.update(simulated=False)),
    _set("spend", lambda b: b.update(users=[1, 2])),
    _set("spend", lambda b: b.update(parameters="none")),
    _set("retire", lambda b: b.update(outcome="unused")),
    _set("retire", lambda b: b.update(outcome="uncovered")),
    _set("retire", lambda b: b.update(outcome="gone")),
    _set("retire", lambda b: b.update(digest="x")),
    _set("close", lambda b: b.update(accountant="mallory")),
)


def _changed_bytes(content: bytes, rng: Rng) -> bytes:
    changed = bytearray(content)
    match rng.integers(5):
        case 0:
            changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
        case 1:
            del changed[rng.integers(len(changed)) :]
        case kind:
            lines = content.splitlines(keepends=True)
            i, j = rng.integers(len(lines), size=2)
            if kind == 2:
                del lines[i]
            elif kind == 3:
                lines.insert(j, lines[i])
            else:
                lines[i], lines[j] = lines[j], lines[i]
            return b"".join(lines)
    return bytes(changed)


def _changed_envelope(records: list[Record], rng: Rng) -> list[Record]:
    """Another byte in what is stored or in a hash, with everything else as it was."""
    at = rng.integers(len(records))
    data = bytearray(records[at].data)
    data[rng.integers(len(data))] = rng.choice(list(b'0a"9{,'))
    return [*records[:at], replace(records[at], data=bytes(data)), *records[at + 1 :]]


def write(path: Path, rng: Rng) -> str:
    """Writes a random ledger; what was done to it."""
    records = honest(rng)
    what = str(rng.choice(["honest", "bytes", "rechained", "envelope"], p=[0.2, 0.2, 0.45, 0.15]))
    if what == "rechained":
        bodies = [copy.deepcopy(record.body) for record in records]
        LIES[rng.integers(len(LIES))](bodies, rng)
        records = chained(bodies)
    if what == "envelope":
        records = _changed_envelope(records, rng)
    write_export(path, records)
    if what == "bytes":
        path.write_bytes(_changed_bytes(path.read_bytes(), rng))
    return what


def ours(path: Path) -> tuple[str, str, str]:
    """What this package says: a word, the head and the root."""
    try:
        found = certify(read_records(path))
    except LedgerFeatureError:
        return "extension", "", ""
    except LedgerError:
        return "unreadable", "", ""
    return "problems" if found.problems else "whole", found.head, found.root


def theirs(path: Path, module: ModuleType) -> tuple[str, str, str]:
    """The same of the verifier."""
    try:
        found = module.verify(path)
    except module.Unreadable as error:
        return ("extension" if error.args[1:] else "unreadable"), "", ""
    return "problems" if found["problems"] else "whole", found["head"], found["root"]


def disagreements(folder: Path, ledgers: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Where the two differ, in words, and how often each verdict was given."""
    module, counts, found = verifier(), Counter[str](), []
    for number in range(ledgers):
        path = folder / f"{number}.jsonl"
        what = write(path, np.random.default_rng([seed, number]))
        said, heard = ours(path), theirs(path, module)
        counts[f"{what}: {said[0]}"] += 1
        if said != heard:
            found.append(f"ledger {number} ({what}): {said}, the verifier {heard}")
        path.unlink()
    return found, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, counts = disagreements(Path(folder), asked.ledgers, asked.seed)
    for text, count in sorted(counts.items()):
        print(f"{text:24} {count:6}")
    print(*found, sep="\n")
    print(f"{len(found)} disagreements in {asked.ledgers} ledgers")


if __name__ == "__main__":
    main()
