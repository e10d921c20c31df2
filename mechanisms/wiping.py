"""What an open stream keeps of rows and noise is overwritten in a forked child."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_KEPT_IN = ("privlearn.mechanisms.", "privlearn.noise.", "privlearn.noise.exact.")
"""Where the classes are from that a stream keeps sums and noise in; receipts see to themselves."""


def wipe(stream: object) -> None:
    """Overwrites the arrays that a stream holds, directly or in objects of its own.

    Specifications are frozen, and tables that streams share cannot be written to: both are left
    alone, for streams that the child itself makes.
    """
    seen, waiting = {id(stream)}, [stream]
    while waiting:
        for each in _held(waiting.pop()):
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, np.ndarray):
                if each.flags.writeable and each.dtype != object:
                    each[...] = 0
            elif _is_own(each):
                waiting.append(each)


def _is_own(thing: object) -> bool:
    if isinstance(thing, list | dict | tuple):
        return True
    parameters = getattr(type(thing), "__dataclass_params__", None)
    frozen = parameters is not None and parameters.frozen
    return not frozen and type(thing).__module__.startswith(_KEPT_IN)


def _held(thing: object) -> Iterator[object]:
    if isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, list | tuple):
        yield from thing
    else:
        for kind in type(thing).__mro__:
            for name in kind.__dict__.get("__slots__", ()):
                if name.startswith("__") and not name.endswith("__"):
                    name = f"_{kind.__name__.lstrip('_')}{name}"
                yield getattr(thing, name, None)
        yield from getattr(thing, "__dict__", {}).values()
