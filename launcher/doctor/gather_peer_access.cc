#include "launcher/doctor/gather_peer_access.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "launcher/job/device_files.h"
#include "launcher/job/nvidia_gpus.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream text(line);
  return {std::istream_iterator<std::string>(text), {}};
}

// The text without escape sequences of terminals. nvidia-smi may underline the head of its tables
// (`ESC [ 4 m`), in a pipe, too.
std::string without_escapes(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const auto escape = std::min(text.find('\x1b'), text.size());
    plain += text.substr(0, escape);
    text.remove_prefix(std::min(text.size(), text.find('m', escape)));
    if (!text.empty()) text.remove_prefix(1);
  }
  return plain;
}

// The kind of a device's addresses (Documentation/ABI/testing/sysfs-kernel-iommu_groups). Empty if
// the device is in no group, or the kernel does not say.
std::string domain_of(const fs::path& device) { return read_text(device / "iommu_group/type"); }

bool passes_through(const std::string& command_line) {
  const auto words = words_of(command_line);
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "iommu=pt" || word == "iommu.passthrough=1" || word == "iommu=off" ||
           word == "intel_iommu=off" || word == "amd_iommu=off";
  });
}

// The bytes from `offset` on, as PCI has them: little-endian. Nothing past the end.
std::optional<unsigned> number_at(const std::string& bytes, std::size_t offset, std::size_t size) {
  if (offset + size > bytes.size()) return std::nullopt;
  unsigned number = 0;
  for (std::size_t i = size; i > 0; --i)
    number = number << 8U | static_cast<unsigned char>(bytes[offset + i - 1]);
  return number;
}

enum class Acs { kUnread, kPasses, kRedirects };

// Reads the control register for access control services. Its bits are those for requests and
// completions of peers (PCI Express base specification, "ACS Extended Capability").
Acs acs_of(const fs::path& bridge) {
  constexpr std::size_t kExtended = 0x100;
  constexpr unsigned kCapability = 0x0d;
  constexpr unsigned kRedirects = 0x4U | 0x8U;
  constexpr int kMostCapabilities = 64;  // a list that goes round must end
  std::ifstream file(bridge / "config", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  // Root reads so many bytes of a device that has no extended capability.
  if (bytes.size() == kExtended) return Acs::kPasses;
  if (bytes.size() < kExtended) return Acs::kUnread;
  std::size_t at = kExtended;
  for (int i = 0; i < kMostCapabilities && at >= kExtended; ++i) {
    const auto head = number_at(bytes, at, 4);
    if (!head) return Acs::kUnread;
    if ((*head & 0xffffU) == kCapability) {
      const auto control = number_at(bytes, at + 6, 2);
      return control && (*control & kRedirects) != 0 ? Acs::kRedirects : Acs::kPasses;
    }
    at = *head >> 20U;
  }
  return Acs::kPasses;
}

bool is_pci_address(const std::string& name) {
  return std::count(name.begin(), name.end(), ':') == 2 && name.find('.') != std::string::npos;
}

// The folders of the bridges above a device, from the device on.
std::vector<fs::path> bridges_above(const fs::path& device) {
  std::error_code none;
  std::vector<fs::path> bridges;
  for (fs::path up = fs::canonical(device, none).parent_path(); is_pci_address(up.filename());
       up = up.parent_path())
    bridges.push_back(up);
  return bridges;
}

void add_bridges(const fs::path& device, PeerAccessFacts& facts) {
  for (const fs::path& bridge : bridges_above(device)) {
    const Acs acs = acs_of(bridge);
    if (acs == Acs::kUnread) facts.is_acs_hidden = true;
    const std::string address = bridge.filename();
    auto& known = facts.redirecting;
    if (acs == Acs::kRedirects && std::find(known.begin(), known.end(), address) == known.end())
      known.push_back(address);
  }
}

}  // namespace

void read_peer_table(std::string_view text, PeerAccessFacts& facts) {
  std::istringstream lines(without_escapes(text));
  std::vector<std::string> columns;
  for (std::string line; std::getline(lines, line);) {
    const auto words = words_of(line);
    if (words.empty() || !words[0].starts_with("GPU")) continue;
    if (columns.empty()) {
      columns = words;
      continue;
    }
    if (words.size() != columns.size() + 1) continue;
    ++facts.gpus_asked;
    // Both directions of a pair are in the table: the upper half says all.
    const auto row = static_cast<std::size_t>(facts.gpus_asked);
    for (std::size_t i = row; i < columns.size(); ++i)
      if (words[i + 1] != "OK") facts.refused.push_back({words[0], columns[i], words[i + 1]});
  }
}

PeerAccessFacts gather_peer_paths(const fs::path& root) {
  PeerAccessFacts facts;
  const auto units = names_in(root / "sys/class/iommu");
  const bool is_passed = passes_through(read_text(root / "proc/cmdline"));
  for (const NvidiaGpu& gpu : nvidia_gpus(root)) {
    const fs::path device = root / "sys/bus/pci/devices" / gpu.pci_address;
    const std::string domain = domain_of(device);
    const bool is_translated =
        domain.empty() ? !units.empty() && !is_passed : domain.starts_with("DMA");
    if (is_translated && !units.empty()) facts.iommu = units.front();
    if (is_translated && facts.iommu.empty()) facts.iommu = domain;
    add_bridges(device, facts);
  }
  return facts;
}

}  // namespace ddprun::launcher
