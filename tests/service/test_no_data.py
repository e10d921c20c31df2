"""Metrics, status, budget and logs are the same whatever users' data and answers are."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from services import FIRST_BATCH, PEOPLE, TEXT, Local, features, run_with, write_config

from privlearn.service import logs
from privlearn.service.counters import Counters
from privlearn.service.metrics import Facts, exposition

VISITS = 2 * FIRST_BATCH + 5
"""Over one release, so that answers have counted."""


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    root, service = logging.getLogger(), logging.getLogger("privlearn.service")
    before = root.handlers[:], root.level, service.level
    logs.log_to_stderr("test")
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    service.setLevel(before[2])


def told(text: str) -> list[dict[str, Any]]:
    """Lines of a log, without their times."""
    return [
        {name: value for name, value in json.loads(line).items() if name != "time"}
        for line in text.splitlines()
    ]


def seen(path: Path, people: Sequence[str], usable: bool, answers: Sequence[Any]) -> list[Any]:
    """Everything that is public of a service, while some visitors come and answer."""

    async def work(service: Local) -> list[Any]:
        public: list[Any] = []
        offers = []
        for visit in range(VISITS):
            sent = features(visit).tolist() if usable else [["x"]]
            answer = await service.post(
                "/v1/recommend", {"features": sent, "person": people[visit]}
            )
            offers.append(answer.json()["offer"])
            public.append(answer.status_code)
            if visit % 8 == 7:
                for offer, choice in zip(offers, answers, strict=False):
                    if choice != "never":
                        body = {"offer": offer, "choice": choice}
                        await service.post("/v1/observe", body)  # many of them twice
                        if visit == 7:
                            await service.post("/v1/observe/", body)
                public.append((await service.get("/v1/status")).json())
                public.append((await service.get("/v1/budget")).json())
                metrics = (await service.get("/metrics")).text
                public.append(re.sub(r"privlearn_(owner_start|offer_seconds_).*\n", "", metrics))
        strange = {"features": 1, "person": None} if usable else {"no": "features"}
        await service.post("/v1/recommend", strange)
        await service.post("/v1/recommend", {}, "watch")
        counted = service.app.state.counters.taken()
        public.append(counted["refused"])
        public.append(sum(counted["times"].values()))
        return public

    return run_with(path, work)


def test_public_things_do_not_follow_from_data_answers_or_quotas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: tuple[tuple[list[str], bool, list[Any]], ...] = (
        ([f"p{n}" for n in range(VISITS)], True, [0] * VISITS),
        (["one"] * VISITS, True, [0] * VISITS),  # whose quota is used up
        ([f"p{n}" for n in range(VISITS)], False, [None] * VISITS),
        ([""] * VISITS, True, ["never"] * VISITS),
        ([f"p{n}" for n in range(VISITS)], True, [99, "never", None] * VISITS),
    )
    found, written = [], []
    for number, run in enumerate(runs):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(seen(write_config(folder, TEXT + PEOPLE), *run))
        written.append(told(capsys.readouterr().err))
    assert found[0][-2:] == [{"wrong-role": 1}, VISITS + 1]
    for other in found[1:]:
        assert other == found[0]
    assert written[0] == [{"level": "info", "by": "test", "event": "refused", "code": "wrong-role"}]
    for each in written[1:]:
        assert each == written[0]


def test_an_error_is_logged_by_type_and_place_only(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("hunter2")
    except ValueError as error:
        logs.log_error("failed", error)
        logging.getLogger("uvicorn.error").exception("of %s", "hunter2")
        logging.getLogger("uvicorn.error").warning("of a request that was no HTTP")
    text = capsys.readouterr().err
    first, second = told(text)
    assert "hunter2" not in text
    assert (first["event"], first["error"]) == ("failed", "ValueError")
    assert first["file"] == second["file"] == "service/test_no_data.py"
    assert (second["logger"], second["error"]) == ("uvicorn.error", "ValueError")


_LOUD = """
import asyncio, gc, threading, warnings
from privlearn.service import logs

logs.log_to_stderr("test")
logs.log_crashes()


def fail(how="hunter2"):
    raise ValueError(how)


class Dies:
    def __del__(self):
        fail()


async def work():
    async def task():
        fail()

    asyncio.get_running_loop().call_soon(fail, "hunter2")
    lost = asyncio.create_task(task())
    await asyncio.sleep(0.01)
    del lost
    gc.collect()


asyncio.run(work())
warnings.warn("hunter2", stacklevel=1)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
Dies()
fail()
"""


def test_what_nobody_caught_is_logged_by_type_and_place_too() -> None:
    command = [sys.executable, "-c", _LOUD]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = told(done.stderr)
    assert done.returncode == 1
    assert "hunter2" not in done.stderr
    assert [line["event"] for line in lines] == ["library"] * 2 + ["uncaught"] * 2 + ["crashed"]
    assert all(line["error"] == "ValueError" and line["line"] for line in lines)


def test_a_field_that_is_not_listed_is_refused() -> None:
    with pytest.raises(ValueError, match="person: no field of a log"):
        logs.log("offered", person="ann")


def test_metrics_are_what_prometheus_reads() -> None:
    counters = Counters()
    counters.refused("too-many")
    with counters.timed(0.005):
        pass
    counted = counters.taken()
    assert counted is not None
    assert counters.taken() is None
    for _ in range(2):
        counters.add(json.loads(json.dumps(counted)))
    facts = Facts("1.2", "DPMNL", 7, 10, 3, {"cap": 1.0}, "ZCDP", True, 1e9)
    text, kind = exposition(facts, counters)
    assert kind.startswith("text/plain")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in (
        "privlearn_offers_total 7.0",
        "privlearn_ledger_entries_total 3.0",
        'privlearn_budget{part="cap"} 1.0',
        'privlearn_refused_requests_total{code="too-many"} 2.0',
        'privlearn_offer_seconds_bucket{le="0.005"} 2.0',
        "privlearn_offer_seconds_count 2.0",
        "privlearn_serving 1.0",
    ):
        assert line in lines
    assert not [line for line in lines if re.search("answer|open|null|quota|person", line)]
