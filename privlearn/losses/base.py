r"""What one run of a mechanism costs, as data: a kind and its numbers.

A loss is a value, not code: the ledger stores it, and anybody can rebuild it and recompute every
price.  Each kind states every bound it has (a Rényi curve, a zCDP constant, a Gaussian mass, a
worst case) and what else is asked of it: the price for two steps, the same with more noise, the
step of a tight composition, and the laws that its prices can be checked against.  ``a + b`` runs
both, ``a * n`` runs n copies; multiplicity is applied in one place (`ComposedLoss`).  Third parties
add a kind with `register` and announce it by an entry point of the group ``privlearn.losses``;
ledgers hold it as a `DeclaredLoss`.  Reading a bare kind that nobody announces raises
`UnknownKindError`, which an audit reports as a problem.

Symbols: D_α(P‖Q) is the Rényi divergence of order α; K(s) = log E_Q[(dP/dQ)^s], so that
D_α = K(α)/(α−1), K(0) = K(1) = 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from itertools import islice, product
from types import MappingProxyType, NoneType, UnionType
from typing import Any, ClassVar, TypeVar, cast, final, get_args, get_origin, get_type_hints

from privlearn.errors import AdjacencyError, BudgetError, PackageError, UnknownKindError
from privlearn.losses.numerics import up
from privlearn.losses.output_laws import LawPair, Product
from privlearn.losses.steps import BoundedRangeStep, CurveStep, GaussianStep, Step
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import exact_text, float_up, round_up
from privlearn.values.json_forms import (
    LIST,
    OBJECT,
    REAL,
    TEXT,
    WHOLE,
    Form,
    Kind,
    check_form,
    named,
)
from privlearn.values.packages import LOSSES, look_up
from privlearn.values.validate import count as valid_count

_OURS = __name__.partition(".")[0] + "."
_MOST_PAIRS = 256  # Combinations of the parts' worst pairs that a composition is checked at
_MOST_BITS = 4096  # Of an exact sum's denominator; beyond, the sum is rounded up at 60 digits


class Loss(ABC):
    """The price of one run, for one neighbour relation."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def adjacency(self) -> Adjacency:
        """The neighbour relation the numbers hold for."""

    @abstractmethod
    def renyi(self, order: float) -> float:
        """Upper bound on D_order (nats), both directions; ``inf`` where there is none.

        Raises:
            ValueError: order <= 1 or not finite.
        """

    def zcdp(self) -> Fraction | None:
        """The zCDP constant ρ (an upper bound), or None."""
        return None

    def gaussian(self) -> Fraction | None:
        """mu² if the loss is dominated by a Gaussian mechanism of that mass, or None."""
        return None

    def pure(self) -> Fraction | None:
        """The worst-case privacy loss ε in nats, or None."""
        return None

    def failure(self) -> Fraction:
        """The probability δ of an event in which nothing is promised; it adds up.

        Where it is above 0 the bounds above are infinite or None, as they must be; those of
        `unless_failed` hold apart from that event, which is the same under both neighbours.
        """
        return Fraction(0)

    def unless_failed(self) -> Loss:
        """The loss apart from the event of probability `failure`."""
        return self

    def over(self, users: range) -> list[tuple[range, Loss]]:
        """What each of these users pays, in ranges of arrival indices; by default all the same.

        Raises:
            ValueError: the loss does not say what so many users pay.
        """
        return [(users, self)]

    def inner(self) -> Sequence[tuple[Loss, int]]:
        """The losses that this one is made of, with counts; empty for a loss of its own kind."""
        return ()

    def doubled(self) -> Loss:
        """The price, under replace-one, for two steps from neighbour to neighbour.

        Twice the sensitivity, or a group of two; `as_replace_one` has the proofs.

        Raises:
            AdjacencyError: no proof is known for this kind.
        """
        raise AdjacencyError(
            f"a {self.kind} loss for {self.adjacency.value} has no proved price under replace-one; "
            + (
                "state it as an ApproxLoss"
                if self.failure()
                else "tabulate its curve as a RenyiCurve to use the weak triangle inequality"
            )
        )

    @final
    def for_visits(self, visits: int, apart: int = 1) -> Loss:
        """What a person pays who has at most ``visits`` rows, ``apart`` or more slots apart.

        The loss of the same mechanism where all these rows change at once; itself for one visit.
        ``docs/proofs.md#persons-who-return-several-rows-in-one-release`` has the proofs.

        Raises:
            ValueError: a number below 1, or as `several`.
        """
        valid_count(apart=apart)
        if valid_count(visits=visits) == 1:
            return self
        return of_relation(self.adjacency, self.several(visits, apart))

    def several(self, visits: int, apart: int) -> Loss:
        """`for_visits` for two visits or more; by default refused.

        Raises:
            ValueError: no price is known for this kind, or it leaves the range of its numbers.
        """
        raise ValueError(
            f"visits = {visits}: a {self.kind} loss has no known price for a person with several "
            "rows; override `several` in its class, or state what one row costs as a PureLoss, "
            "ZCDPLoss, RenyiCurve or ApproxLoss, which are priced as groups"
        )

    def noisier(self, factor: Fraction) -> Loss:
        """The same mechanism with its noise multiplied by ``factor`` > 0, in exact arithmetic.

        Raises:
            BudgetError: the kind states no noise.
            ValueError: a number leaves its range.
        """
        raise BudgetError(f"a {self.kind} loss states no noise that could be scaled")

    def step(self) -> Step:
        """What stands for one run in a tight composition: it must dominate this loss.

        By default the Gaussian mass where there is one, else the Rényi curve.
        """
        mass = self.gaussian()
        return CurveStep(self.renyi) if mass is None else GaussianStep(float_up(mass))

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair] | None:
        """Laws of the output on the worst neighbours, to check the prices against; None if unknown.

        Args:
            orders: at which the worst member of a family is looked for.

        Raises:
            CheckError: the laws have too many symbols to be listed.
        """
        return None

    def numbers(self) -> dict[str, Any]:
        """The JSON numbers that define the loss: by default its fields, without the adjacency.

        Fields that may be left out are, where they are None.
        """
        found: dict[str, Any] = {}
        optional = _optional_names(self.__class__)
        for name in _number_names(self.__class__):
            value = getattr(self, name)
            if value is not None or name not in optional:
                found[name] = exact_text(value) if value.__class__ is Fraction else value
        return found

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
        """The loss with these `numbers`: by default the constructor's arguments.

        Raises:
            KeyError: a number is missing.
            ValueError: a number is bad.
        """
        make: Callable[..., Loss] = cls
        absent = {name for name in _optional_names(cls) if name not in data}
        names = [name for name in _number_names(cls) if name not in absent]
        return make(adjacency=adjacency, **{name: data[name] for name in names})

    @classmethod
    def json_form(cls) -> Form:
        """The names of the `numbers`, with the Python types that each may have when JSON is read.

        By default those of the fields: exact numbers are text, others numbers.  A kind whose
        `numbers` are not its fields states them, such as ``{"points": (list,)}``.

        Raises:
            ValueError: the type of a field has no JSON type of its own, or cannot be found, or a
                field is not compared: prices are kept by losses that are equal.
        """
        for field in fields(cast(Any, cls)):
            if not field.compare:
                raise ValueError(
                    f"loss kind {cls.kind!r}: {field.name} is not compared, so that losses of "
                    "other prices would be equal; compare it, or override `json_form`"
                )
        optional = _optional_names(cls)
        return cls._forms([name for name in _number_names(cls) if name not in optional])

    @classmethod
    def json_optional(cls) -> Form:
        """As `json_form`, for `numbers` that may be left out, such as those of later versions.

        By default the fields that are None by default, of types such as ``int | None``; none where
        `json_form` is not the default one.
        """
        own = cls.json_form.__func__ is not Loss.json_form.__func__  # type: ignore[attr-defined]
        return {} if own else cls._forms(sorted(_optional_names(cls)))

    @classmethod
    def _forms(cls, names: Sequence[str]) -> dict[str, Kind]:
        try:
            types = get_type_hints(cls)
        except NameError as unknown:
            raise ValueError(
                f"loss kind {cls.kind!r}: types of its fields: {unknown}; import it also at run "
                "time, or override `json_form`"
            ) from None
        return {name: _json_type(cls.kind, name, types[name]) for name in names}

    def _set(self, **values: object) -> None:
        for name in values:
            _set_field(self, name, values[name])

    def to_dict(self) -> dict[str, Any]:
        """JSON form, from which `loss_from_dict` rebuilds an equal loss."""
        return {"kind": self.kind, "adjacency": self.adjacency.value, **self.numbers()}

    def __add__(self, other: Loss) -> Loss:
        return compose([(self, 1), (other, 1)])

    def __mul__(self, count: int) -> Loss:
        return compose([(self, count)])

    __rmul__ = __mul__


