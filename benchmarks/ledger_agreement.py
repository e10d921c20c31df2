"""Whether the verifiers of docs/ and ours agree, on random ledgers and mutations.

    python benchmarks/ledger_agreement.py [--ledgers 20000] [--seed 0]

Ledgers are written by central accountants, with plans, allowances, caps inside or none, or are made
of one account or several: of streams that say how far they come, end early and go on, of phases,
and of persons who come back under a rule.  Some are changed as somebody changes a file (bytes,
lines), some as somebody who rewrites the whole chain: lies, the same tokens again, values of other
JSON types, unknown names.  All must say the same of each: unreadable, an unknown extension,
problems or none; and the same head and root.  Where a verifier finds no problem and we do, it must
have listed the matter as one that it did not check (`UNCHECKED`).  Nobody may say yes to a ledger
whose real spends, which are added up here by all patterns of visits, exceed a cap, and nobody may
accuse an honest one.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import itertools
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import certify
from privlearn.accountants.state import AccountState
from privlearn.contract.protocols import Plan
from privlearn.contract.spends import PHASES
from privlearn.contract.tokens import Token
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
from privlearn.ledger.entries import (
    PARTICIPATION,
    RESUME,
    BatchesEntry,
    CapEntry,
    CloseEntry,
    Entry,
    IssueEntry,
    LearnerEntry,
    OpenEntry,
    PhaseEntry,
    PlanEntry,
    PlanItem,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    ReturnEntry,
    SpendEntry,
)
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows.domains import Ball, GradientHessian, OneOf
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import exact
from privlearn.values.participation import Participation

Body = dict[str, Any]
Rng = np.random.Generator
USERS = range(12)


@cache
def verifier(name: str) -> ModuleType:
    """A file of docs/, which no package holds."""
    docs = Path(__file__).resolve().parents[1] / "docs"
    spec = importlib.util.spec_from_file_location(name, docs / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if name == "verify_ledger":
        sys.modules[name] = module  # for the other one
    spec.loader.exec_module(module)
    return module


def honest(rng: Rng) -> list[Record]:
    """What one accountant leaves, or two, that did a few things."""
    ledger, ending = Ledger.memory(), []
    for _ in range(1 if rng.random() < 0.7 else 2):
        book: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP("0.2"), users=USERS, ledger=ledger, noise=NoiseSource.simulation(0), shared=True
        )
        kind = rng.choice(["plan", "allowance", "caps", "plain"], p=[0.35, 0.15, 0.2, 0.3])
        _PEOPLE[kind](book, rng)
        if rng.random() < 0.7:
            ending.append(book)
    for book in ending:
        book.close()
    return ledger.records


def at_random(rng: Rng) -> list[Record]:
    """What one account leaves, or several: entries at random, of which the right ones are taken."""
    accounts = [_entries(f"a{n}", rng, pure=n == 1) for n in range(1 + int(rng.integers(3) == 0))]
    entries: list[Entry] = []
    while accounts := [account for account in accounts if account]:
        entries.append(accounts[rng.integers(len(accounts))].pop(0))
    ext = {number: entry.ext() for number, entry in enumerate(entries) if entry.ext()}
    return chained([entry.body() for entry in entries], ext)


def _entries(name: str, rng: Rng, *, pure: bool) -> list[Entry]:
    """Of one account: of persons, whose streams end early, or of both."""
    opened, spend = _templates(pure)
    opened = opened.model_copy(update={"accountant": name})
    spend = spend.model_copy(update={"accountant": name})
    rule = _rule(rng) if rng.random() < 0.6 else None
    features = dict(opened.features)
    if rule is None or rng.random() < 0.5:
        features[RESUME] = "critical"
    if rule is not None:
        features[PARTICIPATION] = "critical"
        data = {"rule": rule.to_dict(), "registry": "ab" * 16}
        rho = str(rng.choice(["0.02", "0.05", "0.1"]))
        cap = {"kind": "zcdp", "rho": rho}
        if pure:
            cap = {"kind": "pure", "epsilon": str(exact("rho", rho) * 8)}
        opened = opened.model_copy(
            update={"participation": data, "adjacency": Adjacency.ZERO_OUT, "cap": cap}
        )
        loss = {**spend.loss, "adjacency": "zero-out"}
        spend = spend.model_copy(update={"adjacency": Adjacency.ZERO_OUT, "loss": loss})
    opened = opened.model_copy(update={"features": features})
    state, entries = AccountState(opened), list[Entry]([opened])
    draws = _Draws(name, spend, rule, rng)
    for entry in draws.entries():
        try:
            checked = state.check(entry)
        except PrivlearnError:
            continue
        state.record(checked)
        entries.append(entry)
    return entries


def _rule(rng: Rng) -> Participation:
    most = int(rng.integers(1, 4))
    kind = rng.integers(4)
    if kind == 0:
        return Participation(most, pooled=True)
    if kind == 1:
        return Participation(most, per_batch=int(rng.integers(1, most + 1)))
    return Participation(most, apart=int(rng.integers(1, 5)))


@cache
def _templates(pure: bool) -> tuple[OpenEntry, SpendEntry]:
    book: CentralAccountant[Any] = CentralAccountant(
        PureDP("0.3") if pure else ZCDP("0.02"),
        users=USERS,
        ledger=Ledger.memory(),
        noise=NoiseSource.simulation(0),
    )
    mechanism: NoisySum[Any] = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
    if pure:
        mechanism = NoisySum(Ball(1.0, 2, "l1"), LaplaceNoise(20.0))
    with book.issue(mechanism.loss(), users=USERS, label="sum").spend(
        replace(mechanism.spend(), arithmetic="own", interactive=True)
    ):
        pass
    opened, _, spend, *_ = book.ledger.entries
    assert isinstance(opened, OpenEntry)
    assert isinstance(spend, SpendEntry)
    return opened, spend


class _Draws:
    """Entries at random that may follow one another."""

    def __init__(self, of: str, spend: SpendEntry, rule: Participation | None, rng: Rng) -> None:
        self.of, self.spend, self.rule, self.rng = of, spend, rule, rng
        self.names: list[str] = []
        self.users: dict[str, tuple[int, int]] = {}
        self.phases: dict[str, int] = {}
        self.caps: list[CapEntry] = []
        self.clock, self.planned = 0, bool(rng.random() < 0.5)
        self.edges = sorted({0, 12, *(int(at) for at in rng.integers(1, 12, 3))})

    def entries(self) -> Iterator[Entry]:
        """A learner, batches, a plan, and what becomes of tokens."""
        of, rng, batched = self.of, self.rng, self.rule is not None and self.rule.batched
        if rng.random() < 0.5:
            yield LearnerEntry(accountant=of, name="L", parameters={}, made={})
        if batched:
            yield BatchesEntry(accountant=of, starts=tuple(self.edges[:-1]))
        else:
            self.edges = list(range(13))
        if self.planned:
            yield PlanEntry(accountant=of, items=(self._item(), self._item())[: rng.integers(1, 3)])
        for _ in range(rng.integers(5, 40)):
            yield self._next()
        for name in self.names if rng.random() < 0.5 else []:
            yield from (self._end(name, end, None) for end in ("unused", "lost"))
        yield CloseEntry(accountant=of)

    def _item(self) -> PlanItem:
        users = (0, 12) if self.rng.random() < 0.7 else self._range()
        count = int(self.rng.integers(1, 3))
        return PlanItem(label="sum", users=users, loss=self._loss(), count=count)

    def _range(self) -> tuple[int, int]:
        first, stop = sorted(self.rng.choice(self.edges, 2, replace=False).tolist())
        return first, stop

    def _loss(self) -> dict[str, Any]:
        """Of one row, or of persons also of all of their visits at once."""
        loss = self.spend.loss
        if self.rule is None or self.rng.random() < 0.7:
            return loss
        visits = {"most": int(self.rng.integers(1, 4)), "apart": int(self.rng.integers(1, 5))}
        return {"kind": "visits", "adjacency": loss["adjacency"], "loss": loss, **visits}

    def _next(self) -> Entry:
        kind, rng = self.rng.integers(7), self.rng
        if not self.planned and rng.random() < 0.1:
            return self._cap()
        if kind < 1 or not self.names:
            return self._issue()
        name = self.names[-1 - min(int(rng.exponential(1)), len(self.names) - 1)]
        if kind == 1:
            sums = bool(rng.random() < 0.2)
            stays = bool(rng.random() < 0.85) and not sums
            how: dict[str, Any] = {"arithmetic": "sum" if sums else "own", "interactive": stays}
            if not sums and rng.random() < 0.5:
                how["parameters"] = {PHASES: {"horizon": 12, "outputs": 1}}
                self.phases[name] = self.users[name][0]
            whom = {"token": name, "users": self.users[name], "loss": self._loss()}
            clock = {"admitted": {"clock": self._admitted()}} if self.rule else {}
            return self.spend.model_copy(update={**whom, **how, **clock})
        stop, phase = int(rng.integers(1, 13)), self.phases.get(name, 0)
        if kind == 6:
            self.phases[name] = stop = min(12, phase + int(rng.integers(1, 5)))
            return PhaseEntry(accountant=self.of, token=name, stop=stop)
        if phase and rng.random() < 0.8:
            stop = phase + int(kind == 3)
        if kind == 2:
            return ReachEntry(accountant=self.of, token=name, stop=stop)
        if kind == 3:
            return PublishEntry(accountant=self.of, token=name, digest="0" * 64, upto=stop - 1)
        end = str(rng.choice(["released", "lost", "unused"]))
        return self._end(name, end, stop if rng.random() < 0.2 else None)

    def _issue(self) -> IssueEntry:
        rng, name = self.rng, f"{self.of}/{len(self.names) + 1}"
        self.names.append(name)
        users = self._range()
        if self.planned or rng.random() < 0.3:
            users = (users[0] if rng.random() < 0.4 else 0, 12)
        self.users[name] = users
        rows = int(rng.integers(1, 4)) if self.rule else 1
        twice, cap = 2 if rng.random() < 0.1 else 1, "zcdp"
        amount = {"rho": str(exact("rho", "0.005") * twice * rows**2)}
        if self.spend.loss["kind"] == "laplace":
            cap, amount = "pure", {"epsilon": str(exact("epsilon", "0.1") * twice * rows)}
        return IssueEntry(
            accountant=self.of,
            token=name,
            label="sum",
            users=users,
            budget={"kind": cap, **amount},
            planned=int(rng.integers(2)) if self.planned else None,
            shared={} if self.rule and not self.planned and rng.random() < 0.5 else None,
            **self._out_of(),
        )

    def _out_of(self) -> dict[str, Any]:
        """A cap that a token comes out of, most of the time in as many epochs as it has."""
        if not self.caps or self.rng.random() < 0.3:
            return {}
        inside = self.caps[self.rng.integers(len(self.caps))]
        within = {cap.allowance: cap for cap in self.caps}
        path, number = [inside], int(self.rng.integers(3))
        while path[-1].within in within:
            path.append(within[str(path[-1].within)])
        epochs = tuple(number for cap in path if cap.epochs) + (0,) * bool(self.rng.random() < 0.05)
        return {"allowance": inside.allowance, "epochs": epochs or None}

    def _cap(self) -> Entry:
        rng = self.rng
        if self.caps and rng.random() < 0.2:
            ends = self.caps[rng.integers(len(self.caps))]
            return ReturnEntry(accountant=self.of, allowance=ends.allowance)
        times = int(rng.integers(1, 5)) * (int(rng.integers(1, 5)) if self.rule else 1)
        rho, epsilon = str(exact("rho", "0.005") * times), str(exact("epsilon", "0.1") * times)
        pure = self.spend.loss["kind"] == "laplace"
        within = [None, *(cap.allowance for cap in self.caps)]
        cap = CapEntry(
            accountant=self.of,
            allowance=f"{self.of}/cap-{len(self.caps) + 1}",
            label=f"cap {rng.integers(9)}",
            users=self._range() if rng.random() < 0.4 else (0, 12),
            budget={"kind": "pure", "epsilon": epsilon} if pure else {"kind": "zcdp", "rho": rho},
            within=within[rng.integers(len(within))],
            epochs=(0, 3) if rng.random() < 0.5 else None,
        )
        self.caps.append(cap)
        return cap

    def _admitted(self) -> int:
        self.clock = min(12, self.clock + int(self.rng.integers(3)))
        return self.clock

    def _end(self, name: str, end: Any, upto: int | None) -> RetireEntry:
        value = None if upto is None else {"digest": "0" * 64, "upto": upto}
        said = {"clock": self._admitted()} if self.rule and self.rng.random() < 0.5 else None
        return RetireEntry(accountant=self.of, token=name, outcome=end, value=value, admitted=said)


def _mechanism(rng: Rng) -> NoisySum[Any]:
    noise = GaussianNoise(float(rng.choice([8, 20])))
    if rng.random() < 0.5:
        return NoisySum(Ball(float(rng.choice([0.5, 1.0])), 2), noise)
    pair, noise = GradientHessian(2, float(rng.choice([0.5, 1, 2]))), GaussianNoise(2 * noise.std)
    return NoisySum(OneOf(pair, 3), noise) if rng.random() < 0.5 else NoisySum(pair, noise)


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


def _capping(book: CentralAccountant[ZCDP], rng: Rng) -> None:
    team = book.nested(ZCDP("0.1"), label="team", every="7d")
    inner = [
        team.nested(ZCDP("0.05"), label="project", users=range(2, 9)),
        team.nested(ZCDP("0.04"), label="daily", every="1d"),
        team.nested(ZCDP("0.03"), label="numbered", epochs=range(3)).epoch(int(rng.integers(3))),
    ]
    for _ in range(rng.integers(0, 12)):
        mechanism = _mechanism(rng)
        issuer = [book, team, *inner][rng.integers(5)]
        _spend(issuer, mechanism, mechanism.loss(), "inner", rng)
    if rng.random() < 0.3:
        inner[rng.integers(3)].close()


_PEOPLE = {"plan": _planned, "allowance": _delegating, "plain": _plain, "caps": _capping}


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


def _sequence_again(bodies: list[Body], rng: Rng) -> None:
    """All that was written of a token, under further names."""
    names = [body["token"] for body in bodies if body["entry"] == "spend"]
    if not names:
        return
    name = names[rng.integers(len(names))]
    own = [i for i, body in enumerate(bodies) if body.get("token") == name]
    again = [
        {**copy.deepcopy(bodies[i]), "token": f"{name} again {n}"}
        for n in range(int(rng.choice([1, 3, 30])))
        for i in own
    ]
    bodies[own[-1] + 1 : own[-1] + 1] = again


def _another_reach(bodies: list[Body], rng: Rng) -> None:
    """A stream that says once more how far it comes."""
    found = [i for i, body in enumerate(bodies) if body["entry"] == "reach"]
    if found:
        at = found[rng.integers(len(found))]
        bodies.insert(at + 1, {**bodies[at], "stop": int(rng.integers(1, 13))})


def _of_another_account(bodies: list[Body], rng: Rng) -> None:
    """An entry that stands in another account as well."""
    names = [body["accountant"] for body in bodies if body["entry"] == "open"]
    at = rng.integers(len(bodies))
    moved = {**copy.deepcopy(bodies[at]), "accountant": names[rng.integers(len(names))]}
    bodies.insert(at + 1, moved)


def _of_persons(kind: str, **changes: Any) -> Callable[[list[Body], Rng], object]:
    """Other data of `participation/1`."""

    def change(body: Body) -> None:
        data = (body.get("ext") or {}).get(PARTICIPATION)
        if data is not None:
            data.get("rule", data).update(changes)

    return _set(kind, change)


def _visits(number: int) -> Callable[[Body], None]:
    """A loss of other visits."""

    def apply(body: Body) -> None:
        if body["loss"]["kind"] == "visits":
            body["loss"].update(most=number, apart=number)

    return apply


def _share(body: Body) -> None:
    ext = dict(body.get("ext") or {})
    if ext.pop(PARTICIPATION, None) is None:
        ext[PARTICIPATION] = {}
    body["ext"] = ext


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


def _phases(horizon: Any) -> Callable[[Body], None]:
    """Phases of another horizon, or none."""

    def apply(body: Body) -> None:
        said = {PHASES: {"horizon": horizon, "outputs": 1}}
        body["parameters"] = {} if horizon is None else said

    return apply


def _metered(said: Any, **changes: Any) -> Callable[[Body], None]:
    """A spend of code that is not the package's, or nearly one."""
    own = {"domain": {"kind": "metered"}, "noise": {"family": "metered"}}
    plain = {"arithmetic": "own", "derived": False, "interactive": False, "gain": 1, "ext": {}}

    def apply(body: Body) -> None:
        body.update({**own, **plain, "parameters": {"metered": said}, **changes})
        if not body["ext"]:
            del body["ext"]

    return apply


