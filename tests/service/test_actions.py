"""Actions with features behind HTTP: slates of varying length, rewards, what was learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from arm_users import joint
from services import PEOPLE, SLATES, Local, run_with, write_config

from privlearn.accountants import audit
from privlearn.learners.kept_rows import Recovered
from privlearn.losses.budgets import ZCDP
from privlearn.service.exchange import results_in
from privlearn.service.messages import GLMResults, packed

CONTEXTS = SLATES.replace("= 4", "= 4\nper_action = true")


async def shown(service: Local, features: Any, **more: Any) -> dict[str, Any]:
    answer = await service.post("/v1/recommend", {"features": features, **more})
    assert answer.status_code == 200, answer.text
    offer: dict[str, Any] = answer.json()
    assert set(offer) == {"offer", "action"}
    return offer


async def observed(service: Local, offer: dict[str, Any], reward: Any) -> int:
    told = await service.post("/v1/observe", {"offer": offer["offer"], "reward": reward})
    return told.status_code


def test_slates_of_any_length_are_served_and_learned_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    async def work(service: Local) -> None:
        for visitor in range(35):
            slate = rng.normal(size=(1 + visitor % 4, 2))
            sent: Any = packed(slate) if visitor % 2 else slate.tolist()
            offer = await shown(service, sent)
            assert offer["action"] < len(slate)
            assert await observed(service, offer, int(slate[offer["action"], 0] > 0)) == 204
        told = (await service.get("/v1/results", "watch")).json()
        learner = service.books.offers.learner
        assert not learner.private_counts_.reasons  # no slate was taken for a bad one
        assert (told["theta"], told["visitors"]) == (learner.theta_.tolist(), 30)
        np.testing.assert_allclose(
            np.array(told["stds"]) ** 2, np.linalg.inv(learner.precision_).diagonal()
        )
        assert isinstance(results_in(told), GLMResults)

    run_with(write_config(tmp_path, SLATES), work)
    assert audit(tmp_path / "ledger.db").problems == []


def test_a_slate_that_is_none_is_null_and_takes_its_place(tmp_path: Path) -> None:
    slates: list[Any] = [[], [[]], [[1, 1, 1]], [[1, 1]] * 5, [1, 1], [[1, 1], [1]], [[1, None]]]
    slates += [packed(np.ones(size)) for size in (0, 3, 10)]

    async def work(service: Local) -> None:
        for slate in slates:
            assert await observed(service, await shown(service, slate), 1) == 204
        learner = service.books.offers.learner
        assert [user for user, _ in learner.private_messages_] == list(range(len(slates)))
        (told,) = {told for _, told in learner.private_messages_}
        assert told.startswith("the features must be (m, 2) finite numbers, of 1 to 4 actions,")

    run_with(write_config(tmp_path, SLATES), work)


def test_what_actions_earn_decides_as_in_a_program(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)

    async def work(service: Local) -> None:
        control = service.config.learner.make().start(joint(60, ZCDP(1), 1))
        for visitor in range(40):
            slate, earned = (
                rng.normal(size=(1 + visitor % 4, 2)),
                rng.uniform(1, 9, 1 + visitor % 4),
            )
            sent: Any = packed(earned) if visitor % 2 else earned.tolist()
            offer = await shown(service, slate.tolist(), revenues=sent)
            assert offer["action"] == control.select(slate, earned)
            control.observe(int(slate[offer["action"], 0] > 0))
            assert await observed(service, offer, int(slate[offer["action"], 0] > 0)) == 204
        for revenues in ([1], [1, 2, 3], ["x", 1], [1, None], 7, packed(np.ones(9))):
            await shown(service, [[1, 1], [0, 1]], revenues=revenues)
        learner = service.books.offers.learner
        assert len(learner.private_messages_) == 6
        np.testing.assert_array_equal(learner.theta_, control.theta_)

    run_with(write_config(tmp_path, SLATES), work)


def test_contexts_of_actions_with_parameters_of_their_own(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        for visitor in range(11):
            offer = await shown(service, [1.0, visitor / 10], person=f"p{visitor % 6}")
            assert await observed(service, offer, [0.5, 7, None][visitor % 3]) == 204
        told = (await service.get("/v1/results", "watch")).json()
        assert np.shape(told["theta"]) == np.shape(told["stds"]) == (4, 2)
        assert told["visitors"] == 10  # also those whose rewards are no use
        reasons = service.books.offers.learner.private_counts_.reasons
        assert sum(reasons.values()) == 6, reasons
        assert (await service.post("/v1/recommend", {"features": [1, 1]})).status_code == 422

    run_with(write_config(tmp_path, CONTEXTS + PEOPLE), work)


def test_open_slates_outlive_the_owner_where_rows_are_kept(tmp_path: Path) -> None:
    key = tmp_path / "rows.key"
    key.touch(0o600)
    key.write_bytes(bytes(range(32)))
    path = write_config(tmp_path, SLATES + '[rows]\npath = "rows.db"\nkey_file = "rows.key"\n')

    async def serve(service: Local, visitors: range) -> None:
        for visitor in visitors:
            offer = await shown(service, np.ones((1 + visitor % 4, 2)).tolist())
            if visitor != 11:
                assert await observed(service, offer, 1) == 204

    async def go_on(service: Local) -> dict[str, Any]:
        learner = service.books.offers.learner
        assert learner.recovered_ == Recovered((range(10, 11), range(12, 13)), (range(11, 12),))
        await serve(service, range(13, 41))
        assert not learner.private_counts_.reasons
        return dict((await service.get("/v1/results", "watch")).json())

    run_with(path, lambda service: serve(service, range(13)))
    told = run_with(path, go_on)
    assert (told["visitors"], min(told["theta"]) > 0) == (40, True)
    assert audit(tmp_path / "ledger.db").problems == []
