"""Other people's trainers, unmodified, under torchrun and under ddprun. Both must end well and give
the same loss, digit for digit.

Each script beside this file trains a tiny model on two CPU ranks with Gloo, and rank 0 prints
`final_loss=…`. The environment is .venv-trainers (scripts/setup.sh --tests); without it all is
skipped. Run as a whole, this file ends with a table.
"""

import functools
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import typing

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))

import pytorch_exit  # noqa: E402
from machine import wait_until, waiting_standbys  # noqa: E402
from support import DDPRUN, ROOT, Job, JobTest, main  # noqa: E402  (found by the line above)

# Another one has another release of torch (scripts/torch_matrix).
PYTHON = pathlib.Path(os.environ.get("DDPRUN_TRAINERS_PYTHON", ROOT / ".venv-trainers" / "bin" / "python"))
LAUNCHERS = {"torchrun": (str(PYTHON), "-m", "torch.distributed.run"), "ddprun": (DDPRUN,)}
# Seconds for one job, which takes some ten. Other releases are looked at by hand, and the machine
# may be busy.
RUN_DEADLINE = 600 if "DDPRUN_TRAINERS_PYTHON" in os.environ else 90
# The thread of pytorch_exit.py can also block the end for good. A DistributedDataParallel that is
# destroyed after its group waits for the thread with the interpreter's lock in its hands. The
# thread waits for the lock. The scripts here let the model go first; a framework may not.
BLOCKED_AT_EXIT = "the loss was printed, and a thread of ProcessGroupGloo blocks the end"
RUNS_MAX = 6  # of one job: 4 of 14 runs of FSDP2 under torchrun aborted on two busy processors
# A standby is given a second to go on. A machine that stands still for longer has its worker
# started cold. That is right, but no proof for standbys: such a run is repeated too.
NOT_IN_TIME = "has no standby: it hangs"


def has_gloo_thread(pid):
    try:
        return any(path.read_text().startswith("pt_gloo") for path in pathlib.Path(f"/proc/{pid}/task").glob("*/comm"))
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False


def pytorch_failure(code, err):
    """How PyTorch kept a job from its good end at its exit; None for every other end. Both
    launchers rightly report a failed worker. Such a run is repeated, and the closing table names
    its launcher."""
    if pytorch_exit.aborted(code, err):
        return pytorch_exit.ABORT
    return BLOCKED_AT_EXIT if code == 1 and BLOCKED_AT_EXIT in err else None


class Outcome(typing.NamedTuple):
    """The end of a job that succeeded."""

    loss: str  # as printed: the digits are compared
    attempt: int  # which attempt finished
    seconds: float


@functools.cache
def lacking():
    """Why nothing can run here; None where the environment is whole."""
    how = "(scripts/setup.sh --tests)"
    if "DDPRUN_TRAINERS_PYTHON" in os.environ:
        return None
    if not PYTHON.exists():
        return f"needs the trainers in .venv-trainers {how}"
    scripts = ROOT / "scripts"
    command = [PYTHON, scripts / "lacking_packages.py", scripts / "trainers-requirements.txt"]
    pins = subprocess.run(command, capture_output=True, text=True)
    if pins.returncode == 0:
        return None
    return f".venv-trainers lacks {', '.join(pins.stdout.split()) or pins.stderr} {how}"


