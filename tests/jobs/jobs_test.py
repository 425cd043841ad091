"""Jobs on one host, started as a user starts them: environment, output, failures, restarts."""

import os
import re
import signal
import socket
import subprocess
import sys
import unittest

from support import DDPRUN, PRINT_ENV, JobTest, free_port, main, parse_env


class Environment(JobTest):
    def envs(self, *args, **options):
        code, out, err = self.run_job(*args, **options)
        self.assertEqual(code, 0, err)
        return sorted((parse_env(line) for line in out.splitlines()), key=lambda one: int(one["RANK"])), err

    def test_case_01_one_worker(self):
        (env,), err = self.envs(self.script(PRINT_ENV))
        for name in "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT", \
                    "TORCHELASTIC_MAX_RESTARTS":
            self.assertEqual(env[name], "0", name)
        for name in "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE":
            self.assertEqual(env[name], "1", name)
        self.assertEqual(env["ROLE_NAME"], "default")
        self.assertEqual(env["MASTER_ADDR"], "127.0.0.1")
        self.assertEqual(env["TORCHELASTIC_USE_AGENT_STORE"], "True")
        self.assertEqual(err, "")

    def test_case_02_four_workers(self):
        envs, err = self.envs("--nproc-per-node=4", self.script(PRINT_ENV))
        self.assertEqual([env["RANK"] for env in envs], ["0", "1", "2", "3"])
        self.assertEqual({env["WORLD_SIZE"] + env["LOCAL_WORLD_SIZE"] for env in envs}, {"44"})
        self.assertEqual({env["OMP_NUM_THREADS"] for env in envs}, {"1"})
        self.assertEqual(len({env["MASTER_PORT"] for env in envs}), 1)
        self.assertIn("OMP_NUM_THREADS", err)

    def test_case_03_omp_num_threads_is_left_alone(self):
        envs, err = self.envs("--nproc_per_node", "2", self.script(PRINT_ENV), env={**os.environ, "OMP_NUM_THREADS": "8"})
        self.assertEqual({env["OMP_NUM_THREADS"] for env in envs}, {"8"})
        self.assertEqual(err, "")
        clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        (env,), _ = self.envs(self.script(PRINT_ENV), env=clean)
        self.assertNotIn("OMP_NUM_THREADS", env)

    def test_case_04_nccl_error_handling(self):
        (env,), _ = self.envs(self.script(PRINT_ENV), env={**os.environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"})
        self.assertEqual(env["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "3")
        (env,), _ = self.envs(self.script(PRINT_ENV))
        self.assertEqual(env["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "1")

    def test_case_05_and_06_pet_variables(self):
        pet = {**os.environ, "PET_NPROC_PER_NODE": "2", "PET_STANDALONE": "1", "PET_NO_PYTHON": "1"}
        envs, _ = self.envs(self.script(PRINT_ENV), env=pet)
        self.assertEqual(len(envs), 2)
        self.assertRegex(envs[0]["TORCHELASTIC_RUN_ID"], r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-")
        envs, _ = self.envs("--nproc-per-node=1", self.script(PRINT_ENV), env=pet)
        self.assertEqual(len(envs), 1)

    def test_case_08_options_end_at_the_script(self):
        (env,), _ = self.envs(self.script(PRINT_ENV), "--nnodes", "2", "-h")
        self.assertEqual(env["ARGS"], ["--nnodes", "2", "-h"])

    def test_case_11_python_scripts_are_unbuffered_and_get_their_arguments(self):
        script = self.script("import sys; print(sys.argv[1:], sys.stdout.write_through)", "t.py")
        code, out, _ = self.run_job(script, "a", "b", env={**os.environ, "PYTHON_EXEC": sys.executable})
        self.assertEqual((code, out), (0, "['a', 'b'] True\n"))

    def test_case_12_only_the_local_rank_is_substituted(self):
        (env,), _ = self.envs(self.script(PRINT_ENV), "r=${local_rank}", "${rank}", "$$")
        self.assertEqual(env["ARGS"], ["r=0", "${rank}", "$$"])

    def test_an_elf_binary_needs_no_flag(self):
        code, out, _ = self.run_job("/bin/echo", "hello")
        self.assertEqual((code, out), (0, "hello\n"))

    def test_the_token_never_reaches_a_worker(self):
        (env,), _ = self.envs(self.script(PRINT_ENV), env={**os.environ, "DDPRUN_TOKEN": "secret"})
        self.assertNotIn("DDPRUN_TOKEN", env)

    def test_master_port_is_honoured(self):
        port = free_port()
        (env,), _ = self.envs(f"--master-port={port}", self.script(PRINT_ENV))
        self.assertEqual(env["MASTER_PORT"], str(port))


class Failures(JobTest):
    def test_case_15_the_first_failure_is_the_root_cause(self):
        script = self.script('#!/bin/sh\ntest "$RANK" = 1 && exit 7\nexec sleep 60\n')
        code, _, err = self.run_job("--nproc-per-node=2", "--log-dir", self.folder / "logs", script)
        self.assertEqual(code, 1)
        cause = err.partition("Root Cause (first observed failure):")[2]
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
        self.assertRegex(err.partition("Root Cause")[2], r"rank +: 1 ")
        self.assertIn("rank 0 (exitcode 3)", err)

    def test_case_24_restarts_are_counted(self):
        script = self.script("#!/bin/sh\necho $TORCHELASTIC_RESTART_COUNT\nexit 4\n")
        code, out, _ = self.run_job("--max-restarts=2", script)
        self.assertEqual((code, out), (1, "0\n1\n2\n"))
        script = self.script('#!/bin/sh\ntest "$TORCHELASTIC_RESTART_COUNT" = 1\n')
        self.assertEqual(self.run_job("--max-restarts=2", script)[0], 0)

    def test_all_workers_are_replaced_by_a_restart(self):
        fifo = self.fifo()
        script = self.script(
            f'#!/bin/sh\necho "$TORCHELASTIC_RESTART_COUNT $RANK $MASTER_PORT" > {fifo}\n'
            'test "$TORCHELASTIC_RESTART_COUNT" = 1 && exit 0\nexec sleep 60\n')
        job = self.start("--nproc-per-node=2", "--max-restarts=1", script)
        first = [line.split() for line in self.read_lines(fifo, 2)]
        os.kill(job.worker(0), signal.SIGKILL)
        second = [line.split() for line in self.read_lines(fifo, 2)]
        self.assertEqual(job.finish()[0], 0)
        self.assertEqual({line[0] for line in first}, {"0"})
        self.assertEqual(sorted(line[:2] for line in second), [["1", "0"], ["1", "1"]])
        job.wait_gone()


class BadInput(JobTest):
    """One clear line, torchrun's exit code, nothing left running."""

    def refused(self, code, wanted, *args, **options):
        got, out, err = self.run_job(*args, **options)
        self.assertEqual(got, code, err)
        self.assertEqual(out, "")
        self.assertEqual(len(err.splitlines()), 1, err)
        for words in wanted:
            self.assertIn(words, err)

    def test_unknown_flag(self):
        self.refused(2, ["--nope"], "--nope", "x")

    def test_worker_count_that_is_none(self):
        self.refused(1, ["--nproc-per-node", "zero"], "--nproc-per-node=zero", "x")

    @unittest.skipIf(os.path.exists("/dev/nvidia0"), "this machine has a GPU")
    def test_gpu_without_a_gpu(self):
        self.refused(1, ["--nproc-per-node", "gpu"], "--nproc-per-node=gpu", "/bin/true")

    def test_script_not_found(self):
        self.refused(1, ["missing.py"], "missing.py")
        self.refused(1, ["./missing"], "--no-python", "./missing")

    def test_program_not_executable(self):
        path = self.folder / "plain"
        path.write_text("#!/bin/sh\n")
        self.refused(1, [str(path)], "--no-python", path)

    def test_port_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused(1, [str(port)], f"--master-port={port}", "/bin/true")

    def test_endpoint_unreachable(self):
        with socket.socket() as unused:  # bound, not listening: connections are refused
            unused.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
            self.refused(1, [endpoint, "read_timeout"], "--nnodes=2", "--rdzv-backend=c10d",
                         f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0,read_timeout=1", "/bin/true")

    def test_log_folder_not_writable(self):
        (self.folder / "file").write_text("")
        self.refused(1, ["--log-dir"], f"--log-dir={self.folder}/file", "/bin/true")
        self.refused(1, ["--log-dir"], "--log-dir=/proc/none", "/bin/true")

    def test_peer_missing(self):
        self.refused(1, ["1 of 2", "join_timeout"], "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                     "--rdzv-conf=join_timeout=1", "/bin/true")


class Program(JobTest):
    def test_needs_libc_and_libm_only(self):
        text = subprocess.run(["readelf", "-d", DDPRUN], check=True, capture_output=True, text=True).stdout
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
        if any(name.startswith(("libasan", "libtsan")) for name in needed):
            self.skipTest("built for a sanitizer, whose runtime is a shared library")
        self.assertLessEqual(needed, {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"})


if __name__ == "__main__":
    main()
