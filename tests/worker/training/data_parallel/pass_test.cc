#include "worker/training/data_parallel/pass.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::worker {
namespace {

// The table, as it must be. Three things come after the state and the event. They are the event's
// answer, the next state, and the counters that grow by one.
constexpr const char* kTable = R"(
Idle      begin           again       Idle
Idle      arm             -           Armed     armed
Idle      shadow          -           Reducing  armed
Idle      gradient        own         Idle
Idle      backward_began  no          Idle
Idle      all_summed      -           Idle
Idle      threw           -           Idle
Idle      step_made       -           Idle
Idle      reset           -           Idle
Idle      ranks_parted    -           Parted

Armed     begin           again       Armed
Armed     arm             -           Armed     armed
Armed     shadow          -           Reducing  armed
Armed     gradient        takes_part  Reducing
Armed     backward_began  yes         Reducing
Armed     all_summed      -           Armed
Armed     threw           -           Armed
Armed     step_made       -           Armed
Armed     reset           -           Idle
Armed     ranks_parted    -           Parted

Reducing  begin           unfinished  Reducing
Reducing  arm             -           Reducing  armed
Reducing  shadow          -           Reducing  armed
Reducing  gradient        takes_part  Reducing
Reducing  backward_began  yes         Reducing
Reducing  all_summed      -           Reduced   summed
Reducing  threw           -           Failed
Reducing  step_made       -           Reducing
Reducing  reset           -           Idle
Reducing  ranks_parted    -           Parted

Reduced   begin           after_sums  Idle      steps
Reduced   arm             -           Armed     armed steps
Reduced   shadow          -           Reducing  armed steps
Reduced   gradient        warn        Reduced
Reduced   backward_began  no          Reduced
Reduced   all_summed      -           Reduced
Reduced   threw           -           Reduced
Reduced   step_made       -           Stepped   steps
Reduced   reset           -           Idle
Reduced   ranks_parted    -           Parted

Stepped   begin           after_sums  Idle
Stepped   arm             -           Armed     armed
Stepped   shadow          -           Reducing  armed
Stepped   gradient        warn        Stepped
Stepped   backward_began  no          Stepped
Stepped   all_summed      -           Stepped
Stepped   threw           -           Stepped
Stepped   step_made       -           Stepped
Stepped   reset           -           Idle
Stepped   ranks_parted    -           Parted

Failed    begin           unfinished  Failed
Failed    arm             -           Failed    armed
Failed    shadow          -           Failed    armed
Failed    gradient        takes_part  Failed
Failed    backward_began  yes         Failed
Failed    all_summed      -           Failed
Failed    threw           -           Failed
Failed    step_made       -           Failed
Failed    reset           -           Idle
Failed    ranks_parted    -           Parted

Parted    begin           unfinished  Parted
Parted    arm             -           Parted    armed
Parted    shadow          -           Parted    armed
Parted    gradient        own         Parted
Parted    backward_began  no          Parted
Parted    all_summed      -           Parted
Parted    threw           -           Parted
Parted    step_made       -           Parted
Parted    reset           -           Parted
Parted    ranks_parted    -           Parted
)";

std::string text_of(Pass::BeginResult begun) {
  switch (begun) {
    case Pass::BeginResult::kUnfinished:
      return "unfinished";
    case Pass::BeginResult::kAgain:
      return "again";
    case Pass::BeginResult::kAfterSums:
      return "after_sums";
  }
  return "?";
}

std::string text_of(Pass::Gradient gradient) {
  switch (gradient) {
    case Pass::Gradient::kTakesPart:
      return "takes_part";
    case Pass::Gradient::kOwn:
      return "own";
    case Pass::Gradient::kOwnAfterSums:
      return "warn";
  }
  return "?";
}

// "Parted" is Failed for good: reset() does not leave it.
std::string text_of(Pass pass) {
  switch (pass.state()) {
    case Pass::State::kIdle:
      return "Idle";
    case Pass::State::kArmed:
      return "Armed";
    case Pass::State::kReducing:
      return "Reducing";
    case Pass::State::kReduced:
      return "Reduced";
    case Pass::State::kStepped:
      return "Stepped";
    case Pass::State::kFailed:
      pass.reset();
      return pass.state() == Pass::State::kFailed ? "Parted" : "Failed";
  }
  return "?";
}

