"""Private models in scikit-learn's manner: fit, predict, search, save."""

import lazy_loader

from privlearn.values import calls

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    return calls.explained(_load(name), ("__init__", "fit"))
