"""Runs one command line under a launcher and notes the results. The notes do not change from run to
run. Only the standard library.

These are normalised: the folder of the run, random parts of folder names, pids, UUIDs. So are this
host's names and the interpreter's path. So are ports, but for those that the line names.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))

from machine import free_port  # noqa: E402

DEADLINE_S = 60  # for one command line under either launcher
LOOK_EVERY_S = 0.005
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
# Variables that this run hands its workers for itself, and those that a shell counts for itself.
OURS = {"PROBE_OUT", "PROBE_PLAN", "PROBE_SAYS", "_", "SHLVL", "PWD", "OLDPWD"}


def base_environment(folder):
    """Small and the same everywhere, but for a sanitizer's own options. The interpreter that runs
    this is the first on PATH."""
    sanitizer = {name: value for name, value in os.environ.items() if name.endswith("SAN_OPTIONS")}
    return sanitizer | {
        "PATH": f"{folder}/bin:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": f"{folder}/tmp",
        "LC_ALL": "C.UTF-8",
        "RES_OPTIONS": "timeout:1 attempts:1",
        "PROBE_OUT": f"{folder}/notes",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def default_signals():
    """Sets the signals that a terminal's shell gives. A background job may have some ignored, and
    ddprun hands that on, as nohup wants it."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


