#!/usr/bin/env python3
"""Holds the direction of dependencies: who may include whom, and what the built programs load.

LibTorch carries a Protobuf of its own, of another release than gRPC's: the two must never meet in
one process. The table is here; docs/architecture.md says what each room knows. DDPRUN_BIN names the
folder of the built programs (default build/bin).
"""

import os
import pathlib
import re
import subprocess
import unittest

from sources import ROOMS, ROOT, cpp_files, includes, name, room_files, run_tests

RENDEZVOUS = {"rendezvous/core", "rendezvous/host", "rendezvous/trust", "rendezvous/grpc", "rendezvous/election", "rendezvous/failover",
              "rendezvous/control", "rendezvous/control/pages"}
WORKER = {"worker/collective/core", "worker/collective/kernels", "worker/collective/shm", "worker/collective/tcp", "worker/collective/hierarchical",
          "worker/collective/nccl", "worker/training/tensors", "worker/training/tensors/averages", "worker/training/data_parallel", "worker/training/comm_hooks",
          "worker/training/amp", "worker/training/graphs", "worker/training/local_sgd", "worker/training/replicas", "worker/training/tensor_parallel", "worker/training/pipeline", "worker/training/join", "worker/training/norm", "worker/training/zero", "worker/training/sharded",
          "worker/startup/init_method", "worker/startup", "worker/data", "worker/checkpoint"}
