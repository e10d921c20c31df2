"""Samples that do not refute even half the claim say so; `privlearn check` exits with 5."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claims_alone import looked_at
from numpy.random import Generator
from typer.testing import CliRunner

from privlearn import Adjacency, Ball, PureDP, Rows, Spend, Token
from privlearn.checking import CheckReport, Finding, suite
from privlearn.checking.laws.check import Sampling, by_samples
from privlearn.checking.reports import Verdict
from privlearn.checking.targets import sampling_target
from privlearn.cli import check_names
from privlearn.cli.main import app
from privlearn.errors import CheckError, InterferenceError
from privlearn.losses import Loss
from privlearn.noise import GaussianNoise, Noise

NEAR = (np.array([1.0, 2.0]), np.array([1.3, 2.0]))
FAR = (np.array([0.0, 2.0]), np.array([1.0, 2.0]))


def above_threshold(queries: Any, rng: Generator) -> list[bool]:
    """A sparse vector without noise on its queries: nothing of it is private."""
    threshold = rng.laplace(3.0, 2.0)
    return [bool(query >= threshold) for query in queries]


def noisy_sum(data: Any, rng: Generator) -> float:
    return float(data.sum() + rng.laplace(0.0, 1.0))


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


# The gate and the command line --------------------------------------------------------------------


FILE = """
import numpy as np
from privlearn import Ball, PureDP, ZCDP
from privlearn.checking import SamplingTarget
from privlearn.mechanisms import NoisySum

def above_threshold(queries, rng):
    threshold = rng.laplace(3.0, 2.0)
    return [bool(query >= threshold) for query in queries]

def noisy_sum(data, rng):
    return float(data.sum() + rng.laplace(0.0, 1.0))

def sampled(function, claim, *pair):  # of which only samples are seen
    def start(data, seed):
        rng = np.random.default_rng(seed)
        return lambda: function(data, rng)

    return SamplingTarget(function.__name__, start, claim, [pair])

def Blind():
    return sampled(above_threshold, PureDP(1), np.array([1.0, 2.0]), np.array([1.3, 2.0]))

def Seeing():
    return sampled(noisy_sum, PureDP(1), np.array([0.0]), np.array([1.0]))

def Wrong():
    return sampled(noisy_sum, PureDP("0.1"), np.array([0.0]), np.array([1.0]))

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
    [(["Blind"], 5), (["Seeing"], 5), (["Exact"], 0), (["Wrong", "Blind"], 1)],
)
def test_the_command_exits_with_5_without_power(path: Path, names: list[str], code: int) -> None:
    asked = [f"{path}:{name}" for name in names]
    found = CliRunner().invoke(
        app, ["check", *asked, "--samples", "1000", "--jobs", "1", "--confidence", "0.99"]
    )
    assert found.exit_code == code, found.output
    named = "above_threshold, samples: WEAK; power: NOT EVEN HALF THE CLAIM IS REFUTED"
    assert (named in found.output.replace("\n", " ")) is ("Blind" in names)
    assert ("INCONCLUSIVE" in found.output) is (names != ["Exact"])  # samples see a part only


def test_the_power_is_in_the_json(path: Path) -> None:
    found = CliRunner().invoke(
        app, ["check", f"{path}:Blind", "--samples", "1000", "--jobs", "1", "--json"]
    )
    assert found.exit_code == 5
    (line,) = json.loads(found.stdout)["findings"]
    assert line["verdict"] == "weak"
    (power,) = [axis for axis in line["coverage"] if axis["axis"] == "power"]
    assert not power["enough"]
    assert power["tried"].startswith("NOT EVEN HALF THE CLAIM IS REFUTED")


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


def test_weak_samples_are_open_where_no_exact_loss_is_known() -> None:
    def inconclusive(*pairs: tuple[str, Verdict]) -> list[str]:
        found = [Finding(check, verdict, "") for check, verdict in pairs]
        return [finding.check for finding in CheckReport("x", tuple(found)).inconclusive]

    assert inconclusive(("samples", "weak"), ("laws", "holds")) == ["samples"]
    assert inconclusive(("exact", "window"), ("samples", "not refuted")) == ["exact"]
    assert inconclusive(("exact", "holds"), ("samples", "weak")) == []
    assert inconclusive(("exact", "not applicable"), ("samples", "not refuted")) == []


@pytest.mark.parametrize(
    ("error", "verdict"), [(InterferenceError, "violated"), (CheckError, "not done")]
)
def test_what_a_learners_check_raises_is_its_verdict(
    error: type[Exception], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(learner: Any, **options: Any) -> CheckReport:
        raise error("nothing that was paid for moved")

    monkeypatch.setattr(suite, "check_learner", raising)
    found = check_names.chosen(["learner/DPHDB"])["learner/DPHDB"](suite.settings())
    assert found.verdict == verdict
    assert found["replay"].detail == "nothing that was paid for moved"


def test_a_file_without_a_name_in_it_is_refused(path: Path) -> None:
    with pytest.raises(CheckError, match=r"say what in it is to be checked, .*:NAME"):
        check_names.chosen([str(path)])


def test_a_weak_bound_is_named_where_nothing_exact_stands_beside_it() -> None:
    how = Sampling(samples=4_000)
    weak = by_samples(sampling_target(above_threshold, PureDP(1), NEAR), how)
    strong = by_samples(sampling_target(noisy_sum, PureDP(1), FAR), how)
    assert (weak.verdict, strong.verdict) == ("weak", "not refuted")
    assert not looked_at(Sum(GaussianNoise(3.0)), samples=400).inconclusive
