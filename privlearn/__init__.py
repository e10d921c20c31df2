"""Private online learning that can be checked.

The words of everyday use are here. `privlearn.losses` and `privlearn.noise` are namespaces; the
layers are `privlearn.accountants`, `privlearn.mechanisms` and `privlearn.learners`;
`privlearn.checking` tests what they claim.
"""

import lazy_loader

from privlearn.values import calls

__version__ = "0.2.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_METHODS = {"Rows": ("seal",), "Token": (), "Released": ()}
"""Of words that nobody makes by their name: what says which arguments it takes."""
_ELSEWHERE = {
    "statistics": "count correlation covariance describe histogram mean quantile quantiles sum "
    "top_k variance",
    "tables": "Boolean Category Date Number Schema public_split read",
    "estimators": "PrivateLinearRegression PrivateLogisticRegression PrivateSearchCV load_model",
}


def __getattr__(name: str) -> object:
    for room, names in _ELSEWHERE.items():
        if name in names.split():
            raise AttributeError(f"privlearn.{name}: from privlearn.{room} import {name}")
    return calls.explained(_load(name), _METHODS.get(name, ("__init__",)))
