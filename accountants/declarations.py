"""What ledgers hold of other packages' losses, and what those packages say of them here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from pydantic import BaseModel, ConfigDict

from privlearn.losses import DeclaredLoss, Loss, declared_in
from privlearn.losses.recheck import Answer, Status, ask_again, is_of_users

_MOST_LISTED = 100
_MOST_ASKED = 1000


class Declaration(BaseModel):
    """A loss of another package, which is counted with the bounds that were declared for it."""

    model_config = ConfigDict(frozen=True)
    kind: str
    distribution: str | None
    """Which announced the kind when it was recorded; None if that was not known."""
    mechanisms: list[str]
    """Whose loss it is."""
    status: Status
    """Whether that package is here, and agrees: it states no ``more`` than was recorded."""
    asked: str
    """Who was asked; empty if nobody."""
    loss: dict[str, Any]
    """The bounds that are counted."""


@final
@dataclass(slots=True)
class _Declared:
    loss: DeclaredLoss
    answers: list[Answer] = field(default_factory=list)
    mechanisms: dict[str, None] = field(default_factory=dict)

    @property
    def answer(self) -> Answer:
        order: tuple[Status, ...] = ("more", "unable", "not here", "agrees")
        return min(self.answers, key=lambda answer: order.index(answer.status))


@final
@dataclass(slots=True)
class Declarations:
    """All declared losses of one accountant, each asked again once."""

    _found: dict[DeclaredLoss, _Declared] = field(default_factory=dict)
    _asked: set[tuple[DeclaredLoss, int, int]] = field(default_factory=set)
    others: int = 0
    """Declared losses that are not listed, nor asked again."""

    def add(self, loss: Loss, users: range, mechanism: str) -> None:
        """Notes the declared losses in a loss of these users."""
        for declared, theirs in declared_in(loss, users):
            found = self._found.get(declared)
            if found is None:
                if len(self._found) >= _MOST_LISTED:
                    self.others += 1
                    continue
                found = self._found[declared] = _Declared(declared)
            found.mechanisms[mechanism] = None
            asked = found.answers and not is_of_users(declared)
            key = declared, theirs.start, theirs.stop
            if asked or key in self._asked:
                continue
            if len(self._asked) >= _MOST_ASKED:
                found.answers.append(Answer("unable", why="too many to be asked again"))
                continue
            self._asked.add(key)
            found.answers.append(ask_again(declared, theirs))

    def problems(self) -> list[str]:
        """Losses of which their package says more than was recorded."""
        return [
            f"{_name(one.loss)}, for {', '.join(one.mechanisms)}: as {one.answer.by} states it, "
            f"{one.answer.why}: what was recorded is too low, or was declared otherwise"
            for one in self._found.values()
            if one.answer.status == "more"
        ]

    def remarks(self) -> list[str]:
        """Losses that could not be asked again, and why."""
        found = [
            f"{_name(one.loss)} is counted as declared, and was not asked again: {one.answer.why}."
            for one in self._found.values()
            if one.answer.status == "unable"
        ]
        if self.others:
            found.append(
                f"{self.others} more uses of losses that other packages declared: counted as "
                "declared, neither listed nor asked again."
            )
        return found

    def listed(self) -> list[Declaration]:
        return [
            Declaration(
                kind=one.loss.of_kind,
                distribution=one.loss.distribution,
                mechanisms=list(one.mechanisms),
                status=one.answer.status,
                asked=one.answer.by,
                loss=one.loss.loss.to_dict(),
            )
            for one in self._found.values()
        ]

    def words(self) -> list[str]:
        """For each kind, whose it is, for what, and who was asked."""
        kinds: dict[tuple[str, Status, str], dict[str, None]] = {}
        for one in self._found.values():
            key = _name(one.loss), one.answer.status, one.answer.by
            kinds.setdefault(key, {}).update(one.mechanisms)
        return [
            f"{name}, for {', '.join(mechanisms)}: its bounds are counted as they were declared, "
            f"not verified; that they are not too low is that package's word ({_said(status, by)})"
            for (name, status, by), mechanisms in kinds.items()
        ]


def _name(loss: DeclaredLoss) -> str:
    of = "" if loss.distribution is None else f" of {loss.distribution}"
    return f"loss kind {loss.of_kind!r}{of}"


def _said(status: Status, by: str) -> str:
    match status:
        case "agrees":
            return f"asked again here, {by} states no more"
        case "more":
            return f"asked again here, {by} does not stand by them"
        case "unable":
            return "it could not be asked again here"
    return "it is not installed here, and was not asked again"
