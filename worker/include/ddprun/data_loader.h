// Batches of this rank's samples, read ahead by threads while the program trains. They come in the
// sampler's order, whatever the threads do. They are those of PyTorch's DataLoader with its
// DistributedSampler, the same batch size and drop_last.
//
//   DistributedSampler sampler(dataset.size(), ranks.world_size(), ranks.rank());
//   BatchLoader loader(dataset, sampler, 32);
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : loader) train(batch);
//   }
//
// A dataset is any class with `Batch batch(const BatchRequest&) const`. It is called from several
// threads at once. An error that it throws comes out of the loop, at the place of its batch. Random
// augmentation takes its seed from epoch and index, never from a generator that threads share. Then
// it does not depend on the threads either.
//
// Dataset and sampler must outlive the loader. One thread uses it; one loop at a time.
#pragma once

#include <ddprun/sampler.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace ddprun {

namespace worker {

// The threads of a BatchLoader.
class OrderedPrefetch;

// Begins to read items 0 … count-1 in `threads` threads. At most `ahead` of them are read
// beyond those that next_item() has given. Without threads next_item() itself reads. All that
// `read` refers to must outlive the result.
std::shared_ptr<OrderedPrefetch> read_ahead(
    std::size_t count, std::size_t threads, std::size_t ahead,
    std::function<std::shared_ptr<void>(std::size_t number)> read);

// The next item; null after the last one. Throws what `read` threw for this item, and nothing
// follows it.
std::shared_ptr<void> next_item(OrderedPrefetch& prefetch);

}  // namespace worker

// The samples that a dataset is asked for. It does not own its indices: read them during the call.
struct BatchRequest {
  std::span<const std::size_t> indices;  // of the samples, in order; at least one
  std::uint64_t epoch = 0;               // the sampler's
};

// Options of a BatchLoader. They may differ between ranks, but for drop_last and unpadded.
struct BatchLoaderOptions {
  // Reader threads; 0: the batches are read in the loop itself.
  std::size_t workers = 2;
  // Batches that may lie ready for each worker.
  std::size_t prefetch = 2;
  // Leave out the last batch if it is not full.
  bool drop_last = false;
  // Leaves out the padding. In an evaluation a sample that two ranks look at would count twice.
  // Ranks may have unequal numbers of batches then.
  bool unpadded = false;
  // Call the batch's pin(), in the reader thread: page-locked memory, from which a GPU copies while
  // the program goes on. For ranks with a GPU.
  bool pin = false;
};

// The batches of this rank, read ahead. See the head of this file. It calls no other rank.
template <typename Dataset>
class BatchLoader {
 public:
  // The result of the dataset's batch().
  using Batch = decltype(std::declval<const Dataset&>().batch(std::declval<BatchRequest>()));

  // Makes a loader; reading begins with a loop. `batch_size`: samples of this rank in a batch.
  // Throws std::invalid_argument if it is 0.
  BatchLoader(const Dataset& dataset, const DistributedSampler& sampler, std::size_t batch_size,
              const BatchLoaderOptions& options = {})
      : dataset_(dataset), sampler_(sampler), batch_size_(batch_size), options_(options) {
    if (batch_size == 0) throw std::invalid_argument("batch loader: batches of 0 samples");
  }

  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;
  BatchLoader(BatchLoader&&) = delete;
  BatchLoader& operator=(BatchLoader&&) = delete;
  ~BatchLoader() = default;

  // Returns how many batches a loop gives now.
  std::size_t size() const {
    const std::size_t mine = options_.unpadded ? sampler_.unpadded_size() : sampler_.size();
    return options_.drop_last ? mine / batch_size_ : (mine + batch_size_ - 1) / batch_size_;
  }

  // Returns what the loop has given so far, for a checkpoint in the middle of an epoch. resume() of
  // the sampler takes it.
  SamplerState state() const {
    // Nothing of another epoch's loop counts.
    if (sampler_.state() != begun_) return sampler_.state();
    return sampler_.state(std::min(given_ * batch_size_, indices_.size()));
  }

  // A place in a loop over the batches: an input iterator. All copies stand at the same batch.
  class Iterator {
   public:
    // Stands at the current batch of `loader`, which must outlive this.
    explicit Iterator(BatchLoader& loader) : loader_(&loader) {}
    // Returns the current batch. The loader owns it until the next ++.
    Batch& operator*() const { return *loader_->current_; }
    // Returns its address.
    Batch* operator->() const { return &*loader_->current_; }
    // Lets the batch go and waits for the next one. Throws what the dataset threw for it.
    Iterator& operator++() {
      loader_->advance();
      return *this;
    }
    // Says whether there are no more batches.
    bool operator==(std::default_sentinel_t /*end*/) const { return !loader_->current_; }

   private:
    BatchLoader* loader_;
  };

  // Begins the sampler's epoch, or the rest of it, and waits for the first batch. Ends a loop
  // before.
  Iterator begin() {
    prefetch_.reset();  // the readers of a loop that was left
    current_.reset();
    begun_ = sampler_.state();
    indices_ = sampler_.indices();
    if (options_.unpadded) indices_.resize(sampler_.unpadded_size());
    given_ = 0;
    const std::size_t ahead = std::max<std::size_t>(options_.workers * options_.prefetch, 1);
    prefetch_ = worker::read_ahead(
        size(), options_.workers, ahead,
        [this, epoch = sampler_.state().epoch](std::size_t number) -> std::shared_ptr<void> {
          return std::make_shared<Batch>(read(number, epoch));
        });
    advance();
    return Iterator(*this);
  }
  // Returns the end of any loop.
  std::default_sentinel_t end() const { return {}; }

 private:
  Batch read(std::size_t number, std::uint64_t epoch) const {
    const std::span all(indices_);
    const std::size_t first = number * batch_size_;
    const std::size_t count = std::min(batch_size_, all.size() - first);
    Batch batch = dataset_.batch({.indices = all.subspan(first, count), .epoch = epoch});
    if constexpr (requires { batch.pin(); }) {
      if (options_.pin) batch.pin();
    }
    return batch;
  }

  void advance() {
    current_.reset();  // its memory can be used again before the next one is waited for
    current_ = std::static_pointer_cast<Batch>(worker::next_item(*prefetch_));
    if (current_) ++given_;
  }

  const Dataset& dataset_;
  const DistributedSampler& sampler_;
  std::size_t batch_size_;
  BatchLoaderOptions options_;
  std::vector<std::size_t> indices_;
  std::shared_ptr<Batch> current_;
  std::size_t given_ = 0;
  SamplerState begun_;                                 // the sampler's, when the loop began
  std::shared_ptr<worker::OrderedPrefetch> prefetch_;  // the last: its threads use the others
};

}  // namespace ddprun
