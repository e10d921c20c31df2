"""The laws that accountants and learners rely on, each as a named check of one mechanism.

Runs can be compared, as their noise can be held fixed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant, LocalAccountant
from privlearn.checking.exact.loss_curves import why_wrong
from privlearn.checking.isolation import OutputCapture, own_copy
from privlearn.checking.laws.domains import DOMAIN_CHECKS, DomainCase, tried_records
from privlearn.checking.neighbours import each_float, with_leaf
from privlearn.checking.reports import (
    Axis,
    Broken,
    Coverage,
    Finding,
    LawFinding,
    NotApplicable,
    perform_all,
)
from privlearn.checking.stream_runs import (
    appended,
    begin_phase,
    fixed_users,
    has_phases,
    is_stream,
    released_by,
)
from privlearn.checking.targets import has_own_equality
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend, is_builtin
from privlearn.contract.tokens import Token
from privlearn.errors import CheckError, CurrencyError, HorizonError, TokenSpentError
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.noise import NoiseSource
from privlearn.rows import PartialSum, Rows, merge
from privlearn.rows.domains import Array
from privlearn.values.records import blanked, leaves, length, rebuilt, record_at

CAPS: tuple[Currency, ...] = (
    PureDP(10**9),
    ZCDP(10**9),
    GaussianDP(10**9),
    Renyi({"1.5": 10**9, 2: 10**9, 8: 10**9, 32: 10**9}),
)  # One of each currency, with room for everything
Book = CentralAccountant[Any] | LocalAccountant[Any]
"""Of a case: local where every user's report is the user's own."""
USERS = 6
_ORDERS = (1.01, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_GROWTH: dict[type[Currency], Callable[[float], float]] = {
    PureDP: lambda order: 1.0,
    ZCDP: lambda order: order,
    GaussianDP: lambda order: order / 2,
}  # What the divergence at an order is at most, for an amount of one
_SEEDS = 40
"""An answer of two that noise turns one time in four stays the same in all of them once in 10⁵."""
_FORMS = 24  # Runs that tell whether noise changes the form of what leaves
_TWINS = 300  # Users of one record: more than noise is drawn ahead for
_KEY = bytes(range(32))  # That partial sums are written with
_EXAMPLES = 4  # Of which one stands in the place of the first record


class RunObserver:
    """Records what a mechanism does with its receipt, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.spends: list[Spend] = []
        self.rows: list[Array] = []

    def spent(self, token: Token[Any], spend: Spend) -> None:
        self.said.append("spend")
        self.spends.append(spend)

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        self.said.append("open")
        # Those of a spend with a grid are integers.
        self.rows.append(np.array(rows) if spend.grid is None else spend.grid.values(rows))

    def released(self, token: Token[Any], value: Array) -> Array:
        self.said.append("release")
        return value


@dataclass(frozen=True)
class ObservedRun:
    """One run."""

    released: Any
    value: Array
    observer: RunObserver
    book: Book
    token: Token[Any]
    said: str  # what it printed, warned of and logged

    @property
    def opened(self) -> Array:
        return np.concatenate(self.observer.rows) if self.observer.rows else np.zeros((0, 0))


