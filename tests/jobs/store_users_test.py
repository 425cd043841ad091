"""The users of this host that may use a job's store, and how much memory it may take."""

import os
import signal
import subprocess
import sys
import unittest

from machine import free_port
from report_test import LIMIT_MIB, make_cgroup
from support import JobTest, main, with_variables

OTHER = 65534
# A client of TCPStore: VALIDATE with its magic number, PING with a number, which is the answer.
# Prints what came.
CLIENT = """
import encodings.idna, os, socket, struct, sys  # before it may read no module any more
if len(sys.argv) > 3:
    os.setuid(int(sys.argv[3]))
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as peer:
    try:
        peer.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BI", 13, 4711))
        got = peer.recv(4)
    except ConnectionError:
        got = b""
print("served" if got == struct.pack("<I", 4711) else "refused", flush=True)
"""
# A worker that says where the store is, and waits.
WAITS = "#!/bin/sh\ntrap 'exit 0' TERM\necho $MASTER_ADDR $MASTER_PORT > {fifo}\nwhile :; do sleep 1000 & wait; done\n"


@unittest.skipUnless(os.getuid() == 0, "only root may become another user")
class StoreUsers(JobTest):
    def ask(self, where, user):
        command = [sys.executable, "-c", CLIENT, *where, str(user)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    def serving(self, *args, env=None, **options):
        """A job, and the address and port of its store."""
        job = self.start(*args, self.worker(WAITS), env=with_variables(OMP_NUM_THREADS="1", **(env or {})), **options)
        return job, self.heard(1)[0].split()

    def end(self, job):
        job.process.send_signal(signal.SIGTERM)
        return job.finish()[2]

    def test_another_user_of_the_host_is_refused(self):
        job, where = self.serving()
        self.assertEqual([self.ask(where, user) for user in (0, OTHER, OTHER, 0)], ["served", "refused", "refused", "served"])
        err = self.end(job)
        self.assertEqual(err.count(f"store: connections of user {OTHER} of this host are refused"), 1, err)

    def test_all_users_where_that_is_wanted(self):
        job, where = self.serving(env={"DDPRUN_STORE_USERS": "any"})
        self.assertEqual(self.ask(where, OTHER), "served")
        self.end(job)

    def test_a_fixed_port_of_several_nodes_asks_too(self):
        port = free_port()
        job = self.start("--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={port}", self.worker(WAITS),
                         env=with_variables(OMP_NUM_THREADS="1"))
        guest = self.start("--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={port}", self.worker(WAITS),
                           env=with_variables(OMP_NUM_THREADS="1"))
        self.heard(2)
        where = ("127.0.0.1", str(port))
        self.assertEqual([self.ask(where, user) for user in (0, OTHER)], ["served", "refused"])
        self.end(job)
        guest.finish()

    def test_a_worker_that_has_become_another_user_is_served(self):
        client = self.folder / "client.py"
        client.write_text(CLIENT)
        self.folder.chmod(0o755)
        script = self.script(f"#!/bin/sh\nexec {sys.executable} {client} $MASTER_ADDR $MASTER_PORT {OTHER}\n")
        code, out, err = self.run_job("--nproc-per-node=2", script)
        self.assertEqual((code, out.split()), (0, ["served"] * 2), err)

    def test_a_job_of_an_ordinary_user_serves_that_user_and_root(self):
        self.folder.chmod(0o777)
        self.ready.chmod(0o666)
        job, where = self.serving(user=OTHER)
        self.assertEqual([self.ask(where, user) for user in (OTHER, 0, OTHER - 1)], ["served", "served", "refused"])
        self.end(job)


# Fills the store until its connection is closed.
FILLS = """
import os, socket, struct
def connect():
    peer = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    peer.sendall(struct.pack("<BI", 0, 0x3C85F7CE))
    return peer
def set(peer, key, value):
    peer.sendall(struct.pack("<BQ", 1, len(key)) + key + struct.pack("<Q", len(value)) + value + struct.pack("<BI", 13, 7))
    return peer.recv(4) == struct.pack("<I", 7)
peer, taken = connect(), 0
try:
    while taken < 1000 and set(peer, b"key %d" % taken, b"x" * (1 << 20)):
        taken += 1
except ConnectionError:
    pass
print("taken", taken)
"""


class StoreMemory(JobTest):
    def test_a_value_is_refused_before_the_kernel_ends_the_launcher(self):
        cgroup = make_cgroup(LIMIT_MIB << 20) if os.getuid() == 0 else None
        if cgroup is None:
            self.skipTest("no cgroup with a limit can be made")
        self.addCleanup(cgroup.rmdir)
        script = self.script(f"#!/bin/sh\nexec {sys.executable} {self.script(FILLS, 'fills.py')}\n")
        code, out, err = self.run_job(script, prefix=("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh"))
        self.assertEqual(code, 0, err)
        self.assertGreater(int(out.split()[1]), 16, out)
        self.assertLess(int(out.split()[1]), LIMIT_MIB, out)
        self.assertEqual(err.count("store: a request was refused, and its connection closed"), 1, err)


if __name__ == "__main__":
    main()
