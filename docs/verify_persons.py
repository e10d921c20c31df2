"""Verifies what persons pay in a privlearn ledger: ``python verify_persons.py ledger.db``.

Only Python's standard library and verify_ledger.py beside it, which checks chain, entries and
tokens.  This adds what `participation/1` of docs/ledger.md says: the rule, its batches and clock,
the price of every token for all visits of one person in it, and, for caps in zCDP with Gaussian
losses and for pure epsilon, the most that any pattern of visits within the rule adds up to.  How
far all visits move a stream (loss of the kind `visits`) is taken as it is recorded.  Exit codes as
those of verify_ledger.py.
"""

import math
import sys
from fractions import Fraction
from itertools import accumulate, pairwise

import verify_ledger
from verify_ledger import FORMS, TEXTS, fits, kinds, need

MOST_STEPS = 2**23  # of the programme, for all of an account
TEXTS["registry"] = "[0-9a-f]{32}"
FORMS["participation"] = {"rule": "rule", "registry": "registry"}
FORMS["rule"] = {"most": "count", "apart": "count", "per_batch": "count~", "pooled": "bool"}
FORMS["rule"] |= {"pattern": "public/private", "clock": "arrivals/timetable"}
FORMS["clock"] = {"clock": "index"}


class TooMuch(Exception):
    """The programme would take too many steps."""


