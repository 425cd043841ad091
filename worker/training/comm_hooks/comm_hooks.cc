#include <ddprun/comm_hook.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "worker/training/tensors/summable.h"

namespace ddprun {

using namespace worker;

namespace {

void check_wire(at::ScalarType wire) {
  if (wire == at::kHalf || wire == at::kBFloat16) return;
  throw std::invalid_argument(fmt::format(
      "a gradient cannot travel as {}: expected Half or BFloat16", c10::toString(wire)));
}

// Returns whether values of this type lose bits on the wire.
bool wider(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

// A tensor of each bucket for what travels. All ranks meet the buckets in the same order, so they
// allocate together. A rebuilt bucket of another size gets another one.
class WireTensors {
 public:
  explicit WireTensors(at::ScalarType type) : type_(type) {}

  at::Tensor& of(Bucket& bucket, Collective& collective) {
    const at::Tensor buffer = bucket.buffer();
    at::Tensor& wire = tensors_[bucket.index()];
    if (!wire.defined() || wire.numel() != buffer.numel()) {
      wire = allocate_tensor(buffer.numel(), buffer.options().dtype(type_), collective);
    }
    return wire;
  }

 private:
  at::ScalarType type_;
  std::map<std::size_t, at::Tensor> tensors_;  // by bucket
};

void all_reduce(Bucket& bucket, Collective& collective) {
  if (collective.world_size() > 1) bucket.buffer().div_(collective.world_size());
  bucket.sum();
}

}  // namespace

CommHook all_reduce_hook() { return all_reduce; }

CommHook compressed_hook(at::ScalarType wire) {
  check_wire(wire);
  return [tensors = std::make_shared<WireTensors>(wire)](Bucket& bucket, Collective& collective) {
    if (!wider(bucket.buffer().scalar_type())) return all_reduce(bucket, collective);
    at::Tensor& travels = tensors->of(bucket, collective);
    travels.copy_(bucket.buffer().div_(collective.world_size()));
    bucket.sum(travels, Reduction::kWideSum);
    bucket.then([&bucket, &travels] { bucket.buffer().copy_(travels); });
  };
}

CommHook float32_sum_hook() {
  return [tensors = std::make_shared<WireTensors>(at::kFloat)](Bucket& bucket,
                                                               Collective& collective) {
    const at::ScalarType type = bucket.buffer().scalar_type();
    if (type != at::kHalf && type != at::kBFloat16) return all_reduce(bucket, collective);
    at::Tensor& travels = tensors->of(bucket, collective);
    travels.copy_(bucket.buffer());
    if (collective.world_size() > 1) travels.div_(collective.world_size());
    bucket.sum(travels);
    bucket.then([&bucket, &travels] { bucket.buffer().copy_(travels); });
  };
}

CommHook compress_wrapper(CommHook inner, at::ScalarType wire) {
  check_wire(wire);
  auto tensors = std::make_shared<WireTensors>(wire);
  return [inner = std::move(inner), tensors](Bucket& bucket, Collective& collective) {
    if (!wider(bucket.buffer().scalar_type())) return inner(bucket, collective);
    at::Tensor& travels = tensors->of(bucket, collective);
    travels.copy_(bucket.buffer());
    const auto narrow = std::make_shared<Bucket>(bucket.index(), bucket.is_last(), travels,
                                                 bucket.parameters(), collective);
    inner(*narrow, collective);
    bucket.then([&bucket, narrow] {
      narrow->finish();
      bucket.buffer().copy_(narrow->buffer());
    });
  };
}

}  // namespace ddprun
