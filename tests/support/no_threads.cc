// Ends a program that starts a thread. Test programs without THREADS (tests/CMakeLists.txt) are
// linked with it, so ThreadSanitizer may leave them out. This pthread_create stands before the C
// library's, for shared libraries too.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

int pthread_create(pthread_t* /*id*/, const pthread_attr_t* /*attributes*/,
                   void* (* /*start*/)(void*), void* /*argument*/) noexcept {
  std::fputs("a test without THREADS in its CMakeLists.txt started a thread\n", stderr);
  std::abort();
}
