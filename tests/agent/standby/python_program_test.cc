#include "agent/standby/python_program.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

bool takes(const std::string& file, std::vector<std::string> rest) {
  rest.insert(rest.begin(), file);
  return takes_hook({file, rest});
}

TEST(PythonProgram, TakesTheHook) {
  EXPECT_TRUE(takes("/usr/bin/python3", {"-u", "train.py"}));
  EXPECT_TRUE(takes("python", {"-u", "-m", "train", "-I"})) << "what follows is the module's";
  EXPECT_TRUE(takes("/a/python3.13t", {"train.py", "-S"}));
  EXPECT_TRUE(takes("python3", {"-X", "importtime", "-W", "IES", "train.py"}));
  EXPECT_TRUE(takes("python3", {"-WIgnore", "train.py"}));
  EXPECT_TRUE(takes("python3", {"-c", "pass"}));
}

TEST(PythonProgram, CannotTakeTheHookIfItReadsNoVariables) {
  EXPECT_FALSE(takes("python3", {"-I", "train.py"}));
  EXPECT_FALSE(takes("python3", {"-u", "-sE", "train.py"}));
  EXPECT_FALSE(takes("python3", {"-X", "dev", "-S", "train.py"}));
}

TEST(PythonProgram, IsPythonItself) {
  EXPECT_FALSE(takes("/bin/sh", {"-c", "python train.py"}));
  EXPECT_FALSE(takes("./python-wrapper", {"train.py"}));
  EXPECT_FALSE(takes("/usr/bin/pypy3", {"train.py"}));
  EXPECT_FALSE(takes("/usr/bin/python3-config", {}));
}

}  // namespace
}  // namespace ddprun::agent
