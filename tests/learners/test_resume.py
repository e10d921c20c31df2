"""Served learners go on from their ledger, wherever the process before ended."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resuming import (
    DIM,
    LEARNERS,
    N_ITEMS,
    Population,
    T,
    again,
    begin,
    die,
    estimates,
    killed_at,
)

from privlearn.accountants import JointAccountant, audit
from privlearn.accountants.replay import Replay
from privlearn.errors import BudgetError, LedgerError
from privlearn.learners import (
    DPHDB,
    DPMNL,
    OnePassNewtonMNL,
    dpmnl,
    hdb,
    least_squares,
    one_pass_newton,
    one_pass_newton_glm,
)
from privlearn.learners.base import Learner
from privlearn.learners.batch_sums import CorrelatedSums
from privlearn.learners.planned_stream import PlannedStream
from privlearn.learners.stored import restored, stored
from privlearn.ledger.entries import LearnerEntry, RetireEntry, SpendEntry
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, ObjectivePerturbation, PrefixSum
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.noisy_max import ReportNoisyMax
from privlearn.mechanisms.one_of_k import OneOfK
from privlearn.mechanisms.scalar_objectives import SquaredObjective
from privlearn.people import People
from privlearn.values.participation import Participation

ALL = pytest.mark.parametrize("name", LEARNERS)


def resumed(name: str, path: Path, seed: int = 1) -> tuple[Any, Any]:
    accountant = again(path, seed)
    return accountant, type(LEARNERS[name]()).resume(accountant)


@ALL
def test_a_learner_goes_on_from_wherever_its_process_ended(name: str, tmp_path: Path) -> None:
    path, crowd = tmp_path / "ledger", Population()
    accountant: Any = begin(path)
    learner: Any = LEARNERS[name]().start(accountant)
    points = [int(p) for p in np.random.default_rng(3).integers(60, T, size=3)]
    for number, point in enumerate(sorted(points)):
        if point > learner.clock_:
            crowd.play(learner, point)
        left = estimates(learner)
        die(accountant)
        accountant, learner = resumed(name, path, number)
        assert estimates(learner) == left
        first = learner.public_state()
        die(accountant)  # once more, before anybody came
        accountant, learner = resumed(name, path, number + 10)
        assert learner.public_state() == first
    crowd.play(learner, T)
    accountant.close()
    certificate = audit(path)
    assert certificate.problems == []
    assert accountant.budget.covers(accountant.spent())


@ALL
def test_a_learner_goes_on_after_every_entry(name: str, tmp_path: Path) -> None:
    """The process ends at an entry of the ledger, before or after it is written, and again."""
    crowd, rng = Population(), np.random.default_rng(5)
    path = tmp_path / "ledger"
    accountant: Any = begin(path)
    learner: Any = None
    deaths = 0
    for entry in [1, 2, 3, *rng.integers(1, 12, size=24).tolist(), 10_000]:
        with killed_at(accountant, entry, written=bool(rng.integers(2))) as left:
            if learner is None:
                learner = LEARNERS[name]().start(accountant)
            crowd.play(learner, T)
        if left[0] > 0:
            break
        deaths += 1
        accountant = again(path, deaths)
        begun = accountant.learner is not None
        learner = type(LEARNERS[name]()).resume(accountant) if begun else None
        if begun and learner.clock_ == T:
            break
    assert deaths > 5
    assert learner.clock_ == T
    accountant.close()
    certificate = audit(path)
    assert certificate.problems == []
    ends = [e.outcome for e in accountant.ledger.entries if isinstance(e, RetireEntry)]
    assert certificate.lost == ends.count("lost") <= deaths
    assert sum(isinstance(e, LearnerEntry) for e in accountant.ledger.entries) == 1


# Numbers of the first start ----------------------------------------------------------------------


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("worked out anew")


def refuse_to_work_out(patch: pytest.MonkeyPatch) -> None:
    """All that chooses noise or public numbers is gone, or is otherwise in a later version."""
    for kind in (
        NoisySum,
        PrefixSum,
        BatchedPrefixSum,
        OneOfK,
        ReportNoisyMax,
        ObjectivePerturbation,
    ):
        patch.setattr(kind, "calibrated", classmethod(refuse))
    for module, name in (
        (one_pass_newton, "public_ends"),
        (one_pass_newton, "one_row_budget"),
        (one_pass_newton, "PersonBudgets"),
        (one_pass_newton_glm, "capped_ends"),
        (hdb, "epoch_ends"),
        (hdb, "one_row_budget"),
        (dpmnl, "dpmnl_noise"),
        (least_squares, "even_sizes"),
    ):
        patch.setattr(module, name, refuse)
    for name in ("_CLIP", "_PRIOR"):
        patch.setattr(one_pass_newton_glm, name, {"logistic": 0.1})
    for method in ("_fit_times", "_block_ends", "_first_rounds"):
        patch.setattr(DPMNL, method, refuse)
    patch.setattr(DPHDB, "_epochs", refuse)
    patch.setattr(DPHDB, "_setting", refuse)


def test_a_replay_that_decides_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version could: a value that was public would be in no state any more."""
    name, path, crowd = "dpmnl determinant", tmp_path / "ledger", Population()
    accountant: Any = begin(path)
    learner: Any = LEARNERS[name]().start(accountant)
    crowd.play(learner, T // 2)
    assert learner.updates_ > 1
    die(accountant)
    with monkeypatch.context() as patch:
        patch.setattr(DPMNL, "_fit_is_due", lambda self: False)
        with pytest.raises(LedgerError, match="not asked for again"):
            resumed(name, path)


def test_a_start_that_failed_takes_nobody(tmp_path: Path) -> None:
    path, crowd = tmp_path / "ledger", Population()
    accountant: Any = begin(path)
    LEARNERS["newton"]().start(accountant)
    die(accountant)
    accountant, _ = resumed("newton", path)
    other: Any = LEARNERS["newton"]()
    with pytest.raises(LedgerError, match="once"):
        other.start(accountant)
    with pytest.raises(RuntimeError, match="failed half-way"):
        crowd.play(other, 10)


@ALL
def test_nothing_is_worked_out_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    accountant: Any = begin(path)
    learner: Any = LEARNERS[name]().start(accountant)
    Population().play(learner, 400)
    state = estimates(learner)
    die(accountant)
    refuse_to_work_out(monkeypatch)
    accountant, learner = resumed(name, path)
    assert estimates(learner) == state
    Population().play(learner, T)
    entry = accountant.ledger.entries[1]
    assert len(entry.model_dump_json()) < 8_000


def test_a_learner_that_recalibrates_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above can fail."""

    def worked_out_again(self: Any, name: str, make: Any) -> Any:
        return self._made.setdefault(name, stored(made := make())) and made

    for name in LEARNERS:
        path = tmp_path / name
        accountant: Any = begin(path)
        LEARNERS[name]().start(accountant)
        die(accountant)
        with monkeypatch.context() as patch:
            patch.setattr(Learner, "_fixed", worked_out_again)
            refuse_to_work_out(patch)
            with pytest.raises((AssertionError, TypeError, AttributeError)):
                resumed(name, path)


@ALL
def test_what_is_worked_out_survives_the_ledger(name: str, tmp_path: Path) -> None:
    accountant: Any = begin(tmp_path / "ledger")
    LEARNERS[name]().start(accountant)
    for data in accountant.learner.made.values():
        found = restored(data)
        assert stored(found) == data
        assert repr(restored(json.loads(json.dumps(data)))) == repr(found)


# Start -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [None, Participation(1, per_batch=1)], ids=["users", "rule"])
@ALL
def test_a_start_that_was_cut_off_is_made_whole(
    name: str, rule: Participation | None, tmp_path: Path
) -> None:
    if rule is not None and name == "dpmnl determinant":
        pytest.skip("refuses rules")
    people = None if rule is None else People.memory(rule)
    whole: Any = begin(tmp_path / "whole", people=people)
    LEARNERS[name]().start(whole)
    expected = [e.entry for e in whole.ledger.entries]
    for entry in range(2, len(expected) + 2):
        for written in (False, True):
            path = tmp_path / f"{entry}{written}"
            people = None if rule is None else People.memory(rule)
            accountant: Any = begin(path, people=people)
            with killed_at(accountant, entry - 1, written=written):
                LEARNERS[name]().start(accountant)
            die(accountant)
            accountant = again(path, people=people)
            learner = LEARNERS[name]().start(accountant)
            assert [e.entry for e in accountant.ledger.entries] == expected
            assert accountant.remaining() == whole.remaining()
            assert learner.clock_ == 0


def test_other_parameters_are_refused_by_name(tmp_path: Path) -> None:
    accountant: Any = begin(tmp_path / "ledger")
    LEARNERS["newton"]().start(accountant)
    die(accountant)
    other = LEARNERS["newton"]().set_params(growth=1.7)
    with pytest.raises(LedgerError, match=r"growth = 1\.7: the learner was begun with 1\.1"):
        other.start(again(tmp_path / "ledger"))
    with pytest.raises(LedgerError, match=r"DPMNL: the ledger.*Newton.*\.resume\(accountant\)"):
        LEARNERS["dpmnl"]().start(again(tmp_path / "ledger"))
    with pytest.raises(LedgerError, match=r"DPHDB: the ledger.*Newton.*\.resume\(accountant\)"):
        DPHDB.resume(again(tmp_path / "ledger"))
    with pytest.raises(TypeError, match="must be given no parameters"):
        OnePassNewtonMNL.resume(again(tmp_path / "ledger"), growth=1.7)


def test_a_ledger_without_a_learner_is_not_gone_on_with(tmp_path: Path) -> None:
    accountant: Any = begin(tmp_path / "ledger")
    with pytest.raises(LedgerError, match="no learner: start one"):
        OnePassNewtonMNL.resume(accountant)
    accountant.issue(ZCDP("0.1"), users=range(T), label="mine")
    die(accountant)
    for kind in (LEARNERS["newton"], LEARNERS["dpmnl"]):
        with pytest.raises(LedgerError, match="begun without a learner"):
            kind().start(again(tmp_path / "ledger"))


class Own:
    """Somebody's own loss, of no class that a ledger can hold."""

    def __init__(self, bound: float) -> None:
        self._loss = SquaredObjective(bound)

    def __getattr__(self, name: str) -> Any:
        if name == "_loss":
            raise AttributeError(name)
        return getattr(self._loss, name)


def test_objects_of_ones_own_are_handed_in_again(tmp_path: Path) -> None:
    def make(loss: Any) -> DPHDB:
        return DPHDB(n_arms=N_ITEMS, dim=DIM, first_epoch=60, loss=loss)

    accountant: Any = begin(tmp_path / "ledger")
    learner = make(Own(1.0)).start(accountant)
    Population().play(learner, 300)
    state = learner.public_state()
    die(accountant)
    with pytest.raises(TypeError, match="must be given loss"):
        DPHDB.resume(again(tmp_path / "ledger"))
    with pytest.raises(LedgerError, match=r"loss = 'squared': the learner was begun with .*Own"):
        make("squared").start(again(tmp_path / "ledger"))
    accountant = again(tmp_path / "ledger")
    assert estimates(DPHDB.resume(accountant, loss=Own(1.0))) == {
        n: v for n, v in state.items() if n in estimates(learner)
    }
    die(accountant)
    path = tmp_path / "shipped"
    accountant = begin(path)
    make(SquaredObjective(1.0)).start(accountant)
    die(accountant)
    assert DPHDB.resume(again(path)).loss == SquaredObjective(1.0)


# What is lost ------------------------------------------------------------------------------------


TWICE = Participation(2, pooled=True)
"""A rule under which each batch of the learner is a release of its own."""


def test_batches_that_were_lost_are_neither_drawn_again_nor_confused(tmp_path: Path) -> None:
    """A crash between the spend and the release of a batch costs that batch, and no other."""
    path, crowd = tmp_path / "ledger", Population()
    people, who = People.memory(TWICE), ids(crowd)
    accountant: Any = begin(path, people=people)
    learner: Any = LEARNERS["newton"]().start(accountant)
    crowd.play(learner, 120, people=who[:120])
    released = learner._batch
    with killed_at(accountant, 2, written=True):  # issue, spend
        crowd.play(learner, T, people=who[120:])
    accountant = again(path, people=people)
    learner = OnePassNewtonMNL.resume(accountant)
    lost = learner._batches[released]
    assert learner.clock_ == lost.stop
    assert learner._batch == released + 1
    crowd.play(learner, T, people=who[learner.clock_ :])
    state = learner.public_state()
    spends = [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]
    assert [e.users for e in spends].count((lost.start, lost.stop)) == 1
    assert f"sums/{released}" not in learner.billboard_
    die(accountant)
    learner = OnePassNewtonMNL.resume(again(path, people=people))
    assert learner.public_state() == state
    assert len(state["evidence"]["batches"]) == len(learner._batches) - 1
    assert f"sums/{released}" not in learner.billboard_


def test_a_fit_that_was_lost_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    """Under a determinant trigger all later fits name all users."""
    name, path, crowd = "dpmnl determinant", tmp_path / "ledger", Population()
    accountant: Any = begin(path)
    learner: Any = LEARNERS[name]().start(accountant)
    crowd.play(learner, 60)
    label = ["later fit"]
    append = accountant.ledger.append

    def dies_with_a_fit(entry: Any, *args: Any, **kwargs: Any) -> Any:
        done = append(entry, *args, **kwargs)
        if entry.entry == "spend" and accountant._state.accounts[entry.token].label in label:
            die(accountant)
            raise KeyboardInterrupt
        return done

    accountant.ledger.append = dies_with_a_fit
    with pytest.raises((KeyboardInterrupt, LedgerError)):
        crowd.play(learner, T)
    accountant, learner = resumed(name, path)
    assert (learner.updates_, accountant.left("later fit", range(T))) == (2, 2)
    theta = learner.theta_
    while np.array_equal(theta, learner.theta_):
        crowd.play(learner, learner.clock_ + 10)
    state = estimates(learner)
    at = learner.updates_
    die(accountant)
    accountant, learner = resumed(name, path)
    assert estimates(learner) == state
    assert learner.updates_ == at


def test_the_noise_after_a_crash_is_stated_as_it_is(tmp_path: Path) -> None:
    """Covariances of sums from two streams, against the mechanisms' own rows."""
    path, crowd = tmp_path / "ledger", Population()
    accountant: Any = begin(path)
    learner: Any = LEARNERS["newton"]().start(accountant)
    crowd.play(learner, 150)
    die(accountant)
    accountant, learner = resumed("newton", path)
    crowd.play(learner, T)
    sums = learner._sums
    batches = learner._released.numbers
    first = [b for b in batches if learner._batches[b].stop <= 150]
    second = [b for b in batches if b not in first]
    assert first
    assert len(second) > 3
    expected = np.zeros((len(batches), len(batches)))
    whole = sums._stream.sums
    for part, mechanism in ((first, whole), (second, whole.for_last(range(256, T)))):
        unit = iter(np.eye(len(whole.sizes)))
        draw = lambda n, u=unit: np.array([next(u) for _ in range(n)])  # noqa: E731
        running = mechanism.factorization.stream(draw).next(len(part)) * mechanism.noise_std
        own = np.diff(running, axis=0, prepend=0.0)
        at = [batches.index(b) for b in part]
        expected[np.ix_(at, at)] = own @ own.T
    assert sums.covariance(batches) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["dpmnl", "dpucb", "least squares"])
