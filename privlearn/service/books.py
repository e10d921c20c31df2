"""The files of a service: its ledger, registry of people and store of rows, begun or gone on with.

A ledger that is missing where one was begun would give everybody a fresh budget, so files are made
only where the operator says that the service begins.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from privlearn.accountants import JointAccountant
from privlearn.errors import DataError, LedgerUnreadableError
from privlearn.learners.offers import Offers
from privlearn.ledger import Ledger
from privlearn.ledger.addresses import is_address
from privlearn.ledger.owner_lock import OwnerLock
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.people.key_files import read_key
from privlearn.rows import RowStore
from privlearn.rows.cipher import KEY_BYTES
from privlearn.service.access import check_private
from privlearn.service.config import PeopleTable, ServiceConfig
from privlearn.service.visits import form_of_ids
from privlearn.storage.foreign_files import LARGEST_SETTINGS, read_whole

Start = Literal["begin", "resume", "either"]
"""``begin``: there is no account yet, and files are made; ``resume``: there is one; ``either``: an
owner that was to begin died, before or after it did."""


_NO_LEDGER: Final = (
    "If the service is to begin, say so: --begin; if it has served before, find the ledger, as a "
    "new one forgets all spends"
)


class RunIsOverError(Exception):
    """All users were served, and the ledger is closed."""


@dataclass(frozen=True, slots=True)
class Books:
    """What an owner holds, until `close`."""

    accountant: JointAccountant[Any]
    offers: Offers[Any]
    held: ExitStack

    def close(self) -> None:
        """Lets go of all files; the account stays open, to be gone on with."""
        self.held.close()


def check_files(config: ServiceConfig, *, begin: bool) -> None:
    """Looks at what the operator has to bring, before anything is begun.

    Raises:
        DataError: a file is missing, others can read it, or it has another form; or there is no
            ledger to go on with.
        PeopleError, RowStoreError: a registry or store, or the key of a registry, cannot be used.
    """
    if config.rows is not None:
        key, store = _rows_key(config), config.at(config.rows.path)
        if begin and store.exists():  # else it is perhaps in use
            RowStore.open(store, key).close()
    if config.people is not None:
        _check_registry(config, config.people, begin=begin)
    if config.ledger.url_file is not None:
        _postgres_address(config)
    elif not begin:
        _ledger_path(config)


def _check_registry(config: ServiceConfig, table: PeopleTable, *, begin: bool) -> None:
    if table.path is not None:
        path = config.at(table.path)
        if begin and path.exists():
            People.open(path, table.rule()).close()
        return
    assert table.key_file is not None
    key = config.at(table.key_file)
    if key.exists():
        read_key(key)
    elif not begin:
        raise DataError(
            f"people.key_file = {str(key)!r}: there is none. --begin makes it, with the registry; "
            "if the service has served before, copy the file from where its backup is"
        )
    elif not os.access(key.parent, os.W_OK):
        raise DataError(f"people.key_file = {str(key)!r}: --begin cannot write it there")


def open_books(config: ServiceConfig, start: Start) -> Books:
    """Goes on with the run of a configuration, or begins it.

    Raises:
        RunIsOverError: there is nothing to go on with.
        DataError: a file is missing, or the run was begun with another configuration.
        LedgerError, PeopleError, RowStoreError: a file cannot be used.
        ValueError, TypeError: the learner refuses a parameter.
    """
    with ExitStack() as held:
        ledger = _ledger(config, held, make=start != "resume")
        held.callback(ledger.close)
        new = not ledger.opened
        if not new and start == "begin":
            raise DataError(
                f"--begin: {ledger.name} has an account; without --begin the service goes on with "
                "it"
            )
        if new and start == "resume":
            raise DataError(
                f"{ledger.name}: the ledger has no account; if the service is to begin with it, "
                "say so: --begin"
            )
        if not new and not ledger.open_accountants:
            raise RunIsOverError
        if new:
            check_begins(config)
        people = _people(config, ledger, make=new)
        if people is not None:
            held.callback(people.close)
            form_of_ids(people)
        store = _rows(config, make=new)  # before the account: where that stands, all files do
        if store is not None:
            held.callback(store.close)
        accountant = _begun(config, ledger, people) if new else _resumed(config, ledger, people)
        learner = config.learner.make().start(accountant, store=store)
        offers = Offers(learner, wait=config.batches.late_offers)
        return Books(accountant, offers, held.pop_all())


def check_begins(config: ServiceConfig) -> None:
    """Begins the run in memory: an account that is begun in a ledger stays, with its mistakes.

    Raises:
        BudgetError, CurrencyError: the budget does not fit the learner.
        ValueError, TypeError: the learner refuses a parameter, or the number of users.
        DataError: its numbers are too large or too small to compute with.
    """
    people = None if config.people is None else People.memory(config.people.rule())
    try:
        config.learner.make().start(_begun(config, Ledger.memory(), people))
    except (ArithmeticError, MemoryError) as error:
        given = config.learner.parameters
        told = ", ".join(f"{name} = {getattr(given, name)!r}" for name in given.model_fields_set)
        raise DataError(
            f"learner: {told}: one of them is too large or too small to compute with, or for this "
            f"number of users and budget ({type(error).__name__})"
        ) from None


def _ledger(config: ServiceConfig, held: ExitStack, *, make: bool) -> Ledger:
    if config.ledger.path is None:
        return _postgres(config, make=make)
    path = config.at(config.ledger.path)
    if path.exists() or not make:
        path = _ledger_path(config)
        lock = held.enter_context(OwnerLock(path))  # who opens it elsewhere would end this service
        with lock.opening():
            return Ledger.open(path)
    ledger = Ledger.create(path)
    held.enter_context(OwnerLock(path))
    return ledger


def _ledger_path(config: ServiceConfig) -> Path:
    assert config.ledger.path is not None
    path = config.at(config.ledger.path)
    if not path.exists():
        raise DataError(f"ledger.path = {str(path)!r}: there is none. {_NO_LEDGER}")
    return path


def _postgres(config: ServiceConfig, *, make: bool) -> Ledger:
    """A ledger in PostgreSQL: opening it fences every process that had it before."""
    file, address = _postgres_address(config)
    try:
        return Ledger.postgres(address, "open")
    except LedgerUnreadableError as error:
        if not make:
            raise DataError(f"ledger.url_file = {str(file)!r}: {error}. {_NO_LEDGER}") from None
    return Ledger.postgres(address, "create")


def _postgres_address(config: ServiceConfig) -> tuple[Path, str]:
    assert config.ledger.url_file is not None
    file = config.at(config.ledger.url_file)
    check_private(file)
    try:
        address = read_whole(file, at_most=LARGEST_SETTINGS).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise DataError(f"ledger.url_file = {str(file)!r} cannot be read: {why}") from None
    if not is_address(address):
        raise DataError(
            f"ledger.url_file = {str(file)!r}: must hold one address and nothing else, such as "
            "postgresql://user@host/database?ledger=name"
        )
    return file, address


def _people(config: ServiceConfig, ledger: Ledger, *, make: bool) -> People | None:
    table = config.people
    if table is None:
        return None
    rule = table.rule()
    if table.path is not None:
        path = config.at(table.path)
        return People.create(path, rule) if make and not path.exists() else People.open(path, rule)
    assert table.key_file is not None
    key = config.at(table.key_file)
    how: Literal["create", "open"] = "create" if make and not key.exists() else "open"
    return People.postgres(ledger, how, key=key, rule=rule)


def _rows(config: ServiceConfig, *, make: bool) -> RowStore | None:
    if config.rows is None:
        return None
    path, key = config.at(config.rows.path), _rows_key(config)
    return RowStore.create(path, key) if make and not path.exists() else RowStore.open(path, key)


def _rows_key(config: ServiceConfig) -> bytes:
    assert config.rows is not None
    file = config.at(config.rows.key_file)
    check_private(file)
    try:
        key = read_whole(file, at_most=LARGEST_SETTINGS)
    except OSError as error:
        raise DataError(f"rows.key_file = {str(file)!r} cannot be read: {error.strerror}") from None
    if len(key) != KEY_BYTES:
        raise DataError(
            f"rows.key_file = {str(file)!r}: holds {len(key)} bytes, must be {KEY_BYTES} random "
            f"ones: head -c {KEY_BYTES} /dev/urandom > {file.name}"
        )
    return key


def _noise(config: ServiceConfig) -> NoiseSource:
    seed = config.guarantee.simulate_noise
    return NoiseSource.secure() if seed is None else NoiseSource.simulation(seed)


def _begun(config: ServiceConfig, ledger: Ledger, people: People | None) -> JointAccountant[Any]:
    budget, currency = config.cap()
    return JointAccountant(
        budget,
        users=range(config.guarantee.users),
        ledger=ledger,
        noise=_noise(config),
        currency=currency,
        side_information=config.guarantee.side_information,
        people=people,
    )


def _resumed(config: ServiceConfig, ledger: Ledger, people: People | None) -> JointAccountant[Any]:
    _check_same(config, ledger)
    return JointAccountant.resume(ledger, noise=_noise(config), people=people)


def _check_same(config: ServiceConfig, ledger: Ledger) -> None:
    (opened,) = (e for e in ledger.opened if e.accountant in ledger.open_accountants)
    budget, currency = config.cap()
    now = JointAccountant(
        budget,
        users=range(config.guarantee.users),
        ledger=Ledger.memory(),
        noise=NoiseSource.simulation(0),
        currency=currency,
    ).ledger.opened[0]
    told = {
        "guarantee.budget": ((opened.cap, opened.promise), (now.cap, now.promise)),
        "guarantee.users": (tuple(opened.users), tuple(now.users)),
        "guarantee.side_information": (
            tuple(opened.side_information),
            config.guarantee.side_information,
        ),
    }
    for name, (before, wanted) in told.items():
        if before != wanted:
            raise DataError(
                f"{name}: the run was begun with another, {before!r:.200}; a run keeps what it "
                "began with"
            )
