"""Runs that an earlier version began: this one goes on with them, with the numbers of their plans.

What the runs are, and how their ledgers were written, stands in ``tests/helpers/begun_runs.py``.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from begun_runs import BEGUN, PASSING, RUNS, USERS, LearnerRun, copied, die, read

import privlearn.learners.stored
from privlearn.accountants import CentralAccountant, JointAccountant, audit
from privlearn.errors import LedgerError, LedgerHeadError
from privlearn.learners import DPHDB, DPTOFW, Learner, OnePassNewtonMNL
from privlearn.ledger import Ledger, canonical, read_records
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

CALIBRATIONS = """
mechanisms.objective_perturbation: ObjectivePerturbation.calibrated _least_noise _best_ridge
mechanisms.one_of_k: OneOfK.calibrated
mechanisms.batched_sums: BatchedPrefixSum.calibrated even_sizes
mechanisms.noisy_max: ReportNoisyMax.calibrated _largest_eta
mechanisms.prefix_sums: PrefixSum.calibrated
mechanisms.noisy_sum: Noisy.calibrated
mechanisms.buffered_toeplitz: BufferedToeplitz.fitted fitted_decays
mechanisms.banded_parameters: fitted_parameters
mechanisms.least_error: least_error
mechanisms.least_noise: least_noise first_that_fits
mechanisms.stream_terms: least_std
learners.convex: scale_of Strategy._mu Strategy._together
learners.dpmnl: DPMNL._block_ends DPMNL._first_rounds DPMNL._fit_times DPMNL._noise_for
learners.hdb: DPHDB._ends DPHDB._setting_of_row
learners.hdb_epochs: CorrelatedEpochs.steps epoch_ends
privlearn_studies.rivals.noisy_max_epochs: NoisyMaxEpochs.steps NoisyMaxEpochs.mechanism
learners.newton: public_ends
learners.one_pass_newton: OnePassNewtonMNL._ends
learners.person_budgets: PersonBudgets.of_row PersonBudgets.sums
learners.pofw: _ByEpochs._clips
learners.streaming: epoch_count epoch_sizes
learners.tofw_buffered: _epochs
learners.tofw_whitened: Whitened._calibrated _sizes
learners.noisy_sgd: step_sums
learners.least_squares: PrivateLeastSquares._mechanism
privlearn_studies.rivals.convex: _halves _sums
"""
"""What works out noise, and rules for what is not given; each is part of some run's first start."""


class _CalibratedError(AssertionError):
    """A number was worked out anew."""


def _refuse(*_: object, **__: object) -> None:
    raise _CalibratedError  # its code is put in place of others', so it names what all can see


def _functions() -> Iterator[Any]:
    for line in CALIBRATIONS.strip().splitlines():
        module, names = line.split(": ")
        for name in names.split():
            ours = not module.startswith("privlearn_studies")
            found: Any = import_module(f"privlearn.{module}" if ours else module)
            for part in name.split("."):
                found = getattr(found, part)
            found = found.fget if isinstance(found, property) else found
            yield inspect.unwrap(getattr(found, "__func__", found))


@pytest.fixture
def nothing_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever works out a number anew fails, wherever the function was imported to."""
    for function in _functions():
        monkeypatch.setitem(function.__globals__, "_CalibratedError", _CalibratedError)
        monkeypatch.setattr(function, "__code__", _refuse.__code__)


@cache
def _verifier() -> Any:
    place = Path(__file__).resolve().parents[2] / "docs" / "verify_ledger.py"
    spec = importlib.util.spec_from_file_location("verify_ledger", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check_whole(path: Path) -> None:
    """No problem for us, nor for the verifier that knows nothing of this package."""
    assert audit(path).problems == []
    assert _verifier().verify(path)["problems"] == []


def _of_messages(path: Path) -> set[str]:
    """With which noise messages were sent."""
    bodies = [record.body for record in read_records(path)]
    spends = [b for b in bodies if b["entry"] == "spend" and b["trust"] == "local"]
    return {canonical([b["noise"], b["loss"]]).decode() for b in spends}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_to_its_end_with_the_numbers_that_it_was_begun_with(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Values that were released are the same bits, as their digests say; what was computed from
    them may differ in the last digits, as libraries of linear algebra do.  Under local privacy the
    devices work out their noise from the configuration: in every version to the same number."""
    if name not in ("ldp-server", "ldp-gateway"):
        request.getfixturevalue("nothing_is_calibrated")
    run, path, public = RUNS[name], copied(name, BEGUN, tmp_path), read(name)
    opened, noise = audit(path), _of_messages(path)
    assert opened.problems == []
    accountant, resumed = run.resume(path)
    found = run.public(resumed)
    assert set(found) == set(public)
    for key, value in public.items():
        tolerance = 0 if key in PASSING else 1e-9
        np.testing.assert_allclose(found[key], value, rtol=tolerance, atol=tolerance, err_msg=key)
    run.go_on(resumed, USERS)
    accountant.close()
    _check_whole(path)
    assert audit(path).entries > opened.entries
    assert _of_messages(path) == noise
    assert len(noise) == (name == "ldp-gateway")


