"""Stop a process before each of its file operations: seccomp's user notification (Linux, x86_64).

The kernel asks the supervisor about every system call that changes files, whichever language or
thread made it. Child processes are supervised too. Writes through a memory map are not seen.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from electra.config import UserError

# Linux, x86_64: the number of a system call → its name. Those with an `at` name a folder first.
SYSTEM_CALLS = {
    1: "write",
    2: "open",
    18: "pwrite64",
    20: "writev",
    40: "sendfile",
    74: "fsync",
    75: "fdatasync",
    76: "truncate",
    77: "ftruncate",
    82: "rename",
    83: "mkdir",
    84: "rmdir",
    85: "creat",
    86: "link",
    87: "unlink",
    88: "symlink",
    257: "openat",
    258: "mkdirat",
    263: "unlinkat",
    264: "renameat",
    265: "linkat",
    266: "symlinkat",
    285: "fallocate",
    296: "pwritev",
    316: "renameat2",
    326: "copy_file_range",
    328: "pwritev2",
}
WRITES = ("write", "pwrite64", "writev", "sendfile")
UNREADABLE = ("copy_file_range", "pwritev", "pwritev2")  # writes whose data is not looked up
SYNCS = ("fsync", "fdatasync")
OPENS_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
AT_FDCWD, AT_REMOVEDIR = -100, 0x200

PR_SET_NO_NEW_PRIVS = 38
SECCOMP, SET_MODE_FILTER, NEW_LISTENER = 317, 1, 1 << 3
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
LOAD, JUMP_IF_EQUAL, JUMP_IF_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # of Berkeley packet filters
RECEIVE, SEND = 0xC0502100, 0xC0182101
NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, thread, flags, system call, machine, pointer, args
ANSWER = struct.Struct("=QqiI")  # id, value, error, flags
CONTINUE = 1


class Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction)))


@dataclass(frozen=True)
class Operation:
    """A system call that a thread is about to make on a file or folder."""

    thread: int
    call: str
    arguments: tuple[int, ...]
    path: Path
    target: Path | None = None  # of a rename or link

    @property
    def kind(self) -> str:
        """The name without its variants: openat and creat are open, writev is write."""
        name = {"creat": "open", "sendfile": "write", "writev": "write", "pwrite64": "write"}
        call = name.get(self.call, self.call).removesuffix("2").removesuffix("at")
        if call == "unlink" and self.call == "unlinkat" and self.arguments[2] & AT_REMOVEDIR:
            return "rmdir"
        return call

    @property
    def flags(self) -> int:
        """The flags of an open."""
        place = {"open": 1, "openat": 2}
        if self.call == "creat":
            return os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return self.arguments[place[self.call]]

    def data(self) -> bytes:
        """Return the bytes that a write is about to write."""
        if self.call == "sendfile":
            return self.sent_bytes()
        if self.call == "writev":
            vector = read_memory(self.thread, self.arguments[1], 16 * self.arguments[2])
            pairs = struct.iter_unpack("=QQ", vector)
            return b"".join(read_memory(self.thread, *pair) for pair in pairs)
        return read_memory(self.thread, self.arguments[1], self.arguments[2])

    def sent_bytes(self) -> bytes:
        _, source, pointer, count = self.arguments[:4]
        offset = file_position(self.thread, source)
        if pointer:
            (offset,) = struct.unpack("=q", read_memory(self.thread, pointer, 8))
        with open(f"/proc/{self.thread}/fd/{source}", "rb") as file:
            file.seek(offset)
            return file.read(count)

    def write_half(self) -> None:
        """Write the first half of the bytes at the place where the process would write them."""
        data = self.data()
        offset = file_position(self.thread, self.arguments[0])
        if self.call == "pwrite64":
            offset = self.arguments[3]
        descriptor = os.open(f"/proc/{self.thread}/fd/{self.arguments[0]}", os.O_WRONLY)
        try:
            os.pwrite(descriptor, data[: len(data) // 2], offset)
        finally:
            os.close(descriptor)


# ---- the supervised process ----------------------------------------------------------------------


def check_machine() -> None:
    """Raise UserError where the kernel cannot ask about system calls."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise UserError(
            f"found {platform.system()} on {platform.machine()}; file operations can only be "
            "supervised on Linux, x86_64"
        )


