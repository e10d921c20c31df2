"""The zoo: broken mechanisms, each beside its corrected control, for checks to be tried on.

Every animal says in one sentence what is wrong with it and where it comes from.  A check that is
pointed at its exhibit must find the fault, and must stay silent on its control.  Mutants are faults
planted in the source of this package's own code.
"""

from privlearn.checking.faults import arithmetic as numerics
from privlearn.checking.faults import few_inputs as places
from privlearn.checking.faults import learners_leaking as telling
from privlearn.checking.faults import missing_noise as beside
from privlearn.checking.faults import prefix_sums as streams
from privlearn.checking.faults import selection, sparse_vector, sums, third_party
from privlearn.checking.faults.cases import (
    Animal,
    Examined,
    Exhibit,
    Lawful,
    Made,
    Replayed,
    RowMap,
    Sampled,
    Verdict,
    White,
)
from privlearn.checking.mutants.mutants import MUTANTS
from privlearn.checking.mutants.mutation import Edit, Mutant

__all__ = [
    "ANIMALS",
    "MUTANTS",
    "Animal",
    "Edit",
    "Examined",
    "Exhibit",
    "Lawful",
    "Made",
    "Mutant",
    "Replayed",
    "RowMap",
    "Sampled",
    "Verdict",
    "White",
    "animal",
]

ANIMALS: tuple[Animal, ...] = (
    *sparse_vector.ANIMALS,
    *sums.ANIMALS,
    *beside.ANIMALS,
    *selection.ANIMALS,
    *places.ANIMALS,
    *streams.ANIMALS,
    *numerics.ANIMALS,
    *telling.ANIMALS,
    *third_party.ANIMALS,
)
"""Every broken mechanism and learner, with its control."""


def animal(name: str) -> Animal:
    """The animal of that name.

    Raises:
        KeyError: there is none; the message lists the names.
    """
    found = {each.name: each for each in ANIMALS}
    if name not in found:
        raise KeyError(f"{name!r} is not in the zoo; there are {', '.join(found)}")
    return found[name]
