#pragma once
// Tensors as they come from Rust.
#include "forebay-c10d/src/ffi.rs.h"
#include "shim.h"

namespace forebay {

// Collectives work on storage, not on the autograd graph: detach() shares the storage.
inline at::Tensor storage_of(const at::Tensor& value) {
  TORCH_CHECK(value.defined(), "the tensor is undefined");
  return value.detach();
}

inline std::vector<at::Tensor> list(Tensors from) {
  std::vector<at::Tensor> values;
  values.reserve(from.size());
  for (auto& one : from) {
    TORCH_CHECK(one.tensor.defined(), "tensor ", values.size(), " is undefined");
    values.push_back(one.tensor);
  }
  return values;
}

}  // namespace forebay
