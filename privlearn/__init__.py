"""Private online learning that can be checked.

The words of everyday use are here. `privlearn.losses` and `privlearn.noise` are namespaces; the
layers are `privlearn.accountants`, `privlearn.mechanisms` and `privlearn.learners`;
`privlearn.checking` tests what they claim.
"""

import lazy_loader

from privlearn import _former

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_moved = _former.answer(__name__)
_former.install()


def __getattr__(name: str) -> object:
    return _load(name) if name in __all__ else _moved(name)
