#include "rendezvous/trust/cipher_list.h"

#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/params.h>
#include <openssl/provider.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace ddprun::rendezvous {
namespace {

// By the first name of each (OSSL_PROVIDER-default(7)). AES-256-CTR makes OpenSSL's random
// numbers, AES-256-CBC a TLS 1.2 host's tickets.
constexpr std::array<std::string_view, 5> kCiphers = {"AES-128-GCM", "AES-256-GCM", "AES-256-CTR",
                                                      "AES-256-CBC", "ChaCha20-Poly1305"};
constexpr std::array<std::string_view, 8> kKeys = {"RSA",     "RSA-PSS", "EC",       "X25519",
                                                   "ED25519", "HKDF",    "TLS1-PRF", "HMAC"};
// The formats that are parsed: keys in these structures, and the PEM around them.
constexpr std::array<std::string_view, 3> kParsedKeys = {"RSA", "EC", "ED25519"};
constexpr std::array<std::string_view, 3> kStructures = {"=SubjectPublicKeyInfo", "=PrivateKeyInfo",
                                                         "=type-specific"};
constexpr std::string_view kPem = "input=pem";
// TLS's numbers of P-256, P-384, P-521 and X25519 (RFC 8446, section 4.2.7).
constexpr std::array<unsigned int, 4> kGroups = {23, 24, 25, 29};

constexpr auto kTableEnd = OSSL_ALGORITHM{nullptr, nullptr, nullptr, nullptr};

bool is_of(std::span<const std::string_view> names, const OSSL_ALGORITHM& one) {
  const std::string_view all = one.algorithm_names;
  return std::ranges::find(names, all.substr(0, all.find(':'))) != names.end();
}

bool is_parsed(const OSSL_ALGORITHM& one) {
  const std::string_view properties = one.property_definition;
  const auto has = [&](std::string_view what) { return properties.find(what) != properties.npos; };
  return has(kPem) || (is_of(kParsedKeys, one) && std::ranges::any_of(kStructures, has));
}

bool is_offered(int operation, const OSSL_ALGORITHM& one) {
  switch (operation) {
    case OSSL_OP_CIPHER:
      return is_of(kCiphers, one);
    case OSSL_OP_KEYMGMT:
      return is_of(kKeys, one);
    case OSSL_OP_DECODER:
      return is_parsed(one);
    default:
      return true;
  }
}

// A provider that passes on what OpenSSL's own one has, which is loaded in a library context of its
// own. Both live until the process ends: OpenSSL calls into them while it cleans up.
struct CipherProvider {
  OSSL_PROVIDER* whole = nullptr;
  OSSL_PROVIDER* ours = nullptr;  // never unloaded, so it is held here until the end
  std::array<std::vector<OSSL_ALGORITHM>, OSSL_OP__HIGHEST + 1> tables;  // each ends with kTableEnd
};

CipherProvider& offered() {
  static CipherProvider& one = *new CipherProvider;
  return one;
}

const OSSL_ALGORITHM* query(void* /*context*/, int operation, int* no_cache) {
  *no_cache = 0;
  const auto& tables = offered().tables;
  if (operation < 0 || operation >= static_cast<int>(tables.size())) return nullptr;
  return tables[static_cast<std::size_t>(operation)].data();
}

// The callback that asked for capabilities, and its argument.
struct CapabilityQuery {
  OSSL_CALLBACK* callback;
  void* argument;
};

// Each context looks for the keys of all groups that there are. Those that are not offered take it
// longest.
int pass_on_group(const OSSL_PARAM* group, void* asked) {
  const auto& [callback, argument] = *static_cast<const CapabilityQuery*>(asked);
  unsigned int number = 0;
  const OSSL_PARAM* const found = ::OSSL_PARAM_locate_const(group, OSSL_CAPABILITY_TLS_GROUP_ID);
  if (found == nullptr || ::OSSL_PARAM_get_uint(found, &number) != 1) return 1;
  return std::ranges::find(kGroups, number) == kGroups.end() ? 1 : callback(group, argument);
}

int capabilities(void* /*context*/, const char* kind, OSSL_CALLBACK* callback, void* argument) {
  CapabilityQuery asked{callback, argument};
  return std::string_view(kind) == "TLS-GROUP"
             ? ::OSSL_PROVIDER_get_capabilities(offered().whole, kind, pass_on_group, &asked)
             : ::OSSL_PROVIDER_get_capabilities(offered().whole, kind, callback, argument);
}

template <typename Function>
OSSL_DISPATCH entry(int id, Function* function) {
  return {id, reinterpret_cast<void (*)()>(function)};
}

// The algorithms are called with the context of the whole provider, whose they are.
int start(const OSSL_CORE_HANDLE* /*core*/, const OSSL_DISPATCH* /*of_core*/,
          const OSSL_DISPATCH** functions, void** context) {
  static const std::array<OSSL_DISPATCH, 3> table = {
      entry(OSSL_FUNC_PROVIDER_QUERY_OPERATION, query),
      entry(OSSL_FUNC_PROVIDER_GET_CAPABILITIES, capabilities), OSSL_DISPATCH{0, nullptr}};
  *functions = table.data();
  *context = ::OSSL_PROVIDER_get0_provider_ctx(offered().whole);
  return 1;
}

}  // namespace

bool offer_cipher_list() {
  CipherProvider& all = offered();
  OSSL_LIB_CTX* const context = ::OSSL_LIB_CTX_new();
  all.whole = context == nullptr ? nullptr : ::OSSL_PROVIDER_load(context, "default");
  if (all.whole == nullptr) return false;
  for (int operation = 0; operation <= OSSL_OP__HIGHEST; ++operation) {
    int no_cache = 0;
    const auto* one = ::OSSL_PROVIDER_query_operation(all.whole, operation, &no_cache);
    if (one == nullptr) continue;
    auto& table = all.tables[static_cast<std::size_t>(operation)];
    for (; one->algorithm_names != nullptr; ++one)
      if (is_offered(operation, *one)) table.push_back(*one);
    table.push_back(kTableEnd);
  }
  if (::OSSL_PROVIDER_add_builtin(nullptr, "ddprun", start) != 1) return false;
  all.ours = ::OSSL_PROVIDER_load(nullptr, "ddprun");
  return all.ours != nullptr;
}

}  // namespace ddprun::rendezvous
