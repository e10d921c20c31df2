"""Bandits behind HTTP: arms and rewards, and that nobody else learns of one visitor's record."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import numpy as np
import pytest
from services import (
    ARMS,
    BANDIT,
    FIRST_BATCH,
    N_ARMS,
    PEOPLE,
    TEXT,
    USERS,
    Local,
    context,
    local,
    run_with,
    write_config,
)

from privlearn.contract.billboard import Billboard
from privlearn.learners import DPHDB
from privlearn.learners import offers as offers_module
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.learners.served import Served
from privlearn.service import desk as desk_module
from privlearn.service.access import AccessTokens
from privlearn.service.app import create_app
from privlearn.service.config import read_config
from privlearn.service.desk import Desk
from privlearn.service.learner_forms import refusal_of, served_class, served_names
from privlearn.service.link import OwnerLink
from privlearn.service.messages import OfferedArm
from privlearn.service.owner import serve


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_whatever_serves_users_in_this_package_is_served() -> None:
    shipped = {
        each.__name__
        for each in subclasses(Served)
        if each.__module__.startswith(("privlearn.learners.", "privlearn_studies.rivals."))
        and not inspect.isabstract(each)
    }
    assert {DPHDB.__name__, PrivateLeastSquares.__name__} < shipped
    of_objects = {name for name in shipped if refusal_of(name)}
    assert of_objects == {"HeldPolicy"}
    assert set(served_names()) == shipped - of_objects


@pytest.mark.parametrize("name", served_names())
def test_each_learner_is_served_with_what_its_class_says(tmp_path: Path, name: str) -> None:
    text = re.sub(r"(?s)\[learner\].*?\n\n", "[learner]\n\n", TEXT)
    sizes = {"n_items": 4, "n_arms": N_ARMS, "n_actions": 4, "n_experts": 4, "dim": 2}
    wanted = inspect.signature(served_class(name) or Served).parameters
    needed = {key for key, parameter in wanted.items() if parameter.default is parameter.empty}
    lines = [f"{key} = {size}" for key, size in sizes.items() if key in needed]
    text = text.replace("[learner]", "\n".join(["[learner]", f'name = "{name}"', *lines]))
    text = text.replace(f"users = {USERS}", "users = 400")

    async def work(service: Local) -> None:
        rng = np.random.default_rng(0)
        for _ in range(3):
            body = {
                key: rng.normal(size=shape).tolist()
                for key, shape in service.config.learner.shapes.items()
            }
            offer = (await service.post("/v1/recommend", body)).json()
            answers: dict[str, dict[str, Any]] = {
                "items": {"choice": 0},
                "arm": {"reward": 0.5},
                "action": {"reward": 0.5},
                "expert": {"losses": [0] * 4},
            }
            (answer,) = [sent for kind, sent in answers.items() if kind in offer]
            told = await service.post("/v1/observe", {"offer": offer["offer"], **answer})
            assert told.status_code == 204
        status = (await service.get("/v1/status")).json()
        assert (status["learner"], status["clock"]) == (name, 3)

    run_with(write_config(tmp_path, text), work)


def test_a_learner_of_another_package_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its constructor says what stands in the file."""
    made = type("Ours", (DPHDB,), {})
    made.__module__ = "ours"
    monkeypatch.setattr("privlearn.service.learner_forms.class_of", lambda name: made)
    path = write_config(tmp_path, BANDIT.replace('"DPHDB"', '"Ours"'))
    assert type(read_config(path).learner.make()) is made


async def pulled(service: Local, seed: int = 0, **more: Any) -> dict[str, Any]:
    answer = await service.post("/v1/recommend", {"context": context(seed).tolist(), **more})
    assert answer.status_code == 200, answer.text
    offer: dict[str, Any] = answer.json()
    assert set(offer) == {"offer", "arm"}
    assert offer["arm"] in range(N_ARMS)
    return offer


