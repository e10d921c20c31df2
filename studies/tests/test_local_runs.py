"""`privlearn run ldp-sgd|ldp-ols`, as an operator, an auditor and a strange file see it."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from privlearn.accountants import LocalAccountant, audit
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT, SIMULATION
from privlearn.learners.local.client import LocalClient
from privlearn.learners.local.protocol import LocalBanditConfig
from privlearn.learners.local.server import LocalServer
from privlearn.ledger import Ledger
from privlearn.losses.budget_texts import parse_local_budget
from privlearn_studies.data.electricity import electricity_market
from privlearn_studies.local_config import LocalConfig
from privlearn_studies.local_runs import reference, run_local

runner = CliRunner()

pytestmark = pytest.mark.usefixtures("quick_pictures")

PUBLIC = {
    "certificate.json",
    "certificate.md",
    "config.json",
    "ledger.db",
    "ledger.jsonl",
    "model.json",
}
PURE, GAUSSIAN = "epsilon=5", "epsilon=5,delta=1e-3"
BUDGETS = [("ldp-sgd", PURE), ("ldp-ols", GAUSSIAN)]


def run(*arguments: str | Path | int) -> Result:
    return runner.invoke(app, ["run", *map(str, arguments)])


def examine(ledger: Path) -> int:
    return runner.invoke(app, ["audit", str(ledger)]).exit_code


def files(folder: Path) -> set[str]:
    """But for the heads beside ledgers."""
    return {path.name for path in folder.iterdir() if path.suffix != ".head"}


def means(output: str, who: str) -> tuple[float, float, float]:
    """Overall, in the first tenth and in the last."""
    found = re.search(rf"{who}: ([\d.]+), first tenth ([\d.]+), last tenth ([\d.]+)", output)
    assert found is not None, output
    a, b, c = map(float, found.groups())
    return a, b, c


def model(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "public" / "model.json").read_text())
    return told


def synthetic_loans(path: Path, n: int = 300) -> Path:
    """A made-up file with the columns that are needed."""
    rng = np.random.default_rng(1)
    lines = ["Primary_FICO,Term,Amount_Approved,CarType,Competition_rate,onemonth,mp,apply"]
    for _ in range(n):
        dear = rng.random()
        taken = int(rng.random() < 0.9 - 0.8 * dear)
        score, kind = rng.integers(600, 800), rng.choice(["N", "U", "R"])
        lines.append(
            f"{score},60,20000,{kind},{rng.uniform(3, 8):.2f},0.2,{360 + 350 * dear:.2f},{taken}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(("learner", "budget"), BUDGETS)
def test_prices_of_electricity_are_learned(learner: str, budget: str, tmp_path: Path) -> None:
    private, late, chance = [], [], []
    for seed in (200, 201):
        out = tmp_path / str(seed)
        result = run(
            learner, "--budget", budget, "--horizon", 10_000, "--seed", seed,
            "--simulate-noise", seed, "--out", out,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert examine(out / "public" / "ledger.db") == SIMULATION
        overall, _, last = means(result.output, rf"private \({re.escape(budget)}\)")
        private.append(overall)
        late.append(last)
        chance.append(means(result.output, "random price")[0])
    assert np.mean(private) > 1.05 * np.mean(chance)
    assert np.mean(late) > 1.15 * np.mean(chance)
    assert files(out / "public") == PUBLIC
    assert files(out / "private") == {"devices.db", "devices.json", "revenue.csv", "revenue.png"}
    assert (out / "private").stat().st_mode & 0o077 == 0
    told = model(out)
    assert told["prices"] == [4, 6, 8, 10]
    assert set(told["quotes"]) == {"affinity 0.2", "affinity 0.45", "affinity 0.7"}
    assert set(told["quotes"].values()) <= {4, 6, 8, 10}


@pytest.mark.parametrize(("learner", "budget"), BUDGETS)
def test_what_is_promised_and_on_whose_word(learner: str, budget: str, tmp_path: Path) -> None:
    """The server's ledger holds claims, the devices' own one spends; noise is secure in both."""
    out = tmp_path / "run"
    result = run(learner, "--budget", budget, "--horizon", 1_000, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("ATTESTED, NOT VERIFIED: ")
    assert "If the clients do what they attest, which nobody has verified" in result.output
    assert "\nprivacy loss    if so, at most ε = 5.0000 at δ = " in result.output
    delta = "0.001" if learner == "ldp-ols" else "0"
    assert f"and (ε = 5, δ = {delta})-locally private" in result.output
    for ledger, attested in (("public/ledger.db", True), ("private/devices.db", False)):
        assert examine(out / ledger) == 0
        (guarantee,) = audit(out / ledger, delta=float(delta) or 1e-9).guarantees
        assert guarantee.attested == attested
        assert guarantee.trust.value == "local"
        assert guarantee.epsilon == pytest.approx(5, abs=1e-6)
        assert guarantee.epsilon <= 5
    (claim,) = audit(out / "public/ledger.db").attestations
    assert (claim.count, claim.most_messages, tuple(claim.users)) == (1_000, 1, (0, 1_000))
    assert claim.mechanism == f"{learner}/electricity"
    text = (out / "public" / "certificate.md").read_text("utf-8")
    assert "assumed not to see" in text
    assert "the simulated customers and not about the people who were asked" in text
    again = run(learner, "--budget", budget, "--horizon", 1_000, "--out", out)
    assert again.exit_code == BAD_INPUT
    assert "is not empty" in again.output


def test_what_a_killed_run_leaves_is_audited_and_its_server_goes_on(tmp_path: Path) -> None:
    """In a process of its own, at the end of the first batch behind 300 customers."""
    out = tmp_path / "run"
    config = LocalConfig(learner="ldp-sgd", budget="epsilon=2", data="electricity", horizon=600)
    child = os.fork()
    if child == 0:
        came = 0

        def progress(users: int) -> None:
            nonlocal came
            came += users
            if came >= 300:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            run_local(config, out, lambda name, length: progress)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    bandit = LocalBanditConfig.model_validate_json((out / "public" / "config.json").read_text())
    assert (bandit.method.epsilon, bandit.method.horizon, bandit.method.n_arms) == (2, 600, 4)
    for ledger in ("public/ledger.db", "private/devices.db"):
        assert audit(out / ledger, delta=1e-9).problems == []
    claims: LocalAccountant[Any] = LocalAccountant.resume(out / "public" / "ledger.db")
    devices: LocalAccountant[Any] = LocalAccountant.resume(out / "private" / "devices.db")
    with claims:
        server = LocalServer.resume(bandit, claims)
        assert server.heard == server.users.start >= 300
        assert np.any(server.model().arrays["theta"])
    with devices:
        client = LocalClient(bandit, devices)
        assert server.heard <= client.left.start <= server.heard + 512
        twin = LocalServer(bandit, LocalAccountant.for_server(bandit, Ledger.memory()), by="twin")
        for batch in client.recorded():
            twin.update_many(batch)
            twin.advance()
        for name, array in server.state.items():
            assert np.array_equal(array, twin.state[name])


def test_simulated_runs_are_repeated_exactly_and_secure_ones_are_not(tmp_path: Path) -> None:
    def weights(name: str, *more: str | int) -> Any:
        result = run("ldp-sgd", "--epsilon", 3, "--horizon", 200, *more, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        return model(tmp_path / name)["model"]

    first = weights("a", "--simulate-noise", 7)
    assert weights("b", "--simulate-noise", 7) == first
    assert weights("c", "--simulate-noise", 8) != first
    assert weights("d") != weights("e")


def test_curves_are_means_and_regrets_of_expected_revenue(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("ldp-sgd", "--epsilon", 1, "--horizon", 700, "--out", out).exit_code == 0
    market = electricity_market(0, horizon=700)
    with open(out / "private" / "revenue.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(rows[0]["customers"]), int(rows[-1]["customers"])] == [1, 700]
    last = {name: float(cell) for name, cell in rows[-1].items()}
    best = market.revenue.max(axis=1).sum()
    fixed, chance = market.revenue.mean(axis=0).max(), market.revenue.mean()
    assert last["best fixed price: mean"] == pytest.approx(fixed, rel=1e-5)
    assert last["random price: mean"] == pytest.approx(chance, rel=1e-5)
    assert last["random price: regret"] == pytest.approx(best - 700 * chance, rel=1e-5)
    arms = reference(market)
    learned = market.got(arms, market.revenue).mean()
    assert last["non-private: mean"] == pytest.approx(learned, rel=1e-5)


@pytest.mark.usefixtures("full_pictures")
@pytest.mark.parametrize(("learner", "budget"), BUDGETS)
def test_auto_loans_of_a_synthetic_file(learner: str, budget: str, tmp_path: Path) -> None:
    out, path = tmp_path / "run", synthetic_loans(tmp_path / "synthetic.csv")
    arguments = (learner, "--data", path, "--budget", budget, "--horizon", 400, "--out", out)
    refused = run(*arguments)
    assert refused.exit_code == BAD_INPUT
    assert "add --declare-public if these statistics" in refused.output
    assert not out.exists()
    result = run(*arguments, "--declare-public")
    assert result.exit_code == 0, result.output
    assert "300 loans" in result.output
    assert "of the imputed prices lie in the range that is quoted" in result.output
    assert files(out / "private") == {
        "acceptance.csv", "acceptance.png", "devices.db", "devices.json", "revenue.csv",
        "revenue.png",
    }  # fmt: skip
    assert "expected acceptance per customer;" in result.output
    assert "expected revenue per customer, US dollars;" in result.output
    told = model(out)
    assert len(told["features"]) == 18
    np.testing.assert_allclose(sorted(told["prices"]), np.arange(25) * 25_000 / 24)
    assert told["prices"] != sorted(told["prices"]), "an order that tells nothing of what is best"
    assert set(told["quotes"]) == {"FICO 600", "FICO 700", "FICO 800"}
    text = (out / "public" / "certificate.md").read_text("utf-8")
    assert "auto loans: the simulated customers' true demand" in text


def test_a_bad_cell_of_a_file_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    path = synthetic_loans(tmp_path / "synthetic.csv")
    lines = path.read_text().splitlines()
    lines[7] = lines[7].replace(",60,", ",sixty,")
    path.write_text("\n".join(lines) + "\n")
    out = tmp_path / "run"
    result = run("ldp-sgd", "--data", path, "--declare-public", "--epsilon", 1, "--out", out)
    assert result.exit_code == BAD_INPUT
    assert "line 8: column Term: found 'sixty', accepted is an integer" in result.output
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ldp-sgd"], "budget: must be given (ldp-sgd: epsilon=…; ldp-ols: "),
        (["ldp-sgd", "--epsilon", "0"], "epsilon = 0 must lie between"),
        (["ldp-sgd", "--epsilon", "-1"], "epsilon"),
        (["ldp-sgd", "--epsilon", "nan"], "epsilon"),
        (["ldp-sgd", "--epsilon", "1000"], "must lie between 1e-06 and 100"),
        (["ldp-sgd", "--epsilon", "1", "--budget", "epsilon=1"], "give one of them"),
        (["ldp-sgd", "--budget", "rho=1"], "must be epsilon=… or epsilon=…,delta=…"),
        (["ldp-sgd", "--budget", "epsilon"], "must be epsilon=… or epsilon=…,delta=…"),
        (["ldp-sgd", "--budget", "epsilon=1,delta=1e-3"], "leave delta out"),
        (["ldp-ols", "--budget", "epsilon=1"], "needs a delta"),
        (["ldp-ols", "--budget", "epsilon=1,delta=2"], "delta"),
        (["ldp-sgd", "--epsilon", "1", "--horizon", "0"], "horizon"),
        (["ldp-sgd", "--epsilon", "1", "--monthly-rate", "0.1"], "for your file of auto loans"),
        (["ldp-sgd", "--epsilon", "1", "--declare-public"], "for your file of auto loans"),
        (["ldp-sgd", "--epsilon", "1", "--data", "electricty"], "there is no such file"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    result = run(*arguments, "--out", tmp_path / "run")
    assert result.exit_code == BAD_INPUT, result.output
    assert message in result.output
    assert not (tmp_path / "run").exists()


def test_a_file_of_settings_takes_the_same_names(tmp_path: Path) -> None:
    path, out = tmp_path / "run.toml", tmp_path / "run"
    path.write_text('budget = "epsilon=2"\nhorizon = 300\nside_information = ["a test"]\n')
    assert run("ldp-sgd", "--config", path, "--out", out).exit_code == 0
    text = (out / "public" / "certificate.md").read_text("utf-8")
    assert "Declared public side information: a test." in text
    path.write_text('budget = "epsilon=2"\nhorizons = 300\n')
    result = run("ldp-sgd", "--config", path, "--out", tmp_path / "other")
    assert result.exit_code == BAD_INPUT
    assert "horizons" in result.output


def test_budgets_are_exact() -> None:
    assert str(parse_local_budget("epsilon=0.1").amounts[0]) == "1/10"
    assert LocalConfig(learner="ldp-ols", budget="epsilon=1, delta=1e-3").seed == 0


def test_without_privacy_the_reference_beats_the_best_fixed_price() -> None:
    ahead = []
    for seed in (201, 202, 203):
        market = electricity_market(seed, horizon=30_000)
        learned = market.got(reference(market), market.revenue)[-10_000:]
        ahead.append(learned.mean() / market.revenue[-10_000:].mean(axis=0).max())
    assert np.mean(ahead) > 1.01
