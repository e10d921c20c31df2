"""What programs of others read stays what it is, and every report is of that form."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from audit_schema import audit_schema

from privlearn import ZCDP, Ball, Ledger, Rows
from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.losses.budgets import PureDP
from privlearn.mechanisms import NoisySum
from privlearn.reporting.report import report

ROOT = Path(__file__).parents[2]
PUBLISHED = json.loads((ROOT / "docs/schemas/audit-1.schema.json").read_text("utf-8"))
FIRST = json.loads((Path(__file__).parent / "files/audit-1-first.json").read_text("utf-8"))


def paths_of(schema: Any, definitions: Any, at: str = "") -> dict[str, Any]:
    """Every field that a reader can reach, with its form."""
    if "$ref" in schema:
        return paths_of(definitions[schema["$ref"].rpartition("/")[2]], definitions, at)
    found: dict[str, Any] = {}
    for branch in [schema, *schema.get("anyOf", [])]:
        if "$ref" in branch:
            found |= paths_of(branch, definitions, at)
        for name, inner in branch.get("properties", {}).items():
            found |= paths_of(inner, definitions, f"{at}.{name}")
        if isinstance(branch.get("items"), dict):
            found |= paths_of(branch["items"], definitions, f"{at}[]")
    types = [b["type"] for b in [schema, *schema.get("anyOf", [])] if "type" in b]
    found[at] = "|".join(sorted(types))
    return found


def test_the_published_schema_is_the_one_in_use() -> None:
    assert audit_schema() == PUBLISHED
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)


def test_no_field_of_the_first_version_went_away_or_changed_its_form() -> None:
    assert FIRST.items() <= paths_of(PUBLISHED, PUBLISHED["$defs"]).items()


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_a_field_that_goes_away_or_changes_is_found(change: str) -> None:
    broken = json.loads(json.dumps(PUBLISHED))
    fields = broken["$defs"]["Balance"]["properties"]
    if change == "gone":
        del fields["remaining"]
    else:
        fields["remaining"] = {"type": "string"}
    assert not FIRST.items() <= paths_of(broken, broken["$defs"]).items()


def test_reports_of_all_kinds_are_of_the_published_form(tmp_path: Path) -> None:
    ledgers = []
    for number, made in enumerate((CentralAccountant, JointAccountant, LocalAccountant)):
        path = tmp_path / f"{number}.db"
        budget: Any = PureDP("1") if made is LocalAccountant else ZCDP("1")
        kind: Any = made
        with kind(budget, users=range(20), ledger=Ledger.create(path)) as accountant:
            if made is CentralAccountant:
                total = NoisySum.calibrated(Ball(2.0, 3), ZCDP("0.1"))
                rows = Rows.seal(np.zeros((20, 3)), users=range(20))
                total.release(rows, accountant.issue(total.loss(), users=range(20), label="a"))
                accountant.issue(total.loss(), users=range(10), label="b")
        ledgers.append(path)
    cut = tmp_path / "cut.jsonl"
    ledger = tmp_path / "0.db"
    Ledger.open(ledger).export(cut)
    lines = cut.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[:2] + lines[3:]))
    validator = jsonschema.Draft202012Validator(PUBLISHED)
    for path in [*ledgers, cut]:
        found = report(path, delta=0 if path == ledgers[1] else None)
        told = json.loads(found.model_dump_json())
        validator.validate(told)
        assert list(told)[:4] == ["epsilon", "delta", "rho", "mu"]
        certain = not found.problems and math.isfinite(found.epsilon)
        assert told["epsilon"] == (found.guarantees[0].epsilon if certain else None)
        assert (told["delta"], told["rho"], told["mu"]) == (found.delta, found.rho, found.mu)
        if path == ledgers[1]:
            assert math.isinf(found.guarantees[0].epsilon)
            assert told["guarantees"][0]["epsilon"] is None
    told["guarantees"][0]["delta"] = "small"
    assert not validator.is_valid(told)
