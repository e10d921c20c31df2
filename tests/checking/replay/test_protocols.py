"""Replay beyond assortment learners: protocols, accountants, pipelines, no false pass."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.accountants.local import LocalAccountant
from privlearn.checking import Replay
from privlearn.checking.replay.check import assert_noninterference, assert_pipeline_noninterference
from privlearn.checking.replay.populations import null_person, replaced, shopper, stranger
from privlearn.checking.replay.recording import minimiser_moves
from privlearn.contract.spends import Spend
from privlearn.errors import CheckError, InterferenceError
from privlearn.losses import GaussianLoss, LaplaceLoss
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import LinearObjective, NoisySum, ObjectivePerturbation, PrefixSum
from privlearn.noise import GaussianNoise, LaplaceNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball
from privlearn.rows.functions import RowFunction
from privlearn.values.adjacency import Adjacency

DIM, USERS = 2, 12


# Online learners: users are pairs (x, y) ----------------------------------------------------------


def online(learner: Any, users: Iterable[Any]) -> Iterator[Any]:
    for x, y in users:
        yield learner.predict(x)
        learner.partial_fit(x, y)


class OnlineRegression:
    """Follows the noisy running sum of clipped y·x, released by a tree or its like."""

    def __init__(self, accountant: Any) -> None:
        users = accountant.users
        mechanism: PrefixSum[Array] = PrefixSum.calibrated(
            Ball(1.0, DIM), accountant.budget, horizon=len(users)
        )
        token = accountant.issue(mechanism.loss(), users=users, label="sums")
        self._stream, self._clock = mechanism.open(token), 0
        self.theta = np.zeros(DIM)

    def predict(self, x: Array) -> float:
        return float(np.dot(self.theta, x))

    def partial_fit(self, x: Array, y: float) -> None:
        user = range(self._clock, self._clock + 1)
        self._clock += 1
        self.theta = self._stream.append(self._sealed(x * y, user)).value[-1]

    def _sealed(self, contribution: Array, user: range) -> Rows[Array]:
        return Rows.seal(contribution[None], users=user)


class PredictsFromData(OnlineRegression):
    """The next prediction has the last y in it."""

    last = 0.0

    def predict(self, x: Array) -> float:
        return super().predict(x) + 1e-9 * self.last

    def partial_fit(self, x: Array, y: float) -> None:
        super().partial_fit(x, y)
        self.last = 0.0 if math.isnan(y) else y


class SkipsBadPoints(OnlineRegression):
    """A bad record is not appended, so that everybody behind it moves up."""

    def partial_fit(self, x: Array, y: float) -> None:
        if math.isfinite(y):
            super().partial_fit(x, y)


class LearnsFromItself(OnlineRegression):
    """A contribution depends on whom it saw before."""

    largest = 1.0

    def _sealed(self, contribution: Array, user: range) -> Rows[Array]:
        self.largest = max(self.largest, float(np.nanmax(np.abs(contribution), initial=0.0)))
        return super()._sealed(contribution / self.largest, user)


def points(seed: int, at: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    data = [(rng.normal(size=DIM), float(rng.normal())) for _ in range(USERS)]
    return data, replaced(data, at, (data[at][0], math.nan if seed % 2 else 1e6))


on_line = partial(assert_noninterference, protocol=online, accountant=CentralAccountant)


@pytest.mark.parametrize("seed", range(20))
def test_an_online_learner_is_driven_by_three_lines(seed: int) -> None:
    data, neighbour = points(seed, seed % USERS)
    found = on_line(OnlineRegression, data, neighbour, seed=seed)
    assert found == Replay(USERS, seed % USERS, spends=1, releases=USERS, moved=1, runs=3)


def test_under_a_central_accountant_the_replaced_users_output_is_public_too() -> None:
    data, _ = points(0, 4)
    neighbour = replaced(data, 4, (data[4][0] + 1, data[4][1]))
    with pytest.raises(InterferenceError, match="user 4 received"):
        on_line(OnlineRegression, data, neighbour)


@pytest.mark.parametrize(
    ("leak", "seed", "message"),
    [
        (PredictsFromData, 0, "user 5 received .*, when user 4 was replaced"),
        (SkipsBadPoints, 1, "event 9: .*at 5.*, then .*at 6"),
        (LearnsFromItself, 0, "rows of users .* changed with user 4; that of user 5: "),
    ],
)
def test_leaks_of_online_learners_are_caught(leak: Any, seed: int, message: str) -> None:
    data, neighbour = points(seed, 4)
    with pytest.raises(InterferenceError, match=message):
        on_line(leak, data, neighbour)


@dataclass(frozen=True)
class NoisyAnswer:
    """One user's own number, with Laplace noise drawn on the device."""

    scale: float = 4.0
    forgets: bool = False

    def spend(self) -> Spend:
        return Spend("noisy-answer", Ball(1.0, 1, "l1"), LaplaceNoise(self.scale))

    def message(self, accountant: Any, x: Array, user: range) -> Array:
        loss = self.spend().loss(accountant.adjacency)
        token = accountant.issue(loss, users=user, label="message")
        with token.spend(self.spend()) as receipt:
            value = receipt.open(Rows.seal(x[None], users=user))[0]
            noise = receipt.draw(value.shape)
            return np.array(receipt.release(5 * value if self.forgets else value + noise).value)


