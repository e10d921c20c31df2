"""How certificates and runs are shown: tables for terminals, Markdown for files, plots for eyes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from privlearn.accountants.arrivals import ArrivalSpend
from privlearn.accountants.audit import Attestation, Certificate, Guarantee, Share
from privlearn.domains import Array

if TYPE_CHECKING:
    from rich.console import Console

    from privlearn.checking.gate import Finding, Report

S = TypeVar("S", Attestation, Share)


def verdict(certificate: Certificate) -> str:
    """One line: does it hold?"""
    if certificate.problems:
        return f"NOT VERIFIED: {len(certificate.problems)} problem(s)"
    if certificate.simulation:
        return "SIMULATION: the record is consistent, but its noise protects nobody"
    state = "closed" if certificate.closed else "open, reported at its plan or cap"
    if all(guarantee.attested for guarantee in certificate.guarantees):
        return f"ATTESTED, NOT VERIFIED: the record of clients' claims is consistent ({state})"
    if certificate.attested:
        return f"VERIFIED from the ledger alone, except what clients attest ({state})"
    return f"VERIFIED from the ledger alone ({state})"


def guarantee_line(guarantee: Guarantee) -> str:
    """One guarantee in the field's words."""
    parts = [f"(ε = {guarantee.epsilon:.4f}, δ = {guarantee.delta:g})"]
    if guarantee.rho is not None:
        parts.append(f"ρ = {guarantee.rho:.6g} zCDP")
    if guarantee.mu is not None:
        parts.append(f"μ = {guarantee.mu:.4f} GDP")
    parts.append(f"method {guarantee.method}")
    if guarantee.failure:
        parts.append(f"failures of {guarantee.failure:g} included")
    if guarantee.user is not None:
        parts.append(f"for user {guarantee.user}")
    if guarantee.rounds > 1:
        parts.append(f"for a person with {guarantee.rounds} rounds")
    kind = {"central": "DP", "joint": "joint DP", "local": "local DP"}[guarantee.trust.value]
    attested = ", attested, not verified" if guarantee.attested else ""
    return f"{kind}, {guarantee.adjacency.value}{attested}: " + ", ".join(parts)


def running_line(guarantee: Guarantee) -> str:
    """The odometer of an account in words; empty if it has none."""
    bound = guarantee.running
    if bound is None:
        return ""
    return (
        f"privacy loss so far at most {bound.epsilon:.4f}, at all times at once, except with "
        f"probability {bound.delta:g}"
    )


def _whose(guarantee: Guarantee) -> str:
    users = guarantee.users
    indices = "" if users is None else f", users {users[0]}..{users[1] - 1}"
    return f"accountant {guarantee.accountants[0]}{indices}"


def _price(loss: Mapping[str, object]) -> str:
    numbers = [f"{k} {v}" for k, v in loss.items() if k not in ("kind", "adjacency")]
    return f"{loss.get('kind')} {', '.join(numbers)}"


_CLAIM = ("attested mechanism", "by", "users", "messages", "most of one user", "loss of one")


def _claim(claim: Attestation) -> tuple[str, ...]:
    users = f"{claim.users[0]}..{claim.users[1] - 1}"
    numbers = (str(claim.count), str(claim.most_messages))
    return (claim.mechanism, claim.by, users, *numbers, _price(claim.loss))


def _of(items: Sequence[S], guarantee: Guarantee) -> list[S]:
    return [item for item in items if item.accountant in guarantee.accountants]


