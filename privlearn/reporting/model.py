"""What an audit says, in one model: the terminal, the page and the JSON only show it.

A `Report` is the certificate with everything an auditor asks beyond it: what is left of each
budget, who was charged for what and when, which tokens are open, what the numbers mean to an
attacker.  Every number and sentence that a view prints stands here, so that the views agree.

Amounts are in the number that an accountant counts in, `Balance.unit`, and rounded so that none
understates: what was spent is rounded up, and what is left down.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from privlearn.accountants.certificate import Certificate

VERSION: Literal["privlearn-audit/1"] = "privlearn-audit/1"
"""Of the JSON form: fields are added within a version, and never change their meaning."""

Minute = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\dZ$")]
MOST_LISTED = 200
"""Groups, spends, tokens or items of a plan that are listed; of more, some are counted only."""
By = Literal["time", "label", "mechanism", "user-range"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class Purchase(_Part):
    """What the remainder would still buy for every user at once."""

    what: str
    """In words: ``3 more runs for all users, of gaussian-sum as under 'week'``, or the noise of one
    more release."""
    runs: int | None = None
    """How many more runs; None for one release with other noise."""
    noise_multiplier: float | None = None
    """Of one Gaussian release that takes all: its standard deviation by its sensitivity."""


class PlanItemLeft(_Part):
    """An item of a committed plan, and how much of it was not begun."""

    label: str
    users: tuple[int, int]
    count: int
    left: int


class Failing(_Part):
    """The probability of failing that was set aside, and what of it is used up.

    It is counted by itself; ``spent + reserved + remaining`` is ``cap``.
    """

    cap: float
    user: int | None
    """A user who is charged most of it."""
    spent: float | None
    reserved: float | None
    remaining: float | None


class Balance(_Part):
    """One accountant's budget, in the number that it counts in.

    ``spent``, ``reserved`` and ``remaining`` are those of one user, so that their sum is the cap:
    of the one that was asked about, else of the one who is charged most.  Under a rule of
    participation an index is no person, and they are those of the person who is charged most,
    whoever that is; ``user`` is None.  They are None where it is not known what was spent.
    Of a closed account nothing is reserved, and nothing of what remains can be spent.
    """

    accountant: int
    """Its number in the ledger, from 1."""
    id: str
    software: str
    trust: str
    adjacency: str
    users: tuple[int, int]
    population: str | None
    opened: Minute | None
    """When, as the ledger declares."""
    closed: bool
    planned: bool
    """Whether all spends were committed in advance; then nothing beyond the plan can be spent."""
    promise: str | None
    """The (ε, δ) that the cap was made from, if it was."""
    counted: str = ""
    """Where the cap holds less than the promise would allow, why, and what counts more of it."""
    unit: str
    """What the numbers below are: ``ρ``, ``μ²``, ``ε``, or ``ε at order 12``.

    Of a cap at several Rényi orders it is the order of which the largest part is used up.
    """
    cap: float
    user: int | None
    """Whose numbers the next three are."""
    spent: float | None
    reserved: float | None
    """Issued, planned or delegated, and not spent: it is charged until it is given back."""
    remaining: float | None
    most_remaining: float | None
    """What the least charged user has left."""
    unknown: str = ""
    """Why it is not known what was spent; empty where it is."""
    failing: Failing | None = None
    """None where nothing was set aside for losses that may fail."""
    buys: list[Purchase]
    plan_left: list[PlanItemLeft] = []
    """Items of a plan of which something is left; of very many the first."""


class Spent(_Part):
    """Spends that have something in common: a mechanism and label, a period, a range of users."""

    accountant: int
    unit: str
    mechanism: str | None = None
    label: str | None = None
    since: Minute | None = None
    """The first minute of the period, or of the first spend."""
    until: Minute | None = None
    """The last minute of it."""
    users: tuple[int, int]
    """The first and one past the last user that any of them is charged to."""
    spends: int
    """How many; of what clients attest, how many claims."""
    most: float | None
    """The most that they cost any one user, in ``unit``; None where that is not known."""
    user: int | None = None
    """A user whom they cost that much."""
    of_cap: float | None
    """The same as a part of the cap, 0 to 1; above 1 only where a cap was exceeded."""
    so_far: float | None = None
    """Of a period: the most that any one user had paid when it ended, since the first spend that
    was asked for; None where that is not known or an index is no person."""
    others: int = 0
    """Of how many mechanisms, labels or pairs it is the sum, which are too many to list; else 0."""
    attested: bool = False
    """Whether it is what clients claim, and no spend."""


class OneSpend(_Part):
    """One spend, of those that were asked for."""

    accountant: int
    entry: int
    """Its position in the ledger, from 0."""
    at: Minute | None
    mechanism: str
    label: str
    users: tuple[int, int]
    """The first and one past the last user who is charged."""
    cost: float | None
    """To the user of `Report.asked`, else to the user whom it costs most."""
    unit: str
    attested: bool = False


class OpenToken(_Part):
    """A token without a recorded end."""

    accountant: int
    token: str
    mechanism: str | None
    """None for one that was issued and not spent: its budget is reserved."""
    label: str
    users: tuple[int, int]
    issued: Minute | None = None
    reserved: float | None
    """What one that is not spent holds, in its accountant's unit."""


