"""One rank of two fails in a pass, in each way that a training program can. Never do the ranks part
and the job end well, whether the program steps by DataParallel::step() or by itself. The rank that
lives says in what it waited, and for which rank.
"""
import os
import re
import subprocess
import unittest

DEADLINE_S = 60
PASSES = 5
# The messages of the failed rank.
WORDS = {
    "unused": r"gave no gradient to 1 of 3 parameters: 0 \('rare'\)",
    "frozen": "parameter 'rare' was frozen since DataParallel was made",
    "unfrozen": "parameter 'scale' was unfrozen since DataParallel was made",
    "added": "parameter 'new' was added since DataParallel was made",
    "replaced": "parameter 'first.weight' was replaced since DataParallel was made",
    "hook": "the hook failed",
    "backward": "the backward failed",
    "peer": "rank 1's own code failed",
}
SURVIVOR = re.compile(r"rank 0: (?:rank 0: )?(.*): rank 1 \(pid \d+\) has (?:ended|left)")


class HalfSteps(unittest.TestCase):
    def job(self, *arguments):
        """(exit code, {hashes of weights}, what was said as errors)"""
        program = os.path.join(os.environ["DDPRUN_BIN"], "failing_trainer")
        done = subprocess.run([os.environ["DDPRUN"], "--standalone", "--nproc-per-node=2", program, *map(str, arguments)],
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        hashes = re.findall(r"rank \d weights (\w+)", done.stdout)
        return done.returncode, hashes, done.stderr

    def assert_caught(self, failure, step, *passes):
        for at in passes:
            with self.subTest(failure=failure, step=step, at=at):
                code, hashes, said = self.job(failure, step, at)
                self.assertNotEqual(code, 0, said)
                self.assertLessEqual(len(set(hashes)), 1, said)
                self.assertRegex(said, WORDS[failure])
                survivor = SURVIVOR.search(said)
                self.assertTrue(survivor, said)
                print(f"{failure}, {step} step, pass {at}: exit code {code}; rank 0 was in {survivor[1]}")
                self.assertRegex(survivor[1], "sum")

    def test_nothing_fails(self):
        for step in ("safe", "plain"):
            code, hashes, said = self.job("none", step, 0)
            self.assertEqual((code, len(hashes), len(set(hashes))), (0, 2, 1), said)

    def test_safe_steps(self):
        for failure in WORDS:
            self.assert_caught(failure, "safe", 3)

    def test_plain_steps(self):
        for failure in WORDS:
            # After the last step no forward() follows that could find what is missing.
            self.assert_caught(failure, "plain", *((3, PASSES) if failure == "unused" else (PASSES,)))


if __name__ == "__main__":
    unittest.main()
