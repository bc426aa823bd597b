"""Whole messages, and file descriptors, through a socket between two processes."""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections import deque

_LENGTH = struct.Struct("<Q")
_ends: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end. Closed in processes that this one forks: a worker notices that its parent is gone by the end of its
    socket, which must therefore be held by nobody else."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._unsent: deque[memoryview] = deque()
        _ends.add(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Wait until it is sent. Raises OSError when the other end is closed."""
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def send_soon(self, message: bytes) -> None:
        """Send what can be sent without waiting, now and whenever `flush` is called."""
        self._unsent.append(memoryview(_LENGTH.pack(len(message)) + message))
        self.flush()

    def flush(self) -> None:
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

    def send_descriptor(self, descriptor: int) -> None:
        socket.send_fds(self._socket, [b"d"], [descriptor])

    def receive_descriptor(self) -> int:
        """The other end's `send_descriptor`. Raises EOFError when the other end is closed."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not data or not descriptors:
            raise EOFError("the other end is closed")
        return descriptors[0]

    def close(self) -> None:
        self._socket.close()


def _close_in_child() -> None:
    for channel in list(_ends):
        channel.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
