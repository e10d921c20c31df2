"""Requests a second through `privlearn serve`, with the CPU time of every process.

A supervisor, an owner and two workers serve the shipped cars (100 items, 22 features) on a durable
ledger, with or without a registry of people and a store of rows.  The load comes from this process,
on the same cores: 50 shoppers at a time, over connections that stay open, with numbers as base64.

    python benchmarks/service.py [--shoppers 50] [--visitors 2000] [--bare] [--httpx]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from privlearn.accountants import audit
from privlearn.errors import ServiceError
from privlearn.rows.domains import Array
from privlearn.runs.cars import car_market
from privlearn.service.client import AsyncClient
from privlearn.service.example import write_example
from privlearn.service.messages import packed

_TICK = os.sysconf("SC_CLK_TCK")


class PlainClient:
    """The least that speaks HTTP: what the service costs must not drown in its load generator."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._head = port, f"Host: x\r\nAuthorization: Bearer {token}\r\n"

    async def open(self) -> PlainClient:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        head = (
            f"POST {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        told = await self._reader.readuntil(b"\r\n\r\n")
        status = int(told[9:12])
        length = 0
        for line in told.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line[15:])
        return status, await self._reader.readexactly(length) if length else b""


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def children(pid: int) -> dict[str, int]:
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        name = words[2].decode().rpartition(".")[2]
        while name in found:
            name += "'"
        found[name] = int(child)
    return found


def started(folder: Path, bare: bool) -> tuple[subprocess.Popen[bytes], int]:
    path = write_example(folder, port=0)
    text = path.read_text("utf-8").replace("requests_per_second = 500.0", "burst = 1000000")
    if bare:
        text = text[: text.index("[people]")]
    path.write_text(text, "utf-8")
    words = [sys.executable, "-m", "privlearn.cli", "serve", "--begin", str(path)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    assert process.stderr is not None
    told: dict[str, Any] = {}
    up = 0
    while up < 3:
        line = json.loads(process.stderr.readline())
        told |= line
        up += line["event"] in ("owner-started", "worker-started")
    return process, int(told["port"])


async def shop(
    port: int, token: str, market: Any, features: Array, shoppers: int, bare: bool, plain: bool
) -> list[float]:
    times: list[float] = []
    visitors = iter(range(len(features)))
    bodies = [packed(one) for one in features]

    async def visit_plainly() -> None:
        client = await PlainClient(port, token).open()
        for visitor in visitors:
            asked = {"features": bodies[visitor]}
            if not bare:
                asked["person"] = f"person {visitor % 1500}"
            start = time.perf_counter()
            status, told = await client.post("/v1/recommend", json.dumps(asked).encode())
            times.append(time.perf_counter() - start)
            assert status == 200, told
            offer = json.loads(told)
            choice = offer["items"][visitor % len(offer["items"])]
            body = json.dumps({"offer": offer["offer"], "choice": choice}).encode()
            status, told = await client.post("/v1/observe", body)
            assert status in (204, 410), told

    async def visit(client: AsyncClient) -> None:
        for visitor in visitors:
            person = {} if bare else {"person": f"person {visitor % 1500}"}
            start = time.perf_counter()
            offer = await client.recommend(features[visitor], **person)
            times.append(time.perf_counter() - start)
            try:
                await client.observe(offer.offer, offer.items[visitor % len(offer.items)])
            except ServiceError as error:
                if error.code != "closed-offer":  # with its batch, before the answer
                    raise

    if plain:
        await asyncio.gather(*(visit_plainly() for _ in range(shoppers)))
    else:
        async with AsyncClient(f"http://127.0.0.1:{port}", token) as client:
            await asyncio.gather(*(visit(client) for _ in range(shoppers)))
    return times


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--shoppers", type=int, default=50)
    options.add_argument("--visitors", type=int, default=2_000)
    options.add_argument("--bare", action="store_true", help="no registry, no store of rows")
    options.add_argument("--httpx", action="store_true", help="load from the typed client")
    chosen = options.parse_args()
    market = car_market(0, horizon=chosen.visitors)
    features = market.features_of(range(chosen.visitors))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process, port = started(folder, chosen.bare)
        token = (folder / "shop.token").read_text()
        processes = {"supervisor": process.pid, **children(process.pid)}
        before = {who: cpu_of(pid) for who, pid in processes.items()}
        mine = time.process_time()
        start = time.perf_counter()
        work = shop(port, token, market, features, chosen.shoppers, chosen.bare, not chosen.httpx)
        times = np.sort(asyncio.run(work))
        wall = time.perf_counter() - start
        mine = time.process_time() - mine
        spent = {who: cpu_of(pid) - before[who] for who, pid in processes.items()}
        process.send_signal(signal.SIGTERM)
        process.wait()
        told = audit(folder / "ledger.db")
    requests = 2 * chosen.visitors
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{requests} requests in {wall:.2f} s: {requests / wall:.0f} a second")
    for who, seconds in {**spent, "load generator": mine}.items():
        print(f"  {who:15} {seconds:6.2f} s CPU, {1e3 * seconds / requests:.3f} ms a request")
    total = sum(spent.values())
    print(
        f"service alone: {total:.2f} s CPU; two cores could do {2 * requests / total:.0f} a second"
    )
    median, p99 = 1e3 * np.quantile(times, [0.5, 0.99])
    print(f"recommend: median {median:.0f} ms, p99 {p99:.0f} ms")
    print(f"audit: {told.spends} spends, problems: {told.problems or 'none'}")


if __name__ == "__main__":
    main()
