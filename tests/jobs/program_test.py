"""A worker's start: its variables, its arguments, its interpreter."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

from machine import free_port
from support import DDPRUN, PRINT_ENV, JobTest, main, parse_env, with_variables

# Prints its arguments and whether its output is unbuffered.
SAY_ARGUMENTS = "import sys\nprint(sys.argv[1:], sys.stdout.write_through)\n"
LAUNCH = pathlib.Path(DDPRUN).with_name("ddprun-launch")
UUID4 = r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"


class Environment(JobTest):
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
        envs, err = self.envs("--nproc_per_node", "2", self.script(PRINT_ENV), env=with_variables(OMP_NUM_THREADS="8"))
        self.assertEqual({env["OMP_NUM_THREADS"] for env in envs}, {"8"})
        self.assertEqual(err, "")
        self.assertNotIn("OMP_NUM_THREADS", self.env_of_one(self.script(PRINT_ENV), env=with_variables()))

    def test_case_04_nccl_error_handling(self):
        env = self.env_of_one(self.script(PRINT_ENV), env=with_variables(TORCH_NCCL_ASYNC_ERROR_HANDLING="3"))
        self.assertEqual(env["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "3")
        env = self.env_of_one(self.script(PRINT_ENV))
        self.assertEqual(env["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "1")

    def test_case_05_number_of_workers_by_variable(self):
        env = with_variables(PET_NPROC_PER_NODE="2")
        found, _ = self.envs(self.script(PRINT_ENV), env=env)
        self.assertEqual([one["RANK"] for one in found], ["0", "1"])
        found, _ = self.envs("--nproc-per-node=1", self.script(PRINT_ENV), env=env)
        self.assertEqual([one["WORLD_SIZE"] for one in found], ["1"])

    def test_case_06_switches_by_variable(self):
        self.script(PRINT_ENV, "E")
        env = with_variables(PET_STANDALONE="1", PET_NO_PYTHON="1")
        found = self.env_of_one("./E", env=env, cwd=self.folder)
        self.assertRegex(found["TORCHELASTIC_RUN_ID"], UUID4)
        found, _ = self.envs("./E", env=env | {"PET_NPROC_PER_NODE": "2"}, cwd=self.folder)
        self.assertEqual([one["RANK"] for one in found], ["0", "1"])
        self.assertRegex(found[0]["TORCHELASTIC_RUN_ID"], UUID4)
        found = self.env_of_one("./E", env=env | {"PET_STANDALONE": "0"}, cwd=self.folder)
        self.assertEqual(found["TORCHELASTIC_RUN_ID"], "none")

    def test_case_07_switches_by_word(self):
        found = self.env_of_one(self.script(PRINT_ENV), env=with_variables(PET_STANDALONE="true"))
        self.assertRegex(found["TORCHELASTIC_RUN_ID"], UUID4)

    @unittest.skipIf(pathlib.Path("/dev/nvidia0").exists(), "this machine has a GPU")
    def test_case_62_auto_counts_cpus(self):
        envs, _ = self.envs("--nproc-per-node=auto", self.script(PRINT_ENV))
        self.assertEqual(len(envs), len(os.sched_getaffinity(0)))

    def test_cpu_counts_the_affinity_mask(self):
        one = min(os.sched_getaffinity(0))
        for word in "cpu", "auto":
            _, out, err = self.run_job(f"--nproc-per-node={word}", self.script(PRINT_ENV), prefix=("taskset", "-c", str(one)))
            self.assertEqual([parse_env(line)["WORLD_SIZE"] for line in out.splitlines()], ["1"], err)

    def test_the_token_never_reaches_a_worker(self):
        env = self.env_of_one(self.script(PRINT_ENV), env=with_variables(DDPRUN_TOKEN="secret"))
        self.assertNotIn("DDPRUN_TOKEN", env)

    def test_no_process_shows_the_token(self):
        gate = self.fifo("gate")
        job = self.start("--nproc-per-node=2", self.worker("#!/bin/sh\necho $RANK > {fifo}\nread word < %s\n" % gate),
                         env=with_variables(DDPRUN_TOKEN="open-sesame", AFTER="after"))
        self.heard(2)
        shown = {pid: pathlib.Path(f"/proc/{pid}/environ").read_bytes() for pid in job.processes()}
        self.assertTrue({job.pid, job.agent(), job.worker(0), job.worker(1)} <= set(shown), shown)
        for pid, text in shown.items():
            self.assertIn(b"AFTER=after", text)
            self.assertNotIn(b"open-sesame", text, pid)
        with open(gate, "w") as file:
            file.write("go\ngo\n")
            file.flush()
            self.assertEqual(job.finish()[0], 0)

    @unittest.skipUnless(os.getuid() == 0, "only root may become another user")
    def test_the_memory_with_the_token_is_closed_to_other_processes_of_the_user(self):
        user = 65534
        self.folder.chmod(0o777)
        self.ready.chmod(0o666)
        job = self.start("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=j",
                         "--rdzv-conf=last_call_timeout=1", "--local-addr=127.0.0.1",
                         self.worker("#!/bin/sh\ntrap 'exit 0' TERM\necho $RANK > {fifo}\nwhile :; do sleep 1000 & wait; done\n"),
                         env=with_variables(DDPRUN_TOKEN="open-sesame-open-sesame-open-sesame"), user=user)
        self.heard(1)
        look = "import os, sys\nos.setuid(65534)\nfor pid in sys.argv[1:]:\n try: open(f'/proc/{pid}/mem', 'rb').close(); print('open')\n except OSError: print('closed')"
        pids = map(str, (job.pid, job.agent(), job.worker(0)))
        seen = subprocess.run([sys.executable, "-c", look, *pids], capture_output=True, text=True, check=True)
        self.assertEqual(seen.stdout.split(), ["closed", "closed", "open"], "a worker is open to debuggers and profilers")
        job.process.send_signal(signal.SIGTERM)
        job.finish()
        job.wait_gone()

    def test_master_port_is_honoured(self):
        port = free_port()
        env = self.env_of_one(f"--master-port={port}", self.script(PRINT_ENV))
        self.assertEqual(env["MASTER_PORT"], str(port))


class Program(JobTest):
    def test_case_08_options_end_at_the_script(self):
        script = self.script(PRINT_ENV)
        self.assertEqual(self.env_of_one(script, "--nnodes", "2", "-h")["ARGS"], ["--nnodes", "2", "-h"])
        self.assertEqual(self.env_of_one("--", script, "--", "a")["ARGS"], ["--", "a"])

    def test_case_11_python_scripts(self):
        script = self.script(SAY_ARGUMENTS, "t.py")
        code, out, _ = self.run_job(script, "a", "b", env=with_variables())
        self.assertEqual((code, out), (0, "['a', 'b'] True\n"))
        code, out, _ = self.run_job("-m", "t", "a", env=with_variables(), cwd=self.folder)
        self.assertEqual((code, out), (0, "['a'] True\n"))

    def test_case_11_python_exec_is_the_interpreter(self):
        env = with_variables(PYTHON_EXEC=self.script('#!/bin/sh\necho "mine $*"\n', "mypython"))
        script = self.script(SAY_ARGUMENTS, "t.py")
        self.assertEqual(self.run_job(script, "a", env=env)[1], f"mine -u {script} a\n")
        self.assertEqual(self.run_job("-m", "mod", "a", env=env)[1], "mine -u -m mod a\n")

    def test_the_interpreter_of_the_environment_that_ddprun_is_in(self):
        """The environment may be not activated: pyvenv.cfg marks a virtual environment, conda-meta
        one of conda."""
        script = self.script(SAY_ARGUMENTS, "t.py")
        for mark in "pyvenv.cfg", "conda-meta":
            with self.subTest(mark):
                place = self.folder / mark.partition(".")[0]
                (place / "bin").mkdir(parents=True)
                (place / mark).mkdir() if mark == "conda-meta" else (place / mark).write_text("")
                self.script(f'#!/bin/sh\necho "{mark} $*"\n', place / "bin/python3")
                program = shutil.copy(DDPRUN, place / "bin/ddprun")
                env = {name: value for name, value in with_variables().items()
                       if name not in ("PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX")}
                code, out, err = self.run_job(script, "a", env=env, program=(program,))
                self.assertEqual((code, out), (0, f"{mark} -u {script} a\n"), err)

    def test_an_environment_of_ddprun_alone_gives_way_to_the_users(self):
        """pipx, uv tool and uvx make one; the user's Python is that of VIRTUAL_ENV, CONDA_PREFIX or
        PATH."""
        script = self.script(SAY_ARGUMENTS, "t.py")
        project = self.folder / "project"
        (project / "bin").mkdir(parents=True)
        self.script('#!/bin/sh\necho "project $*"\n', project / "bin/python3")
        for mark in "pipx_metadata.json", "uv-receipt.toml", "archive-v0/x":
            tool = self.folder / (mark if "/" in mark else mark.partition(".")[0])
            (tool / "bin").mkdir(parents=True)
            for name in ["pyvenv.cfg"] + [mark] * ("/" not in mark):
                (tool / name).write_text("")
            self.script('#!/bin/sh\necho "tool $*"\n', tool / "bin/python3")
            program = shutil.copy(DDPRUN, tool / "bin/ddprun")
            path = os.environ["PATH"]
            for variables in ({"VIRTUAL_ENV": str(project)}, {"CONDA_PREFIX": str(project)}, {"PATH": f"{project}/bin:{path}"},
                              {"PATH": f"{tool}/bin:{project}/bin:{path}"}):
                with self.subTest(mark, **variables):
                    env = {name: value for name, value in with_variables().items()
                           if name not in ("PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX")} | variables
                    code, out, err = self.run_job(script, "a", env=env, program=(program,))
                    self.assertEqual((code, out), (0, f"project -u {script} a\n"), err)
            (tool / "lib/python3.11/site-packages/torch").mkdir(parents=True)
            code, out, err = self.run_job(script, "a", env=env, program=(program,))
            self.assertEqual((code, out), (0, f"tool -u {script} a\n"), err)

    def test_a_python_without_torch_is_named(self):
        script = self.script("import torch_that_is_not_here\n", "t.py")
        code, _, err = self.run_job(script, env=with_variables())
        self.assertEqual((code, "PYTHON_EXEC=" in err), (1, False), err)
        script = self.script("raise ModuleNotFoundError(\"No module named 'torch'\")\n", "t.py")
        code, _, err = self.run_job(script, env=with_variables())
        self.assertEqual(code, 1)
        self.assertRegex(err, rf"ddprun: workers run with {sys.executable} \(PYTHON_EXEC\), which has no torch.*PYTHON_EXEC=")

    def test_an_elf_binary_needs_no_flag(self):
        code, out, _ = self.run_job("/bin/echo", "hello")
        self.assertEqual((code, out), (0, "hello\n"))

    def test_case_12_only_the_local_rank_is_substituted(self):
        env = self.env_of_one(self.script(PRINT_ENV), "r=${local_rank}", "${rank}", "$$")
        self.assertEqual(env["ARGS"], ["r=0", "${rank}", "$$"])

    def test_case_13_virtual_local_rank(self):
        script = self.script('#!/bin/sh\necho "$RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"\n')
        flags = "--virtual-local-rank", "--nproc-per-node=2"
        env = with_variables(CUDA_VISIBLE_DEVICES="7,5")
        code, out, err = self.run_job(*flags, script, env=env)
        self.assertEqual((code, sorted(out.splitlines())), (0, ["0 0 7", "1 0 5"]), err)
        code, out, err = self.run_job(*flags, script, env=env | {"CUDA_VISIBLE_DEVICES": "3"})
        self.assertEqual((code, out), (1, ""))
        self.assertIn("CUDA_VISIBLE_DEVICES", err)


class LegacyMode(JobTest):
    """The habit of torch.distributed.launch: the local rank as the first argument."""

    def arguments(self, program, *flags):
        script = self.script("import sys\nsys.stdout.write(' '.join(sys.argv[1:]) + '\\n')\n", "t.py")
        code, out, err = self.run_job("--nproc-per-node=2", *flags, script, "a", program=(program,),
                                      env=with_variables(OMP_NUM_THREADS="1"))
        self.assertEqual(code, 0, err)
        return sorted(out.splitlines())

    def test_case_14_the_local_rank_is_the_first_argument(self):
        self.assertEqual(self.arguments(DDPRUN, "--local-rank"), ["--local-rank=0 a", "--local-rank=1 a"])
        self.assertEqual(self.arguments(DDPRUN, "--local-rank", "--use-env"), ["a", "a"])

    @unittest.skipUnless(LAUNCH.exists(), "no ddprun-launch beside ddprun")
    def test_case_14_by_the_name_ddprun_launch(self):
        self.assertEqual(self.arguments(LAUNCH), ["--local-rank=0 a", "--local-rank=1 a"])
        self.assertEqual(self.arguments(LAUNCH, "--use-env"), ["a", "a"])
        self.assertEqual(self.arguments(LAUNCH, "--use_env"), ["a", "a"])
        code, _, err = self.run_job("--no-python", "/bin/true", program=(LAUNCH,))
        self.assertEqual(code, 1)
        self.assertIn("--no-python: expected --use-env beside it", err)

    @unittest.skipUnless(LAUNCH.exists(), "no ddprun-launch beside ddprun")
    def test_a_script_that_takes_no_local_rank(self):
        """Its parser ends it with 2, and one line says why. It does not if it fails for another
        reason, or if we handed it none."""
        parser = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('{}')\nparser.parse_args()\n"
        for accepted, told in ("--epochs", True), ("--local_rank", True), ("--local-rank", False):
            with self.subTest(accepted):
                script = self.script(parser.format(accepted), "t.py")
                words = [] if told else ["--unknown"]
                code, _, err = self.run_job("--nproc-per-node=2", script, *words, program=(LAUNCH,), env=with_variables())
                self.assertEqual((code, err.count("--use-env"), err.count("ddprun-launch has handed")), (1, told, told), err)
        script = self.script(parser.format("--epochs"), "t.py")
        code, _, err = self.run_job(script, "--local-rank=0", env=with_variables())
        self.assertEqual((code, "--use-env" in err), (1, False), err)


if __name__ == "__main__":
    main()