class LocalMean:
    """A server that adds up messages; every user has a device of their own."""

    forgets = False

    def __init__(self, accountant: Any) -> None:
        self._accountant, self._clock, self.total = accountant, 0, np.zeros(1)

    def partial_fit(self, x: Array) -> None:
        user = range(self._clock, self._clock + 1)
        self._clock += 1
        message = NoisyAnswer(forgets=self.forgets).message(self._accountant, x, user)
        self.total = self.total + message


class LocalWithoutNoise(LocalMean):
    forgets = True


def locally(learner: Any, users: Iterable[Any]) -> Iterator[Any]:
    for x in users:
        yield learner.total
        learner.partial_fit(x)


def test_local_learners_are_checked_at_their_own_accountant() -> None:
    data = [np.array([float(x)]) for x in np.linspace(-2, 2, USERS)]
    neighbour = replaced(data, 3, np.array([9.0]))
    check = partial(
        assert_noninterference,
        data=data,
        neighbour=neighbour,
        protocol=locally,
        accountant=LocalAccountant,
        budget=PureDP(1),
    )
    assert check(LocalMean).spends == USERS
    with pytest.raises(
        InterferenceError, match=r"value moves by 9.54545 in l1, paid for 2; entry \[0\]"
    ):
        check(LocalWithoutNoise)


# Pipelines ----------------------------------------------------------------------------------------


def summed(accountant: Any, rows: Rows[Array], label: str = "sum") -> Any:
    mechanism: NoisySum[Array] = NoisySum(
        Ball(1.0, DIM), GaussianNoise(20.0), adjacency=accountant.adjacency
    )
    token = accountant.issue(mechanism.loss(), users=rows.users, label=label)
    return mechanism.release(rows, token)


def two_steps(accountant: Any, rows: Rows[Array]) -> Any:
    centre = summed(accountant, rows).value / len(rows)
    spread = summed(accountant, rows.map(lambda x: (x - centre) ** 2), "spread")
    return {"centre": centre.tolist(), "spread": spread}


def running(accountant: Any, rows: Rows[Array]) -> Any:
    users = rows.users
    mechanism: PrefixSum[Array] = PrefixSum.calibrated(
        Ball(1.0, DIM), ZCDP(1), horizon=len(users), adjacency=accountant.adjacency
    )
    token = accountant.issue(mechanism.loss(), users=users, label="sums")
    with mechanism.open(token) as stream:
        parts = [stream.append(rows.slice(users[i : i + 3])) for i in range(0, len(users), 3)]
    return [part.value for part in parts]


