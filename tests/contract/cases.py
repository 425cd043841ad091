"""The command lines that both launchers are given, and every difference that is meant. Only the
standard library.

A difference is named by a pattern over the names of facts (`worker 0.0.1 env OMP_NUM_THREADS`) and
carries its reason. A pattern that meets no difference is an error too, so that the table cannot
grow stale.
"""

import dataclasses

TEMPORARY = "torchrun leaves a temporary log folder after every run; ddprun removes what it made"

# Differences of every line, named once.
ALWAYS = {
    "worker * env DDPRUN_JOB":
        "names the job in all its processes, so that none can be left behind",
    "worker * env DDPRUN_PAGE":
        "where a worker says how far it is (proto/worker_page.h)",
    "left in the temporary folder": TEMPORARY,
    "logs latest": "a link to the newest job's folder below --log-dir",
    "logs *incidents.jsonl": "what each restart cost",
}


@dataclasses.dataclass
class Case:
    """One line. In args and env {folder} is the run's own folder, and {name} a free port for each
    name in `ports`."""
    name: str
    nodes: list  # the arguments of each node's launcher
    env: dict
    plan: dict  # what the workers do (probe.py)
    says: bool  # workers print lines
    ports: tuple
    signal: str  # sent to the first launcher when this many workers have started
    signal_after: int
    by_cpus: bool  # as many workers as CPUs: only the first is looked at, their number is no fact
    launch: bool  # torch.distributed.launch and ddprun-launch
    differs: dict  # pattern -> reason
    ours: dict  # facts of ddprun that must be exactly so, where they differ


def case(name, *args, nodes=None, env=None, plan=None, says=False, ports=(), signal="",
signal_after=0, by_cpus=False,
         launch=False, differs=None, ours=None):
    return Case(name, nodes or [list(args)], env or {}, plan or {}, says, ports, signal,
    signal_after, by_cpus, launch,
                differs or {}, ours or {})


FAILS = {"1": ["peers", "exit 7"], "0": ["hold"]}
LOGS = "--log-dir={folder}/logs"
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
STOPPABLE = {"0": ["wait"], "1": ["wait"]}

