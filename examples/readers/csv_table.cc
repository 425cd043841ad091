#include <ddprun/readers.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/numbers.h"
#include "examples/readers/file_text.h"

namespace ddprun::readers {
namespace {

constexpr std::string_view kBlanks = " \t\r";

// The most bytes of a file: short cells take some 25 times as much in memory.
constexpr std::size_t kMaxTableBytes = std::size_t{256} << 20;

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kBlanks) - first + 1));
}

// Reads one row after the other off the text.
class RowReader {
 public:
  explicit RowReader(std::string_view text) : text_(text) {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte-order mark
  }

  bool at_end() const { return at_ == text_.size(); }

  bool skip_line_if(char first) {
    if (text_[at_] != first) return false;
    const std::size_t end = text_.find('\n', at_);
    at_ = end == std::string_view::npos ? text_.size() : end + 1;
    ++line_;
    return true;
  }

  // `count`: how many cells the row has; it keeps the first `cells_max`.
  Result<CsvRow> row(std::size_t cells_max, std::size_t& count) {
    CsvRow row{.line = line_};
    count = 0;
    for (bool more = true; more;) {
      auto cell = read_cell();
      if (!cell) return cell.error();
      if (count++ < cells_max) row.cells.push_back(std::move(*cell));
      more = !at_end() && text_[at_] == ',';
      if (!at_end()) ++at_;  // the comma or the end of the line
    }
    ++line_;
    return row;
  }

 private:
  // Up to a comma or the end of the line, which stays.
  Result<std::string> read_cell() {
    const std::size_t first = text_.find_first_not_of(kBlanks, at_);
    if (first != std::string_view::npos && text_[first] == '"') return read_quoted(first + 1);
    const std::size_t end = std::min(text_.find_first_of(",\n", at_), text_.size());
    std::string cell = trimmed(text_.substr(at_, end - at_));
    at_ = end;
    return cell;
  }

