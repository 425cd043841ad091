#!/usr/bin/env python3
"""The scripts of --print-completion in the shells that they are for. argv[1] is ddprun. Exit code
77 where no test could run."""

import shutil
import subprocess
import sys
import unittest

DDPRUN = sys.argv.pop(1)
# Prints COMPREPLY as the function leaves it for a line given as words. `=` is a word of its own as
# readline has it.
ASK_BASH = """
source <("$1" --print-completion=bash) || exit 9
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_ddprun
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell):
    return subprocess.run(
        [DDPRUN, f"--print-completion={shell}"], check=True, capture_output=True, text=True
    ).stdout


class Bash(unittest.TestCase):
    def setUp(self):
        if not shutil.which("bash"):
            self.skipTest("no bash here")

    def complete(self, *words):
        asked = subprocess.run(
            ["bash", "-c", ASK_BASH, "bash", DDPRUN, "ddprun", *words],
            check=True,
            capture_output=True,
            text=True,
        )
        self.assertEqual(asked.stderr, "")
        return asked.stdout.split()

    def test_options_by_their_beginning(self):
        self.assertEqual(self.complete("--rdzv-e"), ["--rdzv-endpoint"])
        self.assertEqual(self.complete("--restart-"), ["--restart-window", "--restart-backoff"])
        self.assertIn("--numa-binding", self.complete("-"))

    def test_values_in_both_forms(self):
        self.assertEqual(self.complete("--exit-codes", "d"), ["detailed"])
        self.assertEqual(self.complete("--exit-codes", "=", "d"), ["detailed"])
        self.assertEqual(self.complete("--exit-codes", "="), ["torchrun", "detailed"])
        self.assertEqual(self.complete("--fold", "--numa-binding", "=", "s"), ["socket"])

    def test_a_free_value_is_left_to_files(self):
        self.assertEqual(self.complete("--log-dir", "-"), [])
        self.assertEqual(self.complete("--log-dir", "=", "x", "--fo"), ["--fold"])
        self.assertEqual(self.complete("-t", "3", "--fo"), ["--fold"])

    def test_what_follows_the_script_is_left_to_files(self):
        self.assertEqual(self.complete("--fold", "train.py", "--"), [])
        self.assertEqual(self.complete("--nproc-per-node", "2", "train.py", "--rdzv"), [])


class Others(unittest.TestCase):
    def check(self, *command, text):
        if not shutil.which(command[0]):
            self.skipTest(f"no {command[0]} here")
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_zsh_takes_its_script(self):
        self.check("zsh", "-f", text="autoload -U compinit; compinit -u -D\n" + script("zsh"))

    def test_tcsh_takes_its_script(self):
        listed = self.check("tcsh", "-f", text=script("tcsh") + "complete ddprun\n")
        self.assertIn("numa-binding", listed)


if __name__ == "__main__":
    result = unittest.main(verbosity=2, exit=False).result
    for test, reason in result.skipped:
        print(f"skipped: {test.id()}: {reason}")
    sys.exit(77 if len(result.skipped) == result.testsRun else not result.wasSuccessful())
