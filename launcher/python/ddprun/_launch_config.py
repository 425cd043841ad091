"""LaunchConfig with the names and defaults of torch.distributed.launcher.LaunchConfig (2.15), and
ddprun's flags for one, ours or torch's.

No field is dropped in silence.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any, Dict, List, Mapping, Optional, Set, Union

# Defaults of torch's LaunchConfig and of ddprun. Flags that say the same are left out. ddprun then
# looks at the scheduler and the variables for a better value.
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
DEFAULT_TIMEOUT_S = 900  # torch puts it into each rdzv_configs; only the static backend reads it
DEFAULT_GRACE_S = 30

# 0: nothing, 1: stdout, 2: stderr, 3: both (torch's Std); or such a number for each local rank.
Streams = Union[int, Mapping[int, int]]


class DefaultLogsSpecs:
    """Log files and streams of the workers, as torch.distributed.elastic.multiprocessing has it."""

    def __init__(
        self,
        log_dir: Optional[str] = None,
        redirects: Streams = 0,
        tee: Streams = 0,
        local_ranks_filter: Optional[Set[int]] = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter


@dataclasses.dataclass
class LaunchConfig:
    """How to launch a job; each field as in torch. docs/launchers.md says what each does here."""

    min_nodes: int
    max_nodes: int
    nproc_per_node: Union[int, str]
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: Dict[str, Any] = dataclasses.field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: Dict[str, str] = dataclasses.field(default_factory=dict)
    local_addr: Optional[str] = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = DEFAULT_SIGNALS
    duplicate_stdout_filters: Optional[List[str]] = None
    duplicate_stderr_filters: Optional[List[str]] = None
    virtual_local_rank: bool = False
    shutdown_timeout: Optional[int] = None


FIELDS = {field.name for field in dataclasses.fields(LaunchConfig)}
# Fields whose text is the flag's value; left out if empty.
FLAG_OF_TEXT = {
    "run_id": "--rdzv-id",
    "role": "--role",
    "rdzv_endpoint": "--rdzv-endpoint",
    "log_line_prefix_template": "--log-line-prefix-template",
    "local_addr": "--local-addr",
}


def config_flags(config: Any) -> List[str]:
    """Returns the flags. Raises TypeError or ValueError that names the field and the value which
    ddprun cannot honour."""
    _check(config)
    nodes = str(config.min_nodes)
    if config.max_nodes != config.min_nodes:
        nodes += f":{config.max_nodes}"
    texts = {flag: getattr(config, name, None) for name, flag in FLAG_OF_TEXT.items()}
    return [
        f"--nnodes={nodes}",
        f"--nproc-per-node={config.nproc_per_node}",
        f"--rdzv-backend={config.rdzv_backend}",
        f"--max-restarts={config.max_restarts}",
        f"--monitor-interval={config.monitor_interval}",
        f"--event-log-handler={config.event_log_handler}",
        *(f"{flag}={text}" for flag, text in texts.items() if text),
        *_rendezvous_flags(config),
        *_log_flags(config.logs_specs),
        *_later_flags(config),
    ]


def log_folder(config: Any) -> Optional[str]:
    """Returns the folder for log files that the caller named; None if that is left to us."""
    folder: Optional[str] = getattr(config.logs_specs, "_root_log_dir", None)
    return folder


def writes_logs(config: Any) -> bool:
    """Whether streams of workers go to files."""
    specs = config.logs_specs
    names = "duplicate_stdout_filters", "duplicate_stderr_filters"
    copies = any(getattr(config, name, None) for name in names)
    return copies or bool(getattr(specs, "_redirects", 0) or getattr(specs, "_tee", 0))


def handled_signals(config: Any) -> List[int]:
    """Returns the numbers of signals_to_handle. ddprun warns of names of no signal."""
    words = getattr(config, "signals_to_handle", DEFAULT_SIGNALS).split(",")
    names = {f"SIG{word.strip().removeprefix('SIG')}" for word in words} - {"SIGKILL", "SIGSTOP"}
    known = signal.Signals.__members__
    return sorted(int(known[name]) for name in names if name in known)


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _check(config: Any) -> None:
    if isinstance(config, type) or not hasattr(config, "rdzv_configs"):
        raise TypeError(f"config={config!r}: expected a LaunchConfig, of ddprun or of torch")
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in FIELDS and value != _default(field):
            raise ValueError(
                f"LaunchConfig.{field.name}={value!r}: ddprun does not know this field; "
                f"expected {_default(field)!r}"
            )
    if config.metrics_cfg:
        raise ValueError(
            f"LaunchConfig.metrics_cfg={config.metrics_cfg!r}: expected none; ddprun's metrics are "
            "at an address (PET_HTTP=PORT)"
        )
    if config.start_method not in ("spawn", "fork", "forkserver"):
        raise ValueError(
            f"LaunchConfig.start_method={config.start_method!r}: expected spawn, fork or forkserver"
        )


def _rendezvous_flags(config: Any) -> List[str]:
    conf = dict(config.rdzv_configs)
    if config.rdzv_timeout != -1:
        conf["timeout"] = config.rdzv_timeout
    flags: List[str] = []
    if config.rdzv_backend == "static":
        flags.append(f"--node-rank={conf.pop('rank', 0)}")
    elif conf.get("timeout") == DEFAULT_TIMEOUT_S:
        del conf["timeout"]
    for key, value in conf.items():
        if "," in str(value):
            raise ValueError(
                f"LaunchConfig.rdzv_configs[{key!r}]={value!r}: expected a value without a comma"
            )
    words = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in conf.items()
    ]
    return [*flags, f"--rdzv-conf={','.join(words)}"] if words else flags


def _log_flags(specs: Any) -> List[str]:
    if specs is None:
        return []
    layout = getattr(type(specs), "reify", None)
    if layout is not None and layout.__qualname__ != "DefaultLogsSpecs.reify":
        raise TypeError(
            f"LaunchConfig.logs_specs={specs!r}: expected DefaultLogsSpecs; "
            "log files lie where ddprun puts them"
        )
    ranks = specs._local_ranks_filter
    streams = {"--redirects": _streams(specs._redirects), "--tee": _streams(specs._tee)}
    return [
        *(f"{flag}={value}" for flag, value in streams.items() if value != "0"),
        *([f"--local-ranks-filter={','.join(map(str, sorted(ranks)))}"] if ranks else []),
    ]


def _streams(streams: Any) -> str:
    if isinstance(streams, int):
        return str(int(streams))
    return ",".join(f"{rank}:{int(number)}" for rank, number in streams.items()) or "0"


def _later_flags(config: Any) -> List[str]:
    """Those of fields that torch 2.9 does not have, and of objects."""
    flags: List[str] = []
    binding = getattr(config.numa_options, "affinity_mode", config.numa_options)
    if binding is not None:
        flags.append(f"--numa-binding={getattr(binding, 'value', binding)}")
    signals = getattr(config, "signals_to_handle", DEFAULT_SIGNALS)
    if signals != DEFAULT_SIGNALS:
        flags.append(f"--signals-to-handle={signals}")
    for stream in ("stdout", "stderr"):
        filters = getattr(config, f"duplicate_{stream}_filters", None)
        if filters:
            words = ",".join(word.replace(",", ",,") for word in filters)
            flags.append(f"--duplicate-{stream}-filters={words}")
    if getattr(config, "virtual_local_rank", False):
        flags.append("--virtual-local-rank")
    grace = getattr(config, "shutdown_timeout", None)
    said = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", DEFAULT_GRACE_S)
    if grace is not None and str(grace) != str(said):
        flags.append(f"--shutdown-timeout={grace}")
    return flags
