"""Models of choices in scikit-learn's manner: long tables with a varying number of items."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from privlearn import ApproxDP
from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import audit
from privlearn.errors import AdjacencyError, BudgetError, DataError
from privlearn.estimators import PrivateChoiceModel, load_model
from privlearn.estimators.situations import NOBODY, places_of_ids
from privlearn.losses.budgets import GaussianDP
from privlearn.noise import NoiseSource
from privlearn.runs.fits import run_predict
from privlearn.tables import Boolean, Category, Number, Schema, read
from privlearn.values.adjacency import Adjacency

pd: Any = pytest.importorskip("pandas")

EXAMPLE = Path(__file__).parents[2] / "examples" / "choices_of_cars.py"
N, MOST = 1500, 5
BUDGET = ApproxDP(4, 1e-5)
SCHEMA = Schema(
    {
        "price": Number(0, 10),
        "brand": Category(["a", "b", "c"]),
        "eco": Boolean(optional=True),
        "bought": Boolean(),
    },
    target="bought",
    person="visit",
    rows_per_person=MOST,
)


def frame(seed: int = 0, *, outside: bool = False, n: int = N) -> Any:
    """Utility −.5 price + 1.5 b + eco, against 0 of choosing nothing; lines in any order."""
    rng = np.random.default_rng(seed)
    visits = np.repeat(np.arange(n), rng.integers(2, MOST + 1, n))
    found = pd.DataFrame(
        {
            "visit": visits,
            "price": rng.uniform(0, 10, len(visits)),
            "brand": rng.choice(["a", "b", "c"], len(visits)),
            "eco": rng.random(len(visits)) < 0.5,
        }
    )
    utility = -0.5 * found.price + 1.5 * (found.brand == "b") + found.eco
    utility += rng.gumbel(size=len(found))
    best = utility.groupby(found.visit).transform("max")
    nothing = rng.gumbel(size=n)[visits] if outside else -np.inf
    found["bought"] = (utility == best) & (utility > nothing)
    return found.sample(frac=1, random_state=seed)


def model(**options: Any) -> PrivateChoiceModel:
    declared = {"n_situations": N, "schema": SCHEMA, "simulate_noise": 1, **options}
    return PrivateChoiceModel(BUDGET, **declared)


def test_tastes_are_found_and_predict_new_situations(tmp_path: Path) -> None:
    found = model().fit(frame())
    table = {row.name: row.value for row in found.coef_table_}
    assert table["price"] == pytest.approx(-2.5, abs=0.6)
    assert table["brand=b"] == pytest.approx(1.5, abs=0.5)
    assert table["eco"] == pytest.approx(1.0, abs=0.5)
    assert found.intercept_ == 0
    new = frame(1)
    sizes = new.groupby("visit").size()
    assert found.score(new) > -np.log(sizes).mean() + 0.3
    chances = pd.Series(found.predict_proba(new), index=new.index)
    assert np.allclose(chances.groupby(new.visit).sum(), 1)
    marks = pd.Series(found.predict(new), index=new.index)
    assert marks.groupby(new.visit).sum().eq(1).all()
    assert (chances[marks] == chances.groupby(new.visit).transform("max")[marks]).all()
    assert (marks & new.bought).sum() / len(sizes) > 0.5
    found.save(tmp_path / "model.json")
    again = load_model(tmp_path / "model.json")
    assert np.array_equal(again.predict_proba(new), found.predict_proba(new))
    assert np.array_equal(again.predict(new), found.predict(new))
    assert again.guarantee_ == found.guarantee_
    new.to_csv(tmp_path / "new.csv", index=False)
    told = run_predict(tmp_path / "model.json", tmp_path / "new.csv", tmp_path / "answers.csv")
    assert told.rows == len(new)
    answers = pd.read_csv(tmp_path / "answers.csv")
    assert np.allclose(answers.probability, chances, atol=1e-5)
    assert (answers.bought == marks.to_numpy()).all()


def test_nothing_may_be_chosen() -> None:
    found = model(outside_option=True).fit(frame(outside=True))
    new = frame(1, outside=True)
    chances = pd.Series(found.predict_proba(new), index=new.index).groupby(new.visit).sum()
    assert chances.between(0.01, 0.999).all()
    assert chances.mean() == pytest.approx(new.bought.sum() / N, abs=0.08)
    marks = pd.Series(found.predict(new), index=new.index).groupby(new.visit).sum()
    assert set(marks) == {0, 1}
    assert found.score(new) > -np.log(1 + new.groupby("visit").size()).mean() + 0.2
    assert found.private_counts_.null < 0.05 * N
    single = new.drop_duplicates("visit")
    bought = model(outside_option=True, max_items=1).fit(single)
    assert bought.coef_[0] < -1, "to buy or not to buy"


def test_the_guarantee_is_for_a_situation_and_stands_in_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "choices.db"
    found = model(simulate_noise=None, ledger=path).fit(frame())
    assert found.guarantee_ == f"ε = 4 at δ = 1e-05 for changing one situation; ledger {path}"
    certificate = audit(path)
    (guarantee,) = certificate.guarantees
    assert guarantee.epsilon == pytest.approx(4, abs=1e-6)
    assert "one record is one choice situation" in str(guarantee.rests_on)


def test_the_lines_of_one_situation_move_only_their_own_batch() -> None:
    """With as many places as are needed, so that nobody is left out."""
    whole = frame(n=N // 2)
    reference = model().fit(whole)
    mine = whole.visit == 17
    null = model().fit(whole[~mine])
    broken = whole.copy()
    broken.loc[mine, "price"] = np.nan
    double = pd.concat([whole, whole[mine].assign(bought=True)])
    strange = whole.copy()
    strange["brand"] = np.where(mine, "zzz", whole.brand)
    for changed in (broken, double, strange):
        found = model().fit(changed)
        assert np.array_equal(found.coef_, null.coef_)
        assert found.private_counts_.null >= 1
    assert not np.array_equal(reference.coef_, null.coef_)
    nobody = whole.astype({"visit": object})
    nobody.loc[mine, "visit"] = None
    lost = model().fit(nobody)
    assert np.array_equal(lost.coef_, null.coef_)
    assert lost.private_counts_.reasons["lines that name no situation"] == mine.sum()
    shuffled = model().fit(whole.sample(frac=1, random_state=9))
    assert np.allclose(shuffled.coef_, reference.coef_, atol=1e-9)


def test_how_many_lines_a_situation_has_is_not_logged(caplog: Any) -> None:
    whole, told = frame(n=60), []
    for lines in (whole, whole[whole.visit != 17]):
        caplog.clear()
        with caplog.at_level("INFO", "privlearn"):
            model(n_situations=60).fit(lines)
        told.append(caplog.text)
    assert told[0] == told[1]


def test_arrays_with_the_ids_of_their_lines() -> None:
    table = frame()
    X, y = table[["price", "eco"]].to_numpy(dtype=float), table.bought.to_numpy()
    arrays = model(schema=None, bounds=[(0, 10), (0, 1)], max_items=MOST)
    found = arrays.fit(X, y, people=table.visit.to_numpy())
    assert found.coef_[0] < -1
    chances = found.predict_proba(X, people=table.visit.to_numpy())
    assert chances.sum() == pytest.approx(N)
    assert list(found.predict(X[:1], people=[5])) == [1]
    assert found.score(X, y, people=table.visit.to_numpy()) > -1.2
    with pytest.raises(ValueError, match="people: give the id"):
        found.predict(X)


def test_a_place_that_is_free_goes_to_another_so_that_a_situation_is_replaced() -> None:
    """More ids than places: without one of them another has its place."""
    batches, ids = [range(40)], [str(number) for number in range(60)]
    places = dict(zip(ids, places_of_ids(ids, batches).tolist(), strict=True))
    gone = next(name for name in ids if places[name] != NOBODY)
    rest = [name for name in ids if name != gone]
    after = dict(zip(rest, places_of_ids(rest, batches).tolist(), strict=True))
    came = [name for name in rest if (places[name] == NOBODY) is not (after[name] == NOBODY)]
    assert len(came) == 1
    accountant = CentralAccountant(
        GaussianDP(1),
        users=range(N),
        adjacency=Adjacency.ZERO_OUT,
        noise=NoiseSource.simulation(1),
    )
    with pytest.raises(AdjacencyError, match="a replaced record: take replace-one"):
        model(accountant=accountant, simulate_noise=None).fit(frame())


def test_several_fits_share_an_accountant() -> None:
    accountant = CentralAccountant(
        GaussianDP(1), users=range(N + 50), noise=NoiseSource.simulation(1)
    )
    shared = model(accountant=accountant, simulate_noise=None).set_params(budget=GaussianDP("0.6"))
    first, second = clone(shared).fit(frame()), clone(shared).fit(frame())
    assert not np.array_equal(first.coef_, second.coef_)
    assert first.private_counts_.rows >= N + 50
    with pytest.raises(BudgetError):
        clone(shared).fit(frame())


def test_what_is_not_declared_is_named_before_anything_is_spent(tmp_path: Path) -> None:
    table, path = frame(), tmp_path / "no.db"
    few = Schema(SCHEMA.columns, target="bought", person="visit")
    brand = Schema(SCHEMA.columns, target="brand", person="visit", rows_per_person=MOST)
    nobody = Schema(SCHEMA.columns, target="bought")
    for options, told in (
        ({"n_situations": None}, "n_situations: state the number"),
        ({"n_situations": 0}, "n_situations"),
        ({"schema": few}, "max_items = 1: state the most items"),
        ({"schema": few, "outside_option": True}, "max_items = 1: state the most items"),
        ({"schema": brand}, "whether it was chosen"),
        ({"schema": nobody, "max_items": 3}, "people: give the id"),
    ):
        with pytest.raises(ValueError, match=told):
            model(ledger=path, simulate_noise=None, **options).fit(table)
    with pytest.raises(DataError, match="column 'visit'"):
        model().fit(table.drop(columns="visit"))
    with pytest.raises(BudgetError, match="budget: state it"):
        clone(model()).set_params(budget=None).fit(table)
    assert not path.exists()


def test_every_line_has_an_answer() -> None:
    found = model().fit(frame())
    lines = pd.DataFrame(
        {"visit": [1, None, 1, None], "price": [np.nan, 2, 5, 99], "brand": ["a", "x", None, "b"],
         "eco": [True, None, False, None]}
    )  # fmt: skip
    chances = found.predict_proba(lines)
    assert chances[[1, 3]].tolist() == [1, 1], "a line without an id is alone"
    assert chances[0] + chances[2] == pytest.approx(1)
    assert read(lines, SCHEMA.without_target()).column("price")[3] == 99


def test_the_example_of_cars_keeps_much_of_what_a_fit_without_privacy_learns(capsys: Any) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    told = capsys.readouterr().out
    uniform, private, free = map(float, re.findall(r"-\d\.\d{3}", told.splitlines()[-1]))
    assert 0.5 < (private - uniform) / (free - uniform) < 1
    assert "ε = 1 at δ = 1e-05" in told
