"""What a spend must state, whatever token pays for it: noise that earns its loss, and its rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import cast, final

from pydantic_core import to_json

from privlearn.accountants.exact_spends import check_exact
from privlearn.accountants.loss_structure import (
    by_arrival,
    dominates,
    gaussian_part,
    may_fail,
    of_visits,
    over,
)
from privlearn.accountants.opening_checks import is_resumable, rule_in
from privlearn.accountants.persons import Visits
from privlearn.accountants.prices import flat, read_domain, read_loss, read_noise
from privlearn.contract.spends import LEASE, METERED, PHASES
from privlearn.errors import AdjacencyError, BudgetError, UsersError
from privlearn.ledger.entries import PARTICIPATION, RESUME, Entry, OpenEntry, SpendEntry
from privlearn.ledger.spend_forms import KNOWN, SpendForm
from privlearn.losses import (
    Loss,
    MinimizerLoss,
    PerArrivalLoss,
    VisitsLoss,
    compose,
    gaussian_loss,
    has_visits,
    is_bounded_range,
    leaves_of,
)
from privlearn.noise import GaussianNoise, noise_from_dict
from privlearn.rows.domains import domain_from_dict
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.json_forms import OBJECT, REAL, TEXT, check_form

_LONGEST_FORM = 4096
MOST_RUNS = 2**53 - 1
_CODE = {"package": TEXT, "version": TEXT, "parameters": OBJECT}
_MINIMIZER = {"ridge": REAL, "solver_error": REAL, "blur_std": REAL}


_Form = tuple[bytes, str, str, bool, bool]
_GOOD: dict[Adjacency, dict[_Form, Loss]] = {relation: {} for relation in Adjacency}
"""Spends of any account that were found right, apart from their tokens and users."""


def stated(entry: SpendEntry, opened: OpenEntry, visits: Visits | None) -> Stated:
    """What a spend states, which is found right for the account; whether it is earned is not.

    Raises:
        BudgetError, AdjacencyError: of another trust, relation or noise source than the account, a
            lease whose runs could forget visits.
        UsersError, BudgetError: it draws noise for several users under local trust, counts by
            another rule or other batches, or is on a timetable and no sum.
    """
    if entry.trust is not opened.trust:
        raise BudgetError(
            f"spend under {entry.trust.value} trust: the accountant is {opened.trust.value}"
        )
    if entry.adjacency is not opened.adjacency:
        raise AdjacencyError(
            f"spend for {entry.adjacency.value}: the accountant counts {opened.adjacency.value}"
        )
    if entry.simulated is not opened.simulated:
        raise BudgetError("the spend's noise source is not the accountant's")
    _check_devices(entry)
    _check_stated_rule(visits, entry)
    _check_timetable(visits, entry)
    _check_phases(visits, entry, opened)
    _check_metered(entry)
    runs = runs_of(entry)
    clock = (entry.admitted or {}).get("clock", entry.users[1])
    if is_lease(entry) and clock < entry.users[1]:
        raise BudgetError(
            f"{entry.mechanism}: a lease of slots up to {entry.users[1] - 1}, and the registry "
            f"of persons is at slot {clock}: its runs do not say what else was admitted"
        )
    form = _form_of(entry)
    known = _GOOD[opened.adjacency].get(form)
    if known is not None:  # all was right with it before, whosever token that was
        return Stated(entry, known, runs, None)
    loss = own_loss(entry.loss, opened)
    over(loss, range(*entry.users))
    return Stated(entry, loss, runs, form)


@final
@dataclass(slots=True)
class Stated:
    """What a spend states."""

    entry: SpendEntry
    loss: Loss
    runs: int
    """How many it pays for: 1, but for a lease."""
    form: _Form | None
    """Of what was not looked at before."""

    def check(self, form: _Form) -> None:
        """Raises BudgetError unless domain and noise earn the loss, and it is of what is said."""
        entry, loss = self.entry, self.loss
        _check_kind(entry, loss)
        _check_binding(entry, loss, self.runs)
        if entry.arithmetic == "sum" and entry.gain != 1:
            raise BudgetError(f"{entry.mechanism}: the gain of a plain sum is 1, not {entry.gain}")
        check_exact(entry)
        if len(form[0]) <= _LONGEST_FORM and not by_arrival(loss):
            good = _GOOD[loss.adjacency]
            if len(good) >= 4096:
                good.clear()
            good[form] = loss


def check_clock(entry: Entry, visits: Visits | None, users: range, before: int) -> None:
    """The registry of persons goes on; one that goes back is an older one, or another.

    Args:
        entry: which may say where its clock is.
        visits: the rule of the account, if there is one.
        users: of the account.
        before: where the clock was.

    Raises:
        BudgetError: it goes back, is missing, or is no slot.
    """
    data = entry.__dict__.get("admitted")  # few have it, and a model looks long for it
    if data is None:
        if visits is not None and isinstance(entry, SpendEntry):
            raise BudgetError(
                f"a spend without data of {PARTICIPATION!r}: must state the clock of the "
                "registry of persons, by which an older copy of it is told"
            )
        return
    clock = data.get("clock")
    within = type(clock) is int and users.start <= clock <= users.stop
    if visits is None or set(data) != {"clock"} or not within:
        raise BudgetError(
            f"data of {PARTICIPATION!r}: must be the clock of the registry of persons, one of "
            f"the slots {users.start} to {users.stop}, under a rule of participation"
        )
    if clock < before:
        raise BudgetError(
            f"the registry of persons is at slot {clock}, and was at {before}: an older copy of "
            "it, or another one, which forgets visits that were learned"
        )


def own_loss(data: dict[str, object], opened: OpenEntry) -> Loss:
    """The loss of a form, which must be stated for the account's relation."""
    loss = read_loss(data)
    if loss.adjacency is not opened.adjacency:
        raise AdjacencyError(
            f"a loss for {loss.adjacency.value} under an accountant that counts "
            f"{opened.adjacency.value}: convert it explicitly"
        )
    return loss


