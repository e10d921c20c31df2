"""Learners on logged rows whose processes die: what they know then, and how they go on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropped_ledgers import begun, die, dying_at, resumed
from grids import thinned

from privlearn.accountants import audit, streams
from privlearn.errors import LedgerError, TokenError
from privlearn.learners import tofw_buffered, tofw_plain, tofw_whitened
from privlearn.learners.noisy_sgd import NoisySGD
from privlearn.learners.planned_stream import PlannedStream
from privlearn.learners.pofw import DPPOFW
from privlearn.learners.streaming import StreamLearner
from privlearn.learners.successive_streams import SuccessiveStreams
from privlearn.learners.tofw import DPTOFW
from privlearn.learners.whitened_descent import WhitenedDescent
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP
from privlearn.mechanisms import (
    BatchedPrefixSum,
    NoisyMaxStream,
    NoisySum,
    PrefixSum,
    ReportNoisyMax,
)
from privlearn.mechanisms.constraint_sets import LpBall, Polytope, Simplex
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.participation import Participation
from privlearn_studies.rivals.convex import LocalMD, NoisySFW, PublishedTOFW

DIM, USERS, SEGMENT = 3, 240, 16
THETA = np.array([0.5, -0.3, 0.2])
BALL = LpBall(DIM, 1, 2.0)
CORNERS = Polytope(np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [-1.0, -1.0, 0]]))

LEARNERS: dict[str, Callable[[], StreamLearner]] = {
    "plain": lambda: DPTOFW(DIM, method="plain"),
    "anytime": lambda: DPTOFW(DIM, method="plain", anytime=True),
    "buffered": lambda: DPTOFW(DIM, method="buffered"),
    "whitened": lambda: DPTOFW(DIM, method="whitened", constant=0.5),
    "thresholds": lambda: DPPOFW(BALL, method="thresholds"),
    "projections": lambda: DPPOFW(Simplex(DIM), method="projections"),
    "choices": lambda: DPPOFW(BALL, method="choices"),
    "signs": lambda: DPPOFW(BALL, method="choices"),
    "vertices": lambda: DPPOFW(CORNERS, method="vertices"),
    "auto": lambda: DPPOFW(CORNERS),
    "picks": lambda: DPPOFW(Simplex(DIM), method="published"),
    "sfw": lambda: NoisySFW(DIM),
    "sfw generalized": lambda: NoisySFW(DIM, p=1.5, noise="generalized"),
    "sgd": lambda: NoisySGD(DIM, passes=12),
    "descent": lambda: WhitenedDescent(DIM, row_norm=1.0),
    "mirror": lambda: LocalMD(DIM, steps=6),
    "tree": lambda: PublishedTOFW(DIM, p=1.5),
}
every = pytest.mark.parametrize("name", LEARNERS)
some = pytest.mark.parametrize("name", thinned(LEARNERS))
KEPT = ("buffered", "whitened", "choices", "signs", "vertices", "sfw", "sgd", "descent", "mirror")
"""Nothing of these is open before the end of an epoch."""


def budget(name: str) -> Any:
    return PureDP(20) if name == "signs" else ZCDP(20)


def data(users: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(users, DIM))
    x /= 2 * np.abs(x).sum(axis=1)[:, None]
    x[:, -1] = 0.5
    return x, x @ THETA


@pytest.fixture(autouse=True)
def _short_segments_and_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEGMENT", SEGMENT)
    monkeypatch.setattr(tofw_buffered, "_STEPS", 12)
    monkeypatch.setattr(tofw_whitened, "_STEPS", 4)


def fed(learner: StreamLearner, stop: int, size: int = 64, **more: Any) -> None:
    x, y = data(USERS)
    while (at := learner.clock_) < stop:
        part = slice(at, min(at + size, stop))
        given = {name: value[part] for name, value in more.items()}
        learner.partial_fit(x[part], y[part], **given)


def public(learner: StreamLearner) -> tuple[int, bytes]:
    return learner.clock_, learner.coef_.tobytes()


def again(name: str, path: Path, seed: int, **more: Any) -> tuple[Any, Any]:
    """After a restart; None in place of a learner that was not begun."""
    accountant = resumed(path, seed, **more)
    if accountant.learner is None:
        return accountant, None
    return accountant, type(LEARNERS[name]()).resume(accountant)


def whole(path: Path, accountant: Any) -> Any:
    accountant.close()
    found = audit(path)
    assert found.problems == []
    return found


@some
def test_it_goes_on_with_what_it_knew_to_the_last_bit(name: str, tmp_path: Path) -> None:
    path, choose = tmp_path / "l.db", random.Random(name)
    accountant = begun(path, budget(name), USERS)
    learner = LEARNERS[name]().start(accountant)
    for number in range(2):
        fed(learner, choose.randint(learner.clock_, USERS), choose.choice([1, 37, 300]))
        clock, knew = public(learner)
        die(accountant)
        accountant, learner = again(name, path, number)
        found = public(learner)
        die(accountant)
        accountant, learner = again(name, path, 10 + number)
        assert public(learner) == found
        assert found[1] == knew
        assert found[0] <= clock + SEGMENT  # nobody is lost but of one segment
        if name in KEPT:
            assert found[0] <= clock
    fed(learner, USERS, 50)
    assert learner.coef_.any()
    assert whole(path, accountant).lost <= 2


@some
def test_it_goes_on_wherever_it_died(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(name)
    path = tmp_path / "l.db"
    accountant = begun(path, budget(name), USERS)
    learner: Any = None
    for entry in (choose.randint(1, 8), choose.randint(2, 30)):
        with dying_at(monkeypatch, entry, written=choose.random() < 0.5):
            learner = LEARNERS[name]().start(accountant) if learner is None else learner
            fed(learner, USERS, choose.choice([5, 60]))
        die(accountant)
        accountant, learner = again(name, path, entry)
        found = None if learner is None else public(learner)
        die(accountant)
        accountant, learner = again(name, path, entry + 1)
        assert found == (None if learner is None else public(learner))
    learner = LEARNERS[name]().start(accountant) if learner is None else learner
    fed(learner, USERS, 60)
    assert whole(path, accountant).lost <= 2


@some
def test_nothing_is_worked_out_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version, whose calibration is another, goes on with the numbers of the older one."""
    path = tmp_path / "l.db"
    accountant = begun(path, budget(name), USERS)
    learner = LEARNERS[name]().start(accountant)
    fed(learner, 150)
    knew = learner.coef_
    die(accountant)
    size = len(accountant.learner.model_dump_json())
    assert size < 20_000

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("calibrated anew")

    kinds = (PrefixSum, BatchedPrefixSum, NoisySum, ReportNoisyMax, NoisyMaxStream)
    for kind in kinds:
        monkeypatch.setattr(kind, "calibrated", refuse)
    for module in ("prefix_sums", "batched_sums"):
        monkeypatch.setattr(f"privlearn.mechanisms.{module}.least_error", refuse)
    rules = ("tofw.scale_of", "pofw.scale_of", "pofw.epoch_sizes")
    for rule in rules:
        monkeypatch.setattr(f"privlearn.learners.{rule}", refuse)
    monkeypatch.setattr("privlearn.learners.noisy_sgd.scale_of", refuse)
    with pytest.raises(AssertionError, match="anew"):  # it would be seen
        LEARNERS[name]().start(begun(tmp_path / "other.db", budget(name), USERS))
    accountant, learner = again(name, path, 1)
    assert np.array_equal(learner.coef_, knew)
    fed(learner, USERS)
    whole(path, accountant)