@dataclass(frozen=True)
class Case:
    """A mechanism under check with the records it is tried on."""

    mechanism: Any
    name: str
    loss: Loss
    spend: Spend
    block: Any
    seed: int
    examples: Any
    records: Any  # Those of the examples that were given; None if none were
    untouched: Any  # the mechanism before its first run
    cap: Currency = field(init=False)
    observed: dict[str, ObservedRun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        caps = [cap for cap in CAPS if price_in(cap, self.loss) is not None]
        if not caps:
            raise CheckError(f"{self.name}: its loss has no price in any currency")
        object.__setattr__(self, "cap", caps[0])

    @property
    def stream(self) -> bool:
        return is_stream(self.mechanism)

    @property
    def users(self) -> range:
        return range(length(self.block))

    @property
    def rows(self) -> Rows[Any]:
        return sealed(self.block)

    def account(self, users: range, seed: int | None = None) -> tuple[Book, RunObserver]:
        observer = RunObserver()
        kind = LocalAccountant if self.spend.arithmetic == "each" else CentralAccountant
        book: Book = kind(
            self.cap,
            users=users,
            noise=NoiseSource.simulation(self.seed if seed is None else seed),
            adjacency=self.loss.adjacency,
            observer=observer,
            failure=Fraction(999, 1000) if self.loss.failure() else 0,
        )
        return book, observer

    def run(self, rows: Rows[Any], *, seed: int | None = None) -> ObservedRun:
        book, observer = self.account(rows.users, seed)
        token = book.issue(self.loss, users=rows.users, label="law")
        capture = OutputCapture(lambda: 0)
        with capture.capturing():
            released, value = released_by(self.mechanism, rows, token)
        said = "".join(f"{where}: {text}" for _, text, where in capture.captured)
        said = said.replace(book.id, "accountant")
        return ObservedRun(released, np.asarray(value), observer, book, token, said)

    def one_by_one(self, rows: Rows[Any], *, seed: int | None = None) -> Array:
        book, _ = self.account(rows.users, seed)
        token = book.issue(self.loss, users=rows.users, label="law")
        with self.mechanism.open(token) as stream:
            each = [stream.append(rows.slice(range(i, i + 1))) for i in rows.users]
        return np.concatenate([np.asarray(getattr(one, "value", one)) for one in each])

    def replaced(self, at: int, record: Any) -> Rows[Any]:
        """The rows with one exchanged for a block of one, whatever its form, or for None (null)."""
        parts = [Rows.seal(record_at(self.block, slice(0, at)), users=range(at))] if at else []
        place = range(at, at + 1)
        parts.append(Rows.null(place) if record is None else Rows.seal(_sent(record), users=place))
        if at + 1 < len(self.users):
            behind = record_at(self.block, slice(at + 1, None))
            parts.append(Rows.seal(behind, users=range(at + 1, len(self.users))))
        return Rows.concat(parts)


def sealed(block: Any) -> Rows[Any]:
    """Rows of as many users as there are records."""
    return Rows.seal(block, users=range(length(block)))


def _sent(record: Any) -> Any:
    """A block of one as a list, whose records may have any form: that of an array is public."""
    if isinstance(record, tuple):
        return rebuilt(record, [_sent(field) for field in record])
    return list(record)


def price_in(cap: Currency, loss: Loss) -> Currency | None:
    """What a loss costs apart from its failures; None where it has no such price."""
    try:
        return cap.price(loss.unless_failed())
    except CurrencyError:
        return None


def check_price(case: Case) -> LawFinding:
    """The ledger gets the price that `loss()` named, which is below no other number of the loss.
    Noise of another package has the law that its loss names, and costs what that law does."""
    if case.mechanism.loss() != case.loss:
        raise Broken("loss() is not the same every time")
    for spend in case.run(case.rows).observer.spends:
        actual = spend.loss(case.loss.adjacency)
        if actual != case.loss:
            raise Broken(f"loss() says {case.loss}, the spend {actual}")
    sure = case.loss.unless_failed()
    curve = [(order, sure.renyi(order)) for order in _ORDERS]
    for cap in CAPS:
        price, growth = price_in(cap, case.loss), _GROWTH.get(type(cap))
        if price is None or growth is None:  # or the curve itself
            continue
        for order, bound in curve:
            allowed = growth(order) * float(price.amounts[0])
            if bound > allowed * (1 + 1e-9) + 1e-12:
                raise Broken(f"{price} allows D({order:g}) <= {allowed:.9g}, its curve {bound:.9g}")
    noise = case.spend.noise
    if case.spend.own_loss is None and not is_builtin(noise):
        domain = case.spend.domain
        far = domain.sensitivity(case.loss.adjacency, noise.norm) * case.spend.gain
        try:
            wrong = why_wrong(noise, case.loss, far, domain.size)
        except CheckError as error:
            axis = Axis("noise", f"{type(noise).__name__} was not compared with a law", False)
            return Finding("check_price", "weak", str(error), Coverage((axis,)))
        if wrong:
            raise Broken(wrong)
    if not case.spend.derived:
        return "on the mechanism's word: its loss, domain or noise is its own"
    return "follows from domain and noise"


def check_specification_is_fixed(case: Case) -> LawFinding:
    """What was priced cannot be changed afterwards, and a release leaves nothing behind. Without
    ``__eq__`` attributes may be set if the price follows: each spend must fit its token."""
    mechanism = case.mechanism
    names = [*getattr(mechanism, "__dict__", {})]
    remedy = "make it a property without a setter"
    if dataclasses.is_dataclass(mechanism):
        names = [f.name for f in dataclasses.fields(mechanism)]
        remedy = "use @dataclass(frozen=True)"
    by_value = has_own_equality(mechanism)
    for name in names if by_value or case.spend.own_loss is not None else ():
        value = getattr(mechanism, name)
        with contextlib.suppress(AttributeError, TypeError):
            setattr(mechanism, name, value)
            what = "compares by its value" if by_value else "states a loss of its own"
            raise Broken(f"{name} can be changed after loss() was asked, and it {what}: {remedy}")
        written = isinstance(value, np.ndarray) and value.flags.writeable
        if written or isinstance(value, list | dict | set | bytearray):
            flags = f" ({name}.flags.writeable = False forbids it)" if written else ""
            raise Broken(f"{name}: {type(value).__name__} can be changed in place{flags}")
    before = hash(mechanism)
    case.run(case.rows)
    if hash(mechanism) != before or mechanism.loss() != case.loss:
        raise Broken("a release changes the mechanism")
    fresh = [replace(case, mechanism=own_copy(case.untouched)) for _ in range(2)]
    fresh[0].run(case.rows)
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
    """A token is spent once, before all else, and pays for what leaves."""
    state, seeds = np.random.get_state(), random.getstate()
    seen = case.run(case.rows)
    after = np.random.get_state()
    if random.getstate() != seeds or not all(map(np.array_equal, state, after)):
        raise Broken("it draws from a global random generator: noise must come from its receipt")
    said = seen.observer.said
    if said.count("spend") != 1 or said[0] != "spend":
        raise Broken(f"it must spend one token first of all; it does {said}")
    if not isinstance(seen.released, Released) or seen.released.paid_by != seen.token.id:
        kind = type(seen.released).__name__
        raise Broken(f"it returns {kind}, not a value that left through its own token's receipt")
    with contextlib.suppress(TokenSpentError):
        released_by(case.mechanism, case.rows, seen.token)
        raise Broken("the same token pays for a second run")
    return " ".join(said[:3])


def _data_sets(case: Case) -> dict[str, Rows[Any]]:
    """What must all look the same to whoever does not know what was released."""
    n = len(case.users)
    examples = {
        f"example {k} first": case.replaced(0, record_at(case.examples, slice(k, k + 1)))
        for k in range(min(_EXAMPLES, length(case.examples)))
    }
    return {
        "the examples": case.rows,
        "null records": Rows.null(case.users),
        "zeros": sealed(blanked(case.block, np.ones(n, dtype=bool))),
        "the examples backwards": sealed(record_at(case.block, slice(None, None, -1))),
        **examples,
    }


def _observed(case: Case) -> dict[str, ObservedRun]:
    """Runs on these, and with a null or bad record in the first place and in the last."""
    if not case.observed:
        tried = _data_sets(case)
        for at in {0, len(case.users) - 1}:
            tried[f"null for user {at}"] = case.replaced(at, None)
            bad = {f"{what} for user {at}": record for what, record, _ in _bad_records(case)}
            tried |= {name: case.replaced(at, record) for name, record in bad.items()}
        case.observed.update({name: case.run(rows) for name, rows in tried.items()})
    return case.observed


def _the_same(what: str, found: dict[str, Any]) -> None:
    first = found["the examples"]
    for name, other in found.items():
        if other != first:
            one, two = str(first), str(other)
            at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), 0)
            shown = [repr(text[max(at - 60, 0) : at + 60]) for text in (one, two)]
            raise Broken(f"{what} for the examples: {shown[0]}, for {name}: {shown[1]}")