def test_shifts_follow_the_noise_that_is_there(name: str, tmp_path: Path) -> None:
    path, crowd = tmp_path / "ledger", Population()
    accountant: Any = begin(path)
    learner: Any = LEARNERS[name]().start(accountant)
    crowd.play(learner, 200)
    sums = learner._sums
    ended = sums.error_std(sums._last)
    assert sums.excess() == 1
    before = learner._shift if name == "dpmnl" else learner._shift(200)
    die(accountant)
    accountant, learner = resumed(name, path)
    crowd.play(learner, T - 100)
    sums = learner._sums
    worst = sums.sums.noise_std * sums._open.factorization.max_error_std()
    assert sums.largest_error_std() == pytest.approx(np.hypot(ended, worst))
    own = sums._open.error_std(sums._steps(sums._last))
    assert sums.error_std(sums._last) == pytest.approx(np.hypot(ended, own))
    after = learner._shift if name == "dpmnl" else learner._shift(learner.clock_)
    assert after > before * 1.02


def test_one_crash_does_not_undo_what_was_learned(tmp_path: Path) -> None:
    """A crash just before a fit: its few rows do not take the place of all that came before."""
    errors = []
    for seed in range(4):
        path, crowd = tmp_path / f"{seed}", Population(seed)
        accountant: Any = begin(path, seed)
        learner: Any = LEARNERS["dpmnl"]().start(accountant)
        times = sorted(learner._fits_at)
        crowd.play(learner, times[-2] + 10)
        kept = learner.theta_
        die(accountant)
        accountant, learner = resumed("dpmnl", path)
        crowd.play(learner, T)
        assert learner._weight == times[-1] - learner._sums.first + times[-2]
        errors.append(np.linalg.norm([kept - crowd.theta, learner.theta_ - crowd.theta], axis=1))
    before, after = np.mean(errors, axis=0)
    assert after < 1.3 * before


