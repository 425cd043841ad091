"""Faults that only a real GPU can show, each in a process of its own (gpu_faults)."""

import subprocess

from kit.stage import absent, figure

LIMIT_S = 25  # of one fault; what lasts longer hangs
ABSENT = 77  # the exit code of a fault that this machine cannot have
CAPTURES = "captured_step", "captured_step_of_two"  # of another stage


def listed(text):
    """[(name, what it is)] of `gpu_faults --list`."""
    found = [line.split(" ", 2) for line in text.splitlines()]
    return [(name, what) for name, _, what in found]


def provoke(tools, name):
    """The exit code of a fault, and what it printed. The code is None for one that hangs."""
    command = [tools.program("gpu_faults"), name, f"--device={tools.device}"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S,
                              stdin=subprocess.DEVNULL, check=False, errors="replace")
    except subprocess.TimeoutExpired as hung:
        said = hung.stdout or ""  # bytes, whatever was asked for
        return None, said if isinstance(said, str) else said.decode(errors="replace")
    return done.returncode, done.stdout


def tell(name, code, said):
    """Tells how a fault ended."""
    last = (said.strip().splitlines() or ["it printed nothing"])[-1]
    if code == ABSENT:
        absent(name, last)
        return
    ends = {0: "good", 1: "bad", None: "hangs"}
    figure(name, ends.get(code, f"exit code {code}"), why="" if code == 0 else last,
           goal=["is", "good"])


def run(tools):
    for name, what in listed(tools.output([tools.program("gpu_faults"), "--list"])):
        if name in CAPTURES:
            continue
        code, said = provoke(tools, name)
        print(f"{name} ({what}): {code}\n{said}", flush=True)
        tell(name, code, said)
