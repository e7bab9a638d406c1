// c10d::TCPStore.
#include "common.h"
#include "shim.h"

#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

using namespace forebay;

char* fb_store_tcp(const char* host, uint16_t port, int world, int is_master, int wait_workers, int listen_fd,
                   int64_t timeout_ms, void** out) {
  return guard([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_master;
    options.numWorkers = world;
    options.waitWorkers = wait_workers;
    options.timeout = milliseconds(timeout_ms);
    if (listen_fd >= 0) options.masterListenFd = listen_fd;
    try {
      *out = new StorePtr(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (const c10::DistNetworkError& error) {
      // A server that cannot listen has nobody else to blame.
      if (is_master) throw std::runtime_error(error.what_without_backtrace());
      throw;
    }
  });
}

char* fb_store_prefix(void* handle, const char* prefix, void** out) {
  return guard([&] { *out = new StorePtr(c10::make_intrusive<c10d::PrefixStore>(prefix, store(handle))); });
}

char* fb_store_clone(void* handle, void** out) {
  return guard([&] { *out = new StorePtr(store(handle)->clone()); });
}

char* fb_store_port(void* handle, uint16_t* out) {
  return guard([&] {
    auto below = store(handle);
    while (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(below.get())) below = prefixed->getUnderlyingStore();
    auto* tcp = dynamic_cast<c10d::TCPStore*>(below.get());
    TORCH_CHECK(tcp, "not a TCP store");
    *out = tcp->getPort();
  });
}

char* fb_store_set(void* handle, const char* key, const uint8_t* data, size_t len) {
  return guard([&] { store(handle)->set(key, std::vector<uint8_t>(data, data + len)); });
}

char* fb_store_get(void* handle, const char* key, uint8_t** data, size_t* len) {
  return guard([&] {
    auto value = store(handle)->get(key);
    auto* copy = static_cast<uint8_t*>(malloc(std::max<size_t>(value.size(), 1)));
    TORCH_CHECK(copy, "out of memory");
    std::copy(value.begin(), value.end(), copy);
    *data = copy;
    *len = value.size();
  });
}

char* fb_store_add(void* handle, const char* key, int64_t amount, int64_t* out) {
  return guard([&] { *out = store(handle)->add(key, amount); });
}

char* fb_store_check(void* handle, const char* key, int* out) {
  return guard([&] { *out = store(handle)->check({key}); });
}

char* fb_store_delete(void* handle, const char* key, int* out) {
  return guard([&] { *out = store(handle)->deleteKey(key); });
}

char* fb_store_wait(void* handle, const char* const* keys, size_t count, int64_t timeout_ms) {
  return guard([&] { store(handle)->wait(std::vector<std::string>(keys, keys + count), milliseconds(timeout_ms)); });
}

void fb_store_free(void* handle) { delete static_cast<StorePtr*>(handle); }
