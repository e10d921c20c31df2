"""Streams of private linear regression, who competes on them, and ``privlearn reproduce``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from privlearn.cli.main import app, main
from privlearn.cli.output import BAD_INPUT, INTERRUPTED
from privlearn.losses.budgets import ZCDP, GaussianDP
from privlearn.losses.conversion import gaussian_epsilon, zcdp_epsilon
from privlearn.mechanisms.constraint_sets import dual_exponent, norms
from privlearn_studies.papers.han2022 import competitors, experiments, reproduction, tables
from privlearn_studies.simulated import regression
from privlearn_studies.simulated.regression import linear_stream

runner = CliRunner()

pytestmark = [pytest.mark.usefixtures("quick_pictures"), pytest.mark.calibration]
ENDINGS = ("jsonl", "json", "md", "png")

# Streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 1.25, 1.5, 4.0, math.inf])
def test_rows_and_parameters_have_unit_norms(p: float) -> None:
    stream = linear_stream(3, horizon=50, dim=7, p=p)
    q = dual_exponent(p)
    assert norms(stream.features, q) == pytest.approx(np.ones(50))
    assert norms(stream.test, q) == pytest.approx(np.ones(regression.TEST_ROWS))
    assert norms(stream.theta, p) == pytest.approx(1.0)
    assert np.ptp(stream.theta[:5]) == 0
    assert (stream.theta[5:] == 0).all()
    residuals = linear_stream(3, horizon=4000, dim=7, p=p)
    noise = residuals.labels - residuals.features @ residuals.theta
    assert noise.std() == pytest.approx(0.05, rel=0.05)
    assert (stream.horizon, stream.dim) == (50, 7)


def test_scores_by_hand() -> None:
    stream = linear_stream(4, horizon=5, dim=3, p=2.0)
    assert stream.suboptimality(stream.theta) == 0
    assert stream.suboptimality(np.zeros(3)) == 1
    assert stream.risk(stream.theta) == pytest.approx(0.05**2)
    theta = np.array([0.3, -0.2, 0.9])
    labels = stream.test @ stream.theta
    risk = np.mean((stream.test @ theta - labels) ** 2)
    assert stream.risk(theta) == pytest.approx(risk + 0.0025)
    assert stream.suboptimality(theta) == pytest.approx(risk / np.mean(labels**2))


def test_columns_can_be_scaled_and_entries_unequal() -> None:
    widths = np.geomspace(5, 1, 6)
    stream = linear_stream(5, horizon=9, dim=6, p=1.5, scales=widths, theta=regression.UNEQUAL)
    spread = stream.test.std(axis=0)
    assert (np.diff(spread) < 0).all()
    assert spread[0] / spread[-1] > 3
    assert stream.theta[1] / stream.theta[0] == pytest.approx(-1 / 1.3)
    same = linear_stream(5, horizon=9, dim=6, p=1.5, scales=widths, theta=regression.UNEQUAL)
    assert (same.features == stream.features).all()
    other = linear_stream(6, horizon=9, dim=6, p=1.5, scales=widths)
    assert (other.features != stream.features).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p": 0.9}, "p = 0.9"),
        ({"horizon": 0}, "horizon = 0"),
        ({"noise": -1.0}, "noise = -1.0"),
        ({"theta": (1.0,) * 4}, "theta of length 4: dim is 3"),
        ({"theta": (0.0,)}, "length = 0.0"),
        ({"scales": (1.0, 2.0)}, "scales: must be 3 numbers > 0"),
        ({"scales": (1.0, 2.0, 0.0)}, "scales: must be 3 numbers > 0"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_arguments_out_of_range_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_stream(**({"seed": 1, "horizon": 5, "dim": 3, "p": 2.0} | changes))


# Competitors ---------------------------------------------------------------------------------

EVERYBODY = (
    *(
        competitors.PLAIN,
        competitors.BUFFERED,
        competitors.SFW,
        competitors.SFW_GENERALIZED,
    ),
    *(
        competitors.SGD,
        competitors.MIRROR,
        competitors.PRINTED,
        competitors.TRUE_NOISE,
        competitors.NO_NOISE,
    ),
    competitors.NOTHING,
)


@pytest.mark.parametrize("name", EVERYBODY)
def test_everybody_plays_at_the_guarantee_that_is_stated(name: str) -> None:
    stream = linear_stream(7, horizon=300, dim=10, p=1.5)
    first, second = (competitors.compete(name, stream, 7) for _ in range(2))
    assert first == second
    if name in competitors.WITHOUT_PROMISE:
        assert first.epsilon is None
    elif name == competitors.PRINTED:
        assert first.epsilon is not None
        assert first.epsilon > 4
    else:
        assert first.epsilon == pytest.approx(1.0, abs=1e-6)
    if name not in (competitors.PRINTED, competitors.TRUE_NOISE, competitors.NOTHING):
        assert first.suboptimality < 1
    assert first.risk == pytest.approx(
        0.0025 + first.suboptimality * (stream.risk(np.zeros(10)) - 0.0025)
    )


def test_choices_play_on_the_l1_ball() -> None:
    stream = linear_stream(8, horizon=400, dim=10, p=1.0)
    for name in (competitors.POFW, competitors.CHOICES):
        outcome = competitors.compete(name, stream, 8)
        assert outcome.epsilon is not None
        assert 0.5 < outcome.epsilon <= 1 + 1e-9
        assert outcome.suboptimality < 1


def test_caps_are_at_epsilon_and_one_over_the_horizon() -> None:
    stream = linear_stream(7, horizon=1000, dim=10, p=1.5)
    exact = competitors.budget(competitors.PLAIN, stream)
    assert isinstance(exact, GaussianDP)
    assert gaussian_epsilon(float(exact.mu_squared), 1e-3).value == pytest.approx(1.0)
    assert exact.mu == pytest.approx(0.3884, abs=1e-4)
    by_moments = competitors.budget(competitors.TRUE_NOISE, stream)
    assert isinstance(by_moments, ZCDP)
    assert zcdp_epsilon(float(by_moments.rho), 1e-3).value == pytest.approx(1.0)
    flat = linear_stream(7, horizon=1000, dim=5, p=1.5)
    assert isinstance(competitors.budget(competitors.TRUE_NOISE, flat), GaussianDP)
    with pytest.raises(ValueError, match="name = 'nobody'"):
        competitors.learner("nobody", stream)


def test_every_cell_of_the_table_has_settings_of_its_own_and_others_the_nearest() -> None:
    assert len(competitors.SFW_SETTINGS) == 24
    for (p, horizon, dim), setting in competitors.SFW_SETTINGS.items():
        stream = linear_stream(1, horizon=horizon, dim=dim, p=p)
        assert (
            competitors.learner(competitors.SFW, stream).get_params().items()
            >= setting._asdict().items()
        )
    wide = linear_stream(1, horizon=900, dim=50, p=4.0)
    nearest = competitors.SFW_SETTINGS[math.inf, 1000, 20]
    assert (
        competitors.learner(competitors.SFW, wide).get_params().items() >= nearest._asdict().items()
    )


# The paper's numbers -------------------------------------------------------------------------


def test_quoted_numbers_are_where_the_paper_has_them() -> None:
    assert experiments.PAPER_OFW[1.5, 1000, 5] == (0.0172, 0.00987)
    assert experiments.PAPER_OFW[1.5, 5000, 20] == (0.185, 0.0558)
    assert experiments.PAPER_OFW[math.inf, 1000, 5] == (0.112, 0.0727)
    assert experiments.PAPER_OFW[math.inf, 10_000, 20] == (0.363, 0.0283)
    assert experiments.PAPER_RIVAL[1.5, 2000, 10] == (0.887, 0.0691)
    assert experiments.PAPER_RIVAL[math.inf, 1000, 20] == (0.955, 0.111)
    assert math.isnan(experiments.PAPER_RIVAL[math.inf, 10_000, 5].mean)
    assert experiments.PAPER_RIVAL[math.inf, 10_000, 10] == (0.0505, 0.00514)
    assert len(experiments.PAPER_OFW) == len(experiments.PAPER_RIVAL) == 24


# privlearn reproduce -----------------------------------------------------------------------------


def run(target: str, out: Path, *more: str | int) -> Result:
    arguments = ["reproduce", target, "--jobs", 1, "--first-seed", 101, "--out", out, *more]
    return runner.invoke(app, [str(a) for a in arguments])


def contents(out: Path, target: str) -> dict[str, bytes]:
    return {ending: (out / f"{target}.{ending}").read_bytes() for ending in ENDINGS}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One dimension, and the learners that are quick."""
    monkeypatch.setattr(experiments, "DIMS", (5,))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, quick_pictures: object) -> Path:
    out = tmp_path_factory.mktemp("table")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "DIMS", (5,))
        result = run("table5.1", out, "--seeds", 2, "--horizons", 100)
    assert result.exit_code == 0, result.output
    return out


