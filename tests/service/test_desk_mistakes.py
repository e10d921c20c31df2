"""Mistakes that are easily made in the service: each is found by a test."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from services import PEOPLE, TEXT, Local, features, run_with, write_config

from privlearn.accountants.certificate import Certificate
from privlearn.errors import (
    DataError,
    LedgerBusyError,
    LedgerError,
    LedgerFencedError,
    ServiceError,
)
from privlearn.service import supervisor
from privlearn.service.books import open_books
from privlearn.service.config import read_config
from privlearn.service.link import OwnerLink
from privlearn.service.owner import alone, serve
from privlearn.service.stopping import FAILED, FENCED


def test_a_key_whose_request_was_refused_may_be_used_again(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        waits = [1.0, 0.0]
        service.desk._rates.wait = lambda name: waits.pop(0)  # type: ignore[method-assign]
        body, key = {"features": features().tolist()}, {"Idempotency-Key": "k"}
        assert (await service.post("/v1/recommend", body, **key)).status_code == 429
        assert (await service.post("/v1/recommend", body, **key)).status_code == 200
        assert waits == []

    run_with(write_config(tmp_path), work)


def test_what_follows_from_the_ledger_is_that_of_now(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        account, told = service.books.accountant, list[Certificate]()
        for _ in range(2):
            answer = await service.get("/v1/certificate")
            told.append(Certificate.model_validate(answer.json()))
            assert told[-1] == account.certificate()
            await service.offer()
            assert (await service.close()).status_code == 200
        assert told[0] != told[1]

    run_with(write_config(tmp_path), work)


def test_each_full_batch_waits_for_late_answers_as_long(tmp_path: Path) -> None:
    """Also one that was full as soon as the one before it was closed."""
    patience, seen, closed = 0.04, dict[int, float](), dict[int, float]()

    async def work(service: Local) -> None:
        desk = service.desk

        def look(made: object) -> tuple[int, bool, list[tuple[str, str]]]:
            first = 10 if 0 in closed else 0
            seen.setdefault(first, time.monotonic())
            return first, True, []

        def close(first: int) -> None:
            closed.setdefault(first, time.monotonic())
            if first == 10:
                desk._state = "stopping"

        desk._look = look  # type: ignore[method-assign]
        service.books.offers.close_if_full = close  # type: ignore[method-assign]
        await asyncio.wait_for(desk.keep_time(), 10)

    text = TEXT + f'[batches]\nlate_time = "{patience * 1000:g} ms"\n'
    run_with(write_config(tmp_path, text), work)
    assert closed[0] - seen[0] >= patience
    assert closed[10] - seen[10] >= patience


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LedgerFencedError("x"), FENCED),
        (LedgerBusyError("x"), FENCED),
        (LedgerError("x"), FAILED),
        (RuntimeError("x"), FAILED),
    ],
    ids=lambda found: type(found).__name__,
)
def test_an_owner_that_lost_its_ledger_is_not_started_again(
    tmp_path: Path, error: Exception, code: int
) -> None:
    """To start it again would take the ledger from whoever has it."""
    config = read_config(write_config(tmp_path))
    books = open_books(config, "begin")

    def fails(*_: object) -> None:
        raise error

    async def run() -> int:
        books.offers.take = fails  # type: ignore[method-assign, assignment]
        serving = asyncio.create_task(serve(config, books, None))
        link = OwnerLink(config.at(config.socket), config.largest_request, 8)
        asked = {"caller": "a", "sizes": {"features": 0}}
        while not serving.done():
            with suppress(ServiceError):
                await link.ask("recommend", asked)
            await asyncio.sleep(0.002)
        await link.close()
        return await serving

    try:
        assert asyncio.run(run()) == code
    finally:
        books.close()


def test_a_key_is_of_one_person(tmp_path: Path) -> None:
    async def work(service: Local) -> None:
        body, key = {"features": features().tolist()}, {"Idempotency-Key": "k"}
        first = await service.post("/v1/recommend", {**body, "person": "ann"}, **key)
        assert first.status_code == 200
        for other in ("bob", None, 1):
            answer = await service.post("/v1/recommend", {**body, "person": other}, **key)
            assert answer.status_code == 409
            assert answer.headers["Cache-Control"] == "no-store"
        again = await service.post("/v1/recommend", {**body, "person": "ann"}, **key)
        assert again.json() == first.json()

    run_with(write_config(tmp_path, TEXT + PEOPLE), work)


def test_there_is_one_owner_and_one_service_at_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = alone(tmp_path / "lock", 0)
    with pytest.raises(DataError, match="another service with this configuration runs"):
        alone(tmp_path / "lock", 0)
    os.close(first)
    os.close(alone(tmp_path / "lock", 0))
    monkeypatch.setattr(supervisor, "_FREED", 0.0)
    config = read_config(write_config(tmp_path))
    (listening,) = supervisor._listening(config)
    with listening:
        port = listening.getsockname()[1]
        config = read_config(write_config(tmp_path, port=str(port)))
        with pytest.raises(DataError, match=f"http.port = {port}: .* cannot be listened at"):
            supervisor._listening(config)