@pytest.mark.parametrize("name", KEPT)
def test_rows_of_an_unfinished_batch_can_be_sent_again(name: str, tmp_path: Path) -> None:
    """As nothing of them was in a release, it is as if nothing had happened."""
    path = tmp_path / "l.db"
    accountant = begun(path, budget(name), USERS, seed=5)
    learner = LEARNERS[name]().start(accountant)
    fed(learner, 40)
    assert accountant.ledger.entries[-1].entry == "plan"
    die(accountant)
    accountant, learner = again(name, path, 5)
    assert learner.clock_ == 0
    fed(learner, USERS, 33)
    other = LEARNERS[name]().start(begun(tmp_path / "other.db", budget(name), USERS, seed=5))
    fed(other, USERS, 100)
    assert np.array_equal(learner.coef_, other.coef_)
    whole(path, accountant)


@pytest.mark.parametrize("name", ["thresholds", "projections"])
def test_rows_that_a_stream_never_took_are_learned_by_the_next_one(
    name: str, tmp_path: Path
) -> None:
    """Nothing is lost but the segment: with no noise, θ of the others is what all would give."""
    path, room = tmp_path / "l.db", ZCDP(10**6)
    accountant = begun(path, room, USERS)
    learner = LEARNERS[name]().start(accountant)
    fed(learner, 90, 7)
    die(accountant)
    accountant, learner = again(name, path, 1)
    lost = learner.clock_ - 90
    assert 0 <= lost < SEGMENT
    fed(learner, USERS, 7)
    other = LEARNERS[name]().start(begun(tmp_path / "other.db", room, USERS))
    fed(other, USERS, 7)
    assert np.linalg.norm(learner.coef_ - other.coef_) < 0.1 * np.linalg.norm(other.coef_)
    whole(path, accountant)


