"""dpsynth under our accounts; it is installed from its repository, beside jax."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pages import run_page

from privlearn.accountants import CentralAccountant, audit
from privlearn.bridges.dpsynth import meter_mechanism
from privlearn.errors import AdjacencyError, BudgetError, InsufficientBudgetError, PackageError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.values.adjacency import Adjacency

pytestmark = pytest.mark.filterwarnings("ignore")
DOCS = Path(__file__).parents[2] / "docs" / "how-to"
ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
PEOPLE = pd.DataFrame({"a": ["x", "y"] * 50, "b": ["u", "v", "w", "u"] * 25})


def account(
    cap: str = "10", relation: Adjacency = ADD, ledger: Path | None = None
) -> CentralAccountant[Any]:
    return CentralAccountant(
        ZCDP(cap),
        users=range(100),
        adjacency=relation,
        ledger=Ledger.memory() if ledger is None else ledger,
    )


def test_not_installed_or_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as 0.1.0, whose AIM took the share of a budget for a standard deviation (pull 32)."""
    monkeypatch.setattr("privlearn.bridges.installed.version", lambda _: "0.1.0")
    with pytest.raises(PackageError, match=r"dpsynth 0.1.0: .*nothing was spent"):
        meter_mechanism(account(), None)


def library() -> Any:
    return pytest.importorskip("dpsynth", reason="dpsynth is not installed")


def configured(rho: float = 0.5, **others: Any) -> Any:
    dpsynth = library()
    domains = {
        "a": dpsynth.CategoricalAttribute(possible_values=["x", "y"]),
        "b": dpsynth.CategoricalAttribute(possible_values=["u", "v", "w"]),
    }
    mechanism = dpsynth.discrete_mechanisms.MSTConfig(pgm_iters=20)
    config = dpsynth.TabularConfig(domains=domains, discrete_mechanism=mechanism)
    return config.configure(zcdp_rho=rho, **others)


def measured(result: Any) -> list[list[float]]:
    """What has noise; of the rows that are drawn from it, the library takes no seed."""
    found = result.discrete_mechanism_result.measurements
    return [np.ravel(one.noisy_measurement).tolist() for one in found]


def test_a_synthesis_pays_for_all_its_parts_and_is_the_same_with_the_same_seed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    without = measured(configured()(np.random.default_rng(5), PEOPLE))
    with account("0.7", ledger=path) as accountant:
        mechanism = meter_mechanism(accountant, configured(), label="synthetic people")
        assert measured(mechanism(np.random.default_rng(5), PEOPLE)) == without
        assert float(accountant.spent().rho) == pytest.approx(0.5)
        assert accountant.spent().rho >= Fraction("0.5")  # of 0.5, rounded up
        with pytest.raises(InsufficientBudgetError):
            mechanism(np.random.default_rng(5), PEOPLE)
    certificate = audit(path)
    assert certificate.holds
    assert certificate.spends == 1
    assert any("dpsynth, version 0.3.0" in told for told in certificate.trusted_code)


def test_a_replaced_person_costs_a_removal_and_an_addition() -> None:
    accountant = account(relation=REPLACE)
    meter_mechanism(accountant, configured())(np.random.default_rng(5), PEOPLE)
    assert float(accountant.spent().rho) == pytest.approx(2)
    with pytest.raises(AdjacencyError, match="null record"):
        meter_mechanism(account(relation=Adjacency.ZERO_OUT), configured())


def test_a_person_with_several_rows_needs_noise_for_as_many() -> None:
    with pytest.raises(BudgetError, match=r"max_records_per_user=1.*nothing was spent"):
        meter_mechanism(account(), configured(), rows_each=3)
    meter_mechanism(account(), configured(max_records_per_user=3), rows_each=3)
    with pytest.raises(BudgetError, match="max_records_per_user=3"):
        meter_mechanism(account(), configured(max_records_per_user=3))


def test_what_is_measured_is_what_the_event_says() -> None:
    """Pull 32: the standard deviations of all that AIM and MST measure are within their ρ."""
    dpsynth = library()
    kinds = dpsynth.discrete_mechanisms
    mbi: Any = pytest.importorskip("mbi")

    domain = mbi.Domain(("a", "b", "c"), (2, 3, 2))
    rows = {"a": np.arange(60) % 2, "b": np.arange(60) % 3, "c": np.arange(60) % 2}
    pairs = [("a", "b"), ("b", "c"), ("a", "c")]
    for inside in (
        kinds.MSTConfig(pgm_iters=5),
        kinds.AIMConfig(workload=pairs, pgm_iters=5, max_rounds=1),
    ):
        mechanism = kinds.DiscreteConfig(mechanism=inside).configure(zcdp_rho=0.5)
        accountant = account()
        metered = meter_mechanism(accountant, mechanism)
        result = metered(np.random.default_rng(5), mbi.Dataset(rows, domain))
        found = sum(1 / (2 * float(one.stddev) ** 2) for one in result.measurements)
        assert 0 < found <= float(accountant.spent().rho)


def test_mechanisms_whose_events_say_too_little_are_refused() -> None:
    """Issues 34 and 35 are of pipelines, which are no mechanisms in memory."""
    dpsynth = library()
    with pytest.raises(TypeError, match="must be a calibrated mechanism"):
        meter_mechanism(account(), SimpleNamespace(dp_event=None))
    free = dpsynth.discrete_mechanisms.IndependentConfig().configure(zcdp_rho=0.5)
    with pytest.raises(BudgetError, match=r"Independent is not metered.*issue 35"):
        meter_mechanism(account(), free)

    names = {"dp_event": None, "max_records_per_user": 1, "__call__": lambda *_: None}
    pipeline: Any = type("Pipeline", (dpsynth.api.CalibratedMechanism,), names)
    with pytest.raises(BudgetError, match="Pipeline is not metered"):
        meter_mechanism(account(), pipeline())


def test_an_event_that_dp_accounting_lacks_is_refused() -> None:
    dpsynth = library()
    if hasattr(pytest.importorskip("dp_accounting"), "ExponentialMechanismDpEvent"):
        pytest.skip("dp-accounting after 0.6.0 has the event")
    number = dpsynth.NumericalAttribute(min_value=0, max_value=9)
    mechanism = dpsynth.TabularConfig(domains={"n": number}).configure(zcdp_rho=0.5)
    with pytest.raises(BudgetError, match=r"after 0.6.0; nothing was spent"):
        meter_mechanism(account(), mechanism)


def test_the_program_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library()
    page = (DOCS / "dpsynth.md").read_text(encoding="utf-8").replace("```py\n", "```python\n")
    assert run_page(page, "dpsynth.md", tmp_path, monkeypatch) == 1
