"""Plots of the studies: one style, one way to write them, means with bands."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

STYLE: Final[Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
DOTTED, DASHED, LONG_DASHED = (0, (1, 1.2)), (0, (4, 1.6)), (0, (5, 2))

PALETTE = 128
"""Colours of a written plot; with all of them its file is four times as large."""


def drawn_png(draw: Callable[[Figure], None]) -> bytes:
    """What is drawn, as PNG; equal drawings give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = io.BytesIO()
    with rc_context(STYLE):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        figure.savefig(drawn, dpi=130, format="png")
    return few_colours(drawn.getvalue())


def few_colours(png: bytes) -> bytes:
    """The same picture with a palette of `PALETTE` colours."""
    from PIL import Image

    written = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        palette = picture.convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE)
    palette.save(written, "png", optimize=True)
    return written.getvalue()


def mean_and_band(
    axes: Axes,
    places: Any,
    samples: Any,
    *,
    half: float,
    alpha: float = 0.12,
    lowest: float = 0.0,
    part: float = 0.0,
    **look: Any,
) -> None:
    """The mean of samples, and ``half`` standard deviations to both sides of it.

    Args:
        axes: where it is drawn.
        places: abscissae, shape (n,).
        samples: ordinates, shape (samples, n); one sample has no band.
        half: half the width of the band; 0 for none.
        alpha: opacity of the band.
        lowest, part: the band ends at ``lowest``, and at ``part`` of the mean.
        look: of the line.
    """
    samples = np.asarray(samples)
    mean = samples.mean(axis=0)
    axes.plot(places, mean, **look)
    if len(samples) > 1 and half:
        width = half * samples.std(axis=0, ddof=1)
        low = np.maximum(mean - width, np.maximum(part * mean, lowest))
        axes.fill_between(places, low, mean + width, color=look["color"], alpha=alpha, lw=0)


def thousands(axis: Axis) -> None:
    """Labels with separators and without decimals."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def plain_log(axis: Axis, *, at: tuple[float, ...] = (1.0, 3.0)) -> None:
    """Plain numbers on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=at))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
