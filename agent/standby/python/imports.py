"""Watches a process while it imports for others. A standby does it for one worker, a fork server
for all workers of a node. sitecustomize.py runs it before standby.py or fork_server.py, with the
descriptor of the agent's connection (proto/standby.h says what is said there)."""
import _socket
import os
import sys

# A program that copies all variables has not read these.
OF_AN_ATTEMPT = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT"}
agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, connection)  # noqa: F821


def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return list(map(int, file.read().split()))


def end_children():
    """Imports have started them."""
    for pid in children():
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def refuse(why):
    end_children()
    agent.sendall(b"!" + why.encode(errors="replace")[:200])
    os._exit(1)


def receive(connection, size):
    """So many bytes. Ends the process with the other end."""
    block = b""
    while len(block) < size:
        block += connection.recv(size - len(block)) or os._exit(1)
    return block


def receive_variables(head):
    """The variables that are new, other or (None) gone. `head` has the size of their text."""
    block = receive(agent, int.from_bytes(head, "little"))
    entries = [entry.partition(b"=") for entry in block.split(b"\0") if entry]
    return {os.fsdecode(name): value if given else None for name, given, value in entries}


def set_variable(name, value):
    os.environ.pop(name, None)
    os.environ.update({} if value is None else {name: os.fsdecode(value)})


def modules_being_imported():
    names, frame = set(), sys._getframe(1)
    while frame:
        if frame.f_code.co_name == "<module>" and "__spec__" in frame.f_globals:
            names.add(frame.f_globals["__name__"])
        frame = frame.f_back
    return names - {"site", "sitecustomize", "__main__"}


# They look at all variables for those whose name begins with a word of their own.
TAKE_BY_PREFIX = {"fsspec.config", "tqdm.utils"}


class Watched(type(os.environ)):
    """The environment while the imports run. A copy of all of it, dict(os.environ), asks for keys()
    and then for each of them."""
    read, copied, copier, names = {}, set(), None, set()  # read: by which modules' imports

    def __getitem__(self, name):
        if sys._getframe(1) is Watched.copier and name in Watched.names:
            Watched.names.remove(name)
            if Watched.copier.f_globals.get("__name__") not in TAKE_BY_PREFIX:
                Watched.copied |= modules_being_imported() or {""}
        else:
            Watched.read.setdefault(name, set()).update(modules_being_imported())
        return super().__getitem__(name)

    def __setitem__(self, name, value):
        Watched.read.setdefault(name, set()).update(modules_being_imported())
        super().__setitem__(name, value)

    def keys(self):
        Watched.copier, Watched.names = sys._getframe(1), set(self)
        return super().keys()

    def items(self):
        if sys._getframe(1).f_globals.get("__name__") not in TAKE_BY_PREFIX:
            return dict(self).items()
        return {os.fsdecode(name): os.fsdecode(self._data[name]) for name in self._data}.items()

    @classmethod
    def begin(cls):
        os.environ.__class__ = cls

    @classmethod
    def end(cls):
        os.environ.__class__, cls.copier = cls.__base__, None


def find_spec(name, path):
    return sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name, path)


def is_harmless(path):
    is_device = path.startswith("/dev/")
    return not is_device or path.startswith(("/dev/shm/", "/dev/null", "/dev/urandom"))


def open_files():
    return set(map(os.path.realpath, os.scandir("/proc/self/fd")))


def open_devices():
    return {path for path in open_files() if not is_harmless(path)}


def has_threads():
    return len(os.listdir("/proc/self/task")) > 1


def shared_memory():
    """The mappings that a forked child would share."""
    with open("/proc/self/maps") as file:
        return {line.split()[0] for line in file if line.split()[1] == "rw-s"}


def refused(variables):
    """Hears which variables were read that differ in the worker. The fork server remembers it."""


def refuse_if_read(variables):
    """These differ now from what the imports have seen."""
    read = variables.keys() & Watched.read.keys()
    if Watched.copied:
        read |= variables.keys() - OF_AN_ATTEMPT
    if read:
        refused(read)
        refuse("an import has read " + ", ".join(sorted(read)))


def became():
    """Hears that the variables are the worker's now."""
