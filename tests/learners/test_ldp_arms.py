"""Arms whose rewards devices report: the bit, the arm that is pulled next, what is no record."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import LocalAccountant
from privlearn.learners import LDPArms
from privlearn.learners.arm_policies import imed_arm
from privlearn.learners.local import LocalBanditConfig, LocalClient, LocalServer
from privlearn.ledger import Ledger
from privlearn.mechanisms import CategoryReport, NoisyReport
from privlearn.noise import LaplaceNoise, NoiseSource
from privlearn.rows.domains import Box

MEANS = np.array([0.3, 0.8, 0.5])


def arms(**fields: Any) -> LDPArms:
    return LDPArms(**{"n_arms": 3, "horizon": 2_000, "epsilon": 2.0} | fields)


def sides(method: LDPArms, ledger: Ledger | Path | None = None) -> tuple[LocalServer, Any]:
    config = LocalBanditConfig("banners", method)
    noise = NoiseSource.simulation(1)
    claims = LocalAccountant.for_server(config, ledger or Ledger.memory(), noise=noise)
    device = LocalAccountant.for_device(config, Ledger.memory(), user=config.users, noise=noise)
    public = LocalBanditConfig.model_validate_json(config.model_dump_json())
    return LocalServer(config, claims, by="tests"), LocalClient(public, device)


def meet(server: LocalServer, client: Any, upto: int) -> float:
    """Serves users before ``upto``; what they lost against the best arm."""
    rng, lost = np.random.default_rng(0), 0.0
    while len(users := server.users) and users.stop <= upto:
        pulled = client.choose_many(None, server.model(), users=users)
        rewards = rng.random(len(users)) < MEANS[pulled]
        server.update_many(client.randomize_many(None, pulled, rewards * 1.0, users=users))
        server.advance()
        lost += (MEANS.max() - MEANS[pulled]).sum()
    return float(lost)


def test_devices_and_server_find_the_best_arm_and_a_killed_server_goes_on(tmp_path: Path) -> None:
    method = arms(growth=0.05)
    server, client = sides(method, tmp_path / "claims.db")
    lost = meet(server, client, 1_000)
    path, state = tmp_path / "claims.db", server.state
    server._accountant.ledger.close()  # type: ignore[attr-defined]
    claims: LocalAccountant[Any] = LocalAccountant.resume(path, noise=NoiseSource.simulation(1))
    server = LocalServer.resume(server.config, claims)
    assert all(np.array_equal(server.state[name], state[name]) for name in state)
    lost += meet(server, client, method.horizon)
    assert lost < 0.2 * method.horizon * (0.8 - MEANS.mean())
    model = server.model().arrays
    assert np.argmax(model["means"]) == np.argmax(server.state["messages"]) == 1
    assert (np.abs(model["means"] - MEANS) < 4 * model["stds"]).all()
    assert claims.certificate(0.0).guarantees[0].epsilon <= 2.0


@pytest.mark.parametrize("epsilon", [0.3, 3.0, 8.0])
def test_a_bit_has_the_least_variance_of_the_reports_of_a_reward(epsilon: float) -> None:
    """Of rewards 0 or 1 (docs/proofs.md, "Local")."""
    report = arms(epsilon=epsilon).report()
    assert report.scale == pytest.approx(1 / math.tanh(epsilon / 2))
    for p in (0.0, 0.1, 0.5, 1.0):
        bit = report.scale**2 / 4 - (p - 0.5) ** 2  # of a reward in [0, 1]
        laplace = NoisyReport(Box(0, 1, 1), LaplaceNoise(1 / epsilon)).mean_squared_error()
        assert bit < laplace + p * (1 - p)
        for levels in (2, 3, 11):
            law, weight = _levels(CategoryReport.calibrated(levels, epsilon), p)
            at = np.arange(levels) / (levels - 1) * weight
            rounded = law @ at**2 - (law @ at) ** 2
            assert bit == pytest.approx(rounded) if levels == 2 else bit < rounded


def _levels(report: CategoryReport, p: float) -> tuple[np.ndarray, float]:
    """The law of a rounded reward 0 or 1 of mean p, and what makes its mean move by 1 with p."""
    k, true = report.categories, report.probability
    other = (1 - true) / (k - 1)
    law = np.full(k, other)
    law[0] += (1 - p) * (true - other)
    law[-1] += p * (true - other)
    return law, 1 / (true - other)


def test_the_next_arm_is_that_of_imed_on_what_bits_tell() -> None:
    method, rng = arms(), np.random.default_rng(0)
    mu = math.tanh(method.epsilon / 2)
    state, bits, n, left = method.start(), np.zeros(3), np.zeros(3), 0
    for batch in range(200):
        arm = method.public_arm(state)
        wanted = (
            imed_arm(0.5 + (bits / n - 0.5) / mu, mu**2 * n, mu**2 * left) if batch > 2 else batch
        )
        assert arm == wanted
        messages = int(rng.integers(1, 9))
        ones = int(rng.binomial(messages, 0.5 + mu * (MEANS[arm] - 0.5)))
        bits[arm], n[arm] = bits[arm] + ones, n[arm] + messages
        signs = np.array([[(2 * ones - messages) / mu]])
        state = method.step(state, batch, signs, np.array([messages]))
        left = method.horizon - method.starts[batch + 1]


def test_a_batch_that_nobody_was_heard_of_teaches_nothing() -> None:
    server, client = sides(arms(first_phase=5))
    for _ in range(3):
        server.advance()
    assert server.model().arrays["arm"].tolist() == [0.0]
    assert server.users.start == 15
    assert np.isfinite(server.model().arrays["means"]).all()
    assert meet(server, client, 500) >= 0


def test_an_answer_to_another_arm_is_no_record() -> None:
    """Else it would be counted for the arm that is published."""
    server, client = sides(arms(first_phase=4, epsilon=20.0))
    model = server.model()
    for user, (action, reward) in enumerate([(0, 1.0), (2, 1.0), (0, math.nan), (0, 7.0)]):
        assert client.choose(None, model, user=user) == 0
        assert server.update(client.randomize(None, action, reward, user=user))
    client.diagnostics.counts.pop("a reward beyond its bounds")
    assert client.diagnostics.counts == {"a row that cannot be used": 2}
    many = LocalClient(client.config, sides(server.config.method)[1]._accountant)  # type: ignore
    many.choose_many(None, model, users=range(4))
    sent = many.randomize_many(None, [1] * 4, [1.0] * 4, users=range(4))
    assert len(sent) == 4 * 28
    assert many.diagnostics.counts == {"a row that cannot be used": 4}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n_arms": 1}, "n_arms"),
        ({"delta": 1e-6}, "delta"),
        (
            {"horizon": 20, "first_phase": 8},
            "horizon = 20: .* n_arms·first_phase = 24",
        ),
        ({"reward_low": 1.0}, "reward_low must be below reward_high"),
        ({"growth": 0.0}, "growth"),
    ],
)
def test_public_mistakes_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        arms(**fields)
