"""The laws that accountants and learners rely on, each as a named check of one mechanism."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np

from privlearn.checking.exact.foreign_noise import why_wrong
from privlearn.checking.isolation import own_copy
from privlearn.checking.laws.domains import DomainCase, domain_report, tried_records
from privlearn.checking.laws.harness import CAPS, ROUNDING, Case, ObservedRun, price_in
from privlearn.checking.laws.partials import check_partials_add_up, check_partials_tell_nothing
from privlearn.checking.laws.report import Broken, LawFinding, NotApplicable
from privlearn.checking.neighbours import each_float, with_leaf
from privlearn.checking.reports import Axis, Coverage, Finding
from privlearn.checking.stream_runs import (
    appended,
    begin_phase,
    fixed_users,
    has_phases,
    released_by,
)
from privlearn.checking.targets import has_own_equality
from privlearn.contract.receipts import Released
from privlearn.contract.spends import is_builtin
from privlearn.errors import CheckError, HorizonError, LossExceedsTokenError, TokenSpentError
from privlearn.ledger.entries import IssueEntry, RetireEntry, SpendEntry
from privlearn.losses import loss_from_dict
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.records import blanked, leaves, length, record_at

_ORDERS = (1.01, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_SEEDS = 40
"""An answer of two that noise turns one time in four stays the same in all of them once in 10⁵."""
_FORMS = 24  # Runs that tell whether noise changes the form of what leaves
_TWINS = 300  # Users of one record: more than noise is drawn ahead for


def check_loss_is_data(case: Case) -> LawFinding:
    """Anybody can rebuild the loss from its JSON form."""
    form = case.loss.to_dict()
    rebuilt = loss_from_dict(json.loads(json.dumps(form, allow_nan=False)))
    if rebuilt != case.loss:
        raise Broken(f"loss() is {case.loss}, rebuilt from JSON {rebuilt}")
    if case.mechanism.loss() != case.loss:
        raise Broken("loss() is not the same every time")
    return str(form["kind"])


def check_loss_is_what_it_spends(case: Case) -> LawFinding:
    """The ledger gets the price that `loss()` named."""
    seen = case.on(case.block)
    for spend in seen.observer.spends:
        actual = spend.loss(case.loss.adjacency)
        if actual != case.loss:
            raise Broken(f"loss() says {case.loss}, the spend {actual}")
    if not case.spend.derived:
        return "on the mechanism's word: its loss, domain or noise is its own"
    return "follows from domain and noise"


def check_prices_agree(case: Case) -> LawFinding:
    """No price in a currency is below what the loss says about itself elsewhere."""
    sure, said = case.loss.unless_failed(), []
    curve = [(order, sure.renyi(order)) for order in _ORDERS]
    for cap in CAPS:
        price = price_in(cap, case.loss)
        if price is None:
            continue
        said.append(type(cap).__name__)
        for order, bound in curve:
            if isinstance(price, Renyi):
                break
            allowed = _allowed(price, order)
            if bound > allowed * (1 + ROUNDING) + 1e-12:
                raise Broken(
                    f"{price} allows D({order:g}) <= {allowed:.9g}, its own curve says {bound:.9g}"
                )
        both = price_in(cap, sure * 2)
        pairs = [] if both is None else zip((price + price).amounts, both.amounts, strict=True)
        if both is None or any(float(two) > float(sum_) * (1 + ROUNDING) for sum_, two in pairs):
            raise Broken(f"two runs cost {both}, one {price}: prices must add up")
    if not said:
        raise Broken("no currency has a price for it")
    return ", ".join(said)


def _allowed(price: Currency, order: float) -> float:
    match price:
        case PureDP():
            return float(price.epsilon)
        case ZCDP():
            return order * float(price.rho)
        case GaussianDP():
            return order * float(price.mu_squared) / 2
    return np.inf


def check_noise_is_as_priced(case: Case) -> LawFinding:
    """Noise of another package has the law that its loss names, and costs what that law does."""
    noise = case.spend.noise
    if case.spend.own_loss is not None or is_builtin(noise):
        raise NotApplicable("its noise is of this package, or the price is on its word")
    sensitivity = case.domain.sensitivity(case.loss.adjacency, noise.norm) * case.spend.gain
    try:
        wrong = why_wrong(noise, case.loss, sensitivity, case.domain.size)
    except CheckError as error:
        axis = Axis("noise", f"{type(noise).__name__} was not compared with a law", enough=False)
        return Finding("check_noise_is_as_priced", "weak", str(error), Coverage((axis,)))
    if wrong:
        raise Broken(wrong)
    return "what is drawn has the law that its loss names"


def check_every_currency_pays(case: Case) -> LawFinding:
    """A token for `loss()` is enough, in every currency that has a price for it."""
    paid = [cap for cap in CAPS if price_in(cap, case.loss) is not None]
    for cap in paid:
        case.run(case.rows, cap=cap)
    return ", ".join(type(cap).__name__ for cap in paid)


def check_specification_is_fixed(case: Case) -> LawFinding:
    """What was priced cannot be changed afterwards, and can be a key.

    A class without ``__eq__`` whose price follows from domain and noise may have attributes that
    can be set: each spend is priced when it is made, and must fit its token.  No release may
    change them.
    """
    mechanism = case.mechanism
    names = [*getattr(mechanism, "__dict__", {})]
    remedy = "make it a property without a setter"
    if dataclasses.is_dataclass(mechanism):
        names = [f.name for f in dataclasses.fields(mechanism)]
        remedy = "use @dataclass(frozen=True)"
    by_value = has_own_equality(mechanism)
    if not by_value and case.spend.own_loss is None:
        names = []
    for name in names:
        value = getattr(mechanism, name)
        try:
            setattr(mechanism, name, value)
        except (AttributeError, TypeError):
            pass
        else:
            raise Broken(
                f"{name} can be changed after loss() was asked, and the mechanism "
                f"{'compares by its value' if by_value else 'states a loss of its own'}: {remedy}"
            )
        if isinstance(value, list | dict | set | bytearray):
            raise Broken(f"{name} is a {type(value).__name__}, which can be changed in place")
        if isinstance(value, np.ndarray) and value.flags.writeable:
            raise Broken(
                f"{name} is an array that can be written to: {name}.flags.writeable = False"
            )
    try:
        before = hash(mechanism)
    except TypeError as error:
        raise Broken(f"it cannot be hashed: {error}") from None
    case.on(case.block)
    if hash(mechanism) != before or mechanism.loss() != case.loss:
        raise Broken("a release changes the mechanism")
    fresh = [replace(case, mechanism=own_copy(case.untouched)) for _ in range(2)]
    fresh[0].on(case.block)
    fresh[1].run(Rows.null(case.users))
    first, second = (_inside(one.mechanism) for one in fresh)
    left = sorted(k for k in {*first, *second} if first.get(k) != second.get(k))
    if left:
        raise Broken(f"a release leaves something of the data behind in {left[0]}")
    return f"{len(names)} fields"


def _inside(mechanism: Any) -> dict[str, Any]:
    encoded = {}
    for name, value in getattr(mechanism, "__dict__", {}).items():
        try:
            encoded[name] = pickle.dumps(value)
        except Exception:
            encoded[name] = repr(value).encode()
    return encoded


def check_spends_once_and_first(case: Case) -> LawFinding:
    """One token, spent once, before rows are opened and noise is drawn."""
    state, seeds = np.random.get_state(), random.getstate()
    seen = case.on(case.block)
    after = np.random.get_state()
    if random.getstate() != seeds or not all(map(np.array_equal, state, after)):
        raise Broken(
            "it draws from a global random generator: noise must come from its receipt, and what "
            "is no noise from a generator of its own (numpy.random.default_rng())"
        )
    said = seen.observer.said
    if said.count("spend") != 1 or said[0] != "spend":
        raise Broken(f"it must spend one token first of all; it does {said}")
    if "release" not in said:
        raise Broken("what it returns did not leave through its receipt")
    if not isinstance(seen.released, Released) or seen.released.paid_by != seen.token.id:
        raise Broken(
            f"it returns {type(seen.released).__name__}, not the value its own token paid for"
        )
    entries = seen.book.ledger.entries
    kinds = [type(e).__name__ for e in entries if isinstance(e, IssueEntry | SpendEntry)]
    ends = [entry.outcome for entry in entries if isinstance(entry, RetireEntry)]
    if kinds != ["IssueEntry", "SpendEntry"] or ends not in (["released"], ["lost"]):
        raise Broken(f"the ledger holds {kinds}, ends {ends}: one spend and one end were due")
    if ends == ["lost"] and not case.stream:
        raise Broken("its token ends as lost")
    try:
        released_by(case.mechanism, case.rows, seen.token)
    except TokenSpentError:
        return f"{' '.join(said[:3])}"
    raise Broken("the same token pays for a second run")


def check_small_token_is_refused(case: Case) -> LawFinding:
    """A token that holds too little opens nothing and stays unspent."""
    book, observer = case.account(case.users)
    price = book.issue(case.loss, users=case.users, label="law").budget
    failure = Fraction(99, 100) if case.loss.failure() else 0
    small = book.issue(price.share("0.99"), users=case.users, label="small", failure=failure)
    try:
        released_by(case.mechanism, case.rows, small)
    except LossExceedsTokenError:
        pass
    else:
        raise Broken(f"a token of {small.budget} pays for it, the price is {price}")
    if observer.said:
        raise Broken(f"refused, and yet: {observer.said}")
    small.retire()  # raises if it was spent
    return f"{small.budget}"


def _observed(case: Case) -> dict[str, ObservedRun]:
    """Runs on data sets that must all look the same to whoever does not know what was released."""
    if case.observed:
        return case.observed
    n, examples = len(case.users), min(3, length(case.examples))
    tried = {
        "the examples": case.rows,
        "null records": Rows.null(case.users),
        "zeros": case.sealed(blanked(case.block, np.ones(n, dtype=bool))),
        "the examples backwards": case.sealed(record_at(case.block, slice(None, None, -1))),
        "a null record first": case.replaced(0, None),
        **{f"example {k} first": case.replaced(0, case.example(k)) for k in range(examples)},
        **{what: case.replaced(0, bad) for what, bad, _ in _bad_records(case)},
    }
    case.observed.update({name: case.run(rows) for name, rows in tried.items()})
    return case.observed


def _the_same(found: dict[str, Any]) -> Any:
    """What was found on the examples and everywhere else."""
    first = found["the examples"]
    for name, other in found.items():
        if other != first:
            one, two = str(first), str(other)
            at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), 0)
            shown = [repr(text[max(at - 60, 0) : at + 60]) for text in (one, two)]
            raise Broken(f"for the examples {shown[0]}, for {name} {shown[1]}")
    return first


def check_output_has_one_form(case: Case) -> LawFinding:
    """Shape and type of the output say nothing about the data."""
    try:
        shape, kind = _the_same({k: _form(run) for k, run in _observed(case).items()})
    except Broken:
        if not _form_follows_noise(case):
            raise
        raise NotApplicable("its form follows from noisy values: samples look at it") from None
    return f"shape {shape}, {kind}"


def _form(run: ObservedRun) -> tuple[tuple[int, ...], str]:
    return run.value.shape, run.value.dtype.str


def _form_follows_noise(case: Case) -> bool:
    """Whether neighbours have forms in common, or noise changes the form of each of them."""
    rows = case.neighbouring(3)
    seen = [{_form(case.run(one, seed=case.seed + k)) for k in range(_FORMS)} for one in rows]
    return all(
        one & other or min(len(one), len(other)) > 1 for one, other in combinations(seen, 2)
    ) and any(len(one) > 1 for one in seen)


def check_bad_record_counts_as_null(case: Case) -> LawFinding:
    """A record that cannot be used is null; nobody else's contribution changes."""
    done = 0
    for at in (0, len(case.users) - 1):
        null, again = (case.run(case.replaced(at, None)) for _ in range(2))
        if not _close(null.value, again.value):
            raise NotApplicable("it has randomness of its own, so outputs cannot be compared")
        keep = np.arange(len(case.users)) != at
        for what, bad, is_null in _bad_records(case):
            seen = case.run(case.replaced(at, bad))
            if not np.isfinite(seen.value).all():
                raise Broken(f"{what}: the output is not finite")
            all_open = len(seen.opened) == len(null.opened) == len(keep)
            if all_open and not _close(seen.opened[keep], null.opened[keep]):
                raise Broken(f"{what}: the contributions of others change")
            if is_null and not _close(seen.value, null.value):
                raise Broken(
                    f"{what}: the output differs from that with a null record, by "
                    f"{np.abs(seen.value - null.value).max():.3g}"
                )
            done += 1
    return f"{done} bad records"