def test_the_table_leaves_runs_numbers_report_and_plot(table: Path) -> None:
    files = contents(table, "table5.1")
    assert sorted(path.name for path in table.iterdir()) == [
        f"table5.1.{ending}" for ending in sorted(ENDINGS)
    ]
    numbers = json.loads(files["json"])
    players = {(cell["p"], cell["player"]) for cell in numbers["cells"]}
    assert players == {
        (f"{p:g}", player) for p in experiments.EXPONENTS for player in experiments.BY_EXPONENT[p]
    }
    assert len(files["jsonl"].splitlines()) == 1 + 2 * len(players)
    assert files["png"].startswith(b"\x89PNG")
    report = files["md"].decode()
    assert "`privlearn reproduce table5.1 --seeds 2 --first-seed 101 --horizons 100`" in report
    for title in ("SubOpt, p = 1.5: published", "Risk, p = ∞", "What the printed noise costs"):
        assert f"## {title}" in report
    assert str(table) not in report
    printed = [
        c for c in numbers["cells"] if c["player"] == competitors.PRINTED and c["p"] == "1.5"
    ]
    assert printed[0]["epsilon"] > 3
    assert f"| 1.5 | 100 | 5 | {printed[0]['epsilon']:.3g} |" in report
    mean = np.mean(printed[0]["values"])
    assert mean == pytest.approx(printed[0]["mean"])


