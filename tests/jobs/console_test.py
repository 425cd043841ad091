"""The console: the workers' streams as they are, folded, read late or never; and ddprun's own
words."""

import json
import os
import pty
import re
import resource
import select
import signal
import socket
import subprocess
import threading

from machine import DEADLINE, free_port, signal_waits, wait_until
from support import DDPRUN, SLEEPER, Job, JobTest, LoggedTest, main, with_variables

# Less than what nobody's reading costs (console.h, kFlushLimit) and than a grace, which are 30 s.
SOON_S = 20
QUIET = with_variables(OMP_NUM_THREADS="1")  # without torchrun's warning about it on stderr
STATES = "RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "SUCCEEDED"

FLOOD = """#!/bin/sh
trap 'exit 0' TERM
echo $RANK > {fifo}
while :; do echo a line of some length that a reader who pauses does not read; done
"""
# Once all buffers are full, that worker waits in its echo and cannot act on a signal. It is killed
# after the grace.
ENDS_BLOCKED = "--shutdown-timeout=1"


class Console(LoggedTest):
    def test_fold_shows_once_what_all_ranks_say(self):
        gate = self.fifo("gate")
        script = self.worker("#!/bin/sh\necho $RANK > {fifo}\nread word < %s\n" % gate +
                             "echo epoch 1\n[ $RANK = 1 ] && echo only me\necho epoch 2\necho said > {fifo}\n")
        job = self.start("--nproc-per-node=4", "-t", "1", "--fold", "--log-dir", self.logs, script, env=QUIET)
        self.heard(4)
        agent = job.agent()
        os.kill(agent, signal.SIGSTOP)  # it then reads at once what they said, however far apart
        with open(gate, "w") as file:
            file.write("go\n" * 4)
            file.flush()
            self.heard(4)
            os.kill(agent, signal.SIGCONT)
            code, out, err = job.finish()
        job.wait_gone()
        self.assertEqual(code, 0, err)
        lines = out.splitlines()
        # A rank that is later than the window says it alone; every rank says everything, in order.
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
        _, err = self.say("-t", "2", text="#!/bin/sh\nfor i in 1 2 3 4; do printf '\\r%s of 4' $i >&2; done\necho >&2\n")
        self.assertEqual((self.attempt() / "0" / "stderr.log").read_bytes(), b"\r1 of 4\r2 of 4\r3 of 4\r4 of 4\n")
        self.assertEqual(err.splitlines()[-1], "[default0]:4 of 4")

    def test_bytes_that_are_no_text_are_whole_in_the_file(self):
        out, _ = self.say("-t", "1", text="#!/bin/sh\nprintf 'a\\377z\\n'\n")
        self.assertEqual(out, "[default0]:a\ufffdz\n")
        self.assertEqual((self.attempt() / "0" / "stdout.log").read_bytes(), b"a\xffz\n")

    def test_stderr_that_nobody_asked_for_is_passed_on_byte_for_byte(self):
        """In a batch job stderr is no terminal: it passes through the agent, which keeps its
        end."""
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
        shown = b""
        while not shown.endswith(b"\n"):  # a terminal may give a line in two parts
            shown += os.read(leader, 100)
        self.assertEqual(shown, b"both\r\n")
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
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(writer, b"." * 4096)
        os.set_blocking(writer, True)
        process = subprocess.Popen([DDPRUN, "--max-restarts=1", script, self.ready],
                                   env={**QUIET, "LOGLEVEL": "INFO"}, stdin=subprocess.DEVNULL,
                                   stderr=writer)
        os.close(writer)
        self.assertEqual(self.heard(2), ["0", "1"])
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
        self.assertEqual(err.count("File too large; raise the limit of a file's size: `ulimit -f` (64 KiB now); what"), 1, err)
        ignored = int(re.search(r"SigIgn:\s*([0-9a-f]+)", err)[1], 16)
        self.assertEqual(ignored >> (signal.SIGXFSZ - 1) & 1, 0, err)

    def test_a_reader_that_stalls_does_not_keep_a_job_from_being_ended(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        script = self.worker("#!/bin/sh\nhead -c 1000000 /dev/zero\necho 0 > {fifo}\n")
        process = subprocess.Popen([DDPRUN, "-t", "3", f"--log-dir={self.folder}", script], stdin=subprocess.DEVNULL,
                                   stdout=writer, stderr=writer)
        os.close(writer)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.heard(1)
        agent = Job.children_of(process.pid)[0]
        wait_until(lambda: not Job.has_children(agent), "the end of the worker")
        with self.assertRaises(subprocess.TimeoutExpired, msg="nobody reads: it waits"):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(SOON_S), 0)