_set_field = object.__setattr__


@cache
def _number_names(kind: type[Loss]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cast(Any, kind)) if f.name != "adjacency")


@cache
def _optional_names(kind: type[Loss]) -> frozenset[str]:
    return frozenset(f.name for f in fields(cast(Any, kind)) if f.default is None)


_JSON_TYPES: dict[type, Kind] = {
    Fraction: TEXT,
    str: TEXT,
    int: WHOLE,
    float: REAL,
    tuple: LIST,
    Loss: OBJECT,
}


def _json_type(kind: str, name: str, type_: object) -> Kind:
    inner = [part for part in get_args(type_) if part is not NoneType]
    single = inner[0] if isinstance(type_, UnionType) and len(inner) == 1 else type_
    known = _JSON_TYPES.get(cast(type, get_origin(single) or single))
    if known is None:
        raise ValueError(
            f"loss kind {kind!r}: {name} is of type {type_!r}, whose JSON form is not known; "
            "override `json_form`, `numbers` and `from_numbers`"
        )
    return known


_REGISTRY: dict[str, tuple[type[Loss], Form, Form]] = {}
L = TypeVar("L", bound=type[Loss])
A = TypeVar("A", bound=Loss)


def register(kind: L) -> L:
    """Class decorator that lets ledgers rebuild a kind of loss, through its `Loss.from_numbers`.

    What does not have its `Loss.json_form` is refused before.

    Raises:
        TypeError: no class of losses.
        ValueError: the kind is taken, or as `Loss.json_form`.
    """
    if not (isinstance(kind, type) and issubclass(kind, Loss)):
        raise TypeError(f"register({kind!r:.80}): must be a class of losses")
    if kind.kind in _REGISTRY:
        raise ValueError(f"loss kind {kind.kind!r} is registered already")
    form = {"kind": TEXT, "adjacency": TEXT, **kind.json_form()}
    _REGISTRY[kind.kind] = kind, form, kind.json_optional()
    return kind