class Normaliser:
    def __init__(self, folder, ports):
        self.folder = str(folder)
        self.ports = {str(port): f"<port {name}>" for name, port in ports.items()}
        self.hosts = {"localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn()}

    def text(self, text):
        text = text.replace(self.folder, "<folder>")
        text = UUID.sub("<uuid>", text)
        text = re.sub(r"<folder>/tmp/torchelastic_[A-Za-z0-9_]+", "<temporary>", text)
        return re.sub(r"(/|^)([^/]+?)_[A-Za-z0-9_]{6,8}(?=/attempt_)", r"\1\2_<random>", text)

    def variable(self, name, value):
        if name == "MASTER_ADDR" and value in self.hosts:
            return "<this host>"
        if name == "MASTER_PORT":
            return self.ports.get(value, "<any port>")
        for port, word in self.ports.items():
            value = value.replace(port, word)
        return self.text(value)

    def command(self, words):
        """The interpreter is the launcher's own with one, the first on PATH with the other."""
        words = [self.text(word) for word in words]
        if (
            words
            and not words[0].startswith("<folder>")
            and re.match(r"python[\d.]*$", os.path.basename(words[0]))
        ):
            words[0] = "<python>"
        return words


def read_notes(folder, normaliser, inherited):
    """Returns each worker's variables that differ from the launcher's own environment."""
    flat = {}
    for path in sorted((folder / "notes").glob("*.json")):
        facts = json.loads(path.read_text())
        worker = "worker " + path.stem
        changed = {
            name: value
            for name, value in facts["env"].items()
            if inherited.get(name) != value and name not in OURS
        }
        for name, value in changed.items():
            flat[f"{worker} env {name}"] = normaliser.variable(name, value)
        for name in set(inherited) - set(facts["env"]) - OURS:
            flat[f"{worker} env {name}"] = "<unset>"
        flat[f"{worker} argv"] = [normaliser.text(word) for word in facts["argv"]]
        flat[f"{worker} command"] = normaliser.command(facts["command"])
        for name in ("cwd", "fds", "leads_session", "leads_group", "SigIgn", "SigBlk"):
            value = facts[name]
            flat[f"{worker} {name}"] = normaliser.text(value) if isinstance(value, str) else value
    for path in sorted((folder / "notes").glob("heard.*")):
        flat[f"heard by {path.suffix[1:]}"] = path.read_text().split()
    return flat


def without_cpu_count(flat):
    """The facts of the first worker, where there are as many as the host has CPUs."""
    kept = {
        name: value
        for name, value in flat.items()
        if not name.startswith("worker ") or name.startswith("worker 0.0.0 ")
    }
    return {
        name: (
            "<CPUs>"
            if name.endswith(("LOCAL_WORLD_SIZE", "env WORLD_SIZE", "ROLE_WORLD_SIZE"))
            and value == str(os.cpu_count())
            else value
        )
        for name, value in kept.items()
    }


def error_record(text):
    """An error file without its times and traces."""
    try:
        record = json.loads(text)
    except ValueError:
        return text
    message = record.get("message")
    if isinstance(message, dict):
        known = {name: message[name] for name in ("message", "errorCode") if name in message}
        return {**known, "trace": "py_callstack" in message.get("extraInfo", {})}
    return {"message": message}


def read_logs(folder, normaliser):
    flat = {}
    for root, folders, files in os.walk(folder / "logs"):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in files + links:
            path = pathlib.Path(root, name)
            shown = normaliser.text(str(path.relative_to(folder / "logs")))
            if path.is_symlink():
                flat[f"logs {shown}"] = "link"
            elif name == "error.json":
                flat[f"logs {shown}"] = error_record(path.read_text())
            else:
                flat[f"logs {shown}"] = sorted(
                    line for line in path.read_text().splitlines() if "@@" in line
                )
    return flat


def trace_kind(text):
    if "Traceback (most recent call last)" in text or "ValueError" in text:
        return "python"
    if re.search(r"Signal \d+ \(SIG\w+\)", text):
        return re.search(r"Signal \d+ \(SIG\w+\)", text).group(0)
    words = re.sub(r"To enable traceback see.*", "", text).split("\n")[0].strip()
    return words if words not in ("", "<N/A>") else "none"


def read_report(err, normaliser):
    """Facts of the root cause, where there is a report."""
    before, mark, after = err.partition("Root Cause (first observed failure):")
    if not mark:
        return {"report": "none"}
    flat = {"report": "shown"}
    titles = re.findall(r"^(.*) FAILED\s*$", before, re.MULTILINE)
    flat["report entry"] = normaliser.text(titles[-1].strip()) if titles else "none"
    for name in ("rank", "exitcode"):
        found = re.search(rf"^\s*{name}\s*: (.*)$", after, re.MULTILINE)
        words = found.group(1) if found else "none"
        flat[f"report {name}"] = re.sub(r" \(pid: \d+\).*", "", words)
    trace = re.search(r"^\s*traceback\s*: (.*)", after, re.MULTILINE | re.DOTALL)
    flat["report traceback"] = (
        trace_kind(trace.group(1))
        if trace
        else trace_kind("\n".join(re.findall(r"Signal \d+ \(SIG\w+\)", after)))
    )
    return flat


def console(text, normaliser):
    """The workers' lines; a report, which begins with a rule, may quote them again."""
    text = re.split(r"^={20,}$", text, maxsplit=1, flags=re.MULTILINE)[0]
    return sorted(normaliser.text(line) for line in text.splitlines() if "@@" in line)


class Run:
    """One case: a folder, one launcher a node, what they left."""

    def __init__(self, case, programs):
        self.case = case
        self.programs = programs  # words that start "run" and "launch"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun_contract_")).resolve()
        self.ports = {name: free_port() for name in case.ports}

    def fill(self, word):
        word = word.replace("{folder}", str(self.folder))
        for name, port in self.ports.items():
            word = word.replace("{" + name + "}", str(port))
        return word

    def prepare(self):
        for name in ("tmp", "notes", "bin"):
            (self.folder / name).mkdir()
        probe = (HERE / "probe.py").read_text()
        for name, mode in (
            ("probe.py", 0o644),
            ("probe", 0o755),
            ("bin/probe-on-path", 0o755),
            ("locked", 0o644),
        ):
            (self.folder / name).write_text(probe)
            (self.folder / name).chmod(mode)
        (self.folder / "mypython").symlink_to(sys.executable)
        (self.folder / "file").write_text("")
        self.env = base_environment(self.folder)
        self.env.update({name: self.fill(value) for name, value in self.case.env.items()})
        if self.case.plan:
            self.env["PROBE_PLAN"] = json.dumps(self.case.plan)
        if self.case.says:
            self.env["PROBE_SAYS"] = "1"

    def start(self, args):
        words = [*self.programs["launch" if self.case.launch else "run"], *map(self.fill, args)]
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=default_signals,
            start_new_session=True,
        )

    def send_signal(self, process):
        """When all workers have noted their start; their handlers are in place by then."""
        end = time.monotonic() + DEADLINE_S
        while len(list((self.folder / "notes").glob("*.json"))) < self.case.signal_after:
            if process.poll() is not None or time.monotonic() > end:
                return
            time.sleep(LOOK_EVERY_S)  # a file that appears gives no notice
        process.send_signal(getattr(signal, self.case.signal))

    def finish(self, process):
        try:
            return process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "", f"no end after {DEADLINE_S} s\n"

    def observe(self):
        self.prepare()
        processes = [self.start(args) for args in self.case.nodes]
        if self.case.signal:
            self.send_signal(processes[0])
        ends = [self.finish(process) for process in processes]
        normaliser = Normaliser(self.folder, self.ports)
        flat = {}
        for node, (process, (out, err)) in enumerate(zip(processes, ends)):
            prefix = f"node {node} " if len(processes) > 1 else ""
            flat[prefix + "exit"] = process.returncode
            flat[prefix + "stdout"] = console(out, normaliser)
            flat[prefix + "stderr"] = console(err, normaliser)
            flat.update(
                {prefix + name: value for name, value in read_report(err, normaliser).items()}
            )
        flat.update(read_notes(self.folder, normaliser, self.env))
        flat.update(read_logs(self.folder, normaliser))
        left = sorted(
            re.sub(r"_[A-Za-z0-9_]+$", "_<random>", name)
            for name in os.listdir(self.folder / "tmp")
        )
        flat["left in the temporary folder"] = left
        error_file = self.folder / "launcher_error.json"
        if error_file.exists():
            flat["the launcher's error file"] = error_record(error_file.read_text())
        return without_cpu_count(flat) if self.case.by_cpus else flat

    def clean(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def observe(case, programs):
    run = Run(case, programs)
    try:
        return run.observe()
    finally:
        run.clean()
