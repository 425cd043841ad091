// The order between the streams that fill a bucket and its sum, on several devices. Autograd has a
// thread for each device. A bucket may be launched by the thread of another device than its own.
// The current stream of that thread need not be the one that has filled the bucket. PyTorch counts
// on default streams there (Reducer::all_reduce_bucket, 2.11). With one device there is one thread,
// and no event is made. GradientReducer owns it; calls take turns.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <map>
#include <vector>

namespace ddprun::worker {

class ReadyEvents {
 public:
  // `devices`: of the model.
  explicit ReadyEvents(std::vector<c10::Device> devices) : devices_(std::move(devices)) {}

  // The current stream of the device with this place has filled a part of the bucket.
  void filled(std::size_t bucket, std::size_t device);
  // The current stream of that device waits for all of it.
  void hold(std::size_t bucket, std::size_t device);

 private:
  std::vector<c10::Device> devices_;
  std::map<std::size_t, c10::Event> events_;  // by bucket, of the latest part
};

}  // namespace ddprun::worker
