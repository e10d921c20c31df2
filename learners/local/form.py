"""The numbers of a local bandit's messages: their grid and their layout."""

from __future__ import annotations

from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.protocols import Report
from privlearn.losses import Loss
from privlearn.mechanisms.report_streams import LEVELS
from privlearn.rows.domains import Array

MAGIC, VERSION = b"PLM", 1
FIRST = np.uint32(int.from_bytes(MAGIC + bytes([VERSION]), "little"))
"""The first four bytes of a message."""
GRID = LEVELS
"""Steps from 0 to the limit: 2²³, the words of projected reports count on it."""


@final
class MessageForm:
    """The numbers of a configuration's messages, in the warm-up or after it.

    Attributes:
        report: the mechanism of a whole message.
        part: the mechanism of one part.
        parts: how many parts a message has.
        dtype: the layout, as a numpy structure.
        limit: the largest size of a number.
        step: of the messages' grid.
        estimate_size: numbers in an estimate of one part.
        estimate_step: of the grid on which estimates are added up.
    """

    def __init__(self, report: Report[Any], part: Report[Any], fingerprint: bytes) -> None:
        self.report, self.part = report, part
        self.parts = report.size // part.size
        self.key = np.uint64(int.from_bytes(fingerprint[:8], "little"))
        head = [("first", "<u4"), ("batch", "<u4"), ("key", "<u8"), ("user", "<u8")]
        self.dtype = np.dtype([*head, ("values", "<i4", (report.size,))])
        self.limit, self.step = report.limit, report.limit / GRID
        self.estimate_size = part.domain.size
        self.estimate_step = part.estimate_limit / GRID

    @cached_property
    def loss(self) -> Loss:
        """What such a message costs its user."""
        return self.report.loss()

    def to_grid(self, reports: Array) -> NDArray[np.int32]:
        """Reports in steps of the grid, cut to the limit."""
        steps: Array = reports.clip(-self.limit, self.limit) / self.step
        return np.rint(steps, out=steps).astype(np.int32)

    def encode(self, users: range, batch: int, reports: Array) -> bytes:
        """The messages of consecutive users, back to back."""
        made = np.empty(len(users), dtype=self.dtype)
        made["first"], made["batch"], made["key"] = FIRST, batch, self.key
        made["user"] = np.arange(users.start, users.stop, dtype=np.uint64)
        made["values"] = self.to_grid(reports)
        return made.tobytes()
