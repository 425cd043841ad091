"""The forms of docs/containers.md: namespaces as containers of clusters make them, and Cobalt's
scripts."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))
from support import DDPRUN, ROOT, SLEEPER, JobTest, main, with_variables  # noqa: E402

PAGE = ROOT / "docs" / "containers.md"
# As `apptainer exec` does without setuid, and with --containall.
EXEC = ("unshare", "--user", "--map-root-user", "--mount")
CONTAIN_ALL = (*EXEC, "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "localhost",
        "SLURM_JOB_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}


def can_unshare():
    return subprocess.run([*CONTAIN_ALL, "true"], capture_output=True).returncode == 0


@unittest.skipUnless(can_unshare(), "unprivileged user namespaces are switched off here")
class Namespaces(JobTest):
    def test_variables_and_a_step_go_through(self):
        script = self.script('#!/bin/sh\necho "$RANK/$WORLD_SIZE $NAMED $(test $PPID -lt 100 && echo first) $DDPRUN_STARTED_IN"\n')
        for container, first in ((EXEC, ""), (CONTAIN_ALL, "first")):
            with self.subTest(container):
                env = with_variables(OMP_NUM_THREADS="1", NAMED="here", **STEP)
                done = subprocess.run([*container, DDPRUN, "--nproc-per-node=2", script], env=env, capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = sorted(line.split(" ") for line in done.stdout.splitlines())
                self.assertEqual([line[:2] for line in lines], [["0/2", "here"], ["1/2", "here"]])
                self.assertTrue(all("7.0" in line[3] for line in lines), lines)
                if first:
                    self.assertEqual([line[2] for line in lines], ["first"] * 2)

    def test_sigterm_lets_the_workers_end(self):
        job = self.start("--nproc-per-node=2", self.worker(SLEEPER), prefix=EXEC)
        self.heard(2)
        job.process.send_signal(signal.SIGTERM)
        code, _, err = job.finish(60)
        self.assertNotIn(code, (0, -signal.SIGTERM), err)
        self.assertIn("SIGTERM", err)
        job.wait_gone()

    def test_nothing_is_left_of_a_container_that_is_killed(self):
        job = self.start("--nproc-per-node=2", self.worker(SLEEPER), prefix=CONTAIN_ALL)
        self.heard(2)
        job.process.kill()
        job.wait_gone()


class Cobalt(JobTest):
    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "Open MPI is not installed (scripts/setup.sh --tests)")
    def test_two_scripts_are_one_job(self):
        """Both nodes are this host. An mpirun in front tells each ddprun that it is alone on its
        node."""
        for text, name in re.findall(r"```sh\n(#!/bin/sh\n# (\w+\.sh): .*?)```", PAGE.read_text(), re.DOTALL):
            self.script(text, name)
        (self.folder / ".venv" / "bin").mkdir(parents=True)
        (self.folder / ".venv" / "bin" / "activate").write_text(f"PATH={pathlib.Path(DDPRUN).parent}:$PATH\n")
        (self.folder / "train.py").write_text('import os, sys\nsys.stdout.write(f"{os.environ[\'RANK\']} of {os.environ[\'WORLD_SIZE\']} {sys.argv[1:]}\\n")\n')
        (self.folder / "nodes").write_text("node01\nnode02\n")
        self.script('#!/bin/sh\nprintf %s "$*" > words\nshift 8\nexec mpirun.openmpi --oversubscribe -n 2 -x MASTER_ADDR=127.0.0.1 env OMPI_COMM_WORLD_LOCAL_SIZE=1 "$@"\n', "mpirun")
        env = with_variables(OMP_NUM_THREADS="1", COBALT_JOBSIZE="2", COBALT_NODEFILE=str(self.folder / "nodes"), COBALT_JOBID="5",
                             OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", PATH=f"{self.folder}:{os.environ['PATH']}")
        done = subprocess.run(["./submit.sh", "--epochs=2"], cwd=self.folder, env=env, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.folder / "words").read_text(),
                         f"-n 2 --map-by ppr:1:node --hostfile {self.folder}/nodes -x MASTER_ADDR=node01 ./node.sh --epochs=2")
        self.assertEqual(sorted(done.stdout.splitlines()), sorted(f"{rank} of 8 ['--epochs=2']" for rank in range(8)))


if __name__ == "__main__":
    main()
