"""Programs that are killed a thousand times, and what it takes to go on after 100,000 users.

    OMP_NUM_THREADS=1 python benchmarks/survival.py [--deaths 1000] [--more 300] [--owners 1000]
        [--metered 100] [--seed 1]

Processes are killed at points drawn from all kinds that they pass (every statement of SQLite, every
sync, every entry, every release), at times drawn at random, and by simulated cuts of the power.
After each death the ledger is audited, every value that left must have its spend on the disk, the
next process must have the public state that was seen last, or one release more, and all go on to
the end.  tests/helpers/deaths.py does it, and a test does it for fifty deaths.

``--owners`` is how many owners of ledgers (`privlearn ledger serve`) are killed in the same way
under a process that spends through them (tests/helpers/owner_deaths.py).

``--metered`` is how many processes are killed in blocks of code that is not ours, or around them,
on a file, at an owner and in PostgreSQL each (tests/helpers/metered_deaths.py).

``--more`` is how many further deaths there are of variants and baselines, of two or three in a row
with the later ones mostly while a program is being resumed, and of cuts of the power.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from reporting import Table, parser, write

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))

import metered_deaths
import owner_deaths
from deaths import EVERYTHING, Kind, Outcome, Task, campaign
from mortal_subjects import RARER, SUBJECTS
from postgres import started

from privlearn import ZCDP
from privlearn.accountants import JointAccountant, LocalAccountant, audit
from privlearn.learners import DPMNL, LDPOLS, OnePassNewtonMNL
from privlearn.learners.local import LocalBanditConfig, LocalClient, LocalServer
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource

USERS = 100_000


def cpu() -> float:
    """Seconds of this process and its children."""
    ours, theirs = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return ours.ru_utime + ours.ru_stime + theirs.ru_utime + theirs.ru_stime


HEADER = [
    "subject",
    "deaths",
    "of them cuts of the power",
    "unpaid values",
    "problems",
    "runs",
    "went on to the end",
    "most spends lost",
    "most users lost",
    "CPU s",
]
"""Spends and users: by one death."""


def deaths_of(
    subjects: list[str], deaths: int, seed: int, kind: Kind = "mixed"
) -> tuple[list[list[str]], dict[str, Any]]:
    """So many deaths in all, spread over the subjects; a row for each of them, and one of all."""
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {}
    everything: list[tuple[Task, Outcome]] = []
    begin, wall = cpu(), time.perf_counter()
    for number, name in enumerate(subjects):
        share = len(range(number, deaths, len(subjects)))
        rng = np.random.default_rng([seed, number])
        before = cpu()
        found = list(campaign(name, share, rng, kind=kind))
        rows.append([name, *_counted(found), f"{cpu() - before:.1f}"])
        bad = [(task, out) for task, out in found if _is_bad(out)]
        numbers[name] = {
            "deaths": sum(out.deaths for _, out in found),
            "bad": [f"{task}: {out}" for task, out in bad],
        }
        everything += found
        print(rows[-1], file=sys.stderr, flush=True)
    rows.append(["all", *_counted(everything), f"{cpu() - begin:.1f}"])
    numbers["cpu seconds"] = round(cpu() - begin, 1)
    numbers["wall seconds"] = round(time.perf_counter() - wall, 1)
    return rows, numbers


def more_deaths(deaths: int, seed: int) -> tuple[Table, dict[str, Any]]:
    """So many of each further kind."""
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {}
    kinds: list[tuple[str, list[str], Kind]] = [
        ("variants and baselines", list(RARER), "mixed"),
        ("two or three in a row", list(EVERYTHING), "row"),
        ("cuts of the power", list(EVERYTHING), "power"),
    ]
    for title, subjects, kind in kinds:
        found, numbers[title] = deaths_of(subjects, deaths, seed, kind)
        rows.append([title, *found[-1][1:]])
    return Table("Further deaths", ["kind", *HEADER[1:]], rows), numbers


def owners(deaths: int, seed: int) -> tuple[Table, dict[str, Any]]:
    """So many deaths of owners."""
    owner_deaths.points()
    begin, wall = cpu(), time.perf_counter()
    found = list(owner_deaths.campaign(deaths, np.random.default_rng(seed)))
    took, waited = cpu() - begin, time.perf_counter() - wall
    bad = [(task, out) for task, out in found if out.unpaid or out.problems or not out.finished]
    powers = sum(d.how == "power" for task, out in found for d in task.deaths[: out.deaths])
    counts = [
        sum(out.deaths for _, out in found),
        powers,
        sum(out.released for _, out in found),
        sum(out.unpaid for _, out in found),
        sum(len(out.problems) for _, out in found),
        len(found),
        sum(out.finished for _, out in found),
        len({point for _, out in found for point in out.points}),
    ]
    header = [
        "owners killed",
        "of them cuts of the power",
        "values that left",
        "unpaid values",
        "problems",
        "ledgers",
        "went on to the end",
        "kinds of points",
        "CPU s",
    ]
    numbers = {
        "deaths": counts[0],
        "bad": [f"{task}: {out}" for task, out in bad],
        "cpu seconds": round(took, 1),
        "wall seconds": round(waited, 1),
    }
    return Table("Owners killed", header, [[*map(str, counts), f"{took:.1f}"]]), numbers


def _is_bad(found: Outcome) -> bool:
    return bool(found.unpaid or found.problems or not found.finished)


def _counted(found: list[tuple[Task, Outcome]]) -> list[str]:
    outcomes = [outcome for _, outcome in found]
    powers = sum(death.how == "power" for task, out in found for death in task.deaths[: out.deaths])
    numbers = [
        sum(out.deaths for out in outcomes),
        powers,
        sum(out.unpaid for out in outcomes),
        sum(len(out.problems) for out in outcomes),
        len(outcomes),
        sum(out.finished for out in outcomes),
        max(out.most_spends for out in outcomes),
        max(out.most_users for out in outcomes),
    ]
    return [str(number) for number in numbers]


# Going on after many users ------------------------------------------------------------------------


_LOCAL = LDPOLS(dim=3, n_arms=5, horizon=USERS, shared=True, epsilon=1.0, delta=0.01)
_SERVED: dict[str, Any] = {"OnePassNewtonMNL": OnePassNewtonMNL, "DPMNL": DPMNL}


def serve(name: str, path: Path) -> None:
    """Serves all users; the account stays open."""
    if name == "LDP server":
        hear(path)
        return
    # some users are left, so that the run is not over
    account = JointAccountant(ZCDP(1), users=range(USERS + 100), ledger=Ledger.create(path))
    learner = _SERVED[name](n_items=5, dim=3).start(account)
    features = np.random.default_rng(0).normal(size=(USERS, 5, 3)) / 3
    learner.play(features, lambda own, shown: shown[:, 0])


def hear(path: Path) -> None:
    """A server hears one message of each user."""
    config, noise = LocalBanditConfig("survival", _LOCAL), NoiseSource.simulation(0)
    claims = LocalAccountant.for_server(config, Ledger.create(path))
    server = LocalServer(config, claims, by="benchmark")
    own = LocalAccountant(
        claims.budget, users=range(USERS), noise=noise, adjacency=claims.adjacency
    )
    devices = LocalClient(config, own)
    rng = np.random.default_rng(0)
    while len(server.users):
        users, model = server.users, server.model()
        offers = rng.normal(size=(len(users), 5, 3)) / 3
        arms = devices.choose_many(offers, model, users=users)
        shown = offers[np.arange(len(users)), arms]
        sent = devices.randomize_many(shown, arms, shown[:, 0], users=users, model=model)
        server.update_many(sent)
        server.advance()


def metered(deaths: int, seed: int) -> tuple[Table, dict[str, Any]]:
    """So many deaths in metered blocks on each store."""
    found: dict[str, metered_deaths.Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "file.db")
        found["file"] = metered_deaths.asked(path, path, deaths, seed)
        path = str(Path(folder) / "owned.db")
        serve = [sys.executable, "-m", "privlearn.cli", "ledger", "serve", path, "--new"]
        with subprocess.Popen(serve, stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            owner.stdout.readline()
            found["owner"] = metered_deaths.asked(f"{path}.sock", path, deaths, seed)
            owner.terminate()
    with started() as server:
        address = server.url(ledger="metered")
        found["PostgreSQL"] = metered_deaths.asked(address, address, deaths, seed)
    header = ["store", "deaths", "in the block", "blocks", "unpaid", "freed", "lost", "problems"]
    rows = [
        [
            store,
            *(str(n) for n in (o.deaths, o.within, o.begun, o.unpaid, o.freed, o.lost)),
            str(len(o.problems)),
        ]
        for store, o in found.items()
    ]
    numbers = {store: asdict(outcome) for store, outcome in found.items()}
    return Table("Processes that died in metered blocks", header, rows), numbers


def resumed(name: str, path: Path) -> int:
    """Goes on from the ledger; the next user."""
    if name == "LDP server":
        config = LocalBanditConfig("survival", _LOCAL)
        return LocalServer.resume(config, LocalAccountant.resume(path)).users.start
    clock: int = _SERVED[name].resume(JointAccountant.resume(path)).clock_
    return clock


def going_on() -> tuple[Table, dict[str, Any]]:
    """How long it takes until a learner is where it was."""
    rows: list[list[str]] = []
    numbers: dict[str, Any] = {}
    for name in (*_SERVED, "LDP server"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.db"
            ours, theirs = os.pipe()
            child = os.fork()  # it ends without a word
            if child == 0:
                serve(name, path)
                os.write(theirs, b"done")
                os._exit(0)
            os.close(theirs)
            assert os.read(ours, 8) == b"done", name
            os.close(ours)
            os.waitpid(child, 0)
            before, wall = time.process_time(), time.perf_counter()
            clock = resumed(name, path)
            took, waited = time.process_time() - before, time.perf_counter() - wall
            found = audit(path)
            assert not found.problems, found.problems
        row = [name, f"{clock:,}", f"{found.entries:,}", f"{took:.2f}", f"{waited:.2f}"]
        rows.append(row)
        numbers[name] = {"clock": int(clock), "cpu seconds": took, "wall seconds": waited}
    header = ["subject", "users before", "entries", "CPU s", "wall s"]
    return Table(f"Going on after {USERS:,} users", header, rows), numbers


def main() -> None:
    """Runs both parts, and writes the tables."""
    options = parser(__doc__)
    options.add_argument("--deaths", type=int, default=1000)
    options.add_argument("--more", type=int, default=300)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--owners", type=int, default=1000)
    options.add_argument("--only", choices=("deaths", "resume", "owners", "metered"))
    options.add_argument("--metered", type=int, default=100)
    options.add_argument("--subjects", nargs="+", choices=EVERYTHING, default=list(SUBJECTS))
    chosen = options.parse_args()
    tables: list[Table] = []
    numbers: dict[str, Any] = {"seed": chosen.seed}
    if chosen.only in (None, "deaths"):
        rows, found = deaths_of(chosen.subjects, chosen.deaths, chosen.seed)
        tables.append(Table("Deaths, and what was left", HEADER, rows))
        numbers["deaths"] = found
        if chosen.more:
            table, numbers["further deaths"] = more_deaths(chosen.more, chosen.seed)
            tables.append(table)
    if chosen.only in (None, "resume"):
        table, found = going_on()
        tables.append(table)
        numbers["resume"] = found
    if chosen.only in (None, "owners"):
        table, numbers["owners"] = owners(chosen.owners, chosen.seed)
        tables.append(table)
    if chosen.only in (None, "metered"):
        table, numbers["metered"] = metered(chosen.metered, chosen.seed)
        tables.append(table)
    name = f"survival_{chosen.only}" if chosen.only in ("owners", "metered") else "survival"
    write(name, tables, numbers, "Ledgers lie in the folder for temporary files.")


if __name__ == "__main__":
    main()
