"""ddprun's hook in a Python worker. Python runs it before the user's code (module site). It takes itself out of the way, counts
optimizer steps and notes imports in the worker's page (proto/worker_page.h), and parks a standby: a process that has done its
predecessor's imports and waits until the agent lets it go. Any error in it means: as if it were not there."""
import os
import sys


class Hook:
    STEPS, LAST_STEP, FIRST_STEP, FIRST_LINE, NAMES_SIZE = range(5)  # words of the page

    def __init__(self, page):
        import mmap
        import time
        offset, names, capacity, path = page.split(":", 3)
        with open(path, "r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0))
        [os.close(int(fd)) for fd in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{fd}") == path]  # mmap's own
        self.words = memory[int(offset):int(offset) + 64].cast("Q")
        self.names = memory[int(names):int(names) + int(capacity)]
        self.clock, self.last, self.counts, site = time.monotonic_ns, None, False, sys.modules["site"]
        self.shared = tuple(folder + "/" for folder in (os.path.dirname(os.__file__), *site.getsitepackages(), site.getusersitepackages()))

    def is_shared(self, spec):
        """Whether a module is Python's own or a package's. A standby never runs the user's files."""
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
        return spec.origin in ("built-in", "frozen") or all(place.startswith(self.shared) for place in places)

    def find_spec(self, name, path=None, target=None):
        """A finder that finds nothing: it hears of each import. The one before has its spec by now."""
        spec = getattr(sys.modules.get(self.last), "__spec__", None)
        if spec and self.is_shared(spec):
            line, at = self.last.encode() + b"\n", self.words[self.NAMES_SIZE]
            if at + len(line) <= len(self.names):
                self.names[at:at + len(line)] = line
                self.words[self.NAMES_SIZE] = at + len(line)
        self.last = name
        register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
        if register and not self.counts:
            self.counts = register(self.stepped)

    def stepped(self, optimizer, args, kwargs):
        now = self.words[self.LAST_STEP] = self.clock()
        self.words[self.FIRST_STEP] = self.words[self.FIRST_STEP] or now
        self.words[self.STEPS] += 1


class Standby:
    """A worker that waits. It ends, and the agent starts another one cold, where it would not be what a cold start is."""

    def __init__(self, hook, fd):
        import _socket
        self.hook, self.read, self.began, self.spoiled = hook, set(), dict(os.environ), False
        self.agent, self.devices = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd), self.open_devices()

    def open_devices(self):
        return {path for path in map(os.path.realpath, os.scandir("/proc/self/fd")) if path.startswith("/dev/")}

    def find_spec(self, name, path=None, target=None):
        spec = path is None and sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name)
        if spec and not self.hook.is_shared(spec):
            self.spoiled = True

    def run(self):
        environ, plain = type(os.environ), type(os.environ).__getitem__
        environ.__getitem__ = lambda variables, name: self.read.add(name) or plain(variables, name)
        sys.meta_path.insert(0, self)
        for name in bytes(self.hook.names[:self.hook.words[Hook.NAMES_SIZE]]).decode().split():
            __import__(name)
        sys.meta_path.remove(self)
        environ.__getitem__ = plain
        if self.spoiled or len(os.listdir("/proc/self/task")) > 1 or self.open_devices() != self.devices:
            os._exit(1)
        self.agent.sendall(b"w")  # waits
        head, rights, *_ = self.agent.recvmsg(8, 64)
        block, size = b"", int.from_bytes(head, "little")
        while len(block) < size:
            block += self.agent.recv(size - len(block)) or os._exit(1)
        self.become(dict(line.split("=", 1) for line in os.fsdecode(block).split("\0") if line))
        for target, given in enumerate(memoryview(rights[0][2]).cast("i"), 1):
            os.dup2(given, target)
            os.close(given)
        self.agent.sendall(b"g")  # goes
        self.agent.close()

    def become(self, variables):
        # Compared with how it began: what an import has set, an import would set again.
        changed = {name for name in {**self.began, **variables} if self.began.get(name) != variables.get(name)}
        if changed & self.read:
            os._exit(1)
        for name in changed:
            os.environ.pop(name, None)
        os.environ.update({name: variables[name] for name in changed & set(variables)})


def begin():
    told, before = os.environ.pop("DDPRUN_HOOK", ""), os.environ.pop("DDPRUN_PYTHONPATH", None)
    os.environ.pop("PYTHONPATH", None)
    os.environ.update({} if before is None else {"PYTHONPATH": before})
    sys.path.remove(os.path.dirname(__file__))
    del sys.modules["sitecustomize"]
    agent, _, standby = told.partition(":")
    if not agent or int(agent) != os.getppid():
        return  # a program that a worker has started
    known = set(sys.modules)
    try:
        hook = Hook(os.environ["DDPRUN_PAGE"])
        if standby:
            Standby(hook, int(standby)).run()
    except BaseException:
        if standby:
            os._exit(1)
        return
    for name in set() if standby else set(sys.modules) - known:
        del sys.modules[name]
    sys.meta_path.insert(0, hook)
    hook.words[Hook.FIRST_LINE] = hook.clock()


begin()
import sitecustomize  # the user's own; where there is none, module site expects this error
