"""A worker of mnist is killed, and a standby takes its place, or a cold start does. A standby that
waits holds nothing on the GPU."""

import os
import re
import signal
import subprocess
import tempfile
import time

from kit import processes
from kit.stage import Broken, absent, figure
from kit.stages import training

LOST = re.compile(r"; ([\d.]+) s lost")
RECVMSG = 47  # of x86-64, in proc_pid_syscall(5)
WAIT_S = 20
LOOK_S = 0.02


def is_a_worker(pid):
    """A standby has no rank before it takes a place."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"RANK=0" in file.read().split(b"\0")
    except OSError:
        return False


def waits_for_a_place(pid):
    """Whether it is in recvmsg() on descriptor 3, its connection to the agent."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return file.read().startswith(f"{RECVMSG} 0x3 ")
    except OSError:
        return False


def wait_until(look, what, limit_s=WAIT_S):
    """Waits until `look` finds something. The state of another process gives no notice."""
    deadline = time.monotonic() + limit_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise Broken(f"waited {limit_s} s in vain for {what}")
        time.sleep(LOOK_S)
    return found


def users_of_the_gpu():
    """The pids that have memory on the GPU, by nvidia-smi; None if it gives no answer."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [int(line) for line in done.stdout.split()]


def look_at_the_gpu(worker, standby):
    """Tells how many standbys nvidia-smi knows. In a container it may know other pids."""
    users = users_of_the_gpu()
    if users is None:
        absent("standbys on the GPU", "nvidia-smi does not answer")
    elif worker not in users:
        absent("standbys on the GPU", "nvidia-smi knows no process of this container")
    else:
        figure("standbys on the GPU", users.count(standby), goal=["is", 0])


def descriptors(pid):
    """How many files of the driver a process has open. A context on the GPU needs some."""
    folder, found = f"/proc/{pid}/fd", 0
    for name in os.listdir(folder):
        try:
            found += os.readlink(f"{folder}/{name}").startswith("/dev/nvidia")
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


def below(job, wanted):
    """Looks for the first process of the job of this kind."""
    return lambda: next(filter(wanted, processes.below(job.pid)), None)


def lost_seconds(job, folder, with_standby):
    """Kills the worker once it trains; returns what the job says that it costs."""
    worker = wait_until(below(job, is_a_worker), "a worker")
    with open(f"{folder}/out", encoding="utf-8") as file:
        wait_until(lambda: "step" in file.read(), "the first steps")
    if with_standby:
        standby = wait_until(below(job, waits_for_a_place), "a standby")
        look_at_the_gpu(worker, standby)
        figure("files of the driver that a standby has open", descriptors(standby),
               goal=["is", 0])
    os.kill(worker, signal.SIGKILL)
    for line in job.stderr:
        if found := LOST.search(line):
            return float(found[1])
    raise Broken("the job ended before it said what the restart cost")


def restart(tools, with_standby):
    with tempfile.TemporaryDirectory(prefix="gpu_kit_") as folder:
        # With `cuda` mnist looks for a GPU before it waits, and so it is no standby.
        device = "cpu" if tools.dry else "auto"
        flags = [f"--data={training.digits(tools, folder)}", "--epochs=100000",
                 "--progress=always", f"--device={device}"]
        launcher = [f"--standby={int(with_standby)}", "--max-restarts=1"]
        command = tools.of_ours("mnist", *flags, flags=launcher)
        with open(f"{folder}/out", "wb") as output, subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                text=True) as job:
            try:
                return lost_seconds(job, folder, with_standby)
            finally:
                job.terminate()


def run(tools):
    """No goal says how much a standby saves: the start of CUDA comes after its wait."""
    figure("restart with a standby", restart(tools, True), unit="s")
    figure("restart with a cold start", restart(tools, False), unit="s")
