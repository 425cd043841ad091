#include "worker/training/data_parallel/module_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ddprun/data_parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "worker/training/tensors/device_of.h"

namespace ddprun::worker {
namespace {

// In a packed transfer every tensor starts at a multiple of this. So a view of any dtype is
// aligned: complex doubles have 16 bytes.
constexpr std::int64_t kPackAlignBytes = 16;

// The most bytes of a rank's refusal that are told to the others. All reasons of ours are shorter.
constexpr std::size_t kRefusalBytesMax = 4096;

// A tensor is the same if its TensorImpl is: equal storage alone may be two views.
std::vector<NamedTensor> first_occurrences(const torch::OrderedDict<std::string, at::Tensor>& all,
                                           const std::vector<std::string>& leave_out) {
  std::vector<NamedTensor> kept;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : all) {
    if (std::ranges::find(leave_out, item.key()) != leave_out.end()) continue;
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second)
      continue;
    kept.push_back({item.key(), item.value()});
  }
  return kept;
}

// Place of the device, dimension count, sizes and strides, one parameter after another.
std::vector<std::int64_t> shapes_of(const std::vector<NamedTensor>& parameters) {
  std::vector<std::int64_t> numbers;
  const std::vector<std::size_t> places = device_places(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    numbers.push_back(static_cast<std::int64_t>(places[i]));
    numbers.push_back(tensor.dim());
    numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
    numbers.insert(numbers.end(), tensor.strides().begin(), tensor.strides().end());
  }
  return numbers;
}

// Takes `count` numbers off the front; fewer where the list is short.
std::span<const std::int64_t> take(std::span<const std::int64_t>& list, std::size_t count) {
  const auto head = list.first(std::min(count, list.size()));
  list = list.subspan(head.size());
  return head;
}

bool same(std::span<const std::int64_t> theirs, at::IntArrayRef ours) {
  return std::ranges::equal(theirs, ours);
}

std::string difference(const char* what, at::IntArrayRef mine, std::span<const std::int64_t> root) {
  return fmt::format(
      "{} [{}] appears not to match {} of the same param in process 0. There they are [{}].", what,
      fmt::join(mine, ", "), what, fmt::join(root, ", "));
}

// Buckets hold gradients of one device. PyTorch compares no devices.
std::string other_place(std::size_t mine, std::span<const std::int64_t> root) {
  return fmt::format(
      "device {} of those of its model appears not to match the device of the same param in "
      "process 0. There it is on device {}, counted from 0.",
      mine, fmt::join(root, ""));
}

// Empty if this rank's parameters look like rank 0's. The words are PyTorch's; the name of the
// parameter and rank 0's numbers are added.
std::string shape_difference(const std::vector<NamedTensor>& parameters,
                             std::span<const std::int64_t> root, int rank) {
  const std::vector<std::size_t> places = device_places(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor] = parameters[i];
    const auto place = take(root, 1);
    const auto dims = take(root, 1);
    const auto count = dims.empty() ? std::size_t{0} : static_cast<std::size_t>(dims.front());
    const auto sizes = take(root, count);
    const auto strides = take(root, count);
    std::string found;
    if (!same(sizes, tensor.sizes())) {
      found = difference("sizes", tensor.sizes(), sizes);
    } else if (!same(strides, tensor.strides())) {
      found = difference("strides", tensor.strides(), strides);
    } else if (place.empty() || place.front() != static_cast<std::int64_t>(places[i])) {
      found = other_place(places[i], place);
    }
    if (found.empty()) continue;
    return fmt::format(
        "[{}]: params[{}] in this process with {} It is '{}' on rank {}: all ranks must build the "
        "same model.",
        rank, i, found, name, rank);
  }
  return {};
}

// Throws on every rank the first text that is not empty, so that all ranks end with the same error.
void throw_first(const std::string& mine, Collective& collective) {
  const auto all = collective.all_gather_bytes(
      std::as_bytes(std::span(mine)).first(std::min(mine.size(), Collective::kGatherBytesMax)));
  for (const auto& blob : all) {
    if (blob.empty()) continue;
    throw std::runtime_error(std::string(reinterpret_cast<const char*>(blob.data()), blob.size()));
  }
}

// Returns the greeting of each rank: how many parameters it has, then why it refuses to go on.
std::vector<std::byte> greeting(std::size_t count, std::string_view refusal) {
  const std::size_t length = std::min(refusal.size(), kRefusalBytesMax);
  std::vector<std::byte> bytes(sizeof count + length);
  std::memcpy(bytes.data(), &count, sizeof count);
  if (length > 0) std::memcpy(bytes.data() + sizeof count, refusal.data(), length);
  return bytes;
}

