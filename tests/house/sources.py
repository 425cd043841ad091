"""The project's source files, for tests of the house. Only the standard library."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Each is a folder with a CMakeLists.txt of its own; a sub-room lies in the folder of its room.
ROOMS = ("base/net/http", "base/net", "base", "proto", "store", "rendezvous/core", "rendezvous/host", "rendezvous/trust", "rendezvous/grpc", "rendezvous/election", "rendezvous/failover", "rendezvous/control/pages", "rendezvous/control", "daemon/manual", "daemon", "agent/core", "agent/processes", "agent/output", "agent/report", "agent/monitors",
         "agent/network", "agent/standby", "agent/standstill", "agent/replicas", "agent/stragglers", "agent/preemption", "agent/guardian", "agent/worker_group", "agent", "launcher/scheduler", "launcher/options", "launcher/job", "launcher/shims", "launcher/doctor", "launcher/report", "launcher/manual", "launcher", "worker/collective/core", "worker/collective/kernels", "worker/collective/shm", "worker/collective/tcp", "worker/collective/hierarchical", "worker/collective/nccl", "worker/training/tensors",
         "worker/training/data_parallel", "worker/training/tensors/averages", "worker/training/comm_hooks", "worker/training/amp", "worker/training/graphs", "worker/training/local_sgd", "worker/training/replicas", "worker/training/tensor_parallel", "worker/training/pipeline", "worker/training/join", "worker/training/norm", "worker/training/zero", "worker/training/sharded", "worker/startup/init_method", "worker/startup", "worker/data", "worker/checkpoint", "worker/include/ddprun", "examples/readers", "examples/readers/include/ddprun")
# The limits of comments and pages alike.
MOST_COLUMNS = 100
MOST_WORDS_A_SENTENCE = 20
# A sentence begins with its subject, so with none of these. A question may.
NO_SUBJECT = re.compile(r"(?:Where|Whoever|Who|Whom|Whose|Which|What|Of)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def is_inverted(sentence):
    return NO_SUBJECT.match(sentence) is not None and not sentence.endswith("?")


def cpp_files(*folders):
    """Every .h and .cc below the folders of the root that are named; sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".h", ".cc"))


def room_files(room):
    """The .h and .cc files of one room, without those of its sub-rooms; sorted."""
    return sorted(path for path in (ROOT / room).iterdir() if path.suffix in (".h", ".cc"))


def includes(path):
    """Returns the includes of a file, in its own words, without brackets or quotes."""
    return INCLUDE.findall(path.read_text())


def name(path):
    return str(path.relative_to(ROOT))


def run_tests():
    """unittest.main() for one test a process: exit code 77 and the reason as the last line where it
    was skipped."""
    result = unittest.main(verbosity=2, exit=False).result
    for _, reason in result.skipped:
        print(reason)
    skipped = result.testsRun > 0 and len(result.skipped) == result.testsRun
    sys.exit(77 if skipped else not result.wasSuccessful())
