"""``privlearn certify``, ``verify`` and ``witness``: who says what of a ledger."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privlearn.cli.output import PROBLEMS, SIMULATION, console, print_json
from privlearn.cli.signing import (
    Out,
    Passphrase,
    PrivateKey,
    PublicKeys,
    check_new,
    deliver,
    private_key,
    read_note,
    read_signed,
    signing_errors,
)
from privlearn.reporting.terminal_page import Page
from privlearn.reporting.visible import visible

if TYPE_CHECKING:
    from privlearn.signing import Verified


def certify(
    ledger: Annotated[
        str,
        typer.Argument(
            metavar="LEDGER", help="Ledger file, its JSON-lines export, or postgresql://…."
        ),
    ],
    key: PrivateKey,
    delta: Annotated[float | None, typer.Option(help="Where to state ε.")] = None,
    out: Out = None,
    passphrase_file: Passphrase = None,
) -> None:
    """Audit a ledger, and sign what was found.

    An open ledger is certified so far, at its plan or cap. Exit codes: 0 signed; 1 problems; 2
    wrong use, or a key that cannot be used; 3 a simulation; 4 the ledger cannot be read; 6 it needs
    an extension that is not known.
    """
    from privlearn.reporting.certificates import verdict
    from privlearn.signing import Statement, certify_ledger

    with signing_errors():
        signer = private_key(key, passphrase_file)
        note = certify_ledger(ledger, signer, delta=delta)
        deliver(note.encode(), out)
    found = Statement.parse(note.text).certificate
    far = "" if found.closed else " so far"
    typer.echo(
        f"signed by {signer.public.name}: {found.entries} entries{far}, head {found.head}\n"
        f"{verdict(found)}",
        err=True,
    )


def verify(
    signed: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="Or a checkpoint.")],
    ledger: Annotated[
        str | None, typer.Argument(metavar="[LEDGER]", help="What it should be of.")
    ] = None,
    key: PublicKeys = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Say what was signed, by whom, and over which ledger; no secret is needed.

    Exit codes: 0 right; 1 the ledger does not say what was signed, or has problems; 2 wrong use, or
    no certificate; 3 a simulation; 4 the ledger cannot be read; 6 it needs an extension that is not
    known; 7 a signature is not the key's, or
    not of the key asked for; 8 it is of another ledger.
    """
    from privlearn.signing import PublicKey
    from privlearn.signing import verify as verify_note
    from privlearn.signing.certificates import MOST_BYTES

    with signing_errors():
        keys = [PublicKey.given(one) for one in key or ()]
        found = verify_note(read_note(signed, MOST_BYTES), keys, ledger)
    if json:
        print_json(_as_json(found))
    else:
        _print(_lines(found))
    if _problems(found):
        raise typer.Exit(PROBLEMS)
    if found.statement is not None and found.statement.certificate.simulation:
        raise typer.Exit(SIMULATION)


def witness(
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="As `privlearn ledger consistency` makes it.")
    ],
    key: PrivateKey,
    signer: Annotated[
        str, typer.Option(help="Public key of who signs the checkpoints, or its file.")
    ],
    state: Annotated[Path, typer.Option(help="File of what this witness cosigned.")],
    begin: Annotated[
        bool, typer.Option("--begin", help="Make that file: this witness cosigned nothing yet.")
    ] = False,
    out: Out = None,
    passphrase_file: Passphrase = None,
) -> None:
    """Cosign a checkpoint that continues the last one that this witness cosigned.

    Exit codes: 0 cosigned; 2 wrong use, or no request; 7 the signer did not
    sign it; 8 it does not continue what was cosigned.
    """
    from privlearn.signing import PublicKey, Request, Witness
    from privlearn.signing.checkpoints import MOST_BYTES

    with signing_errors():
        check_new(out)  # before it is remembered what was cosigned
        asked = Request.parse(read_signed(request, MOST_BYTES))
        who = Witness(state, private_key(key, passphrase_file))
        known = PublicKey.given(signer)
        if begin:
            who.begin()
        deliver(who.cosign(asked, known).encode(), out)


def _problems(found: Verified) -> list[str]:
    signed = [] if found.statement is None else found.statement.certificate.problems
    return [
        *found.differences,
        *(f"problem that the signer states: {text}" for text in signed),
        *(f"problem of the ledger: {text}" for text in found.problems),
    ]


def _verdict(found: Verified) -> str:
    from privlearn.accountants.shown_numbers import counted

    problems, said = _problems(found), None if found.statement is None else found.statement
    if problems:
        return f"NOT VERIFIED: {counted(len(problems), 'problem')}"
    if said is not None and said.certificate.simulation:
        return "SIMULATION: it is signed, and its noise protects nobody"
    names = ", ".join(key.name for key in found.known)
    if found.relation is None and names:
        return f"SIGNED by {names}; the ledger was not looked at"
    if found.relation is None:
        return "NOT CHANGED since it was signed; by whom is not known, and the ledger not looked at"
    signer = f"signed by {names}" if names else "who signed it is not known"
    if said is not None and said.certificate.attested:
        start = "ATTESTED, NOT VERIFIED"
    else:
        start = "VERIFIED" if names else "RECOMPUTED"
    return f"{start}: {signer}; the ledger is {found.relation}"


