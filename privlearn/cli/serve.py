"""``privlearn serve`` and ``privlearn access``: a service, and who may call it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from privlearn.cli.output import BAD_INPUT, clear_errors, fail

EXAMPLE = Path("privlearn-example")

access_app = typer.Typer(
    help="Access tokens of a service: see docs/how-to/run-a-service.md.", no_args_is_help=True
)
_Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file of the service.")]


def _check_installed() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        fail(f"{error}: needs the extra, pip install 'privlearn[serve]'", BAD_INPUT)


def serve(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="TOML file; with --example, a new folder."),
    ] = None,
    begin: Annotated[
        bool,
        typer.Option("--begin", help="Begin: make the ledger, and what else is not there yet."),
    ] = False,
    example: Annotated[
        bool,
        typer.Option("--example", help="Write a configuration for the shipped cars, and serve it."),
    ] = False,
    glm: Annotated[
        bool, typer.Option("--glm", help="With --example: of actions with features.")
    ] = False,
    bandit: Annotated[
        bool, typer.Option("--bandit", help="With --example: of arms that contexts choose.")
    ] = False,
    arms: Annotated[
        bool, typer.Option("--arms", help="With --example: of arms without contexts.")
    ] = False,
    test: Annotated[bool, typer.Option("--test", help="With --example: of an A/B test.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check it (with --begin: as it is to begin; with --example: write it), and serve "
            "nothing.",
        ),
    ] = False,
) -> None:
    """Serve a private learner over HTTP, on this machine only if nothing else is asked for.

    Exit codes: 0 stopped, or all users were served; 2 wrong use, a
    configuration with a mistake, or files that cannot be gone on with.
    """
    _check_installed()
    from privlearn.service.config import read_config
    from privlearn.service.example import Example, write_example

    with clear_errors():
        options: dict[Example, bool] = {
            "glm": glm,
            "bandit": bandit,
            "arms": arms,
            "test": test,
        }
        chosen = [kind for kind, given in options.items() if given]
        if chosen and not example:
            fail(
                f"--{chosen[0]}: goes with --example; a configuration names its learner", BAD_INPUT
            )
        if len(chosen) > 1:
            fail(f"--{chosen[0]}, --{chosen[1]}: give one of them", BAD_INPUT)
        if example:
            config, begin = write_example(config or EXAMPLE, of=[*chosen, "cars"][0]), True
            typer.echo(f"written: {config} and, beside it, access tokens and keys", err=True)
        if config is None:
            fail("CONFIG: name a TOML file; --example writes one", BAD_INPUT)
        found = read_config(config)
        found.learner.make()
        from privlearn.service.books import check_begins
        from privlearn.service.supervisor import check as check_files
        from privlearn.service.supervisor import run

        if check:
            check_begins(found)
            path = found.ledger.path
            check_files(found, begin=begin or not (path is None or found.at(path).exists()))
            if not example:
                typer.echo(f"{config}: no mistake was found", err=True)
            return
        code = run(config, found, begin=begin)
    if code:
        raise typer.Exit(code)


@access_app.command("add")
def add(
    config: _Config,
    name: Annotated[str, typer.Option(help="Whom it is for.")],
    role: Annotated[str, typer.Option(help="serve, watch or operator.")],
    days: Annotated[int | None, typer.Option(min=1, max=36_525, help="Until it expires.")] = None,
) -> None:
    """Make an access token and print it, once; the service keeps a hash.

    Exit codes: 0 made; 2 the name is taken, or the file cannot be written.
    """
    from privlearn.service import access

    with clear_errors():
        expires = None if days is None else timedelta(days=days)
        typer.echo(access.add(_file(config), name, role, expires=expires))


@access_app.command("remove")
def remove(config: _Config, name: Annotated[str, typer.Option(help="Whose it is.")]) -> None:
    """End an access token; a running service knows within a second.

    Exit codes: 0 removed; 2 there is none.
    """
    from privlearn.service import access

    with clear_errors():
        access.remove(_file(config), name)


@access_app.command("list")
def show(config: _Config) -> None:
    """Print whose access tokens there are: name, role, and until when.

    Exit codes: 0 printed; 2 the file cannot be read.
    """
    from privlearn.service import access

    with clear_errors():
        for line in access.listed(_file(config)):
            typer.echo("  ".join(line))


def _file(config: Path) -> Path:
    from privlearn.service.config import read_config

    found = read_config(config)
    return found.at(found.access.file)
