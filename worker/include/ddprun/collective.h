// The operations of a job's ranks together, and the memory in which gradients are summed. There are
// five implementations. They are alone (a world of one), shm (ranks of one host, on CPU) and tcp
// (ranks of several hosts). The others are hierarchical (several hosts with as many ranks each) and
// nccl (GPUs). The training program owns the collective.
//
// All ranks must call the operations in the same order. Only one thread of a process may call at a
// time. It is the training thread or the autograd thread, never both at once.
//
// A failure throws CollectiveError: a peer died, a deadline passed, or the ranks do different
// things. After it the program may only destroy the collective, and it should end. The agent then
// starts all workers again. There is no other recovery, but for reset().
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// A failure of an operation of the ranks. what() is one line that says what failed, and which ranks
// have a part in it, if that is known.
class CollectiveError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A failure that all ranks of the host share, for example too little shared memory. The rank that
// met it has logged it already. The program should end and print nothing more about it.
class LoggedError : public CollectiveError {
  using CollectiveError::CollectiveError;
};

// The type of the elements that an operation takes.
enum class Dtype : std::uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt32,
  kInt64,
  kInt8,
  kUInt8,  // also bytes of anything
};

// Returns the bytes of one element.
std::size_t size_of(Dtype dtype);
// Returns PyTorch's name of the type: "float32", "bfloat16", …
std::string_view name_of(Dtype dtype);

// The way in which the elements of all ranks become one. kSum has the bits of Gloo: a sum of 16-bit
// floats is rounded at each addition. kWideSum adds them in 32 bits and rounds once; nothing else
// differs, and in NCCL nothing at all. kAverage is the sum, divided by the number of ranks, and
// rounded once; for floats only. kMin and kMax give NaN where a rank has NaN (not so in NCCL).
// Integers that overflow wrap.
enum class Reduction : std::uint8_t { kSum, kWideSum, kAverage, kMin, kMax };

// Says whether the reduction adds, and neither divides nor compares.
constexpr bool is_sum(Reduction reduction) {
  return reduction == Reduction::kSum || reduction == Reduction::kWideSum;
}

// The device on which a collective allocates memory, sums and broadcasts.
enum class Device : std::uint8_t { kCpu, kCuda };

// The program's name for an operation, for messages and the flight record: "bucket 3", "loss". It
// has its bytes in it, since it lies in memory that ranks share, and travels between them.
class OperationName {
 public:
  static constexpr std::size_t kBytesMax = 24;  // the longest text, in UTF-8

  OperationName() = default;
  // Copies the text. A longer one is cut, before a character that does not fit (UTF-8). Others than
  // printable ones become question marks: messages have one line.
  template <std::convertible_to<std::string_view> Text>
  OperationName(const Text& text) {  // NOLINT(google-explicit-constructor): as a text is
    set(text);
  }

  // Returns a view of this object's bytes; valid as long as it.
  std::string_view text() const;

 private:
  void set(std::string_view text);

  std::array<char, kBytesMax> bytes_{};  // ended by a zero, if it is shorter
};

// Elements in a row, on the collective's device. A Flat does not own its memory.
struct Flat {
  void* data = nullptr;           // the caller's memory
  std::size_t count = 0;          // elements
  Dtype dtype = Dtype::kFloat32;  // of each element
  OperationName name = {};        // ranks need not give the same

  // Returns the size of all elements.
  std::size_t bytes() const { return count * size_of(dtype); }
};

// A range of elements [begin, end) of a Flat that belongs to the rank `owner`.
struct Part {
  int owner = 0;          // 0 … world_size-1
  std::size_t begin = 0;  // the first element
  std::size_t end = 0;    // the element behind the last one

  bool operator==(const Part&) const = default;
};

// Elements [begin, end) of rank `from`, which rank `to` gets.
struct Transfer {
  int from = 0;            // 0 … world_size-1
  int to = 0;              // the same, or another one
  std::size_t begin = 0;   // the first element on rank `from`
  std::size_t end = 0;     // the element behind the last one there
  std::size_t target = 0;  // the place of the first one on rank `to`, in elements

  bool operator==(const Transfer&) const = default;
};

// The number of a launched operation. Each launch counts up by one; after 2^32 launches the number
// wraps.
using Ticket = std::uint32_t;

// The operations of a job's ranks together, as the head of this file says. All ranks must call
// them. These concern one rank alone: rank(), world_size(), device(), gpu(), name(),
// is_capturing(), progress(), check(), memory_of(), resets() and flight_record().
class Collective {
 public:
  Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
  Collective(Collective&&) = delete;
  Collective& operator=(Collective&&) = delete;
  virtual ~Collective() = default;

