"""What the owner of a registry answers to the other processes of its host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import final

import numpy as np

from privlearn.errors import LedgerFencedError, PeopleError
from privlearn.people import frames
from privlearn.people.keeper import Found
from privlearn.people.registry import People
from privlearn.storage.frames import Message
from privlearn.storage.sockets import Answerer, Peer


@final
class PeopleAnswers:
    """Answers questions with `frames.ASK`, of any threads; an answer may take a sync of the disk.

    An answer waits for no turn of the ledger: whoever asks may hold it.

    Args:
        people: the registry, which nobody else has open.
        epoch: of the ledger that it stands beside, as it is now.
    """

    def __init__(self, people: People, epoch: Callable[[], int]) -> None:
        self._people, self._epoch = people, epoch
        self._calls: dict[str, Callable[[Message], Message]] = {
            "look": lambda asked: Message(),
            "bind": self._bind,
            "divide": self._divide,
            "admit": self._admit,
            "skip": self._skip,
            "skip_to": self._skip_to,
            "forget": self._forget,
            "forgotten": self._forgotten,
        }

    def answer(self, asked: Message) -> Message:
        call = self._calls.get(str(asked.fields.get(frames.ASK)))
        if call is None:
            raise frames.malformed()
        epoch, theirs = self._epoch(), asked.fields.get("epoch")
        if theirs not in (None, epoch):
            raise LedgerFencedError(
                f"the ledger is in epoch {epoch}, and this process joined it in epoch {theirs}: "
                "nobody is admitted; join anew"
            )
        try:
            found = call(asked)
        except (TypeError, ValueError) as error:
            # the registry's own; those derived from them may show what could not be read
            if type(error) not in (TypeError, ValueError):
                raise
            return Message({"refused": [type(error).__name__, str(error)]})
        public = People._public_of(self._people)
        starts = asked.fields.get("starts") is True
        told = {"epoch": epoch, "public": frames.packed_public(public, starts=starts)}
        return Message({**found.fields, **told}, found.attached)

    def _bind(self, asked: Message) -> Message:
        self._people.bind(asked.fields.get("accountant", ""), _users(asked))
        return Message()

    def _divide(self, asked: Message) -> Message:
        starts = frames.from_json(asked.attached)
        if not isinstance(starts, list):
            raise frames.malformed()
        self._people.divide(starts)
        return Message()

    def _admit(self, asked: Message) -> Message:
        visits = frames.from_json(asked.attached)
        if not isinstance(visits, dict) or set(visits) != {"ids", "at"}:
            raise frames.malformed()
        ids = frames.unpacked_ids(visits["ids"])
        users = frames.unpacked_range(asked.fields.get("users"))
        if users is None:
            found = self._people.admit_next(ids)
        else:
            found = self._people.admit_visits(ids, users, visits["at"])
        return Message(
            *frames.packed_found(
                Found(
                    found.users,
                    found.learned.tolist(),
                    found.persons.tolist(),
                    found.counted.tolist(),
                    found.call,
                )
            )
        )

    def _skip(self, asked: Message) -> Message:
        self._people.skip(_users(asked))
        return Message()

    def _skip_to(self, asked: Message) -> Message:
        slot = asked.fields.get("slot")
        if type(slot) is not int:
            raise frames.malformed()
        self._people.skip_to(slot)
        return Message()

    def _forget(self, asked: Message) -> Message:
        (id,) = frames.unpacked_ids(frames.from_json(asked.attached)) or [None]
        self._people.forget(id)
        return Message()

    def _forgotten(self, asked: Message) -> Message:
        found = self._people.forgotten(frames.unpacked_numbers(asked.attached))
        return Message({}, found.astype(np.uint8).tobytes())


@final
class WithPeople:
    """An `Answerer` that answers about a registry, and leaves the rest to the ledger's owner.

    Args:
        owner: of the ledger.
        people: answers about the registry beside it.
    """

    def __init__(self, owner: Answerer, people: PeopleAnswers) -> None:
        self._owner, self._people = owner, people

    async def answer(self, peer: Peer, asked: Message) -> Message:
        """The answer to one question; that of the registry is made in a thread of its own."""
        if frames.ASK in asked.fields:
            if peer.other is not None:
                raise PeopleError("the registry of people answers processes of its owner's user")
            return await asyncio.to_thread(self._people.answer, asked)
        return await self._owner.answer(peer, asked)

    def left(self, peer: Peer) -> None:
        self._owner.left(peer)


def _users(asked: Message) -> range:
    users = frames.unpacked_range(asked.fields.get("users"))
    if users is None:
        raise frames.malformed()
    return users
