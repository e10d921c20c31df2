"""A certificate in words: its verdict and guarantees, on a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from privlearn.accountants.assumption import KINDS, Assumption
from privlearn.accountants.certificate import (
    Attestation,
    Certificate,
    Guarantee,
    InnerCap,
    Leased,
    Share,
)
from privlearn.accountants.person_assumptions import rule_words
from privlearn.accountants.plain_words import DETAILS, compared, first_screen
from privlearn.accountants.plain_words import verdict as verdict
from privlearn.accountants.plain_words import weaknesses as weaknesses
from privlearn.accountants.shown_numbers import counted, fixed, indices, up
from privlearn.accountants.shown_numbers import part as part_of_one
from privlearn.reporting.terminal_page import Page
from privlearn.reporting.visible import markdown, visible

if TYPE_CHECKING:
    from rich.console import Console


S = TypeVar("S", Attestation, InnerCap, Share)

_MOST_PROBLEMS = 2
_MOST_OF_PROBLEM = 200  # Problems on the first screen, and characters of each


def guarantee_line(guarantee: Guarantee) -> str:
    """One guarantee in the field's words."""
    kind = {"central": "DP", "joint": "joint DP", "local": "local DP"}[guarantee.trust.value]
    attested = ", attested, not verified" if guarantee.attested else ""
    of = " of a person" if guarantee.rule is not None else ""
    relation = guarantee.relation or guarantee.adjacency.value
    start = f"{kind}{of}, {relation}{attested}: "
    if guarantee.unknown:
        return f"{start}unknown ({visible(guarantee.unknown, 200)})"
    parts = [f"(ε = {fixed(guarantee.epsilon)}, δ = {up(guarantee.delta)})"]
    if guarantee.rho is not None:
        parts.append(f"ρ = {up(guarantee.rho)} zCDP")
    if guarantee.mu is not None:
        parts.append(f"μ = {fixed(guarantee.mu)} GDP")
    parts.append(f"method {guarantee.method}")
    if guarantee.failure:
        parts.append(f"failures of {up(guarantee.failure)} included")
    if guarantee.user is not None:
        parts.append(f"for user {guarantee.user}")
    if guarantee.rounds > 1:
        parts.append(f"for a person with {guarantee.rounds} rounds")
    if guarantee.rule is not None:
        parts.append(f"for every person with all visits ({rule_words(guarantee.rule)})")
    return start + ", ".join(parts)


def together_line(certificate: Certificate) -> str:
    """What several accountants promise together to one person; empty where there are no several."""
    together = certificate.together
    if together is None:
        return ""
    if certificate.not_certified:
        return f"nothing: {visible(certificate.not_certified, 400)}"
    return f"{guarantee_line(together)}, for {together.who}"


def running_line(guarantee: Guarantee) -> str:
    """The odometer of an account in words; empty if it has none."""
    bound = guarantee.running
    if bound is None:
        return ""
    return (
        f"privacy loss so far at most {fixed(bound.epsilon)}, at all times at once, except with "
        f"probability {up(bound.delta)}; up to the last entry, and no bound on what comes later"
    )


def whose(guarantee: Guarantee) -> str:
    """An accountant and its indices, as a heading."""
    users = guarantee.users
    what = "users" if guarantee.rule is None else "slots"
    whose = "" if users is None else f", {what} {indices(users)}"
    return f"accountant {guarantee.accountants[0]}{whose}"


def price_words(loss: Mapping[str, object]) -> str:
    """The kind of a loss in its JSON form, and its numbers."""
    numbers = [f"{k} {v}" for k, v in loss.items() if k not in ("kind", "adjacency")]
    return f"{loss.get('kind')} {', '.join(numbers)}"


_CLAIM = ("attested mechanism", "by", "users", "messages", "most of one user", "loss of one")
_SHARE = ("mechanism", "label", "spends", "share of the most charged user")
_OF_PERSON = (*_SHARE[:3], "at most, of a person's total")


def _share_heads(guarantee: Guarantee) -> tuple[str, ...]:
    return _SHARE if guarantee.rule is None else _OF_PERSON