def check_only_values_depend_on_data(case: Case) -> LawFinding:
    """The form of outputs, what is written down or said, and the grid of noise are public. In the
    ledger only digests of what was released may differ. The grid is the same for any number of
    users, too."""
    runs = _observed(case)
    form, ledger, said, grids = ({}, {}, {}, {})
    for name, run in runs.items():
        form[name] = _form(run)
        bodies = [{**entry.body(), "digest": None} for entry in run.book.ledger.entries]
        ledger[name] = json.dumps(bodies, sort_keys=True).replace(run.book.id, "accountant")
        said[name] = run.said
        grids[name] = [spend.exact_form() for spend in run.observer.spends]
    if any(grids["the examples"]) and fixed_users(case.mechanism) is None:
        for n in range(1, len(case.users)):
            part = case.run(case.rows.slice(range(n)))
            grids[f"{n} of the examples"] = [spend.exact_form() for spend in part.observer.spends]
    try:
        _the_same("the output", form)
    except Broken:
        if not _form_follows_noise(case):
            raise
    _the_same("the ledger", ledger)
    _the_same("it prints, warns of or logs", said)
    _the_same("the grid", grids)
    return f"shape {runs['the examples'].value.shape}, {len(runs)} data sets"


def _form(run: ObservedRun) -> tuple[tuple[int, ...], str]:
    return run.value.shape, run.value.dtype.str