def numbers(ranges):
    """"0-2,5" as {0, 1, 2, 5}."""
    found = set()
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


class OwnWords(JobTest):
    def test_quiet(self):
        script = self.script("#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 1\n")
        flags = "--nproc-per-node=2", "--max-restarts=1"
        code, _, err = self.run_job(*flags, script, env=with_variables())
        self.assertEqual(code, 0)
        self.assertRegex(err, r"OMP_NUM_THREADS")
        self.assertRegex(err, r"(?m)^ddprun: .*; restart 1 of 1$")
        code, out, err = self.run_job("--quiet", *flags, script, env=with_variables())
        self.assertEqual((code, out, err), (0, "", ""))

    def test_quiet_keeps_the_report(self):
        code, _, err = self.run_job("--quiet", self.script("#!/bin/sh\nexit 3\n"))
        self.assertEqual(code, 1)
        self.assertRegex(self.cause(err), r"exitcode +: 3 ")

    def test_at_most_five_lines_of_its_own_and_what_they_cost(self):
        code, _, err = self.run_job("--max-restarts=20", self.script(
            "#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 20\n"))
        self.assertEqual(code, 0)
        costs = re.findall(r"^ddprun: detected \d\.\d{3} s, stopped \d\.\d{3} s, re-formed \d\.\d{3} s$", err, re.M)
        self.assertEqual(len(costs), 5, err)
        self.assertLessEqual(len(err.splitlines()) - len(costs), 5, err)

    def test_a_terminal_is_told_world_and_master(self):
        job, leader = self.on_a_terminal("--nproc-per-node=2", self.worker("#!/bin/sh\nexit 0\n"))
        shown = self.read_until(leader, "master 127.0.0.1:")
        self.assertIn("ddprun: 2 workers on 1 node, master 127.0.0.1:", shown)
        self.assertEqual(job.finish()[0], 0)

    def test_a_terminal_sees_whom_the_job_waits_for(self):
        job, leader = self.on_a_terminal("--nnodes=2", "--rdzv-backend=c10d",
                                         f"--rdzv-endpoint=127.0.0.1:{free_port()}", "/bin/true")
        shown = self.read_until(leader, "have 1 of 2 nodes, giving up in 5")
        self.assertIn("ddprun: waiting at 127.0.0.1:", shown)
        self.assertNotIn("DDPRUN_TOKEN", shown)  # no other host reaches it
        job.process.send_signal(signal.SIGTERM)
        job.finish()

    def test_a_terminal_is_told_that_the_job_has_no_token(self):
        job, leader = self.on_a_terminal("--nnodes=2", "--rdzv-backend=c10d",
                                         f"--rdzv-endpoint=localhost:{free_port()}", "/bin/true")
        self.read_until(leader, "no DDPRUN_TOKEN is set")
        job.process.send_signal(signal.SIGTERM)
        job.finish()

    def events(self, *args):
        code, _, err = self.run_job("--event-log-handler=console", "--rdzv-id=job", *args)
        lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        for line in lines:
            self.assertEqual(line["timestamp"], 0)
            self.assertEqual(line["metadata"]["run_id"], "job")
            state = line["metadata"]["state"]
            self.assertEqual(line["name"], f"torchelastic.worker.status.{state}")
        return code, [(line["source"], line["metadata"]["state"]) for line in lines], lines

    def test_events_of_a_job_that_ends_well(self):
        code, states, lines = self.events("--role=r", "/bin/true")
        self.assertEqual(code, 0)
        self.assertEqual([state for source, state in states if source == "AGENT"], [*STATES])
        (worker,) = [line["metadata"] for line in lines if line["source"] == "WORKER"]
        self.assertEqual([worker[name] for name in ("state", "global_rank", "local_rank", "role")],
                         ["SUCCEEDED", 0, [0], "r"])

    def test_events_of_a_job_that_fails(self):
        script = self.script("#!/bin/sh\ntest $RANK = 1 && exit 7\nexec sleep 1000\n")
        code, states, lines = self.events("--nproc-per-node=2", "--max-restarts=1", script)
        self.assertEqual(code, 1)
        agent = [state for source, state in states if source == "AGENT"]
        self.assertEqual(agent, [*STATES[:3], *STATES[:3], "FAILED"])
        failed = [line["metadata"] for line in lines
                  if line["source"] == "WORKER" and line["metadata"]["global_rank"] == 1]
        self.assertEqual([one["raw_error"] for one in failed], ["exitcode 7"] * 2)
        self.assertEqual([one["agent_restarts"] for one in failed], [0, 1])


