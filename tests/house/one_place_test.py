#!/usr/bin/env python3
"""Facts that stand in one place. Two copies agree on the day they are written, and not for long."""

import re
import unittest

from sources import ROOMS, ROOT, name, room_files, run_tests

VARIABLES = ROOT / "proto" / "scheduler_variables.h"
GIVERS = ("AZUREML", "BEAKER", "CLOUD_ML", "CLUSTER", "COBALT", "DSTACK", "FLUX", "JOB_COMPLETION", "JSM", "KUBERNETES", "LEPTON", "LSB",
          "MPI", "NUM", "OMPI", "PALS", "PBS", "PE", "PMI", "PMIX", "PRIMARY", "SKYPILOT", "SLURM", "SM", "TRAINING_JOB", "VC", "_CONDOR")
# The whole literal is a name that a scheduler or a launcher of MPI gave a variable.
SCHEDULER_VARIABLE = re.compile(rf'"((?:{"|".join(GIVERS)})_[A-Z0-9_]+)"')
ONCE = ("bool is_loopback", "bool names_this_host", "::getrandom")  # and a bracket behind them


def production():
    return [path for room in ROOMS for path in room_files(room)]


def places(pattern):
    """Every match of the pattern in the rooms' files: what it found, and the file."""
    return [(found, name(path)) for path in production() for found in pattern.findall(path.read_text())]


class SchedulerVariables(unittest.TestCase):
    def test_the_names_stand_in_their_table_alone(self):
        """The launcher and the engine read them there."""
        self.assertEqual([place for place in places(SCHEDULER_VARIABLE) if place[1] != name(VARIABLES)], [])

    def test_each_name_stands_once_in_the_table(self):
        names = re.findall(r'"([^"]+)"', re.sub(r"//.*", "", VARIABLES.read_text()))
        self.assertGreater(len(names), 40)
        self.assertEqual(sorted(names), sorted(set(names)))
        strange = [one for one in names if not SCHEDULER_VARIABLE.fullmatch(f'"{one}"')]
        self.assertEqual(strange, [], "the scan of the other files does not see these")

    def test_the_scan_sees_a_second_place(self):
        for line in ('env("SLURM_JOB_ID")', 'constexpr auto kSize = "OMPI_COMM_WORLD_SIZE";', '{"JOB_COMPLETION_INDEX"}'):
            self.assertTrue(SCHEDULER_VARIABLE.search(line), line)
        for line in ('"SLURM_TIME_FORMAT=%s"', "// SLURM_JOB_ID", '"its part of SLURM_CPUS_PER_TASK={}"', '"RANK"'):
            self.assertFalse(SCHEDULER_VARIABLE.search(line), line)


class Functions(unittest.TestCase):
    def test_these_have_one_definition(self):
        for text in ONCE:
            found = places(re.compile(re.escape(text + "(")))
            self.assertEqual(len(found), 1, (text, found))


if __name__ == "__main__":
    run_tests()
