// The rules of form, checked against what torchrun 2.11's own parser did with the same lines
// (Python 3.11).
#include "launcher/options/parsed_arguments.h"

#include <gtest/gtest.h>

#include "tests/launcher/parse_support.h"

namespace ddprun::launcher {
namespace {

using Words = std::vector<std::string>;

ParsedArguments read(const Words& args, const Variables& variables = {}) {
  const auto result = read_flags(args, environment(variables));
  if (const auto* error = std::get_if<UsageError>(&result))
    throw std::runtime_error(error->message);
  return std::get<ParsedArguments>(result);
}

std::string refusal(const Words& args, const Variables& variables = {}) {
  const auto result = read_flags(args, environment(variables));
  const auto* error = std::get_if<UsageError>(&result);
  return error == nullptr ? "accepted"
                          : std::to_string(error->exit_code) + " ddprun: " + error->message;
}

TEST(ParsedArguments, TakeBothSpellingsOfEveryFlag) {
  for (const Flag& flag : flag_table()) {
    if (flag.kind == FlagKind::kSwitch || flag.id == FlagId::kPrintCompletion) continue;
    std::string underscored(flag.name);
    for (char& c : underscored) c = c == '-' ? '_' : c;
    EXPECT_EQ(read({"--" + std::string(flag.name) + "=v", "E"}).text(flag.id), "v") << flag.name;
    EXPECT_EQ(read({"--" + underscored, "v", "E"}).text(flag.id), "v") << underscored;
    const std::string read_text = flag.from_environment ? "v" : std::string(flag.standard);
    EXPECT_EQ(read({"E"}, {{pet_variable(flag), "v"}}).text(flag.id), read_text)
        << pet_variable(flag);
  }
}

TEST(ParsedArguments, TakeBothSpellingsOfEverySwitch) {
  for (const Flag& flag : flag_table()) {
    if (flag.kind == FlagKind::kValue) continue;
    std::string underscored(flag.name);
    for (char& c : underscored) c = c == '-' ? '_' : c;
    EXPECT_FALSE(read({"E"}).is_on(flag.id)) << flag.name;
    EXPECT_TRUE(read({"--" + std::string(flag.name), "E"}).is_on(flag.id)) << flag.name;
    EXPECT_TRUE(read({"--" + underscored, "E"}).is_on(flag.id)) << underscored;
    if (flag.from_environment) {
      EXPECT_TRUE(read({"E"}, {{pet_variable(flag), "1"}}).is_on(flag.id)) << pet_variable(flag);
    }
  }
  EXPECT_TRUE(read({"-m", "E"}).is_on(FlagId::kModule));
}

TEST(ParsedArguments, EndAtTheScript) {
  const ParsedArguments given = read({"--nnodes", "1", "E", "--nnodes", "2", "-h", "--nope"});
  EXPECT_EQ(given.text(FlagId::kNnodes), "1");
  EXPECT_EQ(given.script, "E");
  EXPECT_EQ(given.script_args, (Words{"--nnodes", "2", "-h", "--nope"}));
}

TEST(ParsedArguments, DropTheFirstDoubleDashBesideTheScript) {
  EXPECT_EQ(read({"--", "E", "--", "a"}).script_args, (Words{"--", "a"}));
  EXPECT_EQ(read({"E", "--", "a"}).script_args, (Words{"a"}));
  EXPECT_EQ(read({"E", "--", "--", "a"}).script_args, (Words{"--", "a"}));
  EXPECT_EQ(read({"--standalone", "--", "E"}).script, "E");
  EXPECT_EQ(read({"--", "--", "E"}).script, "--");
  EXPECT_EQ(read({"E", "a", "--", "b"}).script_args, (Words{"a", "--", "b"}));
}

TEST(ParsedArguments, TakeALoneDashOrAnEmptyWordAsTheScript) {
  EXPECT_EQ(read({"-", "--nnodes", "2"}).script, "-");
  EXPECT_EQ(read({"", "b"}).script, "");
  EXPECT_TRUE(read({"", "b"}).has_script);
  EXPECT_FALSE(read({"--nnodes", "2"}).has_script);
}

TEST(ParsedArguments, TakeAUniquePrefix) {
  EXPECT_TRUE(read({"--stand", "E"}).is_on(FlagId::kStandalone));
  EXPECT_TRUE(read({"--no-p", "E"}).is_on(FlagId::kNoPython));
  EXPECT_TRUE(read({"--no-", "E"}).is_on(FlagId::kNoPython));
  EXPECT_EQ(read({"--log-d=x", "E"}).text(FlagId::kLogDir), "x");
  EXPECT_EQ(read({"--node-", "1", "E"}).text(FlagId::kNodeRank), "1");
}

TEST(ParsedArguments, RefuseAPrefixOfTwoSpellings) {
  EXPECT_EQ(refusal({"--nproc", "2", "E"}),
            "2 ddprun: --nproc: ambiguous, could be --nproc-per-node, --nproc_per_node");
  EXPECT_EQ(refusal({"--nproc=2", "E"}),
            "2 ddprun: --nproc: ambiguous, could be --nproc-per-node, --nproc_per_node");
  EXPECT_EQ(
      refusal({"--no", "E"}),
      "2 ddprun: --no: ambiguous, could be --node-rank, --node_rank, --no-python, --no_python");
}

TEST(ParsedArguments, TakeAllFormsOfAShortOption) {
  for (const Words& line :
       {Words{"-t3", "E"}, {"-t", "3", "E"}, {"-t=3", "E"}, {"--tee=3", "E"}, {"-mt3", "E"}}) {
    const ParsedArguments given = read(line);
    EXPECT_EQ(given.text(FlagId::kTee), "3") << line[0];
    EXPECT_EQ(given.shown(FlagId::kTee), "--tee=3");
    EXPECT_EQ(given.script, "E");
  }
  EXPECT_EQ(read({"-t==3", "E"}).text(FlagId::kTee), "=3");
  EXPECT_EQ(read({"--tee==3", "E"}).text(FlagId::kTee), "=3");
  EXPECT_EQ(read({"-role", "x", "E"}).text(FlagId::kRedirects), "ole");
}

TEST(ParsedArguments, RefuseUnknownOptions) {
  EXPECT_EQ(refusal({"--nope", "x"}), "2 ddprun: --nope: unknown option; ddprun --help lists them");
  EXPECT_EQ(refusal({"--nope=1", "x"}),
            "2 ddprun: --nope=1: unknown option; ddprun --help lists them");
  EXPECT_EQ(refusal({"-x", "E"}), "2 ddprun: -x: unknown option; ddprun --help lists them");
  EXPECT_EQ(refusal({"-mx", "E"}), "2 ddprun: -mx: unknown option; ddprun --help lists them");
}

TEST(ParsedArguments, RefuseAValueOfASwitch) {
  EXPECT_EQ(refusal({"--standalone=1", "E"}),
            "2 ddprun: --standalone=1: this option takes no value");
  EXPECT_EQ(refusal({"-m=1", "E"}).substr(0, 13), "2 ddprun: -m=");
}

TEST(ParsedArguments, RefuseAMissingValue) {
  EXPECT_EQ(refusal({"--role"}), "2 ddprun: --role: expected a value");
  EXPECT_EQ(refusal({"-t"}), "2 ddprun: --tee: expected a value");
  EXPECT_EQ(refusal({"--role", "--standalone", "E"}), "2 ddprun: --role: expected a value");
  EXPECT_EQ(refusal({"--role", "-x", "E"}), "2 ddprun: --role: expected a value");
  EXPECT_EQ(refusal({"--role", "--", "E"}), "2 ddprun: --role: expected a value");
}

TEST(ParsedArguments, TakeValuesThatOnlyLookLikeOptions) {
  EXPECT_EQ(read({"--max-restarts", "-1", "E"}).text(FlagId::kMaxRestarts), "-1");
  EXPECT_EQ(read({"--monitor-interval", "-.5", "E"}).text(FlagId::kMonitorInterval), "-.5");
  EXPECT_EQ(read({"--role", "-x y", "E"}).text(FlagId::kRole), "-x y");
  EXPECT_EQ(read({"--role=-x", "E"}).text(FlagId::kRole), "-x");
  EXPECT_EQ(read({"--role=", "E"}).text(FlagId::kRole), "");
  EXPECT_EQ(read({"--role", "-", "E"}).text(FlagId::kRole), "-");
}

TEST(ParsedArguments, LetTheLastOfSeveralCount) {
  EXPECT_EQ(read({"--nnodes=1", "--nnodes=2", "E"}).text(FlagId::kNnodes), "2");
}

TEST(ParsedArguments, LetTheCommandLineBeatTheVariable) {
  const Variables two = {{"PET_NNODES", "2"}};
  EXPECT_EQ(read({"E"}, two).shown(FlagId::kNnodes), "PET_NNODES=2");
  EXPECT_EQ(read({"--nnodes=3", "E"}, two).shown(FlagId::kNnodes), "--nnodes=3");
  EXPECT_EQ(read({"E"}).shown(FlagId::kNnodes), "--nnodes=1:1");
}

TEST(ParsedArguments, TakeAnEmptyVariableAsSet) {
  const ParsedArguments given = read({"E"}, {{"PET_NNODES", ""}});
  EXPECT_TRUE(given.has(FlagId::kNnodes));
  EXPECT_EQ(given.text(FlagId::kNnodes), "");
}

TEST(ParsedArguments, ReadTruthValuesOfSwitchVariables) {
  for (const auto* yes : {"1", "true", "TRUE", "yes", "2"}) {
    EXPECT_TRUE(read({"E"}, {{"PET_STANDALONE", yes}}).is_on(FlagId::kStandalone)) << yes;
  }
  for (const auto* no : {"0", "false", "No"}) {
    EXPECT_FALSE(read({"E"}, {{"PET_STANDALONE", no}}).is_on(FlagId::kStandalone)) << no;
  }
  for (const auto* neither : {"", "maybe", "1.0"}) {
    EXPECT_EQ(refusal({"E"}, {{"PET_STANDALONE", neither}}),
              "1 ddprun: PET_STANDALONE=" + std::string(neither) +
                  ": expected 1 or 0, true or false, yes or no");
  }
}

TEST(ParsedArguments, TakeOurOwnByTheirWholeNamesOnly) {
  EXPECT_EQ(refusal({"--quie", "E"}).substr(0, 18), "2 ddprun: --quie: ");
  EXPECT_EQ(refusal({"--exit=detailed", "E"}).substr(0, 27), "2 ddprun: --exit=detailed: ");
  // Unique with torchrun, so unique here, though ddprun has --restart-window, --use-env, --version.
  EXPECT_EQ(read({"--re=1", "E"}).text(FlagId::kRedirects), "1");
  EXPECT_EQ(read({"--signals-=SIGTERM", "E"}).text(FlagId::kSignalsToHandle), "SIGTERM");
}

TEST(ParsedArguments, TakeAllFormsOfOurOwn) {
  EXPECT_EQ(read({"--error-report=f", "E"}).text(FlagId::kErrorReport), "f");
  EXPECT_EQ(read({"--error_report", "f", "E"}).text(FlagId::kErrorReport), "f");
  EXPECT_EQ(read({"--error-report=", "E"}).text(FlagId::kErrorReport), "");
  EXPECT_EQ(read({"-mt3", "--quiet", "-r", "1", "--fold", "E", "--quiet"}).script_args,
            (Words{"--quiet"}));
  EXPECT_EQ(refusal({"--quiet=1", "E"}), "2 ddprun: --quiet=1: this option takes no value");
  EXPECT_EQ(refusal({"--error-report"}), "2 ddprun: --error-report: expected a value");
  EXPECT_EQ(refusal({"--error-report", "--fold", "E"}),
            "2 ddprun: --error-report: expected a value");
  EXPECT_EQ(refusal({"--role", "--fold", "E"}), "2 ddprun: --role: expected a value");
  EXPECT_EQ(read({"--", "--fold"}).script, "--fold");
}

// torchrun takes --local-rank=0 for --local-ranks-filter=0; the bare word is ours.
TEST(ParsedArguments, TakeLocalRankWithAValueAsTorchrunsAbbreviation) {
  const ParsedArguments given = read({"--local-rank=0,1", "E"});
  EXPECT_EQ(given.text(FlagId::kLocalRanksFilter), "0,1");
  EXPECT_FALSE(given.is_on(FlagId::kLocalRank));
  EXPECT_EQ(read({"--local_rank=2", "E"}).text(FlagId::kLocalRanksFilter), "2");
  EXPECT_EQ(read({"--local-ranks=2", "E"}).text(FlagId::kLocalRanksFilter), "2");
  EXPECT_TRUE(read({"--local-rank", "E"}).is_on(FlagId::kLocalRank));
}

TEST(ParsedArguments, ForgetALineThatEndedInItsMiddle) {
  EXPECT_EQ(refusal({"-mx", "E"}).substr(0, 15), "2 ddprun: -mx: ");  // stops within a cluster
  EXPECT_EQ(read({"--quiet", "-r1", "E"}).text(FlagId::kRedirects), "1");
}

TEST(ParsedArguments, ReadNoVariableThatTorchrunDoesNotRead) {
  EXPECT_EQ(refusal({"E"}, {{"PET_NUMA_BINDING", "node"}, {"PET_HELP", "1"}}), "accepted");
}

TEST(ParsedArguments, StopAtHelpWhereItStands) {
  EXPECT_TRUE(read({"--help", "--nope"}).has(FlagId::kHelp));
  EXPECT_TRUE(read({"-h"}).has(FlagId::kHelp));
  EXPECT_TRUE(read({"-mh"}).has(FlagId::kHelp));
  EXPECT_TRUE(read({"--h"}).has(FlagId::kHelp));
  EXPECT_TRUE(read({"--print-completion=bash", "--nope"}).has(FlagId::kPrintCompletion));
  EXPECT_TRUE(read({"--version", "--nope"}).has(FlagId::kVersion));
  EXPECT_EQ(refusal({"--nope", "--help"}).substr(0, 18), "2 ddprun: --nope: ");
}

}  // namespace
}  // namespace ddprun::launcher
