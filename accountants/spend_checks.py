"""What a spend must state, whatever token pays for it: noise that earns its loss, and its rows."""

from __future__ import annotations

from itertools import accumulate
from typing import cast

from privlearn.accountants.earned_losses import earned_by
from privlearn.accountants.leased_spends import of_all_runs
from privlearn.accountants.loss_structure import dominates, gaussian_part, of_visits
from privlearn.accountants.opening_checks import rule_in
from privlearn.accountants.persons import Visits
from privlearn.accountants.read_forms import read_domain, read_noise
from privlearn.errors import BudgetError, UsersError
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import Loss, MinimizerLoss, VisitsLoss, gaussian_loss, leaves_of
from privlearn.noise import GaussianNoise, noise_from_dict
from privlearn.values.adjacency import Trust
from privlearn.values.json_forms import REAL, check_form

_MINIMIZER = {"ridge": REAL, "solver_error": REAL, "blur_std": REAL}


def check_users(visits: Visits | None, entry: SpendEntry) -> None:
    """What follows from whom a spend is for, and is looked at for every one.

    Raises:
        UsersError, BudgetError: it draws noise for several users under local trust, counts by
            another rule or other batches, or is on a timetable and no sum.
    """
    _check_devices(entry)
    _check_stated_rule(visits, entry)
    _check_timetable(visits, entry)


def _check_devices(entry: SpendEntry) -> None:
    """Noise that several users share is drawn by somebody who sees all their rows."""
    if entry.trust is not Trust.LOCAL or entry.arithmetic == "each":
        return
    users = range(*entry.users)
    if len(users) != 1:
        raise UsersError(
            f"{entry.mechanism} for users = {users!r}: under local trust every user draws "
            "noise alone, so a spend for several of them needs arithmetic = 'each'"
        )


def _check_timetable(visits: Visits | None, entry: SpendEntry) -> None:
    """On a timetable how many rows there are is not public, and a null row is none."""
    if visits is None or visits.rule.clock != "timetable":
        return
    if entry.arithmetic != "sum":
        raise BudgetError(
            f"{entry.mechanism}: on a timetable rows are added up (arithmetic = 'sum'), not "
            f"opened by {entry.arithmetic!r}"
        )
    domain = read_domain(entry.domain)
    if domain is not None and domain.null().any():
        raise BudgetError(
            f"{entry.mechanism}: on a timetable the null contribution must be zero, and "
            f"that of {domain!r} is not"
        )


def check_binding(entry: SpendEntry, loss: Loss, runs: int) -> None:
    """The noise in the entry must earn the loss in the entry, unless code is trusted for it."""
    if not entry.derived:
        read_domain(entry.domain)  # raise for shipped ones of bad form
        read_noise(entry.noise)
        _check_minimizers(entry, loss, runs)
        return
    earned = earned_by(entry)
    if earned is None:
        raise BudgetError(f"{entry.mechanism}: its price needs trusted code but does not say so")
    # the gain of a stream may be for all visits of a person: its code's word, as gains are
    stated = loss.loss if isinstance(loss, VisitsLoss) else loss
    earned = of_all_runs(earned, runs)
    if not dominates(stated, earned):
        raise BudgetError(
            f"{entry.mechanism}: noise and domain give a loss of {earned.numbers()}, "
            f"more than the stated {loss.numbers()}"
        )


def _check_minimizers(entry: SpendEntry, loss: Loss, runs: int) -> None:
    """A minimiser's loss is for the tilt that is drawn, and its solver's error is paid for."""
    found = [(part, n) for part, n in leaves_of(loss) if isinstance(part, MinimizerLoss)]
    if not found:
        return
    part, count = found[0]
    if len(found) > 1 or count > runs:
        raise BudgetError(f"{entry.mechanism}: one run releases one minimiser")
    if of_visits(loss):
        raise BudgetError(
            f"{entry.mechanism}: the loss of a minimiser is stated for one row; what several "
            "rows of one person cost follows from it"
        )
    noise = noise_from_dict(entry.noise)
    if not isinstance(noise, GaussianNoise) or noise.std != part.noise_std:
        raise BudgetError(
            f"{entry.mechanism}: the loss is for a tilt of std {part.noise_std!r}, the noise "
            f"is {entry.noise}"
        )
    try:
        names = "ridge", "solver_error", "blur_std"
        check_form("parameters", {name: entry.parameters[name] for name in names}, _MINIMIZER)
        ridge, error, blur = (float(entry.parameters[name]) for name in names)
        needed = gaussian_loss(2 * error, blur, entry.adjacency).mu_squared * runs
    except (KeyError, TypeError, ValueError):
        raise BudgetError(
            f"{entry.mechanism}: the parameters must state ridge, solver_error and blur_std, "
            "all > 0"
        ) from None
    if ridge != part.ridge or gaussian_part(loss) < needed:
        raise BudgetError(
            f"{entry.mechanism}: the loss does not pay for ridge {ridge!r}, solver_error "
            f"{error!r} and blur_std {blur!r}"
        )


def _check_stated_rule(visits: Visits | None, entry: SpendEntry) -> None:
    """A price that counts within batches is for batches, and a rule, of this account."""
    stated, sizes = map(entry.parameters.get, ("participation", "sizes"))
    if visits is None or stated is None or sizes is None:
        return
    rule, own = rule_in(f"{entry.mechanism}: participation", stated), visits.rule
    if not rule.batched:
        return
    if own.in_a_batch is None or own.in_a_batch > cast(int, rule.in_a_batch):
        raise BudgetError(
            f"{entry.mechanism}: its price is for {rule}; under {own} a person may have more "
            "rows in a batch"
        )
    if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
        raise BudgetError(f"{entry.mechanism}: sizes = {sizes!r:.80}: must be counts, from 1")
    begun = set(accumulate(sizes, initial=entry.users[0]))
    for start in visits.starts:
        if entry.users[0] <= start < entry.users[1] and start not in begun:
            raise BudgetError(
                f"{entry.mechanism}: a batch of the rule begins at slot {start}, within one of "
                "the mechanism's; each of these must lie within one that was declared"
            )
