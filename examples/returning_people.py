"""A shop whose customers come back: one guarantee for each person, however often they come.

Four hundred people come five times each, in random order, and are shown five of thirty items.  The
registry knows who had how many visits learned; it is sealed, and is kept on disk by the operator.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from privlearn.accountants import JointAccountant, audit
from privlearn.learners import OnePassNewtonMNL
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.runs.simulated_choices import gaussian_market
from privlearn.runs.simulated_visits import equally_often
from privlearn.values.participation import Participation

PERSONS, VISITS = 400, 5
RULE = Participation(most=1, pooled=True)
"""Of everybody all visits in one public batch, the first, are learned, as one contribution."""


def customer(number: int) -> str:
    """What the shop knows a person by."""
    return f"customer-{number:04}"


def main() -> None:
    """Serves everybody, one visit alone and the others in a block, and audits the ledger."""
    market = gaussian_market(7, horizon=PERSONS * VISITS, n_items=30)
    visits = equally_often(PERSONS, VISITS, np.random.default_rng(0)).tolist()
    ids = [customer(number) for number in visits]
    with (
        TemporaryDirectory() as folder,
        People.create(Path(folder, "people.db"), RULE) as people,
        JointAccountant(
            ZCDP("1"),
            users=range(market.horizon),  # visits, each once
            people=people,
            ledger=Ledger.create(Path(folder, "ledger.db")),
            noise=NoiseSource.simulation(0),  # so that this prints the same every time
        ) as accountant,
    ):
        learner = OnePassNewtonMNL(n_items=30, dim=5, max_items=5).start(accountant)
        for users, features, _, private in market.blocks():
            shown = learner.select(features[0], person=ids[users.start])
            learner.observe(int(shown[0]))
            market.shown[users.start] = shown
            learner.play(
                features[1:],
                market.respond,
                private=private[1:],
                people=ids[users.start + 1 : users.stop],
            )
        found = audit(Path(folder, "ledger.db"), delta=1e-6)
    (promised,) = found.guarantees
    print(f"every person is promised rho = {promised.rho}, epsilon = {promised.epsilon:.3f}")
    print(f"regret {market.regrets().sum():.0f} of {market.horizon} visits")


if __name__ == "__main__":
    main()
