"""A job leaves nothing behind, however it ends and however it was started.

DDPRUN_TEST_STARTS   starts of case 63, default 60 (the case says 1000)
DDPRUN_TEST_KILLS    kills of each kind, default 10
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest
import uuid

from machine import DEADLINE, TCP_TABLES, environment_of, listening_inodes, state_of, wait_until
from support import SLEEPER, WAITING, Job, JobTest, main, sanitized, told, with_variables

STARTS = int(os.environ.get("DDPRUN_TEST_STARTS", "60"))
STORM_STARTS = 40 if sanitized() else 200
KILLS = int(os.environ.get("DDPRUN_TEST_KILLS", "10"))
# Descendants that fork twice, call setsid and ignore TERM; the worker lives on.
ESCAPING = """#!/bin/sh
(setsid sh -c "trap '' TERM HUP INT; (sleep 1000 &); echo $RANK > {fifo}; sleep 1000" &)
trap '' TERM
sleep 1000
"""
# Takes in the orphans of what it starts, as `systemd --user` and a container's init do, and lives
# on.
REAPER = """
import ctypes, signal, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
subprocess.Popen(sys.argv[1:])
while True:
    signal.pause()
"""


NO_CGROUPS = ("for at in $(grep -o '^cgroup2 [^ ]*' /proc/mounts | cut -d' ' -f2); "
              'do umount -l "$at" || exit 125; done')


class NothingLeft(JobTest):
    def prefixes(self):
        """As the host is, and without version 2 of the cgroups, where that can be hidden."""
        yield "host", ()
        hidden = ("unshare", "--mount", "sh", "-c", NO_CGROUPS + '; exec "$@"', "sh")
        if os.geteuid() == 0 and self.start("/bin/true", prefix=hidden).finish()[0] == 0:
            yield "no cgroup v2", hidden
        else:
            print("without cgroup v2: not run, a mount of its own needs CAP_SYS_ADMIN")

    def kill_and_expect_nothing(self, victim):
        script = self.worker(ESCAPING)
        for turn in range(KILLS):
            with self.subTest(turn=turn):
                job = self.start("--nproc-per-node=2", "--shutdown-timeout=0", script)
                self.heard(2)
                os.kill(victim(job), signal.SIGKILL)
                job.process.wait(DEADLINE)
                job.wait_gone()
                job.process.communicate()

    def test_kill_9_of_ddprun(self):
        self.kill_and_expect_nothing(lambda job: job.pid)

    def test_kill_9_of_the_agent(self):
        self.kill_and_expect_nothing(lambda job: job.agent())

    def test_kill_9_of_a_worker(self):
        self.kill_and_expect_nothing(lambda job: job.worker(1))

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
                for end, code in ("exit 0", 0), ("exit 3", 1), ("kill -9 $$", 1), ("SIGTERM", 1):
                    with self.subTest(name, start=start, end=end):
                        last = "exec sleep 1000" if end == "SIGTERM" else end
                        script = self.worker(f"#!/bin/sh\n{start}\necho $! > {{fifo}}\n{last}\n")
                        job = self.start(script, prefix=prefix)
                        self.heard(1)
                        if end == "SIGTERM":
                            job.process.send_signal(signal.SIGTERM)
                        self.assertEqual(job.finish()[0], code)
                        job.wait_gone()

    HELPER = """#!/bin/sh
