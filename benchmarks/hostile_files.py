"""Mutates what commands read: each must end with an exit code, in bounded time, and no traceback.

    python benchmarks/hostile_files.py [--files 4000] [--seed 0]

Mutated are a ledger file with values, its head and its export, a certificate, a checkpoint, a
configuration of a service and settings of a run: bits, bytes, pages, lengths, JSON tokens, rows,
whole tables, nesting; and in place of each a pipe, a device, a folder and a link to itself.  One of
the commands that read it is given each.  Says how often each exit code came, and the slowest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant
from privlearn.cli.main import app
from privlearn.errors import PrivlearnError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

Rng = np.random.Generator
Change = Callable[[Path, Rng], None]
USERS = range(4)
SQL = [
    "DROP TABLE released", "DELETE FROM released", "UPDATE released SET value = zeroblob(9)",
    "UPDATE released SET digest = char(0, 65)", "UPDATE released SET value = x'5b5b5b5b'",
    "UPDATE entries SET entry = replace(entry, 'digest\":\"', 'digest\":\"\\u0000')",
    "UPDATE entries SET entry = replace(entry, 'digest\":\"', 'digest\":\"../')",
    "UPDATE entries SET entry = replace(entry, '\"at\":\"20', '\"at\":\"99')",
    "UPDATE entries SET hash = substr(hash, 2)", "UPDATE entries SET seq = 9e15 WHERE seq = 3",
    "DELETE FROM entries WHERE seq = 2", "DROP TABLE entries", "VACUUM", "PRAGMA encoding",
]  # fmt: skip
TOKENS = [b"[" * 5000, b"{" * 5000, b"\0", b"1e999", b"9" * 5000, b"\xff\xfe", b'""', b"null", b"]"]


def bits(path: Path, rng: Rng) -> None:
    """Some bytes become others."""
    content = bytearray(path.read_bytes())
    for at in rng.integers(len(content), size=int(rng.integers(1, 9))):
        content[at] = (content[at] ^ 1 << int(rng.integers(8)), 0, 255)[rng.integers(3)]
    path.write_bytes(content)


def blocks(path: Path, rng: Rng) -> None:
    """A block of zeros, or of another place of the file."""
    content = bytearray(path.read_bytes())
    size = int(rng.choice([512, 4096]))
    at, other = (int(each) * size for each in rng.integers(len(content) // size + 1, size=2))
    content[at : at + size] = content[other : other + size] if rng.random() < 0.5 else bytes(size)
    path.write_bytes(content)


def lengths(path: Path, rng: Rng) -> None:
    """Cut, or longer."""
    content, at = path.read_bytes(), int(rng.integers(path.stat().st_size))
    path.write_bytes(content[:at] if rng.random() < 0.6 else content[:at] + content)


def tokens(path: Path, rng: Rng) -> None:
    """Something that no parser expects, where something else stood."""
    content, at = path.read_bytes(), int(rng.integers(path.stat().st_size))
    path.write_bytes(content[:at] + TOKENS[rng.integers(len(TOKENS))] + content[at + 4 :])


def sql(path: Path, rng: Rng) -> None:
    """Other rows, or other tables."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection:
        connection.execute(SQL[rng.integers(len(SQL))])
        connection.commit()


def no_file(path: Path, rng: Rng) -> None:
    """A pipe, a device, a folder, a link to itself or nothing."""
    path.unlink()
    match rng.integers(5):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to("/dev/zero")
        case 2:
            path.mkdir()
        case 3:
            path.symlink_to(path.name)


