#!/usr/bin/env python3
"""The closing line of run-tests, on results as ctest 3.25 writes them."""

import contextlib
import importlib.util
import io
import pathlib
import tempfile
import unittest

from sources import ROOT, run_tests

SPEC = importlib.util.spec_from_file_location("summarize_tests", ROOT / "scripts" / "summarize_tests.py")
summarize_tests = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(summarize_tests)

PASSED = '<testcase name="a" classname="a" time="0" status="run"><system-out/></testcase>'
FAILED = '<testcase name="b" classname="b" time="0" status="fail"><failure message="Timeout"/><system-out/></testcase>'
NOT_FOUND = ('<testcase name="c" classname="c" time="0" status="notrun"><skipped message="Unable to find executable"/>'
             '<system-out/></testcase>')
SKIPPED_GTEST = ('<testcase name="d" classname="d" time="0" status="notrun">'
                 '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>[ RUN      ] D.d\n'
                 '/x/d_test.cc:12: Skipped\nno GPU here\n\n[  SKIPPED ] D.d (0 ms)\n</system-out></testcase>')
SKIPPED_SCRIPT = ('<testcase name="e" classname="e" time="0" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
                  '<system-out>looking\nno root here\n</system-out></testcase>')
DISABLED = '<testcase name="f" classname="f" time="0" status="disabled"><system-out/></testcase>'


SUITE = ('<testcase name="unit.store_test.Table." status="{status}">{failure}<system-out>[==========] Running 4 tests from 1 test suite.\n'
         '[----------] 4 tests from Table\n[ RUN      ] Table.Grows\n[       OK ] Table.Grows (1 ms)\n[ RUN      ] Table.NeedsRoot\n'
         '/x/table_test.cc:12: Skipped\nno root here\n\n[  SKIPPED ] Table.NeedsRoot (0 ms)\n[ RUN      ] Table.Shrinks\n{rest}</system-out></testcase>')
ENDS = "[       OK ] Table.Shrinks (2 ms)\n[----------] 4 tests from Table (3 ms total)\n[==========] 3 tests from 1 test suite ran. (3 ms total)\n"
FAILS = "/x/table_test.cc:20: Failure\nExpected: 1\n[  FAILED  ] Table.Shrinks, where GetParam() = 3 (2 ms)\n" + ENDS.replace("Shrinks", "Clears").replace("[       OK", "[ RUN      ] Table.Clears\n[       OK").replace("3 tests from 1", "4 tests from 1")

ENGINES = '<testcase name="process.worker_shm_test.Ranks/ShmRanks.SumInRingOrder/2" status="run"><system-out/></testcase>'
NOTHING_OF_THE_ENGINE = "of the engine: 0 passed, 0 failed, 0 skipped"


