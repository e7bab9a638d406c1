#pragma once
// The C++ face of c10d and libtorch that src/ffi.rs declares. What throws is an error there (`trycatch`, common.h).
#include "common.h"
#include "rust/cxx.h"

#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <functional>

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace rust::behavior {
template <class Try, class Fail>
static void trycatch(Try&& body, Fail&& fail) noexcept {
  forebay::told(body, fail);
}
}  // namespace rust::behavior

namespace forebay {

// Of src/ffi.rs; all but the owner are defined in what cxx makes of it.
enum class Op : uint8_t;
struct DdpSettings;
struct DdpStats;
struct Owner;
struct Stream;
struct TensorRef;

using AtTensor = at::Tensor;
using EventHandle = c10::Event;
using SpanHandle = at::RecordFunction;
using Tensors = rust::Slice<const TensorRef>;
using NewTensors = std::unique_ptr<std::vector<at::Tensor>>;

void init_logging();
void exit_at_once(int code);
rust::String torch_version();

struct StoreHandle {
  StorePtr pointer;  // Alone: the plugin takes the handle for it.

  std::unique_ptr<StoreHandle> prefixed(rust::Str prefix) const;
  std::unique_ptr<StoreHandle> connect_again() const;
  uint16_t port() const;
  void set(rust::Str key, rust::Slice<const uint8_t> value) const;
  rust::Vec<uint8_t> get(rust::Str key) const;
  int64_t add(rust::Str key, int64_t amount) const;
  bool contains(rust::Str key) const;
  bool remove(rust::Str key) const;
  void wait(rust::Slice<const rust::Str> keys, int64_t timeout_ms) const;
};
// A listening socket (or -1) belongs to the store from then on.
std::unique_ptr<StoreHandle> tcp_store(rust::Str host, uint16_t port, int world, bool is_master, bool wait_workers,
                                       int listen_fd, int64_t timeout_ms);

// A collective under way, and what is left to do once it is through.
struct WorkHandle {
  c10::intrusive_ptr<c10d::Work> work;
  mutable std::function<void()> after;

  // A negative timeout is the group's own.
  void wait(int64_t timeout_ms) const;
};
using NewWork = std::unique_ptr<WorkHandle>;

struct GroupHandle {
  GroupPtr pointer;  // First: the plugin takes the handle for it.
  mutable bool failed;

  ~GroupHandle();
  // An operation has failed: the group is not to wait for its peers when it goes.
  void fail() const { failed = true; }
  bool has_failed() const { return failed; }
  NewWork all_reduce(const at::Tensor& value, Op op) const;
  NewWork reduce_scatter(const at::Tensor& input, const at::Tensor& output, Op op) const;
  NewWork broadcast(const at::Tensor& value, int root) const;
  NewWork all_gather(const at::Tensor& value, Tensors outputs) const;
  NewWork gather(const at::Tensor& value, Tensors outputs, int root) const;
  NewWork send(const at::Tensor& value, int to, int tag) const;
  NewWork recv(const at::Tensor& value, int from, int tag) const;
  NewWork barrier() const;
};
std::unique_ptr<GroupHandle> gloo_group(const StoreHandle& store, int rank, int world, int64_t timeout_ms);

// c10d's reducer with its logger.
struct Reducer {
  GroupPtr group;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
  std::vector<at::Tensor> buffers;
  bool find_unused;
  mutable bool static_graph;
  // A synchronised pass was prepared, and its times have not been taken yet.
  mutable bool unrecorded = false;

  ~Reducer();
  void before_forward() const;
  void broadcast_buffers() const;
  void before_backward(const at::Tensor& output) const;
  void backward(const at::Tensor& loss, bool sync) const;
  rust::Vec<int64_t> bucket_sizes() const;
  DdpStats stats() const;
  // Takes the times of the last synchronised pass, once, if it is one that the reducer samples.
  void record() const;
};
std::unique_ptr<Reducer> make_reducer(const GroupHandle& group, Tensors parameters, Tensors buffers,
                                      const DdpSettings& settings);
void zero_gradients(Tensors parameters, bool set_to_none);

void foreach_scale(Tensors x, double factor);
void foreach_add_scaled(Tensors x, Tensors y, double factor);
void foreach_lerp(Tensors x, Tensors y, double weight);
void foreach_add_product(Tensors x, Tensors y, Tensors z, double factor);
void foreach_add_quotient(Tensors x, Tensors y, Tensors z, double factor);
NewTensors foreach_sums(Tensors x, Tensors y, double factor);
NewTensors foreach_adam_denominators(Tensors squares, double correction, double eps);
double foreach_norm(Tensors values);
bool foreach_unscale(Tensors values, double factor);

// A tensor over the bytes of `owner`, of the kind of `like`.
std::unique_ptr<at::Tensor> tensor_over(rust::Box<Owner> owner, rust::Slice<const int64_t> sizes,
                                        const at::Tensor& like);
std::unique_ptr<at::Tensor> pinned(const at::Tensor& value);

// The thread's settings before, which come back when it goes.
struct AutocastGuard {
  at::DeviceType device;
  bool enabled;
  at::ScalarType kind;
  bool cache;

  ~AutocastGuard();
};
std::unique_ptr<AutocastGuard> enter_autocast(int gpu, const at::Tensor& like);

// A device is a GPU's number, or -1 for the CPU.
Stream stream_from_pool(int gpu, bool high_priority);
Stream current_stream(int gpu);
void synchronize_stream(const Stream& stream);
void keep_for_stream(const at::Tensor& value, const Stream& stream);
// The thread's stream before, which comes back when it goes.
struct StreamGuard {
  c10::Stream before;

  ~StreamGuard();
};
std::unique_ptr<StreamGuard> switch_stream(const Stream& stream);
std::unique_ptr<c10::Event> make_event(int gpu, bool timing);
void record_event(c10::Event& event, const Stream& stream);
void block_stream(const c10::Event& event, const Stream& stream);
void synchronize_event(const c10::Event& event);
double elapsed_ms(const c10::Event& start, const c10::Event& end);

void start_profiler(bool cuda, bool shapes, bool memory);
// To nowhere if the path is empty.
void stop_profiler(rust::Str path);
std::unique_ptr<at::RecordFunction> begin_span(rust::Str name);

}  // namespace forebay
