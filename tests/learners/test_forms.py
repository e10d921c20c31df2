"""A wrong form is refused before anything is spent; values alone never raise, warn or show."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow
import pytest
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.learners import (
    DPHDB,
    DPMNL,
    DPTOFW,
    LDPOLS,
    Offers,
    OnePassNewtonGLM,
    OnePassNewtonMNL,
)
from privlearn.learners.inputs import places_of
from privlearn.learners.least_squares import PrivateLeastSquares
from privlearn.learners.local import LocalBanditConfig, LocalClient, LocalServer
from privlearn.learners.messages import PrivateCounts
from privlearn.learners.pofw import DPPOFW
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP
from privlearn.mechanisms.constraint_sets import LpBall
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.rows.inputs import block_of
from privlearn_studies.rivals.linear_bandits import DPUCB

N, DIM, ITEMS = 12, 3, 4
rng = np.random.default_rng(0)
X = rng.uniform(-0.5, 0.5, size=(N, DIM))
Y = np.sign(X[:, 0])
ITEM_ROWS = rng.uniform(-0.5, 0.5, size=(N, ITEMS, DIM))
CHOICES = np.arange(N) % ITEMS


class Panic(BaseException):
    """What compiled code raises is no `Exception`; that of pyo3 is one such."""


class Explosive:
    """A cell that fails however it is looked at, and its text is somebody's secret."""

    def _fail(self, *_: object) -> Any:
        raise Panic("a secret")

    __float__ = __index__ = __len__ = __array__ = __iter__ = __getitem__ = __eq__ = _fail
    __hash__ = object.__hash__


@dataclass
class Door:
    """A learner that takes blocks of users.

    Attributes:
        start: makes it; with its ledger.
        come: hands over blocks.
        blocks: good ones, in the order of ``come``, and the shape of one user's part.
    """

    start: Callable[[], tuple[Any, Any]]
    come: Callable[..., object]
    blocks: list[tuple[NDArray[Any], tuple[int, ...]]]


def central(make: Callable[[], Any]) -> Callable[[], tuple[Any, Any]]:
    def start() -> tuple[Any, Any]:
        account: Any = CentralAccountant(ZCDP(1), users=range(N), noise=NoiseSource.simulation(0))
        return make().start(account), account

    return start


def joint(make: Callable[[], Any]) -> Callable[[], tuple[Any, Any]]:
    def start() -> tuple[Any, Any]:
        account: Any = JointAccountant(ZCDP(1), users=range(N), noise=NoiseSource.simulation(0))
        return make().start(account), account

    return start


def gateway() -> tuple[Any, Any]:
    """A client of all users of a batch, that has chosen for them; with its ledger."""
    method = LDPOLS(dim=DIM, n_arms=2, horizon=N, shared=True, epsilon=1.0, delta=1e-3)
    config = LocalBanditConfig(name="forms", method=method)
    server, client = (
        LocalAccountant(
            ApproxDP(1, "1e-3"),
            users=range(N),
            noise=NoiseSource.simulation(0),
            attested=attested,
            currency=GaussianDP,
        )
        for attested in (True, False)
    )
    model = LocalServer(config, server, by="test").model()
    made = LocalClient(config, client)
    users = config.users_of(0)
    made.choose_many(np.zeros((len(users), 2, DIM)), model, users=users)
    return made, client


def report(client: Any, contexts: Any, actions: Any, rewards: Any) -> object:
    users = client.config.users_of(0)
    return client.randomize_many(contexts, actions, rewards, users=users)


def mnl() -> OnePassNewtonMNL:
    return OnePassNewtonMNL(n_items=ITEMS, dim=DIM, max_items=2)


ROWS: list[tuple[NDArray[Any], tuple[int, ...]]] = [(X, (DIM,)), (Y, ())]
SHOWN: list[tuple[NDArray[Any], tuple[int, ...]]] = [
    (ITEM_ROWS, (ITEMS, DIM)),
    (np.ones((N, ITEMS)), (ITEMS,)),
]


def fit(learner: Any, x: Any, y: Any) -> object:
    return learner.partial_fit(x, y)


def show(learner: Any, features: Any, revenues: Any) -> object:
    return learner.play(features, lambda own, shown: shown[:, 0], revenues)


def pull(learner: Any, contexts: Any) -> object:
    return learner.play(contexts, lambda own, arms: own.context[:, 0])