class Curve(_Part):
    """δ at some ε for one guarantee, from which the trade-off between errors follows.

    One of the points is the (ε, δ) that the guarantee states.
    """

    accountant: int
    epsilons: list[float]
    deltas: list[float]


class Reading(_Part):
    """What a guarantee means to whoever attacks it, in numbers and in words.

    Where nothing is certified the numbers are what holds anyway, and ``words`` is empty.
    """

    accountant: int
    sentence: str
    """The guarantee in one sentence in plain words."""
    guess: float
    """The largest chance of guessing right between two possibilities, 1/2 being tossing a coin."""
    alarm: float
    """The most that an alarm can catch which is false in 1 % of cases."""
    odds: float
    """To 1: the most that even odds become by that alarm."""
    words: list[str]


class Report(Certificate):
    """A certificate, and the answers to what an auditor asks next.

    The certificate's fields are about the whole ledger (about the one user of ``asked``, if it
    names one); so are ``balances`` and ``open_tokens``.  ``total`` and what is listed by mechanism,
    label, time and users is of those spends only that ``asked`` names.
    """

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """JSON leads with what one person may lose in the whole ledger."""
        told: dict[str, Any] = super()._without_what_is_not_said(serialize)
        led = {name: getattr(self, name) for name in ("epsilon", "delta", "rho", "mu")}
        if math.isinf(self.epsilon):  # JSON has no infinity
            led["epsilon"] = None
        return led | told

    version: Literal["privlearn-audit/1"] = VERSION
    ledger: str
    """The name of the file."""
    verdict: str
    meaning: str
    """What the verdict means to whoever reads only that."""
    weaknesses: list[str]
    """What weakens this claim, of what is particular to this ledger."""
    exit_code: int
    """Of ``privlearn audit``."""
    compared: str
    """Which head that was kept elsewhere the ledger was compared with, and what came of it."""
    first: Minute | None
    last: Minute | None
    """When the first and the last entry with a time were written, as the ledger declares."""
    asked: dict[str, str | int | float]
    """What the report was restricted to: ``user``, ``since``, ``label``, ``mechanism``, and the
    position ``after`` which entries count."""
    balances: list[Balance]
    total: list[Spent]
    """All spends that were asked for, one line for each accountant that has some."""
    by_mechanism: list[Spent]
    by_label: list[Spent]
    by_mechanism_and_label: list[Spent]
    by_time: list[Spent]
    by_user_range: list[Spent]
    listed: list[OneSpend]
    """One by one, where something was asked for; of very many the last."""
    not_listed: int = 0
    """Spends before them, which are counted only."""
    open_tokens: list[OpenToken]
    """Those that are not spent first; of very many the first ones."""
    unspent_tokens: int = 0
    """How many there are that were issued and not spent."""
    running_tokens: int = 0
    """How many were spent, and have no recorded end."""
    accounts_left_out: int = 0
    """Accountants of which there is no balance, as there are too many; else 0."""
    curves: list[Curve]
    """Of each guarantee that is certified; of very many the first."""
    readings: list[Reading]
    sum_readings: list[Reading]
    """Of each of ``sums``, in their order; ``accountant`` is the first that it adds up."""
