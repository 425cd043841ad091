#include "launcher/job/command.h"

#include <gtest/gtest.h>

#include <map>

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;

// A host of a few named files; PATH holds python3 and train.
struct FakeFiles {
  std::map<std::string, FileFacts> files = {
      {"train.py", {FileKind::kPlain, false}},
      {"tool", {FileKind::kElf, true}},
      {"./tool", {FileKind::kElf, true}},
      {"./data", {FileKind::kElf, false}},
      {"run.sh", {FileKind::kOtherScript, true}},
      {"python_script", {FileKind::kPythonScript, true}},
      {"uv.py", {FileKind::kOtherScript, true}},
      {"/opt", {FileKind::kDirectory, false}},
      {"/opt/python", {FileKind::kElf, true}},
  };
  std::map<std::string, std::string> path = {{"python3", "/usr/bin/python3"},
                                             {"train", "/usr/bin/train"}};
  std::optional<std::string> python_exec{};
  std::optional<PythonPlace> python_beside_us{};
  std::vector<PythonPlace> pythons{};

  CommandFacts facts() const {
    return {[this](const std::string& name) {
              const auto found = files.find(name);
              return found == files.end() ? FileFacts{} : found->second;
            },
            [this](const std::string& name) -> std::optional<std::string> {
              const auto found = path.find(name);
              if (found == path.end()) return std::nullopt;
              return found->second;
            },
            python_exec, [this] { return python_beside_us; }, [this] { return pythons; }};
  }
};

Result<Command> build(Mode mode, const std::string& script, const FakeFiles& host = {},
                      Words args = {}) {
  Options options;
  options.mode = mode;
  options.script = script;
  options.script_args = std::move(args);
  return build_command(options, host.facts());
}

std::string error_of(const Result<Command>& result) {
  return result ? "built" : result.error().message();
}

// Acceptance case 11 of the torchrun contract.
TEST(Command, Case11RunsAScriptByUnbufferedPython) {
  const Command command = *build(Mode::kScript, "train.py", {}, {"a", "b"});
  EXPECT_EQ(command.file, "/usr/bin/python3");
  EXPECT_EQ(command.argv(0), (Words{"/usr/bin/python3", "-u", "train.py", "a", "b"}));
  EXPECT_EQ(command.entry, "train.py");
}

TEST(Command, Case11RunsAModule) {
  const Command command = *build(Mode::kModule, "mod", {}, {"a"});
  EXPECT_EQ(command.argv(0), (Words{"/usr/bin/python3", "-u", "-m", "mod", "a"}));
  EXPECT_EQ(command.entry, "mod");
}

TEST(Command, Case11HonoursPythonExec) {
  FakeFiles host;
  host.python_exec = "/opt/python";
  host.python_beside_us = PythonPlace{"/venv/bin/python3"};
  const Command command = *build(Mode::kScript, "train.py", host);
  EXPECT_EQ(command.argv(0), (Words{"/opt/python", "-u", "train.py"}));
  EXPECT_EQ(command.entry, "/opt/python");
  host.python_exec = "python3";
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/usr/bin/python3");
}

TEST(Command, TakesThePythonOfItsOwnVirtualEnvironmentBeforePath) {
  FakeFiles host;
  host.python_beside_us = PythonPlace{"/venv/bin/python3"};
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/venv/bin/python3");
  host.python_exec = "";  // empty: as if unset
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/venv/bin/python3");
}

TEST(Command, AnEnvironmentOfDdprunAloneGivesWayToTheUsers) {
  FakeFiles host;
  host.python_beside_us = PythonPlace{.path = "/tools/bin/python3", .is_of_a_tool = true};
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/tools/bin/python3")
      << "no other is there";
  host.pythons = {{"/project/bin/python3", "VIRTUAL_ENV"}, {"/usr/bin/python3", "PATH", true}};
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/project/bin/python3");
  EXPECT_EQ(build(Mode::kModule, "mod", host)->file, "/project/bin/python3");
  host.python_beside_us->has_torch = true;
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/tools/bin/python3");
  host.python_exec = "/opt/python";
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/opt/python");
}

TEST(Command, AnyOtherEnvironmentOfOursGivesWayToAnActiveOneWithTorch) {
  FakeFiles host;
  host.python_beside_us = PythonPlace{"/venv/bin/python3"};
  host.pythons = {{"/project/bin/python3", "VIRTUAL_ENV", false, true},
                  {"/usr/bin/python3", "PATH", true}};
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/venv/bin/python3");
  host.pythons.push_back({"/conda/bin/python3", "CONDA_PREFIX", true, true});
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/conda/bin/python3");
  host.python_beside_us->has_torch = true;
  EXPECT_EQ(build(Mode::kScript, "train.py", host)->file, "/venv/bin/python3");
}

