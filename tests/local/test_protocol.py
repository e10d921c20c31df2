"""The public configuration: how it is made, what it computes once, and the accounts from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from privlearn.accountants import LocalAccountant, audit
from privlearn.errors import InsufficientBudgetError, LedgerError, TokenSpentError
from privlearn.learners import LDPOLS, LDPSGD
from privlearn.learners.local import LocalBanditConfig, LocalClient, LocalServer
from privlearn.ledger import Ledger
from privlearn.losses.budgets import GaussianDP, PureDP
from privlearn.noise import NoiseSource

Make = Callable[..., LocalBanditConfig]
SIZE: dict[str, Any] = {"dim": 2, "n_arms": 3, "horizon": 20, "shared": True, "epsilon": 1.0}
ARMS = np.array([[0.1, 0.2], [0.3, 0.1], [0.0, -0.2]])


def test_a_configuration_takes_its_name_and_method_by_position() -> None:
    config = LocalBanditConfig("offers", LDPSGD(**SIZE))
    assert config == LocalBanditConfig(name="offers", method=LDPSGD(**SIZE))
    assert LocalBanditConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(TypeError, match="3 arguments"):
        LocalBanditConfig("offers", LDPSGD(**SIZE), 1)  # type: ignore[call-arg]
    for form in ({"name": "offers"}, {"name": "", "method": LDPSGD(**SIZE)}, {"other": 1}):
        with pytest.raises(ValidationError):
            LocalBanditConfig(**form)


def test_a_configuration_that_was_written_before_its_classes_were_renamed_is_read() -> None:
    """Names and fingerprint of the JSON form; clients in the field hold it."""
    written = (
        '{"version":1,"name":"offers","method":{"kind":"ldp-sgd","dim":2,"n_arms":3,"horizon":20,'
        '"shared":true,"epsilon":1.0,"delta":0.0,"context_bound":1.0,"reward_low":-1.0,'
        '"reward_high":1.0,"link":"linear","theta_bound":1.0,"singly":false}}'
    )
    config = LocalBanditConfig("offers", LDPSGD(**SIZE))
    assert LocalBanditConfig.model_validate_json(written) == config
    assert config.model_dump_json() == written
    assert config.fingerprint.hex()[:32] == "e0b7433e6eac872dc121be85ecf7778f"


def test_a_changed_copy_forgets_what_was_computed_from_the_original() -> None:
    config = LocalBanditConfig("offers", LDPSGD(**SIZE))
    before = config.fingerprint, config.starts, config.loss()
    longer = LDPSGD(**{**SIZE, "horizon": 400, "epsilon": 2.0})
    changed = config.model_copy(update={"method": longer})
    assert changed == LocalBanditConfig("offers", longer)
    for old, new in zip(before, (changed.fingerprint, changed.starts, changed.loss()), strict=True):
        assert old != new
    assert config.model_copy() == config
    older = config.copy(update={"method": longer})
    assert (older.fingerprint, older.loss()) == (changed.fingerprint, changed.loss())


def test_the_schedule_is_computed_once(bandit: Make) -> None:
    config = bandit()
    asked: list[str] = []
    kind = type(config.method)

    class Counting(kind):  # type: ignore[misc, valid-type]
        kind: str = "counting"

        def batches(self) -> Sequence[int]:
            asked.append("batches")
            return [*range(0, self.horizon, 2), self.horizon]

        def warm_up(self) -> int:
            asked.append("warm-up")
            return 0

    method = Counting(**config.method.model_dump(exclude={"kind"}))
    config = LocalBanditConfig("counted", method)
    for user in config.users:
        batch = config.batch_of(user)
        assert user in config.users_of(batch)
        assert batch < config.n_batches
        assert not config.warming(batch)
    assert sorted(asked) == ["batches", "warm-up"]


@pytest.mark.parametrize("method", [LDPSGD(**SIZE), LDPOLS(**SIZE)])
def test_accounts_made_from_a_configuration_hold_one_message_and_no_more(
    method: Any, tmp_path: Path
) -> None:
    config = LocalBanditConfig("offers", method)
    claims = LocalAccountant.for_server(config, tmp_path / "claims.db")
    server = LocalServer(config, claims, by="test")
    noise = NoiseSource.simulation(1)
    phone = LocalAccountant.for_device(config, tmp_path / "phone.db", user=0, noise=noise)
    assert phone.users == range(1)
    assert phone.budget == claims.budget == type(phone.budget)(0).price(config.loss())
    assert type(phone.budget) is (PureDP if isinstance(method, LDPSGD) else GaussianDP)
    client = LocalClient(config, phone)
    arm = client.choose(ARMS, server.model())
    assert server.update(client.randomize(ARMS[arm], arm, 0.5))
    assert phone.spent() == phone.budget
    with pytest.raises(TokenSpentError):
        LocalClient(config, phone).randomize(ARMS[arm], arm, 0.5, model=server.model())
    with pytest.raises(InsufficientBudgetError):
        phone.issue(config.loss(), users=range(1), label="more")
    for account in (claims, phone):
        account.close()
    delta = 0.01 if method.delta else 0.0
    for name in ("claims.db", "phone.db"):
        certificate = audit(tmp_path / name, delta=delta)
        assert certificate.problems == []
        assert max(g.epsilon for g in certificate.guarantees) <= method.epsilon * (1 + 1e-9)


def test_accounts_are_refused_for_users_that_are_not_there_and_files_that_are(
    tmp_path: Path,
) -> None:
    config = LocalBanditConfig("offers", LDPSGD(**SIZE))
    for user in (-1, 20, range(19, 21), range(0)):
        with pytest.raises((ValueError, TypeError), match="user"):
            LocalAccountant.for_device(config, Ledger.memory(), user=user)
    path = tmp_path / "phone.db"
    LocalAccountant.for_device(config, path, user=range(20)).close()
    with pytest.raises(LedgerError):
        LocalAccountant.for_device(config, path, user=0)
