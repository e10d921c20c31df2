"""Reads mutated ledgers of every kind: none may crash, hang or exhaust an audit.

    python benchmarks/ledger_fuzz.py [--files 100000] [--seed 0]

Mutated are database files and exports of both formats: bits, bytes, pages, lines, lengths, JSON
tokens; and bodies whose chain is then rewritten, so that hostile values reach the accounting.  Says
how often each verdict was given, the slowest audit and the largest memory of the process.
"""

from __future__ import annotations

import argparse
import copy
import resource
import sqlite3
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant, audit
from privlearn.contract.protocols import Plan
from privlearn.errors import LedgerError
from privlearn.ledger import Ledger, read_records, write_export
from privlearn.ledger.chain import chained
from privlearn.losses import BoundedRangeLoss, FailingLoss, GaussianLoss, LaplaceLoss, PureLoss
from privlearn.losses.budgets import ZCDP, ApproxDP
from privlearn.mechanisms import NoisySum, PhaseSum, PrefixSum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, GradientHessian, OneOf

Rng = np.random.Generator
TOKENS = [
    b"null", b"true", b"-1", b"0", b"9007199254740992", b"1e400", b"1e308", b"NaN", b'""', b'"x"',
    b'"1e99999999"', b'"1e-99999999"', b'"1/0"', b'"' + b"9" * 500 + b'"', b"[]", b"{}",
    b"[" * 500, b"[" * 70 + b"]" * 70, b'{"a":1,"a":2}', b'"\\ud800"', b"1" * 500, b"\xff", b"\0",
    b'"1e400"', b'"1e-400"', b"2147483648", b"100000000000000000000",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, -1, 0, 2**53 - 1, 1e308, -0.5, 5e-324, "", "x", "1/0", "nan", "1e400", "1e-400",
    "1e99999999", "-1", [], [[]], [3, 1], [0, 2**53 - 1], {}, {"kind": "gaussian"}, {"kind": []},
    10**9, 1e20, "1e-30", "1e30", "700", "0.999999",
    {"kind": "renyi", "curve": [["2", "1"]]}, {"kind": "pure", "epsilon": "1e-300"},
]  # fmt: skip


SCHEMAS = [
    "CREATE TABLE more (a, b)",
    "CREATE INDEX i ON entries (hash)",
    "CREATE VIEW v AS SELECT * FROM entries",
    "CREATE TRIGGER t AFTER INSERT ON entries BEGIN SELECT 1; END",
    "ALTER TABLE entries ADD COLUMN more TEXT",
    "UPDATE entries SET seq = seq + 1000000 WHERE seq > 1",
    "UPDATE entries SET hash = 'x' WHERE seq = 1",
    "PRAGMA user_version = 1",
    "PRAGMA user_version = 2",
    "PRAGMA application_id = 7",
]


def make_seeds(folder: Path, format_1: Path) -> list[Path]:
    """Honest files to begin from: a small ledger and its export, one of all losses, format 1."""
    path = folder / "seed.db"
    with CentralAccountant(
        ZCDP(1), users=range(6), ledger=Ledger.create(path), noise=NoiseSource.simulation(0)
    ) as book:
        sums: list[NoisySum[Any]] = [
            NoisySum(Ball(1.0, 2), GaussianNoise(20.0)),
            NoisySum(OneOf(GradientHessian(2), 3), GaussianNoise(20.0)),
        ]
        for mechanism, users in zip(sums, (range(0, 6), range(2, 4)), strict=True):
            with book.issue(mechanism.loss(), users=users, label="sum").spend(mechanism.spend()):
                pass
        book.issue(LaplaceLoss("0.1"), users=range(6), label="spare").retire()
    seeds = [path, _going_on(folder / "streams.jsonl")]
    for source in (path, format_1):
        export = folder / f"{source.stem}.jsonl"
        write_export(export, read_records(source))
        seeds.append(export)
    planned: CentralAccountant[ZCDP] = CentralAccountant(
        ApproxDP(8, "1e-5"),
        users=range(6),
        noise=NoiseSource.simulation(0),
        failure="1e-6",
        odometer="1e-7",
        currency=ZCDP,
    )
    losses = (
        GaussianLoss("0.1"),
        LaplaceLoss("0.3"),
        BoundedRangeLoss("0.2"),
        PureLoss("0.1"),
        FailingLoss(GaussianLoss("0.1"), "1e-8"),
    )
    planned.commit([Plan(f"{i}", loss, range(6), count=3) for i, loss in enumerate(losses)])
    seeds.append(folder / "planned.jsonl")
    write_export(seeds[-1], planned.ledger.records)
    copied = folder / "format1.db"
    copied.write_bytes(format_1.read_bytes())
    return [*seeds, copied]


