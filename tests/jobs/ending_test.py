"""How jobs end when they are told to: which signal reaches whom, graces, signals that come
early."""

import ctypes
import os
import random
import signal
import threading
import time

from machine import free_port, signal_waits, state_of, wait_until
from support import DEAF, HEARING, SLEEPER, JobTest, main, told, with_variables

# The handlers run. pause() would not do: a signal that comes just before it would wait for the next
# one.
HEARS_SIGNALS = """
heard_at, told_at = os.pipe()
os.set_blocking(told_at, False)
signal.set_wakeup_fd(told_at)
"""
WAITS_FOR_SIGNALS = HEARS_SIGNALS + """
while True:
    os.read(heard_at, 1)
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
""" + WAITS_FOR_SIGNALS
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
""" + WAITS_FOR_SIGNALS

# Saves when it is told to end, once however often that is said. It saves until its test opens the
# gate, and for a second more. A peer that took one of the signals for another request would kill it
# then.
SLOW_SAVER = """#!/usr/bin/env python3
import os, signal, time
""" + HEARS_SIGNALS + """
signal.signal(signal.SIGTERM, lambda *_: None)
print(os.environ["RANK"], file=open("{fifo}", "w"))
os.read(heard_at, 1)
os.read(os.open("{gate}", os.O_RDONLY), 1)  # its own byte; signals that come meanwhile end no wait (PEP 475)
time.sleep(1)
open("{folder}/saved_" + os.environ["RANK"] + "_" + os.environ["GROUP_RANK"], "w").close()
"""
SOON_S = 20  # less than the grace of 30 s, which would be waited for by mistake
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


class Signals(JobTest):
    def start_workers(self, text, *args, **options):
        job = self.start("--nproc-per-node=2", *args, self.worker(text), **options)
        self.heard(2)
        return job

    def test_case_27_signals_are_passed_on(self):
        for name in "TERM", "INT", "HUP", "QUIT":
            with self.subTest(name):
                job = self.start_workers(SLEEPER.replace("TERM", name))
                code, _, err, _ = self.stop(job, getattr(signal, "SIG" + name))
                self.assertEqual(code, 1)
                self.assertIn("SIG" + name, err)

    def test_case_30_a_second_signal_kills_at_once(self):
        # The grace is longer than the test waits. The workers say when the first signal has reached
        # them: two that come at once may melt into one.
        job = self.start_workers(HEARING)
        job.process.send_signal(signal.SIGTERM)
        self.heard(2)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(SOON_S)[0], 1)
        job.wait_gone()

    def test_case_30_a_third_signal_changes_nothing(self):
        job = self.start_workers(HEARING)
        job.process.send_signal(signal.SIGTERM)
        self.heard(2)
        begin = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(SOON_S)[0], 1)
        told("second signal to the end", [time.monotonic() - begin])
        job.wait_gone()

    def test_case_34_nohup(self):
        job = self.start_workers(SLEEPER, prefix=("nohup",))
        job.process.send_signal(signal.SIGHUP)
        os.kill(job.agent(), signal.SIGHUP)
        code, _, err, _ = self.stop(job)
        self.assertEqual(code, 1)
        self.assertIn("received SIGTERM", err)

    def test_user_signals_reach_the_workers(self):
        fifo = self.fifo("got")
        text = SLEEPER.replace("echo $RANK", f"trap 'echo usr1 > {fifo}' USR1\necho $RANK", 1)
        job = self.start_workers(text)
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(self.read_lines(fifo, 2), ["usr1", "usr1"])
        self.stop(job)

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


class Grace(JobTest):
    def end_deaf(self, *flags, **variables):
        """Seconds from SIGTERM to the end of a job of two that ignore it."""
        job = self.start("--nproc-per-node=2", *flags, self.worker(DEAF), env=with_variables(**variables))
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
        self.assertLess(seconds, grace + 15)  # the graces differ by more

    def test_case_28_the_grace_of_30_s(self):
        """The agent says after 5 s when it will kill. The flag's cases below wait for the kill, and
        this one does not."""
        job = self.start("--nproc-per-node=2", self.worker(DEAF))
        self.heard(2)
        begin = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        told = next((line for line in job.process.stderr if "SIGKILL in" in line), "")
        self.assertRegex(told, r"have not ended after SIGTERM, ranks 0-1; SIGKILL in \d+ s$")
        seconds = time.monotonic() - begin
        left = int(told.split()[-2])
        print(f"after {seconds:.3f} s: {told.strip()}")
        self.assertGreaterEqual(left + seconds, 29)  # it counts whole seconds
        self.assertLessEqual(left, 25)
        self.assertLessEqual(left + 5, 31, "the line comes after 5 s, however late it is read")
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(SOON_S)[0], 1)
        job.wait_gone()

    def test_case_28_the_grace_by_flag(self):
        self.check_grace(2, self.end_deaf("--shutdown-timeout=2"))

    def test_case_28_the_grace_by_variable(self):
        self.check_grace(1, self.end_deaf(TORCH_ELASTIC_SHUTDOWN_TIMEOUT="1"))

    def test_case_29_the_grace_also_holds_when_a_worker_fails(self):
        job = self.start("--nproc-per-node=2", "--shutdown-timeout=1", self.worker(DEAF))
        self.heard(2)
        begin = time.monotonic()
        os.kill(job.worker(1), signal.SIGKILL)
        self.assertEqual(job.finish()[0], 1)
        self.check_grace(1, time.monotonic() - begin)
        job.wait_gone()


class FirstSignal(JobTest):
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
        # It must get to its first word.
        job = self.start("--shutdown-timeout=5", script, env=with_variables())
        self.assertEqual(self.heard(1), ["ready"])
        code, _, _, seconds = self.stop(job)
        self.assertEqual((code, self.heard(1)), (1, ["saving"]))
        self.assertGreaterEqual(seconds, 5)


class EarlySignals(JobTest):
    def test_case_33_during_start_up(self):
        moments = random.Random(33)
        script = self.script("#!/bin/sh\nexec sleep 1000\n")
        took = []
        for turn in range(30):
            job = self.start("--nproc-per-node=2", script)
            until = time.monotonic() + moments.uniform(0, 0.012)
            while time.monotonic() < until:  # the moment of the signal is the case
                pass
            code, _, err, seconds = self.stop(job)
            took.append(seconds)
            self.assertNotEqual(code, 0, f"turn {turn}: {err}")
        self.assertLess(told("signal during start-up to the end", took), 1)

    def test_case_33_while_waiting_in_the_rendezvous(self):
        port = free_port()
        flags = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}")
        took = []
        for _ in range(5):
            host = self.start(*flags, "/bin/true")
            wait_until(lambda: host.listens(port), "the rendezvous")
            code, _, err, seconds = self.stop(host)
            took.append(seconds)
            self.assertEqual(code, 128 + signal.SIGTERM)  # torchrun dies of it, too
            self.assertIn("SIGTERM", err)
        self.assertLess(told("signal in the rendezvous to the end", took), 1)
        # Its place is free at once: two others form the job without waiting for anything.
        begin = time.monotonic()
        jobs = [self.start(*flags, "/bin/true") for _ in range(2)]
        self.assertEqual([job.finish()[0] for job in jobs], [0, 0])
        told("two nodes after that", [time.monotonic() - begin])
        self.assertLess(time.monotonic() - begin, SOON_S)


class HungAgent(JobTest):
    """The guardian does not wait for its agent without bound."""

    def start_workers(self, text, *args):
        job = self.start("--nproc-per-node=2", *args, self.worker(text))
        self.heard(2)
        return job

    def test_a_stopped_agent_is_continued_to_end_the_job(self):
        job = self.start_workers(SLEEPER)
        os.kill(job.agent(), signal.SIGSTOP)
        job.process.send_signal(signal.SIGTERM)
        code, _, err = job.finish(SOON_S)
        self.assertEqual(code, 1)
        self.assertIn("received SIGTERM", err)
        job.wait_gone()

    def test_an_agent_that_hangs_is_killed_after_a_second_signal(self):
        job = self.start_workers(DEAF)
        agent = job.agent()
        if LIBC.ptrace(PTRACE_SEIZE, agent, None, None) != 0:
            self.skipTest(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")
        self.assertEqual(LIBC.ptrace(PTRACE_INTERRUPT, agent, None, None), 0)
        wait_until(lambda: state_of(agent) == "t", "a traced agent that stands still")
        begin = time.monotonic()
        for _ in range(2):
            job.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not signal_waits(job.pid, signal.SIGTERM), "a guardian that took the signal")
        # The kernel keeps a dead process for its tracer until that has asked for its status.
        wait_until(lambda: os.WIFSIGNALED(os.waitpid(agent, os.WNOHANG | os.WUNTRACED)[1]), "the agent's end", 40)
        code, _, err = job.finish(SOON_S)
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.assertIn("does not end 20 s after a second signal", err)
        self.assertGreater(time.monotonic() - begin, 19)
        job.wait_gone()


class EverybodyIsSignalled(JobTest):
    """scancel and systemctl stop signal every process of a job: workers must have their time to
    save all the same."""

    def start_savers(self, name, **options):
        folder = self.folder / name
        folder.mkdir()
        fifo, gate = self.fifo(f"ready_{name}"), self.fifo(f"gate_{name}")
        text = SLOW_SAVER
        for key, path in ("fifo", fifo), ("folder", folder), ("gate", gate):
            text = text.replace(f"{{{key}}}", str(path))
        job = self.start("--nproc-per-node=2", self.script(text, f"saver_{name}.py"), **options)
        self.read_lines(fifo, 2)
        return job, folder, gate

    def all_have_saved(self, savers, code):
        """Opens the gates of all these jobs: each saves for a second more, all in the same one."""
        for _, _, gate in savers:
            gate.write_text("gg")
        for number, (job, folder, _) in enumerate(savers):
            with self.subTest(number=number):
                got, _, err = job.finish()
                self.assertEqual(got, code, err)
                self.assertEqual(sorted(os.listdir(folder)), ["saved_0_0", "saved_1_0"])
                job.wait_gone()

    def test_every_rank_saves_whoever_is_signalled_first(self):
        savers = [self.start_savers(str(seed)) for seed in range(8)]
        for seed, (job, _, _) in enumerate(savers):
            chance = random.Random(seed)
            everybody = [("job", job.pid), ("agent", job.agent()), ("rank 0", job.worker(0)),
                         ("rank 1", job.worker(1))]
            chance.shuffle(everybody)
            print(f"{seed}: {', '.join(name for name, _ in everybody)}")
            for _, pid in everybody:
                os.kill(pid, signal.SIGTERM)
                # The gap between them is what is tested.
                threading.Event().wait(chance.choice((0, 0.005, 0.02)))
        self.all_have_saved(savers, 1)

    def test_every_rank_saves_at_the_end_of_a_timeout(self):
        """timeout(1) signals its child and then its group, which makes two signals if the first is
        taken in between."""
        savers = [self.start_savers(f"timeout_{number}", prefix=("timeout", "1000"))
                  for number in range(8)]
        for job, _, _ in savers:
            guardian, = job.children_of(job.pid)
            os.kill(job.pid, signal.SIGALRM)  # so the kernel says that the time is over
            wait_until(lambda: not signal_waits(guardian, signal.SIGTERM), "a guardian that took the signal")
        self.all_have_saved(savers, 124)

    def test_two_quick_requests_of_the_user_still_kill(self):
        job, folder, _ = self.start_savers("twice")
        job.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not signal_waits(job.pid, signal.SIGTERM), "a guardian that took the signal")
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(SOON_S)[0], 1)
        self.assertEqual(os.listdir(folder), [])
        job.wait_gone()

    def test_a_signal_to_the_agent_alone_ends_the_job_well(self):
        job, folder, gate = self.start_savers("agent")
        for _ in range(3):
            os.kill(job.agent(), signal.SIGTERM)
            wait_until(lambda: not signal_waits(job.agent(), signal.SIGTERM), "an agent that took the signal")
        gate.write_text("gg")
        self.assertEqual(job.finish()[0], 1)
        self.assertEqual(len(os.listdir(folder)), 2)
        job.wait_gone()


if __name__ == "__main__":
    main()