def make_seeds(folder: Path) -> dict[str, list[list[str]]]:
    """Honest files in a folder, and the commands that read each."""
    ledger = folder / "ledger.db"
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
    with Ledger.create(ledger) as book:
        account = CentralAccountant(ZCDP(1), users=USERS, ledger=book)
        for _ in range(12):
            token = account.issue(mechanism.loss(), users=USERS, label="sum")
            mechanism.release(Rows.seal(np.ones((4, 2)), users=USERS), token)
    names = {
        name: str(folder / name)
        for name in ("ledger.db", "ledger.jsonl", "k", "c", "check", "service.toml", "run.toml")
    }
    told = names["ledger.db"]
    for command in (
        ["key", "new", names["k"], "--name", "example.com/k"],
        ["certify", told, "--key", names["k"], "--out", names["c"]],
        ["ledger", "checkpoint", told, "--key", names["k"], "--out", names["check"]],
        ["ledger", "export", told, names["ledger.jsonl"]],
    ):
        assert CliRunner().invoke(app, command).exit_code == 0, command
    (folder / "service.toml").write_text('[learner]\nname = "cars"\n[http]\nport = 8000\n')
    (folder / "run.toml").write_text('data = "table.csv"\nbudget = "rho=1"\n')
    public = f"{names['k']}.pub"
    copy, note = str(folder / "out"), ["--key", public]
    on_ledger = [
        ["audit", told], ["audit", told, "--json"], ["ledger", "backup", told, copy],
        ["ledger", "export", told, copy], ["verify", names["c"], told],
        ["ledger", "checkpoint", told, "--key", names["k"]], ["audit", "diff", told, told],
    ]  # fmt: skip
    export = names["ledger.jsonl"]
    return {
        "ledger.db": on_ledger,
        "ledger.db.head": [["audit", told], ["ledger", "backup", told, copy]],
        "ledger.jsonl": [["audit", export], ["verify", names["c"], export]],
        "c": [["verify", names["c"]], ["verify", names["c"], told, *note]],
        "check": [
            ["verify", names["check"], told, *note],
            ["ledger", "consistency", told, "--to", names["check"], *note],
        ],
        "service.toml": [["access", "list", names["service.toml"]]],
        "run.toml": [["run", "tofw", "--config", names["run.toml"], "--out", copy]],
        "k.pub": [["verify", names["c"], told, *note], ["key", "show", public]],
    }


def opened(ledger: Path) -> None:
    """Opens a ledger for writing, which may refuse it."""
    with suppress(PrivlearnError):
        Ledger.open(ledger).close()


def tried(
    folder: Path, seeds: Path, number: int, seed: int, commands: dict[str, list[list[str]]]
) -> tuple[str, str, int]:
    """Mutates one file, and has one command read it: file, command and exit code."""
    rng = np.random.default_rng([seed, number])
    shutil.rmtree(folder)
    shutil.copytree(seeds, folder)
    name = sorted(commands)[rng.integers(len(commands))] if rng.random() < 0.5 else "ledger.db"
    changes: list[Change] = [bits, blocks, lengths, tokens, *[sql] * (name == "ledger.db") * 3]
    change = no_file if rng.random() < 0.05 else changes[rng.integers(len(changes))]
    change(folder / name, rng)
    command = commands[name][rng.integers(len(commands[name]))]
    found = CliRunner().invoke(app, command)
    error = found.exception
    if isinstance(error, PrivlearnError | ValueError | OverflowError | OSError):
        error = None  # `main` makes one line of these
    if error is not None and not isinstance(error, SystemExit):
        raise AssertionError(
            f"mutation {number}: {change.__name__} of {name}: {command}"
        ) from error
    if name.startswith("ledger.db"):
        opened(folder / "ledger.db")
    return name, command[0], found.exit_code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    counts, faults = Counter[tuple[str, str, int]](), 0
    slowest = (0.0, 0)
    with tempfile.TemporaryDirectory() as name:
        seeds, work = Path(name, "seeds"), Path(name, "work")
        work.mkdir()
        commands = make_seeds(work)
        shutil.copytree(work, seeds)
        for number in range(asked.files):
            start = time.perf_counter()
            try:
                counts[tried(work, seeds, number, asked.seed, commands)] += 1
            except Exception as error:
                faults += 1
                print(f"{error}: {error.__cause__!r}"[:300])
            slowest = max(slowest, (time.perf_counter() - start, number))
    for told, count in sorted(counts.items()):
        print(*told, count)
    print(f"{asked.files} mutations, {faults} faults; slowest {slowest[0]:.2f} s ({slowest[1]})")


if __name__ == "__main__":
    main()
