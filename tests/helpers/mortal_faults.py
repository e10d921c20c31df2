"""Faults that are planted into a process, each of which the harness must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FAULTS: dict[str, Callable[[Callable[[Any], None]], None]] = {}
