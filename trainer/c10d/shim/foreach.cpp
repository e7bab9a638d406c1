// Arithmetic over many tensors at once: on a GPU a few kernels for a whole model, on a CPU a loop. Each operation rounds
// as the tensor method of the same name does, so optimizers built of them give PyTorch's values bit for bit.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include "common.h"
#include "foreach.h"

using namespace forebay;

namespace {

// Numbers shared with src/foreach.rs.
constexpr int kScale = 0, kAddScaled = 1, kLerp = 2, kAddProduct = 3, kAddQuotient = 4;

}  // namespace

extern "C" {

char* fb_foreach(int operation, void* const* into, void* const* first, void* const* second, size_t count,
                 double number) {
  return guard([&] {
    if (count == 0) return;
    at::NoGradGuard no_grad;
    auto x = tensors(into, count);
    auto list = [&](void* const* pointers) { return tensors(pointers, count); };
    switch (operation) {
      case kScale:
        return at::_foreach_mul_(x, number);
      case kAddScaled:
        return at::_foreach_add_(x, list(first), number);
      case kLerp:
        return at::_foreach_lerp_(x, list(first), number);
      case kAddProduct:
        return at::_foreach_addcmul_(x, list(first), list(second), number);
      case kAddQuotient:
        return at::_foreach_addcdiv_(x, list(first), list(second), number);
    }
    TORCH_CHECK(false, "no such operation: ", operation);
  });
}

char* fb_foreach_sums(void* const* first, void* const* second, size_t count, double factor, void** out) {
  return guard([&] {
    if (count == 0) return;
    at::NoGradGuard no_grad;
    auto sums = at::_foreach_add(tensors(first, count), tensors(second, count), factor);
    for (size_t i = 0; i < count; i++) out[i] = new at::Tensor(std::move(sums[i]));
  });
}

char* fb_foreach_adam_denominators(void* const* squares, size_t count, double correction, double eps, void** out) {
  return guard([&] {
    if (count == 0) return;
    at::NoGradGuard no_grad;
    auto roots = at::_foreach_sqrt(tensors(squares, count));
    at::_foreach_div_(roots, correction);
    at::_foreach_add_(roots, eps);
    for (size_t i = 0; i < count; i++) out[i] = new at::Tensor(std::move(roots[i]));
  });
}

char* fb_global_norm(void* const* values, size_t count, double* out) {
  return guard([&] {
    *out = 0;
    if (count == 0) return;
    at::NoGradGuard no_grad;
    auto norms = at::_foreach_norm(tensors(values, count));
    *out = at::stack(norms).norm().item<double>();
  });
}

char* fb_unscale(void* const* values, size_t count, double factor, int* finite) {
  return guard([&] {
    *finite = 1;
    if (count == 0) return;
    at::NoGradGuard no_grad;
    auto list = tensors(values, count);
    auto options = list[0].options().dtype(at::kFloat);
    auto bad = at::zeros({1}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(list, bad, at::full({1}, factor, options));
    *finite = bad.item<float>() == 0;
  });
}

}  // extern "C"
