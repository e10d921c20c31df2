"""Why a request is refused: codes, HTTP statuses and what to do, in one table."""

from __future__ import annotations

from typing import Final, NamedTuple

from privlearn.errors import ServiceError


class _Kind(NamedTuple):
    status: int
    message: str


PROBLEMS: Final[dict[str, _Kind]] = {
    "no-token": _Kind(401, "send an access token: Authorization: Bearer privlearn_..."),
    "unknown-token": _Kind(401, "this access token is unknown, was removed or has expired"),
    "wrong-role": _Kind(403, "this access token has another role than the request needs"),
    "not-found": _Kind(404, "there is no such resource; /openapi.json lists all"),
    "wrong-method": _Kind(405, "the resource has other methods; /openapi.json lists them"),
    "unknown-offer": _Kind(
        404,
        "no offer of this access token has this id: it was never made, or the service went on "
        "after its owner ended, and the record is null",
    ),
    "answered-offer": _Kind(409, "the offer was answered before; an offer has one answer"),
    "key-reused": _Kind(
        409, "this Idempotency-Key was used for another request, whose offer is open"
    ),
    "closed-offer": _Kind(410, "the batch of this offer is closed; its record is null"),
    "another-batch": _Kind(
        409, "this batch is not the one that is open; see /v1/status, and ask for that one if it is"
    ),
    "empty-batch": _Kind(409, "no offer of this batch was made; only one that was begun is closed"),
    "more-places": _Kind(
        409, "the batch has more places left than are to be given up; see /v1/status"
    ),
    "over": _Kind(410, "all users of the horizon were served"),
    "too-large": _Kind(413, "the body is larger than the service takes (http.largest_request)"),
    "bad-request": _Kind(422, "the request is not of the form that /openapi.json describes"),
    "too-many": _Kind(429, "more requests than this access token may make; wait, see Retry-After"),
    "stopping": _Kind(503, "the service is stopping; no new offers are made"),
    "owner-away": _Kind(
        503, "the owner of the ledger is not there; it is being started again, ask again"
    ),
    "busy": _Kind(503, "too many requests are waiting; ask again"),
    "failed": _Kind(500, "the request failed inside of the service; its log says where"),
}


def problem(
    code: str, message: str | None = None, *, retry_after: float | None = None
) -> ServiceError:
    """The error for a code.

    Args:
        code: one of `PROBLEMS`.
        message: in place of the common one; public.
        retry_after: seconds.
    """
    kind = PROBLEMS[code]
    return ServiceError(code, kind.status, message or kind.message, retry_after=retry_after)