def _check_kind(entry: SpendEntry, loss: Loss) -> None:
    if entry.arithmetic == "sum" and (entry.interactive or entry.profile or has_visits(loss)):
        raise BudgetError(
            f"{entry.mechanism}: arithmetic 'sum' is one release of a plain sum, without "
            "a profile, and its loss that of one row"
        )
    if entry.interactive and any(is_bounded_range(part) for part, _ in leaves_of(loss)):
        raise BudgetError(
            f"{entry.mechanism}: bounded range is a statement about one release; state a "
            "stream of them as a PureLoss"
        )
    if PHASES in entry.parameters and (has_visits(loss) or loss.failure()):
        raise BudgetError(
            f"{entry.mechanism}: the loss of a spend in phases is that of one row, and holds "
            "without exception"
        )
    if entry.interactive and may_fail(loss):
        raise BudgetError(
            f"{entry.mechanism}: no theorem is known for a stream whose loss holds only apart "
            "from an event; state it as an ApproxLoss"
        )


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


def _check_phases(visits: Visits | None, entry: SpendEntry, opened: OpenEntry) -> None:
    """A spend in phases, whose price is that of one of its releases, is of what can tell them."""
    if PHASES not in entry.parameters:
        return
    said, users = entry.parameters[PHASES], entry.users[1] - entry.users[0]
    named = isinstance(said, dict) and set(said) == {"horizon", "outputs"}
    counts = [n for n in said.values() if type(n) is int] if named else []
    if len(counts) < 2 or said["horizon"] < users or said["outputs"] < 1:
        raise BudgetError(
            f"{entry.mechanism}: {PHASES} = {said!r:.80}: must be an object with horizon, at least "
            f"{users}, and outputs, at least 1"
        )
    if not entry.interactive or entry.arithmetic != "own" or entry.profile or entry.gain != 1:
        raise BudgetError(
            f"{entry.mechanism}: a spend in phases is a stream of sums with arithmetic 'own', gain "
            "1 and no profile"
        )
    recorded = is_resumable(opened) or not opened.durable
    if entry.adjacency is Adjacency.ADD_REMOVE or not recorded:
        raise BudgetError(
            f"{entry.mechanism}: a spend in phases is for replace-one or zero-out, and in a file "
            f"it needs {RESUME!r}, which has entries for its phases"
        )
    if visits is not None and (visits.rule.batched or visits.rule.clock != "arrivals"):
        raise BudgetError(
            f"{entry.mechanism}: under {visits.rule}: phases are not known when batches are "
            "declared; use a rule with most and apart alone"
        )