@pytest.mark.usefixtures("nothing_is_calibrated")
@pytest.mark.parametrize(
    "name", [name for name, run in RUNS.items() if isinstance(run, LearnerRun)]
)
def test_no_learner_begins_without_what_was_taken_from_it(name: str, tmp_path: Path) -> None:
    """So the test above can fail."""
    with pytest.raises(_CalibratedError):
        RUNS[name].begin(tmp_path / "new.db")


# Classes and parameters that changed --------------------------------------------------------------


def _later(
    parameters: Callable[[dict[str, Any]], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger of ``newton-ball`` is as one of a version with other parameters would be."""
    real = JointAccountant.learner.fget  # type: ignore[attr-defined]

    def learner(self: Any) -> Any:
        found = real(self)
        return found.model_copy(update={"parameters": parameters(dict(found.parameters))})

    monkeypatch.setattr(JointAccountant, "learner", property(learner))


def _newton(tmp_path: Path) -> Any:
    path = copied("newton-ball", BEGUN, tmp_path)
    return JointAccountant.resume(path, noise=NoiseSource.simulation(1))


def test_a_parameter_that_is_new_is_what_its_class_says_that_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(parameters: dict[str, Any]) -> dict[str, Any]:
        assert parameters.pop("growth") == 1.3
        return parameters

    _later(without, monkeypatch)
    refusal = "begun by a version without growth, and this one does not say what it did"
    for at, go_on in enumerate((OnePassNewtonMNL.resume, RUNS["newton-ball"].make().start)):
        (tmp_path / str(at)).mkdir()
        with pytest.raises(LedgerError, match=refusal):
            go_on(_newton(tmp_path / str(at)))
    monkeypatch.setattr(OnePassNewtonMNL, "_before_added", {"growth": 1.3})
    learner = OnePassNewtonMNL.resume(_newton(tmp_path))
    assert learner.growth == 1.3 != OnePassNewtonMNL(n_items=4, dim=2).growth
    np.testing.assert_allclose(learner.theta_, read("newton-ball")["theta_"], rtol=1e-9, atol=1e-9)


def test_a_parameter_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _later(lambda parameters: {**parameters, "zeal": 2}, monkeypatch)
    with pytest.raises(LedgerError, match="begun with zeal = 2, which is no parameter in this ver"):
        OnePassNewtonMNL.resume(_newton(tmp_path))


def test_a_class_with_another_name_is_found_by_its_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Successor(OnePassNewtonMNL):  # type: ignore[misc]  # final
        """The same learner under the name that a later version gave it."""

    (tmp_path / "unknown").mkdir()
    with pytest.raises(LedgerError, match="Successor: the ledger holds a OnePassNewtonMNL"):
        Successor.resume(_newton(tmp_path / "unknown"))
    names = privlearn.learners.stored.FORMER_NAMES
    monkeypatch.setitem(names, "OnePassNewtonMNL", "Successor")
    learner = Successor.resume(_newton(tmp_path))
    np.testing.assert_allclose(learner.theta_, read("newton-ball")["theta_"], rtol=1e-9, atol=1e-9)
    monkeypatch.setitem(names, "Sphere", "Ball")
    stored = privlearn.learners.stored.stored(Ball(2.0, 3))
    assert privlearn.learners.stored.restored({**stored, "class": "Sphere"}) == Ball(2.0, 3)


# What was removed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "what", "commit"),
    [
        (
            "removed-plain",
            r"ColumnNormalizedBLT, the noise of DPTOFW\(method='plain'\),",
            "141b1425",
        ),
        ("removed-restarts", r"DPTOFW\(method='restarts'\)", "141b1425"),
        ("removed-hdb", r"GaussianEpochs, the method of DPHDB\(\)", "fe29d1d7"),
    ],
)
def test_what_was_removed_is_audited_and_resuming_says_which_version_has_it(
    name: str, what: str, commit: str, tmp_path: Path
) -> None:
    path = copied(name, BEGUN, tmp_path)
    _check_whole(path)
    bandit = name == "removed-hdb"
    kind: Any = JointAccountant if bandit else CentralAccountant
    mine = DPHDB(n_arms=3, dim=2, first_epoch=30) if bandit else DPTOFW(dim=2, method="plain")
    for go_on in (Learner.resume, mine.start):
        accountant: Any = kind.resume(path, noise=NoiseSource.simulation(1))
        with pytest.raises(
            LedgerError, match=f"{what},? was removed from privlearn.*commit {commit}"
        ):
            go_on(accountant)
        die(accountant)
    _check_whole(path)


@pytest.mark.parametrize("name", ["removed-newton", "removed-newton-correlated"])
def test_one_pass_newton_with_two_sums_for_each_batch_is_audited_and_refused(
    name: str, tmp_path: Path
) -> None:
    """Gradients and Hessians were released apart, by parameters that are gone."""
    path = copied(name, BEGUN, tmp_path)
    _check_whole(path)
    accountant: Any = JointAccountant.resume(path, noise=NoiseSource.simulation(1))
    with pytest.raises(LedgerError, match=r"begun with .*, which is no parameter in this"):
        OnePassNewtonMNL.resume(accountant)
    die(accountant)
    _check_whole(path)


# Versions that kept no learner --------------------------------------------------------------------


def _former(name: str, tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / f"{name}.db"
    path.write_bytes((BEGUN / path.name).read_bytes())
    head = json.loads((BEGUN / f"{name}.json").read_text(encoding="utf-8"))["head"]
    return path, head


def test_a_learner_that_a_former_version_began_is_audited_and_not_continued(
    tmp_path: Path,
) -> None:
    path, head = _former("former-learner", tmp_path)
    _check_whole(path)
    with pytest.raises(LedgerHeadError, match=r"former-learner\.db\.head, which keeps its head"):
        CentralAccountant.resume(path, noise=NoiseSource.simulation(1))
    accountant: Any = CentralAccountant.resume(path, noise=NoiseSource.simulation(1), head=head)
    refusal = "DPTOFW: the ledger was begun without a learner, or by a version that kept none"
    with pytest.raises(LedgerError, match=refusal):
        DPTOFW.resume(accountant)
    with pytest.raises(LedgerError, match=refusal):
        DPTOFW(dim=2, method="plain").start(accountant)
    accountant.close()
    _check_whole(path)


def test_tokens_of_a_former_version_are_accounted_for_and_more_are_issued(tmp_path: Path) -> None:
    path, head = _former("former-sums", tmp_path)
    _check_whole(path)
    accountant: Any = CentralAccountant.resume(path, noise=NoiseSource.simulation(1), head=head)
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
    price = mechanism.loss().zcdp()
    assert price is not None
    assert accountant.spent() == ZCDP(3 * price)
    users = range(USERS)
    rows = Rows.seal(np.ones((USERS, 2)), users=users)
    mechanism.release(rows, accountant.issue(mechanism.loss(), users=users, label="sum"))
    die(accountant)
    again: Any = CentralAccountant.resume(path, noise=NoiseSource.simulation(2))
    assert again.spent() == ZCDP(4 * price)
    again.close()
    _check_whole(path)
    assert "resume/1" not in str([entry.body() for entry in Ledger.open(path).entries])