def _pair(**changes: Any) -> Callable[[Body], None]:
    """Of a gradient and Hessian, or of one per arm."""

    def change(body: Body) -> None:
        for domain in (body["domain"], body["domain"].get("inner", {})):
            if changes.keys() <= domain.keys():
                domain.update(changes)

    return change


CODE = {"package": "p", "version": "1", "parameters": {"epsilon": 1}}
NEARLY = {
    "interactive": True,
    "derived": True,
    "arithmetic": "sum",
    "gain": 2,
    "noise": {"family": "gaussian", "std": 1},
    "domain": {"kind": "mine"},
    "profile": [[1, 1]],
    "parameters": {"metered": {}, "lease": {"runs": 1}},
}
"""What a metered spend cannot say, but for the last."""


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
    *[_sequence_again] * 40,
    *[_another_reach] * 4,
    *[_of_another_account] * 4,
    *[_set("issue", _share)] * 3,
    *[_of_persons("open", most=n) for n in (0, 1, 2, 9)],
    *[_of_persons("open", apart=n) for n in (0, 1, 3, 20)],
    *[_of_persons("open", per_batch=n) for n in (None, 1, 3)],
    _of_persons("open", pooled=True),
    _of_persons("open", pattern="public"),
    _of_persons("open", clock="timetable"),
    _of_persons("open", more=1),
    *[_of_persons("spend", clock=n) for n in (0, 5, 12, 13, -1, "1")],
    *[_of_persons("retire", clock=n) for n in (0, 13)],
    *[_set("batches", _put(starts=starts)) for starts in ([], [0], [0, 5], [1, 5], [0, 5, 5])],
    *[_set("spend", _visits(n)) for n in (0, 1, 9)],
    *[_set("issue", _put(failure=text)) for text in ("0.0", "0/1", "1", "2", "-1", "")],
    *[_set("open", _put(failure=text)) for text in ("0.0", "1", "x")],
    *[_set("open", _put(odometer=text)) for text in ("0", "1", "1e-6")],
    *[_set("issue", lambda b: b["budget"].update(rho="0.06"))] * 2,
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
    *[_set("cap", lambda b: b["budget"].update(rho="0.004"))] * 2,
    *[_set("cap", lambda b: b["budget"].update(rho="0.5"))] * 2,
    *[_set("cap", _put(users=users)) for users in ([0, 5], [3, 4], [0, 13])],
    *[_set("cap", _put(within=name)) for name in ("none", None)],
    *[_set("cap", _put(every=n)) for n in (None, 1, 1440, 20160, 0)],
    *[_set("cap", _put(since=at)) for at in (None, "2001-02-31T00:00Z", "2200-01-01T00:00Z")],
    *[_set("cap", _put(epochs=numbers)) for numbers in (None, [0, 1], [2, 9], [3, 3])],
    *[_set("cap", _put(label=label)) for label in ("", "team", "cap 1")],
    *[_set("issue", _put(epochs=numbers)) for numbers in (None, [], [0], [1], [7], [0, 0], [-1])],
    *[_same_again(kind) for kind in ("cap", "return")],
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
    *[_set("spend", _pair(weight=w)) for w in (9, 0, -1, 1e-200, "1")],
    *[_set("spend", _pair(**{name: 1})) for name in ("arms", "dim")],
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
    *[_set("phase", _put(stop=n)) for n in (0, 1, 5, 12, 13)],
    *[_set("spend", _phases(n)) for n in (0, 11, "12", None)],
    *[_set("spend", _phases(12))] * 3,
    *[_set("spend", _metered(said)) for said in ({}, CODE)] * 2,
    *[_set("spend", _metered({**CODE, name: ""})) for name in (*CODE, "more")],
    *[_set("spend", _metered(said)) for said in (None, 1, {"package": "p"})],
    *[_set("spend", _metered({}, **{name: value})) for name, value in NEARLY.items()],
    _set("spend", _put(parameters={"metered": {}})),
    _set("spend", lambda b: b["domain"].update(kind="metered")),
    *[_set("publish", _put(upto=n)) for n in (-1, 0, 5, 12)],
    _set("publish", lambda b: b.update(digest="x")),
    _set("reach", lambda b: b.update(token="another")),
    *[_set("issue", _put(users=[n, 12])) for n in (0, 3, 7)],
    *[_same_again(kind) for kind in ("phase", "reach", "publish", "spend", "learner")],
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
    records = honest(rng) if rng.random() < 0.3 else at_random(rng)
    kinds = ["honest", "bytes", "rechained", "envelope", "extended"]
    what = str(rng.choice(kinds, p=[0.2, 0.15, 0.5, 0.1, 0.05]))
    if what == "rechained":
        # what extensions hold lies in the body while lies are told, as it is changed alike
        bodies = [copy.deepcopy({**record.body, "ext": record.ext}) for record in records]
        LIES[rng.integers(len(LIES))](bodies, rng)
        if rng.random() < 0.3:
            with suppress(AttributeError, LookupError, TypeError, ValueError):  # of the first lie
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


