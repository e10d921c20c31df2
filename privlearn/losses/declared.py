"""Losses of other packages as ledgers hold them: with the numbers that were declared.

A price must not depend on who reads a ledger.  So what a kind of another package says is asked
once, before the entry is written, and stands there as bounds of kinds that everybody knows: the
live accountant charges these, and so does every audit, with that package or without it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, final

from privlearn.errors import LedgerError, PackageError, UnknownKindError
from privlearn.losses.base import (
    ComposedLoss,
    Loss,
    LossAround,
    compose,
    is_built_in,
    is_foreign,
    loss_from_dict,
    of_relation,
    register,
    registered_kinds,
)
from privlearn.losses.discrete import DiscreteLaplace
from privlearn.losses.failing import FailingLoss
from privlearn.losses.gaussian import GaussianLoss
from privlearn.losses.minimum import BOUNDS, LeastLoss, least
from privlearn.losses.per_arrival import PerArrivalLoss
from privlearn.losses.pure import BoundedRangeLoss, LaplaceLoss, PureLoss, RandomizedResponse
from privlearn.losses.stated import RenyiCurve, ZCDPLoss
from privlearn.losses.steps import (
    BoundedRangeStep,
    CurveStep,
    DiscreteLaplaceStep,
    GaussianStep,
    LaplaceStep,
    PureStep,
    RandomizedResponseStep,
    Step,
)
from privlearn.losses.subsampled import SubsampledGaussian, SubsampledGaussianStep
from privlearn.losses.upper_bounds import is_above
from privlearn.losses.visits import VisitsLoss
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, round_up
from privlearn.values.json_forms import OBJECT, TEXT, Form
from privlearn.values.packages import LOSSES, look_up

ORDERS = tuple(
    1 + Fraction(4 + part, 4) * Fraction(2) ** k for k in range(-3, 10) for part in range(4)
)
"""Of recorded curves: 1.125 to 897, four to a doubling, so that chords between them are close.
Never changed: readings of a kind are compared at the orders that stand in the ledger."""
_DIGITS = 12
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
_KIND = re.compile(r"[!-~]{1,200}")
_WHOLE = 2**53


@final
@register
@dataclass(frozen=True, slots=True, init=False)
class DeclaredLoss(LossAround):
    """What a kind of another package declared of itself, as bounds of kinds of this one.

    All prices are those of ``loss``.  That they are not too low is that package's word.

    Args:
        of: the JSON form of the loss that declared it, whose kind is none of this package's.
        loss: bounds of one run, perhaps by arrival, perhaps apart from a failure.
        distribution: what announces the kind; None if that is not known.

    Raises:
        ValueError: a form of no foreign kind, bounds of other kinds, or no name of a distribution.
        AdjacencyError: they are for different relations.
    """

    kind = "declared"
    text: str
    loss: Loss
    distribution: str | None

    def __init__(self, of: Mapping[str, Any], loss: Loss, distribution: str | None = None):
        name, relation = of.get("kind"), of.get("adjacency")
        if not isinstance(name, str) or not _KIND.fullmatch(name):
            raise ValueError(
                f"of: kind = {name!r:.80}: must be 1 to 200 letters, digits and marks of ASCII"
            )
        if is_built_in(name):
            raise ValueError(
                f"of: kind = {name!r}: is a kind of this package, whose price follows from its "
                "numbers and is not declared"
            )
        if relation != loss.adjacency.value:
            raise ValueError(
                f"of: adjacency = {relation!r:.80}: must be {loss.adjacency.value}, as its bounds"
            )
        if distribution is not None and not _DISTRIBUTION.fullmatch(distribution):
            raise ValueError(f"distribution = {distribution!r:.80}: must be the name of one")
        _check_bounds(loss)
        self._set(text=_canonical(of), loss=loss, distribution=distribution)

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def of(self) -> dict[str, Any]:
        """The JSON form of the loss that declared it."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def of_kind(self) -> str:
        """The kind that declared it."""
        return str(self.of["kind"])

    def unless_failed(self) -> Loss:
        apart = self.loss.unless_failed()
        return self if apart is self.loss else apart

    def over(self, users: range) -> list[tuple[range, Loss]]:
        pieces = self.loss.over(users)
        whole = len(pieces) == 1 and pieces[0][1] is self.loss
        return [(users, self)] if whole else pieces

    def doubled(self) -> Loss:
        return self.loss.doubled()

    def several(self, visits: int, apart: int) -> Loss:
        return self.loss.for_visits(visits, apart)

    def numbers(self) -> dict[str, Any]:
        found = {"of": self.of, "loss": self.loss.to_dict()}
        return found if self.distribution is None else {**found, "distribution": self.distribution}

    @classmethod
    def from_numbers(cls, data: Mapping[str, Any], adjacency: Adjacency) -> DeclaredLoss:
        loss = of_relation(adjacency, loss_from_dict(data["loss"]))
        return cls(data["of"], loss, data.get("distribution"))

    @classmethod
    def json_form(cls) -> Form:
        return {"of": OBJECT, "loss": OBJECT}

    @classmethod
    def json_optional(cls) -> Form:
        return {"distribution": TEXT}


