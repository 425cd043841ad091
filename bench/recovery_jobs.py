"""The jobs of bench/recovery: what each launcher runs, and how it is started."""
import contextlib
import os
import signal
import subprocess

from processes import family, free_port

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv/bin")
PEERS = os.path.join(ROOT, ".venv-recovery/bin")

# Says when it runs, and when it has done its first step.
TRAIN = """
import os, time
said = os.open(os.environ["BENCH_REPORTS"], os.O_WRONLY)
say = lambda what: os.write(said, f"{what} {os.environ['RANK']} {os.getpid()} {time.monotonic_ns()}\\n".encode())
say("line")
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
width = int(os.environ["BENCH_WIDTH"])
model = DistributedDataParallel(torch.nn.Linear(width, width))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = True
while True:
    optimizer.zero_grad()
    model(torch.ones(64, width)).sum().backward()
    optimizer.step()
    if first:
        first = say("step") < 0
    time.sleep(float(os.environ["BENCH_PAUSE"]))
"""

# The same under torchft, where each rank is a job of its own. A survivor goes on alone meanwhile:
# what counts is its first step with all ranks.
TRAIN_TORCHFT = """
import os, time
said = os.open(os.environ["BENCH_REPORTS"], os.O_WRONLY)
say = lambda what: os.write(said, f"{what} {os.environ['REPLICA']} {os.getpid()} {time.monotonic_ns()}\\n".encode())
say("line")
import datetime
import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
model = torch.nn.Linear(64, 64)
inner = torch.optim.SGD(model.parameters(), lr=0.01)
def load(state):
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])
manager = Manager(ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)), load,
                  lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()}, min_replica_size=1,
                  replica_id=f"replica_{os.environ['REPLICA']}_", timeout=datetime.timedelta(seconds=30))
parallel = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, inner)
steps, last = 0, None
while True:
    optimizer.zero_grad()
    parallel(torch.ones(64, 64)).sum().backward()
    optimizer.step()
    now, done = (manager.num_participants(), manager._quorum_id), manager.current_step()
    if done > steps and now != last and now[0] == int(os.environ["REPLICAS"]):
        say("step")
    if done > steps:
        steps, last = done, now
    time.sleep(float(os.environ["BENCH_PAUSE"]))
"""

TORCHFT_JOB = """
"$1/torchft_lighthouse" --min_replicas=1 --join_timeout_ms=1000 --bind="${TORCHFT_LIGHTHOUSE#http://}" &
shift
for replica in $(seq 0 $((REPLICAS - 1))); do REPLICA=$replica "$@" & done
wait
"""


def command_of(launcher, ddprun, ranks, restarts, script):
    flags = [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    mnist = [os.path.join(os.path.dirname(ddprun), "mnist"), "--epochs=100000"]
    logs = f"--log-dir={os.path.dirname(script)}/logs"
    return {"standby": [ddprun, *flags, logs, script],
            # With as many variables, as long: where the stack begins depends on them.
            "cold": [ddprun, *flags, logs, "--standby=0", script],
            "engine": [ddprun, *flags, *mnist],
            "engine-cold": [ddprun, *flags, "--standby=0", *mnist],
            "torchrun": [f"{VENV}/torchrun", f"--master-port={free_port()}", *flags, script],
            "ft_launcher": [f"{PEERS}/ft_launcher", f"--master-port={free_port()}", *flags, "--ignore-missing-fault-tol-cfg", script],
            "torchft": ["sh", "-c", TORCHFT_JOB, "sh", PEERS, f"{PEERS}/torchrun", "--standalone",
                        "--nproc-per-node=1", f"--max-restarts={restarts}", script]}[launcher]


def end_all(job):
    """The processes may be in sessions of their own."""
    for pid in family(job.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait()


@contextlib.contextmanager
def started(launcher, ddprun, ranks, restarts, reports, variables):
    """The job. Its script, its logs and `reports`, a named pipe that its workers write to, are in
    one folder."""
    script = os.path.join(os.path.dirname(reports), "train.py")
    with open(script, "w") as file:
        file.write(TRAIN_TORCHFT if launcher == "torchft" else TRAIN)
    env = {**os.environ, "BENCH_REPORTS": reports, "BENCH_PAUSE": "0.02", "BENCH_WIDTH": "64", "OMP_NUM_THREADS": "1", "REPLICAS": str(ranks),
           "RES_OPTIONS": "timeout:1 attempts:1", "PATH": f"{VENV}:{os.environ['PATH']}", **variables}
    env |= {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{free_port()}"} if launcher == "torchft" else {"PYTHON_EXEC": f"{VENV}/python"}
    job = subprocess.Popen(command_of(launcher, ddprun, ranks, restarts, script), env=env, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield job
    finally:
        end_all(job)