// Tells the pass that something has happened. Returns its answer.
using Tell = std::function<std::string(Pass&)>;

template <typename Event>
Tell without_answer(const Event& event) {
  return [event](Pass& pass) {
    (pass.*event)();
    return std::string("-");
  };
}

const std::map<std::string, Tell>& events() {
  static const std::map<std::string, Tell> all{
      {"begin", [](Pass& pass) { return text_of(pass.begin()); }},
      {"arm", without_answer(&Pass::arm)},
      {"shadow", without_answer(&Pass::shadow)},
      {"gradient", [](Pass& pass) { return text_of(pass.gradient()); }},
      {"backward_began",
       [](Pass& pass) { return std::string(pass.backward_began() ? "yes" : "no"); }},
      {"all_summed", without_answer(&Pass::all_summed)},
      {"threw", without_answer(&Pass::threw)},
      {"step_made", without_answer(&Pass::step_made)},
      {"reset", without_answer(&Pass::reset)},
      {"ranks_parted", without_answer(&Pass::ranks_parted)}};
  return all;
}

Pass after(std::initializer_list<const char*> script) {
  Pass pass;
  for (const char* event : script) events().at(event)(pass);
  return pass;
}

// How each state is reached from Idle.
const std::map<std::string, Pass>& passes() {
  static const std::map<std::string, Pass> all{
      {"Idle", Pass()},
      {"Armed", after({"arm"})},
      {"Reducing", after({"arm", "gradient"})},
      {"Reduced", after({"arm", "gradient", "all_summed"})},
      {"Stepped", after({"arm", "gradient", "all_summed", "step_made"})},
      {"Failed", after({"arm", "gradient", "threw"})},
      {"Parted", after({"ranks_parted"})}};
  return all;
}

std::string grown(const Pass& before, const Pass& after) {
  std::string names;
  if (after.armed() != before.armed()) names += " armed";
  if (after.summed() != before.summed()) names += " summed";
  if (after.steps() != before.steps()) names += " steps";
  const auto by = (after.armed() - before.armed()) + (after.summed() - before.summed()) +
                  (after.steps() - before.steps());
  return by <= 2 ? names : names + " by " + std::to_string(by);
}

TEST(Pass, FollowsTheTableInEachStateAtEachEvent) {
  std::istringstream table(kTable);
  std::set<std::pair<std::string, std::string>> walked;
  for (std::string line; std::getline(table, line);) {
    if (line.empty()) continue;
    std::istringstream words(line);
    std::string state, event, answer, next, counters;
    words >> state >> event >> answer >> next;
    for (std::string counter; words >> counter;) counters += " " + counter;
    SCOPED_TRACE(state + " " + event);
    EXPECT_TRUE(walked.emplace(state, event).second);
    Pass pass = passes().at(state);
    ASSERT_EQ(text_of(pass), state);
    EXPECT_EQ(events().at(event)(pass), answer);
    EXPECT_EQ(text_of(pass), next);
    EXPECT_EQ(grown(passes().at(state), pass), counters);
  }
  EXPECT_EQ(walked.size(), passes().size() * events().size());
}

TEST(Pass, CountsPassesAndStepsOfATraining) {
  Pass pass;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(pass.begin(), i == 1 ? Pass::BeginResult::kAgain : Pass::BeginResult::kAfterSums);
    pass.arm();
    EXPECT_EQ(pass.gradient(), Pass::Gradient::kTakesPart);
    EXPECT_EQ(pass.gradient(), Pass::Gradient::kTakesPart);
    pass.all_summed();
    pass.step_made();
    pass.step_made();  // another optimizer, for other parameters
    EXPECT_EQ(pass.armed(), i);
    EXPECT_EQ(pass.summed(), i);
    EXPECT_EQ(pass.steps(), i);
  }
}

