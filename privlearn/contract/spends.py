"""What a mechanism says that it is about to do, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, cast, final

from privlearn.losses import Loss, PerArrivalLoss, VisitsLoss
from privlearn.noise import Noise, noise_from_dict
from privlearn.noise.exact.tables import SAMPLER, SHA256
from privlearn.noise.reading import SHIPPED as SHIPPED_NOISE
from privlearn.rows.domains import Domain, IntegerDomain, has_integers, is_shipped
from privlearn.rows.domains.reading import SHIPPED as SHIPPED_DOMAINS
from privlearn.values.adjacency import Adjacency, Calibration
from privlearn.values.grid import Grid
from privlearn.values.validate import positive

LEASE = "lease"
"""The parameter of a spend, in the ledger, by which it pays for several runs: an object with their
number, ``runs``.  The loss of such a spend is that of all of them."""

PHASES = "phases"
"""The parameter of a spend, in the ledger, by which every user is in one of its releases: its users
come in phases, whose ends stand in the ledger before.  An object with the most users, ``horizon``,
and the sums of a release, ``outputs``."""

METERED = "metered"
"""The parameter of a spend, in the ledger, by which it pays for code that is not of this package:
an object with its ``package``, ``version`` and the ``parameters`` that the price came from, or
without any of them.  Its domain and its noise, which are that code's own, have this name, too."""

Arithmetic = Literal["sum", "own", "each"]
"""What computes, and for whom; see `Spend.arithmetic`."""


