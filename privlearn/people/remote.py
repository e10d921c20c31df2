"""A registry that another process of this host keeps, and that is asked over its socket."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import LedgerError, LocalSocketError, PeopleError
from privlearn.people import frames
from privlearn.people.identities import kind_of
from privlearn.people.keeper import Found, Public
from privlearn.storage.frames import Message
from privlearn.storage.sockets import Client

_REFUSED = {"TypeError": TypeError, "ValueError": ValueError}


@final
class AskedKeeper:
    """Asks the owner, which answers each call whole, in the order in which they come.

    Args:
        client: a connection to the owner, which is closed with this.

    Raises:
        PeopleError: it keeps no registry, or does not answer.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._epoch: int | None = None
        self._forgotten: set[int] = set()
        self._public: Public | None = None
        self.look()

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Self:
        """Connects to an owner's socket.

        Raises:
            LocalSocketError: nobody serves there.
            PeopleError: the owner keeps no registry.
        """
        client = Client(path)
        try:
            return cls(client)
        except LedgerError as error:
            client.close()
            raise PeopleError(
                f"{client.path}: the owner of the ledger keeps no registry of people ({error}): "
                "start it with --people"
            ) from None
        except BaseException:
            client.close()
            raise

    @property
    def fresh(self) -> bool:
        """Others write to it, too."""
        return False

    @property
    def seen(self) -> Public:
        assert self._public is not None  # after __init__
        return self._public

    @property
    def epoch(self) -> int:
        assert self._epoch is not None
        return self._epoch

    def _ask(self, what: str, attached: bytes = b"", **more: Any) -> Message:
        starts = None if self._public is None else self._public.starts
        try:
            asked = {frames.ASK: what, "epoch": self._epoch, "starts": starts is None}
            answer = self._client.ask({**asked, **more}, attached)
        except LocalSocketError as error:
            raise PeopleError(
                f"the owner of the registry of people gave no answer: {error}. Visits of this call "
                "may be used up, and are not learned; connect anew"
            ) from None
        refused = answer.fields.get("refused")
        if isinstance(refused, list) and len(refused) == 2:
            name, message = refused
            raise _REFUSED.get(name, PeopleError)(message)
        epoch = answer.fields.get("epoch")
        if type(epoch) is not int:
            raise frames.malformed()
        self._epoch = epoch
        self._public = frames.unpacked_public(answer.fields.get("public"), starts)
        return answer

    def look(self) -> Public:
        self._ask("look")
        return self.seen

    def bind(self, accountant: str, users: range) -> None:
        self._ask("bind", accountant=accountant, users=frames.packed_range(users))

    def divide(self, starts: tuple[int, ...]) -> None:
        self._ask("divide", frames.as_json(list(starts)))

    def admit(self, ids: Sequence[Any], users: range | None, at: Sequence[int] | None) -> Found:
        kind_of(ids, self.seen.kind)
        visits = {"ids": frames.packed_ids(ids), "at": None if at is None else list(at)}
        answer = self._ask("admit", frames.as_json(visits), users=frames.packed_range(users))
        return frames.unpacked_found(answer.fields, answer.attached, len(ids))

    def skip(self, users: range) -> None:
        self._ask("skip", users=frames.packed_range(users))

    def skip_to(self, slot: int) -> None:
        self._ask("skip_to", slot=slot)

    def forget(self, id: Any) -> None:
        kind_of([id], self.seen.kind)
        self._ask("forget", frames.as_json(frames.packed_ids([id])))

    def forgotten(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        answer = self._ask("forgotten", frames.packed_numbers(persons))
        if len(answer.attached) != len(persons):
            raise frames.malformed()
        found = np.frombuffer(answer.attached, np.uint8).astype(np.bool_)
        self._forgotten.update(persons[found].tolist())
        return found

    def forgotten_as_known(self, persons: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(persons, np.array(sorted(self._forgotten), dtype=np.int64))

    def close(self) -> None:
        self._client.close()
