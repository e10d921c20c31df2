"""Data frames, tensors and Arrow at every door: taken as their numbers, or refused, never null."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow
import pytest
import scipy.sparse

from privlearn import PureDP
from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.learners import (
    DPHDB,
    DPMNL,
    DPTOFW,
    LDPSGD,
    OnePassNewtonMNL,
)
from privlearn.learners.inputs import places_of, row_of
from privlearn.learners.local import LocalBanditConfig, LocalClient, LocalServer
from privlearn.learners.pofw import DPPOFW
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.mechanisms.choice_model import NO_ITEM
from privlearn.mechanisms.constraint_sets import LpBall
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball
from privlearn.rows.tabular import block_from, records_from, row_from
from privlearn_studies.rivals.convex import OnlineFrankWolfe
from privlearn_studies.rivals.linear_bandits import DPUCB

pandas: Any = pytest.importorskip("pandas")

N, DIM, ITEMS = 40, 3, 3
X = np.random.default_rng(0).uniform(-0.5, 0.5, size=(N, DIM))
Y = X @ [1.0, -1.0, 0.5]
CONTEXTS = np.random.default_rng(1).uniform(-0.5, 0.5, size=(N, ITEMS, DIM))


class Tensor:
    """Turns itself into an array, as those of torch do; one that is not detached cannot."""

    def __init__(self, values: Any, *, detached: bool = True) -> None:
        self.values, self.detached = values, detached

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if not self.detached:
            raise RuntimeError("a secret cell: call detach()")
        return np.asarray(self.values, dtype=dtype)


def columns(values: Array) -> dict[str, Any]:
    return {f"c{k}": values[:, k] for k in range(values.shape[1])}


def pandas_frame(values: Array) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns(values))


def polars_frame(values: Array) -> Any:
    return pytest.importorskip("polars").DataFrame(columns(values))


def batch(values: Array) -> Any:
    return pyarrow.RecordBatch.from_pydict(columns(values))


FRAMES: list[Callable[[Array], Any]] = [
    lambda values: pyarrow.table(columns(values)),
    batch,
    Tensor,
    lambda values: np.ma.array(values, mask=False),
    pandas_frame,
    polars_frame,
]
frames = pytest.mark.parametrize(
    "frame", FRAMES, ids=["arrow", "batch", "tensor", "masked", "pandas", "polars"]
)


def no_tables() -> list[tuple[str, Any]]:
    """What is no table of numbers, for N users; each is made anew, as some can be used once."""
    text = pyarrow.table({**columns(X[:, 1:]), "name": ["Alice"] * N})
    return [
        ("generator", (row for row in X)),
        ("map", map(list, X)),
        ("set", set(range(N))),
        (r"call \.toarray\(\)", scipy.sparse.csr_array(X)),
        ("'name' has type String", text),
        ("'name' has type Categorical", pyarrow.table({"name": text["name"].dictionary_encode()})),
        ("'c0' has type List", pyarrow.table({"c0": [[0.5]] * N})),
        ("gives no array", Tensor(X, detached=False)),
        ("object", object()),
    ]


NO_TABLES = range(len(no_tables()))


def central(budget: str = "1") -> CentralAccountant[ZCDP]:
    return CentralAccountant(ZCDP(budget), users=range(N), noise=NoiseSource.simulation(0))


def joint() -> JointAccountant[ZCDP]:
    return JointAccountant(ZCDP("1"), users=range(N), noise=NoiseSource.simulation(0))


# Conversion ---------------------------------------------------------------------------------------


@frames
def test_a_frame_is_the_array_of_its_numbers(frame: Callable[[Array], Any]) -> None:
    assert np.array_equal(block_from("x", frame(X)), X)
    assert np.array_equal(row_from("x", frame(X)), X)


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_missing_cells_are_nan_whatever_the_library_calls_them(kind: str) -> None:
    whole, half, truth = [1, None, 3], [None, 0.5, 1.5], [True, False, True]
    table = {"whole": whole, "half": half, "truth": truth}
    if kind == "arrow":
        made: Any = pyarrow.table(table)
        single: Any = pyarrow.array(whole)
    elif kind == "pandas":
        pandas = pytest.importorskip("pandas")
        made, single = pandas.DataFrame(table).convert_dtypes(), pandas.Series(whole)
    else:
        polars = pytest.importorskip("polars")
        made, single = polars.DataFrame(table), polars.Series(whole)
    nan = math.nan
    wanted = np.array([[1, nan, 1], [nan, 0.5, 0], [3, 1.5, 1]])
    assert np.array_equal(block_from("x", made), wanted, equal_nan=True)
    assert np.array_equal(block_from("x", single), wanted[:, 0], equal_nan=True)


def test_an_integer_that_no_float_is_equal_to_is_rounded_and_not_quoted() -> None:
    """Arrow refuses to cast it, and says which number it was; only if another cell is missing."""
    for kind in (pyarrow.int64(), pyarrow.uint64()):
        for other in (1, None):
            table = pyarrow.table({"c": pyarrow.array([2**60 + 1, other], type=kind)})
            expected = [[2.0**60], [np.nan if other is None else 1.0]]
            assert np.array_equal(block_from("x", table), expected, equal_nan=True)


def test_what_is_masked_is_missing_also_in_lists() -> None:
    masked = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    wanted = [[1.0, math.nan], [3.0, 4.0]]
    for block in (masked, list(masked)):
        assert np.array_equal(np.array(block_from("x", block)), wanted, equal_nan=True)
    names = np.ma.array(["a", "b"], mask=[True, False])
    assert block_from("x", names).tolist()[1] == "b"


@pytest.mark.parametrize(("bits", "kind"), [(0x7FA00000, "f4"), (0x7FF4 << 48, "f8")])
def test_a_signalling_nan_is_a_nan_and_nothing_is_said_about_it(bits: int, kind: str) -> None:
    """NumPy says that casting it, and rounding it, is invalid: of somebody's sealed cell."""
    sent = np.array([bits], dtype=f"u{kind[1]}").view(kind)
    with np.errstate(all="raise"):
        assert np.isnan(row_of(sent, (1,))).all()
        assert places_of(sent, ITEMS, 1).tolist() == [ITEMS]


