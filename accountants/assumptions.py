"""What a guarantee rests on, said in full on every certificate."""

from __future__ import annotations

from fractions import Fraction

from privlearn.accountants.assumption import (
    Assumption,
    checked,
    declared,
    paid,
    trusted,
    unprotected,
)
from privlearn.accountants.filters import CONCURRENT, FAILURES, THEOREMS
from privlearn.accountants.person_assumptions import person_assumptions
from privlearn.accountants.spend_totals import SpendTotals
from privlearn.accountants.state import AccountState
from privlearn.ledger.entries import EXACT
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import float_up, round_up

_RECORD = (
    trusted(
        "This verifies the record; that the deployed code is the code that wrote it is not proved."
    ),
    paid(
        "The guarantee is the committed plan's total, or the cap where spends are ad hoc; what was "
        "spent is stated beside it, ex post, and is not a guarantee."
    ),
    declared("The index of a user is fixed on arrival, and batches are closed by public counts."),
)
_EVERYWHERE = (
    unprotected("Running time and memory use are not protected."),
    unprotected(
        "Other ledgers about the same people, and accountants opened later in this one, add up "
        "with this."
    ),
    declared(
        "Constants (clipping bounds, batch sizes, priors, steps) are public and were not tuned on "
        "these data, except where declared below."
    ),
)
_ROUNDED = trusted(
    "Clipping, sums and noise are computed in double precision; their rounding is not priced."
)
"""Of ledgers that were begun before noise was exact, whoever goes on with them."""
_EXACT = (
    "what is released has the law that is priced, to the last bit and with no tail cut short of "
    "2^22 scales of the noise, as noise and clipped rows are integers on a public grid, or as "
    "reports are drawn by comparisons alone. The sampler's tables of each such spend were looked "
    "at, and where it states a grid, that and the bound of the integers."
)
_MACHINE = trusted(
    "That it is exact rests on 64-bit integers, on doubles that NumPy and its BLAS add, subtract, "
    "multiply, divide and compare as IEEE 754 says, to nearest, and on the error bounds of the "
    "sampler's tables, which were proved in ball arithmetic (Arb)."
)
_RANDOM_BITS = trusted("AES-256 in counter mode is taken for a source of random bits.")
_LATER = checked(
    "Whether noise is exact is said of the spends that stand here. What is spent later may be "
    "computed in floating point, whose rounding is not priced, and is then named."
)
_DRAWN_BY_CLIENTS = declared(
    "Whether messages are drawn exactly or in floating point is not seen here: that they have "
    "the law that is priced is part of what clients attest."
)
_NAMED = trusted(
    "Functions that rows pass through act on each row by itself: the library's own were tested in "
    "advance; the user's are each named as trusted code, and were spot-checked on every block, but "
    "for the users' answers, which are given once."
)
_UNNAMED = trusted(
    "Functions that rows pass through act on each row by itself: an older version began this "
    "ledger, which neither named nor checked them.",
    weakens=True,
)
_METERED = trusted(
    "Metered code, each named as trusted, is not of this package: what it opens of each user, that "
    "its noise is random and earns its price, and that nothing else leaves it is its own word. Its "
    "price was in the ledger before it ran.",
    weakens=True,
)
_METERED_JOINT = trusted(
    "That metered code opens only rows that the accountant's own billboard served is its own word.",
    weakens=True,
)
_GROUP = "has group privacy (k·μ, k²·ρ, k·ε for pure ε)."
_CENTRAL = (trusted("The curator who runs the mechanisms sees the rows and is trusted."),)
_JOINT = (
    paid(
        "A user's record is the pair of own data and response function: how this user would answer "
        "every offer."
    ),
    checked(
        "Only rows that the accountant's own billboard served are opened; logged rows are refused."
    ),
)
_LOCAL = (
    trusted(
        "Each message is randomised on the user's own device, which alone sees the row; whatever "
        "is computed from messages is covered."
    ),
    paid("All messages of one user add up; messages of others cost this user nothing."),
    unprotected(
        "That a user takes part, when, and with how many messages is seen by the receiver, is not "
        "protected and does not depend on the row."
    ),
)
_OTHERS = unprotected(
    "Protected is what all other users receive, together with everything released (billboard "
    "lemma); the user's own action is not protected from whoever sees it."
)
_OTHER_PERSONS = unprotected(
    "Protected is what all other persons receive, together with everything released (billboard "
    "lemma); what a person is shown, at any visit, is not protected from whoever sees it."
)
_ONE_INDEX = {
    Trust.CENTRAL: unprotected(f"One user is one row; a person with k rows {_GROUP}"),
    Trust.JOINT: unprotected(f"One user is one round; a person with k rounds {_GROUP}"),
    Trust.LOCAL: unprotected(f"One user is one index; a person with k indices {_GROUP}"),
}
"""Without a rule of participation."""
_ATTESTED = (
    declared(
        "ATTESTED, NOT VERIFIED: the loss of a message and how many there are is what clients "
        "claim; this ledger saw no noise drawn.",
        weakens=True,
    ),
    unprotected(
        "Clients that send more, or with less noise, than they attest have no guarantee from here.",
        weakens=True,
    ),
)


