"""A fork server: imports once what the workers of this node will import, and makes each of them by
fork. The child that it returns in is a standby. sitecustomize.py runs it after imports.py and
script.py; the agent's end is agent/standby/fork_server.cc. It imports packages and the standard
library only."""
import ctypes
import time

MOST_FILES_OPEN = 4096  # by an import
# These differ in each worker.
OF_A_WORKER = {
    "RANK", "LOCAL_RANK", "ROLE_RANK", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "DDPRUN_PAGE"
}
USED_IN_FORKS = {"torch.cuda", "torch.xpu"}  # they know whether they were used before a fork
libc = ctypes.CDLL(None)


class Sharing:
    """Imports, and finds out what must not be shared. As a finder it finds nothing."""

    def __init__(self, packages, script, known):
        self.packages, self.script, self.known = packages, script, known
        self.files, self.memory = open_files(), shared_memory()
        self.folder, self.path, self.temporary = os.getcwd(), list(sys.path), []
        self.done, self.why, self.culprits = [], None, set()
        self.is_silent, self.printed = False, 0
        self.found = set()  # by whoever looks for a module, also without an import of it

    def find_spec(self, name, path=None, target=None):
        spec, own = find_spec(name, path), self.beside_the_script(name)
        if spec:
            self.found.add(name)
        if spec and not self.packages.is_shared(spec):
            self.blame(f"a package imports {name}, which is the user's", modules_being_imported())
        elif own and (own.origin or not spec):
            self.blame(f"{name} lies beside the script as well", modules_being_imported())

    def beside_the_script(self, name):
        at_the_top = "." not in name and self.script.folder
        return find_spec(name, [self.script.folder]) if at_the_top else None

    def blame(self, why, modules):
        self.why = self.why or why
        self.culprits |= modules

    def import_all(self, names, may_print):
        """A name is `module`, or `module:part` for `from module import part`. Those of `may_print`
        come first in the script, so nothing has told Python to keep their warnings back."""
        Watched.begin()
        sys.meta_path.insert(0, self)
        make_folder, os.mkdir = os.mkdir, self.make_folder
        for name in names:
            self.is_silent = name not in may_print
            module, _, part = name.partition(":")
            if self.import_one(module) and part and not hasattr(sys.modules[module], part):
                self.import_one(f"{module}.{part}")
        if os.mkdir == self.make_folder:
            os.mkdir = make_folder
        sys.meta_path.remove(self)
        Watched.end()
        for name in OF_A_WORKER & Watched.read.keys():
            self.blame(f"an import has read {name}", Watched.read[name])
        if Watched.copied:
            self.blame("an import has copied all variables", Watched.copied - {""})

    def make_folder(self, path, *arguments, **options):
        """os.mkdir() while imports run."""
        sys.modules["posix"].mkdir(path, *arguments, **options)
        module = sys.modules.get("tempfile")
        if module and os.path.dirname(os.path.abspath(path)) == module.tempdir:
            self.temporary.append(path)

    def import_one(self, name):
        """False: there is no such module, or it is the user's, or it must not be shared."""
        if name in sys.modules:
            return True
        if not self.known.allows(name) or not self.is_there(name):
            return False
        before = set(sys.modules)
        try:
            __import__(name)
        except BaseException as error:
            self.blame(f"{name}: {type(error).__name__}: {error}", {name})
            return False
        self.done.append(name)
        for new in sys.modules.keys() - before:  # a finder of its own may have found it
            spec = getattr(sys.modules[new], "__spec__", None)
            is_file = spec and spec.origin and os.path.isfile(spec.origin)
            if is_file and not self.packages.is_shared(spec):
                self.blame(f"a package imports {new}, which is the user's", {name})
        self.look({name})
        return True

    def is_there(self, name):
        """Whether it is a package's module, and not the user's."""
        package = name.rpartition(".")[0]
        if package and not self.import_one(package):
            return False
        path = getattr(sys.modules[package], "__path__", []) if package else None
        spec, own = find_spec(name, path), self.beside_the_script(name)
        if not package and name in sys.builtin_module_names:
            return True
        return bool(spec and self.packages.is_shared(spec) and not (own and own.origin))

    def look(self, modules):
        """Looks for what an import has left. Workers would share it."""
        if has_threads() and not self.end_at_a_fork():
            self.blame("an import has started a thread", modules)
        if shared_memory() - self.memory:
            self.blame("an import has made memory that a fork shares", modules)
        if self.temporary:  # the first worker to end would take it from the others
            self.blame("an import has made a temporary folder", modules)
        if os.getcwd() != self.folder or sys.path[:len(self.path)] != self.path:
            self.blame("an import has changed the working folder or sys.path", modules)
        if is_subreaper():
            self.blame("an import has changed whose children orphans are", modules)
        for path in open_files() - self.files:
            if path not in ("/dev/null", "/dev/urandom"):
                self.blame(f"an import has left {path} open", modules)
        if children():
            self.blame("an import has started a process", modules)
        printed = sum(os.fstat(descriptor).st_size for descriptor in (1, 2))
        if self.is_silent and printed > self.printed:
            self.blame("an import has printed", modules)
        self.printed = printed

    @staticmethod
    def end_at_a_fork():
        """Whether these threads end before a fork, and begin anew when they are needed, as those of
        OpenBLAS."""
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return not has_threads()


