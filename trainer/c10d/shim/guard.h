#pragma once
// What every file of the shim needs: exceptions become messages, pointers become tensors.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <vector>

namespace shim {

// Runs `body`; whatever it throws becomes a message that Rust owns.
template <class Body>
char* guard(Body&& body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("an unknown C++ exception");
  }
}

inline at::Tensor& tensor(void* pointer) { return *static_cast<at::Tensor*>(pointer); }

inline std::vector<at::Tensor> tensors(void* const* pointers, size_t count) {
  std::vector<at::Tensor> values;
  values.reserve(count);
  for (size_t i = 0; i < count; i++) {
    values.push_back(tensor(pointers[i]));
    TORCH_CHECK(values.back().defined(), "tensor ", i, " is undefined");
  }
  return values;
}

}  // namespace shim