TEST(Command, SaysWhichPythonsWereLookedAt) {
  FakeFiles host;
  EXPECT_EQ(
      torch_advice(host.facts()),
      "workers run with /usr/bin/python3, which has no torch; type `PYTHON_EXEC=/PATH/TO/python3 "
      "ddprun …`, or activate the environment that has torch and install ddprun into it");
  host.python_beside_us = PythonPlace{"/venv/bin/python3", "the environment of ddprun"};
  host.python_exec = "/opt/python";
  host.pythons = {{"/conda/bin/python3", "CONDA_PREFIX", true, true}};
  const std::string advice = torch_advice(host.facts());
  for (const char* part : {"workers run with /opt/python (PYTHON_EXEC), which has no torch",
                           "/conda/bin/python3 (CONDA_PREFIX, has torch)",
                           "/venv/bin/python3 (the environment of ddprun, no torch)",
                           "`PYTHON_EXEC=/conda/bin/python3 "})
    EXPECT_NE(advice.find(part), std::string::npos) << part << " in " << advice;
}

TEST(Command, NamesAPythonThatIsNotThere) {
  FakeFiles host;
  host.path.clear();
  EXPECT_EQ(error_of(build(Mode::kScript, "train.py", host)),
            "python3: no such program on PATH; PYTHON_EXEC names another");
  host.python_exec = "/none/python";
  EXPECT_EQ(error_of(build(Mode::kModule, "mod", host)), "PYTHON_EXEC=/none/python: no such file");
  host.python_exec = "./data";
  EXPECT_EQ(error_of(build(Mode::kModule, "mod", host)), "PYTHON_EXEC=./data: is not executable");
  host.python_exec = "pypy";
  EXPECT_EQ(error_of(build(Mode::kModule, "mod", host)),
            "PYTHON_EXEC=pypy: no such program on PATH");
}

TEST(Command, RunsABinaryAndAForeignScriptWithoutNoPython) {
  const Command tool = *build(Mode::kScript, "tool", {}, {"x"});
  EXPECT_EQ(tool.file, "./tool");  // in the current folder, as Python would have found it
  EXPECT_EQ(tool.argv(0), (Words{"tool", "x"}));
  EXPECT_EQ(tool.entry, "tool");
  EXPECT_EQ(build(Mode::kScript, "run.sh")->file, "./run.sh");
}

TEST(Command, LeavesPythonScriptsToPython) {
  EXPECT_EQ(build(Mode::kScript, "python_script")->file, "/usr/bin/python3");
  EXPECT_EQ(build(Mode::kScript, "uv.py")->file, "/usr/bin/python3");
  EXPECT_EQ(build(Mode::kScript, "/opt")->argv(0), (Words{"/usr/bin/python3", "-u", "/opt"}));
}

// Acceptance case 23.
TEST(Command, Case23NamesAMissingScript) {
  for (const Mode mode : {Mode::kScript, Mode::kRunPath, Mode::kProgram}) {
    const auto result = build(mode, "./missing");
    EXPECT_EQ(error_of(result), "./missing: no such file");
    EXPECT_EQ(result.error().code(), ErrorCode::kNotFound);
  }
  EXPECT_EQ(error_of(build(Mode::kScript, "train")),
            "train: no such file; --no-python would run the program on PATH");
}

TEST(Command, Case23NamesAProgramThatIsNotExecutable) {
  EXPECT_EQ(error_of(build(Mode::kProgram, "./data")), "./data: is not executable");
  EXPECT_EQ(error_of(build(Mode::kScript, "./data")), "./data: is not executable");
  EXPECT_EQ(error_of(build(Mode::kProgram, "/opt")), "/opt: is a directory, expected a program");
}

TEST(Command, LooksUpAProgramOnPathOnlyWithoutASlash) {
  const Command command = *build(Mode::kProgram, "train", {}, {"-v"});
  EXPECT_EQ(command.file, "/usr/bin/train");
  EXPECT_EQ(command.argv(0), (Words{"train", "-v"}));
  EXPECT_EQ(error_of(build(Mode::kProgram, "tool")), "tool: no such program on PATH");
  EXPECT_EQ(build(Mode::kProgram, "./tool")->file, "./tool");
}

TEST(Command, RunsAPathByRunpy) {
  const Command command = *build(Mode::kRunPath, "train.py", {}, {"a"});
  const Words argv = command.argv(0);
  ASSERT_EQ(argv.size(), 6U);
  EXPECT_EQ(argv[2], "-c");
  EXPECT_NE(argv[3].find("runpy.run_path"), std::string::npos);
  EXPECT_EQ(argv[4], "train.py");
  EXPECT_EQ(argv[5], "a");
  EXPECT_EQ(command.entry, "run_script_path");
}

