// The bytes of a host to a node that probes it by TLS, and the PEM files of both. The host is a
// script that sends bytes of its own. Or it is OpenSSL's server whose bytes are changed, cut or
// followed by others. The probe ends, says one line, and says the right one where the host is what
// it claims to be.
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/loop.h"
#include "rendezvous/trust/tls_files.h"
#include "rendezvous/trust/tls_probe.h"
#include "tests/fuzz/loopback_listener.h"
#include "tests/fuzz/script_input.h"
#include "tests/rendezvous/trust/certificates.h"

namespace ddprun::rendezvous {
namespace {

using asio::ip::tcp;
using fuzz::listen_on_loopback;
using fuzz::ScriptInput;

// Nothing here takes more than moments; a machine that stands still is no finding.
constexpr std::chrono::seconds kDeadline{20};
constexpr std::size_t kMostChanges = 6;

struct Free {
  void operator()(SSL_CTX* one) const { ::SSL_CTX_free(one); }
  void operator()(SSL* one) const { ::SSL_free(one); }
};
using Context = std::unique_ptr<SSL_CTX, Free>;

// Made once for all inputs.
struct World {
  const TestAuthority authority{};
  const TestAuthority other{"another authority"};
  const TestFolder folder{};
  const PemPair node = authority.issue();
  const std::string ca = authority.pem();
  const TlsFiles files = folder.write("node", ca, node);
  // The certificates of a host: right, of another name, expired, of another authority.
  const std::array<PemPair, 4> hosts = {
      authority.issue(), authority.issue({.alternative_names = "DNS:other.example"}),
      authority.issue({.from = -7200, .until = -3600}), other.issue()};
  std::array<Context, 4> contexts{};

  World() {
    for (std::size_t i = 0; i < hosts.size(); ++i) contexts.at(i) = context_of(hosts.at(i));
  }

