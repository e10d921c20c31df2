"""Every error that privlearn raises on purpose, as one tree.

::

    PrivlearnError
    ├── BudgetError (ValueError)
    │   ├── InsufficientBudgetError   the cap cannot hold the request
    │   ├── CurrencyError             a loss has no price in this currency
    │   └── AdjacencyError            two adjacencies were mixed
    ├── TokenError (RuntimeError)
    │   ├── TokenSpentError           the token was used before
    │   ├── ForeignTokenError         the token belongs to another accountant
    │   ├── TokenCopyError            a token was copied, pickled or carried over a fork
    │   ├── LossExceedsTokenError     the spend costs more than the token holds
    │   ├── LeaseError                all runs of a lease were used, or it ended
    │   ├── NonceReusedError          a nonce was given before, for something else
    │   ├── NonceBusyError            the first try under a nonce is not done
    │   └── SpendLostError            a spend left no value, and stays charged
    ├── SealedError (TypeError)       sealed data were looked at outside a mechanism
    ├── UsersError (ValueError)       arrival indices outside the range, repeated or out of order
    ├── ProvenanceError (ValueError)  logged rows where served rows are required
    ├── HorizonError (ValueError)     more rounds than the declared horizon
    ├── RowLocalityError (RuntimeError)   a function of rows let one row depend on another
    ├── DataError (ValueError)        an input file cannot be read as described
    ├── PartitionError (RuntimeError)  rows in other processes could not be read or added up
    ├── SolverError (RuntimeError)    a minimiser was not certified: the release is lost
    ├── PolicyError (RuntimeError)    a policy of another library failed, or chose what is no arm
    ├── PeopleError (RuntimeError)    the registry of people is lost, a copy, or another one's
    ├── RowStoreError (RuntimeError)  a store of rows is damaged, older, or another one's
    ├── OfferError (ValueError)       an answer to no open offer, or a second one
    ├── BatchError (ValueError)       the batch to be closed is not the one that was meant
    ├── ReentryError (RuntimeError)   called from inside an unfinished call of its own
    ├── LocalSocketError (RuntimeError)   another process of this host does not answer as it must
    ├── LedgerError (RuntimeError)
    │   ├── LedgerUnreadableError     missing, truncated or not a ledger
    │   ├── LedgerSchemaError         of a newer format, or an older one that takes no entries
    │   ├── LedgerFeatureError        needs an extension that this version does not know
    │   ├── LedgerBusyError           another process has written to it
    │   ├── LedgerFencedError         another process began a later epoch of it
    │   ├── LedgerHeadError           the head is not known, or could not be kept
    │   ├── LedgerClosedError         no entry may follow ``close``
    │   └── UnknownKindError          a loss kind that this version does not know
    ├── SigningError (ValueError)     a key, a signed file or a proof is not of its form
    │   ├── PassphraseError           a private key was not opened
    │   ├── WrongSignatureError       a signature is not the key's, or the key not the one asked for
    │   ├── OtherLedgerError          signed over another ledger, or a fork of this one
    │   └── NotCertifiedError         a ledger whose guarantee does not hold
    ├── IncompleteRecordError (ValueError)   a field that only a person can fill in is missing
    ├── UncertifiedRecordError (ValueError)  a record would state what a ledger does not earn
    ├── PackageError (RuntimeError)   what another package announces cannot be used
    ├── NoiseSamplerError (RuntimeError)  damaged tables, or another arithmetic than IEEE 754's
    ├── ServiceError (RuntimeError)   a service refused a request, or cannot be reached
    ├── CheckError (ValueError)       a privacy check cannot be done as asked for
    ├── PrivacyViolation (AssertionError)    a check found more loss than was claimed
    ├── SurvivalError (AssertionError)       a learner does not go on from its ledger
    └── InterferenceError (AssertionError)   a learner failed the non-interference check

Wrong values of public parameters raise plain ``ValueError`` or ``TypeError`` with the parameter's
name, its value and what would be accepted.  Messages about sealed data name the field and the
bound, never the value.
"""

from __future__ import annotations


