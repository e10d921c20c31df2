"""Ledgers behind a real PgBouncer: nobody writes through it, and whoever reads may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from pgbouncer import pooled
from postgres import ADMIN, Server
from postgres_processes import NOISE, USERS, run

from privlearn.accountants import CentralAccountant
from privlearn.accountants.audit import audit
from privlearn.budgets import ZCDP
from privlearn.errors import LedgerError
from privlearn.ledger import Ledger

SETTINGS = (
    "default_transaction_read_only",
    "search_path",
    "statement_timeout",
    "synchronous_commit",
)


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_pgbouncer(postgres: Server, mode: str) -> None:
    address = postgres.url(ledger=postgres.new_name())
    with (
        closing(Ledger.postgres(address, "create")) as ledger,
        pooled(postgres, mode, connections=2) as folder,
    ):
        account = CentralAccountant(ZCDP("1/2"), users=USERS, ledger=ledger, noise=NOISE(0))
        for _ in range(8):  # an audit reads each value: statements enough to be prepared
            run(account)
        through = address.replace(str(postgres.folder), str(folder))

        def settings() -> list[Any]:
            columns = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
            with psycopg.connect(
                host=str(folder), user=ADMIN, dbname="postgres", autocommit=True
            ) as connection:
                return list(connection.execute(f"SELECT {columns}").fetchall())

        def rows() -> list[Any]:
            return postgres.execute(
                "SELECT ledger, epoch, writer FROM privlearn.epochs ORDER BY 1, 2"
            )

        before, stood = settings(), rows()
        for how in ("create", "open", "join"):
            with pytest.raises(LedgerError, match="a pooler stands between, such as PgBouncer"):
                Ledger.postgres(through + ("_new" if how == "create" else ""), how)  # type: ignore[arg-type]
        assert rows() == stood
        with ThreadPoolExecutor(4) as threads:  # more than there are sessions
            found = list(threads.map(audit, [through] * 8))
        assert found == [audit(address)] * 8
        assert settings() == before  # for other clients, who have the same sessions
        run(account)
