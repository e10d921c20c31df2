"""The laws that accountants and learners rely on, each as a named check of one mechanism."""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from privlearn.checking.asserts import level_of, time_of
from privlearn.checking.default_neighbours import default_pairs, informative_records
from privlearn.checking.exact.check import white_box
from privlearn.checking.isolation import OutputCapture
from privlearn.checking.laws.domains import DomainCase, domain_report, tried_records
from privlearn.checking.laws.harness import CAPS, ROUNDING, Case, ObservedRun, price_in
from privlearn.checking.laws.partials import check_partials_add_up, check_partials_tell_nothing
from privlearn.checking.laws.report import Broken, LawFinding, NotApplicable
from privlearn.checking.neighbours import each_float, with_leaf
from privlearn.checking.power import noted
from privlearn.checking.sampling.check import black_box
from privlearn.checking.stream_runs import (
    appended,
    begin_phase,
    fixed_users,
    has_phases,
    released_by,
)
from privlearn.checking.targets import SamplingTarget, has_own_equality, sampling_target
from privlearn.contract.receipts import Released
from privlearn.errors import CheckError, HorizonError, LossExceedsTokenError, TokenSpentError
from privlearn.ledger.entries import IssueEntry, RetireEntry, SpendEntry
from privlearn.losses import loss_from_dict
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.noise import GumbelNoise
from privlearn.rows import Rows
from privlearn.rows.domains import Array, PSDTrace, exponent_of
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import blanked, leaves, length, record_at

