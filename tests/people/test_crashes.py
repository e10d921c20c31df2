"""A process that is killed anywhere in a call never gives a visit back.

Children of one process share a file.  Each is killed: at a line of Python, at a statement of
SQLite, or, behind the last of these, when it has told on a pipe what it learned.  None closes the
file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

STORY = textwrap.dedent("""
    import json, os, sys
    from privlearn.values.participation import Participation
    from privlearn.people import People, in_memory

    path, twin = sys.argv[1:]
    SLOTS = 4

    def die():
        os.kill(os.getpid(), 9)

    def kill_at(kind, left, people):
        def step():
            nonlocal left
            left -= 1
            if left < 0:
                die()
        def line(frame, event, argument):
            if f"{os.sep}people{os.sep}" in frame.f_code.co_filename:
                if event != "call":
                    step()
                return line
        if kind == "line":
            sys.settrace(line)
        elif kind == "statement":
            file = people._People__keeper._turns._store._file
            file.connection.set_trace_callback(lambda told: step())

    def visit(ids, kind=None, left=0):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            people = People.open(path)
            begin = people.clock
            kill_at(kind, left, people)
            admission = people.admit_visits(ids, range(begin, begin + SLOTS))
            sys.settrace(None)
            os.write(writing, json.dumps([begin, admission.learned.tolist()]).encode())
            die()
        os.close(writing)
        with open(reading, "rb") as told:
            said = told.read()
        assert os.waitpid(child, 0)[1] == 9
        return json.loads(said) if said else None

    people = People.create(path, Participation(2, apart=2))
    people.bind("me", range(10**6))
    people.close()
    if twin == "debits in memory":
        def write(turn, head, starts=None, changed=None):
            turn.head = head
            turn._standings.update(changed or {})
        in_memory.Kept.write = write

    for kind, stride in (("line", 11), ("statement", 1)):
        left, told = 0, None
        while told is None:
            ids = [f"{kind}{left}", "always", None, f"{kind}{left}"]
            told = visit(ids, kind, left)
            print(json.dumps([ids, told, visit(ids)]))
            left += stride
""")


Call = tuple[int, list[bool]]
"""Its first slot, and the mask."""


class Event(NamedTuple):
    """One child that was to be killed, and one that comes after it with the same people."""

    ids: list[str | None]
    killed: Call | None
    after: Call


def story(path: Path, twin: str = "") -> list[Event]:
    done = subprocess.run(
        [sys.executable, "-c", STORY, str(path), twin], capture_output=True, text=True, check=False
    )
    assert not done.stderr, done.stderr
    return [Event(*json.loads(line)) for line in done.stdout.splitlines()]


def given_back(events: list[Event]) -> list[str]:
    """Who was learned more often, or sooner, than the rule allows."""
    slots: dict[str, list[int]] = {}
    for event in events:
        for call in (event.killed, event.after):
            if call is not None:
                begin, mask = call
                for place, (name, learned) in enumerate(zip(event.ids, mask, strict=True)):
                    if learned and name is not None:
                        slots.setdefault(name, []).append(begin + place)
    return [
        name
        for name, found in slots.items()
        if len(found) > 2 or any(right - left < 2 for left, right in pairwise(found))
    ]


def test_a_kill_anywhere_gives_no_visit_back(tmp_path: Path) -> None:
    events = story(tmp_path / "people.db")
    assert given_back(events) == []
    silent = [event for event in events if event.killed is None]
    assert len(silent) > 15
    debited = set()
    begin = 0
    for event in events:
        first, mask = event.after
        kept = first == begin + 4
        assert kept or (first == begin and event.killed is None)
        # all of a call is debited, or nothing
        assert [mask[0], mask[3]] == [not kept] * 2
        debited.add((event.killed is None, kept))
        begin = first + 4
    # some were killed before it was on disk, some between that and the return
    assert debited == {(True, False), (True, True), (False, True)}


def test_debits_that_are_not_durable_would_be_found(tmp_path: Path) -> None:
    assert "always" in given_back(story(tmp_path / "people.db", "debits in memory"))