def environment(folder):
    """Returns the environment of both launchers: one thread, loopback, no GPU, no look-ups on the
    network."""
    return {
        **os.environ, "PYTHON_EXEC": str(PYTHON), "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo",
        "RES_OPTIONS": "timeout:1 attempts:1", "HF_HOME": str(folder / "hf"),
        "MPLCONFIGDIR": str(ROOT / "out" / "test_cache" / "matplotlib"),
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def found(pattern, text):
    """The one match of the pattern in the text."""
    matches = re.findall(pattern, text, re.MULTILINE)
    assert len(matches) == 1, f"{len(matches)} times {pattern} in: {text}"
    return matches[0]


class TorchrunsDigits(JobTest):
    # (name, torchrun's Outcome, ddprun's Outcome, launchers under which PyTorch failed at its exit)
    rows = []

    def setUp(self):
        super().setUp()
        self.blocked = set()  # launchers under which a job was blocked
        # Launchers under which PyTorch aborted each run of a job, after it had trained.
        self.aborted = set()
        if lacking():
            self.skipTest(lacking())

    @classmethod
    def tearDownClass(cls):
        if not cls.rows:
            return
        print(f"{'trainer':<30} {'torchrun':<20} {'ddprun':<20} seconds of each  PyTorch failed at exit")
        for name, theirs, ours, failures in cls.rows:
            losses = f"{theirs.loss:<20} {ours.loss:<20}"
            seconds = f"{theirs.seconds:7.1f} {ours.seconds:7.1f}"
            print(f"{name:<30} {losses} {seconds}  {', '.join(failures) or '-'}")

    def finish(self, job, launcher):
        """(exit code, stdout, stderr) of a job. One that PyTorch blocks at its exit is ended, and
        its stderr says so. That is forgiven once: a launcher that hangs would do it again."""
        try:
            return job.finish(RUN_DEADLINE)
        except subprocess.TimeoutExpired as late:
            is_trained = b"final_loss=" in (late.stdout or b"")
            if launcher in self.blocked or not is_trained or not any(has_gloo_thread(pid) for pid in job.processes()):
                raise
        self.blocked.add(launcher)
        job.process.terminate()
        code, out, err = job.finish(RUN_DEADLINE)
        return code, out, err + BLOCKED_AT_EXIT

    def run_once(self, launcher, flags, script, folder):
        """One job to its end: (exit code, stdout, stderr, seconds). Checks that nothing is left."""
        folder.mkdir()
        started = time.monotonic()
        command = [*flags, HERE / script[0], folder, *script[1:]]
        job = Job(["--standalone", "--nproc-per-node=2", *command], env=environment(folder),
                  program=LAUNCHERS[launcher], cwd=folder)
        self.addCleanup(job.end)
        code, out, err = self.finish(job, launcher)
        seconds = time.monotonic() - started
        job.wait_gone()
        return code, out, err, seconds

    def run_well(self, name, launcher, flags, script, failures):
        """The Outcome of a job that must succeed. It is run again where PyTorch failed at its exit,
        and the launcher's name goes into `failures`. If PyTorch aborts each run, its loss still
        counts, and the launcher's name goes into `self.aborted`."""
        for run in range(RUNS_MAX):
            folder = self.folder / f"{name}_{run}"
            code, out, err, seconds = self.run_once(launcher, flags, script, folder)
            if not (words := pytorch_failure(code, err)):
                break
            print(f"\nnote: {script[0]} under {launcher}: {words}; run again", flush=True)
            failures.append(launcher)
        if words == pytorch_exit.ABORT:
            self.aborted.add(launcher)
        else:
            self.assertEqual(code, 0, f"{launcher}: {out}\n{err}")
        attempt = int(found(r"^attempt=(\d+)$", out))
        return Outcome(found(r"^final_loss=(\S+)$", out), attempt, seconds)

    def check(self, name, theirs, ours, failures):
        self.rows.append((name, theirs, ours, failures))
        self.assertEqual(theirs.attempt, 0)
        self.assertTrue(math.isfinite(float(theirs.loss)), theirs)
        self.assertEqual(ours.loss, theirs.loss)
        if self.aborted:
            launchers = " and ".join(sorted(self.aborted))
            self.skipTest(f"the losses are equal, but PyTorch aborted {RUNS_MAX} of {RUNS_MAX} runs under {launchers} at its exit")

    def compare(self, script, *ways):
        """The script under torchrun, once, and under ddprun in each of the ways, which are methods.
        torchrun is spared deaths. Its restarts fail now and then, when a worker finds its peer's
        address of the attempt before in the store."""
        failures = []
        theirs = self.run_well("torchrun", "torchrun", [], [script], failures)
        for way in ways:
            with self.subTest(way):
                getattr(self, way)(script, theirs, failures)

    def undisturbed(self, script, theirs, failures):
        ours = self.run_well("ddprun", "ddprun", [], [script], failures)
        self.assertEqual(ours.attempt, 0)
        self.check(script, theirs, ours, failures)

    def after_a_death(self, script, theirs, failures):
        """Rank 1 dies in the first attempt; the second must come to what a run without a death
        comes to."""
        ours = self.run_well("died", "ddprun", ["--max-restarts=1"], [script, "--die-once"], failures)
        self.assertEqual(ours.attempt, 1)
        self.check(f"{script}, restarted", theirs, ours, failures)

    def after_a_kill(self, script, theirs, failures):
        """Rank 1 is killed at the end of the first attempt, when standbys wait. They must be the
        workers of the second attempt, and come to what a run without a death comes to."""
        for run in range(RUNS_MAX):
            started = time.monotonic()
            folder = self.folder / f"killed_{run}"
            code, out, err, standbys = self.run_and_kill(script, folder)
            if pytorch_failure(code, err):
                failures.append("ddprun")
            elif NOT_IN_TIME not in err:
                break
        self.assertEqual(code, 0, f"{out}\n{err}")
        self.assertEqual({int((folder / f"rank_{rank}.1").read_text()) for rank in (0, 1)}, standbys, err)
        ours = Outcome(found(r"^final_loss=(\S+)$", out), 1, time.monotonic() - started)
        self.check(f"{script}, killed", theirs, ours, failures)

    def run_and_kill(self, script, folder):
        """(exit code, stdout, stderr, pids of the standbys)"""
        folder.mkdir()
        job = Job(["--standalone", "--nproc-per-node=2", "--max-restarts=1", HERE / script, folder, "--killed-once"],
                  env=environment(folder) | {"LOGLEVEL": "INFO"}, program=LAUNCHERS["ddprun"], cwd=folder)
        self.addCleanup(job.end)
        wait_until(lambda: all((folder / f"rank_{rank}.0").exists() for rank in (0, 1)), "the end of both ranks' training", RUN_DEADLINE)
        standbys = wait_until(lambda: waiting_standbys(job.children_of(job.agent())), "both standbys", RUN_DEADLINE)
        os.kill(int((folder / "rank_1.0").read_text()), signal.SIGKILL)
        code, out, err = self.finish(job, "ddprun")
        job.wait_gone()
        return code, out, err, standbys

    def test_plain_ddp(self):
        self.compare("plain_ddp.py", "undisturbed")

    def test_fsdp2(self):
        self.compare("fsdp2.py", "undisturbed", "after_a_kill")

    def test_zero_redundancy_optimizer(self):
        self.compare("zero_optimizer.py", "undisturbed")

    def test_rpc(self):
        self.compare("rpc_halves.py", "undisturbed", "after_a_kill")

    def test_accelerate(self):
        self.compare("with_accelerate.py", "undisturbed", "after_a_death", "after_a_kill")

    def test_transformers(self):
        self.compare("with_transformers.py", "undisturbed", "after_a_kill")

    def test_lightning(self):
        self.compare("with_lightning.py", "undisturbed", "after_a_kill")

    def test_fastai(self):
        self.compare("with_fastai.py", "undisturbed")

    def test_distributed_checkpoint(self):
        self.compare("dist_checkpoint.py", "after_a_death")


class SumsByMpi(JobTest):
    """examples/pytorch/mpi4py_sum.py, whose ranks are Open MPI's. Its counts are those of its twins
    (tests/examples)."""

    RANKS = 3
    SUMS = ("mpirun.openmpi", "--oversubscribe", "-n", str(RANKS), PYTHON, ROOT / "examples" / "pytorch" / "mpi4py_sum.py")
    AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def setUp(self):
        super().setUp()
        if lacking():
            self.skipTest(lacking())
        if not shutil.which("mpirun.openmpi"):
            self.skipTest("Open MPI is not installed (scripts/setup.sh --tests)")

    def start(self, command, program=()):
        """(exit code, stdout, stderr) of a job, which must leave nothing."""
        job = Job(command, env=environment(self.folder) | self.AS_ROOT, program=program, cwd=self.folder)
        self.addCleanup(job.end)
        ended = job.finish(RUN_DEADLINE)
        job.wait_gone()
        return ended

    def test_by_mpirun_by_ddprun_and_by_both(self):
        one = ["--standalone", "--nproc-per-node=1"]
        dies_once = f'[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec {self.SUMS[0]} -n 2 false; exec "$@"'
        again = [*one, "--max-restarts=1", "--no-python", "sh", "-c", dies_once, "sh", *self.SUMS]
        ways = {"mpirun": ([], self.SUMS), "ddprun": ([*one, "--no-python", *self.SUMS], (DDPRUN,)), "again": (again, (DDPRUN,)),
                "a ddprun for each rank": ([*one, self.SUMS[-1]], (*self.SUMS[:-2], DDPRUN))}
        size = 4 * 7980
        server, ring = 2 * (self.RANKS - 1) * size, 2 * size * (self.RANKS - 1) // self.RANKS
        rings = ", ".join([str(ring)] * self.RANKS)
        for way, (command, program) in ways.items():
            with self.subTest(way):
                code, out, err = self.start(command, program)
                self.assertEqual(code, 0, f"{out}\n{err}")
                self.assertEqual(out.splitlines(), [
                    "parameter server", f"  rank 0 sends and receives 2(N-1)K: {server} bytes a step = {server}",
                    "ring", *(f"  each rank {verb} 2K(N-1)/N: {rings} bytes a step = {ring}" for verb in ("sends", "receives"))])

    def test_refuses_a_launcher_whose_ranks_mpi_does_not_see(self):
        code, _, err = self.start(["--standalone", "--nproc-per-node=2", self.SUMS[-1]], (DDPRUN,))
        self.assertEqual(code, 1, err)
        self.assertIn("mpi4py_sum: MPI sees one rank, and the launcher has 2: start the ranks by mpirun -n 2\n", err)


if __name__ == "__main__":
    main()
