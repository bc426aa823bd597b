"""Whole messages, and file descriptors, through a socket between two processes."""

from __future__ import annotations

import os
import socket
import struct
import threading
import weakref
from collections import deque

_LENGTH = struct.Struct("<Q")


class WorkerEnd:
    """A worker's end: it has nothing else to do than to wait."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, message: bytes, descriptor: int | None = None) -> None:
        """Wait until it is sent, with a descriptor behind it. Raises OSError when the other end is closed."""
        self._socket.sendall(_LENGTH.pack(len(message)))
        self._socket.sendall(message)
        if descriptor is not None:
            socket.send_fds(self._socket, [b"d"], [descriptor])

    def receive(self) -> bytes:
        """Wait for a message. Raises EOFError or OSError when the other end is closed."""
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        return bytes(self._receive(length))

    def _receive(self, num_bytes: int) -> bytearray:
        received = bytearray(num_bytes)
        rest = memoryview(received)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise EOFError("the other end is closed")
            rest = rest[count:]
        return received


class ParentEnd:
    """The parent's end: it never waits, since a worker may be stopped in the midst of a message.

    Closed in processes that this one forks: a worker notices that its parent is gone by the end of its socket, which
    must therefore be held by nobody else. An exception of any kind, such as an interrupt, may leave half a message
    sent or received; then it must be closed.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._unsent: deque[memoryview] = deque()
        self._sending = threading.Lock()
        self._received = bytearray(_LENGTH.size)
        self._count = 0
        """Bytes of `_received` that have come."""
        self._is_length = True
        _ends.add(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Send what the socket takes, now and whenever `flush` is called."""
        with self._sending:
            self._unsent.append(memoryview(_LENGTH.pack(len(message)) + message))
        self.flush()

    def flush(self) -> None:
        """In any thread. That the other end is gone is no error here: who receives sees it."""
        with self._sending:
            try:
                while self._unsent:
                    part = self._unsent[0]
                    sent = self._socket.send(part, socket.MSG_DONTWAIT)
                    if sent == len(part):
                        self._unsent.popleft()
                    else:
                        self._unsent[0] = part[sent:]
            except BlockingIOError:
                pass
            except OSError:
                self._unsent.clear()

    def receive(self) -> bytes | None:
        """A message, if all of it has come. Raises EOFError or OSError when the other end is closed."""
        try:
            while self._count < len(self._received):
                count = self._socket.recv_into(memoryview(self._received)[self._count :], 0, socket.MSG_DONTWAIT)
                if not count:
                    raise EOFError("the other end is closed")
                self._count += count
                if self._is_length and self._count == _LENGTH.size:
                    self._begin(_LENGTH.unpack(self._received)[0], is_length=False)
        except BlockingIOError:
            return None
        message = bytes(self._received)
        self._begin(_LENGTH.size, is_length=True)
        return message

    def _begin(self, num_bytes: int, *, is_length: bool) -> None:
        self._received, self._count, self._is_length = bytearray(num_bytes), 0, is_length

    def receive_descriptor(self) -> int | None:
        """What came behind a message, if it has come. Raises EOFError or OSError when the other end is closed."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not data:
            raise EOFError("the other end is closed")
        if not descriptors:
            raise OSError("no descriptor came: this process may not open more files (ulimit -n)")
        return descriptors[0]

    def close(self) -> None:
        self._socket.close()


_ends: weakref.WeakSet[ParentEnd] = weakref.WeakSet()


def _close_in_child() -> None:
    for end in list(_ends):
        end.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