_ORDERS = (1.01, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_PAIRS = 3
_SEEDS = 40
"""An answer of two that noise turns one time in four stays the same in all of them once in 10⁵."""
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
            raise Broken(f"{name} is an array that can be written to")
    try:
        before = hash(mechanism)
    except TypeError as error:
        raise Broken(f"it cannot be hashed: {error}") from None
    case.on(case.block)
    first = _inside(mechanism)
    case.run(Rows.null(case.users))
    if hash(mechanism) != before or mechanism.loss() != case.loss:
        raise Broken("a release changes the mechanism")
    second = _inside(mechanism)
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
        raise Broken("it draws from a global random generator, not from its receipt")
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


def check_output_has_one_form(case: Case) -> LawFinding:
    """Shape and type of the output say nothing about the data."""
    forms = {
        name: (seen.value.shape, seen.value.dtype.str)
        for name, seen in (
            ("the examples", case.on(case.block)),
            ("null records", case.run(Rows.null(case.users))),
            ("zeros", case.on(blanked(case.block, np.ones(len(case.users), dtype=bool)))),
            ("the examples backwards", case.on(record_at(case.block, slice(None, None, -1)))),
            *((what, case.run(case.replaced(0, bad))) for what, bad, _ in _bad_records(case)),
        )
    }
    first = forms["the examples"]
    for name, form in forms.items():
        if form != first:
            raise Broken(f"for the examples {first}, for {name} {form}")
    return f"shape {first[0]}, {first[1]}"


def check_bad_record_counts_as_null(case: Case) -> LawFinding:
    """A record that cannot be used is null; nobody else's contribution changes."""
    done = 0
    for at in (0, len(case.users) - 1):
        null = case.run(case.replaced(at, None))
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


def check_record_moves_only_itself(case: Case) -> LawFinding:
    """Replacing one record leaves the contributions of all others as they were."""
    moved = 0
    before = case.on(case.block)
    if len(before.opened) != len(case.users):
        raise NotApplicable("it opens no rows, or not all of them")
    for at in (0, len(case.users) // 2, len(case.users) - 1):
        for other in range(min(length(case.examples), 8)):
            seen = case.run(case.replaced(at, case.example(other)))
            keep = np.arange(len(case.users)) != at
            if not _close(seen.opened[keep], before.opened[keep]):
                raise Broken(f"replacing record {at} changes the contributions of others")
            moved += 1
    return f"{moved} replacements"


def check_report_is_of_one_user(case: Case) -> LawFinding:
    """With the noise held fixed, one record moves no number of another user's report."""
    moved = 0
    for way, run in _ways_of_reports(case):
        before = run(case.rows, None)
        for at in (0, len(case.users) // 2, len(case.users) - 1):
            others = [case.replaced(at, None)]
            for other in range(min(length(case.examples), 8)):
                others.append(case.replaced(at, case.example(other)))
            for rows in others:
                after = run(rows, None)
                keep = np.arange(len(case.users)) != at
                if after.shape != before.shape or not np.array_equal(after[keep], before[keep]):
                    raise Broken(f"{way}, replacing record {at} changes the reports of others")
                moved += 1
    return f"{moved} replacements"


def _ways_of_reports(case: Case) -> list[tuple[str, Callable[[Rows[Any], int | None], Array]]]:
    if case.spend.arithmetic != "each":
        raise NotApplicable("it does not say that every user's output is the user's own")
    ways = [("at once", lambda rows, seed: case.run(rows, seed=seed).value)]
    if hasattr(case.mechanism, "open"):
        ways.append(("one by one", lambda rows, seed: case.one_by_one(rows, seed=seed)))
    return ways


def check_report_has_noise_of_its_own(case: Case) -> LawFinding:
    """No two users of the same record have the same noise, however their rows come."""
    blocks = [None, case.example(0)]
    for way, run in _ways_of_reports(case):
        for block in blocks:
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


def check_sum_moves_by_its_sensitivity(case: Case) -> LawFinding:
    """With the noise held fixed, one record moves a sum by no more than was paid for."""
    if case.spend.arithmetic != "sum":
        raise NotApplicable("its arithmetic is its own: only the black and the white box see it")
    adjacency = case.loss.adjacency
    limit = case.domain.sensitivity(adjacency, case.spend.noise.norm) * case.spend.gain
    without: dict[Adjacency, Callable[[], ObservedRun]] = {
        Adjacency.REPLACE_ONE: lambda: case.on(case.block),
        Adjacency.ZERO_OUT: lambda: case.run(case.replaced(0, None)),
        Adjacency.ADD_REMOVE: lambda: case.on(record_at(case.block, slice(1, None))),
    }
    before, far = _natural(case, without[adjacency]().value), 0.0
    for other in range(length(case.examples)):
        new = case.run(case.replaced(0, case.example(other)))
        order = exponent_of(case.spend.noise.norm)
        far = max(far, float(np.linalg.norm(_natural(case, new.value) - before, ord=order)))
    if not far <= limit * (1 + ROUNDING) + 1e-9 * _size(before):
        raise Broken(f"one record moves the release by {far:.9g}; paid for is {limit:.9g}")
    return f"{far:.6g} of {limit:.6g}"


def _natural(case: Case, value: Array) -> Array:
    if isinstance(case.domain, PSDTrace):
        rows, columns = np.triu_indices(case.domain.dim)
        apart = np.where((rows == columns) | (case.domain.layout == "triangle"), 1.0, np.sqrt(2))
        return np.asarray(value[rows, columns] * apart)
    if value.size != case.domain.size:
        raise NotApplicable("decode gives sums another size, so the protected vector is not seen")
    return value.reshape(-1)


def check_noise_decides(case: Case) -> LawFinding:
    """The output follows from data and noise, and no part of it from only the data."""
    first, again = case.on(case.block), case.on(case.block)
    if not np.array_equal(first.value, again.value, equal_nan=True):
        raise Broken("with the same noise the output differs: it has randomness of its own")
    fixed = np.ones(first.value.size, dtype=bool)
    for k in range(1, _SEEDS):
        fixed &= (case.on(case.block, seed=case.seed + k).value == first.value).reshape(-1)
        if not fixed.any():
            break
    for at in range(len(case.users)):
        for record in (0, length(case.examples) // 2):
            other = case.run(case.replaced(at, case.example(record)))
            raw = np.flatnonzero(fixed & (other.value.reshape(-1) != first.value.reshape(-1)))
            if raw.size:
                raise Broken(f"output {raw[0]} carries data and no noise")
    if fixed.all():
        raise Broken("other noise changes nothing")
    return f"{int((~fixed).sum())} of {fixed.size} numbers are noisy"


def check_ledger_is_blind(case: Case) -> LawFinding:
    """What is written down on neighbours is the same, but for the digests of what was released."""
    texts = []
    bad_sets = [case.replaced(0, bad) for _, bad, _ in _bad_records(case)]
    for rows in (*case.neighbouring(3), *bad_sets):
        book = case.run(rows).book
        bodies = [{**entry.body(), "digest": None} for entry in book.ledger.entries]
        texts.append(json.dumps(bodies, sort_keys=True).replace(book.id, "accountant"))
    for text in texts[1:]:
        if text != texts[0]:
            at = next(i for i, (a, b) in enumerate(zip(texts[0], text, strict=False)) if a != b)
            raise Broken(
                f"the ledger depends on the data: {texts[0][max(at - 40, 0) : at + 20]!r}, then "
                f"{text[max(at - 40, 0) : at + 20]!r}"
            )
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
    first = forms["the examples"]
    if not any(first):
        raise NotApplicable("its noise is not exact")
    for name, form in forms.items():
        if form != first:
            raise Broken(f"exact noise: for the examples {first}, for {name} {form}")
    return f"{len(forms)} data sets"


def check_says_the_same_of_everybody(case: Case) -> LawFinding:
    """What is printed, warned of and logged does not depend on data."""
    messages = []
    bad_sets = [case.replaced(0, bad) for _, bad, _ in _bad_records(case)]
    for rows in (*case.neighbouring(3), Rows.null(case.users), *bad_sets):
        capture = OutputCapture(lambda: 0)
        with capture.capturing():
            book = case.run(rows).book
        messages.append(
            [(text.replace(book.id, "accountant"), where) for _, text, where in capture.captured]
        )
    for other in messages[1:]:
        if other != messages[0]:
            raise Broken(f"on one data set it says {messages[0]!r:.200}, on another {other!r:.200}")
    return "the same, on every data set" if messages[0] else "nothing"


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
    late = case.run(case.replaced(n - 1, None)).value
    if not _close(case.run(rows).value[:-1], late[:-1]):
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
        bad = report.failed or report.undone
        raise Broken("; ".join(f"{result.name}: {result.detail}" for result in bad))
    return report["check_sensitivity_holds"].detail


def check_exact_divergence(case: Case) -> LawFinding:
    """The claim is not below the exact divergence, where that can be computed (`white_box`)."""
    pairs = case.neighbours
    if pairs is None and not hasattr(case.mechanism, "domain"):
        pairs = _default_pairs(case)  # its domain is known from what it spends only
        if not isinstance(case.spend.noise, GumbelNoise):  # of choices the worst are looked for
            pairs = pairs[:_PAIRS]
    try:
        return white_box(case.mechanism, case.claim, pairs)
    except CheckError as error:
        raise NotApplicable(str(error)) from None


def check_samples_do_not_refute(case: Case) -> LawFinding:
    """Sampling does not show more loss than is claimed (`black_box`)."""
    return noted(
        black_box(
            sampled_subject(case),
            samples=case.samples,
            confidence=level_of(case.confidence),
            seed=case.seed,
            seconds=time_of(case.seconds),
        )
    )


def sampled_subject(case: Case) -> SamplingTarget[Any]:
    """What is sampled of a mechanism, on neighbours to try where none are given."""
    if case.neighbours is not None:
        return sampling_target(case.mechanism, case.claim, case.neighbours, name=case.name)
    pairs = _default_pairs(case)
    given = sampling_target(case.mechanism, case.claim, pairs[:1], name=case.name)
    return dataclasses.replace(given, neighbours=pairs, default_neighbours=True)


def _default_pairs(case: Case) -> list[tuple[Any, Any]]:
    records = case.records
    if records is None:
        try:
            records = informative_records(case.domain, seed=case.seed)
        except CheckError:  # a domain of somebody else's
            records = case.examples
    return default_pairs(case.mechanism, adjacency=case.loss.adjacency, records=records)


MECHANISM_CHECKS: tuple[Callable[[Case], LawFinding], ...] = (
    check_loss_is_data,
    check_loss_is_what_it_spends,
    check_prices_agree,
    check_every_currency_pays,
    check_specification_is_fixed,
    check_spends_once_and_first,
    check_small_token_is_refused,
    check_output_has_one_form,
    check_bad_record_counts_as_null,
    check_record_moves_only_itself,
    check_report_is_of_one_user,
    check_report_has_noise_of_its_own,
    check_sum_moves_by_its_sensitivity,
    check_noise_decides,
    check_partials_tell_nothing,
    check_partials_add_up,
    check_ledger_is_blind,
    check_grid_is_public,
    check_says_the_same_of_everybody,
    check_stream_takes_users_in_order,
    check_phases_end_where_declared,
    check_domain_laws,
    check_exact_divergence,
    check_samples_do_not_refute,
)
