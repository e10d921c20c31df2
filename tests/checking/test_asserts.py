"""`check_mechanism` and `assert_budget`: they fail where they must, and never pass in silence."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from budgets_found import budget_of
from claims_alone import assert_private
from numpy.random import Generator

from privlearn.accountants import CentralAccountant, JointAccountant, LocalAccountant
from privlearn.accountants.audit import certify
from privlearn.checking import check_mechanism
from privlearn.checking import session as check_session
from privlearn.checking.budgets import assert_budget
from privlearn.checking.exact.check import ExactResult
from privlearn.checking.laws.check import CONFIDENCE
from privlearn.checking.reports import Evidence
from privlearn.checking.targets import SamplingTarget
from privlearn.contract.protocols import Plan
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import (
    CheckError,
    CurrencyError,
    InsufficientBudgetError,
    PrivacyViolation,
)
from privlearn.ledger import Ledger
from privlearn.losses import ApproxLoss, GaussianLoss, LaplaceLoss, Loss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.mechanisms import NoisySum, PrefixSum
from privlearn.noise import GaussianNoise, NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball
from privlearn.values.adjacency import Adjacency, Trust

PAIR = ([0.0, 0.0], [1.0, 0.0])


def laplace_sum(data: list[float], rng: Generator) -> float:
    return float(sum(data) + rng.laplace(0.0, 1.0))


def half_noise(data: list[float], rng: Generator) -> float:
    return float(sum(data) + rng.laplace(0.0, 0.5))


@dataclass(frozen=True)
class ShyGaussian:
    """A sum whose stated loss is a little too small for its noise."""

    domain: Ball
    std: float
    understated: float = 1.0

    def _spend(self) -> Spend:
        honest = Spend("shy-gaussian", self.domain, GaussianNoise(self.std)).loss(
            Adjacency.REPLACE_ONE
        )
        mass = honest.gaussian()
        assert mass is not None
        own = GaussianLoss(float(mass) * self.understated)
        return Spend("shy-gaussian", self.domain, GaussianNoise(self.std), own_loss=own)

    def loss(self) -> Loss:
        return self._spend().loss(Adjacency.REPLACE_ONE)

    def release(self, rows: Rows[Array], token: Token[Any]) -> Released[Array]:
        with token.spend(self._spend()) as receipt:
            total = receipt.open(rows).sum(axis=0)
            return receipt.release(total + receipt.draw(total.shape))


# Samples -----------------------------------------------------------------------------------------


def test_an_honest_function_gives_a_bound_and_no_bare_pass() -> None:
    found = assert_private(laplace_sum, PureDP(1), neighbours=PAIR)
    assert isinstance(found, Evidence)
    assert 0.3 < found.bound <= found.claimed == 1.0
    assert found.confidence == CONFIDENCE
    assert found.seed == 0


def test_half_the_noise_is_caught_and_the_message_says_what_is_needed() -> None:
    with pytest.raises(PrivacyViolation) as caught:
        assert_private(half_noise, PureDP(1), neighbours=[PAIR], samples=4000, seed=3)
    message, found = str(caught.value), caught.value.evidence
    assert isinstance(found, ExactResult)
    report = check_mechanism(
        half_noise, PureDP(1), neighbours=[PAIR], samples=4000, seed=3, raise_error=False
    )
    found = report["samples"].evidence
    assert isinstance(found, Evidence)
    assert f"epsilon is at least {found.bound:.4g} with confidence 0.99" in message
    assert found.event in message
    assert f"frequency {found.p:.4g}" in message
    assert (
        "check_mechanism(half_noise, PureDP('1'), neighbours=neighbours, samples=4000, "
        "confidence=0.99, seed=3)" in message
    )
    assert "pair 0 of 1" in message


def test_the_line_that_is_printed_finds_the_same_again() -> None:
    given: dict[str, Any] = {"neighbours": PAIR, "samples": 2000, "seed": 5, "raise_error": False}
    found = [check_mechanism(half_noise, LaplaceLoss(1), **given)["samples"] for _ in range(2)]
    first, second = (finding.evidence for finding in found)
    assert isinstance(first, Evidence)
    assert isinstance(second, Evidence)
    assert (first.bound, first.event) == (second.bound, second.event)
    assert "loss_from_dict({'kind': 'laplace'" in found[0].detail


def test_a_mechanism_brings_its_claim_and_its_neighbours() -> None:
    found = check_mechanism(NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.5")))
    assert (found["exact"].verdict, found["samples"].verdict) == ("tight", "weak")
    assert "exact: tight; samples: weak, mu >= 0." in found.summary()
    assert found.verdict == "tight"


def test_a_price_a_hundredth_too_small_is_caught_by_the_exact_divergence() -> None:
    assert_private(ShyGaussian(Ball(1.0, 2), 3.0), samples=1000)
    with pytest.raises(PrivacyViolation, match="VIOLATED") as caught:
        assert_private(ShyGaussian(Ball(1.0, 2), 3.0, understated=0.99), samples=1000)
    assert isinstance(caught.value.evidence, ExactResult)
    shy, pair = ShyGaussian(Ball(1.0, 2), 3.0, 0.99), (np.full((1, 2), 5.0), np.full((1, 2), -5.0))
    with pytest.raises(PrivacyViolation):  # with neighbours that can be read only once
        assert_private(shy, neighbours=iter([pair]), samples=400)


def test_a_stream_is_sampled() -> None:
    stream = PrefixSum.calibrated(Ball(1.0, 1), ZCDP("0.5"), horizon=4)
    assert not assert_private(stream, samples=1000).violated
    pair = (np.ones((4, 1)), np.array([[-1.0], [1.0], [1.0], [1.0]]))
    with pytest.raises(PrivacyViolation):
        assert_private(stream, ZCDP("0.05"), neighbours=pair, samples=1000)


def test_a_subject_can_be_checked() -> None:
    subject = SamplingTarget("mine", lambda data, seed: lambda: data, PureDP(1), [(0, 1)])
    with pytest.raises(PrivacyViolation, match="mine: VIOLATED"):
        assert_private(subject, samples=400)


# Bad input: an error or an output, never a pass ------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [([0.0, 0.0], [1.0, 1.0]), ([0.0], [0.0, 1.0]), ([0.0], [0.0]), ([], [])],
)
def test_neighbours_that_are_no_neighbours_are_refused(
    first: list[float], second: list[float]
) -> None:
    with pytest.raises(CheckError, match="neighbours"):
        assert_private(
            laplace_sum, PureDP(1), neighbours=(first, second), adjacency=Adjacency.REPLACE_ONE
        )


def test_blocks_that_are_no_neighbours_are_refused() -> None:
    mechanism = NoisySum.calibrated(Ball(1.0, 2), ZCDP(1))
    with pytest.raises(CheckError, match=r"neighbours\[0\]"):
        assert_private(mechanism, neighbours=(np.zeros((3, 2)), np.ones((3, 2))))
    good = (np.zeros((1, 2)), np.ones((1, 2)))
    with pytest.raises(CheckError, match=r"neighbours\[1\]"):
        assert_private(mechanism, neighbours=[good, (np.zeros((1, 2)), np.zeros((1, 2)))])


@pytest.mark.parametrize("nobody", [[], iter([]), None, 7, "pairs", [([0.0], [1.0], [2.0])]])
def test_no_pairs_or_an_exhausted_generator_are_refused(nobody: Any) -> None:
    with pytest.raises(CheckError, match="neighbours"):
        assert_private(laplace_sum, PureDP(1), neighbours=nobody)


@pytest.mark.parametrize("claim", [1.0, "1", None, Adjacency.REPLACE_ONE])
def test_a_claim_that_is_none_is_refused(claim: Any) -> None:
    with pytest.raises(CheckError, match="claim"):
        assert_private(laplace_sum, claim, neighbours=PAIR)


def test_gaussian_noise_needs_a_delta() -> None:
    """Claimed without δ it is refuted: with a long look, no finite ε holds."""

    def gaussian(data: list[float], rng: Generator) -> float:
        return float(sum(data) + rng.normal(0.0, 1.0))

    with pytest.raises(PrivacyViolation):
        assert_private(gaussian, PureDP("0.9"), neighbours=PAIR)
    assert_private(gaussian, ApproxDP("3.5", "1e-2"), neighbours=PAIR)
    with pytest.raises(ValueError, match="delta"):
        ApproxDP(1, 0)


def test_a_mechanism_that_hangs_ends_as_an_error() -> None:
    def hangs(data: list[float], rng: Generator) -> float:
        while data[0]:
            time.sleep(0.01)
        return float(rng.laplace())

    begin = time.monotonic()
    with pytest.raises(CheckError, match="seconds"):
        assert_private(hangs, PureDP(1), neighbours=PAIR, seconds=0.3)
    assert time.monotonic() - begin < 10


def test_a_shape_that_depends_on_data_is_an_output() -> None:
    def grows(data: list[float], rng: Generator) -> list[float]:
        return [float(x) for x in rng.laplace(0, 1, size=2 + int(sum(data) > 0))]

    with pytest.raises(PrivacyViolation):
        assert_private(grows, PureDP(1), neighbours=PAIR, samples=400)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), None, "nothing", ZeroDivisionError()])
def test_odd_outputs_and_exceptions_do_not_fail_open(odd: Any) -> None:
    def leaks(data: list[float], rng: Generator) -> Any:
        if data[0] and rng.random() < 0.5:
            if isinstance(odd, Exception):
                raise odd
            return odd
        return float(rng.laplace())

    with pytest.raises(PrivacyViolation):
        assert_private(leaks, PureDP(1), neighbours=PAIR, samples=400)


def test_a_generator_that_runs_out_is_an_output() -> None:
    def from_list(data: list[float]) -> float:
        return next(values) if data[0] else 0.5

    values = iter([0.5] * 30)
    with pytest.raises(PrivacyViolation):
        assert_private(from_list, PureDP(1), neighbours=PAIR, samples=400)


def test_a_mechanism_that_always_fails_was_not_checked() -> None:
    def fails(data: list[float], rng: Generator) -> float:
        raise RuntimeError("no")

    with pytest.raises(CheckError, match="every run fails"):
        assert_private(fails, PureDP(1), neighbours=PAIR, samples=400)


@pytest.mark.parametrize(
    "setting", [{"samples": 0}, {"confidence": 0.0}, {"confidence": 1.0}, {"seconds": 0.0}]
)
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        assert_private(laplace_sum, PureDP(1), neighbours=PAIR, **setting)


# What the running test says --------------------------------------------------------------------


def test_the_session_names_confidence_and_time() -> None:
    session = check_session.CheckSession(confidence=0.9)
    entered = check_session.enter(session)
    try:
        assert assert_private(laplace_sum, PureDP(1), neighbours=PAIR).confidence == 0.9
        own = assert_private(laplace_sum, PureDP(1), neighbours=PAIR, confidence=0.8)
        assert own.confidence == 0.8
        session.deadline = time.monotonic() - 1
        with pytest.raises(CheckError, match="used up"):
            assert_private(laplace_sum, PureDP(1), neighbours=PAIR)
    finally:
        check_session.leave(entered)
    assert len(session.lines) == 2
    assert session.lines[0].startswith("laplace_sum: 2 of 2 checks passed; exact: WINDOW")
    assert "; samples: not refuted, epsilon >= 0." in session.lines[0]
    assert "at confidence 0.9" in session.lines[0]


def test_a_violation_leaves_a_line_too() -> None:
    session = check_session.CheckSession()
    entered = check_session.enter(session)
    try:
        with pytest.raises(PrivacyViolation):
            assert_private(half_noise, PureDP(1), neighbours=PAIR)
    finally:
        check_session.leave(entered)
    (line,) = session.lines
    assert "VIOLATED" in line


# Budgets ---------------------------------------------------------------------------------------

SUM = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.5"))


def release(accountant: Any, users: range, label: str = "sum") -> None:
    token = accountant.issue(SUM.loss(), users=users, label=label)
    SUM.release(Rows.seal(np.ones((len(users), 2)), users=users), token)


def twice(accountant: Any) -> None:
    release(accountant, range(10))
    release(accountant, range(5, 20), "second sum")


def test_a_budget_that_is_kept_is_reported() -> None:
    report = budget_of(assert_budget(twice, at_most=ZCDP(1), users=range(30)))
    assert report.users == range(5, 10)
    assert report.ratio == 1.0
    assert not report.exceeded
    assert [(item.label, item.mechanism, item.count) for item in report.items] == [
        ("sum", "gaussian-sum", 1),
        ("second sum", "gaussian-sum", 1),
    ]
    assert [item.share for item in report.items] == [0.5, 0.5]


def test_a_budget_that_is_not_kept_says_who_for_what_and_by_how_much() -> None:
    with pytest.raises(PrivacyViolation) as caught:
        assert_budget(twice, at_most=ZCDP("0.99"), users=range(30))
    message = str(caught.value)
    assert "users 5..9 used ZCDP('1') of ZCDP('0.99'), ZCDP('0.01') too much" in message
    assert "second sum: gaussian-sum, 1 time, 50.0%" in message


@pytest.mark.parametrize(
    ("fits", "too_small"),
    [
        (GaussianDP.from_mu_squared(2), GaussianDP.from_mu_squared("1.99")),
        (Renyi({2: 2, 4: 4}), Renyi({2: 2, 4: "3.9"})),
        (ApproxDP("7.3", "1e-6"), ApproxDP("7.2", "1e-6")),
    ],
)
def test_every_kind_of_limit(fits: Any, too_small: Any) -> None:
    assert budget_of(assert_budget(twice, at_most=fits, users=range(30))).ratio <= 1
    with pytest.raises(PrivacyViolation, match="too much"):
        assert_budget(twice, at_most=too_small, users=range(30))
    # ... and on an accountant that counts in something else
    book = CentralAccountant(ZCDP(100), users=range(30), noise=NoiseSource.simulation(0))
    twice(book)
    assert_budget(book, spent=fits)
    with pytest.raises(PrivacyViolation, match="too much"):
        assert_budget(book, spent=too_small)


def test_pure_budgets_count_exactly() -> None:
    def run(accountant: CentralAccountant[PureDP]) -> None:
        for _ in range(10):
            accountant.issue(LaplaceLoss("0.1"), users=range(3), label="count")

    assert budget_of(assert_budget(run, at_most=PureDP(1))).used == "PureDP('1')"
    with pytest.raises(PrivacyViolation):
        assert_budget(run, at_most=PureDP("0.999999999999"))


def test_the_whole_of_an_approximate_promise_fits_into_it() -> None:
    def all_of_it(accountant: CentralAccountant[ZCDP]) -> None:
        mechanism = NoisySum.calibrated(Ball(1.0, 2), accountant.budget)
        token = accountant.issue(mechanism.loss(), users=range(5), label="all")
        mechanism.release(Rows.seal(np.ones((5, 2)), users=range(5)), token)

    assert budget_of(assert_budget(all_of_it, at_most=ApproxDP(1, "1e-6"))).ratio <= 1


def test_tokens_that_are_never_spent_count_until_they_are_handed_back() -> None:
    def hoards(accountant: CentralAccountant[ZCDP]) -> None:
        accountant.issue(ZCDP("0.7"), users=range(5), label="hoard")
        accountant.issue(ZCDP("0.9"), users=range(5), label="returned").retire()

    report = budget_of(assert_budget(hoards, at_most=ZCDP(2)))
    assert report.used == "ZCDP('0.7')"
    assert [(item.label, item.mechanism) for item in report.items] == [("hoard", "token not spent")]
    with pytest.raises(PrivacyViolation, match=r"hoard: token not spent"):
        assert_budget(hoards, at_most=ZCDP("0.6"))


def test_a_committed_plan_counts_whether_spent_or_not() -> None:
    def plans(accountant: CentralAccountant[ZCDP]) -> None:
        accountant.commit([Plan("rounds", SUM.loss(), range(10), count=4)])

    with pytest.raises(PrivacyViolation, match=r"rounds: planned, 4 times, 100.0%"):
        assert_budget(plans, at_most=ZCDP("1.9"), users=range(10))
    assert budget_of(assert_budget(plans, at_most=ZCDP(2), users=range(10))).ratio == 1


def test_what_was_delegated_counts_until_it_is_given_back() -> None:
    def delegates(accountant: CentralAccountant[ZCDP]) -> None:
        part = accountant.delegate(ZCDP("0.8"), users=range(5), label="component")
        part.issue(ZCDP("0.1"), users=range(5), label="inner")

    def gives_back(accountant: CentralAccountant[ZCDP]) -> None:
        part = accountant.delegate(ZCDP("0.8"), users=range(5), label="component")
        part.issue(ZCDP("0.1"), users=range(5), label="inner")
        part.close()

    assert budget_of(assert_budget(delegates, at_most=ZCDP(1))).used == "ZCDP('0.8')"
    assert budget_of(assert_budget(gives_back, at_most=ZCDP(1))).used == "ZCDP('0.1')"


def test_attested_messages_count() -> None:
    server = LocalAccountant(
        PureDP(5), users=range(8), noise=NoiseSource.simulation(0), attested=True
    )
    server.attest(
        LaplaceLoss("0.5"),
        users=range(8),
        by="phones",
        mechanism="local",
        label="m",
        most_messages=3,
        count=24,
    )
    with pytest.raises(PrivacyViolation, match="local, attested, 3 times"):
        assert_budget(server, spent=PureDP(1))
    with pytest.raises(
        PrivacyViolation, match=r"guarantee is PureDP\('5'\) .*; spent: PureDP\('1.5"
    ):
        assert_budget(server, at_most=PureDP(1))


def test_losses_that_may_fail_need_an_approximate_limit() -> None:
    book: CentralAccountant[ZCDP] = CentralAccountant(
        ApproxDP(5, "1e-5"), users=range(5), noise=NoiseSource.simulation(0), failure="1e-6"
    )
    book.issue(ApproxLoss(1, "1e-7"), users=range(5), label="fails")
    assert budget_of(assert_budget(book, at_most=ApproxDP(5, "1e-5"))).ratio < 1
    with pytest.raises(CheckError, match="may fail"):
        assert_budget(book, at_most=ZCDP(10))


def test_a_limit_in_another_currency_that_cannot_hold_it_is_an_error() -> None:
    book = CentralAccountant(ZCDP(9), users=range(20), noise=NoiseSource.simulation(0))
    release(book, range(5))
    with pytest.raises(CheckError, match="cannot hold"):
        assert_budget(book, at_most=PureDP(50))
    with pytest.raises(CurrencyError):
        assert_budget(twice, at_most=PureDP(50), users=range(30))


def test_only_some_users_of_an_accountant() -> None:
    book = CentralAccountant(ZCDP(9), users=range(30), noise=NoiseSource.simulation(0))
    twice(book)
    assert budget_of(assert_budget(book, spent=ZCDP("0.5"), users=range(5))).users == range(5)
    with pytest.raises(PrivacyViolation, match=r"users 5\.\.5 spent .*; guarantee: ZCDP\('9'\)"):
        assert_budget(book, spent=ZCDP("0.5"), users=range(6))
    with pytest.raises(CheckError, match="users"):
        assert_budget(book, at_most=ZCDP("0.5"), users=range(90, 95))


def test_a_ledger_and_its_path(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.create(path) as ledger:
        twice(
            CentralAccountant(
                ZCDP(9), users=range(30), noise=NoiseSource.simulation(0), ledger=ledger
            )
        )
        assert budget_of(assert_budget(ledger, spent=ZCDP(1))).ratio == 1
    for where in (path, str(path)):
        assert budget_of(assert_budget(where, at_most=ZCDP(9), spent=ZCDP(1))).ratio == 1
        with pytest.raises(PrivacyViolation):
            assert_budget(where, at_most=ZCDP("8.9"))
        with pytest.raises(PrivacyViolation):
            assert_budget(where, at_most=ZCDP(9), spent=ZCDP("0.9"))


def test_a_promise_counts_and_not_what_was_spent_of_it(tmp_path: Path) -> None:
    """ε = 3 is no 1, whatever a run took of it, and whoever opened the account."""

    def promises_three(given: Any) -> None:
        ledger = Ledger.create(tmp_path / f"{len(list(tmp_path.iterdir()))}.db")
        book: Any = CentralAccountant(ApproxDP(3, "1e-5"), users=range(30), ledger=ledger)
        release_little(book)

    def release_little(book: Any) -> None:
        little = NoisySum.calibrated(Ball(1.0, 2), ZCDP("0.01"))
        token = book.issue(little.loss(), users=range(30), label="little")
        little.release(Rows.seal(np.ones((30, 2)), users=range(30)), token)

    promises_three(None)
    (path,) = tmp_path.glob("*.db")
    message = r"guarantee is epsilon = 3 at .*; spent: epsilon = 0\.49.* at "
    for run in (promises_three, path):
        assert budget_of(assert_budget(run, at_most=ApproxDP(3, "1e-5"))).ratio <= 1
        assert budget_of(assert_budget(run, spent=ApproxDP(1, "1e-5"))).ratio < 1
        with pytest.raises(PrivacyViolation, match=message):
            assert_budget(run, at_most=ApproxDP(1, "1e-5"))


def test_the_guarantee_is_that_of_the_certificate() -> None:
    """Of one with a plan and of one without, a zero-out one that is priced for replace-one."""
    ledger = Ledger.memory()
    first = CentralAccountant(ZCDP(5), users=range(9), ledger=ledger)
    first.commit([Plan("sum", SUM.loss(), range(3), count=2)])
    zero: Any = {"adjacency": Adjacency.ZERO_OUT, "shared": True}
    JointAccountant(ZCDP("0.25"), users=range(9), ledger=ledger, **zero)
    certificate = certify(ledger.records)
    assert certificate.rho == 2
    assert budget_of(assert_budget(ledger, at_most=ZCDP(2))).ratio == 1
    with pytest.raises(PrivacyViolation, match=r"ZCDP\('2'\) of ZCDP\('1.99'\).*; spent: nothing"):
        assert_budget(ledger, at_most=ZCDP("1.99"))


def test_a_ledger_that_was_changed_is_an_error(tmp_path: Path) -> None:
    ledger = Ledger.memory()
    twice(
        CentralAccountant(ZCDP(9), users=range(30), noise=NoiseSource.simulation(0), ledger=ledger)
    )
    export = tmp_path / "ledger.jsonl"
    ledger.export(export)
    text = export.read_text("utf-8")
    assert '"gaussian-sum"' in text
    export.write_text(text.replace('"gaussian-sum"', '"gaussian-mean"', 1), "utf-8")
    with pytest.raises(CheckError, match="does not check"):
        assert_budget(export, at_most=ZCDP(9))


@pytest.mark.parametrize("population", ["people", None])
def test_several_accountants_of_one_ledger_add_up(population: str | None) -> None:
    ledger = Ledger.memory()
    for shared in (False, True):
        noise = NoiseSource.simulation(int(shared))
        book = CentralAccountant(
            ZCDP(1),
            users=range(10),
            noise=noise,
            ledger=ledger,
            shared=shared,
            population=population,
        )
        release(book, range(10))
    assert budget_of(assert_budget(ledger, at_most=ZCDP(2), spent=ZCDP(1))).ratio == pytest.approx(
        1
    )
    limits: list[dict[str, Any]] = [{"at_most": ZCDP("1.9")}, {"spent": ZCDP("0.9")}]
    for limit in limits:
        for users in (None, range(3)):
            with pytest.raises(PrivacyViolation, match="too much"):
                assert_budget(ledger, **limit, users=users)
    assert budget_of(assert_budget(ledger, spent=ZCDP(1), users=range(3))).ratio == 1
    assert budget_of(assert_budget(book, at_most=ZCDP(1))).ratio == 1, "one accountant by itself"


def test_a_run_that_spends_nothing_tests_nothing() -> None:
    def idle(accountant: CentralAccountant[ZCDP]) -> None:
        accountant.issue(ZCDP(1), users=range(3), label="back").retire()

    with pytest.raises(CheckError, match="may_spend_nothing=True"):
        assert_budget(idle, at_most=ZCDP(1))
    assert budget_of(assert_budget(idle, at_most=ZCDP(1), may_spend_nothing=True)).used == "nothing"


@pytest.mark.parametrize("limit", [1.0, "1", None, GaussianLoss(1)])
def test_a_limit_that_is_no_budget_is_refused(limit: Any) -> None:
    with pytest.raises(CheckError, match="at_most"):
        assert_budget(twice, at_most=limit)
    with pytest.raises(CheckError, match=r"spent = 1\.0"):
        assert_budget(twice, at_most=ZCDP(1), spent=1.0)  # type: ignore[arg-type]


def test_a_run_that_is_none_is_refused() -> None:
    with pytest.raises(CheckError, match="run"):
        assert_budget(3, at_most=ZCDP(1))  # type: ignore[arg-type]


def test_errors_of_the_run_are_not_hidden() -> None:
    def fails(accountant: CentralAccountant[ZCDP]) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        assert_budget(fails, at_most=ZCDP(1))


def test_a_run_may_live_with_a_refusal() -> None:
    def careful(accountant: CentralAccountant[ZCDP]) -> None:
        release(accountant, range(5))
        with pytest.raises(InsufficientBudgetError):
            release(accountant, range(5))

    assert budget_of(assert_budget(careful, at_most=ZCDP("0.6"))).ratio < 1


def test_a_run_that_asks_for_too_much_once_is_not_excused() -> None:
    asked = []

    def fickle(accountant: CentralAccountant[ZCDP]) -> None:
        asked.append(1)
        accountant.issue(ZCDP(2 if len(asked) == 1 else "0.1"), users=range(5), label="fickle")

    with pytest.raises(PrivacyViolation, match="with a cap of"):
        assert_budget(fickle, at_most=ZCDP(1))


def test_a_run_without_end_is_a_violation() -> None:
    def endless(accountant: CentralAccountant[ZCDP]) -> None:
        while True:
            accountant.issue(accountant.budget, users=range(5), label="more")

    with pytest.raises(PrivacyViolation, match="more than 1000 times"):
        assert_budget(endless, at_most=ZCDP(1))


def test_a_joint_accountant_and_other_relations() -> None:
    seen: list[Any] = []

    def run(book: Any) -> None:
        seen.append(book)
        book.issue(ZCDP(1), users=range(1), label="x")

    for trust in ("joint", Trust.LOCAL):
        assert_budget(
            run,
            at_most=ZCDP(1),
            users=range(7),
            trust=trust,
            adjacency=Adjacency.ZERO_OUT,
        )
    joint, local = seen
    assert isinstance(joint, JointAccountant)
    assert isinstance(local, LocalAccountant)
    assert joint.adjacency is local.adjacency is Adjacency.ZERO_OUT
    assert joint.users == range(7)


def test_the_tutorial_runs_as_shown() -> None:
    text = (Path(__file__).parents[2] / "docs" / "checking.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 7
    names: dict[str, Any] = {"__name__": "tutorial"}
    for block in blocks:
        exec(compile(block, "docs/checking.md", "exec", dont_inherit=True), names)
    for test in ("test_noisy_total", "test_the_budget"):  # the laws are checked further below
        names[test]()
