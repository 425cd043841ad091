"""The worker that is to blame: the root cause, and the error files that workers write."""

import json
import os
import pathlib
import re
import subprocess
import time
import unittest

from support import JobTest, main, torch_python, with_variables

# Writes what @record writes for a ValueError, then ends as Python does.
RECORDING = """#!/bin/sh
test $RANK = 1 || exec sleep 1000
printf '%s' '{"message": {"message": "ValueError: no such layer", "extraInfo": {"py_callstack": \
"Traceback (most recent call last):\\n  File \\"train.py\\", line 3, in main\\n\
ValueError: no such layer", "timestamp": "{now}"}}}' > "$TORCHELASTIC_ERROR_FILE"
exit 1
"""
# The same by PyTorch itself.
RECORDED = """
import os, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no such layer")
    time.sleep(1000)

main()
"""
TORCH_DEADLINE = 120  # seconds; importing PyTorch takes a few


class Teardown(JobTest):
    """A worker that has its error on record, and does not end."""

    HANGING = RECORDING.replace("exit 1\n", "exec sleep 1000\n")

    def test_a_recorded_error_counts_where_the_teardown_hangs(self):
        code, _, err = self.run_job("--nproc-per-node=2", "--teardown-timeout=0.5", self.script(self.HANGING))
        self.assertEqual(code, 1)
        self.assertRegex(err, r"rank +: 1 \(local_rank: 1\)")
        self.assertIn("ValueError: no such layer", err)

    def test_the_job_goes_on_as_if_it_had_died(self):
        script = self.script("#!/bin/sh\ntest $TORCHELASTIC_RESTART_COUNT = 0 || exit 0\n" + self.HANGING[len("#!/bin/sh\n"):])
        code, _, err = self.run_job("--nproc-per-node=2", "--teardown-timeout=0.5", "--max-restarts=1", script)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"rank 1 \(local rank 1, pid \d+\) on \S+ recorded an error and did not end within 0.5 s "
                              r"\(--teardown-timeout\); restart 1 of 1")

    def test_0_waits_as_torchrun_does_and_a_worker_that_ends_in_time_is_let_be(self):
        worker = RECORDING.replace("exit 1\n", "sleep 1\nexit 7\n")
        for flag in "--teardown-timeout=0", "--teardown-timeout=60":
            with self.subTest(flag):
                code, _, err = self.run_job("--nproc-per-node=2", flag, self.script(worker))
                self.assertEqual(code, 1)
                self.assertRegex(err, r"exitcode +: 7 ")


class RootCause(JobTest):
    def test_case_15_the_first_failure_is_the_root_cause(self):
        script = self.script('#!/bin/sh\ntest "$RANK" = 1 && exit 7\nexec sleep 60\n')
        code, _, err = self.run_job("--nproc-per-node=2", "--log-dir", self.folder / "logs", script)
        self.assertEqual(code, 1)
        cause = self.cause(err)
        self.assertRegex(cause, r"rank +: 1 \(local_rank: 1\)")
        self.assertRegex(cause, r"exitcode +: 7 \(pid: \d+\)")
        self.assertRegex(cause, r"rank 0 \(exitcode -15\)")

    def test_case_16_a_signal_is_named(self):
        script = self.script("#!/bin/sh\nkill -9 $$\n")
        code, _, err = self.run_job(script)
        self.assertEqual(code, 1)
        self.assertRegex(err, r"exitcode +: -9")
        self.assertIn("Signal 9 (SIGKILL)", err)

    def test_case_17_the_earlier_failure_wins(self):
        script = self.script("#!/bin/sh\nif test $RANK = 0; then trap 'exit 3' TERM; echo > $0.ready\n"
                             "while :; do sleep 0.1; done; fi\nuntil test -e $0.ready; do :; done\nexit 4\n")
        code, _, err = self.run_job("--nproc-per-node=2", "--monitor-interval=1", script)
        self.assertEqual(code, 1)
        self.assertRegex(self.cause(err), r"rank +: 1 ")
        self.assertIn("rank 0 (exitcode 3)", err)


