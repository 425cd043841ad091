#!/usr/bin/env python3
"""Counts the results of several ctest runs: summarize_tests.py [--steps FILE] NAME=RESULTS.xml …

A suite of GoogleTest that ran as one test counts as its tests.
Prints each skipped test with its reason, and each failed one with the last lines that it printed. A
sanitizer's report shows its first lines.
Prints a line for each run with its counts and how many of those are tests of the engine
(`worker/`). Prints the names of the failed ones again, and, as the last line, `N passed, N failed,
N skipped`. `--steps` names the file of the steps (scripts/common.sh): the line before that says in
which second each began. A run without results (its build failed) counts as one failed test. A green
line must mean that everything was there. Exit code 0 only if nothing failed and something passed.

If `again.xml` lies beside the results, a few failed tests ran once more, alone. One that passed
then is named as unsteady, with what it printed first, and counts as passed. It stays failed if its
first run shows a fault that load does not explain. Such faults are a crash, or a sanitizer's
report.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# of a failed test, which runs for minutes in a log of thousands of lines: this stands at its end
LAST_LINES = 40
REPORT_LINES = 25  # the first of a sanitizer's report, and as many of the last ones
LINE_CHARACTERS = 500  # of one of them

# The mark of a test that judged for itself: GoogleTest, Python's unittest and our scripts. One that
# crashed says nothing.
JUDGED = re.compile(r"\bFAILED\b")
SANITIZER_REPORT = re.compile(
    r"(ERROR|WARNING): (Address|Leak|Thread|UndefinedBehavior)Sanitizer|: runtime error: "
)

# GoogleTest prints these for each test of a suite. A test that began and did not end crashed.
BEGAN = re.compile(r"^\[ RUN +\] (\S+)$")
ENDED = re.compile(r"^\[ +(OK|SKIPPED|FAILED) +\] (\S+)(?:, where .*)? \(\d+ ms\)$")
SUITE = re.compile(r"^\[-{10}\] \d+ tests? from ([^\s,]+)")
RAN = re.compile(r"^\[={10}\] (\d+) tests? from \d+ test suites? ran\.")
NO_END = "it did not end"
NO_TESTS = "[==========] 0 tests "
OUTCOMES = {"OK": "passed", "SKIPPED": "skipped", "FAILED": "failed"}

# How ctest marks a test that skipped itself. Any other test that did not run (no program, no
# fixture) failed.
SELF_SKIPPED = ("SKIP_REGULAR_EXPRESSION_MATCHED", "SKIP_RETURN_CODE=")


def lines_of(case):
    return (case.findtext("system-out") or "").rstrip().splitlines()


def skip_reason(lines):
    """GoogleTest prints `file:line: Skipped` and the reason below it; a script's last line is its
    reason."""
    lines = [line.strip() for line in lines if line.strip()]
    for number, line in enumerate(lines[:-1]):
        if line.endswith(": Skipped"):
            return lines[number + 1]
    return lines[-1] if lines else "no reason given"


def outcome(case):
    """(passed | failed | skipped, why) of one <testcase>."""
    if case.get("status") == "run":
        return "passed", ""
    skipped = case.find("skipped")
    message = "" if skipped is None else skipped.get("message", "")
    if message.startswith(SELF_SKIPPED):
        return "skipped", skip_reason(lines_of(case))
    if case.get("status") == "disabled":
        return "skipped", "disabled"
    failure = case.find("failure")
    message = message or ("" if failure is None else failure.get("message", ""))
    return "failed", "\n".join([message, *telling_lines(lines_of(case))])


def outcomes_of(case):
    """Returns (outcome, test, why) of one <testcase>, or of each test of its suite. A suite that
    failed otherwise, or did not say that it ran so many tests, is one more that failed."""
    state, why = outcome(case)
    tests = tests_of_suite(case)
    if tests is None:
        return [(state, case.get("name"), why)]
    ran = [int(said[1]) for said in map(RAN.match, lines_of(case)) if said]
    if ran != [len(tests)]:
        if tests and tests[-1][2].startswith(NO_END):
            return tests
        said = ran[0] if ran else "nothing"
        why = f"{len(tests)} tests were seen, and the suite says {said}"
        return [*tests, ("failed", case.get("name"), why)]
    if state == "failed" and all(of != "failed" for of, _, _ in tests):
        tests.append((state, case.get("name"), why))
    return tests


def tests_of_suite(case):
    """The same of each test that began, in their order; None if this is no suite."""
    lines = lines_of(case)
    program, _, suite = case.get("name").removesuffix(".").rpartition(".")
    if not any(said and said[1] == suite for said in map(SUITE.match, lines)):
        return [] if any(line.startswith(NO_TESTS) for line in lines) else None
    starts = [at for at, line in enumerate(lines) if BEGAN.match(line)]
    return [
        outcome_of_test(program, lines[start:end])
        for start, end in zip(starts, [*starts[1:], len(lines)])
    ]


def outcome_of_test(program, printed):
    """The same of one test, which has printed these lines."""
    name = BEGAN.match(printed[0])[1]
    ends = [(at, ENDED.match(line)) for at, line in enumerate(printed)]
    end = next(((at, said) for at, said in ends if said and said[2].rstrip(",") == name), None)
    if end is None:
        return "failed", f"{program}.{name}", "\n".join([NO_END, *telling_lines(printed)])
    at, said = end
    state = OUTCOMES[said[1]]
    why = ""
    if state == "skipped":
        why = skip_reason(printed[:at])
    elif state == "failed":
        why = "\n".join(["Failed", *telling_lines(printed[: at + 1])])
    return state, f"{program}.{name}", why


def telling_lines(lines):
    """Returns the lines of a failed test that tell most, each line moved in. They are the last that
    it printed, and before them the first of a sanitizer's report."""
    report = next((at for at, line in enumerate(lines) if SANITIZER_REPORT.search(line)), None)
    told = lines[-LAST_LINES:]
    if report is not None and report < len(lines) - 2 * REPORT_LINES:
        told = [*lines[report : report + REPORT_LINES], "[…]", *lines[-REPORT_LINES:]]
    elif report is not None:
        told = lines[report:]
    return ["    " + line[:LINE_CHARACTERS] for line in told]


