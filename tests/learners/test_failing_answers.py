"""A users' side that fails for one of several users is an error, and no guarantee is printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn import PureDP
from privlearn.accountants import JointAccountant
from privlearn.errors import RowLocalityError
from privlearn.learners import PrivateArms, PrivateExperts, PrivateTest
from privlearn.reporting.audits import audit

LEARNERS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "arms": (lambda: PrivateArms(2, first_phase=10), 40, 0),
    "test": (lambda: PrivateTest(random_state=1), 200, 0),
    "experts": (lambda: PrivateExperts(2, first_block=10), 40, 2),
}


def started(name: str, path: Path) -> tuple[Any, int, Callable[[int], Any]]:
    make, users, wide = LEARNERS[name]
    accountant = JointAccountant(PureDP(9), users=range(users), ledger=path)
    table = np.random.default_rng(0).random((users, wide) if wide else users)
    return make().start(accountant), users, lambda user: table[user]


@pytest.mark.parametrize("how", ["raises", "answers for one too few"])
@pytest.mark.parametrize("name", LEARNERS)
def test_one_users_failure_is_not_everybodys(name: str, how: str, tmp_path: Path) -> None:
    """Null records for all who were asked together would move a sum by as many sensitivities."""
    learner, users, of_user = started(name, tmp_path / "ledger.db")
    asked: list[int] = []

    def respond(shown: Any) -> Any:
        here = range(len(asked), len(asked) + len(shown))
        asked.extend(here)
        if 5 in here and how == "raises":
            raise RuntimeError("of user 5")
        answers = np.array([of_user(user) for user in here])
        return answers[:-1] if 5 in here else answers

    with pytest.raises(RowLocalityError, match="respond: failed, or did not answer") as caught:
        learner.play(users, respond)
    assert "user 5" not in str(caught.value)
    assert len(set(asked)) == len(asked)  # nobody was asked twice
    with pytest.raises(RuntimeError, match="half-way"):
        learner.select()
    learner._accountant.close()
    assert "which is not covered" in " ".join(audit(tmp_path / "ledger.db").problems)


def test_a_user_who_is_asked_alone_may_fail(tmp_path: Path) -> None:
    learner, _, _ = started("arms", tmp_path / "ledger.db")

    def respond(shown: Any) -> Any:
        raise RuntimeError("of this user")

    learner.play(1, respond)
    assert learner.private_counts_.rows == 1
    assert learner.clock_ == 1
