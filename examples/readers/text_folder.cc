#include <ddprun/readers.h>

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include "examples/readers/file_text.h"

namespace ddprun::readers {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

Result<std::vector<std::filesystem::path>> text_files(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".txt") files.push_back(entry->path());
  }
  if (error) return Error(ErrorCode::kNotFound, "read " + folder.string() + ": " + error.message());
  if (files.empty()) return broken_file(folder, "no .txt files");
  std::sort(files.begin(), files.end());
  return files;
}

// It is done by hand: the functions of <cctype> ask the locale.
constexpr char small_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
constexpr bool in_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '\'';
}

Result<LabelledTexts> try_read_text_folders(const std::filesystem::path& root,
                                            const std::vector<std::string>& folders) {
  LabelledTexts all;
  for (std::size_t label = 0; label < folders.size(); ++label) {
    const auto files = text_files(root / folders[label]);
    if (!files) return files.error();
    for (const auto& file : *files) {
      auto text = read_file(file, kMaxTextBytes);
      if (!text) return text.error();
      all.texts.push_back(std::move(*text));
      all.labels.push_back(static_cast<std::int64_t>(label));
    }
  }
  return all;
}

}  // namespace

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char raw : text) {
    const char c = small_letter(raw);
    if (in_word(c)) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, {}));
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

Vocabulary::Vocabulary(const std::vector<std::string>& texts, std::size_t most_words) {
  std::map<std::string, std::size_t> counts;
  for (const auto& text : texts) {
    for (const auto& word : words_of(text)) ++counts[word];
  }
  std::vector<std::pair<std::string, std::size_t>> ranked(counts.begin(), counts.end());
  std::ranges::stable_sort(ranked, std::ranges::greater{}, &decltype(ranked)::value_type::second);
  ranked.resize(std::min(ranked.size(), most_words));
  for (const auto& [word, count] : ranked)
    codes_.emplace(word, static_cast<std::int64_t>(codes_.size()) + 1);
}

std::vector<std::int64_t> Vocabulary::codes_of(std::string_view text, std::size_t most) const {
  std::vector<std::int64_t> codes;
  for (const auto& word : words_of(text)) {
    if (codes.size() == most) break;
    const auto found = codes_.find(word);
    codes.push_back(found == codes_.end() ? 0 : found->second);
  }
  if (codes.empty()) codes.push_back(0);
  return codes;
}

LabelledTexts read_text_folders(const std::filesystem::path& root,
                                const std::vector<std::string>& folders) {
  return value_or_throw(try_read_text_folders(root, folders));
}

}  // namespace ddprun::readers
