"""ddprun doctor on a node with a fault that was planted, and on one without."""

import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "jobs"))
from machine import free_port  # noqa: E402
from support import DDPRUN, JobTest, main, sanitized, with_variables  # noqa: E402

LIMIT = 6 if sanitized() else 3  # seconds for the checks of a node
TRIES = 3  # a busy machine may take longer now and then
DEADLINE = 60


def can_unshare():
    return subprocess.run(["unshare", "--mount", "--uts", "--net", "true"], capture_output=True).returncode == 0


class HeldFile:
    """A file of a server that is slow. A process that opens it waits for `seconds`, or if that is
    None as long as this is held. So a lease has it (fcntl(2)). Its holder is told of each open(),
    and then has 45 s to give it up."""

    def __init__(self, path, seconds=None):
        self.path, self.seconds = path, seconds

    def __enter__(self):
        self.file = os.open(self.path, os.O_RDWR)
        self.before = signal.signal(signal.SIGIO, self.asked)
        fcntl.fcntl(self.file, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def asked(self, *_):
        if self.seconds is None:
            return
        time.sleep(self.seconds)
        fcntl.fcntl(self.file, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def __exit__(self, *_):
        os.close(self.file)
        signal.signal(signal.SIGIO, self.before)


class DoctorTest(JobTest):
    def doctor(self, *words, prefix=(), cwd=None, tries=TRIES, **variables):
        """(exit code, {what: (level, fact, remedy)}); it must answer in time."""
        for _ in range(tries):
            begin = time.monotonic()
            done = subprocess.run([*prefix, DDPRUN, *words], capture_output=True, text=True, timeout=DEADLINE, cwd=cwd or self.folder,
                                  env=with_variables(RES_OPTIONS="timeout:1 attempts:1", **variables))
            seconds = time.monotonic() - begin
            if seconds < LIMIT:
                break
        self.assertLess(seconds, LIMIT)
        self.assertEqual(done.stderr, "")
        checks = [check for line in done.stdout.splitlines() for check in json.loads(line)["checks"]]
        return done.returncode, {check["what"]: (check["level"], check["fact"], check["remedy"]) for check in checks}

    def finds(self, what, level, fact, remedy, *words, **options):
        code, checks = self.doctor(*words, "doctor", "--json", **options)
        self.assertIn(what, checks)
        self.assertEqual(checks[what][0], level, checks[what])
        self.assertIn(fact, checks[what][1])
        self.assertIn(remedy, checks[what][2])
        self.assertEqual(code, 1 if level == "FAIL" else code)


class Doctor(DoctorTest):
    def test_a_healthy_node_has_no_failure(self):
        script = self.script("print(1)\n", "train.py")
        begin = time.monotonic()
        code, checks = self.doctor("doctor", "--json", script)
        print(f"{len(checks)} checks in {time.monotonic() - begin:.2f} s")
        self.assertEqual([(what, *found) for what, found in checks.items() if found[0] == "FAIL"], [])
        self.assertEqual(code, 0)
        self.assertGreaterEqual(len(checks), 12)

    def test_lines_are_for_people(self):
        done = subprocess.run([DDPRUN, "doctor"], capture_output=True, text=True, timeout=DEADLINE, env=with_variables())
        for line in done.stdout.splitlines():
            self.assertRegex(line, r"^(ok  |warn|FAIL) [^:]+: .+")
            self.assertEqual(" — " in line, not line.startswith("ok"), line)

    def test_a_file_named_doctor_wins(self):
        script = self.folder / "doctor"
        script.write_text("#!/bin/sh\necho it runs $1\n")
        script.chmod(0o755)
        done = subprocess.run([DDPRUN, "doctor", "--json"], capture_output=True, text=True, cwd=self.folder, timeout=DEADLINE, env=with_variables())
        self.assertEqual((done.returncode, done.stdout), (0, "it runs --json\n"), done.stderr)

    def test_a_folder_named_doctor_does_not(self):
        (self.folder / "doctor").mkdir()
        code, checks = self.doctor("doctor", "--json")
        self.assertIn("shared memory", checks)

    def test_json_behind_the_script(self):
        code, checks = self.doctor("doctor", self.script("print(1)\n", "train.py"), "--epochs=1", "--json")
        self.assertEqual(checks["script"][0], "ok")

    def test_other_words_are_refused(self):
        done = subprocess.run([DDPRUN, "doctor", "--jsn"], capture_output=True, text=True, cwd=self.folder, timeout=DEADLINE, env=with_variables())
        self.assertEqual((done.returncode, done.stderr), (2, "ddprun: doctor --jsn: expected `doctor [--json] [SCRIPT]`\n"))

    def test_check_comes_before_a_job(self):
        script = self.script("#!/bin/sh\necho ran\n", "ran.sh")
        code, out, err = self.start("--check", script).finish()
        self.assertEqual((code, out), (0, "ran\n"), err)
        self.assertIn("ok   shared memory: ", err)
        code, out, err = self.start("--check", script, env=with_variables(GLOO_SOCKET_IFNAME="none0")).finish()
        self.assertEqual((code, out), (1, ""), err)
        self.assertIn("FAIL GLOO_SOCKET_IFNAME: none0 names no interface here", err)
        self.assertTrue(err.endswith("ddprun: --check: a check of this node failed\n"), err)

    def test_a_check_that_fails_says_who_waits(self):
        code, out, err = self.start("--check", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1", self.script("print(1)\n", "train.py"),
                                    env=with_variables(GLOO_SOCKET_IFNAME="none0")).finish()
        self.assertEqual((code, out), (1, ""), err)
        self.assertIn("a check of this node failed; the other nodes wait for it, unless their scheduler ends them (`srun --kill-on-bad-exit=1`)\n", err)

    def test_check_takes_a_program_by_its_name(self):
        code, out, err = self.start("--check", "--no-python", "echo", "ran").finish()
        self.assertEqual((code, out), (0, "ran\n"), err)
        self.assertIn("ok   python: not needed: the script is a program\n", err)

    def test_check_leaves_a_pipe_to_the_interpreter(self):
        done = subprocess.run([DDPRUN, "--check", "/dev/stdin"], input="print('ran')\n", capture_output=True, text=True, timeout=DEADLINE,
                              env=with_variables())
        self.assertEqual((done.returncode, done.stdout), (0, "ran\n"), done.stderr)

    # ---- planted faults that need no namespace ----

    def test_a_file_system_that_hangs(self):
        script = self.script("print(1)\n", "train.py")
        with HeldFile(script):
            code, checks = self.doctor("doctor", "--json", script)
            self.assertEqual((code, checks["script"][0]), (1, "FAIL"))
            self.assertIn("does not answer", checks["script"][1])
            code, out, err = self.start("--check", script).finish(LIMIT)
            self.assertEqual((code, out), (1, ""), err)
            self.assertIn("its file system hangs", err)

    def test_a_file_system_that_is_slow(self):
        script = self.script("print(1)\n", "train.py")
        with HeldFile(script, seconds=0.5):
            code, checks = self.doctor("doctor", "--json", script, tries=1)
        self.assertEqual(checks["script"][0], "warn", checks["script"])
        self.assertRegex(checks["script"][1], r"read in \d{3,} ms")

    def test_a_path_that_hangs(self):
        with HeldFile(self.script("#!/bin/sh\n", "python3")):
            self.finds("python", "FAIL", "looking for it takes too long", "stat -f", prefix=("/usr/bin/env", "-u", "PYTHON_EXEC", f"PATH={self.folder}"))

    def test_a_folder_that_hangs(self):
        """The typed word is then the doctor."""
        with HeldFile(self.script("", "doctor")):
            code, checks = self.doctor("doctor", "--json")
        self.assertIn("shared memory", checks)

    def test_an_interface_that_is_missing(self):
        self.finds("NCCL_SOCKET_IFNAME", "FAIL", "ib7 names no interface", "unset NCCL_SOCKET_IFNAME", NCCL_SOCKET_IFNAME="ib7")
        self.finds("GLOO_SOCKET_IFNAME", "FAIL", "eth9 names no interface", "unset GLOO_SOCKET_IFNAME", GLOO_SOCKET_IFNAME="eth9")

    def test_no_python(self):
        self.finds("python", "FAIL", "does not run", "says why", PYTHON_EXEC="/bin/false")

    def test_a_python_that_hangs(self):
        python = self.script("#!/bin/sh\nexec sleep 1000\n", "python")
        self.finds("python", "FAIL", "hangs: it did not answer in time", "run it by hand", PYTHON_EXEC=str(python))

    def test_no_python_and_no_script(self):
        """Nobody knows whether one is needed."""
        none = ("/usr/bin/env", "-u", "PYTHON_EXEC", f"PATH={self.folder}")
        code, checks = self.doctor("doctor", "--json", prefix=none)
        self.assertEqual((code, checks["python"][:2]), (0, ("warn", "no python3 on PATH")))
        code, checks = self.doctor("doctor", "--json", self.script("print(1)\n", "train.py"), prefix=none)
        self.assertEqual((code, checks["python"][:2]), (1, ("FAIL", "no python3 on PATH")))

    def test_few_open_files(self):
        self.finds("open files", "FAIL", "100 may be open", "ulimit -Hn", prefix=("prlimit", "--nofile=100:100"))

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            # An endpoint that is not ours in the end: only the checks of this node matter.
            self.finds("port", "FAIL", f"{port} is taken by pid {os.getpid()} (", "another port", "--nproc-per-node=1",
                       "--master-addr=127.0.0.1", f"--master-port={port}", "--nnodes=1", "--node-rank=0")

    def test_a_port_of_this_node_that_is_taken(self):
        """The endpoint says that the rendezvous is here; the other node is not asked for."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.finds("port", "FAIL", f"{port} is taken by pid {os.getpid()} (", "another port", "--nnodes=2", "--rdzv-backend=c10d",
                       f"--rdzv-endpoint=127.0.0.1:{port}")

    def test_nodes_that_do_not_meet(self):
        """Each form says so."""
        flags = ("--quiet", "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-conf=join_timeout=1", "doctor")
        for form in (), ("--json",):
            code, out, err = self.start(*flags, *form).finish(DEADLINE)
            self.assertEqual(code, 1, err)
            self.assertIn("join_timeout", err)
            last = out.splitlines()[-1]
            if form:
                self.assertEqual([json.loads(line)["host"] for line in out.splitlines()], [socket.gethostname(), "between nodes"])
                check, = json.loads(last)["checks"]
                self.assertEqual((json.loads(last)["failed"], check["level"], check["what"]), (True, "FAIL", "rendezvous"))
                continue
            self.assertTrue(last.startswith(f"{socket.gethostname()}: FAIL rendezvous: the nodes did not meet (exit code 1)"), last)
            for line in out.splitlines():
                self.assertRegex(line, rf"^{socket.gethostname()}: (ok  |warn|FAIL) [^:]+: .+")

    def test_more_threads_than_processors(self):
        self.finds("processors", "warn", "workers take 2 × 4096", "OMP_NUM_THREADS", "--nproc-per-node=2", OMP_NUM_THREADS="4096")

    def test_a_host_that_is_unknown(self):
        self.finds("endpoint", "FAIL", "no such host: nowhere.invalid", "/etc/hosts", "--rdzv-backend=c10d", "--rdzv-endpoint=nowhere.invalid:1")

    def test_a_script_that_cannot_be_read(self):
        code, checks = self.doctor("doctor", "--json", str(self.folder / "absent.py"))
        self.assertEqual((code, checks["script"][0]), (1, "FAIL"))


@unittest.skipUnless(can_unshare(), "mount namespaces need CAP_SYS_ADMIN")
class Planted(DoctorTest):
    """Each in a mount namespace of its own."""

    def planted(self, shell):
        return ("unshare", "--mount", "--uts", "--net", "sh", "-ec", shell + '\nexec "$@"', "sh")

    def test_small_shared_memory(self):
        self.finds("shared memory", "FAIL", "of 64 MiB free", "--shm-size", prefix=self.planted("mount -t tmpfs -o size=64m tmpfs /dev/shm"))

    def test_locked_memory_with_infiniband(self):
        plant = "mount -t tmpfs tmpfs /sys/class; mkdir -p /sys/class/infiniband/mlx5_0; ulimit -l 64"
        self.finds("locked memory", "FAIL", "mlx5_0 needs it", "ulimit -l unlimited", prefix=self.planted(plant))
        self.finds("NCCL_IB_DISABLE", "warn", "switches off mlx5_0", "unset", prefix=self.planted(plant), NCCL_IB_DISABLE="1")

    def test_an_own_name_on_loopback(self):
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n127.0.1.1 planted\n10.1.1.1 other\n")
        prefix = self.planted(f"hostname planted; mount --bind {hosts} /etc/hosts; ip link set lo up")
        # The node's own checks come first; then it waits for the other one, in vain.
        job = self.start("--quiet", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=other", "--rdzv-conf=join_timeout=1,read_timeout=1",
                         "doctor", prefix=prefix)
        code, out, _ = job.finish(DEADLINE)
        self.assertNotEqual(code, 0)
        self.assertIn("warn own name: planted is 127.0.1.1, which other nodes cannot reach — give planted its address", out)
        self.finds("own name", "ok", "planted is 127.0.1.1", "", prefix=prefix)

    def test_ipv6_off_and_a_name_that_needs_it(self):
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\nfd00::7 planted\n")
        self.finds("IPv6", "FAIL", "fd00::7", "disable_ipv6=0", prefix=self.planted(
            f"hostname planted; mount --bind {hosts} /etc/hosts; ip link set lo up; echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"))

    def test_a_resolver_that_does_not_answer(self):
        resolver = self.folder / "resolv.conf"
        resolver.write_text("nameserver 192.0.2.1\noptions timeout:30 attempts:5\n")
        prefix = self.planted(f"mount --bind {resolver} /etc/resolv.conf; ip link set lo up; ip link add d0 type veth peer name d1; ip link set d1 up; "
                              "ip addr add 10.9.9.1/24 dev d0; ip link set d0 up; ip route add default via 10.9.9.2; unset RES_OPTIONS")
        self.finds("endpoint", "FAIL", "takes too long", "/etc/resolv.conf", "--rdzv-backend=c10d", "--rdzv-endpoint=far.example:1", prefix=prefix)

    def test_nothing_is_written_for_the_other_nodes(self):
        """Two nodes meet where /tmp cannot be written, and leave nothing where files may be."""
        with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
            flags = ("--quiet", "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "doctor")
            prefix = ("unshare", "--mount", "sh", "-ec", 'mount -t tmpfs -o ro tmpfs /tmp; exec "$@"', "sh")
            jobs = [self.start(*flags, prefix=prefix, env=with_variables(TMPDIR=temporary, DDPRUN_TOKEN="secret")) for _ in range(2)]
            results = [job.finish(DEADLINE) for job in jobs]
            self.assertEqual([code for code, _, _ in results], [0, 0], results)
            self.assertEqual(os.listdir(temporary), [])

    def test_an_interface_that_is_down(self):
        self.finds("NCCL_SOCKET_IFNAME", "warn", "d0 is down", "ip link set", prefix=self.planted("ip link add d0 type veth peer name d1"),
                   NCCL_SOCKET_IFNAME="d0")

    def test_an_endpoint_that_does_not_answer(self):
        prefix = self.planted("ip link set lo up; ip link add d0 type veth peer name d1; ip link set d1 up; ip addr add 10.9.9.1/24 dev d0; "
                              "ip link set d0 up; ip neigh add 10.9.9.2 lladdr 02:00:00:00:00:02 dev d0")
        self.finds("endpoint", "FAIL", "port 29500 cannot be reached: no answer", "through the firewall", "--nnodes=2", "--rdzv-backend=c10d",
                   "--rdzv-endpoint=10.9.9.2:29500", prefix=prefix)

    def test_temporary_files_cannot_be_written(self):
        self.finds("temporary files", "FAIL", "cannot be written", "TMPDIR", prefix=self.planted("mount -t tmpfs -o ro tmpfs /mnt"), TMPDIR="/mnt")


if __name__ == "__main__":
    main()
