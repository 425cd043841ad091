"""bench-allreduce between two hosts, which are network namespaces with a cable between them: what
docs/which.md says of their bytes. Only the standard library."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import support

sys.path.append(str(support.ROOT / "bench"))  # for what bench/allreduce imports

BUILD = pathlib.Path(os.environ.get("DDPRUN", support.ROOT / "build" / "bin" / "ddprun")).parents[1]
BYTES = 2 << 20  # of the sum


def bench():
    """bench/allreduce, which makes the hosts."""
    loader = importlib.machinery.SourceFileLoader("allreduce", str(support.ROOT / "bench" / "allreduce"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("allreduce", loader))
    loader.exec_module(module)
    return module


def can_make_namespaces():
    return shutil.which("ip") and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


class BytesBetweenHosts(unittest.TestCase):
    @unittest.skipUnless(can_make_namespaces(), "network namespaces need CAP_SYS_ADMIN and iproute2")
    def test_a_host_sends_the_sum_once_whatever_its_ranks_and_half_in_16_bits(self):
        with bench().network(2) as hosts:
            named = ",".join(f"{host}={address}" for host, address in hosts.items())
            for flags, ranks, of_the_sum in (((), 1, 1), ((), 2, 1), (("--wire", "bfloat16"), 1, 0.5)):
                done = support.run(BUILD / "bin" / "bench-allreduce", "--hosts", named, *flags, ranks, f"{BYTES}:3")
                self.assertEqual(done.returncode, 0, done.stderr)
                sent = json.loads(done.stdout)["sent_bytes"] / (of_the_sum * BYTES)
                self.assertTrue(1 <= sent < 1.02, f"{flags}, {ranks} ranks of a host: {sent} of {of_the_sum} x the sum")

    def test_hosts_without_an_address_are_refused(self):
        done = support.run(BUILD / "bin" / "bench-allreduce", "--hosts", "a", 1, "1024:1")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("usage: bench-allreduce [--hosts NAMESPACE=ADDRESS,", done.stderr)


if __name__ == "__main__":
    support.run_tests()
