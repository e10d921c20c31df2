"""A function that reads a partition, and ends the process that reads a certain one first."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np


class Fatal:
    """Reads a file; the process that does it first for the last one is killed there."""

    def __init__(self, mark: str, last: str) -> None:
        self.mark, self.last = mark, last

    def __call__(self, path: str) -> Any:
        if path == self.last:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return np.load(path)
