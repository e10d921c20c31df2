"""The typed client: what it asks again, and what it makes of answers."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx2 as httpx
import numpy as np
import pytest
from services import (
    BANDIT,
    N_ARMS,
    PEOPLE,
    TEXT,
    Local,
    context,
    features,
    run_with,
    write_config,
)

from privlearn.accountants import Certificate
from privlearn.errors import ServiceError
from privlearn.service import AsyncClient, Client
from privlearn.service.messages import Budget, OfferedArm, OfferedItems, Status, packed

OFFER = {"offer": "x", "items": [1, 2]}


def client(
    answers: list[Callable[[httpx.Request], httpx.Response]], **options: Any
) -> tuple[Client, list[httpx.Request]]:
    """A client of a service that gives these answers, one after the other."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answers[len(asked) - 1](request)

    return Client("http://x", "token", transport=httpx.MockTransport(answer), **options), asked


def refusal(status: int, code: str, after: str = "0") -> Callable[[httpx.Request], httpx.Response]:
    told = {"code": code, "message": "because"}
    return lambda request: httpx.Response(status, json=told, headers={"Retry-After": after})


def done(request: httpx.Request) -> httpx.Response:
    return httpx.Response(204)


def lost(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("hunter2")


def test_an_offer_is_asked_for_again_with_the_same_key() -> None:
    made = lambda request: httpx.Response(200, json=OFFER)  # noqa: E731
    shop, asked = client([lost, refusal(503, "owner-away"), refusal(429, "too-many"), made])
    assert shop.recommend(np.ones((2, 2)), person="ann") == OfferedItems(offer="x", items=(1, 2))
    assert len({request.headers["Idempotency-Key"] for request in asked}) == 1
    assert len({request.content for request in asked}) == 1
    assert json.loads(asked[0].content)["person"] == "ann"
    assert asked[0].headers["Authorization"] == "Bearer token"
    again, keys = client([made])
    again.recommend(np.ones((2, 2)))
    assert keys[0].headers["Idempotency-Key"] != asked[0].headers["Idempotency-Key"]
    assert "person" not in json.loads(keys[0].content)


def test_a_slate_is_sent_with_its_shape() -> None:
    shop, asked = client([lambda _: httpx.Response(200, json={"offer": "x", "action": 1})])
    shop.recommend_action(np.array([[1.5, np.nan], [np.inf, 2]]), [3, 4])
    sent = json.loads(asked[0].content)
    assert sent == {"features": [[1.5, None], [None, 2]], "revenues": [3, 4]}


def test_an_offer_of_another_kind_names_the_method_to_call() -> None:
    shop, _ = client([lambda _: httpx.Response(200, json={"offer": "x", "action": 1})])
    with pytest.raises(ServiceError, match=r"call recommend_action.*was used up") as refused:
        shop.recommend(np.ones((2, 2)))
    assert refused.value.code == "other-learner"


def test_an_answer_that_was_taken_though_its_outcome_was_lost_is_no_error() -> None:
    shop, _ = client([lost, refusal(409, "answered-offer")])
    shop.observe("x", 1)
    shop, _ = client([refusal(503, "owner-away"), refusal(409, "answered-offer")])
    shop.observe("x", 1)
    shop, _ = client([refusal(503, "busy"), refusal(409, "answered-offer")])
    with pytest.raises(ServiceError, match="because"):
        shop.observe("x", 1)
    shop, _ = client([refusal(409, "answered-offer")])
    with pytest.raises(ServiceError, match="because") as error:
        shop.observe("x", 1)
    assert (error.value.code, error.value.status) == ("answered-offer", 409)


def test_a_batch_is_closed_again_with_the_same_key() -> None:
    closed = lambda request: httpx.Response(200, json={"batch": 3, "places": 2})  # noqa: E731
    shop, asked = client([lost, refusal(503, "owner-away"), closed])
    assert shop.close_batch(3, places=5) == 2
    assert len({request.headers["Idempotency-Key"] for request in asked}) == 1
    assert [json.loads(request.content) for request in asked] == [{"batch": 3, "places": 5}] * 3


def test_what_cannot_get_better_is_not_asked_again() -> None:
    for status, code in (
        (401, "unknown-token"),
        (410, "over"),
        (404, "unknown-offer"),
        (500, "failed"),
    ):
        shop, asked = client([refusal(status, code)])
        with pytest.raises(ServiceError) as error:
            shop.status()
        assert (error.value.code, len(asked)) == (code, 1)
    shop, asked = client([refusal(429, "too-many", "3600")])  # longer than its patience
    with pytest.raises(ServiceError) as error:
        shop.status()
    assert (error.value.retry_after, len(asked)) == (3600.0, 1)
    shop, asked = client([lost] * 9, patience=0.1)
    with pytest.raises(ServiceError, match=r"at http://.* cannot be reached: ") as error:
        shop.status()
    assert error.value.code == "unreachable"
    assert 1 < len(asked) < 9
    shop, _ = client([lambda request: httpx.Response(200, text="<html>")])
    with pytest.raises(ServiceError, match="not from a service of privlearn"):
        shop.status()
    with pytest.raises(ValueError, match="must be an access token"):
        Client("http://x", " ")
    with pytest.raises(ValueError, match=r"url = '127\.0\.0\.1:8350': must begin with http://"):
        Client("127.0.0.1:8350", "t")


def test_an_answer_is_an_id_and_an_item() -> None:
    shop, asked = client([done])
    offered: Any = OfferedItems(offer="x", items=(1, 2))
    with pytest.raises(TypeError, match=r"as in offer\.offer, not OfferedItems"):
        shop.observe(offered, 1)
    for choice in (1.0, True, "1", np.float64(1)):
        with pytest.raises(TypeError, match="choice: must be an item or None, not "):
            shop.observe("x", cast("Any", choice))
    assert not asked
    shop.observe("x", cast("Any", np.int64(2)))
    assert json.loads(asked[0].content) == {"offer": "x", "choice": 2}


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "privlearn.service.client")
    with pytest.raises(ImportError, match=r"httpx2: pip install 'privlearn\[serve\]'"):
        importlib.import_module("privlearn.service.client")


