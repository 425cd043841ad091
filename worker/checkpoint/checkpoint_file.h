// A checkpoint as a file: that of Python's torch.save, which its torch.load opens without further
// arguments. Values in, values out; no LibTorch. A reader executes nothing and allocates no more
// than the file holds, besides kMaxTreeBytes (pickle.h). Errors are one line that names the file
// and what is wrong with it. Any thread.
#pragma once

#include <ddprun/checkpoint.h>
#include <ddprun/value.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "worker/checkpoint/pickle.h"
#include "worker/checkpoint/zip_file.h"

namespace ddprun::worker {

struct CheckpointFile {
  Value value;
  // A hash of the bytes: ranks that read the same file agree.
  std::uint64_t fingerprint = 0;
  std::string save_id;  // of the distributed save that has written it; else empty
};

// Tensors' bytes stay in the file, which is open until the last of them is gone. A read
// compares their CRC. Errors: kSystem if the file cannot be read, kProtocol if it is no checkpoint,
// kLimit if a bound is passed. Objects of other classes are an error, or passed over (pickle.h).
Result<CheckpointFile> read_checkpoint_file(const std::filesystem::path& path,
                                            Objects objects = Objects::kRefuse);
// Opens a regular file. The error names no file.
Result<std::shared_ptr<const ByteSource>> open_file(const std::filesystem::path& path);

// Reads a checkpoint from bytes anywhere. The error names no file.
Result<CheckpointFile> read_checkpoint(std::shared_ptr<const ByteSource> source,
                                       Objects objects = Objects::kRefuse);

// Replaces `path` as a whole (atomic_file.h). Blocks until the disk has it.
Result<void> write_checkpoint_file(const std::filesystem::path& path, const Value& value,
                                   const SaveOptions& options = {});
Result<void> write_checkpoint(const ByteSink& sink, const Value& value);
// The same of values that write_pickle() has written. `save_id` goes into the file, if there is
// one; Python passes over it.
Result<void> write_pickled_file(const std::filesystem::path& path, const PickleOutput& pickled,
                                const SaveOptions& options = {});
Result<void> write_pickled(const ByteSink& sink, const PickleOutput& pickled,
                           std::string_view save_id = {});

// "model_best" with the endings of `path`, in its folder: model_best.pth.tar for
// checkpoint.pth.tar, as in PyTorch's ImageNet example.
std::filesystem::path best_name_of(const std::filesystem::path& path);

}  // namespace ddprun::worker
