"""Sums of rows that are made apart: bit for bit the one of all rows, sealed, each row once."""

from __future__ import annotations

import copy
import json
import pickle
import secrets
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.errors import (
    LossExceedsTokenError,
    ProvenanceError,
    RowLocalityError,
    SealedError,
    TokenSpentError,
    UsersError,
)
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import CrossPolytope, NoisySum, OneOfK, ReportNoisyMax
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows import PartialSum, Rows, merge, partial_sums
from privlearn.rows.domains import Ball, Box, PSDTrace
from privlearn.values.adjacency import Adjacency

USERS = 400
MECHANISMS: list[NoisySum[Any]] = [
    NoisySum(Ball(1.0, 15), GaussianNoise(1 / 0.3)),
    NoisySum(Ball(1.0, 15, "l1"), LaplaceNoise(0.7)),
    NoisySum(Box(-0.3, 1.1, 15), GaussianNoise(5.0)),
]


def block(seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = np.random.default_rng(seed).normal(size=(USERS, 15)) / 3
    values[::50] = np.nan
    return values


def rows_of(start: int, stop: int) -> Rows[Any]:
    return Rows.seal(block()[start:stop], users=range(start, stop))


def account(users: int = USERS, **more: Any) -> CentralAccountant[ZCDP]:
    noise = NoiseSource.simulation(1)
    return CentralAccountant(ZCDP(100), users=range(users), noise=noise, **more)


def token_for(mechanism: NoisySum[Any], book: CentralAccountant[ZCDP]) -> Any:
    return book.issue(mechanism.loss(), users=book.users, label="sum")


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_merged_parts_are_the_sum_of_all_bit_for_bit(mechanism: NoisySum[Any]) -> None:
    whole = mechanism.release(rows_of(0, USERS), token_for(mechanism, account())).value
    rng = np.random.default_rng(2)
    for _ in range(3):
        cuts = [0, *sorted(rng.choice(np.arange(1, USERS), 12, replace=False).tolist()), USERS]
        parts = [mechanism.partial(rows_of(a, b)) for a, b in pairwise(cuts)]
        total = merge(*[parts[i] for i in rng.permutation(len(parts))])
        assert (total.users, total.count) == ((range(USERS),), USERS)
        merged = mechanism.release_partial(total, token_for(mechanism, account())).value
        assert merged.tobytes() == whole.tobytes()


def test_sums_in_doubles_would_differ() -> None:
    """The broken variant: what is merged here would not be the same in doubles."""
    values = MECHANISMS[0].domain.clip(np.nan_to_num(block()))
    order = np.random.default_rng(3).permutation(USERS)
    assert (np.add.reduce(values[order], axis=0) != np.add.reduce(values, axis=0)).any()


def test_matrices() -> None:
    mechanism = NoisySum(PSDTrace(1.0, 3), GaussianNoise(2.0))
    factors = np.random.default_rng(1).normal(size=(40, 2, 3))
    rows = [Rows.seal(factors[a : a + 10], users=range(a, a + 10)) for a in range(0, 40, 10)]
    total = merge(*map(mechanism.partial, rows))
    one = mechanism.release_partial(total, token_for(mechanism, account(40))).value
    joined = Rows.concat(rows)
    assert (one == mechanism.release(joined, token_for(mechanism, account(40))).value).all()


def test_sums_beyond_64_bits() -> None:
    mechanism = NoisySum(Box(-1.0, 1.0, 1), GaussianNoise(1e-6))  # 2^60 steps and more each
    users = 64
    parts = [
        mechanism.partial(Rows.seal(np.ones((1, 1)), users=range(i, i + 1))) for i in range(users)
    ]
    released = mechanism.release_partial(merge(*parts), token_of(mechanism, users)).value
    assert released == pytest.approx(users, abs=1e-4)


def token_of(mechanism: NoisySum[Any], users: int) -> Any:
    book = CentralAccountant(ZCDP(10**14), users=range(users), noise=NoiseSource.simulation(0))
    return book.issue(mechanism.loss(), users=book.users, label="sum")


def test_a_row_counts_once() -> None:
    mechanism = MECHANISMS[0]
    one, two = mechanism.partial(rows_of(0, 10)), mechanism.partial(rows_of(9, 20))
    with pytest.raises(UsersError, match=r"users 9\.\.9 are in two partial sums"):
        merge(one, two)
    with pytest.raises(UsersError, match=r"users 0\.\.9 are in two"):
        merge(one, mechanism.partial(rows_of(20, 30)), one)


def test_other_parameters_are_named() -> None:
    one = MECHANISMS[0].partial(rows_of(0, 10))
    narrower = NoisySum(Ball(0.5, 15), GaussianNoise(1 / 0.3)).partial(rows_of(10, 20))
    with pytest.raises(ValueError, match=r"domain\.radius = 1\.0 and 0\.5"):
        merge(one, narrower)
    finer = NoisySum(Ball(1.0, 15), GaussianNoise(4.0)).partial(rows_of(10, 20))
    with pytest.raises(ValueError, match=r"exact\.grid\.scale = "):
        merge(one, finer)
    with pytest.raises(ValueError, match="mechanism = "):
        merge(
            one, NoisySum(Ball(1.0, 15), GaussianNoise(1 / 0.3), name="x").partial(rows_of(10, 20))
        )
    token = token_for(MECHANISMS[0], account())
    with pytest.raises(ValueError, match="total: has domain"):
        MECHANISMS[0].release_partial(narrower, token)
    MECHANISMS[0].release_partial(one, token)  # nothing was spent by what was refused


def test_what_cannot_be_merged() -> None:
    with pytest.raises(TypeError, match=r"partials = \(\)"):
        merge()
    with pytest.raises(TypeError, match=r"partials = \(Rows\)"):
        merge(rows_of(0, 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rows: must be Rows"):
        MECHANISMS[0].partial(block())  # type: ignore[arg-type]


class _OwnDomain:
    """Somebody's domain, in doubles."""

    size = 1

    def clip(self, rows: Any) -> Any:
        return np.clip(rows, 0, 1)

    def null(self) -> Any:
        return np.zeros(1)

    def sensitivity(self, adjacency: Adjacency, norm: Any = "l2") -> float:
        return 1.0

    def decode(self, total: Any) -> Any:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "own"}


def test_sums_in_doubles_are_not_merged() -> None:
    mechanism = NoisySum(_OwnDomain(), GaussianNoise(1.0))
    with pytest.raises(ValueError, match="in doubles"):
        mechanism.partial(Rows.seal(np.zeros((2, 1)), users=range(2)))


def test_users_must_be_the_tokens() -> None:
    mechanism, book = MECHANISMS[0], account(20)
    token = token_for(mechanism, book)
    for start, stop in ((15, 25), (20, 30)):
        with pytest.raises(UsersError, match=r"users 0\.\.19 are left"):
            mechanism.release_partial(mechanism.partial(rows_of(start, stop)), token)
    with pytest.raises(TypeError, match="total: must be a PartialSum"):
        mechanism.release_partial(rows_of(0, 20), token)  # type: ignore[arg-type]
    mechanism.release_partial(mechanism.partial(rows_of(0, 20)), token)
    with pytest.raises(TokenSpentError):
        mechanism.release_partial(mechanism.partial(rows_of(0, 20)), token)


def test_under_add_remove_everybody_is_opened_at_once() -> None:
    mechanism = NoisySum(Ball(1.0, 15), GaussianNoise(3.0), Adjacency.ADD_REMOVE)
    token = token_for(mechanism, account(20, adjacency=Adjacency.ADD_REMOVE))
    most = merge(mechanism.partial(rows_of(0, 9)), mechanism.partial(rows_of(10, 20)))
    with pytest.raises(UsersError, match="at once"):
        mechanism.release_partial(most, token)
    mechanism.release_partial(merge(most, mechanism.partial(rows_of(9, 10))), token)


def test_a_token_that_is_too_small_stays() -> None:
    mechanism, book = MECHANISMS[0], account(20)
    token = book.issue(ZCDP("1e-9"), users=book.users, label="sum")
    with pytest.raises(LossExceedsTokenError):
        mechanism.release_partial(mechanism.partial(rows_of(0, 20)), token)


def test_nobody_looks_inside() -> None:
    partial = MECHANISMS[0].partial(rows_of(0, 3))
    assert repr(partial) == str(partial) == "PartialSum(users=0..2, sealed)"
    looks: list[Any] = [np.asarray, list, copy.copy, copy.deepcopy, pickle.dumps, float, hash]
    for look in looks:
        with pytest.raises(SealedError):
            look(partial)
    assert not any("total" in name and not name.startswith("_") for name in dir(partial))


def test_between_machines_it_is_encrypted() -> None:
    mechanism, key = MECHANISMS[0], secrets.token_bytes(32)
    parts = [mechanism.partial(rows_of(0, 150)), mechanism.partial(rows_of(150, USERS))]
    sent = [part.to_bytes(key) for part in parts]
    assert b"users" not in sent[0]
    assert parts[0].to_bytes(key) != sent[0]  # or equal sums could be told
    total = merge(*(PartialSum.from_bytes(data, key) for data in sent))
    merged = mechanism.release_partial(total, token_for(mechanism, account())).value
    whole = mechanism.release(rows_of(0, USERS), token_for(mechanism, account())).value
    assert (merged == whole).all()
    for changed in (sent[0][:-1], bytes([sent[0][0] ^ 1]) + sent[0][1:], b"", b"x" * 40):
        with pytest.raises(ValueError, match="no partial sum under this key"):
            PartialSum.from_bytes(changed, key)
    with pytest.raises(ValueError, match="no partial sum under this key"):
        PartialSum.from_bytes(sent[0], secrets.token_bytes(32))
    with pytest.raises(ValueError, match="must be 32 bytes"):
        parts[0].to_bytes(b"secret")


def test_a_joint_guarantee_takes_rows_of_its_billboard_only() -> None:
    mechanism = MECHANISMS[0]
    book = JointAccountant(ZCDP(100), users=range(20), noise=NoiseSource.simulation(0))
    token = book.issue(mechanism.loss(), users=range(20), label="sum")
    with pytest.raises(ProvenanceError, match="billboard"):
        mechanism.release_partial(mechanism.partial(rows_of(0, 20)), token)


def test_a_function_over_several_rows_is_told_when_it_is_paid_for() -> None:
    mechanism, book = MECHANISMS[0], account(20)
    rows = rows_of(1, 20).map_rows(lambda values: values - np.nanmean(values, axis=0))
    partial = mechanism.partial(rows)
    with pytest.raises(RowLocalityError):
        mechanism.release_partial(partial, token_for(mechanism, book))
    assert book.ledger.entries[-1].outcome == "uncovered"  # type: ignore[union-attr]


def test_another_machine_is_told_so_when_it_is_paid_for() -> None:
    """Whether a function fails its check may depend on one row: sending says nothing of it."""
    mechanism, key = MECHANISMS[0], bytes(32)
    calls: list[int] = []

    def remembers(values: Any) -> Any:
        calls.append(1)
        return values + len(calls) * (values[:, :1] == 7.0).any()

    sent = []
    for entry in (0.0, 7.0):
        values = np.zeros((20, 15))
        values[3] = entry
        rows = Rows.seal(values, users=range(20)).map_rows(remembers)
        sent.append(mechanism.partial(rows).to_bytes(key))
    assert len(sent[0]) == len(sent[1])
    fine, failed = (PartialSum.from_bytes(data, key) for data in sent)
    mechanism.release_partial(fine, token_for(mechanism, account(20)))
    total, book = merge(failed, mechanism.partial(rows_of(20, 21))), account(21)
    with pytest.raises(RowLocalityError, match=r"remembers.*on the machine"):
        mechanism.release_partial(total, token_for(mechanism, book))
    assert book.ledger.entries[-1].outcome == "uncovered"  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0.0, 1e-9, -1e-3, 0.5, np.nan])