def assumptions(state: AccountState, totals: SpendTotals, rounds: int = 1) -> list[Assumption]:
    """The assumptions of this accountant's guarantee."""
    return [
        *_basis(state, totals, rounds),
        *{Trust.CENTRAL: _CENTRAL, Trust.JOINT: _JOINT, Trust.LOCAL: _LOCAL}[state.opened.trust],
        *_unit(state),
        *person_assumptions(state, totals),
        *_devices(state),
        *_declarations(state),
        *_number_of_users(state, totals),
        *_of_spends(state, totals),
        *_of_the_ledger(state, totals),
    ]


def _unit(state: AccountState) -> list[Assumption]:
    """Who is protected from whom, where an index is one person and where it is not."""
    one = [_ONE_INDEX[state.opened.trust]] if state.visits is None else []
    if state.opened.trust is not Trust.JOINT:
        return one
    return [*one, _OTHERS if state.visits is None else _OTHER_PERSONS]


def _basis(state: AccountState, totals: SpendTotals, rounds: int) -> list[Assumption]:
    basis = "committed plan" if state.plan is not None else "cap (spends are ad hoc)"
    lines = [
        paid(f"Basis: {basis}."),
        *_RECORD,
        *_arithmetic(state, totals),
        *_EVERYWHERE,
        _NAMED if state.functions_named else _UNNAMED,
    ]
    if state.plan is None:
        theorem = THEOREMS.get(type(state.cap), "no theorem is known for this currency")
        lines.append(paid(f"The cap is a filter for spends chosen as one goes: {theorem}."))
    if state.failure:
        lines.append(
            paid(
                f"δ includes a probability of failing, up to {_short(state.failure, 6)}, in "
                f"which nothing is promised: {FAILURES}."
            )
        )
    lines.append(paid(f"Streams may stay open while other tokens are spent: {CONCURRENT}."))
    if rounds > 1:
        lines.append(paid(f"This is for a person with {rounds} rounds, by group privacy."))
    return lines


def _arithmetic(state: AccountState, totals: SpendTotals) -> list[Assumption]:
    """Whether what left has the priced law, or has it up to rounding."""
    if EXACT not in state.opened.features:
        return [_ROUNDED]
    if state.opened.attested:
        return [_DRAWN_BY_CLIENTS]
    bits = [] if state.opened.simulated else [_RANDOM_BITS]
    if not totals.exact and not totals.rounded:
        return [*([] if state.closed else [_LATER]), *bits]
    lines = bits
    if totals.exact:
        but = ", but for what is named as not exact" if totals.rounded else ""
        lines = [checked(f"Exact{but}: {_EXACT}"), _MACHINE, *bits]
    if not state.closed:
        lines.append(_LATER)
    if totals.rounded:
        lines.append(
            trusted(
                "Not exact: clipping, sums and noise of the following are computed in floating "
                f"point, and their rounding is not priced: {', '.join(totals.rounded)}.",
                weakens=True,
            )
        )
    return lines


def noise_text(state: AccountState, totals: SpendTotals) -> str:
    """What the noise of an accountant is, as its ledger says."""
    noise = state.opened.noise
    if EXACT in state.opened.features and (totals.exact or totals.rounded):
        rounded = "in floating point" if totals.rounded else ""
        noise += f", {' and '.join(filter(None, ['exact' * totals.exact, rounded]))}"
    return f"{noise}; of metered code its own" if totals.metered else noise


def _devices(state: AccountState) -> list[Assumption]:
    if state.opened.attested:
        unseen = dict.fromkeys(item for entry in state.attested for item in entry.unseen)
        return [
            *_ATTESTED,
            unprotected(
                "Of a user the receiver is assumed not to see, besides the message: "
                f"{'; '.join(unseen)}. Where it sees one of these, that is not protected from it.",
                weakens=True,
            )
            if unseen
            else unprotected(
                "What the receiver is assumed not to see of a user besides the message was not "
                "said: whatever else it sees of the user is not protected from it.",
                weakens=True,
            ),
        ]
    if state.opened.trust is Trust.LOCAL and len(state.users) > 1:
        return [
            trusted(
                f"Users {state.users.start}..{state.users.stop - 1} share this device: whoever "
                "runs it sees the rows of all of them.",
                weakens=True,
            )
        ]
    return []


