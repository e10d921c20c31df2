"""Sound ledgers of every kind of account without a rule, and what they say, found by brute force.

The oracle shares nothing with the library but the entries' JSON: it prices losses by their
formulas, and adds up for each user by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

from privlearn.ledger import GENESIS, Record
from privlearn.ledger.chain import MerkleTree

ORDERS = (Fraction(2), Fraction(8), Fraction(32))
CAPS: dict[str, dict[str, Any]] = {
    "zcdp": {"kind": "zcdp", "rho": "40"},
    "gdp": {"kind": "gdp", "mu_squared": "80"},
    "pure": {"kind": "pure", "epsilon": "60"},
    "renyi": {"kind": "renyi", "curve": [["2", "90"], ["8", "200"], ["32", "2000"]]},
}
LABELS = ("week", "month", "<b>day</b>", "\x1b[2Jnight")
MECHANISMS = ("sum", "choice")
CODE = {"package": "<b>", "version": "1", "parameters": {"epsilon": 0.5}}
KINDS = (
    "open",
    "issue",
    "spend",
    "retire",
    "reach",
    "phase",
    "publish",
    "delegate",
    "return",
    "plan",
    "attest",
    "close",
)
FIRST_MINUTE = 29_800_000


def amounts_of(kind: str, loss: dict[str, Any]) -> tuple[Fraction, ...]:
    """What a loss costs, apart from failures, by its formula."""
    if loss["kind"] == "may-fail":
        return amounts_of(kind, loss["loss"])
    if loss["kind"] == "pure":
        assert kind == "pure"
        return (Fraction(loss["epsilon"]),)
    mass = Fraction(loss["mu_squared"])
    match kind:
        case "zcdp":
            return (mass / 2,)
        case "gdp":
            return (mass,)
    return tuple(order * mass / 2 for order in ORDERS)


def budget_of(kind: str, amounts: tuple[Fraction, ...]) -> dict[str, Any]:
    names = {"zcdp": "rho", "gdp": "mu_squared", "pure": "epsilon"}
    if kind == "renyi":
        pairs = zip(ORDERS, amounts, strict=True)
        return {"kind": kind, "curve": [[str(order), str(amount)] for order, amount in pairs]}
    return {"kind": kind, names[kind]: str(amounts[0])}


@dataclass
class Writer:
    """Entries of one account, which is made at random."""

    random: Random
    number: int
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = self.random
        self.id, self.tokens = f"{self.number:08x}", 0
        self.kind = random.choice(list(CAPS))
        self.users = [0, random.randint(4, 9)]
        self.attested = self.kind == "pure" and random.random() < 0.3
        self.planned = not self.attested and random.random() < 0.3
        self.failing = self.kind == "pure" and not self.attested and not self.planned
        opened = {
            "adjacency": "replace-one",
            "attested": self.attested,
            "cap": CAPS[self.kind],
            "durable": True,
            "failure": "0.01" if self.failing else "0",
            "features": {"resume/1": "critical"},
            "noise": "on devices" if self.attested else "secure keystream",
            "odometer": None,
            "population": None,
            "promise": None,
            "side_information": [],
            "simulated": False,
            "software": "privlearn 0.1.0",
            "trust": "local" if self.attested else "central",
            "users": self.users,
        }
        self.write("open", **opened)

    def write(self, entry: str, **fields: Any) -> None:
        self.bodies.append({"accountant": self.id, "entry": entry, **fields})

    def some_users(self) -> list[int]:
        start = self.random.randrange(*self.users)
        return [start, self.random.randint(start + 1, self.users[1])]

    def loss(self, users: list[int]) -> dict[str, Any]:
        random, relation = self.random, {"adjacency": "replace-one"}
        if self.kind == "pure":
            loss = {"kind": "pure", **relation, "epsilon": random.choice(["0.5", "1/3", "0.125"])}
            if self.failing and random.random() < 0.4:
                return {"kind": "may-fail", **relation, "loss": loss, "failure": "0.0001"}
            return loss
        size = users[1] - users[0]
        one = {"kind": "gaussian", **relation, "mu_squared": random.choice(["0.5", "1/7", "0.02"])}
        if size > 1 and random.random() < 0.25 and not self.planned:
            two = {**one, "mu_squared": "0.25"}
            parts = [{"users": 1, "loss": one}, {"users": size - 1, "loss": two}]
            return {"kind": "by-arrival", **relation, "parts": parts}
        return one

    def held(self, loss: dict[str, Any], factor: int) -> tuple[dict[str, Any], str]:
        """A budget that holds a loss so many times, and its failure."""
        losses = [p["loss"] for p in loss["parts"]] if loss["kind"] == "by-arrival" else [loss]
        each = [amounts_of(self.kind, one) for one in losses]
        largest = tuple(max(column) * factor for column in zip(*each, strict=True))
        failure = Fraction(loss.get("failure", 0)) * factor
        return budget_of(self.kind, largest), str(failure)

    def token(
        self,
        users: list[int],
        loss: dict[str, Any],
        label: str,
        *,
        planned: int | None = None,
        allowance: str | None = None,
    ) -> None:
        random = self.random
        self.tokens += 1
        token = f"{self.id}/{self.tokens}"
        budget, failure = self.held(loss, 1 if planned is not None else random.randint(1, 2))
        issued = {"planned": planned, "allowance": allowance, "label": label}
        self.write("issue", token=token, users=users, budget=budget, failure=failure, **issued)
        end = random.random()
        if end < 0.2:
            return
        if end < 0.35:
            self.write("retire", token=token, outcome="unused", digest=None)
            return
        stream = loss["kind"] != "may-fail" and random.random() < 0.3
        spend: dict[str, Any] = {
            "adjacency": "replace-one",
            "arithmetic": "own",
            "calibration": "proved",
            "derived": False,
            "domain": {"kind": "ball", "norm": "l2", "radius": 1.0, "size": 2},
            "gain": 1.0,
            "interactive": stream,
            "noise": {"family": "gaussian", "std": 20.0},
            "parameters": {},
            "profile": [],
            "simulated": False,
            "trust": "central",
        }
        name = random.choice(MECHANISMS)
        if stream and random.random() < 0.4:
            said = {"phases": {"horizon": 9, "outputs": 1}}
            spend |= {"parameters": said}
            self.write("spend", token=token, users=users, loss=loss, mechanism=name, **spend)
            self.phases(token, users)
            return
        if name == "choice" and not stream:  # of code that is not the package's
            spend |= {"domain": {"kind": "metered"}, "noise": {"family": "metered"}}
            spend |= {"parameters": {"metered": {} if users[0] else CODE}}
        self.write("spend", token=token, users=users, loss=loss, mechanism=name, **spend)
        if stream and random.random() < 0.8:
            self.write("reach", token=token, stop=random.randint(users[0] + 1, users[1]))
        if random.random() < 0.8:
            outcomes = ["released", "lost", "uncovered"] if stream else ["released", "lost"]
            outcome = random.choice(outcomes[:2])
            self.write("retire", token=token, outcome=outcome, digest=None)

    def phases(self, token: str, users: list[int]) -> None:
        """Phases of a token that was spent, and maybe its end."""
        random, at = self.random, users[0]
        while at < users[1] and random.random() < 0.8:
            stop = random.randint(at + 1, users[1])
            self.write("phase", token=token, stop=stop)
            if random.random() < 0.2:
                break
            self.write("reach", token=token, stop=stop)
            self.write("publish", token=token, digest="0" * 64, upto=stop)
            at = stop
        outcome = "released" if at == users[1] else "lost"
        self.write("retire", token=token, outcome=outcome, digest=None)

    def step(self) -> None:
        """Something that may happen next."""
        random = self.random
        users, label = self.some_users(), random.choice(LABELS)
        if self.attested:
            loss, most = self.loss(users), random.randint(1, 3)
            claim = {"loss": loss, "most_messages": most, "count": most, "planned": None}
            names = {"mechanism": "response", "label": label, "by": "app", "unseen": []}
            self.write("attest", users=users, adjacency="replace-one", **claim, **names)
            return
        loss = self.loss(users)
        if random.random() < 0.15:
            self.delegate(users)
        else:
            self.token(users, loss, label)

    def delegate(self, users: list[int]) -> None:
        random = self.random
        self.tokens += 1
        name = f"{self.id}/part-{self.tokens}"
        whole = tuple(Fraction(5) * (order if self.kind == "renyi" else 1) for order in ORDERS)
        budget = budget_of(self.kind, whole)
        told = {"label": "part", "failure": "0.001" if self.failing else "0"}
        self.write("delegate", allowance=name, users=users, budget=budget, **told)
        for _ in range(random.randint(0, 2)):
            self.token(users, self.loss(users), random.choice(LABELS), allowance=name)
        if random.random() < 0.6:
            self.write("return", allowance=name)

    def plan(self) -> None:
        items: list[dict[str, Any]] = []
        for _ in range(self.random.randint(1, 3)):
            users = self.some_users()
            count = self.random.randint(1, 2)
            label = self.random.choice(LABELS)
            items.append({"label": label, "users": users, "loss": self.loss(users), "count": count})
        self.write("plan", items=items)
        for position, item in enumerate(items):
            if self.random.random() < 0.7:
                self.token(item["users"], item["loss"], item["label"], planned=position)

    def end(self) -> None:
        """Ends every token and allowance, and closes."""
        ended = {body["token"] for body in self.bodies if body["entry"] == "retire"}
        spent = {body["token"] for body in self.bodies if body["entry"] == "spend"}
        for body in list(self.bodies):
            if body["entry"] == "issue" and body["token"] not in ended:
                outcome = "released" if body["token"] in spent else "unused"
                self.write("retire", token=body["token"], outcome=outcome, digest=None)
        back = {body["allowance"] for body in self.bodies if body["entry"] == "return"}
        for body in list(self.bodies):
            if body["entry"] == "delegate" and body["allowance"] not in back:
                self.write("return", allowance=body["allowance"])
        self.write("close")


def random_records(seed: int) -> list[Record]:
    """A sound ledger with one to three accounts, whose entries follow each other."""
    random = Random(seed)
    bodies: list[dict[str, Any]] = []
    for number in range(random.randint(1, 3)):
        writer = Writer(random, number + 1)
        if writer.planned:
            writer.plan()
        else:
            for _ in range(random.randint(0, 9)):
                writer.step()
        if random.random() < 0.4:
            writer.end()
        bodies += writer.bodies
    records: list[Record] = []
    tree, head, minute = MerkleTree(), GENESIS, FIRST_MINUTE
    for seq, body in enumerate(bodies):
        minute += random.choice([0, 1, 7, 300, 5000])
        root = tree.root if body["entry"] == "close" else None
        records.append(Record.make(head, seq, body, minute=minute, root=root))
        head = records[-1].hash
        tree.add(bytes.fromhex(head))
    return records


# The oracle -------------------------------------------------------------------------------------


@dataclass
class Cost:
    """What one entry costs one user, and how likely it is to fail."""

    amounts: tuple[Fraction, ...]
    failure: Fraction


@dataclass
class Known:
    """One spend, or claim: what it costs each of its users."""

    seq: int
    minute: int
    mechanism: str
    label: str
    costs: dict[int, Cost]


@dataclass
class Told:
    """Everything about one account, for each user by itself."""

    kind: str
    users: range
    cap: tuple[Fraction, ...]
    failure: Fraction
    closed: bool
    planned: bool
    charged: dict[int, Cost]
    spends: list[Known]
    unspent: list[range]

    def spent(self, user: int) -> Cost:
        found = [known.costs[user] for known in self.spends if user in known.costs]
        return added(found, len(self.cap))


def added(costs: list[Cost], terms: int) -> Cost:
    amounts = tuple(sum((c.amounts[k] for c in costs), Fraction(0)) for k in range(terms))
    return Cost(amounts, sum((c.failure for c in costs), Fraction(0)))


def by_user(kind: str, loss: dict[str, Any], users: list[int], times: int = 1) -> dict[int, Cost]:
    """What a loss costs each user."""
    if loss["kind"] == "by-arrival":
        losses = [p["loss"] for p in loss["parts"] for _ in range(p["users"])]
    else:
        losses = [loss] * (users[1] - users[0])
    return {
        user: Cost(
            tuple(amount * times for amount in amounts_of(kind, one)),
            Fraction(one.get("failure", 0)) * times,
        )
        for user, one in zip(range(*users), losses, strict=True)
    }


def told_by(records: list[Record]) -> list[Told]:
    """What a ledger says of each account, in the order of opening."""
    opened = [record.body for record in records if record.body["entry"] == "open"]
    return [_told(body, [r for r in records if r.body["accountant"] == body["accountant"]])
            for body in opened]  # fmt: skip


def _told(opened: dict[str, Any], records: list[Record]) -> Told:
    kind, cap = opened["cap"]["kind"], opened["cap"]
    amounts = (
        tuple(Fraction(e) for _, e in cap["curve"])
        if kind == "renyi"
        else (Fraction(next(v for k, v in cap.items() if k != "kind")),)
    )
    minutes = {r.seq: minute(r) for r in records}
    of: dict[str, list[Record]] = {kind: [] for kind in KINDS}
    for record in records:
        of[record.body["entry"]].append(record)
    issues = {r.body["token"]: r.body for r in of["issue"]}
    ends = {r.body["token"]: r.body["outcome"] for r in of["retire"]}
    reaches: dict[str, int] = {}
    for record in of["reach"]:
        reaches[record.body["token"]] = record.body["stop"]
    returned = {r.body["allowance"] for r in of["return"]}
    users = range(*opened["users"])
    known, charges = [], {user: list[Cost]() for user in users}
    whole = {r.body["allowance"]: r.body for r in of["delegate"]
             if r.body["allowance"] not in returned}  # fmt: skip
    for record in of["spend"]:
        body, token = record.body, record.body["token"]
        costs = by_user(kind, body["loss"], body["users"])
        if body["interactive"] and ends.get(token) in ("released", "lost"):
            stop = reaches.get(token, body["users"][0])
            costs = {user: cost for user, cost in costs.items() if user < stop}
        label = issues[token]["label"]
        one = Known(record.seq, minutes[record.seq], body["mechanism"], label, costs)
        known.append(one)
        if not of["plan"] and issues[token]["allowance"] not in whole:
            for user, cost in costs.items():
                charges[user].append(cost)
    for record in of["attest"]:
        body = record.body
        costs = by_user(kind, body["loss"], body["users"], body["most_messages"])
        one = Known(record.seq, minutes[record.seq], body["mechanism"], body["label"], costs)
        known.append(one)
        for user, cost in costs.items():
            charges[user].append(cost)
    spent = {r.body["token"] for r in of["spend"]}
    unspent = [b for token, b in issues.items() if token not in spent and token not in ends]
    waiting = [] if of["plan"] else [b for b in unspent if b["allowance"] not in whole]
    for body in [*waiting, *whole.values()]:
        for user in range(*body["users"]):
            charges[user].append(Cost(_amounts(body["budget"]), Fraction(body["failure"])))
    for record in of["plan"]:
        for item in record.body["items"]:
            for user, cost in by_user(kind, item["loss"], item["users"], item["count"]).items():
                charges[user].append(cost)
    return Told(
        kind=kind,
        users=users,
        cap=amounts,
        failure=Fraction(opened["failure"]),
        closed=bool(of["close"]),
        planned=bool(of["plan"]),
        charged={user: added(costs, len(amounts)) for user, costs in charges.items()},
        spends=sorted(known, key=lambda one: one.seq),
        unspent=[range(*body["users"]) for body in unspent],
    )


def _amounts(budget: dict[str, Any]) -> tuple[Fraction, ...]:
    if budget["kind"] == "renyi":
        return tuple(Fraction(e) for _, e in budget["curve"])
    return (Fraction(next(v for k, v in budget.items() if k != "kind")),)


def minute(record: Record) -> int:
    """The minute of an entry that tells one; else -1."""
    from datetime import datetime

    text = (record.envelope or {}).get("at")
    if text is None:
        return -1
    return int(datetime.fromisoformat(text).timestamp()) // 60