def click(learner: Any, features: Any, revenues: Any) -> object:
    return learner.play(features, lambda own, actions: np.ones(len(actions)), revenues)


def logged_actions(learner: Any, contexts: Any, rewards: Any, actions: Any) -> object:
    return learner.partial_fit(contexts, rewards, actions=actions)


DOORS = {
    "tofw": Door(central(lambda: DPTOFW(DIM, loss="logistic")), fit, ROWS),
    "plain": Door(central(lambda: DPTOFW(DIM, method="plain")), fit, ROWS),
    "pofw": Door(central(lambda: DPPOFW(LpBall(DIM, 1, 2.0))), fit, ROWS),
    "logged": Door(central(mnl), fit, [(ITEM_ROWS, (ITEMS, DIM)), (CHOICES, ())]),
    "mnl": Door(joint(mnl), show, SHOWN),
    "dpmnl": Door(joint(lambda: DPMNL(n_items=ITEMS, dim=DIM, max_items=2)), show, SHOWN),
    "glm": Door(joint(lambda: OnePassNewtonGLM(ITEMS, DIM)), click, SHOWN),
    "glm logged": Door(
        central(lambda: OnePassNewtonGLM(ITEMS, DIM, per_action=True)),
        logged_actions,
        [(X, (DIM,)), (X[:, 0] + 0.5, ()), (CHOICES, ())],
    ),
    "hdb": Door(joint(lambda: DPHDB(n_arms=2, dim=DIM)), pull, [(X, (DIM,))]),
    "ucb": Door(joint(lambda: DPUCB(n_arms=2, dim=DIM)), pull, [(X, (DIM,))]),
    "squares": Door(joint(lambda: PrivateLeastSquares(n_arms=2, dim=DIM)), pull, [(X, (DIM,))]),
}
every = pytest.mark.parametrize("name", DOORS)


