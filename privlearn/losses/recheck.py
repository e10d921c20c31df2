"""Whether a package says today no more of its losses than was recorded of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from privlearn.errors import PackageError, UnknownKindError
from privlearn.losses.base import Loss, registered_kinds
from privlearn.losses.declared import DeclaredLoss, declaration, rebuilt
from privlearn.losses.upper_bounds import is_above
from privlearn.values.packages import LOSSES, look_up

Status = Literal["not here", "agrees", "more", "unable"]


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What a package that is here says of a loss that it once declared.

    ``not here``: nobody announces its kind.  ``agrees``: it states no more than was recorded.
    ``more``: it does, or takes the loss for none of its own.  ``unable``: it cannot be asked.
    """

    status: Status
    by: str = ""
    """Who answered: its class, and the distribution if that is known."""
    why: str = ""


def ask_again(declared: DeclaredLoss, users: range) -> Answer:
    """Asks the package that is installed here, whose module is imported for that."""
    try:
        announced = look_up(LOSSES, declared.of_kind)
    except PackageError as error:
        return Answer("unable", why=str(error))
    if announced is None and declared.of_kind not in registered_kinds():
        return Answer("not here")
    by = "" if announced is None else str(announced)
    try:
        if announced is not None:
            announced.load()
        real = rebuilt(declared.of)
        kind = real.__class__
        by = by or f"{kind.__module__}.{kind.__qualname__}"
        today = declaration(real, users)
    except UnknownKindError as error:
        return Answer("unable", by, str(error))
    except PackageError as error:
        refused = error if declared.of_kind in registered_kinds() else None
        return Answer("unable" if refused is None else "more", by, str(error))
    above = is_above(declared.loss, today, users)
    return Answer("agrees", by) if above is None else Answer("more", by, above)


def is_of_users(declared: DeclaredLoss) -> bool:
    """Whether what a kind says may depend on which users they are."""
    kind = registered_kinds().get(declared.of_kind)
    return kind is None or kind.over is not Loss.over
