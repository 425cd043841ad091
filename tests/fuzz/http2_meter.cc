// Feeds Http2Meter what a peer sends before its proof and after it. It must judge as a model does
// that keeps everything, and no connection gets more through than its allowance says. A peer in
// clear gets the same refusal however its bytes are cut (ClearRefusal), and little of it.

#include "rendezvous/trust/http2_meter.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "rendezvous/trust/clear_refusal.h"
#include "rendezvous/trust/http2_frame.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::rendezvous {
namespace {

using fuzz::ScriptInput;
using Wire = Http2Meter::Wire;

// An eighth of a second: allowances of so much are exact numbers.
constexpr std::chrono::milliseconds kTick{125};
constexpr std::int64_t kParts = 8;
constexpr std::size_t kMostSent = 1 << 20U;
constexpr int kMostReads = 20'000;
constexpr std::size_t kMostAnswer = 300;

constexpr std::array<std::size_t, 8> kLengths = {0, 1, 4, 100, 1000, 4000, 16'000, 17'000};

// A budget in eighths of its unit, in whole numbers.
class Purse {
 public:
  bool pay(std::int64_t amount, const Allowance& allowed, std::int64_t tick) {
    const auto most = kParts * static_cast<std::int64_t>(allowed.at_once);
    const auto more = (tick - at_) * static_cast<std::int64_t>(allowed.per_second);
    left_ = is_new_ ? most : std::min(most, left_ + more);
    is_new_ = false;
    at_ = tick;
    left_ -= kParts * amount;
    return left_ >= 0;
  }

 private:
  bool is_new_ = true;
  std::int64_t left_ = 0;
  std::int64_t at_ = 0;
};

// Keeps all bytes, and reads frames out of them.
class Model {
 public:
  explicit Model(Wire wire) : wire_(wire) {}

  void prove() { proves_ = true; }

  bool took(std::string_view bytes, std::int64_t tick) {
    if (proves_ && !is_proven_) {
      is_proven_ = true;
      reads_ = bytes_ = frames_ = streams_ = {};
    }
    const MeterLimits& limits = is_proven_            ? kProvenMeter
                                : wire_ == Wire::kTls ? kUnprovenTlsMeter
                                                      : kUnprovenMeter;
    all_ += bytes;
    is_good_ = is_good_ && reads_.pay(1, limits.reads, tick) &&
               bytes_.pay(std::ssize(bytes), limits.bytes, tick) &&
               (wire_ == Wire::kTls || frames_are_good(limits, tick));
    return is_good_;
  }

 private:
  bool frames_are_good(const MeterLimits& limits, std::int64_t tick) {
    const auto read = std::min(all_.size(), kHttp2Preface.size());
    if (all_.substr(0, read) != kHttp2Preface.substr(0, read)) return false;
    constexpr std::size_t kHead = 9;
    while (all_.size() >= next_ + kHead) {
      const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(all_[next_ + i]); };
      const std::size_t length = (std::size_t{at(0)} << 16U) + (std::size_t{at(1)} << 8U) + at(2);
      const int kind = at(3);
      if (next_ == kHttp2Preface.size() && kind != 4) return false;
      if (!frames_.pay(1, limits.frames, tick)) return false;
      if ((kind == 1 || kind == 3) && !streams_.pay(1, limits.streams, tick)) return false;
      if (kind == 1) block_ = 0;
      if (kind == 1 || kind == 9) block_ += length;
      if ((kind == 1 || kind == 9) && block_ > limits.header_block) return false;
      next_ += kHead + length;
    }
    return true;
  }

  const Wire wire_;
  std::string all_;
  std::size_t next_ = kHttp2Preface.size();  // frame
  std::size_t block_ = 0;
  bool proves_ = false;
  bool is_proven_ = false;
  bool is_good_ = true;
  Purse reads_;
  Purse bytes_;
  Purse frames_;
  Purse streams_;
};

class Peer {
 public:
  explicit Peer(Wire wire) : wire_(wire), meter_(wire), model_(wire) {}

  void run(ScriptInput& script) {
    while (!script.empty() && reads_ < kMostReads && sent_.size() < kMostSent) {
      switch (script.choice(6)) {
        case 0:
          unit_ = script.text();
          send(script.byte());
          break;
        case 1:
          unit_ = frame(script);
          send(script.byte());
          break;
        case 2:
          tick_ += script.byte();
          break;
        case 3:
          meter_.prove();
          model_.prove();
          is_proven_ = true;
          break;
        case 4:
          unit_ = std::string(kHttp2Preface) + write_frame(Http2Kind::kSettings, 0, 0, "123456");
          send(script.byte());
          break;
        case 5:  // a flood
          for (int left = script.byte(); left > 0; --left) send(255);
          break;
      }
    }
    check_refusal();
  }

 private:
  static std::string frame(ScriptInput& script) {
    const auto kind = static_cast<Http2Kind>(script.choice(11));
    const auto flags = script.byte();
    const std::string payload(kLengths.at(script.choice(kLengths.size())), 'x');
    return write_frame(kind, flags, 1, payload);
  }

  // In pieces of so many bytes, or whole.
  void send(std::uint8_t piece) {
    const std::size_t size = piece == 0 || piece == 255 ? unit_.size() : piece;
    for (std::string_view rest = unit_; !rest.empty() && reads_ < kMostReads; ++reads_) {
      const std::string_view part = rest.substr(0, size);
      rest.remove_prefix(part.size());
      sent_ += part;
      const bool took = meter_.took(part, Http2Meter::Time{} + tick_ * kTick);
      DDPRUN_ASSERT(took == model_.took(part, tick_));
      if (took && !is_proven_) passed_ += part.size();
      const Allowance& bytes = wire_ == Wire::kTls ? kUnprovenTlsMeter.bytes : kUnprovenMeter.bytes;
      DDPRUN_ASSERT(static_cast<double>(passed_) <=
                    bytes.at_once + bytes.per_second * static_cast<double>(tick_) / kParts);
    }
  }

  void check_refusal() const {
    const std::string_view said = std::string_view(sent_).substr(0, kClearRefusalReads);
    ClearRefusal whole;
    const std::string answer = whole.answer(said);
    DDPRUN_ASSERT(answer.size() <= kMostAnswer);
    ClearRefusal cut;
    std::string answers;
    for (const char& byte : said) answers += cut.answer({&byte, 1});
    DDPRUN_ASSERT(answers == answer);
    DDPRUN_ASSERT(cut.is_done() == whole.is_done());
  }

  const Wire wire_;
  Http2Meter meter_;
  Model model_;
  std::string unit_;
  std::string sent_;
  std::size_t passed_ = 0;
  std::int64_t tick_ = 0;
  int reads_ = 0;
  bool is_proven_ = false;
};

}  // namespace
}  // namespace ddprun::rendezvous

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;  // NOLINT(google-build-using-namespace)
  fuzz::ScriptInput script(data, size);
  rendezvous::Peer peer(script.flag() ? rendezvous::Http2Meter::Wire::kTls
                                      : rendezvous::Http2Meter::Wire::kClear);
  peer.run(script);
  return 0;
}
