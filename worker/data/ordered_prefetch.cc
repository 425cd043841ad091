#include "worker/data/ordered_prefetch.h"

#include <ddprun/data_loader.h>

#include <utility>

namespace ddprun::worker {

std::shared_ptr<OrderedPrefetch> read_ahead(
    std::size_t count, std::size_t threads, std::size_t ahead,
    std::function<std::shared_ptr<void>(std::size_t number)> read) {
  return std::make_shared<OrderedPrefetch>(count, threads, ahead, std::move(read));
}

std::shared_ptr<void> next_item(OrderedPrefetch& prefetch) { return prefetch.next(); }

}  // namespace ddprun::worker