def test_what_json_can_hold_is_one_users_business() -> None:
    cells = Decimal("NaN"), date(2026, 1, 1), pandas.NA, pandas.NaT  # of somebody's table
    for sent in (None, "text", 3, 0.5, True, {"age": 3}, [1, "a"], *cells):
        assert row_from("x", sent) is sent
    for nothing in (None, "text", 3, {"age": [3]}):
        with pytest.raises(TypeError, match="x is a"):
            block_from("x", nothing)


def test_a_block_of_records_keeps_its_type() -> None:
    block = records_from("block", (pyarrow.table(columns(X)), Y))
    assert isinstance(block, tuple)
    assert np.array_equal(block[0], X)
    assert block[1] is Y


# Doors --------------------------------------------------------------------------------------------

LOGGED: dict[str, Callable[[], Any]] = {
    "tofw": lambda: DPTOFW(DIM),
    "plain": lambda: DPTOFW(DIM, method="plain"),
    "pofw": lambda: DPPOFW(LpBall(DIM, 1, 2.0)),
}


@frames
@pytest.mark.parametrize("name", LOGGED)
def test_logged_rows_of_a_frame_are_learned_from(name: str, frame: Callable[[Array], Any]) -> None:
    wanted = LOGGED[name]().start(central()).partial_fit(X, Y)
    learner = LOGGED[name]().start(central())
    for part in (slice(0, 25), slice(25, N)):
        learner.partial_fit(frame(X[part]), pyarrow.array(Y[part]))
    assert learner.clock_ == N
    assert learner.private_messages_ == []
    assert np.array_equal(learner.coef_, wanted.coef_)
    assert np.array_equal(learner.predict(frame(X)), wanted.predict(X))


