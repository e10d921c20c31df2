"""`privlearn run glm`, as a newcomer, an operator and an auditor see it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from typer.testing import CliRunner, Result

from privlearn.accountants import audit
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT
from privlearn.errors import DataError
from privlearn.estimators import load_model, load_reward_model
from privlearn.runs.glm_configs import GLMConfig
from privlearn.runs.glm_logs import glm_log
from privlearn.runs.simulated_actions import ActionMarket
from privlearn.values.adjacency import Trust

VISITS = 900
BOUNDS = ["--bounds", "price=5:25,stars=1:5"]
NOISE = ["--simulate-noise", 3]
KILLED = """
import os, signal, sys
from privlearn.cli.main import main
from privlearn.ledger import Ledger

append, left = Ledger.append, [int(sys.argv.pop(1))]

def dying(self, entry, **more):
    append(self, entry, **more)
    left[0] -= self._disk is not None
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

Ledger.append = dying
main()
"""


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def said(*words: object) -> tuple[int, str]:
    found = run("run", "glm", *words)
    return found.exit_code, " ".join(found.output.split())


def killed(entries: int, *words: str) -> None:
    """A run in a process of its own, which is killed behind an entry of its ledger."""
    command = [sys.executable, "-c", KILLED, str(entries), "run", "glm", *words]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def model(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "public" / "model.json").read_text())
    return told


def films() -> list[list[str]]:
    """Cells of a log: price, stars, liked, and whose it is."""
    rng = np.random.default_rng(0)
    price, stars = rng.uniform(5, 25, VISITS), rng.uniform(1, 5, VISITS)
    liked = rng.random(VISITS) < expit(1.5 * (stars - 3) - 0.1 * (price - 15))
    each = zip(price, stars, liked, strict=True)
    return [
        [f"{p:.2f}", f"{s:.1f}", str(int(y)), f"p{n % 500}"] for n, (p, s, y) in enumerate(each)
    ]


def log(path: Path, cells: list[list[str]], header: str = "price,stars,liked,who") -> Path:
    path.write_text("\n".join([header, *map(",".join, cells)]) + "\n")
    return path


@pytest.fixture(scope="module")
def liked(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Words of a run on a log with a line for each visit."""
    path = log(tmp_path_factory.mktemp("data") / "log.csv", films())
    columns = ["--columns", "price,stars", "--reward", "liked"]
    return ["--data", path, *columns, *BOUNDS, "--horizon", VISITS, *NOISE]


