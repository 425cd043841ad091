"""Samples of a rank's steps: how long they are, and when it calls collectives in them. The witness
takes them now and then, beside the main thread. The agent reads them
(agent/stragglers/step_file.h). It imports nothing, since imports are noted: all that it needs comes
with torch."""

DEFAULT_EVERY = 20  # seconds


class StepSampler:
    CALLS = 16  # of a step, the most that are told
    LEAST = 8  # steps in a sample
    LEFT_OUT = 2  # the longest ones: a checkpoint is no sign of a slow rank

    def __init__(self, hook, every):
        self.hook, self.every, self.time = hook, every, sys.modules["time"]
        self.path = f"{hook.folder}/steps_{hook.rank}"
        self.number = self.first = 0  # the samples so far; the last step of the last one
        self.waited, self.since = self.cpu_wait(), hook.clock()
        self.plan()

    def plan(self):
        """At whole multiples of the time of day. So all ranks are sampled at once, and the samples
        are of the same steps."""
        self.due = hook_seconds(self.hook) + self.every - self.time.time() % self.every

    def patience(self):
        """Seconds until take() has something to do."""
        return max(self.due - hook_seconds(self.hook), 0)

    def take(self):
        if self.patience() > 0:
            return
        self.plan()
        done = self.hook.words[self.hook.STEPS]
        if done - self.first >= self.LEAST:
            sample = self.sample(list(self.hook.ends), done)
            self.first = done
            if sample:
                self.write(sample)

    def write(self, sample):
        self.number += 1
        with open(f"{self.path}.new", "w") as file:
            file.write(line(self.number, *sample) + "\n")
        os.rename(f"{self.path}.new", self.path)

    def sample(self, ends, done):
        """As a line of the file. None: there are too few steps."""
        group, members, times, known_since = self.calls()
        by_calls = {}
        for length, called in self.steps(ends, done, times, known_since):
            by_calls.setdefault(len(called), []).append((length, called))
        # If two optimizers step in turn, the second may have no calls before it.
        calls = max(filter(None, by_calls), key=lambda one: (len(by_calls[one]), one), default=0)
        steps = sorted(by_calls.get(calls, ()))[:-self.LEFT_OUT]
        if len(steps) < self.LEAST - self.LEFT_OUT:
            return None
        means = [sum(called[at] for _, called in steps) // len(steps) for at in self.chosen(calls)]
        return (group, members, len(steps), calls,
                sum(length for length, _ in steps) // len(steps) // 1000, self.share_of_cpu_wait(),
                *self.spread(by_calls[calls]), ",".join(str(mean // 1000) for mean in means))

    def spread(self, steps):
        """The percentiles 50 and 99 of the steps' lengths, then 50, 97 and 99 of their own times.
        These end at the last call. In microseconds; the longest steps count here."""
        lengths = sorted(length // 1000 for length, _ in steps)
        owns = sorted((called[-1] if called else length) // 1000 for length, called in steps)
        return [lengths[self.place(lengths, 50)], lengths[self.place(lengths, 99)],
                *(owns[self.place(owns, share)] for share in (50, 97, 99))]

    @staticmethod
    def place(sorted_times, percent):
        return -(-len(sorted_times) * percent // 100) - 1

    def steps(self, ends, done, times, known_since):
        """Each step's length, and its calls from its beginning on, in nanoseconds."""
        at = 0
        for step in range(max(self.first, done - len(ends) + 1) + 1, done + 1):
            began, ended = ends[(step - 1) % len(ends)], ends[step % len(ends)]
            if not max(known_since, 1) <= began < ended:
                continue
            while at < len(times) and times[at] < began:
                at += 1
            called = []
            while at < len(times) and times[at] < ended:
                called.append(times[at] - began)
                at += 1
            yield ended - began, called

    def chosen(self, calls):
        """The places of the calls that are told, of so many: evenly, and the last one."""
        told = min(calls, self.CALLS)
        return [-(-number * calls // told) - 1 for number in range(1, told + 1)]

    def calls(self):
        """The process group with the most calls, its size, and when they were, in the time of the
        hook's clock. And since when all are known: the recorder forgets the oldest."""
        entries = [one for one in entries_of(dumps_of_recorder()) if not one["is_p2p"]]
        ahead = self.time.time_ns() - self.hook.clock()  # the recorder has the time of day
        by_group = {}
        for entry in entries:
            name = str(entry["process_group"][0])
            by_group.setdefault(name, []).append(entry["time_created_ns"] - ahead)
        if not by_group:
            return 0, int(os.environ["WORLD_SIZE"]), [], 0
        busiest = max(sorted(by_group), key=lambda name: len(by_group[name]))
        members = ranks_by_group().get(busiest, ())
        times = sorted(by_group[busiest])
        is_all = entries[0].get("record_id", 1) == 0
        return key_of_ranks(members), len(members), times, 0 if is_all else times[0]

    def share_of_cpu_wait(self):
        """Thousandths of the time since the last sample that the main thread waited for a CPU."""
        waited, now = self.cpu_wait(), self.hook.clock()
        share = (waited - self.waited) * 1000 // max(now - self.since, 1)
        self.waited, self.since = waited, now
        return min(max(share, 0), 1000)

    def cpu_wait(self):
        """That of the main thread, in nanoseconds (proc(5), schedstat)."""
        try:
            with open(f"/proc/{os.getpid()}/schedstat") as file:
                return int(file.read().split()[1])
        except (OSError, ValueError, IndexError):  # not in each kernel
            return 0


def hook_seconds(hook):
    return hook.clock() / 1e9


def key_of_ranks(ranks):
    text = ",".join(map(str, ranks))
    return int.from_bytes(text.encode(), "little") % (2 ** 64 - 59)


def sampler_of(hook):
    """None: no samples are wanted (0), or can be taken."""
    wanted = os.environ.get("DDPRUN_STRAGGLER_WINDOW", "")
    every = int(wanted) if wanted.isdigit() and int(wanted) <= 3600 else DEFAULT_EVERY
    return StepSampler(hook, every) if every and "time" in sys.modules else None
