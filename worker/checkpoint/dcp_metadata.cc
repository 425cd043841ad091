#include "worker/checkpoint/dcp_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "worker/checkpoint/dcp_names.h"
#include "worker/checkpoint/fields.h"
#include "worker/checkpoint/object_pickle.h"
#include "worker/checkpoint/pickle.h"

namespace ddprun::worker {
namespace {

using Id = ObjectPickle::Id;
// A longer text counts as several values.
constexpr std::size_t kTextBytesOfValue = 16;
// The place of a piece: the item's key, and the first indices of the piece. A value has none.
using Place = std::pair<std::string, std::optional<std::vector<std::int64_t>>>;

bool is_class_of_dcp(std::string_view global) {
  constexpr std::array kClasses{
      dcp::kMetadata, dcp::kTensor,   dcp::kValue,      dcp::kProperties, dcp::kChunk,  dcp::kIndex,
      dcp::kSaveMeta, dcp::kFormat,   dcp::kStorage,    dcp::kSize,       dcp::kLayout, dcp::kPath,
      dcp::kPath13,   dcp::kPurePath, dcp::kPurePath13, dcp::kOrdered,    dcp::kGetattr};
  return std::ranges::find(kClasses, global) != kClasses.end() || dcp::is_dtype(global);
}

// Takes the parts out of the objects. The first error counts.
class MetadataReader {
 public:
  MetadataReader(const ObjectPickle& pickle, const ObjectPickleBounds& bounds)
      : pickle_(pickle), bounds_(bounds) {}

  Result<DcpMetadata> read() {
    const Id root = pickle_.root();
    if (!pickle_.is_a(root, dcp::kMetadata)) return refused("it holds no Metadata");
    for (const auto& [index, info] : pairs_of(root, "storage_data")) add_place(index, info);
    for (const auto& [key, item] : pairs_of(root, "state_dict_metadata")) add_item(key, item);
    if (const auto paths = pickle_.attribute(root, "planner_data"); paths && pickle_.dict(*paths))
      for (const auto& [key, path] : *pickle_.dict(*paths)) add_path(key, path);
    if (const auto meta = pickle_.attribute(root, "storage_meta"))
      if (const auto id = pickle_.attribute(*meta, "save_id"))
        if (const auto* text = pickle_.text(*id)) read_.save_id = *text;
    if (error_) return *error_;
    return std::move(read_);
  }

 private:
  void fail(std::string message, ErrorCode code = ErrorCode::kProtocol) {
    if (!error_) error_ = Error(code, std::move(message));
  }

  const ObjectPickle::Pairs& pairs_of(Id object, std::string_view name) {
    static const ObjectPickle::Pairs kNone;
    const auto found = pickle_.attribute(object, name);
    const auto* pairs = found ? pickle_.dict(*found) : nullptr;
    if (pairs == nullptr) fail(fmt::format("its '{}' is no dict", name));
    return pairs == nullptr ? kNone : *pairs;
  }

  std::string text_of(std::optional<Id> id, std::string_view what) {
    const auto* text = id ? pickle_.text(*id) : nullptr;
    if (text == nullptr) {
      fail(fmt::format("{} is no text", what));
      return {};
    }
    spend(1 + text->size() / kTextBytesOfValue);
    return *text;
  }

  std::uint64_t count_of(std::optional<Id> id, std::string_view what) {
    const auto* number = id ? pickle_.number(*id) : nullptr;
    if (number == nullptr || *number < 0) {
      fail(fmt::format("{} is no count", what));
      return 0;
    }
    return static_cast<std::uint64_t>(*number);
  }

  // A value that a pickle names often takes memory each time here.
  void spend(std::size_t values) {
    spent_ += values;
    if (spent_ > bounds_.values)
      fail(fmt::format("more than {} values", bounds_.values), ErrorCode::kLimit);
  }

  std::vector<std::int64_t> sizes_of(std::optional<Id> id, std::string_view what) {
    const auto* items = id ? pickle_.items(*id) : nullptr;
    std::vector<std::int64_t> sizes;
    if (items == nullptr || items->size() > kMaxDimensions) {
      fail(fmt::format("{} is no torch.Size of {} dimensions at most", what, kMaxDimensions));
      return sizes;
    }
    spend(items->size());
    for (const Id item : *items) {
      const auto count = count_of(item, what);
      sizes.push_back(static_cast<std::int64_t>(count));
      if (count > dcp::kMaxElements) fail(fmt::format("{} is too large", what), ErrorCode::kLimit);
    }
    return sizes;
  }

  void add_place(Id index, Id info) {
    if (error_) return;
    const std::string key = text_of(pickle_.attribute(index, "fqn"), "a key of the storage");
    Place place{key, std::nullopt};
    const auto offset = pickle_.attribute(index, "offset");
    if (offset && pickle_.items(*offset) != nullptr) place.second = sizes_of(*offset, key);
    const auto extensions = pickle_.attribute(info, "transform_descriptors");
    if (extensions && pickle_.items(*extensions) != nullptr)
      return fail(
          fmt::format("'{}' was changed by an extension when it was saved", printable(key)));
    DcpBytes bytes{text_of(pickle_.attribute(info, "relative_path"), "the name of a file"),
                   count_of(pickle_.attribute(info, "offset"), "the offset of a piece"),
                   count_of(pickle_.attribute(info, "length"), "the length of a piece")};
    if (!dcp::is_file_name(bytes.file))
      return fail(fmt::format("'{}' is no name of a file in the folder", printable(bytes.file)));
    spend(1);
    places_.insert_or_assign(std::move(place), std::move(bytes));
  }

