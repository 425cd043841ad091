#include "worker/checkpoint/state_copy.h"

#include <algorithm>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "worker/checkpoint/storage.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t kCopyAlignBytes = 64;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

class CopiedBytes : public StorageBytes {
 public:
  CopiedBytes(std::shared_ptr<const std::byte> memory, std::size_t size)
      : memory_(std::move(memory)), size_(size) {}

  std::size_t size() const override { return size_; }
  Result<void> read(std::span<std::byte> into) const override {
    std::ranges::copy(memory(), into.begin());
    return {};
  }
  std::span<const std::byte> memory() const override { return {memory_.get(), size_}; }
  bool lasts() const override { return true; }

 private:
  std::shared_ptr<const std::byte> memory_;
  std::size_t size_;
};

// The places of storages that lie in memory and may change.
using Slot = std::shared_ptr<const StorageBytes>*;
std::vector<Slot> changing_storages(std::span<PickleOutput* const> outputs) {
  std::vector<Slot> slots;
  for (PickleOutput* output : outputs) {
    for (auto& storage : output->storages) {
      if (!storage->lasts() && storage->memory().size() == storage->size())
        slots.push_back(&storage);
    }
  }
  return slots;
}

}  // namespace

void StateCopy::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return;
  memory_.reset();
  capacity_ = 0;
  memory_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(::operator new(bytes)),
                                       [](std::byte* memory) { ::operator delete(memory); });
  capacity_ = bytes;
}

void StateCopy::take(std::span<PickleOutput* const> outputs) {
  const auto slots = changing_storages(outputs);
  // Several pickles may have one storage.
  std::map<const StorageBytes*, std::size_t> places;
  std::size_t bytes = 0;
  for (const Slot slot : slots) {
    if (places.try_emplace(slot->get(), bytes).second)
      bytes += rounded_up((*slot)->size(), kCopyAlignBytes);
  }
  reserve(bytes);
  std::map<const StorageBytes*, std::shared_ptr<const StorageBytes>> copies;
  for (const auto& [storage, place] : places) {
    std::byte* const copy = memory_.get() + place;
    std::ranges::copy(storage->memory(), copy);
    copies[storage] = std::make_shared<CopiedBytes>(std::shared_ptr<const std::byte>(memory_, copy),
                                                    storage->size());
  }
  for (const Slot slot : slots) *slot = copies.at(slot->get());
}

}  // namespace ddprun::worker
