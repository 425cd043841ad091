// Messages of node and host through their bytes, as on the wire. For tests of codecs.
#pragma once

#include <gtest/gtest.h>

#include <variant>

#include "rendezvous/grpc/codec.h"

namespace ddprun::rendezvous {

template <typename Kind>
Kind travelled(const NodeMessage& said) {
  v4::FromNode message;
  EXPECT_TRUE(message.ParseFromString(encode(said).SerializeAsString()));
  return std::get<Kind>(*decode(message));
}

template <typename Kind>
Kind travelled_down(const HostMessage& said) {
  v4::ToNode message;
  EXPECT_TRUE(message.ParseFromString(encode(said).SerializeAsString()));
  return std::get<Kind>(std::get<HostMessage>(*decode(message)));
}

}  // namespace ddprun::rendezvous
