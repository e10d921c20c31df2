"""The command line: ``quickstart``, ``run``, ``audit``, ``check``, ``errata``, ``reproduce``.

``privlearn epsilon``, ``delta`` and ``calibrate`` answer for a declared list of mechanism runs.

Exit codes: 0 all is well; 1 an audit or a check found problems; 2 wrong use or bad input; 3 the
ledger is of a simulation; 4 the ledger cannot be read, or is hostile; 5 a check refuted nothing and
would not have found a fault of factor 2 either; 6 the ledger needs an extension of its format that
this version does not know; 130 stopped by SIGINT or SIGTERM, after saying what was spent.  An audit
of nothing but attestations finds no problem and exits with 0; its first line says that they are not
verified.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from privlearn.errors import LedgerError, LedgerFeatureError, PrivlearnError

app = typer.Typer(
    help="Private online learning that can be checked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
run_app = typer.Typer(help="Run a learner on data within a budget.", no_args_is_help=True)
app.add_typer(run_app, name="run")
reproduce_app = typer.Typer(help="Rerun the experiments of a paper.", no_args_is_help=True)
app.add_typer(reproduce_app, name="reproduce")

PROBLEMS, BAD_INPUT, SIMULATION, UNREADABLE, POWERLESS, UNKNOWN_FEATURE = 1, 2, 3, 4, 5, 6
INTERRUPTED = 130


@app.callback()
def _root() -> None:
    pass


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="New folder for the run.")] = Path("quickstart"),
    budget: Annotated[str, typer.Option(help="rho=…, mu=… or epsilon=…,delta=…")] = "rho=1",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated people.")] = 2026,
) -> None:
    """Serve 10,000 simulated people real cars, privately, and leave an auditable ledger."""
    console = _console()
    console.print(
        "A private learner shows each of 10,000 simulated people 10 of 100 real cars and learns "
        f"what people like,\nwithin joint {budget}. Noise is from a cryptographic source.\n"
    )
    _run({"data": "cars", "task": "market", "budget": budget, "seed": seed}, out)


@run_app.command("mnl")
def run_mnl(
    data: Annotated[str | None, typer.Option(help="'cars' or a CSV file in long form.")] = None,
    task: Annotated[str | None, typer.Option(help="'logged' or 'market' (cars only).")] = None,
    budget: Annotated[str | None, typer.Option(help="rho=…, mu=… or epsilon=…,delta=…")] = None,
    horizon: Annotated[int | None, typer.Option(help="Number of users, public.")] = None,
    items: Annotated[int | None, typer.Option(help="Items per user (CSV).")] = None,
    scale: Annotated[float | None, typer.Option(help="Public feature divisor (CSV).")] = None,
    outside: Annotated[
        bool | None, typer.Option("--outside/--no-outside", help="May users choose nothing?")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of simulated people.")] = None,
    simulate_noise: Annotated[
        int | None, typer.Option(help="Seed of reproducible noise; protects nobody.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the same names.")] = None,
    out: Annotated[Path, typer.Option(help="New folder for the run.")] = Path("out"),
) -> None:
    """Learn a multinomial logit from choices, privately."""
    flags = {
        "data": data,
        "task": task,
        "budget": budget,
        "horizon": horizon,
        "items": items,
        "scale": scale,
        "outside": outside,
        "seed": seed,
        "simulate_noise": simulate_noise,
    }
    settings = _settings(config) | {k: v for k, v in flags.items() if v is not None}
    _run(settings, out)


_WAYS = (
    "tofw: whitened, restarts, plain, buffered; pofw: auto, thresholds, choices, vertices; "
    "hdb: least-squares, gaussian, noisy_max.  The first is the default."
)


def _table_command(learner: str, help: str) -> None:
    """Adds ``privlearn run LEARNER``, on a table."""

    def run_on_table(
        data: Annotated[
            str | None,
            typer.Option(help="diabetes, breast_cancer, digits, or your CSV or Parquet file."),
        ] = None,
        target: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
        columns: Annotated[
            str | None, typer.Option(help="Features, a,b,…; default: all others.")
        ] = None,
        classes: Annotated[
            str | None, typer.Option(help="Labels of a classification, no,yes; or arms.")
        ] = None,
        bounds: Annotated[
            str | None, typer.Option(help="Public bounds of columns, a=0:120,b=-1:1,…")
        ] = None,
        feature_bound: Annotated[
            float | None, typer.Option(help="All other columns lie in ± this; public.")
        ] = None,
        row_bound: Annotated[
            float | None, typer.Option(help="Shrink longer scaled rows, public (tofw).")
        ] = None,
        label_bound: Annotated[
            float | None, typer.Option(help="Largest |label − centre|, public (regression).")
        ] = None,
        label_centre: Annotated[
            float | None, typer.Option(help="Public centre of the labels; default 0.")
        ] = None,
        scale: Annotated[
            str | None, typer.Option(help="'declared'; scaling by the data is refused.")
        ] = None,
        p: Annotated[float | None, typer.Option(help="Of the ℓp ball (tofw); default 2.")] = None,
        radius: Annotated[float | None, typer.Option(help="Of the set of parameters.")] = None,
        method: Annotated[str | None, typer.Option(help=_WAYS)] = None,
        sparse: Annotated[
            bool | None,
            typer.Option("--sparse", help="Few columns matter: DP-HDB, not least squares (hdb)."),
        ] = None,
        budget: Annotated[str | None, typer.Option(help="rho=…, mu=… or epsilon=…,delta=…")] = None,
        horizon: Annotated[int | None, typer.Option(help="Number of users, public.")] = None,
        held_out: Annotated[
            int | None, typer.Option(help="Rows after the horizon that score the fit.")
        ] = None,
        seed: Annotated[
            int | None, typer.Option(help="Order of a shipped table's rows; never of noise.")
        ] = None,
        simulate_noise: Annotated[
            int | None, typer.Option(help="Seed of reproducible noise; protects nobody.")
        ] = None,
        config: Annotated[Path | None, typer.Option(help="TOML file with the same names.")] = None,
        out: Annotated[Path, typer.Option(help="New folder for the run.")] = Path("out"),
    ) -> None:
        flags = {
            "data": data,
            "target": target,
            "columns": _listed(columns),
            "classes": _listed(classes),
            "bounds": None if bounds is None else _bounds(bounds),
            "feature_bound": feature_bound,
            "row_bound": row_bound,
            "label_bound": label_bound,
            "label_centre": label_centre,
            "scale": scale,
            "p": p,
            "radius": radius,
            "method": method,
            "sparse": sparse,
            "budget": budget,
            "horizon": horizon,
            "held_out": held_out,
            "seed": seed,
            "simulate_noise": simulate_noise,
            "learner": learner,
        }
        settings = _settings(config) | {k: v for k, v in flags.items() if v is not None}
        _run_table(settings, out)

    run_app.command(learner, help=help)(run_on_table)


_table_command("tofw", "Learn a linear model from a table, privately.")
_table_command(
    "pofw",
    "Learn a sparse linear model from a table, privately; columns should be centred on the middle "
    "of their declared bounds.",
)
_table_command("hdb", "Play a table's classes as the arms of a bandit, privately.")


def _local_command(learner: str, help: str) -> None:
    """Adds ``privlearn run LEARNER``, on customers whose devices randomise their answers."""

    def run_on_customers(
        data: Annotated[
            str | None, typer.Option(help="'electricity' (default), or your CPRM auto-loan file.")
        ] = None,
        declare_public: Annotated[
            bool | None, typer.Option("--declare-public", help="Your file's statistics are public.")
        ] = None,
        monthly_rate: Annotated[
            float | None, typer.Option(help="Discounts your file's payments; default: onemonth.")
        ] = None,
        budget: Annotated[
            str | None, typer.Option(help="ldp-sgd: epsilon=…; ldp-ols: epsilon=…,delta=…")
        ] = None,
        epsilon: Annotated[str | None, typer.Option(help="Short for a budget of epsilon=…")] = None,
        horizon: Annotated[
            int | None, typer.Option(help="Customers, public; default 50,000, loans 20,000.")
        ] = None,
        seed: Annotated[
            int | None, typer.Option(help="Seed of simulated customers; default 0; never of noise.")
        ] = None,
        simulate_noise: Annotated[
            int | None, typer.Option(help="Seed of reproducible noise; protects nobody.")
        ] = None,
        config: Annotated[Path | None, typer.Option(help="TOML file with the same names.")] = None,
        out: Annotated[Path, typer.Option(help="New folder for the run.")] = Path("out"),
    ) -> None:
        if epsilon is not None and budget is not None:
            _fail("epsilon, budget: give one of them", BAD_INPUT)
        flags = {
            "data": data,
            "declare_public": declare_public,
            "monthly_rate": monthly_rate,
            "budget": budget if epsilon is None else f"epsilon={epsilon}",
            "horizon": horizon,
            "seed": seed,
            "simulate_noise": simulate_noise,
            "learner": learner,
        }
        settings = _settings(config) | {k: v for k, v in flags.items() if v is not None}
        _run_local(settings, out)

    run_app.command(learner, help=help)(run_on_customers)


_local_command("ldp-sgd", "Learn prices from yes and no under local privacy, by gradient steps.")
_local_command("ldp-ols", "Learn prices from yes and no under local privacy, by least squares.")


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else _parts(text)


def _parts(text: str) -> list[str]:
    """What stands between commas; double quotes protect commas, as in a file."""
    import csv

    return [part.strip() for part in next(csv.reader([text], skipinitialspace=True), [""])]


def _bounds(text: str) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for part in _parts(text):
        name, _, interval = part.rpartition("=")
        try:
            low, high = (float(end) for end in interval.split(":"))
        except ValueError:
            _fail(f"bounds: {part.strip()!r} must be name=low:high", BAD_INPUT)
        if not name.strip() or name.strip() in found:
            _fail(f"bounds: {part.strip()!r} must name a column, each once", BAD_INPUT)
        found[name.strip()] = (low, high)
    return found


@app.command()
def audit(
    ledger: Annotated[Path, typer.Argument(help="Ledger file, or its JSON-lines export.")],
    delta: Annotated[float | None, typer.Option(help="Where to state ε.")] = None,
    head: Annotated[str | None, typer.Option(help="A last hash that was kept.")] = None,
    user: Annotated[
        int | None, typer.Option(min=0, help="For this arrival index; default: the largest.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="For a person with so many rows.")] = 1,
    full: Annotated[bool, typer.Option("--full", help="Print every assumption.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only, with everything.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw what was spent over time to this file.")
    ] = None,
) -> None:
    """Recompute the guarantee from a ledger alone.

    Exit codes: 0 verified, or attested; 1 problems; 2 wrong use; 3 a simulation; 4 the ledger
    cannot be read.
    """
    from privlearn.accountants import audit as recompute
    from privlearn.report import print_certificate
    from privlearn.visible import in_json

    try:
        certificate = recompute(ledger, delta=delta, head=head, user=user, rounds=rounds)
    except LedgerError as error:
        _fail(str(error), _unread(error))
    if json:
        sys.stdout.write(in_json(certificate.model_dump_json(indent=2)) + "\n")
    else:
        print_certificate(certificate, _console(), full=full)
    if plot is not None:
        from privlearn.pictures import plot_spending

        with _clear_errors():
            plot_spending(plot, ledger)
    if certificate.problems:
        raise typer.Exit(PROBLEMS)
    if certificate.simulation:
        raise typer.Exit(SIMULATION)


EventsFile = Annotated[Path, typer.Argument(help="Event list, .json or .toml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
PlotFile = Annotated[Path | None, typer.Option(help="Draw trade-off curve and ε(δ) to this file.")]
ReplaceOne = Annotated[
    bool, typer.Option("--as-replace-one", help="Convert add-remove to replace-one, explicitly.")
]


@app.command()
def epsilon(
    events: EventsFile,
    delta: Annotated[float, typer.Option(help="Where to state ε.")],
    json: AsJson = False,
    plot: PlotFile = None,
    as_replace_one: ReplaceOne = False,
) -> None:
    """ε at δ of a declared list of mechanism runs."""
    from privlearn.event_pricing import epsilon_price

    with _clear_errors():
        listed = _events(events)
        price = epsilon_price(listed, delta, replace_one=as_replace_one)
        _show_price(listed, price, json=json, plot=plot, replace_one=as_replace_one)


@app.command()
def delta(
    events: EventsFile,
    epsilon: Annotated[float, typer.Option(help="Where to state δ, in nats.")],
    json: AsJson = False,
    plot: PlotFile = None,
    as_replace_one: ReplaceOne = False,
) -> None:
    """δ at ε of a declared list of mechanism runs."""
    from privlearn.event_pricing import delta_price

    with _clear_errors():
        listed = _events(events)
        price = delta_price(listed, epsilon, replace_one=as_replace_one)
        _show_price(listed, price, json=json, plot=plot, replace_one=as_replace_one)


@app.command()
def calibrate(
    events: EventsFile,
    epsilon: Annotated[str, typer.Option(help="ε to keep, in nats.")],
    delta: Annotated[str, typer.Option(help="δ to keep.")],
    shares: Annotated[
        str | None, typer.Option(help="Share of ρ for each event, such as 2,1,1.")
    ] = None,
    json: AsJson = False,
) -> None:
    """The least noise with which a declared list of mechanism runs keeps (ε, δ)."""
    from privlearn.budgets import ApproxDP
    from privlearn.event_pricing import calibrate_events

    with _clear_errors():
        parts = None if shares is None else [share.strip() for share in shares.split(",")]
        found = calibrate_events(_events(events), ApproxDP(epsilon, delta), shares=parts)
    if json:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
        return
    console = _console()
    console.print(_price_line(found), highlight=False)
    for position, event in enumerate(found.events["events"]):
        numbers = ", ".join(f"{name} {value}" for name, value in event.items())
        console.print(
            f"events[{position}]  noise × {found.factors[position]}: {numbers}",
            markup=False,
            highlight=False,
        )


def _events(path: Path) -> Any:
    from privlearn.events import read_event_list

    return read_event_list(path)


def _show_price(
    listed: Any, price: Any, *, json: bool, plot: Path | None, replace_one: bool
) -> None:
    from privlearn.event_pricing import evaluated

    if plot is not None or not json:
        from privlearn.pictures import plot_guarantee, reading

        whole = evaluated(listed, replace_one=replace_one)
        if plot is not None:
            words = plot_guarantee(plot, whole, epsilon=price.epsilon, delta=price.delta)
        else:
            words = reading(whole)
    if json:
        sys.stdout.write(price.model_dump_json(indent=2) + "\n")
        return
    console = _console()
    console.print(_price_line(price), highlight=False)
    for line in words:
        console.print(line, highlight=False)


def _price_line(price: Any) -> str:
    from math import ceil

    kind = {"central": "DP", "joint": "joint DP", "local": "local DP"}[price.trust]
    shown = ceil(price.epsilon * 1e4) / 1e4
    return (
        f"{kind}, {price.adjacency}: (ε = {shown:.4f}, δ = {price.delta:.4g}), "
        f"method {price.method}, error bound {price.error_bound:.1e}"
    )


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turns errors made on purpose into one clear line and exit code 2."""
    try:
        yield
    except OSError as error:
        _fail(f"{error.filename} cannot be opened: {error.strerror}", BAD_INPUT)
    except (PrivlearnError, ValueError, OverflowError) as error:
        _fail("; ".join(str(error).splitlines()), BAD_INPUT)