def _form_follows_noise(case: Case) -> bool:
    """Whether neighbours have forms in common, or noise changes the form of each of them."""
    others = [
        record_at(case.examples, slice(k, k + 1)) for k in range(min(3, length(case.examples)))
    ]
    rows = [case.rows, *(case.replaced(0, other) for other in (None, *others))]
    seen = [{_form(case.run(one, seed=case.seed + k)) for k in range(_FORMS)} for one in rows]
    return all(
        one & other or min(len(one), len(other)) > 1 for one, other in combinations(seen, 2)
    ) and any(len(one) > 1 for one in seen)


def check_bad_record_counts_as_null(case: Case) -> LawFinding:
    """A record that cannot be used is null; nobody else's contribution changes."""
    runs, n, done = _observed(case), len(case.users), 0
    if not _close(case.run(case.replaced(0, None)).value, runs["null for user 0"].value):
        raise NotApplicable("it has randomness of its own, so outputs cannot be compared")
    for at, (what, _, is_null) in product((0, n - 1), _bad_records(case)):
        null, seen = runs[f"null for user {at}"], runs[f"{what} for user {at}"]
        if not np.isfinite(seen.value).all():
            raise Broken(f"{what}: the output is not finite")
        keep = np.arange(n) != at
        all_open = len(seen.opened) == len(null.opened) == n
        if all_open and not _close(seen.opened[keep], null.opened[keep]):
            raise Broken(f"{what}: the contributions of others change")
        if is_null and not _close(seen.value, null.value):
            apart = np.abs(seen.value - null.value).max()
            raise Broken(f"{what}: the output is {apart:.3g} from that with a null record")
        done += 1
    return f"{done} bad records"


def _close(a: Array, b: Array) -> bool:
    size = float(np.abs(np.nan_to_num(a)).max(initial=0.0))
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-8, atol=1e-9 * (1 + size))


