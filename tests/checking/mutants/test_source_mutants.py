"""Faults planted in the source of this package are found, and planting them leaves no trace."""

from __future__ import annotations

import exact_noise_mutants
import numpy as np
import pytest
import source_mutants
from mutation import Edit, InspectionCase, Mutant

from privlearn.errors import CheckError
from privlearn.mechanisms import NoisySum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows.domains import Ball, PSDTrace, matrices

MUTANTS = (*source_mutants.MUTANTS, *exact_noise_mutants.MUTANTS)
CONFIDENCE = 1 - 0.025 / len(MUTANTS)
"""So that with probability 0.975 no code without a fault gives a false alarm."""


@pytest.mark.calibration
@pytest.mark.parametrize("each", MUTANTS, ids=lambda each: each.name)
def test_every_mutant_is_caught_and_the_original_restored(each: Mutant) -> None:
    before = [edit._found()[2] for edit in each.edits]
    verdict = each.check()
    assert verdict.caught, verdict.how
    assert all(edit._found()[2] is old for edit, old in zip(each.edits, before, strict=True))
    verdict = each.case.check(confidence=CONFIDENCE)
    assert not verdict.caught, verdict.how


def test_names_are_unique_and_everything_is_described() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 10
    assert all(mutant.description.endswith(".") for mutant in MUTANTS)


@pytest.mark.parametrize(
    ("target", "old", "message"),
    [
        ("privlearn.rows.domains:Ball.clip", "no such text", "occurs 0 times"),
        ("privlearn.rows.domains:Ball.clip", "values", r"occurs \d+ times"),
        ("privlearn.rows.domains:Ball.no_such_method", "x", "nothing of that name"),
        ("privlearn.rows.domains:NoSuchClass.clip", "x", "nothing of that name"),
        ("privlearn.no_such_module:f", "x", "nothing of that name"),
        # inherited: a change there would not be undone in the class it belongs to
        ("privlearn.rows.domains:Ball.diameter", "return", "nothing of that name"),
    ],
)
def test_a_mutant_whose_text_is_gone_raises(target: str, old: str, message: str) -> None:
    mutant = Mutant(
        "rotten", "Nothing.", (Edit(target, old, "1"),), InspectionCase(lambda: "caught")
    )
    with pytest.raises(CheckError, match=message):
        mutant.check()


def test_a_second_edit_that_fails_undoes_the_first() -> None:
    clip = vars(Ball)["clip"]
    good = Edit(
        "privlearn.rows.domains:Ball.clip", "to_radius(values, norms, self.radius)", "values"
    )
    bad = Edit("privlearn.rows.domains:Box.clip", "no such text", "")
    with pytest.raises(CheckError):
        Mutant("half", "Nothing.", (good, bad), InspectionCase(lambda: "caught")).check()
    assert vars(Ball)["clip"] is clip


def test_a_function_is_changed_by_one_edit_at_a_time() -> None:
    clip = vars(Ball)["clip"]
    edit = Edit(
        "privlearn.rows.domains:Ball.clip", "to_radius(values, norms, self.radius)", "values"
    )
    with pytest.raises(CheckError, match="source cannot be read"):
        Mutant("twice", "Nothing.", (edit, edit), InspectionCase(lambda: "caught")).check()
    assert vars(Ball)["clip"] is clip


def test_the_original_comes_back_after_an_error() -> None:
    def fails() -> str:
        assert Ball(1.0, 1).clip(np.array([[3.0]])) == 3
        raise RuntimeError("in the check")

    edit = Edit(
        "privlearn.rows.domains:Ball.clip", "to_radius(values, norms, self.radius)", "values"
    )
    with pytest.raises(RuntimeError, match="in the check"):
        Mutant("fails", "Nothing.", (edit,), InspectionCase(fails)).check()
    assert Ball(1.0, 1).clip(np.array([[3.0]])) <= 1


def test_all_kinds_of_functions_can_be_changed() -> None:
    noise = NoiseSource.simulation(0)
    edits = (
        Edit("privlearn.rows.domains:PSDTrace.size", "// 2", "// 1"),  # a property
        Edit("privlearn.noise:NoiseSource.simulation", "simulated=True", "simulated=False"),
        Edit(
            "privlearn.rows.domains.matrices:svec_places",
            "np.triu_indices(dim)",
            "np.triu_indices(dim + 1)",
        ),
    )

    def look() -> str | None:
        found = PSDTrace(1.0, 2).size, NoiseSource.simulation(0).simulated
        return str((*found, len(matrices.svec_places(2, "svec")[0])))

    mutant = Mutant("several", "Nothing.", edits, InspectionCase(look))
    assert mutant.check().how == "(6, False, 6)"
    assert look() == "(3, True, 3)"
    assert noise.simulated
    assert len(matrices.svec_places(2, "svec")[0]) == 3


def test_cached_results_are_not_carried_over() -> None:
    sensitivity = (
        Edit(
            "privlearn.rows.domains:Ball.sensitivity",
            "(2 if adjacency is Adjacency.REPLACE_ONE else 1)",
            "1",
        ),
    )

    def price() -> str:  # one mechanism may keep its own
        return str(NoisySum(Ball(1.0, 1), GaussianNoise(2.0)).loss())

    before = price()
    mutant = Mutant("cheap", "Nothing.", sensitivity, InspectionCase(price))
    assert mutant.check().how != before
    assert price() == before
