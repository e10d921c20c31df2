"""Whether the verifier of docs/verify_ledger.py and ours agree, on random ledgers and mutations.

    python benchmarks/ledger_agreement.py [--ledgers 10000] [--seed 0]

Ledgers are written by central accountants, with plans, allowances or neither, or hold streams that
say how far they come, end early and go on, as ledgers of files do.  Some are changed as
somebody changes a file (bytes, lines), some as somebody who rewrites the whole chain: lies, values
of other JSON types, unknown names.  Both must say the same of each: unreadable, an unknown
extension, problems or none; and the same head and root.  Where the verifier finds no problem and we
do, it must have listed the matter as one that it did not check (`UNCHECKED`).
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.state import AccountState
from privlearn.budgets import ZCDP
from privlearn.domains import Ball
from privlearn.entries import (
    RESUME,
    CloseEntry,
    Entry,
    IssueEntry,
    LearnerEntry,
    OpenEntry,
    PlanEntry,
    PlanItem,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    SpendEntry,
)
from privlearn.errors import (
    InsufficientBudgetError,
    LedgerError,
    LedgerFeatureError,
    PrivlearnError,
    UsersError,
)
from privlearn.ledger import GENESIS, Ledger, Record, read_records, write_export
from privlearn.ledger.canonical_json import canonical
from privlearn.ledger.chain import MerkleTree, chain_hash, chained
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.protocols import Plan
from privlearn.tokens import Token

Body = dict[str, Any]
Rng = np.random.Generator
USERS = range(12)


def verifier() -> ModuleType:
    """docs/verify_ledger.py, which no package holds."""
    path = Path(__file__).resolve().parents[1] / "docs" / "verify_ledger.py"
    spec = importlib.util.spec_from_file_location("verify_ledger", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def honest(rng: Rng) -> list[Record]:
    """What one accountant leaves, or two, that did a few things."""
    ledger, ending = Ledger.memory(), []
    for _ in range(1 if rng.random() < 0.7 else 2):
        book: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP("0.2"), users=USERS, ledger=ledger, noise=NoiseSource.simulation(0), shared=True
        )
        kind = rng.choice(["plan", "allowance", "plain"], p=[0.35, 0.15, 0.5])
        _PEOPLE[kind](book, rng)
        if rng.random() < 0.7:
            ending.append(book)
    for book in ending:
        book.close()
    return ledger.records


def resumable(rng: Rng) -> list[Record]:
    """What an account leaves whose streams end early: entries at random, of which the right ones
    are taken."""
    opened, spend = _templates()
    features = {**opened.features, RESUME: "critical"}
    opened = opened.model_copy(update={"features": features})
    entries, state = list[Entry]([opened]), AccountState(opened)
    wanted: list[Entry] = []
    if rng.random() < 0.5:
        wanted.append(LearnerEntry(accountant=opened.accountant, name="L", parameters={}, made={}))
    planned = rng.random() < 0.5
    if planned:
        item = PlanItem(label="sum", users=(0, 12), loss=spend.loss, count=int(rng.integers(1, 3)))
        wanted.append(PlanEntry(accountant=opened.accountant, items=(item,)))
    names: list[str] = []
    for _ in range(rng.integers(5, 40)):
        wanted.append(_at_random(opened.accountant, spend, names, planned, rng))
    for name in names if rng.random() < 0.5 else []:
        wanted += [_end(opened.accountant, name, end, None) for end in ("unused", "lost")]
    wanted.append(CloseEntry(accountant=opened.accountant))
    for entry in wanted:
        try:
            state.check(entry)
        except PrivlearnError:
            continue
        state.record(entry)
        entries.append(entry)
    ext = {number: entry.ext() for number, entry in enumerate(entries) if entry.ext()}
    return chained([entry.body() for entry in entries], ext)


def _templates() -> tuple[OpenEntry, SpendEntry]:
    book: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP("0.02"), users=USERS, ledger=Ledger.memory(), noise=NoiseSource.simulation(0)
    )
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
    with book.issue(mechanism.loss(), users=USERS, label="sum").spend(
        replace(mechanism.spend(), arithmetic="own", interactive=True)
    ):
        pass
    opened, _, spend, *_ = book.ledger.entries
    assert isinstance(opened, OpenEntry)
    assert isinstance(spend, SpendEntry)
    return opened, spend


def _at_random(of: str, spend: SpendEntry, names: list[str], planned: bool, rng: Rng) -> Entry:
    kind = rng.integers(6)
    if kind < 1 or not names:
        names.append(f"{of}/{len(names) + 1}")
        first = int(rng.integers(12)) if rng.random() < 0.6 else 0
        stop = 12 if planned else int(rng.integers(first, 12)) + 1
        rho = {"kind": "zcdp", "rho": "0.01" if rng.random() < 0.1 else "0.005"}
        at = 0 if planned else None
        return IssueEntry(
            accountant=of, token=names[-1], label="sum", users=(first, stop), budget=rho, planned=at
        )
    name, users = names[-1 - min(int(rng.exponential(1)), len(names) - 1)], (0, 12)
    if kind == 1:
        how = {"token": name, "interactive": bool(rng.random() < 0.85)}
        for first in range(12):  # those that it was issued for
            users = (first, 12)
            if rng.random() < 0.5:
                break
        return spend.model_copy(update={**how, "users": users})
    stop = int(rng.integers(1, 13))
    if kind == 2:
        return ReachEntry(accountant=of, token=name, stop=stop)
    if kind == 3:
        return PublishEntry(accountant=of, token=name, digest="0" * 64, upto=stop - 1)
    end = str(rng.choice(["released", "lost", "unused"]))
    return _end(of, name, end, stop if rng.random() < 0.2 else None)


def _end(of: str, name: str, end: Any, upto: int | None) -> RetireEntry:
    value = None if upto is None else {"digest": "0" * 64, "upto": upto}
    return RetireEntry(accountant=of, token=name, outcome=end, value=value)


def _mechanism(rng: Rng) -> NoisySum[Any]:
    return NoisySum(
        Ball(float(rng.choice([0.5, 1.0])), 2), GaussianNoise(float(rng.choice([8, 20])))
    )


def _spend(issuer: Any, mechanism: NoisySum[Any], price: Any, label: str, rng: Rng) -> None:
    first, stop = sorted(rng.choice(len(USERS) + 1, 2, replace=False).tolist())
    try:
        token = issuer.issue(price, users=range(first, stop), label=label)
    except (InsufficientBudgetError, UsersError):
        return
    _use(token, mechanism, rng)


def _use(token: Token[ZCDP], mechanism: NoisySum[Any], rng: Rng) -> None:
    if (fate := rng.random()) < 0.2:
        token.retire()
    elif fate < 0.9:
        with token.spend(mechanism.spend()):
            pass


def _plain(book: CentralAccountant[ZCDP], rng: Rng) -> None:
    for _ in range(rng.integers(0, 9)):
        mechanism = _mechanism(rng)
        price = mechanism.loss() if rng.random() < 0.6 else ZCDP("0.04")
        _spend(book, mechanism, price, f"sum {rng.integers(3)}", rng)


def _planned(book: CentralAccountant[ZCDP], rng: Rng) -> None:
    mechanism = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
    ranges = [range(0, 6), range(4, 12), USERS]
    counts = [int(n) for n in rng.integers(1, 4, size=3)]
    book.commit([Plan(f"sum {i}", mechanism.loss(), ranges[i], counts[i]) for i in range(3)])
    for i in range(3):
        for _ in range(rng.integers(0, counts[i] + 1)):
            _use(book.issue(mechanism.loss(), users=ranges[i], label=f"sum {i}"), mechanism, rng)


def _delegating(book: CentralAccountant[ZCDP], rng: Rng) -> None:
    with book.delegate(ZCDP("0.1"), users=range(2, 9), label="part") as part:
        for _ in range(rng.integers(0, 5)):
            mechanism = _mechanism(rng)
            _spend(part, mechanism, mechanism.loss(), "inner", rng)
    _plain(book, rng)


_PEOPLE = {"plan": _planned, "allowance": _delegating, "plain": _plain}


def _set(kind: str, change: Callable[[Body], object]) -> Callable[[list[Body], Rng], object]:
    def apply(bodies: list[Body], rng: Rng) -> None:
        found = [body for body in bodies if body["entry"] == kind]
        if found:
            change(found[rng.integers(len(found))])

    return apply


def _repeat(bodies: list[Body], rng: Rng) -> None:
    at = rng.integers(len(bodies))
    bodies.insert(rng.integers(at, len(bodies)) + 1, copy.deepcopy(bodies[at]))


def _swap(bodies: list[Body], rng: Rng) -> None:
    i, j = rng.integers(len(bodies), size=2)
    bodies[i], bodies[j] = bodies[j], bodies[i]


def _forget_field(bodies: list[Body], rng: Rng) -> None:
    body = bodies[rng.integers(len(bodies))]
    body.pop(list(body)[rng.integers(len(body))])


def _add_field(bodies: list[Body], rng: Rng) -> None:
    bodies[rng.integers(len(bodies))]["extra"] = 1


def _inside(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Where values stand in a body: what holds each, and under which name or number."""
    for key in value if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], dict | list):
            _inside(value[key], found)
    return found


