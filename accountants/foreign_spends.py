"""Spends whose domain or noise another package announces: does their loss follow from these?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, final

from pydantic_core import to_json

from privlearn.accountants.loss_structure import dominates
from privlearn.errors import PackageError
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import DeclaredLoss, Loss, PerArrivalLoss, VisitsLoss, recorded
from privlearn.losses.upper_bounds import is_above
from privlearn.noise import Noise, noise_from_dict
from privlearn.noise.reading import announced_noise
from privlearn.rows.domains import Domain, domain_from_dict
from privlearn.rows.domains.reading import announced_domain, is_shipped_kind

_MOST_ASKED = 1000
Found = Literal["not here", "follows", "does not follow", "unable"]


@final
@dataclass(frozen=True, slots=True)
class _Answer:
    found: Found
    by: str = ""
    why: str = ""


@final
@dataclass(slots=True)
class ForeignSpends:
    """What packages that are here say of domains and noise that they announce.

    A spend of such ones is never `derived` for everybody, and stays its code's word; but who has
    the package can work its loss out again.
    """

    problems: dict[str, None] = field(default_factory=dict)
    """Sums that cost more than they state."""
    remarks: dict[str, None] = field(default_factory=dict)
    _words: dict[str, None] = field(default_factory=dict)
    _asked: dict[bytes, _Answer] = field(default_factory=dict)

    def add(self, entry: SpendEntry, loss: Loss) -> None:
        foreign = _foreign(entry)
        if not foreign:
            return
        key = to_json(
            [entry.domain, entry.noise, entry.gain, entry.profile, entry.loss, entry.adjacency]
        )
        answer = self._asked.get(key)
        if answer is None:
            if len(self._asked) >= _MOST_ASKED:
                answer = _Answer("unable", why="too many to be asked again")
            else:
                answer = self._asked[key] = _ask(entry, loss)
        self._note(entry, foreign, answer)

    def _note(self, entry: SpendEntry, foreign: str, answer: _Answer) -> None:
        if answer.found == "unable":
            self.remarks[
                f"{entry.mechanism}: {foreign} of another package: its loss was not worked out "
                f"again: {answer.why}."
            ] = None
        elif answer.found == "does not follow" and entry.arithmetic == "sum":
            self.problems[
                f"{entry.mechanism}: {foreign}: as {answer.by} states it, a sum costs "
                f"{answer.why}, more than was recorded"
            ] = None
        said = {
            "follows": f"worked out again here, its loss follows from them as {answer.by} has them",
            "does not follow": f"its loss does not follow from them as {answer.by} has them: it is "
            "its code's word",
            "unable": "its loss was not worked out again here",
            "not here": "the package is not installed here, and its loss was not worked out again",
        }[answer.found]
        self._words[f"{entry.mechanism}: {foreign} of another package: {said}"] = None

    def words(self) -> list[str]:
        """For each mechanism, what another package is trusted for, and whether it was asked."""
        return list(self._words)


def _foreign(entry: SpendEntry) -> str:
    """The domain and noise of a spend that are not of this package; empty if both are."""
    found = []
    kind = str(entry.domain.get("kind"))
    if domain_from_dict(entry.domain) is None and not is_shipped_kind(kind):
        found.append(f"domain {kind!r:.80}")
    if noise_from_dict(entry.noise) is None:
        found.append(f"noise {entry.noise.get('family')!r:.80}")
    return " and ".join(found)


def _ask(entry: SpendEntry, loss: Loss) -> _Answer:
    try:
        domain, noise, by = _rebuilt(entry)
        if domain is None or noise is None:
            return _Answer("not here")
        earned = _earned(entry, domain, noise)
        users = range(*entry.users)
        stands = recorded(earned, users)
        stated = loss.loss if isinstance(loss, VisitsLoss) else loss
        both = isinstance(stated, DeclaredLoss) and isinstance(stands, DeclaredLoss)
        if dominates(stated, stands) or (both and is_above(stated, stands, users) is None):
            return _Answer("follows", by)
        return _Answer("does not follow", by, f"{stands.to_dict()!r:.200}")
    except PackageError as error:
        return _Answer("unable", why=str(error))
    except Exception as error:  # whatever code of somebody else does
        return _Answer("unable", why=f"{type(error).__name__}: {error}")


def _rebuilt(entry: SpendEntry) -> tuple[Domain[Any] | None, Noise | None, str]:
    domain, noise, by = domain_from_dict(entry.domain), noise_from_dict(entry.noise), []
    if domain is None and (found := announced_domain(entry.domain)) is not None:
        domain = found[0]
        by.append(str(found[1]))
    if noise is None and (drawn := announced_noise(entry.noise)) is not None:
        noise = drawn[0]
        by.append(str(drawn[1]))
    return domain, noise, " and ".join(dict.fromkeys(by))


def _earned(entry: SpendEntry, domain: Domain[Any], noise: Noise) -> Loss:
    def earn(gain: float) -> Loss:
        return noise.loss(domain.sensitivity(entry.adjacency, noise.norm) * gain, entry.adjacency)

    if not entry.profile:
        return earn(entry.gain)
    return PerArrivalLoss([(number, earn(gain)) for number, gain in entry.profile])