class PrivlearnError(Exception):
    """Base of all errors raised by privlearn."""


class BudgetError(PrivlearnError, ValueError):
    """A budget does not fit its use."""


class InsufficientBudgetError(BudgetError):
    """The cap cannot hold the request; nothing was charged."""

    def __init__(
        self, *, spent: object, requested: object, remaining: object, users: range, cap: str = ""
    ):
        self.spent, self.requested, self.remaining, self.users = spent, requested, remaining, users
        self.cap = cap
        super().__init__(
            f"budget exceeded for users {users.start}..{users.stop - 1}{cap and f' in {cap}'}: "
            f"spent or reserved {spent}, requested {requested}, remaining {remaining}; nothing was "
            "charged"
        )

    def of(self, cap: str) -> InsufficientBudgetError:
        """The same, of a cap inside the account."""
        return InsufficientBudgetError(
            spent=self.spent,
            requested=self.requested,
            remaining=self.remaining,
            users=self.users,
            cap=cap,
        )


class CurrencyError(BudgetError):
    """A loss has no finite price in the accountant's currency."""


class AdjacencyError(BudgetError):
    """Two neighbour relations were mixed without a stated conversion."""


class TokenError(PrivlearnError, RuntimeError):
    """A token was misused."""


class TokenSpentError(TokenError):
    """The token was spent or retired before."""


class ForeignTokenError(TokenError):
    """The token was issued by another accountant."""


ONE_PROCESS = (
    "what spends stays in one process: use n_jobs=1, or threads, "
    "joblib.parallel_config(backend='threading')"
)


class TokenCopyError(TokenError):
    """Tokens are single-use: they cannot be copied, pickled or used in a forked process."""


class LossExceedsTokenError(TokenError):
    """The mechanism costs more than the token holds; the token is still unspent."""


class LeaseError(TokenError):
    """All runs of a lease were used, it ended, or there can be none: nothing was opened."""


class NonceReusedError(TokenError):
    """A nonce was given before, for something else: nothing was spent."""


class NonceBusyError(TokenError):
    """The first try under a nonce is not done, in another thread or process: ask again later."""


class SpendLostError(TokenError):
    """What was spent under a nonce left no value: it stays charged, and is never drawn again."""


class SealedError(PrivlearnError, TypeError):
    """Sealed data can only be opened by a mechanism that holds a receipt."""


class UsersError(PrivlearnError, ValueError):
    """Arrival indices lie outside the allowed range, repeat, or come out of order."""


class ProvenanceError(PrivlearnError, ValueError):
    """A joint guarantee needs rows that were served by the accountant's own billboard."""


class HorizonError(PrivlearnError, ValueError):
    """More rounds were asked for than the declared horizon allows."""


class RowLocalityError(PrivlearnError, RuntimeError):
    """A function that rows passed through let a row's result depend on more than that row.

    This is an error of the program, and not of a record.  It is raised where the rows would be
    opened; the spend ends ``uncovered``.
    """


class DataError(PrivlearnError, ValueError):
    """An input file, a table or sealed rows do not have the required form: nothing was spent."""


class PartitionError(PrivlearnError, RuntimeError):
    """Rows that lie in other processes could not be read or added up there."""


class SolverError(PrivlearnError, RuntimeError):
    """A minimiser was not certified; the release is lost and stays charged."""


class PolicyError(PrivlearnError, RuntimeError):
    """A policy of another library failed, chose what is no arm, or is not the one of before."""


class PeopleError(PrivlearnError, RuntimeError):
    """The registry of people cannot be used: nothing more of anybody is learned through it."""


class RowStoreError(PrivlearnError, RuntimeError):
    """The encrypted store of rows cannot be used: what it holds is not taken for what was kept."""


