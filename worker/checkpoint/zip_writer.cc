#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <utility>

#include "worker/checkpoint/zip_file.h"
#include "worker/checkpoint/zip_format.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 19;

// Returns the number as a field of 32 bits holds it.
std::uint32_t short_form(std::uint64_t number) {
  return number < zip::kIn64 ? static_cast<std::uint32_t>(number) : zip::kIn64;
}

// The fields that a local and a central record have in the same order. A local one of ours leaves
// the numbers to the descriptor behind the bytes.
void append_common(std::string& record, std::uint32_t bytes, std::uint32_t crc, std::size_t name,
                   std::size_t extra) {
  zip::append(record, zip::kVersion64);  // needed to read it
  zip::append(record, static_cast<std::uint16_t>(zip::kUtf8Names | zip::kHasDescriptor));
  zip::append(record, zip::kStored);
  zip::append(record, std::uint32_t{0});  // time and date: equal states give equal bytes
  zip::append(record, crc);
  zip::append(record, bytes);
  zip::append(record, bytes);
  zip::append(record, static_cast<std::uint16_t>(name));
  zip::append(record, static_cast<std::uint16_t>(extra));
}

}  // namespace

Result<void> ZipWriter::put(std::string_view bytes) {
  offset_ += bytes.size();
  return sink_(std::as_bytes(std::span(bytes)));
}

Result<void> ZipWriter::add(std::string_view name, std::span<const std::byte> bytes) {
  const bool large = bytes.size() >= zip::kIn64;
  std::string extra;
  if (large) {
    zip::append(extra, zip::kZip64Tag);
    zip::append(extra, std::uint16_t{16});
    extra.append(16, '\0');
  }
  // Padding is a field of its own, with 4 bytes before it.
  const std::uint64_t unpadded = offset_ + zip::kLocalBytes + name.size() + extra.size() + 4;
  const std::size_t padding = (kZipAlignBytes - unpadded % kZipAlignBytes) % kZipAlignBytes;
  zip::append(extra, zip::kPaddingTag);
  zip::append(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string header;
  zip::append(header, zip::kLocalSignature);
  append_common(header, large ? zip::kIn64 : 0, 0, name.size(), extra.size());
  header += name;
  header += extra;
  written_.push_back({std::string(name), offset_, bytes.size(), 0});
  if (auto done = put(header); !done) return done;
  auto crc = put_bytes(bytes);
  if (!crc) return crc.error();
  written_.back().crc = *crc;

  std::string descriptor;
  zip::append(descriptor, zip::kDescriptorSignature);
  zip::append(descriptor, *crc);
  for (int i = 0; i < 2; ++i) {
    if (large) {
      zip::append(descriptor, std::uint64_t{bytes.size()});
    } else {
      zip::append(descriptor, static_cast<std::uint32_t>(bytes.size()));
    }
  }
  return put(descriptor);
}

// Sums each piece while it is in the cache for the sink. Returns the CRC.
Result<std::uint32_t> ZipWriter::put_bytes(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0;
  for (std::size_t done = 0; done < bytes.size();) {
    const auto piece = bytes.subspan(done, std::min(kPieceBytes, bytes.size() - done));
    crc = libdeflate_crc32(crc, piece.data(), piece.size());
    if (auto written = sink_(piece); !written) return written.error();
    done += piece.size();
  }
  offset_ += bytes.size();
  return crc;
}

Result<void> ZipWriter::finish() {
  const std::uint64_t start = offset_;
  std::string directory;
  for (const EntryRecord& entry : written_) {
    std::string extra;
    if (entry.bytes >= zip::kIn64) {
      zip::append(extra, entry.bytes);
      zip::append(extra, entry.bytes);
    }
    if (entry.header_offset >= zip::kIn64) zip::append(extra, entry.header_offset);
    std::string field;
    if (!extra.empty()) {
      zip::append(field, zip::kZip64Tag);
      zip::append(field, static_cast<std::uint16_t>(extra.size()));
    }
    zip::append(directory, zip::kCentralSignature);
    zip::append(directory, zip::kVersion64);  // made by
    append_common(directory, short_form(entry.bytes), entry.crc, entry.name.size(),
                  field.size() + extra.size());
    directory.append(10, '\0');  // no comment, first disk, no attributes
    zip::append(directory, short_form(entry.header_offset));
    directory.append(entry.name).append(field).append(extra);
  }
  const std::uint64_t bytes = directory.size();
  const std::uint64_t count = written_.size();
  std::string end;
  zip::append(end, zip::kEnd64Signature);
  zip::append(end, std::uint64_t{zip::kEnd64Bytes - 12});
  zip::append(end, zip::kVersion64);
  zip::append(end, zip::kVersion64);
  zip::append(end, std::uint64_t{0});  // one disk
  for (const std::uint64_t number : {count, count, bytes, start}) zip::append(end, number);
  zip::append(end, zip::kLocator64Signature);
  zip::append(end, std::uint32_t{0});
  zip::append(end, start + bytes);
  zip::append(end, std::uint32_t{1});
  zip::append(end, zip::kEndSignature);
  zip::append(end, std::uint32_t{0});
  const auto few = static_cast<std::uint16_t>(count < zip::kIn64Short ? count : zip::kIn64Short);
  zip::append(end, few);
  zip::append(end, few);
  zip::append(end, short_form(bytes));
  zip::append(end, short_form(start));
  zip::append(end, std::uint16_t{0});
  return put(directory + end);
}

}  // namespace ddprun::worker
