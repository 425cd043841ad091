"""ddprun's hook in a Python worker. Python runs it before the user's code (module site). It takes
itself out of the way, counts optimizer steps and notes imports in the worker's page
(proto/worker_page.h). In a standby and in a fork server it runs the files beside it. Any error in
it means: as if it were not there."""
import os
import sys


class Packages:
    # Torch 2.9 writes it while it is imported, into a temporary folder of each process.
    WRITTEN_BY_AN_IMPORT = {"_remote_module_non_scriptable"}

    def __init__(self):
        packages = [
            folder for folder in sys.path if folder.endswith(("/site-packages", "/dist-packages"))
        ]
        self.shared = tuple(folder + "/" for folder in (os.path.dirname(os.__file__), *packages))
        command = getattr(sys, "orig_argv", [])
        self.users_package = (
            command[command.index("-m") + 1].partition(".")[0] if "-m" in command[:-1] else None
        )

    def is_shared(self, spec):
        """Whether a module is Python's own or a package's. A standby never runs the user's
        files."""
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
        known = (
            spec.origin in ("built-in", "frozen")
            or spec.name in self.WRITTEN_BY_AN_IMPORT
            or all(place.startswith(self.shared) for place in places)
        )
        return known and spec.name.partition(".")[0] != self.users_package


class Page:
    # The words of the page.
    STEPS, LAST_STEP, FIRST_STEP, FIRST_LINE, NOTES_SIZE, PARKS, ASKED, WITNESS = range(8)

    def __init__(self, page):
        import ctypes  # module mmap keeps a descriptor, which the user would see
        at, notes, capacity, path = page.split(":", 3)
        at, notes, end = int(at), int(notes), int(notes) + int(capacity)
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        # A write to memory cannot fail for want of space.
        os.posix_fallocate(file, notes, int(capacity))
        self.libc, self.c_long = ctypes.CDLL(None), ctypes.c_long
        self.libc.mmap.restype = ctypes.c_void_p
        # PROT_READ | PROT_WRITE, MAP_SHARED
        address = self.libc.mmap(None, ctypes.c_size_t(end), 3, 1, file, ctypes.c_long(0))
        os.close(file)
        if address in (None, 2 ** 64 - 1):
            raise OSError("mmap")
        memory = memoryview((ctypes.c_char * end).from_address(address)).cast("B")
        self.words, self.notes = memory[at:at + 64].cast("Q"), memory[notes:end]
        self.lock = ctypes.c_void_p(address + at + 64)
        self.asked_word = ctypes.c_void_p(address + at + 8 * self.ASKED)
        self.orders = memory[at + 128:at + 152].cast("Q")  # notice.py has their names
        self.order_word = ctypes.c_void_p(address + at + 136)
        self.folder, self.rank = os.path.dirname(path), at // 192

    def entries(self):
        return bytes(self.notes[:self.words[self.NOTES_SIZE]]).split(b"\0")[:-1]