def _another_type(bodies: list[Body], rng: Rng) -> None:
    places = _inside(bodies[rng.integers(len(bodies))], [])
    holder, key = places[rng.integers(len(places))]
    was, n = holder[key], rng.integers(len(OTHER_TYPES))
    holder[key] = (OTHER_TYPES[n], str(was), [was], {"a": was})[min(int(rng.integers(6)), 3)]


OTHER_TYPES: list[Any] = [
    None, True, False, 0, 1, 2.5, 1e20, -1, "", "x", "0", "1", [], {}, [0, 2], ["0", "2"]
]  # fmt: skip


def _another_name(bodies: list[Body], rng: Rng) -> None:
    body = bodies[rng.integers(len(bodies))]
    objects = [holder[key] for holder, key in _inside(body, []) if isinstance(holder[key], dict)]
    if objects:
        inner = objects[rng.integers(len(objects))]
        if inner and rng.random() < 0.5:
            del inner[list(inner)[rng.integers(len(inner))]]
        else:
            inner["more"] = 1


def _same_again(kind: str) -> Callable[[list[Body], Rng], object]:
    """A further token like one that stands there, such as one more than a plan has."""

    def apply(bodies: list[Body], rng: Rng) -> None:
        found = [i for i, body in enumerate(bodies) if body["entry"] == kind]
        if found:
            at = found[rng.integers(len(found))]
            for n in range(rng.integers(1, 4)):
                bodies.insert(at + 1, {**copy.deepcopy(bodies[at]), "token": f"again {n}"})

    return apply


