"""The one-line checks run on every public mechanism and stream, and need no argument."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from claims_alone import looked_at
from grids import thinned

from privlearn import ZCDP, Ball
from privlearn import mechanisms as public
from privlearn.checking import check_mechanism, targets
from privlearn.checking.neighbours import LONGEST, default_pairs, run_once
from privlearn.checking.stream_runs import StubAccountant
from privlearn.checking.suite import shipped_mechanisms
from privlearn.mechanisms import (
    BatchedPrefixSum,
    BufferedToeplitz,
    CrossPolytope,
    ExplicitVertices,
    NoisyMaxBatches,
    NoisyMaxStream,
    NoisySum,
    OneOfK,
    PrefixSum,
    ReportNoisyMax,
    SimplexVertices,
    mechanism,
)
from privlearn.mechanisms.function_mechanism import Draw
from privlearn.noise import GeneralizedGaussianNoise, LaplaceNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Box, OneOf, PSDTrace
from privlearn.values.adjacency import Adjacency

RHO = ZCDP("0.5")
ZERO_OUT = Adjacency.ZERO_OUT


def examples() -> dict[str, Any]:
    """A mechanism of every public class, streams with a short horizon."""
    made = {type(one).__name__: one for one in map(_make, shipped_mechanisms())}
    made["ObjectivePerturbation"] = _make("objective-perturbation/logistic-1d")
    made["BatchedPrefixSum"] = BatchedPrefixSum.calibrated(Ball(1.0, 1), RHO, sizes=(2, 1, 3))
    made["NoisyMaxBatches"] = NoisyMaxBatches.calibrated(CrossPolytope(1), 1.0, RHO, sizes=(2, 5))
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


@pytest.mark.parametrize("name", thinned(EXAMPLES, 3))
def test_assert_private_runs_with_its_defaults(name: str) -> None:
    report = looked_at(EXAMPLES[name], samples=80)
    assert not report.violated
    exact = report["exact"]
    assert exact.verdict != "not applicable" or exact.detail.startswith("not computed: ")


@pytest.mark.parametrize("horizon", [1, 16, 300])
def test_a_stream_of_choices_is_sampled_within_its_horizon(horizon: int) -> None:
    stream = NoisyMaxStream.calibrated(CrossPolytope(1), 1.0, RHO, horizon=horizon)
    subject = targets.sampling_target(stream)
    lengths = {len(data) for pair in subject.neighbours for data in pair}
    assert lengths == {min(horizon, LONGEST)}
    assert len(subject.start(subject.neighbours[0][0], 0)()) == min(horizon, 256)


TRIANGLE = ExplicitVertices(np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]]))
L4, CUBED = Ball(1.0, 3, 4.0), GeneralizedGaussianNoise(5.0, 3.0)
BLT = PrefixSum.calibrated(
    Ball(0.5, 3, 4.0), RHO, factorization=BufferedToeplitz.fitted(24), exponent=3.0
)
ARMS: Any = OneOf(Ball(0.5, 3, 4.0), 2)

LAWFUL: list[tuple[str, Any]] = [
    ("a stream in batches", EXAMPLES["BatchedPrefixSum"]),
    ("a sum with generalized Gaussian noise", NoisySum(L4, CUBED)),
    ("a stream with such noise", BLT),
    ("a stream with such noise for arms", replace(BLT, domain=ARMS)),
    ("a Laplace sum", NoisySum(Ball(1.0, 2, "l1"), LaplaceNoise(4.0))),
    ("arms", OneOfK.calibrated(Ball(1.0, 3), RHO, arms=2)),
    ("arms of matrices", OneOfK.calibrated(PSDTrace(1, 2), RHO, arms=2, adjacency=ZERO_OUT)),
    ("a stream of arms", PrefixSum.calibrated(OneOf(Ball(1.0, 2), 2), RHO, horizon=16)),
    ("arms of choices", OneOfK(ReportNoisyMax(CrossPolytope(2), 1.0, 6.0), 2)),
    ("arms of sums in l4", OneOfK(NoisySum(L4, CUBED), 2)),
    ("arms of Laplace sums", OneOfK(NoisySum(Box(0, 1, 1), LaplaceNoise(4.0)), 2)),
    (
        "arms of Laplace choices",
        OneOfK(ReportNoisyMax(CrossPolytope(2), 1.0, 9.0, 2, "laplace"), 2),
    ),
    ("a stream of choices", EXAMPLES["NoisyMaxStream"]),
    ("Gumbel choices", ReportNoisyMax(CrossPolytope(2), 1.0, 6.0)),
    ("three Gumbel choices", ReportNoisyMax(CrossPolytope(3), 1.0, 20.0, top=3)),
    ("choices in l2", ReportNoisyMax(TRIANGLE, 1.0, 9.0, norm="l2")),
    ("Laplace choices", ReportNoisyMax(SimplexVertices(3), 1.0, 6.0, noise="laplace")),
    (
        "exponential choices",
        ReportNoisyMax(TRIANGLE, 1.0, 9.0, 2, "exponential", adjacency=ZERO_OUT),
    ),
    ("sums over phases", EXAMPLES["PhaseSum"]),
]


@pytest.mark.parametrize(("name", "mechanism"), thinned(LAWFUL, 3))
def test_shipped_mechanisms_keep_the_laws(name: str, mechanism: Any) -> None:
    """`privlearn check` runs those that it lists in full."""
    report = check_mechanism(mechanism, samples=400)
    assert report.passed
    exact = report["exact"]
    if isinstance(mechanism, ReportNoisyMax):
        assert exact.verdict in ("tight", "holds")
    if mechanism == NoisySum(L4, CUBED):
        assert exact.verdict == "not applicable"
        assert "uniform words decide" in exact.detail


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
