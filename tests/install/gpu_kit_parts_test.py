#!/usr/bin/env python3
"""The parts of scripts/gpu_kit: results of figures, time, ends of stages, programs that fit. Only
the standard library."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import types
import unittest
from contextlib import redirect_stdout

from support import ROOT, FolderTest, run, run_tests, tool

sys.path.insert(0, str(ROOT / "scripts"))

from kit import elf, gtest, judge, manifest, pack, plan, processes, results, table  # noqa: E402
from kit import run as kit_run  # noqa: E402

GOOD_DYNAMIC = """
Dynamic section at offset 0x2ac50 contains 34 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libtorch_cpu.so]
 0x0000000000000001 (NEEDED)             Shared library: [libnccl.so.2]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000001d (RUNPATH)            Library runpath: [/x/torch/lib]
"""
GOOD_VERSIONS = """
  0x0050:   Name: GLIBC_2.34  Flags: none  Version: 7
  0x0060:   Name: GLIBCXX_3.4.30  Flags: none  Version: 5
  0x0070:   Name: CXXABI_1.3.13  Flags: none  Version: 5
"""


class Elf(unittest.TestCase):
    def test_a_program_of_torch_nccl_and_glibc_is_good(self):
        self.assertEqual(elf.faults(GOOD_DYNAMIC, GOOD_VERSIONS), [])

    def test_a_foreign_library_is_named(self):
        foreign = GOOD_DYNAMIC + " 0x01 (NEEDED)             Shared library: [libturbojpeg.so.0]\n"
        self.assertEqual(elf.faults(foreign, GOOD_VERSIONS),
                         ["needs libturbojpeg.so.0, which the machine may not have"])

    def test_rpath_is_refused_and_runpath_is_not(self):
        (fault,) = elf.faults(GOOD_DYNAMIC.replace("(RUNPATH)", "(RPATH)  "), GOOD_VERSIONS)
        self.assertIn("has RPATH /x/torch/lib", fault)

    def test_the_run_path_and_torchs_version_are_read(self):
        self.assertEqual(elf.run_path(GOOD_DYNAMIC.replace("/x/torch/lib", "/x/torch/lib:/y")),
                         ["/x/torch/lib", "/y"])
        self.assertEqual(elf.version_of("__all__ = []\n__version__ = '2.11.0+cu130'\n"), "2.11.0")
        self.assertIsNone(elf.version_of(""))

    def test_versions_are_compared_as_numbers(self):
        for good in "GLIBC_2.4", "GLIBC_2.36", "GLIBCXX_3.4.9", "GLIBC_2.2.5":
            self.assertEqual(elf.faults("", f"Name: {good}  Flags"), [], good)
        for bad in "GLIBC_2.37", "GLIBCXX_3.4.31", "CXXABI_1.3.14", "GLIBC_3":
            (fault,) = elf.faults("", f"Name: {bad}  Flags")
            self.assertIn(f"needs {bad};", fault)

    def test_it_reads_what_readelf_prints_of_a_program(self):
        said = run(tool("readelf"), "--dynamic", "--wide", os.path.realpath(sys.executable))
        self.assertIn("libc.so.6", elf.needed(said))
        said = run(tool("readelf"), "--version-info", "--wide", os.path.realpath(sys.executable))
        self.assertIn("GLIBC", {name for name, _ in elf.versions(said)})


class Judge(unittest.TestCase):
    def result(self, dry=False, **figure):
        return judge.judged({"what": "x", **figure}, dry)["result"]

    def test_a_ratio_is_ours_over_pytorchs(self):
        self.assertEqual(judge.ratio({"ours": 3.0, "pytorch": 2.0}), 1.5)
        self.assertEqual(self.result(ours=105, pytorch=100, goal=["ratio at most", 1.05]), "met")
        self.assertEqual(self.result(ours=106, pytorch=100, goal=["ratio at most", 1.05]),
                         "missed")

    def test_each_kind_of_goal_is_met_and_missed(self):
        for kind, limit, good, bad in (
                ("at most", 2, {"ours": 2}, {"ours": 2.1}),
                ("at least", 2, {"ours": 2}, {"ours": 1.9}),
                ("within", 0.02, {"ours": 1.01, "pytorch": 1.0}, {"ours": 0.97, "pytorch": 1.0}),
                ("equal", None, {"ours": "a", "pytorch": "a"}, {"ours": "a", "pytorch": "b"}),
                ("is", 0, {"ours": 0}, {"ours": 1}), ("is not", "none", {"ours": "a"}, {"ours": "none"})):
            self.assertEqual(self.result(**good, goal=[kind, limit]), "met", kind)
            self.assertEqual(self.result(**bad, goal=[kind, limit]), "missed", kind)

    def test_a_figure_that_is_no_number_meets_no_goal(self):
        for ours in None, float("nan"), "fast", True:
            for kind in "ratio at most", "at most", "at least", "within":
                self.assertEqual(self.result(ours=ours, pytorch=1.0, goal=[kind, 0]), "missed",
                                 (ours, kind))
        self.assertEqual(self.result(ours=1.0, pytorch=0.0, goal=["ratio at most", 9]), "missed")
        self.assertEqual(self.result(ours=None, pytorch=None, goal=["equal", None]), "missed")

    def test_a_dry_run_judges_no_figure_of_a_gpu(self):
        slow = {"ours": 9, "pytorch": 1, "goal": ["ratio at most", 1]}
        self.assertEqual(self.result(dry=True, **slow, gpu_only=True), "not judged")
        self.assertEqual(self.result(dry=False, **slow, gpu_only=True), "missed")
        self.assertEqual(self.result(dry=True, **slow), "missed")
        self.assertEqual(self.result(ours=9), "not judged")
        self.assertEqual(self.result(absent="it needs a GPU"), "not run")

    def test_a_stage_passes_only_if_all_of_it_ran_and_nothing_is_missed(self):
        for was_cut, code, found, outcome in (
                (False, 0, ["met", "not judged"], "passed"), (False, 0, ["met", "missed"], "missed"),
                (False, 0, ["met", "not run"], "partly run"), (False, 0, ["not run"], "not run"),
                (False, 0, [], "failed"), (False, 1, ["met"], "failed"),
                (False, -9, ["missed"], "failed"), (True, 0, ["met"], "cut"),
                (True, -15, [], "cut")):
            self.assertEqual(judge.outcome(was_cut, code, found), outcome, found)

    def test_the_exit_code_tells_missed_from_not_run(self):
        for outcomes, on_gpu, dry in ((["passed", "passed"], 0, 0), (["passed", "missed"], 1, 1),
                                      (["cut", "not run"], 1, 1), (["failed"], 1, 1),
                                      (["passed", "not run"], 3, 0), (["partly run"], 3, 0)):
            self.assertEqual(judge.exit_code(outcomes, False), on_gpu, outcomes)
            self.assertEqual(judge.exit_code(outcomes, True), dry, outcomes)


class Plan(unittest.TestCase):
    def test_stages_are_chosen_by_name_in_the_order_of_the_run(self):
        self.assertEqual(plan.chosen([]), list(plan.STAGES))
        names = [stage.name for stage in plan.STAGES]
        self.assertEqual([stage.name for stage in plan.chosen([names[2], names[0]])],
                         [names[0], names[2]])

    def test_an_unknown_stage_is_refused_with_the_names(self):
        with self.assertRaisesRegex(plan.UnknownStage, "'speed' is no stage; expected some of facts,"):
            plan.chosen(["speed"])

    def test_a_stage_gets_what_earlier_ones_have_left(self):
        first, second = (plan.Stage(name, limit, name, "") for name, limit in (("a", 10), ("b", 30)))
        for left_s, limit_s in ((30 + plan.RESERVE_S + 10, 10), (30 + plan.RESERVE_S + 14, 14), (400, 20), (5, 10)):
            self.assertEqual(plan.with_what_is_left(first, [second], left_s).limit_s, limit_s)

    def test_a_stage_fits_if_its_whole_limit_is_left(self):
        stage = plan.Stage("x", 10, "x", "")
        self.assertTrue(plan.fits(stage, 10 + plan.RESERVE_S))
        self.assertFalse(plan.fits(stage, 9.9 + plan.RESERVE_S))

    def test_the_limits_of_all_stages_fit_into_a_run(self):
        limits = sum(stage.limit_s for stage in plan.STAGES)
        self.assertLessEqual(limits + plan.RESERVE_S, plan.RUN_S)

    def test_a_dry_run_has_longer_limits(self):
        stage = plan.Stage("x", 10, "x", "")
        self.assertEqual(plan.for_a_dry_run([stage]), [plan.Stage("x", 10 * plan.DRY_FACTOR, "x", "")])

    def test_each_stage_has_a_file_and_a_name_of_its_own(self):
        for stage in plan.STAGES:
            self.assertTrue((ROOT / "scripts/kit/stages" / f"{stage.module}.py").exists(), stage)
        self.assertEqual(len({stage.name for stage in plan.STAGES}), len(plan.STAGES))


class GTest(unittest.TestCase):
    TEXT = ("[ RUN      ] A.Passes\n[       OK ] A.Passes (0 ms)\n"
            "[ RUN      ] A.Skips\n/x/a.cc:12: Skipped\nno GPU here\n\n[  SKIPPED ] A.Skips (0 ms)\n"
            "[ RUN      ] A.Fails\n/x/a.cc:9: Failure\n  1\n[  FAILED  ] A.Fails (3 ms)\n")
    END = ("[==========] 3 tests from 1 test suite ran. (3 ms total)\n[  PASSED  ] 1 test.\n"
           "[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] A.Skips\n"
           "[  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.Fails\n")

    def test_counts_what_passed_failed_and_was_skipped_for_a_reason(self):
        self.assertEqual(gtest.read(self.TEXT + self.END),
                         (1, ["A.Fails"], [("A.Skips", "no GPU here")], True, "A.Fails"))

    def test_a_program_that_crashed_is_not_whole(self):
        found = gtest.read(self.TEXT + "[ RUN      ] A.Crashes\n")
        self.assertEqual((found.is_whole, found.last), (False, "A.Crashes"))


class Results(FolderTest):
    def test_the_last_line_of_a_stage_counts(self):
        path = self.folder / "results"
        for outcome in "cut", "passed":
            results.append(path, {"stage": "a", "outcome": outcome})
        self.assertEqual(results.read(path), {"a": {"stage": "a", "outcome": "passed"}})

    def test_a_line_that_was_cut_within_is_left_out(self):
        self.assertEqual(results.latest('{"stage": "a"}\n7\n{"stage": "b", "outc'),
                         {"a": {"stage": "a"}})


class Table(unittest.TestCase):
    STAGES = plan.Stage("quick", 5, "x", ""), plan.Stage("late", 60, "x", "")

    def record(self, **more):
        figures = [judge.judged({"what": "adam", "ours": 1.5, "pytorch": 3.0, "unit": "ms",
                                 "goal": ["ratio at most", 1.05]}, False),
                   judge.judged({"what": "replay", "absent": "it needs a GPU"}, False)]
        return {"stage": "quick", "outcome": "partly run", "seconds": 1.25, "limit_s": 5, "why": "",
                "dry": False, "figures": figures, **more}

    def test_shows_ours_pytorchs_ratio_goal_and_result(self):
        lines = table.text(self.STAGES, {"quick": self.record()}).splitlines()
        self.assertEqual([line.split() for line in lines[:1]],
                         [["stage", "figure", "ours", "PyTorch", "ratio", "goal", "result"]])
        self.assertRegex(lines[1], r"^quick +1\.2 s +- +- +at most 5 s +partly run$")
        self.assertRegex(lines[2], r"^ +adam +1\.5 ms +3 ms +0\.500 +ratio at most 1\.05 +met$")
        why = table.figure_row("", {"what": "x", "ours": "bad", "result": "missed", "why": "it hangs"})
        self.assertEqual(why[-1], "missed: it hangs")
        self.assertRegex(lines[3], r"^ +replay +- +- +- +- +not run: it needs a GPU$")

    def test_a_stage_without_a_line_is_not_run(self):
        self.assertRegex(table.text(self.STAGES, {}).splitlines()[2], "^late .* not run: it has no line$")

    def test_says_first_that_a_run_was_dry(self):
        self.assertEqual(table.text(self.STAGES, {"quick": self.record(dry=True)}).splitlines()[0],
                         table.DRY)


FIGURE = 'print(\'{"figure": {"what": "x", "ours": %s, "goal": ["is", 1]}}\', flush=True)\n'


class Runs(FolderTest):
    """Stages that are small scripts here, run as the kit runs its own."""

    def make(self, seconds=60, **scripts):
        self.stages = [plan.Stage(name, limit, name, "") for name, (limit, _) in scripts.items()]
        commands = {name: [sys.executable, "-c", script] for name, (_, script) in scripts.items()}
        return kit_run.Run(self.stages, lambda stage: commands[stage.name], dict(os.environ), seconds,
                           False, str(self.folder / "results"), {"commit": "abc"})

    def outcomes(self, **scripts):
        with redirect_stdout(io.StringIO()) as said:
            self.records = kit_run.run_all(self.make(**scripts))
            self.code = kit_run.report(self.stages, self.records, False)
        self.said = said.getvalue()
        return {name: record["outcome"] for name, record in self.records.items()}

    def test_a_stage_that_hangs_is_cut_and_the_others_run(self):
        hangs = (FIGURE % 1) + "import signal\nsignal.signal(15, signal.SIG_IGN)\nsignal.pause()"
        found = self.outcomes(hangs=(3, hangs), later=(10, FIGURE % 1))
        self.assertEqual(found, {"hangs": "cut", "later": "passed"})
        # There was time for twice its limit.
        self.assertEqual(self.records["hangs"]["why"], "it did not end in 6 s")
        self.assertEqual([one["result"] for one in self.records["hangs"]["figures"]], ["met"],
                         "what it told before is kept")
        self.assertEqual(self.code, 1)

    def test_nothing_that_a_stage_started_is_left(self):
        """A session of its own does not save a process, nor does a parent that is gone. It even has
        the stage's stdout open."""
        leaves = ("import subprocess, sys\n"
                  "made = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], "
                  "start_new_session=True)\n"
                  "print('{\"facts\": {\"pid\": %d}}' % made.pid, flush=True)\n") + (FIGURE % 1)
        self.assertEqual(self.outcomes(leaves=(10, leaves)), {"leaves": "passed"})
        self.assertIsNone(processes.state_and_parent(self.records["leaves"]["facts"]["pid"]))

    def test_a_goal_that_is_missed_fails_the_run(self):
        self.assertEqual(self.outcomes(good=(10, FIGURE % 1), bad=(10, FIGURE % 2)),
                         {"good": "passed", "bad": "missed"})
        self.assertEqual(self.code, 1)
        self.assertRegex(self.said, r"(?m)^ +x +2 +- +- +is 1 +missed$")

    def test_a_stage_that_breaks_says_why(self):
        breaks = "import sys\nsys.exit('the driver is too old')"
        self.assertEqual(self.outcomes(breaks=(10, breaks)), {"breaks": "failed"})
        self.assertEqual(self.records["breaks"]["why"], "exit code 1: the driver is too old")

    def test_the_reason_has_the_words_of_this_stage_alone(self):
        first = "import sys\nprint('other words', file=sys.stderr)\n" + (FIGURE % 1)
        self.outcomes(first=(10, first), second=(10, "raise SystemExit(2)"))
        self.assertEqual(self.records["second"]["why"], "exit code 2: ")
        self.assertIn("==== first\nother words\n==== second\n", (self.folder / "results.log").read_text())

    def test_a_stage_that_does_not_fit_is_not_run(self):
        found = self.outcomes(seconds=30, quick=(5, FIGURE % 1), long=(60, FIGURE % 1))
        self.assertEqual(found, {"quick": "passed", "long": "not run"})
        self.assertRegex(self.records["long"]["why"], r"^\d+ s were left, and its limit is 60 s$")
        self.assertEqual(self.code, 3)

    def test_lines_that_are_no_figures_are_shown(self):
        self.outcomes(talks=(10, "print('epoch 1')\n" + (FIGURE % 1)))
        self.assertIn("    epoch 1\n", self.said)

    def test_a_kit_that_is_cut_keeps_the_stages_that_ended(self):
        """SIGKILL, as at the end of a machine's time: the second stage is under way then."""
        ready = self.folder / "ready"
        os.mkfifo(ready)
        waits = f"open({str(ready)!r}, 'w').close()\nimport signal\nsignal.pause()"
        code = (f"import sys\nsys.path[:0] = {[str(ROOT / 'tests/install')]!r}\n"
                "import gpu_kit_parts_test as test, pathlib\n"
                f"runs = test.Runs(); runs.folder = pathlib.Path({str(self.folder)!r})\n"
                f"test.kit_run.run_all(runs.make(first=(10, {FIGURE % 1!r}), second=(50, {waits!r})))")
        with subprocess.Popen([sys.executable, "-B", "-c", code], stdout=subprocess.DEVNULL) as kit:
            open(ready, encoding="utf-8").close()  # the second stage has begun
            stage = processes.below(kit.pid)
            kit.kill()
        processes.send(stage, signal.SIGKILL)
        self.assertEqual([(name, one["outcome"]) for name, one in
                          results.read(self.folder / "results").items()], [("first", "passed")])

    def test_a_kit_that_is_told_to_end_ends_its_stage_and_prints_the_table(self):
        ready = self.folder / "ready"
        os.mkfifo(ready)
        waits = f"open({str(ready)!r}, 'w').close()\nimport signal\nsignal.pause()"
        code = (f"import sys\nsys.path[:0] = {[str(ROOT / 'tests/install')]!r}\n"
                "import gpu_kit_parts_test as test, pathlib\n"
                f"runs = test.Runs(); runs.folder = pathlib.Path({str(self.folder)!r})\n"
                f"made = runs.make(first=(10, {FIGURE % 1!r}), second=(50, {waits!r}))\n"
                "sys.exit(test.kit_run.report(runs.stages, test.kit_run.run_all(made), False))")
        with subprocess.Popen([sys.executable, "-B", "-c", code], stdout=subprocess.PIPE,
                              text=True) as kit:
            open(ready, encoding="utf-8").close()
            (stage,) = processes.below(kit.pid)
            kit.terminate()
            said = kit.communicate()[0]
        self.assertEqual(kit.returncode, 3, said)
        self.assertIn("gpu_kit: cut by SIGTERM", said)
        self.assertRegex(said, r"(?m)^first .*passed$")
        self.assertRegex(said, r"(?m)^second .*not run: it has no line$")
        self.assertIsNone(processes.state_and_parent(stage))


