"""Kills programs again and again, and looks at what is left.

One process, started by `asked`, forks all the others: whoever lives, dies, and goes on.  What a
child lets out it writes to a pipe, where it is when the child is not any more.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from kill_points import LEDGER, Disk, Points, die, end_after, tell, watch
from mortal_faults import FAULTS
from mortal_subjects import RARER, SUBJECTS, Now, Subject

from privlearn.accountants import audit
from privlearn.contract.receipts import Receipt
from privlearn.errors import LedgerError
from privlearn.ledger import Ledger, read_records
from privlearn.ledger.values import digest_of
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array

SEED = 7
EVERYTHING = SUBJECTS | RARER
LONGEST = 60
"""Seconds for one process; more is a hang."""


@dataclass(frozen=True)
class Death:
    """How a process ends.

    ``kill`` and ``power``: at point number ``at``, or at the ``at``-th of those with this name;
    ``time``: after ``at`` microseconds of its work.
    """

    how: Literal["kill", "power", "time"]
    at: int
    name: str = ""


@dataclass(frozen=True)
class Task:
    """A subject and the deaths of its processes, one after the other; then it goes on to the end.

    ``simulated``: with noise of a seed, so that what the first process would have gone on to is
    known from one that did.  ``fault``: a name of `FAULTS`, which every process has.
    """

    subject: str
    deaths: tuple[Death, ...]
    simulated: bool = False
    fault: str = ""


@dataclass
class Outcome:
    """What was found after the deaths of a task."""

    deaths: int = 0
    unpaid: int = 0
    """Values that left without a spend on the disk."""
    problems: list[str] = field(default_factory=list)
    most_spends: int = 0
    most_users: int = 0
    """Lost by one death: spends whose release is missing, but for streams that another one follows,
    and users who came and are in no release."""
    points: list[str] = field(default_factory=list)
    """Where it died."""
    finished: bool = False


@dataclass
class _Life:
    """What one process let out."""

    values: list[tuple[str, str]] = field(default_factory=list)
    """Tokens and digests, in the order in which they left."""
    states: list[tuple[int, int, str]] = field(default_factory=list)
    """After each step: how many values had left in this life, up to which user it came, and a
    digest of the public state."""
    between: list[tuple[int, int, str]] = field(default_factory=list)
    """The same, before a value leaves."""
    points: list[str] = field(default_factory=list)
    error: str = ""
    unmade: list[str] = field(default_factory=list)
    """Labels of what was planned and never made."""
    died: bool = False
    done: bool = False

    @property
    def clock(self) -> int | None:
        return self.states[-1][1] if self.states else None


def _digest(arrays: tuple[Array, ...]) -> str:
    """Of arrays to ten digits, as sums may be taken in another order."""
    texts = (digest_of(np.char.mod("%.9e", a + 0.0)) for a in map(np.atleast_1d, arrays))
    return " ".join(text[:16] for text in texts) or "nothing"


def _live(subject: Subject, path: Path, task: Task, life: int, pipe: int) -> None:
    """One process: from the beginning, or from where the ones before were, to its end."""
    death = task.deaths[life] if life < len(task.deaths) else None
    points, disk = Points(), None
    if death is not None and death.how == "time":
        end_after(death.at * 1e-6)
    elif death is not None:
        points = Points(death.at, death.name, lambda: _end(death, disk, path, points, pipe))
        if death.how == "power":
            disk = Disk(path.parent)
    watch(points, disk)
    if task.fault:
        FAULTS[task.fault](lambda token, value: _left(pipe, token, value, again=False))
    released = Receipt._released

    @wraps(released)
    def reported(self: Receipt, value: Any, **named: Any) -> Any:
        again = self._past is not None
        if now is not None:
            _state(pipe, "between", now)
        found = released(self, value, **named)
        _left(pipe, found.paid_by, found.value, again=again)
        points.at("a value left")
        return found

    Receipt._released = reported  # type: ignore[method-assign]
    now: Now | None = None
    noise = NoiseSource.simulation(SEED) if task.simulated else None
    written = Ledger.append

    @wraps(written)
    def recorded(self: Any, entry: Any, **named: Any) -> None:
        written(self, entry, **named)
        if entry.entry == "sums":  # of messages, which a server shows what it made of
            tell(pipe, f"value attested {entry.digest}".encode())

    Ledger.append = recorded  # type: ignore[method-assign]
    points.at("before the account")
    accountant = subject.begun(path, noise)
    if accountant is not None:
        now, steps = subject.program(accountant)
        _state(pipe, "state", now)
        for _ in steps:
            _state(pipe, "state", now)
            points.at("a step is done")
        unmade = {label for label, _, _ in accountant.unmade} if subject.again else set()
        tell(pipe, b"unmade " + json.dumps(sorted(unmade)).encode())
        accountant.close()
    tell(pipe, b"done")
    if death is None:
        tell(pipe, b"points " + json.dumps(points.names).encode())


def _state(pipe: int, kind: str, now: Now) -> None:
    clock, arrays = now()
    tell(pipe, f"{kind} {clock} {_digest(arrays)}".encode())


def _end(death: Death, disk: Disk | None, path: Path, points: Points, pipe: int) -> None:
    tell(pipe, b"points " + json.dumps(points.names[-1:]).encode())
    if disk is not None:
        disk.leave(after_power(path), np.random.default_rng(death.at))
    die()


def after_power(path: Path) -> Path:
    """Where what a cut of the power leaves of a folder is put."""
    return path.parent.with_name(path.parent.name + "-power")


def _left(pipe: int, token: str, value: Array, *, again: bool) -> None:
    tell(pipe, f"{'again' if again else 'value'} {token} {digest_of(value)}".encode())


def _child(work: Callable[[int], None]) -> _Life:
    """Runs a process and takes down what it lets out."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            work(theirs)
        except BaseException:
            tell(theirs, b"error " + json.dumps(traceback.format_exc()).encode())
            os._exit(3)
        os._exit(0)
    os.close(theirs)
    told = bytearray()
    hung = False
    while True:
        ready, _, _ = select.select([ours], [], [], LONGEST)
        if not ready:
            hung = True
            os.kill(child, signal.SIGKILL)
        part = os.read(ours, 1 << 16)
        if not part:
            break
        told += part
    os.close(ours)
    _, status = os.waitpid(child, 0)
    life = _Life(died=os.WIFSIGNALED(status) and not hung)
    for line in told.decode().splitlines():
        kind, _, rest = line.partition(" ")
        match kind:
            case "value":
                token, digest = rest.split()
                life.values.append((token, digest))
            case "state" | "between":
                clock, digest = rest.split(maxsplit=1)
                state = len(life.values), int(clock), digest
                (life.states if kind == "state" else life.between).append(state)
            case "points":
                life.points = json.loads(rest)
            case "error":
                life.error = json.loads(rest)
            case "unmade":
                life.unmade = json.loads(rest)
            case "done":
                life.done = True
    if hung:
        life.error = f"nothing happened for {LONGEST} seconds"
    return life


