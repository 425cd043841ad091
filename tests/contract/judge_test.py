#!/usr/bin/env python3
"""The comparison itself: that it finds what differs, and what only looks different."""

import json
import pathlib
import sys
import unittest

from cases import ALWAYS, CASES, case
from judge import judge
from observe import Normaliser, error_record, read_report

REPORT = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : vm
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 123)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 123
============================================================
"""


class Judge(unittest.TestCase):
    def judge(self, torchruns, ddpruns, **expected):
        return judge(case("x", "a", **expected), (torchruns, ddpruns), {"always *": "why"}, set())

    def test_equal_facts_are_equal(self):
        self.assertEqual(self.judge({"exit": 0}, {"exit": 0}), (set(), []))

    def test_every_difference_is_a_failure(self):
        for theirs, ours in (({"exit": 0}, {"exit": 1}), ({"exit": 0}, {}), ({}, {"exit": 0})):
            self.assertEqual(len(self.judge(theirs, ours)[1]), 1, (theirs, ours))

    def test_an_explained_difference_is_none(self):
        explained, failures = self.judge(
            {"env A": 1, "exit": 0}, {"env A": 2, "exit": 0}, differs={"env *": "why"}
        )
        self.assertEqual((explained, failures), ({"env A"}, []))

    def test_an_explanation_without_a_difference_is_a_failure(self):
        self.assertEqual(len(self.judge({"exit": 0}, {"exit": 0}, differs={"exit": "why"})[1]), 1)

    def test_what_ddprun_should_do_is_held(self):
        failures = self.judge(
            {"exit": 1}, {"exit": 3}, differs={"exit": "why"}, ours={"exit": 0}
        )[1]
        self.assertEqual(len(failures), 1)

    def test_differences_of_every_line_are_counted_apart(self):
        met = set()
        self.assertEqual(
            judge(case("x"), ({}, {"always a": 1}), {"always *": "why"}, met), (set(), [])
        )
        self.assertEqual(met, {"always *"})


class Words(unittest.TestCase):
    def test_what_changes_from_run_to_run_is_normalised(self):
        normaliser = Normaliser("/f", {"master": 1234})
        self.assertEqual(normaliser.variable("MASTER_PORT", "1234"), "<port master>")
        self.assertEqual(normaliser.variable("MASTER_PORT", "29500"), "<any port>")
        self.assertEqual(normaliser.variable("MASTER_ADDR", "localhost"), "<this host>")
        self.assertEqual(normaliser.variable("MASTER_ADDR", "10.0.0.9"), "10.0.0.9")
        for random in "none_abcdefgh", "none_2_abcde_", "none_AbC123":
            self.assertEqual(
                normaliser.text(f"/f/logs/{random}/attempt_0/1/error.json"),
                "<folder>/logs/none_<random>/attempt_0/1/error.json",
            )
        self.assertEqual(normaliser.text("an_identifier"), "an_identifier")

    def test_the_reports_facts(self):
        facts = read_report(REPORT, Normaliser("/f", {}))
        self.assertEqual(
            facts,
            {
                "report": "shown",
                "report entry": "train.py",
                "report rank": "1 (local_rank: 1)",
                "report exitcode": "-9",
                "report traceback": "Signal 9 (SIGKILL)",
            },
        )
        self.assertEqual(
            read_report("Traceback (most recent call last):", Normaliser("/f", {})),
            {"report": "none"},
        )

    def test_error_files_without_their_times(self):
        record = {
            "message": {
                "message": "m",
                "errorCode": 5,
                "extraInfo": {"py_callstack": "t", "timestamp": "1"},
            }
        }
        self.assertEqual(
            error_record(json.dumps(record)), {"message": "m", "errorCode": 5, "trace": True}
        )
        self.assertEqual(error_record('{"message": "m", "timestamp": 1}'), {"message": "m"})
        self.assertEqual(error_record("{"), "{")


class Table(unittest.TestCase):
    def test_names_are_unique_and_every_line_is_recorded(self):
        names = [line.name for line in CASES]
        self.assertGreaterEqual(len(names), 60)
        self.assertEqual(len(names), len(set(names)))
        recorded = json.loads((pathlib.Path(__file__).parent / "recorded.json").read_text())[
            "lines"
        ]
        self.assertEqual(sorted(names), sorted(recorded))

    def test_every_difference_has_its_reason(self):
        for line in CASES:
            for reason in [*line.differs.values(), *ALWAYS.values()]:
                self.assertGreater(len(reason), 4, line.name)


if __name__ == "__main__":
    sys.exit(not unittest.main(verbosity=2, exit=False).result.wasSuccessful())
