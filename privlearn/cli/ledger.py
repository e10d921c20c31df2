"""``privlearn ledger``: owners, copies of ledgers that are whole, checkpoints, and proofs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from privlearn.cli.output import BAD_INPUT, PROBLEMS, clear_errors, fail, of_system, unread
from privlearn.cli.signing import (
    Out,
    Passphrase,
    PrivateKey,
    deliver,
    private_key,
    read_note,
    signing_errors,
)
from privlearn.errors import (
    LedgerError,
    LedgerFeatureError,
    LedgerHeadError,
    LedgerSchemaError,
    LedgerUnreadableError,
    LocalSocketError,
    PeopleError,
    SigningError,
)

ledger_app = typer.Typer(help="Ledger files: see docs/ledger.md.", no_args_is_help=True)


@ledger_app.callback()
def _root() -> None:
    pass


@ledger_app.command("postgres-schema")
def postgres_schema(
    writer: Annotated[
        list[str] | None,
        typer.Option(help="Role that may write ledgers: INSERT and SELECT. May be repeated."),
    ] = None,
    reader: Annotated[
        list[str] | None, typer.Option(help="Role that may audit them. May be repeated.")
    ] = None,
) -> None:
    """Print the SQL that makes the tables of ledgers in PostgreSQL, for `psql`.

    A database needs them once; the roles must be there. Exit codes: 0 printed; 2
    the extra `postgres` is not installed.
    """
    from privlearn.ledger.addresses import extra_needed

    with clear_errors(), extra_needed():
        from privlearn.ledger.postgres_schema import script

        typer.echo(script(writers=writer or (), readers=reader or ()), nl=False)


@ledger_app.command("postgres-teams")
def postgres_teams(
    roles: Annotated[list[str], typer.Argument(metavar="ROLE...", help="One of each team.")],
) -> None:
    """Print the SQL that lets roles write what was granted to them, and no more.

    For `psql`, in a database with the tables of `postgres-schema`; may be run
    again. Exit codes: 0 printed; 2 the extra `postgres` is not installed.
    """
    from privlearn.ledger.addresses import extra_needed

    with clear_errors(), extra_needed():
        from privlearn.ledger.postgres_teams import script

        typer.echo(script(roles), nl=False)


@ledger_app.command("export")
def export(
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="Ledger file, or postgresql://….")
    ],
    to: Annotated[Path, typer.Argument(metavar="TO", help="File of JSON lines.")],
) -> None:
    """Write the entries of a ledger as JSON lines, which can be audited anywhere.

    It holds no released values; `backup` copies them as well. Exit codes: 0
    written; 2 something else stands there; 4 the ledger cannot be read.
    """
    from privlearn.ledger import iterate_records, write_export

    if to.is_dir() or not to.parent.is_dir():
        fail(f"{to} is a folder, or there is none for it", BAD_INPUT)
    if to.exists() and Path(ledger).exists() and to.samefile(ledger):
        fail(f"{to} is the ledger itself: it stays as it is", BAD_INPUT)
    try:
        records = iterate_records(ledger)
        first = next(records, None)  # before anything is overwritten
        write_export(to, chain([] if first is None else [first], records))
    except LedgerUnreadableError as error:
        fail(str(error), unread(error))
    except LedgerError as error:
        fail(str(error), BAD_INPUT)
    except OSError as error:
        fail(of_system(error), BAD_INPUT)


@ledger_app.command("backup")
def backup(
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="Ledger file, or postgresql://….")
    ],
    to: Annotated[Path, typer.Argument(metavar="TO", help="New file, which must not exist.")],
) -> None:
    """Copy a ledger, also while it is written to, and print the head of the copy.

    Exit codes: 0 copied; 2 the new file exists or cannot be made; 4 the ledger
    cannot be read.
    """
    from privlearn.ledger import backup as copy

    try:
        head = copy(ledger, to)
    except LedgerUnreadableError as error:
        fail(str(error), unread(error))
    except LedgerError as error:
        fail(str(error), BAD_INPUT)
    typer.echo(f"head: {head}")


@ledger_app.command("serve")
def serve(
    ledger: Annotated[Path, typer.Argument(metavar="LEDGER", help="Ledger file.")],
    socket: Annotated[
        Path | None,
        typer.Option(metavar="SOCKET", help="Where to serve; default LEDGER.sock beside it."),
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Make the ledger, which must not exist.")
    ] = False,
    head: Annotated[
        str | None, typer.Option(help="The last head, as kept elsewhere: tells an older copy.")
    ] = None,
    unknown_head: Annotated[
        bool, typer.Option("--unknown-head", help="Go on without a head; every audit reports it.")
    ] = False,
    people: Annotated[
        Path | None,
        typer.Option(help="A registry of people beside it, for People.connect(SOCKET)."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Whose members may connect, to spend what was granted.")
    ] = None,
) -> None:
    """Own a ledger, so that many processes of this host can spend from it.

    They connect with Ledger.connect(SOCKET). There is one owner at a time; SIGTERM
    or Ctrl-C ends it, after the entry that is being written.

    Exit codes: 0 ended so; 1 the ledger could not be written any more; 2 it is
    served by another process, or wrong use; 4 it cannot be read, or its head is not
    known; 6 it needs an extension that this version does not know.
    """
    from privlearn.accountants.serving import serve_ledger
    from privlearn.people import People

    serving: list[Path] = []

    def tell(where: Path) -> None:
        serving.append(where)
        typer.echo(f"{ledger} is served at {where}")
        sys.stdout.flush()

    try:
        with nullcontext() if people is None else People.open(people) as registry:
            serve_ledger(
                ledger,
                socket=socket,
                new=new,
                head=head,
                unknown_head=unknown_head,
                people=registry,
                group=group,
                ready=tell,
            )
    except (LedgerUnreadableError, LedgerHeadError, LedgerSchemaError, LedgerFeatureError) as error:
        fail(str(error), unread(error))
    except (LedgerError, LocalSocketError, PeopleError) as error:
        fail(str(error), PROBLEMS if serving else BAD_INPUT)


Kept = Annotated[str, typer.Argument(metavar="LEDGER", help="Ledger file, or postgresql://….")]
Accountant = Annotated[str | None, typer.Option(help="Id of the account, where several are open.")]


@ledger_app.command("grant")
def grant(
    ledger: Kept,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Of the grant, for everybody.")],
    cap: Annotated[
        str, typer.Option(help="rho=…, mu=…, epsilon=…, 1,1e-6, or a part of the account's: 10%.")
    ],
    to: Annotated[str, typer.Option(help="User of the owner's host, or role of PostgreSQL.")],
    until: Annotated[
        str | None, typer.Option(help="In UTC: 2027-01-31, or 2027-01-31T12:00Z; default no end.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="Time after which the cap renews: 7d, 12h.")
    ] = None,
    accountant: Accountant = None,
) -> None:
    """Let somebody spend part of an account, which they find by accountant.granted(LABEL).

    Nothing is reserved for it. With the owner's process (`serve --group`), or in
    PostgreSQL (`postgres-teams`), they can spend nothing else.

    Exit codes: 0 granted; 2 wrong use, or the cap is larger than the account's.
    """
    from privlearn.accountants.grants import cap_typed, kept_account

    with clear_errors(), kept_account(ledger, accountant) as account:
        budget = cap_typed(cap, account.budget)
        made = account.nested(budget, label=label, to=to, until=until, every=every)
        typer.echo(f"{label}: {made.budget} granted to {to}")


@ledger_app.command("revoke")
def revoke(
    ledger: Kept,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Of the grant.")],
    accountant: Accountant = None,
) -> None:
    """End a grant: nothing more is issued out of it; what was spent stays charged.

    Exit codes: 0 ended; 2 there is none of that label, or wrong use.
    """
    from privlearn.accountants.grants import kept_account

    with clear_errors(), kept_account(ledger, accountant) as account:
        found = account.granted(label)
        found.close()
        typer.echo(f"{label}: ended, with {found.spent_in_all()} spent")


@ledger_app.command("grants")
def grants(ledger: Kept) -> None:
    """List the grants of a ledger, and what was spent of each.

    Exit codes: 0 listed; 1 the ledger has problems; 4 it cannot be read.
    """
    from privlearn.accountants import audit
    from privlearn.cli.output import console
    from privlearn.reporting.certificates import print_grants
    from privlearn.reporting.terminal_page import Page

    try:
        found = audit(ledger)
    except LedgerError as error:
        fail(str(error), unread(error))
    print_grants(found, Page(console()))
    if found.problems:
        fail(f"the audit found {len(found.problems)} problems: privlearn audit {ledger}", PROBLEMS)


@ledger_app.command("checkpoint")
def checkpoint(
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="Ledger file, its export, or postgresql://….")
    ],
    key: PrivateKey,
    out: Out = None,
    passphrase_file: Passphrase = None,
) -> None:
    """Sign how many entries a ledger has, and their Merkle root, as a C2SP checkpoint.

    Exit codes: 0 signed; 1 the chain is broken; 2 wrong use; 4 the ledger
    cannot be read.
    """
    from privlearn.signing import sign_checkpoint

    with signing_errors():
        signer = private_key(key, passphrase_file)
        deliver(sign_checkpoint(ledger, signer).encode(), out)


@ledger_app.command("consistency")
def consistency(
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="Ledger file, its export, or postgresql://….")
    ],
    earlier: Annotated[
        Path | None, typer.Option("--from", metavar="OLD", help="The earlier checkpoint.")
    ] = None,
    later: Annotated[
        Path | None,
        typer.Option("--to", metavar="NEW", help="The later one, which a witness is to cosign."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Public key that both must be signed by, or its file.")
    ] = None,
    out: Out = None,
) -> None:
    """Prove that a ledger continues an earlier checkpoint.

    With --to it is the request to a witness; without --from that for the first
    checkpoint. Exit codes: 0 proved; 2 wrong use; 4 the ledger cannot be read;
    7 a signature is not the key's; 8 a checkpoint is not of this ledger.
    """
    from privlearn.signing import PublicKey
    from privlearn.signing.checkpoints import MOST_BYTES
    from privlearn.signing.witnesses import continuation

    with signing_errors():
        if earlier is None and later is None:
            raise SigningError("neither --from nor --to: there is nothing to prove")
        known = None if key is None else PublicKey.given(key)
        old, new = (None if one is None else read_note(one, MOST_BYTES) for one in (earlier, later))
        deliver(continuation(ledger, old, new, known), out)
