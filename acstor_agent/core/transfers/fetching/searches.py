# SPDX-License-Identifier: Apache-2.0
"""Asks every host for a chunk that its source has not got any more, before it is called lost.

A chunk that came here once may lie on any host: on former homes, on hosts that read it themselves
and told nobody.  So when the source says that there is no such thing in an image, all hosts of the
v-node table are asked whether they have it, for that image.

The one rule: a chunk of an image is lost only if every host has answered, and with no, and the
source has said so for a while (``exchange.absences``).  A host that is silent, cut off, left alone
or was in the table a while ago leaves hope; and what one image is denied says nothing of others.
"""

from collections.abc import Callable

from acstor_agent.core.exchange import absences
from acstor_agent.core.exchange import denials
from acstor_agent.core.transfers import deadlines as deadlines_
from acstor_agent.core.transfers import failure as failure_
from acstor_agent.core.transfers import priority as priority_
from acstor_agent.core.transfers import transfer as transfer_
from acstor_agent.core.transfers import turns
from acstor_agent.core.transfers import want as want_
from acstor_agent.core.transfers.fetching import parts as parts_
from acstor_common import ids
from acstor_common import peer_request

Failure = failure_.Failure
GUEST = priority_.Priority.GUEST
InVain = Callable[[transfer_.Transfer, want_.Want, Failure, str, float], None]

HOSTS_AT_ONCE = 16
"""Hosts that are asked for one chunk at a time."""
CHUNKS_AT_ONCE = 4
"""Chunks that are searched for at a time; others wait for their turn, image by image."""
QUESTION_S = 0.004
"""A search in vain keeps its place so long for each host that was asked.  So a guest whose image is
gone makes this host ask 1000 times a second at most, whatever it reads."""
NAMED = 3
"""How many silent hosts are named."""


class Search:
    """One search.

    :ivar left: hosts that are not asked yet
    """

    __slots__ = ("asked", "attempts", "departed", "has_place", "left", "silent", "transfer", "want")

    def __init__(self, transfer: transfer_.Transfer, want: want_.Want) -> None:
        self.transfer, self.want = transfer, want
        self.attempts: list[transfer_.Attempt] = []
        self.left: list[ids.HostId] = []
        self.silent: list[ids.HostId] = []
        self.departed: list[ids.HostId] = []
        self.asked = 0
        self.has_place = False


class Searches:
    """The searches of this host.

    :param in_vain: is told what came of a search that found nothing: LOST, or what leaves hope; and
        in how many seconds it is lost where no host has it, else 0
    """

    def __init__(self, parts: parts_.Parts, in_vain: InVain) -> None:
        self._parts, self._in_vain = parts, in_vain
        self.absences = absences.Absences(parts.settings.lost_after_s)
        self._denials: denials.Denials[tuple[ids.Cid, ids.ImageId]] = denials.Denials()
        self._waiting: turns.Turns[Search] = turns.Turns()  # image by image
        self._places = CHUNKS_AT_ONCE

    def begin(self, transfer: transfer_.Transfer, want: want_.Want) -> None:
        """Ask all hosts, in its turn.

        :param want: in whose name, which the source has denied
        """
        search = transfer.search = Search(transfer, want)
        self._waiting.put(GUEST, want.image_id, search)
        self._start()

    def place_free(self) -> None:
        """Let the next one begin: a search that was in vain has had its time."""
        self._places += 1
        self._start()

    def _start(self) -> None:
        while self._places and (search := self._waiting.take()) is not None:
            self._places -= 1
            search.has_place = True
            parts, want = self._parts, search.want
            hosts = parts.tables.others()
            search.departed = self.absences.departed(hosts, parts.now)
            left = self._denials.left((want.cid, want.image_id), hosts, parts.now)
            alone = parts.book.in_backoff(parts.now)
            search.asked = len(left)
            search.silent = [host for host in left if host in alone]
            search.left = [host for host in left if host not in alone]
            self._go_on(search)

    def _go_on(self, search: Search) -> None:
        parts = self._parts
        mode, track = peer_request.Mode.HELD_ONLY, transfer_.Track.SEARCH
        while search.left and len(search.attempts) < HOSTS_AT_ONCE:
            what = (search.transfer, search.left.pop(), mode, search.want, track, parts.now)
            search.attempts.append(parts.asking.ask(*what))
        if not search.attempts:
            self._end(search)

    def attempt_failed(self, attempt: transfer_.Attempt, failure: Failure) -> None:
        """Note what a host says, and ask the next."""
        search: Search | None = attempt.transfer.search
        if search is None or attempt not in search.attempts:
            return
        assert attempt.host is not None
        search.attempts.remove(attempt)
        if failure is Failure.MISSING:
            what = search.want.cid, search.want.image_id
            self._denials.denied(what, attempt.host, self._parts.now)
        else:
            search.silent.append(attempt.host)
        self._go_on(search)

    def forget(self, transfer: transfer_.Transfer) -> None:
        """End a search because the content came, or nobody wants it any more."""
        search: Search | None = transfer.search
        if search is None:
            return
        self._waiting.remove(GUEST, search.want.image_id, search)
        transfer.search = None
        for attempt in search.attempts:
            self._parts.asking.cancel(attempt, self._parts.now)
        if search.has_place:
            self.place_free()

    def holds(self, search: Search) -> bool:
        """Say whether a search asks somebody, or waits for its turn."""
        is_next = self._waiting.holds(GUEST, search.want.image_id, search)
        return bool(search.attempts) or is_next

    def mend(self) -> None:
        """Count the places anew: a fault may have left some taken for ever."""
        searches = [t.search for t in self._parts.transfers.values() if t.search is not None]
        self._places = CHUNKS_AT_ONCE - sum(search.has_place for search in searches)
        self._places -= self._parts.deadlines.count(deadlines_.Due.SEARCH)
        self._start()

    def _end(self, search: Search) -> None:
        transfer, parts = search.transfer, self._parts
        free_s = parts.now + QUESTION_S * search.asked
        parts.deadlines.put(free_s, deadlines_.Due.SEARCH, None)
        transfer.search = None
        more_s = self.absences.denied(search.want.image_id, parts.now)
        silent = [*search.silent, *search.departed]
        failure, why, lost_in_s = Failure.UNREACHABLE, "", 0.0
        if silent:
            named = ", ".join([*silent[:NAMED], "…"] if len(silent) > NAMED else silent)
            why = f"the source has not got it, and of the hosts that may these are silent: {named}"
        elif parts.settings.has_others and not parts.tables.table.epoch:
            why = "the source has not got it, and there is no v-node table yet"
        elif more_s:
            why = f"nobody has got it; it is lost if that is still so in {more_s:.0f} s"
            lost_in_s = more_s
        else:
            failure, why = Failure.LOST, "the source and all other hosts say that they have not"
        self._in_vain(transfer, search.want, failure, why, lost_in_s)
