"""``privlearn errata``, ``privlearn reproduce``, ``privlearn run ldp-sgd`` and ``ldp-ols``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from privlearn.cli.output import BAD_INPUT, INTERRUPTED, console, fail, progress_bars
from privlearn.cli.run import Runnable
from privlearn_studies.local_config import LocalConfig

_LOCAL = "privlearn_studies.local_runs:run_local"
# Simulated devices and their secrets end with their process.
LDP_SGD: Final = Runnable(
    LocalConfig,
    _LOCAL,
    "Learn prices from yes and no under local privacy, by gradient steps.",
    goes_on=False,
)
LDP_OLS: Final = Runnable(
    LocalConfig,
    _LOCAL,
    "Learn prices from yes and no under local privacy, by least squares.",
    goes_on=False,
)

reproduce_app = typer.Typer(
    help="Rerun the experiments of a paper.", no_args_is_help=True, add_completion=False
)

REPRODUCTION: Final = Path("reproduction")
Folder = Annotated[Path, typer.Option(help="Folder; finished runs in it are kept.")]
Jobs = Annotated[int, typer.Option(help="Processes; results do not depend on it.")]
Seeds = Annotated[int, typer.Option(help="Runs of each cell; more can be added later.")]
FirstSeed = Annotated[int, typer.Option(help="The first seed of people and noise.")]


def errata(
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Recompute the published calibrations: what papers claim against what is true.

    Exit codes: 0 computed; 2 wrong use.
    """
    from json import dumps

    from privlearn_studies.papers.errata import errata as recompute
    from privlearn_studies.papers.errata import print_errata

    rows = recompute()
    if json:
        data = [row.to_dict() for row in rows]
        sys.stdout.write(dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        print_errata(rows, console())


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
    jobs: Jobs = 2,
    seed: Annotated[int, typer.Option(help="Seed of simulated people, noise and coins.")] = 11001,
    out: Folder = REPRODUCTION,
    data: Annotated[Path | None, typer.Option(help="Your train.csv (expedia only).")] = None,
    declare_public: Annotated[
        bool, typer.Option("--declare-public", help="Its statistics are public (expedia only).")
    ] = False,
) -> None:
    """DPMNL, Cho and Sun (2025), Section 5: published and proved noise side by side.

    Exit codes: 0 done; 2 wrong use; 130 stopped, and finished runs are kept.
    """
    from privlearn_studies.papers.cho_sun import reproduction
    from privlearn_studies.papers.cho_sun.tables import print_findings

    request = reproduction.ChoSunRequest(
        figure, replicates, horizon, jobs, seed, out, data, declare_public
    )
    try:
        with progress_bars() as start:
            made = reproduction.reproduce_cho_sun(request, start)
    except KeyboardInterrupt:
        fail("stopped; finished runs are kept, the same command goes on", INTERRUPTED)
    screen = console()
    print_findings(made.summary, screen)
    for path in made.files:
        screen.print(str(path), highlight=False, soft_wrap=True)


def _reproduce_han(
    target: str, seeds: int, first: int, horizons: str, jobs: int, out: Path
) -> None:
    from privlearn_studies.papers.han2022 import reproduction

    try:
        chosen = tuple(int(part) for part in horizons.split(",")) if horizons else None
    except ValueError:
        fail(f"horizons = {horizons!r}: must be integers, joined by commas", BAD_INPUT)
    request = reproduction.Han2022Request(target, seeds, chosen, jobs, first, out)
    try:
        with progress_bars() as start:
            made = reproduction.reproduce_han2022(request, start)
    except KeyboardInterrupt:
        fail("stopped; finished runs are kept, the same command goes on", INTERRUPTED)
    screen = console()
    for line in (*made.summary, *map(str, made.files)):
        screen.print(line, highlight=False, soft_wrap=True, markup=False)


@reproduce_app.command("table5.1")
def reproduce_table_5_1(
    seeds: Seeds = 20,
    first_seed: FirstSeed = 7300,
    horizons: Annotated[
        str, typer.Option(help="Numbers of users; default 1000,2000,5000,10000.")
    ] = "",
    jobs: Jobs = 2,
    out: Folder = REPRODUCTION,
) -> None:
    """Private convex optimisation, Han et al. (2022), Table 5.1: as published, true, and ours.

    Exit codes: 0 done; 2 wrong use; 130 stopped, and finished runs are kept.
    """
    _reproduce_han("table5.1", seeds, first_seed, horizons, jobs, out)


@reproduce_app.command("fig5.1")
def reproduce_figure_5_1(
    seeds: Seeds = 20,
    first_seed: FirstSeed = 7300,
    horizons: Annotated[str, typer.Option(help="Number of users; default 10000.")] = "",
    jobs: Jobs = 2,
    out: Folder = REPRODUCTION,
) -> None:
    """High-dimensional bandit, Han et al. (2022), Figure 5.1: DP-HDB and its rivals.

    Exit codes: 0 done; 2 wrong use; 130 stopped, and finished runs are kept.
    """
    _reproduce_han("fig5.1", seeds, first_seed, horizons, jobs, out)


@reproduce_app.command("han2021")
def reproduce_han2021(
    targets: Annotated[list[str], typer.Argument(metavar="TARGET…", help="fig5.1, lending.")],
    seeds: Seeds = 10,
    first_seed: FirstSeed = 7400,
    horizon: Annotated[
        int | None, typer.Option(help="Number of users; default 50,000, lending 100,000.")
    ] = None,
    jobs: Jobs = 2,
    out: Folder = REPRODUCTION,
    data: Annotated[Path | None, typer.Option(help="Your CPRM file (lending only).")] = None,
    declare_public: Annotated[
        bool, typer.Option("--declare-public", help="Its statistics are public (lending only).")
    ] = False,
) -> None:
    """Local bandits, Han et al. (2021): Figure 5.1 and the auto loans, at true prices and ours.

    Exit codes: 0 done; 2 wrong use; 130 stopped, and finished runs are kept.
    """
    from privlearn_studies.papers.han2021 import reproduction

    screen = console()
    for target in targets:
        file = data if target == "lending" or "lending" not in targets else None
        request = reproduction.Han2021Request(
            target, seeds, horizon, jobs, first_seed, out, file, declare_public
        )
        try:
            with progress_bars() as start:
                made = reproduction.reproduce_han2021(request, start)
        except KeyboardInterrupt:
            fail("stopped; finished runs are kept, the same command goes on", INTERRUPTED)
        for line in (*made.summary, *map(str, made.files)):
            screen.print(line, highlight=False, soft_wrap=True, markup=False)
