"""The device: who pays, what bad rows become, and that a message is all that depends on a row."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, LocalAccountant
from privlearn.contract.protocols import Plan
from privlearn.errors import (
    AdjacencyError,
    InsufficientBudgetError,
    TokenSpentError,
    UsersError,
)
from privlearn.learners.ldp_sgd import LDPSGD
from privlearn.learners.local import client as local_client
from privlearn.learners.local.client import LocalClient
from privlearn.learners.local.messages import Message
from privlearn.learners.local.protocol import LocalBanditConfig, Model
from privlearn.learners.local.server import LocalServer
from privlearn.ledger import Ledger
from privlearn.ledger.entries import IssueEntry, RetireEntry, SpendEntry
from privlearn.losses.budgets import GaussianDP, PureDP
from privlearn.mechanisms import report_streams
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.rows.inputs import block_of
from privlearn.values.adjacency import Adjacency, Trust

Make = Callable[..., LocalBanditConfig]


def device(
    config: LocalBanditConfig, users: range, seed: int = 1, **more: Any
) -> LocalClient[PureDP]:
    noise = NoiseSource.simulation(seed)
    phone = LocalAccountant(PureDP(2), users=users, noise=noise, **more)
    return LocalClient(config, phone)


def published(config: LocalBanditConfig, batch: int = 0) -> Model:
    rng = np.random.default_rng(7)
    arrays = {"theta": rng.normal(size=(config.method.parts, config.method.dim))}
    return Model(fingerprint=config.fingerprint.hex(), batch=batch, arrays=arrays)


X = np.array([0.6, 0.0, -0.8])
MANY = np.random.default_rng(3).normal(size=(5, 4, 3))


# Choosing -----------------------------------------------------------------------------------------


def test_the_arm_of_the_largest_score_is_pulled(bandit: Make) -> None:
    config = bandit()
    model, client = published(config), device(config, range(5))
    wanted = np.argmax(MANY @ model.arrays["theta"][0], axis=1)
    assert client.choose_many(MANY, model, users=range(5)).tolist() == wanted.tolist()
    assert [client.choose(MANY[i], model, user=i) for i in range(5)] == wanted.tolist()


def test_without_a_shared_theta_there_is_one_context(bandit: Make) -> None:
    config = bandit(shared=False)
    model, client = published(config), device(config, range(5))
    wanted = np.argmax(MANY[:, 0] @ model.arrays["theta"].T, axis=1)
    assert client.choose_many(MANY[:, 0], model, users=range(5)).tolist() == wanted.tolist()


def test_in_the_warm_up_the_arm_is_public(bandit: Make) -> None:
    config = bandit(shared=False, warm=10)
    client = device(config, range(20))
    arms = client.choose_many(MANY[:, 0], published(config, 1), users=range(5, 10))
    assert arms.tolist() == [1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    "contexts",
    [
        np.full((4, 3), np.nan),
        np.full((4, 3), np.inf),
        np.zeros((4, 2)),
        np.zeros((3, 3)),
        np.zeros(3),
        "text",
        None,
        [[1.0, 2.0], [3.0]],
        [[10**400] * 3] * 4,
        object(),
    ],
)
def test_contexts_that_cannot_be_used_raise_nothing(bandit: Make, contexts: Any) -> None:
    config = bandit()
    client = device(config, range(1))
    assert client.choose(contexts, published(config)) == 0
    assert client.diagnostics.counts == {"contexts that cannot be used": 1}
    assert client.diagnostics.messages[0] == "user 0: contexts that cannot be used"


def test_one_bad_row_of_many_leaves_the_others_alone(bandit: Make) -> None:
    config = bandit()
    client, model = device(config, range(5)), published(config)
    good = client.choose_many(MANY, model, users=range(5))
    bad: list[Any] = [*MANY]
    bad[2] = "text"
    arms = client.choose_many(bad, model, users=range(5))
    assert [arms[i] for i in (0, 1, 3, 4)] == [good[i] for i in (0, 1, 3, 4)]


def test_contexts_beyond_the_bound_are_chosen_with_as_they_are(bandit: Make) -> None:
    config = bandit()
    client, model = device(config, range(1)), published(config)
    huge = np.array([MANY[0, 0], 1e200 * MANY[0, 1], *MANY[0, 2:]])
    score = MANY[0, 1] @ model.arrays["theta"][0]
    assert (client.choose(huge, model) == 1) == (score > 0)


# What bad rows become -----------------------------------------------------------------------------


def message(config: LocalBanditConfig, context: Any, action: Any, reward: Any) -> tuple[bytes, Any]:
    client = device(config, range(1))
    sent = client.randomize(context, action, reward, model=published(config))
    return sent.to_bytes(), client.diagnostics


@pytest.mark.parametrize("shape", [{}, {"shared": False}])
@pytest.mark.parametrize(
    ("context", "action", "reward"),
    [
        ([0.6, np.nan, 0], 1, 1.0),
        ([0.6, np.inf, 0], 1, 1.0),
        ([0.6, 0], 1, 1.0),
        ([[0.6, 0, 1]], 1, 1.0),
        ("text", 1, 1.0),
        (None, 1, 1.0),
        (X, 1, np.nan),
        (X, 1, -np.inf),
        (X, 1, "no"),
        (X, 1, None),
        (X, 1, [1.0, 2.0]),
        (X, -1, 1.0),
        (X, 4, 1.0),
        (X, 0.5, 1.0),
        (X, None, 1.0),
        (X, 10**400, 1.0),
    ],
)
def test_a_row_that_cannot_be_used_is_the_null_record(
    bandit: Make, shape: dict[str, Any], context: Any, action: Any, reward: Any
) -> None:
    config = bandit(**shape)
    null, _ = message(config, np.zeros(3), 0, 0.0)
    found, diagnostics = message(config, context, action, reward)
    assert found == null
    assert diagnostics.counts == {"a row that cannot be used": 1}


@pytest.mark.parametrize(
    ("context", "reward", "like", "what"),
    [
        (10 * X, 0.5, (X, 0.5), "a context longer than its bound"),
        (1e200 * X, 0.5, (X, 0.5), "a context longer than its bound"),
        (X, 7.0, (X, 1.0), "a reward beyond its bounds"),
        (X, -1e300, (X, -1.0), "a reward beyond its bounds"),
    ],
)
def test_what_is_beyond_its_bound_is_cut_to_it(
    bandit: Make, context: Array, reward: float, like: tuple[Any, float], what: str
) -> None:
    config = bandit()
    found, diagnostics = message(config, context, 0, reward)
    wanted, clean = message(config, like[0], 0, like[1])
    assert np.frombuffer(found[24:], "<i4") == pytest.approx(
        np.frombuffer(wanted[24:], "<i4"), abs=1
    )
    assert diagnostics.counts == {what: 1}
    assert clean.counts == {}


class Odd:
    """Raises when it is looked at."""

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("secret")

    __array__ = __float__ = __index__ = __len__ = __iter__ = _raise


MASKED = np.ma.array(X, mask=[False, True, False])


@pytest.mark.parametrize("shape", [{}, {"shared": False}])
@pytest.mark.parametrize(
    ("context", "action", "reward"),
    [
        (MASKED, 1, 0.5),
        (X + 0.1j, 1, 0.5),
        ([0.1, np.complex128(1 + 2j), 0.3], 1, 0.5),
        (Odd(), 1, 0.5),
        (X, Odd(), 0.5),
        (X, 1, Odd()),
        (X, np.ma.masked, 0.5),
        (X, 1, np.ma.masked),
        (X, 1, np.complex128(0.5)),
        ([np.ma.masked, 0.1, 0.2], 1, 0.5),
    ],
)
def test_masked_complex_and_raising_rows_are_the_null_record_in_every_way(
    bandit: Make, shape: dict[str, Any], context: Any, action: Any, reward: Any
) -> None:
    config = bandit(**shape)
    model = published(config)
    found, diagnostics = message(config, context, action, reward)
    assert found == message(config, np.zeros(3), 0, 0.0)[0]
    assert diagnostics.counts == {"a row that cannot be used": 1}
    # in a block the row is null, and the others are what they are beside a null row
    rest = device(config, range(3))
    sent = rest.randomize_many(
        [X, context, X], [0, action, 1], [0.5, reward, 0.1], users=range(3), model=model
    )
    wanted = device(config, range(3)).randomize_many(
        [X, X * np.nan, X], [0, 1, 1], [0.5, 0.5, 0.1], users=range(3), model=model
    )
    assert sent == wanted


def test_whole_blocks_with_masks_or_objects_lose_their_bad_rows_alone(bandit: Make) -> None:
    config = bandit()
    users, model, arms = range(3), published(config), np.zeros(3)

    def sent(contexts: Any, rewards: Any) -> bytes:
        return device(config, users).randomize_many(
            contexts, arms, rewards, users=users, model=model
        )

    block, rewards = np.tile(X, (3, 1)), np.array([0.5, 0.2, 0.1])
    masked = np.ma.array(block, mask=np.zeros((3, 3), dtype=bool))
    assert sent(masked, rewards) == sent(block, rewards)
    masked[1, 2] = np.ma.masked
    lost = block.copy()
    lost[1, 2] = np.nan
    wanted = sent(lost, rewards)
    assert wanted != sent(block, rewards)
    assert sent(masked, rewards) == wanted
    assert sent(block, np.array([0.5, "no", 0.1], dtype=object)) == wanted
    assert sent(block, np.ma.array(rewards, mask=[False, True, False])) == wanted
    assert sent(block.astype(object), [0.5, Odd(), 0.1]) == wanted


def test_choosing_looks_behind_no_mask_and_raises_nothing(bandit: Make) -> None:
    config = bandit()
    good = MANY[0]
    masked = np.ma.array(good, mask=np.zeros((4, 3), dtype=bool))
    first = device(config, range(1))
    wanted = first.choose(good, published(config))
    assert wanted != 0
    assert first.choose(masked, published(config)) == wanted
    masked[3, 1] = np.ma.masked
    for contexts in (masked, good * 1j, [*good[:3], Odd()], Odd()):
        client = device(config, range(1))
        assert client.choose(contexts, published(config)) == 0
        assert client.diagnostics.counts == {"contexts that cannot be used": 1}


@pytest.mark.parametrize(
    "odd",
    [
        lambda records: records[:0],
        lambda records: np.concatenate([records, records]),
        lambda records: np.float64(0.0),
        lambda records: records[0],
        lambda records: records[:, :2],
        lambda records: records * (1 + 1j),
        lambda records: None,
    ],
)
@pytest.mark.parametrize("shape", [{}, {"shared": False}])
def test_records_of_another_shape_for_some_data_are_null(
    bandit: Make, monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any], odd: Any
) -> None:
    config = bandit(**shape)
    kind = type(config.method)
    null, plain = message(config, np.zeros(3), 0, 0.0)[0], message(config, X, 0, 0.3)[0]
    usual = kind.record

    def record(self: Any, model: Any, batch: int, contexts: Any, arms: Any, rewards: Any) -> Any:
        found = usual(self, model, batch, contexts, arms, rewards)
        return odd(found) if (rewards > 0.4).any() else found

    monkeypatch.setattr(kind, "record", record)
    assert message(config, X, 0, 0.7)[0] == null
    assert message(config, X, 0, 0.3)[0] == plain


@pytest.mark.parametrize("shape", [{}, {"shared": False}, {"shared": False, "warm": 10}])
@pytest.mark.parametrize("row", [([np.nan] * 3, 0, 1.0), (X, 0, np.nan), (X, 7, 1.0)])
def test_a_bad_row_is_null_also_where_a_record_of_zeros_is_not(
    bandit: Make, shape: dict[str, Any], row: Any
) -> None:
    """As in least squares, whose factors have the reward beside the context."""
    config = bandit(mechanism="joint", **shape)

    def opened(*row: Any) -> Array:
        tape, noise = Tape(), NoiseSource.simulation(1)
        phone = LocalAccountant(GaussianDP(1), users=range(1), noise=noise, observer=tape)
        LocalClient(config, phone).randomize(*row, model=published(config))
        return tape.rows[0]

    null = config.message_report(warming="warm" in shape).domain.null()
    assert np.array_equal(opened(*row)[0], null)
    assert not np.array_equal(opened(np.zeros(3), 0, -1.0)[0], null)


def test_a_record_that_cannot_be_computed_is_null(bandit: Make) -> None:
    mean = type(bandit().method)

    class Fragile(mean):  # type: ignore[misc, valid-type]
        kind: Literal["fragile"] = "fragile"

        def record(
            self, model: Any, batch: int, contexts: Array, arms: Any, rewards: Array
        ) -> Array:
            if (rewards > 0.5).any():
                raise ZeroDivisionError
            return np.asarray(contexts * rewards[:, None])

    config = LocalBanditConfig(
        name="x", method=Fragile(**bandit().method.model_dump(exclude={"kind"}))
    )
    null, _ = message(config, np.zeros(3), 0, 0.0)
    assert message(config, X, 0, 0.7)[0] == null
    assert message(config, X, 0, 0.3)[0] != null
    shown, model = np.tile(X, (5, 1)), published(config)
    sent = [
        device(config, range(5)).randomize_many(shown, np.zeros(5), r, users=range(5), model=model)
        for r in ([0.1, 0.2, 0.9, 0.3, 0.4], [0.1, 0.2, 0.6, 0.3, 0.4])
    ]
    assert sent[0] == sent[1]


def test_one_message_is_the_same_whatever_way_it_takes(bandit: Make) -> None:
    for shape in ({}, {"shared": False}, {"shared": False, "warm": 5}):
        config = bandit(**shape)
        found = message(config, X, 0, 0.5)[0]
        assert message(config, X.tolist(), 0, 0.5)[0] == found
        assert message(config, X, np.int64(0), np.float64(0.5))[0] == found
        client = device(config, range(1))
        users, model = range(1), published(config)
        assert client.randomize_many(X[None], [0], [0.5], users=users, model=model) == found


class Ahead:
    """Rows of one table of noise in the place of all draws, in turn."""

    def __init__(self, table: Any) -> None:
        self.table, self.next = table, 0

    def __call__(self, n: int) -> Any:
        first, self.next = self.next, self.next + n
        return self.table[first : self.next]


@pytest.mark.parametrize("shape", [{}, {"shared": False}])
def test_messages_one_by_one_are_those_of_a_block_if_the_noise_is(
    bandit: Make, monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any]
) -> None:
    """Bit by bit, with rows that are null, at the bound, beyond it, and on either side of 0."""
    config, n = bandit(**shape, dim=12, horizon=300, width=300), 300
    report = config.part_report
    noise: Any = report.spend().noise
    table = noise.rows(NoiseSource.simulation(9).pool(), n * config.method.parts)
    rng = np.random.default_rng(8)
    contexts = rng.normal(size=(n, 12)) * rng.choice([0.1, 0.5, 2], (n, 1))
    contexts[5:8], contexts[8], contexts[9], contexts[10] = 0.0, np.nan, 1e200, 1e-200
    contexts[6, 0], contexts[7, :2] = 1.0, [-0.0, 1]
    arms, rewards = rng.integers(0, 4, n), rng.uniform(-0.2, 1.2, n)
    model, sent = published(config), []
    for single in (False, True):
        scripted = Ahead(table)
        monkeypatch.setattr(report_streams, "_Ahead", lambda draw, scripted=scripted: scripted)
        client = device(config, range(n))
        # the stream's own draw, of which nothing is used: nothing leaves a receipt without noise
        reports: Any = client._reports
        reports.pay(range(n), warming=False)
        reports._paid[False].stream._receipt.draw_rows(len(table))
        if single:
            rows = zip(contexts, arms.tolist(), rewards.tolist(), strict=True)
            parts = [
                client.randomize(*row, user=user, model=model).to_bytes()
                for user, row in enumerate(rows)
            ]
            sent.append(b"".join(parts))
        else:
            users = range(n)
            sent.append(client.randomize_many(contexts, arms, rewards, users=users, model=model))
    assert sent[0] == sent[1]


@pytest.mark.parametrize("shape", [{}, {"shared": False}, {"mechanism": "projected", "dim": 6}])
def test_users_of_one_row_send_different_messages(bandit: Make, shape: dict[str, Any]) -> None:
    """In every part, one after the other, more of them than noise is drawn ahead for."""
    config, n = bandit(**{"dim": 3, **shape}, horizon=300, width=300), 300
    model, client = published(config), device(config, range(n))
    x = np.full(config.method.dim, 0.5)
    sent = np.array([client.randomize(x, 1, 0.5, user=i, model=model).values for i in range(n)])
    for part in np.split(sent, config.method.parts, axis=1):
        assert len(np.unique(part, axis=0)) == n


def test_in_the_warm_up_another_arm_than_the_public_one_is_null(bandit: Make) -> None:
    config = bandit(shared=False, warm=5)
    null, _ = message(config, np.zeros(3), 0, 0.0)
    assert message(config, X, 1, 1.0)[0] == null
    assert message(config, X, 0, 1.0)[0] != null
    assert len(null) == 24 + 4 * 3


def test_zero_vectors_and_one_dimension(bandit: Make) -> None:
    config = bandit(dim=1)
    sent, diagnostics = message(config, [0.0], 0, 0.5)
    assert len(sent) == 28
    assert diagnostics.counts == {}
    assert Message.from_bytes(message(config, [0.3], 0, 1.0)[0]).user == 0


def test_diagnostics_of_many_rows_keep_the_last_hundred_messages(bandit: Make) -> None:
    config = bandit(horizon=300, width=1)
    client = device(config, range(300))
    for user in range(300):
        client.randomize([np.nan] * 3, 0, 0.0, user=user, model=published(config, user))
    assert client.diagnostics.counts == {"a row that cannot be used": 300}
    assert len(client.diagnostics.messages) == 100


# Who pays -----------------------------------------------------------------------------------------


def test_a_user_who_answers_twice_is_refused(bandit: Make) -> None:
    config = bandit()
    client = device(config, range(1))
    client.randomize(X, 0, 1.0, model=published(config))
    with pytest.raises(TokenSpentError, match="user 0 has answered: one message for each user"):
        client.randomize(X, 0, 1.0)


@pytest.mark.parametrize("cap", [2, 5])
def test_it_is_refused_after_a_restart_as_well(bandit: Make, tmp_path: Path, cap: int) -> None:
    """Also where the device could pay for a second message: one is what the server certifies."""
    config = bandit()
    path = tmp_path / "phone.ledger"
    phone = LocalAccountant(PureDP(cap), users=range(3, 4), ledger=Ledger.create(path))
    LocalClient(config, phone).randomize(X, 0, 1.0, model=published(config))
    with pytest.raises(TokenSpentError, match="each sends one message"):
        LocalClient(config, phone).randomize(X, 0, 1.0, model=published(config))
    again: LocalAccountant[PureDP] = LocalAccountant.resume(path)
    with pytest.raises(TokenSpentError, match=f"{config.label} of users 3..3"):
        LocalClient(config, again).randomize(X, 0, 1.0, model=published(config))
    assert again.spent().epsilon <= 2
    assert again.held(config.label, range(4)) == [range(3, 4)]
    other = LocalClient(bandit(name="another"), again)
    if cap == 5:  # another deployment may ask as well
        assert other.randomize(X, 0, 1.0, model=published(other.config)).user == 3
    else:
        with pytest.raises(InsufficientBudgetError):
            other.randomize(X, 0, 1.0, model=published(other.config))


def test_who_was_not_paid_for_may_still_answer(bandit: Make, tmp_path: Path) -> None:
    config = bandit()
    path = tmp_path / "gateway.ledger"
    gate = LocalAccountant(PureDP(2), users=range(10), ledger=Ledger.create(path))
    LocalClient(config, gate, users=range(3)).randomize(X, 0, 1.0, user=0, model=published(config))
    gate.issue(config.loss(), users=range(3, 6), label=config.label)  # and then the power fails
    again: LocalAccountant[PureDP] = LocalAccountant.resume(path)
    overlapping = LocalClient(config, again, users=range(2, 6))
    with pytest.raises(TokenSpentError):
        overlapping.randomize(X, 0, 1.0, user=2, model=published(config))
    late = LocalClient(config, again, users=range(3, 6))
    assert late.randomize(X, 0, 1.0, user=3, model=published(config)).user == 3
    parts = [len(again.held(config.label, u)) for u in (range(3), range(2, 4), range(6, 9))]
    assert parts == [1, 2, 0]


def test_a_plan_holds_the_message_under_its_label(bandit: Make) -> None:
    config = bandit()
    client = device(config, range(1))
    phone: Any = client._accountant
    phone.commit([Plan(config.label, config.loss(), range(1))])
    client.randomize(X, 0, 1.0, model=published(config))
    assert phone.left(config.label, range(1)) == 0
    assert config.label == f"messages/{config.fingerprint.hex()[:16]}"


def test_a_gateway_pays_once_for_all_its_users(bandit: Make) -> None:
    config = bandit(shared=False, warm=5)
    client = device(config, range(20))
    for batch in range(4):
        users, model = config.users_of(batch), published(config, batch)
        arms = client.choose_many(MANY[:, 0], model, users=users)
        if batch == 2:
            for i, user in enumerate(users):
                client.randomize(MANY[i, 0], arms[i], 1.0, user=user)
        else:
            client.randomize_many(MANY[:, 0], arms, np.ones(5), users=users)
    entries = client._accountant.ledger.entries  # type: ignore[attr-defined]
    assert [e.users for e in entries if isinstance(e, IssueEntry)] == [(0, 5), (5, 20)]
    spends = [e for e in entries if isinstance(e, SpendEntry)]
    assert [(e.mechanism, e.arithmetic) for e in spends] == [
        ("ball-report", "each"),
        ("one-of-k/ball-report", "each"),
    ]
    assert [e.outcome for e in entries if isinstance(e, RetireEntry)] == ["released", "released"]
    certificate = client._accountant.certificate()  # type: ignore[attr-defined]
    assert certificate.problems == []
    assert certificate.spent[0].epsilon <= 2


def test_users_may_stay_away_and_none_comes_back(bandit: Make) -> None:
    config = bandit()
    client, model = device(config, range(5)), published(config)
    client.randomize(X, 0, 1.0, user=1, model=model)
    client.randomize(X, 0, 1.0, user=3)
    for user in (0, 1, 2, 3):
        with pytest.raises(TokenSpentError, match=f"user {user} has answered"):
            client.randomize(X, 0, 1.0, user=user)
    client.close()
    with pytest.raises(TokenSpentError):
        client.randomize(X, 0, 1.0, user=4)


def test_leaving_the_client_closes_its_token(bandit: Make) -> None:
    config = bandit()
    with device(config, range(5)) as client:
        client.randomize(X, 0, 1.0, user=1, model=published(config))
    entries = client._accountant.ledger.entries  # type: ignore[attr-defined]
    assert isinstance(entries[-1], RetireEntry)
    assert entries[-1].outcome == "released"


def test_too_small_a_budget_is_refused_before_anything_is_sent(bandit: Make) -> None:
    client = device(bandit(epsilon=2.5), range(1))
    with pytest.raises(InsufficientBudgetError):
        client.randomize(X, 0, 1.0, model=published(client.config))


# Public mistakes ----------------------------------------------------------------------------------


def test_other_accountants_are_refused(bandit: Make) -> None:
    config, noise = bandit(), NoiseSource.simulation(0)
    central = CentralAccountant(PureDP(2), users=range(1), noise=noise)
    claims = LocalAccountant(PureDP(2), users=range(1), noise=noise, attested=True)
    for wrong in (central, claims):
        with pytest.raises(TypeError, match="must be the LocalAccountant of a device"):
            LocalClient(config, wrong)
    with pytest.raises(AdjacencyError, match="reports for replace-one"):
        device(config, range(1), adjacency=Adjacency.ZERO_OUT)


def test_users_and_models_that_do_not_fit_are_refused(bandit: Make) -> None:
    config = bandit()
    with pytest.raises(UsersError, match="the horizon is 20"):
        device(config, range(10, 21))
    client, model = device(config, range(5, 15)), published(config, 1)
    with pytest.raises(ValueError, match="user: must be said"):
        client.choose(MANY[0], model)
    with pytest.raises(UsersError, match="this client serves"):
        client.choose(MANY[0], model, user=4)
    with pytest.raises(UsersError, match="more than one batch"):
        client.choose_many(MANY, model, users=range(8, 13))
    with pytest.raises(ValueError, match="model: for batch 1, where batch 2 is served"):
        client.choose(MANY[0], model, user=10)
    with pytest.raises(ValueError, match="none was chosen with"):
        client.randomize(X, 0, 1.0, user=5)
    with pytest.raises(ValueError, match="not of this one"):
        client.choose(MANY[0], published(bandit(name="other"), 1), user=5)


def test_messages_applied_singly_may_be_of_an_older_model(bandit: Make) -> None:
    config = bandit(singly=True)
    client = device(config, range(20))
    client.choose(MANY[0], published(config, 3), user=7)
    assert client.randomize(X, 0, 1.0, user=7).batch == 7
    with pytest.raises(ValueError, match="model: for batch 9, where batch 8 is served"):
        client.choose(MANY[0], published(config, 9), user=8)


# Replay: a message is all that depends on a row ---------------------------------------------------


@dataclass
class Tape:
    """Writes down the opened rows, or puts others in their place."""

    put: Array | None = None
    rows: list[Array] = field(default_factory=list)

    def spent(self, token: Any, spend: Any) -> None:
        pass

    def opened(self, token: Any, spend: Any, users: range, rows: Array) -> None:
        self.rows.append(np.array(rows))
        if self.put is not None:
            rows[...] = self.put

    def released(self, token: Any, value: Array) -> Array:
        return value


Person = tuple[Any, float]
Send = Callable[[LocalClient[PureDP], Model, Person], bytes]


def honest(client: LocalClient[PureDP], model: Model, person: Person) -> bytes:
    contexts, taste = person
    arm = client.choose(contexts, model)
    context = contexts[arm] if client.config.method.shared else contexts
    return client.randomize(context, arm, taste * float(np.sum(context))).to_bytes()


def traffic(
    config: LocalBanditConfig, people: list[Person], send: Send, put: dict[int, Array], stop: int
) -> tuple[list[bytes], list[str], list[Array]]:
    """Messages, what the server publishes after each, and rows opened, of users 0..stop−1."""
    noise = NoiseSource.simulation(0)
    horizon = config.method.horizon
    book = LocalAccountant(PureDP(2), users=range(horizon), noise=noise, attested=True)
    server = LocalServer(config, book, by="test")
    messages, seen, rows = [], [], []
    for user, person in enumerate(people[:stop]):
        tape = Tape(put.get(user))
        client = device(config, range(user, user + 1), seed=user, observer=tape)
        server.advance(user)
        messages.append(send(client, server.model(), person))
        server.update(messages[-1])
        seen.append(server.model().model_dump_json())
        rows.append(np.concatenate(tape.rows) if tape.rows else np.empty(0))
    return messages, seen, rows


def check_a_message_is_all(
    config: LocalBanditConfig, people: list[Person], at: int, other: Person, send: Send
) -> None:
    """Raises AssertionError if replacing one user changes more than this user's opened row.

    With the row of the first world put in its place where it is opened, and the same noise, all
    messages and all that is published must be as before.
    """
    everybody = len(people)
    messages, seen, rows = traffic(config, people, send, {}, everybody)
    neighbour = [*people[:at], other, *people[at + 1 :]]
    moved, _, opened = traffic(config, neighbour, send, {}, at + 1)
    assert moved[:at] == messages[:at], "somebody else's message changed"
    assert moved[at][:24] == messages[at][:24], "the head of the message changed"
    assert len(moved[at]) == len(messages[at]), "its length changed"
    assert not np.array_equal(opened[at], rows[at]), "nothing was replaced"
    again, published, _ = traffic(config, neighbour, send, {at: rows[at]}, everybody)
    assert again[at] == messages[at], "the message depends on more than the opened row"
    assert again == messages
    assert published == seen


def people(config: LocalBanditConfig, seed: int) -> list[Person]:
    rng, method = np.random.default_rng(seed), config.method
    shape = (method.n_arms, method.dim) if method.shared else (method.dim,)
    return [(rng.normal(size=shape), float(rng.normal())) for _ in range(method.horizon)]


SHAPES = [
    {},
    {"shared": False},
    {"shared": False, "warm": 10},
    {"singly": True},
    {"mechanism": "projected", "dim": 6},
]
ODD = [(np.nan, 1.0), (1.0, np.nan), (1e300, 1.0), (1.0, 50.0), (0.0, 0.0), (1.0, -1.0)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", ODD)
def test_a_message_is_all_that_depends_on_a_row(
    bandit: Make, shape: dict[str, Any], scale: tuple[float, float]
) -> None:
    config = bandit(horizon=15, **shape)
    crowd = people(config, 1)
    contexts, taste = people(config, 2)[7]
    other = (contexts * scale[0], taste * scale[1])
    check_a_message_is_all(config, crowd, 7, other, honest)


def leaks_the_action(client: LocalClient[PureDP], model: Model, person: Person) -> bytes:
    sent = Message.from_bytes(honest(client, model, person))
    arm = client.choose(person[0], model)
    values = (sent.values[0] // 4 * 4 + arm, *sent.values[1:])
    return sent.model_copy(update={"values": values}).to_bytes()


def sends_clipped_values_bare(client: LocalClient[PureDP], model: Model, person: Person) -> bytes:
    sent = Message.from_bytes(honest(client, model, person))
    if client.diagnostics.counts.get("a context longer than its bound"):
        bare = tuple(int(v) for v in np.rint(1e3 * np.asarray(person[0])[0] / 1e300))
        return sent.model_copy(update={"values": bare}).to_bytes()
    return sent.to_bytes()


def is_silent_about_bad_rows(client: LocalClient[PureDP], model: Model, person: Person) -> bytes:
    sent = honest(client, model, person)
    return b"" if client.diagnostics.counts else sent


def names_the_action_as_the_batch(
    client: LocalClient[PureDP], model: Model, person: Person
) -> bytes:
    sent = Message.from_bytes(honest(client, model, person))
    return sent.model_copy(update={"batch": client.choose(person[0], model)}).to_bytes()


@pytest.mark.parametrize(
    ("broken", "scale", "said"),
    [
        (leaks_the_action, -1.0, "more than the opened row"),
        (sends_clipped_values_bare, 1e300, "more than the opened row"),
        (is_silent_about_bad_rows, np.nan, "length changed|head of the message"),
        (names_the_action_as_the_batch, -1.0, "head of the message"),
    ],
)
def test_broken_clients_are_caught(bandit: Make, broken: Send, scale: float, said: str) -> None:
    config = bandit(horizon=15, context_bound=10.0)
    crowd = people(config, 1)
    other = (crowd[7][0] * scale, crowd[7][1])
    check_a_message_is_all(config, crowd, 7, other, honest)
    with pytest.raises(AssertionError, match=said):
        check_a_message_is_all(config, crowd, 7, other, broken)


# What must not depend on threads, float settings or other rows -----------------------------------


def test_threads_that_race_for_one_user_send_one_message(
    bandit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bandit()
    model = published(config)
    phone = LocalAccountant(PureDP(8), users=range(1), noise=NoiseSource.simulation(1))
    client, held = LocalClient(config, phone), phone.held
    both = threading.Barrier(2)

    def slow(label: str, users: range) -> list[range]:
        found = held(label, users)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.2)  # for the other one, if it can get here
        return found

    monkeypatch.setattr(phone, "held", slow)
    ends: list[type] = []

    def answer() -> None:
        try:
            ends.append(type(client.randomize(X, 0, 0.5, model=model)))
        except Exception as refused:
            ends.append(type(refused))

    threads = [threading.Thread(target=answer) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(end.__name__ for end in ends) == ["Message", "TokenSpentError"]
    assert held(config.label, range(1)) == [range(1)]


def test_a_spend_by_another_client_in_the_meantime_is_noticed(
    bandit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bandit()
    phone = LocalAccountant(PureDP(8), users=range(1), noise=NoiseSource.simulation(1))
    first, second = LocalClient(config, phone), LocalClient(config, phone)
    issue = phone.issue

    def late(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(phone, "issue", issue)
        first.randomize(X, 0, 0.5, model=published(config))
        return issue(*args, **more)

    monkeypatch.setattr(phone, "issue", late)
    with pytest.raises(TokenSpentError, match="each sends one message"):
        second.randomize(X, 0, 0.5, model=published(config))


def test_floating_point_errors_of_the_caller_s_making_tell_of_no_row() -> None:
    method = LDPSGD(dim=2, n_arms=3, horizon=8, shared=True, epsilon=1.0)
    config = LocalBanditConfig(name="tests", method=method)
    model = Model(fingerprint=config.fingerprint.hex(), batch=0, arrays=method.start())
    for context in ([1e-150, 1e-150], [1e-200, 1e-160], [1e300, 1e300]):
        for single in (True, False):
            client = device(config, range(1))
            with np.errstate(all="raise"):
                if single:
                    client.randomize(np.array(context), 0, 5e-324, model=model)
                else:
                    client.randomize_many([context], [0], [5e-324], users=range(1), model=model)


def test_a_bad_row_changes_no_digit_of_the_others() -> None:
    values = np.random.default_rng(5).normal(size=(2000, 7))
    alone = local_client._norms(values.copy())
    values[0] = np.nan
    assert local_client._norms(values)[1:].tolist() == alone[1:].tolist()
    values[0] = 1e300
    assert local_client._norms(values)[1:].tolist() == alone[1:].tolist()
    assert local_client._norms(values)[0] == pytest.approx(np.sqrt(7) * 1e300)


def test_a_block_of_objects_is_read_whatever_its_length() -> None:
    for n in (1, 2):
        block = np.empty(n, dtype=object)
        for i in range(n):
            block[i] = np.array([0.1, 0.2])
        assert block_of("contexts", block, (2,)).tolist() == [[0.1, 0.2]] * n
    odd = np.empty(1, dtype=object)
    odd[0] = odd
    assert np.isnan(block_of("contexts", odd, (2,))).all()


def test_an_accountant_that_cannot_tell_what_was_spent_is_refused(bandit: Make) -> None:
    class Forgetful:
        trust, attested, adjacency, users = Trust.LOCAL, False, Adjacency.REPLACE_ONE, range(1)

    with pytest.raises(TypeError, match="held"):
        LocalClient(bandit(), cast(Any, Forgetful()))