  // Returns the rank of this process, 0 … world_size()-1.
  virtual int rank() const = 0;
  // Returns the number of ranks.
  virtual int world_size() const = 0;
  // Returns the device of the memory that it sums. Equal on all ranks.
  virtual Device device() const = 0;
  // Returns the number of the GPU whose memory it sums, as CUDA counts them. -1 on CPU.
  virtual int gpu() const { return -1; }
  // Returns the implementation's name, a text that lives as long as the program.
  virtual std::string_view name() const = 0;  // "alone", "shm", "tcp", "hierarchical", "nccl"

  // Says whether a CUDA graph captures what the current stream gets. This rank alone.
  virtual bool is_capturing() const { return false; }

  // Returns new memory of this rank: `bytes` long, zeroed, 64-byte aligned, on device(). All ranks
  // must call it, with the same number. On CUDA it is for the current stream's later work. Only
  // memory from here can be summed. It lives until the last copy of the pointer is gone, even if
  // the collective is gone before.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  // Starts to reduce `flat` over all ranks, in place, and returns before that is complete. `flat`
  // must lie in memory from allocate(), at the same offset on all ranks. Nobody may touch it until
  // wait(ticket) has returned. The collective holds the memory until the sum is complete: the
  // caller may drop its pointer. On CUDA it starts after the work that the current stream holds
  // now. With kLaunchedMax sums under way it waits for the oldest one first.
  virtual Ticket launch(Flat flat, Reduction reduction) = 0;
  // Starts to sum `flat`: launch() with Reduction::kSum.
  Ticket launch_sum(Flat flat) { return launch(flat, Reduction::kSum); }

  // Starts a launch() of which each rank gets its own parts alone. They have the bits of launch()
  // of the whole flat, but in nccl. They are there after wait(ticket). Elements of the others'
  // parts are unspecified then. Elements that are in no part stay as they are.
  //
  // Parts may come in any order, be empty and leave elements out. They may not overlap. Ranks whose
  // parts differ do different things, and are told so. `parts` is read during the call. All else is
  // as in launch(). The elements may be launched again only after wait(). Throws
  // std::invalid_argument if parts overlap, end behind the flat or have an owner that is no rank.
  // No other rank has heard of it then.
  virtual Ticket launch_reduce_scatter(Flat flat, std::span<const Part> parts,
                                       Reduction reduction) = 0;

  // Starts to give each part of its owner to all ranks, as it is on the owner now. After
  // wait(ticket) all parts have the same bits on all ranks. Elements that are in no part stay as
  // they are. All else is as in launch_reduce_scatter().
  virtual Ticket launch_all_gather(Flat flat, std::span<const Part> parts) = 0;

  // Starts to give elements of each rank to others: PyTorch's all_to_all. All ranks give the same
  // transfers, in the same order. `flat` has the elements of this rank, and the places of those
  // that it gets. After wait(ticket) they are there. All other elements stay as they are.
  //
  // On no rank may a place overlap another one, or elements that the rank gives. Elements may go to
  // several ranks. `transfers` is read during the call. All else is as in launch_reduce_scatter().
  // Throws std::invalid_argument if a transfer ends behind the flat, has a rank that is none, or
  // its place overlaps. No other rank has heard of it then.
  virtual Ticket launch_all_to_all(Flat flat, std::span<const Transfer> transfers) = 0;

  // Does this rank's share of everything that all ranks have launched. Waits for nobody. Ranks may
  // call it at different times, or not at all. nccl only looks for errors here, as check() does.
  virtual void progress() = 0;

  // Throws if anything has failed since the last call. For CUDA, where sums may fail after wait():
  // ask before what depends on them is trusted, kept or sent on. On CPU wait() has told all.
  virtual void check() {}

  // Returns when this operation and all launched before it are complete. The elements of a sum then
  // have the same bits on all ranks. All ranks must call it at the same place among their
  // operations, as they must any operation. On CUDA it returns at once: what the current stream
  // gets from now on starts after them. So does it after broadcast(), send() and receive().
  virtual void wait(Ticket ticket) = 0;

  // Copies root's elements to all other ranks. `flat` may lie anywhere on device(). On CUDA the
  // copy starts after the work that the current stream holds.
  virtual void broadcast(Flat flat, int root) = 0;

