"""How many steps an (ε, δ) holds under Opacus and here, and what a token costs each step.

Needs the extra ``opacus``.  ``python benchmarks/opacus_steps.py`` prints two tables; the first is
that of docs/how-to/opacus.md.  The ledger lies in the current directory, whose disk the last row is
about.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant

from privlearn.events.opacus import most_steps, opacus_accountant, spend_tokens
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ApproxDP

SETTINGS = [
    (ApproxDP(1, "1e-5"), 1.5, 0.05),
    (ApproxDP(3, "1e-5"), 1.0, 0.01),
    (ApproxDP(3, "1e-5"), 1.1, 256 / 60_000),
    (ApproxDP(2, "1e-6"), 2.0, 0.1),
]
RECORDS, BATCH, STEPS = 1000, 50, 300


def largest(fits: Callable[[int], bool]) -> int:
    """The most steps that fit, by bisection; 0 if one does not."""
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def theirs(kind: Any, promise: ApproxDP, noise: float, rate: float) -> int:
    """The most steps by one of Opacus' accountants."""

    def fits(steps: int) -> bool:
        accountant = kind()
        accountant.history = [(noise, rate, steps)]
        return bool(accountant.get_epsilon(float(promise.delta)) <= float(promise.epsilon))

    return largest(fits)


def step_times(hidden: int, ledger: Ledger | None) -> tuple[int, float, float]:
    """Number of parameters, and the median milliseconds of `optimizer.step`, by clock and of CPU.

    Without a ledger it is Opacus' own step.
    """
    layers = [torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)]
    model: Any = torch.nn.Sequential(*layers) if hidden else torch.nn.Linear(64, 10)
    data = torch.utils.data.TensorDataset(
        torch.randn(RECORDS, 64), torch.randint(0, 10, (RECORDS,))
    )
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH),
        noise_multiplier=1.5,
        max_grad_norm=1.0,
    )
    if ledger is not None:
        spend_tokens(
            optimizer,
            loader,
            opacus_accountant(ApproxDP(8, "1e-5"), optimizer, loader, ledger=ledger),
        )
    times: list[tuple[float, float]] = []
    while len(times) < STEPS:
        for features, classes in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features), classes).backward()
            begun, worked = time.perf_counter(), time.process_time()
            optimizer.step()
            times.append((time.perf_counter() - begun, time.process_time() - worked))
    clock, work = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    return sum(p.numel() for p in model.parameters()), clock, work


def main() -> None:
    """Prints both tables."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print("| promise | noise | rate | Opacus RDP | Opacus PRV | here, any time | here, committed |")
    for promise, noise, rate in SETTINGS:
        counts = [theirs(kind, promise, noise, rate) for kind in (RDPAccountant, PRVAccountant)]
        counts += [most_steps(promise, noise, rate, committed=c) for c in (False, True)]
        print(f"| {promise} | {noise} | {rate:.5f} | {' | '.join(map(str, counts))} |")
    print("| parameters | Opacus' own step, ms | ledger in memory | ledger in a file |")
    with TemporaryDirectory(dir=".") as folder:
        for hidden in (0, 128):
            step_times(hidden, None)  # what is made once is made
            size, clock, work = step_times(hidden, None)
            added = []
            for book in (Ledger.memory(), Ledger.create(Path(folder) / f"{hidden}.db")):
                _, longer, more = step_times(hidden, book)
                added.append(f"+ {longer - clock:.2f} (CPU + {more - work:.2f})")
            print(f"| {size} | {clock:.2f} (CPU {work:.2f}) | {' | '.join(added)} |")


if __name__ == "__main__":
    main()
