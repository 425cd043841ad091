// Memory that sums over TCP use while they are under way. It is kept for the next ones: fresh
// memory costs a page fault for every 4 KiB. One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace ddprun::worker {

class TcpScratch {
  struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;
  };

 public:
  // Gives its memory back at its end. The TcpScratch must outlive it.
  class Block {
   public:
    Block() = default;
    Block(TcpScratch& owner, Memory memory) : owner_(&owner), memory_(std::move(memory)) {}
    Block(Block&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), memory_(std::move(other.memory_)) {}
    Block& operator=(Block&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(memory_, other.memory_);
      return *this;
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() {
      if (owner_ != nullptr) owner_->kept_.push_back(std::move(memory_));
    }

    // Null where it was made without memory.
    std::byte* data() const { return memory_.bytes.get(); }

   private:
    TcpScratch* owner_ = nullptr;
    Memory memory_;
  };

  // At least so many bytes, of any content: what was given back last, where that is large enough.
  Block take(std::size_t bytes) {
    Memory memory;
    for (std::size_t i = kept_.size(); i-- > 0;) {
      if (kept_[i].size < bytes) continue;
      std::swap(memory, kept_[i]);
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      return {*this, std::move(memory)};
    }
    // All kept memory is too small: without one of them there are never more than were in use at
    // once.
    if (!kept_.empty()) kept_.pop_back();
    return {*this, {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes}};
  }

 private:
  std::vector<Memory> kept_;
};

}  // namespace ddprun::worker
