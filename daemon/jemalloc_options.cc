// How jemalloc serves ddprund, which is linked with it (jemalloc(3), TUNING). There is one heap for
// all threads, and no freed blocks kept by each of them. So a page is free soon, and goes back to
// the kernel within a second. $MALLOC_CONF has the last word.
extern "C" const char* malloc_conf;
const char* malloc_conf = "narenas:1,tcache:false,dirty_decay_ms:1000,muzzy_decay_ms:0";
