"""``python -m stand_in NOTES ARGUMENT LIFELINE``: in place of an owner or worker, and quick.

It writes what happens to a file, and ends at once where a file beside it says so.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def note(line: str) -> None:
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        file.write(f"{sys.argv[2]} {line}\n")


def stop(*_: object) -> None:
    note("stopped")
    os._exit(0)


signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[2] == "stubborn" else stop)
note("started")
codes = Path(sys.argv[1]).with_name("codes")
if sys.argv[2] in ("begin", "either", "resume") and codes.exists():
    first, *rest = codes.read_text().split()
    codes.write_text(" ".join(rest)) if rest else codes.unlink()
    os._exit(int(first))
os.read(int(sys.argv[3]), 1)
