"""Run a command where there is no network but loopback: python loopback.py COMMAND ...

A cluster of several nodes takes the address of the machine's interface, whatever it is told. In a network namespace of
its own it has only ``lo`` to find. Where that is not allowed the command runs as it is, and the tests skip.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def has_only_loopback() -> bool:
    """Whether this process sees no other interface that is up."""
    return {name for _, name in socket.if_nameindex() if _flags(name) & IFF_UP} <= {"lo"}


def enter_loopback() -> bool:
    """Move this process, which must have a single thread, to a network of its own; whether that was allowed."""
    is_root, user, group = os.geteuid() == 0, os.geteuid(), os.getegid()
    flags = CLONE_NEWNET if is_root else CLONE_NEWNET | CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        return False
    if not is_root:
        for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(content)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _flags("lo") | IFF_UP))
    return True


def _flags(interface: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sh14x", interface.encode(), 0))
    return struct.unpack("16sh14x", answer)[1]


if __name__ == "__main__":
    if not has_only_loopback() and not enter_loopback():
        print("A network of its own is not allowed here: tests of the cluster will be skipped.", file=sys.stderr)
    os.execvp(sys.argv[1], sys.argv[1:])
