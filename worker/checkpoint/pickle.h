// A subset of Python's pickle format, protocol 2. torch.save writes it for None, bool, int, float,
// str, list, tuple, dict, collections.OrderedDict, collections.Counter, torch.Size and dense
// tensors. There is nothing else (CPython 3.11, Lib/pickletools.py; PyTorch 2.11,
// torch/_weights_only_unpickler.py). A pickle is a program that may call any function. Here nothing
// is looked up and nothing is called. A global that is not in the list is an error that names it.
// So is an opcode that is not of the subset. Every length is compared with the bytes that are
// there, and memory is bounded. A reader may be told to pass over such an object
// (Objects::kPassOver). Pure.
#pragma once

#include <ddprun/value.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker/checkpoint/storage.h"

namespace ddprun::worker {

// Larger pickles are not read. That of a model of 100,000 tensors has 20 MB.
inline constexpr std::size_t kMaxPickleBytes = std::size_t{64} << 20;
// Values that the opcodes may make.
inline constexpr std::size_t kMaxPickleValues = std::size_t{1} << 22;
// The limits of the tree that comes of it. A pickle may name one list a thousand times, and each
// counts.
inline constexpr std::size_t kMaxTreeBytes = std::size_t{256} << 20;
inline constexpr int kMaxDepth = 100;
inline constexpr std::size_t kMaxDimensions = 64;  // of a tensor

// The bytes of the storage that has this key: an entry of the zip file.
using FindStorage =
    std::function<Result<std::shared_ptr<const StorageBytes>>(const std::string& key)>;

// The treatment of an object whose class is not in the list. Neither way looks anything up or calls
// anything.
enum class Objects : std::uint8_t {
  kRefuse,    // the file is refused
  kPassOver,  // a Value::Object stands for it, and for each int of more than 8 bytes
};

// Errors: kProtocol, or kLimit where a bound is passed. One line; names the byte.
Result<Value> read_pickle(std::span<const std::byte> pickle, const FindStorage& find_storage,
                          Objects objects = Objects::kRefuse);

struct PickleOutput {
  std::string bytes;
  // Storage i has the key "i".
  std::vector<std::shared_ptr<const StorageBytes>> storages;
};

// Errors: kInvalidArgument for a text that is not UTF-8, which Python would refuse. Also for a
// tensor that does not lie in its storage. kLimit for a tree deeper than kMaxDepth.
Result<PickleOutput> write_pickle(const Value& value);

}  // namespace ddprun::worker
