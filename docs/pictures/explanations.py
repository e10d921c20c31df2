"""Draws the pictures of the explanations and errata: ``python docs/pictures/explanations.py``.

Numbers are computed here by the package, with fixed seeds, or read from the tracked results of a
study.  Pictures are cards on white, so that they can be read on light and on dark pages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privlearn import Box, Ledger, NoiseSource, PureDP, Rows
from privlearn.accountants import CentralAccountant
from privlearn.accountants.epsilon_delta import evaluate
from privlearn.losses import GaussianLoss, LaplaceLoss
from privlearn.losses.conversion import renyi_epsilon, zcdp_epsilon
from privlearn.mechanisms import NoisySum
from privlearn.noise import LaplaceNoise
from privlearn_studies.papers.errata import errata
from privlearn_studies.papers.plots import drawn_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
STUDY = HERE.parent / "reproduction" / "fig4.json"
BLUE, RED, GREEN, GREY, YELLOW = "#2b6cb0", "#c53030", "#2f855a", "#718096", "#b7791f"
PALE = {BLUE: "#dbeafe", RED: "#fde2e2", GREEN: "#d9f2e3", GREY: "#edf0f4", YELLOW: "#fdf0d0"}


# Boxes and arrows ---------------------------------------------------------------------------------


def blank(figure: Figure, width: float, height: float) -> Axes:
    """An empty plane, one unit an inch."""
    figure.set_size_inches(width, height)
    axes: Axes = figure.add_subplot()
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return axes


def box(axes: Axes, at: tuple[float, float, float, float], text: str, colour: str) -> None:
    """A rounded box (left, bottom, width, height) with text in its middle."""
    from matplotlib.patches import FancyBboxPatch

    x, y, w, h = at
    axes.add_patch(
        FancyBboxPatch(
            (x, y), w, h, "round,pad=0.02,rounding_size=0.08", fc=PALE[colour], ec=colour, lw=1.3
        )
    )
    axes.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=9, linespacing=1.35)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = GREY, **how: Any
) -> None:
    """An arrow between two points."""
    style = {"arrowstyle": "-|>", "color": colour, "lw": 1.5, "shrinkA": 0, "shrinkB": 0, **how}
    axes.annotate("", end, start, arrowprops=style)


def note(axes: Axes, x: float, y: float, text: str, colour: str = "#2d3748", **how: Any) -> None:
    """Text beside the boxes."""
    axes.text(
        x, y, text, **{"ha": "center", "va": "center", "fontsize": 8.5, "color": colour, **how}
    )


def billboard(figure: Figure) -> None:
    """Rows go through mechanisms to the billboard; each user is served from it and the own row."""
    axes = blank(figure, 8.2, 5.0)
    bends, heights = ("arc3,rad=-0.09", "arc3,rad=-0.42", "arc3,rad=0.09"), (0.65, 0.62, 0.1)
    for place, (name, colour) in enumerate((("user j", GREY), ("user k", RED), ("user l", GREY))):
        y = 3.75 - 1.3 * place
        box(axes, (0.15, y, 1.25, 0.75), f"{name}\nown data", colour)
        box(axes, (6.75, y, 1.3, 0.75), f"{name}\nis shown", colour)
        arrow(axes, (1.45, y + 0.28), (2.45, 2.8 + 0.12 * (1 - place)), colour)
        arrow(axes, (5.65, 2.85 + 0.12 * (1 - place)), (6.7, y + 0.3), BLUE)
        own = {"connectionstyle": bends[place], "ls": "--", "lw": 1.1}
        arrow(axes, (1.45, y + heights[place]), (6.7, y + heights[place]), colour, **own)
    box(axes, (2.5, 2.45, 1.45, 0.75), "mechanism\nclips, adds noise\n(paid)", YELLOW)
    box(axes, (4.4, 2.45, 1.2, 0.75), "billboard\n(public)", BLUE)
    arrow(axes, (4.0, 2.82), (4.35, 2.82), BLUE)
    note(axes, 4.1, 0.55, "solid: what anybody hears of others has passed a paid mechanism")
    note(axes, 4.1, 0.25, "dashed: the own row goes to its own user only")


def adjacency(figure: Figure) -> None:
    """Which two worlds are compared, for four relations."""
    from matplotlib.patches import Rectangle

    axes = blank(figure, 8.2, 4.5)
    plain = ["a", "b", "c", "d", "e", "f"]
    people = ["m", "k", "m", "l", "k", "m"]
    worlds: list[tuple[str, list[str], list[str], str]] = [
        ("replace-one", plain, ["a", "b", "X", "d", "e", "f"], "another record"),
        ("zero-out", plain, ["a", "b", "0", "d", "e", "f"], "the null record"),
        ("add-remove", plain, ["a", "b", "d", "e", "f"], "later ones move up"),
        ("person, zero-out", people, ["0", "k", "0", "l", "k", "0"], "all visits of m"),
    ]
    for column, (name, one, other, what) in enumerate(worlds):
        left = 0.25 + 2.0 * column
        note(axes, left + 0.75, 4.3, name, fontsize=10, fontweight="bold")
        for side, rows in enumerate((one, other)):
            x = left + side * 0.95
            for place, record in enumerate(rows):
                changed = place < len(one) and record != one[place]
                moved = name == "add-remove" and side == 1 and place >= 2
                first = side == 0 and ((record == "m") if column == 3 else place == 2)
                colour = RED if (changed and not moved) or first else YELLOW if moved else GREY
                y = 3.45 - 0.48 * place
                axes.add_patch(Rectangle((x, y), 0.55, 0.4, fc=PALE[colour], ec=colour, lw=1.2))
                note(axes, x + 0.27, y + 0.2, record, fontsize=9.5)
                if side == 0:
                    note(axes, x - 0.12, y + 0.2, str(place), GREY, fontsize=7.5)
        note(axes, left + 0.75, 0.62, what, fontsize=8.5)
    note(
        axes,
        4.1,
        0.2,
        "numbers: arrival indices.  red: what differs.  yellow: the same record at another index",
        GREY,
    )


def trust(figure: Figure) -> None:
    """Who sees raw data in the three models."""
    axes = blank(figure, 8.2, 3.9)
    models = (
        (
            "central",
            "one server holds\nraw rows",
            "everybody sees\nreleases",
            YELLOW,
            "raw",
            "noise here",
        ),
        (
            "joint",
            "one server holds\nraw rows",
            "releases, and the own\naction for each user",
            YELLOW,
            "raw",
            "noise here",
        ),
        (
            "local",
            "server sees\nnoisy messages only",
            "everybody sees\nreleases",
            GREEN,
            "noisy",
            "no noise here",
        ),
    )
    for column, (name, server, out, colour, sent, where) in enumerate(models):
        left = 0.2 + 2.7 * column
        note(axes, left + 1.15, 3.72, name, fontsize=11, fontweight="bold")
        for place in range(3):
            text = "user" if name != "local" else "user\n+ noise"
            box(
                axes,
                (left + 0.8 * place, 2.85, 0.65, 0.55),
                text,
                GREEN if name == "local" else RED,
            )
            arrow(
                axes,
                (left + 0.33 + 0.8 * place, 2.8),
                (left + 0.85 + 0.3 * place, 2.2),
                RED if sent == "raw" else GREEN,
            )
        note(axes, left + 2.05, 2.5, sent, RED if sent == "raw" else GREEN, fontsize=8)
        box(axes, (left + 0.2, 1.45, 1.9, 0.7), server, colour)
        note(axes, left + 1.75, 1.18, where, GREY, fontsize=8)
        arrow(axes, (left + 1.15, 1.4), (left + 1.15, 0.95), BLUE)
        box(axes, (left + 0.2, 0.2, 1.9, 0.7), out, BLUE)


# Composition --------------------------------------------------------------------------------------

DELTA = 1e-6


def composition(figure: Figure) -> None:
    """ε at δ = 1e-6 of many releases, by each way to count, and beside the least of them."""
    figure.set_size_inches(8.2, 5.2)
    counts = [int(n) for n in np.unique(np.geomspace(1, 1000, 25).astype(int))]
    gauss, laplace = GaussianLoss("0.01"), LaplaceLoss("0.1")
    rho = float(laplace.zcdp())
    simple = "zCDP, ρ + 2√(ρ ln 1/δ)"
    ways: dict[str, dict[str, Callable[[int], float]]] = {
        "Gaussian noise, μ = 0.1 each": {
            simple: lambda n: 0.005 * n + 2 * math.sqrt(0.005 * n * math.log(1 / DELTA)),
            "zCDP, which is its Rényi curve": lambda n: zcdp_epsilon(0.005 * n, DELTA).value,
            "Gaussian DP (exact)": lambda n: evaluate([(gauss, n)]).epsilon(DELTA).value,
        },
        "Laplace noise, ε = 0.1 each": {
            "sum of ε": lambda n: 0.1 * n,
            "zCDP": lambda n: zcdp_epsilon(rho * n, DELTA).value,
            "Rényi curve": lambda n: renyi_epsilon((laplace * n).renyi, DELTA).value,
            "tight": lambda n: evaluate([(laplace, n)]).epsilon(DELTA).value,
        },
    }
    looks = ((GREY, ":"), (YELLOW, "--"), (GREEN, "-."), (BLUE, "-"))
    panels = figure.subplots(2, 2, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
    for (upper, lower), (title, counted) in zip(panels.T, ways.items(), strict=True):
        found = {name: np.array([way(n) for n in counts]) for name, way in counted.items()}
        best = list(found.values())[-1]
        for place, (name, values) in enumerate(found.items()):
            colour, line = looks[-1] if values is best else looks[place]
            width = 2 if values is best else 1.4
            upper.plot(counts, values, color=colour, ls=line, lw=width, label=name)
            lower.plot(counts, values / best, color=colour, ls=line, lw=width)
        upper.set(title=title, xscale="log", yscale="log", ylabel="ε at δ = 10⁻⁶")
        lower.set(xlabel="releases", ylabel="times the least", ylim=(0.97, 1.5))
        upper.legend()


# Floating point -----------------------------------------------------------------------------------

N = 200_000
SCALE = 20.0


def last_bits(values: Any) -> Any:
    """The exponents of the lowest bits that are set."""
    mantissa, exponent = np.frexp(np.abs(values[values != 0]))
    whole = (mantissa * 2.0**53).astype(np.int64)
    return exponent - 53 + np.log2((whole & -whole).astype(np.float64))


def ours(total: float) -> Any:
    """Many numbers that a `NoisySum` releases when the sum is ``total``."""
    width = 1_000
    mechanism = NoisySum(Box(0, 10, width), LaplaceNoise(SCALE))
    noise, users = NoiseSource.simulation(int(total)), range(N // width)
    account = CentralAccountant(PureDP(500), users=users, ledger=Ledger.memory(), noise=noise)
    found = []
    for user in users:
        mine = range(user, user + 1)
        token = account.issue(mechanism.loss(), users=mine, label="sum")
        rows = Rows.seal(np.full((1, width), total), users=mine)
        found.append(mechanism.release(rows, token).value)
    return np.concatenate(found)


def numpys(total: float) -> Any:
    """The same with NumPy's Laplace noise."""
    return total + np.random.default_rng(int(total)).laplace(0, SCALE, N)


