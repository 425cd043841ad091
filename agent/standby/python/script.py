"""The user's script and what it imports: read without running it, or known from its last run. The
fork server asks. sitecustomize.py runs this file before fork_server.py."""
import stat

ONLY_AST = 0x400  # ast.PyCF_ONLY_AST
SCRIPT_BYTES = 1 << 20
MOST_FILES = 50  # of the user's own that are read
MOST_FOLDERS = 200  # beside the script
MOST_SCRIPTS = 256  # that are known
# A package imports more when one of its parts is used: DistributedDataParallel, optimizers.
IMPORTED_LATER = {"torch": ("torch._dynamo", {"DistributedDataParallel", "optim", "compile"})}
# They read RANK while they are imported. Others are found out at their first import.
READ_RANK = {"lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics"}
# A value of these alone does nothing when it is computed.
PLAIN = {
    "Attribute", "BinOp", "BitOr", "Constant", "Dict", "List", "Load", "Name", "Subscript", "Tuple",
    "UnaryOp", "USub"
}
SETTERS = {"clear", "pop", "popitem", "setdefault", "update"}  # of os.environ


def nodes_of(tree):
    for field in tree._fields:
        value = getattr(tree, field, None)
        for inner in value if isinstance(value, list) else [value]:
            if hasattr(inner, "_fields"):
                yield inner
                yield from nodes_of(inner)


def kind_of(node):
    return type(node).__name__


def is_plain(node):
    return kind_of(node) in PLAIN and all(kind_of(inner) in PLAIN for inner in nodes_of(node))


def sets_variables(node):
    """Whether it may be `os.environ[…] = …`, `del`, a method that sets, or putenv()."""
    inner = getattr(node, "value", None)
    if kind_of(node) == "Subscript" and kind_of(node.ctx) == "Load":
        return False
    if kind_of(node) == "Attribute" and node.attr not in SETTERS:
        return node.attr in ("putenv", "unsetenv")
    return "environ" in (getattr(inner, "attr", None), getattr(inner, "id", None))


class Script:
    """The user's program: where it is, and what it imports at its top."""

    def __init__(self, packages):
        self.packages, self.names, self.seen, self.words = packages, [], set(), set()
        self.sets_variables = False
        by_name = sys.argv[:1] == ["-m"]
        self.name = self.name_of_module() if by_name else sys.argv[0]
        folder = os.getcwd() if by_name else os.path.dirname(os.path.realpath(self.name))
        # The user's files there come before those of packages.
        self.folder = None if getattr(sys.flags, "safe_path", False) else folder
        parts = os.path.join(folder, *self.name.split("."))
        places = [parts + ".py", parts + "/__main__.py"] if by_name else [self.name]
        self.path = next(filter(os.path.isfile, places), None)
        if self.path is None:
            refuse("its file is not found")
        self.packages_of_module = self.name.split(".")[:-1] if by_name else []

    @staticmethod
    def name_of_module():
        """The argument behind `-m`, or behind options with `m` as the last letter."""
        for option, name in zip(sys.orig_argv, sys.orig_argv[1:]):
            if option.startswith("-") and option.endswith("m") and option[1] != "-":
                return name
        return refuse("its module is not found")

    def read(self):
        """Returns what it imports before it does anything else."""
        package = ".".join(self.packages_of_module)
        if not package or self.imports(package, ()):
            self.read_file(self.path)
        for name, (later, words) in IMPORTED_LATER.items():
            is_used = any(one.split(":")[0].split(".")[0] == name for one in self.names)
            if is_used and words & self.words and not self.sets_variables:
                self.names.append(later)
        return self.names

    def read_file(self, path):
        """False: what follows its import may depend on what it does."""
        if path in self.seen or len(self.seen) >= MOST_FILES:
            return path in self.seen
        self.seen.add(path)
        with open(path, "rb") as file:
            text = file.read(SCRIPT_BYTES)
        try:
            tree = compile(text, path, "exec", ONLY_AST, dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return False
        for node in nodes_of(tree):
            self.sets_variables |= sets_variables(node)
            for field in "id", "attr", "name", "module":
                self.words |= set(str(getattr(node, field, "")).split("."))
        return all(map(self.read_statement, tree.body))

    def read_statement(self, node):
        """False: it does something, and imports behind it may depend on that."""
        kind = kind_of(node)
        if kind == "Import":
            return all(self.imports(alias.name, ()) for alias in node.names)
        if kind == "ImportFrom":
            named = [alias.name for alias in node.names if alias.name != "*"]
            return node.level == 0 and self.imports(node.module, named)
        if kind == "Try":
            handlers = [inner for handler in node.handlers for inner in handler.body]
            parts = (*node.body, *handlers, *node.orelse, *node.finalbody)
            return all(map(self.read_statement, parts))
        if kind == "Expr":
            return kind_of(node.value) == "Constant"
        if kind == "Assign":
            targets = {kind_of(target) for target in node.targets}
            return targets == {"Name"} and kind_of(node.value) == "Constant"
        return kind == "Pass" or kind == "FunctionDef" and self.is_harmless(node)

    def is_harmless(self, function):
        """Whether its definition does nothing. A decorator is a call."""
        inner = [*nodes_of(function.args), *([function.returns] if function.returns else [])]
        computed = [node for node in inner if kind_of(node) not in ("arg", "arguments")]
        return not function.decorator_list and all(map(is_plain, computed))

    def imports(self, name, parts):
        own = self.own_files(name, parts)
        if own is not None:
            return all(map(self.read_file, own))
        top = name.partition(".")[0]
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(top, None) for finder in finders)), None)
        if spec and not self.packages.is_shared(spec):
            return False  # the user's, by PYTHONPATH or a finder of an installed project
        self.names += [name, *(f"{name}:{part}" for part in parts)]
        return True

    def own_files(self, name, parts):
        """The user's files beside the script that this import runs. None if it runs none of
        them."""
        words, found = name.split("."), []
        top = os.path.join(self.folder, words[0]) if self.folder else ""
        if not self.folder or not (os.path.isfile(top + ".py") or self.is_own_package(top)):
            return None
        paths = [os.path.join(self.folder, *words[:end]) for end in range(1, len(words) + 1)]
        for path in paths + [os.path.join(paths[-1], part) for part in parts]:
            places = path + "/__init__.py", path + ".py"  # a package goes first
            found += list(filter(os.path.isfile, places))[:1]
        return found

    def is_own_package(self, path):
        """Whether it is a folder that goes before a package of its name. One without __init__.py
        goes behind it."""
        if not os.path.isdir(path) or os.path.isfile(path + "/__init__.py"):
            return os.path.isdir(path)
        spec = find_spec(os.path.basename(path), None)
        return not spec or not self.packages.is_shared(spec)


