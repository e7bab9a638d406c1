#pragma once
// What the files of the shim share: errors as messages, and handles as the objects behind them.
#include <ATen/ATen.h>

#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace forebay {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using std::chrono::milliseconds;

// The first letter of a message says what threw it, for src/error.rs to tell whose fault it is: the connection to
// another process or to the store, a backend (NCCL), or anything else.
constexpr char kNetwork = 'P', kBackend = 'N', kOther = 'O';

inline char* message(char thrower, const char* text) { return strdup((thrower + std::string(text)).c_str()); }

// Runs `body`; an exception becomes a message that Rust owns.
template <class Body>
char* guard(Body&& body) {
  try {
    body();
    return nullptr;
  } catch (const c10::DistNetworkError& error) {
    return message(kNetwork, error.what_without_backtrace());
  } catch (const c10::DistStoreError& error) {
    return message(kNetwork, error.what_without_backtrace());
  } catch (const c10::DistBackendError& error) {
    return message(kBackend, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return message(kOther, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return message(kOther, error.what());
  } catch (...) {
    return message(kOther, "an unknown C++ exception");
  }
}

inline at::Tensor& tensor(void* pointer) { return *static_cast<at::Tensor*>(pointer); }
inline StorePtr& store(void* pointer) { return *static_cast<StorePtr*>(pointer); }
inline GroupPtr& group(void* pointer) { return *static_cast<GroupPtr*>(pointer); }

// Collectives work on storage, not on the autograd graph: detach() shares the storage.
inline at::Tensor storage_of(void* pointer) {
  auto& value = tensor(pointer);
  TORCH_CHECK(value.defined(), "the tensor is undefined");
  return value.detach();
}

inline std::vector<at::Tensor> tensors(void* const* pointers, size_t count) {
  std::vector<at::Tensor> values;
  values.reserve(count);
  for (size_t i = 0; i < count; i++) {
    values.push_back(tensor(pointers[i]));
    TORCH_CHECK(values.back().defined(), "tensor ", i, " is undefined");
  }
  return values;
}

}  // namespace forebay
