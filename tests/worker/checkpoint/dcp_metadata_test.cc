// The metadata of a distributed checkpoint, and the boxes that its pieces are. Files that
// somebody has made to do harm are refused with one line that says why.
#include "worker/checkpoint/dcp_metadata.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/checkpoint/memory_files.h"
#include "worker/checkpoint/dense_boxes.h"
#include "worker/checkpoint/object_pickle.h"
#include "worker/checkpoint/state_copy.h"

namespace ddprun::worker {
namespace {

using namespace std::string_literals;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

DcpMetadata example_metadata() {
  DcpMetadata metadata;
  metadata.tensors["model.a"] = {"float32",
                                 {3, 5},
                                 {{{{0, 0}, {1, 5}}, {"__0_0.distcp", 0, 700}},
                                  {{{1, 0}, {2, 5}}, {"__1_0.distcp", 5'000'000'000, 800}}}};
  metadata.tensors["optim.state.a.step"] = {"float32", {}, {{{{}, {}}, {"__0_0.distcp", 700, 9}}}};
  metadata.tensors["empty"] = {"bfloat16", {0, 2}, {}};
  metadata.values["epoch"] = {"__0_0.distcp", 709, 600};
  metadata.paths["model.a"] = {"model"s, "a"s};
  metadata.paths["optim.state.a.step"] = {"optim"s, "state"s, "a"s, "step"s};
  metadata.paths["empty"] = {"empty"s};
  metadata.paths["epoch"] = {"epoch"s, std::int64_t{7}};
  metadata.save_id = "0123";
  return metadata;
}

TEST(DcpMetadata, IsReadAsItWasWritten) {
  const std::string pickle = write_dcp_metadata(example_metadata());
  const auto read = read_dcp_metadata(bytes_of(pickle));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, example_metadata());
}

TEST(DcpMetadata, IsReadFromPython) {
  std::ifstream file(DDPRUN_PYTHON_METADATA, std::ios::binary);
  const std::string pickle{std::istreambuf_iterator<char>(file), {}};
  const auto read = read_dcp_metadata(bytes_of(pickle));
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_TRUE(read->tensors.contains("model.0.weight"));
  const DcpTensor& weight = read->tensors.at("model.0.weight");
  EXPECT_EQ(weight.dtype, "float32");
  EXPECT_EQ(weight.sizes, (std::vector<std::int64_t>{3, 5}));
  ASSERT_EQ(weight.chunks.size(), 3U);  // of four: one has no elements
  EXPECT_EQ(weight.chunks[2].box, (Box{{2, 0}, {1, 5}}));
  EXPECT_EQ(weight.chunks[2].bytes.file, "__2_0.distcp");
  EXPECT_GT(weight.chunks[2].bytes.length, 0U);
  EXPECT_TRUE(read->values.contains("optim.param_groups.0.lr"));
  EXPECT_EQ(read->paths.at("optim.param_groups.0.lr"),
            (DcpPath{"optim"s, "param_groups"s, std::int64_t{0}, "lr"s}));
}

// Its enums are calls of getattr, and one dtype is of the future.
TEST(DcpMetadata, IsReadFromAnOlderPython) {
  std::ifstream file(DDPRUN_OLDER_METADATA, std::ios::binary);
  const std::string pickle{std::istreambuf_iterator<char>(file), {}};
  ASSERT_NE(pickle.find("getattr"), std::string::npos);
  const auto read = read_dcp_metadata(bytes_of(pickle));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->tensors.at("model.0.weight").dtype, "float32");
  EXPECT_EQ(read->tensors.at("model.1.bias").dtype, "float4_e2m1fn_x2");
}

TEST(DcpMetadata, RefusesWhatIsNotInTheFolder) {
  const auto refusal = [](const auto& change) {
    DcpMetadata metadata = example_metadata();
    change(metadata);
    const std::string pickle = write_dcp_metadata(metadata);
    const auto read = read_dcp_metadata(bytes_of(pickle));
    return read ? std::string() : std::string(read.error().message());
  };
  for (const char* name : {"", "..", "../x", "/etc/passwd", "a/b"}) {
    const auto text = refusal([&](auto& it) { it.values["epoch"].file = name; });
    EXPECT_NE(text.find("is no name of a file in the folder"), std::string::npos) << name;
  }
  const auto outside = refusal([](auto& it) { it.tensors["model.a"].chunks[1].box.sizes[0] = 3; });
  EXPECT_EQ(outside, "a piece of 'model.a' does not lie in the tensor");
  const auto flat = refusal([](auto& it) { it.tensors["model.a"].sizes = {15}; });
  EXPECT_EQ(flat, "a piece of 'model.a' does not lie in the tensor");
  const auto large = refusal([](auto& it) { it.tensors["empty"].sizes = {1LL << 50}; });
  EXPECT_EQ(large, "empty is too large");
  const auto dtype = refusal([](auto& it) { it.tensors["empty"].dtype = "load"; });
  EXPECT_NE(dtype.find("the global 'torch load' is not read"), std::string::npos) << dtype;
}

// As that of a model on some hundred ranks.
TEST(DcpMetadata, MayHaveManyPieces) {
  constexpr std::int64_t kPieces = 160'000;
  DcpMetadata metadata;
  metadata.paths["model.layers.0.self_attention.query_projection.weight"] = {"model"s};
  DcpTensor& tensor = metadata.tensors[metadata.paths.begin()->first];
  tensor = {.dtype = "float32", .sizes = {kPieces, 2}, .chunks = {}};
  for (std::int64_t piece = 0; piece < kPieces; ++piece)
    tensor.chunks.push_back({{{piece, 0}, {1, 2}}, {"__0_0.distcp", 0, 700}});
  const std::string pickle = write_dcp_metadata(metadata);
  EXPECT_LT(pickle.size(), kPieces * std::size_t{200});
  const auto read = read_dcp_metadata(bytes_of(pickle));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, metadata);
}

// A text or a list that a pickle names often takes memory each time.
TEST(DcpMetadata, IsBounded) {
  DcpMetadata metadata = example_metadata();
  const auto refusal = [&metadata](const ObjectPickleBounds& bounds) {
    const std::string pickle = write_dcp_metadata(metadata);
    const auto read = read_dcp_metadata(bytes_of(pickle), bounds);
    return read ? std::string() : std::string(read.error().message());
  };
  EXPECT_EQ(refusal({.values = 1000}), "");
  EXPECT_NE(refusal({.values = 100}).find("more than 100 values"), std::string::npos);
  EXPECT_NE(refusal({.bytes = 100}).find("at most 100 are read"), std::string::npos);
  const std::string name(10'000, 'a');
  metadata.tensors["model.a"].chunks[0].bytes.file = name;
  metadata.tensors["model.a"].chunks[1].bytes.file = name;
  EXPECT_EQ(refusal({.values = 1000}), "more than 1000 values");
}

TEST(DcpMetadata, SurvivesEveryDamagedByte) {
  const std::string whole = write_dcp_metadata(example_metadata());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const unsigned flip : {0x01U, 0x80U, 0xFFU}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(static_cast<unsigned char>(damaged[i]) ^ flip);
      const auto read = read_dcp_metadata(bytes_of(damaged));
      if (read) continue;
      EXPECT_EQ(std::string(read.error().message()).find('\n'), std::string::npos);
    }
    EXPECT_FALSE(read_dcp_metadata(bytes_of(whole).first(i)));
  }
}

TEST(ObjectPickle, RefusesHarmInOneLine) {
  const struct {
    std::string pickle, expected;
  } hostile[] = {
      {"\x80\2cposix\nsystem\nX\2\0\0\0id\x85R."s, "the global 'posix system' is not read"},
      {"\x80\4\x8c\5posix\x8c\6system\x93."s, "the global 'posix system' is not read"},
      {"\x80\4\x8c\1\x1bN\x93."s, "a global has no name"},
      {"\x80\6N."s, "protocol 6 of pickle, only 2 to 5 are read"},
      {"\x80\4\x95\xff\xff\xff\xff\xff\xff\xff\xffN."s, "a frame is longer than the file"},
      {"\x80\4\x8c\xffx."s, "255 bytes are expected"},
      {"\x80\4X\xff\xff\xff\xff."s, "4294967295 bytes are expected"},
      {"\x80\4\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xff."s, "an int that is negative"},
      {"\x80\4\x8a\x0a\1\1\1\1\1\1\1\1\1\1."s, "an int of more than 8 bytes"},
      {"\x80\4\x94."s, "the stack is empty"},
      {"\x80\4Nr\xff\xff\xff\xff."s, "no number 4294967295"},
      {"\x80\4Nr\1\0\0\0."s, "no number 1"},
      {"\x80\4h\1."s, "the memo has no number 1"},
      {"\x80\4N)\x81."s, "what is called is no global"},
      {"\x80\4N}b."s, "what gets attributes is no object"},
      {"\x80\4NNa."s, "what is appended to is no list"},
      {"\x80\4}(Nu."s, "a dict gets a key without a value"},
      {"\x80\4\x8e\1\0\0\0\0\0\0\0x."s, "(BINBYTES8)"},
      {"\x80\4(i."s, "(INST)"},
      {"\x80\4N.N."s, "more bytes follow the end"},
      {"\x80\4."s, "it does not end with one value"},
  };
  for (const auto& [pickle, expected] : hostile) {
    const auto read = ObjectPickle::read(bytes_of(pickle), [](std::string_view) { return false; });
    ASSERT_FALSE(read) << expected;
    const std::string text(read.error().message());
    EXPECT_NE(text.find(expected), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

// A list that holds itself, and one object that a million places name: neither takes long.
TEST(ObjectPickle, ReadsCirclesWithoutFollowingThem) {
  const auto known = [](std::string_view) { return true; };
  const auto circle = ObjectPickle::read(bytes_of("\x80\2]q\0h\0a."s), known);
  ASSERT_TRUE(circle) << circle.error().message();
  EXPECT_FALSE(read_dcp_metadata(bytes_of("\x80\2]q\0h\0a."s)));
}

// By brute force: each element of the range lies in one box, at the box's place in memory.
TEST(DenseBoxes, MakeUpEveryRange) {
  const struct {
    std::vector<std::int64_t> sizes, strides;
  } tensors[] = {{{7}, {1}},
                 {{3, 5}, {5, 1}},
                 {{3, 5}, {1, 3}},
                 {{2, 3, 4}, {12, 4, 1}},
                 {{2, 3, 4}, {1, 8, 2}},
                 {{2, 1, 3}, {3, 99, 1}},
                 {{}, {}}};
  for (const auto& [sizes, strides] : tensors) {
    ASSERT_TRUE(is_dense(sizes, strides));
    const std::int64_t elements = elements_of(sizes);
    for (std::int64_t begin = 0; begin <= elements; ++begin) {
      for (std::int64_t end = begin; end <= elements; ++end) {
        std::vector<int> seen(static_cast<std::size_t>(elements));
        const auto boxes = boxes_of({sizes, strides, begin, end});
        EXPECT_LE(boxes.size(), std::max<std::size_t>(1, 2 * sizes.size()));
        for (const BoxInRow& each : boxes) {
          const std::int64_t count = elements_of(each.box.sizes);
          for (std::int64_t i = 0; i < count; ++i) {
            std::int64_t rest = i, place = 0, in_row = 0;
            for (std::size_t d = sizes.size(); d-- > 0;) {
              const std::int64_t index = rest % each.box.sizes[d];
              rest /= each.box.sizes[d];
              if (sizes[d] > 1) place += (each.box.offsets[d] + index) * strides[d];
              in_row += index * each.strides[d];
            }
            EXPECT_EQ(place, begin + each.start + in_row);
            ++seen.at(static_cast<std::size_t>(place));
          }
        }
        for (std::int64_t i = 0; i < elements; ++i)
          EXPECT_EQ(seen[static_cast<std::size_t>(i)], i >= begin && i < end ? 1 : 0);
      }
    }
  }
  EXPECT_FALSE(is_dense({3, 5}, {6, 1}));
  EXPECT_FALSE(is_dense({3, 5}, {0, 1}));
}

TEST(DenseBoxes, HaveInCommonWhatBothHave) {
  EXPECT_EQ(common_box({{0, 2}, {3, 3}}, {{1, 0}, {4, 3}}), (Box{{1, 2}, {2, 1}}));
  EXPECT_EQ(common_box({{0}, {3}}, {{3}, {1}}), std::nullopt);
  EXPECT_EQ(common_box({{}, {}}, {{}, {}}), (Box{{}, {}}));
}

// The pickles keep what the memory was, and one storage of two pickles is copied once.
TEST(StateCopy, KeepsBytesAndItsMemory) {
  const auto large = std::make_shared<MemoryBytes>(std::string(20 << 20, 'a'));
  const auto small = std::make_shared<MemoryBytes>("bytes");
  PickleOutput first{.bytes = "", .storages = {large, small}};
  PickleOutput second{.bytes = "", .storages = {small}};
  PickleOutput* const both[] = {&first, &second};
  StateCopy copy;
  copy.take(both);
  const std::size_t capacity = copy.capacity();
  EXPECT_GE(capacity, std::size_t{20} << 20);
  EXPECT_NE(first.storages[0], std::shared_ptr<const StorageBytes>(large));
  EXPECT_EQ(first.storages[1], second.storages[0]);
  for (const auto& [storage, original] :
       {std::pair(first.storages[0], large), std::pair(first.storages[1], small)}) {
    ASSERT_EQ(storage->size(), original->size());
    EXPECT_NE(storage->memory().data(), original->memory().data());
    EXPECT_TRUE(std::ranges::equal(storage->memory(), original->memory()));
    EXPECT_TRUE(storage->lasts());
  }
  first.storages = {large};
  second.storages.clear();
  copy.take(both);
  EXPECT_EQ(copy.capacity(), capacity);
}

}  // namespace
}  // namespace ddprun::worker