def theirs(path: Path, module: ModuleType) -> tuple[str, str, str, list[str], list[str]]:
    """The same of a verifier, and what it did not check."""
    try:
        found = module.verify(path)
    except verifier("verify_ledger").Unreadable as error:
        return ("extension" if error.args[1:] else "unreadable"), "", "", [], []
    said = "problems" if found["problems"] else "whole"
    return said, found["head"], found["root"], found["problems"], found["unchecked"]


_SUMS = r"budget exceeded|costs|cannot take|covers|holds more than plan item|promise"
UNCHECKED = {
    r"^entries of kind (delegate|return)": rf"{_SUMS}|allowance|delegate|return|users =|budget",
    r"^what has the kind": rf"{_SUMS}|kind|loss|budget|currency|price",
    r"^tokens that may fail": rf"{_SUMS}|allowance|fail",
    r"^what .* noise earns": r"domain|noise|radius|size|norm|std|scale|trusted code|loss of",
    r"^losses, domains and noise": r"domain|noise|profile|gain|radius|std|loss of|trusted code",
    r"^tables, samplers, most bounds": r"exact: (sampler|bound|grid of|a grid of)",
    r"^promises, odometers": r"promise|odometer|noise = |population|no finite ε|heads",
    r"^what a person pays": rf"{_SUMS}|person|rule|batch|registry|participation/1|timetable|lease|"
    r"visits|slots|plain sum|grows|Participation|starts =|not the planned one",
    r"^how far all visits": r"gain|factorisation|its parameters",
    r"^that null records": r"null contribution",
}
"""What a verifier says that it did not check, and which problems of ours that can be."""


