"""Processes that die at any point of what they do: nothing left unpaid, and everything goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from deaths import Answer, Death, Request, Task, asked
from grids import thinned
from mortal_faults import FAULTS
from mortal_subjects import SUBJECTS

DEATHS = thinned([12, 50])
FEW = 12
"""Deaths that always run; they are those of every third subject, several of each."""
MEMORY = Path("/dev/shm")
"""Where syncs cost nothing: what a cut of the power leaves of files is simulated."""


def killed(subject: str, name: str, at: int, fault: str, *, how: str = "kill") -> Task:
    death = Death("power" if how == "power" else "kill", at, name)
    return Task(subject, (death,), simulated=True, fault=fault)


PLANTED = {
    killed(
        "OnePassNewtonMNL, people twice", "before append (retire)", 3, "receipt_lets_go_early"
    ): "unpaid",
    killed("DPTOFW plain", "a value left", 4, "ledger_tells_durable_before_commit"): "unpaid",
    killed("DPMNL", "a value left", 4, "ledger_never_syncs", how="power"): "unpaid",
    killed(
        "OnePassNewtonMNL, people twice", "a value left", 4, "learner_forgets_the_last_release"
    ): "go on with the versions of privlearn and NumPy that the run was begun with",
    killed(
        "DPMNL", "before append (publish)", 5, "account_gives_users_again"
    ): "does not match plan item",
    killed("PrivateArms", "a step is done", 20, "phases_are_shorter_after_a_death"): (
        "was in a phase to"
    ),
}
SOUND = [
    *(Task(task.subject, task.deaths, simulated=True) for task in PLANTED),
    killed("PrivateTest", "before append (publish)", 4, ""),
    killed("PrivateExperts", "after append (reach)", 7, ""),
]


@pytest.fixture(scope="module", params=DEATHS)
def number(request: pytest.FixtureRequest) -> int:
    """Of deaths."""
    return int(request.param)


@pytest.fixture(scope="module")
def subjects(number: int) -> list[str]:
    return list(SUBJECTS)[:: 3 if number == FEW else 1]


@pytest.fixture(scope="module")
def answer(number: int, subjects: list[str]) -> Answer:
    deaths = {name: len(range(i, number, len(subjects))) for i, name in enumerate(subjects)}
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        return asked(Request(deaths, 18, (*PLANTED, *SOUND)), Path(folder))


def drawn(answer: Answer) -> Answer:
    return answer[: -len(PLANTED) - len(SOUND)]


def test_nothing_is_unpaid_and_everything_goes_on_after_many_deaths(
    answer: Answer, number: int, subjects: list[str]
) -> None:
    many = drawn(answer)
    assert [found for _, found in many if found["unpaid"] or found["problems"]] == []
    assert all(found["finished"] for _, found in many)
    assert sum(found["deaths"] for _, found in many) == number
    assert {task["subject"] for task, _ in many} == set(subjects)
    assert max(found["most_spends"] for _, found in many) == 1


def test_the_deaths_are_of_all_kinds(answer: Answer, number: int) -> None:
    points = Counter(point for _, found in drawn(answer) for point in found["points"])
    assert len(points) > 0.6 * number
    assert any("sync" in point for point in points)
    tasks = [task for task, _ in drawn(answer)]
    assert {death["how"] for task in tasks for death in task["deaths"]} == {"kill", "power"}
    assert {len(task["deaths"]) for task in tasks} == {1, 2}


def test_a_planted_fault_is_caught(answer: Answer) -> None:
    planted = answer[-len(PLANTED) - len(SOUND) : -len(SOUND)]
    assert {task["fault"] for task, _ in planted} == set(FAULTS)
    for expected, (task, found) in zip(PLANTED.values(), planted, strict=True):
        if expected == "unpaid":
            assert found["unpaid"], task
        else:
            assert any(expected in problem for problem in found["problems"]), (task, found)


def test_the_same_deaths_without_the_fault_show_nothing(answer: Answer) -> None:
    for task, found in answer[-len(SOUND) :]:
        assert (found["deaths"], found["unpaid"], found["problems"]) == (1, 0, []), task
