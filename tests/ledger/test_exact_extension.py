"""Exact noise in ledgers: what spends say of it, what is refused, and ledgers from before it."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, LocalAccountant, audit
from privlearn.accountants.audit import certify
from privlearn.accountants.certificate import Certificate
from privlearn.accountants.exact_spends import KNOWN_TABLES
from privlearn.contract.spends import Spend
from privlearn.errors import BudgetError
from privlearn.ledger import Ledger, Record, chain_problems, read_records, write_export
from privlearn.ledger.chain import chained
from privlearn.ledger.entries import EXACT, SpendEntry, parse_entry
from privlearn.losses import PureLoss
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import BallReport, NoisySum
from privlearn.noise import CapNoise, GaussianNoise, LaplaceNoise, NoiseSource
from privlearn.noise.exact.tables import SAMPLER, SHA256
from privlearn.reporting.certificates import weaknesses
from privlearn.rows import Rows
from privlearn.rows.domains import (
    Ball,
    Box,
    Categories,
    Domain,
    GradientHessian,
    OneOf,
    PSDTrace,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid

ROOT = Path(__file__).resolve().parents[2]
FORMER = Path(__file__).parent / "format2"
USERS = range(8)
SUM = NoisySum(Ball(1.0, 2), GaussianNoise(20.0))
OWN = Spend("own", Ball(1.0, 2), GaussianNoise(20.0))
REPORT = Spend("report", Ball(1.0, 2), GaussianNoise(20.0), exact=True)


def sealed() -> Rows[Any]:
    return Rows.seal(np.ones((8, 2)), users=USERS)


def run_own(book: CentralAccountant[ZCDP], spend: Spend) -> None:
    token = book.issue(spend.loss(book.adjacency), users=USERS, label="own")
    with token.spend(spend) as receipt:
        noise = receipt.draw_variates(2).floors * 2.0**-40 if spend.exact else receipt.draw((2,))
        receipt.release(receipt.open(sealed()).sum(axis=0) + noise)


def recorded(*spends: Spend, noise: NoiseSource | None = None, sums: int = 1) -> list[Record]:
    """A closed ledger of so many sums, and of spends in doubles."""
    ledger = Ledger.memory()
    with CentralAccountant(
        ZCDP(1), users=USERS, ledger=ledger, noise=noise or NoiseSource.secure()
    ) as book:
        for _ in range(sums):
            SUM.release(sealed(), book.issue(SUM.loss(), users=USERS, label="sum"))
        for spend in spends:
            run_own(book, spend)
    return ledger.records


RECORDS = recorded()
BODIES = [record.body for record in RECORDS]
AT = next(record.seq for record in RECORDS if record.body["entry"] == "spend")


def verifier() -> Any:
    spec = importlib.util.spec_from_file_location("verify", ROOT / "docs" / "verify_ledger.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rests_on(certificate: Certificate) -> str:
    return " ".join(certificate.guarantees[0].assumptions)


# What is written ----------------------------------------------------------------------------------


def test_a_spend_on_a_grid_says_so_beside_its_body() -> None:
    assert BODIES[0]["features"] == {EXACT: "optional"}
    assert [record.seq for record in RECORDS if record.ext] == [AT]
    assert RECORDS[AT].ext == {
        EXACT: {
            "grid": {"scale": "0x1.4000000000000p+4", "bits": 40},
            "bound": {"largest": str((2**42 - 1) * 2**40 // (2**42 * 20))},
            "sampler": "inversion/1",
            "tables": SHA256,
        }
    }
    assert "exact" not in BODIES[AT]
    found = parse_entry(BODIES[AT], RECORDS[AT].ext)
    assert isinstance(found, SpendEntry)
    assert (found.body(), found.ext()) == (BODIES[AT], RECORDS[AT].ext)


def test_the_tables_of_this_version_are_among_the_known_ones() -> None:
    """Whoever changes tables after a release adds the new pair and keeps the old ones."""
    assert KNOWN_TABLES[SHA256] == SAMPLER
    released = [("2fc0072e651c759709a40a61a82a1e721e9f9be6b2c99b3b8ca57043735e4253", "inversion/1")]
    assert [*KNOWN_TABLES.items()] == released
    page = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    for tables, sampler in KNOWN_TABLES.items():
        assert f"`{sampler}` with `{tables}`" in page


@pytest.mark.parametrize(
    "domain",
    [
        Box(-3.0, 5.0, 4),
        Ball(2.0, 3, norm="l1"),
        PSDTrace(2.0, 3),
        OneOf(Ball(1.0, 2), 4),
        OneOf(GradientHessian(2, 2.0), 4),
        Categories(5),
        Ball(1000.0, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("noise", [GaussianNoise(0.1), LaplaceNoise(7.3)], ids=str)
def test_every_domain_is_derived_again(domain: Domain[Any], noise: Any, tmp_path: Path) -> None:
    """Also bounds beyond 2^53 steps, which JSON numbers do not hold."""
    path = tmp_path / "ledger.db"
    mechanism = NoisySum(domain, noise)
    spend = mechanism._spend
    with CentralAccountant(ZCDP(10**15), users=USERS, ledger=Ledger.create(path)) as book:
        token = book.issue(mechanism.loss(), users=USERS, label="sum")
        with token.spend(spend):
            pass
    found = audit(path)
    assert found.problems == []
    assert spend.grid is not None
    bound = domain.integer_bound(spend.grid)  # type: ignore[attr-defined]
    (ext,) = [record.ext for record in Ledger.open(path).records if record.ext]
    assert ext[EXACT]["bound"] == {name: str(number) for name, number in bound.items()}
    assert verifier().verify(path)["problems"] == []


@pytest.mark.parametrize("relation", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize("arms", [1, 4])
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("weight", [0.7, 1.31, 2.0])
def test_the_verifier_asks_as_much_for_gradients_and_hessians(
    weight: float, dim: int, arms: int, relation: Adjacency
) -> None:
    """A ledger that states less for its noise is refused; of one feature two arms can be worse."""
    pair, noise = GradientHessian(dim, weight), GaussianNoise(3.0)
    domain: Domain[Any] = pair if arms == 1 else OneOf(pair, arms)
    module = verifier()
    account = object.__new__(module.Account)
    account.body = {"adjacency": relation.value}
    loss = NoisySum(domain, noise).spend().loss(relation)
    body: dict[str, Any] = {"gain": 1, "loss": loss.to_dict()}
    least = account.earned("gaussian", noise.to_dict(), domain.to_dict(), body)
    assert float(least) == pytest.approx((domain.sensitivity(relation) / 3.0) ** 2 / 2, rel=1e-12)


# What is refused ----------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], Any]


def _set(*path: str, value: Any) -> Change:
    def change(form: dict[str, Any]) -> None:
        for step in path[:-1]:
            form = form[step]
        form[path[-1]] = value

    return change


def _less(name: str) -> Change:
    return lambda form: form.pop(name)


LARGEST = RECORDS[AT].ext[EXACT]["bound"]["largest"]
# What is wrong, how an audit says so, and whether the verifier, which has no tables, can see it.
WRONG: dict[str, tuple[Change, str, bool]] = {
    "another scale": (
        _set("grid", "scale", value=(10.0).hex()),
        "grid of scale 10.0: that of the noise is 20.0",
        True,
    ),
    "a scale in another form": (_set("grid", "scale", value="0x1.4p+4"), "float.hex", True),
    "a scale that is a number": (_set("grid", "scale", value=20.0), "must be text", True),
    "a coarser grid, its bound kept": (_set("grid", "bits", value=39), "bound", True),
    "too few bits": (_set("grid", "bits", value=29), "must lie in 30..40", True),
    "too many bits": (_set("grid", "bits", value=41), "must lie in 30..40", True),
    "bits as a real number": (_set("grid", "bits", value=40.5), "must be an integer", True),
    "bits as a boolean": (_set("grid", "bits", value=True), "must be an integer", True),
    "more in the grid": (_set("grid", "step", value="1"), "has no 'step'", True),
    "another bound": (_set("bound", "largest", value=str(int(LARGEST) - 1)), "bound", False),
    "a bound beyond the ball": (_set("bound", "largest", value=LARGEST + "0"), "bound", True),
    "a bound as a number": (_set("bound", "largest", value=int(LARGEST)), "bound", True),
    "a bound with a point": (_set("bound", "largest", value=LARGEST + ".0"), "bound", True),
    "a bound as a fraction": (_set("bound", "largest", value=LARGEST + "/1"), "bound", True),
    "a bound with a zero": (_set("bound", "largest", value="0" + LARGEST), "bound", True),
    "a bound with a sign": (_set("bound", "largest", value="+" + LARGEST), "bound", True),
    "more bounds": (_set("bound", "low", value="0"), "bound", False),
    "no bound": (_less("bound"), "lacks 'bound'", True),
    "no grid": (_less("grid"), "lacks 'grid'", True),
    "neither": (lambda form: (form.pop("bound"), form.pop("grid")), "a sum needs a grid", True),
    "unknown tables": (_set("tables", value="0" * 64), "no released version had them", False),
    "tables in another form": (_set("tables", value="x"), "no released version had them", True),
    "another sampler": (_set("sampler", value="guess/1"), "no released version had them", False),
    "no sampler": (_less("sampler"), "lacks 'sampler'", True),
    "more": (_set("n_max", value=1000), "has no 'n_max'", True),
}


def with_form(change: Change) -> list[Record]:
    form = copy.deepcopy(RECORDS[AT].ext[EXACT])
    change(form)
    return chained(BODIES, {AT: {EXACT: form}})


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_follow_from_domain_and_noise_is_a_problem(name: str, tmp_path: Path) -> None:
    change, said, seen = WRONG[name]
    records = with_form(change)
    (problem,) = certify(records).problems
    assert problem.startswith(f"entry {AT}: gaussian-sum: exact: ")
    assert said in problem
    write_export(tmp_path / "wrong.jsonl", records)
    assert (verifier().verify(tmp_path / "wrong.jsonl")["problems"] != []) is seen


def test_the_untouched_ledger_has_none(tmp_path: Path) -> None:
    records = with_form(lambda form: None)
    assert certify(records).problems == []
    write_export(tmp_path / "right.jsonl", records)
    told = verifier().verify(tmp_path / "right.jsonl")
    assert told["problems"] == told["optional_extensions"] == []
    assert "tables, samplers, most bounds of exact noise" in told["unchecked"]


def test_a_coarser_grid_is_exact_as_well_and_a_finer_one_could_overflow() -> None:
    noise, domain = GaussianNoise(1.0), Ball(2.0**22, 1)

    def spent(bits: int) -> list[str]:
        spend = Spend("sum", domain, noise, arithmetic="sum", grid=Grid(1.0, bits))
        book: CentralAccountant[ZCDP] = CentralAccountant(
            ZCDP(10**16), users=USERS, ledger=Ledger.memory(), noise=NoiseSource.secure()
        )
        token = book.issue(spend.loss(book.adjacency), users=USERS, label="sum")
        token.spend(spend)
        return book.certificate().problems

    assert Grid.fitting(1.0, 2.0**22).bits == 38
    assert spent(38) == spent(31) == []
    with pytest.raises(BudgetError, match="a grid of 39 bits: contributions fit on 38 at most"):
        spent(39)


CAP = {"family": "cap", "dim": 2, "threshold": 0.5, "probability": 0.5, "surface": "sphere"}


@pytest.mark.parametrize(
    ("noise", "largest", "good"),
    [
        (CAP, "1", False),  # has no unit
        ({"family": "category", "categories": 5, "probability": 0.5}, "1", False),
        ({"family": "laplace", "scale": 10.0}, "1", False),
        ({"family": "generalized-gaussian", "std": 10.0, "exponent": 2.5}, "1", False),
        # others' noise: their grid is their code's word, but for its form
        ({"family": "mine", "std": 10.0}, "9" * 18, True),
        ({"family": "mine"}, "9" * 18, True),
        ({"family": "mine"}, "9" * 19, False),
        ({"family": "mine"}, "1.0", False),
    ],
    ids=str,
)
def test_a_grid_beside_other_noise_is_judged_alike(
    noise: dict[str, Any], largest: str, good: bool, tmp_path: Path
) -> None:
    bodies = copy.deepcopy(BODIES)
    bodies[AT] |= {"noise": noise, "derived": False, "mechanism": "own"}
    form = copy.deepcopy(RECORDS[AT].ext[EXACT])
    form["bound"]["largest"] = largest
    records = chained(bodies, {AT: {EXACT: form}})
    assert all("exact: " in problem for problem in certify(records).problems)
    assert (certify(records).problems == []) is good
    write_export(tmp_path / "ledger.jsonl", records)
    assert (verifier().verify(tmp_path / "ledger.jsonl")["problems"] == []) is good


@pytest.mark.parametrize("form", [None, [], "x", 5])
def test_data_that_are_no_object_are_a_problem(form: Any, tmp_path: Path) -> None:
    records = chained(BODIES, {AT: {EXACT: form}})
    assert any(f"entry {AT}: " in problem for problem in certify(records).problems)
    write_export(tmp_path / "wrong.jsonl", records)
    assert verifier().verify(tmp_path / "wrong.jsonl")["problems"]


def test_only_spends_have_them_and_only_beside_the_body(tmp_path: Path) -> None:
    ext = RECORDS[AT].ext
    inside = [body | {"exact": ext[EXACT]} if i == AT else body for i, body in enumerate(BODIES)]
    for records, said in (
        (chained(BODIES, {AT: ext, AT + 1: ext}), "only entries 'spend' have them"),
        (chained(inside), "the body has none"),
    ):
        assert any(said in problem for problem in certify(records).problems)
        write_export(tmp_path / "wrong.jsonl", records)
        assert verifier().verify(tmp_path / "wrong.jsonl")["problems"]


def test_they_must_be_declared() -> None:
    bare = [{**BODIES[0], "features": {}}, *BODIES[1:]]
    records = chained(bare, {AT: RECORDS[AT].ext})
    assert any("did not declare" in problem for problem in certify(records).problems)
    # a cut that takes away the opening entry is one fault, not one more for every spend
    assert len(chain_problems(RECORDS[1:])) == 1


def test_who_knows_only_extensions_by_name_reads_all_else() -> None:
    """As an audit that does not know this one: nothing in the bodies is new to it."""
    found = certify(chained(BODIES, {AT: RECORDS[AT].ext}))
    assert found.problems == []
    assert set(BODIES[AT]) == set(json.loads((FORMER / "spend-fields.json").read_text()))


# What certificates say ----------------------------------------------------------------------------


def test_a_ledger_of_exact_spends_says_exact_and_names_what_that_rests_on() -> None:
    found = certify(RECORDS)
    assert found.noise == "secure keystream, exact"
    assert (found.trusted_code, weaknesses(found)) == (
        [],
        ["The ledger lived in memory: after a restart nothing knows what was spent."],
    )
    text = rests_on(found)
    assert "Exact: what is released has the law that is priced" in text
    for part in ("AES-256 in counter mode", "IEEE 754", "64-bit integers", "Arb", "Running time"):
        assert part in text
    assert "double precision" not in text
    assert "floating point" not in text


def test_mechanisms_that_compute_in_floating_point_are_named() -> None:
    found = certify(recorded(OWN))
    assert found.noise == "secure keystream, exact and in floating point"
    line = "Not exact: clipping, sums and noise of the following are computed in floating point"
    assert [text for text in weaknesses(found) if text.startswith(line)] == [
        f"{line}, and their rounding is not priced: own."
    ]
    assert any(note.startswith("own: computes in floating point") for note in found.trusted_code)
    assert "Exact, but for what is named as not exact:" in rests_on(found)
    alone = certify(recorded(OWN, sums=0))
    assert alone.noise == "secure keystream, in floating point"
    assert "Exact" not in rests_on(alone)
    assert "IEEE 754" not in rests_on(alone)


def test_an_exact_mechanism_without_a_grid_is_its_own_word() -> None:
    records = recorded(REPORT, sums=0)
    found = certify(records)
    assert (found.problems, found.noise) == ([], "secure keystream, exact")
    assert [record.ext for record in records if record.ext] == [
        {EXACT: {"sampler": SAMPLER, "tables": SHA256}}
    ]
    assert any(note.startswith("report: that it draws exactly") for note in found.trusted_code)
    for wrong in ({"arithmetic": "sum"}, {"grid": Grid(20.0, 40)}):
        with pytest.raises(ValueError, match="exact = True: is for a mechanism"):
            Spend("report", Ball(1.0, 2), GaussianNoise(20.0), exact=True, **wrong)


def test_of_an_open_ledger_exactness_is_said_of_what_stands_there() -> None:
    later = "What is spent later may be computed in floating point"
    assert later in rests_on(certify(RECORDS[:-1]))
    assert later in rests_on(certify(RECORDS[:1]))
    assert later not in rests_on(certify(RECORDS))


def test_a_simulation_does_not_speak_of_aes() -> None:
    found = certify(recorded(noise=NoiseSource.simulation(3)))
    assert found.noise == "simulation, seed 3, exact"
    assert "AES" not in rests_on(found)


def test_attested_messages_are_exact_by_their_clients_word() -> None:
    book = LocalAccountant(
        PureDP(2),
        users=USERS,
        ledger=Ledger.memory(),
        attested=True,
        noise=NoiseSource.secure(),
    )
    book.attest(
        PureLoss("0.5"), users=USERS, most_messages=1, count=8, by="app", mechanism="rr", unseen=[]
    )
    text = rests_on(book.certificate())
    assert "Whether messages are drawn exactly" in text
    assert "Exact:" not in text


# Ledgers from before ------------------------------------------------------------------------------

OLD_NAMES = ["double-precision-closed", "double-precision-open"]
OLD_LINE = "Clipping, sums and noise are computed in double precision; their rounding is not priced"


@pytest.mark.parametrize("name", OLD_NAMES)
def test_ledgers_from_before_exact_noise_audit_as_they_did(name: str) -> None:
    """Beside each stands the certificate of the code that wrote it (commit 4c82ea3)."""
    then = json.loads((FORMER / f"{name}.json").read_text(encoding="utf-8"))
    assert json.loads(audit(FORMER / f"{name}.db").model_dump_json()) == then
    assert OLD_LINE in json.dumps(then)


def test_the_golden_ledger_from_before_keeps_its_root() -> None:
    path = FORMER / "golden-double-precision.jsonl"
    found = audit(path)
    assert found.problems == []
    assert found.root == "35d54dfe1aa2b8381cca10bd185f8b2a912b1ebc79f5df51516275772372df79"
    assert verifier().verify(path)["problems"] == []


def old_ledger(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    path.write_bytes((FORMER / "double-precision-open.db").read_bytes())
    return path


def test_a_ledger_from_before_is_resumed_for_its_rest_under_its_old_line(tmp_path: Path) -> None:
    path = old_ledger(tmp_path)
    head = read_records(path)[-1].hash  # it kept none beside it
    book: CentralAccountant[ZCDP] = CentralAccountant.resume(path, head=head)
    assert book.left("sum", USERS) == 1
    SUM.release(sealed(), book.issue(SUM.loss(), users=USERS, label="sum"))
    book.close()
    found = audit(path)
    assert (found.problems, found.spends, found.closed) == ([], 2, True)
    assert found.noise == "secure keystream, floating-point sampling"
    assert OLD_LINE in rests_on(found)
    assert "Exact" not in rests_on(found)
    assert not any(record.ext for record in Ledger.open(path).records)


def test_a_ledger_of_exact_spends_is_resumed_with_exact_spends(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger.create(path)
    CentralAccountant(ZCDP(1), users=USERS, ledger=ledger)
    ledger.close()
    book: CentralAccountant[ZCDP] = CentralAccountant.resume(path)
    with book:
        SUM.release(sealed(), book.issue(SUM.loss(), users=USERS, label="sum"))
    found = audit(path)
    assert (found.problems, found.noise) == ([], "secure keystream, exact")


def test_beside_an_accountant_from_before_a_new_one_is_exact(tmp_path: Path) -> None:
    path = old_ledger(tmp_path)
    ledger = Ledger.open(path, head=read_records(path)[-1].hash)
    with CentralAccountant(ZCDP(1), users=USERS, ledger=ledger, shared=True) as book:
        SUM.release(sealed(), book.issue(SUM.loss(), users=USERS, label="sum"))
    found = certify(ledger.records)
    assert found.problems == []
    lines = [" ".join(guarantee.assumptions) for guarantee in found.guarantees]
    assert [OLD_LINE in text for text in lines] == [True, False]
    assert ["Exact: " in text for text in lines] == [False, True]
    (both,) = found.sums
    assert OLD_LINE in " ".join(both.assumptions)


# What a stranger's ledger may state ---------------------------------------------------------------


def with_spend(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Certificate:
    bodies, exact = copy.deepcopy(BODIES), copy.deepcopy(dict(RECORDS[AT].ext)[EXACT])
    change(bodies[AT], exact)
    return certify(chained(bodies, {AT: {EXACT: exact}}))


@pytest.mark.parametrize("family", ["noise", "domain"])
@pytest.mark.parametrize(
    "bound", [None, {}, {"largest": str(2**61)}, {"largest": "9" * 300}, {"largest": 5}]
)
def test_integers_of_others_have_a_bound_that_leaves_room(family: str, bound: Any) -> None:
    def change(body: dict[str, Any], exact: dict[str, Any]) -> None:
        body[family] = {"family" if family == "noise" else "kind": "theirs"}
        body["derived"] = False
        exact.pop("bound")
        if bound is not None:
            exact["bound"] = bound

    found = with_spend(change)
    assert any("bound" in problem or "largest" in problem for problem in found.problems)


def test_the_length_of_a_domain_takes_no_memory() -> None:
    def change(body: dict[str, Any], exact: dict[str, Any]) -> None:
        body["domain"]["size"] = 2**50

    assert not with_spend(change).problems


def test_a_certificate_claims_no_grid_where_there_is_none() -> None:
    report, ledger = BallReport.best(3, 1.0, "1"), Ledger.memory()
    with LocalAccountant(PureDP(5), users=USERS, ledger=ledger) as book:
        rows = Rows.seal(np.zeros((8, 3)), users=USERS)
        report.release(rows, book.issue(report.loss(), users=USERS, label="r"))
    said = rests_on(certify(ledger.records))
    assert "reports are drawn by comparisons alone" in said
    assert "where it states a grid" in said


def test_a_cap_of_many_dimensions_is_refused_at_once() -> None:
    def change(body: dict[str, Any], exact: dict[str, Any]) -> None:
        body["noise"] = {"family": "cap", "dim": 2**50, "threshold": 1e-9}
        body["noise"] |= {"probability": 0.6, "surface": "sphere"}
        body["arithmetic"] = "each"
        del exact["grid"], exact["bound"]

    (problem, *_) = with_spend(change).problems
    assert "must be at most 1048576" in problem


def test_what_is_said_of_one_noise_is_not_taken_for_another_of_the_same_mechanism() -> None:
    """A mechanism of somebody's own may call itself what it likes."""
    cap = {"family": "cap", "dim": 2, "threshold": 0, "probability": 0.6, "surface": "sphere"}
    laplace = {"family": "laplace", "scale": 10}

    def notes(*noises: dict[str, Any]) -> set[str]:
        bodies = [copy.deepcopy(BODIES[0])]
        bodies[0]["cap"] = {"kind": "pure", "epsilon": "9"}
        for number, noise in enumerate(noises):
            for body in copy.deepcopy(BODIES[1:4]):
                body["token"] = f"t{number}"
                if body["entry"] == "issue":
                    body["budget"] = {"kind": "pure", "epsilon": "2"}
                if body["entry"] == "spend":
                    loss = CapNoise(2, 0.0, 0.6).loss(2.0, Adjacency.REPLACE_ONE)
                    if noise is laplace:
                        loss = LaplaceNoise(10.0).loss(2.0, Adjacency.REPLACE_ONE)
                    body |= {
                        "mechanism": "r",
                        "noise": noise,
                        "loss": loss.to_dict(),
                        "arithmetic": "each",
                    }
                    body["domain"] = {"kind": "ball", "norm": "l1", "radius": 1, "size": 2}
                bodies.append(body)
        drawn = {EXACT: {"sampler": SAMPLER, "tables": SHA256}}
        places = [i for i, body in enumerate(bodies) if body["entry"] == "spend"]
        found = certify(chained(bodies, dict.fromkeys(places, drawn)))
        assert not found.problems
        return set(found.trusted_code)

    assert notes(cap, laplace) == notes(laplace, cap) > notes(cap)
