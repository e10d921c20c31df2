"""What many open users cost: one select and one answer, their syncs, and the memory of open offers.

    OMP_NUM_THREADS=1 python benchmarks/offers.py [--only memory|files|open]

Rows are 10 items with 8 features.  In memory: CPU time of select and observe, the ends of batches
included, median and mean of hundreds, beside the learner's own select and observe.  With files: a
ledger, a registry of people and a store of rows; the system's syncs are counted by strace, where
there is one, in a run of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants import JointAccountant
from privlearn.learners import DPMNL, AsyncOffers, Offers, OnePassNewtonMNL
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import RowStore
from privlearn.values.participation import Participation

FEATURES = np.random.default_rng(0).normal(size=(2_000, 10, 8)) / 4
ROUNDS, AT_A_TIME = 6_000, 50


def started(kind: Any, users: int, *, folder: Path | None = None, **given: Any) -> Any:
    """A learner in memory, or over files."""
    learner = kind(n_items=10, dim=8, max_items=4, **given)
    if folder is None:
        noise = NoiseSource.simulation(0)
        return learner.start(JointAccountant(ZCDP(1), users=range(users), noise=noise))
    account = JointAccountant(
        ZCDP(1),
        users=range(users),
        ledger=Ledger.create(folder / "ledger"),
        people=People.create(folder / "people", Participation(1, pooled=True)),
    )
    return learner.start(account, store=RowStore.create(folder / "rows", RowStore.new_key()))


def each(step: Callable[[int], None], rounds: int) -> str:
    """CPU and wall time of a step."""
    found = []
    wall, cpu = time.perf_counter(), time.process_time()
    for start in range(0, rounds, 100):
        begun = time.process_time()
        for user in range(start, start + 100):
            step(user)
        found.append((time.process_time() - begun) / 100)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return (
        f"CPU median {statistics.median(found) * 1e6:.0f} µs, least {min(found) * 1e6:.0f} µs, "
        f"mean {cpu / rounds * 1e6:.0f} µs; wall mean {wall / rounds * 1e6:.0f} µs"
    )


def together(offers: Offers[Any], rounds: int, *, people: bool) -> str:
    """Coroutines, so many at a time, each of which asks and answers."""

    async def main() -> None:
        async with AsyncOffers(offers) as served:

            async def shopper(user: int) -> None:
                who = {"person": f"person {user}"} if people else {}
                offer = await served.select(FEATURES[user % 2_000], **who)
                await served.observe(offer.id, int(offer.items[0]))

            for start in range(0, rounds, AT_A_TIME):
                await asyncio.gather(*map(shopper, range(start, start + AT_A_TIME)))

    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(main())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return f"CPU {cpu / rounds * 1e6:.0f} µs, wall {wall / rounds * 1e6:.0f} µs a round"


def in_memory() -> None:
    for kind in (OnePassNewtonMNL, DPMNL):
        learner = started(kind, ROUNDS)

        def one_by_one(user: int, learner: Any = learner) -> None:
            learner.observe(int(learner.select(FEATURES[user % 2_000])[0]))

        offers = Offers(started(kind, ROUNDS))

        def offered(user: int, offers: Any = offers) -> None:
            offer = offers.select(FEATURES[user % 2_000])
            offers.observe(offer.id, int(offer.items[0]))

        print(f"{kind.__name__}, select and observe: {each(one_by_one, ROUNDS)}")
        print(f"{kind.__name__}, Offers: {each(offered, ROUNDS)}")
        asked = together(Offers(started(kind, ROUNDS), wait=AT_A_TIME), ROUNDS, people=False)
        print(f"{kind.__name__}, AsyncOffers, {AT_A_TIME} at a time: {asked}")


def over_files(folder: Path, rounds: int, *, traced: bool) -> None:
    """One after the other, and many at a time."""
    for name in ("one by one", "together"):
        (folder / name).mkdir()
        offers = Offers(started(OnePassNewtonMNL, 2 * rounds, folder=folder / name), wait=AT_A_TIME)

        def offered(user: int, offers: Any = offers) -> None:
            if traced:
                os.write(2, b"ROUND\n")
            offer = offers.select(FEATURES[user % 2_000], person=f"person {user}")
            offers.observe(offer.id, int(offer.items[0]))

        if name == "one by one":
            cost = each(offered, rounds)
        else:
            os.write(2, b"TOGETHER\n")
            cost = together(offers, rounds, people=True)
        if not traced:
            print(f"with a ledger, a registry and a store, {name}: {cost}")


def syncs(rounds: int) -> None:
    """Counts what the system is asked for in each round."""
    if shutil.which("strace") is None:
        print("no strace: syncs were not counted")
        return
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        traced = "--trace=fsync,fdatasync,sync_file_range,sync,syncfs,msync,write"
        python = [sys.executable, __file__, "--traced", folder, "--rounds", str(rounds)]
        subprocess.run(
            ["strace", "-f", "-qq", "-o", str(said), traced, *python],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        single, _, many = said.read_text().partition('"TOGETHER')
    found = sorted(len(re.findall(r"sync\(", part)) for part in single.split('"ROUND')[1:-1])
    p99 = found[int(0.99 * len(found))]
    print(
        f"syncs of a select and an answer, {len(found)} rounds: median {found[len(found) // 2]}, "
        f"p99 {p99}, most {found[-1]}: {dict(Counter(found))}"
    )
    print(
        f"together, {AT_A_TIME} at a time: {len(re.findall(r'sync[(]', many)) / rounds:.2f} a round"
    )


def resident() -> float:
    """MB of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def many_open(count: int = 100_000) -> None:
    offers = Offers(started(OnePassNewtonMNL, 2 * count, first_batch=count + 1))
    for _ in range(1_000):
        offers.select(FEATURES[0])
    before = resident()
    ids = [offers.select(FEATURES[user % 2_000]).id for user in range(count - 1_000)]
    made = resident() - before
    ids.clear()
    print(f"{count:,} open offers: {made:.0f} MB, with their ids in a list of the caller's")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("memory", "files", "open"))
    parser.add_argument("--rounds", type=int, default=1_500)
    parser.add_argument("--traced", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.traced:
        over_files(Path(given.traced), given.rounds, traced=True)
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if given.only in (None, "open"):
        many_open()
    if given.only in (None, "memory"):
        in_memory()
    if given.only in (None, "files"):
        with tempfile.TemporaryDirectory() as folder:
            over_files(Path(folder), given.rounds, traced=False)
        syncs(given.rounds)


if __name__ == "__main__":
    main()
