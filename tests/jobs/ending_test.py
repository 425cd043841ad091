"""How jobs end: signals, deaths of every process of ours, and that nothing is ever left."""

import os
import signal
import subprocess
import unittest

from support import DDPRUN, DEAF, SLEEPER, Job, JobTest, free_port, main, wait_until

# Says that it heard SIGTERM, and goes on. `wait` returns at a trapped signal, where a foreground command would hold it back.
HEARING = """#!/bin/sh
trap 'echo $RANK > {heard}' TERM
echo $RANK > {fifo}
while :; do sleep 1000 & wait; done
"""
# Descendants that fork twice, call setsid and ignore TERM; the worker lives on.
ESCAPING = """#!/bin/sh
(setsid sh -c "trap '' TERM HUP INT; (sleep 1000 &); echo $RANK > {fifo}; sleep 1000" &)
trap '' TERM
sleep 1000
"""


class Signals(JobTest):
    def start_workers(self, text, *args, workers=2, **options):
        fifo = self.folder / "ready"
        if fifo not in self.fifos:
            self.fifo()
        script = self.script(text.replace("{fifo}", str(fifo)))
        job = self.start(f"--nproc-per-node={workers}", *args, script, **options)
        self.read_lines(fifo, workers)
        return job

    def test_case_27_signals_are_passed_on(self):
        for name in "TERM", "INT", "HUP", "QUIT":
            with self.subTest(name):
                job = self.start_workers(SLEEPER.replace("TERM", name))
                job.process.send_signal(getattr(signal, "SIG" + name))
                code, _, err = job.finish()
                self.assertEqual(code, 1)
                self.assertIn("SIG" + name, err)
                job.wait_gone()

    def test_case_28_deaf_workers_are_killed_after_the_grace(self):
        job = self.start_workers(DEAF, "--shutdown-timeout=1")
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish()[0], 1)
        job.wait_gone()

    def test_case_29_the_grace_also_holds_when_a_worker_fails(self):
        job = self.start_workers(DEAF, "--shutdown-timeout=1")
        os.kill(job.worker(1), signal.SIGKILL)
        self.assertEqual(job.finish()[0], 1)
        job.wait_gone()

    def test_case_30_a_second_signal_kills_at_once(self):
        # A grace of 30 s, which is longer than the test waits. The workers say when the first signal has reached them: two that
        # come at once may melt into one.
        heard = self.fifo("heard")
        job = self.start_workers(HEARING.replace("{heard}", str(heard)))
        job.process.send_signal(signal.SIGTERM)
        self.read_lines(heard, 2)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(20)[0], 1)
        job.wait_gone()

    def test_case_34_nohup(self):
        job = self.start_workers(SLEEPER, prefix=("nohup",))
        job.process.send_signal(signal.SIGHUP)
        os.kill(job.agent(), signal.SIGHUP)
        job.process.send_signal(signal.SIGTERM)
        code, _, err = job.finish()
        self.assertEqual(code, 1)
        self.assertIn("received SIGTERM", err)

    def test_user_signals_reach_the_workers(self):
        fifo = self.fifo("got")
        text = SLEEPER.replace("echo $RANK", f"trap 'echo usr1 > {fifo}' USR1\necho $RANK", 1)
        job = self.start_workers(text)
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(self.read_lines(fifo, 2), ["usr1", "usr1"])
        job.process.send_signal(signal.SIGTERM)
        job.finish()
        job.wait_gone()

    def test_case_33_a_signal_while_waiting_for_peers_ends_at_once(self):
        job = self.start("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "/bin/true")
        wait_until(lambda: handles(job, signal.SIGTERM), "signal handlers")
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(5)[0], 128 + signal.SIGTERM)  # torchrun dies of it, too
        job.wait_gone()


    def test_a_reader_that_stalls_does_not_keep_a_job_from_being_ended(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        script = self.script(f"#!/bin/sh\nhead -c 1000000 /dev/zero\necho 0 > {self.fifo('wrote')}\n")
        process = subprocess.Popen([DDPRUN, "-t", "3", f"--log-dir={self.folder}", script], stdin=subprocess.DEVNULL,
                                   stdout=writer, stderr=writer)
        os.close(writer)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.read_lines(self.folder / "wrote", 1)
        agent = Job.children_of(process.pid)[0]
        wait_until(lambda: not Job.children_of(agent), "the end of the worker")
        with self.assertRaises(subprocess.TimeoutExpired, msg="nobody reads: it waits"):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(5), 0)