def test_bytes_are_as_many_whatever_the_rows(size: float) -> None:
    mechanism, key = MECHANISMS[0], bytes(32)

    def sent(value: float) -> int:
        return len(
            mechanism.partial(Rows.seal(np.full((9, 15), value), users=range(9))).to_bytes(key)
        )

    assert sent(size) == sent(-0.25)


def _forged(**other: Any) -> PartialSum:
    """Of somebody who has the key."""
    key = bytes(32)
    cipher, head = partial_sums.cipher_of(key), partial_sums._FORMAT
    data = MECHANISMS[0].partial(rows_of(0, 10)).to_bytes(key)
    body = json.loads(cipher.decrypt(data[:12], data[12:], head)) | other
    return PartialSum.from_bytes(
        data[:12] + cipher.encrypt(data[:12], json.dumps(body).encode(), head), key
    )


@pytest.mark.parametrize(
    "other",
    [
        {"users": []},
        {"users": [[5, 3]]},
        {"users": [[-5, 5]]},
        {"users": [[0, 6], [4, 10]]},
        {"users": [[0, 10], [2, 3]]},
        {"users": [[0, True]]},
        {"total": [1.5] * 15},
        {"total": [10**400] * 15},
        {"total": ["nan"]},
        {"functions": "ab"},
        {"functions": [1]},
        {"terms": []},
        {"more": 1},
        {"admitted": "me"},
        {"admitted": {"registry": 3, "pooled": 0}},
        {"admitted": {"registry": None, "pooled": 2}},
    ],
    ids=repr,
)
def test_other_bytes_under_the_key_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no partial sum"):
        _forged(**other)


