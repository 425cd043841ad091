"""ddprun as process 1 of a pod: read-only root, user 65532, no capability, no way to get one.
pod.py is the kubelet's runtime. The images are those of examples/kubernetes, made as their
Dockerfiles make them. They are nothing but ddprun and a static program, and a slim Python.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from machine import state_of, wait_until
from support import DDPRUN, MARKER, Fifo, Job, JobTest, main, sanitized

POD = pathlib.Path(__file__).with_name("pod.py")
POD_WORKER = pathlib.Path(DDPRUN).with_name("pod_worker")
PYTHON = "/usr/bin/python3"
USER = 65532
FAILED = 7  # what a worker that fails exits with
# The variables of a kubelet, and those of job.yaml.
VARIABLES = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "HOSTNAME": "digits-0", "KUBERNETES_SERVICE_HOST": "10.96.0.1",
             "KUBERNETES_SERVICE_PORT": "443", "TORCHELASTIC_ERROR_FILE": "/dev/termination-log", "TORCHELASTIC_HEALTH_CHECK_PORT": "8081",
             "DDPRUN_TOKEN": "secret"}
FLAGS = "--nnodes=1", "--nproc-per-node=2", "--shutdown-timeout=110", "--exit-codes=detailed"
# Does what pod_worker.cc does.
SCRIPT = """
import errno, os, re, signal, sys
def tell(words):
    with open("/tmp/ready", "w") as pipe: pipe.write(words + "\\n")
def wait_for_byte(path):
    with open(path, "rb", 0) as pipe: assert pipe.read(1)
def say():
    try: root = open("/written", "w") and "writable"
    except OSError as error: root = os.strerror(error.errno)
    capabilities = re.search(r"CapEff:\\t(\\w+)", open("/proc/self/status").read())[1]
    # In one piece: print() may write the newline apart, and another rank may come between.
    os.write(1, f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: user {os.getuid()}, capabilities {capabilities}, "
             f"process 1 is {open('/proc/1/comm').read().strip()}, root: {root}\\n".encode())
def orphan():
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            tell(f"orphan {os.getpid()}")
            wait_for_byte("/tmp/gate")
        os._exit(0)
    os.waitpid(child, 0)
    wait_for_byte("/tmp/door")
def save():
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it can only come while it is waited for
    tell("waits")
    signal.sigwait({signal.SIGTERM})
    tell("saves")
    wait_for_byte("/tmp/gate")
    with open("/tmp/saved-" + os.environ["RANK"], "w") as file: file.write("weights\\n")