def test_quoted_columns_stand_beside_the_measured_ones() -> None:
    cells = experiments.cells("table5.1", (1000,))
    result = experiments.Han2022Result(0.25, 0.01, 1.0, [])
    runs = {cell: [result, result._replace(value=0.35)] for cell in cells}
    text = "\n".join(tables.table_parts(runs))
    assert "| 1,000 | 5 | 0.52 ± 0.057 | 0.017 ± 0.0099 | 0.30 ± 0.071 |" in text
    assert "| 1,000 | 10 | 0.64 ± 0.19 | 0.58 ± 0.16 | 0.30 ± 0.071 |" in text
    lines = tables.table_summary(runs)
    assert lines[0].startswith("in how many of 5 settings")
    assert lines[1].endswith("plain 0 (× 1.0), buffered 0 (× 1.0)")


def test_short_numbers() -> None:
    shown = [
        tables._short(x) for x in (0.0, 1234.5, 56.7, 1.26, 0.0344, 0.00005678, -0.02, math.nan)
    ]
    assert shown == ["0", "1234", "57", "1.3", "0.034", "0.000057", "-0.020", "n/a"]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("missing", "torn"), [(3, 30), (1, 0)])
def test_going_on_gives_the_same_bytes(
    table: Path, tmp_path: Path, missing: int, torn: int
) -> None:
    lines = (table / "table5.1.jsonl").read_bytes().splitlines(keepends=True)
    kept = lines[:-missing]
    (tmp_path / "table5.1.jsonl").write_bytes(b"".join(kept) + lines[-missing][:torn])
    assert run("table5.1", tmp_path, "--seeds", 2, "--horizons", 100).exit_code == 0
    assert contents(tmp_path, "table5.1") == contents(table, "table5.1")


