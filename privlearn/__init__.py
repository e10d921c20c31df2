"""Private online learning that can be checked.

The words of everyday use are here. `privlearn.losses` and `privlearn.noise` are namespaces; the
layers are `privlearn.accountants`, `privlearn.mechanisms` and `privlearn.learners`;
`privlearn.checking` tests what they claim.
"""

import lazy_loader

from privlearn.values import calls

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_METHODS = {"Rows": ("seal",), "Token": (), "Released": ()}
"""Of words that nobody makes by their name: what says which arguments it takes."""


def __getattr__(name: str) -> object:
    return calls.explained(_load(name), _METHODS.get(name, ("__init__",)))
