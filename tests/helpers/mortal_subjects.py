"""Programs that can be killed at any time and simply started again, for each learner and stream.

A program takes its account, new or resumed.  It gives a function that tells up to which user it
came and the arrays that everybody can see by then, and the steps that are left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from privlearn import ZCDP, Ball, PureDP
from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.contract.protocols import Plan
from privlearn.errors import HorizonError, OfferError
from privlearn.learners import (
    DPHDB,
    DPMNL,
    DPPOFW,
    DPTOFW,
    LDPOLS,
    LDPSGD,
    HeldPolicy,
    LDPArms,
    Offer,
    Offers,
    OnePassNewtonGLM,
    OnePassNewtonMNL,
    PrivateArms,
    PrivateExperts,
    PrivateTest,
)
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.learners.local import LocalBanditConfig, LocalClient, LocalServer, Model
from privlearn.learners.noisy_sgd import NoisySGD
from privlearn.ledger import Ledger
from privlearn.mechanisms import (
    BatchedPrefixSum,
    CrossPolytope,
    NoisyMaxStream,
    NoisySum,
    PrefixSum,
)
from privlearn.mechanisms.constraint_sets import LpBall, Simplex
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.people import People
from privlearn.rows import Rows, RowStore
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation
from privlearn_studies.rivals.convex import LocalMD, NoisySFW, PublishedTOFW
from privlearn_studies.rivals.linear_bandits import DPUCB

Now = Callable[[], tuple[int, tuple[Array, ...]]]
Program = Callable[[Any], tuple[Now, Iterator[None]]]
Kind = type[CentralAccountant[Any]] | type[JointAccountant[Any]] | type[LocalAccountant[Any]]

ONE = ZCDP(1)
SEGMENT = 256
"""Users that an open stream of reports has told the ledger of, and a crash costs, at most."""
AHEAD = 75
"""An eighth of 600: as far ahead as a stream of sums says that it comes."""
STEP = 23
"""Users of one step: they end neither with batches nor with blocks."""


@dataclass(frozen=True)
class Subject:
    """A program, the account that it runs under, and how many users a crash may cost it.

    ``most_spends``: how many releases it may cost, for those who make two at once.  ``more``:
    further arguments of a new account.  ``rule``: of a registry of people beside it.  ``again``:
    whether it is handed its rows again, so that all of its plan is made, if no spend was lost.
    """

    program: Program
    kind: Kind
    users: int
    most_users: int
    budget: Any = ONE
    more: tuple[tuple[str, Any], ...] = ()
    rule: Participation | None = None
    most_spends: int = 1
    again: bool = False

    def begun(self, path: Path, noise: NoiseSource | None) -> Any:
        """The account of a ledger file, new, just created or left by a process that died.

        None if it was closed: all is done.
        """
        book = Ledger.open(path) if path.exists() else Ledger.create(path)
        file = path.with_name("people")
        if not book.entries:
            for end in ("", "-wal", "-shm"):  # of an account that was never begun
                Path(f"{file}{end}").unlink(missing_ok=True)
            people = None if self.rule is None else People.create(file, self.rule)
            return self.new(book, noise, people)
        if not book.open_accountants:
            book.close()
            return None
        people = None if self.rule is None else People.open(file)
        return self.kind.resume(book, noise=noise, people=people)

    def new(self, book: Ledger, noise: NoiseSource | None, people: People | None = None) -> Any:
        """A new account."""
        more: dict[str, Any] = dict(self.more)
        if people is not None:
            more["people"] = people
        return self.kind(self.budget, users=range(self.users), ledger=book, noise=noise, **more)

    def run_through(self, seed: int) -> None:
        """One run in memory, after which this process has all modules and calibrations."""
        people = None if self.rule is None else People.memory(self.rule)
        account = self.new(Ledger.memory(), NoiseSource.simulation(seed), people)
        for _ in self.program(account)[1]:
            pass
        account.close()


def _steps(learner: Any, users: int, step: Callable[[slice], None]) -> Iterator[None]:
    while learner.clock_ < users:
        step(slice(learner.clock_, min(learner.clock_ + STEP, users)))
        yield


# Learners -----------------------------------------------------------------------------------------

_ESTIMATES = (
    "theta_",
    "precision_",
    "gram_",
    "coef_",
    "means_",
    "stds_",
    "pulls_",
    "e_value_",
    "redraws_",
)


def _estimates(learner: Any) -> tuple[Array, ...]:
    """What was learned from releases, and nothing that follows from the clock."""
    found = [getattr(learner, name) for name in _ESTIMATES if hasattr(learner, name)]
    assert found
    return tuple(map(np.asarray, found))


def _learner(
    make: Callable[[], Any], users: int, feed: Callable[[Any, slice], None], **again: Any
) -> Program:
    def program(accountant: Any) -> tuple[Now, Iterator[None]]:
        learner = make().start(accountant, **again)

        def now() -> tuple[int, tuple[Array, ...]]:
            return learner.clock_, _estimates(learner)

        return now, _steps(learner, users, lambda part: feed(learner, part))

    return program


@cache
def _numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def _items(learner: Any, part: slice, **more: Any) -> None:
    features = _numbers(1, 2000, 5, 3)[part] / 3
    learner.play(features, lambda own, shown: shown[:, 0], **more)


def _ids(learner: Any, part: slice) -> None:
    _items(learner, part, people=_people(part))


def _people(part: slice) -> list[str]:
    return [f"person {user * 7 % 400}" for user in range(part.start, part.stop)]


def _slates(learner: Any, part: slice, **more: Any) -> None:
    """Every eleventh user sends nothing that can be used; some are offered less than others."""
    features = _numbers(8, 2000, 4, 3)[part] / 3
    features[::11, 0, 0] = np.nan
    offered = _numbers(9, 2000, 4)[part] > -1.5

    def reward(own: Any, actions: Any) -> Array:
        shown = own.features[np.arange(len(actions)), actions]
        return np.asarray(shown[:, 0] > 0, dtype=np.float64)

    learner.play(features, reward, offered=offered, **more)


def _slates_of_people(learner: Any, part: slice) -> None:
    _slates(learner, part, people=_people(part))


def _contexts(learner: Any, part: slice) -> None:
    luck = _numbers(6, 2000)[part]
    learner.play(_numbers(3, 2000, 3)[part] / 3, lambda own, actions: luck[: len(actions)] > 0.3)


def _rows_beside(accountant: Any) -> RowStore | None:
    """The store of rows beside a ledger's file, or none beside a ledger in memory."""
    if accountant.ledger.path is None:
        return None
    file = Path(accountant.ledger.path).with_name("rows")
    if not accountant.resumed:
        for end in ("", "-wal", "-shm"):  # of an account that was never begun
            Path(f"{file}{end}").unlink(missing_ok=True)
    key = bytes(32)
    return RowStore.open(file, key) if file.exists() else RowStore.create(file, key)


