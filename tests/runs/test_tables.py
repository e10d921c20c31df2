"""`privlearn run tofw|pofw|hdb`, as an operator, an auditor and a user with a strange row see."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from privlearn.accountants import audit
from privlearn.checking import suite
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT, SIMULATION
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.runs.configs import TableConfig
from privlearn.runs.records import records_of
from privlearn.runs.tables import _learner

runner = CliRunner()

pytestmark = pytest.mark.usefixtures("quick_pictures")

PUBLIC = {
    "billboard.json",
    "certificate.json",
    "certificate.md",
    "ledger.db",
    "ledger.db.head",
    "ledger.jsonl",
    "model.json",
}


def run(*arguments: str | Path | int) -> Result:
    return runner.invoke(app, ["run", *map(str, arguments)])


def examine(out: Path) -> int:
    return runner.invoke(app, ["audit", str(out / "public" / "ledger.db")]).exit_code


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def held_out(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "private" / "held_out.json").read_text())
    return told


def model(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "public" / "model.json").read_text())
    return told


# On the tables that scikit-learn ships ------------------------------------------------------------


@pytest.mark.usefixtures("full_pictures")
@pytest.mark.parametrize("learner", ["tofw", "pofw"])
def test_streaming_regression_on_diabetes(learner: str, tmp_path: Path) -> None:
    """ε = 2 at δ = 1e-3: means over 20 seeds are R² 0.49 (tofw) and 0.43 (pofw); 0.51 without."""
    budget, gains = "epsilon=2,delta=1e-3", []
    for seed in range(2):
        out = tmp_path / str(seed)
        result = run(
            learner, "--data", "diabetes", "--target", "progression", "--budget", budget,
            "--seed", seed, "--simulate-noise", 50 + seed, "--out", out,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert examine(out) == SIMULATION
        told = held_out(out)
        assert told["measure"] == "R²"
        assert told["rows"] == 88
        assert told["constant"] == 0
        gains.append(told["private"])
        assert f"private {told['private']:.3f}" in result.output
    assert np.mean(gains) > 0.25
    assert files(out / "public") == PUBLIC
    assert files(out / "private") == {
        "held_out.json",
        "progress.csv",
        "progress.png",
        "counts.json",
        "settings.json",
    }
    assert (out / "private").stat().st_mode & 0o077 == 0
    (guarantee,) = audit(out / "public" / "ledger.db").guarantees
    assert (guarantee.trust.value, guarantee.delta) == ("central", 0.001)
    assert guarantee.epsilon == pytest.approx(2, abs=1e-6)
    assert guarantee.epsilon <= 2
    assert guarantee.users is None or tuple(guarantee.users) == (0, 354)


@pytest.mark.parametrize("learner", ["tofw", "pofw"])
def test_streaming_classification_on_breast_cancer(learner: str, tmp_path: Path) -> None:
    """ε = 2: means over 20 seeds are 0.96 and 0.91; the constant answer has 0.64."""
    scores = []
    for seed in range(2):
        out = tmp_path / str(seed)
        result = run(
            learner, "--data", "breast_cancer", "--budget", "epsilon=2,delta=1e-3",
            "--seed", seed, "--simulate-noise", seed, "--out", out,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        told = held_out(out)
        assert told["measure"] == "accuracy"
        scores.append([told["private"], told["constant"], told["non-private"]])
    private, constant, reference = np.mean(scores, axis=0)
    assert private > constant + 0.15
    assert reference >= private
    columns = model(out)["table"]["schema"]["columns"]
    assert columns["benign"] == {"kind": "category", "values": ["0", "1"]}
    with open(out / "private" / "progress.csv") as file:
        rows = list(csv.reader(file))[1:]
    assert int(rows[-1][0]) == 456


def test_the_default_bandit_is_least_squares_unless_few_columns_matter(tmp_path: Path) -> None:
    """ε = 1, two digits, means over 12 seeds: 0.11 for least squares, 0.12 for DP-HDB."""
    common = ("--data", "digits", "--classes", "0,1", "--budget", "epsilon=1,delta=1e-3")
    kinds, shares = [], []
    for name, more in (("default", ()), ("sparse", ("--sparse",))):
        out = tmp_path / name
        result = run("hdb", *common, *more, "--simulate-noise", "1", "--out", out)
        assert result.exit_code == 0, result.output
        kinds.append(model(out)["learner"])
        (share,) = re.findall(r"private \(.*?wrong arms of 360; share ([\d.]+)", result.output)
        shares.append(float(share))
        assert re.search(r"best constant arm: \d+ wrong arms of 360; share 0.494", result.output)
        assert "does NOT beat" not in result.output
        with open(out / "private" / "progress.csv") as file:
            assert "best constant arm: total regret" in next(csv.reader(file))
    assert kinds == ["PrivateLeastSquares", "DPHDB"]
    assert max(shares) < 0.18
    named = TableConfig(learner="hdb", data="digits", method="least-squares")
    assert isinstance(_learner(named, records_of(named)[0]), PrivateLeastSquares)


def test_a_bandit_that_loses_to_the_commonest_class_says_so(tmp_path: Path) -> None:
    common = ("--data", "breast_cancer", "--budget", "epsilon=0.01,delta=1e-3")
    result = run("hdb", *common, "--simulate-noise", "3", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    private = " ".join(result.output.partition("for the operator only:")[2].split())
    assert "the private bandit does NOT beat the best constant arm" in private


def test_a_bandit_on_digits(tmp_path: Path) -> None:
    """ε = 4, two arms: 0.20 of 360 answers are wrong (20 seeds); at random 0.5."""
    shares = []
    for seed in range(2):
        out = tmp_path / str(seed)
        result = run(
            "hdb", "--data", "digits", "--classes", "0,1", "--budget", "epsilon=4,delta=1e-3",
            "--sparse", "--seed", seed, "--simulate-noise", seed, "--out", out,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        (share,) = re.findall(r"private \(.*?wrong arms of 360; share ([\d.]+)", result.output)
        shares.append(float(share))
    assert np.mean(shares) < 0.4
    assert files(out / "public") == PUBLIC
    assert files(out / "private") == {
        "progress.csv",
        "pulls.csv",
        "regret.png",
        "counts.json",
        "settings.json",
    }
    (guarantee,) = audit(out / "public" / "ledger.db").guarantees
    assert guarantee.trust.value == "joint"
    assert 3 < guarantee.epsilon <= 4
    text = (out / "public" / "certificate.md").read_text("utf-8")
    assert "played as a bandit" in text
    assert "chosen with these data in view" in text
    assert np.shape(model(out)["coef"]) == (2, 65)


@pytest.mark.parametrize(
    "arguments",
    [
        ("tofw", "--data", "diabetes", "--method", "plain", "--p", "1.5"),
        ("pofw", "--data", "diabetes", "--method", "choices"),
        ("hdb", "--data", "digits", "--horizon", "200"),
    ],
)
def test_with_secure_noise_the_audit_is_content(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = run(*arguments, "--budget", "rho=0.5", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "VERIFIED from the ledger alone" in result.output
    assert examine(tmp_path / "run") == 0
    told = audit(tmp_path / "run" / "public" / "ledger.db")
    assert told.closed
    assert told.guarantees[0].rho == pytest.approx(0.5, rel=1e-6)


def test_equal_seeds_give_equal_public_files(tmp_path: Path) -> None:
    """But for the accountant's random name, and the hashes that cover it."""
    found = []
    for name in ("one", "two"):
        out = tmp_path / name
        common = ("--budget", "rho=0.3", "--seed", "3", "--simulate-noise", "4", "--out", out)
        assert run("tofw", "--data", "diabetes", *common).exit_code == 0
        public = out / "public"
        lines = (public / "ledger.jsonl").read_text("utf-8").splitlines()[1:]
        bodies = [json.loads(line)["entry"]["body"] for line in lines]
        account, certificate = bodies[0]["accountant"], audit(public / "ledger.db")
        told = [json.dumps(bodies)]
        told += [(public / file).read_text("utf-8") for file in sorted(PUBLIC) if "led" not in file]
        for name in (account, certificate.head, certificate.root):
            told = [text.replace(name, "NAME") for text in told]
        found.append(told)
        assert account not in (public / "model.json").read_text("utf-8")
    assert found[0] == found[1]
    assert "released" in found[0][0]


