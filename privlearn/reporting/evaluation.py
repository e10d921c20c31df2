"""What an evaluator asks of a claim of differential privacy, answered as far as a ledger can.

The questions follow the topics of NIST SP 800-226 (Near, Darais, Lefkovitz & Howarth, 2025,
"Guidelines for Evaluating Differential Privacy Guarantees"): its pyramid, from the privacy
parameters at the top to the collection of data at the bottom, and its hazards.  They are put in our
words, and neither checked nor endorsed by NIST.  Each answer says who gives it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from privlearn.accountants.assumption import AssumptionKind
from privlearn.accountants.shown_numbers import counted, up
from privlearn.reporting.certificates import guarantee_line
from privlearn.reporting.model import Report
from privlearn.reporting.visible import markdown
from privlearn.reporting.written_files import write_over_own
from privlearn.values.adjacency import Trust

By = Literal["ledger", "person", "nobody"]
"""``ledger``: recomputed or declared there.  ``person``: somebody has to say it.  ``nobody``: this
package neither protects nor records it."""


@final
@dataclass(frozen=True)
class Answer:
    """One question of an evaluator, and what is known of it."""

    topic: str
    question: str
    by: By
    answer: str
    """In Markdown."""


def evaluation(report: Report, about: Mapping[str, Any] | None = None) -> list[Answer]:
    """Answers every question as far as the report, and what a person said, go."""
    said = {} if about is None else about
    return [*_claim(report), *_mechanisms(report), *_setting(report, said), *_beneath(report, said)]


def _claim(report: Report) -> list[Answer]:
    lines = [markdown(guarantee_line(one)) for one in [*report.guarantees, *report.sums]]
    finite = all(not one.unknown and math.isfinite(one.epsilon) for one in report.guarantees)
    verified = markdown(report.verdict)
    if report.problems or report.simulation:
        lines = ["Nothing is certified."]
    return [
        Answer(
            "Privacy parameters",
            "Which variant of differential privacy, with which parameters?",
            "ledger",
            _items([*lines, verified if finite else f"{verified}; no finite ε is known"]),
        ),
        Answer(
            "Privacy parameters",
            "What does that mean to somebody who attacks it?",
            "ledger",
            _items(
                markdown(line)
                for reading in [*report.sum_readings, *report.readings]
                for line in reading.words
            )
            or "Nothing is certified.",
        ),
        Answer(
            "Unit of privacy",
            "Whose data are protected, and which data sets are neighbours?",
            "ledger",
            _texts(report, "paid", "eighbour", "record is", "row", "person") or _units(report),
        ),
        Answer(
            "Composition",
            "Is every release counted, also later ones, and against what limit?",
            "ledger",
            _items(
                f"accountant {one.accountant}: cap {one.unit} = {up(one.cap)}"
                + (", all of it committed in advance" if one.planned else ", a filter")
                + (", closed" if one.closed else ", open")
                for one in report.balances
            ),
        ),
        Answer(
            "Composition",
            "Are there releases about the same people that this ledger does not know?",
            "person",
            "The ledger adds up only what it holds. Other systems about the same people, and "
            "exact statistics that were published, add to it.",
        ),
    ]


def _mechanisms(report: Report) -> list[Answer]:
    return [
        Answer(
            "Algorithms and correctness",
            "Which mechanisms ran, and who says that each is priced rightly?",
            "ledger",
            _items(
                _first(
                    [
                        f"{markdown(share.mechanism)} under {markdown(share.label)}: "
                        f"{counted(share.spends, 'spend')}"
                        for share in report.mechanisms
                    ]
                    + [
                        f"{markdown(claim.mechanism)} under {markdown(claim.label)}: attested by "
                        f"{markdown(claim.by)}, not verified"
                        for claim in report.attestations
                    ]
                )
            ),
        ),
        Answer(
            "Algorithms and correctness",
            "What has to be taken on trust?",
            "ledger",
            _items(_first(map(markdown, report.trusted_code)))
            or "No code beyond the library's own is named.",
        ),
        Answer(
            "Algorithms and correctness",
            "Is sensitivity bounded by what runs, not by what is assumed of the data?",
            "ledger",
            "Rows are opened only clipped to the domain that stands in each spend, except by "
            "trusted code, which is listed above."
            + (" Of what clients attest that is not known." if report.attested else ""),
        ),
        Answer(
            "Implementation: floating point",
            "Can the last bits of the noise tell about the data?",
            "ledger",
            f"Noise: {markdown(report.noise)}.",
        ),
        Answer(
            "Implementation: random numbers",
            "Where do random numbers come from?",
            "ledger",
            _items(
                ["A SIMULATION: the noise can be repeated, and protects nobody."]
                if report.simulation
                else [line for line in _lines(report, "trusted") if "random bits" in line]
                or [f"The ledger does not say; of the noise it says: {markdown(report.noise)}."]
            ),
        ),
        Answer(
            "Implementation: side channels",
            "What of timing, memory and energy?",
            "nobody",
            _texts(report, "not protected", "Running time") or "They are not protected.",
        ),
        Answer(
            "Utility and bias",
            "Is the result good enough for its purpose, and for whom is it worse?",
            "person",
            "Clipping and null records move results towards public defaults, more for groups with "
            "large or few records; the ledger does not know the data, and says nothing of it.",
        ),
    ]


def _setting(report: Report, said: Mapping[str, Any]) -> list[Answer]:
    models = {
        Trust.CENTRAL: "central: the curator sees the rows",
        Trust.JOINT: "joint: the curator sees the rows, and each user what depends on the own row",
        Trust.LOCAL: "local: nobody but the user's device sees the row",
    }
    trust = dict.fromkeys(models[one.trust] for one in report.guarantees)
    return [
        Answer("Trust model", "Who is trusted with the data?", "ledger", _items(trust)),
        Answer(
            "Trust model",
            "Who sees what, and may anybody collude?",
            "person",
            _said(said, "deployment_model", "actors"),
        ),
        Answer(
            "Query model",
            "Who may ask what, and can questions depend on earlier answers?",
            "person",
            "Every loss is priced for questions that depend on all earlier answers. "
            + _said(said, "deployment_model", "access_type"),
        ),
        Answer(
            "Public information",
            "What was taken as public, and was it made from the data?",
            "ledger",
            _texts(report, "declared", "ublic", "Constants"),
        ),
        Answer(
            "Tuning",
            "Were settings chosen by looking at the data?",
            "person",
            _said(said, "implementation", "preprocessing_and_hyperparameter_tuning"),
        ),
    ]


def _beneath(report: Report, said: Mapping[str, Any]) -> list[Answer]:
    return [
        Answer(
            "Record keeping",
            "Can a stranger check the claim, and would changes of the record be seen?",
            "ledger",
            f"{report.entries} entries, chained by SHA-256, head `{report.head}`; "
            + (
                "compared with a head that was kept elsewhere"
                if report.head_compared and report.head_at is not None
                else "not compared with a head that was kept elsewhere: whoever can rewrite the "
                "whole file can rebuild the chain"
            )
            + ".",
        ),
        Answer(
            "Record keeping",
            "Is the code that ran the code that was examined?",
            "person",
            "The ledger names the software and its version, which is what that software said: "
            + "; ".join(dict.fromkeys(markdown(one.software) for one in report.balances))
            + ".",
        ),
        Answer(
            "Data security and access control",
            "Who can reach the rows, keys and registries, and how are they kept?",
            "person",
            "Outside of the ledger: rows are sealed in the process only, and a breach of the "
            "machine gives them away.",
        ),
        Answer(
            "Collection of data",
            "How were the data collected, with whose consent, and how long are they kept?",
            "person",
            _said(said, "dp_variant", "data_domain"),
        ),
    ]


def _lines(report: Report, kind: AssumptionKind) -> list[str]:
    texts = [
        one.text
        for guarantee in report.guarantees
        for one in guarantee.rests_on
        if one.kind == kind
    ]
    return list(dict.fromkeys(texts))


def _texts(report: Report, kind: AssumptionKind, *words: str) -> str:
    return _items(
        markdown(text) for text in _lines(report, kind) if any(word in text for word in words)
    )


def _units(report: Report) -> str:
    return _items(
        dict.fromkeys(
            f"{one.adjacency.value}, one user being one index" for one in report.guarantees
        )
    )


def _said(said: Mapping[str, Any], section: str, name: str) -> str:
    fields = said.get(section)
    value = fields.get(name) if isinstance(fields, Mapping) else None
    return markdown(str(value)) if value else f"To be said: `{section}.{name}`."


_MOST = 30  # Lines of an answer


def _first(texts: Iterable[str]) -> list[str]:
    listed = list(texts)
    more = len(listed) - _MOST
    return listed[:_MOST] + [f"and {more} more, see `privlearn audit --json`"] * (more > 0)


def _items(texts: Any) -> str:
    return "<br>".join(f"• {text}" for text in texts)


BEGINNING = "# What an evaluator asks"
_BY = {"ledger": "the ledger", "person": "a person", "nobody": "not covered"}


def write_evaluation(
    report: Report, path: str | os.PathLike[str], about: Mapping[str, Any] | None = None
) -> None:
    """Writes the answers as a page of Markdown; an older one is replaced.

    Raises:
        DataError: the file that is there is not such a page.
        OSError: it cannot be written.
    """
    text = evaluation_markdown(report, about)
    write_over_own(path, text, beginning=BEGINNING, what="page of answers to an evaluator")


def evaluation_markdown(report: Report, about: Mapping[str, Any] | None = None) -> str:
    """The answers as a page of Markdown, which begins with `BEGINNING`."""
    answers = evaluation(report, about)
    open_ = sum(one.by == "person" for one in answers)
    lines = [
        BEGINNING,
        "",
        f"Of the ledger `{markdown(report.ledger)}`, {markdown(report.verdict)}. The questions "
        "follow the topics of NIST SP 800-226, in other words; NIST has neither checked nor "
        f"endorsed them. {len(answers) - open_} are answered from the ledger, {open_} have to be "
        "answered by a person.",
        "",
        "| topic | question | answered by | answer |",
        "|---|---|---|---|",
    ]
    lines += [f"| {a.topic} | {a.question} | {_BY[a.by]} | {a.answer} |" for a in answers]
    return "\n".join(lines) + "\n"