def _check_metered(entry: SpendEntry) -> None:
    """A spend of code that is not ours says so in full, and claims nothing that is ours."""
    said = entry.parameters.get(METERED)
    own = entry.domain.get("kind"), entry.noise.get("family")
    if METERED not in entry.parameters and METERED not in own:
        return
    good = said == {} or (isinstance(said, dict) and _is_code(said))
    plain = (entry.arithmetic, entry.gain, entry.exact) == ("own", 1, None)
    plain = plain and not (entry.derived or entry.interactive or entry.profile)
    if not good or not plain or own != (METERED, METERED):
        raise BudgetError(
            f"{entry.mechanism}: {METERED} = {said!r:.80}: must be an object, empty or with "
            "package, version and parameters, of a spend whose domain and noise are its code's own"
        )


def _is_code(said: dict[str, object]) -> bool:
    try:
        check_form(METERED, said, _CODE)
    except (KeyError, ValueError):
        return False
    return bool(said["package"] and said["version"])


def _check_binding(entry: SpendEntry, loss: Loss, runs: int) -> None:
    """The noise in the entry must earn the loss in the entry, unless code is trusted for it."""
    if not entry.derived:
        read_domain(entry.domain)  # raise for shipped ones of bad form
        read_noise(entry.noise)
        _check_minimizers(entry, loss, runs)
        return
    earned = _earned_by(entry)
    if earned is None:
        raise BudgetError(f"{entry.mechanism}: its price needs trusted code but does not say so")
    # the gain of a stream may be for all visits of a person: its code's word, as gains are
    stated = loss.loss if isinstance(loss, VisitsLoss) else loss
    earned = earned if runs == 1 else compose([(earned, runs)])
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


def runs_of(entry: SpendEntry) -> int:
    """How many runs a spend pays for: 1, but for a lease.

    Raises:
        BudgetError: the parameter that says so has another form.
    """
    said = entry.parameters.get(LEASE)
    if said is None:
        return 1
    runs = said.get("runs") if isinstance(said, dict) else None
    if type(runs) is not int or not 1 <= runs <= MOST_RUNS or len(said) != 1:
        raise BudgetError(
            f"{entry.mechanism}: {LEASE} = {said!r:.80}: must be an object with a number of runs"
        )
    if entry.interactive:
        raise BudgetError(f"{entry.mechanism}: a lease is of runs that release once, no stream")
    return runs


def is_lease(entry: SpendEntry) -> bool:
    """Whether a spend is a lease, of whatever form."""
    return LEASE in entry.parameters


_FORMS: dict[SpendForm, _Form] = {}


def _form_of(entry: SpendEntry) -> _Form:
    made = KNOWN.get(id(entry.domain))
    if made is None or not made.has(entry):
        return _form(entry)
    found = _FORMS.get(made)
    if found is None:
        if len(_FORMS) >= 1024:
            _FORMS.clear()
        found = _FORMS[made] = _form(entry)
    return found


def _form(entry: SpendEntry) -> _Form:
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


def _earned_by(entry: SpendEntry) -> Loss | None:
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
