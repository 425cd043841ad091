// A distributed checkpoint as a folder: `.metadata`, and a file of each rank with what it has. It
// is that of torch.distributed.checkpoint (DCP), which loads it on any number of ranks. The folder
// appears as a whole: all files are written into `<folder>.tmp`, and the last step gives it its
// name. No LibTorch. Errors are one line that names the file. Blocks until the disk has the bytes.
#pragma once

#include <ddprun/collective.h>
#include <ddprun/value.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "worker/checkpoint/dcp_metadata.h"
#include "worker/checkpoint/dense_boxes.h"
#include "worker/checkpoint/pickle.h"
#include "worker/checkpoint/zip_file.h"

namespace ddprun::worker {

// A value, or a piece of a tensor, that this rank writes.
struct DcpItem {
  std::string key;
  DcpPath path;
  std::string dtype;                // of a tensor, else empty
  std::vector<std::int64_t> sizes;  // of the whole tensor
  std::optional<Box> box;           // nothing for a value, and for a tensor without elements
  PickleOutput pickled;             // nothing for a tensor without elements
};

// Saves the items of all ranks. All must call it, with the same folder, which all see. A rank that
// has none gives its error. All get an error or none; after one, nothing is left of the save.
Result<void> save_dcp(const std::filesystem::path& folder,
                      const Result<std::vector<DcpItem>>& items, Collective& ranks);

// Whether save_dcp() could replace the folder: it has nothing but a distributed checkpoint, or does
// not exist. Its parent must be writable.
Result<void> check_dcp_folder(const std::filesystem::path& folder);

// An open checkpoint.
class DcpFolder {
 public:
  static Result<DcpFolder> open(const std::filesystem::path& folder);

  const DcpMetadata& metadata() const { return metadata_; }
  // The value, or the tensor, that lies there. Tensors' bytes stay in the file, which is open until
  // they are gone.
  Result<Value> read(const DcpBytes& bytes) const;
  // The path of a file in it.
  std::filesystem::path path_of(const std::string& file) const { return folder_ / file; }

 private:
  using OpenShard = std::pair<std::string, std::shared_ptr<const ByteSource>>;

  explicit DcpFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // The open file. The one that was read longest ago is closed if there are too many.
  Result<std::shared_ptr<const ByteSource>> shard(const std::string& name) const;

  std::filesystem::path folder_;
  DcpMetadata metadata_;
  mutable std::vector<OpenShard> shards_;  // the one that was read last is the last
};

}  // namespace ddprun::worker
