#pragma once
// The C face of c10d and libtorch that src/ffi/ declares. Every call that can fail returns null, or a message to be
// freed with fb_free, whose first letter says what threw it (common.h); no C++ exception leaves. A `tensor` is an at::Tensor*, which is what tch's C_tensor* is.
#include <cstddef>
#include <cstdint>

extern "C" {
void fb_free(void* memory);
char* fb_init_logging();
[[noreturn]] void fb_exit(int code);
const char* fb_torch_version();

char* fb_store_tcp(const char* host, uint16_t port, int world, int is_master, int wait_workers, int listen_fd,
                   int64_t timeout_ms, void** out);
char* fb_store_prefix(void* store, const char* prefix, void** out);
char* fb_store_clone(void* store, void** out);
char* fb_store_port(void* store, uint16_t* out);
char* fb_store_set(void* store, const char* key, const uint8_t* data, size_t len);
char* fb_store_get(void* store, const char* key, uint8_t** data, size_t* len);
char* fb_store_add(void* store, const char* key, int64_t amount, int64_t* out);
char* fb_store_check(void* store, const char* key, int* out);
char* fb_store_delete(void* store, const char* key, int* out);
char* fb_store_wait(void* store, const char* const* keys, size_t count, int64_t timeout_ms);
void fb_store_free(void* store);

char* fb_group_gloo(void* store, int rank, int world, int64_t timeout_ms, void** out);
void fb_group_free(void* group, int failed);
// Collectives begin and leave a `work`, which is waited for and freed once. A negative timeout is the group's own.
char* fb_group_all_reduce(void* group, void* tensor, int op, void** work);
char* fb_group_reduce_scatter(void* group, void* input, void* output, int op, void** work);
char* fb_group_broadcast(void* group, void* tensor, int root, void** work);
char* fb_group_all_gather(void* group, void* tensor, void* const* outputs, size_t count, void** work);
char* fb_group_gather(void* group, void* tensor, void* const* outputs, size_t count, int root, void** work);
char* fb_group_send(void* group, void* tensor, int to, int tag, void** work);
char* fb_group_recv(void* group, void* tensor, int from, int tag, void** work);
char* fb_group_barrier(void* group, void** work);
char* fb_work_wait(void* work, int64_t timeout_ms);
void fb_work_free(void* work);

enum { FB_HOOK_NONE = 0, FB_HOOK_FP16 = 1, FB_HOOK_BF16 = 2 };
struct FbDdpOptions {
  int64_t bucket_bytes;
  int64_t first_bucket_bytes;
  int find_unused;
  int static_graph;
  int gradient_as_bucket_view;
  int broadcast_buffers;
  int hook;
  int sample_every;
};
char* fb_ddp_new(void* group, void* const* parameters, size_t parameter_count, void* const* buffers,
                 size_t buffer_count, const FbDdpOptions* options, void** out);
char* fb_ddp_before_forward(void* ddp);
char* fb_ddp_broadcast_buffers(void* ddp);
char* fb_ddp_before_backward(void* ddp, void* const* outputs, size_t count);
char* fb_ddp_backward(void* ddp, void* loss, int sync);
char* fb_ddp_bucket_sizes(void* ddp, int64_t* out, size_t capacity, size_t* count);
char* fb_ddp_record(void* ddp);
char* fb_ddp_stats(void* ddp, const char* const* keys, size_t count, int64_t* out);
void fb_ddp_free(void* ddp);
char* fb_zero_grads(void* const* parameters, size_t count, int set_to_none);

struct FbStream {
  int64_t id;
  int device_type;
  int device_index;
};
char* fb_tensor_from_owner(void* data, const int64_t* sizes, size_t dimensions, int scalar_type, void* owner,
                           void (*drop_owner)(void*), void** out);
char* fb_tensor_pinned(const int64_t* sizes, size_t dimensions, int scalar_type, void** out);
char* fb_tensor_copy(void* to, void* from, int non_blocking);
char* fb_tensor_to_device(void* from, int device_type, int device_index, int non_blocking, void** out);
char* fb_tensor_record_stream(void* tensor, const FbStream* stream);

struct FbAutocast {
  int device_type;
  int enabled;
  int scalar_type;
  int cache;
};
char* fb_autocast_enter(int device_type, int scalar_type, FbAutocast* before);
char* fb_autocast_exit(const FbAutocast* before);

char* fb_stream_from_pool(int device_type, int device_index, int high_priority, FbStream* out);
char* fb_stream_current(int device_type, int device_index, FbStream* out);
char* fb_stream_exchange(const FbStream* stream, FbStream* before);
char* fb_stream_synchronize(const FbStream* stream);
char* fb_event_new(int device_type, int timing, void** out);
char* fb_event_record(void* event, const FbStream* stream);
char* fb_event_block(void* event, const FbStream* stream);
char* fb_event_synchronize(void* event);
char* fb_event_elapsed_ms(void* start, void* end, double* out);
void fb_event_free(void* event);

char* fb_profiler_start(int cuda, int shapes, int memory);
char* fb_profiler_stop(const char* path);
char* fb_span_begin(const char* name, void** out);
char* fb_span_end(void* span);
}