FACE, READERS_FACE = "worker/include/ddprun", "examples/readers/include/ddprun"
ALLOWED_IN_FACE = re.compile(r"#include <(ddprun/[a-z_]+\.h|(torch|ATen|c10)/[\w/]+\.h|[a-z_]+)>$")
# Room or sub-room -> the rooms, or single headers, that it may include beside its own.
MAY_INCLUDE = {
    "base": set(),
    "base/net": set(),
    "base/net/http": {"base/net"},
    "proto": set(),
    "store": {"proto", "base/net"},
    "rendezvous/core": {"proto", "base/net"},
    "rendezvous/host": {"base/net", "rendezvous/core"},
    "rendezvous/trust": {"proto"},
    "rendezvous/grpc": {"proto", "base/net", "rendezvous/core", "rendezvous/host", "rendezvous/trust"},
    "rendezvous/election": {"proto", "base/net", "rendezvous/core", "rendezvous/grpc"},
    "rendezvous/failover": {"base/net", "rendezvous/core", "rendezvous/election"},
    "rendezvous/control": {"proto", "base/net", "rendezvous/core", "rendezvous/host", "rendezvous/grpc", "rendezvous/trust"},
    "rendezvous/control/pages": {"base/net/http", "rendezvous/core/timeline.h"},
    "agent/core": {"proto", "rendezvous/core/rendezvous.h", "rendezvous/core/keep_alive.h", "rendezvous/core/progress.h", "rendezvous/election/etcd_plan.h"},
    "agent/processes": {"proto", "agent/core"},
    "agent/output": {"proto", "agent/core"},
    "agent/report": {"proto", "base/net", "rendezvous/core/progress.h", "rendezvous/core/rendezvous.h", "rendezvous/core/strikes.h", "rendezvous/core/timeline.h", "agent/core", "agent/processes", "agent/output"},
    "agent/standby": {"proto", "agent/core", "agent/processes"},
    "agent/standstill": {"proto", "rendezvous/core/rank_stack.h", "rendezvous/core/rendezvous.h", "rendezvous/core/standstill.h", "agent/core", "agent/processes", "agent/standby"},
    "agent/replicas": {"proto", "rendezvous/core/rendezvous.h", "rendezvous/core/replicas.h", "agent/core"},
    "agent/stragglers": {"proto", "rendezvous/core/rendezvous.h", "agent/core"},
    "agent/preemption": {"proto", "rendezvous/core/rendezvous.h", "agent/core", "agent/standby"},
    "agent/monitors": {"proto", "base/net", "base/net/http", "rendezvous/control/pages", "rendezvous/core/timeline.h", "agent/core", "agent/network", "agent/output", "agent/processes", "agent/report"},
    "agent/network": {"proto", "base/net", "store", *RENDEZVOUS, "agent/core"},
    "agent/guardian": {"agent/core", "agent/processes", "agent/output"},
    "agent/worker_group": {"proto", "base/net", "store", "rendezvous/core/rendezvous.h", "agent/core", "agent/processes", "agent/output", "agent/standby"},
    "agent": {"proto", "base/net", "base/net/http", "store", *RENDEZVOUS, "agent/core", "agent/processes", "agent/output", "agent/report",
              "agent/monitors", "agent/network", "agent/standby", "agent/standstill", "agent/replicas", "agent/stragglers", "agent/preemption", "agent/guardian", "agent/worker_group"},
    "launcher/scheduler": {"proto"},
    "launcher/options": {"proto", "base/net", "agent/core/config.h", "launcher/scheduler"},
    "launcher/job": {"proto", "agent", "agent/core", "agent/processes", "launcher/options", "launcher/scheduler"},
    "launcher/shims": set(),
    "launcher/doctor": {"proto", "base/net", "store", "agent", "agent/guardian", "agent/processes", "launcher/job", "launcher/options", "launcher/scheduler",
                        "launcher/shims"},
    "launcher/report": {"agent/report/error_record.h", "agent/report/record_file.h", "launcher/job/command.h", "launcher/options"},
    "launcher/manual": {"launcher/options"},
    "launcher": {"proto", "base/net", "agent", "agent/guardian", "agent/processes", "agent/report", "launcher/doctor", "launcher/job", "launcher/options",
                 "launcher/report", "launcher/scheduler", "launcher/shims"},
    "daemon": {"proto", "base/net", "base/net/http", *RENDEZVOUS, "launcher/options/flag_values.h", "launcher/scheduler/shared_token.h"},
    "daemon/manual": {"daemon", "launcher/manual"},
    "worker/collective/core": {"proto"},
    "worker/collective/kernels": {"proto", "worker/collective/core"},
    "worker/collective/shm": {"proto", "worker/collective/core", "worker/collective/kernels"},
    "worker/collective/tcp": {"proto", "worker/collective/core", "worker/collective/kernels"},
    "worker/collective/hierarchical": {"proto", "worker/collective/core", "worker/collective/kernels", "worker/collective/shm", "worker/collective/tcp"},
    "worker/collective/nccl": {"proto", "worker/collective/core"},
    "worker/training/tensors": {"proto", "worker/collective/core"},
    "worker/training/join": {"proto", "worker/collective/core"},
    "worker/training/tensors/averages": {"worker/collective/core"},
    "worker/training/data_parallel": {"proto", "worker/collective/core", "worker/training/join", "worker/training/tensors", "worker/training/tensors/averages"},
    "worker/training/comm_hooks": {"worker/collective/core", "worker/training/tensors", "worker/training/data_parallel"},
    "worker/training/amp": {"worker/collective/core", "worker/training/data_parallel", "worker/training/tensors/stepped_tensors.h"},
    "worker/training/graphs": {"proto/worker_page.h", "worker/training/zero"},
    "worker/training/local_sgd": {"worker/collective/core", "worker/training/data_parallel", "worker/training/tensors"},
    "worker/training/replicas": set(),
    "worker/training/norm": {"worker/collective/core", "worker/training/tensors"},
    "worker/training/tensor_parallel": {"worker/training/tensors"},
    "worker/training/pipeline": {"worker/collective/core", "worker/training/data_parallel", "worker/training/tensors"},
    "worker/training/zero": {"worker/collective/core", "worker/training/join", "worker/training/tensors", "worker/training/data_parallel", "worker/collective/kernels/ring_order.h"},
    "worker/training/sharded": {"worker/collective/core", "worker/training/data_parallel", "worker/training/tensors"},
    "worker/startup/init_method": {"proto", "base/net", "store"},
    "worker/startup": {"proto", "base/net", "store", "worker/startup/init_method", "worker/collective/core", "worker/collective/shm", "worker/collective/tcp", "worker/collective/hierarchical", "worker/collective/nccl"},
    "worker/data": {"proto"},
    "examples/readers": {READERS_FACE},
    FACE: set(),
    READERS_FACE: set(),
    "worker/checkpoint": {"proto", "worker/collective/core", "worker/training/data_parallel", "worker/training/tensors/stepped_tensors.h"},
    "examples": {"proto", "store", "examples/readers", READERS_FACE, *WORKER},
    "bench": {"proto", "base/net", "store", *RENDEZVOUS, "agent", "examples/updates/sums.h", *WORKER},
}
for _room in (*WORKER, "examples", "bench"):
    MAY_INCLUDE[_room].add(FACE)
GRPC = re.compile(r"^(grpc|grpcpp|google/protobuf)/|\.pb\.h$")
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|nccl|cuda)[/_.a-z]*")
# The edges of its network; nobody else sees a grpc::Status.
MAY_USE_GRPC = {"rendezvous/grpc", "rendezvous/election", "rendezvous/trust", "rendezvous/control"}
MAY_USE_TORCH = {*WORKER, FACE, "examples", "bench"} - {
    "worker/collective/core", "worker/collective/kernels", "worker/collective/shm", "worker/collective/tcp", "worker/collective/hierarchical",
    "worker/startup/init_method", "worker/training/join"}
BIN = pathlib.Path(os.environ.get("DDPRUN_BIN", ROOT / "build" / "bin"))


def room_of(include):
    """The room or sub-room that an include names; None for what is not ours."""
    if include.startswith("ddprun/"):
        return READERS_FACE if include == "ddprun/readers.h" else FACE
    return next((room for room in sorted(MAY_INCLUDE, key=len, reverse=True) if include.startswith(room + "/")), None)


