"""An algorithm of one's own, without a learner, that goes on after its process died."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dropped_ledgers import begun, die, resumed

from privlearn.accountants import CentralAccountant, audit
from privlearn.errors import BudgetError, LedgerError
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

USERS = 700
SUMS = PrefixSum.calibrated(Ball(1.0, 2), ZCDP("0.5"), horizon=USERS)
MEAN = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.25"))


def rows(users: range) -> Rows[np.ndarray]:
    return Rows.seal(np.full((len(users), 2), 0.5), users=users)


def test_what_left_is_read_back_and_the_rest_of_a_stream_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    accountant = begun(path, ZCDP(1), USERS)
    accountant.commit(sums=SUMS, mean=MEAN)
    mean = accountant.release("mean", rows(range(USERS))).value
    stream = accountant.open("sums")
    values = [stream.append(rows(range(at, at + 50))).value for at in range(0, 200, 50)]
    die(accountant)

    accountant = resumed(path)
    accountant.commit(sums=SUMS, mean=MEAN)
    found = accountant.released("sums")
    assert [value.users for value in found] == [range(0, at + 50) for at in range(0, 200, 50)]
    for value, then in zip(found, values, strict=True):
        assert np.array_equal(value.value, then)
    assert {value.paid_by for value in found} == {stream._receipt.token_id}
    (again,) = accountant.released("mean")
    assert np.array_equal(again.value, mean)
    assert again.users == range(USERS)
    assert accountant.released("other") == []

    with pytest.raises(BudgetError, match="no longer"):
        accountant.open("sums")  # it began, and the first users were in it
    left = accountant.rest("sums", accountant.users)
    assert left == range(200, USERS)
    last = SUMS.for_last(left)
    with last.open(accountant.issue(last.loss(), users=left, label="sums")) as stream:
        more = stream.append(rows(left)).value
    assert accountant.rest("sums", accountant.users) is None
    found = accountant.released("sums")
    assert [value.users for value in found[-2:]] == [range(200), left]
    assert np.array_equal(found[-1].value, more)
    accountant.close()
    with pytest.raises(LedgerError, match="was closed"):
        accountant.released("mean")
    certificate = audit(path)
    assert certificate.problems == []
    assert certificate.spent[0].rho == pytest.approx(0.75)  # of one user: of one of the streams


def test_a_ledger_in_memory_keeps_no_values() -> None:
    accountant = CentralAccountant(ZCDP(1), users=range(9), noise=NoiseSource.simulation(0))
    with pytest.raises(LedgerError, match="kept in ledgers of files"):
        accountant.released("mean")