_FOLLOWS = (
    r"is not open|no accountant was opened|is unspent: it cannot end|never issued here|"
    r"not in the committed plan|does not match plan item|is charged whole: it has no reach|"
    r"is not in phases|"
    r"budget exceeded for users"
)
"""Problems that come from one before: an entry was not understood, or is wrong, and nothing of its
token is free again."""


def excused(problems: list[str], unchecked: list[str]) -> bool:
    """Whether a verifier says of every problem of ours that it did not look."""
    patterns = [p for said, p in UNCHECKED.items() if any(re.search(said, u) for u in unchecked)]
    later = [text for text in problems[1:] if not re.search(_FOLLOWS, text)]
    return all(any(re.search(p, text) for p in patterns) for text in [*problems[:1], *later])


def overspent(records: list[Record]) -> bool:
    """Whether real spends cost anybody more than the cap of an account, by adding them up.

    A lower bound: of a stream that says how far it comes, rows below the farthest that it said; of
    what cannot be read, or has another loss than a Gaussian one, or than a Laplace one under pure
    ε, nothing.
    """
    named: dict[str, list[Record]] = {}
    for record in records:
        named.setdefault(str(record.body.get("accountant")), []).append(record)
    for of_account in named.values():
        opened = [record for record in of_account if record.body.get("entry") == "open"]
        try:
            if not opened:
                continue
            cap = opened[0].body["cap"]
            most = cap["epsilon"] if cap["kind"] == "pure" else cap["rho"]
            if _most_spent(opened[0], of_account) > exact("cap", most):
                return True
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue
    return False


