"""What workers print: files, console, filters, folding. Nothing is lost and no line torn, whatever
happens. Only the standard library."""

import mmap
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time

from support import DDPRUN, DEADLINE, PRINT_ENV, JobTest, main, parse_env

QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}  # without torchrun's warning about it on stderr
SAY = "#!/bin/sh\necho out $RANK\necho err $RANK >&2\n"


class OutputTest(JobTest):
    def setUp(self):
        super().setUp()
        self.logs = self.folder / "logs"

    def attempt(self, number=0):
        (job,) = self.logs.glob("*_*")
        return job / f"attempt_{number}"

    def worker_file(self, rank, name, attempt=0):
        return (self.attempt(attempt) / str(rank) / name).read_text()

    def run_logged(self, *args, **options):
        """A job with its log folder; (stdout, stderr) as lines, in order of ranks."""
        env = options.pop("env", QUIET)
        code, out, err = self.run_job("--log-dir", self.logs, *args, env=env, **options)
        self.assertEqual(code, 0, err)
        return sorted(out.splitlines()), sorted(err.splitlines())


class Streams(OutputTest):
    def test_case_36_redirect(self):
        out, err = self.run_logged("--nproc-per-node=2", "-r", "3", "--rdzv-id=x", self.script(SAY))
        self.assertEqual((out, err), ([], []))
        self.assertRegex(self.attempt().parent.name, r"^x_.+")
        for rank in 0, 1:
            self.assertEqual(self.worker_file(rank, "stdout.log"), f"out {rank}\n")
            self.assertEqual(self.worker_file(rank, "stderr.log"), f"err {rank}\n")

    def test_case_37_tee(self):
        out, err = self.run_logged("-t", "3", "--role=trn", self.script(SAY))
        self.assertEqual((out, err), (["[trn0]:out 0"], ["[trn0]:err 0"]))
        self.assertEqual(self.worker_file(0, "stdout.log"), "out 0\n")
        self.assertEqual(self.worker_file(0, "stderr.log"), "err 0\n")

    def test_case_38_per_rank(self):
        out, err = self.run_logged("--nproc-per-node=2", "-r", "0:1,1:2", self.script(SAY))
        self.assertEqual((out, err), (["out 1"], ["err 0"]))
        self.assertEqual(self.worker_file(0, "stdout.log"), "out 0\n")
        self.assertEqual(self.worker_file(1, "stderr.log"), "err 1\n")

    def test_case_38_ranks_of_two_digits(self):
        out, _ = self.run_logged("--nproc-per-node=11", "-t", "10:3", "-r", "1", self.script(SAY))
        self.assertEqual(out, ["[default10]:out 10"])

    def test_case_39_ranks_kept_from_the_console(self):
        out, err = self.run_logged("--nproc-per-node=3", "-t", "1", "--local-ranks-filter=0,2",
                                   self.script(SAY))
        self.assertEqual(out, ["[default0]:out 0", "[default2]:out 2"])
        self.assertEqual(err, ["err 0", "err 2"])
        for rank in range(3):
            self.assertEqual(self.worker_file(rank, "stdout.log"), f"out {rank}\n")
        self.assertEqual(self.worker_file(1, "stderr.log"), "err 1\n")  # not lost silently

    def test_case_40_filtered_files(self):
        script = self.script("#!/bin/sh\necho an apple $RANK\necho a pear\necho apple >&2\n")
        out, _ = self.run_logged("--nproc-per-node=3", "-t", "3", "--local-ranks-filter=0,1",
                                 "--duplicate-stdout-filters=apple,plum", script)
        self.assertEqual(len(out), 4)
        filtered = (self.attempt() / "filtered_stdout.log").read_text().splitlines()
        self.assertEqual(sorted(filtered), ["[default0]:an apple 0", "[default1]:an apple 1"])
        self.assertFalse((self.attempt() / "filtered_stderr.log").exists())

    def test_case_40_redirected_streams_are_not_filtered(self):
        self.run_logged("-r", "3", "--duplicate-stderr-filters=err", self.script(SAY))
        self.assertEqual((self.attempt() / "filtered_stderr.log").read_text(), "")

    def test_case_41_prefix_template(self):
        script = self.script("#!/bin/sh\necho line\n")
        host = os.uname().nodename.split(".")[0]
        template = "--log-line-prefix-template=<${rank}|${hostname}> "
        out, _ = self.run_logged("-t", "1", template, script)
        self.assertEqual(out, [f"<0|{host}> line"])
        template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "$role_name$local_rank $restart ${other}:"}
        out, _ = self.run_logged("-t", "1", "--role=r", script, env={**QUIET, **template})
        self.assertEqual(out, ["r0 0 ${other}:line"])

    def test_case_42_no_line_is_lost_or_torn(self):
        script = self.script("#!/bin/sh\nprintf abc\nprintf 'def\\n'\nseq 100000\nprintf end\n")
        code, out, _ = self.run_job("-t", "1", "--log-dir", self.logs, script)
        self.assertEqual(code, 0)
        expected = ["abcdef", *map(str, range(1, 100001)), "end"]
        self.assertEqual(out.splitlines(), ["[default0]:" + line for line in expected])

    def test_case_43_dev_null(self):
        script = self.script(PRINT_ENV + "echo err >&2\n")
        for flags in ["-r", "3"], ["-t", "3"], []:
            code, out, err = self.run_job("--log-dir=/dev/null", *flags, script, env=QUIET)
            self.assertEqual(parse_env(out)["TORCHELASTIC_ERROR_FILE"], "")
            self.assertEqual((code, err), (0, "err\n"))

    def test_no_temporary_folder_is_left(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        env = {**os.environ, "TMPDIR": str(temporary)}
        for args in ["/bin/true"], ["/bin/false"], ["--max-restarts=1", "/bin/false"]:
            self.run_job(*args, env=env)
            self.assertEqual(os.listdir(temporary), [], args)

    def test_each_attempt_has_its_files(self):
        script = self.script("#!/bin/sh\necho try $TORCHELASTIC_RESTART_COUNT\n"
                             "exit $((1 - TORCHELASTIC_RESTART_COUNT))\n")
        out, _ = self.run_logged("-t", "1", "--max-restarts=1",
                                 "--log-line-prefix-template=${restart}:", script)
        self.assertEqual(out, ["0:try 0", "1:try 1"])
        for attempt in 0, 1:
            self.assertEqual(self.worker_file(0, "stdout.log", attempt), f"try {attempt}\n")

    def test_latest_leads_to_the_newest_job(self):
        self.run_logged("-r", "1", "--rdzv-id=first", self.script(SAY))
        self.run_logged("-r", "1", "--rdzv-id=second", self.script(SAY))
        self.assertRegex(os.readlink(self.logs / "latest"), "^second_")
        newest = self.logs / "latest" / "attempt_0" / "0" / "stdout.log"
        self.assertEqual(newest.read_text(), "out 0\n")


class Console(OutputTest):
    def test_fold_shows_once_what_all_ranks_say(self):
        script = self.script("#!/bin/sh\necho epoch 1\n[ $RANK = 1 ] && echo only me\n"
                             "echo epoch 2\n")
        code, out, err = self.run_job("--nproc-per-node=4", "-t", "1", "--fold", "--log-dir",
                                      self.logs, script, env=QUIET)
        self.assertEqual(code, 0, err)
        lines = out.splitlines()
        # Whoever starts later than the window says it alone; every rank says everything, in order.
        for rank in range(4):
            def by_this_rank(line):
                ranks = re.match(r"\[ranks ([\d,-]+)\] ", line)
                return line.startswith(f"[default{rank}]:") or (ranks and rank in numbers(ranks[1]))
            said = [re.sub(r"^\[[^]]*\]:? ?", "", line) for line in lines if by_this_rank(line)]
            self.assertEqual(said, ["epoch 1", *["only me"] * (rank == 1), "epoch 2"], out)
            self.assertEqual(self.worker_file(rank, "stdout.log").splitlines(), said)
        self.assertIn("[default1]:only me", lines)
        self.assertLess(len(lines), 9)

    def test_a_progress_bar_is_whole_in_the_file_and_its_last_state_on_the_console(self):
        script = self.script("#!/bin/sh\nfor i in 1 2 3 4; do printf '\\r%s of 4' $i >&2; done\n"
                             "echo >&2\n")
        code, _, err = self.run_job("-t", "2", "--log-dir", self.logs, script)
        self.assertEqual(code, 0)
        self.assertEqual((self.attempt() / "0" / "stderr.log").read_bytes(),
                         b"\r1 of 4\r2 of 4\r3 of 4\r4 of 4\n")
        self.assertEqual(err.splitlines()[-1], "[default0]:4 of 4")

    def test_bytes_that_are_no_text_are_whole_in_the_file(self):
        script = self.script("#!/bin/sh\nprintf 'a\\377z\\n'\n")
        code, out, _ = self.run_job("-t", "1", "--log-dir", self.logs, script)
        self.assertEqual((code, out), (0, "[default0]:a\ufffdz\n"))
        self.assertEqual((self.attempt() / "0" / "stdout.log").read_bytes(), b"a\xffz\n")

    def test_stderr_that_nobody_asked_for_is_passed_on_byte_for_byte(self):
        """In a batch job stderr is no terminal: it passes through the agent, which keeps its end."""
        payload = bytes(range(256)) * 4000 + b"no newline"
        (self.folder / "payload").write_bytes(payload)
        script = self.script(f"#!/bin/sh\ncat {self.folder}/payload >&2\n")
        got = subprocess.run([DDPRUN, script], env=QUIET, stdin=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, check=True)
        self.assertEqual(got.stderr, payload)

    def test_the_report_begins_a_line_and_quotes_the_end_of_stderr(self):
        script = self.script("#!/bin/sh\nprintf 'first\\nlast words' >&2\nexit 3\n")
        code, _, err = self.run_job(script, env=QUIET)
        self.assertEqual((code, err.splitlines()[:2]), (1, ["first", "last words"]))
        self.assertEqual(len(re.findall(r"(?m)^.*last words$", err)), 2, err)

    def test_on_a_terminal_workers_see_the_terminal(self):
        leader, terminal = pty.openpty()
        script = self.script("#!/bin/sh\ntest -t 1 && test -t 2 && echo both\n")
        process = subprocess.Popen([DDPRUN, "--quiet", script], env=QUIET,
                                   stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal)
        os.close(terminal)
        self.assertEqual(os.read(leader, 100), b"both\r\n")
        self.assertEqual(process.wait(), 0)
        os.close(leader)


    def test_a_reader_that_comes_late_gets_everything(self):
        script = self.script("#!/bin/sh\nseq 20000 >&2\nexit 3\n")
        reader, writer = os.pipe()
        process = subprocess.Popen([DDPRUN, "-t", "2", "--log-dir", self.logs, script], env=QUIET,
                                   stdin=subprocess.DEVNULL, stderr=writer)
        os.close(writer)
        self.assertEqual(process.wait(DEADLINE), 1)  # nobody has read anything yet
        with open(reader, encoding="utf-8") as stderr:
            lines = stderr.read().splitlines()
        self.assertEqual(lines[:20000], [f"[default0]:{n}" for n in range(1, 20001)])
        self.assertIn("Root Cause (first observed failure):", lines)

    def test_a_reader_that_pauses_does_not_keep_the_agent_from_restarting(self):
        script = self.script("#!/bin/sh\necho $TORCHELASTIC_RESTART_COUNT >$1\nexit 3\n")
        ready = self.fifo()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(writer, b"." * 4096)
        os.set_blocking(writer, True)
        process = subprocess.Popen([DDPRUN, "--max-restarts=1", script, ready],
                                   env={**QUIET, "LOGLEVEL": "INFO"}, stdin=subprocess.DEVNULL,
                                   stderr=writer)
        os.close(writer)
        self.assertEqual(self.read_lines(ready, 2), ["0", "1"])
        with open(reader, encoding="utf-8") as stderr:
            text = stderr.read()
        self.assertEqual(process.wait(DEADLINE), 1)
        self.assertEqual(text.count("failed (exitcode: 3)"), 2, text)

    def test_stdout_and_stderr_of_one_file_keep_their_order(self):
        script = self.script("#!/bin/sh\nfor i in $(seq 500); do echo $i; echo err $i >&2; done\n")
        with open(self.folder / "job.log", "w+", encoding="utf-8") as log:
            subprocess.run([DDPRUN, script], env=QUIET, stdout=log, stderr=log, check=True)
            log.seek(0)
            self.assertEqual(log.read(), "".join(f"{i}\nerr {i}\n" for i in range(1, 501)))

    def test_a_file_size_limit_ends_neither_job_nor_worker(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        script = self.script("#!/bin/sh\ngrep SigIgn /proc/self/status >&2\nseq 100000\n")
        code, out, err = self.run_job("-t", "1", "--log-dir", self.logs, script, env=QUIET,
                                      preexec_fn=limit)
        self.assertEqual((code, out.splitlines()[-1]), (0, "[default0]:100000"), err)
        self.assertEqual(err.count("File too large; what cannot be written is missing"), 1, err)
        ignored = int(re.search(r"SigIgn:\s*([0-9a-f]+)", err)[1], 16)
        self.assertEqual(ignored >> (signal.SIGXFSZ - 1) & 1, 0, err)


def numbers(ranges):
    """"0-2,5" as {0, 1, 2, 5}."""
    found = set()
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


# Writes LINES lines, after half of them one line of LONG bytes, all with write(2) itself. How many
# bytes have been written is in a file that others see, so that it is known even of a worker that was
# killed. The victim tells its pid in the midst of the long line.
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
    if rank == victim and part >= long // 2:
        os.write(said, b"%d\\n" % os.getpid())
        victim = -1
put(b"\\n")
lines_of(range(lines // 2, lines))
"""
WORKERS = 4
VICTIM = 2


class Flood(OutputTest):
    """Much output of many ranks at once, and a rank that is killed in the midst of it."""

    def setUp(self):
        super().setUp()
        with open(DDPRUN, "rb") as file:
            program = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            sanitized = program.find(b"__asan_init") >= 0 or program.find(b"__tsan_init") >= 0
        self.lines, self.long_bytes = (20_000, 4 << 20) if sanitized else (250_000, 64 << 20)
        self.counts = self.folder / "counts"
        self.counts.write_bytes(bytes(8 * WORKERS))

    def start_flood(self, victim):
        script = self.script(FLOOD, "flood.py")
        self.fifo("midst")
        return self.start("--nproc-per-node", WORKERS, "-t", "1", "--log-dir", self.logs, script,
                          self.counts, self.folder / "midst", self.lines, self.long_bytes, victim,
                          env={**QUIET, "PYTHON_EXEC": sys.executable})

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
        """Kills the victim when it says that it is in the midst of its long line, and all others that
        they write on. A child reads the console meanwhile, or the victim would never get there."""
        with open(self.folder / "screen", "wb") as screen:
            reader = subprocess.Popen(["cat"], stdin=job.process.stdout, stdout=screen)
        pid = max(map(int, self.read_lines(self.folder / "midst", WORKERS + 1)))
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(reader.wait(), 0)


if __name__ == "__main__":
    main()
