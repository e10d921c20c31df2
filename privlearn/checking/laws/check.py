"""`check_mechanism`: what every mechanism has to keep, each law as a named check.

A mechanism of somebody else's is any object with ``loss()`` and ``release(rows, token)``, or with
``loss()`` and ``open(token)`` for a stream; nothing is inherited and nothing registered::

    check_mechanism(NoisySum(Ball(1.0, 1, "l1"), LaplaceNoise(4.0)))

The checks run it on a real accountant, with an observer of what is opened and released, and
compare runs that must agree, since noise can be held fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from privlearn.checking.asserts import SAMPLES
from privlearn.checking.default_neighbours import stated_spend
from privlearn.checking.full_messages import told_in_full
from privlearn.checking.isolation import own_copy, silenced
from privlearn.checking.laws.domains import check_domain, example_records
from privlearn.checking.laws.harness import USERS, Case
from privlearn.checking.laws.mechanisms import MECHANISM_CHECKS, sampled_subject
from privlearn.checking.laws.report import (
    Broken,
    CheckResult,
    LawFinding,
    LawReport,
    perform,
    perform_all,
)
from privlearn.checking.session import note
from privlearn.checking.stream_runs import fixed_users, released_by
from privlearn.checking.stub_accountant import StubAccountant
from privlearn.checking.targets import Claimable, SamplingTarget, name_of, sampling_target
from privlearn.errors import CheckError, HorizonError, UsersError
from privlearn.losses import Loss
from privlearn.rows import Rows
from privlearn.values.records import length, record_at

__tracebackhide__ = told_in_full

__all__ = ["check_domain", "check_mechanism", "mechanism_checks"]


@silenced
def check_mechanism(
    mechanism: Any,
    *,
    records: Any = None,
    neighbours: Any = None,
    claim: Claimable | None = None,
    samples: int = SAMPLES,
    confidence: float | None = None,
    seconds: float | None = None,
    seed: int = 0,
    name: str | None = None,
    raise_error: bool = True,
) -> LawReport:
    """Checks a mechanism against every law that accountants and learners rely on.

    Args:
        mechanism: has ``loss()``, and ``release(rows, token)`` or ``open(token)``.
        records: a block of example records (leading axis: users); default extreme records of a
            shipped domain.  A domain of your own that takes no plain vectors needs them.
        neighbours: a pair of blocks, or several, for the checks of the claim; default: examples
            that are furthest apart.
        claim: default ``mechanism.loss()``.
        samples: runs of the sampling check.
        confidence: of its bound; default as in `assert_private`.
        seconds: its time limit.
        seed: of noise and samples.
        name: for messages.
        raise_error: whether to raise, or only report.

    Returns:
        One result for each named check.

    Raises:
        PrivacyViolation: checks failed; the message names them all.
        CheckError: checks could not be done, or there is nothing to check.
    """
    options = locals()
    report = _broken_at_once(mechanism, name)
    if report is None:
        case = _case_of(**{k: v for k, v in options.items() if k != "raise_error"})
        report = perform_all(case.name, MECHANISM_CHECKS, case)
    note(report.summary())
    if raise_error:
        report.raise_if_bad()
    return report


def target_of_samples(mechanism: Any, **options: Any) -> SamplingTarget[Any]:
    """What the sampling check of `check_mechanism` runs, for the same options."""
    return sampled_subject(_case_of(mechanism, **options))


def mechanism_checks(mechanism: Any, **options: Any) -> list[Any]:
    """The checks of `check_mechanism` one by one, for ``pytest.mark.parametrize``.

    ::

        laplace_sum = NoisySum(Ball(1.0, 1, "l1"), LaplaceNoise(4.0))

        @pytest.mark.parametrize("check", mechanism_checks(laplace_sum))
        def test_laplace_sum(check):
            check()

    Args:
        mechanism: as for `check_mechanism`, and so are the options.
    """
    import pytest

    case = cache(partial(_case_of, mechanism, **options))
    return [pytest.param(_OneCheck(check, case), id=check.__name__) for check in MECHANISM_CHECKS]


@dataclass(frozen=True)
class _OneCheck:
    check: Callable[[Case], LawFinding]
    case: Callable[[], Case]

    @silenced
    def __call__(self) -> CheckResult:
        import pytest

        case = self.case()
        result = perform(self.check, case)
        report = LawReport(case.name, (result,))
        if result.verdict == "not applicable":
            pytest.skip(result.detail)
        if result.evidence is not None:
            note(report.summary())
        report.raise_if_bad()
        return result

    def __repr__(self) -> str:
        return self.check.__name__


def _stated(mechanism: Any) -> Loss:
    if not (hasattr(mechanism, "release") or hasattr(mechanism, "open")):
        raise CheckError(f"mechanism = {mechanism!r}: needs release(rows, token) or open(token)")
    if not hasattr(mechanism, "loss"):
        raise CheckError(f"mechanism = {mechanism!r}: needs loss(), its price")
    loss = mechanism.loss()
    if not isinstance(loss, Loss):
        raise CheckError(f"{type(mechanism).__name__}.loss() is {loss!r}: must be a Loss")
    return loss


def _broken_at_once(mechanism: Any, name: str | None) -> LawReport | None:
    loss = _stated(mechanism)

    def check_runs_on_null_records(_: None) -> LawFinding:
        if stated_spend(mechanism, loss.adjacency) is None:
            raise Broken("it releases without spending its token")
        return "spends"

    result = perform(check_runs_on_null_records, None)
    return None if result.verdict == "passed" else LawReport(name or name_of(mechanism), (result,))


def _case_of(
    mechanism: Any,
    *,
    records: Any = None,
    neighbours: Any = None,
    claim: Claimable | None = None,
    samples: int = SAMPLES,
    confidence: float | None = None,
    seconds: float | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Case:
    if (broken := _broken_at_once(mechanism, name)) is not None:
        broken.raise_if_bad()
    loss = _stated(mechanism)
    spend = stated_spend(mechanism, loss.adjacency)
    assert spend is not None
    domain = spend.domain
    records = own_copy(records)
    examples = example_records(domain, records, seed)
    if neighbours is not None:  # read once, and refused before anything else is found
        neighbours = list(sampling_target(mechanism, claim, neighbours, name=name).neighbours)
    # Extreme records come in opposite pairs; a block must not add up to the null record's zero.
    n = _most_users(mechanism, loss)
    order = np.concatenate([[0, 0], 2 * np.arange(n)])[:n] % length(examples)
    return Case(
        mechanism=mechanism,
        name=name or name_of(mechanism),
        loss=loss,
        domain=domain,
        spend=spend,
        block=record_at(examples, order),
        claim=claim,
        neighbours=neighbours,
        samples=samples,
        confidence=confidence,
        seconds=seconds,
        seed=seed,
        examples=examples,
        records=records,
    )


def _most_users(mechanism: Any, loss: Loss) -> int:
    if (fixed := fixed_users(mechanism)) is not None:
        return fixed
    stub = StubAccountant(0, loss.adjacency)
    for n in range(USERS, 1, -1):
        users = range(n)
        try:
            released_by(mechanism, Rows.null(users), stub.issue(users))
        except (HorizonError, UsersError):
            continue
        return n
    return 1
