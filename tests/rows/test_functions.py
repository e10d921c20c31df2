"""User code that rows pass through: named in the ledger, and spot-checked on every block."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant, JointAccountant, audit
from privlearn.contract.billboard import Billboard
from privlearn.contract.receipts import Receipt, Released
from privlearn.contract.spends import Spend
from privlearn.errors import LedgerError, RowLocalityError, TokenError
from privlearn.learners.contextual import usable_contexts as ours
from privlearn.ledger import Ledger
from privlearn.ledger.entries import FunctionsEntry, RetireEntry, SpendEntry
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball, Norm
from privlearn.rows.functions import Calls, user_code
from privlearn.values.adjacency import Adjacency

Array = NDArray[np.float64]
BALL = Ball(100.0, 2)
USERS = range(40)


@pytest.fixture
def accountant() -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))


def data() -> Array:
    return np.random.default_rng(0).normal(size=(len(USERS), 2))


def rows() -> Rows[Array]:
    return Rows.seal(data(), users=USERS)


def total(accountant: CentralAccountant[ZCDP], given: Rows[Array], noise: float = 1e3) -> Array:
    mechanism = NoisySum(BALL, GaussianNoise(noise))
    token = accountant.issue(mechanism.loss(), users=USERS, label="total")
    return mechanism.release(given, token).value


def first_for_all(block: Array) -> Array:
    return np.repeat(block[:1], len(block), axis=0)


def centred(block: Array) -> Array:
    return np.asarray(block - block.mean(axis=0))


def without_repeats(block: Array) -> Array:
    kept = np.zeros(len(block), dtype=bool)
    kept[np.unique(block, axis=0, return_index=True)[1]] = True
    return block * kept[:, None]


def ranked(block: Array) -> Array:
    return np.asarray(np.argsort(np.argsort(block, axis=0), axis=0), dtype=float)


class Remembers:
    """A running mean: the result of a row depends on the calls before."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, block: Array) -> Array:
        self.seen.append(float(np.sum(block)))
        return block - np.mean(self.seen)


class Buffer:
    """Writes every result into the same array."""

    def __init__(self) -> None:
        self.room = np.empty((len(USERS), 2))

    def __call__(self, block: Array) -> Array:
        self.room[: len(block)] = 2 * block
        return self.room[: len(block)]


COUPLED: dict[str, Callable[[Array], Array]] = {
    "first-for-all": first_for_all,
    "centred": centred,
    "standardised": lambda b: (b - b.mean(axis=0)) / b.std(axis=0),
    "largest": lambda b: b / np.abs(b).max(),
    "running-sum": lambda b: np.cumsum(b, axis=0),
    "neighbour": lambda b: b + np.roll(b, 1, axis=0),
    "without-repeats": without_repeats,
    "ranked": ranked,
    "remembers": Remembers(),
    "random": lambda b: b + np.random.default_rng().normal(size=b.shape),
}
LOCAL: dict[str, Callable[[Array], Array]] = {
    "product": lambda b: b @ np.array([[1.0, 2.0], [0.3, -1.0]]),
    "lengths": lambda b: b / np.sqrt((b**2).sum(axis=1, keepdims=True)),
    "numpy": np.abs,
    "partial": functools.partial(np.clip, a_min=-1.0, a_max=1.0),
    "buffer": Buffer(),
    "in-place": lambda b: np.add(b, 1.0, out=b),
    "fails-on-some": lambda b: b if not (b > 1.5).any() else np.zeros(1 // 0),
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_function_that_couples_rows_stops_the_program_uncovered(
    accountant: CentralAccountant[ZCDP], name: str
) -> None:
    given = rows().map_rows(COUPLED[name])
    with pytest.raises(RowLocalityError, match=r"map_rows\(.*must act on each row by itself"):
        total(accountant, given)
    last = accountant.ledger.entries[-1]
    assert isinstance(last, RetireEntry)
    assert last.outcome == "uncovered"
    assert not accountant.certificate().holds
    assert accountant.spent() == accountant.budget - accountant.remaining() != ZCDP(0)


@pytest.mark.parametrize("name", LOCAL)
def test_a_row_local_function_passes_and_is_named(
    accountant: CentralAccountant[ZCDP], name: str
) -> None:
    for _ in range(20):  # halves are random
        given = rows().map_rows(LOCAL[name])
        Rows._unseal(given)
    total(accountant, given)
    (entry,) = (e for e in accountant.ledger.entries if isinstance(e, FunctionsEntry))
    assert entry.names == given.functions
    assert len(entry.names) == 1


def test_one_persons_row_for_everybody_is_caught_whichever_half_it_falls_into() -> None:
    for _ in range(50):
        with pytest.raises(RowLocalityError):
            Rows._unseal(rows().map_rows(first_for_all))
    # Without a check the row of one person moves the sum a thousandfold.
    unchecked = Rows.seal(first_for_all(data()), users=USERS)
    assert Rows._unseal(unchecked)[0].block is not None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: rows.slice(range(3, 4)),
        lambda rows: rows.map_rows(lambda b: b),
        lambda rows: Rows.concat([rows.slice(range(0, 20)), rows.slice(range(20, 40))]),
    ],
)
def test_what_follows_from_rows_that_failed_cannot_be_opened(
    spoil: Callable[[Rows[Array]], Rows[Array]],
) -> None:
    with pytest.raises(RowLocalityError):
        Rows._unseal(spoil(rows().map_rows(centred)))


