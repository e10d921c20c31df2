"""How often the functions that one call runs through change from one of our files to another.

    python benchmarks/walks.py [--show "end of a batch"]

Somebody who reads along opens a file that often.  Of all functions that are called, in order, only
ours are looked at; a change is a function of another file than the one before.  The numbers are the
same at every run: noise is drawn from a seed, and what is computed once is computed in a first call
that is not counted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np

import privlearn
from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant, audit
from privlearn.learners import OnePassNewtonMNL
from privlearn.learners.ldp_sgd import LDPSGD
from privlearn.learners.local.client import LocalClient
from privlearn.learners.local.protocol import LocalBanditConfig, Model
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Ball

T = TypeVar("T")
_ROOT = os.path.dirname(privlearn.__file__) + os.sep


class Walk(NamedTuple):
    """One call: how often it changes file, and the functions that it calls, in order."""

    changes: int
    functions: list[str]
    """Each indented by how deep it is called, with its file."""


def walk(call: Callable[[], T]) -> tuple[T, Walk]:
    """What ``call`` returns, and its walk."""
    changes, before = -1, ""
    depth = [0]
    functions: list[str] = []

    def follow(frame: FrameType, event: str, _: Any) -> None:
        nonlocal changes, before
        if event == "return" and len(depth) > 1:
            depth.pop()
        if event != "call":
            return
        code = frame.f_code
        ours = code.co_filename.startswith(_ROOT)
        depth.append(depth[-1] + ours)
        if ours:
            file = code.co_filename.removeprefix(_ROOT)
            changes, before = changes + (file != before), file
            functions.append(f"{'  ' * (depth[-1] - 1)}{code.co_qualname}  {file}")

    gc.disable()  # what earlier calls left would be closed in the middle of this one
    sys.setprofile(follow)
    try:
        found = call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found, Walk(changes, functions)


def newton_walks() -> dict[str, Walk]:
    """Serving one user, the end of a batch, and a certificate."""
    rng = np.random.default_rng(0)
    accountant = JointAccountant(ZCDP("1"), users=range(60), noise=NoiseSource.simulation(0))
    learner = OnePassNewtonMNL(n_items=6, dim=3, max_items=2, first_batch=10).start(accountant)

    def serve() -> dict[str, Walk]:
        shown, select = walk(lambda: learner.select(rng.normal(size=(6, 3))))
        _, observe = walk(lambda: learner.observe(int(shown[0])))
        return {"select": select, "observe": observe}

    walks = [serve() for _ in range(60)]
    ends = [i for i, each in enumerate(walks) if each["observe"].changes > 100]
    found = walks[ends[1] + 2] | {"end of a batch": walks[ends[1]]["observe"]}
    accountant.close()
    accountant.certificate()
    return found | {"certificate": walk(accountant.certificate)[1]}


def audit_walk() -> dict[str, Walk]:
    """An audit of a file of 100 spends."""
    users, mechanism = range(100), NoisySum.calibrated(Ball(1.0, 3), ZCDP("1"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger"
        noise = NoiseSource.simulation(0)
        book = CentralAccountant(ZCDP("1"), users=users, ledger=Ledger.create(path), noise=noise)
        for user in users:
            one = range(user, user + 1)
            token = book.issue(mechanism.loss(), users=one, label="sum")
            mechanism.release(Rows.seal(np.zeros((1, 3)), users=one), token)
        book.close()
        audit(path)
        return {"audit": walk(lambda: audit(path))[1]}


def device_walks() -> dict[str, Walk]:
    """The one user of a device, whose token pays for the message; the second of two devices."""
    method = LDPSGD(shared=True, n_arms=4, dim=3, epsilon=1, horizon=40)
    config = LocalBanditConfig(name="walks", method=method)
    rng = np.random.default_rng(0)
    arrays = {"theta": rng.normal(size=(1, 3))}
    contexts = rng.normal(size=(4, 3))
    contexts /= np.sqrt((contexts**2).sum(axis=1))[:, None]

    def answer(user: int) -> dict[str, Walk]:
        batch = config.batch_of(user)
        model = Model(fingerprint=config.fingerprint.hex(), batch=batch, arrays=arrays)
        noise = NoiseSource.simulation(user)
        phone: Any = LocalAccountant.for_device(config, Ledger.memory(), user=user, noise=noise)
        client: LocalClient[Any] = LocalClient(config, phone)
        arm, choose = walk(lambda: client.choose(contexts, model))
        _, randomize = walk(lambda: client.randomize(contexts[arm], arm, 0.5))
        return {"choose": choose, "randomize": randomize}

    answer(20)
    return answer(21)


def main() -> None:
    """Prints the counts."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--show", metavar="CALL", help="the functions of one of the calls")
    options = arguments.parse_args()
    found = newton_walks() | device_walks() | audit_walk()
    for name, each in found.items():
        print(f"{name:15} {each.changes:6} changes of file in {len(each.functions):6} calls")
    if options.show is not None:
        print(*found[options.show].functions, sep="\n")


if __name__ == "__main__":
    main()