TEST(Pass, CountsAStepThatNobodyTellsOfWhenTheNextPassBegins) {
  Pass pass = after({"begin", "arm", "gradient", "all_summed"});
  EXPECT_EQ(pass.steps(), 0U);
  pass.begin();
  EXPECT_EQ(pass.steps(), 1U);
  pass.begin();
  EXPECT_EQ(pass.steps(), 1U);
}

TEST(Pass, WarnsOnceOfAGradientOnTopOfAverages) {
  Pass pass = passes().at("Reduced");
  EXPECT_EQ(pass.gradient(), Pass::Gradient::kOwnAfterSums);
  EXPECT_EQ(pass.gradient(), Pass::Gradient::kOwn);
  pass.step_made();
  EXPECT_EQ(pass.gradient(), Pass::Gradient::kOwn);
  for (const char* event : {"begin", "arm", "gradient", "all_summed"}) events().at(event)(pass);
  EXPECT_EQ(pass.gradient(), Pass::Gradient::kOwn);
}

TEST(Pass, HearsOfItsBackwardOnceAndAgainInTheNextPass) {
  Pass pass = passes().at("Armed");
  EXPECT_TRUE(pass.backward_began());
  EXPECT_FALSE(pass.backward_began());
  EXPECT_EQ(pass.gradient(), Pass::Gradient::kTakesPart);
  EXPECT_FALSE(pass.backward_began());
  pass.all_summed();
  pass.begin();
  pass.arm();
  EXPECT_TRUE(pass.backward_began());
}

TEST(Pass, HearsOfItsBackwardBehindAGradient) {
  Pass pass = after({"arm", "gradient"});
  EXPECT_TRUE(pass.backward_began());
  EXPECT_FALSE(pass.backward_began());
}

TEST(Pass, KnowsWhetherTheProgramWasTold) {
  for (const auto& [state, before] : passes()) {
    SCOPED_TRACE(state);
    Pass pass = before;
    const bool failed = pass.state() == Pass::State::kFailed;
    EXPECT_EQ(pass.told(), failed);
    pass.tell();
    EXPECT_TRUE(pass.told());
    Pass given_up = pass;
    given_up.reset();
    EXPECT_EQ(given_up.told(), state == "Parted");
    pass.arm();
    EXPECT_EQ(pass.told(), failed);
  }
}

TEST(Pass, IsUnfinishedWhileItReducesAndWhenItHasFailed) {
  std::set<std::string> unfinished;
  for (const auto& [state, pass] : passes())
    if (pass.unfinished()) unfinished.insert(state);
  EXPECT_EQ(unfinished, (std::set<std::string>{"Failed", "Parted", "Reducing"}));
}

TEST(Pass, CountsBucketsAndSteppedParametersOfThePassAlone) {
  Pass pass = passes().at("Reducing");
  pass.bucket_done();
  pass.parameter_stepped();
  pass.parameter_stepped();
  Pass failed = pass;
  failed.threw();
  EXPECT_EQ(failed.buckets_done(), 1U);
  EXPECT_EQ(failed.parameters_stepped(), 2U);
  pass.all_summed();
  EXPECT_EQ(pass.buckets_done(), 1U);
  EXPECT_EQ(pass.parameters_stepped(), 0U);
  pass.begin();
  EXPECT_EQ(pass.buckets_done(), 1U);
  for (const auto* next : {"arm", "shadow"}) {
    Pass other = pass;
    events().at(next)(other);
    EXPECT_EQ(other.buckets_done(), 0U);
  }
}

TEST(Pass, BeginsAnewAfterResetInTheMiddleOfBackward) {
  Pass pass = after({"arm", "gradient", "threw", "reset", "begin", "arm", "gradient"});
  EXPECT_EQ(pass.state(), Pass::State::kReducing);
  pass.all_summed();
  EXPECT_EQ(pass.state(), Pass::State::kReduced);
  EXPECT_EQ(pass.armed(), 2U);
  EXPECT_EQ(pass.summed(), 1U);
}

}  // namespace
}  // namespace ddprun::worker
