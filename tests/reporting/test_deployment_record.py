"""The registry's record says what the ledger earns, asks for the rest by name, and is valid."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from ledgers_to_show import KINDS

from privlearn import ZCDP, Ball, Ledger, NoiseSource, Rows
from privlearn.accountants import CentralAccountant, JointAccountant, TrustedCode
from privlearn.errors import DataError, IncompleteRecordError, UncertifiedRecordError
from privlearn.losses.budgets import ApproxDP, Budget
from privlearn.mechanisms import NoisySum
from privlearn.reporting.deployment_record import (
    blank_about,
    deployment_record,
    read_about,
    registry_fields,
    write_record,
)
from privlearn.reporting.evaluation import evaluation, evaluation_markdown
from privlearn.reporting.model import Report
from privlearn.reporting.report import report

SCHEMA = json.loads(
    (Path(__file__).parent / "files" / "deployments-schema.json").read_text(encoding="utf-8")
)
SUM = NoisySum.calibrated(Ball(2.0, 3), ZCDP("0.1"))


def audited(
    folder: Path, budget: Any = None, label: str = "week", *, simulated: bool = False
) -> Report:
    """Of a ledger with two releases on disjoint users."""
    folder.mkdir(exist_ok=True)
    accountant: CentralAccountant[Any] = CentralAccountant(
        ZCDP("1") if budget is None else budget,
        users=range(20),
        ledger=Ledger.create(folder / "ledger.db"),
        noise=NoiseSource.simulation(1) if simulated else None,
    )
    with accountant:
        for users in (range(10), range(10, 20)):
            rows = Rows.seal(np.zeros((10, 3)), users=users)
            SUM.release(rows, accountant.issue(SUM.loss(), users=users, label=label))
    return report(folder / "ledger.db")


def filled(text: str | None = None) -> str:
    """The file that asks for fields, every one of them filled in."""
    lines: list[str] = []
    for line in (blank_about() if text is None else text).splitlines():
        found = re.fullmatch(r'(\w+) = (""|\[\])', line)
        if found:
            choices = re.match("# One of: ([^,.]+)", lines[-1])
            value = f'"{choices[1]}"' if choices else f'"Our {found[1]}"'
            line = f"{found[1]} = {f'[{value}]' if found[2] == '[]' else value}"
        lines.append(line)
    return "\n".join(lines)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return audited(tmp_path_factory.mktemp("told"))


@pytest.fixture
def about(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "about.toml").write_text(filled(), encoding="utf-8")
    return read_about(tmp_path / "about.toml")


def test_the_fields_are_those_of_the_registry() -> None:
    sections = SCHEMA["properties"]["deployment"]["properties"]
    theirs = {f"{s}.{name}" for s, told in sections.items() for name in told["properties"]}
    assert {field.path for field in registry_fields()} == theirs
    for field in registry_fields():
        schema = sections[field.section]["properties"][field.name]
        assert list(field.one_of) == schema.get("enum", [])
    required = {f"{s}.{name}" for s, told in sections.items() for name in told.get("required", [])}
    asked = {f.path for f in registry_fields() if f.tier == 1 and not f.optional}
    assert required == asked


@pytest.mark.parametrize("budget", [ZCDP("1"), ApproxDP(3, "1e-6")], ids=["zcdp", "approximate"])
def test_a_record_is_valid_and_says_what_the_audit_says(budget: Budget, tmp_path: Path) -> None:
    found = audited(tmp_path / "run", budget)
    (tmp_path / "about.toml").write_text(filled(), encoding="utf-8")
    write_record(found, tmp_path / "record.yaml", tmp_path / "about.toml")
    record = yaml.safe_load((tmp_path / "record.yaml").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(
        SCHEMA, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
    ).validate(record)
    parameters = record["deployment"]["privacy_loss"]["privacy_parameters"]
    (guarantee,) = found.guarantees
    assert guarantee.rho is not None
    assert 0 <= parameters["epsilon"] - guarantee.epsilon < 1e-6
    assert 0 <= parameters["rho"] - guarantee.rho < 1e-6
    assert parameters["delta"] == guarantee.delta
    variants = {"ZCDP": "Zero-concentrated DP", "ApproxDP": "Approximate DP"}
    assert record["deployment"]["dp_variant"]["variant_name"] == variants[type(budget).__name__]
    assert found.head in record["deployment"]["administrative"]["notes"]


def test_caps_inside_the_account_stand_in_the_record(tmp_path: Path, about: dict[str, Any]) -> None:
    with CentralAccountant(ZCDP("1"), users=range(4), ledger=tmp_path / "l.db") as whole:
        site = whole.nested(ZCDP("0.2"), label="company").nested(
            ZCDP("0.1"), label="site", epochs=range(3)
        )
        SUM.release(Rows.seal(np.zeros((4, 3)), users=range(4)),
                    site.epoch(1).issue(SUM.loss(), users=range(4), label="week"))  # fmt: skip
    record = deployment_record(report(tmp_path / "l.db"), about)["deployment"]
    told = record["accounting"]["composition"]
    assert "- company/site (users 0..3; renews: epochs 0..2; 1 charged, 1): ε = " in told


def test_metered_code_stands_in_the_record(tmp_path: Path, about: dict[str, Any]) -> None:
    code = TrustedCode("opendp", "0.14.1", {"d_in": 1})
    with (
        CentralAccountant(ZCDP("1"), users=range(4), ledger=tmp_path / "l.db") as account,
        account.meter(ZCDP("0.1"), label="week", code=code) as spend,
    ):
        spend.release(1.0)
    record = deployment_record(report(tmp_path / "l.db"), about)["deployment"]
    told = record["implementation"]["mechanisms"]
    assert "package opendp, version 0.14.1" in told
    assert "of metered code its own" in told


def test_a_joint_guarantee_is_not_called_by_the_name_of_a_central_one(
    tmp_path: Path, about: dict[str, Any]
) -> None:
    with JointAccountant(ZCDP("1"), users=range(4), ledger=Ledger.create(tmp_path / "l.db")):
        pass
    record = deployment_record(report(tmp_path / "l.db"), about)["deployment"]
    assert record["dp_variant"]["variant_name"] == "Custom"
    assert "Joint" in record["deployment_model"]["model_name_details"]


def test_what_a_person_left_out_is_named(
    told: Report, tmp_path: Path, about: dict[str, Any]
) -> None:
    with pytest.raises(IncompleteRecordError, match=r"new-about\.toml was written .*basic\.name"):
        write_record(told, tmp_path / "record.yaml", tmp_path / "new-about.toml")
    assert not (tmp_path / "record.yaml").exists()
    assert (tmp_path / "new-about.toml").read_text(encoding="utf-8") == blank_about()
    del about["deployment_model"]["actors"]
    about["basic"]["intended_use"] = " "
    lacks = r"tier 3 lacks basic\.intended_use, deployment_model\.actors:"
    with pytest.raises(IncompleteRecordError, match=lacks):
        deployment_record(told, about)
    about["tier"] = 2
    with pytest.raises(IncompleteRecordError, match=r"tier 2 lacks basic\.intended_use:"):
        deployment_record(told, about)
    about["basic"]["intended_use"] = "to plan"
    assert "implementation" not in deployment_record(told, about)["deployment"]


@pytest.mark.parametrize(
    ("section", "name", "value", "says"),
    [
        ("basic", "nane", "x", r"basic\.nane: no field of the registry"),
        ("basic", "data_product_type", "Numbers", "must be one of Summary statistics"),
        ("basic", "publication_date", "soon", "must be a day"),
        ("basic", "data_curators", "us", "must be a list of texts"),
        ("privacy_loss", "privacy_parameters", {"epsilon": 0.1}, "comes from the ledger"),
        ("basic", "name", "?!", "needs a letter or digit"),
    ],
)
def test_wrong_fields_are_named(
    told: Report, about: dict[str, Any], section: str, name: str, value: Any, says: str
) -> None:
    about.setdefault(section, {})[name] = value
    with pytest.raises(DataError, match=says):
        deployment_record(told, about)


@pytest.mark.parametrize("tier", [0, True, "3", 1.5])
def test_a_tier_is_one_of_three(told: Report, about: dict[str, Any], tier: object) -> None:
    with pytest.raises(DataError, match="must be 1, 2 or 3"):
        deployment_record(told, {**about, "tier": tier})


def test_nothing_is_registered_that_the_ledger_does_not_earn(
    told: Report, tmp_path: Path, about: dict[str, Any]
) -> None:
    broken = told.model_copy(update={"problems": ["entry 3: changed"]})
    with pytest.raises(UncertifiedRecordError, match="entry 3: changed"):
        deployment_record(broken, about)
    assert "Nothing is certified" in evaluation(broken)[0].answer
    with pytest.raises(UncertifiedRecordError, match="simulation"):
        deployment_record(audited(tmp_path / "simulated", simulated=True), about)
    with pytest.raises(DataError, match="account = 2"):
        deployment_record(told, {**about, "account": 2})


def test_labels_are_no_markup_in_record_and_evaluation(tmp_path: Path) -> None:
    found = audited(tmp_path / "run", label="<script>|\n# x")
    page = evaluation_markdown(found)
    assert "<script>" not in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}


def test_an_evaluation_says_who_has_to_answer(told: Report, about: dict[str, Any]) -> None:
    asked = {answer.question: answer for answer in evaluation(told)}
    question = "Who sees what, and may anybody collude?"
    assert asked[question].by == "person"
    assert "deployment_model.actors" in asked[question].answer
    said = {answer.question: answer for answer in evaluation(told, about)}
    assert said[question].answer == "Our actors"
    assert told.head in " ".join(answer.answer for answer in evaluation(told))


def test_a_record_of_one_of_several_accountants_states_their_sum(tmp_path: Path) -> None:
    KINDS["several"](tmp_path / "l.db")
    found = report(tmp_path / "l.db")
    about = tomllib.loads(f"account = 1\n{filled()}")
    record = deployment_record(found, about)["deployment"]
    details = record["privacy_loss"]["privacy_parameters_details"]
    (together,) = found.sums
    assert f"(ε = {together.epsilon:.3f}"[:-1] in details
    assert "one of several accountants of its ledger" in details
