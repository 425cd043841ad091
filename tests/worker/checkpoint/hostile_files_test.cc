// Files that somebody has made to do harm: each is refused with one line that says why. Under
// AddressSanitizer, too.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/worker/checkpoint/memory_files.h"
#include "worker/checkpoint/pickle.h"
#include "worker/checkpoint/zip_format.h"

namespace ddprun::worker {
namespace {

using namespace std::string_literals;

struct Hostile {
  std::string what;
  std::string pickle;
  std::string expected;  // a part of the error
};

// A tensor with these sizes and strides, as opcodes, over the storage of 16 bytes.
std::string tensor(const std::string& offset, const std::string& sizes,
                   const std::string& strides) {
  return "\x80\2ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
         "X\1\0\0\0000X\3\0\0\0cpuK\4tQ"s +
         offset + sizes + strides + "\x89" + "ccollections\nOrderedDict\n)RtR.";
}

std::string storage_of(const std::string& type, const std::string& key, const std::string& count) {
  return "\x80\2(X\7\0\0\0storagectorch\n"s + type + "\nX\1\0\0\0"s + key + "X\3\0\0\0cpu"s +
         count + "tQ.";
}

std::string nested(std::string open, int depth, const std::string& close) {
  std::string pickle = "\x80\2";
  for (int i = 0; i < depth; ++i) pickle += open;
  pickle += "N";
  for (int i = 0; i < depth; ++i) pickle += close;
  return pickle + ".";
}

// l = [l, l] of the list before, 40 times: 2^40 values in 200 bytes.
std::string billion_laughs() {
  std::string pickle = "\x80\2(]q\0"s;
  for (int i = 1; i <= 40; ++i) {
    const std::string before(1, static_cast<char>(i - 1));
    pickle += "](h" + before + "h" + before + "eq" + std::string(1, static_cast<char>(i));
  }
  return pickle + "t.";
}

const std::string kBig = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";

const std::vector<Hostile>& pickles() {
  static const std::vector<Hostile> kAll{
      {"a call of os.system", "\x80\2cposix\nsystem\nX\2\0\0\0id\x85R."s,
       "the global 'posix system' is not read: nothing in a checkpoint is executed"},
      {"eval", "\x80\2c__builtin__\neval\nX\1\0\0\0001\x85R."s, "'__builtin__ eval'"},
      {"a global with a name for a terminal", "\x80\2c\x1b[2J\nx\n."s, "'\\x1b[2J x'"},
      {"a name without an end", "\x80\2c"s + std::string(1000, 'a'), "too long"},
      {"an old way to call", "\x80\2(cposix\nsystem\no."s, "'posix system'"},
      {"INST", "\x80\2(iposix\nsystem\n."s, "the opcode 0x69 (INST) is not read"},
      {"OBJ", "\x80\2(o."s, "(OBJ)"},
      {"NEWOBJ", "\x80\2))\x81."s, "the opcode 0x81 (NEWOBJ) is not read"},
      {"STACK_GLOBAL", "\x80\2NN\x93."s, "(STACK_GLOBAL)"},
      {"EXT1", "\x80\2\x82\1."s, "(EXT1)"},
      {"an opcode of nobody", "\x80\2\xff."s, "the opcode 0xff (?) is not read"},
      {"a later protocol", "\x80\4N."s, "protocol 4 of pickle, only 2 is read"},
      {"a text of 4 GiB", "\x80\2X\xff\xff\xff\xff."s, "4294967295 bytes are expected, 1 are left"},
      {"an int of 255 bytes", "\x80\2\x8a\xff."s, "an int of 255 bytes, at most 8 are read"},
      {"the memo's number 4 billion", "\x80\2Nr\xff\xff\xff\xff."s, "no number 4294967295"},
      {"a memo that is empty", "\x80\2h\5."s, "the memo has no number 5"},
      {"an empty stack", "\x80\2."s, "it does not end with one value"},
      {"a pop from nothing", "\x80\2R."s, "the stack is empty"},
      {"a pop past a mark", "\x80\2N(\x85."s, "the stack is empty"},
      {"a tuple without a mark", "\x80\2t."s, "there is no mark"},
      {"no end", "\x80\2N"s, "1 bytes are expected, 0 are left"},
      {"two ends", "\x80\2N.N."s, "more bytes follow the end"},
      {"keys without a value", "\x80\2}(Nu."s, "a key without a value"},
      {"a key twice", "\x80\2}(K\1NK\1Nu."s, "a dict has the key '1' more than once"},
      {"a tuple as a key", "\x80\2})Ns."s, "neither int nor str"},
      {"a call of a list", "\x80\2])R."s, "what is called is no global"},
      {"a tensor's function with nothing", "\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R."s,
       "with these 0 arguments is not read"},
      {"attributes for a list", "\x80\2]}b."s, "only an OrderedDict may have attributes"},
      {"a function as a value", "\x80\2ctorch._utils\n_rebuild_tensor_v2\n."s,
       "stands where a value is expected"},
      {"a storage as a value", storage_of("FloatStorage", "0", "K\4"), "a storage stands"},
      {"a storage of more elements", storage_of("FloatStorage", "0", "K\5"),
       "has 16 bytes, which are not 5 elements of a FloatStorage"},
      {"a storage of a wider type", storage_of("DoubleStorage", "0", "K\4"), "not 4 elements"},
      {"a storage of no type", storage_of("QInt8Storage", "0", "K\4"), "'torch QInt8Storage'"},
      {"a storage that is not there", storage_of("FloatStorage", "9", "K\4"),
       "no entry for storage '9'"},
      {"depth", nested("]", 1000, "a"), "more than 100 deep"},
      {"depth without a memo of tuples", "\x80\2)"s + std::string(100'000, '\x85') + ".",
       "more than 100 deep"},
      {"a list in itself", "\x80\2]q\0h\0a."s, "contain themselves"},
      {"a billion laughs", billion_laughs(), "the values take more than 256 MiB"},
      {"marks", "\x80\2"s + std::string(5'000'000, '(') + ".", "too many marks"},
      {"values", "\x80\2"s + std::string(5'000'000, ']') + ".", "more than 4194304 values"},
      {"a tensor past its storage", tensor("K\0"s, "K\5\x85", "K\1\x85"), "does not lie in its"},
      {"a tensor before its storage", tensor("J\xff\xff\xff\xff", "K\1\x85", "K\1\x85"),
       "does not lie in its storage"},
      {"a stride that overflows", tensor("K\0"s, "K\3\x85", kBig + "\x85"), "does not lie in its"},
      {"sizes that overflow", tensor("K\0"s, kBig + kBig + "\x86", "K\0K\0\x86"s),
       "does not lie in its storage"},
      {"a tensor of 2^40 repeated elements",
       tensor("K\0"s, "\x8a\x06\0\0\0\0\0\1\x85"s, "K\0\x85"s), "does not lie in its storage"},
      {"fewer strides than sizes", tensor("K\0"s, "K\2K\2\x86", "K\1\x85"), "does not lie in its"},
      {"a size that is a text", tensor("K\0"s, "X\1\0\0\0a\x85"s, "K\1\x85"), "other values than"},
  };
  return kAll;
}

TEST(HostilePickle, IsRefusedInOneLine) {
  ASSERT_GE(pickles().size(), 20U);
  for (const Hostile& hostile : pickles()) {
    const std::string message = error_of(file_of(hostile.pickle));
    EXPECT_NE(message.find(hostile.expected), std::string::npos) << hostile.what << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << hostile.what;
    EXPECT_EQ(message.find('\x1b'), std::string::npos) << hostile.what;
    EXPECT_LT(message.size(), 400U) << hostile.what;
  }
}

TEST(HostilePickle, TheFilesAreOtherwiseGood) {
  EXPECT_EQ(error_of(file_of("\x80\2N."s)), "no error");
  EXPECT_EQ(error_of(file_of(tensor("K\0"s, "K\4\x85", "K\1\x85"))), "no error");
  EXPECT_EQ(error_of(file_of(tensor("K\1"s, "K\3K\1\x86", "K\1K\1\x86"))), "no error");
  EXPECT_EQ(error_of(file_of(nested("]", 99, "a"))), "no error");
}

// ---- The container.

// Writes a number over the record that begins with the signature: the `nth` of them.
template <typename Number>
std::string patched(std::string file, std::uint32_t signature, std::size_t offset, Number number,
                    int nth = 0) {
  std::string mark;
  zip::append(mark, signature);
  std::size_t at = file.find(mark);
  for (int i = 0; i < nth; ++i) at = file.find(mark, at + 1);
  std::string bytes;
  zip::append(bytes, number);
  return file.replace(at + offset, bytes.size(), bytes);
}

TEST(HostileZip, IsRefusedInOneLine) {
  const std::string good = file_of("\x80\2N."s);
  const auto kCentral = zip::kCentralSignature;
  const std::vector<std::pair<std::string, std::string>> files{
      {"", "no zip file: it is too short"},
      {std::string(5000, 'x'), "no zip file, or it is cut short"},
      {"\x80\x02\x8A\x0A" + std::string(60, 'x'), "torch.load(old), new)"},
      {"\x08" + std::string(7, '\0') + "{" + std::string(60, ' '), "it is a safetensors file"},
      {good + "more", "no zip file, or it is cut short"},
      {patched(good, kCentral, 10, std::uint16_t{8}), "is compressed (method 8)"},
      {patched(good, kCentral, 24, std::uint32_t{1U << 30U}), "is compressed (method 0)"},
      {patched(good, kCentral, 8, std::uint16_t{1}), "is encrypted"},
      {patched(good, kCentral, 28, std::uint16_t{60'000}), "the directory is damaged"},
      {patched(good, kCentral, 28, std::uint16_t{0}), "an entry's name has 0 bytes"},
      {patched(good, kCentral, 42, std::uint32_t{0xFFFF'FF00}), "does not lie in the file"},
      {patched(good, kCentral, 42, std::uint32_t{7}), "has no header of its own"},
      // The second entry lies where the first does: its header has the first one's name.
      {patched(good, kCentral, 42, std::uint32_t{0}, 1), "has"},
      {patched(good, zip::kEndSignature, 10, std::uint16_t{3}), "more entries than it says"},
      {patched(good, zip::kEndSignature, 10, std::uint16_t{5}), "the directory"},
      {patched(good, zip::kEndSignature, 12, std::uint32_t{0x7FFF'FFFF}), "the directory does not"},
      {patched(good, zip::kEndSignature, 16, std::uint32_t{0x7FFF'FFFF}), "the directory does not"},
      {patched(patched(good, zip::kEndSignature, 10, std::uint16_t{0xFFFF}), zip::kEnd64Signature,
               32, std::uint64_t{1} << 60U),
       "entries, at most 1000000 are read"},
      {patched(patched(good, zip::kEndSignature, 10, std::uint16_t{0xFFFF}),
               zip::kLocator64Signature, 8, ~std::uint64_t{0}),
       "is not where its locator says"},
      {zip_of({{"a/data.pkl", "N."}, {"a/data.pkl", "N."}}), "two entries are named 'a/data.pkl'"},
      {zip_of({{"a/other", "N."}}), "no entry 'data.pkl'"},
      {zip_of({{"data.pkl", "N."}}), "no entry 'data.pkl'"},
      {zip_of({{"a/data.pkl", "N."}, {"a/byteorder", "big"}}), "its byteorder is 'big'"},
      {zip_of({{"a/data.pkl", "N."}, {"a/byteorder", std::string(100, 'b')}}), "at most 64"},
  };
  ASSERT_GE(files.size(), 20U);
  for (const auto& [file, expected] : files) {
    const std::string message = error_of(file);
    EXPECT_NE(message.find(expected), std::string::npos) << expected << ", but: " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

// Both entries are whole, and named as in the directory, but one lies in the bytes of the other.
TEST(HostileZip, EntriesThatOverlapAreRefused) {
  const std::string inner = zip_of({{"a/b", std::string(1000, 'x')}});
  std::string file = zip_of({{"a/data.pkl", inner}, {"a/b", "y"}});
  const std::size_t in_first = file.find("PK\3\4"s, 1);
  ASSERT_LT(in_first, inner.size());
  file = patched(file, zip::kCentralSignature, 42, static_cast<std::uint32_t>(in_first), 2);
  file = patched(file, zip::kCentralSignature, 20, std::uint32_t{1000}, 2);
  file = patched(file, zip::kCentralSignature, 24, std::uint32_t{1000}, 2);
  EXPECT_EQ(error_of(file), "entries overlap");
}

// A source of any size that holds zeros but for what was written: nothing of 5 GiB is in memory.
TEST(Zip, EntriesAbove4GibHaveZip64Fields) {
  constexpr std::uint64_t kHuge = std::uint64_t{5} << 30U;
  std::string directory = file_of("N.");
  const auto zip = ZipReader::open(std::make_shared<MemorySource>(directory)).value();
  // The numbers of the first entry, moved into a zip64 field.
  std::string extra;
  zip::append(extra, zip::kZip64Tag);
  zip::append(extra, std::uint16_t{16});
  zip::append(extra, kHuge);
  zip::append(extra, kHuge);
  const std::size_t at = directory.find("PK\1\2"s);
  const std::size_t name = 10;
  directory.insert(at + zip::kCentralBytes + name, extra);
  directory = patched(directory, zip::kCentralSignature, 20, zip::kIn64);
  directory = patched(directory, zip::kCentralSignature, 24, zip::kIn64);
  directory = patched(directory, zip::kCentralSignature, 30, static_cast<std::uint16_t>(20));
  const std::size_t bytes = directory.find("PK\6\6"s) - at;
  directory = patched(directory, zip::kEndSignature, 12, static_cast<std::uint32_t>(bytes));
  EXPECT_EQ(error_of(directory),
            "entry 'a/data.pkl' has 5368709120 bytes, which do not lie in the file");
}

TEST(Zip, BytesBeginAtMultiplesOf64) {
  const auto zip = ZipReader::open(std::make_shared<MemorySource>(file_of("N."))).value();
  for (const ZipEntry& entry : zip.entries()) EXPECT_EQ(entry.offset % kZipAlignBytes, 0U);
}

}  // namespace
}  // namespace ddprun::worker
