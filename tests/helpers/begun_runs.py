"""Runs that a version begins and a later one goes on with: what they are, never to be changed.

    PYTHONPATH=.:tests/helpers python tests/helpers/begun_runs.py FOLDER

writes the ledger of each, as its process left it when it died half-way, the head beside it, and
what everybody could see by then.  See tests/ledger/begun/README.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from privlearn import ZCDP, Ball
from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.contract.protocols import Plan
from privlearn.learners import (
    DPHDB,
    DPMNL,
    DPPOFW,
    DPTOFW,
    LDPOLS,
    OnePassNewtonGLM,
    OnePassNewtonMNL,
)
from privlearn.learners.hdb_epochs import CorrelatedEpochs
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.learners.local import LocalBanditConfig, LocalClient, LocalServer, Model
from privlearn.ledger import Ledger
from privlearn.mechanisms import BinaryTree, PrefixSum
from privlearn.mechanisms.constraint_sets import LpBall, Simplex
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn_studies.rivals.convex import NoisySFW
from privlearn_studies.rivals.noisy_max_epochs import NoisyMaxEpochs

USERS = 240
DIED = 150
"""Users who had come when the process died."""
STEP = 23
BEGUN = Path(__file__).resolve().parents[1] / "ledger" / "begun"


@cache
def _numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def die(accountant: Any) -> None:
    """The connection ends as it does with its process."""
    accountant.ledger._disk._end()


# Learners -----------------------------------------------------------------------------------------


def _items(learner: Any, part: slice) -> None:
    learner.play(_numbers(1, USERS, 4, 2)[part] / 3, lambda own, shown: shown[:, 0])


def _arms(learner: Any, part: slice) -> None:
    def reward(own: Any, arms: Any) -> Array:
        return np.asarray(np.clip(own.context[:, 0] * (arms - 1), -1, 1))

    learner.play(_numbers(3, USERS, 2)[part] / 3, reward)


def _slates(learner: Any, part: slice) -> None:
    def reward(own: Any, actions: Any) -> Array:
        return np.asarray(own.features[np.arange(len(actions)), actions, 0] > 0, dtype=np.float64)

    learner.play(_numbers(6, USERS, 4, 2)[part] / 3, reward)


def _rows(learner: Any, part: slice) -> None:
    x = _numbers(2, USERS, 2)[part] / 2
    learner.partial_fit(x, x @ [1.0, -0.5])


@dataclass(frozen=True)
class LearnerRun:
    """A learner, made at first by ``make``, and the users whom ``feed`` brings."""

    make: Callable[[], Any]
    feed: Callable[[Any, slice], None]
    kind: Any = JointAccountant

    def begin(self, path: Path) -> tuple[Any, Any]:
        """A new account, and the learner."""
        accountant = self.kind(
            ZCDP(1),
            users=range(USERS),
            ledger=Ledger.create(path),
            noise=NoiseSource.simulation(0),
        )
        return accountant, self.make().start(accountant)

    def resume(self, path: Path) -> tuple[Any, Any]:
        """Both again, from nothing but the ledger."""
        accountant = self.kind.resume(path, noise=NoiseSource.simulation(1))
        return accountant, type(self.make()).resume(accountant)

    def go_on(self, learner: Any, stop: int) -> None:
        """Users come, up to there."""
        while learner.clock_ < stop:
            self.feed(learner, slice(learner.clock_, min(learner.clock_ + STEP, stop)))

    def public(self, learner: Any) -> dict[str, Array]:
        """What follows from releases only, and the clock."""
        names = ("theta_", "precision_", "gram_", "coef_", "clock_")
        found = {n: np.asarray(getattr(learner, n)) for n in names if hasattr(learner, n)}
        assert len(found) > 1
        return found


# A stream without a learner -----------------------------------------------------------------------


@dataclass
class _Stream:
    """A planned stream that somebody opens by hand, and the values that left."""

    sums: Any
    clock: int
    left: list[Array]


class StreamRun:
    """Prefix sums; after a crash one more stream for the users who are left."""

    def _open(self, accountant: Any) -> _Stream:
        mechanism = PrefixSum(Ball(1.0, 2), BinaryTree(USERS), 30.0)
        accountant.commit([Plan("sums", mechanism.loss(), range(USERS))])
        left = accountant.rest("sums", range(USERS))
        own = mechanism.for_last(left)
        token = accountant.issue(own.loss(), users=left, label="sums")
        return _Stream(own.open(token), left.start, [])

    def begin(self, path: Path) -> tuple[Any, Any]:
        """A new account, and the stream."""
        accountant: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(1),
            users=range(USERS),
            ledger=Ledger.create(path),
            noise=NoiseSource.simulation(0),
        )
        return accountant, self._open(accountant)

    def resume(self, path: Path) -> tuple[Any, Any]:
        """The account, and a stream for the users who are left."""
        accountant: Any = CentralAccountant.resume(path, noise=NoiseSource.simulation(1))
        return accountant, self._open(accountant)

    def go_on(self, stream: _Stream, stop: int) -> None:
        """Users come, up to there."""
        while stream.clock < stop:
            part = range(stream.clock, min(stream.clock + STEP, stop))
            rows = Rows.seal(_numbers(4, USERS, 2)[part.start : part.stop], users=part)
            stream.sums.append(rows)
            stream.clock = part.stop

    def public(self, stream: _Stream) -> dict[str, Array]:
        """How far it came."""
        return {"from": np.asarray(stream.clock)}


# Local privacy ------------------------------------------------------------------------------------


@cache
def _config() -> LocalBanditConfig:
    learner = LDPOLS(
        dim=2, n_arms=4, horizon=USERS, shared=True, epsilon=1.0, delta=0.01, theta_bound=1.0
    )
    return LocalBanditConfig("begun", learner)


def _sent(device: LocalClient[Any], model: Model, users: range) -> list[bytes]:
    offers = _numbers(5, USERS, 4, 2)[users.start : users.stop] / 3
    arms = device.choose_many(offers, model, users=users)
    shown = offers[np.arange(len(users)), arms]
    sent = device.randomize_many(shown, arms, shown[:, 0], users=users, model=model)
    size = len(sent) // len(users)
    return [sent[i : i + size] for i in range(0, len(sent), size)]


@cache
def _heard() -> tuple[list[Model], list[list[bytes]]]:
    """What a server publishes and hears, batch by batch."""
    users, noise = range(USERS), NoiseSource.simulation(1)
    claims = LocalAccountant.for_server(_config(), Ledger.memory(), noise=noise)
    server = LocalServer(_config(), claims, by="tests")
    account = LocalAccountant(claims.budget, users=users, noise=noise, adjacency=claims.adjacency)
    device = LocalClient(_config(), account)
    models: list[Model] = []
    messages: list[list[bytes]] = []
    while len(server.users):
        models.append(server.model())
        messages.append(_sent(device, models[-1], server.users))
        server.update_many(messages[-1])
        server.advance()
    return models, messages


class ServerRun:
    """A server that hears messages which users attest."""

    def begin(self, path: Path) -> tuple[Any, Any]:
        """A new account, and the server."""
        account: Any = LocalAccountant.for_server(
            _config(), Ledger.create(path), noise=NoiseSource.simulation(0)
        )
        return account, LocalServer(_config(), account, by="tests")

    def resume(self, path: Path) -> tuple[Any, Any]:
        """Both again."""
        account: Any = LocalAccountant.resume(path, noise=NoiseSource.simulation(1))
        return account, LocalServer(_config(), account, by="tests")

    def go_on(self, server: Any, stop: int) -> None:
        """Batches come, until one is met that goes beyond that user."""
        while len(server.users) and server.users.start < stop:
            server.model()
            server.update_many(_heard()[1][server.batch])
            server.advance()

    def public(self, server: Any) -> dict[str, Array]:
        """The sums, and the next user."""
        return {**server.state, "clock": np.asarray(server.users.start)}


class GatewayRun:
    """Devices that share an account: their messages leave it."""

    def begin(self, path: Path) -> tuple[Any, Any]:
        """A new account, and the devices."""
        claims = LocalAccountant.for_server(_config(), Ledger.memory(), noise=NoiseSource.secure())
        account: Any = LocalAccountant(
            claims.budget,
            users=range(USERS),
            ledger=Ledger.create(path),
            noise=NoiseSource.simulation(0),
            adjacency=claims.adjacency,
        )
        return account, LocalClient(_config(), account)

    def resume(self, path: Path) -> tuple[Any, Any]:
        """Both again."""
        account: Any = LocalAccountant.resume(path, noise=NoiseSource.simulation(1))
        return account, LocalClient(_config(), account)

    def go_on(self, device: Any, stop: int) -> None:
        """Users send, up to there."""
        clock = device.left.start
        while clock < stop:
            batch = _config().batch_of(clock)
            end = min(clock + STEP, _config().users_of(batch).stop, stop)
            _sent(device, _heard()[0][batch], range(clock, end))
            clock = end
        if stop == USERS:
            device.close()

    def public(self, device: Any) -> dict[str, Array]:
        """Who is left."""
        return {"from": np.asarray(device.left.start)}


# The table ----------------------------------------------------------------------------------------

_ITEMS: dict[str, Any] = {"n_items": 4, "dim": 2, "max_items": 2}
_ARMS: dict[str, Any] = {"n_arms": 3, "dim": 2}
_BALL = LpBall(2, 1, 1.0)


def _central(make: Callable[[], Any]) -> LearnerRun:
    return LearnerRun(make, _rows, CentralAccountant)


RUNS: dict[str, Any] = {
    "newton-ball": LearnerRun(
        partial(OnePassNewtonMNL, **_ITEMS, first_batch=30, growth=1.3), _items
    ),
    "glm": LearnerRun(
        partial(OnePassNewtonGLM, n_actions=4, dim=2, first_batch=30, longest_batch=60), _slates
    ),
    "dpmnl": LearnerRun(partial(DPMNL, **_ITEMS, initial_rounds=40), _items),
    "hdb-correlated": LearnerRun(
        partial(DPHDB, **_ARMS, first_epoch=30, method=CorrelatedEpochs(growth=1.1)), _arms
    ),
    "hdb-noisy-max": LearnerRun(
        partial(DPHDB, **_ARMS, first_epoch=40, method=NoisyMaxEpochs(first_picks=2, picks=1)),
        _arms,
    ),
    "least-squares": LearnerRun(partial(PrivateLeastSquares, **_ARMS, blocks=12), _arms),
    "tofw-plain": _central(partial(DPTOFW, dim=2, method="plain")),
    "tofw-buffered": _central(partial(DPTOFW, dim=2, method="buffered")),
    "tofw-whitened": _central(partial(DPTOFW, dim=2, method="whitened")),
    "pofw-thresholds": _central(partial(DPPOFW, _BALL, method="thresholds")),
    "pofw-choices": _central(partial(DPPOFW, _BALL, method="choices")),
    "pofw-vertices": _central(partial(DPPOFW, Simplex(2), method="vertices")),
    "pofw-projections": _central(partial(DPPOFW, _BALL, method="projections")),
    "sfw": _central(partial(NoisySFW, dim=2)),
    "prefix-sums": StreamRun(),
    "ldp-server": ServerRun(),
    "ldp-gateway": GatewayRun(),
}


PASSING = ("clock", "clock_", "from")
"""What may lag behind in a process that goes on: those who were open when the other died."""


def told(public: dict[str, Array]) -> dict[str, Any]:
    """As it stands beside the ledger: each number to the last bit."""
    return {
        name: {"shape": list(value.shape), "values": [float(v).hex() for v in value.ravel()]}
        for name, value in sorted(public.items())
    }


def read(name: str) -> dict[str, Array]:
    """What everybody could see when a run had died."""
    data = json.loads((BEGUN / f"{name}.json").read_text(encoding="utf-8"))
    return {
        key: np.array([float.fromhex(v) for v in value["values"]]).reshape(value["shape"])
        for key, value in data.items()
    }


def copied(name: str, folder: Path, to: Path) -> Path:
    """A ledger with its head, and its tail if it has one: who goes on with it writes to it."""
    for end in ("", ".head", "-tail"):
        if (file := folder / f"{name}.db{end}").exists():
            (to / file.name).write_bytes(file.read_bytes())
    return to / f"{name}.db"


def write(folder: Path) -> None:
    """Begins each run, and lets it die; of what was released the process that died tells."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, run in RUNS.items():
        path = folder / f"{name}.db"
        accountant, begun = run.begin(path)
        run.go_on(begun, DIED)
        before = run.public(begun)
        die(accountant)
        with tempfile.TemporaryDirectory() as other:
            again, resumed = run.resume(copied(name, folder, Path(other)))
            after = run.public(resumed)
            die(again)
        public = {n: after[n] if n in PASSING else before[n] for n in before}
        text = json.dumps(told(public), indent=1)
        (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
