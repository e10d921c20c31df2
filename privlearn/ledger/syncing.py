"""Bringing to disk what was appended for later, while more is appended."""

from __future__ import annotations

from typing import final

from privlearn.ledger.disk import Disk
from privlearn.ledger.heads import Head


@final
class Settling:
    """One sync of what stood in a file when it was made.

    Attributes:
        head: of what stood.
    """

    def __init__(self, disk: Disk, head: Head) -> None:
        self._disk, self.head = disk, head

    def sync(self) -> None:
        """Returns when it is on disk; a thread may call it while another one appends.

        Raises:
            LedgerError: the sync failed, and nothing more is recorded by this process.
        """
        self._disk.sync_log()
