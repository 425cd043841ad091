"""Says for which machine a program was built, by the head of its file."""

import collections
import pathlib

# ELF's number, names of the wheel's tag, of Debian and of Debian's folders.
Machine = collections.namedtuple("Machine", ["number", "wheel", "debian", "triplet"])
MACHINES = (Machine(62, "x86_64", "amd64", "x86_64-linux-gnu"),
            Machine(183, "aarch64", "arm64", "aarch64-linux-gnu"))
PROGRAMS = ("ddprun", "ddprund", "ddpctl")  # what is released
HEAD_BYTES = 4096  # the names of loader and segments lie here


class NoProgram(Exception):
    """A file is no program that can be released. Its text is one line for people."""


def content(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise NoProgram(f"{path}: {error.strerror}; expected a built program") from None


def machine(content):
    """Returns the Machine of a program of 64 bits, little-endian."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise NoProgram("no program of 64 bits, little-endian")
    number = int.from_bytes(content[18:20], "little")
    for one in MACHINES:
        if one.number == number:
            return one
    names = " or ".join(one.wheel for one in MACHINES)
    raise NoProgram(f"a program of machine {number}; expected {names}")


def is_static(content):
    return b"/ld-" not in content[:HEAD_BYTES]