def impossible(values: Any, total: float) -> float:
    """The share of outputs that no double of noise gives when it is added to ``total``."""
    noise = values - total
    found = np.zeros(len(values), dtype=bool)
    for near in (noise, np.nextafter(noise, -np.inf), np.nextafter(noise, np.inf)):
        found |= total + near == values
    return float(1 - found.mean())


def floating_point(figure: Figure) -> None:
    """The last bits of small outputs, for a true sum of 0 and one of 10."""
    figure.set_size_inches(8.2, 3.6)
    for axes, name, source in zip(
        figure.subplots(1, 2, sharey=True),
        ("NumPy's noise, doubles", "privlearn, integers on a grid"),
        (numpys, ours),
        strict=True,
    ):
        bins = np.arange(-68.5, -29.5)
        for total, colour, offset in ((0.0, RED, -0.2), (10.0, BLUE, 0.2)):
            values = source(total)
            found = last_bits(values[np.abs(values) < 1])
            heights, _ = np.histogram(found, bins)
            axes.bar(
                (bins[1:] + bins[:-1]) / 2 + offset,
                heights / heights.sum(),
                0.4,
                color=colour,
                label=f"true sum {total:g}",
            )
        axes.set(title=name, xlabel="lowest bit that is set: 2^x")
        axes.legend()
    figure.axes[0].set_ylabel("share of outputs between −1 and 1")