class Persons(verify_ledger.Account):
    """An account that may have a rule; without one it is what verify_ledger.py makes of it."""

    rule = None

    @property
    def linear(self):
        """Whether the losses of visits add up in the kind of the cap, and not their roots."""
        return self.body["cap"]["kind"] == "pure"

    def of_persons(self, told):
        body, self.starts, self.clock, self.left = self.body, [], self.body["users"][0], MOST_STEPS
        self.changes = {}  # by level, in order: of a token or item, its charge from then on
        rule = fits("participation", told) and told["rule"]
        need((rule["per_batch"] or 1) <= rule["most"], "more in a batch than in all")
        alone = rule["per_batch"] is None and rule["apart"] == 1
        need(not rule["pooled"] or alone, "a pooled rule counts batches alone")
        private, timetable = rule["pattern"] == "private", rule["clock"] == "timetable"
        good = ("zero-out",) if private else ("zero-out", "replace-one")
        need(body["adjacency"] in good, "the relation is not one of this pattern")
        need(not timetable or (private and body["trust"] != "local"), "no such timetable")
        unique = body.get("population") is None and body.get("odometer") is None
        need(unique and not body.get("attested"), "a population, odometer or attestation")
        self.rule, self.per_batch = rule, 1 if rule["pooled"] else rule["per_batch"]

    def most(self, users):
        """Rows of one person; a range that cuts a batch is refused."""
        most = min(self.rule["most"], -(-(users[1] - users[0]) // self.rule["apart"]))
        if self.per_batch is None:
            return most
        edges = [*self.starts, self.body["users"][1]]
        need(self.starts and users[0] in edges and users[1] in edges, "a token cuts a batch")
        return min(most, self.per_batch * (edges.index(users[1]) - edges.index(users[0])))

    def price(self, loss, users):
        """For all visits of one person in a range of slots."""
        row = self.stated(loss)
        if self.rule is None:
            return row
        most, local = self.most(users), self.body["trust"] == "local"
        need("by-arrival" not in kinds(loss), "a loss by arrival of persons")
        if loss["kind"] != "visits":
            return row and row * (most if local or self.linear else most**2)
        self.unchecked.add("how far all visits of a person move streams")
        if local:
            return self.leave("what persons pay for a stream on their devices")
        # every so many visits are far enough from each other
        every = -(-loss["apart"] // self.rule["apart"])
        of_every = [len(range(first, most, every)) for first in range(min(every, most))]
        groups = sum(-(-visits // loss["most"]) for visits in of_every)
        return row and row * (groups if self.linear else groups**2)

    def divided(self, loss, users):
        """By how many the price may be divided, one part for each visit; 0 if not at all."""
        whole = loss["kind"] == "visits" and self.body["trust"] != "local"
        return 0 if whole else self.most(users)

    def add(self, body):
        kind, told = body["entry"], body["told"]
        if self.rule is not None:
            ends_cap = kind == "return" and body["allowance"] in self.caps
            plain = ends_cap or kind not in verify_ledger.UNLOOKED
            need(plain, f"{kind} under a rule of participation")
            need(kind != "spend" or told is not None, "a spend without the registry's clock")
            if kind in ("spend", "retire") and told is not None:
                clock = fits("clock", told) and told["clock"]
                need(self.clock <= clock <= self.body["users"][1], "an older registry, or none")
                self.clock = clock
        super().add(body)

    def batches(self, body):
        starts, users = body["starts"], self.body["users"]
        need(self.rule is not None and self.per_batch is not None, "batches of no rule")
        need(not (self.starts or self.tokens or self.items), "batches come once, and first")
        ascend = starts and all(a < b for a, b in pairwise(starts))
        need(ascend and starts[0] == users[0] and starts[-1] < users[1], "starts of batches")
        self.starts = starts

    def planned(self, item):
        if self.rule is None:
            return super().planned(item)
        share, count = self.divided(item["loss"], item["users"]), item["left"]
        charge = item["users"], item["rho"] and item["rho"] * count, share
        planned = self.changes.setdefault(None, [])
        planned.append((len(planned), charge))

    def issue(self, body):
        if self.rule is not None:
            need(body["told"] in (None, {}), "told of a token")
            need(body["told"] is None or self.items is None, "told of a planned token")
            self.most(body["users"])
        super().issue(body)

    def reserved(self, token, body):
        if self.rule is None:
            return super().reserved(token, body)
        token["shared"] = body["told"] is not None
        share = self.most(token["users"]) if token["shared"] else 0
        self.change(token, (token["users"], token["rho"], share))

    def spend(self, body):
        super().spend(body)
        if self.rule is None:
            return
        token, loss, users = self.tokens[body["token"]], body["loss"], body["users"]
        item, shared = token["item"], self.divided(loss, users)
        wanted = self.divided(item["loss"], users) if item else token["shared"]
        need(shared or not wanted, "a token for what grows with visits, and this does not")
        over = "lease" not in body["parameters"] or body["told"]["clock"] >= users[1]
        need(over, "a lease is of slots that are over")
        self.sizes(body["parameters"], users)
        free = self.per_batch is None and self.rule["clock"] == "arrivals"
        need(free or "phases" not in body["parameters"], "phases, and batches or a timetable")
        if self.rule["clock"] == "timetable":
            need(body["arithmetic"] == "sum", "on a timetable rows are added up")
            self.unchecked.add("that null records add nothing on a timetable")

    def sizes(self, parameters, users):
        """Batches of a stream lie within those of the rule, and have no more of a person."""
        stated, sizes = parameters.get("participation"), parameters.get("sizes")
        if stated is None or sizes is None:
            return
        within = fits("rule", stated) and (1 if stated["pooled"] else stated["per_batch"])
        if within is not None:
            need(self.per_batch is not None and self.per_batch <= within, "more in a batch")
            need(fits("[count", sizes), "sizes of batches")
            begun = set(accumulate(sizes, initial=users[0]))
            inside = {start for start in self.starts if users[0] <= start < users[1]}
            need(inside <= begun, "a batch begins within one of the stream's")

    def spent(self, token, rho, body):
        if self.rule is None:
            return super().spent(token, rho, body)
        if token["item"] is None:
            users = token["users"]
            self.change(token, (users, rho, self.divided(body["loss"], users)))

    def kept_until(self, token):
        """A stream that ended early is charged to whole batches."""
        if self.rule is None:
            return token["reach"]
        edges = [at for at in self.starts or [token["reach"]] if at >= token["reach"]]
        return min([*edges, token["users"][1]])

    def ended(self, token, stop):
        if self.rule is None:
            return super().ended(token, stop)
        (first, _), rho, share = token["charge"]
        users = [first, stop]
        if first < stop:
            rho, share = self.price(token["loss"], users), self.divided(token["loss"], users)
        self.change(token, (users, rho, share))

    def change(self, token, charge):
        for level in token["levels"] if charge != token.get("charge") else ():
            self.changes.setdefault(level, []).append((id(token), charge))
        token["charge"] = charge

    def exceeded(self):
        if self.rule is None:
            yield from super().exceeded()
        elif self.adds_up:
            try:
                for level, changes in self.changes.items():
                    cap, name = self.limit(level)
                    all_reserved = [*dict(reversed(changes)).values()]
                    peaks = self.peaks(changes) if self.largest(all_reserved) > cap else ()
                    if any(self.largest(charges) > cap for charges in peaks):
                        yield f"a person can be charged more than {name}"
            except TooMuch:
                self.leave("what persons pay, with so many pieces and visits")

    def peaks(self, changes):
        """What is charged whenever a charge is about to become smaller, and at the end."""
        standing, grown = {}, False
        for name, charge in changes:
            if name in standing and grown:
                yield [*standing.values()]
            grown = name not in standing
            standing[name] = charge
        yield [*standing.values()]

    def largest(self, charges):
        """The most that visits within the rule add up to, each as early as its piece allows.

        It is then the first slot of its piece, or `apart` behind the visit before.  Pieces lie
        between edges of ranges; `later[i][q][n]` is the most for n further visits from piece i on
        after one in piece q - 1 (q = 0: after none).
        """
        charges = [(users, rho, share) for users, rho, share in charges if users[0] < users[1]]
        edges = sorted({edge for users, *_ in charges for edge in users})
        pieces, apart = list(pairwise(edges)), self.rule["apart"]
        most = min(self.rule["most"], sum(map(self.most, pieces)))
        self.left -= len(pieces) * most * (len(pieces) + most) + len(pieces) * len(charges)
        if self.left < 0:
            raise TooMuch
        unit = math.lcm(*(rho.denominator * (share or 1) for _, rho, share in charges))
        whole = [(*users, int(rho * unit)) for users, rho, share in charges if not share]
        parts = [(*users, int(rho * unit / share)) for users, rho, share in charges if share]
        each = [sum(rho for a, b, rho in parts if a <= at < b) for at, _ in pieces]
        begun = []  # [p][q]: whole charges on piece p that begin in piece q or later
        for at, _ in pieces:
            here = dict.fromkeys(edges[:-1], 0)
            for a, b, rho in whole:
                here[a] += rho if a <= at < b else 0
            begun.append([*accumulate([0, *reversed(here.values())])][::-1])
        later = [[]] * len(pieces) + [[[0] * (most + 1)] * (len(pieces) + 1)]
        for i in reversed(range(len(pieces))):
            from_here = [0] * (most + 1)  # the best run of visits that begins in piece i
            piece, slot, inside, total, following = i, edges[i], 0, 0, i
            for visits in range(1, most + 1):
                total, inside = total + each[piece], inside + 1
                while following < len(pieces) and edges[following] < slot + apart:
                    following += 1
                after = later[following][piece + 1]
                for n in range(visits, most + 1):
                    from_here[n] = max(from_here[n], total + after[n - visits])
                slot, before = slot + apart, piece
                while piece < len(pieces) and slot >= edges[piece + 1]:
                    piece += 1
                if piece == len(pieces):
                    break
                if piece != before:
                    total, inside = total + begun[piece][before + 1], 0
                if inside == self.most(pieces[piece]):
                    break
            later[i] = [
                [max(skip, begun[i][q] + run if n else 0) for n, (skip, run) in
                 enumerate(zip(later[i + 1][q], from_here, strict=True))]
                for q in range(i + 1)
            ]  # fmt: skip
        return Fraction(later[0][0][most], unit) if pieces else Fraction(0)


def verify(path):
    """As verify_ledger.verify."""
    return verify_ledger.verify(path, Persons)


if __name__ == "__main__":
    verify_ledger.main(sys.argv[1:2], verify)