class Surroundings(JobTest):
    """Odd ways to be started."""

    def test_sigchld_ignored_by_the_parent(self):
        code, _, _ = self.start("/bin/true", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)).finish(10)
        self.assertEqual(code, 0)

    def test_standard_descriptors_closed(self):
        closing = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
        job = self.start("-t", "1", self.script("#!/bin/sh\necho a\nexit 5\n"), prefix=closing)
        self.assertEqual(job.finish(10)[0], 1)
        job.wait_gone()


    @unittest.skipUnless(subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode == 0,
                         "needs root for a pid namespace")
    def test_as_pid_1_of_a_container(self):
        fifo = self.fifo()
        script = self.script(SLEEPER.replace(
            "echo $RANK", "(setsid sleep 1000 &); echo $RANK").replace("{fifo}", str(fifo)))
        job = self.start("--nproc-per-node=2", script, prefix=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
        self.read_lines(fifo, 2)
        os.kill(job.children_of(job.pid)[0], signal.SIGTERM)  # pid 1 in there, of whom the kernel keeps unhandled signals
        code, _, err = job.finish()
        self.assertEqual(code, 1)
        self.assertIn("received SIGTERM", err)
        job.wait_gone()


    def test_what_was_there_before_lives_on(self):
        """`monitor & exec ddprun …`: the shell's children become ours without our doing."""
        job = self.start("/bin/true", prefix=("sh", "-c", 'sleep 1000 > /dev/null 2>&1 & echo $!; exec "$@"', "sh"))
        code, out, _ = job.finish(20)
        earlier = int(out)
        self.assertEqual(code, 0)
        os.kill(earlier, signal.SIGKILL)  # raises where it is gone

    def test_the_environment_of_a_worker_that_is_gone_condemns_nobody(self):
        """A worker may resubmit its job: its cookie is then in the environment of a new one, and of the shell above it."""
        namespace = os.stat("/proc/self/ns/pid").st_ino
        env = {**os.environ, "DDPRUN_JOB": f"{namespace}-4194000-12345-deadbeefdeadbeef"}
        job = self.start("/bin/true", env=env, prefix=("sh", "-c", '"$@"; echo alive', "sh"))
        self.assertEqual(job.finish(20)[:2], (0, "alive\n"))


class NothingLeft(JobTest):
    def kill_and_expect_nothing(self, victim):
        fifo = self.fifo()
        script = self.script(ESCAPING.replace("{fifo}", str(fifo)))
        for turn in range(self.turns()):
            with self.subTest(turn=turn):
                job = self.start("--nproc-per-node=2", "--shutdown-timeout=0", script)
                self.read_lines(fifo, 2)
                os.kill(victim(job), signal.SIGKILL)
                job.process.wait(20)
                job.wait_gone(2)
                job.process.communicate()

    @staticmethod
    def turns():
        return int(os.environ.get("DDPRUN_TEST_KILLS", "10"))

    def test_kill_9_of_ddprun(self):
        self.kill_and_expect_nothing(lambda job: job.pid)

    def test_kill_9_of_the_agent(self):
        self.kill_and_expect_nothing(lambda job: job.agent())

    def test_kill_9_of_a_worker(self):
        self.kill_and_expect_nothing(lambda job: job.worker(1))

    def test_case_32_children_of_a_worker_that_exited(self):
        for ending in "exit 0", "exit 3", "kill -9 $$":
            for start in "sleep 1000 &", "setsid sleep 1000 &":
                with self.subTest(ending=ending, start=start):
                    job = self.start(self.script(f"#!/bin/sh\n{start}\n{ending}\n"))
                    job.finish()
                    job.wait_gone()

    def test_a_restart_finds_nothing_of_the_old_attempt(self):
        fifo = self.fifo()
        text = ESCAPING.replace("{fifo}", str(fifo)).replace(
            "#!/bin/sh\n", '#!/bin/sh\ntest "$TORCHELASTIC_RESTART_COUNT" = 1 && exec sleep 1000\n')
        job = self.start("--max-restarts=1", "--shutdown-timeout=0", self.script(text))
        self.read_lines(fifo, 1)
        before = set(job.processes()) - {job.pid, job.agent()}
        os.kill(job.worker(0), signal.SIGKILL)
        wait_until(lambda: job.worker(0) not in before | {None}, "the new worker")
        self.assertEqual(before & set(job.processes()), set())
        job.process.send_signal(signal.SIGTERM)
        job.finish()


def status_field(pid, name):
    with open(f"/proc/{pid}/status") as file:
        return next(line.split()[1] for line in file if line.startswith(name + ":"))


def handles(job, signo):
    """True once the agent catches the signal and no longer blocks it."""
    try:
        agent = job.agent()
        caught, blocked = int(status_field(agent, "SigCgt"), 16), int(status_field(agent, "SigBlk"), 16)
    except (FileNotFoundError, IndexError, StopIteration):
        return False
    return bool(caught >> (signo - 1) & 1) and not blocked >> (signo - 1) & 1


if __name__ == "__main__":
    main()
