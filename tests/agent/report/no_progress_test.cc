#include "agent/report/no_progress.h"

#include <gtest/gtest.h>

#include "rendezvous/core/progress.h"

namespace ddprun::agent {
namespace {

TEST(LastWords, AreTheLineThatNamesTheException) {
  EXPECT_EQ(last_words({"Traceback (most recent call last):", "  File \"t.py\", line 1", "    f()",
                        "ValueError: bad", "[W731] a warning of a library at its end"}),
            "ValueError: bad");
  EXPECT_EQ(last_words({"[rank1]: Traceback (most recent call last):", "[rank1]:   File \"t.py\"",
                        "[rank1]: KeyError: 'x'"}),
            "KeyError: 'x'");
  EXPECT_EQ(last_words({"Traceback (most recent call last):", "  a", "KeyError: 1", "",
                        "During handling of the above exception, another exception occurred:", "",
                        "Traceback (most recent call last):", "  b", "OSError: 2"}),
            "OSError: 2");
  EXPECT_EQ(last_words({}), "");
}

TEST(LastWords, NameNoExceptionWithoutATraceback) {
  EXPECT_EQ(last_words({"a", "no such file", " "}), "'no such file'");
  EXPECT_EQ(last_words({"Aborted: by the user"}), "'Aborted: by the user'");
  EXPECT_EQ(rendezvous::exception_of(last_words({"Aborted: by the user"})), "");
  EXPECT_EQ(last_words({"Traceback (most recent call last):", "  cut off"}), "'  cut off'");
  EXPECT_EQ(last_words({"Traceback (most recent call last):", "  a", "[W731] not its end"}),
            "'[W731] not its end'");
}

TEST(LastWords, AreNotThoseOfAnExceptionThatPythonIgnores) {
  const std::vector<std::string> end = {"Traceback (most recent call last):", "  a",
                                        "ValueError: bad"};
  for (const std::string what : {"Exception ignored in: <function F.__del__ at 0x7f>",
                                 "Exception ignored on threading end:", "--- Logging error ---",
                                 "Error in atexit._run_exitfuncs:"}) {
    std::vector<std::string> lines = end;
    for (const std::string& line : {what, end[0], end[1], std::string("KeyError: 'late'")})
      lines.push_back("[rank0]: " + line);
    EXPECT_EQ(last_words(lines), "ValueError: bad") << what;
    lines.erase(lines.begin(), lines.begin() + 3);
    EXPECT_EQ(last_words(lines), "'KeyError: 'late''") << what;
  }
}

TEST(NoProgressText, ShowsAttemptsSideBySide) {
  const rendezvous::NoProgress why{
      .attempts = 3,
      .sentence = "all 3 attempts failed",
      .last = {{1, {.hostname = "n1", .rank = 2, .exit_code = 1, .words = "ValueError: \x1b[1mx"}},
               {2, {.hostname = "n1", .rank = 3, .exit_code = -9, .step = 1204}},
               {3, {.hostname = "n0", .message = std::string(90, 'm')}}}};
  EXPECT_EQ(no_progress_text(why, "ddprun"),
            "ddprun: no progress in 3 attempts: all 3 attempts failed\n"
            "  attempt  node                  rank      step  ended by\n"
            "        1  n1                       2         -  exit code 1: ValueError:  [1mx\n"
            "        2  n1                       3      1204  SIGKILL\n"
            "        3  n0                       -         -  " +
                std::string(60, 'm') + "…\n");
}

}  // namespace
}  // namespace ddprun::agent
