"""``privlearn epsilon``, ``delta`` and ``calibrate``: prices of a declared list of runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from privlearn.cli.output import check_drawn, clear_errors, console

EventsFile = Annotated[Path, typer.Argument(help="Event list, .json or .toml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
PlotFile = Annotated[Path | None, typer.Option(help="Draw trade-off curve and ε(δ) to this file.")]
ReplaceOne = Annotated[
    bool, typer.Option("--as-replace-one", help="Convert add-remove to replace-one, explicitly.")
]


def epsilon(
    events: EventsFile,
    delta: Annotated[float, typer.Option(help="Where to state ε.")],
    json: AsJson = False,
    plot: PlotFile = None,
    as_replace_one: ReplaceOne = False,
) -> None:
    """ε at δ of a declared list of mechanism runs.

    Exit codes: 0 computed; 2 wrong use, or a list that cannot be priced.
    """
    from privlearn.events.pricing import epsilon_price

    check_drawn(plot)
    with clear_errors():
        listed = _events(events)
        price = epsilon_price(listed, delta, replace_one=as_replace_one)
        _show_price(listed, price, json=json, plot=plot, replace_one=as_replace_one)


def delta(
    events: EventsFile,
    epsilon: Annotated[float, typer.Option(help="Where to state δ, in nats.")],
    json: AsJson = False,
    plot: PlotFile = None,
    as_replace_one: ReplaceOne = False,
) -> None:
    """δ at ε of a declared list of mechanism runs.

    Exit codes: 0 computed; 2 wrong use, or a list that cannot be priced.
    """
    from privlearn.events.pricing import delta_price

    check_drawn(plot)
    with clear_errors():
        listed = _events(events)
        price = delta_price(listed, epsilon, replace_one=as_replace_one)
        _show_price(listed, price, json=json, plot=plot, replace_one=as_replace_one)


def calibrate(
    events: EventsFile,
    epsilon: Annotated[str, typer.Option(help="ε to keep, in nats.")],
    delta: Annotated[str, typer.Option(help="δ to keep.")],
    shares: Annotated[
        str | None, typer.Option(help="Share of ρ for each event, such as 2,1,1.")
    ] = None,
    json: AsJson = False,
) -> None:
    """The least noise with which a declared list of mechanism runs keeps (ε, δ).

    Exit codes: 0 computed; 2 wrong use, or no noise is enough.
    """
    from privlearn.events.pricing import calibrate_events
    from privlearn.losses.budgets import ApproxDP

    with clear_errors():
        parts = None if shares is None else [share.strip() for share in shares.split(",")]
        found = calibrate_events(_events(events), ApproxDP(epsilon, delta), shares=parts)
    if json:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
        return
    screen = console()
    screen.print(_price_line(found), highlight=False)
    for position, event in enumerate(found.events["events"]):
        numbers = ", ".join(f"{name} {value}" for name, value in event.items())
        screen.print(
            f"events[{position}]  noise × {found.factors[position]}: {numbers}",
            markup=False,
            highlight=False,
        )


def _events(path: Path) -> Any:
    from privlearn.events.lists import read_event_list

    return read_event_list(path)


def _show_price(
    listed: Any, price: Any, *, json: bool, plot: Path | None, replace_one: bool
) -> None:
    from privlearn.errors import BudgetError
    from privlearn.events.pricing import evaluated

    certain = {
        "nothing": "Nothing about anybody leaves.",
        "non-private": "Not private: what leaves may tell everything about everybody.",
    }.get(price.method)
    if certain is not None and plot is not None:
        raise BudgetError(f"--plot: there is no curve to draw. {certain}")
    words = [] if certain is None else [certain]
    if certain is None and (plot is not None or not json):
        from privlearn.reporting.privacy_curves import reading

        whole = evaluated(listed, replace_one=replace_one)
        if plot is not None:
            from privlearn.reporting.figures import plot_guarantee

            words = plot_guarantee(plot, whole, epsilon=price.epsilon, delta=price.delta)
        else:
            words = reading(whole)
    if json:
        sys.stdout.write(price.model_dump_json(indent=2) + "\n")
        return
    screen = console()
    screen.print(_price_line(price), highlight=False)
    for line in words:
        screen.print(line, highlight=False)


def _price_line(price: Any) -> str:
    from privlearn.accountants.shown_numbers import fixed, power_up, up

    kind = {"central": "DP", "joint": "joint DP", "local": "local DP"}[price.trust]
    return (
        f"{kind}, {price.adjacency}: (ε = {fixed(price.epsilon)}, δ = {up(price.delta)}), "
        f"method {price.method}, error bound {power_up(price.error_bound)}"
    )