def forbidden(room, include):
    """Why `room` must not include this, or None."""
    if GRPC.search(include) and room not in MAY_USE_GRPC:
        return "gRPC and Protobuf belong to rendezvous/ and its sub-rooms alone"
    if TORCH.match(include) and room not in MAY_USE_TORCH:
        return "LibTorch, CUDA and NCCL belong to worker/ alone"
    other = room_of(include)
    if other not in (None, room, "base") and other not in MAY_INCLUDE[room] and include not in MAY_INCLUDE[room]:
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
        for room, include in (("base", "proto/worker_env.h"), ("proto", "store/wire.h"), ("store", "rendezvous/host/host.h"), ("launcher", "ddprun/process.h"),
                              ("agent", "ddprun/collective.h"), ("worker/startup", "grpcpp/server.h"), ("launcher", "store/server.h"),
                              ("worker/startup", "proto/rendezvous.pb.h"), ("agent", "torch/torch.h"), ("agent", "ATen/Parallel.h"),
                              ("launcher", "nccl.h"), ("store", "cuda_runtime.h"), ("worker/startup", "rendezvous/host/host.h"),
                              ("agent/core", "agent/output/console.h"), ("agent/core", "rendezvous/host/host.h"),
                              ("agent/output", "agent/agent.h"), ("rendezvous/core", "rendezvous/grpc/codec.h"), ("rendezvous/grpc", "rendezvous/election/election.h"), ("agent/network", "grpcpp/server.h"), ("launcher", "agent/output/console.h"),
                              ("rendezvous/grpc", "rendezvous/control/job_snapshot.h"), ("rendezvous/core", "grpcpp/server.h"), ("daemon", "agent/agent.h"),
                              ("daemon", "grpcpp/server.h"), ("rendezvous/control", "store/server.h")):
            self.assertIsNotNone(forbidden(room, include), (room, include))
        for room, include in (("store", "base/result.h"), ("rendezvous/grpc", "grpcpp/server.h"), ("worker/startup", "nccl.h"),
                              ("agent", "string"), ("store", "store/wire.h"), ("proto", "boost/asio/post.hpp"),
                              ("agent/report", "agent/output/worker_files.h"), ("agent/core", "rendezvous/core/rendezvous.h")):
            self.assertIsNone(forbidden(room, include), (room, include))


class PublicHeaders(unittest.TestCase):
    def test_include_each_other_libtorch_and_the_standard_library_alone(self):
        """A program on the engine needs no Boost, and sees none of the engine's insides."""
        headers = [path for face in (FACE, READERS_FACE) for path in room_files(face)]
        self.assertGreaterEqual(len(headers), 20)
        wrong = [f"{name(path)}: {line}" for path in headers for line in path.read_text().splitlines()
                 if line.startswith("#include") and not ALLOWED_IN_FACE.match(line)]
        self.assertEqual(wrong, [])

    def test_the_scan_finds_what_is_forbidden(self):
        for line in ('#include "worker/startup/hosts.h"', "#include <boost/system/result.hpp>", "#include <fmt/format.h>", '#include "ddprun/join.h"'):
            self.assertIsNone(ALLOWED_IN_FACE.match(line), line)
        for line in ("#include <ddprun/join.h>", "#include <ATen/core/Tensor.h>", "#include <torch/torch.h>", "#include <vector>"):
            self.assertIsNotNone(ALLOWED_IN_FACE.match(line), line)


def built(program):
    path = BIN / program
    if not path.exists():
        raise unittest.SkipTest(f"{path} is not built")
    return str(path)


class Programs(unittest.TestCase):
    def test_ddprun_and_its_companions_need_nothing(self):
        """They run on every Linux, whatever libc is there."""
        for program in "ddprun", "ddprund", "ddpctl":
            done = subprocess.run(["ldd", built(program)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
            self.assertEqual(done.stderr.strip(), "not a dynamic executable", program)

    def test_ddprund_has_one_malloc(self):
        """jemalloc's (daemon/memory.h); a text of glibc's shows that its malloc is there, too."""
        of_glibc = b"malloc(): corrupted"
        self.assertIn(of_glibc, pathlib.Path(built("ddprun")).read_bytes())
        ddprund = pathlib.Path(built("ddprund")).read_bytes()
        self.assertIn(b"<jemalloc>", ddprund)
        self.assertNotIn(of_glibc, ddprund)

    def test_ddprun_and_its_companions_are_small(self):
        for program in "ddprun", "ddprund", "ddpctl":
            self.assertLessEqual(os.path.getsize(built(program)), 16 << 20, program)

    def test_programs_on_the_engine_load_no_grpc_or_protobuf(self):
        loaded = subprocess.run(["ldd", built("mnist")], check=True, capture_output=True, text=True).stdout
        self.assertIn("libtorch_cpu.so", loaded)
        self.assertEqual(re.findall(r"\S*lib(?:grpc|protobuf|gpr|address_sorting|upb)\S*", loaded), [])


if __name__ == "__main__":
    run_tests()