def print_certificate(certificate: Certificate, console: Console) -> None:
    """Prints what an auditor wants to see first."""
    from rich.markup import escape
    from rich.table import Table

    claimed = certificate.attested and not certificate.problems and not certificate.simulation
    style = "bold green" if certificate.holds else "bold yellow" if claimed else "bold red"
    console.print(verdict(certificate), style=style)
    for problem in certificate.problems:
        console.print(f"  • {problem}", style="red", markup=False)
    several = len(certificate.guarantees) > 1
    for guarantee, spent in zip(certificate.guarantees, certificate.spent, strict=True):
        if several:
            console.print(f"\n{_whose(guarantee)}", style="bold", markup=False)
        console.print(f"guarantee  {guarantee_line(guarantee)}")
        console.print(f"spent      {guarantee_line(spent)} (ex post)", style="dim")
        if spent.running is not None:
            console.print(f"odometer   {running_line(spent)}")
        shares = _of(certificate.mechanisms, guarantee)
        if shares:
            heads = ("mechanism", "label", "spends", "share of the most charged user")
            table = Table(*heads, box=None)
            for share in shares:
                table.add_row(share.mechanism, share.label, str(share.spends), f"{share.share:.1%}")
            console.print(table)
        claims = _of(certificate.attestations, guarantee)
        if claims:
            table = Table(*_CLAIM, box=None)
            for claim in claims:
                table.add_row(*map(escape, _claim(claim)))
            console.print(table)
        for unseen in dict.fromkeys("; ".join(c.unseen) for c in claims if c.unseen):
            console.print(f"assumed not to be seen by the receiver: {unseen}", markup=False)
    for guarantee, spent in zip(certificate.sums, certificate.sums_spent, strict=False):
        console.print(f"\nsum, for {guarantee.who}", style="bold", markup=False)
        console.print(f"guarantee  {guarantee_line(guarantee)}")
        console.print(f"spent      {guarantee_line(spent)} (ex post)", style="dim")
    for remark in certificate.remarks:
        console.print(remark, markup=False)
    if several:
        console.print()
    lost = f", {certificate.lost} lost" if certificate.lost else ""
    console.print(
        f"{certificate.entries} entries, {certificate.spends} spends{lost}; noise: "
        f"{certificate.noise}"
    )
    trusted = "; ".join(certificate.trusted_code) or "none beyond the library's clipping and sums"
    console.print(f"trusted code: {trusted}", markup=False)
    for name in certificate.features:
        console.print(f"extension {name}: optional, not known here, left aside", markup=False)
    console.print(f"ledger format {certificate.format}; head {certificate.head}", style="dim")


def certificate_markdown(certificate: Certificate) -> str:
    """The certificate as a document for people, with every assumption."""
    lines = ["# Privacy certificate", "", verdict(certificate), ""]
    several = len(certificate.guarantees) > 1
    for guarantee, spent in zip(certificate.guarantees, certificate.spent, strict=True):
        lines += [f"## {_whose(guarantee)}", ""] if several else []
        lines += [f"**Guarantee.** {guarantee_line(guarantee)}", ""]
        lines += [f"Spent, ex post, not a guarantee: {guarantee_line(spent)}", ""]
        lines += [f"Odometer: {running_line(spent)}.", ""] if spent.running is not None else []
        lines += ["It rests on:", "", *(f"- {text}" for text in guarantee.assumptions), ""]
        claims = _of(certificate.attestations, guarantee)
        if claims:
            lines += [_row(_CLAIM), _row(["---"] * len(_CLAIM))]
            lines += [*(_row(_claim(claim)) for claim in claims), ""]
        lines += _shares_table(_of(certificate.mechanisms, guarantee)) if several else []
    for guarantee, spent in zip(certificate.sums, certificate.sums_spent, strict=False):
        lines += [f"## Sum, for {guarantee.who}", "", guarantee_line(guarantee), ""]
        lines += [f"Spent, ex post, not a guarantee: {guarantee_line(spent)}", ""]
    for remark in certificate.remarks:
        lines += [remark, ""]
    if certificate.trusted_code:
        lines += ["Trusted code:", "", *(f"- {text}" for text in certificate.trusted_code), ""]
    if certificate.problems:
        lines += ["Problems:", "", *(f"- {text}" for text in certificate.problems), ""]
    lines += _shares_table(certificate.mechanisms) if not several else []
    lines += [f"{certificate.entries} entries; head `{certificate.head}`", ""]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


def _shares_table(shares: Sequence[Share]) -> list[str]:
    if not shares:  # of attestations alone
        return []
    rows = [("mechanism", "label", "spends", "share of the most charged user"), ("---",) * 4]
    rows += [(s.mechanism, s.label, str(s.spends), f"{s.share:.1%}") for s in shares]
    return [*map(_row, rows), ""]