def _going_on(path: Path) -> Path:
    """A ledger of a learner, of streams that said how far they came, and of phases."""
    book: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(1), users=range(900), ledger=Ledger.create(path.with_suffix(".db"))
    )
    book.record_learner("Learner", {"dim": 2}, {"noise": {"std": 3.0}})
    sums = PrefixSum.calibrated(Ball(1.0, 2), ZCDP("0.3"), horizon=900)
    phases = PhaseSum.calibrated(Ball(1.0, 2), ZCDP("0.1"), horizon=900)
    book.commit(
        [
            Plan("sums", sums.loss(), range(900), 3),
            Plan("phases", phases.loss(), range(900)),
        ]
    )
    for _ in range(3):
        stream = sums.open(book.issue(sums.loss(), users=range(900), label="sums"))
        stream.append(Rows.null(range(3)))
        stream.advance(Rows.null(range(3, 300)))
    in_turn = phases.open(book.issue(phases.loss(), users=range(900), label="phases"))
    for start, stop in ((0, 5), (5, 400)):
        in_turn.begin(stop)
        in_turn.end(Rows.null(range(start, stop)))
    in_turn.begin(900)
    book.close()
    write_export(path, book.ledger.records)
    return path


def _pages(content: bytearray, rng: Rng) -> None:
    """One page over another, or zeros, or numbers in a page's header."""
    count = max(1, len(content) // 4096)
    i, j = (int(n) * 4096 for n in rng.integers(count, size=2))
    match rng.integers(3):
        case 0:
            content[i : i + 4096] = content[j : j + 4096]
        case 1:
            content[i : i + 4096] = bytes(4096)
        case _:
            at = i + int(rng.integers(0, 120))
            content[at : at + 2] = rng.bytes(2)


def _token(content: bytearray, rng: Rng) -> None:
    """A JSON value, or the space before one, becomes a hostile one."""
    places = [i for i, byte in enumerate(content) if byte in b":,["]
    if places:
        at = places[rng.integers(len(places))] + 1
        end = at
        while end < len(content) and content[end] not in b",}]\n":
            end += 1
        content[at : end if rng.random() < 0.7 else at] = TOKENS[rng.integers(len(TOKENS))]


def _bytes(content: bytearray, rng: Rng) -> None:
    for _ in range(int(rng.integers(1, 9))):
        if content:
            at = int(rng.integers(len(content)))
            content[at] = (content[at] ^ 1 << int(rng.integers(8)), 0, 255)[rng.integers(3)]


def _lengths(content: bytearray, rng: Rng) -> None:
    at = int(rng.integers(len(content)))
    if rng.random() < 0.5:
        del content[at:]
    else:
        content[at:at] = content[: int(rng.integers(len(content)))]


def _lines(content: bytearray, rng: Rng) -> None:
    lines = bytes(content).splitlines(keepends=True)
    i, j = rng.integers(len(lines), size=2)
    lines[i : i + 1] = [lines[j]] * int(rng.integers(0, 4))
    content[:] = b"".join(lines)


def _leaves(value: Any, inside: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(len(value)):
        inside.append((value, key))
        if isinstance(value[key], dict | list):
            _leaves(value[key], inside)
    return inside


def _schema(path: Path, rng: Rng) -> None:
    """What else may stand in a database."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(SCHEMAS[rng.integers(len(SCHEMAS))])
    connection.close()


def mutate(seeds: list[Path], path: Path, rng: Rng) -> Path:
    """Writes one mutated file, with the ending of what it was made from."""
    seed = seeds[rng.integers(len(seeds))]
    target = path.with_suffix(seed.suffix)
    if seed.suffix == ".jsonl" and rng.random() < 0.5:
        # what extensions hold lies in the body meanwhile, as it is changed alike
        bodies = [
            copy.deepcopy({**record.body, "ext": dict(record.ext)}) for record in read_records(seed)
        ]
        for _ in range(int(rng.integers(1, 4))):
            inside = _leaves(bodies[rng.integers(len(bodies))], [])
            holder, key = inside[rng.integers(len(inside))]
            holder[key] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
        target.unlink(missing_ok=True)  # the file before may be none that is overwritten
        extensions = {i: body.pop("ext") for i, body in enumerate(bodies)}
        write_export(target, chained(bodies, extensions))
        return target
    content = bytearray(seed.read_bytes())
    if seed.suffix == ".db" and rng.random() < 0.1:
        target.write_bytes(content)
        _schema(target, rng)
        return target
    changes = [_bytes, _lengths, _token] + ([_lines] if seed.suffix == ".jsonl" else [_pages] * 3)
    for _ in range(int(rng.integers(1, 4))):
        if content:
            changes[rng.integers(len(changes))](content, rng)
    target.write_bytes(content)
    return target


def read(path: Path) -> str:
    """The verdict; anything but a `LedgerError` is a fault of ours."""
    try:
        found = audit(path)
    except LedgerError as error:
        return type(error).__name__
    return "problems" if found.problems else "whole"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    data = Path(__file__).resolve().parents[1] / "tests" / "ledger" / "format1"
    counts: Counter[str] = Counter()
    slowest = (0.0, 0)
    with tempfile.TemporaryDirectory() as name:
        seeds = make_seeds(Path(name), data / "local-attested.db")
        for number in range(asked.files):
            path = mutate(
                seeds, Path(name) / "mutated", np.random.default_rng([asked.seed, number])
            )
            start = time.perf_counter()
            counts[read(path)] += 1
            slowest = max(slowest, (time.perf_counter() - start, number))
    print(dict(counts))
    print(f"slowest {slowest[0]:.2f} s (file {slowest[1]})")
    print(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
