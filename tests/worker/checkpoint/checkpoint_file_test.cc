#include "worker/checkpoint/checkpoint_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/worker/checkpoint/memory_files.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/pickle.h"
#include "worker/checkpoint/storage.h"

namespace ddprun::worker {
namespace {

std::string python_file() {
  std::ifstream file(DDPRUN_PYTHON_CHECKPOINT, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const Value& at(const Value& dict, std::string_view key) { return **field_value(dict, key); }

std::vector<float> floats(const TensorValue& tensor) {
  std::vector<float> storage(tensor.storage->bytes->size() / sizeof(float));
  tensor.storage->bytes->read(std::as_writable_bytes(std::span(storage))).value();
  return storage;
}

TEST(CheckpointFile, ReadsWhatPythonWrote) {
  const auto read = read_bytes(python_file());
  ASSERT_TRUE(read) << read.error().message();
  const Value& file = read->value;
  EXPECT_EQ(field<std::int64_t>(file, "epoch").value(), 3);
  EXPECT_EQ(field<std::string>(file, "arch").value(), "tiny");
  EXPECT_EQ(field<double>(file, "best_prec1").value(), 91.5);
  const auto& state = *at(file, "state_dict").as<Value::Dict>();
  EXPECT_TRUE(state.ordered);
  std::vector<std::string> keys;
  for (const auto& [key, value] : state.entries) keys.push_back(printable_key(key));
  EXPECT_EQ(keys,
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                                      "1.running_var", "1.num_batches_tracked"}));
  EXPECT_EQ(state.find("0.weight")->as<TensorValue>()->sizes, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(state.find("1.num_batches_tracked")->as<TensorValue>()->storage->type,
            ElementType::kLong);
  const auto& optimizer = at(file, "optimizer");
  EXPECT_EQ(at(optimizer, "state").as<Value::Dict>()->entries.size(), 4U);
  EXPECT_EQ(at(file, "half").as<TensorValue>()->storage->type, ElementType::kHalf);
  EXPECT_EQ(at(file, "bfloat16").as<TensorValue>()->storage->type, ElementType::kBFloat16);
}

TEST(CheckpointFile, ReadsNumbersAndContainersOfPython) {
  const Value file = read_bytes(python_file())->value;
  std::vector<std::int64_t> numbers;
  for (const Value& item : *at(file, "numbers").items())
    numbers.push_back(*item.as<std::int64_t>());
  EXPECT_EQ(numbers, (std::vector<std::int64_t>{0, 255, 256, 65536, -1, std::int64_t{1} << 40,
                                                -(std::int64_t{1} << 40)}));
  const auto& tuple = at(file, "tuple").as<Value::Tuple>()->items;
  ASSERT_EQ(tuple.size(), 4U);
  EXPECT_TRUE(tuple[0].none());
  EXPECT_TRUE(*tuple[1].as<bool>());
  EXPECT_FALSE(*tuple[2].as<bool>());
  EXPECT_TRUE(tuple[3].as<Value::Tuple>()->items.empty());
  const Value* inner = at(file, "nested").as<Value::Dict>()->find(Value::Key(std::int64_t{1}));
  ASSERT_NE(inner, nullptr);
  EXPECT_EQ(*at(*inner, "a").items()->back().as<std::string>(), "ü");
  EXPECT_EQ(at(file, "size").items()->size(), 2U) << "torch.Size";
}

TEST(CheckpointFile, KeepsStridesAndSharedStorages) {
  const Value file = read_bytes(python_file())->value;
  const auto& transposed = *at(file, "transposed").as<TensorValue>();
  EXPECT_EQ(transposed.sizes, (std::vector<std::int64_t>{4, 3}));
  EXPECT_EQ(transposed.strides, (std::vector<std::int64_t>{1, 4}));
  const auto& shared = *at(file, "shared").items();
  EXPECT_EQ(shared[0].as<TensorValue>()->storage, transposed.storage);
  EXPECT_EQ(shared[1].as<TensorValue>()->storage, transposed.storage);
  EXPECT_EQ(shared[1].as<TensorValue>()->offset, 3);
  EXPECT_EQ(floats(transposed).at(11), 11.0F);
  EXPECT_TRUE(at(file, "scalar").as<TensorValue>()->sizes.empty());
}

Value example() {
  const auto storage = std::make_shared<const Storage>(
      Storage{ElementType::kFloat, std::make_shared<MemoryBytes>(std::string(24, '\2'))});
  Value::Dict dict{.entries = {}, .ordered = true};
  dict.set("whole", Value(TensorValue{storage, 0, {2, 3}, {3, 1}}));
  dict.set("part", Value(TensorValue{storage, 4, {2}, {1}, true}));
  dict.set("int", Value(std::int64_t{-5'000'000'000}));
  dict.set(std::int64_t{7}, Value(Value::List{{Value(), Value(true), Value(0.1), Value("ü\n")}}));
  dict.set("empty", Value(Value::Tuple{}));
  return Value(std::move(dict));
}

TEST(CheckpointFile, ReadsWhatItWrote) {
  std::string bytes;
  ASSERT_TRUE(write_checkpoint(sink_to(bytes), example()));
  const auto read = read_bytes(bytes);
  ASSERT_TRUE(read) << read.error().message();
  const auto& whole = *at(read->value, "whole").as<TensorValue>();
  const auto& part = *at(read->value, "part").as<TensorValue>();
  EXPECT_EQ(whole.storage, part.storage);
  EXPECT_TRUE(part.requires_grad);
  EXPECT_EQ(field<std::int64_t>(read->value, "int").value(), -5'000'000'000);
  std::string again;
  ASSERT_TRUE(write_checkpoint(sink_to(again), read->value)) << "also from a file";
  EXPECT_EQ(again, bytes);
  EXPECT_EQ(read_bytes(again)->fingerprint, read->fingerprint);
}

TEST(CheckpointFile, KeepsTypeAndLengthOfMemoryThatIsSeenTwice) {
  const auto memory = std::make_shared<MemoryBytes>(std::string(24, '\2'));
  Value::List list;
  for (const auto type : {ElementType::kFloat, ElementType::kInt, ElementType::kFloat}) {
    const auto storage = std::make_shared<const Storage>(Storage{type, memory});
    list.items.emplace_back(TensorValue{storage, 0, {6}, {1}});
  }
  std::string bytes;
  ASSERT_TRUE(write_checkpoint(sink_to(bytes), Value(std::move(list))));
  const auto read = read_bytes(bytes);
  ASSERT_TRUE(read) << read.error().message();
  const auto storage = [&](std::size_t i) {
    return (*read->value.items())[i].as<TensorValue>()->storage;
  };
  EXPECT_EQ(storage(0)->type, ElementType::kFloat);
  EXPECT_EQ(storage(1)->type, ElementType::kInt);
  EXPECT_EQ(storage(0), storage(2));
}

TEST(CheckpointFile, FingerprintsSeeEveryByteOfAStorage) {
  std::string bytes;
  ASSERT_TRUE(write_checkpoint(sink_to(bytes), example()));
  auto other = *example().as<Value::Dict>();
  const auto storage = std::make_shared<const Storage>(
      Storage{ElementType::kFloat, std::make_shared<MemoryBytes>(std::string(23, '\2') + '\3')});
  other.set("whole", Value(TensorValue{storage, 0, {2, 3}, {3, 1}}));
  other.set("part", Value(TensorValue{storage, 4, {2}, {1}, true}));
  std::string changed;
  ASSERT_TRUE(write_checkpoint(sink_to(changed), Value(other)));
  EXPECT_NE(read_bytes(bytes)->fingerprint, read_bytes(changed)->fingerprint);
}

TEST(CheckpointFile, RefusesToWriteWhatPythonWouldNotRead) {
  std::string bytes;
  const auto text = write_checkpoint(sink_to(bytes), Value("\xff"));
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().message(), "the text '\\xff' is not UTF-8");
  const auto storage = std::make_shared<const Storage>(
      Storage{ElementType::kFloat, std::make_shared<MemoryBytes>(std::string(8, '\0'))});
  EXPECT_FALSE(write_checkpoint(sink_to(bytes), Value(TensorValue{storage, 1, {2}, {1}})));
  Value deep;
  for (int i = 0; i < kMaxDepth + 2; ++i) deep = Value(Value::List{{deep}});
  EXPECT_FALSE(write_checkpoint(sink_to(bytes), deep));
}

TEST(CheckpointFile, NamesTheBestOneAfterTheFile) {
  EXPECT_EQ(best_name_of("/a/checkpoint.pth.tar"), "/a/model_best.pth.tar");
  EXPECT_EQ(best_name_of("run.pt"), "model_best.pt");
  EXPECT_EQ(best_name_of("/a/run"), "/a/model_best");
}

// ---- Damaged files.

std::string one_line_error(const std::string& bytes) {
  const std::string message = error_of(bytes);
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 300U);
  return message;
}

TEST(CheckpointFile, RefusesAFileCutShortAnywhere) {
  const std::string whole = python_file();
  ASSERT_EQ(error_of(whole), "no error");
  for (std::size_t percent = 0; percent < 100; ++percent) {
    EXPECT_NE(one_line_error(whole.substr(0, whole.size() * percent / 100)), "no error") << percent;
  }
}

// Tensors' bytes are compared when they are read; everything else when the file is opened.
TEST(CheckpointFile, SurvivesEveryDamagedByte) {
  const std::string whole = python_file();
  int refused = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    if (one_line_error(damaged) != "no error") ++refused;
  }
  EXPECT_GT(refused, 1000) << "else nothing was looked at";
}

// As above, but behind the CRC.
TEST(CheckpointFile, SurvivesEveryDamagedByteOfAPickle) {
  const auto zip = ZipReader::open(std::make_shared<MemorySource>(python_file())).value();
  const ZipEntry& entry = zip.entries().front();
  ASSERT_TRUE(entry.name.ends_with("/data.pkl"));
  std::string pickle(entry.bytes, '\0');
  ASSERT_TRUE(zip.read(entry, std::as_writable_bytes(std::span(pickle))));
  const FindStorage find = [](const std::string&) -> Result<std::shared_ptr<const StorageBytes>> {
    return std::make_shared<MemoryBytes>(std::string(24, '\0'));
  };
  int refused = 0;
  for (std::size_t i = 0; i < pickle.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = pickle;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const auto read = read_pickle(std::as_bytes(std::span(damaged)), find);
      if (read) continue;
      ++refused;
      EXPECT_EQ(read.error().message().find('\n'), std::string::npos) << read.error().message();
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(CheckpointFile, FindsDamagedTensors) {
  std::string bytes = file_of("x");
  bytes.replace(bytes.find(std::string(16, '\1')), 1, "\2");
  const auto zip = ZipReader::open(std::make_shared<MemorySource>(bytes)).value();
  std::vector<std::byte> storage(16);
  const auto read = zip.read(*zip.find("a/data/0"), storage);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message().find("entry 'a/data/0' is damaged: its CRC is"),
            std::string::npos);
}

}  // namespace
}  // namespace ddprun::worker
