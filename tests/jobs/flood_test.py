"""Much output of many ranks at once, and a rank that is killed in the midst of it. Nothing is lost
and no line torn."""

import os
import re
import signal
import subprocess
import sys
import time

from machine import DEADLINE, state_of, wait_until
from support import JobTest, LoggedTest, main, sanitized, with_variables

# Writes LINES lines, after half of them one line of LONG bytes, all with write(2) itself. The count
# of written bytes is in a file that others see. So it is known even of a worker that was killed.
# The victim tells its pid in the midst of the long line.
FLOOD = """
import mmap, os, signal, sys
counts, fifo, lines, long, victim = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
rank = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a rank that is being stopped writes on
if victim >= 0:
    said = os.open(fifo, os.O_WRONLY)
    os.write(said, b"0\\n")
with open(counts, "r+b") as file:
    shared = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

def put(data):
    while data:
        wrote = os.write(1, data)
        shared[rank] += wrote
        data = data[wrote:]

def lines_of(numbers, step=50):
    for begin in range(numbers.start, numbers.stop, step):
        put(b"".join(b"line %d of rank %d, with a loss and an accuracy and more\\n" % (n, rank)
                     for n in range(begin, min(begin + step, numbers.stop))))

lines_of(range(0, lines // 2))
for part in range(0, long, 1 << 20):
    put(bytes([ord("a") + rank]) * min(1 << 20, long - part))
    if rank == victim and part == long // 2:
        os.write(said, b"%d\\n" % os.getpid())
while rank == victim:
    signal.pause()  # killed before it gets here, unless its test is late
put(b"\\n")
lines_of(range(lines // 2, lines))
"""
WORKERS = 4
VICTIM = 2


class Flood(LoggedTest):
    def setUp(self):
        super().setUp()
        self.lines, self.long_bytes = (20_000, 4 << 20) if sanitized() else (250_000, 64 << 20)
        self.counts = self.folder / "counts"
        self.counts.write_bytes(bytes(8 * WORKERS))

    def start_flood(self, victim):
        script = self.script(FLOOD, "flood.py")
        return self.start("--nproc-per-node", WORKERS, "-t", "1", "--log-dir", self.logs, "--shutdown-timeout=240", script,
                          self.counts, self.ready, self.lines, self.long_bytes, victim, env=with_variables(OMP_NUM_THREADS="1"))

    def record_screen(self, job):
        """Reads the console to its end; (bytes, seconds)."""
        begin = time.monotonic()
        total = 0
        with open(self.folder / "screen", "wb") as screen:
            while chunk := os.read(job.process.stdout.fileno(), 1 << 20):
                screen.write(chunk)
                total += len(chunk)
        return total, time.monotonic() - begin

    def check_screen(self):
        """Every line of the console is one line of one rank's file, in its order; all of them are
        there. Returns the files' sizes."""
        files = [open(self.attempt() / str(rank) / "stdout.log", "rb") for rank in range(WORKERS)]
        try:
            with open(self.folder / "screen", "rb") as screen:
                for number, line in enumerate(screen):
                    found = re.match(rb"\[default(\d)\]:", line)
                    self.assertTrue(found, f"console line {number} has no prefix: {line[:80]!r}")
                    wanted = files[int(found[1])].readline()
                    if not wanted.endswith(b"\n"):  # of the one that was killed
                        wanted += b"\n"
                    if line[found.end():] != wanted:
                        self.fail(f"console line {number} is torn: {line[:80]!r} ({len(line)} bytes), "
                                  f"in the file {wanted[:80]!r}")
            for rank, file in enumerate(files):
                self.assertEqual(file.read(), b"", f"rank {rank}: not on the console")
            return [file.tell() for file in files]
        finally:
            for file in files:
                file.close()

    def written(self):
        data = self.counts.read_bytes()
        return [int.from_bytes(data[at:at + 8], sys.byteorder) for at in range(0, len(data), 8)]

    def whole(self):
        """Bytes that a rank writes if nobody kills it."""
        text = len("line  of rank 0, with a loss and an accuracy and more\n") * self.lines
        return text + sum(len(str(n)) for n in range(self.lines)) + self.long_bytes + 1

    def test_every_byte_is_in_its_file_and_no_line_is_torn(self):
        job = self.start_flood(victim=-1)
        total, seconds = self.record_screen(job)
        self.assertEqual(job.process.wait(), 0, job.process.stderr.read())
        self.assertEqual(self.check_screen(), [self.whole()] * WORKERS)
        print(f"{WORKERS} workers, {self.lines} lines and one of {self.long_bytes >> 20} MiB each: "
              f"{total / seconds / 1e6:.0f} MB/s")

    def test_every_byte_of_a_killed_worker_is_in_its_file(self):
        job = self.start_flood(victim=VICTIM)
        self.read_while_flooding(job)
        sizes = self.check_screen()
        written = self.written()
        self.assertEqual(job.process.wait(), 1)
        self.assertGreater(written[VICTIM], self.long_bytes // 2)
        self.assertLess(written[VICTIM], self.whole())
        # Its last write may have been done and not yet counted.
        self.assertIn(sizes[VICTIM] - written[VICTIM], range(0, (1 << 20) + 1))
        for rank in {*range(WORKERS)} - {VICTIM}:
            self.assertEqual((sizes[rank], written[rank]), (self.whole(), self.whole()), rank)

    def read_while_flooding(self, job):
        """Kills the victim when it says that it is in the midst of its long line. Tells all others
        to write on. A child reads the console meanwhile, or the victim would never get there."""
        with open(self.folder / "screen", "wb") as screen:
            reader = subprocess.Popen(["cat"], stdin=job.process.stdout, stdout=screen)
        pid = max(map(int, self.heard(WORKERS + 1)))
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(reader.wait(), 0)


class UnauthenticatedPeer(JobTest):
    def test_who_writes_on_does_not_hold_the_end(self):
        """A process that ddprun cannot end may write to a worker's pipe. It may be in a dead
        network file system."""
        gate = self.fifo("gate")
        script = self.worker(f"#!/bin/sh\necho $$ > {{fifo}}\nread word < {gate}\n")
        job = self.start("-t", "1", script)
        (pid,) = map(int, self.heard(1))
        stdout = f"/proc/{pid}/fd/1"
        wait_until(lambda: os.readlink(stdout).startswith("pipe:"), "the end of the redirection to the named pipe")
        with open(stdout, "wb") as pipe:
            writers = [subprocess.Popen(["yes", "from outside"], stdout=pipe, stderr=subprocess.DEVNULL) for _ in range(4)]
        for writer in writers:
            self.addCleanup(writer.wait)
            self.addCleanup(writer.kill)
        os.setpriority(os.PRIO_PROCESS, job.agent(), 10)  # the writers are faster
        console = job.process.stdout.fileno()
        self.assertTrue(os.read(console, 1 << 16).startswith(b"[default0]:from outside"))
        with open(gate, "w") as file:
            file.write("go\n")
        # Only then is the console read: before, the writers' words are passed on for as long as the
        # worker lives.
        wait_until(lambda: state_of(pid) is None, "the worker's end")
        with subprocess.Popen(["wc", "-c"], stdin=console, stdout=subprocess.PIPE) as reader:
            self.assertEqual(job.process.wait(DEADLINE), 0)
            shown = int(reader.stdout.read())
        print(f"{shown} bytes were shown after the worker's end")
        # The pipe and the console hold so much. Text that is written meanwhile is not shown.
        self.assertLess(shown, 8 << 20)


if __name__ == "__main__":
    main()
