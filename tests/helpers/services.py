"""A small service in this process: configuration, desk, and a client that needs no socket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2 as httpx
import numpy as np

from privlearn.rows.domains import Array
from privlearn.service import access
from privlearn.service.access import AccessTokens
from privlearn.service.app import create_app
from privlearn.service.books import Books, open_books
from privlearn.service.config import ServiceConfig, read_config
from privlearn.service.desk import Desk

T = TypeVar("T")

N_ITEMS, DIM, SHOWN, USERS, FIRST_BATCH = 4, 2, 2, 40, 10
N_ARMS = 3

TEXT = f"""
[http]
reply_step = "1 ms"
drain = "1 ms"
port = 0
workers = 1

[access]
requests_per_second = 1e6
burst = 1000000

[guarantee]
budget = "rho=1"
users = {USERS}
simulate_noise = 1

[learner]
name = "OnePassNewtonMNL"
n_items = {N_ITEMS}
dim = {DIM}
max_items = {SHOWN}
first_batch = {FIRST_BATCH}

[ledger]
path = "ledger.db"
"""
BANDIT = (
    TEXT.partition("[learner]")[0]
    + f"""[learner]
name = "DPHDB"
n_arms = {N_ARMS}
dim = {DIM}
first_epoch = {FIRST_BATCH}

[ledger]
path = "ledger.db"
"""
)
"""As `TEXT`, of a bandit."""


def served(learner: str, **changed: str) -> str:
    """As `TEXT`, of a learner that is given as the lines of its table."""
    begin, _, end = TEXT.partition("[learner]")
    text = f"{begin}[learner]\n{learner}\n\n[ledger]{end.partition('[ledger]')[2]}"
    for name, value in changed.items():
        text = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
    return text


ARMS = served(f'name = "PrivateArms"\nn_arms = {N_ARMS}')
"""As `TEXT`, of arms without contexts."""
SLATES = served('name = "OnePassNewtonGLM"\nn_actions = 4\ndim = 2\nfirst_batch = 10', users="60")
"""As `TEXT`, of actions with features."""
PEOPLE = '[people]\npath = "people.db"\nmost = 2\n'


def write_config(folder: Path, text: str = TEXT, **changed: str) -> Path:
    """A configuration in a folder; ``changed`` replaces lines by their names."""
    for name, value in changed.items():
        lines = text.splitlines()
        at = [i for i, line in enumerate(lines) if line.startswith(f"{name} = ")]
        assert len(at) == 1, name
        lines[at[0]] = f"{name} = {value}"
        text = "\n".join(lines) + "\n"
    path = folder / "service.toml"
    path.write_text(text, "utf-8")
    return path


def features(seed: int = 0) -> Array:
    """One visitor's."""
    return np.random.default_rng(seed).normal(size=(N_ITEMS, DIM))


def context(seed: int = 0) -> Array:
    """One visitor's, of a bandit."""
    return np.random.default_rng(seed).uniform(-1, 1, DIM)


@dataclass
class Local:
    """A service in this process.

    Attributes:
        http: speaks to its application, without a token.
        tokens: by role.
    """

    config: ServiceConfig
    books: Books
    desk: Desk
    http: httpx.AsyncClient
    tokens: dict[str, str]
    app: Any

    @property
    def paths(self) -> dict[str, list[str]]:
        """The resources, and their methods."""
        return {path: list(each) for path, each in self.app.openapi()["paths"].items()}

    def json_of(self, role: str) -> dict[str, str]:
        """Headers of a request whose JSON is written by hand."""
        token = f"Bearer {self.tokens[role]}"
        return {"Authorization": token, "Content-Type": "application/json"}

    async def post(
        self, path: str, body: Any, role: str = "serve", **headers: str
    ) -> httpx.Response:
        """A request with the token of a role."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}", **headers}
        return await self.http.post(path, json=body, headers=headers)

    async def get(self, path: str, role: str = "operator") -> httpx.Response:
        """The same without a body."""
        token = self.tokens[role]
        return await self.http.get(path, headers={"Authorization": f"Bearer {token}"})

    async def close(self) -> httpx.Response:
        """Closes the open batch, as an operator who looked at the status."""
        status = (await self.get("/v1/status")).json()
        named = {"batch": status["batch"], "places": status["places"]}
        return await self.post("/v1/close-batch", named, "operator")

    async def offer(self, seed: int = 0, **more: Any) -> dict[str, Any]:
        """An offer to the next visitor."""
        answer = await self.post("/v1/recommend", {"features": features(seed).tolist(), **more})
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told


@asynccontextmanager
async def local(path: Path) -> AsyncIterator[Local]:
    """A service of a configuration, begun or gone on with."""
    config = read_config(path)
    tokens = config.at(config.access.file)
    made = {}
    tokens.unlink(missing_ok=True)
    for name, role in (("serve", "serve"), ("other", "serve"), ("watch", "watch")):
        made[name] = access.add(tokens, name, role)
    made["operator"] = access.add(tokens, "operator", "operator")
    books = open_books(config, "either")
    try:
        desk = Desk(config, books.accountant, books.offers)
        app = create_app(config, AccessTokens(tokens), desk)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
            yield Local(config, books, desk, http, made, app)
        await desk.stop(0.0)
        await desk.close()
    finally:
        books.close()


def run_with(path: Path, work: Callable[[Local], Awaitable[T]]) -> T:
    """What ``work`` makes of a service of a configuration."""

    async def run() -> T:
        async with local(path) as service:
            return await work(service)

    return asyncio.run(run())
