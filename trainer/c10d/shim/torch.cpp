// What tch leaves out of libtorch itself: memory that Rust owns, pinned memory, autocast, streams, the profiler.
#include "common.h"
#include "shim.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>
#include <cstdlib>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/version.h>

using namespace forebay;
using c10::impl::VirtualGuardImpl;

namespace {

c10::Stream stream_of(const FbStream* stream) {
  return c10::Stream::unpack3(stream->id, static_cast<c10::DeviceIndex>(stream->device_index),
                              static_cast<c10::DeviceType>(stream->device_type));
}

void store_stream(const c10::Stream& stream, FbStream* out) {
  auto packed = stream.pack3();
  *out = {packed.stream_id, static_cast<int>(packed.device_type), static_cast<int>(packed.device_index)};
}

c10::Device device_of(int type, int index) {
  return c10::Device(static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index));
}

c10::Event& event(void* handle) { return *static_cast<c10::Event*>(handle); }

}  // namespace

void fb_free(void* memory) { free(memory); }

const char* fb_torch_version() { return TORCH_VERSION; }

void fb_exit(int code) { _exit(code); }

char* fb_init_logging() {
  return guard([] { c10::initLogging(); });
}

// On failure the owner stays with the caller; afterwards the storage drops it, with its last view.
char* fb_tensor_from_owner(void* data, const int64_t* sizes, size_t dimensions, int scalar_type, void* owner,
                           void (*drop_owner)(void*), void** out) {
  return guard([&] {
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(scalar_type));
    // Without an owner first: whatever may throw for these arguments throws here, before `owner` changes hands.
    at::for_blob(data, at::IntArrayRef(sizes, dimensions)).options(options).make_tensor();
    *out = new at::Tensor(at::for_blob(data, at::IntArrayRef(sizes, dimensions))
                              .context(owner, drop_owner)
                              .options(options)
                              .make_tensor());
  });
}

char* fb_tensor_pinned(const int64_t* sizes, size_t dimensions, int scalar_type, void** out) {
  return guard([&] {
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(scalar_type)).pinned_memory(true);
    *out = new at::Tensor(at::empty(at::IntArrayRef(sizes, dimensions), options));
  });
}

char* fb_tensor_copy(void* to, void* from, int non_blocking) {
  return guard([&] {
    at::NoGradGuard no_grad;
    storage_of(to).copy_(storage_of(from), static_cast<bool>(non_blocking));
  });
}

char* fb_tensor_to_device(void* from, int device_type, int device_index, int non_blocking, void** out) {
  return guard([&] {
    auto& value = tensor(from);
    TORCH_CHECK(value.defined(), "the tensor is undefined");
    auto options = value.options().device(device_of(device_type, device_index));
    *out = new at::Tensor(value.to(options, static_cast<bool>(non_blocking)));
  });
}

char* fb_tensor_record_stream(void* value, const FbStream* stream) {
  return guard([&] { storage_of(value).record_stream(stream_of(stream)); });
}

char* fb_autocast_enter(int device_type, int scalar_type, FbAutocast* before) {
  return guard([&] {
    auto type = static_cast<at::DeviceType>(device_type);
    // Everything that may throw comes before the first change.
    *before = {device_type, at::autocast::is_autocast_enabled(type),
               static_cast<int>(at::autocast::get_autocast_dtype(type)), at::autocast::is_autocast_cache_enabled()};
    at::autocast::set_autocast_dtype(type, static_cast<at::ScalarType>(scalar_type));
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::increment_nesting();
  });
}

char* fb_autocast_exit(const FbAutocast* before) {
  return guard([&] {
    auto type = static_cast<at::DeviceType>(before->device_type);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type, before->enabled);
    at::autocast::set_autocast_dtype(type, static_cast<at::ScalarType>(before->scalar_type));
    at::autocast::set_autocast_cache_enabled(before->cache);
  });
}

char* fb_stream_from_pool(int device_type, int device_index, int high_priority, FbStream* out) {
  return guard([&] {
    VirtualGuardImpl backend(static_cast<c10::DeviceType>(device_type));
    store_stream(backend.getStreamFromGlobalPool(device_of(device_type, device_index), high_priority), out);
  });
}

char* fb_stream_current(int device_type, int device_index, FbStream* out) {
  return guard([&] {
    VirtualGuardImpl backend(static_cast<c10::DeviceType>(device_type));
    store_stream(backend.getStream(device_of(device_type, device_index)), out);
  });
}

char* fb_stream_exchange(const FbStream* stream, FbStream* before) {
  return guard([&] {
    auto wanted = stream_of(stream);
    store_stream(VirtualGuardImpl(wanted.device_type()).exchangeStream(wanted), before);
  });
}

char* fb_stream_synchronize(const FbStream* stream) {
  return guard([&] { stream_of(stream).synchronize(); });
}

char* fb_event_new(int device_type, int timing, void** out) {
  return guard([&] {
    auto flag = timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
    *out = new c10::Event(static_cast<c10::DeviceType>(device_type), flag);
  });
}

char* fb_event_record(void* handle, const FbStream* stream) {
  return guard([&] { event(handle).record(stream_of(stream)); });
}

char* fb_event_block(void* handle, const FbStream* stream) {
  return guard([&] { event(handle).block(stream_of(stream)); });
}

char* fb_event_synchronize(void* handle) {
  return guard([&] { event(handle).synchronize(); });
}

char* fb_event_elapsed_ms(void* start, void* end, double* out) {
  return guard([&] { *out = event(start).elapsedTime(event(end)); });
}

void fb_event_free(void* handle) { delete static_cast<c10::Event*>(handle); }

namespace {
namespace profiler = torch::profiler::impl;
}

char* fb_profiler_start(int cuda, int shapes, int memory) {
  return guard([&] {
    profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, shapes, memory);
    std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU};
    if (cuda) activities.insert(profiler::ActivityType::CUDA);
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(
        config, activities,
        {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION});
  });
}

char* fb_profiler_stop(const char* path) {
  return guard([&] {
    auto result = torch::autograd::profiler::disableProfiler();
    if (path) result->save(path);
  });
}

char* fb_span_begin(const char* name, void** out) {
  return guard([&] {
    auto span = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (span->isActive()) span->before(std::string(name));
    *out = span.release();
  });
}

char* fb_span_end(void* handle) {
  return guard([&] { delete static_cast<at::RecordFunction*>(handle); });
}