def _change_text(value: Any) -> None:
    """Another digit in every number, so that a grid, a bound and a hash become others."""
    for holder, key in _inside(value, []):
        if isinstance(holder[key], str):
            holder[key] = holder[key].replace("4", "5")
        elif type(holder[key]) is int:
            holder[key] -= 1


def _largest(more: str) -> Callable[[Body], None]:
    """A bound of exact noise that is written in another way."""

    def apply(body: Body) -> None:
        if body.get("ext"):
            bound = body["ext"]["exact/1"]["bound"]
            bound["largest"] = bound["largest"] + more if more else "0" + bound["largest"]

    return apply


def _put(**changes: Any) -> Callable[[Body], None]:
    return lambda body: body.update(changes)


def _value(**changes: Any) -> Callable[[Body], None]:
    """A last value, or what is changed of it."""

    def apply(body: Body) -> None:
        ext = dict(body.get("ext") or {})
        ext["resume/1"] = {**{"digest": "0" * 64, "upto": 5}, **ext.get("resume/1", {}), **changes}
        body["ext"] = ext

    return apply


LIES: tuple[Callable[[list[Body], Rng], object], ...] = (
    _repeat,
    _swap,
    _forget_field,
    _add_field,
    *[_another_type] * 12,
    *[_another_name] * 4,
    *[_same_again("issue")] * 3,
    _set("plan", lambda b: b["items"][0].update(count=9)),
    _set("plan", lambda b: b["items"][0].update(label="sum 1")),
    _set("plan", lambda b: b["items"].pop()),
    _set("plan", lambda b: b["items"].clear()),
    _set("plan", lambda b: b["items"][0]["loss"].update(mu_squared="0.002")),
    _set("issue", lambda b: b.update(planned=2)),
    _set("issue", lambda b: b.update(planned=-1)),
    _set("issue", lambda b: b.update(planned=None)),
    _set("issue", lambda b: b.update(allowance="none")),
    _set("issue", lambda b: b.update(failure="0.1")),
    _set("delegate", lambda b: b["budget"].update(rho="0.01")),
    _set("return", lambda b: b.update(allowance="none")),
    _set("open", lambda b: b.update(failure="0.1", odometer="0.95")),
    _set("open", lambda b: b.update(simulated=False)),
    _set("spend", lambda b: b.update(gain=1e20)),
    _set("spend", lambda b: b.update(interactive=True)),
    _set("spend", lambda b: b.update(derived=False)),
    _set("spend", lambda b: b.update(arithmetic="own", profile=[[2, 1]])),
    _set("spend", lambda b: b["domain"].update(norm=3)),
    _set("spend", lambda b: b["noise"].update(family="laplace")),
    _set("spend", lambda b: b["loss"].update(kind="laplace")),
    lambda bodies, rng: bodies.pop(rng.integers(len(bodies))),
    _set("open", lambda b: b["cap"].update(rho="0.01")),
    _set("open", lambda b: b["cap"].update(rho="1e99999999")),
    _set("open", lambda b: b["cap"].update(rho="0")),
    _set("open", lambda b: b.update(users=[0, 3])),
    _set("open", lambda b: b.update(features={"values/1": "optional"})),
    _set("open", lambda b: b.update(features={"values/1": "critical"})),
    _set("open", lambda b: b.update(features={"values": "optional"})),
    _set("open", lambda b: b.update(features={"values/1": "maybe"})),
    _set("open", lambda b: b.update(adjacency="zero-out")),
    _set("issue", lambda b: b["budget"].update(rho="0.5")),
    _set("issue", lambda b: b["budget"].update(rho="0.0001")),
    _set("issue", lambda b: b["budget"].update(kind="pure")),
    _set("issue", lambda b: b.update(users=[3, 3])),
    _set("issue", lambda b: b.update(users=[0, 12])),
    _set("issue", lambda b: b.update(token="another")),
    _set("spend", lambda b: b["loss"].update(mu_squared="0.0001")),
    _set("spend", lambda b: b["loss"].update(mu_squared="9")),
    _set("spend", lambda b: b["noise"].update(std=1)),
    _set("spend", lambda b: b["noise"].update(std=500)),
    _set("spend", lambda b: b["domain"].update(radius=40)),
    *[_set("spend", lambda b: _change_text(b.get("ext")))] * 4,
    *[_set("spend", _largest(text)) for text in (".0", "/1", "e0", " ", "000000000", "")],
    _set("spend", lambda b: b.update(noise={"family": "category", "categories": 5})),
    _set("spend", lambda b: b.update(noise={"family": "mine", "std": 1}, derived=False)),
    _set("spend", lambda b: b.update(noise={"family": "laplace", "scale": 1}, derived=False)),
    _set("spend", lambda b: b.update(ext={})),
    _set("spend", lambda b: b.update(ext={"exact/1": {"sampler": "s", "tables": "0" * 64}})),
    _set("issue", lambda b: b.update(ext={"exact/1": {"sampler": "s", "tables": "0" * 64}})),
    _set("open", lambda b: b.update(features={"exact/1": "critical"})),
    _set("open", lambda b: b.update(features={})),
    _set("spend", lambda b: b.update(gain=3)),
    _set("spend", lambda b: b.update(trust="joint")),
    _set("spend", lambda b: b.update(simulated=False)),
    _set("spend", lambda b: b.update(users=[1, 2])),
    _set("spend", lambda b: b.update(parameters="none")),
    _set("retire", lambda b: b.update(outcome="unused")),
    _set("retire", lambda b: b.update(outcome="uncovered")),
    _set("retire", lambda b: b.update(outcome="gone")),
    _set("retire", lambda b: b.update(digest="x")),
    *[_set("retire", _value(upto=n)) for n in (-1, 0, 3, 12, 13, "1", None)],
    *[_set("retire", _value(digest=text)) for text in ("", "0" * 63, 1)],
    _set("retire", _value(more=1)),
    _set("retire", lambda b: b.update(ext={"resume/1": None})),
    _set("issue", lambda b: b.update(ext={"resume/1": {}})),
    *[_set("reach", _put(stop=n)) for n in (0, 1, 5, 12, 13)],
    *[_set("publish", _put(upto=n)) for n in (-1, 0, 5, 12)],
    _set("publish", lambda b: b.update(digest="x")),
    _set("reach", lambda b: b.update(token="another")),
    *[_set("issue", _put(users=[n, 12])) for n in (0, 3, 7)],
    *[_same_again(kind) for kind in ("reach", "publish", "spend", "learner")],
    _set("learner", lambda b: b.update(name="")),
    _set("open", lambda b: b.update(features={"resume/1": "optional"})),
    _set("open", lambda b: b.update(features={"resume/1": "critical"})),
    _set("open", lambda b: b["features"].pop("resume/1", None)),
    _set("close", lambda b: b.update(accountant="mallory")),
)


