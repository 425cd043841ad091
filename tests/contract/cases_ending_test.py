"""Acceptance cases 28 to 35: signals, graces, and that nothing is left. Cases 27, 29 and 34 are in
tests/jobs/ending_test.py."""

import os
import pathlib
import random
import signal
import time
import unittest

from cases_support import (
    DEAF, SLEEPER, CaseTest, free_port, main, told, wait_until, with_variables)

# Says that it heard SIGTERM, and goes on.
HEARING = """#!/bin/sh
trap 'echo $RANK > {fifo}' TERM
echo $RANK > {fifo}
while :; do sleep 1000 & wait; done
"""
# A PyTorch job's shape: a leader that writes its checkpoint at SIGTERM, for which its child must
# live. It says whether the child got the signal too.
LEADER = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
def checkpoint(*_):
    state = "alive" if child.poll() is None else "dead"
    open(sys.argv[1], "w").write(f"child {state}\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, checkpoint)
open(sys.argv[1], "w").write("ready\\n")
while True:
    signal.pause()
"""
# Writes a checkpoint for as long as its test wants.
SAVER = """
import os, signal, sys
def say(word):
    with open(sys.argv[1], "w") as ready:
        ready.write(word + "\\n")
def checkpoint(*_):
    say("saving")
    open(sys.argv[2]).readline()
    say("saved")
    os._exit(0)
signal.signal(signal.SIGTERM, checkpoint)
say("ready")
while True:
    signal.pause()
"""


def cgroups_of(pid):
    return pathlib.Path(f"/proc/{pid}/cgroup").read_text()


class CaseGrace(CaseTest):
    def end_deaf(self, *flags, **variables):
        """Seconds from SIGTERM to the end of a job of two that ignore it."""
        job = self.start("--nproc-per-node=2", *flags, self.worker(DEAF),
                         env=with_variables(**variables))
        self.heard(2)
        begin = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        code, _, _ = job.finish(60)
        seconds = time.monotonic() - begin
        self.assertEqual(code, 1)
        job.wait_gone()
        return seconds

    def check_grace(self, grace, seconds):
        print(f"grace of {grace} s: over after {seconds:.3f} s")
        self.assertGreaterEqual(seconds, grace)
        self.assertLess(seconds, grace + 5)

    def test_case_28_the_grace_of_30_s(self):
        self.check_grace(30, self.end_deaf())

    def test_case_28_the_grace_by_flag(self):
        self.check_grace(2, self.end_deaf("--shutdown-timeout=2"))

    def test_case_28_the_grace_by_variable(self):
        self.check_grace(1, self.end_deaf(TORCH_ELASTIC_SHUTDOWN_TIMEOUT="1"))

    def test_case_30_a_third_signal_changes_nothing(self):
        job = self.start("--nproc-per-node=2", self.worker(HEARING))
        self.heard(2)
        job.process.send_signal(signal.SIGTERM)
        self.heard(2)  # two signals that come at once may melt into one
        begin = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(20)[0], 1)
        told("second signal to the end", [time.monotonic() - begin])
        job.wait_gone()


class CaseFirstSignal(CaseTest):
    """The first signal is the leader's alone: its children live until the checkpoint is written."""

    def test_a_leaders_child_lives(self):
        job = self.start(self.worker(LEADER, "leader.py"), self.ready, env=with_variables())
        self.assertEqual(self.heard(1), ["ready"])
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.heard(1), ["child alive"])
        job.finish()
        job.wait_gone()

    def test_a_shell_around_the_program_passes_it_on(self):
        """The whole group gets it then, so nothing is said about the program's own child."""
        self.worker(LEADER, "leader.py")
        env = with_variables()
        for words in "", "trap : TERM; ":  # it dies of the signal, or waits for its command
            with self.subTest(words):
                script = self.script(
                    f"#!/bin/sh\n{words}$PYTHON_EXEC {self.folder}/leader.py {self.ready}\n"
                    "echo over\n")
                job = self.start(script, env=env)
                self.assertEqual(self.heard(1), ["ready"])
                job.process.send_signal(signal.SIGTERM)
                self.assertRegex(self.heard(1)[0], "^child (alive|dead)$")
                self.assertEqual(job.finish()[0], 1)
                job.wait_gone()

    def test_a_program_under_a_shell_has_the_whole_grace(self):
        """The shell dies of the signal at once; what it runs may still write its checkpoint."""
        gate = self.fifo("gate")
        self.worker(SAVER, "saver.py")
        script = self.script(
            f"#!/bin/sh\n$PYTHON_EXEC {self.folder}/saver.py {self.ready} {gate}\necho over\n")
        job = self.start(script, env=with_variables())
        self.assertEqual(self.heard(1), ["ready"])
        shell = job.worker(0)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.heard(1), ["saving"])
        wait_until(lambda: shell not in job.processes(), "the shell's death")
        with os.fdopen(os.open(gate, os.O_RDWR), "w") as file:  # opens without waiting
            file.write("go\n")
            file.flush()
            self.assertEqual(self.heard(1), ["saved"])
        self.assertEqual(job.finish()[0], 1)
        job.wait_gone()

    def test_a_program_under_a_shell_dies_at_the_deadline(self):
        gate = self.fifo("gate")
        self.worker(SAVER, "saver.py")
        script = self.script(
            f"#!/bin/sh\n$PYTHON_EXEC {self.folder}/saver.py {self.ready} {gate}\necho over\n")
        job = self.start("--shutdown-timeout=1", script, env=with_variables())
        self.assertEqual(self.heard(1), ["ready"])
        code, _, _, seconds = self.stop(job)
        self.assertEqual((code, self.heard(1)), (1, ["saving"]))
        self.assertGreaterEqual(seconds, 1)

    def test_a_signal_taken_for_another(self):
        script = self.worker("#!/bin/sh\ntrap 'echo TERM > {fifo}; exit 0' TERM\n"
                             "trap 'echo USR1 > {fifo}; exit 0' USR1\necho $RANK > {fifo}\n"
                             "while :; do sleep 1000 & wait; done\n")
        job = self.start("--signal-map=USR1=TERM", script)
        self.heard(1)
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(self.heard(1), ["TERM"])
        self.assertEqual(job.finish()[0], 1)
        job.wait_gone()

    def test_case_35_signals_to_handle(self):
        script = self.worker("#!/bin/sh\ntrap 'echo USR1 > {fifo}; exit 0' USR1\n"
                             "echo $RANK > {fifo}\nwhile :; do sleep 1000 & wait; done\n")
        job = self.start("--signals-to-handle=SIGTERM,SIGUSR1", "--nproc-per-node=2", script)
        self.heard(2)
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(self.heard(2), ["USR1", "USR1"])
        code, _, err = job.finish()
        self.assertEqual(code, 1)
        self.assertIn("received SIGUSR1", err)
        job.wait_gone()


