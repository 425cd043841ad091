#include <ddprun/collective.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/assert.h"
#include "worker/collective/core/parts.h"
#include "worker/collective/core/reached.h"
#include "worker/collective/core/record_file.h"

namespace ddprun {

using namespace worker;

namespace {

// The alignment that collective.h promises: a cache line, and the widest vector register of
// AVX-512.
constexpr std::size_t kAlignBytes = 64;

// A world of one. Nothing travels, and a sum over one rank is what is there already.
class AloneCollective final : public Collective {
 public:
  explicit AloneCollective(Ticket last_ticket) : launched_(last_ticket) {}

  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  Device device() const override { return Device::kCpu; }
  std::string_view name() const override { return "alone"; }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    // aligned_alloc wants a size that is a multiple of the alignment; for 0 it may return null.
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kAlignBytes - 1) / kAlignBytes;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignBytes, rounded * kAlignBytes));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, rounded * kAlignBytes);
    return {memory, [](std::byte* allocated) { std::free(allocated); }};
  }

  Ticket launch(Flat /*flat*/, Reduction /*reduction*/) override { return ++launched_; }
  Ticket launch_reduce_scatter(Flat flat, std::span<const Part> parts,
                               Reduction reduction) override {
    reduce_scatter_of(flat, parts, reduction, 1);
    return ++launched_;
  }
  Ticket launch_all_gather(Flat flat, std::span<const Part> parts) override {
    all_gather_of(flat, parts, 1);
    return ++launched_;
  }
  Ticket launch_all_to_all(Flat flat, std::span<const Transfer> transfers) override {
    auto* const data = static_cast<std::byte*>(flat.data);
    const std::size_t size = size_of(flat.dtype);
    for (const Transfer& one : all_to_all_of(flat, transfers, 1).transfers)
      std::memcpy(data + one.target * size, data + one.begin * size, (one.end - one.begin) * size);
    return ++launched_;
  }
  void progress() override {}
  void wait(Ticket ticket) override { DDPRUN_ASSERT(reached(launched_, ticket)); }
  void broadcast(Flat /*flat*/, int root) override { DDPRUN_ASSERT(root == 0); }

  std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine) override {
    check_gather_size(mine.size());
    return {std::vector<std::byte>(mine.begin(), mine.end())};
  }
  void barrier() override {}
  void monitored_barrier(std::chrono::milliseconds /*limit*/) override {}
  void send(Flat /*flat*/, int to) override { other_rank(to); }
  void receive(Flat /*flat*/, int from) override { other_rank(from); }
  std::unique_ptr<Collective> split(int color, int /*key*/) override {
    return color < 0 ? nullptr : make_alone_collective();
  }
  void reset() override {}

 private:
  Ticket launched_;
};

}  // namespace

void OperationName::set(std::string_view text) {
  std::size_t length = std::min(text.size(), kBytesMax);
  const auto continues = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
  };
  while (length < text.size() && length > 0 && continues(text[length])) --length;
  std::ranges::transform(text.substr(0, length), bytes_.begin(), [](char byte) {
    const auto code = static_cast<unsigned char>(byte);
    return code < 0x20 || code == 0x7F ? '?' : byte;
  });
}

std::string_view OperationName::text() const {
  return {bytes_.begin(), std::ranges::find(bytes_, '\0')};
}

std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
    case Dtype::kInt32:
      return 4;
    case Dtype::kFloat64:
    case Dtype::kInt64:
      return 8;
    case Dtype::kFloat16:
    case Dtype::kBFloat16:
      return 2;
    case Dtype::kInt8:
    case Dtype::kUInt8:
      break;
  }
  return 1;
}

std::string_view name_of(Dtype dtype) {
  constexpr std::array<std::string_view, 8> kNames{"float32", "float64", "float16", "bfloat16",
                                                   "int32",   "int64",   "int8",    "uint8"};
  return kNames.at(static_cast<std::size_t>(dtype));
}

void Collective::check_gather_size(std::size_t bytes) {
  if (bytes <= kGatherBytesMax) return;
  throw CollectiveError("all-gather of " + std::to_string(bytes) + " bytes: at most " +
                        std::to_string(kGatherBytesMax) + " travel at once");
}

std::size_t Collective::other_rank(int peer) const {
  if (peer < 0 || peer >= world_size() || peer == rank())
    throw CollectiveError("rank " + std::to_string(rank()) + " sends to or receives from rank " +
                          std::to_string(peer) + ": it must be another one of " +
                          std::to_string(world_size()));
  return static_cast<std::size_t>(peer);
}

std::unique_ptr<Collective> Collective::on_gpu(int gpu) {
  throw std::logic_error("on_gpu(" + std::to_string(gpu) + "): the collective '" +
                         std::string(name()) + "' works on the CPU");
}

void Collective::write_flight_record(const std::string& path) const {
  const std::string record = flight_record();
  if (record.empty())
    throw CollectiveError("write flight record " + path + ": " + std::string(name()) +
                          " keeps none");
  if (const auto failed = write_record_file(path, record))
    throw CollectiveError("write flight record " + path + ": " + failed.message());
}

// Every rank adds all numbers itself, always in rank order: so all ranks get the same bits.
void Collective::sum(std::span<double> values) {
  const auto blobs = all_gather_bytes(std::as_bytes(values));
  std::ranges::fill(values, 0.0);
  for (const auto& blob : blobs) {
    if (blob.size() != values.size_bytes()) {
      throw CollectiveError("sum of " + std::to_string(values.size()) +
                            " numbers: another rank brought " +
                            std::to_string(blob.size() / sizeof(double)));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      double value = 0;
      std::memcpy(&value, blob.data() + i * sizeof value, sizeof value);
      values[i] += value;
    }
  }
}

std::vector<std::byte> Collective::from_root(std::span<const std::byte> mine, int root) {
  // The length travels first: every rank must know how many gathers follow. A rank that left the
  // loop too early would answer a later gather with something else.
  const bool is_root = rank() == root;
  std::uint64_t length = is_root ? mine.size() : 0;
  const auto lengths = all_gather_bytes(std::as_bytes(std::span(&length, 1)));
  const auto& announced = lengths[static_cast<std::size_t>(root)];
  if (announced.size() != sizeof length) throw CollectiveError("ranks disagree on what they do");
  std::memcpy(&length, announced.data(), sizeof length);
  std::vector<std::byte> all;
  while (all.size() < length) {
    const std::size_t piece = std::min<std::size_t>(length - all.size(), kGatherBytesMax);
    const auto blobs = all_gather_bytes(is_root ? mine.subspan(all.size(), piece) : mine.first(0));
    const auto& blob = blobs[static_cast<std::size_t>(root)];
    if (blob.size() != piece) throw CollectiveError("ranks disagree on what they do");
    all.insert(all.end(), blob.begin(), blob.end());
  }
  return all;
}

std::unique_ptr<Collective> make_alone_collective(Ticket last_ticket) {
  return std::make_unique<AloneCollective>(last_ticket);
}

}  // namespace ddprun