class Hook(Page):
    def __init__(self, page, packages):
        import _thread
        import time
        super().__init__(page)
        self.clock, self.packages, self.path = time.monotonic_ns, packages, tuple(sys.path)
        self.thread, self.main = _thread.get_ident, _thread.get_ident()
        self.last, self.counts, self.environ = None, False, dict(os.environ._data)
        self.begin = self.words[self.NOTES_SIZE]  # behind those of our predecessor
        self.pending = None  # the place of the last import's entry
        self.ends = [0] * 1024  # of the last steps, by their number
        self.has_witness = self.checks_replicas = False
        self.taker = None
        self.words[self.PARKS] = os.getpid()
        os.register_at_fork(after_in_child=self.retire)

    def find_spec(self, name, path=None, target=None):
        """A finder that finds nothing: it hears of each import. The one before has its spec by
        now."""
        if name == "ddprun":
            return self.find_ddprun(name)
        try:
            if self.thread() == self.main:
                self.mark_last()
                if self.environ != os.environ._data:
                    self.note_variables(sys._getframe(1))
                self.note_path()
                self.last, self.pending = name, self.note(b"?" + os.fsencode(name))
            self.count_steps()
        except Exception:
            self.retire()

    def retire(self):
        """A forked child, or one of us that fails, does nothing any more."""
        self.find_spec = self.count_step = self.obey_order = lambda *_: None

    def find_ddprun(self, name):
        """If the package is not installed, a module that can tell of a notice."""
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        if any(finder is not self and finder.find_spec(name, None) for finder in finders):
            return None
        return sys.modules["_frozen_importlib"].ModuleSpec(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.ending, module.should_save = self.ending, self.should_save

    def ending(self):
        """Whether the job ends, and this rank has done the step after which all ranks save."""
        return self.notices().ending()

    def should_save(self):
        """Whether all ranks save after this step. True once for each time."""
        return self.notices().should_save()

    def notices(self):
        if not self.taker:
            scope = {"os": os}
            run_parts(f"{self.folder}/hook", ["notice.py"], scope)
            self.taker = scope["NoticeTaker"](self)
        return self.taker

    def obey_order(self):
        try:
            notices = self.notices()
        except Exception:
            return self.retire()
        signo = notices.step_done()  # a handler of the user's may raise in it
        if signo:
            os.kill(os.getpid(), signo)  # the user's handler may raise

    def mark_last(self):
        """`-`: there is no such module, or it is not ready while it imports others. An import of
        its package does it again."""
        spec = getattr(sys.modules.get(self.last), "__spec__", None)
        if self.pending is not None:
            mark = "-" if not spec else "+" if self.packages.is_shared(spec) else "!"
            self.notes[self.pending] = ord(mark)
        self.pending = None

    def note(self, entry):
        """Returns its place; None if there is no room."""
        at = self.words[self.NOTES_SIZE]
        if at + len(entry) >= len(self.notes):
            return None
        self.notes[at:at + len(entry) + 1] = entry + b"\0"
        self.words[self.NOTES_SIZE] = at + len(entry) + 1
        return at

    def note_variables(self, frame):
        """Notes the changes that the user's code has made to the environment: the next import may
        read it. An import makes its own changes again."""
        before, now, self.environ = self.environ, os.environ._data, dict(os.environ._data)
        while frame and not self.is_import(frame):
            frame = frame.f_back
        for name in [
            name for name in {**before, **now} if before.get(name) != now.get(name) and not frame
        ]:
            self.note(b"=" + name + (b"=" + now[name] if name in now else b""))

    def note_path(self):
        """Notes once that the user's code has put folders before those of packages. Python itself
        puts the script's there."""
        first = next((at for at, place in enumerate(sys.path) if place in self.path), 0)
        if first > 1:
            self.note(b"=sys.path")
            self.path = tuple(sys.path)

    def is_import(self, frame):
        named, code = frame.f_globals.get("__name__"), frame.f_code
        return (
            code.co_name == "<module>"
            and named != "__main__"
            and code.co_filename.startswith(self.packages.shared)
        )

    def begin_witness(self):
        """Only where ranks can wait for each other: a script of its own has no thread of ours."""
        if not self.has_witness and "torch.distributed.distributed_c10d" in sys.modules:
            self.has_witness, scope = True, {"os": os, "sys": sys}
            try:
                run_parts(f"{self.folder}/hook", ["witness.py", "steps.py"], scope)
                scope["begin"](self)
            except Exception:  # a processor that it does not know
                pass

    def count_steps(self):
        self.begin_witness()
        register = getattr(
            sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None
        )
        compiles = getattr(sys.modules.get("torch.compiler"), "is_dynamo_compiling", None)
        if register and compiles and not self.counts:
            self.compiles = compiles
            self.counts = register(self.stepped)
            if self.thread() == self.main and hasattr(self.libc, "gnu_get_libc_version"):
                self.libc.pthread_mutex_trylock(self.lock)  # its release tells of our end
        if self.counts:
            self.begin_replica_check()

    def begin_replica_check(self):
        """--check-replicas: before the user's code makes a step."""
        every = os.environ.get("DDPRUN_CHECK_REPLICAS", "")
        ddp = sys.modules.get("torch.nn.parallel.distributed")
        if not self.checks_replicas and every and hasattr(ddp, "DistributedDataParallel"):
            self.checks_replicas, scope = True, {"os": os, "sys": sys}
            try:
                run_parts(f"{self.folder}/hook", ["replicas.py"], scope)
                scope["begin"](self, int(every))
            except Exception as error:  # a torch that it does not know
                with open(f"{self.folder}/replicas_{self.rank}_why", "w") as file:
                    file.write(f"the check cannot begin, {type(error).__name__}: {error}\n")

    def stepped(self, optimizer, args, kwargs):
        if not self.compiles():  # a compiled step must not have us in it
            self.count_step()
            if self.orders[1]:
                self.obey_order()

    def count_step(self):
        try:
            if not self.words[self.FIRST_STEP]:
                self.mark_failures()
                self.note_variables(sys._getframe(1))
                self.words[self.FIRST_STEP] = self.clock()
            now, number = self.clock(), self.words[self.STEPS] + 1
            self.words[self.LAST_STEP], self.words[self.STEPS] = now, number
            self.ends[number % 1024] = now
        except Exception:
            self.retire()

    def mark_failures(self):
        """Marks a module whose import failed in the end. It was noted, since what it imported came
        after it."""
        self.mark_last()
        at = self.begin
        for entry in bytes(self.notes[at:self.words[self.NOTES_SIZE]]).split(b"\0")[:-1]:
            if entry[:1] == b"+" and os.fsdecode(entry[1:]) not in sys.modules:
                self.notes[at] = ord("-")
            at += len(entry) + 1


def run_parts(folder, names, scope):
    for name in names:
        with open(f"{folder}/{name}") as file:
            exec(compile(file.read(), file.name, "exec"), scope)


def begin():
    original = dict(os.environ._data)
    told, before = os.environ.pop("DDPRUN_HOOK", ""), os.environ.pop("DDPRUN_PYTHONPATH", None)
    os.environ.pop("PYTHONPATH", None)
    os.environ.update({} if before is None else {"PYTHONPATH": before})
    # Hidden in a standby, since people look for the worker of a rank.
    for name in "RANK", "LOCAL_RANK":
        if "?" + name[1:] in os.environ:
            os.environ[name] = os.environ.pop("?" + name[1:])
    folder = os.path.dirname(__file__)
    sys.path[:] = [place for place in sys.path if place != folder]
    del sys.modules["sitecustomize"]
    agent, connection, *task = told.split(":") if told else ("", "")
    if not agent or int(agent) != os.getppid():  # a program that a worker has started
        return os._exit(1) if connection else None
    known = set(sys.modules)
    try:
        packages = Packages()
        scope = {"Page": Page, "Hook": Hook, "packages": packages, "hook": None}
        if not task:
            scope["hook"] = Hook(os.environ["DDPRUN_PAGE"], packages)
        if connection:
            scope.update(connection=int(connection), parent=int(agent))
            scope.update(original=original, task=task)
            parts = ["imports.py", *(["script.py", "fork_server.py"] if task else []), "standby.py"]
            run_parts(folder, parts, scope)
        hook = scope["hook"]
    except Exception:
        return os._exit(1) if connection else None
    for name in set() if connection else set(sys.modules) - known:
        del sys.modules[name]
    sys.meta_path.insert(0, hook)
    hook.words[Hook.FIRST_LINE] = hook.clock()


begin()
import sitecustomize  # the user's own; where there is none, module site expects this error
