#include "rendezvous/trust/tls_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <memory>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/file_handle.h"
#include "base/limit_hint.h"
#include "proto/token_file.h"
#include "rendezvous/trust/openssl.h"

namespace ddprun::rendezvous {
namespace {

template <auto kFree>
struct Deleter {
  template <typename Type>
  void operator()(Type* one) const {
    kFree(one);
  }
};
using Certificate = std::unique_ptr<X509, Deleter<::X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<::EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Deleter<::BIO_free_all>>;
using Store = std::unique_ptr<X509_STORE, Deleter<::X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Deleter<::X509_STORE_CTX_free>>;

// Empties the thread's queue of errors at its end. OpenSSL puts into it what it thinks of the
// files, down to their end. The next handshake would take that for its own.
struct ErrorQueueCleaner {
  ErrorQueueCleaner() = default;
  ErrorQueueCleaner(const ErrorQueueCleaner&) = delete;
  ErrorQueueCleaner& operator=(const ErrorQueueCleaner&) = delete;
  ~ErrorQueueCleaner() { ::ERR_clear_error(); }
};

Error wrong(const char* key, const std::string& path, const std::string& what) {
  return {ErrorCode::kInvalidArgument, fmt::format("{}={}: {}", key, path, what)};
}

Bio bio_of(const std::string& text) {
  return Bio(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// No password is asked for on the terminal.
int no_password(char* /*buffer*/, int /*size*/, int /*writes*/, void* /*data*/) { return 0; }

std::vector<Certificate> certificates_of(const std::string& text) {
  const Bio bio = bio_of(text);
  std::vector<Certificate> all;
  while (X509* one = ::PEM_read_bio_X509(bio.get(), nullptr, no_password, nullptr))
    all.emplace_back(one);
  return all;
}

std::string text_of(const ASN1_TIME* time) {
  std::tm date{};
  if (::ASN1_TIME_to_tm(time, &date) != 1) return "?";
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", date.tm_year + 1900,
                     date.tm_mon + 1, date.tm_mday, date.tm_hour, date.tm_min, date.tm_sec);
}

std::string problem_of_dates(const X509* one, std::time_t now) {
  if (::X509_cmp_time(::X509_get0_notBefore(one), &now) > 0)
    return "the certificate is not valid before " + text_of(::X509_get0_notBefore(one));
  if (::X509_cmp_time(::X509_get0_notAfter(one), &now) < 0)
    return "the certificate has expired, on " + text_of(::X509_get0_notAfter(one));
  return {};
}

// Returns why a peer that trusts `authorities` refuses the first of `chain`. Empty if it takes it.
std::string problem_of_chain(const std::vector<Certificate>& chain,
                             const std::vector<Certificate>& authorities, std::time_t now) {
  const Store store(::X509_STORE_new());
  const StoreContext context(::X509_STORE_CTX_new());
  const std::unique_ptr<STACK_OF(X509), void (*)(STACK_OF(X509)*)> between(
      sk_X509_new_null(), [](STACK_OF(X509) * stack) { sk_X509_free(stack); });
  if (!store || !context || !between) return "out of memory";
  for (const Certificate& one : authorities) ::X509_STORE_add_cert(store.get(), one.get());
  for (const Certificate& one : chain) sk_X509_push(between.get(), one.get());
  if (::X509_STORE_CTX_init(context.get(), store.get(), chain.front().get(), between.get()) != 1)
    return "out of memory";
  ::X509_STORE_CTX_set_time(context.get(), 0, now);
  if (::X509_verify_cert(context.get()) == 1) return {};
  return ::X509_verify_cert_error_string(::X509_STORE_CTX_get_error(context.get()));
}

// O_NONBLOCK: a FIFO is opened at once, and then refused.
Result<std::string> read_pem(const char* key, const std::string& path, bool is_secret = false) {
  const auto unreadable = [&](const std::string& why) {
    return wrong(key, path, "expected a readable PEM file: " + why);
  };
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) return unreadable(describe_errno(errno));
  if (!S_ISREG(status.st_mode)) return unreadable("it is no regular file");
  if (status.st_size > static_cast<off_t>(kMaxPemBytes))
    return unreadable(fmt::format("it has {} bytes, more than {}", status.st_size, kMaxPemBytes));
  if (const auto exposed = is_secret ? exposure_of(file.get(), path) : std::nullopt)
    return wrong(key, path, *exposed);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) return unreadable(describe_errno(errno));
  text.resize(static_cast<std::size_t>(got));
  if (text.find("-----BEGIN") == std::string::npos) return unreadable("it holds no PEM");
  return text;
}

}  // namespace

Result<TlsTexts> read_tls_files(const TlsFiles& files) {
  auto ca = read_pem("tls_ca", files.ca);
  auto cert = read_pem("tls_cert", files.cert);
  auto key = read_pem("tls_key", files.key, true);
  for (const auto* one : {&ca, &cert, &key})
    if (!*one) return one->error();
  return TlsTexts{*std::move(ca), *std::move(cert), *std::move(key)};
}

Result<void> check_tls_texts(const TlsTexts& texts, const TlsFiles& files,
                             std::chrono::system_clock::time_point now) {
  set_up_openssl();
  const ErrorQueueCleaner cleared;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto authorities = certificates_of(texts.ca);
  const auto chain = certificates_of(texts.cert);
  const Bio key_text = bio_of(texts.key);
  const Key key(::PEM_read_bio_PrivateKey(key_text.get(), nullptr, no_password, nullptr));
  if (authorities.empty()) return wrong("tls_ca", files.ca, "expected a certificate in PEM");
  if (chain.empty()) return wrong("tls_cert", files.cert, "expected a certificate in PEM");
  if (!key) return wrong("tls_key", files.key, "expected a private key in PEM, without a password");
  if (const auto problem = problem_of_dates(chain.front().get(), seconds); !problem.empty())
    return wrong("tls_cert", files.cert, problem);
  if (::X509_check_private_key(chain.front().get(), key.get()) != 1)
    return wrong("tls_key", files.key,
                 fmt::format("the key is not that of the certificate in tls_cert={}", files.cert));
  if (const auto problem = problem_of_chain(chain, authorities, seconds); !problem.empty())
    return wrong(
        "tls_cert", files.cert,
        fmt::format("tls_ca={} does not vouch for the certificate: {}", files.ca, problem));
  return {};
}

// A clock that was set back tells nothing of how long ago it was.
Result<void> RepeatedCheck::check(const TlsTexts& texts, const TlsFiles& files,
                                  std::chrono::system_clock::time_point now) {
  if (now >= checked_at_ && now - checked_at_ < kCheckEvery && texts == good_) return {};
  if (const auto checked = check_tls_texts(texts, files, now); !checked) return checked.error();
  good_ = texts;
  checked_at_ = now;
  return {};
}

Result<void> check_tls_files(const TlsFiles& files) {
  if (!files.is_set()) return {};
  const auto texts = read_tls_files(files);
  if (!texts) return texts.error();
  return check_tls_texts(*texts, files, std::chrono::system_clock::now());
}

}  // namespace ddprun::rendezvous
