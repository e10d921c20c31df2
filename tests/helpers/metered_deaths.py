"""Kills processes in metered blocks, and looks at what their ledger says.

One process, started by `asked`, forks those that pay for blocks, one after the other, each of which
goes on with the account, and dies: at a point around its blocks, or within one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from kill_points import Points, die, tell, watch

from privlearn import PureDP
from privlearn.accountants import CentralAccountant, TrustedCode, audit
from privlearn.accountants.token_entries import TokenEntries
from privlearn.ledger import Ledger, read_records

USERS = range(4)
PRICE = PureDP("0.001")
BLOCKS = 2
"""Of each process that nobody kills."""
WITHIN = "within the block"
CODE = TrustedCode("noise", "1.0", {"scale": 1000})
EARLY = "block begins early"
"""A planted fault."""
Account = CentralAccountant[PureDP]


@dataclass
class Outcome:
    """What was found."""

    deaths: int = 0
    within: int = 0
    """Of them in the block."""
    begun: int = 0
    """Blocks."""
    unpaid: int = 0
    """Blocks without a spend in the ledger."""
    freed: int = 0
    """Spends that are not charged any more."""
    lost: int = 0
    problems: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)


def connected(address: str) -> Account:
    """The account, as the next process has it."""
    if address.startswith("postgresql://"):
        return Account.join(Ledger.postgres(address, "join"))
    if address.endswith(".sock"):
        return Account.join(Ledger.connect(address))
    return Account.resume(address)


def begin(address: str) -> None:
    """Opens the account."""
    if address.startswith("postgresql://"):
        ledger = Ledger.postgres(address, "create")
    elif address.endswith(".sock"):
        ledger = Ledger.connect(address)
    else:
        ledger = Ledger.create(address)
    Account(PureDP(1), users=USERS, ledger=ledger)
    ledger.close()


def _live(address: str, at: int, name: str, fault: str, pipe: int) -> None:
    account = connected(address)
    points = Points(at, name, die)
    watch(points, None)
    if fault:
        record = TokenEntries.record_spend

        def early(self: TokenEntries, token: Any, *more: Any) -> Any:
            tell(pipe, f"begun {token.id}".encode())
            return record(self, token, *more)

        TokenEntries.record_spend = early  # type: ignore[method-assign, assignment]
    for number in range(BLOCKS):
        with account.meter(PRICE, label="block", code=CODE) as spend:
            tell(pipe, f"begun {spend.token_id}".encode())
            points.at(WITHIN)
            spend.release(float(number))
            points.at(WITHIN)
        points.at("the value left")
    tell(pipe, b"points " + json.dumps(points.names).encode())


def _child(address: str, at: int, name: str, fault: str) -> tuple[list[str], list[str], bool]:
    """Tokens whose blocks began, the points that were passed, and whether it died."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            _live(address, at, name, fault, theirs)
        except BaseException as error:
            tell(theirs, b"error " + repr(error).encode())
            os._exit(3)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        told = [line.partition(" ") for line in pipe.read().decode().splitlines()]
    _, status = os.waitpid(child, 0)
    errors = [rest for kind, _, rest in told if kind == "error"]
    if errors:
        raise RuntimeError(errors[0])
    names = [json.loads(rest) for kind, _, rest in told if kind == "points"]
    begun = [rest for kind, _, rest in told if kind == "begun"]
    return begun, names[0] if names else [], os.WIFSIGNALED(status)


def campaign(
    address: str, shown: str, deaths: int, seed: int, fault: str = "", at: str = ""
) -> Outcome:
    """So many deaths, half of them within a block, the others at points of all kinds alike.

    Args:
        address: where the processes spend.
        shown: where the ledger is read.
        deaths, seed: how many, and of which.
        fault: a planted one.
        at: the one point where all die.
    """
    rng, found = np.random.default_rng(seed), Outcome()
    begun, passed, _ = _child(address, 0, "", fault)
    places = {name: passed.count(name) for name in sorted(set(passed))}
    while found.deaths < deaths:
        name = at or (WITHIN if rng.random() < 0.5 else str(rng.choice(list(places))))
        blocks, _, died = _child(address, int(rng.integers(1, places[name] + 1)), name, fault)
        begun += blocks
        found.deaths += died
        found.within += died and name == WITHIN
        found.points.append(name)
    bodies = [record.body for record in read_records(shown)]
    spent = {body["token"] for body in bodies if body["entry"] == "spend"}
    found.begun, found.unpaid = len(begun), sum(token not in spent for token in begun)
    account = connected(address)
    charged = account.spent()
    found.freed = max(0, len(spent) - int(charged.epsilon / PRICE.epsilon))  # more is reserved
    account.ledger.close()
    looked = audit(shown)
    found.problems, found.lost = list(looked.problems), looked.lost
    return found


def asked(
    address: str, shown: str, deaths: int, seed: int, fault: str = "", at: str = ""
) -> Outcome:
    """Runs a campaign in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([address, shown, deaths, seed, fault, at]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Outcome(**json.loads(done.stdout))


def main() -> None:
    """Answers a request."""
    address, shown, *rest = json.load(sys.stdin)
    begin(address)
    json.dump(asdict(campaign(address, shown, *rest)), sys.stdout)


if __name__ == "__main__":
    main()