def _changed_bytes(content: bytes, rng: Rng) -> bytes:
    changed = bytearray(content)
    match rng.integers(5):
        case 0:
            changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
        case 1:
            del changed[rng.integers(len(changed)) :]
        case kind:
            lines = content.splitlines(keepends=True)
            i, j = rng.integers(len(lines), size=2)
            if kind == 2:
                del lines[i]
            elif kind == 3:
                lines.insert(j, lines[i])
            else:
                lines[i], lines[j] = lines[j], lines[i]
            return b"".join(lines)
    return bytes(changed)


def _changed_envelope(records: list[Record], rng: Rng) -> list[Record]:
    """Another byte in what is stored or in a hash, with everything else as it was."""
    at = rng.integers(len(records))
    data = bytearray(records[at].data)
    data[rng.integers(len(data))] = rng.choice(list(b'0a"9{,'))
    return [*records[:at], replace(records[at], data=bytes(data)), *records[at + 1 :]]


def write(path: Path, rng: Rng) -> str:
    """Writes a random ledger; what was done to it."""
    records = honest(rng) if rng.random() < 0.5 else resumable(rng)
    kinds = ["honest", "bytes", "rechained", "envelope", "extended"]
    what = str(rng.choice(kinds, p=[0.2, 0.15, 0.5, 0.1, 0.05]))
    if what == "rechained":
        # what extensions hold lies in the body while lies are told, as it is changed alike
        bodies = [copy.deepcopy({**record.body, "ext": record.ext}) for record in records]
        LIES[rng.integers(len(LIES))](bodies, rng)
        extensions = {i: body.pop("ext", None) for i, body in enumerate(bodies)}
        records = chained(bodies, extensions)
    if what == "envelope":
        records = _changed_envelope(records, rng)
    if what == "extended":
        records = _extended(records, rng)
    write_export(path, records)
    if what == "bytes":
        path.write_bytes(_changed_bytes(path.read_bytes(), rng))
    return what


