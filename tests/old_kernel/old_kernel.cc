// old_kernel [--eperm] PROGRAM [ARGUMENT...]: runs PROGRAM as Linux 4.18 would. A filter
// (seccomp(2)) answers ENOSYS to each system call that is newer, for the program and all below it.
// It knows no newer advice of madvise(2) and no newer flag of memfd_create(2). With --eperm it
// answers EPERM in place of ENOSYS, as filters of older container runtimes do. Without root the
// program cannot gain privileges any more (prctl(2), PR_SET_NO_NEW_PRIVS). Exit code 125: there is
// no such program, or no filter can be installed.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_AARCH64;
#else
#error "the numbers of this machine's system calls are not known here"
#endif

// From Linux 5.1 on a new call has the same number on every machine, and this is the first.
constexpr std::uint32_t kFirstNew = 424;
constexpr std::uint32_t kFirstNewAdvice = 20;  // MADV_COLD, Linux 5.4
constexpr std::uint32_t kNewMemfdFlags = 0x18;
constexpr int kRefused = 125;

constexpr std::uint32_t answer(int error) {
  return SECCOMP_RET_ERRNO | (static_cast<std::uint32_t>(error) & SECCOMP_RET_DATA);
}

constexpr sock_filter load(std::size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
}

constexpr sock_filter stop(std::uint32_t what) { return BPF_STMT(BPF_RET | BPF_K, what); }

// Goes on with the next instruction if the loaded value compares so, else skips so many.
constexpr sock_filter if_it(std::uint16_t compares, std::uint32_t value, std::uint8_t skipped) {
  return BPF_JUMP(static_cast<std::uint16_t>(BPF_JMP | compares | BPF_K), value, 0, skipped);
}

// The lower half of an argument: both machines store it first.
constexpr std::size_t argument(std::size_t number) {
  return offsetof(seccomp_data, args) + number * sizeof(std::uint64_t);
}

bool install_filter(int error) {
  std::array<sock_filter, 14> code = {
      load(offsetof(seccomp_data, arch)),
      if_it(BPF_JEQ, kMachine, 11),
      load(offsetof(seccomp_data, nr)),
      if_it(BPF_JGE, kFirstNew, 1),
      stop(answer(error)),
      if_it(BPF_JEQ, SYS_madvise, 3),
      load(argument(2)),
      if_it(BPF_JGE, kFirstNewAdvice, 5),
      stop(answer(EINVAL)),
      if_it(BPF_JEQ, SYS_memfd_create, 3),
      load(argument(1)),
      if_it(BPF_JSET, kNewMemfdFlags, 1),
      stop(answer(EINVAL)),
      stop(SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = static_cast<std::uint16_t>(code.size()),
                              .filter = code.data()};
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0) return true;
  return errno == EACCES && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

int main(int count, char** words) {
  int at = 1;
  const bool refuses = at < count && std::strcmp(words[at], "--eperm") == 0;
  if (refuses) ++at;
  if (at == count) {
    std::fputs("old_kernel: expected [--eperm] PROGRAM [ARGUMENT...]\n", stderr);
    return kRefused;
  }
  if (!install_filter(refuses ? EPERM : ENOSYS)) {
    std::perror("old_kernel: install a filter");
    return kRefused;
  }
  ::execvp(words[at], words + at);
  std::perror(words[at]);
  return kRefused;
}