@final
@dataclass(frozen=True, slots=True)
class Spend:
    """What a mechanism is about to do, written to the ledger before it may do it.

    The loss follows from domain, noise and ``gain``: noise that protects a vector into which one
    user's clipped contribution enters with ℓ2 (ℓ1) operator norm at most ``gain``.  A mechanism
    with a curve of its own states ``own_loss``; the audit then lists it as trusted code, as it does
    when ``gain`` is not 1 and for domains and noise that did not come with this package.
    """

    mechanism: str
    domain: Domain[Any]
    noise: Noise
    gain: float = 1.0
    own_loss: Loss | None = None
    arithmetic: Arithmetic = "own"
    """``sum``: the receipt itself adds up the contributions and the noise (`Receipt.release_sum`);
    ``own``: the mechanism opens rows and computes, and the audit lists it as trusted code;
    ``each``: as ``own``, with one output for each user, from this user's contribution and noise
    drawn only for this user, so that local trust allows several users in one spend.  The receipt
    counts outputs and rows of noise; that no output uses another's is the mechanism's word."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration = Calibration.PROVED
    interactive: bool = False
    """Whether the receipt takes further rows, and lets values out, while other tokens are spent.
    The loss must then hold against somebody who chooses each input after the outputs so far; and
    for every user given all that left before the user's row is opened, as a stream that ends early
    costs those nothing who would have come later, and another may take them."""
    profile: tuple[tuple[int, float], ...] = ()
    """Numbers of consecutive users and their gains, from the token's first user on; ``gain`` is
    then the largest of them."""
    visits: tuple[int, int] | None = None
    """Where ``gain`` is for all visits of one person: the most of them, and how many slots apart
    they are.  The loss is then a `VisitsLoss`."""
    functions: tuple[str, ...] = ()
    """User code that opened rows pass through inside the mechanism, such as an objective of one's
    own: role and name.  Written to the ledger before rows are opened."""
    grid: Grid | None = None
    """Where rows are clipped to integers and integer noise is added to them, so that what leaves
    has exactly the law that is priced; without one the mechanism computes in doubles, and
    certificates say so."""
    exact: bool = False
    """Without a grid: whether what leaves has exactly the law that is priced all the same, such as
    a report that is drawn by comparisons alone.  That is the mechanism's word."""
    _known: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What follows from domain and noise, if both are ours and never change."""

    def __post_init__(self) -> None:
        positive(gain=self.gain)
        for _, gain in self.profile:
            positive(gain=gain)
        if self.profile and max(gain for _, gain in self.profile) != self.gain:
            raise ValueError(f"gain = {self.gain!r}: must be the largest of the profile")
        if self.profile and self.own_loss is not None:
            raise ValueError("profile: with a loss of its own, state a PerArrivalLoss loss instead")
        if self.visits is not None and (self.profile or self.own_loss is not None):
            raise ValueError("visits: with a profile or a loss of its own, state a VisitsLoss")
        if self.arithmetic == "sum" and (self.interactive or self.profile or self.visits):
            raise ValueError("arithmetic = 'sum': one release, of everybody alike, one row each")
        if not self.mechanism:
            raise ValueError("mechanism = '': must name the mechanism")
        if self.grid is not None:
            self._check_grid(self.grid)
        if self.exact and (self.grid is not None or self.arithmetic == "sum"):
            raise ValueError("exact = True: is for a mechanism of its own that has no grid")
        if self.arithmetic not in ("sum", "own", "each"):
            raise ValueError(f"arithmetic = {self.arithmetic!r}: must be 'sum', 'own' or 'each'")
        if self.arithmetic == "sum" and (self.gain != 1.0 or self.own_loss is not None):
            raise ValueError("arithmetic = 'sum': its gain is 1 and its loss is derived")

    def _check_grid(self, grid: Grid) -> None:
        if type(grid) is not Grid:  # another class may have steps of its own
            raise TypeError(f"grid = {grid!r}: must be a Grid")
        if not has_integers(self.domain):
            raise TypeError(f"domain = {self.domain!r}: has no integers to clip to (grid = None)")
        if getattr(self.noise, "unit", None) != grid.scale:
            raise ValueError(f"grid = {grid!r}: must have the scale of the noise, {self.noise!r}")
        self.domain.null_integers(grid)  # refuses a grid on which the domain has no numbers

    def exact_form(self) -> dict[str, Any] | None:
        """What the ledger says of exact noise: grid, bound of the integers, sampler and tables.

        Integers of the bound are text, as they may exceed what JSON numbers hold.  None where the
        mechanism computes in doubles.
        """
        form = {"sampler": SAMPLER, "tables": SHA256}
        if self.grid is None:
            return form if self.exact else None
        numbers: tuple[Any, Any] | None = self._known.get("exact")
        if numbers is None:
            bound = cast(IntegerDomain[Any], self.domain).integer_bound(self.grid)
            numbers = self.grid.to_dict(), {name: str(number) for name, number in bound.items()}
            if is_builtin(self.domain):
                self._known["exact"] = numbers
        grid, bound_form = numbers
        return {"grid": dict(grid), "bound": dict(bound_form), **form}

    def loss(self, adjacency: Adjacency) -> Loss:
        """The loss of this spend under one neighbour relation."""
        if self.own_loss is not None:
            return self.own_loss
        if self.profile:
            return PerArrivalLoss(
                [(n, _earned(self.domain, self.noise, g, adjacency)) for n, g in self.profile]
            )
        found: Loss | None = self._known.get(adjacency)
        if found is None:
            found = _earned(self.domain, self.noise, self.gain, adjacency)
            if self.visits is not None:
                found = VisitsLoss(found, *self.visits)
            if is_builtin(self.domain) and is_builtin(self.noise):
                self._known[adjacency] = found
        return found

    @property
    def derived(self) -> bool:
        """Whether anybody can recompute the loss from the recorded domain, noise and gain."""
        if self.own_loss is not None:
            return False
        found: bool | None = self._known.get("shipped")
        if found is None:
            found = _shipped(self.domain, self.noise)
            if is_builtin(self.domain) and is_builtin(self.noise):
                self._known["shipped"] = found
        return found


def _earned(domain: Domain[Any], noise: Noise, gain: float, adjacency: Adjacency) -> Loss:
    if not isinstance(adjacency, Adjacency):  # domains would take it for the cheapest one
        raise TypeError(f"adjacency = {adjacency!r}: must be an Adjacency")
    if is_builtin(domain) and is_builtin(noise):
        return _earned_once(cast(Any, domain), cast(Any, noise), gain, adjacency)
    return noise.loss(domain.sensitivity(adjacency, noise.norm) * gain, adjacency)


@lru_cache(maxsize=1024)
def _earned_once(domain: Domain[Any], noise: Noise, gain: float, adjacency: Adjacency) -> Loss:
    return noise.loss(domain.sensitivity(adjacency, noise.norm) * gain, adjacency)


def _shipped(domain: Domain[Any], noise: Noise) -> bool:
    if is_builtin(domain) and is_builtin(noise):
        return _shipped_once(cast(Any, domain), cast(Any, noise))
    return _rebuilt(domain, noise)


@lru_cache(maxsize=1024)
def _shipped_once(domain: Domain[Any], noise: Noise) -> bool:
    return _rebuilt(domain, noise)


def _rebuilt(domain: Domain[Any], noise: Noise) -> bool:
    rebuilt = noise_from_dict(noise.to_dict())
    # not only ==: a class of somebody else may say that it equals anything
    return is_shipped(domain) and type(rebuilt) is type(noise) and rebuilt == noise


def is_builtin(value: object) -> bool:
    """Whether what follows from a value can be kept: it is ours, so equal ones are alike."""
    return type(value) in _OURS


_OURS = frozenset(SHIPPED_DOMAINS | SHIPPED_NOISE)
