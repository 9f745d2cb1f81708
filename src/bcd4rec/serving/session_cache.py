"""Which sessions began in this process and are still whole in memory, so that nobody has to ask the database."""

from collections import OrderedDict
from collections.abc import Collection

from bcd4rec.serving.storage.recent import KEEP

REACH = KEEP // 2  # records after which a session may have been forgotten in part


class SessionCache:
    def __init__(self, reach: int = REACH) -> None:
        self._reach, self._records = reach, 0
        self._sessions: OrderedDict[str, int] = OrderedDict()  # session -> how many records there were before it
        self._requests: OrderedDict[str, None] = OrderedDict()  # slates of this process

    def covers(self, session_id: str) -> bool:
        before = self._sessions.get(session_id)
        return before is not None and self._records - before < self._reach

    def begin(self, session_id: str) -> None:
        """The database knows nothing of this session."""
        self._sessions[session_id] = self._records
        if len(self._sessions) > self._reach:
            self._sessions.popitem(last=False)

    def add_slate(self, request_id: str, records: int) -> None:
        self._records += records
        self._requests[request_id] = None
        if len(self._requests) > 2 * self._reach:
            self._requests.popitem(last=False)

    def add_feedback(self, request_ids: Collection[str], records: int) -> None:
        """So many answers to these slates. One from before this process may be of any session: nothing is certain."""
        self._records += records
        if not all(request_id in self._requests for request_id in request_ids):
            self._sessions.clear()
