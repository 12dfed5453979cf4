"""A TCP proxy that is slow, loses packets and at times passes nothing on: the network between processes and servers."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from typing import Self

HOST = "127.0.0.1"
CHUNK = 65536
#: The least time after which Linux sends a packet again.
RESENT_SECONDS = 0.2


class Proxy:
    """Passes bytes on to a port of this machine, ``delay`` seconds late; nothing at all while it is stalled.

    ``loss`` is the share of lost packets. TCP sends a packet again, so the bytes come ``RESENT_SECONDS`` later.
    """

    def __init__(self, target: int, delay: float = 0.0, loss: float = 0.0, host: str = HOST) -> None:
        self.target = target
        self.host = host
        self.delay = delay
        self.loss = loss
        self.port = 0
        self.passed = 0  # bytes
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._known: set[asyncio.Task[None] | None] = set()  # connections
        self._forgotten: set[asyncio.Task[None] | None] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        """Begin to listen."""
        self._thread.start()
        assert self._listening.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        """Close every connection."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def stall(self) -> None:
        """Pass nothing on from now; connections stay open, as with a network that drops packets."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def resume(self) -> None:
        """Pass everything on that was kept."""
        self._loop.call_soon_threadsafe(self._open.set)

    def forget(self) -> None:
        """Swallow everything on the connections that there are, without a word: they are half open."""
        self._loop.call_soon_threadsafe(lambda: self._forgotten.update(self._known))

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._open.set()
        server = await asyncio.start_server(self._connect, self.host, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward = await asyncio.open_connection(HOST, self.target)
        except OSError:
            writer.close()
            return
        me = asyncio.current_task()
        self._known.add(me)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, onward[1], me))
                group.create_task(self._pass_on(onward[0], writer, me))
        finally:
            self._known.discard(me)
            self._forgotten.discard(me)
            for end in (writer, onward[1]):
                end.close()

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, connection: asyncio.Task[None] | None
    ) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK):
                late = self.delay + (RESENT_SECONDS if self.loss and random.random() < self.loss else 0.0)
                if late:
                    await asyncio.sleep(late)
                await self._open.wait()
                if connection in self._forgotten:
                    continue
                sink.write(data)
                await sink.drain()
                self.passed += len(data)
        with suppress(OSError):
            sink.close()
