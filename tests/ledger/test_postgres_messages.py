"""What is said of a PostgreSQL that cannot be reached; no server is needed."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from privlearn.errors import LedgerError
from privlearn.ledger.postgres_sessions import Session


class Unreachable:
    """An engine whose driver repeats the password."""

    url = make_url("postgresql://somebody:hunter2@host/database")

    def connect(self) -> Any:
        raise OperationalError("", {}, RuntimeError("FATAL: no such password: hunter2\nhint"))


def test_a_password_stands_in_no_message() -> None:
    engine: Any = Unreachable()
    with pytest.raises(LedgerError, match="the ledger cannot be reached: FATAL") as told:
        Session(engine, "the ledger", writes=True)
    assert "hunter2" not in str(told.value)
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__