def is_built_in(name: str) -> bool:
    """Whether a kind came with this package; no other can take its name."""
    return name in _REGISTRY and _REGISTRY[name][0].__module__.startswith(_OURS)


def is_foreign(loss: Loss) -> bool:
    """Whether it or a part of it is of a class that did not come with this package."""
    kind = loss.__class__
    found = _REGISTRY.get(kind.kind)
    if found is None or found[0] is not kind or not kind.__module__.startswith(_OURS):
        return True
    return any(is_foreign(part) for part, _ in loss.inner())


def registered_kinds() -> Mapping[str, type[Loss]]:
    """Every kind that a ledger can be read with, by its name there."""
    return MappingProxyType({name: kind for name, (kind, *_) in _REGISTRY.items()})


def loss_from_dict(data: Mapping[str, Any]) -> Loss:
    """Rebuilds a loss from its JSON form.

    A kind that is not known is looked for among those that installed packages announce.

    Raises:
        UnknownKindError: a kind that is not registered, or cannot be loaded.
        ValueError: a number is missing, bad or of another JSON type, or something else stands
            there.
    """
    name = named("loss", data, "kind") or ""
    if name not in _REGISTRY:
        _load(name)
    kind, form, optional = _REGISTRY[name]
    try:
        check_form(f"{name} loss", data, form, optional)
        return kind.from_numbers(data, Adjacency(data["adjacency"]))
    except KeyError as missing:
        raise ValueError(f"{name} loss lacks {missing}") from None


