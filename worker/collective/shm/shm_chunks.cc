#include "worker/collective/shm/shm_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ddprun::worker {
namespace {

// The counters that ranks wait for have the low bits of a number.
std::uint32_t low_bits(std::uint64_t number) { return static_cast<std::uint32_t>(number); }

}  // namespace

void ShmChunks::send(Flat flat, std::size_t to) {
  const std::span<const std::byte> all(static_cast<const std::byte*>(flat.data), flat.bytes());
  const std::uint32_t operation =
      peers_.mine().operations.begin(OperationKind::kSend, all.size(), flat.dtype, flat.name);
  const std::uint64_t before = written_;
  std::size_t done = 0;
  do {  // also for nothing at all
    const std::size_t length = std::min(all.size() - done, kChunkBytes);
    // The slot's last chunk. All those of earlier calls have been read.
    if (written_ + 1 > before + kChunkSlots) await_read(written_ + 1 - kChunkSlots, to, operation);
    write(to, all.subspan(done, length), all.size());
    done += length;
  } while (done < all.size());
  await_read(written_, to, operation);
  peers_.mine().operations.end(operation);
}

void ShmChunks::write(std::size_t to, std::span<const std::byte> piece, std::size_t total_bytes) {
  const std::uint64_t number = ++written_;
  const auto slot = static_cast<std::uint32_t>(number % kChunkSlots);
  SentChunk& chunk = peers_.mine().chunk_slots.at(slot);
  chunk.number.store(0);
  chunk.to.store(static_cast<std::uint32_t>(to));
  chunk.bytes = piece.size();
  chunk.total_bytes = total_bytes;
  if (!piece.empty())
    std::memcpy(peers_.view().chunk(peers_.rank(), slot), piece.data(), piece.size());
  chunk.number.store(number);
  advance(peers_.mine().chunks, low_bits(number));
}

void ShmChunks::await_read(std::uint64_t number, std::size_t reader, std::uint32_t operation) {
  while (true) {
    const std::uint32_t seen = peers_.area(reader).chunks_read.value.load();
    if (peers_.view().last_read(reader, peers_.rank()).load() >= number) return;
    peers_.wait_for(reader, &RankArea::chunks_read, seen + 1, {"send", operation});
  }
}

void ShmChunks::receive(Flat flat, std::size_t from) {
  const std::span<std::byte> all(static_cast<std::byte*>(flat.data), flat.bytes());
  const std::uint32_t operation =
      peers_.mine().operations.begin(OperationKind::kReceive, all.size(), flat.dtype, flat.name);
  std::size_t done = 0;
  do {
    const std::uint64_t number = await_chunk(from, operation);
    const auto slot = static_cast<std::uint32_t>(number % kChunkSlots);
    const SentChunk& chunk = peers_.area(from).chunk_slots.at(slot);
    if (chunk.total_bytes != all.size())
      peers_.abort(fmt::format("rank {} sends {} bytes to rank {}, which expects {}", from,
                               chunk.total_bytes, peers_.rank(), all.size()));
    if (chunk.bytes != 0)
      std::memcpy(all.data() + done, peers_.view().chunk(from, slot), chunk.bytes);
    done += chunk.bytes;
    peers_.view().last_read(peers_.rank(), from).store(number);
    advance(peers_.mine().chunks_read, low_bits(++read_));
  } while (done < all.size());
  peers_.mine().operations.end(operation);
}

std::uint64_t ShmChunks::await_chunk(std::size_t from, std::uint32_t operation) {
  while (true) {
    // First: a chunk that comes between the two looks moves it.
    const std::uint32_t seen = peers_.area(from).chunks.value.load();
    // Twice: the first look may have passed a slot before its chunk came, and found a later one.
    if (oldest_for_us(from) != 0) return oldest_for_us(from);
    peers_.wait_for(from, &RankArea::chunks, seen + 1, {"receive", operation});
  }
}

// The number of the oldest chunk of that rank that we have not read; 0: none. Its rank may write a
// slot anew meanwhile, unless the chunk is for us: then it waits for us.
std::uint64_t ShmChunks::oldest_for_us(std::size_t from) const {
  const std::uint64_t last = peers_.view().last_read(peers_.rank(), from).load();
  std::uint64_t oldest = 0;
  for (const SentChunk& chunk : peers_.area(from).chunk_slots) {
    const std::uint64_t number = chunk.number.load();
    const bool ours = number > last && chunk.to.load() == peers_.rank();
    if (!ours || chunk.number.load() != number) continue;
    if (oldest == 0 || number < oldest) oldest = number;
  }
  return oldest;
}

void ShmChunks::forget() {
  for (SentChunk& chunk : peers_.mine().chunk_slots) chunk.number.store(0);
}

}  // namespace ddprun::worker
