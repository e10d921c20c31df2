"""SmartNoise SQL under our accounts; runs beside pandas 2 and OpenDP 0.14, which it asks for."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pages import run_page

from privlearn.accountants import CentralAccountant, audit
from privlearn.bridges.smartnoise import meter_reader
from privlearn.errors import (
    AdjacencyError,
    BudgetError,
    InsufficientBudgetError,
    PackageError,
    TokenSpentError,
)
from privlearn.ledger import Ledger
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import Loss, leaves_of, loss_from_dict
from privlearn.losses.budgets import ZCDP, Currency, PureDP
from privlearn.values.adjacency import Adjacency

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
pytestmark = pytest.mark.filterwarnings("ignore")


def test_not_installed_or_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privlearn.bridges.installed.version", lambda _: "1.0.4")
    with pytest.raises(PackageError, match=r"smartnoise-sql 1.0.4: .*nothing was spent"):
        meter_reader(account(), None)


def library() -> Any:
    return pytest.importorskip("snsql", reason="smartnoise-sql is not installed")


def account(
    cap: Currency | None = None,
    relation: Adjacency = Adjacency.ADD_REMOVE,
    ledger: Path | None = None,
) -> CentralAccountant[Any]:
    return CentralAccountant(
        cap or ZCDP(100),
        users=range(100),
        adjacency=relation,
        failure="0.01",
        ledger=Ledger.memory() if ledger is None else ledger,
    )


def reader(privacy: Any = None, table: Any = None, **options: Any) -> Any:
    import numpy as np
    import pandas as pd

    snsql = library()
    people = pd.DataFrame(
        {"pid": np.arange(200) // 2, "age": np.arange(200) % 80, "sex": np.arange(200) % 2}
    )
    columns = {
        "pid": {"type": "int", "private_id": True},
        "age": {"type": "int", "lower": 0, "upper": 100},
        "sex": {"type": "int"},
    }
    return snsql.from_connection(
        people,
        privacy=privacy or snsql.Privacy(epsilon=0.5, delta=1e-4),
        metadata={"": {"people": {"people": {**columns, **(table or {}), **options}}}},
    )


def losses(accountant: Any) -> list[Loss]:
    spends = [entry for entry in accountant.ledger.entries if isinstance(entry, SpendEntry)]
    return [loss_from_dict(entry.loss) for entry in spends]


AVERAGE = "SELECT sex, AVG(age) AS a FROM people.people GROUP BY sex"


def test_a_query_pays_for_all_its_statistics_before_it_runs(tmp_path: Path) -> None:
    """Issues 200 and 385: the ε of a `Privacy` is not that of a query."""
    asked, path = reader(), tmp_path / "ledger.db"
    with account(ZCDP(1), ledger=path) as accountant:
        meter_reader(accountant, asked, label="average age")
        assert len(asked.execute(AVERAGE)) == 3
        (loss,) = losses(accountant)
        apart = [(part.unless_failed().pure(), count) for part, count in leaves_of(loss)]
        # a sum, a count, and the count that censors
        assert sum((epsilon or 0) * count for epsilon, count in apart) == Fraction("1.5")
        assert Fraction(1e-4) <= loss.failure() <= Fraction("1.001e-4")
        assert asked.execute_df(AVERAGE).shape == (2, 2)
        with pytest.raises(InsufficientBudgetError):
            asked.execute(AVERAGE)
        assert len(asked.odometer.steps) == 6  # the library answered twice
    found = audit(path)
    assert found.holds
    assert any("smartnoise-sql, version 1.0.10" in told for told in found.trusted_code)


def test_the_threshold_lets_a_person_alone_pass_as_seldom_as_is_charged() -> None:
    for most in (1, 3):
        asked = reader(max_ids=most)
        accountant = account()
        meter_reader(accountant, asked)
        asked.execute("SELECT sex, COUNT(DISTINCT pid) AS n FROM people.people GROUP BY sex")
        (loss,) = losses(accountant)
        (column,) = [
            symbol for symbol in asked._rewrite(AVERAGE)[0]._select_symbols if symbol.is_key_count
        ]
        noise = column.mechanism
        true = most * math.exp(-(noise.threshold - 1) / noise.scale) / 2
        assert true <= float(loss.failure())


def test_a_replaced_person_costs_a_removal_and_an_addition() -> None:
    costs = []
    for relation in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
        accountant, asked = account(relation=relation), reader()
        meter_reader(accountant, asked)
        asked.execute("SELECT COUNT(*) AS n FROM people.people")
        (loss,) = losses(accountant)
        costs.append(sum((p.unless_failed().pure() or 0) * n for p, n in leaves_of(loss)))
        assert float(loss.failure()) >= (1e-4 if relation is Adjacency.ADD_REMOVE else 2.6e-4)
    assert costs == [1, 2]
    with pytest.raises(AdjacencyError, match="null record"):
        meter_reader(account(relation=Adjacency.ZERO_OUT), reader())


def test_gaussian_columns_fail_with_their_delta() -> None:
    snsql = library()
    kinds = snsql.sql.privacy.Mechanisms()
    for stat in kinds.map:
        kinds.map[stat] = snsql.sql.privacy.Mechanism.gaussian
    asked = reader(snsql.Privacy(epsilon=0.5, delta=1e-4, mechanisms=kinds))
    accountant = account()
    meter_reader(accountant, asked)
    asked.execute(AVERAGE)
    (loss,) = losses(accountant)
    assert float(loss.failure()) >= 4e-4 * 0.999  # three of noise, one of the threshold


@pytest.mark.parametrize(
    ("options", "query", "why"),
    [
        ({"sample_max_ids": False}, AVERAGE, "sample_max_ids"),
        ({"clamp_columns": False}, AVERAGE, "clamp_columns"),
        ({"censor_dims": False}, AVERAGE, "censor_dims"),
        ({"use_dpsu": True}, AVERAGE, "use_dpsu"),
        ({"table": {"age": {"type": "int"}}}, AVERAGE, "no bounds"),
        # issue 201: an expression within the sum would undo the bounds
        ({}, "SELECT SUM(age * 1000) AS s FROM people.people", "aggregation over expressions"),
        ({}, "SELECT MAX(age) AS s FROM people.people", "MAX"),
        ({}, "SELECT age FROM people.people", "does not include an aggregate"),
    ],
)
def test_what_the_noise_does_not_cover_is_refused(
    options: dict[str, Any], query: str, why: str
) -> None:
    asked, accountant = reader(**options), account()
    meter_reader(accountant, asked)
    with pytest.raises((BudgetError, ValueError), match=why):
        asked.execute(query)
    assert not losses(accountant)
    assert not asked.odometer.steps


def test_contribution_bounds_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 544: the library asserts it, which ``python -O`` leaves out."""
    asked, accountant = reader(max_ids=3), account()
    meter_reader(accountant, asked)
    rewrite = type(asked)._rewrite_ast

    def lower(self: Any, query: Any) -> Any:
        inner, outer = rewrite(self, query)
        for symbol in inner._select_symbols:
            if symbol.mechanism is not None:
                symbol.mechanism.max_contrib = 1
        return inner, outer

    monkeypatch.setattr(type(asked), "_rewrite_ast", lower)
    with pytest.raises(BudgetError, match="issue 544"):
        asked.execute(AVERAGE)
    assert not losses(accountant)


@pytest.mark.parametrize(
    "options", [{"pre_aggregated": [["n"], [3]]}, {"postprocess": False}, {"accuracy": True}]
)
def test_options_that_go_around_the_noise_are_refused(options: dict[str, Any]) -> None:
    asked, accountant = reader(), account()
    meter_reader(accountant, asked)
    with pytest.raises(BudgetError, match=rf"{next(iter(options))}.*nothing was spent"):
        asked.execute(AVERAGE, **options)
    assert not losses(accountant)


def test_a_reader_that_answered_or_is_metered_is_refused() -> None:
    asked = reader()
    asked.execute(AVERAGE)
    with pytest.raises(TokenSpentError, match="before its first query"):
        meter_reader(account(), asked)
    fresh = reader()
    meter_reader(account(PureDP(1)), fresh)
    with pytest.raises(TokenSpentError, match="metered already"):
        meter_reader(account(), fresh)
    with pytest.raises(TypeError, match="must be a PrivateReader"):
        meter_reader(account(), fresh.reader)


def test_the_program_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library()
    page = (DOCS / "smartnoise.md").read_text(encoding="utf-8").replace("```py\n", "```python\n")
    assert run_page(page, "smartnoise.md", tmp_path, monkeypatch) == 1
