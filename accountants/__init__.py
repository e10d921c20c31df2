"""Accountants hold caps, issue tokens, write the ledger and answer for the guarantee."""

if __name__ != "privlearn.accountants":
    raise ImportError("import privlearn.accountants, not the folder: a second copy would not match")

import lazy_loader

from privlearn.values.calls import explained

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_METHODS = {
    name: ("__init__", "issue")
    for name in ("CentralAccountant", "JointAccountant", "LocalAccountant")
}
"""What says which arguments it takes."""


def __getattr__(name: str) -> object:  # a price needs no ledger, and a ledger is long to import
    return explained(_load(name), _METHODS.get(name, ()))
