#include "worker/shm/shm_parcels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ddprun::worker {
namespace {

// The counters that ranks wait for have the low bits of a number.
std::uint32_t low_bits(std::uint64_t number) { return static_cast<std::uint32_t>(number); }

}  // namespace

void ShmParcels::send(Flat flat, std::size_t to) {
  const std::span<const std::byte> all(static_cast<const std::byte*>(flat.data), flat.bytes());
  const std::uint32_t operation =
      peers_.mine().operations.begin(Verb::kSend, all.size(), flat.dtype, flat.name);
  const std::uint64_t before = written_;
  std::size_t done = 0;
  do {  // also for nothing at all
    const std::size_t length = std::min(all.size() - done, kParcelBytes);
    // The slot's last parcel. All those of earlier calls have been read.
    if (written_ + 1 > before + kParcelSlots)
      await_read(written_ + 1 - kParcelSlots, to, operation);
    write(to, all.subspan(done, length), all.size());
    done += length;
  } while (done < all.size());
  await_read(written_, to, operation);
  peers_.mine().operations.end(operation);
}

void ShmParcels::write(std::size_t to, std::span<const std::byte> piece, std::size_t total_bytes) {
  const std::uint64_t number = ++written_;
  const auto slot = static_cast<std::uint32_t>(number % kParcelSlots);
  Parcel& parcel = peers_.mine().parcel_slots.at(slot);
  parcel.number.store(0);
  parcel.to.store(static_cast<std::uint32_t>(to));
  parcel.bytes = piece.size();
  parcel.total_bytes = total_bytes;
  if (!piece.empty())
    std::memcpy(peers_.view().parcel(peers_.rank(), slot), piece.data(), piece.size());
  parcel.number.store(number);
  advance(peers_.mine().parcels, low_bits(number));
}

void ShmParcels::await_read(std::uint64_t number, std::size_t reader, std::uint32_t operation) {
  while (true) {
    const std::uint32_t seen = peers_.area(reader).parcels_read.value.load();
    if (peers_.view().last_read(reader, peers_.rank()).load() >= number) return;
    peers_.wait_for(reader, &RankArea::parcels_read, seen + 1, {"send", operation});
  }
}

void ShmParcels::receive(Flat flat, std::size_t from) {
  const std::span<std::byte> all(static_cast<std::byte*>(flat.data), flat.bytes());
  const std::uint32_t operation =
      peers_.mine().operations.begin(Verb::kReceive, all.size(), flat.dtype, flat.name);
  std::size_t done = 0;
  do {
    const std::uint64_t number = await_parcel(from, operation);
    const auto slot = static_cast<std::uint32_t>(number % kParcelSlots);
    const Parcel& parcel = peers_.area(from).parcel_slots.at(slot);
    if (parcel.total_bytes != all.size())
      peers_.abort(fmt::format("rank {} sends {} bytes to rank {}, which expects {}", from,
                               parcel.total_bytes, peers_.rank(), all.size()));
    if (parcel.bytes != 0)
      std::memcpy(all.data() + done, peers_.view().parcel(from, slot), parcel.bytes);
    done += parcel.bytes;
    peers_.view().last_read(peers_.rank(), from).store(number);
    advance(peers_.mine().parcels_read, low_bits(++read_));
  } while (done < all.size());
  peers_.mine().operations.end(operation);
}

std::uint64_t ShmParcels::await_parcel(std::size_t from, std::uint32_t operation) {
  while (true) {
    // First: a parcel that comes between the two looks moves it.
    const std::uint32_t seen = peers_.area(from).parcels.value.load();
    // Twice: the first look may have passed a slot before its parcel came, and found a later one.
    if (oldest_for_us(from) != 0) return oldest_for_us(from);
    peers_.wait_for(from, &RankArea::parcels, seen + 1, {"receive", operation});
  }
}

// The number of the oldest parcel of that rank that we have not read; 0: none. Its rank may write a
// slot anew meanwhile, unless the parcel is for us: then it waits for us.
std::uint64_t ShmParcels::oldest_for_us(std::size_t from) const {
  const std::uint64_t last = peers_.view().last_read(peers_.rank(), from).load();
  std::uint64_t oldest = 0;
  for (const Parcel& parcel : peers_.area(from).parcel_slots) {
    const std::uint64_t number = parcel.number.load();
    const bool ours = number > last && parcel.to.load() == peers_.rank();
    if (!ours || parcel.number.load() != number) continue;
    if (oldest == 0 || number < oldest) oldest = number;
  }
  return oldest;
}

void ShmParcels::forget() {
  for (Parcel& parcel : peers_.mine().parcel_slots) parcel.number.store(0);
}

}  // namespace ddprun::worker
