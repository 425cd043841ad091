// The frames that travel on a connection between two ranks. A frame is a head and a body of
// `bytes`. An operation is one kBegin frame and then its data, in kData frames. All ranks run the
// same build on x86-64, and say so when they meet (tcp_connect.h). So plain structs are their own
// format.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>

#include "worker/collective/core/operation_ring.h"

namespace ddprun::worker {

enum class FrameKind : std::uint32_t {
  kBegin,  // an OperationHead: the rank begins its next operation
  kData,   // bytes of the operation that was begun last
  kReset,  // a ResetNote: the rank has called reset()
  kAbort,  // text: why the rank gives up
  kLeave,  // nothing: the rank has destroyed its collective
};

struct FrameHead {
  FrameKind kind;
  std::uint32_t bytes;  // of the body
};

// Ranks compare the heads of their operations: unlike ones must not be mixed.
struct OperationHead {
  std::uint32_t number;    // in the rank's operation ring
  std::uint32_t sequence;  // of collective operations; 0 in a transfer
  OperationKind kind;
  Dtype dtype;
  Reduction reduction;
  std::uint8_t unused = 0;
  std::int32_t root;        // of a broadcast; else -1
  OperationName name;       // for messages: unlike names are no unlike operations
  std::uint64_t bytes;      // of the whole; in a gather of this rank's part
  std::uint64_t parts = 0;  // LaunchRequest::hash()
};

// How far a rank was when it called reset(). All ranks go on after the foremost.
struct ResetNote {
  std::uint32_t operations;
  std::uint32_t sequence;
  std::uint32_t tickets;
};

// A rank can say something else (kReset, kAbort) between two frames only.
inline constexpr std::size_t kFrameBytesMax = std::size_t{256} << 10;

// Why a rank gives up is cut to so many bytes.
inline constexpr std::size_t kReasonBytesMax = 2048;

}  // namespace ddprun::worker