def fitted(accountant: Any, rows: Rows[Any]) -> Any:
    mechanism = ObjectivePerturbation(
        LinearObjective.logistic(DIM),
        ridge=2.0,
        noise_std=3.0,
        blur_std=0.05,
        max_rows=USERS,
        adjacency=accountant.adjacency,
    )
    labelled = rows.map(lambda x: (x, np.sign(np.sum(x))))
    token = accountant.issue(mechanism.loss(), users=rows.users, label="fit")
    return mechanism.release(labelled, token).value


def blocks(seed: int, at: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(USERS, DIM))
    other = data.copy()
    other[at] = [(np.nan, 1), (1e300, -1e300), (-np.inf, np.inf), (0, 0), (3, -7)][seed % 5]
    return data, other


PIPELINES: dict[str, tuple[Callable[[Any, Rows[Any]], Any], int]] = {
    "two sums": (two_steps, 2),
    "prefix sums": (running, 3),
    "objective perturbation": (fitted, 3),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_pass_on_generated_neighbours(name: str) -> None:
    pipeline, runs = PIPELINES[name]
    for seed in range(25):
        data, other = blocks(seed, seed % USERS)
        pair = (data, other) if seed % 2 else (other, data)
        found = assert_pipeline_noninterference(pipeline, *pair, seed=seed, budget=ZCDP(50))
        assert found.moved >= 1
        assert found.runs == runs
        nulled = assert_pipeline_noninterference(pipeline, data, seed % USERS, budget=ZCDP(50))
        assert nulled.replaced == seed % USERS
        assert nulled.moved >= 1


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
def test_the_null_record_is_the_neighbour_under_other_adjacencies(adjacency: Adjacency) -> None:
    account = partial(CentralAccountant, adjacency=adjacency)
    data, other = blocks(4, 3)
    found = assert_pipeline_noninterference(two_steps, data, 3, accountant=account)
    assert found.moved == 2
    with pytest.raises(InterferenceError, match=r"user 3 moves the sum by 1.* paid for 1"):
        # A whole other record is no neighbour here, and its sum moves by more than a radius.
        assert_pipeline_noninterference(two_steps, data * 9, other * 9, accountant=account)


def centred(accountant: Any, rows: Rows[Array]) -> Any:
    return summed(accountant, rows.map_rows(lambda block: block - np.nanmean(block, axis=0)))


@dataclass(frozen=True)
class Careless:
    """A third party's mechanism with one fault each."""

    fault: str

    def release(self, accountant: Any, rows: Rows[Array]) -> Any:
        spend = Spend(
            "careless",
            Ball(1.0, DIM),
            GaussianNoise(20.0),
            own_loss=GaussianLoss("0.01") if self.fault.startswith("own loss") else None,
        )
        loss = spend.loss(accountant.adjacency)
        token = accountant.issue(loss, users=rows.users, label="first")
        with token.spend(spend) as receipt:
            values = receipt.open(rows)
            total = values.sum(axis=0)
            noise = receipt.draw(total.shape)
            if self.fault == "own loss, not a function of the rows":
                total = total + 1e-3 * next(ODD)
            if self.fault == "mean of the rows that count":
                total = USERS * total / max(int(np.any(values, axis=1).sum()), 1)
            result = receipt.release(total + noise)
        if self.fault == "raw value beside":
            return result, values.sum()
        if self.fault == "fewer calls" and not np.any(values, axis=1).all():
            return result
        parameters: dict[str, Any] = {"grid": [0.0] * 3_000}
        if self.fault == "long parameter":
            parameters["grid"][1_500] = float(np.abs(values).max())
        spend = Spend("careless", Ball(1.0, DIM), GaussianNoise(20.0), parameters=parameters)
        token = accountant.issue(spend.loss(accountant.adjacency), users=rows.users, label="second")
        with token.spend(spend) as receipt:
            total = receipt.open(rows).sum(axis=0)
            return receipt.release(total + receipt.draw(total.shape))


ODD = iter(np.linspace(0, 1, 1_000))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raw value beside", r"the public state depends on data .*: the output\n  the output\[1\]"),
        ("fewer calls", "event 3: spend of 'second' .*, then nothing"),
        ("long parameter", r"event 3 \(spend of 'second' at clock 12\)\['parameters'\]\['grid'\]"),
    ],
)
def test_the_named_leaks_of_pipelines_are_caught(fault: str, message: str) -> None:
    data, other = blocks(0, 3)
    data[3] = 0.9, 0.0  # the longest row
    data[:3] *= 0.1
    data[4:] *= 0.1
    other = np.where(np.arange(USERS)[:, None] == 3, np.nan, data)
    assert_pipeline_noninterference(Careless("none").release, data, other)
    with pytest.raises(InterferenceError, match=message):
        assert_pipeline_noninterference(Careless(fault).release, data, other)


