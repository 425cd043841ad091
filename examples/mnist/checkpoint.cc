#include "examples/mnist/checkpoint.h"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "examples/mnist/atomic_file.h"

namespace ddprun::examples {
namespace {

// Raised whenever what is stored changes its meaning; other versions are refused.
constexpr std::int64_t kVersion = 1;

constexpr std::uint64_t kFnvBasis = 0xCBF29CE484222325U;
constexpr std::uint64_t kFnvPrime = 0x100000001B3U;

std::uint64_t fnv1a(std::uint64_t value, std::string_view bytes) {
  for (const char byte : bytes) value = (value ^ static_cast<unsigned char>(byte)) * kFnvPrime;
  return value;
}

std::uint64_t fold(std::uint64_t value, const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().cpu().contiguous();
  return fnv1a(value, {static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()});
}

Error unreadable(const std::filesystem::path& path, std::string_view what) {
  // LibTorch's messages go on with advice, a backtrace, …; the first sentence says it.
  return {ErrorCode::kProtocol,
          fmt::format("load checkpoint {}: {}", path.string(),
                      what.substr(0, std::min(what.find('\n'), what.find(". "))))};
}

std::int64_t read_number(torch::serialize::InputArchive& archive, const char* name) {
  c10::IValue value;
  archive.read(name, value);
  return value.toInt();
}

Result<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) return unreadable(path, "cannot be read");
  return bytes;
}

// LibTorch checks names but not shapes: it lets a module take tensors that its forward() cannot
// use.
std::vector<std::vector<std::int64_t>> shapes_of(const torch::nn::Module& net) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const torch::Tensor& tensor : net.parameters()) shapes.push_back(tensor.sizes().vec());
  for (const torch::Tensor& tensor : net.buffers()) shapes.push_back(tensor.sizes().vec());
  return shapes;
}

// Answers the epoch. Throws LibTorch's exceptions.
int restore(const std::string& bytes, torch::nn::Module& net, torch::optim::Optimizer& optimizer) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  const auto version = read_number(archive, "version");
  if (version != kVersion) {
    throw std::runtime_error(fmt::format("version {}, expected {}", version, kVersion));
  }
  torch::serialize::InputArchive weights;
  torch::serialize::InputArchive steps;
  archive.read("net", weights);
  archive.read("optimizer", steps);
  net.load(weights);
  optimizer.load(steps);
  return static_cast<int>(read_number(archive, "epoch"));
}

}  // namespace

Result<void> save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& net,
                             const torch::optim::Optimizer& optimizer, int epoch) {
  torch::serialize::OutputArchive archive;
  torch::serialize::OutputArchive weights;
  torch::serialize::OutputArchive steps;
  net.save(weights);
  optimizer.save(steps);
  archive.write("version", c10::IValue(kVersion));
  archive.write("epoch", c10::IValue(std::int64_t{epoch}));
  archive.write("net", weights);
  archive.write("optimizer", steps);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return write_file_atomically(path, bytes.view());
}

Result<Loaded> load_checkpoint(const std::filesystem::path& path, torch::nn::Module& net,
                               torch::optim::Optimizer& optimizer) {
  const auto bytes = read_file(path);
  if (!bytes) return bytes.error();
  const auto shapes = shapes_of(net);
  try {
    const int epoch = restore(*bytes, net, optimizer);
    if (shapes_of(net) != shapes) return unreadable(path, "the weights of another net");
    return Loaded{epoch, fnv1a(kFnvBasis, *bytes)};
  } catch (const c10::Error& error) {
    return unreadable(path, error.what_without_backtrace());
  } catch (const std::exception& error) {  // a missing entry is no c10::Error
    return unreadable(path, error.what());
  }
}

std::uint64_t checksum(const torch::nn::Module& net) {
  std::uint64_t value = kFnvBasis;
  for (const torch::Tensor& parameter : net.parameters()) value = fold(value, parameter);
  for (const torch::Tensor& buffer : net.buffers()) value = fold(value, buffer);
  return value;
}

}  // namespace ddprun::examples