def _close(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-8, atol=1e-9 * (1 + _size(a)))


def _size(a: Array) -> float:
    return float(np.abs(np.nan_to_num(a)).max(initial=0.0))


def _bad_records(case: Case) -> Iterator[tuple[str, Any, bool]]:
    """Blocks of one record that cannot be used, and whether it must count as null."""
    good = record_at(case.block, slice(0, 1))
    single = not isinstance(good, tuple)
    yield (
        "all NaN",
        each_float(good, lambda leaf: np.full_like(leaf, np.nan)),
        any(x.dtype.kind == "f" for x in leaves(good)),
    )
    for number, leaf in enumerate(leaves(good)):
        where = "" if single else f" in part {number}"

        def put(new: Any, at: int = number) -> Any:
            return with_leaf(good, at, new)

        if leaf.dtype.kind == "f":
            for special in (np.nan, np.inf, -np.inf):
                spoilt = np.array(leaf)
                spoilt.reshape(-1)[:1] = special
                yield f"one {special}{where}", put(spoilt), single and leaf.size > 0
            yield f"huge{where}", put(np.full_like(leaf, 1e300)), False
            yield f"largest{where}", put(np.full_like(leaf, np.finfo(leaf.dtype).max)), False
        elif leaf.dtype.kind in "iu":
            yield f"huge{where}", put(np.full_like(leaf, np.iinfo(leaf.dtype).max)), False
        yield f"an axis too many{where}", put(leaf[..., None, None, None]), single
        if leaf.ndim > 1 and leaf.shape[-1]:
            yield f"an entry too few{where}", put(leaf[..., :-1]), single
        yield f"objects{where}", put(np.full(leaf.shape, None, dtype=object)), single
        yield f"text{where}", put(np.full(leaf.shape, "many")), single