def test_a_bad_record_left_out_of_a_mean_is_caught() -> None:
    data = np.zeros((USERS, DIM))
    data[0], data[3] = (1, 0), (-0.9, 0)
    assert_pipeline_noninterference(Careless("none").release, data, 3)
    with pytest.raises(InterferenceError, match=r"value moves by 11.4 in l2, paid for 2"):
        assert_pipeline_noninterference(Careless("mean of the rows that count").release, data, 3)


def test_a_stream_that_moves_by_more_than_was_paid_for_is_caught() -> None:
    def magnified(accountant: Any, rows: Rows[Array], by: float) -> Any:
        spend = Spend("prefix-sum", Ball(1.0, DIM), GaussianNoise(20.0), interactive=True)
        loss = spend.loss(accountant.adjacency)
        token = accountant.issue(loss, users=rows.users, label="sums")
        with token.spend(spend) as receipt:
            sums = np.cumsum(receipt.open(rows), axis=0)
            result = receipt.publish(by * sums + receipt.draw(sums.shape))
            receipt.close()
        return result

    data = np.zeros((USERS, DIM))
    other = data.copy()
    data[3], other[3] = (1, 0), (-1, 0)
    assert_pipeline_noninterference(partial(magnified, by=1.0), data, other)
    with pytest.raises(InterferenceError, match=r"value moves by 3 in l2, paid for 2; entry"):
        assert_pipeline_noninterference(partial(magnified, by=1.5), data, other)


class IssuesAndRetires:
    """The ledger tells of a large record, though nothing is spent on it."""

    def __init__(self, accountant: Any) -> None:
        self._accountant, self._clock = accountant, 0

    def predict(self, x: Array) -> None:
        """Nothing goes to anybody."""

    def partial_fit(self, x: Array, y: float) -> None:
        user = range(self._clock, self._clock + 1)
        self._clock += 1
        size = "large" if abs(y) > 100 else "small"
        self._accountant.issue(ZCDP("0.001"), users=user, label=size).retire()


def test_entries_without_a_spend_are_compared() -> None:
    data, neighbour = points(0, 4)
    with pytest.raises(
        InterferenceError, match=r"ledger entry 9\['label'\]: 'small', then 'large'"
    ):
        on_line(IssuesAndRetires, data, neighbour, may_spend_nothing=True)


def test_batch_statistics_in_row_maps_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = blocks(0, 3)
    other = np.where(np.arange(USERS)[:, None] == 3, 50.0, data)
    with pytest.raises(InterferenceError, match=r"RowLocalityError: map_rows\(.*centred"):
        assert_pipeline_noninterference(centred, data, other)
    # The replay sees it by itself, too, such as in functions that the spot check leaves out.
    monkeypatch.setattr(RowFunction, "check", lambda *_: None)
    with pytest.raises(InterferenceError, match=r"rows of users .* changed with user 3"):
        assert_pipeline_noninterference(centred, data, other)


def test_a_mechanism_that_draws_on_something_else_cannot_be_judged() -> None:
    data, other = blocks(0, 3)
    with pytest.raises(CheckError, match="does not do the same twice on the same data"):
        assert_pipeline_noninterference(
            Careless("own loss, not a function of the rows").release, data, other
        )


