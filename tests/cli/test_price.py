"""``privlearn epsilon``, ``delta`` and ``calibrate`` as somebody with a list of runs uses them."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from privlearn.accountants import CentralAccountant
from privlearn.accountants.guarantee import epsilon_of
from privlearn.cli.main import app
from privlearn.cli.output import SIMULATION
from privlearn.events.lists import event_list
from privlearn.events.pricing import calibrate_events, evaluated, to_dict, with_noise
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP, ApproxDP
from privlearn.noise import NoiseSource

runner = CliRunner()
GAUSSIANS = {"mechanism": "gaussian", "noise_multiplier": 20, "count": 1000}


def run(*arguments: str | Path) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])


def write(path: Path, *events: dict[str, Any], **other: Any) -> Path:
    top = {"adjacency": "replace-one", "trust": "central", "order": "listed"}
    path.write_text(json.dumps({**top, "events": events, **other}))
    return path


@pytest.fixture
def gaussians(tmp_path: Path) -> Path:
    return write(tmp_path / "events.json", GAUSSIANS)


# What is printed -------------------------------------------------------------------------------


def test_the_json_of_epsilon_is_pinned(gaussians: Path) -> None:
    result = run("epsilon", gaussians, "--delta", "1e-6", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert list(told) == ["epsilon", "delta", "error_bound", "method", "adjacency", "trust"]
    assert told == {
        "epsilon": pytest.approx(8.3062250, abs=1e-7),
        "delta": 1e-6,
        "error_bound": pytest.approx(0, abs=1e-13),
        "method": "gaussian",
        "adjacency": "replace-one",
        "trust": "central",
    }
    assert told["error_bound"] > 0


def test_the_json_of_delta_is_pinned(gaussians: Path) -> None:
    result = run("delta", gaussians, "--epsilon", "8.30622504995474", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert list(told) == ["epsilon", "delta", "error_bound", "method", "adjacency", "trust"]
    assert told["epsilon"] == 8.30622504995474
    assert told["delta"] == pytest.approx(1e-6, rel=1e-9)
    assert told["method"] == "gaussian"


def test_the_json_of_calibrate_is_pinned_and_its_events_keep_the_promise(
    gaussians: Path, tmp_path: Path
) -> None:
    result = run("calibrate", gaussians, "--epsilon", "1", "--delta", "1e-6", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert list(told) == [
        "epsilon",
        "delta",
        "error_bound",
        "method",
        "adjacency",
        "trust",
        "factors",
        "events",
    ]
    (event,) = told["events"]["events"]
    assert float(event["noise_multiplier"]) == pytest.approx(133.5961, abs=1e-4)
    assert Fraction(event["noise_multiplier"]) == 20 * Fraction(told["factors"][0])
    again = tmp_path / "again.json"
    again.write_text(json.dumps(told["events"]))
    checked = json.loads(run("epsilon", again, "--delta", "1e-6", "--json").output)
    assert checked == {name: told[name] for name in checked}
    assert 1 - 1e-7 < checked["epsilon"] <= 1


def test_people_are_told_what_it_means(gaussians: Path) -> None:
    result = run("epsilon", gaussians, "--delta", "1e-6")
    assert result.exit_code == 0, result.output
    assert "DP, replace-one: (ε = 8.3063, δ = 1e-06), method gaussian" in result.output
    text = " ".join(result.output.split())
    assert "is right in at most 78.55% of cases" in text
    assert "Posterior odds" in text
    result = run("calibrate", gaussians, "--epsilon", "1", "--delta", "1e-6")
    assert "events[0]  noise × 6.6798" in result.output


def test_pictures_are_drawn(gaussians: Path, tmp_path: Path) -> None:
    for command in (("epsilon", "--delta", "1e-6"), ("delta", "--epsilon", "1")):
        picture = tmp_path / f"{command[0]}.png"
        result = run(command[0], gaussians, *command[1:], "--plot", picture)
        assert result.exit_code == 0, result.output
        assert picture.stat().st_size > 10_000
    result = run("epsilon", gaussians, "--delta", "1e-6", "--plot", tmp_path / "x.nothing")
    assert (result.exit_code, "cannot be drawn" in result.output) == (2, True)
    result = run("epsilon", gaussians, "--delta", "1e-6", "--plot", tmp_path / "no" / "x.png")
    assert (result.exit_code, "cannot be opened" in result.output) == (2, True)


def test_conversion_of_the_relation_is_asked_for(tmp_path: Path) -> None:
    """Multiplier 1 under add-remove: 4.887; as replace-one 10.997."""
    one = {"mechanism": "gaussian", "noise_multiplier": 1}
    events = write(tmp_path / "events.json", one, adjacency="add-remove")
    before = json.loads(run("epsilon", events, "--delta", "1e-6", "--json").output)
    assert (before["adjacency"], round(before["epsilon"], 3)) == ("add-remove", 4.887)
    after = json.loads(
        run("epsilon", events, "--delta", "1e-6", "--json", "--as-replace-one").output
    )
    assert (after["adjacency"], round(after["epsilon"], 3)) == ("replace-one", 10.997)
    sampled = {
        "mechanism": "subsampled-gaussian",
        "noise_multiplier": 1,
        "sampling_probability": 0.1,
    }
    events = write(tmp_path / "events.json", one, sampled, adjacency="add-remove")
    result = run("delta", events, "--epsilon", "1", "--as-replace-one")
    assert result.exit_code == 2
    assert "error: events[1]: a subsampled-gaussian loss" in result.output


def test_toml_and_failures(tmp_path: Path) -> None:
    path = tmp_path / "events.toml"
    path.write_text(
        'adjacency = "replace-one"\ntrust = "local"\n[[events]]\nmechanism = "approx"\n'
        "epsilon = 0.5\ndelta = 1e-7\ncount = 4\n"
    )
    told = json.loads(run("epsilon", path, "--delta", "1e-6", "--json").output)
    assert told["trust"] == "local"
    assert told["epsilon"] <= 2
    result = run("epsilon", path, "--delta", "1e-7", "--json")
    assert result.exit_code == 2
    assert "no epsilon is finite there, as the events fail with probability 4e-07" in result.output


def test_the_audit_draws_what_was_spent(tmp_path: Path) -> None:
    ledger, picture = tmp_path / "ledger.db", tmp_path / "spent.png"
    CentralAccountant(
        ZCDP(1), users=range(2), ledger=Ledger.create(ledger), noise=NoiseSource.simulation(0)
    ).close()
    result = run("audit", ledger, "--json", "--plot", picture)
    assert result.exit_code == SIMULATION
    assert json.loads(result.output)["simulation"]
    assert picture.stat().st_size > 5_000


def test_the_order_of_the_list_is_heeded() -> None:
    events = {"mechanism": "exponential", "epsilon": "0.5", "count": 3}
    for order in ("listed", "any"):
        data = {"adjacency": "replace-one", "trust": "central", "order": order, "events": [events]}
        assert evaluated(event_list(data)).order == order


# What is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": 0}, "events[1].noise_multiplier: 0 must be > 0"),
        ({"noise_multiplier": math.nan}, "events[1].noise_multiplier: nan must be a finite number"),
        ({"count": -5}, "events[1].count: must be >= 1"),
        ({"Count": 5}, "events[1].Count: is not a known key"),
        ({"mechanism": "magic"}, "events[1]: mechanism 'magic' is unknown"),
        ({"mechanism": "laplace"}, "events[1].scale: is missing"),
    ],
)
@pytest.mark.parametrize("command", ["epsilon", "delta", "calibrate"])
def test_mistakes_are_one_line_that_names_the_event(
    tmp_path: Path, command: str, change: dict[str, Any], words: str
) -> None:
    events = write(tmp_path / "events.json", GAUSSIANS, {**GAUSSIANS, **change})
    options = {
        "epsilon": ["--delta", "1e-6"],
        "delta": ["--epsilon", "1"],
        "calibrate": ["--epsilon", "1", "--delta", "1e-6"],
    }[command]
    result = run(command, events, *options)
    assert result.exit_code == 2
    assert words in result.output
    assert result.output.startswith("error: ")
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["epsilon", "--delta", "nan"], "delta = nan: must lie in [0, 1]"),
        (["epsilon", "--delta", "0"], "delta = 0: no epsilon is finite there"),
        (["epsilon", "--delta", "1.5"], "delta = 1.5: must lie in [0, 1]"),
        (["delta", "--epsilon", "-1"], "epsilon = -1.0: must be >= 0"),
        (["delta", "--epsilon", "nan"], "epsilon = nan: must be >= 0"),
        (["calibrate", "--epsilon", "0", "--delta", "1e-6"], "must be above zero"),
        (["calibrate", "--epsilon", "1", "--delta", "x"], "delta = 'x': must be a finite number"),
        (["calibrate", "--epsilon", "1", "--delta", "1e-6", "--shares", "1,2"], "shares = "),
        (["calibrate", "--epsilon", "1", "--delta", "1e-6", "--shares", "a"], "shares = 'a'"),
        (["epsilon", "--delta", "1e-6", "--as-replace-one"], "for replace-one already"),
    ],
)
def test_wrong_options_are_one_line(gaussians: Path, command: list[str], words: str) -> None:
    result = run(command[0], gaussians, *command[1:])
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.splitlines()) == 1


def test_files_that_are_no_event_lists(tmp_path: Path) -> None:
    for name, content, words in (
        ("none.json", None, "cannot be opened: No such file"),
        ("events.yaml", "", "must end in .json or .toml"),
        ("events.json", "{", "not an event list in JSON"),
        ("list.json", "[]", "must be an object"),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        result = run("epsilon", tmp_path / name, "--delta", "1e-6")
        assert (result.exit_code, words in result.output) == (2, True), result.output


# Calibration of lists ----------------------------------------------------------------------------

EVERY: list[dict[str, Any]] = [
    {"mechanism": "gaussian", "noise_multiplier": "1/3"},
    {"mechanism": "discrete-gaussian", "noise_multiplier": 5},
    {"mechanism": "generalized-gaussian", "kappa": 2, "noise_multiplier": 6},
    {"mechanism": "laplace", "scale": 30, "count": 3},
    {"mechanism": "discrete-laplace", "scale": 4, "sensitivity": 2},
    {"mechanism": "exponential", "epsilon": "0.05"},
    {"mechanism": "randomized-response", "epsilon": 1, "categories": 4},
    {"mechanism": "pure", "epsilon": "1/7"},
    {"mechanism": "zcdp", "rho": "0.1"},
    {"mechanism": "approx", "epsilon": 1, "delta": 1e-9},
    {
        "mechanism": "objective-perturbation",
        "noise_std": 12,
        "regularization": 500,
        "gradient_difference": 4,
        "hessian_trace": 1,
        "dim": 5,
    },
]


def listed(*events: dict[str, Any]) -> Any:
    return event_list(
        {"adjacency": "replace-one", "trust": "central", "order": "any", "events": list(events)}
    )


def test_every_mechanism_is_scaled_exactly() -> None:
    found = with_noise(listed(*EVERY), [Fraction(2)] * len(EVERY))
    numbers = {e["mechanism"]: e for e in to_dict(found)["events"]}
    assert numbers["gaussian"]["noise_multiplier"] == "2/3"
    assert numbers["laplace"] == {"mechanism": "laplace", "count": 3, "scale": "60"}
    assert numbers["exponential"]["epsilon"] == "0.025"
    assert numbers["zcdp"]["rho"] == "0.025"
    assert numbers["objective-perturbation"]["noise_std"] == "24"
    assert numbers["approx"] == {"mechanism": "approx", "epsilon": "0.5", "delta": "0.000000001"}
    assert event_list(to_dict(found)) == found
    assert with_noise(found, [Fraction(1, 2)] * len(EVERY)) == listed(*EVERY)


def test_a_mixture_of_every_mechanism_keeps_its_promise() -> None:
    found = calibrate_events(listed(*EVERY), ApproxDP(3, "1e-6"))
    again = event_list(found.events)
    assert len(set(found.factors)) == 1
    assert found.epsilon <= 3
    assert evaluated(again).epsilon(1e-6).value == found.epsilon
    less = with_noise(listed(*EVERY), [Fraction(found.factors[0]) * Fraction(99, 100)] * len(EVERY))
    assert evaluated(less).epsilon(1e-6).value > 3


def test_shares_are_given_by_event() -> None:
    events = listed({**GAUSSIANS, "count": 10}, {"mechanism": "laplace", "scale": 1, "count": 5})
    found = calibrate_events(events, ApproxDP(1, "1e-6"), shares=[3, 1])
    first, second = ((loss * n).zcdp() or 0 for loss, n in event_list(found.events).losses())
    assert float(first / second) == pytest.approx(3, rel=1e-3)
    assert found.epsilon <= 1
    assert epsilon_of(event_list(found.events).loss(), 1e-6).value < 1.1


def test_a_curve_has_no_noise_to_scale(tmp_path: Path) -> None:
    events = write(tmp_path / "e.json", GAUSSIANS, {"mechanism": "renyi", "curve": [[2, 0.1]]})
    result = run("calibrate", events, "--epsilon", "1", "--delta", "1e-6")
    assert result.exit_code == 2
    assert "error: events[1]: a Rényi curve states no noise" in result.output


# What is not private, and what is nothing ------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "numbers", "line", "words"),
    [
        ("non-private", ("Infinity", 1.0), "(ε = ∞, δ = 1e-06), method non-private", "Not private"),
        ("no-op", (0.0, 0.0), "(ε = 0.0000, δ = 1e-06), method nothing", "Nothing about anybody"),
    ],
)
def test_infinite_and_no_loss_are_said_plainly(
    tmp_path: Path, kind: str, numbers: tuple[Any, float], line: str, words: str
) -> None:
    events = [{"mechanism": kind, "count": 3}] + ([GAUSSIANS] if kind == "non-private" else [])
    path = write(tmp_path / "events.json", *events)
    plain = run("epsilon", path, "--delta", "1e-6")
    assert plain.exit_code == 0
    assert line in plain.output
    assert words in plain.output
    assert (
        json.loads(run("epsilon", path, "--delta", "1e-6", "--json").output)["epsilon"]
        == (numbers[0])
    )
    assert json.loads(run("delta", path, "--epsilon", "2", "--json").output)["delta"] == numbers[1]
    drawn = run("epsilon", path, "--delta", "1e-6", "--plot", tmp_path / "picture.png")
    assert drawn.exit_code == 2
    assert "--plot: there is no curve to draw" in drawn.output
    calibrated = run("calibrate", path, "--epsilon", "1", "--delta", "1e-6")
    assert calibrated.exit_code == 2
    assert f"events[0]: {kind} has no noise to be scaled" in calibrated.output
    for bad in (("epsilon", "--delta", "2"), ("delta", "--epsilon", "-1")):
        assert run(bad[0], path, *bad[1:]).exit_code == 2
