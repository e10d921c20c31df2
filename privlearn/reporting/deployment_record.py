"""The record of a deployment for the public registry of differential-privacy deployments.

What the ledger knows is filled in from its report; what only a person knows (what the product is
for, who is trusted and why) is read from a TOML file, and asked for by name where it is missing.
The fields are those of ``opendp/deployments-registry-data``, schema of 15 July 2026, whose names
and enumerations stand in ``deployment_fields.json``.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, final

from privlearn.accountants.certificate import Guarantee
from privlearn.accountants.person_assumptions import relation_words, rule_words
from privlearn.accountants.shown_numbers import counted, power_up, rounded_up, up
from privlearn.errors import DataError, IncompleteRecordError, UncertifiedRecordError
from privlearn.reporting.certificates import cap_words, guarantee_line
from privlearn.reporting.model import Balance, Report
from privlearn.reporting.visible import markdown, visible
from privlearn.reporting.written_files import write_over_own
from privlearn.storage.foreign_files import LARGEST_SETTINGS, read_foreign, toml_in
from privlearn.values.adjacency import Adjacency, Trust

Tier = Literal[1, 2, 3]


@final
@dataclass(frozen=True)
class Field:
    """One field of the registry's schema."""

    section: str
    name: str
    tier: int
    says: str
    source: str
    """``person``, ``ledger``, ``either`` (a person may overrule) or ``both`` (put together)."""
    form: str  # ``text``, ``list`` of texts, ``date``, or ``numbers``
    one_of: tuple[str, ...]
    optional: bool

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"


@cache
def registry_fields() -> tuple[Field, ...]:
    """Every field of a deployment, in the order of the registry's template."""
    text = files("privlearn.reporting").joinpath("deployment_fields.json").read_text("utf-8")
    return tuple(
        Field(
            section=section,
            name=name,
            tier=told["tier"],
            says=told["says"],
            source=told.get("from", "person"),
            form=told.get("form", "text"),
            one_of=tuple(told.get("one_of", ())),
            optional=told.get("optional", False)
            or (told["tier"] == 1 and not told.get("required")),
        )
        for section, fields in json.loads(text)["sections"].items()
        for name, told in fields.items()
    )