# The user's own table -----------------------------------------------------------------------------

ROWS = 400


def own_table(path: Path, *, spoil: dict[int, str] | None = None, classes: bool = False) -> Path:
    """y = 40 + 30·(dose) − 20·(age about 50) + noise, and a column of text."""
    rng = np.random.default_rng(5)
    lines = ["name,age,dose,outcome"]
    for user in range(ROWS + 100):
        age, dose = rng.uniform(20, 80), rng.uniform(-1, 1)
        value = 40 + 30 * dose - 20 * (age - 50) / 30 + rng.normal(0, 3)
        outcome = ("high" if value > 40 else "low") if classes else f"{value:.3f}"
        lines.append((spoil or {}).get(user, f"u{user},{age:.2f},{dose:.4f},{outcome}"))
    path.write_text("\n".join(lines) + "\n")
    return path


DECLARED = ("--columns", "age,dose", "--bounds", "age=20:80", "--feature-bound", "1")
REGRESSION = (*DECLARED, "--target", "outcome", "--label-bound", "60", "--label-centre", "40")


def test_own_regression(tmp_path: Path) -> None:
    data = own_table(tmp_path / "own.csv")
    out = tmp_path / "run"
    result = run(
        "tofw", "--data", data, *REGRESSION, "--horizon", ROWS, "--held-out", "100",
        "--budget", "epsilon=2,delta=1e-4", "--simulate-noise", "1", "--out", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = held_out(out)
    assert told["rows"] == 100
    assert told["private"] > 0.6
    assert told["non-private"] > 0.9
    described = model(out)
    assert described["table"]["schema"]["columns"] == {
        "age": {"kind": "number", "low": 20.0, "high": 80.0},
        "dose": {"kind": "number", "low": -1.0, "high": 1.0},
        "outcome": {"kind": "number", "low": -20.0, "high": 100.0},
    }
    age, dose, _ = described["coef"]
    assert age < 0 < dose
    assert audit(out / "public" / "ledger.db").guarantees[0].users in (None, (0, ROWS))


def yes_and_no(path: Path, rows: int) -> Path:
    """y = 2 + yes − no + noise, in columns of 0 and 1, most of them rare."""
    rng = np.random.default_rng(8)
    values = (rng.random((rows, 6)) < [0.1, 0.2, 0.05, 0.3, 0.15, 0.5]).astype(int)
    labels = 2 + values[:, 0] - values[:, 3] + rng.normal(0, 0.5, rows)
    lines = [",".join([*map(str, row), f"{y:.3f}"]) for row, y in zip(values, labels, strict=True)]
    path.write_text("\n".join(["a,b,c,d,e,f,y", *lines]) + "\n")
    return path


def test_columns_of_zeros_and_ones_are_learned_and_rows_are_not_shrunk(tmp_path: Path) -> None:
    """Scaled rows have norm √6 to √6.25; a bound of half of that, the default once, ruined fits."""
    data = yes_and_no(tmp_path / "own.csv", 3_500)
    bounds = ",".join(f"{name}=0:1" for name in "abcdef")
    common = (
        "--data", data, "--target", "y", "--label-bound", "5", "--bounds", bounds,
        "--horizon", "3000", "--held-out", "500", "--budget", "epsilon=1,delta=1e-6",
    )  # fmt: skip
    told = {}
    for name, more in (("free", ()), ("bound", ("--row-bound", "1.3"))):
        result = run("tofw", *common, *more, "--simulate-noise", "1", "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        told[name] = held_out(tmp_path / name)
        warned = model(tmp_path / name)["warnings"]
        assert ("warning: row_bound = 1.3" in result.output) == (name == "bound") == bool(warned)
    assert told["free"]["private"] > told["free"]["non-private"] - 0.05 > 0.2
    (line,) = model(tmp_path / "bound")["warnings"]
    assert "norm up to 2.5" in line


def test_a_model_that_loses_to_the_best_constant_says_so_to_the_operator(tmp_path: Path) -> None:
    data = yes_and_no(tmp_path / "own.csv", 60)
    bounds = ",".join(f"{name}=0:1" for name in "abcdef")
    result = run(
        "tofw", "--data", data, "--target", "y", "--label-bound", "5", "--horizon", "60",
        "--bounds", bounds, "--budget", "epsilon=0.1,delta=1e-6", "--simulate-noise", "1",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    public, _, private = " ".join(result.output.split()).partition("for the operator only:")
    assert "60 rows learned from, as none is held out: constant 0.000, private -" in private
    assert "the private model does NOT beat the best constant answer" in private
    assert "does NOT beat" not in public
    told = json.loads((tmp_path / "run" / "private" / "fitted.json").read_text())
    assert told["private"] <= told["constant"] == 0


def test_own_classes_and_arms_from_a_configuration_file(tmp_path: Path) -> None:
    data = own_table(tmp_path / "own.csv", classes=True)
    config = tmp_path / "run.toml"
    config.write_text(
        f'data = "{data}"\ntarget = "outcome"\ncolumns = ["age", "dose"]\nfeature_bound = 1\n'
        f'classes = ["low", "high"]\nhorizon = {ROWS}\nbudget = "rho=1"\nsimulate_noise = 1\n'
        "[bounds]\nage = [20, 80]\n"
    )
    out = tmp_path / "pofw"
    assert run("pofw", "--config", config, "--held-out", "100", "--out", out).exit_code == 0
    assert held_out(out)["private"] > 0.8 > 0.7 > held_out(out)["constant"]
    result = run("hdb", "--config", config, "--out", tmp_path / "hdb")
    assert result.exit_code == 0, result.output
    (share,) = re.findall(r"private \(.*share ([\d.]+), [\d.]+ in the last", result.output)
    assert float(share) < 0.35
    with open(tmp_path / "hdb" / "private" / "pulls.csv") as file:
        pulls = list(csv.DictReader(file))
    assert len(pulls) == ROWS
    assert {row["arm"] for row in pulls} == {"low", "high"}


def test_parquet_is_read_as_the_same_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow.csv")
    parquet = pytest.importorskip("pyarrow.parquet")
    data = own_table(tmp_path / "own.csv")
    parquet.write_table(pyarrow.read_csv(data), tmp_path / "own.parquet")
    models = []
    for name in ("own.csv", "own.parquet"):
        out = tmp_path / f"run-{name}"
        common = ("--horizon", ROWS, "--simulate-noise", "1", "--out", out)
        assert run("tofw", "--data", tmp_path / name, *REGRESSION, *common).exit_code == 0
        models.append((out / "public" / "model.json").read_bytes())
    assert models[0] == models[1]


STRANGE = {
    3: "Alice,HIV+,0.5,40",
    10: "Bob,50,,40",
    11: "Carol,50,nan,40",
    12: "Dave,50,0.5,1e9",
    50: "",
    51: "Erin",
    399: "Frank,50,0.5,none",
}


@pytest.mark.parametrize("learner", ["tofw", "pofw", "hdb"])
def test_bad_rows_are_null_and_only_the_private_folder_says_so(
    learner: str, tmp_path: Path
) -> None:
    found = []
    for name, spoil in (("good", {}), ("bad", STRANGE)):
        data = own_table(tmp_path / f"{name}.csv", spoil=spoil, classes=learner == "hdb")
        declared: tuple[str, ...] = REGRESSION
        if learner == "hdb":
            declared = (*DECLARED, "--target", "outcome", "--classes", "low,high")
        out = tmp_path / name
        common = ("--horizon", ROWS, "--simulate-noise", "1", "--out", out)
        result = run(learner, "--data", data, *declared, *common)
        assert result.exit_code == 0, result.output
        certificate = audit(out / "public" / "ledger.db")
        found.append(certificate.model_copy(update={"head": "", "root": ""}))
        public = "".join(p.read_text("utf-8", "replace") for p in (out / "public").iterdir())
        for word in ("HIV", "Alice", "Erin", "null: "):
            assert word not in public + result.output
    assert found[0] == found[1]
    assert not (tmp_path / "good" / "private" / "messages.txt").exists()
    told = (tmp_path / "bad" / "private" / "messages.txt").read_text("utf-8").splitlines()
    assert [line.split(":")[0] for line in told] == [f"user {user}" for user in sorted(STRANGE)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tofw",), "data"),
        (("tofw", "--data", "own.csv", "--target", "y"), "horizon"),
        (("tofw", "--data", "own.csv", "--horizon", "9"), "target"),
        (("tofw", "--data", "own.csv", "--target", "y", "--horizon", "9"), "cannot be read"),
        (("tofw", "--data", "diabetes", "--target", "bmi"), "is 'progression'"),
        (("tofw", "--data", "iris"), "none of the shipped diabetes, breast_cancer, digits"),
        (("tofw", "--data", "diabetes", "--scale", "auto"), "refused"),
        (("tofw", "--data", "diabetes", "--scale", "standard"), "declare public bounds"),
        (("tofw", "--data", "diabetes", "--p", "1"), "p"),
        (("tofw", "--data", "diabetes", "--p", "0.5"), "p"),
        (("tofw", "--data", "diabetes", "--radius", "0"), "radius"),
        (("tofw", "--data", "diabetes", "--radius", "nan"), "radius"),
        (("tofw", "--data", "diabetes", "--row-bound", "-1"), "row_bound"),
        (("tofw", "--data", "diabetes", "--feature-bound", "inf"), "feature_bound"),
        (("tofw", "--data", "diabetes", "--label-bound", "0"), "label_bound"),
        (("tofw", "--data", "diabetes", "--bounds", "age=5"), "name=low:high"),
        (("tofw", "--data", "diabetes", "--bounds", "age=9:5"), "low < high"),
        (("tofw", "--data", "diabetes", "--bounds", "age=0:inf"), "must be finite"),
        (("tofw", "--data", "diabetes", "--bounds", "=0:1"), "must name a column"),
        (("tofw", "--data", "diabetes", "--bounds", "height=0:1"), "height"),
        (("tofw", "--data", "diabetes", "--horizon", "443"), "has 442 rows"),
        (("tofw", "--data", "diabetes", "--horizon", "0"), "horizon"),
        (("tofw", "--data", "diabetes", "--held-out", "442"), "has 442 rows"),
        (("tofw", "--data", "diabetes", "--budget", "rho=0"), "budget"),
        (("tofw", "--data", "diabetes", "--budget", "x"), "budget"),
        (("tofw", "--data", "diabetes", "--method", "choices"), "tofw has whitened"),
        (("tofw", "--data", "diabetes", "--classes", "a,b"), "regression"),
        (("tofw", "--data", "digits", "--classes", "0,1,2"), "two, not 3"),
        (("pofw", "--data", "diabetes", "--p", "2"), "for tofw only"),
        (
            ("pofw", "--data", "diabetes", "--method", "choices", "--budget", "mu=1"),
            "choices have no price in mu",
        ),
        (("hdb", "--data", "diabetes"), "needs classes"),
        (("hdb", "--data", "digits", "--classes", "1"), "at least two"),
        (("hdb", "--data", "digits", "--classes", "1,1"), "each once"),
        (("hdb", "--data", "digits", "--classes", "1,x"), "classes = 'x'"),
        (("hdb", "--data", "digits", "--held-out", "3"), "held_out"),
        (("hdb", "--data", "digits", "--method", "noisy_max"), "hdb has least-squares, gaussian"),
        (("hdb", "--data", "digits", "--row-bound", "3"), "for tofw only"),
        (("hdb", "--data", "digits", "--sparse", "--method", "least-squares"), "sparse"),
        (("hdb", "--data", "digits", "--radius", "3"), "least squares has no set"),
        (("tofw", "--data", "diabetes", "--sparse"), "pofw is the sparse learner"),
        (("hdb", "--data", "own.csv", "--target", "y", "--horizon", "9"), "which are the arms"),
    ],
)
def test_bad_input_is_one_clear_line_before_anything_is_written(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, "--out", "run")
    assert result.exit_code == BAD_INPUT, result.output
    assert message in result.output
    assert result.output.startswith("error: ")
    assert not (tmp_path / "run").exists()


def test_a_run_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("")
    result = run("tofw", "--data", "diabetes", "--out", tmp_path / "run")
    assert result.exit_code == BAD_INPUT
    assert "not empty" in result.output


def test_settings_know_no_others() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        TableConfig(learner="tofw", data="diabetes", standardise=True)  # type: ignore[call-arg]


# The gate -----------------------------------------------------------------------------------------


def test_the_gate_knows_what_is_new() -> None:
    names = set(suite.catalogue())
    assert {
        "report-noisy-max/gumbel",
        "report-noisy-max/gumbel-two-picks",
        "report-noisy-max/polytope",
        "report-noisy-max/laplace",
        "report-noisy-max/exponential",
        "generalized-gaussian-sum/l3",
        "generalized-gaussian-sum/linf",
        "prefix-sum/l3",
        "one-of-k/gaussian-sum",
        "one-of-k/report-noisy-max",
        "one-of-k/batched-prefix-sum",
    } <= names
    learners = {name.split("/")[1] for name in names if name.startswith("learner/")}
    assert {"DPTOFW", "DPPOFW", "DPHDB", "PrivateLeastSquares", "NoisySGD"} <= learners
