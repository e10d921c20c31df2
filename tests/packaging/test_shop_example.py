"""The documented deployment: the shop on PostgreSQL, a killed worker, an upgrade, the audit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from postgres import started
from running_services import RunningService
from services import FIRST_BATCH, TEXT, features, write_config

from privlearn.accountants import audit
from privlearn.errors import ServiceError
from privlearn.service import Client, access

ROOT = Path(__file__).parents[2]
VISITS = 300


@pytest.mark.expensive
def test_the_shop_goes_on_through_a_kill_and_an_upgrade(tmp_path: Path) -> None:
    with started() as server:
        address = server.url(ledger="shop")
        words = [
            sys.executable,
            str(ROOT / "examples" / "shop" / "shop.py"),
            str(tmp_path / "shop"),
        ]
        words += ["--postgres", address, "--shoppers", "50", "--visits", str(VISITS)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert re.search(r"after \d+ visits: worker \d+ is killed", ended.stdout)
    assert re.search(r"after \d+ visits: the service is stopped for an upgrade", ended.stdout)
    (told,) = re.findall(rf"of {VISITS} visits (\d+) answered", ended.stdout)
    assert int(told) > VISITS // 2
    assert re.search(r"audit: [2-9] spends, 0 lost, problems: none", ended.stdout)
    assert not (tmp_path / "shop" / "ledger.db").exists()


@pytest.mark.expensive
def test_a_service_waits_for_its_database_and_gives_way_to_another_host(tmp_path: Path) -> None:
    text = TEXT.replace('path = "ledger.db"', 'url_file = "postgres.url"')
    text += '[people]\nkey_file = "people.key"\nmost = 2\n'
    first, second = tmp_path / "first", tmp_path / "second"
    for host in (first, second):
        host.mkdir()
        write_config(host, text)
    token = access.add(first / "access.json", "shop", "serve")
    with started() as server:
        (first / "postgres.url").touch(0o600)
        (first / "postgres.url").write_text(server.url(ledger="shop"))
        with (
            RunningService(first / "service.toml", "--begin") as service,
            service.client(token) as shop,
        ):
            for visit in range(FIRST_BATCH + 2):
                offer = shop.recommend(features(visit), person=f"ann-{visit}")
                shop.observe(offer.offer, 0)
            server.stop()
            threading.Timer(1.0, server.start).start()
            offer = shop.recommend(features(), person="later")
            shop.observe(offer.offer, 0)
            for name in ("postgres.url", "people.key", "access.json"):
                shutil.copy(first / name, second / name)
            with (
                RunningService(second / "service.toml") as other,
                other.client(token) as there,
                Client(service.url, token, patience=1.0) as here,
            ):
                offer = there.recommend(features(), person="on the other host")
                there.observe(offer.offer, 0)
                with pytest.raises(ServiceError):
                    here.recommend(features(), person="on the first host")
                assert service.process.wait(30) == 2
                offer = there.recommend(features(), person="once more")
                there.observe(offer.offer, 0)
                assert other.stop() == 0
        told = audit(server.url(ledger="shop"))
    assert not told.problems
    assert told.spends == 1
