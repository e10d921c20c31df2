"""What a guarantee rests on, said in full on every certificate."""

from __future__ import annotations

from privlearn.accountants.filters import CONCURRENT, FAILURES, THEOREMS
from privlearn.accountants.state import AccountState, has_minimizer
from privlearn.adjacency import Adjacency, Calibration, Trust
from privlearn.budgets import float_up

_EVERY = (
    "This verifies the record; that the deployed code is the code that wrote it is not proved.",
    "The guarantee is the committed plan's total, or the cap where spends are ad hoc; what was "
    "spent is stated beside it, ex post, and is not a guarantee.",
    "The index of a user is fixed on arrival, and batches are closed by public counts.",
    "Clipping, sums and noise are computed in double precision; their rounding is not priced.",
    "Running time and memory use are not protected.",
    "Other ledgers about the same people, and accountants opened later in this one, add up with "
    "this.",
    "Constants (clipping bounds, batch sizes, priors, steps) are public and were not tuned on "
    "these data, except where declared below.",
)
_NAMED = (
    "Functions that rows pass through act on each row by itself: the library's own were tested in "
    "advance; the user's are each named as trusted code, and were spot-checked on every block, but "
    "for the users' answers, which are given once."
)
_UNNAMED = (
    "Functions that rows pass through act on each row by itself: an older version began this "
    "ledger, which neither named nor checked them."
)
_CENTRAL = (
    "The curator who runs the mechanisms sees the rows and is trusted.",
    "One user is one row; a person with k rows has group privacy (k·μ, k²·ρ, k·ε for pure ε).",
)
_JOINT = (
    "One user is one round; a person with k rounds has group privacy (k·μ, k²·ρ, k·ε for pure ε).",
    "A user's record is the pair of own data and response function: how this user would answer "
    "every offer.",
    "Protected is what all other users receive, together with everything released (billboard "
    "lemma); the user's own action is not protected from whoever sees it.",
    "Only rows that the accountant's own billboard served are opened; logged rows are refused.",
)
_LOCAL = (
    "Each message is randomised on the user's own device, which alone sees the row; whatever is "
    "computed from messages is covered.",
    "All messages of one user add up; messages of others cost this user nothing.",
    "That a user takes part, when, and with how many messages is seen by the receiver, is not "
    "protected and does not depend on the row.",
    "One user is one index; a person with k indices has group privacy (k·μ, k²·ρ, k·ε for pure ε).",
)
_ATTESTED = (
    "ATTESTED, NOT VERIFIED: the loss of a message and how many there are is what clients claim; "
    "this ledger saw no noise drawn.",
    "Clients that send more, or with less noise, than they attest have no guarantee from here.",
)


def assumptions(state: AccountState, rounds: int = 1) -> list[str]:
    """The assumptions of this accountant's guarantee, in words."""
    opened = state.opened
    basis = "committed plan" if state.plan is not None else "cap (spends are ad hoc)"
    lines = [f"Basis: {basis}.", *_EVERY, _NAMED if opened.functions_named else _UNNAMED]
    if state.plan is None:
        theorem = THEOREMS.get(type(state.cap), "no theorem is known for this currency")
        lines.append(f"The cap is a filter for spends chosen as one goes: {theorem}.")
    if state.failure:
        lines.append(
            f"δ includes a probability of failing, up to {float_up(state.failure):g}, in which "
            f"nothing is promised: {FAILURES}."
        )
    lines.append(f"Streams may stay open while other tokens are spent: {CONCURRENT}.")
    if rounds > 1:
        lines.append(f"This is for a person with {rounds} rounds, by group privacy.")
    lines += {Trust.CENTRAL: _CENTRAL, Trust.JOINT: _JOINT, Trust.LOCAL: _LOCAL}[opened.trust]
    if opened.attested:
        lines += _ATTESTED
        unseen = dict.fromkeys(item for entry in state.attested for item in entry.unseen)
        lines.append(
            "Of a user the receiver is assumed not to see, besides the message: "
            f"{'; '.join(unseen)}. Where it sees one of these, that is not protected from it."
            if unseen
            else "What the receiver is assumed not to see of a user besides the message was not "
            "said: whatever else it sees of the user is not protected from it."
        )
    elif opened.trust is Trust.LOCAL and len(state.users) > 1:
        lines.append(
            f"Users {state.users.start}..{state.users.stop - 1} share this device: whoever runs it "
            "sees the rows of all of them."
        )
    if opened.population is not None:
        lines.append(
            f"Under the name {opened.population!r} an index is the same person in every "
            "accountant, as declared."
        )
    if opened.side_information:
        lines += [f"Declared public side information: {item}." for item in opened.side_information]
    else:
        lines.append("No quantity computed from data was declared public.")
    lines.append(f"Noise: {opened.noise}.")
    if opened.adjacency is Adjacency.ADD_REMOVE:
        lines.append("The range of users is a public bound on their number, not their number.")
    spends = [account.spend for account in state.accounts.values() if account.spend is not None]
    errors = [
        float(account.spend.parameters["solver_error"])
        for account in state.accounts.values()
        if account.spend is not None and account.loss is not None and has_minimizer(account.loss)
    ]
    if errors:
        lines.append(
            f"Minimisers are certified to within {max(errors):.2g} of the exact ones (float error "
            "included); output noise and its price cover that."
        )
    elif not opened.attested and all(spend.derived for spend in spends):
        lines.append("No solver's output was released; there is no solver tolerance to pay.")
    if any(spend.calibration is Calibration.PUBLISHED for spend in spends):
        lines.append(
            "Noise of a published calibration was used; the price is what it really costs, and not "
            "what was published."
        )
    if not opened.durable:
        lines.append("The ledger lived in memory: after a restart nothing knows what was spent.")
    if opened.simulated:
        lines.append("SIMULATION: the noise is reproducible and protects nobody.")
    return lines
