"""Many open users at a time: what each is shown has an id, and answers come in any order, or never.

`Offers` serves the users of one learner from any number of threads.  A batch is closed by how many
offers were made, or by the operator's clock; never by answers, and who has not answered by then is
null.  So joint privacy holds as for one user at a time: docs/how-to/serve-many-users.md has
the theorem, its proof, and what it does not cover (timing, and floods of offers).
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, ClassVar, Final, Generic, TypeVar, final

from numpy.typing import ArrayLike

from privlearn.errors import BatchError, OfferError
from privlearn.learners.open_users import OpenUsers
from privlearn.learners.participation import (
    NOT_GIVEN,
    NotGiven,
    PersonId,
    check_given,
    given,
)
from privlearn.learners.served import Mask, Served
from privlearn.people.identities import hashes, new_key
from privlearn.rows.domains import Array
from privlearn.storage.exclusive import Exclusive
from privlearn.values.user_code import FAILED, attempted
from privlearn.values.validate import count

L = TypeVar("L", bound="Served[Any, Any, Any]")
R = TypeVar("R")

_TAG_DIGITS = 8
_CODE_BYTES = 16


@final
@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What one user is to be shown, and nobody else.

    Attributes:
        id: nobody can guess it; the user's answer names it.
        items: indices of the items to show, ascending; of a bandit the arm or action, of experts
            the expert, an int.
    """

    id: str
    items: Any


class _Request:
    """A call that waits for its turn, or for one that takes it along."""

    __slots__ = ("error", "result", "state")

    WAITING: Final = 0
    TAKEN: Final = 1
    DONE: Final = 2
    WITHDRAWN: Final = 3

    def __init__(self) -> None:
        self.state = self.WAITING
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.state == self.DONE

    def done(self, result: Any) -> None:
        self.result, self.state = result, self.DONE

    def fail(self, error: BaseException) -> None:
        self.error, self.state = error, self.DONE

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


@final
class Selecting(_Request):
    """A user who wants to be served."""

    __slots__ = ("person", "sent")

    def __init__(self, sent: Any, person: Any) -> None:
        super().__init__()
        self.sent, self.person = sent, person


@final
class Observing(_Request):
    """A user who answers."""

    __slots__ = ("answer", "id", "person")

    def __init__(self, id: str, answer: Any, person: Any) -> None:
        super().__init__()
        self.id, self.answer, self.person = id, answer, person