def _check_bounds(loss: Loss) -> None:
    match loss:
        case LeastLoss():
            return
        case FailingLoss():
            _check_bounds(loss.loss)
        case PerArrivalLoss():
            for _, part in loss.parts:
                if isinstance(part, PerArrivalLoss):
                    raise ValueError("a declared loss by arrival, within one by arrival")
                _check_bounds(part)
        case _ if type(loss) not in BOUNDS:
            raise ValueError(f"a {loss.kind} loss cannot be declared for a kind of another package")


Before = Mapping[str, "DeclaredLoss"]
"""What a ledger holds of other packages' losses, by the text of their forms."""
_NOTHING: Before = MappingProxyType({})


def recorded(loss: Loss, users: range, before: Before = _NOTHING) -> Loss:
    """``loss`` as ledgers hold it: kinds of other packages are replaced by what they declare.

    Args:
        loss: perhaps of another package, or with such ones inside.
        users: arrival indices that it is for; some kinds say themselves who of them pays what.
        before: what stands in the ledger, which stands as long as a package says no more today, be
            it on another machine or of another version.

    Raises:
        UnknownKindError: a kind that is not registered, so that nobody could ask it again.
        PackageError: what it says of itself cannot be a loss, or cannot be written.
    """
    if not is_foreign(loss):
        return loss
    kept = _KEPT.get(id(loss))
    if kept is not None and kept[0] is loss and kept[1] == users and kept[2] is before:
        return kept[3]
    found = _rewritten(loss, users, before)
    if len(_KEPT) >= 1024:
        _KEPT.clear()
    _KEPT[id(loss)] = loss, users, before, found
    return found


_KEPT: dict[int, tuple[Loss, range, Before, Loss]] = {}
"""By identity: a kind of somebody else may say that it equals anything."""


def _rewritten(loss: Loss, users: range, before: Before) -> Loss:
    """As `recorded`, in containers of this package; anything else is one kind of somebody else."""
    if not is_foreign(loss):
        return loss
    match loss:
        case ComposedLoss():
            return compose([(_rewritten(part, users, before), count) for part, count in loss.parts])
        case FailingLoss():
            return FailingLoss(_rewritten(loss.loss, users, before), loss.probability)
        case VisitsLoss():
            return VisitsLoss(_rewritten(loss.loss, users, before), loss.most, loss.apart)
        case PerArrivalLoss():
            parts, start = [], users.start
            for number, part in loss.parts:
                parts.append((number, _rewritten(part, range(start, start + number), before)))
                start += number
            return PerArrivalLoss(parts)
    found = _declared(loss, users)
    stands = before.get(found.text)
    if stands is not None and is_above(stands.loss, found.loss, users) is None:
        return stands
    return found


def _declared(loss: Loss, users: range) -> DeclaredLoss:
    kind = loss.__class__
    if is_built_in(kind.kind):
        raise PackageError(
            f"loss kind {kind.kind!r}: {_path(kind)} names itself as a kind of this package; "
            "nobody else can"
        )
    if registered_kinds().get(kind.kind) is not kind:
        raise UnknownKindError(
            f"loss kind {kind.kind!r}: {_path(kind)} is not registered, so that no ledger can hold "
            "it; decorate the class with privlearn.losses.register"
        )
    announced = look_up(LOSSES, kind.kind)
    if announced is not None and announced.load() is not kind:
        raise PackageError(
            f"loss kind {kind.kind!r} is that of {_path(kind)} here, and is announced by "
            f"{announced}: give one of them another name"
        )
    try:
        form = _plain(loss.to_dict())
    except (Exception, SystemExit) as error:  # whatever code of somebody else does
        raise PackageError(f"loss kind {kind.kind!r} cannot be written: {error}") from error
    again = rebuilt(form)
    bounds = declaration(again, users)
    return DeclaredLoss(form, bounds, None if announced is None else announced.distribution)


