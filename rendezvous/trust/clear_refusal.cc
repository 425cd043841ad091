#include "rendezvous/trust/clear_refusal.h"

#include <algorithm>

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view kToNode = "it wants TLS: tls_ca, tls_cert and tls_key in --rdzv-conf";
constexpr std::string_view kToOperator =
    "it wants TLS: expected --tls-ca, --tls-cert and --tls-key";
constexpr std::string_view kFailedPrecondition = "9";  // gRPC's status code

// A field that no table has (RFC 7541, section 6.2.2). Both are shorter than 127 bytes.
std::string field(std::string_view name, std::string_view value) {
  std::string text(1, '\0');
  text += static_cast<char>(name.size());
  text += name;
  text += static_cast<char>(value.size());
  return text.append(value);
}

}  // namespace

std::string ClearRefusal::answer(std::string_view bytes) {
  if (is_done_) return {};
  read_ += bytes.size();
  is_done_ = read_ > kClearRefusalReads;
  const std::size_t preface = std::min(kHttp2Preface.size() - preface_read_, bytes.size());
  if (bytes.substr(0, preface) != kHttp2Preface.substr(preface_read_, preface)) is_done_ = true;
  if (is_done_) return {};
  preface_read_ += preface;
  unread_ += bytes.substr(preface);
  Http2Head head{};
  while (unread_.size() >= head.size()) {
    std::ranges::copy_n(unread_.begin(), head.size(), head.begin());
    const Http2Frame frame = read_frame_head(head);
    if (unread_.size() < head.size() + frame.length) break;
    const std::string payload = unread_.substr(head.size(), frame.length);
    unread_.erase(0, head.size() + frame.length);
    if (frame.kind == Http2Kind::kHeaders) return refuse(frame.stream, payload);
  }
  return {};
}

// gRPC writes the method's path as it is.
std::string ClearRefusal::refuse(std::uint32_t stream, std::string_view headers) {
  is_done_ = true;
  const bool is_operator = headers.find(".Control/") != std::string_view::npos;
  constexpr char kStatus200 = '\x88';  // RFC 7541, appendix A, 8
  const std::string fields = kStatus200 + field("content-type", "application/grpc") +
                             field("grpc-status", kFailedPrecondition) +
                             field("grpc-message", is_operator ? kToOperator : kToNode);
  return write_frame(Http2Kind::kSettings, kAck, 0) +
         write_frame(Http2Kind::kHeaders, kEndStream | kEndHeaders, stream, fields);
}

}  // namespace ddprun::rendezvous
