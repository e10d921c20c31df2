"""diffprivlib beside the scikit-learn of here: two names that scikit-learn 1.9 took away."""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np
import pytest


def use_diffprivlib() -> None:
    """Makes it importable; what is tested of it does not use scikit-learn's trees for more."""
    if importlib.util.find_spec("diffprivlib") is None:
        pytest.skip("diffprivlib is not installed: pip install diffprivlib==0.6.6")
    from sklearn.tree import _tree

    for name, kind in (("DTYPE", np.float32), ("DOUBLE", np.float64)):
        if not hasattr(_tree, name):
            setattr(_tree, name, kind)
    # It asks for its warnings whatever the filters say: a process that spreads tests over workers
    # would then import it, to tell of them, without these names.
    with warnings.catch_warnings():
        import diffprivlib  # noqa: F401
