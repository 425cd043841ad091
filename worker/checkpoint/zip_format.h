// The records of a zip file as bytes (PKWARE's APPNOTE.TXT 6.3, sections 4.3 to 4.5). They have
// signatures, the numbers that mean "see the zip64 field", and little-endian fields. Pure.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ddprun::worker::zip {

inline constexpr std::uint32_t kLocalSignature = 0x04034B50;
inline constexpr std::uint32_t kCentralSignature = 0x02014B50;
inline constexpr std::uint32_t kEndSignature = 0x06054B50;
inline constexpr std::uint32_t kEnd64Signature = 0x06064B50;
inline constexpr std::uint32_t kLocator64Signature = 0x07064B50;
inline constexpr std::uint32_t kDescriptorSignature = 0x08074B50;

inline constexpr std::size_t kLocalBytes = 30;
inline constexpr std::size_t kCentralBytes = 46;
inline constexpr std::size_t kEndBytes = 22;
inline constexpr std::size_t kEnd64Bytes = 56;
inline constexpr std::size_t kLocator64Bytes = 20;

// A field with this value is in the zip64 extra field instead.
inline constexpr std::uint32_t kIn64 = 0xFFFFFFFF;
inline constexpr std::uint16_t kIn64Short = 0xFFFF;
inline constexpr std::uint16_t kZip64Tag = 0x0001;
// PyTorch's padding before an entry's bytes has this tag.
inline constexpr std::uint16_t kPaddingTag = 0x4246;

inline constexpr std::uint16_t kStored = 0;
inline constexpr std::uint16_t kEncrypted = 0x0001;
// The CRC and the lengths follow the bytes.
inline constexpr std::uint16_t kHasDescriptor = 0x0008;
inline constexpr std::uint16_t kUtf8Names = 0x0800;
inline constexpr std::uint16_t kVersion64 = 45;

// The number at `offset`. The caller has looked that it is there.
template <std::unsigned_integral Number>
Number get(std::span<const std::byte> record, std::size_t offset) {
  Number number = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) {
    number = static_cast<Number>((std::uint64_t{number} << 8U) |
                                 std::to_integer<std::uint64_t>(record[offset + i]));
  }
  return number;
}

template <std::unsigned_integral Number>
void append(std::string& record, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    record += static_cast<char>((std::uint64_t{number} >> (8U * i)) & 0xFFU);
  }
}

}  // namespace ddprun::worker::zip
