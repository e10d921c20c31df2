"""Retried releases and leases, killed at each kind of point: nothing is unpaid or paid twice."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from grids import thinned
from paid_again import USED, Found, asked

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module", params=thinned(["few", "kinds"]))
def deaths(request: pytest.FixtureRequest) -> list[Found]:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        return asked(Path(folder), request.param)


def test_nothing_is_unpaid_and_every_ledger_goes_on(
    deaths: list[Found], request: pytest.FixtureRequest
) -> None:
    assert [each for each in deaths if each.problems or each.unpaid] == []
    assert all(each.died for each in deaths)
    few = "few" in request.node.callspec.id
    assert len({each.point for each in deaths}) > (10 if few else 40)
    assert {each.work for each in deaths} == {"retried", "leased"}


def test_a_retry_gives_the_value_that_left_or_says_that_it_was_lost(deaths: list[Found]) -> None:
    found = [each for each in deaths if each.work == "retried"]
    for each in found:
        assert each.spends == 1, each
        assert float(each.charged) == pytest.approx(0.005), each
        if each.lost:
            assert each.left == each.again == [], each
            assert each.outcomes == ["lost"], each
        else:
            assert len(each.again) == 1, each
            assert each.left in ([], each.again), each
            assert each.outcomes[-1] == "released", each
    assert {each.lost for each in found} == {True, False}
    assert any(each.left for each in found)
    assert any(each.outcomes == ["unused", "released"] for each in found)


def test_a_lease_that_died_stays_charged_and_its_runs_are_not_used_again(
    deaths: list[Found],
) -> None:
    found = [each for each in deaths if each.work == "leased"]
    for each in found:
        assert float(each.charged) == pytest.approx(0.015 * each.spends), each
        assert len(each.left) <= USED, each
        assert not each.left or each.spends == 2, each
        assert len(each.again) == USED, each
        assert not set(each.left) & set(each.again), each
        assert each.outcomes.count("released") in (1, 2), each
    assert {each.spends for each in found} == {1, 2}
    assert any("lost" in each.outcomes for each in found)