def check_report_has_noise_of_its_own(case: Case) -> LawFinding:
    """No two users of the same record have the same noise, however their rows come."""
    if case.spend.arithmetic != "each":
        raise NotApplicable("it does not say that every user's output is the user's own")
    ways = {"at once": lambda rows, seed: case.run(rows, seed=seed).value}
    if hasattr(case.mechanism, "open"):
        ways["one by one"] = lambda rows, seed: case.one_by_one(rows, seed=seed)
    for (way, run), block in product(ways.items(), (None, case.example(0))):
        try:
            twins = _same_noise(case, run, block, _TWINS)
        except HorizonError:
            twins = _same_noise(case, run, block, len(case.users))
        if twins is not None:
            raise Broken(f"{way}, users {twins[0]} and {twins[1]} have the same noise")
    return f"of up to {_TWINS} users, at once or one by one"


def _same_noise(
    case: Case, run: Callable[[Rows[Any], int | None], Array], block: Any, n: int
) -> tuple[int, int] | None:
    """Two users whose outputs change often from seed to seed, and are the same in all of them."""
    users = range(n)
    rows: Rows[Any] = Rows.null(users)
    if block is not None:
        rows = Rows.seal(record_at(block, np.zeros(n, dtype=int)), users=users)
    seen: list[Array] = []
    groups = np.zeros(n, dtype=np.intp)
    for seed in range(_SEEDS):
        seen.append(run(rows, case.seed + seed).reshape(n, -1))
        marked = np.column_stack([groups, seen[-1]])
        groups = np.unique(marked, axis=0, return_inverse=True)[1].reshape(n)
        if groups.max() == n - 1:
            return None
    firsts, counts = np.unique(groups, return_index=True, return_counts=True)[1:]
    for first in firsts[counts > 1]:
        outputs = np.stack([output[first] for output in seen])
        usual = np.unique(outputs, axis=0, return_counts=True)[1].max()
        if usual <= 3 * _SEEDS / 4:  # rarer noise may agree by chance
            return int(first), int(np.flatnonzero(groups == groups[first])[1])
    return None