@app.command()
def errata(
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Recompute the published calibrations: what papers claim against what is true."""
    from json import dumps

    from privlearn.errata import errata as recompute
    from privlearn.errata import print_errata

    rows = recompute()
    if json:
        data = [row.to_dict() for row in rows]
        sys.stdout.write(dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        print_errata(rows, _console())


@reproduce_app.callback()
def _reproduce() -> None:
    pass


@reproduce_app.command("cho-sun")
def reproduce_cho_sun(
    figure: Annotated[str, typer.Argument(help="fig4, fig5, fig6, fig7 or expedia.")],
    replicates: Annotated[
        int | None, typer.Option(help="Default 30, expedia 10; more can be added later.")
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(help="Number of users; default 10,000, expedia 100,000.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes; results do not depend on it.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of simulated people, noise and coins.")] = 11001,
    out: Annotated[Path, typer.Option(help="Folder; finished runs in it are kept.")] = Path(
        "reproduction"
    ),
    data: Annotated[Path | None, typer.Option(help="Your train.csv (expedia only).")] = None,
    declare_public: Annotated[
        bool, typer.Option("--declare-public", help="Its statistics are public (expedia only).")
    ] = False,
) -> None:
    """DPMNL, Cho and Sun (2025), Section 5: published and proved noise side by side."""
    from privlearn import reproduce
    from privlearn._reproduction import print_findings

    request = reproduce.Request(figure, replicates, horizon, jobs, seed, out, data, declare_public)
    try:
        with _bars() as start:
            made = reproduce.reproduce_cho_sun(request, start)
    except KeyboardInterrupt:
        _fail("stopped; finished runs are kept, the same command goes on", INTERRUPTED)
    console = _console()
    print_findings(made.findings, console)
    for path in made.files:
        console.print(str(path), highlight=False, soft_wrap=True)


def _reproduce_han(
    target: str, seeds: int, first: int, horizons: str, jobs: int, out: Path
) -> None:
    from privlearn import _han_reproduction

    try:
        chosen = tuple(int(part) for part in horizons.split(",")) if horizons else None
    except ValueError:
        _fail(f"horizons = {horizons!r}: must be integers, joined by commas", BAD_INPUT)
    request = _han_reproduction.Request(target, seeds, chosen, jobs, first, out)
    try:
        with _bars() as start:
            made = _han_reproduction.reproduce_han(request, start)
    except KeyboardInterrupt:
        _fail("stopped; finished runs are kept, the same command goes on", INTERRUPTED)
    console = _console()
    for line in (*made.summary, *map(str, made.files)):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


@reproduce_app.command("table5.1")
def reproduce_table_5_1(
    seeds: Annotated[int, typer.Option(help="Runs of each cell; more can be added later.")] = 20,
    first_seed: Annotated[int, typer.Option(help="The first seed of people and noise.")] = 7300,
    horizons: Annotated[
        str, typer.Option(help="Numbers of users; default 1000,2000,5000,10000.")
    ] = "",
    jobs: Annotated[int, typer.Option(help="Processes; results do not depend on it.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder; finished runs in it are kept.")] = Path(
        "reproduction"
    ),
) -> None:
    """Private convex optimisation, Han et al. (2022), Table 5.1: as published, true, and ours."""
    _reproduce_han("table5.1", seeds, first_seed, horizons, jobs, out)


@reproduce_app.command("fig5.1")
def reproduce_figure_5_1(
    seeds: Annotated[int, typer.Option(help="Runs of each cell; more can be added later.")] = 20,
    first_seed: Annotated[int, typer.Option(help="The first seed of people and noise.")] = 7300,
    horizons: Annotated[str, typer.Option(help="Number of users; default 10000.")] = "",
    jobs: Annotated[int, typer.Option(help="Processes; results do not depend on it.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder; finished runs in it are kept.")] = Path(
        "reproduction"
    ),
) -> None:
    """High-dimensional bandit, Han et al. (2022), Figure 5.1: DP-HDB and its rivals."""
    _reproduce_han("fig5.1", seeds, first_seed, horizons, jobs, out)


@reproduce_app.command("han2021")
def reproduce_han2021(
    targets: Annotated[list[str], typer.Argument(metavar="TARGET…", help="fig5.1, lending.")],
    seeds: Annotated[int, typer.Option(help="Runs of each cell; more can be added later.")] = 10,
    first_seed: Annotated[int, typer.Option(help="The first seed of people and noise.")] = 7400,
    horizon: Annotated[
        int | None, typer.Option(help="Number of users; default 50,000, lending 100,000.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes; results do not depend on it.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder; finished runs in it are kept.")] = Path(
        "reproduction"
    ),
    data: Annotated[Path | None, typer.Option(help="Your CPRM file (lending only).")] = None,
    declare_public: Annotated[
        bool, typer.Option("--declare-public", help="Its statistics are public (lending only).")
    ] = False,
) -> None:
    """Local bandits, Han et al. (2021): Figure 5.1 and the auto loans, at true prices and ours."""
    from privlearn import _han2021_reproduction as han2021

    console = _console()
    for target in targets:
        file = data if target == "lending" or "lending" not in targets else None
        request = han2021.Request(
            target, seeds, horizon, jobs, first_seed, out, file, declare_public
        )
        try:
            with _bars() as start:
                made = han2021.reproduce_han2021(request, start)
        except KeyboardInterrupt:
            _fail("stopped; finished runs are kept, the same command goes on", INTERRUPTED)
        for line in (*made.summary, *map(str, made.files)):
            console.print(line, highlight=False, soft_wrap=True, markup=False)


@app.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|all|FILE.py:FACTORY]...",
            help="What to check; default: all mechanisms and learners, then the zoo.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    list_names: Annotated[bool, typer.Option("--list", help="Print the names and stop.")] = False,
    confidence: Annotated[float, typer.Option(help="Of each sampling bound.")] = 0.999,
    samples: Annotated[int, typer.Option(help="Outputs per sampling check.")] = 5_000,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and simulated noise.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: the cores.")] = None,
) -> None:
    """Check that mechanisms and learners earn what they claim; yours too.

    Exit codes: 0 nothing was refuted, and every check would have found a fault of factor 2; 1 a
    claim or a law was refuted, or a check could not be done; 2 wrong use; 5 nothing was refuted,
    but something was checked without power: a fault of factor 2 that was planted in it was not
    found either.
    """
    from privlearn.checking import gate
    from privlearn.report import print_report

    with _clear_errors():
        if list_names:
            typer.echo("\n".join(gate.catalogue()))
            return
        settings = gate.Settings(confidence, samples, seed)
        checks = gate.chosen(names or ["all"])
        workers = min(jobs or os.cpu_count() or 1, len(checks))
        report = gate.run(checks, settings, _named_bar(len(checks), quiet=json), jobs=workers)
    if json:
        sys.stdout.write(report.model_dump_json(indent=2) + "\n")
    else:
        print_report(report, _console())
    if not report.passed:
        raise typer.Exit(PROBLEMS)
    if report.powerless:
        raise typer.Exit(POWERLESS)


def _named_bar(length: int, *, quiet: bool) -> Callable[[str], None]:
    from tqdm import tqdm

    bar = tqdm(total=length, unit=" checks", disable=True if quiet else None, leave=False)

    def advance(name: str) -> None:
        bar.set_description(f"{name[:40]:40}")
        bar.update()
        if bar.n == length:
            bar.close()

    return advance


def _settings(path: Path | None) -> dict[str, Any]:
    import tomllib

    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        _fail(f"{path} cannot be read: {error.strerror}", BAD_INPUT)
    except tomllib.TOMLDecodeError as error:
        _fail(f"{path} is not TOML: {error}", BAD_INPUT)


def _validated(form: Any, settings: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    try:
        return form(**settings)
    except ValidationError as error:
        _fail("; ".join(map(_detail, error.errors())), BAD_INPUT)


def _detail(item: Any) -> str:
    """One thing that is wrong with the settings: its name, its value and what is accepted."""
    name = ".".join(map(str, item["loc"]))
    told = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing":
        return f"{name}: must be given"
    if not name:
        return f"settings: {told}"
    value = item["input"]
    shown = f" = {value!r}" if isinstance(value, int | float | str) else ""
    return f"{name}{shown}: {told}"


def _run(settings: dict[str, Any], out: Path) -> None:
    console = _console()
    with _stoppable(out):
        from privlearn import runs
        from privlearn.report import print_certificate

        config = _validated(runs.RunConfig, settings)
        work = runs.run_market if config.task == "market" else runs.run_logged
        with _bars() as progress:
            outcome = work(config, out, progress)
    shown = ", ".join(f"{name} {value}" for name, value in outcome.tastes[:5])
    console.print(f"strongest tastes learned: {shown}\n", highlight=False)
    console.print("for the operator only:", style="dim")
    for line in outcome.lines:
        console.print(f"  {line}", markup=False, highlight=False)
    console.print()
    print_certificate(outcome.certificate, console)
    _show_folders(outcome.folders, console, "ledger, billboard, certificate, learner")


def _run_table(settings: dict[str, Any], out: Path) -> None:
    with _clear_errors(), _stoppable(out):
        from privlearn import table_runs

        config = _validated(table_runs.TableConfig, settings)
        with _bars() as progress:
            outcome = table_runs.run_table(config, out, progress)
    _show_outcome(outcome, "ledger, billboard, certificate, learner")


def _run_local(settings: dict[str, Any], out: Path) -> None:
    with _clear_errors(), _stoppable(out):
        from privlearn import local_runs

        config = _validated(local_runs.LocalRunConfig, settings)
        with _bars() as progress:
            outcome = local_runs.run_local(config, out, progress)
    _show_outcome(outcome, "ledger of attestations, configuration, certificate, model")


def _show_outcome(outcome: Any, public: str) -> None:
    from privlearn.report import print_certificate

    console = _console()
    for line in outcome.released:
        console.print(line, markup=False, highlight=False)
    console.print("\nfor the operator only:", style="dim")
    for line in outcome.lines:
        console.print(f"  {line}", markup=False, highlight=False)
    console.print()
    print_certificate(outcome.certificate, console)
    _show_folders(outcome.folders, console, public)


def _show_folders(folders: Any, console: Any, public: str) -> None:
    console.print(f"\npublic   {folders.public}   ({public})")
    console.print(f"private  {folders.private}   (what only the operator may see)")
    console.print(
        f"audit it: privlearn audit {folders.public / 'ledger.db'}", style="bold", soft_wrap=True
    )


@contextmanager
def _stoppable(out: Path) -> Iterator[None]:
    """A run that is stopped says what its ledger says was spent; one too large says so."""
    from privlearn import interruption

    before = interruption.present_ledgers(out)
    try:
        with interruption.termination_interrupts():
            yield
    except KeyboardInterrupt:
        with interruption.undisturbed():
            for line in interruption.spent_lines(out, before):
                typer.echo(line, err=True)
        raise typer.Exit(INTERRUPTED) from None
    except MemoryError:
        with interruption.undisturbed():
            told = "; ".join(interruption.spent_lines(out, before))
        _fail(f"not enough memory for so many users, items or columns; {told}", BAD_INPUT)


@contextmanager
def _bars() -> Iterator[Callable[..., Callable[[int], None]]]:
    from tqdm import tqdm

    bars: list[Any] = []

    def start(name: str, length: int, done: int = 0, unit: str = " users") -> Callable[[int], None]:
        bar = tqdm(total=length, initial=done, desc=f"{name:22}", unit=unit, disable=None)
        bars.append(bar)

        def advance(users: int) -> None:
            bar.update(users)

        return advance

    try:
        yield start
    finally:
        for bar in bars:
            bar.close()


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 110)


def _fail(message: str, code: int) -> NoReturn:
    _say_error(message)
    raise typer.Exit(code)


def _say_error(message: str) -> None:
    """One line: a message may quote a file that somebody else wrote."""
    from privlearn.visible import visible

    typer.echo(f"error: {visible('; '.join(message.splitlines()))}", err=True)


def _unread(error: LedgerError) -> int:
    return UNKNOWN_FEATURE if isinstance(error, LedgerFeatureError) else UNREADABLE


def main() -> None:
    """Entry point: errors made on purpose become one clear line and an exit code."""
    try:
        app()
    except (PrivlearnError, ValueError, OverflowError) as error:
        _say_error(str(error))
        sys.exit(_unread(error) if isinstance(error, LedgerError) else BAD_INPUT)
