"""A network between executors and the driver that can be cut for one executor: a proxy in front of the driver.

Which executor a connection belongs to is known from the process at its other end: a Python worker, below its executor.

Threads: one accepts, two carry each connection's bytes; all methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from typing import Final

import psutil

__all__ = ["Cut", "Network"]

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset
_BYTES: Final = 1 << 16


class Cut(enum.Enum):
    """What becomes of the connections of an executor, old ones and new ones."""

    REFUSED = "reset, and none can be made"
    SILENT = "nothing arrives any more; what is on its way arrives when the network is back"
    LOST = "nothing arrives any more; when the network is back they turn out to be gone"


class Network:
    """The proxy.

    Args:
        target: the driver's port.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: Final = int(self._listener.getsockname()[1])
        self._changed = threading.Condition()
        self._cut: tuple[int, Cut] | None = None  # the executor, and how
        self._links: set[_Link] = set()
        self.touched = 0  #: connections that a cut has met
        threading.Thread(target=self._accept, name="network", daemon=True).start()

    def cut(self, executor: int, how: Cut) -> None:
        """Cut an executor off."""
        with self._changed:
            self._cut = (executor, how)
            links = [link for link in self._links if link.executor == executor]
            self.touched += len(links)
        if how is Cut.REFUSED:
            for link in links:
                link.reset()

    def heal(self) -> None:
        """The network is back."""
        with self._changed:
            assert self._cut is not None
            executor, how = self._cut
            self._cut = None
            links = [link for link in self._links if link.executor == executor]
            self._changed.notify_all()
        if how is Cut.LOST:
            for link in links:
                link.reset()

    def close(self) -> None:
        """End it, and all connections."""
        self._listener.close()
        with self._changed:
            self._cut = None
            links = list(self._links)
            self._changed.notify_all()
        for link in links:
            link.reset()

    def executors(self) -> set[int]:
        """Those that have a connection now."""
        with self._changed:
            return {link.executor for link in self._links if link.executor is not None}

    def how(self, executor: int | None) -> Cut | None:
        """How an executor is cut off; None: it is not."""
        with self._changed:
            return self._cut[1] if self._cut is not None and self._cut[0] == executor else None

    def wait_while_silent(self, executor: int | None) -> None:
        """Returns when bytes may pass."""
        with self._changed:
            while self._cut is not None and self._cut[0] == executor:
                self._changed.wait()

    def forget(self, link: _Link) -> None:
        """It has ended."""
        with self._changed:
            self._links.discard(link)

    def _accept(self) -> None:
        while True:
            try:
                near, peer = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._carry, args=(near, peer[1]), daemon=True).start()

    def _carry(self, near: socket.socket, port: int) -> None:
        executor = _executor_of(port)
        if (how := self.how(executor)) is not None:
            with self._changed:
                self.touched += 1
            if how is Cut.REFUSED:
                _reset(near)
                return
            self.wait_while_silent(executor)
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # there is no driver now
            _reset(near)
            return
        link = _Link(self, executor, near, far)
        with self._changed:
            self._links.add(link)
        link.run()


class _Link:
    """One connection through the proxy."""

    def __init__(self, network: Network, executor: int | None, near: socket.socket, far: socket.socket) -> None:
        self.executor = executor
        self._network = network
        self._near, self._far = near, far

    def run(self) -> None:
        back = threading.Thread(target=self._pump, args=(self._far, self._near), daemon=True)
        back.start()
        self._pump(self._near, self._far)
        back.join()
        self._near.close()
        self._far.close()
        self._network.forget(self)

    def reset(self) -> None:
        _reset(self._near)
        _reset(self._far)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(_BYTES):
                self._network.wait_while_silent(self.executor)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            self.reset()


def _reset(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        side.shutdown(socket.SHUT_RDWR)
    side.close()


def _executor_of(port: int) -> int | None:
    """The executor above the process at the other end of a connection; None: it has gone."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ends = (end.laddr for end in process.net_connections("tcp4"))
            if any(end and end.port == port for end in ends):
                return next((above.pid for above in process.parents() if "java" in above.name()), None)
    return None
