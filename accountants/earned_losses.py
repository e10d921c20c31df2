"""The loss that noise and domain of a spend earn, as its entry states them."""

from __future__ import annotations

from pydantic_core import to_json

from privlearn.accountants.read_forms import flat
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import Loss, PerArrivalLoss
from privlearn.noise import noise_from_dict
from privlearn.rows.domains import domain_from_dict

SpendForm = tuple[bytes, str, str, bool, bool]


def form_of(entry: SpendEntry) -> SpendForm:
    """What a spend states, apart from its token, its users and its account."""
    numbers = [
        entry.domain,
        entry.noise,
        entry.gain,
        entry.loss,
        entry.parameters,
        entry.profile,
        entry.exact,
    ]
    # as text: True, 1 and 1.0 are equal, but not all of them are accepted
    text = to_json(numbers)
    return text, entry.mechanism, entry.arithmetic, entry.derived, entry.interactive


def earned_by(entry: SpendEntry) -> Loss | None:
    """The loss that follows from domain, noise and gains; None where only its author knows it."""
    if not entry.profile:
        return _earn(entry, entry.gain)
    parts = [(n, _earn(entry, gain)) for n, gain in entry.profile]
    if max(gain for _, gain in entry.profile) > entry.gain or any(p is None for _, p in parts):
        return None
    return PerArrivalLoss([(n, part) for n, part in parts if part is not None])


_EARNED: dict[tuple[object, ...], Loss | None] = {}


def _earn(entry: SpendEntry, gain: float) -> Loss | None:
    """The loss of one gain, remembered as by `Reader`."""
    try:
        key = (flat(entry.domain), flat(entry.noise), gain, entry.adjacency)
        if key in _EARNED:
            return _EARNED[key]
    except TypeError:  # they hold lists or objects
        key = None
    domain, noise = domain_from_dict(entry.domain), noise_from_dict(entry.noise)
    found: Loss | None = None
    if domain is not None and noise is not None:
        found = noise.loss(domain.sensitivity(entry.adjacency, noise.norm) * gain, entry.adjacency)
    if key is not None:
        if len(_EARNED) >= 4096:
            _EARNED.clear()
        _EARNED[key] = found
    return found
