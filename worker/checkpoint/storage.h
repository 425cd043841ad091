// The storages of tensors in a checkpoint: their bytes, and what fits in them.
#pragma once

#include <ddprun/value.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"

namespace ddprun::worker {

inline constexpr std::size_t kElementTypes = 12;

// Bytes of one element.
std::size_t bytes_of(ElementType type);
// "FloatStorage", …: the name in Python's module torch.
std::string_view storage_name(ElementType type);

// The bytes of a storage, in memory or in an open file.
class StorageBytes {
 public:
  StorageBytes() = default;
  StorageBytes(const StorageBytes&) = delete;
  StorageBytes& operator=(const StorageBytes&) = delete;
  StorageBytes(StorageBytes&&) = delete;
  StorageBytes& operator=(StorageBytes&&) = delete;
  virtual ~StorageBytes() = default;

  virtual std::size_t size() const = 0;
  // Fills `into`, which must have size() bytes. Fails if the file is damaged.
  virtual Result<void> read(std::span<std::byte> into) const = 0;
  // All bytes, if they are in memory; else empty.
  virtual std::span<const std::byte> memory() const { return {}; }
  // Whether nobody changes these bytes as long as this lives: they need no copy before the training
  // goes on.
  virtual bool lasts() const { return false; }
};

// Returns whether the counts are not negative, and every element lies in a storage of `elements`. A
// tensor that repeats elements (stride 0) may have kMaxRepeatedElements, or as many as its storage.
bool fits(const TensorValue& tensor, std::size_t elements);
inline constexpr std::int64_t kMaxRepeatedElements = std::int64_t{1} << 24;

}  // namespace ddprun::worker
