// The classes of PyTorch that a distributed checkpoint's metadata names, and small questions about
// its parts. "module name", as a pickle has them. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "worker/checkpoint/dense_boxes.h"

namespace ddprun::worker::dcp {

inline constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata Metadata";
inline constexpr std::string_view kTensor =
    "torch.distributed.checkpoint.metadata TensorStorageMetadata";
inline constexpr std::string_view kValue =
    "torch.distributed.checkpoint.metadata BytesStorageMetadata";
inline constexpr std::string_view kProperties =
    "torch.distributed.checkpoint.metadata TensorProperties";
inline constexpr std::string_view kChunk =
    "torch.distributed.checkpoint.metadata ChunkStorageMetadata";
inline constexpr std::string_view kIndex = "torch.distributed.checkpoint.metadata MetadataIndex";
inline constexpr std::string_view kSaveMeta = "torch.distributed.checkpoint.metadata StorageMeta";
inline constexpr std::string_view kFormat =
    "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING";
inline constexpr std::string_view kStorage = "torch.distributed.checkpoint.filesystem _StorageInfo";
inline constexpr std::string_view kSize = "torch Size";
inline constexpr std::string_view kLayout = "torch.serialization _get_layout";
// A member of an enum, as Python 3.11.0 to 3.11.3 names it. Nothing is looked up.
inline constexpr std::string_view kGetattr = "builtins getattr";
inline constexpr std::string_view kOrdered = "collections OrderedDict";
// The folder's own path, which nobody needs. Python 3.13 has moved its class.
inline constexpr std::string_view kPath = "pathlib PosixPath";
inline constexpr std::string_view kPath13 = "pathlib._local PosixPath";
inline constexpr std::string_view kPurePath = "pathlib PurePosixPath";
inline constexpr std::string_view kPurePath13 = "pathlib._local PurePosixPath";
inline constexpr std::string_view kDtypeModule = "torch ";

// The most elements of a tensor. Sums of offsets and sizes are far from overflowing then.
inline constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 48;

// Whether it has the name of a dtype of torch's, maybe a newer one. A tensor of an unknown dtype is
// refused when it is read, and hinders no other.
bool is_dtype(std::string_view global);
// Whether it names a file in a folder, and nothing outside.
bool is_file_name(std::string_view name);
// Whether a tensor of these sizes has the box.
bool lies_in(const Box& box, const std::vector<std::int64_t>& sizes);

}  // namespace ddprun::worker::dcp