def wrong_forms(block: NDArray[Any], shape: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Forms that fit no record, whatever its values are, for as many users."""
    text = block.astype(str)
    yield "text", text
    yield "variable text", text.astype(np.dtypes.StringDType())
    yield "bytes", text.astype("S")
    yield "complex", block * 1j
    yield "dates", (block * 0).astype("datetime64[D]")
    yield "durations", (block * 0).astype("timedelta64[s]")
    yield "records", np.zeros(block.shape, dtype=[("a", "f8")])
    yield "too deep", block[..., None]
    yield "too deep list", block[..., None].tolist()
    yield "dicts", [{"a": 1.0}] * len(block)
    yield "sets", [{1.0}] * len(block)
    yield "all dates", [np.datetime64("2020-01-01")] * len(block)
    if shape:
        yield "flat", np.zeros(len(block))
        yield "flat list", [0.5] * len(block)
        yield "flat objects", np.zeros(len(block)).astype(object)
        yield "rows of words", np.full(block.shape, "a").tolist()
        cells: list[Any] = ["a", {}, 1j, np.datetime64("2020-01-01")]
        for cell in cells:
            yield f"objects, each {cell!r}", np.full(block.shape, cell, dtype=object)
        yield "turned", np.zeros(block.shape[::-1])
        wide = np.concatenate([block, block[..., -1:]], axis=-1)
        yield "too wide", wide
        yield "too wide list", wide.tolist()
        yield "too wide objects", wide.astype(object)
        if len(shape) == 1:
            yield "too wide frame", pyarrow.table({f"c{k}": c for k, c in enumerate(wide.T)})
            days = pyarrow.array([0] * len(block), pyarrow.date32())
            yield "frame of dates", pyarrow.table({f"c{k}": days for k in range(shape[0])})
    else:
        yield "labels", text.tolist()
        yield "labels and holes", [None, *text[1:]]
        yield "objects", text.astype(object)
        yield "column of text", pyarrow.array(text.tolist())
        yield "categories", pyarrow.array(text.tolist()).dictionary_encode()
        pandas = pytest.importorskip("pandas")
        yield "series", pandas.Series(text)
        yield "series of objects", pandas.Series([None, *text[1:]], dtype=object)
        yield "one column", pyarrow.table({"y": block})


ODD: list[Any] = [
    *(None, "n/a", {}, [[1.0]], 10**400, 1j, np.datetime64("2020-01-01")),
    *(Explosive(), np.ma.masked, ["a"] * 3),
]


def odd_values(block: NDArray[Any], shape: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Values that are no good, in forms that fit."""
    for odd in (np.nan, 1e308):
        yield f"{odd}", np.full(block.shape, odd)
    yield "objects", np.full(block.shape, None)
    yield "a list", [block[0], *ODD, *block[1 + len(ODD) :]][: len(block)]
    cells = block.astype(object)
    cells[(1, *(0 for _ in shape))] = Explosive()
    yield "a cell", cells


@pytest.mark.parametrize("number", range(len(ODD)))
def test_a_bad_entry_is_nan_alone(number: int) -> None:
    rows = block_of("x", [X[0], ODD[number], X[2]], (DIM,))
    assert np.array_equal(rows, [X[0], [np.nan] * DIM, X[2]], equal_nan=True)
    labels = block_of("y", [0.5, ODD[number], -1], ())
    assert np.array_equal(labels, [0.5, np.nan, -1], equal_nan=True)
    assert np.isnan(block_of("y", [ODD[number], (1, 2)], ())).all(), "of no one form"


def test_a_choice_that_is_no_number_is_no_item_and_nothing_warns_of_it() -> None:
    for odd in (None, "1", [np.ma.masked] * 3, np.complex128(1 + 2j), Explosive()):
        assert places_of([0, odd, 3], ITEMS, 3).tolist() == [0, ITEMS, 3]


def test_rows_are_read_without_turning_warnings_into_errors() -> None:
    """Filters of warnings are of the whole process: another thread's code would fail meanwhile."""
    seen: list[str] = []

    class Looking:
        def __float__(self) -> float:
            seen.append(warnings.filters[0][0])
            return 1.0

    assert block_of("y", [Looking(), Looking()], ()).tolist() == [1.0, 1.0]
    assert set(seen) == {"ignore"}
    for odd in ([np.complex128(1 + 2j), "1", 2.0], [1.0, np.complex64(2j), "x"]):
        assert np.isnan(block_of("x", [odd, X[1]], (DIM,))[0]).all()


@every
def test_no_wrong_form_is_paid_for(name: str) -> None:
    door = DOORS[name]
    learner, account = door.start()
    before = len(account.ledger.entries), account.spent()
    for place, (block, shape) in enumerate(door.blocks):
        for form, bad in wrong_forms(block, shape):
            blocks: list[Any] = [good for good, _ in door.blocks]
            blocks[place] = bad
            with pytest.raises((TypeError, ValueError)) as caught:
                door.come(learner, *blocks)
            assert "must" in str(caught.value), (form, str(caught.value))
            assert learner.clock_ == 0, form
    assert (len(account.ledger.entries), account.spent()) == before
    assert learner.private_counts_ == PrivateCounts()
    door.come(learner, *(block for block, _ in door.blocks))
    assert learner.clock_ == N, "and the learner is as good as new"
    assert learner.private_counts_.rows == N


@every
def test_values_raise_and_warn_nothing_and_change_nothing_that_is_public(name: str) -> None:
    door = DOORS[name]
    learner, account = door.start()
    door.come(learner, *(block for block, _ in door.blocks))
    wanted = [type(entry) for entry in account.ledger.entries], learner.clock_
    for place, (block, shape) in enumerate(door.blocks):
        for values, odd in odd_values(block, shape):
            learner, account = door.start()
            blocks: list[Any] = [good for good, _ in door.blocks]
            blocks[place] = odd
            door.come(learner, *blocks)
            found = [type(entry) for entry in account.ledger.entries], learner.clock_
            assert found == wanted, values
            assert learner.private_counts_.rows == N
            assert "secret" not in str(learner.private_messages_)


def test_a_gateway_pays_for_no_wrong_form_and_for_all_values() -> None:
    client, account = gateway()
    n = len(client.config.users_of(0))
    good: list[tuple[NDArray[Any], tuple[int, ...]]] = [
        (X[:n], (DIM,)),
        (np.arange(n) % 2, ()),
        (np.full(n, 0.5), ()),
    ]
    before = len(account.ledger.entries)
    for place, (block, shape) in enumerate(good):
        for form, bad in wrong_forms(block, shape):
            blocks: list[Any] = [each for each, _ in good]
            blocks[place] = bad
            with pytest.raises((TypeError, ValueError), match="must"):
                report(client, *blocks)
            assert len(account.ledger.entries) == before, form
        for _, odd in odd_values(block, shape):
            blocks = [each for each, _ in good]
            blocks[place] = odd
            assert len(cast(bytes, report(gateway()[0], *blocks))) == len(
                cast(bytes, report(gateway()[0], *(each for each, _ in good)))
            )


def test_a_block_of_another_form_is_no_single_user_whose_row_may_be_anything() -> None:
    learner, account = DOORS["tofw"].start()
    before = len(account.ledger.entries)
    bad: list[tuple[Any, Any]] = [
        (X[:, 0], Y), (X[:, 0], Y.tolist()), (X[:, 0].astype(object), Y), (Y, X), (X[0], Y[:2]),
        (X, 1.0), (X[0], np.str_("yes")), (X[0], np.array(["yes"])),
    ]  # fmt: skip
    for x, y in bad:
        with pytest.raises((TypeError, ValueError), match="must"):
            learner.partial_fit(x, y)
    assert (learner.clock_, len(account.ledger.entries)) == (0, before)
    odd: list[tuple[Any, Any]] = [
        ([1.0, 2.0], 1.0), (X[0, :2], 1.0), (X[0].astype(str), 1.0), (X[0], "yes"), (None, 1.0),
        (X[0], [1.0, 2.0]), ("text", None), (X[0] * 1j, 1.0),
    ]  # fmt: skip
    for x, y in odd:
        learner.partial_fit(x, y)
    assert learner.private_counts_.null == learner.clock_ == len(odd)


def test_values_of_labels_are_private_and_counted() -> None:
    """y in {1, 2} where {-1, 1} is declared; the text of a label would be form."""
    learner, _ = DOORS["tofw"].start()
    learner.partial_fit(X, np.where(Y > 0, 2, 1))
    counts = learner.private_counts_
    assert counts.reasons == {"the label must be a number that the loss takes": int((Y > 0).sum())}
    assert str(counts).startswith(f"{N} rows, {counts.null} null\n")
    assert DOORS["tofw"].start()[0].partial_fit(X, Y > 0).private_counts_ == PrivateCounts(N)


def test_counts_are_of_each_row_once_whichever_way_it_comes() -> None:
    def bandit() -> Any:
        return DOORS["hdb"].start()[0]

    learner = bandit()
    for context, reward in [(X[0], 0.5), (X[0] * np.nan, "no"), (X[0], "no"), ("text", 0.5)]:
        learner.select(context)
        learner.observe(reward)
    learner.skip(2)
    data, answer = f"the context must be ({DIM},) finite numbers", learner._complaint(data=False)
    wanted = PrivateCounts(6, {data: 2, answer: 1, "never came": 2})
    assert learner.private_counts_ == wanted
    offers = Offers(bandit())
    for context, reward in [(X[0], 0.5), (X[0] * np.nan, "no"), (X[0], Explosive()), ("a", 0.5)]:
        offers.observe(offers.select(context).id, reward)
    offers.select(X[0])
    offers.close_batch()
    counts = offers.learner.private_counts_
    assert counts.rows == offers.learner._board.clock
    assert counts.reasons[data] == 2
    assert counts.reasons[answer] == 1
    assert counts.null == counts.rows - 1
    assert "private_counts_" in type(learner).operator_only


def test_a_loss_or_a_handler_that_panics_changes_nothing_public() -> None:
    class Odd:
        curvature, slope, unit = 1.0, 1.0, None

        def derivative(self, score: Array, label: Array, /) -> Array:
            return np.clip(score - label, -1, 1)

        def labels(self, values: Array, /) -> Array:
            if (values == 0.125).any():
                raise SystemExit(f"a secret: {values}")
            return values

        def to_dict(self) -> dict[str, Any]:
            return {"kind": "odd"}

    def handler(user: int, text: str) -> None:
        raise Panic(text)

    learner, _ = central(lambda: DPTOFW(DIM, loss=Odd()))()
    learner.on_private_message = handler
    learner.partial_fit(np.where(np.arange(N)[:, None] == 2, np.nan, X), np.full(N, 0.125))
    assert learner.clock_ == N
    assert "on_private_message failed: Panic" in [text for _, text in learner.private_messages_]
    assert learner.private_counts_.null == N
