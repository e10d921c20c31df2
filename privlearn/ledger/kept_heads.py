"""Where the heads of a ledger are kept: beside its file, and wherever else they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import final

from privlearn.errors import LedgerHeadError
from privlearn.ledger.heads import Head, HeadFile

KeepHead = Callable[[str], object]
"""Takes a head, 64 hexadecimal digits, to where it is kept."""


@final
class KeptHeads:
    """Keeps the heads of one ledger.

    Args:
        name: of the ledger, for messages.
        path: of its file; None for a ledger that has none.
        keep_head: takes each head to a safer place.

    Attributes:
        elsewhere: whether each head is handed to somebody who keeps it.
    """

    def __init__(self, name: str, path: Path | None, keep_head: KeepHead | None) -> None:
        self._name, self._keep_head = name, keep_head
        self._beside = None if path is None else HeadFile(path)
        self.elsewhere = keep_head is not None

    def keep(self, head: Head, newest: str, *, beside: bool) -> None:
        """Keeps a head of what is on disk.

        Raises:
            LedgerHeadError: it could not be kept.
        """
        if self._beside is not None and beside:
            try:
                self._beside.write(head)
            except OSError as error:
                raise self._not_kept(newest, error) from error
        if self._keep_head is not None:
            try:
                self._keep_head(head.hash)
            except Exception as error:
                raise self._not_kept(newest, error) from error

    def _not_kept(self, newest: str, error: Exception) -> LedgerHeadError:
        return LedgerHeadError(
            f"{self._name}: the head {newest} could not be kept: {error!r}; its entry stands, "
            "and a spend stays charged, but nothing was released for it"
        )

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()
