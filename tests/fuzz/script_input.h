// A fuzzer's input as a script: bytes that are taken from the front, each a choice of the fuzzer.
// Past the end everything is zero or empty, so every input is a whole script. The bytes must
// outlive this.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::fuzz {

class ScriptInput {
 public:
  ScriptInput(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }

  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }

  // 0 … count-1.
  std::size_t choice(std::size_t count) { return byte() % count; }

  bool flag() { return (byte() & 1U) != 0; }

  // Any 64 bits, the first byte lowest.
  std::int64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 8) value |= std::uint64_t{byte()} << shift;
    return static_cast<std::int64_t>(value);
  }
  int small_number() { return static_cast<int>(static_cast<std::int8_t>(byte())); }

  // At most `most` of the bytes that are left.
  std::string_view bytes(std::size_t most) {
    const std::string_view taken = rest_.substr(0, std::min(most, rest_.size()));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  // A text with its length in front.
  std::string text() { return std::string(bytes(byte())); }
  std::string_view all() { return bytes(rest_.size()); }

 private:
  std::string_view rest_;
};

}  // namespace ddprun::fuzz