@pytest.mark.parametrize("dies", [203, 305])
def test_the_gradient_is_that_of_the_rows_that_were_learned(dies: int, tmp_path: Path) -> None:
    """Where all rows are alike, and there is no noise, the running sum is users·gradient."""
    users = 400
    path, room = tmp_path / "l.db", ZCDP(10**9)
    x, y = np.tile([0.3, -0.2, 0.4], (users, 1)), np.full(users, 0.7)

    def alike(learner: Any, stop: int) -> None:
        while (at := learner.clock_) < stop:
            learner.partial_fit(x[at : min(at + 5, stop)], y[at : min(at + 5, stop)])

    accountant = begun(path, room, users)
    learner: Any = DPTOFW(DIM, method="plain", clip=5.0).start(accountant)
    alike(learner, dies)
    die(accountant)
    accountant = resumed(path)
    learner = DPTOFW.resume(accountant)
    strategy = learner._strategy
    alike(learner, 330)
    ends = strategy.next_change()
    alike(learner, ends - 1)
    stream = strategy.streams()[0]
    theta = strategy._aimed.theta
    alike(learner, ends)
    gradient = (x[0] @ theta - y[0]) * x[0]
    assert stream.number == 2
    assert stream.learned < ends - stream.users.start
    found = stream._before + np.asarray(stream._total).reshape(-1)
    np.testing.assert_allclose(found, stream.learned * gradient, atol=0.02)
    accountant.close()


