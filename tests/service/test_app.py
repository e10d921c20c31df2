"""What the service answers: offers, refusals, what is public, and nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
from services import PEOPLE, SHOWN, TEXT, USERS, Local, features, local, run_with, write_config

from privlearn.accountants import Certificate, audit
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.service import access, worker
from privlearn.service.access import AccessTokens
from privlearn.service.app import create_app
from privlearn.service.config import read_config
from privlearn.service.connections import Places
from privlearn.service.link import OwnerLink
from privlearn.service.messages import packed
from privlearn.service.visits import as_id, form_of_ids
from privlearn.values.participation import Participation


def code(answer: Any) -> tuple[int, str]:
    """Status and code of a refusal, which says nothing else but a message."""
    told = answer.json()
    assert set(told) == {"code", "message"}
    return answer.status_code, told["code"]


def test_visitors_are_served_and_answer_in_any_order(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        offers = [await service.offer(seed) for seed in range(5)]
        assert len({offer["offer"] for offer in offers}) == 5
        for offer in offers:
            assert len(offer["items"]) == SHOWN
        for offer, choice in zip(reversed(offers), (None, 0, 3, 99, 1), strict=True):
            answer = await service.post("/v1/observe", {"offer": offer["offer"], "choice": choice})
            assert (answer.status_code, answer.content) == (204, b"")
        status = (await service.get("/v1/status", "watch")).json()
        assert (status["clock"], status["users"], status["state"]) == (5, USERS, "serving")
        # in the learner there is what came, by index
        heard = service.desk._offers.offers._open._heard
        assert heard == {4: -1.0, 3: 0.0, 2: 3.0, 1: 4.0, 0: 1.0}

    run_with(write_config(tmp_path), work)


def test_answers_to_unknown_foreign_closed_and_answered_offers(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        first, second = await service.offer(0), await service.offer(1)

        async def observe(offer: str, role: str = "serve") -> Any:
            return await service.post("/v1/observe", {"offer": offer, "choice": 1}, role)

        assert code(await observe("nothing")) == (404, "unknown-offer")
        assert code(await observe("")) == (404, "unknown-offer")
        assert code(await observe(first["offer"][:-1] + "x")) == (404, "unknown-offer")
        assert code(await observe(first["offer"], "other")) == (404, "unknown-offer")
        assert (await observe(first["offer"])).status_code == 204
        assert code(await observe(first["offer"])) == (409, "answered-offer")
        assert (await service.close()).status_code == 200
        assert code(await observe(second["offer"])) == (410, "closed-offer")
        later = await service.offer(2)
        assert (await observe(later["offer"])).status_code == 204

    run_with(write_config(tmp_path), work)


def test_an_offer_of_an_owner_before_is_unknown(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    before = run_with(path, lambda service: service.offer())

    async def work(service: Local) -> None:
        body = {"offer": before["offer"], "choice": 1}
        assert code(await service.post("/v1/observe", body)) == (404, "unknown-offer")

    run_with(path, work)


def test_a_retry_has_the_same_offer_while_it_is_open(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        body = {"features": features().tolist()}
        key = {"Idempotency-Key": "k" * 20}
        asked = (service.post("/v1/recommend", body, **key) for _ in range(3))
        offers = [answer.json() for answer in await asyncio.gather(*asked)]
        assert offers[0] == offers[1] == offers[2]
        assert (await service.get("/v1/status")).json()["clock"] == 1
        other = {"features": features(1).tolist()}
        assert code(await service.post("/v1/recommend", other, **key)) == (409, "key-reused")
        # another access token's key is another key
        assert (await service.post("/v1/recommend", other, "other", **key)).status_code == 200
        await service.close()
        again = (await service.post("/v1/recommend", body, **key)).json()
        assert again["offer"] != offers[0]["offer"]
        assert (await service.post("/v1/recommend", body, **key)).json() == again
        made = service.desk._made
        assert len(made) == 2
        for place in service.desk._look(tuple(made.items()))[2]:  # as the clock does
            del made[place]
        assert [caller for caller, _ in made] == ["serve"]

    run_with(write_config(tmp_path), work)


UNUSABLE = (
    [[1.0, 2.0]],
    [[1.0]] * 4,
    [1.0] * 8,
    [[1.0, None]] * 4,
    [["a", "b"]] * 4,
    [[1.0, 2.0], [1.0]],
    {"a": 1},
    None,
    7,
    "not base64",
    packed(np.ones(7)),
    packed(np.full(8, np.nan)),
    [[1e400, 1.0]] * 4,
)


def test_data_that_cannot_be_used_take_a_place_and_look_like_others(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        for clock, sent in enumerate(UNUSABLE, start=1):
            body, headers = json.dumps({"features": sent}), service.json_of("serve")
            answer = await service.http.post("/v1/recommend", content=body, headers=headers)
            assert answer.status_code == 200
            assert answer.json()["items"] == [0, 1]
            observe = {"offer": answer.json()["offer"], "choice": 0}
            assert (await service.post("/v1/observe", observe)).status_code == 204
            assert (await service.get("/v1/status")).json()["clock"] == clock
        messages = service.books.offers.learner.private_messages_
        assert [user for user, _ in messages] == [*range(len(UNUSABLE))]

    run_with(write_config(tmp_path), work)


def test_numbers_as_base64_are_those_of_a_list(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        sent: list[Any] = []
        real = service.desk._offers.select

        async def select(*data: Any, **more: Any) -> Any:
            sent.append(data)
            return await real(*data, **more)

        service.desk._offers.select = select  # type: ignore[method-assign]
        for values, prices in (
            (features().tolist(), [1, 2, 3, 4]),
            (packed(features()), packed(np.arange(1.0, 5.0))),
        ):
            answer = await service.post("/v1/recommend", {"features": values, "revenues": prices})
            assert answer.status_code == 200
        for got, prices in sent:
            np.testing.assert_array_equal(got, features())
            np.testing.assert_array_equal(prices, [1, 2, 3, 4])

    run_with(write_config(tmp_path), work)


def test_callers_without_the_right_token(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        paths = [path for path in service.paths if path not in ("/health", "/ready")]
        assert len(paths) == 8
        for path, method in ((p, m) for p in paths for m in service.paths[p]):
            bare = await service.http.request(method, path, json={})
            assert code(bare) == (401, "no-token")
            assert bare.headers["WWW-Authenticate"] == "Bearer"
            for wrong in ("Bearer x", f"Bearer {service.tokens['serve']}x", "Basic eDp4"):
                refused = await service.http.request(
                    method, path, json={}, headers={"Authorization": wrong}
                )
                assert refused.status_code == 401
        assert code(await service.get("/v1/status", "serve")) == (403, "wrong-role")
        assert code(await service.get("/metrics", "serve")) == (403, "wrong-role")
        for role in ("watch", "operator"):
            body = {"features": features().tolist()}
            assert code(await service.post("/v1/recommend", body, role)) == (403, "wrong-role")
        for role in ("serve", "watch"):
            assert code(await service.post("/v1/close-batch", {}, role)) == (403, "wrong-role")
            assert code(await service.post("/v1/forget", {"person": 1}, role)) == (
                403,
                "wrong-role",
            )
        assert (await service.get("/v1/status")).json()["clock"] == 0

    run_with(write_config(tmp_path), work)


def test_requests_of_another_form(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        token = service.json_of("serve")
        secret = "hunter2"
        for content, told in (
            (b"{" + secret.encode(), "the body is no JSON"),
            (b"[1]", "the body: Input should be"),
            (b"", "features: must be given"),
            (f'{{"{secret}": 1, "features": 1}}'.encode(), "a name that the request does not"),
            (b'{"revenues": [1]}', "features: must be given"),
            (
                f'{{"features": 1, "person": ["{secret}"]}}'.encode(),
                "person: Input should be a valid int",
            ),
        ):
            answer = await service.http.post("/v1/recommend", content=content, headers=token)
            assert code(answer) == (422, "bad-request")
            assert told in answer.json()["message"]
            assert secret not in answer.text
        body = {"features": 1, "person": "x"}
        answer = await service.post("/v1/recommend", body)
        assert code(answer) == (422, "bad-request")
        assert "the service has no rule of participation" in answer.json()["message"]
        assert "The visitor's arrival index was used up" in answer.json()["message"]
        for choice in (1.5, "1", [1], True, -1):
            answer = await service.post("/v1/observe", {"offer": "x", "choice": choice})
            assert answer.status_code == 422
        assert code(await service.http.get("/v1/nothing")) == (404, "not-found")
        assert code(await service.http.get("/v1/recommend")) == (405, "wrong-method")
        answer = await service.http.get("/v1/certificate?delta=2", headers=token)
        assert answer.status_code in (403, 422)
        assert (await service.get("/v1/status")).json()["clock"] == 7

    run_with(write_config(tmp_path), work)


def test_no_request_ends_the_owner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep, digits = "[" * 20_000 + "]" * 20_000, "9" * 5_000
    values = (
        '"\\ud800"',
        '"' + "x" * 513 + '"',
        "1" * 400,
        digits,
        deep,
        "NaN",
        "-0",
        "true",
        "{}",
        '""',
    )
    cases = [
        *(("/v1/recommend", "serve", f'{{"features": 1, "person": {v}}}') for v in values),
        *(("/v1/recommend", "serve", f'{{"features": {v}, "person": "x"}}') for v in values),
        *(
            ("/v1/recommend", "serve", f'{{"features": 1, "revenues": {v}, "person": 1}}')
            for v in values
        ),
        *(("/v1/observe", "serve", f'{{"offer": {v}, "choice": 1}}') for v in values),
        *(("/v1/observe", "serve", f'{{"offer": "é", "choice": {v}}}') for v in values),
        *(("/v1/forget", "operator", f'{{"person": {v}}}') for v in values),
    ]

    async def work(service: Local) -> None:
        for path, role, body in cases:
            headers = {**service.json_of(role), "Idempotency-Key": "k"}
            for more in (headers, service.json_of(role)):
                answer = await service.http.post(path, content=body.encode(), headers=more)
                assert answer.status_code in (200, 204, 404, 409, 422), (path, body[:60])
        assert (await service.http.get("/ready")).status_code == 200

    run_with(write_config(tmp_path, TEXT + PEOPLE), work)
    assert not [record for record in caplog.records if record.msg == "request-failed"]


def test_requests_that_are_too_large(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        token = service.json_of("serve")
        most = service.config.largest_request
        assert most == 9 * 1024

        async def pieces() -> Any:  # without a declared length
            for _ in range(3):
                yield b" " * 5000

        body = json.dumps({"features": features().tolist()})
        for content, told in (
            (body.ljust(most).encode(), 200),
            (body.ljust(most + 1).encode(), 413),
            (pieces(), 413),
        ):
            answer = await service.http.post("/v1/recommend", content=content, headers=token)
            assert answer.status_code == told
        assert answer.json()["code"] == "too-large"
        for length in ("x", "9" * 5000):
            answer = await service.http.post(
                "/v1/recommend", content=b"{}", headers={**token, "Content-Length": length}
            )
            assert answer.status_code == 413

    text = TEXT.replace("workers = 1", 'workers = 1\nlargest_request = "9 KiB"')
    run_with(write_config(tmp_path, text), work)


def test_too_many_requests_of_one_token_and_resource(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        for _ in range(2):
            await service.offer()
        body = {"features": features().tolist()}
        refused = await service.post("/v1/recommend", body)
        assert code(refused) == (429, "too-many")
        assert 1 <= int(refused.headers["Retry-After"]) <= 1000
        # answers have a limit of their own: how many come must not decide who is served
        answer = await service.post("/v1/observe", {"offer": "x", "choice": 1})
        assert answer.status_code == 404
        assert (await service.post("/v1/recommend", body, "other")).status_code == 200
        assert (await service.get("/v1/status")).json()["clock"] == 3

    path = write_config(tmp_path, requests_per_second="0.001", burst="2")
    run_with(path, work)


def test_limits_hold_over_all_workers(tmp_path: Path) -> None:
    """A flood that is spread over workers is one flood; each resource is counted by itself."""

    async def work(service: Local) -> None:
        tokens = AccessTokens(service.config.at(service.config.access.file))
        workers = [create_app(service.config, tokens, service.desk) for _ in range(3)]
        offer = await service.offer()  # the fourth
        asked: list[tuple[str, str, Any]] = [
            ("POST", "/v1/observe", {"offer": offer["offer"], "choice": 1}),
            ("POST", "/v1/recommend", {"features": features().tolist()}),
            *(("GET", f"/v1/{page}", None) for page in ("status", "budget", "certificate")),
            ("GET", "/metrics", None),
            ("POST", "/v1/forget", {"person": "ann"}),
            ("POST", "/v1/close-batch", {"batch": 0, "places": 40}),
        ]
        for method, page, body in asked:
            role = "serve" if page in ("/v1/observe", "/v1/recommend") else "operator"
            codes = []
            for app in workers:
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
                    headers = {"Authorization": f"Bearer {service.tokens[role]}"}
                    answer = await http.request(method, page, json=body, headers=headers)
                codes.append(answer.status_code)
            taken = 1 if page == "/v1/recommend" else 2
            assert 429 not in codes[:taken], page
            assert codes[taken:] == [429] * (3 - taken), page
            assert answer.json()["code"] == "too-many"
            assert int(answer.headers["Retry-After"]) >= 1
        # other tokens are not limited by it, nor what workers ask for themselves
        body = {"features": features().tolist()}
        assert (await service.post("/v1/recommend", body, "other")).status_code == 200
        for _ in range(3):
            assert (await service.http.get("/ready")).status_code == 200
        # which limit refused an answer is nobody else's
        counted = [app.state.counters.taken()["refused"] for app in workers]
        assert sum(each.get("too-many", 0) for each in counted) == 8

    run_with(write_config(tmp_path, requests_per_second="0.0001", burst="2"), work)


def test_connections_and_waiting_requests_are_divided_among_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Server:
        def __init__(self, made: Any) -> None:
            pass

        async def serve(self, **_: Any) -> None:
            pass

    class Link(OwnerLink):
        def __init__(self, path: Path, largest: int, waiting: int) -> None:
            super().__init__(path, largest, waiting)
            seen.append(waiting)

    def parts(most: int, seconds: float) -> Places:
        seen.append(most)
        return Places(most, seconds)

    monkeypatch.setattr(worker, "_Server", Server)
    monkeypatch.setattr(worker, "OwnerLink", Link)
    monkeypatch.setattr(worker, "Places", parts)
    monkeypatch.setattr(worker, "when_told", lambda *_: None)
    path = write_config(tmp_path, TEXT.replace("workers = 1", "workers = 3\nmost_connections = 10"))
    access.add(tmp_path / "access.json", "shop", "serve")
    asyncio.run(worker.serve(read_config(path), None, 0))  # type: ignore[arg-type]
    assert seen == [341, 3]


def test_people_are_named_where_there_is_a_rule(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        body = {"features": features().tolist()}
        missing = await service.post("/v1/recommend", body)
        assert code(missing) == (422, "bad-request")
        assert "person is missing" in missing.json()["message"]
        for person in ("ann", "ann", "ann", "", None, 7, "7"):
            offer = await service.offer(person=person)
            answer = await service.post("/v1/observe", {"offer": offer["offer"], "choice": 1})
            assert answer.status_code == 204
        assert (await service.get("/v1/status")).json()["clock"] == 8
        for person, told in (("ann", 204), (7, 204), ("", 422)):
            answer = await service.post("/v1/forget", {"person": person}, "operator")
            assert answer.status_code == told

    run_with(write_config(tmp_path, TEXT + PEOPLE), work)


def test_no_visitor_decides_what_ids_of_others_are(tmp_path: Path) -> None:
    """Else one id as a number made the records of all others null; a registry of numbers stays."""
    made = People.memory(Participation(most=1))
    assert form_of_ids(made) is str
    made.bind("account", range(4))
    made.admit(Rows.seal([1.0], users=range(1)), [7])
    assert form_of_ids(made) is int
    ids: list[Any] = [(7, "7", 7), ("ann", "ann", None), ("07", "07", None), (None, None, None)]
    for sent, as_text, as_number in ids:
        assert (as_id(sent, str), as_id(sent, int)) == (as_text, as_number)


def test_what_is_public_is_that_of_the_ledger(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        for seed in range(12):
            await service.offer(seed)
        budget = (await service.get("/v1/budget", "watch")).json()
        account = service.books.accountant
        assert budget["cap"] == {"kind": "zcdp", "rho": "1"}
        assert budget["remaining"] == account.remaining().to_dict()
        assert budget["reserved"] == account.spent().to_dict()
        assert budget["epsilon"] == account.epsilon(1e-6)
        assert 0 < budget["epsilon_spent"] == account.epsilon(1e-6, of="spent")
        assert budget["simulated"] is True
        told = await service.get("/v1/certificate?delta=1e-5")
        assert Certificate.model_validate(told.json()) == account.certificate(1e-5)
        entries = (await service.get("/v1/status")).json()["entries"]
        assert entries == len(account.ledger.entries)
        schema = (await service.http.get("/openapi.json")).json()
        assert set(schema["paths"]) == set(service.paths)
        (scheme,) = schema["components"]["securitySchemes"]
        for path, methods in schema["paths"].items():
            for each in methods.values():
                wanted: Any = None if path in ("/health", "/ready") else [{scheme: []}]
                assert each.get("security") == wanted
        for page in ("/docs", "/redoc"):  # which would load scripts from elsewhere
            assert (await service.http.get(page)).status_code == 404
        assert (await service.http.get("/health")).json() == {"status": "ok"}
        assert (await service.http.get("/ready")).json() == {"status": "ready"}

    run_with(write_config(tmp_path), work)


def test_a_full_batch_closes_by_the_clock_and_the_end_closes_the_ledger(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        keeping = asyncio.create_task(service.desk.keep_time())
        offers = service.books.offers
        for seed in range(10):
            last = await service.offer(seed, person=f"p{seed}")
        assert offers.full
        while offers.full:
            await asyncio.sleep(0.002)
        body = {"offer": last["offer"], "choice": 1}
        assert code(await service.post("/v1/observe", body)) == (410, "closed-offer")
        for seed in range(10, USERS):
            await service.offer(seed, person=f"p{seed}")
        full = {"features": features().tolist(), "person": "x"}
        while (await service.get("/v1/status")).json()["state"] != "over":
            await asyncio.sleep(0.002)
        assert code(await service.post("/v1/recommend", full)) == (410, "over")
        assert code(await service.http.get("/ready")) == (410, "over")
        assert code(await service.post("/v1/observe", body)) == (410, "closed-offer")
        assert (await service.post("/v1/forget", {"person": "ann"}, "operator")).status_code == 204
        assert code(await service.close()) == (410, "over")
        assert (await service.get("/v1/certificate")).json()["closed"] is True
        assert (await service.get("/metrics")).status_code == 200
        await keeping

    text = TEXT + PEOPLE + '\n[batches]\nlate_time = "10 ms"\n'
    run_with(write_config(tmp_path, text), work)
    told = audit(tmp_path / "ledger.db")
    assert told.closed
    assert not told.problems


def test_a_stop_ends_offers_before_answers(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        offer = await service.offer()
        stopping = asyncio.create_task(service.desk.stop(0.05))
        await asyncio.sleep(0)
        body = {"features": features().tolist()}
        assert code(await service.post("/v1/recommend", body)) == (503, "stopping")
        assert code(await service.http.get("/ready")) == (503, "stopping")
        answer = await service.post("/v1/observe", {"offer": offer["offer"], "choice": 1})
        assert answer.status_code == 204
        assert not stopping.done()  # whoever has answered, it takes the same time
        await stopping

    run_with(write_config(tmp_path), work)


def test_an_error_inside_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(service: Local) -> None:
        async def select(*data: Any, **more: Any) -> Any:
            raise RuntimeError("hunter2")

        service.desk._offers.select = select  # type: ignore[method-assign]
        with caplog.at_level(logging.INFO):
            answer = await service.post("/v1/recommend", {"features": features().tolist()})
        assert code(answer) == (500, "failed")
        assert "hunter2" not in answer.text

    run_with(write_config(tmp_path), work)
    (record,) = [r for r in caplog.records if r.msg == "request-failed"]
    assert record.__dict__["told"]["error"] == "RuntimeError"
    assert "hunter2" not in str(record.__dict__["told"])


def test_replies_leave_in_steps(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await service.offer()
        assert loop.time() - start >= 0.05
        start = loop.time()
        await service.post("/v1/observe", {"offer": "x", "choice": 1})
        assert loop.time() - start >= 0.05

    run_with(write_config(tmp_path, reply_step='"50 ms"'), work)


async def _resumed(path: Path) -> int:
    async with local(path) as service:
        return int((await service.get("/v1/status")).json()["clock"])


def test_a_service_goes_on_where_it_stopped(tmp_path: Path) -> None:
    text = TEXT + PEOPLE
    path = write_config(tmp_path, text)

    async def work(service: Local) -> None:
        for seed in range(13):
            await service.offer(seed, person=f"p{seed}")

    run_with(path, work)
    assert asyncio.run(_resumed(path)) == 13
