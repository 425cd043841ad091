"""Acceptance cases 18 to 23: error files, and programs that cannot be started. Cases 15 to 17 and
24 are in tests/jobs/jobs_test.py."""

import json
import pathlib
import re
import time
import unittest

from cases_support import CaseTest, main, torch_python, with_variables

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


class CaseErrorFiles(CaseTest):
    def fail(self, *args, timeout=None, **options):
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
        self.check_recorded(self.fail("--nproc-per-node=2", self.recording()))

    @unittest.skipUnless(torch_python(), "needs PyTorch in .venv")
    def test_case_18_recorded_by_pytorch(self):
        script = self.script(RECORDED, "recorded.py")
        err = self.fail("--nproc-per-node=2", script, env={"PYTHON_EXEC": torch_python()},
                        timeout=TORCH_DEADLINE)
        self.check_recorded(err)

    def test_case_19_the_launchers_own_error_file(self):
        path = self.folder / "f"
        path.write_text("of an earlier run")
        self.fail("--nproc-per-node=2", self.recording(),
                  env={"TORCHELASTIC_ERROR_FILE": str(path)})
        message = json.loads(path.read_text())["message"]
        self.assertEqual(message["errorCode"], 1)
        self.assertEqual(message["message"], "ValueError: no such layer")
        self.assertIn("line 3, in main", message["extraInfo"]["py_callstack"])

    def test_case_20_a_short_record(self):
        script = self.script(
            "#!/bin/sh\n"
            """echo '{"message":"text","timestamp":1700000000}' > "$TORCHELASTIC_ERROR_FILE"\n"""
            "exit 5\n")
        cause = self.cause(self.fail(script, env={"TZ": "UTC"}))
        self.assertRegex(cause, r"traceback : text\n")
        self.assertRegex(cause, r"time +: 2023-11-14_22:13:20\n")
        self.assertRegex(cause, r"exitcode +: 5 ")

    def test_case_21_a_broken_record_hides_nothing(self):
        for text in "{]", "", '{"message": {"message": "m"}}', "\\0\\377", "[]", "null":
            with self.subTest(text):
                script = self.script(
                    f"#!/bin/sh\nprintf '{text}' > \"$TORCHELASTIC_ERROR_FILE\"\nexit 5\n")
                cause = self.cause(self.fail(script))
                self.assertRegex(cause, r"exitcode +: 5 ")
                self.assertRegex(cause, r"rank +: 0 ")

    def test_case_22_who_recorded_first_is_the_cause(self):
        # Rank 1 dies clearly later, by the 0.3 s that are the case itself.
        script = self.script(
            "#!/bin/sh\nif test $RANK = 0\nthen\n"
            """  echo '{"message":"I broke it"}' > "$TORCHELASTIC_ERROR_FILE"\n"""
            f"  echo > {self.folder}/recorded\n  exec sleep 1000\nfi\n"
            f"until test -e {self.folder}/recorded; do :; done\nsleep 0.3\nexit 3\n")
        err = self.fail("--nproc-per-node=2", script)
        cause = self.cause(err)
        self.assertRegex(cause, r"rank +: 0 ")
        self.assertIn("I broke it", cause)
        self.assertRegex(err, r"rank 1 \(local_rank: 1\) exitcode: 3 ")

    def test_case_23_a_program_that_cannot_be_run(self):
        self.assertIn("./missing", self.fail("./missing", cwd=self.folder))
        self.assertIn("./missing", self.fail("--no-python", "./missing", cwd=self.folder))
        plain = self.folder / "plain"
        plain.write_text("#!/bin/sh\n")
        self.assertIn("./plain", self.fail("--no-python", "./plain", cwd=self.folder))


if __name__ == "__main__":
    main()
