"""The queues of a connection that delete themselves, such as those for the replies of ``rpc://``."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from tickwheel.blocking.session import BlockingSession
from tickwheel.celery.names import queue_topic
from tickwheel.celery.transport.topology import Topology
from tickwheel.protocol.bodies.admin import DeleteTopic
from tickwheel.protocol.bodies.requests import OpenTopic
from tickwheel.protocol.errors import TickwheelError

logger = logging.getLogger("tickwheel.celery")

_made: Final[set[tuple[str, str]]] = set()
"""Those whose topics this process has made, by the broker's URL and their name: all connections share them, because one
may delete what another one uses."""


class OwnQueues:
    """See the module."""

    def __init__(self, url: str, session: BlockingSession, topology: Topology) -> None:
        self.names: set[str] = set()
        """They end with their consumers here."""
        self._url = url
        self._session = session
        self._topology = topology

    def offers(self, queue: str) -> bool:
        """Whether a queue for replies is at the broker: it is made if need be."""
        key = self._url, queue
        if key in _made:
            return True
        if queue not in self.names or all(one.is_shared for one in self._topology.sources(queue)):
            return False
        try:
            self._session.run(self._session.request(OpenTopic(topic=queue_topic(queue), create=True)))
        except TickwheelError as error:  # it may not make topics; then who replies does
            logger.debug("the queue %r for replies was not made: %s", queue, error)
            return False
        _made.add(key)
        return True

    def deleted(self, queue: str) -> None:
        """A queue was deleted: it is made again before the next task that wants a reply there."""
        _made.discard((self._url, queue))

    def topics(self) -> set[str]:
        """Those of the queues that no other connection reads."""
        sources = [source for queue in self.names for source in self._topology.sources(queue)]
        return {source.topic for source in sources if not source.is_shared}

    def delete_topics(self, topics: Iterable[str], within_s: float) -> None:
        """Waits so long for each."""
        for topic in topics:
            try:
                self._session.run(self._deleted(topic, within_s))
            except TickwheelError as error:
                # It is gone, is read by others, or is not this client's to delete.
                logger.debug("the topic %r was not deleted: %s", topic, error)

    async def _deleted(self, topic: str, within_s: float) -> None:
        with self._session.waits.within(within_s):
            await self._session.request(DeleteTopic(topic=topic))