def test_a_function_of_single_records_that_remembers_is_caught() -> None:
    kept: list[Array] = []

    def last(record: Array) -> Array:
        kept.append(record)
        return kept[-2] if len(kept) > 1 else record

    given = rows().map(last)
    with pytest.raises(RowLocalityError, match=r"map\(.*last"):
        Rows._unseal(given)
    fine = rows().map(lambda record: 2 * record)
    (chunk,) = Rows._unseal(fine)
    assert np.array_equal(np.asarray(chunk.block), 2 * data())


def test_a_block_of_one_row_is_checked_for_memory() -> None:
    one = Rows.seal(data()[:1], users=range(1))
    Rows._unseal(one.map_rows(centred))  # one row by itself couples nobody
    with pytest.raises(RowLocalityError):  # from its trial on zeros
        Rows._unseal(one.map_rows(Remembers()))


def test_user_code_can_neither_change_sealed_rows_nor_its_results_later() -> None:
    buffer, sealed = Buffer(), rows()
    doubled = sealed.map_rows(buffer)
    buffer.room[:] = 7.0
    spoilt = sealed.map_rows(lambda b: np.multiply(b, 0.0, out=b))
    for given, expected in ((doubled, 2 * data()), (sealed, data()), (spoilt, 0 * data())):
        (chunk,) = Rows._unseal(given)
        assert np.array_equal(np.asarray(chunk.block), expected)


def test_names_are_in_the_ledger_before_rows_are_opened_and_an_audit_lists_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    opened: list[list[str]] = []
    book = Ledger.create(path)
    accountant = CentralAccountant(ZCDP(1), users=USERS, ledger=book)

    class Watches:
        """A domain of one's own, whose code sees rows as well."""

        size = 2

        def clip(self, block: Any) -> Array:
            opened.append([type(entry).__name__ for entry in Ledger.open(path).entries])
            return BALL.clip(block)

        def null(self) -> Array:
            return BALL.null()

        def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
            return BALL.sensitivity(adjacency, norm)

        def decode(self, value: Array) -> Array:
            return value

        def to_dict(self) -> dict[str, Any]:
            return {"kind": "watches"}

    mechanism = NoisySum(Watches(), GaussianNoise(1e3))
    given = rows().map_rows(LOCAL["product"]).map(np.abs).map_rows(LOCAL["product"])
    with accountant:
        mechanism.release(given, accountant.issue(mechanism.loss(), users=USERS, label="total"))
    assert opened[0][-1] == "FunctionsEntry"
    names = [name for e in book.entries if isinstance(e, FunctionsEntry) for name in e.names]
    assert [name.partition("(")[0] for name in names] == ["clip", "map_rows", "map"]
    assert names[1].endswith(f"<lambda> ({Path(__file__).name}:{_line('product')}))")
    found = audit(path)
    assert found.holds, found.problems
    for name in names:
        assert f"{name}: user code; that it acts on each row by itself is its word" in "".join(
            found.trusted_code
        )
    assert any("each named as trusted code" in line for line in found.guarantees[0].assumptions)


def _line(name: str) -> int:
    return int(LOCAL[name].__code__.co_firstlineno)


def test_a_stream_names_each_function_once(accountant: CentralAccountant[ZCDP]) -> None:
    sums = PrefixSum.calibrated(BALL, ZCDP("0.5"), horizon=len(USERS))
    token = accountant.issue(sums.loss(), users=USERS, label="sums")
    with sums.open(token) as stream:
        for user in USERS:
            one = rows().slice(range(user, user + 1))
            stream.append(one.map_rows(np.abs if user < 30 else np.sign))
    names = [e.names for e in accountant.ledger.entries if isinstance(e, FunctionsEntry)]
    assert names == [("map_rows(numpy.absolute)",), ("map_rows(numpy.sign)",)]
    state = accountant.certificate()
    assert state.holds is False  # a simulation
    assert not state.problems


