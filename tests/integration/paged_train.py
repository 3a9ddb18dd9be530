# SPDX-License-Identifier: Apache-2.0
"""Trains with accesses that no plan takes into account: paged_train.py KIND (STEPS | STOP_FILE).

KIND selects the accesses that are made in each step (see KINDS). Prints for each step the loss as a
hexadecimal float, and the checksum of the bytes that the accesses read. With STOP_FILE, trains
until that file exists.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import mmap
import os
import signal
import socket
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

WIDTH = 512
LAYERS = 4
SPAN_BYTES = 1 << 20  # size of an int64 tensor outside the model

Accesses = Callable[[], int]


def view(tensor: Tensor) -> memoryview:
    """The tensor's memory itself, not a copy of it."""
    return memoryview(tensor.detach().view(-1).numpy()).cast("B")


def checksum(tensors: list[Tensor]) -> int:
    found = 0
    for tensor in tensors:
        found = zlib.crc32(view(tensor), found)
    return found


class Training:
    """A training whose parameters, gradients and Adam state take 16 MiB."""

    def __init__(self) -> None:
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.model = nn.Sequential(*layers, nn.Linear(WIDTH, 16))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        inputs, targets = torch.randn(32, WIDTH), torch.randint(16, (32,))
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def tensors(self) -> list[Tensor]:
        """All parameters and tensors of Adam's state, except those smaller than a page."""
        found = []
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            found += [parameter.detach(), state["exp_avg"], state["exp_avg_sq"]]
        return [tensor for tensor in found if tensor.nbytes >= mmap.PAGESIZE]


