"""Runs programs of arm64 under qemu: unit tests, and jobs of shells. The kernel hands each program
of arm64 to qemu, in a user namespace of this command alone."""

import os
import re
import shlex
import subprocess

from .build import run
from .elf import PROGRAMS

TESTS = ("base_test", "store_unit", "rendezvous_core_test", "rendezvous_script_test",
         "rendezvous_unit_test", "agent_core_test", "agent_lines_test", "agent_report_test",
         "launcher_test", "proto_test", "worker_sum_test", "worker_bucket_test", "worker_shm_test")
DEADLINE_S = 300
# ELF, 64 bits, little-endian, a program or a shared object, for aarch64.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
BINFMT = "/proc/sys/fs/binfmt_misc"
KILLED = ('if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then kill -9 $$; fi; '
          'echo attempt $TORCHELASTIC_RESTART_COUNT rank $RANK of $WORLD_SIZE')


def build_tests(tree):
    """Builds the programs of TESTS in the tree of the programs."""
    run("cmake", "-DDDPRUN_BUILD_TESTS=ON", tree, log=tree / "configure-tests.log")
    run("cmake", "--build", tree, "--target", *TESTS, log=tree / "build-tests.log")


def register():
    """Returns the lines for a shell that make this namespace's kernel start qemu."""
    return (f"mount -t binfmt_misc none {BINFMT} && "
            f"printf %s ':qemu-aarch64:M::{MAGIC}:{MASK}:'$(command -v qemu-aarch64-static)':F' "
            f"> {BINFMT}/register")


def registered(line):
    """Returns the line, with the registration before it. The line may have parts in the
    background."""
    return f"{register()} || exit 1; {line}"


def shell(line, sysroot):
    """Runs a line in which programs of arm64 are programs like any other. Returns (exit code, what
    was said)."""
    words = ["unshare", "--user", "--mount", "--map-root-user", "bash", "-c"]
    try:
        done = subprocess.run([*words, registered(line)], text=True, timeout=DEADLINE_S,
                              stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                              env=os.environ | {"QEMU_LD_PREFIX": str(sysroot)})
    except subprocess.TimeoutExpired:
        return 124, f"no end within {DEADLINE_S} s"
    return done.returncode, done.stdout


def expected(said, *patterns):
    return [f"it did not say {pattern}" for pattern in patterns
            if not re.search(pattern, said, re.MULTILINE)]


def jobs(tree, sysroot):
    """Yields (what, line, patterns) of jobs whose workers are programs of arm64."""
    ddprun, dash, echo = (shlex.quote(str(path)) for path in (
        tree / "bin/ddprun", sysroot / "bin/dash", sysroot / "bin/echo"))
    say = "'echo rank $RANK of $WORLD_SIZE'"
    yield ("two workers of echo",
           f"{ddprun} --nproc-per-node=2 {echo} hello from arm64",
           (r"(?s)hello from arm64.*hello from arm64",))
    node = f"{ddprun} --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=x"
    yield ("two nodes by c10d",
           f"{node} --rdzv-endpoint=127.0.0.1:29417 {dash} -c {say} & "
           f"{node} --rdzv-endpoint=127.0.0.1:29417 {dash} -c {say}; second=$?; "
           "wait $! && exit $second", (r"rank 0 of 2$", r"rank 1 of 2$"))
    yield ("a killed worker is started again",
           f"{ddprun} --nproc-per-node=2 --max-restarts=1 {dash} -c '{KILLED}'",
           (r"attempt 1 rank 0 of 2$", r"attempt 1 rank 1 of 2$"))


def programs(tree):
    """Yields (what, reasons) of each program: its file's kind and its version."""
    for name in PROGRAMS:
        kind = run("file", "--brief", tree / "bin" / name).strip()
        yield f"{name}: {kind[:70]}", expected(kind, "ARM aarch64", "statically linked")


def unit_tests(tree, sysroot):
    """Yields (what, reasons) of each program of tests."""
    for name in TESTS:
        code, said = shell(shlex.quote(f"{tree}/bin/{name}"), sysroot)
        passed = re.findall(r"PASSED  \] (\d+) test", said) or ["0"]
        failed = re.findall(r"^\[  FAILED  \] (\S+),? .*ms\)$", said, re.M)
        ended = [] if code == 0 or failed else [f"exit code {code}", *said.splitlines()[-3:]]
        yield f"{name}: {passed[-1]} tests", [*failed, *ended]


def try_all(tree, sysroot):
    """Tries everything, with one line each. Returns the exit code."""
    results = list(programs(tree))
    for what, line, patterns in jobs(tree, sysroot):
        code, said = shell(line, sysroot)
        reasons = expected(said, *patterns) + ([f"exit code {code}"] if code else [])
        results.append((what, [*reasons, *said.splitlines()[-5:]] if reasons else []))
    results += unit_tests(tree, sysroot)
    for what, reasons in results:
        print(f"{'FAILED' if reasons else 'ok':8} {what}", *reasons, sep="\n         ")
    failed = sum(bool(reasons) for _, reasons in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0
