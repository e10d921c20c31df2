"""Learners are written against mechanism protocols and are handed their accountant."""

import lazy_loader

from privlearn.values import calls

if __name__ != "privlearn.learners":
    raise ImportError("import privlearn.learners, not the folder: a second copy would not match")

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    return calls.explained(_load(name))
