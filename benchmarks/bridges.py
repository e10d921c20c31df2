"""What a call of another library costs more in CPU under an account of ours.

``python benchmarks/bridges.py`` prints a row for each library that is installed: milliseconds of
CPU of one call as the library makes it, and how much more it is with a ledger in memory and in a
file of the current directory.  Minima of several tries, of 200 calls each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant
from privlearn.bridges.diffprivlib import diffprivlib_accountant
from privlearn.bridges.jax_privacy import meter_event
from privlearn.bridges.opendp import meter_context, meter_measurement
from privlearn.bridges.smartnoise import meter_reader
from privlearn.errors import PackageError
from privlearn.ledger import Ledger
from privlearn.losses.budgets import PureDP, Renyi
from privlearn.values.adjacency import Adjacency

CALLS, TRIES, N = 200, 5, 1000
FAILURE = "1e-4"
X = np.random.default_rng(0).uniform(0, 100, N)
Made = Callable[[], Any]
"""One call."""


def diffprivlib(accountant: Any) -> Made:
    budget = None if accountant is None else diffprivlib_accountant(accountant)
    from diffprivlib import tools

    return lambda: tools.mean(X, epsilon=1e-3, bounds=(0, 100), accountant=budget)


def opendp(accountant: Any) -> Made:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()
    total = space >> dp.t.then_count() >> dp.m.then_laplace(1000.0)
    ages = X.astype(int).tolist()
    paid: Any = total if accountant is None else meter_measurement(accountant, total, d_in=1)
    return lambda: paid(ages)


def context(accountant: Any) -> Made:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=int))
    asked = dp.Context.compositor(
        data=X.astype(int).tolist(),
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(epsilon=1e6),
        domain=domain,
    )
    if accountant is not None:
        meter_context(accountant, asked)
    total = (domain, dp.symmetric_distance()) >> dp.t.then_count() >> dp.m.then_laplace(1000.0)
    return lambda: asked(total)


def smartnoise(accountant: Any) -> Made:
    import pandas as pd
    import snsql

    people = pd.DataFrame({"id": range(N), "age": X.astype(int)})
    columns = {"id": {"type": "int", "private_id": True}, "age": {"type": "int"}}
    reader = snsql.from_connection(
        people,
        privacy=snsql.Privacy(epsilon=1e-3, delta=1e-9),
        metadata={"": {"people": {"people": columns}}},
    )
    if accountant is not None:
        meter_reader(accountant, reader)
    return lambda: reader.execute("SELECT COUNT(*) AS n FROM people.people")


def dp_event(accountant: Any) -> Made:
    from dp_accounting import dp_event as events

    event = events.PoissonSampledDpEvent(0.01, events.GaussianDpEvent(2.0))

    def step() -> float:
        return float(X.sum())

    if accountant is None:
        return step

    def paid() -> float:
        with meter_event(accountant, event, package="dp-accounting") as spend:
            return spend.release(step())

    return paid


CASES: dict[str, tuple[Callable[[Any], Made], Any, Adjacency]] = {
    "diffprivlib, mean of 1,000": (diffprivlib, PureDP(100), Adjacency.REPLACE_ONE),
    "OpenDP, count of 1,000": (opendp, PureDP(100), Adjacency.ADD_REMOVE),
    "OpenDP, query of a context": (context, PureDP(100), Adjacency.ADD_REMOVE),
    "SmartNoise, count of 1,000": (smartnoise, PureDP(100), Adjacency.ADD_REMOVE),
    "a DpEvent": (dp_event, Renyi({8: 10_000}), Adjacency.ADD_REMOVE),
}


def cpu(call: Made) -> float:
    """Milliseconds."""
    call()
    found = []
    for _ in range(TRIES):
        began = time.process_time()
        for _ in range(CALLS):
            call()
        found.append((time.process_time() - began) / CALLS * 1e3)
    return min(found)


def rows() -> Iterator[str]:
    for name, (make, cap, relation) in CASES.items():
        try:
            alone = cpu(make(None))
            more = []
            with TemporaryDirectory(dir=Path.cwd()) as folder:
                for ledger in (Ledger.memory(), Ledger.create(Path(folder) / "ledger.db")):
                    with CentralAccountant(
                        cap, users=range(N), adjacency=relation, failure=FAILURE, ledger=ledger
                    ) as accountant:
                        more.append(cpu(make(accountant)) - alone)
        except (ImportError, PackageError) as error:
            yield f"| {name} | not measured: {error} | | |"
            continue
        yield f"| {name} | {alone:.2f} | {more[0]:.2f} | {more[1]:.2f} |"


if __name__ == "__main__":
    print("| call | alone, ms | more in memory | more in a file |\n|---|---|---|---|")
    print("\n".join(rows()))