  Result<std::string> read_quoted(std::size_t from) {
    const std::size_t line = line_;
    std::string cell;
    for (at_ = from; !at_end(); ++at_) {
      if (text_[at_] == '\n') ++line_;
      if (text_[at_] != '"') {
        cell += text_[at_];
      } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        cell += text_[at_++];
      } else {
        at_ = std::min(text_.find_first_not_of(kBlanks, at_ + 1), text_.size());
        if (at_end() || text_[at_] == ',' || text_[at_] == '\n') return cell;
        return Error(ErrorCode::kProtocol, fmt::format("line {}: text after a quoted cell", line_));
      }
    }
    return Error(ErrorCode::kProtocol, fmt::format("line {}: a quote is not closed", line));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

std::optional<double> parse_number(const std::string& cell) {
  const auto number = parse_whole<double>(cell);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// Returns why the row does not fit, or an empty text.
std::string append(CsvTable& table, const CsvRow& row, std::size_t count,
                   const TableLayout& layout) {
  if (count != layout.columns.size())
    return fmt::format("{} cells, expected {}", count, layout.columns.size());
  std::size_t number = 0, category = 0;
  for (std::size_t i = 0; i < row.cells.size(); ++i) {
    const std::string& cell = row.cells[i];
    const bool missing = cell.empty() || cell == layout.missing;
    const ColumnKind kind = layout.columns[i].kind;
    if (kind == ColumnKind::kCategory) {
      table.categories[category++].push_back(missing ? std::string() : cell);
    } else if (kind == ColumnKind::kNumber) {
      const auto value = missing ? std::nullopt : parse_number(cell);
      if (!missing && !value)
        return fmt::format("column {}: '{}' is not a number", layout.columns[i].name, cell);
      table.numbers[number++].push_back(value);
    }
  }
  ++table.rows;
  return {};
}

Result<void> try_read_csv_rows(std::string_view text, const CsvOptions& options,
                               std::size_t cells_max,
                               const std::function<std::string(CsvRow, std::size_t)>& take) {
  RowReader reader(text);
  bool header = options.header;
  while (!reader.at_end()) {
    if (options.comment != '\0' && reader.skip_line_if(options.comment)) continue;
    std::size_t count = 0;
    auto row = reader.row(std::max<std::size_t>(cells_max, 1), count);
    if (!row) return row.error();
    if (count == 1 && row->cells[0].empty()) continue;
    if (std::exchange(header, false)) continue;
    const std::size_t line = row->line;
    const std::string wrong = take(std::move(*row), count);
    if (!wrong.empty()) return Error(ErrorCode::kProtocol, fmt::format("line {}: {}", line, wrong));
  }
  return {};
}

Result<std::vector<CsvRow>> try_parse_csv(std::string_view text, const CsvOptions& options) {
  std::vector<CsvRow> rows;
  const auto keep = [&](CsvRow row, std::size_t) {
    rows.push_back(std::move(row));
    return std::string();
  };
  const auto read = try_read_csv_rows(text, options, std::numeric_limits<std::size_t>::max(), keep);
  if (!read) return read.error();
  return rows;
}

Result<CsvTable> try_read_csv(const std::filesystem::path& path, const TableLayout& layout) {
  const auto text = read_file(path, kMaxTableBytes);
  if (!text) return text.error();
  CsvTable table;
  const auto of_kind = [&](ColumnKind kind) {
    return static_cast<std::size_t>(std::ranges::count(layout.columns, kind, &Column::kind));
  };
  table.numbers.resize(of_kind(ColumnKind::kNumber));
  table.categories.resize(of_kind(ColumnKind::kCategory));
  const auto read = try_read_csv_rows(
      *text, layout.csv, layout.columns.size(),
      [&](const CsvRow& row, std::size_t count) { return append(table, row, count, layout); });
  if (!read) return broken_file(path, read.error().message());
  if (table.rows == 0) return broken_file(path, "no rows");
  return table;
}

}  // namespace

TableScale::TableScale(const CsvTable& training) {
  for (const auto& column : training.numbers) {
    double sum = 0, squares = 0, count = 0;
    for (const auto& value : column) {
      if (value) sum += *value, ++count;
    }
    const double mean = count > 0 ? sum / count : 0;
    for (const auto& value : column) {
      if (value) squares += (*value - mean) * (*value - mean);
    }
    const double deviation = count > 0 ? std::sqrt(squares / count) : 0;
    means_.push_back(mean);
    deviations_.push_back(deviation > 0 ? deviation : 1);  // a column of one value says nothing
  }
  for (const auto& column : training.categories) {
    std::set<std::string> names(column.begin(), column.end());
    names.erase("");
    names_.emplace_back(names.begin(), names.end());
  }
}

ScaledTable TableScale::scale(const CsvTable& table) const {
  ScaledTable scaled{.rows = table.rows};
  for (std::size_t row = 0; row < table.rows; ++row) {
    for (std::size_t i = 0; i < means_.size(); ++i) {
      const auto value = table.numbers[i][row];
      scaled.numbers.push_back(value ? static_cast<float>((*value - means_[i]) / deviations_[i])
                                     : 0.0F);
    }
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const auto found = std::ranges::lower_bound(names_[i], table.categories[i][row]);
      const bool known = found != names_[i].end() && *found == table.categories[i][row];
      scaled.codes.push_back(known ? found - names_[i].begin() + 1 : 0);
    }
  }
  return scaled;
}

std::vector<std::int64_t> TableScale::code_counts() const {
  std::vector<std::int64_t> counts;
  for (const auto& names : names_) counts.push_back(static_cast<std::int64_t>(names.size()) + 1);
  return counts;
}

void read_csv_rows(std::string_view text, const CsvOptions& options, std::size_t cells_max,
                   const std::function<std::string(CsvRow, std::size_t)>& take) {
  return value_or_throw(try_read_csv_rows(text, options, cells_max, take));
}

std::vector<CsvRow> parse_csv(std::string_view text, const CsvOptions& options) {
  return value_or_throw(try_parse_csv(text, options));
}

CsvTable read_csv(const std::filesystem::path& path, const TableLayout& layout) {
  return value_or_throw(try_read_csv(path, layout));
}

}  // namespace ddprun::readers
