"""Real processes: each is killed, the service goes on, and nothing is charged twice."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from running_services import PATIENCE, RunningService
from services import FIRST_BATCH, PEOPLE, TEXT, features, write_config
from typer.testing import CliRunner

from privlearn.accountants import audit
from privlearn.cli.main import app
from privlearn.errors import ServiceError
from privlearn.service import access, owner
from privlearn.service.access import AccessTokens
from privlearn.service.books import open_books
from privlearn.service.config import read_config
from privlearn.service.example import write_example

runner = CliRunner()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_every_process_is_killed_in_turn(tmp_path: Path) -> None:
    path = write_config(tmp_path, TEXT + PEOPLE)
    shop = access.add(tmp_path / "access.json", "shop", "serve")
    boss = access.add(tmp_path / "access.json", "boss", "operator")
    secrets = [shop, boss]
    with RunningService(path, "--begin") as service:
        with service.client(shop) as client, service.client(boss) as operator:
            for visit in range(FIRST_BATCH + 2):
                offer = client.recommend(features(visit), person=f"ann-{visit}")
                client.observe(offer.offer, offer.items[0])
                secrets += [f"ann-{visit}", offer.offer]
            certificate = operator.certificate()
            assert certificate.spends == 1

            offer = client.recommend(features(), person="before the worker's death")
            service.kill("worker")
            client.observe(offer.offer, offer.items[0])  # no offer is lost with a worker
            assert operator.status().clock == FIRST_BATCH + 3
            service.until(lambda: len(service.events("worker-started")) == 2)

            offer = client.recommend(features(), person="before the owner's death")
            service.kill("owner")
            with pytest.raises(ServiceError, match="the service went on after its owner ended"):
                client.observe(offer.offer, offer.items[0])
            status = operator.status()
            assert status.clock == FIRST_BATCH + 4
            assert operator.certificate().spends == 1
            assert [each["resumed"] for each in service.events("owner-started")] == [False, True]
            client.recommend(features(), person="after it")
            assert operator.status().clock == FIRST_BATCH + 5
        assert [each["number"] for each in service.events("process-ended")] == [-9, -9]

        mode = (tmp_path / "owner.sock").stat().st_mode & 0o777
        assert mode == 0o600
        left = service.children()
        service.process.kill()  # and its supervisor: nobody stays
        end = time.monotonic() + PATIENCE
        while not all(gone(pid) for pid in left.values()):
            assert time.monotonic() < end
            time.sleep(0.01)
    text = json.dumps(service.lines)
    assert not [secret for secret in secrets if secret in text]

    books = open_books(read_config(path), "resume")  # what a further process would do
    assert books.offers.clock_ == FIRST_BATCH + 5
    books.close()
    told = audit(tmp_path / "ledger.db")
    assert not told.problems
    assert told.spends == 1


def test_what_cannot_begin_says_why(tmp_path: Path) -> None:
    path = write_config(tmp_path)

    def said(*options: str) -> tuple[int, str]:
        found = runner.invoke(app, ["serve", str(path), *options])
        return found.exit_code, found.stderr

    assert said() == (
        2,
        f"error: access.file = '{tmp_path}/access.json' cannot be read: No such file or directory; "
        "privlearn access add writes it\n",
    )
    assert said("--check") == said()
    access.add(tmp_path / "access.json", "shop", "serve")
    assert said("--check") == (0, f"{path}: no mistake was found\n")
    assert said()[1].startswith(f"error: ledger.path = '{tmp_path}/ledger.db': there is none.")
    assert said("--example")[0] == 2
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "prometheus_client", None)
        assert "pip install 'privlearn[serve]'" in said()[1]
    bare = runner.invoke(app, ["serve"])
    assert (bare.exit_code, "CONFIG: name a TOML file" in bare.stderr) == (2, True)


def test_files_are_made_only_where_a_service_begins(tmp_path: Path) -> None:
    path = write_config(tmp_path, TEXT + PEOPLE)
    config = read_config(path)
    with pytest.raises(Exception, match="--begin; if it has served before, find the ledger"):
        open_books(config, "resume")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["service.toml"]
    open_books(config, "begin").close()
    with pytest.raises(Exception, match="has an account; without --begin the service goes on"):
        open_books(config, "begin")
    open_books(config, "either").close()
    (tmp_path / "people.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(Exception, match=r"people\.db"):
        open_books(config, "either")
    (tmp_path / "elsewhere.db").rename(tmp_path / "people.db")
    for name, value, told in (
        ("budget", '"rho=2"', "guarantee.budget: the run was begun with another"),
        ("users", "41", "guarantee.users: the run was begun with another"),
        ("max_items", "3", "max_items = 3: the learner was begun with 2"),
    ):
        changed = read_config(write_config(tmp_path, TEXT + PEOPLE, **{name: value}))
        with pytest.raises(Exception, match=told):
            open_books(changed, "resume")
    open_books(config, "resume").close()


def test_commands_about_access(tmp_path: Path) -> None:
    path = str(write_example(tmp_path / "shop"))
    made = runner.invoke(app, ["access", "add", path, "--name", "new", "--role", "watch"])
    assert made.exit_code == 0
    tokens = AccessTokens(tmp_path / "shop" / "access.json")
    caller = tokens.caller(made.stdout.strip())
    assert caller is not None
    assert (caller.name, caller.role) == ("new", "watch")
    for name, role in (("shop", "serve"), ("prometheus", "watch"), ("operator", "operator")):
        kept = tmp_path / "shop" / f"{name}.token"
        assert kept.stat().st_mode & 0o777 == 0o600
        caller = tokens.caller(kept.read_text())
        assert caller is not None
        assert caller.role == role
    shown = runner.invoke(app, ["access", "list", path]).stdout
    assert shown.splitlines()[-1] == "new  watch  never"
    assert runner.invoke(app, ["access", "remove", path, "--name", "new"]).exit_code == 0
    again = runner.invoke(app, ["access", "remove", path, "--name", "new"])
    assert (again.exit_code, "has no such access token" in again.stderr) == (2, True)
    dated = runner.invoke(
        app, ["access", "add", path, "--name", "new", "--role", "watch", "--days", "2"]
    )
    assert dated.exit_code == 0
    assert ": " not in dated.stdout
    wrong = runner.invoke(app, ["access", "add", path, "--name", "x", "--role", "root"])
    assert (wrong.exit_code, "must be one of serve, watch, operator" in wrong.stderr) == (2, True)


def test_an_owner_that_cannot_begin_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(owner, "log_to_stderr", lambda process: None)
    monkeypatch.setattr(owner, "log_crashes", lambda: None)  # of this whole process
    monkeypatch.setattr(sys, "argv", ["owner", str(write_config(tmp_path)), "resume", "0"])
    with pytest.raises(SystemExit) as ended:
        owner.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: ledger.path = ")
