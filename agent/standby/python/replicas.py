"""The check of replicas (--check-replicas). Every so many steps of an optimizer it hashes what DDP
keeps equal on all ranks. The agent reads the hashes from a file (agent/replicas/replica_file.h).
sitecustomize.py starts it. No rank waits for another one here, and no collective is called. It
imports nothing, since imports are noted: all that it needs comes with torch."""

torch, weakref = map(sys.modules.get, ("torch", "weakref"))
OPTIMIZERS = 4  # the most that are checked
MASK = 2 ** 64 - 1
FACTOR = 0x9E3779B97F4A7C15  # odd


def signed(number):
    """As torch's 64-bit integers have it."""
    number &= MASK
    return number - 2 ** 64 if number >> 63 else number


class Hash:
    """A 64-bit hash of a tensor's bits, by integers alone: all devices give the same.

    The bytes are taken as words of 64 bits. The upper half of a word is added to it, so that its
    upper bits are not lost. Then it is multiplied by an odd number of its place. All of it is
    summed modulo 2^64. A bit that flips changes its word by 2^j, or by 2^j + 2^(j-32) in the upper
    half. Neither is 0 modulo 2^64, and an odd number has an inverse there. So the hash differs for
    certain. The numbers are as random ones. Words that change places, or several bits that flip,
    cancel each other by chance alone, once in 2^32 at most."""

    WORDS = 1 << 18  # at a time: 2 MiB, and as much for the numbers

    def __init__(self):
        self.numbers = {}  # by device

    def numbers_on(self, device):
        if device not in self.numbers:
            number = torch.arange(1, self.WORDS + 1, dtype=torch.int64, device=device)
            number *= signed(FACTOR)
            number ^= number >> 30
            number *= signed(0xBF58476D1CE4E5B9)
            number ^= number >> 27
            self.numbers[device] = number | 1
        return self.numbers[device]

    def of(self, tensor):
        """A tensor of one element, on the same device: nobody has waited for it."""
        flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
        at_a_time, total = 8 * self.WORDS // flat.element_size(), None
        for begin in range(0, max(len(flat), 1), at_a_time):
            part = self.of_words(words_of(flat[begin:begin + at_a_time]))
            total = part if total is None else total * signed(FACTOR) + part
        return total

    def of_words(self, words):
        numbers = self.numbers_on(words.device)[:len(words)]
        mixed = words >> 32
        mixed += words
        return mixed.dot(numbers) if words.device.type == "cpu" else (mixed * numbers).sum()