def test_a_sum_of_another_length_is_refused_before_it_is_paid_for() -> None:
    mechanism, book = MECHANISMS[0], account(10)
    token = token_for(mechanism, book)
    with pytest.raises(ValueError, match=r"sum of shape \(0,\), must be 15"):
        mechanism.release_partial(_forged(total=[]), token)
    mechanism.release_partial(_forged(), token)


def test_a_sum_cannot_be_made_to_say_that_it_was_clipped_in_another_way() -> None:
    wide = NoisySum(Ball(50.0, 15), GaussianNoise(1 / 0.3)).partial(rows_of(0, 10))
    narrow = MECHANISMS[0].partial(rows_of(0, 10)).terms
    for name in ("domain", "exact"):
        wide.terms[name].update(narrow[name])
    with pytest.raises(ValueError, match=r"total: has domain\.radius = 50\.0"):
        MECHANISMS[0].release_partial(wide, token_for(MECHANISMS[0], account()))


class _Lookalike:
    """Somebody's domain that writes what a shipped one would, and clips to more."""

    size = 15

    def __init__(self) -> None:
        like = Ball(1.0, 15)
        self.clip, self.null, self.decode, self.to_dict = (
            like.clip,
            like.null,
            like.decode,
            like.to_dict,
        )
        self.sensitivity, self.null_integers = like.sensitivity, like.null_integers
        self.integer_bound = like.integer_bound

    def integers(self, block: Any, grid: Any) -> Any:
        return np.full((len(block), 15), 2**60)


