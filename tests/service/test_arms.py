"""Arms without contexts, tests and experts behind HTTP."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from services import ARMS, PEOPLE, SLATES, Local, run_with, served, write_config

from privlearn.accountants import audit
from privlearn.errors import DataError, ServiceError
from privlearn.service import AsyncClient
from privlearn.service.config import read_config
from privlearn.service.exchange import results_in
from privlearn.service.link import OwnerLink
from privlearn.service.messages import (
    ABTestResults,
    ArmResults,
    ExpertResults,
    GLMResults,
    packed,
)
from privlearn.service.owner import serve
from privlearn.service.worker import server_of

TEST = served('name = "PrivateTest"', users="400")
EXPERTS = served('name = "PrivateExperts"\nn_experts = 4\nfirst_block = 10', users="60")


async def shown(service: Local, body: Any = None) -> dict[str, Any]:
    answer = await service.post("/v1/recommend", {} if body is None else body)
    assert answer.status_code == 200, answer.text
    offer: dict[str, Any] = answer.json()
    return offer


async def results(service: Local) -> dict[str, Any]:
    answer = await service.get("/v1/results", "watch")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def observed(service: Local, offer: dict[str, Any], **answer: Any) -> int:
    told = await service.post("/v1/observe", {"offer": offer["offer"], **answer})
    return told.status_code


def test_arms_need_no_body_and_tell_results(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        told = await results(service)
        assert (told["means"], told["pulls"], told["visitors"]) == ([None] * 3, [0] * 3, 0)
        assert told["best_arm"] is None
        headers = service.json_of("serve")
        for _ in range(30):
            answer = await service.http.post("/v1/recommend", content=b"", headers=headers)
            assert set(offer := answer.json()) == {"offer", "arm"}
            assert await observed(service, offer, reward=float(offer["arm"] == 1)) == 204
        told = await results(service)
        learner = service.books.offers.learner
        assert told["learner"] == "PrivateArms"
        assert told["pulls"] == learner.pulls_.tolist()
        assert told["means"] == learner.means_.tolist()
        assert 0 < told["visitors"] == sum(told["pulls"]) <= 30
        assert (await service.get("/v1/results", "serve")).status_code == 403

    run_with(write_config(tmp_path, ARMS), work)


def test_bodies_and_rewards_that_are_none(tmp_path: Path) -> None:
    secret = "hunter2"

    async def work(service: Local) -> None:
        headers = service.json_of("serve")
        for clock, body in enumerate(({"context": [1.0]}, {secret: 1}, [secret], {"person": 1}), 1):
            answer = await service.post("/v1/recommend", body)
            assert answer.status_code == 422
            assert secret not in answer.text
            assert (await service.get("/v1/status")).json()["clock"] == clock
        for reward in ("7", "-1", "null", "NaN", "1e999"):  # all of them null, none clipped
            offer = await shown(service)
            body = f'{{"offer": "{offer["offer"]}", "reward": {reward}}}'.encode()
            answer = await service.http.post("/v1/observe", content=body, headers=headers)
            assert answer.status_code == 204
        offer = await shown(service)
        answer = await service.post("/v1/observe", {"offer": offer["offer"], "reward": secret})
        assert (answer.status_code, secret in answer.text) == (422, False)
        assert await observed(service, offer, reward=1) == 204
        assert await observed(service, offer, reward=1) == 409
        await service.close()
        counts = service.books.offers.learner.private_counts_
        assert sum(counts.reasons.values()) >= 9

    run_with(write_config(tmp_path, ARMS), work)


def test_a_test_tells_its_evidence(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        told = await results(service)
        assert (told["p_values"], told["intervals"]) == ([1], [[-1, 1]])
        assert told["e_values"][0] <= 1
        for _ in range(207):  # blocks of 100 and 106, and one visitor after them
            offer = service.books.offers.select()
            service.books.offers.observe(offer.id, offer.items)
        told = await results(service)
        assert (told["wins"], told["loses"], told["alpha"]) == ([1], [], 0.05)
        assert told["visitors"] == 206
        assert told["p_values"][0] < 0.05
        low, high = told["intervals"][0]
        assert 0 < low < high <= 1
        assert "does not depend on the arm" in told["hypothesis"]
        assert isinstance(results_in(told), ABTestResults)

    run_with(write_config(tmp_path, TEST), work)


def test_people_come_back_to_a_test_of_coins_only(tmp_path: Path) -> None:
    config = TEST.replace('"PrivateTest"', '"PrivateTest"\nassume = "coin"') + PEOPLE

    async def work(service: Local) -> None:
        for visitor in range(20):
            offer = await shown(service, {"person": f"p{visitor % 7}"})
            assert await observed(service, offer, reward=1) == 204
        assert (await results(service))["intervals"] is None
        assert (await service.post("/v1/forget", {"person": "p1"}, "operator")).status_code == 204
        assert (await service.post("/v1/recommend", {})).status_code == 422

    run_with(write_config(tmp_path, config), work)


def test_open_phases_outlive_the_owner_where_rows_are_kept(tmp_path: Path) -> None:
    key = tmp_path / "rows.key"
    key.touch(0o600)
    key.write_bytes(bytes(range(32)))
    text = ARMS.replace("= 3", "= 3\nfirst_phase = 10")
    path = write_config(tmp_path, text + '[rows]\npath = "rows.db"\nkey_file = "rows.key"\n')

    async def begin(service: Local) -> None:
        for visitor in range(13):
            offer = await shown(service)
            if visitor != 11:
                assert await observed(service, offer, reward=1) == 204

    async def go_on(service: Local) -> dict[str, Any]:
        learner = service.books.offers.learner
        assert (learner.clock_, learner.shown_.tolist()) == (13, [10, 3, 0])
        for _ in range(8):
            assert await observed(service, await shown(service), reward=1) == 204
        return await results(service)

    run_with(path, begin)
    told = run_with(path, go_on)
    assert (told["pulls"], told["visitors"]) == ([10, 10, 0], 20)
    assert audit(tmp_path / "ledger.db").problems == []


def test_experts_are_followed_and_lose(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        assert (await results(service))["expert"] is None
        losses: list[Any] = [[1, 1, 0, 1], None, [1, 1, None, 1], [0.5], [9, 0, 0, 0]]
        for visitor in range(45):
            offer = await shown(service)
            assert set(offer) == {"offer", "expert"}
            sent = losses[visitor] if visitor < len(losses) else packed(np.array([1.0, 1, 0, 1]))
            assert await observed(service, offer, losses=sent) == 204
        told = await results(service)
        assert (told["expert"], told["visitors"] > 10, told["redraws"] > 1) == (2, True, True)
        offer = await shown(service)
        for wrong in ("hunter2", 1, {"a": 1}, [True], ["x"], [[1, 0, 0, 0]]):
            answer = await service.post("/v1/observe", {"offer": offer["offer"], "losses": wrong})
            assert (answer.status_code, "hunter2" in answer.text) == (422, False)

    run_with(write_config(tmp_path, EXPERTS, budget='"1,1e-6"'), work)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (served('name = "HeldPolicy"\nn_arms = 3'), "it needs policy: an object, which no file"),
        (EXPERTS.replace("= 4", '= 4\npolicies = ["a:b"]'), "learner.policies: must be an object"),
        (ARMS + "[batches]\nlate_offers = 5\n", "give learner.delay = 5"),
        (ARMS.replace("= 3", "= 3\nreward_range = [0]"), "reward_range: must be a list [float, fl"),
    ],
)
def test_what_no_file_can_say_is_refused_with_a_way_out(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as refused:
        read_config(write_config(tmp_path, text))
    assert message in str(refused.value)


def test_the_client_over_real_sockets(tmp_path: Path) -> None:
    """Of HTTP, and of the owner."""

    async def work(service: Local) -> None:
        owner = asyncio.create_task(serve(service.config, service.books, None))
        config = service.config
        link = OwnerLink(config.at(config.socket), config.largest_request, 8)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            server = server_of(config, link)
            worker = asyncio.create_task(server.serve(sockets=[taken]))
            async with AsyncClient(url, service.tokens["serve"], patience=30) as shop:
                if config.learner.name == "PrivateExperts":
                    for losses in ([0, 1, 1, 1], np.array([0.5] * 4), [np.inf, 0, 0, 0], None):
                        expert = await shop.recommend_expert()
                        await shop.observe_losses(expert.offer, losses)
                elif config.learner.name == "OnePassNewtonGLM":
                    for actions, reward in ((1, 1.0), (3, None), (4, np.nan)):
                        action = await shop.recommend_action(np.ones((actions, 2)))
                        assert action.action < actions
                        await shop.observe_reward(action.offer, reward)
                else:
                    for reward in (1.0, np.nan, None, 7):
                        arm = await shop.recommend_arm()
                        await shop.observe_reward(arm.offer, reward)
                with pytest.raises(ServiceError, match="the request needs 'watch'"):
                    await shop.results()
            async with AsyncClient(url, service.tokens["watch"], patience=30) as watcher:
                found.append(await watcher.results())
            server.should_exit = True
            await worker
        await link.close()
        owner.cancel()

    found: list[Any] = []
    for number, text in enumerate((ARMS, EXPERTS, SLATES)):
        folder = tmp_path / str(number)
        folder.mkdir()
        run_with(write_config(folder, text), work)
    assert [type(each) for each in found] == [ArmResults, ExpertResults, GLMResults]
    assert [each.visitors > 0 for each in found] == [True, False, False]
