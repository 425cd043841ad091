#!/usr/bin/env python3
"""A worker that says what it was given, then does what PROBE_PLAN tells its rank. Only the standard
library.

PROBE_OUT    folder for its notes: one <node>.<attempt>.<rank>.json a start. Each signal heard is a
             line in heard.<rank>
PROBE_PLAN   JSON: "RANK" or "RANK@ATTEMPT" -> a list of steps; none: exit 0
  "peers"          wait until all workers of this attempt have noted their start
  "exit N"         exit with N           "kill N"     die of signal N
  "wait"           until SIGTERM or any other signal that ends a job, then exit 0
  "hold"           until a signal kills it
  "record"         write the error file as @record does for a ValueError
  "message TEXT"   write the error file's short form
  "garbage"        write what is no JSON into the error file
"""

import json
import os
import signal
import sys
import time

OUT = os.environ.get("PROBE_OUT", ".")
RANK = os.environ.get("RANK", "0")
ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
NODE = os.environ.get("GROUP_RANK", "0")
LOOK_EVERY_S = 0.005  # for what the peers note


def masks():
    """Signals ignored or blocked at the start, but PIPE and XFSZ, which Python itself ignores."""
    found = {}
    with open("/proc/self/status") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in ("SigIgn", "SigBlk"):
                bits = int(value, 16)
                own = {signal.SIGPIPE, signal.SIGXFSZ} if name == "SigIgn" else set()
                found[name] = [n for n in range(1, 32) if bits >> (n - 1) & 1 and n not in own]
    return found


def note():
    """Written under another name first: whoever sees the file finds it whole."""
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read().decode().split("\0")[:-1]
    fds = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            os.readlink(f"/proc/self/fd/{fd}")
            fds.append(int(fd))
        except OSError:
            pass  # the folder itself, which this loop had open
    facts = {
        "argv": sys.argv,
        "command": command,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "fds": sorted(fds),
        "leads_session": os.getsid(0) == os.getpid(),
        "leads_group": os.getpgid(0) == os.getpid(),
        **masks(),
    }
    path = os.path.join(OUT, f"{NODE}.{ATTEMPT}.{RANK}.json")
    with open(path + ".new", "w") as file:
        json.dump(facts, file)
    os.rename(path + ".new", path)


def wait_for_peers():
    wanted = int(os.environ["WORLD_SIZE"])
    while (
        sum(
            1
            for name in os.listdir(OUT)
            if name.endswith(".json") and name.split(".")[1] == ATTEMPT
        )
        < wanted
    ):
        time.sleep(LOOK_EVERY_S)  # a file that appears gives no notice


def heard(number, _frame):
    with open(os.path.join(OUT, f"heard.{RANK}"), "a") as file:
        file.write(signal.Signals(number).name + "\n")
    sys.exit(0)


def wait_for_signals():
    """Handlers run. pause() would not do: a signal that comes just before it would wait for the
    next one."""
    heard_at, told_at = os.pipe()
    os.set_blocking(told_at, False)
    signal.set_wakeup_fd(told_at)
    while True:
        os.read(heard_at, 1)


def write_error_file(content):
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write(content)


def step(word):
    verb, _, rest = word.partition(" ")
    if verb == "peers":
        wait_for_peers()
    elif verb == "exit":
        sys.stdout.flush()
        os._exit(int(rest))
    elif verb == "kill":
        sys.stdout.flush()
        os.kill(os.getpid(), int(rest))
    elif verb in ("wait", "hold"):
        wait_for_signals()
    elif verb == "record":
        trace = (
            'Traceback (most recent call last):\n  File "train.py", line 3, in main\n'
            'ValueError: bad\n'
        )
        write_error_file(
            json.dumps(
                {
                    "message": {
                        "message": "ValueError: bad",
                        "extraInfo": {"py_callstack": trace, "timestamp": str(int(time.time()))},
                    }
                }
            )
        )
    elif verb == "message":
        write_error_file(json.dumps({"message": rest, "timestamp": 1700000000}))
    elif verb == "garbage":
        write_error_file("{not json")
    else:
        raise ValueError(word)


def main():
    plan = json.loads(os.environ.get("PROBE_PLAN", "{}"))
    steps = plan.get(f"{RANK}@{ATTEMPT}", plan.get(RANK, []))
    if "wait" in steps:
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"):
            signal.signal(getattr(signal, name), heard)
    if os.environ.get("PROBE_SAYS"):
        # In one piece each: print() writes the newline apart, and another rank may come between.
        for fd, word in ((1, "out"), (2, "err"), (1, "apple")):
            os.write(fd, f"@@{word} {RANK}\n".encode())
    note()  # last: who waits for it may be killed by what its peers do then
    for word in steps:
        step(word)


main()
