#include <ddprun/checkpoint.h>
#include <ddprun/collective.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <future>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "worker/checkpoint/checkpoint_file.h"
#include "worker/checkpoint/dcp_folder.h"
#include "worker/checkpoint/dcp_items.h"
#include "worker/checkpoint/gathered_texts.h"
#include "worker/checkpoint/run_values.h"
#include "worker/checkpoint/state_copy.h"

namespace ddprun {

using namespace worker;

namespace {

constexpr const char* kFailed = "failed";  // tells the others to make a new group

Error save_error(const std::filesystem::path& path, const std::exception& error) {
  const std::string_view what = error.what();
  return {ErrorCode::kLimit,
          fmt::format("save checkpoint {}: {}", path.string(), what.substr(0, what.find('\n')))};
}

}  // namespace

struct AsyncCheckpoint::Saving {
  explicit Saving(Collective& of) : ranks(of) {}

  using Write = std::function<Result<void>()>;

  Collective& ranks;
  std::unique_ptr<Collective> group;  // of the writing threads, once a save needs them
  StateCopy copy;
  std::future<Result<void>> writing;  // invalid: none is under way
  bool failed = false;                // a save, since the ranks have last agreed

  // Without a thread, this one writes: other ranks' threads may wait for it.
  void start(const std::filesystem::path& path, Write given) {
    const auto write = std::make_shared<const Write>(std::move(given));
    const auto try_write = [path, write]() -> Result<void> {
      try {
        return (*write)();
      } catch (const std::exception& error) {
        return save_error(path, error);
      }
    };
    try {
      writing = std::async(std::launch::async, try_write);
    } catch (const std::system_error&) {
      std::promise<Result<void>> written;
      written.set_value(try_write());
      writing = written.get_future();
    }
  }

  Result<void> finish() {
    if (!writing.valid()) return {};
    auto written = writing.get();
    if (!written) failed = true;
    return written;
  }

  // Waits for the save before. All ranks throw its error, or none: they stay in step. After a
  // failure the group may be out of step, and the next save makes another.
  void agree_on_last() {
    const auto last = finish();
    const auto agreed = gather_results(
        last ? Result<std::string>(failed ? kFailed : "") : Result<std::string>(last.error()),
        ranks);
    if (!agreed || std::ranges::find(*agreed, kFailed) != agreed->end()) group.reset();
    failed = false;
    if (!agreed) throw_checkpoint_error(agreed.error());
  }
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
  const auto written = saving_->finish();
  if (!written) throw_checkpoint_error(written.error());
}

bool AsyncCheckpoint::is_saving() const {
  return saving_->writing.valid() &&
         saving_->writing.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void AsyncCheckpoint::save(const std::filesystem::path& path, const CheckpointRun& run,
                           const CheckpointInfo& info, const SaveOptions& options) {
  saving_->agree_on_last();
  auto pickled = pickled_run(path, run, info);
  if (!pickled) return;
  PickleOutput* const outputs[] = {&*pickled};
  try {
    saving_->copy.take(outputs);
  } catch (const std::bad_alloc& error) {
    throw_checkpoint_error(save_error(path, error));
  }
  saving_->start(path, [path, options, pickled = std::move(*pickled)] {
    return write_pickled_file(path, pickled, options);
  });
}

void AsyncCheckpoint::save_distributed(const std::filesystem::path& folder,
                                       const CheckpointRun& run, const CheckpointInfo& info) {
  saving_->agree_on_last();
  // Its operations would be kernels on the GPU, among those of the training.
  if (saving_->ranks.device() == Device::kCuda)
    return save_distributed_checkpoint(folder, run, info);
  if (saving_->group == nullptr) saving_->group = saving_->ranks.split(0, saving_->ranks.rank());
  Result<std::vector<DcpItem>> items = dcp_items(folder, run, info);
  std::vector<PickleOutput*> outputs;
  outputs.reserve(items->size());
  for (DcpItem& item : *items) outputs.push_back(&item.pickled);
  try {
    saving_->copy.take(outputs);
  } catch (const std::bad_alloc& error) {
    items = save_error(folder, error);  // the other ranks are told by save_dcp()
  }
  saving_->start(folder, [folder, items = std::move(items), group = saving_->group.get()] {
    return save_dcp(folder, items, *group);
  });
}

}  // namespace ddprun
