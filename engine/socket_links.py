"""Links between ranks of one Linux host: a Unix socket for each pair, moved on by the ranks themselves.

gloo hands a message from thread to thread on both sides; many ranks on few cores pay for each
hand-over. A socket read by the thread that waits for it takes a tenth of the time and of the processor
time (measured, see docs/log.md). No thread of its own: what does not fit into the socket's buffer
moves on whenever this rank waits for any message, so two ranks that send to each other never block.

    rank a: send -> kernel buffer -> rank b: post ... wait
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from engine.agreement import broadcast_text
from engine.links import Links, TorchLinks, Transfer

CONNECT_TIMEOUT_S = 60.0
SILENCE_TIMEOUT_S = 1_800.0
"""How long a rank waits for a message: as long as gloo does."""
_BUFFER_BYTES = 4 << 20
_HELLO = struct.Struct("!i")
_CREDENTIALS = struct.Struct("3i")


def connect() -> Links:
    """Links to every rank of the world: by socket where both run on the same Linux host.

    Collective: all ranks of the world.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    with _listener() as listener:
        mine = f"{_host()} {listener.getsockname()[1:].decode()}" if listener.family == socket.AF_UNIX else ""
        everyone = [broadcast_text(mine, source=other).split() for other in range(size)]
        near = [other for other in range(size) if other != rank and mine and everyone[other][:1] == mine.split()[:1]]
        sockets = {peer: _called(everyone[peer][1], rank) for peer in near if peer < rank}
        while len(sockets) < len(near):
            peer, accepted = _accepted(listener)
            assert peer in set(near) - set(sockets), f"rank {peer} is not expected to call rank {rank}"
            sockets[peer] = accepted
    return SocketLinks(sockets, TorchLinks())


class SocketLinks:
    """Links by socket where there is one, by others elsewhere.

    Args:
        sockets: connected stream sockets by peer; owned by this object.
    """

    def __init__(self, sockets: dict[int, socket.socket], elsewhere: Links) -> None:
        self._elsewhere = elsewhere
        self._links = {peer: _Link(peer, sock) for peer, sock in sockets.items()}
        self._by_descriptor = {link.sock.fileno(): link for link in self._links.values()}

    def send(self, x: Tensor, peer: int, tag: int = 0, *, joins_next: bool = False) -> Transfer:
        link = self._links.get(peer)
        if link is None:
            return self._elsewhere.send(x, peer, tag, joins_next=joins_next)
        transfer = _SocketTransfer(self, link, x)
        link.outgoing.append(transfer)
        link.write()
        return transfer

    def post(self, out: Tensor, peer: int, tag: int = 0) -> Transfer:
        link = self._links.get(peer)
        if link is None:
            return self._elsewhere.post(out, peer, tag)
        transfer = _SocketTransfer(self, link, out)
        link.incoming.append(transfer)
        return transfer

    def close(self) -> None:
        for link in self._links.values():
            link.sock.close()

    def finish(self, transfer: _SocketTransfer) -> None:
        """Moves everything on until `transfer` is done."""
        transfer.link.read()
        while transfer.rest:
            self._wait_for_any(transfer.link.peer)

    def _wait_for_any(self, awaited: int) -> None:
        poll = select.poll()
        for link in self._links.values():
            events = (select.POLLIN if link.incoming else 0) | (select.POLLOUT if link.outgoing else 0)
            if events:
                poll.register(link.sock, events)
        ready = poll.poll(SILENCE_TIMEOUT_S * 1000)
        if not ready:
            raise RuntimeError(f"expected a message of rank {awaited} within {SILENCE_TIMEOUT_S:g} s, none came")
        for descriptor, _ in ready:
            link = self._by_descriptor[descriptor]
            link.read()
            link.write()


class _Link:
    """The socket to one peer, with what is still to be written and read, in order."""

    def __init__(self, peer: int, sock: socket.socket) -> None:
        self.peer, self.sock = peer, sock
        self.outgoing: deque[_SocketTransfer] = deque()
        self.incoming: deque[_SocketTransfer] = deque()
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)

    def write(self) -> None:
        """As much as the socket takes now."""
        try:
            while self.outgoing:
                self._move_on(self.outgoing, self.sock.send(self.outgoing[0].rest))
        except BlockingIOError:
            return
        except OSError as error:
            raise self._gone() from error

    def read(self) -> None:
        """As much as has arrived, into what is posted."""
        try:
            while self.incoming:
                num_bytes = self.sock.recv_into(self.incoming[0].rest)
                if not num_bytes:
                    raise self._gone()
                self._move_on(self.incoming, num_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._gone() from error

    def _move_on(self, transfers: deque[_SocketTransfer], num_bytes: int) -> None:
        first = transfers[0]
        first.rest = first.rest[num_bytes:]
        if not first.rest:
            transfers.popleft()

    def _gone(self) -> RuntimeError:
        return RuntimeError(f"rank {self.peer} has closed its link: its process has ended or gives up")


class _SocketTransfer:
    __slots__ = ("_links", "_tensor", "link", "rest")

    def __init__(self, links: SocketLinks, link: _Link, tensor: Tensor) -> None:
        assert tensor.is_contiguous(), f"expected a contiguous tensor, given strides {tensor.stride()}"
        assert tensor.numel(), "an empty tensor is no message"
        self._links, self.link, self._tensor = links, link, tensor
        self.rest: memoryview = tensor.detach().view(-1).view(torch.uint8).numpy().data

    def wait(self) -> Tensor:
        if self.rest:
            self._links.finish(self)
        return self._tensor


def _listener() -> socket.socket:
    """Listens under a name that no one else has; names in the abstract space leave no file behind."""
    if not sys.platform.startswith("linux"):
        return socket.socket()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0malleus-" + secrets.token_hex(8))
    listener.listen(1024)
    listener.settimeout(CONNECT_TIMEOUT_S)
    return listener


def _host() -> str:
    """Equal for two processes exactly if their abstract socket names meet."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.readlink('/proc/self/ns/net')}"


def _called(name: str, rank: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(CONNECT_TIMEOUT_S)
    sock.connect("\0" + name)
    sock.sendall(_HELLO.pack(rank))
    return sock


def _accepted(listener: socket.socket) -> tuple[int, socket.socket]:
    """The next caller that runs under our own user; others are turned away."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while time.monotonic() < deadline:
        sock, _ = listener.accept()
        sock.settimeout(CONNECT_TIMEOUT_S)
        _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user == os.getuid():
            return _HELLO.unpack(sock.recv(_HELLO.size, socket.MSG_WAITALL))[0], sock
        sock.close()
    raise TimeoutError(f"expected all ranks of this host to call within {CONNECT_TIMEOUT_S:g} s")