def _items_offered(accountant: Any) -> tuple[Now, Iterator[None]]:
    features = _numbers(1, 2000, 5, 3) / 3
    return _offered(
        OnePassNewtonMNL(n_items=5, dim=3),
        accountant,
        7,
        lambda user: (features[user],),
        lambda items: int(items[0]),
    )


def _arms_offered(accountant: Any) -> tuple[Now, Iterator[None]]:
    learner = PrivateArms(n_arms=3, delay=4)
    return _offered(learner, accountant, 0, lambda user: (), lambda arm: arm / 2)


def _offered(
    learner: Any,
    accountant: Any,
    wait: int,
    data: Callable[[int], tuple[Any, ...]],
    answer_to: Callable[[Any], Any],
) -> tuple[Now, Iterator[None]]:
    """Many open users: of each step's answers a third come in the next, and a third never."""
    learner.start(accountant, store=_rows_beside(accountant))
    offers, users = Offers(learner, wait=wait), len(accountant.users)

    def answer(each: Sequence[Offer]) -> None:
        for offer in each:
            with suppress(OfferError):  # too late
                offers.observe(offer.id, answer_to(offer.items))

    def steps() -> Iterator[None]:
        late: list[Offer] = []
        while offers.clock_ < users:
            some = range(offers.clock_, min(offers.clock_ + STEP, users))
            made = [offers.select(*data(i), person=f"person {i * 7 % 400}") for i in some]
            answer([*late, *made[::-3]])
            late = made[::3]
            yield
        with suppress(HorizonError):
            while True:
                offers.close_batch()
        yield

    return lambda: (offers.clock_, _estimates(learner)), steps()


def _arms(learner: Any, part: slice) -> None:
    def reward(own: Any, arms: Any) -> Array:
        return np.asarray(np.clip(own.context[:, 0] * (arms - 1), -1, 1))

    learner.play(_numbers(3, 2000, 3)[part] / 3, reward)


