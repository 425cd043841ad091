"""Bad input: one clear line, torchrun's exit code, nothing left running."""

import json
import os
import pathlib
import socket
import unittest

from machine import free_port
from support import DDPRUN, PRINT_ENV, JobTest, main, with_variables


class BadInput(JobTest):
    def test_case_09_usage_errors(self):
        script = self.script(PRINT_ENV)
        self.refused(2, ["usage: ddprun"])
        self.refused(2, ["--nope"], "--nope", "x")
        self.refused(2, ["--max-restarts=x"], "--max-restarts=x", script)
        self.refused(2, ["--start-method=q"], "--start-method=q", script)

    def test_case_10_bad_values_are_named(self):
        script = self.script(PRINT_ENV)
        for flag in ("--nnodes=2:1", "--nnodes=0", "--nnodes=1:2:3", "--max-restarts=-1", "--nproc-per-node=bogus",
                     "--nproc-per-node=zero", "--monitor-interval=0", "--tee=4", "--rdzv-conf=foo", "--rdzv-backend=foo"):
            with self.subTest(flag):
                self.refused(1, [f"ddprun: {flag}: "], flag, script)
        self.refused(1, ["--no-python"], "-m", "--no-python", script)

    def test_case_23_a_program_that_cannot_be_run(self):
        self.refused(1, ["missing.py"], "missing.py")
        self.refused(1, ["./missing"], "./missing", cwd=self.folder)
        self.refused(1, ["./missing"], "--no-python", "./missing", cwd=self.folder)
        plain = self.folder / "plain"
        plain.write_text("#!/bin/sh\n")
        self.refused(1, ["./plain"], "--no-python", "./plain", cwd=self.folder)
        self.refused(1, [str(plain)], "--no-python", plain)

    @unittest.skipIf(pathlib.Path("/dev/nvidia0").exists(), "this machine has a GPU")
    def test_case_62_gpu_without_a_gpu(self):
        self.refused(1, ["--nproc-per-node=gpu"], "--nproc-per-node=gpu", "/bin/echo")

    def test_port_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused(1, [str(port)], f"--master-port={port}", "/bin/true")

    def test_log_folder_not_writable(self):
        (self.folder / "file").write_text("")
        self.refused(1, ["--log-dir"], f"--log-dir={self.folder}/file", "/bin/true")
        self.refused(1, ["--log-dir"], "--log-dir=/proc/none", "/bin/true")


class Record(JobTest):
    """ddprun's own errors are in TORCHELASTIC_ERROR_FILE too: a cluster shows that file as the
    reason."""

    def message(self, code, *args):
        path = self.folder / "termination-log"
        path.unlink(missing_ok=True)
        got, _, err = self.run_job(*args, env=with_variables(TORCHELASTIC_ERROR_FILE=str(path)))
        self.assertEqual(got, code, err)
        message = json.loads(path.read_text())["message"]
        return message if isinstance(message, str) else message["message"]

    def test_usage(self):
        self.assertIn("--nope", self.message(2, "--nope", "/bin/true"))
        self.assertIn("--nnodes=0", self.message(1, "--nnodes=0", "/bin/true"))

    def test_backend(self):
        self.assertIn("--rdzv-backend=foo", self.message(1, "--rdzv-backend=foo", "/bin/true"))

    def test_port_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.assertIn(port, self.message(1, f"--master-port={port}", "/bin/true"))

    def test_rendezvous_timed_out(self):
        self.assertIn("1 of 2", self.message(1, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                                             "--rdzv-conf=join_timeout=1", "/bin/true"))

    def test_no_file_at_success(self):
        path = self.folder / "termination-log"
        code, _, err = self.run_job("/bin/true", env=with_variables(TORCHELASTIC_ERROR_FILE=str(path)))
        self.assertEqual((code, path.exists()), (0, False), err)


class Lenient(JobTest):
    """ddprun takes all that torchrun takes: with a warning where it does nothing."""

    def warned(self, wanted, *args, env=None):
        code, _, err = self.run_job(*args, "/bin/true", env=with_variables(**(env or {})))
        self.assertEqual(code, 0, err)
        for words in wanted:
            self.assertIn(words, err)
        return err

    def test_the_registered_name_of_the_built_in_logs(self):
        self.assertEqual(self.warned([], "--logs-specs=default"), "")

    def test_bad_values_that_the_backend_does_not_read(self):
        flags = "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"
        self.warned(["timeout=0", "c10d"], *flags, "--rdzv-conf=timeout=0")
        # In literal quotes, as a YAML list passes it.
        self.warned(["'join_timeout"], *flags, "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'")

    def test_a_temporary_folder_that_cannot_be_written(self):
        self.warned(["/proc"], env={"TMPDIR": "/proc"})

    def test_another_name(self):
        """A link `torchrun` makes the switch: its lines then say that name."""
        link = self.folder / "torchrun"
        link.symlink_to(os.path.abspath(DDPRUN))
        self.refused(1, ["torchrun: --nnodes=0: "], "--nnodes=0", "/bin/true", program=(link,))
        self.refused(2, ["usage: torchrun"], program=(link,))
        code, _, err = self.run_job("--max-restarts=1", self.script("#!/bin/sh\nexit 3\n"), program=(link,))
        self.assertEqual(code, 1)
        self.assertIn("torchrun: ", err)
        self.assertNotIn("ddprun: ", err)


if __name__ == "__main__":
    main()