class Manifest(FolderTest):
    def test_a_kit_with_another_or_without_a_file_is_damaged(self):
        for name in "a", "b", "c":
            self.file(name, name)
        manifest.write(self.folder, "0123456789ab", "2.11.0")
        self.assertEqual(manifest.torch(self.folder), "2.11.0")
        self.assertEqual(manifest.commit(self.folder), "0123456789ab")
        self.assertEqual(manifest.faults(self.folder), [])
        self.file("a", "x")
        (self.folder / "c").unlink()
        self.assertEqual(manifest.faults(self.folder), ["c is gone", "a differs"])

    def test_a_checkout_has_none(self):
        self.assertIsNone(manifest.torch(self.folder))
        self.assertEqual(manifest.faults(self.folder), [])


class Pack(FolderTest):
    """A folder of programs in which one does not fit."""

    def refusal(self, **programs):
        for name in pack.PROGRAMS:
            self.file(name, "", 0o755)
        for name, source in programs.items():
            run(tool("cc"), "-x", "c", "-o", self.folder / name, *source)
        options = types.SimpleNamespace(is_built=True, bin=str(self.folder),
                                        out=str(self.folder / "kit.tar.xz"))
        with self.assertRaises(pack.Unfit) as caught:
            pack.main(options)
        self.assertFalse((self.folder / "kit.tar.xz").exists())
        return str(caught.exception)

    def test_a_program_with_a_foreign_library_is_refused(self):
        library = self.folder / "libforeign.so"
        self.file("foreign.c", "int foreign(void) { return 0; }\n")
        run(tool("cc"), "-shared", "-fPIC", "-o", library, self.folder / "foreign.c")
        main = self.file("main.c", "int foreign(void);\nint main(void) { return foreign(); }\n")
        said = self.refusal(ddprun=[main, "-x", "none", library, f"-Wl,-rpath,{self.folder}",
                                    "-Wl,--disable-new-dtags"])
        self.assertIn("ddprun needs ", said)
        self.assertIn("libforeign.so, which the machine may not have", said)
        self.assertIn(f"has RPATH {self.folder}", said)

    def test_a_program_that_is_not_built_is_named(self):
        options = types.SimpleNamespace(is_built=True, bin=str(self.folder),
                                        out=str(self.folder / "kit.tar.xz"))
        with self.assertRaisesRegex(pack.Unfit, "ddprun is not there; without --bin it is built"):
            pack.main(options)


class Command(FolderTest):
    def call(self, *words, expect):
        return run(sys.executable, "-B", ROOT / "scripts/gpu_kit", *words, expect=expect)

    def test_wrong_words_are_refused_in_a_line(self):
        self.assertIn("'speed' is no stage; expected some of facts", self.call("run", "--only=speed", expect=2))
        self.assertIn("'0' is not accepted; expected whole seconds from 1",
                      self.call("run", "--seconds=0", expect=2))
        self.assertIn("no torch in /bin/false", self.call("run", "--python=/bin/false", expect=1))

    def test_the_table_of_an_earlier_run_is_shown(self):
        path = self.file("results", json.dumps({
            "stage": "facts", "outcome": "passed", "seconds": 1.0, "limit_s": 20, "dry": False,
            "figures": []}) + "\n")
        said = self.call("table", f"--results={path}", expect=3)
        self.assertRegex(said, r"(?m)^facts +1\.0 s .*passed$")


if __name__ == "__main__":
    run_tests()