class ErrorFiles(JobTest):
    def failing(self, *args, timeout=None, **options):
        """A job that fails; its stderr."""
        env = options.pop("env", {}) | {"TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        code, _, err = self.run_job(*args, timeout=timeout, env=with_variables(**env), **options)
        self.assertEqual(code, 1, err)
        return err

    def recording(self):
        return self.script(RECORDING.replace("{now}", str(int(time.time()))))

    def check_recorded(self, err):
        cause = self.cause(err)
        self.assertRegex(cause, r"rank +: 1 \(local_rank: 1\)")
        self.assertRegex(cause, r"exitcode +: 1 \(pid: \d+\)")
        self.assertRegex(cause, r"error_file: .*/attempt_0/1/error\.json\n")
        path = pathlib.Path(re.search(r"error_file: (.*)\n", cause)[1])
        self.assertIn("ValueError", json.loads(path.read_text())["message"]["message"])
        self.assertRegex(cause, r"traceback : Traceback \(most recent call last\):\n")
        self.assertRegex(cause, r"\n +ValueError: no such layer\n")
        self.assertRegex(cause, r"rank 0 \(exitcode -15\)")

    def test_case_18_a_recorded_exception(self):
        self.check_recorded(self.failing("--nproc-per-node=2", self.recording()))

    @unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
    def test_case_18_recorded_by_pytorch(self):
        script = self.script(RECORDED, "recorded.py")
        err = self.failing("--nproc-per-node=2", script, env={"PYTHON_EXEC": torch_python()}, timeout=TORCH_DEADLINE)
        self.check_recorded(err)

    def test_case_19_the_launchers_own_error_file(self):
        path = self.folder / "f"
        path.write_text("of an earlier run")
        self.failing("--nproc-per-node=2", self.recording(), env={"TORCHELASTIC_ERROR_FILE": str(path)})
        message = json.loads(path.read_text())["message"]
        self.assertEqual(message["errorCode"], 1)
        self.assertEqual(message["message"], "ValueError: no such layer")
        self.assertIn("line 3, in main", message["extraInfo"]["py_callstack"])

    @unittest.skipUnless(subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0, "mount namespaces need CAP_SYS_ADMIN")
    def test_the_error_file_may_be_a_pods_termination_message(self):
        """A file that is mounted into a folder that is read-only: it cannot be replaced, only
        written."""
        folder, path = self.folder / "dev", self.folder / "message"
        folder.mkdir()
        path.write_text("")
        plant = 'mount -t tmpfs tmpfs "$0"; touch "$0/log"; mount --bind "$1" "$0/log"; mount -o remount,ro "$0"; shift; exec "$@"'
        code, _, err = self.start(self.script("#!/bin/sh\nexit 5\n"), prefix=("unshare", "--mount", "sh", "-ec", plant, str(folder), str(path)),
                                  env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(folder / "log")}).finish()
        self.assertEqual(code, 1, err)
        self.assertNotIn("write ", err)
        self.assertEqual(json.loads(path.read_text())["message"]["errorCode"], 5)

    def test_case_20_a_short_record(self):
        script = self.script(
            "#!/bin/sh\n"
            """echo '{"message":"text","timestamp":1700000000}' > "$TORCHELASTIC_ERROR_FILE"\n"""
            "exit 5\n")
        cause = self.cause(self.failing(script, env={"TZ": "UTC"}))
        self.assertRegex(cause, r"traceback : text\n")
        self.assertRegex(cause, r"time +: 2023-11-14_22:13:20\n")
        self.assertRegex(cause, r"exitcode +: 5 ")

    def test_case_21_a_broken_record_hides_nothing(self):
        for text in "{]", "", '{"message": {"message": "m"}}', "\\0\\377", "[]", "null":
            with self.subTest(text):
                script = self.script(f"#!/bin/sh\nprintf '{text}' > \"$TORCHELASTIC_ERROR_FILE\"\nexit 5\n")
                cause = self.cause(self.failing(script))
                self.assertRegex(cause, r"exitcode +: 5 ")
                self.assertRegex(cause, r"rank +: 0 ")

    def test_case_22_who_recorded_first_is_the_cause(self):
        # Rank 1 dies clearly later, by the 0.3 s that are the case itself.
        script = self.script(
            "#!/bin/sh\nif test $RANK = 0\nthen\n"
            """  echo '{"message":"I broke it"}' > "$TORCHELASTIC_ERROR_FILE"\n"""
            f"  echo > {self.folder}/recorded\n  exec sleep 1000\nfi\n"
            f"until test -e {self.folder}/recorded; do :; done\nsleep 0.3\nexit 3\n")
        err = self.failing("--nproc-per-node=2", script)
        cause = self.cause(err)
        self.assertRegex(cause, r"rank +: 0 ")
        self.assertIn("I broke it", cause)
        self.assertRegex(err, r"rank 1 \(local_rank: 1\) exitcode: 3 ")


if __name__ == "__main__":
    main()
