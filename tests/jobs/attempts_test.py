"""Attempts that end a job: without progress, by a worker's exit code, by a device that is not free.
And the exit codes that a user asks for."""

import contextlib
import os
import signal
import subprocess
import sys
import unittest

from machine import free_port, wait_until
from support import REPORTING, SLEEPER, JobTest, main, with_variables

CAN_MOUNT = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
# A /dev of the test's own, with a file that stands in for a GPU. A process that is no child of the
# agent opens it when rank 0 has said the job's name. $1 is the folder in which the ranks report. $2
# is how long it holds the device. $3 is 1 if it has the job's name, as workers do. $4 is another
# file that it opens: CUDA has the one of its memory.
DEVICE = """
mount -t tmpfs none $0; mkdir $0/shm $0/pts; touch $0/nvidia0 $0/nvidia-uvm
for name in null zero full random urandom tty; do touch $0/$name; mount --bind /dev/$name $0/$name; done
mount --bind /dev/shm $0/shm; mount --bind /dev/pts $0/pts; ln -s /proc/self/fd $0/fd
mount --rbind $0 /dev
folder=$1 seconds=$2 is_ours=$3 also=$4
shift 4
(
  while [ ! -e $folder/0.0 ]; do sleep 0.02; done
  test -z "$is_ours" || export DDPRUN_JOB=$(tr -d '"' < $folder/0.0)
  exec sh -c 'exec 3</dev/nvidia0 4<$2; echo $$ > $0/held; exec sleep $1' $folder $seconds $also
) > /dev/null 2>&1 &
exec "$@"
"""


