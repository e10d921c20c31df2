"""One person at two workers, in real processes: visits are counted together, sums hold no more.

An owner keeps the registry, or PostgreSQL does; workers admit records at the next free slots, all
at the same time, and send sums of them, and the rows, to the process with the accountant.  One
worker is killed when it was told what is learned, before it does anything with that.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from participation_oracle import Visits
from postgres import Server

from privlearn.values.participation import Participation

STORY = textwrap.dedent("""
    import json, os, sys, threading, time
    import numpy as np
    from privlearn import Ledger, NoiseSource, Participation, People, Rows
    from privlearn.accountants import CentralAccountant
    from privlearn.cli.main import app
    from privlearn.losses.budgets import ZCDP
    from privlearn.rows.domains import Ball
    from privlearn.values.adjacency import Adjacency
    from privlearn.mechanisms import NoisySum
    from privlearn.people import in_memory
    from privlearn.rows import PartialSum, merge, rows_from_bytes, rows_to_bytes
    from privlearn.rows.pooling import mean_of_visits

    folder, address, twin, rule, CAP = sys.argv[1:]
    rule = Participation.from_dict(json.loads(rule))
    SLOTS, CALLS, WORKERS, SECRET, PARENT = 60, 5, 2, bytes(32), os.getpid()
    socket, keys = os.path.join(folder, "s"), os.path.join(folder, "key")
    SUM = NoisySum.calibrated(Ball(1.0, 2), ZCDP("1/2"), adjacency=Adjacency.ZERO_OUT)
    if twin:
        in_memory.Kept.standings = lambda *_: {}

    def die():
        os.kill(os.getpid(), 9)

    def own(tell):
        def end_with_parent():
            while os.getppid() == PARENT:
                time.sleep(0.02)
            die()
        threading.Thread(target=end_with_parent, daemon=True).start()
        for said in (1, 2):  # that a worker was cut off, among others
            os.dup2(os.open(os.devnull, os.O_WRONLY), said)
        ledger, registry = (os.path.join(folder, name) for name in ("ledger.db", "people.db"))
        try:
            app(["ledger", "serve", ledger, "--new", "--socket", socket, "--people", registry])
        except SystemExit as end:
            os._exit(end.code or 0)

    def child(work):
        reading, writing = os.pipe()
        made = os.fork()
        if not made:
            os.close(reading)
            try:
                work(lambda **told: os.write(writing, json.dumps(told).encode() + b"\\n"))
            finally:
                os._exit(1)
        os.close(writing)
        return made, reading

    def opened():
        if address:
            return People.postgres(Ledger.postgres(address, "join"), key=keys)
        return People.connect(socket)

    def values(rng, n):
        return rng.integers(-3, 4, (n, 2)) / 4.0

    def worker(number):
        def work(tell):
            rng, people = np.random.default_rng(number), opened()
            for call in range(CALLS):
                n = int(rng.integers(1, 4))
                ids = [["maria", "kim", "zoe", None][i] for i in rng.integers(0, 4, n)]
                block = values(rng, n)
                rows = people.seal_next(block, ids)
                tell(
                    ids=ids, values=block.tolist(), users=[rows.users.start, rows.users.stop],
                    sum=SUM.partial(rows).to_bytes(SECRET).hex() if not rule.pooled else "",
                    rows=rows_to_bytes(rows, SECRET).hex(),
                )
            die()
        return work

    def killed(tell):
        people = opened()
        admit = type(people._People__keeper).admit
        def admitted(*given):
            admit(*given)
            die()
        type(people._People__keeper).admit = admitted
        tell(ids=["maria", "kim"])
        people.seal_next(np.ones((2, 2)), ["maria", "kim"])

    if address:
        first = Ledger.postgres(address, "create")
        People.postgres(first, "create", key=keys, rule=rule).close()
    else:
        People.create(os.path.join(folder, "people.db"), rule).close()
        owner, _ = child(own)
        while not os.path.exists(socket):
            time.sleep(0.01)
        first = Ledger.connect(socket)
    people = opened()
    account = CentralAccountant(
        ZCDP(CAP), users=range(SLOTS), people=people, ledger=first, noise=NoiseSource.simulation(0)
    )
    if rule.batched:
        account.divide([0, 12])
    begun = [child(worker(number)) for number in range(WORKERS)] + [child(killed)]
    told = []
    for made, reading in begun:
        with open(reading, "rb") as heard:
            told.append([json.loads(line) for line in heard])
        assert os.waitpid(made, 0)[1] == 9, told
    stop = people.clock
    calls = [call for each in told[:WORKERS] for call in each]
    # rows, in the order of their slots; those of who was killed are null
    parts, at = [], 0
    for call in sorted(calls, key=lambda call: call["users"]):
        begin, end = call["users"]
        if at < begin:
            parts.append(Rows.null(range(at, begin)))
        parts.append(rows_from_bytes(bytes.fromhex(call["rows"]), SECRET, people=people))
        at = end
    if at < SLOTS:
        people.skip_to(SLOTS)
        parts.append(Rows.null(range(at, SLOTS)))
    rows = Rows.concat(parts)
    if rule.pooled:
        total = SUM.partial(rows.pool(mean_of_visits))
    else:
        total = merge(*(
            PartialSum.from_bytes(bytes.fromhex(call["sum"]), SECRET, people=people)
            for call in calls
        ))
        assert (PartialSum._opened(SUM.partial(rows)) == PartialSum._opened(total)).all()
    token = account.issue(SUM.loss(), users=range(SLOTS), label="sum")
    opened_total = PartialSum._opened(total).tolist()
    value = SUM.release_partial(total, token).value.tolist()
    print(json.dumps({"calls": calls, "stop": stop, "total": opened_total, "value": value,
                      "left": str(account.remaining())}))
    people.close()
    first.close()
    if not address:
        os.kill(owner, 15)
        assert os.waitstatus_to_exitcode(os.waitpid(owner, 0)[1]) == 0
