#include <fmt/format.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "worker/checkpoint/dcp_metadata.h"
#include "worker/checkpoint/dcp_names.h"
#include "worker/checkpoint/pickle_opcodes.h"

namespace ddprun::worker {
namespace {

// The version that PyTorch 2.11 writes.
constexpr std::string_view kMetadataVersion = "1.0.0";

// A pickle of protocol 2. Classes and texts are kept in the memo.
class MetadataWriter {
 public:
  explicit MetadataWriter(const DcpMetadata& metadata) : metadata_(metadata) {}

  std::string write() {
    op(Opcode::kProto);
    bytes_ += '\2';
    object(dcp::kMetadata);
    put("state_dict_metadata"), put_items();
    put("planner_data"), put_paths();
    put("storage_data"), put_places();
    put("storage_meta"), put_save();
    put("version"), put(kMetadataVersion);
    built();
    op(Opcode::kStop);
    return std::move(bytes_);
  }

 private:
  // By name: the number in the pickle's memo.
  using Memo = std::unordered_map<std::string_view, std::uint64_t>;

  // Names what is in the memo. If the name is new, memoize() must follow what is put for it.
  bool is_known(Memo& memo, std::string_view name) {
    const auto [known, added] = memo.try_emplace(name, memo_size_);
    if (added) return false;
    op(Opcode::kLongBinGet);
    number(known->second, 4);
    return true;
  }

  void memoize() {
    op(Opcode::kLongBinPut);
    number(memo_size_++, 4);
  }

  void op(Opcode opcode) { bytes_ += static_cast<char>(opcode); }

  void number(std::uint64_t value, unsigned count) {
    for (unsigned i = 0; i < count; ++i) bytes_ += static_cast<char>((value >> (8U * i)) & 0xFFU);
  }

  void put(std::uint64_t value) {
    if (value <= INT32_MAX) {
      op(Opcode::kBinInt);
      return number(value, 4);
    }
    op(Opcode::kLong1);
    bytes_ += '\10';
    number(value, 8);
  }

  // Names of attributes, keys and files come with each piece.
  void put(std::string_view text) {
    if (is_known(texts_, text)) return;
    op(Opcode::kBinUnicode);
    number(text.size(), 4);
    bytes_ += text;
    memoize();
  }
  void put(const char* text) { put(std::string_view(text)); }

  void global(std::string_view name) {
    if (is_known(globals_, name)) return;
    op(Opcode::kGlobal);
    const auto space = name.find(' ');
    bytes_ += fmt::format("{}\n{}\n", name.substr(0, space), name.substr(space + 1));
    memoize();
  }

  // An object, to which pairs of attributes are added, until built().
  void object(std::string_view name) {
    global(name);
    op(Opcode::kEmptyTuple);
    op(Opcode::kNewObject);
    begin_dict();
  }
  void built() {
    op(Opcode::kSetItems);
    op(Opcode::kBuild);
  }
  void begin_dict() {
    op(Opcode::kEmptyDict);
    op(Opcode::kMark);
  }

  void put(const std::vector<std::int64_t>& sizes) {
    global(dcp::kSize);
    op(Opcode::kMark);
    for (const std::int64_t size : sizes) put(static_cast<std::uint64_t>(size));
    op(Opcode::kTuple);
    op(Opcode::kTuple1);
    op(Opcode::kReduce);
  }

  // PyTorch reads the dtype alone; the others are what it writes for any tensor.
  void put_properties(std::string_view dtype) {
    global(dcp::kProperties);
    op(Opcode::kEmptyTuple);
    op(Opcode::kNewObject);
    op(Opcode::kMark);
    global(*dtypes_.emplace(std::string(dcp::kDtypeModule).append(dtype)).first);
    global(dcp::kLayout);
    put("torch.strided");
    op(Opcode::kTuple1);
    op(Opcode::kReduce);
    op(Opcode::kNewFalse);
    global(dcp::kFormat);
    put(std::uint64_t{0});
    op(Opcode::kTuple1);
    op(Opcode::kReduce);
    op(Opcode::kNewFalse);
    op(Opcode::kTuple);
    op(Opcode::kBuild);
  }

  void put_items() {
    begin_dict();
    for (const auto& [key, tensor] : metadata_.tensors) {
      put(key);
      object(dcp::kTensor);
      put("properties"), put_properties(tensor.dtype);
      put("size"), put(tensor.sizes);
      put("chunks");
      op(Opcode::kEmptyList);
      op(Opcode::kMark);
      for (const DcpChunk& chunk : tensor.chunks) {
        object(dcp::kChunk);
        put("offsets"), put(chunk.box.offsets);
        put("sizes"), put(chunk.box.sizes);
        built();
      }
      op(Opcode::kAppends);
      built();
    }
    for (const auto& [key, bytes] : metadata_.values) {
      put(key);
      global(dcp::kValue);
      op(Opcode::kEmptyTuple);
      op(Opcode::kNewObject);
    }
    op(Opcode::kSetItems);
  }

  void put_paths() {
    begin_dict();
    for (const auto& [key, path] : metadata_.paths) {
      put(key);
      op(Opcode::kMark);
      for (const auto& part : path) {
        if (const auto* text = std::get_if<std::string>(&part)) {
          put(*text);
        } else {
          put(static_cast<std::uint64_t>(std::get<std::int64_t>(part)));
        }
      }
      op(Opcode::kTuple);
    }
    op(Opcode::kSetItems);
  }

  // `index`: the number of the piece in its list, a hint. Nothing for a value.
  void put_place(const std::string& key, const std::vector<std::int64_t>* offsets,
                 std::uint64_t index, const DcpBytes& bytes) {
    object(dcp::kIndex);
    put("fqn"), put(key);
    put("index");
    offsets == nullptr ? op(Opcode::kNone) : put(index);
    if (offsets != nullptr) put("offset"), put(*offsets);
    built();
    object(dcp::kStorage);
    put("relative_path"), put(bytes.file);
    put("offset"), put(bytes.offset);
    put("length"), put(bytes.length);
    built();
  }

  void put_places() {
    begin_dict();
    for (const auto& [key, tensor] : metadata_.tensors) {
      std::uint64_t index = 0;
      for (const DcpChunk& chunk : tensor.chunks)
        put_place(key, &chunk.box.offsets, index++, chunk.bytes);
    }
    for (const auto& [key, bytes] : metadata_.values) put_place(key, nullptr, 0, bytes);
    op(Opcode::kSetItems);
  }

  void put_save() {
    object(dcp::kSaveMeta);
    for (const char* unknown : {"checkpoint_id", "load_id"}) put(unknown), op(Opcode::kNone);
    put("save_id"), put(metadata_.save_id);
    put("modules"), op(Opcode::kEmptyList);
    built();
  }

  const DcpMetadata& metadata_;
  std::string bytes_;
  Memo globals_, texts_;  // views of constants, of the metadata and of `dtypes_`
  std::uint64_t memo_size_ = 0;
  std::set<std::string> dtypes_;
};

}  // namespace

std::string write_dcp_metadata(const DcpMetadata& metadata) {
  return MetadataWriter(metadata).write();
}

}  // namespace ddprun::worker
