// A kind of device that has streams and events, and nothing else, for machines without a GPU. As
// with CUDA each thread has current streams. A test moves the time, of the host and of the device.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <cstddef>
#include <utility>

namespace ddprun::worker {

class StreamsAlone final : public c10::impl::DeviceGuardImplInterface {
 public:
  // LibTorch asks this one from now on.
  static const StreamsAlone& registered() {
    static const auto* const guard = new StreamsAlone;  // LibTorch keeps it to the end
    static const c10::impl::DeviceGuardImplRegistrar registrar(guard->type(), guard);
    return *guard;
  }

  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {type(), std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {type(), current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return stream(device, of(device)); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), std::exchange(of(next.device()), next.id()));
  }
  void record(void** event, const c10::Stream& /*stream*/, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Mark;
    static_cast<Mark*>(*event)->at_ms = launched_ms;
  }
  bool queryEvent(void* event) const override {
    ++queries;
    return static_cast<Mark*>(event)->at_ms <= reached_ms;
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex /*device*/) const override {
    return static_cast<Mark*>(second)->at_ms - static_cast<Mark*>(first)->at_ms;
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Mark*>(event);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }

  // How long the work takes that the streams hold, and how far they have come, in milliseconds.
  static inline double launched_ms = 0;
  static inline double reached_ms = 0;
  static inline int queries = 0;  // of events

 private:
  struct Mark {
    double at_ms = 0;
  };
  static constexpr c10::DeviceIndex kDevices = 2;
  static c10::StreamId& of(c10::Device device) {
    return streams.at(static_cast<std::size_t>(device.index()));
  }

  static thread_local c10::DeviceIndex current_device;
  static thread_local std::array<c10::StreamId, kDevices> streams;  // 0: the default one
};
inline thread_local c10::DeviceIndex StreamsAlone::current_device = 0;
inline thread_local std::array<c10::StreamId, StreamsAlone::kDevices> StreamsAlone::streams{};

}  // namespace ddprun::worker
