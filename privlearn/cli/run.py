"""``privlearn quickstart`` and ``privlearn run``; the options are the settings of a run's file."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from privlearn.cli.commands import announcing_group
from privlearn.cli.output import (
    BAD_INPUT,
    FORESEEN,
    INTERRUPTED,
    clear_errors,
    console,
    fail,
    of_error,
    progress_bars,
    say_error,
)
from privlearn.runs.arm_configs import ABTestConfig, ArmConfig
from privlearn.runs.configs import ChoiceConfig, RunConfig, TableConfig
from privlearn.runs.glm_configs import GLMConfig
from privlearn.runs.persons import PersonConfig, VisitConfig
from privlearn.storage.foreign_files import LARGEST_SETTINGS, read_whole, toml_in

run_app = typer.Typer(
    cls=announcing_group("run "),
    help="Run a learner on data within a budget.",
    no_args_is_help=True,
)

_NAMES = {"schema_file": "--schema"}  # Options that are not named as their setting
_FILE_ONLY = {"learner", "side_information"}  # Settings that are no options


def quickstart(
    out: Annotated[Path, typer.Option(help="New folder for the run.")] = Path("quickstart"),
    budget: Annotated[str, typer.Option(help="rho=…, mu=… or epsilon=…,delta=…")] = "rho=1",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated people.")] = 2026,
) -> None:
    """Serve 2,000 simulated people, five times each, privately; leave an auditable ledger.

    Exit codes: 0 done; 2 wrong use, a folder that exists, or a disk that is full; 130 stopped. A
    run that has begun says what was spent.
    """
    console().print(
        "A private learner shows 2,000 simulated people, who come five times each, 10 of 100 real "
        f"cars and learns what people like, within a privacy budget of {budget} for every person.\n"
    )
    settings = {"data": "cars", "task": "returning", "budget": budget, "seed": seed}
    options = " ".join(f"--{name} {value}" for name, value in settings.items())
    _run(CHOICES, settings, out, command=f"privlearn run mnl {options} --out {out}")


_EXIT_CODES = (
    "Exit codes: 0 done; 2 wrong use, data that cannot be learned from, or a disk that is full; "
    "130 stopped. A run that has begun says what was spent."
)


@dataclass(frozen=True, slots=True)
class Runnable:
    """What ``privlearn run NAME`` runs.

    Args:
        form: its settings, each of which is an option.
        work: ``module:function``, imported when it runs, as it needs learners and accountants.
        help: one sentence.
        goes_on: whether a run that was cut off can go on, and its data be looked at before.
    """

    form: type[RunConfig]
    work: str
    help: str
    goes_on: bool = True


def add_run(app: typer.Typer, name: str, run: Runnable) -> None:
    """Adds a command for a run, with an option for every setting."""
    form = run.form
    fixed = {"learner": name} if "learner" in form.model_fields else {}

    def command(
        config: Path | None, out: Path, *, resume: bool = False, look: bool = False, **options: Any
    ) -> None:
        given = {name: value for name, value in options.items() if value is not None}
        settings = _settings(config) | given | fixed
        if look:
            _look(form, settings, out)
        else:
            _run(run, settings, out, resume=resume)

    names = [name for name in _in_order(form) if name not in _FILE_ONLY]
    options = [_option(name, form.model_fields[name]) for name in names]
    file = Annotated[Path | None, typer.Option(help="TOML file with the same names.")]
    folder = Annotated[Path, typer.Option(help="New folder for the run.")]
    going_on = Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with a run that was cut off in that folder, with the same settings.",
        ),
    ]
    looking = Annotated[
        bool,
        typer.Option(
            "--look",
            help="Read the data, spend nothing, and write to the private half of the folder which "
            "records would count, and why others not.",
        ),
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    options.append(inspect.Parameter("config", keyword, default=None, annotation=file))
    options.append(inspect.Parameter("out", keyword, default=Path("out"), annotation=folder))
    if run.goes_on:
        options.append(inspect.Parameter("resume", keyword, default=False, annotation=going_on))
        options.append(inspect.Parameter("look", keyword, default=False, annotation=looking))
    # typer reads options from both of these
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    app.command(name, help=f"{run.help}\n\n{_EXIT_CODES}")(command)


def _in_order(form: type[RunConfig]) -> list[str]:
    of_persons = next(
        (kind for kind in (PersonConfig, VisitConfig) if issubclass(form, kind)), None
    )
    shared = [] if of_persons is None else [*of_persons.model_fields]
    own = [name for name in form.model_fields if name not in {*shared, *RunConfig.model_fields}]
    persons = [name for name in shared if name not in RunConfig.model_fields]
    return [*own, *persons, *RunConfig.model_fields]


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """A setting on the command line; None where it is not given."""
    text = " ".join((field.description or "").split())
    names = [_NAMES[name]] if name in _NAMES else []
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_typed(field.annotation) | None, typer.Option(*names, help=text)],
    )


def _typed(annotation: Any) -> type:
    while parts := get_args(annotation):
        if get_origin(annotation) is tuple:
            return str
        annotation = parts[0]
    return annotation if annotation in (bool, int, float) else str


CHOICES: Final = Runnable(
    ChoiceConfig,
    "privlearn.runs.choices:run_choices",
    "Learn a multinomial logit from choices, privately.",
)
ARMS: Final = Runnable(
    ArmConfig,
    "privlearn.runs.arms:run_arms",
    "Find the best of several arms (banners, prices, pages) while visitors are served, privately. "
    "A log is played again: who is to be shown an arm is the next line of that arm. Its arms must "
    "have been drawn at random, and are public; its rewards are protected.",
)
TEST: Final = Runnable(
    ABTestConfig,
    "privlearn.runs.ab_tests:run_test",
    "Did the new page help? Compare arms with a control (the first of them), privately; the test "
    "may be looked at, and stopped, at any time. In a log, lines that stand near each other are "
    "compared: its arms must have been drawn at random, and are public; its rewards are protected.",
)
GLM: Final = Runnable(
    GLMConfig,
    "privlearn.runs.glm:run_glm",
    "What do people like? Learn how the reward of an action (a film, a price, a banner) follows "
    "from its features, privately. A log is learned from; without --data visitors are simulated, "
    "and served.",
)
_TABLES: Final = {
    "tofw": "Learn a linear model from a table, privately.",
    "pofw": "Learn a sparse linear model from a table, privately; columns should be centred on the "
    "middle of their declared bounds.",
    "hdb": "Play a table's classes as the arms of a bandit, privately.",
}


add_run(run_app, "mnl", CHOICES)
add_run(run_app, "glm", GLM)
add_run(run_app, "arms", ARMS)
add_run(run_app, "test", TEST)
for _name, _help in _TABLES.items():
    add_run(run_app, _name, Runnable(TableConfig, "privlearn.runs.tables:run_table", _help))


def _run(
    run: Runnable,
    settings: dict[str, Any],
    out: Path,
    *,
    resume: bool = False,
    command: str = "privlearn run",
) -> None:
    how_to_go_on = _how_to_go_on(run, settings, command)
    with clear_errors(), ends_early(out, how_to_go_on, resume=resume):
        config = _validated(run.form, settings)
        module, _, function = run.work.partition(":")
        with progress_bars() as progress:
            going_on = {"resume": True} if resume else {}
            outcome = getattr(import_module(module), function)(config, out, progress, **going_on)
    show_outcome(outcome)


def _look(form: type[RunConfig], settings: dict[str, Any], out: Path) -> None:
    with clear_errors():
        config = _validated(form, settings)
        from privlearn.runs.look import look  # late, as it imports learners and accountants

        for line in look(config, out):
            console().print(line, markup=False, highlight=False, soft_wrap=True)


def _settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return toml_in(read_whole(path, at_most=LARGEST_SETTINGS))
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}", BAD_INPUT)
    except ValueError as error:
        fail(f"{path} is not TOML: {error}", BAD_INPUT)


def _validated(form: Any, settings: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    try:
        return form(**settings)
    except ValidationError as error:
        fail("; ".join(_detail(form, item) for item in error.errors()), BAD_INPUT)


def _detail(form: Any, item: Any) -> str:
    name = ".".join(map(str, item["loc"]))
    told = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing" and name in form.model_fields:
        wanted = " ".join((form.model_fields[name].description or "").split())
        return f"{name}: must be given{f' ({wanted})' if wanted else ''}"
    if not name:
        return f"settings: {told}"
    value = item["input"]
    shown = f" = {value!r}" if isinstance(value, int | float | str) else ""
    return f"{name}{shown}: {told}"


def show_outcome(outcome: Any) -> None:
    """Prints what a run leaves behind, and where."""
    from privlearn.reporting.certificates import print_certificate
    from privlearn.reporting.figures import NEEDED, can_draw
    from privlearn.reporting.terminal_page import Page

    screen, folders = console(), outcome.folders
    audit = f"privlearn audit {folders.public / 'ledger.db'} --full"
    print_certificate(outcome.certificate, screen, details=audit)
    screen.print()
    for line in outcome.released:
        screen.print(line, markup=False, highlight=False)
    screen.print("for the operator only:", style="dim")
    for line in outcome.lines:
        Page(screen).hanging("  ", line, "")
    screen.print(f"\npublic   {folders.public}   ({outcome.published})")
    screen.print(f"private  {folders.private}   (what only the operator may see)")
    if not can_draw():
        screen.print(f"nothing is drawn: {NEEDED}", markup=False, highlight=False)


@contextmanager
def ends_early(out: Path, how_to_go_on: str, *, resume: bool) -> Iterator[None]:
    """A block that, if it is cut off, says what the ledgers in ``out`` have spent."""
    from privlearn.cli import interruption

    before = interruption.present_ledgers(out)

    def tell(message: str = "", last: str = how_to_go_on) -> None:
        with interruption.undisturbed():
            if message:
                say_error(message)
            others = {} if resume else before
            for line in interruption.spent_lines(out, others, how_to_go_on=last):
                typer.echo(line, err=True)

    try:
        with interruption.termination_interrupts():
            yield
    except KeyboardInterrupt:
        tell()
        raise typer.Exit(INTERRUPTED) from None
    except MemoryError:
        tell("not enough memory for so many users, items or columns")
        raise typer.Exit(BAD_INPUT) from None
    except Exception as error:
        refused = isinstance(error, ValueError)  # which says what can be done
        began = interruption.present_ledgers(out) != before
        if not began and (refused or not resume):
            raise
        foreseen = isinstance(error, FORESEEN)
        tell(of_error(error) if foreseen else "", "" if refused else how_to_go_on)
        if foreseen:
            raise typer.Exit(BAD_INPUT) from None
        raise


def _how_to_go_on(run: Runnable, settings: Mapping[str, Any], command: str) -> str:
    if not run.goes_on:
        return "simulated devices end with their run: a new one needs another folder"
    if settings.get("people") is not None and settings.get("registry") is None:
        return (
            "who came was kept in memory and has ended with this run, which cannot go on: a new "
            "one, with at most what is left, needs another folder, and --registry to go on"
        )
    return f"{command} with --resume goes on, in this folder and with these settings"
