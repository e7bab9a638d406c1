// c10d::TCPStore.
#include "tensors.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace forebay {

namespace {

std::unique_ptr<StoreHandle> handle_of(StorePtr store) {
  return std::make_unique<StoreHandle>(StoreHandle{std::move(store)});
}

std::string text_of(rust::Str text) {
  TORCH_CHECK(std::find(text.begin(), text.end(), '\0') == text.end(), std::string(text.data(), text.size()),
              " contains a NUL byte");
  return std::string(text);
}

}  // namespace

std::unique_ptr<StoreHandle> tcp_store(rust::Str host, uint16_t port, int world, bool is_master, bool wait_workers,
                                       int listen_fd, int64_t timeout_ms) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_master;
  options.numWorkers = world;
  options.waitWorkers = wait_workers;
  options.timeout = milliseconds(timeout_ms);
  if (listen_fd >= 0) options.masterListenFd = listen_fd;
  try {
    return handle_of(c10::make_intrusive<c10d::TCPStore>(text_of(host), options));
  } catch (const c10::DistNetworkError& error) {
    // A server that cannot listen has nobody else to blame.
    if (is_master) throw std::runtime_error(error.what_without_backtrace());
    throw;
  }
}

std::unique_ptr<StoreHandle> StoreHandle::prefixed(rust::Str prefix) const {
  return handle_of(c10::make_intrusive<c10d::PrefixStore>(text_of(prefix), pointer));
}

std::unique_ptr<StoreHandle> StoreHandle::connect_again() const { return handle_of(pointer->clone()); }

uint16_t StoreHandle::port() const {
  auto below = pointer;
  while (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(below.get())) below = prefixed->getUnderlyingStore();
  auto* tcp = dynamic_cast<c10d::TCPStore*>(below.get());
  TORCH_CHECK(tcp, "not a TCP store");
  return tcp->getPort();
}

void StoreHandle::set(rust::Str key, rust::Slice<const uint8_t> value) const {
  pointer->set(text_of(key), std::vector<uint8_t>(value.begin(), value.end()));
}

rust::Vec<uint8_t> StoreHandle::get(rust::Str key) const {
  rust::Vec<uint8_t> value;
  for (auto byte : pointer->get(text_of(key))) value.push_back(byte);
  return value;
}

int64_t StoreHandle::add(rust::Str key, int64_t amount) const { return pointer->add(text_of(key), amount); }

bool StoreHandle::contains(rust::Str key) const { return pointer->check({text_of(key)}); }

bool StoreHandle::remove(rust::Str key) const { return pointer->deleteKey(text_of(key)); }

void StoreHandle::wait(rust::Slice<const rust::Str> keys, int64_t timeout_ms) const {
  std::vector<std::string> all;
  for (auto& key : keys) all.push_back(text_of(key));
  pointer->wait(all, milliseconds(timeout_ms));
}

}  // namespace forebay
