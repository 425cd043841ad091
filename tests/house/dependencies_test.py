#!/usr/bin/env python3
"""Holds the direction of dependencies: who may include whom, and what the built programs load.

LibTorch carries a Protobuf of its own, of another release than gRPC's: the two must never meet in one process. The table is that of
docs/architecture.md. DDPRUN_BIN names the folder of the built programs (default build/bin).
"""

import os
import pathlib
import re
import subprocess
import unittest

from sources import ROOMS, ROOT, cpp_files, includes, name, room_files, run_tests

WORKER = {"worker/collective", "worker/kernels", "worker/shm", "worker/tcp", "worker/hierarchical", "worker/nccl", "worker/tensors", "worker/reducer", "worker/comm_hooks", "worker/startup",
          "worker/data"}
# Room or sub-room -> the rooms, or single headers, that it may include beside its own.
MAY_INCLUDE = {
    "proto": set(),
    "store": {"proto"},
    "rendezvous": {"proto"},
    "rendezvous/election": {"proto", "rendezvous"},
    "agent/core": {"proto", "rendezvous/rendezvous.h", "rendezvous/keep_alive.h"},
    "agent/processes": {"proto", "agent/core"},
    "agent/output": {"proto", "agent/core"},
    "agent/report": {"proto", "rendezvous/rendezvous.h", "agent/core", "agent/processes", "agent/output"},
    "agent/standby": {"proto", "agent/core", "agent/processes"},
    "agent/monitors": {"proto", "store", "agent/core", "agent/processes"},
    "agent/network": {"proto", "store", "rendezvous", "rendezvous/election", "agent/core"},
    "agent": {"proto", "store", "rendezvous", "agent/core", "agent/processes", "agent/output", "agent/report",
              "agent/monitors", "agent/network", "agent/standby"},
    "launcher": {"proto", "agent", "agent/core", "agent/processes", "agent/report"},
    "worker/collective": {"proto"},
    "worker/kernels": {"proto", "worker/collective"},
    "worker/shm": {"proto", "worker/collective", "worker/kernels"},
    "worker/tcp": {"proto", "worker/collective", "worker/kernels"},
    "worker/hierarchical": {"proto", "worker/collective", "worker/kernels", "worker/shm", "worker/tcp"},
    "worker/nccl": {"proto", "worker/collective"},
    "worker/tensors": {"proto", "worker/collective"},
    "worker/reducer": {"proto", "worker/collective", "worker/tensors"},
    "worker/comm_hooks": {"worker/collective", "worker/tensors", "worker/reducer"},
    "worker/startup": {"proto", "store", "worker/collective", "worker/shm", "worker/tcp", "worker/hierarchical", "worker/nccl"},
    "worker/data": {"proto"},
    "examples": {"proto", "store", *WORKER},
    "bench": {"proto", "store", "rendezvous", "agent", *WORKER},
}
GRPC = re.compile(r"^(grpc|grpcpp|google/protobuf)/|\.pb\.h$")
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|nccl|cuda)[/_.a-z]*")
MAY_USE_GRPC = {"rendezvous", "rendezvous/election"}  # the edges of its network; nobody else sees a grpc::Status
MAY_USE_TORCH = {*WORKER, "examples", "bench"} - {"worker/collective", "worker/kernels", "worker/shm", "worker/tcp", "worker/hierarchical", "worker/data"}
BIN = pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build" / "bin"))


def room_of(include):
    """The room or sub-room that an include names; None for what is not ours."""
    return next((room for room in sorted(MAY_INCLUDE, key=len, reverse=True) if include.startswith(room + "/")), None)


def forbidden(room, include):
    """Why `room` must not include this, or None."""
    if GRPC.search(include) and room not in MAY_USE_GRPC:
        return "gRPC and Protobuf belong to rendezvous/ and its election/ alone"
    if TORCH.match(include) and room not in MAY_USE_TORCH:
        return "LibTorch, CUDA and NCCL belong to worker/ alone"
    other = room_of(include)
    if other not in (None, room) and other not in MAY_INCLUDE[room] and include not in MAY_INCLUDE[room]:
        return f"{room}/ may include {sorted(MAY_INCLUDE[room])}"
    return None


def files_of(room):
    return room_files(room) if room in ROOMS else cpp_files(room)


class Includes(unittest.TestCase):
    def test_every_room_keeps_to_the_table(self):
        wrong = []
        for room in MAY_INCLUDE:
            for path in files_of(room):
                for include in includes(path):
                    why = forbidden(room, include)
                    if why:
                        wrong.append(f"{name(path)} includes {include}: {why}")
        self.assertEqual(wrong, [])

    def test_the_scan_sees_files_in_every_room(self):
        for room in ROOMS:
            self.assertTrue(any(includes(path) for path in room_files(room)), room)

    def test_the_scan_finds_what_is_forbidden(self):
        for room, include in (("proto", "store/wire.h"), ("store", "rendezvous/host.h"), ("launcher", "worker/startup/bootstrap.h"),
                              ("agent", "worker/collective/collective.h"), ("worker/startup", "grpcpp/server.h"), ("launcher", "store/server.h"),
                              ("worker/startup", "proto/rendezvous.pb.h"), ("agent", "torch/torch.h"), ("agent", "ATen/Parallel.h"),
                              ("launcher", "nccl.h"), ("store", "cuda_runtime.h"), ("worker/startup", "rendezvous/host.h"),
                              ("agent/core", "agent/output/console.h"), ("agent/core", "rendezvous/host.h"),
                              ("agent/output", "agent/agent.h"), ("rendezvous", "rendezvous/election/election.h"), ("agent/network", "grpcpp/server.h"), ("launcher", "agent/output/console.h")):
            self.assertIsNotNone(forbidden(room, include), (room, include))
        for room, include in (("store", "proto/result.h"), ("rendezvous", "grpcpp/server.h"), ("worker/startup", "nccl.h"),
                              ("agent", "string"), ("store", "store/wire.h"), ("proto", "boost/asio/post.hpp"),
                              ("agent/report", "agent/output/worker_files.h"), ("agent/core", "rendezvous/rendezvous.h")):
            self.assertIsNone(forbidden(room, include), (room, include))


def built(program):
    path = BIN / program
    if not path.exists():
        raise unittest.SkipTest(f"{path} is not built")
    return str(path)


class Programs(unittest.TestCase):
    def test_ddprun_needs_nothing(self):
        """It runs on every Linux, whatever libc is there."""
        done = subprocess.run(["ldd", built("ddprun")], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        self.assertEqual(done.stderr.strip(), "not a dynamic executable")

    def test_ddprun_is_small(self):
        self.assertLessEqual(os.path.getsize(built("ddprun")), 16 << 20)

    def test_programs_on_the_engine_load_no_grpc_or_protobuf(self):
        loaded = subprocess.run(["ldd", built("mnist")], check=True, capture_output=True, text=True).stdout
        self.assertIn("libtorch_cpu.so", loaded)
        self.assertEqual(re.findall(r"\S*lib(?:grpc|protobuf|gpr|address_sorting|upb)\S*", loaded), [])


if __name__ == "__main__":
    run_tests()
