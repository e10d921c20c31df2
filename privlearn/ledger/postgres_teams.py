"""Roles of PostgreSQL that may write no more than what was granted to them, as the database sees.

A trigger looks at every entry that such a role inserts: tokens out of what the role was granted,
and what becomes of these.  Whether the amounts fit is no matter of the database: each process that
reads an entry checks that, and writes nothing behind one that does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy.dialects import postgresql

from privlearn.ledger.postgres_schema import SCHEMA_NAME, TABLES

TEAM = f"{SCHEMA_NAME}.team"
"""The function that tells a session's role if that is a team."""
_TABLES = """
CREATE TABLE IF NOT EXISTS privlearn.teams (role TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS privlearn.granted (
    ledger TEXT, cap TEXT, role TEXT, PRIMARY KEY (ledger, cap, role)
);
CREATE TABLE IF NOT EXISTS privlearn.team_tokens (
    ledger TEXT, token TEXT, role TEXT NOT NULL, PRIMARY KEY (ledger, token)
);
COMMENT ON TABLE privlearn.granted IS
    'To whom each cap or part, or one that it is inside of, was granted; once with no role.';
"""
_FUNCTIONS = """
CREATE OR REPLACE FUNCTION privlearn.team() RETURNS TEXT
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT role FROM privlearn.teams WHERE role = session_user
$$;
CREATE OR REPLACE FUNCTION privlearn.note_cap(book TEXT, body JSONB) RETURNS VOID
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
    INSERT INTO privlearn.granted
    SELECT book, body ->> 'allowance', role FROM (
        VALUES (''), (body ->> 'to')
        UNION SELECT role FROM privlearn.granted
        WHERE ledger = book AND cap = body ->> 'within'
    ) AS roles (role) WHERE role IS NOT NULL
    ON CONFLICT DO NOTHING
$$;
REVOKE EXECUTE ON FUNCTION privlearn.note_cap(TEXT, JSONB) FROM PUBLIC;
CREATE OR REPLACE FUNCTION privlearn.within_grants() RETURNS TRIGGER
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    who TEXT := privlearn.team();
    body JSONB;
    out_of TEXT;
    may BOOLEAN;
BEGIN
    -- a quotation mark within a text stands behind a backslash
    IF who IS NULL AND NEW.entry !~ '"entry":"(cap|delegate)"' THEN
        RETURN NEW;
    END IF;
    body := NEW.entry::JSONB -> 'body';
    IF who IS NOT NULL THEN
        out_of := CASE WHEN body ->> 'entry' IN ('cap', 'delegate') THEN body ->> 'within'
            WHEN body ->> 'entry' IN ('issue', 'return') THEN body ->> 'allowance' END;
        may := EXISTS (SELECT FROM privlearn.granted
            WHERE ledger = NEW.ledger AND cap = out_of AND role = who);
        IF body ->> 'entry' IN ('spend', 'functions', 'phase', 'reach', 'publish', 'retire') THEN
            may := EXISTS (SELECT FROM privlearn.team_tokens
                WHERE ledger = NEW.ledger AND token = body ->> 'token' AND role = who);
        ELSIF body ->> 'entry' IN ('cap', 'delegate') THEN
            may := may AND NOT EXISTS (SELECT FROM privlearn.granted
                WHERE ledger = NEW.ledger AND cap = body ->> 'allowance');
        END IF;
        IF NOT may THEN
            RAISE EXCEPTION 'role % may only spend what was granted to it', who
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        IF body ->> 'entry' = 'issue' THEN
            INSERT INTO privlearn.team_tokens VALUES (NEW.ledger, body ->> 'token', who);
        END IF;
    END IF;
    IF body ->> 'entry' IN ('cap', 'delegate') THEN
        PERFORM privlearn.note_cap(NEW.ledger, body);
    END IF;
    RETURN NEW;
END
$$;
DROP TRIGGER IF EXISTS within_grants ON privlearn.entries;
CREATE TRIGGER within_grants BEFORE INSERT ON privlearn.entries
    FOR EACH ROW EXECUTE FUNCTION privlearn.within_grants();
DO $$
DECLARE
    made RECORD;
BEGIN
    FOR made IN SELECT ledger, entry FROM privlearn.entries
        WHERE entry ~ '"entry":"(cap|delegate)"' ORDER BY ledger, seq
    LOOP
        PERFORM privlearn.note_cap(made.ledger, made.entry::JSONB -> 'body');
    END LOOP;
END
$$;
"""


def _of(role: str) -> Iterator[str]:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    quoted = dialect.identifier_preparer.quote_identifier(role)
    name = role.replace("'", "''")
    tables = ", ".join(table.fullname for table in TABLES)
    written = ", ".join(table.fullname for table in TABLES if table.name != "epochs")
    yield f"INSERT INTO privlearn.teams VALUES ('{name}') ON CONFLICT DO NOTHING;"
    yield f"GRANT USAGE ON SCHEMA {SCHEMA_NAME} TO {quoted};"
    yield f"GRANT SELECT ON {tables} TO {quoted};"
    yield f"GRANT INSERT ON {written} TO {quoted};"
    yield f"REVOKE INSERT ON {SCHEMA_NAME}.epochs FROM {quoted};"


def script(teams: Sequence[str]) -> str:
    """For ``psql``, where the tables of ledgers are; may be run again for further teams."""
    lines = [line for role in teams for line in _of(role)]
    return "\n".join(["BEGIN;", _TABLES, _FUNCTIONS, *lines, "COMMIT;"]) + "\n"