@pytest.mark.usefixtures("few")
def test_an_interrupt_keeps_what_is_done(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (table / "table5.1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "table5.1.jsonl").write_bytes(b"".join(lines[:-4]))
    real, calls = experiments.play, iter(range(10))

    def stopped(*arguments: Any) -> experiments.Han2022Result:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(experiments, "play", stopped)
        result = run("table5.1", tmp_path, "--seeds", 2, "--horizons", 100)
    assert result.exit_code == INTERRUPTED
    assert "the same command goes on" in result.output
    assert (tmp_path / "table5.1.jsonl").read_bytes() == b"".join(lines[:-2])
    monkeypatch.setattr(experiments, "play", real)
    assert run("table5.1", tmp_path, "--seeds", 2, "--horizons", 100).exit_code == 0
    assert contents(tmp_path, "table5.1") == contents(table, "table5.1")


@pytest.mark.usefixtures("full_pictures")
def test_the_figure_has_all_bandits(tmp_path: Path) -> None:
    result = run("fig5.1", tmp_path, "--seeds", 1, "--horizons", 400)
    assert result.exit_code == 0, result.output
    numbers = json.loads((tmp_path / "fig5.1.json").read_bytes())
    found = {cell["player"]: cell for cell in numbers["cells"]}
    assert tuple(found) == experiments.BANDITS
    for player, cell in found.items():
        assert len(cell["curve"]) == experiments.POINTS
        assert cell["curve"][-1] == pytest.approx(cell["mean"])
        if player in (experiments.LASSO, experiments.RANDOM):
            assert cell["epsilon"] is None
        else:
            assert 0.5 < cell["epsilon"] <= 1 + 1e-9
    assert found[experiments.LASSO]["mean"] < found[experiments.RANDOM]["mean"] / 2
    assert found[experiments.RANDOM]["mean"] == pytest.approx(0.1 * 400, rel=0.4)
    report = (tmp_path / "fig5.1.md").read_text("utf-8")
    assert "## Regret after 400 users, d = 50, K = 2" in report
    assert all(f"| {player} |" in report for player in experiments.BANDITS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table5.1", "--seeds", "0"], "seeds = 0"),
        (["table5.1", "--jobs", "0"], "jobs = 0"),
        (["table5.1", "--first-seed", "-1"], "first_seed = -1"),
        (["table5.1", "--horizons", "99"], "horizon = 99: must be at least 100"),
        (["table5.1", "--horizons", "100,100"], "must be different numbers"),
        (["table5.1", "--horizons", "100,few"], "must be integers, joined by commas"),
        (["fig5.1", "--horizons", "100,200"], "fig5.1 has a single one"),
    ],
)
def test_wrong_use_is_one_clear_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["privlearn", "reproduce", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == BAD_INPUT
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("few")
def test_runs_of_other_settings_and_damaged_lines_are_refused(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(table, "table5.1")
    refused = run("table5.1", table, "--seeds", 2, "--horizons", 120)
    assert "horizons = [100] there, [120] now" in str(refused.exception)
    assert contents(table, "table5.1") == before
    lines = (table / "table5.1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "table5.1.jsonl").write_bytes(lines[0] + b'{"cell": 3}\n')
    damaged = run("table5.1", tmp_path, "--seeds", 2, "--horizons", 100)
    assert "line 2: this is no finished run" in str(damaged.exception)
    (tmp_path / "file").write_text("", "ascii")
    unwritable = run("table5.1", tmp_path / "file", "--horizons", 100)
    assert "cannot be written" in str(unwritable.exception)
    with pytest.raises(ValueError, match="target = 'table6'"):
        reproduction.reproduce_han2022(
            reproduction.Han2022Request("table6"), lambda *_: lambda n: None
        )