def test_somebodys_domain_does_not_pass_for_a_shipped_one() -> None:
    total = NoisySum(_Lookalike(), GaussianNoise(1 / 0.3)).partial(rows_of(0, 10))
    with pytest.raises(ValueError, match="has shipped = False, must be True"):
        MECHANISMS[0].release_partial(total, token_for(MECHANISMS[0], account()))


def test_what_a_mechanism_does_to_an_opened_sum_stays_there() -> None:
    partial = MECHANISMS[0].partial(rows_of(0, 10))
    before = PartialSum._opened(partial)
    PartialSum._opened(partial)[:] = 2**60
    assert (PartialSum._opened(partial) == before).all()


def test_functions_are_named_before_the_sum_is_opened() -> None:
    mechanism = MECHANISMS[0]
    book = account(20, ledger=Ledger.memory())
    rows = rows_of(0, 20).map_rows(lambda values: values / 2)
    mechanism.release_partial(mechanism.partial(rows), token_for(mechanism, book))
    kinds = [entry.entry for entry in book.ledger.entries]
    assert kinds.index("spend") < kinds.index("functions") < kinds.index("retire")


def arms_of(start: int, stop: int) -> Rows[Any]:
    arms = np.arange(USERS) % 3
    return Rows.seal((block()[start:stop], arms[start:stop]), users=range(start, stop))


CHOICE = ReportNoisyMax(CrossPolytope(15), 1.0, 4.0, top=3)
ONE_OF_K: list[OneOfK[Any]] = [
    OneOfK(MECHANISMS[0], 3),
    OneOfK(CHOICE, 3),
]


@pytest.mark.parametrize("mechanism", [CHOICE, *ONE_OF_K], ids=repr)
def test_choices_and_arms_are_made_from_merged_sums_too(mechanism: Any) -> None:
    rows = rows_of if mechanism is CHOICE else arms_of
    parts = [mechanism.partial(rows(a, a + 100)) for a in (300, 0, 200, 100)]
    merged = mechanism.release_partial(merge(*parts), token_for(mechanism, account()))
    whole = mechanism.release(rows(0, USERS), token_for(mechanism, account()))
    assert (merged.value == whole.value).all()
    other = NoisySum(Ball(1.0, 15), GaussianNoise(9.0)).partial(rows_of(0, USERS))
    token = token_for(mechanism, account())
    with pytest.raises(ValueError, match="total: has"):
        mechanism.release_partial(other, token)