def test_simulated_visitors_need_no_data(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--horizon", 1200, "--actions", 4, "--dim", 2, "--policy", "thompson", *NOISE]
    code, told = said(*words, "--out", out)
    assert code == 0, told
    assert "SIMULATED VISITORS, with 4 actions of 2 features each" in told
    assert np.shape(model(out)["coef"]) == (1, 3)
    (guarantee,) = audit(out / "public" / "ledger.db").guarantees
    assert guarantee.trust is Trust.JOINT
    assert "ε = 1.0000, δ = 1e-06" in (out / "public" / "certificate.md").read_text()
    private = told.partition("for the operator only:")[2]
    regrets = [float(part.partition(";")[0]) for part in private.split("total regret ")[1:]]
    assert regrets[1] < regrets[0] < regrets[2]


@pytest.mark.parametrize("link", ["linear", "logistic", "probit", "poisson"])
def test_rewards_of_simulated_visitors_have_their_means(link: str) -> None:
    market = ActionMarket(0, 4_000, 5, 2, link, 10.0)
    blocks = [market.block(number) for number in (0, 1)]
    assert all((np.einsum("nad,nad->na", b.features, b.features) <= 1 + 1e-9).all() for b in blocks)
    off = np.concatenate([(b.rewards - b.means).ravel() for b in blocks])
    assert abs(off.mean()) < 4 * off.std() / np.sqrt(off.size)


@pytest.mark.parametrize("reward", ["0", "1e-200", "1e-155"])
def test_one_reward_that_is_hardly_another_ends_no_run(reward: str, tmp_path: Path) -> None:
    """It is too little to be explained, and how much of it is says nothing."""
    cells = [[str(n % 20 + 5), str(n % 5), reward if n == 3 else "0"] for n in range(20)]
    path, out = log(tmp_path / "log.csv", cells, "price,stars,liked"), tmp_path / "out"
    words = ["--data", path, "--reward", "liked", *BOUNDS, "--horizon", 30, *NOISE]
    code, told = said(*words, "--out", out)
    assert code == 0, told
    assert sum(users for _, users, *_ in model(out)["state"]["evidence"][0]["batches"]) == 30
    assert "explained" not in told
    assert not (out / "private" / "fitted.json").exists()


def test_a_log_with_a_line_for_each_visit(liked: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told = said(*liked, "--out", out)
    assert code == 0, told
    found = model(out)
    assert found["inputs"] == ["price", "stars", "constant"]
    assert found["row_bound"] == pytest.approx(np.sqrt(3) / 2)  # of bounds, not of rows
    ((price, stars, _),), (errors,) = found["coef"], found["standard_errors"]
    assert price < 0 < 5 * errors[1] < stars
    public, _, private = told.partition("for the operator only:")
    assert "records: all 900 counted" in private
    assert "explained" in private
    assert "explained" not in public
    explained = json.loads((out / "private" / "fitted.json").read_text())
    assert min(explained["without noise"], explained["private"]) > 0.3
    (guarantee,) = audit(out / "public" / "ledger.db").guarantees
    assert guarantee.trust is Trust.CENTRAL
    new = log(tmp_path / "new.csv", [["15", "5"], ["?", "3"], ["10", "9"]], "price,stars")
    told = run("predict", out / "public" / "model.json", new, "--out", tmp_path / "told.csv").output
    assert "1 answered as if it were missing" in told
    header, *means = (tmp_path / "told.csv").read_text().split()
    rows = np.array([[0, 1, 0.5], [0, 0, 0.5], [-0.5, 1, 0.5]])
    rows *= np.minimum(found["row_bound"] / np.linalg.norm(rows, axis=1, keepdims=True), 1)
    assert header == "liked"
    np.testing.assert_allclose(
        np.array(means, dtype=float), expit(rows @ found["coef"][0]), rtol=1e-5
    )


def test_forecasts_of_linear_rewards_are_in_their_unit(tmp_path: Path) -> None:
    cells = [["15", "3", f"{70 + n % 10}"] for n in range(VISITS)]
    path = log(tmp_path / "log.csv", cells, "price,stars,spent")
    words = ["--data", path, "--reward", "spent", "--reward-range", "0:100", "--link", "linear"]
    out = tmp_path / "out"
    code, told = said(*words, *BOUNDS, "--horizon", VISITS, *NOISE, "--out", out)
    assert code == 0, told
    forecast = load_reward_model(out / "public" / "model.json").predict(path)
    assert np.ptp(forecast) == 0
    assert abs(forecast[0] - 74.5) < 5


def test_persons_of_a_log(liked: list[object], tmp_path: Path) -> None:
    code, told = said(*liked, "--people", "who", "--most", 2, "--out", tmp_path / "out")
    assert code == 0, told
    assert "learned from are at most 2 rows" in told
    (guarantee,) = audit(tmp_path / "out" / "public" / "ledger.db").guarantees
    assert guarantee.rule is not None


def test_actions_with_parameters_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    age, banner = rng.uniform(20, 80, VISITS), rng.choice(["old", "new"], VISITS)
    clicked = rng.random(VISITS) < expit(np.where(banner == "new", -0.1, 0.1) * (age - 50))
    cells = [
        [f"{a:.0f}", str(b), str(bool(y))] for a, b, y in zip(age, banner, clicked, strict=True)
    ]
    cells[7][1] = "unknown"
    path = log(tmp_path / "log.csv", cells, "age,banner,click")
    words = ["--data", path, "--arm", "banner", "--arms", "old,new", "--reward", "click"]
    words += ["--bounds", "age=20:80", "--horizon", VISITS, *NOISE]
    code, told = said(*words, "--out", tmp_path / "out")
    assert code == 0, told
    (old, _), (new, _) = model(tmp_path / "out")["coef"]
    assert new < -1 < 1 < old
    assert "in the middle of its bounds: " in told
    assert (tmp_path / "out" / "private" / "messages.txt").read_text().startswith("user 7: column")
    settings: dict[str, Any] = {"arms": "old,new", "bounds": "age=20:80"}
    read = glm_log(GLMConfig(data=str(path), arm="banner", reward="click", horizon=9, **settings))
    assert np.flatnonzero(np.array(read.gather([]).arms) == -1).tolist() == [7]
    path = tmp_path / "out" / "public" / "model.json"
    with pytest.raises(DataError, match="load_reward_model reads it"):
        load_model(path)
    learned = load_reward_model(path)
    means = learned.predict({"age": [20, 80]})
    assert ((means[:, 0] > means[:, 1]) == [False, True]).all()


def test_visits_with_a_line_for_each_action(tmp_path: Path) -> None:
    rng, cells = np.random.default_rng(2), list[list[str]]()
    for visit in range(VISITS):
        for shown in rng.permutation(np.arange(1 + visit % 3) == 0):
            stars = rng.uniform(1, 5)
            reward = str(int(rng.random() < expit(2 * (stars - 3)))) if shown else ""
            cells.append([f"v{visit}", f"{stars:.1f}", str(int(shown)), reward])
    cells[0][1] = "many"  # the only line of v0
    cells.append(["v1", "3", "0", ""])
    cells.append(["v1", "3", "0", ""])  # is one too many
    path = log(tmp_path / "log.csv", cells, "visit,stars,shown,liked")
    words = ["--data", path, "--visit", "visit", "--shown", "shown", "--actions", 3]
    words += ["--reward", "liked", "--bounds", "stars=1:5", "--horizon", 2 * VISITS, *NOISE]
    code, told = said(*words, "--out", tmp_path / "out")
    assert code == 0, told
    assert model(tmp_path / "out")["coef"][0][0] > 1
    reasons = json.loads((tmp_path / "out" / "private" / "counts.json").read_text())["reasons"]
    assert reasons.pop("no visit has this place") == VISITS
    assert reasons == {
        "4 lines, and a visit has at most 3 actions": 1,
        "column 'stars': missing, or no number": 1,
    }


def test_a_schema_declares_categories_and_the_reward(tmp_path: Path) -> None:
    cells = [["drama" if n % 2 else "war", "2" if n % 2 else "7", "x"] for n in range(60)]
    cells[3][0] = "opera"
    path = log(tmp_path / "log.csv", cells, "genre,seen,note")
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'target = "seen"\n[columns]\nseen = { kind = "number", low = 0, high = 9 }\n'
        'genre = { kind = "category", values = ["war", "drama", "art"] }\n'
    )
    words = ["--data", path, "--schema", schema, "--link", "poisson", "--reward-range", "0:9"]
    code, told = said(*words, "--horizon", 60, *NOISE, "--out", tmp_path / "out")
    assert code == 0, told
    assert model(tmp_path / "out")["inputs"] == ["genre=drama", "genre=art", "constant"]
    assert "records: 59 of 60 counted" in told
    words[-1] = "0:5"
    code, told = said(*words, "--horizon", 60, "--out", tmp_path / "other")
    assert (code, "reward_range: is declared in the schema" in told) == (BAD_INPUT, True)


def spoilt(cells: list[list[str]]) -> None:
    odd = ["", "7", "-1", "x", "nan", "1e999"]
    for row, cell in enumerate(odd):
        cells[row][2] = cell
        cells[10 + row][1] = cell if cell[0:1] not in "17-" else "?"
    cells[20][2] = "TRUE"


@pytest.mark.filterwarnings("error")
def test_what_cannot_be_used_is_null_and_changes_no_other(tmp_path: Path) -> None:
    cells = films()
    settings: dict[str, Any] = {"columns": "price,stars", "bounds": "price=5:25,stars=1:5"}

    def read(cells: list[list[str]]) -> Any:
        path = log(tmp_path / "log.csv", cells)
        return glm_log(
            GLMConfig(data=str(path), reward="liked", horizon=VISITS + 5, **settings)
        ).gather([])

    whole = read(cells)
    spoilt(cells)
    found = read(cells)
    null = np.isnan(found.rewards) | np.isnan(found.features).any(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(null), [*range(6), *range(10, 16)])
    assert [row for row, _ in found.messages] == np.flatnonzero(null).tolist()
    np.testing.assert_array_equal(found.rewards[21:], whole.rewards[21:])
    assert found.rewards[20] == 1


def test_a_look_spends_nothing_and_is_told(liked: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told = said(*liked, "--out", out, "--look")
    assert code == 0, told
    assert "2 features (price, stars)" in told
    assert "900 of 900 would count" in (out / "private" / "look.txt").read_text()
    assert not (out / "public").exists()
    assert said(*liked, "--out", out)[0] == 0
    assert "(--look)" in (out / "public" / "certificate.md").read_text()


def test_a_killed_run_goes_on(liked: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [*map(str, liked), "--out", str(out)]
    killed(40, *words)
    code, told = said(*words)
    assert (code, "--resume goes on" in told) == (BAD_INPUT, True)
    code, told = said(*words, "--resume")
    assert code == 0, told
    assert "the run was cut off and goes on with user" in told
    found = audit(out / "public" / "ledger.db")
    assert (found.problems, found.closed) == ([], True)
    assert model(out)["state"]["clock"] == VISITS


def test_simulated_visitors_go_on(tmp_path: Path) -> None:
    words = ["--horizon", "400", "--dim", "2", *map(str, NOISE), "--out", str(tmp_path / "o")]
    killed(20, *words)
    code, told = said(*words, "--resume")
    assert code == 0, told
    assert "curves of the private learner begin there" in told
    assert audit(tmp_path / "o" / "public" / "ledger.db").problems == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reward", "liked"], "reward: is of a log; name its file with data"),
        (["--data", "log.csv"], "reward: name the column with the reward"),
        (["--data", "log.csv", "--reward", "y"], "horizon: the number of visits is a public count"),
        (["--data", "log.csv", "--reward", "y", "--dim", 3], "dim: is of simulated visitors"),
        (["--link", "cubic"], "link = 'cubic': "),
        (["--budget", "epsilon=1"], "budget = 'epsilon=1': must be rho=…"),
        (["--horizon", 2_000_000], "must be at most 1,000,000 simulated visitors"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(
    words: list[object], message: str, tmp_path: Path
) -> None:
    code, told = said(*words, "--out", tmp_path / "out")
    assert (code, message in told, (tmp_path / "out").exists()) == (BAD_INPUT, True, False), told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": "who"}, "reward, arm, visit, shown, people: must be different columns"),
        ({"reward": "nothing"}, "reward = 'nothing': no column of"),
        ({"bounds": "price=5:25"}, "bounds: none declared for stars"),
        ({"link": "poisson"}, "reward_range: of counts, declare 0 to the largest one"),
        ({"reward_range": "1:0"}, "reward_range = 1:0: must be finite, low < high"),
        ({"arm": "who"}, "arms: name all actions by their names"),
        ({"arms": "a,b"}, "arm: name the column that says which"),
        ({"shown": "liked"}, "shown: needs visit"),
        ({"visit": "who"}, "shown, actions: with visit"),
        ({"most": "2"}, "most: needs people"),
    ],
)
def test_what_a_log_lacks_is_said(
    change: dict[str, str], message: str, liked: list[object], tmp_path: Path
) -> None:
    given: dict[str, object] = {"people": "who", "most": 1} if "reward" in change else {}
    words: list[object] = []
    for name, value in {**given, **change}.items():
        words += [f"--{name.replace('_', '-')}", value]
    code, told = said(*liked, *words, "--out", tmp_path / "out")
    assert (code, message in told) == (BAD_INPUT, True), told
    assert not (tmp_path / "out").exists()