def _load(name: str) -> None:
    try:
        announced = look_up(LOSSES, name)
        found = None if announced is None else announced.load()
    except PackageError as error:
        raise UnknownKindError(f"loss kind {error}") from error
    if found is None:
        raise UnknownKindError(
            f"loss kind {name!r} is unknown; known: {', '.join(sorted(_REGISTRY))}"
        )
    if not (
        isinstance(found, type) and issubclass(found, Loss) and getattr(found, "kind", None) == name
    ):
        raise UnknownKindError(f"loss kind {name!r} of {announced}: is no class of losses of it")
    if name not in _REGISTRY:
        try:
            register(found)
        except (TypeError, ValueError) as error:
            raise UnknownKindError(f"loss kind {name!r} of {announced}: {error}") from error
    if _REGISTRY[name][0] is not found:
        raise UnknownKindError(
            f"loss kind {name!r} of {announced}: another class was registered under that name"
        )


def read_parts(parts: Sequence[object], number: str) -> list[tuple[Loss, int]]:
    """The losses in the parts of another one, each with the integer that it names ``number``."""
    found: list[tuple[Loss, int]] = []
    for part in parts:
        if not isinstance(part, Mapping):
            raise ValueError(f"parts of a loss: {part!r:.80}: must be an object")
        check_form("parts of a loss", part, {"loss": OBJECT, number: WHOLE})
        found.append((loss_from_dict(part["loss"]), part[number]))
    return found


def of_relation(adjacency: Adjacency, loss: A) -> A:
    """A loss that is inside another one, or made of its parts, for the same neighbour relation.

    Raises:
        AdjacencyError: it is for another one.
    """
    if loss.adjacency is not adjacency:
        raise AdjacencyError(f"a loss for {loss.adjacency.value} in one for {adjacency.value}")
    return loss


class LossAround(Loss):
    """A loss whose bounds are those of another one, ``loss``."""

    __slots__ = ()
    loss: Loss

    @property
    def adjacency(self) -> Adjacency:
        return self.loss.adjacency

    def renyi(self, order: float) -> float:
        return self.loss.renyi(order)

    def zcdp(self) -> Fraction | None:
        return self.loss.zcdp()

    def gaussian(self) -> Fraction | None:
        return self.loss.gaussian()

    def pure(self) -> Fraction | None:
        return self.loss.pure()

    def failure(self) -> Fraction:
        return self.loss.failure()

    def inner(self) -> Sequence[tuple[Loss, int]]:
        return ((self.loss, 1),)

    def step(self) -> Step:
        return self.loss.step()


class LossOfSeveral(Loss):
    """A loss whose numbers follow, each in one way, from those of several losses."""

    __slots__ = ()

    @abstractmethod
    def _gathered(self, value: Callable[[Loss], Fraction | None]) -> Fraction | None:
        """The number that follows from one of each loss."""

    def zcdp(self) -> Fraction | None:
        return self._gathered(lambda loss: loss.zcdp())

    def gaussian(self) -> Fraction | None:
        return self._gathered(lambda loss: loss.gaussian())

    def pure(self) -> Fraction | None:
        return self._gathered(lambda loss: loss.pure())


