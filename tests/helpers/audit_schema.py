"""The JSON Schema of ``privlearn audit --json``, which programs of others may rely on.

``python tests/helpers/audit_schema.py`` prints it; docs/schemas/ has it as published.
"""

from __future__ import annotations

import json
from typing import Any

from privlearn.reporting.model import VERSION, Report

_NUMBER = {"anyOf": [{"type": "number"}, {"const": "Infinity"}]}
"""JSON has no infinity: it is written as text."""

_LEADING = {
    "epsilon": "What one person may lose in the whole ledger, at delta; null where it is infinite.",
    "delta": "Where epsilon is stated.",
    "rho": "The same in zCDP; null where there is no such constant.",
    "mu": "The same in Gaussian DP; null where not all losses are Gaussian.",
}


def audit_schema() -> dict[str, Any]:
    """The schema of one report, for JSON Schema's draft of 2020-12."""
    schema: dict[str, Any] = _with_infinity(Report.model_json_schema(mode="validation"))
    epsilon = schema["$defs"]["Guarantee"]["properties"]["epsilon"]
    epsilon["anyOf"] = [*epsilon["anyOf"], {"type": "null"}]  # infinite, or it cannot be known
    number = {"anyOf": [*_NUMBER["anyOf"], {"type": "null"}]}
    led = {name: {**number, "description": told} for name, told in _LEADING.items()}
    schema["properties"] = led | schema["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{VERSION.replace('/', ':')}",
        **schema,
    }


def _with_infinity(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_infinity(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _with_infinity(part) for name, part in schema.items()}
    if found.get("type") == "number":
        del found["type"]
        return {**found, **_NUMBER}
    return found


if __name__ == "__main__":
    print(json.dumps(audit_schema(), indent=1, ensure_ascii=False))
