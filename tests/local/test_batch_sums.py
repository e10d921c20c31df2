"""Partial sums: exact in any partition, order and tree; refused where they overlap or are torn."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privlearn.accountants import LocalAccountant
from privlearn.errors import DataError, UsersError
from privlearn.learners.local.batch_sums import BatchSums
from privlearn.learners.local.client import LocalClient
from privlearn.learners.local.form import GRID
from privlearn.learners.local.protocol import LocalBanditConfig, Model
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource

Make = Callable[..., LocalBanditConfig]
N = 24


def messages(config: LocalBanditConfig, batch: int = 0) -> list[bytes]:
    """One of each user of a batch."""
    method, users = config.method, config.users_of(batch)
    rng = np.random.default_rng(batch)
    device = LocalAccountant(ZCDP(30), users=range(method.horizon), noise=NoiseSource.simulation(1))
    client = LocalClient(config, device, users=users)
    size = method.start()["sum"].shape[1]
    arrays = {"theta": np.zeros((method.parts, min(size, method.dim)))}
    model = Model(fingerprint=config.fingerprint.hex(), batch=batch, arrays=arrays)
    arms = np.arange(users.start, users.stop) % method.n_arms
    sent = client.randomize_many(
        rng.normal(size=(len(users), method.dim)),
        arms,
        rng.random(len(users)),
        users=users,
        model=model,
    )
    length = len(sent) // len(users)
    return [sent[i : i + length] for i in range(0, len(sent), length)]


def summed(config: LocalBanditConfig, strings: Any, batch: int = 0) -> BatchSums:
    made = BatchSums(config, batch)
    made.update_many(strings)
    return made


@functools.cache
def _made(make: Make, kind: str) -> tuple[LocalBanditConfig, list[bytes]]:
    shapes: dict[str, dict[str, Any]] = {
        "ball": {},
        "projected": {"mechanism": "projected", "dim": 7},
        "joint": {"mechanism": "joint"},
        "arms": {"shared": False},
        "warm-up": {"shared": False, "warm": N},
    }
    config = make(horizon=2 * N, width=N, **shapes[kind])
    return config, messages(config)


KINDS = ["ball", "projected", "joint", "arms", "warm-up"]


# Adding up ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_partition_in_any_order_and_any_tree_is_one_pass(
    bandit: Make, kind: str, data: Any
) -> None:
    config, sent = _made(bandit, kind)
    odd = [b"", sent[0][:-1], b"\0" + sent[1][1:], sent[2][:24] + b"\xff\xff\xff\x7f" * 3]
    everything = sent[: data.draw(st.integers(0, N))] + odd
    whole = summed(config, everything)
    shuffled = data.draw(st.permutations(everything))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(shuffled)), max_size=5)))
    edges = [0, *cuts, len(shuffled)]
    parts = [summed(config, shuffled[a:b]) for a, b in pairwise(edges)]
    while len(parts) > 1:
        first = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        second = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        if data.draw(st.booleans()):
            first = BatchSums.from_bytes(config, first.to_bytes())
        parts.append(first.merge(second))
    assert parts[0].to_bytes() == whole.to_bytes()
    np.testing.assert_array_equal(parts[0].sums, whole.sums)
    np.testing.assert_array_equal(parts[0].counts, whole.counts)
    assert parts[0].rejected == whole.rejected


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_counts_are_those_of_the_messages(bandit: Make, kind: str) -> None:
    config, sent = _made(bandit, kind)
    form = config.forms[kind == "warm-up"]
    numbers = [np.frombuffer(one[24:], "<i4") * form.step for one in sent]
    wanted = np.zeros((config.method.parts, form.part.domain.size))
    for user, report in enumerate(numbers):
        estimates = form.part.estimate(report.reshape(form.parts, -1))
        if kind == "warm-up":
            wanted[user % config.method.n_arms] += estimates[0]
        else:
            wanted += estimates
    found = summed(config, sent)
    np.testing.assert_allclose(found.sums, wanted, rtol=0, atol=N * form.estimate_step)
    per_arm = N // config.method.n_arms if kind == "warm-up" else N
    assert found.counts.tolist() == [per_arm] * config.method.parts
    assert found.seen.all()


@pytest.mark.parametrize("kind", KINDS)
def test_one_message_moves_the_sums_by_at_most_the_bound(bandit: Make, kind: str) -> None:
    config, sent = _made(bandit, kind)
    for i in range(N):
        alone = summed(config, [sent[i]])
        assert (np.abs(alone.sums) <= alone.bound).all()
        assert alone.counts.max() == 1


def test_the_largest_message_moves_a_sum_by_the_bound(bandit: Make) -> None:
    config = bandit(dim=1)
    form = config.forms[False]
    for sign in (-1, 1):
        found = summed(config, form.encode(range(1), 0, np.array([[sign * form.report.limit]])))
        assert found.sums.tolist() == [[sign * found.bound]]


def test_a_million_large_messages_add_up_exactly(bandit: Make) -> None:
    n = 10**6
    config = bandit(dim=1, horizon=n, width=n)
    form = config.forms[False]
    found = summed(config, form.encode(range(n), 0, np.full((n, 1), form.report.limit)))
    assert found._sums.tolist() == [[n * GRID]]


def test_absent_users_are_not_counted(bandit: Make) -> None:
    config, sent = _made(bandit, "warm-up")
    found = summed(config, [sent[0], sent[1], sent[4]])
    assert found.counts.tolist() == [2, 1, 0, 0]
    assert np.flatnonzero(found.seen).tolist() == [0, 1, 4]


# Refusals -----------------------------------------------------------------------------------------


def test_overlapping_sums_are_refused(bandit: Make) -> None:
    config, sent = _made(bandit, "ball")
    with pytest.raises(UsersError, match="2 users are in both sums, user 3 the first"):
        summed(config, sent[:5]).merge(summed(config, sent[3:]))
    one = summed(config, sent[:5])
    with pytest.raises(UsersError, match="5 users"):
        one.merge(one)


def test_another_configuration_or_batch_is_refused(bandit: Make) -> None:
    config = bandit()
    with pytest.raises(ValueError, match="another configuration"):
        BatchSums(config, 0).merge(BatchSums(bandit(name="other"), 0))
    with pytest.raises(ValueError, match="batch 1, these are of 0"):
        BatchSums(config, 0).merge(BatchSums(config, 1))
    with pytest.raises(ValueError, match="batch = 5"):
        BatchSums(config, 5)
    with pytest.raises(ValueError, match="nothing to merge"):
        BatchSums(bandit(singly=True), 0)


def test_merging_changes_neither(bandit: Make) -> None:
    config, sent = _made(bandit, "ball")
    one, two = summed(config, sent[:5]), summed(config, sent[5:])
    before = one.to_bytes(), two.to_bytes()
    one.merge(two)
    assert (one.to_bytes(), two.to_bytes()) == before


def test_behind_the_last_batch_everything_is_late(bandit: Make) -> None:
    config, sent = _made(bandit, "ball")
    over = summed(config, sent, config.n_batches)
    assert over.rejected["late"] == N
    assert len(over.users) == 0
    assert BatchSums.from_bytes(config, over.to_bytes()).rejected == over.rejected


# Bytes --------------------------------------------------------------------------------------------


@given(st.data())
def test_torn_or_changed_bytes_are_a_clear_error(bandit: Make, data: Any) -> None:
    config, sent = _made(bandit, "ball")
    whole = summed(config, sent[:7]).to_bytes()
    changed = bytearray(whole)
    if data.draw(st.booleans()):
        changed = changed[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        changed[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DataError, match="torn or changed"):
        BatchSums.from_bytes(config, bytes(changed))


@given(st.binary(max_size=300))
def test_other_bytes_are_a_clear_error(bandit: Make, data: bytes) -> None:
    with pytest.raises(DataError):
        BatchSums.from_bytes(bandit(), data)


def sealed(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()[:16]


@pytest.mark.parametrize(
    ("at", "new", "said"),
    [
        (0, b"PLM", "begins with"),
        (3, b"\2", "version 1"),
        (4, b"\xff", r"batch = 255: must lie in 0\.\.2"),
        (8, b"\0\0", "another configuration"),
        (16 + 8 * 8, b"\xff" * 7 + b"\x7f", "larger than so many messages"),
        (16 + 8 * 8, b"\0" * 7 + b"\x80", "larger than so many messages"),
    ],
)
def test_well_sealed_nonsense_is_a_clear_error(
    bandit: Make, at: int, new: bytes, said: str
) -> None:
    config, sent = _made(bandit, "ball")
    body = bytearray(summed(config, sent[:2]).to_bytes()[:-16])
    body[at : at + len(new)] = new
    with pytest.raises(DataError, match=said):
        BatchSums.from_bytes(config, sealed(bytes(body)))
    with pytest.raises(DataError, match="not the length"):
        BatchSums.from_bytes(config, sealed(summed(config, sent).to_bytes()[:-16] + b"\0"))


def test_the_layout_of_a_tally_is_as_documented(bandit: Make) -> None:
    config, sent = _made(bandit, "ball")
    data = summed(config, [*sent[:3], b"", b""]).to_bytes()
    assert data[:8] == b"PLT\1\0\0\0\0"
    assert data[8:16] == config.fingerprint[:8]
    assert np.frombuffer(data[16:80], "<u8").tolist() == [2, 0, 0, 0, 0, 0, 0, 0]
    values = [np.frombuffer(one[24:], "<i4").astype(np.int64) for one in sent[:3]]
    np.testing.assert_array_equal(np.frombuffer(data[80:104], "<i8"), sum(values))
    assert data[104:107] == b"\xe0\0\0"
    assert len(data) == 107 + 16