def _claim(claim: Attestation) -> tuple[str, ...]:
    numbers = (str(claim.count), str(claim.most_messages))
    return (claim.mechanism, claim.by, indices(claim.users), *numbers, price_words(claim.loss))


def _share(share: Share) -> tuple[str, ...]:
    part = "unknown" if share.share is None else part_of_one(share.share)
    return (share.mechanism, share.label, str(share.spends), part)


def cap_words(cap: InnerCap) -> tuple[str, str, str, str, str, str]:
    """A cap inside an account: `CAP_HEADS`."""
    renews = "never"
    if cap.every is not None:
        unit = "d" if cap.every % 1440 == 0 else "h" if cap.every % 60 == 0 else "min"
        length = cap.every // {"d": 1440, "h": 60, "min": 1}[unit]
        renews = f"every {length} {unit} from {cap.since}"
    elif cap.epochs is not None:
        renews = f"epochs {indices(cap.epochs)}"
    if cap.epochs_charged:
        renews += f"; {cap.epochs_charged:,} charged, {indices_of(cap.charged_in)}"
    granted = f", granted to {cap.to}" if cap.to else ""
    granted += f", until {cap.until}" if cap.until else ""
    share = "unknown" if cap.share is None else part_of_one(cap.share)
    return (
        cap.name + granted + ", closed" * cap.closed,
        indices(cap.users),
        renews,
        "none" if cap.epsilon is None else up(cap.epsilon),
        f"{up(cap.most)} ({share})",
        up(cap.in_all),
    )


CAP_HEADS = (
    "cap inside the account",
    "users",
    "renews",
    "ε in one epoch",
    "charged there",
    "to one person in all epochs",
)


def indices_of(ends: tuple[int, ...]) -> str:
    """Numbers from the first to the last, both told."""
    return indices((ends[0], ends[-1] + 1)) if ends else "none"


def _of(items: Sequence[S], guarantee: Guarantee) -> list[S]:
    return [item for item in items if item.accountant in guarantee.accountants]


def _grouped(assumptions: Sequence[Assumption]) -> list[tuple[str, list[str]]]:
    groups = [(KINDS[kind], [a.text for a in assumptions if a.kind == kind]) for kind in KINDS]
    return [(heading, texts) for heading, texts in groups if texts]


def print_certificate(
    certificate: Certificate, console: Console, *, full: bool = False, details: str = DETAILS
) -> None:
    """Prints the first screen; ``full`` adds all that the certificate holds.

    All text of the ledger is indented, so that it cannot be taken for the verdict.
    """
    page = Page(console)
    print_first_screen(certificate, first_screen(certificate, details=details), page)
    if not full:
        return
    print_findings(certificate, page, full=full)
    several = len(certificate.guarantees) > 1
    for guarantee, spent in zip(certificate.guarantees, certificate.spent, strict=True):
        page.line(f"\n{whose(guarantee)}" if several else "", style="bold")
        print_guarantee(guarantee, spent, page)
        page.table(
            _share_heads(guarantee),
            [_share(share) for share in _of(certificate.mechanisms, guarantee)],
        )
        print_claims(certificate, guarantee, page)
    print_sums(certificate, page)
    print_record(certificate, page, full=full)


def print_first_screen(
    certificate: Certificate, lines: Sequence[tuple[str, str]], page: Page
) -> None:
    """Prints what `first_screen` says, and the first problems."""
    claimed = certificate.attested and not certificate.problems and not certificate.simulation
    style = "bold green" if certificate.holds else "bold yellow" if claimed else "bold red"
    (_, verdict_line), (_, in_one_sentence), *named = lines
    page.line(verdict_line, style=style)
    page.hanging("", in_one_sentence, "")
    page.items(_first_problems(certificate), style="red")
    more = certificate.problems[_MOST_PROBLEMS:]
    told = [f"and {len(more):,} more"] if more else []
    if certificate.consequences:
        number = counted(len(certificate.consequences), "further problem")
        told.append(f"{number} where the record is broken, which may follow from that")
    if told:
        page.items(["; ".join(told)])
    for name, text in named:
        page.named(name, text)


def _first_problems(certificate: Certificate) -> list[str]:
    return [visible(text, _MOST_OF_PROBLEM) for text in certificate.problems[:_MOST_PROBLEMS]]


