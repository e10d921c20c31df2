"""Learners in phases: planted leaks are found by what they tell, and phases begin in time."""

from __future__ import annotations

import re

import pytest
from faults import Fault, phases_leaking

FOUND = {
    "ClockReadsRewards": "begin of 'rewards' .* then begin of 'rewards'",
    "EndIsNotAnnounced": "3 of its users had been served, whose rows may have chosen where it ends",
    "NullUsersDoNotCount": "begin of 'rewards' .* then begin of 'rewards'",
    "NullUsersAreSkipped": "open of 'rewards' .* then open of 'rewards'",
    "MeanOverUsableRewards": r"the public state depends on data .*: means_\n",
    "RawTotalOnTheLearner": r"the public state depends on data .*: total_\n",
    "ArmFromAnUnreleasedReward": "user 7 received 0, then 1, when user 6 was replaced",
    "AssignedByTheLastReward": "user 7 received 0, then 1, when user 6 was replaced",
    "MissingIsTheMean": r"rows of users \[8\] changed with user 6",
}


@pytest.mark.parametrize("fault", phases_leaking.FAULTS, ids=lambda fault: fault.name)
def test_a_leak_is_found_by_what_it_tells(fault: Fault) -> None:
    found = fault.broken.check()
    assert found.caught
    assert re.search(FOUND[fault.name.removeprefix("phases: ")], found.how), found.how


def test_the_sound_twin_passes() -> None:
    for fault in (phases_leaking.FAULTS[0], phases_leaking.FAULTS[2]):
        found = fault.control.check()
        assert not found.caught, found.how