def _bad_records(case: Case) -> Iterator[tuple[str, Any, bool]]:
    """Blocks of one record that cannot be used, and whether it must count as null."""
    good = record_at(case.block, slice(0, 1))
    single = not isinstance(good, tuple)
    lost = each_float(good, lambda leaf: np.full_like(leaf, np.nan))
    yield "all NaN", lost, any(x.dtype.kind == "f" for x in leaves(good))
    for number, leaf in enumerate(leaves(good)):
        tried: list[tuple[str, Any, bool]] = []
        if leaf.dtype.kind == "f":
            for special in (np.nan, np.inf, -np.inf):
                spoilt = np.array(leaf)
                spoilt.reshape(-1)[:1] = special
                tried.append((f"one {special}", spoilt, single and leaf.size > 0))
            tried.append(("huge", np.full_like(leaf, 1e300), False))
            tried.append(("largest", np.full_like(leaf, np.finfo(leaf.dtype).max), False))
        elif leaf.dtype.kind in "iu":
            tried.append(("huge", np.full_like(leaf, np.iinfo(leaf.dtype).max), False))
        tried.append(("an axis too many", leaf[..., None, None, None], single))
        if leaf.ndim > 1 and leaf.shape[-1]:
            tried.append(("an entry too few", leaf[..., :-1], single))
        tried.append(("objects", np.full(leaf.shape, None, dtype=object), single))
        tried.append(("text", np.full(leaf.shape, "many"), single))
        where = "" if single else f" in part {number}"
        for what, new, is_null in tried:
            yield f"{what}{where}", with_leaf(good, number, new), is_null


