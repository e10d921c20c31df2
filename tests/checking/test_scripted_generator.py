"""The generator on a tape draws what NumPy's draws."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from scipy import stats

from privlearn.checking.scripted_generator import ScriptedGenerator, Tape, scripted_globals
from privlearn.errors import CheckError

SAMPLED: dict[str, tuple[Any, ...]] = {
    "normal": (1.0, 2.0), "laplace": (1.0, 2.0), "gumbel": (1.0, 2.0),
    "exponential": (2.0,), "uniform": (1.0, 3.0), "integers": (2, 9), "binomial": (5, 0.3),
    "random": (), "standard_normal": (),
    "standard_exponential": (), "choice": (5,),
}  # fmt: skip


def by_chance() -> ScriptedGenerator:
    return ScriptedGenerator(Tape(np.zeros(0), np.random.default_rng(1)))


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_have_numpys_laws_and_types(name: str) -> None:
    real, scripted = (getattr(rng, name) for rng in (np.random.default_rng(2), by_chance()))
    args = SAMPLED[name]
    x, y = real(*args, size=4_000), scripted(*args, size=4_000)
    assert x.dtype == y.dtype
    assert type(real(*args)) is type(scripted(*args))
    assert stats.ks_2samp(x, y).pvalue > 1e-3


def test_numbers_are_those_that_are_written_down() -> None:
    tape = Tape(np.array([1.0, np.nan, -2.0, 0.99]))
    rng = ScriptedGenerator(tape)
    assert isinstance(rng, np.random.Generator)
    assert rng.normal(3.0, [2.0, 5.0]).tolist() == [5.0, 3.0]
    assert rng.spawn(1)[0].laplace() == -2.0
    assert rng.integers(10) == 9
    assert tape.kinds == ["normal", "normal", "laplace", "uniform"]
    assert (tape.calls, tape.numbers) == ([2, 1, 1], [1.0, 0.0, -2.0, 0.99])
    assert not tape.unsupported
    rng.dirichlet([1.0, 2.0])
    assert rng.bit_generator is not None
    assert tape.unsupported == {"dirichlet", "bit_generator"}


def test_global_randomness_is_on_the_tape_and_comes_back() -> None:
    rng = ScriptedGenerator(Tape(np.full(4, 1.5)))
    with scripted_globals(rng):
        drawn = np.random.normal(), random.gauss(1.0, 2.0), np.random.default_rng().gumbel()
        own = np.random.default_rng(3).normal()
    assert drawn == (1.5, 4.0, 1.5)
    assert own == np.random.default_rng(3).normal()
    assert np.random.normal() != 1.5


def test_a_loop_that_waits_for_other_numbers_ends() -> None:
    rng = ScriptedGenerator(Tape(np.zeros(0)))
    with pytest.raises(CheckError, match="one run draws more than"):
        list(iter(rng.random, 0.9))
