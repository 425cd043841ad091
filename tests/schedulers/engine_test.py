"""A program on the engine that mpirun or srun starts for each rank, without ddprun. It must give
the digits of the same run under ddprun."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
for folder in "examples", "jobs":
    sys.path.insert(0, str(HERE.parent / folder))
import digits  # noqa: E402
import slurm_test  # noqa: E402
import support as jobs  # noqa: E402

MNIST = os.environ.get("MNIST", str(pathlib.Path(jobs.DDPRUN).with_name("mnist")))
DEADLINE = 240  # seconds; four copies of LibTorch start on one machine
RANKS = 4
VARIABLES = {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@unittest.skipUnless(pathlib.Path(MNIST).exists(), "mnist is not built")
class EngineAlone(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        digits.write_subset(cls.folder.name, train=320, held_out=50)
        cls.mnist = [MNIST, "--data", cls.folder.name, "--epochs=1"]

    def run_command(self, *command, **variables):
        return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=DEADLINE,
                              env=jobs.with_variables(**VARIABLES, **variables))

    def weights(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"world of {RANKS} (", done.stdout)
        return [line for line in done.stdout.splitlines() if line.startswith(("weights=", "accuracy="))]

    def under_ddprun(self):
        return self.weights(self.run_command(jobs.DDPRUN, "--standalone", f"--nproc-per-node={RANKS}", *self.mnist))

    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "Open MPI is not installed")
    def test_open_mpi(self):
        done = self.run_command("mpirun.openmpi", "--oversubscribe", "-n", RANKS, *self.mnist)
        self.assertEqual(self.weights(done), self.under_ddprun())

    @unittest.skipUnless(shutil.which("mpiexec.hydra"), "MPICH is not installed")
    def test_mpich(self):
        done = self.run_command("mpiexec.hydra", "-n", RANKS, *self.mnist)
        self.assertEqual(self.weights(done), self.under_ddprun())

    @unittest.skipIf(slurm_test.lacking(), slurm_test.lacking())
    def test_a_slurm_step_on_two_nodes(self):
        """Beside ddpruns on two such nodes: the sum of two hosts is rounded otherwise than that of
        one."""
        here = RANKS // 2
        alone = self.run_command(slurm_test.CLUSTER, "srun", "--nodes=2", f"--ntasks={RANKS}", f"--ntasks-per-node={here}", *self.mnist)
        launched = self.run_command(slurm_test.CLUSTER, "srun", "--nodes=2", "--ntasks-per-node=1", jobs.DDPRUN, f"--nproc-per-node={here}",
                                    *self.mnist)
        self.assertEqual(self.weights(alone), self.weights(launched))

    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "Open MPI is not installed")
    def test_hosts_without_a_first_one_are_refused(self):
        """Two ranks that think that they are on two hosts."""
        done = self.run_command("mpirun.openmpi", "--oversubscribe", "-n", "2", "env", "OMPI_COMM_WORLD_LOCAL_SIZE=1",
                                "OMPI_COMM_WORLD_LOCAL_RANK=0", *self.mnist)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("mnist: mpirun starts this program on 2 hosts, and nothing names the host of rank 0: type `mpirun -x MASTER_ADDR=HOST …`",
                      done.stderr)


if __name__ == "__main__":
    jobs.main()