// Acceptance case 12.
TEST(Command, Case12PutsTheLocalRankIntoArguments) {
  const Command command =
      *build(Mode::kScript, "train.py", {}, {"r=${local_rank}", "${rank}", "$$", "$local_rank-x"});
  EXPECT_EQ(command.argv(12),
            (Words{"/usr/bin/python3", "-u", "train.py", "r=12", "${rank}", "$$", "12-x"}));
}

TEST(Command, LeavesEverythingElseInArguments) {
  const Words same = {"",
                      "$",
                      "$ x",
                      "${}",
                      "${local_rank",
                      "$local_ranks",
                      "kill $$",
                      "$$local_rank",
                      "${local_rank }",
                      "${0}",
                      "$1",
                      "${LOCAL_RANK}"};
  Words argv = build(Mode::kProgram, "./tool", {}, same)->argv(3);
  argv.erase(argv.begin());
  EXPECT_EQ(argv, same);
}

TEST(Command, SubstitutesEveryPlace) {
  EXPECT_EQ(build(Mode::kProgram, "./tool", {}, {"$local_rank${local_rank}$$$local_rank"})->argv(4),
            (Words{"./tool", "44$$4"}));
}

TEST(Command, LeavesTheScriptsNameAlone) {
  FakeFiles host;
  host.files["./$local_rank.py"] = {FileKind::kPlain, false};
  EXPECT_EQ(build(Mode::kScript, "./$local_rank.py", host)->argv(1).back(), "./$local_rank.py");
}

// Acceptance case 14.
TEST(Command, Case14PutsTheLocalRankFirst) {
  Options options;
  options.script = "train.py";
  options.script_args = {"a"};
  options.local_rank_argument = true;
  const FakeFiles host;
  EXPECT_EQ(build_command(options, host.facts())->argv(3),
            (Words{"/usr/bin/python3", "-u", "train.py", "--local-rank=3", "a"}));
  options.mode = Mode::kModule;
  EXPECT_EQ(build_command(options, host.facts())->argv(0),
            (Words{"/usr/bin/python3", "-u", "-m", "train.py", "--local-rank=0", "a"}));
}

TEST(Command, IsBoundToCpusByNumactl) {
  Options options;
  options.workers_per_node = 2;
  options.numa_binding = NumaMode::kNode;
  NumaFacts numa{.cpus = {{0, 0, 0, 0, 0}, {1, 1, 1, 1, 1}}, .gpu_nodes = {1, 0}};
  FakeFiles host;
  const Command plain = *build(Mode::kScript, "train.py", host, {"$local_rank"});
  EXPECT_EQ(error_of(bind_to_cpus(plain, options, numa, host.facts())),
            "--numa-binding: needs the program numactl, which is not on PATH");
  host.path["numactl"] = "/usr/bin/numactl";
  const Command bound = *bind_to_cpus(plain, options, numa, host.facts());
  EXPECT_EQ(bound.program(), "/usr/bin/numactl");
  EXPECT_EQ(bound.argv(0),
            (Words{"numactl", "--physcpubind=1", "/usr/bin/python3", "-u", "train.py", "0"}));
  EXPECT_EQ(bound.argv(1)[1], "--physcpubind=0");
  EXPECT_FALSE(bound.needs_pci_order);
  numa.gpus_are_alike = false;
  EXPECT_TRUE(bind_to_cpus(plain, options, numa, host.facts())->needs_pci_order);
  options.workers_per_node = 3;
  EXPECT_EQ(error_of(bind_to_cpus(plain, options, numa, host.facts())),
            "--numa-binding: 3 workers need as many visible GPUs; there are 2");
}

TEST(KindOfHead, KnowsBinariesAndScripts) {
  EXPECT_EQ(kind_of_head(std::string_view("\x7f"
                                          "ELF\x02\x01",
                                          6)),
            FileKind::kElf);
  EXPECT_EQ(kind_of_head(""), FileKind::kPlain);
  EXPECT_EQ(kind_of_head("import os\n"), FileKind::kPlain);
  EXPECT_EQ(kind_of_head("# /usr/bin/env bash"), FileKind::kPlain);
  for (const auto* line : {"#!/bin/sh\n", "#! /bin/bash -e", "#!/usr/bin/env perl\n# python\n",
                           "#!", "#!/bin/notpython"}) {
    EXPECT_EQ(kind_of_head(line), FileKind::kOtherScript) << line;
  }
  for (const auto* line : {"#!/usr/bin/python3\n", "#! /usr/bin/env python\n",
                           "#!/usr/bin/env -S python3.11 -u\n", "#!/opt/pypy/bin/pypy3"}) {
    EXPECT_EQ(kind_of_head(line), FileKind::kPythonScript) << line;
  }
}

}  // namespace
}  // namespace ddprun::launcher