class OfferError(PrivlearnError, ValueError):
    """An answer names an offer that is unknown, closed, somebody else's, or answered already.

    Attributes:
        reason: ``unknown`` (somebody else's, too), ``closed`` or ``answered``.
    """

    def __init__(self, message: str, *, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason


class BatchError(PrivlearnError, ValueError):
    """A batch is not closed, as it is not the one that was meant; nothing was changed.

    Attributes:
        reason: ``another`` (is open), ``empty`` (nobody of it was served) or ``more`` (of its users
            have not come than were to be left out).
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ReentryError(PrivlearnError, RuntimeError):
    """A signal handler, a finaliser or a callback called what was half-way; nothing was changed."""


class LocalSocketError(PrivlearnError, RuntimeError):
    """A process of this host cannot be asked, gave no answer, or one that is not of the form."""


class LedgerError(PrivlearnError, RuntimeError):
    """The ledger cannot be used."""


class LedgerUnreadableError(LedgerError):
    """The file is missing, truncated or not a ledger."""


class LedgerSchemaError(LedgerError):
    """The ledger is of a format that is newer, or takes no further entries from this version."""


class LedgerFeatureError(LedgerError):
    """The ledger cannot be understood without an extension that this version does not know."""


class LedgerBusyError(LedgerError):
    """Another process has written to this ledger since it was opened here."""


class LedgerFencedError(LedgerError):
    """The ledger was opened anew since: this process may neither spend nor release any more."""


class LedgerHeadError(LedgerError):
    """The head of the ledger is not known, is not in it, or could not be kept."""


class LedgerClosedError(LedgerError):
    """The ledger or the accountant was closed."""


class UnknownKindError(LedgerError):
    """A recorded loss has a kind that this version cannot price."""


class SigningError(PrivlearnError, ValueError):
    """A key, a signed note, a checkpoint, a proof or a certificate is not of its form."""


class PassphraseError(SigningError):
    """A private key was not opened with this passphrase, or with none.

    Attributes:
        needed: whether none was given, and the key needs one.
    """

    def __init__(self, message: str, *, needed: bool = False) -> None:
        super().__init__(message)
        self.needed = needed


class WrongSignatureError(SigningError):
    """A signature is not that of the key, or the key is not the one that was asked for."""


class OtherLedgerError(SigningError):
    """What was signed is about another ledger, or about a history that this one does not have."""


class NotCertifiedError(SigningError):
    """Nothing was signed: the audit found problems, or noise that protects nobody.

    Attributes:
        simulation: whether it is only the noise.
    """

    def __init__(self, message: str, *, simulation: bool = False) -> None:
        super().__init__(message)
        self.simulation = simulation


class IncompleteRecordError(PrivlearnError, ValueError):
    """Fields of a record that only a person can fill in are missing; the message names them."""


class UncertifiedRecordError(PrivlearnError, ValueError):
    """A record would state a guarantee that the ledger does not earn."""


class PackageError(PrivlearnError, RuntimeError):
    """What another installed package announces is claimed twice, or cannot be used."""


class ServiceError(PrivlearnError, RuntimeError):
    """A service refused a request, or cannot be reached.

    Attributes:
        code: why, in one word of `privlearn.service.problems`.
        status: of HTTP; 0 if there was no answer.
        retry_after: seconds after which to ask again, if that may help.
    """

    def __init__(
        self, code: str, status: int, message: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.status, self.retry_after = code, status, retry_after


class InterferenceError(PrivlearnError, AssertionError):
    """Replaying a learner on a neighbouring data set changed what it must not change.

    Attributes:
        evidence: the report up to there, of a check that makes one.
    """

    evidence: object = None


class SurvivalError(PrivlearnError, AssertionError):
    """A learner that was ended and resumed does not go on from its ledger as it must."""


class CheckError(PrivlearnError, ValueError):
    """A privacy check cannot be done as asked for; this is never a pass."""


class PrivacyViolation(PrivlearnError, AssertionError):
    """A mechanism loses more privacy than it claims.

    Attributes:
        evidence: what was found, where it is more than the message says.
    """

    def __init__(self, message: str, evidence: object = None) -> None:
        super().__init__(message)
        self.evidence = evidence


class NoiseSamplerError(PrivlearnError, RuntimeError):
    """Noise cannot be drawn here as it is priced: damaged tables, or another arithmetic."""
