#include <ddprun/checkpoint.h>
#include <ddprun/collective.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <utility>
#include <vector>

#include "worker/checkpoint/checkpoint_file.h"
#include "worker/checkpoint/dcp_folder.h"
#include "worker/checkpoint/dcp_items.h"
#include "worker/checkpoint/run_values.h"
#include "worker/checkpoint/state_copy.h"

namespace ddprun {

using namespace worker;

struct AsyncCheckpoint::Saving {
  explicit Saving(Collective& of) : ranks(of) {}

  Collective& ranks;
  std::unique_ptr<Collective> group;  // of the writing threads, once a save needs them
  StateCopy copy;
  std::future<Result<void>> writing;  // invalid: none is under way
};

AsyncCheckpoint::AsyncCheckpoint(Collective& ranks) : saving_(std::make_unique<Saving>(ranks)) {}

AsyncCheckpoint::~AsyncCheckpoint() {
  if (!saving_->writing.valid()) return;
  try {
    wait();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
}

void AsyncCheckpoint::wait() {
  if (!saving_->writing.valid()) return;
  const auto written = saving_->writing.get();
  if (!written) throw_checkpoint_error(written.error());
}

bool AsyncCheckpoint::is_saving() const {
  return saving_->writing.valid() &&
         saving_->writing.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void AsyncCheckpoint::save(const std::filesystem::path& path, const CheckpointRun& run,
                           const CheckpointInfo& info, const SaveOptions& options) {
  wait();
  auto pickled = pickled_run(path, run, info);
  if (!pickled) return;
  PickleOutput* const outputs[] = {&*pickled};
  saving_->copy.take(outputs);
  saving_->writing = std::async(std::launch::async, [path, options, pickled = std::move(*pickled)] {
    return write_pickled_file(path, pickled, options);
  });
}

void AsyncCheckpoint::save_distributed(const std::filesystem::path& folder,
                                       const CheckpointRun& run, const CheckpointInfo& info) {
  wait();
  // Its operations would be kernels on the GPU, among those of the training.
  if (saving_->ranks.device() == Device::kCuda)
    return save_distributed_checkpoint(folder, run, info);
  if (saving_->group == nullptr) saving_->group = saving_->ranks.split(0, saving_->ranks.rank());
  auto items = dcp_items(folder, run, info);
  std::vector<PickleOutput*> outputs;
  outputs.reserve(items.size());
  for (DcpItem& item : items) outputs.push_back(&item.pickled);
  saving_->copy.take(outputs);
  saving_->writing = std::async(std::launch::async,
                                [folder, items = std::move(items), group = saving_->group.get()] {
                                  return save_dcp(folder, items, *group);
                                });
}

}  // namespace ddprun