def _path(kind: type[Loss]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def rebuilt(form: Mapping[str, Any]) -> Loss:
    """The loss of another package with this JSON form.

    Raises:
        UnknownKindError: its kind is not known here.
        PackageError: it is refused, or would be written otherwise.
    """
    try:
        found = loss_from_dict(form)
        same = _canonical(found.to_dict()) == _canonical(form)
    except LedgerError:
        raise
    except Exception as error:  # whatever code of somebody else does
        raise PackageError(
            f"loss kind {form['kind']!r} refuses its own numbers: {type(error).__name__}: {error}"
        ) from error
    if not same:
        raise PackageError(f"loss kind {form['kind']!r} is written otherwise once it was read")
    return found


def declaration(loss: Loss, users: range) -> Loss:
    """What a kind of another package says of itself, as bounds of kinds of this one.

    Raises:
        PackageError: that cannot be a loss.
    """
    try:
        pieces = loss.over(users)
        if len(pieces) == 1:
            return _bounds(pieces[0][1])
        _check_pieces(pieces, users)
        if loss.failure() > max(part.failure() for _, part in pieces):
            raise ValueError("it may fail, and for none of its users")
        return PerArrivalLoss([(len(piece), _bounds(part)) for piece, part in pieces])
    except PackageError:
        raise
    except (Exception, SystemExit) as error:  # whatever code of somebody else does
        raise PackageError(
            f"loss kind {loss.kind!r} declares what cannot be a loss: "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_pieces(pieces: Sequence[tuple[range, Loss]], users: range) -> None:
    at = users.start
    for piece, _ in pieces:
        if piece.start != at or piece.stop <= at or piece.step != 1:
            break
        at = piece.stop
    if at != users.stop:
        raise ValueError(f"over({users!r}) leaves some of the users out, or names others")


def _bounds(loss: Loss) -> Loss:
    failure = loss.failure()
    apart = loss.unless_failed() if failure else loss
    if failure and apart.failure():
        raise ValueError("unless_failed() may still fail")
    if apart.adjacency is not loss.adjacency:
        raise ValueError("unless_failed() is for another relation")
    relation = loss.adjacency
    listed: list[Loss] = []
    for number, make in (
        (apart.gaussian(), GaussianLoss),
        (apart.zcdp(), ZCDPLoss),
        (apart.pure(), PureLoss),
    ):
        if number is not None:
            listed.append(make(number, adjacency=relation))
    stepped = _of_step(apart.step(), relation, listed)
    curve = _curve(apart.renyi)
    if curve:
        listed.append(RenyiCurve(curve, adjacency=relation))
    if stepped is not None:
        listed = [stepped, *listed]
    else:  # its tight composition is by its curve
        listed.sort(key=lambda bound: isinstance(bound, PureLoss))
    if not listed:
        raise ValueError("no order of its curve is finite, and no other number is known")
    whole = least(listed)
    return FailingLoss(whole, failure) if failure else whole


def _of_step(step: Step, relation: Adjacency, known: Sequence[Loss]) -> Loss | None:
    """What a loss says that stands for one run; None where that is its curve, or known anyway."""
    match step:
        case CurveStep():
            return None
        case GaussianStep(mass):
            made: Loss = GaussianLoss(Fraction(mass), adjacency=relation)
            return next((bound for bound in known if type(bound) is GaussianLoss), made)
        case PureStep(epsilon):
            made = PureLoss(Fraction(epsilon), adjacency=relation)
            return next((bound for bound in known if type(bound) is PureLoss), made)
        case LaplaceStep(epsilon):
            return LaplaceLoss(Fraction(epsilon), adjacency=relation)
        case BoundedRangeStep(epsilon):
            return BoundedRangeLoss(Fraction(epsilon), adjacency=relation)
        case RandomizedResponseStep(epsilon, k):
            return RandomizedResponse(Fraction(epsilon), k, adjacency=relation)
        case DiscreteLaplaceStep(epsilon, sensitivity):
            return DiscreteLaplace(Fraction(epsilon), sensitivity, adjacency=relation)
        case SubsampledGaussianStep(q, sigma):
            return SubsampledGaussian(Fraction(sigma), Fraction(q), adjacency=relation)
    raise ValueError(f"step() = {step!r:.80}: is none of privlearn.losses.steps")


def _curve(renyi: Callable[[float], float]) -> dict[Exact, Exact]:
    points: dict[Exact, Exact] = {}
    for order in ORDERS:
        value = renyi(float(order))
        if isinstance(value, bool) or math.isnan(value) or value < 0:
            raise ValueError(f"renyi({float(order):g}) = {value!r}: must be a bound >= 0")
        if math.isfinite(value):
            points[order] = round_up(Fraction(value), _DIGITS)
    return points


def declared_in(loss: Loss, users: range) -> Iterator[tuple[DeclaredLoss, range]]:
    """The declared losses in ``loss``, however deeply it is nested, with the users each is for."""
    match loss:
        case DeclaredLoss():
            yield loss, users
        case PerArrivalLoss():
            start = users.start
            for number, part in loss.parts:
                yield from declared_in(part, range(start, start + number))
                start += number
        case _:
            for part, _ in loss.inner():
                yield from declared_in(part, users)


def _canonical(form: Mapping[str, Any]) -> str:
    return json.dumps(_plain(form), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """JSON as ledgers hold it, where 1.0 is 1."""
    match value:
        case None | bool() | str():
            return value
        case int() if abs(value) < _WHOLE:
            return int(value)
        case float() if math.isfinite(value):
            return int(value) if value.is_integer() and abs(value) < _WHOLE else float(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case Mapping() if all(isinstance(name, str) for name in value):
            return {name: _plain(item) for name, item in value.items()}
    raise ValueError(f"of: {value!r:.80}: is nothing that a ledger can hold")
