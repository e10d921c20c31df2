"""What the tests of dp-accounting and Opacus expect, asked of our event lists.

    python benchmarks/dp_accounting_facts.py
    python benchmarks/dp_accounting_facts.py --record FOLDER

``--record`` runs the tests of a source tree of dp-accounting (``python/dp_accounting`` of
google/differential-privacy; needs pytest, parameterized and its dependencies) and writes down every
question that a passing test asks of an accountant, with the answer.  Without it the questions on
file are asked of `from_dp_event` and of the composition.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
FACTS = RESULTS / "dp_accounting_expectations.json"
OTHERS = RESULTS / "opacus_expectations.json"
"""Written down by hand from Opacus 1.6.0, `prv_accountant.py` and `accountants_test.py`."""
EQUAL = 1e-3
"""Relative difference in ε, or in log δ, below which answers are equal."""
Json = dict[str, Any]


def described(value: Any) -> Any:
    """An event as JSON."""
    if type(value).__module__.startswith("dp_accounting"):
        fields = {name: described(getattr(value, name)) for name in type(value).__annotations__}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    return value.item() if hasattr(value, "item") else value


class _Recorder:
    """A plugin of pytest: what is asked of accountants in tests that pass."""

    def __init__(self) -> None:
        self.facts: dict[str, Json] = {}
        self._asked: list[Json] = []

    def pytest_configure(self) -> None:
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant

        for kind in (PLDAccountant, RdpAccountant):
            for asked in ("epsilon", "delta"):
                self._follow(kind, asked)

    def _follow(self, kind: Any, asked: str) -> None:
        inner = getattr(kind, f"get_{asked}")

        def answer(accountant: Any, at: float) -> float:
            found: float = inner(accountant, at)
            self._asked.append(
                {
                    "by": kind.__name__,
                    "relation": accountant.neighboring_relation.name,
                    "ledger": described(accountant.ledger),
                    "asked": asked,
                    "at": float(at),
                    "answer": float(found),
                }
            )
            return found

        setattr(kind, f"get_{asked}", answer)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call":
            if report.passed:
                for fact in self._asked:
                    self.facts.setdefault(
                        json.dumps(fact), {"test": report.nodeid.split("::")[-1], **fact}
                    )
            self._asked.clear()


def record(folder: Path) -> None:
    """Runs the tests of both accountants and writes the facts."""
    import pytest

    sys.path.insert(0, str(folder))
    recorder = _Recorder()
    tests = ("pld/pld_privacy_accountant_test.py", "rdp/rdp_privacy_accountant_test.py")
    pytest.main(
        ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
        + [str(folder / "dp_accounting" / test) for test in tests],
        plugins=[recorder],
    )
    facts = list(map(json.dumps, recorder.facts.values()))
    lines = ",\n".join(",".join(facts[i : i + 10]) for i in range(0, len(facts), 10))
    FACTS.write_text(f'{{"facts": [\n{lines}\n]}}\n', encoding="utf-8")


def event(described_as: Any) -> Any:
    """The event of its JSON, of whatever version of dp-accounting is installed."""
    if isinstance(described_as, list):
        return [event(each) for each in described_as]
    if not isinstance(described_as, dict):
        return described_as
    fields = {name: event(value) for name, value in described_as.items() if name != "kind"}
    # newer events than the installed version has; readers go by their names
    made = type(described_as["kind"], (), {"__module__": "dp_accounting.dp_event"})()
    vars(made).update(fields)
    return made


_RELATIONS = {
    "ADD_OR_REMOVE_ONE": "add-remove",
    "REPLACE_ONE": "replace-one",
    "REPLACE_SPECIAL": "zero-out",
}


def verdict(fact: Json) -> tuple[str, str]:
    """Equal, tighter, looser or unsupported; and the figures, or why not."""
    from privlearn.errors import PrivlearnError
    from privlearn.events.dp_accounting import from_dp_event
    from privlearn.events.pricing import delta_price, epsilon_price

    try:
        relation: Any = _RELATIONS[fact["relation"]]
        # a selection has a price at one δ: that of the question, or 1e-6 where δ is asked
        chosen = fact["at"] if fact["asked"] == "epsilon" else 1e-6
        events = from_dp_event(event(fact["ledger"]), adjacency=relation, selection_delta=chosen)
        if fact["asked"] == "epsilon":
            ours = epsilon_price(events, fact["at"]).epsilon
        else:
            ours = delta_price(events, fact["at"]).delta
    except (PrivlearnError, ValueError) as error:
        if "no epsilon is finite" in str(error) and math.isinf(fact["answer"]):
            return "equal", "inf"
        return "unsupported", str(error)
    theirs = fact["answer"]
    figures = f"{ours:.6g} for {theirs:.6g}"
    if ours == theirs or (math.isinf(theirs) and math.isinf(ours)):
        return "equal", figures
    if fact["asked"] == "delta" and min(ours, theirs) > 0:
        ours, theirs = math.log(ours), math.log(theirs)
        close = EQUAL * max(1.0, abs(theirs))
    else:
        close = EQUAL * max(abs(theirs), 1e-6)
    if abs(ours - theirs) <= close:
        return "equal", figures
    return ("tighter" if ours < theirs else "looser"), figures


def main() -> None:
    from reporting import Table, parser, write  # the interpreter that records need not have it

    facts = [
        fact for file in (FACTS, OTHERS) for fact in json.loads(file.read_text("utf-8"))["facts"]
    ]
    parser(__doc__).parse_args()
    found = [(fact, *verdict(fact)) for fact in facts]
    counts = Counter((fact["by"].startswith("Opacus"), kind) for fact, kind, _ in found)
    why = Counter(text.split(": ", 1)[-1] for _, kind, text in found if kind == "unsupported")
    looser = [
        [f["test"], f["by"], f["relation"], f["asked"], f"{f['at']:g}", text]
        for f, kind, text in found
        if kind == "looser"
    ]
    kinds = ("equal", "tighter", "looser", "unsupported")
    rows = [
        [name, *(str(counts[opacus, kind]) for kind in kinds)]
        for name, opacus in (("dp-accounting", False), ("Opacus", True))
    ]
    tables = [
        Table(f"{len(facts)} expectations", ["tests of", *kinds], rows),
        Table(
            "Looser", ["test", "accountant", "relation", "asked", "at", "ours for theirs"], looser
        ),
        Table("Unsupported", ["why", "number"], [[text, str(n)] for text, n in why.most_common()]),
    ]
    numbers = {row[0]: dict(zip(kinds, map(int, row[1:]), strict=True)) for row in rows}
    write("dp_accounting_facts", tables, {"counts": numbers})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(Path(sys.argv[2]))
    else:
        main()
