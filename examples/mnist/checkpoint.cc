#include "examples/mnist/checkpoint.h"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "examples/mnist/atomic_file.h"

namespace ddprun::examples {
namespace {

// To be raised whenever what is stored changes its meaning. Other versions are refused.
constexpr std::int64_t kVersion = 2;

// Of the 64-bit FNV-1a hash.
constexpr std::uint64_t kFnvBasis = 0xCBF29CE484222325U;
constexpr std::uint64_t kFnvPrime = 0x100000001B3U;

std::uint64_t fnv1a(std::uint64_t value, std::string_view bytes) {
  for (const char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * kFnvPrime;
  return value;
}

// With contiguous() equal values give equal bytes, whatever the strides in memory are.
std::uint64_t fold(std::uint64_t value, const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().cpu().contiguous();
  return fnv1a(value, {static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()});
}

Error unreadable(const std::filesystem::path& path, std::string_view what,
                 ErrorCode code = ErrorCode::kProtocol) {
  // LibTorch's messages go on with advice and a backtrace. Their first sentence says what is wrong.
  return {code, fmt::format("load checkpoint {}: {}", path.string(),
                            what.substr(0, std::min(what.find('\n'), what.find(". "))))};
}

std::int64_t read_number(torch::serialize::InputArchive& archive, const char* name) {
  c10::IValue value;
  archive.read(name, value);
  return value.toInt();
}

Result<std::string> read_file(const std::filesystem::path& path) {
  std::error_code failure;
  // An error too if `path` is a folder or a pipe.
  const auto size = std::filesystem::file_size(path, failure);
  if (failure) return unreadable(path, failure.message(), ErrorCode::kSystem);
  if (size > kCheckpointBytesMax) {
    return unreadable(path, fmt::format("{} bytes, at most {} are read", size, kCheckpointBytesMax),
                      ErrorCode::kLimit);
  }
  std::string bytes(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) {
    return unreadable(path, "cannot be read", ErrorCode::kSystem);
  }
  return bytes;
}

// Runs `restore`, which throws what LibTorch throws, over the file's bytes.
template <typename Restore>
auto restored(const std::filesystem::path& path, Restore restore)
    -> Result<decltype(restore(std::string()))> {
  const auto bytes = read_file(path);
  if (!bytes) return bytes.error();
  try {
    return restore(*bytes);
  } catch (const c10::Error& error) {
    return unreadable(path, error.what_without_backtrace());
  } catch (const std::exception& error) {
    // LibTorch throws these too, for an entry that is missing, for example.
    return unreadable(path, error.what());
  }
}

// LibTorch compares the names of what it loads, but not the shapes: a module may get tensors that
// its forward() cannot use. So we compare the shapes before and after.
std::vector<std::vector<std::int64_t>> shapes_of(const torch::nn::Module& net) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const torch::Tensor& tensor : net.parameters()) shapes.push_back(tensor.sizes().vec());
  for (const torch::Tensor& tensor : net.buffers()) shapes.push_back(tensor.sizes().vec());
  return shapes;
}

// The version comes first: the other entries mean something only in our version.
Stamp read_stamp(torch::serialize::InputArchive& archive, const std::string& bytes) {
  archive.load_from(bytes.data(), bytes.size());
  const auto version = read_number(archive, "version");
  if (version != kVersion) {
    throw std::runtime_error(fmt::format("version {}, expected {}", version, kVersion));
  }
  c10::IValue job;
  archive.read("job", job);
  return {static_cast<int>(read_number(archive, "epoch")), job.toStringRef()};
}

int restore(const std::string& bytes, torch::nn::Module& net, torch::optim::Optimizer& optimizer) {
  torch::serialize::InputArchive archive;
  const Stamp stamp = read_stamp(archive, bytes);
  torch::serialize::InputArchive weights;
  torch::serialize::InputArchive steps;
  archive.read("net", weights);
  archive.read("optimizer", steps);
  const auto shapes = shapes_of(net);
  net.load(weights);
  optimizer.load(steps);
  if (shapes_of(net) != shapes) throw std::runtime_error("the weights of another net");
  return stamp.epoch;
}

}  // namespace

Result<void> save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& net,
                             const torch::optim::Optimizer& optimizer, const Stamp& stamp) {
  torch::serialize::OutputArchive archive;
  torch::serialize::OutputArchive weights;
  torch::serialize::OutputArchive steps;
  net.save(weights);
  optimizer.save(steps);
  archive.write("version", c10::IValue(kVersion));
  archive.write("epoch", c10::IValue(std::int64_t{stamp.epoch}));
  archive.write("job", c10::IValue(stamp.job));
  archive.write("net", weights);
  archive.write("optimizer", steps);
  // First into memory: save_to(path) would write over the old checkpoint. A kill in the middle
  // would then leave neither the old nor the new one.
  std::ostringstream bytes;
  archive.save_to(bytes);
  return write_file_atomically(path, bytes.view());
}

Result<Stamp> read_stamp(const std::filesystem::path& path) {
  return restored(path, [](const std::string& bytes) {
    torch::serialize::InputArchive archive;
    return read_stamp(archive, bytes);
  });
}

Result<Loaded> load_checkpoint(const std::filesystem::path& path, torch::nn::Module& net,
                               torch::optim::Optimizer& optimizer) {
  return restored(path, [&](const std::string& bytes) {
    return Loaded{restore(bytes, net, optimizer), fnv1a(kFnvBasis, bytes)};
  });
}

std::uint64_t checksum(const torch::nn::Module& net) {
  std::uint64_t value = kFnvBasis;
  for (const torch::Tensor& parameter : net.parameters()) value = fold(value, parameter);
  for (const torch::Tensor& buffer : net.buffers()) value = fold(value, buffer);
  return value;
}

}  // namespace ddprun::examples