def plot_regret(path: Path, regrets: Mapping[str, Array], title: str) -> None:
    """Draws cumulative regret and its running average per user, one curve per learner.

    Args:
        path: where the PNG goes.
        regrets: regret of each user, shape (T,), by the learner's name.
        title: what was run.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colors = ["#1b6ca8", "#4a4a4a", "#c0392b", "#7f8c8d"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    total, rate = figure.subplots(1, 2)
    for (name, regret), color in zip(regrets.items(), colors, strict=False):
        users = np.arange(1, len(regret) + 1)
        total.plot(users, np.cumsum(regret), label=name, color=color, linewidth=2)
        window = max(len(regret) // 40, 1)
        smooth = np.convolve(regret, np.ones(window) / window, mode="valid")
        rate.plot(users[window - 1 :], smooth, color=color, linewidth=2, label=name)
    total.set(xlabel="users served", ylabel="cumulative regret (sales)", title=title)
    total.legend(frameon=False)
    rate.set(xlabel="users served", ylabel="regret per user", yscale="log", title="per user")
    for axes in (total, rate):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=130)


def plot_arrivals(path: Path, spends: Sequence[ArrivalSpend], title: str = "") -> None:
    """Draws ε promised to, and spent on, each user against the arrival index.

    Args:
        path: where the PNG goes.
        spends: from `CentralAccountant.spend_by_arrival`.
        title: what was run.

    Raises:
        ValueError: nothing to draw.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not spends:
        raise ValueError("spends = []: needs at least one range of users")
    figure = Figure(figsize=(8, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    edges = [piece.users.start for piece in spends] + [spends[-1].users.stop]
    for name, values, color in (
        ("guarantee", [piece.promised for piece in spends], "#1b6ca8"),
        ("spent, ex post", [piece.spent for piece in spends], "#c0392b"),
    ):
        axes.stairs(values, edges, label=name, color=color, linewidth=2, baseline=None)
    axes.set(
        xlabel="arrival index", ylabel=f"ε at δ = {spends[0].delta:g}", title=title, ylim=(0, None)
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=130)


def tastes_table(names: Sequence[str], theta: Array, precision: Array) -> list[tuple[str, str]]:
    """The strongest learned tastes with their standard deviations, largest first."""
    spread = np.sqrt(np.diag(np.linalg.inv(precision)))
    order = np.argsort(-np.abs(theta))
    return [(names[i], f"{theta[i]:+.2f} ± {spread[i]:.2f}") for i in order]


def print_report(report: Report, console: Console) -> None:
    """A table of what was claimed, computed and bounded, and below it whatever went wrong."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, align in CHECK_COLUMNS:
        table.add_column(name, justify=align, no_wrap=name != "subject")
    for finding in report.findings:
        style = "bold red" if finding.bad else None
        table.add_row(*_check_cells(finding), style=style)
    console.print(table)
    for finding in report.findings:
        if finding.bad:
            console.print(f"\n{finding.subject}, {finding.check}: {finding.result}", style="bold")
            console.print(f"  {finding.detail}", markup=False, highlight=False)
    for name in report.powerless:
        console.print(f"\nNO POWER: {name}", style="bold yellow")
        console.print(
            "  That nothing was refuted says nothing: no check of it would have found a fault of "
            "factor 2.",
            highlight=False,
        )
        for finding in report.findings:
            if finding.subject == name and finding.planted:
                console.print(
                    f"  {finding.check}: {finding.planted}", markup=False, highlight=False
                )
        console.print(
            "  Try neighbours that are further apart, records=..., or more --samples.",
            markup=False,
            highlight=False,
        )
    bad = sum(finding.bad for finding in report.findings)
    verdict = f"{bad} of {len(report.findings)} findings need a look" if bad else "nothing refuted"
    if report.powerless:
        verdict += f", but {len(report.powerless)} checked WITHOUT POWER"
    console.print(
        f"\n{verdict}; seed {report.seed}, {report.seconds:.0f} s. Samples refute and never prove: "
        "a lower bound below the claim is all they say.",
        highlight=False,
    )


TIMES = "times the claimed curve"

CHECK_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("subject", "left"),
    ("check", "left"),
    ("result", "left"),
    ("claimed", "right"),
    ("exact", "right"),
    ("at least", "right"),
    ("conf.", "right"),
    ("samples", "right"),
    ("power", "right"),
    ("s", "right"),
)


def _check_cells(finding: Finding) -> list[str]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    return [
        finding.subject,
        finding.check,
        finding.result,
        f"{finding.unit.replace(TIMES, '×')} {number(finding.claimed)}".strip(),
        number(finding.exact),
        number(finding.bound),
        number(finding.confidence),
        "" if finding.samples is None else str(finding.samples),
        number(finding.power),
        f"{finding.seconds:.1f}",
    ]