_ALONE, _ITEM = "alone", "  • "


def _print(lines: list[tuple[str, str]]) -> None:
    screen = console()
    page = Page(screen)
    for name, text in lines:
        lead = "" if name is _ALONE else name if name is _ITEM else f"{name:13}"
        if max(map(len, text.split(" "))) > screen.width - len(lead):  # a key is copied whole
            typer.echo(lead + visible(text))
        else:
            page.hanging(lead, text, "")


def _lines(found: Verified) -> list[tuple[str, str]]:
    lines = [(_ALONE, _verdict(found)), *((_ITEM, text) for text in _problems(found))]
    lines += [("key", key.text) for key in found.known]
    if found.statement is not None:
        lines += _of_certificate(found)
    if found.checkpoint is not None:
        one = found.checkpoint
        lines += [("checkpoint", one.origin), ("over", f"{one.size} entries, root {one.root}")]
    lines += [("witness", f"{key.text}, at {_time(when)}") for key, when in found.cosigned]
    lines += [("not known", f"a signature in the name of {name}") for name in found.unknown]
    return lines + _of_ledger(found)


def _of_certificate(found: Verified) -> list[tuple[str, str]]:
    from privlearn.reporting.certificates import guarantee_line, together_line, verdict, weaknesses

    statement = found.statement
    assert statement is not None
    said = statement.certificate
    lines = []
    if statement.key not in found.known:
        lines.append(("key", f"{statement.key.text}, as the certificate itself says"))
    if not found.known:
        lines.append(
            (
                "",
                "Anybody can make a key of that name. Give the one that the signer published "
                "(--key) to know who signed.",
            )
        )
    lines += [
        (
            "signed",
            f"{statement.signed} by the signer's clock, with privlearn {statement.software}",
        ),
        ("over", f"{said.entries} entries, {'closed' if said.closed else 'open: so far'}"),
        ("head", said.head),
        ("root", said.root),
        ("signer says", verdict(said)),
    ]
    said = found.recomputed or said
    if together := together_line(said):
        lines.append(("all together", together))
    several = len(said.guarantees) > 1
    for one in said.guarantees:
        whose = f"accountant {one.accountants[0]}: " if several else ""
        lines.append(("guarantee", f"{whose}{guarantee_line(one)}"))
    lines += [("sum", f"{one.who}: {guarantee_line(one)}") for one in said.sums]
    weak = zip(["weakened by", *[""] * 1000], weaknesses(said), strict=False)
    return lines + list(weak)


def _of_ledger(found: Verified) -> list[tuple[str, str]]:
    from privlearn.signing.verification import Relation

    if found.relation is None:
        return [("ledger", "not given: nothing was recomputed")]
    lines = [("ledger", f"{found.relation}, with {found.entries} entries")]
    size = found.checkpoint.size if found.checkpoint is not None else 0
    if found.statement is not None:
        size = found.statement.certificate.entries
    if found.entries > size and found.relation is Relation.CONTINUES:
        lines.append(
            (
                "since then",
                f"{found.entries - size} entries, which no signature here covers; a proof of "
                "consistency from root to root was made and verified",
            )
        )
    if found.rewordings:
        lines.append(
            (
                "words",
                f"{found.rewordings} texts stand in other words in the certificate; those above "
                "are what this version says of the ledger",
            )
        )
    return lines


def _time(when: int) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
    except (OverflowError, ValueError, OSError):
        return f"second {when}"


def _as_json(found: Verified) -> str:
    statement, checkpoint = found.statement, found.checkpoint
    told: dict[str, Any] = {
        "verdict": _verdict(found),
        "problems": _problems(found),
        "known_keys": [key.text for key in found.known],
        "cosigned": [{"key": key.text, "time": when} for key, when in found.cosigned],
        "unknown_signatures": list(found.unknown),
        "relation": None if found.relation is None else found.relation.name.lower(),
        "ledger_entries": found.entries if found.relation is not None else None,
        "rewordings": found.rewordings,
    }
    if statement is not None:
        told["certificate"] = {
            "audit": statement.told,
            "delta": statement.delta,
            "key": statement.key.text,
            "signed": statement.signed,
            "software": statement.software,
        }
    if checkpoint is not None:
        told["checkpoint"] = {
            "origin": checkpoint.origin,
            "size": checkpoint.size,
            "root": checkpoint.root,
        }
    return json.dumps(told, indent=2, ensure_ascii=False)
