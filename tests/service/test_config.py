"""Configurations: what a mistake is told as, before anything is begun."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from services import PEOPLE, TEXT, write_config

from privlearn.errors import DataError
from privlearn.service.books import check_begins
from privlearn.service.config import read_config
from privlearn.service.example import Example, write_example
from privlearn.service.quantities import octets, seconds
from privlearn.values.participation import Participation


def test_example_is_what_its_comments_say(tmp_path: Path) -> None:
    config = read_config(write_example(tmp_path / "shop"))
    assert (tmp_path / "shop").stat().st_mode & 0o077 == 0  # times of files tell who answered when
    assert config.http.address == "127.0.0.1"
    assert config.http.drain == 2.0
    assert config.people is not None
    assert config.people.rule() == Participation(most=5)
    assert config.at(config.ledger.path or Path()) == tmp_path / "shop" / "ledger.db"
    assert config.largest_request > 100 * 22 * len("-1.2345678901234567e-100,")
    with pytest.raises(DataError, match="is not empty: name a new folder"):
        write_example(tmp_path / "shop")


@pytest.mark.parametrize("of", get_args(Example))
def test_each_example_can_begin(of: Example, tmp_path: Path) -> None:
    config = read_config(write_example(tmp_path / of, of=of))
    check_begins(config)
    assert config.batches.late_offers == config.learner.serves_ahead * 20


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("[http]", "[htpp]", "htpp: no such name; did you mean 'http'"),
        ("workers = 1", "wrokers = 1", "http.wrokers: no such name; did you mean 'workers'"),
        ("workers = 1", "workers = 0", "http.workers = 0: "),
        ("workers = 1", 'host = "0.0.0.0"', "host = '0.0.0.0': other machines would reach it"),
        ("workers = 1", 'exposed_host = "10.0.0.5"', "would cross the network in clear"),
        ("workers = 1", 'tls_key = "a.pem"', "tls_certificate, tls_key: give both or none"),
        ("workers = 1", 'largest_request = "1 kB"', "such as '512 B', '64 KiB'"),
        ('drain = "1 ms"', 'drain = "1 msec"', "http.drain = '1 msec': must be a duration"),
        ('drain = "1 ms"', "drain = 3", "http.drain = 3: must be a duration"),
        ('"rho=1"', '"rho=-1"', "guarantee.budget = 'rho=-1': "),
        ("users = 40", "users = 0", "guarantee.users = 0: must be a number of users"),
        ("users = 40", "", "guarantee.users: must be given"),
        ('"OnePassNewtonMNL"', '"OnePasNewton"', "did you mean 'OnePassNewtonMNL'"),
        ('"OnePassNewtonMNL"', '"DPTOFW"', "learner.name = 'DPTOFW': known: DPHDB, DPMNL, "),
        ("max_items", "max_item", "learner.max_item: no such name; did you mean 'max_items'"),
        ("n_items = 4", "", "learner.n_items: must be given"),
        ("dim = 2", "dim = 0", "learner: dim = 0: must be an integer >= 1"),
        ("dim = 2", 'dim = "2"', "learner.dim = '2': Input should be a valid integer"),
        ("dim = 2", "dim = 2.0", "learner.dim = 2.0: Input should be a valid integer"),
        ("dim = 2", "dim = 2\noutside_option = 1", "learner.outside_option = 1: Input should be a"),
        ("workers = 1", "workers = 9\nmost_connections = 8", "must be at least workers = 9"),
        ('path = "ledger.db"', "", "ledger: path, url_file: give one of them"),
        ("[ledger]", '[ledger]\nurl_file = "u"', "ledger: path, url_file: give one of them"),
        ("[http]", 'folder = "x"\n[http]', "folder: "),
        ("[http]", f'socket = "{"s" * 107}"\n[http]', "has at most 107 bytes"),
        (
            "[ledger]",
            PEOPLE + 'clock = "timetable"\n[ledger]',
            "offers, rate limits and metrics",
        ),
        ("[ledger]", PEOPLE + "pooled = true\nper_batch = 1\n[ledger]", "a pooled rule counts"),
        ("[http]", "[http", "is not TOML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, before: str, after: str, told: str) -> None:
    assert TEXT.count(before) == 1
    with pytest.raises(DataError) as error:
        read_config(write_config(tmp_path, TEXT.replace(before, after)))
    assert told in str(error.value)


def test_an_address_beyond_this_machine_is_asked_for_by_name(tmp_path: Path) -> None:
    text = TEXT.replace("workers = 1", 'exposed_host = "10.0.0.5"\ntls_ends_at_proxy = true')
    assert read_config(write_config(tmp_path, text)).http.address == "10.0.0.5"
    for host in ("::1", "localhost", "127.0.0.9"):
        text = TEXT.replace("workers = 1", f'host = "{host}"')
        assert read_config(write_config(tmp_path, text)).http.address == host


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.toml cannot be read: No such file"):
        read_config(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-1 s", "0 s", "1 S", "1e3 s", "inf s", " ", "1 s 2"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as"):
        seconds(text)


def test_quantities() -> None:
    assert [seconds(t) for t in ("250ms", "1.5 h", "2 d")] == [0.25, 5400.0, 172800.0]
    assert [octets(t) for t in ("1 B", "0.5 KiB", "2MiB", "1 GiB")] == [1, 512, 2**21, 2**30]
    with pytest.raises(ValueError, match="a whole number of bytes"):
        octets("0.3 B")