@pytest.mark.parametrize("number", NO_TABLES)
def test_what_is_no_table_is_refused_before_anything_advances(number: int) -> None:
    def refused(call: Callable[[Any], Any]) -> None:
        message, bad = no_tables()[number]
        with pytest.raises(TypeError, match=message) as caught:
            call(bad)
        assert "Alice" not in str(caught.value)
        assert "secret" not in str(caught.value)

    stream = DPTOFW(DIM).start(central())
    refused(lambda bad: stream.partial_fit(bad, Y))
    refused(lambda bad: stream.partial_fit(bad, 0.5))
    refused(lambda bad: stream.partial_fit(X, bad))
    refused(stream.predict)
    logged = OnePassNewtonMNL(n_items=ITEMS, dim=DIM).start(central())
    refused(lambda bad: logged.partial_fit(bad, np.zeros(N, dtype=np.int64)))
    refused(lambda bad: logged.partial_fit(CONTEXTS, bad))
    bandit = DPHDB(n_arms=2, dim=DIM).start(joint())
    refused(lambda bad: bandit.play(bad, lambda own, arms: np.ones(len(arms))))
    refused(bandit.select)
    market = OnePassNewtonMNL(n_items=ITEMS, dim=DIM).start(joint())
    refused(lambda bad: market.play(bad, lambda own, shown: shown[:, 0]))
    refused(market.select)
    refused(lambda bad: market.select(CONTEXTS[0], bad))
    refused(lambda bad: market.play(CONTEXTS, lambda own, shown: shown[:, 0], bad))
    refused(lambda bad: Rows.seal(bad, users=range(N)))
    refused(lambda bad: Rows.seal((X, bad), users=range(N)))
    refused(lambda bad: OnlineFrankWolfe(DIM).partial_fit(bad, Y))
    for learner in (stream, logged, bandit, market):
        assert learner.clock_ == 0
        assert learner.private_messages_ == []
    assert bandit.select(X[0]) in (0, 1), "and the learner is as good as new"


def test_columns_by_name_are_refused_where_no_user_can_have_sent_them() -> None:
    learner = DPTOFW(DIM).start(central())
    for labels in (Y, 0.5):
        with pytest.raises(TypeError, match="x is a dict"):
            learner.partial_fit(columns(X), labels)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="block is a dict"):
        Rows.seal(columns(X), users=range(N))
    assert learner.clock_ == 0


@pytest.mark.parametrize("table", [X, pyarrow.table(columns(X)), X[:, :2], X[:1, :2]], ids=range(4))
def test_a_table_with_one_label_is_no_user(table: Any) -> None:
    learner = DPTOFW(DIM).start(central())
    with pytest.raises(ValueError, match="with one label"):
        learner.partial_fit(table, 0.5)
    assert learner.clock_ == 0


@frames
def test_users_of_a_frame_are_served(frame: Callable[[Array], Any]) -> None:
    def reward(own: Any, arms: Any) -> Array:
        return np.asarray(np.where(arms == 0, own.context[:, 0], -own.context[:, 0]))

    wanted = DPHDB(n_arms=2, dim=DIM).start(joint())
    wanted.play(X, reward)
    learner = DPHDB(n_arms=2, dim=DIM).start(joint())
    learner.play(frame(X[:-1]), reward)
    arm = learner.select(pyarrow.array(X[-1]))
    learner.observe(float(reward(type("Own", (), {"context": X[-1:]}), np.array([arm]))[0]))
    assert learner.private_messages_ == []
    assert learner.public_state() == wanted.public_state()
    shown = OnePassNewtonMNL(n_items=ITEMS, dim=DIM, max_items=2).start(joint())
    assert len(shown.select(frame(CONTEXTS[0]))) == 2
    assert shown.private_messages_ == []


@frames
def test_sealed_frames_are_summed(frame: Callable[[Array], Any]) -> None:
    total = NoisySum.calibrated(Ball(1.0, DIM), ZCDP("0.5"))
    found = []
    for block in (X, frame(X)):
        account = central()
        token = account.issue(total.loss(), users=range(N), label="total")
        found.append(total.release(Rows.seal(block, users=range(N)), token).value)
    assert np.array_equal(found[0], found[1])


def test_a_masked_cell_is_no_data() -> None:
    hidden = np.ma.array(X, mask=np.zeros_like(X, dtype=bool))
    hidden[7, 1] = np.ma.masked
    learner = DPTOFW(DIM).start(central()).partial_fit(hidden, Y)
    assert [user for user, _ in learner.private_messages_] == [7]
    total = NoisySum.calibrated(Ball(1.0, DIM), ZCDP("1e6"))
    account = central("1e6")
    token = account.issue(total.loss(), users=range(N), label="total")
    found = total.release(Rows.seal(hidden, users=range(N)), token).value
    assert found == pytest.approx(np.delete(X, 7, axis=0).sum(axis=0), abs=0.1)