# A file server that answers nothing: FUSE with nobody behind it, until the job is gone.
DEAF = """
import ctypes, os, signal, sys
server, libc = os.open("/dev/fuse", os.O_RDWR), ctypes.CDLL(None)
assert libc.mount(b"deaf", sys.argv[1].encode(), b"fuse", 0, f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()) == 0
if os.fork() == 0:
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    for fd in 0, 1, 2: os.close(fd)
    while True: signal.pause()
os.close(server)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Attempts(JobTest):
    def python(self, text, name="t.py"):
        return self.script("import sys\n" + REPORTING + "print('try', flush=True)\n" + text, name)

    def run_attempts(self, text, *flags, name="t.py"):
        """(exit code, attempts, stderr) of a Python worker."""
        code, out, err = self.run_job(*flags, self.python(text, name), self.folder, env=with_variables())
        return code, out.count("try"), err


class NoProgress(Attempts):
    STUCK = "if attempt == 0: count_a_step()\nraise ValueError('bad')\n"

    def names_the_row(self, err, numbers):
        self.assertEqual(err.count("no progress in 3 attempts: "), 1, err)
        self.assertRegex(err, "no progress in 3 attempts: the last 3 attempts failed before a step, with the same "
                              "ValueError, rank 0: the data or the program\n")
        rows = [line.split() for line in err.splitlines() if line.startswith("  ") and line.endswith("exit code 1: ValueError: bad")]
        self.assertEqual([(row[0], row[2], row[3]) for row in rows], [(number, "0", "0") for number in numbers])

    def test_three_attempts_without_a_step_end_the_job(self):
        file = self.folder / "step"  # nobody writes it
        code, tries, err = self.run_attempts(self.STUCK, "--max-restarts=9", "--exit-codes=detailed", f"--progress={file}")
        self.assertEqual((code, tries), (93, 4), err)
        self.names_the_row(err, "234")

    def test_with_the_flags_of_torchrun_they_are_named_once_and_restarts_go_on(self):
        code, tries, err = self.run_attempts(self.STUCK, "--max-restarts=5", "--exit-codes=detailed")
        self.assertEqual((code, tries), (120, 6), err)
        self.names_the_row(err, "234")
        self.assertIn("restarts go on; --max-restarts-without-progress=3 ends such a job\n", err)

    def test_a_program_that_never_made_a_step_is_tried_as_often_as_torchrun_does(self):
        flags = ("--max-restarts=4",)
        self.assertEqual(self.run_attempts("raise ValueError('bad')\n", *flags)[:2], (1, 5))

    def test_a_limit_that_is_given_counts_from_the_first_attempt(self):
        flags = "--max-restarts=9", "--max-restarts-without-progress=2"
        self.assertEqual(self.run_attempts("raise ValueError('bad')\n", *flags)[:2], (1, 2))

    def test_a_limit_of_0_is_none(self):
        flags = "--max-restarts=4", "--max-restarts-without-progress=0"
        self.assertEqual(self.run_attempts("if attempt == 0: count_a_step()\nsys.exit(3)\n", *flags)[:2], (1, 5))

    def test_all_nodes_are_told_why(self):
        flags = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=j", "--max-restarts=9",
                 "--max-restarts-without-progress=2", "--exit-map=KeyError:44")
        script = self.python("if os.environ['RANK'] == '1': raise KeyError('bad')\ntime.sleep(1000)\n")
        jobs = [self.start(*flags, f"--node-rank={node}", script, self.folder, env=with_variables()) for node in range(2)]
        for job in jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 44, err)
            self.assertIn("all 2 attempts failed before a step, with the same KeyError, rank 1 on ", err)

    @unittest.skipUnless(CAN_MOUNT and os.path.exists("/dev/fuse"), "a file server of the test's own needs CAP_SYS_ADMIN and /dev/fuse")
    def test_files_that_do_not_answer_hold_nobody_up(self):
        """The job ends when its line on each file is there."""
        place = self.folder / "deaf"
        place.mkdir()
        flags = f"--progress={place}/step", f"--preempt-file={place}/notice", "--max-restarts=1"
        text = "while attempt and not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.01)\nsys.exit(3 * (attempt == 0))\n"
        job = self.start(*flags, self.python(text), self.folder, env=with_variables(), prefix=("unshare", "--mount", sys.executable, "-c", DEAF, str(place)))
        self.read_until(job.process.stderr.fileno(), f"--preempt-file={place}/notice: the file does not answer; ")
        (self.folder / "go").touch()
        code, out, _ = job.finish()
        self.assertEqual((code, out.count("try")), (0, 2))

    def test_a_job_that_goes_one_step_further_each_time_is_never_stopped(self):
        file = self.folder / "step"
        write = f"open({str(file)!r}, 'w').write(str(%s))\nsys.exit(3)\n"
        flags = "--max-restarts=6", f"--progress={file}", "--max-restarts-without-progress=1"
        self.assertEqual(self.run_attempts(write % "attempt + 1", *flags)[:2], (1, 7))
        # Its steps are the same, from the second attempt on.
        code, tries, err = self.run_attempts(write % "1200 + 4 * (attempt > 0)", *flags, name="same.py")
        self.assertEqual((code, tries), (1, 3), err)
        self.assertIn("failed after step 1204, with exit code 3", err)


class Strikes(Attempts):
    def test_a_node_that_fails_twice_leaves_its_seat_to_a_spare(self):
        done, file = self.folder / "done", self.folder / "strikes"
        flags = ("--no-python", "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=j", "--max-restarts=200",
                 "--strikes=2", "--exit-excludes-node=9", f"--strike-file={file}")
        wait = f"while [ ! -e {done} ]; do sleep 0.02; done"
        good = self.start(*flags, "--node-rank=0", "sh", "-c", wait)
        bad = self.start(*flags, "--node-rank=1", "sh", "-c", "exit 9")
        wait_until(file.exists, "the second round")
        spare = self.start(*flags, "sh", "-c", f"touch {done}")
        for job in (good, bad, spare):
            code, _, err = job.finish()
            self.assertEqual(code, 0, err)
        self.assertRegex(file.read_text(), r"^ddprun-strikes \d+\n\S+ strikes=[\d,]+ pauses=\d+ left=\d+\n$")

    def test_a_bad_file_is_refused(self):
        file = self.folder / "strikes"
        file.write_text("ddprun-strikes 5\nhost strikes=x\n")
        code, _, err = self.run_job("--no-python", "--strikes=2", f"--strike-file={file}", "true")
        self.assertEqual(code, 1)
        self.assertIn(f"--strike-file={file}: expected lines as in NODE strikes=10,600 pauses=0 left=0", err)


class ExitCodes(Attempts):
    def test_are_those_of_the_map(self):
        of_a_file = self.folder / "codes"
        of_a_file.write_text("# of the queue\nValueError : 43\n")
        late = "class F:\n  def __del__(self): raise KeyError('late')\n"
        for text, given, wanted in (("print('KeyError: no traceback', file=sys.stderr)\nsys.exit(3)\n", "KeyError:41,failed:46", 46),
                                    (late + "f = F()\nraise ValueError('bad')\n", "KeyError:41,ValueError:47", 47),
                                    ("raise ValueError('bad')\n", "TypeError:41,ValueError:42,failed:9", 42),
                                    ("raise ValueError('bad')\n", of_a_file, 43),
                                    ("os.kill(os.getpid(), 9)\n", "signal:SIGKILL:137", 137),
                                    ("sys.exit(3)\n", "exit:4:40,failed:9", 9),
                                    ("sys.exit(3)\n", "exit:4:40", 1),
                                    ("", "failed:9", 0)):
            with self.subTest(given):
                name = f"{wanted}.py"
                self.assertEqual(self.run_attempts(text, f"--exit-map={given}", name=name)[:2], (wanted, 1))

    def test_of_a_program_that_cannot_start(self):
        code, tries, err = self.run_attempts("import nosuchmodule\n", "--max-restarts=9", "--exit-map=ModuleNotFoundError:48,failed:9")
        self.assertEqual((code, tries), (48, 3), err)
        no_program = self.script("#!/no/such/interpreter\n", "none.sh")
        flags = "--no-python", "--exit-codes=detailed", "--exit-map=failed:49", "--max-restarts=1", "--max-restarts-without-progress=1"
        self.assertEqual(self.run_job(*flags, no_program)[0], 49)

    def test_of_a_job_that_was_told_to_end(self):
        job = self.start("--exit-map=preempted:85", self.worker(SLEEPER))
        self.heard(1)
        os.kill(job.pid, signal.SIGTERM)
        self.assertEqual(job.finish()[0], 85)

    def test_of_a_map_that_cannot_be_read(self):
        for given in "ValueError:256", "/no/such/file", "node":
            code, _, err = self.run_job(f"--exit-map={given}", self.script("#!/bin/sh\n"))
            self.assertEqual((code, err.count("\n")), (1, 1), err)
            self.assertIn(f"--exit-map={given}: ", err)
            self.assertIn("KEY:CODE", err)

    def test_of_a_worker_end_the_job_also_after_another_failure(self):
        """The second node's worker ends when it is asked to."""
        flags = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=j", "--max-restarts=9",
                 "--exit-ends-job=7", "--exit-codes=detailed")
        script = self.python("import signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nreport(1)\n"
                             "while not os.path.exists(f'{sys.argv[1]}/{1 - int(os.environ[\"RANK\"])}.{attempt}'): time.sleep(0.01)\n"
                             "if os.environ['RANK'] == '0': sys.exit(1)\ntime.sleep(1000)\n")
        jobs = [self.start(*flags, f"--node-rank={node}", script, self.folder, env=with_variables()) for node in range(2)]
        for job in jobs:
            code, out, err = job.finish()
            self.assertEqual((code, out.count("try")), (7, 1), err)

    def test_of_a_worker_end_the_job_or_begin_it_anew(self):
        flags = "--max-restarts=3", "--exit-codes=detailed"
        self.assertEqual(self.run_attempts("sys.exit(7)\n", "--exit-ends-job=5,7", *flags)[:2], (7, 1))
        again = "sys.exit(0 if attempt < 2 else 8)\n"
        self.assertEqual(self.run_attempts(again, "--exit-restarts=0", "--exit-ends-job=8", *flags, name="a.py")[:2], (8, 3))


