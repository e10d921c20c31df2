"""What a sampling check runs: a function from data to random outputs, called many times."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from privlearn.checking.isolation import own_copy
from privlearn.checking.neighbours import default_pairs, run_once, visits_of
from privlearn.checking.stream_runs import StubAccountant
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.budgets import ApproxDP, Currency
from privlearn.rows import Rows
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import leaves, length, record_at
from privlearn.values.user_code import FAILED, attempted

D = TypeVar("D")
Claimable = Loss | Currency | ApproxDP


@dataclass(frozen=True)
class SamplingTarget(Generic[D]):
    """Something to be checked by sampling.

    Args:
        name: for reports.
        start: ``start(data, seed)`` returns ``draw``; each ``draw()`` is one fresh output.
        claim: what it promises about neighbouring data.
        neighbours: pairs of data sets.
        default_neighbours: whether this package chose the pairs; the last may then be left out.
        exact: whether its noise is said to be exact, so that the last bits must not tell either.
        function: what is called, if it is a plain function, whose exact law may be found.
    """

    name: str
    start: Callable[[D, int], Callable[[], Any]]
    claim: Claimable
    neighbours: Sequence[tuple[D, D]]
    default_neighbours: bool = False
    exact: bool = False
    function: Callable[..., Any] | None = None


def sampling_target(
    mechanism: Any,
    claim: Claimable | None = None,
    neighbours: Any = None,
    *,
    name: str | None = None,
    adjacency: Adjacency | None = None,
) -> SamplingTarget[Any]:
    """Makes a target of a plain function or of a mechanism with ``release`` or ``open``.

    Args:
        mechanism: ``f(data, rng)`` with a NumPy generator, or ``f(data)`` with randomness of its
            own; or a mechanism of this package's protocol, whose data are blocks of records
            (what `Rows.seal` takes, leading axis: users); or a `SamplingTarget`.
        claim: default: the mechanism's own ``loss()``.
        neighbours: a tuple of two data sets, or a list of such tuples; default, for a mechanism
            with a shipped domain: `default_pairs`.
        name: for reports.
        adjacency: if given, every pair is checked to be neighbours: sequences of records that
            differ in one place (replace-one, zero-out) or by one record (add-remove).

    Raises:
        CheckError: nothing to run, no claim, no neighbours, or pairs that are no neighbours.
    """
    called = name or name_of(mechanism)
    if isinstance(mechanism, SamplingTarget):
        pairs = _pairs(mechanism.neighbours if neighbours is None else neighbours)
        _check_pairs(pairs, adjacency)
        guessed = mechanism.default_neighbours and neighbours is None
        promise = _checked(mechanism.claim if claim is None else claim)
        return replace(
            mechanism, name=called, claim=promise, neighbours=pairs, default_neighbours=guessed
        )
    if hasattr(mechanism, "release") or hasattr(mechanism, "open"):
        return _of_mechanism(mechanism, claim, neighbours, called, adjacency)
    if not callable(mechanism):
        raise CheckError(
            f"mechanism = {mechanism!r}: must be f(data, rng), or have loss() and release(rows, "
            "token), or be a SamplingTarget"
        )
    if claim is None:
        raise CheckError(f"{called}: a plain function needs a claim, such as PureDP(1)")
    if neighbours is None:
        raise CheckError(f"{called}: a plain function needs neighbours, a pair of data sets")
    pairs = _pairs(neighbours)
    _check_pairs(pairs, adjacency)
    on = runs_of(mechanism)

    def start(data: Any, seed: int) -> Callable[[], Any]:
        return partial(on(data), np.random.default_rng(seed))

    return SamplingTarget(called, start, _checked(claim), pairs, function=mechanism)


def name_of(mechanism: Any) -> str:
    """What messages call it: the name that it states, that of a function, or its class."""
    stated = getattr(mechanism, "name", None)
    if isinstance(stated, str) and stated:
        return stated
    return str(getattr(mechanism, "__name__", type(mechanism).__name__))


def _checked(claim: Any) -> Claimable:
    if not isinstance(claim, Loss | Currency | ApproxDP):
        raise CheckError(
            f"claim = {claim!r}: must be a loss or a budget, such as PureDP(1), ZCDP('0.5'), "
            "GaussianDP(1), ApproxDP(1, 1e-6) or mechanism.loss()"
        )
    return claim


def signature_of(function: Callable[..., Any]) -> tuple[int, bool]:
    """How many arguments it must be given by position, and whether one is named ``rng``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise CheckError(f"{name_of(function)}: its signature cannot be read") from None
    ways = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    places = sum(p.kind in ways and p.default is p.empty for p in parameters)
    return places, any(p.name == "rng" for p in parameters)


