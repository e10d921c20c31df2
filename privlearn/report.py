"""How certificates and runs are shown: tables for terminals, Markdown for files, plots for eyes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privlearn.accountants.audit import Certificate, Guarantee
from privlearn.domains import Array

if TYPE_CHECKING:
    from rich.console import Console


def verdict(certificate: Certificate) -> str:
    """One line: does it hold?"""
    if certificate.problems:
        return f"NOT VERIFIED: {len(certificate.problems)} problem(s)"
    if certificate.simulation:
        return "SIMULATION: the record is consistent, but its noise protects nobody"
    state = "closed" if certificate.closed else "open, reported at its plan or cap"
    return f"VERIFIED from the ledger alone ({state})"


def guarantee_line(guarantee: Guarantee) -> str:
    """One guarantee in the field's words."""
    parts = [f"(ε = {guarantee.epsilon:.4f}, δ = {guarantee.delta:g})"]
    if guarantee.rho is not None:
        parts.append(f"ρ = {guarantee.rho:.6g} zCDP")
    if guarantee.mu is not None:
        parts.append(f"μ = {guarantee.mu:.4f} GDP")
    kind = {"central": "DP", "joint": "joint DP", "local": "local DP"}[guarantee.trust.value]
    return f"{kind}, {guarantee.adjacency.value}: " + ", ".join(parts)


def print_certificate(certificate: Certificate, console: Console) -> None:
    """Prints what an auditor wants to see first."""
    from rich.table import Table

    good = certificate.holds
    console.print(verdict(certificate), style="bold green" if good else "bold red")
    for problem in certificate.problems:
        console.print(f"  • {problem}", style="red", markup=False)
    for guarantee, spent in zip(certificate.guarantees, certificate.spent, strict=True):
        console.print(f"guarantee  {guarantee_line(guarantee)}")
        console.print(f"spent      {guarantee_line(spent)} (ex post)", style="dim")
    if certificate.mechanisms:
        table = Table("mechanism", "label", "spends", "share of the most charged user", box=None)
        for share in certificate.mechanisms:
            table.add_row(share.mechanism, share.label, str(share.spends), f"{share.share:.1%}")
        console.print(table)
    lost = f", {certificate.lost} lost" if certificate.lost else ""
    console.print(
        f"{certificate.entries} entries, {certificate.spends} spends{lost}; noise: "
        f"{certificate.noise}"
    )
    trusted = "; ".join(certificate.trusted_code) or "none beyond the library's clipping and sums"
    console.print(f"trusted code: {trusted}", markup=False)
    console.print(f"head {certificate.head}", style="dim")


def certificate_markdown(certificate: Certificate) -> str:
    """The certificate as a document for people, with every assumption."""
    lines = ["# Privacy certificate", "", verdict(certificate), ""]
    for guarantee, spent in zip(certificate.guarantees, certificate.spent, strict=True):
        lines += [f"**Guarantee.** {guarantee_line(guarantee)}", ""]
        lines += [f"Spent, ex post, not a guarantee: {guarantee_line(spent)}", ""]
        lines += ["It rests on:", "", *(f"- {text}" for text in guarantee.assumptions), ""]
    if certificate.trusted_code:
        lines += ["Trusted code:", "", *(f"- {text}" for text in certificate.trusted_code), ""]
    if certificate.problems:
        lines += ["Problems:", "", *(f"- {text}" for text in certificate.problems), ""]
    lines += [
        "| mechanism | label | spends | share of the most charged user |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {s.mechanism} | {s.label} | {s.spends} | {s.share:.1%} |"
        for s in certificate.mechanisms
    ]
    lines += ["", f"{certificate.entries} entries; head `{certificate.head}`", ""]
    return "\n".join(lines)


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


def tastes_table(names: Sequence[str], theta: Array, precision: Array) -> list[tuple[str, str]]:
    """The strongest learned tastes with their standard deviations, largest first."""
    spread = np.sqrt(np.diag(np.linalg.inv(precision)))
    order = np.argsort(-np.abs(theta))
    return [(names[i], f"{theta[i]:+.2f} ± {spread[i]:.2f}") for i in order]
