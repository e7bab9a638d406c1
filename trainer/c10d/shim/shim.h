#pragma once
// The C face of c10d that src/ffi.rs declares. Every call that can fail returns null, or a message to be freed
// with fb_free; no C++ exception leaves. A `tensor` is an at::Tensor*, which is what tch's C_tensor* is.
#include <cstddef>
#include <cstdint>

extern "C" {
void fb_free(void* memory);
char* fb_init_logging();

char* fb_store_tcp(const char* host, uint16_t port, int world, int is_master, int wait_workers, int listen_fd,
                   int64_t timeout_ms, void** out);
char* fb_store_port(void* store, uint16_t* out);
char* fb_store_set(void* store, const char* key, const uint8_t* data, size_t len);
char* fb_store_get(void* store, const char* key, uint8_t** data, size_t* len);
char* fb_store_wait(void* store, const char* const* keys, size_t count, int64_t timeout_ms);
void fb_store_free(void* store);

char* fb_group_gloo(void* store, int rank, int world, int64_t timeout_ms, void** out);
char* fb_group_all_reduce(void* group, void* tensor, int op);
char* fb_group_broadcast(void* group, void* tensor, int root);
char* fb_group_all_gather(void* group, void* tensor, void* const* outputs, size_t count);
char* fb_group_barrier(void* group);
void fb_group_free(void* group);

char* fb_ddp_new(void* group, void* const* parameters, size_t parameter_count, void* const* buffers,
                 size_t buffer_count, int64_t bucket_bytes, int64_t first_bucket_bytes, int find_unused,
                 int gradient_as_bucket_view, void** out);
char* fb_ddp_before_forward(void* ddp);
char* fb_ddp_before_backward(void* ddp, void* const* outputs, size_t count);
char* fb_ddp_bucket_sizes(void* ddp, int64_t* out, size_t capacity, size_t* count);
char* fb_ddp_stat(void* ddp, const char* key, int64_t* out, int* found);
void fb_ddp_free(void* ddp);

char* fb_zero_grads(void* const* parameters, size_t count, int set_to_none);
char* fb_tensor_from_owner(void* data, const int64_t* sizes, size_t dimensions, int scalar_type, void* owner,
                           void (*drop_owner)(void*), void** out);
}