trap 'sleep 0.3; echo flushed > {folder}/flushed; exit 0' TERM
echo $$ > {fifo}
while :; do sleep 0.05; done
"""

    def check_helper(self, *flags, start="setsid", helper=HELPER, end="exit 0", code=0):
        """A worker starts a helper that detaches itself, and ends. The line that names it, from
        stderr; and its pid."""
        helper = self.worker(helper.replace("{folder}", str(self.folder)), "helper.sh")
        worker = self.script(f"#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 0 || exit 0\n"
                             f"{start} {helper} > /dev/null 2>&1 < /dev/null &\nread go < {self.folder}/go\n{end}\n")
        go = self.folder / "go"
        if not go.exists():
            os.mkfifo(go)
        job = self.start(*flags, worker)
        (pid,) = self.heard(1)
        with open(go, "w") as file:
            file.write("\n")
        result, _, err = job.finish()
        self.assertEqual(result, code, err)
        job.wait_gone()
        (line,) = [line for line in err.splitlines() if "behind" in line] or [""]
        return line, pid

    def test_a_detached_helper_is_asked_to_end_and_named(self):
        for end, code in ("exit 0", 0), ("exit 3", 1):
            with self.subTest(end):
                line, pid = self.check_helper(end=end, code=code)
                self.assertRegex(line, rf"workers left .*behind: {pid} \([^)]*helper.sh\).*; SIGTERM was sent$")
                self.assertTrue((self.folder / "flushed").exists())
                (self.folder / "flushed").unlink()

    def test_a_helper_in_the_group_of_a_worker_that_ended_well_is_asked_too(self):
        line, pid = self.check_helper(start="exec 3<&-;")
        self.assertRegex(line, rf"workers left .*behind: {pid} \([^)]*helper.sh\).*; SIGTERM was sent$")
        self.assertTrue((self.folder / "flushed").exists())
        (self.folder / "flushed").unlink()
        # A process that a failed worker leaves may hold a GPU.
        line, _ = self.check_helper(start="exec 3<&-;", end="exit 3", code=1)
        self.assertEqual(line, "")

    def test_a_detached_helper_is_asked_before_a_restart_too(self):
        line, pid = self.check_helper("--max-restarts=1", end="exit 3")
        self.assertIn(f"{pid} (", line)
        self.assertTrue((self.folder / "flushed").exists())

    def test_a_detached_helper_that_does_not_hear_is_killed_in_time(self):
        deaf = self.HELPER.replace("'sleep 0.3; echo flushed > {folder}/flushed; exit 0'", "''")
        begin = time.monotonic()
        line, pid = self.check_helper(helper=deaf)
        self.assertRegex(line, rf"{pid} \(.*; SIGTERM was sent, and SIGKILL to \d that went on$")
        self.assertLess(time.monotonic() - begin, 15)

    def test_without_a_grace_a_detached_helper_has_none(self):
        line, _ = self.check_helper("--shutdown-timeout=0")
        self.assertEqual(line, "")
        self.assertFalse((self.folder / "flushed").exists())

    def test_quiet_names_no_helper(self):
        line, _ = self.check_helper("--quiet")
        self.assertEqual(line, "")
        self.assertTrue((self.folder / "flushed").exists())

    def test_a_restart_finds_nothing_of_the_old_attempt(self):
        script = self.worker(ESCAPING.replace(
            "#!/bin/sh\n", '#!/bin/sh\ntest "$TORCHELASTIC_RESTART_COUNT" = 1 && exec sleep 1000\n'))
        job = self.start("--max-restarts=1", "--shutdown-timeout=0", script)

        def of_attempt(number):
            wanted = f"TORCHELASTIC_RESTART_COUNT={number}".encode()
            return [pid for pid in job.processes() if wanted in environment_of(pid)]

        self.heard(1)
        self.assertNotEqual(of_attempt(0), [])
        os.kill(job.worker(0), signal.SIGKILL)
        wait_until(lambda: of_attempt(1), "the new worker")
        self.assertEqual(of_attempt(0), [])
        self.stop(job)

    def start_escaping(self, prefix):
        """A job with a worker that started what hides from it."""
        script = self.worker("#!/bin/sh\n(setsid sh -c 'trap \"\" TERM HUP INT; (sleep 1000 &); echo $$ > {fifo}; sleep 1000' &)\n"
                             "exec sleep 1000\n")
        job = self.start("--nproc-per-node=2", script, prefix=prefix)
        self.heard(2)
        return job

    def kill_both(self, guardian):
        agent = Job.children_of(guardian)[0]
        os.kill(agent, signal.SIGSTOP)  # it does not act on the guardian's death
        os.kill(guardian, signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        # Until then it has the job's lock.
        wait_until(lambda: state_of(agent) in ("Z", None), "the agent's end")

    def sweep_by_another_start(self, gone, prefix=()):
        # Lives for as long as its look takes.
        next_start = self.start(self.worker(SLEEPER, "sleeper.sh"), prefix=prefix)
        self.heard(1)
        gone()
        self.stop(next_start)

    def test_guardian_and_agent_killed_at_once(self):
        # The workers die by their parent-death signal. A process that escaped all that is ended by
        # the next start of ddprun on this host. That may be one of another job.
        for name, prefix in self.prefixes():
            with self.subTest(name):
                job = self.start_escaping(prefix)
                self.kill_both(job.pid)
                job.process.wait()
                self.sweep_by_another_start(lambda: job.wait_gone(DEADLINE))

    def test_guardian_and_agent_killed_below_another_reaper(self):
        for name, prefix in self.prefixes():
            with self.subTest(name):
                job = self.start_escaping((*prefix, sys.executable, "-c", REAPER))
                self.kill_both(Job.children_of(job.pid)[0])
                self.sweep_by_another_start(
                    lambda: wait_until(lambda: job.processes() == [job.pid], "the reaper alone"))
                job.end()

    def test_nobody_is_ended_whose_lock_is_not_there(self):
        """Somebody emptied /dev/shm: nothing shows any more that the launcher is gone."""
        job = self.start_escaping(())
        (lock,) = memory_of(job.pid, "ddprun_lock-")
        self.addCleanup(lambda: [at.unlink(missing_ok=True) for at in memory_of(job.pid, "ddprun-")])
        lock.unlink()
        (scratch,) = memory_of(job.pid, "ddprun_scratch-")
        self.addCleanup(shutil.rmtree, scratch)
        workers = [job.worker(rank) for rank in range(2)]
        self.kill_both(job.pid)
        job.process.wait()
        wait_until(lambda: all(state_of(pid) in ("Z", None) for pid in workers), "the workers' end")
        escaped = job.processes()
        self.assertNotEqual(escaped, [])
        # Ends later than its look.
        self.assertEqual(self.run_job("--no-python", "sleep", "0.5")[0], 0)
        self.assertEqual(sorted(job.processes()), sorted(escaped))
        self.assertTrue(scratch.exists())

    def test_what_lives_on_keeps_its_lock_for_a_later_start(self):
        """A living parent outside the job has a process with its cookie: no orphan, as long as that
        parent lives."""
        script = self.worker("#!/bin/sh\necho $DDPRUN_JOB > {fifo}\nexec sleep 1000\n")
        job = self.start(script)
        (cookie,) = self.heard(1)
        lock = pathlib.Path("/dev/shm/ddprun_lock-" + cookie)
        submitted = subprocess.Popen(["sleep", "1000"], env={**os.environ, "DDPRUN_JOB": cookie})
        self.addCleanup(lambda: (submitted.kill(), submitted.wait()))
        self.kill_both(job.pid)
        job.process.wait()
        self.sweep_by_another_start(lambda: wait_until(lambda: not memory_of(job.pid, "ddprun_scratch-"), "no scratch folder"))
        self.assertIsNone(submitted.poll())
        self.assertTrue(lock.exists())
        submitted.kill()
        submitted.wait()
        self.sweep_by_another_start(lambda: wait_until(lambda: not lock.exists(), "no lock"))

    @unittest.skipUnless(subprocess.run(["unshare", "--time", "--boottime=86400", "--fork", "true"], capture_output=True).returncode == 0,
                         "needs root for a time namespace")
    def test_a_start_in_another_time_namespace_lets_living_jobs_be(self):
        """There /proc shows other start times for the same processes."""
        for offset in "--boottime=86400", "--boottime=1":
            for where in (), ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"):
                with self.subTest(offset, where=where):
                    job = self.start("--nproc-per-node=2", self.worker(WAITING, "waiting.sh"), prefix=where)
                    self.heard(2)
                    # The workers alone: the job's sweep of orphans ends by itself.
                    # A worker in the midst of its exec has no variables to read.
                    wait_until(lambda job=job: len(ranks_of(job)) == 2, "both workers")
                    alive = ranks_of(job)
                    # By the cookie: launchers of other pid namespaces have the same pid.
                    (cookie,) = {entry.partition(b"=")[2].decode() for pid in alive for entry in environment_of(pid)
                                 if entry.startswith(b"DDPRUN_JOB=")}
                    memory = list(pathlib.Path("/dev/shm").glob(f"ddprun_scratch-{cookie}*"))
                    enter = ("nsenter", "--pid", "--mount", "--target", str(Job.children_of(job.pid)[0])) if where else ()
                    prefix = (*enter, "unshare", "--time", offset, "--fork")
                    self.assertEqual(self.run_job("--no-python", "sleep", "0.5", prefix=prefix)[0], 0)
                    self.assertLessEqual(alive, set(job.processes()))
                    self.assertTrue(memory and all(at.exists() for at in memory))
                    if where:
                        os.kill(Job.children_of(job.pid)[0], signal.SIGTERM)
                        job.finish()
                    else:
                        self.stop(job)

    @unittest.skipUnless(subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode == 0,
                         "needs root for a pid namespace")
    def test_a_pid_namespace_that_is_killed_as_a_whole(self):
        script = self.worker("#!/bin/sh\ntouch /dev/shm/ddprun-$DDPRUN_JOB-mine\necho $DDPRUN_JOB > {fifo}\nexec sleep 1000\n")
        job = self.start(script, prefix=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
        (cookie,) = self.heard(1)

        def memory():
            return [name for name in os.listdir("/dev/shm") if cookie in name]

        self.assertEqual(len(memory()), 3)
        job.process.kill()
        job.process.wait()
        job.wait_gone()
        self.sweep_by_another_start(lambda: wait_until(lambda: not memory(), "nothing in /dev/shm"))

    def start_killed(self):
        """A job whose launcher was killed, its lock, and how to start on its host. That has a
        /dev/shm of its own: starts of other tests would sweep there. It has no cgroup v2: a start
        that sees no process would end those of the job's cgroup."""
        host = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none /dev/shm && {NO_CGROUPS}; exec "$@"', "sh")
        job = self.start_escaping(host)
        launcher = job.pid
        workers = [job.worker(rank) for rank in range(2)]
        self.kill_both(launcher)
        job.process.wait()
        wait_until(lambda: all(state_of(pid) in ("Z", None) for pid in workers), "the workers' end")
        self.addCleanup(lambda: [os.kill(pid, signal.SIGKILL) for pid in job.processes()])
        stays = next(pid for pid in job.processes() if pathlib.Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        (lock,) = pathlib.Path(f"/proc/{stays}/root/dev/shm").glob(f"ddprun_lock-*-{launcher}-*")
        return job, lock, ("nsenter", "--mount", "--target", str(stays))

    def start_unseeing(self, there):
        """A start in a pid namespace below, as in a container that shares /dev/shm."""
        inside = (*there, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
        self.assertEqual(self.run_job("--no-python", "sleep", "0.5", prefix=inside)[0], 0)

    @unittest.skipUnless(subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode == 0,
                         "needs root for a pid namespace")
    def test_a_start_that_does_not_see_the_processes_leaves_them_to_one_that_does(self):
        job, lock, there = self.start_killed()
        self.start_unseeing(there)
        self.assertTrue(lock.exists())
        self.sweep_by_another_start(lambda: job.wait_gone(DEADLINE), prefix=there)

    @unittest.skipUnless(subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode == 0,
                         "needs root for a pid namespace")
    def test_a_lock_that_nobody_can_judge_goes_after_a_day(self):
        job, lock, there = self.start_killed()
        self.start_unseeing(there)
        os.utime(lock, (time.time() - 23 * 3600,) * 2)
        self.start_unseeing(there)
        self.assertTrue(lock.exists())
        os.utime(lock, (time.time() - 25 * 3600,) * 2)
        self.start_unseeing(there)
        self.assertFalse(lock.exists())
        self.assertNotEqual(job.processes(), [])

    def test_an_orphan_that_ends_is_reaped_while_a_shell_is_waited_for(self):
        """The shell dies of the request to end; it counts as running until its group is empty."""
        gate = self.fifo("gate")
        script = self.worker("#!/bin/sh\n(setsid sh -c 'echo $$ > {fifo}; exec sleep 1000' &)\n"
                             f"(trap '' TERM; echo there > {{fifo}}; read word < {gate}) &\nwait\n")
        job = self.start("--shutdown-timeout=60", script)
        (orphan,) = [int(line) for line in self.heard(2) if line != "there"]
        wait_until(lambda: orphan in Job.children_of(job.agent()), "the orphan below the agent")
        leader = job.worker(0)
        job.process.send_signal(signal.SIGTERM)
        wait_until(lambda: state_of(leader) in ("Z", None), "the end of the shell")
        os.kill(orphan, signal.SIGKILL)
        wait_until(lambda: state_of(orphan) is None, "an orphan that is reaped")
        self.assertIsNone(job.process.poll())
        with open(gate, "w") as file:
            file.write("go\n")
        self.assertEqual(job.finish()[0], 1)
        job.wait_gone()

    def test_the_temporary_folder_goes_with_a_killed_agent(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        job = self.start("--nproc-per-node=2", self.worker(SLEEPER), env=with_variables(TMPDIR=str(temporary)))
        self.heard(2)
        self.assertRegex(" ".join(os.listdir(temporary)), r"^torchelastic_\w+$")
        scratch = list(pathlib.Path("/dev/shm").glob(f"ddprun_scratch-*-{job.process.pid}-*"))
        self.assertEqual(len(scratch), 1)
        os.kill(job.agent(), signal.SIGKILL)
        self.assertNotEqual(job.finish()[0], 0)
        job.wait_gone()
        self.assertEqual(os.listdir(temporary), [])
        self.assertFalse(scratch[0].exists())

    def test_a_job_has_a_cgroup_where_the_host_allows_one(self):
        job = self.start("--nproc-per-node=2", self.worker(SLEEPER))
        self.heard(2)
        worker, agent = (pathlib.Path(f"/proc/{pid}/cgroup").read_text() for pid in (job.worker(0), job.agent()))
        if worker == agent:
            self.stop(job)
            self.skipTest("no cgroup v2 with cgroup.kill that may be written")
        (path,) = [line.removeprefix("0::") for line in worker.splitlines() if line.startswith("0::")]
        self.assertIn("/ddprun-", path)
        self.stop(job)
        folders = [mount + path for mount in cgroup_mounts()]
        self.assertNotEqual(folders, [])
        for folder in folders:
            self.assertFalse(os.path.exists(folder), folder)


def ranks_of(job):
    """The pids of the job's workers."""
    return {pid for pid in job.processes() if any(entry.startswith(b"RANK=") for entry in environment_of(pid))}


def memory_of(launcher, prefix):
    """Names in /dev/shm of the job that the process `launcher` started."""
    return list(pathlib.Path("/dev/shm").glob(f"{prefix}*-{launcher}-*"))


class ManyStarts(JobTest):
    def test_case_63_nothing_is_left(self):
        temporary, tables = self.folder / "tmp", self.folder / "tables"
        temporary.mkdir()
        script = self.script(f'#!/bin/sh\ncat {" ".join(TCP_TABLES)} > {tables}\necho "$DDPRUN_JOB $MASTER_PORT"\n')
        took = []
        for _ in range(STARTS):
            begin = time.monotonic()
            code, out, err = self.run_job(script, env=with_variables(TMPDIR=str(temporary)))
            took.append(time.monotonic() - begin)
            self.assertEqual(code, 0, err)
            cookie, port = out.split()
            sockets = listening_inodes(int(port), [tables])
            self.assertNotEqual(sockets, set(), "nothing listened, so nothing is proven")
            # Only these: another job may listen on the port by now.
            self.assertEqual(sockets & listening_inodes(int(port)), set())
            self.assertEqual(os.listdir(temporary), [])
            self.assertEqual([name for name in os.listdir("/dev/shm") if cookie in name], [])
            self.assertEqual(cgroups_named(cookie), [])
        told("a start of one worker, and looking for orphans", took)

    def test_beside_a_storm_of_short_processes(self):
        """A process that a start finds in /proc may be gone when it looks closer. That is no reason
        for a word."""
        storm = self.script("#!/bin/sh\nwhile :; do /bin/true & /bin/true; done\n", "storm.sh")
        blowing = [subprocess.Popen([storm], start_new_session=True) for _ in range(2)]
        try:
            for _ in range(STORM_STARTS):
                self.assertEqual(self.run_job("--no-python", "/bin/echo", "hello"), (0, "hello\n", ""))
        finally:
            for one in blowing:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()


def cgroup_mounts():
    """Returns the folders at which version 2 is mounted."""
    mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    return [mount for _, mount, kind, *_ in mounts if kind == "cgroup2"]


def cgroups_named(cookie):
    """Folders of cgroups that carry a job's name. Those of other jobs go meanwhile; os.walk()
    passes over them."""
    return [os.path.join(folder, name) for mount in cgroup_mounts() for folder, names, _ in os.walk(mount)
            for name in names if cookie in name]


class OddStarts(JobTest):
    """Odd ways to be started."""

    def test_sigchld_ignored_by_the_parent(self):
        code, _, _ = self.start("/bin/true", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)).finish()
        self.assertEqual(code, 0)

    def test_standard_descriptors_closed(self):
        closing = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
        job = self.start("-t", "1", self.script("#!/bin/sh\necho a\nexit 5\n"), prefix=closing)
        self.assertEqual(job.finish()[0], 1)
        job.wait_gone()

    @unittest.skipUnless(subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode == 0,
                         "needs root for a pid namespace")
    def test_as_pid_1_of_a_container(self):
        script = self.worker(SLEEPER.replace("echo $RANK", "(setsid sleep 1000 &); echo $RANK"))
        job = self.start("--nproc-per-node=2", script, prefix=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
        self.heard(2)
        # Pid 1 in there, of whom the kernel keeps unhandled signals.
        os.kill(job.children_of(job.pid)[0], signal.SIGTERM)
        code, _, err = job.finish()
        self.assertEqual(code, 1)
        self.assertIn("received SIGTERM", err)
        job.wait_gone()

    def test_what_was_there_before_lives_on(self):
        """`monitor & exec ddprun …`: the shell's children become ours without our doing."""
        job = self.start("/bin/true", prefix=("sh", "-c", 'sleep 1000 > /dev/null 2>&1 & echo $!; exec "$@"', "sh"))
        code, out, _ = job.finish()
        earlier = int(out)
        self.assertEqual(code, 0)
        os.kill(earlier, signal.SIGKILL)  # raises where it is gone

    def test_the_environment_of_a_worker_that_is_gone_condemns_nobody(self):
        """A worker may resubmit its job. Its cookie is then in the environment of a new one, and of
        the shell above it."""
        cookie = f"{os.stat('/proc/self/ns/pid').st_ino}-4194000-12345-{uuid.uuid4().hex[:16]}"
        lock = pathlib.Path(f"/dev/shm/ddprun_lock-{cookie}")  # free: the launcher is gone
        lock.touch(0o600)
        self.addCleanup(lock.unlink, missing_ok=True)
        env = {**os.environ, "DDPRUN_JOB": cookie}
        job = self.start("/bin/true", env=env, prefix=("sh", "-c", '"$@"; echo alive', "sh"))
        self.assertEqual(job.finish()[:2], (0, "alive\n"))


if __name__ == "__main__":
    main()