def sent_as(reward: str, offer: str) -> bytes:
    """A body whose reward is written by hand, as clients of other languages do."""
    return f'{{"offer": {json.dumps(offer)}, "reward": {reward}}}'.encode()


def test_rewards_are_taken_and_unusable_ones_are_null(tmp_path: Path) -> None:
    values = ("0.5", "1", "-7", "null", "NaN", "1e400", "-Infinity", "9" * 400)

    async def work(service: Local) -> None:
        headers = service.json_of("serve")
        for reward in values:
            body = sent_as(reward, (await pulled(service))["offer"])
            answer = await service.http.post("/v1/observe", content=body, headers=headers)
            assert (answer.status_code, answer.content) == (204, b"")
        heard = service.books.offers._open._heard
        expected = [0.5, 1.0, -7.0, *[np.nan] * 5]  # the learner's loss clips -7 to its range
        np.testing.assert_array_equal([heard[user] for user in range(len(values))], expected)

        offer = (await pulled(service))["offer"]
        for reward in ('"0.5"', '"hunter2"', "true", "[0.5]", "{}"):
            body = sent_as(reward, offer)
            answer = await service.http.post("/v1/observe", content=body, headers=headers)
            assert answer.status_code == 422
            assert answer.json()["message"] == "reward: must be a number or null"
        for body_of_items in ({"offer": offer, "choice": 1}, {"offer": offer}):
            answer = await service.post("/v1/observe", body_of_items)
            assert answer.status_code == 422
            assert "reward: must be given" in answer.json()["message"]
        answer = await service.post("/v1/recommend", {"features": [[1.0]]})
        assert "context: must be given" in answer.json()["message"]
        assert (await service.get("/v1/status")).json()["clock"] == len(values) + 2
        assert (await service.post("/v1/observe", {"offer": offer, "reward": 0})).status_code == 204

    run_with(write_config(tmp_path, BANDIT), work)


def test_contexts_that_cannot_be_used_take_a_place_and_look_like_others(tmp_path: Path) -> None:
    unusable: tuple[Any, ...] = (
        [],
        [1.0],
        [[1.0, 2.0]],
        None,
        "not base64",
        ["a", "b"],
        {"a": 1},
        [1.0, None],
    )

    async def work(service: Local) -> None:
        for clock, sent in enumerate(unusable, start=1):
            answer = await service.post("/v1/recommend", {"context": sent})
            assert (answer.status_code, set(answer.json())) == (200, {"offer", "arm"})
            assert (await service.get("/v1/status")).json()["clock"] == clock
        messages = service.books.offers.learner.private_messages_
        assert [user for user, _ in messages] == [*range(len(unusable))]

    run_with(write_config(tmp_path, BANDIT), work)


