"""Sums and noise of open streams are overwritten in a forked child; what streams share is not."""

from __future__ import annotations

import gc
import os
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.contract.receipts import Receipt
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import (
    AnytimeBLT,
    BandedBLT,
    BatchedPrefixSum,
    BinaryTree,
    BufferedToeplitz,
    CrossPolytope,
    NoisyMaxBatches,
    NoisyMaxStream,
    NoisyReport,
    PrefixSum,
    receipt_stream,
)
from privlearn.mechanisms.noise_stream import NoiseStream
from privlearn.mechanisms.wiping import wipe
from privlearn.noise import GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.participation import Participation

USERS = range(80)
BALL = Ball(1.0, 3)
FACTORIZATIONS: list[Any] = [
    BinaryTree(80),
    BufferedToeplitz.fitted(80),
    AnytimeBLT(),
    BandedBLT.fitted(80, Participation(4, apart=20), "mean"),
]
STREAMS: dict[str, Any] = {
    **{type(each).__name__: PrefixSum(BALL, each, 10.0) for each in FACTORIZATIONS},
    "batches": BatchedPrefixSum(BALL, (30, 50), BinaryTree(2), 10.0),
    "picks after batches": NoisyMaxBatches(
        CrossPolytope(3, 1.0), 1.0, 10.0, (30, 50), (1, 2), (1024, 2000)
    ),
    "picks": NoisyMaxStream(CrossPolytope(3, 1.0), 1.0, 10.0, 80),
    "reports": NoisyReport(BALL, GaussianNoise(10.0)),
    "reports in Laplace": NoisyReport(Ball(1.0, 3, norm=1), LaplaceNoise(10.0)),
}


def rows(users: range) -> Rows[Any]:
    return Rows.seal(np.full((len(users), 3), 0.3), users=users)


def begun(name: str) -> Any:
    accountant: CentralAccountant[ZCDP] = CentralAccountant(
        ZCDP(10**6), users=USERS, noise=NoiseSource.simulation(0)
    )
    made = STREAMS[name]
    stream = made.open(accountant.issue(made.loss(), users=USERS, label=name))
    stream.append(rows(range(20)))
    return stream


def arrays(thing: object) -> dict[int, np.ndarray[Any, Any]]:
    """All that it holds, found by what Python itself knows of references; not by receipts."""
    found: dict[int, np.ndarray[Any, Any]] = {}
    seen, waiting = set[int](), [thing]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, Receipt | ModuleType | type | str | int | float):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            found[id(each)] = each
        elif isinstance(each, MethodType):
            waiting.append(each.__self__)
        elif isinstance(each, FunctionType):
            waiting += [cell.cell_contents for cell in each.__closure__ or ()]
        else:
            waiting += gc.get_referents(each)
    return found


def left_in(stream: object, mechanism: object, beside: object) -> int:
    """Arrays of its own that say something still."""
    own = arrays(stream)
    shared = {*arrays(mechanism), *arrays(beside)}
    return sum(bool(each.any()) for at, each in own.items() if at not in shared)


@pytest.mark.parametrize("name", STREAMS)
def test_nothing_of_rows_or_noise_is_left_in_a_child(name: str) -> None:
    """And a stream that the child makes itself gives what it would give in the parent."""
    stream, beside = begun(name), begun(name)
    assert left_in(stream, STREAMS[name], beside) > 0
    expected = beside.append(rows(range(20, 30)))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        left = left_in(stream, STREAMS[name], beside)
        again = begun(name).append(rows(range(20, 30)))
        same = (again is None) is (expected is None)
        if same and expected is not None:
            same = np.array_equal(again.value, expected.value)
        os.write(write, f"{left} {same}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "0 True"
    os.waitpid(child, 0)
    stream.append(rows(range(20, 30)))  # the parent has its own


def test_a_child_in_which_nothing_is_wiped_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_stream, "wipe", lambda stream: None)
    with pytest.raises(AssertionError):
        test_nothing_of_rows_or_noise_is_left_in_a_child("BinaryTree")


def test_noise_in_doubles_is_overwritten_too() -> None:
    factorization = BufferedToeplitz.fitted(80)
    noise = factorization.stream(lambda n: np.ones((n, 3)))
    noise.next(3)
    assert isinstance(noise, NoiseStream)
    assert noise._rest.any()
    wipe(noise)
    assert not noise._rest.any()