def threads(training: Training) -> Accesses:
    """While a step runs, another thread changes tensors of its own."""
    own = [torch.zeros(SPAN_BYTES // 8, dtype=torch.int64) for _ in range(4)]
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)

    def change() -> None:
        while True:
            begun.acquire()
            for number, tensor in enumerate(own):
                tensor.add_(number + 1)
            ended.release()

    threading.Thread(target=change, daemon=True).start()
    step = training.step

    def step_beside() -> Tensor:
        begun.release()
        loss = step()
        ended.acquire()
        return loss

    training.step = step_beside  # type: ignore[method-assign]
    return lambda: checksum(own)


def files(training: Training) -> Accesses:
    """Checkpoints by torch.save(), and direct I/O (O_DIRECT) on the tensors' own memory."""
    folder = Path(tempfile.mkdtemp())
    copies = [torch.empty_like(tensor) for tensor in training.tensors()]

    def access() -> int:
        path = folder / "checkpoint"
        state = training.optimizer.state_dict()
        torch.save([training.model.state_dict(), state], path)
        saved, _ = torch.load(path, weights_only=True)
        for name, tensor in training.model.state_dict().items():
            assert torch.equal(saved[name], tensor), name
        tensors = training.tensors()
        # O_DIRECT requires aligned memory. Only the shim aligns tensors to pages.
        aligned = not any(tensor.data_ptr() % mmap.PAGESIZE for tensor in [*tensors, *copies])
        direct = os.open(
            folder / "direct", os.O_RDWR | os.O_CREAT | (os.O_DIRECT if aligned else 0)
        )
        for tensor, copy in zip(tensors, copies, strict=True):
            assert os.pwrite(direct, view(tensor), 0) == tensor.nbytes
            assert os.preadv(direct, [view(copy)], 0) == tensor.nbytes
            assert torch.equal(tensor, copy)
        os.close(direct)
        return checksum(copies)

    return access


def sockets(training: Training) -> Accesses:
    """send() from the tensors' memory, and recv() into other tensors' memory."""
    near, far = socket.socketpair()
    copies = [torch.empty_like(tensor) for tensor in training.tensors()]

    def access() -> int:
        tensors = training.tensors()

        def send() -> None:
            for tensor in tensors:
                near.sendall(view(tensor))

        sender = threading.Thread(target=send)
        sender.start()
        for tensor, copy in zip(tensors, copies, strict=True):
            into = view(copy)
            while into:
                into = into[far.recv_into(into) :]
            assert torch.equal(tensor, copy)
        sender.join()
        return checksum(copies)

    return access


class Pinned:
    """Buffers that are registered with an io_uring, so that the kernel pins their pages."""

    SETUP, REGISTER = 425, 427
    BUFFERS = 0  # IORING_REGISTER_BUFFERS

    def __init__(self, tensors: list[Tensor]) -> None:
        """Raises OSError if the kernel refuses the io_uring or the buffers."""
        self._ring = self._call(self.SETUP, 1, ctypes.create_string_buffer(120))
        spans = (ctypes.c_uint64 * (2 * len(tensors)))()
        for number, tensor in enumerate(tensors):
            spans[2 * number], spans[2 * number + 1] = tensor.data_ptr(), tensor.nbytes
        self._call(self.REGISTER, self._ring, self.BUFFERS, spans, len(tensors))

    def close(self) -> None:
        os.close(self._ring)

    @staticmethod
    def _call(number: int, *arguments: object) -> int:
        found = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
        if found < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(found)


def pinned(training: Training) -> Accesses:
    """The kernel pins the pages of some tensors in two of every four steps."""
    held: list[Pinned] = []
    steps = itertools.count()

    def access() -> int:
        if next(steps) % 2 == 0:
            if held:
                held.pop().close()
            else:
                held.append(Pinned(training.tensors()[:4]))
        return checksum(training.tensors())

    return access


def forks(training: Training) -> Accesses:
    """A child reads all tensors at the fork, and again after the parent's next step. Other children
    call exec(), exit immediately, or are killed."""
    child: list[tuple[int, socket.socket, int]] = []

    def read_twice(own: socket.socket) -> None:
        try:
            tensors = training.tensors()
            found = checksum(tensors)
            own.recv(1)
            own.send(b"same" if found == checksum(tensors) else b"diff")
            own.send(found.to_bytes(4, "little"))
        finally:
            os._exit(0)

    def access() -> int:
        found = 0
        if child:
            pid, near, expected = child.pop()
            near.send(b"?")
            answer = near.recv(4, socket.MSG_WAITALL)
            found = int.from_bytes(near.recv(4, socket.MSG_WAITALL), "little")
            near.close()
            assert os.waitpid(pid, 0)[1] == 0
            assert answer == b"same", "a child's tensors changed"
            assert found == expected, "a child and its parent read different numbers"
        near, far = socket.socketpair()
        pid = os.fork()
        if not pid:
            near.close()  # so that recv() returns if the parent ends
            read_twice(far)
        far.close()
        child.append((pid, near, checksum(training.tensors())))
        for end in (lambda: os.execv("/bin/true", ["true"]), lambda: os._exit(0), signal.pause):
            pid = os.fork()
            if not pid:
                end()
            if end is signal.pause:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return found

    return access


def types(training: Training) -> Accesses:
    """Tensors of several types, and a storage in shared memory."""
    kinds = (torch.bfloat16, torch.complex64, torch.bool, torch.int8, torch.float64)
    own = [(torch.arange(SPAN_BYTES // 8) % 127).to(kind) for kind in kinds]
    shared = torch.arange(SPAN_BYTES // 8).share_memory_()

    def access() -> int:
        shared.add_(1)
        found = zlib.crc32(view(shared))
        for tensor in own:
            buffer = io.BytesIO()
            torch.save(tensor.roll(1), buffer)
            buffer.seek(0)
            tensor.copy_(torch.load(buffer, weights_only=True))
            found = zlib.crc32(view(tensor.view(torch.int8)), found)
        return found

    return access


def operator_threads(training: Training) -> Accesses:
    """Two OpenMP threads share each operator."""
    torch.set_num_threads(2)
    return lambda: checksum(training.tensors())


KINDS: dict[str, Callable[[Training], Accesses]] = {
    kind.__name__.replace("_", "-"): kind
    for kind in (threads, files, sockets, pinned, forks, types, operator_threads)
}


def main() -> None:
    kind, until = sys.argv[1:3]
    torch.manual_seed(1)
    torch.set_num_threads(1)
    training = Training()
    training.step()
    access = KINDS[kind](training)
    for step in itertools.count():
        if step >= int(until) if until.isdigit() else os.path.exists(until):
            break
        loss = training.step()
        print(loss.item().hex(), f"{access():08x}", flush=True)


if __name__ == "__main__":
    main()
