"""Real jobs of a real Slurm, on four nodes in namespaces (tests/schedulers/cluster). Open MPI and
MPICH run if they are installed."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))
from support import DDPRUN, PRINT_ENV, JobTest, main, parse_env, with_variables  # noqa: E402
from virtual_nodes import CLUSTER, lacking  # noqa: E402

TOKEN = "a token of this test"
LIMIT = 60  # seconds for a cluster and what runs on it
# Saves for a second after it was told to end, and says so.
SAVING = """#!/bin/sh
trap 'sleep 1; echo saved > {folder}/saved.$RANK; exit 0' TERM
echo > {folder}/ready.$RANK
while :; do sleep 1000 & wait; done
"""

# A person at the shell of a step.
TYPING = """import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("srun", ["srun", "--nodes={nodes}", "--ntasks-per-node=1", "--pty", "bash", "--norc"])
os.write(terminal, b"{line}\\nexit\\n")
try:
    while text := os.read(terminal, 4096):
        sys.stdout.write(text.decode())
except OSError:  # the terminal's other end is closed
    pass
os.waitpid(pid, 0)
"""


@unittest.skipIf(lacking(), lacking())
class Slurm(JobTest):
    def cluster(self, text, **variables):
        """Runs a shell script on the login node; (exit code, stdout, stderr)."""
        script = self.script("#!/bin/bash\n" + text.replace("{ddprun}", DDPRUN).replace("{folder}", str(self.folder)), "login.sh")
        done = subprocess.run([CLUSTER, script], capture_output=True, text=True, timeout=LIMIT,
                              env=with_variables(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **variables))
        # Removes the lines of salloc and srun about the queue.
        err = "".join(line for line in done.stderr.splitlines(True) if not re.match(r"(srun|salloc): (job|Pending|Granted|Relinq|Job alloc)", line))
        return done.returncode, done.stdout, err

    def envs_of(self, out):
        return sorted((parse_env(line) for line in out.splitlines() if line.startswith("RANK=")), key=lambda env: int(env["RANK"]))

    def world(self, out, size, nodes):
        envs = self.envs_of(out)
        self.assertEqual([env["RANK"] for env in envs], [str(rank) for rank in range(size)], out)
        self.assertEqual({env["WORLD_SIZE"] for env in envs}, {str(size)})
        self.assertEqual({env["GROUP_WORLD_SIZE"] for env in envs}, {str(nodes)})
        self.assertEqual(len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs}), 1)
        return envs

    def test_srun_needs_no_flags(self):
        code, out, err = self.cluster(f"srun --nodes=4 --ntasks-per-node=1 {{ddprun}} --nproc-per-node=2 {self.script(PRINT_ENV, 'env.sh')}",
                                      OMP_NUM_THREADS="1", DDPRUN_TOKEN=TOKEN)
        self.assertEqual(code, 0, err)
        envs = self.world(out, 8, 4)
        self.assertEqual({env["MASTER_ADDR"] for env in envs}, {"10.77.0.1"})
        self.assertEqual({env["TORCHELASTIC_RUN_ID"] for env in envs}, {"slurm-1.0"})
        self.assertEqual(err.count("Slurm step slurm-1.0: 4 nodes, meeting at node01:"), 1, err)
        self.assertEqual(len(err.splitlines()), 1, err)

    def test_two_steps_at_once_are_two_jobs(self):
        script = self.script(PRINT_ENV, "env.sh")
        code, _, err = self.cluster(f"""cat > {{folder}}/batch.sh <<END
#!/bin/sh
for step in 1 2; do
  srun --overlap --nodes=4 --ntasks-per-node=1 {{ddprun}} {script} > {{folder}}/out.\\$step 2> {{folder}}/err.\\$step &