def write_record(
    report: Report, path: str | os.PathLike[str], about: str | os.PathLike[str]
) -> None:
    """Writes the registry's YAML record of one deployment.

    Args:
        report: the audit of its ledger.
        path: where the record goes; an older record is replaced, and nothing else.
        about: a TOML file with what only a person can say.  If there is none, one is written in
            which each field is asked for.

    Raises:
        IncompleteRecordError: fields of ``about`` are missing, each named.
        UncertifiedRecordError: the ledger has problems, is a simulation, or states no finite ε.
        DataError: ``about`` is no TOML, a field of it is unknown or of a wrong value, or there is
            something else than a record at ``path``.
        OSError: a file cannot be read or written.
    """
    import yaml

    where = Path(about)
    if not os.path.lexists(where):
        blank = blank_about()
        write_over_own(where, blank, beginning=blank, what="file to fill in")
        raise IncompleteRecordError(
            f"{where} was written and asks for {_names(_asked(3))}: fill it in and run this again"
        )

    class Dumper(yaml.SafeDumper):
        """Writes paragraphs as they are read."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    record = deployment_record(report, read_about(where))
    told = yaml.dump(record, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    write_over_own(path, told, beginning="url_slug: ", what="record of a deployment")


def read_about(path: Path) -> dict[str, Any]:
    """Reads what a person says of a deployment.

    Raises:
        DataError: no such file, no TOML, or a field is unknown or of a wrong value.
        OSError: it is no file, larger than `LARGEST_SETTINGS`, or cannot be read.
    """
    data = read_foreign(path, at_most=LARGEST_SETTINGS)
    if data is None:
        raise DataError(f"{path}: no such file")
    try:
        about = toml_in(data)
    except ValueError as error:
        raise DataError(f"{path}: is no TOML: {error}") from None
    _said(about)
    return about


def blank_about() -> str:
    """A TOML file that asks for every field which only a person can fill in."""
    lines = [
        "# What only a person can say of this deployment; the rest comes from the ledger.",
        "# Leave out what is optional. With a lower tier, fields of higher tiers may be left out.",
        "",
        "tier = 3",
        "# account = 1  # which accountant of the ledger, if there are several",
    ]
    section = ""
    for field in _asked(3, optional=True):
        if field.section != section:
            section = field.section
            lines += ["", f"[{section}]"]
        marks = [f"tier {field.tier}", *(["optional"] if field.optional else [])]
        lines.append(f"# {field.says} ({', '.join(marks)})")
        if field.one_of:
            lines.append(f"# One of: {', '.join(field.one_of)}.")
        blank = "[]" if field.form == "list" else '""'
        lines.append(f"{'# ' * (field.source == 'either')}{field.name} = {blank}")
    return "\n".join(lines) + "\n"


def deployment_record(report: Report, about: Mapping[str, Any]) -> dict[str, Any]:
    """The record as the registry reads it, with all that the ledger knows.

    Raises:
        PrivlearnError: as `write_record`.
    """
    guarantee, balance = _guarantee(report, about)
    tier = about.get("tier", 3)
    if tier not in (1, 2, 3) or isinstance(tier, bool):
        raise DataError(f"tier = {tier!r:.80}: must be 1, 2 or 3")
    said = _said(about)
    known = _known(report, guarantee, balance)
    missing = [field for field in _asked(tier) if not said.get(field.path)]
    missing += [
        field
        for field in registry_fields()
        if field.source == "either" and not (said.get(field.path) or known.get(field.path))
    ]
    if missing:
        raise IncompleteRecordError(
            f"a record of tier {tier} lacks {_names(missing)}: only a person can say that"
        )
    deployment: dict[str, Any] = {}
    for field in registry_fields():
        value = said.get(field.path) or known.get(field.path)
        if field.source == "both":
            value = "\n\n".join(filter(None, (said.get(field.path), known.get(field.path))))
        if value and field.tier <= tier:
            deployment.setdefault(field.section, {})[field.name] = value
    slug = re.sub("[^a-z0-9]+", "-", str(said["basic.name"]).lower()).strip("-")
    if not slug:
        raise DataError(
            f"basic.name = {said['basic.name']!r:.80}: needs a letter or digit for its address"
        )
    return {"url_slug": slug, "status": "Draft", "tier": tier, "deployment": deployment}


def _asked(tier: int, *, optional: bool = False) -> list[Field]:
    return [
        field
        for field in registry_fields()
        if field.tier <= tier
        and (field.source == "person" or (optional and field.source != "ledger"))
        and (optional or not field.optional)
    ]


def _names(fields: list[Field]) -> str:
    return ", ".join(field.path for field in fields)


def _said(about: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    fields = {field.path: field for field in registry_fields()}
    for path, value in _paths(about):
        field = fields.get(path)
        if field is None:
            raise DataError(
                f"{visible(path, 80)}: no field of the registry; there are "
                f"{_names([*fields.values()])}"
            )
        if field.source == "ledger":
            raise DataError(f"{path}: comes from the ledger, and is not taken from a person")
        found[path] = _checked(field, value)
    return found


def _paths(about: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, fields in about.items():
        if section in ("tier", "account"):
            continue
        if not isinstance(fields, dict):
            yield section, fields
            continue
        for name, value in fields.items():
            yield f"{section}.{name}", value


def _checked(field: Field, value: Any) -> Any:
    if field.form == "date" and isinstance(value, date):
        value = value.isoformat()[:10]
    if field.form == "list":
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise DataError(f"{field.path} = {value!r:.80}: must be a list of texts")
        return [one.strip() for one in value if one.strip()]
    if not isinstance(value, str):
        raise DataError(f"{field.path} = {value!r:.80}: must be text")
    value = value.strip()
    if value and field.one_of and value not in field.one_of:
        raise DataError(f"{field.path} = {value!r:.80}: must be one of {', '.join(field.one_of)}")
    if value and field.form == "date":
        try:
            date.fromisoformat(value)
        except ValueError:
            raise DataError(f"{field.path} = {value!r:.80}: must be a day, YYYY-MM-DD") from None
    return value


def _guarantee(report: Report, about: Mapping[str, Any]) -> tuple[Guarantee, Balance]:
    """Of whom the record is; a record is of one product, so of one accountant."""
    if report.problems:
        raise UncertifiedRecordError(
            f"{report.ledger} is not verified ({counted(len(report.problems), 'problem')}, the "
            f"first: {visible(report.problems[0], 200)}): a record would state what it does not "
            "earn"
        )
    if report.simulation:
        raise UncertifiedRecordError(
            f"{report.ledger} is of a simulation, whose noise protects nobody: there is nothing "
            "to register"
        )
    accounts = [guarantee.accountants[0] for guarantee in report.guarantees]
    account = about.get("account", accounts[0] if len(accounts) == 1 else None)
    if account not in accounts or isinstance(account, bool):
        raise DataError(
            f"account = {account!r:.80}: a record is of one product; must be one of the ledger's "
            f"accountants, {', '.join(map(str, accounts))}"
        )
    guarantee = report.guarantees[accounts.index(account)]
    if guarantee.unknown or math.isinf(guarantee.epsilon):
        raise UncertifiedRecordError(
            f"{report.ledger} states no finite ε at δ = {up(guarantee.delta)}: ask for a larger δ"
        )
    return guarantee, next(one for one in report.balances if one.accountant == account)


def _known(report: Report, guarantee: Guarantee, balance: Balance) -> dict[str, Any]:
    shares = [share for share in report.mechanisms if share.accountant == balance.accountant]
    spends = sum(share.spends for share in shares)
    many = spends > 1 or any(share.interactive for share in shares) or not balance.closed
    not_protected = [one.text for one in guarantee.rests_on if one.kind == "not protected"]
    parameters = {"epsilon": rounded_up(guarantee.epsilon, 6), "delta": guarantee.delta}
    if guarantee.rho is not None:
        parameters["rho"] = rounded_up(guarantee.rho, 6)
    return {
        "basic.publication_date": (balance.opened or report.first or "")[:10],
        "dp_variant.variant_name": _variant(guarantee, balance),
        "dp_variant.unprotected_quantities": "\n".join(
            f"- {markdown(text)}" for text in (*_side_information(guarantee), *not_protected)
        ),
        "privacy_loss.privacy_unit": _unit(guarantee),
        "privacy_loss.privacy_unit_details": _neighbours(guarantee),
        "privacy_loss.privacy_parameters": parameters,
        "privacy_loss.privacy_parameters_details": (
            f"{markdown(guarantee_line(guarantee))}. ε is an upper bound, at most "
            f"{power_up(guarantee.error_bound)} above the exact value where the method has such a "
            "bound. "
            + (
                "It is the total of a plan that was committed before the first release."
                if balance.planned
                else "It is the cap, which later releases cannot exceed; what was spent is less or "
                "equal."
            )
            + (
                " The losses are attested by clients and not verified."
                if guarantee.attested
                else ""
            )
            + "".join(
                f" This is one of several accountants of its ledger; for {markdown(one.who)} they "
                f"promise {markdown(guarantee_line(one))}."
                for one in report.sums
                if balance.accountant in one.accountants
            )
        ),
        "deployment_model.model_name": "Local" if guarantee.trust is Trust.LOCAL else "Central",
        "deployment_model.model_name_details": _MODEL[guarantee.trust],
        "deployment_model.release_type": "Many releases" if many else "One release",
        "deployment_model.release_type_details": _over_time(report, balance, spends),
        "accounting.composition": _composition(guarantee, balance) + _caps(report, balance),
        "implementation.mechanisms": _mechanisms(report, balance),
        "administrative.notes": (
            f"Every spend stands in a hash-chained ledger of {report.entries} entries with head "
            f"{report.head} and Merkle root {report.root}. `privlearn audit {report.ledger} --head "
            f"{report.head}` works these numbers out again from it."
        ),
    }


_MODEL = {
    Trust.CENTRAL: "The curator sees the rows and runs the mechanisms.",
    Trust.JOINT: (
        "Joint differential privacy: the curator sees the rows; what each person is shown may "
        "depend on that person's own row and on released values only, so all that everybody else "
        "receives is protected (billboard lemma). What a person is shown is not protected from "
        "whoever sees it."
    ),
    Trust.LOCAL: "Each message is randomised on the user's own device.",
}


def _variant(guarantee: Guarantee, balance: Balance) -> str:
    if guarantee.trust is Trust.JOINT:
        return "Custom"
    if balance.promise is not None or guarantee.failure:
        return "Approximate DP"
    names = {"ρ": "Zero-concentrated DP", "ε": "Pure DP", "μ²": "Custom"}
    return names.get(balance.unit, "Renyi DP")


def _unit(guarantee: Guarantee) -> str:
    if guarantee.rule is not None:
        return f"A person with all visits ({rule_words(guarantee.rule)})"
    rows = {Trust.CENTRAL: "one row", Trust.JOINT: "one round", Trust.LOCAL: "one device"}
    return f"A user, who is {rows[guarantee.trust]}; a person with several has group privacy"


def _neighbours(guarantee: Guarantee) -> str:
    words = guarantee.relation or relation_words(guarantee.adjacency, guarantee.rule)
    change = {
        Adjacency.REPLACE_ONE: "one user's record is replaced by any other",
        Adjacency.ZERO_OUT: "one user's record becomes the null record",
        Adjacency.ADD_REMOVE: "one user's record is there or not",
    }[guarantee.adjacency]
    of = "" if guarantee.rule is None else f", for all records of one person: {markdown(words)}"
    joint = " A record is the pair of data and response function." * (
        guarantee.trust is Trust.JOINT
    )
    return f"Neighbours differ in that {change}{of}.{joint}"


def _side_information(guarantee: Guarantee) -> list[str]:
    return [
        one.text
        for one in guarantee.rests_on
        if one.kind == "declared" and one.text.startswith("Declared public side information")
    ]


def _over_time(report: Report, balance: Balance, spends: int) -> str:
    state = "closed" if balance.closed else "open"
    period = f" between {report.first} and {report.last}" if report.first else ""
    kept = (
        "A plan of all releases was committed in advance, and nothing beyond it can be released."
        if balance.planned
        else f"A cap of {balance.unit} = {up(balance.cap)} holds for every user for good; a "
        "release beyond it is refused."
    )
    return f"{counted(spends, 'spend')}{period}; the account is {state}. {kept}"


def _composition(guarantee: Guarantee, balance: Balance) -> str:
    kind = "the committed plan" if balance.planned else "a filter under a cap"
    return (
        f"Fully adaptive sequential composition, counted in {balance.unit} for each arrival index "
        f"by {kind}; releases on disjoint users are charged to those users only (parallel "
        f"composition), and the guarantee is the largest total. (ε, δ) by method "
        f"{guarantee.method}."
    )


def _caps(report: Report, balance: Balance) -> str:
    mine = [cap_words(cap) for cap in report.caps if cap.accountant == balance.accountant]
    lines = [
        f"- {markdown(name)} (users {users}; renews: {renews}): ε = {epsilon} at most, {charged} "
        f"charged, {in_all} to one person in all epochs"
        for name, users, renews, epsilon, charged, in_all in mine
    ]
    told = "Caps inside it, each charged together with all that it is inside of, or not at all:"
    return "\n\n" + "\n".join([told, *lines]) if lines else ""


def _mechanisms(report: Report, balance: Balance) -> str:
    shares = [share for share in report.mechanisms if share.accountant == balance.accountant]
    names = dict.fromkeys(markdown(share.mechanism) for share in shares)
    lines = [
        f"{', '.join(names) or 'none yet'}; software {markdown(balance.software)}.",
        f"Noise: {markdown(report.noise)}.",
        "Running time and memory use are not protected.",
    ]
    if report.trusted_code:
        lines.append("Trusted code: " + "; ".join(map(markdown, report.trusted_code)))
    return "\n\n".join(lines)