# What is released is a function of opened rows and noise ------------------------------------------


class Whispers:
    """Adds what it should not know to a release, by less than the sensitivity that was paid for."""

    def __init__(self, accountant: Any, own: bool = False) -> None:
        self._accountant, self._own, self._seen, self._clock = accountant, own, 0.0, 0
        self._rows: list[Rows[Array]] = []

    def partial_fit(self, x: Array) -> None:
        user = range(self._clock, self._clock + 1)
        self._clock += 1
        self._seen += float(np.sum(x))
        self._rows.append(Rows.seal(np.array(x)[None], users=user))
        if self._clock == USERS:
            self.total = self._release(Rows.concat(self._rows))

    def whisper(self) -> float:
        return 1e-6 * math.tanh(self._seen)

    def _release(self, rows: Rows[Array]) -> Array:
        own = GaussianLoss("0.01") if self._own else None
        spend = Spend("whisper", Ball(1.0, DIM), GaussianNoise(20.0), own_loss=own)
        loss = spend.loss(self._accountant.adjacency)
        token = self._accountant.issue(loss, users=rows.users, label="sum")
        with token.spend(spend) as receipt:
            total = receipt.open(rows).sum(axis=0)
            noisy = total + receipt.draw(total.shape) + self.whisper()
            return np.array(receipt.release(noisy).value)


class Silent(Whispers):
    def whisper(self) -> float:
        return 0.0


@pytest.mark.parametrize("own", [False, True])
def test_unpaid_data_within_the_sensitivity_are_caught(own: bool) -> None:
    rng = np.random.default_rng(0)
    data = [0.1 * rng.normal(size=DIM) for _ in range(USERS)]
    neighbour = replaced(data, 4, np.array([0.3, 0.2]))

    def fits(learner: Any, users: Iterable[Any]) -> Iterator[None]:
        for x in users:
            yield learner.partial_fit(x)

    check = partial(
        assert_noninterference,
        data=data,
        neighbour=neighbour,
        protocol=fits,
        accountant=CentralAccountant,
    )
    assert check(lambda accountant: Silent(accountant, own)).runs == 3
    with pytest.raises(InterferenceError, match=r"rows of the first run put back: .* paid for 0"):
        check(lambda accountant: Whispers(accountant, own))


def test_the_minimiser_moves_no_further_than_strong_convexity_allows() -> None:
    fit = ObjectivePerturbation(
        LinearObjective.logistic(DIM), ridge=2.0, noise_std=3.0, blur_std=0.05, max_rows=USERS
    )
    spread = fit.objective.spread(Adjacency.REPLACE_ONE)
    far = minimiser_moves(fit.spend())
    assert far is not None
    assert far == pytest.approx(spread / 2 + 2 * fit.solver_error, rel=1e-12)
    assert minimiser_moves(NoisySum(Ball(1.0, 2), GaussianNoise(3.0)).spend()) is None

    def tilted(accountant: Any, rows: Rows[Any]) -> Any:
        spend = fit.spend()
        token = accountant.issue(fit.loss(), users=rows.users, label="fit")
        with token.spend(spend) as receipt:
            records = receipt.open(rows)
            noise = receipt.draw_variates(DIM).floors * (fit.noise_std * 2.0**-40)
            return receipt.release(5 * records[:, :DIM].sum(axis=0) + noise)

    data = np.tile([1.0, 0.0], (USERS, 1)), np.ones(USERS)
    other = data[0].copy(), data[1]
    other[0][2] = -1.0, 0.0
    with pytest.raises(InterferenceError, match=f"by 10 in l2, paid for {far:.6g}"):
        assert_pipeline_noninterference(tilted, data, other, budget=ZCDP(50))


# Never a pass -------------------------------------------------------------------------------------


class Served:
    """Shows everybody the same and spends nothing."""

    def __init__(self, accountant: Any) -> None:
        pass

    def select(self, features: Any) -> Any:
        return np.arange(2)

    def observe(self, choice: Any) -> None:
        pass