def _answered(learner: Any, part: slice, answers: Callable[[slice, Any], Array]) -> None:
    """Users who send nothing; every eleventh one answers nothing that can be used."""
    at, null = [0], np.arange(part.start, part.stop) % 11 == 0

    def respond(shown: Any) -> Array:
        here = slice(at[0], at[0] + len(shown))
        at[0] = here.stop
        found = answers(here, shown)
        found[null[here]] = np.nan
        return found

    learner.play(len(null), respond)


def _losses(learner: Any, part: slice) -> None:
    luck = np.abs(_numbers(7, 2000, 3)[part]) / 4 * [1.0, 0.5, 0.8]
    _answered(learner, part, lambda here, experts: luck[here].copy())


def _phases(learner: Any, part: slice) -> None:
    luck = _numbers(6, 2000)[part]
    _answered(learner, part, lambda here, arms: (luck[here] < 0.3 * (arms - 1)).astype(float))


class Leader:
    """A bandit policy of somebody's own: the arm of the highest mean, once each was held."""

    def __init__(self, n_arms: int) -> None:
        self.means = np.full(n_arms, np.inf)

    def choose(self) -> int:
        return int(self.means.argmax())

    def learn(self, arm: int, mean: float, weight: int) -> None:
        self.means[arm] = mean


def _examples(part: slice) -> tuple[Array, Array]:
    x = _numbers(2, 2000, 3)[part] / 2
    return x, x @ [1.0, 0.0, -0.5]


def _rows(learner: Any, part: slice) -> None:
    learner.partial_fit(*_examples(part))


def _joint(
    make: Callable[[], Any],
    feed: Callable[[Any, slice], None],
    users: int,
    most: int,
    **more: Any,
) -> Subject:
    return Subject(_learner(make, users, feed), JointAccountant, users, most, **more)


def _central(make: Callable[[], Any], users: int, most: int) -> Subject:
    program = _learner(make, users, _rows, again=_examples(slice(users)))
    return Subject(program, CentralAccountant, users, most, again=True)


# Streams and releases without a learner -----------------------------------------------------------


def _sealed(users: range) -> Rows[Array]:
    return Rows.seal(_numbers(4, 2000, 3)[users.start : users.stop], users=users)


def _stream(sums: Any, users: int) -> Program:
    """A planned stream, and after each crash one more for the users who are left."""

    def program(accountant: Any) -> tuple[Now, Iterator[None]]:
        everybody, label = range(users), "sums"
        accountant.commit([Plan(label, sums.loss(), everybody)])
        clock = [users]

        def steps() -> Iterator[None]:
            left = accountant.rest(label, everybody)
            if left is None:
                return
            own = sums.for_last(left)
            clock[0] = left.start
            stream = own.open(accountant.issue(own.loss(), users=left, label=label))
            ends = left.start + np.cumsum(getattr(own, "sizes", [len(left)]))
            while clock[0] < users:
                end = int(ends[np.searchsorted(ends, clock[0], side="right")])
                part = range(clock[0], min(clock[0] + STEP, end))
                stream.append(_sealed(part))
                clock[0] = part.stop
                yield
            if not stream.closed:
                stream.close()

        return lambda: (clock[0], ()), steps()

    return program


def _releases(users: int, size: int) -> Program:
    """A sum of each block of users, at ad-hoc prices."""
    mechanism = NoisySum(Ball(1.0, 3), GaussianNoise(2.0))

    def program(accountant: Any) -> tuple[Now, Iterator[None]]:
        blocks = [range(start, start + size) for start in range(0, users, size)]
        left = [block for block in blocks if not accountant.held("sum", block)]
        clock = [left[0].start if left else users]

        def steps() -> Iterator[None]:
            for block in left:
                token = accountant.issue(mechanism.loss(), users=block, label="sum")
                mechanism.release(_sealed(block), token)
                clock[0] = block.stop
                yield

        return lambda: (clock[0], ()), steps()

    return program


# Local privacy ------------------------------------------------------------------------------------

LOCAL_USERS = 600
_SIZES: dict[str, Any] = {"dim": 2, "n_arms": 4, "horizon": LOCAL_USERS, "shared": True}
_LEARNERS: dict[str, Callable[[], LDPArms | LDPOLS | LDPSGD]] = {
    "arms": lambda: LDPArms(n_arms=3, horizon=LOCAL_USERS, epsilon=1.0, growth=0.2),
    "ols": lambda: LDPOLS(**_SIZES, epsilon=1.0, delta=0.01, theta_bound=1.0),
    "sgd": lambda: LDPSGD(**_SIZES, epsilon=1.0, delta=0.0),
}


@cache
def _config(name: str) -> LocalBanditConfig:
    return LocalBanditConfig("mortal", _LEARNERS[name]())


