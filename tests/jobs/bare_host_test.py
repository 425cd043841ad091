"""Hosts that lack what a launcher likes to have: folders that cannot be written, /dev/shm, HOME,
the working directory. The job runs, and one warning says what is missing. Only what the user asked
for by name may stop it."""

import os
import pathlib
import shutil
import subprocess
import unittest

from machine import free_port
from support import DDPRUN, JobTest, main, sanitized, with_variables

WITHOUT_NAMESPACE = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0
READ_ONLY = "mount -t tmpfs -o ro none {}"
SAY = ("--no-python", "sh", "-c", "echo out $RANK; echo err $RANK >&2")


def in_mounts(*commands):
    """The job, in mounts of its own that the commands change."""
    return "unshare", "--mount", "sh", "-c", " && ".join((*commands, 'exec "$@"')), "sh"


class BareHost(JobTest):
    def runs(self, *flags, warnings=1, wanted=(), env=None, prefix=(), **options):
        """A job that runs, with so many lines of our own, and all the wanted words in them. Its own
        files."""
        env = {"OMP_NUM_THREADS": "1", **(env or {})}
        code, out, err = self.run_job("--standalone", "--nproc-per-node=2", *flags, *SAY, env=with_variables(**env), prefix=prefix,
                                      **options)
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(line.rpartition(":")[2] for line in out.splitlines()), ["out 0", "out 1"])
        ours = [line for line in err.splitlines() if "err " not in line.rpartition(":")[2]]
        self.assertEqual(len(ours), warnings, err)
        for word in wanted:
            self.assertIn(word, err)
        return err

    def test_a_temporary_folder_that_is_not_there(self):
        for name in "TMPDIR", "TEMP", "TMP":
            for flags in (), ("--tee=3",):
                with self.subTest(name, flags=flags):
                    missing = self.folder / "missing"
                    self.runs(*flags, env={name: str(missing)}, wanted=[f"{name}={missing}", "No such file", "/tmp/torchelastic_"])

    def test_the_next_place_is_taken_that_the_user_named(self):
        self.runs("--tee=3", env={"TMPDIR": "/proc", "TMP": str(self.folder)}, wanted=["TMPDIR=/proc", f"{self.folder}/torchelastic_"])
        (root,) = self.folder.glob("torchelastic_*")
        self.assertEqual(len(list(root.rglob("stdout.log"))), 2)

    @unittest.skipIf(WITHOUT_NAMESPACE, "mounts of its own need CAP_SYS_ADMIN")
    def test_folders_that_are_read_only(self):
        places = [READ_ONLY.format(place) for place in ("/tmp", "/var/tmp")]
        nowhere = [*places, "cd /proc"]
        for flags in (), ("--tee=3",), ("--tee=3", "--local-ranks-filter=0,1"):
            with self.subTest(flags):
                self.runs(*flags, prefix=in_mounts(places[0]), wanted=["/tmp", "Read-only", "/var/tmp/torchelastic_"])
                self.runs(*flags, prefix=in_mounts(*nowhere), wanted=["Read-only", "are not kept"])
        code, out, err = self.run_job("--redirects=3", "--standalone", *SAY, prefix=in_mounts(*nowhere))
        self.assertEqual((code, out), (0, "out 0\n"), err)

    @unittest.skipIf(WITHOUT_NAMESPACE, "mounts of its own need CAP_SYS_ADMIN")
    def test_no_shared_memory(self):
        for command in READ_ONLY.format("/dev/shm"), "mount -t tmpfs none /dev", "mount -t tmpfs -o size=4k,nr_inodes=1 none /dev/shm":
            with self.subTest(command):
                null = ["mknod -m 666 /dev/null c 1 3"] if command.endswith("/dev") else []
                self.runs(prefix=in_mounts(command, *null), wanted=["/dev/shm", "without standbys"])

    @unittest.skipIf(WITHOUT_NAMESPACE, "mounts of its own need CAP_SYS_ADMIN")
    def test_a_log_disk_that_is_full_at_a_restart(self):
        """The first attempt fills it. The second has no place for its files, and goes on."""
        logs = self.folder / "logs"
        logs.mkdir()
        script = self.script(f"#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 1 && echo done $RANK && exit 0\n"
                             f"i=0; while mkdir {logs}/$RANK.$i 2> /dev/null; do i=$((i+1)); done\nexit 3\n")
        prefix = in_mounts(f"mount -t tmpfs -o size=64k,nr_inodes=30 none {logs}")
        code, out, err = self.run_job("--standalone", "--nproc-per-node=2", "--max-restarts=1", f"--log-dir={logs}", "--tee=3",
                                      script, prefix=prefix, env=with_variables(OMP_NUM_THREADS="1"))
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["done 0", "done 1"])
        self.assertEqual(err.count("workers get no log files from now on"), 1, err)

    def test_no_home_and_no_working_directory(self):
        gone = self.folder / "gone"
        env = {name: value for name, value in with_variables(OMP_NUM_THREADS="1").items() if name not in ("HOME", "PWD")}
        for home in {}, {"HOME": "/proc"}, {"HOME": "/nonexistent"}:
            for flags in (), ("--tee=3",):
                with self.subTest(home, flags=flags):
                    prefix = "sh", "-c", f'mkdir {gone} && cd {gone} && rmdir {gone} && exec "$@"', "sh"
                    code, out, err = self.run_job("--standalone", *flags, "--no-python", "echo", "hi", env=env | home, prefix=prefix)
                    self.assertEqual((code, out.rpartition(":")[2], err), (0, "hi\n", ""))

    def test_too_few_descriptors(self):
        """One line names the limit; nothing aborts."""
        for limit in (8, 9, 10, 12, 14, 15):
            with self.subTest(limit):
                self.refused(1, ["ulimit -n", f"{limit} now"], "--standalone", "--no-python", "/bin/true",
                             prefix=("sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh"))
        for limit in (16, 18, 20, 22):  # enough for the agent, and not for the worker
            with self.subTest(limit):
                code, _, err = self.run_job("--standalone", "--no-python", "/bin/true",
                                            prefix=("sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh"))
                self.assertNotIn("SIGABRT", err)
                if code != 0:
                    self.assertIn("Too many open files", err)

    def check_two_nodes(self, limits, hint, prefixes=((), ())):
        """Both nodes under limits of prlimit(1): they run well, or a line names the limit. Nothing
        aborts, and nothing is left."""
        meet = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
        jobs = [self.start(*meet, f"--rdzv-conf=read_timeout=1,join_timeout=1,is_host={node}", "--no-python", "/bin/true",
                           env=with_variables(OMP_NUM_THREADS="1"), prefix=(*prefixes[node], "prlimit", *limits)) for node in range(2)]
        results = [job.finish() for job in jobs]
        for job in jobs:
            job.wait_gone()
            self.assertEqual(list(pathlib.Path("/dev/shm").glob(f"ddprun*-{job.pid}-*")), [], results)
        codes, text = {code for code, _, _ in results}, "".join(err for _, _, err in results)
        self.assertLessEqual(codes, {0, 1}, results)
        self.assertTrue(codes == {0} or hint in text, results)
        return codes

    @unittest.skipIf(sanitized() or not shutil.which("prlimit"), "needs prlimit(1); a sanitizer takes room of its own")
    def test_two_nodes_with_too_little_room(self):
        """gRPC aborts or hangs where it gets no descriptor, thread or memory."""
        for limit in range(11, 29, 2):
            with self.subTest(files=limit):
                self.check_two_nodes([f"--nofile={limit}:{limit}"], f"`ulimit -n` ({limit} now)")
        for mebibytes in (28, 60, 90, 108):
            with self.subTest(mebibytes=mebibytes):
                self.check_two_nodes([f"--as={mebibytes << 20}:{mebibytes << 20}"], f"`ulimit -v` ({mebibytes << 10} now)")
        self.assertEqual(self.check_two_nodes(["--nofile=40:40", f"--as={400 << 20}"], ""), {0})

    @unittest.skipIf(sanitized() or not shutil.which("prlimit"), "needs prlimit(1); a sanitizer takes room of its own")
    def test_too_few_processes(self):
        if os.geteuid() != 0 or not shutil.which("setpriv"):
            self.skipTest("needs root and setpriv(1): the limit does not hold for root, and counts all processes of a user")
        if subprocess.run(["setpriv", "--reuid=61501", "--clear-groups", "test", "-x", DDPRUN], check=False).returncode != 0:
            self.skipTest(f"other users may not execute {DDPRUN}")
        users = [("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") for user in (61_501, 61_502)]
        for limit in (1, 3, 6, 9, 12):
            with self.subTest(limit):
                self.check_two_nodes([f"--nproc={limit}:{limit}"], f"`ulimit -u` ({limit} now)", users)

    @unittest.skipIf(WITHOUT_NAMESPACE, "mounts of its own need CAP_SYS_ADMIN")
    def test_a_log_disk_that_is_full_from_the_start(self):
        logs = self.folder / "logs"
        logs.mkdir()
        prefix = in_mounts(f"mount -t tmpfs -o size=16k none {logs}")
        script = self.script("#!/bin/sh\nseq 9000\n")
        env = with_variables(OMP_NUM_THREADS="1")
        # The file takes what fits, and the console all of it.
        code, out, err = self.run_job(f"--log-dir={logs}", "--tee=3", script, prefix=prefix, env=env)
        self.assertEqual((code, out.rpartition(":")[2]), (0, "9000\n"), err)
        self.assertIn("No space left on device; make room on that file system", err)
        # The worker itself writes into the file, and fails.
        code, _, err = self.run_job(f"--log-dir={logs}", "--redirects=3", script, prefix=prefix, env=env)
        self.assertEqual(code, 1)
        self.assertIn("No space left on device; make room on that file system", err)

    def test_what_the_user_named_may_stop_the_job(self):
        # Rights would not do: root may write everywhere else.
        self.refused(1, ["--log-dir=/proc/logs"], "--log-dir=/proc/logs", "/bin/true")
        blocked = self.folder / "file"
        blocked.touch()
        self.refused(1, [f"--log-dir={blocked}"], f"--log-dir={blocked}", "/bin/true")


if __name__ == "__main__":
    main()
