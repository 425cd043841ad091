"""The witness: a thread of a worker that uses torch.distributed. It sleeps until the agent asks.
Then it writes where the main thread is, and which collectives it has called. sitecustomize.py
starts it. It imports nothing, since imports are noted: all that it needs comes with torch."""


# For people: the fields of the lines below.
HEAD = (
    "# frame\town or not\tfunction\tfile\tline",
    "# group\tname\tranks, * for all\tlast call\tlast completed\tnow in\toperation\tshapes",
)


C10D = "torch/distributed/distributed_c10d.py"  # of torch's calls of collectives


class Witness:
    FUTEX = {"x86_64": 202, "aarch64": 98}  # the system call's number

    def __init__(self, hook):
        self.page, self.shared, self.main = hook, hook.packages.shared, hook.main
        self.path = f"{hook.folder}/witness_{hook.rank}"
        self.call = self.FUTEX[os.uname().machine]
        self.asked = hook.words[hook.ASKED]
        self.sampler = sampler_of(hook)

    def serve(self):
        """Signals are the main thread's: they are blocked here."""
        import _signal
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            while True:
                self.wait_and_answer()
        except BaseException:
            self.page.words[self.page.WITNESS] = 0

    def wait_and_answer(self):
        # FUTEX_WAIT: until the word changes. The interpreter is free meanwhile.
        self.page.libc.syscall(self.call, self.page.asked_word, 0, self.asked & 0xFFFFFFFF,
                               self.until_next_sample())
        self.take_sample()
        asked = self.page.words[self.page.ASKED]
        if asked != self.asked:
            self.asked = asked
            try:
                self.answer(asked)
            except OSError:  # no space: data loaders fill it as well
                pass

    def until_next_sample(self):
        """A struct timespec; None: no time."""
        if not self.sampler:
            return None
        seconds = self.sampler.patience()
        return (self.page.c_long * 2)(int(seconds), int(seconds % 1 * 1e9))

    def take_sample(self):
        try:
            if self.sampler:
                self.sampler.take()
        except OSError:  # as below
            pass
        except Exception:  # a torch that it does not know
            self.sampler = None

    def answer(self, number):
        lines = [*HEAD, *self.stack(), *self.partner(), *self.groups_or_why(), "end"]
        with open(f"{self.path}.new", "w", errors="replace") as file:
            file.write("\n".join(lines) + "\n")
        os.rename(f"{self.path}.new", f"{self.path}.{number}")
        if os.path.exists(f"{self.path}.{number - 2}"):
            os.unlink(f"{self.path}.{number - 2}")

    def partner(self):
        """A send or a receive that blocks, which Gloo does not record. The stack has it."""
        frame = sys._current_frames().get(self.main)
        while frame and not frame.f_code.co_filename.endswith(C10D):
            frame = frame.f_back
        name = frame.f_code.co_name if frame else ""
        rank = frame.f_locals.get({"recv": "src", "send": "dst"}.get(name)) if frame else None
        if isinstance(rank, int):
            operation = {"recv": "a receive from", "send": "a send to"}[name]
            yield line("group", "point to point", rank, 1, 0, 1, f"{operation} rank {rank}", "")

    def groups_or_why(self):
        """A torch whose inside is another one than we know still has its stack told."""
        try:
            return list(self.groups())
        except Exception as error:
            return [line("no groups", f"{type(error).__name__}: {error}")]

    def stack(self):
        """The main thread's, from the innermost frame on. `own`: the user's file."""
        frame = sys._current_frames().get(self.main)
        for _ in range(64):
            if frame is None:
                return
            code = frame.f_code
            if code.co_filename.endswith(C10D):
                yield line("inside", code.co_name)
            shared = code.co_filename.startswith((*self.shared, "<frozen"))
            yield line("frame", "-" if shared else "own", code.co_name, code.co_filename,
                       frame.f_lineno or 0)
            frame = frame.f_back

    def groups(self):
        """How far the rank is in each process group, and the oldest call there that has not
        completed. torch's flight recorder knows it (torch 2.11, c10d/FlightRecorder.hpp)."""
        dumps = dumps_of_recorder()
        with open(f"{self.path}.trace", "wb") as file:
            file.write(max(dumps, key=len, default=b""))
        ranks = {name: ",".join(map(str, members)) for name, members in ranks_by_group().items()}
        size = max((members.count(",") for members in ranks.values()), default=0)
        for entry in self.positions(entries_of(dumps)):
            members = entry.get("ranks", ranks.get(entry["name"], ""))
            members = "*" if members.count(",") == size else members
            yield line("group", entry["name"], members, entry["enqueued"], entry["completed"],
                       entry["number"], entry["operation"], entry["shapes"])

    def positions(self, entries):
        """By group. A send or a receive counts for itself."""
        found = {}
        for entry in entries:
            name = str(entry["process_group"][0])
            if entry["is_p2p"]:
                partner = self.waits_for_partner(entry)
                if partner:
                    found.setdefault("point to point", partner)
                continue
            known, number = found.get(name), entry["collective_seq_id"]
            if known is None or known["done"]:
                known = found[name] = {
                    "name": name,
                    "number": number,
                    "operation": entry["profiling_name"].rpartition(":")[2].lstrip("_"),
                    "shapes": shapes(entry["input_sizes"]),
                    "done": entry["retired"],
                }
            known["enqueued"] = number
        for entry in found.values():
            if "done" in entry:
                entry["completed"] = entry["enqueued"] if entry["done"] else entry["number"] - 1
            yield entry

    def waits_for_partner(self, entry):
        """`send 0->1` and `recv 0<-1` wait for the rank at the end."""
        name = entry["profiling_name"].rpartition(":")[2]
        partner = name.replace("->", " ").replace("<-", " ").split()[-1:]
        if entry["retired"] or not partner or not partner[0].isdigit():
            return None
        return {"name": "point to point", "ranks": partner[0], "enqueued": 1, "completed": 0,
                "number": 1, "operation": name, "shapes": shapes(entry["input_sizes"])}


def dumps_of_recorder():
    """Dumps of torch's flight recorder, and of NCCL's."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    return [
        getattr(c10d, name)(True, False, False)
        for name in ("_dump_nccl_trace", "_dump_fr_trace") if hasattr(c10d, name)
    ]


def entries_of(dumps):
    return [
        entry for dump in dumps for entry in sys.modules["pickle"].loads(dump).get("entries", [])
    ]


def ranks_by_group():
    """The global ranks of each process group, by the recorder's name for it."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    return {} if not world else {
        world.pg_names[group]: tuple(members)
        for group, members in list(world.pg_group_ranks.items()) if group in world.pg_names
    }


def shapes(sizes):
    return "+".join("x".join(map(str, size)) or "1" for size in sizes[:4])


def line(*fields):
    return "\t".join(str(field).replace("\t", " ").replace("\n", " ") for field in fields)


def begin(hook):
    import _thread
    if hook.words[hook.WITNESS]:
        return  # none is wanted
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return  # the stack of a thread that runs cannot be walked
    witness = Witness(hook)
    hook.words[hook.WITNESS] = os.getpid()  # before the thread gets its turn
    try:
        _thread.start_new_thread(witness.serve, ())
    except RuntimeError:
        hook.words[hook.WITNESS] = 0
