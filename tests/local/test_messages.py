"""Messages: round trip, layout byte by byte, and what a filter does with bytes of any kind."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from privlearn.accountants import LocalAccountant
from privlearn.errors import DataError
from privlearn.learners.local.form import GRID
from privlearn.learners.local.messages import REJECTION_REASONS, Message, MessageFilter
from privlearn.learners.local.protocol import LocalBanditConfig, Model
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.rows import Rows

Make = Callable[..., LocalBanditConfig]


def sphere(config: LocalBanditConfig, n: int, seed: int = 0) -> Any:
    """Reports that the mechanism could have made, (n, size)."""
    form = config.forms[False]
    points = np.random.default_rng(seed).normal(size=(n * form.parts, form.part.size))
    points *= form.report.limit / np.linalg.norm(points, axis=1)[:, None]
    return points.reshape(n, -1)


def message_filter(config: LocalBanditConfig, batch: int = 0) -> MessageFilter:
    form = config.forms[config.warming(batch)]
    return MessageFilter(form, config.users_of(batch), batch)


def accepted(into: MessageFilter, data: Any, within: range | None = None) -> tuple[list[int], Any]:
    users: list[int] = []
    total = np.zeros((into.form.parts, into.form.part.domain.size))
    for found, estimates in into.accept(data, within):
        users += found.tolist()
        total += estimates.sum(axis=0)
    return users, total


def count(into: MessageFilter, reason: str) -> int:
    others = {name: n for name, n in into.rejected.items() if name != reason and n}
    assert not others
    return into.rejected[reason]  # type: ignore[index]


# The configuration --------------------------------------------------------------------------------


def test_a_configuration_comes_back_from_its_json(bandit: Make) -> None:
    config = bandit(shared=False, warm=5)
    again = LocalBanditConfig.model_validate_json(config.model_dump_json())
    assert again == config
    assert type(again.method) is type(config.method)
    assert again.fingerprint == config.fingerprint
    assert len(config.fingerprint) == 32


def test_every_number_and_the_name_change_the_fingerprint(bandit: Make) -> None:
    changed = [
        bandit(),
        bandit(name="other"),
        bandit(epsilon=2.1),
        bandit(context_bound=2.0),
        bandit(horizon=21),
        bandit(reward_high=2.0),
    ]
    assert len({config.fingerprint for config in changed}) == len(changed)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1.0}, "greater than 0"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"dim": 0}, "dim"),
        ({"n_arms": 0}, "n_arms"),
        ({"horizon": 0}, "horizon"),
        ({"horizon": 2**32}, "horizon"),
        ({"delta": 1.0}, "delta"),
        ({"context_bound": 0.0}, "context_bound"),
        ({"context_bound": float("inf")}, "context_bound"),
        ({"reward_low": 1.0}, "reward_low = 1.0, reward_high = 1.0: reward_low must be below"),
        ({"warm": 5}, "warm_up = 5"),
        ({"warm": 3, "shared": False}, "warm_up = 3"),
        ({"width": 30, "singly": True, "unknown": 1}, "unknown"),
    ],
)
def test_public_numbers_out_of_range_are_named(
    bandit: Make, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        bandit(**wrong)


def test_an_unknown_kind_is_named(bandit: Make) -> None:
    form = json.loads(bandit().model_dump_json())
    form["method"]["kind"] = "nobody"
    with pytest.raises(ValidationError, match=r"kind = 'nobody': must be one of .*running-mean"):
        LocalBanditConfig.model_validate(form)


def test_a_batch_that_no_server_could_take_note_of_is_refused(bandit: Make) -> None:
    said = f"users would be in one batch .* at most {2**28}"
    for wrong in ({"singly": True, "horizon": 2**32 - 1}, {"width": 2**28 + 1}):
        with pytest.raises(ValidationError, match=said):
            bandit(**({"horizon": 2**29} | wrong))
    assert bandit(horizon=2**32 - 1, width=2**28).n_batches == 16
    assert bandit(horizon=2**28, singly=True).n_batches == 2**28


def test_batches_of_users(bandit: Make) -> None:
    config = bandit(width=6, horizon=20)
    assert [config.users_of(b) for b in range(config.n_batches)] == [
        range(0, 6),
        range(6, 12),
        range(12, 18),
        range(18, 20),
    ]
    assert [config.batch_of(u) for u in (0, 5, 6, 17, 18, 19)] == [0, 0, 1, 2, 3, 3]
    for wrong in (-1, 20):
        with pytest.raises(ValueError, match=f"user = {wrong}: must lie in 0..19"):
            config.batch_of(wrong)
    with pytest.raises(ValueError, match=r"batch = 4: must lie in 0\.\.3"):
        config.users_of(4)


def test_a_model_comes_back_from_its_json() -> None:
    arrays = {"theta": np.array([[1 / 3, -2.0]]), "none": np.zeros((0, 4))}
    again = Model.model_validate_json(
        Model(fingerprint="ab", batch=3, arrays=arrays).model_dump_json()
    )
    assert (again.fingerprint, again.batch) == ("ab", 3)
    for name, array in arrays.items():
        assert again.arrays[name].shape == array.shape
        np.testing.assert_array_equal(again.arrays[name], array)


@pytest.mark.parametrize(
    "value", [{"shape": [2]}, {"shape": [2], "values": [1.0]}, "x", None, [np.inf]]
)
def test_a_model_with_an_array_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        Model.model_validate({"fingerprint": "ab", "batch": 0, "arrays": {"theta": value}})


# Layout -------------------------------------------------------------------------------------------


def test_the_layout_is_as_documented() -> None:
    message = Message(batch=258, fingerprint="0102030405060708", user=2**33, values=(1, -2, GRID))
    assert message.to_bytes() == (
        b"PLM\x01"
        + b"\x02\x01\x00\x00"
        + bytes(range(1, 9))
        + struct.pack("<Q", 2**33)
        + struct.pack("<iii", 1, -2, GRID)
    )


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=8, max_size=8),
    st.lists(st.integers(-GRID, GRID), max_size=20),
)
def test_a_message_comes_back(batch: int, user: int, key: bytes, values: list[int]) -> None:
    message = Message(batch=batch, fingerprint=key.hex(), user=user, values=tuple(values))
    assert Message.from_bytes(message.to_bytes()) == message
    assert Message.model_validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize(
    "change",
    [
        {"batch": -1},
        {"batch": 2**32},
        {"user": -1},
        {"user": 2**64},
        {"fingerprint": "01"},
        {"fingerprint": "Z" * 16},
        {"values": (GRID + 1,)},
        {"values": (0.5,)},
        {"version": 2},
    ],
)
def test_fields_that_the_layout_cannot_hold_are_refused(change: dict[str, Any]) -> None:
    fields = {"batch": 0, "fingerprint": "0" * 16, "user": 0, "values": (1,)}
    with pytest.raises(ValidationError):
        Message(**{**fields, **change})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes"),
        (b"PLM\x01" + bytes(19), "23 bytes"),
        (b"PLM\x01" + bytes(22), "26 bytes"),
        (b"PLM\x02" + bytes(20), "version 1"),
        (b"PLT\x01" + bytes(20), "begins with"),
        (b"PLM\x01" + bytes(20) + struct.pack("<i", GRID + 1), "beyond the grid"),
        (b"PLM\x01" + bytes(20) + struct.pack("<i", -(2**31)), "beyond the grid"),
    ],
)
def test_other_bytes_are_no_message(data: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Message.from_bytes(data)


def test_many_messages_at_once_are_the_same_bytes(bandit: Make) -> None:
    config = bandit()
    form, reports = config.forms[False], sphere(config, 5)
    together = form.encode(range(5, 10), 1, reports)
    apart = [
        Message(
            batch=1,
            fingerprint=config.fingerprint.hex()[:16],
            user=5 + i,
            values=tuple(form.to_grid(reports[i : i + 1])[0].tolist()),
        ).to_bytes()
        for i in range(5)
    ]
    assert together == b"".join(apart)
    assert len(apart[0]) == 24 + 4 * 3


@given(st.lists(st.floats(allow_nan=False), min_size=3, max_size=3))
def test_reports_are_put_on_the_nearest_grid_point_within_the_limit(
    bandit: Make, numbers: list[float]
) -> None:
    form = bandit().forms[False]
    steps = form.to_grid(np.array([numbers]))[0]
    assert (np.abs(steps.astype(int)) <= GRID).all()
    limit = form.report.limit
    np.testing.assert_allclose(
        steps * form.step, np.clip(numbers, -limit, limit), rtol=0, atol=0.5001 * form.step
    )


# What comes in ------------------------------------------------------------------------------------


def test_good_messages_pass_and_their_numbers_are_exact(bandit: Make) -> None:
    config = bandit()
    reports, into = sphere(config, 5), message_filter(config, 1)
    data = into.form.encode(range(5, 10), 1, reports)
    users, total = accepted(into, data)
    assert users == [5, 6, 7, 8, 9]
    np.testing.assert_array_equal(total[0], into.form.to_grid(reports).sum(axis=0))
    assert into.seen.all()
    assert not any(into.rejected.values())


@pytest.mark.parametrize("mechanism", ["ball", "projected", "joint"])
def test_what_is_added_up_is_the_estimate_within_half_a_step(bandit: Make, mechanism: str) -> None:
    config = bandit(mechanism=mechanism, dim=6)
    into = message_filter(config)
    part, users = into.form.part, range(5)
    phone = LocalAccountant(ZCDP(30), users=users, noise=NoiseSource.simulation(3))
    rows = np.full((5, 1, 7) if mechanism == "joint" else (5, 6), 0.3)
    token = phone.issue(part.loss(), users=users, label="messages")
    reports = part.release(Rows.seal(rows, users=users), token).value
    grid = np.asarray(into.form.to_grid(reports) * into.form.step)
    wanted = into.form.part.estimate(grid)
    ((_, found),) = into.accept(into.form.encode(range(5), 0, reports))
    np.testing.assert_allclose(
        found[:, 0] * into.form.estimate_step,
        wanted,
        rtol=0,
        atol=0.5001 * into.form.estimate_step,
    )


def altered(data: bytes, form: str, offset: int, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("form", "offset", "value", "reason"),
    [
        ("<B", 0, 0, "malformed"),
        ("<B", 3, 2, "malformed"),
        ("<I", 4, 0, "late"),
        ("<I", 4, 2, "early"),
        ("<I", 4, 2**32 - 1, "early"),
        ("<B", 8, 300 % 256, "other configuration"),
        ("<Q", 16, 4, "other user"),
        ("<Q", 16, 10, "other user"),
        ("<Q", 16, 2**63, "other user"),
        ("<Q", 16, 2**64 - 1, "other user"),
        ("<i", 24, GRID + 1, "out of range"),
        ("<i", 24, -GRID - 1, "out of range"),
        ("<i", 24, -(2**31), "out of range"),
        ("<i", 24, 2**31 - 1, "out of range"),
    ],
)
def test_each_wrong_field_has_its_reason(
    bandit: Make, form: str, offset: int, value: int, reason: str
) -> None:
    config = bandit()
    for together in (True, False):
        into = message_filter(config, 1)
        data = into.form.encode(range(5, 7), 1, sphere(config, 2))
        bad, good = altered(data[:36], form, offset, value), data[36:]
        users, _ = accepted(into, bad + good if together else [bad, good])
        assert users == [6]
        assert count(into, reason) == 1


def test_numbers_that_the_mechanism_cannot_put_out_are_implausible(bandit: Make) -> None:
    config = bandit()
    into, reports = message_filter(config), sphere(config, 3)
    reports[1] *= 0.9
    users, _ = accepted(into, into.form.encode(range(3), 0, reports))
    assert users == [0, 2]
    assert count(into, "implausible") == 1


def test_one_implausible_part_of_several_is_enough(bandit: Make) -> None:
    config = bandit(shared=False, n_arms=2)
    into, reports = message_filter(config), sphere(config, 2)
    reports[1, 3:] = 0.0
    assert accepted(into, into.form.encode(range(2), 0, reports))[0] == [0]
    assert count(into, "implausible") == 1


def test_the_first_message_of_a_user_counts_and_no_other(bandit: Make) -> None:
    config = bandit()
    into = message_filter(config)
    first, second = (into.form.encode(range(2), 0, sphere(config, 2, seed)) for seed in (1, 2))
    users, total = accepted(into, first + second + first)
    assert users == [0, 1]
    np.testing.assert_array_equal(total, accepted(message_filter(config), first)[1])
    assert accepted(into, [second[:36], first[36:]])[0] == []
    assert count(into, "duplicate") == 6


def test_in_any_order_the_first_message_of_each_user_counts(bandit: Make) -> None:
    config = bandit(horizon=50, width=50)
    rng = np.random.default_rng(5)
    into, reports = message_filter(config), sphere(config, 300)
    named = rng.integers(0, 50, 300)
    sent = [
        into.form.encode(range(user, user + 1), 0, reports[i : i + 1])
        for i, user in enumerate(named.tolist())
    ]
    firsts = np.sort(np.unique(named[:200], return_index=True)[1])
    users, total = accepted(into, sent[:200])
    assert users == named[firsts].tolist()
    # the same, one by one
    once = message_filter(config)
    parts = [accepted(once, [sent[i]]) for i in range(200)]
    assert [user for found, _ in parts for user in found] == users
    np.testing.assert_array_equal(sum(part for _, part in parts), total)
    assert set(accepted(into, sent[200:])[0]) == set(named[200:].tolist()) - set(users)


def test_buffers_of_any_kind_are_read(bandit: Make) -> None:
    config = bandit()
    data = message_filter(config).form.encode(range(3), 0, sphere(config, 3))
    spread = np.repeat(np.frombuffer(data, dtype=np.uint8), 2).data[::2]
    assert not spread.contiguous
    words = np.frombuffer(data, dtype="<i4").copy().data
    for whole in (spread, words, bytearray(data)):
        assert accepted(message_filter(config), whole)[0] == [0, 1, 2]
        assert accepted(message_filter(config), [whole[: len(whole) // 3]])[0] == [0]
    assert Message.from_bytes(spread[:36]).user == 0
    into = message_filter(config)
    assert accepted(into, [spread[:30], spread[:0], words[:2]])[0] == []
    assert count(into, "malformed") == 3
    assert accepted(into, spread[:70])[0] == [0]


def test_a_rejected_message_does_not_use_up_its_user(bandit: Make) -> None:
    config = bandit()
    into = message_filter(config)
    good = into.form.encode(range(1), 0, sphere(config, 1))
    assert accepted(into, altered(good, "<i", 24, GRID + 1) + good)[0] == [0]


def test_users_of_another_machine_are_rejected(bandit: Make) -> None:
    config = bandit()
    into = message_filter(config)
    data = into.form.encode(range(5), 0, sphere(config, 5))
    assert accepted(into, data, range(1, 3))[0] == [1, 2]
    assert count(into, "other user") == 3


def test_torn_bytes_are_one_malformed_message(bandit: Make) -> None:
    config = bandit()
    into = message_filter(config)
    data = into.form.encode(range(3), 0, sphere(config, 3))
    assert accepted(into, data[:-1])[0] == [0, 1]
    assert count(into, "malformed") == 1


def test_a_torn_message_among_strings_garbles_no_other(bandit: Make) -> None:
    config = bandit()
    into = message_filter(config)
    data = into.form.encode(range(3), 0, sphere(config, 3))
    strings = [data[:36], data[36:71], data[72:], b"", data[:24], data[:36] + b"x"]
    assert accepted(into, strings)[0] == [0, 2]
    assert count(into, "malformed") == 4


def test_messages_of_the_other_length_are_late_or_early(bandit: Make) -> None:
    config = bandit(shared=False, warm=5)
    warm, later = message_filter(config, 0), message_filter(config, 1)
    short = warm.form.encode(range(1), 0, sphere(config, 1)[:, :3])
    long = later.form.encode(range(5, 6), 1, sphere(config, 1))
    assert accepted(later, [short])[0] == []
    assert count(later, "late") == 1
    assert accepted(warm, [long])[0] == []
    assert count(warm, "early") == 1
    foreign = altered(short, "<Q", 8, 7)
    assert accepted(later, [foreign])[0] == []
    assert later.rejected["other configuration"] == 1


def fuzzed(data: bytes) -> st.SearchStrategy[bytes]:
    """Bytes of any kind: random ones, and valid ones that were cut, changed or joined."""

    @st.composite
    def flipped(draw: Any) -> bytes:
        changed = bytearray(data)
        for _ in range(draw(st.integers(1, 8))):
            changed[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return bytes(changed)

    @st.composite
    def extreme(draw: Any) -> bytes:
        odd = st.sampled_from([0, 1, -1, GRID, -GRID, GRID + 1, 2**31 - 1, -(2**31), 2**24])
        head = data[:24] if draw(st.booleans()) else draw(st.binary(min_size=24, max_size=24))
        return head + struct.pack("<3i", draw(odd), draw(odd), draw(odd))

    cut = st.integers(0, len(data)).map(lambda n: data[n:])
    return st.one_of(st.binary(max_size=200), flipped(), extreme(), cut)


@given(st.data())
def test_no_bytes_raise_and_all_that_passes_is_within_the_bound(bandit: Make, data: Any) -> None:
    config = bandit()
    into = message_filter(config)
    valid = into.form.encode(range(5), 0, sphere(config, 5))
    strings = data.draw(st.lists(fuzzed(valid), max_size=6))
    together = data.draw(st.booleans())
    before = 0
    for sent in [b"".join(strings)] if together else [[one] for one in strings]:
        users, total = accepted(into, sent)
        assert (np.abs(total) <= GRID * len(users)).all()
        assert set(users) <= set(range(5))
        before += len(users)
    assert before == np.count_nonzero(into.seen)
    assert set(into.rejected) == set(REJECTION_REASONS)
