"""CSV and Parquet files, a part at a time: one person's broken line or cell costs no other record.

A CSV line is screened (`privlearn.tables.lines`), read by pyarrow as text, and each cell by the one
grammar for cells.  The header, and the names and types of a Parquet file, are form, and raise.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, cast

from privlearn.errors import DataError
from privlearn.storage.foreign_files import open_regular
from privlearn.tables.cells import is_number
from privlearn.tables.lines import Screen, header_of, line_chunks
from privlearn.tables.schema import Schema
from privlearn.values.user_code import FAILED, attempted, from_outside

_BATCH: Final = 65_536
_PARQUET: Final = (".parquet", ".pq")


class TableFile:
    """A file of records, known by its name: CSV, CSV in gzip, or Parquet.

    Args:
        path: ends in .parquet or .pq for Parquet; in .gz for gzip.
        schema: how a CSV file is written.

    Attributes:
        csv: whether it is CSV, whose columns are text.

    Raises:
        DataError: pyarrow is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema) -> None:
        self.path, self._schema = os.fspath(path), schema
        self.csv = not self.path.lower().endswith(_PARQUET)
        try:
            import pyarrow.csv
            import pyarrow.parquet  # noqa: F401  # both are used below, late
        except ImportError:
            raise DataError(
                f"{self.path}: files are read with pyarrow: pip install 'privlearn[tables]'"
            ) from None

    def header(self) -> Any:
        """An Arrow table without rows: of a CSV file, of text; only its first line is read.

        Raises:
            DataError: it cannot be read, or the first line may be somebody's row.
        """
        import pyarrow

        with self._opened() as file:
            if not self.csv:
                return pyarrow.parquet.ParquetFile(file).schema_arrow.empty_table()
            names = self._names(file)
        return pyarrow.table([pyarrow.array([], pyarrow.string())] * len(names), names=names)

    def batches(self, wanted: Sequence[str]) -> Iterator[tuple[Any, dict[int, str]]]:
        """Arrow tables of the wanted columns, and what is wrong with lines in them, by place.

        Columns of CSV files are text.

        Raises:
            DataError: the file cannot be read.
        """
        with self._opened() as file:
            if not self.csv:
                import pyarrow

                found = pyarrow.parquet.ParquetFile(file)
                for batch in found.iter_batches(_BATCH, columns=list(wanted), use_threads=False):
                    yield pyarrow.Table.from_batches([batch]), {}
            else:
                yield from self._csv_batches(file, wanted)

    def may_be_a_row(self, names: Sequence[str]) -> bool:
        """Whether the first line of a CSV file looks like somebody's cells."""
        return self.csv and any(not name or is_number(name) for name in names)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with _said(self.path), open_regular(self.path) as file:
            if self.path.lower().endswith(".gz"):
                yield cast(BinaryIO, gzip.GzipFile(fileobj=file))
            else:
                yield file

    def _names(self, file: BinaryIO) -> list[str]:
        line = file.readline(2**24)
        return header_of(line, self.path, self._schema.separator, self._schema.encoding)

    def _csv_batches(
        self, file: BinaryIO, wanted: Sequence[str]
    ) -> Iterator[tuple[Any, dict[int, str]]]:
        names, schema = self._names(file), self._schema
        screen = Screen(len(names), schema.separator, schema.encoding)
        places = [names.index(name) for name in wanted]
        for lines in line_chunks(file):
            screened, broken = screen(lines)
            columns = _columns(screened, places, screen, schema.separator)
            yield columns.rename_columns(list(wanted)), broken


def _columns(lines: list[bytes], places: list[int], screen: Screen, separator: str) -> Any:
    """The cells at some places of screened lines, as text."""
    import pyarrow

    table = attempted(_parsed, lines, places, screen.cells, separator)
    if table is not FAILED and table.num_rows == len(lines):
        return table
    # no line that came through the screen is known to do this; if one does, it costs itself alone
    if len(lines) == 1:
        return _parsed(screen.blank(1), places, screen.cells, separator)
    half = len(lines) // 2
    halves = [_columns(part, places, screen, separator) for part in (lines[:half], lines[half:])]
    return pyarrow.concat_tables(halves)


def _parsed(lines: list[bytes], places: list[int], cells: int, separator: str) -> Any:
    import pyarrow
    from pyarrow import csv

    text = pyarrow.py_buffer(b"\n".join(lines) + b"\n")
    names = [str(place) for place in range(cells)]
    kept = [names[place] for place in places]
    return csv.read_csv(
        pyarrow.BufferReader(text),
        csv.ReadOptions(column_names=names, block_size=text.size + 1, use_threads=False),
        csv.ParseOptions(delimiter=separator, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(kept, pyarrow.string()),
            include_columns=kept,
            strings_can_be_null=False,
            check_utf8=False,  # the screen hands on nothing else
        ),
    )


@contextmanager
def _said(path: str) -> Iterator[None]:
    """Errors of readers as `DataError`, without what they say, which may quote cells."""
    try:
        yield
    except (DataError, GeneratorExit):
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path}: the gzip file is damaged or cut off") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or 'damaged'}") from None
    except BaseException as error:  # whatever pyarrow says may quote somebody's cells
        if from_outside(error):
            raise
        raise DataError(f"{path}: not a file that pyarrow can read") from None