class Unhurried:
    """The garbage collector rests while imports run. An import that switches it off, or sets its
    thresholds, is heeded."""

    def __enter__(self):
        self.collector = __import__("gc")
        self.thresholds = self.collector.get_threshold()
        self.collector.set_threshold(0, *self.thresholds[1:])

    def __exit__(self, *_):
        if self.collector.get_threshold() == (0, *self.thresholds[1:]):
            self.collector.set_threshold(*self.thresholds)


def is_subreaper():
    answer = ctypes.c_int()
    libc.prctl(37, ctypes.byref(answer))  # PR_GET_CHILD_SUBREAPER
    return bool(answer.value)


def is_observed():
    tools = getattr(sys, "monitoring", None)
    tools = map(tools.get_tool, range(6)) if tools else ()
    return bool(sys.gettrace() or sys.getprofile() or any(tools))


class ForkServer:
    def __init__(self, packages):
        if is_observed() or not hasattr(sys, "orig_argv"):
            refuse("a debugger or profiler is on, or Python is older than 3.10")
        # A process that waits on descriptor 3 is taken for a standby.
        copy = os.dup(agent.fileno())
        self.orders = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, copy)
        self.packages, self.script = packages, Script(packages)
        self.known = Known(self.script, packages)
        self.sharing = Sharing(packages, self.script, self.known)

    def begin(self):
        """Says whether there is something to share. If not, it learns what to share next time."""
        at_its_top = self.script.read()
        with Unhurried():
            self.sharing.import_all(self.known.names or at_its_top, at_its_top)
        if self.sharing.why:
            self.begin_anew()
        sys.modules["gc"].freeze()  # a child's collector would copy these objects' memory
        agent.sendall(b"w" if self.sharing.done else b"n")

    def begin_anew(self):
        """Once more, without what cannot be shared. Only then is it known what else can be."""
        self.known.excluded |= self.sharing.culprits
        self.known.save(self.known.names)
        if "again" in task or not self.sharing.culprits:  # noqa: F821
            refuse(self.sharing.why)
        end_children()
        libc.prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        os.chdir(self.sharing.folder)
        os.closerange(agent.fileno() + 1, MOST_FILES_OPEN)
        for printed in 1, 2:
            os.ftruncate(printed, 0)
            os.lseek(printed, 0, os.SEEK_SET)
        variables = {**original, b"DDPRUN_HOOK": original[b"DDPRUN_HOOK"] + b":again"}  # noqa: F821
        variables[b"DDPRUN_EXCLUDED"] = os.fsencode(" ".join(self.known.excluded))
        os.execve(sys.executable, sys.orig_argv, variables)

    def serve(self):
        """Does what the agent asks for. Returns in each child, which has a connection of its
        own."""
        while True:
            head, rights, *_ = self.orders.recvmsg(8, 1 << 13, 0x40000000)  # MSG_CMSG_CLOEXEC
            if not head:
                os._exit(0)
            text = receive(self.orders, int.from_bytes(head, "little"))
            word, *pages = os.fsdecode(text).split("\n")
            if word != "fork" and word != "fork in cgroup":
                self.learn(pages, word == "learn")
                continue
            descriptors = list(memoryview(rights[0][2]).cast("i"))
            if self.fork(descriptors, pages, word == "fork in cgroup"):
                return

    def fork(self, descriptors, pages, in_cgroup):
        """A process in between makes the children and ends. So the kernel gives them to the agent,
        their nearest subreaper."""
        ended, ends = os.pipe()  # its end is the end of a pipe
        between = os.fork()
        if between == 0:
            if in_cgroup:
                self.move_into(descriptors[0])
            for connection, page in zip(descriptors[in_cgroup:], pages):
                if os.fork() == 0:
                    os.close(ends)
                    self.begin_child(connection, page, descriptors, ended)
                    return True
            os._exit(0)
        for descriptor in (*descriptors, ended, ends):
            os.close(descriptor)
        os.waitpid(between, 0)
        return False

    @staticmethod
    def move_into(cgroup):
        try:
            processes = os.open("cgroup.procs", os.O_WRONLY, dir_fd=cgroup)
            os.write(processes, b"0")
            os.close(processes)
        except OSError:  # it is full or gone; the agent finds what is left without it
            pass

    def begin_child(self, connection, page, descriptors, ended):
        os.setsid()
        os.read(ended, 1)
        until = time.monotonic() + 5
        while os.getppid() != parent and time.monotonic() < until:  # noqa: F821
            os.sched_yield()  # its end is near
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
        if os.getppid() != parent:  # noqa: F821
            os._exit(1)
        self.orders.close()
        os.dup2(connection, agent.fileno(), inheritable=False)
        for descriptor in {*descriptors, ended}:
            os.close(descriptor)
        for target in 1, 2:  # what it prints from here on is its own
            printed, own = os.pread(target, 1 << 15, 0), os.memfd_create("ddprun-standby-output")
            os.write(own, printed)
            os.dup2(own, target)
            os.close(own)
        for at, entry in shown_variables():  # of a standby, no fork server any more
            if entry.startswith(b"DDPRUN_HOOK="):
                size = len(b":".join(entry.split(b":")[:2]))
                ctypes.memset(at + size, 0, len(entry) - size)
        os.environ["DDPRUN_PAGE"] = page

    @staticmethod
    def part_ways():
        """Makes anew the things that a fork copies, and that cold starts have each for itself.
        Python sees to `random`, `tempfile` and `ssl`."""
        numpy, processes = map(sys.modules.get, ("numpy.random", "multiprocessing.process"))
        threads = sys.modules.get("threading")
        if threads:
            threads.main_thread()._set_native_id()
        if numpy:
            numpy.seed()
        if processes:
            key = processes.AuthenticationString(os.urandom(32))
            processes._current_process._config["authkey"] = key
        if any(sys.modules[name]._is_in_bad_fork() for name in USED_IN_FORKS & sys.modules.keys()):
            server.known.excluded |= {"torch"}
            refused(set())
            refuse("an import has used a device")

    def note_imports(self, hook):
        """The first notes of a worker are those of its fork server, as if it had imported all of
        it. A standby that is no fork needs them."""
        if not hook.entries():
            hook.note(b"\0".join(b"+" + os.fsencode(name) for name in self.sharing.done))
            others = (sys.modules.keys() | self.sharing.found) - set(self.sharing.done)
            hook.note(b"\0".join(b"-" + os.fsencode(name) for name in others))

    def learn(self, pages, imports):
        """Remembers what all workers have imported by now, before they changed a variable.
        `imports`: for the next workers of this job, too."""
        (first, _), *others = notes = [self.notes_in(page) for page in pages]
        common = [name for name in first if all(name in names for names, _ in others)]
        self.sharing.memory = shared_memory()  # the pages are in it
        # The user's code sets them, and an import that is shared has seen them before.
        for name in set().union(*(changed for _, changed in notes)) & Watched.read.keys():
            self.sharing.blame(f"the script sets {name}, which an import reads", Watched.read[name])
        if imports and not self.sharing.why:
            with Unhurried():
                self.sharing.import_all(common, ())
        self.known.excluded |= self.sharing.culprits
        done = [*self.sharing.done, *(name for name in common if name not in sys.modules)]
        self.known.save([name for name in done if self.known.allows(name)])
        if self.sharing.why:
            refuse(self.sharing.why)
        agent.sendall(b"l")

    @staticmethod
    def notes_in(page):
        """The modules that a worker has imported before it changed a variable, and the names of
        those variables."""
        names, changed = {}, set()  # a dictionary keeps their order
        for entry in map(os.fsdecode, Page(page).entries()):  # noqa: F821
            if entry[0] == "=":
                changed.add(entry[1:].partition("=")[0])
            elif entry[0] == "+" and not changed:
                names[entry[1:]] = None
        return {} if "sys.path" in changed else names, changed