def _extended(records: list[Record], rng: Rng) -> list[Record]:
    """Optional extensions that one accountant declares, and data of them in any entry."""
    bodies = [copy.deepcopy(record.body) for record in records]
    opened = [body for body in bodies if body["entry"] == "open"]
    opened[rng.integers(len(opened))]["features"] = {"values/1": "optional"}
    made: list[Record] = []
    at, head = rng.integers(len(bodies)), GENESIS
    for record in chained(bodies):
        envelope = {**(record.envelope or {})}
        if record.seq == at:
            envelope["ext"] = ({"values/1": {"a": [1]}}, {"curve/1": 1}, {}, [])[rng.integers(4)]
        if "root" in envelope:
            tree = MerkleTree()
            for before in made:
                tree.add(bytes.fromhex(before.hash))
            envelope["root"] = tree.root
        data = canonical({**envelope, "body": record.body})
        head = chain_hash(head, data)
        made.append(replace(record, data=data, hash=head, envelope=envelope))
    return made


def ours(path: Path) -> tuple[str, str, str, list[str]]:
    """What this package says: a word, the head, the root and the problems."""
    try:
        found = certify(read_records(path))
    except LedgerFeatureError:
        return "extension", "", "", []
    except LedgerError:
        return "unreadable", "", "", []
    said = "problems" if found.problems else "whole"
    return said, found.head, found.root, [*found.problems, *found.consequences]


