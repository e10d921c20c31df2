"""``privlearn describe``: statistics of a file, in a public and a private folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from privlearn.ledger import iterate_records, write_export
from privlearn.losses.budget_texts import parse_budget
from privlearn.reporting.certificates import certificate_markdown
from privlearn.runs.common import Folders, Outcome, write_csv, write_public
from privlearn.runs.null_records import NullRecords
from privlearn.statistics import describe
from privlearn.tables.readers import read
from privlearn.tables.schema import Schema

_HEADER: Final = ("column", "group", "statistic", "value", "low", "high")


class DescribeOptions(NamedTuple):
    """What ``privlearn describe`` is asked for."""

    data: Path
    schema: Path
    budget: str
    by: str | None = None
    rows: int | None = None
    """A public number of rows; None for as many as the file has."""
    simulate_noise: int | None = None


def run_describe(options: DescribeOptions, out: Path) -> Outcome:
    """Describes a file within a budget; leaves a public and a private folder.

    Raises:
        DataError, ValueError: the schema, the form of the file, or an option; nothing was spent.
    """
    schema, budget = Schema.load(options.schema), parse_budget(options.budget)
    table = read(options.data, schema, rows=options.rows)
    folders = Folders.create(out)
    try:
        found = describe(
            table,
            schema,
            budget,
            by=options.by,
            ledger=folders.ledger,
            simulate_noise=options.simulate_noise,
        )
    except BaseException:
        for path in (folders.public, folders.private, out):  # where nothing was begun
            with suppress(OSError):
                path.rmdir()
        raise
    certificate = found.certificate
    assert certificate is not None, "it has a ledger of its own"
    rows = found.rows()
    files: dict[str, Any] = {
        "statistics.json": {"guarantee": found.guarantee, "rows": rows},
        "certificate.json": certificate.model_dump(mode="json"),
        "certificate.md": certificate_markdown(certificate),
    }
    write_public(folders, files)
    write_csv(folders.public / "statistics.csv", _HEADER, [[r[k] for k in _HEADER] for r in rows])
    write_export(folders.public / "ledger.jsonl", iterate_records(folders.ledger))
    found.plot().save(folders.public / "statistics.png")
    nulls = NullRecords.of(len(table), table.messages, absent=table.absent)
    nulls.write(folders.private)
    return Outcome(
        certificate,
        str(found).splitlines(),
        nulls.lines(rule=False),
        folders,
        "ledger, certificate, statistics, a picture",
    )