# Errata -------------------------------------------------------------------------------------------

PRIVACY = ("ρ", "ε", "δ", "loss")


def errata_ratios(figure: Figure) -> None:
    """True over claimed, for every row that is about privacy."""
    rows = [
        row
        for row in errata()
        if row.unit.startswith(PRIVACY) and row.true > 0 and row.id != "benchmark-conversion"
    ]
    rows.sort(key=lambda row: row.ratio)
    figure.set_size_inches(8.2, 0.27 * len(rows) + 1.0)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        word = row.verdict.partition(":")[0]
        colour = {"CORRECT": GREEN, "WRONG": RED}.get(word, YELLOW)
        marker = {"=": "o", "<=": "<", ">=": ">"}[row.relation]
        axes.plot([1, row.ratio], [place, place], color=colour, lw=1.4)
        axes.plot(row.ratio, place, marker, color=colour, ms=6)
    axes.axvline(1, color=GREY, lw=1)
    for word, colour in (("correct", GREEN), ("repairable or ambiguous", YELLOW), ("wrong", RED)):
        axes.plot([], [], "o-", color=colour, label=word)
    axes.legend(loc="lower right")
    axes.set(
        xscale="log",
        ylim=(-0.8, len(rows) - 0.2),
        xlabel="true / claimed   (◂ at most, ▸ at least)",
    )
    axes.set_yticks(
        range(len(rows)), [f"{row.id} ({row.unit.split()[0].rstrip(',')})" for row in rows]
    )
    axes.tick_params(axis="y", labelsize=8)
    figure.suptitle(
        "less privacy is lost than claimed  ←  1  →  more is lost than claimed", fontsize=9.5
    )