class FailsAlways(Served):
    def select(self, features: Any) -> Any:
        raise RuntimeError("no such item")


class FailsToStart(Served):
    def __init__(self, accountant: Any) -> None:
        raise SystemExit("never")


class RunsOut(Served):
    left = 2

    def select(self, features: Any) -> Any:
        self.left -= 1
        return np.arange(2 / (self.left >= 0))


class HangsOnBadData(Served):
    def select(self, features: Any) -> Any:
        while not np.isfinite(features).all():
            try:
                time.sleep(0.01)
            except Exception:  # what is raised to end it is no Exception
                continue
        return np.arange(2)


class Impatient(Served):
    def select(self, features: Any) -> Any:
        time.sleep(0.05)
        return np.arange(2)


CALLS = iter(range(10**6))


class Unseeded(Served):
    def select(self, features: Any) -> Any:
        return np.array([next(CALLS)])


def crowd() -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    data = [shopper(rng) for _ in range(4)]
    return data, replaced(data, 1, null_person())


@pytest.mark.parametrize(
    ("learner", "told"),
    [
        (FailsAlways, "it stopped after user 0 of 4; an error for 4 .*: no such item"),
        (FailsToStart, "SystemExit: never"),
        (RunsOut, "it stopped after user 2 of 4; an error for 2 of 4 users: .*ZeroDivisionError"),
    ],
)
def test_a_learner_that_fails_in_both_worlds_does_not_pass(learner: Any, told: str) -> None:
    message = rf"fails on both data sets, .*{told}.*\n  user 1 of 4"
    with pytest.raises(CheckError, match=message):
        assert_noninterference(learner, *crowd())


def test_a_learner_that_spends_nothing_passes_only_if_asked() -> None:
    with pytest.raises(CheckError, match="spent nothing on these 4 users"):
        assert_noninterference(Served, *crowd())
    found = assert_noninterference(Served, *crowd(), may_spend_nothing=True)
    assert found == Replay(4, 1, spends=0, releases=0, moved=0, runs=2)


def test_a_learner_that_hangs_does_not_pass() -> None:
    start = time.monotonic()
    with pytest.raises(CheckError, match=r"did not end within 0.3 seconds; 2 of 4 users"):
        assert_noninterference(HangsOnBadData, *crowd(), seconds=0.3, may_spend_nothing=True)
    assert time.monotonic() - start < 30
    assert_noninterference(Served, *crowd(), seconds=0.3, may_spend_nothing=True)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0, "no alarm is left behind"


def test_somebody_elses_alarm_goes_on() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert_noninterference(Served, *crowd(), may_spend_nothing=True)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.2
        time.sleep(0.25)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rung == [signal.SIGALRM]


def test_outside_the_main_thread_time_is_up_between_users() -> None:
    caught: list[BaseException] = []

    def check() -> None:
        try:
            assert_noninterference(Impatient, *crowd(), seconds=0.12, may_spend_nothing=True)
        except CheckError as error:
            caught.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert "did not end within 0.12 seconds" in str(caught[0])


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_time_limits_are_finite_and_positive(seconds: float) -> None:
    with pytest.raises(CheckError, match="seconds = "):
        assert_noninterference(Served, *crowd(), seconds=seconds, may_spend_nothing=True)


def test_a_learner_that_differs_from_itself_cannot_be_judged() -> None:
    with pytest.raises(CheckError, match=r"not do the same twice .* user 0 received .*, then"):
        assert_noninterference(Unseeded, *crowd(), may_spend_nothing=True)


def test_response_functions_must_not_raise_where_nobody_catches_it() -> None:
    data, _ = crowd()
    bad = null_person()
    bad.answer = lambda items: 1 // 0
    with pytest.raises(CheckError, match=r"Person\(null record\): its response function raises"):
        assert_noninterference(Served, data, replaced(data, 1, bad), may_spend_nothing=True)