""")


def story(folder: Path, rule: Participation, address: str = "", twin: str = "") -> dict[str, Any]:
    """What the workers did, and what came of it; the cap holds what one token costs a person."""
    cap = f"{rule.most**2}/2"
    done = subprocess.run(
        [sys.executable, "-c", STORY, str(folder), address, twin, json.dumps(rule.to_dict()), cap],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def expected(told: dict[str, Any], rule: Participation) -> tuple[list[int], int]:
    """The sum in grid steps over the rows that the rule allows, and the most of one person."""
    import numpy as np

    from privlearn import Rows
    from privlearn.losses.budgets import ZCDP
    from privlearn.mechanisms import NoisySum
    from privlearn.rows import PartialSum
    from privlearn.rows.domains import Ball
    from privlearn.values.adjacency import Adjacency

    mechanism = NoisySum.calibrated(Ball(1.0, 2), ZCDP("1/2"), adjacency=Adjacency.ZERO_OUT)
    calls = sorted(told["calls"], key=lambda call: call["users"])
    oracle, at = Visits(rule, [0, 12]), 0
    learned: dict[tuple[str, int], list[list[float]]] = {}
    gone = set()  # pooled rows, which stand where their first visit does
    for call in calls:
        begin, end = call["users"]
        if at < begin:  # the one call of who was killed: its visits are used up
            assert begin - at == 2
            for slot, who in zip(range(at, begin), ["maria", "kim"], strict=True):
                first = (who, oracle.batch(slot)) not in learned
                if oracle.learns(who, slot) and rule.pooled and first:
                    gone.add((who, oracle.batch(slot)))
        for slot, who, value in zip(range(begin, end), call["ids"], call["values"], strict=True):
            if oracle.learns(who, slot):
                unit = oracle.batch(slot) if rule.pooled else slot
                if (who, unit) not in gone:
                    learned.setdefault((who, unit), []).append(value)
        at = end
    if at < told["stop"]:
        assert told["stop"] - at == 2  # of who was killed, too
    rows = np.array([np.mean(values, axis=0) for values in learned.values()])
    total = PartialSum._opened(mechanism.partial(Rows.seal(rows, users=range(len(rows)))))
    each = [who for who, _ in learned]
    return total.tolist(), max(each.count(who) for who in each)


RULES = [Participation(3, apart=2), Participation(2, pooled=True)]


@pytest.mark.parametrize("kind", ["owner", "postgres"])
def test_one_person_at_two_workers(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rule = RULES[kind == "postgres"]
    address = ""
    if kind == "postgres":
        server: Server = request.getfixturevalue("postgres")
        address = server.url(ledger=secrets.token_hex(4))
    told = story(tmp_path, rule, address)
    total, most = expected(told, rule)
    assert told["total"] == total
    assert most <= rule.most
    assert told["left"] == "ZCDP('0')"


def test_workers_that_each_count_for_themselves_would_be_found(tmp_path: Path) -> None:
    told = story(tmp_path, RULES[0], twin="nobody is known")
    assert told["total"] != expected(told, RULES[0])[0]
