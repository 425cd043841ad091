// Asio's own code, compiled here once for all rooms (BOOST_ASIO_SEPARATE_COMPILATION). Without this
// file every file that includes Asio would compile all of it again.
#include <boost/asio/impl/src.hpp>
