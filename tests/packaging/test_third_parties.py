"""Packages of others: found by entry points, asked by audits, and never able to break or shadow."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from privlearn.accountants import CentralAccountant, audit
from privlearn.cli import commands
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT, PROBLEMS
from privlearn.contract.spends import Spend
from privlearn.errors import LedgerError, PackageError, UnknownKindError
from privlearn.learners.base import Learner
from privlearn.ledger import Ledger
from privlearn.losses import DeclaredLoss, Loss, PureLoss, loss_from_dict
from privlearn.losses.budgets import PureDP
from privlearn.noise import LaplaceNoise, NoiseSource
from privlearn.rows.domains import Box
from privlearn.values.packages import DOMAINS, GROUPS, LOSSES, announced, look_up, made_from

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "third_party"
USERS = range(4)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def entry_points_of_the_example() -> Mapping[str, Mapping[str, str]]:
    text = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, str]] = tomllib.loads(text)["project"]["entry-points"]
    return found


def install(site: Path, name: str, points: Mapping[str, Mapping[str, str]], **modules: str) -> None:
    """What an installer leaves: metadata with entry points, and modules."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {target}\n" for key, target in named.items())
        for group, named in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module, code in modules.items():
        (site / f"{module}.py").write_text(code)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def example(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example package, installed."""
    install(site, "example-coins", entry_points_of_the_example())
    monkeypatch.syspath_prepend(EXAMPLE)
    return site


def in_a_process(*arguments: str | Path, path: list[Path]) -> tuple[int, str]:
    """``privlearn`` in a process of its own, with these folders to import from."""
    shown = os.pathsep.join(map(str, [ROOT, *path]))
    done = subprocess.run(
        [sys.executable, "-m", "privlearn.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": shown},
    )
    return done.returncode, done.stdout + done.stderr


def spent(path: Path, loss: Loss, **more: Any) -> None:
    """A ledger with one spend of a loss."""
    with CentralAccountant(
        PureDP(2), users=USERS, ledger=Ledger.create(path), noise=NoiseSource.secure()
    ) as account:
        spend = Spend("theirs", Box(0, 1, 1), LaplaceNoise(1.0), own_loss=loss, **more)
        with account.issue(loss, users=USERS, label="x").spend(spend) as receipt:
            receipt.release(receipt.draw((1,)))


def declared(kind: str, distribution: str | None = None) -> DeclaredLoss:
    of = {"kind": kind, "adjacency": "replace-one", "epsilon": "0.5"}
    return DeclaredLoss(of, PureLoss("0.5"), distribution)


STUB = """
from dataclasses import dataclass
from fractions import Fraction
from privlearn.values.adjacency import Adjacency
from privlearn.losses import Loss, PureLoss, register
from privlearn.losses.numerics import valid_epsilon

@register
@dataclass(frozen=True, slots=True, init=False)
class Stub(Loss):
    kind = {kind!r}
    epsilon: Fraction
    adjacency: Adjacency

    def __init__(self, epsilon, *, adjacency=Adjacency.REPLACE_ONE):
        self._set(epsilon=valid_epsilon(epsilon), adjacency=adjacency)

    def renyi(self, order):
        return PureLoss(self.epsilon).renyi(order)

    def pure(self):
        return {factor} * self.epsilon
"""


# The example --------------------------------------------------------------------------------------


def test_without_the_package_an_audit_finds_the_same_numbers(example: Path, tmp_path: Path) -> None:
    """The live account, an audit that has the package, and one that has not."""
    from example_coins.learners import CoinRates

    path = tmp_path / "ledger.db"
    account = CentralAccountant(PureDP(2), users=range(250), ledger=Ledger.create(path))
    learner = CoinRates(batch=100).start(account).partial_fit(np.ones(220))
    rates = list(learner.rates_)
    account.ledger.close()

    going_on: CentralAccountant[Any] = CentralAccountant.resume(path)
    resumed = Learner.resume(going_on)
    assert type(resumed) is CoinRates
    assert resumed.rates_ == rates
    assert len(rates) == 2
    live = going_on.epsilon(1e-6)
    going_on.ledger.close()

    here = audit(path, delta=1e-6)
    code, text = in_a_process("audit", path, "--delta", "1e-6", "--json", path=[])
    assert code == 0, text
    there = json.loads(text)
    for side in ("guarantees", "spent"):
        (mine,) = json.loads(here.model_dump_json())[side]
        (theirs,) = there[side]
        assert {**mine, "rests_on": 0} == {**theirs, "rests_on": 0}
    assert here.guarantees[0].epsilon == live
    (with_it,), (without,) = here.declarations, there["declarations"]
    assert (with_it.status, with_it.distribution) == ("agrees", "example-coins")
    assert (without["status"], without["distribution"]) == ("not here", "example-coins")
    assert without["loss"] == json.loads(with_it.model_dump_json())["loss"]
    assert "example-coins.count" in without["mechanisms"]
    assert any("follows from them as example-coins 1.0" in note for note in here.trusted_code)
    assert any("the package is not installed here" in note for note in there["trusted_code"])

    code, text = in_a_process("audit", path, "--json", path=[EXAMPLE, example])
    assert code == 0, text
    assert [one["status"] for one in json.loads(text)["declarations"]] == ["agrees"]


def test_the_example_is_listed_and_checked_by_name(example: Path) -> None:
    listed = run("packages", "--load")
    assert listed.exit_code == 0, listed.output
    for group, points in entry_points_of_the_example().items():
        assert group in GROUPS
        for name in points:
            assert f"{group}: {name}: example-coins 1.0" in listed.output
    found = run("check", "example-coins.count", "--samples", "1000", "--json", "--jobs", "1")
    findings = json.loads(found.stdout)["findings"]
    assert {one["subject"] for one in findings} == {"example-coins.count"}
    assert "holds" in {one["verdict"] for one in findings}
    assert not {one["verdict"] for one in findings} & {"violated", "not done"}


def test_the_price_of_the_example_is_that_of_a_coin(example: Path) -> None:
    """Against randomized response of the same coin, which privlearn prices by itself."""
    from example_coins.losses import CoinLoss

    from privlearn.checking.exact.loss_curves import check_loss
    from privlearn.losses import RandomizedResponse

    loss = CoinLoss("0.25")
    same = RandomizedResponse(loss.pure(), 2)
    for order in (1.1, 2.0, 17.0):
        assert loss.renyi(order) == pytest.approx(same.renyi(order), rel=1e-9)
    assert loss.zcdp() == pytest.approx(same.zcdp(), rel=1e-9)
    assert not check_loss(loss).violated


# Packages that are broken, claim what is others', or are not announced ----------------------------


def test_looking_for_packages_imports_none(site: Path) -> None:
    point = {LOSSES: {"stub-lazy.k": "stub_lazy:Stub"}}
    install(site, "stub-lazy", point, stub_lazy=STUB.format(kind="stub-lazy.k", factor=1))
    assert "stub-lazy.k" in announced(LOSSES)
    assert "stub-lazy.k" in run("packages").output
    assert "stub_lazy" not in sys.modules
    bare = {"kind": "stub-lazy.k", "adjacency": "replace-one", "epsilon": "0.5"}
    assert loss_from_dict(bare).pure() == 0.5
    assert "stub_lazy" in sys.modules


@pytest.mark.parametrize(
    ("target", "code", "why"),
    [
        ("stub_raising:Stub", "raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("stub_exiting:Stub", "raise SystemExit(0)", "SystemExit: 0"),
        ("stub_empty:Stub", "", "has no attribute 'Stub'"),
        ("stub_gone:Stub", None, "No module named 'stub_gone'"),
        ("stub_other:Stub", STUB.format(kind="other.kind", factor=1), "is no class of losses"),
        ("stub_text:Stub", "Stub = 'text'", "is no class of losses"),
    ],
)
def test_a_broken_package_is_named_and_breaks_no_audit(
    target: str, code: str | None, why: str, site: Path, tmp_path: Path
) -> None:
    module = target.partition(":")[0]
    kind = f"{module}.k"
    install(
        site, "broken-one", {LOSSES: {kind: target}}, **({} if code is None else {module: code})
    )
    path = tmp_path / "ledger.db"
    spent(path, declared(kind))
    found = audit(path)
    assert not found.problems
    (remark,) = [text for text in found.remarks if "broken-one 1.0" in text]
    assert why in remark
    assert [one.status for one in found.declarations] == ["unable"]
    bare = {"kind": kind, "adjacency": "replace-one", "epsilon": "0.5"}
    with pytest.raises(UnknownKindError, match=r"broken-one 1\.0"):
        loss_from_dict(bare)
    listed = run("packages", "--load")
    assert listed.exit_code == PROBLEMS
    assert "problem: " in listed.output


def test_a_class_that_lacks_a_method_is_named_before_anybody_uses_it(site: Path) -> None:
    code = STUB.format(kind="half-done.k", factor=1).replace("def renyi", "def rnyi")
    install(site, "half-done", {LOSSES: {"half-done.k": "half_done:Stub"}}, half_done=code)
    assert run("packages").exit_code == 0
    listed = run("packages", "--load")
    assert listed.exit_code == PROBLEMS
    assert "half-done.k" in listed.output
    assert "lacks renyi" in listed.output


def test_a_package_that_raises_today_does_not_stand_by_what_it_declared(
    site: Path, tmp_path: Path
) -> None:
    code = STUB.format(kind="torn.k", factor=1) + "\n        1 / 0\n"
    code = code.replace("return 1 * self.epsilon\n", "pass")
    install(site, "torn-down", {LOSSES: {"torn.k": "torn_down:Stub"}}, torn_down=code)
    path = tmp_path / "ledger.db"
    spent(path, declared("torn.k"))
    found = audit(path)
    (problem,) = found.problems
    assert "ZeroDivisionError" in problem
    assert any("does not stand by them" in text for text in found.trusted_code)


def test_that_nobody_announces_anything_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privlearn.cli.packages.announced", lambda group: {})
    assert run("packages").output == "no installed package announces anything for privlearn\n"


def test_two_packages_that_claim_one_kind_are_both_named(site: Path, tmp_path: Path) -> None:
    for name in ("first-one", "second-one"):
        module = name.replace("-", "_")
        point = {LOSSES: {"twice.k": f"{module}:Stub"}}
        install(site, name, point, **{module: STUB.format(kind="twice.k", factor=1)})
    bare = {"kind": "twice.k", "adjacency": "replace-one", "epsilon": "0.5"}
    both = "first-one 1.0.*second-one 1.0|second-one 1.0.*first-one 1.0"
    with pytest.raises(UnknownKindError, match=both):
        loss_from_dict(bare)
    path = tmp_path / "ledger.db"
    spent(path, declared("twice.k"))
    (remark,) = [text for text in audit(path).remarks if "first-one" in text]
    assert "second-one" in remark
    first_one = importlib.import_module("first_one")
    account = CentralAccountant(PureDP(1), users=USERS, noise=NoiseSource.simulation(0))
    with pytest.raises(PackageError, match=both):
        account.issue(first_one.Stub("0.1"), users=USERS, label="x")


def test_a_package_that_stands_twice_on_the_path_is_one(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = {LOSSES: {"stub-twice.k": "stub_twice:Stub"}}
    install(site, "stub-twice", point)
    older = tmp_path / "older"
    install(older, "Stub.Twice", point)  # the same name, as installers compare them
    monkeypatch.setattr(sys, "path", [*sys.path, str(older)])
    found = look_up(LOSSES, "stub-twice.k")
    assert found is not None
    assert found.distribution == "stub-twice"


def test_what_is_written_otherwise_once_it_was_read_is_refused(site: Path) -> None:
    code = """
class Form:
    def __init__(self, width):
        self.width = width
    @classmethod
    def from_dict(cls, data):
        return cls(data["width"])
    def to_dict(self):
        return {"kind": "stub-form.k", "width": min(self.width, 1)}
"""
    install(site, "stub-form", {DOMAINS: {"stub-form.k": "stub_form:Form"}}, stub_form=code)
    read = made_from(DOMAINS, "stub-form.k", {"kind": "stub-form.k", "width": 1})
    assert read is not None
    assert read[0].width == 1
    with pytest.raises(PackageError, match="is written otherwise once it was read"):
        made_from(DOMAINS, "stub-form.k", {"kind": "stub-form.k", "width": 2})


def test_nobody_can_shadow_a_kind_of_this_package(site: Path) -> None:
    points = {
        "privlearn.losses": {"gaussian": "shadow:Stub"},
        "privlearn.noises": {"gaussian": "shadow:Stub"},
        "privlearn.domains": {"ball": "shadow:Stub"},
        "privlearn.mechanisms": {"gaussian-sum": "shadow:Stub"},
        "privlearn.learners": {"DPTOFW": "shadow:Stub"},
    }
    install(site, "shadow", points, shadow="raise RuntimeError('imported')")
    mass = {"kind": "gaussian", "adjacency": "replace-one", "mu_squared": "1"}
    assert type(loss_from_dict(mass)).__module__ == "privlearn.losses.gaussian"
    listed = run("packages")
    assert listed.exit_code == PROBLEMS
    assert listed.output.count("is a name of privlearn, which nobody else can take") == 5
    assert "shadow" not in sys.modules


def test_a_command_that_cannot_be_loaded_ends_no_list_of_commands(site: Path) -> None:
    points = {"privlearn.commands": {"broken": "no_such_module:x", "run odd": "math:pi"}}
    install(site, "stub-broken", points)
    assert "Cannot be loaded" in run("--help").output
    assert "Cannot be loaded" in run("run", "--help").output
    for arguments in (("broken", "--now"), ("run", "odd")):
        refused = run(*arguments)
        assert refused.exit_code == BAD_INPUT
        assert "stub-broken" in refused.output
    assert "Did you mean 'broken'?" in run("brokem").output


def test_without_the_studies_their_commands_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "announced", lambda group: {})
    monkeypatch.setattr(commands, "look_up", lambda group, name: None)
    for arguments in (("errata", "--json"), ("reproduce", "fig5.1"), ("run", "ldp-sgd")):
        refused = run(*arguments)
        assert refused.exit_code == BAD_INPUT
        assert "is in the studies, which are not installed: pip install ./studies" in refused.output
    assert "Did you mean 'errata'?" in run("erratta").output


def test_metadata_that_cannot_be_read_are_named(site: Path) -> None:
    install(site, "torn-one", {})
    (site / "torn_one-1.0.dist-info" / "entry_points.txt").write_text("[privlearn.losses]\nnone\n")
    listed = run("packages")
    assert listed.exit_code == PROBLEMS
    assert "problem: torn-one: its entry points cannot be read" in listed.output


def test_a_package_that_says_more_than_was_recorded_is_a_problem(
    site: Path, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    spent(path, declared("stub-more.k", "stub-more"))
    assert not audit(path).problems
    point = {LOSSES: {"stub-more.k": "stub_more:Stub"}}
    install(site / "more", "stub-more", point, stub_more=STUB.format(kind="stub-more.k", factor=3))
    sys.path.insert(0, str(site / "more"))
    try:
        (problem,) = audit(path).problems
    finally:
        sys.path.remove(str(site / "more"))
    assert "stub-more 1.0 (stub_more:Stub) states it, epsilon is 1.5, recorded is 0.5" in problem


def test_the_verifier_of_the_standard_library_leaves_them_unchecked(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    spent(path, declared("stub-far.k"))
    spec = importlib.util.spec_from_file_location("verifier", ROOT / "docs" / "verify_ledger.py")
    assert spec is not None
    assert spec.loader is not None
    verifier = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(verifier)
    found = verifier.verify(path)
    assert found["problems"] == []
    assert "what has the kind declared, and sums with them" in found["unchecked"]


def test_a_module_without_entry_points_is_imported_on_request(site: Path, tmp_path: Path) -> None:
    (site / "stub_named.py").write_text(STUB.format(kind="stub-named.k", factor=1))
    path = tmp_path / "ledger.db"
    spent(path, declared("stub-named.k"))
    (before,) = json.loads(run("audit", path, "--json").stdout)["declarations"]
    found = run("audit", path, "--json", "--import", "stub_named")
    assert found.exit_code == 0
    (after,) = json.loads(found.stdout)["declarations"]
    assert (before["status"], after["status"]) == ("not here", "agrees")
    assert after["asked"] == "stub_named.Stub"
    (site / "stub_bad.py").write_text("raise KeyError('x')")
    for name in ("no_such_module", "stub_bad", "..", ""):
        refused = run("audit", path, "--import", name)
        assert refused.exit_code == BAD_INPUT
        assert f"--import {name}: " in refused.output


def test_a_learner_that_nobody_announces_is_named(tmp_path: Path) -> None:
    account = CentralAccountant(
        PureDP(1), users=USERS, ledger=Ledger.create(tmp_path / "l.db"),
        noise=NoiseSource.simulation(0),
    )  # fmt: skip
    account.record_learner("Nobodys", {}, {})
    account.ledger.close()
    again: CentralAccountant[Any] = CentralAccountant.resume(
        tmp_path / "l.db", noise=NoiseSource.simulation(0)
    )
    with pytest.raises(LedgerError, match="'Nobodys': no learner of this package, nor of an ins"):
        Learner.resume(again)


# Domains and noise --------------------------------------------------------------------------------

BITS = """
import numpy as np

class Bits:
    kind = "stub-bits.bits"
    size = 1
    def clip(self, block):
        return (np.asarray(block, dtype=float).reshape(-1, 1) > 0.5).astype(float)
    def null(self):
        return np.zeros(1)
    def sensitivity(self, adjacency, norm="l2"):
        return {size}
    def decode(self, total):
        return total
    def to_dict(self):
        return {{"kind": self.kind, "size": 1}}
    @classmethod
    def from_dict(cls, data):
        if data["size"] != 1:
            raise ValueError("size")
        return cls()
"""


@pytest.mark.parametrize(("size", "wrong"), [(1.0, False), (2.0, True)])
def test_a_sum_over_a_domain_of_others_is_priced_again_by_who_has_it(
    size: float, wrong: bool, site: Path, tmp_path: Path
) -> None:
    from privlearn.mechanisms import NoisySum
    from privlearn.rows import Rows

    module = f"stub_bits_{int(size)}"
    namespace: dict[str, Any] = {}
    exec(BITS.format(size=1.0), namespace)
    path = tmp_path / "ledger.db"
    with CentralAccountant(PureDP(2), users=USERS, ledger=Ledger.create(path)) as account:
        sums = NoisySum(namespace["Bits"](), LaplaceNoise(2.0))
        sums.release(
            Rows.seal(np.ones(4), users=USERS),
            account.issue(sums.loss(), users=USERS, label="x"),
        )
    alone = audit(path)
    assert not alone.problems
    assert any("the package is not installed here" in note for note in alone.trusted_code)
    points = {"privlearn.domains": {"stub-bits.bits": f"{module}:Bits"}}
    install(site / "more", "stub-bits", points, **{module: BITS.format(size=size)})
    sys.path.insert(0, str(site / "more"))
    try:
        found = audit(path)
    finally:
        sys.path.remove(str(site / "more"))
    assert bool(found.problems) is wrong
    assert found.guarantees[0].epsilon == alone.guarantees[0].epsilon
    if wrong:
        assert "a sum costs" in found.problems[0]
        assert "stub-bits 1.0" in found.problems[0]
    else:
        assert any("follows from them as stub-bits 1.0" in note for note in found.trusted_code)
