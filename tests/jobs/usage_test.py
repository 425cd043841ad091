"""Bad input: one clear line, torchrun's exit code, nothing left running."""

import pathlib
import socket
import unittest

from support import PRINT_ENV, JobTest, main


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


if __name__ == "__main__":
    main()
