#include "worker/checkpoint/state_copy.h"

#include <algorithm>
#include <map>
#include <new>
#include <utility>

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
  // Several pickles may have one storage, or share its memory.
  std::map<const StorageBytes*, std::size_t> places;
  std::size_t bytes = 0;
  const auto moves = [](const StorageBytes& storage) {
    return !storage.lasts() && storage.memory().size() == storage.size();
  };
  for (const PickleOutput* output : outputs) {
    for (const auto& storage : output->storages) {
      if (!moves(*storage) || !places.try_emplace(storage.get(), bytes).second) continue;
      bytes += rounded_up(storage->size(), kCopyAlignBytes);
    }
  }
  reserve(bytes);
  for (const auto& [storage, place] : places)
    std::ranges::copy(storage->memory(), memory_.get() + place);
  std::map<const StorageBytes*, std::shared_ptr<const StorageBytes>> copied;
  for (PickleOutput* output : outputs) {
    for (auto& storage : output->storages) {
      const auto place = places.find(storage.get());
      if (place == places.end()) continue;
      auto& copy = copied[storage.get()];
      if (copy == nullptr)
        copy = std::make_shared<CopiedBytes>(
            std::shared_ptr<const std::byte>(memory_, memory_.get() + place->second),
            storage->size());
      storage = copy;
    }
  }
}

}  // namespace ddprun::worker
