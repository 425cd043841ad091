"""A job of mnist is killed and started again, some times. Its last attempt holds as much memory of
the GPU as the first one."""

import math
import os
import re
import signal
import subprocess
import tempfile

from kit import plan
from kit.stage import absent, figure
from kit.stages import costs, standby, training

RESTARTS, STEPS = 3, 500  # steps of each attempt
DRY_RESTARTS, DRY_STEPS = 1, 4
MOST_MIB = 4
STEP = re.compile(r"epoch (\d+)/\d+ step (\d+)/(\d+) ")


def steps_in(text):
    """How many steps an attempt has made, by its last line of progress."""
    found = STEP.findall(text)
    if not found:
        return 0
    epoch, step, of_an_epoch = map(int, found[-1])
    return (epoch - 1) * of_an_epoch + step


def train(path, steps, worker, limit_s):
    """Waits until the new worker has made so many steps. Returns the memory that is in use then."""
    begin = os.path.getsize(path)  # behind it the attempt before has printed nothing

    def trained():
        with open(path, encoding="utf-8", errors="replace") as file:
            file.seek(begin)
            return steps_in(file.read()) >= steps

    standby.wait_until(trained, f"{steps} steps of process {worker}", limit_s)
    return costs.used_mib()


def attempts(job, path, restarts, steps, limit_s):
    """The memory in use in each attempt."""
    used, old = [], None
    for attempt in range(restarts + 1):
        worker = standby.wait_until(
            standby.below(job, lambda pid: pid != old and standby.is_a_worker(pid)), "a worker",
            limit_s)
        used.append(train(path, steps, worker, limit_s))
        if attempt < restarts:
            os.kill(worker, signal.SIGKILL)
        old = worker
    return used


def run(tools):
    restarts, steps = (DRY_RESTARTS, DRY_STEPS) if tools.dry else (RESTARTS, STEPS)
    limit_s = standby.WAIT_S * (plan.DRY_FACTOR if tools.dry else 1)
    with tempfile.TemporaryDirectory(prefix="gpu_kit_") as folder:
        path = f"{folder}/out"
        flags = [f"--data={training.digits(tools, folder)}", "--epochs=100000",
                 "--progress=always", f"--device={tools.device}"]
        command = tools.of_ours("mnist", *flags, flags=[f"--max-restarts={restarts}"])
        with open(path, "wb") as output, subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output) as job:
            try:
                used = attempts(job, path, restarts, steps, limit_s)
            finally:
                job.terminate()
        with open(path, encoding="utf-8", errors="replace") as file:
            trained = file.read().count("mnist: world of 1")
    figure("attempts that trained", trained, goal=["is", restarts + 1])
    if math.isnan(used[0]):
        absent("memory that restarts leave on the GPU", "nvidia-smi does not answer")
    else:
        figure("memory that restarts leave on the GPU", used[-1] - used[0], unit="MiB",
               goal=["at most", MOST_MIB], gpu_only=True)