def test_a_round_that_failed_is_gone_on_from_by_resuming(tmp_path: Path) -> None:
    path, crowd = tmp_path / "ledger", Population()
    accountant: Any = begin(path)
    learner: Any = LEARNERS["dpmnl"]().start(accountant)
    crowd.play(learner, 100)

    def interrupted(own: Any, shown: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        learner.play(crowd.features[100:200], interrupted)
    with pytest.raises(RuntimeError, match="failed half-way: resume its ledger"):
        crowd.play(learner, 200)
    accountant.ledger.close()
    accountant, learner = resumed("dpmnl", path)
    crowd.play(learner, T)
    accountant.close()
    assert audit(path).problems == []


# Persons -----------------------------------------------------------------------------------------

RULES = {
    "pooled": Participation(1, pooled=True),
    "once": Participation(1),
    "once, public": Participation(1, pattern="public"),
}


def ids(crowd: Population) -> list[str]:
    return [f"person {number}" for number in np.random.default_rng(8).integers(0, 400, size=T)]


@pytest.mark.parametrize("name", RULES)
def test_correlated_noise_goes_on_under_rules(name: str, tmp_path: Path) -> None:
    """The default where each person is learned from once; killed at entries, many times."""
    rule, crowd, rng = RULES[name], Population(), np.random.default_rng(11)
    path, who = tmp_path / "ledger", ids(crowd)
    people = People.create(tmp_path / "people", rule)
    accountant: Any = begin(path, people=people)
    learner = OnePassNewtonMNL(n_items=N_ITEMS, dim=DIM, first_batch=40, growth=1.1)
    learner.start(accountant)
    deaths = 0
    for entry in rng.integers(2, 9, size=40):
        with killed_at(accountant, int(entry), written=bool(rng.integers(2))) as left:
            crowd.play(learner, T, people=who[learner.clock_ :])
        if left[0] > 0:
            break
        deaths += 1
        state, released = estimates(learner), len(learner.billboard_.history())
        people.close()
        people = People.open(tmp_path / "people")
        accountant = again(path, deaths, people=people)
        learner = OnePassNewtonMNL.resume(accountant)
        assert isinstance(learner._sums, CorrelatedSums)
        assert learner.clock_ >= (people.clock or 0)
        if len(learner.billboard_.history()) == released:
            assert estimates(learner) == state
        if learner.clock_ == T:
            break
    assert deaths > 3
    assert len(learner._released.numbers) > 2
    accountant.close()
    assert audit(path).problems == []
    people.close()


# Faults that the tests above catch ---------------------------------------------------------------


def forget_to_skip(patch: pytest.MonkeyPatch) -> None:
    """A batch that was lost is taken for one that was not."""
    patch.setattr(JointAccountant, "lost", lambda *args: False)


def any_later_fit(patch: pytest.MonkeyPatch) -> None:
    """A fit is that of whatever time."""
    honest = Replay.released
    patch.setattr(
        Replay,
        "released",
        lambda self, label, users, upto: (
            bool(self.left(label, users))
            if label == "later fit"
            else honest(self, label, users, upto)
        ),
    )


def one_stream(patch: pytest.MonkeyPatch) -> None:
    """The noise of a second stream is taken for that of the first one, going on."""

    def covariance(self: Any, batches: Any) -> Any:
        steps = list(range(len(batches)))
        return self._mixed[np.ix_(steps, steps)]

    patch.setattr(CorrelatedSums, "covariance", covariance)


def one_variance(patch: pytest.MonkeyPatch) -> None:
    """The shift forgets the noise of the streams before."""
    patch.setattr(PlannedStream, "excess", lambda self: 1.0)


def only_the_last_fit(patch: pytest.MonkeyPatch) -> None:
    """A fit of the few rows since a crash takes the place of all."""

    def pool(self: Any, theta: Any) -> None:
        self.theta_, self._weight = theta, self.clock_ - self._sums.first

    patch.setattr(DPMNL, "_pool", pool)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (forget_to_skip, test_batches_that_were_lost_are_neither_drawn_again_nor_confused),
        (any_later_fit, test_a_fit_that_was_lost_is_not_taken_for_a_later_one),
        (one_stream, test_the_noise_after_a_crash_is_stated_as_it_is),
        (one_variance, partial(test_shifts_follow_the_noise_that_is_there, "dpmnl")),
        (only_the_last_fit, test_one_crash_does_not_undo_what_was_learned),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_planted_faults_are_caught(
    fault: Any, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, LedgerError)):
        check(tmp_path)


def test_a_batch_that_was_lost_cannot_be_paid_for_again(tmp_path: Path) -> None:
    """What a learner that reuses a lost batch would have to do."""
    path, crowd = tmp_path / "ledger", Population()
    people, who = People.memory(TWICE), ids(crowd)
    accountant: Any = begin(path, people=people)
    learner: Any = LEARNERS["newton"]().start(accountant)
    with killed_at(accountant, 2, written=True):
        crowd.play(learner, 41, people=who[:41])
    accountant = again(path, people=people)
    learner = OnePassNewtonMNL.resume(accountant)
    lost = learner._batches[0]
    assert learner.clock_ == lost.stop
    with pytest.raises(BudgetError, match="no longer"):
        accountant.issue(learner._sums.plan()[0].loss, users=lost, label="sums")
