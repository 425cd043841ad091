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

std::string script(std::vector<std::string> argv) {
  const auto found = script_of({"/usr/bin/python3", std::move(argv)});
  return found ? (found->is_module ? "module " : "file ") + found->name : "none";
}

TEST(PythonProgram, HasAScript) {
  EXPECT_EQ(script({"python3", "-u", "train.py", "-m", "x"}), "file train.py");
  EXPECT_EQ(script({"python3", "-W", "error", "-Xdev", "./a/train.py"}), "file ./a/train.py");
  EXPECT_EQ(script({"python3", "-u", "-m", "package.train", "a"}), "module package.train");
  EXPECT_EQ(script({"python3", "-um", "train"}), "module train");
  EXPECT_EQ(script({"python3", "-c", "pass"}), "none");
  EXPECT_EQ(script({"python3", "-"}), "none");
  EXPECT_EQ(script({"python3"}), "none");
  EXPECT_EQ(script({"python3", "-m"}), "none");
  EXPECT_EQ(script({"python3", "-I", "train.py"}), "none") << "it does not come to the hook";
}

TEST(PythonProgram, IsPythonItself) {
  EXPECT_FALSE(takes("/bin/sh", {"-c", "python train.py"}));
  EXPECT_FALSE(takes("./python-wrapper", {"train.py"}));
  EXPECT_FALSE(takes("/usr/bin/pypy3", {"train.py"}));
  EXPECT_FALSE(takes("/usr/bin/python3-config", {}));
}

}  // namespace
}  // namespace ddprun::agent
