"""A check that could not have seen a fault of factor 2 says so; `privlearn check` exits with 5."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from typer.testing import CliRunner

from privlearn import Adjacency, Ball, PureDP, Rows, Spend, Token
from privlearn.checking import assert_private, sampling_target, suite
from privlearn.checking.default_neighbours import run_once
from privlearn.checking.power import Power, power_of_halving, with_power
from privlearn.checking.reduced_noise import ReducedNoiseGenerator
from privlearn.checking.replay import shipped_learners
from privlearn.checking.sampling.check import black_box
from privlearn.checking.stub_accountant import StubAccountant
from privlearn.cli.main import app
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.mechanisms import BallReport, CategoryReport
from privlearn.noise import GaussianNoise, LaplaceNoise, Noise

NEAR = (np.array([1.0, 2.0]), np.array([1.3, 2.0]))
FAR = (np.array([0.0, 2.0]), np.array([1.0, 2.0]))


def above_threshold(queries: Any, rng: Generator) -> list[bool]:
    """A sparse vector without noise on its queries: nothing of it is private."""
    threshold = rng.laplace(3.0, 2.0)
    return [bool(query >= threshold) for query in queries]


def noisy_sum(data: Any, rng: Generator) -> float:
    return float(data.sum() + rng.laplace(0.0, 1.0))


def settings(samples: int = 1_000) -> suite.Settings:
    return suite.Settings(0.99, samples, 0)


def test_a_fault_that_neighbours_do_not_show_leaves_no_power() -> None:
    subject = sampling_target(above_threshold, PureDP(1), NEAR)
    first = black_box(subject, samples=1_000, confidence=0.99)
    assert not first.violated
    found, power = with_power(subject, first, samples=1_000, confidence=0.99)
    assert found is first
    assert power is not None
    assert not power.enough
    assert power.planted == "half its noise"
    assert "WOULD NOT HAVE BEEN SEEN" in str(power)


def test_a_tight_claim_on_good_neighbours_has_power_at_no_cost() -> None:
    subject = sampling_target(noisy_sum, PureDP(1), FAR)
    first = black_box(subject, samples=4_000, confidence=0.99)
    _, power = with_power(subject, first, samples=4_000, confidence=0.99)
    assert power == power_of_halving(first)
    assert power.enough
    assert (power.seen, power.runs, power.claimed) == (1, 1, 0.5)


def test_a_planted_fault_or_more_samples_give_power() -> None:
    """A claim that is looser than the truth: half of it holds, and half the noise does not."""
    loose = sampling_target(noisy_sum, PureDP("1.35"), FAR)
    weak = black_box(loose, samples=400, confidence=0.99)
    assert not power_of_halving(weak).enough
    found, power = with_power(loose, weak, samples=400, confidence=0.99)
    assert power is not None
    assert power.enough, power
    assert not found.violated
    assert power.planted == "half its noise" or found.samples > 400


def test_an_own_generator_leaves_only_the_claim_to_be_halved() -> None:
    source = np.random.default_rng(0)
    subject = sampling_target(lambda data: float(source.laplace(data, 1.0)), PureDP(1), (0.0, 0.1))
    assert subject.start_reduced is None
    first = black_box(subject, samples=400)
    _, power = with_power(subject, first, samples=400, confidence=0.99)
    assert power is not None
    assert power.planted == "half the claim"
    assert not power.enough


def test_what_is_refuted_needs_no_power() -> None:
    subject = sampling_target(noisy_sum, PureDP("0.1"), FAR)
    first = black_box(subject, samples=1_000)
    assert first.violated
    assert with_power(subject, first, samples=1_000, confidence=0.99) == (first, None)


def test_powers_add_up_to_a_verdict() -> None:
    assert Power("p", 2, 2, (1.0, 1.1), 0.9, 40).enough
    assert not Power("p", 1, 2, (1.0, 0.5), 0.9, 40).enough
    assert Power("p", 1, 2, (1.0, 0.5), 0.9, 40).share == 0.5


# Half the noise ---------------------------------------------------------------------------------


def test_a_reduced_noise_generator_halves_noise_around_its_place() -> None:
    reduced, plain = ReducedNoiseGenerator(np.random.PCG64(5)), np.random.default_rng(5)
    draws: tuple[Callable[[Generator], Any], ...] = (
        lambda rng: rng.normal(3.0, 2.0, 9),
        lambda rng: rng.laplace(3.0, 2.0, 9),
        lambda rng: rng.gumbel(3.0, 2.0, 9),
        lambda rng: rng.logistic(3.0, 2.0, 9),
        lambda rng: 3.0 + rng.exponential(2.0, 9),
        lambda rng: 3.0 + rng.standard_normal(9),
        lambda rng: 3.0 + rng.standard_exponential(9),
        lambda rng: 3.0 + rng.standard_cauchy(9),
        lambda rng: 3.0 + rng.standard_t(4.0, 9),
        lambda rng: rng.multivariate_normal([3.0, 3.0], np.eye(2), 9),
    )
    for draw in draws:
        np.testing.assert_allclose(draw(reduced) - 3.0, (draw(plain) - 3.0) / 2, rtol=1e-12)
    out = np.empty(4)
    assert reduced.standard_normal(out=out) is out
    np.testing.assert_allclose(out, plain.standard_normal(4) / 2)
    assert reduced.random() == plain.random()


@dataclass(frozen=True)
class Sum:
    """Sums with noise of one's own; the same statement for every release."""

    noise: Noise
    domain: Ball = field(default_factory=lambda: Ball(1.0, 1))
    stated: Spend = field(init=False)

    def __post_init__(self) -> None:
        spend = Spend("sum", self.domain, self.noise, arithmetic="sum")
        object.__setattr__(self, "stated", spend)

    def loss(self) -> Loss:
        return self.stated.loss(Adjacency.REPLACE_ONE)

    def release(self, rows: Rows[Any], token: Token[Any]) -> Any:
        with token.spend(self.stated) as receipt:
            return receipt.release_sum(rows)