@cache
def _heard(name: str) -> tuple[list[Model], list[list[bytes]]]:
    """What a server that nobody kills publishes and hears, batch by batch."""
    config, users, noise = _config(name), range(LOCAL_USERS), NoiseSource.simulation(1)
    claims = LocalAccountant.for_server(config, Ledger.memory(), noise=noise)
    server = LocalServer(config, claims, by="tests")
    device = LocalClient(
        config,
        LocalAccountant(claims.budget, users=users, noise=noise, adjacency=claims.adjacency),
    )
    models: list[Model] = []
    messages: list[list[bytes]] = []
    while len(server.users):
        models.append(server.model())
        messages.append(_sent(device, models[-1], server.users))
        server.update_many(messages[-1])
        server.advance()
    return models, messages


def _sent(device: LocalClient[Any], model: Model, users: range) -> list[bytes]:
    offers = _numbers(5, LOCAL_USERS, 4, 2)[users.start : users.stop] / 3
    with_contexts = device.config.method.dim > 0
    arms = device.choose_many(offers if with_contexts else None, model, users=users)
    shown = offers[np.arange(len(users)), arms]
    rewards = shown[:, 0] if with_contexts else np.abs(shown[:, 0])
    own = shown if with_contexts else None
    sent = device.randomize_many(own, arms, rewards, users=users, model=model)
    size = len(sent) // len(users)
    return [sent[i : i + size] for i in range(0, len(sent), size)]


def _server(learner: str, accountant: Any) -> tuple[Now, Iterator[None]]:
    server = LocalServer(_config(learner), accountant, by="tests")

    def now() -> tuple[int, tuple[Array, ...]]:
        return server.users.start, tuple(map(np.ravel, server.state.values()))

    def steps() -> Iterator[None]:
        while len(server.users):
            server.model()
            server.update_many(_heard(learner)[1][server.batch])
            server.advance()
            yield

    return now, steps()


def _gateway(learner: str, accountant: Any) -> tuple[Now, Iterator[None]]:
    """Devices that share an account: their messages leave it."""
    config = _config(learner)
    device = LocalClient(config, accountant)
    clock = [device.left.start]

    def steps() -> Iterator[None]:
        while clock[0] < LOCAL_USERS:
            batch = config.batch_of(clock[0])
            stop = min(clock[0] + STEP, config.users_of(batch).stop)
            _sent(device, _heard(learner)[0][batch], range(clock[0], stop))
            clock[0] = stop
            yield
        device.close()

    return lambda: (clock[0], ()), steps()


# The table ----------------------------------------------------------------------------------------


def _sums(users: int) -> Any:
    return PrefixSum.calibrated(Ball(1.0, 3), ZCDP(1), horizon=users)