def test_what_users_say_is_not_heard() -> None:
    data, _ = crowd()
    loud = null_person()
    loud.answer = lambda items: print("it is me")
    assert_noninterference(Served, data, replaced(data, 1, loud), may_spend_nothing=True)


@pytest.mark.parametrize("times", [0, 2])
def test_protocols_yield_once_per_user(times: int) -> None:
    def protocol(learner: Any, users: Iterable[Any]) -> Iterator[None]:
        for _ in users:
            yield from [None] * times

    with pytest.raises(CheckError, match=f"yielded {4 * times} times for 4 users"):
        assert_noninterference(Served, *crowd(), protocol=protocol, may_spend_nothing=True)


@pytest.mark.parametrize(
    "output",
    [
        lambda x: x,
        lambda x: np.array(x),
        lambda x: {"a": [1, (2, x)]},
        lambda x: str(x),
        lambda x: LaplaceLoss(3 + x),
        lambda x: math.nan if x > 0 else math.inf,
        lambda x: 1 if x > 0 else 1.0,
        lambda x: 0.0 if x > 0 else -0.0,
        lambda x: True if x > 0 else 1,
    ],
)
def test_outputs_of_any_kind_are_compared_to_the_bit(output: Callable[[float], Any]) -> None:
    def passing_on(learner: Any, users: Iterable[Any]) -> Iterator[Any]:
        last = 0.5
        for x in users:
            yield output(last)
            last = x

    data = [float(x) for x in (1, 2, 3, 4)]
    neighbour = replaced(data, 1, -2.0)
    with pytest.raises(InterferenceError, match="user 2 received"):
        assert_noninterference(Served, data, neighbour, protocol=passing_on, may_spend_nothing=True)

    def honest(learner: Any, users: Iterable[Any]) -> Iterator[Any]:
        for x in users:
            yield output(x)

    assert_noninterference(Served, data, neighbour, protocol=honest, may_spend_nothing=True)


class RaisesInPublicState(Served):
    def __init__(self, accountant: Any) -> None:
        self._seen = 0.0

    def select(self, features: Any) -> Any:
        self._seen += float(np.sum(np.isnan(features)))
        return np.arange(2)

    def public_state(self) -> Any:
        return 1 / (1.0 - bool(self._seen))


def test_a_public_state_that_cannot_be_read_is_compared_as_such() -> None:
    with pytest.raises(
        InterferenceError, match=r"public_state\(\): 1.0, then .raises ZeroDivision"
    ):
        assert_noninterference(RaisesInPublicState, *crowd(), may_spend_nothing=True)


def test_pipelines_need_neighbours() -> None:
    data, other = blocks(0, 3)
    for bad, message in (
        (data.copy(), r"must replace exactly one of 12 rows; differs at \[\]"),
        (data + 1, r"differs at \[0, 1, 2, 3, 4\]"),
        (data[:-1], "has 11 rows"),
        (12, "neighbour = 12: must be one of 12 users"),
    ):
        with pytest.raises(CheckError, match=message):
            assert_pipeline_noninterference(two_steps, data, bad)
    with pytest.raises(CheckError, match="the pipeline spent nothing"):
        assert_pipeline_noninterference(lambda accountant, rows: 1, data, other)
    with pytest.raises(CheckError, match="the pipeline fails on both data sets"):
        assert_pipeline_noninterference(lambda accountant, rows: rows[0], data, other)


def test_strangers_are_strange_to_learners_that_trust_them() -> None:
    class Trusting(Served):
        def select(self, features: Any) -> Any:
            return np.argsort(-np.asarray(features, dtype=float).sum(axis=1))[:2]

    rng, caught = np.random.default_rng(0), 0
    for _ in range(60):
        data = [shopper(rng) for _ in range(3)]
        try:
            neighbour = replaced(data, 1, stranger(rng))
            assert_noninterference(Trusting, data, neighbour, may_spend_nothing=True)
        except InterferenceError:
            caught += 1
    assert 0 < caught < 55