  // Gives every rank the bytes of all ranks, by rank. Host memory. Lengths may differ; each is at
  // most kGatherBytesMax.
  virtual std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine) = 0;

  // Waits until every rank has called it.
  virtual void barrier() = 0;

  // Waits as barrier() does, with a limit of its own. Past it CollectiveError names every rank that
  // has not come. nccl cannot tell which, and throws at once.
  virtual void monitored_barrier(std::chrono::milliseconds limit) = 0;

  // Returns the memory of `rank` that corresponds to `flat` here. This rank can read it if ranks
  // share the memory of allocate(). Null where they share none. Bytes that another rank writes are
  // there after a barrier() of both, and must stay until the next one.
  virtual std::byte* memory_of(Flat /*flat*/, int /*rank*/) { return nullptr; }

  // Sends `flat` to one rank, which must call receive(); the others have no part in it. Both
  // complete the sums that they have launched first. It returns when all has been received. Over
  // TCP it returns when all is on its way and the other one receives. `flat` may lie anywhere on
  // device(). It must have as many bytes on both sides: on CPU CollectiveError is thrown where it
  // has not. Bytes from one rank to another arrive in order.
  virtual void send(Flat flat, int to) = 0;
  // Receives into `flat` from one rank, which must call send(). It returns when all is there. The
  // rules are those of send().
  virtual void receive(Flat flat, int from) = 0;

  // Makes a collective of each group of ranks. A group gives the same `color`, and is ordered by
  // `key` and then by rank here. All ranks must call it. Null where `color` is negative: that rank
  // is in no group. Errors of the start, as CollectiveError. This collective goes on, beside the
  // new ones. A group knows nothing of it. If one rank waits in the group and one outside, both
  // come to their deadline.
  virtual std::unique_ptr<Collective> split(int color, int key) = 0;

  // Makes a collective of the same ranks with another GPU of this process: one sums the memory of
  // one GPU. All ranks must call it, each with its own number. The two have their failures in
  // common. The calling thread keeps its current GPU. Throws std::invalid_argument for a number
  // that is no GPU's, and CollectiveError as split(). On CPU there is none: std::logic_error.
  virtual std::unique_ptr<Collective> on_gpu(int gpu);

  // Gives up all sums under way, on all ranks: each must call it, and it returns when all have. A
  // rank that waits for anything of before throws CollectiveError, which says who has called
  // reset(). After that error, and no other, a program may go on, with reset(). The memory of those
  // sums then holds unspecified values. Throws CollectiveError if a rank has died or does not call
  // it before the deadline. Also if the implementation cannot do it: nccl, hierarchical.
  virtual void reset() = 0;

  // Returns how often reset() has ended well: memory and tickets of before are void.
  virtual std::uint32_t resets() const { return 0; }

  // Returns the last 1,024 operations of this rank as JSON, with the keys of PyTorch's flight
  // recorder. Also after a failure: then it shows what was under way. Empty text where nothing is
  // kept: alone.
  virtual std::string flight_record() const { return {}; }

  // Writes flight_record() to a file, whole or not at all. Throws CollectiveError where that fails,
  // and where nothing is kept.
  void write_flight_record(const std::string& path) const;

  // Adds host numbers over all ranks, in rank order: all ranks get the same bits. For metrics (sums
  // and counts). `values` must have the same size on all ranks, at most kGatherBytesMax bytes.
  void sum(std::span<double> values);

  // Gives root's bytes to every rank. They may have any length. The `mine` of the other ranks is
  // ignored. Host memory. For descriptions, not for tensors.
  std::vector<std::byte> from_root(std::span<const std::byte> mine, int root);

  // The most sums that may be under way. 256 buckets of 25 MiB (PyTorch's limit) are a model of 6
  // GB.
  static constexpr std::uint32_t kLaunchedMax = 256;

  // The most bytes that one rank may give to all_gather_bytes(). Shapes and metrics are small;
  // tensors travel by broadcast, sums and launch_all_gather().
  static constexpr std::size_t kGatherBytesMax = std::size_t{256} << 10;

 protected:
  // A peer to send to or to receive from. Throws CollectiveError unless it is another rank.
  std::size_t other_rank(int peer) const;

  // Throws CollectiveError if `bytes` is more than kGatherBytesMax.
  static void check_gather_size(std::size_t bytes);
};

// Makes a world of one, on CPU, which the caller owns. Its tickets count on from `last_ticket`:
// tests start just below the wrap.
std::unique_ptr<Collective> make_alone_collective(Ticket last_ticket = 0);

// A dimension of a Mesh, and the number of ranks in it.
struct MeshAxis {
  std::string name;  // not empty
  int ranks = 1;     // 1 or more
};

// All ranks in a grid, as PyTorch's DeviceMesh lays them out: the last axis counts fastest. Along
// each axis a rank has a group, of the ranks that differ from it in that axis alone.
//
//   const Mesh mesh(*process.collective, {{"data", 2}, {"tensor", 2}});
//   DataParallel parallel(net.ptr(), mesh.along("data"));
//   const TensorGroup group(mesh.along("tensor"));
class Mesh {
 public:
  // Makes the groups, which it owns. All ranks must call it. `ranks` must outlive it. Throws
  // std::invalid_argument, before any rank is asked, for axes that do not make up all ranks.
  // CollectiveError, as split().
  Mesh(Collective& ranks, std::vector<MeshAxis> axes);

  // Returns the group of an axis, in which this rank has its place along the axis as its rank.
  // Throws std::invalid_argument for another name. This rank alone.
  Collective& along(std::string_view axis) const;

 private:
  std::vector<MeshAxis> axes_;
  std::vector<std::unique_ptr<Collective>> groups_;  // by axis
};

}  // namespace ddprun