def install_filter() -> int:
    """Put this process and its children under supervision; return the supervisor's descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = filter_instructions()
    program = Program(len(instructions), (Instruction * len(instructions))(*instructions))
    listener = -1
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        flags = ctypes.c_ulong(NEW_LISTENER)
        listener = libc.syscall(SECCOMP, SET_MODE_FILTER, flags, ctypes.byref(program))
    if listener < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp is not available here: {os.strerror(number)}")
    return int(listener)


def filter_instructions() -> list[Instruction]:
    """Return the filter: ask about the calls of the table, and about opens only to write."""
    opens = {2: 24, 257: 32}  # system call → the offset of its flags
    instructions = [Instruction(LOAD, 0, 0, 0)]
    for number in SYSTEM_CALLS:
        if number in opens:
            instructions += [
                Instruction(JUMP_IF_EQUAL, 0, 4, number),
                Instruction(LOAD, 0, 0, opens[number]),
                Instruction(JUMP_IF_ANY_BIT, 0, 1, OPENS_TO_WRITE),
                Instruction(RETURN, 0, 0, NOTIFY),
                Instruction(RETURN, 0, 0, ALLOW),
            ]
        else:
            instructions += [
                Instruction(JUMP_IF_EQUAL, 0, 1, number),
                Instruction(RETURN, 0, 0, NOTIFY),
            ]
    return [*instructions, Instruction(RETURN, 0, 0, ALLOW)]


def fork_supervised(main: Callable[[], int], output: Path) -> tuple[int, int]:
    """Run `main` in a supervised child; return its process group and the supervisor's descriptor.

    `output` receives what the child prints.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        run_child(main, output, theirs)
    theirs.close()
    with ours:
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        os.waitpid(child, 0)
        raise OSError(output.read_text(encoding="utf8", errors="replace"))
    return child, descriptors[0]


def run_child(main: Callable[[], int], output: Path, connection: socket.socket) -> None:
    code = 70  # as in sysexits.h: a fault of the program
    try:
        os.setsid()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        listener = install_filter()
        socket.send_fds(connection, [b"."], [listener])
        os.close(listener)
        connection.close()
        code = main()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


# ---- the supervisor ------------------------------------------------------------------------------


def requests(listener: int, *, until: float) -> Iterator[bytes]:
    """Yield the questions of the kernel until no supervised process is left, or time is over."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        for _, event in poll.poll(min(1000.0, 1000 * left)):
            if event & select.POLLHUP:
                return
            buffer = bytearray(NOTIFICATION.size)
            try:
                fcntl.ioctl(listener, RECEIVE, buffer)
            except OSError:  # the thread was killed meanwhile
                continue
            yield bytes(buffer)
    raise TimeoutError


def answer(listener: int, request: bytes, error: int = 0) -> None:
    """Let an operation take place, or make it fail with an error number."""
    identity = NOTIFICATION.unpack(request)[0]
    reply = ANSWER.pack(identity, 0, 0, CONTINUE)
    if error:
        reply = ANSWER.pack(identity, 0, -error, 0)
    try:
        fcntl.ioctl(listener, SEND, bytearray(reply))
    except FileNotFoundError:  # the thread was killed meanwhile
        return


def decode(request: bytes) -> Operation | None:
    """Return the operation that a request is about; None where it is not about a file's path."""
    _, thread, _, number, _, _, *arguments = NOTIFICATION.unpack(request)
    call = SYSTEM_CALLS[number]
    if call in UNREADABLE:
        raise NotImplementedError(f"{call}: its data is not looked up yet")
    try:
        return Operation(thread, call, tuple(arguments), *find_paths(thread, call, arguments))
    except (FileNotFoundError, ProcessLookupError):
        return None


def find_paths(thread: int, call: str, arguments: list[int]) -> list[Path]:
    """Return the path, or the two paths, that a system call names."""
    if call in WRITES or call in SYNCS or call in ("ftruncate", "fallocate"):
        return [Path(os.readlink(f"/proc/{thread}/fd/{arguments[0]}"))]
    if call in ("rename", "link"):
        return [find_path(thread, AT_FDCWD, pointer) for pointer in arguments[:2]]
    if call in ("renameat", "renameat2", "linkat"):
        pairs = (arguments[0:2], arguments[2:4])
        return [find_path(thread, *pair) for pair in pairs]
    if call == "symlink":
        return [find_path(thread, AT_FDCWD, arguments[1])]
    if call == "symlinkat":
        return [find_path(thread, *arguments[1:3])]
    if call.endswith("at"):
        return [find_path(thread, *arguments[:2])]
    return [find_path(thread, AT_FDCWD, arguments[0])]


def find_path(thread: int, folder: int, pointer: int) -> Path:
    """Return an absolute path from a folder's descriptor and a string in a process's memory."""
    name = read_string(thread, pointer)
    (number,) = struct.unpack("=i", struct.pack("=I", folder & 0xFFFFFFFF))
    link = f"/proc/{thread}/fd/{number}"
    if number == AT_FDCWD:
        link = f"/proc/{thread}/cwd"
    return Path(os.path.normpath(os.path.join(os.readlink(link), name)))


def read_string(thread: int, pointer: int) -> str:
    text = b""
    while b"\0" not in text:
        page_end = 4096 - (pointer + len(text)) % 4096  # the next page may not be mapped
        text += read_memory(thread, pointer + len(text), page_end)
    return os.fsdecode(text.partition(b"\0")[0])


def read_memory(thread: int, pointer: int, count: int) -> bytes:
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        memory.seek(pointer)
        return memory.read(count)


def file_position(thread: int, descriptor: int) -> int:
    """Return where the next write of a descriptor goes."""
    facts = Path(f"/proc/{thread}/fdinfo/{descriptor}").read_text().split()
    position, flags = int(facts[1]), int(facts[3], 8)
    if flags & os.O_APPEND:
        return os.stat(f"/proc/{thread}/fd/{descriptor}").st_size
    return position
