"""Parameters and mechanisms of a learner as JSON, and back, number by number.

What a learner works out at its start stands in its ledger in this form, and is read from there when
another process goes on with it: nothing is calibrated anew, by whatever version.  Classes are
written by name, and only those that are listed here are made again.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import reprlib
from enum import Enum
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np

from privlearn.errors import LedgerUnreadableError
from privlearn.losses.budgets import Budget, budget_from_dict
from privlearn.values.exact import exact, exact_text

_HOMES = {
    "values.adjacency": "Adjacency Calibration Trust",
    "values.participation": "Participation",
    "values.grid": "Grid",
    "rows.domains.balls": "Ball",
    "rows.domains.boxes": "Box",
    "rows.domains.categories": "Categories",
    "rows.domains.gradients": "GradientHessian",
    "rows.domains.matrices": "PSDTrace",
    "rows.domains.one_of": "OneOf",
    "noise.additive": "GaussianNoise LaplaceNoise",
    "noise.caps": "CapNoise",
    "noise.categories": "CategoryNoise",
    "noise.choices": "ExponentialNoise GumbelNoise",
    "noise.generalized_gaussian": "GeneralizedGaussianNoise",
    "mechanisms.ball_reports": "BallReport",
    "mechanisms.banded_blt": "BandedBLT",
    "mechanisms.batched_sums": "BatchedPrefixSum",
    "mechanisms.binary_tree": "BinaryTree",
    "mechanisms.buffered_toeplitz": "AnytimeBLT BufferedToeplitz",
    "mechanisms.category_reports": "CategoryReport",
    "mechanisms.constraint_sets": "LpBall Polytope Simplex",
    "mechanisms.envelope": "LipschitzEnvelope",
    "mechanisms.linear_models": "LinearObjective",
    "mechanisms.multinomial": "MultinomialLogit",
    "mechanisms.noisy_max": "ReportNoisyMax",
    "mechanisms.noisy_max_batches": "NoisyMaxBatches",
    "mechanisms.noisy_max_stream": "NoisyMaxStream",
    "mechanisms.noisy_report": "NoisyReport",
    "mechanisms.noisy_sum": "NoisySum",
    "mechanisms.objective_perturbation": "ObjectivePerturbation",
    "mechanisms.one_of_k": "OneOfK",
    "mechanisms.one_of_k_reports": "OneOfKReport",
    "mechanisms.phase_sums": "PhaseSum",
    "mechanisms.prefix_sums": "PrefixSum",
    "mechanisms.projected_reports": "ProjectedReport",
    "mechanisms.published": "Tilt",
    "mechanisms.regions": "EuclideanBall WholeSpace",
    "mechanisms.scalar_objectives": (
        "HuberObjective LogisticObjective PoissonObjective SquaredObjective"
    ),
    "mechanisms.vertices": "CrossPolytope SimplexVertices",
    "learners.convex": "ProblemScale",
    "learners.descent_rules": "DescentRule",
    "learners.dpmnl_noise": "DPMNLNoise Width",
    "learners.hdb_epochs": "CorrelatedEpochs EpochSetting",
    "learners.tofw_whitened": "Whitening",
}
"""Of this package: modules, and the classes in them that can be written, with their fields."""

_HOME_OF = {
    **{name: f"privlearn.{home}" for home, names in _HOMES.items() for name in names.split()},
    "NoisyMaxEpochs": "privlearn_studies.rivals.noisy_max_epochs",
}

FORMER_NAMES: dict[str, str] = {}
"""Classes, of these and of learners, by the names that older versions wrote: what they are now."""


REMOVED = {
    "ColumnNormalizedBLT": ("the noise of DPTOFW(method='plain')", "141b1425"),
    "GaussianEpochs": ("the method of DPHDB()", "fe29d1d7"),
}
"""Classes that ledgers hold and this version does not have: what they were, and who has them."""


def go_on_with(commit: str) -> str:
    """What to do where something was removed."""
    return (
        f"was removed from privlearn before its first release: go on with its commit {commit}, "
        "which has it; the ledger is audited as before"
    )


def _class_named(name: object) -> type[Any]:
    name = FORMER_NAMES.get(name, name) if isinstance(name, str) else name
    if name in REMOVED:
        what, commit = REMOVED[str(name)]
        raise LedgerUnreadableError(f"{name}, {what}, {go_on_with(commit)}")
    if not isinstance(name, str) or name not in _HOME_OF:
        raise ValueError(f"{name!r:.80} is no class that a ledger can hold, in this version")
    try:
        found: type[Any] = getattr(import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError:
        raise ValueError(f"{name} is in {_HOME_OF[name]}, which is not installed") from None
    return found


def _is_listed(kind: type[Any]) -> bool:
    home = _HOME_OF.get(kind.__name__)
    return home is not None and kind.__module__ == home


def stored(value: Any) -> Any:
    """JSON from which `restored` makes an equal value.

    Raises:
        TypeError: it is neither made of numbers and text nor a class of this package.
    """
    if type(value) in (bool, str, type(None)):
        return value
    kind = type(value)
    if _is_listed(kind):
        if isinstance(value, Enum):
            return {"class": kind.__name__, "member": value.name}
        return {
            "class": kind.__name__,
            "fields": {name: stored(getattr(value, name)) for name in _fields(kind)},
        }
    match value:
        case int() if kind is int:
            return value if abs(value) < 2**53 else {"whole": str(value)}
        case float() if kind is float:
            return _real(value)
        case Fraction():
            return {"exact": exact_text(value)}
        case Budget():
            return {"budget": value.to_dict()}
        case range() if value.step == 1:
            return {"range": [value.start, value.stop]}
        case tuple() if kind is tuple:
            return {"tuple": [stored(item) for item in value]}
        case list() if kind is list:
            return [stored(item) for item in value]
        case dict() if kind is dict and all(type(name) is str for name in value):
            return {"names": {name: stored(item) for name, item in value.items()}}
        case np.ndarray() if kind is np.ndarray and value.dtype.kind in "biuf":
            numbers = base64.b64encode(value.tobytes()).decode("ascii")
            form = {"dtype": value.dtype.str, "shape": list(value.shape), "base64": numbers}
            return {"array": form}
        case np.generic() if value.dtype.kind in "biuf":
            return stored(value.item())
    raise TypeError(f"{reprlib.repr(value)}: a {kind.__name__} cannot be written to a ledger")


def _fields(kind: type[Any]) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init]
    return list(kind._fields)  # of a NamedTuple


def _real(value: float) -> Any:
    """A float; JSON writes whole ones as it writes integers, and knows no infinity."""
    whole = not math.isfinite(value) or value.is_integer()
    return {"real": repr(value)} if whole else value


def restored(data: Any) -> Any:
    """What `stored` was given.

    Raises:
        LedgerUnreadableError: no such form, or a class that this version does not have.
    """
    try:
        return _restored(data)
    except LedgerUnreadableError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a class says of its fields
        raise LedgerUnreadableError(
            f"the ledger's {reprlib.repr(data)} cannot be read as a value: {error}"
        ) from None


def _restored(data: Any) -> Any:
    match data:
        case bool() | int() | float() | str() | None:
            return data
        case list():
            return [_restored(item) for item in data]
        case {"exact": str(text), **rest} if not rest:
            return exact("exact", text)
        case {"whole": str(text), **rest} if not rest:
            return int(text)
        case {"real": str(text), **rest} if not rest:
            return float(text)
        case {"budget": dict(form), **rest} if not rest:
            return budget_from_dict(form)
        case {"range": [int(start), int(stop)], **rest} if not rest:
            return range(start, stop)
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_restored(item) for item in items)
        case {"names": dict(items), **rest} if not rest:
            return {name: _restored(item) for name, item in items.items()}
        case {"array": {"dtype": dtype, "shape": shape, "base64": text}, **rest} if not rest:
            return _array(np.dtype(dtype), shape, base64.b64decode(text, validate=True))
        case {"class": name, "member": member, **rest} if not rest:
            return _class_named(name)[member]
        case {"class": name, "fields": dict(fields), **rest} if not rest:
            kind = _class_named(name)
            if issubclass(kind, Enum):
                raise ValueError(f"{name} has members, no fields")
            return kind(**{field: _restored(item) for field, item in fields.items()})
    raise ValueError("no known form")


def _array(dtype: np.dtype[Any], shape: list[int], numbers: bytes) -> np.ndarray[Any, Any]:
    if dtype.kind not in "biuf" or any(size < 0 for size in shape):
        raise ValueError(f"no numbers of type {dtype} and shape {shape}")
    return np.frombuffer(numbers, dtype=dtype).reshape(shape).copy()
