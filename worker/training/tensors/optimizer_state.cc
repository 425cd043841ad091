#include <ATen/ops/empty.h>
#include <ddprun/optimizers.h>
#include <ddprun/tensor_collective.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <sstream>
#include <string>

#include "worker/training/tensors/device_of.h"

namespace ddprun {

namespace {

std::string state_of(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream text;
  archive.save_to(text);
  return std::move(text).str();
}

}  // namespace

void share_optimizer_state(torch::optim::Optimizer& optimizer, Collective& collective, int root) {
  std::string state;
  std::exception_ptr failure;
  try {
    if (collective.rank() == root) state = state_of(optimizer);
  } catch (...) {
    failure = std::current_exception();  // the others wait: they are told first
  }
  const std::uint64_t mine = state.size();
  const auto blob = collective.from_root(std::as_bytes(std::span(&mine, 1)), root);
  if (failure) std::rethrow_exception(failure);
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, blob.data(), sizeof bytes);
  if (bytes == 0)
    throw CollectiveError(
        fmt::format("rank {} cannot give the state of its optimizer: its output says why", root));
  state.resize(bytes);
  const auto count = static_cast<std::int64_t>(bytes);
  const at::Tensor here = at::from_blob(state.data(), {count}, at::kByte);
  const at::Tensor travels = here.to(worker::device_of(collective));
  TensorCollective(collective).broadcast(travels, root);
  if (collective.rank() == root) return;
  here.copy_(travels);
  torch::serialize::InputArchive archive;
  archive.load_from(state.data(), state.size());
  optimizer.load(archive);
}

}  // namespace ddprun