def test_a_stream_that_meets_coupled_rows_ends_uncovered(
    accountant: CentralAccountant[ZCDP],
) -> None:
    sums = PrefixSum.calibrated(BALL, ZCDP("0.5"), horizon=len(USERS))
    stream = sums.open(accountant.issue(sums.loss(), users=USERS, label="sums"))
    stream.append(rows().slice(range(0, 10)))
    with pytest.raises(RowLocalityError):
        stream.append(rows().slice(range(10, 20)).map_rows(centred))
    last = accountant.ledger.entries[-1]
    assert isinstance(last, RetireEntry)
    assert last.outcome == "uncovered"
    with pytest.raises(TokenError, match="closed"):
        stream.append(rows().slice(range(10, 20)))


def test_policies_and_answers_are_named_and_policies_checked() -> None:
    accountant = JointAccountant(ZCDP(1), users=USERS, noise=NoiseSource.simulation(0))
    calls: list[int] = []

    def answer(own: Array, shown: Array) -> Array:
        calls.append(len(own))
        return own + shown

    def served(policy: Callable[[Array], Array]) -> Rows[Array]:
        return Billboard(accountant, USERS).serve(rows(), policy).deliver(answer)

    good = served(np.negative)
    assert calls == [len(USERS)]  # users answer once: no spot check calls them again
    assert [name.partition("(")[0] for name in good.functions] == ["serve", "deliver"]
    assert good.functions[0] == "serve(numpy.negative)"
    with pytest.raises(RowLocalityError, match=r"serve\("):
        Rows._unseal(served(centred))
    board, remembers = Billboard(accountant, USERS), Remembers()
    board.serve(rows().slice(range(0, 1)), remembers).reveal()
    with pytest.raises(RowLocalityError, match=r"serve\("):
        board.serve(rows().slice(range(1, 2)), remembers).reveal()


def test_our_own_functions_are_neither_named_nor_checked() -> None:
    assert user_code(NoisySum.calibrated) == ()
    assert user_code(Calls(user_code, (NoisySum,))) == ()
    assert user_code(functools.partial(user_code)) == ()
    assert user_code(functools.partial(user_code, len)) == ("builtins.len",)
    assert user_code(Calls(user_code, (np.abs, user_code, np.abs))) == ("numpy.absolute",)
    assert user_code(Remembers().__call__) == (f"{__name__}.Remembers.__call__",)
    assert user_code(Remembers()) == (f"{__name__}.Remembers",)

    class Heir(NoisySum[Array]):  # type: ignore[misc]
        """A class of the user's that inherits our methods."""

    assert user_code(Heir(BALL, GaussianNoise(1.0)).release)[0].endswith("Heir")


def test_a_decorator_does_not_make_user_code_ours() -> None:
    """`functools.wraps` copies module and name of what is wrapped."""

    @functools.wraps(ours)
    def around(block: Array) -> Array:
        return np.asarray(ours(block)[:, None] - block.mean(axis=0))

    class Around:
        def __init__(self) -> None:
            functools.update_wrapper(self, ours)

        def __call__(self, block: Array) -> Array:
            return centred(block)

    assert around.__module__.startswith("privlearn")
    for code, own in ((around, "around"), (Around(), "Around")):
        (name,) = user_code(code)
        assert name.startswith(f"{__name__}.test_a_decorator")
        assert name.endswith(f"{own}, around {ours.__module__}.usable_contexts")
        with pytest.raises(RowLocalityError, match=own):
            Rows._unseal(rows().map_rows(code))


def test_a_function_that_fails_on_blocks_is_checked_on_rows() -> None:
    """None of its blocks fit, so that it is called on each row by itself."""
    seen: list[float] = []

    def running(block: Array) -> Array:
        (row,) = block
        seen.append(float(row.sum()))
        return np.array([sum(seen)])

    with pytest.raises(RowLocalityError, match="running"):
        Rows._unseal(rows().map_rows(running))


PADDED = np.dtype([("place", "i1"), ("value", "f8")], align=True)


def padded(block: Array) -> NDArray[Any]:
    found = np.empty(len(block), dtype=PADDED)  # the gap behind "place" holds whatever was there
    found["place"], found["value"] = 1, block[:, 0]
    return found


@pytest.mark.parametrize(
    "function",
    [
        lambda b: np.sqrt(np.abs(b.astype(np.longdouble))),
        lambda b: b.astype(np.clongdouble) * 1j,
        padded,
        lambda b: np.array(["x" * int(1 + 9 * abs(x)) for x in b[:, 0]]),
        lambda b: np.array(["é" * int(1 + 30 * abs(x)) for x in b[:, 0]], dtype="T"),
        np.matrix,
        lambda b: np.ma.masked_less(b, 0.0),
    ],
    ids=["long", "complex-long", "padded", "text", "variable-text", "matrix", "masked"],
)
def test_bits_that_mean_nothing_accuse_nobody(function: Callable[[Array], Any]) -> None:
    for _ in range(5):
        given = rows().map_rows(function)
        again = given.map_rows(lambda b: b.copy() if b.dtype.kind in "VUT" else b @ np.eye(2))
        Rows._unseal(again)