def refused(variables):
    """A child remembers what has made it unlike a cold start."""
    if Watched.copied:
        server.known.excluded |= Watched.copied - {""}
    for name in variables & Watched.read.keys():
        server.known.excluded |= Watched.read[name]
    server.known.save([name for name in server.sharing.done if server.known.allows(name)])


def shown_variables():
    """Those in /proc/<pid>/environ, with their addresses."""
    with open("/proc/self/stat") as file:
        at, end = map(int, file.read().rpartition(")")[2].split()[47:49])
    for entry in ctypes.string_at(at, end - at).split(b"\0"):
        yield at, entry
        at += len(entry) + 1


def became():
    """Shows the worker's variables. An entry keeps its place, since C code may point to it. Others
    go where the agent has left room."""
    values, room, size = dict(os.environ._data), 0, 0
    for at, entry in shown_variables():
        name, _, value = entry.partition(b"=")
        if name == b"DDPRUN_ROOM":
            room, size = at, len(entry)
        elif values.get(name) == value:
            del values[name]
        else:
            ctypes.memset(at, 0, len(entry))
    text = b"\0".join(name + b"=" + value for name, value in values.items())
    if len(text) <= size:
        ctypes.memmove(room, text.ljust(size, b"\0"), size)


os.environ.pop("DDPRUN_ROOM", None)
try:
    server = ForkServer(packages)  # noqa: F821
    server.begin()
except BaseException as error:
    refuse(f"{type(error).__name__}: {error}")
server.serve()
server.part_ways()
# It is the next worker of a rank: its own imports see what its predecessor has seen.
predecessors = receive_variables(agent.recv(8))
refuse_if_read(predecessors)
for variable, value in predecessors.items():
    set_variable(variable, value)
hook = Hook(os.environ["DDPRUN_PAGE"], packages)  # noqa: F821
server.note_imports(hook)
