#include "daemon/manual/help_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "launcher/manual/roff.h"

namespace ddprun::daemon {
namespace {

using launcher::roff;

constexpr std::string_view kUsage = "usage: ";
// Deeper lines go on with the text of an entry.
constexpr std::size_t kEntryIndent = 2;

std::size_t indent_of(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(indent_of(text));
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::string upper(std::string_view text) {
  std::string large(text);
  for (char& letter : large)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return large;
}

// As man(7) has them, where a title has another name there.
std::string section_of(std::string_view title) {
  return title == "exit codes" ? "EXIT STATUS" : upper(title);
}

// Returns the end of the title if a section begins with this line; npos: it is text.
std::size_t title_end(std::string_view line) {
  constexpr std::array<std::string_view, 3> kTitles = {"commands:", "options:", "exit codes:"};
  for (const std::string_view title : kTitles)
    if (line.starts_with(title)) return title.size() - 1;
  return std::string_view::npos;
}

class Writer {
 public:
  explicit Writer(std::string& page) : page_(page) {}

  void line(std::string_view line) {
    if (line.empty()) return pause();
    if (indent_of(line) == 0) return flush_left(line);
    if (in_text_) return example(trimmed(line));
    if (indent_of(line) > kEntryIndent) return go_on(trimmed(line));
    entry(trimmed(line));
  }

 private:
  void pause() {
    is_after_pause_ = true;
    in_text_ = false;
  }
  void flush_left(std::string_view line) {
    const auto end = title_end(line);
    if (end == std::string_view::npos) return text(line);
    section(section_of(line.substr(0, end)));
    const std::string_view beside = trimmed(line.substr(end + 1));
    if (!beside.empty()) page_ += roff(beside) + "\n";
  }
  void section(const std::string& title) {
    page_ += fmt::format(".SH {}\n", title);
    has_section_ = true;
    in_text_ = false;
    is_after_pause_ = false;
  }
  void text(std::string_view line) {
    if (!in_text_ && (is_after_pause_ || has_section_)) page_ += ".PP\n";
    page_ += roff(line) + "\n";
    in_text_ = true;
    is_after_pause_ = false;
  }
  void example(std::string_view line) {
    page_ += fmt::format(".PP\n.RS\n.B {}\n.RE\n.PP\n", roff(line));
  }
  // A block of tags is followed by its text, after two blanks at least or on the next line.
  void entry(std::string_view line) {
    if (!has_section_) section("OPTIONS");
    const auto gap = line.find("  ");
    page_ += fmt::format(".TP\n.B {}\n", roff(line.substr(0, gap)));
    if (gap != std::string_view::npos) go_on(trimmed(line.substr(gap)));
  }
  void go_on(std::string_view line) { page_ += roff(line) + "\n"; }

  std::string& page_;
  bool has_section_ = false;     // after DESCRIPTION
  bool in_text_ = true;          // of a paragraph
  bool is_after_pause_ = false;  // an empty line
};

std::string_view take_line(std::string_view& text) {
  const auto end = std::min(text.find('\n'), text.size());
  const auto line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

}  // namespace

std::string help_page(const HelpPage& page, std::string_view help) {
  std::string_view usage = take_line(help);
  if (usage.starts_with(kUsage)) usage.remove_prefix(kUsage.size());
  usage.remove_prefix(std::min(page.name.size(), usage.size()));
  std::string text = fmt::format(
      ".TH {} {} \"\" \"ddprun {}\" \"{}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n{}\n"
      ".SH DESCRIPTION\n",
      upper(page.name), page.section, roff(page.version),
      page.section == 8 ? "System Administration" : "User Commands", roff(page.name),
      roff(page.summary), roff(page.name), roff(trimmed(usage)));
  while (help.starts_with('\n')) help.remove_prefix(1);
  Writer writer(text);
  while (!help.empty()) writer.line(take_line(help));
  return text + fmt::format(".SH SEE ALSO\n{}\n", page.see_also);
}

}  // namespace ddprun::daemon
