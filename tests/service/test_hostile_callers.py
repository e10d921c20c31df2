"""Configurations and requests that somebody might send who does not know better, or does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from services import PEOPLE, TEXT, USERS, Local, features, run_with, write_config
from typer.testing import CliRunner

from privlearn.cli.main import app
from privlearn.errors import DataError
from privlearn.service import access
from privlearn.service.books import open_books
from privlearn.service.config import read_config


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (f"users = {USERS}", "users = true", "guarantee.users = True: must be something else than"),
        ("workers = 1", "workers = true", "http.workers = True: must be something else than true"),
        ('path = "ledger.db"', 'path = ""', "ledger.path = '': must name a file"),
        ('path = "ledger.db"', 'path = "a\\u0000b"', "ledger.path = 'a\\x00b': must name a file"),
        ("[http]", 'socket = ""\n[http]', "socket = '': must name a file"),
        ('drain = "1 ms"', 'drain = "99999999999999999999 d"', "less than or equal to 3600"),
        ('reply_step = "1 ms"', 'reply_step = "1 d"', "reply_step = '1 d': Input should be less"),
        ("port = 0", 'port = 0\nlargest_request = "9 GiB"', "less than or equal to 1073741824"),
        # else short numbers were taken, and long ones refused, or too many for a worker's question
        ("port = 0", 'port = 0\nlargest_request = "8503 B"', "http.largest_request = 8503 B: must"),
        ("most = 2", f"most = {10**20}", "people.most = 1.*: Input should be less than 2147483648"),
        ("most = 2", f"most = 2\napart = {2**31}", "people.apart = 2147483648: Input should be"),
    ],
)
def test_a_value_that_would_be_taken_for_another_is_named(
    tmp_path: Path, before: str, after: str, told: str
) -> None:
    text = TEXT + PEOPLE
    assert before in text
    path = write_config(tmp_path, text.replace(before, after, 1))
    with pytest.raises(DataError, match=told.replace("\\", "\\\\")):
        read_config(path)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("max_items = 2", "max_items = 5", "max_items = 5: must be at most 4"),
        ("first_batch = 10", "first_batch = 41", "first_batch = 41: must lie in 1..40"),
        ("first_batch = 10", "growth = 0.5", "growth = 0.5: must be > 1"),
    ],
)
def test_what_the_learner_refuses_is_said_before_anything_is_begun(
    tmp_path: Path, before: str, after: str, told: str
) -> None:
    path = write_config(tmp_path, (TEXT + PEOPLE).replace(before, after, 1))
    done = CliRunner().invoke(app, ["serve", str(path), "--check"])
    assert done.exit_code == 2
    assert told in done.output
    config = read_config(path)
    with pytest.raises(ValueError, match=told):
        open_books(config, "begin")
    write_config(tmp_path, TEXT + PEOPLE)
    open_books(read_config(path), "begin").close()  # nothing of the first try stands in its way


def test_a_key_of_rows_that_is_missing_is_said_before_an_account_is_begun(tmp_path: Path) -> None:
    path = write_config(tmp_path, TEXT + '[rows]\npath = "rows.db"\nkey_file = "rows.key"\n')
    with pytest.raises(DataError, match=r"rows\.key cannot be read"):
        open_books(read_config(path), "begin")
    write_config(tmp_path)
    open_books(read_config(path), "begin").close()


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("rows.key", "[learner]", '[rows]\npath = "rows.db"\nkey_file = "rows.key"\n[learner]'),
        ("url", 'path = "ledger.db"', 'url_file = "url"'),
    ],
)
def test_a_secret_that_others_may_read_is_not_used(
    tmp_path: Path, file: str, before: str, after: str
) -> None:
    path = write_config(tmp_path, TEXT.replace(before, after))
    (tmp_path / file).write_bytes(b"x" * 32)
    (tmp_path / file).chmod(0o640)
    with pytest.raises(DataError, match=f"{file}: other users .* chmod 600"):
        open_books(read_config(path), "begin")


@pytest.mark.parametrize("days", ["0", "36526", "1" + "0" * 30])
def test_an_access_token_expires_within_a_century(tmp_path: Path, days: str) -> None:
    named = ["access", "add", str(write_config(tmp_path)), "--name", "a", "--role", "serve"]
    done = CliRunner().invoke(app, [*named, "--days", days])
    assert done.exit_code == 2
    assert "--days" in done.output
    assert not (tmp_path / "access.json").exists()


def test_a_request_is_never_sent_elsewhere(tmp_path: Path) -> None:
    """A redirect would name http where a proxy ends TLS, and the token would follow it in clear."""

    async def work(service: Local) -> None:
        for path in service.paths:
            for each in (path + "/", "/" + path, path.upper()):
                assert (await service.get(each)).status_code == 404
                assert (await service.post(each, {}, "operator")).status_code == 404

    run_with(write_config(tmp_path), work)


def test_a_key_that_says_nothing_is_none(tmp_path: Path) -> None:
    """Else visitors of a front end that always sends the header would share one offer."""

    async def work(service: Local) -> None:
        body = {"features": features().tolist()}
        answer = await service.post("/v1/recommend", body, **{"Idempotency-Key": ""})
        assert answer.status_code == 422
        assert "idempotency-key: String should have at least 1" in answer.json()["message"]
        assert (await service.get("/v1/status")).json()["clock"] == 0

    run_with(write_config(tmp_path), work)


def test_a_batch_is_closed_by_name_once_and_only_if_it_was_begun(tmp_path: Path) -> None:
    """What cannot be undone: else 20 requests without a word end a run that served nobody."""

    async def work(service: Local) -> None:
        async def close(places: Any, batch: int = 0, key: str | None = None) -> tuple[int, Any]:
            headers = {} if key is None else {"Idempotency-Key": key}
            body = {"batch": batch, "places": places}
            answer = await service.post("/v1/close-batch", body, "operator", **headers)
            told = answer.json()
            return answer.status_code, told.get("code", told)

        state = service.books.offers.public_state
        begun = state()
        for body in (None, {}, {"batch": 0}, {"batch": 0, "places": -1}, {"batch": 0.5}):
            assert (await service.post("/v1/close-batch", body, "operator")).status_code == 422
        assert await close(40) == (409, "empty-batch")
        assert state() == begun
        for _ in range(3):
            await service.offer()  # and nobody answers
        status = (await service.get("/v1/status")).json()
        assert (status["batch"], status["places"]) == (0, 7)
        begun = state()
        assert await close(6) == (409, "more-places")
        assert await close(40, batch=10) == (409, "another-batch")
        assert state() == begun
        done = 200, {"batch": 0, "places": 7}
        assert await asyncio.gather(*(close(9, key="k") for _ in range(3))) == [done] * 3
        assert await close(8, key="k") == (409, "key-reused")
        assert await close(9) == (409, "another-batch")
        status = (await service.get("/v1/status")).json()
        assert (status["clock"], status["batch"]) == (10, 10)
        assert await close(40, batch=10) == (409, "empty-batch")

    run_with(write_config(tmp_path), work)


def test_a_batch_keeps_its_name_over_a_restart(tmp_path: Path) -> None:
    path = write_config(tmp_path, TEXT + PEOPLE)
    run_with(path, lambda service: service.offer(person="ann"))

    async def work(service: Local) -> None:
        status = (await service.get("/v1/status")).json()
        assert (status["clock"], status["batch"], status["places"]) == (1, 0, 9)
        told = await service.close()
        assert (told.status_code, told.json()) == (200, {"batch": 0, "places": 9})

    run_with(path, work)


def test_a_check_looks_at_what_the_begin_will_open(tmp_path: Path) -> None:
    """Else the ledger is made, and then the registry, its key or the rows cannot be used."""
    keyed = TEXT.replace('path = "ledger.db"', 'url_file = "url"')
    keyed += PEOPLE.replace('path = "people.db"', 'key_file = "people.key"')
    for name in ("url", "people.key", "rows.key"):
        (tmp_path / name).touch(0o600)
    (tmp_path / "url").write_text("postgresql://shop@localhost/shop?ledger=shop")
    access.add(tmp_path / "access.json", "shop", "serve")

    def said(text: str, *options: str) -> str:
        path = str(write_config(tmp_path, text))
        done = CliRunner().invoke(app, ["serve", path, "--check", *options])
        assert done.exit_code == (0 if "no mistake was found" in done.output else 2)
        return done.output

    key = tmp_path / "people.key"
    for written, told in (
        ("", "people.key holds no key of a registry of people"),
        ("ab" * 31, "people.key holds no key of a registry of people"),
        ("ab" * 32 + "\n", "no mistake was found"),
    ):
        key.write_text(written)
        assert told in said(keyed)
        assert told in said(keyed, "--begin")
    key.chmod(0o644)
    assert "chmod 600" in said(keyed)
    key.unlink()
    assert "there is none. --begin makes it" in said(keyed)
    assert "no mistake was found" in said(keyed, "--begin")
    elsewhere = keyed.replace("people.key", "none/people.key")
    assert "--begin cannot write it there" in said(elsewhere, "--begin")
    (tmp_path / "people.db").write_bytes(b"no registry")
    assert "people.db" in said(TEXT + PEOPLE)
    (tmp_path / "rows.key").write_bytes(b"x" * 32)
    (tmp_path / "rows.db").write_bytes(b"no store")
    assert "rows.db" in said(TEXT + '[rows]\npath = "rows.db"\nkey_file = "rows.key"\n')
    assert not (tmp_path / "ledger.db").exists()