@pytest.mark.parametrize("noise", [GaussianNoise(3.0), LaplaceNoise(3.0)])
def test_a_stub_accountant_with_a_divisor_halves_what_receipts_draw_and_nothing_that_is_stated(
    noise: Noise,
) -> None:
    made = Sum(noise)
    rows: Rows[Any] = Rows.seal(np.zeros((2, 1)), users=range(2))
    plain, reduced = StubAccountant(3), StubAccountant(3, noise_divisor=2.0)
    for _ in range(3):
        assert run_once(made, rows, plain) == pytest.approx(2 * run_once(made, rows, reduced))
        assert made.stated.noise is noise, "what was stated stays"


@pytest.mark.parametrize("report", [BallReport.best(2, 1.0, 1), CategoryReport.calibrated(3, 1)])
def test_noise_without_a_scale_is_not_divided(report: Any) -> None:
    rows: Rows[Any] = Rows.null(range(1))
    with pytest.raises(CheckError, match="has no scale"):
        run_once(report, rows, StubAccountant(0, noise_divisor=2.0))


# The gate and the command line --------------------------------------------------------------------


FILE = """
import numpy as np
from privlearn import Ball, PureDP, ZCDP
from privlearn.checking import sampling_target
from privlearn.mechanisms import NoisySum

def above_threshold(queries, rng):
    threshold = rng.laplace(3.0, 2.0)
    return [bool(query >= threshold) for query in queries]

def noisy_sum(data, rng):
    return float(data.sum() + rng.laplace(0.0, 1.0))

def Blind():
    return sampling_target(above_threshold, PureDP(1), (np.array([1.0, 2.0]), np.array([1.3, 2.0])))

def Seeing():
    return sampling_target(noisy_sum, PureDP(1), (np.array([0.0]), np.array([1.0])))

def Wrong():
    return sampling_target(noisy_sum, PureDP("0.1"), (np.array([0.0]), np.array([1.0])))

def Exact():
    return NoisySum.calibrated(Ball(1.0, 1), ZCDP("0.5"))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "mine.py"
    made.write_text(FILE)
    return made


@pytest.mark.parametrize(
    ("names", "code"),
    [(["Blind"], 5), (["Seeing"], 0), (["Exact"], 0), (["Wrong", "Blind"], 1)],
)
def test_the_command_exits_with_5_without_power(path: Path, names: list[str], code: int) -> None:
    asked = [f"{path}:{name}" for name in names]
    found = CliRunner().invoke(
        app, ["check", *asked, "--samples", "1000", "--jobs", "1", "--confidence", "0.99"]
    )
    assert found.exit_code == code, found.output
    assert ("NO POWER: above_threshold" in found.output) is ("Blind" in names)
    assert ("WITHOUT POWER" in found.output) is ("Blind" in names)


def test_the_power_is_in_the_json(path: Path) -> None:
    found = CliRunner().invoke(
        app, ["check", f"{path}:Blind", "--samples", "1000", "--jobs", "1", "--json"]
    )
    assert found.exit_code == 5
    (line,) = json.loads(found.stdout)["findings"]
    assert line["power"] == 0.0
    assert line["result"] == "not refuted"
    assert line["planted"].startswith(
        "a fault of factor 2 WOULD NOT HAVE BEEN SEEN: half its noise"
    )


@pytest.mark.parametrize("name", ["json.py", "wave.py", "mine.of.two.py"])
def test_a_file_takes_no_other_modules_place(name: str, tmp_path: Path) -> None:
    """`json` is loaded already, `wave` is not."""
    made = tmp_path / name
    made.write_text(FILE)
    before, folders = dict(sys.modules), [*sys.path]
    asked = ["check", f"{made}:Blind", "--samples", "1000", "--jobs", "1", "--json"]
    assert CliRunner().invoke(app, asked).exit_code == 5
    assert all(sys.modules[loaded] is module for loaded, module in before.items())
    assert not {str(getattr(m, "__file__", "")) for m in sys.modules.values()} & {str(made)}
    assert sys.path == folders


def test_a_file_may_import_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_it.py").write_text("RADIUS = 1.0\n")
    (tmp_path / "own_sum.py").write_text(
        "from beside_it import RADIUS\n"
        "from privlearn import Ball, ZCDP\n"
        "from privlearn.mechanisms import NoisySum\n"
        "total = NoisySum.calibrated(Ball(RADIUS, 1), ZCDP(1))\n"
    )
    asked = ["check", f"{tmp_path / 'own_sum.py'}:total", "--samples", "1000", "--jobs", "1"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0, found.output


def test_one_check_with_power_is_enough_for_a_subject() -> None:
    def line(
        check: str, power: float | None, result: suite.Conclusion = "not refuted"
    ) -> suite.CheckFinding:
        return suite.CheckFinding(subject="x", check=check, result=result, power=power, seconds=0.0)

    def powerless(*lines: suite.CheckFinding) -> tuple[str, ...]:
        return suite.CheckReport(findings=lines, seed=0, seconds=0.0).powerless

    assert powerless(line("samples", 0.5), line("laws", None, "holds")) == ("x",)
    assert powerless(line("window", 0.0), line("samples", 1.0)) == ()
    assert powerless(line("exact", None, "holds"), line("samples", 0.0)) == ()
    assert powerless(line("samples", 0.0), line("laws", None, "VIOLATED")) == ()
    assert powerless(line("laws", None, "holds")) == ()


@pytest.mark.parametrize(("free", "power"), [(True, None), (False, 0.0)])
def test_a_learner_that_pays_for_nothing_has_no_fault_of_factor_2(
    free: bool, power: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmoved(
        way: shipped_learners.LearnerCase, n: int, *, seed: int
    ) -> shipped_learners.Replays:
        return shipped_learners.Replays(n, 0, 2 * n, 0.0)

    monkeypatch.setattr(suite, "replay_pairs", unmoved)
    way = next(way for way in shipped_learners.LEARNER_CASES if way.learner == "DPHDB")
    if free:
        way = replace(way, options={"may_spend_nothing": True})
    (found,) = suite.replay_findings(way, suite.Settings())
    assert (found.result, found.power) == ("holds", power)


def test_a_file_without_a_name_in_it_is_refused(path: Path) -> None:
    with pytest.raises(CheckError, match=r"say what in it is to be checked, .*:NAME"):
        suite.chosen([str(path)])


def test_a_weak_bound_is_noted_where_nothing_exact_stands_beside_it() -> None:
    weak = assert_private(above_threshold, PureDP(1), neighbours=NEAR, samples=400)
    assert any(text.startswith("weak: ") for text in weak.notes)
    strong = assert_private(noisy_sum, PureDP(1), neighbours=FAR, samples=4_000)
    assert not any(text.startswith("weak: ") for text in strong.notes)
    exact = assert_private(Sum(GaussianNoise(3.0)), samples=400)
    assert not any(text.startswith("weak: ") for text in exact.notes)
