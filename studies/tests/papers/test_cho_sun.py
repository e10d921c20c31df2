"""``privlearn reproduce``: figures, resuming, guarantees and verdicts, at tiny sizes."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from grids import thinned
from scipy.optimize import brentq, minimize_scalar
from scipy.special import logsumexp
from scipy.stats import norm
from typer.testing import CliRunner, Result

from privlearn.cli.main import app, main
from privlearn.cli.output import BAD_INPUT, INTERRUPTED
from privlearn_studies.data.expedia import SIDE_INFORMATION
from privlearn_studies.papers.cho_sun import experiments, reproduction, tables
from privlearn_studies.papers.cho_sun import findings as _findings
from privlearn_studies.papers.cho_sun.experiments import ChoSunCell, Design, design, play
from privlearn_studies.papers.cho_sun.findings import ChoSunRuns, Finding, findings
from privlearn_studies.papers.study import Finished

HORIZON = 520
FEWER = {"MLE_PERCENTS": (10, 90), "DIMS": (3, 15), "SIZES": (3, 20), "SIZE_RHOS": ("0.1", "5")}
"""Ends of what the figures vary."""
ENDINGS = ("jsonl", "json", "md", "png")

runner = CliRunner()

pytestmark = [pytest.mark.usefixtures("quick_pictures"), pytest.mark.calibration]


def run(*arguments: str | Path | int) -> Result:
    return runner.invoke(app, ["reproduce", "cho-sun", *(str(a) for a in arguments)])


def tiny(figure: str, out: Path, *, replicates: int = 1, jobs: int = 1, seed: int = 101) -> Result:
    sizes = ("--replicates", replicates, "--horizon", HORIZON, "--jobs", jobs, "--seed", seed)
    return run(figure, *sizes, "--out", out)


def never(*arguments: Any) -> experiments.ChoSunResult:
    raise AssertionError(f"played once more: {arguments}")


def contents(out: Path, figure: str) -> dict[str, bytes]:
    return {ending: (out / f"{figure}.{ending}").read_bytes() for ending in ENDINGS}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, quick_pictures: object) -> Path:
    """Figure 7 with two replicates, never interrupted."""
    out = tmp_path_factory.mktemp("whole")
    result = tiny("fig7", out, replicates=2)
    assert result.exit_code == 0, result.output
    return out


def cut(whole: Path, out: Path, keep: int, torn: int) -> Path:
    """The first lines of a finished figure and some bytes of the next one."""
    lines = (whole / "fig7.jsonl").read_bytes().splitlines(keepends=True)
    out.mkdir(exist_ok=True)
    (out / "fig7.jsonl").write_bytes(b"".join(lines[:keep]) + lines[keep][:torn])
    return out


def said(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of the real entry point."""
    monkeypatch.setattr(sys, "argv", ["privlearn", "reproduce", "cho-sun", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


# --- every figure ----------------------------------------------------------------------------


def test_the_cells_are_those_of_the_paper() -> None:
    counts = {figure: len(design(figure, HORIZON, 1).cells) for figure in experiments.FIGURES[:4]}
    assert counts == {"fig4": 35, "fig5": 28, "fig6": 70, "fig7": 29}
    for figure in counts:
        keys = [cell.key for cell in design(figure, HORIZON, 1).cells]
        assert len(set(keys)) == len(keys)
    four = {(c.rho, c.mle) for c in design("fig4", HORIZON, 1).cells if c.mle}
    assert four == {(rho, mle) for rho in ("0.1", "0.5", "1") for mle in (10, 30, 50, 70, 90)}
    five = {(c.rho, c.mle, c.dim) for c in design("fig5", HORIZON, 1).cells if c.mle}
    assert five == {("1", mle, dim) for mle in (90, 10) for dim in (3, 7, 11, 15)}
    six = {c.rho for c in design("fig6", HORIZON, 1).cells if c.mle}
    assert six == {"0.1", "0.5", "1", "5"}
    assert experiments.published_fits(5, 10, 10_000) == 58
    assert experiments.printed_epsilon("0.1", 10_000) == pytest.approx(3.78414, abs=1e-5)


@pytest.mark.parametrize("figure", thinned(["fig5", "fig4", "fig6"], 3))
def test_a_figure_leaves_runs_numbers_report_and_plot(
    figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (experiments, _findings):
        for name, fewer in FEWER.items():
            monkeypatch.setattr(module, name, fewer)
    result = tiny(figure, tmp_path)
    assert result.exit_code == 0, result.output
    files = contents(tmp_path, figure)
    assert len(list(tmp_path.iterdir())) == len(ENDINGS)
    cells = experiments.design(figure, HORIZON, 101).cells
    assert len(files["jsonl"].splitlines()) == 1 + len(cells)
    numbers = json.loads(files["json"])
    assert len(numbers["cells"]) == len(cells)
    assert {cell["learner"] for cell in numbers["cells"]} == {
        experiments.PUBLISHED,
        experiments.PROVED,
        experiments.ONE_PASS,
        experiments.NON_PRIVATE,
        experiments.RANDOM,
    }
    assert files["png"].startswith(b"\x89PNG")
    report = files["md"].decode()
    command = f"privlearn reproduce cho-sun {figure} --replicates 1 --horizon {HORIZON} --seed 101"
    assert f"`{command}`" in report
    for title in ("## Findings", "## Total regret", "## Guarantees"):
        assert title in report
    assert all(finding["claim"] in report for finding in numbers["findings"])
    assert str(tmp_path) not in report


def test_figure_7_has_all_rivals_of_both_kinds(whole: Path) -> None:
    report = (whole / "fig7.md").read_text("utf-8")
    assert all(f"| {label} |" in report for label in experiments.LABELS.values())
    assert "less regret than benchmark, printed" in report


def test_every_line_says_with_which_seeds(whole: Path) -> None:
    head, *lines = map(json.loads, (whole / "fig7.jsonl").read_text("utf-8").splitlines())
    assert head["settings"]["seed"] == 101
    assert {"python", "numpy", "scipy", "privlearn"} <= head["settings"].keys()
    last = lines[-1]
    assert last["replicate"] == 1
    assert last["seeds"] == {"market": [101, 1], "noise": 101_001, "coins": 1}


# --- interruptions ---------------------------------------------------------------------------


@pytest.mark.parametrize(("missing", "torn", "jobs"), [(4, 0, 2), (1, 3000, 1)])
def test_going_on_gives_the_same_bytes(
    whole: Path, tmp_path: Path, missing: int, torn: int, jobs: int
) -> None:
    n_lines = len((whole / "fig7.jsonl").read_bytes().splitlines())
    out = cut(whole, tmp_path, n_lines - missing, torn)
    assert tiny("fig7", out, replicates=2, jobs=jobs).exit_code == 0
    assert contents(out, "fig7") == contents(whole, "fig7")


def test_a_finished_figure_is_not_run_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ending in ENDINGS:
        (tmp_path / f"fig7.{ending}").write_bytes((whole / f"fig7.{ending}").read_bytes())
    monkeypatch.setattr(experiments, "play", never)
    assert tiny("fig7", tmp_path, replicates=2).exit_code == 0
    assert contents(tmp_path, "fig7") == contents(whole, "fig7")


@pytest.mark.usefixtures("full_pictures")
def test_equal_runs_give_equal_pictures(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fig7.jsonl").write_bytes((whole / "fig7.jsonl").read_bytes())
    monkeypatch.setattr(experiments, "play", never)
    pictures = []
    for _ in range(2):
        assert tiny("fig7", tmp_path, replicates=2).exit_code == 0
        pictures.append(contents(tmp_path, "fig7")["png"])
    assert pictures[0] == pictures[1]
    assert len(pictures[0]) > 2 * len(contents(whole, "fig7")["png"])


def test_a_torn_header_is_begun_anew(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    settings = json.loads((whole / "fig7.jsonl").read_text("utf-8").splitlines()[0])["settings"]
    path.write_bytes(b'{"settings": {"form')
    for _ in range(2):
        finished = Finished.open(path, settings, experiments.ChoSunResult)
        assert not finished._results
    assert json.loads(path.read_text("utf-8")) == {"settings": settings}


def test_an_interrupt_keeps_what_is_done(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (whole / "fig7.jsonl").read_bytes().splitlines(keepends=True)
    out = cut(whole, tmp_path, len(lines) - 4, 0)
    real, calls = experiments.play, iter(range(10))

    def stopped(*arguments: Any) -> experiments.ChoSunResult:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(experiments, "play", stopped)
        result = tiny("fig7", out, replicates=2)
    assert result.exit_code == INTERRUPTED
    assert "the same command goes on" in result.output
    assert (out / "fig7.jsonl").read_bytes() == b"".join(lines[:-2])
    assert tiny("fig7", out, replicates=2).exit_code == 0
    assert contents(out, "fig7") == contents(whole, "fig7")


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig9"], "must be one of fig4, fig5, fig6, fig7, expedia"),
        (["fig4", "--replicates", "0"], "replicates = 0: must be an integer >= 1"),
        (["fig4", "--jobs", "0"], "jobs = 0"),
        (["fig4", "--seed", "-1"], "seed = -1"),
        (["fig4", "--horizon", "500"], "must be above T0 = 500"),
        (["expedia", "--horizon", "10000"], "must be above T0 = 10000"),
        (["fig4", "--data", "train.csv"], "only expedia reads a file"),
        (["expedia"], "--data train.csv"),
        (["expedia", "--data", "train.csv"], SIDE_INFORMATION[0].partition(": ")[2]),
        (["expedia", "--data", "none.csv", "--declare-public"], "none.csv cannot be read"),
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
    assert said(arguments, monkeypatch) == BAD_INPUT
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--horizon", "530", "--seed", "101"], "horizon = 520 there, 530 now"),
        (["--horizon", "520", "--seed", "102"], "seed = 101 there, 102 now"),
    ],
)
def test_runs_of_other_settings_are_refused_and_left_alone(
    whole: Path,
    change: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = contents(whole, "fig7")
    assert said(["fig7", *change, "--out", str(whole)], monkeypatch) == BAD_INPUT
    told = capsys.readouterr().err
    assert message in told
    assert "choose another --out" in told
    assert contents(whole, "fig7") == before


def test_runs_of_other_code_are_refused(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "source_digest", lambda module: "0" * 16)
    refused = tiny("fig7", whole, replicates=2)
    assert refused.exit_code != 0
    assert re.search(r"other settings \(code = '\w+' there, '\w+' now\)", str(refused.exception))


def test_a_damaged_line_and_an_unwritable_folder_are_named(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = cut(whole, tmp_path / "damaged", 3, 0)
    with open(out / "fig7.jsonl", "ab") as file:
        file.write(b'{"cell": 3}\n')
    sizes = ["--horizon", "520", "--seed", "101"]
    assert said(["fig7", *sizes, "--out", str(out)], monkeypatch) == BAD_INPUT
    assert "fig7.jsonl, line 4: this is no finished run" in capsys.readouterr().err
    (tmp_path / "file").write_text("", "ascii")
    assert said(["fig7", *sizes, "--out", str(tmp_path / "file")], monkeypatch) == BAD_INPUT
    assert re.search(r"file cannot be written: .*exists", capsys.readouterr().err)


# --- guarantees, computed once more from the papers and the errata -----------------------------


def minimizer_curve(ridge: float, std: float, dim: int, items: int) -> Callable[[float], float]:
    """min(A, B) of errata item 3b for s = 4, T = 1."""
    tau, c, rank = 1 / ridge, 4 / std, min(dim, items)
    x = np.linspace(0, 60, 12_001)
    log_chi = (dim - 1) * np.log(np.maximum(x, 1e-12)) - x**2 / 2

    def curve(order: float) -> float:
        t = order - 1
        moment = float(logsumexp(log_chi + t * c * x) - logsumexp(log_chi)) / t
        general = rank * math.log1p(1 / (rank * ridge)) + c**2 / 2 + moment
        if t * tau < 1 and order * tau**2 <= 1:
            ratio = (1 + tau) / ((1 - t * tau) * (1 + order * tau))
            return min(general, order * c**2 / 2 + math.log(ratio) / t)
        return general

    return curve


def published_curve(rho: float, fits: int, mle: float) -> tuple[Callable[[float], float], float]:
    """The Rényi curve of Algorithms 2 and 3 for d = 5, K = 10, and the Gram matrix's ρ."""
    dim, items, each = 5, 10, rho * mle / fits
    ridge = 4 / math.expm1(each / 2 / min(dim, items - 1))
    std = 2 * (math.sqrt(dim + each) + math.sqrt(dim)) / (each / 2)
    levels = math.floor(math.log2(HORIZON)) + 1
    gram = items * rho * (1 - mle) * levels / (1 + math.ceil(math.log2(HORIZON)))
    minimizer = minimizer_curve(ridge, std, dim, items)
    return lambda order: fits * minimizer(order) + gram * order, gram


def epsilon_of(curve: Callable[[float], float], delta: float) -> float:
    """Canonne, Kamath and Steinke, minimised over the order."""

    def at(log_t: float) -> float:
        t = math.exp(log_t)
        order = 1 + t
        return curve(order) + math.log(t / order) - (math.log(delta) + math.log(order)) / t

    return float(minimize_scalar(at, bounds=(-6, 8), method="bounded").fun)


@pytest.mark.parametrize(
    ("learner", "fits"), [(experiments.PUBLISHED, 43), (experiments.PUBLISHED_FEW, 8)]
)
@pytest.mark.parametrize("rho", ["0.1", "1"])
def test_the_certified_guarantee_of_published_noise(
    whole: Path, learner: str, fits: int, rho: str
) -> None:
    numbers = json.loads((whole / "fig7.json").read_text("utf-8"))
    (cell,) = (c for c in numbers["cells"] if c["learner"] == learner and c["rho"] == rho)
    curve, gram = published_curve(float(rho), fits, 0.9)
    orders = 1 + np.geomspace(1e-3, 1e5, 400)
    minimizers = max(curve(a) / a for a in orders) - gram
    assert cell["nominal"]["rho"] == rho
    assert cell["certified"]["rho"] == pytest.approx(gram + minimizers, rel=1e-4)
    assert cell["certified"]["rho"] > gram
    delta = 1 / HORIZON**2
    assert cell["certified"]["delta"] == delta
    assert cell["certified"]["epsilon"] == pytest.approx(epsilon_of(curve, delta), rel=1e-4)


def test_what_the_published_gram_noise_costs_is_in_the_report() -> None:
    setting = Design("fig4", HORIZON, 101, ())
    result = play(setting, None, ChoSunCell(experiments.PUBLISHED, "0.1", 10), 0)
    _, gram = published_curve(0.1, 43, 0.1)
    assert result.rho == pytest.approx(gram, rel=1e-3)
    assert gram > 0.8
    claimed, rho, _, covered = tables._claim(
        setting, ChoSunCell(experiments.PUBLISHED, "0.1", 10), result
    )
    assert (claimed, rho) == ("ρ = 0.1", f"{gram:.4g}")
    assert covered == f"**no**, {gram / 0.1:.3g} times"


def test_the_certified_guarantee_of_the_others(whole: Path) -> None:
    numbers = json.loads((whole / "fig7.json").read_text("utf-8"))
    delta = 1 / HORIZON**2

    def gaussian_delta(epsilon: float, mu: float) -> float:
        tail = norm.cdf(-epsilon / mu - mu / 2)
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * tail - delta)

    for cell in numbers["cells"]:
        if cell["rho"] is None:
            assert cell["nominal"] is cell["certified"] is None
            continue
        rho, told = float(cell["rho"]), cell["certified"]
        implied = epsilon_of(rho.__mul__, delta)
        if cell["learner"] == experiments.ONE_PASS:
            assert told["rho"] == pytest.approx(rho, rel=1e-12)
            exact = brentq(gaussian_delta, 1e-3, 40, args=(math.sqrt(2 * rho),))
            assert told["epsilon"] == pytest.approx(exact, rel=1e-6)
        if cell["learner"] == experiments.PROVED:
            assert 0.999 * rho < told["rho"] <= rho
            assert told["epsilon"] < implied
        if cell["learner"] == experiments.PROVED_SAME:
            assert float(cell["nominal"]["epsilon"]) == pytest.approx(implied, rel=1e-6)
            assert 0.999 * implied < told["epsilon"] <= implied
        if cell["learner"] == experiments.CORRECTED:
            printed = rho + 4 * rho * math.log(HORIZON)
            assert float(cell["nominal"]["epsilon"]) == pytest.approx(printed)
            assert told["epsilon"] < printed


# --- verdicts --------------------------------------------------------------------------------


def planted(
    figure: str, regret: Callable[[ChoSunCell], float], noise: float = 1.0
) -> list[Finding]:
    rng = np.random.default_rng(5)
    common = rng.normal(size=20)  # of the replicate, the same for all cells
    results = {}
    for cell in design(figure, HORIZON, 1).cells:
        totals = regret(cell) + 50 * common + noise * rng.normal(size=20)
        curves = [
            np.sqrt(np.linspace(0, 1, experiments.POINTS + 1)[1:]) * total for total in totals
        ]
        results[cell] = [
            experiments.ChoSunResult(float(total), curve.tolist())
            for total, curve in zip(totals, curves, strict=True)
        ]
    return findings(figure, ChoSunRuns(results))


def verdicts(found: list[Finding], learner: str) -> dict[str, str]:
    return {finding.claim: finding.verdict for finding in found if finding.learner == learner}


def test_verdicts_follow_the_data() -> None:
    def regret(cell: ChoSunCell) -> float:
        if cell.rho is None:
            return 300.0
        trend = -100 * float(cell.rho) - float(cell.mle or 0)
        return 500 + (trend if cell.learner == experiments.PUBLISHED else -trend)

    found = planted("fig4", regret)
    falls, ends = "regret falls with ρ", "90% to the MLE is better than 10%"
    told = verdicts(found, experiments.PUBLISHED)
    assert told[falls] == told[ends] == told["every step towards the MLE is better"] == "yes"
    told = verdicts(found, experiments.PROVED)
    assert told[falls] == "no: 10 against"
    assert told[ends] == "no: 3 against"
    assert told["regret is below that of random items"] == "no: 15 against"


def test_what_is_lost_in_the_noise_is_not_seen_and_pairs_remove_common_noise() -> None:
    found = planted("fig4", lambda cell: 500.0, noise=5.0)
    outcomes = [c.outcome for finding in found for c in finding.comparisons]
    assert outcomes.count("unclear") > 0.85 * len(outcomes)
    # A difference of 2 with a common noise of 50 and an own noise of 1.
    small = planted("fig4", lambda cell: 500 - 2 * float(cell.rho or 0) * 10)
    assert verdicts(small, experiments.ONE_PASS)["regret falls with ρ"] == "yes"


def test_duels_sizes_and_dimensions_react() -> None:
    worse = {experiments.PRINTED: 300.0, experiments.CORRECTED: 50.0}
    told = planted("fig7", lambda cell: worse.get(cell.learner, 200.0))
    assert verdicts(told, experiments.PUBLISHED)["less regret than benchmark, printed"] == "yes"
    against = verdicts(told, experiments.PROVED)
    assert against["less regret than benchmark, printed"] == "yes"
    assert against["less regret than benchmark, corrected"] == "no: 3 against"

    sizes = planted("fig6", lambda cell: 10_000 - 100.0 * cell.max_items)
    assert verdicts(sizes, experiments.RANDOM)["K = 20 has less regret than K = 3"] == "yes"
    part = "K = 20 leaves a smaller part of random items' regret than K = 3"
    assert verdicts(sizes, experiments.PUBLISHED)[part] == "not seen"

    def steeper(cell: ChoSunCell) -> float:
        return 5000 + cell.dim * (10.0 if cell.mle == 90 else 30.0)

    told = planted("fig5", steeper)
    assert (
        verdicts(told, experiments.PROVED)["regret grows less with d at 90% than at 10%"] == "yes"
    )
    flat = "with 90% to the MLE regret grows sublinearly (last against second quarter)"
    assert verdicts(told, experiments.PROVED)[flat] == "yes"


# --- Expedia, on a made-up file ----------------------------------------------------------------


@pytest.fixture(scope="module")
def expedia_builder() -> ModuleType:
    path = Path(__file__).parents[1] / "data" / "test_expedia.py"
    spec = importlib.util.spec_from_file_location("expedia_builder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_expedia_runs_on_a_file_of_its_schema(
    expedia_builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "EXPEDIA_INITIAL_ROUNDS", 50)
    rows = expedia_builder.synthetic(n_hotels=14, n_searches=60, shown=6)
    data = expedia_builder.write(tmp_path / "train.csv", rows)
    out = tmp_path / "out"
    sizes = ("--replicates", 1, "--horizon", 200, "--jobs", 1, "--seed", 101)
    arguments = ("expedia", *sizes, "--out", out, "--data", data, "--declare-public")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    numbers = json.loads((out / "expedia.json").read_text("utf-8"))
    assert {c["rho"] for c in numbers["cells"]} == {"0.5", "1", "5", None}
    assert numbers["settings"]["exploration"] == 1e-7
    report = (out / "expedia.md").read_text("utf-8")
    assert "--data train.csv --declare-public" in report
    assert str(tmp_path) not in report
    # Another file, even of the same sizes, is another study.
    other = expedia_builder.synthetic(n_hotels=14, n_searches=60, shown=6, seed=1)
    expedia_builder.write(data, other)
    refused = run(*arguments)
    assert refused.exit_code != 0
    assert "data = " in str(refused.exception)