def _most_spent(opened: Record, records: list[Record]) -> Fraction:
    """Of any index or, with a rule, of any person, by all patterns of visits."""
    data = opened.ext.get(PARTICIPATION)
    rule = None if data is None else Participation.from_dict(data["rule"])
    starts = [record.body["starts"] for record in records if record.body.get("entry") == "batches"]
    pure = opened.body["cap"]["kind"] == "pure"
    resumes, once = RESUME in opened.body["features"], rule is None or rule.most == 1
    reached: dict[str, int] = {}
    for body in (record.body for record in records if record.body.get("entry") == "reach"):
        if isinstance(body["stop"], int):
            reached[body["token"]] = max(reached.get(body["token"], 0), body["stop"])
    spends = []
    for body in (record.body for record in records if record.body.get("entry") == "spend"):
        try:
            whole, (start, stop) = body["loss"]["kind"] == "visits", body["users"]
            loss = body["loss"]["loss"] if whole else body["loss"]
            rho = exact("loss", loss["epsilon"]) if pure else exact("loss", loss["mu_squared"]) / 2
            early = resumes and (once or PHASES in body["parameters"])
            if early and body["interactive"] is True:
                stop = min(stop, reached.get(body["token"], 0))
            spends.append((sum(1 << at for at in range(start, stop)), rho, whole))
        except (AttributeError, LookupError, TypeError, ValueError):
            continue
    every = _patterns(
        Participation(1) if rule is None else rule, tuple(starts[0] if starts else ())
    )
    return max(
        sum(
            (rho if whole else rho * (slots & users).bit_count() ** (1 if pure else 2))
            for users, rho, whole in spends
            if slots & users
        )
        for slots in every
    ) + Fraction(0)


