"""One sentence that a guarantee rests on, and the kinds of them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

AssumptionKind = Literal["paid", "checked", "declared", "trusted", "not protected"]

KINDS: dict[AssumptionKind, str] = {
    "paid": "Paid for: the price covers it",
    "checked": "Checked: from the ledger, or while the mechanisms ran",
    "declared": "Declared: somebody said so, and nothing here can check it",
    "trusted": "Trusted: it has to work as intended",
    "not protected": "Not protected",
}
"""The groups of assumptions, in the order in which they are shown."""


class Assumption(BaseModel):
    """One sentence that a guarantee rests on."""

    model_config = ConfigDict(frozen=True)
    kind: AssumptionKind
    text: str
    weakens: bool = False
    """Whether it is particular to this ledger and makes its claim weaker: shown first."""


def paid(text: str) -> Assumption:
    """Something that the price covers."""
    return Assumption(kind="paid", text=text)


def checked(text: str) -> Assumption:
    """Something that was looked at."""
    return Assumption(kind="checked", text=text)


def declared(text: str, *, weakens: bool = False) -> Assumption:
    """Something that somebody said."""
    return Assumption(kind="declared", text=text, weakens=weakens)


def trusted(text: str, *, weakens: bool = False) -> Assumption:
    """Something that has to work as intended."""
    return Assumption(kind="trusted", text=text, weakens=weakens)


def unprotected(text: str, *, weakens: bool = False) -> Assumption:
    """Something that may tell of a user."""
    return Assumption(kind="not protected", text=text, weakens=weakens)