def check_ledger_is_blind(case: Case) -> LawFinding:
    """What is written down on neighbours is the same, but for the digests of what was released."""
    texts = {}
    for name, run in _observed(case).items():
        bodies = [{**entry.body(), "digest": None} for entry in run.book.ledger.entries]
        texts[name] = json.dumps(bodies, sort_keys=True).replace(run.book.id, "accountant")
    _the_same(texts)
    return f"{len(texts)} data sets"


def check_grid_is_public(case: Case) -> LawFinding:
    """The grid of exact noise is the same for all data, and for any number of users."""
    tried: dict[str, Rows[Any]] = {"the examples": case.rows, "null records": Rows.null(case.users)}
    for k in range(min(3, length(case.examples))):
        tried[f"the examples with record {k} first"] = case.replaced(0, case.example(k))
    if fixed_users(case.mechanism) is None:
        for n in range(1, len(case.users)):
            part = record_at(case.block, slice(0, n))
            tried[f"{n} of the examples"] = Rows.seal(part, users=range(n))
    forms = {
        name: [spend.exact_form() for spend in case.run(rows).observer.spends]
        for name, rows in tried.items()
    }
    if not any(forms["the examples"]):
        raise NotApplicable("its noise is not exact")
    _the_same(forms)
    return f"{len(forms)} data sets"


