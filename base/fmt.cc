// fmt's own code, compiled here once for all rooms. Debian has it as a shared library only, and
// ddprun is one static file. With FMT_HEADER_ONLY every file that includes fmt would compile all of
// it again. That took half of the time of such a file.
#include <fmt/format-inl.h>

// The templates that fmt/format.h declares as compiled elsewhere, and those whose bodies are in
// format-inl.h alone (fmt 9.1).
FMT_BEGIN_NAMESPACE
namespace detail {
template locale_ref::locale_ref(const std::locale&);
template auto locale_ref::get<std::locale>() const -> std::locale;
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto thousands_sep_impl<wchar_t>(locale_ref) -> thousands_sep_result<wchar_t>;
template auto decimal_point_impl<char>(locale_ref) -> char;
template auto decimal_point_impl<wchar_t>(locale_ref) -> wchar_t;
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
}  // namespace detail
FMT_END_NAMESPACE