class Offers(Generic[L]):
    """Serves many users at a time for a learner that was started; from any thread.

    From then on the learner takes users through this alone.  Requests that wait for each other are
    served together, so that one write to the disk pays for all of them; the results are those of
    one after the other.

    A batch of the learner that is full is closed when ``wait`` further users were served from the
    public state of before, and one more asks.  Who has not answered by then is null.  With
    ``wait=0`` and answers that come at once everything is as with `select` and `observe` of the
    learner.

    Args:
        learner: of `privlearn.learners` that serves users, started.
        wait: how many further users a full batch waits for late answers; about as many as are open
            at a time.

    Raises:
        TypeError: no learner that serves users, or ``wait`` is no integer.
        ValueError: ``wait`` is negative.
        RuntimeError: the learner was not started, or has Offers already.
        UsersError: the learner's last user has not answered.
        ProvenanceError: the accountant is not joint, or its rule of participation has a timetable.
    """

    _kept_open_by: ClassVar[type[OpenUsers[Any, Any, Any]]] = OpenUsers

    def __init__(self, learner: L, *, wait: int = 0) -> None:
        if not isinstance(learner, Served):
            raise TypeError(
                f"learner = {type(learner).__name__}: must be one that serves users: items "
                "(OnePassNewtonMNL, DPMNL), actions (OnePassNewtonGLM), arms (PrivateArms, "
                "PrivateTest, HeldPolicy, DPHDB, PrivateLeastSquares) or experts (PrivateExperts)"
            )
        self._wait = count(wait=wait, at_least=0)
        self._learner = learner
        self._open = self._kept_open_by(learner, self._wait)
        self._begin = learner.clock_
        self._tag = secrets.token_hex(_TAG_DIGITS // 2)
        self._key = secrets.token_bytes(32)
        self._people_key = new_key()
        self._whose: dict[int, bytes | None] = {}
        self._queue: deque[Selecting | Observing] = deque()
        self._turn = Exclusive("Offers")

    @property
    def learner(self) -> L:
        return self._learner

    @property
    def wait(self) -> int:
        """How many further users a full batch waits for late answers."""
        return self._wait

    @property
    def clock_(self) -> int:
        """The arrival index of the next offer; public."""
        return self._learner.billboard_.clock

    @property
    def first_open(self) -> int:
        """The first index of the first batch that is open; public."""
        return self.open_batch.start

    @property
    def open_batch(self) -> range:
        """The first batch that is open, also after its last offer; public.

        Empty where all were closed.
        """
        with self._turn:
            return self._open.batch

    @property
    def full(self) -> bool:
        """Whether the first open batch has had all its offers, and waits for late answers; public.

        All batches closed counts as no batch.
        """
        with self._turn:
            return self._is_full()

    def _is_full(self) -> bool:
        learner, first = self._learner, self._open.first
        if first == learner._accountant.users.stop:
            return False
        return learner.clock_ >= learner._next_change()

    def close_if_full(self, first: int) -> None:
        """Closes the batch that begins with ``first``, if it is open and has had all its offers.

        For a public clock in another thread than those that serve: a batch that a further offer has
        just closed is no error, and the next one stays open.

        Raises:
            TypeError, ValueError: no index.
            RuntimeError: a round or release failed before.
        """
        count(first=first, at_least=0)
        with self._turn:
            if self._open.batch.start == first and self._is_full():
                self._open.close_batch()
                self._let_go()

    def is_open(self, offer: Offer) -> bool:
        """Whether the batch of an offer that this made is open, so that its answer counts.

        Raises:
            TypeError: no offer.
        """
        if not isinstance(offer, Offer):
            raise TypeError(f"offer: a {type(offer).__name__}: must be an Offer, from select")
        with self._turn:
            try:
                self._index(offer.id)
            except OfferError:
                return False
            return True

    def public_state(self) -> dict[str, Any]:
        """That of the learner, when no call is under way."""
        return self.read(lambda learner: learner.public_state())

    def read(self, function: Callable[[L], R]) -> R:
        """What a function makes of public attributes of the learner, when no call is under way."""
        with self._turn:
            return function(self._learner)

    def __repr__(self) -> str:
        return f"Offers({type(self._learner).__name__}, wait={self._wait}, next {self.clock_})"

    def select(
        self,
        features: ArrayLike | NotGiven = NOT_GIVEN,
        revenues: ArrayLike | None = None,
        *,
        person: PersonId = NOT_GIVEN,
    ) -> Offer:
        """Makes an offer to the next user, whose arrival index is fixed with it.

        Unusable data make this user's record null, as in the learner's `select`.  When it returns,
        it is on disk that the user was served, where there is a registry of people or a store of
        rows in a file.

        Args:
            features: as the learner's `select` takes it; of a bandit the context; of a learner
                whose users send nothing, such as `PrivateArms`, not to be given.
            revenues: as there; not for a bandit.
            person: under a rule of participation, and only then, who it is.

        Raises:
            HorizonError: all users were served.
            TypeError: nothing that a user can have sent, or an id of another kind.
            ProvenanceError: a person without a rule, or none with one.
            RuntimeError: a round or release failed before.
            ReentryError: called from inside an unfinished call, by a signal handler, say.
        """
        request = self.selecting(features, revenues, person)
        self.take([request])
        offer: Offer = request.outcome()
        return offer

    def observe(self, offer_id: str, choice: Any, *, person: PersonId = NOT_GIVEN) -> None:
        """Takes the answer to an offer; None is "no purchase", and for a bandit no reward.

        It counts if it comes before the batch is closed, in whatever order.  A choice that was not
        on offer makes the record null.  When it returns, the answer is on disk, where the learner
        has a store of rows.

        Args:
            offer_id: of the offer.
            choice: the answer; for a bandit the reward, for experts their losses.
            person: who answers; if given, it must be the one whom the offer was made to.

        Raises:
            OfferError: the offer is unknown, closed, another learner's or another person's, or was
                answered before.  Nobody but the caller hears of it, and nothing changes.
            ProvenanceError: a person, and no rule of participation.
            RuntimeError: a round or release failed before.
        """
        request = Observing(offer_id, choice, person)
        self.take([request])
        request.outcome()

    def close_batch(self) -> None:
        """Closes the first batch that is open, by the operator's public clock.

        Users of it who have not come yet are absent: their places are used up.  When it is called
        must follow from nothing that is sealed, such as how many have answered.

        Raises:
            HorizonError: all batches were closed.
            RuntimeError: a round or release failed before.
        """
        with self._turn:
            self._open.close_batch()
            self._let_go()

    def close_begun(self, first: int, most: int) -> int:
        """Closes the batch that begins with ``first``, of which somebody was served.

        For an operator who may ask twice, or too late: no other batch than the one that is named is
        closed, none that nobody came to, and none of which more is left than is given up.  All that
        is refused follows from indices, which are public.

        Args:
            first: the first index of the batch.
            most: how many of its users may be left out, who have not come yet.

        Returns:
            how many were.

        Raises:
            BatchError: another batch is open, nobody of it was served, or more have not come.
            HorizonError: all batches were closed.
            TypeError, ValueError: no index, or no count.
            RuntimeError: a round or release failed before.
        """
        count(first=first, at_least=0)
        count(most=most, at_least=0)
        with self._turn:
            batch, clock = self._open.batch, self.clock_
            if not batch:
                self._learner._check_running()
            if first != batch.start:
                told = f"first = {first}: the open batch begins with {batch.start}"
                raise BatchError(told, reason="another")
            if clock == first:
                raise BatchError(f"first = {first}: nobody of this batch came", reason="empty")
            absent = max(batch.stop - clock, 0)
            if absent > most:
                told = f"most = {most}: {absent} users of this batch have not come yet"
                raise BatchError(told, reason="more")
            self._open.close_batch()
            self._let_go()
        return absent

    def forget(self, person: Any) -> None:
        """As the learner's `forget`; open offers of the person are learned nothing from.

        Raises:
            ProvenanceError, ValueError, TypeError: as there.
        """
        with self._turn:
            self._open.forget(person)

    # Many at a time ------------------------------------------------------------------------------

    def selecting(self, features: Any, revenues: Any, person: Any) -> Selecting:
        """A request to be handed to `take`; copies nothing.

        Raises:
            TypeError, ProvenanceError: as `select`.
        """
        data = [] if features is NOT_GIVEN else [features]
        if not data and (wanted := getattr(self._learner, "data_shapes", None)):
            raise TypeError(f"{next(iter(wanted))}: must be given, as this learner's users send it")
        sent = self._learner._sent(*data, *([] if revenues is None else [revenues]))
        check_given(self._learner._accountant.people, person, "person")
        return Selecting(sent, person)

    def take(self, requests: Sequence[Selecting | Observing]) -> None:
        """Serves requests, together with those that other threads wait with.

        Raises:
            ReentryError: called from inside an unfinished call.
        """
        self._queue.extend(requests)
        try:
            with self._turn:
                self._serve_waiting()
        except BaseException:
            for request in requests:
                if request.state == _Request.WAITING:
                    request.state = _Request.WITHDRAWN
            raise
        for request in requests:
            if request.state == _Request.TAKEN:  # by a call that an interrupt ended
                request.fail(RuntimeError("the round that this call was part of was interrupted"))

    def _serve_waiting(self) -> None:
        found: list[Selecting | Observing] = []
        while self._queue:
            request = self._queue.popleft()
            if request.state == _Request.WAITING:
                request.state = _Request.TAKEN
                found.append(request)
        if answers := [each for each in found if isinstance(each, Observing)]:
            self._observe_all(answers)
        if new := [each for each in found if isinstance(each, Selecting)]:
            self._select_all(new)

    def _select_all(self, requests: Sequence[Selecting]) -> None:
        at = 0
        while at < len(requests):
            some = requests[at : at + 1]
            try:
                self._open.close_what_is_due()
                some = requests[at : at + self._open.room]
            except Exception as error:  # noqa: BLE001 - of the round, told to whoever called
                some[0].fail(error)
            else:
                self._select_some(some)
            finally:
                self._let_go()
            at += len(some)

    def _select_some(self, requests: Sequence[Selecting]) -> None:
        """Serves users from one public state; of several whose ids do not fit, each by itself."""
        learner = self._learner
        ids = None if learner._accountant.people is None else [each.person for each in requests]
        try:
            who = learner._who("person", ids, given(ids), len(requests))
        except Exception as error:  # noqa: BLE001 - of the round, told to whoever called
            if len(requests) == 1:
                requests[0].fail(error)
                return
            for each in requests:
                self._select_some([each])
        else:
            self._offer(requests, *who)

    def _offer(self, requests: Sequence[Selecting], ids: list[Any] | None, nobody: Mask) -> None:
        first = self._learner.clock_
        try:
            told = self._open.serve([request.sent for request in requests], ids, nobody)
        except Exception as error:  # noqa: BLE001 - of the round, told to whoever called
            for request in requests:
                request.fail(error)
            return
        if ids is not None:
            self._whose.update(enumerate(hashes(self._people_key, ids), start=first))
        for index, (request, items) in enumerate(zip(requests, told, strict=True), start=first):
            if isinstance(items, Exception):
                request.fail(items)
            else:
                request.done(Offer(f"{self._tag}-{index:x}-{self._code(index)}", items))

    def _observe_all(self, requests: Sequence[Observing]) -> None:
        answers: dict[int, Observing] = {}
        heard: dict[int, float | Array] = {}
        for request in requests:
            try:
                self._learner._check_not_failed()
                index = self._index(request.id)
                self._check_person(index, request.person)
                if index in answers or self._open.has_answered(index):
                    raise OfferError(
                        "offer_id: answered before; the first answer counts", reason="answered"
                    )
                answer = attempted(self._learner._heard, request.answer)
                if answer is FAILED:  # of a learner of somebody's own
                    raise TypeError("choice: the learner cannot read it; answer again")
                heard[index] = answer
            except Exception as error:  # noqa: BLE001 - of the round, told to whoever called
                request.fail(error)
            else:
                answers[index] = request
        if not answers:
            return
        try:
            self._open.answer(heard)
        except Exception as error:  # noqa: BLE001 - of the round, told to whoever called
            for request in answers.values():
                request.fail(error)
        else:
            for request in answers.values():
                request.done(None)

    def _code(self, index: int) -> str:
        state = blake2b(index.to_bytes(8, "big"), key=self._key, digest_size=_CODE_BYTES)
        return state.hexdigest()

    def _index(self, offer_id: Any) -> int:
        parts = offer_id.split("-") if isinstance(offer_id, str) else []
        if len(parts) == 3 and parts[0] != self._tag and len(parts[0]) == _TAG_DIGITS:
            raise OfferError(
                "offer_id: not one of these Offers, but another learner's, or of a process before "
                "a restart, with which all open offers ended; ask for a new offer"
            )
        index = _number(parts[1]) if len(parts) == 3 else None
        if index is None or not _equal(parts[2], self._code(index)):
            raise OfferError("offer_id: unknown; give the id of an offer that select returned")
        if index < self._open.first:
            raise OfferError(
                "offer_id: this offer was closed with its batch before the answer came; the answer "
                "does not count",
                reason="closed",
            )
        return index

    def _check_person(self, index: int, person: Any) -> None:
        if person is NOT_GIVEN:
            return
        check_given(self._learner._accountant.people, person, "person")
        (who,) = hashes(self._people_key, [person])
        if self._whose.get(index) != who:
            raise OfferError("offer_id: this offer was made to another person")

    def _let_go(self) -> None:
        for index in range(self._begin, self._open.first):
            self._whose.pop(index, None)
        self._begin = self._open.first


def _equal(given: str, code: str) -> bool:
    """Whether they are the same, in a time that does not tell where they begin to differ."""
    return compare_digest(given.encode("utf-8", "surrogatepass"), code.encode())


def _number(digits: str) -> int | None:
    try:
        number = int(digits, 16)
    except ValueError:
        return None
    return number if 0 <= number < 2**63 and f"{number:x}" == digits else None