def test_every_method_against_the_service(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        transport = httpx.ASGITransport(app=service.app)

        def of(role: str) -> AsyncClient:
            return AsyncClient("http://x", service.tokens[role], transport=transport)

        shop, boss = of("serve"), of("operator")
        offer = await shop.recommend(features(), np.arange(1.0, 5.0), person="ann")
        await shop.observe(offer.offer, offer.items[0])
        assert isinstance(await boss.budget(), Budget)
        assert isinstance(status := await boss.status(), Status)
        assert status.clock == 1
        assert isinstance(await boss.certificate(1e-5), Certificate)
        assert await boss.certificate() == service.books.accountant.certificate()
        await boss.forget("ann")
        assert await boss.close_batch(0, places=39) == 9
        with pytest.raises(ServiceError, match="the batch of this offer is closed"):
            await shop.observe(offer.offer, 0)

    run_with(write_config(tmp_path, TEXT + PEOPLE), work)


def test_arms_and_rewards(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        transport = httpx.ASGITransport(app=service.app)
        shop = AsyncClient("http://x", service.tokens["serve"], transport=transport)
        values: tuple[Any, ...] = (0.5, 1, None, np.nan, np.inf, np.float32(0.25))
        for reward in values:
            offer = await shop.recommend_arm(context(), person="ann")
            assert isinstance(offer, OfferedArm)
            assert offer.arm in range(N_ARMS)
            await shop.observe_reward(offer.offer, reward)
        heard = service.books.offers._open._heard
        expected = [0.5, 1.0, np.nan, np.nan, np.nan, 0.25]
        np.testing.assert_array_equal([heard[user] for user in range(6)], expected)
        with pytest.raises(ServiceError, match="context: must be given"):
            await shop.recommend(features(), person="ann")
        with pytest.raises(ServiceError, match="reward: must be given"):
            await shop.observe(offer.offer, 1)

    run_with(write_config(tmp_path, BANDIT + PEOPLE), work)


def test_a_waiting_client_sends_what_the_other_one_does() -> None:
    made = lambda request: httpx.Response(200, json={"offer": "x", "arm": 2})  # noqa: E731
    shop, asked = client([made, done, done])
    assert shop.recommend_arm(np.ones(2), person=7) == OfferedArm(offer="x", arm=2)
    shop.observe_reward("x", -0.5)
    shop.observe_reward("x", np.nan)
    bodies = [json.loads(request.content) for request in asked]
    assert bodies[0] == {"context": packed(np.ones(2)), "person": 7}
    assert bodies[1:] == [{"offer": "x", "reward": -0.5}, {"offer": "x", "reward": None}]
    for reward in (True, "1", [1.0]):
        with pytest.raises(TypeError, match="reward: must be a number or None, not "):
            shop.observe_reward("x", cast("Any", reward))
    with pytest.raises(TypeError, match=r"as in offer\.offer, not int"):
        shop.observe_reward(cast("Any", 1), 0.5)
    assert len(asked) == 3


def test_both_clients_have_the_same_methods() -> None:
    def names(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert names(Client) == names(AsyncClient)


def test_a_client_that_waits_is_closed_with_its_block() -> None:
    shop, _ = client([done])
    with shop as same:
        same.forget("ann")
    with pytest.raises(RuntimeError, match="closed"):
        shop.forget("ann")


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_no_proxy_has_the_token_of_a_service_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """And where one is met, an error says which, without its password."""
    for each in ("NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(each, raising=False)
    met: list[bytes] = []

    class Proxy(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            met.append(self.rfile.readline())
            self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        port = proxy.server_address[1]
        monkeypatch.setenv(name, f"http://user:hunter2@127.0.0.1:{port}")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            free = taken.getsockname()[1]
        hosts = ("127.0.0.1", "127.9.9.9", "127.1", "[::1]", "[::ffff:127.0.0.1]", "LOCALHOST")
        for host in hosts:
            with (
                Client(f"http://{host}:{free}", "token", patience=0) as here,
                pytest.raises(ServiceError, match="cannot be reached: ") as error,
            ):
                here.status()
            assert "proxy" not in str(error.value)

        async def asked() -> None:
            async with AsyncClient(f"http://127.0.0.1:{free}", "token", patience=0) as here:
                await here.status()

        with pytest.raises(ServiceError, match="cannot be reached: "):
            asyncio.run(asked())
        assert not met
        away = Client("http://service.invalid", "token", patience=0)
        with away, pytest.raises(ServiceError, match=rf"proxy 127\.0\.0\.1:{port} ") as error:
            away.status()
        assert error.value.status == 502
        assert "hunter2" not in str(error.value)
        assert met == [b"GET http://service.invalid/v1/status HTTP/1.1\r\n"]
        proxy.shutdown()
    with pytest.raises(ServiceError, match=rf"reached, through the proxy 127\.0\.0\.1:{port} "):
        Client("http://service.invalid", "token", patience=0).status()


def test_async_retries() -> None:
    answers = iter([lost, refusal(503, "busy"), done])

    def answer(request: httpx.Request) -> httpx.Response:
        return next(answers)(request)

    transport = httpx.MockTransport(answer)

    async def run() -> None:
        async with AsyncClient("http://x", "token", transport=transport) as shop:
            await shop.observe("x", None)

    asyncio.run(run())