@cache
def _patterns(rule: Participation, starts: tuple[int, ...]) -> list[int]:
    """The sets of slots that one person may be learned at, as bits."""
    limit, found = rule.in_a_batch, []
    for size in range(1, min(rule.most, len(USERS)) + 1):
        for slots in itertools.combinations(USERS, size):
            batches = Counter(sum(start <= at for start in starts) for at in slots)
            close = any(b - a < rule.apart for a, b in itertools.pairwise(slots))
            if not close and (limit is None or max(batches.values()) <= limit):
                found.append(sum(1 << at for at in slots))
    return found


def look(path: Path, what: str) -> tuple[str, list[str]]:
    """Our verdict of a ledger, and what is wrong with it or with that of the verifiers."""
    said, wrong = ours(path), []
    verdict = said[0]
    over = verdict in ("whole", "problems") and overspent(read_records(path))
    if over and verdict == "whole":
        wrong.append("we let an overspend pass")
    if what == "honest" and verdict != "whole":
        wrong.append(f"an honest run is accused: {said[3]}")
    for name in ("verify_ledger", "verify_persons"):
        heard, expected = theirs(path, verifier(name)), said
        unchecked = heard[4]
        if (said[0], heard[0]) == ("problems", "whole") and excused(said[3], unchecked):
            expected, verdict = ("whole", *said[1:]), "unchecked"
        if expected[:3] != heard[:3]:
            wrong.append(f"{said[0]} {said[3]}, {name}: {heard[0]} {heard[3]}, not {unchecked}")
        if over and heard[0] == "whole" and not any("sums with them" in text for text in unchecked):
            wrong.append(f"{name} lets an overspend pass")
    return f"{verdict}, overspent" if over else verdict, wrong


def disagreements(folder: Path, ledgers: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Where they differ or are wrong, in words, and how often each verdict was given."""
    counts, found = Counter[str](), []
    for number in range(ledgers):
        path = folder / f"{number}.jsonl"
        what = write(path, np.random.default_rng([seed, number]))
        verdict, wrong = look(path, what)
        counts[f"{what}: {verdict}"] += 1
        found += [f"ledger {number} ({what}): {text}" for text in wrong]
        path.unlink()
    return found, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ledgers", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, counts = disagreements(Path(folder), asked.ledgers, asked.seed)
    for text, count in sorted(counts.items()):
        print(f"{text:32} {count:6}")
    print(*found, sep="\n")
    print(f"{len(found)} disagreements in {asked.ledgers} ledgers")


if __name__ == "__main__":
    main()