CASES = [
    # The program, and its arguments.
    case("plain", "probe.py"),
    case("arguments end the options", "probe.py", "a b", "--nnodes", "2", "-h"),
    case("four workers", "--nproc-per-node=4", "probe.py"),
    case("underscores", "--nproc_per_node", "2", "probe.py"),
    case("threads given", "--nproc-per-node=2", "probe.py", env={"OMP_NUM_THREADS": "8"}),
    case("NCCL's error handling given", "probe.py", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}),
    case("module", "-m", "probe", "a"),
    case("program", "--no-python", "{folder}/probe", "a"),
    case("program on PATH", "--no-python", "probe-on-path"),
    case("PYTHON_EXEC", "probe.py", env={"PYTHON_EXEC": "{folder}/mypython"}),
    case("run path", "--run-path", "{folder}/probe.py", "a", differs={
        "worker * command": "a fresh interpreter, not a child of the launcher's",
        "worker * leads_session":
            "a leader like every worker, so that it can be ended with all that it started",
        "worker * leads_group": "as above",
        "worker * fds": "no descriptor of the launcher's reaches a worker"}),
    case("local rank in arguments", "--nproc-per-node=2", "probe.py", "r=${local_rank}", "${rank}",
         "$local_rank"),
    case("a doubled dollar", "probe.py", "$$", differs={
        "worker * argv": "`$$` stays as it is, so that sh -c 'kill $$' works",
        "worker * command": "as above"}),
    case("role", "--role=trn", "--nproc-per-node=2", "probe.py"),
    case("empty role", "--role=", "probe.py"),
    case("virtual local rank", "--virtual-local-rank", "--nproc-per-node=2", "probe.py",
         env={"CUDA_VISIBLE_DEVICES": "7, 5"}),
    case("virtual local rank, all devices", "--virtual-local-rank", "--nproc-per-node=2",
         "probe.py"),
    case("virtual local rank without a device", "--virtual-local-rank", "--nproc-per-node=2",
         "probe.py",
         env={"CUDA_VISIBLE_DEVICES": "3"}),
    case("workers by CPUs", "--nproc-per-node=cpu", "probe.py", env={"OMP_NUM_THREADS": "1"},
         by_cpus=True),
    case("flags of 2.15", "--shutdown-timeout=5", "--log-line-prefix-template=<${rank}>", "-t", "3",
         "probe.py", says=True,
         ours={"exit": 0, "stderr": ["<0>@@err 0"]}, differs={
             "exit": "torchrun 2.15's flags, which 2.11 does not know", "worker *": "as above",
             "std*": "as above"}),
    case("launch", "--nproc-per-node=2", "probe.py", "a", launch=True),
    case("launch with --use-env", "--nproc-per-node=2", "--use-env", "probe.py", "a", launch=True),
    case("launch of a program", "--no-python", "{folder}/probe", launch=True),

    # Forms.
    case("standalone", "--standalone", "--nproc-per-node=2", "probe.py"),
    case("prefix", "--stand", "probe.py"),
    case("prefix of one spelling", "--no-p", "{folder}/probe"),
    case("prefix of two spellings", "--nproc", "2", "probe.py"),
    case("dashes before the script", "--", "probe.py", "--", "a"),
    case("dashes after the script", "probe.py", "a", "--", "b"),
    case("cluster", "-mt3", "probe", says=True),
    case("letter with an equals sign", "-t=3", "probe.py", says=True),
    case("switch with a value", "--standalone=1", "probe.py"),
    case("unknown option", "--nope", "probe.py"),
    case("no script"),
    case("help", "--help"),
    case("PET_ number", "probe.py", env={"PET_NPROC_PER_NODE": "2"}),
    case("PET_ beaten", "--nproc-per-node=1", "probe.py", env={"PET_NPROC_PER_NODE": "2"}),
    case("PET_ switches", "{folder}/probe", env={"PET_STANDALONE": "1", "PET_NO_PYTHON": "1"}),
    case("PET_ switch off", "probe.py", env={"PET_STANDALONE": "0"}),
    case("PET_ switch by word", "probe.py", env={"PET_STANDALONE": "true"}, ours={"exit": 0},
         differs={
        "exit": "true is taken for 1; torchrun ends in a ValueError",
        "worker *": "the worker runs"}),
    case("PET_ empty", "probe.py", env={"PET_NNODES": ""}),
    case("PET_ no number", "probe.py", env={"PET_MAX_RESTARTS": "x"}),
    case("PET_ choice unchecked", "probe.py", env={"PET_START_METHOD": "bogus"}),

    # Bad values.
    case("max-restarts=x", "--max-restarts=x", "probe.py"),
    case("start-method=q", "--start-method=q", "probe.py"),
    case("nnodes=2:1", "--nnodes=2:1", "probe.py"),
    case("nnodes=0", "--nnodes=0", "probe.py"),
    case("nnodes=1:2:3", "--nnodes=1:2:3", "probe.py"),
    case("max-restarts=-1", "--max-restarts=-1", "probe.py"),
    case("nproc-per-node=bogus", "--nproc-per-node=bogus", "probe.py"),
    case("nproc-per-node=0", "--nproc-per-node=0", "probe.py"),
    case("monitor-interval=0", "--monitor-interval=0", "probe.py"),
    case("module and program", "-m", "--no-python", "probe"),
    case("tee=4", "--tee=4", "probe.py"),
    case("rdzv-conf=foo", "--rdzv-conf=foo", "probe.py"),
    case("rdzv-backend=foo", "--rdzv-backend=foo", "probe.py"),
    case("join_timeout=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
         "--rdzv-conf=join_timeout=0", "probe.py"),
    case("local-ranks-filter=a", "--local-ranks-filter=a", "probe.py"),
    case("event-log-handler=x", "--event-log-handler=x", "probe.py"),
    case("logs-specs=x", "--logs-specs=x", "probe.py"),
    case("numa-binding=x", "--numa-binding=x", "probe.py"),
    case("an endpoint without a port", "--rdzv-endpoint=127.0.0.1", "probe.py"),
    case("a log folder that is a file", "--log-dir={folder}/file", "probe.py"),
    case("an id with a slash", "--rdzv-id=a/b", "probe.py"),
    case("log level", "probe.py", env={"LOGLEVEL": "loud"}),
    case("a program that is missing", "--no-python", "./missing"),
    case("a program that is locked", "--no-python", "./locked"),
    case("a script that is missing", "missing.py", differs={
        "report*": "found before a worker starts: one line instead of a report"}),

    # Output.
    case("redirect", "-r", "3", LOGS, "--rdzv-id=x", "--nproc-per-node=2", "probe.py", says=True),
    case("tee", "-t", "3", LOGS, "--role=trn", "--nproc-per-node=2", "probe.py", says=True),
    case("streams of ranks", "-r", "0:1,1:2", LOGS, "--nproc-per-node=2", "probe.py", says=True),
    case("tee and redirect", "-t", "0:1", "-r", "2", LOGS, "--nproc-per-node=2", "probe.py",
         says=True),
    case("a rank above 9", "-t", "10:3", LOGS, "probe.py", says=True, ours={"exit": 0}, differs={
        "exit": "ranks above 9 can be named", "worker *": "the worker runs", "logs *": "as above",
        "stdout": "as above",
        "stderr": "as above"}),
    case("ranks shown", "-t", "3", "--local-ranks-filter=0", LOGS, "--nproc-per-node=2", "probe.py",
         says=True),
    case("ranks shown that do not exist", "-t", "3", "--local-ranks-filter=7", LOGS, "probe.py",
         says=True),
    case("filtered copies", "-t", "3", "--duplicate-stdout-filters=apple",
         "--duplicate-stderr-filters=err,,", LOGS,
         "--nproc-per-node=2", "probe.py", says=True),
    case("filtered copies of redirected streams", "-r", "3", "--duplicate-stdout-filters=apple",
         LOGS, "probe.py", says=True),
    case("filtered copies without files", "--duplicate-stdout-filters=apple", "--log-dir=/dev/null",
         "probe.py", says=True),
    case("prefix by variable", "-t", "3", "--nproc-per-node=2", "probe.py", says=True,
         env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE":
              "<${role_name}|${rank}|${local_rank}|${nope}> "}),
    case("no files", "--log-dir=/dev/null", "-r", "3", "probe.py", says=True),
    case("PET_TEE", LOGS, "probe.py", says=True, env={"PET_TEE": "1"}),

    # Failures, restarts, endings.
    case("a failure", "--nproc-per-node=2", "probe.py", plan=FAILS),
    case("death by a signal", "--nproc-per-node=2", "probe.py", plan={"1": ["peers", "kill 9"],
         "0": ["hold"]}),
    case("a module fails", "-m", "probe", plan={"0": ["exit 3"]}),
    case("a program fails", "--no-python", "{folder}/probe", plan={"0": ["exit 3"]}),
    case("a recorded exception", LOGS, "--nproc-per-node=2", "probe.py",
         plan={"1": ["peers", "record", "exit 1"], "0": ["hold"]}),
    case("a recorded message", LOGS, "probe.py", plan={"0": ["message text", "exit 5"]}),
    case("a broken error file", LOGS, "probe.py", plan={"0": ["garbage", "exit 5"]}, differs={
        "report*": "the report is shown; torchrun's agent itself ends in a JSONDecodeError"}),
    case("the launcher's error file", LOGS, "probe.py", plan={"0": ["record", "exit 5"]},
         env={"TORCHELASTIC_ERROR_FILE": "{folder}/launcher_error.json"}),
    case("restarts used up", "--max-restarts=2", LOGS, "-r", "1", "probe.py", says=True,
         plan={"0": ["exit 4"]},
         differs={"logs *error.json": "written for a worker that wrote none"}),
    case("a restart heals", "--max-restarts=2", "--nproc-per-node=2", LOGS, "-t", "1", "probe.py",
         says=True,
         plan={"1@0": ["peers", "exit 4"], "0@0": ["hold"]}),
    *[case(f"{name} ends the job", "--nproc-per-node=2", "probe.py", plan=STOPPABLE, signal=name,
           signal_after=2)
      for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")],
    case("signals to handle", "--nproc-per-node=2", "--signals-to-handle=SIGTERM,SIGUSR1",
         "probe.py", plan=STOPPABLE,
         signal="SIGUSR1", signal_after=2),

    # Several nodes, and how they meet.
    case("a static port", "--master-port={master}", "--nproc-per-node=2", "probe.py",
         ports=("master",)),
    case("a static endpoint", "--rdzv-endpoint=127.0.0.1:{master}", "probe.py", ports=("master",)),
    case("c10d on one node", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=j",
         "probe.py"),
    *[case(f"the workers' own store, {name}", *flags, "--nproc-per-node=2", "probe.py", env=OWN_STORE)
      for name, flags in (("standalone", ["--standalone"]), ("c10d on one node",
                          ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=j"]))],
    case("the workers' own store, restarted", "--standalone", "--nproc-per-node=2",
         "--max-restarts=1", "probe.py", env=OWN_STORE, plan=FAILS),
    case("the workers' own store, static", "--master-port={master}", "probe.py", ports=("master",),
         env=OWN_STORE),
    case("the workers' own store, by another word", "--standalone", "probe.py",
         env={**OWN_STORE, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "true"}),
    case("the workers' own store, two c10d nodes", ports=("meet",), env=OWN_STORE, nodes=[
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{meet}", "--rdzv-id=job",
        "probe.py"],
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{meet}", "--rdzv-id=job",
        "probe.py"]]),
    case("two static nodes", ports=("master",), env={"OMP_NUM_THREADS": "1"}, nodes=[
        ["--nnodes=2", "--node-rank=0", "--master-port={master}", "--role=a", "probe.py"],
        ["--nnodes=2", "--node-rank=1", "--master-port={master}", "--role=b", "--nproc-per-node=2",
        "probe.py"]]),
    case("two c10d nodes", ports=("meet",), nodes=[
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{meet}", "--rdzv-id=job",
        "probe.py"],
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{meet}", "--rdzv-id=job",
        "probe.py"]]),
    case("a peer that does not come", "--nnodes=2", "--rdzv-backend=c10d",
         "--rdzv-endpoint=localhost:{meet}",
         "--rdzv-conf=join_timeout=2", "probe.py", ports=("meet",)),
]