def _declarations(state: AccountState) -> list[Assumption]:
    lines = []
    if state.opened.population is not None:
        lines.append(
            declared(
                f"Under the name {state.opened.population!r} an index is the same person in every "
                "accountant, as declared.",
                weakens=True,
            )
        )
    for item in state.opened.side_information:
        lines.append(declared(f"Declared public side information: {item}.", weakens=True))
    if not state.opened.side_information:
        lines.append(declared("No quantity computed from data was declared public."))
    return lines


def _number_of_users(state: AccountState, totals: SpendTotals) -> list[Assumption]:
    """Under add-remove, neighbours differ in how many users there are."""
    if state.opened.adjacency is not Adjacency.ADD_REMOVE:
        return []
    if totals.sampled:
        return [
            unprotected(
                f"{', '.join(totals.sampled)}: took the exact number of records, "
                f"{len(state.users)}, for the range of users and for its sampling rate. Adding or "
                "removing one user changes that number, and it stands here in public.",
                weakens=True,
            )
        ]
    return [
        declared(
            "The range of users is a public bound on their number. If it is the number itself, "
            "that is public, too, and not protected; the ledger cannot tell."
        )
    ]


def _of_spends(state: AccountState, totals: SpendTotals) -> list[Assumption]:
    lines = [declared(f"{_upper(text)}.", weakens=True) for text in totals.declarations.words()]
    if totals.metered:
        lines += [_METERED, *([_METERED_JOINT] if state.opened.trust is Trust.JOINT else [])]
    if totals.solver_error is not None:
        lines.append(
            checked(
                f"Minimisers are certified to within {_short(Fraction(totals.solver_error), 3)} of "
                "the exact ones (float error included); output noise and its price cover that."
            )
        )
    elif not state.opened.attested and totals.all_derived:
        lines.append(
            checked("No solver's output was released; there is no solver tolerance to pay.")
        )
    if totals.ended_early:
        streams = "1 stream" if totals.ended_early == 1 else f"{totals.ended_early:,} streams"
        lines.append(
            paid(
                f"{streams} ended early: charged to users whose rows it may have taken, and not to "
                f"those who came later, {totals.freed:,} in all, whose rows it never took; how far "
                "a stream came stands in the ledger before it opens rows."
            )
        )
    if totals.phases:
        phases = "1 phase" if totals.phases == 1 else f"{totals.phases:,} phases"
        lines += [
            checked(
                f"{phases} began, the last of which ends at user {totals.phased_to - 1:,}: each "
                "has the users behind the one before, its end stands in the ledger before its rows "
                "were opened, and at most one value left for it. So each user is in one release."
            ),
            trusted(
                "That the end of a phase follows from what was released, and from no row, is the "
                "word of the code that began it."
            ),
        ]
    if totals.published:
        lines.append(
            paid(
                "Noise of a published calibration was used; the price is what it really costs, and "
                "not what was published."
            )
        )
    return lines


def _short(number: Fraction, digits: int) -> str:
    return f"{float_up(round_up(number, digits)):.{digits}g}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


_HEADS_BESIDE = trusted(
    "Whoever went on with the ledger compared it with the head in a file beside it, which tells "
    "one that was cut or swapped, and not one that was put back together with that file."
)
_HEADS_ELSEWHERE = trusted(
    "Each head was handed to a safer place than the file beside the ledger before anything was "
    "released for it, and whoever went on with the ledger compared it with the last one, which "
    "tells an older copy."
)


def _of_the_ledger(state: AccountState, totals: SpendTotals) -> list[Assumption]:
    lines = [trusted(f"Noise: {noise_text(state, totals)}.")]
    if not state.opened.durable:
        lines.append(
            trusted(
                "The ledger lived in memory: after a restart nothing knows what was spent.",
                weakens=True,
            )
        )
    elif state.resumable:
        lines.append(_HEADS_BESIDE if state.opened.heads is None else _HEADS_ELSEWHERE)
    if state.unknown_heads:
        times = "once" if state.unknown_heads == 1 else f"{state.unknown_heads} times"
        lines.append(
            declared(
                f"The ledger was resumed {times} without a head to compare it with, as somebody "
                "said that none was left: if it was an older copy, what was spent behind it is not "
                "counted.",
                weakens=True,
            )
        )
    if state.opened.simulated:
        lines.append(
            unprotected("SIMULATION: the noise is reproducible and protects nobody.", weakens=True)
        )
    return lines
