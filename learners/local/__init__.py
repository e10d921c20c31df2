"""Local bandits: the protocol between the devices of users and a server that sees only messages."""

import lazy_loader

from privlearn import _former

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_moved = _former.answer(__name__)


def __getattr__(name: str) -> object:
    return _load(name) if name in __all__ else _moved(name)