class Summary(unittest.TestCase):
    def summarize(self, *cases, extra=(), again=()):
        """(exit code, printed lines) for one run with these cases; `again`: those that ran once
        more."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.xml"
            path.write_text(f'<?xml version="1.0"?>\n<testsuite name="x">{"".join(cases)}</testsuite>\n')
            if again:
                path.with_name("again.xml").write_text(f'<testsuite name="x">{"".join(again)}</testsuite>')
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                code = summarize_tests.main([f"release={path}", *extra])
        return code, printed.getvalue().splitlines()

    def test_all_passed(self):
        self.assertEqual(self.summarize(PASSED, PASSED), (0, [f"release: 2 passed, 0 failed, 0 skipped; {NOTHING_OF_THE_ENGINE}",
                                                              "2 passed, 0 failed, 0 skipped"]))

    def test_each_run_has_its_counts_and_the_engines(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tsan.xml"
            failed = ENGINES.replace('status="run"><system-out/>', 'status="fail"><failure message="race"/><system-out/>')
            skipped = SKIPPED_GTEST.replace('name="d"', 'name="unit.worker.samples"')
            path.write_text(f'<testsuite name="x">{PASSED}{ENGINES}{failed}{skipped}</testsuite>')
            code, lines = self.summarize(PASSED, ENGINES, extra=[f"tsan={path}"])
        self.assertEqual(code, 1)
        self.assertEqual(lines[-4:], ["release: 2 passed, 0 failed, 0 skipped; of the engine: 1 passed, 0 failed, 0 skipped",
                                      "tsan: 2 passed, 1 failed, 1 skipped; of the engine: 1 passed, 1 failed, 1 skipped",
                                      "failed: tsan: process.worker_shm_test.Ranks/ShmRanks.SumInRingOrder/2",
                                      "4 passed, 1 failed, 1 skipped"])

    def test_the_line_before_the_last_says_when_each_step_began(self):
        with tempfile.TemporaryDirectory() as folder:
            steps, results = pathlib.Path(folder) / "steps", pathlib.Path(folder) / "results.xml"
            steps.write_text("[   0 s] looking for what is missing\n[1240 s] release: built\n")
            results.write_text(f'<testsuite name="x">{PASSED}</testsuite>')
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                summarize_tests.main(["--steps", str(steps), f"release={results}"])
        self.assertEqual(printed.getvalue().splitlines()[-2:],
                         ["seconds: 0 looking for what is missing, 1240 release: built", "1 passed, 0 failed, 0 skipped"])

    def test_a_suite_counts_as_its_tests(self):
        whole = SUITE.format(status="run", failure="", rest=ENDS)
        self.assertEqual(self.summarize(whole), (0, ["skipped: release: unit.store_test.Table.NeedsRoot: no root here",
                                                     f"release: 2 passed, 0 failed, 1 skipped; {NOTHING_OF_THE_ENGINE}", "2 passed, 0 failed, 1 skipped"]))

    def test_a_failed_test_of_a_suite_is_named_with_what_it_printed(self):
        failed = SUITE.format(status="fail", failure='<failure message=""/>', rest=FAILS)
        code, lines = self.summarize(failed)
        self.assertEqual((code, lines[1], lines[-1]), (1, "failed: release: unit.store_test.Table.Shrinks: Failed", "2 passed, 1 failed, 1 skipped"))
        self.assertIn("    Expected: 1", lines)
        self.assertNotIn("    no root here", lines)
        unsteady = self.summarize(failed, again=[SUITE.format(status="run", failure="", rest=ENDS)])
        self.assertEqual(unsteady[0], 0)
        self.assertIn("unsteady: release: unit.store_test.Table.Shrinks: it failed at first, and passed when it ran alone", unsteady[1])

    def test_a_crash_beside_a_failed_test_stays_failed(self):
        crashes = FAILS.partition("[       OK ] Table.Clears")[0]
        for rest, name in ((crashes, "Table.Clears"), (FAILS.replace("[==========] 4", "[==========] 3"), "Table.")):
            code, lines = self.summarize(SUITE.format(status="fail", failure='<failure message=""/>', rest=rest),
                                         again=[SUITE.format(status="run", failure="", rest=ENDS)])
            self.assertEqual(code, 1, lines)
            self.assertIn(f"failed: release: unit.store_test.{name}", lines)

    def test_no_test_of_a_suite_is_lost(self):
        lost = SUITE.format(status="run", failure="", rest=ENDS.replace("[==========] 3", "[==========] 4"))
        none = SUITE.format(status="run", failure="", rest="").partition("[----------]")[0].replace("Running 4 tests from 1 test suite", "0 tests from 0 test suites ran") + "</system-out></testcase>"
        foreign = SUITE.format(status="run", failure="", rest="[       OK ] Other.Test (1 ms)\n" + ENDS)
        for case, code in ((lost, 1), (none, 1), (foreign, 0)):
            self.assertEqual(self.summarize(case)[0], code, case)

    def test_a_suite_that_ends_early_fails_by_the_test_that_ran(self):
        for rest, name in (("terminate called\n", "Table.Shrinks"), (ENDS + "LeakSanitizer\n", "Table.")):
            code, lines = self.summarize(SUITE.format(status="fail", failure='<failure message="Timeout"/>', rest=rest))
            self.assertEqual(code, 1)
            self.assertIn(f"failed: release: unit.store_test.{name}", lines)

    def test_a_failure_is_named_and_fails(self):
        self.assertEqual(self.summarize(PASSED, FAILED), (1, ["failed: release: b: Timeout",
                                                              f"release: 1 passed, 1 failed, 0 skipped; {NOTHING_OF_THE_ENGINE}",
                                                              "failed: release: b", "1 passed, 1 failed, 0 skipped"]))

    def test_a_failure_shows_the_last_that_it_printed(self):
        printed = "\n".join(["first", *(f"line {number}" for number in range(40))])
        case = f'<testcase name="b" status="fail"><failure message=""/><system-out>{printed}\n</system-out></testcase>'
        lines = self.summarize(PASSED, case)[1]
        self.assertEqual(lines[:2], ["failed: release: b: ", "    line 0"])
        self.assertEqual(lines[-4:], ["    line 39", f"release: 1 passed, 1 failed, 0 skipped; {NOTHING_OF_THE_ENGINE}",
                                      "failed: release: b", "1 passed, 1 failed, 0 skipped"])

    def test_a_sanitizers_report_shows_how_it_begins(self):
        printed = "\n".join(["before", "WARNING: ThreadSanitizer: data race", *(f"line {number}" for number in range(60))])
        case = f'<testcase name="b" status="fail"><failure message=""/><system-out>{printed}\n</system-out></testcase>'
        lines = self.summarize(PASSED, case)[1]
        self.assertEqual(lines[1:3], ["    WARNING: ThreadSanitizer: data race", "    line 0"])
        self.assertEqual(lines[25:28], ["    line 23", "    […]", "    line 35"])
        self.assertEqual(lines[51:53], ["    line 59", f"release: 1 passed, 1 failed, 0 skipped; {NOTHING_OF_THE_ENGINE}"])

    def test_what_passes_alone_is_unsteady(self):
        late = FAILED.replace("<system-out/>", "<system-out>[  FAILED  ] B.b\n</system-out>")
        passed = FAILED.replace('status="fail"><failure message="Timeout"/>', 'status="run">')
        self.assertEqual(self.summarize(PASSED, late, again=[passed]),
                         (0, ["unsteady: release: b: Timeout", "    [  FAILED  ] B.b",
                              f"release: 2 passed, 0 failed, 0 skipped; {NOTHING_OF_THE_ENGINE}",
                              "unsteady: release: b: it failed at first, and passed when it ran alone",
                              "2 passed, 0 failed, 0 skipped"]))
        self.assertEqual(self.summarize(PASSED, late, again=[late])[0], 1)

    def test_a_crash_and_a_sanitizers_report_stay_failed(self):
        passed = FAILED.replace('status="fail"><failure message="Timeout"/>', 'status="run">')
        for printed in ("[ RUN      ] B.b", "WARNING: ThreadSanitizer: data race\nFAILED", "ERROR: LeakSanitizer: detected\nFAILED",
                        "a.cc:3:1: runtime error: signed integer overflow\nFAILED"):
            first = FAILED.replace("<system-out/>", f"<system-out>{printed}</system-out>")
            code, lines = self.summarize(PASSED, first, again=[passed])
            self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"), printed)

    def test_skips_are_named_with_their_reasons(self):
        self.assertEqual(self.summarize(PASSED, SKIPPED_GTEST, SKIPPED_SCRIPT, DISABLED),
                         (0, ["skipped: release: d: no GPU here", "skipped: release: e: no root here",
                              "skipped: release: f: disabled", f"release: 1 passed, 0 failed, 3 skipped; {NOTHING_OF_THE_ENGINE}",
                              "1 passed, 0 failed, 3 skipped"]))

    def test_a_test_whose_program_is_missing_has_failed(self):
        code, lines = self.summarize(PASSED, NOT_FOUND)
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_nothing_passed_is_no_success(self):
        self.assertEqual(self.summarize(SKIPPED_GTEST)[0], 1)
        code, lines = self.summarize()
        self.assertEqual((code, lines[-1]), (1, "0 passed, 0 failed, 0 skipped"))

    def test_a_run_without_results_has_failed(self):
        code, lines = self.summarize(PASSED, extra=["asan=/none/results.xml"])
        self.assertEqual(code, 1)
        self.assertTrue(lines[0].startswith("failed: asan: no test results"), lines)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")


if __name__ == "__main__":
    run_tests()
