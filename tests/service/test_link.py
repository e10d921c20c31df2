"""Workers and the owner over a socket of this user: refusals, a lost owner, and the next one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from services import Local, run_with, write_config

from privlearn.accountants import JointAccountant
from privlearn.errors import DataError, ServiceError
from privlearn.noise import NoiseSource
from privlearn.service import owner
from privlearn.service.link import OwnerEnd, OwnerLink, limits
from privlearn.service.owner import alone
from privlearn.service.problems import problem
from privlearn.service.stopping import FAILED, FENCED
from privlearn.storage.frames import Message
from privlearn.storage.sockets import LocalServer, Peer

LARGEST = 2_000


class Desk:
    """Answers with what it was asked."""

    def __init__(self) -> None:
        self.held = asyncio.Event()

    async def ask(self, name: str, fields: dict[str, Any], attached: bytes = b"") -> dict[str, Any]:
        if name == "refuse":
            raise problem("too-many", "wait", retry_after=2.5)
        if name == "fail":
            raise RuntimeError("hunter2")
        if name == "hold":
            await self.held.wait()
        return {"name": name, "fields": fields, "attached": len(attached)}


async def until_there(link: OwnerLink) -> dict[str, Any]:
    """Asks until the loss of the owner before was noticed."""
    while True:
        try:
            return await link.ask("x", {})
        except ServiceError as error:
            if error.code != "owner-away":
                raise
        await asyncio.sleep(0)


def refused(error: pytest.ExceptionInfo[ServiceError]) -> tuple[str, float | None]:
    return error.value.code, error.value.retry_after


def test_questions_refusals_and_errors_cross_the_socket(tmp_path: Path) -> None:
    async def run() -> None:
        failures: list[BaseException] = []
        end = OwnerEnd(Desk(), failures.append)
        link = OwnerLink(tmp_path / "s", LARGEST, 8)
        async with LocalServer(tmp_path / "s", end, limits=limits(LARGEST)):
            found = await link.ask("x", {"a": [1]}, b"12345")
            assert found == {"name": "x", "fields": {"a": [1]}, "attached": 5}
            with pytest.raises(ServiceError, match="wait") as error:
                await link.ask("refuse", {})
            assert refused(error) == ("too-many", 2.5)
            assert not failures
            with pytest.raises(ServiceError) as error:
                await link.ask("fail", {})
            assert error.value.code == "failed"
            assert "hunter2" not in str(error.value)
            assert len(failures) == 1
            with pytest.raises(ServiceError) as error:  # what follows from the first error
                await link.ask("fail", {})
            assert refused(error) == ("owner-away", 1)
            with pytest.raises(ServiceError):  # larger than any request may be
                await link.ask("x", {}, bytes(LARGEST + 1))
            await link.close()

    asyncio.run(run())


def test_an_owner_that_is_away_is_found_again(tmp_path: Path) -> None:
    async def run() -> None:
        link = OwnerLink(tmp_path / "s", LARGEST, 8)
        with pytest.raises(ServiceError) as error:
            await link.ask("x", {})
        assert refused(error) == ("owner-away", 1)
        for _ in range(2):
            end = OwnerEnd(Desk(), lambda error: None)
            async with LocalServer(tmp_path / "s", end, limits=limits(LARGEST), grace=0.01):
                assert (await until_there(link))["name"] == "x"
                held = asyncio.create_task(link.ask("hold", {}))
                await asyncio.sleep(0.01)
            with pytest.raises(ServiceError) as error:  # the owner went away before it answered
                await held
            assert error.value.code == "owner-away"
        await link.close()

    asyncio.run(run())


def test_no_more_wait_than_there_is_room_for(tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk()
        link = OwnerLink(tmp_path / "s", LARGEST, 2)
        async with LocalServer(tmp_path / "s", OwnerEnd(desk, print), limits=limits(LARGEST)):
            held = [asyncio.create_task(link.ask("hold", {})) for _ in range(2)]
            await asyncio.sleep(0.01)
            with pytest.raises(ServiceError) as error:
                await link.ask("hold", {})
            assert refused(error) == ("busy", 1)
            assert (await link.ask("x", {}))["name"] == "x"  # others have room of their own
            desk.held.set()
            await asyncio.gather(*held)
            assert (await link.ask("hold", {}))["name"] == "hold"
            await link.close()

    asyncio.run(run())


def test_there_is_one_owner_at_a_time(tmp_path: Path) -> None:
    first = alone(tmp_path / "lock", 0.0)
    with pytest.raises(DataError, match="another service with this configuration runs"):
        alone(tmp_path / "lock", 0.0)
    os.close(first)
    os.close(alone(tmp_path / "lock", 0.0))


def test_an_owner_whose_ledger_was_taken_does_not_take_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path)
    # an older version, which heeds no owner's lock, can take it
    monkeypatch.setattr("privlearn.ledger.store.check_not_served", lambda path: None)

    async def work(service: Local) -> None:
        failures: list[BaseException] = []
        end, peer = OwnerEnd(service.desk, failures.append), Peer(1, limits(LARGEST))
        await service.offer()
        asked = {"caller": "a", "batch": 0, "places": 9, "key": None}
        noise = NoiseSource.simulation(1)
        JointAccountant.resume(tmp_path / "ledger.db", noise=noise).close()  # somebody went on
        told = await end.answer(peer, Message({"do": "close_batch", "with": asked}))
        assert told.fields["refused"]["code"] == "owner-away"
        assert [owner._code_for(each) for each in failures] == [FENCED]
        assert owner._code_for(RuntimeError()) == FAILED

    run_with(path, work)