@unittest.skipUnless(CAN_MOUNT, "a mount namespace needs CAP_SYS_ADMIN")
class Devices(Attempts):
    """Rank 0 has a device when rank 1 fails. Then another process has it for some seconds."""

    WORKER = """
if attempt == 0 and os.environ["RANK"] == "0":
    device = open("/dev/nvidia0"), open("/dev/nvidia-uvm")
    report(os.environ["DDPRUN_JOB"])
    time.sleep(1000)
while attempt == 0 and not os.path.exists(f"{sys.argv[1]}/held"): time.sleep(0.01)
sys.exit(3 if attempt == 0 else 0)
"""

    def held_for(self, seconds, *flags, is_ours=False, also="/dev/nvidia-uvm", until=None):
        """(exit code, attempts, stderr) of a job. A process of the test holds its device, for so
        many seconds at most. It ends when stderr has `until`, and with the job."""
        place = self.folder / "dev"
        place.mkdir()
        arguments = str(self.folder), str(seconds), "1" if is_ours else "", also
        job = self.start("--nproc-per-node=2", "--max-restarts=1", *flags, self.python(self.WORKER), self.folder,
                         env=with_variables(), prefix=("unshare", "--mount", "sh", "-ec", DEVICE, str(place), *arguments))
        before = self.read_until(job.process.stderr.fileno(), until) if until else ""
        if until:
            self.end_holder()
        code, out, err = job.finish()
        self.end_holder()
        job.wait_gone()
        return code, out.count("try"), before + err

    def end_holder(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / "held").read_text()), signal.SIGKILL)

    def test_that_are_free_hold_nobody_up(self):
        code, tries, err = self.held_for(0)
        self.assertEqual((code, tries), (0, 4), err)
        self.assertNotIn("a device", err)

    def test_that_another_process_holds_are_waited_for(self):
        code, tries, err = self.held_for(1000, until="holds /dev/nvidia0")
        self.assertEqual((code, tries), (0, 4), err)
        self.assertRegex(err, r"the next attempt waits for a device: pid \d+ of user \w+ \(sleep 1000\) holds /dev/nvidia0")

    def test_that_another_process_keeps_end_the_job(self):
        code, tries, err = self.held_for(1000, "--device-timeout=2.5", "--exit-codes=detailed")
        self.assertEqual((code, tries), (123, 2), err)
        self.assertRegex(err, r"a device is not free \d+ s after the attempt before: pid (\d+) of user \w+ \(sleep 1000\) holds "
                              r"/dev/nvidia0; end that process \(kill -9 \1\), or start the job without --device-timeout")

    def test_that_another_process_keeps_may_be_left_to_it(self):
        self.assertEqual(self.held_for(1000, "--device-timeout=0")[:2], (0, 4))

    def test_that_a_monitor_looks_at_hold_nobody_up(self):
        self.assertEqual(self.held_for(1000, "--device-timeout=1", also="/dev/null")[:2], (0, 4))

    def test_that_a_process_with_the_name_of_the_job_keeps_are_not_taken_from_it(self):
        """A worker may have asked a daemon for it, which is no part of the attempt."""
        code, tries, err = self.held_for(1000, is_ours=True, until="the next attempt waits for a device: pid ")
        self.assertEqual((code, tries), (0, 4), err)


if __name__ == "__main__":
    main()