class Known:
    """The imports of the last run of the same script, in the user's cache folder. The file is
    believed as a list of names. It has the script's arguments, since names may depend on them. A
    name with `-` in front cannot be imported here, whatever they are."""

    def __init__(self, script, packages):
        at = os.stat(script.path)
        place = os.path.realpath(script.path), script.name, sys.executable
        installed = [
            name for folder in packages.shared if os.path.isdir(folder)
            for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info", ".pth"))
        ]
        facts = place, at.st_mtime_ns, at.st_size, sys.prefix, sys.hexversion, sorted(installed)
        facts += (self.files_beside(os.path.dirname(place[0])),)
        self.key, self.arguments = (
            [b"# %016x" % self.hash_of(fact) for fact in (facts, sys.argv[1:])]
        )
        home = os.environ.get("HOME")
        cache = os.environ.get("XDG_CACHE_HOME") or (home and home + "/.cache") or "/dev/null"
        self.folder = cache + "/ddprun/imports"
        self.path = f"{self.folder}/{self.hash_of(place):016x}"
        told = os.environ.pop("DDPRUN_EXCLUDED", "").split()
        self.names, self.excluded = [], READ_RANK | set(told)
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
            with open(os.open(self.path, flags), "rb") as file:
                self.read(file)
        except OSError:
            pass
        self.saved = list(self.names), set(self.excluded)

    @staticmethod
    def files_beside(folder):
        """The user's Python files in the script's folder and the folders in it, with their ages."""
        def python_files(place):
            try:
                return [entry for entry in os.scandir(place) if entry.name.endswith(".py")]
            except OSError:
                return []
        folders = [entry.path for entry in os.scandir(folder) if entry.is_dir()][:MOST_FOLDERS]
        entries = [entry for place in (folder, *folders) for entry in python_files(place)]
        return sorted((entry.path, entry.stat().st_mtime_ns) for entry in entries)

    @staticmethod
    def hash_of(facts):
        return int.from_bytes(sys.modules["_imp"].source_hash(0, repr(facts).encode()), "little")

    def read(self, file):
        about = os.fstat(file.fileno())
        is_own = about.st_uid == os.geteuid() and not about.st_mode & 0o022
        if not is_own or not stat.S_ISREG(about.st_mode):
            return
        key, arguments, *lines = file.read(SCRIPT_BYTES).split(b"\n") + [b""]
        if key != self.key:
            return
        for line in map(os.fsdecode, lines):
            if all(part.isidentifier() for part in line[1:].split(".")):
                is_known = line[0] == "+" and arguments == self.arguments
                self.names += [line[1:]] if is_known else []
                self.excluded |= {line[1:]} if line[0] == "-" else set()

    def save(self, names):
        if self.saved == (names, self.excluded) or not self.is_users_own():
            return
        lines = ["+" + name for name in names] + ["-" + name for name in sorted(self.excluded)]
        text = b"\n".join([self.key, self.arguments, *map(os.fsencode, lines), b""])
        new = f"{self.path}.{os.urandom(8).hex()}"
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text)
            os.replace(new, self.path)
            self.forget_the_oldest()
        except OSError:  # a home that cannot be written, or another job tidies up
            if os.path.exists(new):
                os.unlink(new)

    def is_users_own(self):
        """Root with a user's HOME shall leave nothing there."""
        folder = self.folder
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        return os.stat(folder).st_uid == os.geteuid()

    def forget_the_oldest(self):
        files = list(os.scandir(self.folder))
        if len(files) > MOST_SCRIPTS:
            files.sort(key=lambda file: file.stat().st_mtime)
            for file in files[:-MOST_SCRIPTS // 2]:
                os.unlink(file.path)

    def allows(self, name):
        parts = name.split(".")
        return not any(".".join(parts[:i + 1]) in self.excluded for i in range(len(parts)))
