// The weights of a file that are taken, and how their names become the module's. Files of real
// frameworks are those of other_frameworks_test.py. Here are mixtures that no test there makes.
#include "worker/checkpoint/weights_key.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/worker/checkpoint/memory_files.h"

namespace ddprun::worker {
namespace {

using namespace std::string_literals;
using Names = std::vector<std::string>;

// One float each, of its own storage.
Value tensor() {
  static int storages = 0;
  auto storage = std::make_shared<Storage>();
  storage->bytes = std::make_shared<MemoryBytes>(std::string(4, static_cast<char>(++storages)));
  return Value(TensorValue{storage, 0, {1}, {1}, false});
}

Value state(const Names& names) {
  Value::Dict dict;
  for (const auto& name : names) dict.set(name, tensor());
  return Value(std::move(dict));
}

Value file(std::vector<std::pair<std::string, Value>> entries) {
  Value::Dict dict;
  for (auto& [key, value] : entries) dict.set(key, std::move(value));
  return Value(std::move(dict));
}

// The module is "a.weight" and "b.weight", but for `names`.
WeightSlots module(const Names& names = {"a.weight", "b.weight"}) {
  WeightSlots slots;
  for (const auto& name : names) slots.emplace(name, WeightSlot{{1}, nullptr});
  return slots;
}

std::string how(const Value& value, const LoadOptions& options = {},
                const WeightSlots& slots = module()) {
  const auto found = find_weights(value, slots, options);
  return found ? found->key + ": " + describe(found->named.change) : found.error().message();
}

std::string renamed(const Names& names, const WeightSlots& slots = module()) {
  return how(state(names), {}, slots);
}

TEST(WeightNames, AnyOrderOfWrappersIsStripped) {
  for (const std::string start :
       {"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module.",
        "_forward_module._orig_mod.module.", "model.", "net.module.", "model._orig_mod.",
        "_fsdp_wrapped_module._checkpoint_wrapped_module."}) {
    EXPECT_EQ(renamed({start + "a.weight", start + "b.weight"}),
              ": '" + start + "' was stripped from its keys");
  }
}

TEST(WeightNames, WrappersInTheMiddleAreTakenOut) {
  EXPECT_EQ(renamed({"a._orig_mod.weight", "b.weight"}),
            ": '_orig_mod.' was taken out of its keys");
  EXPECT_EQ(
      renamed({"module.a._checkpoint_wrapped_module.weight", "module.b.weight"}),
      ": 'module.' was stripped from its keys, '_checkpoint_wrapped_module.' was taken out of "
      "its keys");
  EXPECT_EQ(renamed({"a.module.weight", "b.module._orig_mod.weight"}),
            ": '_orig_mod.', 'module.' was taken out of its keys");
}

TEST(WeightNames, AModuleWhoseNamesHaveAWrapperIsServedToo) {
  EXPECT_EQ(renamed({"a.weight"}, module({"module.a.weight"})),
            ": 'module.' was added to its keys");
  EXPECT_EQ(renamed({"_orig_mod.a.weight"}, module({"module.a.weight"})),
            ": '_orig_mod.' was stripped from its keys, 'module.' was added to its keys");
  EXPECT_EQ(renamed({"module.a.weight"}, module({"module.a.weight"})), ": ");
}

TEST(WeightNames, TwoNamesNeverBecomeOne) {
  EXPECT_NE(renamed({"a._orig_mod.weight", "a.weight", "b.weight"}).find("not the module's"),
            std::string::npos);
}

TEST(WeightNames, OneNameIsEnoughForTiedWeights) {
  const int memory = 0;
  WeightSlots tied = module();
  for (auto& [name, slot] : tied) slot.tensor = &memory;
  EXPECT_EQ(renamed({"a.weight"}, tied), ": ");
  EXPECT_EQ(renamed({"module.b.weight"}, tied), ": 'module.' was stripped from its keys");
  EXPECT_NE(renamed({"c.weight"}, tied).find("2 keys are missing"), std::string::npos);
  EXPECT_NE(renamed({"a.weight"}).find("1 keys are missing: 'b.weight'"), std::string::npos);
}

TEST(WeightNames, AFileMayLackTheCountsOfBatchNorm) {
  const WeightSlots slots = module({"a.weight", "a.num_batches_tracked"});
  EXPECT_EQ(renamed({"a.weight"}, slots), ": ");
  EXPECT_EQ(renamed({"module.a.weight"}, slots), ": 'module.' was stripped from its keys");
  EXPECT_NE(renamed({"a.num_batches_tracked"}, slots).find("1 keys are missing: 'a.weight'"),
            std::string::npos);
}

TEST(WeightNames, BothListsAreShortened) {
  Names many;
  for (int i = 0; i < 1000; ++i) many.push_back("x." + std::to_string(i));
  const std::string message = renamed(many);
  EXPECT_NE(message.find("2 keys are missing: 'a.weight', 'b.weight'; 1000 keys are not the "
                         "module's: 'x.0', 'x.1', 'x.10', …"),
            std::string::npos)
      << message;
}

TEST(WeightNames, StrictNamesAreTheModulesAsTheyAre) {
  EXPECT_NE(how(state({"module.a.weight", "module.b.weight"}), {.strict_prefix = true})
                .find("2 keys are missing"),
            std::string::npos);
}

TEST(WeightsKey, EachContainerIsFound) {
  const Names names{"a.weight", "b.weight"};
  for (const std::string key : {"state_dict", "model_state_dict", "model", "module", "net",
                                "network", "weights", "anything", "model_ema"}) {
    EXPECT_EQ(how(file({{key, state(names)}, {"epoch", Value(3)}})), key + ": ");
  }
  EXPECT_EQ(how(file({{"app", file({{"model", state(names)}})}})), "app.model: ");
  EXPECT_EQ(how(state(names)), ": ");
}

TEST(WeightsKey, ThePlainOneIsTakenBesideAnAverage) {
  const Names names{"a.weight", "b.weight"};
  for (const auto& [plain, average] : std::vector<std::pair<std::string, std::string>>{
           {"model", "model_ema"},
           {"state_dict", "state_dict_ema"},
           {"params", "params_ema"},
           {"model_state_dict", "best_model_state_dict"}}) {
    const Value both = file({{average, state(names)}, {plain, state(names)}});
    const auto found = find_weights(both, module(), {});
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(found->key, plain);
    EXPECT_EQ(found->others, Names{average});
    EXPECT_EQ(how(both, {.weights_key = average}), average + ": ");
  }
  EXPECT_EQ(how(file({{"model", state(names)}, {"ema", file({{"module", state(names)}})}})),
            "model: ");
}

TEST(WeightsKey, TwoThatFitAreNeverGuessed) {
  const Names names{"a.weight", "b.weight"};
  for (const auto& [one, other] : std::vector<std::pair<std::string, std::string>>{
           {"student", "teacher"}, {"model", "net"}, {"state_dict", "model"}}) {
    const std::string message = how(file({{one, state(names)}, {other, state(names)}}));
    EXPECT_NE(message.find("'" + one + "', '" + other +
                           "' fit the module, and are not the same: "
                           "weights_key (--weights-key) selects one"),
              std::string::npos)
        << message;
  }
  const Value same = state(names);
  EXPECT_EQ(how(file({{"state_dict", same}, {"model", same}})), "state_dict: ")
      << "the same tensors";
}

TEST(WeightsKey, APartOfTheNamesIsTakenOnlyIfItIsAskedFor) {
  const Value lit = file({{"state_dict", state({"net.a.weight", "net.b.weight", "loss.weight"})}});
  const std::string message = how(lit);
  EXPECT_NE(message.find("3 keys are not the module's: 'loss.weight'"), std::string::npos)
      << message;
  EXPECT_NE(message.find("'state_dict.net': weights_key"), std::string::npos) << message;
  EXPECT_EQ(how(lit, {.weights_key = "state_dict.net"}), "state_dict.net: ");
}

TEST(WeightsKey, AKeyThatIsNotThereNamesThoseThatAre) {
  const Value both = file({{"g", state({"a.weight"})}, {"d", state({"b.weight"})}});
  EXPECT_EQ(how(both, {.weights_key = "h\n"}),
            "weights_key (--weights-key) h\\x0a: no weights there; there are 'g', 'd'");
  EXPECT_EQ(how(file({{"epoch", Value(1)}}), {.weights_key = "model"}),
            "weights_key (--weights-key) model: no weights there; no state_dict among its keys: "
            "'epoch' (int)");
}

// ---- Parts that a reader passes over.

std::string passed_over(const std::string& pickle) {
  const auto read =
      read_checkpoint(std::make_shared<MemorySource>(file_of(pickle)), Objects::kPassOver);
  if (!read) return read.error().message();
  const auto* object = read->value.as<Value::Object>();
  return object != nullptr ? "object: " + *object->reason : std::string(read->value.type_name());
}

TEST(ObjectsPassedOver, AreNeverCalled) {
  const std::string of_system =
      "object: the global 'posix system' is not read: nothing in a checkpoint is executed";
  EXPECT_EQ(passed_over("\x80\2cposix\nsystem\n."s), of_system);
  EXPECT_EQ(passed_over("\x80\2cposix\nsystem\nX\2\0\0\0id\x85R."s), of_system);
  EXPECT_EQ(passed_over("\x80\2cposix\nsystem\n)\x81}K\1K\2sb."s), of_system);
  EXPECT_EQ(passed_over("\x80\2cposix\nsystem\n)R(K\1K\2u."s), of_system) << "items";
  EXPECT_EQ(passed_over("\x80\2cposix\nsystem\n)R(K\1K\2e."s), of_system) << "appends";
  EXPECT_EQ(passed_over("\x80\2ctorch._utils\n_rebuild_parameter\n(cposix\nsystem\n)R\x89}tR."s),
            of_system);
  EXPECT_EQ(passed_over("\x80\2}q\0)Ns."s), "object: a dict has a key that is neither int nor str");
  EXPECT_EQ(passed_over("\x80\2\x8a\x09\1\1\1\1\1\1\1\1\1."s),
            "object: an int of 9 bytes, at most 8 are read");
  EXPECT_EQ(passed_over("\x80\2ctorch._utils\n_rebuild_tensor_v2\n."s).substr(0, 7), "object:");
}

TEST(ObjectsPassedOver, BoundsStay) {
  EXPECT_NE(passed_over("\x80\2"s + std::string(5'000'000, ']') + ".").find("more than 4194304"),
            std::string::npos);
  EXPECT_NE(passed_over("\x80\2cposix\nsystem\n"s + std::string(1000, ')') + ".").find("one value"),
            std::string::npos);
  EXPECT_NE(passed_over("\x80\2cposix\nsystem\n\x81."s).find("the stack is empty"),
            std::string::npos);
  EXPECT_NE(passed_over("\x80\2cposix\nsystem\n]R."s).find("no tuple"), std::string::npos);
  EXPECT_NE(passed_over("\x80\2\x8a\xff."s).find("bytes are expected"), std::string::npos);
  EXPECT_NE(passed_over("\x80\2(cposix\nsystem\no."s).find("(OBJ) is not read"), std::string::npos);
}

}  // namespace
}  // namespace ddprun::worker
