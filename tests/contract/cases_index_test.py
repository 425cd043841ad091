"""Every acceptance case of the contract has a test with its number in its name."""

import pathlib
import re
import unittest

HERE = pathlib.Path(__file__).resolve().parent
# Of one machine and a fixed number of nodes; the others are of elastic node counts.
NUMBERS = {*range(1, 46), 54, 55, 56, 57, 58, *range(60, 65)}


def numbered_tests():
    """Case number -> names of its tests, in the files that CTest runs job by job."""
    found = {}
    for folder in HERE, HERE.parent / "jobs":
        registered = (folder / "CMakeLists.txt").read_text()
        for path in sorted(folder.glob("*_test.py")):
            if f"ddprun_job_tests({path.name}" not in registered:
                continue
            for number, rest in re.findall(r"^    def test_case_(\d\d)_(\w+)", path.read_text(),
                                           re.MULTILINE):
                found.setdefault(int(number), []).append(f"{path.name}: {rest}")
    return found


class CaseIndex(unittest.TestCase):
    def test_every_case_has_a_test(self):
        self.assertEqual(NUMBERS - set(numbered_tests()), set())

    def test_only_registered_files_count(self):
        files = {test.partition(":")[0] for tests in numbered_tests().values() for test in tests}
        self.assertIn("cases_program_test.py", files)
        self.assertNotIn("cases_index_test.py", files)


if __name__ == "__main__":
    unittest.main(verbosity=2)