def gram_sensitivity(figure: Figure) -> None:
    """How far one user moves a Gram matrix of K items: the claim, the truth, and random users."""
    figure.set_size_inches(5.6, 3.5)
    axes = figure.subplots()
    counts = np.arange(1, 21)
    rng = np.random.default_rng(0)
    tried = []
    for k in counts:
        pairs = rng.normal(size=(200, 2, k, 5))
        pairs /= np.linalg.norm(pairs, axis=-1, keepdims=True)
        gram = np.einsum("npki,npkj->npij", pairs, pairs)
        tried.append(np.linalg.norm(gram[:, 0] - gram[:, 1], axis=(1, 2)).max())
    same = [np.linalg.norm(k * np.diag([1.0, 0]) - k * np.diag([0, 1.0])) for k in counts]
    axes.plot(counts, np.sqrt(2 * counts), color=RED, ls="--", label="claimed, √(2K)")
    axes.plot(counts, same, color=BLUE, lw=2, label="all items alike (the worst, √2·K)")
    axes.plot(counts, tried, ".", color=GREY, label="largest of 200 pairs of random users")
    axes.set(
        xlabel="K, items of one user", ylabel="Frobenius distance", xlim=(0, 20.5), ylim=(0, None)
    )
    axes.legend()


def determinants(figure: Figure) -> None:
    """Densities of the released minimiser with and without one user: `objective-approx`."""
    noise, ridge = 45.7, 1.0  # as Theorem 5 prints them at ε = 1/2, δ = 1e-5, d = R = L = η = 1
    theta = np.linspace(-4, 4, 2001)

    def density(slope: Any, bend: Any) -> Any:
        normal = np.exp(-((ridge * theta + slope) ** 2) / (2 * noise**2))
        return normal / (noise * math.sqrt(2 * math.pi)) * (ridge + bend)

    huber = density(np.clip(theta, -1, 1), (np.abs(theta) < 1).astype(float))
    none = density(0.0, 0.0)
    figure.set_size_inches(5.6, 3.3)
    axes = figure.subplots()
    axes.plot(theta, huber, color=RED, lw=2, label="with the user (Huber loss)")
    axes.plot(theta, none, color=BLUE, lw=2, label="without")
    axes.plot(
        theta, none * math.exp(0.5), color=GREY, ls="--", label="without, times e^ε: the limit"
    )
    axes.set(xlabel="what is released, θ", ylabel="density", ylim=(0, None))
    axes.legend(loc="lower center")