class CaseNothingLeft(CaseTest):
    def prefixes(self):
        """As the host is, and without version 2 of the cgroups, where that can be hidden."""
        yield "host", ()
        hidden = ("unshare", "--mount", "sh", "-c",
                  "for at in $(grep -o '^cgroup2 [^ ]*' /proc/mounts | cut -d' ' -f2); "
                  'do umount -l "$at" || exit 125; done; exec "$@"', "sh")
        if os.geteuid() == 0 and self.start("/bin/true", prefix=hidden).finish()[0] == 0:
            yield "no cgroup v2", hidden
        else:
            print("without cgroup v2: not run, a mount of its own needs CAP_SYS_ADMIN")

    def test_case_31_sigkill_to_the_launcher(self):
        for name, prefix in self.prefixes():
            with self.subTest(name):
                job = self.start("--nproc-per-node=2", self.worker(SLEEPER), prefix=prefix)
                self.heard(2)
                job.process.kill()
                job.process.wait()
                job.wait_gone()

    def test_case_31_sigusr1_to_the_launcher_is_the_workers(self):
        for name, prefix in self.prefixes():
            with self.subTest(name):
                job = self.start("--nproc-per-node=2", self.worker(SLEEPER), prefix=prefix)
                self.heard(2)
                job.process.send_signal(signal.SIGUSR1)  # without a handler workers die of it
                code, _, err = job.finish()
                self.assertEqual(code, 1)
                self.assertIn("SIGUSR1", self.cause(err))
                job.wait_gone()

    def test_case_32_grandchildren(self):
        for name, prefix in self.prefixes():
            for start in "sleep 300 &", "setsid sleep 300 &":
                for end, code in ("exit 0", 0), ("exit 3", 1), ("SIGTERM", 1):
                    with self.subTest(name, start=start, end=end):
                        last = "exec sleep 1000" if end == "SIGTERM" else end
                        script = self.worker(f"#!/bin/sh\n{start}\necho $! > {{fifo}}\n{last}\n")
                        job = self.start(script, prefix=prefix)
                        self.heard(1)
                        if end == "SIGTERM":
                            job.process.send_signal(signal.SIGTERM)
                        self.assertEqual(job.finish()[0], code)
                        job.wait_gone(1)

    def test_a_job_has_a_cgroup_where_the_host_allows_one(self):
        job = self.start("--nproc-per-node=2", self.worker(SLEEPER))
        self.heard(2)
        worker, agent = job.worker(0), job.agent()
        own = cgroups_of(agent)
        if cgroups_of(worker) == own:
            self.stop(job)
            self.skipTest("no cgroup v2 with cgroup.kill that may be written")
        (path,) = [line.split("::", 1)[1] for line in cgroups_of(worker).splitlines()
                   if line.startswith("0::")]
        self.assertIn("/ddprun-", path)
        self.stop(job)
        mounts = pathlib.Path("/proc/mounts").read_text().splitlines()
        folders = [line.split()[1] + path for line in mounts if line.split()[2] == "cgroup2"]
        self.assertNotEqual(folders, [])
        for folder in folders:
            self.assertFalse(os.path.exists(folder), folder)

    def test_guardian_and_agent_killed_at_once(self):
        # The workers die by their parent-death signal; who escaped all that is ended by the next
        # start of ddprun on this host; that may be one of a test beside this one.
        script = self.worker(
            "#!/bin/sh\n(setsid sh -c 'trap \"\" TERM HUP INT; (sleep 1000 &); echo $$ > {fifo}; "
            "sleep 1000' &)\nexec sleep 1000\n")
        for name, prefix in self.prefixes():
            with self.subTest(name):
                job = self.start("--nproc-per-node=2", script, prefix=prefix)
                self.heard(2)
                agent = job.agent()
                os.kill(agent, signal.SIGSTOP)  # it does not act on the guardian's death
                os.kill(job.pid, signal.SIGKILL)
                os.kill(agent, signal.SIGKILL)
                job.process.wait()
                self.assertEqual(self.start("/bin/true").finish()[0], 0)
                job.wait_gone()

    def test_the_temporary_folder_goes_with_a_killed_agent(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        job = self.start("--nproc-per-node=2", self.worker(SLEEPER),
                         env=with_variables(TMPDIR=str(temporary)))
        self.heard(2)
        self.assertRegex(" ".join(os.listdir(temporary)), r"^torchelastic_\w+$")
        os.kill(job.agent(), signal.SIGKILL)
        self.assertNotEqual(job.finish()[0], 0)
        job.wait_gone()
        self.assertEqual(os.listdir(temporary), [])


class CaseEarlySignals(CaseTest):
    def test_case_33_during_start_up(self):
        random.seed(33)
        script = self.script("#!/bin/sh\nexec sleep 1000\n")
        took = []
        for turn in range(30):
            job = self.start("--nproc-per-node=2", script)
            until = time.monotonic() + random.uniform(0, 0.012)
            while time.monotonic() < until:  # the moment of the signal is the case
                pass
            begin = time.monotonic()
            job.process.send_signal(signal.SIGTERM)
            code, _, err = job.finish()
            took.append(time.monotonic() - begin)
            self.assertNotEqual(code, 0, f"turn {turn}: {err}")
            job.wait_gone()
        self.assertLess(told("signal during start-up to the end", took), 1)

    def test_case_33_while_waiting_in_the_rendezvous(self):
        port = free_port()
        flags = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}")
        host = self.start(*flags, "/bin/true")
        wait_until(lambda: listens(port), "the rendezvous")
        _, _, err, seconds = self.stop(host)
        told("signal in the rendezvous to the end", [seconds])
        self.assertLess(seconds, 1)
        self.assertIn("SIGTERM", err)
        # Its place is free at once: two others form the job without waiting for anything.
        begin = time.monotonic()
        jobs = [self.start(*flags, "/bin/true") for _ in range(2)]
        self.assertEqual([job.finish()[0] for job in jobs], [0, 0])
        told("two nodes after that", [time.monotonic() - begin])
        self.assertLess(time.monotonic() - begin, 10)


def listens(port):
    with open("/proc/net/tcp") as table:
        rows = [row.split() for row in list(table)[1:]]
    return any(row[3] == "0A" and int(row[1].split(":")[1], 16) == port for row in rows)


if __name__ == "__main__":
    main()