def fail(): sys.exit(7)
globals()[sys.argv[1]]()
"""


def lacking():
    """Why no pod can be made here, or None."""
    if sanitized():
        return "a sanitizer's build is linked dynamically"
    if os.geteuid() != 0:
        return "a pod's namespaces and mounts need root"
    if not shutil.which("ip") or not shutil.which("nsenter"):
        return "no ip(8) or nsenter(1) here"
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        place.chmod(0o755)
        image, shared, message = place / "image", place / "tmp", place / "message"
        furnish_image(image)
        shared.mkdir()
        message.touch()
        shutil.copy(POD_WORKER, image / "program")
        done = subprocess.run([sys.executable, "-B", POD, f"--image={image}", f"--tmp={shared}", f"--message={message}", "/program", "fail"],
                              capture_output=True, text=True)
    return None if done.returncode == FAILED else f"no pod can be made here: {done.stderr.strip()[-300:]}"


def furnish_image(image):
    for name in "proc", "sys", "dev", "tmp", "etc":
        (image / name).mkdir(parents=True)
    for name, text in ("hosts", "127.0.0.1 localhost\n10.244.0.7 digits-0\n"), ("hostname", "digits-0\n"), ("resolv.conf", ""):
        (image / "etc" / name).write_text(text)


os.umask(0o022)  # the user of the pod reads what root makes
WHY_NOT = lacking()


class PodTest(JobTest):
    """A pod of one image: `command` is what its programs begin with, `binds` what of the host is in
    it."""

    command = ()
    binds = ()

    def setUp(self):
        super().setUp()
        self.image, self.shared, self.message = (self.folder / name for name in ("image", "emptyDir", "message"))
        furnish_image(self.image)
        self.shared.mkdir()
        os.chown(self.shared, USER, USER)
        self.message.touch()
        self.message.chmod(0o666)
        self.pipes = {name: Fifo(self.shared, name) for name in ("ready", "gate", "door")}
        for pipe in self.pipes.values():
            self.addCleanup(pipe.close)
            os.chmod(pipe.path, 0o666)

    def start_pod(self, act):
        options = ["--image", self.image, "--tmp", self.shared, "--message", self.message, *(f"--bind={words}" for words in self.binds)]
        prefix = (sys.executable, "-B", POD, *options)
        return self.start(*FLAGS, *self.command, act, prefix=tuple(map(str, prefix)), program=("/ddprun",), env=VARIABLES)

    def give(self, name, count=1):
        os.write(self.pipes[name].file, b"x" * count)

    def first_process(self, job):
        (pid,) = Job.children_of(job.pid)
        return pid

    def pid_here(self, job, pid):
        """Returns the pid of a process of the pod, by its number in there (proc_pid_status(5),
        NSpid)."""
        namespace = os.stat(f"/proc/{self.first_process(job)}/ns/pid").st_ino
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                numbers = next(line for line in (path / "status").read_text().splitlines() if line.startswith("NSpid:")).split()
                if numbers[-1] == str(pid) and (path / "ns" / "pid").stat().st_ino == namespace:
                    return int(path.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
        raise AssertionError(f"no process {pid} in the pod")

    def expect_end(self, job, code):
        got, out, err = job.finish()
        self.assertEqual(got, code, err)
        job.wait_gone()
        return out, err

    # ---- what each image must do ----

    def runs(self):
        out, _ = self.expect_end(self.start_pod("say"), 0)
        said = f"user {USER}, capabilities 0000000000000000, process 1 is ddprun, root: Read-only file system"
        self.assertEqual(sorted(out.splitlines()), [f"rank {rank} of 2: {said}" for rank in range(2)])

    def reaps(self):
        """Orphans of a worker come to the agent, and those of `kubectl exec` to process 1
        itself."""
        job = self.start_pod("orphan")
        orphans = [self.pid_here(job, line.split()[1]) for line in self.pipes["ready"].lines(2)]
        first = self.first_process(job)
        agent = Job.children_of(first)[0]
        wait_until(lambda: set(orphans) <= set(Job.children_of(agent)), "the agent to take in the orphans")
        orphan = subprocess.run(["nsenter", f"--target={first}", "--pid", "sh", "-c", '(read word < "$0") > /dev/null & echo $!', self.pipes["door"].path],
                                  stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, MARKER: job.marker}).stdout
        orphan = self.pid_here(job, orphan.strip())
        wait_until(lambda: orphan in Job.children_of(first), "process 1 to take in the orphan")
        os.kill(orphan, signal.SIGKILL)
        wait_until(lambda: state_of(orphan) is None, "an orphan of process 1 that is reaped")
        self.give("gate", 2)
        for orphan in orphans:
            wait_until(lambda: state_of(orphan) is None, "an orphan of the agent that is reaped")
        self.give("door", 2)
        self.expect_end(job, 0)

    def saves(self):
        """As a kubelet ends a pod: SIGTERM to process 1. Both ranks have their grace, and the exit
        code is podFailurePolicy's."""
        job = self.start_pod("save")
        self.assertEqual(self.pipes["ready"].lines(2), ["waits"] * 2)
        os.kill(self.first_process(job), signal.SIGTERM)
        self.assertEqual(self.pipes["ready"].lines(2), ["saves"] * 2)
        self.assertIsNone(job.process.poll())
        self.give("gate", 2)
        self.expect_end(job, 122)
        self.assertEqual(sorted(path.name for path in self.shared.glob("saved-*")), ["saved-0", "saved-1"])

    def leaves_its_message(self):
        self.expect_end(self.start_pod("fail"), 7)
        self.assertEqual(json.loads(self.message.read_text())["message"]["errorCode"], 7)


@unittest.skipIf(WHY_NOT, WHY_NOT)
class FromScratch(PodTest):
    command = "--no-python", "/program"

    def setUp(self):
        super().setUp()
        shutil.copy(DDPRUN, self.image / "ddprun")
        shutil.copy(POD_WORKER, self.image / "program")

    def test_runs_as_process_1_on_a_read_only_root(self):
        self.runs()

    def test_reaps_orphans(self):
        self.reaps()

    def test_sigterm_saves(self):
        self.saves()

    def test_leaves_its_termination_message(self):
        self.leaves_its_message()


@unittest.skipIf(WHY_NOT, WHY_NOT)
@unittest.skipUnless(os.path.exists(PYTHON), f"no {PYTHON} here")
class SlimPython(PodTest):
    """/usr is the host's, but for /usr/local."""

    command = ("/job/train.py",)

    def setUp(self):
        super().setUp()
        for name in "usr", "job", "local/bin":
            (self.image / name).mkdir(parents=True)
        self.binds = ["/usr:/usr", f"{self.image / 'local'}:/usr/local"]
        for name in "bin", "sbin", "lib", "lib64":
            path = pathlib.Path("/", name)
            if path.is_symlink():
                (self.image / name).symlink_to(os.readlink(path))
            elif path.exists():
                (self.image / name).mkdir()
                self.binds.append(f"{path}:{path}")
        shutil.copy(DDPRUN, self.image / "local" / "bin" / "ddprun")
        (self.image / "ddprun").symlink_to("/usr/local/bin/ddprun")
        (self.image / "job" / "train.py").write_text(SCRIPT)

    def test_runs_as_process_1_on_a_read_only_root(self):
        self.runs()

    def test_reaps_orphans(self):
        self.reaps()

    def test_sigterm_saves(self):
        self.saves()

    def test_leaves_its_termination_message(self):
        self.leaves_its_message()


if __name__ == "__main__":
    main()
