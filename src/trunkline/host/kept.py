"""Programs that the supervisor keeps for an edge: the host's side of ``edges.piped.Programs``, one run of it.

Owns the joint between a supervised run, its pipes (``piped``) and the edge that it is kept for. Does not own when it
runs (``supervisor``), nor what is said on the pipes.

Invariant: the owner hears ``ended`` after the last byte that the program wrote, and the supervisor of the end after the
owner: so whatever the edge still has to say of this run is said before the run is over.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from trunkline.edges.piped import KeptOwner, PipedSpec
from trunkline.host.piped import Pipes, Send
from trunkline.model import ProcessIdentity


class Kept(Struct, frozen=True):
    """For whom a program is kept: whose agent it is, and where it is configured."""

    owner: KeptOwner
    edge: str
    table: str


class KeptPipes:
    """One run with pipes, as its owner sees it (``edges.piped.KeptRun``)."""

    def __init__(
        self,
        spec: PipedSpec,
        owner: KeptOwner,
        run_id: str,
        token_sha256: str,
        send: Send,
        *,
        hung: Callable[[str], None],
        over: Callable[[int, str], None],
    ) -> None:
        """``hung`` has the supervisor end it, ``over`` is told its exit code and the reason when all is read."""
        self.run_id = run_id
        self.token_sha256 = token_sha256
        self.identity = ProcessIdentity(0, 0)
        self.hung = hung
        self._owner = owner
        self._over = over
        self._code = 0
        self._has_begun = False
        self._pipes = Pipes(spec, self, run_id, send)
        self.write = self._pipes.write
        self.pause_reading = self._pipes.pause_reading
        self.resume_reading = self._pipes.resume_reading
        self.stop = self._pipes.stop

    def launched(self, identity: ProcessIdentity, pipes: tuple[int, int], *, is_wanted: bool) -> None:
        """It is ready to go. One that was stopped meanwhile never runs, and its owner does not hear of it."""
        self.identity = identity
        if not is_wanted:
            self._pipes.stop()
        self._pipes.launched(identity, pipes)
        if is_wanted:
            self._has_begun = True
            self._owner.began(self)

    def exited(self, code: int, reason: str) -> None:
        """Nothing of it is left; what it said last may still be in its pipe."""
        self._code = code
        self._pipes.exited(reason)

    # --- what the pipes say -------------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Some bytes of its stdout."""
        if self._has_begun:
            self._owner.received(data)

    def ended(self, reason: str) -> None:
        """All is read."""
        if self._has_begun:
            self._has_begun = False
            self._owner.ended(reason)
        self._over(self._code, reason)