def check_report_has_noise_of_its_own(case: Case) -> LawFinding:
    """No two users of the same record have the same noise, however their rows come."""
    if case.spend.arithmetic != "each":
        raise NotApplicable("it does not say that every user's output is the user's own")
    ways = {"at once": lambda rows, seed: case.run(rows, seed=seed).value}
    if hasattr(case.mechanism, "open"):
        ways["one by one"] = lambda rows, seed: case.one_by_one(rows, seed=seed)
    for (way, run), block in product(ways.items(), (None, record_at(case.examples, slice(0, 1)))):
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
        rows = sealed(record_at(block, np.zeros(n, dtype=int)))
    outputs: Array = np.zeros((n, 0))
    for seed in range(_SEEDS):
        outputs = np.hstack([outputs, run(rows, case.seed + seed).reshape(n, -1)])
        different = np.unique(
            outputs, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        if len(different[0]) == n:
            return None
    _, firsts, groups, counts = different
    for first in firsts[counts > 1]:
        usual = np.unique(outputs[first].reshape(_SEEDS, -1), axis=0, return_counts=True)[1].max()
        if usual <= 3 * _SEEDS / 4:  # rarer noise may agree by chance
            return int(first), int(np.flatnonzero(groups.ravel() == groups.ravel()[first])[1])
    return None


def check_partial_sums(case: Case) -> LawFinding:
    """A partial sum shows nothing of data; merged ones are released as all rows are, and paid."""
    if not hasattr(case.mechanism, "partial"):
        raise NotApplicable("its sums are not made apart: it has no partial(rows)")
    tried = _data_sets(case)
    del tried["null records"]  # that none was sealed is public
    shown = {name: _shown(_partial(case, rows)) for name, rows in tried.items()}
    _the_same("what a partial sum shows", shown)
    if not hasattr(case.mechanism, "release_partial"):
        return f"sealed, {len(shown)} data sets"
    rows, n = case.rows, len(case.users)
    whole = case.run(rows).value
    cuts = sorted({0, n // 3, (n + 1) // 2, n})
    parts = [_partial(case, rows.slice(range(a, b))) for a, b in pairwise(cuts)]
    for order in (parts, parts[::-1], [*parts[1:], parts[0]]):
        book, observer = case.account(case.users)
        token = book.issue(case.loss, users=case.users, label="law")
        total = merge(*order)
        released = case.mechanism.release_partial(total, token)
        if observer.said[:1] != ["spend"]:
            raise Broken("release_partial lets a value out without spending its token")
        if np.asarray(getattr(released, "value", released)).tobytes() != whole.tobytes():
            raise Broken("merged partial sums are not released as all rows at once are")
        with contextlib.suppress(TokenSpentError):
            case.mechanism.release_partial(total, token)
            raise Broken("release_partial lets a value out for a token that was spent")
    return f"sealed, {len(shown)} data sets; {len(parts)} parts in 3 orders"


def _partial(case: Case, rows: Rows[Any]) -> PartialSum:
    try:
        found = case.mechanism.partial(rows)
    except ValueError as error:  # in doubles, say
        raise NotApplicable(str(error)) from None
    if type(found) is not PartialSum:
        raise Broken(f"partial(rows) is a {type(found).__name__}: must be a PartialSum")
    return found


def _shown(partial: PartialSum) -> tuple[Any, ...]:
    length = f"{len(partial.to_bytes(_KEY))} bytes"
    return length, repr(partial), partial.users, partial.terms, partial.functions


def check_stream_takes_users_in_order(case: Case) -> LawFinding:
    """Every user once and in order, in phases that were begun; no later row changes the past."""
    if not case.stream:
        raise NotApplicable("no stream")
    n = len(case.users)
    if n < 3:
        raise NotApplicable("its horizon is below 3 users")
    orders = {
        "begins with user 1": [range(1, 2)],
        "leaves out user 1": [range(1), range(2, 3)],
        "takes user 0 twice": [range(1), range(1)],
        "goes back to user 0": [range(2), range(1)],
    }
    wrong = {what: [("take", users) for users in order] for what, order in orders.items()}
    phases = has_phases(_opened(case))
    wrong |= _wrong_phases(n) if phases else {}
    for what, steps in wrong.items():
        if _accepts(case, steps):
            raise Broken(f"it {what}")
    rows = case.rows
    whole, late = (case.run(data).value for data in (rows, case.replaced(n - 1, None)))
    before = len(whole) - 1
    if not phases:  # whose last one is shorter then, but there
        with contextlib.suppress(Exception):  # it takes no fewer, or releases nothing then
            before = len(case.run(rows.slice(range(n - 1))).value)
    if not _close(whole[:before], late[:before]):
        raise Broken("the last row changes what was released before it")
    return f"{len(wrong)} mistakes are refused"


def _wrong_phases(n: int) -> dict[str, list[tuple[str, range]]]:
    return {
        "opens rows of no phase": [("end", range(2))],
        "ends a phase early": [("begin", range(3)), ("end", range(2))],
        "ends a phase late": [("begin", range(2)), ("end", range(3))],
        "ends a phase twice": [("begin", range(2)), ("end", range(2)), ("end", range(2))],
        "begins a phase within another": [("begin", range(3)), ("begin", range(2))],
        "begins a phase of nobody": [("begin", range(0))],
        "begins a phase beyond its last user": [("begin", range(n + 1))],
    }


def _opened(case: Case) -> Any:
    book, _ = case.account(case.users)
    return case.mechanism.open(book.issue(case.loss, users=case.users, label="law"))


def _accepts(case: Case, steps: list[tuple[str, range]]) -> bool:
    try:
        stream = _opened(case).__enter__()
        for step, users in steps:
            if step == "begin":
                begin_phase(case.mechanism, stream, users)
            elif step == "end":
                stream.end(case.rows.slice(users))
            else:
                appended(case.mechanism, stream, case.rows.slice(users))
    except Exception:
        return False
    return True


def check_domain_laws(case: Case) -> LawFinding:
    """The domain keeps its own laws (`check_domain`)."""
    norms = tuple(dict.fromkeys([case.spend.noise.norm, "l2"]))
    if case.spend.own_loss is not None:
        norms = (case.spend.noise.norm,)
    block = tried_records(case.spend.domain, case.examples, case.seed)
    tried = DomainCase(case.spend.domain, block, case.loss.adjacency, norms)
    report = perform_all("domain", DOMAIN_CHECKS, tried)
    if bad := report.violated or report.undone:
        raise Broken("; ".join(f"{law.check}: {law.detail}" for law in bad))
    return report["check_sensitivity"].detail


MECHANISM_CHECKS: tuple[Callable[[Case], LawFinding], ...] = (
    check_price,
    check_specification_is_fixed,
    check_spends_once_and_first,
    check_only_values_depend_on_data,
    check_bad_record_counts_as_null,
    check_report_has_noise_of_its_own,
    check_partial_sums,
    check_stream_takes_users_in_order,
    check_domain_laws,
)