def words_of(flat):
    """Without a copy where its place and its size allow it."""
    flat = flat.contiguous()
    size = flat.element_size()
    if flat.storage_offset() * size % 8 == 0 and len(flat) * size % 8 == 0:
        return flat.view(torch.int64)
    padded = torch.zeros((len(flat) * size + 7) // 8, dtype=torch.int64, device=flat.device)
    padded.view(torch.uint8)[:len(flat) * size].copy_(flat.view(torch.uint8))
    return padded


class Hashes:
    """Hashes of many tensors, on their way from the devices."""

    def __init__(self, hash, tensors):
        by_device = {}
        for at, tensor in enumerate(tensors):
            by_device.setdefault(tensor.device, []).append((at, hash.of(tensor)))
        self.count, self.parts = len(tensors), []
        for device, found in by_device.items():
            places, hashes = zip(*found)
            self.parts.append((places, *self.fetch(device, torch.stack(hashes))))

    @staticmethod
    def fetch(device, hashes):
        if device.type != "cuda":
            return hashes.cpu(), None
        copy = torch.empty(len(hashes), dtype=torch.int64, device="cpu", pin_memory=True)
        copy.copy_(hashes, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return copy, event

    def are_here(self):
        return all(event is None or event.query() for _, _, event in self.parts)

    def wait(self):
        found = [0] * self.count
        for places, hashes, event in self.parts:
            if event:
                event.synchronize()
            for at, value in zip(places, hashes.tolist()):
                found[at] = value & MASK
        return found


class Ring:
    """The file with the last checks of one optimizer. A check whose number is divisible by a higher
    power of two stays longer. So nodes that are read at unlike times have checks in common."""

    POWERS, OF_EACH, MAGIC = 9, 16, 0x31_53_41_43_49_4C_50_52
    SLOTS = POWERS * OF_EACH

    def __init__(self, path, names, ranks, key):
        text = "\n".join(names).encode(errors="replace")
        self.path, self.count = path, len(names)
        self.bodies = 64 + 16 * self.SLOTS
        at = self.bodies + 8 * self.count * self.SLOTS
        head = (self.MAGIC, self.count, len(ranks), key, at, len(text), self.SLOTS, 0)
        file = os.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, at + len(text) + 1)
            os.pwrite(file, packed(head), 0)
            os.pwrite(file, text, at)
        finally:
            os.close(file)
        os.rename(f"{path}.new", path)

    def write(self, step, number, hashes):
        """The step comes last: a reader finds all of it or none."""
        power = min((number & -number).bit_length() - 1, self.POWERS - 1)
        turn = number >> power if power == self.POWERS - 1 else number >> power + 1
        slot = power * self.OF_EACH + turn % self.OF_EACH
        total = 0
        for value in hashes:
            total = total * FACTOR + value & MASK
        file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(file, packed((0, total)), 64 + 16 * slot)
            os.pwrite(file, packed(hashes), self.bodies + 8 * self.count * slot)
            os.pwrite(file, packed((step,)), 64 + 16 * slot)
        finally:
            os.close(file)


def packed(numbers):
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def key_of(text):
    """A difference of one bit is a power of two, which no odd number divides."""
    return int.from_bytes(text.encode(errors="replace"), "little") % (2 ** 64 - 59)


def objects_of(kind):
    """All that there are. isinstance() would ask objects that answer with warnings."""
    return [one for one in sys.modules["gc"].get_objects() if issubclass(type(one), kind)]


class Names:
    """Names of parameters that no DDP module holds: the optimizer has none for them."""

    def __init__(self):
        self.known = {}  # by the parameter's id; a living one

    def of(self, parameter, otherwise):
        if id(parameter) not in self.known:
            self.look()
        return self.known.setdefault(id(parameter), otherwise)

    def look(self):
        """By the modules that there are. It takes some 50 ms, once."""
        kind = torch.nn.Module
        modules = objects_of(kind)
        inner = {id(child) for module in modules for child in module._modules.values()}
        for module in modules:
            if id(module) not in inner:
                for name, parameter in module.named_parameters():
                    self.known.setdefault(id(parameter), f"{type(module).__name__}.{name}")


class Replica:
    """The tensors of one optimizer that should be the same on all ranks of `ranks`."""

    def __init__(self, optimizer, modules, names):
        self.optimizer, self.find_name = optimizer, names
        self.names, self.tensors, self.ranks = [], [], ()
        places = {}  # a rank may have found the modules in another order
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                places.setdefault(id(parameter), len(places))
        firsts = [
            (min((places.get(id(one), len(places)) for one in module.parameters()), default=0), at)
            for at, module in enumerate(modules)
        ]
        touched = [modules[at] for first, at in sorted(firsts) if first < len(places)]
        groups = {tuple(torch.distributed.get_process_group_ranks(module.process_group))
                  for module in touched or modules}
        if len(groups) != 1:
            return  # none, or it is not known whose parameters should be the same
        self.ranks = groups.pop()
        held = self.add_modules(touched)
        self.add_left_out(held)

    def add_modules(self, modules):
        held = set()
        for at, module in enumerate(modules):
            delayed = {id(one) for one in getattr(module, "_delay_all_reduce_params", ())}
            for name, parameter in module.module.named_parameters():
                is_out = name in module.parameters_to_ignore and id(parameter) not in delayed
                self.add(f"module {at}: {name}" if at else name, parameter, is_out)
                held.add(id(parameter))
        return held

    def add_left_out(self, held):
        for at, group in enumerate(self.optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                given = group.get("param_names", ())
                if id(parameter) in held or is_split(parameter):
                    continue
                otherwise = f"parameter {place} of group {at}"
                name = given[place] if given else self.find_name(parameter, otherwise)
                self.add(name, parameter, True)

    def add(self, name, parameter, is_out):
        name += " (left out of DDP)" if is_out else ""
        self.add_tensor(name, parameter)
        if hasattr(self.optimizer, "consolidate_state_dict"):
            return  # ZeroRedundancyOptimizer: each rank has another part of the state
        state = self.optimizer.state.get(parameter, {})
        for key in sorted(key for key in state if isinstance(key, str)):
            value = state[key]
            if isinstance(value, (int, float)):
                value = torch.tensor(float(value), dtype=torch.float64, device="cpu")
            if isinstance(value, torch.Tensor):
                self.add_tensor(f"{key} of {name}", value)

    def add_tensor(self, name, tensor):
        tensor = getattr(tensor, "_local_tensor", tensor).detach()
        if tensor.layout == torch.strided and tensor.device.type != "meta":
            self.names.append(name)
            self.tensors.append(tensor)

    def layout(self):
        """Names, shapes and types, which each rank should have alike."""
        return [
            f"{name} {tuple(tensor.shape)} {tensor.dtype}"
            for name, tensor in zip(self.names, self.tensors)
        ]


def is_split(parameter):
    """Over ranks, on purpose: a DTensor, or FSDP's."""
    return any(hasattr(parameter, name) for name in ("_local_tensor", "_is_flat_param"))


class OptimizerCheck:
    """One optimizer: its steps so far, its file, and the check that has not come yet."""

    def __init__(self, path, ordinal, hash):
        self.path, self.ordinal, self.hash = f"{path}_{ordinal}", ordinal, hash
        self.steps, self.ring, self.layout, self.pending = 0, None, None, None
        self.next_check = 1

    def check(self, replica, number):
        self.finish()
        layout = replica.layout()
        if layout != self.layout:
            key = key_of(f"{self.ordinal} {replica.ranks}")
            self.ring = Ring(self.path, ["the list of tensors", *replica.names], replica.ranks, key)
            self.layout, self.layout_key = layout, key_of("\n".join(layout))
        self.pending = self.steps, number, Hashes(self.hash, replica.tensors)
        self.finish_if_here()

    def finish_if_here(self):
        if self.pending and self.pending[2].are_here():
            self.finish()

    def finish(self):
        if self.pending:
            (step, number, hashes), self.pending = self.pending, None
            self.ring.write(step, number, [self.layout_key, *hashes.wait()])


class Check:
    def __init__(self, hook, every):
        self.path, self.every = f"{hook.folder}/replicas_{hook.rank}", every
        self.compiles, self.modules, self.running = hook.compiles, [], []
        self.of_optimizer, self.optimizers = weakref.WeakKeyDictionary(), 0
        self.hash, self.names, self.told = Hash(), Names(), set()
        os.register_at_fork(after_in_child=self.retire)

    def retire(self):
        self.before_step = self.after_step = lambda *_: None

    def say(self, why):
        """Why something is not compared: the agent tells it."""
        if why not in self.told:
            self.told.add(why)
            with open(f"{self.path}_why.new", "w", errors="replace") as file:
                file.write("\n".join(sorted(self.told)) + "\n")
            os.rename(f"{self.path}_why.new", f"{self.path}_why")

    def before_step(self, optimizer):
        self.running.append(optimizer)

    def after_step(self, optimizer):
        """An optimizer inside another one is not done: ZeroRedundancyOptimizer has yet to send."""
        if optimizer not in self.running:
            return
        while self.running.pop() is not optimizer:
            pass
        if self.running:
            return
        try:
            with torch.no_grad():
                self.stepped(optimizer)
        except Exception as error:
            self.retire()
            self.say(f"the check has failed, {type(error).__name__}: {error}".replace("\n", " "))

    def stepped(self, optimizer):
        one = self.of_optimizer.get(optimizer)
        if one is None:
            one = OptimizerCheck(self.path, self.optimizers, self.hash)
            self.of_optimizer[optimizer] = one
            self.optimizers += 1
        one.steps += 1
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            # Nothing may be asked of the device meanwhile, not even for the last hashes.
            return self.say("a step that a CUDA graph records is not compared")
        one.finish_if_here()
        if one.steps % self.every == 0 and self.may_check(one):
            self.check(optimizer, one)

    def may_check(self, one):
        if one.ordinal >= OPTIMIZERS:
            self.say(f"{OPTIMIZERS} optimizers are compared, and this rank has more")
        elif torch._C._current_graph_task_id() != -1:
            self.say("an optimizer that steps inside of backward() is not compared")
        else:
            return True
        return False

    def check(self, optimizer, one):
        """A reason may pass. It is looked for again after twice as many steps: that takes long."""
        number = one.steps // self.every
        if number < one.next_check:
            return
        if one.ring is None or any(made() is None for made in self.modules):
            ddp = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
            self.modules = list(map(weakref.ref, objects_of(ddp)))
        modules = [module for module in (made() for made in self.modules) if module is not None]
        replica = Replica(optimizer, modules, self.names.of)
        if not modules:
            self.say("no module is under DistributedDataParallel, so nothing is compared")
        elif not replica.ranks:
            self.say("modules under DistributedDataParallel have unlike groups of ranks, and it is "
                     "not known to which an optimizer belongs: it is not compared")
        elif len(replica.ranks) == 1:
            self.say("the group of DistributedDataParallel has one rank: nothing is compared")
        else:
            return one.check(replica, number)
        one.next_check = 2 * number


def begin(hook, every):
    check = Check(hook, every)
    optimizers = sys.modules["torch.optim.optimizer"]
    optimizers.register_optimizer_step_pre_hook(
        lambda optimizer, *_: None if check.compiles() else check.before_step(optimizer))
    optimizers.register_optimizer_step_post_hook(
        lambda optimizer, *_: None if check.compiles() else check.after_step(optimizer))