def check_says_the_same_of_everybody(case: Case) -> LawFinding:
    """What is printed, warned of and logged does not depend on data."""
    said = _the_same({name: run.said for name, run in _observed(case).items()})
    return "the same, on every data set" if said else "nothing"


def check_stream_takes_users_in_order(case: Case) -> LawFinding:
    """Every user once and in order, and what was released does not change with later rows."""
    if not case.stream:
        raise NotApplicable("no stream")
    n = len(case.users)
    if n < 3:
        raise NotApplicable("its horizon is below 3 users")
    rows = case.rows
    for name, order in (
        ("begin with user 1", [range(1, 2)]),
        ("leave out user 1", [range(1), range(2, 3)]),
        ("take user 0 twice", [range(1), range(1)]),
        ("go back to user 0", [range(2), range(1)]),
    ):
        if _accepts(case, rows, order):
            raise Broken(f"it lets a stream {name}")
    whole, late = (case.run(data).value for data in (rows, case.replaced(n - 1, None)))
    before = len(whole) - 1
    if not has_phases(_opened(case)):  # whose last one is shorter then, but there
        with contextlib.suppress(Exception):  # it takes no fewer, or releases nothing then
            before = len(case.run(rows.slice(range(n - 1))).value)
    if not _close(whole[:before], late[:before]):
        raise Broken("the last row changes what was released before it")
    return "in order, each once"


def check_phases_end_where_declared(case: Case) -> LawFinding:
    """Rows of a stream in phases are opened in a phase that was begun, which takes them all."""
    n = len(case.users)
    wrong: dict[str, list[tuple[str, range]]] = {
        "opens rows of no phase": [("end", range(2))],
        "ends a phase early": [("begin", range(3)), ("end", range(2))],
        "ends a phase late": [("begin", range(2)), ("end", range(3))],
        "ends a phase twice": [("begin", range(2)), ("end", range(2)), ("end", range(2))],
        "begins a phase within another": [("begin", range(3)), ("begin", range(2))],
        "begins a phase of nobody": [("begin", range(0))],
        "begins a phase beyond its last user": [("begin", range(n + 1))],
    }
    if not case.stream or n < 3 or not has_phases(_opened(case)):
        raise NotApplicable("no stream of phases")
    for what, steps in wrong.items():
        stream = _opened(case)
        try:
            for step, users in steps:
                if step == "begin":
                    begin_phase(case.mechanism, stream, users)
                else:
                    stream.end(case.rows.slice(users))
        except Exception:
            continue
        raise Broken(f"it {what}")
    return f"{len(wrong)} mistakes are refused"


def _opened(case: Case) -> Any:
    book, _ = case.account(case.users)
    return case.mechanism.open(book.issue(case.loss, users=case.users, label="law"))


def _accepts(case: Case, rows: Rows[Any], order: list[range]) -> bool:
    try:
        with _opened(case) as stream:
            for users in order:
                appended(case.mechanism, stream, rows.slice(users))
    except Exception:
        return False
    return True


def check_domain_laws(case: Case) -> LawFinding:
    """The domain keeps its own laws (`check_domain`)."""
    norms = tuple(dict.fromkeys([case.spend.noise.norm, "l2"]))
    if case.spend.own_loss is not None:
        norms = (case.spend.noise.norm,)
    block = tried_records(case.domain, case.examples, case.seed)
    report = domain_report(DomainCase(case.domain, block, case.loss.adjacency, norms))
    if not report.passed:
        bad = report.violated or report.undone
        raise Broken("; ".join(f"{law.check}: {law.detail}" for law in bad))
    return report["check_sensitivity_holds"].detail


MECHANISM_CHECKS: tuple[Callable[[Case], LawFinding], ...] = (
    check_loss_is_data,
    check_loss_is_what_it_spends,
    check_prices_agree,
    check_noise_is_as_priced,
    check_every_currency_pays,
    check_specification_is_fixed,
    check_spends_once_and_first,
    check_small_token_is_refused,
    check_output_has_one_form,
    check_bad_record_counts_as_null,
    check_report_has_noise_of_its_own,
    check_partials_tell_nothing,
    check_partials_add_up,
    check_ledger_is_blind,
    check_grid_is_public,
    check_says_the_same_of_everybody,
    check_stream_takes_users_in_order,
    check_phases_end_where_declared,
    check_domain_laws,
)
