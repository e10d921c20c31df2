"""Every planted fault is found by its check, and every corrected control passes it."""

from __future__ import annotations

import pytest
from faults import FAULTS, CaseResult, Fault, fault

CONFIDENCE = 1 - 0.025 / len(FAULTS)
"""So that with probability 0.975 no correct control at all gives a false alarm."""


@pytest.mark.calibration
@pytest.mark.parametrize("each", FAULTS, ids=lambda each: each.name)
def test_every_fault_is_caught(each: Fault) -> None:
    verdict = each.broken.check()
    assert verdict.caught, verdict.how


@pytest.fixture(scope="module")
def of_controls() -> dict[int, CaseResult]:
    """What was said about each control; several faults share one."""
    return {}


@pytest.mark.calibration
@pytest.mark.parametrize("each", FAULTS, ids=lambda each: each.name)
def test_every_control_passes(each: Fault, of_controls: dict[int, CaseResult]) -> None:
    known = id(each.control)
    if known not in of_controls:
        of_controls[known] = each.control.check(confidence=CONFIDENCE)
    assert not of_controls[known].caught, of_controls[known].how


def test_names_are_unique_and_everything_has_a_source() -> None:
    names = [each.name for each in FAULTS]
    assert len(set(names)) == len(names)
    assert all(each.description.endswith(".") and each.source for each in FAULTS)
    assert fault(names[3]) is FAULTS[3]
    with pytest.raises(KeyError, match="'unicorn' is not a known fault; there are"):
        fault("unicorn")