def test_one_death_does_not_undo_what_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With segments as they are; 0 for every score would have an excess risk of 0.04."""
    monkeypatch.setattr(streams, "SEGMENT", 256)
    users, dim = 2_000, 10
    rng = np.random.default_rng(3)
    theta, x = rng.normal(size=dim), rng.normal(size=(users, dim))
    theta *= 0.9 / np.linalg.norm(theta)
    x /= np.linalg.norm(x, axis=1)[:, None]
    y = x @ theta + 0.05 * rng.normal(size=users)
    accountant = begun(tmp_path / "l.db", ApproxDP(1, 1e-5), users, currency=GaussianDP)
    learner = DPTOFW(dim, method="plain").start(accountant).partial_fit(x[:1_100], y[:1_100])
    die(accountant)
    accountant = resumed(tmp_path / "l.db")
    learner = DPTOFW.resume(accountant)
    learner.partial_fit(x[learner.clock_ :], y[learner.clock_ :])
    assert ((learner.coef_ - theta) ** 2).sum() / (2 * dim) < 4e-3
    whole(tmp_path / "l.db", accountant)


# Steps on rows that are gone ----------------------------------------------------------------


@pytest.mark.parametrize(("name", "label"), [("buffered", "step"), ("sgd", "step")])
def test_steps_whose_rows_are_gone_are_passed_over(
    name: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.db"
    accountant = begun(path, budget(name), USERS)
    learner = LEARNERS[name]().start(accountant)
    with dying_at(monkeypatch, 25, written=True):  # entries of 8 steps
        fed(learner, USERS)
    die(accountant)
    accountant, learner = again(name, path, 1)
    made = [entry for entry in accountant.ledger.entries if getattr(entry, "label", "") == label]
    assert 5 <= len(made) <= 10
    assert learner.coef_.any()  # of the steps that were made
    fed(learner, USERS)
    rows = range(0, 48) if name == "buffered" else range(USERS)
    assert accountant.left(label, rows) > 0  # which nobody can take any more
    whole(path, accountant)


@pytest.mark.parametrize("name", ["buffered", "whitened", "sgd", "mirror"])
@pytest.mark.parametrize("entry", [12, 17, 22])
def test_a_death_among_steps_leaves_what_everybody_saw_before(
    name: str, entry: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """θ is that of the steps which were made, also while the others are still to come."""
    accountant = begun(tmp_path / "l.db", budget(name), USERS)
    learner = LEARNERS[name]().start(accountant)
    with dying_at(monkeypatch, entry, written=False):
        fed(learner, USERS)
    die(accountant)
    knew = learner.coef_
    assert knew.any()
    accountant, learner = again(name, tmp_path / "l.db", 1)
    np.testing.assert_array_equal(learner.coef_, knew)
    fed(learner, USERS)
    whole(tmp_path / "l.db", accountant)


@pytest.mark.parametrize("lost", ["choice", "values"])
def test_a_choice_without_values_moves_nothing(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.db"
    accountant = begun(path, budget("choices"), USERS)
    learner = LEARNERS["choices"]().start(accountant)
    entries = 2 if lost == "choice" else 5  # issue, spend, retire of the choice; then of values
    with dying_at(monkeypatch, entries, written=True):
        fed(learner, USERS)
    die(accountant)
    accountant, learner = again("choices", path, 1)
    issued = [entry for entry in accountant.ledger.entries if entry.entry == "issue"]
    assert issued[-1].label == lost
    assert learner.clock_ > 0
    assert not learner.coef_.any()
    fed(learner, USERS)
    assert learner.coef_.any()
    assert whole(path, accountant).lost == 1


# Closing -------------------------------------------------------------------------------------


def test_a_closed_learner_stays_closed(tmp_path: Path) -> None:
    name, path = "plain", tmp_path / "l.db"
    accountant = begun(path, budget(name), USERS)
    learner: Any = LEARNERS[name]().start(accountant)
    fed(learner, 165)
    learner.close()
    knew = learner.coef_
    die(accountant)
    for number in range(2):
        accountant, learner = again(name, path, number)
        assert np.array_equal(learner.coef_, knew)
        assert learner.clock_ <= 165
        with pytest.raises(RuntimeError, match="was closed"):
            fed(learner, USERS)
        die(accountant)
    found = audit(path)
    assert found.problems == []
    assert found.lost == 0


# Under a rule of participation --------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "buffered", "whitened", "thresholds"])
@pytest.mark.parametrize("rule", [Participation(1), Participation(3, 20)], ids=repr)
def test_persons_who_return_do_so_after_a_restart(
    name: str, rule: Participation, tmp_path: Path
) -> None:
    """With several visits a stream that died has no rest: θ stays as it is to the next one."""
    path, registry = tmp_path / "l.db", tmp_path / "people.db"
    ids = [f"person {i % 90}" for i in range(USERS)]
    people = People.create(registry, rule)
    accountant = begun(path, budget(name), USERS, people=people)
    learner = LEARNERS[name]().start(accountant)
    for number, stop in enumerate((70, 150)):
        fed(learner, max(stop, learner.clock_), 30, people=ids)
        knew = learner.coef_
        die(accountant)
        people.close()
        people = People.open(registry)
        accountant, learner = again(name, path, number, people=people)
        assert np.array_equal(learner.coef_, knew)
        assert learner.clock_ == people.clock
    fed(learner, USERS, 30, people=ids)
    assert whole(path, accountant).lost <= 4
    people.close()


# Planted faults ------------------------------------------------------------------------------


def test_a_stream_that_takes_rows_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.db"
    accountant = begun(path, budget("plain"), USERS)
    learner = LEARNERS["plain"]().start(accountant)
    fed(learner, 100)
    die(accountant)
    accountant, learner = again("plain", path, 1)
    begin = PlannedStream._begin

    def from_the_first(self: Any, users: range) -> None:
        begin(self, range(0, users.stop))

    monkeypatch.setattr(PlannedStream, "_begin", from_the_first)
    with pytest.raises(Exception, match=r"not .*in the committed plan"):
        fed(learner, USERS)


def test_a_mechanism_that_is_calibrated_anew_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.db"
    accountant = begun(path, budget("plain"), USERS)
    fed(LEARNERS["plain"]().start(accountant), 100)
    die(accountant)
    monkeypatch.setattr(StreamLearner, "_fixed", lambda self, name, make: make())
    monkeypatch.setattr(tofw_plain, "_CLIP", 2 * tofw_plain._CLIP)  # as a newer version might
    with pytest.raises(LedgerError):
        again("plain", path, 1)


def test_steps_that_do_not_ask_what_is_left_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.db"
    accountant = begun(path, budget("buffered"), USERS)
    learner = LEARNERS["buffered"]().start(accountant)
    with dying_at(monkeypatch, 25, written=True):
        fed(learner, USERS)
    die(accountant)
    monkeypatch.setattr(type(accountant), "left", lambda *_: 1)
    with pytest.raises(LedgerError, match="no such token released anything"):
        again("buffered", path, 1)


def test_a_stream_that_is_opened_in_a_replay_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.db"
    accountant = begun(path, budget("thresholds"), USERS)
    fed(LEARNERS["thresholds"]().start(accountant), 3)  # its stream took rows and said nothing
    die(accountant)

    def at_once(self: SuccessiveStreams[Any], users: range) -> range:
        if self._stream is None:
            self._begin(self.users)
        return users

    monkeypatch.setattr(SuccessiveStreams, "takes", at_once)
    with pytest.raises(LedgerError, match="no such token released anything"):
        again("thresholds", path, 1)


def test_the_noise_of_a_stream_that_ended_is_not_forgotten(tmp_path: Path) -> None:
    """θ is tempered by the variance of all that is in its gradient: by numbers."""
    path = tmp_path / "l.db"
    accountant = begun(path, ZCDP("0.5"), USERS)
    learner: Any = LEARNERS["plain"]().start(accountant)
    fed(learner, 200)
    before = learner._strategy._noise
    die(accountant)
    accountant, learner = again("plain", path, 1)
    fed(learner, learner.clock_ + 1)
    strategy = learner._strategy
    stream, block = strategy._stream, strategy._aimed.users
    sums = stream.sums
    expected = sums.error_std(200) ** 2 + sums.error_std(block.stop - stream.first) ** 2
    assert strategy._noise == pytest.approx(DIM * expected)
    assert strategy._noise > before
    assert not math.isclose(strategy._noise, DIM * sums.error_std(block.stop) ** 2, rel_tol=0.05)
    accountant.close()


def test_null_rows_of_a_replay_release_nothing(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    accountant = begun(path, budget("plain"), USERS)
    fed(LEARNERS["plain"]().start(accountant), 100)
    die(accountant)
    accountant, learner = again("plain", path, 1)
    entries = len(accountant.ledger.entries)
    with pytest.raises(TokenError):
        learner._strategy._stream.open.append(Rows.null(range(100, 101)))
    assert len(accountant.ledger.entries) == entries