@cache
def _verifier() -> ModuleType:
    """The verifier that shares no code with the package."""
    file = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
    spec = importlib.util.spec_from_file_location("verify_ledger", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def reference(name: str) -> _Life:
    """What a process with simulated noise lets out that nobody kills, and the points it passes."""
    subject = EVERYTHING[name]
    subject.run_through(SEED)  # else each child would import and calibrate the same again
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        path, task = Path(folder) / LEDGER, Task(name, (), simulated=True)
        life = _child(lambda pipe: _live(subject, path, task, 0, pipe))
    if not life.done:
        raise RuntimeError(f"{name}: {life.error}")
    return life


def run(task: Task) -> Outcome:
    """Lets the processes of a task live and die, and looks at the ledger after each."""
    subject, found = EVERYTHING[task.subject], Outcome()
    reference(task.subject)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run" / LEDGER
        path.parent.mkdir()
        check = _Checks(subject, path, task, found)
        for number in range(len(task.deaths) + 1):
            life = _child(lambda pipe, n=number: _live(subject, path, task, n, pipe))  # type: ignore[misc]
            copy = after_power(path)
            power = copy.exists()
            if power:
                put_back(copy, path.parent)
            check.after(life, power)
            if life.done or life.error:
                break
        found.finished = life.done
    return found


def put_back(copy: Path, folder: Path) -> None:
    """Makes the files of a folder those of a copy, in place: some programs know their file."""
    for path in folder.iterdir():
        if not (copy / path.name).exists():
            path.unlink()
    for path in copy.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    shutil.rmtree(copy)


class _Checks:
    """What must hold of the ledger and of what was seen, after every death."""

    def __init__(self, subject: Subject, path: Path, task: Task, found: Outcome) -> None:
        self._subject, self._path, self._task, self._found = subject, path, task, found
        self._seen: list[tuple[str, str]] = []
        self._state: tuple[int, str] | None = None  # values recorded, and the state they make
        self._clock: int | None = None  # when the process before died
        self._lost = 0
        self._kept: list[str] = []
        self._open: list[dict[str, Any]] = []
        self._powerless = False

    def after(self, life: _Life, power: bool) -> None:
        """Looks at what a process left that died, or came to its end."""
        found = self._found
        if life.error:
            found.problems.append(f"a process failed: {life.error}")
        if life.states:
            self._gone_on(life)
        if life.done:
            told = _verifier().verify(self._path)["problems"]
            found.problems += [f"verify_ledger.py: {problem}" for problem in told]
            if life.unmade and not found.most_spends:
                found.problems.append(f"planned and never made: {life.unmade}")
        if life.died:
            found.deaths += 1
            found.points += life.points
        self._seen += life.values
        begun, bodies = len(self._kept), self._recorded()
        spent = {body["token"] for body in bodies if body["entry"] == "spend"}
        spent.update("attested" for body in bodies if body["entry"] == "attest")
        unpaid = [value for value in self._seen if value[0] not in spent]
        found.unpaid += len(unpaid)
        kept = [body["digest"] for body in bodies if body.get("upto") is not None]
        self._powerless |= power
        missing = [digest for _, digest in self._seen if digest not in kept]
        if missing and not self._powerless:
            found.problems.append(f"{len(missing)} values left that the ledger does not hold")
        if len(kept) > len(self._seen) + len(self._task.deaths):
            found.problems.append("the ledger is more than one release ahead of what was seen")
        self._kept = kept
        ended = {body["token"] for body in bodies if body["entry"] == "retire"}
        self._open = [b for b in bodies if b["entry"] == "spend" and b["token"] not in ended]
        self._bodies = bodies
        found.problems += phase_problems(bodies, done=life.done)
        self._state = None
        if life.states:
            done, self._clock, state = life.states[-1]
            self._state = begun + done, state

    def _recorded(self) -> list[dict[str, Any]]:
        """Bodies of all entries, with data of values among them, once an audit found no fault."""
        if not self._path.exists():
            return []
        try:
            records = read_records(self._path)
            if not records:
                return []
            self._found.problems += audit(self._path).problems
        except LedgerError as error:
            self._found.problems.append(f"no ledger was left: {error}")
            return []
        found = []
        for record in records:
            body = dict(record.body)
            if body["entry"] == "retire":
                body |= {"digest": None, **record.ext.get("resume/1", {})}
            found.append(body)
        return found

    def _gone_on(self, life: _Life) -> None:
        """What a process made of the ledger that another one left."""
        found, first = self._found, life.states[0]
        if self._clock is None and not self._kept:
            return
        released, clock, state = first
        if released:  # a learner that catches up with its registry of people
            pass
        elif self._state is not None and self._state[0] == len(self._kept):
            if self._state[1] != state:
                found.problems.append("the public state is not the one that was seen last")
        elif self._task.simulated and found.deaths == 1:
            would = reference(self._task.subject)
            states = [*would.states, *would.between]
            made = {state for n, _, state in states if n == len(self._kept)}
            if made and state not in made:
                found.problems.append("the public state is not the one that would have come next")
        lost = self._lost_users(clock)
        found.most_users = max(found.most_users, lost)
        # a cut of the power may take away the end of the release before, too
        most = self._subject.most_users * (2 if self._powerless else 1)
        if lost > most:
            found.problems.append(f"{lost} users were lost; at most {most}")
        spends = sum(self._is_lost(spend) for spend in self._open)
        found.most_spends = max(found.most_spends, spends)
        if spends > self._subject.most_spends:
            found.problems.append(f"{spends} spends were lost, and nobody is left for them")

    def _is_lost(self, spend: dict[str, Any]) -> bool:
        """Whether a release is missing, and no stream for those who are left makes up for it."""
        if not spend["interactive"]:
            return True
        stop = int(spend["users"][1])
        return self._released(spend) < stop <= self._reached(spend)

    def _released(self, spend: dict[str, Any]) -> int:
        """One past the last user in a release of the spend's label."""
        labels = {b["token"]: b["label"] for b in self._bodies if b["entry"] == "issue"}
        uptos: list[int] = [
            body["upto"]
            for body in self._bodies
            if "upto" in body and labels.get(body.get("token")) == labels[spend["token"]]
        ]
        return max(uptos, default=int(spend["users"][0]))

    def _reached(self, spend: dict[str, Any]) -> int:
        """One past the last user whose row it may have taken."""
        start, stop = map(int, spend["users"])
        if not spend["interactive"]:
            return stop
        stops: list[int] = [
            body["stop"]
            for body in self._bodies
            if body["entry"] == "reach" and body["token"] == spend["token"]
        ]
        return max(stops, default=start)

    def _lost_users(self, clock: int) -> int:
        """Users who came and are in no release: their spend was lost, or they come again."""
        lost = set(range(clock, self._clock or 0))
        for spend in self._open:
            first = max(spend["users"][0], self._released(spend))
            lost.update(range(first, self._reached(spend)))
        return len(lost)


def phase_problems(bodies: list[dict[str, Any]], *, done: bool) -> list[str]:
    """Whether phases cover their users, in order, each in one that ends where it was declared."""
    tokens = {b["token"]: b for b in bodies if b["entry"] == "issue"}
    at = {token: int(b["users"][0]) for token, b in tokens.items()}
    ends: dict[str, dict[int, int]] = {}  # of the phase that a user is in, by label
    problems, labels = [], {token: b["label"] for token, b in tokens.items()}
    released: dict[str, list[range]] = {}
    opened = dict(at)
    for body in bodies:
        if body["entry"] == "phase":
            token, stop = body["token"], int(body["stop"])
            known = ends.setdefault(labels[token], {})
            for user in range(at[token], stop):
                if known.setdefault(user, stop) != stop:
                    problems.append(f"user {user} was in a phase to {known[user]}, then to {stop}")
            at[token] = stop
        elif body.get("upto") is not None and labels.get(body.get("token"), "") in ends:
            token, upto = body["token"], int(body["upto"])
            part = range(opened[token], upto)
            if ends[labels[token]].get(part.start) != upto:
                problems.append(f"a phase of {part} was released, which was not declared")
            released.setdefault(labels[token], []).append(part)
            opened[token] = upto
    for label, parts in released.items():
        if any(b.start < a.stop for a, b in pairwise(parts)):
            problems.append(f"phases of {label!r} overlap: {parts}")
    for label, known in ends.items():
        users = [range(*map(int, b["users"])) for b in tokens.values() if b["label"] == label]
        if done and set(known) != set(users[0]):
            problems.append(f"phases of {label!r} do not cover {users[0]}")
    return problems


Kind = Literal["mixed", "row", "power"]


def campaign(
    subject: str,
    deaths: int,
    rng: np.random.Generator,
    *,
    timed: bool = True,
    kind: Kind = "mixed",
) -> Iterator[tuple[Task, Outcome]]:
    """Runs tasks until so many processes have died, at points of all kinds that there are.

    Kinds of points are equally likely, however often a process passes points of one.

    Args:
        subject: its name.
        deaths: how many, in all.
        rng: draws them.
        timed: whether some are at times that are not points.
        kind: ``mixed``: of ten tasks six have one kill, two a second one while the first is being
            made up for, one a cut of the power, and one, if ``timed``, a kill at a time.  ``row``:
            two or three kills, all but the first while the one before is being made up for.
            ``power``: a cut of the power, and then mostly a kill or one more cut.
    """
    places: dict[str, list[int]] = {}
    for number, name in enumerate(reference(subject).points, 1):
        places.setdefault(name, []).append(number)
    kinds = sorted(places)
    died, turn = 0, int(rng.integers(10))
    while died < deaths:
        at = int(rng.choice(places[kinds[int(rng.integers(len(kinds)))]]))
        match kind:
            case "mixed":
                each = _mixed(at, turn % 10, rng, timed=timed)
            case "row":
                each = [Death("kill", at)]
                each += [Death("kill", _soon(rng)) for _ in range(int(rng.integers(1, 3)))]
            case "power":
                each = [Death("power", at)]
                if turn % 3:
                    each.append(Death("power" if turn % 3 == 1 else "kill", _soon(rng)))
        task = Task(subject, tuple(each[: deaths - died]), simulated=bool(rng.integers(2)))
        found = run(task)
        yield task, found
        turn, died = turn + 1, died + found.deaths


def _mixed(at: int, turn: int, rng: np.random.Generator, *, timed: bool) -> list[Death]:
    """The deaths of the ``turn``-th of ten tasks."""
    each = [Death("power" if turn == 8 else "kill", at)]
    if turn == 9 and timed:
        each = [Death("time", int(rng.integers(1000, 100_000)))]
    if turn in (3, 7):
        each.append(Death("kill", _soon(rng)))
    return each


def _soon(rng: np.random.Generator) -> int:
    """A point that a process passes while it takes up what another one left, or a little later."""
    return int(np.exp(rng.uniform(0, np.log(500))))


@dataclass(frozen=True)
class Request:
    """What a process that runs this file is to do.

    ``deaths``: for each subject how many, drawn with ``seed``; ``tasks``: besides.
    """

    deaths: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    tasks: tuple[Task, ...] = ()


Answer = list[tuple[dict[str, Any], dict[str, Any]]]
"""Tasks and what was found, as JSON."""


def asked(request: Request, folder: Path) -> Answer:
    """Runs a request in a process of its own; ``folder`` is for the ledgers."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
        input=json.dumps(asdict(request)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: Answer = json.loads(done.stdout)
    return answer


def main() -> None:
    """Answers a request."""
    given = json.load(sys.stdin)
    tempfile.tempdir = sys.argv[1]
    found: list[tuple[Task, Outcome]] = []
    for number, (subject, deaths) in enumerate(given["deaths"].items()):
        rng = np.random.default_rng([given["seed"], number])
        found += campaign(subject, deaths, rng, timed=False)
    for each in given["tasks"]:
        deaths = tuple(Death(**death) for death in each.pop("deaths"))
        task = Task(**each, deaths=deaths)
        found.append((task, run(task)))
    json.dump([(asdict(task), asdict(outcome)) for task, outcome in found], sys.stdout)


if __name__ == "__main__":
    main()