def _batched(users: int) -> Any:
    sizes = [30] * (users // 30)
    return BatchedPrefixSum.calibrated(Ball(1.0, 3), ZCDP(1), sizes=sizes)


def _picks(users: int) -> Any:
    return NoisyMaxStream.calibrated(CrossPolytope(3), 1.0, ZCDP(1), horizon=users)


def _stream_of(make: Callable[[int], Any], users: int) -> Subject:
    return Subject(_stream(make(users), users), CentralAccountant, users, AHEAD + STEP)


_BALL = LpBall(3, 1, 1.0)

SUBJECTS: dict[str, Subject] = {
    "OnePassNewtonMNL": _joint(partial(OnePassNewtonMNL, n_items=5, dim=3), _items, 600, 130),
    "OnePassNewtonMNL, people twice": _joint(
        partial(OnePassNewtonMNL, n_items=5, dim=3),
        _ids,
        600,
        230,
        rule=Participation(most=2, per_batch=1),
    ),
    "OnePassNewtonMNL, people once": _joint(
        partial(OnePassNewtonMNL, n_items=5, dim=3), _ids, 600, 130, rule=Participation(most=1)
    ),
    "DPMNL": _joint(partial(DPMNL, n_items=5, dim=3), _items, 700, 200),
    "Offers": Subject(_items_offered, JointAccountant, 400, 130, rule=Participation(most=1)),
    "DPHDB": _joint(partial(DPHDB, n_arms=3, dim=3), _arms, 700, 250),
    "OnePassNewtonGLM": _joint(partial(OnePassNewtonGLM, 4, 3), _slates, 600, 130),
    "PrivateArms": _joint(partial(PrivateArms, n_arms=3), _phases, 600, 250, budget=PureDP("0.5")),
    "PrivateTest": _joint(partial(PrivateTest, random_state=5), _phases, 600, 250),
    "PrivateExperts": _joint(partial(PrivateExperts, 3), _losses, 600, 60),
    "DPTOFW whitened": _central(partial(DPTOFW, dim=3, method="whitened"), 600, 500),
    "DPPOFW thresholds": _central(partial(DPPOFW, _BALL, method="thresholds"), 600, 250),
    "DPPOFW choices": _central(partial(DPPOFW, _BALL, method="choices"), 600, 250),
    "DPPOFW vertices": _central(partial(DPPOFW, Simplex(3), method="vertices"), 600, 250),
    "PrefixSum": _stream_of(_sums, 600),
    "BatchedPrefixSum": _stream_of(_batched, 600),
    "NoisySum": Subject(_releases(600, 40), CentralAccountant, 600, 40),
}


def _local(
    program: Callable[[str, Any], tuple[Now, Iterator[None]]],
    learner: str,
    most: int,
    *,
    attested: bool,
) -> Subject:
    noise = NoiseSource.simulation(0)
    made = LocalAccountant.for_server(_config(learner), Ledger.memory(), noise=noise)
    more = (("adjacency", made.adjacency), ("attested", attested))
    own = partial(program, learner)
    return Subject(own, LocalAccountant, LOCAL_USERS, most, budget=made.budget, more=more)


SUBJECTS |= {
    "LDP server": _local(_server, "ols", 0, attested=True),
    "LDP gateway": _local(_gateway, "ols", SEGMENT + STEP, attested=False),
    # they take longest, and the last ones die least often
    "PrivateLeastSquares": _joint(
        partial(PrivateLeastSquares, n_arms=3, dim=3), _arms, 600, AHEAD + STEP
    ),
    "DPTOFW plain": _central(partial(DPTOFW, dim=3, method="plain"), 600, AHEAD + STEP),
    "DPTOFW buffered": _central(partial(DPTOFW, dim=3, method="buffered"), 600, 500),
}

RARER: dict[str, Subject] = {
    "Offers of arms": Subject(
        _arms_offered, JointAccountant, 400, 130, rule=Participation(most=2, apart=30)
    ),
    "HeldPolicy": _joint(
        partial(HeldPolicy, Leader(3), n_arms=3), _phases, 600, 60, budget=ZCDP("0.01")
    ),
    "OnePassNewtonGLM, per action": _joint(
        partial(
            OnePassNewtonGLM, 3, 3, per_action=True, policy="thompson", reward_range=(-1.0, 1.0)
        ),
        _contexts,
        600,
        130,
    ),
    "OnePassNewtonGLM, people": _joint(
        partial(OnePassNewtonGLM, 4, 3),
        _slates_of_people,
        600,
        130,
        rule=Participation(most=2, pooled=True),
    ),
    "PrivateArms, memory": _joint(partial(PrivateArms, n_arms=3, memory=400), _phases, 600, 100),
    "DPMNL, determinant": _joint(
        partial(DPMNL, n_items=5, dim=3, trigger="determinant"), _items, 700, 700
    ),
    "DPUCB": _joint(partial(DPUCB, n_arms=3, dim=3), _arms, 600, AHEAD + STEP),
    "DPTOFW plain, anytime": _central(
        partial(DPTOFW, dim=3, method="plain", anytime=True), 600, AHEAD + STEP
    ),
    "DPTOFW whitened, constant": _central(
        partial(DPTOFW, dim=3, method="whitened", constant=0.5), 600, 500
    ),
    "DPPOFW published": _central(partial(DPPOFW, _BALL, method="published"), 300, AHEAD + STEP),
    "DPPOFW projections": _central(partial(DPPOFW, _BALL, method="projections"), 600, 250),
    "NoisySFW": _central(partial(NoisySFW, dim=3), 600, 500),
    "NoisySGD": _central(partial(NoisySGD, dim=3, passes=20), 600, 600),
    "LocalMD": _central(partial(LocalMD, dim=3), 600, 600),
    "PublishedTOFW": _central(partial(PublishedTOFW, dim=3), 300, AHEAD + STEP),
    "NoisyMaxStream": _stream_of(_picks, 300),
    "LDPArms server": _local(_server, "arms", 0, attested=True),
    "LDPArms gateway": _local(_gateway, "arms", SEGMENT + STEP, attested=False),
    "LDPSGD server": _local(_server, "sgd", 0, attested=True),
    "LDPSGD gateway": _local(_gateway, "sgd", SEGMENT + STEP, attested=False),
}
"""Variants and baselines, which only the benchmark kills."""
