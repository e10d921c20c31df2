"""The one-line checks run on every public mechanism and stream, and need no argument."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from privlearn import ZCDP, Ball
from privlearn import mechanisms as public
from privlearn.checking import assert_private, check_mechanism, targets
from privlearn.checking.default_neighbours import LONGEST, default_pairs, run_once
from privlearn.checking.stub_accountant import StubAccountant
from privlearn.checking.suite import shipped_mechanisms
from privlearn.mechanisms import (
    BatchedPrefixSum,
    CrossPolytope,
    NoisyMaxStream,
    PrefixSum,
    mechanism,
)
from privlearn.mechanisms.function_mechanism import Draw
from privlearn.noise import LaplaceNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Box
from privlearn.values.adjacency import Adjacency

RHO = ZCDP("0.5")


def examples() -> dict[str, Any]:
    """A mechanism of every public class, streams with a short horizon."""
    made = {type(one).__name__: one for one in map(_make, shipped_mechanisms())}
    made["ObjectivePerturbation"] = _make("objective-perturbation/logistic-1d")
    made["BatchedPrefixSum"] = BatchedPrefixSum.calibrated(Ball(1.0, 1), RHO, sizes=(2, 1, 3))
    made["NoisyMaxStream"] = NoisyMaxStream.calibrated(CrossPolytope(1), 1.0, RHO, horizon=7)
    made["PrefixSum"] = PrefixSum.calibrated(Ball(1.0, 1), RHO, horizon=9)
    made["FunctionMechanism"] = mechanism(domain=Box(0, 1, 1), noise=LaplaceNoise(4.0))(_total)
    return made


def _total(rows: Array, draw: Draw) -> Array:
    return np.asarray(rows.sum(axis=0) + draw((1,)))


def _make(name: str) -> Any:
    return shipped_mechanisms()[name]()


EXAMPLES = examples()


def test_every_public_mechanism_has_an_example() -> None:
    """A new one is added to `examples`, or to what `privlearn check` lists."""
    classes = {name: getattr(public, name) for name in public.__all__}
    found = {
        name
        for name, kind in classes.items()
        if inspect.isclass(kind)
        and hasattr(kind, "loss")
        and (hasattr(kind, "release") or hasattr(kind, "open"))
    }
    assert found == set(EXAMPLES)


@pytest.fixture(autouse=True)
def one_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found does not matter here, so one pair of neighbours is enough."""
    monkeypatch.setattr(
        targets, "default_pairs", lambda *args, **more: default_pairs(*args, **more)[:1]
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_assert_private_runs_with_its_defaults(name: str) -> None:
    evidence = assert_private(EXAMPLES[name], samples=80)
    assert not evidence.violated
    exact = evidence.notes[-2:] if evidence.notes[-1].startswith("weak") else evidence.notes[-1:]
    assert any("exact" in note or "not checked exactly" in note for note in exact)


@pytest.mark.parametrize("horizon", [1, 16, 300])
def test_a_stream_of_choices_is_sampled_within_its_horizon(horizon: int) -> None:
    stream = NoisyMaxStream.calibrated(CrossPolytope(1), 1.0, RHO, horizon=horizon)
    subject = targets.sampling_target(stream)
    lengths = {len(data) for pair in subject.neighbours for data in pair}
    assert lengths == {min(horizon, LONGEST)}
    assert len(subject.start(subject.neighbours[0][0], 0)()) == min(horizon, 256)


@pytest.mark.parametrize("name", ["BatchedPrefixSum", "NoisyMaxStream"])
def test_check_mechanism_runs_with_its_defaults(name: str) -> None:
    """The others are run in full by `privlearn check`."""
    assert check_mechanism(EXAMPLES[name], samples=280).passed


def test_all_batches_are_run_and_give_one_sum_each() -> None:
    batched = EXAMPLES["BatchedPrefixSum"]
    stub = StubAccountant(0, Adjacency.REPLACE_ONE)
    rows: Rows[Any] = Rows.seal(np.ones((6, 1)), users=range(6))
    sums = run_once(batched, rows, stub)
    assert sums.shape == (3, 1)
    quiet = BatchedPrefixSum(
        batched.domain, batched.sizes, batched.factorization, 1e-6, batched.adjacency
    )
    np.testing.assert_allclose(run_once(quiet, rows, stub)[:, 0], [2, 3, 6], atol=1e-4)