done
wait
END
sbatch --wait --nodes=4 --time=5 --output={{folder}}/batch.out {{folder}}/batch.sh""")
        self.assertEqual(code, 0, err)
        ids = set()
        for step in "12":
            errors = (self.folder / f"err.{step}").read_text()
            ids |= {env["TORCHELASTIC_RUN_ID"] for env in self.world((self.folder / f"out.{step}").read_text() or errors, 4, 4)}
        self.assertEqual(ids, {"slurm-1.0", "slurm-1.1"})

    def test_a_heterogeneous_job(self):
        """A step on both components is one job; a step is on the first one alone unless it is
        told."""
        job = "salloc --nodes=2 : --nodes=1 srun --ntasks-per-node=1"
        code, out, err = self.cluster(f"{job} --het-group=0,1 {{ddprun}} {self.script(PRINT_ENV, 'env.sh')}", DDPRUN_TOKEN=TOKEN)
        self.assertEqual(code, 0, err)
        self.assertEqual({env["TORCHELASTIC_RUN_ID"] for env in self.world(out, 3, 3)}, {"slurm-1.0"})
        code, out, err = self.cluster(f"{job} --het-group=1 {{ddprun}} /bin/true")
        self.assertEqual((code, out), (2, ""), err)
        self.assertIn("this Slurm step is of a job with 3 nodes, and ddprun runs on one of them: type `srun --het-group=0-1 --ntasks-per-node=1 ddprun …`", err)

    def test_a_batch_script_without_srun_is_refused(self):
        code, _, err = self.cluster("""printf '#!/bin/sh\\n{ddprun} /bin/true; echo code $?\\n' > {folder}/batch.sh