def runs_of(function: Callable[..., Any]) -> Callable[[Any], Callable[[Any], Any]]:
    """``runs_of(f)(data)(rng)`` is one run, on a copy of the data. Raises CheckError: it takes
    something else than data, or data and a generator."""
    places, named = signature_of(function)
    if places not in (1, 2):
        raise CheckError(
            f"{name_of(function)}: {places} arguments; must be f(data, rng) or f(data)"
        )

    def on(data: Any) -> Callable[[Any], Any]:
        fresh = _fresh(data)
        if places == 2:
            return lambda rng: function(fresh(), rng)
        if named:
            return lambda rng: function(fresh(), rng=rng)
        return lambda rng: function(fresh())

    return on


def has_own_randomness(function: Callable[..., Any]) -> bool:
    """Whether it takes data only."""
    return signature_of(function) == (1, False)


def _fresh(data: Any) -> Callable[[], Any]:
    """Makes a copy for each run, as a function may change what it is given."""
    if isinstance(data, np.ndarray) and not data.dtype.hasobject:
        return data.copy
    packed = attempted(pickle.dumps, data, 5)
    if packed is not FAILED and alike(attempted(pickle.loads, packed), data):
        return partial(pickle.loads, packed)  # several times as fast as `deepcopy`
    return partial(own_copy, data)


def _pairs(neighbours: Any) -> list[tuple[Any, Any]]:
    if type(neighbours) is tuple and len(neighbours) == 2:
        return [own_copy(neighbours)]
    if not isinstance(neighbours, Iterable) or isinstance(neighbours, tuple | str):
        raise CheckError(f"neighbours = {neighbours!r}: must be a tuple of two, or a list of such")
    pairs = list(neighbours)
    if not pairs:
        raise CheckError("neighbours: no pair of data sets, or an exhausted iterator of them")
    for i, pair in enumerate(pairs):
        if type(pair) is not tuple or len(pair) != 2:
            raise CheckError(f"neighbours[{i}]: must be a tuple of two data sets")
    return [own_copy(pair) for pair in pairs]


def _check_pairs(pairs: Sequence[tuple[Any, Any]], adjacency: Adjacency | None) -> None:
    for i, (first, second) in enumerate(pairs):
        if _used_up(first) or _used_up(second):
            raise CheckError(f"neighbours[{i}]: an iterator is exhausted by the first run")
        if first is second or alike(first, second):
            raise CheckError(f"neighbours[{i}]: the two data sets are the same")
        if adjacency is not None:
            if not (isinstance(first, Iterable) and isinstance(second, Iterable)):
                raise CheckError(f"neighbours[{i}]: must be sequences of records, not {first!r}")
            _check_adjacent(i, list(first), list(second), adjacency)