  // The bytes of a piece. The caller drops them where there is an error.
  DcpBytes bytes_of(const Place& place) {
    const auto found = places_.find(place);
    if (found != places_.end()) return found->second;
    fail(fmt::format("it does not say where a piece of '{}' is", printable(place.first)));
    return {};
  }

  void add_item(Id key_id, Id item) {
    if (error_) return;
    const std::string key = text_of(key_id, "a key");
    if (read_.tensors.contains(key) || read_.values.contains(key))
      return fail(fmt::format("it has the key '{}' more than once", printable(key)));
    spend(1);
    if (pickle_.is_a(item, dcp::kValue)) {
      read_.values.emplace(key, bytes_of({key, std::nullopt}));
    } else if (pickle_.is_a(item, dcp::kTensor)) {
      add_tensor(key, item);
    } else {
      fail(fmt::format("'{}' is neither a tensor nor a value", printable(key)));
    }
  }

  void add_tensor(const std::string& key, Id item) {
    DcpTensor tensor{.dtype = dtype_of(key, item),
                     .sizes = sizes_of(pickle_.attribute(item, "size"), key),
                     .chunks = {}};
    const auto chunks = pickle_.attribute(item, "chunks");
    const auto* items = chunks ? pickle_.items(*chunks) : nullptr;
    if (items == nullptr) return fail(fmt::format("'{}' has no list of pieces", printable(key)));
    for (const Id chunk : *items) add_chunk(key, chunk, tensor);
    read_.tensors.emplace(key, std::move(tensor));
  }

  // (dtype, layout, requires_grad, memory format, pinned)
  std::string dtype_of(const std::string& key, Id item) {
    const auto properties = pickle_.attribute(item, "properties");
    const auto state = properties ? pickle_.state(*properties) : std::nullopt;
    const auto* items = state ? pickle_.items(*state) : nullptr;
    const auto* name =
        items == nullptr || items->empty() ? nullptr : pickle_.global(items->front());
    if (name == nullptr || !dcp::is_dtype(*name)) {
      fail(fmt::format("'{}' has no dtype", printable(key)));
      return {};
    }
    return name->substr(dcp::kDtypeModule.size());
  }

  void add_chunk(const std::string& key, Id chunk, DcpTensor& tensor) {
    if (error_) return;
    spend(1);
    Box box{.offsets = sizes_of(pickle_.attribute(chunk, "offsets"), key),
            .sizes = sizes_of(pickle_.attribute(chunk, "sizes"), key)};
    if (error_) return;
    if (!dcp::lies_in(box, tensor.sizes))
      return fail(fmt::format("a piece of '{}' does not lie in the tensor", printable(key)));
    if (std::ranges::count(box.sizes, 0) > 0) return;
    auto bytes = bytes_of({key, box.offsets});
    tensor.chunks.push_back({std::move(box), std::move(bytes)});
  }

  void add_path(Id key_id, Id path_id) {
    if (error_) return;
    const std::string key = text_of(key_id, "a key");
    const auto* items = pickle_.items(path_id);
    if (items == nullptr) return;
    DcpPath path;
    spend(items->size());
    for (const Id item : *items) {
      if (const auto* number = pickle_.number(item)) {
        path.emplace_back(*number);
      } else {
        path.emplace_back(text_of(item, "a part of a path"));
      }
    }
    read_.paths.insert_or_assign(key, std::move(path));
  }

  const ObjectPickle& pickle_;
  const ObjectPickleBounds bounds_;
  DcpMetadata read_;
  std::map<Place, DcpBytes> places_;
  std::size_t spent_ = 0;
  std::optional<Error> error_;
};

}  // namespace

bool dcp::is_dtype(std::string_view global) {
  constexpr std::array<std::string_view, 8> kKinds{"float", "bfloat",  "int",  "uint",
                                                   "bool",  "complex", "qint", "quint"};
  if (!global.starts_with(kDtypeModule)) return false;
  const std::string_view name = global.substr(kDtypeModule.size());
  const auto is_of_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return std::ranges::all_of(name, is_of_name) &&
         std::ranges::any_of(kKinds, [&](auto kind) { return name.starts_with(kind); });
}

bool dcp::is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

bool dcp::lies_in(const Box& box, const std::vector<std::int64_t>& sizes) {
  if (box.offsets.size() != sizes.size() || box.sizes.size() != sizes.size()) return false;
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (box.offsets[i] > sizes[i] || box.sizes[i] > sizes[i] - box.offsets[i]) return false;
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(sizes[i]), &elements) ||
        elements > kMaxElements)
      return false;
  }
  return true;
}

Result<DcpMetadata> read_dcp_metadata(std::span<const std::byte> pickle,
                                      const ObjectPickleBounds& bounds) {
  const auto read = ObjectPickle::read(pickle, is_class_of_dcp, bounds);
  if (!read) return read.error();
  return MetadataReader(*read, bounds).read();
}

}  // namespace ddprun::worker