def theirs(path: Path, module: ModuleType) -> tuple[str, str, str, list[str]]:
    """The same of the verifier, with what it did not check in place of the problems."""
    try:
        found = module.verify(path)
    except module.Unreadable as error:
        return ("extension" if error.args[1:] else "unreadable"), "", "", []
    said = "problems" if found["problems"] else "whole"
    return said, found["head"], found["root"], found["unchecked"]


_SUMS = r"budget exceeded|costs|cannot take|covers|holds more than plan item|promise"
UNCHECKED = {
    r"^entries of kind (delegate|return)": rf"{_SUMS}|allowance|delegate|return|users =|budget",
    r"^entries of kind functions": r"functions",
    r"^what has the kind": rf"{_SUMS}|kind|loss|budget|currency|price",
    r"^tokens that may fail": rf"{_SUMS}|allowance|fail",
    r"^what .* noise earns": r"domain|noise|radius|size|norm|std|scale|trusted code|loss of",
    r"^losses, domains and noise": r"domain|noise|profile|gain|radius|std|loss of|trusted code",
    r"^tables, samplers, most bounds": r"exact: (sampler|bound|grid of|a grid of)",
    r"^promises, odometers": r"promise|odometer|noise = |population|no finite ε|heads",
}
"""What the verifier says that it did not check, and which problems of ours that can be."""


_FOLLOWS = (
    r"is not open|no accountant was opened|is unspent: it cannot end|never issued here|"
    r"not in the committed plan|does not match plan item"
)
"""Problems that come from one before, by which an entry was not understood."""


def excused(problems: list[str], unchecked: list[str]) -> bool:
    """Whether the verifier says of every problem of ours that it did not look."""
    patterns = [p for said, p in UNCHECKED.items() if any(re.search(said, u) for u in unchecked)]
    later = [text for text in problems[1:] if not re.search(_FOLLOWS, text)]
    return all(any(re.search(p, text) for p in patterns) for text in [*problems[:1], *later])


def disagreements(folder: Path, ledgers: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Where the two differ, in words, and how often each verdict was given."""
    module, counts, found = verifier(), Counter[str](), []
    for number in range(ledgers):
        path = folder / f"{number}.jsonl"
        what = write(path, np.random.default_rng([seed, number]))
        said, heard = ours(path), theirs(path, module)
        verdict = said[0]
        if (said[0], heard[0]) == ("problems", "whole") and excused(said[3], heard[3]):
            verdict, said = "unchecked", ("whole", *said[1:])
        counts[f"{what}: {verdict}"] += 1
        if said[:3] != heard[:3]:
            found.append(f"ledger {number} ({what}): {said}, the verifier {heard}")
        path.unlink()
    return found, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, counts = disagreements(Path(folder), asked.ledgers, asked.seed)
    for text, count in sorted(counts.items()):
        print(f"{text:24} {count:6}")
    print(*found, sep="\n")
    print(f"{len(found)} disagreements in {asked.ledgers} ledgers")


if __name__ == "__main__":
    main()