class StalledSocket(JobTest):
    """Standard output is a socket (node's child_process, systemd's journal) and its reader
    pauses."""

    def start_on_socket(self, *args):
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        process = subprocess.Popen([DDPRUN, *map(str, args)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
        self.console = theirs
        self.addCleanup(theirs.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, ours

    def wait_for_stall(self):
        """Until the socket is full: what is written now waits for its reader."""
        wait_until(lambda: not select.select([], [self.console], [], 0)[1], "a full socket")

    def test_it_is_left_as_it_was(self):
        """O_NONBLOCK belongs to the open file, which workers and the user's shell share."""
        flood = self.worker(FLOOD.replace("while", "test $RANK = 1 && exec seq 200000\nwhile"))
        process, ours = self.start_on_socket("--nproc-per-node=2", "-t", "0:1", f"--log-dir={self.folder}", flood)
        self.heard(2)
        self.wait_for_stall()
        self.assertTrue(os.get_blocking(self.console.fileno()))
        read = []
        reader = threading.Thread(target=lambda: read.extend(iter(lambda: ours.recv(1 << 16), b"")))
        reader.start()
        agent = Job.children_of(process.pid)[0]
        wait_until(lambda: len(Job.children_of(agent)) == 1, "the end of rank 1, which wrote to the socket itself")
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(SOON_S), 1)
        self.assertTrue(os.get_blocking(self.console.fileno()))
        self.console.close()
        reader.join()
        self.assertNotIn(b"FAILED", b"".join(read))

    def test_heartbeats_go_on(self):
        """A node whose console stalls stays in its job: the others hear its heartbeats."""
        flags = "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job"
        other = self.start(*flags, self.worker(SLEEPER, "sleeper.sh"))
        process, _ = self.start_on_socket(*flags, "-t", "3", f"--log-dir={self.folder}", ENDS_BLOCKED, self.worker(FLOOD))
        self.heard(2)
        self.wait_for_stall()
        with self.assertRaises(subprocess.TimeoutExpired):
            other.process.wait(5)  # the span that is tested: silence is noticed after 3 to 4 s
        agent = Job.children_of(process.pid)[0]
        self.stop(other)
        wait_until(lambda: not Job.has_children(agent), "the end of the worker here")
        process.send_signal(signal.SIGTERM)  # nobody reads: do not wait for it
        self.assertEqual(process.wait(SOON_S), 1)

    def test_signals_are_heard(self):
        flags = "--nproc-per-node=2", "-t", "3", f"--log-dir={self.folder}", ENDS_BLOCKED
        process, _ = self.start_on_socket(*flags, self.worker(FLOOD))
        self.heard(2)
        agent = Job.children_of(process.pid)[0]
        self.wait_for_stall()
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not Job.has_children(agent), "the end of the workers", SOON_S)
        process.send_signal(signal.SIGTERM)  # nobody reads: do not wait for it
        self.assertEqual(process.wait(SOON_S), 1)

    def test_who_asks_twice_does_not_wait_for_the_reader(self):
        deaf = self.worker(FLOOD.replace("exit 0", ""))
        process, _ = self.start_on_socket("--nproc-per-node=2", "-t", "3", f"--log-dir={self.folder}", deaf)
        self.heard(2)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: not signal_waits(process.pid, signal.SIGTERM), "a guardian that took the signal")
        self.assertEqual(process.wait(SOON_S), 1)

    def test_a_reader_that_goes_on_gets_every_line(self):
        script = self.script("#!/bin/sh\nseq 50000\n")
        process, ours = self.start_on_socket("-t", "1", f"--log-dir={self.folder}", script)
        path = "none_*/attempt_0/0/stdout.log"
        wait_until(lambda: any(log.read_text().endswith("\n50000\n") for log in self.folder.glob(path)), "a whole log")
        read = b""
        self.console.close()  # the last end but the job's own
        while part := ours.recv(1 << 16):
            read += part  # the first comes when the log is whole: until then this reader pauses
        self.assertEqual(process.wait(SOON_S), 0)
        self.assertEqual(read.decode(), "".join(f"[default0]:{n}\n" for n in range(1, 50001)))


if __name__ == "__main__":
    main()
