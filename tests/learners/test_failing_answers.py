"""Code that answers for users and fails: its users are null, and nobody is asked in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privlearn import ZCDP
from privlearn.accountants import JointAccountant
from privlearn.learners import PrivateArms, PrivateExperts, PrivateTest
from privlearn.noise import NoiseSource

LEARNERS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "arms": (lambda: PrivateArms(2, first_phase=3), 20, 0),
    "test": (lambda: PrivateTest(random_state=1), 120, 0),
    "experts": (lambda: PrivateExperts(2, first_block=4), 20, 2),
}


@pytest.mark.parametrize("how", ["raises", "answers for one too few"])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_call_that_fails_costs_its_own_users_alone(name: str, how: str) -> None:
    make, users, wide = LEARNERS[name]
    table = np.random.default_rng(0).random((users, wide) if wide else users)
    states, asked = [], list[int]()
    for fails in (True, False):
        noise = NoiseSource.simulation(0)
        learner = make().start(JointAccountant(ZCDP(9), users=range(users), noise=noise))
        at = [0]

        def respond(shown: Any) -> Any:
            here = range(at[0], at[0] + len(shown))  # noqa: B023
            at[0] = here.stop  # noqa: B023
            asked.extend(here)
            answers = table[here.start : here.stop].copy()
            if 5 in here and fails:  # noqa: B023
                if how == "raises":
                    raise RuntimeError("of user 5")
                return answers[:-1]
            if 5 in here:
                answers[:] = np.nan
            return answers

        learner.play(users, respond)
        states.append((learner.public_state(), learner.private_counts_.rows))
    assert asked == [*range(users)] * 2
    assert states[0] == states[1]
