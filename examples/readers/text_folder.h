// Texts with labels, a folder for each label: IMDB's `neg/0_3.txt`, `pos/0_9.txt`. And words as
// numbers. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace ddprun::worker {

struct LabelledTexts {
  std::vector<std::string> texts;
  std::vector<std::int64_t> labels;  // the number of the folder in `folders`

  std::size_t count() const { return texts.size(); }
};

// The `.txt` files of each folder below `root`, in the folders' order and sorted by name. Errors
// name what is not there, cannot be read, or has no texts.
Result<LabelledTexts> read_text_folders(const std::filesystem::path& root,
                                        const std::vector<std::string>& folders = {"neg", "pos"});

// The runs of letters, digits and apostrophes, in small letters. Letters are those of ASCII: other
// bytes part words.
std::vector<std::string> words_of(std::string_view text);

// The most frequent words of the training texts; of equally frequent ones those that come first in
// the alphabet. Code 0 is every other word.
class Vocabulary {
 public:
  Vocabulary(const std::vector<std::string>& texts, std::size_t most_words);

  // The codes of the text's first `most` words; {0} for a text without words.
  std::vector<std::int64_t> codes_of(std::string_view text, std::size_t most) const;
  std::size_t size() const { return codes_.size() + 1; }

 private:
  std::unordered_map<std::string, std::int64_t> codes_;
};

}  // namespace ddprun::worker