@final
@register
@dataclass(frozen=True, slots=True)
class ComposedLoss(LossOfSeveral):
    """Several losses one after the other, each possibly many times; made by `compose`.

    Rényi curves add up under adaptive composition (Mironov 2017, Proposition 1), and so do zCDP
    constants, Gaussian masses and worst cases.  The only place where a count is applied.
    """

    kind = "composed"
    parts: tuple[tuple[Loss, int], ...]

    @property
    def adjacency(self) -> Adjacency:
        return self.parts[0][0].adjacency

    def renyi(self, order: float) -> float:
        return up(math.fsum(loss.renyi(order) * count for loss, count in self.parts))

    def inner(self) -> Sequence[tuple[Loss, int]]:
        return self.parts

    def failure(self) -> Fraction:
        return self._gathered(lambda loss: loss.failure()) or Fraction(0)

    def unless_failed(self) -> Loss:
        return compose([(loss.unless_failed(), count) for loss, count in self.parts])

    def over(self, users: range) -> list[tuple[range, Loss]]:
        columns = [(loss.over(users), count) for loss, count in self.parts]
        starts = sorted({piece.start for column, _ in columns for piece, _ in column})
        same = (c[0][1] is p for (c, _), (p, _) in zip(columns, self.parts, strict=True))
        if len(starts) == 1 and all(same):
            return [(users, self)]
        stops = [*starts[1:], users.stop]
        return [
            (
                range(start, stop),
                compose(
                    [
                        (next(loss for piece, loss in column if start in piece), count)
                        for column, count in columns
                    ]
                ),
            )
            for start, stop in zip(starts, stops, strict=True)
        ]

    def _gathered(self, value: Callable[[Loss], Fraction | None]) -> Fraction | None:
        total = Fraction(0)
        for loss, count in self.parts:
            single = value(loss)
            if single is None:
                return None
            total += single * count
            if total.denominator.bit_length() > _MOST_BITS:
                total = round_up(total, 60)
        return total

    def numbers(self) -> dict[str, Any]:
        return {"parts": [{"loss": loss.to_dict(), "count": n} for loss, n in self.parts]}

    def doubled(self) -> Loss:
        return compose([(loss.doubled(), count) for loss, count in self.parts])

    def several(self, visits: int, apart: int) -> Loss:
        return compose([(loss.for_visits(visits, apart), count) for loss, count in self.parts])

    def noisier(self, factor: Fraction) -> Loss:
        return compose([(loss.noisier(factor), count) for loss, count in self.parts])

    def worst_pairs(self, orders: Sequence[float]) -> list[LawPair] | None:
        found = [loss.worst_pairs(orders) for loss, _ in self.parts]
        known = [pairs for pairs in found if pairs is not None]
        if len(known) < len(found):
            return None
        counts = [count for _, count in self.parts]
        return [
            (
                Product(tuple((p, n) for (p, _), n in zip(chosen, counts, strict=True))),
                Product(tuple((q, n) for (_, q), n in zip(chosen, counts, strict=True))),
            )
            for chosen in islice(product(*known), _MOST_PAIRS)
        ]

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> Loss:
        return of_relation(adjacency, compose(read_parts(data["parts"], "count")))


def parts_of(loss: Loss) -> tuple[tuple[Loss, int], ...]:
    """The parts of a composition with their counts; any other loss once."""
    return loss.parts if isinstance(loss, ComposedLoss) else ((loss, 1),)


def leaves_of(loss: Loss, count: int = 1) -> Iterator[tuple[Loss, int]]:
    """The losses at the bottom of ``loss``, however deeply it is nested, with their counts."""
    inner = loss.inner()
    if not inner:
        yield loss, count
    for part, times in inner:
        yield from leaves_of(part, count * times)


def foreign_kinds(loss: Loss) -> Iterator[type[Loss]]:
    """Kinds in ``loss`` that did not come with this package."""
    if not loss.__class__.__module__.startswith(_OURS):
        yield loss.__class__
    for part, _ in loss.inner():
        yield from foreign_kinds(part)


def is_bounded_range(loss: Loss) -> bool:
    """Whether the loss is about the range of one release's privacy loss.

    Then the order of releases matters, and a stream of them has no such loss.
    """
    return isinstance(loss.step(), BoundedRangeStep)


def compose(parts: Sequence[tuple[Loss, int]]) -> Loss:
    """Composes losses with multiplicities; equal losses are merged, nested ones flattened.

    Prices do not depend on the order, so the parts are sorted: equal compositions are equal.

    Raises:
        ValueError: no parts, or a count below 1.
        AdjacencyError: adjacencies differ.
    """
    merged: dict[Loss, int] = {}
    for loss, count in parts:
        number = valid_count(count=count)
        for single, times in parts_of(loss):
            merged[single] = merged.get(single, 0) + times * number
    if not merged:
        raise ValueError("parts = []: needs at least one loss")
    relations = {loss.adjacency for loss in merged}
    if len(relations) > 1:
        names = " and ".join(sorted(a.value for a in relations))
        raise AdjacencyError(f"cannot compose losses for {names}: convert one explicitly first")
    if list(merged.values()) == [1]:
        return next(iter(merged))
    return ComposedLoss(tuple(sorted(merged.items(), key=lambda part: _name(part[0]))))


def _name(loss: Loss) -> tuple[str, str]:
    return loss.kind, str(loss.numbers())
