// Threads where a filter refuses clone3(2). glibc 2.36 then makes a thread by the older clone(2),
// but only if the answer is ENOSYS. Filters of older container runtimes answer EPERM. A static
// program brings its own glibc, so an image with an older one does not help. The programs are
// linked with --wrap=__clone3, and glibc's own calls come here.
#include <cerrno>
#include <cstddef>

struct clone_args;

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): names of the linker
int __real___clone3(clone_args* arguments, std::size_t size, int (*run)(void*), void* argument);

int __wrap___clone3(clone_args* arguments, std::size_t size, int (*run)(void*), void* argument) {
  const int answer = __real___clone3(arguments, size, run, argument);
  if (answer < 0 && errno == EPERM) errno = ENOSYS;
  return answer;
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}
