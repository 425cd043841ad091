"""A standby: does its predecessor's imports, waits until the agent lets it go, and then becomes the
worker. sitecustomize.py runs it after imports.py, with its Hook. It refuses, and the agent starts
the worker cold, where it would not be what a cold start is."""


class Guard:
    """A finder that finds nothing. The user's files must run in the worker only, and imports must
    go its way."""

    def __init__(self, hook):
        self.hook, entries = hook, list(map(os.fsdecode, hook.entries()))
        self.users = {entry[1:] for entry in entries if entry[0] == "!"}
        self.known = {entry[1:] for entry in entries}

    def find_spec(self, name, path=None, target=None):
        spec = find_spec(name, path)
        if name in self.users or spec and not self.hook.packages.is_shared(spec):
            refuse(f"a package imports {name}, which is the user's")
        if spec and name not in self.known:
            refuse(f"{name} is imported here and not in the worker")


class Standby:
    def __init__(self, hook):
        self.hook, self.prepared, self.devices = hook, {}, open_devices()

    def import_all(self):
        guard = Guard(self.hook)
        Watched.begin()
        sys.meta_path.insert(0, guard)
        for entry in map(os.fsdecode, self.hook.entries()):
            if entry[0] == "=":
                self.prepare(*entry[1:].partition("="))
            elif entry[0] == "+":
                __import__(entry[1:])
        sys.meta_path.remove(guard)
        Watched.end()
        devices = open_devices() - self.devices
        if has_threads():
            refuse("an import has started a thread")
        if devices:
            refuse(f"an import has opened {min(devices)}")

    def prepare(self, name, given, value):
        """Does to the environment what the user's code did before its next import."""
        before = os.environ._data.get(os.fsencode(name))
        wanted = os.fsencode(value) if given else None
        if before != wanted:
            self.prepared[name] = wanted, before
            set_variable(name, wanted)

    def wait(self):
        """The variables that have changed since it was started. And stdout and stderr of the worker
        that it becomes."""
        agent.sendall(b"w%d" % os.getpid())
        head, rights, *_ = agent.recvmsg(8, 64)
        return receive_variables(head), memoryview(rights[0][2]).cast("i")

    def become(self, variables, output):
        refuse_if_read(variables)
        # A variable that an import has set stays, since the import would set it again. The user's
        # code sets again whatever it had set before an import.
        for name, (wanted, before) in self.prepared.items():
            if os.environ._data.get(os.fsencode(name)) == wanted:
                set_variable(name, before)
        for name, value in variables.items():
            set_variable(name, value)
        became()
        for target, given in enumerate(output, 1):
            printed = os.pread(target, 1 << 15, 0)  # so much fits a pipe whose reader is busy
            os.dup2(given, target)
            os.close(given)
            os.write(target, printed)
        sys.stdout.reconfigure(line_buffering=os.isatty(1))
        self.hook.environ = dict(os.environ._data)
        self.hook.count_steps()
        agent.sendall(b"g")
        agent.close()


try:
    standby = Standby(hook)  # noqa: F821
    standby.import_all()
    standby.become(*standby.wait())
except BaseException as error:
    refuse(f"{type(error).__name__}: {error}")