def test_what_means_something_is_compared() -> None:
    for coupled in (
        lambda b: np.asarray(b - b.mean(axis=0), dtype=np.longdouble),
        lambda b: padded(b - b.mean(axis=0)),
        lambda b: np.array([f"{x:.3f}" for x in b[:, 0] - b[:, 0].mean()]),
        lambda b: np.copysign(np.zeros(len(b), dtype=np.longdouble), b[:, 0] - b[:, 0].mean()),
    ):
        with pytest.raises(RowLocalityError):
            _open_often(coupled)


def _open_often(function: Callable[[Array], Any]) -> None:
    """Which rows are mixed is random, and a sign does not change for all of them."""
    for _ in range(20):
        Rows._unseal(rows().map_rows(function))


def test_masked_results_and_rows_of_objects_in_fields_are_null() -> None:
    masked = rows().map_rows(lambda b: np.ma.masked_array(b, mask=b > 0))
    (chunk,) = Rows._unseal(masked.map_rows(lambda b: 2 * b))
    expected = np.where(data() > 0, np.nan, 2 * data())
    assert np.array_equal(np.asarray(chunk.block), expected, equal_nan=True)

    def objects(block: Array) -> NDArray[Any]:
        return np.array([(row,) for row in block.tolist()], dtype=[("row", "O")])

    (none,) = Rows._unseal(rows().map_rows(objects))
    assert not none.valid.any()


def test_sys_exit_in_a_function_of_rows_makes_a_null_record() -> None:
    def strict(record: Array) -> Array:
        if record[0] > 0:
            raise SystemExit(3)
        return record

    for given in (rows().map(strict), rows().map_rows(lambda b: np.stack([*map(strict, b)]))):
        (chunk,) = Rows._unseal(given)
        assert np.array_equal(chunk.valid, data()[:, 0] <= 0)


def test_names_are_written_by_one_thread_at_a_time(tmp_path: Path) -> None:
    parts, releases = 4, 10
    accountant = CentralAccountant(
        ZCDP(10), users=range(10 * parts), ledger=Ledger.create(tmp_path / "ledger.db")
    )
    mechanism, errors = NoisySum.calibrated(BALL, ZCDP("0.1")), list[BaseException]()

    def work(part: int) -> None:
        users = range(10 * part, 10 * part + 10)
        try:
            for _ in range(releases):
                given = Rows.seal(np.ones((10, 2)), users=users).map_rows(lambda b: 2 * b)
                token = accountant.issue(mechanism.loss(), users=users, label="part")
                mechanism.release(given, token)
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(part,)) for part in range(parts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert errors == []
    named = [e for e in accountant.ledger.entries if isinstance(e, FunctionsEntry)]
    assert len(named) == parts * releases


def test_an_own_clip_that_couples_rows_is_caught(accountant: CentralAccountant[ZCDP]) -> None:
    class Shares(Ball):  # type: ignore[misc]
        def clip(self, block: Any) -> Array:
            return np.asarray(block / (1 + np.abs(block).sum()))

    spend = Spend("shares", Shares(1.0, 2), GaussianNoise(1e3), own_loss=None)
    token = accountant.issue(ZCDP(1), users=USERS, label="shares")

    def run() -> Released[Array]:
        with token.spend(spend) as receipt:
            return _noisy(receipt, rows())

    with pytest.raises(RowLocalityError, match=r"clip\(.*Shares"):
        run()


def _noisy(receipt: Receipt, given: Rows[Array]) -> Released[Array]:
    values = receipt.open(given).sum(axis=0)
    return receipt.release(values + receipt.draw(values.shape))


def test_the_ledger_takes_names_for_open_spends_only(accountant: CentralAccountant[ZCDP]) -> None:
    unspent = accountant.issue(ZCDP("0.1"), users=USERS, label="unspent")
    with pytest.raises(TokenError, match="is unspent: no rows are opened"):
        accountant.issuer.record_functions(unspent, ("map(f)",))
    receipt = unspent.spend(Spend("probe", BALL, GaussianNoise(1e3)))
    accountant.issuer.record_functions(unspent, ("map(f)", "map(g)"))
    before = len(accountant.ledger.entries)
    accountant.issuer.record_functions(unspent, ("map(g)",))
    assert len(accountant.ledger.entries) == before, "it stands there"
    again = FunctionsEntry(accountant=accountant.id, token=unspent.id, names=("map(g)",))
    with pytest.raises(LedgerError, match="were named before"):
        accountant._log.append(again)
    receipt.release(receipt.draw((2,)))
    with pytest.raises(TokenError, match="is retired: no rows are opened"):
        accountant.issuer.record_functions(unspent, ("map(h)",))
    assert [type(e) for e in accountant.ledger.entries].count(SpendEntry) == 1
