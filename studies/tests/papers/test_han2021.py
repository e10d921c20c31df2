from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from privlearn.cli.main import app, main
from privlearn.cli.output import BAD_INPUT, INTERRUPTED
from privlearn_studies.papers.han2021 import experiments, reproduction
from privlearn_studies.simulated import local_bandit as local

runner = CliRunner()

pytestmark = [pytest.mark.usefixtures("quick_pictures"), pytest.mark.calibration]
ENDINGS = ("jsonl", "json", "md", "png")
T = 120


def run(target: str, out: Path, *more: str | int | Path, jobs: int = 1) -> Result:
    fixed = ["reproduce", "han2021", target, "--first-seed", 200, "--seeds", 1, "--horizon", T]
    return runner.invoke(app, [str(a) for a in [*fixed, "--jobs", jobs, "--out", out, *more]])


def contents(out: Path, target: str) -> dict[str, bytes]:
    return {ending: (out / f"han2021-{target}.{ending}").read_bytes() for ending in ENDINGS}


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory, quick_pictures: object) -> Path:
    out = tmp_path_factory.mktemp("figure")
    result = run("fig5.1", out)
    assert result.exit_code == 0, result.output
    assert "one θ, d = 2, K = 10, ε = 1: LDP-SGD" in result.output
    return out


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up loans with the columns that are read; no line is real."""
    rng = np.random.default_rng(7)
    lines = ["Primary_FICO,Term,Amount_Approved,CarType,Competition_rate,onemonth,mp,apply"]
    for _ in range(300):
        term, amount = int(rng.choice([36, 60])), int(rng.integers(8_000, 40_000))
        price, q = rng.uniform(500, 20_000), 1 / 1.002
        payment = (price + amount) / (q * (1 - q**term) / (1 - q))
        taken = int(rng.random() < 1 / (1 + np.exp(price / 5_000 - 2)))
        kind = rng.choice(["N", "U", "R"])
        score = rng.integers(600, 830)
        lines.append(
            f"{score},{term},{amount},{kind},{rng.uniform(3, 8):.2f},0.2,{payment},{taken}"
        )
    path = tmp_path_factory.mktemp("loans") / "loans.csv"
    path.write_text("\n".join(lines) + "\n", "ascii")
    return path


def test_the_figure_has_everybody_in_every_panel(figure: Path) -> None:
    files = contents(figure, "fig5.1")
    assert len(list(figure.iterdir())) == len(ENDINGS)
    numbers = json.loads(files["json"])
    wanted = [
        (player, setting, epsilon)
        for setting in ("single", "multi")
        for epsilon in (1.0, 5.0)
        for player in (*experiments.PRIVATE, *experiments.FREE)
    ]
    cells = {(c["player"], c["setting"], c["epsilon"]): c for c in numbers["cells"]}
    assert list(cells) == wanted
    assert len(files["jsonl"].splitlines()) == 1 + len(wanted)
    for (player, _, epsilon), cell in cells.items():
        assert len(cell["curve"]) == experiments.POINTS
        assert cell["curve"][-1] == pytest.approx(cell["mean"])
        assert np.mean(cell["values"]) == pytest.approx(cell["mean"])
        if player in experiments.FREE:
            assert cell["certified epsilon"] is None
        else:
            assert 0 <= cell["certified epsilon"] <= epsilon * (1 + 1e-9)
    published = cells[experiments.UCB_PUBLISHED, "single", 1.0]["certified epsilon"]
    assert published == pytest.approx(0.1024, abs=1e-3)
    assert cells[experiments.UCB_TIGHT, "single", 1.0]["certified epsilon"] > 0.9999


def test_the_report_names_command_learners_and_proofs(figure: Path) -> None:
    report = contents(figure, "fig5.1")["md"].decode()
    command = "privlearn reproduce han2021 fig5.1 --seeds 1 --first-seed 200 --horizon 120"
    assert f"`{command}`" in report
    assert f"## one θ, d = 2, K = 10: regret after {T} users at ε = 1, δ = 0.01" in report
    assert f"## θ per arm, d = 20, K = 3: regret after {T} users at ε = 5, δ = 0.1" in report
    assert "| ε = 0.103, δ = 0.01 |" in report
    assert report.count(f"| {experiments.RANDOM} |") == 4
    assert str(figure) not in report


def test_players_meet_the_same_users_and_noise_of_their_own(figure: Path) -> None:
    numbers = json.loads(contents(figure, "fig5.1")["json"])
    free = [c["values"] for c in numbers["cells"] if c["player"] == experiments.FREE_OLS]
    assert free[0] == free[1]  # ε is nothing to them, and the users are the same
    assert free[0] != free[2]


@pytest.mark.parametrize(("missing", "torn", "jobs"), [(3, 40, 1), (5, 0, 2)])
def test_going_on_gives_the_same_bytes_with_any_number_of_processes(
    figure: Path, tmp_path: Path, missing: int, torn: int, jobs: int
) -> None:
    lines = (figure / "han2021-fig5.1.jsonl").read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[:-missing]) + lines[-missing][:torn]
    (tmp_path / "han2021-fig5.1.jsonl").write_bytes(kept)
    assert run("fig5.1", tmp_path, jobs=jobs).exit_code == 0
    assert contents(tmp_path, "fig5.1") == contents(figure, "fig5.1")


def test_an_interrupt_keeps_what_is_done(
    figure: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (figure / "han2021-fig5.1.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "han2021-fig5.1.jsonl"
    path.write_bytes(b"".join(lines[:-3]))
    real, calls = experiments.compete, iter(range(9))

    def stopped(*arguments: Any) -> experiments.Han2021Result:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(experiments, "compete", stopped)
    result = run("fig5.1", tmp_path)
    assert result.exit_code == INTERRUPTED
    assert "the same command goes on" in result.output
    assert path.read_bytes() == b"".join(lines[:-2])


def test_runs_of_other_settings_are_refused(figure: Path) -> None:
    before = contents(figure, "fig5.1")
    refused = run("fig5.1", figure, "--horizon", 130)
    assert "horizon = 120 there, 130 now" in str(refused.exception)
    assert contents(figure, "fig5.1") == before


@pytest.mark.calibration
@pytest.mark.usefixtures("full_pictures")
def test_auto_loans_from_a_file_of_ones_own_and_several_targets(
    figure: Path, file: Path, tmp_path: Path
) -> None:
    lines = (figure / "han2021-fig5.1.jsonl").read_bytes()
    (tmp_path / "han2021-fig5.1.jsonl").write_bytes(lines)
    result = run("fig5.1", tmp_path, "lending", "--data", file, "--declare-public")
    assert result.exit_code == 0, result.output
    drawn, coarse = contents(tmp_path, "fig5.1"), contents(figure, "fig5.1")
    assert len(drawn.pop("png")) > len(coarse.pop("png"))
    assert drawn == coarse
    assert len((tmp_path / "han2021-lending.jsonl").read_bytes().splitlines()) == 7
    more = run("lending", tmp_path, "--data", file, "--declare-public", "--seeds", 2)
    assert more.exit_code == 0, more.output
    files = contents(tmp_path, "lending")
    assert len(files["jsonl"].splitlines()) == 13
    cells, report = json.loads(files["json"])["cells"], files["md"].decode()
    assert [cell["player"] for cell in cells] == list(experiments.LENDERS)
    assert "--data loans.csv --declare-public`" in report
    assert str(file.parent) not in report
    assert f"## auto loans, d = 18, K = 25: regret after {T} users" in report
    assert f"± {np.std(cells[-1]['values'], ddof=1):,.0f} |" in report
    other = tmp_path / "other.csv"
    other.write_bytes(b"\n".join(file.read_bytes().split(b"\n")[:-5]) + b"\n")
    refused = run("lending", tmp_path, "--data", other, "--declare-public")
    assert "data = " in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig6"], "target = 'fig6': must be one of fig5.1, lending"),
        (["fig5.1", "--seeds", "0"], "seeds = 0"),
        (["fig5.1", "--jobs", "0"], "jobs = 0"),
        (["fig5.1", "--first-seed", "-1"], "first_seed = -1"),
        (["fig5.1", "--horizon", "99"], "horizon = 99: must be at least 100"),
        (["fig5.1", "--data", "x.csv"], "data = x.csv: only lending reads a file"),
        (["lending"], "data: lending needs your own copy of the file"),
        (["lending", "--data", "x.csv"], "add --declare-public if"),
        (["lending", "--data", "x.csv", "--declare-public"], "x.csv cannot be read"),
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
    monkeypatch.setattr("sys.argv", ["privlearn", "reproduce", "han2021", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == BAD_INPUT
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_shared_rules_are_built_for_the_market() -> None:
    market = local.arm_market(200, horizon=500)
    for player in experiments.PRIVATE:
        method = experiments.private_method(player, market, epsilon=2.0, delta=0.1, warm_up=3000)
        assert method.epsilon == 2.0
        assert (method.dim, method.n_arms, method.horizon) == (20, 3, 500)
    printed: Any = experiments.private_method(
        experiments.OLS_PRINTED, market, epsilon=2.0, delta=0.1, warm_up=3000
    )
    assert printed.warm_up() == 150


def test_the_requests_defaults_are_the_papers_runs() -> None:
    request = reproduction.Han2021Request("fig5.1")
    assert (request.seeds, reproduction._checked(request)) == (10, 50_000)