def print_findings(certificate: Certificate, page: Page, *, full: bool) -> None:
    """What all accountants promise together, what is wrong, and what weakens it."""
    if together := together_line(certificate):
        page.line("")
        page.named("all together", together, style="bold")
    told = [*certificate.problems, *(certificate.consequences if full else [])]
    if told != _first_problems(certificate):
        page.line("\nproblems, and what may follow from them:", style="bold")
        page.items(told, style="red", most=2000 if full else 30)
    weak = weaknesses(certificate)
    if weak:
        page.line("\nwhat weakens this claim:", style="bold")
        page.items(weak, style="yellow")


def print_guarantee(guarantee: Guarantee, spent: Guarantee, page: Page, sentence: str = "") -> None:
    """What is promised, in plain words, too, and what was spent."""
    page.named("guarantee", guarantee_line(guarantee))
    if sentence:
        page.named("in plain words", sentence)
    page.named("spent, ex post", guarantee_line(spent), style="dim")
    if spent.running is not None:
        page.named("odometer", running_line(spent))


def print_claims(certificate: Certificate, guarantee: Guarantee, page: Page) -> None:
    """What clients attest."""
    claims = _of(certificate.attestations, guarantee)
    page.table(_CLAIM, [_claim(claim) for claim in claims])
    for unseen in dict.fromkeys("; ".join(c.unseen) for c in claims if c.unseen):
        page.items([f"assumed not to be seen by the receiver: {unseen}"])


def print_caps(certificate: Certificate, guarantee: Guarantee, page: Page) -> None:
    """Caps inside an account."""
    page.table(CAP_HEADS, [cap_words(cap) for cap in _of(certificate.caps, guarantee)])


def print_grants(certificate: Certificate, page: Page) -> None:
    """Caps that were granted to somebody, and what was spent of each."""
    heads = ["grant", "account", "to", "until", "allows", "charged", ""]
    rows = []
    for cap in certificate.caps:
        if cap.to is not None:
            share = "unknown" if cap.share is None else part_of_one(cap.share)
            allows = "none" if cap.epsilon is None else f"ε = {up(cap.epsilon)}"
            ends = [cap.to, cap.until or "no end", f"{allows} at δ = {cap.delta:g}", share]
            rows.append([cap.name, str(cap.accountant), *ends, "ended" * cap.closed])
    page.table(heads, rows)
    if not rows:
        page.line("nothing was granted")


def print_sums(certificate: Certificate, page: Page, sentences: Sequence[str] = ()) -> None:
    """What several accountants add up to, in plain words, too, and remarks."""
    sums = zip(certificate.sums, certificate.sums_spent, strict=False)
    for (guarantee, spent), words in zip_longest(sums, sentences):
        page.line("")
        page.hanging("sum, ", f"for {guarantee.who}", style="bold")
        print_guarantee(guarantee, spent, page, words or "")
    if certificate.remarks:
        page.line("")
        page.items(certificate.remarks)


def print_record(certificate: Certificate, page: Page, *, full: bool) -> None:
    """Trusted code, every assumption if ``full``, and which record it is."""
    page.line("\ntrusted code:", style="bold")
    page.items(certificate.trusted_code or ["none beyond the library's clipping and sums"])
    if full:
        for guarantee in certificate.guarantees:
            several = len(certificate.guarantees) > 1
            of = f"accountant {guarantee.accountants[0]}: " if several else ""
            page.line(f"\n{of}it rests on", style="bold")
            for heading, texts in _grouped(guarantee.rests_on):
                page.line(f"{heading}.")
                page.items(texts, most=1000)
    page.line("")
    lost = f", {certificate.lost} lost" if certificate.lost else ""
    spends = counted(certificate.spends, "spend")
    page.named("record", f"{certificate.entries:,} entries, {spends}{lost}")
    for lease in certificate.leases:
        page.named("lease", lease_words(lease))
    if certificate.learners:
        page.named("learner", ", ".join(certificate.learners))
    if certificate.ended_early:
        page.named("ended early", _early(certificate))
    page.named("noise", certificate.noise)
    for name in certificate.features:
        page.named("extension", f"{name}: optional, not known here, left aside")
    page.named("format", str(certificate.format))
    page.named("head", f"{certificate.head} ({compared(certificate)})", style="dim")


