"""Messages of persons who return: each costs once its loss, and one too many is a null report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import LocalAccountant
from privlearn.errors import AdjacencyError, ProvenanceError, UsersError
from privlearn.learners.local.client import LocalClient
from privlearn.learners.local.messages import Message
from privlearn.learners.local.protocol import LocalBanditConfig, Model
from privlearn.learners.local.server import LocalServer
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.participation import Participation

Make = Callable[..., LocalBanditConfig]
TWICE = Participation(2, pattern="public")
X = np.array([0.6, 0.0, -0.8])


class Opened:
    """The rows that a simulation's receipts open."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Any]] = []

    def spent(self, token: Any, spend: Any) -> None:
        pass

    def opened(self, token: Any, spend: Any, users: range, rows: Any) -> None:
        self.rows += [(user, np.array(row)) for user, row in zip(users, rows, strict=True)]

    def released(self, token: Any, value: Any) -> Any:
        return value

    def real(self) -> list[int]:
        """Users with a row that is not null."""
        return [user for user, row in self.rows if np.any(row)]


def twice(config: LocalBanditConfig) -> LocalBanditConfig:
    return LocalBanditConfig(config.name, config.method, most_messages=2)


def model_of(config: LocalBanditConfig) -> Model:
    claims = LocalAccountant.for_server(config, Ledger.memory())
    return LocalServer(config, claims, by="tests").model()


def account_of(
    config: LocalBanditConfig, rule: Participation, seen: Opened | None = None
) -> LocalAccountant[Any]:
    device = LocalAccountant.for_device(
        config,
        Ledger.memory(),
        user=config.users,
        noise=NoiseSource.simulation(1),
        people=People.memory(rule),
    )
    device.issuer.observer = seen
    return device


def test_a_device_sends_null_reports_once_its_owner_has_sent_enough(bandit: Make) -> None:
    config, seen = twice(bandit()), Opened()
    model, phone = model_of(config), account_of(config, TWICE, seen)
    sizes = set()
    for turn in (0, 2, 3, 4):  # of the first batch; other devices have the turns between
        with LocalClient(config, phone, users=range(turn, turn + 1)) as client:
            message = client.randomize(X, 1, 0.5, model=model, person="me")
        assert isinstance(message, Message)
        sizes.add(len(message.to_bytes()))
    assert len(sizes) == 1
    assert seen.real() == [0, 2]
    one = config.loss().pure()
    assert one is not None
    assert phone.epsilon(0.0) == pytest.approx(2 * float(one))
    assert phone.epsilon(0.0, of="spent") == pytest.approx(2 * float(one))


def test_a_gateway_counts_persons_among_its_users(bandit: Make) -> None:
    config, seen = twice(bandit()), Opened()
    gateway = LocalClient(config, account_of(config, TWICE, seen), users=range(5))
    model = model_of(config)
    people = ["a", "b", "a", "a", None]
    sent = gateway.randomize_many(
        np.tile(X, (5, 1)), np.ones(5), np.full(5, 0.5), users=range(5), model=model, people=people
    )
    server = LocalServer(config, LocalAccountant.for_server(config, Ledger.memory()), by="tests")
    assert server.update_many(sent) == 5  # the server hears five users, and sees nothing else
    assert seen.real() == [0, 1, 2]


def test_the_rows_of_visits_too_many_move_nothing(bandit: Make) -> None:
    config = twice(bandit())
    model, sent = model_of(config), []
    for reward in (0.5, -0.5):
        phone = account_of(config, TWICE)
        with LocalClient(config, phone, users=range(4)) as client:
            for user in range(4):
                answer = reward if user >= 2 else 0.1
                last = client.randomize(X, 1, answer, user=user, model=model, person=7)
                sent.append(last.to_bytes())
    assert sent[:4] == sent[4:]


def test_what_the_server_attests_is_of_a_person(bandit: Make) -> None:
    config = twice(bandit())
    claims = LocalAccountant.for_server(config, Ledger.memory())
    LocalServer(config, claims, by="tests")
    (claim,) = claims.claims
    assert claim.most_messages == 2
    assert claims.budget.amounts == tuple(
        2 * a for a in LocalAccountant.for_server(bandit(), Ledger.memory()).budget.amounts
    )
    assert not claims.certificate().problems


def test_configurations_of_one_message_are_as_they_were(bandit: Make) -> None:
    config = bandit()
    assert "most_messages" not in config.model_dump(mode="json")
    again = LocalBanditConfig.model_validate_json(twice(config).model_dump_json())
    assert again.most_messages == 2
    assert again.fingerprint != config.fingerprint
    with pytest.raises(ValueError, match="most_messages"):
        LocalBanditConfig(config.name, config.method, most_messages=0)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Participation(3, pattern="public"), "most_messages = 2"),
        (Participation(2, pooled=True, pattern="public"), "counted by most and apart"),
        (Participation(2, per_batch=1, pattern="public"), "counted by most and apart"),
    ],
)
def test_rules_that_messages_cannot_keep_are_refused(
    rule: Participation, words: str, bandit: Make
) -> None:
    config = twice(bandit())
    with pytest.raises(ValueError, match=words):
        LocalClient(config, account_of(config, rule))


def test_a_private_pattern_needs_reports_for_zero_out(bandit: Make) -> None:
    with pytest.raises(AdjacencyError, match="must be zero-out"):
        account_of(twice(bandit()), Participation(2))


def test_ids_and_registries_go_together(bandit: Make) -> None:
    config = twice(bandit())
    model = model_of(config)
    client = LocalClient(config, account_of(config, TWICE), users=range(3))
    with pytest.raises(ProvenanceError, match=r"people is missing: the .* Participation\("):
        client.randomize(X, 1, 0.5, user=0, model=model)
    client.randomize(X, 1, 0.5, user=0, model=model, person="")  # a public turn of nobody
    with pytest.raises(UsersError, match="2 slots, there are 1 ids"):
        client.randomize_many(
            np.tile(X, (2, 1)), [1, 1], [0.5, 0.5], users=range(1, 3), model=model, people=["a"]
        )
    device = LocalAccountant.for_device(
        config, Ledger.memory(), user=0, noise=NoiseSource.simulation(0)
    )
    with pytest.raises(ProvenanceError, match="no rule of participation"):
        LocalClient(config, device).randomize(X, 1, 0.5, model=model, person="me")
