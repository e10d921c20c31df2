"""A shop: the service on PostgreSQL, 50 shoppers at a time, a worker killed, an upgrade, the audit.

    python examples/shop/shop.py FOLDER --postgres 'postgresql://shop@/shop?host=/run/postgresql&ledger=shop'
    python examples/shop/shop.py FOLDER --sqlite --visits 500

The simulated people of the car market come back five times each, and choose as people in the
survey did.  One in ten never answers.  After a third of the visits a worker is killed, after two
thirds the service is stopped and started again, as for an upgrade.  FOLDER is new, and keeps
everything; the same steps by hand are in docs/how-to/run-a-service.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from privlearn.accountants import audit
from privlearn.errors import ServiceError
from privlearn.learners.serving import Arrival
from privlearn.mechanisms.choice_model import NO_ITEM
from privlearn.rows import RowStore
from privlearn.runs.cars import returning_car_market
from privlearn.runs.simulated_choices import Market
from privlearn.service import AsyncClient, access

HERE = Path(__file__).parent
NEVER_ANSWERS = 0.1
THINKS = 0.02
"""Seconds at most."""


@final
class Service:
    """`privlearn serve` of a folder, as a service manager starts and stops it."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.events: list[dict[str, Any]] = []

    async def start(self, *options: str) -> None:
        """Returns when it answers."""
        words = ["-m", "privlearn.cli", "serve", *options, str(self._config)]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stderr=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read(self._process))
        before = len(self.events)
        while not {"owner-started", "worker-started"} <= {e["event"] for e in self.events[before:]}:
            if self._process.returncode is not None:
                raise SystemExit(f"the service ended with {self._process.returncode}")
            await asyncio.sleep(0.05)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            if line.startswith(b"{"):
                self.events.append(json.loads(line))
            else:
                sys.stderr.write(line.decode())

    def kill_a_worker(self) -> int:
        """As a lack of memory would; its number."""
        pid = int(next(e["pid"] for e in self.events if e["event"] == "worker-started"))
        os.kill(pid, signal.SIGKILL)
        return pid

    async def stop(self) -> None:
        """Returns when the ledger was let go of."""
        assert self._process is not None
        assert self._reading is not None
        self._process.terminate()
        code = await self._process.wait()
        await self._reading
        if code != 0:
            raise SystemExit(f"the service ended with {code}")


@final
class Shoppers:
    """The simulated people, who come one after the other, and answer when they like."""

    def __init__(self, market: Market, visits: int) -> None:
        self._market, self._visits = market, iter(range(visits))
        self._rng = np.random.default_rng(0)
        self.come = 0
        self.outcomes: Counter[str] = Counter()
        assert market.people is not None
        self._people = market.people

    async def shop(self, client: AsyncClient) -> None:
        """One browser after another, until all have come."""
        for visit in self._visits:
            self.outcomes[await self._visit(client, visit)] += 1

    async def _visit(self, client: AsyncClient, visit: int) -> str:
        features = self._market.features_of(range(visit, visit + 1))
        offer = await client.recommend(features[0], person=f"person {self._people[visit]}")
        self.come += 1
        await asyncio.sleep(THINKS * self._rng.random())
        if self._rng.random() < NEVER_ANSWERS:
            return "never answered"
        try:
            await client.observe(offer.offer, self._choice(visit, features, offer.items))
        except ServiceError as error:
            if error.code in ("closed-offer", "unknown-offer"):  # too late, or of an owner before
                return error.code
            raise
        return "answered"

    def _choice(self, visit: int, features: Any, items: tuple[int, ...]) -> int | None:
        private = np.array([[self._market.uniforms[visit], visit]])
        own = Arrival(features, np.ones(features.shape[:2]), np.zeros((1, 0)), private)
        choice = int(self._market.respond(own, np.array([items]))[0])
        return None if choice == NO_ITEM else choice


def prepare(folder: Path, postgres: str | None) -> dict[str, str]:
    """Writes configuration, keys and access tokens; the tokens by name."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: name a new folder")
    text = (HERE / "service.toml").read_text("utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        text = text.replace("port = 8350", f"port = {free.getsockname()[1]}")
    if postgres is None:
        text = text.replace('url_file = "postgres.url"', 'path = "ledger.db"')
        text = text.replace('key_file = "people.key" ', 'path = "people.db" ')
    else:
        (folder / "postgres.url").touch(mode=0o600)
        (folder / "postgres.url").write_text(postgres, "utf-8")
    (folder / "rows.key").touch(mode=0o600)
    (folder / "rows.key").write_bytes(RowStore.new_key())
    (folder / "service.toml").write_text(text, "utf-8")
    kinds = (("shop", "serve"), ("operator", "operator"))
    return {name: access.add(folder / "access.json", name, role) for name, role in kinds}


def steps(visits: int) -> Iterator[int]:
    """After how many visits something happens."""
    yield visits // 3
    yield 2 * visits // 3


async def until(reached: Callable[[], bool], shopping: asyncio.Future[Any]) -> None:
    """Returns when so many have come, or all are done."""
    while not reached() and not shopping.done():
        await asyncio.sleep(0.005)


async def run(folder: Path, postgres: str | None, at_once: int, visits: int) -> None:
    """The whole of it."""
    tokens = prepare(folder, postgres)
    config = folder / "service.toml"
    port = next(line for line in config.read_text().splitlines() if line.startswith("port"))
    url = f"http://127.0.0.1:{port.split()[-1]}"
    service = Service(config)
    await service.start("--begin")
    people = Shoppers(returning_car_market(0, persons=max(visits // 5, 1)), visits // 5 * 5)
    first, second = steps(visits)
    async with (
        AsyncClient(url, tokens["shop"], patience=60, connections=at_once) as client,
        AsyncClient(url, tokens["operator"], patience=60) as operator,
    ):
        shopping = asyncio.gather(*(people.shop(client) for _ in range(at_once)))
        await until(lambda: people.come >= first, shopping)
        print(f"after {people.come} visits: worker {service.kill_a_worker()} is killed")
        await until(lambda: people.come >= second, shopping)
        print(f"after {people.come} visits: the service is stopped for an upgrade")
        await service.stop()
        await service.start()
        status = await operator.status()
        print(f"it goes on: {status.clock} offers were made, {status.entries} ledger entries")
        await shopping
        status, budget = await operator.status(), await operator.budget()
        certificate = await operator.certificate()
    await service.stop()
    outcomes = ", ".join(f"{n} {name}" for name, n in sorted(people.outcomes.items()))
    print(f"for the operator only: of {people.come} visits {outcomes}")
    print(f"arrival indices given out: {status.clock} of {status.users}")
    print(f"epsilon at delta = {budget.delta:g}: {budget.epsilon:.3f} promised to every person")
    told = audit(folder / "ledger.db" if postgres is None else postgres)
    assert told.spends == certificate.spends
    assert status.clock >= people.come  # a retry over the upgrade may have used up a further one
    print(f"audit: {told.spends} spends, {told.lost} lost, problems: {told.problems or 'none'}")
    if told.problems:
        raise SystemExit(1)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="new or empty folder for everything")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--postgres", help="address of the ledger, as Ledger.postgres takes it")
    where.add_argument("--sqlite", action="store_true", help="a file in the folder instead")
    parser.add_argument("--shoppers", type=int, default=50, help="at a time")
    parser.add_argument("--visits", type=int, default=5_000)
    given = parser.parse_args()
    asyncio.run(run(given.folder, given.postgres, given.shoppers, given.visits))


if __name__ == "__main__":
    main()