def read_run(name, path):
    """All outcomes of one run, as (outcome, test, why)."""
    try:
        cases = cases_of(path)
    except (OSError, ElementTree.ParseError) as error:
        return [("failed", name, f"no test results: {error}")]
    healed = passed_again(pathlib.Path(path).with_name("again.xml"))
    found = []
    for case in cases:
        is_healed = case.get("name") in healed and not is_reported(case)
        for state, test, why in outcomes_of(case):
            if state == "failed" and is_healed and JUDGED.search(why):
                state = "unsteady"
            found.append((state, f"{name}: {test}", why))
    return found


def cases_of(path):
    return list(ElementTree.parse(path).getroot().iter("testcase"))


def passed_again(path):
    """The names of the tests that passed when they ran once more; none where there was no such
    run."""
    try:
        return {case.get("name") for case in cases_of(path) if outcome(case)[0] == "passed"}
    except (OSError, ElementTree.ParseError):
        return set()


def is_reported(case):
    """Whether a sanitizer has found a fault: load is no reason for it."""
    return bool(SANITIZER_REPORT.search(case.findtext("system-out") or ""))


def is_engines(test):
    """Whether it is a test of the engine: `RUN: LABEL.worker…`."""
    return test.partition(": ")[2].partition(".")[2].startswith("worker")


def tests_that(wanted, results):
    """Their names, in the order of the runs."""
    return [test for state, test, _ in results if state == wanted]


def counts_of(results):
    """`N passed, N failed, N skipped`, and the numbers."""
    outcomes = ["passed" if state == "unsteady" else state for state, _, _ in results]
    counts = {state: outcomes.count(state) for state in ("passed", "failed", "skipped")}
    return ", ".join(f"{count} {state}" for state, count in counts.items()), counts


def seconds_of_steps(path):
    """A line of what `step` in common.sh has written: second, step."""
    steps = re.findall(r"^\[ *(\d+) s\] (.*)$", pathlib.Path(path).read_text(), re.MULTILINE)
    return "seconds: " + ", ".join(f"{second} {step}" for second, step in steps)


def main(arguments):
    steps = arguments[1] if arguments[:1] == ["--steps"] else None
    runs = [argument.partition("=") for argument in arguments[2 if steps else 0 :]]
    results_of = {name: read_run(name, path) for name, _, path in runs}
    results = [result for found in results_of.values() for result in found]
    for wanted in ("skipped", "unsteady", "failed"):
        for state, test, why in results:
            if state == wanted:
                print(f"{wanted}: {test}" + (f": {why}" if why else ""))
    for name, found in results_of.items():
        engines = [result for result in found if is_engines(result[1])]
        print(f"{name}: {counts_of(found)[0]}; of the engine: {counts_of(engines)[0]}")
    # Once more, without what they printed: whoever keeps only the end of a log still learns which
    # ones they are.
    for test in tests_that("unsteady", results):
        print(f"unsteady: {test}: it failed at first, and passed when it ran alone")
    for test in tests_that("failed", results):
        print(f"failed: {test}")
    if steps:
        print(seconds_of_steps(steps))
    line, counts = counts_of(results)
    print(line)
    return 0 if counts["failed"] == 0 and counts["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