sbatch --wait --nodes=2 --output={folder}/batch.out {folder}/batch.sh""")
        self.assertEqual(code, 0, err)
        self.assertEqual((self.folder / "batch.out").read_text().splitlines(), [
            "ddprun: this Slurm job has 2 nodes, and ddprun runs on one of them: type `srun --ntasks-per-node=1 --nodes=2 ddprun …`, or "
            "--standalone for a job on this node alone", "code 2"])

    def test_a_job_that_a_worker_submits_is_a_job(self):
        """sbatch hands on the variables of the worker, and of the worker's step."""
        batch = self.script("#!/bin/sh\n{ddprun} /bin/true\nsrun --ntasks-per-node=1 {ddprun} {env}\n".replace("{ddprun}", DDPRUN).replace(
            "{env}", str(self.script(PRINT_ENV, "env.sh"))), "batch.sh")
        worker = self.script(f"#!/bin/sh\nexec sbatch --wait --nodes=2 --ntasks-per-node=1 --output={self.folder}/batch.out {batch}\n", "worker.sh")
        code, _, err = self.cluster(f"srun --nodes=1 {{ddprun}} {worker}", OMP_NUM_THREADS="1", DDPRUN_TOKEN=TOKEN)
        self.assertEqual(code, 0, err)
        out = (self.folder / "batch.out").read_text()
        self.assertIn("ddprun: this Slurm job has 2 nodes, and ddprun runs on one of them", out)
        self.assertEqual({env["TORCHELASTIC_RUN_ID"] for env in self.world(out, 2, 2)}, {"slurm-2.0"})

    def test_a_shell_in_a_step_is_an_allocation(self):
        for nodes, wanted in ("2", "type `srun --overlap --ntasks-per-node=1 --nodes=2 ddprun"), ("1", "RANK=1"):
            with self.subTest(nodes=nodes):
                typing = self.script(TYPING.replace("{nodes}", nodes).replace(
                    "{line}", f"{DDPRUN} --nproc-per-node=2 {self.script(PRINT_ENV, 'env.sh')}"), "typing.py")
                code, out, err = self.cluster(f"{sys.executable} {typing}", OMP_NUM_THREADS="1")
                self.assertEqual(code, 0, err)
                self.assertIn(wanted, out)

    def test_what_else_is_refused(self):
        for command, wanted in (("srun --nodes=2 --ntasks=4 {ddprun} /bin/true", "ddpruns on one node"),
                                ("srun --nodes=2 {ddprun} --nnodes=3 /bin/true", "--nnodes=3: this Slurm step has 2 nodes"),
                                ("salloc --nodes=2 {ddprun} /bin/true", "this Slurm job has 2 nodes")):
            with self.subTest(command):
                code, out, err = self.cluster(command)
                self.assertEqual((code, out), (2, ""), err)
                self.assertIn(wanted, err)

    def test_the_exit_code_passes_through_srun(self):
        script = self.script("#!/bin/sh\ntest $RANK = 1 && exit 7\nexec sleep 1000\n", "seven.sh")
        code, _, err = self.cluster(f"srun --nodes=2 --ntasks-per-node=1 {{ddprun}} --exit-codes=detailed {script}")
        self.assertEqual(code, 7, err)

    def test_workers_know_when_the_job_ends(self):
        script = self.script("#!/bin/sh\necho $DDPRUN_DEADLINE\n", "deadline.sh")
        code, out, err = self.cluster(f"srun --time=5 --nodes=2 --ntasks-per-node=1 {{ddprun}} {script}")
        self.assertEqual(code, 0, err)
        for line in out.split():
            self.assertTrue(200 < int(line) - time.time() <= 301, out)
        self.assertEqual(len(out.split()), 2)

    def test_all_ranks_save_when_the_job_is_cancelled(self):
        """KillWait is 5 s: a grace of 30 s would end in Slurm's SIGKILL, before the report."""
        script = self.script(SAVING.replace("{folder}", str(self.folder)), "saving.sh")
        for proctrack in "proctrack/linuxproc", "proctrack/pgid":
            with self.subTest(proctrack):
                for path in self.folder.glob("*.[0-3]"):
                    path.unlink()
                self.cluster(f"""srun --nodes=2 --ntasks-per-node=1 {{ddprun}} --nproc-per-node=2 {script} 2> {{folder}}/err &
until [ "$(ls {{folder}} | grep -c ready)" = 4 ]; do :; done
scancel 1
wait""", CLUSTER_PROCTRACK=proctrack, CLUSTER_KILL_WAIT="5")
                self.assertEqual(sorted(path.name for path in self.folder.glob("saved.*")), [f"saved.{rank}" for rank in range(4)],
                                 (self.folder / "err").read_text())

    def test_an_elastic_number_on_one_node(self):
        script = self.script(PRINT_ENV, "env.sh")
        code, out, err = self.cluster(f"srun --nodes=1 --ntasks-per-node=1 {{ddprun}} --nnodes=1:4 --rdzv-conf=last_call_timeout=1 --nproc-per-node=2 {script}")
        self.assertEqual(code, 0, err)
        self.world(out, 2, 1)

    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "Open MPI is not installed")
    def test_open_mpi(self):
        script = self.script(PRINT_ENV, "env.sh")
        code, out, err = self.cluster(f"salloc --nodes=3 --ntasks-per-node=1 mpirun.openmpi --map-by ppr:1:node {{ddprun}} --nproc-per-node=2 {script}")
        self.assertEqual(code, 0, err)
        self.world(out, 6, 3)
        code, out, err = self.cluster("mpirun.openmpi --oversubscribe -n 2 {ddprun} /bin/true")
        self.assertNotEqual(code, 0)
        self.assertIn("Open MPI starts 2 ddpruns on one node", err)

    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "Open MPI is not installed")
    def test_a_part_of_an_allocation_by_open_mpi(self):
        """Slurm's list begins with a host on which nothing runs. Rank 0 says so at once, and its
        remedy helps."""
        script = self.script(PRINT_ENV, "env.sh")
        job = f"salloc --nodes=4 --ntasks-per-node=1 mpirun.openmpi --host node03,node04 --map-by ppr:1:node {{more}} {{{{ddprun}}}} --nproc-per-node=2 {script}"
        code, out, err = self.cluster(job.format(more=""))
        self.assertEqual((code, out), (1, ""), err)
        self.assertIn("node01 is the first host by MASTER_ADDR or the scheduler's list, and node rank 0 runs on node03, which does not have", err)
        self.assertIn("`mpirun -x MASTER_ADDR=node03 …`", err)
        code, out, err = self.cluster(job.format(more="-x MASTER_ADDR=node03"))
        self.assertEqual(code, 0, err)
        self.world(out, 4, 2)

    @unittest.skipUnless(shutil.which("mpiexec.hydra"), "MPICH is not installed")
    def test_mpich(self):
        script = self.script(PRINT_ENV, "env.sh")
        code, out, err = self.cluster(f"salloc --nodes=3 --ntasks-per-node=1 mpiexec.hydra {{ddprun}} --nproc-per-node=2 {script}")
        self.assertEqual(code, 0, err)
        self.world(out, 6, 3)


if __name__ == "__main__":
    main()