def lease_words(lease: Leased) -> str:
    """How many runs of a mechanism were paid for at once."""
    runs = counted(lease.runs, "run")
    which = f"lease of {runs}" if lease.leases == 1 else f"{lease.leases:,} leases of {runs}"
    return (
        f"{which}: {lease.mechanism} under {lease.label!r}; all are charged, how many were used "
        "is not recorded"
    )


def _early(certificate: Certificate) -> str:
    return (
        f"{counted(certificate.ended_early, 'stream')}, charged as far as they came; "
        f"{counted(certificate.freed, 'charge')} of later users taken off"
    )


def certificate_markdown(certificate: Certificate) -> str:
    """The certificate as Markdown, with every assumption."""
    lines = ["# Privacy certificate", "", f"**{verdict(certificate)}**", ""]
    if together := together_line(certificate):
        lines += [f"**All accountants together.** {markdown(together)}", ""]
    lines += _listed("Problems:", certificate.problems)
    lines += _listed(
        "Further problems where the record is broken, which may follow from that:",
        certificate.consequences,
    )
    lines += _listed("What weakens this claim:", weaknesses(certificate))
    several = len(certificate.guarantees) > 1
    for guarantee, spent in zip(certificate.guarantees, certificate.spent, strict=True):
        lines += [f"## {whose(guarantee)}", ""] if several else []
        lines += [f"**Guarantee.** {markdown(guarantee_line(guarantee))}", ""]
        lines += [f"Spent, ex post, not a guarantee: {markdown(guarantee_line(spent))}", ""]
        lines += [f"Odometer: {running_line(spent)}.", ""] if spent.running is not None else []
        lines += ["It rests on:", ""]
        for heading, texts in _grouped(guarantee.rests_on):
            lines += _listed(f"{heading}.", texts)
        claims = _of(certificate.attestations, guarantee)
        if claims:
            lines += [_row(_CLAIM), _row(["---"] * len(_CLAIM))]
            lines += [*(_row(map(markdown, _claim(claim))) for claim in claims), ""]
        if caps := _of(certificate.caps, guarantee):
            lines += [_row(CAP_HEADS), _row(["---"] * len(CAP_HEADS))]
            lines += [*(_row(map(markdown, cap_words(cap))) for cap in caps), ""]
        if several:
            lines += _shares_table(_of(certificate.mechanisms, guarantee), _share_heads(guarantee))
    for guarantee, spent in zip(certificate.sums, certificate.sums_spent, strict=False):
        lines += [f"## Sum, for {markdown(guarantee.who)}", ""]
        lines += [f"**Guarantee.** {markdown(guarantee_line(guarantee))}", ""]
        lines += [f"Spent, ex post, not a guarantee: {markdown(guarantee_line(spent))}", ""]
    lines += _listed("Remarks:", certificate.remarks)
    lines += _listed("Trusted code:", certificate.trusted_code)
    if not several:
        heads = _share_heads(certificate.guarantees[0]) if certificate.guarantees else _SHARE
        lines += _shares_table(certificate.mechanisms, heads)
    for lease in certificate.leases:
        lines += [f"Lease: {markdown(lease_words(lease))}.", ""]
    if certificate.learners:
        lines += [f"Learner: {markdown(', '.join(certificate.learners))}.", ""]
    if certificate.ended_early:
        lines += [f"Ended early: {_early(certificate)}.", ""]
    lines += [f"{certificate.entries:,} entries; head `{markdown(certificate.head)}`", ""]
    return "\n".join(lines)


def _listed(heading: str, texts: Sequence[str]) -> list[str]:
    return [heading, "", *(f"- {markdown(text)}" for text in texts), ""] if texts else []


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shares_table(shares: Sequence[Share], heads: tuple[str, ...]) -> list[str]:
    if not shares:  # only attestations
        return []
    rows = [heads, ("---",) * 4, *(tuple(map(markdown, _share(share))) for share in shares)]
    return [*map(_row, rows), ""]