  static Context context_of(const PemPair& pair) {
    Context context(::SSL_CTX_new(::TLS_server_method()));
    const std::unique_ptr<BIO, decltype(&::BIO_free)> cert(
        ::BIO_new_mem_buf(pair.cert.data(), static_cast<int>(pair.cert.size())), ::BIO_free);
    const std::unique_ptr<BIO, decltype(&::BIO_free)> key(
        ::BIO_new_mem_buf(pair.key.data(), static_cast<int>(pair.key.size())), ::BIO_free);
    X509* const one = ::PEM_read_bio_X509(cert.get(), nullptr, nullptr, nullptr);
    EVP_PKEY* const secret = ::PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr);
    DDPRUN_ASSERT(::SSL_CTX_use_certificate(context.get(), one) == 1);
    DDPRUN_ASSERT(::SSL_CTX_use_PrivateKey(context.get(), secret) == 1);
    ::X509_free(one);
    ::EVP_PKEY_free(secret);
    ::SSL_CTX_set_alpn_select_cb(
        context.get(),
        [](SSL*, const unsigned char** out, unsigned char* length, const unsigned char* in,
           unsigned int, void*) {
          *out = in + 1;  // the client's first
          *length = in[0];
          return SSL_TLSEXT_ERR_OK;
        },
        nullptr);
    return context;
  }
};

World& world() {
  static World one;
  return one;
}

// The change to the host's bytes: at the place `at` of all that it sends.
struct Change {
  enum Kind { kFlip, kInsert, kEnd } kind = kFlip;
  std::size_t at = 0;
  std::string bytes{};
};

// The host's end of one connection. It never waits.
class Host {
 public:
  Host(int fd, SSL_CTX* context, std::vector<Change> changes)
      : fd_(fd),
        ssl_(context == nullptr ? nullptr : ::SSL_new(context)),
        changes_(std::move(changes)) {
    if (!ssl_) return;
    ::SSL_set_bio(ssl_.get(), ::BIO_new(::BIO_s_mem()), ::BIO_new(::BIO_s_mem()));
    ::SSL_set_accept_state(ssl_.get());
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  // With a reset: a polite close would keep the port for a minute, and ports would run out.
  ~Host() {
    const linger none{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    ::close(fd_);
  }

  // Takes what came and answers. `last`: what it says once it has shaken hands.
  void turn(std::string_view last) {
    receive();
    if (!has_heard_ || is_over_) return;
    if (!ssl_) {  // it speaks no TLS
      send(last);
      return end();
    }
    const int shaken = ::SSL_do_handshake(ssl_.get());
    const bool waits = ::SSL_get_error(ssl_.get(), shaken) == SSL_ERROR_WANT_READ;
    if (shaken == 1 && !last.empty())
      ::SSL_write(ssl_.get(), last.data(), static_cast<int>(last.size()));
    ::ERR_clear_error();
    std::array<char, 8192> bytes{};
    BIO* const out = ::SSL_get_wbio(ssl_.get());
    for (int count = 0; (count = ::BIO_read(out, bytes.data(), bytes.size())) > 0;)
      send({bytes.data(), static_cast<std::size_t>(count)});
    if (!waits) end();
  }

 private:
  // Also what comes after the end: a reset would take from the node what it has not read.
  void receive() {
    std::array<char, 8192> bytes{};
    ssize_t count = 0;
    while ((count = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0) {
      has_heard_ = true;
      if (ssl_) ::BIO_write(::SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(count));
    }
  }

  void send(std::string_view bytes) {
    if (is_over_) return;
    std::string changed(bytes);
    bool is_cut = false;
    for (const Change& change : changes_) {
      if (change.at < place_ || change.at >= place_ + bytes.size()) continue;
      const std::size_t here = std::min(change.at - place_, changed.size());
      switch (change.kind) {
        case Change::kFlip:
          if (here < changed.size() && !change.bytes.empty())
            changed[here] = static_cast<char>(changed[here] ^ change.bytes.front());
          break;
        case Change::kInsert:
          changed.insert(here, change.bytes);
          break;
        case Change::kEnd:
          changed.resize(here);
          is_cut = true;
          break;
      }
    }
    place_ += bytes.size();
    ::send(fd_, changed.data(), changed.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (is_cut) end();
  }

  void end() {
    is_over_ = true;
    ::shutdown(fd_, SHUT_WR);
  }

  const int fd_;
  const std::unique_ptr<SSL, Free> ssl_;
  const std::vector<Change> changes_;
  std::size_t place_ = 0;  // of the next byte, in all that it sends
  bool has_heard_ = false;
  bool is_over_ = false;
};

bool is_one_line(const std::string& text) { return text.find('\n') == std::string::npos; }

// Returns the probe's error for a host with this certificate whose bytes nobody has changed.
std::string_view wanted(std::size_t certificate) {
  constexpr std::array<std::string_view, 4> kProblems = {"", "is not one for", "has expired",
                                                         "does not vouch for"};
  return kProblems.at(certificate);
}

TlsProblem probe(SSL_CTX* context, std::vector<Change> changes, std::string_view last) {
  asio::io_context loop(1);
  tcp::acceptor acceptor = listen_on_loopback(loop);
  std::optional<TlsProblem> said;
  probe_tls(loop.get_executor(),
            {.address = acceptor.local_endpoint().address().to_string(),
             .port = acceptor.local_endpoint().port(),
             .name = "127.0.0.1",
             .files = world().files},
            [&said](const TlsProblem& problem) {
              DDPRUN_ASSERT(!said.has_value());
              said = problem;
            });
  std::optional<Host> host;
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  acceptor.non_blocking(true);
  while (!said) {
    DDPRUN_ASSERT(std::chrono::steady_clock::now() < deadline);
    loop.restart();
    if (loop.poll() == 0) loop.run_one_for(std::chrono::milliseconds(1));
    boost::system::error_code none;
    if (!host) {
      tcp::socket socket = acceptor.accept(none);
      if (none) continue;
      host.emplace(socket.release(), context, std::move(changes));
    }
    host->turn(last);
  }
  loop.restart();
  while (loop.poll() > 0) {
  }
  DDPRUN_ASSERT(is_one_line(said->text));
  return *said;
}

// A host that speaks no TLS, or nothing that OpenSSL would say.
void answer_with(std::string_view bytes) {
  const TlsProblem said = probe(nullptr, {}, bytes);
  const std::string alert(kNoTlsAlert.begin(), kNoTlsAlert.end());
  if (bytes.starts_with(alert)) DDPRUN_ASSERT(said.takes_no_tls);
}

std::vector<Change> changes(ScriptInput& script) {
  std::vector<Change> all;
  for (std::size_t count = script.choice(kMostChanges + 1); count > 0; --count) {
    Change one;
    one.kind = static_cast<Change::Kind>(script.choice(3));
    one.at = script.byte() + std::size_t{256} * script.choice(6);
    one.bytes = one.kind == Change::kEnd ? "" : std::string(script.bytes(1 + script.choice(32)));
    all.push_back(std::move(one));
  }
  return all;
}

void answer_as_openssl(ScriptInput script) {
  const std::size_t certificate = script.choice(world().hosts.size());
  const auto changed = changes(script);
  std::string last(script.bytes(64));
  const bool is_true = changed.empty() && !last.empty();
  const std::string said = probe(world().contexts.at(certificate).get(), changed, last).text;
  if (!is_true) return;
  DDPRUN_ASSERT(said.find(wanted(certificate)) != std::string::npos);
  DDPRUN_ASSERT(said.empty() == (certificate == 0));
}

void change(ScriptInput& script, std::string& text) {
  for (std::size_t count = script.choice(kMostChanges + 1); count > 0 && !text.empty(); --count) {
    const std::size_t at = (script.byte() + std::size_t{256} * script.choice(4)) % text.size();
    switch (script.choice(4)) {
      case 0:
        text[at] = static_cast<char>(script.byte());
        break;
      case 1:
        text.resize(at);
        break;
      case 2:
        text.insert(at, std::string(script.bytes(script.byte())));
        break;
      case 3:
        text.erase(at, 1 + script.choice(64));
        break;
    }
  }
}

// The files as they are, changed, or anything at all.
void read_files(ScriptInput script) {
  TlsTexts texts{world().ca, world().node.cert, world().node.key};
  const auto hours = std::chrono::hours(static_cast<int>(script.choice(5)) - 2);
  const bool is_valid = hours.count() == 0;
  const unsigned which = script.byte();
  if ((which & 1U) != 0) change(script, texts.ca);
  if ((which & 2U) != 0) change(script, texts.cert);
  if ((which & 4U) != 0) change(script, texts.key);
  if ((which & 8U) != 0) texts.cert = world().other.issue().cert;
  if ((which & 16U) != 0) texts.key = std::string(script.all());
  const auto sound =
      check_tls_texts(texts, {"a", "b", "c"}, std::chrono::system_clock::now() + hours * 2);
  DDPRUN_ASSERT(::ERR_peek_error() == 0);  // the next handshake would take it for its own
  if ((which & 31U) == 0) DDPRUN_ASSERT(sound.has_value() == is_valid);
  if ((which & 8U) != 0) DDPRUN_ASSERT(sound.has_error());
  if (sound) return;
  const std::string message = sound.error().message();
  DDPRUN_ASSERT(is_one_line(message) && message.starts_with("tls_"));
}

}  // namespace
}  // namespace ddprun::rendezvous

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  ddprun::rendezvous::world();
  return 0;
}

// The first byte says what the rest is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::rendezvous;
  ddprun::fuzz::ScriptInput script(data, std::min<std::size_t>(size, 2048));
  switch (script.choice(4)) {
    case 0:
      answer_with(script.all());
      break;
    case 1:
    case 2:
      answer_as_openssl(script);
      break;
    case 3:
      read_files(script);
      break;
  }
  return 0;
}
