"""Drives `ddpctl`, for tests. Only the standard library. DDPCTL names the program (default: beside
ddprun)."""

import json
import os
import pathlib
import subprocess

from machine import DEADLINE
from support import DDPRUN

DDPCTL = os.environ.get("DDPCTL", str(pathlib.Path(DDPRUN).with_name("ddpctl")))


def environment(endpoint, token=None):
    env = {name: value for name, value in os.environ.items() if not name.startswith("DDPRUN_")}
    env["DDPRUN_ENDPOINT"] = endpoint
    return env if token is None else env | {"DDPRUN_TOKEN": token}


def ctl(endpoint, *words, token=None, timeout=DEADLINE):
    """(exit code, stdout, stderr)"""
    done = subprocess.run([DDPCTL, *words], env=environment(endpoint, token), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def start_ctl(endpoint, *words, token=None):
    return subprocess.Popen([DDPCTL, *words], env=environment(endpoint, token), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def status(endpoint, job="job", token=None):
    """The job as `status --json` has it; None where nobody answers (yet)."""
    code, out, _ = ctl(endpoint, "status", job, "--json", token=token)
    return json.loads(out)["jobs"][0] if code == 0 else None
