// What tch leaves out of libtorch itself: memory that Rust owns, pinned memory, autocast, streams, the profiler.
#include "tensors.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/version.h>
#include <unistd.h>

namespace forebay {

namespace {

using c10::impl::VirtualGuardImpl;

c10::Device device_of(int gpu) {
  // Beyond c10's range there is no device either: 127 is refused by libtorch in its own words.
  return gpu < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(std::min(gpu, 127)));
}

c10::Stream stream_of(const Stream& stream) {
  return c10::Stream::unpack3(stream.id, static_cast<c10::DeviceIndex>(stream.device_index),
                              static_cast<c10::DeviceType>(stream.device_type));
}

Stream packed(const c10::Stream& stream) {
  auto packed = stream.pack3();
  return {packed.stream_id, static_cast<int>(packed.device_type), static_cast<int>(packed.device_index)};
}

}  // namespace

rust::String torch_version() { return TORCH_VERSION; }

void exit_at_once(int code) { _exit(code); }

void init_logging() { c10::initLogging(); }

std::unique_ptr<at::Tensor> tensor_over(rust::Box<Owner> owner, rust::Slice<const int64_t> sizes,
                                        const at::Tensor& like) {
  auto bytes = owner->bytes();
  auto* held = new rust::Box<Owner>(std::move(owner));
  // The storage drops it, with its last view; a failure on the way does as well.
  std::unique_ptr<void, void (*)(void*)> context(held, [](void* box) { delete static_cast<rust::Box<Owner>*>(box); });
  auto make = at::for_blob(const_cast<uint8_t*>(bytes.data()), at::IntArrayRef(sizes.data(), sizes.size()));
  auto drop = context.get_deleter();
  return std::make_unique<at::Tensor>(make.context(context.release(), drop).options(like.options()).make_tensor());
}

std::unique_ptr<at::Tensor> pinned(const at::Tensor& value) {
  return std::make_unique<at::Tensor>(value.pin_memory());
}

std::unique_ptr<AutocastGuard> enter_autocast(int gpu, const at::Tensor& like) {
  auto type = device_of(gpu).type();
  // Everything that may throw comes before the first change.
  std::unique_ptr<AutocastGuard> before(new AutocastGuard{type, at::autocast::is_autocast_enabled(type),
                                                          at::autocast::get_autocast_dtype(type),
                                                          at::autocast::is_autocast_cache_enabled()});
  at::autocast::set_autocast_dtype(type, like.scalar_type());
  at::autocast::set_autocast_enabled(type, true);
  at::autocast::set_autocast_cache_enabled(true);
  at::autocast::increment_nesting();
  return before;
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, kind);
  at::autocast::set_autocast_cache_enabled(cache);
}

Stream stream_from_pool(int gpu, bool high_priority) {
  auto device = device_of(gpu);
  return packed(VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, high_priority));
}

Stream current_stream(int gpu) {
  auto device = device_of(gpu);
  return packed(VirtualGuardImpl(device.type()).getStream(device));
}

void synchronize_stream(const Stream& stream) { stream_of(stream).synchronize(); }

void keep_for_stream(const at::Tensor& value, const Stream& stream) {
  storage_of(value).record_stream(stream_of(stream));
}

std::unique_ptr<StreamGuard> switch_stream(const Stream& stream) {
  auto wanted = stream_of(stream);
  auto before = VirtualGuardImpl(wanted.device_type()).exchangeStream(wanted);
  return std::unique_ptr<StreamGuard>(new StreamGuard{before});
}

// It was current before, so it exists.
StreamGuard::~StreamGuard() { VirtualGuardImpl(before.device_type()).exchangeStream(before); }

std::unique_ptr<c10::Event> make_event(int gpu, bool timing) {
  auto flag = timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
  return std::make_unique<c10::Event>(device_of(gpu).type(), flag);
}

void record_event(c10::Event& event, const Stream& stream) { event.record(stream_of(stream)); }

void block_stream(const c10::Event& event, const Stream& stream) { event.block(stream_of(stream)); }

void synchronize_event(const c10::Event& event) { event.synchronize(); }

double elapsed_ms(const c10::Event& start, const c10::Event& end) { return start.elapsedTime(end); }

void start_profiler(bool cuda, bool shapes, bool memory) {
  namespace profiler = torch::profiler::impl;
  // All threads, not only this one and those of its backward passes: others prepare its batches.
  profiler::ExperimentalConfig every_thread;
  every_thread.profile_all_threads = true;
  profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, shapes, memory, /*with_stack=*/false,
                                  /*with_flops=*/false, /*with_modules=*/false, every_thread);
  std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU};
  if (cuda) activities.insert(profiler::ActivityType::CUDA);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(
      config, activities,
      {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION});
}

void stop_profiler(rust::Str path) {
  auto result = torch::autograd::profiler::disableProfiler();
  if (!path.empty()) result->save(std::string(path));
}

std::unique_ptr<at::RecordFunction> begin_span(rust::Str name) {
  auto span = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (span->isActive()) span->before(std::string(name));
  return span;
}

}  // namespace forebay
