"""Broken mechanisms and learners, each with its corrected control, on which checks are tested.

Every fault says in one sentence what is wrong and where it comes from.  The check of its broken
case must find the fault, and the same check must pass on its control.
"""

from faults import (
    arithmetic,
    few_inputs,
    glm_leaking,
    learners_leaking,
    leases,
    missing_noise,
    offers_leaking,
    partials,
    phase_sums,
    phases_leaking,
    prefix_sums,
    selection,
    sparse_vector,
    sums,
    third_party,
)
from faults.cases import (
    CaseResult,
    CheckCase,
    ExactCase,
    Fault,
    LawCase,
    ReplayCase,
    RowMapCase,
    SamplingCase,
)

__all__ = [
    "FAULTS",
    "CaseResult",
    "CheckCase",
    "ExactCase",
    "Fault",
    "LawCase",
    "ReplayCase",
    "RowMapCase",
    "SamplingCase",
    "fault",
]

FAULTS: tuple[Fault, ...] = (
    *sparse_vector.FAULTS,
    *sums.FAULTS,
    *missing_noise.FAULTS,
    *selection.FAULTS,
    *few_inputs.FAULTS,
    *prefix_sums.FAULTS,
    *arithmetic.FAULTS,
    *learners_leaking.FAULTS,
    *offers_leaking.FAULTS,
    *leases.FAULTS,
    *third_party.FAULTS,
    *partials.FAULTS,
    *phase_sums.FAULTS,
    *phases_leaking.FAULTS,
    *glm_leaking.FAULTS,
)
"""Every broken mechanism and learner, with its control."""


def fault(name: str) -> Fault:
    """The fault of that name.

    Raises:
        KeyError: there is none; the message lists the names.
    """
    known = {each.name: each for each in FAULTS}
    if name not in known:
        raise KeyError(f"{name!r} is not a known fault; there are {', '.join(known)}")
    return known[name]