def test_the_forms_of_the_learner_stand_in_openapi(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        schema = (await service.http.get("/openapi.json")).json()
        forms = schema["components"]["schemas"]
        body = schema["paths"]["/v1/recommend"]["post"]["requestBody"]["content"]
        form = body["application/json"]["schema"]
        assert form["title"] == "RecommendArm"
        assert set(form["properties"]) == {"person", "context"}
        assert forms["OfferedArm"]["required"] == ["offer", "arm"]
        reward = forms["ObserveReward"]["properties"]["reward"]
        assert reward["anyOf"] == [{"type": "number"}, {"type": "null"}]
        assert not [name for name in forms if "Item" in name or "Choice" in name]
        post = schema["paths"]["/v1/recommend"]["post"]
        told = post["responses"]["200"]["content"]["application/json"]["schema"]
        assert told == {"$ref": "#/components/schemas/OfferedArm"}

    run_with(write_config(tmp_path, BANDIT), work)


def test_arms_and_rewards_cross_the_socket(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        serving = asyncio.create_task(serve(service.config, service.books, None))
        link = OwnerLink(
            service.config.at(service.config.socket), service.config.largest_request, 8
        )
        tokens = AccessTokens(service.config.at(service.config.access.file))
        transport = httpx.ASGITransport(create_app(service.config, tokens, link))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            while (await http.get("/ready")).status_code != 200:
                await asyncio.sleep(0.002)
            service.http, own = http, service.http
            offer = await pulled(service)
            for reward, status in (("1e400", 204), ("1", 409)):
                body, headers = sent_as(reward, offer["offer"]), service.json_of("serve")
                answer = await http.post("/v1/observe", content=body, headers=headers)
                assert answer.status_code == status
            service.http = own
        await link.close()
        serving.cancel()

    run_with(write_config(tmp_path, BANDIT), work)


# Neighbours ---------------------------------------------------------------------------------------

AT, VISITS = 4, 2 * FIRST_BATCH + 6


_PAGES = ("/v1/status", "/v1/budget")


class _SameSecrets:
    token_hex = staticmethod(lambda n: "a" * 2 * n)
    token_bytes = staticmethod(lambda n: b"k" * n)


class Visit(NamedTuple):
    """What one visitor sends: a context, a reward, and after how many further offers."""

    context: Any
    reward: str
    late: int | None


CROWD = [Visit(context(n).tolist(), str((n % 5 - 2) / 2), n % 3) for n in range(VISITS)]
NEIGHBOURS = {
    "another reward": CROWD[AT]._replace(reward="-1000"),
    "an unusable context": CROWD[AT]._replace(context=["x"]),
    "an infinite reward": CROWD[AT]._replace(reward="1e400"),
    "an answer too late": CROWD[AT]._replace(late=3 * FIRST_BATCH // 2),
    "no answer": CROWD[AT]._replace(late=None),
}


def others_see(path: Path, crowd: list[Visit], released: list[Any], again: bool) -> list[Any]:
    """Every byte that others than visitor `AT` are sent, and all that is public.

    Args:
        path: configuration.
        crowd: visitors.
        released: values that leave the mechanisms, which are written down, or with ``again`` stand
            in place of those that leave now.
    """
    post, places = Billboard.post, iter(range(len(released)))

    def posted(board: Any, *told: Any, **more: Any) -> Any:
        value = post(board, *told, **more)
        if again:
            return released[next(places)]
        released.append(value)
        return value

    async def work(service: Local) -> list[Any]:
        seen: list[Any] = []
        offers: list[str] = []

        async def observe(user: int) -> None:
            body = sent_as(crowd[user].reward, offers[user])
            headers = service.json_of("serve")
            answer = await service.http.post("/v1/observe", content=body, headers=headers)
            if user != AT:
                seen.append((answer.status_code, answer.content))

        shapes, results = service.config.learner.shapes, service.config.learner.exchange.results
        pages = [*_PAGES, *([] if results is None else ["/v1/results"])]
        for user, visit in enumerate(crowd):
            body = dict.fromkeys(shapes, visit.context)
            answer = await service.post("/v1/recommend", body)
            offers.append(answer.json().get("offer", "x"))
            seen.append((answer.status_code, answer.content if user != AT else b""))
            due = [n for n in range(user + 1) if crowd[n].late == user - n]
            for n in due:
                await observe(n)
            if user in (FIRST_BATCH // 2, VISITS - 1):
                seen += [(await service.get(page)).content for page in pages]
                certificate = (await service.get("/v1/certificate")).json()
                # hashes of the ledger, in which the values stand that left in this run
                seen.append({k: v for k, v in certificate.items() if k not in ("head", "root")})
                text = (await service.get("/metrics")).text
                own = r"privlearn_(owner_start|offer_seconds_(bucket|sum|created)).*\n"
                seen.append(re.sub(own, "", text))
        counted = service.app.state.counters.taken()
        return [*seen, counted["refused"], sum(counted["times"].values())]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Billboard, "post", posted)
        for module in (offers_module, desk_module):  # ids of offers would differ
            patched.setattr(module, "secrets", _SameSecrets)
        return run_with(path, work)


def compared(folder: Path, *neighbours: Visit, text: str = BANDIT) -> list[bool]:
    """Whether others see the same where the visitor `AT` is replaced by each neighbour."""
    released: list[Any] = []
    found = []
    for number, one in enumerate((CROWD[AT], *neighbours)):
        place = folder / str(number)
        place.mkdir(parents=True)
        burst = str(VISITS + 1)
        path = write_config(place, text, requests_per_second="0.0001", burst=burst)
        crowd = [*CROWD[:AT], one, *CROWD[AT + 1 :]]
        found.append(others_see(path, crowd, released, again=number > 0))
    assert released
    assert {200, 204} <= {each[0] for each in found[0] if isinstance(each, tuple)}
    return [each == found[0] for each in found[1:]]


@pytest.mark.parametrize(
    ("text", "names"),
    [(BANDIT, tuple(NEIGHBOURS)), (ARMS, ("another reward", "no answer"))],
)
def test_others_see_the_same_whatever_one_visitor_sends(
    text: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    same = compared(tmp_path, *[NEIGHBOURS[name] for name in names], text=text)
    assert dict(zip(names, same, strict=True)) == dict.fromkeys(names, True)


def counts_null_records(patched: pytest.MonkeyPatch) -> None:
    real = Desk._observe

    async def observe(desk: Desk, caller: str, offer: str, answer: Any) -> Any:
        if answer is None:
            desk._counters.refused("null-reward")
        return await real(desk, caller, offer, answer)

    patched.setattr(Desk, "_observe", observe)


def pulls_by_how_many_answered(patched: pytest.MonkeyPatch) -> None:
    answered = 0
    observe, of = Desk._observe, OfferedArm.of.__func__  # type: ignore[attr-defined]

    async def counted(desk: Desk, *told: Any, **more: Any) -> Any:
        nonlocal answered
        answered += 1
        return await observe(desk, *told, **more)

    def shown(kind: Any, offer: str, arm: Any) -> Any:
        return of(kind, offer, (int(arm) + answered) % N_ARMS)

    patched.setattr(Desk, "_observe", counted)
    patched.setattr(OfferedArm, "of", classmethod(shown))


def limits_offers_and_answers_together(patched: pytest.MonkeyPatch) -> None:
    real = Desk.__init__

    def made(desk: Desk, *told: Any) -> None:
        real(desk, *told)
        wait = desk._rates.wait
        desk._rates.wait = lambda name: wait(name.split()[0])  # type: ignore[method-assign]

    patched.setattr(Desk, "__init__", made)


@pytest.mark.parametrize(
    ("broken", "neighbour"),
    [
        (counts_null_records, "an infinite reward"),
        (pulls_by_how_many_answered, "no answer"),
        (limits_offers_and_answers_together, "no answer"),
    ],
)
def test_a_service_that_tells_of_a_visitor_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[pytest.MonkeyPatch], None],
    neighbour: str,
) -> None:
    broken(monkeypatch)
    assert compared(tmp_path, NEIGHBOURS[neighbour]) == [False]


def test_a_bandit_with_people_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = write_config(tmp_path, BANDIT + PEOPLE)

    async def work(service: Local) -> dict[str, Any]:
        for seed in range(13):
            offer = await pulled(service, seed, person=f"p{seed % 4}")
            body = {"offer": offer["offer"], "reward": 0.25}
            assert (await service.post("/v1/observe", body)).status_code == 204
        return dict(service.books.offers.learner.public_state())

    before = run_with(path, work)

    async def later() -> None:
        async with local(path) as service:
            status = (await service.get("/v1/status")).json()
            assert (status["clock"], status["users"]) == (13, USERS)
            assert service.books.offers.learner.public_state() == before

    asyncio.run(later())
