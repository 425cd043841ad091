// Rows of words as columns for a console. Pure. Any thread.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

using TextRow = std::vector<std::string>;

// Each row becomes a line, and each column is as wide as its longest word. The last column is not
// filled up with blanks. All rows must be as long as the first, and there must be one.
std::string text_table(const std::vector<TextRow>& rows);

}  // namespace ddprun
