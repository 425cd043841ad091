"""The examples. Each is short, has a twin, a line in docs/examples.md, and a test with 1, 2 and 4
workers. Only the standard library."""

import ast
import re
import textwrap
import unittest

from sources import ROOT, name, run_tests

EXAMPLES = ROOT / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*/*.cc") if path.stem == path.parent.name)
TWINS = {"mnist": "ddp_mnist"}  # the others have the example's name
LIBRARIES = {"common", "readers"}  # folders without a program
MAX_LINES = 120
MAX_LINES_OF_WHOLE_PROGRAM = 300  # mnist shows what all belongs to a program
PAGE = (ROOT / "docs" / "examples.md").read_text()
TESTS = ROOT / "tests" / "examples" / "examples_test.py"
WORKERS = {1, 2, 4}
REFUSED = {"updates": {1}}  # it needs two for its ways to differ


def twin_of(example):
    return EXAMPLES / "pytorch" / (TWINS.get(example, example) + ".py")


def bindings(statements):
    """Returns the values of names that are given numbers, or go over them in a `for`."""
    given = {}
    for node in ast.walk(statements):
        if isinstance(node, (ast.Assign, ast.For)):
            target, value = (node.targets[0], node.value) if isinstance(node, ast.Assign) else (node.target, node.iter)
            if isinstance(target, ast.Name) and isinstance(value, (ast.Tuple, ast.Name)):
                given[target.id] = value
    return given


def numbers_of(node, given):
    while isinstance(node, ast.Name) and node.id in given:
        node = given[node.id]
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    return {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, int)}


def workers_of_examples(source):
    """{example: the numbers of workers that ours(workers, example) starts}, also by a helper that
    takes the example's name.

    Runs that must fail, with `code=`, do not count.
    """
    tree = ast.parse(source)
    given, started, helpers = bindings(tree), {}, {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    calls = [(function, call) for function in functions for call in ast.walk(function)
             if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)]
    for function, call in calls:
        if call.func.attr != "ours" or len(call.args) < 2 or any(keyword.arg == "code" for keyword in call.keywords):
            continue
        numbers = numbers_of(call.args[0], {**given, **bindings(function)})
        if isinstance(call.args[1], ast.Constant):
            started.setdefault(call.args[1].value, set()).update(numbers)
        else:
            helpers.setdefault(function.name, set()).update(numbers)
    for _, call in calls:
        if call.func.attr in helpers and call.args and isinstance(call.args[0], ast.Constant):
            started.setdefault(call.args[0].value, set()).update(helpers[call.func.attr])
    return started


class Examples(unittest.TestCase):
    def test_each_folder_with_a_program_is_an_example(self):
        programs = {path.parent.name for path in EXAMPLES.glob("*/*.cc")} - LIBRARIES
        self.assertEqual(sorted(programs), NAMES)
        self.assertGreaterEqual(len(NAMES), 10)

    def test_each_has_a_twin_and_names_it(self):
        for example in NAMES:
            twin = twin_of(example)
            self.assertTrue(twin.exists(), name(twin))
            self.assertIn(name(twin), (EXAMPLES / example / f"{example}.cc").read_text().partition("#include")[0], example)

    def test_each_has_a_line_on_the_page(self):
        for example in NAMES:
            row = re.search(rf"^\|[^|]+\| \[{example}\]\(\.\./examples/{example}/{example}\.cc\) \|[^|]*\w[^|]*\|([^|]*\w[^|]*)\|$", PAGE, re.MULTILINE)
            self.assertIsNotNone(row, f"docs/examples.md: no line of {example}")
            self.assertIn(f"](../{name(twin_of(example))})", row[1], example)

    def test_each_runs_with_1_2_and_4_workers_in_tests(self):
        started = workers_of_examples(TESTS.read_text())
        for example in NAMES:
            self.assertLessEqual(WORKERS - REFUSED.get(example, set()), started.get(example, set()), f"{name(TESTS)}: {example}")

    def test_each_is_short(self):
        files = [path for ending in ("cc", "h") for path in EXAMPLES.glob(f"*/*.{ending}") if path.parent.name != "readers"] + list((EXAMPLES / "pytorch").glob("*.py"))
        whole = {EXAMPLES / "mnist" / "mnist.cc", twin_of("mnist")}
        lines = {path: len(path.read_text().splitlines()) for path in files}
        long_files = {name(path): count for path, count in lines.items()
                      if count > (MAX_LINES_OF_WHOLE_PROGRAM if path in whole else MAX_LINES)}
        self.assertEqual(long_files, {})


class WorkersOfExamples(unittest.TestCase):
    def test_are_read_from_loops_names_and_helpers(self):
        source = textwrap.dedent('''
            MANY = 1, 2
            class A:
                def check(self, name):
                    for n in MANY:
                        self.ours(n, name)
                def test_a(self):
                    self.check("a")
                    self.ours(4, "a")
                    for n in (2, 3):
                        self.ours(n, "b")
                    self.ours(5, "b", code=1)
        ''')
        self.assertEqual(workers_of_examples(source), {"a": {1, 2, 4}, "b": {2, 3}})


if __name__ == "__main__":
    run_tests()
