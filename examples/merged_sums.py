"""Adds up rows in several processes, and releases one private sum of them all.

Every process clips its own rows to integers and returns their sum, encrypted; merged, these are bit
for bit the sum of all rows, whatever the partition, and noise is drawn once, where the token is.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from privlearn.accountants import CentralAccountant
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.rows import PartialSum, Rows, merge
from privlearn.rows.domains import Ball

Data = NDArray[np.float64]
USERS, DIM, PARTS = 10_000, 5, 4
MECHANISM: NoisySum[Data] = NoisySum.calibrated(Ball(1.0, DIM), ZCDP("0.5"))
"""Public, and the same in every process."""


def sum_of_part(first: int, part: Data, key: bytes) -> bytes:
    """What one process does: the sealed sum of its users' rows, for whoever has the key."""
    rows = Rows.seal(part, users=range(first, first + len(part)))
    return MECHANISM.partial(rows).to_bytes(key)


def merged_sum(data: Data, accountant: CentralAccountant[ZCDP]) -> Data:
    """The noisy sum of all rows, which several processes add up."""
    key = secrets.token_bytes(32)
    ends = np.linspace(0, len(data), PARTS + 1).astype(int).tolist()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        sums = [
            processes.submit(sum_of_part, first, data[first:stop], key)
            for first, stop in pairwise(ends)
        ]
        total = merge(*(PartialSum.from_bytes(part.result(), key) for part in sums))
    token = accountant.issue(MECHANISM.loss(), users=range(len(data)), label="total")
    return MECHANISM.release_partial(total, token).value


def main() -> None:
    """Compares it with the sum in one process, under the same simulated noise."""
    data = np.random.default_rng(0).normal(size=(USERS, DIM))

    def account() -> CentralAccountant[ZCDP]:
        noise = NoiseSource.simulation(1)
        return CentralAccountant(
            ZCDP("0.5"), users=range(USERS), ledger=Ledger.memory(), noise=noise
        )

    merged = merged_sum(data, account())
    one = account()
    token = one.issue(MECHANISM.loss(), users=range(USERS), label="total")
    whole = MECHANISM.release(Rows.seal(data, users=range(USERS)), token).value
    print(f"from {PARTS} parts: {merged}\nin one process: {whole}")
    print("equal to the last bit" if (merged == whole).all() else "DIFFERENT")


if __name__ == "__main__":
    main()
