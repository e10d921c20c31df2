"""What a visit costs in the registry of people, in memory, on disk, and for several processes.

``python benchmarks/people.py [--postgres ADDRESS]``; 100,000 people, visits in random order, e-mail
addresses as ids.  ADDRESS is that of a ledger which is not there yet.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import reporting

from privlearn import Ledger
from privlearn.accountants.serving import owning_ledger
from privlearn.people import People
from privlearn.values.participation import Participation

Places = dict[str, People]
PEOPLE, VISITS = 100_000, 300_000
RULES = {
    "pooled": Participation(2, pooled=True),
    "apart": Participation(8, apart=128),
    "per batch": Participation(4, per_batch=1),
}
CALLS = ((1, 400), (100, 100), (1_000, 30))
"""Visits in a call, and calls, after one call with all `VISITS`."""


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def visits(people: People, ids: list[str]) -> list[float]:
    """Microseconds a visit, in one large call and in smaller ones."""
    people.bind("benchmark", range(len(ids)))
    if people.rule.batched:
        people.divide(range(0, len(ids), 1_000))
    found = [seconds(partial(people.admit_visits, ids[:VISITS], range(VISITS))) / VISITS]
    for size, calls in CALLS:
        times = []
        for _ in range(calls):
            clock = people.clock or 0
            users = range(clock, clock + size)
            part = ids[users.start : users.stop]
            times.append(seconds(partial(people.admit_visits, part, users)))
        found.append(float(np.median(times)) / size)
    return [1e6 * each for each in found]


def opened_and_closed(path: Path) -> None:
    People.open(path).close()


@contextmanager
def registries(rule: Participation, folder: Path, address: str | None) -> Iterator[Places]:
    """The same rule, kept in each place."""
    with (
        People.create(folder / "people.db", rule) as file,
        People.create(folder / "owned.db", rule) as owned,
        owning_ledger(folder / "ledger.db", new=True, people=owned) as socket,
        People.connect(socket) as asked,
    ):
        places = {"memory": People.memory(rule), "file": file, "owner of the file": asked}
        if address is None:
            yield places
            return
        with (
            Ledger.postgres(f"{address}-{secrets.token_hex(4)}", "create") as ledger,
            People.postgres(ledger, "create", rule=rule, key=folder / "key") as people,
        ):
            yield {**places, "PostgreSQL": people}


def main() -> None:
    reading = argparse.ArgumentParser()
    reading.add_argument("--postgres")
    address: str | None = reading.parse_args().postgres
    rng = np.random.default_rng(17)
    total = VISITS + sum(size * calls for size, calls in CALLS)
    ids = [f"user-{i}@example.org" for i in rng.integers(0, PEOPLE, total)]
    header = [
        "us per visit",
        f"{VISITS:,} in a call",
        *(f"{size:,} in a call" if size > 1 else "one in a call" for size, _ in CALLS),
    ]
    numbers: dict[str, object] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, rule in RULES.items():
            place = Path(folder) / name
            place.mkdir()
            with registries(rule, place, address) as places:
                for where, people in places.items():
                    found = visits(people, ids)
                    rows.append([f"{name}, {where}", *(f"{each:.1f}" for each in found)])
                    numbers[f"{name}, {where}"] = found
            opened = seconds(partial(opened_and_closed, place / "people.db"))
            rows.append([f"{name}, opening the file, s", f"{opened:.2f}", *[""] * len(CALLS)])
            numbers[f"{name}, opening"] = opened
    reporting.write("people", [reporting.Table("Registry of people", header, rows)], numbers)


if __name__ == "__main__":
    main()