def _check_adjacent(
    i: int,
    first: list[Any],
    second: list[Any],
    adjacency: Adjacency,
    visits: tuple[int, int] | None = None,
) -> None:
    said = f"neighbours[{i}]: {len(first)} and {len(second)} records"
    if adjacency is Adjacency.ADD_REMOVE:
        longer, shorter = sorted((first, second), key=len, reverse=True)
        gaps = (longer[:k] + longer[k + 1 :] for k in range(len(longer)))
        if len(longer) != len(shorter) + 1 or not any(alike(gap, shorter) for gap in gaps):
            raise CheckError(f"{said}; under add-remove one must be taken out of the other")
        return
    changed = [k for k, (x, y) in enumerate(zip(first, second, strict=False)) if not alike(x, y)]
    most, apart = visits or (1, 1)
    allowed = 1 <= len(changed) <= most and all(b - a >= apart for a, b in pairwise(changed))
    if len(first) != len(second) or not allowed:
        may = "exactly one record" if visits is None else f"{most} records {apart} or more apart"
        raise CheckError(f"{said} that differ at {changed[:5]}; {may} may differ")


def alike(first: Any, second: Any) -> bool:
    """Whether two data sets, records or parts of them are equal, NaN to NaN."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        if first.dtype.hasobject:
            return all(map(alike, first.ravel().tolist(), second.ravel().tolist()))
        return bool(np.array_equal(first, second, equal_nan=first.dtype.kind in "fc"))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(alike, first, second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(alike(first[k], second[k]) for k in first)
    if isinstance(first, float) and first != first:
        return bool(second != second)
    if not has_own_equality(first) and hasattr(first, "__dict__"):
        return first is second or alike(vars(first), vars(second))
    try:
        return bool(first == second)
    except Exception:
        return False


def has_own_equality(item: object) -> bool:
    """Whether it compares by something else than being the same object."""
    return bool(type(item).__eq__ != object.__eq__)


def _used_up(data: Any, depth: int = 8) -> bool:
    """Whether there is an iterator in it, which the first run would exhaust."""
    if isinstance(data, Iterator):
        return True
    parts: Iterable[Any] = ()
    if isinstance(data, list | tuple):
        parts = data[:1000]
    elif isinstance(data, dict):
        parts = data.values()
    elif hasattr(data, "__dict__") and not isinstance(data, type):
        parts = vars(data).values()
    return depth > 0 and any(_used_up(part, depth - 1) for part in parts)


def _of_mechanism(
    mechanism: Any, claim: Any, neighbours: Any, name: str, adjacency: Adjacency | None
) -> SamplingTarget[Any]:
    own = mechanism.loss() if hasattr(mechanism, "loss") else None
    promise = _checked(own if claim is None else claim)
    relation = adjacency or (own.adjacency if isinstance(own, Loss) else Adjacency.REPLACE_ONE)

    def start(block: Any, seed: int) -> partial[Any]:
        stub = StubAccountant(seed, relation)
        return partial(run_once, mechanism, Rows.seal(block, users=range(length(block))), stub)

    def spent(block: Any) -> Any:
        run = start(block, 0)
        attempted(run)  # an output like any other, when it is run in earnest
        return run.args[-1].last_spend

    default = neighbours is None
    pairs = default_pairs(mechanism, adjacency=relation) if default else _pairs(neighbours)
    if not default:
        _check_pairs([(list(leaves(a)), list(leaves(b))) for a, b in pairs], None)
        for i, (first, second) in enumerate(pairs):
            visits = visits_of(promise) or visits_of(own)
            one, two = (
                [[np.asarray(leaf) for leaf in leaves(record_at(b, k))] for k in range(length(b))]
                for b in (first, second)
            )
            _check_adjacent(i, one, two, relation, visits)
            _check_form(i, (first, second), spent)
    spend = spent(pairs[0][0])
    exact = spend is not None and spend.exact_form() is not None
    return SamplingTarget(name, start, promise, pairs, default, exact)


def _check_form(i: int, blocks: tuple[Any, Any], spent: Callable[[Any], Any]) -> None:
    """Rows of another form than the domain's would be null, and alike, for both data sets."""
    for block in blocks:
        if (spend := spent(block)) is None:
            return
        try:
            with np.errstate(all="ignore"):
                spend.domain.clip(block)
            return
        except Exception as error:
            reason = f"{error}"
    raise CheckError(f"neighbours[{i}]: no row fits the domain, so all would be null: {reason}")
