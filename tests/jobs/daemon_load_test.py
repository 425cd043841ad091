"""The memory that a crowd of jobs leaves behind in a ddprund."""

import pathlib
import re
import subprocess
import sys
import unittest

from daemon_test import DDPRUND
from support import main, sanitized

BENCH = pathlib.Path(__file__).parents[2] / "bench" / "daemon"


@unittest.skipIf(sanitized(), "a sanitizer keeps what is freed")
class DaemonLoad(unittest.TestCase):
    def test_memory_is_given_back_and_does_not_grow(self):
        build = pathlib.Path(DDPRUND).parent.parent
        done = subprocess.run([sys.executable, "-B", BENCH, "--jobs=50", "--nodes=20", "--serial=1000", "--rounds=100", f"--build={build}"],
                              stdout=subprocess.PIPE, text=True)
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(len(re.findall(r"names it: yes", done.stdout)), 4)
        self.assertRegex(done.stdout, r"at most 1\.2 x resident: yes")
        self.assertRegex(done.stdout, r"at most 1\.05 x: yes")


if __name__ == "__main__":
    main()
