"""Durations and sizes as people write them: ``250 ms``, ``2 min``, ``64 KiB``.

>>> seconds("1.5 min")
90.0
>>> octets("64 KiB")
65536
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

_TIMES: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FORM: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def seconds(text: Any) -> float:
    """A duration in seconds.

    Raises:
        ValueError: not a number above zero with a unit of time.
    """
    return _amount(text, _TIMES, "a duration such as '250 ms', '10 s', '5 min', '1 h' or '1 d'")


def octets(text: Any) -> int:
    """A size in bytes.

    Raises:
        ValueError: not a whole number above zero with a unit of size.
    """
    wanted = "a size such as '512 B', '64 KiB' or '1 MiB'"
    found = _amount(text, _SIZES, wanted)
    if found != int(found):
        raise ValueError(f"must be {wanted}, a whole number of bytes")
    return int(found)


def _amount(text: Any, units: dict[str, Any], wanted: str) -> float:
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[2] not in units:
        raise ValueError(f"must be {wanted}")
    amount = float(found[1]) * float(units[found[2]])
    if not 0 < amount < math.inf:
        raise ValueError(f"must be {wanted}, above zero")
    return amount


Duration = Annotated[float, BeforeValidator(seconds)]
"""Seconds, from a text with a unit."""
Size = Annotated[int, BeforeValidator(octets)]
"""Bytes, from a text with a unit."""