@frames
def test_a_gateway_of_local_reports_takes_frames_and_refuses_the_rest(
    frame: Callable[[Array], Any],
) -> None:
    config = LocalBanditConfig(
        name="offers", method=LDPSGD(dim=DIM, n_arms=2, horizon=N, shared=False, epsilon=1.0)
    )

    def account(attested: bool = False) -> LocalAccountant[PureDP]:
        noise = NoiseSource.simulation(0)
        return LocalAccountant(PureDP(1), users=range(N), noise=noise, attested=attested)

    model = LocalServer(config, account(attested=True), by="test").model()
    users = config.users_of(0)
    part = slice(users.start, users.stop)
    sent = []
    for make in (np.asarray, frame):
        client = LocalClient(config, account())
        arms = client.choose_many(make(X[part]), model, users=users)
        found = client.randomize_many(
            make(X[part]), pyarrow.array(arms), pyarrow.array(Y[part]), users=users, model=model
        )
        assert "a row that cannot be used" not in client.diagnostics.counts
        sent.append((arms.tolist(), found))
    assert sent[0] == sent[1]
    client = LocalClient(config, account())
    for number in NO_TABLES:
        message, _ = no_tables()[number]
        with pytest.raises(TypeError, match=message):
            client.choose_many(no_tables()[number][1], model, users=users)
        with pytest.raises(TypeError, match=message):
            client.randomize_many(no_tables()[number][1], arms, Y, users=users, model=model)
    assert client.diagnostics.counts == {}


# Users who never came -----------------------------------------------------------------------------


def absent_and_null() -> dict[str, tuple[Callable[[], Any], Callable[[Any, slice, bool], None]]]:
    """Learners, and how the users of a part come, with NaN in place of their data or without."""

    def logged(learner: Any, part: slice, null: bool) -> None:
        learner.partial_fit(np.where(null, np.nan, X[part]), Y[part])

    def chosen(learner: Any, part: slice, null: bool) -> None:
        block = np.where(null, np.nan, CONTEXTS[part])
        learner.partial_fit(block, np.full(len(block), NO_ITEM))

    def shown(learner: Any, part: slice, null: bool) -> None:
        block = np.where(null, np.nan, CONTEXTS[part])
        learner.play(block, lambda own, items: items[:, 0])

    def pulled(learner: Any, part: slice, null: bool) -> None:
        learner.play(np.where(null, np.nan, X[part]), lambda own, arms: own.context[:, 0])

    def mnl() -> OnePassNewtonMNL:
        return OnePassNewtonMNL(n_items=ITEMS, dim=DIM, max_items=2)

    found: dict[str, Any] = {
        name: (lambda make=make: make().start(central()), logged) for name, make in LOGGED.items()
    }
    return found | {
        "logged choices": (lambda: mnl().start(central()), chosen),
        "mnl": (lambda: mnl().start(joint()), shown),
        "dpmnl": (
            lambda: DPMNL(n_items=ITEMS, dim=DIM, max_items=2).start(joint()),
            shown,
        ),
        "hdb": (lambda: DPHDB(n_arms=2, dim=DIM).start(joint()), pulled),
        "ucb": (lambda: DPUCB(n_arms=2, dim=DIM).start(joint()), pulled),
    }


def posts(learner: Any) -> list[tuple[str, int, Any]]:
    return [(post["name"], post["at"], post["value"]) for post in learner.billboard_.history()]


@pytest.mark.parametrize("name", absent_and_null())
@pytest.mark.parametrize("gone", [range(0, 7), range(11, 29), range(30, N)], ids=str)
def test_users_who_never_came_are_null_at_one_message(name: str, gone: range) -> None:
    make, come = absent_and_null()[name]
    skipped, null = make(), make()
    for learner in (skipped, null):
        if gone.start:
            come(learner, slice(0, gone.start), False)
        if learner is skipped:
            learner.skip(len(gone))
        else:
            come(learner, slice(gone.start, gone.stop), True)
        if gone.stop < N:
            come(learner, slice(gone.stop, N), False)
    assert skipped.clock_ == N
    assert skipped.public_state() == null.public_state()
    assert posts(skipped) == posts(null)
    text = f"users {gone.start}..{gone.stop - 1} never came"
    assert [u for u, told in skipped.private_messages_ if text in told] == [gone.start]
    assert len(null.private_messages_) - len(skipped.private_messages_) == len(gone) - 1


@pytest.mark.parametrize("name", ["tofw", "hdb", "logged choices"])
def test_no_more_can_be_absent_than_are_left(name: str) -> None:
    learner = absent_and_null()[name][0]()
    for bad in (0, -1, True, 1.5):
        with pytest.raises((ValueError, TypeError), match="n = "):
            learner.skip(bad)
    with pytest.raises(ValueError, match="41 users after 0"):
        learner.skip(N + 1)
    assert learner.clock_ == 0
    assert learner.private_messages_ == []
    assert learner.skip(N).clock_ == N