def regret(figure: Figure) -> None:
    """Claimed and certified ρ, and regret, of the published and of the proved noise (Figure 4)."""
    cells = [cell for cell in json.loads(STUDY.read_text("utf-8"))["cells"]]
    figure.set_size_inches(8.2, 3.5)
    left, right = figure.subplots(1, 2)
    splits = (10, 30, 50, 70, 90)
    for name, colour, where in (("published", RED, -1.5), ("proved", BLUE, 1.5)):
        mine = {
            int(cell["mle"]): cell
            for cell in cells
            if cell["learner"] == name and cell.get("rho") == "1"
        }
        places = np.array(splits) + where
        left.bar(
            places,
            [mine[s]["certified"]["rho"] for s in splits],
            3,
            color=colour,
            label=f"{name} noise",
        )
        means = [mine[s]["regret"]["mean"] for s in splits]
        errors = [2 * mine[s]["regret"]["se"] for s in splits]
        right.bar(
            places, means, 3, yerr=errors, color=colour, ecolor="#2d3748", label=f"{name} noise"
        )
    left.axhline(1, color="#2d3748", lw=1, ls="--")
    left.text(94, 1.15, "claimed", ha="right", fontsize=8.5)
    for name, style in (("random", ":"), ("non-private", "-.")):
        (cell,) = [c for c in cells if c["learner"] == name]
        right.axhline(cell["regret"]["mean"], color=GREY, lw=1.2, ls=style, label=name)
    left.set(title="certified ρ (claimed: 1)", ylabel="ρ")
    right.set(title="regret after 10,000 users", ylabel="regret", yscale="log")
    for axes in (left, right):
        axes.set_xticks(splits, [f"{s}%" for s in splits])
        axes.set_xlabel("part of the budget for the fits")
        axes.legend(fontsize=8)
    right.set_ylim(2, 3000)


PICTURES: dict[str, Callable[[Figure], None]] = {
    "billboard": billboard,
    "adjacency": adjacency,
    "trust": trust,
    "composition": composition,
    "floating-point": floating_point,
    "errata-ratios": errata_ratios,
    "errata-gram": gram_sensitivity,
    "errata-determinants": determinants,
    "errata-regret": regret,
}


def main() -> None:
    """Draws all of them beside this file."""
    for name, draw in PICTURES.items():
        (HERE / f"{name}.png").write_bytes(drawn_png(draw))
    for total, other in ((0.0, 10.0), (10.0, 0.0)):
        one, two = (impossible(source(total), other) for source in (numpys, ours))
        print(f"sum {total:g}, cannot be from {other:g}: NumPy {one:.4f}, ours {two:.4f}")


if __name__ == "__main__":
    main()
