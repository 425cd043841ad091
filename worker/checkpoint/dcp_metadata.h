// The `.metadata` of a folder of torch.distributed.checkpoint (DCP). It says which tensors and
// values there are, and in which bytes of which file each piece of them lies. See PyTorch 2.11,
// torch/distributed/checkpoint/metadata.py and filesystem.py. It is a pickle of PyTorch's classes.
// Nothing in it is looked up or called. The reader knows the few opcodes and classes that DCP
// writes, and names any other. Every length is compared with the bytes that are there. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "worker/checkpoint/dense_boxes.h"
#include "worker/checkpoint/object_pickle.h"

namespace ddprun::worker {

// Bytes of a file of the folder: one file of torch.save.
struct DcpBytes {
  std::string file;  // its name in the folder
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  bool operator==(const DcpBytes&) const = default;
};

// A piece of a tensor.
struct DcpChunk {
  Box box;  // within the tensor
  DcpBytes bytes;

  bool operator==(const DcpChunk&) const = default;
};

// A tensor that lies in pieces.
struct DcpTensor {
  std::string dtype;  // Python's name in the module torch: "float32"
  std::vector<std::int64_t> sizes;
  std::vector<DcpChunk> chunks;  // of elements; pieces without any are left out

  bool operator==(const DcpTensor&) const = default;
};

// The place of an item in the dict of dicts and lists that was saved.
using DcpPath = std::vector<std::variant<std::int64_t, std::string>>;

struct DcpMetadata {
  std::map<std::string, DcpTensor> tensors;  // by key: "model.0.weight"
  std::map<std::string, DcpBytes> values;    // what is no tensor
  std::map<std::string, DcpPath> paths;      // of all keys
  std::string save_id;                       // of this save alone; may be empty

  bool operator==(const DcpMetadata&) const = default;
};

// Errors: kProtocol, or kLimit where a bound is passed. One line.
Result<DcpMetadata> read_dcp_metadata(std::span<const std::byte> pickle,
                                      const ObjectPickleBounds& bounds = {});

// Each item must have its bytes. Keys must be UTF-8.
std::string write_dcp_metadata(const DcpMetadata& metadata);

}  // namespace ddprun::worker