// The names in a row, one on each line.
std::string names_of(const std::vector<NamedTensor>& parameters) {
  std::string names;
  for (const auto& [name, tensor] : parameters) names += name + '\n';
  return names;
}

std::vector<std::string> lines_of(std::span<const std::byte> blob) {
  std::istringstream text(std::string(reinterpret_cast<const char*>(blob.data()), blob.size()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// Returns the first of `names` that is not among `others`. Empty if all are.
std::string first_missing(const std::vector<std::string>& names,
                          const std::vector<std::string>& others) {
  const std::unordered_set<std::string> known(others.begin(), others.end());
  const auto found =
      std::ranges::find_if(names, [&](const std::string& name) { return !known.contains(name); });
  return found == names.end() ? std::string() : *found;
}

// All ranks come here where one has another number of parameters than rank 0. The words are
// PyTorch's, the last sentence is ours.
void throw_of_counts(const std::vector<NamedTensor>& parameters, std::size_t root_count,
                     Collective& collective) {
  const std::string names = names_of(parameters);
  const auto root = lines_of(collective.from_root(std::as_bytes(std::span(names)), 0));
  const auto mine = lines_of(std::as_bytes(std::span(names)));
  std::string text;
  if (mine.size() != root_count) {
    text = fmt::format(
        "DDP expects same model across all ranks, but Rank 0 has {} params, while rank {} has "
        "inconsistent {} params.",
        root_count, collective.rank(), mine.size());
    const std::string here = first_missing(mine, root);
    const std::string there = first_missing(root, mine);
    if (!here.empty() && mine.size() > root_count)
      text += fmt::format(" Only rank {} has '{}'.", collective.rank(), here);
    else if (!there.empty())
      text += fmt::format(" Only rank 0 has '{}'.", there);
  }
  throw_first(text, collective);
}

// Comes first: shape_difference goes through this rank's parameters, and rank 0 may have more.
void verify_same_count(const std::vector<NamedTensor>& parameters, Collective& collective) {
  const auto greetings = collective.all_gather_bytes(greeting(parameters.size(), {}));
  std::size_t root_count = 0;
  bool alike = true;
  for (std::size_t rank = 0; rank < greetings.size(); ++rank) {
    const std::span<const std::byte> said = greetings[rank];
    std::size_t count = 0;
    if (said.size() < sizeof count) throw CollectiveError("ranks disagree on what they do");
    std::memcpy(&count, said.data(), sizeof count);
    if (const auto refusal = said.subspan(sizeof count); !refusal.empty()) {
      throw std::runtime_error(fmt::format(
          "rank {} cannot make its DataParallel: {}", rank,
          std::string_view(reinterpret_cast<const char*>(refusal.data()), refusal.size())));
    }
    if (rank == 0) root_count = count;
    alike = alike && count == root_count;
  }
  if (!alike) throw_of_counts(parameters, root_count, collective);
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

std::int64_t packed_bytes(const at::Tensor& tensor) {
  return (bytes_of(tensor) + kPackAlignBytes - 1) / kPackAlignBytes * kPackAlignBytes;
}

// The part of `packed` that holds `tensor`'s values, with its dtype and sizes, contiguous.
at::Tensor slot_for(const at::Tensor& tensor, const at::Tensor& packed, std::int64_t offset) {
  return packed.narrow(0, offset, bytes_of(tensor)).view(tensor.scalar_type()).view(tensor.sizes());
}

// The bytes of a tensor whose memory is in order.
at::Tensor bytes_in(const at::Tensor& tensor) {
  return tensor.view({tensor.numel()}).view(at::kByte);
}

// One tensor that does not would make LibTorch copy all of them one by one.
bool fits_as_bytes(const at::Tensor& tensor, const at::Tensor& packed) {
  return tensor.device() == packed.device() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

// Tensors and their slots in the packed one. As bytes they are all of one type: one call copies all
// whose memory is in order.
struct Packing {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> slots;
  std::vector<std::pair<at::Tensor, at::Tensor>> out_of_order;  // with its slot

  Packing(const at::Tensor& packed, std::span<const NamedTensor> all) {
    std::int64_t offset = 0;
    for (const auto& [name, tensor] : all) {
      const at::Tensor slot = slot_for(tensor, packed, offset);
      offset += packed_bytes(tensor);
      if (fits_as_bytes(tensor, packed)) {
        tensors.push_back(bytes_in(tensor));
        slots.push_back(bytes_in(slot));
      } else {
        out_of_order.emplace_back(tensor, slot);
      }
    }
  }
  void pack() const {
    if (!slots.empty()) at::_foreach_copy_(slots, tensors);
    for (const auto& [tensor, slot] : out_of_order) slot.copy_(tensor);
  }
  void unpack() const {
    if (!slots.empty()) at::_foreach_copy_(tensors, slots);
    for (const auto& [tensor, slot] : out_of_order) tensor.copy_(slot);
  }
};

// One transfer of bytes for tensors of all types: in each broadcast all ranks wait for each other.
// Tensors may lie elsewhere than the collective's memory.
void broadcast_packed(std::span<const NamedTensor> tensors, Collective& collective, int root,
                      const OperationName& of) {
  std::int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += packed_bytes(tensor);
  if (total == 0) return;
  const at::Tensor packed =
      at::empty({total}, at::TensorOptions(device_of(collective)).dtype(at::kByte));
  const Packing packing(packed, tensors);
  // The root packs, all broadcast, the others unpack.
  const bool packs = collective.rank() == root;
  if (packs) packing.pack();
  collective.broadcast({packed.data_ptr(), static_cast<std::size_t>(total), Dtype::kUInt8, of},
                       root);
  if (!packs) packing.unpack();
}

}  // namespace

std::vector<NamedTensor> parameters_of(const torch::nn::Module& module,
                                       const std::vector<std::string>& leave_out) {
  return first_occurrences(module.named_parameters(), leave_out);
}

std::vector<NamedTensor> buffers_of(const torch::nn::Module& module,
                                    const std::vector<std::string>& leave_out) {
  return first_occurrences(module.named_buffers(), leave_out);
}

std::vector<c10::Device> devices_of(std::span<const NamedTensor> parameters) {
  std::vector<c10::Device> devices;
  for (const auto& [name, tensor] : parameters) {
    if (std::ranges::find(devices, tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  }
  return devices;
}

std::vector<std::size_t> device_places(std::span<const NamedTensor> parameters) {
  const std::vector<c10::Device> devices = devices_of(parameters);
  std::vector<std::size_t> places;
  for (const auto& [name, tensor] : parameters) {
    const auto found = std::ranges::find(devices, tensor.device());
    places.push_back(static_cast<std::size_t>(found - devices.begin()));
  }
  return places;
}

std::vector<bool> sparse_ones(const torch::nn::Module& module,
                              const std::vector<NamedTensor>& parameters,
                              const std::vector<std::string>& also) {
  std::unordered_set<const at::TensorImpl*> found;
  for (const auto& part : module.modules()) {
    if (const auto* embedding = part->as<torch::nn::EmbeddingImpl>()) {
      if (embedding->options.sparse()) found.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = part->as<torch::nn::EmbeddingBagImpl>()) {
      if (bag->options.sparse()) found.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  for (const std::string& name : also) {
    const auto named = std::ranges::find(parameters, name, &NamedTensor::name);
    if (named == parameters.end()) {
      throw std::invalid_argument(fmt::format(
          "sparse_parameters: '{}' is no parameter of the model that needs a gradient", name));
    }
    found.insert(named->tensor.unsafeGetTensorImpl());
  }
  std::vector<bool> sparse;
  sparse.reserve(parameters.size());
  for (const auto& [name, tensor] : parameters) {
    sparse.push_back(found.contains(tensor.unsafeGetTensorImpl()));
  }
  return sparse;
}

void verify_same_model(const std::vector<NamedTensor>& parameters, Collective& collective) {
  verify_same_count(parameters, collective);
  const std::vector<std::int64_t> mine = shapes_of(parameters);
  const std::vector<std::byte> blob = collective.from_root(std::as_bytes(std::span(mine)), 0);
  std::vector<std::int64_t> root(blob.size() / sizeof(std::int64_t));
  std::memcpy(root.data(), blob.data(), root.size() * sizeof(std::int64_t));
  // All ranks tell each other what they found: none may train on while another has stopped.
  throw_first(shape_difference(parameters, root, collective.rank()), collective);
}

void tell_refusal(std::string_view why, Collective& collective) {
  try {
    collective.all_gather_bytes(greeting(0, why));
  } catch (const CollectiveError& error) {
    log::warning(fmt::format("the other ranks could not be told: {}", error.what()));
  }
}

void broadcast_values(const std::vector<NamedTensor>& tensors, Collective& collective, int root,
                      OperationName of) {
  if (collective.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  for (std::size_t begin = 0; begin < tensors.size();) {
    std::size_t end = begin;
    std::size_t bytes = 0;
    while (end < tensors.size()) {
      bytes += static_cast<std::size_t>(packed_bytes(tensors[end].tensor));
      // The first tensor always goes along, also if it alone is larger than the limit.
      if (end > begin && bytes > kCoalescedBytes) break;
      ++end;
    }
    broadcast_packed(std::span(tensors).subspan(begin, end - begin), collective, root, of);
    begin = end;
  }
}

}  // namespace ddprun::worker
